"""The verbs that need no run: help, certify, cache."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rppdyn import __version__
from rppdyn.cli import VERBS, main


def said(capsys, *words):
    with pytest.raises(SystemExit) as end:
        main([*words])
    out, err = capsys.readouterr()
    assert (not end.value.code, err) == (True, "")
    return out


def test_help_and_version(capsys):
    assert all(f"  {verb} " in said(capsys, "--help") for verb in VERBS)
    assert said(capsys, "--version") == f"rppdyn {__version__}\n"
    for verb in VERBS:
        assert said(capsys, verb, "--help").startswith(f"usage: rppdyn {verb}")
    out = said(capsys, "train-agent", "--help")
    for text in ("model=emlp | mlp | rpp", "agent.learning_rate=0.001", "env.actuator_scale={}", "experiment=demo"):
        assert text in out


def test_certify(rppdyn, tmp_path, environment):
    words = ["--states", "40", "--json", "c.json", "--figure", "c.png", "--symmetry", "left-right"]
    status, out, err = rppdyn("certify", "Swimmer-v5", *words, cwd=tmp_path)
    assert (status, err) == (0, "")
    assert "left-right: dynamics exact" in out and "stock solver" in out
    data = json.loads((tmp_path / "c.json").read_text())
    assert data["env_id"] == "Swimmer-v5"
    assert (tmp_path / "c.png").stat().st_size > 10_000
    stored = Path(environment["RPPDYN_CACHE_DIR"], "certificates").glob("*.json")
    assert data in [json.loads(path.read_text()) for path in stored]


def test_certify_a_robot_whose_sides_differ(rppdyn, tmp_path):
    """Without a name every symmetry is certified; each certificate is kept as training looks for it."""
    side = (
        '<body pos="0 {1} 0"><joint name="{0}" axis="{2} 0 0" armature="{3}"/>'
        '<geom type="capsule" fromto="0 0 0 0 {1} 0" size=".03"/></body>'
    )
    (tmp_path / "robot.xml").write_text(
        '<mujoco><worldbody><body><freejoint/><geom type="box" size=".1 .1 .1"/><geom pos=".2 0 0" size=".05"/>'
        + side.format("left", 0.3, 1, 0.01)
        + side.format("right", -0.3, -1, 0.012)
        + '</body></worldbody><actuator><motor joint="left"/><motor joint="right"/></actuator></mujoco>'
    )
    for words in ([], ["--symmetry", "left-right"]):
        status, out, err = rppdyn("certify", "robot.xml", "--states", "20", "--json", "c.json", *words, cwd=tmp_path)
        assert (status, err) == (0, "")
        assert "left-right: dynamics approximate" in out and "joint left has armature 0.01, joint right 0.012" in out
        assert ("yaw: dynamics" in out) == (not words)
        data = json.loads((tmp_path / "c.json").read_text())
        assert "armature" in data["generators"][0]["deviations"][0]
