r"""Steps of a simulator from visited states, to be compared with those from their mirror images.

The original states are stepped once and serve every generator; for each generator only the images are stepped.

A discrete generator acts on every state. Of a continuous one, with matrix A on each space, elements :math:`\exp(t A)` are
drawn with t uniform over a period, and state i is carried by the element of number i modulo `RANDOM_ELEMENTS`.
Wrappers of an environment are judged by the same steps, with and without each of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import gymnasium as gym
import numpy as np
from scipy.linalg import expm

from rppdyn.envs.certification.certificate import EXACT_BELOW, Defect
from rppdyn.envs.simulator import Outcome, Simulator, quiet_mujoco
from rppdyn.envs.spec import SPACES, VERDICTS, Space, SymmetrySpec
from rppdyn.envs.state import capture_state, restore_state
from rppdyn.envs.wrappers import step_wrappers

MIN_STATES = 20  # states that have a 95th percentile
STRIDE = 10  # steps between sampled states, which would otherwise be nearly the same
REST_SHARE = 1e-4  # share of the median step below which a state rests; 1e-12 of the median still shows in a defect
ROUNDING = 1e-13  # change of a number that stays the same, as one of a matrix that a joint does not turn
HORIZON = 100  # steps after which a rollout starts again, so that one odd episode is a small part of the states

Tick = Callable[[int], None]


def ignore(n: int) -> None:
    """A tick that nobody watches."""


def counted_features(space: Space) -> list[int]:
    """Indices of the features that the spec does not leave free."""
    return [i for i, entry in enumerate(space.features) if not entry.free]


def faults(s: Outcome, m: Outcome) -> np.ndarray:
    """Why the step from each state or the one from its image is none of the dynamics, (n,); "" where both are."""
    return np.where(s.fault == "", m.fault, s.fault)


@dataclass(frozen=True)
class Comparison:
    """Differences between images and predictions, in features (n, f), and how far the originals moved in the step."""

    names: tuple[str, ...]
    difference: np.ndarray
    moved: np.ndarray

    @classmethod
    def of(cls, elements: Elements, key: str, s: Outcome, m: Outcome) -> Comparison:
        """Compare what one step from images gave with the images of what one step gave.

        The images themselves count too, the worse of before and after: a map whose image of a state is no state (a
        matrix that is no rotation, say) fails there. Faulty steps are left out.
        """
        space: Space = getattr(elements.spec, key)
        before, after = (space.encode(y) for y in (getattr(s, key), getattr(s, f"next_{key}")))
        first, second = (space.encode(y) for y in (getattr(m, key), getattr(m, f"next_{key}")))
        start, end = first - elements.image(key, before), second - elements.image(key, after)
        counted = counted_features(space)
        names = tuple(space.features[i].name for i in counted)
        worse = np.where(np.abs(start) > np.abs(end), start, end)
        judged = np.ix_(faults(s, m) == "", counted)
        return cls(names, worse[judged], (after - before)[judged])

    @classmethod
    def of_state(cls, elements: Elements, keys: Sequence[str], s: Outcome, m: Outcome) -> Comparison:
        """The spaces of a simulator's state, side by side."""
        each = [cls.of(elements, key, s, m) for key in keys]
        names = tuple(name for one in each for name in one.names)
        return cls(names, np.hstack([one.difference for one in each]), np.hstack([one.moved for one in each]))

    @property
    def relative(self) -> np.ndarray:
        """Length of each difference over that of the step, (n,); 0/0 is 0 (nothing moved, and so in the mirror).

        A step is taken to be at least `REST_SHARE` of the median one: the mirror of a state at rest may move by rounding.
        """
        a, b = np.linalg.norm(self.difference, axis=1), np.linalg.norm(self.moved, axis=1)
        floor = REST_SHARE * np.median(b[b > 0]) if b.any() else np.finfo(float).tiny
        return a / np.maximum(b, floor)

    @cached_property
    def components(self) -> dict[str, Defect]:
        """Defect of each feature over the states in which it changes, relative to the root mean square of its change.

        A force that acts in one state of a hundred would be lost in a percentile over all of them. A feature that never
        changes, but for rounding, has the defect of its value, zero if that is right too.
        """
        components = {}
        for name, difference, moved in zip(self.names, np.abs(self.difference).T, self.moved.T, strict=True):
            active = (difference != 0) | (moved != 0)
            scale = np.sqrt(np.mean(moved[active] ** 2)) if np.abs(moved).max(initial=0) > ROUNDING else 1.0
            components[name] = Defect.of(difference[active] / scale) if active.any() else Defect(0.0, 0.0, 0.0, 0.0)
        return components

    @property
    def verdict(self) -> str:
        """By the 95th percentile; exact only where every feature is."""
        overall = Defect.of(self.relative).verdict
        if overall == "exact" and any(defect.verdict != "exact" for defect in self.components.values()):
            return "approximate"
        return overall


