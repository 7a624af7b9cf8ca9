"""Episodes of a policy, and what a run measures of its agent: in its own process, or beside it while training goes on."""

from __future__ import annotations

import copy
import importlib
import io
import logging
import math
import os
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from numpy.typing import NDArray
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.td3.policies import TD3Policy

from rppdyn.agents import Agent, AgentEquivarianceError
from rppdyn.envs import SymmetrySpec
from rppdyn.jobs.config import compose
from rppdyn.jobs.config.agent import EVALUATION_SEED, TrainAgentConfig
from rppdyn.jobs.config.base import ConfigError
from rppdyn.jobs.training.building import build_agent, build_env, load_policy, process_state, spec_of
from rppdyn.runs import Progress, RunFolder
from rppdyn.runs.files import replacing
from rppdyn.runs.workers import Worker, kept_random_state

logger = logging.getLogger(__name__)

Policy = Callable[[NDArray], NDArray]
"""Observations (n, observation) to actions (n, action)."""

NOISE = 0.1
"""Exploration noise of a deterministic policy, in half ranges of the actions, as TD3 does in training."""


@dataclass(frozen=True)
class Episodes:
    """Finished episodes: undiscounted returns and lengths, and what was seen and done, in order of the episodes."""

    returns: NDArray[np.float64]
    lengths: NDArray[np.int64]
    observations: NDArray[np.float64]
    actions: NDArray[np.float64]

    def spread(self, count: int) -> tuple[NDArray, NDArray]:
        """`count` pairs of observation and action (or all, if there are fewer), evenly spaced over the episodes."""
        total = len(self.observations)
        chosen = np.unique(np.linspace(0, total - 1, min(count, total)).round().astype(int))
        return self.observations[chosen], self.actions[chosen]


class Evaluator:
    """Episodes of a policy in environments of its own, the same initial states every time.

    Episode i starts from a reset with seed `seed + i`. The episodes advance together, so that the policy is called
    once per time step; its batch keeps one shape, whichever episodes have ended. An environment without a time limit is
    warned of: what it does not end itself goes on for ever.
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
        begin(policy)
        observations = np.stack([env.reset(seed=self.seed + i)[0] for i, env in enumerate(self.envs)])
        seen: list[list[NDArray]] = [[] for _ in self.envs]
        done: list[list[NDArray]] = [[] for _ in self.envs]
        rewards: list[list[float]] = [[] for _ in self.envs]
        running = set(range(len(self.envs)))
        while running:
            actions = policy(observations)
            for i in sorted(running):
                seen[i].append(observations[i].copy())
                done[i].append(np.asarray(actions[i]).copy())
                observations[i], reward, terminated, truncated, _ = self.envs[i].step(actions[i])
                rewards[i].append(float(reward))
                if terminated or truncated:
                    running.remove(i)
        return Episodes(
            returns=np.array([sum(episode) for episode in rewards]),
            lengths=np.array([len(episode) for episode in rewards]),
            observations=_joined(seen),
            actions=_joined(done),
        )

    def play(self, agent: BaseAlgorithm | BasePolicy) -> Episodes:
        """As `run`, with an agent's deterministic policy."""
        return self.run(policy_of(agent))

    def explore(self, agent: BaseAlgorithm | BasePolicy) -> Episodes:
        """As `run`, with actions drawn from the policy by noise of its own; a policy without any gets Gaussian noise.

        The deterministic episodes of a symmetric policy stay close to states that are their own mirror images, where
        every function looks equivariant; exploring leaves them.
        """
        with exploring(agent, self.seed) as policy:
            return self.run(policy)

    def close(self) -> None:
        """Close the environments."""
        for env in self.envs:
            env.close()


def begin(policy: Policy) -> None:
    """Begin episodes, with a policy that has a memory."""
    if hasattr(policy, "reset"):
        policy.reset()


def policy_of(agent: BaseAlgorithm | BasePolicy) -> Policy:
    """An agent's deterministic policy."""
    return lambda observations: agent.predict(observations, deterministic=True)[0]


@contextmanager
def exploring(agent: BaseAlgorithm | BasePolicy, seed: int) -> Iterator[Policy]:
    """An agent's exploring policy: actions drawn from it by noise of its own; a policy without any gets Gaussian noise."""
    policy: Any = getattr(agent, "policy", agent)
    if isinstance(policy, TD3Policy):
        yield noisy(policy_of(policy), policy.action_space, seed)
        return
    with _own_noise(policy, seed):
        yield lambda observations: policy.predict(observations, deterministic=False)[0]


