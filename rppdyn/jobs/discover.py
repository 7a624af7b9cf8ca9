"""`rppdyn discover`: the continuous symmetry of a fitted model or of any function, found in a family of generators."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

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


def run(config: DiscoverConfig) -> DiscoverResult:
    """Find the symmetry of the members of a fit, or of a function; writes it as JSON.

    Raises:
        RunFolderError, CheckpointError: there is no such run, or its files are damaged.
        ConfigError, ValueError: there is nothing to look at, or the family does not act on it.
        UnwrittenError: the file can't be written; it has the result.
    """
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


def _found(name: str, discovery: Discovery) -> Found:
    return Found(
        name,
        discovery.verdict,
        discovery.spectrum.tolist(),
        discovery.gap,
        discovery.closure,
        discovery.generators.tolist(),
    )


def table(result: DiscoverResult, written: bool = True) -> str:
    """Each function's verdict, defects and generators; where the file is, if it was written."""
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
