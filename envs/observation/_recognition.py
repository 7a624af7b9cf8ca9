"""Recognise the quantity that each entry of an environment's observation shows.

The observation is a function of `mjData`. It is read while `mjData` holds random numbers (consistent kinematics, arbitrary
forces). Every entry is compared with the known quantities (`_quantities`): it may be one of them, a multiple of one, or a sum
or difference of two, clipped or not. The result is checked in states that the simulator reaches. An entry that fails there, or
that no quantity explains, stays unexplained.

A column explains an entry if the entry is slope times column plus offset in all samples, except those at the entry's lowest and
highest value, where it may be clipped. If several columns explain an entry, the one is taken whose neighbours explain the
entry's neighbours, because observations are made of whole arrays.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from typing import Any, NamedTuple

import gymnasium as gym
import mujoco
import numpy as np
from gymnasium.envs.mujoco import MujocoEnv

from rppdyn.envs._model_symmetry import BALL, FREE, SLIDE, Quantity, phrase
from rppdyn.envs._simulator import Simulator, control_bounds, quiet_mujoco
from rppdyn.envs._spec import Entry
from rppdyn.envs._state import keep_state
from rppdyn.envs._wrappers import acting_wrappers, observation_function, without_passive
from rppdyn.envs.observation._quantities import quantities_of

RANDOM_SAMPLES = 48  # random contents of mjData
EPISODES = 3  # whose observations of one state are compared
SIMULATED_SAMPLES = 12  # simulated states in which the result is checked
MAX_SETTLING_STEPS = 20  # steps to such a state
MAX_LANDING_STEPS = 400  # the same where an entry did not vary, such as a flag of contact

# Arrays that positions and velocities alone don't determine. They are filled with random numbers of sizes up to 1000, which
# shows where an observation clips them.
_FREE_ARRAYS = (
    "ctrl", "act", "actuator_force", "actuator_velocity", "qacc", "qacc_smooth", "qacc_warmstart", "qfrc_actuator",
    "qfrc_constraint", "qfrc_passive", "qfrc_bias", "qfrc_applied", "qfrc_smooth", "cfrc_ext", "cfrc_int", "cacc",
    "xfrc_applied", "subtree_linvel", "subtree_angmom", "sensordata",
)  # fmt: skip

# Quantities whose sums and differences are tried: two places, two positions of joints, or two velocities.
_PLACES = ("xpos", "xipos", "geom_xpos", "site_xpos", "subtree_com")
_COORDINATES = ("qpos", "qvel")


@dataclass(frozen=True, eq=False)
class Observation:
    """An observation with the source of each entry.

    Args:
        name: name of the environment, for messages.
        model, data, observe: arguments of `recognise`.
        quantities: the known quantities, whose entries in order are the *columns*.
        sources: source of each entry in terms of columns, None if no quantity explains it.
    """

    name: str
    model: mujoco.MjModel
    data: mujoco.MjData
    observe: Callable[[], np.ndarray]
    quantities: tuple[Quantity, ...]
    sources: tuple[Source | None, ...]

    @cached_property
    def columns(self) -> tuple[Entry, ...]:
        """All entries of all quantities."""
        return tuple(entry for quantity in self.quantities for entry in quantity.entries)

    @cached_property
    def entries(self) -> tuple[Entry, ...]:
        """Name, joint and unit of each entry; multiples and sums are written out."""
        return tuple(self._entry(i) for i in range(len(self.sources)))

    @property
    def unexplained(self) -> tuple[int, ...]:
        """Entries that no known quantity explains."""
        return tuple(i for i, source in enumerate(self.sources) if source is None)

    @property
    def constant(self) -> tuple[int, ...]:
        """Entries that do not depend on the simulator's state."""
        return tuple(i for i, source in enumerate(self.sources) if source is not None and not source.terms)

    def read(self) -> np.ndarray:
        """The observation of the present contents of `data`, in float64."""
        return _read_vector(self.observe, self.name)[0]

    def describe(self, i: int) -> str:
        """An entry by number and name, for messages."""
        return f"entry {i} ({self.entries[i].name})"

    def _entry(self, i: int) -> Entry:
        source = self.sources[i]
        if source is None or not source.terms:
            return Entry(f"observation[{i}]")
        terms = sorted(source.terms, key=lambda term: term[1] < 0)  # positive terms first
        parts = [self.columns[column] for column, _ in terms]
        text = ""
        for column, c in terms:
            sign = ("- " if text else "-") if c < 0 else ("+ " if text else "")
            name = self.columns[column].name
            text = phrase(text, sign + (name if abs(c) == 1 else f"{abs(c):.4g} {name}"))
        if source.offset and len(parts) == 1 and parts[0].unit:
            text += f" {'-' if source.offset < 0 else '+'} {abs(source.offset):.4g}"
        unit = parts[0].unit if all(abs(c) == 1 for _, c in terms) else ""
        return Entry(text, parts[0].joint if len({part.joint for part in parts}) == 1 else "", unit)


