"""`rppdyn discover`: the symmetry of a fitted model, of an agent, of any function, or of a robot."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rppdyn.agents import played_episodes, random_policy
from rppdyn.envs import (
    Candidates,
    SymmetrySpec,
    certify,
    make_env,
    policy_candidates,
    read_episodes,
    step_candidates,
    symmetry_candidates,
)
from rppdyn.envs.spec import align
from rppdyn.equivariance import Discovery, discover, index_families
from rppdyn.equivariance.discover import kind_of
from rppdyn.equivariance.error import relative_difference
from rppdyn.jobs.config import compose, notation
from rppdyn.jobs.config.base import ConfigError, refuse
from rppdyn.jobs.config.command import DiscoverConfig, EquivarianceConfig
from rppdyn.jobs.equivariance import functions_of, target_of
from rppdyn.jobs.measuring.fit_targets import inputs_at, open_fit, open_transition, transition_fit
from rppdyn.jobs.measuring.loading import load_function
from rppdyn.jobs.measuring.targets import check_policy, evenly, inputs_of, states_of
from rppdyn.jobs.training.building import build_env, process_state
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

FITS = ("fit_regression", "fit_dynamics", "fit_trajectories")
SUBJECTS = (*FITS, "fit_transition", "train_agent")
CERTIFIED = 3  # candidates of a robot, the best ones
STATES = 100  # from which they are certified
SHOWN = 8  # defects in the table; the JSON has all


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
class RankedCandidate:
    """A signed permutation of joints: its score by the linear model, and what the simulator says of it.

    Attributes:
        dynamics, reward: verdicts, see `rppdyn.envs.certify`.
        defect: 95th percentile of the relative defect of one step.
        model: a trained model's or policy's mean relative error under it, Eq. 3.3; None of a robot's data.
    """

    name: str
    score: float
    dynamics: str
    reward: str
    defect: float
    model: float | None = None


@dataclass(frozen=True, kw_only=True)
class Ranked:
    """A robot's candidates.

    Attributes:
        steps: from which the linear model that ranks them was fitted.
        candidates: how many were ranked.
        residual: share of the variance of changes that the linear model leaves.
        best: the first, certified.
        scores: the smallest twenty.
    """

    env: str
    steps: int
    candidates: int
    residual: float
    best: list[RankedCandidate]
    scores: list[float]


@dataclass(frozen=True, kw_only=True)
class Ranking(Ranked):
    """A robot's candidates by the linear model of a trained model, or of a policy, which is `of`."""

    of: str


@dataclass(frozen=True)
class DiscoverResult:
    """The result of the verb: the target, the family, and the symmetry discovered in each function.

    Attributes:
        rankings: permutations of the robot's joints, for a transition model or a policy.
        notes: searches that were left out, and why.
    """

    what: str
    family: str
    representations: str
    states: int
    states_from: str
    found: list[Found]
    json: str
    rankings: list[Ranking] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    provenance: dict[str, object] = field(default_factory=provenance)


@dataclass(frozen=True, kw_only=True)
class RobotResult(Ranked):
    """The result of the verb of a robot: its candidates."""

    what: str
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
        result: DiscoverResult | RobotResult = _of_robot(config)
    elif config.kind == "function":
        result = _of_function(config)
    else:
        folder = RunFolder.open(config.what)
        name = compose.name_of_run(folder)
        if name not in SUBJECTS:
            raise ConfigError(
                f"{config.what} is a run of {name.replace('_', '-')}: give one of train-agent, fit-dynamics, fit-regression or "
                "fit-transition, or module:function"
            )
        if name in FITS:
            result = _of_fit(config, folder)
        else:
            result = _of_agent(config) if name == "train_agent" else _of_transition(config, folder)
    content = asdict(result)
    write_measured(result, {result.json: lambda path: write_json(path, content)})
    return result


def _of_function(config: DiscoverConfig) -> DiscoverResult:
    family, rep_in, rep_out = _given(config)
    inputs, origin = inputs_of(config, rep_in.dim)
    found = discover(load_function(config.what), rep_in, rep_out, torch.as_tensor(inputs))
    json = str(config.json or config.what.replace(":", ".") + ".discover.json")
    words = f"{rep_in} to {rep_out}"
    return DiscoverResult(config.what, family, words, len(inputs), origin, [_found(config.what, found)], json)


