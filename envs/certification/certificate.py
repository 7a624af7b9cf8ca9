"""The certificate of a symmetry, from steps from mirrored states: numbers, verdicts, a table, a dictionary and a figure.

Certificates and derived specs on disk, addressed by all that they depend on (model, environment, versions); so never stale.

An environment is known by its options, its frame skip, and the source of the files that its classes are in.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import logging
import os
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import mujoco
import numpy as np
from pydantic import TypeAdapter, ValidationError

from rppdyn._version import __version__
from rppdyn.envs.spec import VERDICTS, SymmetrySpec, align, rounded
from rppdyn.envs.wrappers import acting_wrappers, step_wrappers
from rppdyn.priors.likelihood import LARGEST_DEFECT, SMALLEST_DEFECT, share_of_defect
from rppdyn.runs.files import cache_folder, plain, write_text

FORMAT = 1

EXACT_BELOW = 1e-8
"""A defect whose 95th percentile is below this is called exact: rounding gives 1e-14."""

APPROXIMATE_BELOW = 1.0
"""Below this a defect is called approximate, above it the symmetry is broken.

At 1 the mirrored prediction of a step is as wrong as predicting that nothing moves.
"""

TERMINATION_BELOW = 0.05
"""Share of states whose mirror image may disagree on termination while that is still called approximate."""

RESET_LEVEL = 1e-6
"""Level of the test (Kolmogorov-Smirnov on every coordinate) by which a reset distribution is called not invariant."""

QUANTILE_LEVELS = np.linspace(0.0, 1.0, 41)
"""Levels of the quantiles that a certificate keeps of each distribution, for its figure."""

MIN_STATES_TO_JUDGE = 20
"""States in contact, or out of it, from which on they are judged apart: a symmetry may fail in contact alone."""

MAX_COMPONENT_ROWS = 8  # components in the table: the worst; the dictionary has all
NOT_DEFINED = "not defined"
MAX_DEVIATION_ROWS = 4  # deviations of the model in the table; the dictionary has all
TABLE_WIDTH = 80


LEGEND = (
    f"Verdicts are on the 95th percentile: exact below {EXACT_BELOW:g}, approximate below {APPROXIMATE_BELOW:g}",
    "(as wrong as predicting no motion), else broken. Along a rollout chaos enlarges",
    "any difference, rounding included: it has no verdict.",
)


class Defect(NamedTuple):
    """A relative defect over the sampled states: median, 95th percentile, maximum, and the share above `EXACT_BELOW`."""

    median: float
    p95: float
    max: float
    share: float

    @classmethod
    def of(cls, values: np.ndarray) -> Defect:
        median, p95 = np.quantile(values, (0.5, 0.95))
        return cls(float(median), float(p95), float(values.max()), float(np.mean(~(values < EXACT_BELOW))))

    @property
    def verdict(self) -> str:
        """One of "exact", "approximate" and "broken", by the 95th percentile."""
        return _judge(self.p95, EXACT_BELOW, APPROXIMATE_BELOW)


class Support(NamedTuple):
    """Share of mirrored states that lie among the states that rollouts visit, see `rppdyn.envs.certification.certify`.

    Args:
        share: share of the images that lie as near to visited states as 95 % of visited states do; 0.95 for a symmetry of
            everything, 0 where the images are never visited and data can't refute the map.
        worst: the coordinate whose images most often lie more than a standard deviation outside the visited range.
        outside: how often they do.
    """

    share: float
    worst: str
    outside: float


class ResetTest(NamedTuple):
    """A test of whether reset states are distributed as their mirror images; None where there are no resets.

    Args:
        distance: largest Kolmogorov-Smirnov distance over coordinates.
        p_value: its p-value, corrected for the number of coordinates.
        coordinate: where it is.
    """

    distance: float | None = None
    p_value: float | None = None
    coordinate: str = ""


@dataclass(frozen=True)
class GeneratorReport:
    """The verdicts on one generator. What a bare model lacks is None.

    Args:
        name: name of the symmetry.
        expected: the verdict on the dynamics that the spec states, or "".
        state: defect of one step in positions, velocities and activations, relative to the length of the step.
        observation: the same in the raw observation, and of the observation itself, obs(g s) against g obs(s).
        reward: difference of rewards, relative to their standard deviation over the states.
        contact, free: the three defects above over the states in contact and out of it, by name; a defect is left out
            where there are no such states.
        n_states, n_contact: all states, and those in contact.
        termination: share of states that terminate while their mirror images don't, or the reverse.
        reset: comparison of reset states with their mirror images.
        rollout: median over rollouts of the defect after 1, 2, ... steps, in units of a typical step.
        support: how often the mirrored states are visited.
        components: defect of each coordinate, over the states in which it changes, relative to the root mean square of its
            change in a step.
        constant: coordinates that never varied in the sample, so that nothing was learned about them.
        unconstrained: coordinates that the spec leaves free, and so are not counted.
        quantiles: quantiles of each distribution of the figure, at `QUANTILE_LEVELS`.
        left_out: number of further steps by what was wrong with them or with their images: MuJoCo reset the simulation, or an
            observation or reward was not finite. No number above is of these.
        deviations: parameters of the model that keep it from being exact, the largest relative difference first, see
            `rppdyn.envs.derivation`; None where the symmetry is not one that is derived from the model.
    """

    name: str
    expected: str
    state: Defect
    observation: Defect | None
    reward: Defect | None
    contact: dict[str, Defect]
    free: dict[str, Defect]
    n_states: int
    n_contact: int
    termination: float | None
    reset: ResetTest
    rollout: tuple[float, ...]
    support: Support
    components: dict[str, Defect]
    constant: tuple[str, ...]
    unconstrained: tuple[str, ...]
    quantiles: dict[str, tuple[float, ...]]
    left_out: dict[str, int] = field(default_factory=dict)
    deviations: tuple[str, ...] | None = None

    @property
    def dynamics_verdict(self) -> str:
        """The worse of state and observation; exact only where every coordinate is."""
        worst = max(self._verdicts("state") + self._verdicts("observation"), key=VERDICTS.index)
        rare = any(defect.verdict != "exact" for defect in self.components.values())
        return "approximate" if worst == "exact" and rare else worst

    @property
    def defect(self) -> float:
        """Defect of a step that the verdict on the dynamics is about: the largest 95th percentile, of all states, of those in
        contact, and of those out of it.

        Where only rare states keep dynamics from being exact, the root of the share of such states times the largest defect.
        """
        judged = self._judged("state") + self._judged("observation")
        if self.dynamics_verdict == "exact" or max(d.p95 for d in judged) >= EXACT_BELOW:
            return max(d.p95 for d in judged)
        return max(d.max * d.share**0.5 for d in judged)

    @property
    def value_defect(self) -> float:
        """What, beside the dynamics, keeps values from being invariant: reward, and the root of the share of terminations."""
        return max([d.p95 for d in self._judged("reward")] + [(self.termination or 0.0) ** 0.5])

    @property
    def value_verdicts(self) -> list[str]:
        """On the reward and on terminations, as far as there are any."""
        return [verdict for verdict in (self.reward_verdict, self.termination_verdict) if verdict != NOT_DEFINED]

    @property
    def reward_verdict(self) -> str:
        return max(self._verdicts("reward"), key=VERDICTS.index, default=NOT_DEFINED)

    @property
    def keeps_reward(self) -> bool | None:
        """True if the reward changes by no more than the dynamics do (at the 95th percentile); None where there is none.

        An approximate symmetry of the dynamics moves the next state a little, and what the reward says of it. A broken one
        keeps nothing.
        """
        if self.reward is None:
            return None
        return self.dynamics_verdict != "broken" and self.reward.p95 <= max(EXACT_BELOW, self.state.p95)

    @property
    def termination_verdict(self) -> str:
        if self.termination is None:
            return NOT_DEFINED
        return "exact" if self.termination == 0 else _judge(self.termination, 0.0, TERMINATION_BELOW)

    @property
    def reset_verdict(self) -> str:
        if self.reset.p_value is None:
            return NOT_DEFINED
        return "no difference found" if self.reset.p_value > RESET_LEVEL else "not invariant"

    def _judged(self, what: str) -> list[Defect]:
        """Verdict of a defect over all states, those in contact and those out of it; a handful of states has no percentile."""
        if (defect := getattr(self, what)) is None:
            return []
        return [defect, *(by[what] for by, n in self._split if n >= MIN_STATES_TO_JUDGE and what in by)]

    def _verdicts(self, what: str) -> list[str]:
        return [defect.verdict for defect in self._judged(what)]

    @property
    def _split(self) -> tuple[tuple[dict[str, Defect], int], ...]:
        return (self.contact, self.n_contact), (self.free, self.n_states - self.n_contact)

    @property
    def growth(self) -> float | None:
        """Factor by which the defect grows in a step of a rollout, on average; None where it stays zero."""
        if len(self.rollout) < 2:
            return None
        first, last = self.rollout[0], self.rollout[-1]
        return (last / first) ** (1 / (len(self.rollout) - 1)) if first > 0 and last > 0 else None

    def to_dict(self) -> dict:
        """JSON-able content, verdicts included."""
        kinds = ("dynamics", "reward", "termination", "reset")
        return to_plain(self) | {"verdict": {kind: getattr(self, f"{kind}_verdict") for kind in kinds}}


@dataclass(frozen=True)
class Certificate:
    """The verdict of the simulator on a symmetry spec; see `rppdyn.envs.certify`.

    Args:
        env_id: environment that the spec describes.
        model_digest, spec_digest: digests of the compiled model and of the group's action, see
            `rppdyn.envs.certification.certificate`.
        environment: digest of the environment around the model; "" for a bare model, None where it can't be told.
        n_states, seed: number of states and seed of the sample.
        solver: "stock", or "tight" for one that solves contact forces to rounding.
        mujoco: version of the simulator.
        control_scale: share of the actions' range that random actions were drawn from.
        generators: one report per generator of the spec's group, discrete ones first.
        wrappers: class names of the wrappers that steps went through, the outermost first.
        others: certificates of the other symmetries that were found, where no spec was given; the verdicts are not of these.
        refused: a line on each symmetry that was found and could not be certified.
    """

    env_id: str
    model_digest: str
    spec_digest: str
    n_states: int
    seed: int
    solver: str
    mujoco: str
    generators: tuple[GeneratorReport, ...]
    environment: str | None = None
    control_scale: float = 1.0
    wrappers: tuple[str, ...] = ()
    others: tuple[Certificate, ...] = ()
    refused: tuple[str, ...] = ()

    @property
    def reports(self) -> tuple[GeneratorReport, ...]:
        """The reports of the generators, then those of the other symmetries."""
        return self.generators + tuple(report for other in self.others for report in other.generators)

    @property
    def dynamics_verdict(self) -> str:
        """The worst verdict on the dynamics over the generators."""
        return max((g.dynamics_verdict for g in self.generators), key=VERDICTS.index)

    @property
    def reward_verdict(self) -> str:
        """The worst verdict on the reward over the generators; "not defined" for a bare model."""
        return max((g.reward_verdict for g in self.generators), key=(*VERDICTS, NOT_DEFINED).index)

    def to_dict(self) -> dict:
        """JSON-able content."""
        verdict = {"dynamics": self.dynamics_verdict, "reward": self.reward_verdict}
        levels = {"exact_below": EXACT_BELOW, "approximate_below": APPROXIMATE_BELOW}
        reports = {"generators": [g.to_dict() for g in self.generators], "others": [c.to_dict() for c in self.others]}
        return {"format": FORMAT} | to_plain(self) | levels | {"verdict": verdict} | reports

    @classmethod
    def from_dict(cls, data: dict) -> Certificate:
        """The certificate that `to_dict` described.

        Raises:
            ValueError: another format version, a missing key, or one that holds something else.
        """
        if data.get("format") != FORMAT:
            raise ValueError(f"certificate has format {data.get('format')!r}, not {FORMAT}; certify again")
        try:
            return TypeAdapter(cls).validate_python(data)
        except ValidationError as error:
            key = ".".join(map(str, error.errors()[0]["loc"]))
            raise ValueError(f"certificate lacks the key {key!r}, or it holds something else; certify again") from None

    def table(self) -> str:
        """The findings as a table for the terminal, about 80 columns wide."""
        through = f", through {', '.join(self.wrappers)}" if self.wrappers else ""
        lines = [
            f"{self.env_id}: one step from {self.n_states} random states and their mirror images{through}",
            f"model {self.model_digest[:12]}, spec {self.spec_digest[:12]}, seed {self.seed}, {self.solver} solver, "
            f"MuJoCo {self.mujoco}"
            + f", controls at {self.control_scale:g} of their range"
            * (self.control_scale != 1),
        ]
        if len(self.reports) > 1:
            rows = [["symmetry", "dynamics", "p95", "reward", "parameters that deviate"]]
            for g in self.reports:
                count = "" if g.deviations is None else str(len(g.deviations))
                rows.append([g.name, g.dynamics_verdict, f"{g.state.p95:.1e}", g.reward_verdict, count])
            lines += ["", *align(rows)]
        lines += [f"not certified: {line}" for line in self.refused]
        for report in self.reports:
            lines += ["", *_report_lines(report)]
        lines += ["", *LEGEND]
        wrapped = (textwrap.wrap(line, TABLE_WIDTH, subsequent_indent="    ") if len(line) > TABLE_WIDTH else [line]
                   for line in lines)  # fmt: skip
        return "\n".join(part for parts in wrapped for part in parts)

    def figure(self, path: str | os.PathLike[str]) -> Path:
        """Draw the distributions of the defects, the worst components, rollouts and support; the suffix is the format."""
        from rppdyn.envs.certification.figure import draw

        return draw(self, Path(path))

    def __str__(self) -> str:
        return self.table()


def _judge(value: float, exact_below: float, approximate_below: float) -> str:
    if value < exact_below:
        return "exact"
    return "approximate" if value < approximate_below else "broken"


def to_plain(value: Any) -> Any:
    """Dataclasses and named tuples as dictionaries, tuples as lists, all the way down; pydantic reads it again."""
    if is_dataclass(value):
        return {entry.name: to_plain(getattr(value, entry.name)) for entry in fields(value)}
    if hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, dict):
        return {key: to_plain(one) for key, one in value.items()}
    return list(map(to_plain, value)) if isinstance(value, list | tuple) else value


# -- the table --------------------------------------------------------------------------------------------------------


def _report_lines(g: GeneratorReport) -> list[str]:
    stated = f" (stated: {g.expected})" if g.expected in VERDICTS else ""
    heading = f"{g.name}: dynamics {g.dynamics_verdict}{stated}, reward {g.reward_verdict}"
    rows = [["relative defect", "median", "p95", "max", f"> {EXACT_BELOW:g}", "verdict"]]
    for what in ("state", "observation", "reward"):
        defect = getattr(g, what)
        rows.append([what, "", "", "", "", NOT_DEFINED] if defect is None else _row(what, defect))
        for where, (by, n) in zip(("in contact", "out of contact"), g._split, strict=True):
            if what in by:
                rows.append(_row(f"  {where} ({n})", by[what], judged=n >= MIN_STATES_TO_JUDGE))
    share = "" if g.termination is None else f"{g.termination:.1%}"
    rows.append(["termination", "", "", "", share, g.termination_verdict])
    off = sorted(
        (c for c in g.components.items() if c[1].verdict != "exact"), key=lambda c: -np.nan_to_num(c[1].p95, nan=np.inf)
    )
    if off:
        rows.append(["worst coordinates", "", "", "", "", ""])
        rows += [_row(f"  {name}", defect) for name, defect in off[:MAX_COMPONENT_ROWS]]
    lines = [heading, "-" * min(len(heading), TABLE_WIDTH), *_spoilers(g), *align(rows)]
    if g.left_out:
        wrong = "; ".join(f"{n} {what}" for what, n in g.left_out.items())
        count = sum(g.left_out.values())
        lines.append(f"left out: {count} of {g.n_states + count} steps, which are none of the dynamics ({wrong})")
    exact = len(g.components) - len(off)
    if len(off) > MAX_COMPONENT_ROWS:
        lines.append(
            f"  and {len(off) - MAX_COMPONENT_ROWS} coordinates of p95 up to {off[MAX_COMPONENT_ROWS - 1][1].p95:.1e}"
        )
    lines.append(f"coordinates: {exact} of {len(g.components)} exact")
    reset = "" if g.reset.p_value is None else f" (largest KS distance {g.reset.distance:.2f}, {g.reset.coordinate})"
    lines.append(f"reset: {g.reset_verdict}{reset}")
    lines.append(f"along a rollout: {_rollout(g)}")
    support = f"support: {g.support.share:.0%} of mirrored states lie where rollouts go"
    if g.support.outside > 0.05:
        support += f"; {g.support.worst} is far outside in {g.support.outside:.0%}"
    lines.append(support)
    if g.constant:
        lines.append(f"never varied: {_listed(g.constant)}")
    if g.unconstrained:
        lines.append(f"left free: {_listed(g.unconstrained)}")
    return lines


def _spoilers(g: GeneratorReport) -> list[str]:
    """Parameters of the model that spoil a symmetry, or could, by name."""
    if not g.deviations:
        known = g.deviations is not None and g.dynamics_verdict != "exact"
        return ["spoiled by no parameter of the model: all of them agree with it"] if known else []
    more = len(g.deviations) - MAX_DEVIATION_ROWS
    tail = [f"  and {more} more parameters, which differ less"] if more > 0 else []
    heading = "differs in the model, without effect here" if g.dynamics_verdict == "exact" else "spoiled by"
    return [heading, *(f"  {deviation}" for deviation in g.deviations[:MAX_DEVIATION_ROWS]), *tail]


def _row(name: str, defect: Defect, judged: bool = True) -> list[str]:
    verdict = defect.verdict if judged else ""
    return [name, *(f"{x:.1e}" for x in defect[:3]), f"{defect.share:.1%}", verdict]


def _rollout(g: GeneratorReport) -> str:
    steps = [t for t in sorted({1, 10, len(g.rollout)}) if 1 <= t <= len(g.rollout)]
    if not steps:
        return "none lasted a step"
    values, after = (", ".join(part) for part in ([f"{g.rollout[t - 1]:.1e}" for t in steps], map(str, steps)))
    return f"{values} after {after} steps" + (f" (x {g.growth:.2f} a step)" if g.growth else "")


def _listed(names: tuple[str, ...]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more


@dataclass(frozen=True)
class CertifiedShare:
    """The part of a prior that the free pathway is left, by a certificate.

    Attributes:
        defect: d, of one step, at the 95th percentile, of the worst generator; 0 where the symmetry is exact.
        share: d^2, within the bounds of :func:`rppdyn.priors.share_of_defect`.
        verdict: "exact", "approximate" or "broken", of all that counts.
        note: the same in words.
    """

    defect: float
    share: float
    verdict: str
    note: str


def share_of(certificate: Certificate, *, reward: bool = True) -> CertifiedShare:
    """Take the free pathway's share from a certificate; arguments as of :func:`certified_share`."""
    defects = [report.defect for report in certificate.generators]
    verdicts = [report.dynamics_verdict for report in certificate.generators]
    if reward:
        defects += [report.value_defect for report in certificate.generators]
        verdicts += [v for report in certificate.generators for v in report.value_verdicts]
    verdict = max(verdicts, key=VERDICTS.index)
    defect = 0.0 if verdict == "exact" else max(defects)
    share = share_of_defect(0.0 if verdict == "exact" else max(defect, SMALLEST_DEFECT))
    of = "dynamics and reward" if reward else "dynamics"
    note = f"{verdict} ({of} are off by {defect:.2g} of a step)" if share else f"exact ({of} agree to rounding)"
    if share and defect > LARGEST_DEFECT:
        note += f", counted as {LARGEST_DEFECT:g}"
    return CertifiedShare(defect, share, verdict, note)


