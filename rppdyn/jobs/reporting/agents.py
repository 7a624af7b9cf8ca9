"""The sections of a report that are about agents: those of runs, and those of stable-baselines3's files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from markupsafe import Markup

from rppdyn.agents.policy import MODELS, NetworkOptions
from rppdyn.envs import Certificate, SymmetrySpec
from rppdyn.envs.certification.certificate import APPROXIMATE_BELOW, EXACT_BELOW
from rppdyn.jobs.config.base import free_variance_number
from rppdyn.jobs.reporting import data
from rppdyn.jobs.reporting.data import RunGroup
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
    plain,
    reached,
    scientific,
)
from rppdyn.jobs.results import FileAgent
from rppdyn.nn import MLP, RPPEMLP
from rppdyn.nn.linear import equivariant_name

RETURN = "eval/return_mean"
TRAINING = "rollout/return_mean"
WHO = {"policy": "policy", "critic": "critics"}


def sections(groups: Sequence[RunGroup]) -> list[Section]:
    """The sections on agents beyond a glance."""
    return [
        ("Learning curves", _learning(groups)),
        ("Returns at the end", _returns(groups)),
        ("Equivariance", _equivariance(groups)),
        ("Pathways and priors", _pathways(groups)),
        ("The symmetry in the simulator", _certificates(groups)),
    ]


def glance(groups: Sequence[RunGroup]) -> Markup:
    """One line for each configuration of agents."""
    several, measured_of = len({group.subject for group in groups}) > 1, _who(groups)
    rows = []
    for group in groups:
        final = group.final(RETURN)  # None where returns were no numbers
        errors = [estimate(group.final(f"equivariance/{who}"), scientific) for who in measured_of]
        share = estimate(group.final("pathway/actor_free_share"), scientific)
        env = [group.subject] if several else []
        rows.append(
            [
                html.label(group),
                *env,
                f"{len(group.runs)}",
                reached(group, group.steps if final is None else final.step),
                estimate(final, plain),
                *errors,
                share,
            ]
        )
    head = ["configuration", *["environment"] * several, "seeds", "steps", "mean return",
            *(f"{called}'{'' if called.endswith('s') else 's'} error" for called in measured_of.values()),
            "free share of the actor"]  # fmt: skip
    numbers = range(1 + several, len(head))
    explain = html.note(
        f"{INTERVALS}, at the last step that all seeds have. An equivariance error is 0 for an equivariant function and 1 at "
        "worst. The free share is the part of the squared weights that the symmetry does not constrain."
    )
    caption = "Results so far" if any(group.unfinished for group in groups) else "Results at the end of training"
    return blocks([html.table(caption, head, rows, numbers), explain])


def _learning(groups: Sequence[RunGroup]) -> Markup:
    panels = [(env, members, RETURN) for env, members in by_subject(groups)]
    panels += [
        (f"{env}, training episodes", members, TRAINING)
        for env, members in by_subject(groups)
        if any(group.curve(TRAINING) is not None for group in members)
    ]
    caption = (
        "Mean return of the deterministic policy's evaluation episodes, and of the last hundred training episodes, in which it "
        "explores. " + bands(groups)
    )
    summary = "; ".join(
        f"{group.label} on {group.subject} goes from {plain(float(drawn.centre[0]))} to {plain(float(drawn.centre[-1]))}"
        for group in groups
        if (drawn := group.curve(RETURN)) is not None
    )
    alternative = f"Mean return over steps: {summary}."
    return picture("learning", lambda: data.curves(panels, "mean return"), caption, alternative, legend(groups))


def _returns(groups: Sequence[RunGroup]) -> Markup:
    parts: list[Markup | None] = []
    for k, (env, members) in enumerate(by_subject(groups)):
        rows = []
        for group in members:
            final = group.final(RETURN)
            if final is None:
                continue
            each = ", ".join(f"{plain(value)}" for value in final.each)
            rows.append([html.label(group), f"{final.step:,}", estimate(final, plain), plain(group.best(RETURN)), each])
        head = ["configuration", "step", "mean return", "best on the way", "each seed"]
        parts.append(_heading(env, groups))
        parts.append(
            picture(
                f"returns{k}",
                partial(data.finals, members, RETURN, "mean return at the end"),
                "Each dot is a seed, the stroke the interquartile mean, of more than three the bar its 95 % interval.",
                f"Returns at the end on {env}; the table below has the numbers.",
            )
        )
        parts.append(html.table(f"Returns on {env}", head, rows, (1, 2, 3)))
    return blocks(parts)


def _equivariance(groups: Sequence[RunGroup]) -> Markup:
    parts: list[Markup | None] = []
    for k, (env, members) in enumerate(by_subject(groups)):
        names = list(dict.fromkeys(name for group in members for name in _generators(group)))
        measured_of = _who(members)
        panels = [
            (f"{called}, {name}", members, f"equivariance/{who}/{name}")
            for who, called in measured_of.items()
            for name in names
        ]
        rows = [
            [
                html.label(group),
                name,
                *(estimate(group.final(f"equivariance/{who}/{name}"), scientific) for who in measured_of),
            ]
            for group in members
            for name in names
        ]
        parts.append(_heading(env, groups))
        if not panels:
            parts.append(html.paragraph("No symmetry was given here: plain networks have none."))
            continue
        parts.append(
            picture(
                f"equivariance{k}",
                partial(data.curves, panels, "error", log=True),
                "The equivariance error at states of exploring episodes, by generator, on a logarithmic scale: 0 is "
                "equivariant, 1 the worst; rounding is near 1e-16. " + bands(members),
                f"Equivariance errors on {env} over steps; the table below has the last ones.",
                legend(members),
            )
        )
        head = ["configuration", "generator", *measured_of.values()]
        parts.append(html.table(f"Equivariance errors at the end on {env}", head, rows, range(2, len(head))))
    parts.append(html.heading("By entry and by layer"))
    details = [measured(group, f"measured{i}", opened=i == 0) for i, group in enumerate(groups)]
    if not any(details):
        parts.append(html.advice("to see them here"))
    return blocks([*parts, *details])


def _pathways(groups: Sequence[RunGroup]) -> Markup:
    parts: list[Markup | None] = []
    for k, (env, members) in enumerate(by_subject(groups)):
        panels = [
            (f"{who}, {pathway}", members, f"pathway/{who}_{pathway}_norm")
            for who in ("actor", "critic")
            for pathway in _names(members)
        ]
        parts.append(_heading(env, groups))
        parts.append(
            picture(
                f"pathways{k}",
                partial(data.curves, panels, "norm of the weights", log=True),
                "Norm of the weights that each pathway contributes. " + bands(members),
                f"Norms of the pathways on {env} over steps; the table below has the last ones.",
                legend(members),
            )
        )
    rows = []
    for group in groups:
        for who, variances in _variances(group).items():
            for name, variance in variances.items():
                pathway = name.removesuffix("_variance")
                norm = group.final(f"pathway/{who}_{pathway}_norm")
                prior = scientific(variance) if variance else html.faint("no such pathway")
                rows.append([html.label(group), who, pathway, prior, estimate(norm, plain) if variance else MISSING])
    head = ["configuration", "network", "pathway", "prior variance", "norm at the end"]
    parts.append(html.table("Prior variances and norms of the pathways", head, rows, (3, 4)))
    return blocks(parts)


def _variances(group: RunGroup) -> dict[str, dict[str, float]]:
    """The prior variances of each network of an agent, 0 where it has no such pathway."""
    run = group.runs[0]
    model = dict(run.model) | {"free_variance": begun_with(run.model)}
    networks = dict(zip(("actor", "critic"), MODELS[run.model["kind"]], strict=True))
    keys = ("equivariant_variance", "free_variance", "critic_equivariant_variance", "critic_free_variance")
    for prefix, network in zip(("", "critic_"), networks.values(), strict=True):
        if network is MLP:  # its one pathway has the equivariant one's key
            del model[f"{prefix}free_variance"]
    options = NetworkOptions(run.model["kind"], **{key: model[key] for key in keys if key in model})
    return {
        who: dict(zip(map("{}_variance".format, _chain(run.model)), run.model["variances"], strict=True))
        if run.model.get("groups") and network is RPPEMLP
        else options.prior(who)
        for who, network in networks.items()
    }


def _chain(model: Mapping[str, Any]) -> list[str]:
    """The pathways of linear layers, by name."""
    return [*map(equivariant_name, range(len(model.get("groups") or [""]))), "free"]


def _names(groups: Sequence[RunGroup]) -> list[str]:
    """Those of the longest chain."""
    return max((_chain(group.runs[0].model) for group in groups), key=len)


def begun_with(model: Mapping[str, Any]) -> float:
    """The free pathway's variance that a run's networks were built with."""
    return free_variance_number(model["free_variance"], model.get("certified_variance"))


def _certificates(groups: Sequence[RunGroup]) -> Markup:
    """The verdict of the simulator: of the run's own certificate, else what the spec states."""
    parts: list[Markup] = []
    seen: list[tuple] = []
    for group in groups:
        run = group.runs[0]
        if run.spec is None or (key := (run.subject, run.spec, run.certificate)) in seen:
            continue
        seen.append(key)
        shared = all(g.runs[0].spec == run.spec for g in groups if g.subject == run.subject)
        parts.append(html.heading(f"{run.subject}, {run.spec.group}" + ("" if shared else f": {group.label}")))
        parts.append(_stated(run.spec) if run.certificate is None else _certificate(run.certificate))
    return blocks(parts) if parts else html.paragraph("None of the runs holds a symmetry spec that can be read.")


