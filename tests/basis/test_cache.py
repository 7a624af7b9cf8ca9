"""The disk cache: what comes back is what went in, and nothing that happens to the folder makes a solve fail."""

from __future__ import annotations

import errno
import logging
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from forked import start_code

from rppdyn.basis import _solver as solver
from rppdyn.basis import cache, solve
from rppdyn.basis._basis import DenseSubspace
from rppdyn.basis._problem import BasisCertificate, NotCertified, Problem
from rppdyn.groups import O13, SO, SU, Group, RubiksCube
from rppdyn.reps import T
from rppdyn.runs import files

REPS = {
    "isotypic": T(6)(O13()),
    "one half": T(5)(SO(3)),
    "complex": T(3, 3)(SU(2)),
    "dense": T(2)(SO(3)),
    "orbits": T(2)(RubiksCube()),
    "signed orbits": T(3)(Group("f", discrete_generators=torch.tensor([[[-1.0, 0, 0], [0, 0, 1], [0, 1, 0]]]))),
    "nothing": T(1)(SO(3)),
}


@pytest.fixture(autouse=True)
def fresh(tmp_path, monkeypatch):
    """An empty cache folder, an empty memory, and everything worth keeping."""
    monkeypatch.setenv("RPPDYN_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(solver, "MIN_SECONDS_TO_CACHE", -1.0)
    solver.memory.clear()
    yield
    solver.memory.clear()


def entries() -> list[Path]:
    return sorted(cache.location().glob("*.safetensors"))


def resolve(rep):
    solver.memory.clear()
    return solve(rep)


def forbid_solving(monkeypatch):
    def refuse(problem):
        raise AssertionError(f"solved {problem.name} again")

    monkeypatch.setattr(solver, "solve_problem", refuse)


@pytest.mark.parametrize("name", REPS)
def test_round_trip(name, monkeypatch):
    rep = REPS[name]
    first = solve(rep)
    assert cache.summary().count == 1 and cache.summary().bytes == entries()[0].stat().st_size
    forbid_solving(monkeypatch)
    assert solve(rep).blocks[0].basis is first.blocks[0].basis  # from memory
    again = resolve(rep)  # from disk
    assert torch.equal(again.dense(), first.dense())
    assert again.certificate == first.certificate and again.dtype == first.dtype
    assert cache.clear() == 1 and cache.summary().count == 0


def test_location(monkeypatch, tmp_path):
    assert cache.location() == tmp_path / "cache" / "basis"
    monkeypatch.delenv("RPPDYN_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache.location() == tmp_path / "xdg" / "rppdyn" / "basis"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache.location() == tmp_path / "home" / ".cache" / "rppdyn" / "basis"
    monkeypatch.setenv("RPPDYN_CACHE_DIR", "~/kept")
    assert cache.location() == tmp_path / "home" / "kept" / "basis"


def test_what_is_faster_to_solve_than_to_read_is_not_kept(monkeypatch):
    monkeypatch.setattr(solver, "MIN_SECONDS_TO_CACHE", 60.0)
    solve(T(2)(SO(3)))
    assert cache.summary().count == 0


def test_no_cache_means_no_cache():
    solve(T(4)(SO(3)), cache=False)
    assert cache.summary().count == 0


def test_keys_follow_content_not_names():
    a, b = SO(2).lie_algebra, torch.zeros(2, 1, 4, 4, dtype=torch.float64)
    b[0, 0, :2, :2], b[1, 0, 2:, 2:] = a[0], a[0]
    one, two = (Group("SO(2)", lie_algebra=x) for x in b)
    q = [solve(T(1)(G)).project(torch.eye(4, dtype=torch.float64)) for G in (one, two)]
    assert (q[0] - q[1]).abs().max() > 0.5
    keys = {cache.problem_key(Problem.from_rep(T(k)(G))) for k in (2, 3) for G in (one, two, SO(3), SU(2))}
    assert len(keys) == 8


@pytest.mark.parametrize("name", ["isotypic", "orbits", "dense", "complex"])
@pytest.mark.parametrize("damage", ["truncated", "empty", "flipped", "zeros", "text", "header", "other"])
def test_damaged_entries_are_solved_again(name, damage, caplog):
    rep = REPS[name]
    expected = solve(rep).dense()
    (path,) = entries()
    data = path.read_bytes()
    if damage == "flipped":
        damaged = bytearray(data)
        damaged[-3] ^= 64
    elif damage == "header":
        damaged = data.replace(b'"rank', b'"rang', 1).replace(b'\\"rank', b'\\"rang', 1)
    elif damage == "other":
        solver.memory.clear()
        solve(T(3)(SO(3)))
        damaged = next(p for p in entries() if p != path).read_bytes()
    else:
        damaged = {"truncated": data[: len(data) // 2], "empty": b"", "zeros": bytes(len(data)), "text": b"no basis"}[
            damage
        ]
    path.write_bytes(damaged)
    with caplog.at_level(logging.WARNING):
        assert torch.equal(resolve(rep).dense(), expected)
    assert "damaged" in caplog.text
    assert path.read_bytes() != bytes(damaged)  # and the entry is whole again
    caplog.clear()
    resolve(rep)
    assert not caplog.records


def test_truncation_anywhere_near_the_header():
    rep = REPS["orbits"]
    expected = solve(rep).rank
    (path,) = entries()
    for size in range(0, 400, 21):
        path.write_bytes(path.read_bytes()[:size])
        assert resolve(rep).rank == expected and len(path.read_bytes()) > 400


def test_an_entry_whose_vectors_are_wrong_is_solved_again(caplog):
    """Even one with a valid checksum, written by a faulty program."""
    rep = REPS["dense"]
    basis = solve(rep)
    problem = Problem.from_rep(rep)
    subspace = basis.blocks[0].basis
    subspace.q[:] = np.eye(9)[:, :1]
    cache.write(problem, subspace, basis.certificate)
    with caplog.at_level(logging.WARNING):
        q = resolve(rep).dense()
    assert "not invariant" in caplog.text
    assert (q[[0, 4, 8]].abs() - 3**-0.5).abs().max() < 1e-12


def test_full_disk(monkeypatch, caplog):
    def full(*args, **kwargs):
        raise OSError(errno.ENOSPC, "No space left on device")

    for target in ("replace", "fdopen"):
        solver.memory.clear()
        caplog.clear()
        with monkeypatch.context() as patch, caplog.at_level(logging.WARNING):
            patch.setattr(files.os, target, full)
            assert solve(T(4)(SO(3))).rank == 3
        assert len(caplog.records) == 1 and "No space left" in caplog.text
        assert not list(cache.location().glob("*")), "an interrupted write leaves nothing behind"


def test_read_only_folder(monkeypatch, caplog, tmp_path):
    """Root writes to read-only folders, so a file stands where the folder should be, and opening is refused as well."""
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("RPPDYN_CACHE_DIR", str(tmp_path / "file"))
    with caplog.at_level(logging.WARNING):
        assert solve(T(4)(SO(3))).rank == 3
    assert caplog.records and cache.summary().count == 0 and cache.clear() == 0

    folder = tmp_path / "locked"
    folder.mkdir()
    folder.chmod(0o500)
    monkeypatch.setenv("RPPDYN_CACHE_DIR", str(folder))

    def refuse(*args, **kwargs):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(files.tempfile, "mkstemp", refuse)
    solver.memory.clear()
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        assert solve(T(4)(SO(3))).rank == 3
    assert "Permission denied" in caplog.text
    folder.chmod(0o700)


def test_unreadable_entry(monkeypatch, caplog):
    solve(T(4)(SO(3)))

    def refuse(self):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with caplog.at_level(logging.WARNING):
        assert resolve(T(4)(SO(3))).rank == 3
    assert "cannot be read" in caplog.text


def test_processes_writing_at_once(tmp_path):
    """Two processes solve, write, damage nothing and read each other's entries, over and over."""
    script = """
import logging
from rppdyn.basis import cache, solve, _solver as solver
from rppdyn.basis._problem import BasisCertificate, NotCertified
from rppdyn.basis._problem import Problem
from rppdyn.basis._basis import DenseSubspace
from rppdyn.groups import SO, SU
from rppdyn.reps import T
from rppdyn.runs import files
logging.basicConfig(level=logging.WARNING)
solver.MIN_SECONDS_TO_CACHE = -1.0
reps = [T(4)(SO(3)), T(5)(SO(3)), T(2, 2)(SU(2))]
for i in range(4):
    for rep in reps:
        solver.memory.clear()
        basis = solve(rep)
        cache.write(Problem.from_rep(rep), basis.blocks[0].basis, basis.certificate)
        assert cache.read(Problem.from_rep(rep)) is not None
print("done", [solve(r).rank for r in reps])
"""
    folders = [tmp_path / "one", tmp_path / "other"]
    for folder in folders:
        folder.mkdir()
    runs = [start_code(script, folder=folder) for folder in folders]
    for run in runs:
        out, err = run.communicate(timeout=120)
        assert run.returncode == 0, err
        assert out.strip() == "done [3, 6, 2]" and "WARNING" not in err, err
    assert cache.summary().count == 3 and not list(cache.location().glob("*.tmp"))


def test_a_killed_writer_leaves_no_entry_and_clear_removes_its_remains():
    cache.location().mkdir(parents=True)
    (cache.location() / "abcdef.tmp").write_bytes(b"half")
    assert cache.summary().count == 0
    assert cache.clear() == 0 and not list(cache.location().iterdir())


def test_vectors_that_are_no_numbers_are_not_invariant():
    problem = Problem.from_rep(T(2)(SO(3)))
    basis = np.eye(9)[:, :2]
    basis[3, 0] = np.nan
    assert np.isnan(problem.residual(basis))
    with pytest.raises(ValueError, match="not invariant"):
        cache._probe(problem, DenseSubspace(np.full((9, 1), np.nan)))


@pytest.mark.parametrize("order", [1, -1])
def test_the_worst_certificate_is_one_without_numbers(order):
    good = BasisCertificate(1e-15, 1e-15, 0.1, "dense")
    for name in ("residual", "orthonormality", "rank_gap"):
        parts = [good, replace(good, **{name: math.nan}), good][::order]
        with pytest.raises(NotCertified):
            BasisCertificate.worst(parts).check("a representation")
        with pytest.raises(NotCertified):
            BasisCertificate.worst(parts[:2]).check("a representation")
