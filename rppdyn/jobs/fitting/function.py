"""A fitted function, of rows or of images: raw data in, raw predictions out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

__all__ = ["FittedFunction", "like", "over_members"]

Arrays = NDArray | Tensor


class FittedFunction:
    """Fitted members of one function, of a regression or of images: `predict(x)`, arrays or tensors.

    Args:
        members: from raw inputs to raw outputs, of classifiers logits.
        classes: their names, of classifiers.
    """

    def __init__(self, members: Sequence[nn.Module], classes: Sequence[str] | None = None):
        self.members = [member.eval() for member in members]
        self.classes = None if classes is None else tuple(classes)

    @torch.no_grad()
    def predict(self, x: Arrays, *, members: str = "mean") -> Any:
        """The mean over members of what they say of ``(N, ...)``, or "all" of them along a new first axis."""
        first = next(self.members[0].parameters())
        inputs = torch.as_tensor(x).to(first.dtype)
        return like(x, over_members(torch.stack([member(inputs) for member in self.members]), members))

    def classify(self, x: Arrays) -> list[str]:
        """The names of the classes that the members give the largest mean logits.

        Raises:
            ValueError: the outputs are no classes.
        """
        if self.classes is None:
            raise ValueError("the outputs are numbers, not classes: call predict")
        return [self.classes[index] for index in torch.as_tensor(self.predict(x)).argmax(-1).tolist()]


def over_members(values: Tensor, members: str) -> Tensor:
    """The mean over the first axis, or all.

    Raises:
        ValueError: it is neither "mean" nor "all".
    """
    if members not in ("mean", "all"):
        raise ValueError(f"members={members!r}: give 'mean' or 'all'")
    return values.mean(0) if members == "mean" else values


def like(given: Any, found: Tensor) -> Any:
    """A tensor for a tensor, else an array."""
    return found if isinstance(given, Tensor) else found.numpy()
