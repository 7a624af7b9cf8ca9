"""Free shares of agents with learned variances; settings are in `protocol.md`, sections 42 and 47.

python docs/evidence/learned_noise.py RUNS/42/*/seed* RUNS/47/pendulum/*/seed*    # into learned_noise.json, and the table

Rows of the pilot, whose variants of `LearnVariances` are not in the package, stand in the file as they were printed.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from agent_runs import Row
from evidence import write_rows, write_table

from rppdyn.runs import RunFolder
from rppdyn.runs.folder import read_metrics, series

HERE = Path(__file__).parent
DATA, PAGE = HERE / "learned_noise.json", HERE.parent / "concepts" / "marginal-likelihood.md"
MARK = "<!-- table: made by `docs/evidence/learned_noise.py` -->"
ARMS = {"42": "2048 rows, measured noise, fresh seeds", "47": "the same, actors by squared weights, fresh seeds"}
"""Arms by the section whose folder their runs are in."""


def read(paths: list[Path]) -> list[Row]:
    """One row for each wind: the last return and the actor's last free share of each seed."""
    rows: dict[tuple[str, float], Row] = {}
    for folder in map(RunFolder.open, paths):
        config, metrics = folder.config(), read_metrics(folder.metrics.path)
        wind = float(config["env"]["kwargs"]["wind"])
        arm = next(ARMS[part] for part in folder.path.parts if part in ARMS)
        new: Row = {"arm": arm, "wind": wind, "seeds": [], "steps": [], "returns": [], "shares": []}
        row = rows.setdefault((arm, wind), new)
        for key, value in (("seeds", config["seed"]), ("steps", metrics[-1]["step"])):
            row[key].append(value)
        for key, metric in (("returns", "eval/return_mean"), ("shares", "pathway/actor_free_share")):
            row[key].append(float(f"{series(metrics, metric)[1][-1]:.4g}"))
        row["commit"] = (folder.result()["provenance"]["commit"] or "")[:7]
    return list(rows.values())


def table(rows: list[Row]) -> str:
    """Free shares, from the smallest to the largest of the seeds, and mean returns, in both winds."""
    lines = ["| | seeds | steps | still air: share | return | wind 0.03: share | return |", f"| --- |{' ---: |' * 6}"]
    for arm in dict.fromkeys(row["arm"] for row in rows):
        here = {row["wind"]: row for row in rows if row["arm"] == arm}
        first, cells = next(iter(here.values())), []
        for wind in (0.0, 0.03):
            if (row := here.get(wind)) is None:
                cells += ["–", "–"]
                continue
            low, high = min(row["shares"]), max(row["shares"])
            cells += [f"{low:.2g} to {high:.2g}", f"{sum(row['returns']) / len(row['returns']):.0f}"]
        lines.append(f"| {arm} | {len(first['seeds'])} | {first['steps'][0]:,} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    found = json.loads(DATA.read_text(encoding="utf-8"))
    if new := read([Path(path) for path in sys.argv[1:]]):
        read_again = {(row["arm"], row["wind"]) for row in new}
        found = [row for row in found if (row["arm"], row["wind"]) not in read_again] + new
        write_rows(DATA, found)
    write_table(PAGE, MARK, table(found))
    print(table(found))
