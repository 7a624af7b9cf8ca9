"""torchvision's datasets, and files of MNIST's format."""

from __future__ import annotations

import gzip
import importlib
import sys

import numpy as np
import pytest
import torch


@pytest.fixture(scope="module")
def torchvision():
    """Its datasets need none of its operators, without which a build for another torch can't be imported."""
    try:
        return pytest.importorskip("torchvision")
    except RuntimeError:
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        operators = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            operators.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        return operators, importlib.import_module("torchvision")


def write_idx(folder, n_train, n_test):
    """Files of MNIST's format: a magic number, the shape, the bytes."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for part, n in (("train", n_train), ("t10k", n_test)):
        for kind, shape in (("images-idx3", (n, 28, 28)), ("labels-idx1", (n,))):
            content = rng.integers(0, 10 if len(shape) == 1 else 256, shape, dtype=np.uint8)
            header = np.array([0x800 + len(shape), *shape], dtype=">i4").tobytes()
            (folder / f"{part}-{kind}-ubyte").write_bytes(header + content.tobytes())
            (folder / f"{part}-{kind}-ubyte.gz").write_bytes(gzip.compress(header + content.tobytes()))
