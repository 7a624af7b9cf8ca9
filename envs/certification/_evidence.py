r"""Steps of a simulator from visited states, compared with steps from the images of these states.

The original states are stepped once for all generators; for each generator only the images are stepped.

A discrete generator acts on every state. A continuous one has a matrix A on each space. Elements :math:`\exp(t A)` are drawn
with t uniform over a period, and element i modulo `RANDOM_ELEMENTS` acts on state i. An environment's wrappers are tested by
the same steps, with and without each wrapper.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import gymnasium as gym
import mujoco
import numpy as np
from scipy.linalg import expm

from rppdyn.envs._model_symmetry import ModelSymmetry, finite_element
from rppdyn.envs._simulator import INTEGRATION, Outcome, Simulator, get_integration_state, quiet_mujoco
from rppdyn.envs._spec import SPACES, VERDICTS, Space, SymmetrySpec
from rppdyn.envs._state import keep_state
from rppdyn.envs._wrappers import step_wrappers
from rppdyn.envs.certification._certificate import EXACT_BELOW, Defect
from rppdyn.envs.derivation import derive
from rppdyn.envs.observation._action import set_image_state
from rppdyn.envs.observation._quantities import quantities_of

MIN_STATES = 20  # fewest states that have a 95th percentile
STRIDE = 10  # steps between sampled states; neighbours in time are nearly equal
REST_SHARE = 1e-4  # shorter steps, in units of the median step, count as this long; 1e-12 of the median still shows
ROUNDING_TOLERANCE = 1e-13  # smaller changes count as none
HORIZON = 100  # steps after which a rollout restarts, so that an odd episode is a small part of the states


def counted_features(space: Space) -> list[int]:
    """Indices of the features that the spec does not leave free."""
    return [i for i, entry in enumerate(space.features) if not entry.free]


def step_faults(s: Outcome, m: Outcome) -> np.ndarray:
    """The fault of the step from each state, or else from its image, (n,); "" where both are valid."""
    return np.where(s.fault == "", m.fault, s.fault)


def reward_defects(s: Outcome, m: Outcome) -> np.ndarray:
    """Differences of rewards of valid steps, (n,), in units of their spread, or of their size if they are constant."""
    return np.abs(m.reward - s.reward) / (np.std(s.reward) or np.sqrt(np.mean(s.reward**2)) or 1.0)


@dataclass(frozen=True)
class Comparison:
    """Differences of features between images and predictions, (n, f), and changes of the originals in the step, (n, f)."""

    names: tuple[str, ...]
    difference: np.ndarray
    moved: np.ndarray

    @classmethod
    def of_space(cls, elements: Elements, key: str, s: Outcome, m: Outcome) -> Comparison:
        """Compare, on one space, the step from images with the image of the step. Faulty steps are left out.

        Each difference is the larger one of before and after the step. Before it, images differ from predictions if the map
        makes no state of a state, for example a matrix that is no rotation.
        """
        space: Space = getattr(elements.spec, key)
        before, after = (space.encode(y) for y in (getattr(s, key), getattr(s, f"next_{key}")))
        first, second = (space.encode(y) for y in (getattr(m, key), getattr(m, f"next_{key}")))
        start, end = first - elements.image(key, before), second - elements.image(key, after)
        counted = counted_features(space)
        names = tuple(space.features[i].name for i in counted)
        worse = np.where(np.abs(start) > np.abs(end), start, end)
        valid = np.ix_(step_faults(s, m) == "", counted)
        return cls(names, worse[valid], (after - before)[valid])

    @classmethod
    def of_state(cls, elements: Elements, keys: Sequence[str], s: Outcome, m: Outcome) -> Comparison:
        """Compare on all spaces of a simulator's state."""
        spaces = [cls.of_space(elements, key, s, m) for key in keys]
        names = tuple(name for space in spaces for name in space.names)
        return cls(names, np.hstack([c.difference for c in spaces]), np.hstack([c.moved for c in spaces]))

    @property
    def relative(self) -> np.ndarray:
        """Length of each difference over the length of the step, (n,), with 0/0 = 0.

        Steps count as at least `REST_SHARE` of the median one, since the image of a state at rest may move by rounding.
        """
        a, b = np.linalg.norm(self.difference, axis=1), np.linalg.norm(self.moved, axis=1)
        floor = REST_SHARE * np.median(b[b > 0]) if b.any() else np.finfo(float).tiny
        return a / np.maximum(b, floor)

    @cached_property
    def components(self) -> dict[str, Defect]:
        """Defect of each feature over the states in which it changes, relative to the root mean square of its change.

        In a percentile over all states, a force that acts in one of a hundred would be lost. The defect of a feature that never
        changes, except by rounding, is its absolute difference.
        """
        components = {}
        for name, difference, moved in zip(self.names, np.abs(self.difference).T, self.moved.T, strict=True):
            active = (difference != 0) | (moved != 0)
            scale = np.sqrt(np.mean(moved[active] ** 2)) if np.abs(moved).max(initial=0) > ROUNDING_TOLERANCE else 1.0
            components[name] = (
                Defect.from_values(difference[active] / scale) if active.any() else Defect(0.0, 0.0, 0.0, 0.0)
            )
        return components

    @property
    def verdict(self) -> str:
        """Verdict by the 95th percentile; exact only if every feature is."""
        overall = Defect.from_values(self.relative).verdict
        if overall == "exact" and any(defect.verdict != "exact" for defect in self.components.values()):
            return "approximate"
        return overall


