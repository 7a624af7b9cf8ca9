"""Several agents trained at once are what each would have been alone."""

from __future__ import annotations

import re

import gymnasium as gym
import numpy as np
import pytest
import torch
from stable_baselines3 import SAC
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.noise import NormalActionNoise, OrnsteinUhlenbeckActionNoise
from stable_baselines3.common.vec_env import DummyVecEnv

from rppdyn.agents import RPPSAC, train_many
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


@pytest.fixture
def make(make_agent):
    def build(seed: int, model: str = "rpp", env=HOPPER, **kwargs) -> RPPSAC:
        options = dict(learning_starts=20, policy_kwargs=dict(num_layers=1)) | kwargs
        agent = make_agent(model, env, seed=seed, **options)
        agent.policy.double()
        agent.log_ent_coef.data = agent.log_ent_coef.data.double()
        return agent

    return build


def state_of(agent: RPPSAC) -> list[torch.Tensor]:
    moments = [m for o in agent.optimisers.values() for p in o.state.values() for m in p.values()]
    return [*agent.policy.parameters(), agent.log_alpha, *moments]


def assert_same(one: RPPSAC, other: RPPSAC, rtol: float = 1e-10) -> None:
    assert (one.num_timesteps, one._n_updates) == (other.num_timesteps, other._n_updates)
    for a, b in zip(state_of(one), state_of(other), strict=True):
        torch.testing.assert_close(a, b, rtol=rtol, atol=1e-12)
    rows = one.replay_buffer.size()
    assert (one.replay_buffer.observations[:rows] == other.replay_buffer.observations[:rows]).all()


def test_updates_are_those_of_each_alone(make):
    alone = [make(seed).learn(45) for seed in (0, 1)]
    before = torch.get_rng_state()
    trainers = train_many([lambda seed=seed: make(seed) for seed in (0, 1)], 45)
    assert torch.equal(torch.get_rng_state(), before)
    assert alone[0]._n_updates == 25
    for one, trainer in zip(alone, trainers, strict=True):
        assert trainer.error is None
        assert_same(trainer.agent, one)
        sizes = {p.untyped_storage().nbytes() for p in trainer.agent.actor.net.parameters()}
        assert max(sizes) <= max(p.nbytes for p in trainer.agent.actor.net.parameters()) * len(sizes) * 8
    assert not torch.equal(*(next(agent.actor.net.parameters()) for agent in alone))
    for agent in (trainers[1].agent, alone[1]):  # and goes on as one that was always alone
        agent.learn(5, reset_num_timesteps=False)
    assert_same(trainers[1].agent, alone[1])


@pytest.mark.parametrize(
    "options",
    [dict(n_steps=3), dict(action_noise=NormalActionNoise(np.zeros(3), 0.1 * np.ones(3)))],
    ids=["stable-baselines3's buffer", "noise"],
)
def test_what_draws_from_numpys_global_generator_has_one_of_its_own(make, options):
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    trainers = train_many([lambda seed=seed: make(seed, **options) for seed in (0, 1)], 40)
    assert np.array_equal(np.random.get_state()[1], before)  # noqa: NPY002
    for seed, trainer in enumerate(trainers):
        assert_same(trainer.agent, make(seed, **options).learn(40))
    halfway = make(0, **options).learn(25).capture()
    agent = make(5, **options)
    agent.restore(halfway)
    np.random.seed(3)  # noqa: NPY002
    assert_same(agent.learn(15, reset_num_timesteps=False), trainers[0].agent)


def test_one_that_fails_is_reported_and_the_others_go_on(make, caplog):
    callbacks = [None, FailsAt(30), None]
    trainers = train_many([lambda seed=seed: make(seed) for seed in (0, 1, 2)], 45, callbacks)
    assert [trainer.agent.num_timesteps for trainer in trainers] == [45, 30, 45]
    assert str(trainers[1].error) == "no more" and re.search(
        r"agent 1: \S*test_seeds.py:\d+: ValueError: no more", caplog.text
    )
    assert_same(trainers[2].agent, make(2).learn(45))


def test_one_whose_update_fails_is_reported_and_the_others_go_on_as_alone(make, caplog):
    class FailsToDraw(BatchSampler):
        def sample(self, batch_size: int) -> dict[str, torch.Tensor]:
            if self.agent.num_timesteps == 34:
                raise ValueError("no batch")
            return super().sample(batch_size)

    def built(seed: int, kind: type[BatchSampler]) -> RPPSAC:
        agent = make(seed, gradient_steps=2)
        agent.sampler.__class__ = kind
        return agent

    kinds = (BatchSampler, FailsToDraw, BatchSampler)
    trainers = train_many([lambda n=n, kind=kind: built(n, kind) for n, kind in enumerate(kinds)], 45)
    assert [trainer.agent.num_timesteps for trainer in trainers] == [45, 34, 45]
    assert [str(trainer.error) for trainer in trainers] == ["None", "no batch", "None"]
    assert re.search(r"agent 1: \S+: ValueError: no batch", caplog.text)
    for seed in (0, 2):
        assert_same(trainers[seed].agent, make(seed, gradient_steps=2).learn(45))
    assert all(trainer.error for trainer in train_many([lambda: built(0, FailsToDraw)] * 2, 45))


