"""Agents of runs: built from a configuration, restored from a run folder, with their environments and episodes."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import chain
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.envs.mujoco import MujocoEnv
from numpy.typing import NDArray
from stable_baselines3 import HerReplayBuffer
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.utils import LinearSchedule
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv
from stable_baselines3.common.vec_env.base_vec_env import CloudpickleWrapper, VecEnvStepReturn
from stable_baselines3.td3.policies import TD3Policy

from rppdyn.agents import RPPSAC, Agent, RelaxedPPO, RPPCrossQ
from rppdyn.agents.buffers import RowReplayBuffer
from rppdyn.agents.policy import FREE_VARIANCE
from rppdyn.envs import SymmetrySpec, certified_share, file_spec, make_env, symmetry_spec
from rppdyn.envs._mirror import plain_spec
from rppdyn.errors import place_in_users_code
from rppdyn.jobs.config import compose
from rppdyn.jobs.config.agent import OFF_POLICY_KEYS, UNUSED_KEYS, ModelConfig, TrainAgentConfig
from rppdyn.jobs.config.base import CERTIFIED, ConfigError, device_of
from rppdyn.jobs.results import final_policy
from rppdyn.priors import free_variance
from rppdyn.reps import notation
from rppdyn.runs import CheckpointError, RunFolder, RunFolderError
from rppdyn.runs.files import load_tensors, write_json
from rppdyn.runs.folder import keep_signed
from rppdyn.runs.statistics import evenly
from rppdyn.runs.workers import SHUTDOWN_SECONDS, Worker, WorkerError, preserve_random_state, torch_threads

logger = logging.getLogger(__name__)


def build_env(config: TrainAgentConfig, **options: Any) -> Any:
    """Make the configured environment, monitored and resumable, with seeded spaces, which Gymnasium would seed by chance.

    Args:
        options: further options of `gymnasium.make`.
    """
    scale = config.env.actuator_scale or None
    env = make_env(config.env.id, actuator_scale=scale, named_by=config.env.named_by, **(config.env.kwargs | options))
    env.observation_space.seed(config.seed)
    env.action_space.seed(config.seed)
    return env


def spec_of(config: TrainAgentConfig, folder: RunFolder, env: Any) -> SymmetrySpec:
    """The symmetry of a run's networks: the stored one, or for a new run that of its environment.

    A plain network does without a symmetry if the environment states none and none can be derived.

    Raises:
        ValueError: the environment has no such symmetry, or none can be derived.
        RunFolderError: the stored symmetry is damaged.
    """
    if (stored := load_spec(folder)) is not None:
        return stored
    if config.env.spec is not None:
        return file_spec(env, config.env.spec, symmetry=config.env.symmetry)
    is_plain = config.model.kind == "mlp" and not (config.agent.augment or config.agent.mirror_loss)
    needs_none = is_plain and config.env.symmetry is None and config.env.variant == "derived"
    if needs_none and not (isinstance(env.unwrapped, MujocoEnv) or hasattr(env.unwrapped, "symmetry_spec")):
        return plain_spec(env)
    try:
        return symmetry_spec(env, symmetry=config.env.symmetry, variant=config.env.variant)
    except ValueError as error:
        if not needs_none or place_in_users_code(error) is not None:
            raise
        logger.warning("%s; the plain network does without", error)
        return plain_spec(env)


def build_agent(config: TrainAgentConfig, env: Any, spec: SymmetrySpec) -> Agent:
    """Build the configured agent, untrained."""
    model, agent = config.model, config.agent
    device = device_of(config.device)
    learning_rate: float | LinearSchedule = agent.learning_rate
    if agent.learning_rate_end is not None:
        learning_rate = LinearSchedule(agent.learning_rate, agent.learning_rate_end, 1.0)
    shared: dict[str, Any] = dict(
        spec=spec,
        learning_rate=learning_rate,
        batch_size=agent.batch_size,
        gamma=agent.gamma,
        seed=config.seed,
        device=device,
    )
    if agent.ppo is not None:
        return RelaxedPPO(
            "RPPPolicy",
            env,
            max_grad_norm=math.inf if agent.max_gradient_norm is None else agent.max_gradient_norm,
            **asdict(agent.ppo),
            policy_kwargs=_networks(model) | dict(optimizer_kwargs=dict(betas=tuple(agent.betas), eps=1e-5)),
            **shared,
        )
    networks = _networks(model) | dict(optimizer_kwargs=dict(betas=tuple(agent.betas)))
    if model.groups is not None:
        chain = notation.chain(model.groups, spec.group, spec.generator_names)
        networks |= dict(groups=chain, variances=model.variances)
    unused = UNUSED_KEYS.get(agent.name, ())
    kind, options = RPPSAC, {name: getattr(agent, name) for name in OFF_POLICY_KEYS if name not in unused}
    options["replay_buffer_class"] = HerReplayBuffer if options.pop("hindsight") else None
    if agent.crossq is not None:
        kind, options = RPPCrossQ, options | asdict(agent.crossq)
        networks["normalisation"] = options.pop("normalisation")
    built = kind(
        "RPPPolicy", env, policy_kwargs=networks, max_gradient_norm=agent.max_gradient_norm, **options, **shared
    )
    if isinstance(built.replay_buffer, RowReplayBuffer):
        _ = built.replay_buffer.rows  # allocate its memory, which may fail, before the run has a folder
    return built


def _networks(model: ModelConfig) -> dict[str, Any]:
    """Arguments of a policy that describe its networks."""
    keys = ("hidden", "critic_hidden", "num_layers", "equivariant_variance", "critic_equivariant_variance",
            "critic_free_variance")  # fmt: skip
    options: dict[str, Any] = dict(architecture=model.architecture, bilinear=model.bilinear)
    options |= {key: value for key in ("free_scale", "activation") if (value := getattr(model, key)) is not None}
    if model.breaking is not None:
        options |= {key: getattr(model, key) for key in ("breaking", "breaking_variance", "breaking_learned")}
    free_variance = FREE_VARIANCE if model.groups else model.free
    arguments = dict(model=model.kind, free_variance=free_variance, network_kwargs=options)
    return arguments | {key: getattr(model, key) for key in keys}


@contextmanager
def process_state(threads: int | None) -> Iterator[None]:
    """Set torch's thread count in the block, and restore it and the global random states afterwards.

    Stable-baselines3 seeds the global generators of Python, NumPy and torch and draws from them.
    """
    with torch_threads(threads), preserve_random_state():
        yield


def certify_variance(model: Any, folder: RunFolder, env: Any, spec: SymmetrySpec, inputs: int, *, reward: bool) -> None:
    """Set `certified_variance` of a model's configuration: the stored value of the run, else that of a certificate.

    Args:
        model: configuration of the networks; unchanged unless the free variance is "certified".
        folder: folder of the run, which may not exist yet.
        inputs: largest number of inputs of a layer, see :func:`rppdyn.priors.free_variance`.
        reward: whether networks learn rewards or values.
    Raises:
        ConfigError: the environment's symmetry can't be certified.
    """
    if model.free_variance != CERTIFIED:
        return
    if folder.config_file.is_file():
        model.certified_variance = folder.config().get("model", {}).get("certified_variance")
    if model.certified_variance is not None:
        return
    try:
        certified = certified_share(env, spec, reward=reward)
        model.certified_variance = free_variance(certified.share, model.equivariant_variance, inputs)
    except ValueError as error:
        raise ConfigError(f"model.free_variance={CERTIFIED}: {error}") from error
    number = f"model.free_variance={CERTIFIED} is {model.certified_variance:.3g}"
    if certified.share == 0:
        logger.warning("%s: %s is %s, networks are strict", number, spec.env_id, certified.note)
    elif certified.verdict == "broken":
        logger.warning(
            "%s, wide: the symmetry of %s is %s; model=mlp does without it", number, spec.env_id, certified.note
        )
    else:
        share = f"the prior allows the free pathway {100 * certified.share:.2g} % of the squared weights"
        logger.warning("%s: %s is %s, %s", number, spec.env_id, certified.note, share)


# -- files of an agent -------------------------------------------------------------------------------------------------

AGENT_FILE = "agent.pt"
"""File of a checkpoint, all that an exact continuation needs: model, optimisers, replay buffer, random states, simulator."""
SPEC_FILE = "spec.json"


def save_spec(folder: RunFolder, spec: SymmetrySpec) -> None:
    """Write the symmetry of a run's networks, `spec.json`."""
    with keep_signed(folder.path):
        write_json(folder.path / SPEC_FILE, spec.to_dict())


