r"""Certify a symmetry in the simulator, by steps from states and from their mirror images.

For states s that random actions reach, and random actions a, the defect of a group element g is

.. math:: |f(g s, g a) - g f(s, a)| \,/\, |f(s, a) - s|,

with f one step of the environment. Differences are taken between features, which don't depend on a quaternion's sign or a full
turn of an angle. Observations lack positions and clip velocities. The mirrored state is therefore built by the spec's action on
the simulator's positions, velocities and activations. Controls and the solver's warm start are mirrored too.

Data can't refute a wrong map whose images rollouts never visit, so the *support* of each map is reported too. Each feature y of
positions, velocities and activations is replaced by its *place* u among the values that independent rollouts visited. Within
their range it is the share of them below y; beyond it, the distance to the nearest is added in standard deviations,

.. math:: u(y) = F(y) + \max(0, y - y_{max}) / \sigma - \max(0, y_{min} - y) / \sigma .

Ranks keep a few violent states of a rollout from stretching the scale. An image counts as *visited* if its distance, in u, from
the nearest independent state is at most the 95th percentile of the visited states' own distances. If dynamics, resets and
policy are all symmetric, 95 % of the images are visited. If a map flips the sign of a knee that never straightens, the images
are several standard deviations away, and none is visited. The measure looks at single states and is lenient in many
dimensions. Support says whether data *could* refute a map, the defects say whether they do.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING

import gymnasium as gym
import mujoco
import numpy as np
from gymnasium.envs.mujoco import MujocoEnv
from scipy.spatial import cKDTree

from rppdyn.envs._catalogue import Source, open_source, symmetry_specs
from rppdyn.envs._simulator import BareSimulator, ObservedSimulator, Simulator, quiet_mujoco, tight_solver
from rppdyn.envs._spec import SymmetrySpec
from rppdyn.envs._state import keep_state
from rppdyn.envs.certification._certificate import (
    QUANTILE_LEVELS,
    Certificate,
    CertifiedShare,
    Defect,
    GeneratorReport,
    ResetTest,
    Support,
    certifiable_source,
    digests,
    find_certificate,
    save_certificate,
    share_of,
    spec_digest,
)
from rppdyn.envs.certification._evidence import (
    HORIZON,
    MIN_STATES,
    STRIDE,
    Comparison,
    Elements,
    SimulatedSteps,
    counted_features,
    derived_symmetries,
    reward_defects,
    step_faults,
)
from rppdyn.envs.terms._layout import CompiledTerms
from rppdyn.envs.terms._simulator import TermsSimulator
from rppdyn.runs.session import Progress

if TYPE_CHECKING:
    from stable_baselines3.common.vec_env import VecEnv

logger = logging.getLogger(__name__)

SOLVERS = ("stock", "tight")
PROGRESS_DELAY_SECONDS = 3.0  # shorter work shows no bar


def certify(
    env: Source | CompiledTerms,
    spec: SymmetrySpec | None = None,
    *,
    n_states: int = 400,
    n_resets: int = 2000,
    seed: int = 0,
    solver: str = "stock",
    control_scale: float = 1.0,
    progress: bool = False,
) -> Certificate:
    """Step the simulator from states and from their mirror images, and report the differences.

    Args:
        env: an environment's id; an environment, which is stepped through its wrappers and restored afterwards; an
            `mujoco.MjModel`; or the path of an MJCF or URDF file. Bare models have no observation, reward, termination or reset
            distribution. An environment without a MuJoCo model needs three methods: `simulator_state()`, whose entry "state" is
            the observation, `restore_simulator_state(data)` and `symmetry_spec(symmetry)`. A model with terms
            (`rppdyn.envs.compiled_terms`) is observed through them, with a random task.
        spec: the symmetry to test; by default that of `symmetry_spec`. For an environment or model that is none of Gymnasium's
            tasks, all other derived symmetries, exact or approximate, are then certified too (`Certificate.others`).
        n_states: number of states to step from.
        n_resets: number of resets for the test of their distribution; 2000 detect a shift by a sixth of its width.
        seed: seed of rollouts, actions, resets and elements of continuous groups.
        solver: "stock" is the model's; "tight" solves contact forces to rounding, which separates the solver's tolerance from a
            broken symmetry.
        control_scale: random actions are drawn from this share of their range, about its middle. Less than 1 suits a robot that
            falls over under full controls.
        progress: show a progress bar if the work takes longer than a few seconds.
    Returns:
        the certificate: defects of dynamics, observation, reward, termination and reset distribution for each generator.
    Raises:
        ValueError: no symmetry is found; the spec is for another observation, action or model, or has no action on qpos and
            qvel; a file can't be read; a wrapper remembers earlier steps or draws at random; or the simulation is so unstable
            that too few steps are left to judge.
    """
    if n_states < MIN_STATES:
        raise ValueError(f"n_states={n_states} is too few for a 95th percentile; use at least {MIN_STATES}")
    if n_resets < MIN_STATES:
        raise ValueError(f"n_resets={n_resets} is too few to compare distributions; use at least {MIN_STATES}")
    if not 0 < control_scale <= 1:
        raise ValueError(f"control_scale={control_scale} must be above 0 and at most 1, the whole range")
    if solver not in SOLVERS:
        raise ValueError(f"solver={solver!r} is unknown; use {' or '.join(map(repr, SOLVERS))}")
    if spec is None and isinstance(env, CompiledTerms):
        spec = env.spec
    specs, refused = ([spec], []) if spec is not None else symmetry_specs(env)
    with open_simulator(env) as simulator:
        simulator.control_scale = control_scale
        for spec in specs:
            check_spec(spec, simulator)
        if simulator.is_task:
            simulator.require_memoryless()
        model, environment = digests(simulator.env if simulator.is_task else simulator.model)
        with ExitStack() as stack:
            if solver == "tight" and not isinstance(simulator, ObservedSimulator):
                stack.enter_context(tight_solver(simulator.model))
            n_generators = sum(len(spec.generator_names) for spec in specs)
            total = 2 * STRIDE * n_states + (1 + n_generators) * (n_states + ROLLOUTS * ROLLOUT_STEPS)
            label = f"certify {specs[0].env_id}"
            bar = stack.enter_context(
                Progress(total, description=label, enabled=progress, delay=PROGRESS_DELAY_SECONDS)
            )
            simulator.tick = bar.advance
            examination = Examination(simulator, n_states, n_resets, seed)
            certificates = []
            for spec in specs:
                try:
                    reports = _make_reports(examination, spec)
                except ValueError as error:
                    refused.append(str(error))
                    continue
                certificates.append(
                    Certificate(
                        env_id=spec.env_id,
                        model_digest=model,
                        environment=environment,
                        spec_digest=spec_digest(spec),
                        n_states=n_states,
                        seed=seed,
                        solver=solver,
                        control_scale=control_scale,
                        mujoco=mujoco.__version__,
                        generators=reports,
                        wrappers=simulator.wrappers,
                    )
                )
    if not certificates:
        raise ValueError(refused[-1])
    return replace(certificates[0], others=tuple(certificates[1:]), refused=tuple(refused))


def _make_reports(examination: Examination, spec: SymmetrySpec) -> tuple[GeneratorReport, ...]:
    """A report on each generator, with the parameters of the model that deviate from it."""
    simulator = examination.evidence.simulator
    deviations: list[tuple[str, ...] | None] = [None] * len(spec.generator_names)
    if isinstance(simulator, TermsSimulator):
        deviations = [tuple(map(str, s.deviations)) for s in simulator.symmetries]
    elif not isinstance(simulator, ObservedSimulator):
        derived = derived_symmetries(simulator.model, spec)
        deviations = [None if s is None else tuple(map(str, s.deviations)) for s in derived]
    reports = []
    for k, names in enumerate(deviations):
        elements = Elements.of_generator(spec, k, np.random.default_rng((examination.seed, k)))
        reports.append(replace(examination.report(spec, k, elements), deviations=names))
    return tuple(reports)


@contextmanager
def open_simulator(env: Source | CompiledTerms) -> Iterator[Simulator]:
    """Open the simulator of an environment or model. An environment made from an id is closed, a user's own is restored.

    Raises:
        ValueError: an unknown environment, an unreadable file, or neither environment nor model.
    """
    with quiet_mujoco():
        if isinstance(env, CompiledTerms):
            yield TermsSimulator(env)
            return
        with open_source(env) as (system, name):
            if isinstance(system, mujoco.MjModel):
                yield BareSimulator(system, name)
                return
            has_own_state = not isinstance(system.unwrapped, MujocoEnv) and hasattr(system.unwrapped, "simulator_state")
            simulator = (ObservedSimulator if has_own_state else Simulator)(system)
            is_users_own = system is env or any(system is inner for inner in getattr(env, "envs", ()))
            with keep_state(system.unwrapped) if is_users_own else nullcontext():
                yield simulator


def check_spec(spec: SymmetrySpec, simulator: Simulator) -> None:
    """Check that a spec acts on a simulator's state and has its sizes.

    Raises:
        ValueError: the spec has no action on the state, or other numbers of entries.
    """
    lacking = [key for key in simulator.state_keys if getattr(spec, key) is None]
    if lacking:
        spaces = "act, the actuators' activations" if lacking == ["act"] else "qpos and qvel"
        raise ValueError(f"{spec.env_id}: the spec has no action on {spaces}; certify needs it (see mirror_spec)")
    through = f" through {', '.join(simulator.wrappers)}" if simulator.wrappers else ""
    for key, shape in simulator.sizes.items():
        if shape != (getattr(spec, key).dim,):
            raise ValueError(
                f"the spec of {spec.env_id} has {getattr(spec, key).dim} entries of {key}, the environment {shape}{through}; "
                "certify it with the environment it was written for"
            )


# -- the report on a generator -------------------------------------------------------------------------------------------------


ROLLOUTS = 12  # rollouts compared with their mirror images
ROLLOUT_STEPS = 50  # steps of each


class Examination:
    """Simulated steps that serve all generators; coordinates are positions, velocities and activations.

    Attributes:
        seed: seed of all random choices.
        evidence: visited states, and one step from each.
        starts: states (R, .) from which rollouts start.
        sequences: actions of the rollouts, (R, T, m).
        paths: coordinates along the rollouts.
        resets: coordinates after resets; None for a bare model.
        independent: coordinates of states that independent rollouts visited.
    """

    def __init__(self, simulator: Simulator, n_states: int, n_resets: int, seed: int):
        rng, self.seed = np.random.default_rng(seed), seed
        # A reset may draw the model or a target anew: none lies between the steps from states and from their images.
        states, actions = simulator.rollout_states(n_states, rng, stride=STRIDE, horizon=HORIZON)
        independent, _ = simulator.rollout_states(n_states, rng, stride=STRIDE, horizon=HORIZON)
        shape = min(ROLLOUTS, n_states), ROLLOUT_STEPS, actions.shape[1]
        self.sequences = rng.uniform(*simulator.action_bounds, shape)
        self.resets = simulator.reset_states(n_resets, rng) if simulator.is_task else None
        self.evidence = SimulatedSteps(simulator, states, actions, simulator.steps(states, actions))
        self.evidence.require_enough(self.evidence.outcome.fault)
        self.starts = self.evidence.subset(ROLLOUTS).states
        self.paths = simulator.trajectories(self.starts, self.sequences)
        self.independent = simulator.read(independent, *simulator.state_keys)

    def report(self, spec: SymmetrySpec, k: int, elements: Elements) -> GeneratorReport:
        """Report on the spec's k-th generator."""
        simulator = self.evidence.simulator
        s, m = self.evidence.outcome, self.evidence.images(elements)
        state, observation = self.evidence.compare(elements, m)
        fault = step_faults(s, m)
        s, m = s.at(fault == ""), m.at(fault == "")
        kinds, counts = np.unique(fault[fault != ""], return_counts=True)
        values = {"state": state.relative}
        components = dict(state.components)
        moved = dict(zip(state.names, np.any(state.moved, axis=0), strict=True))
        if observation is not None:
            values["observation"] = observation.relative
            moved |= dict(zip(observation.names, np.any(observation.moved, axis=0), strict=True))
            for name, defect in observation.components.items():
                # A coordinate that is both in the state and observed is listed once, with the larger defect.
                components[name] = max(defect, components.get(name, defect), key=lambda d: d.p95)
        if simulator.is_task:
            values["reward"] = reward_defects(s, m)
        visited = [getattr(self.evidence.outcome, key) for key in simulator.state_keys]
        features = self._features(elements, visited), self._features(elements, visited, image=True)
        independent = self._features(elements, self.independent)
        visits, *distances = measure_support(*features, independent, state.names)
        symmetry = spec.symmetries[k] if spec.symmetries else None
        quantiles = values | dict(zip(("visited", "images"), distances, strict=True))
        masks = {"contact": s.contact, "free": ~s.contact}
        quantiles |= {f"state {where}": state.relative[mask] for where, mask in masks.items() if mask.any()}
        defects = {name: Defect.from_values(v) for name, v in values.items()}
        entries = [e for key in (*simulator.state_keys, "obs") for e in getattr(spec, key).features if e.free]
        return GeneratorReport(
            name=spec.generator_names[k],
            expected=symmetry.verdict if symmetry else "",
            state=defects["state"],
            observation=defects.get("observation"),
            reward=defects.get("reward"),
            contact={name: Defect.from_values(v[s.contact]) for name, v in values.items() if s.contact.any()},
            free={name: Defect.from_values(v[~s.contact]) for name, v in values.items() if not s.contact.all()},
            n_states=len(s.contact),
            n_contact=int(s.contact.sum()),
            termination=float(np.mean(m.terminated != s.terminated)) if simulator.is_task else None,
            reset=self._compare_resets(elements, self.resets, state.names) if self.resets else ResetTest(),
            rollout=self._rollout_defects(elements, state),
            support=visits,
            components=components,
            constant=tuple(name for name, moves in moved.items() if not moves),
            unconstrained=tuple(dict.fromkeys(entry.name for entry in entries)),
            quantiles={key: tuple(np.quantile(v, QUANTILE_LEVELS).tolist()) for key, v in quantiles.items()},
            left_out=dict(zip(kinds.tolist(), counts.tolist(), strict=True)),
        )

    # -- parts of the report ------------------------------------------------------------------------------------------

    def _features(self, elements: Elements, values: Sequence[np.ndarray], image: bool = False) -> np.ndarray:
        """Features of coordinates, or of their images, without those that the spec leaves free."""
        parts = []
        for key, y in zip(self.evidence.simulator.state_keys, values, strict=False):
            space = getattr(elements.spec, key)
            z = space.encode(y)
            parts.append((elements.image(key, z) if image else z)[..., counted_features(space)])
        return np.concatenate(parts, -1)

    def _rollout_defects(self, elements: Elements, state: Comparison) -> tuple[float, ...]:
        """For each step, the median over rollouts of |difference| in units of the median step's length."""
        actions = elements.transform("action", self.sequences)
        simulator = self.evidence.simulator
        paths = simulator.trajectories(simulator.mirror(elements, self.starts), actions)
        difference = self._features(elements, paths) - self._features(elements, self.paths, image=True)
        typical = np.median(np.linalg.norm(state.moved, axis=1)) or 1.0
        lengths = np.linalg.norm(difference, axis=-1) / typical
        valid = [column[~np.isnan(column)] for column in lengths.T]  # a faulty step ends a rollout
        return tuple(float(np.median(column)) for column in valid if column.size)

    def _compare_resets(self, elements: Elements, resets: list[np.ndarray], names: Sequence[str]) -> ResetTest:
        """Compare the marginals of one half of the resets with those of the images of the other half."""
        half = len(resets[0]) // 2
        first = self._features(elements, [values[:half] for values in resets])
        images = self._features(elements, [values[half : 2 * half] for values in resets], image=True)
        tests = [(*kolmogorov_smirnov(*columns), name) for *columns, name in zip(first.T, images.T, names, strict=True)]
        distance, p_value, name = min(tests, key=lambda test: (test[1], -test[0]))
        return ResetTest(distance, min(1.0, p_value * len(tests)), name)


