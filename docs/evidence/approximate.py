"""Agents on a task whose symmetry is broken by degrees: `python docs/evidence/approximate.py RUNS...`.

Reads the folders of single seeds and adds them to `approximate.json` (a row for each cell and arm: every seed's mean return
over training, its returns at all evaluations, and free pathways' shares), in which they replace arms of the same cell. Then
writes the figure `approximate.png` and the table of `approximate.md`. Without RUNS it reads the file and does the rest again.
Section 10 of `protocol.md` says how the runs are made and what is tested.
"""

from __future__ import annotations

import argparse
import json
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
from evidence import holm, save_small
from gather import arm_of, write_rows
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from scipy import stats

from rppdyn.runs import RunFolder
from rppdyn.runs.figures import COLOURS
from rppdyn.runs.files import write_text
from rppdyn.runs.folder import read_metrics, series

HERE = Path(__file__).parent
DATA, PAGE = HERE / "approximate.json", HERE / "approximate.md"
MARK = "<!-- table: made by `approximate.py` -->"
NAMES = {
    "emlp": "strict",
    "mlp, 1e-07": "plain",
    "rpp, 1e-07": "narrow",
    "rpp, certified": "certified",
    "rpp, learned": "learned",
}
STRICT, PLAIN, UNRELAXED = "strict", "plain", ("strict", "plain", "plain, mirrored replay", "plain, mirror loss")
NOISE = "noise"
LENGTHS = (15_000, 21_000)  # steps; of the first result and of the second
SHARES = ("actor_free_share", "critic_free_share")
Row = dict[str, Any]


def name_of(config: dict[str, Any]) -> str:
    """Name an arm by its networks and by what is not usual in it."""
    model, agent = config["model"], config["agent"]
    arm = arm_of(model)
    parts = [NAMES.get(arm, arm)]
    parts += ["mirrored replay"] * bool(agent["augment"]) + ["mirror loss"] * bool(agent["mirror_loss"])
    parts += ["widens"] * (model.get("widen") is not None)
    if (scale := model.get("free_scale")) is not None:
        parts.append("starts at its share" if scale == "prior" else f"starts at {scale:g}")
    if agent["noise_variance"] != 1:
        parts.append(f"{NOISE} {agent['noise_variance']:g}")
    if (critic := model["critic_free_variance"]) is not None:
        parts.append("critic strict" if critic == 0 else f"critic {critic:g}")
    return ", ".join(parts)


def rows_of(paths: list[Path]) -> list[Row]:
    """Group runs by cell, length and arm; a value is the mean return over training, of evaluations after the first.

    A length is taken of arms whose seeds have all come so far.
    """
    groups: dict[tuple[str, str], list[RunFolder]] = {}
    for path in paths:
        folder = RunFolder.open(path)
        config = folder.config()
        cell = f"{config['env']['id']}, {config['env']['symmetry']}, wind {config['env']['kwargs']['wind']:g}"
        groups.setdefault((cell, name_of(config)), []).append(folder)
    rows = []
    for (cell, arm), folders in sorted(groups.items()):
        folders.sort(key=lambda folder: folder.config()["seed"])
        records = [read_metrics(folder.metrics.path) for folder in folders]
        each = [series(record, "eval/return_mean") for record in records]
        reached = min(steps[-1] for steps, _ in each)
        commits = {(result["provenance"]["commit"] or "")[:7] for f in folders if (result := f.result())}
        for length in LENGTHS:
            if reached < length:
                print(f"{cell} | {arm}: at step {reached} of {length}; left out")
                continue
            count = list(each[0][0]).index(length) + 1
            curves = np.array([values[:count] for _, values in each])
            shares = {
                name: [
                    float(f"{v:.2g}") for v in np.mean([series(r, f"pathway/{name}")[1][:count] for r in records], 0)
                ]
                for name in SHARES
            }
            rows.append({
                "cell": f"{cell}, {length} steps", "arm": arm, "seeds": [folder.config()["seed"] for folder in folders],
                "values": [float(f"{value:.5g}") for value in curves[:, 1:].mean(1)],
                "steps": [int(step) for step in each[0][0][:count]], "returns": curves.round(1).tolist(), **shares,
                "commit": " ".join(sorted(commits)),
            })  # fmt: skip
    return rows + same_as_strict(rows)


def same_as_strict(rows: list[Row]) -> list[Row]:
    """Rows of certified arms where the certificate is exact: they have no free pathway, and are strict to the last bit.

    Not so with another noise, of which the strict arm was not run.
    """
    arms = {row["arm"]: None for row in rows if row["arm"].startswith("certified") and NOISE not in row["arm"]}
    still = [row for row in rows if row["arm"] == STRICT and "wind 0," in row["cell"]]
    return [row | {"arm": arm, "same_as": STRICT} for row in still for arm in arms]


