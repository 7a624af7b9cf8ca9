"""`rppdyn report`: a self-contained HTML page that compares runs."""

from __future__ import annotations

import io
import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from math import isclose
from pathlib import Path
from statistics import fmean
from typing import Any

import matplotlib
import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from matplotlib.figure import Figure

from rppdyn._version import __version__
from rppdyn.agents.policy import MODELS, NetworkOptions
from rppdyn.envs import Certificate, SymmetrySpec
from rppdyn.envs.certification._certificate import APPROXIMATE_BELOW, EXACT_BELOW
from rppdyn.jobs.config.agent import TrainAgentConfig
from rppdyn.jobs.config.base import LEARNED, free_variance_number
from rppdyn.jobs.config.command import ReportConfig, is_agent_file
from rppdyn.jobs.figure import ROLLOUT_PANELS, read_runs
from rppdyn.jobs.loading import measure_file
from rppdyn.jobs.measure import FORMAT, equivariance_figure
from rppdyn.jobs.results import FileAgent, final_policy
from rppdyn.nn import MLP, RPPEMLP
from rppdyn.nn._linear import equivariant_name
from rppdyn.runs import paired_ratio
from rppdyn.runs.figures import COLOURS, Panel, draw_panels, paint_curves, paint_dots
from rppdyn.runs.files import write_text
from rppdyn.runs.folder import read_json, runs_with_metrics
from rppdyn.runs.statistics import FEW_SEEDS
from rppdyn.runs.table import (
    AT_END,
    MAX_LABEL,
    Measure,
    Run,
    RunGroup,
    different_keys,
    group_by_subject,
    group_runs,
    value_of,
)
from rppdyn.settings import format_value

Write = Callable[[float], "str | Markup"]
Cell = str | Markup
MISSING = "–"
MAX_TITLE_TASKS = 3
MAX_OPEN_PAIRS = 10  # more pairs are folded
PAGE_COLOURS = tuple(colour for colour in COLOURS if colour != "#000000")  # black is invisible on a dark page
PANEL_WIDTHS = {1: 8.4, 2: 5.6, 3: 4.3}  # inches, by the number of columns


def run(config: ReportConfig) -> Path:
    """Write the page, and return its path."""
    runs = [run for run in config.runs if not is_agent_file(run)]
    groups = read_groups(runs_with_metrics(runs)) if runs else []
    file_agents = [measure_file(run, config.env) for run in config.runs if is_agent_file(run)]
    out = Path(config.out)
    write_text(out, page_of(groups, file_agents))
    return out


def read_groups(folders: Sequence[str]) -> list[RunGroup]:
    """Read and group the runs in these folders, with labels and colours for a page."""
    return group_runs(read_runs(folders), colours=PAGE_COLOURS, max_length=MAX_LABEL)


# -- numbers -----------------------------------------------------------------------------------------------------------


def scientific(value: float | None, before: str = "") -> Cell:
    """Format a number of any size, with a word before it."""
    if value is None:
        return MISSING
    if value == 0 or 1e-3 <= abs(value) < 1e4:
        return f"{before}{value:.3g}"
    digits, exponent = f"{value:.1e}".split("e")
    return html.power(before if digits == "1.0" else f"{before}{digits}×", str(int(exponent)).replace("-", "−"))


