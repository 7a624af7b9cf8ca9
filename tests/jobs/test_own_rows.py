"""fit-regression data= and fit-image data=: whole small fits of one's own rows and images, and what is said of bad ones."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch
from PIL import Image

import rppdyn
from rppdyn.cli import main
from rppdyn.jobs import fit_regression
from rppdyn.jobs.config import compose
from rppdyn.jobs.config.compose import expand_own_data_words
from rppdyn.runs import RunFolder
from rppdyn.tasks import read_images, read_rows
from rppdyn.tasks._labelled import split_indices

SMALL = ("optimiser.epochs=2", "report=false", "device=cpu")
NETWORK = ("model.hidden=8", "model.num_layers=1")
IMAGES = ("model=conv", "model.width=2", "optimiser.batch_size=20")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def torques():
    """Products of two vectors, in an NPZ file and in a CSV file in other units."""
    rng = np.random.default_rng(0)
    r = rng.normal(size=(60, 2, 3))
    x, y = r.reshape(60, 6), np.cross(r[:, 0], r[:, 1])
    np.savez("own.npz", x=x, y=y, part=np.array(["train"] * 40 + ["validation"] * 10 + ["test"] * 10))
    rows = np.concatenate([x, 1000 * y], 1)
    with open("own.csv", "w") as file:
        file.write("a,b,c,d,e,f,p,q,r\n" + "\n".join(",".join(map(str, row)) for row in rows))
    return x, y


def test_rows_from_file_to_predictions(torques, capsys):
    x, _ = torques
    words = ("data=own.npz", "group=SO(3)", "rep=2*V", "rep_out=V", "seeds=2", "model=emlp", "run_dir=own", *SMALL,
             *NETWORK)  # fmt: skip
    assert main(["fit-regression", *words, "report=true"]) == 0
    printed = capsys.readouterr().out
    assert "own, emlp, seeds 0 to 1" in printed and "rmse/y[2]" in printed and "own/report.html" in printed
    result = RunFolder.open("own").result()["test"]
    assert max(result["equivariance/error"]) < 1e-6
    model = rppdyn.load("own")
    every = model.predict(x[:4], members="all")
    assert every.shape == (2, 4, 3)
    assert torch.allclose(model.predict(torch.tensor(x[:4])), torch.tensor(every.mean(0)))
    np.savez("in.npz", x=x[:4])
    assert main(["predict", "own", "--data", "in.npz", "--out", "out.npz"]) == 0
    with np.load("out.npz") as file:
        assert np.allclose(file["prediction"], every.mean(0))
    assert main(["equivariance", "own", "--group", "O(3)"]) == 0
    np.savez("own.npz", x=x + 1, y=x[:, :3])
    with pytest.raises(ValueError, match="not the data that the run began with"):
        rppdyn.load("own")


@pytest.mark.parametrize("kind", ["regression", "image"])
def test_going_on_refuses_other_data(torques, kind, capsys):
    x, y = torques
    arrays = dict(zip(("images", "labels"), digits(), strict=True)) if kind == "image" else {"x": x, "y": y}
    np.savez("own.npz", **arrays)
    words = [f"fit-{kind}", "data=own.npz", "run_dir=own", *SMALL, *(NETWORK if kind == "regression" else IMAGES)]
    assert main(words) == 0
    config = RunFolder.open("own").config_file.read_text()
    os.remove("own/result.json")
    assert main([*words, "--resume"]) == 0
    os.remove("own/result.json")
    np.savez("own.npz", **{key: values[::-1] for key, values in arrays.items()})
    capsys.readouterr()
    assert main([*words, "--resume"]) == 2
    assert "not the data that the run began with" in capsys.readouterr().err
    assert RunFolder.open("own").config_file.read_text() == config


def test_columns_keep_their_units_and_a_column_may_say_the_parts(torques):
    _, y = torques
    words = ("data=own.csv", "inputs=[a,b,c,d,e,f]", "outputs=[p,q,r]", *SMALL, *NETWORK)
    assert main(["fit-regression", *words, "run_dir=plain"]) == 0
    test = RunFolder.open("plain").result()["test"]
    assert "equivariance/error" not in test
    assert 100 < test["rmse/p"][0] < 5000 * y.std()
    assert main(["fit-regression", "data=own.npz", "split=part", *SMALL, *NETWORK, "run_dir=parted"]) == 0
    task = RunFolder.open("parted").config()["task"]
    assert (task["train"], task["validation"], task["test"]) == (40, 10, 10)


def test_a_symmetry_of_rows_is_found_and_where_there_is_none_networks_are_plain(caplog):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 2))
    options = dict(group="auto", model__hidden=32, model__num_layers=2, optimiser__epochs=200,
                   optimiser__learning_rate=1e-2, device="cpu")  # fmt: skip
    model = rppdyn.fit_regression({"x": x, "y": (x**2).sum(1)}, **options)
    (A,) = model.members[0].net.rep_in.G.lie_algebra
    assert abs(float(A[0, 1] - A[1, 0])) > 0.99 * 2**0.5 * float(A.norm())  # a turn
    assert "group=auto found 1 generator in GL(2)" in caplog.text
    caplog.clear()
    needs_one = dict(model="emlp", model__breaking="V", model__bilinear="channelwise")
    rppdyn.fit_regression({"x": x, "y": x[:, 0] ** 3 + np.sin(3 * x[:, 1])}, **options, **needs_one)
    assert "group=auto found no symmetry" in caplog.text


def test_a_symmetry_is_looked_for_without_the_test_data(monkeypatch):
    """The split has a seed of its own, whatever that of the networks."""
    rng = np.random.default_rng(0)
    np.savez("own.npz", x=rng.normal(size=(60, 2)), y=rng.normal(size=60))
    fits = []
    monkeypatch.setattr(fit_regression, "take_all_steps", lambda subject: fits.append(subject) or subject)
    words = ["data=own.npz", "group=auto", "model=rpp", "seed=3", *SMALL, *NETWORK]
    config = compose.composed("fit_regression", expand_own_data_words("fit_regression", words))
    fitted = fit_regression.Regression(config)
    assert torch.equal(fits[0].tests[0][0], fitted.tests[0][0])


def digits(count=60):
    from sklearn.datasets import load_digits

    x, y = load_digits(n_class=3, return_X_y=True)
    return x[:count].reshape(-1, 8, 8).astype(np.uint8), y[:count]


def test_images_from_file_to_classes(capsys):
    x, y = digits()
    np.savez("own.npz", images=x, labels=np.array(["zero", "one", "two"])[y])
    assert main(["fit-image", "data=own.npz", "seeds=2", "run_dir=own", *SMALL, *IMAGES]) == 0
    assert "own, conv, seeds 0 to 1" in capsys.readouterr().out
    model = rppdyn.load("own")
    assert model.classes == ("one", "two", "zero")
    logits = model.predict(x[:5], members="all")
    assert logits.shape == (2, 5, 3)
    for same in (x[:5, None], x[:5, ..., None].astype(float)):  # channels first, and last
        assert np.allclose(model.predict(same, members="all"), logits)
    assert model.classify(x[:5]) == [model.classes[i] for i in logits.mean(0).argmax(-1)]
    with pytest.raises(ValueError, match=r"must be \(N, 1, 8, 8\)"):
        model.predict(x[:5, :4])
    x[0] += 1
    np.savez("own.npz", images=x, labels=y)
    with pytest.raises(ValueError, match="not the data that the run began with"):
        rppdyn.load("own")


def test_numbers_that_images_have_keep_their_unit():
    x, _ = digits()
    total = x.reshape(len(x), -1).sum(1) * 1.0
    options = dict(model="conv", model__width=2, task__split_seed=None, seeds=2, optimiser__epochs=1, device="cpu")
    model = rppdyn.fit_images({"images": x, "total": total}, targets="total", **options)
    assert 0.5 * total.mean() < model.predict(x).mean() < 2 * total.mean()
    with pytest.raises(ValueError, match="numbers, not classes"):
        model.classify(x)


def test_folders_of_pictures_and_what_does_not_fit_in_them():
    x, y = digits()
    for part, rows in (("train", slice(0, 30)), ("val", slice(30, 45)), ("test", slice(45, 60))):
        for k, (image, label) in enumerate(zip(x[rows], y[rows], strict=True)):
            for folder in (f"parted/{part}/{label}", f"all/{label}"):
                os.makedirs(folder, exist_ok=True)
                Image.fromarray(15 * image).save(f"{folder}/{part}{k}.png")
    read, parted = read_images("all", None, None), read_images("parted", None, None)
    assert read.x.shape == parted.x.shape == (60, 1, 8, 8)
    assert read.classes == ("0", "1", "2")
    assert [int((parted.parts == part).sum()) for part in ("train", "validation", "test")] == [30, 15, 15]
    for k, label in enumerate("nnnfff"):  # a depth camera's, in millimetres
        os.makedirs(f"depth/{label}", exist_ok=True)
        Image.fromarray((500 + 1000 * k + np.arange(64).reshape(8, 8)).astype(np.uint16)).save(f"depth/{label}/{k}.png")
    depth = read_images("depth", None, None).x
    assert depth.shape == (6, 1, 8, 8) and float(depth.min()) == 500 and float(depth.max()) == 5563
    Image.fromarray(np.zeros((8, 9), np.uint8)).save("all/1/wide.png")
    with pytest.raises(ValueError, match=r"all/1/wide.png and all/0/.* have 8 x 9 and 8 x 8 pixels"):
        read_images("all", None, None)


def test_rows_of_several_files_are_joined_and_what_is_found_changes_no_folder(torques):
    os.makedirs("many")
    for k, rows in enumerate((slice(0, 20), slice(20, 60))):
        np.savez(f"many/{k}.npz", x=torques[0][rows], y=torques[1][rows])
    read = read_rows("many", ["x[0:3]", "x[3:6]"], ["y"])
    assert np.allclose(read.x, torques[0]) and np.allclose(read.y, torques[1])
    assert read.names[:2] == ("x[0:3][0]", "x[0:3][1]")
    words = expand_own_data_words("fit_regression", ["data=own.npz", "group=auto", "model=rpp"])
    config = compose.composed("fit_regression", words)
    before = config.folder()
    config.task.generators, config.task.train, config.task.digest = [], 7, "0"
    assert config.folder() == before and config.model_name == "mlp"


def test_parts_are_drawn_by_class_and_none_is_empty():
    classes = torch.tensor([0] * 50 + [1] * 3)
    parts = split_indices(53, [0.7, 0.15, 0.15], 0, classes)
    assert sorted(index for part in parts for index in part) == list(range(53))
    assert all(set(classes[part].tolist()) == {0, 1} for part in parts)
    assert split_indices(53, [0.7, 0.15, 0.15], 0, classes) == parts != split_indices(53, [0.7, 0.15, 0.15], 1, classes)


def said(capsys, *words):
    assert main([*words]) == 2
    error = capsys.readouterr().err
    assert len(error.splitlines()) == 1
    assert not RunFolder("runs").path.exists()
    return error


X = np.random.default_rng(0).normal(size=(20, 4))


@pytest.mark.parametrize(
    ("arrays", "words", "wanted"),
    [
        ({"x": X, "y": X[:9]}, (), "20 rows of inputs and 9 of outputs"),
        ({"x": np.where(X == X[3, 1], np.nan, X), "y": X}, (), "nan in row 4, column x[1]"),
        ({"x": X[:2], "y": X[:2]}, (), "2 data can't be parted"),
        ({"x": X, "y": X, "part": ["train"] * 19 + ["tset"]}, ("split=part",), "row 20: 'tset' is none of train"),
        ({"x": X, "y": X, "part": ["train"] * 19 + ["test"]}, ("split=part",), "no datum is for validation"),
        ({"x": X, "y": ["a"] * 20}, (), "outputs=y: own.npz, row 1: 'a' is no number"),
        ({"x": X, "y": X}, ("group=O(3)",), "there are 4 in the inputs"),
        ({"x": X, "y": X}, ("rep=V",), "rep=V without group="),
        ({"x": X, "y": X}, ("model=rpp",), "model=rpp without group="),
        ({"x": X, "y": X}, ("task=inertia",), "that task makes its own data"),
    ],
)
def test_bad_rows_are_said_in_one_line(capsys, arrays, words, wanted):
    np.savez("own.npz", **arrays)
    assert wanted in said(capsys, "fit-regression", "data=own.npz", *words)


P, L = np.random.default_rng(0).integers(0, 255, size=(12, 8, 8)), np.arange(12) % 2


@pytest.mark.parametrize(
    ("arrays", "words", "wanted"),
    [
        ({"images": P, "labels": L + 0.5}, (), "label 0.5 of image 1 is no class"),
        ({"images": P, "labels": [0] * 11 + [1]}, (), "class 1 has 1 image, and one is needed in each"),
        ({"images": P, "labels": L[:5]}, (), "12 images and 5 labels"),
        ({"images": P, "labels": 0 * L}, (), "all labels are 0"),
        ({"images": P[0], "labels": L[:8]}, (), "images of shape (8, 8)"),
        ({"images": P, "labels": L}, ("task.canvas=16",), "images stay as they are"),
        ({"images": P, "labels": L}, ("targets=labels", "labels=labels"), "give classes or numbers"),
    ],
)
def test_bad_images_are_said_in_one_line(capsys, arrays, words, wanted):
    np.savez("own.npz", **arrays)
    assert wanted in said(capsys, "fit-image", "data=own.npz", *words)


def test_keys_of_own_data_need_data(capsys):
    assert "without data=" in said(capsys, "fit-regression", "inputs=[x]")
    assert "without data=" in said(capsys, "fit-image", "labels=y")
    assert "name your file, data=FILE" in said(capsys, "fit-regression", "task=own")


def test_constant_columns_are_pointed_out(caplog):
    rppdyn.fit_regression(
        {"x": np.where(np.arange(4) == 2, 0.0, X), "y": X}, model__hidden=4, optimiser__epochs=1, device="cpu"
    )
    assert "x[2] is 0 throughout: it tells nothing" in caplog.text and "times the size of" not in caplog.text
