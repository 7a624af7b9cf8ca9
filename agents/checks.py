"""Checks of what agents are given: policies, settings, optimisers, wrappers, numbers and files, each refused in one line."""

from __future__ import annotations

import inspect
import math
import pathlib
import warnings
import zipfile
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from gymnasium import spaces
from gymnasium.envs.mujoco import MujocoEnv
from numpy.typing import NDArray
from stable_baselines3.common.vec_env import (
    VecCheckNan,
    VecEnv,
    VecEnvWrapper,
    VecMonitor,
    VecNormalize,
    VecVideoRecorder,
)

from rppdyn.agents.compiling import OPTIONS
from rppdyn.envs import SymmetrySpec, symmetry_spec
from rppdyn.envs.catalogue import single_environment
from rppdyn.envs.certification.evidence import require_symmetric_wrappers
from rppdyn.envs.mirror import plain_spec
from rppdyn.errors import DivergedError
from rppdyn.nn.compiling import check_compiler
from rppdyn.runs.files import not_finite

if TYPE_CHECKING:
    from rppdyn.agents.ppo import RPPPPO
    from rppdyn.agents.sac import RPPSAC

LARGEST = float(np.finfo(np.float32).max)
"""Entries of observations, which networks take in single precision."""

LARGEST_REWARD = 1e18
"""Rewards whose squares single precision has, with a margin for values, which are sums of rewards."""

LOST = "what is learned from it would be lost, so the environment must return numbers alone"
SMALLER = "start again with a smaller learning_rate, or rewards of a smaller scale"

INSTEAD = {
    "optimizer_class": "Adam, with optimizer_kwargs=",
    "features_extractor_class": "the spec's own features",
}
"""Arguments of stable-baselines3's policies, and their counterparts here."""


HARMLESS = (VecNormalize, VecMonitor, VecCheckNan, VecVideoRecorder)
"""Vectorised wrappers that leave actions and observations alone, VecNormalize where `check_wrapper` lets it pass."""

PLAIN_ADAM = {"weight_decay": 0, "amsgrad": False, "maximize": False}
"""The options of Adam that the step that is written out doesn't have."""


def check_policy(policy: str | type, aliases: Mapping[str, type], arguments: Mapping[str, Any]) -> None:
    """Refuse names that no policy has, and arguments that this one hasn't.

    Raises:
        ValueError: naming it, and what there is.
    """
    if isinstance(policy, str) and policy not in aliases:
        raise ValueError(f"policy={policy!r}: choose {' or '.join(map(repr, aliases))}, or a subclass of it")
    kind = aliases[policy] if isinstance(policy, str) else policy
    if not issubclass(kind, tuple(aliases.values())):
        names = " or ".join(dict.fromkeys(known.__name__ for known in aliases.values()))
        raise ValueError(
            f"{kind.__name__} is no {names}, which is what is trained here: derive it from that; a file that another algorithm "
            "saved is loaded by that algorithm's class"
        )
    known = inspect.signature(kind).parameters
    if any(p.kind is p.VAR_KEYWORD for p in known.values()):
        return
    for name in arguments:
        if name not in known:
            there = INSTEAD.get(name, f"one of {', '.join(list(known)[3:])}")
            raise ValueError(f"policy_kwargs has {name}, which {kind.__name__} hasn't: it has {there}")


def warn_of_another_robot(agent: RPPSAC | RPPPPO) -> None:
    """Warn where an agent that was made for one environment is given another, which stable-baselines3 tells by spaces alone."""
    for stock in agent.env.get_attr("spec") if agent.env is not None else ():
        if stock is not None and not agent.spec.is_of(stock.id):
            warnings.warn(
                f"the agent's symmetry is that of {agent.spec.env_id}, and it is given {stock.id}, whose entries are others: "
                "make a new agent, with a spec of its own",
                stacklevel=3,
            )
            return


def check_observations(observations: NDArray, spec: SymmetrySpec, where: Callable[[int], str]) -> None:
    """Refuse observations with entries that are no numbers, or too large for networks, before they are stored.

    Args:
        observations: (n_envs, n).
        where: the environment of an index, and the step.
    Raises:
        ValueError: naming environment, step, entry and value.
    """
    if (np.abs(observations) <= LARGEST).all():  # nan is not
        return
    env, entry = np.argwhere(~(np.abs(observations) <= LARGEST))[0]
    name, value = spec.obs_names[entry], observations[env, entry]
    raise ValueError(f"{where(env)}: observation {name!r} (entry {entry}) is {value:g}; {LOST}")


