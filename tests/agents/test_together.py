"""Several agents trained at once are what each would have been alone."""

from __future__ import annotations

import pytest
import torch
from stable_baselines3.common.callbacks import BaseCallback

from rppdyn.agents import RPPSAC, train_many
from rppdyn.agents.together import Together

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


@pytest.fixture
def make(make_agent):
    def build(seed: int, model: str = "rpp", **kwargs) -> RPPSAC:
        agent = make_agent(model, HOPPER, seed=seed, learning_starts=10, policy_kwargs=dict(num_layers=1), **kwargs)
        agent.policy.double()
        agent.log_ent_coef.data = agent.log_ent_coef.data.double()
        return agent

    return build


def assert_same(one: RPPSAC, other: RPPSAC, rtol: float = 1e-10) -> None:
    assert (one.num_timesteps, one._n_updates) == (other.num_timesteps, other._n_updates)
    state = one.update_state()
    for name, value in other.update_state().items():
        torch.testing.assert_close(state[name], value, rtol=rtol, atol=1e-12)
    rows = one.replay_buffer.size()
    assert (one.replay_buffer.observations[:rows] == other.replay_buffer.observations[:rows]).all()


def test_a_hundred_updates_are_those_of_each_alone(make):
    alone = [make(seed).learn(110) for seed in (0, 1)]
    before = torch.get_rng_state()
    trainees = train_many([lambda seed=seed: make(seed) for seed in (0, 1)], 110)
    assert torch.equal(torch.get_rng_state(), before)
    assert alone[0]._n_updates == 100
    for one, trainee in zip(alone, trainees, strict=True):
        assert trainee.error is None
        assert_same(trainee.agent, one)
        sizes = {p.untyped_storage().nbytes() for p in trainee.agent.actor.net.parameters()}
        assert max(sizes) <= max(p.nbytes for p in trainee.agent.actor.net.parameters()) * len(sizes) * 8
    assert not torch.equal(alone[0].update_state()["actor"], alone[1].update_state()["actor"])
    with trainees[1].random:  # and goes on as one that was always alone
        trainees[1].agent.learn(5, reset_num_timesteps=False)
    assert trainees[1].agent.num_timesteps == 115


def test_one_that_fails_is_reported_and_the_others_go_on(make, caplog):
    callbacks = [None, FailsAt(30), None]
    trainees = train_many([lambda seed=seed: make(seed) for seed in (0, 1, 2)], 45, callbacks)
    assert [trainee.agent.num_timesteps for trainee in trainees] == [45, 30, 45]
    assert str(trainees[1].error) == "no more" and "agent 1: no more" in caplog.text
    assert_same(trainees[2].agent, make(2).learn(45))


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


def test_agents_of_other_configurations_are_refused(make):
    with pytest.raises(
        ValueError, match=r"agents that are trained together have one configuration; gamma is 0.99 and 0.9"
    ):
        Together([make(0), make(1, gamma=0.9)])
    with pytest.raises(ValueError, match=r"one configuration; policy_kwargs is"):
        Together([make(0), make(1, "mlp")])
    with pytest.raises(ValueError, match=r"collect steps, not episodes"):
        train_many([lambda: make(0, train_freq=(1, "episode"))], 10)
