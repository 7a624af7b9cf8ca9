"""train-agent and what is done with its run."""

from __future__ import annotations

import json
import re
import shutil
import zipfile

import matplotlib.image
import pytest
import torch
from omegaconf import OmegaConf

from rppdyn.cli import main
from rppdyn.runs import read_metrics

from .conftest import SMALL


def test_the_summary_is_short_and_says_what_was_reached(trained):
    run, cwd, out, err = trained
    assert out.startswith("InvertedPendulum-v5, rpp, seed 0: 230 of 230 steps\n")
    assert len(out.splitlines()) <= 8
    for words in ("mean return", "policy", "critic", str(run.relative_to(cwd)), "tensorboard --logdir"):
        assert words in out
    assert "230/230" in err
    assert "Traceback" not in err


def test_the_run_folder_is_complete(trained):
    run, _, _, _ = trained
    config = OmegaConf.load(run / "config.yaml")
    assert config.total_steps == 230
    assert config.agent.tau == 0.02
    records = read_metrics(run / "metrics.jsonl")
    assert [record["step"] for record in records] == [0, 100, 200, 230]
    names = records[-1].keys()
    for name in (
        "eval/return_mean",
        "equivariance/policy/left-right",
        "equivariance/critic",
        "pathway/actor_free_share",
        "pathway/critic_equivariant_norm",
        "train/critic_loss",
        "prior/actor_penalty",
        "rollout/return_mean",
    ):
        assert name in names
    assert not any(name.startswith("time/") for name in names)
    result = json.loads((run / "result.json").read_text())
    assert result["metrics"] == records[-1]
    assert result["provenance"]["packages"]["torch"] == torch.__version__
    assert matplotlib.image.imread(run / "figures" / "learning_curve.png").std() > 0.02
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == ["step-000000000200", "step-000000000230"]
    spec = json.loads((run / "spec.json").read_text())
    assert spec["env_id"] == "InvertedPendulum-v5" and spec["symmetries"][0]["name"] == "left-right"
    assert torch.load(run / "policy.pt", weights_only=True)
    assert zipfile.is_zipfile(run / "model.zip")
    assert not list(run.glob(".writing*"))


def test_every_documented_metric_is_logged_and_every_logged_one_is_documented(trained):
    from pathlib import Path

    run, _, _, _ = trained
    page = Path(__file__).parents[2] / "docs" / "metrics.md"
    logged = {name for record in read_metrics(run / "metrics.jsonl") for name in record}
    logged |= {name for record in read_metrics(run / "timing.jsonl") for name in record}
    logged = {name.replace("/left-right", "/<generator>") for name in logged}
    agents, _, _ = page.read_text().partition("\n## Fits\n")
    rows = [line.split("|") for line in agents.splitlines() if line.startswith("| `")]
    # of other agents: tests/jobs/test_train_ppo.py, tests/agents/test_policy.py
    table = [row[1] for row in rows if not re.match(r" with `(agent=ppo|model\.(groups|breaking))`", row[2])]
    documented = {name for cell in table for name in cell.split("`")[1::2]}
    elsewhere = {"variance/NETWORK.LAYER.PATHWAY"}  # where variances are learned, see tests/agents/test_callbacks.py
    assert logged | elsewhere | {"train/mirror_loss"} == documented  # with one, see tests/jobs/test_train_agent.py


@pytest.mark.rendered
def test_a_run_is_played_measured_and_drawn(trained, monkeypatch, capfd):
    run, cwd, _, _ = trained
    monkeypatch.chdir(cwd)

    def said(*words: str) -> str:
        assert main([*words]) == 0
        out, err = capfd.readouterr()
        assert err == ""
        return out

    last = read_metrics(run / "metrics.jsonl")[-1]
    out = said("evaluate-agent", str(run), "--episodes", "2")
    played = json.loads((run / "evaluation.json").read_text())
    assert played["source"].startswith("final policy, after ")
    # The same initial states as the evaluation at the end of the run, so the same returns to the last bit.
    assert played["returns"] == last["eval/returns"]
    assert out.count("\n") == 2 + 2 + 1 and f"mean return {played['return_mean']:.2f}" in out

    assert "left-right" in said("equivariance", str(run), "--states", "64", "--episodes", "2")
    functions = json.loads((run / "equivariance.json").read_text())["functions"]
    assert functions["policy"]["overall"]["error"] == pytest.approx(last["equivariance/policy"], rel=1e-6)
    critics = functions["critics"]["per_generator"]["left-right"]["error"]
    assert critics == pytest.approx(last["equivariance/critic"], rel=1e-6)

    assert said("report", str(run), "--out", "report.html") == "report.html\n"
    page = (cwd / "report.html").read_text()
    assert f"{last['eval/return_mean']:.1f}" in page and "left-right" in page and "prior variance" in page
    assert said("figure", str(run), "--out", "curves.png", "--json", "curves.json") == "curves.png\n"
    assert (cwd / "curves.png").read_bytes() == (run / "figures" / "learning_curve.png").read_bytes()
    (kept,) = json.loads((cwd / "curves.json").read_text())
    assert kept["metrics"] == read_metrics(run / "metrics.jsonl") and kept["result"]["steps"] == 230


def test_a_finished_run_is_neither_repeated_nor_overwritten_and_can_be_made_longer(rppdyn, trained, tmp_path):
    run, cwd, _, _ = trained
    status, out, err = rppdyn("train-agent", *SMALL, "total_steps=230", cwd=cwd)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert "--resume" in err and "run_dir=" in err
    status, out, err = rppdyn("train-agent", "--resume", *SMALL, "total_steps=230", cwd=cwd)
    assert (status, err) == (0, "") and "finished before" in out
    shutil.copytree(run, tmp_path / "longer")
    status, out, err = rppdyn("train-agent", "--resume", "longer", "total_steps=260", cwd=tmp_path)
    assert status == 0 and "260 of 260 steps" in out, err
    records = read_metrics(tmp_path / "longer" / "metrics.jsonl")
    assert [record["step"] for record in records] == [0, 100, 200, 230, 260]
    assert records[:4] == read_metrics(run / "metrics.jsonl")
    assert OmegaConf.load(tmp_path / "longer" / "config.yaml").total_steps == 260


def test_a_run_of_a_sweep_that_fails_is_named_and_the_others_go_on(rppdyn, tmp_path):
    words = ("total_steps=100", "agent.learning_rate=1e30,1e-3", "--multirun")
    status, out, err = rppdyn("train-agent", *SMALL, *words, cwd=tmp_path)
    (line,) = [line for line in err.splitlines() if "training diverged" in line]
    assert status == 2 and out.count("100 of 100 steps") == 1
    folder = re.match(r"rppdyn: error: (runs/train-agent/\S+): training diverged", line)[1]
    assert OmegaConf.load(tmp_path / folder / "config.yaml").agent.learning_rate == 1e30
    assert len([*tmp_path.glob("runs/train-agent/InvertedPendulum-v5/rpp/*/config.yaml")]) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]
