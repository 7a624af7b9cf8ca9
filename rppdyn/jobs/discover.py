"""`rppdyn discover`: the continuous symmetry of a fitted model, of an agent or of any function."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rppdyn.envs._spec import align
from rppdyn.equivariance import discover, index_families
from rppdyn.equivariance._discover import describe_generator
from rppdyn.groups import Trivial
from rppdyn.jobs.building import process_state
from rppdyn.jobs.config import compose
from rppdyn.jobs.config.base import ConfigError, refuse
from rppdyn.jobs.config.command import DiscoverConfig
from rppdyn.jobs.equivariance import functions_of
from rppdyn.jobs.loading import FITS, load, load_fit, load_function
from rppdyn.jobs.targets import check_policy, inputs_at, inputs_of, states_of
from rppdyn.reps import Rep, notation
from rppdyn.runs import RunFolder, provenance
from rppdyn.runs.files import write_json, write_measured

# -- families by entries' names ----------------------------------------------------------------------------------------

AXES = ("x", "y", "z")
Blocks = list[list[int]]


class Family(NamedTuple):
    """A family of matrices acting on inputs and outputs of a function, and the vectors it moves, in words."""

    rep_in: Rep
    rep_out: Rep
    words: str


def family_of(inputs: Sequence[str], outputs: Sequence[str], blocks: str | None = None) -> Family | None:
    """gl(n) acting on the vectors among named entries; None if there are no vectors and no blocks are named.

    By default one gl(3) acts on all ``NAME x``, ``NAME y``, ``NAME z`` and on the columns of rotation matrices, which are
    vectors in world axes. If there is a rotation matrix, angular velocities are left out, since they are in body axes.

    Args:
        inputs, outputs: names of the entries.
        blocks: names of vectors, separated by commas; a semicolon separates lists that different matrices move. Entries joined
            by "+" are a block.
    Raises:
        ConfigError: a name is unknown or named twice, or a list has blocks of different sizes.
    """
    if blocks is None:
        if not (vector_names := vectors(inputs)):
            return None
        lists = [list(dict.fromkeys([*vector_names, *vectors(outputs)]))]
    else:
        lists = [[name.strip() for name in part.split(",") if name.strip()] for part in blocks.split(";")]
    names = [name for members in lists for name in members]
    if not all(lists) or len(set(names)) < len(names):
        raise ConfigError(f"--blocks {blocks}: name each block once, and at least one between semicolons")
    blocks_in, blocks_out = (
        [[block for name in members for block in _block(side, name)] for members in lists] for side in (inputs, outputs)
    )
    for name in names:
        if not _block(inputs, name) and not _block(outputs, name):
            raise ConfigError(
                f"--blocks: there is no {name!r} among the entries: choose of {', '.join(vectors(inputs)) or 'entries'}, or "
                f'join entries by "+", of {", ".join(inputs[:12])}{", ..." if len(inputs) > 12 else ""}'
            )
    sizes = []
    for members, first, second in zip(lists, blocks_in, blocks_out, strict=True):
        lengths = {len(block) for block in first + second}
        if len(lengths) > 1:
            raise ConfigError(
                f"--blocks {', '.join(members)}: blocks of {' and '.join(map(str, sorted(lengths)))} entries can't be moved by "
                "one matrix; put them into different lists, with a semicolon between"
            )
        sizes.append(lengths.pop())
    rep_in, rep_out = index_families(sizes, (len(inputs), blocks_in), (len(outputs), blocks_out))
    return Family(rep_in, rep_out, "; ".join(", ".join(members) for members in lists))


def vectors(names: Sequence[str]) -> list[str]:
    """Names of the vectors among entries, in order."""
    stems = dict.fromkeys(re.sub(r" (x|R\[0,0\])$", "", name) for name in names)
    triples = [stem for stem in stems if any(len(block) == 3 for block in _block(names, stem))]
    turns = any("R[0,0]" in name for name in names)
    return [stem for stem in triples if not (turns and stem.endswith("angular velocity"))]


def _block(names: Sequence[str], name: str) -> Blocks:
    """Indices of a vector, or of the columns of a rotation matrix; empty for an unknown name."""
    index = {entry: i for i, entry in reversed(list(enumerate(names)))}
    if "+" in name:
        entries = [part.strip() for part in name.split("+")]
        return [[index[part] for part in entries]] if all(part in index for part in entries) else []
    columns = [[f"{name} R[{i},{j}]" for i in range(3)] for j in range(3)]
    if all(part in index for column in columns for part in column):
        return [[index[part] for part in column] for column in columns]
    axes = [index[f"{name} {axis}"] for axis in AXES if f"{name} {axis}" in index]
    return [axes] if len(axes) > 1 else []


# -- the job -----------------------------------------------------------------------------------------------------------

MAX_TABLE_DEFECTS = 8  # the JSON file has all


@dataclass(frozen=True)
class FunctionSymmetry:
    """The symmetry discovered in one function.

    Attributes:
        name: name of the function, with the seed of a fit's member.
        verdict: "exact", "approximate" or "none".
        spectrum: relative defects of the family's directions, ascending.
        gap, closure: see :class:`rppdyn.equivariance.Discovery`.
        generators: generators of the symmetry, matrices.
        unfelt: number of generators that change nothing the function depends on.
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
    """The symmetries discovered in the functions of a target."""

    what: str
    family: str
    representations: str
    states: int
    states_from: str
    found: list[FunctionSymmetry]
    json: str
    provenance: dict[str, object] = field(default_factory=provenance)


