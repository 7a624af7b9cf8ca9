"""Everything that works on a stable-baselines3 SAC works on an RPPSAC."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import torch
from stable_baselines3 import SAC
from stable_baselines3.common.callbacks import BaseCallback, CheckpointCallback, EvalCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.logger import configure
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.noise import NormalActionNoise
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

from rppdyn.agents import RPPSAC, RelaxedPPO, policy_equivariance_error
from rppdyn.envs import mirror_spec, symmetry_spec

PENDULUM = "InvertedPendulum-v5"


def pendulum() -> gym.Env:
    return Monitor(gym.make(PENDULUM))


def test_an_environment_of_ones_own_with_a_spec_of_ones_own(make_agent, tmp_path):
    """Pendulum-v1 (no MuJoCo): mirrored about the vertical, (cos, sin, velocity) flips the last two."""
    spec = mirror_spec(
        "Pendulum-v1", obs_permutation=range(3), obs_signs=[1, -1, -1], action_permutation=[0], action_signs=[-1]
    )
    agent = make_agent("emlp", "Pendulum-v1", spec=spec).learn(60)
    agent.save(tmp_path / "agent.zip")
    loaded = RPPSAC.load(tmp_path / "agent.zip", env=gym.make("Pendulum-v1"), device="cpu")
    assert loaded.spec == spec
    assert policy_equivariance_error(loaded, agent.replay_buffer.observations[:60, 0]).error < 1e-5
    with pytest.raises(ValueError, match=r"no Gymnasium MuJoCo environment"):
        loaded.capture()


class Reach(gym.Env):
    """Observations of every kind that is flattened, in dictionaries."""

    observation_space = gym.spaces.Dict(
        arm=gym.spaces.Box(-1, 1, (2, 2)),
        goal=gym.spaces.Dict(place=gym.spaces.Box(-1, 1, (2,)), grip=gym.spaces.Discrete(3, start=-1)),
        time=gym.spaces.Box(0, 1, ()),
    )
    action_space = gym.spaces.Box(-1, 1, (1,))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.observation_space.sample(), {}


@pytest.mark.parametrize("algorithm", [RPPSAC, RelaxedPPO])
def test_actions_are_predicted_from_the_dictionaries_that_were_trained_on(algorithm, tmp_path):
    """Parts were concatenated and not flattened: all but boxes with one axis ended in an error of NumPy's."""
    agent = algorithm("RPPPolicy", Reach(), policy_kwargs=dict(model="mlp", hidden=8), seed=0, device="cpu")
    space, samples = Reach.observation_space, [Reach().reset()[0] for _ in range(3)]
    flat = np.stack([gym.spaces.flatten(space, sample) for sample in samples])
    expected, _ = agent.predict(flat, deterministic=True)
    agent.save(tmp_path / "agent.zip")
    for one in (agent, algorithm.load(tmp_path / "agent.zip", device="cpu")):
        actions = [one.predict(sample, deterministic=True)[0] for sample in samples]
        np.testing.assert_allclose(actions, expected, atol=1e-6)
        goals = {key: np.stack([sample["goal"][key] for sample in samples]) for key in ("place", "grip")}
        batch = {key: np.stack([sample[key] for sample in samples]) for key in ("arm", "time")} | {"goal": goals}
        np.testing.assert_allclose(one.predict(batch, deterministic=True)[0], expected, atol=1e-6)
    agent._keys = ["first", "last"]  # of a file of an earlier version, with boxes of one axis
    parts = {"last": flat[:, 4:], "first": flat[:, :4]}
    np.testing.assert_array_equal(agent.predict(parts, deterministic=True)[0], expected)


def test_vectorised_environments_callbacks_and_several_gradient_steps(make_agent, tmp_path):
    env = DummyVecEnv([pendulum, pendulum])
    agent = make_agent("rpp", env, gradient_steps=2, train_freq=4, tensorboard_log=None)
    evaluation = EvalCallback(DummyVecEnv([pendulum]), eval_freq=50, n_eval_episodes=1, verbose=0)
    agent.learn(200, callback=[CheckpointCallback(50, tmp_path, name_prefix="rpp"), evaluation])
    assert agent.num_timesteps == 200
    assert agent._n_updates == 2 * sum(t > 50 for t in range(8, 201, 8))
    assert RPPSAC.load(tmp_path / "rpp_100_steps.zip").num_timesteps == 100
    assert np.isfinite(evaluation.last_mean_reward)
    rewards, lengths = evaluate_policy(agent, env, n_eval_episodes=2, return_episode_rewards=True)
    assert len(rewards) == len(lengths) == 2


def test_actions_keep_to_the_bounds_and_exploration_uses_the_agents_own_noise(make_agent):
    agent = make_agent("rpp", PENDULUM, action_noise=NormalActionNoise(np.zeros(1), np.ones(1)))
    agent.learn(70)
    obs = agent._last_obs
    before = torch.get_rng_state()
    actions = np.stack([agent.predict(obs)[0] for _ in range(20)])
    assert torch.equal(before, torch.get_rng_state())
    assert len(np.unique(actions)) > 10 and (np.abs(actions) <= 3).all()


