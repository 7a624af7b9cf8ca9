"""Checks of configurations, which name the key, the value and the remedy; keys of all runs, and their folder.

Here and in the other schemas dataclasses own the names, the types and the ranges; YAML files hold the values. None of them
imports torch or a simulator, so that a wrong argument is refused at once.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import math
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from omegaconf import MISSING

from rppdyn.errors import UserError

if TYPE_CHECKING:
    import torch

BILINEAR = ("auto", "channelwise", "published")
PRECISIONS = ("highest", "high", "medium")
ACTIVATIONS = ("swish", "relu", "tanh", "gelu", "elu", "leaky_relu", "mish", "softplus", "sigmoid", "silu")
"""As `rppdyn.nn.hidden` has them, which imports torch."""


class ConfigError(UserError):
    """A configuration can't be used; the message names the key, the value and the remedy."""


LOGGERS = ("tensorboard", "wandb")
"""As `rppdyn.runs.session` has them."""


def did_you_mean(name: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """` (did you mean 'x'?)`, or nothing where no known name is close."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=cutoff)
    return f" (did you mean {close[0]!r}?)" if close else ""


def require(key: str, value: Any, holds: bool, what: str) -> None:
    if not holds:
        raise ConfigError(f"{key}={value}: must be {what}")


LARGEST = 1e38
"""Largest magnitude of a number that float32 is to hold; an inverse of less than the smallest would be infinite."""


def positive(key: str, value: float, largest: float = LARGEST) -> None:
    require(key, value, math.isfinite(value) and 0 < value <= largest, f"a positive number, at most {largest:g}")


def number(key: str, value: Any, what: str) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    require(key, value, math.isfinite(number), what)
    return number


def variance(key: str, value: float) -> None:
    within = value == 0 or 1 / LARGEST <= value <= LARGEST
    require(key, value, within, "a variance: zero (the pathway is removed) or positive, from 1e-38 to 1e38")


CERTIFIED, LEARNED = "certified", "learned"
"""Words that `model.free_variance` takes in place of a number."""

LEARNED_FROM = (1.0, 1e-4)
"""Variances of the equivariant pathway, at most, and of the free one, where learning them begins by `free_variance=learned`."""


def free_variance(key: str, value: Any, kind: str, words: Sequence[str], equivariant: float) -> float | str:
    """A variance as a number, or one of the words that are known here, of a network that has both pathways."""
    if isinstance(value, str) and value not in (CERTIFIED, LEARNED):
        with_words = "".join(f", or {word}" for word in words)
        hint = did_you_mean(value, words)
        raise ConfigError(
            f"{key}={value}: unknown{hint}; give a variance, zero (the pathway is removed) or positive{with_words}"
        )
    if not isinstance(value, str):
        what = "a variance, a number" + "".join(f", or {word}" for word in words)
        found = number(key, None if isinstance(value, bool) else value, what)
        variance(key, found)
        return found
    if value not in words:
        raise ConfigError(
            f"{key}={value}: there is no simulator here to certify a symmetry in; give a number, or {' or '.join(words)}"
        )
    if not equivariant and kind.startswith("rpp"):
        raise ConfigError(
            f"{key}={value} with model.equivariant_variance=0: there is no pathway to share with; make it positive"
        )
    if kind == "rpp_policy_only" and value == LEARNED:
        raise ConfigError(
            f"{key}={value}: it is learned by the critics, which model={kind} has no free pathway of; use model=rpp"
        )
    if kind in ("mlp", "emlp"):
        source = "certificates" if value == CERTIFIED else "the data"
        lacks, belief = ("equivariant", "no symmetry") if kind == "mlp" else ("free", "the symmetry")
        raise ConfigError(
            f"{key}={value} with model={kind}, which has no {lacks} pathway and believes {belief} whatever {source} say: use "
            "model=rpp, or leave it out"
        )
    return value


def free_variance_number(value: Any, certified: float | None) -> float:
    """The number that a free variance stands for: where learning begins, or what certification found."""
    if value == LEARNED:
        return LEARNED_FROM[1]
    if value != CERTIFIED:
        return float(value)
    if certified is None:
        raise ConfigError(
            "model.free_variance=certified: nothing was certified yet; a run of this configuration does that"
        )
    return certified


def learning_rate_end(key: str, value: float | None) -> None:
    if value is not None:
        require(key, value, math.isfinite(value) and value >= 0, "zero or positive, or null for a constant rate")


def betas(key: str, value: list[float]) -> None:
    proper = len(value) == 2 and all(0 <= beta < 1 for beta in value)
    require(key, value, proper, "two numbers in [0, 1), for example [0.5,0.999]")


def at_least(key: str, value: int, least: int) -> None:
    require(key, value, least <= value < 2**63, f"an integer, at least {least}")


def flags(config: Any, **least: int) -> None:
    """Refuse numbers, by the names of their flags, that are smaller than these."""
    for name, number in least.items():
        if (value := getattr(config, name)) is not None and value < number:
            raise ConfigError(f"--{name} {value}: must be an integer, at least {number}")


def refuse(given: Mapping[str, str | None], why: str) -> None:
    """Refuse flags that are given, and say why and what to do."""
    for flag, value in given.items():
        if value is not None:
            raise ConfigError(f"{flag} {value}: {why}")


def trusted(what: str, kind: str, trust: bool) -> None:
    """Refuse what runs code when it is loaded, unless the user trusts it, and files that are not there."""
    if not Path(what).is_file():
        raise ConfigError(f"{what}: there is no such file; give the path of a {kind}")
    if not trust:
        raise ConfigError(
            f"{what} is a {kind}, and loading it runs the code it holds: add --trust if you know where it is from"
        )


def file(flag: str, path: str | None) -> None:
    """Refuse a file that can't be written, before the work: a folder, one in a folder that is not there, a protected one."""
    if path is None:
        return
    target = Path(path)
    if target.is_dir():
        raise ConfigError(f"{flag} {path}: is a folder; give a file")
    if not target.parent.is_dir():
        raise ConfigError(f"{flag} {path}: there is no folder {target.parent}; make it first, or give another place")
    if not os.access(target if target.exists() else target.parent, os.W_OK):
        raise ConfigError(f"{flag} {path}: can't be written there; give another place")


def different_files(**flags: str | None) -> None:
    """Refuse one file for two results, given by flags without their dashes."""
    first, second = ((name, path) for name, path in flags.items())
    if first[1] is not None and second[1] is not None and Path(first[1]).resolve() == Path(second[1]).resolve():
        raise ConfigError(f"--{first[0]} {first[1]} and --{second[0]} {second[1]} are one file; give two")


def figure(flag: str, path: str | None) -> None:
    file(flag, path)
    if path is not None and Path(path).suffix not in (".png", ".svg", ".pdf"):
        raise ConfigError(f"{flag} {path}: must end in .png, .svg or .pdf")


def each_once(runs: Sequence[str]) -> None:
    """Refuse a run that is named twice, as what it has would be counted twice."""
    paths = [Path(run).resolve() for run in runs]
    for run, path in zip(runs, paths, strict=True):
        if paths.count(path) > 1:
            raise ConfigError(f"{run} is given twice: name each run once")


def one_of(key: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ConfigError(f"{key}={value}: unknown{did_you_mean(str(value), known)}; choose one of {', '.join(known)}")


def activation(key: str, value: str | None) -> None:
    """Refuse what names no activation."""
    if value is not None:
        one_of(key, value, ACTIVATIONS)


def widths(key: str, value: Any) -> int | list[int]:
    """Channels of hidden layers: a number, or one for each layer.

    Raises:
        ConfigError: they are none.
    """
    each = value if isinstance(value, list) else [value]
    what = "an integer of at least 1, or a list of them such as [64,32], one for each hidden layer"
    require(key, value, bool(each) and all(isinstance(w, int) and not isinstance(w, bool) for w in each), what)
    for width in each:
        at_least(key, width, 1)
    return value


def bilinear(key: str, value: object) -> None:
    """Refuse what names no bilinear layer."""
    known = value is None or isinstance(value, bool) or value in BILINEAR
    require(key, value, known, f"one of {', '.join(BILINEAR)}, true, false, null")


def chain(groups: Any, variances: Any, kind: str, free: float | str, words: Sequence[str]) -> None:
    """Check `model.groups` and `model.variances`, which become numbers in place: a chain is of networks with its pathways.

    Args:
        free: `model.free_variance`.
        words: that it may be beside a chain.
    """
    if groups is None and variances is None:
        return
    if not isinstance(groups, list) or not groups or not all(isinstance(text, str) for text in groups):
        raise ConfigError(
            f"model.groups={groups} with model.variances={variances}: give a list of groups, the largest first, such as "
            'model.groups=["O(3)","O2eR3()"]; or neither'
        )
    if not kind.startswith("rpp"):
        raise ConfigError(f"model.groups={groups}: model={kind} has one pathway; give model=rpp, or leave it out")
    if not isinstance(variances, list) or len(variances) != len(groups) + 1:
        raise ConfigError(
            f"model.variances={variances} with {len(groups)} groups: give {len(groups) + 1}, one for each group and the "
            "free pathway's last"
        )
    for place, each in enumerate(variances):
        value = number(f"model.variances[{place}]", each, "a variance")
        variance(f"model.variances[{place}]", value)
        variances[place] = value
    if not any(variances):
        raise ConfigError(f"model.variances={variances}: no pathway is left; make one positive")
    if isinstance(free, str) and free not in words:
        remedy = "" if free == CERTIFIED else " (objective=marginal_likelihood learns them all)"
        raise ConfigError(
            f"model.free_variance={free} with model.groups: model.variances has the free pathway's, too: leave out one of the "
            f"two{remedy}"
        )


AUTO = "auto"
"""As a group: discovered; as a model: what follows from the group."""


def column_names(key: str, value: Any) -> list[str] | None:
    """A list of columns; one name is a list of one.

    Raises:
        ConfigError: it is neither, or empty.
    """
    if value is None:
        return None
    found = [value] if isinstance(value, str) else value
    if not isinstance(found, list) or not found or not all(isinstance(name, str | int) for name in found):
        raise ConfigError(f"{key}={value}: give a list of columns, for example [x,y]")
    return [str(name) for name in found]


def shares(key: str, value: Any, columns: bool = True) -> None:
    """Refuse what is no split: three shares, or a column that says to which part a datum belongs."""
    if columns and isinstance(value, str) and value.strip():
        return
    right = isinstance(value, list) and len(value) == 3 and all(isinstance(share, int | float) for share in value)
    if not (right and min(value) > 0 and math.isclose(sum(value), 1, abs_tol=1e-6)):
        other = "; or a column of the words train, validation and test" if columns else ""
        raise ConfigError(
            f"{key}={value}: give three positive shares whose sum is 1, for example [0.7,0.15,0.15]{other}"
        )


def file_stem(data: str) -> str:
    """Return the stem of the names of runs on a file, a folder or a dataset."""
    last = re.sub(r"\.(csv|npz|h5|hdf5)$", "", data.rstrip("/").rpartition("/")[2], flags=re.IGNORECASE)
    return re.sub(r"\W+", "_", last) or "own"


# -- runs --------------------------------------------------------------------------------------------------------------


@dataclass
class RunConfig(ABC):
    """Settings of every training run: seeds, where it computes, and where its folder is."""

    seed: int = 0  # of all random choices; several runs have seed, seed + 1, ...
    checkpoint_every: int = MISSING  # steps or epochs between two checkpoints
    device: str = "auto"  # auto (a CUDA device where there is one), cpu, cuda, cuda:N, mps
    # null: one; several seeds of an agent, or of a long fit-dynamics, have a process for each processor (on a GPU one)
    threads: int | None = None
    logger: Any = "tensorboard"  # where scalars go beside metrics.jsonl: tensorboard, wandb, or a list of both
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
