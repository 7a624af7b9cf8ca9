"""Mirror symmetries of Gymnasium's robots, written by hand from their documentation: what derivations must find."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from rppdyn.envs import Entry, Space

# A coordinate is (kind, joint). The sine of an angle changes sign with it, the cosine does not.
Coordinate = tuple[str, str]

_UNITS = {
    ("position", "slide"): "m", ("position", "hinge"): "rad", ("velocity", "slide"): "m/s", ("velocity", "hinge"): "rad/s",
    ("force", "slide"): "N", ("constraint force", "slide"): "N", ("torque", "hinge"): "N m", ("sin", "hinge"): "1",
    ("cos", "hinge"): "1",
}  # fmt: skip


@dataclass(frozen=True)
class Mirror:
    """A mirror as a person writes it.

    Args:
        name: as a derivation calls it.
        odd: joints whose coordinate changes sign.
        pairs: joints that are exchanged.
        centre: positions of the fixed point, where they are not zero.
    """

    name: str
    odd: str = ""
    pairs: tuple[tuple[str, str], ...] = ()
    centre: dict[str, float] = field(default_factory=dict)

    def image(self, joint: str) -> str:
        """The joint whose place it takes."""
        return (dict(self.pairs) | {b: a for a, b in self.pairs}).get(joint, joint)

    def sign(self, joint: str) -> float:
        return -1.0 if joint in self.odd.split() else 1.0


_LEFT_HAND = "abdomen_z abdomen_x right_shoulder1 right_shoulder2 left_shoulder1 left_shoulder2"
_HUMANOID_PAIRS = tuple((f"right_{x}", f"left_{x}") for x in "hip_x hip_z hip_y knee shoulder1 shoulder2 elbow".split())
MIRRORS = {
    # The pole's capsule runs from (0, 0, 0) to (0.001, 0, 0.6): it hangs off the vertical by this angle at hinge = 0.
    "inverted_pendulum": Mirror("left-right", "slider hinge", centre={"hinge": -math.atan2(0.001, 0.6)}),
    "inverted_double_pendulum": Mirror("left-right", "slider hinge hinge2"),
    "swimmer": Mirror("left-right", "slider2 free_body_rot motor1_rot motor2_rot"),
    "walker2d_v5": Mirror("leg swap", pairs=tuple((f"{x}_joint", f"{x}_left_joint") for x in ("thigh", "leg", "foot"))),
    "half_cheetah": Mirror("front-back", "rootx rooty bthigh bshin bfoot fthigh fshin ffoot", (
        ("bthigh", "fthigh"), ("bshin", "fshin"), ("bfoot", "ffoot"))),
    "hopper": Mirror("front-back", "rootx rooty thigh_joint leg_joint foot_joint"),
    "reacher": Mirror("left-right", "joint0 joint1 target_y"),
    "humanoid": Mirror("left-right", _LEFT_HAND, _HUMANOID_PAIRS),
    "humanoidstandup": Mirror("left-right", _LEFT_HAND, _HUMANOID_PAIRS),
    "ant": Mirror("left-right", "hip_1 hip_2 hip_3 hip_4", (
        ("hip_1", "hip_4"), ("hip_2", "hip_3"), ("ankle_1", "ankle_4"), ("ankle_2", "ankle_3"))),
}  # fmt: skip
"""By the name of Gymnasium's model file."""


@dataclass(frozen=True)
class Robot:
    """A planar robot and its mirror symmetry.

    Args:
        mirror: the symmetry.
        joints: name of each joint and its type ("slide" or "hinge"), in the model's order.
        actuated: the joint each actuator drives, in the model's order.
        hidden: how many leading positions the default observation leaves out.
        observation: coordinates of the observation, where it is not simply positions and velocities.
    """

    mirror: Mirror
    joints: tuple[tuple[str, str], ...]
    actuated: tuple[str, ...]
    hidden: int = 0
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
        types, mirror = dict(self.joints), self.mirror
        matrix = np.zeros((len(coordinates), len(coordinates)))
        for i, (kind, joint) in enumerate(coordinates):
            matrix[i, coordinates.index((kind, mirror.image(joint)))] = 1.0 if kind == "cos" else mirror.sign(joint)
        entries = tuple(Entry(f"{joint} {kind}", joint, _UNITS[kind, types[joint]]) for kind, joint in coordinates)
        origin = [mirror.centre.get(joint, 0.0) if kind == "position" else 0.0 for kind, joint in coordinates]
        return Space(entries, (matrix,), origin=tuple(origin))

    def state(self) -> dict[str, Space]:
        """How the mirror acts on positions, velocities and controls."""
        types = dict(self.joints)
        return {
            "qpos": self.space(tuple(("position", joint) for joint in self.joint_names)),
            "qvel": self.space(tuple(("velocity", joint) for joint in self.joint_names)),
            "action": self.space(tuple(("torque" if types[j] == "hinge" else "force", j) for j in self.actuated)),
        }


def _joints(slides: str, hinges: str) -> tuple[tuple[str, str], ...]:
    """Name and type of joints, slides first."""
    return (*((name, "slide") for name in slides.split()), *((name, "hinge") for name in hinges.split()))


_WALKER = "thigh_joint leg_joint foot_joint thigh_left_joint leg_left_joint foot_left_joint"
_CHEETAH = "bthigh bshin bfoot fthigh fshin ffoot"
_HOPPER = "thigh_joint leg_joint foot_joint"
_DOUBLE = (("position", "slider"), *((kind, joint) for kind in ("sin", "cos") for joint in ("hinge", "hinge2")),
           *(("velocity", joint) for joint in ("slider", "hinge", "hinge2")), ("constraint force", "slider"))  # fmt: skip
ROBOTS: dict[str, Robot] = {
    "InvertedPendulum-v5": Robot(MIRRORS["inverted_pendulum"], _joints("slider", "hinge"), ("slider",)),
    "InvertedDoublePendulum-v5": Robot(
        MIRRORS["inverted_double_pendulum"], _joints("slider", "hinge hinge2"), ("slider",), observation=_DOUBLE
    ),
    "Swimmer-v5": Robot(
        MIRRORS["swimmer"],
        _joints("slider1 slider2", "free_body_rot motor1_rot motor2_rot"),
        ("motor1_rot", "motor2_rot"),
        hidden=2,
    ),
    **{
        f"{name}-v5": Robot(MIRRORS[mirror], _joints("rootx rootz", f"rooty {joints}"), tuple(joints.split()), hidden=1)
        for name, mirror, joints in (
            ("Walker2d", "walker2d_v5", _WALKER),
            ("HalfCheetah", "half_cheetah", _CHEETAH),
            ("Hopper", "hopper", _HOPPER),
        )
    },
}
