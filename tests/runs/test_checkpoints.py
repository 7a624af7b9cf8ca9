"""Checkpoints: complete or absent, checked when read, the last two kept."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time

import pytest

from rppdyn.runs import CheckpointError, Checkpoints


def write(text):
    return lambda folder: (folder / "data.txt").write_text(text)


def content(checkpoint):
    return (checkpoint.path / "data.txt").read_text()


@pytest.fixture
def checkpoints(tmp_path):
    return Checkpoints(tmp_path / "run" / "checkpoints")


def test_the_latest_is_read_and_two_are_kept(checkpoints):
    (checkpoints.folder / "step-foo").mkdir(parents=True)  # no checkpoint
    assert checkpoints.latest() is None
    for step in (9, 10, 20, 100):
        checkpoints.save(step, write(f"at {step}"))
    latest = checkpoints.latest()
    assert (latest.step, content(latest)) == (100, "at 100")
    checkpoints.save(100, write("again"))
    assert content(checkpoints.latest()) == "again"
    names = sorted(path.name for path in checkpoints.folder.iterdir())
    assert names == ["step-000000000020", "step-000000000100", "step-foo"]
    checkpoints.discard_after(20)
    assert checkpoints.latest().step == 20


def replaced(before: str, after: str):
    return lambda path: path.write_text(path.read_text().replace(before, after))


DAMAGES = {
    "truncated": ("deep/data.txt", lambda path: path.write_bytes(path.read_bytes()[:1])),
    "checksum": ("data.txt", lambda path: path.write_bytes(bytes([path.read_bytes()[0] ^ 1]) + path.read_bytes()[1:])),
    "missing": ("data.txt", lambda path: path.unlink()),
    **{
        f"manifest {text}": ("manifest.json", lambda path, text=text: path.write_text(text))
        for text in ("", "[]", '{"format": 1}', '{"format": 99, "files": {}}')
    },
    **{
        f"manifest {before}": ("manifest.json", replaced(before, after))
        for before, after in (("sha256", "sha25v"), ("bytes", "byte "), ('"step": 2', '"step": 3'),
                              ("data.txt", "\\u0000"), ('"files"', '"files2"'))
    },
}  # fmt: skip


@pytest.mark.parametrize("kind", DAMAGES)
def test_a_damaged_one_is_passed_over_and_named_and_only_damaged_ones_are_an_error(checkpoints, kind, caplog):
    def two_files(folder):
        (folder / "deep").mkdir()
        (folder / "deep" / "data.txt").write_text("two")
        write("two")(folder)

    name, damage = DAMAGES[kind]
    checkpoints.save(1, write("one"))
    damaged = checkpoints.save(2, two_files)
    damage(damaged.path / name)
    assert content(checkpoints.latest()) == "one"
    assert str(damaged.path) in caplog.text and (kind in caplog.text or kind.startswith("manifest"))
    shutil.rmtree(checkpoints.folder / "step-000000000001")
    with pytest.raises(CheckpointError, match="delete the run's folder") as error:
        checkpoints.latest()
    assert str(damaged.path) in str(error.value) and "\n" not in str(error.value)


def test_a_failed_write_leaves_the_earlier_one_alone(checkpoints):
    checkpoints.save(1, write("one"))

    def fail(folder):
        (folder / "data.txt").write_text("half")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        checkpoints.save(2, fail)
    assert checkpoints.latest().step == 1
    assert len(list(checkpoints.folder.iterdir())) == 1
    with pytest.raises(ValueError, match="no files"):
        checkpoints.save(3, lambda folder: None)


SAVE_FOREVER = """
import sys
from rppdyn.runs.files import Checkpoints
checkpoints = Checkpoints(sys.argv[1])
for step in range(1, 10**9):
    checkpoints.save(step, lambda folder: [(folder / f"{i}.bin").write_bytes(b"%d" % step * 20000) for i in range(3)])
    print(step, flush=True)
"""


def test_killed_at_any_moment_the_latest_is_whole(tmp_path):
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    for round_ in range(3):
        process = subprocess.Popen(
            [sys.executable, "-c", SAVE_FOREVER, str(checkpoints.folder)], stdout=subprocess.PIPE, text=True
        )
        process.stdout.readline()
        time.sleep(0.017 * round_)
        os.kill(process.pid, signal.SIGKILL)
        reported = [int(line) for line in process.communicate()[0].split()]
        latest = checkpoints.latest()
        assert latest is not None
        assert latest.step >= max(reported, default=1)
        checkpoints.discard_after(0)
