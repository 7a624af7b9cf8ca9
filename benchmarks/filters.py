r"""Time continuous filters: converted convolutions and SE(2) beside torch's convolution, and what sampling costs of a step.

    OMP_NUM_THREADS=1 python benchmarks/filters.py --json docs/results/filters_cost.json

A step is forward and backward, by inputs and weights, of one layer with 3 x 3 pixels: 16 channels or fields, 16 x 16 pixels,
batch 32. SE(2) has N = 8 elements. Beside it stand two ideas to make it cheaper, channels last in memory and filters that are
separable in the angle. Layers take turns, one step each per round, in one process. A ratio is the median over
rounds, between quartiles. Sampling is :meth:`LieConvolution.filters`, forward and backward, beside the step that it is part of.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from measuring import Step, Timing, begin, command_line, interleave, report, write_times
from torch import Tensor, nn
from torch.nn import functional

from rppdyn.images import AnchoredConv2d, LieConvolution

FIELDS, SIZE, BATCH, N = 16, (16, 16), 32, 8
PEER, SAME = "Conv2d", "Conv2d, channels of SE(2)"


def training_step(layer: nn.Module, channels: int) -> Step:
    """Forward and backward."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(BATCH, channels, *SIZE, generator=generator, requires_grad=True)
    with torch.no_grad():
        g = torch.randn(layer(x).shape, generator=generator)

    def step() -> None:
        x.grad = None
        layer.zero_grad(set_to_none=True)
        layer(x).backward(g)

    return step


class Separable(nn.Module):
    """Filters of SE(2) that are sums of r products of one in the plane, turned, and one on the angles: an idea, timed alone.

    Elements are mixed first, and then each has its own convolution of r fields for one: N r products for N^2.
    """

    def __init__(self, fields: int, terms: int):
        super().__init__()
        self.planes = nn.Parameter(torch.randn(N * fields, fields * terms, 3, 3) / 20)
        self.mixing = nn.Parameter(torch.randn(N, N, terms) / N)

    def forward(self, x: Tensor) -> Tensor:
        fields = x.unflatten(1, (-1, N))
        mixed = torch.einsum("hjr,ncjyx->nhcryx", self.mixing, fields).flatten(1, 3)
        y = functional.conv2d(functional.pad(mixed, [1] * 4, mode="circular"), self.planes, groups=N)
        return y.unflatten(1, (N, -1)).transpose(1, 2).flatten(1, 2)


class ChannelsLast(nn.Conv2d):
    """A convolution whose maps are kept with their channels last."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.to(memory_format=torch.channels_last))


def sampling_step(filters: Callable[[], Tensor]) -> Step:
    """Forward and backward of the filters alone."""
    g = torch.randn(filters().shape)
    return lambda: filters().backward(g)


def main() -> None:
    """Parse arguments, measure, print, and write the raw times."""
    arguments, where = begin(command_line(__doc__, rounds=30, quick=8))
    conv = nn.Conv2d(FIELDS, FIELDS, 3, padding=1, bias=False)
    fixed, free = AnchoredConv2d.of(conv), AnchoredConv2d.of(conv, learned=True)
    lift = LieConvolution(FIELDS, FIELDS * N, orientations=(1, N))
    se2 = LieConvolution(FIELDS * N, FIELDS * N, orientations=(N, N))
    wide = nn.Conv2d(FIELDS * N, FIELDS * N, 3, padding=1, padding_mode="circular", bias=False)
    last = ChannelsLast(FIELDS * N, FIELDS * N, 3, padding=1, bias=False).to(memory_format=torch.channels_last)
    layers = {
        PEER: (conv, FIELDS, PEER, None),
        "converted, sampled once": (AnchoredConv2d.of(conv).to_conv2d(), FIELDS, PEER, 1.2),
        "converted": (fixed, FIELDS, PEER, 1.2),
        "free anchors": (free, FIELDS, PEER, None),
        "SE(2), lifting": (lift, FIELDS, PEER, 1.3 * N),
        "SE(2)": (se2, FIELDS * N, PEER, None),
        SAME: (wide, FIELDS * N, SAME, None),
        "SE(2) ": (se2, FIELDS * N, SAME, 1.3),
        "channels last": (last, FIELDS * N, SAME, None),
        "separable, one term": (Separable(FIELDS, 1), FIELDS * N, PEER, 1.3 * N),
        "separable, three terms": (Separable(FIELDS, 3), FIELDS * N, PEER, 1.3 * N),
    }
    timings = {name: Timing(name, peer, target) for name, (_, _, peer, target) in layers.items()}
    steps = {name: training_step(layer, channels) for name, (layer, channels, _, _) in layers.items()}
    interleave(steps, timings, arguments.rounds)
    report(
        f"{FIELDS} fields, {SIZE[0]} x {SIZE[1]} pixels, batch {BATCH}: forward and backward", list(timings.values())
    )
    parts = {
        "converted": sampling_step(lambda: fixed.weight),
        "free anchors": sampling_step(lambda: free.weight),
        "SE(2), lifting": sampling_step(lift.filters),
        "SE(2)": sampling_step(se2.filters),
    }
    names = [name for part in parts for name in (part, f"{part}: sampling")]
    shares = {n: Timing(n, n.removesuffix(": sampling"), 0.2 if n.endswith("sampling") else None) for n in names}
    interleave({n: parts[n[:-10]] if n.endswith("sampling") else steps[n] for n in names}, shares, arguments.rounds)
    report("sampling of filters", list(shares.values()))
    write_times(arguments.json, where, {"layers": list(timings.values()), "sampling": list(shares.values())})


if __name__ == "__main__":
    main()