def plain(value: float) -> str:
    """Format a number of the size of a return."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}" if abs(value) < 10 else f"{value:.1f}"


def times(ratio: float) -> Cell:
    """Format a ratio."""
    return f"{ratio:.2f}" if 0.1 <= ratio < 100 else scientific(ratio)


def count(n: int, noun: str) -> str:
    """Format a number of things: `1 run`, `2 runs`."""
    return f"{n} {noun}" + ("s" if n != 1 else "")


def estimate(measure: Measure | None, write: Write, note: str | None = None) -> Cell:
    """Format a measure with its interval or its single values, the number of diverged seeds, and a further note."""
    if measure is None:
        return MISSING
    lost = f"{measure.lost} of {measure.lost + len(measure.each)} diverged" if measure.lost else None
    if not measure.each:
        return lost or MISSING
    value = spread(measure.centre, measure.interval, measure.each, write)
    return html.with_note(value, " ".join(filter(None, [lost, note])))


def spread(
    centre: float, interval: tuple[float, float] | None, each: Sequence[float], write: Write, strong: bool = False
) -> Markup:
    """Format a value with its interval, or else with the single values; alone if all are equal."""
    values = each if interval is None else interval
    if isclose(min(values), max(values)):
        return html.spread(write(centre), None, None, strong)
    numbers = [write(number) for number in values]
    return html.spread(write(centre), interval and numbers, numbers, strong)


METRICS: Mapping[str, tuple[str, Write]] = {
    "eval/return_mean": ("mean return", plain),
    "equivariance/policy": ("policy's error", scientific),
    "equivariance/critic": ("critics' error", scientific),
    "pathway/actor_free_share": ("free share of the actor", scientific),
    "test/error": ("test error", scientific),
    "test/mse": ("mean squared error", scientific),
    "test/nll": ("negative log-likelihood", scientific),
    **{f"test/error_{steps}": (f"error over {steps} steps", scientific) for steps in (10, 30, 100)},
    "rollout/error": ("rollout error", scientific),
    "rollout/energy_drift": ("energy drift", scientific),
    "rollout/momentum_drift": ("momentum drift", scientific),
    "equivariance/error": ("equivariance error", scientific),
    "bound/value": ("bound of the risk", scientific),
    "bound/bits": ("bits of the message", plain),
    "risk/train": ("risk on the bound's data", scientific),
    "risk/test": ("risk on test data", scientific),
}
"""Measures at the end, with the title and the format of each."""
DIVERGED_SHARES = {"test/error": ("test/diverged", "chunks"), "rollout/error": ("rollout/diverged", "rollouts")}
"""Errors without diverged chunks or rollouts, with the measure of the diverged share."""
COMPARED_METRICS = ("test/error", "test/error_10", "test/error_30", "test/error_100", "rollout/error")
"""Errors whose ratios between models are shown, seed by seed."""
NETWORK_TITLES = {"policy": "policy", "critic": "critics"}


# -- the page ----------------------------------------------------------------------------------------------------------

ENGINE = Environment(
    loader=PackageLoader("rppdyn.jobs", "."),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
html: Any = ENGINE.get_template("report.html").module
"""The template's macros: `html.table(...)`, `html.note(...)`. They escape text and return `Markup`."""


def page_of(groups: Sequence[RunGroup], file_agents: Sequence[FileAgent] = ()) -> str:
    """The HTML page of groups of runs, and of agents from files."""
    subjects = list(dict.fromkeys([*(group.subject for group in groups), *(agent.env for agent in file_agents)]))
    sections: list[tuple[str, Markup]] = []
    if groups:
        verbs = dict.fromkeys(group.verb for group in groups)
        trained = blocks(_settings([group for group in groups if group.verb == verb]) for verb in verbs)
        sections += [("At a glance", _glance(groups)), ("What was trained", trained)]
        for k, (subject, members) in enumerate(group_by_subject(groups)):
            sections.append((subject, _subject(k, subject, members)))
    sections += [("Agents from files", _files(file_agents))] if file_agents else []
    sections += [("Runs", _runs(groups))] if groups else []
    runs = len({run.path for group in groups for run in group.runs})
    lead = f"{count(runs, 'run')} in {count(len(groups), 'configuration')} on {', '.join(subjects)}."
    if not groups:
        lead = f"{count(len(file_agents), 'agent')} from stable-baselines3's files on {', '.join(subjects)}."
    title = f"rppdyn: {', '.join(subjects) if len(subjects) <= MAX_TITLE_TASKS else f'{len(subjects)} tasks'}"
    anchors = [re.sub(r"\W+", "-", heading.lower()).strip("-") for heading, _ in sections]
    footer = f"Made by rppdyn {__version__} from the runs' own files; this page loads nothing."
    return html.page(title, lead, [(a, *section) for a, section in zip(anchors, sections, strict=True)], footer)


def blocks(parts: Iterable[Markup | None]) -> Markup:
    """Join the parts of a section that are not None."""
    return html.blocks(list(parts))


def _is_agent(group: RunGroup) -> bool:
    return group.verb == TrainAgentConfig.verb


def _available(groups: Sequence[RunGroup], metrics: Iterable[str]) -> list[str]:
    return [metric for metric in metrics if any(group.final(metric) for group in groups)]