def check_rewards(agent: RPPSAC, rewards: NDArray) -> None:
    """Refuse rewards that are no numbers, and such that errors of values, squared, are none in single precision.

    Raises:
        ValueError: naming environment, value and step.
    """
    if (np.abs(rewards) <= LARGEST_REWARD).all():
        return
    (which,) = np.argwhere(~(np.abs(rewards) <= LARGEST_REWARD))[0]
    raise ValueError(
        f"{where(agent, which)}: the reward is {rewards[which]:g}; {LOST}, and none above {LARGEST_REWARD:g}: scale them, as "
        "VecNormalize(env, norm_obs=False) does"
    )


def check_actions_chosen(agent: RPPSAC, actions: NDArray) -> None:
    """Refuse actions that are no numbers, which a policy has that has diverged, before an environment is sent them.

    Raises:
        DivergedError: naming environment, entry, value and step.
    """
    if np.isfinite(actions).all():
        return
    which, entry = np.argwhere(~np.isfinite(actions))[0]
    name, value = agent.spec.action_names[entry], actions[which, entry]
    raise DivergedError(f"training diverged: {where(agent, which)}, action {name!r} is {value:g}; {SMALLER}")


def where(agent: RPPSAC | RPPPPO, env: int) -> str:
    """The environment of an index, and the step that it is at."""
    which = f", environment {env}" if agent.n_envs > 1 else ""
    return f"{agent.spec.env_id}{which} at step {agent.num_timesteps}"


def check_finite(agent: RPPSAC | RPPPPO, data: Any, what: str = "") -> None:
    """Refuse to go on with, or to keep, numbers that have diverged.

    Args:
        data: nested tensors, arrays and numbers.
        what: the name of the data.
    Raises:
        DivergedError: naming the first that is not finite.
    """
    if (name := not_finite(data, what)) is not None:
        raise DivergedError(f"training diverged: {name} is not finite at step {agent.num_timesteps}; {SMALLER}")


def check_settings(agent: RPPSAC) -> None:
    """Refuse settings that make no sense, of new agents and of loaded ones, for which some may be given anew."""
    if not 0 < agent.noise_variance < math.inf:
        raise ValueError(f"noise_variance={agent.noise_variance} must be positive and finite")
    for name in ("batch_size", "target_update_interval"):
        if (count := getattr(agent, name)) < 1:
            raise ValueError(f"{name}={count} must be at least 1")
    if not 0 < agent.tau <= 1:
        raise ValueError(f"tau={agent.tau}: a share of the way to the critics, above 0 and at most 1")
    if not 0 <= agent.gamma <= 1:
        raise ValueError(f"gamma={agent.gamma}: a discount from 0 to 1")
    if agent.max_gradient_norm is not None and not 0 < agent.max_gradient_norm < math.inf:
        raise ValueError(f"max_gradient_norm={agent.max_gradient_norm} must be positive, or None for no clipping")
    if not 0 <= agent.mirror_loss < math.inf:
        raise ValueError(f"mirror_loss={agent.mirror_loss} must be positive, or 0 for none, and finite")
    if agent.target_entropy != "auto" and not math.isfinite(float(agent.target_entropy)):
        raise ValueError(
            f"target_entropy={agent.target_entropy}: give a number of nats, or 'auto' for minus the actions"
        )
    rate = agent.learning_rate(1) if callable(agent.learning_rate) else agent.learning_rate
    if not 0 <= rate < math.inf:
        raise ValueError(f"learning_rate={rate} must be positive, or 0 to learn nothing")
    if not isinstance(agent.augment, bool):
        raise ValueError(f"augment={agent.augment!r}: give True or False")
    if not isinstance(agent.compile, bool | None):
        raise ValueError(f"compile={agent.compile!r}: give True or False or None")
    if agent.use_sde:
        raise ValueError("RPPSAC does not support use_sde=True (its noise would not transform); leave it out")


def check_optimisers(agent: RPPSAC) -> None:
    """Refuse optimisers and parameters that updates, which are written out, would pass over.

    Raises:
        ValueError: an optimiser other than Adam, options that differ between optimisers or are no part of the step that is
            written out, or parameters that are not to be trained.
    """
    actor, critic = agent.actor, agent.critic
    common = actor.optimizer.param_groups[0]
    expected = {"betas": common["betas"], "eps": common["eps"], **PLAIN_ADAM}
    for key, optimiser in agent.optimisers.items():
        name = "temperature" if key == "log_alpha" else key
        if type(optimiser) is not torch.optim.Adam:
            raise ValueError(
                f"the {name}'s optimiser is {type(optimiser).__name__}, and updates are Adam's: give torch.optim.Adam"
            )
        for group in optimiser.param_groups:
            for key, value in expected.items():
                if group[key] != value:
                    raise ValueError(
                        f"the {name}'s optimiser has {key}={group[key]}, and updates are computed with {value}: give betas and "
                        "eps for all networks, as policy_kwargs=dict(optimizer_kwargs=...)"
                    )
    for name, network in (("actor", actor), ("critic", critic)):
        if not all(p.requires_grad for p in network.parameters()):
            raise ValueError(f"parameters of the {name} require no gradients, and updates train all of them: let them")


