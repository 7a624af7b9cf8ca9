"""Exported policies: the same actions without this package, whatever the algorithm, the layers and the batch."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest
import torch
from refusals import refused
from sb3_contrib import TQC, CrossQ
from stable_baselines3 import DQN, PPO, SAC, TD3

from rppdyn.agents import DeployedPolicy, RPPActorCriticPolicy, export_onnx, export_torch
from rppdyn.agents._export import TOLERANCE, largest_difference, onnx_policy, torch_policy
from rppdyn.envs import make_env, symmetry_spec

WALKER = "Walker2d-v5"


def ppo(make):
    policy_kwargs = dict(spec=symmetry_spec(WALKER), model="rpp", hidden=16)
    return PPO(RPPActorCriticPolicy, make_env(WALKER), n_steps=64, policy_kwargs=policy_kwargs, device="cpu").learn(64)


def squashed_ppo(make):
    options = dict(use_sde=True, policy_kwargs=dict(squash_output=True), device="cpu")
    agent = PPO("MlpPolicy", make_env(WALKER), **options)
    agent.policy.action_net.weight.data.mul_(50)  # actions that the squash bends
    return agent


AGENTS = {
    "SAC, regular": lambda make: make("rpp", make_env(WALKER)).learn(60),
    "SAC, a disc of torques, channel-wise products": lambda make: make(
        "emlp", make_env("rppdyn/WindyPendulum-v0"), policy_kwargs=dict(hidden=16, num_layers=1)
    ).learn(60),
    "PPO": ppo,
    "stable-baselines3's SAC": lambda make: SAC("MlpPolicy", make_env(WALKER), device="cpu"),
    "stable-baselines3's PPO": lambda make: PPO("MlpPolicy", make_env(WALKER), device="cpu"),
    "stable-baselines3's PPO, squashed": squashed_ppo,
    "sb3-contrib's TQC": lambda make: TQC("MlpPolicy", make_env(WALKER), device="cpu"),
    "sb3-contrib's CrossQ": lambda make: CrossQ("MlpPolicy", make_env(WALKER), device="cpu"),
    "stable-baselines3's TD3": lambda make: TD3("MlpPolicy", make_env(WALKER), device="cpu"),
}  # fmt: skip


DISC = "SAC, a disc of torques, channel-wise products"


@pytest.mark.parametrize(("name", "form"), [*((name, "pt2") for name in AGENTS), (DISC, "onnx")])
def test_actions_are_those_of_the_agent(name, form, make_agent, tmp_path):
    agent, path = AGENTS[name](make_agent), tmp_path / f"policy.{form}"
    space = agent.observation_space
    observations = np.random.default_rng(0).normal(size=(100, *space.shape)).astype(space.dtype)
    (export_onnx if form == "onnx" else export_torch)(agent.policy, path)
    exported = onnx_policy(path) if form == "onnx" else torch_policy(torch.export.load(path))
    assert largest_difference(agent.policy, exported, observations) < TOLERANCE
    for p in agent.policy.parameters():
        p.data.add_(0.1)
    assert largest_difference(agent.policy, exported, observations) > 100 * TOLERANCE  # of another policy it tells


def test_it_is_a_copy_and_as_small_as_an_mlp(make_agent):
    agent = make_agent("rpp", make_env(WALKER))
    policy = DeployedPolicy(agent.policy)
    x = torch.randn(5, 17, dtype=torch.float64)
    before = policy(x)
    plain = sum(p.numel() for p in DeployedPolicy(make_agent("mlp", make_env(WALKER)).policy).parameters())
    assert sum(p.numel() for p in policy.parameters()) == plain
    for p in agent.policy.parameters():
        p.data.zero_()
    torch.testing.assert_close(policy(x), before)


PENDULUM = "InvertedPendulum-v5"
EPISODE = """
import sys
for name in {missing}:
    sys.modules[name] = None  # its import raises ImportError
import gymnasium, numpy
{load}
env = gymnasium.make("InvertedPendulum-v5")
observation, _ = env.reset(seed=3)
total, done = 0.0, False
while not done:
    observation, reward, terminated, truncated, _ = env.step(act(observation[None])[0])
    total, done = total + reward - float(observation[0]), terminated or truncated
print(repr(total))
"""
FORMATS = {
    "onnx": (
        ["torch", "rppdyn", "stable_baselines3"],
        "import onnxruntime\nsession = onnxruntime.InferenceSession('policy.onnx')\n"
        "act = lambda x: session.run(None, {'observation': x})[0]",
    ),
    "pt2": (
        ["rppdyn", "stable_baselines3"],
        "import torch\nprogram = torch.export.load('policy.pt2').module()\n"
        "act = lambda x: program(torch.as_tensor(x)).detach().numpy()",
    ),
}


@pytest.mark.parametrize("form", FORMATS)
def test_another_process_plays_it_without_this_package(form, make_agent, tmp_path):
    """ONNX Runtime and NumPy alone, where importing torch is an error; a program by torch alone."""
    agent = make_agent("rpp", make_env(PENDULUM)).learn(60)
    (export_onnx if form == "onnx" else export_torch)(agent.policy, tmp_path / f"policy.{form}")
    env = gym.make(PENDULUM)

    def total() -> float:
        """A sum that each action of an episode moves."""
        observation, _ = env.reset(seed=3)
        total, done = 0.0, False
        while not done:
            observation, reward, terminated, truncated, _ = env.step(agent.predict(observation, deterministic=True)[0])
            total, done = total + reward - float(observation[0]), terminated or truncated
        return total

    missing, load = FORMATS[form]
    code = EPISODE.format(missing=missing, load=load)
    played = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert played.returncode == 0, played.stderr
    assert float(played.stdout) == pytest.approx(total(), rel=1e-5)
    for p in agent.policy.parameters():
        p.data.add_(0.1)
    assert float(played.stdout) != pytest.approx(total(), rel=1e-3)


def test_a_fixed_action_is_compared_absolutely():
    space = gym.spaces.Box(np.array([0.5, -2.0]), np.array([0.5, 2.0]), dtype=np.float64)
    policy = SimpleNamespace(action_space=space, predict=lambda x, deterministic: (np.full((len(x), 2), 0.5), None))
    for difference in (0.0, 0.25):
        actions = np.array([0.5 + difference, 0.5])
        found = largest_difference(policy, lambda x, a=actions: np.tile(a, (len(x), 1)), np.zeros((6, 3)))
        assert found == difference


def test_what_has_no_vectors_is_refused(tmp_path):
    with refused("the action space is Discrete(2)"):
        DeployedPolicy(DQN("MlpPolicy", "CartPole-v1", device="cpu", buffer_size=10).policy)
    (tmp_path / "x.onnx").write_text("nothing")
    with refused("x.onnx can't be loaded as an ONNX model", "rppdyn export"):
        onnx_policy(tmp_path / "x.onnx")
