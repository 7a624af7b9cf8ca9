"""Everything that works on a stable-baselines3 SAC works on an RPPSAC."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import torch
from refusals import refused
from stable_baselines3 import SAC
from stable_baselines3.common.callbacks import BaseCallback, CheckpointCallback, EvalCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.logger import Logger, configure
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.noise import NormalActionNoise
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecFrameStack, VecMonitor, VecNormalize

from rppdyn.agents import RPPPPO, RPPSAC, RPPPolicy, policy_equivariance_error
from rppdyn.envs import certify, mirror_spec, symmetry_spec
from rppdyn.runs.workers import numpy_draws_from

PENDULUM = "InvertedPendulum-v5"


def pendulum() -> gym.Env:
    return Monitor(gym.make(PENDULUM))


@pytest.fixture
def trained(make_agent) -> RPPSAC:
    return make_agent("rpp", "Walker2d-v5").learn(80)


def test_a_saved_agent_acts_the_same_in_a_fresh_process(trained, actions_elsewhere):
    observations = np.random.default_rng(0).normal(size=(10, 17))
    expected, _ = trained.predict(observations, deterministic=True)
    found = actions_elsewhere(trained, observations, without="gymnasium.envs.mujoco.walker2d_v5")
    np.testing.assert_array_equal(found, expected)


def test_a_loaded_agent_has_the_same_state_and_trains_on(trained, tmp_path):
    trained.save(tmp_path / "agent.zip")
    loaded = RPPSAC.load(tmp_path / "agent.zip", env=gym.make("Walker2d-v5"), device="cpu")
    there, here = trained.update_state(), loaded.update_state()
    assert set(there) == set(here)
    for name in there:
        torch.testing.assert_close(here[name], there[name], rtol=0, atol=0)
    assert loaded.spec == trained.spec and loaded.num_timesteps == 80
    assert loaded.noise_variance == trained.noise_variance
    before = here["actor"].clone()
    loaded.learn(60, reset_num_timesteps=False)  # fills its own replay buffer, then trains
    assert loaded.num_timesteps == 140 and not torch.equal(loaded.update_state()["actor"], before)


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


def test_another_robot_with_equal_spaces_is_warned_of(trained, tmp_path, recwarn):
    trained.save(tmp_path / "agent.zip")
    RPPSAC.load(tmp_path / "agent.zip", env=gym.make("Walker2d-v5"), device="cpu").set_env(gym.make("Walker2d-v5"))
    assert not [w for w in recwarn if "symmetry" in str(w.message)]
    other = lambda: gym.make("HalfCheetah-v5")  # noqa: E731
    with pytest.warns(UserWarning, match="symmetry is that of Walker2d-v5, and it is given HalfCheetah-v5"):
        loaded = RPPSAC.load(tmp_path / "agent.zip", env=other(), device="cpu")
    with pytest.warns(UserWarning, match="given HalfCheetah-v5"):
        loaded.set_env(DummyVecEnv([other]))


def test_parameters_go_out_and_in(trained, make_agent):
    other = make_agent("rpp", "Walker2d-v5", seed=7)
    other.set_parameters(trained.get_parameters())
    for name, value in trained.update_state().items():
        if name != "log_alpha":  # a variable of its own in stable-baselines3
            torch.testing.assert_close(other.update_state()[name], value, rtol=0, atol=0)


def test_a_policy_is_saved_and_loaded_alone(trained, tmp_path):
    trained.policy.save(tmp_path / "policy.pth")
    policy = RPPPolicy.load(tmp_path / "policy.pth", device="cpu")
    obs = trained.observation_space.sample()
    np.testing.assert_array_equal(
        policy.predict(obs, deterministic=True)[0], trained.predict(obs, deterministic=True)[0]
    )


def test_a_truncated_file_is_named(trained, tmp_path):
    path = tmp_path / "agent.zip"
    trained.save(path)
    whole = path.read_bytes()
    for fraction in (0.1, 0.5, 0.9, 0.999):
        path.write_bytes(whole[: int(fraction * len(whole))])
        with pytest.raises(ValueError, match=r"agent.zip is truncated or not an agent"):
            RPPSAC.load(path)
    with pytest.raises(FileNotFoundError):
        RPPSAC.load(tmp_path / "absent.zip")


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


def test_as_many_gradient_steps_as_steps_and_training_by_episodes(make_agent):
    agent = make_agent("rpp", PENDULUM, gradient_steps=-1, train_freq=(1, "episode"))
    agent.learn(120)
    assert 0 < agent._n_updates < agent.num_timesteps


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


def test_learning_rate_schedules_and_target_intervals(make_agent):
    agent = make_agent("rpp", PENDULUM, learning_rate=lambda progress: 1e-3 * progress, target_update_interval=3)
    agent.learn(100)
    assert agent.actor.optimizer.param_groups[0]["lr"] == pytest.approx(1e-3 * agent._current_progress_remaining)
    target = agent.update_state()["target"].clone()
    agent._n_updates = 4  # updates 4 and 5 are no multiples of 3
    agent.train(2, 16)
    assert torch.equal(agent.update_state()["target"], target)
    agent.train(1, 16)
    assert not torch.equal(agent.update_state()["target"], target)


def test_rewards_may_be_normalised_observations_may_not(make_agent):
    def vectorised(**kwargs):
        return VecNormalize(DummyVecEnv([pendulum]), **kwargs)

    make_agent("rpp", vectorised(norm_obs=False)).learn(60)
    with pytest.raises(ValueError, match=r"norm_obs=False"):
        make_agent("rpp", vectorised())
    agent = make_agent("rpp")
    with pytest.raises(ValueError, match=r"norm_obs=False"):
        agent.set_env(vectorised())
    assert agent._vec_normalize_env is None  # the agent is left as it was
    agent.set_env(vectorised(norm_obs=False))
    agent.learn(60)


def test_n_step_returns(make_agent):
    agent = make_agent("rpp", PENDULUM, n_steps=3).learn(80)
    assert agent.sampler.sample(8)["discounts"].shape == (8,)


def test_the_caller_keeps_its_arguments(make_agent):
    mine = dict(model="emlp", hidden=16)
    RPPSAC("RPPPolicy", PENDULUM, policy_kwargs=mine, buffer_size=100, device="cpu")
    assert mine == dict(model="emlp", hidden=16)


def weights_of(agent) -> dict[str, torch.Tensor]:
    modules = dict(actor=agent.actor, critic=agent.critic, target=agent.critic_target)
    found = {name: torch.cat([p.detach().flatten() for p in m.parameters()]).double() for name, m in modules.items()}
    return found | ({} if agent.log_ent_coef is None else {"log_alpha": agent.log_ent_coef.detach().double().clone()})


@pytest.mark.parametrize(
    ("model", "options", "dtype"),
    [
        ("mlp", {}, torch.float64),
        ("mlp", {}, torch.float32),
        ("rpp", {}, torch.float64),
        ("rpp", {}, torch.float32),
        ("emlp", {}, torch.float64),
        ("rpp_policy_only", {}, torch.float64),
        ("rpp", dict(ent_coef=0.3), torch.float64),
        ("rpp", dict(n_steps=3, gamma=0.97, tau=0.1, target_update_interval=3), torch.float64),
    ],
    ids=str,
)
def test_updates_are_those_of_stable_baselines3s_own_train(make_agent, model, options, dtype):
    """`SAC.train` of an agent like it, on its replay buffer; priors, which it doesn't have, are shared out over 1e30."""

    def twin() -> RPPSAC:
        agent = make_agent(model, "Hopper-v5", learning_starts=10**9, **options).learn(100)
        agent.set_logger(Logger(None, []))
        agent.policy.to(dtype)
        if agent.log_ent_coef is not None:
            agent.log_ent_coef.data = agent.log_ent_coef.data.to(dtype)
        agent.learning_starts = 10**30
        return agent

    fast, slow = twin(), twin()
    before = weights_of(fast)
    slow.actor.generator = getattr(slow.replay_buffer, "generator", slow.sampler.generator)
    fast.train(100, 32)
    with numpy_draws_from(slow.sampler.numpy):
        SAC.train(slow, 100, 32)
    rtol = 1e-10 if dtype is torch.float64 else 1e-4
    found, expected = weights_of(fast), weights_of(slow)
    for name, value in expected.items():
        assert (found[name] - value).norm() <= rtol * value.norm()
        assert (value - before[name]).norm() > 1e-3 * value.norm()


