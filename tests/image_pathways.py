"""The image pathways over which the suites are parametrised."""

from __future__ import annotations

from collections.abc import Callable

import torch
from registry import generator
from torch import Tensor

from rppdyn.images import (
    Convolution,
    FactoredFullyConnected,
    FullyConnected,
    GroupConvolution,
    ImagePathway,
    LieConvolution,
    PixelBias,
    RelaxedLieConvolution,
    SeparableGroupConvolution,
    SharedBias,
    SparseConvolution,
    SparseFullyConnected,
)
from rppdyn.images._operators import (
    DenseOperators,
    FixedOperators,
    LowRankOperators,
    OperatorPathway,
    Operators,
    PowerOperators,
    affine_base,
    kernel_shifts,
)

IN, OUT, SIZE = 8, 8, (4, 4)


def the_same() -> torch.Generator:
    """Of matrices that are given: whatever the seed, as buffers are of which a stack has one."""
    return generator(9)


def operators(matrices: Operators, **options) -> OperatorPathway:
    return OperatorPathway(IN, OUT, SIZE, matrices, **options)


PATHWAYS: dict[str, Callable[..., ImagePathway]] = {
    "fc": lambda **k: FullyConnected(IN, OUT, SIZE, **k),
    "fc to one pixel": lambda **k: FullyConnected(IN, OUT, SIZE, out_size=(1, 1), **k),
    "f_fc": lambda **k: FactoredFullyConnected(IN, OUT, SIZE, **k),
    "f_fc to one pixel": lambda **k: FactoredFullyConnected(IN, OUT, SIZE, out_size=(1, 1), **k),
    "conv": lambda **k: Convolution(IN, OUT, **k),
    "conv 1 x 1": lambda **k: Convolution(IN, OUT, kernel_size=1, **k),
    "conv, pooled": lambda **k: Convolution(IN, OUT, kernel_size=1, pooled=True, **k),
    "gconv": lambda **k: GroupConvolution(IN, OUT, **k),
    "gconv, lifting": lambda **k: GroupConvolution(IN, OUT, orientations=(1, 4), **k),
    "gconv, projecting": lambda **k: GroupConvolution(IN, OUT, orientations=(4, 1), **k),
    "gconv, pooled": lambda **k: GroupConvolution(IN, OUT, orientations=(4, 1), kernel_size=1, pooled=True, **k),
    "gconv, pointwise": lambda **k: GroupConvolution(IN, OUT, pointwise=True, **k),
    "gconv, separable": lambda **k: SeparableGroupConvolution(IN, OUT, **k),
    "s_conv": lambda **k: SparseConvolution(IN, OUT, **k),
    "s_conv, lengthscales": lambda **k: SparseConvolution(IN, OUT, prior="lengthscales", **k),
    "conv, anchored": lambda **k: LieConvolution(IN, OUT, group="t2", orientations=(1, 1), share=0.5, **k),
    "conv of p4": lambda **k: LieConvolution(IN, OUT, group="p4", orientations=(4, 4), **k),
    "conv of p4, relaxed": lambda **k: RelaxedLieConvolution(IN, OUT, group="p4", orientations=(4, 4), **k),
    "conv of se2": lambda **k: LieConvolution(IN, OUT, group="se2", orientations=(8, 8), **k),
    "conv of se2, free anchors": lambda **k: LieConvolution(IN, OUT, orientations=(8, 8), learned=True, **k),
    "conv of se2, lifting": lambda **k: LieConvolution(IN, OUT, group="se2", orientations=(1, 8), **k),
    "conv of se2, pooled": lambda **k: LieConvolution(IN, OUT, orientations=(8, 1), kernel_size=1, pooled=True, **k),
    "conv of scalings": lambda **k: LieConvolution(IN, OUT, group="scale", orientations=(4, 4), **k),
    "s_fc": lambda **k: SparseFullyConnected(IN, OUT, SIZE, **k),
    "s_fc to one pixel": lambda **k: SparseFullyConnected(IN, OUT, SIZE, out_size=(1, 1), **k),
    "s_fc, lengthscales": lambda **k: SparseFullyConnected(IN, OUT, SIZE, prior="lengthscales", **k),
    "operators, low rank": lambda generator, **k: operators(LowRankOperators(4, 16, 3, generator=generator), **k),
    "operators, dense": lambda generator, **k: operators(DenseOperators(3, 16, generator=generator), **k),
    "operators, powers": lambda generator, **k: operators(
        PowerOperators(affine_base(SIZE, "rotation", interpolation="bilinear")[None]), **k
    ),
    "operators, learned powers": lambda generator, **k: operators(
        PowerOperators(affine_base(SIZE, "shear_x", interpolation="bilinear")[None], (0, 2), trained=True), **k
    ),
    "operators, shifts": lambda generator, **k: operators(FixedOperators(kernel_shifts(SIZE, 3)), **k),
    "operators to one pixel": lambda generator, **k: OperatorPathway(
        IN, OUT, SIZE, FixedOperators(torch.randn(3, 1, 16, generator=the_same())), out_size=(1, 1), **k
    ),
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


STATIONARY = {name for name in PATHWAYS if "conv" in name or name.startswith("bias") or name.endswith("shifts")}
"""Those that commute with circular shifts."""

SHARED = {name for name in PATHWAYS if "conv" in name or name.startswith("operators,")}
SHARED -= {"conv, pooled", "gconv, pooled", "s_conv, lengthscales"}
"""Those whose filters are used at several places."""


def dense(f: ImagePathway, x: Tensor) -> Tensor:
    """The matrix of a linear pathway for images like x."""
    one = x[:1]
    return torch.func.jacrev(lambda t: f(t.view_as(one)).flatten())(one.flatten())
