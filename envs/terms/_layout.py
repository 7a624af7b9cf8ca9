"""Observations and actions as lists of terms: their layout, the action of symmetries on them, and how they are read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
from scipy.linalg import block_diag

from rppdyn.envs._model_symmetry import Affine, ModelSymmetry, Quantity
from rppdyn.envs._spec import Entry, Space, Symmetry, SymmetrySpec
from rppdyn.envs.derivation import Derivation, state_spaces, symmetry_group
from rppdyn.envs.observation._action import common_fixed_point
from rppdyn.envs.terms._robot import Pose, Robot, Scene, choose
from rppdyn.envs.terms._terms import (
    Controls,
    JointPositions,
    JointTorques,
    JointVelocities,
    LastAction,
    Term,
    describe_term,
    parse_term,
)
from rppdyn.runs.files import plain, require_memory

STACKS = ("term", "time")
COEFFICIENT_BYTES = 64  # memory per coefficient of a symmetry's dense matrix, copies included
ACTIONS = (JointPositions, JointVelocities, JointTorques, Controls)


@dataclass(frozen=True, eq=False)
class Layout:
    """One observation group, or the action: terms in order.

    Args:
        name: name for messages.
        robot: the robot.
        terms: the terms, in order.
        stack: order of histories: by "term" (all steps of the first term, then all of the second, as in Isaac Lab) or by
            "time" (all terms of the oldest step, then of the next one).
        symmetries: the symmetries that act.
        action: the layout of the action, which `last_action` shows.
    Raises:
        ValueError: histories of unequal lengths stacked by time, a scale of the wrong length, or an error of a term.
    """

    name: str
    robot: Robot
    terms: tuple[Term, ...]
    symmetries: tuple[ModelSymmetry, ...]
    stack: str = "term"
    action: Layout | None = None

    def __post_init__(self) -> None:
        if not self.terms:
            raise ValueError(f"{self.name} has no terms; list some")
        if self.stack not in STACKS:
            raise ValueError(f"{self.name}: stack={self.stack!r} must be {' or '.join(STACKS)}")
        lengths = {term.title: term.history for term in self.terms}
        if self.stack == "time" and len(set(lengths.values())) > 1:
            listed = ", ".join(f"{title} {length}" for title, length in lengths.items())
            raise ValueError(
                f"{self.name}: histories of unequal lengths can't be stacked by time ({listed}); give all the same"
            )

    @property
    def history(self) -> int:
        """The longest history."""
        return max(term.history for term in self.terms)

    @cached_property
    def bindings(self) -> list[tuple[Quantity, list[int]]]:
        """(quantity, indices of its numbers that are shown) of each term."""
        bindings = []
        for term in self.terms:
            if isinstance(term, LastAction):
                if self.action is None:
                    raise ValueError(f"{self.name}: last_action is no action; name what the policy moves")
                quantity, rows = _last_action_quantity(self.action), list(range(self.action.space.dim))
            else:
                quantity, indices = term.bind(self.robot, self.symmetries)
                rows = list(indices)
            if not rows:
                raise ValueError(f"{self.name}: {term.title} shows no entry; name some, or leave the term out")
            bindings.append((quantity, rows))
        size = sum(len(rows) * term.history for term, (_, rows) in zip(self.terms, bindings, strict=True))
        require_memory(
            f"the symmetry of {self.name}, of {size} numbers,", COEFFICIENT_BYTES * size**2, "show fewer of them"
        )
        return bindings

    def _numbers(self, i: int, key: str) -> np.ndarray:
        """Scale or offset of each number that term i shows."""
        term, (quantity, rows), n = self.terms[i], self.bindings[i], len(self.bindings[i][1])
        value = getattr(term, key)
        if isinstance(value, Mapping):
            names = [quantity.entries[row].joint or quantity.entries[row].name for row in rows]
            value = _match_patterns(f"{self.name}: {term.title}: {key}", value, names, 1.0 if key == "scale" else 0.0)
        numbers = np.asarray(value, dtype=np.float64)
        if numbers.shape not in ((), (n,)):
            raise ValueError(
                f"{self.name}: {term.title} has {numbers.size} numbers as {key} and {n} entries; give one, or {n}"
            )
        if key == "offset" and isinstance(term, JointPositions) and term.relative:
            numbers = numbers + self.robot.default[rows]
        if not np.isfinite(numbers).all() or (key == "scale" and (numbers == 0).any()):
            raise ValueError(
                f"{self.name}: {term.title} has {key} {getattr(term, key)!r}; give finite numbers, and no scale of 0"
            )
        return np.broadcast_to(numbers, (n,))

    @cached_property
    def scales(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """(scale, offset) of each term, one number per entry."""
        return [(self._numbers(i, "scale"), self._numbers(i, "offset")) for i in range(len(self.terms))]

    @cached_property
    def order(self) -> list[tuple[int, int]]:
        """(term, steps ago) of each block of the flat vector."""
        if self.stack == "time":
            return [(i, ago) for ago in reversed(range(self.history)) for i in range(len(self.terms))]
        return [(i, ago) for i, term in enumerate(self.terms) for ago in reversed(range(term.history))]

    def slices(self) -> dict[str, slice]:
        """Slice of each term in the flat vector; if stacked by time, that of the newest step.

        Raises:
            ValueError: two terms have one title.
        """
        titles = [term.title for term in self.terms]
        if repeated := [title for title in titles if titles.count(title) > 1]:
            raise ValueError(f"{self.name}: two terms are called {repeated[0]!r}; give one a label")
        slices: dict[str, slice] = {}
        start = 0
        for i, _ in self.order:
            quantity, rows = self.bindings[i]
            stop = start + (4 if quantity.quaternions else len(rows))
            extends = titles[i] in slices and self.stack == "term"
            slices[titles[i]] = slice(slices[titles[i]].start if extends else start, stop)
            start = stop
        return slices

    @cached_property
    def entries(self) -> tuple[Entry, ...]:
        """Names of the flat vector's numbers."""
        entries: list[Entry] = []
        for i, ago in self.order:
            quantity, rows = self.bindings[i]
            when = f" {ago} ago" if ago else ""
            shown = quantity.entries if quantity.quaternions else [quantity.entries[row] for row in rows]
            entries += [entry._replace(name=entry.name + when) for entry in shown]
        return tuple(entries)

    # -- action of symmetries -----------------------------------------------------------------------------------------

    @cached_property
    def space(self) -> Space:
        """Action of the symmetries on the flat vector.

        Raises:
            ValueError: an entry's image is not observed or not linear, or offsets leave no fixed point.
        """
        actions = [self.action_of(symmetry) for symmetry in self.symmetries]
        place, ago = self._features
        origin = np.zeros(len(place))
        if any(shift.any() for _, shift in actions):
            origin, unfixed = common_fixed_point(self.symmetries, actions, origin)
            if unfixed:
                name = self._name(place[min(unfixed)], ago[min(unfixed)])
                raise ValueError(
                    f"{self.name}: the offset of {name!r} is not kept by "
                    f"{', '.join(s.name for s in self.symmetries)}, which fix no value; change it or the default pose"
                )
        quaternions: list[int] = []
        raw: list[float] = []
        features = 0
        for i, _ in self.order:
            quantity, rows = self.bindings[i]
            if quantity.quaternions:
                quaternions.append(len(raw))
            raw += [0.0] * 4 if quantity.quaternions else origin[features : features + len(rows)].tolist()
            features += len(rows)
        discrete, continuous = (
            [A for s, (A, _) in zip(self.symmetries, actions, strict=True) if s.is_continuous is is_continuous]
            for is_continuous in (False, True)
        )
        return Space(self.entries, discrete, continuous, raw, quaternions=quaternions)

    @cached_property
    def _shown(self) -> list[tuple[int, int]]:
        """(term, index in its quantity) of each feature of one time step."""
        return [(i, row) for i, (_, rows) in enumerate(self.bindings) for row in rows]

    @cached_property
    def _features(self) -> tuple[np.ndarray, np.ndarray]:
        """(index among the features of one time step, steps ago) of each feature of the flat vector."""
        firsts = np.cumsum([0, *(len(rows) for _, rows in self.bindings)])
        places = [np.arange(firsts[i], firsts[i + 1]) for i, _ in self.order]
        return np.concatenate(places), np.repeat([ago for _, ago in self.order], [len(place) for place in places])

    def _name(self, n: int, ago: int = 0, row: int | None = None) -> str:
        """Name of feature n of one time step; with `row`, of another number of its quantity."""
        i, shown_row = self._shown[n]
        quantity = self.bindings[i][0]
        name = quantity.entries[0 if quantity.quaternions else shown_row if row is None else row].name
        return name + (f" {ago} ago" if ago else "")

    def action_of(self, symmetry: ModelSymmetry) -> Affine:
        """A and a on the flat vector of features: those of one time step, repeated for each."""
        step, shift = self._step_action(symmetry)
        place, ago = self._features
        A = np.where(ago[:, None] == ago, step[np.ix_(place, place)], 0.0)
        is_incomplete = (A != 0).sum(1) < (step != 0).sum(1)[place]
        if is_incomplete.any():
            n = int(place[is_incomplete.argmax()])
            source = next(k for k in np.flatnonzero(step[n]) if self._shown[k][0] != self._shown[n][0])
            target, origin = (self.terms[self._shown[k][0]] for k in (n, source))
            raise ValueError(
                f"{self.name}: {symmetry.name} carries {origin.title} to {target.title}; their histories are of unequal "
                f"lengths, {origin.history} and {target.history}; make them equal"
            )
        return A, shift[place]

    def _step_action(self, symmetry: ModelSymmetry) -> Affine:
        """A and a on the features of one time step. Images are looked for in a number's own term first, then in all terms."""
        acts = {quantity.key: quantity.act(symmetry) for quantity, _ in self.bindings}
        scale, offset = (np.concatenate(part) for part in zip(*self.scales, strict=True))
        in_term = {shown: n for n, shown in enumerate(self._shown)}
        in_any_term = {(self.bindings[i][0].key, row): n for n, (i, row) in enumerate(self._shown)}
        step, shift = np.zeros((len(scale),) * 2), np.zeros(len(scale))
        for n, (i, row) in enumerate(self._shown):
            quantity = self.bindings[i][0]
            A, a = acts[quantity.key]
            if np.isnan(A[row]).any():
                raise ValueError(
                    f"{self.name}: what {symmetry.name} makes of {self._name(n)!r} is no linear function; {quantity.why}"
                )
            total = a[row] - (0.0 if symmetry.is_continuous else offset[n])
            for column in map(int, np.flatnonzero(A[row])):
                source = in_term.get((i, column), in_any_term.get((quantity.key, column)))
                if source is None:
                    raise ValueError(
                        f"{self.name}: {symmetry.name} puts {self._name(n, row=column)!r} into {self._name(n)!r}, and the "
                        "observation lacks it; observe it too, or leave out both"
                    )
                step[n, source] = A[row, column] * (scale[n] / scale[source])
                total += A[row, column] * offset[source]
            shift[n] = 0.0 if abs(total) < 1e-12 else total * scale[n]
        return step, shift

    # -- reading ------------------------------------------------------------------------------------------------------

    def read_step(self, scene: Scene) -> list[np.ndarray]:
        """The block of each term at one time step, to be kept for a history."""
        step = []
        for (quantity, rows), (scale, offset) in zip(self.bindings, self.scales, strict=True):
            values = np.asarray(quantity.read(scene), dtype=np.float64)
            step.append(values if quantity.quaternions else (values[rows] - offset) * scale)
        return step

    def stacked(self, steps: Sequence[list[np.ndarray]]) -> np.ndarray:
        """The flat vector, from the results of `read_step` at each time step, the newest last."""
        return np.concatenate([steps[len(steps) - 1 - ago][i] for i, ago in self.order])


