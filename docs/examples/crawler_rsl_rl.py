"""Crawlers in rsl_rl: a vectorised environment whose observation is a list of terms. `python crawler_rsl_rl.py` trains it.

The observation is computed by the terms' own functions, and the same list gives the symmetry.
"""

from __future__ import annotations

import sys
from collections import deque
from pathlib import Path

import mujoco
import numpy as np
import torch
from rsl_rl.env import VecEnv
from rsl_rl.runners import OnPolicyRunner
from tensordict import TensorDict

from rppdyn.envs import compiled_terms
from rppdyn.envs.terms import Scene
from rppdyn.integrations.rsl_rl import data_augmentation

ACTOR = ["base_angular_velocity", "projected_gravity", "joint_positions", "joint_velocities", "last_action"]
TERMS = compiled_terms(
    Path(__file__).with_name("crawler.xml"),
    observation={"actor": {"terms": ACTOR, "history": 2}, "critic": [*ACTOR, "base_linear_velocity", "base_height"]},
    symmetry="left-right",
)


class Crawlers(VecEnv):
    """Crawlers that are paid for moving forwards."""

    def __init__(self, num_envs: int, seed: int = 0):
        self.num_envs, self.num_actions, self.device, self.cfg = num_envs, TERMS.spec.action.dim, "cpu", {}
        self.max_episode_length = 200
        self.episode_length_buf = torch.zeros(num_envs, dtype=torch.long)
        self.rng = np.random.default_rng(seed)
        self.model = TERMS.robot.model
        self.scenes = [Scene(TERMS.robot, mujoco.MjData(self.model)) for _ in range(num_envs)]
        self.kept: list[dict[str, deque]] = [{} for _ in range(num_envs)]
        for i in range(num_envs):
            self.start(i)

    def start(self, i: int) -> None:
        """Put a crawler on the floor, its joints somewhere."""
        scene = self.scenes[i]
        mujoco.mj_resetData(self.model, scene.data)
        scene.data.qpos[TERMS.robot.places] = self.rng.uniform(-0.1, 0.1, len(TERMS.robot.places))
        mujoco.mj_forward(self.model, scene.data)
        scene.action = np.zeros(self.num_actions)
        self.episode_length_buf[i] = 0
        for name, group in TERMS.groups.items():
            step = group.read_step(scene)
            self.kept[i][name] = deque([step] * group.history, maxlen=group.history)

    def get_observations(self) -> TensorDict:
        """The groups of all crawlers."""
        groups = {
            name: torch.tensor(np.array([group.stacked(list(kept[name])) for kept in self.kept]), dtype=torch.float32)
            for name, group in TERMS.groups.items()
        }
        return TensorDict(groups, batch_size=[self.num_envs])

    def step(self, actions: torch.Tensor) -> tuple[TensorDict, torch.Tensor, torch.Tensor, dict]:
        """Four steps of the simulator."""
        rewards = torch.zeros(self.num_envs)
        for i, (scene, action) in enumerate(zip(self.scenes, actions.numpy().astype(float), strict=True)):
            before = scene.data.qpos[0]
            scene.action = scene.data.ctrl[:] = action
            mujoco.mj_step(self.model, scene.data, 4)
            mujoco.mj_forward(self.model, scene.data)
            rewards[i] = (scene.data.qpos[0] - before) / (4 * self.model.opt.timestep) - 0.01 * float(action @ action)
            for name, group in TERMS.groups.items():
                self.kept[i][name].append(group.read_step(scene))
        self.episode_length_buf += 1
        dones = self.episode_length_buf >= self.max_episode_length
        for i in torch.nonzero(dones).ravel().tolist():
            self.start(i)
        return self.get_observations(), rewards, dones.long(), {"time_outs": dones.float()}


def configuration(model: str = "relaxed", hidden: int = 64, free_variance: float = 1.0) -> dict:
    """rsl_rl's own, for "mlp", "augmented" (mirrored batches), "relaxed" or "recurrent" models."""
    gaussian = {"class_name": "GaussianDistribution", "init_std": 0.5}
    network = {"class_name": "MLPModel", "hidden_dims": [hidden, hidden], "obs_normalization": True}
    if model in ("relaxed", "recurrent"):
        kind = {"relaxed": "RelaxedMLPModel", "recurrent": "RelaxedRNNModel"}[model]
        network |= {"class_name": f"rppdyn.integrations.rsl_rl:{kind}", "spec": TERMS.spec.to_dict()}
        network |= {"free_variance": free_variance, "transitions": 1024}
        if model == "recurrent":
            network |= {"rnn_hidden_dim": hidden}
    mirrored = {"data_augmentation_func": data_augmentation(TERMS.spec), "use_data_augmentation": True}
    return {
        "num_steps_per_env": 16, "save_interval": 1000, "obs_groups": {"actor": ["actor"], "critic": ["critic"]},
        "actor": {**network, "distribution_cfg": gaussian}, "critic": dict(network),
        "algorithm": {"class_name": "PPO", "symmetry_cfg": mirrored if model == "augmented" else None},
    }  # fmt: skip


def train(model: str = "relaxed", iterations: int = 50, num_envs: int = 16, **options: float) -> OnPolicyRunner:
    """The runner after training."""
    torch.manual_seed(0)
    runner = OnPolicyRunner(Crawlers(num_envs), configuration(model, **options), log_dir=None, device="cpu")
    runner.learn(iterations)
    return runner


if __name__ == "__main__":
    train(*sys.argv[1:2])
