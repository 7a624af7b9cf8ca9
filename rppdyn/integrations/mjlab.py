"""mjlab: a task's observation and action as terms, and the function that mirrors batches, for its runner of rsl_rl.

    terms = compiled_task(env, "left-right")
    symmetry_cfg = {"data_augmentation_func": data_augmentation(terms.spec), "use_data_augmentation": True}

Groups are "actor" and "critic". Histories are stacked term by term (`stack: term`), and joints are in the model's order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import mujoco

from rppdyn.envs import compiled_terms
from rppdyn.envs.terms import CompiledTerms
from rppdyn.integrations.augmentation import data_augmentation

__all__ = ["compiled_task", "data_augmentation"]

Described = str | Mapping[str, Any] | Sequence[Any]
"""A term, or several in order, as `rppdyn.envs.terms` takes them."""


def compiled_task(
    env: Any, symmetry: str | Sequence[str] | None = None, *, others: Mapping[str, Described] | None = None
) -> CompiledTerms:
    """The observation and action of a task, read from its managers, as terms of its robot; `spec.terms` is the list.

    Noise and delays are left out, since a symmetry does not change them. Quantities with one number per foot (heights, times in
    the air) are listed as `foot_contacts`, which are permuted in the same way. A plane replaces other terrain.

    Args:
        env: mjlab's `ManagerBasedRlEnv`, wrapped or not.
        symmetry: the symmetry's name, as in `rppdyn.envs.compiled_terms`.
        others: terms by their names in mjlab, which replace those that are read: for functions of the task's own, and for a
            velocimeter outside of the mirror's plane, such as Go1's.
    Raises:
        ValueError: an unknown function or action, a name that the task does not have, or a term that can't be mirrored.
    """
    task, others = _Task(env.unwrapped), dict(others or {})
    names = {name for listed in task.manager.active_terms.values() for name in listed}
    if unknown := set(others) - names:
        raise ValueError(f"others: the task has no term {min(unknown)!r}; it has {', '.join(sorted(names))}")
    groups = {group: {"terms": list(task.observation_terms(group, others))} for group in task.manager.active_terms}
    pose = dict(zip(task.joints(), task.robot.data.default_joint_pos[0].tolist(), strict=True))
    base = task.add_prefix(task.robot.root_body.name)
    terms = compiled_terms(
        task.model, groups, list(task.action_terms()), symmetry=symmetry, base=base, default_pose=pose
    )
    for group, size in terms.spec.observation_groups:
        shape = task.manager.group_obs_dim[group]
        if not isinstance(shape, tuple) or math.prod(shape) != size:
            raise ValueError(f"group {group!r} is read as {size} entries, and has shape {shape}: name terms by others=")
    return terms


class _Task:
    """The managers of an environment."""

    def __init__(self, env: Any):
        self.env, self.manager, self.actions = env, env.observation_manager, env.action_manager
        self.name = self.actions.get_term(self.actions.active_terms[0]).cfg.entity_name
        self.robot, self.model = env.scene[self.name], _on_a_plane(env.scene, env.sim.mj_model)

    def add_prefix(self, name: str) -> str:
        """The name in the scene of one of the robot's parts."""
        return name if name.startswith(f"{self.name}/") else f"{self.name}/{name}"

    def joints(self, asset_cfg: Any = None) -> list[str]:
        """The joints of a configuration, in its order; without one, all of the robot's."""
        names, ids = self.robot.joint_names, slice(None) if asset_cfg is None else asset_cfg.joint_ids
        return list(map(self.add_prefix, names[ids] if isinstance(ids, slice) else [names[i] for i in ids]))

    def observation_terms(self, group: str, others: Mapping[str, Described]) -> Iterator[dict[str, Any]]:
        """The terms of a group, in order."""
        for name in self.manager.active_terms[group]:
            cfg = self.manager.get_term_cfg(group, name)
            kind = getattr(cfg.func, "__name__", type(cfg.func).__name__)
            described, asset = others.get(name), cfg.params.get("asset_cfg")
            if described is None and kind in TERM_READERS and (asset is None or asset.name == self.name):
                described = TERM_READERS[kind](self, **cfg.params)
            if described is None:
                source = f"{name!r} of {group!r}, which is {kind} of {cfg.params}"
                raise ValueError(f"nothing is known here of {source}; say what it is by others={{{name!r}: ...}}")
            terms = [described] if isinstance(described, str | Mapping) else described
            if len(terms) > 1 and (cfg.history_length > 1 or cfg.scale is not None):  # mjlab applies these to the whole
                raise ValueError(
                    f"{name!r} of {group!r} is several terms with one history or scale: make each a term of its own"
                )
            for term in ({"term": term} if isinstance(term, str) else dict(term) for term in terms):
                label = name if len(terms) == 1 else f"{name} {term['term']}"
                scale = {} if cfg.scale is None else {"scale": cfg.scale.tolist()}
                yield {"label": label, "history": max(cfg.history_length, 1), **scale, **term}

    def action_terms(self) -> Iterator[dict[str, Any]]:
        """The action's terms, in order."""
        for action in map(self.actions.get_term, self.actions.active_terms):
            if (kind := ACTIONS.get(type(action).__name__)) is None:
                raise ValueError(f"nothing is known here of {type(action).__name__}; known: {', '.join(ACTIONS)}")
            scale, offset = (x if isinstance(x, float) else x[0].tolist() for x in (action.scale, action.offset))
            term = {"term": kind, "joints": list(map(self.add_prefix, action.target_names)), "scale": scale}
            if not getattr(action.cfg, "use_default_offset", False):
                term |= {"offset": offset} | ({"relative": False} if kind == "joint_positions" else {})
            yield term

    def command(self, command_name: str) -> Described | None:
        known: dict[str, Described] = {
            "MotionCommand": [
                {"term": f"reference_joint_{x}", "joints": self.joints()} for x in ("positions", "velocities")
            ],
            "UniformVelocityCommand": {"term": "commands", "entries": ["forward", "lateral", "yaw"]},
        }
        return known.get(type(self.env.command_manager.get_term(command_name)).__name__)

    def sensor(self, sensor_name: str, kind: str | None = None) -> Described | None:
        """A vector in the axes of a site, of a given kind where the site is the sensor's reference (`refid`)."""
        model, sensor = self.model, self.model.sensor(sensor_name)
        (site,) = map(int, sensor.objid if kind is None else sensor.refid)
        kind = kind or SENSORS.get(mujoco.mjtSensor(int(sensor.type[0])))
        if kind is None:
            return None
        has_axes_of_body = abs(model.site_quat[site, 0]) > 1 - 1e-9
        if has_axes_of_body and kind != "base_linear_velocity":  # which differs between points of a body
            return {"term": kind, "at": model.body(model.site_bodyid[site]).name}
        return {"term": kind, "at": model.site(site).name}

    def scan(self, sensor_name: str, offset: float = 0.0, **_: Any) -> Described | None:
        cfg = self.env.scene[sensor_name].cfg
        frame = {"yaw": "yaw", "base": "body"}.get(cfg.ray_alignment)
        if frame is None or not hasattr(cfg.pattern, "resolution"):
            return None
        grid = {"size": list(cfg.pattern.size), "resolution": cfg.pattern.resolution}
        return {"term": "height_scan", "frame": frame, "offset": offset, **grid}

    def feet(self, sensor_name: str, kind: str = "foot_contacts") -> Described | None:
        """A quantity of each foot; None for forces in the axes of contacts."""
        sensor = self.env.scene[sensor_name]
        if isinstance(frames := getattr(sensor.cfg, "frame", None), tuple):
            return {"term": kind, "feet": [frame.prefixed_name() for frame in frames]}
        if kind == "foot_forces" and not (sensor.cfg.reduce == "netforce" or sensor.cfg.global_frame):
            return None
        return {"term": kind, "feet": list(map(self.add_prefix, sensor.primary_names))}

    def motion_term(self, kind: str, command_name: str) -> Described:
        cfg = self.env.command_manager.get_term(command_name).cfg
        bodies = {"bodies": list(map(self.add_prefix, cfg.body_names))} if kind.startswith("body") else {}
        return {"term": kind, "anchor": self.add_prefix(cfg.anchor_body_name), **bodies}


