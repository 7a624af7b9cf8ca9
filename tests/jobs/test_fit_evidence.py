"""Fits that learn their prior variances: what they learn, that units follow, and going on after an interruption."""

from __future__ import annotations

import json
import math
import shutil

import pytest
import torch

from rppdyn.jobs import fit_dynamics, fit_image, fit_regression
from rppdyn.jobs.config import compose
from rppdyn.runs import RunFolder

WORDS = ("task=inertia", "model=rpp", "model.hidden=16", "model.num_layers=1", "model.free_variance=1e-4", "task.train=200",
         "task.validation=40", "task.test=50", "optimiser.batch_size=50", "optimiser.learning_rate=1e-2",
         "optimiser.noise_variance=0.3", "objective=marginal_likelihood", "marginal_likelihood.burn_in=2",
         "marginal_likelihood.every=2", "marginal_likelihood.data=100", "evaluation.every=20", "evaluation.states=20",
         "checkpoint_every=1", "dtype=float64", "device=cpu")  # fmt: skip


def configured(folder, *words):
    return compose.composed("fit_regression", [*WORDS, f"run_dir={folder}", *words])


def effective(result, pathway):
    return sum(row["effective"][0] for row in result.pathways if row["pathway"] == pathway)


def test_a_symmetry_that_the_data_have_is_kept_and_a_wrong_one_is_left(tmp_path):
    words = ("optimiser.epochs=16", "model.hidden=8", "marginal_likelihood.every=4", "marginal_likelihood.data=50")
    right = fit_regression.run(configured(tmp_path / "right", *words))
    wrong = fit_regression.run(configured(tmp_path / "wrong", *words, "task.group=SL(3)"))
    coefficients = sum(row["coefficients"] for row in right.pathways if row["pathway"] == "free")
    assert effective(right, "free") < 0.25 * coefficients
    assert effective(wrong, "free") > 1.5 * effective(right, "free")
    assert effective(right, "equivariant") > effective(wrong, "equivariant")
    table = str(right)
    assert "head.equivariant" in table and " of " in table and "normalised" in table and "relative" in table
    stored = json.loads((tmp_path / "right" / "result.json").read_text())
    assert stored["pathways"] == right.pathways


def test_members_learn_as_if_alone_and_go_on_after_an_interruption(tmp_path):
    words = ("optimiser.epochs=6", "evaluation.every=3", "model.hidden=8", "marginal_likelihood.data=50")
    together = fit_regression.run(configured(tmp_path / "together", *words, "seeds=2"))
    alone = fit_regression.run(configured(tmp_path / "alone", *words, "seed=1"))
    for both, one in zip(together.pathways, alone.pathways, strict=True):
        assert both["precision"][1] == pytest.approx(one["precision"][0], rel=1e-6)
    assert together.pathways[0]["norm"][0] != pytest.approx(together.pathways[0]["norm"][1], rel=1e-3)
    folder = tmp_path / "together"
    metrics = (folder / "metrics.jsonl").read_bytes()
    for name in ("result.json", "members.pt"):
        (folder / name).unlink()
    shutil.rmtree(max((folder / "checkpoints").glob("step-*")))
    again = fit_regression.run(configured(folder, *words, "seeds=2"), resume=True)
    assert again.pathways == together.pathways and again.test == together.test
    assert (folder / "metrics.jsonl").read_bytes() == metrics and b"effective/head.free" in metrics
    members = fit_regression.Regression.load(configured(folder, *words, "seeds=2"), RunFolder.open(folder)).members()
    learned = [member.net.pathway_variances()["head"]["free"] for member in members]
    (row,) = [row for row in again.pathways if (row["layer"], row["pathway"]) == ("head", "free")]
    assert learned == pytest.approx([1 / precision for precision in row["precision"]])


def test_units_follow_variances_without_changing_the_function(tmp_path):
    regression = fit_regression.Regression(configured(tmp_path / "run", "optimiser.epochs=10"))
    fit = regression
    for step in range(4):
        fit.step(step)
    before = fit.stack(fit.inputs)
    named = dict(zip(fit.stack.names, fit.stack.stacked, strict=True))
    state = fit.optimiser.state[named["head.free.weight"]]
    step = (
        named["head.free.unit"] * state["exp_avg"] / state["exp_avg_sq"].sqrt()
    )  # what Adam moves the dense weight by
    unit = named["head.free.unit"].clone()
    stood = {key: p.detach().clone() for key, p in fit.variances.variances.items()}
    with torch.no_grad():
        named["head.free.log_variance"] -= 3.0
    fit.variances._follow_variances(fit.optimiser, stood)
    torch.testing.assert_close(fit.stack(fit.inputs), before, rtol=1e-12, atol=1e-13)
    ratio = torch.tensor(3.0, dtype=torch.float64).exp().rsqrt()
    torch.testing.assert_close(named["head.free.unit"] / unit, ratio.expand(1), rtol=1e-6, atol=0)
    moved = named["head.free.unit"] * state["exp_avg"] / state["exp_avg_sq"].sqrt()
    torch.testing.assert_close(moved, ratio * step, rtol=1e-6, atol=1e-15)


