"""Choices of a batch size: `python docs/results/batches.py RUNS... [--json FILE]`.

Runs of `rppdyn fit-dynamics` on seeds that are not reported. For each batch size and number of steps: means over seeds of the
validation error by model, and the trajectories that each seed's training went through.
"""

from __future__ import annotations

import math
from collections import defaultdict

import numpy as np
from reading import figure_arguments, gather, keep


def main() -> None:
    """Print the table, as Markdown."""
    arguments = figure_arguments(__doc__)
    runs = gather(arguments.runs)
    errors: dict[tuple[int, int], dict[str, float]] = defaultdict(dict)
    for run in runs:
        task, optimiser = run["config"]["task"], run["config"]["optimiser"]
        steps = optimiser["epochs"] * math.ceil(task["train"] / optimiser["batch_size"])
        model = run["result"]["model"]
        errors[steps, optimiser["batch_size"]][model] = float(np.mean(run["result"]["test"]["validation/error"]))
    models = sorted({model for row in errors.values() for model in row}, reverse=True)
    print("| batches of | steps | trajectories | " + " | ".join(f"`{model}`" for model in models) + " |")
    print("| ---: | ---: | ---: |" + " ---: |" * len(models))
    for (steps, batch), row in sorted(errors.items()):
        cells = [f"{row[model]:.3g}" if model in row else "-" for model in models]
        print(f"| {batch} | {steps:,} | {steps * batch:,} | {' | '.join(cells)} |")
    keep(arguments, runs)


if __name__ == "__main__":
    main()
