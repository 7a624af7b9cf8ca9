"""Agents with symmetric policies, whatever algorithm trains them: their base class, and its refusals."""

from __future__ import annotations

import io
import json
import pathlib
import warnings
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Self

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.envs.mujoco import MujocoEnv
from numpy.typing import NDArray
from stable_baselines3.common.base_class import BaseAlgorithm, maybe_make_env
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.type_aliases import GymEnv, MaybeCallback
from stable_baselines3.common.vec_env import (
    VecCheckNan,
    VecEnv,
    VecEnvWrapper,
    VecMonitor,
    VecNormalize,
    VecVideoRecorder,
    unwrap_vec_normalize,
)

from rppdyn.agents import _checkpoint as checkpoint
from rppdyn.agents._measures import AgentEquivarianceError, critic_equivariance_error, policy_equivariance_error
from rppdyn.agents._networks import require_vectors
from rppdyn.agents.policy import certified_arguments
from rppdyn.envs import SymmetrySpec, symmetry_spec
from rppdyn.envs._catalogue import single_environment
from rppdyn.envs._mirror import plain_spec
from rppdyn.envs._wrappers import dictionary_of, flatten_observations, flattened, refuse_vector_env
from rppdyn.envs.certification._evidence import require_symmetric_wrappers
from rppdyn.errors import DivergedError
from rppdyn.runs.files import first_non_finite

MAX_ENTRY = float(np.finfo(np.float32).max)
"""Largest entry of an observation; networks compute in single precision."""

LOST_REMEDY = "what is learned from it would be lost, so the environment must return numbers alone"
DIVERGED_REMEDY = "start again with a smaller learning_rate, or rewards of a smaller scale"

HARMLESS_WRAPPERS = (VecNormalize, VecMonitor, VecCheckNan, VecVideoRecorder)
"""Vectorised wrappers that do not change actions and observations. `_wrap_env` refuses a VecNormalize that does."""


