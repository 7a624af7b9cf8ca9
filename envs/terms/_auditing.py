"""Audit a user's map of observations and actions: is it a representation, and is it the symmetry of the robot?

An audit answers three questions. Do the map's images multiply as the group's elements do (a mirror twice is the identity)? Is
each entry of an image the one derived from the model? Does the simulator, stepped from mirrored states, agree?
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch

from rppdyn.envs._spec import Space, SymmetrySpec, align, describe_row
from rppdyn.envs.terms._layout import CompiledTerms
from rppdyn.envs.terms._simulator import TermSteps, step_terms
from rppdyn.runs.files import plain

SIMULATOR_TOLERANCE = 1e-6  # difference of simulator and derivation, relative to an entry's spread
MAX_TABLE_ROWS = 60  # wrong entries that a table lists
COEFFICIENT_TOLERANCE = 1e-5  # difference of equal coefficients; maps are often float32
OBSERVATION_ARGUMENTS = ("obs", "observations", "observation")


@dataclass(frozen=True)
class WrongEntry:
    """An entry of the mirrored vector that is not the derived one.

    Args:
        space: "observation" or "action".
        element: name of the symmetry.
        index, name: index and name of the entry.
        found, right: the map's image and the derived one, for instance ``-[5]``.
        defect: error of the map in the simulator, relative to the entry's spread; NaN if not stepped, or if it did not vary.
    """

    space: str
    element: str
    index: int
    name: str
    found: str
    right: str
    defect: float


@dataclass(frozen=True)
class Audit:
    """The result of an audit.

    Args:
        name: name of the map.
        elements: names of the symmetries of its images.
        relations: error of the map in each relation of the group.
        wrong: entries that are not the derived ones.
        worst: largest defect in the simulator of the right entries, which tests the derivation itself.
        entries: number of entries of observation and action.
        states: number of states that were stepped.
        notes: further lines for the table.
    """

    name: str
    elements: tuple[str, ...]
    relations: dict[str, float]
    wrong: tuple[WrongEntry, ...]
    worst: float
    entries: dict[str, int]
    states: int = 0
    notes: tuple[str, ...] = field(default=())

    @property
    def is_representation(self) -> bool:
        """True if the map's images multiply as the group's elements do."""
        return all(defect < COEFFICIENT_TOLERANCE for defect in self.relations.values())

    @property
    def is_right(self) -> bool:
        """True if the map is a representation and every entry is the derived one."""
        return self.is_representation and not self.wrong

    def table(self) -> str:
        """The verdict, and a line for each wrong entry with its right value."""
        sizes = " and ".join(f"{n} entries of the {space}" for space, n in self.entries.items())
        stepped = f"{self.states} states in the simulator" if self.states else "beside a contract, without a simulator"
        lines = [f"{self.name}: {', '.join(self.elements)}; {sizes}; {stepped}"]
        for relation, defect in self.relations.items():
            lines.append(f"{relation}: {'yes' if defect < COEFFICIENT_TOLERANCE else f'no, off by {defect:.2g}'}")
        lines += self.notes
        if not self.wrong:
            agrees = f"derived one; the simulator agrees to {self.worst:.1e} of an entry's spread"
            return "\n".join([*lines, f"every entry is the {agrees if self.states else 'one of the contract'}"])
        wrong = self.wrong[:MAX_TABLE_ROWS]
        columns = {"symmetry": [w.element for w in wrong], "space": [w.space for w in wrong]}
        columns = {title: cells for title, cells in columns.items() if len(set(cells)) > 1}
        columns |= {
            "index": [str(w.index) for w in wrong],
            "entry": [w.name for w in wrong],
            "map": [w.found for w in wrong],
            "right": [w.right for w in wrong],
            "defect": ["-" if np.isnan(w.defect) else f"{w.defect:.2g}" for w in wrong],
        }
        parts = [*dict.fromkeys(f"{w.space} under {w.element}" for w in self.wrong)]
        total = sum(self.entries.values()) * len(self.elements)
        lines += [f"{len(self.wrong)} of {total} entries are wrong: {', '.join(parts)}", ""]
        lines += align([[*columns], *zip(*columns.values(), strict=True)])
        if len(self.wrong) > MAX_TABLE_ROWS:
            lines.append(f"and {len(self.wrong) - MAX_TABLE_ROWS} more")
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.table()

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        verdicts = {"is_right": self.is_right, "is_representation": self.is_representation}
        return plain(asdict(self) | verdicts, finite=True)


def audit(
    function: Callable[..., Any],
    compiled: CompiledTerms | SymmetrySpec,
    *,
    actions: Callable[..., Any] | None = None,
    states: int = 40,
    seed: int = 0,
    name: str = "",
) -> Audit:
    """Audit a map of observations, and of actions.

    Args:
        function: maps observations (n, dim) to their images, or to the observations followed by their images, as a tensor; or
            has the signature of trainers, `f(env=..., obs=..., actions=...)`, and returns both.
        compiled: the terms of observation and action (`rppdyn.envs.compiled_terms`); or a spec, such as that of a policy's
            `symmetry.json`, without a simulator.
        actions: maps actions in the same way, if `function` does not.
        states: number of states from which the simulator is stepped.
        seed: seed of these states.
        name: title of the map in the table.
    Raises:
        ValueError: the function raises an error, returns another shape or is not affine, or the symmetry acts on rotation
            matrices only.
    """
    spec = compiled if isinstance(compiled, SymmetrySpec) else compiled.spec
    name = name or getattr(function, "__name__", "the map")
    maps: dict[str, list[np.ndarray]] = {}
    arguments = _trainer_arguments(function)
    spaces: dict[str, Space] = {"observation": spec.obs, "action": spec.action}
    for key, space in spaces.items():
        if not space.encoding.is_identity:
            raise ValueError(
                f"{name}: {', '.join(spec.generator_names)} act on the rotation matrix of the {key}'s quaternion, not linearly "
                "on it; audit a mirror, or leave the quaternion out"
            )
    maps["observation"] = _probe(
        _call(function, spec, name, "observation", arguments), spec.obs.dim, name, "observation"
    )
    if actions is not None or "actions" in arguments:
        source, names = (function, arguments) if actions is None else (actions, _trainer_arguments(actions))
        maps["action"] = _probe(_call(source, spec, name, "action", names), spec.action.dim, name, "action")
    elements = {key: _elements(spec, space) for key, space in spaces.items()}
    steps: dict[str, TermSteps] = {}
    if isinstance(compiled, CompiledTerms):
        steps = dict(zip(spec.generator_names, step_terms(compiled, states=states, seed=seed), strict=True))
    relations: dict[str, float] = {}
    wrong: list[WrongEntry] = []
    worst = 0.0
    audited: list[str] = []
    for key, images in maps.items():
        space, derived = spaces[key], elements[key]
        titles = _match(images, derived)
        audited = audited or titles
        relations |= {f"{key}: {relation}": defect for relation, defect in _relations(images, titles, derived).items()}
        for image, title in zip(images, titles, strict=True):
            defect = _defects(image, key, steps.get(title), space)
            differs = (np.abs(image - derived[title]) > COEFFICIENT_TOLERANCE).any(1)[:-1]
            worst = max(worst, float(np.nanmax(np.where(differs, np.nan, defect), initial=0.0)))
            for i in np.flatnonzero(differs):
                found, right = (_describe(m[i]) for m in (image, derived[title]))
                wrong.append(WrongEntry(key, title, int(i), space.entries[i].name, found, right, float(defect[i])))
    notes = []
    if missing := [title for title in elements["observation"] if title not in audited]:
        notes.append(f"the map leaves out {', '.join(missing)}")
    for title, stepped in steps.items():
        if stepped.left_out:
            notes.append(
                f"{title}: {stepped.left_out} of {states} steps are left out, whose contacts MuJoCo does not mirror (as those "
                "of meshes)"
            )
    if worst > SIMULATOR_TOLERANCE:
        notes.append(f"the simulator disagrees with the derivation by {worst:.1e}: trust neither, look at the model")
    sizes = {key: spaces[key].dim for key in maps}
    return Audit(name, tuple(audited), relations, tuple(wrong), worst, sizes, states if steps else 0, tuple(notes))


def _affine(matrix: np.ndarray, shift: np.ndarray) -> np.ndarray:
    """The matrix [[A, b], [0, 1]] of x' = A x + b on (x, 1)."""
    return np.block([[matrix, shift[:, None]], [np.zeros_like(shift), np.ones(1)]])