def _match_patterns(title: str, values: Mapping[str, float], names: Sequence[str], default: float) -> list[float]:
    """A number for each name, from the one regular expression that matches the full name."""
    numbers = dict.fromkeys(names, default)
    chosen: dict[str, str] = {}
    for pattern, value in values.items():
        for name in choose([pattern], names, "joint or entry"):
            if name in chosen:
                raise ValueError(f"{title}: {chosen[name]!r} and {pattern!r} both match {name!r}; make one narrower")
            chosen[name], numbers[name] = pattern, value
    return [numbers[name] for name in names]


def _last_action_quantity(action: Layout) -> Quantity:
    space = action.space

    def read(scene: Scene) -> np.ndarray:
        if scene.action is None:
            raise ValueError("the scene has no last action; give Scene(action=...)")
        return np.asarray(scene.action)

    return Quantity(
        "last action", tuple(e._replace(name=f"last {e.name}") for e in space.entries), read, action.action_of
    )


def _list_terms(content: Any) -> Sequence[Any]:
    """The terms of an action, which may be one term alone."""
    content = [content] if isinstance(content, str | Mapping | Term) else content
    if not isinstance(content, Sequence):
        raise ValueError(f"action: {content!r} is no list of terms, such as [{{term: joint_positions, scale: 0.25}}]")
    return content