class SymmetricAgent(BaseAlgorithm):
    """An agent of stable-baselines3 with a symmetric policy; a mixin that stands before the algorithm's class."""

    policy_aliases: ClassVar[dict[str, type[BasePolicy]]]
    policy: Any  # a SymmetricPolicy; each algorithm declares its own
    policy_class: Any  # its class
    _keys: spaces.Dict | Sequence[str] = ()  # the space that observations are flattened from; in old files its keys
    fresh_episodes = False  # whether captures leave out environments, so that restored agents begin new episodes
    policy_delay = 1  # updates for one of the actor
    _pending_log: dict[str, Any]  # log entries that were not written when the agent was captured

    def __init__(
        self,
        policy: str | type[BasePolicy],
        env: GymEnv | str | None,
        spec: SymmetrySpec | None = None,
        *,
        policy_kwargs: dict[str, Any] | None = None,
        _init_setup_model: bool = True,
        **kwargs: Any,
    ) -> None:
        check_policy(type(self), policy, spec)
        arguments = dict(policy_kwargs or {})
        super().__init__(policy, env, policy_kwargs=arguments, _init_setup_model=False, **kwargs)  # type: ignore[call-arg]
        self._pending_log = {}
        if _init_setup_model:  # load() sets up later, with the saved policy_kwargs
            self._find_symmetry(spec)
            self._setup_model()

    @staticmethod
    def _wrap_env(env: GymEnv | str, verbose: int = 0, monitor_wrapper: bool = True) -> VecEnv:
        """Flatten dictionaries of observations, and refuse environments that policies here can't act in; all pass here."""
        env = maybe_make_env(env, verbose)
        refuse_vector_env(env)
        env = flattened(env) if isinstance(env, gym.Env) else env
        require_vectors("observation", env.observation_space)
        if not (actions := require_vectors("action", env.action_space)).is_bounded():  # stable-baselines3 asserts it
            raise ValueError(
                f"the environment's actions, {actions}, have no bounds, which policies here keep to: declare some by "
                f"gymnasium.wrappers.TransformAction(env, lambda a: a, gymnasium.spaces.Box(-1, 1, {actions.shape}))"
            )
        wrapper = unwrap_vec_normalize(env) if isinstance(env, VecEnv) else None
        if wrapper is not None and wrapper.norm_obs:
            raise ValueError(
                "VecNormalize scales each observation by itself, which breaks the symmetry; use "
                "VecNormalize(env, norm_obs=False): RPPPolicy normalises observations in a way that commutes with it"
            )
        return BaseAlgorithm._wrap_env(env, verbose, monitor_wrapper)

    @property
    def spec(self) -> SymmetrySpec:
        """The symmetry that the networks were built for."""
        return self.policy.spec

    def pathway_statistics(self) -> dict[str, float]:
        """Norms of the pathways of actor and critics, or of mean and value, and shares of the free ones."""
        return self.policy.pathway_statistics()

    def equivariance_errors(self, observations: NDArray, actions: NDArray) -> dict[str, AgentEquivarianceError]:
        """Equivariance errors of the "policy" and the "critic" (PPO's value) at raw observations and actions (n, ...)."""
        return {
            "policy": policy_equivariance_error(self, observations),
            "critic": critic_equivariance_error(self, observations, actions),
        }

    def identity(self) -> dict[str, Any]:
        """Settings that must agree between a captured agent and one that continues it, or between agents trained together."""
        networks = {key: value for key, value in self.policy._arguments.items() if key != "spec"}
        as_json = lambda value: value.item() if isinstance(value, np.generic) else str(value)  # noqa: E731
        return {
            "spec": self.spec.digest,
            "policy_kwargs": json.dumps(networks, sort_keys=True, default=as_json),
            "n_envs": self.n_envs,
        }

    def capture(self) -> dict[str, Any]:
        """Everything that an exact continuation needs, as tensors, numbers, strings, lists and dictionaries.

        `torch.save(agent.capture(), path)` is readable with `weights_only=True`. Tensors are copies. Call it in a callback
        or between calls of `learn`, for PPO between rollouts; continue with

            agent.restore(data); agent.learn(total - agent.num_timesteps, reset_num_timesteps=False)

        Raises:
            ValueError: an environment, wrapper or action noise whose state can't be captured, or an unfinished rollout of PPO.
            DivergedError: weights, an optimiser's state or transitions that are not finite.
        """
        return checkpoint.capture(self)

    def restore(self, data: dict[str, Any]) -> None:
        """Continue from a result of `capture`, in an agent built with the same arguments and environment.

        Sets the state of NumPy's, torch's and Python's global generators too, since stable-baselines3 draws from them. Settings
        that may change in training (discount, learning rate and the like) stay this agent's: the continuation is exact if they
        are equal.

        Raises:
            ValueError: the data is of an agent with another `identity`, precision, or kind of temperature (learned or fixed);
                the message names the difference.
        """
        checkpoint.restore(self, data)

    @abstractmethod
    def _capture_algorithm(self) -> dict[str, Any]:
        """The parts of the state that only this algorithm has."""

    @abstractmethod
    def _restore_algorithm(self, data: dict[str, Any]) -> None:
        """Restore the parts that `_capture_algorithm` returned."""

    @classmethod
    def load(cls, path: str | pathlib.Path | io.BufferedIOBase, *args: Any, **kwargs: Any) -> Self:
        """Load a saved agent; arguments as in stable-baselines3. Neither environment nor model file is needed.

        Raises:
            ValueError: the file is truncated, or no saved agent of this class; settings that a new agent refuses, too, or that
                the saved networks fix, such as a spec.
        """
        if kwargs.pop("spec", None) is not None:
            raise ValueError(f"spec= is for new agents, the one in {path} has that of its networks: leave it out")
        with checkpoint.explain_load_errors(path, cls, kwargs):
            agent = super().load(path, *args, **kwargs)
        warn_if_other_robot(agent)
        return agent

    def set_env(self, env: GymEnv, force_reset: bool = True) -> None:
        """Change the environment; arguments as in stable-baselines3.

        Raises:
            ValueError: an environment that a new agent would refuse, such as a VecNormalize that scales observations.
        """
        super().set_env(env, force_reset)
        warn_if_other_robot(self)

    def learn(self, *args: Any, **kwargs: Any) -> Self:
        """Train; arguments as in stable-baselines3.

        Raises:
            ValueError: an observation or a reward that is not finite, or so large that learning would end; naming entry, value
                and step.
            DivergedError: losses, gradients, weights or an optimiser's state that are not finite.
        """
        super().learn(*args, **kwargs)  # type: ignore[safe-super]  # the algorithm's, which comes next
        self.record_updates()
        self.check_finite()
        return self

    def record_updates(self, wait: bool = True) -> None:
        """Record pending metrics of updates; does nothing for algorithms that record them at each update."""

    def check_finite(self, data: Any = None) -> None:
        """Refuse numbers that are not finite, before training continues or a checkpoint keeps them.

        Args:
            data: nested tensors, arrays and numbers; None for weights, statistics and optimisers' states. (An infinite second
                moment stops Adam's weights silently.)
        Raises:
            DivergedError: it names the first number that is not finite, and the step.
        """
        if (name := first_non_finite(super().get_parameters() if data is None else data, "")) is not None:
            raise DivergedError(
                f"training diverged: {name} is not finite at step {self.num_timesteps}; {DIVERGED_REMEDY}"
            )

    def predict(self, observation: Any, *args: Any, **kwargs: Any) -> tuple[NDArray, tuple[NDArray, ...] | None]:
        """Choose actions; arguments as in stable-baselines3. A dictionary is flattened as in training."""
        if isinstance(observation, Mapping) and observation.keys() == set(self._keys):
            if isinstance(self._keys, spaces.Dict):
                observation = flatten_observations(self._keys, observation)
            else:
                observation = np.concatenate([observation[key] for key in self._keys], axis=-1)
        return super().predict(observation, *args, **kwargs)

    def _find_symmetry(self, spec: SymmetrySpec | None, needs_one: bool = False) -> None:
        """Put the environment's symmetry, and the variance that its certificate gives, into the policy's arguments.

        Args:
            needs_one: the algorithm needs a symmetry, even with plain networks.
        """
        if self.env is not None and hasattr(self.env, "envs"):
            space = dictionary_of(self.env.envs[0])
            self._keys = space if isinstance(space, spaces.Dict) else ()
        if spec is None and "spec" not in self.policy_kwargs:
            spec = find_spec(self.env, needs_one or self.policy_kwargs.get("model") != "mlp")
        elif spec is None:
            spec = SymmetrySpec.from_dict(self.policy_kwargs["spec"])
        arguments = self.policy_kwargs | {"spec": spec.to_dict()}
        self.policy_kwargs = certified_arguments(self.policy_class, arguments, self.env, spec)

    def _setup_learn(
        self,
        total_timesteps: int,
        callback: MaybeCallback = None,
        reset_num_timesteps: bool = True,
        tb_log_name: str = "run",
        progress_bar: bool = False,
    ) -> tuple[int, BaseCallback]:
        if tb_log_name in ("SAC", "PPO"):  # what stable-baselines3 calls every run
            tb_log_name = f"{self.spec.env_id}-{self.policy.model}".replace("/", "-")
        result = super()._setup_learn(total_timesteps, callback, reset_num_timesteps, tb_log_name, progress_bar)
        for name, (value, exclude) in self._pending_log.items():
            self.logger.record(name, value, exclude=tuple(exclude))
        self._pending_log = {}
        return result

    def _excluded_save_params(self) -> list[str]:
        return [*super()._excluded_save_params(), "_pending_log"]


