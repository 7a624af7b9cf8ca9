"""Settings of all training runs and of networks, and checks shared by several configurations.

The classes of settings define names, types, ranges and defaults; YAML files have what differs. Importing these modules
imports neither torch nor a simulator, so that a wrong argument is refused at once.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from rppdyn.settings import ConfigError, Count, Integer, Number, Text, Variance, format_value, setting, settings

if TYPE_CHECKING:
    import torch

Bilinear = Literal["auto", "channelwise", "published"] | bool | None
Architecture = Literal["auto", "regular", "tensor"]
Precision = Literal["highest", "high", "medium"]
Activation = Literal["swish", "relu", "tanh", "gelu", "elu", "leaky_relu", "mish", "softplus", "sigmoid", "silu"]
"""The activations of `rppdyn.nn._hidden`, a module that imports torch."""
Logger = Literal["tensorboard", "wandb"]
"""The loggers of `rppdyn.runs.session`."""
Betas = Annotated[list[Annotated[Number, Field(ge=0, lt=1)]], Field(min_length=2, max_length=2)]
Widths = Count | Annotated[list[Count], Field(min_length=1)]
Chain = Annotated[list[str], Field(min_length=1)] | None
Seed = Annotated[Integer, Field(ge=0, lt=2**31)]
AUTO = "auto"
"""Instead of a group: discover it. Instead of a model: choose it from the group."""
CERTIFIED, LEARNED = "certified", "learned"
"""Values of `model.free_variance` in place of a number."""

START_VARIANCES = (1.0, 1e-4)
"""Initial variances when variances are learned: upper limit for the equivariant pathway, and the free pathway's value."""


def free_variance_number(value: Any, certified: float | None) -> float:
    """The number for a configured free variance: for a word, the initial value of learning or the certified value."""
    if value == LEARNED:
        return START_VARIANCES[1]
    if value != CERTIFIED:
        return float(value)
    if certified is None:
        raise ConfigError(
            "model.free_variance=certified: no certified value yet; start a run with this configuration, which computes it"
        )
    return certified


def check_model(model: Any) -> None:
    """Refuse settings of a pathway that the networks do not have, and an incomplete chain of groups.

    A number as the variance of a missing pathway is accepted here, since stored runs have one. It has no effect. (The policies
    of agents refuse it for plain networks.)
    """
    if model.kind == "mlp" and model.breaking is not None:
        raise ConfigError(f"model.breaking={model.breaking} with model=mlp, without a symmetry to break: leave it out")
    word = model.free_variance if isinstance(model.free_variance, str) else None
    if word == LEARNED and getattr(model, "critic_free_variance", None) == 0:
        raise ConfigError(
            f"model.free_variance={LEARNED} with model.critic_free_variance=0: critics with one pathway have nothing to learn "
            "from; leave out one of the two"
        )
    refused: dict[str, Any] = {}
    owner = "which has"
    if not model.kind.startswith("rpp"):
        keys = ("groups", "variances", "free_scale", "widen")
        refused = {"free_variance": word} | {key: getattr(model, key, None) for key in keys}
    elif model.kind == "rpp_policy_only" and word == LEARNED:
        refused, owner = {"free_variance": word}, "whose critics have"
    for key, value in refused.items():
        if value is not None:
            raise ConfigError(
                f"model.{key}={format_value(value)} with model={model.kind}, {owner} one pathway: use model=rpp or leave it out"
            )
    if (model.groups is None) != (model.variances is None):
        raise ConfigError(
            f"model.groups={format_value(model.groups)} with model.variances={format_value(model.variances)}: give both, "
            "or neither"
        )
    if model.groups is not None and model.free_variance in (CERTIFIED, *model.refused_with_groups):
        raise ConfigError(
            f"model.free_variance={model.free_variance} with model.groups: model.variances has it: leave out one of the two"
        )


@settings
class NetworkSettings:
    """Keys of the networks of agents and of fits."""

    kind: Any = setting(..., "kind of network; set it with model=")
    hidden: Any = setting(..., "channels of each hidden layer")
    num_layers: Count = setting(2, "number of hidden layers; if hidden is a list, its length")
    activation: Activation | None = setting(
        None, "activation: swish, relu, tanh, ..., a key of rppdyn.nn.ACTIVATIONS; null: swish"
    )
    equivariant_variance: Variance = setting(
        1e5, "prior variance of the equivariant pathway, and of an agent's plain networks; 0 removes it"
    )
    free_variance: Any = setting(..., "prior variance of the free pathway")
    architecture: Architecture = setting(
        "auto", "hidden representation: regular (the group's), tensor, or auto: what fits the group"
    )
    bilinear: Bilinear = setting(
        "auto", "bilinear layers: published (or null), channelwise, false; true: in every block; auto: by the group"
    )
    breaking: Text | None = setting(
        None, "representation, such as V, of inputs through which a strict network can break its symmetry; null: none"
    )
    breaking_variance: Variance = setting(1.0, "prior variance of the constant inputs of model.breaking", gt=0)
    breaking_learned: bool = setting(True, "learn the constant inputs of model.breaking; false: drawn and fixed")
    groups: Chain = setting(
        None, 'chain of subgroups, beginning with the symmetry\'s group: ["O(3)","O2eR3()"]; null: that group only'
    )
    variances: list[Variance] | None = setting(
        None, "with groups: a prior variance for each, then the free pathway's, in place of all others; null: no groups"
    )

    refused_with_groups: ClassVar[tuple[str, ...]] = ()  # words that free_variance may not have with groups

    def __post_init__(self) -> None:
        if isinstance(self.hidden, list):
            self.num_layers = len(self.hidden)
        check_model(self)

    @property
    def free(self) -> float:
        """The prior variance of the free pathway, as a number."""
        return free_variance_number(self.free_variance, getattr(self, "certified_variance", None))