def test_a_fixed_temperature_is_what_it_is_now(make_agent):
    agent = make_agent("mlp", PENDULUM, ent_coef=0.5).learn(60)
    agent.ent_coef_tensor = torch.tensor(0.01)
    agent.train(1, 16)
    assert agent.logger.name_to_value["train/ent_coef"] == pytest.approx(0.01)
    other = make_agent("mlp", PENDULUM, ent_coef=0.9).learn(60)
    other.restore(agent.capture())
    other.learn(20, reset_num_timesteps=False)
    assert other.log_alpha.exp() == pytest.approx(0.01)
    with pytest.raises(ValueError, match="a fixed temperature, this one's is learned"):
        make_agent("mlp", PENDULUM).restore(agent.capture())
    with pytest.raises(ValueError, match=r"ent_coef=-0\.1"):
        make_agent("mlp", PENDULUM, ent_coef=-0.1)


def test_callbacks_see_the_metrics_of_the_last_update(make_agent):
    class Sees(BaseCallback):
        seen = 0

        def _on_step(self) -> bool:
            self.seen += "train/critic_loss" in self.logger.name_to_value
            return True

    callback = Sees()
    make_agent("rpp", PENDULUM).learn(90, callback=callback, log_interval=10**6)
    assert callback.seen >= 39


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda a: a.critic.optimizer.param_groups[0].update(eps=1.0), r"the critic's optimiser has eps=1\.0"),
        (
            lambda a: a.actor.optimizer.param_groups[0].update(weight_decay=0.1),
            r"the actor's optimiser has weight_decay=0\.1",
        ),
        (lambda a: setattr(a.critic, "optimizer", torch.optim.SGD(a.critic.parameters(), 1e-3)), "optimiser is SGD"),
        (lambda a: a.actor.requires_grad_(False), "parameters of the actor require no gradients"),
    ],
    ids=["eps", "weight decay", "SGD", "frozen"],
)
def test_what_updates_would_pass_over_is_refused(make_agent, change, said):
    agent = make_agent("rpp", PENDULUM)
    change(agent)
    with pytest.raises(ValueError, match=said):
        agent.learn(10)


