"""The folder of a run: its configuration, metrics, checkpoints, result, provenance, and a signature.

The signature tells which runs this user made. A run that names a module of the user's is resumed without `--trust` if its
configuration, its spec and the file of that module (path and content) are unchanged since the user's own command wrote them. It
is an HMAC whose key stays in the user's folder of settings, so that a run from elsewhere has no valid signature.
"""

from __future__ import annotations

import fcntl
import hashlib
import hmac
import importlib.metadata
import json
import logging
import os
import platform
import secrets
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import MISSING, dataclass, fields
from functools import cache
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any, Self

import yaml
from omegaconf import OmegaConf
from omegaconf._utils import get_yaml_loader

from rppdyn.errors import UserError, code_named_in, folder_of_modules, reason
from rppdyn.runs.files import Checkpoints, flush_to_disk, names_file, plain, user_folder, write_json, write_text

logger = logging.getLogger(__name__)

# -- signatures --------------------------------------------------------------------------------------------------------

SIGNATURE_FILE = "signature"
CODE_NAMING_FILES = ("config.yaml", "spec.json")
"""Files of a run's folder that may name code."""
KEY_BYTES = 32


def sign(run: Path) -> None:
    """Sign a run that names code. Without a place for the key there is no signature, and the run asks for trust later."""
    try:
        digest = _digest(run, create=True)
        if digest is not None:
            write_text(run / SIGNATURE_FILE, digest + "\n")
    except (OSError, RuntimeError) as error:  # no home, or no permission to write there
        logger.info("%s is not signed (%s): it will ask for --trust", run, error)


def is_own(run: Path) -> bool:
    """Return whether a run has a valid signature: this user's own command made it, and the code it names is unchanged."""
    try:
        written = (run / SIGNATURE_FILE).read_text(encoding="ascii").strip()
        digest = _digest(run, create=False)
    except (OSError, RuntimeError, ValueError):
        return False
    return digest is not None and hmac.compare_digest(written, digest)


@contextmanager
def keep_signed(run: Path) -> Iterator[None]:
    """Sign a run again after the block has written its files, if its signature was valid before."""
    signed = is_own(run)
    yield
    if signed:
        sign(run)


def _digest(run: Path, *, create: bool) -> str | None:
    """The keyed digest of a run's files and of the code they name; None without such code or without a key."""
    parts = [(run / name).read_bytes() if (run / name).is_file() else b"" for name in CODE_NAMING_FILES]
    names = _modules_named_in(*parts)
    files = {name: _files(name) for name in names}
    if not names or not all(files.values()) or (key := _key(create)) is None:
        return None
    digest = hmac.new(key, digestmod="sha256")
    for name, places in sorted(files.items()):
        parts += [name.encode(), *(part for place in places for part in (place.encode(), Path(place).read_bytes()))]
    for part in parts:
        digest.update(hashlib.sha256(part).digest())
    return digest.hexdigest()


def _modules_named_in(config: bytes, spec: bytes) -> list[str]:
    """Modules and files of code named in a run's configuration and spec."""
    try:
        stored: Any = OmegaConf.to_container(OmegaConf.create(config.decode()))
        ids = [stored["env"]["id"], json.loads(spec)["env_id"] if spec else ""]
        names = [stored.get("callbacks") or [], stored["env"].get("kwargs") or {}]
    except Exception:  # no configuration of an agent
        return []
    modules = [str(env_id).rpartition(":")[0] for env_id in ids if ":" in str(env_id)]
    for text in code_named_in(names):
        module = text.partition(":")[0] if ":" in text else text.rpartition(".")[0]
        modules.append(text if os.path.exists(text) else module)
    return modules


def _files(name: str) -> list[str]:
    """The files that are run by importing a module or loading a file of code; empty if there is no such module."""
    if os.path.isfile(name):
        return [os.path.realpath(name)]
    files: list[str] = []
    parts, places = name.split("."), None
    for depth in range(1, len(parts) + 1):
        spec = _spec(".".join(parts[:depth]), places)
        if spec is None:
            return []
        places = list(spec.submodule_search_locations or [])
        if spec.has_location and spec.origin:
            files.append(os.path.realpath(spec.origin))
    return files


def _spec(name: str, places: list[str] | None) -> ModuleSpec | None:
    """Find a module as an import would, without importing anything."""
    for finder in sys.meta_path:
        with suppress(ImportError, ValueError, AttributeError):
            if (spec := finder.find_spec(name, places)) is not None:
                return spec
    folder = folder_of_modules()
    return PathFinder.find_spec(name, [folder]) if places is None and folder is not None else None


