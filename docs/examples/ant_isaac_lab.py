"""Ant in Isaac Lab's layout: groups "policy" and "critic", histories term by term, grids with x fastest.

In Isaac Lab the last line is `RslRlSymmetryCfg(data_augmentation_func=augment, use_data_augmentation=True)`.
"""

import gymnasium as gym
import torch

from rppdyn.envs import certify, compiled_terms
from rppdyn.integrations.isaac_lab import data_augmentation

JOINTS = [
    "hip_1",
    "hip_2",
    "hip_3",
    "hip_4",
    "ankle_1",
    "ankle_2",
    "ankle_3",
    "ankle_4",
]  # level by level, as Isaac Lab's stand
POLICY = ["base_angular_velocity", "projected_gravity", {"term": "joint_positions", "joints": JOINTS}, "last_action"]
# A scan that stays level with the heading has a quarter turn only of an upright base, so this one is in the body's axes.
SCAN = {"term": "height_scan", "size": [0.8, 0.8], "resolution": 0.2, "ordering": "xy", "frame": "body"}

terms = compiled_terms(
    gym.make("Ant-v5"),
    {"policy": {"history": 3, "terms": POLICY}, "critic": [*POLICY, "base_linear_velocity", SCAN]},
    action=[{"term": "joint_positions", "joints": JOINTS, "scale": 0.5}],
    symmetry="left-right+quarter turn",
)
augment = data_augmentation(terms.spec)

if __name__ == "__main__":
    print(certify(terms, n_states=20))
    batch = {name: torch.randn(4, size) for name, size in terms.spec.observation_groups}
    observations, actions = augment(obs=batch, actions=torch.randn(4, len(JOINTS)))
    print({name: tuple(x.shape) for name, x in observations.items()}, tuple(actions.shape))  # all eight images
