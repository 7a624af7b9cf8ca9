"""`rppdyn equivariance` of image models: runs of fit-image, modules of the user's own, architectures of others, bad input."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from rppdyn.cli import main
from rppdyn.jobs import fit_image
from rppdyn.jobs.config import compose

MODULE = """
import torch
from torch import nn


class Network(nn.Module):
    def __init__(self, broken=False):
        super().__init__()
        self.conv = nn.Conv2d(1, 3, 3, padding=1, padding_mode="circular")
        self.broken, self.head = Broken() if broken else nn.Identity(), nn.Linear(3, 2)

    def forward(self, x):
        y = self.conv(x)
        return self.head((y + self.broken(y)).mean((2, 3)))


class Broken(nn.Module):
    def forward(self, x):
        return x * torch.linspace(-3, 3, x.size(3), dtype=x.dtype) if x.sum() > -1e9 else x


torch.manual_seed(0)
network, broken = Network(), Network(broken=True)


def make():
    return Network()


def mean(x):
    return (x**3).mean((2, 3))

"""


@pytest.fixture
def models(tmp_path, monkeypatch):
    """A module of image models in the working folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "image_models.py").write_text(MODULE, encoding="utf-8")
    yield tmp_path
    sys.modules.pop("image_models", None)


def measured(*words):
    assert main(["equivariance", *words, "--json", "found.json", "--figure", "found.png"]) == 0
    return json.loads(Path("found.json").read_text(encoding="utf-8"))


@pytest.mark.rendered
def test_members_of_a_run_of_fit_image_are_measured_layer_by_layer(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ["task=digit", "model=f_fc+conv", "model.architecture=small_max", "model.width=2", "seeds=2",
             "task.train=120"]  # fmt: skip
    words += ["task.validation=20", "optimiser.epochs=2", "optimiser.batch_size=60", "run_dir=run", "device=cpu"]
    fit_image.run(compose.composed("fit_image", words))
    assert main(["equivariance", "run", "--states", "12", "--transformations", "fourier_x,brightening"]) == 0
    printed = capsys.readouterr().out
    assert "12 images: images of the test data" in printed and "Convolution" not in printed.split("by kind")[0]
    result = json.loads((tmp_path / "run" / "equivariance.json").read_text())
    assert (tmp_path / "run" / "figures" / "equivariance.png").stat().st_size > 5000
    found = result["functions"]["classifier"]
    layers = found["layers"]["network"]
    assert max(layers["residual"].values()) < 1e-2 and len(result["members"]["classifier"]) == 2
    norms = dict(zip(layers["layers"], layers["norm"]["fourier_x"], strict=True))
    assert norms["model.blocks.0.conv"] < 1e-12 < 1e-6 < norms["model.blocks.0.f_fc"]
    assert found["lee"]["fourier_x"][0] > 0 and sum(layers["share"]["fourier_x"]) == pytest.approx(1)


def test_a_module_is_measured_on_images_of_a_file_and_a_broken_part_is_blamed(models):
    np.savez("few.npz", images=np.random.default_rng(0).integers(0, 255, (6, 8, 8)).astype(np.uint8))
    few = ("--image", "few.npz", "--transformations", "fourier_x")
    result = measured("image_models:network", *few)
    assert result["functions"]["function"]["lee"]["fourier_x"][0] < 1e-25  # circular, linear: nothing is lost
    broken = measured("image_models:broken", *few, "--whole", "broken")["functions"]["function"]["layers"]["network"]
    assert broken["layers"][int(np.argmax(broken["norm"]["fourier_x"]))] == "broken"
    assert broken["share"]["fourier_x"][broken["layers"].index("broken")] == pytest.approx(1, rel=1e-9)
    plain = measured("image_models:mean", *few)["functions"]["function"]
    assert plain["layers"] == {} and plain["lee"]["fourier_x"][0] > 0


def test_a_function_without_arguments_makes_the_model_and_weights_are_read_from_a_file(models):
    from PIL import Image

    Image.fromarray(np.random.default_rng(0).integers(0, 255, (8, 8)).astype(np.uint8)).save("one.png")
    words = ("--image", "one.png", "--transformations", "rotation,stretch_x")
    own = measured("image_models:network", *words)["functions"]["function"]["lee"]
    state = sys.modules["image_models"].network.state_dict()
    torch.save({"state_dict": state}, "weights.pt")
    save_file(state, "weights.safetensors")
    for file in ("weights.pt", "weights.safetensors"):
        assert measured("image_models:make", *words, "--weights", file)["functions"]["function"]["lee"] == own
    assert measured("image_models:make", *words)["functions"]["function"]["lee"] != own


def test_architectures_of_torchvision_are_targets(models):
    try:
        import torchvision.models  # noqa: F401
    except (ImportError, RuntimeError) as error:  # a build for another torch fails when it is imported
        pytest.skip(f"torchvision can't be imported: {error}")
    np.save("colours.npy", np.random.default_rng(0).random((2, 3, 32, 32)))
    result = measured("torchvision.models:resnet18", "--image", "colours.npy", "--transformations", "rotation")
    assert result["functions"]["function"]["layers"]["network"]["residual"]["rotation"] < 1e-2


@pytest.mark.parametrize(
    ("words", "fragments"),
    [
        (["image_models:broken", "--image", "digits"], ["'broken' (Broken) can't be traced", "--whole broken"]),
        (["image_models:network", "--image", "digits", "--whole", "nowhere"], ["--whole names 'nowhere'"]),
        (["image_models:network", "--image", "flat.npy"], ["flat.npy", "(4,)", "height"]),
        (["image_models:network", "--image", "colours.npy"], ["fails on inputs", "(2, 3, 8, 8)"]),
        (["image_models:network", "--image", "digits", "--transformations", "rotatoin"], ["rotatoin", "'rotation'"]),
        (["image_models:network", "--image", "digits", "--env", "Ant-v5"], ["--env Ant-v5: of images (--image)"]),
        (["image_models:mean", "--image", "digits", "--weights", "flat.npy"], ["--weights flat.npy", "no weights"]),
        (["image_models:make", "--image", "digits", "--weights", "flat.npy"], ["--weights flat.npy", "Network"]),
    ],
    ids=lambda value: " ".join(value[:1] + value[2:]) if len(value) > 2 else None,
)
def test_bad_input_is_one_line(models, capsys, words, fragments):
    np.save("flat.npy", np.ones(4))
    np.save("colours.npy", np.ones((2, 3, 8, 8)))
    assert main(["equivariance", *words, "--states", "4"]) == 2
    said = capsys.readouterr().err.strip()
    assert len(said.splitlines()) == 1 and all(fragment in said for fragment in fragments)
