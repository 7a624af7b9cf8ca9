"""The representations of the residual-pathway work, right or wrong, for ablations.

They are those of the code published with Finzi, Benton & Wilson 2021 (`RL/representations.py`), which differ here and
there from the text's Table A.10, written as what the symmetry does to each joint. What the papers left out of the
observation (Ant's contact forces, Humanoid's inertias) stays where it is. `docs/symmetries.md` has what the simulator says
of each: Walker2d's and Hopper's are those of the model, HalfCheetah's keeps front and back legs apart, Swimmer's keeps the
lateral velocity, Ant's cycles the legs without the signs of the ankles, Humanoid's exchanges x and y.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rppdyn.envs.mirror import mirror_group
from rppdyn.envs.spec import Entry, Space, Symmetry, SymmetrySpec
from rppdyn.groups import Group, Z

__all__ = ["PUBLISHED", "published_spec"]

_SWAP = np.array([[0.0, 1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])


@dataclass(frozen=True)
class _Published:
    """A generator.

    Args:
        name, group: of the symmetry.
        image: the joint that each joint is carried to; others stay.
        odd: joints that change sign.
        root: what the generator does to vectors of a free joint; its angular velocity is taken for a pseudovector.
    """

    name: str
    group: Group
    image: Mapping[str, str] = field(default_factory=dict)
    odd: frozenset[str] = frozenset()
    root: np.ndarray = field(default_factory=lambda: np.eye(3))


def _pairs(*names: str) -> dict[str, str]:
    """Joints of the right side and of the left one, exchanged."""
    return {f"{a}_{name}": f"{b}_{name}" for name in names for a, b in (("right", "left"), ("left", "right"))}


def _planar(*names: str) -> frozenset[str]:
    return frozenset({"rootx", "rooty", *names})


_WALKER = {a: b for joint in ("thigh", "leg", "foot")
           for a, b in ((f"{joint}_joint", f"{joint}_left_joint"), (f"{joint}_left_joint", f"{joint}_joint"))}  # fmt: skip

PUBLISHED: Mapping[str, _Published] = {
    "Hopper": _Published("front-back", mirror_group(), odd=_planar("thigh_joint", "leg_joint", "foot_joint")),
    "HalfCheetah": _Published(
        "front-back", mirror_group(), odd=_planar("bthigh", "bshin", "bfoot", "fthigh", "fshin", "ffoot")
    ),
    "Walker2d": _Published("leg swap", mirror_group(), _WALKER),
    "Swimmer": _Published("left-right", mirror_group(), odd=frozenset({"free_body_rot", "motor1_rot", "motor2_rot"})),
    "Ant": _Published(
        "leg cycle", Z(4), {f"{kind}_{i}": f"{kind}_{i % 4 + 1}" for kind in ("hip", "ankle") for i in (1, 2, 3, 4)}
    ),
    "Humanoid": _Published(
        "left-right",
        mirror_group(),
        _pairs("hip_x", "hip_z", "hip_y", "knee", "shoulder1", "shoulder2", "elbow"),
        frozenset({"abdomen_x", *_pairs("hip_x", "shoulder1")}),
        root=_SWAP,
    ),
}
"""Published representation of each task that has one."""


def published_spec(spec: SymmetrySpec, task: str) -> SymmetrySpec:
    """The published representation of a task on the spaces of its derived spec.

    Args:
        spec: the derived spec, whose entries say which joint each coordinate belongs to.
        task: the environment's name without its version.
    Raises:
        ValueError: none was published for the task.
    """
    if task not in PUBLISHED:
        raise ValueError(f"no representation was published for {spec.env_id}; there is one for {', '.join(PUBLISHED)}")
    published = PUBLISHED[task]
    state = {key: _signed_permutation(published, getattr(spec, key).features) for key in ("qpos", "qvel", "action")}
    features = [feature for key in ("qpos", "qvel") for feature in getattr(spec, key).features]
    whole = np.zeros((len(features), len(features)))
    n = len(state["qpos"])
    whole[:n, :n], whole[n:, n:] = state["qpos"], state["qvel"]
    spaces: dict[str, Any] = {key: _with_generator(getattr(spec, key), matrix) for key, matrix in state.items()}
    spaces["obs"] = _with_generator(spec.obs, _restricted(whole, features, spec.obs.features))
    symmetry = Symmetry(published.name, note="As published with the residual-pathway work.")
    return SymmetrySpec(spec.env_id, published.group, act=spec.act, symmetries=(symmetry,), **spaces)


def _signed_permutation(published: _Published, features: tuple[Entry, ...]) -> np.ndarray:
    """The generator on features, each of which belongs to a joint; a free joint's come in blocks of three and nine."""
    joints = [f.joint for f in features]
    numbers = [joints[:i].count(joint) for i, joint in enumerate(joints)]
    where = {place: i for i, place in enumerate(zip(joints, numbers, strict=True))}
    matrix = np.zeros((len(features), len(features)))
    for i, (joint, number) in enumerate(zip(joints, numbers, strict=True)):
        if joints.count(joint) == 1:
            sign = -1.0 if joint in published.odd else 1.0
            matrix[where[published.image.get(joint, joint), 0], i] = sign
        elif number == 0:
            block = _free_joint(published.root, joints.count(joint))
            matrix[i : i + len(block), i : i + len(block)] = block
    return matrix


def _free_joint(S: np.ndarray, size: int) -> np.ndarray:
    """On position and rotation matrix (12 features), or on linear and angular velocity (6)."""
    block = np.zeros((size, size))
    block[:3, :3] = S
    block[3:, 3:] = np.kron(S, S) if size == 12 else np.linalg.det(S) * S
    return block


def _restricted(whole: np.ndarray, features: list[Entry], observed: tuple[Entry, ...]) -> np.ndarray:
    """The generator on those of the features that are observed; what is observed besides stays where it is."""
    place = {f.name: i for i, f in enumerate(features)}
    names = [f.name for f in observed]
    known = [i for i, name in enumerate(names) if name in place and names.index(name) == i]
    at = [place[observed[i].name] for i in known]
    matrix = np.eye(len(observed))
    matrix[np.ix_(known, known)] = whole[np.ix_(at, at)]
    return matrix


def _with_generator(space: Space, matrix: np.ndarray) -> Space:
    return Space(space.entries, (matrix,), angles=space.angles, quaternions=space.quaternions)
