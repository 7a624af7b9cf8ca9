"""`rppdyn discover`: the continuous symmetry of a fitted model, of an agent or of any function."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rppdyn.envs.spec import align
from rppdyn.equivariance import Discovery, discover, index_families
from rppdyn.equivariance.discover import kind_of
from rppdyn.jobs.building import process_state
from rppdyn.jobs.config import compose, notation
from rppdyn.jobs.config.base import ConfigError, refuse
from rppdyn.jobs.config.command import DiscoverConfig, EquivarianceConfig
from rppdyn.jobs.equivariance import functions_of
from rppdyn.jobs.loading import FITS, load, load_fit, load_function
from rppdyn.jobs.targets import check_policy, inputs_at, inputs_of, states_of
from rppdyn.reps import Rep
from rppdyn.runs import RunFolder, provenance
from rppdyn.runs.files import write_json, write_measured

# -- families by entries' names ----------------------------------------------------------------------------------------

AXES = ("x", "y", "z")
Blocks = list[list[int]]


class Family(NamedTuple):
    """A family on inputs and outputs of a function, and the vectors that it moves, in words."""

    rep_in: Rep
    rep_out: Rep
    words: str


def family_of(inputs: Sequence[str], outputs: Sequence[str], blocks: str | None = None) -> Family | None:
    """gl(n) on the vectors among named entries; None where no blocks are asked for and there are no vectors.

    By default one gl(3) moves all of ``NAME x``, ``NAME y``, ``NAME z`` and the columns of rotation matrices, which are
    vectors of the world. Beside a rotation matrix angular velocities are left out: they stand in the body's own axes.

    Args:
        inputs, outputs: names of the entries.
        blocks: names of vectors, separated by commas; behind a semicolon those that another matrix moves. A block of other
            entries is named by all of them, joined by "+".
    Raises:
        ConfigError: a name that there is not, one that is named twice, or blocks of different sizes in one list.
    """
    if blocks is None:
        if not (known := vectors(inputs)):
            return None
        asked = [list(dict.fromkeys([*known, *vectors(outputs)]))]
    else:
        asked = [[name.strip() for name in part.split(",") if name.strip()] for part in blocks.split(";")]
    names = [name for some in asked for name in some]
    if not all(asked) or len(set(names)) < len(names):
        raise ConfigError(f"--blocks {blocks}: name each block once, and at least one between semicolons")
    here, there = (
        [[block for name in some for block in _block(side, name)] for some in asked] for side in (inputs, outputs)
    )
    for name in names:
        if not _block(inputs, name) and not _block(outputs, name):
            raise ConfigError(
                f"--blocks: there is no {name!r} among the entries: choose of {', '.join(vectors(inputs)) or 'entries'}, or "
                f'join entries by "+", of {", ".join(inputs[:12])}{", ..." if len(inputs) > 12 else ""}'
            )
    sizes = []
    for some, first, second in zip(asked, here, there, strict=True):
        lengths = {len(block) for block in first + second}
        if len(lengths) > 1:
            raise ConfigError(
                f"--blocks {', '.join(some)}: blocks of {' and '.join(map(str, sorted(lengths)))} entries can't be moved by "
                "one matrix; put them into different lists, with a semicolon between"
            )
        sizes.append(lengths.pop())
    rep_in, rep_out = index_families(sizes, (len(inputs), here), (len(outputs), there))
    return Family(rep_in, rep_out, "; ".join(", ".join(some) for some in asked))


def vectors(names: Sequence[str]) -> list[str]:
    """The names of the vectors among entries, in their order."""
    stems = dict.fromkeys(re.sub(r" (x|R\[0,0\])$", "", name) for name in names)
    triples = [stem for stem in stems if any(len(block) == 3 for block in _block(names, stem))]
    turns = any("R[0,0]" in name for name in names)
    return [stem for stem in triples if not (turns and stem.endswith("angular velocity"))]


def _block(names: Sequence[str], name: str) -> Blocks:
    """Indices of a vector, or of the columns of a rotation matrix; nothing where there is no such name."""
    index = {each: i for i, each in reversed(list(enumerate(names)))}
    if "+" in name:
        entries = [part.strip() for part in name.split("+")]
        return [[index[part] for part in entries]] if all(part in index for part in entries) else []
    columns = [[f"{name} R[{i},{j}]" for i in range(3)] for j in range(3)]
    if all(part in index for column in columns for part in column):
        return [[index[part] for part in column] for column in columns]
    axes = [index[f"{name} {axis}"] for axis in AXES if f"{name} {axis}" in index]
    return [axes] if len(axes) > 1 else []


# -- the verb ----------------------------------------------------------------------------------------------------------

MAX_TABLE_DEFECTS = 8  # defects in the table; the JSON has all


@dataclass(frozen=True)
class Found:
    """The symmetry discovered in one function.

    Attributes:
        name: name of the function, with the seed of a fit's member.
        unfelt: how many of the generators change nothing that it depends on.
        verdict: "exact", "approximate" or "none".
        spectrum: relative defects of the family's directions, ascending.
        gap, closure: see :class:`rppdyn.equivariance.Discovery`.
        generators: generators of the symmetry, matrices.
    """

    name: str
    verdict: str
    spectrum: list[float]
    gap: float
    closure: float
    generators: list[list[list[float]]]
    unfelt: int = 0


@dataclass(frozen=True)
class DiscoverResult:
    """The result of the verb: the target, the family, and the symmetry discovered in each function.

    Attributes:
        notes: searches that were left out, and why.
    """

    what: str
    family: str
    representations: str
    states: int
    states_from: str
    found: list[Found]
    json: str
    notes: list[str] = field(default_factory=list)
    provenance: dict[str, object] = field(default_factory=provenance)


def run(config: DiscoverConfig) -> DiscoverResult:
    """Find the symmetry of the members of a fit, of an agent or of a function; writes it as JSON.

    Raises:
        RunFolderError, CheckpointError: there is no such run, or its files are damaged.
        ConfigError, ValueError: there is nothing to look at, or the family does not act on it.
        UnwrittenError: the file can't be written; it has the result.
    """
    if config.kind == "function":
        result = _of_function(config)
    else:
        folder = RunFolder.open(config.what)
        name = compose.name_of_run(folder)
        if name not in {"train_agent", *FITS} - {"fit_image"}:
            raise ConfigError(
                f"{config.what} is a run of {name.replace('_', '-')}: give one of train-agent, fit-dynamics, fit-regression or "
                "fit-transition, or module:function"
            )
        result = _of_agent(config) if name == "train_agent" else _of_fit(config, folder)
    content = asdict(result)
    write_measured(result, {result.json: lambda path: write_json(path, content)})
    return result


def _of_function(config: DiscoverConfig) -> DiscoverResult:
    rep_in, rep_out = _representations(config)
    inputs, origin = inputs_of(config, rep_in.dim)
    found = discover(load_function(config.what), rep_in, rep_out, torch.as_tensor(inputs))
    json = str(config.json or config.what.replace(":", ".") + ".discover.json")
    words = f"{rep_in} to {rep_out}"
    return DiscoverResult(
        config.what, str(config.family), words, len(inputs), origin, [_found(config.what, found)], json
    )


def _of_fit(config: DiscoverConfig, folder: RunFolder) -> DiscoverResult:
    """Discover symmetries of the members of a fit: to a task, which brings its representations, or to transitions.

    Of these it is the change of a state's features: the next state itself is mostly the one before, which has every symmetry.
    """
    is_task = compose.name_of_run(folder) != "fit_transition"
    if is_task:
        given = {"--rep-in": config.rep_in, "--rep-out": config.rep_out, "--blocks": config.blocks}
        refuse(given, "a run of a task brings its representations; leave it out")
    fit = load_fit(folder, trust=config.trust)
    members, name = fit.functions(), config.family
    family: Family | None
    notes: list[str] = []
    if is_task:
        name = name or f"GL({members[0].rep_in.G.d})"
        members = fit.functions(notation.group(name))
        reps = members[0].rep_in, members[0].rep_out
        family = Family(*reps, f"{reps[0]} to {reps[1]}")
    else:
        spec = fit.spec
        family, notes = _family(config, [*spec.feature_names, *spec.action_names], spec.feature_names)
    states, origin, found = 0, "inputs of the test data", []
    for member in members:
        if family is not None:
            inputs, origin = inputs_at(config, member)
            states, called = len(inputs), f"{member.name}, seed {member.seed}"
            asked = is_task or config.family is not None or config.blocks is not None
            found += _searched(called, member.call, family, torch.as_tensor(inputs), notes, asked=asked)
    result = _whole(config, family, states, origin, found, notes)
    return replace(result, family=str(name)) if is_task else result


def _of_agent(config: DiscoverConfig) -> DiscoverResult:
    """Discover symmetries of an agent's mean action, at states of its own episodes."""
    own = EquivarianceConfig(
        what=config.what, states_from=config.states_from, states=config.states, episodes=config.episodes,
        seed=config.seed, trust=config.trust,
    )  # fmt: skip
    if config.states_from in ("normal", "test"):
        raise ConfigError(f"--from {config.states_from}: of an agent give rollouts, reset or a file of observations")
    with process_state(threads=1), load(own, own.episodes) as target:
        spec = target.spec
        assert spec is not None
        check_policy(target.policy, spec)
        observations, actions, origin = states_of(own, target, spec)
        assert actions is not None
        policy = functions_of(target, spec, observations)[0]
        family, notes = _family(config, spec.feature_names, spec.action_names)
        found = []
        if family is not None:
            inputs = policy.encode(torch.as_tensor(observations), torch.as_tensor(actions))
            asked = config.family is not None or config.blocks is not None
            found = _searched(policy.name, policy.call, family, inputs, notes, asked=asked)
    return _whole(config, family, len(observations), origin, found, notes)


