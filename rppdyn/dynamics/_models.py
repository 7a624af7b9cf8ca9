r"""Vector fields made of networks: Hamiltonian models and neural ODEs, over an MLP, an EMLP or an RPP-EMLP."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from rppdyn.equivariance._error import relative_difference
from rppdyn.nn import RPPEMLP, Ensemble
from rppdyn.nn._compiling import compiled
from rppdyn.reps import Rep, Scalar

MIN_INVERSE_MASS = 1e-3
"""Least eigenvalue of a mechanical model's inverse mass matrix."""


class DynamicsModel(nn.Module, ABC):
    """A vector field ``z -> dz/dt`` given by a network; all but :class:`DrivenModel` are autonomous.

    A rollout evaluates it many times with the same weights, so they are assembled once: ``weights = model.assemble()``,
    then ``model.vector_field(z, weights)``. Called as a module it takes ``(t, z)``, as torchdiffeq's solvers do; that is what
    :func:`~rppdyn.dynamics.integrate` calls, and what ``model.compile()`` compiles (training steps then take 0.4 to 0.9 of
    the time on a CPU).

    Args:
        net: a network of this package, a :class:`~rppdyn.nn.Ensemble` of them, or any module.
    """

    separable = False

    def __init__(self, net: nn.Module):
        super().__init__()
        self.net = net

    def assemble(self) -> Any:
        """The network's dense weights; None for a module without any to assemble."""
        assemble = getattr(self.net, "assemble", None)
        return None if assemble is None else assemble()

    @abstractmethod
    def vector_field(self, z: Float[Tensor, "*batch n"], weights: Any = None) -> Float[Tensor, "*batch n"]:
        """``dz/dt``; weights are assembled here unless they are given."""

    def forward(self, t: Any, z: Float[Tensor, "*batch n"], weights: Any = None) -> Float[Tensor, "*batch n"]:
        return self.vector_field(z, weights)

    def compile(self, **options: Any) -> None:
        """Compile calls of this model by ``torch.compile`` with these options."""
        self._compiled_call_impl = partial(compiled(type(self).forward, **options), self)

    def _apply_net(self, z: Tensor, weights: Any) -> Tensor:
        net: Any = self.net
        return net(z) if weights is None else net.apply(z, weights)


class NeuralODEModel(DynamicsModel):
    r"""``dz/dt = net(z)`` (Chen, Rubanova, Bettencourt & Duvenaud 2018).

    With representations of the same group on both sides it is equivariant where the network is.
    """

    def vector_field(self, z: Float[Tensor, "*batch n"], weights: Any = None) -> Float[Tensor, "*batch n"]:
        return self._apply_net(z, weights)


class HamiltonianModel(DynamicsModel):
    r"""``dz/dt = J grad H(z)``, ``z = (q, p)``, with ``H`` a network: :math:`\dot q = \partial H/\partial p`,
    :math:`\dot p = -\partial H/\partial q` (Greydanus, Dzamba & Yosinski 2019).

    ``H`` is conserved along exact solutions; where it is invariant under a continuous group that acts by ``rho(g)`` on ``q``
    and by its dual on ``p``, so are that group's :func:`~rppdyn.dynamics.noether_momenta`.

    Args:
        net: ``(*batch, 2 d) -> (*batch, 1)``.
        separable: promise that ``H = V(q) + T(p)``, which leapfrog needs; not inferred from a :class:`SeparableHamiltonian`.
    """

    def __init__(self, net: nn.Module, *, separable: bool = False):
        super().__init__(net)
        self.separable = separable

    def hamiltonian(self, z: Float[Tensor, "*batch n"], weights: Any = None) -> Float[Tensor, "*batch"]:
        """The model's energy of a state, up to an arbitrary constant.

        Raises:
            ValueError: the network's output is not one number per state, or the state's dimension is odd.
        """
        _halves(z)  # refuses an odd state
        H = self._apply_net(z, weights)
        if H.shape != (*z.shape[:-1], 1):
            raise ValueError(
                f"the Hamiltonian of {tuple(z.shape)} has shape {tuple(H.shape)}: it must be one number per state"
            )
        return H.squeeze(-1)

    def vector_field(self, z: Float[Tensor, "*batch n"], weights: Any = None) -> Float[Tensor, "*batch n"]:
        weights = self.assemble() if weights is None else weights
        if isinstance(self.net, RPPEMLP | Ensemble):
            gradient = self.net.gradient(z, weights)
        else:
            gradient = torch.func.grad(lambda z: self.hamiltonian(z, weights).sum())(z)
        dH_dq, dH_dp = _halves(gradient)
        return torch.cat([dH_dp, -dH_dq], -1)


