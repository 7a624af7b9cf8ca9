"""Replay buffers, and updates that are replayed on a device: on the CPU, where both can run, too."""

from __future__ import annotations

import pickle

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from rppdyn.agents import RPPSAC, SACUpdate, compiling, train_many
from rppdyn.agents.buffers import TRANSITIONS, RowReplayBuffer

OBSERVATIONS = spaces.Box(-np.inf, np.inf, (3,), np.float64)
ACTIONS = spaces.Box(-1, 1, (2,), np.float32)


class OtherReplayBuffer(ReplayBuffer):
    """Another class than those that an agent's buffer of rows stands for."""


def filled(kind: type[ReplayBuffer], steps: int, precision: type = np.float64, n_envs: int = 2) -> ReplayBuffer:
    """A buffer for ten steps of its environments, after as many as are asked for; rewards number the transitions."""
    np.random.seed(0)  # noqa: NPY002 (which generators are seeded from)
    observations = spaces.Box(-np.inf, np.inf, (3,), precision)
    buffer = kind(10 * n_envs, observations, ACTIONS, device="cpu", n_envs=n_envs)
    draw = np.random.default_rng(1).normal
    for i in range(steps):
        timeouts = [{"TimeLimit.truncated": i % 4 == 3}, {}]
        reward = np.array([2.0 * i, 2.0 * i + 1])
        done = np.array([i % 4 == 3, i % 5 == 4])
        parts = draw(size=(2, 3)), draw(size=(2, 3)), draw(size=(2, 2)).clip(-1, 1), reward, done
        buffer.add(*(part[:n_envs] for part in parts), timeouts[:n_envs])
    return buffer


@pytest.mark.parametrize("steps", [7, 13])
@pytest.mark.parametrize("precision", [np.float64, np.float32])
@pytest.mark.parametrize("n_envs", [1, 2])
def test_the_buffer_holds_what_stable_baselines3s_holds(steps, precision, n_envs):
    ours, theirs = (filled(kind, steps, precision, n_envs) for kind in (RowReplayBuffer, ReplayBuffer))
    size = min(steps, 10)
    assert (ours.size(), ours.pos, ours.full) == (theirs.size(), theirs.pos, theirs.full)
    for name in TRANSITIONS:
        here, there = getattr(ours, name), getattr(theirs, name)[:size]
        assert here.dtype == there.dtype and np.array_equal(here, there), name
    drawn = ours.sample(4000)
    count = size * n_envs
    row = [np.argwhere(theirs.rewards[:size].flatten() == reward).item() for reward in drawn.rewards[:, 0].numpy()]
    counts = np.bincount(row, minlength=count)
    assert (abs(counts - 4000 / count) < 6 * (4000 / count) ** 0.5).all()  # all are drawn, uniformly
    step, env = np.divmod(row, n_envs)
    expected = theirs._get_samples(step, None) if n_envs == 1 else None
    for name in ("observations", "next_observations", "actions"):
        assert np.array_equal(getattr(drawn, name), getattr(theirs, name)[step, env])
    assert np.array_equal(drawn.dones[:, 0], (theirs.dones * (1 - theirs.timeouts))[step, env])
    if expected is not None:
        for here, there in zip(drawn, expected, strict=True):
            assert here is there is None or (here.dtype == there.dtype and torch.equal(here, there))


def test_rewards_are_scaled_as_stable_baselines3_scales_them():
    buffer = filled(RowReplayBuffer, 7)
    scaled = VecNormalize(DummyVecEnv([lambda: gym.make("InvertedPendulum-v5")]), norm_obs=False)
    scaled.ret_rms.var = np.array(7.0)
    unscaled = VecNormalize(scaled.venv, norm_obs=False, norm_reward=False)
    found = []
    for env in (None, scaled, unscaled):
        buffer.generator.manual_seed(5)
        found.append(buffer.sample(50, env).rewards)
    assert torch.equal(found[0], found[2]) and found[1].dtype == torch.float32
    assert np.array_equal(found[1], scaled.normalize_reward(found[0].numpy()).astype(np.float32))