@dataclass(frozen=True)
class SimulatedSteps:
    """Visited states with random actions, and one step from each.

    Args:
        simulator: the simulator, in any state.
        states, actions: complete states, (n, .), and actions, (n, m).
        outcome: one step from each state.
    """

    simulator: Simulator
    states: np.ndarray
    actions: np.ndarray
    outcome: Outcome

    @classmethod
    def visit(cls, simulator: Simulator, n_states: int, rng: np.random.Generator) -> SimulatedSteps:
        """Roll out random actions and step from the visited states."""
        states, actions = simulator.rollout_states(n_states, rng, stride=STRIDE, horizon=HORIZON)
        return cls(simulator, states, actions, simulator.steps(states, actions))

    def subset(self, n: int) -> SimulatedSteps:
        """The steps from n evenly spaced states."""
        chosen = np.linspace(0, len(self.states) - 1, min(n, len(self.states))).astype(int)
        return SimulatedSteps(self.simulator, self.states[chosen], self.actions[chosen], self.outcome.at(chosen))

    def images(self, elements: Elements) -> Outcome:
        """One step from the image of each state under the image of its action."""
        actions = elements.transform("action", self.actions)
        return self.simulator.steps(self.simulator.mirror(elements, self.states), actions)

    def compare(self, elements: Elements, m: Outcome) -> tuple[Comparison, Comparison | None]:
        """(comparison of states, comparison of observations or None for a bare model)."""
        self.require_enough(step_faults(self.outcome, m))
        state = Comparison.of_state(elements, self.simulator.state_keys, self.outcome, m)
        return state, Comparison.of_space(elements, "obs", self.outcome, m) if self.simulator.is_observed else None

    def require_enough(self, fault: np.ndarray) -> None:
        """Refuse a verdict if too few steps are valid, given each step's fault or ""."""
        if (n := int(np.sum(fault == ""))) < min(MIN_STATES, len(fault)):
            kinds, counts = np.unique(fault[fault != ""], return_counts=True)
            raise ValueError(
                f"{self.simulator.name}: no verdict, for {n} of {len(fault)} steps are left to judge ({counts.max()} "
                f"{kinds[counts.argmax()]}); give it weaker controls (control_scale=0.1, "
                "--control-scale 0.1) or a shorter timestep, or take more states"
            )

    def verdict(self, elements: Elements, m: Outcome | None = None) -> str:
        """The worse verdict of state and observation; `m` are the images' steps, simulated if None."""
        m = self.images(elements) if m is None else m
        return max((c.verdict for c in self.compare(elements, m) if c), key=VERDICTS.index)


# -- action of group elements on many states -------------------------------------------------------------------------------


RANDOM_ELEMENTS = 16  # random elements of a continuous generator; each costs a matrix exponential


