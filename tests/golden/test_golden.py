"""Agents and runs of commit 17d2540 load, go on, and give the numbers that they gave then; `make.py` made them."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
import make  # noqa: E402

sys.path.remove(str(HERE))
EXPECTED = json.loads((HERE / "set" / "expected.json").read_text())
ROUNDING = 1e-4
"""Relative, of float32 after some tens of updates; to the largest of the numbers of one list."""


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


@pytest.mark.parametrize("name", make.AGENTS)
def test_agents_act_and_value_as_they_did(golden, name):
    assert_same(make.policy_numbers(make.load_agent(golden / name), *make.inputs(name)), EXPECTED[name])


@pytest.mark.parametrize("run", ["agent/seed0", "agent/seed1", "windy_pendulum", "regression", "image", "trajectories"])
def test_runs_predict_evaluate_and_are_measured_as_they_were(golden, run):
    assert_same(make.run_numbers(run), EXPECTED[run], 1e-3)


def test_a_killed_run_goes_on_to_the_same_end(golden):
    assert_same(make.resumed_numbers(), EXPECTED["half"], 1e-3)
    assert len((golden / "half" / "metrics.jsonl").read_text().splitlines()) == 4  # three measurements and the end


@pytest.mark.parametrize("name", make.AGENTS)
def test_other_weights_are_seen(golden, name):
    """A negative control: what is compared is not the same for another agent."""
    import torch

    agent = make.load_agent(golden / name)
    with torch.no_grad():
        for parameter in agent.policy.parameters():
            parameter.mul_(1.01)
    with pytest.raises(AssertionError, match="is not"):
        assert_same(make.policy_numbers(agent, *make.inputs(name)), EXPECTED[name])
