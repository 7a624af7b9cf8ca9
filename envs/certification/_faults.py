r"""Find the part of a robot that is at fault, from logged transitions and the model of the robot as it should be.

The model steps from each logged state under the logged action. Let r be the logged velocities after the step minus the model's,
each in units of the standard deviation of its changes. Let c_k be the derivative of r by the k-th parameter of the model: the
strength of a motor, the mass of a body, or damping, friction, armature or stiffness of a joint. A single fault of size theta_k
explains the share

.. math:: s_k = \mathrm{mean}_t\, \max(0, 1 - |r_t - c_{kt} \theta_k|^2 / |r_t|^2),

of the residual, which is 1 for the part at fault if nothing else is. To estimate theta_k, a value is fitted to each transition,
and their median is taken with weights |c_kt| / |r_t|. It nearly minimises the sum of |r_t - c_kt theta| / |r_t|. A mean would
not do: steps that begin or end a contact are off by orders of magnitude more. For the parts that explain most, theta_k is
refined with the model itself in place of its derivative.

The model's steps also differ from its own log, whose states lack the solver's warm start. Residuals up to that size count as
zero.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import NormalDist

import gymnasium as gym
import mujoco
import numpy as np
from mujoco import rollout
from numpy.typing import NDArray

from rppdyn.envs._episodes import Episode, check_log
from rppdyn.envs._model_symmetry import BALL, BIAS, FREE, TRANSMISSION, name_of
from rppdyn.envs._simulator import BareSimulator, ObservedSimulator, Simulator
from rppdyn.envs._spec import align
from rppdyn.envs.certification._certify import open_simulator
from rppdyn.envs.observation._recognition import state_entries

DERIVATIVE_STEP = 0.05  # relative change of a parameter in finite differences
SCREENING_TRANSITIONS = 40  # transitions by which all parameters are ranked first
SUFFICIENT_SHARE = 0.999999  # share at which a fit is final and no other parameter is refined
MAX_REFINED_PARAMETERS = 6  # parameters that are fitted again with the model itself
MAX_ITERATIONS = 4  # Gauss-Newton steps of such a fit
MIN_FAULT_CHANGE = 0.02  # smallest relative change of a parameter that counts as a fault
FALSE_ALARM_RATE = 1e-3  # probability, over all parameters, that a test takes a change of zero for a fault
LARGE_CHANGE = 0.25  # beyond which the derivative is taken at the changed model
LEAST_CHANGE = {"gear": -3.0, "gains": -3.0, "mass": -0.95}  # motors may be reversed; other parameters may become 0
OWN_TRANSITIONS = 200  # simulated transitions, by which the residual of the model's own log is measured


@dataclass(frozen=True)
class Suspect:
    """A parameter of a part, and the change that fits the log best if this parameter alone is at fault.

    Attributes:
        part: name of an actuator, a body or a joint.
        parameter: "gear" of a motor, "gains" of a servo, "mass", "damping", "friction", "armature" or
            "stiffness".
        change: in units of `unit`; -1 is a dead motor, -2 one that is connected the wrong way round.
        unit: the model's value, so that changes are relative; 1 for gear and gains, which are scaled. For a friction that is 0
            in the model, it is the largest torque of the joint's motors.
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
        transitions: number of transitions compared.
        residual: median difference of a logged step from the model's, relative to the median length of a step.
        floor: the same for a log that the model itself made.
        suspects: parameters, the best explanation first; empty if `residual` is no larger than the model's own.
    """

    name: str
    transitions: int
    residual: float
    floor: float
    suspects: tuple[Suspect, ...]

    @property
    def fault(self) -> Suspect | None:
        """The parameter at fault; None unless its change exceeds `MIN_FAULT_CHANGE` and its error significantly."""
        if not self.suspects:
            return None
        first, limit = self.suspects[0], NormalDist().inv_cdf(1 - FALSE_ALARM_RATE / (2 * len(self.suspects)))
        return first if abs(first.change) >= max(MIN_FAULT_CHANGE, limit * first.error) else None

    def table(self, max_rows: int = 6) -> str:
        """The verdict, and a table of the parameters that explain most."""
        head = f"{self.name}: {self.transitions} transitions, off by {self.residual:.2g} of a step"
        if (fault := self.fault) is None:
            verdict = "no part explains it: noise, or another cause" if self.suspects else "no part is at fault"
            return f"{head}\n{verdict} (the model's own log is off by {self.floor:.2g})"
        lines = [head, f"at fault: {fault.part}, {fault.parameter} {100 * fault.change:+.1f} %", ""]
        rows = [
            [f"{100 * s.share:.1f} %", s.part, s.parameter, f"{100 * s.change:+.1f} %", f"{100 * s.error:.1g} %"]
            for s in self.suspects[:max_rows]
        ]
        return "\n".join([*lines, *align([["explains", "part", "parameter", "change", "error"], *rows])])


def find_fault(
    model: str | Path | gym.Env | mujoco.MjModel, episodes: Sequence[Episode], *, n_states: int = 120, seed: int = 0
) -> FaultReport:
    """Find the part of a robot that is weaker, heavier or stiffer than in its model, from logged transitions.

    Args:
        model: the robot as it should be. If it is an environment or its id, the log has its observations. If it is a model or
            its file, the log has positions, velocities and activations, and actions that last as long as those of `certify`.
        episodes: the log; ten thousand transitions are plenty.
        n_states: number of transitions, drawn from the log, that are compared.
        seed: seed of the draw.
    Raises:
        ValueError: observations or actions have another size; too few transitions are usable; the log has jumps, or velocities
            that are no rates of its positions; or the observation lacks the simulator's state, or the steps are not the
            simulator's alone.
    """
    with open_simulator(model) as simulator:
        if isinstance(simulator, ObservedSimulator):
            raise ValueError(f"{simulator.name} has no MuJoCo model, whose parts could be told apart")
        rng = np.random.default_rng(seed)
        log = _Log(simulator)
        own_states, own_actions, own_after = log.simulate(OWN_TRANSITIONS, rng)
        states, actions, after = log.read(episodes, n_states, rng)
        nominal = partial(_velocities_after, simulator.model, log.substeps)
        before = states[:, 1 + simulator.model.nq : 1 + simulator.model.nq + simulator.model.nv]
        units = (after - before).std(0) + 1e-12 * np.abs(after).max() + 1e-300
        floor_residual = (own_after - nominal(own_states, own_actions)) / units
        predicted = nominal(states, actions)
        residual = (after - predicted) / units
        usable = np.isfinite(residual).all(1)
        size = np.linalg.norm(((after - before) / units)[usable], axis=1)
        floor_size = np.linalg.norm(floor_residual[np.isfinite(floor_residual).all(1)], axis=1)
        floor = float(np.quantile(floor_size, 0.9)) + 1e-12
        fit = _Fit(simulator.model, log.substeps, states[usable], actions[usable], after[usable], units, floor)
        median_residual = float(np.median(np.linalg.norm(residual[usable], axis=1)))
        parameters = list(_parameters(simulator.model)) if median_residual > floor else []
        suspects = fit.rank_suspects(parameters, predicted[usable]) if parameters else []
        return FaultReport(
            simulator.name,
            int(usable.sum()),
            median_residual / float(np.median(size)),
            float(np.median(np.linalg.norm(floor_residual, axis=1)) / np.median(size)),
            tuple(suspects),
        )


@dataclass(frozen=True)
class _Parameter:
    """A parameter of a part: the entries `index` of the model's array `field`; see `Suspect` for `unit`."""

    part: str
    name: str
    field: str
    index: tuple[int, ...]
    unit: float

    def apply(self, model: mujoco.MjModel, change: float) -> mujoco.MjModel:
        """A copy of the model with this change of the parameter."""
        changed = copy.deepcopy(model)
        array = getattr(changed, self.field)
        if self.field == "body_mass":
            array[self.index[0]] *= 1 + change
            changed.body_inertia[self.index[0]] *= 1 + change
            mujoco.mj_setConst(changed, mujoco.MjData(changed))
        elif self.field.startswith("actuator"):
            actuator = changed.actuator(self.index[0])
            if self.name == "gains":
                is_muscle = actuator.biastype[0] == BIAS.MUSCLE
                force = slice(2, 4) if is_muscle else slice(None)  # the peak force, and the scale of an automatic one
                actuator.gainprm[force] *= 1 + change
                actuator.biasprm[force] *= 1 + change
            else:
                actuator.gear[:] *= 1 + change
        else:
            array[list(self.index)] += change * self.unit
        return changed