def check_precision(agent: RPPSAC) -> None:
    """Refuse parameters, or moments of their optimisers, of several precisions."""
    expected = agent.policy.features_extractor.dtype
    tensors: list[tuple[str, torch.Tensor]] = []
    modules = {"actor": agent.actor, "critic": agent.critic, "target": agent.critic_target}
    for name, module in modules.items():
        tensors += [(name, p) for p in module.parameters()]
    tensors.append(("temperature", agent.log_alpha))
    for key, optimiser in agent.optimisers.items():
        name = "temperature" if key == "log_alpha" else key
        tensors += [(f"{name}'s optimiser", moments["exp_avg"]) for moments in optimiser.state.values() if moments]
    for name, tensor in tensors:
        if tensor.dtype != expected:
            raise ValueError(
                f"the {name} is in {tensor.dtype}, the actor in {expected}: cast agent.policy, agent.log_ent_coef.data and "
                "then optimisers, by agent.set_parameters(agent.get_parameters())"
            )


def check_compiled(agent: RPPSAC) -> None:
    """Refuse `compile` where there is no compiler, and on devices that it is not for."""
    if not agent.compile:
        return
    if agent.device.type not in OPTIONS:
        raise ValueError(f"compile=true: updates are compiled on a CPU and on CUDA devices, not on {agent.device}")
    check_compiler(agent.device)


def check_actions(space: spaces.Space) -> None:
    """Refuse actions that are no vectors, and vectors without bounds."""
    if not isinstance(space, spaces.Box):
        raise ValueError(
            f"the environment's actions are {space}, and a symmetry acts on vectors here: give one whose action space is a Box"
        )
    if not space.is_bounded():
        raise ValueError(
            f"the environment's actions, {space}, have no bounds, which policies here keep to: declare some by "
            f"gymnasium.wrappers.TransformAction(env, lambda a: a, gymnasium.spaces.Box(-1, 1, {space.shape}))"
        )


def check_wrapper(wrapper: VecNormalize | None) -> None:
    """Refuse a wrapper that scales observations."""
    if wrapper is not None and wrapper.norm_obs:
        raise ValueError(
            "VecNormalize scales each observation by itself, which breaks the symmetry; use "
            "VecNormalize(env, norm_obs=False): RPPPolicy normalises observations in a way that commutes with it"
        )


def check_wrappers(env: VecEnv, spec: SymmetrySpec) -> None:
    """Refuse wrappers that a spec derived from the environment doesn't account for.

    Raises:
        ValueError: naming a vectorised wrapper that is not known to leave actions and observations alone, or one of the
            environments' own that spoils the symmetry, see `rppdyn.envs.certification.evidence`.
    """
    while isinstance(env, VecEnvWrapper):
        if type(env) not in HARMLESS:
            raise ValueError(
                f"{spec.env_id}: its symmetry is derived from the environment inside the wrapper {type(env).__name__}, which "
                "may change what it acts on: take it off, or pass spec= for what the agent sees"
            )
        env = env.venv
    with single_environment(env) as single:
        if isinstance(single.unwrapped, MujocoEnv):
            require_symmetric_wrappers(single, spec)


def spec_of(env: VecEnv | None, needs_one: bool) -> SymmetrySpec:
    """The symmetry of an environment; where it has none, and networks need none, that of nothing but the identity.

    Raises:
        ValueError: no symmetry is known of it, or a wrapper spoils it, and networks need one.
    """
    try:
        spec = symmetry_spec(env)
        assert env is not None  # which symmetry_spec refuses
        check_wrappers(env, spec)
    except ValueError:
        if needs_one or env is None:
            raise
        with single_environment(env) as single:
            return plain_spec(single, env.observation_space, env.action_space)
    return spec


def check_archive(path: pathlib.Path) -> None:
    """Refuse a file that is not whole; stable-baselines3 opens one cut off inside a member that is itself an archive."""
    path = path if path.exists() else path.with_name(f"{path.name}.zip")
    if not path.exists():
        return  # stable-baselines3 says so
    try:
        with zipfile.ZipFile(path) as archive:
            whole = {"data", "policy.pth"} <= set(archive.namelist()) and archive.testzip() is None
    except zipfile.BadZipFile:
        whole = False
    if not whole:
        raise ValueError(f"{path} is truncated or not an agent written by save(); load another copy")