def _glance(groups: Sequence[RunGroup]) -> Markup:
    """A table with a line for each configuration, and curves of the return or test error on several subjects."""
    parts: list[Markup | None] = []
    for is_agent in (True, False):
        members = [group for group in groups if _is_agent(group) == is_agent]
        if not members:
            continue
        several, length = len({group.subject for group in members}) > 1, "steps" if is_agent else "epochs"
        metrics = _available(members, [m for m in METRICS if m not in ("test/mse", "test/nll") and "drift" not in m])
        rows = []
        for group in members:
            steps = f"of {group.runs[0].length:,}, unfinished" if group.unfinished else None
            cells = [estimate(group.final(metric), METRICS[metric][1]) for metric in metrics]
            task = [group.subject] if several else []
            rows.append(
                [html.label(group), *task, f"{len(group.runs)}", html.with_note(f"{group.steps:,}", steps), *cells]
            )
        head = ["configuration", *["environment" if is_agent else "task"] * several, "seeds", length]
        head += [METRICS[metric][0] for metric in metrics]
        so_far = " so far" if any(group.unfinished for group in members) else ""
        caption = f"Results of {'agents' if is_agent else 'fits'}{so_far}"
        parts.append(html.table(caption, head, rows, range(1 + several, len(head))))
        parts.append(html.note(_explain_columns(is_agent, members)))
        if several:
            metric, title = ("eval/return_mean", "mean return") if is_agent else ("test/error", "test error")
            panels = [(subject, on_subject, {"": metric}) for subject, on_subject in group_by_subject(members)]
            caption = f"The {title} through training. " + explain_bands(members)
            parts.append(curves(f"glance{int(is_agent)}", panels, title, caption, log=not is_agent))
    return blocks(parts)


def _explain_columns(is_agent: bool, groups: Sequence[RunGroup]) -> str:
    text = (
        "Over seeds: the interquartile mean, and in brackets its 95 % bootstrap interval; with three seeds or fewer the mean, "
        "and each value. An equivariance error is 0 for an equivariant function and 1 at worst. "
    )
    if is_agent:
        return text + "The free share is the part of the squared weights that the symmetry does not constrain."
    if all(group.verb == "bound" for group in groups):
        return text + "A bound holds with probability 1 − subspace.delta. Risks are plain means of the bounded loss."
    text += (
        "Errors are relative, |y − f(x)| / (|y| + |f(x)|): 0 is right and 1 the worst, geometric means over the test data and, "
        "along rollouts, over time. "
    )
    images = (
        "Of images, errors are the share that is classified wrongly, or of a regression the root mean squared error in "
        "standard deviations; the equivariance error is that under shifts."
    )
    return text + images * any("pathways" in group.runs[0].model for group in groups)


def _settings(groups: Sequence[RunGroup]) -> Markup:
    """The settings of runs of one command: a table of the different ones, and folded the common ones."""
    configs = [group.runs[0].config for group in groups]
    varied = different_keys(configs)
    parts: list[Markup] = [html.heading(html.code(f"rppdyn {groups[0].verb}"))]
    if varied:
        rows = [
            [html.label(group), *(format_value(value_of(config, key)) for key in varied)]
            for group, config in zip(groups, configs, strict=True)
        ]
        parts.append(html.table("Where the configurations differ", ["configuration", *varied], rows))
    elif len(groups) == 1:
        parts.append(html.paragraph("All runs have one configuration; they differ in the seed at most."))
    same = [[html.code(key), format_value(configs[0][key])] for key in sorted(configs[0]) if key not in varied]
    common = html.table("Common configuration", ["key", "value"], same)
    return blocks([*parts, html.details("The settings that all share", common)])


def _subject(k: int, subject: str, groups: Sequence[RunGroup]) -> Markup:
    """The section on an environment or a task."""
    parts = {
        "Through training": _training(k, groups),
        "At the end": _end(k, subject, groups),
        "Models in pairs": _pairs(subject, groups),
        "Along rollouts": _rollouts(k, groups),
        "Equivariance": _equivariance(k, subject, groups),
        "Pathways and priors": _priors(k, subject, groups),
        "The symmetry in the simulator": _certificates(groups),
    }
    return blocks(blocks([html.heading(title), part]) for title, part in parts.items() if part is not None)


def _training(k: int, groups: Sequence[RunGroup]) -> Markup | None:
    if _is_agent(groups[0]):
        panels = {"evaluation": "eval/return_mean", "training episodes": "rollout/return_mean"}
        caption = (
            "Mean return of the deterministic policy's evaluation episodes, and of the last hundred training episodes, in "
            "which it explores. "
        )
        return curves(f"training{k}", _panels(groups, panels), "mean return", caption + explain_bands(groups))
    panels = {"test error": "test/error", "equivariance error": "equivariance/error"}
    caption = "Errors on test data and equivariance errors there, on logarithmic scales. " + explain_bands(
        groups, each=True
    )
    return curves(f"training{k}", _panels(groups, panels), "error", caption, log=True, each=True)