def test_what_is_written_into_a_buffer_of_rows_is_drawn_after_it_was_pickled_too():
    buffer = pickle.loads(pickle.dumps(filled(RowReplayBuffer, 13)))
    buffer.rewards[:] = -1.0
    buffer.add(np.ones((2, 3)), np.ones((2, 3)), np.ones((2, 2)), np.ones(2), np.zeros(2), [{}, {}])
    drawn = buffer.sample(200)
    assert drawn.rewards.unique().tolist() == [-1.0, 1.0]
    assert (drawn.observations[drawn.rewards[:, 0] == 1] == 1).all()
    with pytest.raises(ValueError, match="RowReplayBuffer keeps next observations and timeouts"):
        RowReplayBuffer(20, OBSERVATIONS, ACTIONS, handle_timeout_termination=False)


def test_rewards_are_scaled_where_the_environment_does_so_only_later(make_agent):
    agent = make_agent("rpp", "InvertedPendulum-v5").learn(60)
    assert isinstance(agent.sampler.rows, RowReplayBuffer)
    scaled = VecNormalize(DummyVecEnv([lambda: gym.make("InvertedPendulum-v5")]), norm_obs=False)
    scaled.training, scaled.ret_rms.var = False, np.array(100.0)
    agent.set_env(scaled)
    agent.learn(10, reset_num_timesteps=False)
    assert not agent.sampler.is_on_device and agent.sampler.sample(64)["rewards"].max() < 0.11


def test_a_pickled_buffer_goes_on_with_the_same_draws():
    buffer = filled(RowReplayBuffer, 13)
    buffer.sample(5)
    again = pickle.loads(pickle.dumps(buffer))
    assert torch.equal(again.sample(50).observations, buffer.sample(50).observations)
    assert all(len(one) == 10 and torch.equal(one, other) for one, other in zip(again.rows, buffer.rows, strict=True))


def test_an_empty_buffer_is_pickled_without_memory_for_transitions():
    empty = filled(RowReplayBuffer, 0)
    again = pickle.loads(pickle.dumps(empty))
    assert empty._rows is None and again._rows is None
    assert again.size() == 0


def record(patch: pytest.MonkeyPatch) -> list:
    """Make updates here what they are on a CUDA device; returns the generators of what is captured, one list each."""
    found = []

    def cuda_graph(work, device, changes, generators):
        found.append(generators)
        return work

    patch.setattr(compiling.FastUpdate, "is_captured", property(lambda self: True))
    patch.setattr(compiling, "cuda_graph", cuda_graph)
    return found


def states_agree(one: RPPSAC, other: RPPSAC, rtol: float = 0.0, atol: float = 0.0) -> None:
    for a, b in zip(one.policy.parameters(), other.policy.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=rtol, atol=atol)


def train(make_agent, seed: int = 0, **kwargs) -> RPPSAC:
    return make_agent("rpp", "Hopper-v5", seed=seed, train_freq=2, gradient_steps=2, **kwargs).learn(80)


@pytest.mark.parametrize("buffer", [OtherReplayBuffer, RowReplayBuffer])
def test_captured_updates_are_the_same_and_captured_once(make_agent, monkeypatch, buffer):
    """Rates that fall and targets that move now and then included; a buffer of rows is drawn from in the graph."""
    options = dict(replay_buffer_class=buffer, target_update_interval=2, learning_rate=lambda left: 1e-3 * left)
    with monkeypatch.context() as patch:
        found = record(patch)
        agent = train(make_agent, **options)
    states_agree(agent, train(make_agent, **options))
    assert found == [[agent.replay_buffer.generator] if buffer is RowReplayBuffer else []]