@pytest.mark.parametrize(
    ("policy", "arguments", "said"),
    [
        ("MlpPolicy", {}, "policy='MlpPolicy': choose 'RPPPolicy'"),
        ("RPPPolicy", dict(optimizer_class=torch.optim.SGD), "optimizer_class, which RPPPolicy hasn't: it has Adam"),
        ("RPPPolicy", dict(hiden=3), "hiden, which RPPPolicy hasn't: it has one of spec, model, hidden"),
    ],
)
def test_names_of_stable_baselines3_that_don_t_apply_are_refused(policy, arguments, said):
    with pytest.raises(ValueError, match=said):
        RPPSAC(policy, PENDULUM, policy_kwargs=arguments, device="cpu")


def test_environments_of_make_vec_env_in_processes_of_their_own(make_agent):
    env = make_vec_env("Swimmer-v5", 2, vec_env_cls=SubprocVecEnv, vec_env_kwargs={"start_method": "forkserver"})
    try:
        agent = make_agent("rpp", env).learn(60)
        assert agent.spec == symmetry_spec("Swimmer-v5") and agent.num_timesteps == 60
    finally:
        env.close()


class Shifted(gym.ObservationWrapper):
    """A wrapper without a spec."""

    def observation(self, observation: np.ndarray) -> np.ndarray:
        return observation + 1.0


def test_a_wrapper_that_cannot_be_made_again_is_named(make_agent):
    env = SubprocVecEnv([lambda: Shifted(gym.make(PENDULUM))], start_method="forkserver")
    try:
        with pytest.raises(ValueError, match=r"wrapper Shifted can't be made again here.*pass spec="):
            make_agent("rpp", env)
    finally:
        env.close()


class LeanLeft(gym.Wrapper):
    """Pays for leaning to one side."""

    def step(self, action):
        obs, reward, *rest = self.env.step(action)
        return obs, reward + float(obs[1] > 0), *rest


@pytest.mark.parametrize(
    ("name", "wrap"),
    [
        ("LeanLeft", lambda: LeanLeft(gym.make(PENDULUM))),
        ("TransformAction", lambda: gym.wrappers.TransformAction(gym.make(PENDULUM), np.abs, gym.spaces.Box(-3, 3, (1,)))),
        ("StickyAction", lambda: gym.wrappers.StickyAction(gym.make(PENDULUM), 0.25)),
        ("NormalizeObservation", lambda: gym.wrappers.NormalizeObservation(gym.make(PENDULUM))),
        ("VecFrameStack", lambda: VecFrameStack(DummyVecEnv([lambda: gym.make(PENDULUM)]), 2)),
        ("LeanLeft", lambda: VecMonitor(DummyVecEnv([lambda: LeanLeft(gym.make(PENDULUM))]))),
    ],
)  # fmt: skip
def test_wrappers_that_the_derived_symmetry_knows_nothing_of_are_refused(make_agent, name, wrap):
    with pytest.raises(ValueError, match=rf"wrapper {name}\b"):
        make_agent("rpp", wrap())
    if name == "LeanLeft":
        assert make_agent("rpp", wrap(), spec=symmetry_spec(PENDULUM)).spec == symmetry_spec(PENDULUM)


