"""`rppdyn equivariance`: the equivariance errors of an agent, a fit, a saved policy, an exported program or a function."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray

from rppdyn.envs import SymmetrySpec, symmetry_spec
from rppdyn.envs._spec import align
from rppdyn.equivariance._error import Function
from rppdyn.equivariance._lie import generator_names
from rppdyn.errors import require_trust
from rppdyn.jobs import building, targets
from rppdyn.jobs.building import process_state
from rppdyn.jobs.config import compose
from rppdyn.jobs.config.base import ConfigError, refuse
from rppdyn.jobs.config.command import PRETRAINED, SUBJECTS, EquivarianceConfig, pretrained_name
from rppdyn.jobs.loading import FITS, Loaded, load, load_fit
from rppdyn.jobs.measure import (
    FORMAT,
    MAX_OUTPUTS,
    MAX_TABLE_LAYERS,
    Measured,
    Rollouts,
    equivariance_figure,
    is_finite,
    largest_entries,
    largest_layers,
    measure,
    measure_rollouts,
    pool_members,
    shares_by_kind,
)
from rppdyn.jobs.targets import flows_of, image_function, image_members, inputs_at, inputs_of, measure_images, states_of
from rppdyn.reps import Rep, notation
from rppdyn.runs import RunFolder, iqm, provenance
from rppdyn.runs.figures import save
from rppdyn.runs.files import write_json, write_measured
from rppdyn.runs.folder import is_own

MAX_TABLE_PARTS = 6  # of the input, those that explain most; the JSON file has all


@dataclass(frozen=True)
class EquivarianceResult:
    """The equivariance errors of all functions of a target.

    Attributes:
        what, source: the target as named by the user, and its weights or code, in words.
        symmetry: the group and the object it belongs to, in words.
        generators: names of the generators, the discrete ones first.
        states, states_from: number and source of the states.
        seed: seed of the first episode, or of normal inputs.
        functions: errors by function: "policy", "critics", "value" or "function"; for a fit "regressor", "vector field" or
            others, summarised over its members.
        members: errors of each member of a fit, by function.
        seeds, diverged: seeds of a fit's members, and of members left out because of outputs that are not finite.
        rollouts: errors along rollouts of a fit to trajectories.
        pathways: norms and shares of the pathways of an RPP policy.
        breaking: what the group moves of constant inputs (:class:`rppdyn.nn._pathways.BreakingInputs`), by network.
        json, figure: files of the result.
    """

    what: str
    source: str
    symmetry: str
    generators: list[str]
    states: int
    states_from: str
    seed: int
    functions: dict[str, Measured]
    json: str
    figure: str
    members: dict[str, list[Measured]] = field(default_factory=dict)
    seeds: list[int] = field(default_factory=list)
    diverged: list[int] = field(default_factory=list)
    rollouts: Rollouts | None = None
    pathways: dict[str, float] = field(default_factory=dict)
    breaking: dict[str, list[list[float]]] = field(default_factory=dict)
    provenance: dict[str, object] = field(default_factory=provenance)
    format: int = FORMAT


def run(config: EquivarianceConfig) -> EquivarianceResult:
    """Measure the equivariance errors of the configured target, write them as JSON and draw them.

    Raises:
        RunFolderError, CheckpointError: there is no such run, it has no policy yet, or its files are damaged.
        ConfigError, ValueError: the target has no function, or there are no states to measure it at.
        UnwrittenError: a file can't be written; the error carries the result.
    """
    folder = RunFolder.open(config.what) if config.kind == "run" else None
    name = "" if folder is None else compose.name_of_run(folder)
    if name.startswith("bound_"):
        raise ConfigError(
            f"{config.what} is a run of bound: the symmetry of its networks is not measured; give a run of a fit"
        )
    is_of_images = name == "fit_image" if name else config.image is not None
    if name and not is_of_images:
        flags = {"--image": config.image, "--transformations": config.transformations, "--whole": config.whole}
        refuse(flags, f"{config.what} is no run of fit-image; leave it out")
    if config.states_from == "normal" and (name == "train_agent" or config.kind in (PRETRAINED, SUBJECTS[".zip"])):
        raise ConfigError(
            f"--from normal: a policy's observations are no standard normal numbers; leave it out for states of "
            f"{config.what}'s own episodes, or give reset or a file"
        )
    with process_state(threads=1):  # many small products: threads would wait for each other
        if is_of_images:
            result = _measure_image_models(config, folder)
        elif folder is not None and name in FITS:
            result = _measure_fit(config, folder)
        elif config.representations is not None:
            result = _measure_function(config, *config.representations)
        else:
            result = _measure_agent(config)
    content = asdict(result)
    if not result.breaking:
        del content["breaking"]
    write_measured(
        result,
        {
            result.json: lambda path: write_json(path, content),
            result.figure: lambda path: save(equivariance_figure(content), path),
        },
    )
    return result


def _measure_agent(config: EquivarianceConfig) -> EquivarianceResult:
    """Measure a policy, or a function from an environment's observations to its actions."""
    with load(config, config.episodes) as target:
        spec = _spec(config, target)
        if target.policy is not None:
            targets.check_policy(target.policy, spec)
        observations, actions, origin = states_of(config, target, spec)
        names = list(spec.generator_names)
        functions = {f.name: measure(f, observations, actions, names) for f in functions_of(target, spec, observations)}
        policy = target.policy
        pathways = policy.pathway_statistics() if hasattr(policy, "pathway_statistics") else {}
        breaking = _constant_inputs(getattr(policy, "networks", {}))
    return _result(config, target.source, f"{spec.group} of {spec.env_id}", names, len(observations), origin, functions,
                   pathways=pathways, breaking=breaking)  # fmt: skip


