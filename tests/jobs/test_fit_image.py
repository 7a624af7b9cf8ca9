"""fit-image: what models with different pathways learn of digits, learned variances, loading, and bad input."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from refusals import refused
from torchvision_files import torchvision, write_idx  # noqa: F401 (a fixture)

from rppdyn.cli import main
from rppdyn.equivariance._lie import algebra_penalties
from rppdyn.jobs import fit_image
from rppdyn.jobs.config import compose
from rppdyn.runs import RunFolder, read_metrics
from rppdyn.tasks._images import translate

WORDS = ("model.width=4", "task.train=600", "task.validation=100", "optimiser.epochs=12", "optimiser.batch_size=60",
         "marginal_likelihood.burn_in=2", "marginal_likelihood.every=2", "marginal_likelihood.data=200", "evaluation.every=6",
         "evaluation.states=50", "checkpoint_every=6", "device=cpu")  # fmt: skip


def configured(folder, *words):
    return compose.composed("fit_image", [*WORDS, f"run_dir={folder}", *words])


def test_convolutions_read_digits_anywhere_and_cannot_say_where(tmp_path):
    """A convolution is invariant to shifts, so it reads digits wherever they stand and can't tell the quadrant."""
    errors = {}
    for task in ("digit", "digit_quadrant"):
        words = (f"task={task}", "model=conv", "model.width=6", "evaluation.every=12", "checkpoint_every=12")
        found = fit_image.run(configured(tmp_path / task, *words, "optimiser.batch_size=40")).test
        errors[task] = found["test/error"][0]
        assert found["equivariance/error"][0] < 1e-5
    assert errors["digit"] < 0.3 < 0.6 < errors["digit_quadrant"]
    plain = fit_image.run(configured(tmp_path / "fc", "task=digit", "model=fc", "model.width=1", "optimiser.epochs=2"))
    assert plain.test["equivariance/error"][0] > 0.1


def test_variances_are_learned_and_the_models_load(tmp_path):
    words = ("task=digit", "model=f_fc+conv", "seeds=2", "objective=marginal_likelihood", "marginal_likelihood.data=100",
             "optimiser.epochs=8", "task.train=500")  # fmt: skip
    result = fit_image.run(configured(tmp_path / "run", *words))
    names = {(row["layer"], row["pathway"]) for row in result.pathways}
    assert {("blocks.0", "conv"), ("blocks.0", "f_fc"), ("blocks.0", "bias"), ("head", "f_fc")} <= names
    for row in result.pathways:
        assert all(0 <= effective <= row["coefficients"] for effective in row["effective"])
    (free,) = [row for row in result.pathways if (row["layer"], row["pathway"]) == ("blocks.0", "f_fc")]
    assert min(free["precision"]) > 1.5  # from 1: less of it is needed
    for layer in {layer for layer, _ in names}:
        shares = {row["pathway"]: row["relative"] for row in result.pathways if row["layer"] == layer}
        assert shares.pop("bias") == [0.0, 0.0]
        assert [sum(each) for each in zip(*shares.values(), strict=True)] == pytest.approx([1.0, 1.0])
    # what the data cost, and what the model does: more than log(10) per image, since so little data pay for few weights
    last = read_metrics(tmp_path / "run" / "metrics.jsonl")[-1]
    for evidence, nll in zip(last["marginal_likelihood/negative_log"], last["train/nll"], strict=True):
        assert nll < evidence < 2 * math.log(10)
    folder = RunFolder.open(tmp_path / "run")
    images, models = fit_image.load_image_models(configured(tmp_path / "run", *words), folder)
    x, y = images.data[1].test.x, images.data[1].test.y
    wrong = (models[1](x).argmax(-1) != y).double().mean()
    assert float(wrong) == pytest.approx(result.test["test/error"][1], abs=1e-6)
    again = fit_image.run(configured(tmp_path / "run", *words), resume=True)
    assert again.test == result.test


def test_group_convolutions_live_through_their_first_steps(tmp_path):
    """At a rate that is too high all rectifiers of a layer die, and every image has the same outputs."""
    words = ("task=upright", "model=f_fc+conv+gconv", "optimiser.epochs=2", "evaluation.every=2")
    result = fit_image.run(configured(tmp_path / "run", *words))
    images, (network,) = fit_image.load_image_models(configured(tmp_path / "run", *words), RunFolder.open(result.run))
    outputs = network(images.data[0].test.x)
    assert (outputs - outputs[0]).abs().max() > 0.05
    assert result.test["test/nll"][0] < math.log(10)


