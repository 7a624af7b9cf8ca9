"""The certificate of a symmetry: defects, verdicts, a table, a dictionary and a figure; and the cache of certificates.

Certificates and derived specs are stored under a digest of all that they depend on (model, environment, versions), so a stored
one is never stale. The digest of an environment covers its options, its frame skip and the source files of its classes.
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
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import mujoco
import numpy as np
from pydantic import TypeAdapter, ValidationError

from rppdyn._version import __version__
from rppdyn.envs._spec import VERDICTS, SymmetrySpec, align, round_for_digest
from rppdyn.envs._wrappers import acting_wrappers, step_wrappers
from rppdyn.priors._likelihood import MAX_DEFECT, MIN_DEFECT, share_of_defect
from rppdyn.runs.files import cache_folder, plain, write_text

FORMAT = 1
MEASUREMENT = 2  # version of what certify measures; stored certificates of an earlier one are not found

EXACT_BELOW = 1e-8
"""A defect is exact if its 95th percentile is below this; rounding gives 1e-14."""

APPROXIMATE_BELOW = 1.0
"""A defect is approximate if its 95th percentile is below this, otherwise broken.

At 1 the mirrored prediction of a step is as wrong as predicting no motion.
"""

TERMINATION_BELOW = 0.05
"""Terminations are approximate if they differ from the mirror image's in less than this share of states."""

RESET_LEVEL = 1e-6
"""Significance level at which a reset distribution is called not invariant (Kolmogorov-Smirnov on every coordinate)."""

QUANTILE_LEVELS = np.linspace(0.0, 1.0, 41)
"""Levels of the quantiles of each distribution that a certificate keeps for its figure."""

MIN_STATES_TO_JUDGE = 20
"""States in contact have a verdict of their own if they are at least this many, and so have states out of contact.

A symmetry may fail in contact only.
"""

MAX_COMPONENT_ROWS = 8  # worst components in the table; the dictionary has all
MAX_DEVIATION_ROWS = 4  # largest deviations of the model in the table; the dictionary has all
TABLE_WIDTH = 80  # characters
NOT_DEFINED = "not defined"

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
    def from_values(cls, values: np.ndarray) -> Defect:
        median, p95 = np.quantile(values, (0.5, 0.95))
        return cls(float(median), float(p95), float(values.max()), float(np.mean(~(values < EXACT_BELOW))))

    @property
    def verdict(self) -> str:
        """One of "exact", "approximate" and "broken", by the 95th percentile."""
        return _judge(self.p95, EXACT_BELOW, APPROXIMATE_BELOW)


class Support(NamedTuple):
    """How often rollouts visit mirrored states, see `rppdyn.envs.certification._certify`.

    Args:
        share: share of images as near to visited states as 95 % of visited states are. It is 0.95 if dynamics, resets and
            policy are symmetric, and 0 if images are never visited, so that data can't refute the map.
        worst: coordinate whose images most often lie more than a standard deviation outside the visited range.
        outside: share of the images for which it does.
    """

    share: float
    worst: str
    outside: float


class ResetTest(NamedTuple):
    """A test whether reset states are distributed as their mirror images; None for a bare model, which has no resets.

    Args:
        distance: Kolmogorov-Smirnov distance of the coordinate with the smallest p-value.
        p_value: its p-value, corrected for the number of coordinates.
        coordinate: name of the coordinate.
    """

    distance: float | None = None
    p_value: float | None = None
    coordinate: str = ""


