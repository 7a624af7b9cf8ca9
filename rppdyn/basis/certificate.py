r"""The certificate that every answer of the solver carries, and the error where it cannot be given."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np

from rppdyn.errors import UserError

RESIDUAL_LIMIT = 1e-10
ORTHONORMALITY_LIMIT = 1e-12
RANK_GAP_LIMIT = 1e-6
ZERO = 1e-12
"""Relative singular values up to here are rounding. Those between here and the gap's limit leave the rank undecided: they
may be those of invariants under generators that are not given to full precision, or of vectors that badly skewed axes make
all but invariant."""


class NotCertified(UserError):
    """The invariants of a representation could not be told from near-invariants, so no basis is returned."""


@dataclass(frozen=True)
class Certificate:
    """Evidence that a basis spans the invariants, no less and no more.

    Args:
        residual: largest |C_i q| over constraints i and basis vectors q, C_i scaled to (at most) unit norm.
        orthonormality: largest entry of |Q^H Q - I| in absolute value.
        rank_gap: how far the nearest vector outside the answer is from being invariant, relative to 1. Dense: the
            smallest singular value of the constraints that was taken as non-zero, over the largest. Isotypic: the
            smallest of the eigenvalue gaps, link strengths and loop strengths that the upper bound on the rank rests
            on. Iterative: the smallest non-zero singular value found by inverse iteration. Orbits: 1, the rank is
            counted in integers.
        strategy: "orbits", "isotypic", "dense" or "iterative", with "similar" where it was taken in other coordinates;
            several, joined by "+", for a representation of several blocks.
    """

    residual: float
    orthonormality: float
    rank_gap: float
    strategy: str

    def check(self, name: str) -> Certificate:
        """Return self if every limit holds.

        Raises:
            NotCertified: naming the representation, the number that fails and its limit.
        """
        for label, value, limit, ok in (
            ("residual", self.residual, RESIDUAL_LIMIT, self.residual <= RESIDUAL_LIMIT),
            ("orthonormality", self.orthonormality, ORTHONORMALITY_LIMIT, self.orthonormality <= ORTHONORMALITY_LIMIT),
            ("rank gap", self.rank_gap, RANK_GAP_LIMIT, self.rank_gap >= RANK_GAP_LIMIT),
        ):
            if not ok:
                raise NotCertified(
                    f"no certified basis of {name}: {label} {value:.2e} misses its limit {limit:.0e} ({self.strategy}); "
                    "give the generators to full float64 precision, and none that nearly coincide"
                )
        return self

    def to_dict(self) -> dict[str, float | str]:
        """Plain data, for the cache and for reports."""
        return asdict(self)

    @staticmethod
    def worst(parts: list[Certificate]) -> Certificate:
        """The certificate of an orthogonal direct sum: the worst number of each kind."""
        if not parts:
            return Certificate(0.0, 0.0, 1.0, "orbits")
        return Certificate(
            float(np.max([p.residual for p in parts])),  # nan where one is nan
            float(np.max([p.orthonormality for p in parts])),
            float(np.min([p.rank_gap for p in parts])),
            "+".join(sorted({s for p in parts for s in p.strategy.split("+")})),
        )