def tested(rows: list[Row]) -> list[Row]:
    """Add to each row its ratio to the cell's best arm, and rank tests against strict and plain.

    p-values are two-sided, exact, and corrected by Holm over the relaxed arms of a cell.
    """
    out: list[Row] = []
    for cell in dict.fromkeys(row["cell"] for row in rows):
        here = {row["arm"]: dict(row) for row in rows if row["cell"] == cell}
        best = max(np.mean(row["values"]) for row in here.values())
        relaxed = [arm for arm in here if arm not in UNRELAXED]
        for row in here.values():
            row["to_best"] = float(np.mean(row["values"]) / best)
        for other in (STRICT, PLAIN):
            if other in here:
                ps = [
                    float(stats.mannwhitneyu(here[arm]["values"], here[other]["values"], method="exact").pvalue)
                    for arm in relaxed
                ]
                for arm, p in zip(relaxed, holm(ps), strict=True):
                    here[arm][f"p_{other}"] = p
        out += here.values()
    return out


def wind_of(row: Row) -> float:
    """The strength of the wind in a row's cell."""
    return float(row["cell"].split("wind ")[1].split(",")[0])


def table(rows: list[Row]) -> str:
    """The longest runs as Markdown: an arm in each row, a wind in each column, what an arm is of the best in parentheses."""
    longest = {wind: max(row["steps"][-1] for row in rows if wind_of(row) == wind) for wind in map(wind_of, rows)}
    here = {
        (row["arm"], wind_of(row)): row for row in rows if row["steps"][-1] == longest[wind_of(row)]
    }  # runs of less than a wind's longest are in the raw data
    winds = sorted(longest)
    ratios = {
        arm: [here[arm, wind]["to_best"] for wind in winds if (arm, wind) in here]
        for arm in dict.fromkeys(arm for arm, _ in here)
    }
    tests = f"p, strict, wind {winds[-1]:g} | p, plain, wind {winds[0]:g}"
    lines = [
        f"| arm | {' | '.join(f'wind {wind:g}' for wind in winds)} | worst | {tests} |",
        f"| --- |{' ---: |' * (len(winds) + 3)}",
    ]
    for arm in sorted(ratios, key=lambda arm: (-len(ratios[arm]), -min(ratios[arm]))):
        cells = []
        for wind in winds:
            row = here.get((arm, wind))
            cells.append(f"{np.mean(row['values']):.1f} ({row['to_best']:.2f})" if row else "–")
        cells.append(f"{min(ratios[arm]):.2f}" if len(ratios[arm]) == len(winds) else "–")
        for wind, key in ((winds[-1], f"p_{STRICT}"), (winds[0], f"p_{PLAIN}")):
            row = here.get((arm, wind), {})
            cells.append(f"{row[key]:.2g}" if key in row else "–")
        lines.append(f"| {arm} | {' | '.join(cells)} |")
    return "\n".join(lines)


def draw(rows: list[Row], path: Path) -> None:
    """Draw a panel for each wind: every seed as a thin line, the mean of each arm as a thick one, as far as it has come."""
    longest: dict[tuple[float, str], Row] = {}
    for row in sorted((row for row in rows if "same_as" not in row), key=lambda row: len(row["steps"])):
        longest[wind_of(row), row["arm"]] = row
    winds, arms = (sorted({key[place] for key in longest}) for place in (0, 1))
    colours = dict(zip(sorted(arms, key=lambda arm: (arm not in UNRELAXED, arm)), cycle(COLOURS), strict=False))
    figure = Figure(figsize=(min(5.6 * len(winds), 14), 4), layout="constrained")
    FigureCanvasAgg(figure)
    for axes, wind in zip(figure.subplots(1, len(winds), squeeze=False, sharey=True)[0], winds, strict=True):
        for (_, arm), row in ((key, row) for key, row in longest.items() if key[0] == wind):
            returns = np.array(row["returns"])
            axes.plot(row["steps"], returns.T, color=colours[arm], linewidth=0.4, alpha=0.3)
            axes.plot(row["steps"], returns.mean(0), color=colours[arm], linewidth=2)
        axes.set(title=f"wind {wind:g}", xlabel="environment steps", ylabel="return")
        axes.spines[["top", "right"]].set_visible(False)
    handles = [axes.plot([], [], color=colour, linewidth=2, label=arm)[0] for arm, colour in colours.items()]
    figure.legend(handles=handles, loc="outside lower center", ncols=min(len(handles), 5), frameon=False)
    save_small(figure, path)


def main() -> None:
    """Read the runs, and write the file, the figure and the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*", type=Path, metavar="RUNS")
    if runs := parser.parse_args().runs:
        new = rows_of(runs)
        have = json.loads(DATA.read_text(encoding="utf-8")) if DATA.exists() else []
        measured = {(row["cell"], row["arm"]) for row in new}
        write_rows(DATA, [row for row in have if (row["cell"], row["arm"]) not in measured] + new)
    rows = tested(json.loads(DATA.read_text(encoding="utf-8")))
    draw(rows, HERE / "approximate.png")
    before, _, after = PAGE.read_text(encoding="utf-8").split(MARK)
    write_text(PAGE, f"{before}{MARK}\n\n{table(rows)}\n\n{MARK}{after}")
    print(table(rows))


if __name__ == "__main__":
    main()
