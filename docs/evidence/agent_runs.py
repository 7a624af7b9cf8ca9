"""Read the runs of agents as rows of raw data, test and draw them: for the scripts on agents.

A row holds a cell and an arm, each seed's mean return over training (of all evaluations but the first), and its returns at
every evaluation. `approximate.py`, `learned_models.py` and `returns.py` read their runs by it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
from evidence import holm, rank_test, save_small, write_rows
from gather import arm_of
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from rppdyn.runs import RunFolder
from rppdyn.runs.figures import COLOURS
from rppdyn.runs.folder import read_metrics, series

NAMES = {
    "emlp": "strict",
    "mlp, 1e-07": "plain",
    "rpp, 1e-07": "narrow",
    "rpp, certified": "certified",
    "rpp, learned": "learned",
}
UNRELAXED = ("strict", "plain", "plain, mirrored replay", "plain, mirror loss", "control", "strict, breaking input")
BLUE, ORANGE, GREEN, PINK, YELLOW, SKY, BLACK = COLOURS
LOOKS = dict(zip(UNRELAXED, (ORANGE, GREEN, YELLOW, PINK, BLACK, "0.55"), strict=True))
LOOKS |= {
    "learned, by weights": "#004c8c",
    "chain, learned": PINK,
    "learned": BLUE,
    "certified, widens": SKY,
    "certified": BLACK,
    "narrow": PINK,
}
LOOKS |= {
    "plain, learned": "#8c6d31",
    "wrong group": "#7b3294",
    "strict, larger": "#f4a582",
    "strict, subgroup": "#a6d96a",
}
"""An arm's colour in all figures; those that are not relaxed are dashed."""
NOISE = "noise"
MEANS = {
    "actor_free_share": "pathway/actor_free_share",
    "critic_free_share": "pathway/critic_free_share",
    "equivariance_policy": "equivariance/policy",
}
"""Metrics of which a row holds the mean over seeds at each evaluation, by the row's key."""
Config = dict[str, Any]
Row = dict[str, Any]


def cell_of(config: Config) -> str:
    """Name a task: the environment, its symmetry and options, and actuators that are not of full strength."""
    env = config["env"]
    options = [f"{name} {value:g}" for name, value in env["kwargs"].items()]
    weak = [f"{name} x {factor:g}" for name, factor in env["actuator_scale"].items()]
    return ", ".join([env["id"], *[env["symmetry"]] * bool(env["symmetry"]), *options, *weak])


def name_of(config: Config) -> str:
    """Name an arm by its networks and by what is not usual in it."""
    model, agent = config["model"], config["agent"]
    arm = arm_of(model)
    parts = [NAMES.get(arm, arm)]
    parts += ["by weights"] * ("47" in Path(config["run_dir"]).parts)  # the actor's rule since that section
    parts += ["mirrored replay"] * bool(agent["augment"]) + ["mirror loss"] * bool(agent["mirror_loss"])
    parts += ["breaking input"] * bool(model.get("breaking")) + ["widens"] * (model.get("widen") is not None)
    if (scale := model.get("free_scale")) is not None:
        parts.append("starts at its share" if scale == "prior" else f"starts at {scale:g}")
    if agent["noise_variance"] != 1:
        parts.append(f"{NOISE} {agent['noise_variance']:g}")
    if (critic := model["critic_free_variance"]) is not None:
        parts.append("critic strict" if critic == 0 else f"critic {critic:g}")
    return ", ".join(parts)


def rows_of(
    paths: Iterable[Path],
    cell: Callable[[Config], str] = cell_of,
    arm: Callable[[Config], str] = name_of,
    lengths: Sequence[int] | None = None,
) -> list[Row]:
    """Read folders of single seeds: a row for each cell, arm and length that all of the arm's seeds have come to.

    Args:
        lengths: steps at which a run is taken; None: the length it was given.
    """
    groups: dict[tuple[str, str], list[RunFolder]] = {}
    for path in paths:
        folder = RunFolder.open(path)
        config = folder.config()
        groups.setdefault((cell(config), arm(config)), []).append(folder)
    rows = []
    for (where, name), folders in sorted(groups.items(), key=lambda group: group[0]):
        folders.sort(key=lambda folder: folder.config()["seed"])
        records = [read_metrics(folder.metrics.path) for folder in folders]
        each = [series(record, "eval/return_mean") for record in records]
        reached = min(steps[-1] for steps, _ in each)
        commits = {(result["provenance"]["commit"] or "")[:7] for f in folders if (result := f.result())}
        for length in lengths or [folders[0].config()["total_steps"]]:
            if reached < length:
                print(f"{where} | {name}: at step {reached} of {length}; left out")
                continue
            count = int(np.searchsorted(each[0][0], length)) + 1  # the first evaluation at or after it
            curves = np.array([values[:count] for _, values in each])
            means = {
                key: [float(f"{v:.2g}") for v in np.mean([values[1][:count] for values in found], 0)]
                for key, metric in MEANS.items()
                if all((found := [series(record, metric) for record in records])[0])
            }
            rows.append({
                "cell": f"{where}, {length} steps", "arm": name, "seeds": [folder.config()["seed"] for folder in folders],
                "values": [float(f"{value:.5g}") for value in curves[:, 1:].mean(1)],
                "steps": [int(step) for step in each[0][0][:count]], "returns": curves.round(1).tolist(), **means,
                "commit": " ".join(sorted(commits)),
            })  # fmt: skip
    return rows