def _constant_inputs(networks: Mapping[str, Sequence[Any]]) -> dict[str, list[list[float]]]:
    """The parts that the group moves of the constant inputs of networks that have any, by name."""
    values = {
        name: [net.breaking.moved().tolist() for net in nets if getattr(net, "breaking", None) is not None]
        for name, nets in networks.items()
    }
    return {name: vectors for name, vectors in values.items() if vectors}


def _measure_function(config: EquivarianceConfig, group: str, rep_in: str, rep_out: str) -> EquivarianceResult:
    """Measure a function between representations."""
    with load(config, config.episodes) as target:
        if target.call is None:
            raise ConfigError(f"--group {group}: {config.what} is a policy, which is measured with --env")
        G = notation.group(group)
        ends = notation.representation(rep_in, G, "--rep-in"), notation.representation(rep_out, G, "--rep-out")
        if G.is_complex:
            raise ConfigError(
                f"--group {group}: it is complex, and inputs are real here; call rppdyn.equivariance.equivariance_error with "
                "complex ones, in Python"
            )
        inputs, origin = inputs_of(config, ends[0].dim)
        function = targets.plain_function(target.call, *ends, None, torch.as_tensor(inputs[:2]))
        names = _generators(ends[0])
        functions = {function.name: measure(function, inputs, None, names)}
    return _result(config, target.source, f"{G}: {ends[0]} to {ends[1]}", names, len(inputs), origin, functions)


def _measure_fit(config: EquivarianceConfig, folder: RunFolder) -> EquivarianceResult:
    """Measure the members of a fit's run."""
    flags = {"--env": config.env, "--symmetry": config.symmetry, "--rep-in": config.rep_in, "--rep-out": config.rep_out}
    refuse(flags, "the run of a fit brings its task; leave it out, or give another --group")
    if config.states_from in ("rollouts", "reset"):
        raise ConfigError(
            f"--from {config.states_from}: inputs of a fit come from test (the default), normal or a file"
        )
    fit = load_fit(folder, trust=config.trust)
    members: list[Function] = fit.functions(None if config.group is None else notation.group(config.group))
    rep_in, rep_out = members[0].rep_in, members[0].rep_out
    G, names = rep_in.G, _generators(rep_in)
    measured: list[Measured] = []
    finite_members: list[Function] = []
    for member in members:
        inputs, origin = inputs_at(config, member)
        if is_finite(member, inputs):
            finite_members.append(member)
            measured.append(measure(member, inputs, None, names))
    if not finite_members:
        remedy = "fit again with a smaller optimiser.learning_rate"
        if config.states_from not in (None, "test"):
            remedy += f", unless it is what {origin} holds"
        raise ConfigError(f"{config.what}: no member gives finite numbers; {remedy}")
    name, seeds = finite_members[0].name, [member.seed for member in finite_members]
    rollouts = None
    if rolled := [member.rollout for member in finite_members if member.rollout is not None]:
        times = rolled[0].times
        rollouts = measure_rollouts([r.solve for r in rolled], rep_in, [r.starts for r in rolled], times)
    return _result(
        config,
        f"{fit.config.task_name}, {fit.config.model_name}",
        f"{G}: {rep_in} to {rep_out}",
        names,
        len(inputs),
        origin,
        {name: pool_members(measured)},
        members={name: measured},
        seeds=seeds,
        diverged=[member.seed for member in members if member.seed not in seeds],
        rollouts=rollouts,
        breaking=_constant_inputs(
            {"network": [net.module for member in finite_members for net in member.networks.values()]}
        ),
    )


