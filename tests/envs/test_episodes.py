"""Episodes on disk: exact round trips, datasets that others made, refusals in one line, nothing half-written."""

from __future__ import annotations

import json
import logging
import re
import signal
import sys
import time
from pathlib import Path

import gymnasium as gym
import h5py
import minari
import numpy as np
import pytest
from forked import start_code
from refusals import refused

from rppdyn.cli import main
from rppdyn.envs import Episode, make_env, read_episodes, symmetry_spec, write_episodes
from rppdyn.envs._episodes import check_log

WEAK = {"motor1_rot": 0.5}
NAME = "tests/random-v0"


@pytest.fixture(autouse=True)
def root(tmp_path, monkeypatch) -> Path:
    """Minari's folder."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "datasets"))
    return tmp_path / "datasets"


def played(env: gym.Env, lengths=(7, 1, 4), seed: int = 0) -> list[Episode]:
    """Random episodes of some lengths, the last one cut off."""
    env.action_space.seed(seed)
    found = []
    for i, length in enumerate(lengths):
        observations, actions, rewards = [env.reset(seed=seed + i)[0]], [], []
        for _ in range(length):
            actions.append(env.action_space.sample())
            observation, reward, *_ = env.step(actions[-1])
            observations.append(observation)
            rewards.append(reward)
        last = i == len(lengths) - 1
        found.append(Episode(np.array(observations), np.array(actions), np.array(rewards), truncated=not last))
    return found


def written(env_id: str = "Swimmer-v5", name: str = NAME, **options) -> list[Episode]:
    env = make_env(env_id, monitor=False, **options)
    episodes = played(env)
    write_episodes(name, episodes, env=env, algorithm="random", description="random actions")
    return episodes


def same(a: Episode, b: Episode) -> bool:
    keys = "observations", "actions", "rewards"
    arrays = all(getattr(a, key).tobytes() == getattr(b, key).tobytes() for key in keys)
    return arrays and (a.terminated, a.truncated) == (b.terminated, b.truncated)


# -- round trips ------------------------------------------------------------------------------------------------------


def test_a_round_trip_keeps_every_bit():
    env = make_env("Swimmer-v5", monitor=False)
    random = np.random.default_rng(0)
    exact = Episode(random.normal(size=(6, 8)), random.uniform(-1, 1, size=(5, 2)), random.normal(size=5), True, False)
    assert not np.array_equal(exact.actions, exact.actions.astype(np.float32))  # the space's precision would round them
    episodes = [*played(env), exact]
    folder = write_episodes(NAME, episodes, env=env)
    for source in (NAME, str(folder)):
        dataset = read_episodes(source, env_id="Swimmer-v5")
        assert all(same(a, b) for a, b in zip(dataset.episodes, episodes, strict=True))
        assert (dataset.name, dataset.env_id, dataset.num_transitions) == (NAME, "Swimmer-v5", 17)
    ends = [(False, True)] * 2 + [(False, False), (True, False)]
    assert [(e.terminated, e.truncated) for e in dataset.episodes] == ends


def test_minari_reads_what_is_written():
    episodes = written()
    assert list(minari.list_local_datasets()) == [NAME]
    dataset = minari.load_dataset(NAME)
    assert (dataset.total_steps, dataset.total_episodes) == (12, 3)
    assert dataset.recover_environment().spec == gym.make("Swimmer-v5").spec
    for data, episode in zip(dataset.iterate_episodes(), episodes, strict=True):
        assert data.observations.dtype == np.float64 and data.actions.dtype == np.float32
        assert np.array_equal(data.observations, episode.observations)
        assert data.truncations.tolist() == [False] * (len(episode) - 1) + [episode.truncated]


@pytest.mark.parametrize(("env_id", "options"), [
    ("Swimmer-v5", {"actuator_scale": WEAK, "reset_noise_scale": 0.3, "max_episode_steps": 5}),
    ("Swimmer-v5", {"max_episode_steps": -1}),
    ("rppdyn/WindyPendulum-v0", {"wind": 0.02}),
])  # fmt: skip
def test_the_environment_comes_back(env_id, options):
    """The same actions from the same reset give the recorded observations, with the options and weakened actuators."""
    episodes = written(env_id, **options)
    with_options = read_episodes(NAME).env()
    assert with_options.spec.max_episode_steps == make_env(env_id, **options).spec.max_episode_steps
    for i, episode in enumerate(episodes):
        observations = [with_options.reset(seed=i)[0]]
        for action in episode.actions.astype(with_options.action_space.dtype):
            observations.append(with_options.step(action)[0])
        assert np.array_equal(observations, episode.observations)


def test_an_environment_of_a_module_comes_back(tmp_path, monkeypatch):
    """It is registered by the module that holds it, which a reader has not imported."""
    (tmp_path / "slow_swimmer.py").write_text(
        "import gymnasium\nfrom gymnasium.envs.mujoco.swimmer_v5 import SwimmerEnv as Slow\n"
        "gymnasium.register('SlowSwimmer-v0', 'slow_swimmer:Slow', max_episode_steps=9, kwargs={'frame_skip': 2})\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    written("slow_swimmer:SlowSwimmer-v0")
    del gym.registry["SlowSwimmer-v0"], sys.modules["slow_swimmer"]
    dataset = read_episodes(NAME, env_id="slow_swimmer:SlowSwimmer-v0")
    assert dataset.env_id == "slow_swimmer:SlowSwimmer-v0"
    assert dataset.env().unwrapped.frame_skip == 2


@pytest.mark.filterwarnings("ignore:.*is set to None:UserWarning", "ignore:Implicitly cleaning up:ResourceWarning")
def test_a_dataset_of_minaris_own_collector(data_collector):
    """Swimmer-v5 under random actions, recorded by Minari alone; its last episode was cut off, which Minari marks."""
    env = data_collector(gym.make("Swimmer-v5", max_episode_steps=30))
    env.action_space.seed(0)
    seen = []
    for seed in range(3):
        seen.append([env.reset(seed=seed)[0]])
        for _ in range(30 if seed < 2 else 11):
            seen[-1].append(env.step(env.action_space.sample())[0])
    env.create_dataset("swimmer/others-v3")
    env.close()
    dataset = read_episodes("swimmer/others-v3", env_id="Swimmer-v5")
    assert (dataset.env_kwargs, [len(e) for e in dataset.episodes]) == ({"max_episode_steps": 30}, [30, 30, 11])
    assert all(np.array_equal(e.observations, o) for e, o in zip(dataset.episodes, seen, strict=True))
    assert [e.truncated for e in dataset.episodes] == [True] * 3
    replayed = dataset.env()
    replayed.reset(seed=1)
    for action, observation in zip(dataset.episodes[1].actions, dataset.episodes[1].observations[1:], strict=True):
        assert np.array_equal(replayed.step(action.astype(np.float32))[0], observation)


# -- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("observations", "actions", "rewards"), [((3, 2), (3, 1), (3,)), ((4, 2), (2, 1), (3,)), ((1, 2), (0, 1), (0,))]
)
def test_arrays_that_do_not_fit_are_refused(observations, actions, rewards):
    with refused(str(observations), "(T + 1, n)"):
        Episode(np.zeros(observations), np.zeros(actions), np.zeros(rewards))


def test_another_dataset_is_refused(root, tmp_path):
    for name in ("absent/random-v0", "elsewhere/absent"):
        with refused(name):
            read_episodes(name)
    (tmp_path / "log.npz").write_text("no dataset")
    with refused("log.npz is a file: give a folder that rppdyn collect has written"):
        read_episodes(str(tmp_path / "log.npz"), env_id=None)
    with refused("is a folder without a dataset"):
        read_episodes(str(tmp_path), env_id=None)
    written()
    with refused(NAME, "of Swimmer-v5", "not of Hopper-v5"):
        read_episodes(NAME, env_id="Hopper-v5")


@pytest.mark.parametrize(("group", "index", "said"), [
    ("observations", (2, 4), ["observation", symmetry_spec("Swimmer-v5").obs.names[4], "step 2", "nan"]),
    ("actions", (1, 1), ["action", symmetry_spec("Swimmer-v5").action.names[1], "step 1", "nan"]),
    ("rewards", (0,), ["reward is", "step 0", "-inf"]),
])  # fmt: skip
def test_numbers_that_are_none_are_named(root, group, index, said):
    written()
    with h5py.File(root / NAME / "data" / "main_data.hdf5", "a") as file:
        file["episode_2"][group][index] = -np.inf if group == "rewards" else np.nan
    with refused(NAME, "episode 2", *said):
        read_episodes(NAME)


def change_metadata(root: Path, **changes) -> None:
    path = root / NAME / "data" / "metadata.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_spaces_of_another_environment_are_refused(root):
    """A dataset of Swimmer-v5 that claims to be of Hopper-v5, and one whose actions had other bounds."""
    written()
    change_metadata(root, env_spec=gym.spec("Hopper-v5").to_json())
    with refused(NAME, "(8,)", "Hopper-v5", "(11,)"):
        read_episodes(NAME)
    wider = {"type": "Box", "dtype": "float32", "shape": [2], "low": [-2.0, -2.0], "high": [2.0, 2.0]}
    change_metadata(root, env_spec=gym.spec("Swimmer-v5").to_json(), action_space=json.dumps(wider))
    with refused(NAME, "action space", "2.0", "Swimmer-v5"):
        read_episodes(NAME)


def test_dictionaries_are_refused(root):
    class Goal(gym.Wrapper, gym.utils.RecordConstructorArgs):
        def __init__(self, env):
            gym.utils.RecordConstructorArgs.__init__(self)
            gym.Wrapper.__init__(self, env)
            self.observation_space = gym.spaces.Dict({"achieved_goal": env.observation_space})

    env = Goal(make_env("Swimmer-v5", monitor=False))
    with refused("Swimmer-v5", "Dict('achieved_goal'", "vector"):
        write_episodes(NAME, [], env=env)
    written()
    change_metadata(root, observation_space=minari.serialization.serialize_space(env.observation_space))
    with refused(NAME, "Dict('achieved_goal'", "vector"):
        read_episodes(NAME)


def test_wrappers_that_change_something_are_refused(root):
    env = gym.wrappers.ClipAction(gym.make("Swimmer-v5"))
    with refused("Swimmer-v5", "ClipAction", "without it"):
        write_episodes(NAME, [], env=env)
    written()
    change_metadata(root, env_spec=env.spec.to_json())
    with refused(NAME, "ClipAction", "without it"):
        read_episodes(NAME)


def test_an_environment_that_can_not_be_described_is_refused(root):
    gym.register("Local-v0", lambda: gym.make("Swimmer-v5"))
    try:
        env = gym.make("Local-v0")
        with refused("Local-v0", "entry_point="):
            write_episodes(NAME, [], env=env)
    finally:
        del gym.registry["Local-v0"]


@pytest.mark.parametrize("file", ["main_data.hdf5", "metadata.json"])
def test_damaged_files_are_named(root, file):
    written()
    path = root / NAME / "data" / file
    for content in (path.read_bytes()[: path.stat().st_size // 2], b""):
        path.write_bytes(content)
        with refused(NAME, "can't be read"):
            read_episodes(NAME)


@pytest.mark.parametrize("missing", ["minari", "h5py"])
def test_without_minari_one_line_says_how_to_get_it(monkeypatch, missing):
    monkeypatch.setitem(sys.modules, missing, None)
    for use in (lambda: read_episodes(NAME), lambda: write_episodes(NAME, [], env=gym.make("Swimmer-v5"))):
        with refused("pip install 'rppdyn[minari]'"):
            use()


def test_another_storage_format_says_what_it_needs(root, monkeypatch):
    written()
    change_metadata(root, data_format="arrow")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with refused(NAME, "minari[arrow]"):
        read_episodes(NAME)


def test_malformed_names_are_refused():
    env = make_env("Swimmer-v5")
    for name in ("no version", "a/b", "../up-v0", "/tmp/x-v0", "dots.in-v0", "-v0"):
        with refused(repr(name), "swimmer/random-v0"):
            write_episodes(name, [], env=env)


# -- complete or absent -----------------------------------------------------------------------------------------------


def nothing_left(root: Path) -> bool:
    return [path for path in root.rglob("*") if not path.is_dir() or path.name != "tests"] == []


def test_an_existing_dataset_is_refused_before_anything_is_played(root):
    episodes = written()

    def play():
        raise AssertionError("played")
        yield

    with refused(str(root / NAME), "exists", f"minari delete {NAME}"):
        write_episodes(NAME, play(), env=make_env("Swimmer-v5"))
    assert all(same(a, b) for a, b in zip(read_episodes(NAME).episodes, episodes, strict=True))


def test_no_episodes_or_an_error_on_the_way_leave_nothing(root):
    def play():
        yield from played(make_env("Swimmer-v5"))
        raise KeyboardInterrupt

    with refused(NAME, "no episode"):
        write_episodes(NAME, [], env=make_env("Swimmer-v5"))
    with pytest.raises(KeyboardInterrupt):
        write_episodes(NAME, play(), env=make_env("Swimmer-v5"))
    assert nothing_left(root)


WRITER = """
import itertools, sys, time
import numpy as np
from rppdyn.envs import Episode, make_env, write_episodes