def observation_of(env: gym.Env) -> Observation:
    """Recognise an environment's observation; the environment is left as it was, but for attributes that only a reset makes.

    Args:
        env: a Gymnasium MuJoCo environment with the method `_get_obs`, with or without wrappers.
    Raises:
        ValueError: another environment, an observation that is no vector or no function of the simulator's state (an entry is
            drawn at a reset), or a wrapper that adds to it.
    """
    base: Any = env.unwrapped
    spec = getattr(base, "spec", None)
    name = spec.id if spec else type(base).__name__
    if not isinstance(base, MujocoEnv) or not hasattr(base, "_get_obs"):
        raise ValueError(
            f"{name} is no Gymnasium MuJoCo environment with the method _get_obs; pass its model, data and observation "
            "function to rppdyn.envs.observation._recognition.recognise"
        )
    copied, model, data, episodes = without_passive(env), base.model, base.data, []
    observe = observation_function(copied)
    with keep_data(model, data), keep_state(base):
        start = copy.copy(data)
        for seed in range(EPISODES):
            copied.reset(seed=seed)
            base.model, base.data = model, data  # a reset may compile a new model
            mujoco.mj_copyData(data, model, start)
            mujoco.mj_kinematics(model, data)  # of places that the reset wrote into the model
            episodes.append(observe())
        attributes = dict(vars(base))
    vars(base).update({key: value for key, value in attributes.items() if key not in vars(base)})
    if acting := acting_wrappers(env):
        shape = _read_vector(observe, name, strict=False)[0].shape  # refuses a dictionary
        names = ", ".join(type(layer).__name__ for layer in acting)
        if env.observation_space.shape != shape:
            raise ValueError(
                f"{name} has observations of shape {env.observation_space.shape}, its simulator gives {shape}; take off the "
                f"wrapper that changes them ({names})"
            )
        with keep_state(base):
            Simulator(env).require_observed()
    observation = recognise(base.model, base.data, observe, name=name)
    count = len(observation.sources)
    if env.observation_space.shape != (count,):
        raise ValueError(
            f"{name} declares observations of shape {env.observation_space.shape} and gives {count} numbers"
        )
    if (drawn := np.flatnonzero(np.ptp(episodes, axis=0))).size:
        raise ValueError(
            f"{name}: resets draw {', '.join(f'observation[{i}]' for i in drawn)} outside of the simulator's state (a goal "
            "in an attribute, or a place in the model?), so no image is known; make it a joint or mocap body, or give a spec "
            "of your own, made with rppdyn.envs.mirror_spec or group_spec"
        )
    return observation


