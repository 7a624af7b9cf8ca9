"""From a simulator to a transition model and an agent that trains on one, through the command line."""

from __future__ import annotations

import json


def test_collect_fit_evaluate_and_measure_on_swimmer(rppdyn, tmp_path):
    name = "acceptance/Swimmer-v5/random-v0"
    status, out, err = rppdyn("collect", "env=Swimmer-v5", "--random", "--steps", "3000", "--name", name, cwd=tmp_path)
    assert status == 0 and name in out, err

    words = [f"dataset={name}", "task.train=1000", "task.trajectories=5", "task.length=100", "model.hidden=64",
             "seeds=1", "optimiser.batch_size=25", "optimiser.epochs=20", "optimiser.learning_rate=3e-3",
             "evaluation.every=20", "evaluation.states=100"]  # fmt: skip
    results = {}
    for model in ("mlp", "emlp"):
        status, out, err = rppdyn("fit-transition", *words, f"model={model}", f"run_dir={model}", cwd=tmp_path)
        assert status == 0, err
        assert "test/error_100" in out
        results[model] = json.loads((tmp_path / model / "result.json").read_text())["test"]
        assert (tmp_path / model / "figures" / "rollouts.png").stat().st_size > 10_000
    errors = {model: test["test/error_10"][0] for model, test in results.items()}
    assert errors["emlp"] < errors["mlp"] < 0.5  # of a model that has learned nothing it is above that
    assert max(results["emlp"]["equivariance/rollout"]) < 1e-12 < 1e-2 < min(results["mlp"]["equivariance/rollout"])

    status, out, err = rppdyn("equivariance", "emlp", cwd=tmp_path)
    assert status == 0, err
    assert "change of the state" in out and "change of motor1_rot velocity" in out


def test_an_agent_trains_on_a_model_and_goes_on(rppdyn, tmp_path):
    words = ["env=InvertedPendulum-v5", "agent=mbpo", "device=cpu", "model.hidden=16", "agent.learning_starts=50",
             "agent.batch_size=32", "agent.buffer_size=1000", "agent.gradient_steps=2",
             "agent.learning_rate_end=null", "agent.imagination.members=2",
             "agent.imagination.hidden=16", "agent.imagination.steps=20", "agent.imagination.every=50",
             "agent.imagination.rollouts=50", "evaluation.every=100", "evaluation.episodes=1", "evaluation.states=64",
             "checkpoint_every=50"]  # fmt: skip
    status, out, err = rppdyn("train-agent", *words, "total_steps=100", "run_dir=run", cwd=tmp_path)
    assert status == 0 and "InvertedPendulum-v5" in out, err
    status, out, err = rppdyn("train-agent", "--resume", "run", "total_steps=150", cwd=tmp_path)
    assert status == 0 and "150 of 150 steps" in out, err
    assert "dynamics" in out  # its equivariance error beside the policy's and the critics'
    last = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    measured = {"equivariance/dynamics", "equivariance/dynamics/left-right", *(f"pathway/dynamics_{x}" for x in
                ("equivariant_norm", "free_norm", "free_share"))}  # fmt: skip
    assert {name for name in last if "dynamics" in name} == measured  # as docs/metrics.md has them
    status, out, err = rppdyn("equivariance", "run", "--from", "reset", "--states", "50", cwd=tmp_path)
    assert status == 0 and "change of hinge velocity" in out, err
    measured = json.loads((tmp_path / "run" / "equivariance.json").read_text())["functions"]["dynamics"]["overall"]
    assert 1e-8 < measured["error"] < 1 and 1e-8 < last["equivariance/dynamics/left-right"] < 1
    (tmp_path / "run" / "dynamics.pt").unlink()  # as runs of older versions: their last checkpoint has it
    status, out, err = rppdyn("equivariance", "run", "--from", "reset", "--states", "50", cwd=tmp_path)
    assert status == 0 and "checkpoint at step 150" in out, err
    again = json.loads((tmp_path / "run" / "equivariance.json").read_text())["functions"]["dynamics"]["overall"]
    assert again == measured
    status, out, err = rppdyn("evaluate-agent", "run", "--episodes", "1", cwd=tmp_path)
    assert status == 0 and "final policy" in out, err  # which it is enough to have
    (tmp_path / "run" / "checkpoints").rename(tmp_path / "elsewhere")
    status, out, err = rppdyn("equivariance", "run", "--from", "reset", "--states", "50", cwd=tmp_path)
    assert status == 2 and "has neither dynamics.pt nor a checkpoint" in err and err.count("\n") == 1
    status, out, err = rppdyn("equivariance", "run", "--from", "reset", "--symmetry", "left-right", cwd=tmp_path)
    assert status == 0 and "critics" in out and "dynamics" not in out, err
    status, out, err = rppdyn("report", "run", "--out", "report.html", cwd=tmp_path)
    page = (tmp_path / "report.html").read_text()
    assert status == 0 and "critics&#39; error" in page and "dynamics&#39; error" in page, err
    status, _, err = rppdyn("train-agent", *words, "agent.imagination.real_ratio=2", cwd=tmp_path)
    assert status == 2 and "agent.imagination.real_ratio=2" in err and err.count("\n") == 1