@dataclass(frozen=True)
class GeneratorReport:
    """The verdicts on one generator; fields that a bare model lacks are None.

    Args:
        name: name of the symmetry.
        expected: verdict on the dynamics that the spec states, or "".
        state: defect of one step in positions, velocities and activations, relative to the length of the step.
        observation: the same for the raw observation; includes the difference of obs(g s) and g obs(s).
        reward: difference of rewards, relative to their standard deviation over the states.
        contact, free: the three defects above, by name, over states in contact and out of contact; empty without such states.
        n_states, n_contact: number of states, and of states in contact.
        termination: share of states that terminate while their mirror images don't, or the reverse.
        reset: comparison of reset states with their mirror images.
        rollout: median over rollouts of the defect after 1, 2, ... steps, in units of a typical step.
        support: how often rollouts visit the mirrored states.
        components: defect of each coordinate over the states in which it changes, relative to its change in a step (root mean
            square).
        constant: coordinates that did not vary in the sample and so were not tested.
        unconstrained: coordinates that the spec leaves free; they are not counted.
        quantiles: quantiles of each distribution of the figure, at `QUANTILE_LEVELS`.
        left_out: number of steps that no number above counts, by reason. MuJoCo reset the simulation, or an observation or
            reward was not finite, in the step or in its mirror image.
        deviations: parameters of the model that keep the symmetry from being exact, the largest relative difference first
            (`rppdyn.envs.derivation`); None if the symmetry is not derived from the model.
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
        """The worse verdict of state and observation; exact only if every coordinate is."""
        worst = max(self._verdicts("state") + self._verdicts("observation"), key=VERDICTS.index)
        inexact = any(defect.verdict != "exact" for defect in self.components.values())
        return "approximate" if worst == "exact" and inexact else worst

    @property
    def defect(self) -> float:
        """Defect of a step that decides the verdict on the dynamics: the largest 95th percentile of those judged.

        If only rare states are not exact, it is their largest defect times the square root of their share.
        """
        defects = self._judged_defects("state") + self._judged_defects("observation")
        if self.dynamics_verdict == "exact" or max(d.p95 for d in defects) >= EXACT_BELOW:
            return max(d.p95 for d in defects)
        return max(d.max * d.share**0.5 for d in defects)

    @property
    def value_defect(self) -> float:
        """Defect of rewards and terminations: the larger of the reward's and the square root of `termination`."""
        return max([d.p95 for d in self._judged_defects("reward")] + [(self.termination or 0.0) ** 0.5])

    @property
    def value_verdicts(self) -> list[str]:
        """Verdicts on the reward and on terminations, without those that are not defined."""
        return [verdict for verdict in (self.reward_verdict, self.termination_verdict) if verdict != NOT_DEFINED]

    @property
    def reward_verdict(self) -> str:
        return max(self._verdicts("reward"), key=VERDICTS.index, default=NOT_DEFINED)

    @property
    def keeps_reward(self) -> bool | None:
        """True if the reward differs by no more than the dynamics do (at the 95th percentile); None without a reward.

        Under an approximate symmetry of the dynamics the next state differs a little, and so does its reward.
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

    def _judged_defects(self, name: str) -> list[Defect]:
        """A defect over all states, those in contact and those out of contact; few states have no percentile."""
        if (defect := getattr(self, name)) is None:
            return []
        return [defect, *(by[name] for by, n in self._by_contact if n >= MIN_STATES_TO_JUDGE and name in by)]

    def _verdicts(self, name: str) -> list[str]:
        return [defect.verdict for defect in self._judged_defects(name)]

    @property
    def _by_contact(self) -> tuple[tuple[dict[str, Defect], int], ...]:
        return (self.contact, self.n_contact), (self.free, self.n_states - self.n_contact)

    @property
    def growth(self) -> float | None:
        """Mean factor by which the defect grows in a step of a rollout; None if it is zero or the rollout too short."""
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
        model_digest, spec_digest: digests of the compiled model and of the group's action (functions of these names).
        environment: digest of the environment around the model; "" for a bare model, None if it is not known.
        n_states, seed: number of states and seed of the sample.
        solver: "stock", or "tight" for one that solves contact forces to rounding.
        mujoco: version of MuJoCo.
        control_scale: share of the actions' range from which random actions were drawn.
        generators: one report per generator of the spec's group, discrete ones first.
        wrappers: class names of the environment's wrappers, the outermost first.
        others: certificates of other derived symmetries, if no spec was given; the verdicts don't count them.
        refused: a line on each symmetry that was found but could not be certified.
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
        """The certificate of a dictionary that `to_dict` returned.

        Raises:
            ValueError: another format version, or a key that is missing or holds something else.
        """
        version = data.get("format") if isinstance(data, dict) else None
        if version != FORMAT:
            raise ValueError(f"certificate has format {version!r}, not {FORMAT}; certify again")
        try:
            return TypeAdapter(cls).validate_python(data)
        except ValidationError as error:
            key = ".".join(map(str, error.errors()[0]["loc"]))
            raise ValueError(f"certificate lacks the key {key!r}, or it holds something else; certify again") from None

    def table(self) -> str:
        """Table of the verdicts and defects for a terminal, about 80 columns wide."""
        through = f", through {', '.join(self.wrappers)}" if self.wrappers else ""
        scaled = "" if self.control_scale == 1 else f", controls at {self.control_scale:g} of their range"
        lines = [
            f"{self.env_id}: one step from {self.n_states} random states and their mirror images{through}",
            f"model {self.model_digest[:12] or '-'}, spec {self.spec_digest[:12]}, seed {self.seed}, {self.solver} solver, "
            f"MuJoCo {self.mujoco}{scaled}",
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
        wrap = partial(textwrap.wrap, width=TABLE_WIDTH, subsequent_indent="    ")
        # rows of tables, which have gaps, stay whole
        wrapped = ([line] if "  " in line.strip() else wrap(line) or [""] for line in lines)
        return "\n".join(part for parts in wrapped for part in parts)

    def figure(self, path: str | os.PathLike[str]) -> Path:
        """Draw the distributions of defects, the worst components, rollouts and support; the path's suffix names the format."""
        from rppdyn.envs.certification._figure import draw

        return draw(self, Path(path))

    def __str__(self) -> str:
        return self.table()