def recognise(
    model: mujoco.MjModel,
    data: mujoco.MjData,
    observe: Callable[[], np.ndarray],
    *,
    name: str = "the observation",
    strict: bool = True,
) -> Observation:
    """Find the source of each entry of an observation.

    Args:
        model, data: model and data of the simulator that `observe` reads; the data are left as they were.
        observe: function that returns the observation, a vector, of the present contents of `data`.
        name: name of the environment, for messages.
        strict: refuse entries that are not finite or no function of the simulator's state; otherwise they stay unexplained.
    Raises:
        ValueError: the observation is not a vector of finite numbers, or not a function of the simulator's state.
    """
    quantities = quantities_of(model)
    with keep_data(model, data):
        first, precision = _read_vector(observe, name, strict)
        unsteady = first != _read_vector(observe, name, strict)[0]  # also where the entry is nan
        if strict and unsteady.any():
            raise ValueError(
                f"{name} gives two different observations of one state (noise, running statistics?); take that off"
            )
        tolerance = np.sqrt(precision) / 10 if precision < 1e-10 else 100 * precision

        def sample() -> tuple[np.ndarray, np.ndarray]:
            observation, _ = _read_vector(observe, name, strict)
            return observation, np.concatenate([np.zeros(0), *(quantity.read(data) for quantity in quantities)])

        samples = [sample() for _ in _random_contents(model, data)]
        values, columns = (np.array(part) for part in zip(*samples, strict=True))
        unsteady |= ~np.isfinite(values).all(0)
        values[:, unsteady] = 0.0
        sources = _explain(values, columns, quantities, tolerance)
    with keep_data(model, data), quiet_mujoco():
        simulated = [sample() for _ in simulate_states(model, data, SIMULATED_SAMPLES)]
        if not _varies(values, tolerance).all():
            simulated += [sample() for _ in simulate_states(model, data, SIMULATED_SAMPLES, landed=True)]
    for i, source in enumerate(sources):
        if unsteady[i]:
            sources[i] = None
        elif source is not None:
            expected = np.array([_evaluate(source, row) for _, row in simulated])
            observed = np.array([observation[i] for observation, _ in simulated])
            # Rounding is relative to the size of the terms, not of their sum.
            size = max(abs(source.offset) + sum(abs(c * row[k]) for k, c in source.terms) for _, row in simulated)
            if not np.abs(observed - expected).max() <= 10 * tolerance * size:  # also if nan
                sources[i] = None
    return Observation(name, model, data, observe, quantities, tuple(sources))


class StateEntries(NamedTuple):
    """Indices of positions, velocities and activations in an observation; -1 for those that are not observed.

    Attributes:
        limit: bound at which the observation clips velocities; infinity if it doesn't.
        size: number of entries of the observation.
    """

    positions: np.ndarray
    velocities: np.ndarray
    activations: np.ndarray
    limit: float
    size: int


def state_entries(simulator: Simulator) -> StateEntries:
    """Find positions and velocities in an observation, whose other entries may be noisy; a bare model observes its state."""
    model = simulator.model
    if not simulator.is_observed:
        size = model.nq + model.nv + model.na
        positions, velocities, activations = np.split(np.arange(size), [model.nq, model.nq + model.nv])
        return StateEntries(positions, velocities, activations, np.inf, size)
    simulator.reset(np.random.default_rng(0))
    observation = recognise(model, simulator.data, simulator.observe, name=simulator.name, strict=False)
    sources = observation.sources
    place: dict[int, int] = {}
    for i, source in enumerate(sources):
        if source is not None and not source.offset and [c for _, c in source.terms] == [1.0]:
            place.setdefault(source.terms[0][0], i)
    keys = [quantity.key for quantity in observation.quantities for _ in quantity.entries]
    positions, velocities = (
        np.array([place.get(column, -1) for column, key in enumerate(keys) if key == name], np.int64)
        for name in ("qpos", "qvel")
    )
    limit = min((source.high for i in velocities if i >= 0 and (source := sources[i]) is not None), default=np.inf)
    return StateEntries(positions, velocities, np.empty(0, int), limit, len(sources))


# -- contents of mjData -----------------------------------------------------------------------------------------------


@contextmanager
def keep_data(model: mujoco.MjModel, data: mujoco.MjData) -> Iterator[None]:
    """Restore all contents of the data at the end of the context."""
    before = mujoco.MjData(model)
    mujoco.mj_copyData(before, model, data)
    try:
        yield
    finally:
        mujoco.mj_copyData(data, model, before)