class SeparableHamiltonian(nn.Module):
    """``H(q, p) = V(q) + T(p)`` of two networks, ``(*batch, d) -> (*batch, 1)`` each, whose weights each call assembles."""

    def __init__(self, potential: nn.Module, kinetic: nn.Module):
        super().__init__()
        self.potential, self.kinetic = potential, kinetic

    def forward(self, z: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch 1"]:
        q, p = z.chunk(2, -1)
        return self.potential(q) + self.kinetic(p)


class MechanicalModel(DynamicsModel):
    r"""Positions and velocities of a mechanical system whose mass matrix and potential a network learns.

    .. math:: H(q, p) = \tfrac12 p^\top W(q)\, p + V(q), \quad p = W(q)^{-1} \dot q, \quad W = (I + L)(I + L)^\top + 10^{-3} I

    with :math:`W` the inverse of the mass matrix and :math:`V, L` outputs of one network. Hamilton's equations in the measured
    coordinates are :math:`\ddot q = \dot W p - W \partial_q H`; momenta need not be known, and :math:`H` is conserved. With
    :math:`L` in ``rep * rep`` and an orthogonal ``rep`` of positions the field is as equivariant as the network.

    Args:
        net: ``(*batch, d) -> (*batch, 1 + d^2)``, see :meth:`rep_out`; calls refuse other sizes (ValueError), and odd states.
    """

    @staticmethod
    def rep_out(rep: Rep) -> Rep:
        """Representation of the network's output: the potential, and L, for positions in ``rep``.

        Raises:
            ValueError: the representation is not orthogonal, so that L L^T does not transform as the mass matrix.
        """
        if not rep.is_orthogonal:
            raise ValueError(
                f"{rep} of {rep.G} is not orthogonal: a learned mass matrix needs a representation that is"
            )
        return Scalar(rep.G) + rep * rep

    def energy(self, z: Float[Tensor, "*batch n"], weights: Any = None) -> Float[Tensor, "*batch"]:
        """H of positions and velocities, up to an arbitrary constant."""
        q, v = _halves(z)
        output = self._output(q, weights)
        return 0.5 * (v * _solve(self._inverse_mass(output)[1], v)).sum(-1) + output[..., 0]

    def vector_field(self, z: Float[Tensor, "*batch n"], weights: Any = None) -> Float[Tensor, "*batch n"]:
        q, v = _halves(z)
        output, pull_back = torch.func.vjp(partial(self._output, weights=weights), q)[:2]
        # J v is what u -> J^T u pulls v back to; forward mode takes 1.4 times as long and does not compile for ensembles
        dL_dt = self._matrix(torch.func.vjp(lambda u: pull_back(u)[0], torch.zeros_like(output))[1](v)[0])
        R, W = self._inverse_mass(output)
        p = _solve(W, v)
        a = _matvec(R.mT, p)
        # dW/dt p = (R R^T)' p = L' a + R L'^T p
        dW_dt_p = _matvec(dL_dt, a) + _matvec(R, _matvec(dL_dt.mT, p))
        # at constant p, H = |a|^2 / 2 + V + const., so that dH/dV = 1 and dH/dL = p a^T
        dH_dL = (p.unsqueeze(-1) * a.unsqueeze(-2)).flatten(-2)
        (dH_dq,) = pull_back(torch.cat([torch.ones_like(output[..., :1]), dH_dL], -1))
        return torch.cat([v, dW_dt_p - _matvec(W, dH_dq)], -1)

    def _output(self, q: Tensor, weights: Any) -> Tensor:
        """The network's output at positions: V, then the entries of L."""
        output, d = self._apply_net(q, weights), q.shape[-1]
        if output.shape[-1] != 1 + d**2:
            raise ValueError(f"a network with {output.shape[-1]} outputs for {d} positions: it must have 1 + {d}^2")
        return output

    @staticmethod
    def _matrix(output: Tensor) -> Tensor:
        d = math.isqrt(output.shape[-1] - 1)
        return output[..., 1:].unflatten(-1, (d, d))

    def _inverse_mass(self, output: Tensor) -> tuple[Tensor, Tensor]:
        """R = I + L, and W."""
        L = self._matrix(output)
        identity = torch.eye(L.shape[-1], dtype=output.dtype, device=output.device)
        R = L + identity
        return R, R @ R.mT + MIN_INVERSE_MASS * identity


def _halves(z: Tensor) -> tuple[Tensor, ...]:
    if z.shape[-1] % 2:
        raise ValueError(
            f"a state of {z.shape[-1]} numbers: positions and as many momenta or velocities make an even number"
        )
    return z.chunk(2, -1)


def _matvec(A: Float[Tensor, "*batch m n"], x: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch m"]:
    return (A * x.unsqueeze(-2)).sum(-1)


def _solve(W: Tensor, v: Tensor) -> Tensor:
    return torch.linalg.solve(W, v.unsqueeze(-1)).squeeze(-1)


class DrivenModel(DynamicsModel):
    r"""A vector field along recorded trajectories, with piecewise constant controls. Time s is measured in steps:

    .. math:: dz/ds = \Delta t_k\, f(z, u_k), \qquad k \le s < k + 1.

    Args:
        model: the vector field, a function of states followed by controls, if there are any.
        steps: durations of the steps, 0 after the end of a trajectory.
        controls: controls, constant during each step; the last axis is empty without controls.
    """

    steps: Tensor
    controls: Tensor

    def __init__(self, model: DynamicsModel, steps: Float[Tensor, "*batch T"], controls: Float[Tensor, "*batch T m"]):
        super().__init__(model.net)
        self.model = model
        self.register_buffer("steps", steps, persistent=False)
        self.register_buffer("controls", controls, persistent=False)

    def assemble(self) -> Any:
        return self.model.assemble()

    def vector_field(self, z: Float[Tensor, "*batch n"], weights: Any = None) -> Float[Tensor, "*batch n"]:
        """The vector field during the first step."""
        return self.forward(0.0, z, weights)

    def forward(self, t: Any, z: Float[Tensor, "*batch n"], weights: Any = None) -> Float[Tensor, "*batch n"]:
        k = min(int(t), self.steps.shape[-1] - 1)  # `integrate` moves both ends of a step into it (perturb=True)
        with_controls = torch.cat([z, self.controls[..., k, :]], -1) if self.controls.shape[-1] else z
        return self.steps[..., k, None] * self.model(t, with_controls, weights)


# -- quantities along rollouts -------------------------------------------------------------------------------------------


def rollout_error(
    states: Float[Tensor, "*batch T n"], truth: Float[Tensor, "*batch T n"]
) -> Float[Tensor, "*batch T-1"]:
    r"""The relative error :math:`|z - \hat z| / (|z| + |\hat z|)` at each time after the first, where both are equal.

    Average the result with :func:`~rppdyn.equivariance._error.geometric_mean`, since errors grow along a rollout.

    Source: Finzi 2023, 2.7.2 and A.1.9 (whose published code counts the initial state).
    """
    return relative_difference(states[..., 1:, :], truth[..., 1:, :])


def relative_drift(values: Float[Tensor, "*batch T"]) -> Float[Tensor, "*batch T-1"]:
    r"""The relative drift :math:`|c(t) - c(0)| / (|c(t)| + |c(0)|)` at each time but the first; nan if both values are 0."""
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
        n = z.shape[-1]
        raise ValueError(
            f"a state has {n} entries, but must have 2 x {rep.dim}: positions in {rep}, then as many momenta"
        )
    q, p = z.chunk(2, -1)
    return torch.einsum("...i,aij,...j->...a", p, rep.lie_generators.to(z), q)
