"""Everything `rppdyn equivariance` says of one function: how much, along which symmetry, on which entries, in which layer."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor

from rppdyn.equivariance import (
    Attribution,
    equivariance_error,
    error_by_input,
    error_by_output,
    layerwise_difference,
    layerwise_lie_derivative,
    trajectory_equivariance_error,
)
from rppdyn.equivariance.error import (
    POOLED_FLOOR,
    Function,
    MeasuredNetwork,
    elements_by_generator,
    pooled_ratio,
    pooled_sums,
)
from rppdyn.equivariance.lie import act
from rppdyn.groups import Group
from rppdyn.reps import Rep
from rppdyn.runs.figures import COLOURS, Panel, draw_panels, draw_several, paint_bars, save
from rppdyn.runs.statistics import bootstrap_interval, iqm

DETAIL_STATES = 256
"""At most so many states, evenly spaced, are used for entries of the input and for layers, whose cost grows with both."""

FORMAT = 1  # of equivariance.json

MAX_OUTPUTS = 20
"""So many entries of the output are shown at most, those with the largest errors; equivariance.json has all."""

MAX_TABLE_LAYERS = 25
"""So many layers are shown at most, those that contribute most; equivariance.json has all."""

MAX_ELEMENTS = 7
"""Elements beside the identity: all of a group that has no more, else so many random ones, the same for every state."""


@dataclass(frozen=True)
class Estimate:
    r"""An error between 0 (equivariant) and 1, with its uncertainty over states.

    Attributes:
        error: :math:`\sum |a - b| / \sum (|a| + |b|)`, sums over states, entries and elements.
        interval: 95 % bootstrap interval over states; of several members over these.
        published: Eq. 3.3, the mean over states of the same ratio of norms; of a continuous generator
            :math:`|L f| / 2|f|`, its limit for small transformations per unit of the generator.
    """

    error: float
    interval: tuple[float, float]
    published: float


@dataclass(frozen=True)
class Layers:
    """The contribution of each layer of a network to its error, by generator: mean norm, and signed share of the whole.

    Of image models also what layers are, and by how much contributions miss the whole, relative to it.
    """

    layers: tuple[str, ...]
    norm: dict[str, list[float]]
    share: dict[str, list[float]]
    kinds: tuple[str, ...] = ()
    residual: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Measured:
    """The errors of one function.

    Attributes:
        overall: over all generators; its `published` is over sampled elements of the whole group.
        published_interval: interval of that, over states.
        per_generator: by name.
        scale: root mean square of the output relative to what counts as something.
        vacuous: the output is all but zero (or, less its mean, all but constant), and the errors say nothing.
        by_output: error of each named entry; empty where there is one.
        by_input: share of the error that vanishes when a named part of the input says nothing about the symmetry.
        layers: by network; empty where nothing says how hidden layers transform.
        precision: in which the function computes.
        lee: local equivariance error of image models under each transformation, with its standard error over images.
    """

    overall: Estimate
    published_interval: tuple[float, float]
    per_generator: dict[str, Estimate]
    scale: float
    vacuous: bool
    by_output: dict[str, float]
    by_input: dict[str, float]
    layers: dict[str, Layers]
    precision: str
    lee: dict[str, tuple[float, float]] = field(default_factory=dict)


@dataclass(frozen=True)
class Rollouts:
    """The error along rollouts of a fit's members.

    Attributes:
        times: s, without the initial one.
        error, interval: geometric mean of each member over the times, averaged over trajectories; of several members their
            interquartile mean, with its 95 % bootstrap interval (of one: over trajectories). nan where all of them diverge.
        per_member: the same of each, nan where all its trajectories diverge.
        per_step: geometric mean of each member over trajectories at each time.
        trajectories: how many were rolled out, each with some images.
        left_out: number of these of each member that diverged, or whose image did.
    """

    times: list[float]
    error: float
    interval: tuple[float, float]
    per_member: list[float]
    per_step: list[list[float]]
    trajectories: int
    left_out: list[int]


@torch.no_grad()
def measure(function: Function, observations: NDArray, actions: NDArray | None, names: Sequence[str]) -> Measured:
    """Measure a function at some states.

    Args:
        observations, actions: (n, entries), raw.
        names: names of the group's generators, discrete ones first.
    """
    obs = torch.as_tensor(observations, dtype=torch.float64)
    x = function.encode(obs, torch.as_tensor(obs[:, :0] if actions is None else actions, dtype=torch.float64))
    y = function.call(x)
    size = y.double().square().mean()
    call, reference = function.call, function.scale
    if function.centred:
        centre = y.mean(0, keepdim=True)
        y, reference = y - centre, size.sqrt()
        call = lambda x: function.call(x) - centre  # noqa: E731
    sized = reference.any()
    scale = float(((y.double() / reference) if sized else y.double()).square().mean().sqrt())

    rep_in, rep_out = function.rep_in, function.rep_out
    generators = elements_by_generator(rep_in.G, names)
    sums = {
        name: pooled_sums((call(act(rep_in, g, x)), act(rep_out, g, y)) for g in elements)
        for name, elements in generators.items()
    }
    some = _elements(rep_in.G)
    eq33 = equivariance_error(call, rep_in, rep_out, x, elements=some)
    published = dict(zip(generators, eq33.per_generator.values(), strict=True))
    few = x[_spread(len(x), DETAIL_STATES)]
    return Measured(
        overall=estimate_of(torch.stack(list(sums.values())).sum(0), eq33.mean),
        published_interval=eq33.interval,
        per_generator={name: estimate_of(value, published[name]) for name, value in sums.items()},
        scale=scale,
        vacuous=scale < POOLED_FLOOR if sized else scale == 0,
        by_output=error_by_output(call, rep_in, rep_out, x, function.outputs, elements=some)
        if len(function.outputs) > 1
        else {},
        by_input=error_by_input(call, rep_in, rep_out, few, function.inputs, elements=some),
        layers={
            name: attribution
            for name, net in function.networks.items()
            if (attribution := _layers(net, few, generators))
        },
        precision=str(y.dtype).removeprefix("torch."),
    )


def largest_entries(by_entry: Mapping[str, float], count: int) -> dict[str, float]:
    """All entries, in their order, or the largest ones, in theirs, where there are more than so many."""
    if len(by_entry) <= count:
        return dict(by_entry)
    return dict(sorted(by_entry.items(), key=lambda item: -item[1])[:count])


def largest_layers(norm: Mapping[str, Sequence[float]], count: int) -> list[int]:
    """Numbers of all layers, or of those with the largest norms relative to their generator's largest, in their order."""
    rows = np.array(list(norm.values()), dtype=float)
    top = np.nan_to_num(rows / rows.max(1, keepdims=True).clip(min=np.finfo(float).tiny)).max(0)
    return sorted(np.argsort(-top, kind="stable")[:count].tolist())


