"""A session: what is due, what is kept of an interrupted run, and what is refused."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from rppdyn.runs import RunFolder, RunFolderError, RunResult, Session, read_metrics
from rppdyn.runs.session import LOGGERS, Meter


@dataclass
class Settings:
    place: str
    loggers: list[str] = field(default_factory=list)

    def folder(self) -> Path:
        return Path(self.place)


@dataclass
class Result(RunResult):
    steps: int


class Counter:
    """Counts its steps, and fails after some of them."""

    def __init__(self) -> None:
        self.count = 0

    def load(self, checkpoint: Path) -> None:
        self.count = int((checkpoint / "count.txt").read_text())

    def save(self, checkpoint: Path) -> None:
        (checkpoint / "count.txt").write_text(str(self.count))

    def run(self, run: Session, steps: int, fails_at: int | None = None) -> None:
        run.begin(self.load, evaluate_every=2, checkpoint_every=3)
        for step in range(run.saved, steps):
            if run.due(step):
                run.record(step, {"count": self.count})
            if step == fails_at:
                raise KeyboardInterrupt
            self.count += 1
            if run.save_due(step + 1):
                run.checkpoint(step + 1, self.save)
        run.finish(Result(str(run.folder.path), self.count))


def interrupted(settings: Settings, fails_at: int) -> RunFolder:
    with pytest.raises(KeyboardInterrupt), Session(settings) as run:
        Counter().run(run, 10, fails_at)
    return RunFolder(settings.folder())


def resumed(settings: Settings, steps: int = 10) -> list[dict]:
    with Session(settings) as run:
        Counter().run(run, steps)
    result = run.folder.result()
    assert result["steps"] == steps and {"commit", "command"} <= result["provenance"].keys()
    return read_metrics(run.folder.metrics.path)


@pytest.mark.parametrize("fails_at", [0, 2, 3, 6, 9])
def test_a_run_that_was_interrupted_ends_as_if_it_had_not_been(tmp_path, fails_at):
    whole = resumed(Settings(str(tmp_path / "whole")))
    assert [record["step"] for record in whole] == [0, 2, 4, 6, 8]
    settings = Settings(str(tmp_path / "run"))
    folder = interrupted(settings, fails_at)
    assert folder.result() is None
    assert resumed(settings) == whole


def test_a_checkpoint_without_the_step_of_the_last_record_keeps_the_records_up_to_its_own(tmp_path):
    """As fits of earlier versions wrote them."""
    settings = Settings(str(tmp_path / "run"))
    folder = interrupted(settings, 7)
    checkpoint = folder.checkpoints.latest()
    assert json.loads((checkpoint.path / "state.json").read_text()) == {"step": 6, "evaluated": 4}
    manifest = checkpoint.path / "manifest.json"
    content = json.loads(manifest.read_text())
    del content["files"]["state.json"]
    manifest.write_text(json.dumps(content))
    (checkpoint.path / "state.json").unlink()
    with Session(settings) as run:
        run.begin(Counter().load, evaluate_every=2, checkpoint_every=3)
        assert (run.saved, run.recorded, run.measured) == (6, 6, 6)
        assert not run.due(6) and run.due(8) and not run.save_due(8) and run.save_due(9)


def test_lost_records_are_told_of_and_measured_anew(tmp_path, caplog):
    settings = Settings(str(tmp_path / "run"))
    folder = interrupted(settings, 7)
    folder.metrics.path.unlink()
    assert [record["step"] for record in resumed(settings)] == [6, 8]
    assert "ends at step -1, and the run was evaluated at step 4: records are lost" in caplog.text


def test_the_commit_is_that_which_the_process_began_with(tmp_path, monkeypatch):
    settings = Settings(str(tmp_path / "run"))
    monkeypatch.setattr("rppdyn.runs.session.provenance", lambda: {"begun": settings.folder().exists()})
    with Session(settings) as run:
        Counter().run(run, 1)
    assert run.folder.result()["provenance"] == {"begun": False}


def test_one_process_at_a_time_and_no_beginning_anew_after_the_end(tmp_path):
    settings = Settings(str(tmp_path / "run"))
    with Session(settings) as first, Session(settings) as second:
        first.begin(Counter().load, evaluate_every=2, checkpoint_every=3)
        with pytest.raises(RunFolderError, match="is being written by another process"):
            second.begin(Counter().load, evaluate_every=2, checkpoint_every=3)
    resumed(settings)
    for checkpoint in (tmp_path / "run" / "checkpoints").iterdir():
        for file in checkpoint.iterdir():
            file.unlink()
        checkpoint.rmdir()
    with pytest.raises(RunFolderError, match="trained to its end and has no checkpoints"):
        resumed(settings)


def test_loggers_are_told_a_number_once_at_a_step(tmp_path, monkeypatch):
    told: list[tuple[dict, int]] = []

    class Logger:
        def write(self, values, step):
            told.append((values, step))

        def close(self):
            told.append(({}, -1))

    monkeypatch.setitem(LOGGERS, "tensorboard", lambda *arguments: Logger())
    with Session(Settings(str(tmp_path / "run"), loggers=["tensorboard"])) as run:
        run.begin(Counter().load, evaluate_every=2, checkpoint_every=3)
        run.log({"train/loss": 1.0}, 0)
        run.record(
            0, {"train/loss": 1.0, "train/rate": 2.0, "each": [1, 2], "error": 0.5}, {"seconds": 3.0}, ("train/",)
        )
    assert told == [({"train/loss": 1.0}, 0), ({"error": 0.5, "seconds": 3.0}, 0), ({}, -1)]


def test_a_narrow_terminal_shows_whole_parts_of_a_line():
    """A number that is cut is another number."""
    values = dict(n=12345, total=250_000, elapsed=61, unit="step", prefix="Ant-v5 rpp", postfix="return=812")
    whole = Meter.format_meter(ncols=140, **values)
    numbers = [part for part in whole.replace("/", " ").split() if part[0].isdigit()]
    for columns in range(40, 120, 3):
        line = Meter.format_meter(ncols=columns, **values)
        shown = [part for part in line.replace("/", " ").split() if part[0].isdigit()]
        assert len(line) <= columns and shown == numbers[: len(shown)], line
