"""Prior or architecture: `python docs/evidence/prior.py [RUNS...]`; section 1 of `protocol.md` has the arms and the settings.

Adds finished fits to the raw files (`gather.py`), draws errors over the wind (`prior.png`) and writes the table of
`docs/results/dynamics.md`. Without RUNS it does the rest again.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
from evidence import measure, save_small, write_table
from gather import gather
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from rppdyn.runs import RunFolder
from rppdyn.runs.figures import COLOURS

HERE = Path(__file__).parent
PAGE = HERE.parent / "results" / "dynamics.md"
MARK = "<!-- table: made by `docs/evidence/prior.py` -->"
NOTE, PUBLISHED = ", protocol 1", "rpp, 1"
CELLS = {
    "inertia, O(3)": "inertia, O(3): exact",
    "modified_inertia_code, O(3), 1000 data": "inertia + 0.3 I zzᵀ, O(3): approximate",
    "inertia, SL(3), 1000 data": "inertia, SL(3): wrong",
    "pendulum, O(2), wind 0": "pendulum, O(2), still: exact",
    "pendulum, O(2), wind 0.01": "pendulum, O(2), wind 0.01",
    "pendulum, O(2), wind 0.1": "pendulum, O(2), wind 0.1",
    "pendulum, O(2), wind 0.3": "pendulum, O(2), wind 0.3",
    "pendulum, SO(3), wind 0": "pendulum, SO(3), still: wrong",
}
OTHERS = {"emlp": "strict", "mlp": "plain", "control": "control"}
Arms = dict[str, list[float]]


def read() -> dict[str, tuple[str, Arms]]:
    """The raw file and the arms' values of each cell."""
    cells: dict[str, tuple[str, Arms]] = {}
    for name in ("regression", "pendulum"):
        for row in json.loads((HERE / "data" / f"{name}.json").read_text(encoding="utf-8")):
            if row["cell"].endswith(NOTE):
                cells.setdefault(row["cell"].removesuffix(NOTE), (f"data/{name}.json", {}))[1][row["arm"]] = row[
                    "values"
                ]
    return cells


def chosen(arms: Arms) -> str:
    """The relaxed arm at the free variance that validation chose, which may be the published one."""
    return next((arm for arm in arms if arm.startswith("rpp") and arm != PUBLISHED), PUBLISHED)


def others(arms: Arms) -> dict[str, str]:
    """The other arms, by what they are called."""
    return {name: arm for kind, name in OTHERS.items() for arm in arms if arm.split(",")[0] == kind}


def table(cells: dict[str, tuple[str, Arms]]) -> str:
    """Mean errors of all arms, and ratios paired by seed with 95 % t intervals, as Markdown."""
    lines = [
        "| test error, mean of ten seeds | strict | plain | control | relaxed | free variance | relaxed / best other "
        "| control / plain |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for cell, title in CELLS.items():
        if cell not in cells:
            continue
        file, arms = cells[cell]
        named, ours = others(arms), chosen(arms)

        def ratio(arm: str, against: list[str], file: str = file, cell: str = cell) -> tuple[str, str]:
            claim = {"id": cell, "data": file, "cell": cell + NOTE, "arm": arm, "against": against}
            found = measure(claim | {"kind": "error"})
            return f"{found['ratio']:.2f} [{found['interval'][0]:.2f}, {found['interval'][1]:.2f}]", found["best"]

        best, arm = ratio(ours, list(named.values()))
        name = next(name for name, own in named.items() if own == arm)
        means = [f"{np.mean(arms[own]):.3g}" for own in (*named.values(), ours)]
        architecture, _ = ratio(named["control"], [named["plain"]])
        lines.append(
            f"| {title} | {' | '.join(means)} | {ours[5:].replace('e-0', 'e-')} | {best} {name} | {architecture} |"
        )
    return "\n".join(lines)


def draw(cells: dict[str, tuple[str, Arms]]) -> Figure:
    """Draw the pendulum's errors over the wind: every seed a point, means as lines."""
    figure = Figure(figsize=(6, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    name = "pendulum, O(2), wind "
    winds = sorted(float(cell.removeprefix(name)) for cell in cells if cell.startswith(name))
    for k, arm in enumerate((*OTHERS.values(), "relaxed")):
        at = []
        for i, wind in enumerate(winds):
            _, arms = cells[f"{name}{wind:g}"]
            values = arms[chosen(arms) if arm == "relaxed" else others(arms)[arm]]
            axes.plot(
                i + 0.08 * (k - 1.5) + 0 * np.array(values), values, ".", color=COLOURS[k], alpha=0.35, ms=5, mew=0
            )
            at.append(np.mean(values))
        style = "-" if arm == "relaxed" else "--"
        axes.plot(np.arange(len(winds)) + 0.08 * (k - 1.5), at, style, color=COLOURS[k], lw=1.8, label=arm)
    axes.set(yscale="log", xlabel="wind", ylabel="test error", xticks=range(len(winds)))
    axes.set_xticklabels([f"{wind:g}" for wind in winds])
    axes.set_yticks([0.001, 0.002, 0.005, 0.01], ["0.001", "0.002", "0.005", "0.01"])
    axes.minorticks_off()
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside upper center", ncols=4, frameon=False)
    return figure


def main() -> None:
    """Read the fits, and write the figure and the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*", type=Path, metavar="RUNS")
    for path in parser.parse_args().runs:
        is_pendulum = "pendulum" in RunFolder.open(path).config()["task"]["name"]
        gather([path], HERE / "data" / ("pendulum.json" if is_pendulum else "regression.json"), NOTE)
    cells = read()
    save_small(draw(cells), HERE / "prior.png")
    write_table(PAGE, MARK, table(cells))
    print(table(cells))


if __name__ == "__main__":
    main()
