"""Judge somebody's map of observations and actions: is it a representation, and is it the symmetry of the robot?

Three questions, each answered by itself: do the map's images multiply as the group's elements do (a mirror twice is
nothing); is each entry the one that is derived from the model; and does the simulator, stepped from mirrored states, agree.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch

from rppdyn.envs.spec import Space, SymmetrySpec, align
from rppdyn.envs.terms.layout import CompiledTerms
from rppdyn.envs.terms.simulator import TermSteps, step_terms
from rppdyn.runs.files import plain

SIMULATOR_TOLERANCE = 1e-6  # of the simulator with the derivation, relative to an entry's spread
MAX_TABLE_ROWS = 60  # wrong entries that a table spells out
COEFFICIENT_TOLERANCE = 1e-5  # coefficients that differ by less are equal: maps are often float32
INPUTS = ("obs", "observations", "observation")


@dataclass(frozen=True)
class WrongEntry:
    """An entry of the mirrored vector that is not the derived one.

    Args:
        space: "observation" or "action".
        element: the symmetry.
        index, name: index and name of the entry.
        found, right: the map's image, and the right one, for instance ``-[5]``.
        defect: how far the map is off in the simulator, relative to the entry's spread; NaN where it was not stepped, or the
            entry never varied.
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
        elements: the symmetries that its images are.
        relations: for each property of a representation, how far the map is from it.
        wrong: entries that are not the derived ones.
        worst: largest defect in the simulator of the entries that are the derived ones, a check of the derivation itself.
        entries: how many entries the observation and the action have.
        states: how many states were stepped.
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
        """True if it is a representation and every entry is the derived one."""
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
        columns = {title: cells for title, cells in columns.items() if len(set(cells)) > 1}  # one value is no column
        columns |= {
            "index": [str(w.index) for w in wrong],
            "entry": [w.name for w in wrong],
            "map": [w.found for w in wrong],
            "right": [w.right for w in wrong],
            "defect": ["-" if np.isnan(w.defect) else f"{w.defect:.2g}" for w in wrong],
        }
        what = [*dict.fromkeys(f"{w.space} under {w.element}" for w in self.wrong)]
        total = sum(self.entries.values()) * len(self.elements)
        lines += [f"{len(self.wrong)} of {total} entries are wrong: {', '.join(what)}", ""]
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
    """Judge a map of observations, and of actions.

    Args:
        function: maps observations (n, dim) to their images, or to the observations and their images one below the other,
            as a tensor; or has the signature of trainers, `f(env=..., obs=..., actions=...)`, and returns both.
        compiled: the observation's and action's terms (`rppdyn.envs.compiled_terms`); or a spec alone, such as that of a
            policy's `symmetry.json`, without a simulator to ask.
        actions: maps actions likewise, where `function` does not.
        states: how many states the simulator is stepped from.
        seed: seed of these states.
        name: the map's title in the table.
    Raises:
        ValueError: the function raises, returns another shape, or is no affine map; or the symmetry acts on rotation
            matrices only.
    """
    spec = compiled if isinstance(compiled, SymmetrySpec) else compiled.spec
    name = name or getattr(function, "__name__", "the map")
    maps: dict[str, list[np.ndarray]] = {}
    both = _names(function)
    spaces: dict[str, Space] = {"observation": spec.obs, "action": spec.action}
    for key, space in spaces.items():
        if not space.encoding.is_identity:
            raise ValueError(
                f"{name}: {', '.join(spec.generator_names)} act on the rotation matrix of the {key}'s quaternion, not linearly "
                "on it; audit a mirror, or leave the quaternion out"
            )
    maps["observation"] = _probe(_call(function, spec, name, "observation", both), spec.obs.dim, name, "observation")
    if actions is not None:
        maps["action"] = _probe(_call(actions, spec, name, "action", _names(actions)), spec.action.dim, name, "action")
    elif "actions" in both:
        maps["action"] = _probe(_call(function, spec, name, "action", both), spec.action.dim, name, "action")
    elements = {key: _elements(spec, space) for key, space in spaces.items()}
    steps: dict[str, TermSteps] = {}
    if isinstance(compiled, CompiledTerms):
        steps = dict(zip(spec.generator_names, step_terms(compiled, states=states, seed=seed), strict=True))
    relations: dict[str, float] = {}
    wrong: list[WrongEntry] = []
    worst = 0.0
    named: list[str] = []
    for key, images in maps.items():
        space, derived = spaces[key], elements[key]
        titles = _match(images, derived)
        named = named or titles
        relations |= {f"{key}: {relation}": defect for relation, defect in _relations(images, titles, derived).items()}
        for image, title in zip(images, titles, strict=True):
            defect = _defects(image, key, steps.get(title), space)
            off = (np.abs(image - derived[title]) > COEFFICIENT_TOLERANCE).any(1)[:-1]
            worst = max(worst, float(np.nanmax(np.where(off, np.nan, defect), initial=0.0)))
            for i in np.flatnonzero(off):
                there, wanted = (_describe(m[i]) for m in (image, derived[title]))
                wrong.append(WrongEntry(key, title, int(i), space.entries[i].name, there, wanted, float(defect[i])))
    notes = []
    if missing := [title for title in elements["observation"] if title not in named]:
        notes.append(f"the map leaves out {', '.join(missing)}")
    for title, stepped in steps.items():
        if stepped.left_out:
            notes.append(
                f"{title}: {stepped.left_out} of {states} steps are left out, whose contacts MuJoCo does not mirror (as those "
                "of meshes)"
            )
    if worst > SIMULATOR_TOLERANCE:
        notes.append(
            f"the simulator disagrees with the derivation by {worst:.1e}: trust neither, and look at the model"
        )
    sizes = {key: spaces[key].dim for key in maps}
    return Audit(name, tuple(named), relations, tuple(wrong), worst, sizes, states if steps else 0, tuple(notes))


