"""A simulator of a robot that is observed by a list of terms. Its states can be mirrored.

State, goal, ground and clocks are mirrored by the derived symmetry, not by the spec's map of the observation, which is what is
tested. What a task adds to the simulator's state (`Scene`) is drawn at random, and evolves in a way that commutes with the
symmetries.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import mujoco
import numpy as np

from rppdyn.envs._model_symmetry import FREE, ModelSymmetry, Quantity, finite_element, lift, scalar_joints
from rppdyn.envs._simulator import (
    INTEGRATION,
    BareSimulator,
    Outcome,
    get_integration_state,
    quiet_mujoco,
    set_integration_state,
    tight_solver,
)  # fmt: skip
from rppdyn.envs.certification._evidence import Comparison, Elements, SimulatedSteps, step_faults
from rppdyn.envs.derivation import derive, symmetrise
from rppdyn.envs.observation._quantities import quantities_of
from rppdyn.envs.terms._layout import CompiledTerms
from rppdyn.envs.terms._robot import Robot, Scene
from rppdyn.envs.terms._terms import FootClocks, GaitPhase, Scalars, Vector

START_DISTANCE = 0.4  # largest distance of a joint from the default pose at a start, in radians or metres
SUBSTEPS = 2  # simulator steps per action; springs that act for longer throw light limbs about
FADE_PER_STEP = 0.97  # factor per step on the goal's velocity and on the task's vectors and scalars
CLOCK_STEP = 0.03  # periods per step of the gait's clock
GROUND_WAVES = 6  # plane waves whose sum is the random ground
MIRROR_TOLERANCE = 1e-6  # rounding: difference of a step from its image, relative to the largest velocity
MIN_MIRRORED_SHARE = 0.1  # if MuJoCo mirrors at least this share of the steps, the others are left out


class Frame(NamedTuple):
    """Numbers of one time step: the integration state, the action that led to it, and what the task adds (`Scene`)."""

    state: np.ndarray
    action: np.ndarray
    goal_qpos: np.ndarray
    goal_qvel: np.ndarray
    phase: np.ndarray
    feet: np.ndarray
    given: np.ndarray
    waves: np.ndarray
    shifts: np.ndarray


class TermsSimulator(BareSimulator):
    """A model observed by a list of terms. A state consists of the frames of the longest history, the oldest first.

    Args:
        compiled: the terms.
        model, symmetries: another model of the same structure that is stepped instead, and its symmetries.
    """

    is_observed = True

    def __init__(
        self, compiled: CompiledTerms, model: mujoco.MjModel | None = None, symmetries: tuple[ModelSymmetry, ...] = ()
    ):
        self.robot, self.symmetries = compiled.robot, symmetries or compiled.symmetries
        if model is not None:
            self.robot = Robot(model, self.robot.base, tuple(self.robot.default.tolist()))
        super().__init__(self.robot.model, compiled.name)
        model, self.compiled, self.substeps = self.robot.model, compiled, SUBSTEPS
        self.scratch, self.goal = mujoco.MjData(model), mujoco.MjData(model)
        self.qpos: Quantity = next(q for q in quantities_of(model) if q.key == "qpos")
        self.terms = [term for group in compiled.groups.values() for term in group.terms]
        self.feet = [*dict.fromkeys(f for term in self.terms if isinstance(term, FootClocks) for f in term.feet)]
        self.task_terms = {term.title: term for term in self.terms if isinstance(term, Vector | Scalars)}
        sizes = [term.size if isinstance(term, Scalars) else 3 for term in self.task_terms.values()]
        self.task_ends, action = np.cumsum(sizes).astype(int)[:-1], compiled.action.space.dim
        state = mujoco.mj_stateSize(model, INTEGRATION)
        self.ends = np.cumsum([state, action, model.nq, model.nv, 1, len(self.feet), sum(sizes), 2 * GROUND_WAVES])
        self.frames: list[np.ndarray] = []

    @property
    def sizes(self) -> dict[str, tuple[int, ...] | None]:
        spec = self.compiled.spec
        return super().sizes | {"obs": (spec.obs.dim,), "action": (spec.action.dim,)}

    @property
    def _bounds(self) -> tuple[np.ndarray, np.ndarray]:
        bound = np.full(self.compiled.spec.action.dim, 2.0)
        return -bound, bound

    def get(self) -> np.ndarray:
        return np.concatenate(self.frames)

    def set(self, state: np.ndarray) -> None:
        self.frames = [*state.reshape(self.compiled.history, -1)]
        super().set(self.frames[-1][: self.ends[0]])

    def read(self, states: np.ndarray, *keys: str) -> list[np.ndarray]:
        newest = states.reshape(len(states), self.compiled.history, -1)[:, -1, : self.ends[0]]
        return super().read(newest, *keys)

    # -- random starts, actions and tasks -------------------------------------------------------------------------------

    def reset(self, rng: np.random.Generator) -> None:
        mujoco.mj_resetData(self.model, self.data)
        self.data.qpos[:], self.data.qvel[:] = self._start(rng)
        mujoco.mj_forward(self.model, self.data)
        task = rng.uniform(size=1 + len(self.feet)), rng.normal(size=self.ends[6] - self.ends[5])
        ground = rng.normal(scale=4.0, size=2 * GROUND_WAVES), rng.uniform(0, 2 * np.pi, GROUND_WAVES)
        state, low_high = get_integration_state(self.model, self.data), self.action_bounds
        self.frames = [np.concatenate([state, rng.uniform(*low_high), *self._start(rng), *task, *ground])]
        for _ in range(self.compiled.history - 1):
            self.advance(rng.uniform(*low_high))

    def _start(self, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Random (positions, velocities): joints near the default pose, free bodies anywhere above the ground."""
        model, robot, qpos = self.model, self.robot, self.model.qpos0.copy()
        joints = scalar_joints(model)
        low, high = np.where(model.jnt_limited[joints], model.jnt_range[joints].T, [[-np.inf], [np.inf]])
        margin = np.where(np.isfinite(high), 0.05 * np.nan_to_num(high - low, posinf=0), 0)
        pose = robot.default + rng.uniform(-START_DISTANCE, START_DISTANCE, len(joints))
        qpos[robot.places] = np.clip(pose, low + margin, high - margin)
        turn = np.zeros(model.nv)
        for j in np.flatnonzero(model.jnt_type == FREE):
            a = model.jnt_dofadr[j]
            turn[a : a + 6] = [*rng.uniform(-1, 1, 2), rng.uniform(-0.1, 0.15), 0, 0, rng.uniform(-np.pi, np.pi)]
        mujoco.mj_integratePos(model, qpos, turn, 1.0)
        for j in np.flatnonzero(model.jnt_type == FREE):
            turn[:] = 0
            turn[model.jnt_dofadr[j] + 3 :][:3] = rng.normal(scale=0.2, size=3)
            mujoco.mj_integratePos(model, qpos, turn, 1.0)
        return qpos, rng.normal(scale=0.5, size=model.nv)

    def advance(self, action: np.ndarray) -> tuple[np.ndarray, float, bool]:
        """Apply controls and torques as they are, and targets by springs."""
        data, places, dofs, layout = self.data, self.robot.places, self.robot.dofs, self.compiled.action
        data.qfrc_applied[:] = 0.0
        parts = np.split(action, np.cumsum([len(rows) for _, rows in layout.bindings])[:-1])
        for term, (_, rows), (scale, offset), part in zip(
            layout.terms, layout.bindings, layout.scales, parts, strict=True
        ):
            values = part / scale + offset
            match term.kind:
                case "controls":
                    data.ctrl[rows] = values
                case "joint_torques":
                    data.qfrc_applied[dofs[rows]] += values
                case "joint_velocities":
                    data.qfrc_applied[dofs[rows]] += 0.1 * (values - data.qvel[dofs[rows]])
                case _:
                    data.qfrc_applied[dofs[rows]] += 5.0 * (values - data.qpos[places[rows]])
        mujoco.mj_step(self.model, data, self.substeps)
        last = self._split(self.frames[-1])
        frame = last._replace(
            state=get_integration_state(self.model, data), action=action, goal_qvel=FADE_PER_STEP * last.goal_qvel,
            phase=(last.phase + CLOCK_STEP) % 1.0, given=FADE_PER_STEP * last.given,
        )  # fmt: skip
        self.frames = [*self.frames, np.concatenate(frame)][-self.compiled.history :]
        return np.empty(0), np.nan, False

    # -- observations ---------------------------------------------------------------------------------------------------

    def observe(self) -> np.ndarray:
        return self.compiled.read(map(self._scene, map(self._split, self.frames)))

    def _split(self, frame: np.ndarray) -> Frame:
        return Frame(*np.split(frame, self.ends))

    def _scene(self, frame: Frame) -> Scene:
        set_integration_state(self.model, self.scratch, frame.state)
        goal = None
        if any(term.shows_goal for term in self.terms):
            goal = self.goal
            goal.qpos[:], goal.qvel[:] = frame.goal_qpos, frame.goal_qvel
            mujoco.mj_forward(self.model, goal)
        given = (
            dict(zip(self.task_terms, np.split(frame.given, self.task_ends), strict=True)) if self.task_terms else {}
        )

        def terrain(points: np.ndarray) -> np.ndarray:
            return 0.05 * np.sin(np.asarray(points) @ frame.waves.reshape(-1, 2).T + frame.shifts).sum(1)

        feet = dict(zip(self.feet, frame.feet.tolist(), strict=True))
        return Scene(self.robot, self.scratch, frame.action, goal, float(frame.phase[0]), feet, terrain, given)

    # -- mirror images --------------------------------------------------------------------------------------------------

    def mirror(self, elements: Elements, states: np.ndarray) -> np.ndarray:
        symmetry = self.symmetries[elements.number]
        times = elements.times
        images = [_Image(self, finite_element(symmetry, t)) for t in times] if times else [_Image(self, symmetry)]
        frames = states.reshape(len(states), self.compiled.history, -1).copy()
        action = slice(*self.ends[:2])
        frames[..., action] = elements.transform("action", frames[..., action])
        for i, path in enumerate(frames):
            for frame in path:
                frame[:] = np.concatenate(images[i % len(images)].apply(self._split(frame)))
        return frames.reshape(states.shape)


