"""Rollouts of fitted pendulums: `python docs/results/rollouts.py RUNS... --out FILE.png --json FILE.json`.

Runs of `rppdyn fit-dynamics` with the pendulum in still air. Tables of the rollout error and the drift of the angular momentum
about the vertical, by what was fitted and by the symmetry that it was given: interquartile means over seeds with 95 % bootstrap
intervals. The figure has both over time, and the path of the lower mass of one test trajectory from above, beside the truth.
"""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from reading import figure_arguments, gather, keep, over_seeds, read

from rppdyn.runs import RunFolder
from rppdyn.runs.figures import COLOURS, draw_several

SYSTEMS = {"hamiltonian": "HNN", "ode": "neural ODE"}
SYMMETRIES = {"O2eR3()": "O(2)", "SO2eR3()": "SO(2)", "DkeR3(6)": "D(6)", None: "MLP"}
PUBLISHED = {"HNN": (0.012, 0.015, 0.013, 0.028), "neural ODE": (0.019, 0.051, 0.036, 0.048)}
"""Rollout errors of Finzi 2023, Table 2.2."""
QUANTITIES = {"error": "rollout error", "momentum_drift": "momentum drift"}
DIGITS = 4
"""Significant ones of curves and paths, of which a figure needs no more."""


def main() -> None:
    """Print the tables, as Markdown; draw and write."""
    arguments = figure_arguments(__doc__)
    runs = gather(arguments.runs, read_with_rollouts)
    by_kind = {kind(run): run for run in runs}
    if len(by_kind) < len(runs):
        raise ValueError("two runs of one kind: leave one out")
    for metric, title in QUANTITIES.items():
        print(f"\n| {title} | " + " | ".join(SYMMETRIES.values()) + " |\n" + "| --- " * 5 + "|")
        for system in SYSTEMS.values():
            cells = [
                over_seeds(by_kind[system, name]["result"]["test"][f"rollout/{metric}"])
                if (system, name) in by_kind
                else "-"
                for name in SYMMETRIES.values()
            ]
            print(f"| {system} | {' | '.join(cells)} |")
            if metric == "error":
                print(f"| {system}, published | {' | '.join(map(str, PUBLISHED[system]))} |")
    keep(arguments, runs, partial(draw, by_kind))


def kind(run: dict[str, Any]) -> tuple[str, str]:
    """What was fitted, and the symmetry that it was given."""
    model = run["config"]["model"]
    return SYSTEMS[model["system"]], SYMMETRIES[None if model["kind"] == "mlp" else run["config"]["task"]["group"]]


def read_with_rollouts(folder: RunFolder) -> dict[str, Any]:
    """What a finished run holds, and of its `rollouts.json` what is drawn."""
    found = json.loads((folder.path / "rollouts.json").read_text(encoding="utf-8"))
    paths = {name: [state[3:5] for state in states] for name, states in found["example"].items()}
    return read(folder) | {
        "rollouts": rounded({name: found[name] for name in ("times", *QUANTITIES)} | {"lower mass": paths})
    }


def rounded(value: Any) -> Any:
    """Numbers to :data:`DIGITS` digits, in lists and dicts."""
    if isinstance(value, dict):
        return {key: rounded(own) for key, own in value.items()}
    if isinstance(value, list):
        return [rounded(own) for own in value]
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


def draw(by_kind: dict[tuple[str, str], dict[str, Any]]) -> Figure:
    """A row for each system: errors over time, drifts over time, and a path for each symmetry."""
    figure = Figure(figsize=(14.5, 5.6), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(2, 2 + len(SYMMETRIES), width_ratios=(1.5, 1.5, *(1 for _ in SYMMETRIES)))
    for row, system in zip(panels, SYSTEMS.values(), strict=True):
        for axes, (metric, title) in zip(row, QUANTITIES.items(), strict=False):
            for colour, name in zip(COLOURS, SYMMETRIES.values(), strict=False):
                curves = by_kind[system, name]["rollouts"]
                values = np.array([curve for curve in curves[metric] if curve is not None])
                draw_several(axes, np.array(curves["times"][1:]), values, colour, label=name)
            axes.set_title(f"{system}: {title}", fontsize="medium")
            axes.set(yscale="log", xlabel="time, s")
            axes.grid(alpha=0.25)
            axes.spines[["top", "right"]].set_visible(False)
        for axes, colour, name in zip(row[len(QUANTITIES) :], COLOURS, SYMMETRIES.values(), strict=False):
            path = by_kind[system, name]["rollouts"]["lower mass"]
            for states, line, drawn in (("truth", "-", "0.55"), ("found", "--", colour)):
                x, y = np.array(path[states], dtype=float).T
                axes.plot(x, y, line, color=drawn, lw=1.0)
            axes.set_title(f"{system}, {name}", fontsize="medium")
            axes.set_aspect("equal")
            axes.tick_params(labelsize="x-small")
    # the same limits for all paths, which are of one trajectory
    paths = panels[:, len(QUANTITIES) :].ravel()
    low, high = np.min([a.viewLim.min for a in paths], 0), np.max([a.viewLim.max for a in paths], 0)
    for axes in paths:
        axes.set(xlim=(low[0], high[0]), ylim=(low[1], high[1]))
    figure.legend(*panels[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
    return figure


if __name__ == "__main__":
    main()