def test_a_rate_that_falls_is_that_of_the_steps_that_each_has_taken(make):
    """Also of agents that stand at different steps, and are to take more than was said at first."""
    options = dict(learning_rate=lambda progress: 1e-3 * progress)
    data = [make(seed, **options).learn(steps).capture() for seed, steps in ((0, 25), (1, 28))]

    def resumed(seed: int) -> RPPSAC:
        agent = make(seed, **options)
        agent.restore(data[seed])
        return agent

    together = train_many([lambda seed=seed: resumed(seed) for seed in (0, 1)], 40)
    for seed, trainer in enumerate(together):
        assert trainer.error is None
        alone = resumed(seed)
        assert_same(trainer.agent, alone.learn(40 - alone.num_timesteps, reset_num_timesteps=False))
    with pytest.raises(ValueError, match=r"one configuration; learning_rate is 0.0003 and 0.001"):
        train_many([lambda: make(0), lambda: make(1, learning_rate=1e-3)], 30)


def test_what_a_callback_changes_holds_for_its_agent_alone(make):
    """Also of the first, whose settings all others have at the start; one changes nothing."""
    changes = [("batch_size", 8), ("tau", 0.5), ("gradient_steps", 3), ("learning_rate", 1e-2), None]
    callbacks = [change and Sets(*change) for change in changes]
    trainers = train_many([lambda seed=seed: make(seed) for seed in range(5)], 32, callbacks)
    for seed, (trainer, change) in enumerate(zip(trainers, changes, strict=True)):
        assert trainer.error is None
        assert_same(trainer.agent, make(seed).learn(32, change and Sets(*change)))
    for trainer, change in zip(train_many(trainers, 34), changes, strict=True):
        assert trainer.error is None and (change is None or getattr(trainer.agent, change[0]) == change[1])


def test_targets_move_by_the_count_of_each_agent(make):
    def build(seed: int) -> RPPSAC:
        agent = make(seed, target_update_interval=3)
        agent._n_updates = seed
        return agent

    for seed, trainer in enumerate(train_many([lambda seed=seed: build(seed) for seed in (0, 1)], 30)):
        assert_same(trainer.agent, build(seed).learn(30))


def test_several_environments_have_as_many_updates_as_alone(make):
    def build() -> RPPSAC:
        vector = DummyVecEnv([lambda: gym.make("InvertedPendulum-v5")] * 2)
        return make(0, env=vector, train_freq=2, gradient_steps=-1, learning_starts=10)

    (trainer,) = train_many([build], 40)
    alone = build().learn(40)
    assert trainer.agent._n_updates == alone._n_updates > 20
    assert_same(trainer.agent, alone)


def test_what_one_saves_in_training_holds_nothing_of_the_others(make, tmp_path):
    class Saves(BaseCallback):
        def _on_step(self) -> bool:
            if self.num_timesteps == 30:
                self.model.save(tmp_path / "agent")
            return True

    train_many([lambda seed=seed: make(seed) for seed in range(4)], 32, [Saves(), None, None, None])
    make(0).learn(30).save(tmp_path / "alone")
    sizes = [(tmp_path / f"{name}.zip").stat().st_size for name in ("agent", "alone")]
    assert sizes[0] < 1.05 * sizes[1]


def test_those_that_are_behind_catch_up(make):
    whole = make(0).learn(40)
    halfway = make(0).learn(25).capture()

    def resumed() -> RPPSAC:
        agent = make(0)
        agent.restore(halfway)
        return agent

    first, second = train_many([resumed, lambda: make(1)], 40)
    assert_same(first.agent, whole)
    assert_same(second.agent, make(1).learn(40))


def test_trainers_go_on_with_the_random_numbers_that_each_had(make):
    whole = train_many([lambda seed=seed: make(seed) for seed in (0, 1)], 45)
    half = train_many([lambda seed=seed: make(seed) for seed in (0, 1)], 30)
    again = train_many(half, 45)
    for one, other in zip(again, whole, strict=True):
        assert_same(one.agent, other.agent)


def test_trainers_that_failed_stay_where_they_are(make, caplog):
    def broken():
        raise ValueError("no simulator")

    half = train_many([lambda: make(0), broken, lambda: make(2)], 20, [None, None, FailsAt(15)])
    again = train_many(half, 30)
    assert [str(t.error) for t in again[1:]] == ["no simulator", "no more"] and again[0].error is None
    assert_same(again[0].agent, make(0).learn(30))
    assert half[2].agent.num_timesteps == 15 and re.search(r"agent 2: \S+: ValueError: no more", caplog.text)


def test_builds_that_return_no_agent_and_callbacks_of_another_number_are_named(make, caplog):
    trainers = train_many([lambda: make(0), lambda: None, lambda: SAC("MlpPolicy", HOPPER), make(3)], 20)
    assert [trainer.error is None for trainer in trainers] == [True, False, False, False]
    assert_same(trainers[0].agent, make(0).learn(20))
    assert "returned None: let it return an RPPSAC" in str(trainers[1].error) and trainers[1].agent is None
    assert "let it return an RPPSAC" in str(trainers[2].error) and "is no function that builds an agent" in str(
        trainers[3].error
    )
    assert "Traceback" not in caplog.text
    with pytest.raises(ValueError, match=r"^callbacks has 0 entries for 1 agents: give each one, or None$"):
        train_many([lambda: make(0)], 20, callbacks=[])


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
        with pytest.raises(
            ValueError, match=f"agent 0 and agent 1 share their {name}, which has a state: make one for"
        ):
            train_many([lambda seed=seed, build=build: build(seed) for seed in (0, 1)], 20)
    normal = NormalActionNoise(np.zeros(3), 0.1 * np.ones(3))  # remembers nothing
    assert all(t.error is None for t in train_many([lambda s=s: make(s, action_noise=normal) for s in (0, 1)], 20))
