"""A goal environment: a point in the plane is to come near a goal, and hears only whether it is near.

What it sees is a dictionary, as `gymnasium_robotics` has it. Turns by quarters and mirror images act on goal and state.
"""

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict

from rppdyn.envs import group_spec
from rppdyn.envs._wrappers import flat_names

NEAR = 0.15


class Reach(gym.Env):
    observation_space = Dict(
        achieved_goal=Box(-2, 2, (2,)), desired_goal=Box(-2, 2, (2,)), observation=Box(-2, 2, (4,))
    )
    action_space = Box(-1, 1, (2,))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.x, self.goal = self.np_random.uniform(-1, 1, (2, 2))
        self.v = np.zeros(2)
        return self.seen(), {}

    def step(self, action):
        self.v = 0.5 * self.v + 0.2 * np.asarray(action, dtype=float)
        self.x = (self.x + self.v).clip(-2, 2)
        return self.seen(), float(self.compute_reward(self.x, self.goal, {})), False, False, {}

    def seen(self):
        state = np.float32([*self.x, *self.v])
        return {"achieved_goal": state[:2], "desired_goal": np.float32(self.goal), "observation": state}

    def compute_reward(self, achieved_goal, desired_goal, info):
        far = np.linalg.norm(np.asarray(achieved_goal) - desired_goal, axis=-1) > NEAR
        return -far.astype(np.float32)

    def symmetry_spec(self, symmetry=None):
        names = flat_names(self.observation_space)
        return group_spec(
            "Reach-v0", "D(4)", obs={"vector": [names[i : i + 2] for i in range(0, 8, 2)]}, action={"vector": [[0, 1]]},
            obs_names=names,
        )  # fmt: skip

    def simulator_state(self):
        return {"x": self.x.copy(), "v": self.v.copy(), "goal": self.goal.copy()}

    def restore_simulator_state(self, data):
        self.x, self.v, self.goal = (data[key].copy() for key in ("x", "v", "goal"))


if "Reach-v0" not in gym.registry:
    gym.register("Reach-v0", "reach:Reach", max_episode_steps=25)