def _distance(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.abs(a - b).max())


def _trainer_arguments(function: Callable[..., Any]) -> set[str]:
    """Names of a function's arguments if it has the signature of trainers, otherwise none."""
    try:
        names = set(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        names = set()
    return names if "actions" in names and names & set(OBSERVATION_ARGUMENTS) else set()


def _call(function, spec: SymmetrySpec, name: str, key: str, names: set[str]) -> Callable[[torch.Tensor], Any]:
    """The function of observations or of actions alone, given the names of its arguments."""

    def call(x: torch.Tensor) -> Any:
        try:
            if not names:
                return function(x)
            observed = next(argument for argument in OBSERVATION_ARGUMENTS if argument in names)
            arguments: dict[str, Any] = {"env": None} if "env" in names else {}
            arguments |= {observed: x if key == "observation" else None, "actions": x if key == "action" else None}
            if "obs_type" in names:
                arguments["obs_type"] = "policy"
            result = function(**arguments)
        except (Exception, SystemExit) as error:
            message = " ".join(str(error).split())[:200]
            raised = f"{name} raises {type(error).__name__} for the {key} {tuple(x.shape)}"
            raise ValueError(
                f"{raised}: {message}" if message else f"{raised}; call it on such a batch to see where"
            ) from error
        if not isinstance(result, tuple | list) or len(result) != 2:
            raise ValueError(
                f"{name} returns {_kind(result)} for the {key} {tuple(x.shape)}; a function of observations and "
                "actions returns both, observations first"
            )
        return result[0 if key == "observation" else 1]

    def call_with_groups(x: torch.Tensor) -> Any:
        """Call a function that takes and returns a dictionary of observation groups."""
        sizes = [size for _, size in spec.observation_groups]
        parts = dict(zip((group for group, _ in spec.observation_groups), x.split(sizes, -1), strict=True))
        result = call(_tensordict(parts, x))
        if not hasattr(result, "keys") or (lacking := [group for group in parts if group not in result.keys()]):
            fault = f"lacks the group {lacking[0]!r}" if hasattr(result, "keys") else f"is {_kind(result)}"
            raise ValueError(f"{name}: the image of the {key} {fault}; return every group, {', '.join(parts)}")
        return torch.cat([result[group] for group in parts], -1)

    return call_with_groups if key == "observation" and spec.observation_groups and names else call


def _tensordict(parts: dict[str, torch.Tensor], x: torch.Tensor) -> Any:
    """Groups as a TensorDict, which trainers use; a dictionary if tensordict is not installed."""
    try:
        from tensordict import TensorDict
    except ImportError:
        return parts
    return TensorDict(parts, batch_size=x.shape[:1])


def _probe(call: Callable[[torch.Tensor], Any], dim: int, name: str, key: str) -> list[np.ndarray]:
    """Matrices of the affine maps of which a function consists; the identity is left out if there are others.

    Raises:
        ValueError: the function is not affine.
    """
    rng = np.random.default_rng(0)
    x = np.concatenate([np.zeros((1, dim)), np.eye(dim), rng.normal(size=(4, dim))])
    batch = torch.as_tensor(x.copy())
    y = call(batch)
    if not np.array_equal(batch.numpy(), x):
        raise ValueError(
            f"{name} changes the {key} that it is given, in place, which spoils a trainer's batch; return a new tensor"
        )
    y = _to_array(y, name, f"{key} {x.shape}")
    if y.ndim != 2 or y.shape[1] != dim or len(y) % len(x) or not len(y):
        raise ValueError(
            f"{name} makes {y.shape} of the {key} {x.shape}; return as many rows, or a multiple of them, of {dim} numbers"
        )
    images = []
    for part in y.reshape(-1, *x.shape):
        if not np.isfinite(part).all():
            raise ValueError(
                f"{name} returns numbers that are not finite for the {key}; look for uninitialised entries"
            )
        shift = part[0]
        matrix = (part[1 : dim + 1] - shift).T
        residual = np.abs(part[dim + 1 :] - x[dim + 1 :] @ matrix.T - shift).max(initial=0.0)
        if residual > 1e-4 * max(1.0, np.abs(part).max()):
            raise ValueError(
                f"{name} is no affine map of the {key} (off by {residual:.1e}); a symmetry of its entries is one"
            )
        images.append(_affine(matrix, shift))
    if len(images) > 1:
        images = [m for m in images if _distance(m, np.eye(dim + 1)) > COEFFICIENT_TOLERANCE] or images[:1]
    return images


def _to_array(y: Any, name: str, argument: str) -> np.ndarray:
    """The value that a function returned for an argument, as an array of float64.

    Raises:
        ValueError: it is no array of real numbers.
    """
    try:
        array = y.detach().to_dense() if isinstance(y, torch.Tensor) else np.asarray(y)
        if y is not None and array.dtype not in (torch.complex64, torch.complex128) and not np.iscomplexobj(array):
            return np.asarray(array, dtype=np.float64)
    except (TypeError, ValueError, RuntimeError):
        pass
    raise ValueError(f"{name} returns {_kind(y)} for the {argument}; return its image, a tensor of real numbers")


def _kind(value: Any) -> str:
    """Describe a value's type."""
    if value is None:
        return "None"
    if isinstance(value, torch.Tensor):
        return f"a tensor of {str(value.dtype).removeprefix('torch.')}"
    if isinstance(value, tuple | list):
        return f"a {type(value).__name__} of {len(value)}"
    return f"a {type(value).__name__}"


def _elements(spec: SymmetrySpec, space: Space) -> dict[str, np.ndarray]:
    """Matrices on a space of the generators and of products of two generators, by name."""
    count, origin = len(spec.group.discrete_generators), np.array(space.origin)
    generators = [_affine(A := space.generator(k), origin - A @ origin) for k in range(count)]
    elements = dict(zip(spec.generator_names, generators, strict=False))
    pairs = [(i, j) for i in range(count) for j in range(i)]
    products = {
        f"{spec.generator_names[j]} and {spec.generator_names[i]}": generators[i] @ generators[j] for i, j in pairs
    }
    if not elements:
        raise ValueError(f"{', '.join(spec.generator_names)}: an audit is of discrete symmetries; choose one")
    return elements | products


def _match(images: Sequence[np.ndarray], derived: dict[str, np.ndarray]) -> list[str]:
    """Name of the group element with which most entries of each image agree."""
    titles = []
    for image in images:
        agreeing = {
            title: int((np.abs(image - right)[:-1, :-1] <= COEFFICIENT_TOLERANCE).all(1).sum())
            for title, right in derived.items()
            if title not in titles or len(images) > len(derived)
        }
        titles.append(max(agreeing, key=lambda title: agreeing[title]))
    return titles


def _relations(images: Sequence[np.ndarray], titles: Sequence[str], derived: dict[str, np.ndarray]) -> dict[str, float]:
    """Error of the images in each relation that holds for their elements: orders and products."""
    distances: dict[str, float] = {}
    identity = np.eye(len(images[0]))
    known = dict(zip(titles, images, strict=True))
    for title, image in known.items():
        power, right, order = image, derived[title], 1
        while _distance(right, identity) > 1e-9 and order < 24:
            power, right, order = power @ image, right @ derived[title], order + 1
        times = {2: "twice", 1: "once"}.get(order, f"{order} times")
        distances[f"{title} {times} is nothing"] = _distance(power, identity)
    for a, A in known.items():
        for b, B in known.items():
            product = derived[a] @ derived[b]
            target = next((t for t in known if _distance(derived[t], product) < 1e-9), None)
            if a < b and target is not None:
                distances[f"{b}, then {a}, is {target}"] = _distance(A @ B, known[target])
    return distances


def _defects(image: np.ndarray, key: str, steps: TermSteps | None, space: Space) -> np.ndarray:
    """Defect of each entry in the simulator, relative to its spread; NaN if it did not vary or was not stepped."""
    if steps is None:
        return np.full(space.dim, np.nan)
    before, after = steps.outcome.obs, steps.images.obs
    if key == "action":
        before, after = steps.actions, steps.elements.transform("action", steps.actions)
    error = np.abs(after - before @ image[:-1, :-1].T - image[:-1, -1]).max(0)
    spread = np.concatenate([before, after]).std(0)
    return np.where(spread > 1e-9, error / np.where(spread > 1e-9, spread, 1.0), np.nan)


def _describe(row: np.ndarray) -> str:
    *linear, shift = np.round(row, 5)  # to COEFFICIENT_TOLERANCE
    if not shift:
        return describe_row(linear)
    return f"{describe_row(linear)} {shift:+.3g}" if any(linear) else f"{shift:+.3g}"