def action_layout(robot: Robot, listed: Sequence[Term] | None, symmetries: Sequence[ModelSymmetry]) -> Layout:
    """The layout of an action: joint targets, torques, velocities, or controls; by default controls, or all joints.

    A target is default + offset + scale * action, whereas an observation is (value - offset) * scale.

    Raises:
        ValueError: a term that is no action, or a joint that two terms move.
    """
    if listed is None:
        listed = [parse_term("controls" if robot.model.nu else "joint_positions")]
    terms = []
    for term in listed:
        if not isinstance(term, ACTIONS):
            kinds = ", ".join(kind.kind for kind in ACTIONS)
            raise ValueError(f"action: {term.kind} is nothing that a policy moves; use {kinds}")
        patterns = term.scale if isinstance(term.scale, Mapping) else None
        scale = np.asarray(term.scale if patterns is None else list(patterns.values()), dtype=np.float64)
        if term.history != 1 or not np.isfinite(scale).all() or (scale == 0).any():
            raise ValueError(f"action: {term.title} has history {term.history} and scale {term.scale!r}; give 1, no 0")
        inverse = (1.0 / scale).tolist()
        terms.append(replace(term, scale=inverse if patterns is None else dict(zip(patterns, inverse, strict=True))))
    layout = Layout("action", robot, tuple(terms), tuple(symmetries))
    moved: set[tuple[Any, int]] = set()
    idle = robot.idle_joints
    for quantity, rows in layout.bindings:
        for row in rows:
            if (quantity.key, row) in moved:
                raise ValueError(f"action: {quantity.entries[row].name!r} is moved twice; leave one out")
            moved.add((quantity.key, row))
            if quantity.entries[row].joint in idle:
                raise ValueError(
                    f"action: no actuator moves the joint {quantity.entries[row].joint!r}; moved are "
                    f"{', '.join(joint for joint in robot.joints if joint not in idle)}"
                )
    return layout


