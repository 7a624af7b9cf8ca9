"""The table of every task's and many robots' symmetries: `python benchmarks/survey.py --out docs/symmetries.md`.

Each symmetry that is derived from a model is certified by itself, with the stock solver and with a tight one, and beside it
the published representation of the same robot. Models that nobody here wrote are those inside dm_control, where that is
installed. What was found is also written as JSON and, with `--verdicts`, as the verdicts that specs of the package state.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import io
import json
import multiprocessing
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import gymnasium as gym
import mujoco
from gymnasium.envs.mujoco import MujocoEnv

from rppdyn.envs import Certificate, SymmetrySpec, certify, symmetry_spec
from rppdyn.envs._catalogue import KNOWN_ENVIRONMENTS, verdict_key
from rppdyn.envs._making import load_model
from rppdyn.envs._mirror import PUBLISHED
from rppdyn.envs.certification._certificate import GeneratorReport
from rppdyn.envs.derivation import derive, symmetrise
from rppdyn.runs import provenance
from rppdyn.runs.files import write_json
from rppdyn.runs.session import Progress

ROBOTS = ("suite", "locomotion/walkers/assets", "locomotion/walkers/assets/jumping_ball", "locomotion/soccer/assets/boxhead",
          "third_party/ant")  # fmt: skip
"""Folders of dm_control with model files of whole robots."""


@dataclass(frozen=True)
class Row:
    """One symmetry of one robot, as certified; defects are [median, 95th percentile, maximum] or None."""

    robot: str
    symmetry: str
    variant: str
    verdict: str
    state: list[float]
    tight: list[float]
    tight_verdict: str
    observation: list[float] | None
    reward: list[float] | None
    termination: float | None
    reset: str | None
    support: float
    spoiled_by: list[str]
    derive_seconds: float
    certify_seconds: float


@dataclass(frozen=True)
class Miss:
    """A model of which nothing was certified, and why."""

    robot: str
    reason: str


@dataclass(frozen=True)
class Findings:
    """What was found for one robot."""

    rows: list[Row]
    misses: list[Miss]
    verdicts: dict[str, list]


def main(arguments: Sequence[str] | None = None) -> int:
    """Derive, certify and write."""
    parser = argparse.ArgumentParser(prog="python benchmarks/survey.py", description=__doc__)
    parser.add_argument("--out", required=True, metavar="FILE", help="the page (Markdown)")
    parser.add_argument("--json", required=True, metavar="FILE", help="the raw numbers")
    parser.add_argument("--verdicts", metavar="FILE", help="also write what specs of the package state")
    parser.add_argument(
        "--asymmetries", metavar="FILE", help="what benchmarks/asymmetries.py wrote, for a line of the page"
    )
    parser.add_argument("--states", type=int, default=400, help="states to compare from (400)")
    parser.add_argument("--jobs", type=int, default=2, help="robots at a time (2)")
    parser.add_argument("--only", nargs="*", metavar="ROBOT", help="robots whose name contains one of these")
    parsed = parser.parse_args(arguments)
    swept = asymmetries(json.loads(Path(parsed.asymmetries).read_text(encoding="utf-8"))) if parsed.asymmetries else []
    tasks: list[tuple[str, str | Path]] = [(env_id, env_id) for env_id in KNOWN_ENVIRONMENTS]
    models: list[tuple[str, str | Path]] = [(f"dm_control {path.stem}", path) for path in dm_control_models()]
    if parsed.only:
        tasks, models = ([r for r in group if any(o in r[0] for o in parsed.only)] for group in (tasks, models))
    rows: list[Row] = []
    misses: list[Miss] = []
    verdicts: dict[str, list] = {}
    robots = [*tasks, *models]
    with (
        Progress(len(robots), description="symmetries", unit="robot") as bar,
        ProcessPoolExecutor(parsed.jobs, mp_context=multiprocessing.get_context("spawn")) as pool,
    ):
        for n, found in enumerate(pool.map(certified_rows, *zip(*robots, strict=True), [parsed.states] * len(robots))):
            rows += found.rows
            misses += found.misses
            verdicts |= found.verdicts
            bar.update(n + 1)
            write_json(Path(parsed.json), _record(rows, misses, parsed.states))
    repaired = [symmetrised(parsed.states)] if not parsed.only or "Humanoid-v5" in parsed.only else []
    write_json(Path(parsed.json), _record(rows + repaired, misses, parsed.states))
    names = {robot for robot, _ in tasks}
    Path(parsed.out).write_text(page(rows, repaired, misses, names, parsed.states, swept), encoding="utf-8")
    if parsed.verdicts:
        write_json(Path(parsed.verdicts), verdicts)
    print(parsed.out)
    return 0


def certified_rows(robot: str, source: str | Path, states: int) -> Findings:
    """Every derived symmetry of a robot by itself, the published representation, and the verdicts on its default spec."""
    found = Findings([], [], {})
    try:
        with _quiet():
            model = load_model(source) if isinstance(source, Path) else _model_of(source)
        start = time.perf_counter()
        derivation = derive(model)
        seconds = time.perf_counter() - start
    except ValueError as error:
        found.misses.append(Miss(robot, " ".join(str(error).split())))
        return found
    if not derivation.symmetries:
        found.misses.append(Miss(robot, "no symmetry found"))
    specs: list[tuple[str, str | None, str]] = [(s.name, s.name, "derived") for s in derivation.symmetries]
    if (task := robot.removesuffix("-v5")) in PUBLISHED:
        specs.append((PUBLISHED[task].name, None, "published"))
    for name, symmetry, variant in specs:
        try:
            spec = symmetry_spec(source, symmetry=symmetry, variant=variant)
            start = time.perf_counter()
            certificate = certify(source, spec, n_states=states)
            took = time.perf_counter() - start
            tight = certify(source, spec, n_states=states, solver="tight")
        except ValueError as error:
            found.misses.append(Miss(f"{robot}, {name}", str(error)))
            continue
        found.verdicts.update(_verdicts(spec, certificate))
        spoiled = [] if variant == "published" else [str(d) for d in derivation[name].deviations]
        found.rows.append(_row(robot, variant, certificate.generators[0], tight.generators[0], spoiled, seconds, took))
    if not isinstance(source, Path):
        spec = symmetry_spec(source)
        found.verdicts.update(_verdicts(spec, certify(source, spec, n_states=states)))
    return found


def _model_of(env_id: str) -> mujoco.MjModel:
    env = gym.make(env_id).unwrapped
    if not isinstance(env, MujocoEnv):
        raise ValueError(f"{env_id} is no Gymnasium MuJoCo environment; give one that is")
    return env.model


def symmetrised(states: int) -> Row:
    """Humanoid-v5 with the parameters that spoil its mirror made equal."""
    with _quiet():
        model = _model_of("Humanoid-v5")
    equal = symmetrise(model, derive(model)["left-right"])
    spec = symmetry_spec(equal, symmetry="left-right")
    start = time.perf_counter()
    stock = certify(equal, spec, n_states=states)
    took = time.perf_counter() - start
    tight = certify(equal, spec, n_states=states, solver="tight")
    return _row(
        "Humanoid-v5 after symmetrise(model)", "derived", stock.generators[0], tight.generators[0], [], 0.0, took
    )


def dm_control_models() -> list[Path]:
    """The model files of dm_control's robots; none where it is not installed."""
    package = importlib.util.find_spec("dm_control")
    if package is None or package.origin is None:
        return []
    root = Path(package.origin).parent
    return sorted(path for folder in ROBOTS for path in (root / folder).glob("*.xml"))


