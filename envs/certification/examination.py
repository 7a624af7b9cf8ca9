"""Everything that a certificate reports of a generator, from visited states, rollouts, resets and other rollouts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rppdyn.envs.certification.certificate import LEVELS, Defect, GeneratorReport
from rppdyn.envs.certification.elements import Elements
from rppdyn.envs.certification.evidence import (
    HORIZON,
    STRIDE,
    Comparison,
    Evidence,
    Tick,
    counted_features,
    faults,
    ignore,
)
from rppdyn.envs.certification.support import support
from rppdyn.envs.simulator import Outcome, Simulator
from rppdyn.envs.spec import SymmetrySpec

__all__ = ["Examination"]

ROLLOUTS = 12  # mirrored rollouts
ROLLOUT_STEPS = 50


@dataclass(frozen=True)
class Examination:
    """What is simulated once for all generators.

    Args:
        seed: of what was drawn at random.
        evidence: visited states, and one step from each.
        starts: states (R, .) from which rollouts start.
        sequences, paths: their actions (R, T, m), and positions, velocities and activations along them.
        resets: positions, velocities and activations after resets; None for a bare model.
        elsewhere: those of the states that an independent set of rollouts visited.
    """

    seed: int
    evidence: Evidence
    starts: np.ndarray
    sequences: np.ndarray
    paths: list[np.ndarray]
    resets: list[np.ndarray] | None
    elsewhere: list[np.ndarray]

    @classmethod
    def of(cls, simulator: Simulator, n_states: int, n_resets: int, seed: int, tick: Tick = ignore) -> Examination:
        """Simulate the originals.

        Raises:
            ValueError: so many steps are faulty that too few are left to judge.
        """
        rng = np.random.default_rng(seed)
        evidence = Evidence.visit(simulator, n_states, rng, tick)
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
        """Report on the spec's k-th generator.

        Raises:
            ValueError: too few steps are left once the faulty ones are taken out.
        """
        s, m = self.evidence.outcome, self.evidence.images(elements, tick)
        state, observation = self.evidence.compared(elements, m)
        found = faults(s, m)
        s, m = (Outcome(*(column[found == ""] for column in outcome)) for outcome in (s, m))
        kinds, counts = np.unique(found[found != ""], return_counts=True)
        values = {"state": state.relative}
        components = dict(state.components)
        moved = dict(zip(state.names, np.any(state.moved, axis=0), strict=True))
        if observation is not None:
            values["observation"] = observation.relative
            values["reward"] = np.abs(m.reward - s.reward) / (np.std(s.reward) or np.sqrt(np.mean(s.reward**2)) or 1.0)
            moved |= dict(zip(observation.names, np.any(observation.moved, axis=0), strict=True))
            for name, defect in observation.components.items():
                # A coordinate that is both in the state and observed is listed once, with its worse showing.
                components[name] = max(defect, components.get(name, defect), key=lambda d: d.p95)
        distance, p_value, coordinate = self._compare_resets(elements, self.resets) if self.resets else (None, None, "")
        seen, near, far = support(*self._features(elements), self._names(spec))
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
            termination=float(np.mean(m.terminated != s.terminated)) if self.evidence.simulator.is_task else None,
            reset=distance,
            reset_p_value=p_value,
            reset_coordinate=coordinate,
            rollout=self._rollout(elements, state, tick),
            support=seen,
            components=tuple(components.items()),
            constant=tuple(name for name, moves in moved.items() if not moves),
            unconstrained=tuple(dict.fromkeys(entry.name for entry in entries)),
            quantiles={key: tuple(np.quantile(v, LEVELS).tolist()) for key, v in quantiles.items()},
            left_out=dict(zip(kinds.tolist(), counts.tolist(), strict=True)),
        )

    # -- parts of the report ------------------------------------------------------------------------------------------

    def _names(self, spec: SymmetrySpec) -> tuple[str, ...]:
        return tuple(e.name for key in self.evidence.state_keys for e in getattr(spec, key).features if not e.free)

    def _difference(self, elements: Elements, m: list[np.ndarray], s: list[np.ndarray]) -> np.ndarray:
        """Features of m less the images of those of s, (n, ..., f)."""
        parts = []
        for key, image, original in zip(self.evidence.state_keys, m, s, strict=False):
            space = getattr(elements.spec, key)
            difference = space.encode(image) - elements.image(key, space.encode(original))
            parts.append(difference[..., counted_features(space)])
        return np.concatenate(parts, -1)

    def _rollout(self, elements: Elements, state: Comparison, tick: Tick) -> tuple[float, ...]:
        """Median over rollouts, by step, of the length of the difference over that of a typical step."""
        actions = elements.transform("action", self.sequences)
        paths = self.evidence.simulator.trajectories(self.evidence.mirrored(elements, self.starts), actions, tick)
        length = np.linalg.norm(self._difference(elements, paths, self.paths), axis=-1)
        typical = np.median(np.linalg.norm(state.moved, axis=1)) or 1.0
        reached = [column[~np.isnan(column)] for column in (length / typical).T]  # a faulty step ends a rollout
        return tuple(float(np.median(column)) for column in reached if column.size)

    def _features(self, elements: Elements) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Features of visited states, of their images, and of independently visited ones."""
        visited, images, others = [], [], []
        for key, other in zip(self.evidence.state_keys, self.elsewhere, strict=False):
            space = getattr(elements.spec, key)
            counted = counted_features(space)
            z = space.encode(getattr(self.evidence.outcome, key))
            visited.append(z[:, counted])
            images.append(elements.image(key, z)[:, counted])
            others.append(space.encode(other)[:, counted])
        return np.hstack(visited), np.hstack(images), np.hstack(others)

    def _compare_resets(self, elements: Elements, resets: list[np.ndarray]) -> tuple[float, float, str]:
        """Largest distance between the marginals of one half of the resets and of the images of the other half."""
        from scipy.stats import ks_2samp  # here: every command would wait for it otherwise

        half = len(resets[0]) // 2
        tests = []
        for key, values in zip(self.evidence.state_keys, resets, strict=False):
            space = getattr(elements.spec, key)
            z = space.encode(values)
            images = elements.image(key, z[half:])
            for i in counted_features(space):
                result = ks_2samp(z[:half, i], images[:, i])
                tests.append((float(result.pvalue), float(result.statistic), space.features[i].name))
        p_value, distance, name = min(tests, key=lambda test: (test[0], -test[1]))
        return distance, min(1.0, p_value * len(tests)), name