def _parameters(model: mujoco.MjModel) -> Iterator[_Parameter]:
    """All parameters that may be at fault: of motors, of bodies that move, and of joints."""
    for i in range(len(model.actuator_trntype)):
        servo = model.actuator_biastype[i] != BIAS.NONE
        name, field = ("gains", "actuator_gainprm") if servo else ("gear", "actuator_gear")
        yield _Parameter(name_of(model, "actuator", i), name, field, (i,), 1.0)
    for i in range(1, model.nbody):
        if model.body_mass[i] > 0 and model.body_weldid[i]:
            yield _Parameter(name_of(model, "body", i), "mass", "body_mass", (i,), float(model.body_mass[i]))
    torques = _motor_torques(model)
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


def _motor_torques(model: mujoco.MjModel) -> NDArray[np.float64]:
    """Sum of the largest torques of the motors that drive each degree of freedom, (nv,): a scale for friction."""
    torques = np.zeros(model.nv)
    for i in range(len(model.actuator_trntype)):
        if model.actuator_trntype[i] in (TRANSMISSION.JOINT, TRANSMISSION.JOINTINPARENT):
            actuator = model.actuator(i)
            high = np.abs(actuator.ctrlrange).max() or 1.0
            gain = abs(actuator.gainprm[0]) or 1.0
            torques[model.jnt_dofadr[actuator.trnid[0]]] += abs(actuator.gear[0]) * high * gain
    return torques


