"""Groups and representations written as text, as a command line gives them: `SO(3)`, `5*T(0)+5*T(1)`.

The text is read as a Python expression of a few names and operators and nothing of it is executed.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from typing import Any

from rppdyn import groups, reps
from rppdyn.groups import Group
from rppdyn.jobs.config.checks import ConfigError, did_you_mean
from rppdyn.reps import Rep, RepType

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
    found = _value(flag, text, GROUPS, "SO(3)")
    if not isinstance(found, Group):
        raise ConfigError(f"{flag} {text}: no group; write for example SO(3), and SO13p() with its brackets")
    return found


def representation(flag: str, text: str, G: Group) -> Rep:
    """The representation of G that a text such as `5*T(0) + 5*T(1)`, `V**2` or `T(1,1)` describes.

    Raises:
        ConfigError: the text is no such expression.
    """
    found = _value(flag, text, REPRESENTATIONS, "5*T(0)+5*T(1)")
    if not isinstance(found, RepType):
        raise ConfigError(f"{flag} {text}: no representation; write for example 5*T(0)+5*T(1)")
    return found(G)


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
