"""torch.compile: what it needs of a machine, and functions that have compilations of their own."""

from __future__ import annotations

import os
import shutil
import sys
import types
from typing import Any

import torch

__all__ = ["check_compiler", "compiled"]


def check_compiler(device: torch.device) -> None:
    """Refuse `compile=true` on a CPU without the C++ compiler that torch calls there.

    Raises:
        ValueError: saying which, and how to name another.
    """
    compiler = os.environ.get("CXX", "clang++" if sys.platform == "darwin" else "g++")
    if device.type == "cpu" and shutil.which(compiler) is None:
        raise ValueError(
            f"compile=true: torch.compile needs a C++ compiler, and {compiler} is not found: install it, name another in CXX, "
            "or use compile=false"
        )


def compiled(function: Any, **options: Any) -> Any:
    """A function by `torch.compile`, whose options these are, with compilations of its own.

    torch keeps compilations with the code of a function, looks through all of them at each call, and after eight goes on
    without: here they are this function's alone, however many are made of the same code.
    """
    own = types.FunctionType(
        function.__code__.replace(), function.__globals__, argdefs=function.__defaults__, closure=function.__closure__
    )
    own.__kwdefaults__ = function.__kwdefaults__
    return torch.compile(own, **options)