def _velocities_after(model: mujoco.MjModel, substeps: int, states: NDArray, actions: NDArray) -> NDArray[np.float64]:
    """Velocities after one step of a model from each state, (n, nv); NaN where the step is unstable."""
    control = np.ascontiguousarray(np.repeat(actions[:, None], substeps, axis=1))
    path, _ = rollout.rollout(model, mujoco.MjData(model), np.ascontiguousarray(states), control)
    after = path[:, -1, 1 + model.nq : 1 + model.nq + model.nv]
    return np.where(np.abs(after).max(1, keepdims=True) < 1e8, after, np.nan)


@dataclass(frozen=True)
class _Fit:
    """Fits of changes of parameters to the residuals of transitions."""

    model: mujoco.MjModel
    substeps: int
    states: NDArray[np.float64]
    actions: NDArray[np.float64]
    after: NDArray[np.float64]
    units: NDArray[np.float64]
    floor: float

    def residual(self, parameter: _Parameter, change: float) -> NDArray[np.float64]:
        model = parameter.apply(self.model, change)
        return (self.after - _velocities_after(model, self.substeps, self.states, self.actions)) / self.units

    def rank_suspects(self, parameters: Sequence[_Parameter], predicted: NDArray) -> list[Suspect]:
        """Fit all parameters to some transitions, and refine those that explain most by all transitions and the model."""
        chosen = np.unique(np.linspace(0, len(self.states) - 1, SCREENING_TRANSITIONS).astype(int))
        screening = replace(self, states=self.states[chosen], actions=self.actions[chosen], after=self.after[chosen])
        r = (self.after - predicted) / self.units
        fits = {p: screening._solve(r[chosen], r[chosen], screening._slope(p, r[chosen])) for p in parameters}
        for p in sorted(fits, key=lambda p: -fits[p][2])[:MAX_REFINED_PARAMETERS]:
            slope = self._slope(p, r)
            fits[p] = self._refine(p, r, slope, self._solve(r, r, slope))
            if fits[p][2] > SUFFICIENT_SHARE:
                break
        return [
            Suspect(p.part, p.name, fits[p][0], p.unit, *fits[p][1:]) for p in sorted(fits, key=lambda p: -fits[p][2])
        ]

    def _slope(self, parameter: _Parameter, r: NDArray) -> NDArray[np.float64]:
        """c_k of each transition, by a finite difference, (n, nv)."""
        return np.nan_to_num((r - self.residual(parameter, DERIVATIVE_STEP)) / DERIVATIVE_STEP)

    def _solve(self, r: NDArray, remaining: NDArray, slope: NDArray, change: float = 0.0) -> tuple[float, float, float]:
        """(change, its standard error, share) of a linear fit to the residual that remains at a first change."""
        square = (slope**2).sum(1)
        weight = np.sqrt(square / ((r**2).sum(1) + self.floor**2))
        affected = square > 1e-16 * square.max(initial=0.0)
        if affected.sum() < 10:
            return change, np.inf, 0.0
        weight, square = weight[affected], square[affected]
        steps = (slope * remaining).sum(1)[affected] / square
        step = _weighted_median(steps, weight)
        # For normal errors, 1.4826 turns a median deviation into a standard one, and 1.2533 a mean's error into a median's.
        spread = 1.4826 * _weighted_median(np.abs(steps - step), weight) + self.floor / np.sqrt(np.median(square))
        count = weight.sum() ** 2 / (weight**2).sum()
        return change + step, float(1.2533 * spread / np.sqrt(count)), self._share(r, remaining - slope * step)

    def _share(self, r: NDArray, remaining: NDArray) -> float:
        return float(np.clip(1 - (remaining**2).sum(1) / ((r**2).sum(1) + self.floor**2), 0, None).mean())

    def _refine(
        self, parameter: _Parameter, r: NDArray, slope: NDArray, fit: tuple[float, float, float]
    ) -> tuple[float, float, float]:
        """The best of a few Gauss-Newton steps, whose shares are those of the changed model."""
        best, change = fit, fit[0]
        best_share = -1.0
        for _ in range(MAX_ITERATIONS):
            change = float(np.clip(change, LEAST_CHANGE.get(parameter.name, -1.0), 20.0))
            remaining = self.residual(parameter, change)
            if not np.isfinite(remaining).all():
                remaining = np.where(np.isfinite(remaining), remaining, r)
            share = self._share(r, remaining)
            if abs(change) > LARGE_CHANGE:
                slope = np.nan_to_num(
                    (remaining - self.residual(parameter, change + DERIVATIVE_STEP)) / DERIVATIVE_STEP
                )
            change_next, error, _ = self._solve(r, remaining, slope, change)
            if share > best_share:
                best_share, best = share, (change, error, share)
            if abs(change_next - change) < 1e-6 or best_share > SUFFICIENT_SHARE:
                break
            change = change_next
        return best


