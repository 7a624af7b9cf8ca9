"""torch.compile: whether it works on a machine, and functions compiled apart from each other."""

from __future__ import annotations

import logging
import os
import shutil
import sys
import types
import warnings
from functools import cache
from typing import Any

import torch

logger = logging.getLogger(__name__)

OFF = "compile=false (of train-agent agent.compile=false)"
"""Settings that turn compiling off, in messages."""


def check_compiler(device: torch.device) -> None:
    """Refuse `compile=true` on a CPU without a C++ compiler."""
    if missing := _missing_compiler(device):
        raise ValueError(f"compile=true: {missing}")


def can_compile(device: torch.device) -> bool:
    """Check whether ``torch.compile`` works here, for training that gains by it; warn with the reason if it does not."""
    obstacle = why_not_compiled(device)
    if obstacle:
        logger.warning("Training without torch.compile, in up to twice the time: %s", obstacle)
    return not obstacle


def why_not_compiled(device: torch.device) -> str:
    """The reason why ``torch.compile`` does not work here, in one line; empty where it does."""
    return _missing_compiler(device) or _failure(device)


@cache
def _failure(device: torch.device) -> str:
    """Compile a sum, which takes seconds, and return why it failed: the compiler may lack Python's headers or OpenMP."""
    try:
        compiled(lambda x: x + 1.0, dynamic=False)(torch.ones(2, device=device))
    except Exception as error:  # of torch, of the compiler, or of a cache that can't be written
        return failure_reason(error)
    return ""


def failed_to_compile(error: Exception) -> bool:
    """Check whether an error is torch's failure to compile a function, raised before the function computed anything."""
    from torch._dynamo.exc import TorchDynamoException  # takes seconds to import

    return isinstance(error, TorchDynamoException)


def failure_reason(error: Exception) -> str:
    """The reason of a failed compilation, and the remedy, in one line."""
    lines = [line for line in str(error).splitlines() if line.strip() and not line.endswith("raised:")]
    reason = next((line for line in lines if " error: " in line), lines[0] if lines else type(error).__name__)
    return f"{reason.strip()}; mend that, or use {OFF}"


def _missing_compiler(device: torch.device) -> str:
    compiler = os.environ.get("CXX", "clang++" if sys.platform == "darwin" else "g++")
    if device.type != "cpu" or shutil.which(compiler):
        return ""
    return f"torch.compile needs a C++ compiler, and {compiler} is not found: install it, name another in CXX, or use {OFF}"


def compiled(function: Any, **options: Any) -> Any:
    """A function compiled by `torch.compile` with these options, with a cache of compilations of its own.

    torch caches compilations by a function's code, searches all of them at each call, and stops compiling after eight. The copy
    of the code that this makes keeps functions of the same code apart.
    """
    copy = types.FunctionType(
        function.__code__.replace(), function.__globals__, argdefs=function.__defaults__, closure=function.__closure__
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    _patch_inductor_reads()
    warnings.filterwarnings("ignore", "TensorFloat32 tensor cores .* not enabled")  # it rounds more coarsely
    return torch.compile(copy, **options)


@cache
def _patch_inductor_reads() -> None:
    """Let torch 2.13 compile updates of several agents: its inductor fails on a buffer without a read (its issue 196570)."""
    from torch._inductor.loop_body import LoopBody

    read = getattr(LoopBody, "get_read_expr", None)
    if read is None:  # another version's
        return

    def read_or_none(body: LoopBody, name: str) -> Any:
        try:
            return read(body, name)
        except KeyError:
            return None  # no contiguous read, so that the buffer is not made local

    LoopBody.get_read_expr = read_or_none  # type: ignore[method-assign]