class _Image:
    """The images of frames under a discrete symmetry, except for their actions."""

    def __init__(self, simulator: TermsSimulator, element: ModelSymmetry):
        self.simulator, self.element = simulator, element
        robot, R = simulator.robot, element.rotation

        def image_of(foot: str) -> str:
            return robot.name_of(robot.image(element, robot.find_element(foot)))

        self.feet = [simulator.feet.index(image_of(foot)) for foot in simulator.feet]
        self.clock = 0.0
        for term in simulator.terms:  # shift the clock so that each foot's image has the foot's phase
            if isinstance(term, GaitPhase | FootClocks) and term.offsets is not None:
                offsets = dict(zip(term.feet, term.offsets, strict=True))
                self.clock = (offsets[term.feet[0]] - offsets[image_of(term.feet[0])]) % 1.0
        self.task_maps = [
            np.eye(term.size) if isinstance(term, Scalars) else lift(term.parity, R, R)
            for term in simulator.task_terms.values()
        ]

    def apply(self, frame: Frame) -> Frame:
        """The image of a frame."""
        element, data, model = self.element, self.simulator.scratch, self.simulator.model
        mujoco.mj_setState(model, data, frame.state, INTEGRATION)
        data.qpos[:] = self.simulator.qpos.image(element, data.qpos)
        for name, matrix in {
            "qvel": element.dofs, "qacc_warmstart": element.dofs, "qfrc_applied": element.dofs,
            "ctrl": element.controls, "act": element.activations,
        }.items():  # fmt: skip
            getattr(data, name)[:] = matrix @ getattr(data, name)
        feet, waves = frame.feet.copy(), frame.waves.reshape(-1, 2) @ element.rotation[:2, :2].T
        feet[self.feet] = frame.feet
        given = np.split(frame.given, self.simulator.task_ends) if self.task_maps else []
        return Frame(
            get_integration_state(model, data), frame.action, self.simulator.qpos.image(element, frame.goal_qpos),
            element.dofs @ frame.goal_qvel, (frame.phase + self.clock) % 1.0, feet,
            np.concatenate([frame.given[:0], *(M @ v for M, v in zip(self.task_maps, given, strict=True))]),
            waves.ravel(), frame.shifts - waves @ element.translation[:2],
        )  # fmt: skip