def shares_by_kind(layers: Layers) -> dict[str, list[float]]:
    """Shares added up over the layers of each kind, by generator; kinds that contribute nothing are left out."""
    total: dict[str, NDArray] = {}
    for i, kind in enumerate(layers.kinds):
        total[kind] = total.get(kind, 0.0) + np.array([share[i] for share in layers.share.values()])
    return {kind: row.tolist() for kind, row in total.items() if (np.abs(row) >= 0.005).any()}


def is_finite(function: Function, inputs: NDArray) -> bool:
    """Return whether a function gives finite numbers: a network whose training diverged does not."""
    with torch.no_grad():
        return bool(function.call(torch.as_tensor(inputs)).isfinite().all())


def pool_members(members: Sequence[Measured]) -> Measured:
    """A summary of several members: interquartile means over them, with intervals over members in place of states."""
    if len(members) == 1:
        return members[0]

    def mean(values: Iterable[float]) -> float:
        return float(iqm(list(values)))

    def interval(values: Sequence[float]) -> tuple[float, float]:
        low, high = bootstrap_interval(values)
        return float(low), float(high)

    def estimate(estimates: Sequence[Estimate]) -> Estimate:
        errors = [e.error for e in estimates]
        return Estimate(mean(errors), interval(errors), mean(e.published for e in estimates))

    def layers(name: str) -> Layers:
        per_member = [m.layers[name] for m in members]
        norm, share = (
            {
                generator: iqm([getattr(f, key)[generator] for f in per_member]).tolist()
                for generator in per_member[0].norm
            }
            for key in ("norm", "share")
        )
        residual = {generator: max(f.residual[generator] for f in per_member) for generator in per_member[0].residual}
        return Layers(per_member[0].layers, norm, share, per_member[0].kinds, residual)

    def lee(generator: str) -> tuple[float, float]:
        values = [m.lee[generator][0] for m in members]
        return mean(values), float(np.std(values, ddof=1) / len(values) ** 0.5)

    first = members[0]
    return Measured(
        overall=estimate([m.overall for m in members]),
        published_interval=interval([m.overall.published for m in members]),
        per_generator={name: estimate([m.per_generator[name] for m in members]) for name in first.per_generator},
        scale=mean(m.scale for m in members),
        vacuous=any(m.vacuous for m in members),
        by_output={name: mean(m.by_output[name] for m in members) for name in first.by_output},
        by_input={name: mean(m.by_input[name] for m in members) for name in first.by_input},
        layers={name: layers(name) for name in first.layers},
        precision=first.precision,
        lee={name: lee(name) for name in first.lee},
    )


