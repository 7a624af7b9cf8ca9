"""From a simulator to a transition model through the command line."""

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
        assert (tmp_path / model / "figures" / "curves.png").stat().st_size > 10_000
    errors = {model: test["test/error_10"][0] for model, test in results.items()}
    assert errors["emlp"] < errors["mlp"] < 0.5  # of a model that has learned nothing it is above that
    assert max(results["emlp"]["equivariance/rollout"]) < 1e-12 < 1e-2 < min(results["mlp"]["equivariance/rollout"])

    status, out, err = rppdyn("equivariance", "emlp", cwd=tmp_path)
    assert status == 0, err
    assert "change of the state" in out and "change of motor1_rot velocity" in out
