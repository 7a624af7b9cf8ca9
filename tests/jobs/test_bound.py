"""bound: whole small runs, what they claim, and going on after an interruption."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from rppdyn.cli import main
from rppdyn.compression import Subspace, catoni_bound, empirical_risk, relative_error, universal_kl
from rppdyn.jobs import bound, fit_image, fit_regression
from rppdyn.jobs.config import compose
from rppdyn.jobs.config.base import ConfigError
from rppdyn.runs import RunFolder

SMALL = ("task.train=600", "task.validation=100", "task.test=300", "model.hidden=16", "optimiser.epochs=6",
         "optimiser.batch_size=100", "subspace.dimension=[4,8]", "subspace.levels=[2,3]", "subspace.quantised_epochs=3",
         "evaluation.every=4", "checkpoint_every=1", "device=cpu")  # fmt: skip
IMAGES = ("task.train=300", "task.validation=50", "model.width=2", "optimiser.epochs=4", "subspace.dimension=8",
          "subspace.levels=3", "subspace.quantised_epochs=2", "device=cpu")  # fmt: skip


def regression(folder, *words):
    return compose.composed("bound_regression", [*SMALL, f"run_dir={folder}", *words])


def images(folder, *words):
    return compose.composed("bound_image", [*IMAGES, f"run_dir={folder}", *words])


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run of two seeds: its folder and result."""
    folder = tmp_path_factory.mktemp("bound") / "run"
    return folder, bound.run(regression(folder, "model=mlp", "seeds=2"))


def test_a_report_has_the_bound_and_both_risks(finished, tmp_path):
    """Its tables had no number of the run."""
    folder, result = finished
    assert main(["report", str(folder), "--out", str(tmp_path / "report.html")]) == 0
    page = (tmp_path / "report.html").read_text("utf-8")
    assert all(
        title in page
        for title in ("bound of the risk", "bits of the message", "risk on test data", "subspace.delta. Risks")
    )
    assert f"{np.mean(result.test['bound/bits']):,.0f}" in page


def test_the_message_alone_gives_the_network_and_its_bound(finished):
    """The decoder knows the configuration and the validation data, and no training data."""
    folder, result = finished
    rows = [row for row in json.loads((folder / "messages.json").read_text())["settings"] if row["seed"] == 1]
    assert [(row["dimension"], row["levels"]) for row in rows] == [(4, 2), (4, 3), (8, 2), (8, 3)]
    best = min(rows, key=lambda row: row["bound"])
    assert result.test["bound/bits"][1] == len(best["message"]) + 2  # four settings
    config = regression(folder, "model=mlp", "seeds=2")
    fit = bound.SubspaceFit(config)
    d = best["dimension"]
    subspace = Subspace(fit.fit.stack.member(1), d, generator=bound._projector_stream(1, d))
    subspace.load_message(best["message"], best["levels"])
    x, y = (values[1] for values in fit.data["subspace"])
    risk = empirical_risk(relative_error(fit.raw(subspace(x)), fit.raw(y)))
    assert risk == pytest.approx(result.test["risk/train"][1], rel=1e-5)
    value = catoni_bound(risk, universal_kl(result.test["bound/bits"][1]), 600).value
    assert value == pytest.approx(result.test["bound/value"][1], rel=1e-5)
    stacked = torch.load(folder / "members.pt", weights_only=True)
    ours = subspace.network().named_parameters()
    assert all(torch.allclose(stacked[f"net.{name}"][1], p) for name, p in ours)


def test_bounds_lie_above_risks_and_say_what_was_paid(finished):
    _, result = finished
    test = result.test
    for risk, held_out, value in zip(test["risk/train"], test["risk/test"], test["bound/value"], strict=True):
        assert risk < value < 1 and held_out < value
    assert "bound/value" in str(result) and "risk/test" in str(result)