def _stated(spec: SymmetrySpec) -> Markup:
    rewards = {True: "the same", False: "changes", None: MISSING}
    rows = [[s.name, _verdict(s.verdict), rewards[s.reward_symmetric], s.note] for s in spec.symmetries]
    return html.table("What the spec states of its generators", ["generator", "dynamics", "reward", "note"], rows)


def _certificate(certificate: Certificate) -> Markup:
    rows = []
    for g in certificate.generators:
        for what, verdict in (
            ("state", g.dynamics_verdict),
            ("observation", g.dynamics_verdict),
            ("reward", g.reward_verdict),
        ):
            defect = getattr(g, what)
            numbers = [MISSING] * 3 if defect is None else [scientific(x) for x in defect[:3]]
            rows.append([g.name, what, *numbers, _verdict(verdict)])
        rows.append([g.name, "termination", *[MISSING] * 3, _verdict(g.termination_verdict)])
        rows.append([g.name, "reset", *[MISSING] * 3, _verdict(g.reset_verdict)])
    caption = (
        f"One step from {certificate.n_states} states and from their images, {certificate.solver} solver, "
        f"MuJoCo {certificate.mujoco}: relative defects"
    )
    notes = [
        f"Verdicts are on the 95th percentile: exact below {EXACT_BELOW:g}, approximate below {APPROXIMATE_BELOW:g}, else "
        "broken; state and observation share the verdict on the dynamics.",
        *(
            f"{g.name}: {g.support.share:.0%} of the images of states lie where rollouts go."
            for g in certificate.generators
        ),
    ]
    head = ["generator", "of", "median", "95th percentile", "maximum", "verdict"]
    return blocks([html.table(caption, head, rows, (2, 3, 4)), *(html.note(note) for note in notes)])


