r"""The equivariance error (Finzi 2023, Eq. 3.3): over sampled elements, by generator, and along rollouts of a dynamics model.

The pooled ratio by generator takes sums over inputs and entries first,

.. math:: \frac{\sum |f(g x_i) - g f(x_i)|}{\sum (|f(g x_i)| + |g f(x_i)|)}.

Inputs at which a function is almost zero then have no weight; a mean of ratios would give their rounding errors full weight.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Inexact
from numpy.typing import NDArray
from torch import Tensor, nn

from rppdyn.equivariance._lie import act, check_actions, check_finite, generator_names, lie_derivative, real_matrices
from rppdyn.groups import Group
from rppdyn.nn import RPPEMLP
from rppdyn.reps import Rep
from rppdyn.runs.statistics import bootstrap_interval

VACUOUS_SHARE = 1e-8
"""Size of outputs, as a share of their root mean square, below which a comparison is vacuous."""

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


@dataclass(frozen=True)
class Summary:
    """Statistics of errors over inputs; nan if every comparison is vacuous.

    Attributes:
        mean: arithmetic mean.
        geometric_mean: exp of the mean logarithm; an error below machine epsilon counts as epsilon.
        quantiles: ``{0.05: ..., 0.25: ..., 0.5: ..., 0.75: ..., 0.95: ...}``.
        interval: percentile bootstrap interval of the mean, 95 %.
        per_input: ``(batch,)``, the errors themselves; nan where vacuous.
    """

    mean: float
    geometric_mean: float
    quantiles: dict[float, float]
    interval: tuple[float, float]
    per_input: Float[Tensor, " batch"]


@dataclass(frozen=True)
class EquivarianceError(Summary):
    """The result of :func:`equivariance_error`; errors are between 0 (equivariant) and 1.

    Statistics are over inputs; the error at an input is the mean over the sampled elements.

    Attributes:
        generators: the same statistics for each discrete generator (``h0``, ...: Eq. 3.3) and each generator of the Lie
            algebra (``A0``, ...: ``|L_i f| / 2|f|``, the error per unit of the generator as it tends to the identity).
        vacuous: share of the comparisons in which both sides are zero; they are left out.
    """

    generators: dict[str, Summary]
    vacuous: float

    @property
    def per_generator(self) -> dict[str, float]:
        """The mean error for each generator."""
        return {name: summary.mean for name, summary in self.generators.items()}

    def __repr__(self) -> str:
        note = f", vacuous {self.vacuous:.0%}" if self.vacuous else ""
        generators = ", ".join(f"{name} {value:.2e}" for name, value in self.per_generator.items())
        low, high = self.interval
        return f"EquivarianceError(mean {self.mean:.2e} in [{low:.2e}, {high:.2e}]; {generators}{note})"


def relative_difference(
    a: Inexact[Tensor, "*batch n"], b: Inexact[Tensor, "*batch n"], floor: float = 0.0
) -> Inexact[Tensor, "*batch"]:
    """``|a - b| / (|a| + |b|)`` along the last axis; nan (vacuous) where the denominator is at most ``floor``."""
    size = torch.linalg.vector_norm(a, dim=-1) + torch.linalg.vector_norm(b, dim=-1)
    return torch.where(size > floor, torch.linalg.vector_norm(a - b, dim=-1) / size, torch.nan)


def differences(a: Inexact[Tensor, "*batch n"], b: Inexact[Tensor, "*batch n"]) -> Float[Tensor, "2 *batch n"]:
    """``|a - b|`` and ``|a| + |b|``, entry by entry, in float64.

    The ratio of their sums, over any axes, is Eq. 3.3 with sums before the ratio. (A mean of ratios would be dominated by
    entries that pass through zero.)
    """
    return torch.stack([(a - b).abs(), a.abs() + b.abs()]).double().cpu()


def geometric_mean(errors: Float[Tensor, "*any"], dim: int = 0) -> Float[Tensor, "*fewer"]:
    """The geometric mean along one axis without nan; entries below machine epsilon count as epsilon."""
    return errors.clamp_min(torch.finfo(errors.dtype).eps).log().nanmean(dim).exp()


def summarise(per_input: Float[Tensor, " batch"]) -> Summary:
    """Mean, geometric mean, quantiles and bootstrap interval of the errors at each input."""
    valid = per_input[~per_input.isnan()].double().cpu()
    if not len(valid):
        return Summary(np.nan, np.nan, dict.fromkeys(QUANTILES, np.nan), (np.nan, np.nan), per_input)
    low, high = bootstrap_interval(valid.numpy(), statistic=np.mean)
    eps = torch.finfo(per_input.dtype).eps
    return Summary(
        mean=float(valid.mean()),
        geometric_mean=float(geometric_mean(valid.clamp_min(eps))),
        quantiles={q: float(v) for q, v in zip(QUANTILES, np.quantile(valid.numpy(), QUANTILES), strict=True)},
        interval=(float(low), float(high)),
        per_input=per_input,
    )


def sample_elements(
    G: Group,
    inputs: int,
    n_samples: int,
    generator: torch.Generator | None = None,
    elements: Sequence[Tensor] | None = None,
) -> list[Inexact[Tensor, "batch d d"]]:
    """Draw ``n_samples`` random elements for each input, ``(inputs, d, d)`` each; from seed 0 if no generator is given.

    Of a finite group not the identity, whose error is 0. Given ``elements`` are returned instead, ``(1, d, d)`` each; and so
    are all others of a finite group, if they are at most ``n_samples``.

    Raises:
        ValueError: no samples.
    """
    if elements is not None:
        if not len(elements):
            raise ValueError("elements is empty: give at least one group element, or leave it out")
        return [torch.as_tensor(g, dtype=G.dtype).reshape(1, G.d, G.d) for g in elements]
    if n_samples < 1:
        raise ValueError(f"n_samples={n_samples}: give at least one group element for each input")
    if G.order is not None and G.order - 1 <= n_samples:
        return [g[None] for g in (G.elements()[1:] if G.order > 1 else G.elements())]
    generator = generator if generator is not None else torch.Generator().manual_seed(0)
    if G.order is not None:
        others = G.elements()[1:]
        return [others[torch.randint(len(others), (inputs,), generator=generator)] for _ in range(n_samples)]
    return [G.samples(inputs, generator) for _ in range(n_samples)]


def check_inputs(f: Callable[[Tensor], Tensor], rep_in: Rep, rep_out: Rep, x: Tensor) -> Tensor:
    """Check that the shapes of input and output agree with the representations; returns ``f(x)``."""
    check_actions(rep_in, rep_out, x)
    if x.ndim != 2 or not len(x):
        raise ValueError(f"x has shape {tuple(x.shape)}; give at least one input, as (batch, {rep_in.dim})")
    y = f(x.clone())  # a clone, since a function may write into its argument
    if y.shape != (len(x), rep_out.dim):
        raise ValueError(f"f(x) has shape {tuple(y.shape)}; rep_out ({rep_out}) asks for {(len(x), rep_out.dim)}")
    check_finite(y, "f(x)")
    return y


@torch.no_grad()
def equivariance_error(
    f: Callable[[Tensor], Tensor],
    rep_in: Rep,
    rep_out: Rep,
    x: Inexact[Tensor, "batch dim_in"],
    *,
    n_samples: int = 8,
    generator: torch.Generator | None = None,
    elements: Sequence[Tensor] | None = None,
) -> EquivarianceError:
    r"""Measure the distance of a function from equivariance.

    .. math:: \frac{|\rho_{out}(g) f(x) - f(\rho_{in}(g) x)|}{|\rho_{out}(g) f(x)| + |f(\rho_{in}(g) x)|}

    over inputs ``x`` and ``n_samples`` random elements ``g`` for each, and separately for each generator. Comparisons
    in which both sides are zero are vacuous: they are left out and counted, since the zero function is equivariant without
    having learned anything.

    Args:
        f: maps ``(batch, dim_in)`` to ``(batch, dim_out)``; any callable.
        x: ``(batch, dim_in)``.
        n_samples: number of group elements for each input. If a finite group has at most as many beside the identity, all of
            these are used instead.
        generator: generator of the random elements; seed 0 if not given.
        elements: group elements ``(d, d)`` to use for every input instead of random ones; faster where images are expensive
            (under a continuous symmetry of a robot, say).
    Raises:
        ValueError: the representations belong to different groups, sizes don't match, there are no inputs or no samples,
            or an output is not finite.
    Source: Finzi, Benton & Wilson 2021, Eq. 3.3 of Finzi 2023.
    """
    y = check_inputs(f, rep_in, rep_out, x)
    G = rep_in.G
    floor = VACUOUS_SHARE * float(y.abs().square().mean().sqrt()) * rep_out.dim**0.5

    def compare(g: Tensor) -> Tensor:
        image = f(act(rep_in, g, x))
        check_finite(image, "f(g x)")
        return relative_difference(act(rep_out, g, y), image, floor)

    errors = torch.stack([compare(g) for g in sample_elements(G, len(x), n_samples, generator, elements)])
    names = generator_names(rep_in, "discrete")
    generators = {name: compare(h[None]) for name, h in zip(names, G.discrete_generators, strict=True)}
    size = torch.linalg.vector_norm(y, dim=-1)
    for name, vector in zip(generator_names(rep_in), lie_derivative(f, rep_in, rep_out, x), strict=True):
        ratio = torch.linalg.vector_norm(vector, dim=-1) / (2 * size)
        generators[name] = torch.where(size > floor, ratio, torch.nan)
    return EquivarianceError(
        **vars(summarise(errors.nanmean(0))),
        generators={name: summarise(values) for name, values in generators.items()},
        vacuous=float(errors.isnan().double().mean()),
    )


# -- the equivariance error with sums taken before the ratio, by generator -----------------------------------------------------


POOLED_FLOOR = 1e-6
"""Root mean square of the output, relative to its unit of size, below which an error is vacuous."""

MEASURED_ANGLES = (0.7, 1.9, 3.1, -1.3)
"""Angles, in radians, at which a continuous symmetry is applied; none is a symmetry of a polygon."""


def elements_by_generator(group: Group, names: Sequence[str]) -> dict[str, list[Inexact[Tensor, "d d"]]]:
    """Elements by the generators' names: the discrete ones themselves, then each continuous one at `MEASURED_ANGLES`."""
    discrete = [[h] for h in group.discrete_generators]
    continuous = [[torch.linalg.matrix_exp(t * A) for t in MEASURED_ANGLES] for A in group.lie_algebra]
    return dict(zip(names, [*discrete, *continuous], strict=True))