def kolmogorov_smirnov(x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """Two-sample Kolmogorov-Smirnov test for samples of equal size: (distance, p-value).

    The p-value is exact. (`scipy.stats` has the test, but takes longer to import than a certificate takes.)

    Source: Hodges 1958, Eq. 2.3, as nested products.

    >>> distance, p = kolmogorov_smirnov(np.arange(5.0), np.arange(5.0) + 2.5)
    >>> round(distance, 2), round(p, 4)
    (0.6, 0.3571)
    """
    n, values = len(x), np.concatenate([x, y])
    below = [np.searchsorted(np.sort(sample), values, side="right") for sample in (x, y)]
    h = int(np.abs(below[0] - below[1]).max())
    p = 0.0
    for k in range(n // h if h else 0, -1, -1):
        j = np.arange(h)
        p = float(np.prod((n - k * h - j) / (n + k * h + j + 1))) * (1.0 - p)
    return h / n, min(1.0, 2.0 * p) if h else 1.0


# -- support: how often rollouts visit mirrored states ------------------------------------------------------------------------


NEAR_QUANTILE = 0.95  # quantile of the visited states' own distances that counts as near; odd episodes set higher ones
EQUALITY_TOLERANCE = 1e-9  # relative difference of values that count as equal


def measure_support(
    visited: np.ndarray, images: np.ndarray, independent: np.ndarray, names: tuple[str, ...]
) -> tuple[Support, np.ndarray, np.ndarray]:
    """Measure how often rollouts visit the images of states.

    Args:
        visited: features of visited states, (n, f).
        images: features of their images, (n, f).
        independent: features of states that independent rollouts visited, (m, f).
        names: names of the features.
    Returns:
        (support, distances of visited states to the nearest independent ones, the same of images), both (n,).
    """
    tree = cKDTree(rank_places(independent, independent))
    image_places = rank_places(images, independent)
    visited_distances, image_distances = tree.query(rank_places(visited, independent))[0], tree.query(image_places)[0]
    outside = ((image_places < -1) | (image_places > 2)).mean(0)
    worst = int(outside.argmax())
    share = float(np.mean(image_distances <= np.quantile(visited_distances, NEAR_QUANTILE) + EQUALITY_TOLERANCE))
    return Support(share, names[worst], float(outside[worst])), visited_distances, image_distances


def rank_places(y: np.ndarray, reference: np.ndarray) -> np.ndarray:
    """Places u(y) of values (n, f) among reference values (m, f), column by column, as the module defines them.

    >>> rank_places(np.array([[1.5], [4.0]]), np.array([[1.0], [2.0], [3.0]])).round(2).tolist()
    [[0.33], [2.22]]
    """
    low, high, spread = reference.min(0), reference.max(0), reference.std(0)
    slack = EQUALITY_TOLERANCE * (1 + np.abs(reference).max(0))
    constant = spread <= slack
    scale = np.where(constant, slack, spread)  # any other value than a constant one is far from the visited states
    rank = np.empty_like(y)
    for j, column in enumerate(reference.T):
        rank[:, j] = 0.5 if constant[j] else np.searchsorted(np.sort(column), y[:, j]) / len(column)
    return rank + np.maximum(0, y - high - slack) / scale - np.maximum(0, low - slack - y) / scale


def certified_share(env: gym.Env | VecEnv, spec: SymmetrySpec, *, reward: bool = True) -> CertifiedShare:
    """Share of the prior variance for a network's free pathway, from the spec's stored certificate or a new one.

    Args:
        env: an environment, wrapped or not, or stable-baselines3's VecEnv, whose first environment is certified.
        reward: whether the learned function depends on rewards and terminations, as a critic does.
    Raises:
        ValueError: an environment without a MuJoCo model and `simulator_state`, or whose spec or wrappers can't be certified.
    """
    with open_source(env) as (system, _):
        source = certifiable_source(system)
        if source is None:
            raise ValueError(
                f"{spec.env_id} has neither model nor simulator_state: give free_variance a number, or learned"
            )
        certificate = find_certificate(source, spec)
        if certificate is None:
            logger.warning("certifying the symmetry of %s in the simulator, which takes some seconds", spec.env_id)
            certificate = certify(system, spec)
            save_certificate(certificate)
    return share_of(certificate, reward=reward)