def _end(k: int, subject: str, groups: Sequence[RunGroup]) -> Markup:
    metrics = _available(groups, METRICS)
    headline = next((metric for metric in ("eval/return_mean", "test/error", "bound/value") if metric in metrics), None)
    parts: list[Markup | None] = []
    if headline is not None:
        title, write = METRICS[headline]
        caption = "Each dot is a seed, the stroke the interquartile mean, the bar (of more than three seeds) its 95 % interval."
        panel = ("", partial(paint_dots, groups=groups, metric=headline, axis_label=f"{title} at the end"))
        size = (PANEL_WIDTHS[1], 0.7 + 0.4 * len(groups))
        alternative = f"{title} at the end on {subject}; the table below has the numbers."
        parts.append(picture(f"end{k}", lambda: draw_panels([panel], 1, size=size), caption, alternative))
    rows = []
    for group in groups:
        final = group.final(headline) if headline is not None else None
        each = ", ".join(str(write(value)) for value in final.each) if final is not None else MISSING
        cells = [estimate(group.final(name), METRICS[name][1], _diverged_share(group, name)) for name in metrics]
        rows.append([html.label(group), *cells, Markup(each)])
    head = ["configuration", *(METRICS[name][0] for name in metrics), "each seed"]
    parts.append(html.table(f"At the end on {subject}", head, rows, range(1, len(head) - 1)))
    return blocks(parts)


def _diverged_share(group: RunGroup, metric: str) -> str | None:
    """The diverged share that an error leaves out, the mean over seeds, in words."""
    share, noun = DIVERGED_SHARES.get(metric, ("", ""))
    shares = [run.last(AT_END + share) or 0.0 for run in group.runs if run.has(AT_END + metric)]
    return f"{100 * fmean(shares):.3g} % of {noun} diverged" if any(shares) else None


def _pairs(subject: str, groups: Sequence[RunGroup]) -> Markup | None:
    """A table of the ratios of errors of two models, seed by seed."""
    metrics, rows = _available(groups, COMPARED_METRICS), []
    for a, b in itertools.combinations(groups, 2):
        cells = [_ratio(a, b, AT_END + name) for name in metrics]
        if any(cell != MISSING for cell in cells):
            rows.append([html.pair(a, b), *cells])
    if not rows:
        return None
    head = ["ratio of", *(METRICS[name][0].replace("error", "errors", 1) for name in metrics)]
    note = (
        "Below 1 the first has the smaller error. Pairs have the seed in common, and so the data: the interquartile mean over "
        "seeds of log(a/b), exponentiated, and its 95 % bootstrap interval over seeds, or each ratio of three or fewer. In "
        "bold where the interval leaves out 1."
    )
    table = html.table(f"Ratios of errors on {subject}", head, rows, range(1, len(head)))
    content = blocks([table, html.note(note)])
    return html.details(f"{len(rows)} pairs", content) if len(rows) > MAX_OPEN_PAIRS else content


def _ratio(a: RunGroup, b: RunGroup, metric: str) -> Cell:
    first, second = ({run.seed: x for run in g.runs if run.has(metric) and (x := run.last(metric))} for g in (a, b))
    pairs = [(first[seed], second[seed]) for seed in sorted(first.keys() & second.keys())]
    if not pairs:
        return MISSING
    centre, interval = paired_ratio(*zip(*pairs, strict=True))
    each = [a / b for a, b in pairs]
    if len(each) <= FEW_SEEDS:
        return spread(centre, None, each, times)
    return spread(centre, interval, each, times, strong=not interval[0] <= 1 <= interval[1])


