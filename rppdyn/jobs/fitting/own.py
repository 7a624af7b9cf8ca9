"""What fits to data of the user's own share, whatever they are fits of."""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from jaxtyping import Float
from torch import Tensor

from rppdyn.groups import Group
from rppdyn.jobs.config import notation
from rppdyn.jobs.config.checks import ConfigError
from rppdyn.jobs.fitting.members import StackFit
from rppdyn.reps import Rep, V

__all__ = ["as_file", "fitted", "vectors", "warn_of_sizes"]

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
