"""What torch.compile needs of a machine."""

from __future__ import annotations

import os
import shutil
import sys

import torch


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