def load_spec(folder: RunFolder) -> SymmetrySpec | None:
    """Read the symmetry of a run's networks; None if it was not written yet.

    Raises:
        RunFolderError: the file is damaged, or of another version.
    """
    path = folder.path / SPEC_FILE
    if not path.is_file():
        return None
    try:
        return SymmetrySpec.from_dict(json.loads(path.read_text(encoding="utf-8")))
    except Exception as error:  # the content may be anything
        raise RunFolderError(f"{path} can't be read ({error}): delete it, and the symmetry is derived anew") from error


def load_policy(agent: Agent, folder: RunFolder) -> str:
    """Load the final weights of a run into an agent, or else those of its last checkpoint; returns their description.

    Raises:
        RunFolderError: the run has neither yet, or the file is damaged.
        CheckpointError: none of the checkpoints can be read.
    """
    file, remedy = folder.policy_file, f"rppdyn train-agent --resume {folder.path}"
    if (result := folder.result()) is not None and file.is_file():
        try:
            agent.policy.load_state_dict(load_tensors(file))
        except CheckpointError as error:
            raise RunFolderError(
                f"{file} is damaged: delete {folder.result_file} and write it again with {remedy}"
            ) from error
        except (RuntimeError, KeyError, TypeError, ValueError) as error:
            raise RunFolderError(
                f"{file} is of another network than config.yaml says; delete {folder.result_file} and write it again with "
                f"{remedy}"
            ) from error
        return final_policy(result)
    return f"policy of the checkpoint at step {load_checkpoint(agent, folder)}"


