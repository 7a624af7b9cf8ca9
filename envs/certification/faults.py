r"""Find the part of a robot that is at fault, from logged transitions and the model of the robot as it should be.

The model steps from each logged state under the logged action. With r the difference of the logged velocities afterwards from
the model's, in units of the spread of changes of each, and c_k its derivative by the k-th parameter of the model (the strength
of a motor, the mass of a body, damping, friction, armature or stiffness of a joint), a single fault of size theta_k leaves

.. math:: s_k = \mathrm{mean}_t\, \max(0, 1 - |r_t - c_{kt} \theta_k|^2 / |r_t|^2),

the share of the residual that it explains: all of it for the part at fault, where nothing else is. theta_k minimises the sum of
|r_t - c_kt theta| / |r_t|, nearly: it is the median of what fits each transition, with weights |c_kt| / |r_t|, since steps that
begin or end a contact are off by orders of magnitude more. For the parts that explain most it is fitted again with the model
itself in place of its derivative. Differences as large as those of the model from its own log, whose states lack the solver's
warm start, count as none.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import NormalDist

import gymnasium as gym
import mujoco
import numpy as np
from mujoco import rollout
from numpy.typing import NDArray

from rppdyn.envs.certification.certify import opened
from rppdyn.envs.episodes import Episode, check_log
from rppdyn.envs.model_symmetry import BALL, FREE, TRANSMISSION, name_of
from rppdyn.envs.observation.recognition import StateEntries, state_entries
from rppdyn.envs.simulator import BareSimulator, ObservedSimulator, Simulator
from rppdyn.envs.spec import align

STEP = 0.05  # relative size of the change by which derivatives are taken
SCREENED = 40  # transitions by which all parameters are ranked first
EXPLAINED = 0.999999  # share of a part beside which no other is looked at more closely
REFINED = 6  # parts whose size is fitted again with the model itself
ITERATIONS = 4
MIN_FAULT_CHANGE = 0.02  # relative change of a parameter that counts as a fault
FALSE_ALARMS = 1e-3  # of the test that a change is not zero, over all parts
LOGGED = 200  # of the model's own transitions, by which it is judged how well a log gives its states
STATE = mujoco.mjtState.mjSTATE_FULLPHYSICS


@dataclass(frozen=True)
class Suspect:
    """A parameter of a part, and by how much it would be off if it alone were at fault.

    Attributes:
        part: an actuator, a body or a joint, by its name.
        parameter: "gear", "mass", "damping", "friction", "armature" or "stiffness".
        change: relative to the model's value; of friction, and of what is 0 in the model, in units of `unit`.
        unit: size of a change of 1, in the parameter's own units.
        error: standard error of the change.
        share: share of the residual that it explains, from 0 to 1.
    """

    part: str
    parameter: str
    change: float
    unit: float
    error: float
    share: float


@dataclass(frozen=True)
class FaultReport:
    """The faults of a robot's parts, judged by logged transitions.

    Attributes:
        name: name of the robot.
        transitions: how many were compared.
        residual: median difference of a logged step from the model's, relative to a step.
        floor: the same of the model's own log.
        suspects: best explanation first; none where the log is as near to the model as its own.
    """

    name: str
    transitions: int
    residual: float
    floor: float
    suspects: tuple[Suspect, ...]

    @property
    def fault(self) -> Suspect | None:
        """The part at fault, or None where no change of a single part is above 2 % beyond doubt."""
        if not self.suspects:
            return None
        first, limit = self.suspects[0], NormalDist().inv_cdf(1 - FALSE_ALARMS / (2 * len(self.suspects)))
        return first if abs(first.change) >= max(MIN_FAULT_CHANGE, limit * first.error) else None

    def table(self, shown: int = 6) -> str:
        """The verdict, and what explains most."""
        head = f"{self.name}: {self.transitions} transitions, off by {self.residual:.2g} of a step"
        if (one := self.fault) is None:
            return f"{head}\nno part is at fault (the model's own log is off by {self.floor:.2g})"
        lines = [head, f"at fault: {one.part}, {one.parameter} {100 * one.change:+.1f} %", ""]
        rows = [
            [f"{100 * s.share:.1f} %", s.part, s.parameter, f"{100 * s.change:+.1f} %", f"{100 * s.error:.1g} %"]
            for s in self.suspects[:shown]
        ]
        return "\n".join([*lines, *align([["explains", "part", "parameter", "change", "error"], *rows])])


def find_fault(
    model: str | gym.Env | mujoco.MjModel, episodes: Sequence[Episode], *, n_states: int = 120, seed: int = 0
) -> FaultReport:
    """Name the part of a robot that is weaker, heavier or stiffer than its model says, from logged transitions.

    Args:
        model: the robot as it should be: an environment or its id, whose observation the log has; or a model, whose log has
            positions, velocities and activations, and actions that are held as `certify` holds them.
        episodes: the log; ten thousand transitions are plenty.
        n_states: transitions that are compared, drawn from the log.
        seed: seed of the draw.
    Raises:
        ValueError: observations or actions of another size, too few usable transitions, jumps or other rates than velocities in
            the log, or an environment whose log does not say its simulator's state, or whose step is not the simulator's alone.
    """
    with opened(model) as simulator:
        if isinstance(simulator, ObservedSimulator):
            raise ValueError(f"{simulator.name} has no MuJoCo model, whose parts could be told apart")
        rng = np.random.default_rng(seed)
        log = _Log.of(simulator)
        floor_log = log.own(LOGGED, rng)
        states, actions, after = log.read(episodes, n_states, rng)
        nominal = partial(_velocities_after, simulator.model, log.substeps)
        before = states[:, 1 + simulator.model.nq : 1 + simulator.model.nq + simulator.model.nv]
        units = (after - before).std(0) + 1e-12 * np.abs(after).max() + 1e-300
        floor_residual = (floor_log[2] - nominal(floor_log[0], floor_log[1])) / units
        predicted = nominal(states, actions)
        residual = (after - predicted) / units
        usable = np.isfinite(residual).all(1)
        size = np.linalg.norm(((after - before) / units)[usable], axis=1)
        floor_size = np.linalg.norm(floor_residual[np.isfinite(floor_residual).all(1)], axis=1)
        floor = float(np.quantile(floor_size, 0.9)) + 1e-12
        fit = _Fit(simulator.model, log.substeps, states[usable], actions[usable], after[usable], units, floor)
        misses = float(np.median(np.linalg.norm(residual[usable], axis=1)))
        suspects = fit.suspects(list(_parameters(simulator.model)), predicted[usable]) if misses > floor else []
        return FaultReport(
            simulator.name,
            int(usable.sum()),
            misses / float(np.median(size)),
            float(np.median(np.linalg.norm(floor_residual, axis=1)) / np.median(size)),
            tuple(suspects),
        )


@dataclass(frozen=True)
class _Parameter:
    """A parameter of a part; `change` of it is relative, or in units where the model has none."""

    part: str
    name: str
    field: str
    index: tuple[int, ...]
    unit: float

    def changed(self, model: mujoco.MjModel, change: float) -> mujoco.MjModel:
        """A copy of the model with the parameter off by so much."""
        changed = copy.deepcopy(model)
        array = getattr(changed, self.field)
        if self.field == "body_mass":
            array[self.index[0]] *= 1 + change
            changed.body_inertia[self.index[0]] *= 1 + change
            mujoco.mj_setConst(changed, mujoco.MjData(changed))
        elif self.field == "actuator_gear":
            array[self.index[0]] *= 1 + change
        else:
            array[list(self.index)] += change * self.unit
        return changed


def _parameters(model: mujoco.MjModel) -> Iterator[_Parameter]:
    """Every parameter that may be at fault: of motors, bodies that move, and joints."""
    for i in range(model.nu):
        yield _Parameter(name_of(model, "actuator", i), "gear", "actuator_gear", (i,), 1.0)
    for i in range(1, model.nbody):
        if model.body_mass[i] > 0 and model.body_weldid[i]:
            yield _Parameter(name_of(model, "body", i), "mass", "body_mass", (i,), float(model.body_mass[i]))
    torques = _torques(model)
    for j in range(model.njnt):
        if model.jnt_type[j] == FREE:
            continue
        first = int(model.jnt_dofadr[j])
        dofs = tuple(range(first, first + (3 if model.jnt_type[j] == BALL else 1)))
        part = name_of(model, "joint", j)
        for name, field in (("damping", "dof_damping"), ("armature", "dof_armature")):
            if value := float(getattr(model, field)[first]):
                yield _Parameter(part, name, field, dofs, value)
        if value := float(model.jnt_stiffness[j]):
            yield _Parameter(part, "stiffness", "jnt_stiffness", (j,), value)
        if torques[first]:
            yield _Parameter(
                part, "friction", "dof_frictionloss", dofs, float(model.dof_frictionloss[first] or torques[first])
            )


def _torques(model: mujoco.MjModel) -> NDArray[np.float64]:
    """The largest torque of the motors on each degree of freedom, where they drive joints; a scale of friction."""
    torques = np.zeros(model.nv)
    for i in range(model.nu):
        if model.actuator_trntype[i] in (TRANSMISSION.JOINT, TRANSMISSION.JOINTINPARENT):
            high = np.abs(model.actuator_ctrlrange[i]).max() or 1.0
            gain = abs(model.actuator_gainprm[i, 0]) or 1.0
            torques[model.jnt_dofadr[model.actuator_trnid[i, 0]]] += abs(model.actuator_gear[i, 0]) * high * gain
    return torques


def _velocities_after(model: mujoco.MjModel, substeps: int, states: NDArray, actions: NDArray) -> NDArray[np.float64]:
    """Velocities after one step of a model from each of several states; nan where it is unstable."""
    control = np.ascontiguousarray(np.repeat(actions[:, None], substeps, axis=1))
    path, _ = rollout.rollout(model, mujoco.MjData(model), np.ascontiguousarray(states), control)
    after = path[:, -1, 1 + model.nq : 1 + model.nq + model.nv]
    return np.where(np.abs(after).max(1, keepdims=True) < 1e8, after, np.nan)


@dataclass(frozen=True)
class _Fit:
    """Transitions, and how much of what the model misses a change of a parameter explains."""

    model: mujoco.MjModel
    substeps: int
    states: NDArray[np.float64]
    actions: NDArray[np.float64]
    after: NDArray[np.float64]
    units: NDArray[np.float64]
    floor: float

    def residual(self, parameter: _Parameter, change: float) -> NDArray[np.float64]:
        model = parameter.changed(self.model, change)
        return (self.after - _velocities_after(model, self.substeps, self.states, self.actions)) / self.units

    def suspects(self, parameters: Sequence[_Parameter], predicted: NDArray) -> list[Suspect]:
        """Fit each parameter to some transitions; those that explain most are fitted with the model itself, by all of them."""
        chosen = np.unique(np.linspace(0, len(self.states) - 1, SCREENED).astype(int))
        some = replace(self, states=self.states[chosen], actions=self.actions[chosen], after=self.after[chosen])
        whole = (self.after - predicted) / self.units
        part = whole[chosen]
        screened = {p: some._solved(part, part, some._slope(p, part)) for p in parameters}
        for p in sorted(screened, key=lambda p: -screened[p][2])[:REFINED]:
            slope = self._slope(p, whole)
            screened[p] = self._refined(p, whole, slope, self._solved(whole, whole, slope))
            if screened[p][2] > EXPLAINED:
                break
        ranked = sorted(screened, key=lambda p: -screened[p][2])
        return [Suspect(p.part, p.name, screened[p][0], p.unit, screened[p][1], screened[p][2]) for p in ranked]

    def _slope(self, parameter: _Parameter, whole: NDArray) -> NDArray[np.float64]:
        return np.nan_to_num((whole - self.residual(parameter, STEP)) / STEP)

    def _solved(self, whole: NDArray, left: NDArray, slope: NDArray, change: float = 0.0) -> tuple[float, float, float]:
        """Change, its standard error, and the share that it explains, from what is left at a change."""
        square = (slope**2).sum(1)
        weight = np.sqrt(square / ((whole**2).sum(1) + self.floor**2))
        moved = square > 1e-16 * square.max(initial=0.0)
        if moved.sum() < 10:
            return change, np.inf, 0.0
        each = (slope * left).sum(1)[moved] / square[moved]
        step = _weighted_median(each, weight[moved])
        spread = 1.4826 * _weighted_median(np.abs(each - step), weight[moved]) + self.floor / np.sqrt(
            np.median(square[moved])
        )
        count = weight[moved].sum() ** 2 / (weight[moved] ** 2).sum()
        return change + step, float(1.2533 * spread / np.sqrt(count)), self._share(whole, left - slope * step)

    def _share(self, whole: NDArray, rest: NDArray) -> float:
        return float(np.clip(1 - (rest**2).sum(1) / ((whole**2).sum(1) + self.floor**2), 0, None).mean())

    def _refined(
        self, parameter: _Parameter, whole: NDArray, slope: NDArray, found: tuple[float, float, float]
    ) -> tuple[float, float, float]:
        """The best of a few steps of Gauss and Newton, each judged by the model with the change."""
        best, change = found, found[0]
        judged = -1.0
        for _ in range(ITERATIONS):
            change = float(np.clip(change, -0.95, 20.0))
            left = self.residual(parameter, change)
            if not np.isfinite(left).all():
                left = np.where(np.isfinite(left), left, whole)
            share = self._share(whole, left)
            change_next, error, _ = self._solved(whole, left, slope, change)
            if share > judged:
                judged, best = share, (change, error, share)
            if abs(change_next - change) < 1e-6 or judged > EXPLAINED:
                break
            change = change_next
        return best


@dataclass(frozen=True)
class _Log:
    """Map between states and observations, of which ``substeps`` steps of the simulator are one step."""

    simulator: Simulator
    entries: StateEntries
    substeps: int

    @classmethod
    def of(cls, simulator: Simulator) -> _Log:
        model, entries = simulator.model, state_entries(simulator)
        if isinstance(simulator, BareSimulator):
            return cls(simulator, entries, simulator.substeps)
        if (entries.velocities < 0).any() or model.na:
            missing = [name_of(model, "joint", int(model.dof_jntid[i])) for i in np.flatnonzero(entries.velocities < 0)]
            lacks = f"the velocity of {missing[0]}" if missing else "its actuators' activations"
            raise ValueError(f"{simulator.name}: the observation lacks {lacks}; log all of both, and give the model")
        return cls(simulator, entries, simulator.env.unwrapped.frame_skip)

    def states(self, observations: NDArray) -> NDArray[np.float64]:
        """Full physics states, (n, 1 + nq + nv + na); what is not observed stands as the model has it at rest."""
        model = self.simulator.model
        positions, velocities, activations, *_ = self.entries
        q = np.tile(model.qpos0, (len(observations), 1))
        q[:, positions >= 0] = observations[:, positions[positions >= 0]]
        parts = [np.zeros((len(q), 1)), q, observations[:, velocities], observations[:, activations]]
        return np.concatenate(parts, axis=1)

    def read(
        self, episodes: Sequence[Episode], count: int, rng: np.random.Generator
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
        """States, actions and the velocities after them, of transitions drawn from the log."""
        nu = self.simulator.model.nu
        for what, here, there in (
            ("observation", {e.observations.shape[1] for e in episodes}, self.entries.size),
            ("action", {e.actions.shape[1] for e in episodes}, nu),
        ):
            if here != {there}:
                raise ValueError(
                    f"{self.simulator.name}: the log's {what}s have {', '.join(map(str, sorted(here))) or 'no'} entries, and "
                    f"those of the robot {there}; give the robot that it is of"
                )
        before = np.concatenate([e.observations[:-1] for e in episodes])
        after = np.concatenate([e.observations[1:] for e in episodes])[:, self.entries.velocities]
        actions = np.concatenate([e.actions for e in episodes])
        limit = self.entries.limit
        whole = (np.abs(before[:, self.entries.velocities]) < limit).all(1) & (np.abs(after) < limit).all(1)
        usable = np.flatnonzero(whole & np.isfinite(before).all(1) & np.isfinite(after).all(1))
        if len(usable) < 50:
            raise ValueError(
                f"{self.simulator.name}: {len(usable)} of {len(before)} transitions can be used (velocities that are clipped "
                "say nothing); at least 50 are needed"
            )
        check_log("the log", episodes, self.simulator)
        chosen = np.sort(rng.choice(usable, min(count, len(usable)), replace=False))
        return self.states(before[chosen]), actions[chosen], after[chosen]

    def own(self, count: int, rng: np.random.Generator) -> tuple[NDArray, NDArray, NDArray]:
        """Transitions of the simulator itself, as a log would have them.

        Raises:
            ValueError: they don't follow from what the log has.
        """
        simulator, model = self.simulator, self.simulator.model
        is_bare, (low, high) = isinstance(simulator, BareSimulator), simulator.action_bounds

        def observed() -> NDArray[np.float64]:
            return np.concatenate(simulator.coordinates()) if is_bare else simulator.observe()

        before: list[NDArray] = []
        actions: list[NDArray] = []
        after: list[NDArray] = []
        while len(before) < count:
            simulator.reset(rng)
            for _ in range(50):
                here = observed()
                action = rng.uniform(low, high)
                _, _, terminated = simulator.advance(action)
                there, limit = observed()[self.entries.velocities], self.entries.limit
                if (np.abs(here[self.entries.velocities]) < limit).all() and (np.abs(there) < limit).all():
                    before.append(here)
                    actions.append(action)
                    after.append(there)
                if terminated:
                    break
        transitions = self.states(np.array(before)), np.array(actions), np.array(after)
        predicted = _velocities_after(model, self.substeps, transitions[0], transitions[1])
        change = np.abs(transitions[2] - np.array(before)[:, self.entries.velocities]).mean(0) + 1e-9
        off = np.nanmedian(np.abs(transitions[2] - predicted) / change)
        if not off < 1e-2:
            raise ValueError(
                f"{simulator.name}: its own log differs from the model's steps by {off:.2g}, so that it can't be compared: the "
                "observation must have the simulator's positions and velocities, and the action its controls"
            )
        return transitions


def _weighted_median(values: NDArray, weights: NDArray) -> float:
    order = np.argsort(values)
    total = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(total, total[-1] / 2)])
