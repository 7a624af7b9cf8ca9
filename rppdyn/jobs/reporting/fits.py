"""The sections of a report that are about fits: one for each task."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean

from markupsafe import Markup

from rppdyn.jobs.reporting import data
from rppdyn.jobs.reporting.data import Final, Measure, RunGroup
from rppdyn.jobs.reporting.page import (
    INTERVALS,
    MISSING,
    Section,
    bands,
    blocks,
    by_subject,
    estimate,
    html,
    legend,
    measured,
    picture,
    reached,
    scientific,
    setting,
    spread,
)
from rppdyn.runs import paired_ratio
from rppdyn.runs.statistics import FEW

HORIZONS = (10, 30, 100)
"""Steps at which transition models are measured."""

Write = Callable[[float], str | Markup]
IMAGES = (
    " Of images, errors are the share that is classified wrongly, or of a regression the root mean squared error in standard "
    "deviations; the equivariance error is that under shifts."
)
MOST_PAIRS = 10  # more of them are folded


def _times(ratio: float) -> str | Markup:
    return f"{ratio:.2f}" if 0.1 <= ratio < 100 else scientific(ratio)


TESTED: Mapping[str, tuple[str, Write]] = {
    "test/error": ("test error", scientific),
    "test/mse": ("mean squared error", scientific),
    "test/nll": ("negative log-likelihood", scientific),
    **{f"test/error_{steps}": (f"error over {steps} steps", scientific) for steps in HORIZONS},
    "rollout/error": ("rollout error", scientific),
    "rollout/energy_drift": ("energy drift", scientific),
    "rollout/momentum_drift": ("momentum drift", scientific),
    "equivariance/error": ("equivariance error", scientific),
}
"""Measures of finished fits: the title of each, and how it is written."""

PARTLY = {"test/error": ("test/diverged", "chunks"), "rollout/error": ("rollout/diverged", "rollouts")}
"""Errors that leave out what diverged: the measure of its share, and what it is of."""

COMPARED = ("test/error", *(f"test/error_{steps}" for steps in HORIZONS), "rollout/error")
ALONG = {
    "error": "relative error",
    "energy_drift": "drift of the energy",
    "momentum_drift": "drift of the angular momentum",
}
CURVES = {"test/error": "test error", "equivariance/error": "equivariance error"}


def glance(groups: Sequence[RunGroup]) -> Markup:
    """One line for each configuration of fits."""
    several = len({group.subject for group in groups}) > 1
    shown = [name for name in (*COMPARED, "equivariance/error") if any(_last(group, name) for group in groups)]
    rows = [
        [html.label(group), *[group.subject] * several, f"{len(group.runs)}", reached(group, group.steps),
         *(estimate(_last(group, name), scientific) for name in shown)]
        for group in groups
    ]  # fmt: skip
    head = ["configuration", *["task"] * several, "seeds", "epochs", *(TESTED[name][0] for name in shown)]
    explain = html.note(
        f"{INTERVALS}. Errors are relative, |y − f(x)| / (|y| + |f(x)|): 0 is right and 1 the worst, geometric means over the "
        "test data and, along rollouts, over time. An equivariance error is 0 for an equivariant function and 1 at worst."
        + IMAGES
        * any("pathways" in group.runs[0].model for group in groups)
    )
    caption = "Results of fits" + " so far" * any(group.unfinished for group in groups)
    return blocks([html.table(caption, head, rows, range(1 + several, len(head))), explain])


def sections(groups: Sequence[RunGroup]) -> list[Section]:
    """The sections on fits beyond a glance, task by task."""
    return [(subject, _task(k, subject, members)) for k, (subject, members) in enumerate(by_subject(groups))]


def _task(k: int, subject: str, groups: Sequence[RunGroup]) -> Markup:
    parts = {
        "On test data": _tested(subject, groups),
        "Models in pairs": _pairs(subject, groups),
        "Through training": _training(k, subject, groups),
        "Along rollouts": _rollouts(k, subject, groups),
        "Equivariance": _equivariance(k, subject, groups),
        "Priors": _priors(subject, groups),
    }
    return blocks(blocks([html.heading(title), part]) for title, part in parts.items() if part is not None)


def _tested(subject: str, groups: Sequence[RunGroup]) -> Markup:
    shown = [name for name in TESTED if any(group.test(name) for group in groups)]
    if not shown:
        return html.paragraph("None of the runs has finished.")
    rows = [[html.label(group), *(_measured(group, name) for name in shown)] for group in groups]
    head = ["configuration", *(TESTED[name][0] for name in shown)]
    return html.table(f"Finished models on the test data of {subject}", head, rows, range(1, len(head)))


def _measured(group: RunGroup, name: str) -> str | Markup:
    """An estimate, and the share, in the mean over seeds, of what it leaves out."""
    share, what = PARTLY.get(name, ("", ""))
    left_out = [run.test.get(share) or 0.0 for run in group.runs if run.test.get(name) is not None]
    diverged = f"{100 * fmean(left_out):.3g} % of {what} diverged" if any(left_out) else None
    return html.with_note(estimate(group.test(name), TESTED[name][1]), diverged)


def _pairs(subject: str, groups: Sequence[RunGroup]) -> Markup | None:
    """Ratios of errors, seed by seed."""
    shown = [name for name in COMPARED if any(group.test(name) for group in groups)]
    rows = []
    for a, b in itertools.combinations(groups, 2):
        cells = [_ratio(a, b, name) for name in shown]
        if any(cell != MISSING for cell in cells):
            rows.append([html.pair(a, b), *cells])
    if not rows:
        return None
    head = ["ratio of", *(TESTED[name][0].replace("error", "errors", 1) for name in shown)]
    content = blocks([
        html.table(f"Ratios of errors on {subject}", head, rows, range(1, len(head))),
        html.note(
            "Below 1 the first has the smaller error. Pairs have the seed in common, and so the data: the interquartile mean "
            "over seeds of log(a/b), exponentiated, and its 95 % bootstrap interval over seeds; of three seeds or fewer each. "
            "In bold where the interval leaves out 1."
        ),
    ])  # fmt: skip
    return html.details(f"{len(rows)} pairs", content) if len(rows) > MOST_PAIRS else content


def _ratio(a: RunGroup, b: RunGroup, name: str) -> str | Markup:
    first, second = ({run.seed: error for run in g.runs if (error := run.test.get(name))} for g in (a, b))
    seeds = sorted(first.keys() & second.keys())
    if not seeds:
        return MISSING
    pairs = [(first[seed], second[seed]) for seed in seeds]
    centre, interval = paired_ratio(*zip(*pairs, strict=True))
    each = [a / b for a, b in pairs]
    if len(each) <= FEW:
        return spread(centre, None, each, _times)
    return spread(centre, interval, each, _times, strong=not interval[0] <= 1 <= interval[1])


def _training(k: int, subject: str, groups: Sequence[RunGroup]) -> Markup:
    panels = [(title, groups, name) for name, title in CURVES.items()]
    summary = "; ".join(
        f"{group.label}'s {title} goes from {drawn.centre[0]:.2g} to {drawn.centre[-1]:.2g}"
        for name, title in CURVES.items()
        for group in groups
        if (drawn := group.curve(name)) is not None
    )
    caption = "Errors on test data and equivariance errors there, on logarithmic scales. " + bands(groups, each=True)
    draw = lambda: data.curves(panels, "error", log=True, unit="epochs", each=True)  # noqa: E731
    return picture(f"training{k}", draw, caption, f"Errors on {subject} over epochs: {summary}.", legend(groups))


def _rollouts(k: int, subject: str, groups: Sequence[RunGroup]) -> Markup | None:
    converged = [group for group in groups if any(run.rollouts.get("error") for run in group.runs)]
    if not converged:
        return None
    panels = {
        name: title for name, title in ALONG.items() if any(run.rollouts.get(name) for g in converged for run in g.runs)
    }
    drifts = ". Geometric means over trajectories"
    if len(panels) > 1:  # elsewhere an error has a number even where a trajectory diverged, 1
        drifts = (
            ", and how far the true energy and the angular momentum about the vertical drift along the model's rollouts. "
            "Geometric means over trajectories, without those that diverged"
        )
    unit = "steps" if all(group.runs[0].verb == "fit-transition" for group in converged) else "time, s"
    caption = (
        f"Rollouts from the initial states of the test trajectories: the relative error of the state{drifts}. "
        + bands(converged)
    )
    alternative = f"Errors of rollouts on {subject} over {unit}; the table above has their means."
    finished = [group for group in groups if any(run.rollouts for run in group.runs)]
    draw = lambda: data.rollouts(finished, panels, unit)  # noqa: E731
    return picture(f"rollouts{k}", draw, caption, alternative, legend(finished))


def _equivariance(k: int, subject: str, groups: Sequence[RunGroup]) -> Markup | None:
    prefix = "equivariance/"
    rows = [
        [html.label(group), name.removeprefix(prefix), estimate(group.test(name), scientific)]
        for group in groups
        for name in dict.fromkeys(name for run in group.runs for name in run.test)
        if name.startswith(prefix) and name != "equivariance/error"
    ]
    if not rows:
        return None
    details = [measured(group, f"measured{k}-{i}", opened=i == 0) for i, group in enumerate(groups)]
    advice = html.advice("for entries and layers")
    return blocks([
        html.table(f"Equivariance errors by generator on {subject}", ["configuration", "generator", "error"], rows, (2,)),
        *(details if any(details) else [advice]),
    ])  # fmt: skip


def _priors(subject: str, groups: Sequence[RunGroup]) -> Markup:
    learned = [_learned(subject, group) for group in groups if group.runs[0].config["objective"] != "map"]
    return blocks([_configured(subject, groups), *learned])


def _learned(subject: str, group: RunGroup) -> Markup:
    """Variances learned by marginal likelihood, beside how much of each pathway the data determine."""
    names = [name.partition("/")[2] for name in group.runs[0].records[-1] if name.startswith("effective/")]
    power = lambda exponent: scientific(10**exponent)  # noqa: E731
    rows = [
        [
            name,
            estimate(group.final(f"log10_variance/{name}"), power),
            estimate(group.final(f"effective/{name}"), lambda number: f"{number:.3g}"),
        ]
        for name in names
    ]
    head = ["pathway", "learned variance", "effective number of parameters"]
    return html.table(f"Learned variances on {subject}: {group.label}", head, rows, (1, 2))


def _configured(subject: str, groups: Sequence[RunGroup]) -> Markup:
    title = f"Variances of the priors and of the likelihood on {subject}, as configured"
    if any("pathways" in group.runs[0].model for group in groups):
        names = [name for name in groups[0].runs[0].model["pathways"] if any(_variance(g, name) for g in groups)]
        rows = [
            [html.label(g), *(scientific(v) if (v := _variance(g, name)) else MISSING for name in names)]
            for g in groups
        ]
        return html.table(title, ["configuration", *names], rows, range(1, 1 + len(names)))
    absent = {"emlp": "free_variance", "mlp": "equivariant_variance"}
    rows = []
    for group in groups:
        run = group.runs[0]
        *equivariant, free = run.model.get("variances") or (
            run.model["equivariant_variance"],
            run.model["free_variance"],
        )
        variances = [
            html.faint("no such pathway")
            if absent.get(run.model["kind"]) == name or not any(variance)
            else html.listed([scientific(value) for value in variance])
            for name, variance in (("equivariant_variance", equivariant), ("free_variance", [free]))
        ]
        rows.append([html.label(group), *variances, setting(run.config["optimiser.noise_variance"])])
    head = ["configuration", "equivariant pathway", "free pathway", "noise"]
    return html.table(title, head, rows, (1, 2, 3))


def _variance(group: RunGroup, pathway: str) -> float:
    """The configured variance of a pathway of an image model."""
    return group.runs[0].model["pathways"][pathway]


def _last(group: RunGroup, name: str) -> Final | Measure | None:
    """A measure at the end, or as far as the runs have come."""
    return group.test(name) or group.final(name)