def pooled_sums(pairs: Iterable[tuple[Inexact[Tensor, "n k"], Inexact[Tensor, "n k"]]]) -> Float[Tensor, "n 2"]:
    """Sums over entries, and means over pairs ``a, b``, of ``|a - b|`` and of ``|a| + |b|``, for each input."""
    return torch.stack([differences(a, b).sum(-1).mT for a, b in pairs]).mean(0)


def pooled_ratio(sums: NDArray, axis: int = 0) -> NDArray:
    """The ratio of sums ``(..., n, ..., 2)`` over the axis of inputs; 0 where nothing is compared."""
    difference, size = np.moveaxis(sums.sum(axis), -1, 0)
    return np.divide(difference, size, out=np.zeros_like(size), where=size > 0)


# -- on which entries of input and output a symmetry is broken -----------------------------------------------------------------


ROUNDING_EPSILONS = 100
"""Errors below this many machine epsilons of the output are rounding."""

Blocks = Sequence[str] | Mapping[str, Sequence[int]]
"""One name per entry (as a symmetry spec's ``feature_names``, ``action_names``), or the indices of each named block."""


@torch.no_grad()
def error_by_output(
    f: Callable[[Tensor], Tensor],
    rep_in: Rep,
    rep_out: Rep,
    x: Inexact[Tensor, "batch dim_in"],
    blocks: Blocks,
    *,
    n_samples: int = 8,
    generator: torch.Generator | None = None,
    elements: Sequence[Tensor] | None = None,
) -> dict[str, float]:
    r"""The error of each block of the output, 0 (equivariant) to 1.

    .. math:: \sum |a_k - b_k| / \sum (|a_k| + |b_k|), \quad a = \rho_{out}(g) f(x), b = f(\rho_{in}(g) x)

    where sums are over inputs, elements and the entries k of the block. A block that stays zero is nan: vacuous.
    ``elements`` may be given as for :func:`equivariance_error`.

    Raises:
        ValueError: names that are not one per entry, or indices out of range; or as :func:`equivariance_error`.
    """
    y = check_inputs(f, rep_in, rep_out, x)
    indices = _indices(blocks, rep_out, "output")
    sums = torch.zeros(2, rep_out.dim, dtype=torch.float64)
    for g in sample_elements(rep_in.G, len(x), n_samples, generator, elements):
        image = f(act(rep_in, g, x))
        check_finite(image, "f(g x)")
        sums += differences(act(rep_out, g, y), image).sum(1)
    difference, size = sums
    floor = VACUOUS_SHARE * float(size.mean())
    parts = {name: (float(difference[i].sum()), float(size[i].sum())) for name, i in indices.items()}
    return {name: d / s if s > floor * len(indices[name]) else float("nan") for name, (d, s) in parts.items()}