def _rollouts(k: int, groups: Sequence[RunGroup]) -> Markup | None:
    titles = {"": "relative error"} | {name: f"drift of the {name}" for name in ("energy", "angular momentum")}
    metrics = [(titles[name], metric) for panel in ROLLOUT_PANELS.values() for name, metric in panel.items()]
    panels = _panels(groups, dict(metrics))
    if not any(group.curve(metric) for _, members, entry in panels for metric in entry.values() for group in members):
        return None
    unit = "steps" if all(group.verb == "fit-transition" for group in groups) else "time, s"
    caption = "Rollouts from the initial states of the test trajectories: the relative error of the state"
    if len(panels) > 1:  # fit-transition counts the error of a diverged trajectory as 1
        caption += (
            ", and how far the true energy and the angular momentum about the vertical drift along the model's rollouts. "
            "Geometric means over trajectories, without those that diverged"
        )
    caption += ". " + explain_bands(groups)
    return curves(f"rollouts{k}", panels, "", caption, log=True, unit=unit)


def _equivariance(k: int, subject: str, groups: Sequence[RunGroup]) -> Markup | None:
    """Errors by generator, of agents also through training; and the results of `rppdyn equivariance`."""
    prefix = "equivariance/"
    finals = [name.removeprefix(AT_END) for group in groups for name in group.metrics]
    names = dict.fromkeys(name.removeprefix(prefix) for name in finals if name.startswith(prefix))
    # of agents NETWORK and NETWORK/GENERATOR, of fits "error" and GENERATOR
    networks = {network: title for network, title in NETWORK_TITLES.items() if network in names} or {"": "error"}
    generators = dict.fromkeys(name.partition("/")[2] if "/" in name else name for name in names
                               if "/" in name or (name != "error" and name not in networks))  # fmt: skip
    parts: list[Markup | None] = []

    def metric(network: str, generator: str) -> str:
        return prefix + "/".join(filter(None, [network, generator]))

    if "" not in networks and generators:
        panels = {
            f"{title}, {name}": metric(network, name) for network, title in networks.items() for name in generators
        }
        caption = (
            "The equivariance error at states of exploring episodes, by generator, on a logarithmic scale: 0 is equivariant, "
            "1 the worst; rounding is near 1e-16. "
        )
        parts.append(
            curves(f"equivariance{k}", _panels(groups, panels), "error", caption + explain_bands(groups), log=True)
        )
    rows = []
    for group in groups:
        measured = {name.removeprefix(AT_END) for name in group.metrics}
        for name in generators:
            if any(metric(network, name) in measured for network in networks):
                cells = (estimate(group.final(metric(network, name)), scientific) for network in networks)
                rows.append([html.label(group), name, *cells])
    if rows:
        head = ["configuration", "generator", *networks.values()]
        parts.append(html.table(f"Equivariance errors by generator on {subject}", head, rows, range(2, len(head))))
    elif _is_agent(groups[0]):
        parts.append(
            html.paragraph("No equivariance error was measured: no symmetry was given, or policies are constant.")
        )
    else:
        return None
    details = [_measured_details(group, f"measured{k}-{i}", opened=i == 0) for i, group in enumerate(groups)]
    return blocks([*parts, *details] if any(details) else [*parts, html.advice("for entries and layers")])


def _measured_details(group: RunGroup, identity: str, opened: bool) -> Markup | None:
    """The result of `rppdyn equivariance` for the first measured run of a group; None without one."""
    measured = (
        (run, content) for run in group.runs if (content := _read_content(run, "equivariance.json")) is not None
    )
    run, result = next(measured, (None, None))
    if run is None or result is None:
        return None
    errors = []
    for name, m in result["functions"].items():
        shares = {part: share for part, share in m["by_input"].items() if share is not None and share > 0.5}
        worst = f", most of it explained by {max(shares, key=lambda part: shares[part])}" if shares else ""
        errors.append(f"{name}: error {m['overall']['error']:.2g}{worst}")
    seeds = result.get("seeds") or [run.seed]
    members = f"seed {seeds[0]}" if len(seeds) == 1 else f"{len(seeds)} members"
    source = result["source"]
    caption = f"{run.path.name}: {source}, at {result['states']:,} states, {result['states_from']}."
    if source.startswith("final policy, ") and source != final_policy(run.result or {"steps": run.steps}):
        caption += f" The run has gone on since, to {run.steps:,} steps: measure it again."
    alternative = f"Errors by generator, entry and layer. {'; '.join(errors)}."
    content = picture(identity, lambda: equivariance_figure(result), caption, alternative)
    return html.details(f"{group.label} on {run.subject}, {members}", content, opened)


# -- pathways and priors -----------------------------------------------------------------------------------------------


