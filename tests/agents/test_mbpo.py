"""RPP-MBPO: what the model learns and makes up, exact resume, and what is refused."""

import numpy as np
import pytest
import torch
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecNormalize

from rppdyn.agents import RPPMBPO, RPPSAC, dynamics_equivariance_error

OPTIONS = dict(
    seed=0, device="cpu", learning_starts=60, batch_size=40, buffer_size=400, members=3, model_every=40, model_steps=20,
    model_batch_size=32, rollouts=90, kept_fits=2, real_ratio=0.25, dynamics="emlp",
    dynamics_kwargs=dict(hidden=32, num_layers=2), policy_kwargs=dict(hidden=16),
)  # fmt: skip


def build(env="InvertedPendulum-v5", **options) -> RPPMBPO:
    return RPPMBPO("RPPPolicy", env, **OPTIONS | options)


@pytest.fixture(scope="module")
def fitted():
    agent = build(learning_starts=200, model_steps=400, rollout_length=3)
    agent.learn(201)
    return agent


def test_the_model_predicts_the_simulator(fitted):
    data = fitted._transitions(torch.arange(fitted.replay_buffer.size()))
    step = fitted.dynamics.step(data.states.expand(3, -1, -1), data.actions.expand(3, -1, -1))
    change = (data.after - data.states).abs().mean(0)
    assert ((step.mean.mean(0) - data.after).abs().mean(0) < 0.2 * change).all()
    spread = (data.rewards - data.rewards.mean()).abs().mean()  # one for each step upright, nothing for the last
    assert (step.reward.mean(0) - data.rewards).abs().mean() < 0.6 * spread


def test_imagined_episodes_end_by_the_rule_and_begin_in_the_buffer(fitted):
    made = fitted.imagine()
    fell = fitted.spec.decode(made.after)[:, 1].abs() > 0.2
    assert torch.equal(made.dones.bool(), fell) and 0 < fell.float().mean() < 1
    known = fitted._transitions(torch.arange(fitted.replay_buffer.size())).states
    first = made.states[:90]
    assert all((known == state).all(-1).any() for state in first)
    later = made.states[90:]  # steps two and three go on where those before have arrived, if not at an end
    arrived = made.after[~fell]
    assert len(later) > 30 and all((arrived == state).all(-1).any() for state in later)