def observation_groups(
    robot: Robot, content: Any, symmetries: Sequence[ModelSymmetry], action: Layout
) -> dict[str, Layout]:
    """Layouts of the observation groups by name; a list of terms is one group with the name "".

    Args:
        content: a list of terms, or groups by name, each a list of terms or a mapping with `terms` and, for all its terms,
            `history` and `stack`.
    """
    groups = content if isinstance(content, Mapping) and "terms" not in content else {"": content}
    layouts = {}
    for name, group in groups.items():
        stack, history = "term", 1
        if isinstance(group, Mapping):
            if unknown := set(group) - {"terms", "history", "stack"}:
                raise ValueError(
                    f"observation group {name!r} has no option {min(map(str, unknown))!r}; use terms, history, stack"
                )
            stack, history, group = str(group.get("stack", "term")), group.get("history", 1), group.get("terms")
        if isinstance(group, str) or not isinstance(group, Sequence):
            raise ValueError(f"observation group {name!r} is {group!r}; give a list of terms")
        title = f"observation {name}".strip()
        try:
            terms = tuple(replace(t, history=history) if t.history == 1 else t for t in map(parse_term, group))
        except ValueError as error:
            raise ValueError(f"{title}: {error}") from error
        layouts[str(name)] = Layout(title, robot, terms, tuple(symmetries), stack, action)
    if not layouts:
        raise ValueError("the observation has no terms; list some")
    return layouts


# -- terms compiled for a model ------------------------------------------------------------------------------------------


FILE_KEYS = ("observation", "action", "symmetry", "base", "default_pose")


@dataclass(frozen=True, eq=False)
class CompiledTerms:
    """A list of terms, compiled for a model.

    Args:
        name: name of the model.
        robot: the model with its base and default pose.
        symmetries: the symmetries that act.
        groups: layouts of the observation groups by name, which is "" for a single list of terms.
        action: the layout of the action.
        spec: the symmetry spec of observation and action.
    """

    name: str
    robot: Robot
    symmetries: tuple[ModelSymmetry, ...]
    groups: Mapping[str, Layout]
    action: Layout
    spec: SymmetrySpec

    @property
    def history(self) -> int:
        """Number of time steps in an observation, the newest included."""
        return max(group.history for group in self.groups.values())

    def read(self, scenes: Iterable[Scene]) -> np.ndarray:
        """The raw observation, all groups in order, from scenes with the newest last; each is read once, in order."""
        steps = [[group.read_step(scene) for group in self.groups.values()] for scene in scenes]
        blocks = zip(self.groups.values(), zip(*steps, strict=True), strict=True)
        return np.concatenate([group.stacked(part) for group, part in blocks])