def _priors(k: int, subject: str, groups: Sequence[RunGroup]) -> Markup:
    """Prior variances, or where learning starts for agents that learn them, and norms of pathways."""
    parts: list[Markup | None] = []
    metrics = dict.fromkeys(m for g in groups for m in g.metrics if m.startswith("pathway/") and m.endswith("_norm"))
    rows, norms = [], {}
    for group in groups:
        learns = group.runs[0].model.get("free_variance") == LEARNED
        for network, variances in prior_variances(group.runs[0]).items():
            for pathway, variance in variances.items():
                norm = f"pathway/{network}_{pathway}_norm"
                if norm in metrics:
                    norms[f"{network}, {pathway}"] = norm
                start = learns and (network, pathway) != ("actor", "equivariant")
                prior = scientific(variance, "from " * start) if variance else html.faint("no such pathway")
                end = estimate(group.final(norm), plain) if variance else MISSING
                rows.append([html.label(group), network, pathway, prior, end])
    if norms:
        caption = "Norm of the weights that each pathway contributes. " + explain_bands(groups)
        parts.append(curves(f"pathways{k}", _panels(groups, norms), "norm of the weights", caption, log=True))
    columns = 5 if norms else 4
    head = ["configuration", "network", "pathway", "prior variance", "norm at the end"][:columns]
    caption = f"Variances of the priors on {subject}"
    parts.append(html.table(caption, head, [row[:columns] for row in rows], range(3, columns)))
    for group in groups:
        names = [name.partition("/")[2] for name in group.metrics if name.startswith("effective/")]
        learned = [
            [
                name,
                estimate(group.final(f"log10_variance/{name}"), lambda exponent: scientific(10**exponent)),
                estimate(group.final(f"effective/{name}"), "{:.3g}".format),
            ]
            for name in names
        ]
        head = ["pathway", "learned variance", "effective number of parameters"]
        parts.append(
            html.table(f"Learned variances on {subject}: {group.label}", head, learned, (1, 2)) if names else None
        )
    return blocks(parts)


def prior_variances(run: Run) -> dict[str, dict[str, float]]:
    """The prior variances of each network of a run by pathway, 0 for an absent pathway."""
    model = dict(run.model)
    if "pathways" in model:  # an image model
        return {"network": {name: variance or 0.0 for name, variance in model["pathways"].items()}}
    chain = [*map(equivariant_name, range(len(model.get("groups") or [""]))), "free"]
    model["free_variance"] = free_variance_number(model["free_variance"], model.get("certified_variance"))
    if run.verb != TrainAgentConfig.verb:
        variances = model.get("variances") or (model["equivariant_variance"], model["free_variance"])
        absent = {"emlp": "free", "mlp": "equivariant"}.get(model["kind"])
        prior = {name: 0.0 if name == absent else v for name, v in zip(chain, variances, strict=True)}
        return {"network": prior, "likelihood": {"noise": run.config["optimiser.noise_variance"]}}
    networks = dict(zip(("actor", "critic"), MODELS[model["kind"]], strict=True))
    keys = ("equivariant_variance", "free_variance", "critic_equivariant_variance", "critic_free_variance")
    for prefix, network in zip(("", "critic_"), networks.values(), strict=True):
        if network is MLP:  # its pathway has the key of the equivariant one
            del model[f"{prefix}free_variance"]
    options = NetworkOptions(model["kind"], **{key: model[key] for key in keys if key in model})
    return {
        network_name: dict(zip(chain, model["variances"], strict=True))
        if model.get("groups") and network is RPPEMLP
        else {name.removesuffix("_variance"): variance for name, variance in options.prior(network_name).items()}
        for network_name, network in networks.items()
    }


# -- other files of a run ---------------------------------------------------------------------------------------------


READERS: Mapping[str, Callable[[dict[str, Any]], Any]] = {
    "spec.json": SymmetrySpec.from_dict,
    "certificate.json": Certificate.from_dict,
    "equivariance.json": lambda content: content if content.get("format") == FORMAT else None,
}


def _read_content(run: Run, name: str) -> Any:
    """Read a file of a run; None if it is absent or of another version of this package."""
    content = read_json(run.path / name)
    try:
        return None if content is None else READERS[name](content)
    except ValueError:
        return None


