r"""Disk cache of solved blocks: content-addressed, written atomically, checked when read.

A key is the SHA-256 of the generators' bytes, the structure, the dtype, the tolerances and the format version, so an
entry is never stale. A damaged entry is solved again. Problems with the folder never make a solve fail; they cause one
`logging` warning.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from rppdyn.basis._basis import InvariantSubspace, from_arrays
from rppdyn.basis._problem import RESIDUAL_LIMIT, Array, BasisCertificate, Problem
from rppdyn.runs.files import ArrayCache, CacheSummary

FORMAT_VERSION = 3
MAX_PROBE_WORK = 200_000  # constraints x factors x dimension up to which entries are tested against the constraints
_CACHE = ArrayCache("basis", entry="basis")


def location() -> Path:
    """The folder `basis` in $RPPDYN_CACHE_DIR, else in $XDG_CACHE_HOME/rppdyn, else in ~/.cache/rppdyn."""
    return _CACHE.location


def summary() -> CacheSummary:
    """Folder and size of the cache; an absent or unreadable folder counts as empty."""
    return _CACHE.summary()


def clear() -> int:
    """Delete all entries, and the remains of interrupted writes; returns the number of entries deleted.

    Raises:
        OSError: an entry could not be deleted.
    """
    return _CACHE.clear()


def problem_key(problem: Problem) -> str:
    """Content address of a block's solution."""
    return problem.key(FORMAT_VERSION)


def read(problem: Problem) -> tuple[InvariantSubspace, BasisCertificate] | None:
    """Read the cached solution of a problem; None if there is none or it fails its checks."""
    key = problem_key(problem)
    return _CACHE.read(key, lambda arrays, about: _parse(arrays, about, problem, key))


def write(problem: Problem, subspace: InvariantSubspace, certificate: BasisCertificate) -> None:
    """Store a solution; warn if the folder can't be written to."""
    key = problem_key(problem)
    arrays = subspace.arrays()
    # safetensors has no complex128: store real pairs, and the names of the arrays
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
    """Build a solution from an entry, and check it.

    Raises:
        ValueError, KeyError, ...: the entry is wrong in any way.
    """
    if about["key"] != key:
        raise ValueError("it answers another problem")
    for k in about["complex"]:
        arrays[k] = arrays[k].view(np.complex128)[..., 0]
    subspace = from_arrays(about["kind"], arrays, problem.dtype)
    certificate = BasisCertificate(**about["certificate"]).check(problem.name)
    if subspace.dim != problem.dim or subspace.rank != about["rank"]:
        raise ValueError(f"it has shape ({subspace.dim}, {subspace.rank}) instead of ({problem.dim}, {about['rank']})")
    if subspace.rank and problem.dim * len(problem.factors) * len(problem.scales) <= MAX_PROBE_WORK:
        _probe(problem, subspace)
    return subspace, certificate


def _probe(problem: Problem, subspace: InvariantSubspace) -> None:
    """Check one pseudo-random combination of the basis vectors against the constraints.

    Raises:
        ValueError: it is not invariant, or its length changed.
    """
    beta = torch.cos(1.0 + torch.arange(subspace.rank, dtype=torch.float64) ** 2)[:, None]
    v = subspace.matmul(beta.to(subspace.dtype)).numpy()
    error = abs(np.linalg.norm(v) / float(beta.norm()) - 1)
    if not (error <= 1e-10 and problem.residual(v) <= 10 * RESIDUAL_LIMIT):  # also for nan
        raise ValueError("its vectors are not invariant")
