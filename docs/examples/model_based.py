"""Soft actor-critic on transitions that a learned model makes up (MBPO, Janner et al. 2019).

    python model_based.py --steps 2000

An ensemble of Gaussian models (`TransitionModel`), with the policy's symmetry, is fitted to what the environment has shown.
The policy of an `RPPSAC` then takes one step in the models from states that were visited, and these transitions join the
real ones in its replay buffer. The rule of termination has to be known: here it is that of the inverted pendulum.
"""

import argparse

import gymnasium as gym
import numpy as np
import torch
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor

from rppdyn.agents import RPPSAC
from rppdyn.dynamics import TransitionModel
from rppdyn.envs import symmetry_spec
from rppdyn.nn import RPPEMLP, Ensemble
from rppdyn.priors import negative_log_prior

ENV = "InvertedPendulum-v5"


def has_ended(observations):
    """Whether the pole has fallen, at raw observations (n, 4)."""
    return np.abs(observations[:, 1]) > 0.2


class Recorder(gym.Wrapper):
    """An environment that keeps its transitions: observation, action, reward, next observation."""

    def __init__(self, env):
        super().__init__(env)
        self.transitions = []

    def reset(self, **options):
        self.observation, info = self.env.reset(**options)
        return self.observation, info

    def step(self, action):
        before = self.observation
        self.observation, reward, terminated, truncated, info = self.env.step(action)
        self.transitions.append((before, action, np.float64(reward), self.observation))
        return self.observation, reward, terminated, truncated, info

    def arrays(self, first=0):
        """Transitions from a number on: four arrays."""
        return [np.stack(values) for values in zip(*self.transitions[first:], strict=True)]


class LearnedDynamics:
    """A few relaxed Gaussian models of the environment, fitted by likelihood and the pathways' priors.

    Args:
        spec: the symmetry of the environment, whose features the models see.
        members, hidden: number of networks, and channels of their two hidden layers.
    """

    def __init__(self, spec, members=5, hidden=64):
        self.spec, self.members = spec, members
        x, u = spec.obs_rep, spec.action_rep
        reps = TransitionModel.rep_in(x, u), TransitionModel.rep_out(x, gaussian=True, reward=True)
        options = dict(hidden=hidden, num_layers=2, equivariant_variance=1e6, free_variance=3.0, output_scale=0.1)
        self.net = Ensemble([RPPEMLP(*reps, spec.group, **options) for _ in range(members)])
        encoding = spec.obs.encoding
        projected = dict(rotations=encoding.rotations, circles=encoding.circles)
        self.model = TransitionModel(self.net, x, u, gaussian=True, reward=True, **projected)
        self.optimiser = torch.optim.Adam(self.net.parameters(), lr=1e-3)

    def features(self, observations, actions):
        """Raw arrays as features of states and actions."""
        x, u = (torch.as_tensor(values, dtype=torch.float64) for values in (observations, actions))
        return self.spec.encode(x).float(), self.spec.action.encode(u).float()

    def fit(self, recorder, steps, batch_size, first):
        """Take some steps of Adam, one batch for each member; transitions from `first` on are new to the statistics.

        Returns:
            The mean negative log-likelihood of the last step.
        """
        observations, actions, rewards, after = recorder.arrays()
        x, u = self.features(observations, actions)
        after, _ = self.features(after, actions)
        rewards = torch.as_tensor(rewards).float()
        self.model.observe(x[first:], u[first:], after[first:], rewards[first:])
        for _ in range(steps):
            rows = torch.randint(len(x), (self.members, batch_size))
            step = self.model.step(x[rows], u[rows])
            nll = -self.model.log_likelihood(step, after[rows], rewards[rows]).sum(-1).mean(-1)
            prior = self.net.per_member(negative_log_prior) / len(x)
            self.optimiser.zero_grad()
            (nll + prior).sum().backward()
            self.optimiser.step()
        return float(nll.detach().mean())

    @torch.no_grad()
    def imagine(self, observations, actions):
        """One step from each, of a random member and drawn with its standard deviation: rewards and next observations."""
        x, u = self.features(observations, actions)
        step = self.model.step(x.expand(self.members, -1, -1), u.expand(self.members, -1, -1))
        noise = step.log_std.exp() * torch.randn_like(step.log_std)
        after, rewards = self.model.project(step.mean + noise[..., :-1]), step.reward + noise[..., -1]
        chosen = torch.randint(self.members, (len(x),)), torch.arange(len(x))
        return rewards[chosen].numpy(), self.spec.decode(after[chosen].double()).numpy()


def add(agent, observations, actions, rewards, after, ended):
    """Put transitions into an agent's replay buffer, whose actions are scaled to [-1, 1]."""
    for x, u, reward, y, end in zip(
        observations, agent.policy.scale_action(actions), rewards, after, ended, strict=True
    ):
        agent.replay_buffer.add(x[None], y[None], u[None], np.array([reward]), np.array([end]), [{}])


def train(steps=2000, every=250, fit_steps=300, imagined=500, hidden=64, seed=0):
    """Train an agent; every few steps of the environment fit the models and add imagined transitions."""
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    env, spec = Recorder(gym.make(ENV)), symmetry_spec(ENV)
    agent = RPPSAC(
        "RPPPolicy", env, spec=spec, seed=seed, device="cpu", learning_starts=every, gradient_steps=2, buffer_size=10_000,
        policy_kwargs=dict(hidden=hidden),
    )  # fmt: skip
    models, known = LearnedDynamics(spec, hidden=hidden), 0
    while agent.num_timesteps < steps:
        agent.learn(every, reset_num_timesteps=False)
        loss = models.fit(env, fit_steps, 64, known)
        known = len(env.transitions)
        observations = env.arrays()[0][rng.integers(known, size=imagined)]
        actions, _ = agent.predict(observations, deterministic=False)
        rewards, after = models.imagine(observations, actions)
        sound = np.isfinite(after).all(-1) & np.isfinite(rewards)
        after, rewards = after[sound], rewards[sound]
        add(agent, observations[sound], actions[sound], rewards, after, has_ended(after))
        print(f"{agent.num_timesteps} steps, {len(after)} imagined transitions, model's loss {loss:.2f}")
    return agent, models, env


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=2000)
    agent, _, _ = train(parser.parse_args().steps)
    mean, deviation = evaluate_policy(agent, Monitor(gym.make(ENV)), n_eval_episodes=5)
    print(f"mean return {mean:.0f}, standard deviation {deviation:.0f}")
