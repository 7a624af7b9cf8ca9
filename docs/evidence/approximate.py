"""Learning curves of agents on tasks whose symmetry is broken by degrees: `python docs/evidence/approximate.py RUNS...`.

Reads the folders of single seeds, finished or not, and writes `approximate.json` (a row for each cell and arm, with every
seed's return at every evaluation) and the figure `approximate.png`. Section 10 of `protocol.md` says how the runs are made.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from gather import arm_of
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from rppdyn.runs import RunFolder
from rppdyn.runs.figures import COLOURS, save
from rppdyn.runs.files import write_text
from rppdyn.runs.metrics import read_metrics, series

HERE = Path(__file__).parent
NAMES = {
    "emlp": "strict",
    "mlp, 1e-07": "plain",
    "rpp, 1e-07": "narrow",
    "rpp, certified": "certified",
    "rpp, learned": "learned",
}
SHOWN = {
    "returns": "eval/return_mean",
    "policy_error": "equivariance/policy",
    "actor_free_share": "pathway/actor_free_share",
    "critic_free_share": "pathway/critic_free_share",
}
Row = dict[str, Any]


def rows_of(paths: list[Path]) -> list[Row]:
    """Group runs by cell and arm; steps are those that every seed has reached."""
    groups: dict[tuple[str, str], list[tuple[int, Path]]] = {}
    for path in paths:
        config = RunFolder.open(path).config()
        cell = ", ".join([config["env"]["id"], *(f"{k} {v:g}" for k, v in config["env"]["kwargs"].items())])
        arm = arm_of(config["model"])
        arm = NAMES.get(arm, arm) + (", mirrored replay" if config["agent"]["augment"] else "")
        arm += ", mirror loss" if config["agent"]["mirror_loss"] else ""
        groups.setdefault((cell, arm), []).append((config["seed"], path))
    rows = []
    for (cell, arm), runs in groups.items():
        curves = [
            series(read_metrics(RunFolder.open(path).metrics.path), "eval/return_mean") for _, path in sorted(runs)
        ]
        n = min(len(steps) for steps, _ in curves)
        returns = [[round(float(value), 2) for value in values[:n]] for _, values in curves]
        rows.append({"cell": cell, "arm": arm, "seeds": [seed for seed, _ in sorted(runs)],
                     "steps": [int(step) for step in curves[0][0][:n]], "returns": returns})  # fmt: skip
    return rows


def draw(rows: list[Row], path: Path) -> None:
    """Draw a panel for each cell: every seed as a thin line, the mean of each arm as a thick one."""
    cells = list(dict.fromkeys(row["cell"] for row in rows))
    arms = list(dict.fromkeys(row["arm"] for row in rows))
    figure = Figure(figsize=(5.2 * len(cells), 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    for axes, cell in zip(figure.subplots(1, len(cells), squeeze=False)[0], cells, strict=True):
        for row in (row for row in rows if row["cell"] == cell):
            colour = COLOURS[arms.index(row["arm"])]
            returns = np.array(row["returns"])
            axes.plot(row["steps"], returns.T, color=colour, linewidth=0.6, alpha=0.5)
            axes.plot(
                row["steps"], returns.mean(0), color=colour, linewidth=2, label=f"{row['arm']} ({len(returns)} seeds)"
            )
        axes.set(title=cell.removeprefix("rppdyn/"), xlabel="environment steps", ylabel="return")
        axes.legend(frameon=False)
    save(figure, path)


def main() -> None:
    """Read the runs, write the file and the figure, and print returns at the last common evaluation."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUNS")
    rows = rows_of(parser.parse_args().runs)
    write_text(HERE / "approximate.json", "[\n" + ",\n".join(map(json.dumps, rows)) + "\n]\n")
    draw(rows, HERE / "approximate.png")
    for row in rows:
        returns = np.array(row["returns"])
        print(f"{row['cell']} | {row['arm']} | {row['steps'][-1]} steps: {returns[:, -1].round(1).tolist()}, "
              f"mean over training {returns[:, 1:].mean():.1f}")  # fmt: skip


if __name__ == "__main__":
    main()