def load_checkpoint(agent: Agent, folder: RunFolder) -> int:
    """Restore an agent from a run's last checkpoint, replay buffer included, and return the step. The run is unchanged.

    Raises:
        RunFolderError: the run has none yet.
        CheckpointError: none of the checkpoints can be read.
    """
    checkpoint = folder.checkpoints.latest()
    if checkpoint is not None:
        agent.restore(load_tensors(checkpoint.path / AGENT_FILE))
        return checkpoint.step
    if folder.result() is not None:
        raise RunFolderError(
            f"{folder.path} is finished and has neither {folder.policy_file.name} nor a checkpoint: train it again with "
            "another run_dir="
        )
    raise RunFolderError(
        f"{folder.path} has no policy yet: let the run go on with rppdyn train-agent --resume {folder.path}"
    )


# -- environments in a process of their own ----------------------------------------------------------------------------

PRELOAD = ["rppdyn.jobs.building"]
"""Modules that all workers of a run import."""


class WorkerEnv(VecEnv):
    """Environments in one worker process, which steps them one after the other.

        RPPSAC("RPPPolicy", WorkerEnv(partial(make_env, "Ant-v5")), seed=3)

    Steps equal those of stable-baselines3's `DummyVecEnv` bit by bit. One message has the steps of all environments; with
    `SubprocVecEnv` ten seeds of 64 environments would be 640 processes.

    Args:
        build: make an environment; checkpoints capture those of `rppdyn.envs.make_env`.
        count: number of environments.
    Raises:
        WorkerError: the process is gone. Every method raises it, and passes on errors of the environments.
    """

    def __init__(self, build: Callable[[], gymnasium.Env], count: int = 1) -> None:
        self.worker = Worker(PRELOAD)
        self._answer: Future[Any] | None = None
        try:
            spaces = self.worker.submit(_make_envs, CloudpickleWrapper(build), count).result()
        except WorkerError as error:
            raise WorkerError(f"{error} while it made the environment") from error
        super().__init__(count, *spaces)

    def _submit(self, name: str, *arguments: Any, **options: Any) -> Future[Any]:
        return self.worker.submit(_call_envs, name, arguments, options)

    def _call(self, name: str, *arguments: Any, **options: Any) -> Any:
        value, self.reset_infos = self._submit(name, *arguments, **options).result()
        return value

    def reset(self) -> Any:
        observations, self.reset_infos = self.worker.submit(_reset_envs, self._seeds, self._options).result()
        self._reset_seeds()
        self._reset_options()
        return observations

    def step_async(self, actions: NDArray) -> None:
        self._answer = self._submit("step", actions)

    def step_wait(self) -> VecEnvStepReturn:
        assert self._answer is not None
        step, self.reset_infos = self._answer.result()
        return step

    def has_attr(self, attr_name: str) -> bool:
        return self._call("has_attr", attr_name)

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        value = self._call("get_attr", attr_name, indices)
        if isinstance(value, AttributeError):
            raise value
        return value

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        self._call("set_attr", attr_name, value, indices)

    def env_method(self, method_name: str, *method_args: Any, indices: Any = None, **method_kwargs: Any) -> list[Any]:
        return self._call("env_method", method_name, *method_args, indices=indices, **method_kwargs)

    def env_is_wrapped(self, wrapper_class: type[gymnasium.Wrapper], indices: Any = None) -> list[bool]:
        return self._call("env_is_wrapped", wrapper_class, indices)

    def get_images(self) -> Sequence[NDArray | None]:
        return self._call("get_images")

    def close(self) -> None:
        """Close the environments and end the process, whatever their state."""
        with suppress(Exception):
            self._submit("close").result(SHUTDOWN_SECONDS)
        self.worker.close()


