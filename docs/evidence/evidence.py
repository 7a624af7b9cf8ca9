"""Compute every claim's effect and verdict from the raw data: `make evidence`.

`claims.json` says what is claimed, where it was published, and which arm of which raw file is compared with which others. This
script adds the effect, its interval and the verdict to each claim, draws the forest plot (`claims.png`) and writes the tables
of `docs/evidence.md` and `docs/evidence/claims.md`. The rules are those of `protocol.md`.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.typing import NDArray
from PIL import Image
from scipy import stats

from rppdyn.runs import bootstrap_interval
from rppdyn.runs.figures import COLOURS, save
from rppdyn.runs.files import write_text

HERE = Path(__file__).parent
CLAIMS, FOREST = HERE / "claims.json", HERE / "claims.png"
PAGES = (HERE.parent / "evidence.md", HERE / "claims.md")
MARK = "<!-- table: made by `make evidence` -->"
VERDICTS = ("decided", "suggestive", "contradicted", "open")
DECIDED_FROM = 10  # seeds
INTERVAL_FROM = 5  # seeds
SUGGESTIVE_BELOW = 0.1  # p, not corrected
LEVEL_MARGIN = 1.1  # an arm is level with another if the ratio's upper end is below this, or below the claim's `margin`
SAME_MARGIN = 1.02  # and changes nothing if the interval lies between the inverse of this and this
READABLE = {"emlp": "strict", "mlp": "plain", "mlp, mirrored replay": "plain, mirrored replay", "fc": "fully connected"}
"""Names, in figures and tables, of arms of the raw data; ``rpp`` with a variance is the relaxed network."""
CONTROL = "control"  # the arm of the same layers without preference
MODEL_COLOUR, RETURN_COLOUR = COLOURS[0], COLOURS[1]
Claim = dict[str, Any]


def write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    """Write a raw file, a row on each line."""
    write_text(path, "[\n" + ",\n".join(json.dumps(row, separators=(",", ":")) for row in rows) + "\n]\n")


def readable(arm: str) -> str:
    """An arm as readers know it."""
    return "relaxed" if arm.startswith("rpp, ") else READABLE.get(arm, arm)


def short(value: float) -> float:
    """Six digits of a number."""
    return float(f"{value:.6g}")


def values_of(claim: Claim, arm: str) -> tuple[NDArray[np.float64], NDArray[np.float64] | None]:
    """Read one arm's values, in the order of its seeds, and its returns at the last evaluation, if they are known.

    A claim on returns may have `steps`, fewer than its cell's runs have: then they are taken as far as that.

    Raises:
        ValueError: the raw file has not exactly one such arm in the claim's cell.
    """
    rows = json.loads((HERE / claim["data"]).read_text(encoding="utf-8"))
    rows = [row for row in rows if row["cell"] == claim["cell"] and row["arm"] == arm]
    if "steps" in claim:
        counts = [sum(step <= claim["steps"] for step in row["steps"]) for row in rows]
        returns = [np.array(row["returns"])[:, :count] for row, count in zip(rows, counts, strict=True)]
        rows = [row | {"returns": r, "values": r[:, 1:].mean(1)} for row, r in zip(rows, returns, strict=True)]
    if len(rows) != 1:
        raise ValueError(
            f"{claim['id']}: {claim['data']} has {len(rows)} rows {arm!r} of {claim['cell']!r}; it takes one"
        )
    order = np.argsort(rows[0]["seeds"])
    last = np.array(rows[0]["returns"])[order, -1] if "returns" in rows[0] else None
    return np.array(rows[0]["values"])[order], last


def bounds(claim: Claim) -> tuple[float, ...]:
    """The ratios that a claim says it differs from: it is ahead of 1 or a margin, level below one, or the same between two."""
    return {
        "ahead": (claim.get("margin", 1.0),),
        "level": (claim.get("margin", LEVEL_MARGIN),),
        "same": (1 / SAME_MARGIN, SAME_MARGIN),
    }[claim.get("relation", "ahead")]


def measure(claim: Claim) -> dict[str, Any]:
    r"""Compare an arm with the best of the others. Below a ratio of 1 it is better.

    A claim's `kind` decides how. Errors ("error") are paired by seed: ratio :math:`\exp \langle \log a_i / b_i \rangle` with
    a 95 % t interval, and its t test. Classification errors ("rate") can be zero and returns ("return") are not paired: the
    ratio of means, of returns above zero its inverse, with a
    bootstrap interval, and the rank test of Mann and Whitney. Tests are two-sided, of the ratio against the claim's bounds; of
    two the larger p counts. Returns at the end are compared with the same arm's, by a rank test against 1.
    """
    read = {arm: values_of(claim, arm) for arm in (claim["arm"], *claim["against"])}
    arms = {arm: values for arm, (values, _) in read.items()}
    ours, is_return = arms[claim["arm"]], claim["kind"] == "return"
    # the sizes of returns below zero are better lower, as errors are
    sign = -1 if is_return and any((values > 0).any() for values in arms.values()) else 1
    best = (max if is_return else min)(claim["against"], key=lambda arm: arms[arm].mean())
    other, n = arms[best], len(ours)
    measured: dict[str, Any] = {"best": best, "seeds": n, "means": {arm: short(v.mean()) for arm, v in arms.items()}}
    if claim["kind"] == "error":
        logarithms = np.log(ours) - np.log(other)
        centre = logarithms.mean()
        error = logarithms.std(ddof=1) / math.sqrt(n) if n >= INTERVAL_FROM else math.nan
        half = stats.t.ppf(0.975, n - 1) * error
        ends = (centre - half, centre + half)
        points = logarithms
        ps = [2 * stats.t.sf(abs(centre - math.log(bound)) / error, n - 1) for bound in bounds(claim)]
    else:

        def ratio(resampled: NDArray[np.float64], axis: int) -> NDArray[np.float64]:
            mine, theirs = np.split(resampled, [n], axis=axis)
            quotient = mine.mean(axis) / theirs.mean(axis)
            return np.log(np.where(quotient > 0, quotient, np.nan) ** sign)

        centre = float(ratio(np.concatenate([ours, other]), 0))
        ends = (
            tuple(map(float, bootstrap_interval([ours, other], statistic=ratio)))
            if n >= INTERVAL_FROM
            else (math.nan,) * 2
        )
        with np.errstate(divide="ignore", invalid="ignore"):
            points = sign * np.log(ours / other.mean())
        ps = [rank_test(ours, other * bound**sign) for bound in bounds(claim)]
        last, other_last = read[claim["arm"]][1], read[best][1]
        if last is not None and other_last is not None and len(last) > 1:
            at_end = float(last.mean() / other_last.mean()) ** sign
            means = [short(last.mean()), short(other_last.mean())]
            measured["final"] = {"means": means, "ratio": short(at_end), "p": short(rank_test(last, other_last))}
    if n >= INTERVAL_FROM:
        measured["p"] = short(max(ps))
    finite = np.isfinite(points)
    return measured | {
        "ratio": short(np.exp(centre)),
        "interval": [short(np.exp(end)) for end in ends] if all(map(math.isfinite, ends)) else None,
        "points": [float(f"{value:.4g}") for value in np.exp(points[finite])],
    }


def rank_test(ours: NDArray[np.float64], others: NDArray[np.float64]) -> float:
    """The exact p-value of Mann and Whitney's test, two-sided: of the sum of ranks, equal values having their mean rank."""
    ranks = (2 * stats.rankdata([*ours, *others])).astype(int)
    ways = np.zeros(
        (len(ours) + 1, ranks.sum() + 1)
    )  # to choose so many of the values with this sum of (doubled) ranks
    ways[0, 0] = 1
    for rank in ranks:
        ways[1:, rank:] += ways[:-1, :-rank]
    chosen, ours_sum = ways[-1], ranks[: len(ours)].sum()
    return float(min(1.0, 2 * min(chosen[: ours_sum + 1].sum(), chosen[ours_sum:].sum()) / chosen.sum()))


