"""Humanoid in holosoma's layout: a group's terms sorted by name, histories by time, and an object with its own methods.

In holosoma it takes the place of the trainer's own `SymmetryUtils`.
"""

import gymnasium as gym
import torch

from rppdyn.envs import compiled_terms
from rppdyn.integrations.holosoma import SymmetryUtils

ACTOR = ["base_angular_velocity", "joint_positions", "joint_velocities", "last_action", "projected_gravity"]  # sorted

terms = compiled_terms(
    gym.make("Humanoid-v5"),
    {"actor_obs": {"history": 4, "stack": "time", "terms": ACTOR}, "critic_obs": [*ACTOR, "base_linear_velocity"]},
    symmetry="left-right",
)
symmetry = SymmetryUtils(terms.spec)

if __name__ == "__main__":
    sizes = dict(terms.spec.observation_groups)
    batch = torch.randn(4, sizes["actor_obs"])
    mirrored = symmetry.mirror_xz_plane(batch, None, ["actor_obs"])
    print(float((symmetry.mirror_xz_plane(mirrored, None, ["actor_obs"]) - batch).abs().max()))  # twice is once
    print(tuple(symmetry.augment_actions(torch.randn(4, terms.spec.action.dim)).shape))
