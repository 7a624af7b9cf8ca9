"""Collecting: what a run's buffer holds and its policy plays is what the dataset holds, in the run's own environment."""

from __future__ import annotations

import random
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import torch
from refusals import refused
from stable_baselines3 import SAC, TD3

from rppdyn.cli import main
from rppdyn.envs import make_env, read_episodes
from rppdyn.jobs import playing, train_agent
from rppdyn.jobs.building import agent_of
from rppdyn.jobs.config import compose
from rppdyn.jobs.config.command import CollectConfig
from rppdyn.runs import RunFolder

WEAK = 0.5
WORDS = ("device=cpu", "model.hidden=8", "agent.learning_starts=80", "agent.batch_size=8", "agent.buffer_size=70",
         "evaluation.every=100", "evaluation.episodes=1", "evaluation.states=16", "env.kwargs.reset_noise_scale=0.05",
         f"env.actuator_scale.slider={WEAK}", "total_steps=100", "checkpoint_every=40")  # fmt: skip


@pytest.fixture(autouse=True)
def root(tmp_path, monkeypatch) -> Path:
    """Minari's folder."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "datasets"))
    return tmp_path / "datasets"


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> str:
    """A run with a weakened actuator, whose buffer of 70 steps has wrapped after 100."""
    folder = tmp_path_factory.mktemp("run") / "run"
    return train_agent.run(compose.composed("train_agent", [*WORDS, f"run_dir={folder}"])).run


@pytest.fixture(scope="module")
def zips(tmp_path_factory) -> dict[str, str]:
    """Agents of stable-baselines3 for InvertedPendulum-v5."""
    folder = tmp_path_factory.mktemp("zips")
    for kind in (SAC, TD3):
        kind("MlpPolicy", "InvertedPendulum-v5", policy_kwargs=dict(net_arch=[8]), seed=0, buffer_size=10).save(
            folder / f"{kind.__name__}.1.zip"
        )
    return {kind: str(folder / f"{kind}.1.zip") for kind in ("SAC", "TD3")}


def collected(**options):
    """The result of a job and the dataset that it wrote."""
    result = playing.collect(CollectConfig(**options))
    return result, read_episodes(result.dataset)


def pendulum(*words: str):
    return compose.environment(["env=InvertedPendulum-v5", *words])


# -- a run ------------------------------------------------------------------------------------------------------------


def test_a_replay_buffer_is_written_whole(trained):
    """The dataset's transitions are those of the last checkpoint's buffer, row by row from the oldest on."""
    result, dataset = collected(source=trained)
    checkpoint = RunFolder(trained).checkpoints.latest()
    replay = torch.load(checkpoint.path / "agent.pt", weights_only=True)["replay"]
    assert replay["full"] and replay["pos"] == 30
    rows = {key: np.roll(value.numpy()[:, 0], -30, axis=0) for key, value in replay["rows"].items()}
    episodes = dataset.episodes
    assert np.array_equal(np.concatenate([e.observations[:-1] for e in episodes]), rows["observations"])
    assert np.array_equal(np.concatenate([e.observations[1:] for e in episodes]), rows["next_observations"])
    actions = np.concatenate([e.actions for e in episodes])
    assert np.abs(actions - 3 * rows["actions"]).max() < 1e-6  # as the environment takes them, up to 3
    assert np.array_equal(np.concatenate([e.rewards for e in episodes]), rows["rewards"])
    ends = np.cumsum([len(e) for e in episodes]) - 1
    assert np.array_equal(
        np.flatnonzero(rows["dones"]), [i for i, e in zip(ends, episodes, strict=True) if e.terminated]
    )
    assert result.dataset == "rppdyn/InvertedPendulum-v5/rpp-seed0-replay-v0"
    assert (sum(result.lengths), result.source) == (70, "replay buffer of rpp at step 100")
    assert result.returns == [e.rewards.sum() for e in episodes]


def test_a_buffer_of_several_environments_is_written_whole(tmp_path):
    words = [*WORDS, "agent.num_envs=2", "agent.buffer_size=200", f"run_dir={tmp_path / 'run'}"]
    run = train_agent.run(compose.composed("train_agent", words)).run
    result, _ = collected(source=run)
    assert sum(result.lengths) == 100


@pytest.mark.parametrize("play", [None, "exploring"])
def test_transitions_are_steps_of_the_runs_own_environment(trained, play):
    """From a collected observation, which is the pendulum's state, the weakened actuator leads to the next; the stock one
    doesn't."""
    _, dataset = collected(source=trained, play=play, steps=40)
    assert dataset.env_kwargs == {"reset_noise_scale": 0.05} and dataset.actuator_scale == {"slider": WEAK}
    defects = []
    for env in (dataset.env(), make_env("InvertedPendulum-v5")):
        env.reset(seed=0)
        found = []
        for episode in dataset.episodes:
            for t, action in enumerate(episode.actions[:5]):
                env.unwrapped.set_state(episode.observations[t, :2], episode.observations[t, 2:])
                env.unwrapped.do_simulation(action, env.unwrapped.frame_skip)
                after = np.concatenate([env.unwrapped.data.qpos, env.unwrapped.data.qvel])
                change = np.abs(episode.observations[t + 1] - episode.observations[t]).max()
                found.append(np.abs(after - episode.observations[t + 1]).max() / change)
        defects.append(np.median(found))
    assert defects[0] < 1e-9 and defects[1] > 1e-4