def verdict(claim: Claim, measured: dict[str, Any], corrected: float | None) -> str:
    """One word, by the protocol: decided, suggestive, open or contradicted. A lead of less than 2 % suggests nothing.

    The correction keeps claims from being taken; that one is contradicted takes none.
    That an arm is ahead is decided only beside the control, the same layers without preference: a plain network is none.

    Args:
        corrected: the p-value by Holm over all claims of its kind, on errors or on returns; None with fewer than five seeds.
    """
    ratio, ahead = measured["ratio"], claim["relation"] == "ahead"
    least, most = (0.0, *bounds(claim))[-2:]
    if corrected is None:
        return "open"
    if not least < ratio < most:
        return "contradicted" if measured["p"] < 0.05 else "open"
    enough = measured["seeds"] >= DECIDED_FROM
    if corrected < 0.05 and enough and (not ahead or CONTROL in claim["against"]):
        return "decided"
    leans = not ahead or ratio < 1 / SAME_MARGIN
    return "suggestive" if leans and measured["p"] < SUGGESTIVE_BELOW else "open"


def arms_parser(doc: str, arms: Collection[str], seeds: Iterable[int], data: Path) -> argparse.ArgumentParser:
    """The command line of a script that trains agents by itself: which arms and seeds, and the file of rows."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arms", nargs="*", default=list(arms), choices=list(arms))
    parser.add_argument("--seeds", nargs="*", type=int, default=list(seeds))
    parser.add_argument("--out", type=Path, default=data)
    parser.add_argument("--table", action="store_true", help="train nothing")
    return parser


def holm(values: list[float]) -> list[float]:
    """Correct p-values by Holm's step-down method."""
    order, corrected, largest = np.argsort(values), [0.0] * len(values), 0.0
    for rank, index in enumerate(order):
        largest = max(largest, min(1.0, (len(values) - rank) * values[index]))
        corrected[index] = largest
    return corrected


