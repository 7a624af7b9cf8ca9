"""CrossQ on Gymnasium's robots beside public levels: `python docs/evidence/crossq.py RUNS/37/*/seed*`.

Settings are in `protocol.md`, sections 37 and 38. Adds the seeds of finished runs to `data/crossq.json`, then draws the figure
and writes the tables of `docs/concepts/rpp-crossq.md`. Without RUNS it reads the file and does the rest again.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from agent_runs import MEANS, Config, Row, arms_table, by_cell, draw, name_of, read_rows, rows_of
from evidence import write_table

HERE = Path(__file__).parent
DATA, PAGE = HERE / "data" / "crossq.json", HERE.parent / "concepts" / "rpp-crossq.md"
MARK = "<!-- table: made by `docs/evidence/crossq.py` -->"
BASE = ("plain", "plain, 5,000 random steps")
PUBLIC = {
    "Hopper-v5": {"CrossQ": (2764, 823), "SAC": 1103},
    "Walker2d-v5": {"CrossQ": (3914, 1729), "SAC": 690},
    "HalfCheetah-v5": {"CrossQ": (8112, 944), "SAC": 6156},
    "Ant-v5": {"CrossQ": (2299, 1347), "SAC": 747},
}
"""Returns at 100,000 steps of the -v4 tasks: of CrossQ the mean and standard deviation over ten seeds, of SAC the mean
(`results/baseline` of the repository `DAVIAN-Robotics/SimbaV2`, commit 86899c2)."""


def cell_of(config: Config) -> str:
    """Name a robot, and whether one leg is weak, or the seed is of validation."""
    leg, validation = (
        ", one leg at half" * bool(config["env"]["actuator_scale"]),
        ", validation" * (config["seed"] >= 2290),
    )
    return config["env"]["id"] + leg + validation


def arm_of(config: Config) -> str:
    """Name an arm as the protocol does."""
    steps, width = config["agent"]["learning_starts"], config["model"]["critic_hidden"]
    name = name_of(config) + ", narrower" * (config["model"]["hidden"] == 64)
    return name + f", {steps:,} random steps" * (steps != 100) + f", critics of {width} units" * (width is not None)


def merged(rows: Sequence[Row], new: Sequence[Row]) -> list[Row]:
    """New rows with the seeds of older ones of their cell and arm that they lack, in the order of seeds."""
    held = {(row["cell"], row["arm"]): row for row in rows}
    for row in new:
        old = held.get((row["cell"], row["arm"]))
        if old is None or set(old["seeds"]) <= set(row["seeds"]):
            continue
        for key in MEANS:
            row.pop(key, None)  # they would be means of the new seeds alone
        each = dict(zip(old["seeds"], zip(old["values"], old["returns"], strict=True), strict=True))
        each |= zip(row["seeds"], zip(row["values"], row["returns"], strict=True), strict=True)
        row["seeds"] = sorted(each)
        row["values"], row["returns"] = ([each[seed][i] for seed in row["seeds"]] for i in (0, 1))
        row["commit"] = " ".join(sorted({*old["commit"].split(), *row["commit"].split()}))
    return list(new)


def base_table(rows: Sequence[Row]) -> str:
    """Final returns of section 37's plain agents beside public levels, as Markdown."""
    lines = [
        "| final return, 100,000 steps | seeds | each | mean | public CrossQ | less one deviation | public SAC |",
        "| --- | ---: | --- | ---: | ---: | ---: | ---: |",
    ]
    for robot, public in PUBLIC.items():
        mean, deviation = public["CrossQ"]
        for arm, row in by_cell(rows)[f"{robot}, 100000 steps"].items():
            if arm not in BASE:
                continue
            final = [curve[-1] for curve in row["returns"]]
            each = ", ".join(f"{value:.0f}" for value in final)
            numbers = (f"{np.mean(final):.0f}", mean, mean - deviation, public["SAC"])
            name = arm.replace("plain", robot)
            lines.append(f"| {name} | {len(final)} | {each} | {' | '.join(map(str, numbers))} |")
    return "\n".join(lines)


def tables(rows: Sequence[Row]) -> str:
    """The base's table, then one for each robot of section 38, which has many arms."""
    robots: dict[str, dict[str, dict[str, Row]]] = {}
    for cell, arms in by_cell(rows).items():
        robot, *state, _ = cell.split(", ")
        if "strict" in arms:
            robots.setdefault(robot, {})[[*state, "intact"][0]] = arms
    return "\n\n".join([
        base_table(rows),
        *(arms_table(f"{robot}, CrossQ", cells, ["learned", "strict"]) for robot, cells in robots.items()),
    ])  # fmt: skip


def main() -> None:
    """Read the runs, and write the file, the figure and the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*", type=Path, metavar="RUNS")
    finished = [path for path in parser.parse_args().runs if (path / "result.json").exists()]
    rows = read_rows(DATA, merged(read_rows(DATA), rows_of(finished, cell_of, arm_of)))
    levels = {
        robot: {"public CrossQ": public["CrossQ"][0], "public SAC": public["SAC"]} for robot, public in PUBLIC.items()
    }
    cells = {cell: arms for cell, arms in by_cell(rows).items() if "validation" not in cell}
    panels = {cell.removesuffix(", 100000 steps"): list(arms.values()) for cell, arms in cells.items()}
    draw(panels, HERE / "crossq.png", levels=levels)
    write_table(PAGE, MARK, tables(rows))
    print(tables(rows))


if __name__ == "__main__":
    main()
