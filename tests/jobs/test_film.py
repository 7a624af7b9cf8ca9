"""Films of an episode: what is written, and what is said where nothing can be."""

from __future__ import annotations

import os
import sys

import gymnasium
import numpy as np
import pytest
from PIL import Image

from rppdyn.jobs.config.base import ConfigError
from rppdyn.jobs.playing import film, open_drawing_env, require_format

STEPS = 12


class Counter(gymnasium.Env):
    """Draws how many steps were taken: the pictures are the number itself, as a grey level."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,))
    action_space = gymnasium.spaces.Box(-1, 1, (1,))
    render_mode = "rgb_array"

    def __init__(self, rate: int = 20, draws: bool = True):
        self.metadata = {"render_modes": ["rgb_array"], "render_fps": rate}
        self.draws = draws

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.seed, self.count = seed, 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.count += 1
        return np.zeros(2, np.float32), 0.0, self.count == STEPS, False, {}

    def render(self):
        if not self.draws:
            raise RuntimeError("no context\nsecond line")
        return np.full((64, 64, 3), 20 * self.count, np.uint8)


ACTIONS = np.zeros((STEPS, 1), np.float32)


@pytest.mark.parametrize("rate, every", [(30, 1), (100, 4)])
def test_a_gif_runs_in_real_time_with_at_most_thirty_frames_a_second(tmp_path, rate, every):
    path = tmp_path / "new" / "film.gif"
    count = film(lambda: Counter(rate), ACTIONS, seed=3, path=path)
    with Image.open(path) as images:
        assert images.n_frames == count == STEPS // every + 1
        assert images.info["duration"] == pytest.approx(1000 * every / rate, abs=5)
        levels = []
        for k in range(images.n_frames):
            images.seek(k)
            levels.append(np.asarray(images.convert("RGB"))[32, 32, 0])
    assert np.abs(np.diff(np.array(levels, float)) - 20 * every).max() <= 3


def test_an_mp4_where_there_is_an_encoder(tmp_path):
    ffmpeg = pytest.importorskip("imageio_ffmpeg")
    path = tmp_path / "film.mp4"
    assert film(Counter, ACTIONS, seed=0, path=path) == STEPS + 1
    assert ffmpeg.count_frames_and_secs(str(path))[0] == STEPS + 1


def test_formats_are_refused_before_anything_is_played(monkeypatch):
    require_format("a.GIF")
    with pytest.raises(ConfigError, match=r"--video film\.avi: the name must end in \.gif or \.mp4"):
        require_format("film.avi")
    with monkeypatch.context() as patch:
        patch.setattr("rppdyn.jobs.playing.find_spec", lambda name: None)
        with pytest.raises(ConfigError, match=r"pip install imageio-ffmpeg, or write a \.gif"):
            require_format("film.mp4")
    monkeypatch.setenv("MUJOCO_GL", "osmesa")
    monkeypatch.setitem(sys.modules, "mujoco", None)  # importing it now fails
    with pytest.raises(ConfigError, match=r"nothing can draw here \(osmesa: .*mujoco.*libosmesa6"):
        require_format("film.gif")


def test_where_nothing_can_draw_one_line_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.delenv("MUJOCO_GL", raising=False)
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.setattr("sys.platform", "linux")
    with pytest.raises(ConfigError, match=r"nothing can draw here \(egl: no context\).*libegl1.*libosmesa6") as error:
        film(lambda: Counter(draws=False), ACTIONS, seed=0, path=tmp_path / "film.gif")
    assert "\n" not in str(error.value) and "MUJOCO_GL" not in os.environ
    monkeypatch.setenv("MUJOCO_GL", "osmesa")
    with pytest.raises(ConfigError, match=r"\(osmesa: no context\)"):
        film(lambda: Counter(draws=False), ACTIONS, seed=0, path=tmp_path / "film.gif")
    assert os.environ["MUJOCO_GL"] == "osmesa" and not (tmp_path / "film.gif").exists()


def test_mujoco_draws_the_robot(tmp_path):
    """Needs EGL or a display; a robot that moves changes the picture."""
    make = lambda: gymnasium.make("InvertedPendulum-v5", render_mode="rgb_array", max_episode_steps=5)  # noqa: E731
    try:
        film(make, ACTIONS[:5], seed=0, path=tmp_path / "film.gif")
    except ConfigError as error:
        pytest.skip(str(error))
    with Image.open(tmp_path / "film.gif") as images:
        assert images.size == (480, 480)
        first = np.asarray(images.convert("RGB"), float)
        images.seek(images.n_frames - 1)
        last = np.asarray(images.convert("RGB"), float)
    assert first.std() > 5 and np.abs(first - last).max() > 10


def test_a_robot_that_walks_stays_in_the_picture():
    """Thirty metres on, moving a leg still changes what is drawn."""
    try:
        with open_drawing_env(lambda: gymnasium.make("Walker2d-v5", render_mode="rgb_array")) as env:
            state, pictures = env.unwrapped, []
            for knee in (0.0, -1.5):
                positions = state.init_qpos.copy()
                positions[[0, 4]] = 30.0, knee
                state.set_state(positions, state.init_qvel)
                pictures.append(env.render().astype(float))
    except ConfigError as error:
        pytest.skip(str(error))
    assert np.abs(pictures[0] - pictures[1]).max() > 10


def test_an_interrupted_film_leaves_the_old_one(tmp_path, capsys):
    film(Counter, ACTIONS, seed=3, path=tmp_path / "film.gif", progress=True)
    last = capsys.readouterr().err.strip().splitlines()[-1].split("\r")[-1]
    assert "100%" in last and f"{STEPS}/{STEPS}" in last
    before = (tmp_path / "film.gif").read_bytes()

    class Interrupted(Counter):
        def step(self, action):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        film(Interrupted, ACTIONS, seed=3, path=tmp_path / "film.gif")
    assert (tmp_path / "film.gif").read_bytes() == before and len(list(tmp_path.iterdir())) == 1
