"""Prior or architecture: `python docs/evidence/prior_or_architecture.py RUNS... --json FILE.json`, or from that file alone.

Runs of `fit-regression` and `fit-dynamics` as section 1 of `protocol.md` says. Of each task: test errors by arm, and paired
ratios: exp of the mean log ratio, with a 95 % t interval.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "results"))
from reading import figure_arguments, gather, keep, read

from rppdyn.runs import RunFolder

CONTROL, PUBLISHED = "control", "rpp, published"
RATIOS = ((PUBLISHED, CONTROL), ("rpp, chosen", CONTROL), ("rpp, chosen", "emlp"), (CONTROL, "mlp"), (CONTROL, "emlp"))


def brief(folder: RunFolder) -> dict[str, Any]:
    """Read a finished run: its configuration, test errors, seeds and provenance."""
    run = read(folder)
    result = run["result"]
    kept = {
        "test": {"test/error": result["test"]["test/error"]},
        "seeds": result["seeds"],
        "provenance": result["provenance"],
    }
    return {"config": run["config"], "result": kept}


def arm(model: dict[str, Any]) -> str:
    """The arm that a configured network is."""
    if model["kind"] != "rpp":
        return model["kind"]
    if model["equivariant_variance"] == model["free_variance"]:
        return CONTROL
    return PUBLISHED if model["free_variance"] == 1 else "rpp, chosen"


def ratio(first: list[float], second: list[float]) -> str:
    """First over second, paired."""
    logs = np.log(first) - np.log(second)
    half = stats.t.ppf(0.975, len(logs) - 1) * stats.sem(logs)
    centre, low, high = np.exp([logs.mean(), logs.mean() - half, logs.mean() + half])
    return f"{centre:.3f} [{low:.3f}, {high:.3f}]"


def main() -> None:
    """Print the tables, as Markdown."""
    arguments = figure_arguments(__doc__)
    runs = gather(arguments.runs, brief)
    tasks: dict[str, dict[str, list[float]]] = {}
    for run in runs:
        errors = tasks.setdefault(run["config"]["task"]["name"], {})
        errors[arm(run["config"]["model"])] = run["result"]["test"]["test/error"]
    arms = sorted({name for errors in tasks.values() for name in errors})
    print("| test error, mean | " + " | ".join(arms) + " |\n| --- |" + " ---: |" * len(arms))
    for task, errors in sorted(tasks.items()):
        shown = (f"{np.mean(errors[name]):.4g}" if name in errors else "" for name in arms)
        print(f"| {task} | " + " | ".join(shown) + " |")
    print("\n| ratio | " + " | ".join(sorted(tasks)) + " |\n| --- |" + " ---: |" * len(tasks))
    for first, second in RATIOS:
        cells = (
            ratio(errors[first], errors[second]) if {first, second} <= set(errors) else ""
            for _, errors in sorted(tasks.items())
        )
        print(f"| {first} / {second} | " + " | ".join(cells) + " |")
    keep(arguments, runs)


if __name__ == "__main__":
    main()