def test_wrappers_that_keep_the_symmetry_are_taken(make_agent):
    single = lambda: gym.wrappers.RescaleAction(gym.make(PENDULUM), np.float32(-1), np.float32(1))  # noqa: E731
    env = VecNormalize(DummyVecEnv([single]), norm_obs=False)
    assert make_agent("rpp", env).spec.action == symmetry_spec(PENDULUM).action


def test_files_of_other_algorithms_are_refused_by_name(make_agent, tmp_path):
    SAC("MlpPolicy", PENDULUM, policy_kwargs=dict(net_arch=[4])).save(tmp_path / "sac.zip")
    with pytest.raises(ValueError, match=r"SACPolicy is no RPPPolicy.*loaded by that algorithm's class"):
        RPPSAC.load(tmp_path / "sac.zip")


@pytest.mark.parametrize(("saved", "loaded"), [(0.2, "auto"), ("auto", 0.2)])
def test_a_temperature_stays_learned_or_fixed_in_a_loaded_agent(make_agent, tmp_path, saved, loaded):
    make_agent("rpp", PENDULUM, ent_coef=saved).save(tmp_path / "agent.zip")
    with pytest.raises(
        ValueError, match=rf"agent.zip can't be loaded with ent_coef='?{loaded}'?: .* leave ent_coef out"
    ):
        RPPSAC.load(tmp_path / "agent.zip", ent_coef=loaded, device="cpu")
    assert RPPSAC.load(tmp_path / "agent.zip", device="cpu").ent_coef == saved


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")  # of checks of sizes
@pytest.mark.parametrize("model", ["mlp", "rpp", "emlp"])
def test_the_actor_is_traced(make_agent, model):
    """In torch's default mode, in which traces with and without gradients are compared."""

    class Deterministic(torch.nn.Module):
        def __init__(self, actor):
            super().__init__()
            self.actor = actor

        def forward(self, observations):
            return self.actor(observations, deterministic=True)

    actor = Deterministic(make_agent(model, "Walker2d-v5").actor)
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


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (dict(noise_variance=-3.0), r"noise_variance=-3\.0 must be positive"),
        (dict(batch_size=0), "batch_size=0 must be at least 1"),
        (dict(target_update_interval=0), "target_update_interval=0 must be at least 1"),
        (dict(tau=2.0), r"tau=2\.0: a share of the way"),
        (dict(gamma=-0.1), r"gamma=-0\.1: a discount from 0 to 1"),
        (dict(mirror_loss=-1.0), r"mirror_loss=-1\.0 must be positive"),
        (dict(max_gradient_norm=0.0), r"max_gradient_norm=0\.0 must be positive"),
        (dict(compile="no"), r"compile='no': give True or False or None"),
        (dict(augment=1), r"augment=1: give True or False"),
        (dict(use_sde=True), r"does not support use_sde=True"),
        (dict(spec="Hopper-v5"), r"spec= is for new agents, the one in .*agent\.zip has that of its networks"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_a_new_agent_can_t_be_a_loaded_one_can_t_either(make_agent, tmp_path, options, said):
    make_agent("rpp", PENDULUM).save(tmp_path / "agent.zip")
    if "spec" in options:
        options = dict(spec=symmetry_spec(options["spec"]))
    with pytest.raises(ValueError, match=said):
        RPPSAC.load(tmp_path / "agent.zip", env=gym.make(PENDULUM), device="cpu", **options)
    loaded = RPPSAC.load(tmp_path / "agent.zip", device="cpu", noise_variance=2.0, mirror_loss=1.0, spec=None)
    assert (loaded.noise_variance, loaded.mirror_loss) == (2.0, 1.0)


def test_actions_without_bounds_are_refused_and_may_be_given_some(make_agent):
    unbounded = gym.wrappers.TransformAction(gym.make(PENDULUM), lambda a: a, gym.spaces.Box(-np.inf, np.inf, (1,)))
    options = dict(spec=symmetry_spec(PENDULUM))
    for env in (unbounded, DummyVecEnv([lambda: unbounded])):
        with pytest.raises(
            ValueError, match=r"Box\(-inf, inf, \(1,\).*TransformAction\(env, .*Box\(-1, 1, \(1,\)\)\)$"
        ):
            make_agent("rpp", env, **options)
    bounded = gym.wrappers.TransformAction(unbounded, lambda a: a, gym.spaces.Box(-1, 1, (1,)))
    assert make_agent("rpp", bounded, **options).learn(60).num_timesteps == 60


def test_actions_that_are_no_vectors_are_refused(make_agent):
    for env in ("CartPole-v1", DummyVecEnv([lambda: gym.make("CartPole-v1")])):
        with pytest.raises(ValueError, match=r"the environment's actions are Discrete\(2\), .* action space is a Box$"):
            make_agent("rpp", env)


def test_an_argument_that_networks_lack_is_named(make_agent):
    with pytest.raises(ValueError, match=r"network_kwargs has 'width': networks here take architecture, bilinear"):
        make_agent("rpp", PENDULUM, policy_kwargs=dict(network_kwargs=dict(width=4)))


@pytest.mark.parametrize(
    "space",
    [gym.spaces.Dict(goal=gym.spaces.Box(-1, 1, (2,))), gym.spaces.Discrete(3), gym.spaces.Box(0, 1, (4, 4))],
    ids=str,
)
def test_observations_that_are_no_vectors_are_refused_with_a_spec_given_by_hand(space):
    class Reach(gym.Env):
        observation_space, action_space = space, gym.spaces.Box(-1, 1, (1,))

    signs = dict(obs_permutation=[0, 1], obs_signs=[-1, -1], action_permutation=[0], action_signs=[-1])
    with refused(str(space)[:20], "gymnasium.wrappers.FlattenObservation"):
        RPPSAC("RPPPolicy", Reach(), spec=mirror_spec("Reach-v0", **signs), policy_kwargs=dict(hidden=16))


@pytest.mark.parametrize("wrapped", [False, True], ids=["plain", "wrapped"])
@pytest.mark.parametrize("give", [
    lambda env: RPPSAC("RPPPolicy", env), lambda env: RPPPPO("RPPPolicy", env), certify,
    lambda env: RPPPPO("RPPPolicy", "InvertedPendulum-v5").set_env(env),
], ids=["sac", "ppo", "certify", "set_env"])  # fmt: skip
def test_gymnasiums_vector_environments_are_refused(give, wrapped):
    """In a line that says which one to give for several."""
    env = gym.make_vec("InvertedPendulum-v5", num_envs=2)
    with refused("is a vector environment of Gymnasium's", "make_vec_env('InvertedPendulum-v5', n_envs=2)"):
        give(gym.wrappers.vector.RescaleAction(env, -1, 1) if wrapped else env)
    env.close()


@pytest.mark.parametrize("kind", [RPPSAC, RPPPPO])
def test_tensorboards_runs_have_the_names_of_environment_and_model(kind, tmp_path):
    small = {RPPSAC: dict(buffer_size=50, learning_starts=40), RPPPPO: dict(n_steps=16, batch_size=16, n_epochs=1)}[
        kind
    ]
    options = dict(
        seed=0, device="cpu", tensorboard_log=str(tmp_path), policy_kwargs=dict(model="emlp", hidden=8), **small
    )
    kind("RPPPolicy", PENDULUM, **options).learn(16)
    kind("RPPPolicy", PENDULUM, **options).learn(16, tb_log_name="mine")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["InvertedPendulum-v5-emlp_1", "mine_1"]


@pytest.mark.parametrize("algorithm", [RPPSAC, RPPPPO])
def test_a_plain_network_needs_no_symmetry(algorithm):
    """A baseline in an environment of which no symmetry is known; others, and what mirrors transitions, need one."""
    options = dict(buffer_size=100) if algorithm is RPPSAC else dict(n_steps=8, batch_size=4)
    agent = algorithm("RPPPolicy", "Pendulum-v1", policy_kwargs=dict(model="mlp", hidden=8), device="cpu", **options)
    assert agent.spec.is_trivial
    agent.learn(16)
    stacked = VecFrameStack(DummyVecEnv([lambda: gym.make("Pendulum-v1")]), 2)
    assert (
        algorithm(
            "RPPPolicy", stacked, policy_kwargs=dict(model="mlp", hidden=8), device="cpu", **options
        ).spec.feature_dim
        == 6
    )
    for wrong in (dict(policy_kwargs=dict(model="rpp")), dict(policy_kwargs=dict(model="mlp"), augment=True)):
        if algorithm is RPPSAC or "augment" not in wrong:
            with pytest.raises(ValueError, match="no symmetry spec for Pendulum-v1"):
                algorithm("RPPPolicy", "Pendulum-v1", **wrong)
