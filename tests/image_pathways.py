"""The image pathways over which the suites are parametrised."""

from __future__ import annotations

from collections.abc import Callable

import torch
from registry import generator
from torch import Tensor

from rppdyn.images import Convolution, FactoredFullyConnected, FullyConnected, ImagePathway, PixelBias, SharedBias

IN, OUT, SIZE = 4, 8, (4, 4)

PATHWAYS: dict[str, Callable[..., ImagePathway]] = {
    "fc": lambda **k: FullyConnected(IN, OUT, SIZE, **k),
    "fc to one pixel": lambda **k: FullyConnected(IN, OUT, SIZE, out_size=(1, 1), **k),
    "f_fc": lambda **k: FactoredFullyConnected(IN, OUT, SIZE, **k),
    "f_fc to one pixel": lambda **k: FactoredFullyConnected(IN, OUT, SIZE, out_size=(1, 1), **k),
    "conv": lambda **k: Convolution(IN, OUT, **k),
    "conv 1 x 1": lambda **k: Convolution(IN, OUT, kernel_size=1, **k),
    "conv, pooled": lambda **k: Convolution(IN, OUT, kernel_size=1, pooled=True, **k),
    "bias": lambda generator=None, **k: SharedBias(OUT, SIZE, **k),
    "bias of orientations": lambda generator=None, **k: SharedBias(OUT, SIZE, orientations=4, **k),
    "pixel bias": lambda generator=None, **k: PixelBias(OUT, SIZE, **k),
}


def pathway(name: str, seed: int = 0) -> ImagePathway:
    """A pathway in float64 with random coefficients."""
    made = PATHWAYS[name](generator=generator(seed)).double()
    with torch.no_grad():
        for p in made.parameters():
            p.add_(0.3 * torch.randn(p.shape, generator=generator(seed + p.numel()), dtype=p.dtype))
    return made


def images(n: int = 2, channels: int = IN, seed: int = 1, size: tuple[int, int] = SIZE) -> Tensor:
    return torch.randn(n, channels, *size, generator=generator(seed), dtype=torch.float64)


def relative(a: Tensor, b: Tensor) -> float:
    """|a - b| / (|a| + |b|); a comparison of zeros is refused."""
    size = a.norm() + b.norm()
    assert size > 1e-8, "both sides are zero"
    return ((a - b).norm() / size).item()


STATIONARY = {name for name in PATHWAYS if "conv" in name or name.startswith("bias")}
"""Those that commute with circular shifts."""

EXACT = {name for name in PATHWAYS if not name.startswith("conv")} | {"conv, pooled"}
"""Those whose blocks are exact for a single image: convolutions are used at several places."""


def dense(f: ImagePathway, x: Tensor) -> Tensor:
    """The matrix of a linear pathway for images like x."""
    one = x[:1]
    return torch.func.jacrev(lambda t: f(t.view_as(one)).flatten())(one.flatten())