def _judge(value: float, exact_below: float, approximate_below: float) -> str:
    if value < exact_below:
        return "exact"
    return "approximate" if value < approximate_below else "broken"


def to_plain(value: Any) -> Any:
    """Turn dataclasses and named tuples into dictionaries, and tuples into lists, recursively; pydantic reads them again."""
    if is_dataclass(value):
        return {entry.name: to_plain(getattr(value, entry.name)) for entry in fields(value)}
    if hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, dict):
        return {key: to_plain(item) for key, item in value.items()}
    return list(map(to_plain, value)) if isinstance(value, list | tuple) else value


# -- the table --------------------------------------------------------------------------------------------------------


def _report_lines(g: GeneratorReport) -> list[str]:
    stated = f" (stated: {g.expected})" if g.expected in VERDICTS else ""
    heading = f"{g.name}: dynamics {g.dynamics_verdict}{stated}, reward {g.reward_verdict}"
    rows = [["relative defect", "median", "p95", "max", f"> {EXACT_BELOW:g}", "verdict"]]
    for name in ("state", "observation", "reward"):
        defect = getattr(g, name)
        rows.append([name, "", "", "", "", NOT_DEFINED] if defect is None else _defect_row(name, defect))
        for where, (by, n) in zip(("in contact", "out of contact"), g._by_contact, strict=True):
            if name in by:
                rows.append(_defect_row(f"  {where} ({n})", by[name], judged=n >= MIN_STATES_TO_JUDGE))
    share = "" if g.termination is None else f"{g.termination:.1%}"
    rows.append(["termination", "", "", "", share, g.termination_verdict])
    inexact = [(name, defect) for name, defect in g.components.items() if defect.verdict != "exact"]
    inexact.sort(key=lambda item: -np.nan_to_num(item[1].p95, nan=np.inf))
    if inexact:
        rows.append(["worst coordinates", "", "", "", "", ""])
        rows += [_defect_row(f"  {name}", defect) for name, defect in inexact[:MAX_COMPONENT_ROWS]]
    lines = [heading, "-" * min(len(heading), TABLE_WIDTH), *_deviation_lines(g), *align(rows)]
    if g.left_out:
        reasons = "; ".join(f"{n} {reason}" for reason, n in g.left_out.items())
        count = sum(g.left_out.values())
        lines.append(f"left out: {count} of {g.n_states + count} steps, which are none of the dynamics ({reasons})")
    if (more := len(inexact) - MAX_COMPONENT_ROWS) > 0:
        lines.append(f"  and {more} coordinates of p95 up to {inexact[MAX_COMPONENT_ROWS - 1][1].p95:.1e}")
    lines.append(f"coordinates: {len(g.components) - len(inexact)} of {len(g.components)} exact")
    reset = "" if g.reset.p_value is None else f" (largest KS distance {g.reset.distance:.2f}, {g.reset.coordinate})"
    lines.append(f"reset: {g.reset_verdict}{reset}")
    lines.append(f"along a rollout: {_rollout_text(g)}")
    support = f"support: {g.support.share:.0%} of mirrored states lie where rollouts go"
    if g.support.outside > 0.05:
        support += f"; {g.support.worst} is far outside in {g.support.outside:.0%}"
    lines.append(support)
    if g.constant:
        lines.append(f"never varied: {_shorten(g.constant)}")
    if g.unconstrained:
        lines.append(f"left free: {_shorten(g.unconstrained)}")
    return lines