@dataclass(frozen=True)
class SimulatedSteps:
    """Visited states with random actions, and one step from each.

    Args:
        simulator: stands where the work left it; states are complete, so that this does not matter.
        states, actions: (n, .) and (n, m).
        outcome: one step from each state.
    """

    simulator: Simulator
    states: np.ndarray
    actions: np.ndarray
    outcome: Outcome

    @classmethod
    def visit(
        cls, simulator: Simulator, n_states: int, rng: np.random.Generator, tick: Tick = ignore
    ) -> SimulatedSteps:
        """Roll out random actions and step from the visited states."""
        states, actions = simulator.rollout_states(n_states, rng, stride=STRIDE, horizon=HORIZON, tick=tick)
        return cls(simulator, states, actions, simulator.steps(states, actions, tick))

    def first(self, n: int) -> SimulatedSteps:
        """The part of it from n states, evenly spread."""
        chosen = np.linspace(0, len(self.states) - 1, min(n, len(self.states))).astype(int)
        return SimulatedSteps(self.simulator, self.states[chosen], self.actions[chosen], self.outcome.at(chosen))

    @property
    def state_keys(self) -> tuple[str, ...]:
        """The spaces of the simulator's state."""
        return self.simulator.state_keys

    def images(self, elements: Elements, tick: Tick = ignore) -> Outcome:
        """One step from the image of each state under the image of its action."""
        actions = elements.transform("action", self.actions)
        return self.simulator.steps(self.simulator.mirrored(elements, self.states), actions, tick)

    def compared(self, elements: Elements, m: Outcome) -> tuple[Comparison, Comparison | None]:
        """Comparisons of the simulator's state and of the observation, which a bare model lacks."""
        self.require_enough(faults(self.outcome, m))
        state = Comparison.of_state(elements, self.state_keys, self.outcome, m)
        return state, Comparison.of(elements, "obs", self.outcome, m) if self.simulator.is_observed else None

    def require_enough(self, fault: np.ndarray) -> None:
        """Refuse to judge by too few steps, given what is wrong with each."""
        if (n := int(np.sum(fault == ""))) < min(MIN_STATES, len(fault)):
            kinds, counts = np.unique(fault[fault != ""], return_counts=True)
            raise ValueError(
                f"{self.simulator.name}: no verdict, for {n} of {len(fault)} steps are left to judge ({counts.max()} "
                f"{kinds[counts.argmax()]}); give it weaker controls (control_scale=0.1, "
                "--control-scale 0.1) or a shorter timestep, or take more states"
            )

    def verdict(self, elements: Elements, m: Outcome | None = None) -> str:
        """The worse verdict of state and observation; `m`, the images' steps, are taken where they are not given."""
        m = self.images(elements) if m is None else m
        return max((c.verdict for c in self.compared(elements, m) if c), key=VERDICTS.index)


# -- group elements acting on many states at once ----------------------------------------------------------------------------


RANDOM_ELEMENTS = 16  # random elements of a continuous generator; one for each state would cost an exponential for each


@dataclass(frozen=True)
class Elements:
    """Action of one generator's elements on each space of a spec.

    Args:
        spec: whose spaces they act on.
        number: number of the generator, discrete ones counted first.
        generators: the generator's (f, f) matrix on each space that the spec has.
        times: t of each element of a continuous generator; None for a discrete one, which is its own only element.
        matrices: one (f, f) matrix per element, on each space.
    """

    spec: SymmetrySpec
    number: int
    generators: dict[str, np.ndarray]
    times: tuple[float, ...] | None
    matrices: dict[str, tuple[np.ndarray, ...]]

    @classmethod
    def of(cls, spec: SymmetrySpec, k: int, rng: np.random.Generator) -> Elements:
        """Elements of the spec's k-th generator, discrete ones counted first."""
        spaces = {key: space for key in SPACES if (space := getattr(spec, key)) is not None}
        generators = {key: np.array((*s.discrete_generators, *s.lie_algebra)[k]) for key, s in spaces.items()}
        times = None
        if (j := k - len(spec.group.discrete_generators)) >= 0:
            times = tuple(rng.uniform(0, period(spec.group.lie_algebra[j].numpy()), RANDOM_ELEMENTS).tolist())
        return cls(spec, k, generators, times, {key: _elements(m, times) for key, m in generators.items()})

    def changed(self, key: str, generator: np.ndarray) -> Elements:
        """The same but for the generator's matrix on one space."""
        matrices = self.matrices | {key: _elements(generator, self.times)}
        return replace(self, generators=self.generators | {key: generator}, matrices=matrices)

    def image(self, key: str, features: np.ndarray) -> np.ndarray:
        """Images of features (n, ..., f) of a space, row i under the element of number i modulo their number."""
        matrices = self.matrices[key]
        images = np.empty_like(features)
        for i, matrix in enumerate(matrices):
            images[i :: len(matrices)] = features[i :: len(matrices)] @ matrix.T
        return images

    def transform(self, key: str, y: np.ndarray) -> np.ndarray:
        """Images of coordinates (n, ..., d) of a space."""
        space = getattr(self.spec, key)
        return space.decode(self.image(key, space.encode(y)))