def _measure_image_models(config: EquivarianceConfig, folder: RunFolder | None) -> EquivarianceResult:
    """Measure the members of a run of fit-image, or a function of images."""
    flows = flows_of(config)
    if folder is None:
        source, member = image_function(config)
        members = [member]
    else:
        flags = {"--env": config.env, "--group": config.group, "--from": config.states_from}
        refuse(flags, "of images the symmetry is --transformations, and they are --image's")
        fit = load_fit(folder, trust=config.trust)
        source, members = f"{fit.config.task_name}, {fit.config.model_name}", image_members(config, fit)
    whole = tuple(config.whole.split(",")) if config.whole else ()
    measured = [measure_images(member, flows, whole) for member in members]
    name = members[0].name
    members_apart = (
        dict(members={name: measured}, seeds=[member.seed for member in members]) if folder is not None else {}
    )
    return _result(config, source, "transformations of images", list(flows), len(members[0].images), members[0].origin,
                   {name: pool_members(measured)}, **members_apart)  # fmt: skip


def _generators(rep: Rep) -> list[str]:
    return [*generator_names(rep, "discrete"), *generator_names(rep)]


def _result(
    config: EquivarianceConfig,
    source: str,
    symmetry: str,
    generators: list[str],
    states: int,
    origin: str,
    functions: dict[str, Measured],
    **details: Any,
) -> EquivarianceResult:
    """The result with the paths of its files, in the run's folder, or in the working folder with the target's name."""
    if config.kind == "run":
        folder = RunFolder(config.what)
        json, figure = folder.path / "equivariance.json", folder.figures / "equivariance.png"
    else:
        pretrained = pretrained_name(config.what)
        stem = config.what.replace(":", ".") if config.kind == "function" else Path(pretrained or config.what).stem
        json, figure = Path(f"{stem}.equivariance.json"), Path(f"{stem}.equivariance.png")
    return EquivarianceResult(
        what=config.what, source=source, symmetry=symmetry, generators=generators, states=states, states_from=origin,
        seed=config.seed, functions=functions, json=config.json or str(json), figure=config.figure or str(figure), **details,
    )  # fmt: skip


def _spec(config: EquivarianceConfig, target: Loaded) -> SymmetrySpec:
    """The configured symmetry, or else the target's own, or else the default of its environment."""
    if target.spec is not None and config.symmetry is None:
        if config.env is not None and not target.spec.is_of(config.env):
            raise ConfigError(
                f"--env {config.env}: {config.what} is a policy of {target.spec.env_id} and has the symmetry of that; leave "
                "--env out, or give --symmetry, too"
            )
        return target.spec
    env_id = config.env or (target.spec.env_id if target.spec else None)
    if env_id is None:
        raise ConfigError(
            f"{config.what}: which symmetry? give --env with the environment it was made for"
            + ("" if target.policy is not None else ", or --group, --rep-in and --rep-out")
        )
    if config.kind == "run" and not (config.trust or is_own(Path(config.what))):
        require_trust(env_id, Path(config.what, building.SPEC_FILE))
    return symmetry_spec(env_id, symmetry=config.symmetry)


def functions_of(target: Loaded, spec: SymmetrySpec, observations: NDArray) -> list[Function]:
    """The functions of an agent or a policy under a symmetry; a callable is first called at some observations."""
    if target.call is None:
        return targets.policy_functions(target.policy, spec)
    sample = torch.as_tensor(observations[:2], dtype=torch.float64)
    return [targets.plain_function(target.call, spec.obs_rep, spec.action_rep, spec, sample)]


# -- table ------------------------------------------------------------------------------------------------------------


