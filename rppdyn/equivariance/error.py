"""The sampled equivariance error (Eq. 3.3 of the residual-pathway work), over sampled elements and by generator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Inexact
from torch import Tensor

from rppdyn.equivariance.actions import act, check_actions, check_finite, generator_names
from rppdyn.equivariance.lie import lie_derivative
from rppdyn.groups import Group
from rppdyn.reps import Rep
from rppdyn.runs.statistics import bootstrap_interval

__all__ = [
    "EquivarianceError",
    "Summary",
    "check_inputs",
    "differences",
    "equivariance_error",
    "geometric_mean",
    "relative_difference",
    "sampled_elements",
    "summarise",
]

FLOOR = 1e-8
"""Outputs smaller than this share of the outputs' root mean square say nothing about symmetry."""

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


@dataclass(frozen=True)
class Summary:
    """Statistics of errors over inputs; nan where every comparison is vacuous.

    Attributes:
        mean: arithmetic mean.
        geometric_mean: exp of the mean logarithm; an error below machine epsilon counts as epsilon.
        quantiles: ``{0.05: ..., 0.25: ..., 0.5: ..., 0.75: ..., 0.95: ...}``.
        interval: percentile bootstrap interval of the mean, 95 %.
        per_input: ``(batch,)``, the errors summarised; nan where vacuous.
    """

    mean: float
    geometric_mean: float
    quantiles: dict[float, float]
    interval: tuple[float, float]
    per_input: Float[Tensor, " batch"]


@dataclass(frozen=True)
class EquivarianceError(Summary):
    """What :func:`equivariance_error` measured; errors are between 0 (equivariant) and 1.

    The statistics are those of the mean over sampled elements at each input.

    Attributes:
        generators: the same statistics for each discrete generator (``h0``, ...: Eq. 3.3) and each generator of the Lie
            algebra (``A0``, ...: ``|L_i f| / 2|f|``, the error per unit of the generator as it tends to the identity).
        vacuous: share of the comparisons in which both sides are zero, and which are left out.
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
    """``|a - b| / (|a| + |b|)`` along the last axis; nan where the denominator is at most ``floor``, that is vacuous."""
    size = torch.linalg.vector_norm(a, dim=-1) + torch.linalg.vector_norm(b, dim=-1)
    return torch.where(size > floor, torch.linalg.vector_norm(a - b, dim=-1) / size, torch.nan)


def differences(a: Inexact[Tensor, "*batch n"], b: Inexact[Tensor, "*batch n"]) -> Float[Tensor, "2 *batch n"]:
    """``|a - b|`` and ``|a| + |b|``, entry by entry, in float64.

    The ratio of their sums, over any axes, is Eq. 3.3 with sums before the ratio: a single entry passes through zero, and a
    mean of ratios would be made of such moments.
    """
    return torch.stack([(a - b).abs(), a.abs() + b.abs()]).double().cpu()


def geometric_mean(errors: Float[Tensor, "*any"], dim: int = 0) -> Float[Tensor, "*fewer"]:
    """Along one axis, without vacuous entries; what is below machine epsilon counts as epsilon, so no zero annihilates it."""
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


def sampled_elements(
    G: Group,
    inputs: int,
    n_samples: int,
    generator: torch.Generator | None = None,
    elements: Sequence[Tensor] | None = None,
) -> list[Inexact[Tensor, "batch d d"]]:
    """``n_samples`` random elements for each input, ``(inputs, d, d)`` each; from seed 0 if no generator is given.

    For a finite group of at most ``n_samples`` elements beside the identity, all of these instead, ``(1, d, d)`` each; and
    where ``elements`` are given, those.

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
    return [G.samples(inputs, generator) for _ in range(n_samples)]


def check_inputs(f: Callable[[Tensor], Tensor], rep_in: Rep, rep_out: Rep, x: Tensor) -> Tensor:
    """``f(x)``, once the shapes of input and output agree with the representations."""
    check_actions(rep_in, rep_out, x)
    if x.ndim != 2 or not len(x):
        raise ValueError(f"x has shape {tuple(x.shape)}; give at least one input, as (batch, {rep_in.dim})")
    y = f(x.clone())  # a function may write into what it is given, here and wherever it is called
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
    r"""How far a function is from equivariant.

    .. math:: \frac{|\rho_{out}(g) f(x) - f(\rho_{in}(g) x)|}{|\rho_{out}(g) f(x)| + |f(\rho_{in}(g) x)|}

    over inputs ``x`` and ``n_samples`` random elements ``g`` for each, and again for each generator apart. Comparisons
    in which both sides are zero are vacuous: they are left out and counted, because a function that is zero is
    equivariant without having learned anything.

    Args:
        f: maps ``(batch, dim_in)`` to ``(batch, dim_out)``; any callable.
        x: ``(batch, dim_in)``.
        n_samples: group elements for each input. For a finite group of at most that many elements, all but the identity
            are used instead.
        generator: of the random elements; seed 0 if not given.
        elements: group elements ``(d, d)`` to use for every input in place of random ones: a few for all inputs cost less
            where the image of an element is dear (a continuous symmetry of a robot, say).
    Raises:
        ValueError: the representations belong to different groups, sizes don't match, there are no inputs or no samples,
            or an output is not finite.
    Source: Finzi, Benton & Wilson 2021, Eq. 3.3 of Finzi 2023.
    """
    y = check_inputs(f, rep_in, rep_out, x)
    G = rep_in.G
    floor = FLOOR * float(y.abs().square().mean().sqrt()) * rep_out.dim**0.5

    def compare(g: Tensor) -> Tensor:
        moved = f(act(rep_in, g, x))
        check_finite(moved, "f(g x)")
        return relative_difference(act(rep_out, g, y), moved, floor)

    errors = torch.stack([compare(g) for g in sampled_elements(G, len(x), n_samples, generator, elements)])
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
