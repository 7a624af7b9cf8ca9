"""What is not finite is refused where it comes in, named, and never kept; what has diverged is said to have."""

from __future__ import annotations

from functools import partial

import gymnasium as gym
import numpy as np
import pytest
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.vec_env import DummyVecEnv

from rppdyn.agents import RPPSAC, RPPActorCriticPolicy, buffers
from rppdyn.agents._seeds import train_many
from rppdyn.agents._update import clip_
from rppdyn.envs import make_env, symmetry_spec
from rppdyn.errors import DivergedError
from rppdyn.jobs.building import WorkerEnv
from rppdyn.runs.files import first_non_finite

ENV = "InvertedPendulum-v5"


class Faulty(gym.Wrapper):
    """A pendulum that from some step on returns something else than numbers."""

    def __init__(
        self, at: int = 70, observation: float | None = None, reward: float | None = None, terminal: bool = False
    ):
        super().__init__(make_env(ENV))
        self.at, self.steps, self.observation, self.reward, self.terminal = at, 0, observation, reward, terminal

    def step(self, action):
        observation, reward, terminated, truncated, info = self.env.step(action)
        self.steps += 1
        if self.steps >= self.at:
            if self.observation is not None and (terminated or not self.terminal):
                observation = observation.copy()
                observation[2] = self.observation
            reward = reward if self.reward is None else self.reward
        return observation, reward, terminated, truncated, info


SMALL = dict(policy_kwargs=dict(hidden=8), learning_starts=40, batch_size=8, buffer_size=200, device="cpu", seed=0)
FAULTS = {
    "observation": (dict(observation=np.nan), r"at step 70: observation 'slider velocity' \(entry 2\) is nan"),
    "reward": (dict(reward=np.inf), r"at step 70: the reward is inf"),
    "large reward": (dict(reward=-1e30), r"at step 70: the reward is -1e\+30; .* VecNormalize"),
    "last of an episode": (
        dict(observation=-np.inf, terminal=True),
        r"observation 'slider velocity' \(entry 2\) is -inf",
    ),
}


def agent(env, kind=RPPSAC, **kwargs):
    return kind("RPPPolicy", env, spec=symmetry_spec(ENV), **SMALL | kwargs)


@pytest.mark.parametrize("fault, message", FAULTS.values(), ids=FAULTS)
def test_what_an_environment_returns_is_refused_before_it_is_stored(fault, message):
    model = agent(Faulty(**fault))
    with pytest.raises(ValueError, match=message):
        model.learn(200)
    assert (
        first_non_finite({"buffer": buffers.capture(model.replay_buffer), "policy": model.policy.state_dict()}) is None
    )
    assert model.replay_buffer.size() == model.num_timesteps - 1  # all but the step that was refused


@pytest.mark.parametrize("env", [DummyVecEnv, WorkerEnv], ids=["vector", "worker"])
def test_several_environments_name_the_faulty_one(env):
    builds = [partial(make_env, ENV), partial(Faulty, at=30, reward=np.nan)]
    stepped = DummyVecEnv(builds) if env is DummyVecEnv else WorkerEnv(builds[1], 2)
    try:
        which = 1 if env is DummyVecEnv else 0
        with pytest.raises(ValueError, match=rf"{ENV}, environment {which} at step 60: the reward is nan"):
            agent(stepped).learn(200)
    finally:
        stepped.close()


def test_the_first_observation_is_looked_at_too():
    class Begun(Faulty):
        def reset(self, **kwargs):
            observation, info = super().reset(**kwargs)
            return np.full_like(observation, np.nan), info

    with pytest.raises(ValueError, match=r"at step 0: observation 'slider position' \(entry 0\) is nan"):
        agent(Begun()).learn(10)


def test_a_policy_that_has_diverged_sends_nothing():
    model = agent(Faulty())
    with torch.no_grad():
        model.actor.net.head.equivariant.weight.fill_(torch.nan)
    with pytest.raises(DivergedError, match=r"InvertedPendulum-v5 at step 40, action 'slider \w+' is nan"):
        model.learn(60, log_interval=None)


def spoilt_moment(model):
    next(iter(model.critic.optimizer.state.values()))["exp_avg_sq"].view(-1)[0] = torch.inf


def test_an_infinite_moment_is_a_divergence():
    model = agent(ENV).learn(60)
    spoilt_moment(model)
    for call in (model.capture, lambda: model.learn(5, reset_num_timesteps=False)):
        with pytest.raises(DivergedError, match=r"critic\.optimizer\.state\.0\.exp_avg_sq is not finite at step 6\d"):
            call()


def test_seeds_that_end_leave_the_others_alone():
    """By a reward that is no number, and by a moment that is infinite."""
    builds = [partial(agent, Faulty(at=at, reward=np.nan), seed=seed) for seed, at in enumerate((1000, 1000, 55))]
    trainers = train_many(builds, 60)
    assert "at step 55: the reward is nan" in str(trainers[2].error)
    spoilt_moment(trainers[1].agent)
    good, diverged, _ = train_many(trainers, 70)
    assert good.error is None and good.agent.num_timesteps == 70 and isinstance(diverged.error, DivergedError)


def test_losses_that_overflow_end_training():
    """Rewards that are let through may still be too much for a narrow likelihood."""
    model = agent(Faulty(at=1, reward=1e17), noise_variance=1e-8)
    with pytest.raises(DivergedError, match=r"critic_loss is not finite at step 41"):
        model.learn(100)
    assert model.num_timesteps == 41


def test_gradients_too_long_to_clip_are_no_numbers():
    long = torch.tensor([[1e30, 1e30], [3.0, 4.0]])
    found = clip_(long.clone(), 1.0)
    assert found[0].isnan().all() and found[1].norm() == pytest.approx(1.0, rel=1e-5)


@pytest.mark.parametrize(
    "fault, message",
    [
        (dict(observation=np.nan), r"observation 'slider velocity' \(entry 2\) is nan"),
        (dict(reward=np.nan), "the gradient of the loss is not finite"),
        (dict(reward=1e25), "the gradient of the loss is clipped to 0"),
    ],
)
def test_stock_ppo_is_stopped_before_its_weights_change(fault, message):
    options = dict(spec=symmetry_spec(ENV), hidden=8)
    model = PPO(
        RPPActorCriticPolicy,
        Faulty(at=40, **fault),
        n_steps=32,
        batch_size=32,
        policy_kwargs=options,
        seed=0,
        device="cpu",
    )
    with pytest.raises(ValueError, match=message):
        model.learn(96)
    assert first_non_finite(model.get_parameters()) is None