def _certificates(groups: Sequence[RunGroup]) -> Markup | None:
    """The verdicts of the simulator in a run's certificate, or else in its spec."""
    parts: list[Markup] = []
    printed: list[tuple[Any, Any]] = []
    for group in groups:
        spec, certificate = (_read_content(group.runs[0], name) for name in ("spec.json", "certificate.json"))
        if spec is not None and (spec, certificate) not in printed:
            parts.append(html.paragraph(f"{spec.group}" + (f": {group.label}" if printed else "")))
            if certificate is not None:
                parts.append(_certificate(certificate))
            else:
                rewards = {True: "the same", False: "changes", None: MISSING}
                rows = [[s.name, _verdict(s.verdict), rewards[s.reward_symmetric], s.note] for s in spec.symmetries]
                head = ["generator", "dynamics", "reward", "note"]
                parts.append(html.table("What the spec states of its generators", head, rows))
            printed.append((spec, certificate))
    if parts:
        return blocks(parts)
    return html.paragraph("None of the runs holds a symmetry spec that can be read.") if _is_agent(groups[0]) else None


def _certificate(certificate: Certificate) -> Markup:
    rows = []
    for g in certificate.generators:
        verdicts = dict(state=g.dynamics_verdict, observation=g.dynamics_verdict, reward=g.reward_verdict)
        for quantity, verdict in (verdicts | dict(termination=g.termination_verdict, reset=g.reset_verdict)).items():
            defect = getattr(g, quantity) if quantity in verdicts else None
            numbers = [MISSING] * 3 if defect is None else [scientific(x) for x in defect[:3]]
            rows.append([g.name, quantity, *numbers, _verdict(verdict)])
    caption = (
        f"One step from {certificate.n_states} states and from their images, {certificate.solver} solver, "
        f"MuJoCo {certificate.mujoco}: relative defects"
    )
    shares = [
        f"{g.name}: {g.support.share:.0%} of the images of states lie where rollouts go."
        for g in certificate.generators
    ]
    bounds = (
        f"Verdicts are on the 95th percentile: exact below {EXACT_BELOW:g}, approximate below {APPROXIMATE_BELOW:g}, else "
        "broken; state and observation share the verdict on the dynamics."
    )
    head = ["generator", "of", "median", "95th percentile", "maximum", "verdict"]
    return blocks([html.table(caption, head, rows, (2, 3, 4)), *map(html.note, [bounds, *shares])])


def _verdict(verdict: str) -> Markup:
    return html.verdict(verdict, verdict in ("exact", "approximate", "broken"))


def _files(agents: Sequence[FileAgent]) -> Markup:
    """Tables of agents from files: returns of episodes, and equivariance errors by generator."""
    rows, errors = [], []
    for agent in agents:
        returns, name = np.array(agent.returns), html.code(agent.file)
        numbers = map(plain, (float(returns.mean()), float(returns.std()), fmean(agent.lengths)))
        rows.append([name, agent.env, agent.policy, *numbers, ", ".join(map(plain, agent.returns))])
        errors += [[name, generator, scientific(error)] for generator, error in agent.errors.items()]
        errors += [[name, agent.note, MISSING]] if agent.note else []
    head = ["file", "environment", "policy", "mean return", "standard deviation", "mean length", "each episode"]
    note = "They are played from the same resets as the evaluations of runs. A file has no record of its training."
    return blocks(
        [
            html.table("Episodes of the deterministic policies", head, rows, (3, 4, 5)),
            html.table("Equivariance errors of the policies", ["file", "generator", "policy"], errors, (2,)),
            html.note(note),
        ]
    )


def _runs(groups: Sequence[RunGroup]) -> Markup:
    rows = []
    versions: dict[str, set[str]] = {}
    for group in groups:
        folders: dict[Path, list[Run]] = {}
        for run in group.runs:
            folders.setdefault(run.path, []).append(run)
        for path, members in folders.items():
            run, result = members[0], members[0].result or {}
            unit = "step" if _is_agent(group) else "epoch"
            state = "finished" if run.result else f"unfinished, at {unit} {run.steps:,} of {run.length:,}"
            outdated = [
                name for name in READERS if read_json(path / name) is not None and _read_content(run, name) is None
            ]
            if outdated:
                state += f"; {', '.join(outdated)} of another version, left out"
            provenance = result.get("provenance", {})
            commit = str(provenance.get("commit") or MISSING)
            commit = commit[:10] + ("+changes" if commit.endswith("+changes") else "")
            for name, version in (provenance.get("packages") or {}).items():
                versions.setdefault(name, set()).add(str(version))
            seeds = f"{run.seed}" if len(members) == 1 else f"{run.seed} to {members[-1].seed}"
            speed = f"{run.speed:.0f}" if run.speed else MISSING
            rows.append([html.label(group), run.subject, seeds, state, speed, html.code(commit), html.code(str(path))])
    head = ["configuration", "on", "seeds", "state", "steps per second", "commit", "folder"]
    packages = [[name, ", ".join(sorted(several))] for name, several in versions.items()]
    table = html.table("Packages that the runs were made with", ["package", "versions"], packages)
    return blocks([html.table("Every run", head, rows, (2, 4)), html.details("Versions", table) if packages else None])