def test_a_resumed_bound_ends_as_if_it_had_not_stopped(finished, tmp_path, monkeypatch, kept=20):
    """Stopped within a quantiser's stage of the second subspace."""
    folder, whole = finished
    config = regression(tmp_path / "run", "model=mlp", "seeds=2")
    step = bound.SubspaceFit.step

    def stops(self, number):
        if number == kept * 6 + 2:
            raise KeyboardInterrupt
        step(self, number)

    monkeypatch.setattr(bound.SubspaceFit, "step", stops)
    with pytest.raises(KeyboardInterrupt):
        bound.run(config)
    monkeypatch.setattr(bound.SubspaceFit, "step", step)
    again = bound.run(config, resume=True)
    assert again.test == whole.test
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == (folder / "metrics.jsonl").read_bytes()
    assert bound.run(config, resume=True).note == "finished before; nothing left to do"


def test_what_a_bound_computes_with_is_where_its_data_are(tmp_path, monkeypatch):
    """On a GPU the units of the targets stayed on the CPU, so that no risk could be measured."""

    def on_another_device(*args, **options):
        fit = fit_regression.Regression(*args, **options)
        fit.inputs, fit.targets = fit.inputs.to("meta"), fit.targets.to("meta")
        return fit

    monkeypatch.setattr(bound, "Regression", on_another_device)
    fit = bound.SubspaceFit(regression(tmp_path / "run", "model=mlp"))
    outputs = torch.empty_like(fit.data["subspace"][1])
    assert fit._losses(outputs, fit.data["subspace"][1]).device.type == "meta"
    assert all(buffer.device.type == "cpu" for _, out in fit.fit.normalisers for buffer in out.buffers())


def test_a_resumed_bound_takes_coefficients_to_its_networks(tmp_path):
    """They became parameters as they were read, on the CPU; tested by the number format."""
    words = "model=mlp", "subspace.dimension=4", "subspace.levels=2"
    stopped, resumed = (bound.SubspaceFit(regression(tmp_path / "run", *words, *more))
                        for more in (["dtype=float64"], []))  # fmt: skip
    steps = stopped.stages[0].epochs * stopped.steps_per_epoch
    stopped._begin(0)
    stopped._end(stopped.stages[0])
    stopped._begin(1)
    assert stopped.subspaces[0].levels is not None and steps
    resumed.load_state_dict(stopped.state_dict())
    (subspace,) = resumed.subspaces
    assert subspace.weight.dtype == subspace.levels.dtype == torch.float32


def test_a_data_dependent_prior_is_fitted_to_a_part_and_bounded_on_the_rest(tmp_path):
    words = ("model=emlp", "subspace.prior_share=0.5", "subspace.prior_epochs=30", "subspace.dimension=[0,4]")
    config = regression(tmp_path / "run", *words)
    fit = bound.SubspaceFit(config)
    assert fit.data["prior"][0].shape[1] == fit.data["subspace"][0].shape[1] == 300
    test = bound.run(config).test
    independent = bound.run(regression(tmp_path / "other", "model=emlp")).test
    assert test["risk/train"][0] < independent["risk/train"][0]
    assert test["prior/risk"][0] < test["prior/hoeffding"][0]
    assert test["bound/dimension"][0] == 0 and test["bound/bits"][0] == 2  # nothing is left to say but the setting
    assert test["risk/train"][0] == pytest.approx(test["prior/risk"][0], rel=1e-5)


def test_transfer_from_another_fit(tmp_path):
    words = ["task=modified_inertia_code", "model=emlp", "model.hidden=16", "model.num_layers=2", "seed=7", "task.train=600",
             "optimiser.epochs=20", "optimiser.batch_size=100", "evaluation.every=20", "device=cpu"]  # fmt: skip
    source = compose.composed("fit_regression", [*words, f"run_dir={tmp_path / 'source'}"])
    fit_regression.run(source)
    near, far = (
        bound.run(regression(tmp_path / name, "model=emlp", "subspace.dimension=4", *more))
        for name, more in (("near", [f"subspace.prior_run={tmp_path / 'source'}"]), ("far", []))
    )
    assert near.test["bound/value"][0] < far.test["bound/value"][0]
    with pytest.raises(ConfigError, match="fitted to data of seed 7"):
        bound.SubspaceFit(
            regression(tmp_path / "x", "model=emlp", f"subspace.prior_run={tmp_path / 'source'}", "seed=7")
        )
    with pytest.raises(ConfigError, match="fitted with another model"):
        bound.SubspaceFit(regression(tmp_path / "x", "model=mlp", f"subspace.prior_run={tmp_path / 'source'}"))
    with pytest.raises(ConfigError, match="is a run of fit-regression: give one of fit-image"):
        bound.SubspaceFit(images(tmp_path / "x", f"subspace.prior_run={tmp_path / 'source'}"))


