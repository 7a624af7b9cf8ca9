r"""Proof of a symmetry in the simulator: steps from states and from their mirror images.

For states s that random actions reach and random actions a, the defect of a group element g is

.. math:: |f(g s, g a) - g f(s, a)| \,/\, |f(s, a) - s|,

with f one step of the real environment, and differences taken between features, in which a quaternion's sign and a full
turn of an angle do not count. The observation leaves out positions and clips velocities, so the mirrored state is built
from the spec's action on the simulator's positions, velocities and activations; controls and the solver's warm start are
mirrored with them.

A wrong map whose images rollouts never visit can't be refuted by data, so that is told, too. Each feature y of positions,
velocities and activations is replaced by its *place* among the values that an independent set of rollouts visited: the share
of them below it, from 0 to 1, and beyond them the distance to the nearest in standard deviations,

.. math:: u(y) = F(y) + \max(0, y - y_{max}) / \sigma - \max(0, y_{min} - y) / \sigma .

Ranks keep the few violent states of a rollout from stretching the scale. How far, in u, visited states lie from the nearest
independent one says what is near: an image is *visited* when it lies as near as 95 % of them do. A symmetry of
everything (dynamics, resets, policy) maps visited states to visited states, so that 95 % of the images are; a map that
flips the sign of a knee which never straightens has images several standard deviations away, and none are. The
measure is of single states and generous in many dimensions: support says whether data *could* refute a map, the
defects whether they do.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import gymnasium as gym
import mujoco
import numpy as np
from gymnasium.envs.mujoco import MujocoEnv
from scipy.spatial import cKDTree

from rppdyn.envs.catalogue import Source, opened_source, symmetry_specs
from rppdyn.envs.certification.certificate import (
    QUANTILE_LEVELS,
    Certificate,
    CertifiedShare,
    Defect,
    GeneratorReport,
    ResetTest,
    Support,
    digests,
    find_certificate,
    save_certificate,
    share_of,
    simulated,
    spec_digest,
)
from rppdyn.envs.certification.evidence import (
    HORIZON,
    STRIDE,
    Comparison,
    Elements,
    SimulatedSteps,
    Tick,
    counted_features,
    faults,
    ignore,
)
from rppdyn.envs.derivation import derive
from rppdyn.envs.model_symmetry import ModelSymmetry
from rppdyn.envs.simulator import BareSimulator, ObservedSimulator, Simulator, quiet_mujoco, tight_solver
from rppdyn.envs.spec import SymmetrySpec
from rppdyn.envs.state import capture_state, restore_state
from rppdyn.envs.terms.layout import CompiledTerms
from rppdyn.envs.terms.simulator import TermsSimulator
from rppdyn.runs.session import Progress

if TYPE_CHECKING:
    from stable_baselines3.common.vec_env import VecEnv

logger = logging.getLogger(__name__)

SOLVERS = ("stock", "tight")
BAR_SECONDS = 3.0  # seconds; shorter work shows no bar


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
    """Step the real simulator from states and from their mirror images, and report what differs.

    Args:
        env: an environment's id; an environment, which is stepped through its wrappers and left in the state it was in; an
            `mujoco.MjModel`; or the path of an MJCF or URDF file. Models have neither observation nor reward, termination or
            reset of their own. An environment without a MuJoCo model needs `simulator_state()`, whose entry "state" is the
            observation, `restore_simulator_state(data)` and `symmetry_spec(symmetry)`. Of a list of terms
            (`rppdyn.envs.compiled_terms`) the model is observed by these, with a random task.
        spec: the symmetry to test. If left out, the known one of one of Gymnasium's tasks; for another environment or model
            the default one, and in `Certificate.others` every other symmetry that is derived, exact or approximate.
        n_states: states to compare from.
        n_resets: resets by which the reset distribution is judged; 2000 resolve a shift by a sixth of its width.
        seed: seed of the rollouts, the actions, the resets and the elements of continuous groups.
        solver: "stock" leaves the model's; "tight" solves contact forces to rounding, which tells a solver's tolerance
            from a broken symmetry.
        control_scale: share of the actions' range, about its middle, that random actions are drawn from; less than 1 for a
            robot that the whole range throws over.
        progress: whether to draw a bar, once the work takes longer than a few seconds.
    Returns:
        defects of dynamics, observation, reward, termination and reset distribution for each generator.
    Raises:
        ValueError: no symmetry is found, the spec is for another observation, action or model, it has no action on qpos and
            qvel, an unreadable file, a wrapper that remembers earlier steps or draws at random, or a simulation so unstable
            that too few steps are left to judge.
    """
    if n_states < 20:
        raise ValueError(f"n_states={n_states} is too few for a 95th percentile; use at least 20")
    if n_resets < 20:
        raise ValueError(f"n_resets={n_resets} is too few to compare distributions; use at least 20")
    if not 0 < control_scale <= 1:
        raise ValueError(f"control_scale={control_scale} must be above 0 and at most 1, the whole range")
    if solver not in SOLVERS:
        raise ValueError(f"solver={solver!r} is unknown; use {' or '.join(map(repr, SOLVERS))}")
    if spec is None and isinstance(env, CompiledTerms):
        spec = env.spec
    specs, refused = ([spec], []) if spec is not None else symmetry_specs(env)
    with opened(env) as simulator:
        simulator.control_scale = control_scale
        for one in specs:
            check(one, simulator)
        if simulator.is_task:
            simulator.require_memoryless()
        observed = isinstance(simulator, ObservedSimulator)
        model, environment = digests(simulator.env if simulator.is_task else simulator.model)
        with ExitStack() as stack:
            if solver == "tight" and not observed:
                stack.enter_context(tight_solver(simulator.model))
            total = Examination.steps(n_states, sum(len(one.generator_names) for one in specs))
            label = f"certify {specs[0].env_id}"
            bar = stack.enter_context(Progress(total, description=label, enabled=progress, delay=BAR_SECONDS))
            tick = _ticker(bar)
            examination = Examination.of(simulator, n_states, n_resets, seed, tick)
            certificates = []
            for one in specs:
                try:
                    reports = _reports(examination, one, tick)
                except ValueError as error:
                    refused.append(str(error))
                    continue
                certificates.append(
                    Certificate(
                        env_id=one.env_id,
                        model_digest=model,
                        environment=environment,
                        spec_digest=spec_digest(one),
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
        raise ValueError(refused[0])
    return replace(certificates[0], others=tuple(certificates[1:]), refused=tuple(refused))


def _reports(examination: Examination, spec: SymmetrySpec, tick: Tick) -> tuple[GeneratorReport, ...]:
    """A report on each generator, with what the model says of it."""
    simulator = examination.evidence.simulator
    deviations: list[tuple[str, ...] | None] = [None] * len(spec.generator_names)
    if isinstance(simulator, TermsSimulator):
        deviations = [tuple(map(str, s.deviations)) for s in simulator.symmetries]
    elif not isinstance(simulator, ObservedSimulator):
        deviations = _deviations(simulator.model, spec)
    elements = [Elements.of(spec, k, np.random.default_rng((examination.seed, k))) for k in range(len(deviations))]
    return tuple(
        replace(examination.report(spec, k, elements[k], tick), deviations=some) for k, some in enumerate(deviations)
    )


def _deviations(model: mujoco.MjModel, spec: SymmetrySpec) -> list[tuple[str, ...] | None]:
    """Deviations of each generator, from the derived symmetry that acts alike; None where none does."""
    try:
        derived = derive(model).symmetries
    except ValueError:
        derived = ()
    pairs = []
    for kind in ("discrete_generators", "lie_algebra"):
        pairs += list(zip(getattr(spec.qvel, kind), getattr(spec.action, kind), strict=True))
    n_discrete = len(spec.group.discrete_generators)

    def acts_alike(s: ModelSymmetry, k: int) -> bool:
        return s.is_continuous == (k >= n_discrete) and all(
            np.shape(ours) == theirs.shape and np.allclose(ours, theirs)
            for ours, theirs in zip(pairs[k], (s.dofs, s.controls), strict=True)
        )

    return [next((tuple(map(str, s.deviations)) for s in derived if acts_alike(s, k)), None) for k in range(len(pairs))]


@contextmanager
def opened(env: Source | CompiledTerms) -> Iterator[Simulator]:
    """A simulator of an environment or model: made and closed for an id, put back as it was for an instance.

    Raises:
        ValueError: an unknown environment, an unreadable file, or neither environment nor model.
    """
    with quiet_mujoco():
        if isinstance(env, CompiledTerms):
            yield TermsSimulator(env)
            return
        with opened_source(env) as (system, name):
            if isinstance(system, mujoco.MjModel):
                yield BareSimulator(system, name)
                return
            own_state = not isinstance(system.unwrapped, MujocoEnv) and hasattr(system.unwrapped, "simulator_state")
            simulator = ObservedSimulator(system) if own_state else Simulator(system)
            is_users = system is env or any(system is one for one in getattr(env, "envs", ()))
            if not is_users:
                yield simulator
                return
            state = capture_state(system.unwrapped, strict=False)
            try:
                yield simulator
            finally:
                restore_state(system.unwrapped, state)


def check(spec: SymmetrySpec, simulator: Simulator) -> None:
    """Check that a spec has the sizes of a simulator.

    Raises:
        ValueError: it lacks the action on the state, or has another number of entries.
    """
    lacking = [key for key in simulator.state_keys if getattr(spec, key) is None]
    if lacking:
        what = "act, the actuators' activations" if lacking == ["act"] else "qpos and qvel"
        raise ValueError(f"{spec.env_id}: the spec has no action on {what}; certify needs it (see mirror_spec)")
    through = f" through {', '.join(simulator.wrappers)}" if simulator.wrappers else ""
    for key, shape in simulator.sizes.items():
        if shape != (getattr(spec, key).dim,):
            raise ValueError(
                f"the spec of {spec.env_id} has {getattr(spec, key).dim} entries of {key}, the environment {shape}{through}; "
                "certify it with the environment it was written for"
            )


def _ticker(bar: Progress) -> Tick:
    done = 0

    def tick(n: int) -> None:
        nonlocal done
        done += n
        bar.update(done)

    return tick


# -- what a certificate reports of a generator ------------------------------------------------------------------------------


ROLLOUTS = 12  # mirrored rollouts
ROLLOUT_STEPS = 50


@dataclass(frozen=True)
class Examination:
    """Steps that are simulated once for all generators.

    Args:
        seed: seed of what was drawn at random.
        evidence: visited states, and one step from each.
        starts: states (R, .) from which rollouts start.
        sequences, paths: their actions (R, T, m), and positions, velocities and activations along them.
        resets: positions, velocities and activations after resets; None for a bare model.
        elsewhere: those of the states that an independent set of rollouts visited.
    """

    seed: int
    evidence: SimulatedSteps
    starts: np.ndarray
    sequences: np.ndarray
    paths: list[np.ndarray]
    resets: list[np.ndarray] | None
    elsewhere: list[np.ndarray]

    @classmethod
    def of(cls, simulator: Simulator, n_states: int, n_resets: int, seed: int, tick: Tick = ignore) -> Examination:
        """Simulate the originals."""
        rng = np.random.default_rng(seed)
        evidence = SimulatedSteps.visit(simulator, n_states, rng, tick)
        evidence.require_enough(evidence.outcome.fault)
        other, _ = simulator.rollout_states(n_states, rng, stride=STRIDE, horizon=HORIZON, tick=tick)
        starts = evidence.first(ROLLOUTS).states
        sequences = rng.uniform(*simulator.action_bounds, (len(starts), ROLLOUT_STEPS, evidence.actions.shape[1]))
        return cls(
            seed,
            evidence,
            starts,
            sequences,
            paths=simulator.trajectories(starts, sequences, tick),
            resets=simulator.reset_states(n_resets, rng) if simulator.is_task else None,
            elsewhere=simulator.read(other, *simulator.state_keys),
        )

    @staticmethod
    def steps(n_states: int, n_generators: int) -> int:
        """Number of simulator steps that an examination takes, for a progress bar."""
        return 2 * STRIDE * n_states + (1 + n_generators) * (n_states + ROLLOUTS * ROLLOUT_STEPS)

    def report(self, spec: SymmetrySpec, k: int, elements: Elements, tick: Tick = ignore) -> GeneratorReport:
        """Report on the spec's k-th generator."""
        simulator = self.evidence.simulator
        s, m = self.evidence.outcome, self.evidence.images(elements, tick)
        state, observation = self.evidence.compared(elements, m)
        fault = faults(s, m)
        s, m = s.at(fault == ""), m.at(fault == "")
        kinds, counts = np.unique(fault[fault != ""], return_counts=True)
        values = {"state": state.relative}
        components = dict(state.components)
        moved = dict(zip(state.names, np.any(state.moved, axis=0), strict=True))
        if observation is not None:
            values["observation"] = observation.relative
            moved |= dict(zip(observation.names, np.any(observation.moved, axis=0), strict=True))
            for name, defect in observation.components.items():
                # A coordinate that is both in the state and observed is listed once, with its worse showing.
                components[name] = max(defect, components.get(name, defect), key=lambda d: d.p95)
        if simulator.is_task:
            values["reward"] = np.abs(m.reward - s.reward) / (np.std(s.reward) or np.sqrt(np.mean(s.reward**2)) or 1.0)
        visited = [getattr(self.evidence.outcome, key) for key in self.evidence.state_keys]
        features = self._features(elements, visited), self._features(elements, visited, image=True)
        seen, near, far = support(*features, self._features(elements, self.elsewhere), state.names)
        symmetry = spec.symmetries[k] if spec.symmetries else None
        quantiles = values | {"visited": near, "images": far}
        masks = {"contact": s.contact, "free": ~s.contact}
        quantiles |= {f"state {where}": state.relative[mask] for where, mask in masks.items() if mask.any()}
        defects = {what: Defect.of(v) for what, v in values.items()}
        entries = [e for key in (*self.evidence.state_keys, "obs") for e in getattr(spec, key).features if e.free]
        return GeneratorReport(
            name=spec.generator_names[k],
            expected=symmetry.verdict if symmetry else "",
            state=defects["state"],
            observation=defects.get("observation"),
            reward=defects.get("reward"),
            contact={what: Defect.of(v[s.contact]) for what, v in values.items() if s.contact.any()},
            free={what: Defect.of(v[~s.contact]) for what, v in values.items() if not s.contact.all()},
            n_states=len(s.contact),
            n_contact=int(s.contact.sum()),
            termination=float(np.mean(m.terminated != s.terminated)) if simulator.is_task else None,
            reset=self._compare_resets(elements, self.resets, state.names) if self.resets else ResetTest(),
            rollout=self._rollout(elements, state, tick),
            support=seen,
            components=components,
            constant=tuple(name for name, moves in moved.items() if not moves),
            unconstrained=tuple(dict.fromkeys(entry.name for entry in entries)),
            quantiles={key: tuple(np.quantile(v, QUANTILE_LEVELS).tolist()) for key, v in quantiles.items()},
            left_out=dict(zip(kinds.tolist(), counts.tolist(), strict=True)),
        )

    # -- parts of the report ------------------------------------------------------------------------------------------

    def _features(self, elements: Elements, values: Sequence[np.ndarray], image: bool = False) -> np.ndarray:
        """Features of the state's coordinates, or of their images, that the spec does not leave free."""
        parts = []
        for key, y in zip(self.evidence.state_keys, values, strict=False):
            space = getattr(elements.spec, key)
            z = space.encode(y)
            parts.append((elements.image(key, z) if image else z)[..., counted_features(space)])
        return np.concatenate(parts, -1)

    def _rollout(self, elements: Elements, state: Comparison, tick: Tick) -> tuple[float, ...]:
        """Median over rollouts, by step, of the length of the difference over that of a typical step."""
        actions = elements.transform("action", self.sequences)
        simulator = self.evidence.simulator
        paths = simulator.trajectories(simulator.mirrored(elements, self.starts), actions, tick)
        difference = self._features(elements, paths) - self._features(elements, self.paths, image=True)
        typical = np.median(np.linalg.norm(state.moved, axis=1)) or 1.0
        lengths = np.linalg.norm(difference, axis=-1) / typical
        reached = [column[~np.isnan(column)] for column in lengths.T]  # a faulty step ends a rollout
        return tuple(float(np.median(column)) for column in reached if column.size)

    def _compare_resets(self, elements: Elements, resets: list[np.ndarray], names: Sequence[str]) -> ResetTest:
        """Largest distance between the marginals of one half of the resets and of the images of the other half."""
        half = len(resets[0]) // 2
        first = self._features(elements, [values[:half] for values in resets])
        images = self._features(elements, [values[half : 2 * half] for values in resets], image=True)
        tests = [(*kolmogorov_smirnov(*columns), name) for *columns, name in zip(first.T, images.T, names, strict=True)]
        distance, p_value, name = min(tests, key=lambda test: (test[1], -test[0]))
        return ResetTest(distance, min(1.0, p_value * len(tests)), name)


