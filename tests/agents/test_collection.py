"""Collected transitions are steps of the simulator, and a replay buffer gives back the episodes that were played."""

from __future__ import annotations

from collections.abc import Callable

import gymnasium as gym
import numpy as np
import pytest
from refusals import refused
from stable_baselines3 import DQN, SAC
from stable_baselines3.common.vec_env import DummyVecEnv

from rppdyn.agents import played_episodes, random_policy, replay_episodes, spread_episodes
from rppdyn.envs import Episode, make_env


class Recorder(gym.Wrapper):
    """Every episode as the environment saw it."""

    def __init__(self, env: gym.Env):
        super().__init__(env)
        self.episodes = []

    def reset(self, **kwargs):
        observation, info = self.env.reset(**kwargs)
        self.episodes.append(
            {"observations": [observation.copy()], "actions": [], "rewards": [], "ends": (False, False)}
        )
        return observation, info

    def step(self, action):
        current = self.episodes[-1]
        observation, reward, terminated, truncated, info = self.env.step(action)
        current["observations"].append(observation.copy())
        current["actions"].append(np.array(action))
        current["rewards"].append(reward)
        current["ends"] = (terminated, truncated)
        return observation, reward, terminated, truncated, info


def recorded(env_id: str, n_envs: int, **options) -> tuple[DummyVecEnv, list[Recorder]]:
    recorders = [Recorder(make_env(env_id, monitor=False, **options)) for _ in range(n_envs)]
    return DummyVecEnv([lambda r=r: r for r in recorders]), recorders


def newest(recorder: Recorder, steps: int) -> list[Episode]:
    """The last steps of an environment, in episodes: what a buffer with room for them still holds."""
    found, left = [], steps
    for played in reversed(recorder.episodes):
        count = min(left, len(played["actions"]))
        if count:
            observations, actions, rewards = (np.array(played[k]) for k in ("observations", "actions", "rewards"))
            found.append(
                Episode(
                    observations[-count - 1 :],
                    actions[-count:],
                    rewards[-count:].astype(np.float32),  # as the buffer keeps them
                    terminated=played["ends"][0],
                    truncated=played["ends"][1] and not played["ends"][0],  # all that the buffer tells
                )
            )
        left -= count
    return found[::-1]


def same(a: Episode, b: Episode) -> bool:
    arrays = all(np.array_equal(getattr(a, key), getattr(b, key)) for key in ("observations", "actions", "rewards"))
    return arrays and (a.terminated, a.truncated) == (b.terminated, b.truncated)


def key(episode: Episode) -> bytes:
    return episode.observations.tobytes()


@pytest.mark.parametrize(
    ("n_envs", "rows", "steps"),
    [
        pytest.param(1, 130, 300, id="one, wrapped"),
        pytest.param(2, 1000, 150, id="two, not full"),
        pytest.param(2, 60, 120, id="two, wrapped to the very end"),
    ],
)
def test_a_replay_buffer_gives_back_what_was_played(make_agent, n_envs, rows, steps):
    """Bit by bit, with two environments and after the buffer has wrapped; some episodes terminate, others run out of time.

    The pendulum's actions are bounded by 3, and the buffer's are scaled to 1.
    """
    env, recorders = recorded("InvertedPendulum-v5", n_envs, max_episode_steps=9)
    agent = make_agent(env=env, buffer_size=rows * n_envs, learning_starts=280).learn(steps * n_envs)
    assert agent.replay_buffer.full == (rows <= steps)
    found = replay_episodes(agent)
    expected = [episode for recorder in recorders for episode in newest(recorder, min(rows, steps))]
    assert len(found) == len(expected) > 10
    for a, b in zip(sorted(found, key=key), sorted(expected, key=key), strict=True):
        assert same(a, b)
    assert {(e.terminated, e.truncated) for e in found} >= {(True, False), (False, True)}
    assert max(np.abs(episode.actions).max() for episode in found) > 1.5


def test_episodes_are_in_the_order_in_which_they_began(make_agent):
    env, recorders = recorded("InvertedPendulum-v5", 2)
    found = replay_episodes(make_agent(env=env, learning_starts=200).learn(200))
    clocks = [np.cumsum([0] + [len(e["actions"]) for e in recorder.episodes]) for recorder in recorders]
    began = {
        played["observations"][0].tobytes(): clock
        for recorder, starts in zip(recorders, clocks, strict=True)
        for played, clock in zip(recorder.episodes, starts, strict=False)
    }
    times = [began[episode.observations[0].tobytes()] for episode in found]
    assert times == sorted(times) and len(set(times)) > 10


def test_a_reset_that_nothing_announced_begins_an_episode(make_agent):
    """`learn` resets the environment in the middle of an episode: the buffer knows by the observations alone."""
    env, _ = recorded("Swimmer-v5", 1)
    agent = make_agent(env=env).learn(30)
    agent.learn(25, reset_num_timesteps=True)
    assert [len(episode) for episode in replay_episodes(agent)] == [30, 25]


def test_an_agent_of_stable_baselines3():
    env, (recorder,) = recorded("InvertedPendulum-v5", 1)
    agent = SAC("MlpPolicy", env, policy_kwargs=dict(net_arch=[8]), seed=0, learning_starts=60, buffer_size=100).learn(
        80
    )
    assert all(same(a, b) for a, b in zip(replay_episodes(agent), newest(recorder, 80), strict=True))


