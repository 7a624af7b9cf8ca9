"""Attribution of the Lie derivative to the layers of a ResNet-18 at 32 x 32: seconds, and as a ratio to its forward pass.

    python benchmarks/attribution.py [--images 20] [--repeats 3] [--classes 10] [--json FILE]

ResNet-18 as for ImageNet (He et al. 2016; torchvision's layers and sizes) with random weights, in float64, under a
translation. The forward pass of the same images is timed in the same process, in turn; on a busy machine read the processor
times, which are sums over threads. Up to 100 classes are attributed exactly, more by 100 probes.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor, nn

from rppdyn.equivariance import Attribution, images, layerwise_lie_derivative
from rppdyn.runs import provenance
from rppdyn.runs.files import write_json


class Block(nn.Module):
    """The basic block."""

    def __init__(self, channels: int, out: int, stride: int):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(channels, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out)
        self.conv2, self.bn2, self.relu = (
            nn.Conv2d(out, out, 3, 1, 1, bias=False),
            nn.BatchNorm2d(out),
            nn.ReLU(inplace=True),
        )
        self.downsample = (
            nn.Sequential(nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out))
            if stride > 1 or channels != out
            else nn.Identity()
        )

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        y += self.downsample(x)
        return self.relu(y)


class ResNet18(nn.Module):
    """Eight basic blocks of 64 to 512 channels."""

    def __init__(self, classes: int):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64)
        self.relu, self.maxpool = nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)
        widths = (64, 64, 64, 128, 128, 256, 256, 512, 512)
        self.layers = nn.Sequential(*(
            Block(a, b, 2 if b > a else 1) for a, b in pairwise(widths)
        ))  # fmt: skip
        self.avgpool, self.fc = nn.AdaptiveAvgPool2d(1), nn.Linear(512, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layers(self.maxpool(self.relu(self.bn1(self.conv1(x)))))
        return self.fc(torch.flatten(self.avgpool(x), 1))


def timed(work: Callable[[], object]) -> tuple[float, float]:
    """Wall-clock and processor seconds."""
    start, processor = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - start, time.process_time() - processor


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--classes", type=int, nargs="+", default=[10, 1000])
    parser.add_argument("--json", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    flow, rows = images.translation("x"), []
    print(
        "| classes | layers | by | forward, s of processors | attribution, s of processors | wall, s | ratio | residual |"
    )
    print("| ---: | ---: | --- | ---: | ---: | ---: | ---: | ---: |")
    for classes in arguments.classes:
        probes = None if classes <= 100 else 100
        with torch.random.fork_rng():
            torch.manual_seed(0)
            network = ResNet18(classes).double().eval()
            x = torch.rand(arguments.images, 3, 32, 32, dtype=torch.float64)
        forward, whole = [], []
        for _ in range(arguments.repeats):
            with torch.no_grad():
                forward.append(timed(lambda: network(x)))  # noqa: B023
            found: list[Attribution] = []
            measure = lambda: layerwise_lie_derivative(network, flow, flow, x, hidden=flow, probes=probes)  # noqa: B023, E731
            whole.append(timed(lambda: found.append(measure())))  # noqa: B023
        (wall, processor), (own, own_processor) = (
            map(statistics.median, zip(*t, strict=True)) for t in (whole, forward)
        )
        row = dict(classes=classes, probes=probes, images=arguments.images, layers=len(found[0].layers), wall=wall,
                   processor=processor, forward_wall=own, forward_processor=own_processor, residual=found[0].residual,
        )  # fmt: skip
        rows.append(row)
        how = "gradients" if probes is None else f"{probes} probes"
        print(
            f"| {classes} | {row['layers']} | {how} | {own_processor:.2f} | {processor:.1f} | {wall:.1f} | "
            f"{processor / own_processor:.0f} | {found[0].residual:.0e} |",
            flush=True,
        )
    if arguments.json:
        write_json(arguments.json, {"rows": rows, "threads": torch.get_num_threads(), "provenance": provenance()})


if __name__ == "__main__":
    main()