def table(result: EquivarianceResult, written: bool = True) -> str:
    """Lines of text with errors by generator, entry and layer, free pathways' shares, and the files, if they were written."""
    lines = [
        f"{result.what}: {result.source}; {result.symmetry}",
        f"{result.states} {'images' if any(m.lee for m in result.functions.values()) else 'states'}: {result.states_from}",
    ]
    if len(result.seeds) > 1:
        lines.append(
            f"{len(result.seeds)} members: interquartile means over them, and intervals over them, not over states"
        )
    if result.diverged:
        lines.append(f"left out, with numbers that are not finite: seed {', '.join(map(str, result.diverged))}")
    lines.append("")
    rows = [["", "error", "95 % interval", "Eq. 3.3"]]
    for name, m in result.functions.items():
        rows.append([f"{name}{'' if m.precision == 'float64' else f' ({m.precision})'}", "", "", ""])
        overall = {"all": m.overall} if len(m.per_generator) > 1 else {}
        for generator, e in (m.per_generator | overall).items():
            interval = f"[{e.interval[0]:.1e}, {e.interval[1]:.1e}]"
            rows.append([f"  {generator}", f"{e.error:.1e}", interval, f"{e.published:.1e}"])
    lines += align(rows)
    if any(re.fullmatch(r"[hA]\d+", generator) for generator in result.generators):
        lines.append("h0, h1, ...: the group's discrete generators; A0, A1, ...: those of its Lie algebra")
    for name, m in result.functions.items():
        if m.lee:
            lines += ["", f"{name}: local equivariance error (Eq. 4.4), and its standard error"]
            lines += align([[f"  {g}", f"{value:.1e}", f"± {error:.0e}"] for g, (value, error) in m.lee.items()])
    for name, m in result.functions.items():
        if m.vacuous:
            lines.append(
                f"{name}: vacuous, the outputs are all but zero (scale {m.scale:.1e}) and the error says nothing"
            )
    if result.rollouts is not None:
        lines += _rollout_lines(result.rollouts)
    for name, m in result.functions.items():
        lines += _details(name, m)
    if not any(m.layers for m in result.functions.values()):
        lines += ["", "layers: not told apart, because nothing says how the hidden ones should transform"]
    if result.pathways:
        suffix = "_free_share"
        shares = {name.removesuffix(suffix): x for name, x in result.pathways.items() if name.endswith(suffix)}
        text = ", ".join(f"{network} {100 * share:.3g}%" for network, share in shares.items())
        lines += ["", f"free pathway: {text} of the squared weights"]
    for name, vectors in result.breaking.items():
        lines += ["", f"constant inputs of {name}: norm, and direction"]
        for vector in vectors:
            norm = math.hypot(*vector)
            direction = ", ".join(f"{x / norm if norm else 0:+.2f}" for x in vector)
            lines.append(f"  {norm:.2g}  ({direction})")
    if written:
        lines += ["", f"written: {result.json}, {result.figure}"]
    return "\n".join(lines)


def _rollout_lines(rollouts: Rollouts) -> list[str]:
    low, high = rollouts.interval
    end = float(iqm([steps[-1] for steps in rollouts.per_step]))
    lost = sum(rollouts.left_out)
    return [
        "",
        f"along rollouts: {rollouts.error:.1e} [{low:.1e}, {high:.1e}], the geometric mean over {rollouts.times[-1]:g} s; "
        f"{end:.1e} at their end; {rollouts.trajectories} trajectories of each"
        + (f", {lost} left out that diverge or whose images do" if lost else ""),
    ]


def _details(name: str, m: Measured) -> list[str]:
    lines = []
    if m.by_output:
        entries = largest_entries(m.by_output, MAX_OUTPUTS)
        more = f" (the largest of {len(m.by_output)})" if len(entries) < len(m.by_output) else ""
        lines += ["", f"{name}: error of each output{more}"]
        lines += align([[f"  {entry}", f"{value:.1e}"] for entry, value in entries.items()])
    explained = {entry: share for entry, share in m.by_input.items() if share == share}
    if explained:
        worst = sorted(explained.items(), key=lambda item: -item[1])[:MAX_TABLE_PARTS]
        more = f" (the largest of {len(explained)})" if len(explained) > MAX_TABLE_PARTS else ""
        lines += ["", f"{name}: share of the error that a part of the input explains{more}"]
        lines += align([[f"  {entry}", _percent(share)] for entry, share in worst])
    for network, layers in m.layers.items():
        rows = [["  layer", *layers.norm]]
        indices = largest_layers(layers.norm, MAX_TABLE_LAYERS)
        for i in indices:
            pairs = [(layers.norm[g][i], layers.share[g][i]) for g in layers.norm]
            rows.append([f"  {layers.layers[i]}", *(f"{norm:.1e} {_percent(share):>4}" for norm, share in pairs)])
        more = f" (the largest of {len(layers.layers)})" if len(indices) < len(layers.layers) else ""
        lines += ["", f"{network}: what each layer contributes, its mean size and its share of the error{more}"]
        lines += align(rows)
        if layers.kinds:
            kinds = shares_by_kind(layers)
            lines += ["", f"{network}: shares of the error by kind of layer"]
            lines += align(
                [["  kind", *layers.share], *([f"  {kind}", *map(_percent, row)] for kind, row in kinds.items())]
            )
        if layers.residual:
            missed = max(layers.residual.values())
            lines += ["", f"layers add up to the error end to end within {missed:.0e} of it"]
    return lines


def _percent(share: float) -> str:
    return f"{round(share, 2) + 0.0:.0%}" if share == share else ""  # adding zero makes -0 0
