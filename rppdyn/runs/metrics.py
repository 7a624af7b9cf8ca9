"""Metrics as JSON lines: one record per evaluation, the same on every repetition of a run."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rppdyn.runs.files import names_file, plain, write_text

logger = logging.getLogger(__name__)


class MetricsLog:
    """A file of JSON lines, each `{"step": n, name: value, ...}`, appended and flushed to the disk.

    It holds no times, so a resumed run's file is equal, byte by byte, to that of a run that was never interrupted.
    """

    def __init__(self, path: Path):
        self.path = Path(path)

    def append(self, step: int, values: dict[str, Any]) -> None:
        """Add one record; it is on the disk when this returns."""
        line = json.dumps({"step": step, **plain(values, finite=True)}, allow_nan=False)
        with names_file(self.path), open(self.path, "a", encoding="utf-8") as file:
            file.write(line + "\n")
            file.flush()
            os.fsync(file.fileno())

    def last(self) -> dict[str, Any]:
        """The last record; empty where there is none."""
        records = read_metrics(self.path) if self.path.exists() else []
        return records[-1] if records else {}

    def rewind(self, step: int) -> None:
        """Drop the records after `step`, and a last line that a killed process left unfinished."""
        if self.path.exists():
            kept = [record for record in read_metrics(self.path) if record["step"] <= step]
            write_text(self.path, "".join(json.dumps(record, allow_nan=False) + "\n" for record in kept))


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The records of a metrics file, in order; an unfinished last line is left out, a damaged one with a warning.

    Raises:
        ValueError: a line other than the last is no JSON record, or has a step before that of the line above.
    """
    *lines, _ = Path(path).read_bytes().split(b"\n")  # what follows the last newline is empty or unfinished
    records: list[dict[str, Any]] = []
    for number, line in enumerate(lines, start=1):
        try:
            record = _record(line)
            if records and record["step"] < records[-1]["step"]:
                raise ValueError("out of order")
        except ValueError as error:
            said = f"{path}, line {number} is no metrics record: {line[:60].decode(errors='backslashreplace')!r}"
            if number < len(lines):
                raise ValueError(f"{said}; remove the line") from error
            logger.warning("%s; it is left out", said)
        else:
            records.append(record)
    return records


def _record(line: bytes) -> dict[str, Any]:
    """A record: a step, and numbers, lists of them or text, where null is no number.

    Raises:
        ValueError: it is none.
    """
    try:
        record = json.loads(line)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(record, dict) or type(record.get("step")) is not int or record["step"] < 0:
        raise ValueError("no step")
    return record


def series(records: Iterable[Mapping[str, Any]], name: str) -> tuple[list[int], list[float]]:
    """Steps and values of one metric, from the records that have it."""
    points = [(record["step"], record[name]) for record in records if record.get(name) is not None]
    return [step for step, _ in points], [value for _, value in points]