def _representations(config: DiscoverConfig) -> tuple[Rep, Rep]:
    """The representations of the family that was asked for."""
    G = notation.group(str(config.family), "--family")
    rep_in, rep_out = str(config.rep_in), str(config.rep_out)
    return notation.representation("--rep-in", rep_in, G), notation.representation("--rep-out", rep_out, G)


def _family(config: DiscoverConfig, inputs: Sequence[str], outputs: Sequence[str]) -> tuple[Family | None, list[str]]:
    """On entries of an observation; a note where there is none."""
    if config.family is not None:
        if config.rep_in is None or config.rep_out is None:
            raise ConfigError(
                f"--family {config.family}: how does it act on {len(inputs)} inputs and {len(outputs)} outputs? give --rep-in "
                "and --rep-out, or --blocks in its place"
            )
        rep_in, rep_out = _representations(config)
        for flag, rep, count in (("--rep-in", rep_in, len(inputs)), ("--rep-out", rep_out, len(outputs))):
            if rep.dim != count:
                raise ConfigError(f"{flag} {rep}: acts on {rep.dim} numbers, and there are {count}")
        return Family(rep_in, rep_out, f"{rep_in} to {rep_out}"), []
    found = family_of(inputs, outputs, config.blocks)
    return found, [] if found else [
        "no entries are vectors (x, y and z): continuous symmetries need --blocks or --family"
    ]


