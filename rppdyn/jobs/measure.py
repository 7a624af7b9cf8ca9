"""Equivariance errors of one function: by generator, by entry of the output and input, by layer, and along rollouts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
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
from rppdyn.equivariance._error import (
    POOLED_FLOOR,
    Function,
    MeasuredNetwork,
    elements_by_generator,
    pooled_ratio,
    pooled_sums,
)
from rppdyn.equivariance._lie import act
from rppdyn.groups import Group
from rppdyn.reps import Rep
from rppdyn.runs.figures import COLOURS, Panel, draw_panels, draw_several, paint_bars
from rppdyn.runs.statistics import bootstrap_interval, evenly, iqm

DETAIL_STATES = 256
"""Largest number of states, evenly spaced, for the errors by entry of the input and by layer."""

FORMAT = 1  # of equivariance.json

MAX_OUTPUTS = 20
"""Largest number of entries of the output in the table and the figure; equivariance.json has all."""

MAX_TABLE_LAYERS = 25
"""Largest number of layers in the table; equivariance.json has all."""

MAX_ELEMENTS = 15
"""Number of sampled elements, the same for every state; a group with no more elements beside the identity gives all."""


@dataclass(frozen=True)
class Estimate:
    r"""An error between 0 (equivariant) and 1, with its uncertainty over states.

    Attributes:
        error: :math:`\sum |a - b| / \sum (|a| + |b|)`, sums over states and entries, means over a generator's elements.
        interval: 95 % bootstrap interval over states, or over members if there are several.
        published: Eq. 3.3, the mean over states of the same ratio of norms; for a continuous generator its limit for small
            transformations, :math:`|L f| / 2|f|` per unit of the generator.
    """

    error: float
    interval: tuple[float, float]
    published: float


@dataclass(frozen=True)
class Layers:
    """The contribution of each layer of a network to its error.

    Attributes:
        norm, share: mean norm and signed share of the whole, by generator.
        kinds: kind of each layer, of image models.
        residual: relative difference of the whole and the sum over layers by generator, of image models.
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
        overall: error over all generators, with equal weights; its `published` is over sampled elements of the whole group.
        published_interval: interval of that number over states.
        per_generator: errors by name of the generator.
        scale: root mean square of the output relative to its reference size.
        vacuous: the output is practically zero (or constant, for centred outputs), and the errors have no meaning.
        by_output: error of each named entry; empty for a single entry.
        by_input: share of the error that vanishes when the symmetry does not act on a named part of the input.
        layers: contributions by network; empty if the action on hidden layers is unknown.
        precision: floating-point type of the function.
        lee: local equivariance error of image models by transformation, with its standard error over images.
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
        times: s, without the initial time.
        error: interquartile mean of `per_member`; nan if all diverge.
        interval: its 95 % bootstrap interval over members, or over the trajectories of a single member.
        per_member: geometric mean over the times, averaged over trajectories; nan if all trajectories diverge.
        per_step: geometric mean over trajectories at each time, of each member.
        trajectories: number of trajectories, each compared with its images under some elements.
        left_out: number of trajectories that diverged or whose image did, of each member.
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
        names: names of the group's generators, the discrete ones first.
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
    has_scale = reference.any()
    scale = float(((y.double() / reference) if has_scale else y.double()).square().mean().sqrt())

    rep_in, rep_out = function.rep_in, function.rep_out
    generators = elements_by_generator(rep_in.G, names)
    sums = {
        name: pooled_sums((call(act(rep_in, g, x)), act(rep_out, g, y)) for g in group_elements)
        for name, group_elements in generators.items()
    }
    elements = _elements(rep_in.G)
    eq33 = equivariance_error(call, rep_in, rep_out, x, elements=elements)
    published = dict(zip(generators, eq33.per_generator.values(), strict=True))
    detail = x[evenly(len(x), DETAIL_STATES)]
    return Measured(
        overall=estimate_of(torch.stack(list(sums.values())).sum(0), eq33.mean),
        published_interval=eq33.interval,
        per_generator={name: estimate_of(value, published[name]) for name, value in sums.items()},
        scale=scale,
        vacuous=scale < POOLED_FLOOR if has_scale else scale == 0,
        by_output=error_by_output(call, rep_in, rep_out, x, function.outputs, elements=elements)
        if len(function.outputs) > 1
        else {},
        by_input=error_by_input(call, rep_in, rep_out, detail, function.inputs, elements=elements),
        layers={
            name: attribution
            for name, net in function.networks.items()
            if (attribution := _layers(net, detail, generators))
        },
        precision=str(y.dtype).removeprefix("torch."),
    )


def largest_entries(by_entry: Mapping[str, float], count: int) -> dict[str, float]:
    """The `count` largest entries in descending order; if there are no more, all in their own order."""
    if len(by_entry) <= count:
        return dict(by_entry)
    return dict(sorted(by_entry.items(), key=lambda item: -item[1])[:count])


