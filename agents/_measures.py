r"""Equivariance errors of an agent's policy and critics, measured on raw observations and actions.

The measure uses the environment's own symmetry (`SymmetrySpec.transform_*`) and nothing of the networks, so it would
also catch a network wired to a wrong representation. Errors are ratios of sums over states, entries and generators
(:mod:`rppdyn.equivariance._error`). By default networks are evaluated in float64: around a balanced pole actions are tiny and
values almost equal, and the rounding of float32 would be taken for asymmetry.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from rppdyn.agents.policy import SymmetricPolicy
from rppdyn.equivariance._error import POOLED_FLOOR, elements_by_generator, pooled_ratio, pooled_sums

if TYPE_CHECKING:
    from stable_baselines3.common.base_class import BaseAlgorithm

    from rppdyn.envs import SymmetrySpec


@dataclass(frozen=True)
class AgentEquivarianceError:
    """An error between 0 (equivariant) and 1.

    Attributes:
        error: over all generators.
        per_generator: one error each, by the generator's name.
        scale: root mean square of the outputs, in units of their range.
        vacuous: whether the outputs are so small that every function would pass.
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
        ValueError: the agent has another policy, or there are no states.
    """
    policy = _symmetric_policy(model)
    return _map_error(policy.action_function(dtype), policy.spec, _tensor(observations), policy.action_space.high)


@torch.no_grad()
def critic_equivariance_error(
    model: BaseAlgorithm, observations: np.ndarray, actions: np.ndarray, *, dtype: torch.dtype | None = torch.float64
) -> AgentEquivarianceError:
    """Equivariance error of the critics: how far q(g s, g a) is from q(s, a), over all critics; V(g s) from V(s) for PPO.

    A critic's values have a large constant part (the mean return), and a ratio to it would make any critic look invariant.
    Each critic's mean over the given states is therefore subtracted from both sides, which leaves an invariant critic's error
    at zero.

    Args:
        model: an agent, trained or not: RPPSAC, or PPO with an RPPActorCriticPolicy.
        observations: (n, entries) raw observations.
        actions: (n, entries) raw actions, within the action space.
        dtype: the precision in which the networks are evaluated; None leaves their own.
    Returns:
        The error; vacuous where the values vary by less than 1e-6 of their root mean square.
    Raises:
        ValueError: the agent has another policy, there are no states, or not one action for each.
    """
    policy = _symmetric_policy(model)
    spec, q = policy.spec, policy.value_function(dtype)
    obs, raw = _tensor(observations), _tensor(actions).double()
    if len(obs) != len(raw):
        raise ValueError(f"{len(obs)} states and {len(raw)} actions; give one action per state")
    values = q(obs, raw)
    centre = values.mean(dim=1, keepdim=True)

    def pair(g: Tensor) -> tuple[Tensor, Tensor]:
        image_values = q(spec.transform_observation(g, obs), spec.transform_action(g, raw))
        return (image_values - centre).mT, (values - centre).mT

    spread, size = (values - centre).square().mean().sqrt(), values.square().mean().sqrt()
    return _errors(spec, pair, (spread / size).nan_to_num(0.0).item())  # all zero: nothing to compare


def function_equivariance_error(
    act: Callable[[np.ndarray], np.ndarray],
    spec: SymmetrySpec,
    observations: np.ndarray,
    bound: np.ndarray | float = 1.0,
) -> AgentEquivarianceError:
    """Equivariance error of any map from raw observations (n, entries) to raw actions, as :func:`policy_equivariance_error`.

    Args:
        bound: the upper bound of the actions, in which their size is measured.
    """
    on_tensors = lambda x: torch.as_tensor(np.asarray(act(x.numpy()))).double()  # noqa: E731
    return _map_error(on_tensors, spec, _tensor(observations), bound)


def _map_error(
    act: Callable[[Tensor], Tensor], spec: SymmetrySpec, obs: Tensor, bound: np.ndarray | float
) -> AgentEquivarianceError:
    actions = act(obs)
    return _errors(
        spec,
        lambda g: (act(spec.transform_observation(g, obs)), spec.transform_action(g, actions)),
        (actions / torch.as_tensor(bound, dtype=torch.float64)).square().mean().sqrt().item(),
    )


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


def _errors(
    spec: SymmetrySpec, pair: Callable[[Tensor], tuple[Tensor, Tensor]], scale: float
) -> AgentEquivarianceError:
    """The errors of a function; `pair(g)` returns its outputs at the images of the inputs, and the images of its outputs."""
    generators = elements_by_generator(spec.group, spec.generator_names)
    sums = {name: pooled_sums(pair(g) for g in elements) for name, elements in generators.items()}
    return AgentEquivarianceError(
        float(pooled_ratio(sum(sums.values(), torch.zeros(1, 2)).numpy())),
        {name: float(pooled_ratio(sum_.numpy())) for name, sum_ in sums.items()},
        scale,
        scale < POOLED_FLOOR,
    )
