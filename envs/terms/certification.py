"""Terms certified in the simulator: mirrored states are stepped and observed by the same functions as the originals.

The mirrored state, action, goal, ground and clock are those that the derivation gives, not the spec's map of the observation:
that is what is tested. The clock of the mirrored gait is searched for, so that each foot has the phase of its image.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import mujoco
import numpy as np
from scipy.linalg import expm

from rppdyn.envs.derivation import derive, symmetrise
from rppdyn.envs.model_symmetry import FREE, Field, ModelSymmetry, finite_element
from rppdyn.envs.observation.quantities import fields_of
from rppdyn.envs.simulator import tight_solver
from rppdyn.envs.spec import Space
from rppdyn.envs.terms.feet import FootClocks, GaitPhase
from rppdyn.envs.terms.layout import CompiledTerms
from rppdyn.envs.terms.robot import Robot, Scene
from rppdyn.envs.terms.vectors import Commands, Pseudovector, Scalars, Vector

TOLERANCE = 1e-6
"""Largest error of an entry, relative to its spread, in a model that was made symmetric."""


@dataclass(frozen=True, eq=False)
class Witness:
    """Observations of states and of their images under one generator.

    Args:
        generator: number of the generator, discrete ones first.
        name: name of the symmetry.
        parameter: how far along a continuous one, 0 for a discrete one.
        before, after: raw observations (n, dim) of the states and of their images.
        action, action_after: raw actions (n, dim) likewise.
        left_out: steps that are not here, since the simulator itself did not mirror them.
    """

    generator: int
    name: str
    parameter: float
    before: np.ndarray
    after: np.ndarray
    action: np.ndarray
    action_after: np.ndarray
    left_out: int = 0


@dataclass(frozen=True)
class TermCertificate:
    """Distance of each entry of each mirrored observation from the image that the spec gives.

    Args:
        names: names of the symmetries.
        entries: names of the observation's features.
        defects: largest difference over all states relative to the entry's spread, one row per symmetry.
        constant: entries that never vary, of which the simulator says nothing.
        states: how many were stepped.
        left_out: number of these that the simulator itself did not mirror, one per symmetry.
    """

    names: tuple[str, ...]
    entries: tuple[str, ...]
    defects: np.ndarray
    constant: tuple[str, ...]
    states: int
    left_out: tuple[int, ...] = ()

    @property
    def is_certified(self) -> bool:
        """True if every entry agrees."""
        return bool((self.defects <= TOLERANCE).all())

    @property
    def wrong(self) -> dict[str, list[str]]:
        """Entries that do not agree, by symmetry."""
        wrong = {}
        for name, row in zip(self.names, self.defects, strict=True):
            if bad := np.flatnonzero(row > TOLERANCE).tolist():
                wrong[name] = [self.entries[i] for i in bad]
        return wrong

    def __str__(self) -> str:
        lines = [
            f"{name}: {len(self.entries)} entries, largest defect {row.max():.1e} of an entry's spread in {self.states} states"
            for name, row in zip(self.names, self.defects, strict=True)
        ]
        lines += [f"{name}: off in {', '.join(bad[:12])}" for name, bad in self.wrong.items()]
        lines += unmirrored(dict(zip(self.names, self.left_out, strict=False)), self.states)
        if self.constant:
            lines.append(f"never varied: {', '.join(self.constant[:12])}{' ...' if len(self.constant) > 12 else ''}")
        return "\n".join(lines)


def unmirrored(left_out: dict[str, int], states: int) -> list[str]:
    """A line for each symmetry whose steps the simulator did not always mirror."""
    return [
        f"{name}: {count} of {states} steps are left out, whose contacts MuJoCo does not mirror (as those of meshes)"
        for name, count in left_out.items()
        if count
    ]


def certify_terms(
    compiled: CompiledTerms, *, states: int = 40, seed: int = 0, as_built: bool = False, obs: Space | None = None
) -> TermCertificate:
    """Step random states and their images, observe both by the same functions, and compare.

    Args:
        compiled: the terms.
        states: how many.
        seed: seed of the random states, actions, goals, clocks and grounds.
        as_built: whether the model stays as it is; its deviating parameters are made equal otherwise, so that only the
            terms' maps are tested.
        obs: another map of the observation to test instead of the spec's.
    Raises:
        ValueError: `states` is below 1.
    """
    space = compiled.spec.obs if obs is None else obs
    pairs = list(witnesses(compiled, states=states, seed=seed, as_built=as_built))
    return judge(pairs, space, states)


def judge(pairs: Sequence[Witness], space: Space, states: int) -> TermCertificate:
    """The verdict of witnesses on a map of the observation."""
    defects, spread = [], np.zeros(space.feature_dim)
    for witness in pairs:
        z, image = space.encode(witness.before), space.encode(witness.after)
        defects.append(np.abs(image - z @ matrix_of(space, witness).T).max(0))
        spread = np.maximum(spread, np.concatenate([z, image]).std(0))
    names = tuple(entry.name for entry in space.features)
    varies = spread > 1e-9
    relative = np.array(defects) / np.where(varies, spread, 1.0)
    constant = tuple(name for name, one in zip(names, varies, strict=True) if not one)
    left_out = tuple(witness.left_out for witness in pairs)
    return TermCertificate(tuple(w.name for w in pairs), names, relative, constant, states, left_out)


def matrix_of(space: Space, witness: Witness) -> np.ndarray:
    """The map of the features that a witness is about."""
    m = np.array((*space.discrete_generators, *space.lie_algebra)[witness.generator])
    return expm(witness.parameter * m) if witness.parameter else m


def witnesses(
    compiled: CompiledTerms, *, states: int = 40, seed: int = 0, as_built: bool = False
) -> Iterator[Witness]:  # fmt: skip
    """Observations of random states and of their images, a `Witness` for each generator.

    Contacts of height fields and of some convex shapes are not mirrored by MuJoCo, whatever the observation. In a model that
    was made symmetric such steps are left out, if they are less than half of all.
    """
    if states < 1:
        raise ValueError(f"states={states} must be at least 1")
    for number, symmetry in enumerate(compiled.symmetries):
        parameter = 0.7 if symmetry.is_continuous else 0.0
        element = finite_element(symmetry, parameter) if symmetry.is_continuous else symmetry
        model = compiled.robot.model
        if not (as_built or symmetry.is_continuous) and symmetry.deviations:
            model = symmetrise(model, symmetry)
            if model.stat.extent:  # as derived from the model that is stepped
                element = derive(model)[symmetry.name]
        with tight_solver(model):
            rollouts = _Rollouts(compiled, model, element, np.random.default_rng([seed, number]))
            pairs = [rollouts.pair() for _ in range(states)]
        mirrored = [pair.drift < TOLERANCE for pair in pairs]
        if as_built or 2 * sum(mirrored) < states:
            mirrored = [True] * states
        valid = [pair for pair, keep in zip(pairs, mirrored, strict=True) if keep]
        before, after, action, action_after, _ = (np.array(column) for column in zip(*valid, strict=True))
        yield Witness(number, symmetry.name, parameter, before, after, action, action_after, states - len(valid))


class _Pair(NamedTuple):
    """Observation and action of a state and of its image, and how far the image's velocities are from mirrored ones."""

    before: np.ndarray
    after: np.ndarray
    action: np.ndarray
    action_after: np.ndarray
    drift: float


