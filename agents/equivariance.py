r"""How equivariant a policy and its critics are, measured on raw observations and actions.

The measure uses the environment's own symmetry (`SymmetrySpec.transform_*`) and nothing of the networks, so it would
also catch a network wired to a wrong representation. Errors are ratios of sums over states i, entries and generators,

    sum |f(g s_i) - g f(s_i)| / sum (|f(g s_i)| + |g f(s_i)|),

which is Finzi et al. 2021, Eq. 3.3, with the sums taken before the ratio: states where the policy does nothing then
count for nothing, where a mean of ratios would give their rounding errors full weight.

Discrete generators are applied as they are; of a continuous symmetry, `TURNS` elements of its one-parameter group. Networks
are evaluated in float64 unless told otherwise: around a balanced pole actions are tiny and values all but equal, and the
rounding of float32 would be taken for asymmetry.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from rppdyn.agents.policy import SymmetricPolicy
from rppdyn.equivariance.error import differences

if TYPE_CHECKING:
    from stable_baselines3.common.base_class import BaseAlgorithm

    from rppdyn.envs import SymmetrySpec

FLOOR = 1e-6
"""Root mean square of the output, relative to its range, below which an error says nothing ("vacuous")."""

TURNS = (0.7, 1.9, 3.1, -1.3)
"""Angles, in radians, by which a continuous symmetry is applied; none is a symmetry of a polygon."""


@dataclass(frozen=True)
class AgentEquivarianceError:
    """An error between 0 (equivariant) and 1.

    Attributes:
        error: over all generators.
        per_generator: one error each, by the generator's name.
        scale: root mean square of the outputs, in units of their range.
        vacuous: the outputs are so small that every function would pass.
    """

    error: float
    per_generator: dict[str, float]
    scale: float
    vacuous: bool

    def __str__(self) -> str:
        return f"{self.error:.3g}" + (" (vacuous)" if self.vacuous else "")


@torch.no_grad()
def policy_equivariance_error(
    model: BaseAlgorithm, observations: np.ndarray, *, dtype: torch.dtype | None = torch.float64
) -> AgentEquivarianceError:
    """Equivariance error of the deterministic policy, in the environment's own units.

    Args:
        model: an agent, trained or not: RPPSAC, or PPO with an RPPActorCriticPolicy.
        observations: (n, entries) raw observations; states the policy visits are a fair choice.
        dtype: the precision in which the network is evaluated; None leaves its own.
    Returns:
        The error; vacuous where the root mean square action is below 1e-6 of the actions' upper bound.
    Raises:
        ValueError: the agent's policy is none of these, or there are no states.
    """
    policy = _symmetric_policy(model)
    spec, act = policy.spec, policy.action_function(dtype)
    obs = _tensor(observations)
    here = act(obs)
    pairs = [
        (name, act(spec.transform_observation(g, obs)), spec.transform_action(g, here)) for name, g in _elements(spec)
    ]
    high = torch.as_tensor(policy.action_space.high, dtype=torch.float64)
    return _ratio(pairs, (here / high).square().mean().sqrt().item())


@torch.no_grad()
def critic_equivariance_error(
    model: BaseAlgorithm,
    observations: np.ndarray,
    actions: np.ndarray,
    *,
    dtype: torch.dtype | None = torch.float64,
) -> AgentEquivarianceError:
    """Equivariance error of the critics: how far q(g s, g a) is from q(s, a), over all critics; V(g s) from V(s) for PPO.

    A critic's values carry a large constant (the mean return), and a ratio to it would make any critic look invariant;
    each critic's mean over the given states is therefore taken off both sides first, which leaves an invariant critic's
    error at zero.

    Args:
        model: an agent, trained or not: RPPSAC, or PPO with an RPPActorCriticPolicy.
        observations: (n, entries) raw observations.
        actions: (n, entries) raw actions, within the action space.
        dtype: the precision in which the networks are evaluated; None leaves their own.
    Returns:
        The error; vacuous where the values vary by less than 1e-6 of the larger of 1 and their root mean square.
    Raises:
        ValueError: the agent's policy is none of these, there are no states, or not as many actions.
    """
    policy = _symmetric_policy(model)
    spec, q = policy.spec, policy.value_function(dtype)
    obs, raw = _tensor(observations), _tensor(actions).double()
    if len(obs) != len(raw):
        raise ValueError(f"{len(obs)} states and {len(raw)} actions; give one action per state")
    here = q(obs, raw)
    centre = here.mean(dim=1, keepdim=True)
    pairs = [
        (name, q(spec.transform_observation(g, obs), spec.transform_action(g, raw)) - centre, here - centre)
        for name, g in _elements(spec)
    ]
    return _ratio(pairs, ((here - centre).square().mean().sqrt() / here.square().mean().sqrt().clamp(min=1.0)).item())


def _symmetric_policy(model: BaseAlgorithm) -> SymmetricPolicy:
    if not isinstance(model.policy, SymmetricPolicy):
        raise ValueError(
            f"{type(model.policy).__name__} has no symmetry spec of its own: give an agent with an RPPPolicy or an "
            "RPPActorCriticPolicy, or use rppdyn equivariance"
        )
    return model.policy


def _tensor(array: np.ndarray) -> Tensor:
    tensor = torch.as_tensor(np.asarray(array))
    if tensor.ndim != 2 or not len(tensor):
        raise ValueError(f"states of shape {tuple(tensor.shape)}; give a non-empty (n, entries) array")
    return tensor


def _elements(spec: SymmetrySpec) -> list[tuple[str, Tensor]]:
    """Pairs of a generator's name and an element of the group: one per discrete generator, `TURNS` per continuous one."""
    discrete, lie = spec.group.discrete_generators, spec.group.lie_algebra
    names = spec.generator_names
    continuous = zip(names[len(discrete) :], lie, strict=True)
    turns = [(name, torch.linalg.matrix_exp(t * A)) for name, A in continuous for t in TURNS]
    return [*zip(names, discrete, strict=False), *turns]


def _ratio(pairs: list[tuple[str, Tensor, Tensor]], scale: float) -> AgentEquivarianceError:
    nothing = torch.zeros(2, dtype=torch.float64)
    sums: dict[str, Tensor] = {}
    for name, a, b in pairs:
        sums[name] = sums.get(name, nothing) + differences(a, b).sum((1, 2))

    def ratio(sums: Tensor) -> float:
        difference, size = sums.tolist()
        return difference / size if size else 0.0

    per_generator = {name: ratio(own) for name, own in sums.items()}
    return AgentEquivarianceError(ratio(sum(sums.values(), nothing)), per_generator, scale, scale < FLOOR)