@torch.no_grad()
def error_by_input(
    f: Callable[[Tensor], Tensor],
    rep_in: Rep,
    rep_out: Rep,
    x: Inexact[Tensor, "batch dim_in"],
    blocks: Blocks,
    *,
    n_samples: int = 8,
    generator: torch.Generator | None = None,
    elements: Sequence[Tensor] | None = None,
) -> dict[str, float]:
    r"""The share of the error that vanishes when a block of the input is fixed at a symmetric value.

    The value is the mean over inputs, projected onto the invariants. The group must act on the block alone, so a block is first
    completed by all entries that the group mixes with it (the left leg's by the right leg's); blocks that become equal are
    reported as one, named ``a, b``. 1 means that the error comes from this block alone, 0 that the block does not matter, less
    than 0 that its variation hides an error. Blocks may act together, so shares need not add up to 1. All are nan if the error
    is rounding.

    Raises:
        ValueError: as :func:`error_by_output`.
    """
    y = check_inputs(f, rep_in, rep_out, x)
    elements = sample_elements(rep_in.G, len(x), n_samples, generator, elements)
    actions = [(_action(rep_in, g, x), _action(rep_out, g, y)) for g in elements]

    def error(inputs: Tensor) -> float:
        outputs = f(inputs.clone())
        pairs = ((act_out(outputs), f(act_in(inputs))) for act_in, act_out in actions)
        return sum(float(torch.linalg.vector_norm((a - b).double(), dim=-1).sum()) for a, b in pairs)

    neutral = rep_in.solve().project(x.mean(0).to(rep_in.dtype).cpu()).to(x)
    component = rep_in.components
    names: dict[tuple[int, ...], list[str]] = {}
    for name, index in _indices(blocks, rep_in, "input").items():
        completed = torch.isin(component, component[index].unique()).nonzero()[:, 0]
        names.setdefault(tuple(completed.tolist()), []).append(name)
    total, shares = error(x), {}
    size = len(elements) * float(torch.linalg.vector_norm(y, dim=-1).sum())
    rounding = ROUNDING_EPSILONS * torch.finfo(y.dtype).eps * size
    for entries, group in names.items():
        fixed = x.clone()
        fixed[:, list(entries)] = neutral[list(entries)]
        shares[", ".join(group)] = float("nan") if total <= rounding else 1 - error(fixed) / total
    return shares


