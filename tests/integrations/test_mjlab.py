"""mjlab's tasks, simulated on the CPU: read as terms, compared with what they observe, trained by its runner.

`make test-extras` runs this in an environment with mjlab's own MuJoCo. The first run compiles mujoco-warp's kernels, for
minutes; they are kept in the user's cache.
"""

from __future__ import annotations

from dataclasses import asdict

import mujoco
import numpy as np
import pytest
import torch

pytest.importorskip("mjlab.tasks")

from mjlab.envs import ManagerBasedRlEnv
from mjlab.managers.observation_manager import ObservationTermCfg
from mjlab.rl import MjlabOnPolicyRunner, RslRlVecEnvWrapper
from mjlab.tasks.registry import load_env_cfg, load_rl_cfg

from rppdyn.envs.terms import Scene
from rppdyn.integrations.mjlab import compiled_task, data_augmentation

pytestmark = pytest.mark.filterwarnings("ignore")  # mjlab's own, and warp's
GO1, G1, ROUGH = (f"Mjlab-Velocity-{name}" for name in ("Flat-Unitree-Go1", "Flat-Unitree-G1", "Rough-Unitree-Go1"))
SAME = {
    "base_lin_vel",
    "base_ang_vel",
    "projected_gravity",
    "joint_pos",
    "joint_vel",
    "actions",
    "body_pos",
    "body_ori",
}
TRACKING = "Mjlab-Tracking-Flat-Unitree-G1"
BESIDE = {"base_lin_vel": "base_linear_velocity"}  # Go1's velocimeter is 7 cm beside the mirror's plane


def task(name, envs=2, change=None):
    cfg = load_env_cfg(name, play=True)
    cfg.scene.num_envs = envs
    if change is not None:
        change(cfg)
    return ManagerBasedRlEnv(cfg, device="cpu")


def motion(path):
    """A file of a reference motion that stands still, for the tracking task."""

    def change(cfg):
        model = cfg.scene.entities["robot"].build().compile()
        data = mujoco.MjData(model)
        mujoco.mj_forward(model, data)
        still = lambda values: np.repeat(np.asarray(values)[None], 100, 0).astype(np.float32)  # noqa: E731
        rest = still(np.zeros((model.nbody - 1, 3)))
        np.savez(
            path, fps=50, joint_pos=still(data.qpos[7:]), joint_vel=still(np.zeros(model.nv - 6)), body_lin_vel_w=rest,
            body_pos_w=still(data.xpos[1:]), body_quat_w=still(data.xquat[1:]), body_ang_vel_w=rest,
        )  # fmt: skip
        cfg.commands["motion"].motion_file = str(path)

    return change


def histories(cfg):
    cfg.observations["actor"].history_length = 3
    cfg.observations["critic"].terms["joint_vel"].scale = 0.05


@pytest.mark.parametrize("name", [GO1, G1, ROUGH, TRACKING])
def test_a_task_is_read_as_terms(name, tmp_path):
    """Sizes are those of the task, and so are the numbers that follow from the robot's state alone."""
    changes = {TRACKING: motion(tmp_path / "motion.npz"), G1: histories}
    env = task(name, change=changes.get(name))
    terms = compiled_task(env, "left-right", others=BESIDE if "Go1" in name else None)
    for _ in range(3):
        observed, *_ = env.step(0.1 * torch.randn(2, env.action_manager.total_action_dim))
    assert {group: x.shape[1] for group, x in observed.items()} == dict(terms.spec.observation_groups)
    assert env.action_manager.total_action_dim == terms.spec.action.dim
    data = mujoco.MjData(terms.robot.model)
    data.qpos[:], data.qvel[:] = env.sim.data.qpos[0].numpy(), env.sim.data.qvel[0].numpy()
    mujoco.mj_forward(terms.robot.model, data)
    scene, group = Scene(terms.robot, data, action=env.action_manager.action[0].numpy()), terms.groups["critic"]
    read, same = group.stacked([group.read_step(scene)] * group.history), 0
    for title, place in group.slices().items():
        if title in SAME and not (title in BESIDE and "Go1" in name):
            np.testing.assert_allclose(read[place], observed["critic"][0].numpy()[place], atol=2e-4, err_msg=title)
            same += 1
    assert same >= 5
    env.close()


def test_a_function_or_sensor_that_says_nothing_is_named():
    def change(cfg):
        cfg.observations["actor"].terms["mood"] = ObservationTermCfg(func=mood)

    env = task(GO1, change=change)
    with pytest.raises(ValueError, match="nothing is known here of 'mood' of 'actor', which is mood"):
        compiled_task(env, "left-right", others=BESIDE)
    with pytest.raises(
        ValueError, match="base_lin_vel: left-right carries what it is measured at to nothing in the model"
    ):
        compiled_task(env, "left-right", others={"mood": {"term": "scalars", "size": 1}})
    for wrong, said in (
        ({"mod": "last_action"}, "the task has no term 'mod'"),
        ({"mood": {"term": "scalars", "size": 2}}, "is read as 50 entries"),
    ):
        with pytest.raises(ValueError, match=said):
            compiled_task(env, "left-right", others=BESIDE | wrong)
    terms = compiled_task(env, "left-right", others={**BESIDE, "mood": "scalars"})
    assert terms.spec.observation_group("actor").obs.dim == env.observation_manager.group_obs_dim["actor"][0]
    env.close()


def mood(env):
    return torch.zeros(env.num_envs, 1)


@pytest.mark.parametrize("model", ["augmented", "relaxed"])
def test_its_runner_trains(model, tmp_path):
    env = task(GO1, envs=8)
    terms = compiled_task(env, "left-right", others=BESIDE)
    cfg = asdict(load_rl_cfg(GO1)) | {
        "num_steps_per_env": 8,
        "logger": "tensorboard",
        "upload_model": False,
        "save_interval": 1000,
    }
    for name in ("actor", "critic"):
        cfg[name]["hidden_dims"] = (32, 32)
        if model == "relaxed":
            own = {
                "class_name": "rppdyn.integrations.rsl_rl:RelaxedMLPModel",
                "spec": terms.spec.to_dict(),
                "transitions": 64,
            }
            cfg[name] |= own
    if model == "augmented":
        cfg["algorithm"]["symmetry_cfg"] = {
            "data_augmentation_func": data_augmentation(terms.spec), "use_data_augmentation": True, "use_mirror_loss": False,
        }  # fmt: skip
    torch.manual_seed(0)
    runner = MjlabOnPolicyRunner(RslRlVecEnvWrapper(env), cfg, str(tmp_path), "cpu")
    before = [p.detach().clone() for p in runner.alg.get_policy().parameters()]
    runner.learn(10)
    after = list(runner.alg.get_policy().parameters())
    assert runner.current_learning_iteration >= 9 and any((a != b).any() for a, b in zip(after, before, strict=True))
    assert all(p.isfinite().all() for p in after)
    if model == "relaxed":
        from rppdyn.integrations.rsl_rl import export_policy

        assert max(export_policy(runner.alg.get_policy(), torch_file=tmp_path / "go1.pt2", steps=20).values()) < 1e-5
        assert (tmp_path / "symmetry.json").is_file()
    env.close()