def noisy(policy: Policy, space: gymnasium.Space, seed: int) -> Policy:
    """A policy with Gaussian noise of `NOISE` of half the actions' range, within their bounds.

    Raises:
        ConfigError: actions are no numbers with bounds.
    """
    if not isinstance(space, gymnasium.spaces.Box):
        raise ConfigError(f"the action space is {space}, and there is no noise for it: actions must be of a Box")
    generator = np.random.default_rng(seed)

    def act(observations: NDArray) -> NDArray:
        actions = policy(observations)
        noise = generator.normal(size=actions.shape) * (NOISE / 2) * (space.high - space.low)
        return np.clip(actions + noise, space.low, space.high)

    return act


@contextmanager
def _own_noise(policy: BasePolicy, seed: int) -> Iterator[None]:
    """Begin a policy's noise, of its actor's generator or torch's global one, at a seed, and put it back on leaving."""
    actor: Any = getattr(policy, "actor", None)
    kept = getattr(actor, "generator", None)
    with kept_random_state():
        torch.manual_seed(seed)
        if kept is not None:
            actor.generator = torch.Generator().manual_seed(seed)
        try:
            yield
        finally:
            if kept is not None:
                actor.generator = kept


def _joined(episodes: Sequence[Sequence[NDArray]]) -> NDArray[np.float64]:
    return np.concatenate([np.stack(episode) for episode in episodes])


# -- what a run measures of its agent ----------------------------------------------------------------------------------

Measured = tuple[dict[str, Any], float]
"""Values by the names that `docs/metrics.md` defines, and the seconds that it took."""


class Evaluations(ABC):
    """Measures an agent as it is, always on the same initial states; one at a time."""

    @abstractmethod
    def begin(self, agent: Agent) -> None:
        """Measure the agent as it is now."""

    @abstractmethod
    def found(self, wait: bool) -> Measured | None:
        """Return the measurement begun last, once; None if it is not ready and `wait` is false."""

    @abstractmethod
    def close(self) -> None:
        """Close environments."""


class SyncEvaluations(Evaluations):
    """In this process, while training waits."""

    def __init__(self, config: TrainAgentConfig) -> None:
        self.states = config.evaluation.states
        self.evaluator = Evaluator(lambda: build_env(config), config.evaluation.episodes, EVALUATION_SEED)
        self._found: Measured | None = None

    def measured(self, agent: Agent) -> Measured:
        """Measure the agent as it is now."""
        start = time.monotonic()
        with kept_random_state():
            values = measure(agent, self.evaluator, self.states)
        return values, time.monotonic() - start

    def begin(self, agent: Agent) -> None:
        self._found = self.measured(agent)

    def found(self, wait: bool) -> Measured | None:
        found, self._found = self._found, None
        return found

    def close(self) -> None:
        self.evaluator.close()


class AsyncEvaluations(Evaluations):
    """In a process of its own, on the CPU, while training goes on.

    Args:
        spec: the symmetry of the agent's networks.
    """

    def __init__(self, config: TrainAgentConfig, spec: SymmetrySpec) -> None:
        # without what training alone needs
        agent = replace(config.agent, buffer_size=1, num_envs=1, compile=False, matmul_precision=None)
        self._arguments = replace(config, device="cpu", agent=agent), spec
        self._worker = Worker()
        self._pool = ThreadPoolExecutor(1)
        self._answer: Future[Measured] | None = None

    def begin(self, agent: Agent) -> None:
        weights = io.BytesIO()
        # copies: agents that are trained together have views of what all share, which would be saved whole
        copied = {key: value.to("cpu", copy=True) for key, value in agent.policy.state_dict().items()}
        torch.save(copied, weights)
        self._worker.ask(measure_there, *self._arguments, weights.getvalue())
        self._answer = self._pool.submit(self._worker.answer)

    def found(self, wait: bool) -> Measured | None:
        if self._answer is None or not (wait or self._answer.done()):
            return None
        found, self._answer = self._answer.result(), None
        return found

    def close(self) -> None:
        self._worker.close()
        self._pool.shutdown()


