"""The configuration that every training run has, and where its folder is.

Here and in the other schemas dataclasses own the names, the types and the ranges; YAML files hold the values. None of them
imports torch or a simulator, so that a wrong argument is refused at once.
"""

from __future__ import annotations

import hashlib
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from omegaconf import MISSING

from rppdyn.jobs.config.checks import LOGGERS, ConfigError, at_least, one_of, require

if TYPE_CHECKING:
    import torch


@dataclass
class RunConfig(ABC):
    """What every training run has: seeds, where it computes, and where its folder is."""

    seed: int = 0  # of all random choices; several runs have seed, seed + 1, ...
    checkpoint_every: int = MISSING  # steps or epochs between two checkpoints
    device: str = "auto"  # auto (a CUDA device where there is one), cpu, cuda, cuda:N, mps
    # null: one (an agent: two); for several seeds as many, at most four (agents: all, and one on a GPU)
    threads: int | None = None
    logger: Any = "tensorboard"  # where scalars go beside metrics.jsonl: tensorboard, wandb, mlflow, or a list of these
    runs_root: str = "runs"  # folder that the runs' folders are in
    run_dir: str | None = None  # the run's folder; null: it follows from the configuration

    verb: ClassVar[str] = "train"  # of the command line
    # a resumed run may differ in these, and in nothing else
    resumable: ClassVar[tuple[str, ...]] = ("checkpoint_every", "logger", "runs_root", "run_dir")

    def __post_init__(self) -> None:
        require("seed", self.seed, 0 <= self.seed < 2**31, "an integer from 0 to 2^31 - 1")
        at_least("checkpoint_every", self.checkpoint_every, 1)
        if self.threads is not None:
            require("threads", self.threads, 1 <= self.threads <= 1024, "an integer from 1 to 1024")
        if self.device not in ("auto", "cpu", "cuda", "mps") and not re.fullmatch(r"cuda:\d{1,3}", self.device):
            raise ConfigError(f"device={self.device}: must be auto, cpu, cuda, cuda:N or mps")
        for name in self.loggers:
            one_of("logger", name, LOGGERS)
        if self.run_dir is not None and not self.run_dir.strip():
            raise ConfigError(
                "run_dir is empty: give a folder, or leave it out for one that follows from the configuration"
            )

    @property
    def loggers(self) -> list[str]:
        """The names in `logger`."""
        return list(self.logger) if isinstance(self.logger, list) else [self.logger]

    @property
    @abstractmethod
    def length(self) -> tuple[str, int]:
        """The key that says how long the run is, and its value."""

    @property
    @abstractmethod
    def place(self) -> tuple[str, ...]:
        """Folders below that of the verb, the last without its checksum."""

    def each(self) -> Sequence[RunConfig]:
        """The configurations of the runs that have folders of their own; most are one, whatever their seeds."""
        return [self]

    def folder(self) -> Path:
        """Where the run lives: `run_dir`, or a path that follows from the configuration alone.

        Configurations that differ in anything but `resumable` keys have different paths: the last part carries eight
        hexadecimal digits of a checksum of all the others.
        """
        if self.run_dir is not None:
            return Path(self.run_dir)
        content = json.dumps(self.identity(), sort_keys=True, default=str).encode()
        digest = hashlib.sha256(content).hexdigest()[:8]
        *parents, last = self.place
        return Path(self.runs_root, self.verb, *parents, f"{last}-{digest}")

    def identity(self) -> dict[str, Any]:
        """The configuration without the keys in which a resumed run may differ from its beginning."""
        content = without(asdict(self), [*self.resumable, "model.certified_variance"])  # which follows from the others
        return content | {"threads": self.threads or 1}  # null is one


def without(config: dict[str, Any], keys: Iterable[str]) -> dict[str, Any]:
    """A copy of a nested dictionary without some dotted keys."""
    copy = {key: dict(value) if isinstance(value, dict) else value for key, value in config.items()}
    for key in keys:
        group, _, name = key.rpartition(".")
        if isinstance(inner := copy.get(group) if group else copy, dict):
            inner.pop(name, None)
    return copy


def device_of(name: str) -> torch.device:
    """The configured device; of "auto" the first CUDA device, if there is one.

    Raises:
        ConfigError: there is none of that name.
    """
    import torch

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