def test_elements_of_a_group_are_drawn_for_each_step_and_usual_when_a_model_is_judged(tmp_path):
    """A finished run's network says what the test said; and seeds learn how much to relax."""
    words = ("task=upright", "model=se2+relaxed", "seeds=2", "model.width=1", "model.filters.elements=4",
             "model.filters.redraw=true", "model.filters.learned=true", "objective=marginal_likelihood",
             "optimiser.epochs=2", "task.train=60", "marginal_likelihood.data=20", "marginal_likelihood.burn_in=1",
             "marginal_likelihood.every=1")  # fmt: skip
    result = fit_image.run(configured(tmp_path / "run", *words))
    images, models = fit_image.load_image_models(configured(tmp_path / "run", *words), RunFolder.open(result.run))
    test = images.data[1].test
    wrong = (models[1](test.x).argmax(-1) != test.y).double().mean()
    assert float(wrong) == pytest.approx(result.test["test/error"][1], abs=1e-6)
    relaxed = models[1].blocks[0].se2_relaxed
    assert float(relaxed.offset) == 0 and float(relaxed.variance.detach()) != 1
    images.prepare(images.inputs, images.targets, 5)
    offsets = {float(m.offset) for m in images.stack.net.modules() if hasattr(m, "offset")}
    assert len(offsets) == 1 and offsets != {0.0}
    images.predictor()
    assert {float(m.offset) for m in images.stack.net.modules() if hasattr(m, "offset")} == {0.0}


def test_oblong_images_are_not_turned():
    x, y = np.random.default_rng(0).random((40, 8, 12)), np.arange(40) % 2
    with refused("task.augment_turn=true: images of 8 x 12 pixels", "task.resize="):
        fit_image.fit({"images": x, "labels": y}, model="conv", model__width=1, task__augment_turn=True, device="cpu")


RELAXED = ("task=upright", "model=se2+relaxed", "model.width=1", "model.filters.elements=4", "optimiser.epochs=4",
           "task.train=60", "optimiser.batch_size=20", "model.filters.omega=0.5")  # fmt: skip


@pytest.mark.parametrize("how", ["fixed", "penalised", "joint"])
def test_how_much_to_relax_is_given_penalised_or_learned(tmp_path, how):
    """One omega for each layer and seed: 0.5 where it is given; a large penalty lowers it; the evidence moves it."""
    words = {
        "fixed": ("optimiser.epochs=1",),
        "penalised": ("model.filters.penalty=100",),
        "joint": (
            "objective=marginal_likelihood",
            "marginal_likelihood.curvature=joint",
            "marginal_likelihood.data=20",
        ),
    }[how]
    config = configured(tmp_path / "run", *RELAXED, "seeds=2", *words)
    found = fit_image.run(config)
    omegas = [found.test[f"omega/{layer}"] for layer in ("blocks.0", "blocks.1", "blocks.2", "blocks.3", "head")]
    assert {len(each) for each in omegas} == {2}
    if how == "fixed":
        assert all(each == pytest.approx([0.5, 0.5], abs=1e-6) for each in omegas)
        assert all(name in (Path(__file__).parents[2] / "docs/metrics.md").read_text() for name in ("`omega/LAYER`",))
    elif how == "penalised":
        assert all(max(each) < 0.495 for each in omegas)
        _, models = fit_image.load_image_models(config, RunFolder.open(found.run))
        assert float(models[1].blocks[0].se2_relaxed.omega.detach()) == pytest.approx(omegas[0][1], abs=1e-6)
    else:
        assert all(abs(value - 0.5) > 1e-3 for each in omegas for value in each)
        assert {row["pathway"] for row in found.pathways} == {"se2", "se2_relaxed", "bias"}


def test_augmented_images_are_moved_anew_for_each_batch(tmp_path):
    """Pixels are kept and places are not; each member has a stream of its own, and the same again after a resume."""
    words = ("task=upright", "model=fc", "model.architecture=three_layers", "seeds=2")
    augment = ("task.augment_shift=2", "task.augment_turn=true", "task.augment_flip=true")
    images = fit_image.ImageFit(configured(tmp_path, *words, *augment))
    x, y = torch.randn(2, 5, 1, 8, 8), torch.arange(10).view(2, 5)
    first, again, later = (images.prepare(x, y, step) for step in (3, 3, 4))
    assert torch.equal(first[0], again[0]) and not torch.equal(first[0], later[0]) and torch.equal(first[1], y)
    torch.testing.assert_close(first[0].flatten(2).sort().values, x.flatten(2).sort().values, rtol=0, atol=0)
    alone = fit_image.ImageFit(configured(tmp_path, *words[:3], "seed=1", *augment))
    assert torch.equal(alone.prepare(x[1:], y[1:], 3)[0][0], first[0][1])

    wrong = []
    for name, more in (("moved", ["task.augment_shift=1"]), ("plain", [])):
        config = configured(tmp_path / name, *words[:3], *more)
        result = fit_image.run(config)
        images, (network,) = fit_image.load_image_models(config, RunFolder.open(result.run))
        test = images.data[0].test
        moved = translate(test.x, 1, torch.Generator().manual_seed(0))
        wrong.append(float((network(moved).argmax(-1) != test.y).float().mean()))
    assert wrong[0] < 0.7 * wrong[1]