def check_policy(agent: type[SymmetricAgent], policy: Any, spec: Any) -> None:
    """Refuse policies of another class, and specs that are no SymmetrySpec."""
    aliases = agent.policy_aliases
    if isinstance(policy, str) and policy not in aliases:
        raise ValueError(f"policy={policy!r}: choose {' or '.join(map(repr, aliases))}, or a subclass of it")
    kind = aliases[policy] if isinstance(policy, str) else policy
    if not issubclass(kind, tuple(aliases.values())):
        names = " or ".join(dict.fromkeys(known.__name__ for known in aliases.values()))
        raise ValueError(
            f"{kind.__name__} is no {names}, which is what is trained here: derive it from that; a file that another algorithm "
            "saved is loaded by that algorithm's class"
        )
    if spec is not None and not isinstance(spec, SymmetrySpec):
        raise ValueError(f"spec={spec!r} is no SymmetrySpec; make one with symmetry_spec or mirror_spec of rppdyn.envs")


def check_wrappers(env: VecEnv, spec: SymmetrySpec) -> None:
    """Refuse wrappers that a spec derived from the environment doesn't account for.

    Raises:
        ValueError: it names a vectorised wrapper not in `HARMLESS_WRAPPERS`, or a wrapper of the environment that breaks the
            symmetry, see `rppdyn.envs.certification._evidence`.
    """
    while isinstance(env, VecEnvWrapper):
        if type(env) not in HARMLESS_WRAPPERS:
            raise ValueError(
                f"{spec.env_id}: its symmetry is derived from the environment inside the wrapper {type(env).__name__}, which "
                "may change what it acts on: take it off, or pass spec= for what the agent sees"
            )
        env = env.venv
    with single_environment(env) as single:
        if isinstance(single.unwrapped, MujocoEnv):
            require_symmetric_wrappers(single, spec)


def find_spec(env: VecEnv | None, needs_one: bool) -> SymmetrySpec:
    """The symmetry of an environment; if it has none and none is needed, a spec with the identity alone."""
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


def check_observations(observations: NDArray, spec: SymmetrySpec, where: Callable[[int], str]) -> None:
    """Refuse observations with entries that are not finite, or too large for single precision, before they are stored.

    Args:
        observations: (n_envs, n).
        where: names the environment of an index and the step, for the message.
    """
    if (np.abs(observations) <= MAX_ENTRY).all():  # nan is not
        return
    env, entry = np.argwhere(~(np.abs(observations) <= MAX_ENTRY))[0]
    name, value = spec.obs_names[entry], observations[env, entry]
    raise ValueError(f"{where(env)}: observation {name!r} (entry {entry}) is {value:g}; {LOST_REMEDY}")


def warn_if_other_robot(agent: SymmetricAgent) -> None:
    """Warn if an agent is given another environment than its symmetry's; stable-baselines3 compares spaces only."""
    for stock in agent.env.get_attr("spec") if agent.env is not None else ():
        if stock is not None and not agent.spec.is_of(stock.id):
            warnings.warn(
                f"the agent's symmetry is that of {agent.spec.env_id}, and it is given {stock.id}, whose entries are others: "
                "make a new agent, with a spec of its own",
                stacklevel=3,
            )
            return
