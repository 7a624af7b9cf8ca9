r"""Groups of the plane that Lie-group filters know: translations with a group H of rotations or scalings of their own.

Feature maps are functions on the group, ``x(p, h)`` at pixels p and N elements h of H: channels are ``(c, j)``, N for each
field c, j fastest. Coordinates t of H are angles in half turns, or logarithms of scales in octaves. Elements are evenly
spread and begin at an offset, which all layers of a network share and which may be drawn anew for each pass.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from rppdyn.images.anchors import Kind

__all__ = ["GROUPS", "PlaneGroup"]


@dataclass(frozen=True)
class PlaneGroup:
    r"""Translations T(2), semidirect with H: elements ``(p, t)`` act as :math:`q \mapsto p + A_t q`.

    Attributes:
        name: as printed.
        kind: of the basis function on H; None where H is trivial.
        span: from the first to the last coordinate of H, as Monte Carlo samples it, in units of t.
        elements: how many elements H has; None if it is continuous.
    """

    name: str
    kind: Kind | None
    span: float = 0.0
    elements: int | None = None

    def check_elements(self, count: int | None) -> int:
        """How many elements of H there are to be.

        Raises:
            ValueError: none, or another number than H has.
        """
        count = (self.elements or 8) if count is None else count
        if count < 1 or self.elements not in (None, count):
            allowed = "one or more" if self.elements is None else self.elements
            raise ValueError(f"elements={count} of {self.name}: give {allowed}")
        return count

    def coordinates(self, count: int, offset: Tensor) -> Float[Tensor, " N"]:
        """t of so many elements, evenly spread; each is uniform over H where the offset is uniform in [0, 1)."""
        if self.elements is not None:  # all of them
            offset = torch.zeros_like(offset)
        steps = torch.arange(count, dtype=torch.float64, device=offset.device)
        start = -self.span / 2 if self.kind == "rbf" else 0.0
        return start + self.span * (steps + offset) / count

    def matrices(self, t: Float[Tensor, " N"]) -> Float[Tensor, "N 2 2"]:
        """A_t, on ``(row, column)``; a positive rotation is that of :func:`torch.rot90`."""
        if self.kind == "rbf":
            return torch.exp2(t)[:, None, None] * torch.eye(2, dtype=t.dtype, device=t.device)
        cos, sin = (math.pi * t).cos(), (math.pi * t).sin()
        return torch.stack([torch.stack([cos, -sin], -1), torch.stack([sin, cos], -1)], -2)

    def volumes(self, t: Float[Tensor, " N"]) -> Float[Tensor, " N"]:
        r"""The Haar measure's density, :math:`|\det A_t|^{-1}`."""
        return torch.exp2(-2 * t) if self.kind == "rbf" else torch.ones_like(t)


GROUPS: dict[str, PlaneGroup] = {
    "t2": PlaneGroup("T(2)", None, elements=1),
    "p4": PlaneGroup("p4", "periodic", span=2.0, elements=4),
    "se2": PlaneGroup("SE(2)", "periodic", span=2.0),
    "scale": PlaneGroup("T(2) x R+", "rbf", span=1.0),
}
"""By name."""
