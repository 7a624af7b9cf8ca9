"""An episode as a film, MP4 or GIF, drawn with or without a display.

GIFs are written by Pillow, which matplotlib brings; MP4 needs an encoder, which the optional package imageio-ffmpeg brings.
"""

from __future__ import annotations

import importlib
import math
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from rppdyn.jobs.config.checks import ConfigError
from rppdyn.jobs.training.evaluation import begin
from rppdyn.runs import Progress
from rppdyn.runs.files import replacing

MAX_RATE = 30.0
"""Frames per second; robots that are simulated faster leave frames out, and the film still runs in real time."""

Policy = Callable[[NDArray], NDArray]


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
