"""`rppdyn export` and the episodes of its files, by whole commands, and what they refuse."""

from __future__ import annotations

import json

import pytest
import torch
from stable_baselines3 import SAC

from rppdyn.cli import main
from rppdyn.envs import make_env

ENV = "InvertedPendulum-v5"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def returns(path):
    return json.loads(path.read_text())["returns"]


def test_a_run_is_exported_checked_and_played_from_its_files(folder, capsys):
    words = [f"env={ENV}", "total_steps=60", "agent.learning_starts=30", "model.hidden=16", "run_dir=run", "device=cpu"]
    assert main(["train-agent", *words, "evaluation.every=60", "evaluation.episodes=1"]) == 0
    files = ["--onnx", "policy.onnx", "--torch", "policy.pt2"]
    assert main(["export", "run", *files, "--states", "50"]) == 0
    out = capsys.readouterr().out
    assert "policy.onnx: differs by" in out and "50 states" in out and "policy.json" in out
    card = json.loads((folder / "policy.json").read_text())
    assert card["observation"]["dtype"] == "float64" and card["action"]["high"] == [3.0]
    assert [entry["index"] for entry in card["observation"]["entries"]] == [0, 1, 2, 3]
    assert card["control_step"] == pytest.approx(0.04) and card["check"]["states"] == 50
    assert all(value < 1e-5 for value in card["check"]["largest_difference"].values())
    contract = json.loads((folder / "symmetry.json").read_text())
    assert "symmetry.json: what its symmetry does" in out and contract["digest"] == card["symmetry"]["digest"]
    assert contract["images"]["left-right"]["action"] == {"index": [0], "sign": [-1.0], "shift": [0.0]}
    assert (
        contract["joints"] == {"observation": ["slider", "hinge"], "action": ["slider"]} and contract["terms"] is None
    )
    assert main(["evaluate-agent", "run", "--episodes", "3"]) == 0
    assert main(["evaluate-agent", "policy.onnx", "--env", ENV, "--episodes", "3"]) == 0
    assert main(["evaluate-agent", "policy.pt2", "--env", ENV, "--episodes", "3", "--trust"]) == 0
    own = returns(folder / "run" / "evaluation.json")
    assert returns(folder / "policy.evaluation.json") == own


def test_a_zip_of_stable_baselines3(folder, capsys):
    SAC("MlpPolicy", make_env(ENV), device="cpu", policy_kwargs=dict(net_arch=[8]), buffer_size=10).save("sac")
    assert main(["evaluate-agent", "sac.zip", "--env", ENV, "--trust", "--episodes", "2"]) == 0
    own = returns(folder / "sac.evaluation.json")
    assert main(["export", "sac.zip", "--onnx", "sac.onnx", "--env", ENV, "--trust", "--states", "20"]) == 0
    assert main(["evaluate-agent", "sac.onnx", "--env", ENV, "--episodes", "2"]) == 0
    assert returns(folder / "sac.evaluation.json") == own
    capsys.readouterr()
    assert main(["evaluate-agent", "sac.onnx", "--env", "Walker2d-v5"]) == 2
    assert "takes no observations of Walker2d-v5" in capsys.readouterr().err


def test_a_contract_of_another_symmetry_stays(folder, capsys):
    from rppdyn.agents import RPPSAC

    agent = RPPSAC("RPPPolicy", ENV, policy_kwargs=dict(hidden=8), buffer_size=10, learning_starts=10)
    agent.save("rpp")
    words = ["export", "rpp.zip", "--trust", "--states", "5"]
    for there, said in (('{"digest": "other"}', "describes another symmetry"), ("no JSON", "can't be read")):
        (folder / "symmetry.json").write_text(there)
        assert main([*words, "--onnx", "a.onnx"]) == 2
        assert said in (error := capsys.readouterr().err) and len(error.splitlines()) == 1
        assert (folder / "symmetry.json").read_text() == there and not (folder / "a.onnx").exists()
    (folder / "symmetry.json").unlink()
    assert main([*words, "--onnx", "symmetry.onnx"]) == 2 and not (folder / "symmetry.json").exists()
    assert main([*words, "--torch", "b.pt2"]) == 0


def test_a_policy_that_was_not_kept_is_not_written(folder, monkeypatch, capsys):
    from rppdyn.jobs import export

    SAC("MlpPolicy", make_env(ENV), device="cpu", policy_kwargs=dict(net_arch=[8]), buffer_size=10).save("sac")
    right = export.export_torch

    def wrong(policy, path):
        with torch.no_grad():
            policy.actor.mu.bias.add_(0.5)
        right(policy, path)
        with torch.no_grad():
            policy.actor.mu.bias.sub_(0.5)

    monkeypatch.setattr(export, "export_torch", wrong)
    assert main(["export", "sac.zip", "--torch", "sac.pt2", "--env", ENV, "--trust", "--states", "20"]) == 2
    assert "nothing is written" in capsys.readouterr().err and [p.name for p in folder.iterdir()] == ["sac.zip"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["export", "run"], "--onnx FILE or --torch FILE is missing"),
        (["export", "run", "--onnx", "x.pt"], "must end in .onnx"),
        (["export", "a.zip", "--onnx", "x.onnx"], "--trust"),
        (["export", "run", "--onnx", "x.onnx", "--env", ENV], "a run has an environment of its own"),
        (["export", "x.json", "--onnx", "y.onnx"], "x.json is a file of no policy: give a run's folder"),
        (["evaluate-agent", "x.onnx"], "give --env"),
        (["evaluate-agent", "x.onnx", "--env", ENV], "can't be loaded as an ONNX model"),
    ],
)
def test_refusals(folder, words, said, capsys):
    (folder / "x.onnx").write_text("no model")
    (folder / "a.zip").write_text("no zip")
    (folder / "x.json").write_text("{}")
    assert main(words) == 2
    error = capsys.readouterr().err
    assert said in error and len(error.splitlines()) == 1
