"""Code of the user's that fails ends in one line with its file and line; `--traceback` prints the rest."""

from __future__ import annotations

import sys
from pathlib import Path

import gymnasium as gym
import pytest

from rppdyn.cli import main

ROBOT = """
import gymnasium as gym
import numpy as np
from gymnasium.envs.mujoco.inverted_pendulum_v5 import InvertedPendulumEnv

class Broken(InvertedPendulumEnv):
{body}
gym.register("Broken-v0", "broken_robot:Broken", max_episode_steps=20)
"""
RANDOM = ["collect", "env=broken_robot:Broken-v0", "--random", "--steps", "30", "--name", "broken/mine-v0"]
CERTIFY = ["certify", "broken_robot:Broken-v0", "--symmetry", "left-right", "--states", "20"]
TRAIN = ["train-agent", "env=broken_robot:Broken-v0", "env.symmetry=left-right", "device=cpu", "model.hidden=4",
         "agent.learning_starts=10", "agent.batch_size=4", "total_steps=30", "run_dir=run", "evaluation.episodes=1",
         "evaluation.states=4"]  # fmt: skip
FUNCTION = ["equivariance", "broken_robot:f", "--group", "O(2)", "--rep-in", "V", "--rep-out", "V", "--from", "normal"]

FAILING = {
    "constructor": (
        "def __init__(self, **options):\n    raise KeyError('boom')",
        [RANDOM, CERTIFY],
        8,
        "KeyError: 'boom'",
    ),
    "reset": (
        "def reset(self, **options):\n    return np.ones(3) @ np.ones(4)",
        [CERTIFY, TRAIN],
        8,
        "ValueError: matmul",
    ),
    "step": (
        "def step(self, action):\n    raise IndexError('boom\\nsecond')",
        [RANDOM, TRAIN],
        8,
        "IndexError: boom second",
    ),
}
RETURNING = {
    "four values": ("def step(self, action):\n    return super().step(action)[:4]", "Broken.step"),
    "shape of a step": (
        "def step(self, action):\n    o, *others = super().step(action)\n    return o[:3], *others",
        "an observation of shape (3,), and its observation_space has (4,)",
    ),
    "shape of a reset": (
        "def reset(self, **options):\n    o, info = super().reset(**options)\n    return o[:3], info",
        "an observation of shape (3,), and its observation_space has (4,)",
    ),
    "no pair": (
        "def reset(self, **options):\n    return super().reset(**options)[0]",
        "must return (observation, info)",
    ),
    "reward": (
        "def step(self, action):\n    o, r, *others = super().step(action)\n    return o, 'much', *others",
        "Broken.step",
    ),
}
MODULES = {
    "absent module": ("import absent_module", 1, "ModuleNotFoundError: No module named 'absent_module'"),
    "syntax": ("x = 1\ndef f(:\n", 2, "SyntaxError: invalid syntax"),
    "any error": ("x = 1\ny = {}['a']", 2, "KeyError: 'a'"),
}


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "datasets"))
    yield tmp_path
    sys.modules.pop("broken_robot", None)
    gym.registry.pop("Broken-v0", None)


def robot(body: str) -> None:
    Path("broken_robot.py").write_text(ROBOT.format(body="\n".join(f"    {line}" for line in body.splitlines())))


def said(words, capfd) -> str:
    """The one line of an error."""
    assert main(words) == 2
    err = capfd.readouterr().err.replace("\r", "\n")
    lines = [line for line in err.splitlines() if line.strip() and "step/s" not in line]  # of a bar
    assert len(lines) == 1 and lines[0].startswith("rppdyn: error: "), err
    return lines[0]


@pytest.mark.parametrize(("case", "words"), [(case, words) for case, entry in FAILING.items() for words in entry[1]])
def test_an_environment_that_raises(case, words, capfd):
    body, _, line, expected = FAILING[case]
    robot(body)
    text = said(words, capfd)
    assert f"broken_robot.py:{line}: {expected}" in text and "--traceback shows the rest" in text


@pytest.mark.parametrize("case", RETURNING)
def test_an_environment_that_returns_what_does_not_fit(case, capfd):
    body, expected = RETURNING[case]
    robot(body)
    text = said(RANDOM, capfd)
    assert "broken_robot.py:7: " in text and expected in text


@pytest.mark.parametrize(
    ("case", "words"), [*zip(MODULES, (["certify", "broken_robot:Broken-v0"], TRAIN, FUNCTION), strict=True)]
)
def test_a_module_that_can_not_be_imported(case, words, capfd):
    text, line, expected = MODULES[case]
    Path("broken_robot.py").write_text(text)
    assert f"broken_robot.py:{line}: {expected}" in said(words, capfd)


def test_a_function_that_raises(capfd):
    Path("broken_robot.py").write_text("def f(x):\n    raise KeyError('boom')\n")
    assert "broken_robot.py:2: KeyError: 'boom'" in said(FUNCTION, capfd)


@pytest.mark.parametrize("how", ["flag", "variable"])
def test_the_rest_is_printed_on_request(how, capfd, monkeypatch):
    robot(FAILING["constructor"][0])
    if how == "variable":
        monkeypatch.setenv("RPPDYN_TRACEBACK", "1")
    assert main([*CERTIFY, *(["--traceback"] if how == "flag" else [])]) == 2
    err = capfd.readouterr().err
    assert "Traceback (most recent call last)" in err and "raise KeyError('boom')" in err
    assert err.splitlines()[-1].startswith("rppdyn: error: broken_robot.py:8: KeyError")