@dataclass(frozen=True)
class Elements:
    """Action of one generator's elements on each space of a spec.

    Args:
        spec: the spec on whose spaces they act.
        number: number of the generator, discrete ones first.
        generators: the generator's matrix on each space of the spec, (f, f).
        times: t of each element of a continuous generator; None for a discrete one, which is the only element.
        matrices: matrix of each element on each space, (f, f).
    """

    spec: SymmetrySpec
    number: int
    generators: dict[str, np.ndarray]
    times: tuple[float, ...] | None
    matrices: dict[str, tuple[np.ndarray, ...]]

    @classmethod
    def of_generator(cls, spec: SymmetrySpec, k: int, rng: np.random.Generator) -> Elements:
        """Elements of the spec's k-th generator, discrete ones first."""
        spaces = {key: space for key in SPACES if (space := getattr(spec, key)) is not None}
        generators = {key: s.generator(k) for key, s in spaces.items()}
        times = None
        if (j := k - len(spec.group.discrete_generators)) >= 0:
            times = tuple(rng.uniform(0, period(spec.group.lie_algebra[j].numpy()), RANDOM_ELEMENTS).tolist())
        return cls(spec, k, generators, times, {key: _element_matrices(m, times) for key, m in generators.items()})

    def with_generator(self, key: str, generator: np.ndarray) -> Elements:
        """A copy with another matrix of the generator on one space."""
        matrices = self.matrices | {key: _element_matrices(generator, self.times)}
        return replace(self, generators=self.generators | {key: generator}, matrices=matrices)

    def image(self, key: str, features: np.ndarray) -> np.ndarray:
        """Images of features (n, ..., f) of a space, row i under element i modulo their number."""
        matrices = self.matrices[key]
        images = np.empty_like(features)
        for i, matrix in enumerate(matrices):
            images[i :: len(matrices)] = features[i :: len(matrices)] @ matrix.T
        return images

    def transform(self, key: str, y: np.ndarray) -> np.ndarray:
        """Images of coordinates (n, ..., d) of a space."""
        space = getattr(self.spec, key)
        return space.decode(self.image(key, space.encode(y)))

    def mirror_mocap(self, model: mujoco.MjModel, data: mujoco.MjData, states: np.ndarray, images: np.ndarray) -> None:
        """Put mocap bodies of images of states (n, .) in place, by the derived symmetry with the same action.

        Raises:
            ValueError: no derived symmetry has the spec's action.
        """
        if (symmetry := derived_symmetries(model, self.spec)[self.number]) is None:
            raise ValueError(
                f"{self.spec.env_id}: the mocap bodies can't be mirrored, for no derived symmetry acts on velocities and "
                f"controls as {self.spec.generator_names[self.number]} does; make them bodies with joints, or correct the spec"
            )
        finite = [finite_element(symmetry, t) for t in self.times] if self.times else [symmetry]
        quantities, image = quantities_of(model), mujoco.MjData(model)
        for i, state in enumerate(states):
            mujoco.mj_setState(model, data, state, INTEGRATION)
            mujoco.mj_kinematics(model, data)
            set_image_state(model, quantities, data, image, finite[i % len(finite)])
            mujoco.mj_setState(model, data, images[i], INTEGRATION)
            data.mocap_pos[:], data.mocap_quat[:] = image.mocap_pos, image.mocap_quat
            images[i] = get_integration_state(model, data)


def _element_matrices(generator: np.ndarray, times: tuple[float, ...] | None) -> tuple[np.ndarray, ...]:
    return (generator,) if times is None else tuple(expm(t * generator) for t in times)


def period(A: np.ndarray) -> float:
    """Period of exp(t A), of its slowest rotation if there are several; 1 without rotations.

    >>> round(period(np.array([[0.0, -2.0], [2.0, 0.0]])), 6)
    3.141593
    """
    speeds = np.abs(np.linalg.eigvals(A).imag)
    speeds = speeds[speeds > 1e-9]
    return float(2 * np.pi / speeds.min()) if speeds.size else 1.0