class _Log:
    """Map from logged observations to a simulator's states; a logged step is ``substeps`` steps of the simulator."""

    def __init__(self, simulator: Simulator):
        self.simulator, self.entries = simulator, state_entries(simulator)
        if isinstance(simulator, BareSimulator):
            self.substeps = simulator.substeps
            return
        model, velocities = simulator.model, self.entries.velocities
        if (velocities < 0).any() or model.na:
            missing = [name_of(model, "joint", int(model.dof_jntid[i])) for i in np.flatnonzero(velocities < 0)]
            lacks = f"the velocity of {missing[0]}" if missing else "its actuators' activations"
            raise ValueError(f"{simulator.name}: the observation lacks {lacks}; log all of both, and give the model")
        self.substeps = simulator.env.unwrapped.frame_skip

    def states(self, observations: NDArray) -> NDArray[np.float64]:
        """Full physics states, (n, 1 + nq + nv + na); positions that are not observed are the model's `qpos0`."""
        model = self.simulator.model
        positions, velocities, activations, *_ = self.entries
        q = np.tile(model.qpos0, (len(observations), 1))
        q[:, positions >= 0] = observations[:, positions[positions >= 0]]
        parts = [np.zeros((len(q), 1)), q, observations[:, velocities], observations[:, activations]]
        return np.concatenate(parts, axis=1)

    def read(
        self, episodes: Sequence[Episode], count: int, rng: np.random.Generator
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
        """(states, actions, velocities after them) of transitions drawn from the log."""
        nu = self.simulator.model.nu
        for array, sizes, needed in (
            ("observations", {e.observations.shape[1] for e in episodes}, self.entries.size),
            ("actions", {e.actions.shape[1] for e in episodes}, nu),
        ):
            if sizes != {needed}:
                raise ValueError(
                    f"{self.simulator.name}: the log's {array} have {', '.join(map(str, sorted(sizes))) or 'no'} entries, and "
                    f"those of the robot {needed}; give the robot that it is of"
                )
        before = np.concatenate([e.observations[:-1] for e in episodes])
        after = np.concatenate([e.observations[1:] for e in episodes])[:, self.entries.velocities]
        actions = np.concatenate([e.actions for e in episodes])
        limit = self.entries.limit
        unclipped = (np.abs(before[:, self.entries.velocities]) < limit).all(1) & (np.abs(after) < limit).all(1)
        usable = np.flatnonzero(unclipped & np.isfinite(before).all(1) & np.isfinite(after).all(1))
        if len(usable) < 50:
            raise ValueError(
                f"{self.simulator.name}: {len(usable)} of {len(before)} transitions can be used (velocities that are clipped "
                "say nothing); at least 50 are needed"
            )
        check_log("the log", episodes, self.simulator)
        chosen = np.sort(rng.choice(usable, min(count, len(usable)), replace=False))
        return self.states(before[chosen]), actions[chosen], after[chosen]

    def simulate(self, count: int, rng: np.random.Generator) -> tuple[NDArray, NDArray, NDArray]:
        """Transitions of the simulator itself, as a log would have them.

        Raises:
            ValueError: the model's steps from the logged states are not the simulator's.
        """
        simulator, model = self.simulator, self.simulator.model
        is_bare, (low, high) = isinstance(simulator, BareSimulator), simulator.action_bounds

        def observe() -> NDArray[np.float64]:
            return np.concatenate(simulator.coordinates()) if is_bare else simulator.observe()

        before: list[NDArray] = []
        actions: list[NDArray] = []
        after: list[NDArray] = []
        while len(before) < count:
            simulator.reset(rng)
            for _ in range(50):
                observation = observe()
                action = rng.uniform(low, high)
                _, _, terminated = simulator.advance(action)
                velocities, limit = observe()[self.entries.velocities], self.entries.limit
                if (np.abs(observation[self.entries.velocities]) < limit).all() and (np.abs(velocities) < limit).all():
                    before.append(observation)
                    actions.append(action)
                    after.append(velocities)
                if terminated:
                    break
        transitions = self.states(np.array(before)), np.array(actions), np.array(after)
        predicted = _velocities_after(model, self.substeps, transitions[0], transitions[1])
        change = np.abs(transitions[2] - np.array(before)[:, self.entries.velocities]).mean(0) + 1e-9
        gap = np.nanmedian(np.abs(transitions[2] - predicted) / change)
        if not gap < 1e-2:
            raise ValueError(
                f"{simulator.name}: its own steps differ from the model's by {gap:.2g}, so no log can be compared with them: "
                "the observation must have the simulator's positions and velocities, and the action its controls"
            )
        return transitions


def _weighted_median(values: NDArray, weights: NDArray) -> float:
    order = np.argsort(values)
    total = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(total, total[-1] / 2)])