def _action(rep: Rep, g: Tensor, like: Tensor) -> Callable[[Tensor], Tensor]:
    """The action of elements on vectors ``like`` some; the matrix of a single element for all inputs is computed once."""
    if len(g) > 1:
        return lambda x: act(rep, g, x)
    matrix = real_matrices(like, rep.rho(g[0].to(rep.G.dtype)), rep).mT
    return lambda x: x @ matrix.to(x)


def _indices(blocks: Blocks, rep: Rep, side: str) -> dict[str, Tensor]:
    if isinstance(blocks, Mapping):
        indices = {name: torch.as_tensor(list(index), dtype=torch.int64) for name, index in blocks.items()}
    elif len(blocks) != rep.dim or len(set(blocks)) != len(blocks):
        raise ValueError(f"{len(set(blocks))} different names for an {side} of {rep.dim} entries: give one for each")
    else:
        indices = {name: torch.tensor([i]) for i, name in enumerate(blocks)}
    for name, index in indices.items():
        if not len(index) or index.min() < 0 or index.max() >= rep.dim:
            raise ValueError(f"block {name!r} has indices {index.tolist()} of an {side} of {rep.dim} entries")
    return indices


@dataclass(frozen=True)
class RolloutError:
    """Relative differences between a transformed rollout and the rollout from the transformed state.

    Attributes:
        errors: ``(samples, horizon, batch)``, without the initial state, where the error is zero.
        left_out: number of trajectories that are left out because they, or one of their images, diverged. If all are left out,
            every statistic is nan.
    """

    errors: Float[Tensor, "samples horizon batch"]
    left_out: int = 0

    @property
    def per_step(self) -> Float[Tensor, " horizon"]:
        """The geometric mean over elements and trajectories after 1, 2, ... steps."""
        return geometric_mean(self.errors.transpose(1, 2).flatten(0, 1))

    def over(self, horizon: int | None = None) -> Summary:
        """Statistics over trajectories of the geometric mean over the first steps, all of them by default (as Table 3.3)."""
        horizon = self.errors.shape[1] if horizon is None else horizon
        if not 1 <= horizon <= self.errors.shape[1]:
            raise ValueError(f"horizon={horizon}: the rollouts have 1 to {self.errors.shape[1]} steps")
        return summarise(geometric_mean(self.errors[:, :horizon], 1).nanmean(0))

    def __repr__(self) -> str:
        summary = self.over()
        low, high = summary.interval
        return f"RolloutError(mean {summary.mean:.2e} in [{low:.2e}, {high:.2e}] over {self.errors.shape[1]} steps)"