def test_logged_names(make_agent, tmp_path):
    agent = make_agent("rpp", PENDULUM)
    agent.set_logger(configure(str(tmp_path), ["csv"]))
    agent.learn(150, log_interval=1)
    agent.logger.close()
    header = (tmp_path / "progress.csv").read_text().splitlines()[0].split(",")
    expected = {"train/actor_loss", "train/critic_loss", "train/ent_coef", "train/ent_coef_loss", "train/learning_rate"}
    expected |= {"rollout/ep_rew_mean", "pathway/actor_free_share", "pathway/critic_free_share", "prior/actor_penalty"}
    expected |= {f"pathway/{net}_{pathway}_norm" for net in ("actor", "critic") for pathway in ("equivariant", "free")}
    assert expected <= set(header)


def test_the_caller_keeps_its_arguments(make_agent):
    mine = dict(model="emlp", hidden=16)
    RPPSAC("RPPPolicy", PENDULUM, policy_kwargs=mine, buffer_size=100, device="cpu")
    assert mine == dict(model="emlp", hidden=16)


def test_callbacks_see_the_metrics_of_the_last_update(make_agent):
    class Sees(BaseCallback):
        seen = 0

        def _on_step(self) -> bool:
            self.seen += "train/critic_loss" in self.logger.name_to_value
            return True

    callback = Sees()
    make_agent("rpp", PENDULUM).learn(90, callback=callback, log_interval=10**6)
    assert callback.seen >= 39


def test_environments_of_make_vec_env_in_processes_of_their_own(make_agent):
    env = make_vec_env("Swimmer-v5", 2, vec_env_cls=SubprocVecEnv, vec_env_kwargs={"start_method": "forkserver"})
    try:
        agent = make_agent("rpp", env).learn(60)
        assert agent.spec == symmetry_spec("Swimmer-v5") and agent.num_timesteps == 60
    finally:
        env.close()


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")  # of checks of sizes
def test_the_actor_is_traced(make_agent):
    """In torch's default mode, in which traces with and without gradients are compared."""

    class Deterministic(torch.nn.Module):
        def __init__(self, actor):
            super().__init__()
            self.actor = actor

        def forward(self, observations):
            return self.actor(observations, deterministic=True)

    actor = Deterministic(make_agent("rpp", "Walker2d-v5").actor)
    observations = torch.randn(5, 17, generator=torch.Generator().manual_seed(0))
    with pytest.deprecated_call():  # by torch, in favour of torch.export
        traced = torch.jit.trace(actor, observations)
    torch.testing.assert_close(traced(2 * observations), actor(2 * observations))


def test_callbacks_see_what_those_of_stable_baselines3s_own_do(make_agent):
    class Seen(BaseCallback):
        def _on_step(self) -> bool:
            seen.append(set(self.locals))
            return True

    seen: list[set[str]] = []
    for agent in (SAC("MlpPolicy", PENDULUM, policy_kwargs=dict(net_arch=[4])), make_agent("rpp", PENDULUM)):
        agent.learn(3, callback=Seen())
    theirs, ours = seen[0], seen[-1]
    assert not theirs - ours - {"self", "action_noise_", "idx", "kwargs"}, theirs - ours


def test_the_actor_gives_the_parameters_of_its_distribution(make_agent):
    agent = make_agent("rpp", "Hopper-v5")
    observations = torch.randn(5, 11, generator=torch.Generator().manual_seed(0))
    mean, log_std, rest = agent.actor.get_action_dist_params(observations)
    assert mean.shape == log_std.shape == (5, 3) and rest == {}
    torch.testing.assert_close(torch.tanh(mean), agent.actor(observations, deterministic=True))
    with pytest.raises(ValueError, match=r"saved with its policy: agent.policy.save\('actor.pt'\)"):
        agent.actor.save("actor.pt")


@pytest.mark.parametrize("kind", [RPPSAC, RelaxedPPO])
def test_tensorboards_runs_have_the_names_of_environment_and_model(kind, tmp_path):
    off_policy = dict(buffer_size=50, learning_starts=40)
    small = dict(n_steps=16, batch_size=16, n_epochs=1) if kind is RelaxedPPO else off_policy
    options = dict(
        seed=0, device="cpu", tensorboard_log=str(tmp_path), policy_kwargs=dict(model="emlp", hidden=8), **small
    )
    kind("RPPPolicy", PENDULUM, **options).learn(16)
    kind("RPPPolicy", PENDULUM, **options).learn(16, tb_log_name="mine")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["InvertedPendulum-v5-emlp_1", "mine_1"]


def test_a_seed_that_is_set_again_gives_the_same_draws(make_agent):
    agent = make_agent("rpp", action_noise=None).learn(60)
    observation, drawn = agent.env.reset(), []
    for seed in (7, 7, 8):
        agent.set_random_seed(seed)
        batch = agent.sampler.sample(4)
        drawn.append(
            np.concatenate([agent.predict(observation)[0].ravel(), *(batch[k].ravel() for k in ("rewards", "noise"))])
        )
    assert np.array_equal(drawn[0], drawn[1]) and not np.array_equal(drawn[0], drawn[2])


def test_whole_numbers_are_normalised_as_numbers(make_agent):
    class Bytes(gym.Env):
        observation_space, action_space = gym.spaces.Box(0, 255, (2,), np.uint8), gym.spaces.Box(-1, 1, (1,))

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            return self.np_random.integers(0, 256, 2).astype(np.uint8), {}

        def step(self, action):
            return self.np_random.integers(0, 256, 2).astype(np.uint8), 0.0, False, False, {}

    features = make_agent("mlp", Bytes()).learn(60).policy.features_extractor
    x = torch.tensor([[0, 255], [128, 64]], dtype=torch.uint8)
    assert torch.allclose(features(x), features(x.double()), atol=1e-6) and features(x)[0, 0] < -1
