"""An environment that is not MuJoCo's: a point is pushed towards a goal, and observations are a dictionary."""

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict
from stable_baselines3.common.callbacks import BaseCallback


class Point(gym.Env):
    observation_space = Dict(goal=Box(-9, 9, (2,)), arm=Dict(position=Box(-9, 9, (2,)), speed=Box(-9, 9, (2,))))
    action_space = Box(-1, 1, (2,))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.goal, self.x = self.np_random.uniform(-2, 2, (2, 2))
        self.v = np.zeros(2)
        return self.seen(), {}

    def step(self, action):
        self.v = (self.v + 0.1 * np.asarray(action)).clip(-2, 2)
        self.x = (self.x + 0.1 * self.v).clip(-9, 9)
        return self.seen(), -float(np.linalg.norm(self.x - self.goal)), False, False, {}

    def simulator_state(self):  # for certify, and for exact resume
        return {"state": np.concatenate((self.goal, self.x, self.v))}

    def restore_simulator_state(self, data):
        self.goal, self.x, self.v = np.split(np.array(data["state"]), 3)

    def seen(self):
        goal, position, speed = np.float32((self.goal, self.x, self.v))
        return {"goal": goal, "arm": {"position": position, "speed": speed}}


class StopWhenNear(BaseCallback):
    """Ends training once the last hundred episodes are good enough."""

    def _on_step(self):
        episodes = self.model.ep_info_buffer
        return len(episodes) < 100 or np.mean([episode["r"] for episode in episodes]) < -30


if "Point-v0" not in gym.registry:
    gym.register("Point-v0", "point:Point", max_episode_steps=100)