@pytest.mark.parametrize("buffer", [OtherReplayBuffer, RowReplayBuffer])
def test_a_restored_agent_is_captured_anew_and_goes_on_bit_identically(make_agent, monkeypatch, buffer):
    found = record(monkeypatch)
    agent = train(make_agent, replay_buffer_class=buffer)
    data = agent.capture()
    agent.learn(20, reset_num_timesteps=False)
    other = train(make_agent, seed=5, replay_buffer_class=buffer)
    assert len(found) == 2
    other.restore(data)
    other.learn(20, reset_num_timesteps=False)
    states_agree(other, agent)
    assert len(found) == 3 and agent._n_updates == other._n_updates
    for name in TRANSITIONS:
        size = len(data["replay"]["rows"][name])
        assert np.array_equal(getattr(other.replay_buffer, name)[:size], data["replay"]["rows"][name])


@pytest.mark.parametrize("env, model", [("Hopper-v5", "rpp"), ("InvertedPendulum-v5", "rpp"), ("Ant-v5", "emlp")])
def test_an_update_looks_at_no_value_and_leaves_its_device_nowhere(make_agent, monkeypatch, env, model):
    """On the meta device tensors have no values, and mixing it with the CPU is an error; nor is one made of numbers."""
    meta = torch.device("meta")
    agent = make_agent(model, env, replay_buffer_class=RowReplayBuffer, max_gradient_norm=0.5)
    update = SACUpdate([agent])
    update.refresh()
    settings = agent.settings()
    numbers = torch.tensor([settings.numbers]).T.unsqueeze(-1).to(meta)

    def without_generator(draw):
        return lambda *shape, generator, **options: draw(*shape, **options)

    for name in ("rand", "randn"):
        monkeypatch.setattr(torch, name, without_generator(getattr(torch, name)))
    state = {name: tensor.to(meta) for name, tensor in update.state.items()}
    for module in (agent.policy, *(ensemble.net for ensemble in (update.actors, update.critics, update.targets))):
        module.to(meta)
    buffer = agent.replay_buffer
    buffer._rows = tuple(rows.to(meta) for rows in buffer.rows)
    buffer.count, buffer.device = buffer.count.to(meta), meta
    monkeypatch.setattr(agent.replay_buffer, "generator", type("OnMeta", (), {"device": meta}))

    def waits(*_, **__):
        raise AssertionError("a device is waited for to have a tensor that is made of numbers")

    for name in ("tensor", "as_tensor", "from_numpy"):
        monkeypatch.setattr(torch, name, waits)
    with torch.no_grad():
        metrics = update.update_(state, update.stacked(update.sample(32)), numbers, settings)
    assert metrics.values.is_meta and {"actor_loss", "critic_loss"} <= set(metrics.names)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("env", ["Hopper-v5", "InvertedPendulum-v5"])
def test_on_a_gpu_graphs_do_what_their_work_does(monkeypatch, caplog, env):
    def build(seed: int) -> RPPSAC:
        options = dict(
            learning_rate=lambda progress: 1e-3 * progress, learning_starts=50, batch_size=32, buffer_size=2000
        )
        return RPPSAC("RPPPolicy", env, policy_kwargs=dict(hidden=16), seed=seed, device="cuda", **options)

    builds = [lambda seed=seed: build(seed) for seed in (0, 1)]
    graphs = train_many(builds, 60)
    assert "CUDA graph" not in caplog.text and isinstance(graphs[0].agent.replay_buffer, RowReplayBuffer)
    monkeypatch.setattr(compiling, "cuda_graph", lambda work, *_: work)
    for one, other in zip(graphs, train_many(builds, 60), strict=True):
        states_agree(one.agent, other.agent, rtol=1e-3, atol=1e-5)


def test_batches_that_are_drawn_elsewhere_are_no_part_of_a_captured_update(make_agent):
    assert make_agent().sampler.is_on_device
    for options in (dict(augment=True), dict(n_steps=2)):
        assert not make_agent(**options).sampler.is_on_device