def compile_terms(
    model: mujoco.MjModel,
    derivation: Derivation,
    names: Sequence[str],
    observation: Any,
    action: Any = None,
    base: str = "",
    default_pose: Pose = None,
    name: str = "model",
) -> CompiledTerms:
    """Compile the terms of a model's observation and action.

    Args:
        model: the robot.
        derivation: the model's symmetries.
        names: names of the symmetries that act.
        observation: a list of terms, or groups of terms by name (see `rppdyn.envs.terms`).
        action: terms of the action; None for the model's controls, or for targets of all joints if it has no controls.
        base: the body of base velocities and scans; by default the one with a free joint.
        default_pose: pose to which positions are relative (`rppdyn.envs.terms.Robot`).
        name: name of the model, for messages.
    Raises:
        ValueError: an unknown term, joint or foot, or an entry whose image is not observed or not linear.
    """
    chosen = tuple(derivation[key] for key in names)
    robot = Robot(model, base, default_pose)
    _ = robot.default  # refuses a wrong pose even if no term uses it
    action_terms = None if action is None else list(map(parse_term, _list_terms(action)))
    acting = action_layout(robot, action_terms, chosen)
    groups = observation_groups(robot, observation, chosen, acting)
    parts = [group.space for group in groups.values()]
    firsts = np.cumsum([0, *(part.dim for part in parts)])
    obs = parts[0] if len(parts) == 1 else Space(
        [e._replace(name=f"{group}: {e.name}") for group, part in zip(groups, parts, strict=True) for e in part.entries],
        [block_diag(*m) for m in zip(*(part.discrete_generators for part in parts), strict=True)],
        [block_diag(*m) for m in zip(*(part.lie_algebra for part in parts), strict=True)],
        [c for part in parts for c in part.origin],
        quaternions=[int(first) + i for first, part in zip(firsts, parts, strict=False) for i in part.quaternions],
    )  # fmt: skip
    state = {key: space for key, space in state_spaces(model, chosen).items() if key != "action"}
    symmetries = tuple(Symmetry(s.name, note=" ".join(f"{d}." for d in s.deviations[:3])) for s in chosen)
    sizes = tuple((group, part.dim) for group, part in zip(groups, parts, strict=True)) if "" not in groups else ()
    pose = plain(dict(default_pose) if isinstance(default_pose, Mapping) else default_pose)
    terms = _describe_terms(groups, action_terms, {"symmetry": list(names), "base": base, "default_pose": pose})
    parts_of_spec: dict[str, Any] = {"symmetries": symmetries, "observation_groups": sizes, "terms": terms, **state}
    spec = SymmetrySpec(name, symmetry_group(chosen), obs, acting.space, **parts_of_spec)
    return CompiledTerms(name, robot, chosen, groups, acting, spec)


def _describe_terms(
    groups: Mapping[str, Layout], action: Sequence[Term] | None, options: Mapping[str, Any]
) -> dict[str, Any] | None:
    """The content of a file of terms (`read_terms`); None if an option of a user's term is no plain data."""
    try:
        observed = {key: {"terms": list(map(describe_term, g.terms)), "stack": g.stack} for key, g in groups.items()}
        acted = {} if action is None else {"action": list(map(describe_term, action))}
    except TypeError:
        return None
    return {"observation": observed.get("", observed), **options, **acted}


def read_terms(path: str | Path) -> dict[str, Any]:
    """Read a YAML file of terms: `observation`, and optionally `action`, `symmetry`, `base` and `default_pose`.

    Raises:
        ValueError: no such file, no YAML, or an unknown key.
    """
    from omegaconf import OmegaConf  # PyYAML reads 3e-4 as a string

    try:
        content = OmegaConf.to_container(OmegaConf.load(path))
    except FileNotFoundError:
        raise ValueError(f"there is no file of terms {str(path)!r}") from None
    except Exception as error:  # YAML readers raise several types
        raise ValueError(f"can't read terms from {path}: {' '.join(str(error).split())}") from None
    if isinstance(content, list):
        content = {"observation": content}
    if not isinstance(content, dict) or "observation" not in content:
        raise ValueError(f"{path} holds no terms; give a list of them, or a mapping with the key observation")
    if unknown := [key for key in content if key not in FILE_KEYS]:
        raise ValueError(f"{path} has an unknown key {unknown[0]!r}; known: {', '.join(FILE_KEYS)}")
    return {str(key): value for key, value in content.items()}
