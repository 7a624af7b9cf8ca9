r"""A term: a label, scale, offset and history, and a quantity of the robot that knows how a symmetry acts on it.

A symmetry acts on a quantity's numbers by v' = A v + a. An entry of an observation is x = (v - offset) scale, so that

.. math:: x'_i = s_i \sum_j A_{ij} (x_j / s_j + o_j) + s_i (a_i - o_i).

Terms that show the same quantity are images of each other: left joints in one, right ones in another.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from difflib import get_close_matches
from typing import Any, ClassVar

import numpy as np

from rppdyn.envs.model_symmetry import ModelSymmetry
from rppdyn.envs.spec import Entry
from rppdyn.envs.terms.robot import Robot, Scene

LONGEST = 1000  # steps of a history


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | np.number) and not isinstance(value, bool)


def _is_list(value: Any, of: Callable[[Any], bool]) -> bool:
    return isinstance(value, Sequence | np.ndarray) and not isinstance(value, str) and all(map(of, value))


def _is_word(value: Any) -> bool:
    return isinstance(value, str)


_OPTIONS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "str": ("a word", _is_word),
    "bool": ("true or false", lambda value: isinstance(value, bool)),
    "int": ("a whole number", lambda value: _is_number(value) and int(value) == value),
    "float": ("a number", _is_number),
    "Sequence[int]": (
        "a list of whole numbers",
        lambda value: _is_list(value, lambda v: _is_number(v) and int(v) == v),
    ),
    "Sequence[float]": ("a list of numbers", lambda value: _is_list(value, _is_number)),
    "float | Sequence[float] | Mapping[str, float]": (
        "a number, a list of numbers, or numbers by regular expression",
        lambda v: _is_number(v) or _is_list(list(v.values()) if isinstance(v, Mapping) else v, _is_number),
    ),
    "Sequence[str]": ("a list of names", lambda value: _is_list(value, _is_word)),
    "Sequence[str] | None": ("a list of names", lambda value: value is None or _is_list(value, _is_word)),
    "Sequence[Sequence[float]] | None": (
        "a list of points (x, y)",
        lambda value: value is None or _is_list(value, lambda point: _is_list(point, _is_number)),
    ),
}
"""The type that an option of a term must have, by its annotation: in words, and a test."""

Affine = tuple[np.ndarray, np.ndarray]

TERMS: dict[str, type[Term]] = {}
"""Every kind of term by the name that a list of terms calls it."""


@dataclass(frozen=True, eq=False)
class Quantity:
    """Numbers of the robot or its task.

    Args:
        key: identity: quantities of the same key are the same.
        entries: names of its n numbers.
        read: the numbers of a scene.
        act: A, (n, n), and a, (n,), of a symmetry, the derivative of a continuous one; NaN in a row that is no linear
            function of the numbers.
        why: remedy for such a row.
        quaternion: whether the numbers are a quaternion w, x, y, z, and A is of its rotation matrix's nine.
    """

    key: Hashable
    entries: tuple[Entry, ...]
    read: Callable[[Scene], np.ndarray]
    act: Callable[[ModelSymmetry], Affine]
    why: str = "leave it out, or leave out the symmetry"
    quaternion: bool = False


@dataclass(frozen=True, kw_only=True)
class Term(ABC):
    """One block of an observation: x = (v - offset) scale of a quantity's numbers v.

    Args:
        label: its name; its kind if empty. Terms of the same kind with different labels are different terms.
        scale: one number, one per entry, or numbers by regular expression of joints' or entries' names; 1 for the others.
        offset: likewise; 0 for the others.
        history: how many of the last time steps are stacked, the oldest first.
    """

    kind: ClassVar[str] = ""

    label: str = ""
    scale: float | Sequence[float] | Mapping[str, float] = 1.0
    offset: float | Sequence[float] | Mapping[str, float] = 0.0
    history: int = 1

    def __post_init__(self) -> None:
        for entry in fields(self):
            value = getattr(self, entry.name)
            type_name, holds = _OPTIONS.get(str(entry.type), ("", lambda _: True))
            if entry.name != "history" and not holds(value):
                shown = list(value) if isinstance(value, tuple) else value
                raise ValueError(f"{self._called()}: {entry.name}={shown!r} must be {type_name}")
        if not isinstance(self.history, int) or isinstance(self.history, bool) or not 1 <= self.history <= LONGEST:
            raise ValueError(
                f"{self.title}: history={self.history!r} must be a whole number of steps, from 1 to {LONGEST}"
            )

    @property
    def title(self) -> str:
        """Its name in messages."""
        return self.label or self.kind

    def _called(self) -> str:
        return self.title if isinstance(self.title, str) else self.kind

    @abstractmethod
    def bind(self, robot: Robot, symmetries: Sequence[ModelSymmetry]) -> tuple[Quantity, Sequence[int]]:
        """The quantity, and which of its numbers the term shows, in order.

        Raises:
            ValueError: the robot lacks something that the term names.
        """


def register(kind: str) -> Callable[[type[Term]], type[Term]]:
    """Decorator of a class of terms that lists may call by this name."""

    def add(cls: type[Term]) -> type[Term]:
        cls.kind = kind
        TERMS[kind] = cls
        return cls

    return add


def term_of(described: Term | str | Mapping[str, Any], **defaults: Any) -> Term:
    """A term from its name, or from a mapping with the name as `term` and its options.

    Raises:
        ValueError: an unknown term or option, or one that is lacking.
    """
    if isinstance(described, Term):
        return described
    if isinstance(described, str):
        described = {"term": described}
    if not isinstance(described, Mapping) or not isinstance(described.get("term"), str):
        raise ValueError(f"observation term {described!r}: give its name, or a mapping with the name as `term`")
    options = defaults | {str(key): value for key, value in described.items() if key != "term"}
    name = described["term"]
    if name not in TERMS:
        raise ValueError(f"unknown observation term {name!r}{_nearest(name, list(TERMS))}")
    cls = TERMS[name]
    known = {field.name: field for field in fields(cls)}
    if unknown := [key for key in options if key not in known]:
        raise ValueError(f"term {name} has no option {unknown[0]!r}{_nearest(unknown[0], list(known))}")
    needed = [k for k, f in known.items() if f.default is MISSING and f.default_factory is MISSING and k not in options]
    if needed:
        raise ValueError(f"term {name} lacks the option {needed[0]!r}; give it")
    try:
        return cls(**{key: _frozen(value) for key, value in options.items()})
    except TypeError as error:
        raise ValueError(f"term {name}: {error}") from None


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


def _nearest(name: str, known: Sequence[str]) -> str:
    close = get_close_matches(name, known, n=1)
    return f"; did you mean {close[0]!r}?" if close else f"; known: {', '.join(known)}"