# -- certificates on disk ----------------------------------------------------------------------------------------------

logger = logging.getLogger(__name__)

# What a model looks like and what its parts are called has no part in how it moves, nor have the boxes around its
# geoms, which follow from the geoms and only say early that two are far apart.
_UNPHYSICAL = ("bvh_", "cam_", "geom_aabb", "light_", "mat_", "tex_", "skin_", "name", "text_", "vis", "_")
_UNPHYSICAL_END = tuple("_rgba _matid _group _pathadr _texcoord _texcoordadr _texcoordnum castshadow _user".split())


def model_digest(model: mujoco.MjModel) -> str:
    """SHA-256 of every physical parameter of a compiled model and its options, hexadecimal; looks and names don't count.

    It is of rounded numbers (`rppdyn.envs.spec`): the same model compiled on another machine has the same digest.
    """
    digest = hashlib.sha256()
    for name, value in [*_parameters(model), *_parameters(model.opt)]:
        if name == "disableactuator" and value:  # groups that count for this option alone
            array = np.array([*model.actuator_group, value])
        else:
            array = np.ascontiguousarray(value)
        if array.dtype == np.float64:
            array = rounded(array)
        digest.update(f"{name} {array.dtype.str} {array.shape}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def environment_digest(env: gym.Env) -> str | None:
    """SHA-256 of what an environment is beside its model; None where that can't be told.

    It is known of one that was made by its id, or of a class of Gymnasium's, with plain options, without wrappers that change
    steps or observations (but for one that flattens dictionaries).
    """
    base: Any = env.unwrapped
    if any(type(layer) is not gym.wrappers.FlattenObservation for layer in acting_wrappers(env)):
        return None
    if base.spec is not None:
        arguments = {key: value for key, value in base.spec.kwargs.items() if key not in DRAWING}
    elif type(base).__module__.startswith("gymnasium.") and hasattr(base, "_ezpickle_kwargs"):
        arguments = {"": base._ezpickle_args, **base._ezpickle_kwargs}
    else:
        return None
    classes = [kind for kind in type(base).__mro__ if kind.__module__ not in ("builtins", "typing", "abc")]
    try:
        files = {inspect.getfile(kind) for kind in classes}
        content = sorted(hashlib.sha256(Path(file).read_bytes()).hexdigest() for file in files)
        names = [f"{kind.__module__}:{kind.__qualname__}" for kind in classes]
        parts = [names, content, arguments, getattr(base, "frame_skip", None)]
        return hashlib.sha256(json.dumps(parts, sort_keys=True, default=_with_dtype).encode()).hexdigest()
    except (OSError, TypeError, ValueError):
        return None


DRAWING = "render_mode width height camera_id camera_name default_camera_config max_geom visual_options".split()
"""Options that say how an environment is drawn."""


def _with_dtype(value: Any) -> Any:
    """Plain data of an option, an array's with its dtype: the same numbers in another precision are another option."""
    return [str(value.dtype), value.tolist()] if hasattr(value, "dtype") else plain(value)


def spec_digest(spec: SymmetrySpec) -> str:
    """SHA-256 of how the group acts, without what is said of its symmetries: that is what a certificate finds out."""
    return replace(spec, symmetries=()).digest


def find_certificate(source: mujoco.MjModel | gym.Env, spec: SymmetrySpec, solver: str = "stock") -> Certificate | None:
    """The stored certificate of a spec for a bare model or an environment, with the whole range of controls, or None."""
    model, environment = digests(source)
    if environment is None:
        return None
    return _read(_path(model, environment, spec_digest(spec), solver, mujoco.__version__, 1.0), Certificate)


def digests(source: mujoco.MjModel | gym.Env) -> tuple[str, str | None]:
    """Digests of the model, "" where there is none, and of the environment around it, "" where there is none."""
    if isinstance(source, mujoco.MjModel):
        return model_digest(source), ""
    model = getattr(source.unwrapped, "model", None)
    return model_digest(model) if isinstance(model, mujoco.MjModel) else "", environment_digest(source)


def save_certificate(certificate: Certificate) -> Path | None:
    """Store a certificate, and those of the other symmetries with it, in the user's cache, in place of earlier ones.

    Returns:
        its file; or None, with a warning, where it can't be written, and for an environment whose wrappers act on steps: what
        they do is no part of the model and the spec that certificates are found by.
    """
    for other in certificate.others:
        save_certificate(other)
    reason = ""
    if certificate.wrappers:
        reason = f"it is of its wrappers too: {', '.join(certificate.wrappers)}"
    elif certificate.environment is None:
        reason = "its options are not known: make it by an id, with plain options"
    if reason:
        logger.warning("the certificate of %s is not stored, for %s", certificate.env_id, reason)
        return None
    certificate = replace(certificate, others=(), refused=())
    c = certificate
    path = _path(c.model_digest, c.environment, c.spec_digest, c.solver, c.mujoco, c.control_scale)
    return path if _is_written(path, certificate.to_dict(), f"the certificate of {certificate.env_id}") else None


def certificate_for(env: gym.Env | mujoco.MjModel, spec: SymmetrySpec) -> tuple[Certificate | None, str]:
    """The stored certificate of a spec for an environment's model, and what keeps one from relying on it.

    Args:
        env: an environment, wrapped or not, or an `mujoco.MjModel`.
    Returns:
        the certificate and "", where every generator is exact or approximate; the certificate and a line that names what
        is broken; or None and a line that says that the spec was not certified, or for another model.
    """
    if not isinstance(env, mujoco.MjModel) and (wrappers := step_wrappers(env)):
        names = ", ".join(type(wrapper).__name__ for wrapper in wrappers)
        return (
            None,
            f"{spec.env_id} has wrappers that no stored certificate covers ({names}): rppdyn.envs.certify judges it",
        )
    if (source := simulated(env)) is None:
        return None, f"{spec.env_id} has no MuJoCo model and no simulator_state, so its spec can't be certified"
    certificate = find_certificate(source, spec)
    if certificate is None:
        if any(_folder().glob(f"{spec_digest(spec)[:32]}-*.json")):
            return None, (
                f"the spec of {spec.env_id} was certified for another model, or other options, than this environment's: "
                "rppdyn.envs.save_certificate(rppdyn.envs.certify(env, spec)) certifies it for this one"
            )
        return None, f"the spec of {spec.env_id} is not certified; run `rppdyn certify` or rppdyn.envs.certify on it"
    broken = [report.name for report in certificate.generators if report.dynamics_verdict == "broken"]
    return certificate, f"{spec.env_id}: the simulator refutes {', '.join(broken)}" if broken else ""


def simulated(env: gym.Env | mujoco.MjModel) -> mujoco.MjModel | gym.Env | None:
    """Find what is to be certified: a model, an environment that has one or says its state, or None."""
    if isinstance(env, mujoco.MjModel) or isinstance(getattr(env.unwrapped, "model", None), mujoco.MjModel):
        return env
    return env if hasattr(env.unwrapped, "simulator_state") else None


def _parameters(owner) -> Iterator[tuple[str, object]]:
    for name in sorted(dir(owner)):
        if name.startswith(_UNPHYSICAL) or name.endswith(_UNPHYSICAL_END):
            continue
        value = getattr(owner, name)
        if isinstance(value, (int, float, np.ndarray)):
            yield name, value


def _folder() -> Path:
    return cache_folder("certificates")


def _path(model: str, environment: str | None, spec: str, solver: str, version: str, scale: float) -> Path:
    parts = [model, environment, spec, solver, version, scale, gym.__version__, __version__, FORMAT]
    key = hashlib.sha256(json.dumps(parts).encode()).hexdigest()
    return _folder() / f"{spec[:32]}-{key[:32]}-{solver}.json"


def _read(path: Path, kind: Any) -> Any:
    """The certificate or spec in a file of the cache; None where there is none, with a warning where it is damaged."""
    if not path.exists():
        return None
    try:
        return kind.from_dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        remedy = "certify again" if kind is Certificate else "it is derived again"
        logger.warning("the stored %s %s is damaged (%s); %s", kind.__name__, path, error, remedy)
        return None


# -- derived specs ------------------------------------------------------------------------------------------------------


def find_or_derive(
    source: mujoco.MjModel | gym.Env, choice: tuple[object, ...], build: Callable[[], SymmetrySpec]
) -> SymmetrySpec:
    """The spec that was derived for the same model and environment, else a new one, which is stored.

    Args:
        choice: what else says which spec it is, plain data.
        build: derives it.
    """
    model: Any = source
    environment: str | None = ""
    wrappers: list[str] = []
    if not isinstance(source, mujoco.MjModel):
        base: Any = source.unwrapped
        model, environment = base.model, environment_digest(source)
        wrappers = [type(layer).__name__ for layer in acting_wrappers(source)]
        if environment is None or "_get_obs" in vars(base):  # a method of this one environment's own
            return build()
    content = np.zeros(mujoco.mj_sizeModel(model), np.uint8)
    mujoco.mj_saveModel(model, None, content)
    versions = [mujoco.__version__, gym.__version__, np.__version__, __version__]
    parts = [choice, environment, wrappers, *versions, _sources()]
    key = hashlib.sha256(json.dumps(parts).encode() + content.tobytes()).hexdigest()
    path = cache_folder("specs") / f"{key}.json"
    if (stored := _read(path, SymmetrySpec)) is not None:
        return stored
    spec = build()
    _is_written(path, spec.to_dict(), f"the spec of {spec.env_id}")
    return spec


def _is_written(path: Path, content: dict[str, Any], what: str) -> bool:
    """Write a file of the cache, or warn that it can't be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps(plain(content, finite=True), allow_nan=False))  # on one line: a tenth of the time
    except OSError as error:
        logger.warning("%s is not stored (%s)", what, error)
        return False
    return True


@cache
def _sources() -> str:
    """SHA-256 of the files that derive specs."""
    files = sorted(Path(__file__).parents[1].rglob("*.py"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
