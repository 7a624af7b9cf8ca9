"""One damaged file of a finished run: what a disk, an editor or a transfer can do to it."""

from __future__ import annotations

import random
from pathlib import Path


def damaged_file(folder: Path, rng: random.Random) -> str:
    """Damage one file of a folder in one place; says what was done, and to which."""
    files = sorted(
        path for path in folder.rglob("*") if path.is_file() and path.name != ".lock" and path.stat().st_size
    )
    path = rng.choice(files)
    data = bytearray(path.read_bytes())
    # half of the time near an end, where headers and last lines are
    at = rng.randrange(len(data)) if rng.random() < 0.5 else rng.choice([-1, 1]) * rng.randrange(min(len(data), 40))
    kind = rng.choice(["another byte", "another bit", "no byte", "one more byte", "truncated", "not UTF-8 at the end"])
    if kind == "another byte":
        data[at] = rng.randrange(256)
    elif kind == "another bit":
        data[at] ^= 1 << rng.randrange(8)
    elif kind == "no byte":
        del data[at]
    elif kind == "one more byte":
        data.insert(at, rng.randrange(256))
    elif kind == "truncated":
        del data[at:]
    else:
        data += b"\xff"
    path.write_bytes(data)
    return f"{path.relative_to(folder)}: {kind} at {at}"
