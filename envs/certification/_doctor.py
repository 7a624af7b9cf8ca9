r"""Rank a model's deviations from a symmetry by their effect on motion: repair each alone, and measure the steps again.

Let d(s) be the defect of a step (:func:`rppdyn.envs.certify`) from state s. Let d_k(s) be the same in a repaired model, in
which deviation k alone is averaged over its two elements. The share of the deviation is

.. math:: s_k = \mathrm{mean}_s\, \max(0, 1 - d_k(s)^2 / d(s)^2).

It is a mean over states and not a ratio of means, because defects in contact are larger than all others by orders of magnitude.
Shares of deviations with separate effects add up to one. A large deviation may have no effect, and a small one all of it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import gymnasium as gym
import mujoco
import numpy as np

from rppdyn.envs._catalogue import symmetry_spec
from rppdyn.envs._model_symmetry import Deviation, ModelSymmetry
from rppdyn.envs._simulator import BareSimulator, ObservedSimulator
from rppdyn.envs._spec import align
from rppdyn.envs.certification._certificate import EXACT_BELOW, model_bytes
from rppdyn.envs.certification._certify import open_simulator
from rppdyn.envs.certification._evidence import Comparison, Elements, SimulatedSteps, step_faults
from rppdyn.envs.derivation import derive
from rppdyn.envs.derivation._symmetrise import symmetrise


@dataclass(frozen=True)
class Finding:
    """A deviation, and the share of the squared defect of a step that disappears when it alone is repaired.

    The share is NaN where no mean repairs it: a part without a partner, gravity, the way that a motor pushes.
    """

    deviation: Deviation
    share: float


@dataclass(frozen=True)
class Diagnosis:
    """The deviations that break one symmetry of a model, ranked.

    Attributes:
        symmetry: name of the symmetry.
        defect: median over states of the relative defect of a step.
        repaired: the same with all deviations repaired.
        findings: every deviation, those that no mean repairs first, then the largest share.
    """

    symmetry: str
    defect: float
    repaired: float
    findings: tuple[Finding, ...]

    def table(self, max_rows: int = 12) -> str:
        """Table of the deviations with the largest shares."""
        count = len(self.findings)
        lines = [
            f"{self.symmetry}: a step is off by {self.defect:.2g}, with all {count} deviations repaired by {self.repaired:.2g}"
        ]
        shares = ["unknown" if np.isnan(f.share) else f"{100 * f.share:.1f} %" for f in self.findings]
        rows = [[share, str(f.deviation)] for share, f in zip(shares, self.findings[:max_rows], strict=False)]
        lines += align([["share", "deviation"], *rows])
        if count > max_rows:
            is_ranked = not np.isnan(self.findings[max_rows].share)
            lines.append(f"and {count - max_rows} more" + (f", none above {shares[max_rows]}" if is_ranked else ""))
        return "\n".join(lines)


def diagnose(
    model: str | Path | gym.Env | mujoco.MjModel, symmetry: str | None = None, *, n_states: int = 100, seed: int = 0
) -> Diagnosis:
    """Rank the deviations of a model from a symmetry by their effect on motion.

    Args:
        model: an environment or its id, a model, or the path of an MJCF or URDF file; the bare model is stepped.
        symmetry: name of a symmetry that `derive` finds; by default that of the smallest defect, or, of several within a
            factor of two, of the fewest deviations.
        n_states: number of states, reached by random actions, from which one step is taken.
        seed: seed of the actions.
    Raises:
        ValueError: an environment without a model, an unknown symmetry, or none that is discrete and deviates.
    """
    with open_simulator(model) as simulator:
        if isinstance(simulator, ObservedSimulator):
            raise ValueError(f"{simulator.name} has no MuJoCo model, whose parameters could be repaired")
        compiled = simulator.model
        candidates = _candidates(compiled, symmetry)
        evidence = SimulatedSteps.visit(BareSimulator(compiled), n_states, np.random.default_rng(seed))
        evidence.require_enough(evidence.outcome.fault)
        measured = []
        for candidate in candidates:
            spec = symmetry_spec(compiled, symmetry=candidate.name)
            elements = Elements.of_generator(spec, 0, np.random.default_rng(seed))
            measured.append((candidate, elements, _defects(evidence, elements)))
        sizes = [
            min(float(np.nanmedian(defects)), 1.0) for *_, defects in measured
        ]  # 1: as wrong as predicting no motion
        near = [one for one, size in zip(measured, sizes, strict=True) if size <= 2 * min(sizes)]
        chosen, elements, original = min(near, key=lambda one: len(one[0].deviations))
        inexact = original > EXACT_BELOW
        findings: list[Finding] = []
        unchanged = model_bytes(symmetrise(compiled, chosen, replace(chosen.deviations[0], parameter="none")))
        for deviation in chosen.deviations:
            repaired_model = symmetrise(compiled, chosen, deviation)
            if model_bytes(repaired_model) == unchanged:
                findings.append(Finding(deviation, np.nan))
                continue
            remaining = _defects(_step_model(repaired_model, evidence), elements)
            shares = 1 - np.square(remaining[inexact] / original[inexact])
            findings.append(Finding(deviation, float(np.nanmean(shares.clip(min=0))) if inexact.any() else 0.0))
        repaired = _defects(_step_model(symmetrise(compiled, chosen), evidence), elements)
    findings.sort(key=lambda finding: -np.nan_to_num(finding.share, nan=2.0))
    return Diagnosis(chosen.name, float(np.nanmedian(original)), float(np.nanmedian(repaired)), tuple(findings))


def _candidates(model: mujoco.MjModel, name: str | None) -> list[ModelSymmetry]:
    """The discrete symmetry of this name, or all; only those that deviate."""
    derived = {s.name: s for s in derive(model).symmetries if not s.is_continuous}
    known = ", ".join(derived) or "none"
    if name is not None and name not in derived:
        raise ValueError(f"symmetry={name!r}: no discrete symmetry of the model; known: {known}")
    candidates = [s for s in derived.values() if s.deviations and name in (None, s.name)]
    if not candidates:
        kind = "no discrete symmetry of the model deviates" if name is None else f"no parameter deviates from {name}"
        raise ValueError(f"{kind} (known: {known}): there is nothing to repair")
    return candidates


def _step_model(model: mujoco.MjModel, evidence: SimulatedSteps) -> SimulatedSteps:
    """Steps of another model from the same states with the same actions."""
    simulator, states, actions = BareSimulator(model), evidence.states, evidence.actions
    return SimulatedSteps(simulator, states, actions, simulator.steps(states, actions))


def _defects(evidence: SimulatedSteps, elements: Elements) -> np.ndarray:
    """Relative defect of the step from each state, (n,); NaN where a step is faulty."""
    m, s = evidence.images(elements), evidence.outcome
    defects = np.full(len(evidence.states), np.nan)
    defects[step_faults(s, m) == ""] = Comparison.of_state(elements, evidence.simulator.state_keys, s, m).relative
    return defects