def _row(robot, variant, stock: GeneratorReport, tight: GeneratorReport, spoiled, derived, took) -> Row:
    def defect(d):
        return None if d is None else [d.median, d.p95, d.max]

    return Row(
        robot=robot,
        symmetry=stock.name,
        variant=variant,
        verdict=stock.dynamics_verdict,
        state=defect(stock.state),
        tight=defect(tight.state),
        tight_verdict=tight.dynamics_verdict,
        observation=defect(stock.observation),
        reward=defect(stock.reward),
        termination=stock.termination,
        reset=None if stock.reset.p_value is None else stock.reset_verdict,
        support=stock.support.share,
        spoiled_by=spoiled,
        derive_seconds=derived,
        certify_seconds=took,
    )


def _verdicts(spec: SymmetrySpec, certificate: Certificate) -> dict[str, list]:
    found = [[g.name, g.dynamics_verdict, g.keeps_reward] for g in certificate.generators]
    return {verdict_key(certificate.model_digest, spec): found}


def _record(rows: list[Row], misses: list[Miss], states: int) -> dict:
    return {
        "provenance": provenance(),
        "mujoco": mujoco.__version__,
        "gymnasium": gym.__version__,
        "states": states,
        "rows": [asdict(row) for row in rows],
        "misses": [asdict(miss) for miss in misses],
    }


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    with contextlib.redirect_stderr(io.StringIO()):
        yield


# -- the page ---------------------------------------------------------------------------------------------------------


def asymmetries(report: dict) -> list[str]:
    """Lines on what `benchmarks/asymmetries.py` found."""
    robots = report["robots"]
    verdicts = Counter(verdict for robot in robots.values() for verdict in robot["plants"].values())
    planted = sum(verdicts.values()) - verdicts["reference"]
    pairs = [(name, *pair) for name, robot in robots.items() for pair in robot["plants"].items()]
    missed = [f"{plant} of {name}" for name, plant, verdict in pairs if verdict == "MISSED"]
    counts = [f"{name} {len(robot['plants'])} of {robot['planned']}" for name, robot in robots.items()]
    number = report["settings"]["numbers"]
    which = {0: "every number", 1: "one random number"}.get(number, f"{number} random numbers")
    return [
        "",
        "## Does the derivation see every asymmetry?",
        "",
        f"In robots that are exactly symmetric {which} of each array of `MjModel` was to be changed by itself",
        f"(`python benchmarks/asymmetries.py`; so far: {', '.join(counts)}).",
        f"Addresses and references, {verdicts['reference']} of these, can't be changed alone. Of the other {planted} `derive` "
        f"named {verdicts['named']};",
        f"in {verdicts['lost']} it found no such symmetry any more, {verdicts['refused']} it refused, and "
        f"{verdicts['without effect']} are without effect: the simulator still steps",
        f"mirrored states to mirrored states. Missed: {', '.join(missed) or 'none'}.",
    ]