def _affine(matrix: np.ndarray, shift: np.ndarray) -> np.ndarray:
    """x' = A x + b as one matrix, on (x, 1)."""
    return np.block([[matrix, shift[:, None]], [np.zeros_like(shift), np.ones(1)]])


def _distance(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.abs(a - b).max())


def _names(function: Callable[..., Any]) -> set[str]:
    """The arguments that say how to call it."""
    try:
        names = set(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        names = set()
    return names if "actions" in names and names & set(INPUTS) else set()


def _call(function, spec: SymmetrySpec, name: str, key: str, both: set[str]) -> Callable[[torch.Tensor], Any]:
    """The function of observations or actions alone."""

    def call(x: torch.Tensor) -> Any:
        try:
            if not both:
                return function(x)
            observed = next(one for one in INPUTS if one in both)
            arguments: dict[str, Any] = {"env": None} if "env" in both else {}
            arguments |= {observed: x if key == "observation" else None, "actions": x if key == "action" else None}
            if "obs_type" in both:
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

    def grouped(x: torch.Tensor) -> Any:
        """Observations by group, for functions that take a dictionary of them."""
        sizes = [size for _, size in spec.observation_groups]
        parts = dict(zip((group for group, _ in spec.observation_groups), x.split(sizes, -1), strict=True))
        result = call(_tensordict(parts, x))
        if not hasattr(result, "keys") or (lacking := [group for group in parts if group not in result.keys()]):
            fault = f"lacks the group {lacking[0]!r}" if hasattr(result, "keys") else f"is {_kind(result)}"
            raise ValueError(f"{name}: the image of the {key} {fault}; return every group, {', '.join(parts)}")
        return torch.cat([result[group] for group in parts], -1)

    return grouped if key == "observation" and spec.observation_groups and both else call


def _tensordict(parts: dict[str, torch.Tensor], x: torch.Tensor) -> Any:
    """Groups as trainers have them; a plain dictionary where tensordict is not installed."""
    try:
        from tensordict import TensorDict
    except ImportError:
        return parts
    return TensorDict(parts, batch_size=x.shape[:1])


def _probe(call: Callable[[torch.Tensor], Any], dim: int, name: str, key: str) -> list[np.ndarray]:
    """The affine maps that a function is; the identity among several is left out.

    Raises:
        ValueError: it is none.
    """
    rng = np.random.default_rng(0)
    x = np.concatenate([np.zeros((1, dim)), np.eye(dim), rng.normal(size=(4, dim))])
    batch = torch.as_tensor(x.copy())
    y = call(batch)
    if not np.array_equal(batch.numpy(), x):
        raise ValueError(
            f"{name} changes the {key} that it is given, in place, which spoils a trainer's batch; return a new tensor"
        )
    y = _numbers(y, name, f"{key} {x.shape}")
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
        rest = np.abs(part[dim + 1 :] - x[dim + 1 :] @ matrix.T - shift).max(initial=0.0)
        if rest > 1e-4 * max(1.0, np.abs(part).max()):
            raise ValueError(
                f"{name} is no affine map of the {key} (off by {rest:.1e}); a symmetry of its entries is one"
            )
        images.append(_affine(matrix, shift))
    if len(images) > 1:
        images = [m for m in images if _distance(m, np.eye(dim + 1)) > COEFFICIENT_TOLERANCE] or images[:1]
    return images


def _numbers(y: Any, name: str, of: str) -> np.ndarray:
    """The value that a function has returned, as an array of float64.

    Raises:
        ValueError: it is no array of real numbers.
    """
    try:
        array = y.detach().to_dense() if isinstance(y, torch.Tensor) else np.asarray(y)
        if y is not None and array.dtype not in (torch.complex64, torch.complex128) and not np.iscomplexobj(array):
            return np.asarray(array, dtype=np.float64)
    except (TypeError, ValueError, RuntimeError):
        pass
    raise ValueError(f"{name} returns {_kind(y)} for the {of}; return its image, a tensor of real numbers")


def _kind(value: Any) -> str:
    """A value's type, in words."""
    if value is None:
        return "None"
    if isinstance(value, torch.Tensor):
        return f"a tensor of {str(value.dtype).removeprefix('torch.')}"
    if isinstance(value, tuple | list):
        return f"a {type(value).__name__} of {len(value)}"
    return f"a {type(value).__name__}"


def _elements(spec: SymmetrySpec, space: Space) -> dict[str, np.ndarray]:
    """Elements of the group but the identity, by name, as they act on a space: generators, and products of two of them."""
    count, origin = len(spec.group.discrete_generators), np.array(space.origin)
    generators = [_affine(A := space.generator(k), origin - A @ origin) for k in range(count)]
    elements = dict(zip(spec.generator_names, generators, strict=False))
    pairs = [(i, j) for i in range(count) for j in range(i)]
    named = {
        f"{spec.generator_names[j]} and {spec.generator_names[i]}": generators[i] @ generators[j] for i, j in pairs
    }
    if not elements:
        raise ValueError(f"{', '.join(spec.generator_names)}: an audit is of discrete symmetries; choose one")
    return elements | named


def _match(images: Sequence[np.ndarray], derived: dict[str, np.ndarray]) -> list[str]:
    """The element that each image is nearest to, by the number of entries that agree."""
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
    """Distance from holding for the images, of each relation of the group that the images' elements obey."""
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
    """Defect of each entry in the simulator relative to its spread; NaN where it never varied or was not stepped."""
    if steps is None:
        return np.full(space.dim, np.nan)
    before, after = steps.outcome.obs, steps.images.obs
    if key == "action":
        before, after = steps.actions, steps.elements.transform("action", steps.actions)
    off = np.abs(after - before @ image[:-1, :-1].T - image[:-1, -1]).max(0)
    spread = np.concatenate([before, after]).std(0)
    return np.where(spread > 1e-9, off / np.where(spread > 1e-9, spread, 1.0), np.nan)


def _describe(row: np.ndarray) -> str:
    parts, shift = [], row[-1]
    for j in np.flatnonzero(np.abs(row[:-1]) > COEFFICIENT_TOLERANCE):
        c = float(row[j])
        size = "" if abs(abs(c) - 1) < COEFFICIENT_TOLERANCE else f"{abs(c):.3g} "
        parts.append(f"{'-' if c < 0 else '+'}{size}[{j}]")
    if abs(shift) > COEFFICIENT_TOLERANCE:
        parts.append(f"{shift:+.3g}")
    return " ".join(parts) or "0"
