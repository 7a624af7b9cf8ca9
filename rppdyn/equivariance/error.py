"""The sampled equivariance error (Eq. 3.3 of the residual-pathway work), over sampled elements and by generator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Inexact
from torch import Tensor

from rppdyn.equivariance.lie import check_arguments, lie_derivative
from rppdyn.reps import Rep
from rppdyn.runs.statistics import bootstrap_interval

FLOOR = 1e-8
"""Outputs smaller than this share of the outputs' root mean square say nothing about symmetry."""


@dataclass(frozen=True)
class EquivarianceError:
    """What :func:`equivariance_error` measured; errors are between 0 (equivariant) and 1.

    Attributes:
        mean: over inputs and sampled elements; nan if every comparison is vacuous.
        per_input: ``(batch,)``, the mean over sampled elements at each input; nan where all are vacuous.
        interval: bootstrap interval of the mean over inputs, 95 %.
        per_generator: one value for each discrete generator (``h0``, ...: Eq. 3.3) and each generator of the Lie algebra
            (``A0``, ...: ``|L_i f| / 2|f|``, the error per unit of the generator as it tends to the identity).
        vacuous: share of the comparisons in which both sides are zero, and which are left out.
    """

    mean: float
    per_input: Float[Tensor, "batch"]
    interval: tuple[float, float]
    per_generator: dict[str, float]
    vacuous: float

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


@torch.no_grad()
def equivariance_error(
    f: Callable[[Tensor], Tensor],
    rep_in: Rep,
    rep_out: Rep,
    x: Inexact[Tensor, "batch dim_in"],
    *,
    n_samples: int = 8,
    generator: torch.Generator | None = None,
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
    Raises:
        ValueError: the representations belong to different groups, sizes don't match, there are no inputs or no samples.
    Source: Finzi, Benton & Wilson 2021, Eq. 3.3 of Finzi 2023.
    """
    check_arguments(rep_in, rep_out, x)
    if x.ndim != 2 or not len(x):
        raise ValueError(f"x has shape {tuple(x.shape)}; give at least one input, as (batch, {rep_in.dim})")
    if n_samples < 1:
        raise ValueError(f"n_samples={n_samples}: give at least one group element for each input")
    G = rep_in.G
    y = f(x)
    if y.shape != (len(x), rep_out.dim):
        raise ValueError(f"f(x) has shape {tuple(y.shape)}; rep_out ({rep_out}) asks for {(len(x), rep_out.dim)}")
    floor = FLOOR * float(y.abs().square().mean().sqrt()) * rep_out.dim**0.5

    def compare(g: Tensor) -> Tensor:  # g (batch, d, d) or (1, d, d)
        image = (rep_out.rho(g).to(y) @ y[..., None])[..., 0]
        return relative_difference(image, f((rep_in.rho(g).to(x) @ x[..., None])[..., 0]), floor)

    if G.order is not None and G.order - 1 <= n_samples:
        errors = [compare(g[None]) for g in (G.elements()[1:] if G.order > 1 else G.elements())]
    else:
        generator = generator if generator is not None else torch.Generator().manual_seed(0)
        errors = [compare(G.samples(len(x), generator)) for _ in range(n_samples)]
    errors = torch.stack(errors)
    per_input = errors.nanmean(0)
    valid = per_input[~per_input.isnan()].double().cpu().numpy()
    interval = bootstrap_interval(valid, statistic=np.mean) if len(valid) else (np.nan, np.nan)

    per_generator = {f"h{k}": float(compare(h[None]).nanmean()) for k, h in enumerate(G.discrete_generators)}
    size = torch.linalg.vector_norm(y, dim=-1)
    for i, derivative in enumerate(lie_derivative(f, rep_in, rep_out, x) if len(G.lie_algebra) else []):
        ratio = torch.linalg.vector_norm(derivative, dim=-1) / (2 * size)
        per_generator[f"A{i}"] = float(torch.where(size > floor, ratio, torch.nan).nanmean())
    return EquivarianceError(
        mean=float(per_input.nanmean()),
        per_input=per_input,
        interval=(float(interval[0]), float(interval[1])),
        per_generator=per_generator,
        vacuous=float(errors.isnan().double().mean()),
    )