def test_exploring_draws_from_the_policy_by_the_seed(trained):
    """Deterministic actions are the policy's; the run's files and global random states are left alone."""

    def actions(name, **options):
        _, dataset = collected(source=trained, steps=30, name=f"tests/{name}-v0", **options)
        return np.concatenate([episode.actions for episode in dataset.episodes])[:30]

    def states():
        return random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()  # noqa: NPY002

    files = {path: path.stat().st_mtime_ns for path in Path(trained).rglob("*")}
    before = states()
    first, again = actions("a", play="exploring", seed=1), actions("b", play="exploring", seed=1)
    other, plain = actions("c", play="exploring", seed=2), actions("d", play="deterministic", seed=1)
    assert states() == before
    assert {path: path.stat().st_mtime_ns for path in Path(trained).rglob("*")} == files
    assert np.array_equal(first, again)
    assert np.abs(first - other).max() > 0.1 < np.abs(first - plain).max()
    with agent_of(trained, 1, 0) as (agent, _, _):
        for episode in read_episodes("tests/d-v0").episodes:
            expected = [agent.predict(o[None], deterministic=True)[0][0] for o in episode.observations[:-1]]
            assert np.array_equal(episode.actions, expected)


def test_a_part_of_a_replay_buffer_is_whole_episodes_of_it(trained):
    _, all_of_it = collected(source=trained, name="tests/all-v0")
    result, some = collected(source=trained, name="tests/some-v0", steps=20)
    keys = [episode.observations.tobytes() for episode in all_of_it.episodes]
    chosen = [keys.index(episode.observations.tobytes()) for episode in some.episodes]
    assert chosen == sorted(chosen) and 20 <= sum(result.lengths) < 70
    with refused("71 steps", "70"):
        playing.collect(CollectConfig(source=trained, steps=71, name="tests/more-v0"))


def test_an_environment_beside_a_source_must_be_its_own(trained, zips, tmp_path):
    words = "env=InvertedPendulum-v5", "env.kwargs.reset_noise_scale=0.05"
    playing.collect(CollectConfig(env=compose.environment([*words, "env.actuator_scale.slider=0.5"]), source=trained))
    for other in (words, ["env=Swimmer-v5"]):
        with refused(other[0], trained, "InvertedPendulum-v5", "leave out env="):
            playing.collect(CollectConfig(env=compose.environment(other), source=trained))
    with refused(zips["SAC"], "(4,)", "Swimmer-v5", "(8,)"):
        playing.collect(CollectConfig(env=compose.environment(["env=Swimmer-v5"]), source=zips["SAC"], trust=True))
    RunFolder.create(tmp_path / "run", asdict(compose.composed("train_agent", [*WORDS, f"run_dir={tmp_path / 'run'}"])))
    for play in (None, "exploring"):
        with refused("has no policy yet", "--resume"):
            playing.collect(CollectConfig(source=str(tmp_path / "run"), play=play))