def largest_layers(norm: Mapping[str, Sequence[float]], count: int) -> list[int]:
    """Indices of the `count` layers with the largest norms, each relative to the largest of its generator."""
    rows = np.array(list(norm.values()), dtype=float)
    top = np.nan_to_num(rows / rows.max(1, keepdims=True).clip(min=np.finfo(float).tiny)).max(0)
    return sorted(np.argsort(-top, kind="stable")[:count].tolist())


def shares_by_kind(layers: Layers) -> dict[str, list[float]]:
    """Sums of the shares over the layers of each kind, by generator, without kinds that contribute nothing."""
    total: dict[str, NDArray] = {}
    for i, kind in enumerate(layers.kinds):
        total[kind] = total.get(kind, 0.0) + np.array([share[i] for share in layers.share.values()])
    return {kind: row.tolist() for kind, row in total.items() if (np.abs(row) >= 0.005).any()}


def is_finite(function: Function, inputs: NDArray) -> bool:
    """Return whether all outputs are finite; those of a diverged network are not."""
    with torch.no_grad():
        return bool(function.call(torch.as_tensor(inputs)).isfinite().all())


def pool_members(members: Sequence[Measured]) -> Measured:
    """Summarise members by interquartile means, with intervals over members in place of states."""
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
    """Measure the equivariance error of models along their rollouts.

    Args:
        solvers: maps of each member from initial states to trajectories at `times`.
        starts: initial states of each member.
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
    """Elements other than the identity, whose error is 0: all of a small group, a sample of a large one."""
    generator = torch.Generator().manual_seed(0)
    if group.order is None:
        return list(group.samples(MAX_ELEMENTS, generator))
    others = group.elements()[1:] if group.order > 1 else group.elements()
    if len(others) > MAX_ELEMENTS:
        others = others[torch.randint(len(others), (MAX_ELEMENTS,), generator=generator)]
    return list(others)


def estimate_of(sums: Tensor, published: float) -> Estimate:
    """The ratio of sums ``(n, 2)`` over inputs, with its interval."""
    low, high = bootstrap_interval(sums.numpy(), statistic=pooled_ratio)
    return Estimate(float(pooled_ratio(sums.numpy())), (float(low), float(high)), published)


def _layers(network: MeasuredNetwork, x: Tensor, generators: dict[str, list[Tensor]]) -> Layers | None:
    """The attribution of the error to layers; None if the action is known on the output of one layer only."""
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
    rows = [(a, d) for a in attributions for d in range(len(a.generators))]
    norm = {name: a.norm[d].tolist() for name, (a, d) in zip(generators, rows, strict=True)}
    share = {name: a.share[d].tolist() for name, (a, d) in zip(generators, rows, strict=True)}
    return Layers(layers, norm, share)


Result = Mapping[str, Any]
"""The content of `equivariance.json`."""

MAX_PANEL_COLUMNS = 3
MAX_FIGURE_PARTS = 10  # of the input
MAX_FIGURE_LAYERS = 14


def equivariance_figure(result: Result) -> Figure:
    """Draw a panel of bars for each part of the result, without vacuous functions."""
    functions = {name: m for name, m in result["functions"].items() if not m["vacuous"]}
    panels: list[Panel] = [
        ("error by generator", partial(_paint_generators, functions=functions, members=result.get("members") or {}))
    ]
    if rollouts := result.get("rollouts"):
        panels.append(("error along rollouts", partial(_paint_rollouts, rollouts=rollouts)))
    for name, m in functions.items():
        if (outputs := _finite(m["by_output"])) and name != "critics":
            outputs = largest_entries(outputs, MAX_OUTPUTS)
            paint = partial(paint_bars, names=[*outputs], series={"": [*outputs.values()]}, axis_label="error")
            panels.append((f"{name}: error of each output", paint))
        if inputs := _finite(m["by_input"]):
            inputs = dict(sorted(inputs.items(), key=lambda item: -item[1])[:MAX_FIGURE_PARTS])
            series = {"": [*inputs.values()]}
            paint = partial(paint_bars, names=[*inputs], series=series, axis_label="share of the error", log=False)
            panels.append((f"{name}: share by part of the input", paint))
        if layers := m["layers"]:
            owner = next(iter(layers)) if len(layers) == 1 else name
            panels.append((f"{owner}: contribution of each layer", partial(_paint_layers, networks=layers)))
    title = f"{result['what']}: {result['symmetry']}"
    return draw_panels(panels, min(MAX_PANEL_COLUMNS, len(panels)), title=title, size=(4.8, 3.3))


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
    indices = largest_layers(bars, MAX_FIGURE_LAYERS)
    names = [next(iter(networks.values()))["layers"][i] for i in indices]
    series = {label: [norms[i] for i in indices] for label, norms in bars.items()}
    paint_bars(axes, names, series, "mean size at the output", log=False)


def _finite(values: Mapping[str, float | None]) -> dict[str, float]:
    return {name: v for name, v in values.items() if v is not None and math.isfinite(v)}
