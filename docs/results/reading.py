"""What the scripts of this folder share: their command line, and what a finished run holds."""

from __future__ import annotations

import argparse
from typing import Any

from rppdyn.runs import RunFolder


def figure_arguments(description: str | None, *files: str) -> argparse.Namespace:
    """The command line ``RUNS... --out FIGURE --json FILE``, and options for other files that are needed."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", metavar="RUN")
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
    return {"config": config, "result": {key: value for key, value in result.items() if key != "run"}}
