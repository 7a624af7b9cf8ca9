"""The symmetry specs of Gymnasium's planar MuJoCo tasks, each written as what the mirror does to the *joints*.

A robot below lists its joints in the model's order, which joint each one is exchanged with and which change sign; every
index and sign of observation, action, positions and velocities follows from that. `symmetry_spec(...).table()` prints
the result. What is said of a symmetry (exact, approximate, broken) was measured with `rppdyn.envs.certify`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from rppdyn.envs.mirror import mirror_group
from rppdyn.envs.spec import Entry, Space, Symmetry, SymmetrySpec

if TYPE_CHECKING:
    import gymnasium as gym
    import mujoco

__all__ = ["KNOWN_ENVIRONMENTS", "symmetry_spec"]

# A coordinate is (kind, joint). The sine of an angle changes sign with it, the cosine does not.
Coordinate = tuple[str, str]

_UNITS = {
    ("position", "slide"): "m",
    ("position", "hinge"): "rad",
    ("velocity", "slide"): "m/s",
    ("velocity", "hinge"): "rad/s",
    ("force", "slide"): "N",
    ("constraint force", "slide"): "N",
    ("torque", "hinge"): "N m",
    ("sin", "hinge"): "1",
    ("cos", "hinge"): "1",
}


@dataclass(frozen=True)
class _Robot:
    """A robot with one mirror symmetry.

    Args:
        joints: name of each joint and its type ("slide" or "hinge"), in the model's order.
        actuated: the joint each actuator drives, in the model's order.
        odd: joints whose coordinate changes sign.
        pairs: joints that are exchanged.
        hidden: how many leading positions the default observation leaves out.
        centre: positions of the mirror's fixed point, where they are not zero.
        observation: coordinates of the observation, where it is not simply positions and velocities.
    """

    joints: tuple[tuple[str, str], ...]
    actuated: tuple[str, ...]
    symmetry: Symmetry
    odd: frozenset[str]
    pairs: tuple[tuple[str, str], ...] = ()
    hidden: int = 0
    centre: dict[str, float] = field(default_factory=dict)
    observation: tuple[Coordinate, ...] = ()

    @property
    def joint_names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.joints)

    def observed(self, hidden: int) -> tuple[Coordinate, ...]:
        """Coordinates of the observation that leaves out the first `hidden` positions."""
        positions = tuple(("position", joint) for joint in self.joint_names[hidden:])
        return self.observation or positions + tuple(("velocity", joint) for joint in self.joint_names)

    def space(self, coordinates: tuple[Coordinate, ...]) -> Space:
        """How the mirror acts on these coordinates."""
        types = dict(self.joints)
        image = dict(self.pairs) | {b: a for a, b in self.pairs}
        matrix = np.zeros((len(coordinates), len(coordinates)))
        for i, (kind, joint) in enumerate(coordinates):
            sign = -1.0 if joint in self.odd and kind != "cos" else 1.0
            matrix[i, coordinates.index((kind, image.get(joint, joint)))] = sign
        entries = tuple(Entry(f"{joint} {kind}", joint, _UNITS[kind, types[joint]]) for kind, joint in coordinates)
        origin = [self.centre.get(joint, 0.0) if kind == "position" else 0.0 for kind, joint in coordinates]
        return Space(entries, (matrix,), origin=tuple(origin))

    def spec(self, env_id: str, hidden: int) -> SymmetrySpec:
        types = dict(self.joints)
        controls = tuple(("torque" if types[joint] == "hinge" else "force", joint) for joint in self.actuated)
        return SymmetrySpec(
            env_id,
            mirror_group(),
            obs=self.space(self.observed(hidden)),
            action=self.space(controls),
            qpos=self.space(tuple(("position", joint) for joint in self.joint_names)),
            qvel=self.space(tuple(("velocity", joint) for joint in self.joint_names)),
            symmetries=(self.symmetry,),
        )


def _planar_root(*joints: str) -> tuple[tuple[str, str], ...]:
    return (("rootx", "slide"), ("rootz", "slide"), ("rooty", "hinge"), *((joint, "hinge") for joint in joints))


_ROBOTS: dict[str, _Robot] = {
    "InvertedPendulum-v5": _Robot(
        joints=(("slider", "slide"), ("hinge", "hinge")),
        actuated=("slider",),
        odd=frozenset({"slider", "hinge"}),
        # The pole's capsule runs from (0, 0, 0) to (0.001, 0, 0.6): it hangs off the vertical by this angle at hinge = 0.
        centre={"hinge": -math.atan2(0.001, 0.6)},
        symmetry=Symmetry(
            "left-right",
            "exact",
            True,
            "Exact about the pole's own axis, hinge = -0.00167 rad: the model's pole is tilted by as much. The limit of "
            "0.2 rad on the angle and the reset are about hinge = 0, so termination (and with it the reward) differs in a "
            "band of 0.0033 rad. Mirrored about hinge = 0 instead, the dynamics are off by 0.3 % of a step.",
        ),
    ),
    "InvertedDoublePendulum-v5": _Robot(
        joints=(("slider", "slide"), ("hinge", "hinge"), ("hinge2", "hinge")),
        actuated=("slider",),
        odd=frozenset({"slider", "hinge", "hinge2"}),
        observation=(
            ("position", "slider"),
            ("sin", "hinge"),
            ("sin", "hinge2"),
            ("cos", "hinge"),
            ("cos", "hinge2"),
            ("velocity", "slider"),
            ("velocity", "hinge"),
            ("velocity", "hinge2"),
            ("constraint force", "slider"),
        ),
        symmetry=Symmetry(
            "left-right",
            "approximate",
            True,
            "Off by about 1e-6 of a step: the model's gravity has a component of 1e-5 along the rail; without it the "
            "symmetry is exact.",
        ),
    ),
    "Swimmer-v5": _Robot(
        joints=(
            ("slider1", "slide"),
            ("slider2", "slide"),
            ("free_body_rot", "hinge"),
            ("motor1_rot", "hinge"),
            ("motor2_rot", "hinge"),
        ),
        actuated=("motor1_rot", "motor2_rot"),
        odd=frozenset({"slider2", "free_body_rot", "motor1_rot", "motor2_rot"}),
        hidden=2,
        symmetry=Symmetry(
            "left-right",
            "exact",
            True,
            "The lateral velocity changes sign; as published, with it kept, this is no symmetry. The planar rotation is a "
            "symmetry of the dynamics but not of the reward, and is left out.",
        ),
    ),
    "Walker2d-v5": _Robot(
        joints=_planar_root(
            "thigh_joint", "leg_joint", "foot_joint", "thigh_left_joint", "leg_left_joint", "foot_left_joint"
        ),
        actuated=("thigh_joint", "leg_joint", "foot_joint", "thigh_left_joint", "leg_left_joint", "foot_left_joint"),
        odd=frozenset(),
        pairs=(
            ("thigh_joint", "thigh_left_joint"),
            ("leg_joint", "leg_left_joint"),
            ("foot_joint", "foot_left_joint"),
        ),
        hidden=1,
        symmetry=Symmetry(
            "leg swap",
            "exact",
            True,
            "Before v5 the feet had different frictions (0.9 and 1.9), and in contact the swap was off by up to a third of "
            "a step.",
        ),
    ),
    "HalfCheetah-v5": _Robot(
        joints=_planar_root("bthigh", "bshin", "bfoot", "fthigh", "fshin", "ffoot"),
        actuated=("bthigh", "bshin", "bfoot", "fthigh", "fshin", "ffoot"),
        odd=frozenset({"rootx", "rooty", "bthigh", "bshin", "bfoot", "fthigh", "fshin", "ffoot"}),
        pairs=(("bthigh", "fthigh"), ("bshin", "fshin"), ("bfoot", "ffoot")),
        hidden=1,
        symmetry=Symmetry(
            "front-back",
            "approximate",
            False,
            "Rough, off by about a quarter of a step: the legs differ in length, stiffness and gear. The reward is for "
            "running forwards and changes sign.",
        ),
    ),
    "Hopper-v5": _Robot(
        joints=_planar_root("thigh_joint", "leg_joint", "foot_joint"),
        actuated=("thigh_joint", "leg_joint", "foot_joint"),
        odd=frozenset({"rootx", "rooty", "thigh_joint", "leg_joint", "foot_joint"}),
        hidden=1,
        symmetry=Symmetry(
            "front-back",
            "broken",
            False,
            "No symmetry: the knee bends one way only and the foot points forwards; off by nearly two steps.",
        ),
    ),
}

KNOWN_ENVIRONMENTS: tuple[str, ...] = tuple(_ROBOTS)
"""Environments that `symmetry_spec` knows by name."""


def symmetry_spec(source: str | gym.Env | mujoco.MjModel) -> SymmetrySpec:
    """The symmetry of an environment, as it acts on the raw observation and action.

    Args:
        source: an environment's id; an environment, wrapped or not, or a stable-baselines3 `VecEnv`, whose options
            (`exclude_current_positions_from_observation`) and joints are taken into account; or an `mujoco.MjModel`
            with the joints and actuators of a known one, for the default observation.
    Raises:
        ValueError: no spec is known for it, or its observation, action or joints are not those of the stock environment.
    """
    if isinstance(source, str):
        return _by_id(source).spec(source, _by_id(source).hidden)
    if hasattr(source, "observation_space"):
        return _from_env(source)
    if hasattr(source, "njnt"):
        return _from_model(source)
    raise ValueError(f"{type(source).__name__} is no environment id, environment or mujoco.MjModel; pass one of these")


def _by_id(env_id: str) -> _Robot:
    if env_id not in _ROBOTS:
        raise ValueError(
            f"no symmetry spec for {env_id!r}; known: {', '.join(_ROBOTS)}; "
            "for another environment build one with rppdyn.envs.mirror_spec or SymmetrySpec and pass it to RPPSAC as spec="
        )
    return _ROBOTS[env_id]


def _from_env(env) -> SymmetrySpec:
    vectorised = hasattr(env, "get_attr") and hasattr(env, "num_envs")
    registered = env.get_attr("spec")[0] if vectorised else env.spec
    if registered is None:
        raise ValueError(f"{env} has no id to find its symmetry by; make it with gymnasium.make, or pass spec=")
    robot = _by_id(registered.id)
    if not vectorised and (found := _joints(env.unwrapped.model)) != (robot.joint_names, robot.actuated):
        raise ValueError(
            f"the model of {registered.id} was replaced: its joints and actuated joints are {found}; pass your own spec="
        )
    if env.action_space.shape != (len(robot.actuated),):
        raise ValueError(
            f"{registered.id} has actions of shape {env.action_space.shape}, its spec {(len(robot.actuated),)}; "
            "take off the wrapper that changes them, or pass spec="
        )
    sizes = {len(robot.observed(hidden)): hidden for hidden in (0, robot.hidden)}
    shape = env.observation_space.shape
    if len(shape) != 1 or shape[0] not in sizes:
        raise ValueError(
            f"{registered.id} has observations of shape {shape}, its spec {' or '.join(f'({n},)' for n in sizes)}; "
            "take off the wrapper or option that changes them, or pass spec="
        )
    return robot.spec(registered.id, sizes[shape[0]])


def _from_model(model) -> SymmetrySpec:
    for env_id, robot in _ROBOTS.items():
        if _joints(model) == (robot.joint_names, robot.actuated):
            return robot.spec(env_id, robot.hidden)
    joints, _ = _joints(model)
    raise ValueError(
        f"no symmetry spec for a model with joints {', '.join(joints)}; known: {', '.join(_ROBOTS)}; "
        "build one with rppdyn.envs.mirror_spec or SymmetrySpec"
    )


def _joints(model) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Names of the joints and of the joints that the actuators drive, in the model's order."""
    joints = tuple(model.joint(i).name for i in range(model.njnt))
    driven = zip(model.actuator_trntype, model.actuator_trnid[:, 0], strict=True)
    return joints, tuple(joints[j] if kind in (0, 1) else "" for kind, j in driven)  # 0, 1: mjTRN_JOINT, JOINTINPARENT