def test_imagined_transitions_are_as_likely_as_their_mirror_images(fitted):
    made = fitted.imagine()
    h = fitted.spec.group.discrete_generators[0]
    X, U = (rep.rho(h).float().T for rep in (fitted.spec.obs_rep, fitted.spec.action_rep))
    step = fitted.dynamics.step(made.states.expand(3, -1, -1), made.actions.expand(3, -1, -1))
    mirrored = fitted.dynamics.step((made.states @ X).expand(3, -1, -1), (made.actions @ U).expand(3, -1, -1))
    torch.testing.assert_close(mirrored.mean, step.mean @ X, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(mirrored.log_std, step.log_std, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(mirrored.reward, step.reward, rtol=1e-4, atol=1e-4)


def test_the_dynamics_equivariance_error_tells_pathways_apart(fitted):
    size = fitted.replay_buffer.size()
    observations, actions = fitted.replay_buffer.observations[:size, 0], 3 * fitted.replay_buffer.actions[:size, 0]
    assert dynamics_equivariance_error(fitted, observations, actions).error < 1e-12
    assert 1e-12 < dynamics_equivariance_error(fitted, observations, actions, dtype=None).error < 1e-5  # in float32
    assert fitted.pathway_statistics()["dynamics_free_share"] == 0
    errors = {}
    for variance in (1e-8, 3.0):
        kwargs = dict(hidden=32, num_layers=2, free_variance=variance)
        agent = build(learning_starts=100, dynamics="rpp", dynamics_kwargs=kwargs).learn(101)
        found = agent.equivariance_errors(observations, actions)
        assert list(found) == ["policy", "critic", "dynamics"]
        errors[variance] = found["dynamics"].error
        assert not found["dynamics"].vacuous and found["dynamics"].per_generator == {"left-right": errors[variance]}
    assert 1e-8 < errors[1e-8] < 0.1 * errors[3.0]


@torch.no_grad()
def test_the_dynamics_equivariance_error_is_of_the_environments_symmetry(fitted, monkeypatch):
    """By hand: all four entries change sign, the pole's angle about where the model stands upright."""
    rng = np.random.default_rng(0)
    observations, actions = rng.normal(size=(50, 4)), rng.uniform(-3, 3, (50, 1))
    bias = torch.tensor([0.0, 0.3, 0.0, 0.0], dtype=torch.float64)
    change = fitted.change_function(torch.float64)
    upright = 2 * fitted.spec.decode(torch.zeros(4, dtype=torch.float64)).numpy()
    here = change(torch.tensor(observations), torch.tensor(actions)) + bias
    there = change(torch.tensor(upright - observations), torch.tensor(-actions)) + bias
    expected = float((there + here).abs().sum() / (there.abs() + here.abs()).sum())
    monkeypatch.setattr(fitted, "change_function", lambda dtype: lambda obs, raw: change(obs, raw) + bias)
    assert expected > 1e-3
    assert dynamics_equivariance_error(fitted, observations, actions).error == pytest.approx(expected, rel=1e-9)
    with pytest.raises(ValueError, match="50 states and 49 actions"):
        dynamics_equivariance_error(fitted, observations, actions[1:])
    with pytest.raises(ValueError, match="RPPSAC learns no dynamics: give an RPPMBPO"):
        dynamics_equivariance_error(RPPSAC("RPPPolicy", "InvertedPendulum-v5"), observations, actions)


def test_a_batch_has_its_share_of_real_transitions():
    agent = build()
    agent.learn(120)
    states = agent._transitions(torch.arange(agent.replay_buffer.size())).after
    real = agent.policy.features_extractor.normaliser(states).float()
    batch = agent.batches.sample(40)
    found = [bool((real - x).abs().amax(-1).min() < 1e-6) for x in batch["next_features"]]
    assert found[:10] == [True] * 10 and sum(found[10:]) < 3
    assert len(agent._model_transitions) == 2  # of the three fits at 60, 100 and 140 steps, two have been


@pytest.mark.parametrize("n_envs", [1, 2])
def test_a_restored_agent_goes_on_bit_for_bit(n_envs):
    total, half = 180 * n_envs, 110 * n_envs
    whole, second = (build(make_vec_env("InvertedPendulum-v5", n_envs, seed=0)) for _ in range(2))
    whole.learn(half)
    captured = whole.capture()
    whole.learn(total - half, reset_num_timesteps=False)  # and leaves the captured state alone
    second.restore(captured)
    second.learn(total - half, reset_num_timesteps=False)
    for part in ("policy", "dynamics"):
        state, reference = getattr(second, part).state_dict(), getattr(whole, part).state_dict()
        assert all(torch.equal(state[name], reference[name]) for name in reference)
    assert all(
        torch.equal(*pair)
        for a, b in zip(second._model_transitions, whole._model_transitions, strict=True)
        for pair in zip(a, b, strict=True)
    )
    with pytest.raises(ValueError, match="without a model"):
        second.restore(RPPSAC("RPPPolicy", "InvertedPendulum-v5", policy_kwargs=dict(hidden=16)).capture())


def test_a_saved_agent_keeps_its_model(tmp_path):
    agent = build()
    agent.learn(70)
    agent.save(tmp_path / "agent")
    loaded = RPPMBPO.load(tmp_path / "agent", env=make_vec_env("InvertedPendulum-v5", 1))
    reference = agent.dynamics.state_dict()
    assert all(torch.equal(value, reference[name]) for name, value in loaded.dynamics.state_dict().items())
    assert loaded.model_every == 40 and loaded.members == 3
    loaded.learn(100)
    assert np.isfinite(loaded.logger.name_to_value["train/critic_loss"])
    with pytest.raises(ValueError, match=r"real_ratio=1\.5 must be"):
        RPPMBPO.load(tmp_path / "agent", real_ratio=1.5)
    for options in (dict(dynamics="rpp"), dict(dynamics_kwargs=dict(hidden=8)), dict(members=2)):
        with pytest.raises(ValueError, match=f"{next(iter(options))}= is for new agents"):
            RPPMBPO.load(tmp_path / "agent", **options)


PLAIN = dict(dynamics="mlp", policy_kwargs=dict(model="mlp", hidden=16))


def test_a_loaded_agent_is_told_when_episodes_end(tmp_path, monkeypatch):
    monkeypatch.delattr("rppdyn.envs.windy_pendulum.WindyPendulum.terminates")
    pendulum, ends = "rppdyn/WindyPendulum-v0", lambda x: x[..., 0] > 1e3
    build(pendulum, terminates=ends, **PLAIN).save(tmp_path / "agent")
    with pytest.raises(ValueError, match="give terminates="):
        RPPMBPO.load(tmp_path / "agent", env=make_vec_env(pendulum, 1))
    loaded = RPPMBPO.load(tmp_path / "agent", env=make_vec_env(pendulum, 1), terminates=ends).learn(62)
    assert len(loaded._model_transitions) == 1


@pytest.mark.parametrize(
    "options, message",
    [
        (dict(dynamics="rppp"), "dynamics='rppp' is not one of rpp, emlp, mlp"),
        (dict(dynamics_kwargs=dict(width=3)), "dynamics_kwargs has 'width'"),
        (dict(members=0), "members=0 must be at least 1"),
        (dict(real_ratio=1.5), "real_ratio=1.5 must be between 0 and 1"),
        (dict(n_steps=3), "n_steps=3: a model's transitions are single steps"),
    ],
)
def test_refusals(options, message):
    with pytest.raises(ValueError, match=message):
        build(**options)


def test_what_the_model_can_not_know_is_refused(monkeypatch):
    monkeypatch.delattr("rppdyn.envs.windy_pendulum.WindyPendulum.terminates")
    with pytest.raises(ValueError, match="VecNormalize scales rewards"):
        build(VecNormalize(make_vec_env("InvertedPendulum-v5", 1), norm_obs=False))
    with pytest.raises(ValueError, match="give terminates="):
        build("rppdyn/WindyPendulum-v0", **PLAIN)
    build("rppdyn/WindyPendulum-v0", terminates=lambda x: x[..., 0] > 1e3, **PLAIN)
