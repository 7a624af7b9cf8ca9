"""Where a job computes."""

from __future__ import annotations

import torch

from rppdyn.jobs.config.checks import ConfigError


def device_of(name: str) -> torch.device:
    """The configured device; of "auto" the first CUDA device, if there is one.

    Raises:
        ConfigError: there is none of that name.
    """
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name == "auto":
        return torch.device("cuda" if count else "cpu")
    device = torch.device(name)
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise ConfigError(f"device={name}: torch finds no Apple GPU here; leave it out or use device=cpu")
    if device.type == "cuda" and (device.index or 0) >= count:
        offered = {0: "no CUDA device", 1: "one CUDA device, cuda:0"}.get(count, f"the CUDA devices 0 to {count - 1}")
        raise ConfigError(f"device={name}: this machine offers {offered}; leave it out or use device=cpu")
    return device