def _random_contents(model: mujoco.MjModel, data: mujoco.MjData) -> Iterator[None]:
    """Fill the data with random contents, `RANDOM_SAMPLES` times."""
    rng = np.random.default_rng(0)

    def numbers(shape, smallest, largest):
        return rng.choice([-1.0, 1.0], shape) * 10 ** rng.uniform(smallest, largest, shape)

    limited = model.jnt_limited.astype(bool)
    slide = model.jnt_type == SLIDE
    low = np.where(limited, model.jnt_range[:, 0], np.where(slide, -2.0, -np.pi))
    high = np.where(limited, model.jnt_range[:, 1], np.where(slide, 2.0, np.pi))
    for _ in range(RANDOM_SAMPLES):
        data.qvel[:] = numbers(model.nv, -1, 2)
        data.mocap_pos[:] = rng.normal(size=(model.nmocap, 3))
        data.mocap_quat[:] = _random_orientations(rng, model.nmocap)
        for j, adr in enumerate(model.jnt_qposadr):
            if model.jnt_type[j] == FREE:
                data.qpos[adr : adr + 3] = rng.normal(size=3)
                data.qpos[adr + 3 : adr + 7] = _random_orientations(rng, 1)[0]
            elif model.jnt_type[j] == BALL:
                data.qpos[adr : adr + 4] = _random_orientations(rng, 1)[0]
            else:
                data.qpos[adr] = rng.uniform(low[j], high[j])
        mujoco.mj_kinematics(model, data)
        mujoco.mj_comPos(model, data)
        mujoco.mj_comVel(model, data)
        for key in _FREE_ARRAYS:
            array = getattr(data, key)
            array[:] = numbers(array.shape, -2, 3)
        yield


def _random_orientations(rng: np.random.Generator, n: int) -> np.ndarray:
    """Random unit quaternions with w > 0, (n, 4)."""
    q = rng.normal(size=(n, 4))
    return q * np.sign(q[:, :1]) / np.linalg.norm(q, axis=1, keepdims=True)


def simulate_states(model: mujoco.MjModel, data: mujoco.MjData, n: int, landed: bool = False) -> Iterator[None]:
    """Bring the data into n states near the present one, each after a few steps of random controls; many if `landed`.

    All derived quantities are computed, contact forces on bodies included.
    """
    rng = np.random.default_rng(1)
    start = mujoco.MjData(model)
    mujoco.mj_copyData(start, model, data)
    low, high = control_bounds(model)
    for _ in range(n):
        mujoco.mj_copyData(data, model, start)
        mujoco.mj_integratePos(model, data.qpos, rng.normal(scale=0.1, size=model.nv), 1.0)
        data.qvel[:] = rng.normal(scale=0.5, size=model.nv)
        data.ctrl[:] = rng.uniform(low, high)
        mujoco.mj_step(model, data, int(rng.integers(1, MAX_LANDING_STEPS if landed else MAX_SETTLING_STEPS)))
        if not (np.isfinite(data.qpos).all() and np.isfinite(data.qvel).all()):  # the simulation is unstable here
            mujoco.mj_copyData(data, model, start)
        compute_derived(model, data)
        yield


def compute_derived(model: mujoco.MjModel, data: mujoco.MjData) -> None:
    """Compute all quantities that MuJoCo derives from the present state."""
    mujoco.mj_forward(model, data)
    mujoco.mj_rnePostConstraint(model, data)
    mujoco.mj_subtreeVel(model, data)


# -- reading and comparing --------------------------------------------------------------------------------------------


def _read_vector(observe: Callable[[], np.ndarray], name: str, strict: bool = True) -> tuple[np.ndarray, float]:
    """(observation in float64, machine epsilon of its own type)."""
    values = observe()
    if isinstance(values, dict):
        raise ValueError(f"{name} is a dictionary of {', '.join(map(str, values))}; flatten it to a vector")
    values = np.asarray(values)
    is_vector = values.ndim == 1 and np.issubdtype(values.dtype, np.number)
    if not is_vector or (strict and not np.isfinite(values).all()):
        raise ValueError(f"{name} gives {values.dtype} of shape {values.shape}; it must be a vector of finite numbers")
    precision = np.finfo(values.dtype).eps if np.issubdtype(values.dtype, np.floating) else np.finfo(float).eps
    return values.astype(np.float64), float(precision)