Search = tuple[str, Callable[[Tensor], Tensor], Tensor]
"""The name of a function, the function, and its inputs."""


def run(config: DiscoverConfig) -> DiscoverResult:
    """Discover the symmetry of the members of a fit, of an agent or of a function, and write it as JSON.

    Raises:
        RunFolderError, CheckpointError: there is no such run, or its files are damaged.
        ConfigError, ValueError: the target has no function, or the family does not act on it.
        UnwrittenError: the file can't be written; the error carries the result.
    """
    if config.kind == "function":
        result = _discover_in_function(config)
    else:
        folder = RunFolder.open(config.what)
        name = compose.name_of_run(folder)
        if name not in {"train_agent", *FITS} - {"fit_image"}:
            raise ConfigError(
                f"{config.what} is a run of {name.replace('_', '-')}: give one of train-agent, fit-dynamics, fit-regression or "
                "fit-transition, or module:function"
            )
        result = _discover_in_agent(config) if name == "train_agent" else _discover_in_fit(config, folder)
    content = asdict(result)
    write_measured(result, {result.json: lambda path: write_json(path, content)})
    return result


def _search(
    config: DiscoverConfig, name: str, family: Family, origin: str, searches: Sequence[Search]
) -> DiscoverResult:
    """Discover the symmetry of each function within a named family."""
    symmetries = []
    for function, call, x in searches:
        d = discover(call, family.rep_in, family.rep_out, x)
        numbers = d.spectrum.tolist(), d.gap, d.closure, d.generators.tolist(), d.unfelt
        symmetries.append(FunctionSymmetry(function, d.verdict, *numbers))
    beside = f"{config.what.replace(':', '.')}.discover.json"
    json = config.json or (beside if config.kind == "function" else str(Path(config.what, "discover.json")))
    return DiscoverResult(config.what, name, family.words, len(searches[0][2]), origin, symmetries, json)


def _discover_in_function(config: DiscoverConfig) -> DiscoverResult:
    family = _representations(config)
    inputs, origin = inputs_of(config, family.rep_in.dim)
    search = config.what, load_function(config.what), torch.as_tensor(inputs)
    return _search(config, str(config.family), family, origin, [search])


def _discover_in_fit(config: DiscoverConfig, folder: RunFolder) -> DiscoverResult:
    """Discover symmetries of the members of a fit.

    For a transition model the function is the change of the features: the next state is mostly the state itself, a map with
    every symmetry.
    """
    is_task = compose.name_of_run(folder) != "fit_transition"
    if is_task:
        flags = {"--rep-in": config.rep_in, "--rep-out": config.rep_out, "--blocks": config.blocks}
        refuse(flags, "a run of a task brings its representations; leave it out")
    fit = load_fit(folder, trust=config.trust)
    members = fit.functions()
    if is_task:
        if config.family is None and members[0].rep_in.G == Trivial(1):
            raise ConfigError(
                f"{config.what} knows no group, and so no vectors: give --family, GL(3) for vectors of 3 numbers"
            )
        name = config.family or f"GL({members[0].rep_in.G.d})"
        members = fit.functions(notation.group(name))
        reps = members[0].rep_in, members[0].rep_out
        family = Family(*reps, f"{reps[0]} to {reps[1]}")
    else:
        family = _family(config, [*fit.spec.feature_names, *fit.spec.action_names], fit.spec.feature_names)
        name = str(family.rep_in.G)
    searches: list[Search] = []
    for member in members:
        inputs, origin = inputs_at(config, member)
        searches.append((f"{member.name}, seed {member.seed}", member.call, torch.as_tensor(inputs)))
    return _search(config, name, family, origin, searches)