@torch.no_grad()
def rollout_equivariance_error(
    step: Callable[..., Tensor],
    rep_state: Rep,
    x: Inexact[Tensor, "batch dim"],
    horizon: int,
    *,
    controls: Inexact[Tensor, "horizon batch dim_control"] | None = None,
    rep_control: Rep | None = None,
    n_samples: int = 4,
    generator: torch.Generator | None = None,
) -> RolloutError:
    r"""The relative difference of :math:`\rho(g) x_t` and :math:`x'_t`, where x' starts from :math:`\rho(g) x_0`.

    Errors of single steps add up along a rollout, and grow if the dynamics is chaotic; so the mean over the horizon is
    geometric. Step 0, at which both agree, is left out (the published code counts it, at 1e-7).

    Args:
        step: ``state -> next state``, or ``state, control -> next state`` with controls; for an ODE, its flow over one time
            step.
        x: initial states.
        controls: the same for both rollouts, transformed by ``rep_control`` for the second one.
        n_samples: group elements for each trajectory, as for :func:`equivariance_error`.
    Raises:
        ValueError: sizes or groups don't match, or a state is not finite.
    Source: Finzi 2023, Table 3.3, last row.
    """
    _check_states(rep_state, x)
    if horizon < 1:
        raise ValueError(f"horizon={horizon}: give at least one step")
    if (controls is None) != (rep_control is None):
        raise ValueError("controls and rep_control belong together: give both or neither")
    if controls is not None and rep_control is not None:
        check_actions(rep_control, rep_state, controls)
        if controls.shape[:2] != (horizon, len(x)):
            raise ValueError(f"controls of shape {tuple(controls.shape)} for {horizon} steps of {len(x)} trajectories")

    def rollout(g: Tensor | None) -> Tensor:
        state, states = x if g is None else act(rep_state, g, x), []
        for t in range(horizon):
            if controls is None or rep_control is None:
                state = step(state)
            else:
                state = step(state, controls[t] if g is None else act(rep_control, g, controls[t]))
            check_finite(state, f"the state after {t + 1} steps")
            states.append(state)
        return torch.stack(states)

    states, errors = rollout(None), []
    for g in sample_elements(rep_state.G, len(x), n_samples, generator):
        errors.append(relative_difference(act(rep_state, g, states), rollout(g)))
    return RolloutError(torch.stack(errors))


