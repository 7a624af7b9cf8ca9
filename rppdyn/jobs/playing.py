"""`rppdyn evaluate-agent` and `rppdyn collect`: episodes of an agent, measured, filmed or written as a Minari dataset."""

from __future__ import annotations

import importlib
import math
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from rppdyn.agents import RPPSAC, played_episodes, random_policy, replay_episodes, spread_episodes
from rppdyn.envs import Episode, make_env, write_episodes
from rppdyn.jobs import building
from rppdyn.jobs.building import Policy, agent_of, exploring_policy, policy_of
from rppdyn.jobs.config import compose
from rppdyn.jobs.config.agent import EnvConfig, TrainAgentConfig
from rppdyn.jobs.config.base import ConfigError
from rppdyn.jobs.config.command import CollectConfig, EvaluateAgentConfig, pretrained_name
from rppdyn.jobs.loading import load_player, load_policy
from rppdyn.jobs.targets import check_environment
from rppdyn.runs import Progress, RunFolder
from rppdyn.runs.files import replacing, write_json, write_measured
from rppdyn.runs.workers import torch_threads

# -- evaluate-agent ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class EvaluateAgentResult:
    """Returns and lengths of the episodes, and the weights that played them, in words."""

    run: str
    source: str
    seed: int
    returns: list[float]
    lengths: list[int]
    return_mean: float
    return_std: float
    video: str | None = None


def evaluate(config: EvaluateAgentConfig, *, progress: bool = False) -> EvaluateAgentResult:
    """Play episodes with a deterministic policy, and write the result to `RUN/evaluation.json` or `FILE.evaluation.json`.

    Args:
        progress: show a bar on standard error while the film is drawn.
    """
    if config.video is not None:
        require_format(config.video)
    with torch_threads(None), load_player(config) as (loaded, policy, evaluator):
        episodes = evaluator.run(policy)
        result = EvaluateAgentResult(
            run=config.run,
            source=loaded.source,
            seed=config.seed,
            returns=episodes.returns.tolist(),
            lengths=episodes.lengths.tolist(),
            return_mean=float(episodes.returns.mean()),
            return_std=float(episodes.returns.std()),
            video=config.video,
        )
        files: dict[str, Callable[[Path], object]] = {}
        if config.video is not None:
            make = partial(evaluator.make, render_mode="rgb_array")
            first = episodes.actions[: episodes.lengths[0]]
            files[config.video] = lambda path: film(make, first, config.seed, path, progress=progress)
        if config.kind == "run":
            file = str(Path(config.run, "evaluation.json"))
        elif name := pretrained_name(config.run):
            file = f"{Path(name).name}.evaluation.json"  # in the working folder
        else:
            file = str(Path(config.run).with_suffix(".evaluation.json"))
        files[file] = lambda path: write_json(path, asdict(result))
        write_measured(result, files)
    return result


def table(result: EvaluateAgentResult, written: bool = True) -> str:
    """A line of text for each episode with return and length, and the place of the film, if it was written."""
    lines = [f"{result.run}: {result.source}", "episode  seed        return  steps"]
    for i, (value, length) in enumerate(zip(result.returns, result.lengths, strict=True)):
        lines.append(f"{i:7d}  {result.seed + i:<6d}  {value:10.2f}  {length:5d}")
    if result.video is not None and written:
        lines.append(f"film of the first episode: {result.video}")
    lines.append(f"mean return {result.return_mean:.2f}, standard deviation {result.return_std:.2f}")
    return "\n".join(lines)


# -- collect -----------------------------------------------------------------------------------------------------------

DEFAULT_STEPS = 50_000  # of played episodes


@dataclass(frozen=True)
class CollectResult:
    """A written dataset.

    Attributes:
        dataset, folder: its Minari id and its folder.
        env: environment of the episodes.
        source: source of the episodes, in words.
        lengths, returns: steps and undiscounted sum of rewards of each episode.
    """

    dataset: str
    folder: str
    env: str
    source: str
    lengths: list[int]
    returns: list[float]

    def __str__(self) -> str:
        steps, count = sum(self.lengths), len(self.lengths)
        return (
            f"{self.dataset}: {steps} transitions of {self.env} in {count} episode{'s' * (count != 1)}, {self.source}\n"
            f"mean return {sum(self.returns) / count:.2f}, mean length {steps / count:.1f}\n{self.folder}"
        )