def _key(create: bool) -> bytes | None:
    """Read the user's key, which nobody else may read; None if others can."""
    path = user_folder("config") / "key"
    if create and not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor, temporary = tempfile.mkstemp(dir=path.parent)  # of mode 600
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(secrets.token_bytes(KEY_BYTES))
                file.flush()
                os.fsync(file.fileno())
            with suppress(FileExistsError):  # another process has made it meanwhile
                os.link(temporary, path)
        finally:
            os.unlink(temporary)
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
        about = os.fstat(file.fileno())
        is_shared = about.st_uid != os.getuid() or about.st_mode & (stat.S_IRWXG | stat.S_IRWXO)
        key = file.read(KEY_BYTES + 1)
    if is_shared or len(key) != KEY_BYTES:
        logger.warning("%s is no key of yours alone (mode 600): remove it, and a new one is made", path)
        return None
    return key


# -- run folders -------------------------------------------------------------------------------------------------------

ABSENT = "(absent)"
RETIRED_KEYS = {"model.parametrisation": "pathways", "agent.imagination": None}
"""Former keys of configurations, by the value that stands for today's behaviour."""
PACKAGES = ("rppdyn", "torch", "numpy", "gymnasium", "mujoco", "stable-baselines3", "hydra-core")


@cache
def _yaml_loader() -> Any:
    """OmegaConf's reader of YAML, with libyaml's parser if there is one, which is five times as fast."""
    reader = get_yaml_loader()
    if not yaml.__with_libyaml__:
        return reader

    class Reader(yaml.cyaml.CParser, reader):  # type: ignore[misc, valid-type]
        def __init__(self, stream: str) -> None:
            yaml.cyaml.CParser.__init__(self, stream)
            yaml.constructor.SafeConstructor.__init__(self)
            yaml.resolver.Resolver.__init__(self)

    return Reader


class RunFolderError(UserError):
    """A run's folder exists, is absent, is in use, or holds another configuration."""


