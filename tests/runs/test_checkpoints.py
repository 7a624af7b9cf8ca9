"""Checkpoints: complete or absent, checked when read, the last two kept."""

from __future__ import annotations

import json
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


DAMAGES = {
    "truncated": lambda path: path.write_bytes(path.read_bytes()[:1]),
    "checksum": lambda path: path.write_bytes(bytes([path.read_bytes()[0] ^ 1]) + path.read_bytes()[1:]),
    "missing": lambda path: path.unlink(),
}


@pytest.mark.parametrize("kind", DAMAGES)
def test_a_damaged_one_is_passed_over_and_named_and_only_damaged_ones_are_an_error(checkpoints, kind, caplog):
    checkpoints.save(1, write("one"))
    damaged = checkpoints.save(2, write("two"))
    DAMAGES[kind](damaged.path / "data.txt")
    assert content(checkpoints.latest()) == "one"
    assert kind in caplog.text and str(damaged.path / "data.txt") in caplog.text
    shutil.rmtree(checkpoints.folder / "step-000000000001")
    with pytest.raises(CheckpointError, match="delete the run's folder") as error:
        checkpoints.latest()
    assert str(damaged.path / "data.txt") in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 1}', '{"format": 99, "files": {}}'])
def test_a_damaged_manifest_is_found(checkpoints, text):
    saved = checkpoints.save(2, write("two"))
    (saved.path / "manifest.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"manifest|format 99"):
        checkpoints.latest()


@pytest.mark.parametrize("before, after", [("sha256", "sha25v"), ("bytes", "byte "), ('"step": 2', '"step": 3'),
                                           ("data.txt", "\\u0000"), ('"files"', '"files2"')])  # fmt: skip
def test_a_damaged_key_of_a_manifest_goes_back_to_the_one_before(checkpoints, before, after, caplog):
    checkpoints.save(1, write("one"))
    manifest = checkpoints.save(2, write("two")).path / "manifest.json"
    assert before in manifest.read_text()
    manifest.write_text(manifest.read_text().replace(before, after))
    assert content(checkpoints.latest()) == "one"
    assert str(manifest.parent) in caplog.text


def test_a_failed_write_leaves_the_earlier_one_alone(checkpoints):
    checkpoints.save(1, write("one"))

    def fail(folder):
        (folder / "data.txt").write_text("half")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        checkpoints.save(2, fail)
    assert checkpoints.latest().step == 1
    assert len(list(checkpoints.folder.iterdir())) == 1


def test_files_in_subfolders_are_checked_too(checkpoints):
    def nested(folder):
        (folder / "deep").mkdir()
        (folder / "deep" / "data.txt").write_text("deep")

    saved = checkpoints.save(1, nested)
    manifest = json.loads((saved.path / "manifest.json").read_text())
    assert list(manifest["files"]) == ["deep/data.txt"]
    (saved.path / "deep" / "data.txt").write_text("dee")
    with pytest.raises(CheckpointError, match="truncated"):
        checkpoints.latest()


def test_an_empty_checkpoint_and_no_room_for_one_are_refused(tmp_path):
    with pytest.raises(ValueError, match="no files"):
        Checkpoints(tmp_path).save(1, lambda folder: None)
    with pytest.raises(ValueError, match="keep = 0"):
        Checkpoints(tmp_path, keep=0)


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
    for round_ in range(4):
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
