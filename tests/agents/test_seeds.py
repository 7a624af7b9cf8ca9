"""Several agents trained at once are what each would have been alone."""

from __future__ import annotations

import functools
import re

import gymnasium as gym
import numpy as np
import pytest
import torch
from stable_baselines3 import SAC
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.noise import NormalActionNoise, OrnsteinUhlenbeckActionNoise
from stable_baselines3.common.vec_env import DummyVecEnv

from rppdyn.agents import RPPSAC, WidenVariances, train_many
from rppdyn.agents.buffers import BatchSampler

HOPPER = "Hopper-v5"


class FailsAt(BaseCallback):
    """Raises after a number of steps."""

    def __init__(self, step: int):
        super().__init__()
        self.step = step

    def _on_step(self) -> bool:
        if self.num_timesteps >= self.step:
            raise ValueError("no more")
        return True


class Sets(BaseCallback):
    """Sets a setting of the agent after 25 steps."""

    def __init__(self, name: str, value):
        super().__init__()
        self.name, self.value = name, value

    def _on_step(self) -> bool:
        if self.num_timesteps == 25:
            setattr(self.model, self.name, self.value)
            self.model._setup_lr_schedule()
        return True


def test_units_of_one_agent_are_no_hindrance(make_agent):
    builds = [lambda s=s: make_agent("rpp", seed=s, policy_kwargs=dict(free_variance=1.0)) for s in (0, 1)]
    widened, plain = train_many(builds, 60, [WidenVariances(100, every=10), None])
    assert widened.error is plain.error is None
    alone = builds[1]().learn(60).policy.actor.net
    for one, other in zip(plain.agent.policy.actor.net.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)


@pytest.fixture(scope="module")
def make(make_agent):
    def build(seed: int, model: str = "rpp", env=HOPPER, **kwargs) -> RPPSAC:
        options = dict(learning_starts=20, policy_kwargs=dict(num_layers=1)) | kwargs
        agent = make_agent(model, env, seed=seed, **options)
        agent.policy.double()
        agent.log_ent_coef.data = agent.log_ent_coef.data.double()
        return agent

    return build


@pytest.fixture(scope="module")
def alone(make):
    """alone(seed, steps) -> an agent trained by itself, which tests share and leave as it is."""
    return functools.cache(lambda seed, steps: make(seed).learn(steps))


def restored(make, data, seed, **options) -> RPPSAC:
    agent = make(seed, **options)
    agent.restore(data)
    return agent


def state_of(agent: RPPSAC) -> list[torch.Tensor]:
    moments = [m for o in agent.optimisers.values() for p in o.state.values() for m in p.values()]
    return [*agent.policy.parameters(), agent.log_alpha, *moments]


def assert_same(one: RPPSAC, other: RPPSAC, rtol: float = 1e-10) -> None:
    assert (one.num_timesteps, one._n_updates) == (other.num_timesteps, other._n_updates)
    for a, b in zip(state_of(one), state_of(other), strict=True):
        torch.testing.assert_close(a, b, rtol=rtol, atol=1e-12)
    rows = one.replay_buffer.size()
    assert (one.replay_buffer.observations[:rows] == other.replay_buffer.observations[:rows]).all()


def test_agents_come_out_as_alone_those_that_fail_stay_where_they_are_and_all_can_go_on(make, alone, caplog):
    def broken():
        raise ValueError("no simulator")

    before = torch.get_rng_state()
    half = train_many([lambda: make(0), broken, lambda: make(1), lambda: make(2)], 30, [None, None, FailsAt(25), None])
    assert torch.equal(torch.get_rng_state(), before)
    assert [str(trainer.error) for trainer in half] == ["None", "no simulator", "no more", "None"]
    assert re.search(r"agent 2: \S*test_seeds.py:\d+: ValueError: no more", caplog.text)
    again = train_many(half, 45)
    assert [str(trainer.error) for trainer in again] == [str(trainer.error) for trainer in half]
    assert half[2].agent.num_timesteps == 25 and alone(0, 45)._n_updates == 25
    for seed, trainer in (0, again[0]), (2, again[3]):
        assert_same(trainer.agent, alone(seed, 45))
        parameters = [*trainer.agent.actor.net.parameters()]
        sizes = {p.untyped_storage().nbytes() for p in parameters}
        assert max(sizes) <= max(p.nbytes for p in parameters) * len(sizes) * 8
    assert not torch.equal(*(next(alone(seed, 45).actor.net.parameters()) for seed in (0, 2)))
    pair = again[3].agent, make(2).learn(45)
    for agent in pair:  # and goes on as one that was always alone
        agent.learn(5, reset_num_timesteps=False)
    assert_same(*pair)


def test_what_draws_from_numpys_global_generator_has_one_of_its_own(make):
    """Stable-baselines3's buffer for n-step returns, and an action noise."""
    options = dict(n_steps=3, action_noise=NormalActionNoise(np.zeros(3), 0.1 * np.ones(3)))
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    trainers = train_many([lambda seed=seed: make(seed, **options) for seed in (0, 1)], 35)
    assert np.array_equal(np.random.get_state()[1], before)  # noqa: NPY002
    for seed, trainer in enumerate(trainers):
        assert_same(trainer.agent, make(seed, **options).learn(35))