class TermSteps(NamedTuple):
    """Steps of random states and of their images under one generator.

    Attributes:
        elements: the generator's elements.
        actions: actions of the steps, (n, dim).
        outcome, images: the steps and those of the images, with observations before and after.
        left_out: number of excluded steps, whose dynamics MuJoCo did not mirror.
    """

    elements: Elements
    actions: np.ndarray
    outcome: Outcome
    images: Outcome
    left_out: int


def step_terms(compiled: CompiledTerms, *, states: int = 40, seed: int = 0) -> Iterator[TermSteps]:
    """Step states and their images under each generator, in a symmetrised model, so that only terms are tested.

    MuJoCo does not mirror contacts of height fields and of some convex shapes. Such steps are left out, unless hardly any
    others remain (`MIN_MIRRORED_SHARE`).
    """
    for k, symmetry in enumerate(compiled.symmetries):
        model, symmetries = compiled.robot.model, list(compiled.symmetries)
        if symmetry.deviations and not symmetry.is_continuous:
            model = symmetrise(model, symmetry)
            symmetries[k] = derive(model)[symmetry.name] if model.stat.extent else symmetry
        simulator, rng = TermsSimulator(compiled, model, tuple(symmetries)), np.random.default_rng([seed, k])
        elements = Elements.of_generator(compiled.spec, k, rng)
        with tight_solver(model), quiet_mujoco():
            evidence = SimulatedSteps.visit(simulator, states, rng)
            images = evidence.images(elements)
        state = Comparison.of_state(elements, simulator.state_keys, evidence.outcome, images)
        valid = step_faults(evidence.outcome, images) == ""
        mirrored = np.abs(state.difference).max(1) < MIRROR_TOLERANCE * (
            1 + np.abs(evidence.outcome.next_qvel[valid]).max()
        )
        if sum(mirrored) >= MIN_MIRRORED_SHARE * states:
            valid[valid] = mirrored
        outcomes = evidence.outcome.at(valid), images.at(valid)
        yield TermSteps(elements, evidence.actions[valid], *outcomes, int(sum(~valid)))