@pytest.mark.usefixtures("torchvision")
def test_the_published_first_experiment(tmp_path, monkeypatch):
    """From files of MNIST's format: ten layers on quadrants of 32 x 32 pixels, with learned variances."""
    monkeypatch.chdir(tmp_path)
    write_idx(tmp_path / "MNIST" / "raw", 80, 20)
    words = ("task=mnist_digit_quadrant", "task.folder=.", "task.train=60", "task.validation=20", "model.width=1",
             "optimiser.epochs=2", "optimiser.batch_size=30", "model.architecture=ten_layers", "run_dir=run",
             "objective=marginal_likelihood", "marginal_likelihood.burn_in=0", "marginal_likelihood.every=1",
             "marginal_likelihood.data=20")  # fmt: skip
    assert main(["fit-image", "model=f_fc+conv", *words]) == 0
    images, (model,) = fit_image.load_image_models(
        compose.composed("fit_image", ["model=f_fc+conv", *words]), RunFolder.open("run")
    )
    test = images.data[0].test
    assert test.x.shape == (20, 1, 32, 32) and model(test.x).shape == (20, 40)
    x = (test.x - test.x.min())[:, 0].view(-1, 2, 16, 2, 16).sum((2, 4)).flatten(1)
    assert (x > 1e-3).sum(1).tolist() == [1] * 20
    assert torch.equal(x.argmax(1), test.y // 10)
    metrics = read_metrics(tmp_path / "run" / "metrics.jsonl")[-1]
    assert math.isfinite(metrics["marginal_likelihood/negative_log"][0])


def test_a_table_is_fitted_and_read_from_the_command_line_and_damaged_members_can_be_written_again(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    words = [*WORDS, "task=diabetes", "model=fc+conv", "model.architecture=three_layers", "task.train=282",
             "task.validation=0", "run_dir=run"]  # fmt: skip
    assert main(["fit-image", *words]) == 0
    out = capsys.readouterr().out
    assert "diabetes, fc+conv, seed 0: 12 epochs" in out and "test/error" in out and "validation" not in out
    test = RunFolder.open("run").result()["test"]
    assert 0.5 < test["test/error"][0] < 1.2  # of targets of variance one
    assert main(["report", "run", "--out", "report.html"]) == 0
    assert "fc+conv" in (tmp_path / "report.html").read_text()
    assert main(["fit-image", *words]) == 2 and "run folder run exists" in capsys.readouterr().err
    config, path = compose.composed("fit_image", words), tmp_path / "run" / "members.pt"
    content = path.read_bytes()
    path.write_bytes(content[:500])
    with refused("members.pt is damaged: delete it and ", "result.json"):
        fit_image.load_image_models(config, RunFolder.open("run"))
    path.unlink()
    with refused("members.pt is missing: delete ", "result.json, and use --resume"):
        fit_image.load_image_models(config, RunFolder.open("run"))
    (tmp_path / "run" / "result.json").unlink()
    assert fit_image.run(config, resume=True).test == test
    assert path.read_bytes() == content


@pytest.mark.parametrize("words, said", [
    (("model.pathways.conv=0", "model=conv"), "leave no map"),
    (("task=wine", "task.augment_flip=true", "model=fc"), "task.augment_flip with wine: pixels of the table"),
    (("task.train=2000",), "task.train=2000"),
    (("task=mnist",), "give task.folder="),
    (("task=digit_quadrant", "task.augment_turn=true"), "task.augment_turn with digit_quadrant: the quadrant is asked"),
    (("task=wine", "model=conv"), "architecture=small ends in a mean"),
    (("task=upright", "model.architecture=ten_layers"), "a task.canvas that is a multiple of 32"),
    (("model=se2", "model.filters.penalty=1"), "penalty=1.0 of se2, which has no relaxed pathway"),
    (("model=se2+relaxed", "model.filters.penalty=1", "objective=marginal_likelihood"), "penalty=1.0 with objective="),
    (("model=p4", "task.train=129"), "task.train=129 and optimiser.batch_size=128: a batch of one image has no"),
    (("task.canvas=12",), "task.canvas=12 has no four quadrants"),
    (("task=digit", "model=powernet"), "model=powernet on images of (16, 16): n=16 pixels: at even sizes"),
    (("task=rotated_odd", "model=powernet", "model.operators.bases=[turn]"), "velocity='turn': choose one of"),
])  # fmt: skip
def test_bad_input(words, said, tmp_path):
    with refused(said):
        fit_image.run(compose.composed("fit_image", [f"run_dir={tmp_path / 'run'}", *words]))
    assert not (tmp_path / "run").exists()


def test_penalties_on_operators_are_trained(tmp_path):
    """With a large penalty the learned generators are closer to a Lie algebra than without one."""
    words = ["task=rotated_odd", "model=l_conv", "task.canvas=9", "model.width=2", "model.operators.count=3"]
    words += ["model.operators.rank=1", "optimiser.epochs=3"]
    shares = []
    for factor in (0, 100):
        config = configured(tmp_path / str(factor), *words, f"model.operators.closure={factor}")
        _, (model,) = fit_image.load_image_models(config, RunFolder.open(fit_image.run(config).run))
        shares.append(algebra_penalties(model.blocks[0].operators.operators.generators)[0].item())
    assert shares[1] < 0.8 * shares[0]