def _of_fit(config: DiscoverConfig, folder: RunFolder) -> DiscoverResult:
    """Discover symmetries of the members of a fit to a task, which brings its representations."""
    given = {"--rep-in": config.rep_in, "--rep-out": config.rep_out, "--blocks": config.blocks}
    refuse(given, "a run of a task brings its representations; leave it out")
    family = config.family or f"GL({open_fit(folder).rep_in.G.d})"
    fit, found, states, origin = open_fit(folder, family), [], 0, "inputs of the test data"
    for member in fit.members:
        inputs, origin = inputs_at(config, member, fit.rep_in.dim)
        states = len(inputs)
        discovery = discover(member.function.call, fit.rep_in, fit.rep_out, torch.as_tensor(inputs))
        found.append(_found(f"{member.function.name}, seed {member.seed}", discovery))
    words = f"{fit.rep_in} to {fit.rep_out}"
    return DiscoverResult(config.what, family, words, states, origin, found, _file(config))


def _of_transition(config: DiscoverConfig, folder: RunFolder) -> DiscoverResult:
    """Discover symmetries of each member's change of a state's features, and of all together at the data's states.

    The next state itself is mostly the one before, which has every symmetry.
    """
    own: Any = replace(compose.from_run("fit_transition", folder), device="cpu")
    transition, models = open_transition(own, folder, trust=config.trust)
    fit, spec = transition_fit(own, transition, models), transition.spec
    names = [*spec.feature_names, *spec.action_names]
    family, notes = _family(config, names, spec.feature_names)
    states, origin, found = 0, "inputs of the test data", []
    if family is not None:
        for member in fit.members:
            inputs, origin = inputs_at(config, member, len(names))
            states = len(inputs)
            name = f"{member.function.name}, seed {member.seed}"
            found += _searched(config, name, member.function.call, family, torch.as_tensor(inputs), notes)
    dataset = read_episodes(own.dataset, trust=config.trust)
    observations = evenly(np.concatenate([e.observations[:-1] for e in dataset.episodes]), config.steps)
    actions = evenly(np.concatenate([e.actions for e in dataset.episodes]), config.steps)
    weights = [model.assemble() for model in models]

    @torch.no_grad()
    def after(obs: NDArray, act: NDArray) -> NDArray:
        """The members' prediction of the next state, the mean of their features."""
        x, u = spec.encode(torch.as_tensor(obs)), spec.action.encode(torch.as_tensor(act))
        mean = torch.stack([m.step(x, u, w).mean for m, w in zip(models, weights, strict=True)]).mean(0)
        return spec.decode(models[0].project(mean)).numpy()

    def error(one: SymmetrySpec) -> float:
        g = one.group.discrete_generators[0]
        moved, acted = one.transform_observation(g, observations), one.transform_action(g, actions)
        changes = [one.encode(after(o, a)) - one.encode(o) for o, a in ((observations, actions), (moved, acted))]
        return _relative(changes[0] @ one.obs.generator(0).T, changes[1])

    with closing(dataset.env()) as env:
        options: Any = dict(signs=config.signs, top=CERTIFIED)
        rank = lambda: step_candidates(env, observations, actions, after(observations, actions), **options)  # noqa: E731
        rankings = _rankings("the model's predictions", env, rank, error, config.seed, notes)
    return _whole(config, family, states, origin, found, rankings, notes)