@torch.no_grad()
def trajectory_equivariance_error(
    solve: Callable[[Tensor], Tensor],
    rep_state: Rep,
    x: Inexact[Tensor, "batch dim"],
    *,
    n_samples: int = 4,
    generator: torch.Generator | None = None,
) -> RolloutError:
    """:func:`rollout_equivariance_error` for a solver that returns whole trajectories, of an ODE above all.

    All rollouts are solved as one batch. A solver with adaptive steps then takes the same steps in each of them, and since a
    Runge-Kutta step commutes with linear maps, differences are the model's and not the solver's.

    Args:
        solve: initial states ``(n, dim)`` to ``(n, 1 + horizon, dim)``, the initial states first; a trajectory that diverged
            is nan from there on.
        x: initial states.
        n_samples: group elements for each trajectory, as for :func:`equivariance_error`.
    Raises:
        ValueError: sizes or groups don't match.
    """
    _check_states(rep_state, x)
    elements = sample_elements(rep_state.G, len(x), n_samples, generator)
    states = solve(torch.cat([x, *(act(rep_state, g, x) for g in elements)]))
    first, *images = states[:, 1:].transpose(0, 1).split(len(x), dim=1)  # (horizon, batch, dim) each
    finite = states.isfinite().flatten(1).all(1).reshape(-1, len(x)).all(0)
    pairs = zip(elements, images, strict=True)
    errors = torch.stack([relative_difference(act(rep_state, g, first), image) for g, image in pairs])
    return RolloutError(errors[..., finite], left_out=int((~finite).sum()))


def _check_states(rep_state: Rep, x: Tensor) -> None:
    if x.ndim != 2 or not len(x):
        raise ValueError(f"x has shape {tuple(x.shape)}; give at least one initial state, as (batch, {rep_state.dim})")
    check_actions(rep_state, rep_state, x)


# -- functions to be measured ------------------------------------------------------------------------------------------

Entries = Mapping[str, Sequence[int]]


class MeasuredNetwork(NamedTuple):
    """A network inside a function, with known hidden representations, and the map from the function's inputs to its own."""

    module: RPPEMLP
    inputs: Callable[[Tensor], Tensor]


class MeasuredRollout(NamedTuple):
    """A solver from initial states to trajectories (nan once diverged), the initial states of tests, and the times in s."""

    solve: Callable[[Tensor], Tensor]
    starts: Float[Tensor, "m dim"]
    times: Float[Tensor, " T"]


@dataclass(frozen=True)
class Function:
    """A function between spaces on which one group acts linearly.

    Attributes:
        name: "policy", "critics", "value", "regressor", "vector field", "change of the state" or "function".
        call: maps (n, rep_in.dim) to (n, rep_out.dim).
        inputs, outputs: names of the entries, with the indices of each.
        encode: maps raw observations and actions to inputs; a function of observations alone is called with empty actions. By
            default observations are the inputs.
        scale: the unit of size of each output; zero if unknown.
        centred: whether the mean output over the states is subtracted; a large constant would make anything look invariant.
        networks: the networks inside, by name.
        seed, samples, rollout: for a member of a fit, its seed, the inputs of its test data, and its rollouts if it has any.
    """

    name: str
    call: Callable[[Tensor], Tensor]
    rep_in: Rep
    rep_out: Rep
    inputs: Entries
    outputs: Entries
    encode: Callable[[Tensor, Tensor], Tensor] = lambda observations, actions: observations
    scale: Tensor = field(default_factory=partial(torch.zeros, 1))
    centred: bool = False
    networks: Mapping[str, MeasuredNetwork] = field(default_factory=dict)
    seed: int = 0
    samples: Float[Tensor, "N dim"] = field(default_factory=partial(torch.zeros, 0, 0))
    rollout: MeasuredRollout | None = None


def index_blocks(parts: Mapping[str, int]) -> dict[str, list[int]]:
    """Indices of the coordinates of each part, from the parts' sizes."""
    blocks, start = {}, 0
    for name, size in parts.items():
        blocks[name] = list(range(start, start + size))
        start += size
    return blocks


def measured_networks(
    name: str, module: nn.Module, inputs: Callable[[Tensor], Tensor], rep_in: Rep
) -> dict[str, MeasuredNetwork]:
    """``{name: network}`` for attribution to layers, if the module is a network for this representation; else empty."""
    return {name: MeasuredNetwork(module, inputs)} if isinstance(module, RPPEMLP) and module.rep_in == rep_in else {}