def _searched(
    name: str, call: Callable[[Tensor], Tensor], family: Family, x: Tensor, notes: list[str], *, asked: bool
) -> list[Found]:
    """Discover the symmetry of a function; none, with a note, where the family was not asked for and does not suit it."""
    try:
        return [_found(name, discover(call, family.rep_in, family.rep_out, x))]
    except ValueError as error:
        if asked:
            raise
        notes.append(f"{name}: {error}")
        return []


def _whole(
    config: DiscoverConfig,
    family: Family | None,
    states: int,
    origin: str,
    found: list[Found],
    notes: list[str],
) -> DiscoverResult:
    if not found:
        raise ConfigError(f"{config.what}: {'; '.join(notes)}")
    name, words = ("", "") if family is None else (str(family.rep_in.G), family.words)
    json = str(config.json or Path(config.what, "discover.json"))
    return DiscoverResult(config.what, name, words, states, origin, found, json, notes)


def _found(name: str, discovery: Discovery) -> Found:
    d = discovery
    return Found(name, d.verdict, d.spectrum.tolist(), d.gap, d.closure, d.generators.tolist(), d.unfelt)


def table(result: DiscoverResult, written: bool = True) -> str:
    """Each function's verdict, defects and generators; where the file is, if it was written."""
    lines = [f"{result.what}: in {result.family}, {result.representations}"]
    lines.append(f"{result.states} states: {result.states_from}")
    for one in result.found:
        shown = ", ".join(f"{value:.1e}" for value in one.spectrum[:MAX_TABLE_DEFECTS]) + (
            ", ..." if len(one.spectrum) > MAX_TABLE_DEFECTS else ""
        )
        lines += ["", f"{one.name}: {_words(one)}", f"relative defects: {shown}"]
        for index, generator in enumerate(one.generators):
            rows: list[list[Any]] = [[f"{0.0 if abs(x) < 5e-5 else x:.4f}" for x in row] for row in generator]
            lines += [f"generator {index}, {kind_of(torch.tensor(generator))}:", *(f"  {line}" for line in align(rows))]
        if len(one.generators) > 1:
            lines.append(f"their commutators leave their span by {one.closure:.1e} of their size")
    if result.notes:
        lines += ["", *result.notes]
    if written:
        lines += ["", f"written: {result.json}"]
    return "\n".join(lines)


def _words(one: Found) -> str:
    """The meaning of a verdict, in words."""
    count = f"{len(one.generators)} generator{'s' * (len(one.generators) != 1)}"
    if one.verdict == "none":
        return f"no continuous symmetry: no gap in the defects (the smallest is {one.spectrum[0]:.1e})"
    if one.verdict == "exact":
        return f"an exact symmetry of {count}"
    return f"an approximate symmetry of {count}, relative defect {one.spectrum[len(one.generators) - 1]:.1e}"