def _deviation_lines(g: GeneratorReport) -> list[str]:
    """Lines on the parameters of the model that deviate from the symmetry."""
    if not g.deviations:
        is_unexplained = g.deviations is not None and g.dynamics_verdict != "exact"
        return ["spoiled by no parameter of the model: all of them agree with it"] if is_unexplained else []
    more = len(g.deviations) - MAX_DEVIATION_ROWS
    tail = [f"  and {more} more parameters, which differ less"] if more > 0 else []
    heading = "differs in the model, without effect here" if g.dynamics_verdict == "exact" else "spoiled by"
    return [heading, *(f"  {deviation}" for deviation in g.deviations[:MAX_DEVIATION_ROWS]), *tail]


def _defect_row(name: str, defect: Defect, judged: bool = True) -> list[str]:
    verdict = defect.verdict if judged else ""
    return [name, *(f"{x:.1e}" for x in defect[:3]), f"{defect.share:.1%}", verdict]


def _rollout_text(g: GeneratorReport) -> str:
    steps = [t for t in sorted({1, 10, len(g.rollout)}) if 1 <= t <= len(g.rollout)]
    if not steps:
        return "none lasted a step"
    values, after = (", ".join(part) for part in ([f"{g.rollout[t - 1]:.1e}" for t in steps], map(str, steps)))
    return f"{values} after {after} steps" + (f" (x {g.growth:.2f} a step)" if g.growth else "")


def _shorten(names: tuple[str, ...]) -> str:
    """The first three names and the number of the others."""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more


@dataclass(frozen=True)
class CertifiedShare:
    """The share of the prior variance that a certificate assigns to the free pathway.

    Attributes:
        defect: d, the defect of one step of the worst generator at the 95th percentile; 0 if the symmetry is exact.
        share: d^2, within the bounds of :func:`rppdyn.priors.share_of_defect`.
        verdict: worst of the verdicts that count, "exact", "approximate" or "broken".
        note: verdict and defect in words.
    """

    defect: float
    share: float
    verdict: str
    note: str


def share_of(certificate: Certificate, *, reward: bool = True) -> CertifiedShare:
    """Compute the free pathway's share from a certificate; `reward` as in :func:`certified_share`."""
    defects = [report.defect for report in certificate.generators]
    verdicts = [report.dynamics_verdict for report in certificate.generators]
    if reward:
        defects += [report.value_defect for report in certificate.generators]
        verdicts += [v for report in certificate.generators for v in report.value_verdicts]
    verdict = max(verdicts, key=VERDICTS.index)
    defect = 0.0 if verdict == "exact" else max(defects)
    share = share_of_defect(0.0 if verdict == "exact" else max(defect, MIN_DEFECT))
    subject = "dynamics and reward" if reward else "dynamics"
    note = (
        f"{verdict} ({subject} are off by {defect:.2g} of a step)" if share else f"exact ({subject} agree to rounding)"
    )
    if share and defect > MAX_DEFECT:
        note += f", counted as {MAX_DEFECT:g}"
    return CertifiedShare(defect, share, verdict, note)


# -- certificates on disk ----------------------------------------------------------------------------------------------

logger = logging.getLogger(__name__)

# Prefixes and suffixes of attributes that don't change a model's motion: looks, names, and bounding boxes, which follow from
# the geoms.
_UNPHYSICAL = ("bvh_", "cam_", "geom_aabb", "light_", "mat_", "tex_", "skin_", "name", "text_", "vis", "_")
_UNPHYSICAL_END = tuple("_rgba _matid _group _pathadr _texcoord _texcoordadr _texcoordnum castshadow _user".split())


