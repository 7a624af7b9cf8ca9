"""What the sections of a report have in common: how groups are named, and how numbers are written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isclose
from typing import Any

from rppdyn.jobs.measuring.figure import figure_of
from rppdyn.jobs.reporting.data import Measure, RunGroup
from rppdyn.jobs.reporting.html import Markup, figure, joined, tag
from rppdyn.jobs.results import final_policy
from rppdyn.runs.statistics import FEW

MISSING = "–"
INTERVALS = (
    "Over seeds: the interquartile mean, and in brackets its 95 % bootstrap interval; of three seeds or fewer the mean, and "
    "each"
)


def by_subject(groups: Sequence[RunGroup]) -> list[tuple[str, list[RunGroup]]]:
    """The groups on each environment or task."""
    subjects = dict.fromkeys(group.subject for group in groups)
    return [(subject, [group for group in groups if group.subject == subject]) for subject in subjects]


def labelled(group: RunGroup) -> Markup:
    """A group's label behind a piece of its line."""
    dashes = {"-": None, "--": "5 3", "-.": "6 3 2 3", ":": "2 2"}[group.line]
    line = tag("line", x1="0", x2="24", y1="5", y2="5", stroke=group.colour, stroke_width="4", stroke_dasharray=dashes)
    return joined([tag("svg", line, class_="swatch", viewBox="0 0 24 10", aria_hidden="true"), group.label])


def legend(groups: Sequence[RunGroup]) -> Markup:
    """The labels of groups, above a picture; once for all environments on which a configuration has one name and look."""
    distinct = {(group.label, group.colour, group.line): group for group in groups}
    return tag("div", *(tag("span", labelled(group)) for group in distinct.values()), class_="legend")


def bands(groups: Sequence[RunGroup], each: bool = False) -> str:
    """What lines and bands are, where there are several seeds; `each`: of any number of seeds every one is drawn."""
    counts = [count for group in groups if (count := len(group.runs)) > 1]
    if not counts:
        return ""
    thin = "Thin lines are single seeds, thick ones" if each or min(counts) <= FEW else "Lines are"
    return (
        f"{thin} interquartile means over seeds" + ", bands their 95 % bootstrap intervals" * (max(counts) > FEW) + ". "
    )


def folded(title: str, content: Markup, opened: bool = False) -> Markup:
    """Content that a reader unfolds."""
    return tag("details", tag("summary", title), content, open=opened)


def measured(group: RunGroup, identity: str, opened: bool) -> Markup | None:
    """What `rppdyn equivariance` found of a group's first run that it was used on."""
    run = next((run for run in group.runs if run.equivariance is not None), None)
    if run is None or run.equivariance is None:
        return None
    found = run.equivariance
    words = "; ".join(
        f"{name}: error {m['overall']['error']:.2g}"
        + (f", most of it explained by {worst}" if (worst := _largest(m["by_input"])) else "")
        for name, m in found["functions"].items()
    )
    seeds = found.get("seeds") or [run.seed]
    which = f"seed {seeds[0]}" if len(seeds) == 1 else f"{len(seeds)} members"
    caption = f"{run.path.name}: {found['source']}, at {found['states']:,} states, {found['states_from']}."
    if found["source"].startswith("final policy, ") and found["source"] != final_policy(
        run.result or {"steps": run.steps}
    ):
        caption += f" The run has gone on since, to {run.steps:,} steps: measure it again."
    return folded(
        f"{group.label} on {run.subject}, {which}",
        figure(identity, lambda: figure_of(found), caption, f"Errors by generator, entry and layer. {words}."),
        opened=opened,
    )


def estimate(found: Measure | None, write: Callable[[float], str | Markup]) -> str | Markup:
    """A value with its interval, or each of few, where seeds differ, and how many of them have none."""
    if found is None:
        return MISSING
    lost = f"{found.lost} of {found.lost + len(found.each)} diverged"
    if not found.each:
        return lost
    return joined([spread(found.centre, found.interval, found.each, write), note(lost) if found.lost else None])


def spread(
    centre: float,
    interval: tuple[float, float] | None,
    each: Sequence[float],
    write: Callable[[float], str | Markup],
    strong: bool = False,
) -> Markup:
    """A value, and below it its interval, or where there is none what it is the mean of; neither where all are the same."""
    value = tag("strong", write(centre)) if strong else write(centre)
    shown = each if interval is None else interval
    if isclose(min(shown), max(shown)):
        return joined([value])
    parts = [part for number in shown for part in (", ", write(number))][1:]
    below = tag("small", " ", *parts, class_="below each") if interval is None else note("[", *parts, "]")
    return joined([value, below])


def note(*words: str | Markup) -> Markup:
    """What is said below a number in its cell."""
    return tag("small", " ", *words, class_="below")


def reached(group: RunGroup, steps: int) -> Markup:
    """How far the runs have come, and of unfinished ones how far they are to go."""
    to_go = note(f"of {group.runs[0].length:,}, unfinished") if group.unfinished else None
    return joined([f"{steps:,}", to_go])


def scientific(value: float | None) -> str | Markup:
    """A number of any size."""
    if value is None:
        return MISSING
    if value == 0 or 1e-3 <= abs(value) < 1e4:
        return f"{value:.3g}"
    digits, exponent = f"{value:.1e}".split("e")
    mantissa = "" if digits == "1.0" else f"{digits}×"
    return joined([f"{mantissa}10", tag("sup", str(int(exponent)).replace("-", "−"))])


def plain(value: float) -> str:
    """A number of the size of a return."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}" if abs(value) < 10 else f"{value:.1f}"


def setting(value: Any) -> str:
    """A value of a configuration."""
    return "null" if value is None else str(value).replace("'", "")


def count(n: int, noun: str) -> str:
    """`1 run`, `2 runs`."""
    return f"{n} {noun}" + ("s" if n != 1 else "")


def _largest(shares: dict[str, float | None]) -> str | None:
    known = {name: share for name, share in shares.items() if share is not None}
    best = max(known, key=lambda name: known[name], default=None)
    return best if best is not None and known[best] > 0.5 else None