def _of_agent(config: DiscoverConfig) -> DiscoverResult:
    """Discover symmetries of an agent's mean action, at states of its own episodes."""
    own = EquivarianceConfig(
        config.what, states_from=config.states_from, states=max(config.states, config.steps), episodes=config.episodes,
        seed=config.seed, trust=config.trust,
    )  # fmt: skip
    if config.states_from in ("normal", "test"):
        raise ConfigError(f"--from {config.states_from}: of an agent give rollouts, reset or a file of observations")
    with process_state(threads=1), target_of(own) as target:
        spec = target.spec
        assert spec is not None
        check_policy(target.policy, spec)
        observations, actions, origin = states_of(own, target, spec)
        assert actions is not None
        policy = functions_of(target, spec, observations)[0]
        few = [evenly(part, config.states) for part in (observations, actions)]
        family, notes = _family(config, spec.feature_names, spec.action_names)
        found = []
        if family is not None:
            inputs = policy.encode(*map(torch.as_tensor, few))
            found = _searched(config, policy.name, policy.call, family, inputs, notes)

        @torch.no_grad()
        def act(obs: NDArray) -> NDArray:
            return spec.action.decode(policy.call(spec.encode(torch.as_tensor(obs, dtype=torch.float64)))).numpy()

        def error(one: SymmetrySpec) -> float:
            g = one.group.discrete_generators[0]
            moved = one.transform_observation(g, observations)
            return _relative(one.transform_action(g, act(observations)), act(moved))

        run: Any = compose.from_run("train_agent", RunFolder.open(config.what), trust=config.trust)
        with closing(build_env(run)) as env:
            rank = lambda: policy_candidates(env, observations, act(observations), signs=config.signs, top=CERTIFIED)  # noqa: E731
            rankings = _rankings("the policy's actions", env, rank, error, config.seed, notes)
    return _whole(config, family, len(few[0]), origin, found, rankings, notes)


def _given(config: DiscoverConfig) -> tuple[str, Any, Any]:
    """The family that was asked for and its representations."""
    family, ends = config.representations
    G = notation.group(family, "--family")
    rep_in, rep_out = (
        notation.representation(flag, text, G) for flag, text in zip(("--rep-in", "--rep-out"), ends, strict=True)
    )
    return family, rep_in, rep_out


def _family(config: DiscoverConfig, inputs: Sequence[str], outputs: Sequence[str]) -> tuple[Family | None, list[str]]:
    """On entries of an observation; a note where there is none."""
    if config.family is not None:
        if config.rep_in is None or config.rep_out is None:
            raise ConfigError(
                f"--family {config.family}: how does it act on {len(inputs)} inputs and {len(outputs)} outputs? give --rep-in "
                "and --rep-out, or --blocks in its place"
            )
        _, rep_in, rep_out = _given(config)
        for flag, rep, count in (("--rep-in", rep_in, len(inputs)), ("--rep-out", rep_out, len(outputs))):
            if rep.dim != count:
                raise ConfigError(f"{flag} {rep}: acts on {rep.dim} numbers, and there are {count}")
        return Family(rep_in, rep_out, f"{rep_in} to {rep_out}"), []
    found = family_of(inputs, outputs, config.blocks)
    return found, [] if found else [
        "no entries are vectors (x, y and z): continuous symmetries need --blocks or --family"
    ]


def _searched(
    config: DiscoverConfig, name: str, call: Callable[[Tensor], Tensor], family: Family, x: Tensor, notes: list[str]
) -> list[Found]:
    """Discover the symmetry of a function; none, with a note, where the family was not asked for and does not suit it."""
    try:
        return [_found(name, discover(call, family.rep_in, family.rep_out, x))]
    except ValueError as error:
        if config.family is not None or config.blocks is not None:
            raise
        notes.append(f"{name}: {error}")
        return []


def _rankings(
    of: str,
    env: gym.Env,
    rank: Callable[[], Candidates],
    error: Callable[[SymmetrySpec], float],
    seed: int,
    notes: list[str],
) -> list[Ranking]:
    """Candidates with their certificates, and what the model or the policy itself makes of them; none of a robot without."""
    try:
        ranked = rank()
    except ValueError as reason:
        notes.append(f"no permutations of joints: {reason}")
        return []
    best = [
        replace(one, model=error(c.spec)) for one, c in zip(_certified(env, ranked, seed), ranked.best, strict=True)
    ]
    return [Ranking(of=of, **_ranking(ranked, best))]


def _relative(a: NDArray, b: NDArray) -> float:
    return float(relative_difference(torch.as_tensor(a), torch.as_tensor(b)).mean())


def _whole(
    config: DiscoverConfig,
    family: Family | None,
    states: int,
    origin: str,
    found: list[Found],
    rankings: list[Ranking],
    notes: list[str],
) -> DiscoverResult:
    if not found and not rankings:
        raise ConfigError(f"{config.what}: {'; '.join(notes)}")
    name, words = ("", "") if family is None else (str(family.rep_in.G), family.words)
    return DiscoverResult(config.what, name, words, states, origin, found, _file(config), rankings, notes)


