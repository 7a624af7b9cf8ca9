"""A MuJoCo model's kinematic trees as plain arrays in the reference pose `qpos0`."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import cached_property
from types import SimpleNamespace

import mujoco
import numpy as np

from rppdyn.envs.encoding import rotation_matrix

__all__ = [
    "BALL",
    "BIAS",
    "DISABLE",
    "EQUALITY",
    "FREE",
    "GAIN",
    "GEOM",
    "HINGE",
    "JOINT",
    "OBJECT",
    "SLIDE",
    "Skeleton",
    "TRANSMISSION",
    "WRAP",
    "control_addresses",
    "local_transform",
    "name_of",
]


def codes(enum) -> SimpleNamespace:
    """MuJoCo's codes of an enumeration as plain integers: its own never equal NumPy's when they stand on the left.

    >>> codes(mujoco.mjtJoint).HINGE
    3
    """
    members = {name.split("_", 1)[1]: int(value) for name, value in enum.__members__.items() if "_" in name}
    return SimpleNamespace(**members)


BIAS, DISABLE, EQUALITY, GAIN, GEOM, JOINT, OBJECT, TRANSMISSION, WRAP = map(
    codes,
    (
        mujoco.mjtBias,
        mujoco.mjtDisableBit,
        mujoco.mjtEq,
        mujoco.mjtGain,
        mujoco.mjtGeom,
        mujoco.mjtJoint,
        mujoco.mjtObj,
        mujoco.mjtTrn,
        mujoco.mjtWrap,
    ),
)
FREE, BALL, SLIDE, HINGE = JOINT.FREE, JOINT.BALL, JOINT.SLIDE, JOINT.HINGE


@dataclass(frozen=True, eq=False)
class Skeleton:
    """Bodies, joints and masses of a model; b numbers bodies, j joints.

    Everything is measured from the reference pose, in which every hinge and slide is at ``qpos0``: the frame of a body has
    orientation ``rest[b]`` in its parent there, and ``world[b]`` in the world.
    """

    model: mujoco.MjModel

    @cached_property
    def data(self) -> mujoco.MjData:
        """The model in its reference pose."""
        data = mujoco.MjData(self.model)
        mujoco.mj_kinematics(self.model, data)
        mujoco.mj_comPos(self.model, data)
        return data

    @cached_property
    def children(self) -> tuple[tuple[int, ...], ...]:
        found: list[list[int]] = [[] for _ in range(self.model.nbody)]
        for b in range(1, self.model.nbody):
            found[self.model.body_parentid[b]].append(b)
        return tuple(map(tuple, found))

    @cached_property
    def joints(self) -> tuple[tuple[int, ...], ...]:
        """Joints of each body, in order."""
        m = self.model
        return tuple(tuple(range(a, a + n)) for a, n in zip(m.body_jntadr, m.body_jntnum, strict=True))

    @cached_property
    def rest(self) -> np.ndarray:
        return matrices(self.model.body_quat)

    @cached_property
    def world(self) -> np.ndarray:
        return self.data.xmat.reshape(-1, 3, 3)

    @cached_property
    def axes(self) -> dict[str, np.ndarray]:
        """Axes of geoms and sites in their bodies, (n, 3, 3)."""
        return {kind: matrices(getattr(self.model, f"{kind}_quat")) for kind in ("geom", "site")}

    @cached_property
    def inertia(self) -> np.ndarray:
        """Inertia tensors about the centres of mass, in the bodies' axes, (nbody, 3, 3)."""
        axes = matrices(self.model.body_iquat)
        return np.einsum("bik,bk,bjk->bij", axes, self.model.body_inertia, axes)

    @cached_property
    def size(self) -> float:
        """A length that says what is far: the largest distance between moving bodies' origins and joint anchors.

        Where all of them coincide it is a share of MuJoCo's own measure of the model.
        """
        moving = self.model.body_weldid != 0
        places = (self.data.xipos[moving], self.data.xpos[moving], self.data.xanchor)
        points = np.concatenate(places) if moving.any() else np.zeros((1, 3))
        roots = {int(self.model.body_rootid[b]) for b in np.flatnonzero(moving)}
        spread = max((self._spread(r) for r in roots), default=0.0)
        extent = float(self.model.stat.extent)
        return spread if spread > 1e-9 * extent else max(float(np.ptp(points, axis=0).max()), 1e-3 * extent)

    def _spread(self, root: int) -> float:
        return float(np.ptp(self.data.xipos[self.model.body_rootid == root], axis=0).max())

    @cached_property
    def scalars(self) -> np.ndarray:
        """Slides and hinges, in the model's order."""
        return np.flatnonzero(np.isin(self.model.jnt_type, (SLIDE, HINGE)))

    @cached_property
    def colliding(self) -> np.ndarray:
        """Whether each geom can touch another one, by their bits; all that its shape matters for."""
        m = self.model
        off = DISABLE.CONTACT | DISABLE.CONSTRAINT
        if m.opt.disableflags & off:
            return np.zeros(m.ngeom, bool)
        meet = (m.geom_contype[:, None] & m.geom_conaffinity[None]) != 0
        body = m.body_weldid[m.geom_bodyid]
        meet = (meet | meet.T) & (body[:, None] != body[None])
        found = meet.any(1)
        found[m.pair_geom1] = found[m.pair_geom2] = True
        return found

    @cached_property
    def sites_in_use(self) -> np.ndarray:
        """Sites that tendons, actuators or constraints hang on."""
        m = self.model
        wraps = np.isin(m.wrap_type, (WRAP.SPHERE, WRAP.CYLINDER))
        used = set(m.wrap_objid[m.wrap_type == WRAP.SITE].tolist())
        used |= {int(k) for k in m.wrap_prm[wraps] if k >= 0}  # on which side a tendon passes a geom
        for i in range(len(m.actuator_trntype)):
            if m.actuator_trntype[i] in (TRANSMISSION.SITE, TRANSMISSION.SLIDERCRANK):
                used |= {int(k) for k in m.actuator_trnid[i] if k >= 0}
        on_sites = m.eq_objtype == OBJECT.SITE
        used |= {*m.eq_obj1id[on_sites].tolist(), *m.eq_obj2id[on_sites].tolist()}
        return np.array(sorted(used), int)

    @cached_property
    def shaped(self) -> np.ndarray:
        """Whether a geom's shape matters: it collides, a fluid drags it, or a tendon wraps around it."""
        m = self.model
        found = self.colliding | (self.in_fluid and m.geom_fluid[:, 0] > 0)
        found[m.wrap_objid[np.isin(m.wrap_type, (WRAP.SPHERE, WRAP.CYLINDER))]] = True
        return found

    @property
    def in_fluid(self) -> bool:
        return bool(self.model.opt.density > 0 or self.model.opt.viscosity > 0)

    @cached_property
    def constants(self) -> mujoco.MjModel:
        """A copy of the model with the constants that follow from its other numbers computed anew.

        Raises:
            ValueError: MuJoCo can't compute them, for the model was changed in a way that it was not compiled for.
        """
        model = copy.copy(self.model)
        try:
            mujoco.mj_setConst(model, mujoco.MjData(model))
        except mujoco.FatalError as error:
            raise ValueError(f"MuJoCo can't compute this model's constants: {error}; or compile it again") from error
        # What MuJoCo leaves as it was compiled: the boxes of meshes, and bodies alone on the world with a diagonal mass matrix.
        for i in np.flatnonzero(model.geom_type == GEOM.MESH):
            mesh = int(model.geom_dataid[i])
            vertices = model.mesh_vert[model.mesh_vertadr[mesh] :][: model.mesh_vertnum[mesh]].astype(float)
            low, high = vertices.min(0), vertices.max(0)
            model.geom_aabb[i] = np.r_[(high + low) / 2, (high - low) / 2]
            model.geom_rbound[i] = np.linalg.norm(np.maximum(np.abs(low), np.abs(high)))
        alone = (model.body_weldid[model.body_parentid] == 0) & ~np.isin(
            np.arange(model.nbody), model.body_parentid[1:]
        )
        model.body_simple[1:] *= alone[1:]
        return model

    @cached_property
    def gravity(self) -> np.ndarray:
        disabled = self.model.opt.disableflags & DISABLE.GRAVITY
        return np.zeros(3) if disabled else self.model.opt.gravity.copy()

    @cached_property
    def vertical(self) -> int:
        """The coordinate axis nearest to gravity; z without any."""
        return int(np.abs(self.gravity).argmax()) if np.abs(self.gravity).max() > 0 else 2


