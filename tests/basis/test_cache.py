"""The disk cache: what comes back is what went in, and nothing that happens to the folder makes a solve fail."""

from __future__ import annotations

import errno
import logging
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from forked import start_code

from rppdyn.basis import _solver as solver
from rppdyn.basis import cache, solve
from rppdyn.basis._problem import Problem
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


def test_what_is_faster_to_solve_than_to_read_is_not_kept_nor_what_is_not_to_be(monkeypatch):
    solve(T(4)(SO(3)), cache=False)
    monkeypatch.setattr(solver, "MIN_SECONDS_TO_CACHE", 60.0)
    solve(T(2)(SO(3)))
    assert cache.summary().count == 0


DAMAGES = {
    "truncated": lambda data: data[: len(data) // 2],
    "cut in the header": lambda data: data[:100],
    "empty": lambda data: b"",
    "flipped": lambda data: data[:-3] + bytes([data[-3] ^ 64]) + data[-2:],
    "text": lambda data: b"no basis",
    "header": lambda data: data.replace(b'"rank', b'"rang', 1).replace(b'\\"rank', b'\\"rang', 1),
    "other": None,
}


@pytest.mark.parametrize(
    ("name", "damage"), [*(("isotypic", damage) for damage in DAMAGES), ("orbits", "flipped"), ("complex", "truncated")]
)
def test_damaged_entries_are_solved_again(name, damage, caplog):
    rep = REPS[name]
    expected = solve(rep).dense()
    (path,) = entries()
    if damage == "other":
        resolve(T(3)(SO(3)))
        damaged = next(p for p in entries() if p != path).read_bytes()
    else:
        damaged = DAMAGES[damage](path.read_bytes())
    path.write_bytes(damaged)
    with caplog.at_level(logging.WARNING):
        assert torch.equal(resolve(rep).dense(), expected)
    assert "damaged" in caplog.text
    assert path.read_bytes() != damaged  # the entry is whole again
    caplog.clear()
    resolve(rep)
    assert not caplog.records


@pytest.mark.parametrize("number", [1.0, np.nan])
def test_an_entry_whose_vectors_are_wrong_is_solved_again(number, caplog):
    """Even one with a valid checksum, written by a faulty program."""
    rep = REPS["dense"]
    basis = solve(rep)
    subspace = basis.blocks[0].basis
    subspace.q[:] = number * np.eye(9)[:, :1]
    cache.write(Problem.from_rep(rep), subspace, basis.certificate)
    with caplog.at_level(logging.WARNING):
        q = resolve(rep).dense()
    assert "not invariant" in caplog.text
    assert (q[[0, 4, 8]].abs() - 3**-0.5).abs().max() < 1e-12


def refuse(number):
    def call(*args, **kwargs):
        raise OSError(number, os.strerror(number))

    return call


TROUBLES = {  # what fails, and the words of the one warning
    "full, when renamed": (files.os, "replace", errno.ENOSPC, "No space left"),
    "full, when opened": (files.os, "fdopen", errno.ENOSPC, "No space left"),
    "locked": (files.tempfile, "mkstemp", errno.EACCES, "Permission denied"),
    "unreadable": (Path, "read_bytes", errno.EACCES, "cannot be read"),
}


@pytest.mark.parametrize("trouble", TROUBLES)
def test_trouble_with_the_folder_costs_a_warning(trouble, monkeypatch, caplog):
    place, name, number, words = TROUBLES[trouble]
    if trouble == "unreadable":
        solve(T(4)(SO(3)))
    monkeypatch.setattr(place, name, refuse(number))
    with caplog.at_level(logging.WARNING):
        assert resolve(T(4)(SO(3))).rank == 3
    assert len(caplog.records) == 1 and words in caplog.text
    assert not list(cache.location().glob("*.tmp")), "an interrupted write leaves nothing behind"


def test_a_file_where_the_folder_should_be(monkeypatch, caplog, tmp_path):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("RPPDYN_CACHE_DIR", str(tmp_path / "file"))
    with caplog.at_level(logging.WARNING):
        assert solve(T(4)(SO(3))).rank == 3
    assert caplog.records and cache.summary().count == 0 and cache.clear() == 0


def test_processes_writing_at_once(tmp_path):
    """Two processes solve, write, damage nothing and read each other's entries, over and over."""
    script = """
import logging
from rppdyn.basis import cache, solve, _solver as solver
from rppdyn.basis._problem import Problem
from rppdyn.groups import SO, SU
from rppdyn.reps import T
logging.basicConfig(level=logging.WARNING)
solver.MIN_SECONDS_TO_CACHE = -1.0
reps = [T(4)(SO(3)), T(5)(SO(3)), T(2, 2)(SU(2))]
for i in range(3):
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