def read_rows(data: Path, new: Sequence[Row] = ()) -> list[Row]:
    """The rows of a raw file, in which new ones, which are written to it, take the places of others of their cell and arm."""
    rows = json.loads(data.read_text(encoding="utf-8")) if data.exists() else []
    if new:
        measured = {(row["cell"], row["arm"]) for row in new}
        rows = [row for row in rows if (row["cell"], row["arm"]) not in measured] + list(new)
        write_rows(data, rows)
    return rows


def by_cell(rows: Iterable[Row]) -> dict[str, dict[str, Row]]:
    """The rows of each cell, by arm."""
    cells: dict[str, dict[str, Row]] = {}
    for row in rows:
        cells.setdefault(row["cell"], {})[row["arm"]] = row
    return cells


def with_final_returns(arms: Mapping[str, Row]) -> dict[str, Row]:
    """The rows with returns at the last evaluation as their values."""
    return {arm: row | {"values": [curve[-1] for curve in row["returns"]]} for arm, row in arms.items()}


def rank_tests(arms: Mapping[str, Row], pairs: Sequence[tuple[str, str]]) -> list[float]:
    """Exact rank tests between arms, two-sided, corrected by Holm over the pairs."""
    return holm([rank_test(np.array(arms[a]["values"]), np.array(arms[b]["values"])) for a, b in pairs])


def arms_table(name: str, cells: Mapping[str, Mapping[str, Row]], tested: Sequence[str]) -> str:
    """Means over seeds as Markdown, over training and final; in parentheses p against each tested arm, by Holm in a column.

    Args:
        cells: the rows of each cell by arm, by the cell's heading.
        tested: arms that every other is tested against.
    """
    arms = dict.fromkeys(arm for rows in cells.values() for arm in rows)
    heads = [f"{cell}, {part}" for cell in cells for part in ("mean", "final")]
    lines = [f"| {name} | {' | '.join(heads)} |", f"| --- |{' ---: |' * len(heads)}"]
    columns = []
    for rows in cells.values():
        for metric in (rows, with_final_returns(rows)):
            column = {arm: [f"{np.mean(row['values']):.1f}"] for arm, row in metric.items()}
            for one in (arm for arm in tested if arm in metric):
                others = [arm for arm in metric if arm != one]
                for arm, p in zip(others, rank_tests(metric, [(one, arm) for arm in others]), strict=True):
                    column[arm].append(f"{p:.2g}")
            columns.append({arm: mean + f" ({', '.join(ps)})" * bool(ps) for arm, (mean, *ps) in column.items()})
    for arm in sorted(arms, key=lambda arm: (arm not in tested, arm)):
        lines.append(f"| {arm} | {' | '.join(column.get(arm, '–') for column in columns)} |")
    return "\n".join(lines)


def draw(
    panels: Mapping[str, Sequence[Row]],
    path: Path,
    share_axis: bool = False,
    seeds: bool = True,
    levels: Mapping[str, Mapping[str, float]] | None = None,
) -> None:
    """Draw learning curves in a panel for each title: means as thick lines, dashed if not relaxed, and seeds as thin ones.

    Args:
        levels: returns, by title and name, that are drawn as dotted lines behind the curves.
    """
    arms = sorted({row["arm"] for rows in panels.values() for row in rows}, key=lambda arm: (arm not in UNRELAXED, arm))
    taken = {LOOKS[arm] for arm in arms if arm in LOOKS}
    left = cycle([colour for colour in COLOURS if colour not in taken])
    colours = {arm: LOOKS.get(arm) or next(left) for arm in arms}
    thick = {
        arm: {
            "color": colour,
            "linewidth": 2,
            "linestyle": "--" if arm in UNRELAXED or arm.startswith(("strict", "plain, ")) else "-",
            "zorder": 3,
        }
        for arm, colour in colours.items()
    }
    columns = len(panels) if len(panels) <= 4 else 3
    lines = -(-len(panels) // columns)
    figure = Figure(figsize=(min(4.2 * columns, 11), 0.5 + 2.7 * lines), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(lines, columns, squeeze=False, sharey=share_axis).ravel()
    for axes in grid[len(panels) :]:
        axes.set_visible(False)
    for axes, (title, rows) in zip(grid, panels.items(), strict=False):
        for row in rows:
            returns = np.array(row["returns"])
            if seeds:
                axes.plot(row["steps"], returns.T, color=colours[row["arm"]], linewidth=0.4, alpha=0.3)
            axes.plot(row["steps"], returns.mean(0), **thick[row["arm"]])
        for name, level in (levels or {}).get(title, {}).items():
            axes.axhline(level, color="0.6", linewidth=1, linestyle=":", zorder=1)
            axes.annotate(name, (0, level), (2, 2), textcoords="offset points", fontsize="x-small", color="0.4")
        axes.set(title=title, xlabel="environment steps", ylabel="return")
        axes.xaxis.set_major_formatter(lambda steps, _: f"{steps / 1000:g}k" if steps else "0")
        axes.spines[["top", "right"]].set_visible(False)
    handles = [axes.plot([], [], label=arm, **style)[0] for arm, style in thick.items()]
    figure.legend(
        handles=handles, loc="outside lower center", ncols=min(len(handles), 2 * len(panels), 5), frameon=False
    )
    save_small(figure, path)
