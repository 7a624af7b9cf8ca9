"""Agents on tasks with large groups that are broken in one place; settings are in `protocol.md`, sections 40, 43 to 47 and 49.

python docs/evidence/large_groups.py --specs                    # write the specs of the arms *wrong* and *plain-learned*
python docs/evidence/large_groups.py --rates RUNS/40-rates/*/seed*
python docs/evidence/large_groups.py RUNS/4[034569]/*/seed* RUNS/4[79]/[ans]*/*/seed*

The last adds to large_groups.json, and draws figure and table.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from agent_runs import Config, Row, arms_table, by_cell, draw, name_of, read_rows, rows_of
from evidence import write_table

from rppdyn.envs import SymmetrySpec, make_env, symmetry_spec
from rppdyn.groups import Z

HERE = Path(__file__).parent
DATA, PAGE = HERE / "large_groups.json", HERE.parent / "concepts" / "approximate-tasks.md"
MARK = "<!-- table: made by `docs/evidence/large_groups.py` -->"
TESTED = {
    "HeadingAnt": ["learned", "learned, by weights"], "Navigation": ["learned", "learned, by weights"],
    "Navigation by CrossQ": ["learned"], "Swarm": ["chain, learned", "learned"], "Swarm, 20000 steps": ["chain, learned"],
}  # fmt: skip
"""The arms of each task that are tested against every other."""
TASKS = {
    "ant": ("rppdyn/HeadingAnt-v0", None),
    "navigation": ("rppdyn/Navigation-v0", "D8"),
    "swarm": ("rppdyn/Swarm-v0", None),
}


def write_specs() -> None:
    """Write each task's group with actions that turn three times as far as positions, and the group of one element."""
    for name, (env_id, symmetry) in TASKS.items():
        spec = symmetry_spec(make_env(env_id), symmetry=symmetry)
        images = [np.array(matrix) for matrix in spec.action.discrete_generators]
        images[-2] = np.linalg.matrix_power(images[-2], 3)  # the turn; the mirror image is last
        wrong = replace(spec.action, discrete_generators=images)
        write_spec(f"{name}_wrong", replace(spec, action=wrong))
        spaces = {
            part: space for part in ("obs", "action", "qpos", "qvel") if (space := getattr(spec, part)) is not None
        }
        alone = {
            part: replace(space, discrete_generators=[np.eye(space.feature_dim)]) for part, space in spaces.items()
        }
        names = (spec.symmetries[0]._replace(name="identity"),)
        write_spec(f"{name}_identity", replace(spec, group=Z(1), symmetries=names, **alone))


def write_spec(name: str, spec: SymmetrySpec) -> None:
    """Write a spec's file."""
    (HERE / "data" / f"{name}.json").write_text(json.dumps(spec.to_dict(), separators=(",", ":")), encoding="utf-8")


def arm_of(config: Config) -> str:
    """Name an arm as the protocol does."""
    model, spec = config["model"], config["env"]["spec"]
    if spec:
        return {"wrong": "wrong group", "identity": "plain, learned"}[Path(spec).stem.split("_")[1]]
    if model["groups"]:
        return "chain, learned"
    if config["env"]["symmetry"] == "D(4)" and config["env"]["id"] == TASKS["swarm"][0]:
        return "strict, subgroup"
    return name_of(config) + ", larger" * (model["kind"] == "emlp" and model["hidden"] > 128)


def cell_of(config: Config) -> str:
    """Name a task by its environment, the learner unless it is SAC, and the number that breaks it."""
    ((name, strength),) = config["env"]["kwargs"].items()
    learner = " by CrossQ" if config["agent"].get("crossq") else ""
    return f"{config['env']['id'].removeprefix('rppdyn/')}{learner}, {name} {strength:g}"


def print_rates(paths: list[Path]) -> None:
    """Print the mean return over training of each arm and rate."""
    rows = rows_of(paths, cell_of, lambda config: f"{arm_of(config)} | {config['agent']['learning_rate']:g}")
    for row in rows:
        print(f"{row['arm']:40} {np.mean(row['values']):6.2f}  {row['values']}")


def table(rows: Sequence[Row]) -> str:
    """The tables of all tasks, strengths in ascending order."""
    cells = dict(sorted(by_cell(rows).items()))
    tasks = {
        task: {cell.split(", ")[1]: arms for cell, arms in cells.items() if cell_task(cell) == task} for task in TESTED
    }
    return "\n\n".join(arms_table(task, tasks[task], tested) for task, tested in TESTED.items() if tasks[task])


def cell_task(cell: str) -> str:
    """The task's name in a cell's, with the steps where it is asked twice."""
    task, _, steps = cell.split(", ")
    return task.replace("-v0", "") + f", {steps}" * (steps == "20000 steps")


def main() -> None:
    """Read the runs, and write the file, the figure and the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*", type=Path, metavar="RUNS")
    parser.add_argument("--rates", action="store_true", help="print the means of each rate, and write nothing")
    parser.add_argument("--specs", action="store_true", help="write the specs")
    arguments = parser.parse_args()
    if arguments.specs:
        return write_specs()
    if arguments.rates:
        return print_rates(arguments.runs)
    rows = read_rows(DATA, rows_of(arguments.runs, cell_of, arm_of))
    cells = sorted(by_cell(rows).items(), key=lambda item: (cell_task(item[0]), item[0]))
    panels = {f"{cell_task(cell)}, {cell.split(', ')[1]}": list(arms.values()) for cell, arms in cells}
    draw(panels, HERE / "large_groups.png", seeds=False)  # of ten arms nothing can be seen behind 200 lines
    write_table(PAGE, MARK, table(rows))
    print(table(rows))


if __name__ == "__main__":
    main()