_envs: DummyVecEnv  # in a worker


def _make_envs(build: CloudpickleWrapper, count: int) -> tuple[gymnasium.Space, gymnasium.Space]:
    global _envs
    _envs = DummyVecEnv([build.var] * count)
    return _envs.observation_space, _envs.action_space


def _reset_envs(seeds: list[Any], options: list[Any]) -> tuple[Any, list[dict[str, Any]]]:
    _envs._seeds, _envs._options = seeds, options
    return _call_envs("reset", (), {})


def _call_envs(name: str, arguments: tuple[Any, ...], options: dict[str, Any]) -> tuple[Any, list[dict[str, Any]]]:
    """Call a method; returns its value and the infos of the last resets. An AttributeError of `get_attr` is its value."""
    try:
        return getattr(_envs, name)(*arguments, **options), _envs.reset_infos
    except AttributeError as error:
        if name != "get_attr":
            raise
        return error, _envs.reset_infos


# -- episodes ----------------------------------------------------------------------------------------------------------

Policy = Callable[[NDArray], NDArray]
"""Observations (n, observation) to actions (n, action)."""

EXPLORATION_NOISE = 0.1
"""Standard deviation of the noise of a deterministic policy, in half ranges of the actions, as in TD3's training."""


@dataclass(frozen=True)
class Episodes:
    """Finished episodes: undiscounted returns, lengths, and all observations and actions, episode after episode."""

    returns: NDArray[np.float64]
    lengths: NDArray[np.int64]
    observations: NDArray[np.float64]
    actions: NDArray[np.float64]

    def spread(self, count: int) -> tuple[NDArray, NDArray]:
        """`count` pairs of observation and action (or all, if there are fewer), evenly spaced over the episodes."""
        chosen = evenly(len(self.observations), count)
        return self.observations[chosen], self.actions[chosen]