def model_digest(model: mujoco.MjModel) -> str:
    """SHA-256 of all physical parameters and options of a compiled model, hexadecimal; looks and names don't count.

    Numbers are rounded (`rppdyn.envs._spec`), so the same model compiled on another machine has the same digest.
    """
    digest = hashlib.sha256()
    for name, value in [*_parameters(model), *_parameters(model.opt)]:
        if name == "disableactuator" and value:  # only this option uses the actuators' groups
            array = np.array([*model.actuator_group, value])
        else:
            array = np.ascontiguousarray(value)
        if array.dtype == np.float64:
            array = round_for_digest(array)
        digest.update(f"{name} {array.dtype.str} {array.shape}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def model_bytes(model: mujoco.MjModel) -> bytes:
    """All numbers and names of a compiled model, exactly."""
    content = np.zeros(mujoco.mj_sizeModel(model), np.uint8)
    mujoco.mj_saveModel(model, None, content)
    return content.tobytes()


def environment_digest(env: gym.Env) -> str | None:
    """SHA-256 of an environment's options, frame skip and source files; None if these are not known.

    They are known of an environment that was made by its id, or whose class is Gymnasium's, with plain options. No wrapper may
    change steps or observations, except for one that flattens dictionaries.
    """
    base: Any = env.unwrapped
    if any(type(layer) is not gym.wrappers.FlattenObservation for layer in acting_wrappers(env)):
        return None
    if base.spec is not None:
        arguments = {key: value for key, value in base.spec.kwargs.items() if key not in RENDER_OPTIONS}
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
        # Arrays are written with their dtype: the same numbers in another precision are another option.
        encode = lambda value: [str(value.dtype), value.tolist()] if hasattr(value, "dtype") else plain(value)  # noqa: E731
        return hashlib.sha256(json.dumps(parts, sort_keys=True, default=encode).encode()).hexdigest()
    except (OSError, TypeError, ValueError):
        return None


RENDER_OPTIONS = "render_mode width height camera_id camera_name default_camera_config max_geom visual_options".split()
"""Options of an environment that only change how it is drawn."""


def spec_digest(spec: SymmetrySpec) -> str:
    """SHA-256 of a group's action, without the spec's verdicts, which a certificate replaces."""
    return replace(spec, symmetries=()).digest


def find_certificate(source: mujoco.MjModel | gym.Env, spec: SymmetrySpec, solver: str = "stock") -> Certificate | None:
    """The stored certificate of a spec for a bare model or an environment, at full controls; None without one."""
    model, environment = digests(source)
    if environment is None:
        return None
    path = _certificate_path(model, environment, spec_digest(spec), solver, mujoco.__version__, 1.0)
    return _read_cache(path, Certificate)


def digests(source: mujoco.MjModel | gym.Env) -> tuple[str, str | None]:
    """(digest of the model, digest of the environment around it); "" for one that is missing, None if not known."""
    if isinstance(source, mujoco.MjModel):
        return model_digest(source), ""
    model = getattr(source.unwrapped, "model", None)
    return model_digest(model) if isinstance(model, mujoco.MjModel) else "", environment_digest(source)


def save_certificate(certificate: Certificate) -> Path | None:
    """Store a certificate and those in `others` in the user's cache; earlier ones are replaced.

    Returns:
        its file; None, with a warning, if it can't be written, or if the environment's wrappers act on steps or its options are
        not known: a stored certificate is identified by model, environment and spec alone.
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
    path = _certificate_path(c.model_digest, c.environment, c.spec_digest, c.solver, c.mujoco, c.control_scale)
    return path if _write_cache(path, certificate.to_dict(), f"the certificate of {certificate.env_id}") else None


def certificate_for(env: gym.Env | mujoco.MjModel, spec: SymmetrySpec) -> tuple[Certificate | None, str]:
    """The stored certificate of a spec for an environment's model, and a reason not to rely on it.

    Args:
        env: an environment, wrapped or not, or an `mujoco.MjModel`.
    Returns:
        (certificate, "") if every generator is exact or approximate; (certificate, line that names broken generators); or
        (None, line that says why there is none).
    """
    if not isinstance(env, mujoco.MjModel) and (wrappers := step_wrappers(env)):
        names = ", ".join(type(wrapper).__name__ for wrapper in wrappers)
        reason = (
            f"{spec.env_id} has wrappers that no stored certificate covers ({names}): rppdyn.envs.certify judges it"
        )
        return None, reason
    if (source := certifiable_source(env)) is None:
        return None, f"{spec.env_id} has no MuJoCo model and no simulator_state, so its spec can't be certified"
    certificate = find_certificate(source, spec)
    if certificate is None:
        if any(cache_folder("certificates").glob(f"{spec_digest(spec)[:32]}-*.json")):
            return None, (
                f"the spec of {spec.env_id} was certified for another model, or other options, than this environment's: "
                "rppdyn.envs.save_certificate(rppdyn.envs.certify(env, spec)) certifies it for this one"
            )
        return None, f"the spec of {spec.env_id} is not certified; run `rppdyn certify` or rppdyn.envs.certify on it"
    broken = [report.name for report in certificate.generators if report.dynamics_verdict == "broken"]
    return certificate, f"{spec.env_id}: the simulator refutes {', '.join(broken)}" if broken else ""


def certifiable_source(env: gym.Env | mujoco.MjModel) -> mujoco.MjModel | gym.Env | None:
    """The model or environment itself if it can be certified: it has a MuJoCo model or a `simulator_state`; else None."""
    if isinstance(env, mujoco.MjModel) or isinstance(getattr(env.unwrapped, "model", None), mujoco.MjModel):
        return env
    return env if hasattr(env.unwrapped, "simulator_state") else None


def _parameters(owner) -> Iterator[tuple[str, object]]:
    """(name, value) of the physical parameters of a model or of its options."""
    for name in sorted(dir(owner)):
        if name.startswith(_UNPHYSICAL) or name.endswith(_UNPHYSICAL_END):
            continue
        value = getattr(owner, name)
        if isinstance(value, (int, float, np.ndarray)):
            yield name, value


def _certificate_path(model: str, environment: str | None, spec: str, solver: str, version: str, scale: float) -> Path:
    parts = [model, environment, spec, solver, version, scale, gym.__version__, __version__, FORMAT, MEASUREMENT]
    key = hashlib.sha256(json.dumps(parts).encode()).hexdigest()
    return cache_folder("certificates") / f"{spec[:32]}-{key[:32]}-{solver}.json"


def _read_cache(path: Path, kind: Any) -> Any:
    """Read a certificate or spec from the cache; None without a file, and with a warning if the file is damaged."""
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
    """The stored spec for a model and environment; without one, derive it and store it.

    Args:
        choice: options of the derivation, plain data.
        build: function that derives the spec.
    """
    model: Any = source
    environment: str | None = ""
    wrappers: list[str] = []
    if not isinstance(source, mujoco.MjModel):
        base: Any = source.unwrapped
        model, environment = base.model, environment_digest(source)
        wrappers = [type(layer).__name__ for layer in acting_wrappers(source)]
        if environment is None or "_get_obs" in vars(base):  # a method of this instance, which no digest covers
            return build()
    versions = [mujoco.__version__, gym.__version__, np.__version__, __version__]
    parts = [choice, environment, wrappers, *versions, _source_digest()]
    key = hashlib.sha256(json.dumps(parts).encode() + model_bytes(model)).hexdigest()
    path = cache_folder("specs") / f"{key}.json"
    if (stored := _read_cache(path, SymmetrySpec)) is not None:
        return stored
    spec = build()
    _write_cache(path, spec.to_dict(), f"the spec of {spec.env_id}")
    return spec


def _write_cache(path: Path, content: dict[str, Any], title: str) -> bool:
    """Write a file of the cache; return False, with a warning, if it can't be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps(plain(content, finite=True), allow_nan=False))  # unindented: ten times as fast
    except OSError as error:
        logger.warning("%s is not stored (%s)", title, error)
        return False
    return True


@cache
def _source_digest() -> str:
    """SHA-256 of the source files that derive specs."""
    files = sorted(Path(__file__).parents[1].rglob("*.py"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