# -- pictures ----------------------------------------------------------------------------------------------------------

INK = "#123456"
"""Placeholder colour of text and lines in a picture, replaced by the colour of the page's text."""
INK_KEYS = ("text.color", "axes.labelcolor", "axes.edgecolor", "axes.titlecolor", "xtick.color", "ytick.color",
            "grid.color")  # fmt: skip
TRANSPARENT_FACES = ("figure.facecolor", "axes.facecolor", "legend.facecolor", "savefig.facecolor")
FIGURE_STYLE: dict[Any, Any] = dict.fromkeys(INK_KEYS, INK) | dict.fromkeys(TRANSPARENT_FACES, "none")
FIGURE_STYLE |= {"svg.fonttype": "none", "font.family": "sans-serif", "font.size": 11.0}


def picture(
    identity: str, draw: Callable[[], Figure], caption: str, alternative: str, legend: Markup | None = None
) -> Markup:
    """A figure as inline SVG, with text as text, in the colours of the page.

    Args:
        identity: a word unique on the page, for the picture's internal references.
        alternative: description for readers who can't see the picture.
        legend: legend above the picture.
    """
    buffer = io.StringIO()
    with matplotlib.rc_context(FIGURE_STYLE | {"svg.hashsalt": identity}):
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


def _panels(
    groups: Sequence[RunGroup], metrics: Mapping[str, str]
) -> list[tuple[str, Sequence[RunGroup], dict[str, str]]]:
    """A panel for each metric that a group has."""
    measured = {metric for group in groups for metric in group.metrics}
    return [(title, groups, {"": metric}) for title, metric in metrics.items() if metric in measured]


def curves(
    identity: str,
    panels: Sequence[tuple[str, Sequence[RunGroup], Mapping[str, str]]],
    quantity: str,
    caption: str,
    *,
    log: bool = False,
    unit: str | None = None,
    each: bool = False,
) -> Markup | None:
    """The picture of panels, each with a title, groups and metrics; its description has the ends of the curves.

    Args:
        quantity: label of the vertical axis.
        unit: label of the horizontal axis; None for the steps of training.
    """
    if not panels:
        return None
    columns = 2 if len(panels) == 4 else min(3, len(panels))
    groups = list({(g.label, g.colour, g.line): g for _, members, _ in panels for g in members}.values())
    unit = unit or ("environment steps" if _is_agent(groups[0]) else "epochs")
    painted: list[Panel] = []
    changes = []
    for k, (title, members, metrics) in enumerate(panels):
        name = quantity if k % columns == 0 else ""
        paint = partial(paint_curves, groups=members, metrics=metrics, log=log, unit=unit, axis_label=name, each=each)
        painted.append((title, paint))
        for group in members if k < columns else ():
            if (curve := group.curve(*metrics.values())) is not None:
                ends = f"{plain(float(curve.centre[0]))} to {plain(float(curve.centre[-1]))}"
                changes.append(f"{group.label}, {title}, from {ends}")
    alternative = f"{quantity or next(title for title, _, _ in panels)} over {unit}: {'; '.join(changes)}."
    size = (PANEL_WIDTHS[columns], 3.1)
    figure = partial(draw_panels, painted, columns, size=size)
    return picture(identity, figure, caption, alternative, html.legend(groups))


def explain_bands(groups: Sequence[RunGroup], each: bool = False) -> str:
    """Explain the lines and bands of several seeds.

    Args:
        each: whether every seed is drawn, whatever their number.
    """
    counts = [count for group in groups if (count := len(group.runs)) > 1]
    if not counts:
        return ""
    thin = "Thin lines are single seeds, thick ones" if each or min(counts) <= FEW_SEEDS else "Lines are"
    return (
        f"{thin} interquartile means over seeds"
        + ", bands their 95 % bootstrap intervals" * (max(counts) > FEW_SEEDS)
        + ". "
    )