def matrices(quats: np.ndarray) -> np.ndarray:
    """Rotation matrices (n, 3, 3) of unit quaternions (n, 4)."""
    return rotation_matrix(np.asarray(quats, float)).reshape(-1, 3, 3)


def local_transform(skeleton: Skeleton, kind: str, i: int) -> tuple[int, np.ndarray, np.ndarray]:
    """Body, position and orientation of a geom or site in its body's frame."""
    m = skeleton.model
    return int(getattr(m, f"{kind}_bodyid")[i]), getattr(m, f"{kind}_pos")[i], skeleton.axes[kind][i]


_PREFIX = {
    "body": "body",
    "joint": "jnt",
    "geom": "geom",
    "site": "site",
    "tendon": "tendon",
    "actuator": "actuator",
    "equality": "eq",
}


def name_of(model: mujoco.MjModel, kind: str, i: int) -> str:
    """Kind and name of an element, or where it belongs if it has no name."""
    if kind == "control":
        return name_of(model, "actuator", int(np.searchsorted(control_addresses(model)[0], i, "right")) - 1)
    if kind == "dof":
        joint, first = int(model.dof_jntid[i]), int(model.jnt_dofadr[model.dof_jntid[i]])
        name = name_of(model, "joint", joint)
        return f"{name} (dof {i - first})" if model.jnt_type[joint] in (FREE, BALL) else name
    object_type = getattr(mujoco.mjtObj, f"mjOBJ_{kind.upper()}")
    if name := mujoco.mj_id2name(model, object_type, i):
        return f"{kind} {name}"
    if kind == "actuator" and model.actuator_trntype[i] in (0, 1):
        return f"actuator of {name_of(model, 'joint', int(model.actuator_trnid[i, 0])).removeprefix('joint ')}"
    if kind == "pair":
        return " and ".join(name_of(model, "geom", int(ids[i])) for ids in (model.pair_geom1, model.pair_geom2))
    if kind == "actuator" and model.actuator_trntype[i] == TRANSMISSION.TENDON:
        return f"actuator of {name_of(model, 'tendon', int(model.actuator_trnid[i, 0]))}"
    if kind in ("geom", "site", "joint"):
        body = int(getattr(model, f"{_PREFIX[kind]}_bodyid")[i])
        return f"{kind} {i} of {name_of(model, 'body', body)}"
    return f"{kind} {i}"


def control_addresses(model: mujoco.MjModel) -> tuple[np.ndarray, np.ndarray]:
    """First control of each actuator and how many it has; one each before MuJoCo 4."""
    if hasattr(model, "actuator_ctrladr"):
        return np.asarray(model.actuator_ctrladr), np.asarray(model.actuator_ctrlnum)
    return np.arange(model.nu), np.ones(model.nu, int)