def test_an_empty_buffer_holds_no_episodes(make_agent):
    assert replay_episodes(make_agent()) == []


def in_a_dictionary(env):
    space = gym.spaces.Dict(seen=env.observation_space)
    return gym.wrappers.TransformObservation(env, lambda observation: {"seen": observation}, space)


NO_TIMEOUTS = {"optimize_memory_usage": True, "replay_buffer_kwargs": {"handle_timeout_termination": False}}


@pytest.mark.parametrize(
    ("agent", "said"),
    [
        (lambda: SAC("MlpPolicy", "InvertedPendulum-v5", buffer_size=10, **NO_TIMEOUTS), "optimize_memory_usage"),
        (lambda: DQN("MlpPolicy", "CartPole-v1", buffer_size=10), "Discrete(2)"),
        (
            lambda: SAC("MlpPolicy", gym.wrappers.ReshapeObservation(gym.make("Pendulum-v1"), (3, 1)), buffer_size=10),
            "FlattenObservation",
        ),
        (
            lambda: SAC("MultiInputPolicy", in_a_dictionary(gym.make("Pendulum-v1")), buffer_size=10),
            "FlattenObservation",
        ),
    ],
)
def test_buffers_without_episodes_of_vectors_are_refused(agent: Callable, said):
    with refused(said):
        replay_episodes(agent())


# -- played -----------------------------------------------------------------------------------------------------------


def upright(observations):
    return np.clip(6.0 * observations[:, 1:2] + observations[:, 3:4], -3, 3).astype(np.float32)


@pytest.mark.parametrize("policy", ["random", "feedback"])
def test_played_episodes_are_steps_of_the_environment(policy):
    env = make_env("InvertedPendulum-v5", monitor=False, max_episode_steps=50)
    act = random_policy(env.action_space, 3) if policy == "random" else upright
    episodes = list(played_episodes(env, act, steps=200, seed=3))
    lengths = [len(episode) for episode in episodes]
    assert 200 <= sum(lengths) < 200 + lengths[-1]
    assert all(episode.terminated or episode.truncated for episode in episodes)
    again = make_env("InvertedPendulum-v5", monitor=False, max_episode_steps=50)
    for i, episode in enumerate(episodes):
        assert np.array_equal(again.reset(seed=3 if i == 0 else None)[0], episode.observations[0])
        for t, action in enumerate(episode.actions):
            observation, reward, terminated, truncated, _ = again.step(action.astype(np.float32))
            assert np.array_equal(observation, episode.observations[t + 1]) and reward == episode.rewards[t]
        assert (terminated, truncated) == (episode.terminated, episode.truncated)


def test_seeds_give_episodes_of_their_own_and_the_same_ones_again():
    """No initial state of one seed is in another's, so that a seed can be held out."""

    def starts(seed: int) -> list[bytes]:
        env = make_env("InvertedPendulum-v5", monitor=False)
        episodes = played_episodes(env, random_policy(env.action_space, seed), steps=100, seed=seed)
        return [key(episode) for episode in episodes]

    assert starts(0) == starts(0) and len(set(starts(0))) == len(starts(0)) > 5
    assert not set(starts(0)) & set(starts(1))


def test_an_episode_without_a_time_limit_is_cut_off():
    env = make_env("Swimmer-v5", monitor=False, max_episode_steps=-1)
    (episode,) = played_episodes(env, random_policy(env.action_space, 0), steps=1200, seed=0)
    assert (len(episode), episode.terminated, episode.truncated) == (1200, False, False)


def test_random_actions_are_uniform_within_the_bounds():
    space = make_env("InvertedPendulum-v5").action_space
    actions = random_policy(space, 0)(np.zeros((2000, 4)))
    quantiles = np.quantile(actions, [0.0, 0.25, 0.5, 0.75, 1.0])
    assert np.abs(quantiles - [-3, -1.5, 0, 1.5, 3]).max() < 0.2


def episode_of(length: int, start: float) -> Episode:
    return Episode(np.full((length + 1, 1), start), np.zeros((length, 1)), np.zeros(length))


def test_spread_episodes_are_drawn_uniformly_over_training():
    episodes = [episode_of(10 + i % 3, i) for i in range(300)]
    total = sum(map(len, episodes))
    counts = np.zeros(300)
    for seed in range(200):
        chosen = spread_episodes(episodes, steps=total // 4, seed=seed)
        starts = [int(episode.observations[0, 0]) for episode in chosen]
        assert starts == sorted(set(starts))
        assert 0 <= sum(map(len, chosen)) - total // 4 < 12
        counts[starts] += 1
    assert np.abs(counts / 200 - 0.25).max() < 4.5 * np.sqrt(0.25 * 0.75 / 200)
    thirds = counts.reshape(3, 100).mean(1) / 200
    assert np.abs(thirds - 0.25).max() < 0.02


def test_all_steps_can_be_asked_for_and_no_more():
    episodes = [episode_of(4, i) for i in range(5)]
    assert spread_episodes(episodes, steps=20, seed=0) == episodes
    with refused("21 steps", "20"):
        spread_episodes(episodes, steps=21, seed=0)
