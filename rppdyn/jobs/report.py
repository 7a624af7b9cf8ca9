"""`rppdyn report`: one page of HTML that compares runs and needs nothing but itself."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from markupsafe import Markup

from rppdyn._version import __version__
from rppdyn.jobs.config.command import ReportConfig, is_agent_file
from rppdyn.jobs.measuring.loading import measure_file
from rppdyn.jobs.reporting import agents, fits
from rppdyn.jobs.reporting.data import Run, RunGroup, has_letter, read_groups
from rppdyn.jobs.reporting.page import MISSING, blocks, count, html, page, setting
from rppdyn.jobs.results import FileAgent, value_of
from rppdyn.runs.files import write_text
from rppdyn.runs.folder import with_metrics

MOST_NAMED = 3  # tasks, in the page's title


def run(config: ReportConfig) -> Path:
    """Write the page; its path.

    Raises:
        RunFolderError, ConfigError: a folder is no run, or holds a damaged file; no run has metrics yet.
    """
    runs = [run for run in config.runs if not is_agent_file(run)]
    groups = read_groups(with_metrics(runs)) if runs else []
    played = [measure_file(run, config.env) for run in config.runs if is_agent_file(run)]
    out = Path(config.out)
    write_text(out, page_of(groups, played))
    return out


def page_of(groups: Sequence[RunGroup], played: Sequence[FileAgent] = ()) -> str:
    """The page of these groups of runs, and of agents from files."""
    if not groups:
        names = list(dict.fromkeys(agent.env for agent in played))
        title = f"rppdyn: {', '.join(names)}"
        lead = f"{count(len(played), 'agent')} from stable-baselines3's files on {', '.join(names)}."
        footer = f"Made by rppdyn {__version__}; this page loads nothing."
        return page(title, lead, [agents.files(played)], footer)
    of_agents = [group for group in groups if group.is_agent]
    of_fits = [group for group in groups if not group.is_agent]
    parts = [(part, some) for part, some in ((agents, of_agents), (fits, of_fits)) if some]
    sections = [
        ("At a glance", blocks(part.glance(some) for part, some in parts)),
        ("What was trained", blocks(_trained(some) for some in _by_verb(groups))),
        *(section for part, some in parts for section in part.sections(some)),
        *([agents.files(played)] if played else []),
        ("Runs", _runs(groups)),
    ]
    names = list(dict.fromkeys(group.subject for group in groups))
    subjects = ", ".join(names)
    runs = len({run.path for group in groups for run in group.runs})
    lead = f"{count(runs, 'run')} in {count(len(groups), 'configuration')} on {subjects}."
    if any(has_letter(group.label) for group in groups):
        lead += " A letter stands for settings, which are under What was trained."
    footer = f"Made by rppdyn {__version__} from the runs' own files; this page loads nothing."
    title = f"rppdyn: {subjects if len(names) <= MOST_NAMED else f'{len(names)} tasks'}"
    return page(title, lead, sections, footer)


def _by_verb(groups: Sequence[RunGroup]) -> list[list[RunGroup]]:
    verbs = dict.fromkeys(group.runs[0].verb for group in groups)
    return [[group for group in groups if group.runs[0].verb == verb] for verb in verbs]


def _trained(groups: Sequence[RunGroup]) -> Markup:
    configs = [group.runs[0].config for group in groups]
    keys = sorted({key for config in configs for key in config})
    varied = [key for key in keys if len({repr(config.get(key)) for config in configs}) > 1]
    parts: list[Markup] = [html.heading(html.code(f"rppdyn {groups[0].runs[0].verb}"))]
    if varied:
        rows = [[html.label(group), *(setting(value_of(config, key)) for key in varied)]
                for group, config in zip(groups, configs, strict=True)]  # fmt: skip
        parts.append(html.table("Where the configurations differ", ["configuration", *varied], rows))
    elif len(groups) == 1:
        parts.append(html.paragraph("All runs have one configuration; they differ in the seed at most."))
    same = [[html.code(key), setting(configs[0][key])] for key in keys if key not in varied]
    parts.append(
        html.details("The settings that all share", html.table("Common configuration", ["key", "value"], same))
    )
    return blocks(parts)


def _runs(groups: Sequence[RunGroup]) -> Markup:
    rows = []
    for group in groups:
        folders: dict[Path, list[Run]] = {}
        for run in group.runs:
            folders.setdefault(run.path, []).append(run)
        for path, members in folders.items():
            run, result = members[0], members[0].result or {}
            unit = "step" if run.is_agent else "epoch"
            state = "finished" if run.result else f"unfinished, at {unit} {run.steps:,} of {run.length:,}"
            if run.outdated:
                state += f"; {', '.join(run.outdated)} of another version, left out"
            commit = str(result.get("provenance", {}).get("commit") or MISSING)
            shown = commit[:10] + ("+changes" if commit.endswith("+changes") else "")
            seeds = f"{run.seed}" if len(members) == 1 else f"{run.seed} to {members[-1].seed}"
            speed = f"{run.speed:.0f}" if run.speed else MISSING
            rows.append([html.label(group), run.subject, seeds, state, speed, html.code(shown), html.code(str(path))])
    head = ["configuration", "on", "seeds", "state", "steps per second", "commit", "folder"]
    return blocks(
        [html.table("Every run", head, rows, (2, 4)), _versions(run for group in groups for run in group.runs)]
    )


def _versions(runs: Iterable[Run]) -> Markup | None:
    versions: dict[str, set[str]] = {}
    for run in runs:
        for name, version in ((run.result or {}).get("provenance", {}).get("packages") or {}).items():
            versions.setdefault(name, set()).add(str(version))
    if not versions:
        return None
    rows = [[name, ", ".join(sorted(several))] for name, several in versions.items()]
    return html.details("Versions", html.table("Packages that the runs were made with", ["package", "versions"], rows))