# -- files and random actions -----------------------------------------------------------------------------------------


def test_an_agent_of_stable_baselines3(zips, kind="TD3"):
    """It explores unless told otherwise, TD3 by noise of another's making; deterministic actions are the policy's."""
    options = dict(env=pendulum(), source=zips[kind], trust=True, steps=30)
    result, explored = collected(**options)
    assert result.dataset == f"rppdyn/InvertedPendulum-v5/{kind}_1-exploring-v0"
    _, plain = collected(**options, play="deterministic")
    model = TD3.load(zips[kind])

    def defect(dataset) -> float:
        episode = dataset.episodes[0]
        return np.abs(model.predict(episode.observations[:-1], deterministic=True)[0] - episode.actions).max()

    assert defect(plain) < 1e-6 and defect(explored) > 0.05


def test_random_actions_of_an_environment_with_options():
    words = "env.kwargs.reset_noise_scale=0.3", "env.actuator_scale.slider=0.25"
    result, dataset = collected(env=pendulum(*words), steps=100, seed=4)
    assert result.dataset == "rppdyn/InvertedPendulum-v5/random-seed4-v0"
    assert 100 <= dataset.num_transitions < 100 + len(dataset.episodes[-1])
    starts = np.array([episode.observations[0] for episode in dataset.episodes])
    assert 0.15 < np.abs(starts).max() <= 0.3
    assert dataset.env().unwrapped.model.actuator_gear[0, 0] == 25.0


# -- the command line -------------------------------------------------------------------------------------------------


def test_the_command_says_what_it_wrote(root, capsys):
    words = ["collect", "env=Swimmer-v5", "--random", "--steps", "60", "--name", "swimmer/random-v3"]
    assert main(words) == 0
    out, _ = capsys.readouterr()
    assert out.startswith("swimmer/random-v3: 60 transitions of Swimmer-v5 in 1 episode, random actions\nmean return ")
    assert out.endswith(f"{root / 'swimmer' / 'random-v3'}\n")
    assert read_episodes("swimmer/random-v3", env_id="Swimmer-v5").num_transitions == 60


BAD = {
    "nothing to collect from": (["env=Swimmer-v5"], ["--from", "--random", "collect --help"]),
    "two sources": (["env=Swimmer-v5", "--random", "--from", "a"], ["--random", "--from"]),
    "no environment": (["--random"], ["env= is missing", "env=Swimmer-v5"]),
    "options of no environment": (["env.kwargs.a=1", "--random"], ["env.kwargs.a=1", "env= is missing"]),
    "word without a key": (["Swimmer-v5", "--random"], ["Swimmer-v5", "env="]),
    "policy of random actions": (["env=Swimmer-v5", "--random", "--play", "exploring"], ["--play exploring", "--random"]),
    "file that runs code": (["env=Swimmer-v5", "--from", "../a.zip"], ["a.zip", "--trust"]),
    "statistics of a run": (["--from", "a", "--vecnormalize", "b.pkl"], ["b.pkl", "leave it out"]),
    "malformed name": (["env=Swimmer-v5", "--random", "--name", "swimmer"], ["'swimmer'", "swimmer/random-v0"]),
    "actions of another kind": (["env=CartPole-v1", "--random"], ["CartPole-v1", "Discrete(2)", "vector"]),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_what_a_user_does_wrong_is_one_line(monkeypatch, tmp_path, root, capfd, case):
    words, expected = BAD[case]
    (tmp_path / "here").mkdir()
    (tmp_path / "a.zip").touch()
    monkeypatch.chdir(tmp_path / "here")
    assert main(["collect", *words]) == 2
    out, err = capfd.readouterr()
    assert out == "" and err.startswith("rppdyn: error: ") and err.count("\n") == 1, err
    assert all(text in err for text in expected), err
    assert list(Path.cwd().iterdir()) == [] and not any(root.rglob("*"))