ACTIONS = {
    "JointPositionAction": "joint_positions", "RelativeJointPositionAction": "joint_velocities",
    "JointVelocityAction": "joint_velocities", "JointEffortAction": "joint_torques",
}  # fmt: skip

SENSORS = {
    mujoco.mjtSensor.mjSENS_VELOCIMETER: "base_linear_velocity", mujoco.mjtSensor.mjSENS_GYRO: "base_angular_velocity",
}  # fmt: skip

TERM_READERS: Mapping[str, Callable[..., Described | None]] = {
    "base_lin_vel": lambda task, **_: "base_linear_velocity",
    "base_ang_vel": lambda task, **_: "base_angular_velocity",
    "projected_gravity": lambda task, **_: "projected_gravity",
    "joint_pos_rel": lambda task, asset_cfg=None, **_: {"term": "joint_positions", "joints": task.joints(asset_cfg)},
    "joint_vel_rel": lambda task, asset_cfg=None, **_: {"term": "joint_velocities", "joints": task.joints(asset_cfg)},
    "last_action": lambda task, action_name=None: None if action_name else "last_action",
    "generated_commands": _Task.command,
    "builtin_sensor": _Task.sensor,
    "projected_gravity_from_sensor": lambda task, sensor_name: task.sensor(sensor_name, "projected_gravity"),
    "height_scan": _Task.scan,
    "foot_height": _Task.feet, "foot_contact": _Task.feet, "foot_air_time": _Task.feet,
    "foot_contact_forces": lambda task, sensor_name: task.feet(sensor_name, "foot_forces"),
    "motion_anchor_pos_b": lambda task, command_name: task.motion_term("anchor_position", command_name),
    "motion_anchor_ori_b": lambda task, command_name: task.motion_term("anchor_orientation", command_name),
    "robot_body_pos_b": lambda task, command_name: task.motion_term("body_positions", command_name),
    "robot_body_ori_b": lambda task, command_name: task.motion_term("body_orientations", command_name),
}  # fmt: skip
"""The term that each function of mjlab's tasks observes; None if that is not known here."""


def _on_a_plane(scene: Any, model: mujoco.MjModel) -> mujoco.MjModel:
    """The scene's model, with a plane in place of other terrain, which has no symmetry."""
    if scene.terrain is None or scene.terrain.cfg.terrain_type == "plane":
        return model
    spec = scene.spec.copy()
    for geom in spec.body("terrain").geoms:
        spec.delete(geom)
    spec.worldbody.add_geom(name="plane", type=mujoco.mjtGeom.mjGEOM_PLANE, size=[20, 20, 1])
    return spec.compile()
