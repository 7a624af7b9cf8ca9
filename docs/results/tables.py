"""RPP-Conv on tables: `python docs/results/tables.py RUNS... [--json FILE]`.

Runs of `rppdyn fit-image` on tables. Of runs on validation seeds (below 200): mean validation errors by rate and variance, and
each arm's choice in bold type. Of runs on the others: means over seeds of the test error, and differences paired by seed
between RPP-Conv and the others, with 95 % t intervals; of a regression log ratios, in percent.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from reading import figure_arguments, gather, keep
from reading import read as read_run
from scipy import stats

from rppdyn.runs import RunFolder

Run = dict[str, Any]
TABLES = ("wine", "breast_cancer", "diabetes")
ARMS = ("fc", "conv", "fc+conv", "control")
FRESH = 200


def main() -> None:
    """Print the tables, as Markdown."""
    arguments = figure_arguments(__doc__)
    runs = gather(arguments.runs, read)
    print_selection([run for run in runs if run["config"]["seed"] < FRESH])
    print_scores([run for run in runs if run["config"]["seed"] >= FRESH])
    keep(arguments, runs)


def read(folder: RunFolder) -> Run:
    """A run's choices and errors; the rest follows from its command and commit."""
    run = read_run(folder)
    config = {key: run["config"][key] for key in ("task", "model", "optimiser", "seed", "seeds")}
    config["task"] = {key: config["task"][key] for key in ("name", "train", "validation")}
    config["model"] = config["model"] | {"pathways": {name: v for name, v in config["model"]["pathways"].items() if v}}
    errors = {name: values for name, values in run["result"]["test"].items() if name.endswith("/error")}
    return {"config": config, "result": {"test": errors, "provenance": run["result"]["provenance"]}}


def arm(run: Run) -> str:
    """Model by name; RPP-Conv whose variances are both 1 is the control."""
    model = run["config"]["model"]
    return "control" if model["name"] == "fc+conv" and model["pathways"]["fc"] == 1 else model["name"]


def setting(run: Run) -> tuple[float, float]:
    """Variance of the fully connected pathway, and rate."""
    return run["config"]["model"]["pathways"].get("fc", 0), run["config"]["optimiser"]["learning_rate"]


def of(runs: list[Run], table: str, name: str) -> list[Run]:
    return [run for run in runs if run["config"]["task"]["name"] == table and arm(run) == name]


def print_selection(runs: list[Run]) -> None:
    """A line for each arm and variance, a column for each table and rate."""
    if not runs:
        return
    rates = sorted({setting(run)[1] for run in runs})
    print(f"| arm, variance of fc | {' | '.join(f'{table}, {rate:g}' for table in TABLES for rate in rates)} |")
    print("| --- |" + " ---: |" * (len(TABLES) * len(rates)))
    for name in ARMS:
        for variance in sorted({setting(run)[0] for run in runs if arm(run) == name}, reverse=True):
            cells = []
            for table in TABLES:
                errors = {setting(run): validation(run) for run in of(runs, table, name)}
                best = min(errors, key=lambda at: (round(errors[at], 6), at[1], -at[0]))
                for rate in rates:
                    cell = shown(errors[variance, rate], table)
                    cells.append(f"**{cell}**" if (variance, rate) == best else cell)
            print(f"| {name}{f', {variance:g}' if variance else ''} | {' | '.join(cells)} |")


def validation(run: Run) -> float:
    return float(np.mean(run["result"]["test"]["validation/error"]))


def shown(error: float, table: str) -> str:
    return f"{error:.3f}" if table == "diabetes" else f"{100 * error:.1f}"


def print_scores(runs: list[Run]) -> None:
    """A line for each table: test errors of all arms, and how far RPP-Conv is behind each of the others."""
    if not runs:
        return
    print("\n| test error | fc | conv | RPP-Conv | control | behind fc | behind conv | behind control |")
    print("| --- |" + " ---: |" * 7)
    for table in TABLES:
        errors = {}
        for name in ARMS:
            (run,) = of(runs, table, name)
            errors[name] = np.array(run["result"]["test"]["test/error"])
        ours = errors["fc+conv"]
        behind = [difference(ours, errors[name], table) for name in ("fc", "conv", "control")]
        print(f"| {table} | {' | '.join([*(shown(errors[name].mean(), table) for name in ARMS), *behind])} |")


def difference(ours: np.ndarray, other: np.ndarray, table: str) -> str:
    """Mean and t interval, in points of errors; of a regression log ratios in percent."""
    values = 100 * (np.log(ours / other) if table == "diabetes" else ours - other)
    mean, error = values.mean(), values.std(ddof=1) / np.sqrt(len(values))
    margin = stats.t.ppf(0.975, len(values) - 1) * error
    return f"{mean:.1f} [{mean - margin:.1f}, {mean + margin:.1f}]" + (" %" if table == "diabetes" else "")


if __name__ == "__main__":
    main()