def kolmogorov_smirnov(x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """The largest distance between the distributions of as many x as y, and how likely one as large is if they are the same.

    The probability is exact. (`scipy.stats` has it too, and takes longer to import than the rest of a certificate.)

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


# -- whether mirrored states lie where rollouts go ---------------------------------------------------------------------------


NEAR_QUANTILE = 0.95  # of the visited states' own distances, that counts as near; a higher one is set by an odd episode
EQUALITY_TOLERANCE = 1e-9  # relative difference below which two values are the same


def support(
    visited: np.ndarray, images: np.ndarray, independent: np.ndarray, names: tuple[str, ...]
) -> tuple[Support, np.ndarray, np.ndarray]:
    """Compare images with visited states.

    Args:
        visited: features (n, f) of visited states.
        images: features (n, f) of their images.
        independent: features (m, f) of states that other rollouts visited.
        names: names of the features.
    Returns:
        the summary, and the distances (n,) of visited states and of images to the independent ones.
    """
    tree = cKDTree(places(independent, independent))
    there = places(images, independent)
    near, far = tree.query(places(visited, independent))[0], tree.query(there)[0]
    outside = ((there < -1) | (there > 2)).mean(0)
    worst = int(outside.argmax())
    share = float(np.mean(far <= np.quantile(near, NEAR_QUANTILE) + EQUALITY_TOLERANCE))
    return Support(share, names[worst], float(outside[worst])), near, far


def places(y: np.ndarray, among: np.ndarray) -> np.ndarray:
    """Places (n, f) of values among others (m, f), column by column: in [0, 1] inside, beyond that in standard deviations.

    >>> places(np.array([[1.5], [4.0]]), np.array([[1.0], [2.0], [3.0]])).round(2).tolist()
    [[0.33], [2.22]]
    """
    low, high, spread = among.min(0), among.max(0), among.std(0)
    slack = EQUALITY_TOLERANCE * (1 + np.abs(among).max(0))
    constant = spread <= slack
    scale = np.where(constant, slack, spread)  # leaving the only value ever seen is leaving the visited states
    rank = np.empty_like(y)
    for j, column in enumerate(among.T):
        rank[:, j] = 0.5 if constant[j] else np.searchsorted(np.sort(column), y[:, j]) / len(column)
    return rank + np.maximum(0, y - high - slack) / scale - np.maximum(0, low - slack - y) / scale


def certified_share(env: gym.Env | VecEnv, spec: SymmetrySpec, *, reward: bool = True) -> CertifiedShare:
    """Share of a network over a spec's symmetry that is left to its free pathway, from the stored certificate or a new one.

    Args:
        env: an environment, wrapped or not, or stable-baselines3's VecEnv, of which the first is looked at.
        reward: whether what is learned depends on the reward and on where episodes end, as a critic does.
    Raises:
        ValueError: an environment without a MuJoCo model or a `simulator_state`, or whose spec or wrappers can't be certified.
    """
    with opened_source(env) as (one, _):
        source = simulated(one)
        if source is None:
            raise ValueError(
                f"{spec.env_id} has neither model nor simulator_state: give free_variance a number, or learned"
            )
        certificate = find_certificate(source, spec)
        if certificate is None:
            logger.warning("certifying the symmetry of %s in the simulator, which takes some seconds", spec.env_id)
            certificate = certify(one, spec)
            save_certificate(certificate)
    return share_of(certificate, reward=reward)