@dataclass(frozen=True)
class _EpisodeSource:
    """Episodes to be written.

    Attributes:
        episodes: episodes, played on demand.
        steps: their approximate number of steps.
        name: short name of the source, for the dataset's id.
        description: the source in words.
    """

    env: gymnasium.Env
    episodes: Iterable[Episode]
    steps: int
    name: str
    description: str


def collect(config: CollectConfig, *, progress: bool = False) -> CollectResult:
    """Collect episodes into a new Minari dataset.

    Args:
        progress: show a bar on standard error.
    """
    lengths: list[int] = []
    returns: list[float] = []

    def record_episodes(source: _EpisodeSource, bar: Progress) -> Iterator[Episode]:
        steps = 0
        for episode in source.episodes:
            steps += len(episode)
            lengths.append(len(episode))
            returns.append(float(episode.rewards.sum()))
            bar.update(min(steps, source.steps))
            yield episode

    open_source = _run_source if config.kind == "run" else _new_source
    with torch_threads(None), open_source(config) as source:
        assert source.env.spec is not None
        env_id = source.env.spec.id
        default_id = f"rppdyn/{_as_minari_name(env_id)}/{_as_minari_name(source.name)}-v0"
        dataset = default_id if config.name is None else config.name
        with Progress(source.steps, description=f"collect {env_id}", delay=1.0, enabled=progress) as bar:
            folder = write_episodes(
                dataset,
                record_episodes(source, bar),
                env=source.env,
                algorithm=source.description,
                description=f"{env_id}, {source.description}",
            )
    return CollectResult(dataset, str(folder), env_id, source.description, lengths, returns)


@contextmanager
def _new_source(config: CollectConfig) -> Iterator[_EpisodeSource]:
    """Episodes of random actions, or of the policy in a file."""
    assert config.env is not None
    env = make_env(config.env.id, actuator_scale=config.env.actuator_scale, monitor=False, **config.env.kwargs)
    with closing(env):
        if config.kind == "random":
            act = random_policy(env.action_space, config.seed)
            yield _play(config, env, act, f"random-seed{config.seed}", "random actions")
            return
        assert config.source is not None
        policy = load_policy(config.source, config.vecnormalize)
        check_environment(config.source, policy, env, "env=")
        play, file = config.play or "exploring", Path(config.source)
        with _choose_policy(policy, play, config.seed) as act:
            yield _play(config, env, act, f"{file.stem}-{play}", f"{play} policy of {file.name}")


@contextmanager
def _run_source(config: CollectConfig) -> Iterator[_EpisodeSource]:
    """The replay buffer of a run, or episodes played by its policy."""
    assert config.source is not None
    folder = RunFolder.open(config.source)
    trained: TrainAgentConfig = compose.from_run("train_agent", folder)
    if config.env is not None and _identity(config.env) != _identity(trained.env):
        raise ConfigError(
            f"env={config.env.id} with its options is not what {folder.path} was trained on, {trained.env.id} with its own: "
            "leave out env="
        )
    trust = config.trust or config.env is not None  # the user has named the run's environment
    agent_name = f"{trained.model.kind}-seed{trained.seed}"
    with agent_of(config.source, 1, config.seed, trust=trust) as (agent, weights, evaluator):
        env = evaluator.envs[0]
        if config.play is not None:
            with _choose_policy(agent, config.play, config.seed) as act:
                words = f"{config.play} {weights} of {trained.model.kind}"
                yield _play(config, env, act, f"{agent_name}-{config.play}", words)
            return
        if not isinstance(agent, RPPSAC):
            raise ConfigError(f"{folder.path} is a run of agent=ppo, which keeps no transitions: add --play exploring")
        step = building.load_checkpoint(agent, folder)
        replayed = replay_episodes(agent)
        if config.steps is not None:
            replayed = spread_episodes(replayed, steps=config.steps, seed=config.seed)
        words = f"replay buffer of {trained.model.kind} at step {step}"
        yield _EpisodeSource(env, replayed, sum(map(len, replayed)), f"{agent_name}-replay", words)


def _play(config: CollectConfig, env: gymnasium.Env, policy: Policy, name: str, description: str) -> _EpisodeSource:
    steps = config.steps or DEFAULT_STEPS
    return _EpisodeSource(env, played_episodes(env, policy, steps=steps, seed=config.seed), steps, name, description)


def _choose_policy(agent: Any, play: str, seed: int) -> AbstractContextManager[Policy]:
    return nullcontext(policy_of(agent)) if play == "deterministic" else exploring_policy(agent, seed)


def _identity(env: EnvConfig) -> tuple[str, dict, dict]:
    return env.id, env.kwargs, env.actuator_scale


