r"""Disk cache of solved blocks: content-addressed, written atomically, checked when read.

A key is the SHA-256 of the generators' bytes, the structure, the dtype, the tolerances and the format version, so an
entry is never stale. A damaged entry is solved again. Nothing that happens to the folder makes a solve fail: trouble
is one `logging` warning.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from rppdyn.basis.basis import InvariantSubspace, from_arrays
from rppdyn.basis.problem import RESIDUAL_LIMIT, Array, BasisCertificate, Problem
from rppdyn.runs.files import ArrayCache, CacheSummary

FORMAT_VERSION = 3
PROBE_WORK = (
    200_000  # constraints x factors x dimension up to which a read entry is also probed against the constraints
)
_CACHE = ArrayCache("basis", entry="basis")


def location() -> Path:
    """Folder of the cached bases: $RPPDYN_CACHE_DIR, else $XDG_CACHE_HOME/rppdyn, else ~/.cache/rppdyn; in it, `basis`."""
    return _CACHE.location


def summary() -> CacheSummary:
    """Folder and size of the cache; an absent or unreadable folder holds nothing."""
    return _CACHE.summary()


def clear() -> int:
    """Delete all entries, and what interrupted writes left behind; returns the number of entries deleted.

    Raises:
        OSError: an entry could not be deleted.
    """
    return _CACHE.clear()


def problem_key(problem: Problem) -> str:
    """Content address of a block's solution."""
    return problem.key(FORMAT_VERSION)


def read(problem: Problem) -> tuple[InvariantSubspace, BasisCertificate] | None:
    """The cached solution of a problem, or None where there is none or it does not pass its checks."""
    key = problem_key(problem)
    return _CACHE.read(key, lambda arrays, about: _parse(arrays, about, problem, key))


def write(problem: Problem, subspace: InvariantSubspace, certificate: BasisCertificate) -> None:
    """Store a solution; a folder that cannot be written to costs a warning and nothing else."""
    key = problem_key(problem)
    arrays = subspace.arrays()
    # safetensors has no complex128: real pairs, and a list of what they were
    complex_ = sorted(k for k, a in arrays.items() if a.dtype.kind == "c")
    for k in complex_:
        arrays[k] = np.ascontiguousarray(arrays[k]).view(np.float64).reshape(*arrays[k].shape, 2)
    about = {
        "key": key,
        "kind": subspace.kind,
        "dim": subspace.dim,
        "rank": subspace.rank,
        "complex": complex_,
        "certificate": certificate.to_dict(),
    }
    _CACHE.write(key, arrays, about, name=f"the basis of {problem.name}")


def _parse(
    arrays: dict[str, Array], about: dict[str, Any], problem: Problem, key: str
) -> tuple[InvariantSubspace, BasisCertificate]:
    """Check what was read.

    Raises:
        ValueError, KeyError, ...: anything is wrong with it.
    """
    if about["key"] != key:
        raise ValueError("it answers another problem")
    for k in about["complex"]:
        arrays[k] = arrays[k].view(np.complex128)[..., 0]
    subspace = from_arrays(about["kind"], arrays, problem.dtype)
    certificate = BasisCertificate(**about["certificate"]).check(problem.name)
    if subspace.dim != problem.dim or subspace.rank != about["rank"]:
        raise ValueError(f"it has shape ({subspace.dim}, {subspace.rank}) instead of ({problem.dim}, {about['rank']})")
    if subspace.rank and problem.dim * len(problem.factors) * len(problem.scales) <= PROBE_WORK:
        _probe(problem, subspace)
    return subspace, certificate


def _probe(problem: Problem, subspace: InvariantSubspace) -> None:
    """Check one pseudo-random combination of the basis vectors against the constraints.

    Raises:
        ValueError: it is not invariant, or its length changed.
    """
    beta = torch.cos(1.0 + torch.arange(subspace.rank, dtype=torch.float64) ** 2)[:, None]
    v = subspace.matmul(beta.to(subspace.dtype)).numpy()
    off = abs(np.linalg.norm(v) / float(beta.norm()) - 1)
    if not (off <= 1e-10 and problem.residual(v) <= 10 * RESIDUAL_LIMIT):  # nan is off, too
        raise ValueError("its vectors are not invariant")
