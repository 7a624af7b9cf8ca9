"""What fits to data of the user's own share: data in, a fitted function out."""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor, nn

from rppdyn.groups import Group
from rppdyn.jobs.config import notation
from rppdyn.jobs.config.checks import ConfigError
from rppdyn.jobs.fitting.members import StackFit
from rppdyn.reps import Rep, V

__all__ = ["FittedFunction", "as_file", "fitted", "like", "over_members", "vectors", "warn_of_sizes"]

logger = logging.getLogger(__name__)

APART = 1e6
"""Ratio of the sizes of two columns that is worth a warning."""

F = TypeVar("F", bound=StackFit)


@contextmanager
def as_file(data: str | os.PathLike[str] | Mapping[str, Any]) -> Iterator[str]:
    """The path of data in a file; of arrays by name that of an NPZ file, as long as the block lasts."""
    if not isinstance(data, Mapping):
        yield os.fspath(data)
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "arrays.npz")
        arrays: dict[str, Any] = {name: np.asarray(values) for name, values in data.items()}
        np.savez(path, **arrays)
        yield str(path)


def fitted(subject: F) -> F:
    """A subject after all its steps, without a run folder."""
    for step in range(subject.steps):
        subject.step(step)
    subject.give_up()
    return subject


def vectors(text: str | None, group: Group, n: int, key: str, what: str) -> Rep:
    """The representation that a text says, or as many vectors as ``n`` numbers are.

    Raises:
        ConfigError: it has another dimension, or the numbers are no vectors.
    """
    vector = V(group)
    if text is None:
        if n % vector.dim:
            raise ConfigError(
                f"group={group}: it acts on vectors of {vector.dim} numbers, and there are {n} in {what}; say how it acts, "
                f"{key}=T(0)+{max(1, (n - 1) // vector.dim)}*V for example"
            )
        return (n // vector.dim) * vector
    rep = notation.representation(key, text, group)
    if rep.dim != n:
        raise ConfigError(
            f"{key}={text}: under {group} it has {rep.dim} numbers, and there are {n} in {what}; make them the same"
        )
    return rep


def warn_of_sizes(values: Float[Tensor, "N n"], names: Sequence[str]) -> None:
    """Warn of columns of very different sizes, and of those that are constant."""
    for index in (values == values[0]).all(0).nonzero().flatten().tolist():
        logger.warning("%s is %g throughout: it tells nothing; leave it out", names[index], float(values[0, index]))
    sizes = values.square().mean(0).sqrt()
    least, most = int(sizes.argmin()), int(sizes.argmax())
    if sizes[most] >= APART * sizes[least]:
        logger.warning(
            "%s is %.1g times the size of %s: are the units right? Each is fitted in units of its own spread, up to what the "
            "symmetry mixes",
            names[most], float(sizes[most] / sizes[least]), names[least],
        )  # fmt: skip


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
