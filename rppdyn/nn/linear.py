"""The relaxed linear layer: an equivariant and a free pathway, summed."""

from __future__ import annotations

import math
from typing import Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from rppdyn.groups import Group
from rppdyn.nn.dense import DensePathway
from rppdyn.nn.pathways import AffineMap, EquivariantPathway, FreePathway, LinearPathway, prior_unit
from rppdyn.reps import Rep, RepType

__all__ = ["RelaxedLinear", "FREE_SCALE", "PARAMETRISATIONS", "Parametrisation", "bind"]

Parametrisation = Literal["pathways", "dense"]
PARAMETRISATIONS = get_args(Parametrisation)

FREE_SCALE = 1e-3
"""Initial size of the free pathway relative to a layer of its own, where there is an equivariant one (as published)."""


def check_size(x: Tensor, rep: Rep) -> None:
    """Refuse features of another size than a representation's.

    Raises:
        ValueError: naming both.
    """
    if x.shape[-1:] != (rep.dim,):
        raise ValueError(
            f"inputs of shape {tuple(x.shape)}: the last axis must have {rep.dim} entries, which transform as "
            f"{rep} of {rep.G}"
        )


def bind(rep: Rep | RepType, group: Group | None) -> Rep:
    """``rep`` as a representation of ``group``: types are bound to it, representations of a factor lifted to it.

    Raises:
        ValueError: the representation belongs to another group, or has no coordinates, the group is complex, or there is
            none to bind to.
    """
    if isinstance(rep, RepType):
        if group is None:
            raise ValueError(f"{rep} is not bound to a group: give group=..., or call it with one")
        rep = rep(group)
    if not isinstance(rep, Rep):
        raise ValueError(f"{rep!r} is no representation; build one from V, T, Scalar, Pseudoscalar, Rep or regular(G)")
    group = rep.G if group is None else group
    if group.is_complex or rep.dtype.is_complex:
        raise ValueError(
            f"networks are real and {group} is complex: write it as a real group on twice the dimensions, "
            "[[Re A, -Im A], [Im A, Re A]]"
        )
    if rep.dim == 0:
        raise ValueError(f"{rep} has no coordinates, of which nothing can be a function: leave it out")
    return rep if rep.G == group else rep.lift(group)


class RelaxedLinear(nn.Module):
    r"""``y = (A + B) x + a + b`` with ``A, a`` equivariant and ``B, b`` free, each with its own Gaussian prior.

    :math:`\mathrm{vec}(A) = Q\beta`, :math:`\beta \sim N(0, \sigma_a^2)` and :math:`B \sim N(0, \sigma_b^2)`, so that the
    dense weight has covariance :math:`(\sigma_a^2 + \sigma_b^2) QQ^T + \sigma_b^2 PP^T` (Finzi 2023, Eq. 3.1); biases
    likewise. A variance of 0 leaves the pathway out: without the free one the layer is exactly equivariant, without the
    equivariant one it is an ordinary linear layer.

    The equivariant pathway starts with outputs of variance ``gain^2`` for inputs of unit mean square; the free one is an
    independent draw of ``free_scale`` times that size (the published code starts one of its backends from the same draw),
    or of full size where it is alone.

    ``parametrisation="dense"`` starts from the same weights and stores their sum under its own prior
    (:class:`~rppdyn.nn.dense.DensePathway`), in the place of both pathways.

    Args:
        rep_in, rep_out: representations, or types to bind to ``group``; those of a factor of it are lifted.
        group: needed only where neither representation is bound.
        equivariant_variance, free_variance: :math:`\sigma_a^2` and :math:`\sigma_b^2`.
        gain: multiplies the initial weights of both pathways.
        parametrisation: "pathways", or "dense" for one weight.
        generator: source of the initial weights, the global one if None.
    Raises:
        ValueError: both variances are 0, or one of a dense weight; the representations do not belong to one group; a scale
            that is no number.
    """

    def __init__(
        self,
        rep_in: Rep | RepType,
        rep_out: Rep | RepType,
        group: Group | None = None,
        *,
        equivariant_variance: int | float = 1e5,
        free_variance: int | float = 1.0,
        bias: bool = True,
        gain: int | float = 1.0,
        free_scale: int | float = FREE_SCALE,
        parametrisation: Parametrisation = "pathways",
        generator: torch.Generator | None = None,
    ):
        super().__init__()
        if group is None:
            group = next((rep.G for rep in (rep_in, rep_out) if isinstance(rep, Rep)), None)
        self.rep_in, self.rep_out = bind(rep_in, group), bind(rep_out, group)
        for name, scale in (("gain", gain), ("free_scale", free_scale)):
            if not math.isfinite(scale):
                raise ValueError(f"{name}={scale!r}: give a number")
        if equivariant_variance == 0 and free_variance == 0:
            raise ValueError("equivariant_variance and free_variance are both 0, which leaves no pathway: raise one")
        if parametrisation not in PARAMETRISATIONS:
            raise ValueError(f"parametrisation={parametrisation!r}: choose one of {', '.join(PARAMETRISATIONS)}")
        if parametrisation == "dense" and not (equivariant_variance and free_variance):
            zero = "free_variance" if equivariant_variance else "equivariant_variance"
            raise ValueError(
                f"{zero}=0 with parametrisation='dense': the prior of a sum needs both pathways; use 'pathways', where 0 "
                "leaves one out"
            )
        equivariant = free = dense = None
        if equivariant_variance != 0:
            equivariant = EquivariantPathway(
                self.rep_in, self.rep_out, equivariant_variance, bias=bias, gain=gain, generator=generator
            )
        if free_variance != 0:
            alone = equivariant is None
            free = FreePathway(
                self.rep_in.dim,
                self.rep_out.dim,
                free_variance,
                bias=bias,
                gain=gain if alone else gain * free_scale,
                unit=None if alone else prior_unit(free_variance, self.rep_in.dim),
                generator=generator,
            )
            free.is_free = not alone
            if equivariant is not None:
                equivariant.within = "free"
        if parametrisation == "dense" and equivariant is not None and free is not None:
            dense = DensePathway(equivariant, free)
            equivariant = free = None
        self.equivariant, self.free, self.dense = equivariant, free, dense

    @property
    def linear_pathways(self) -> tuple[LinearPathway, ...]:
        """The pathways that exist, the equivariant one first."""
        return tuple(p for p in (self.equivariant, self.free, self.dense) if p is not None)

    def assemble(self) -> AffineMap:
        """The dense weight and bias, summed over the pathways."""
        *others, last = self.linear_pathways
        total = last.dense()
        for pathway in reversed(others):
            total = pathway.dense(total)
        return total

    def forward(self, x: Float[Tensor, "*batch in"], weights: AffineMap | None = None) -> Float[Tensor, "*batch out"]:
        """``x W^T + b``, with weights assembled here or before."""
        return F.linear(x, *(self.assemble() if weights is None else weights))

    def extra_repr(self) -> str:
        return f"{self.rep_in} -> {self.rep_out}"
