"""`rppdyn discover`: of functions, of fits, and what it refuses."""

from __future__ import annotations

import json

import pytest
import torch

from rppdyn.agents import played_episodes, random_policy
from rppdyn.cli import main
from rppdyn.envs import make_env, write_episodes
from rppdyn.jobs import discover
from rppdyn.jobs.config.base import ConfigError
from rppdyn.jobs.config.command import DiscoverConfig

CODE = """
import torch

def tilted(x):
    axis = x.new_tensor([0.6, 0.0, 0.8])
    return torch.linalg.cross(axis.expand_as(x), x) * (x @ axis)[:, None].square()

def constant(x):
    return torch.ones_like(x)

def rough(x):
    return (x @ x.new_tensor([[1., 2, 3], [0, 1, -1], [2, 0, 1]])).sin()
"""


@pytest.fixture
def code(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "found_in.py").write_text(CODE)
    return tmp_path


def config(what, **options):
    return DiscoverConfig(what=what, **dict(family="SO(3)", rep_in="V", rep_out="V", states_from="normal") | options)


def test_a_function(code, capsys):
    words = ["--family", "SO(3)", "--rep-in", "V", "--rep-out", "V", "--from", "normal"]
    assert main(["discover", "found_in:tilted", *words]) == 0
    out = capsys.readouterr().out
    assert "an exact symmetry of 1 generator" in out and "500 states: standard normal inputs" in out
    stored = json.loads((code / "found_in.tilted.discover.json").read_text())
    ((generator,),) = [one["generators"] for one in stored["found"]]
    A = torch.tensor(generator)
    assert torch.allclose(torch.stack([A[2, 1], A[0, 2], A[1, 0]]).abs(), torch.tensor([0.6, 0.0, 0.8]), atol=1e-6)
    assert stored["provenance"]["commit"] is None or stored["provenance"]["commit"]


def test_a_function_without_symmetry(code):
    result = discover.run(config("found_in:rough", family="GL(3)"))
    assert result.found[0].verdict == "none" and result.found[0].generators == []
    assert "no continuous symmetry" in discover.table(result)


def test_a_fit(code):
    """A strict network has its symmetry, whatever it has learned."""
    words = ["task=pendulum", "model=emlp_hnn", "model.hidden=8", "model.num_layers=1", "task.horizon=2",
             "evaluation.states=20", "task.train=20", "task.validation=10", "task.test=20", "optimiser.epochs=1",
             "rollout.trajectories=1", "compile=false", "run_dir=hnn", "threads=1"]  # fmt: skip
    assert main(["fit-dynamics", *words]) == 0
    result = discover.run(DiscoverConfig(what="hnn", states=50))
    (found,) = result.found
    assert result.family == "GL(3)" and len(found.spectrum) == 9 and (code / "hnn" / "discover.json").exists()
    assert found.verdict == "exact" and len(found.generators) == 1
    turn = 2**0.5 * torch.nn.functional.normalize(torch.tensor([0.0, 1.0, 0.0, -1.0, 0.0, 0.0, 0.0, 0.0, 0.0]), dim=0)
    assert torch.allclose(torch.tensor(found.generators[0]).flatten().abs(), turn.abs(), atol=1e-6)


@pytest.fixture
def swimming(code, monkeypatch):
    """Steps of Swimmer as a dataset."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(code / "minari"))
    with make_env("Swimmer-v5", monitor=False) as env:
        write_episodes(
            "test/swim-v0", list(played_episodes(env, random_policy(env.action_space, 0), steps=3000, seed=0)), env=env
        )
    return "test/swim-v0"


def test_a_transition_model(swimming, code, capsys):
    """Swimmer has no vectors by name; those of the plane are named."""
    words = [f"dataset={swimming}", "model=emlp", "model.hidden=16", "task.train=50", "task.trajectories=1"]
    words += ["task.length=50", "optimiser.epochs=1", "device=cpu", "run_dir=model", "threads=1"]
    assert main(["fit-transition", *words]) == 0
    capsys.readouterr()
    assert main(["discover", "model"]) == 2
    err = capsys.readouterr().err
    assert "no entries are vectors" in err and "--blocks" in err
    with pytest.raises(ConfigError, match="there is no 'torso' among the entries"):
        discover.run(DiscoverConfig(what="model", blocks="torso"))
    found = discover.run(DiscoverConfig(what="model", blocks="slider1 velocity+slider2 velocity", states=50)).found
    assert [len(one.spectrum) for one in found] == [4]


AGENT = ["model=emlp", "model.hidden=8", "agent.learning_starts=20", "agent.batch_size=8", "agent.buffer_size=100",
         "evaluation.every=40", "evaluation.episodes=1", "evaluation.states=16", "total_steps=30", "device=cpu",
         "agent.compile=false", "run_dir=agent"]  # fmt: skip


def test_an_agent_with_vectors(code):
    """A strict policy of the pendulum turns with its state about the vertical axis, in its own episodes."""
    assert main(["train-agent", "env=rppdyn/WindyPendulum-v0", "env.symmetry='SO(2)'", *AGENT]) == 0
    result = discover.run(DiscoverConfig(what="agent", episodes=1, states=100))
    (found,) = result.found
    assert result.representations == "x_1, x_2, p_1, p_2, tau" and found.spectrum[0] < 1e-12
    axis = torch.tensor(found.generators[0])
    turn = torch.tensor([[0.0, 1, 0], [-1, 0, 0], [0, 0, 0]])
    assert found.verdict == "exact" and len(found.generators) == 1
    assert torch.allclose(axis.abs(), turn.abs(), atol=1e-6)
    assert "an exact symmetry of 1 generator" in discover.table(result)
    for options, words in [
        (dict(states_from="normal"), "--from normal: of an agent give rollouts"),
        (dict(family="SO(3)", rep_in="V", rep_out="V"), "--rep-in T1: acts on 3 numbers, and there are"),
    ]:
        with pytest.raises(ConfigError, match=words):
            discover.run(DiscoverConfig(what="agent", episodes=1, **options))


@pytest.mark.parametrize("what", ["Swimmer-v5", "rppdyn/Swimmer-v5/random-seed0-v0", "mine:Robot-v0"])
def test_a_robot_is_certified(code, what, capsys):
    assert main(["discover", what]) == 2
    err = capsys.readouterr().err
    assert what in err and "rppdyn certify ENV" in err and err.count("\n") == 1


def test_bad_input(code):
    for options, words in [
        (dict(family="Z(3)", rep_in="V", rep_out="V"), "no continuous generators"),
        (dict(rep_in="T(40)"), "--states 500: inputs of .* numbers"),
        (dict(states=2, family="GL(3)"), "2 states are too few"),
        (dict(states_from=None), "--from FILE"),
    ]:
        with pytest.raises(ValueError, match=words):
            discover.run(config("found_in:tilted", **options))
    with pytest.raises(ValueError, match="f is constant on these states, so everything is a symmetry of it"):
        discover.run(config("found_in:constant"))
    with pytest.raises(ConfigError, match="--blocks x: of a run alone"):
        DiscoverConfig(what="found_in:tilted", blocks="x")
    with pytest.raises(ConfigError, match="give one of them"):
        DiscoverConfig(what="runs/some", blocks="x", family="SO(3)")
    with pytest.raises(ConfigError, match="--family is missing"):
        DiscoverConfig(what="found_in:tilted")