def _discover_in_agent(config: DiscoverConfig) -> DiscoverResult:
    """Discover symmetries of an agent's mean action, at states of its own episodes."""
    if config.states_from in ("normal", "test"):
        raise ConfigError(f"--from {config.states_from}: of an agent give rollouts, reset or a file of observations")
    with process_state(threads=1), load(config, config.episodes) as target:
        spec = target.spec
        assert spec is not None
        check_policy(target.policy, spec)
        family = _family(config, spec.feature_names, spec.action_names)
        observations, actions, origin = states_of(config, target, spec)
        policy = functions_of(target, spec, observations)[0]
        inputs = policy.encode(torch.as_tensor(observations), torch.as_tensor(actions))
        return _search(config, str(family.rep_in.G), family, origin, [(policy.name, policy.call, inputs)])


def _representations(config: DiscoverConfig) -> Family:
    """The configured family and its representations."""
    G = notation.group(str(config.family), "--family")
    flags = {"--rep-in": str(config.rep_in), "--rep-out": str(config.rep_out)}
    rep_in, rep_out = (notation.representation(text, G, flag) for flag, text in flags.items())
    return Family(rep_in, rep_out, f"{rep_in} to {rep_out}")


def _family(config: DiscoverConfig, inputs: Sequence[str], outputs: Sequence[str]) -> Family:
    """The family acting on the entries of an observation."""
    if config.family is None:
        if (family := family_of(inputs, outputs, config.blocks)) is None:
            raise ConfigError(
                f"{config.what}: no entries are vectors (x, y and z): continuous symmetries need --blocks or --family"
            )
        return family
    if config.rep_in is None or config.rep_out is None:
        raise ConfigError(
            f"--family {config.family}: how does it act on {len(inputs)} inputs and {len(outputs)} outputs? give --rep-in "
            "and --rep-out, or --blocks in its place"
        )
    family = _representations(config)
    for flag, rep, count in (("--rep-in", family.rep_in, len(inputs)), ("--rep-out", family.rep_out, len(outputs))):
        if rep.dim != count:
            raise ConfigError(f"{flag} {rep}: acts on {rep.dim} numbers, and there are {count}")
    return family


def table(result: DiscoverResult, written: bool = True) -> str:
    """Lines of text with each function's verdict, defects and generators, and the file, if it was written."""
    lines = [f"{result.what}: in {result.family}, {result.representations}"]
    lines.append(f"{result.states} states: {result.states_from}")
    for symmetry in result.found:
        count = len(symmetry.generators)
        generators = f"{count} generator{'s' * (count != 1)}"
        verdict = {
            "none": f"no continuous symmetry: no gap in the defects (the smallest is {symmetry.spectrum[0]:.1e})",
            "exact": f"an exact symmetry of {generators}",
            "approximate": f"an approximate symmetry of {generators}, relative defect {symmetry.spectrum[count - 1]:.1e}",
        }[symmetry.verdict]
        defects = ", ".join(f"{value:.1e}" for value in symmetry.spectrum[:MAX_TABLE_DEFECTS])
        more = ", ..." if len(symmetry.spectrum) > MAX_TABLE_DEFECTS else ""
        lines += ["", f"{symmetry.name}: {verdict}", f"relative defects: {defects}{more}"]
        for index, generator in enumerate(symmetry.generators):
            rows: list[list[Any]] = [[f"{0.0 if abs(x) < 5e-5 else x:.4f}" for x in row] for row in generator]
            lines += [
                f"generator {index}, {describe_generator(torch.tensor(generator))}:",
                *(f"  {line}" for line in align(rows)),
            ]
        if count > 1:
            lines.append(f"their commutators leave their span by {symmetry.closure:.1e} of their size")
    if written:
        lines += ["", f"written: {result.json}"]
    return "\n".join(lines)