class _Rollouts:
    """Short random rollouts of a model and of its image."""

    def __init__(
        self, compiled: CompiledTerms, model: mujoco.MjModel, element: ModelSymmetry, rng: np.random.Generator
    ):
        self.compiled, self.model, self.element, self.rng = compiled, model, element, rng
        self.robot = compiled.robot
        if model is not self.robot.model:  # another model of the same structure
            self.robot = Robot(model, self.robot.base, tuple(self.robot.default.tolist()))
        self.qpos: Field = next(field for field in fields_of(model) if field.name == "qpos")
        self.terms = [term for group in compiled.groups.values() for term in group.terms]

    def pair(self) -> _Pair:
        """Observation and action of a random state, and of its image."""
        rng, element, steps = self.rng, self.element, self.compiled.history
        R = element.rotation
        state, goal = self._state(), self._state()
        actions = [rng.normal(size=self.compiled.action.space.dim) for _ in range(steps + 1)]
        terrain = _ground(rng)
        phase, task_values = float(rng.uniform()), self._given()
        feet = {foot: float(rng.uniform()) for term in self.terms if isinstance(term, FootClocks) for foot in term.feet}
        scenes: dict[str, Any] = {
            "action": actions,
            "goal": goal,
            "terrain": terrain,
            "phase": phase,
            "given": task_values,
            "feet": feet,
        }

        def carried(points: np.ndarray) -> np.ndarray:
            return terrain((points - element.translation[:2]) @ R[:2, :2])

        images: dict[str, Any] = {
            "action": [self._image_of_action(a) for a in actions],
            "goal": self._image(*goal),
            "terrain": carried,
            "phase": self._image_of_phase(phase),
            "given": {title: self._lift(title) @ value for title, value in task_values.items()},
            "feet": {self._image_of_foot(foot): value for foot, value in feet.items()},
        }
        (before, v), (after, v_image) = self._roll(state, scenes), self._roll(self._image(*state), images)
        drift = float(np.abs(element.dofs @ v - v_image).max(initial=0.0) / (1 + np.abs(v).max(initial=0.0)))
        return _Pair(before, after, actions[-1], images["action"][-1], drift)

    def _state(self) -> tuple[np.ndarray, np.ndarray]:
        model, rng = self.model, self.rng
        qpos = model.qpos0.copy()
        noise = rng.uniform(-0.4, 0.4, len(self.robot.places))
        low, high = model.jnt_range[self._scalars].T
        limited = model.jnt_limited[self._scalars].astype(bool)
        joints = self.robot.default + noise
        joints = np.where(limited, np.clip(joints, low + 0.05 * (high - low), high - 0.05 * (high - low)), joints)
        qpos[self.robot.places] = joints
        for j in np.flatnonzero(model.jnt_type == FREE):
            adr = model.jnt_qposadr[j]
            qpos[adr : adr + 2] += rng.uniform(-1, 1, 2)
            qpos[adr + 2] += rng.uniform(-0.1, 0.15)
            turn, tilt = rng.uniform(-np.pi, np.pi), rng.normal(scale=0.2, size=3)
            yaw = np.array([np.cos(turn / 2), 0, 0, np.sin(turn / 2)])
            lean = np.r_[1.0, tilt / 2]
            mujoco.mju_mulQuat(qpos[adr + 3 : adr + 7], yaw, lean / np.linalg.norm(lean))
        if rng.uniform() < 0.7:
            self._touch_down(qpos)
        return qpos, rng.normal(scale=0.5, size=model.nv)

    def _touch_down(self, qpos: np.ndarray) -> None:
        """Put the free bodies where the lowest thing is half a centimetre in the ground."""
        model, data = self.model, mujoco.MjData(self.model)
        heights = [int(model.jnt_qposadr[j]) + 2 for j in np.flatnonzero(model.jnt_type == FREE)]
        low, high = -2.0, 2.0
        for _ in range(12 if heights else 0):
            middle = (low + high) / 2
            data.qpos = qpos
            data.qpos[heights] += middle
            mujoco.mj_kinematics(model, data)
            mujoco.mj_collision(model, data)
            contacts = sum(data.contact[i].geom.min() >= 0 and 0 in model.body_weldid[model.geom_bodyid[data.contact[i].geom]]
                      for i in range(data.ncon))  # fmt: skip
            low, high = (middle, high) if contacts else (low, middle)
        qpos[heights] += low - 0.005

    @property
    def _scalars(self) -> np.ndarray:
        return np.flatnonzero(np.isin(self.model.jnt_type, (2, 3)))

    def _image(self, qpos: np.ndarray, qvel: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return self.qpos.image(self.element, qpos), self.element.dofs @ qvel

    def _image_of_action(self, action: np.ndarray) -> np.ndarray:
        """By way of what the action moves: its value in the model is carried to the partner's."""
        layout, image, k = self.compiled.action, np.zeros(len(action)), 0
        values: dict[tuple[str, int], float] = {}
        blocks = []
        for term, (_, rows), (scale, offset) in zip(layout.terms, layout.bound, layout.scales, strict=True):
            for row, s, o in zip(rows, scale, offset, strict=True):
                values[term.kind, row] = action[k] / s + o
                blocks.append((term.kind, row, s, o))
                k += 1
        for k, (kind, row, s, o) in enumerate(blocks):
            matrix = self.element.controls if kind == "controls" else self.element.joint_matrix
            shift = self.element.joint_shift[row] if kind == "joint_positions" else 0.0
            value = shift + sum(matrix[row, c] * values.get((kind, int(c)), 0.0) for c in np.flatnonzero(matrix[row]))
            image[k] = (value - o) * s
        return image

    def _image_of_foot(self, foot: str) -> str:
        image = self.robot.image(self.element, self.robot.thing(foot))
        return getattr(self.model, image.kind)(image.number).name

    def _image_of_phase(self, phase: float) -> float:
        """The clock at which each foot's image has the foot's phase, among 720 of them."""
        for term in self.terms:
            if isinstance(term, GaitPhase | FootClocks) and term.offsets is not None:
                places = {foot: offset for foot, offset in zip(term.feet, term.offsets, strict=True)}
                clocks = (phase + np.arange(720) / 720) % 1.0
                wanted = np.array([phase + offset for offset in places.values()])
                ahead = np.array([places[self._image_of_foot(foot)] for foot in places])
                off = np.abs(np.exp(2j * np.pi * (clocks[:, None] + ahead)) - np.exp(2j * np.pi * wanted)).max(1)
                return float(clocks[off.argmin()])
        return phase

    def _given(self) -> dict[str, np.ndarray]:
        values = {}
        for term in self.terms:
            if isinstance(term, Vector | Pseudovector):
                values[term.title] = self.rng.normal(size=3)
            elif isinstance(term, Scalars):
                values[term.title] = self.rng.normal(size=term.size)
        return values

    def _lift(self, title: str) -> np.ndarray:
        term = next(term for term in self.terms if term.title == title)
        if isinstance(term, Scalars):
            return np.eye(term.size)
        R = self.element.rotation
        return np.linalg.det(R) * R if isinstance(term, Pseudovector) else R

    def _roll(self, state: tuple[np.ndarray, np.ndarray], task: dict) -> tuple[np.ndarray, np.ndarray]:
        """The observation after as many steps as it looks back, and the velocities there."""
        model, compiled = self.model, self.compiled
        data = mujoco.MjData(model)
        data.qpos, data.qvel = state
        goal = mujoco.MjData(model) if any(isinstance(term, Commands) for term in self.terms) else None
        histories = {name: deque[list[np.ndarray]]() for name in compiled.groups}
        for k in range(compiled.history):
            self._act(data, task["action"][k])
            for _ in range(2):
                mujoco.mj_step(model, data)
            mujoco.mj_forward(model, data)
            growth = 1 + 0.1 * k  # what the task gives changes from step to step, too
            if goal is not None:
                goal.qpos, goal.qvel = task["goal"][0], growth * task["goal"][1]
                mujoco.mj_forward(model, goal)
            task_values = {title: growth * value for title, value in task["given"].items()}
            scene = Scene(
                self.robot, data, task["action"][k], goal, (task["phase"] + 0.03 * k) % 1.0, task["feet"],
                task["terrain"], task_values,
            )  # fmt: skip
            for name, group in compiled.groups.items():
                histories[name].append(group.read_step(scene))
        observation = np.concatenate([group.stacked(list(histories[name])) for name, group in compiled.groups.items()])
        return observation, data.qvel.copy()

    def _act(self, data: mujoco.MjData, action: np.ndarray) -> None:
        """Controls as they are; targets by a spring to each; torques directly."""
        k, places, dofs = 0, self.robot.places, self.robot.dofs
        layout = self.compiled.action
        data.qfrc_applied[:] = 0.0
        for term, (_, rows), (scale, offset) in zip(layout.terms, layout.bound, layout.scales, strict=True):
            rows, values = list(rows), action[k : k + len(rows)] / scale + offset
            k += len(rows)
            if term.kind == "controls":
                data.ctrl[rows] = values
            elif term.kind == "joint_torques":
                data.qfrc_applied[dofs[rows]] += values
            elif term.kind == "joint_velocities":
                data.qfrc_applied[dofs[rows]] += 0.1 * (values - data.qvel[dofs[rows]])
            else:
                data.qfrc_applied[dofs[rows]] += 5.0 * (values - data.qpos[places[rows]])


def _ground(rng: np.random.Generator) -> Callable[[np.ndarray], np.ndarray]:
    """A random smooth ground."""
    waves, phases = rng.normal(scale=4.0, size=(6, 2)), rng.uniform(0, 2 * np.pi, 6)
    return lambda points: 0.05 * np.sin(np.asarray(points) @ waves.T + phases).sum(1)