def derived_symmetries(model: mujoco.MjModel, spec: SymmetrySpec) -> list[ModelSymmetry | None]:
    """The symmetry derived from a model that acts as each generator does on velocities and controls; None without one."""
    try:
        derived = derive(model).symmetries
    except ValueError:
        derived = ()
    n_discrete = len(spec.group.discrete_generators)
    spaces: list[tuple[Any, str]] = [(spec.qvel, "dofs"), (spec.action, "controls")][
        : 2 if spec.action.dim == model.nu else 1
    ]

    def acts_alike(s: ModelSymmetry, k: int) -> bool:
        pairs = [(p.generator(k), getattr(s, key)) for p, key in spaces]
        alike = (np.shape(own) == known.shape and np.allclose(own, known) for own, known in pairs)
        return s.is_continuous == (k >= n_discrete) and all(alike)

    return [next((s for s in derived if acts_alike(s, k)), None) for k in range(len(spec.generator_names))]


# -- wrappers ----------------------------------------------------------------------------------------------------------------


WRAPPER_STATES = 40  # states by which a wrapper is tested
MAX_DEFECT_RATIO = 10.0  # factor by which a wrapper may raise a defect; two samples of one defect differ by less
REWARD_WRAPPERS = gym.wrappers.NormalizeReward, gym.wrappers.TransformReward, gym.wrappers.ClipReward
"""Wrappers that map rewards alone, and so keep equal rewards equal."""


def require_symmetric_wrappers(env: gym.Env, spec: SymmetrySpec) -> None:
    """Refuse wrappers that break a symmetry; wrappers that only map observations are a part of the spec.

    Nothing is tested where the spec has no action on activations and the model has some.

    Raises:
        ValueError: a wrapper remembers earlier steps, draws at random, changes the shape of actions, or raises the defect of
            dynamics, rewards or terminations.
    """
    acting = [layer for layer in step_wrappers(env) if type(layer) not in REWARD_WRAPPERS]
    base: Any = env.unwrapped
    if not acting or spec.qpos is None or spec.qvel is None or (spec.act is None and base.model.na):
        return
    anyway = "or pass spec= to train with it all the same"
    try:
        inner, *simulators = (Simulator(each) for each in (base, *reversed(acting)))
    except ValueError as error:  # an observation of images, though a wrapper around may leave them out
        raise ValueError(f"{error}, {anyway}") from error
    with keep_state(base), quiet_mujoco():
        inner_defects = _defects(inner, spec)
        for layer, simulator in zip(reversed(acting), simulators, strict=True):
            name = type(layer).__name__
            if layer.action_space.shape != (spec.action.dim,):
                raise ValueError(
                    f"{spec.env_id}: its wrapper {name} changes the shape of actions; take it off, {anyway}"
                )
            try:
                simulator.require_memoryless()
            except ValueError as error:
                raise ValueError(f"{error}, {anyway}") from None
            defects = _defects(simulator, spec)
            for key, value in defects.items():
                if value > max(EXACT_BELOW, MAX_DEFECT_RATIO * inner_defects[key]):
                    raise ValueError(
                        f"{spec.env_id}: its wrapper {name} spoils the symmetry {key[0]}, whose {key[1]} then differ from "
                        f"their mirror images (by {value:.2g}); take it off, {anyway}"
                    )
            inner_defects = defects


def _defects(simulator: Simulator, spec: SymmetrySpec) -> dict[tuple[str, str], float]:
    """{(generator, "dynamics" | "rewards" | "terminations"): 95th percentile of the relative defect}."""
    evidence = SimulatedSteps.visit(simulator, WRAPPER_STATES, np.random.default_rng(0))
    s = evidence.outcome
    defects: dict[tuple[str, str], float] = {}
    for k, name in enumerate(spec.generator_names):
        elements = Elements.of_generator(spec, k, np.random.default_rng(0))
        m = evidence.images(elements)
        valid = step_faults(s, m) == ""
        values = {
            "dynamics": Comparison.of_state(elements, simulator.state_keys, s, m).relative,
            "rewards": reward_defects(s.at(valid), m.at(valid)),
            "terminations": (m.terminated != s.terminated)[valid].astype(float),
        }
        defects |= {(name, kind): float(np.quantile(v, 0.95)) if len(v) else 0.0 for kind, v in values.items()}
    return defects