def _who(groups: Sequence[RunGroup]) -> dict[str, str]:
    """The networks measured of any of these agents: names in the records, and on the page."""
    keys = {key for group in groups for run in group.runs for key in run.records[-1]}
    return {who: called for who, called in WHO.items() if f"equivariance/{who}" in keys}


def _generators(group: RunGroup) -> list[str]:
    return [key.removeprefix("equivariance/policy/") for key in group.runs[0].records[0]
            if key.startswith("equivariance/policy/")]  # fmt: skip


def _heading(env: str, groups: Sequence[RunGroup]) -> Markup | None:
    """An environment's name, where there are several."""
    return html.heading(env) if len({group.subject for group in groups}) > 1 else None


def _verdict(verdict: str) -> Markup:
    return html.verdict(verdict, verdict in ("exact", "approximate", "broken"))


def files(agents: Sequence[FileAgent]) -> Section:
    """The section on agents from files: returns of episodes, and equivariance errors by generator."""
    rows, errors = [], []
    for agent in agents:
        returns, lengths = np.array(agent.returns), np.array(agent.lengths)
        each = ", ".join(map(plain, agent.returns))
        name = html.code(agent.file)
        rows.append(
            [
                name,
                agent.env,
                agent.policy,
                plain(float(returns.mean())),
                plain(float(returns.std())),
                plain(float(lengths.mean())),
                each,
            ]
        )
        errors += [[name, generator, scientific(error)] for generator, error in agent.errors.items()]
        if agent.note:
            errors.append([name, agent.note, MISSING])
    head = ["file", "environment", "policy", "mean return", "standard deviation", "mean length", "each episode"]
    note = "They are played from the same resets as the evaluations of runs. A file has no record of its training."
    return (
        "Agents from files",
        blocks(
            [
                html.table("Episodes of the deterministic policies", head, rows, (3, 4, 5)),
                html.table("Equivariance errors of the policies", ["file", "generator", "policy"], errors, (2,)),
                html.note(note),
            ]
        ),
    )