def page(
    rows: list[Row], repaired: list[Row], misses: list[Miss], tasks: set[str], states: int, swept: Sequence[str] = ()
) -> str:
    """The Markdown page, with the lines of `asymmetries`."""
    own = [row for row in rows if row.robot in tasks]
    others = [row for row in rows if row.robot not in tasks]
    derive_s = max((row.derive_seconds for row in rows), default=0.0)
    certify_s = max((row.certify_seconds for row in rows), default=0.0)
    parts = [
        "# Symmetries of robots, derived and certified",
        "",
        "<!-- Written by python benchmarks/survey.py; change the command, not this page. -->",
        "",
        "    python benchmarks/survey.py --out docs/symmetries.md --json docs/results/symmetries.json "
        f"--verdicts envs/verdicts.json --asymmetries docs/results/asymmetries.json --states {states}",
        "",
        "Every symmetry below was derived from the robot's model with nothing typed in (`rppdyn.envs.derivation`) and then",
        f"certified by stepping the real simulator from {states} states of random rollouts and from their mirror images",
        "([what the columns mean](jobs/certify.md)). Defects are relative to one step: median / 95th percentile / maximum.",
        "*Tight* is the 95th percentile with the contact forces solved to rounding. A verdict is taken on the 95th percentile:",
        "exact below 1e-8, approximate below 1, broken above. *Support* is the share of mirror images that lie among the",
        "states that rollouts visit; near 0, data can't refute the map.",
        "Where the median is at rounding and the 95th percentile is not, the symmetry holds away from what spoils it: a",
        "joint's limits (Pusher's arm), walls, or a contact that MuJoCo resolves to one side.",
        f"Deriving took at most {derive_s:.2g} s a robot and certifying one symmetry at most {certify_s:.2g} s,",
        f"with MuJoCo {mujoco.__version__} and Gymnasium {gym.__version__}.",
        "",
        "## Gymnasium's tasks",
        "",
        *_table(own),
        "",
        "*(published)* is the representation that the residual-pathway work used (`variant=published`).",
        "",
        "### What spoils the approximate ones",
        "",
        *_deviations(own),
    ]
    if repaired:
        parts += [
            "",
            "### With those parameters made equal",
            "",
            "`symmetrise(model)` averages the deviating parameters over the symmetry and computes the model's constants anew.",
            "",
            *_table(repaired),
        ]
    if others:
        parts += [
            "",
            "## Robots that nobody here wrote",
            "",
            "The models inside `dm_control`, as MJCF files; rewards and observations are not",
            "part of a model file.",
            "",
            *_table(others),
            "",
            "### What spoils them",
            "",
            *_deviations(others),
        ]
    if misses:
        parts += ["", "### Misses", "", "| model | |", "| --- | --- |"]
        parts += [f"| {miss.robot} | {miss.reason.replace('|', '/')} |" for miss in misses]
    parts += swept
    return "\n".join(parts) + "\n"


def _table(rows: list[Row]) -> list[str]:
    lines = [
        "| robot | symmetry | dynamics | state | tight | observation | reward | termination | reset | support |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        name = row.symmetry + (" *(published)*" if row.variant == "published" else "")
        cells = [
            row.robot,
            name,
            f"**{row.verdict}**",
            _three(row.state),
            f"{row.tight[1]:.0e}" + ("" if row.tight_verdict == row.verdict else f" ({row.tight_verdict})"),
            "" if row.observation is None else f"{row.observation[1]:.0e}",
            "" if row.reward is None else f"{row.reward[1]:.0e}",
            "" if row.termination is None else f"{row.termination:.0%}",
            row.reset or "",
            f"{row.support:.2f}",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def _three(values: list[float]) -> str:
    return " / ".join(f"{value:.0e}" for value in values)


def _deviations(rows: list[Row], shown: int = 4) -> list[str]:
    lines = []
    for row in rows:
        if row.spoiled_by:
            more = len(row.spoiled_by) - shown
            tail = f"; and {more} more" if more > 0 else ""
            lines.append(f"- {row.robot}, {row.symmetry}: {'; '.join(row.spoiled_by[:shown])}{tail}.")
    return lines or ["Nothing does."]


if __name__ == "__main__":
    sys.exit(main())
