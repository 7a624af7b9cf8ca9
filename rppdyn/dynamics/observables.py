"""What a rollout is judged by: its error, and how much of what ought to be conserved it loses."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from rppdyn.equivariance.error import relative_difference
from rppdyn.reps import Rep

__all__ = ["noether_momenta", "relative_drift", "rollout_error"]


def rollout_error(
    states: Float[Tensor, "*batch T n"], truth: Float[Tensor, "*batch T n"]
) -> Float[Tensor, "*batch T-1"]:
    r"""The relative error :math:`|z - \hat z| / (|z| + |\hat z|)` at each time but the first, at which both agree.

    Errors grow along a rollout, so they are averaged geometrically (:func:`~rppdyn.equivariance.error.geometric_mean`).

    Source: Finzi 2023, 2.7.2 and A.1.9 (whose published code counts the initial state).
    """
    return relative_difference(states[..., 1:, :], truth[..., 1:, :])


def relative_drift(values: Float[Tensor, "*batch T"]) -> Float[Tensor, "*batch T-1"]:
    r""":math:`|c(t) - c(0)| / (|c(t)| + |c(0)|)` at each time but the first, of what ought to stay as it is.

    It is nan of what is 0 at both times, which no relative number can be said of.
    """
    later = values[..., 1:, None]
    return relative_difference(later, values[..., :1, None].expand_as(later))


def noether_momenta(rep: Rep, z: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch D"]:
    r"""The momenta that belong to a group's continuous symmetries, :math:`\mu_i(q, p) = p^T d\rho(A_i)\,q`.

    A Hamiltonian that is invariant under :math:`q \to \rho(g) q,\ p \to \rho(g)^{-T} p` conserves them (Noether): each
    generates the flow :math:`\dot q = d\rho(A_i) q`. For rotations about the z axis acting on several points they are the z
    component of the angular momentum, :math:`\sum_k (x_k \times p_k)_z`.

    Args:
        rep: the representation of the positions ``q``.
        z: ``(q, p)``.
    Returns:
        one momentum for each generator of the Lie algebra, none for a discrete group.
    Raises:
        ValueError: the state is not twice as long as the representation.
    """
    if z.shape[-1] != 2 * rep.dim:
        raise ValueError(
            f"states of {z.shape[-1]} numbers, and positions of {rep.dim} ({rep}): momenta must be as many"
        )
    q, p = z.chunk(2, -1)
    return torch.einsum("...i,aij,...j->...a", p, rep.lie_generators.to(z), q)
