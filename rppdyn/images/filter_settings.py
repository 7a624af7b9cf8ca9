"""What can be configured of pathways of continuous filters; imports no torch."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["FilterSettings"]


@dataclass
class FilterSettings:
    """Anchors and group elements of Lie-group filters; see `rppdyn.images.lie_convolution`.

    Raises:
        ValueError: a number out of its range.
    """

    elements: int = 8  # of SE(2) or of scalings, to stand for all
    redraw: bool = (
        False  # draw elements anew for each training step, alike in all layers; evaluation has the usual ones
    )
    share: float = 1.0  # anchors for each pixel of a filter
    learned: bool = False  # whether anchors move
    omega: float = 1.0  # how much a relaxed pathway relaxes before its variance is learned; 0 is nothing
    penalty: float = 0.0  # above 0 omega is learned with the weights, and this times its square is added to the loss

    def __post_init__(self) -> None:
        for name, value, low, high in (
            ("elements", self.elements, 2, 64),
            ("omega", self.omega, 0, 4),
            ("penalty", self.penalty, 0, 1e6),
        ):
            if not low <= value <= high:
                raise ValueError(f"filters.{name}={value}: give a number from {low} to {high}")
        if not 0 < self.share <= 1:
            raise ValueError(f"filters.share={self.share}: give a number above 0, at most 1")


def elements(settings: FilterSettings | None) -> int:
    """How many elements of a continuous group there are."""
    return (settings or FilterSettings()).elements
