"""The page of a report: the elements of its template (`report.html`), its pictures, and how it writes numbers."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable, Sequence
from math import isclose
from typing import Any

import matplotlib
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from matplotlib.figure import Figure

from rppdyn.jobs.measuring.measure import equivariance_figure
from rppdyn.jobs.reporting.data import Measure, RunGroup
from rppdyn.jobs.results import final_policy
from rppdyn.runs.statistics import FEW

ENGINE = Environment(
    loader=PackageLoader("rppdyn.jobs", "reporting"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
html: Any = ENGINE.get_template("report.html").module
"""The template's macros: `html.table(...)`, `html.note(...)`. They escape text and return `Markup`."""

Section = tuple[str, Markup]
"""A heading, and what stands below it."""

MISSING = "–"
INTERVALS = (
    "Over seeds: the interquartile mean, and in brackets its 95 % bootstrap interval; of three seeds or fewer the mean, and "
    "each"
)
INK = "#123456"
"""The colour of text and lines in a picture, which becomes the colour of the page's text."""
LOOK: dict[Any, Any] = dict.fromkeys(
    ("text.color", "axes.labelcolor", "axes.edgecolor", "axes.titlecolor", "xtick.color", "ytick.color", "grid.color"),
    INK,
) | {
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 11.0,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "legend.facecolor": "none",
    "savefig.facecolor": "none",
}


def page(title: str, lead: str, sections: Sequence[Section], footer: str) -> str:
    """The document: a heading, a list of contents, and sections, each with its heading."""
    anchors = [re.sub(r"\W+", "-", heading.lower()).strip("-") for heading, _ in sections]
    return html.page(title, lead, [(a, *section) for a, section in zip(anchors, sections, strict=True)], footer)


def blocks(parts: Iterable[Markup | None]) -> Markup:
    """Parts of a section one below the other, without those that are None."""
    return html.blocks(list(parts))


def picture(
    identity: str, draw: Callable[[], Figure], caption: str, alternative: str, legend: Markup | None = None
) -> Markup:
    """A figure as inlined SVG, its text as text, in the colours of the page.

    Args:
        identity: a word that no other picture of the page has; it keeps the picture's own references apart.
        alternative: description of the picture for readers who can't see it.
        legend: stands above the picture.
    """
    buffer = io.StringIO()
    with matplotlib.rc_context(LOOK | {"svg.hashsalt": identity}):
        figure = draw()
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") + len("<svg") :].strip()
    svg = re.sub(r"<metadata>.*?</metadata>\s*", "", svg, flags=re.DOTALL)
    svg = re.sub(r'\bid="', f'id="{identity}-', svg)
    svg = svg.replace('href="#', f'href="#{identity}-').replace("url(#", f"url(#{identity}-")
    svg = svg.replace(INK, "currentColor").replace(", sans-serif", ", system-ui, sans-serif")
    attributes, _, content = svg.partition(">")
    return html.figure(identity, Markup(" " + attributes), Markup(content), alternative, caption, legend)


# -- groups of runs ---------------------------------------------------------------------------------------------------


def by_subject(groups: Sequence[RunGroup]) -> list[tuple[str, list[RunGroup]]]:
    """The groups on each environment or task."""
    subjects = dict.fromkeys(group.subject for group in groups)
    return [(subject, [group for group in groups if group.subject == subject]) for subject in subjects]


def legend(groups: Sequence[RunGroup]) -> Markup:
    """The labels of groups, above a picture; once for all environments on which a configuration has one name and look."""
    return html.legend(list({(group.label, group.colour, group.line): group for group in groups}.values()))


def bands(groups: Sequence[RunGroup], each: bool = False) -> str:
    """Explain lines and bands, where there are several seeds; `each`: of any number of seeds every one is drawn."""
    counts = [count for group in groups if (count := len(group.runs)) > 1]
    if not counts:
        return ""
    thin = "Thin lines are single seeds, thick ones" if each or min(counts) <= FEW else "Lines are"
    return (
        f"{thin} interquartile means over seeds" + ", bands their 95 % bootstrap intervals" * (max(counts) > FEW) + ". "
    )


def measured(group: RunGroup, identity: str, opened: bool) -> Markup | None:
    """Equivariance errors of the first run of a group that `rppdyn equivariance` has measured; None where it has none."""
    run = next((run for run in group.runs if run.equivariance is not None), None)
    if run is None or run.equivariance is None:
        return None
    result = run.equivariance
    errors = "; ".join(
        f"{name}: error {m['overall']['error']:.2g}"
        + (f", most of it explained by {worst}" if (worst := _largest(m["by_input"])) else "")
        for name, m in result["functions"].items()
    )
    seeds = result.get("seeds") or [run.seed]
    members = f"seed {seeds[0]}" if len(seeds) == 1 else f"{len(seeds)} members"
    caption = f"{run.path.name}: {result['source']}, at {result['states']:,} states, {result['states_from']}."
    if result["source"].startswith("final policy, ") and result["source"] != final_policy(
        run.result or {"steps": run.steps}
    ):
        caption += f" The run has gone on since, to {run.steps:,} steps: measure it again."
    alternative = f"Errors by generator, entry and layer. {errors}."
    content = picture(identity, lambda: equivariance_figure(result), caption, alternative)
    return html.details(f"{group.label} on {run.subject}, {members}", content, opened)


def _largest(shares: dict[str, float | None]) -> str | None:
    known = {name: share for name, share in shares.items() if share is not None}
    best = max(known, key=lambda name: known[name], default=None)
    return best if best is not None and known[best] > 0.5 else None


# -- numbers ----------------------------------------------------------------------------------------------------------


def estimate(measure: Measure | None, write: Callable[[float], str | Markup]) -> str | Markup:
    """A value with its interval, or each of few, where seeds differ, and how many of them have none."""
    if measure is None:
        return MISSING
    lost = f"{measure.lost} of {measure.lost + len(measure.each)} diverged" if measure.lost else None
    if not measure.each:
        return lost or MISSING
    return html.with_note(spread(measure.centre, measure.interval, measure.each, write), lost)


def spread(
    centre: float,
    interval: tuple[float, float] | None,
    each: Sequence[float],
    write: Callable[[float], str | Markup],
    strong: bool = False,
) -> Markup:
    """A value, and below it its interval, or where there is none what it is the mean of; neither where all are the same."""
    shown = each if interval is None else interval
    if isclose(min(shown), max(shown)):
        return html.spread(write(centre), None, None, strong)
    numbers = [write(number) for number in shown]
    return html.spread(write(centre), interval and numbers, numbers, strong)


def reached(group: RunGroup, steps: int) -> Markup:
    """How far the runs have come, and of unfinished ones how far they are to go."""
    return html.with_note(f"{steps:,}", f"of {group.runs[0].length:,}, unfinished" if group.unfinished else None)


def scientific(value: float | None) -> str | Markup:
    """A number of any size."""
    if value is None:
        return MISSING
    if value == 0 or 1e-3 <= abs(value) < 1e4:
        return f"{value:.3g}"
    digits, exponent = f"{value:.1e}".split("e")
    return html.power("" if digits == "1.0" else f"{digits}×", str(int(exponent)).replace("-", "−"))


def plain(value: float) -> str:
    """A number of the size of a return."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}" if abs(value) < 10 else f"{value:.1f}"


def setting(value: Any) -> str:
    """A value of a configuration."""
    return "null" if value is None else str(value).replace("'", "")


def count(n: int, noun: str) -> str:
    """`1 run`, `2 runs`."""
    return f"{n} {noun}" + ("s" if n != 1 else "")
