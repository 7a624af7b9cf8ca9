"""Families of generators on the entries of observations and actions, for `rppdyn discover`: which are vectors."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from rppdyn.equivariance import index_families
from rppdyn.jobs.config.checks import ConfigError
from rppdyn.reps import Rep

AXES = ("x", "y", "z")
Blocks = list[list[int]]


class Family(NamedTuple):
    """A family on inputs and outputs of a function, and the vectors that it moves, in words."""

    rep_in: Rep
    rep_out: Rep
    words: str


def family_of(inputs: Sequence[str], outputs: Sequence[str], blocks: str | None = None) -> Family | None:
    """gl(n) on the vectors among named entries; None where no blocks are asked for and there are no vectors.

    By default one gl(3) moves all of ``NAME x``, ``NAME y``, ``NAME z`` and the columns of rotation matrices, which are
    vectors of the world. Beside a rotation matrix angular velocities are left out: they stand in the body's own axes.

    Args:
        inputs, outputs: names of the entries.
        blocks: names of vectors, separated by commas; behind a semicolon those that another matrix moves. A block of other
            entries is named by all of them, joined by "+".
    Raises:
        ConfigError: a name that there is not, one that is named twice, or blocks of different sizes in one list.
    """
    if blocks is None:
        if not (known := vectors(inputs)):
            return None
        asked = [list(dict.fromkeys([*known, *vectors(outputs)]))]
    else:
        asked = [[name.strip() for name in part.split(",") if name.strip()] for part in blocks.split(";")]
    names = [name for some in asked for name in some]
    if not all(asked) or len(set(names)) < len(names):
        raise ConfigError(f"--blocks {blocks}: name each block once, and at least one between semicolons")
    here, there = (
        [[block for name in some for block in _block(side, name)] for some in asked] for side in (inputs, outputs)
    )
    for name in names:
        if not _block(inputs, name) and not _block(outputs, name):
            raise ConfigError(
                f"--blocks: there is no {name!r} among the entries: choose of {', '.join(vectors(inputs)) or 'entries'}, or "
                f'join entries by "+", of {", ".join(inputs[:12])}{", ..." if len(inputs) > 12 else ""}'
            )
    sizes = []
    for some, first, second in zip(asked, here, there, strict=True):
        lengths = {len(block) for block in first + second}
        if len(lengths) > 1:
            raise ConfigError(
                f"--blocks {', '.join(some)}: blocks of {' and '.join(map(str, sorted(lengths)))} entries can't be moved by "
                "one matrix; put them into different lists, with a semicolon between"
            )
        sizes.append(lengths.pop())
    rep_in, rep_out = index_families(sizes, (len(inputs), here), (len(outputs), there))
    return Family(rep_in, rep_out, "; ".join(", ".join(some) for some in asked))


def vectors(names: Sequence[str]) -> list[str]:
    """The names of the vectors among entries, in their order."""
    stems = dict.fromkeys(re.sub(r" (x|R\[0,0\])$", "", name) for name in names)
    triples = [stem for stem in stems if any(len(block) == 3 for block in _block(names, stem))]
    turns = any("R[0,0]" in name for name in names)
    return [stem for stem in triples if not (turns and stem.endswith("angular velocity"))]


def _block(names: Sequence[str], name: str) -> Blocks:
    """Indices of a vector, or of the columns of a rotation matrix; nothing where there is no such name."""
    index = {each: i for i, each in reversed(list(enumerate(names)))}
    if "+" in name:
        entries = [part.strip() for part in name.split("+")]
        return [[index[part] for part in entries]] if all(part in index for part in entries) else []
    columns = [[f"{name} R[{i},{j}]" for i in range(3)] for j in range(3)]
    if all(part in index for column in columns for part in column):
        return [[index[part] for part in column] for column in columns]
    axes = [index[f"{name} {axis}"] for axis in AXES if f"{name} {axis}" in index]
    return [axes] if len(axes) > 1 else []