def test_priors_know_no_training_data(tmp_path):
    """Validation images standardise all, so that what the training set's own statistics are makes no difference."""
    fit = bound.SubspaceFit(images(tmp_path / "run"))
    data = fit.fit.data[0]
    moved = (data.train.x - data.validation.x.mean()) / data.validation.x.std()
    torch.testing.assert_close(fit.data["subspace"][0][0], moved)
    own = bound.SubspaceFit(regression(tmp_path / "run"))
    assert own.fit.normalisers[0][0].count == 100  # validation data


def test_losses_are_in_the_units_of_the_task(tmp_path):
    """Targets of images, too, which a fit standardises by the training set."""
    words = ("task=diabetes", "model=fc", "model.architecture=three_layers", "seeds=2", "task.train=200")
    fit = bound.SubspaceFit(images(tmp_path / "run", *words))
    for member, data in enumerate(fit.fit.data):
        raw = fit.raw(fit.data["subspace"][1])[member]
        torch.testing.assert_close(raw, data.targets.restore(data.train.y))
    assert raw.min() > 20  # a measure of progress, 25 to 346


def test_data_that_are_the_priors_are_refused_by_what_they_are(tmp_path):
    words = ["task=own", "model=conv", "model.width=1", "optimiser.epochs=1", "device=cpu"]
    draw = np.random.default_rng(0)
    for name in "ab":
        np.savez(tmp_path / f"{name}.npz", images=draw.random((60, 8, 8)), labels=np.arange(60) % 2)
    fit_image.run(
        compose.composed("fit_image", [*words, f"task.data={tmp_path / 'a.npz'}", f"run_dir={tmp_path / 'a'}"])
    )
    start = [*words, f"subspace.prior_run={tmp_path / 'a'}", "subspace.dimension=4"]
    bounded = lambda name: compose.composed("bound_image", [*start, f"task.data={tmp_path / name}.npz", "run_dir=x"])  # noqa: E731
    bound.SubspaceFit(bounded("b"))
    with pytest.raises(ConfigError, match=r"fitted to .*a\.npz, too"):
        bound.SubspaceFit(bounded("a"))
    with pytest.raises(ConfigError, match="not of own rows"):
        regression(tmp_path / "x", "task=own", "task.data=rows.npz", "model=mlp")


def test_a_member_that_diverges_bounds_nothing(tmp_path):
    result = bound.run(
        regression(tmp_path / "run", "model=mlp", "optimiser.learning_rate=1e30", "subspace.objective=likelihood")
    )
    assert result.test["bound/value"] == [None]


@pytest.mark.rendered
def test_tasks_say_which_configuration(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["bound", "task=digits"]) == 2
    assert "task=digits: no such choice (did you mean 'digit'?)" in capsys.readouterr().err
    assert main(["bound", "-m", "task=inertia,digit"]) == 2
    assert "give one kind at a time" in capsys.readouterr().err
    words = ["bound", "task=upright", "model=conv", *IMAGES, "run_dir=run", "seeds=2"]
    assert main(words) == 0
    assert "upright, conv" in capsys.readouterr().out
    risks = RunFolder.open("run").result()["test"]["risk/train"]
    assert len(risks) == 2 and all(risk * 300 == pytest.approx(round(risk * 300)) for risk in risks)  # a share of 300
    assert (tmp_path / "run" / "figures" / "bound.png").stat().st_size > 5_000
    assert main(words) == 2 and "exists" in capsys.readouterr().err
    assert RunFolder.open("run").config()["subspace"]["dimension"] == [8]
    assert main(["bound", "--resume", "run"]) == 0
    assert "nothing left to do" in capsys.readouterr().out
    for words in (["equivariance", "run"], ["figure", "run", "--out", "a.png"]):
        assert main(words) == 2 and "run of bound" in capsys.readouterr().err