def measure_rollouts(
    solvers: Sequence[Callable[[Tensor], Tensor]], rep: Rep, starts: Sequence[Tensor], times: Tensor
) -> Rollouts:
    """Measure models along their rollouts.

    Args:
        solvers: function of each member from initial states to trajectories at `times`.
        starts: initial states of each member's trajectories.
    """
    errors = [trajectory_equivariance_error(solve, rep, z) for solve, z in zip(solvers, starts, strict=True)]
    each = [error.over().mean for error in errors]
    numbers = [value for value in each if not math.isnan(value)]
    low, high = bootstrap_interval(numbers) if len(errors) > 1 and numbers else errors[0].over().interval
    return Rollouts(
        times=times[1:].tolist(),
        error=float(iqm(numbers)) if numbers else math.nan,
        interval=(float(low), float(high)),
        per_member=each,
        per_step=[error.per_step.tolist() for error in errors],
        trajectories=len(starts[0]),
        left_out=[error.left_out for error in errors],
    )


def _elements(group: Group) -> list[Tensor]:
    if group.order is not None and group.order - 1 <= MAX_ELEMENTS:
        return list(group.elements()[1:] if group.order > 1 else group.elements())
    return list(group.samples(MAX_ELEMENTS, torch.Generator().manual_seed(0)))


def estimate_of(sums: Tensor, published: float) -> Estimate:
    """The ratio of sums ``(n, 2)``, with its interval over inputs."""
    low, high = bootstrap_interval(sums.numpy(), statistic=pooled_ratio)
    return Estimate(float(pooled_ratio(sums.numpy())), (float(low), float(high)), published)


def _layers(network: MeasuredNetwork, x: Tensor, generators: dict[str, list[Tensor]]) -> Layers | None:
    """The attribution of the error to layers; None if the action is known of only one layer's output."""
    module, inputs = network.module, network.inputs(x)
    count = len(module.rep_in.G.discrete_generators)
    attributions: list[Attribution] = []
    if count:
        attributions.append(layerwise_difference(module, module.rep_in, module.rep_out, inputs))
    if len(generators) > count:
        attributions.append(layerwise_lie_derivative(module, module.rep_in, module.rep_out, inputs))
    layers = attributions[0].layers
    if len(layers) < 2:
        return None
    rows = [(a.norm[d].tolist(), a.share[d].tolist()) for a in attributions for d in range(len(a.generators))]
    named = dict(zip(generators, rows, strict=True))
    return Layers(layers, {k: norm for k, (norm, _) in named.items()}, {k: share for k, (_, share) in named.items()})


def _spread(total: int, count: int) -> Tensor:
    return torch.linspace(0, total - 1, min(count, total)).round().long()