class Evaluator:
    """Plays episodes of policies in its own environments, from the same initial states every time.

    Episode i starts from a reset with seed `seed + i`. The episodes advance together, so that the policy is called once per
    time step, and its batch keeps one shape when episodes end. An environment without a time limit causes a warning, since
    its episodes may never end.
    """

    def __init__(self, make: Callable[..., gymnasium.Env], episodes: int, seed: int):
        self.make = make
        self.envs = [make() for _ in range(episodes)]
        self.seed = seed
        spec = self.envs[0].spec
        if spec is None or spec.max_episode_steps is None:
            name = type(self.envs[0].unwrapped).__name__ if spec is None else spec.id
            logger.warning(
                "%s has no time limit, and episodes that it does not end itself never end: register it with "
                "max_episode_steps=, or wrap it in gymnasium.wrappers.TimeLimit",
                name,
            )

    def run(self, policy: Policy) -> Episodes:
        """Play every episode to its end, by termination or by the environment's time limit."""
        if hasattr(policy, "reset"):  # it has a memory
            policy.reset()
        observations = np.stack([env.reset(seed=self.seed + i)[0] for i, env in enumerate(self.envs)])
        observed: list[list[NDArray]] = [[] for _ in self.envs]
        acted: list[list[NDArray]] = [[] for _ in self.envs]
        rewards: list[list[float]] = [[] for _ in self.envs]
        running = set(range(len(self.envs)))
        while running:
            actions = policy(observations)
            for i in sorted(running):
                observed[i].append(observations[i].copy())
                acted[i].append(np.asarray(actions[i]).copy())
                observations[i], reward, terminated, truncated, _ = self.envs[i].step(actions[i])
                rewards[i].append(float(reward))
                if terminated or truncated:
                    running.remove(i)
        return Episodes(
            returns=np.array([sum(episode) for episode in rewards]),
            lengths=np.array([len(episode) for episode in rewards]),
            observations=np.stack([*chain(*observed)]),
            actions=np.stack([*chain(*acted)]),
        )

    def play(self, agent: BaseAlgorithm | BasePolicy) -> Episodes:
        """Play every episode with an agent's deterministic policy."""
        return self.run(policy_of(agent))

    def explore(self, agent: BaseAlgorithm | BasePolicy) -> Episodes:
        """Play every episode with an agent's exploring policy.

        Deterministic episodes of a symmetric policy stay close to states that are their own mirror images, where every
        function looks equivariant. Exploring leaves them.
        """
        with exploring_policy(agent, self.seed) as policy:
            return self.run(policy)

    def close(self) -> None:
        """Close the environments."""
        for env in self.envs:
            env.close()


def policy_of(agent: BaseAlgorithm | BasePolicy) -> Policy:
    """An agent's deterministic policy."""
    return lambda observations: agent.predict(observations, deterministic=True)[0]


@contextmanager
def exploring_policy(agent: BaseAlgorithm | BasePolicy, seed: int) -> Iterator[Policy]:
    """An agent's stochastic policy, with its noise seeded; a policy without noise gets Gaussian noise."""
    policy: Any = getattr(agent, "policy", agent)
    if isinstance(policy, TD3Policy):
        yield add_noise(policy_of(policy), policy.action_space, seed)
        return
    actor: Any = getattr(policy, "actor", None)
    generator = getattr(actor, "generator", None)  # without one the noise is of torch's global generator
    with preserve_random_state():
        torch.manual_seed(seed)
        if generator is not None:
            actor.generator = torch.Generator().manual_seed(seed)
        try:
            yield lambda observations: policy.predict(observations, deterministic=False)[0]
        finally:
            if generator is not None:
                actor.generator = generator


def add_noise(policy: Policy, space: gymnasium.Space, seed: int) -> Policy:
    """A policy with Gaussian noise of `EXPLORATION_NOISE` half ranges added to its actions, within their bounds.

    Raises:
        ConfigError: the action space is no Box.
    """
    if not isinstance(space, gymnasium.spaces.Box):
        raise ConfigError(f"the action space is {space}, and there is no noise for it: actions must be of a Box")
    generator = np.random.default_rng(seed)

    def act(observations: NDArray) -> NDArray:
        actions = policy(observations)
        noise = generator.normal(size=actions.shape) * (EXPLORATION_NOISE / 2) * (space.high - space.low)
        return np.clip(actions + noise, space.low, space.high)

    return act


@contextmanager
def agent_of(run: str, episodes: int, seed: int, *, trust: bool = False) -> Iterator[tuple[Agent, str, Evaluator]]:
    """The agent of a run, the source of its weights in words, and an evaluator that plays its episodes.

    Args:
        trust: whether a module that the run names may be imported to make its environment.
    """
    folder = RunFolder.open(run)
    config = compose.from_run("train_agent", folder, trust=trust)
    if not torch.cuda.is_available():  # the run may be from another machine
        config = replace(config, device="cpu")
    with ExitStack() as stack:
        stack.enter_context(process_state(config.threads))
        env = stepped = stack.enter_context(closing(build_env(config)))
        if (count := config.agent.num_envs) > 1:  # as the checkpoints' agent has
            stepped = stack.enter_context(closing(DummyVecEnv([partial(build_env, config)] * count)))
        agent = build_agent(config, stepped, spec_of(config, folder, env))
        source = load_policy(agent, folder)
        evaluator = stack.enter_context(closing(Evaluator(partial(build_env, config), episodes, seed)))
        yield agent, source, evaluator