def recompute(claims: list[Claim]) -> list[Claim]:
    """The claims, each with what its raw data say of it; claims without data are open."""
    measured = [measure(claim) if claim.get("data") else None for claim in claims]
    corrected: dict[int, float] = {}
    for returns in (False, True):  # errors and returns apart
        tested = [
            i for i, one in enumerate(measured) if one and "p" in one and (claims[i]["kind"] == "return") == returns
        ]
        corrected |= zip(tested, holm([measured[i]["p"] for i in tested]), strict=True)  # type: ignore[index]
    return [
        {key: value for key, value in claim.items() if key not in ("measured", "verdict")}
        | ({"measured": one} if one else {})
        | {"verdict": verdict(claim, one, corrected.get(index)) if one else "open"}
        for index, (claim, one) in enumerate(zip(claims, measured, strict=True))
    ]


def compared_with(claim: Claim) -> str:
    """The network that an effect is compared with, and among how many it is the best."""
    best, count = readable(claim["measured"]["best"]), len(claim["against"])
    return best if count == 1 else f"{best}: best of {count}"


def row(claim: Claim) -> str:
    """One line of a table."""
    one = claim.get("measured")
    effect = against = "–"
    if one:
        spread = f" [{one['interval'][0]:.2f}, {one['interval'][1]:.2f}]" if one["interval"] else ""
        if not one["interval"] and one["seeds"] > 1:
            spread = f" ({', '.join(f'{value:.2f}' for value in sorted(one['points']))})"
        effect, against = f"{one['ratio']:.2f}{spread}", compared_with(claim)
        if "final" in one:
            effect += f"; {one['final']['ratio']:.2f}"
    published = claim["published"].get("ratio")
    where = claim["published"]["where"] + (f": {published:.2f}" if published else "")
    count = one["seeds"] if one else "–"
    cells = (claim["system"], claim["symmetry"], claim["claim"], where, effect, against, count, claim["verdict"])
    return f"| {' | '.join(map(str, cells))} |"