def _columns(value: Any) -> Any:
    """Convert a single name to a list."""
    return [value] if isinstance(value, str) else value


Columns = Annotated[list[str], BeforeValidator(_columns), Field(min_length=1)] | None


def _sum_to_one(value: list[float]) -> list[float]:
    if not math.isclose(sum(value), 1, abs_tol=1e-6):
        raise ValueError("must be three positive shares whose sum is 1, for example [0.7,0.15,0.15]")
    return value


Shares = Annotated[list[Annotated[Number, Field(gt=0)]], Field(min_length=3, max_length=3), AfterValidator(_sum_to_one)]
"""Shares of training, validation and test."""


def refuse_below(key: str, value: float, minimum: float, source: str) -> None:
    """Refuse a number below `minimum`; `source` says what demands it."""
    if value < minimum:
        raise ConfigError(f"{key}={value:g}: must be at least {minimum:g}, {source}")


def refuse(flags: Mapping[str, str | None], why: str) -> None:
    """Refuse the flags that have a value.

    Args:
        why: the reason and the remedy.
    """
    for flag, value in flags.items():
        if value is not None:
            raise ConfigError(f"{flag} {value}: {why}")


def file_stem(data: str) -> str:
    """The stem of run names for a data file, folder or dataset."""
    last = re.sub(r"\.(csv|npz|h5|hdf5)$", "", data.rstrip("/").rpartition("/")[2], flags=re.IGNORECASE)
    return re.sub(r"\W+", "_", last) or "own"


# -- runs --------------------------------------------------------------------------------------------------------------


@settings
class RunConfig(ABC):
    """Settings of every training run: seeds, device, and folder."""

    seed: Seed = setting(0, "seed of all random choices; several runs have seed, seed + 1, ...")
    checkpoint_every: Count = setting(..., "steps or epochs between two checkpoints")
    device: str = setting(
        "auto",
        "auto (a CUDA device where there is one), cpu, cuda, cuda:N, mps",
        pattern=r"^(auto|cpu|mps|cuda(:\d{1,3})?)$",
    )
    threads: Annotated[Count, Field(le=1024)] | None = setting(
        None,
        "torch threads; for several seeds of train-agent, processes; null: one, but for such seeds on a CPU one per processor",
    )
    logger: Logger | list[Logger] = setting(
        "tensorboard", "where scalars go, beside metrics.jsonl: tensorboard, wandb, or a list of both"
    )
    runs_root: str = setting("runs", "folder in which runs make their folders")
    run_dir: str | None = setting(None, "the run's folder; null: it follows from the configuration", pattern=r"\S")

    verb: ClassVar[str] = "train"  # of the command line
    # keys that may change when a run is resumed
    resumable: ClassVar[tuple[str, ...]] = ("checkpoint_every", "logger", "runs_root", "run_dir")

    @property
    def loggers(self) -> list[str]:
        """The names in `logger`."""
        return list(self.logger) if isinstance(self.logger, list) else [self.logger]

    @property
    @abstractmethod
    def length(self) -> tuple[str, int]:
        """Name and value of the key that sets how long the run is."""

    @property
    @abstractmethod
    def place(self) -> tuple[str, ...]:
        """Names of the nested folders below that of the command; `folder` adds a checksum to the last."""

    def runs(self) -> Sequence[RunConfig]:
        """The configurations of the separate runs; one, unless each seed has its own folder."""
        return [self]

    def folder(self) -> Path:
        """The run's folder: `run_dir`, or a path determined by the configuration.

        The last part ends in eight hexadecimal digits of a checksum of :meth:`identity`, so that different configurations have
        different paths.
        """
        if self.run_dir is not None:
            return Path(self.run_dir)
        content = json.dumps(self.identity(), sort_keys=True, default=str).encode()
        digest = hashlib.sha256(content).hexdigest()[:8]
        *parents, last = self.place
        return Path(self.runs_root, self.verb, *parents, f"{last}-{digest}")

    def identity(self) -> dict[str, Any]:
        """The configuration without the keys that may change when a run is resumed; `threads=null` counts as 1."""
        keys = [*self.resumable, "model.certified_variance"]  # the last follows from other keys
        return without_keys(asdict(self), keys) | {"threads": self.threads or 1}


def without_keys(config: dict[str, Any], keys: Iterable[str]) -> dict[str, Any]:
    """A copy of a dictionary of dictionaries without some keys, "key" or "group.key"."""
    copy = {key: dict(value) if isinstance(value, dict) else value for key, value in config.items()}
    for key in keys:
        group, _, name = key.rpartition(".")
        inner = copy.get(group) if group else copy
        if isinstance(inner, dict):
            inner.pop(name, None)
    return copy


def device_of(name: str) -> torch.device:
    """The configured device; "auto" is the first CUDA device, or else the CPU.

    Raises:
        ConfigError: there is no such device.
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
