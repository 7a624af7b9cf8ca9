"""`rppdyn discover`: of functions, of fits, and what it refuses."""

from __future__ import annotations

import json

import pytest
import torch

from rppdyn.cli import main
from rppdyn.jobs import discover
from rppdyn.jobs.config.checks import ConfigError
from rppdyn.jobs.config.command import DiscoverConfig

CODE = """
import torch

def tilted(x):
    axis = x.new_tensor([0.6, 0.0, 0.8])
    return torch.linalg.cross(axis.expand_as(x), x) * (x @ axis)[:, None].square()

def rough(x):
    return (x @ x.new_tensor([[1., 2, 3], [0, 1, -1], [2, 0, 1]])).sin()
"""


@pytest.fixture
def code(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "found_in.py").write_text(CODE)
    return tmp_path


def config(what, **options):
    return DiscoverConfig(what, **dict(family="SO(3)", rep_in="V", rep_out="V", states_from="normal") | options)


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
    words = [
        "task=pendulum",
        "model=emlp_hnn",
        "model.hidden=16",
        "task.train=20",
        "task.validation=10",
        "task.test=20",
    ]
    words += ["optimiser.epochs=1", "rollout.trajectories=1", "compile=false", "run_dir=hnn", "threads=1"]
    assert main(["fit-dynamics", *words]) == 0
    result = discover.run(DiscoverConfig("hnn"))
    (found,) = result.found
    assert result.family == "GL(3)" and len(found.spectrum) == 9 and (code / "hnn" / "discover.json").exists()
    assert found.verdict == "exact" and len(found.generators) == 1
    turn = 2**0.5 * torch.nn.functional.normalize(torch.tensor([0.0, 1.0, 0.0, -1.0, 0.0, 0.0, 0.0, 0.0, 0.0]), dim=0)
    assert torch.allclose(torch.tensor(found.generators[0]).flatten().abs(), turn.abs(), atol=1e-6)


def test_a_robot(code, capsys):
    assert main(["discover", "Swimmer-v5", "--steps", "1500", "--json", "swimmer.json"]) == 0
    out = capsys.readouterr().out
    assert "permutations of joints" in out and "in the simulator exact" in out
    stored = json.loads((code / "swimmer.json").read_text())
    (mirror,) = [one for one in stored["best"] if one["dynamics"] == "exact"]
    assert mirror["name"] == "signs of slider2, free_body_rot, motor1_rot, motor2_rot"
    assert stored["steps"] >= 1500 and stored["scores"][0] == stored["best"][0]["score"]


def test_kinds(code):
    (code / "set" / "data").mkdir(parents=True)
    for what, kind in [("set", "dataset"), ("rppdyn/Swimmer-v5/random-seed0-v0", "dataset"), ("Swimmer-v5", "environment"),
                       ("mine:Robot-v0", "environment"), ("found_in:rough", "function"), ("runs/some", "run")]:  # fmt: skip
        assert (
            DiscoverConfig(what, **(dict(family="SO(3)", rep_in="V", rep_out="V") if kind == "function" else {})).kind
            == kind
        )
    with pytest.raises(ConfigError, match="permutations of joints are ranked, not generators"):
        DiscoverConfig("Swimmer-v5", family="SO(3)")


def test_bad_input(code):
    for options, words in [
        (dict(family="Z(3)", rep_in="V", rep_out="V"), "no continuous generators"),
        (dict(rep_in="T(40)"), "--states 500: inputs of .* numbers"),
        (dict(states=2, family="GL(3)"), "2 states are too few"),
        (dict(states_from=None), "--from FILE"),
    ]:
        with pytest.raises(ValueError, match=words):
            discover.run(config("found_in:tilted", **options))
    with pytest.raises(ConfigError, match="--family is missing"):
        DiscoverConfig("found_in:tilted")
