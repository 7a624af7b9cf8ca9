"""Agents and runs of commit 17d2540 load, go on, and give the numbers that they gave then.

`make.py` made them: three agents, and six runs, of which `half` was killed after its checkpoint at step 100. What is
asked goes through what users call: verbs, `rppdyn.load`, `RPPSAC.load`.
"""

from __future__ import annotations

import contextlib
import io
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import rppdyn
from rppdyn import agents
from rppdyn.cli import main

HERE = Path(__file__).parent
EXPECTED = json.loads((HERE / "set" / "expected.json").read_text())
ROUNDING = 1e-4
"""Relative, of float32 after some tens of updates; to the largest of the numbers of one list."""
AGENTS = {"walker_rpp.zip": "RPPSAC", "reacher_rpp.zip": "RPPSAC", "pendulum_emlp_ppo.zip": "RPPPPO"}
"""Files and their classes."""

# -- what is asked ----------------------------------------------------------------------------------------------------


def printed(*words: str) -> str:
    """The output of a command."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert main(list(words)) == 0, out.getvalue()
    return out.getvalue()


def inputs(name: str) -> list[np.ndarray]:
    """Inputs for the trained function of a run, or for an agent: the same numbers for ever."""
    g = np.random.RandomState(1)  # NumPy promises that its numbers stay
    if name == "windy_pendulum":
        x = np.zeros((3, 12))
        x[:, :6] = np.array([0, 0, -2, 0, 0, -4]) + 0.3 * g.randn(3, 6)
        x[:, 6:] = 0.3 * g.randn(3, 6)
        return [x, np.array([0.0, 0.1, 0.2])]
    if name == "trajectories":
        return [np.array([[1.0, 0.0, 0.0, 1.0], [0.3, 0.7, -0.6, 0.2]]), np.array([0.0, 0.1, 0.2])]
    sizes = {"agent": (4,), "half": (4,), "pendulum_emlp_ppo.zip": (4,), "walker_rpp.zip": (17,), "reacher_rpp.zip": (10,),
             "regression": (20,), "image": (1, 16, 16)}  # fmt: skip
    x = g.randn(5, *sizes[name])
    if name == "regression":
        x[:, :5] = np.abs(x[:, :5])  # masses
    return [x]


def load_agent(file: Path) -> Any:
    return getattr(agents, AGENTS[file.name]).load(file, device="cpu")


def policy_numbers(agent: Any, x: np.ndarray) -> dict[str, Any]:
    """Deterministic actions, and values of the critics."""
    found = {"actions": agent.predict(x, deterministic=True)[0].tolist()}
    policy = agent.policy
    with torch.no_grad():
        observations = torch.as_tensor(x, dtype=torch.float32)
        if hasattr(policy, "critic"):
            actions = torch.as_tensor(agent.predict(x, deterministic=True)[0])
            found["values"] = [v.flatten().tolist() for v in policy.critic(observations, policy_scaled(agent, actions))]
        else:
            found["values"] = [policy.predict_values(observations).flatten().tolist()]
    return found


def policy_scaled(agent: Any, actions: Any) -> Any:
    return torch.as_tensor(agent.policy.scale_action(actions.numpy()), dtype=torch.float32)


def run_numbers(run: str) -> dict[str, Any]:
    """Predictions at fixed inputs and equivariance errors of a run; of an agent returns, too. Below the current folder."""
    model, name = rppdyn.load(run), run.split("/")[0]
    if name in ("agent", "half"):
        found = policy_numbers(model, *inputs(name))
        said = printed("evaluate-agent", run, "--episodes", "3")
        found["returns"] = [float(line.split()[2]) for line in said.splitlines() if line.split()[0].isdigit()]
        words = ["--states", "40", "--episodes", "2"]
    else:
        found = {"predictions": np.asarray(model.predict(*inputs(name))).tolist()}
        words = ["--states", "16"]
        if name == "image":
            words += ["--transformations", "rotation,translation_x"]
    printed("equivariance", run, *words, "--json", "equivariance.json", "--figure", "equivariance.png")
    return found | {"equivariance": errors("equivariance.json")}


def errors(file: str) -> dict[str, Any]:
    """Equivariance errors of each function in a result of `rppdyn equivariance`, over all and of each generator."""

    def both(values: dict[str, Any]) -> list[float]:
        return [values["error"], values["published"]]

    functions = json.loads(Path(file).read_text())["functions"]
    return {
        name: {"overall": both(values["overall"])} | {g: both(v) for g, v in values["per_generator"].items()}
        for name, values in functions.items()
    }


def last_metrics(run: str) -> dict[str, float]:
    """Numbers of a training run's last line."""
    line = Path(run, "metrics.jsonl").read_text().splitlines()[-1]
    return {k: v for k, v in json.loads(line).items() if isinstance(v, int | float) and not k.startswith("time")}


def resumed_numbers() -> dict[str, Any]:
    """The run `half`, which is gone on with."""
    printed("train-agent", "--resume", "half")
    return run_numbers("half") | {"metrics": last_metrics("half")}


# -- and compared -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def golden(tmp_path_factory):
    """A copy, which is the current folder."""
    copy = shutil.copytree(HERE / "set", tmp_path_factory.mktemp("golden") / "set")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(copy)
        yield copy


def leaves(content: Any, where: str = "") -> dict[str, float]:
    if isinstance(content, dict):
        return {k: v for name, inner in content.items() for k, v in leaves(inner, f"{where}/{name}").items()}
    if isinstance(content, list):
        return {k: v for i, inner in enumerate(content) for k, v in leaves(inner, f"{where}/{i}").items()}
    return {where: content}


def assert_same(found: Any, expected: Any, tolerance: float = ROUNDING) -> None:
    """Nested numbers agree to rounding; lists as arrays, each number relative to the list's largest."""
    if isinstance(expected, dict):
        assert found.keys() >= expected.keys()
        for name in expected:
            try:
                assert_same(found[name], expected[name], tolerance)
            except AssertionError as error:
                raise AssertionError(f"{name}: {error}") from error
        return
    a, b = leaves(found), leaves(expected)
    assert a.keys() == b.keys()
    scale = max(abs(value) for value in b.values())
    worst = max(abs(a[k] - b[k]) for k in b)
    assert worst <= tolerance * scale + 1e-12, f"{found} is not {expected}"


@pytest.mark.parametrize("name", AGENTS)
def test_agents_act_and_value_as_they_did(golden, name):
    assert_same(policy_numbers(load_agent(golden / name), *inputs(name)), EXPECTED[name])


@pytest.mark.parametrize("run", ["agent/seed0", "agent/seed1", "windy_pendulum", "regression", "image", "trajectories"])
def test_runs_predict_evaluate_and_are_measured_as_they_were(golden, run):
    assert_same(run_numbers(run), EXPECTED[run], 1e-3)


def test_a_killed_run_goes_on_to_the_same_end(golden):
    assert_same(resumed_numbers(), EXPECTED["half"], 1e-3)
    assert len((golden / "half" / "metrics.jsonl").read_text().splitlines()) == 4  # three measurements and the end


@pytest.mark.parametrize("name", AGENTS)
def test_other_weights_are_seen(golden, name):
    """A negative control: what is compared is not the same for another agent."""
    agent = load_agent(golden / name)
    with torch.no_grad():
        for parameter in agent.policy.parameters():
            parameter.mul_(1.01)
    with pytest.raises(AssertionError, match="is not"):
        assert_same(policy_numbers(agent, *inputs(name)), EXPECTED[name])