def _as_minari_name(text: str) -> str:
    """Replace the characters that Minari does not allow in names."""
    return re.sub(r"[^\w-]", "_", text)


# -- an episode as a film ----------------------------------------------------------------------------------------------

MAX_RATE = 30.0
"""Largest number of frames per second; a robot with a faster simulation leaves frames out, in real time."""


def require_format(path: str) -> None:
    """Refuse a film that can't be written.

    Raises:
        ConfigError: its name ends neither in .gif nor in .mp4, the encoder of the latter is not installed, or the library in
            MUJOCO_GL is missing.
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


def film(make: Callable[[], gymnasium.Env], actions: NDArray, seed: int, path: Path, *, progress: bool = False) -> int:
    """Film an episode that was played, from a reset with its seed; returns the number of frames.

    Asked again, alone and not in a batch, its policy would round otherwise, which a robot amplifies.

    Args:
        make: make the environment, with `render_mode="rgb_array"`.
        actions: the episode's actions, one a step.
        progress: show a bar on standard error; without a graphics card a frame takes a tenth of a second.
    """
    with open_drawing_env(make) as env:
        rate = float(env.metadata.get("render_fps") or MAX_RATE)
        stride = math.ceil(rate / MAX_RATE)
        write = _gif if path.suffix.lower() == ".gif" else _mp4
        with Progress(len(actions), description="film", unit="step", enabled=progress) as bar, replacing(path) as new:
            return write(new, _frames(env, actions, seed, stride, bar), rate / stride)


@contextmanager
def open_drawing_env(make: Callable[[], gymnasium.Env]) -> Iterator[gymnasium.Env]:
    """Make an environment and check that it can draw; without a display and MUJOCO_GL it draws by EGL.

    Raises:
        ConfigError: it can't draw.
    """
    chosen = os.environ.get("MUJOCO_GL")
    headless = sys.platform.startswith("linux") and not os.environ.get("DISPLAY")
    if chosen is None and headless:
        os.environ["MUJOCO_GL"] = "egl"
    try:
        with closing(make()) as env:
            env.reset(seed=0)
            try:
                _probe_drawing_context(env)
                _follow(env)
                env.render()
            except Exception as error:  # whatever MuJoCo, PyOpenGL or GLFW raise without a library or a display
                raise _no_drawing(error) from error
            yield env
    finally:
        if chosen is None:
            os.environ.pop("MUJOCO_GL", None)


def _probe_drawing_context(env: gymnasium.Env) -> None:
    """Open and close MuJoCo's drawing context: if a viewer of Gymnasium failed at that, it would fail again when freed."""
    from gymnasium.envs.mujoco import MujocoEnv  # imports MuJoCo, whose failure becomes an error of one line

    backend = os.environ.get("MUJOCO_GL")
    if isinstance(env.unwrapped, MujocoEnv) and backend in ("egl", "osmesa"):
        importlib.import_module(f"mujoco.{backend}").GLContext(16, 16).free()


def _follow(env: gymnasium.Env) -> None:
    """Select the model's camera `track` if none was chosen: robots leave the picture of Gymnasium 1.4's static default."""
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


def _frames(env: gymnasium.Env, actions: NDArray, seed: int, stride: int, bar: Progress) -> Iterator[NDArray[np.uint8]]:
    env.reset(seed=seed)
    for step, action in enumerate(actions):
        if step % stride == 0:
            yield np.asarray(env.render())
        env.step(action)
        bar.update(step + 1)
    yield np.asarray(env.render())


def _gif(path: Path, frames: Iterator[NDArray[np.uint8]], rate: float) -> int:
    from PIL import Image

    # 8 bits per pixel, since a minute of film in full colour would take a gigabyte
    images = [Image.fromarray(frame).quantize(128) for frame in frames]
    delay = 10 * round(100 / rate)  # GIFs count hundredths of a second
    images[0].save(path, save_all=True, append_images=images[1:], duration=delay, loop=0)
    return len(images)


def _mp4(path: Path, frames: Iterator[NDArray[np.uint8]], rate: float) -> int:
    import imageio_ffmpeg

    first = next(frames)
    height, width = first.shape[:2]
    writer: Any = imageio_ffmpeg.write_frames(str(path), (width, height), fps=rate, macro_block_size=2)
    with closing(writer):
        writer.send(None)
        count = 0
        for frame in chain([first], frames):
            writer.send(np.ascontiguousarray(frame))
            count += 1
    return count
