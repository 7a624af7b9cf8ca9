"""dm_control's quadruped in mjlab's layout: groups "actor" and "critic", joints in the model's order. Needs dm_control.

In mjlab the last line is `RslRlSymmetryCfg`'s `data_augmentation_func`, as its runner is rsl_rl's.
"""

import mujoco
import torch
from dm_control.suite import common

from rppdyn.envs import certify, compiled_terms
from rppdyn.integrations.mjlab import data_augmentation

MODEL = mujoco.MjModel.from_xml_string(common.read_model("quadruped.xml").decode(), common.ASSETS)
TOES = ["toe_front_left", "toe_front_right", "toe_back_left", "toe_back_right"]
ACTOR = [
    "base_angular_velocity", "projected_gravity", "joint_positions", "joint_velocities", "last_action",
    {"term": "commands", "entries": ["forward", "lateral", "yaw"]},
    {"term": "gait_phase", "feet": TOES, "offsets": [0.0, 0.5, 0.5, 0.0]},
]  # fmt: skip

terms = compiled_terms(
    MODEL,
    {"actor": ACTOR, "critic": [*ACTOR, "base_linear_velocity", {"term": "foot_contacts", "feet": TOES}]},
    symmetry="left-right",
)
augment = data_augmentation(terms.spec)

if __name__ == "__main__":
    print(certify(terms, n_states=20))
    batch = {name: torch.randn(4, size) for name, size in terms.spec.observation_groups}
    observations, actions = augment(obs=batch, actions=torch.randn(4, terms.spec.action.dim))
    print({name: tuple(x.shape) for name, x in observations.items()}, tuple(actions.shape))