class MetricsLog:
    """A file of JSON lines `{"step": n, name: value, ...}`, appended and flushed to the disk.

    Metrics contain no times, so that the files of a resumed and of an uninterrupted run are equal byte by byte.
    """

    def __init__(self, path: Path):
        self.path = Path(path)

    def append(self, step: int, values: dict[str, Any]) -> None:
        """Add one record; it is on the disk when this returns."""
        line = json.dumps({"step": step, **plain(values, finite=True)}, allow_nan=False)
        with names_file(self.path), open(self.path, "a", encoding="utf-8") as file:
            file.write(line + "\n")
            file.flush()
            os.fsync(file.fileno())

    def last(self) -> dict[str, Any]:
        """The last record; empty without any."""
        records = read_metrics(self.path) if self.path.exists() else []
        return records[-1] if records else {}

    def rewind(self, step: int) -> None:
        """Drop the records after `step`, and an unfinished last line of a killed process."""
        if self.path.exists():
            records = [record for record in read_metrics(self.path) if record["step"] <= step]
            write_text(self.path, "".join(json.dumps(record, allow_nan=False) + "\n" for record in records))


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Read the records of a metrics file. An unfinished last line is left out, a damaged last line with a warning.

    Raises:
        ValueError: an earlier line is no JSON record, or its step is below that of the line before.
    """
    *lines, _ = Path(path).read_bytes().split(b"\n")  # what follows the last newline is empty or unfinished
    records: list[dict[str, Any]] = []
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line)
            if not isinstance(record, dict) or type(record.get("step")) is not int or record["step"] < 0:
                raise ValueError("no step")
            if records and record["step"] < records[-1]["step"]:
                raise ValueError("out of order")
        except (ValueError, RecursionError) as error:
            message = f"{path}, line {number} is no metrics record: {line[:60].decode(errors='backslashreplace')!r}"
            if number < len(lines):
                raise ValueError(f"{message}; remove the line") from error
            logger.warning("%s; it is left out", message)
        else:
            records.append(record)
    return records


def series(records: Iterable[Mapping[str, Any]], name: str) -> tuple[list[int], list[float]]:
    """Steps and values of one metric, from the records that have it."""
    points = [(record["step"], record[name]) for record in records if record.get(name) is not None]
    return [step for step, _ in points], [value for _, value in points]


class RunFolder:
    """The files of one run.

    | name | content |
    | --- | --- |
    | `config.yaml` | the resolved configuration |
    | `metrics.jsonl` | one record per evaluation |
    | `events/` | TensorBoard |
    | `checkpoints/` | the last two, each complete (`rppdyn.runs.Checkpoints`) |
    | `figures/` | made from `metrics.jsonl` |
    | `timing.jsonl` | seconds and steps per second, apart from the metrics because they never repeat |
    | `policy.pt`, `model.zip`, `result.json` | written at the end; `result.json` last of all |
    """

    def __init__(self, path: str | os.PathLike[str]):
        self.path = Path(path)
        self.config_file = self.path / "config.yaml"
        self.metrics = MetricsLog(self.path / "metrics.jsonl")
        self.timing = MetricsLog(self.path / "timing.jsonl")
        self.events = self.path / "events"
        self.checkpoints = Checkpoints(self.path / "checkpoints")
        self.figures = self.path / "figures"
        self.policy_file = self.path / "policy.pt"
        self.model_file = self.path / "model.zip"
        self.result_file = self.path / "result.json"

    @classmethod
    def create(cls, path: str | os.PathLike[str], config: dict[str, Any]) -> RunFolder:
        """Make the folder with its configuration, in one step.

        Raises:
            RunFolderError: something is there already.
        """
        folder = cls(path)
        folder.refuse_existing()
        if folder.path.resolve() == Path.cwd():
            raise RunFolderError(f"run folder {path} is the folder you are in: choose one below it with run_dir=FOLDER")
        parent = folder.path.parent
        temporary = parent / f".{folder.path.name}.{os.getpid()}"
        try:
            temporary.mkdir(parents=True)
            write_text(temporary / "config.yaml", _yaml(config))
            sign(temporary)
            os.rename(temporary, folder.path)
        except OSError as error:
            folder.refuse_existing()  # another process made it in the meantime
            raise RunFolderError(
                f"can't create run folder {folder.path} ({error.strerror or error}): choose another place with run_dir=FOLDER"
            ) from error
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        flush_to_disk(parent)
        return folder

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> RunFolder:
        """Open an existing run.

        Raises:
            RunFolderError: there is no run at this path, or a link leads out of its folder.
        """
        folder = cls(path)
        if not folder.path.is_dir():
            raise RunFolderError(f"no run at {folder.path}: give the folder that a run has printed")
        if not folder.config_file.is_file():
            inside = sorted(folder.path.glob("*/config.yaml"))
            which = f"one in it, such as {inside[0].parent}" if inside else "one that train-agent or a fit has made"
            raise RunFolderError(f"{folder.path} is no run folder (it has no config.yaml): give {which}")
        folder.refuse_links()
        return folder

    def refuse_links(self) -> None:
        """Refuse links that lead out of the folder, through which a run would write elsewhere.

        W&B's links to its own log are allowed: nothing writes to them after its session.

        Raises:
            RunFolderError: naming the link and where it leads.
        """
        root = os.path.realpath(self.path)
        for parent, folders, files in os.walk(root):
            if os.path.relpath(parent, root) == "wandb":
                folders[:] = [name for name in folders if os.path.islink(os.path.join(parent, name))]
            for name in (*folders, *files):
                link = os.path.join(parent, name)
                if os.path.islink(link) and not os.path.realpath(link).startswith(root + os.sep):
                    raise RunFolderError(
                        f"{self.path / os.path.relpath(link, root)} is a link to {os.readlink(link)}, and a run writes inside "
                        "of its folder alone: remove the link, or put in its place what it leads to"
                    )

    def is_vacant(self) -> bool:
        """Return whether the path is free or an empty folder."""
        return not self.path.exists() or (self.path.is_dir() and not any(self.path.iterdir()))

    def refuse_existing(self) -> None:
        """Refuse a path that is not vacant.

        Raises:
            RunFolderError: naming the remedy.
        """
        if self.path.is_dir() and not self.is_vacant():
            raise RunFolderError(
                f"run folder {self.path} exists: add --resume to continue that run, or run_dir=FOLDER to put this one elsewhere"
            )
        existing = next((path for path in (self.path, *self.path.parents) if path.exists()), self.path)
        if existing.exists() and not existing.is_dir():
            where = "is" if existing == self.path else f"can't be made: {existing} is"
            raise RunFolderError(f"run folder {self.path} {where} a file: choose another place with run_dir=FOLDER")

    def config(self) -> dict[str, Any]:
        """The stored configuration.

        Raises:
            RunFolderError: the file can't be read.
        """
        try:
            text = self.config_file.read_text(encoding="utf-8")
            content = yaml.load(text, Loader=_yaml_loader())
            if "${" in text:
                OmegaConf.create(content)  # refuses an interpolation that is not closed
        except Exception as error:  # whatever the readers of YAML raise
            raise RunFolderError(
                f"{self.config_file} can't be read: {reason(error)}; put it back, or delete the folder to start again"
            ) from error
        if not isinstance(content, dict) or not content:
            raise RunFolderError(
                f"{self.config_file} holds no configuration: put it back, or delete the folder to start again"
            )
        for key, default in RETIRED_KEYS.items():
            section, _, name = key.rpartition(".")
            if isinstance(inner := content.get(section), dict) and inner.get(name, ABSENT) == default:
                del inner[name]
        if content.get("logger") == "mlflow":
            content["logger"] = "tensorboard"
        elif isinstance(loggers := content.get("logger"), list):
            content["logger"] = [name for name in loggers if name != "mlflow"]
        return {str(key): value for key, value in content.items()}

    def replace_config(self, config: dict[str, Any]) -> None:
        """Store another configuration, that of a longer run."""
        with keep_signed(self.path):
            write_text(self.config_file, _yaml(config))

    def result(self) -> dict[str, Any] | None:
        """The result of a finished run; None while it is unfinished."""
        result = read_json(self.result_file, remedy := "delete it and use --resume to write it again")
        if result == {}:
            raise RunFolderError(f"{self.result_file} is damaged: {remedy}")
        return result

    def write_result(self, result: dict[str, Any]) -> None:
        """Write `result.json`, in one step."""
        write_json(self.result_file, result)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Lock the folder for writing in the block; the operating system releases the lock of a killed process.

        Raises:
            RunFolderError: another process holds it.
        """
        self.refuse_links()
        with open(self.path / ".lock", "w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise RunFolderError(
                    f"run folder {self.path} is being written by another process: wait for it or stop it first"
                ) from error
            yield


