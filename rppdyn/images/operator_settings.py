"""What can be configured of pathways that have settings of their own; imports no torch."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

__all__ = ["FORMS", "OperatorSettings"]

FORMS = ("low_rank", "dense", "powers", "shifts")


@dataclass
class OperatorSettings:
    """Which matrices on pixels an operator pathway has; see `rppdyn.images.operators`.

    Raises:
        ValueError: a form, a base or an interpolation that there is not, or a number out of its range.
    """

    form: str = "low_rank"  # or dense (both learned), powers of bases, shifts of a convolution
    count: int = 9  # learned matrices, of which the first is the identity
    rank: int = 8  # of learned matrices of low rank
    trained: bool = True  # false: matrices stay as they were drawn
    drawn: int = 0  # seed of matrices that are not trained
    bases: list[str] = field(default_factory=lambda: ["rotation"])  # generators, whose exponentials are powered
    step: float = 1.0  # how far a base moves the middle of an edge, in pixels
    interpolation: str = "shannon_whittaker"  # of images between pixels; or bilinear, flow
    reach: int = 2  # K: powers from -K to K; of shifts, a kernel of 2 K + 1 pixels
    dilation: int = 1  # powers are multiples of it
    closure: float = 0.0  # factor of the penalty on commutators that leave the span of learned matrices
    orthogonality: float = 0.0  # factor of the penalty on what their Killing form has off the diagonal

    def __post_init__(self) -> None:
        name = "model.operators"
        for key, value, known in (
            ("form", self.form, FORMS),
            ("interpolation", self.interpolation, ("shannon_whittaker", "bilinear", "flow")),
        ):
            if value not in known:
                raise ValueError(f"{name}.{key}={value}: choose one of {', '.join(known)}")
        for key, count, least in ("count", self.count, 2), ("rank", self.rank, 1), ("dilation", self.dilation, 1):
            if not least <= count <= 10_000:
                raise ValueError(f"{name}.{key}={count}: give a number from {least} to 10000")
        if not 0 <= self.reach <= 100:
            raise ValueError(f"{name}.reach={self.reach}: give a number from 0 to 100")
        for key, factor in ("closure", self.closure), ("orthogonality", self.orthogonality):
            if not 0 <= factor < math.inf:
                raise ValueError(f"{name}.{key}={factor}: give a finite number, 0 for no penalty")
        if not math.isfinite(self.step) or self.step == 0:
            raise ValueError(f"{name}.step={self.step}: give a finite number that is not 0")
        if not self.bases:
            raise ValueError(f"{name}.bases is empty: give one generator or more, for example rotation")
        if repeated := [base for base in self.bases if self.bases.count(base) > 1]:
            raise ValueError(f"{name}.bases={self.bases}: {repeated[0]} stands twice; powers of one base are dependent")