Result = Mapping[str, Any]
"""The content of `equivariance.json`."""

MAX_COLUMNS = 3  # of panels
MAX_PARTS = 10  # of the input, in the figure
MAX_FIGURE_LAYERS = 14  # in the figure


def draw_equivariance(result: Result, out: Path) -> Path:
    """Write the picture of a result, a dictionary as in `equivariance.json`; the suffix is the format."""
    return save(equivariance_figure(result), out)


def equivariance_figure(result: Result) -> Figure:
    """Panels of bars for everything that the result has; functions that are vacuous are left out."""
    functions = {name: m for name, m in result["functions"].items() if not m["vacuous"]}
    panels: list[Panel] = [
        ("error by generator", partial(_paint_generators, functions=functions, members=result.get("members") or {}))
    ]
    if rollouts := result.get("rollouts"):
        panels.append(("error along rollouts", partial(_paint_rollouts, rollouts=rollouts)))
    for name, m in functions.items():
        if (outputs := _finite(m["by_output"])) and name != "critics":
            values = largest_entries(outputs, MAX_OUTPUTS)
            panels.append(
                (
                    f"{name}: error of each output",
                    partial(paint_bars, names=[*values], series={"": [*values.values()]}, label="error"),
                )
            )
        if inputs := _finite(m["by_input"]):
            values = dict(sorted(inputs.items(), key=lambda item: -item[1])[:MAX_PARTS])
            panels.append(
                (
                    f"{name}: share by part of the input",
                    partial(
                        paint_bars,
                        names=[*values],
                        series={"": [*values.values()]},
                        label="share of the error",
                        log=False,
                    ),
                )
            )
        if layers := m["layers"]:
            whose = next(iter(layers)) if len(layers) == 1 else name
            panels.append((f"{whose}: contribution of each layer", partial(_paint_layers, networks=layers)))
    return draw_panels(
        panels, min(MAX_COLUMNS, len(panels)), title=f"{result['what']}: {result['symmetry']}", size=(4.8, 3.3)
    )


def _paint_generators(axes: Axes, functions: Mapping[str, Any], members: Mapping[str, list[Any]]) -> None:
    names = list(next(iter(functions.values()))["per_generator"]) if functions else []
    errors, intervals, each = {}, {}, {}
    for name, m in functions.items():
        errors[name] = [m["per_generator"][g]["error"] for g in names]
        intervals[name] = [m["per_generator"][g]["interval"] for g in names]
        seeds = members.get(name, [])
        each[name] = [[seed["per_generator"][g]["error"] for seed in seeds if len(seeds) > 1] for g in names]
    of_images = any(m.get("lee") for m in functions.values())
    label = "error, per unit" if of_images else "error (0 equivariant, 1 as far as can be)"
    paint_bars(axes, names, errors, label, intervals=intervals, each=each)


def _paint_rollouts(axes: Axes, rollouts: Mapping[str, Any]) -> None:
    steps = np.array(rollouts["per_step"], dtype=float)  # (members, times); null where all of a member's diverge
    draw_several(axes, np.array(rollouts["times"]), steps[~np.isnan(steps).any(1)], COLOURS[0], each=True)
    axes.set(yscale="log", xlabel="time, s", ylabel="error")


def _paint_layers(axes: Axes, networks: Mapping[str, Any]) -> None:
    several = len(networks) > 1
    bars = {
        " ".join([network] * several + [generator] * (len(layers["norm"]) > 1)): norms
        for network, layers in networks.items()
        for generator, norms in layers["norm"].items()
    }
    shown = largest_layers(bars, MAX_FIGURE_LAYERS)
    names = [next(iter(networks.values()))["layers"][i] for i in shown]
    paint_bars(
        axes,
        names,
        {label: [norms[i] for i in shown] for label, norms in bars.items()},
        "mean size at the output",
        log=False,
    )


def _finite(values: Mapping[str, float | None]) -> dict[str, float]:
    return {name: v for name, v in values.items() if v is not None and math.isfinite(v)}