def _explain(
    values: np.ndarray, columns: np.ndarray, quantities: tuple[Quantity, ...], tolerance: float
) -> list[Source | None]:
    sources: list[Source | None] = [None] * values.shape[1]
    for candidates in _candidates(quantities, columns):
        unexplained = np.array([source is None for source in sources])
        if not unexplained.any():
            break
        for i, source in explain(values, candidates, unexplained, tolerance).items():
            sources[i] = source
    for i, known in enumerate(sources):
        if known is None and np.ptp(values[:, i]) == 0:
            sources[i] = Source((), float(values[0, i]))
    return sources


def _candidates(quantities: tuple[Quantity, ...], columns: np.ndarray) -> Iterator[Columns]:
    """Candidate columns: the quantities, then their multiples, then sums and differences of two."""
    sizes = [len(quantity.entries) for quantity in quantities]
    first = dict(zip((quantity.key for quantity in quantities), np.cumsum([0, *sizes]), strict=False))
    starts = np.zeros(sum(sizes), dtype=bool)
    starts[[first[quantity.key] for quantity in quantities]] = True
    single = tuple(((j, 1.0),) for j in range(sum(sizes)))
    yield Columns(columns, single, starts, scaled=False)
    yield Columns(columns, single, starts, scaled=True)

    size = dict(zip((quantity.key for quantity in quantities), sizes, strict=True))
    places = [range(j, j + 3) for key in _PLACES if key in first for j in range(first[key], first[key] + size[key], 3)]
    coordinates = [[range(j, j + 1) for j in range(first[key], first[key] + size[key])] for key in _COORDINATES]
    pairs = [pair for group in (places, *coordinates) for pair in combinations(group, 2)]
    terms = tuple(((a, 1.0), (b, sign)) for sign in (-1.0, 1.0) for p, q in pairs for a, b in zip(p, q, strict=True))
    starts = np.array([k == 0 for _ in range(2) for p, _ in pairs for k in range(len(p))], dtype=bool)
    # Every column of this last table is the sum or difference of columns a and b.
    a, b, sign = np.array([(a, b, sign) for (a, _), (b, sign) in terms]).reshape(-1, 3).T
    yield Columns(columns[:, a.astype(int)] + sign * columns[:, b.astype(int)], terms, starts, scaled=True)


def _evaluate(source: Source, columns: np.ndarray) -> float:
    value = source.offset + sum(c * columns[column] for column, c in source.terms)
    return float(np.clip(value, source.low, source.high))


# -- explaining entries by columns, from their values in samples ---------------------------------------------------------------


MIN_AGREEING_SAMPLES = 8  # samples not at an entry's bounds, in which it must agree with a column


class Source(NamedTuple):
    """The source of an entry: sum of coefficient times column over terms (column, coefficient), plus offset, clipped."""

    terms: tuple[tuple[int, float], ...]
    offset: float = 0.0
    low: float = -np.inf
    high: float = np.inf

    @property
    def is_clipped(self) -> bool:
        """True if the entry is clipped on either side."""
        return np.isfinite(self.low) or np.isfinite(self.high)


@dataclass(frozen=True, eq=False)
class Columns:
    """Columns that may explain entries.

    Args:
        values: their values over n samples, (n, m).
        terms: terms of the source that each column stands for.
        starts: mask of the columns that begin a block, such as an array, (m,).
        scaled: an entry may be slope times the column plus an offset, instead of the column itself.
    """

    values: np.ndarray
    terms: tuple[tuple[tuple[int, float], ...], ...]
    starts: np.ndarray
    scaled: bool


def explain(entries: np.ndarray, candidates: Columns, unexplained: np.ndarray, tolerance: float) -> dict[int, Source]:
    """Find sources of entries from their values (n, d) over n samples; those that no candidate explains are left out.

    Args:
        unexplained: mask of the entries to explain, (d,). An entry that never varies is explained by its neighbours only.
        tolerance: largest difference, relative to the largest value of a column.
    """
    d = entries.shape[1]
    varies = _varies(entries, tolerance)
    explains = np.zeros((d, candidates.values.shape[1]), dtype=bool)
    for i in np.flatnonzero(unexplained):
        explains[i] = _match_columns(entries[:, i], bool(varies[i]), candidates, tolerance)
    score = _run_lengths(explains, varies, candidates.starts)
    sources = {}
    for i in np.flatnonzero(score.max(1, initial=0) > 0):
        j = int(score[i].argmax())  # the first of equals: candidates are in order of preference
        sources[int(i)] = _fit_source(entries[:, i], bool(varies[i]), candidates, j, tolerance)
    return sources