def play():
    for i in itertools.count():
        yield Episode(np.zeros((51, 8)), np.zeros((50, 2)), np.zeros(50))
        if i == 20:
            print("writing", flush=True)
            time.sleep(60)

write_episodes(sys.argv[1], play(), env=make_env("Swimmer-v5"))
"""


def test_a_killed_writer_leaves_no_dataset_and_its_remains_go(root, tmp_path):
    """While it lives its folder is left alone, and the name is taken; once it is killed the next writer clears up."""
    writer = start_code(WRITER, NAME, folder=tmp_path)
    try:
        heard = tmp_path / "out"
        while not (heard.exists() and heard.read_text() == "writing\n"):
            assert writer.poll() is None
            time.sleep(0.05)
        with refused(str(root / NAME), "another process"):
            written()
        written(name="tests/other-v0")
        assert list(minari.list_local_datasets()) == ["tests/other-v0"]
        remains = [path for path in (root / "tests").iterdir() if path.name != "other-v0"]
        assert len(remains) == 1 and (remains[0] / "data" / "main_data.hdf5").is_file()
    finally:
        writer.send_signal(signal.SIGKILL)
        writer.communicate()
    with refused(NAME, "no dataset"):
        read_episodes(NAME)
    episodes = written()
    assert sorted(path.name for path in (root / "tests").iterdir()) == ["other-v0", "random-v0"]
    assert all(same(a, b) for a, b in zip(read_episodes(NAME).episodes, episodes, strict=True))


# -- what a log says of itself ----------------------------------------------------------------------------------------


def spun(env: gym.Env, count: int = 4, steps: int = 60) -> list[Episode]:
    """Swimmers that turn over and over, as they do in no water."""
    base, found = env.unwrapped, []
    base.model.opt.viscosity = base.model.opt.density = 0
    for seed in range(count):
        env.reset(seed=seed)
        qvel = base.data.qvel.copy()
        qvel[2] = 5.0 + seed
        base.set_state(base.data.qpos, qvel)
        observations, actions, rewards = [base._get_obs()], [], []
        for _ in range(steps):
            actions.append(0.1 * env.action_space.sample())
            observation, reward, *_ = env.step(actions[-1])
            observations.append(observation)
            rewards.append(reward)
        found.append(Episode(np.array(observations), np.array(actions), np.array(rewards)))
    return found


def changed(episodes: list[Episode], change) -> list[Episode]:
    return [Episode(change(e.observations.copy()), e.actions, e.rewards) for e in episodes]


def jumping(observations):
    observations[30:, 0] += 2.0
    return observations


def in_degrees(observations):
    observations[:, 5:8] *= 180 / np.pi
    return observations


def backwards(observations):
    observations[:, 5:8] *= -1
    return observations


def exchanged(observations):
    observations[:, [5, 6, 7]] = observations[:, [6, 7, 5]]
    return observations


def wrapping(observations):
    observations[:, 0] = (observations[:, 0] + np.pi) % (2 * np.pi) - np.pi
    return observations


WRONG = [
    (jumping, r"episode 0, row 31: joint free_body_rot jumps from .* another episode begins there, or rows are missing"),
    (in_degrees, r"the velocity of joint free_body_rot is not the rate of .*episode \d+, row \d+.*in degrees"),
    (backwards, r"the velocity of joint free_body_rot is not the rate of .*of the other sign; give rates"),
    (exchanged, r"the velocity of joint \w+ is not the rate of joint \w+, and the velocity of joint \w+ is: log them"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "said"), WRONG)
def test_an_episode_that_is_no_motion_is_refused(change, said, capsys):
    env = make_env("Swimmer-v5", monitor=False)
    write_episodes(NAME, changed(spun(env), change), env=env)
    certify = ["certify", "Swimmer-v5", "--from", NAME]
    assert main(["fit-transition", f"dataset={NAME}"] if change is jumping else certify) == 2
    error = capsys.readouterr().err
    assert re.search(said, error) and len(error.strip().splitlines()) == 1, error


class NoisySensor(gym.ObservationWrapper):
    """Another reading of the last velocity at each look, and nan where the first angle is turned far."""

    def observation(self, observation):
        observation = observation.copy()
        observation[7] += np.random.default_rng().standard_normal()
        observation[1] = observation[1] if abs(observation[1]) < 0.5 else np.nan
        return observation


def test_entries_that_nothing_explains_leave_the_others_checked(caplog):
    env = make_env("Swimmer-v5", monitor=False)
    change, said = WRONG[1]
    with caplog.at_level(logging.INFO), pytest.raises(ValueError, match=said):
        check_log("mine", changed(spun(env), change), NoisySensor(env))
    assert "not checked: joint slider1, joint slider2, joint motor1_rot, joint motor2_rot" in caplog.text


def test_an_angle_that_wraps_in_episodes_is_warned_of(caplog):
    env = make_env("Swimmer-v5", monitor=False)
    check_log("mine", changed(spun(env), wrapping), env)
    assert re.search(r"mine, episode 0, row \d+: joint free_body_rot goes from 3.* and wraps at 2 pi", caplog.text)
    assert "log the angle unwrapped" in caplog.text


@pytest.mark.parametrize("env_id", ["Walker2d-v5", "Ant-v5", "Swimmer-v5", "Humanoid-v5"])
def test_honest_episodes_are_believed(env_id, caplog):
    """Impacts, velocities that are clipped, noisy sensors, orientations and contact forces."""
    env = make_env(env_id, monitor=False)
    rng, episodes = np.random.default_rng(0), played(env, [150] * 3)
    episodes += spun(env) if env_id == "Swimmer-v5" else []
    spread = 1e-2 * np.concatenate([e.observations for e in episodes]).std(0)
    for noise in (0, spread):
        seen = changed(episodes, lambda z, noise=noise: z + noise * rng.standard_normal(z.shape))
        check_log("mine", seen, env, symmetry_spec(env).obs_names)
    assert not caplog.records
