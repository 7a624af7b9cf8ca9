"""`env.spec=FILE`: a list of terms as the symmetry of an environment, from the command line to the policy."""

from __future__ import annotations

import json

import numpy as np
import pytest
from refusals import refused

from rppdyn.agents import played_episodes, policy_equivariance_error, random_policy
from rppdyn.cli import main
from rppdyn.envs import SymmetrySpec, make_env, symmetry_spec, write_episodes
from rppdyn.envs._catalogue import terms_spec
from rppdyn.jobs.building import agent_of

JOINTS = "rootz, rooty, thigh_joint, leg_joint, foot_joint, thigh_left_joint, leg_left_joint, foot_left_joint"
TERMS = f"""
observation:
  - {{term: joint_positions, joints: [{JOINTS}], relative: false}}
  - {{term: joint_velocities, joints: [rootx, {JOINTS}]}}
"""
WORDS = (
    "env=Walker2d-v5", "device=cpu", "model.hidden=8", "agent.learning_starts=10", "agent.batch_size=8", "agent.buffer_size=50",
    "evaluation.every=40", "evaluation.episodes=1", "evaluation.states=16", "total_steps=20",
)  # fmt: skip


@pytest.fixture
def terms(tmp_path):
    file = tmp_path / "terms.yaml"
    file.write_text(TERMS)
    return file


def test_a_whole_job_has_the_terms_symmetry(terms, tmp_path, capsys):
    assert main(["certify", "Walker2d-v5", "--spec", str(terms), "--states", "20"]) == 0
    assert "leg swap: dynamics exact, reward exact" in capsys.readouterr().out
    run = tmp_path / "run"
    assert main(["train-agent", *WORDS, f"env.spec={terms}", "model=emlp", "agent.augment=true", f"run_dir={run}"]) == 0
    spec = SymmetrySpec.from_dict(json.loads((run / "spec.json").read_text()))
    own = symmetry_spec("Walker2d-v5")
    for one, other in ((spec.obs, own.obs), (spec.action, own.action)):
        assert np.array_equal(one.discrete_generators, other.discrete_generators)
    terms.unlink()  # the run has its own
    assert main(["train-agent", "--resume", str(run), "total_steps=30"]) == 0
    with agent_of(str(run), 1, 0) as (agent, _, evaluator):
        observations = evaluator.explore(agent).observations[:20]
        assert policy_equivariance_error(agent, observations).error < 1e-9
        assert agent.spec.digest == spec.digest


def test_a_list_in_another_order_is_refuted(terms, capsys):
    terms.write_text(TERMS.replace("thigh_joint, leg_joint", "leg_joint, thigh_joint"))
    assert main(["certify", "Walker2d-v5", "--spec", str(terms), "--states", "20"]) == 0
    out = capsys.readouterr().out
    line = next(line for line in out.splitlines() if line.startswith("observation"))
    assert "broken" in line or "approximate" in line


def test_fit_transition_takes_the_list(terms, tmp_path, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "datasets"))
    env = make_env("Walker2d-v5", monitor=False)
    episodes = played_episodes(env, random_policy(env.action_space, 0), steps=200, seed=0)
    write_episodes("test/walker-v0", episodes, env=env)
    words = ("dataset=test/walker-v0", "model.hidden=[8]", "optimiser.epochs=1", "task.length=5", "task.trajectories=2",
             "task.train=50", "task.chunk=2", f"run_dir={tmp_path / 'fit'}")  # fmt: skip
    assert main(["fit-transition", *words, f"spec={terms}"]) == 0


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("observation: [joint_positons]", ("terms.yaml", "joint_positons", "joint_positions")),
        ("observation: [joint_positions]", ("terms.yaml lists", "entries of observation", "Walker2d-v5 has (17,)")),
        (TERMS + "symmetry: mirror", ("terms.yaml", "mirror", "leg swap")),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(terms, tmp_path, capsys, text, parts):
    terms.write_text(text)
    with refused(*parts):
        terms_spec(make_env("Walker2d-v5"), terms)
    run = tmp_path / "run"
    assert main(["train-agent", *WORDS, f"env.spec={terms}", f"run_dir={run}"]) == 2
    error = capsys.readouterr().err
    assert len(error.strip().splitlines()) == 1 and all(part in error for part in parts)
    assert not run.exists()


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (("train-agent", *WORDS, "env.spec=nowhere.yaml"), ("no file of terms", "nowhere.yaml")),
        (("train-agent", *WORDS, "env.spec=a.yaml", "env.variant=published"), ("env.variant=published", "env.spec=a.yaml")),
        (("certify", "Walker2d-v5", "--spec", "a.yaml", "--variant", "published"), ("--variant published", "--spec a.yaml")),
        (("certify", "robot.xml", "--spec", "a.yaml"), ("--spec a.yaml", "robot.xml is a model")),
        (("collect", "--random", "env=Walker2d-v5", "env.spec=a.yaml"), ("env.spec=a.yaml: only env=",)),
    ],
)  # fmt: skip
def test_contradictions_are_refused_in_one_line(words, parts, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(list(words)) == 2
    error = capsys.readouterr().err
    assert len(error.strip().splitlines()) == 1 and all(part in error for part in parts), error
