"""Groups and representations as text on the command line: `SO(3)`, `5*T(0)+5*T(1)`.

The text is parsed as a Python expression of a few names and operators; it is never executed.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rppdyn import groups, reps
from rppdyn.groups import Group
from rppdyn.reps import Rep, RepType
from rppdyn.settings import ConfigError, did_you_mean

GROUPS: Mapping[str, Callable[..., Group]] = {
    name: getattr(groups, name)
    for name in groups.__all__
    if name[0].isupper() and name not in ("Group", "MAX_ORDER", "RubiksCube")
}
REPRESENTATIONS: Mapping[str, Any] = {name: getattr(reps, name) for name in ("V", "Scalar", "Pseudoscalar", "T")}

_OPERATORS = {ast.Add: operator.add, ast.Mult: operator.mul, ast.Pow: operator.pow}


def group(text: str, flag: str = "--group") -> Group:
    """The group that a text such as `SO(3)`, `D(4)` or `SO(3)*Z(2)` describes.

    Raises:
        ConfigError: the text is no such expression.
    """
    value = _value(flag, text, GROUPS, "SO(3)")
    if not isinstance(value, Group):
        raise ConfigError(f"{flag} {text}: no group; write for example SO(3), and SO13p() with its brackets")
    return value


def chain(texts: Sequence[str], G: Group, symmetries: Sequence[str] = (), remedy: str = "") -> list[Group]:
    """The groups that `model.groups` describes; the first must be the group G of the task's representations.

    Args:
        symmetries: names of G's generators, the discrete ones first; one name, or several joined by `+`, stand for the
            subgroup that they generate.
        remedy: another remedy, for the message.
    Raises:
        ConfigError: a text is no group, or the first group is not G.
    """
    groups = [
        G if text.strip() == str(G) else _subgroup(text, G, symmetries) or group(text, "model.groups") for text in texts
    ]
    if groups[0] != G:
        raise ConfigError(
            f"model.groups={list(texts)}: begins with {groups[0]}, and the task's representations are of {G}: begin with the "
            f"task's group{remedy}"
        )
    return groups


def _subgroup(text: str, G: Group, symmetries: Sequence[str]) -> Group | None:
    """The subgroup that named generators of G generate; None if the text has other names."""
    names = [name.strip() for name in text.split("+")]
    if not all(name in symmetries for name in names):
        return None
    places, discrete = [symmetries.index(name) for name in names], len(G.discrete_generators)
    return Group(
        text,
        discrete_generators=G.discrete_generators[[place for place in places if place < discrete]],
        lie_algebra=G.lie_algebra[[place - discrete for place in places if place >= discrete]],
    )


def representation(text: str, G: Group, flag: str = "--rep") -> Rep:
    """The representation of G that a text such as `5*T(0) + 5*T(1)`, `V**2` or `T(1,1)` describes.

    Raises:
        ConfigError: the text is no such expression.
    """
    value = _value(flag, text, REPRESENTATIONS, "5*T(0)+5*T(1)")
    if not isinstance(value, RepType):
        raise ConfigError(f"{flag} {text}: no representation; write for example 5*T(0)+5*T(1)")
    return value(G)


def _value(flag: str, text: str, names: Mapping[str, Any], example: str) -> Any:
    def value(node: ast.expr) -> Any:
        match node:
            case ast.Constant(value=int() as number) if not isinstance(number, bool):
                return number
            case ast.Name(id=name) if name in names:
                return names[name]
            case ast.Name(id=name):
                raise ConfigError(
                    f"{flag} {text}: unknown {name!r}{did_you_mean(name, names)}; known: {', '.join(names)}"
                )
            case ast.Call(func=ast.Name(id="abs"), args=[argument], keywords=[]):
                return abs(value(argument))
            case ast.Call(func=ast.Name() as function, args=arguments, keywords=[]):
                return value(function)(*map(value, arguments))
            case ast.Attribute(value=inner, attr="T"):
                return value(inner).T
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
                return _OPERATORS[type(op)](value(left), value(right))
        raise ConfigError(f"{flag} {text}: can't be read; write for example {example}")

    try:
        return value(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, TypeError, AttributeError, RecursionError, OverflowError, MemoryError) as error:
        raise ConfigError(f"{flag} {text}: can't be read; write for example {example}") from error