def test_effective_numbers_are_those_at_the_noise_that_was_learned(tmp_path):
    words = ("marginal_likelihood.steps=20", "marginal_likelihood.learning_rate=0.5", "marginal_likelihood.data=50",
             "model.hidden=8", "marginal_likelihood.fisher=exact")  # fmt: skip
    fit = fit_regression.Regression(configured(tmp_path / "run", *words))
    noise = fit.variances.noise.clone()
    fit.variances.update(fit.optimiser, generators=fit._streams(2))
    assert (fit.variances.noise - noise).abs().min() > 0.5
    (now,) = fit.variances.evidence(fit._streams(2))
    for name, effective in zip(now.pathways, now.effective().tolist(), strict=True):
        key = f"{name.layer}.{name.name}"
        assert fit.variances.found[f"effective/{key}"] == pytest.approx([effective], rel=1e-6)
        assert fit.variances.found[f"normalised/{key}"] == pytest.approx([effective / name.size], rel=1e-6)
    relative = [fit.variances.found[f"relative/head.{pathway}"][0] for pathway in ("equivariant", "free")]
    assert sum(relative) == pytest.approx(1) and min(relative) > 0


def test_a_member_that_diverges_has_no_evidence_and_harms_no_other(tmp_path):
    words = ("optimiser.epochs=6", "evaluation.every=3", "seeds=2", "model.hidden=8", "marginal_likelihood.data=50",
             "marginal_likelihood.burn_in=1", "marginal_likelihood.every=1")  # fmt: skip
    whole, lost = (fit_regression.Regression(configured(tmp_path, *words)) for _ in range(2))
    with torch.no_grad():
        for parameter in lost.stack.stacked:
            parameter[0] = torch.nan
    for step in range(2 * lost.steps_per_epoch):
        whole.step(step), lost.step(step)
    for of, alone in zip(lost.stack.stacked, whole.stack.stacked, strict=True):
        assert torch.equal(of[1], alone[1])
    metrics = lost.variances.metrics()
    assert metrics["effective/head.free"][1] == whole.variances.metrics()["effective/head.free"][1] > 0
    assert math.isnan(metrics["effective/head.free"][0])
    assert lost.evidence()[0] is None


@pytest.mark.parametrize(
    "job, words",
    [
        (fit_regression, ("task=inertia", "model.num_layers=1", "model.hidden=8")),
        (fit_dynamics, ("task=windy_pendulum", "model=rpp_ode", "model.num_layers=1", "model.hidden=8", "task.horizon=2",
                        "rollout.trajectories=3")),
        (fit_image, ("task=upright", "model=f_fc+conv", "model.width=2")),
    ],
)  # fmt: skip
def test_a_fit_whose_members_all_diverge_ends_and_says_so(tmp_path, job, words):
    common = ("task.train=40", "task.validation=20", "optimiser.epochs=3", "seeds=2", "optimiser.batch_size=20",
              "objective=marginal_likelihood", "marginal_likelihood.burn_in=1", "marginal_likelihood.every=1",
              "optimiser.learning_rate=1e20", f"run_dir={tmp_path / 'run'}")  # fmt: skip
    verb = job.__name__.rpartition(".")[2]
    result = job.run(compose.composed(verb, [*words, *common]))
    stored = json.loads((tmp_path / "run" / "result.json").read_text())
    assert stored["pathways"] == [] and "2 of 2 diverged" in str(result) and "nan" not in str(result)


def test_a_hamiltonian_in_wind_uses_more_free_parameters_than_in_still_air(tmp_path):
    """Its weights enter by the gradient of the network, at every step of a rollout."""
    words = ("model=rpp_hnn", "model.hidden=16", "model.num_layers=1", "model.free_variance=1e-4", "task.train=40",
             "task.chunk=2", "task.validation=10", "task.test=10", "task.horizon=2", "rollout.trajectories=2",
             "optimiser.epochs=20", "optimiser.batch_size=40", "optimiser.learning_rate=1e-2", "optimiser.noise_variance=1e-3",
             "objective=marginal_likelihood", "marginal_likelihood.burn_in=10", "marginal_likelihood.every=10",
             "marginal_likelihood.data=20", "marginal_likelihood.noise=false", "marginal_likelihood.curvature=kronecker",
             "evaluation.every=40", "evaluation.states=5", "device=cpu")  # fmt: skip
    found = []
    for task in (["task=pendulum"], ["task=windy_pendulum", "task.wind=0.3"]):
        config = compose.composed("fit_dynamics", [*task, *words, f"run_dir={tmp_path / str(len(found))}"])
        found.append(effective(fit_dynamics.run(config), "free"))
    assert 0 < found[0] < 0.8 * found[1], found
