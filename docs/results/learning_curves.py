"""What a symmetric prior did for agents: `python docs/results/learning_curves.py RUNS... --out FIGURE --json FILE`.

Above returns, below the policy's equivariance error, a panel for each environment: interquartile means over seeds with 95 %
bootstrap intervals, and of three seeds or fewer means and each. Printed are returns at the end and averaged over all
evaluations after the first, and what they are more than the plain network's: the difference of interquartile means (seeds of
both are resampled), and the probability that a run's average is above one of the plain network's (Agarwal et al. 2021,
section 4.3).
"""

from __future__ import annotations

from collections import defaultdict
from functools import partial
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.typing import NDArray
from reading import figure_arguments, gather, keep, read

from rppdyn.runs import RunFolder
from rppdyn.runs.figures import MODEL_COLOURS, curve, draw_several, label_steps
from rppdyn.runs.metrics import read_metrics, series
from rppdyn.runs.statistics import FEW, bootstrap_interval, iqm

RETURN, ERROR = "eval/return_mean", "equivariance/policy"
KEPT = ("step", RETURN, ERROR, "equivariance/critic", "pathway/actor_free_share", "pathway/critic_free_share")
PLAIN = "mlp"
ORDER = (PLAIN, "mlp, mirrored replay", "rpp", "emlp", "rpp, published spec", "emlp, published spec")
Runs = list[list[dict[str, Any]]]


def read_with_metrics(folder: RunFolder) -> dict[str, Any]:
    """What a finished run holds, with the metrics that are drawn."""
    metrics = [{k: r[k] for k in KEPT if k in r} for r in read_metrics(folder.metrics.path)]
    return read(folder) | {"metrics": metrics}


def label(config: dict[str, Any]) -> str:
    """The model, and what else is special."""
    return (
        config["model"]["kind"]
        + (", mirrored replay" if config["agent"]["augment"] else "")
        + (", published spec" if config["env"]["variant"] == "published" else "")
    )


def of(runs: Runs) -> tuple[NDArray, NDArray]:
    """Each run's return at the end, and its average over the evaluations after the first."""
    values = np.array([series(records, RETURN)[1] for records in runs])
    return values[:, -1], values[:, 1:].mean(1)


def spread(values: NDArray) -> str:
    """An interquartile mean with its interval; of few seeds the mean, and each."""
    if len(values) <= FEW:
        return f"{values.mean():.0f} ({', '.join(f'{value:.0f}' for value in sorted(values))})"
    low, high = bootstrap_interval(values)
    return f"{iqm(values):.0f} ({low:.0f} to {high:.0f})"


def more(values: NDArray, plain: NDArray) -> str:
    """By how much, with its interval, and how probably values are above those of the plain network."""

    def difference(joined: NDArray, axis: int) -> NDArray:
        ours, theirs = np.split(joined, [len(values)], axis=axis)
        return iqm(ours, axis=axis) - iqm(theirs, axis=axis)

    def above(joined: NDArray, axis: int) -> NDArray:
        ours, theirs = np.split(joined, [len(values)], axis=axis)
        signs = np.sign(np.expand_dims(ours, axis + 1) - np.expand_dims(theirs, axis))
        return 0.5 + signs.mean((axis, axis + 1)) / 2

    both = np.concatenate([values, plain])
    cells = []
    for statistic, shown in ((difference, "{:+.0f}"), (above, "{:.2f}")):
        ends = bootstrap_interval([values, plain], statistic=statistic)
        low, high = map(shown.format, ends)
        all_pairs = statistic is above and abs(statistic(both, axis=0) - 0.5) == 0.5  # its resamples are all alike
        spread = f"all {len(values) * len(plain)} pairs" if all_pairs else f"{low} to {high}"
        cells.append(f"{shown.format(statistic(both, axis=0))} ({spread})")
    return " | ".join(cells)


def draw(axes: Axes, models: dict[str, Runs], metric: str) -> None:
    """A metric of all models over steps."""
    for name, runs in models.items():
        drawn = curve(runs, metric)
        if drawn is None or drawn.centre.max() < 1e-6:  # strict networks have no error to draw
            continue
        model = name.replace("mirrored replay", "augmented").removesuffix(" spec")
        draw_several(axes, drawn.steps, drawn.each, MODEL_COLOURS[model], label=name, log=metric == ERROR)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    label_steps(axes.xaxis)


def main() -> None:
    """Draw, print and write."""
    arguments = figure_arguments(__doc__)
    runs = gather(arguments.runs, read_with_metrics)
    found: dict[str, dict[str, Runs]] = defaultdict(partial(defaultdict, list))
    for run in sorted(runs, key=lambda run: ORDER.index(label(run["config"]))):
        found[run["config"]["env"]["id"]][label(run["config"])].append(run["metrics"])
    figure = Figure(figsize=(3.6 * len(found), 5.4), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(2, len(found), squeeze=False, sharex=True)
    for (env, models), (above, below) in zip(sorted(found.items()), panels.T, strict=True):
        draw(above, models, RETURN)
        draw(below, models, ERROR)
        above.set_title(env, fontsize="medium")
        below.set_yscale("log")
        below.set_xlabel("environment steps")
        above.legend(fontsize="x-small", frameon=False)
        print(
            f"\n| {env} | return at the end | average | more than mlp's | P(average above one of mlp's) |\n"
            "| --- | --- | --- | --- | --- |"
        )
        for name, each in models.items():
            last, average = of(each)
            against = " | " if name == PLAIN or len(average) <= FEW else more(average, of(models[PLAIN])[1])
            print(f"| {name} | {spread(last)} | {spread(average)} | {against} |")
    panels[0][0].set_ylabel("mean return")
    panels[1][0].set_ylabel("policy's equivariance error")
    keep(arguments, runs, lambda: figure)


if __name__ == "__main__":
    main()