def test_one_whose_update_fails_is_reported_and_the_others_go_on_as_alone(make, alone, caplog):
    class FailsToDraw(BatchSampler):
        def sample(self, batch_size: int) -> dict[str, torch.Tensor]:
            if self.agent.num_timesteps == 34:
                raise ValueError("no batch")
            return super().sample(batch_size)

    def built(seed: int, kind: type[BatchSampler]) -> RPPSAC:
        agent = make(seed)
        agent.sampler.__class__ = kind
        return agent

    kinds = (BatchSampler, FailsToDraw, BatchSampler)
    trainers = train_many([lambda n=n, kind=kind: built(n, kind) for n, kind in enumerate(kinds)], 45)
    assert [trainer.agent.num_timesteps for trainer in trainers] == [45, 34, 45]
    assert [str(trainer.error) for trainer in trainers] == ["None", "no batch", "None"]
    assert re.search(r"agent 1: \S+: ValueError: no batch", caplog.text)
    for seed in (0, 2):
        assert_same(trainers[seed].agent, alone(seed, 45))
    assert all(trainer.error for trainer in train_many([lambda: built(0, FailsToDraw)] * 2, 45))


def test_agents_at_different_steps_catch_up_and_a_rate_falls_with_the_steps_of_each(make):
    """One of them still explores at random, and all are to take more steps than was said at first."""
    options = dict(learning_rate=lambda progress: 1e-3 * progress)
    data = [make(seed, **options).learn(steps).capture() for seed, steps in ((0, 25), (1, 12))]
    trainers = train_many([lambda s=s: restored(make, data[s], s, **options) for s in (0, 1)], 40)
    for seed, trainer in enumerate(trainers):
        assert trainer.error is None
        agent = restored(make, data[seed], seed, **options)
        assert_same(trainer.agent, agent.learn(40 - agent.num_timesteps, reset_num_timesteps=False))


def test_what_a_callback_changes_holds_for_its_agent_alone(make):
    """Also of the first, whose settings all others have at the start; one changes nothing."""
    changes = [("batch_size", 8), ("tau", 0.5), ("gradient_steps", 3), ("learning_rate", 1e-2), None]
    callbacks = [change and Sets(*change) for change in changes]
    trainers = train_many([lambda seed=seed: make(seed) for seed in range(5)], 29, callbacks)
    for seed, (trainer, change) in enumerate(zip(trainers, changes, strict=True)):
        assert trainer.error is None
        assert_same(trainer.agent, make(seed).learn(29, change and Sets(*change)))
    for trainer, change in zip(train_many(trainers, 31), changes, strict=True):
        assert trainer.error is None and (change is None or getattr(trainer.agent, change[0]) == change[1])


def test_targets_move_by_the_count_of_each_agent(make):
    def build(seed: int) -> RPPSAC:
        agent = make(seed, target_update_interval=3)
        agent._n_updates = seed
        return agent

    for seed, trainer in enumerate(train_many([lambda seed=seed: build(seed) for seed in (0, 1)], 26)):
        assert_same(trainer.agent, build(seed).learn(26))


def test_several_environments_have_as_many_updates_as_alone(make):
    def build() -> RPPSAC:
        vector = DummyVecEnv([lambda: gym.make("InvertedPendulum-v5")] * 2)
        return make(0, env=vector, train_freq=2, gradient_steps=-1, learning_starts=10)

    (trainer,) = train_many([build], 40)
    agent = build().learn(40)
    assert trainer.agent._n_updates == agent._n_updates > 20
    assert_same(trainer.agent, agent)


def test_what_one_saves_in_training_holds_nothing_of_the_others(make, alone, tmp_path):
    class Saves(BaseCallback):
        def _on_step(self) -> bool:
            if self.num_timesteps == 30:
                self.model.save(tmp_path / "agent")
            return True

    train_many([lambda seed=seed: make(seed) for seed in range(4)], 31, [Saves(), None, None, None])
    alone(0, 45).save(tmp_path / "alone")
    sizes = [(tmp_path / f"{name}.zip").stat().st_size for name in ("agent", "alone")]
    assert sizes[0] < 1.05 * sizes[1]


def test_builds_that_return_no_agent_are_named(make, caplog):
    trainers = train_many([lambda: make(0), lambda: None, lambda: SAC("MlpPolicy", HOPPER), make(3)], 20)
    assert [trainer.error is None for trainer in trainers] == [True, False, False, False]
    assert_same(trainers[0].agent, make(0).learn(20))
    assert "returned None: let it return an RPPSAC" in str(trainers[1].error) and trainers[1].agent is None
    assert "let it return an RPPSAC" in str(trainers[2].error)
    assert "is no function that builds an agent" in str(trainers[3].error) and "Traceback" not in caplog.text


def test_what_agents_share_and_would_both_move_is_refused(make):
    noise = OrnsteinUhlenbeckActionNoise(np.zeros(3), 0.3 * np.ones(3))
    env, buffer = gym.make(HOPPER), make(5).replay_buffer

    def with_buffer(seed: int) -> RPPSAC:
        agent = make(seed)
        agent.replay_buffer = buffer
        return agent

    for name, build in (
        ("action_noise", lambda seed: make(seed, action_noise=noise)),
        ("env", lambda seed: make(seed, env=env)),
        ("replay_buffer", with_buffer),
    ):
        with pytest.raises(ValueError, match=f"agent 0 and agent 1 share their {name}, which has a state"):
            train_many([lambda seed=seed, build=build: build(seed) for seed in (0, 1)], 20)


def test_first_actions_are_as_alone_where_environments_share_a_space(make):
    space = gym.make("Pendulum-v1").unwrapped.action_space

    def build(seed):
        env = gym.make("Pendulum-v1")
        env.unwrapped.action_space = space  # as where it is an attribute of the class
        return make(seed, model="mlp", env=env)

    alone = [build(seed).learn(10).replay_buffer.actions[:10].copy() for seed in (0, 1)]
    together = [t.agent for t in train_many([functools.partial(build, seed) for seed in (0, 1)], 10)]
    assert [np.array_equal(a, t.replay_buffer.actions[:10]) for a, t in zip(alone, together, strict=True)] == [
        True,
        True,
    ]