def _elements(generator: np.ndarray, times: tuple[float, ...] | None) -> tuple[np.ndarray, ...]:
    return (generator,) if times is None else tuple(expm(t * generator) for t in times)


def period(A: np.ndarray) -> float:
    """Period of exp(t A), or the slowest rotation's where there are several; 1 for a group that is no rotation.

    >>> round(period(np.array([[0.0, -2.0], [2.0, 0.0]])), 6)
    3.141593
    """
    speeds = np.abs(np.linalg.eigvals(A).imag)
    speeds = speeds[speeds > 1e-9]
    return float(2 * np.pi / speeds.min()) if speeds.size else 1.0


WRAPPER_STATES = 40
MAX_DEFECT_RATIO = 10.0  # by which a wrapper raises a defect without blame: samples of one defect differ by less
REWARD_WRAPPERS = gym.wrappers.NormalizeReward, gym.wrappers.TransformReward, gym.wrappers.ClipReward
"""Wrappers that scale rewards by themselves, and so keep what is the same in the mirror."""


def require_symmetric_wrappers(env: gym.Env, spec: SymmetrySpec) -> None:
    """Refuse wrappers that spoil a symmetry; those that only map observations are a part of the spec.

    Raises:
        ValueError: naming the wrapper that remembers earlier steps, draws at random, or makes mirror images of dynamics,
            rewards or terminations differ more than they do inside it.
    """
    acting = [layer for layer in step_wrappers(env) if type(layer) not in REWARD_WRAPPERS]
    if not acting or spec.qpos is None or spec.qvel is None:
        return
    remedy = "take it off, or pass spec= to train with it all the same"
    before = capture_state(env.unwrapped, strict=False)
    try:
        with quiet_mujoco():
            inside = _defects(Simulator(env.unwrapped), spec)
            for layer in reversed(acting):
                name = type(layer).__name__
                if layer.action_space.shape != (spec.action.dim,):
                    raise ValueError(f"{spec.env_id}: its wrapper {name} changes the shape of actions; {remedy}")
                simulator = Simulator(layer)
                try:
                    simulator.require_memoryless()
                except ValueError as error:
                    raise ValueError(f"{error}, or pass spec= to train with it all the same") from None
                defects = _defects(simulator, spec)
                for key, value in defects.items():
                    if value > max(EXACT_BELOW, MAX_DEFECT_RATIO * inside[key]):
                        raise ValueError(
                            f"{spec.env_id}: its wrapper {name} spoils the symmetry {key[0]}, whose {key[1]} then differ from "
                            f"their mirror images (by {value:.2g}); {remedy}"
                        )
                inside = defects
    finally:
        restore_state(env.unwrapped, before)


def _defects(simulator: Simulator, spec: SymmetrySpec) -> dict[tuple[str, str], float]:
    """The 95th percentile of each generator's relative defects, of states, rewards and terminations."""
    evidence = SimulatedSteps.visit(simulator, WRAPPER_STATES, np.random.default_rng(0))
    s = evidence.outcome
    defects: dict[tuple[str, str], float] = {}
    for k, name in enumerate(spec.generator_names):
        elements = Elements.of(spec, k, np.random.default_rng(0))
        m = evidence.images(elements)
        judged = faults(s, m) == ""
        values = {
            "dynamics": Comparison.of_state(elements, evidence.state_keys, s, m).relative,
            "rewards": np.abs(m.reward - s.reward)[judged] / (np.std(s.reward[judged]) or 1.0),
            "terminations": (m.terminated != s.terminated)[judged].astype(float),
        }
        defects |= {(name, kind): float(np.quantile(v, 0.95)) if len(v) else 0.0 for kind, v in values.items()}
    return defects