_there: tuple[Agent, SyncEvaluations] | None = None


def measure_there(config: TrainAgentConfig, spec: SymmetrySpec, weights: bytes) -> Measured:
    """In a worker: measure the agent that has these weights, which is built at the first call."""
    global _there
    if _there is None:
        _there = build_agent(config, build_env(config), spec), SyncEvaluations(config)
    agent, here = _there
    agent.policy.load_state_dict(torch.load(io.BytesIO(weights), map_location="cpu", weights_only=True))
    return here.measured(agent)


def measure(agent: Agent, evaluator: Evaluator, states: int) -> dict[str, Any]:
    """Returns, equivariance errors and pathways of an agent, by the names that `docs/metrics.md` defines."""
    # one step's actions are too little for a GPU to be faster at
    player = agent.policy if agent.device.type == "cpu" else copy.deepcopy(agent.policy).to("cpu")
    episodes = evaluator.play(player)
    observations, actions = evaluator.explore(player).spread(states)
    values: dict[str, Any] = {
        "eval/return_mean": float(episodes.returns.mean()),
        "eval/return_std": float(episodes.returns.std()),
        "eval/length_mean": float(episodes.lengths.mean()),
        "eval/returns": episodes.returns.tolist(),
    }
    if not agent.spec.is_trivial:
        for who, error in agent.equivariance_errors(observations, actions).items():
            values |= _named(who, error)
    return values | {f"pathway/{name}": value for name, value in agent.pathway_statistics().items()}


def _named(who: str, error: AgentEquivarianceError) -> dict[str, Any]:
    """Errors by generator; null where they are vacuous."""
    values: dict[str, Any] = {f"equivariance/{who}": None if error.vacuous else error.error}
    for generator, value in error.per_generator.items():
        values[f"equivariance/{who}/{generator}"] = None if error.vacuous else value
    return values


@contextmanager
def agent_of(run: str, episodes: int, seed: int, *, trust: bool = False) -> Iterator[tuple[Agent, str, Evaluator]]:
    """The agent of a run, where its weights come from, and an evaluator to play episodes with.

    Args:
        trust: whether a module that the run names may be imported to make its environment.
    """
    folder = RunFolder.open(run)
    config = compose.from_run("train_agent", folder, trust=trust)
    if not torch.cuda.is_available():  # a run that was trained elsewhere can be looked at here
        config = replace(config, device="cpu")
    with process_state(config.threads):
        env = build_env(config)
        agent = build_agent(config, env, spec_of(config, folder, env))
        source = load_policy(agent, folder)
        evaluator = Evaluator(partial(build_env, config), episodes, seed)
        try:
            yield agent, source, evaluator
        finally:
            evaluator.close()
            env.close()


# -- an episode as a film ----------------------------------------------------------------------------------------------

MAX_RATE = 30.0
"""Frames per second; robots that are simulated faster leave frames out, and the film still runs in real time."""


def require_format(path: str) -> None:
    """Refuse a film that can't be written, before anything is played.

    Raises:
        ConfigError: neither .gif nor .mp4, the encoder of the latter is not installed, or MUJOCO_GL names a library that
            is not there.
    """
    suffix = Path(path).suffix.lower()
    if suffix not in (".gif", ".mp4"):
        raise ConfigError(f"--video {path}: the name must end in .gif or .mp4")
    if suffix == ".mp4" and find_spec("imageio_ffmpeg") is None:
        raise ConfigError(f"--video {path}: MP4 needs an encoder; pip install imageio-ffmpeg, or write a .gif")
    try:
        importlib.import_module("mujoco")
    except Exception as error:  # PyOpenGL raises what it likes, AttributeError included
        raise _no_drawing(error) from error


def film(make: Callable[[], gymnasium.Env], policy: Policy, seed: int, path: Path, *, progress: bool = False) -> int:
    """Write the episode that starts from a reset with this seed; returns the number of frames.

    Args:
        make: makes the environment, with `render_mode="rgb_array"`.
        policy: observations (n, ...) to actions (n, ...).
        progress: show a bar on standard error; without a graphics card a frame takes a tenth of a second.
    Raises:
        ConfigError: nothing can draw on this machine.
    """
    with drawing(make) as env:
        rate = float(env.metadata.get("render_fps") or MAX_RATE)
        every = math.ceil(rate / MAX_RATE)
        write = _gif if path.suffix.lower() == ".gif" else _mp4
        limit = (env.spec.max_episode_steps if env.spec else None) or 0
        with Progress(limit, description="film", unit="step", enabled=progress) as bar, replacing(path) as temporary:
            return write(temporary, _frames(env, policy, seed, every, bar), rate / every)


