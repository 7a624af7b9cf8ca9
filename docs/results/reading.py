"""What the scripts of this folder share: their command line, and what finished runs hold.

Where they take the folders of runs they take files of raw data too, so that a table is made again without the runs, and a
new run is added by naming the file and the run.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from rppdyn.runs import RunFolder, bootstrap_interval, iqm
from rppdyn.runs.files import write_json
from rppdyn.runs.statistics import FEW


def figure_arguments(description: str | None, *files: str) -> argparse.Namespace:
    """The command line ``RUNS... --out FIGURE --json FILE``, and options for other files that are needed."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", metavar="RUN", help="a run's folder, or a file of raw data")
    parser.add_argument("--out", metavar="FILE", help="the figure")
    parser.add_argument("--json", metavar="FILE", help="what the runs hold")
    for option in files:
        parser.add_argument(option, required=True, metavar="FILE")
    return parser.parse_args()


def read(folder: RunFolder) -> dict[str, Any]:
    """What a finished run holds, without where it lay."""
    result = folder.result()
    if result is None:
        raise ValueError(f"{folder.path} is unfinished: leave it out, or let it go on with --resume")
    config = {key: value for key, value in folder.config().items() if key not in ("run_dir", "runs_root")}
    command = [word for word in result["provenance"]["command"] if not word.startswith(("run_dir=", "runs_root="))]
    rest = {key: value for key, value in result.items() if key != "run"}
    return {"config": config, "result": rest | {"provenance": rest["provenance"] | {"command": command}}}


def gather(paths: Sequence[str], read: Callable[[RunFolder], dict[str, Any]] = read) -> list[dict[str, Any]]:
    """What runs hold, by their folders and by files of raw data; of two with one configuration the one named last."""
    found: dict[str, dict[str, Any]] = {}
    for path in paths:
        of = (
            json.loads(Path(path).read_text(encoding="utf-8"))
            if path.endswith(".json")
            else [read(RunFolder.open(path))]
        )
        found |= {json.dumps(run["config"], sort_keys=True): run for run in of}
    return list(found.values())


def keep(arguments: argparse.Namespace, runs: list[dict[str, Any]], draw: Callable[[], Figure] | None = None) -> None:
    """Write the figure, where there is one, and the runs where the command line asks for them."""
    if arguments.out and draw:
        draw().savefig(arguments.out, dpi=150)
    if arguments.json:
        write_json(Path(arguments.json), runs)


def over_seeds(values: list[float | None]) -> str:
    """Interquartile mean and interval of the members that did not diverge; of few the mean, and each."""
    kept = [value for value in values if value is not None]
    if not kept:
        return "-"
    if len(kept) <= FEW:
        return f"{float(iqm(kept)):.3g}" + (f" ({', '.join(f'{v:.3g}' for v in kept)})" if len(kept) > 1 else "")
    low, high = bootstrap_interval(kept)
    return f"{float(iqm(kept)):.3g} [{float(low):.3g}, {float(high):.3g}]"
