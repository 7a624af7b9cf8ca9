"""Add finished fits to a raw file of the evidence: `python docs/evidence/gather.py RUNS... --data FILE.json`.

Each becomes one row: the cell (task, group, wind), the arm (model, variance), seeds, each seed's metric,
commit and command. A row that the file has already, of the same cell, arm and seeds, is replaced. `--note` is added to the
cell's name, so that runs of different settings stay apart.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from evidence import write_rows

from rppdyn.runs import RunFolder

Row = dict[str, Any]
OWN_GROUPS = {"lorentz": "O(1,3)", "o5_invariant": "O(5)"}  # of tasks; that of the others is O(3)


def arm_of(model: dict[str, Any]) -> str:
    """Name a network: its kind and free variance, a number or a word; `control` where both pathways have the same."""
    form = ", channel-wise" if model.get("bilinear") == "channelwise" else ""
    if model["kind"] == "emlp":
        return "emlp" + form
    if model["kind"] == "rpp" and model["equivariant_variance"] == model["free_variance"]:
        return "control"
    free = model["free_variance"]
    return f"{model['kind']}, {free if isinstance(free, str) else format(free, 'g')}" + form


def row_of(folder: RunFolder, note: str) -> Row:
    """Read a fit's test errors."""
    config, result = folder.config(), folder.result()
    if result is None:
        raise ValueError(f"{folder.path} is unfinished: leave it out, or let it go on with --resume")
    task = config["task"]
    wind = f", wind {task['wind']:g}" if task.get("wind") is not None else ""
    name = task["name"].removeprefix("windy_")
    group = (task.get("group") or OWN_GROUPS.get(name, "O(3)")).replace("2eR3()", "(2)")
    cell = f"{name}, {group}" + (wind or f", {task['train']} data")
    arm = arm_of(config["model"]) + (", augmented" if task.get("augment") else "")
    seeds, values = result["seeds"], result["test"]["test/error"]
    provenance = result["provenance"]
    command = " ".join(["rppdyn", *(word for word in provenance["command"][1:] if word != "--resume")])
    return {"cell": cell + note, "arm": arm, "seeds": seeds, "values": [float(f"{value:.5g}") for value in values],
            "commit": (provenance["commit"] or "")[:7], "command": command}  # fmt: skip


def gather(paths: list[Path], data: Path, note: str = "") -> None:
    """Add fits to a raw file."""
    rows = json.loads(data.read_text(encoding="utf-8")) if data.exists() else []
    for path in paths:
        new = row_of(RunFolder.open(path), note)
        same = [row for row in rows if all(row[key] == new[key] for key in ("cell", "arm", "seeds"))]
        rows = [row for row in rows if row not in same] + [new]
        print(f"{new['cell']} | {new['arm']} | {len(new['seeds'])} seeds")
    write_rows(data, rows)


def main() -> None:
    """Read the runs and write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUNS")
    parser.add_argument("--data", type=Path, required=True, metavar="FILE")
    parser.add_argument("--note", default="", help='added to the cells, such as ", protocol 1"')
    arguments = parser.parse_args()
    gather(arguments.runs, arguments.data, arguments.note)


if __name__ == "__main__":
    main()