@contextmanager
def drawing(make: Callable[[], gymnasium.Env]) -> Iterator[gymnasium.Env]:
    """An environment that has been seen to draw; where there is no display, by EGL, unless MUJOCO_GL says otherwise.

    Raises:
        ConfigError: it can't draw.
    """
    chosen = os.environ.get("MUJOCO_GL")
    headless = sys.platform.startswith("linux") and not os.environ.get("DISPLAY")
    if chosen is None and headless:
        os.environ["MUJOCO_GL"] = "egl"
    try:
        env = make()
        try:
            env.reset(seed=0)
            try:
                _open_context(env)
                _follow(env)
                env.render()
            except Exception as error:  # whatever MuJoCo, PyOpenGL or GLFW raise without a library or a display
                raise _no_drawing(error) from error
            yield env
        finally:
            env.close()
    finally:
        if chosen is None:
            os.environ.pop("MUJOCO_GL", None)


def _open_context(env: gymnasium.Env) -> None:
    """Open and close MuJoCo's drawing context by itself: a viewer of Gymnasium's that can't complains again when freed."""
    from gymnasium.envs.mujoco import MujocoEnv  # not above: it imports MuJoCo, whose failure is to be told in one line

    backend = os.environ.get("MUJOCO_GL")
    if isinstance(env.unwrapped, MujocoEnv) and backend in ("egl", "osmesa"):
        importlib.import_module(f"mujoco.{backend}").GLContext(16, 16).free()


def _follow(env: gymnasium.Env) -> None:
    """Draw by the model's camera `track` where none was chosen: Gymnasium 1.4's default stands still, and robots leave it."""
    inner: Any = env.unwrapped
    if getattr(getattr(inner, "mujoco_renderer", None), "camera_id", None) == -1:
        tracking = [i for i in range(inner.model.ncam) if inner.model.cam(i).name == "track"]
        inner.mujoco_renderer.camera_id = tracking[0] if tracking else -1


def _no_drawing(error: Exception) -> ConfigError:
    text = str(error).strip()
    reason = text.splitlines()[0] if text else type(error).__name__
    return ConfigError(
        f"--video: nothing can draw here ({os.environ.get('MUJOCO_GL', 'the display')}: {reason}); without a display install "
        "Mesa's EGL (apt-get install libegl1 libgl1-mesa-dri), or libosmesa6 and set MUJOCO_GL=osmesa"
    )


def _frames(env: gymnasium.Env, policy: Policy, seed: int, every: int, bar: Progress) -> Iterator[NDArray[np.uint8]]:
    observation, _ = env.reset(seed=seed)
    begin(policy)
    step, over = 0, False
    while not over:
        if step % every == 0:
            yield np.asarray(env.render())
        observation, _, terminated, truncated, _ = env.step(policy(observation[None])[0])
        step, over = step + 1, terminated or truncated
        bar.update(step)
    bar.end(step)
    yield np.asarray(env.render())


def _gif(path: Path, frames: Iterator[NDArray[np.uint8]], rate: float) -> int:
    from PIL import Image

    # 8 bits per pixel at once: a minute of film in full colour would take a gigabyte.
    images = [Image.fromarray(frame).quantize(128) for frame in frames]
    delay = 10 * round(100 / rate)  # GIFs count hundredths of a second
    images[0].save(path, save_all=True, append_images=images[1:], duration=delay, loop=0)
    return len(images)


def _mp4(path: Path, frames: Iterator[NDArray[np.uint8]], rate: float) -> int:
    import imageio_ffmpeg

    first = next(frames)
    height, width = first.shape[:2]
    writer: Any = imageio_ffmpeg.write_frames(str(path), (width, height), fps=rate, macro_block_size=2)
    writer.send(None)
    count = 0
    try:
        for frame in chain([first], frames):
            writer.send(np.ascontiguousarray(frame))
            count += 1
    finally:
        writer.close()
    return count