def _varies(values: np.ndarray, tolerance: float) -> np.ndarray:
    return np.ptp(values, axis=0) > tolerance * np.abs(values).max(0)


def _match_columns(y: np.ndarray, varies: bool, candidates: Columns, tolerance: float) -> np.ndarray:
    """Mask of the columns that explain y, (m,)."""
    X = candidates.values
    if not varies:
        constant = ~_varies(X, tolerance)
        return constant if candidates.scaled else constant & (np.abs(X[0] - y[0]) <= tolerance * (1 + np.abs(y[0])))
    free = (y > y.min()) & (y < y.max())
    if free.sum() < MIN_AGREEING_SAMPLES:
        return np.zeros(X.shape[1], dtype=bool)
    if not candidates.scaled:
        first = np.flatnonzero(free)[:2]  # two samples rule out nearly every column
        possible = (np.abs(y[first, None] - X[first]) <= tolerance * np.abs(X).max(0)).all(0)
    else:
        possible = _varies(X[free], tolerance)
    columns = np.flatnonzero(possible)
    slope, offset = _fit_lines(y[free], X[np.ix_(free, columns)]) if candidates.scaled else (1.0, 0.0)
    line = slope * X[:, columns] + offset
    scale = np.abs(slope) * np.abs(X[:, columns]).max(0)
    agrees = np.abs(y[:, None] - line) <= tolerance * scale
    clipped = (y[:, None] == y.max()) & (line > y[:, None]) | (y[:, None] == y.min()) & (line < y[:, None])
    possible[columns] = (agrees | clipped).all(0)
    return possible


def _fit_lines(y: np.ndarray, X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Slopes and offsets of the least-squares lines y = slope x + offset for each column x of X."""
    centred = X - X.mean(0)
    slope = (y - y.mean()) @ centred / (centred**2).sum(0)
    return slope, y.mean() - slope * X.mean(0)


def _run_lengths(explains: np.ndarray, varies: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """For entry i and column j, the number of varying entries i + k that columns j + k of one block explain in a row."""
    weight = varies.astype(float)
    forward, backward = np.zeros(explains.shape), np.zeros(explains.shape)
    d = len(explains)
    for i in range(d):
        backward[i] = weight[i]
        if i > 0:
            backward[i, 1:] += np.where(starts[1:], 0.0, backward[i - 1, :-1])
        backward[i] *= explains[i]
    for i in reversed(range(d)):
        if i < d - 1:
            forward[i, :-1] = np.where(starts[1:], 0.0, weight[i + 1] * explains[i + 1, 1:] + forward[i + 1, 1:])
        forward[i] *= explains[i]
    return backward + forward


def _fit_source(y: np.ndarray, varies: bool, candidates: Columns, j: int, tolerance: float) -> Source:
    x = candidates.values[:, j]
    if not varies:
        return Source(candidates.terms[j], float(y[0] - x[0]) if candidates.scaled else 0.0)
    free = (y > y.min()) & (y < y.max())
    slope, offset = 1.0, 0.0
    if candidates.scaled:
        digits = 6 if tolerance > 1e-7 else 9  # so that a slope of 0.0500000000001 is 0.05
        (slope,), (offset,) = (
            np.array([float(f"{v:.{digits}g}") for v in part]) for part in _fit_lines(y[free], x[free, None])
        )
        offset = offset if abs(offset) > tolerance * np.abs(y).max() else 0.0
    line, scale = slope * x + offset, tolerance * np.abs(slope * x).max()
    low = float(y.min()) if (line < y.min() - scale).any() else -np.inf
    high = float(y.max()) if (line > y.max() + scale).any() else np.inf
    return Source(tuple((column, c * float(slope)) for column, c in candidates.terms[j]), float(offset), low, high)
