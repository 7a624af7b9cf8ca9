"""Table of Hamiltonians with other hidden layers: `python docs/results/hidden_layers.py RUNS... [--json FILE]`.

Ten-seed runs of `rppdyn fit-dynamics`, or files of raw data, those of plain networks among them. For each choice of hidden
layers (s: scalars, v: vectors) and of bilinear maps: the interquartile mean of the test error in still air, and ratios to the
plain network's error, paired by seed, in each wind; free variances are 1e-6, and 1e-3 in a wind of 0.3.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from reading import gather

from rppdyn.runs import iqm
from rppdyn.runs.files import write_json
from rppdyn.runs.statistics import paired_ratio

WINDS = (0.0, 0.01, 0.3)
FREE_VARIANCE = {0.0: 1e-6, 0.01: 1e-6, 0.3: 1e-3}


def main() -> None:
    """Print the table, as Markdown, the most accurate in still air first."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", metavar="RUN")
    parser.add_argument("--json", metavar="FILE", help="also write what the runs of relaxed networks hold")
    arguments = parser.parse_args()
    runs = gather(arguments.runs)
    plain: dict[float, dict[int, float]] = {}
    relaxed: dict[str, dict[float, dict[int, float]]] = {}
    for run in runs:
        task, model = run["config"]["task"], run["config"]["model"]
        wind, errors = task["wind"], dict(zip(run["result"]["seeds"], run["result"]["test"]["test/error"], strict=True))
        if task["group"] != "O2eR3()":
            continue
        if model["kind"] == "mlp":
            plain.setdefault(wind, {}).update(errors)
        elif model["kind"] == "rpp" and model["free_variance"] == FREE_VARIANCE.get(wind):
            relaxed.setdefault(described(model), {}).setdefault(wind, {}).update(errors)
    print("| hidden layers | maps | test error, still air | RPP / MLP, still air | wind 0.01 | wind 0.3 |")
    print("| --- | --- | ---: | ---: | ---: | ---: |")
    for name, errors in sorted(relaxed.items(), key=lambda item: error(item[1], 0.0)):
        ratios = " | ".join(beside(errors.get(wind), plain[wind]) for wind in WINDS)
        print(f"| {name} | {error(errors, 0.0):.3g} | {ratios} |")
    if arguments.json:
        write_json(Path(arguments.json), [run for run in runs if run["config"]["model"]["kind"] != "mlp"])


def described(model: dict[str, Any]) -> str:
    """Hidden layers, and how many maps."""
    hidden = ", ".join(
        layer.replace("*T(0)", " s").replace("*T(1)", " v").replace("+", " + ") for layer in model["hidden"]
    )
    return f"{hidden} | {model.get('bilinear_maps') or 3}"


def error(errors: dict[float, dict[int, float]], wind: float) -> float:
    return float(iqm(list(errors[wind].values()))) if wind in errors else float("inf")


def beside(errors: dict[int, float] | None, plain: dict[int, float]) -> str:
    if errors is None:
        return "-"
    pairs = [(e, plain[seed]) for seed, e in errors.items() if seed in plain]
    centre, (low, high) = paired_ratio(*zip(*pairs, strict=True))
    return f"{centre:.2f} [{low:.2f}, {high:.2f}]"


if __name__ == "__main__":
    main()
