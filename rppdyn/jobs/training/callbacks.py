"""Callbacks of the user's own, from the names that `callbacks=` has for them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from stable_baselines3.common.callbacks import BaseCallback

from rppdyn.jobs.config.checks import ConfigError
from rppdyn.trust import UntrustedError

__all__ = ["load_callbacks"]


def load_callbacks(
    names: Sequence[str], load: Callable[[str], Callable], named_by: str | None = None
) -> list[BaseCallback]:
    """New callbacks: of a class one without arguments, of a function (locals, globals) one that calls it at each step.

    Args:
        names: `module:Class` or `module:function`.
        load: what a name stands for.
        named_by: the file that alone names them; no module is imported then.
    Raises:
        UntrustedError: a file alone names them.
        ConfigError: there is none of that name, or it is no callback.
    """
    if names and named_by is not None:
        raise UntrustedError(
            f"{named_by} names the callback {names[0]}, and going on runs the module {names[0].partition(':')[0]!r}: add "
            "--trust if you know where it is from"
        )
    return [_callback(name, load(name)) for name in names]


class _Called(BaseCallback):
    """Calls a function of (locals, globals) at each step; False ends the training, as in stable-baselines3, nothing doesn't."""

    def __init__(self, function: Callable[[dict[str, Any], dict[str, Any]], bool | None]) -> None:
        super().__init__()
        self._function = function

    def _on_step(self) -> bool:
        return self._function(self.locals, self.globals) is not False


def _callback(name: str, found: Callable) -> BaseCallback:
    what = "give a class derived from stable_baselines3's BaseCallback, or a function of (locals, globals)"
    if not inspect.isclass(found):
        return _Called(found)
    if not issubclass(found, BaseCallback):
        raise ConfigError(f"callbacks={name}: the class {found.__name__} is no callback; {what}")
    needed = [p.name for p in list(inspect.signature(found).parameters.values())
              if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]  # fmt: skip
    if needed:
        raise ConfigError(
            f"callbacks={name}: {found.__name__} needs {', '.join(needed)}, and is made without arguments; give them "
            "defaults, or name a class of yours that gives them"
        )
    return found()
