r"""Ranking of a model's deviations by their effect on motion: each is repaired by itself, and the step measured again.

With d(s) the defect of a step (:func:`rppdyn.envs.certify`) from state s of the model as it is, and d_k(s) of the model in
which deviation k alone is averaged over its two elements, the share of the deviation is

.. math:: s_k = \mathrm{mean}_s\, \max(0, 1 - d_k(s)^2 / d(s)^2).

It is a mean over states, not a ratio of means, for a defect in contact is larger than all others by orders of magnitude.
Shares of deviations that act apart add up to one. A large deviation may have no effect, and a small one all of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import gymnasium as gym
import mujoco
import numpy as np

from rppdyn.envs.catalogue import symmetry_spec
from rppdyn.envs.certification.certificate import EXACT_BELOW
from rppdyn.envs.certification.certify import opened
from rppdyn.envs.certification.evidence import Comparison, Elements, SimulatedSteps, faults
from rppdyn.envs.derivation import derive
from rppdyn.envs.derivation.symmetrise import symmetrise
from rppdyn.envs.model_symmetry import Deviation, ModelSymmetry
from rppdyn.envs.simulator import BareSimulator
from rppdyn.envs.spec import align


@dataclass(frozen=True)
class Finding:
    """A deviation, and the share of the squared defect of a step that is gone when it alone is repaired."""

    deviation: Deviation
    share: float


@dataclass(frozen=True)
class Diagnosis:
    """The deviations that break one symmetry of a model, ranked.

    Attributes:
        symmetry: its name.
        defect: median over states of the relative defect of a step.
        repaired: the same once every deviation is repaired.
        findings: every deviation, the largest share first.
    """

    symmetry: str
    defect: float
    repaired: float
    findings: tuple[Finding, ...]

    def table(self, shown: int = 12) -> str:
        """The deviations that matter most, in the order in which they are worth repairing."""
        count = len(self.findings)
        lines = [
            f"{self.symmetry}: a step is off by {self.defect:.2g}, with all {count} deviations repaired by {self.repaired:.2g}"
        ]
        rows = [[f"{100 * one.share:.1f} %", str(one.deviation)] for one in self.findings[:shown]]
        lines += align([["share", "deviation"], *rows])
        if count > shown:
            lines.append(f"and {count - shown} more, none above {100 * self.findings[shown].share:.1f} %")
        return "\n".join(lines)


def diagnose(
    model: str | Path | gym.Env | mujoco.MjModel, symmetry: str | None = None, *, n_states: int = 100, seed: int = 0
) -> Diagnosis:
    """Rank what keeps a symmetry of a model from being exact by its effect on motion.

    Args:
        model: an environment or its id, a model, or the path of an MJCF or URDF file; the model's own motion is judged.
        symmetry: its name, as `derive` says it; None: of those that deviate the one that is nearest to exact.
        n_states: states that random actions reach, from which one step is taken.
        seed: seed of the actions.
    Raises:
        ValueError: an unknown symmetry, or none that is discrete and deviates.
    """
    with opened(model) as simulator:
        compiled = simulator.model
        chosen = _chosen(compiled, symmetry)
        spec = symmetry_spec(compiled, symmetry=chosen.name)
        elements = Elements.of(spec, 0, np.random.default_rng(seed))
        evidence = SimulatedSteps.visit(BareSimulator(compiled), n_states, np.random.default_rng(seed))
        evidence.require_enough(evidence.outcome.fault)
        whole = _defects(evidence, elements)
        broken = whole > EXACT_BELOW
        findings = []
        for deviation in chosen.deviations:
            left = _defects(_stepped(symmetrise(compiled, chosen, deviation), evidence), elements)
            gone = 1 - np.square(left[broken] / whole[broken])
            findings.append(Finding(deviation, float(np.nanmean(gone.clip(min=0))) if broken.any() else 0.0))
        repaired = _defects(_stepped(symmetrise(compiled, chosen), evidence), elements)
    findings.sort(key=lambda one: -one.share)
    return Diagnosis(chosen.name, float(np.nanmedian(whole)), float(np.nanmedian(repaired)), tuple(findings))


def _chosen(model: mujoco.MjModel, name: str | None) -> ModelSymmetry:
    derived = [s for s in derive(model).symmetries if not s.is_continuous]
    for one in sorted(derived, key=lambda s: sum(d.relative for d in s.deviations)):
        if one.name == name or (name is None and one.deviations):
            return one
    known = ", ".join(s.name for s in derived) or "none"
    if name is not None:
        raise ValueError(f"symmetry={name!r}: no discrete symmetry of the model; known: {known}")
    raise ValueError(f"no discrete symmetry of the model deviates (known: {known}): there is nothing to repair")


def _stepped(model: mujoco.MjModel, evidence: SimulatedSteps) -> SimulatedSteps:
    """The same states and actions, stepped by another model."""
    simulator = BareSimulator(model)
    return SimulatedSteps(
        simulator, evidence.states, evidence.actions, simulator.steps(evidence.states, evidence.actions)
    )


def _defects(evidence: SimulatedSteps, elements: Elements) -> np.ndarray:
    """The relative defect of the step from each state; nan where either step was faulty."""
    m, s = evidence.images(elements), evidence.outcome
    defects = np.full(len(evidence.states), np.nan)
    defects[faults(s, m) == ""] = Comparison.of_state(elements, evidence.state_keys, s, m).relative
    return defects
