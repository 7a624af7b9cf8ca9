"""`rppdyn discover`: the symmetry of a fitted model, of any function, or of a robot.

Of models and functions it is continuous, found in a family of generators; of a robot permutations of its joints are ranked by
its data, and certified in the simulator.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from rppdyn.agents import played_episodes, random_policy
from rppdyn.envs import certify, make_env, read_episodes, symmetry_candidates
from rppdyn.envs.spec import align
from rppdyn.equivariance import Discovery, discover
from rppdyn.jobs.config import compose, notation
from rppdyn.jobs.config.checks import ConfigError
from rppdyn.jobs.config.command import DiscoverConfig
from rppdyn.jobs.measuring.fit_subjects import open_fit
from rppdyn.jobs.measuring.loading import load_function
from rppdyn.jobs.measuring.states import evenly, inputs_of
from rppdyn.runs import RunFolder, provenance
from rppdyn.runs.files import write_json, write_measured

FITS = ("fit_regression", "fit_dynamics")
CERTIFIED = 3  # candidates of a robot, the best ones
STATES = 100  # from which they are certified
SHOWN = 8  # defects in the table; the JSON has all


@dataclass(frozen=True)
class Found:
    """What was found in one function.

    Attributes:
        name: of the function, with the seed of a fit's member.
        verdict: "exact", "approximate" or "none".
        spectrum: relative defects of the family's directions, ascending.
        gap, closure: see :class:`rppdyn.equivariance.Discovery`.
        generators: of the symmetry, matrices.
    """

    name: str
    verdict: str
    spectrum: list[float]
    gap: float
    closure: float
    generators: list[list[list[float]]]


@dataclass(frozen=True)
class DiscoverResult:
    """What was looked at, in which family, and what was found in each function."""

    what: str
    family: str
    representations: str
    states: int
    states_from: str
    found: list[Found]
    json: str
    provenance: dict[str, object] = field(default_factory=provenance)


@dataclass(frozen=True)
class RankedCandidate:
    """A signed permutation of joints: its score by the linear model, and what the simulator says of it.

    Attributes:
        dynamics, reward: verdicts, see `rppdyn.envs.certify`.
        defect: 95th percentile of the relative defect of one step.
    """

    name: str
    score: float
    dynamics: str
    reward: str
    defect: float


@dataclass(frozen=True)
class RobotResult:
    """A robot's candidates.

    Attributes:
        candidates: how many were ranked.
        residual: share of the variance of changes that the linear model leaves.
        best: the first, certified.
        scores: the smallest twenty.
    """

    what: str
    env: str
    steps: int
    candidates: int
    residual: float
    best: list[RankedCandidate]
    scores: list[float]
    json: str
    provenance: dict[str, object] = field(default_factory=provenance)


def run(config: DiscoverConfig) -> DiscoverResult | RobotResult:
    """Find the symmetry of the members of a fit, of a function, or of a robot; writes it as JSON.

    Raises:
        RunFolderError, CheckpointError: there is no such run, or its files are damaged.
        ConfigError, ValueError: there is nothing to look at, or the family does not act on it.
        UnwrittenError: the file can't be written; it has the result.
    """
    if config.kind in ("dataset", "environment"):
        return _of_robot(config)
    found = []
    if config.kind == "run":
        folder = RunFolder.open(config.what)
        if compose.name_of_run(folder) not in FITS:
            raise ConfigError(
                f"{config.what} is a run of {compose.name_of_run(folder).replace('_', '-')}: give one of fit-dynamics or "
                "fit-regression, or module:function; of a robot, `rppdyn certify` finds the symmetries in its model"
            )
        family = config.family or f"GL({open_fit(folder).rep_in.G.d})"
        fit = open_fit(folder, family)
        rep_in, rep_out, states, origin = fit.rep_in, fit.rep_out, 0, "inputs of the test data"
        for member in fit.members:
            if config.states_from in (None, "test"):
                inputs = evenly(member.inputs.numpy(), config.states)
            else:
                inputs, origin = inputs_of(config, rep_in.dim)
            states = len(inputs)
            discovery = discover(member.function.call, rep_in, rep_out, torch.as_tensor(inputs))
            found.append(_found(f"{member.function.name}, seed {member.seed}", discovery))
    else:
        family, ends = config.representations
        G = notation.group(family, "--family")
        rep_in, rep_out = (
            notation.representation(flag, text, G) for flag, text in zip(("--rep-in", "--rep-out"), ends, strict=True)
        )
        inputs, origin = inputs_of(config, rep_in.dim)
        states = len(inputs)
        found.append(
            _found(config.what, discover(load_function(config.what), rep_in, rep_out, torch.as_tensor(inputs)))
        )
    name = (
        Path(config.what, "discover.json")
        if config.kind == "run"
        else Path(config.what.replace(":", ".") + ".discover.json")
    )
    result = DiscoverResult(
        config.what, family, f"{rep_in} to {rep_out}", states, origin, found, str(config.json or name)
    )
    content = asdict(result)
    write_measured(result, {result.json: lambda path: write_json(path, content)})
    return result


def _of_robot(config: DiscoverConfig) -> RobotResult:
    """Candidates from a dataset, or from random actions in an environment."""
    if config.kind == "dataset":
        dataset = read_episodes(config.what, trust=config.trust)
        env, episodes = dataset.env(), dataset.episodes
    else:
        env = make_env(config.what, monitor=False)
        episodes = tuple(
            played_episodes(env, random_policy(env.action_space, config.seed), steps=config.steps, seed=config.seed)
        )
    with closing(env):
        ranked = symmetry_candidates(env, episodes, signs=config.signs, top=CERTIFIED)
        best = []
        for one in ranked.best:
            certificate = certify(env, one.spec, n_states=STATES, n_resets=STATES, seed=config.seed)
            best.append(
                RankedCandidate(
                    one.name,
                    one.score,
                    certificate.dynamics_verdict,
                    certificate.reward_verdict,
                    certificate.generators[0].state.p95,
                )
            )
        name = ranked.best[0].spec.env_id
    json = config.json or config.what.strip("/").replace("/", ".") + ".discover.json"
    result = RobotResult(
        config.what, name, ranked.steps, len(ranked.scores), ranked.residual, best, ranked.scores[:20].tolist(), json
    )
    content = asdict(result)
    write_measured(result, {result.json: lambda path: write_json(path, content)})
    return result


def _found(name: str, discovery: Discovery) -> Found:
    return Found(
        name,
        discovery.verdict,
        discovery.spectrum.tolist(),
        discovery.gap,
        discovery.closure,
        discovery.generators.tolist(),
    )


def table(result: DiscoverResult | RobotResult, written: bool = True) -> str:
    """Each function's verdict, defects and generators, or a robot's candidates; where the file is, if it was written."""
    if isinstance(result, RobotResult):
        lines = [
            f"{result.env}: {result.candidates} permutations of joints, ranked by a linear model of {result.steps} steps "
            f"that leaves {result.residual:.0%} of the changes",
        ]
        for ranked in result.best:
            lines += [
                "",
                ranked.name,
                f"  score {ranked.score:.3f}; in the simulator {ranked.dynamics}, relative defect {ranked.defect:.1e}; "
                f"reward {ranked.reward}",
            ]
        return "\n".join([*lines, "", f"written: {result.json}"] if written else lines)
    lines = [
        f"{result.what}: in {result.family}, {result.representations}",
        f"{result.states} states: {result.states_from}",
    ]
    for one in result.found:
        shown = ", ".join(f"{value:.1e}" for value in one.spectrum[:SHOWN]) + (
            ", ..." if len(one.spectrum) > SHOWN else ""
        )
        lines += ["", f"{one.name}: {_words(one)}", f"relative defects: {shown}"]
        for index, generator in enumerate(one.generators):
            rows: list[list[Any]] = [[f"{0.0 if abs(x) < 5e-5 else x:.4f}" for x in row] for row in generator]
            lines += [f"generator {index}:", *(f"  {line}" for line in align(rows))]
        if len(one.generators) > 1:
            lines.append(f"their commutators leave their span by {one.closure:.1e} of their size")
    if written:
        lines += ["", f"written: {result.json}"]
    return "\n".join(lines)


def _words(one: Found) -> str:
    """What a verdict means, in words."""
    count = f"{len(one.generators)} generator{'s' * (len(one.generators) != 1)}"
    if one.verdict == "none":
        return f"no continuous symmetry: no gap in the defects (the smallest is {one.spectrum[0]:.1e})"
    if one.verdict == "exact":
        return f"an exact symmetry of {count}"
    return f"an approximate symmetry of {count}, relative defect {one.spectrum[len(one.generators) - 1]:.1e}"
