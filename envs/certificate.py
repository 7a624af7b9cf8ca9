"""What stepping the simulator from mirrored states found: numbers, verdicts, a table and a dictionary."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from rppdyn.envs.spec import VERDICTS, align

__all__ = ["APPROXIMATE_BELOW", "EXACT_BELOW", "RESET_LEVEL", "Certificate", "Defect", "GeneratorReport"]

EXACT_BELOW = 1e-8
"""A defect whose 95th percentile is below this is called exact: rounding gives 1e-14."""

APPROXIMATE_BELOW = 1.0
"""Below this a defect is called approximate, above it the symmetry is broken.

At 1 the mirrored prediction of a step is as wrong as predicting that nothing moves.
"""

TERMINATION_BELOW = 0.05
"""Share of states whose mirror image may disagree on termination while that is still called approximate."""

RESET_LEVEL = 1e-6
"""Level of the test (Kolmogorov-Smirnov on every coordinate) by which a reset distribution is called not invariant."""


class Defect(NamedTuple):
    """A relative defect over the sampled states: median, 95th percentile, maximum, and the share above `EXACT_BELOW`."""

    median: float
    p95: float
    max: float
    share: float

    @classmethod
    def of(cls, values: np.ndarray) -> Defect:
        median, p95 = np.quantile(values, (0.5, 0.95))
        return cls(float(median), float(p95), float(values.max()), float(np.mean(~(values < EXACT_BELOW))))

    @property
    def verdict(self) -> str:
        """One of "exact", "approximate" and "broken", by the 95th percentile."""
        return _judge(self.p95, EXACT_BELOW, APPROXIMATE_BELOW)


@dataclass(frozen=True)
class GeneratorReport:
    """What was found for one generator.

    Args:
        name: of the symmetry.
        expected: the verdict on the dynamics that the spec states, or "".
        state: defect of one step in positions and velocities, relative to the length of the step.
        observation: the same in the raw observation, and of the observation itself, obs(g s) against g obs(s).
        reward: difference of rewards, relative to their standard deviation over the states.
        termination: share of states that terminate while their mirror images don't, or the reverse.
        reset: largest Kolmogorov-Smirnov distance, over coordinates, between reset states and their mirror images.
        reset_p_value: of that distance, corrected for the number of coordinates.
        reset_coordinate: where it is.
        components: defect of each coordinate, relative to the root mean square of its change in a step.
        constant: coordinates that never varied in the sample, so that nothing was learned about them.
    """

    name: str
    expected: str
    state: Defect
    observation: Defect
    reward: Defect
    termination: float
    reset: float
    reset_p_value: float
    reset_coordinate: str
    components: tuple[tuple[str, Defect], ...]
    constant: tuple[str, ...] = ()

    @property
    def dynamics_verdict(self) -> str:
        """The worse of state and observation."""
        return max(self.state.verdict, self.observation.verdict, key=VERDICTS.index)

    @property
    def reward_verdict(self) -> str:
        return self.reward.verdict

    @property
    def termination_verdict(self) -> str:
        return "exact" if self.termination == 0 else _judge(self.termination, 0.0, TERMINATION_BELOW)

    @property
    def reset_verdict(self) -> str:
        return "no difference found" if self.reset_p_value > RESET_LEVEL else "not invariant"

    def to_dict(self) -> dict:
        defects = {key: getattr(self, key)._asdict() for key in ("state", "observation", "reward")}
        return {
            "name": self.name,
            "expected": self.expected,
            "verdict": {
                "dynamics": self.dynamics_verdict,
                "reward": self.reward_verdict,
                "termination": self.termination_verdict,
                "reset": self.reset_verdict,
            },
            **defects,
            "termination": self.termination,
            "reset": {"distance": self.reset, "p_value": self.reset_p_value, "coordinate": self.reset_coordinate},
            "components": {name: defect._asdict() for name, defect in self.components},
            "constant": list(self.constant),
        }


@dataclass(frozen=True)
class Certificate:
    """The verdict of the simulator on a symmetry spec; see `rppdyn.envs.certify`."""

    env_id: str
    spec_digest: str
    n_states: int
    seed: int
    generators: tuple[GeneratorReport, ...]

    @property
    def dynamics_verdict(self) -> str:
        """The worst verdict on the dynamics over the generators."""
        return max((g.dynamics_verdict for g in self.generators), key=VERDICTS.index)

    @property
    def reward_verdict(self) -> str:
        """The worst verdict on the reward over the generators."""
        return max((g.reward_verdict for g in self.generators), key=VERDICTS.index)

    def to_dict(self) -> dict:
        """JSON-able content."""
        return {
            "env_id": self.env_id,
            "spec_digest": self.spec_digest,
            "n_states": self.n_states,
            "seed": self.seed,
            "exact_below": EXACT_BELOW,
            "approximate_below": APPROXIMATE_BELOW,
            "verdict": {"dynamics": self.dynamics_verdict, "reward": self.reward_verdict},
            "generators": [g.to_dict() for g in self.generators],
        }

    def table(self) -> str:
        """The findings as a table for the terminal."""
        lines = [f"{self.env_id}: one step from {self.n_states} states of random rollouts and from their mirror images"]
        for g in self.generators:
            stated = f" (stated: {g.expected})" if g.expected else ""
            lines += ["", f"{g.name}: dynamics {g.dynamics_verdict}{stated}, reward {g.reward_verdict}", ""]
            rows = [["relative defect", "median", "p95", "max", f"above {EXACT_BELOW:g}", "verdict"]]
            rows += [_row(what, getattr(g, what)) for what in ("state", "observation", "reward")]
            rows.append(["termination", "", "", "", f"{g.termination:.1%}", g.termination_verdict])
            rows.append(["reset", "", "", f"KS {g.reset:.2f}", g.reset_coordinate, g.reset_verdict])
            rows.append([""] * 6)
            rows += [_row(f"  {name}", defect) for name, defect in g.components]
            lines += align(rows)
            if g.constant:
                lines.append(f"never varied, so not tested: {', '.join(g.constant)}")
        lines.append("")
        lines.append(
            f"Verdicts are on the 95th percentile: exact below {EXACT_BELOW:g}, approximate below {APPROXIMATE_BELOW:g} "
            "(as wrong as predicting no motion), else broken."
        )
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.table()


def _judge(value: float, exact_below: float, approximate_below: float) -> str:
    if value < exact_below:
        return "exact"
    return "approximate" if value < approximate_below else "broken"


def _row(name: str, defect: Defect) -> list[str]:
    return [name, *(f"{x:.1e}" for x in defect[:3]), f"{defect.share:.1%}", defect.verdict]