def read_json(path: Path, remedy: str = "delete it, and make it again if it is needed") -> dict[str, Any] | None:
    """Read the JSON object in a run's file; None if there is no file.

    Raises:
        RunFolderError: the file is damaged.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (ValueError, RecursionError) as error:
        raise RunFolderError(f"{path} is damaged: {remedy}") from error
    if not isinstance(content, dict):
        raise RunFolderError(f"{path} is damaged, and holds no JSON object: {remedy}")
    return content


@dataclass
class RunResult:
    """The result of any run."""

    run: str

    @classmethod
    def from_dict(cls, result: dict[str, Any]) -> Self:
        """Read the result of a finished run.

        Raises:
            RunFolderError: a field is missing.
        """
        needed = [f.name for f in fields(cls) if f.default is MISSING and f.default_factory is MISSING]
        if missing := [name for name in needed if name not in result]:
            raise RunFolderError(
                f"{result['run']}/result.json is damaged: it has no {missing[0]}; delete it and use --resume to write it again"
            )
        return cls(**{f.name: result[f.name] for f in fields(cls) if f.name in result})


def runs_with_metrics(runs: Sequence[str]) -> list[str]:
    """The runs that have metrics; the others cause warnings. Without any metrics all are returned, for the caller to refuse."""
    with_metrics = [run for run in runs if RunFolder.open(run).metrics.last()]
    if not with_metrics:
        return list(runs)
    for run in runs:
        if run not in with_metrics:
            logger.warning("%s has no metrics yet, and is left out", run)
    return with_metrics


def differences(stored: dict[str, Any], requested: dict[str, Any], prefix: str = "") -> list[tuple[str, Any, Any]]:
    """Leaves in which two configurations differ: (dotted key, stored value, requested value), sorted by key."""
    different: list[tuple[str, Any, Any]] = []
    for key in sorted(stored.keys() | requested.keys()):
        left, right = stored.get(key, ABSENT), requested.get(key, ABSENT)
        if isinstance(left, dict) and isinstance(right, dict):
            different += differences(left, right, f"{prefix}{key}.")
        elif left != right and (left == left or right == right):  # two nans count as equal
            different.append((f"{prefix}{key}", left, right))
    return different


def _yaml(config: dict[str, Any]) -> str:
    return OmegaConf.to_yaml(OmegaConf.create(plain(config)))


def provenance() -> dict[str, object]:
    """The command, the commit of a checkout, and the versions of the packages that affect a run's numbers."""
    return {
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
        "commit": commit(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: _version(name) for name in PACKAGES},
    }


def commit() -> str | None:
    """The commit of this package's checkout, with "+changes" if files differ; None for an installed wheel."""
    folder = Path(__file__).resolve().parents[2]
    if not (folder / ".git").exists():
        return None
    try:
        head = _git(folder, "rev-parse", "HEAD")
        changed = _git(folder, "status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.SubprocessError):
        return None
    return head + ("+changes" if changed else "")


def _git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
