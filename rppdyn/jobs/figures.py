"""Compare runs in one picture: `python -m rppdyn.jobs.figures RUNS... --out FILE`.

Of agents, the learning curves; of fits, the equivariance errors of all members through training.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from rppdyn.jobs.config import compose
from rppdyn.jobs.fitting.figures import compare_equivariance
from rppdyn.runs import RunFolder
from rppdyn.runs.figures import learning_curves, raw_data
from rppdyn.runs.files import write_json


def main(arguments: Sequence[str] | None = None) -> int:
    """Draw the runs named on the command line."""
    parser = argparse.ArgumentParser(prog="python -m rppdyn.jobs.figures", description=__doc__)
    parser.add_argument(
        "runs", nargs="+", metavar="RUN", help="run folders; agents that differ in the seed are one curve"
    )
    parser.add_argument("--out", required=True, metavar="FILE", help="the picture (png, svg or pdf)")
    parser.add_argument("--json", metavar="FILE", help="also write the runs' configurations, results and metrics")
    parsed = parser.parse_args(arguments)
    try:
        if parsed.json:
            write_json(Path(parsed.json), raw_data(parsed.runs))
        agents = [compose.name_of_run(RunFolder.open(run)) == "train_agent" for run in parsed.runs]
        print((learning_curves if all(agents) else compare_equivariance)(parsed.runs, parsed.out))
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