def table(claims: list[Claim]) -> str:
    """Claims as Markdown."""
    head = "| system | symmetry, defect | claim | published | ratio; at the end | compared with | n | verdict |"
    return "\n".join([head, "| --- | --- | --- | --- | ---: | --- | ---: | --- |", *map(row, claims)])


def write_table(page: Path, mark: str, table: str) -> None:
    """Put a table between the page's two marks."""
    before, _, after = page.read_text(encoding="utf-8").split(mark)
    write_text(page, f"{before}{mark}\n\n{table}\n\n{mark}{after}")


def draw(claims: list[Claim]) -> Figure:
    """Draw each claim's ratio to the best of the networks that it is compared with, each seed a point."""
    shown = [claim for claim in claims if "measured" in claim][::-1]
    figure = Figure(figsize=(8.2, 0.31 * len(shown) + 1.3), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for y, claim in enumerate(shown):
        one, colour = claim["measured"], RETURN_COLOUR if claim["kind"] == "return" else MODEL_COLOUR
        axes.plot(one["points"], np.full(len(one["points"]), y), ".", color=colour, alpha=0.35, ms=5, mew=0)
        if one["interval"]:
            axes.plot(one["interval"], [y, y], color=colour, lw=1.6)
        axes.plot(one["ratio"], y, "D", color=colour, ms=4.5)
        if claim["published"].get("ratio"):
            axes.plot(claim["published"]["ratio"], y, "|", color="black", ms=11, mew=1.6)
    axes.axvline(1, color="0.4", lw=0.8)
    axes.set_xscale("log")
    ticks = [0.1, 0.2, 0.3, 0.5, 0.7, 1, 1.4, 2, 3]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.set_xlim(0.095, 3.2)
    axes.set_ylim(-0.7, len(shown) - 0.3)
    axes.set_yticks(
        range(len(shown)),
        [f"{c['system']}: {readable(c['arm'])} / {readable(c['measured']['best'])}" for c in shown],
    )
    axes.tick_params(axis="y", length=0, labelsize="x-small")
    for y, claim in enumerate(shown):
        axes.text(1.01, y, f"n = {claim['measured']['seeds']}, {claim['verdict']}", transform=axes.get_yaxis_transform(),
                  va="center", fontsize="x-small")  # fmt: skip
    axes.grid(axis="x", alpha=0.25)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.set_xlabel(
        "error of the first network / error of the second; return of the second / return of the first\n"
        "left of 1 the first network is better",
        fontsize="small",
    )
    handles = [
        axes.plot([], [], "D-", color=MODEL_COLOUR, ms=4.5, label="error of models")[0],
        axes.plot([], [], "D-", color=RETURN_COLOUR, ms=4.5, label="mean return over training")[0],
    ]
    if any(claim["published"].get("ratio") for claim in shown):
        handles.append(axes.plot([], [], "|", color="black", ms=11, mew=1.6, label="published")[0])
    figure.legend(handles=handles, loc="outside upper center", ncols=3, frameon=False, fontsize="small")
    return figure


def save_small(figure: Figure, path: Path) -> None:
    """Save a figure in 128 colours, in half of the bytes; the octree keeps those of thin lines apart."""
    with Image.open(save(figure, path)) as image:
        few = image.convert("RGB").quantize(128, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)
    few.save(path, optimize=True)


def main() -> None:
    """Recompute, draw and write."""
    claims = recompute(json.loads(CLAIMS.read_text(encoding="utf-8")))
    write_rows(CLAIMS, claims)
    shown = [claim for claim in claims if claim.get("shown")]
    save_small(draw(shown), FOREST)
    for page, rows in zip(PAGES, (shown, claims), strict=True):
        write_table(page, MARK, table(rows))
    counts = {
        word: sum(claim["verdict"] == word for claim in claims)
        for word in ("decided", "suggestive", "contradicted", "open")
    }
    print(f"{len(claims)} claims: " + ", ".join(f"{count} {word}" for word, count in counts.items()))


if __name__ == "__main__":
    main()