def _file(config: DiscoverConfig) -> str:
    return str(config.json or Path(config.what, "discover.json"))


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
        best = _certified(env, ranked, config.seed)
    json = config.json or config.what.strip("/").replace("/", ".") + ".discover.json"
    return RobotResult(what=config.what, json=json, **_ranking(ranked, best))


def _certified(env: gym.Env, ranked: Candidates, seed: int) -> list[RankedCandidate]:
    """The best candidates in the simulator."""
    best = []
    for one in ranked.best:
        certificate = certify(env, one.spec, n_states=STATES, n_resets=STATES, seed=seed)
        verdicts = certificate.dynamics_verdict, certificate.reward_verdict
        best.append(RankedCandidate(one.name, one.score, *verdicts, certificate.generators[0].state.p95))
    return best


def _ranking(ranked: Candidates, best: list[RankedCandidate]) -> dict[str, Any]:
    return dict(env=ranked.best[0].spec.env_id, steps=ranked.steps, candidates=len(ranked.scores), residual=ranked.residual,
                best=best, scores=ranked.scores[:20].tolist())  # fmt: skip


def _found(name: str, discovery: Discovery) -> Found:
    d = discovery
    return Found(name, d.verdict, d.spectrum.tolist(), d.gap, d.closure, d.generators.tolist(), d.unfelt)


def table(result: DiscoverResult | RobotResult, written: bool = True) -> str:
    """Each function's verdict, defects and generators, or a robot's candidates; where the file is, if it was written."""
    if isinstance(result, RobotResult):
        lines = _about(result)
        return "\n".join([*lines, "", f"written: {result.json}"] if written else lines)
    lines = [f"{result.what}: in {result.family}, {result.representations}"] if result.found else [result.what]
    lines += [f"{result.states} states: {result.states_from}"] if result.found else []
    for one in result.found:
        shown = ", ".join(f"{value:.1e}" for value in one.spectrum[:SHOWN]) + (
            ", ..." if len(one.spectrum) > SHOWN else ""
        )
        lines += ["", f"{one.name}: {_words(one)}", f"relative defects: {shown}"]
        for index, generator in enumerate(one.generators):
            rows: list[list[Any]] = [[f"{0.0 if abs(x) < 5e-5 else x:.4f}" for x in row] for row in generator]
            lines += [f"generator {index}, {kind_of(torch.tensor(generator))}:", *(f"  {line}" for line in align(rows))]
        if len(one.generators) > 1:
            lines.append(f"their commutators leave their span by {one.closure:.1e} of their size")
    for ranking in result.rankings:
        lines += ["", *_about(ranking)]
    if result.notes:
        lines += ["", *result.notes]
    if written:
        lines += ["", f"written: {result.json}"]
    return "\n".join(lines)


def _about(ranking: Ranked) -> list[str]:
    """A robot's candidates."""
    what = f"of {ranking.steps} steps that leaves {ranking.residual:.0%} of the changes"
    if isinstance(ranking, Ranking):
        what = f"of {ranking.of} at {ranking.steps} states that leaves {ranking.residual:.0%} of them"
    lines = [f"{ranking.env}: {ranking.candidates} permutations of joints, ranked by a linear model {what}"]
    for one in ranking.best:
        own = "" if one.model is None else f"; its own error {one.model:.1e}"
        lines += [
            "",
            one.name,
            f"  score {one.score:.3f}{own}; in the simulator {one.dynamics}, relative defect {one.defect:.1e}; reward "
            f"{one.reward}",
        ]
    return lines


def _words(one: Found) -> str:
    """The meaning of a verdict, in words."""
    count = f"{len(one.generators)} generator{'s' * (len(one.generators) != 1)}"
    if one.verdict == "none":
        return f"no continuous symmetry: no gap in the defects (the smallest is {one.spectrum[0]:.1e})"
    if one.verdict == "exact":
        return f"an exact symmetry of {count}"
    return f"an approximate symmetry of {count}, relative defect {one.spectrum[len(one.generators) - 1]:.1e}"
