"""Data files as columns by name: CSV, NPZ, HDF5 and Parquet files, folders of these, LeRobot and Minari datasets.

An error about a file is one line with the file, the place, the value and the remedy.
"""

from __future__ import annotations

import csv
import hashlib
import math
import re
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from rppdyn.errors import UserError, reading, reason
from rppdyn.runs.files import require_memory

SUFFIXES = (".csv", ".npz", ".h5", ".hdf5", ".parquet")
DELIMITERS = ",;\t"
INSTALL = "pip install 'rppdyn[minari]'"
MAX_LISTED_NAMES = 12
"""Largest number of names in a message."""
CSV_MEMORY_RATIO = 20
"""Bytes of memory per byte of a CSV file while it is read."""

Table = tuple[str, Mapping[str, NDArray]]
"""A name for messages, and columns by name, with time or the data along the first axis."""


def read_tables(source: str | Path) -> Iterator[Table]:
    """Read a table from a file, each file of a folder, each group of an HDF5 file, or each episode of a Minari dataset.

    The files of a LeRobot dataset are those in its folders `data/chunk-000` and so on.

    Raises:
        ValueError: no such file, an empty or a damaged one.
    """
    path, text = Path(source), str(source)
    lerobot = (path / "meta" / "info.json").is_file()
    if lerobot or (path.is_dir() and not (path / "data").is_dir()):
        candidates = path.glob("data/*/*.parquet") if lerobot else path.iterdir()
        files = sorted(f for f in candidates if f.suffix.lower() in SUFFIXES and not f.name.startswith("."))
        if not files:
            raise ValueError(f"{path}: there is no file in it that ends in {', '.join(SUFFIXES)}")
        for file in files:
            yield from _read_file(file)
    elif path.is_file():
        yield from _read_file(path)
    elif path.suffix.lower() in SUFFIXES or not (path.is_dir() or re.search(r"-v\d+$", text)):
        raise ValueError(f"{path}: there is no such file, folder or Minari dataset")
    else:
        yield from _read_episodes(text)


def _read_file(path: Path) -> Iterator[Table]:
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise ValueError(f"{path}: must end in {', '.join(SUFFIXES)}")
    if not path.stat().st_size:
        raise ValueError(f"{path} is empty")
    if suffix == ".npz":
        yield str(path), read_arrays(path)
    else:
        yield from {".csv": _read_csv, ".parquet": _read_parquet}.get(suffix, _read_hdf5)(path)


def _read_csv(path: Path) -> Iterator[Table]:
    require_memory(str(path), CSV_MEMORY_RATIO * path.stat().st_size, "give a part of it, or arrays in an NPZ file")
    with reading(f"{path} is no table of text, and", "save it as CSV in UTF-8"):
        with path.open(newline="", encoding="utf-8-sig") as file:
            lines = file.read().splitlines()
            first = next((line for line in lines if line.strip() and not line.startswith("#")), "")
            delimiter = max(DELIMITERS, key=first.count)
            rows = [(number, row) for number, row in enumerate(csv.reader(lines, delimiter=delimiter), 1) if any(row)]
    while len(rows) > 1 and rows[0][1][0].startswith("#") and len(rows[0][1]) != len(rows[1][1]):
        del rows[0]  # a comment; the names may have a # before them, as numpy.savetxt writes it
    if len(rows) < 2:
        raise ValueError(f"{path} is empty: a line of names and lines of numbers are needed")
    names = [name.strip() for name in rows[0][1]]
    names[0] = names[0].removeprefix("#").strip()
    if repeated := [name for name, count in Counter(names).items() if count > 1]:
        raise ValueError(
            f"{path}: column {repeated[0]!r} is there twice, in {list_names(names)}; rename or remove one of them"
        )
    if any(map(_is_number, names)):
        raise ValueError(f"{path}: its first line must be the names of the columns; it is {list_names(names)}")
    columns: dict[str, list[str]] = {name: [] for name in names}
    for number, row in rows[1:]:
        if len(row) != len(names):
            decimal = delimiter == "," and len(row) > len(names)
            remedy = (
                "; write decimal points, or ; between columns" if decimal else "; write each, or leave the line out"
            )
            raise ValueError(f"{path}, line {number}: {len(row)} values for {len(names)} columns{remedy}")
        for name, value in zip(names, row, strict=True):
            columns[name].append(re.sub(r"^(\s*[-+]?\d*),(\d)", r"\1.\2", value) if delimiter != "," else value)
    yield str(path), {name: _parse_numbers(values) for name, values in columns.items()}


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _parse_numbers(values: Sequence[str]) -> NDArray:
    """Convert texts to numbers, or all of true and false to bool; leave all as text if one is neither."""
    try:
        return np.array([float(value) if value.strip() else np.nan for value in values])
    except ValueError:
        texts = np.array([value.strip() for value in values])
        lower = np.char.lower(texts)
        return lower == "true" if np.isin(lower, ("true", "false")).all() else texts


def read_arrays(path: str | Path) -> dict[str, NDArray]:
    """Read the arrays of an NPZ file by name, or the array of an NPY file by the name ""; sizes are checked first."""
    kind = "an NPY" if str(path).endswith(".npy") else "an NPZ"
    with (
        reading(path, "save it with numpy.savez, or numpy.save", f"as {kind} file of numbers"),
        open(path, "rb") as file,
    ):
        if kind == "an NPY":
            _require_array_fits(f"{path}", [file])
            file.seek(0)
            return {"": np.load(file, allow_pickle=False)}
        with zipfile.ZipFile(file) as archive:
            _require_array_fits(f"{path}", (archive.open(name) for name in archive.namelist()))
        file.seek(0)
        arrays = np.load(file, allow_pickle=False)
        return {name: arrays[name] for name in arrays.files}


def _require_array_fits(name: str, files: Iterable[IO[bytes]]) -> None:
    size = 0.0
    for file in files:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(file)
        if dtype.hasobject:
            array = getattr(file, "name", "").removesuffix(".npy")
            raise UserError(
                f"{name}: array {array!r} holds Python objects, which loading would run; save arrays of numbers or text instead"
            )
        size += math.prod(map(float, shape)) * dtype.itemsize
    require_memory(name, size, "save a part of it")


def _read_hdf5(path: Path) -> Iterator[Table]:
    try:
        import h5py
    except ImportError as error:
        raise ValueError(f"{path}: HDF5 needs h5py, pip install h5py") from error
    with reading(path, "it may be cut off", "as an HDF5 file"), h5py.File(path) as file:
        require_contained(file, str(path))
        tables = list(_read_groups(file, str(path)))
    yield from tables


def require_contained(file: Any, name: str) -> None:
    """Refuse an HDF5 file that is too large, links to other files, or has a group inside itself.

    Raises:
        UserError: naming the object in the file.
    """
    import h5py

    remedy = "copy the numbers into the file (h5repack, h5copy)"
    addresses, waiting, size = {h5py.h5o.get_info(file.id).addr}, [file], 0.0
    while waiting:
        group = waiting.pop()
        for key in group:
            place, link = f"{name}: {group.name.rstrip('/')}/{key}", group.get(key, getlink=True)
            if isinstance(link, h5py.ExternalLink):
                raise UserError(f"{place} is a link to the file {link.filename}, which is not read: {remedy}")
            item = group[key]
            if isinstance(item, h5py.Group):
                if (address := h5py.h5o.get_info(item.id).addr) in addresses:
                    raise UserError(f"{place} is another group's second name: remove the link")
                addresses.add(address)
                waiting.append(item)
            elif isinstance(item, h5py.Dataset):
                if item.is_virtual or item.external:
                    raise UserError(f"{place} takes its numbers from other files, which are not read: {remedy}")
                size += math.prod(map(float, item.shape or (1,))) * item.dtype.itemsize
    require_memory(name, size, "give a part of it")


def _read_groups(group: Any, name: str, demonstrations: bool = False) -> Iterator[Table]:
    """Read a table from each group with datasets; datasets of its subgroups have names such as ``infos/qpos``.

    In the layout of robomimic, robosuite and Isaac Lab each group in ``data`` is a demonstration, one trajectory whose poses
    may be matrices.
    """
    inner = {key: item for key, item in group.items() if hasattr(item, "keys")}
    if len(inner) < len(group) or not inner:
        arrays = _read_datasets(group)
        matrices = {key: rows for key, rows in flat(arrays).items() if demonstrations and arrays[key].ndim > 2}
        yield name, arrays | matrices
        return
    inner = {"data": inner["data"]} if "data" in inner else inner
    for key in sorted(inner, key=lambda key: [int(p) if p.isdigit() else p for p in re.split(r"(\d+)", key)]):
        yield from _read_groups(inner[key], f"{name}, {key}", demonstrations or key == "data")


def _read_datasets(group: Any, prefix: str = "") -> dict[str, NDArray]:
    arrays: dict[str, NDArray] = {}
    for name, item in group.items():
        if hasattr(item, "keys"):
            arrays |= _read_datasets(item, f"{prefix}{name}/")
        elif item.shape:
            values = np.asarray(item)
            if values.dtype == object:  # text, as bytes of any length
                texts = [value.decode() if isinstance(value, bytes) else str(value) for value in values.flat]
                values = np.array(texts).reshape(values.shape)
            arrays[prefix + name] = values
    return arrays


def _read_parquet(path: Path) -> Iterator[Table]:
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise ValueError(f"{path}: Parquet needs pyarrow, pip install 'rppdyn[parquet]'") from error
    with reading(path, "it may be cut off", "as a Parquet file"), pyarrow.parquet.ParquetFile(path) as file:
        groups = (file.metadata.row_group(i) for i in range(file.metadata.num_row_groups))
        require_memory(str(path), sum(group.total_byte_size for group in groups), "give a part of it")
        table = file.read()
        columns = {name: _to_array(table[name]) for name in table.column_names}
    yield str(path), columns


def _to_array(column: Any) -> NDArray:
    """Convert a Parquet column of numbers, text, or lists of one length; any other becomes the name of its type."""
    import pyarrow.compute as pc
    from pyarrow import types

    values = column
    while types.is_list(values.type) or types.is_large_list(values.type) or types.is_fixed_size_list(values.type):
        if len(pc.unique(pc.list_value_length(values))) != 1:
            break
        values = pc.list_flatten(values)
    if types.is_nested(values.type) or types.is_binary(values.type) or len(values) % max(len(column), 1):
        return np.full(len(column), f"{column.type}, or lists of several lengths")
    return values.to_numpy().reshape(len(column), -1)


def _read_episodes(source: str) -> Iterator[Table]:
    dataset = open_dataset(source)
    for episode in dataset.iterate_episodes():
        arrays = _named_arrays("observations", episode.observations) | _named_arrays("actions", episode.actions)
        yield f"{source}, episode {episode.id}", flat(arrays)


def _named_arrays(name: str, values: Any) -> dict[str, NDArray]:
    """The arrays in nested dictionaries, by dotted names."""
    if not isinstance(values, dict):
        return {name: np.asarray(values)}
    return {at: array for key, part in values.items() for at, array in _named_arrays(f"{name}.{key}", part).items()}


def flat(arrays: Mapping[str, NDArray]) -> dict[str, NDArray]:
    """Reshape columns to ``(N, numbers)``, without those that have no axis."""
    return {
        key: values.reshape(len(values), math.prod(values.shape[1:])) for key, values in arrays.items() if values.ndim
    }


def whole_of(text: str) -> str:
    """The name of the array of which ``name[2]`` or ``name[0:3]`` is a part."""
    return re.sub(r"\[[\d:]*\]$", "", text)


def column_of(name: str, table: Mapping[str, NDArray], text: str, key_name: str) -> NDArray:
    """A column ``(N, numbers)``, or a part of it, ``name[2]`` or ``name[0:3]``.

    Args:
        name: name of the table, for messages.
        text: the column.
        key_name: key of the configuration that names the column, for messages.
    Raises:
        ValueError: there is no such column or part.
    """
    key, part = re.fullmatch(r"(.*?)(?:\[(\d*:?\d*)\])?", text).groups()  # type: ignore[union-attr]
    if text in table:
        key, part = text, None
    if key not in table:
        from rppdyn.settings import did_you_mean  # with pydantic, for a message alone

        hint = did_you_mean(key, table)
        raise ValueError(f"{key_name}={text}: {name} has no such column{hint}; it has {list_names(list(table))}")
    values = table[key]
    if part is None:
        return values
    first, colon, last = part.partition(":")
    stop = (int(last) if last else values.shape[1]) if colon else int(first or 0) + 1
    start = int(first) if first else 0
    if not part or not 0 <= start < stop <= values.shape[1]:
        raise ValueError(
            f"{key_name}={text}: {name} has {values.shape[1]} numbers in {key}: give a part of 0:{values.shape[1]}"
        )
    return values[:, start:stop]


def columns_of(
    name: str, table: Mapping[str, NDArray], texts: Sequence[str], key_name: str
) -> tuple[tuple[str, ...], NDArray]:
    """Concatenate columns to ``(N, numbers)`` float64; also returns a name for each number.

    Raises:
        ValueError: a column is missing, holds no numbers, is named twice, or differs from the others in length.
    """
    names: list[str] = []
    columns: list[NDArray] = []
    for text in texts:
        values = column_of(name, table, text, key_name)
        if np.issubdtype(values.dtype, np.complexfloating):
            raise ValueError(
                f"{key_name}={text}: {name} has complex numbers there; give real and imaginary parts as columns"
            )
        if not np.issubdtype(values.dtype, np.number) and values.dtype != bool:
            row = next((i for i, value in enumerate(values[:, 0]) if not _is_number(str(value))), None)
            if row is not None:  # otherwise only other rows of the file have text
                raise ValueError(
                    f"{key_name}={text}: {name}, row {row + 1}: {str(values[row, 0])!r} is no number; name columns of numbers"
                )
        columns.append(values.astype(np.float64))
        names += [text] if values.shape[1] == 1 else [f"{text}[{i}]" for i in range(values.shape[1])]
    if len({len(values) for values in columns}) > 1:
        rows = ", ".join(f"{text} has {len(values)}" for text, values in zip(texts, columns, strict=True))
        raise ValueError(f"{name}: columns of different lengths, {rows}; give as many of each")
    if len(set(names)) < len(names):
        raise ValueError(f"{key_name}={list_names(texts)}: a column stands there twice")
    return tuple(names), np.concatenate(columns, 1) if columns else np.zeros((0, 0))


def require_finite(name: str, values: NDArray, names: Sequence[str], rows: NDArray | None = None) -> None:
    """Refuse numbers that are not finite.

    Args:
        rows: numbers of the rows in the file, if they do not count from 1.
    Raises:
        ValueError: naming row and column of the first one.
    """
    bad = (~np.isfinite(values)).nonzero()
    if len(bad[0]):
        row, column = int(bad[0][0]), int(bad[1][0])
        number = row + 1 if rows is None else rows[row]
        raise ValueError(
            f"{name}: {values[row, column]} in row {number}, column {names[column]}; leave the row out, or cut there"
        )


def checksum(tensors: Iterable[Any]) -> str:
    """16 hexadecimal digits of the SHA-256 of all numbers."""
    digest = hashlib.sha256()
    for values in tensors:
        digest.update(np.ascontiguousarray(values.numpy()).tobytes())
    return digest.hexdigest()[:16]


def list_names(names: Sequence[str]) -> str:
    return ", ".join(names[:MAX_LISTED_NAMES]) + (", ..." if len(names) > MAX_LISTED_NAMES else "")


# -- Minari -----------------------------------------------------------------------------------------------------------


def open_dataset(dataset: str) -> Any:
    """Open the `minari.MinariDataset` of an id or in a folder.

    Raises:
        ValueError: Minari is not installed, or the dataset is missing or damaged.
    """
    minari = _import_minari()
    folder = Path(dataset) if (Path(dataset) / "data").is_dir() else dataset_folder(dataset)
    if not (folder / "data").is_dir():
        raise ValueError(
            f"there is no dataset {dataset!r}, neither a folder nor in {_root()}: make one with rppdyn collect, or get one "
            "of Farama's with minari download"
        )
    import h5py

    for file in sorted((folder / "data").glob("*.hdf5")):
        with reading(file, "collect or download it again"), h5py.File(file) as content:
            require_contained(content, str(file))
    try:
        from minari.dataset.minari_storage import MinariStorage

        missing = {"observation_space", "action_space"} - MinariStorage.read_raw_metadata(folder / "data").keys()
        if missing:  # Minari would make the environment to get them, and import any module for it
            raise UserError(f"{dataset} does not say its {min(missing)}: write it again with rppdyn collect")
        return minari.MinariDataset(folder / "data")
    except UserError:
        raise
    except ImportError as error:
        raise ValueError(f"{dataset} can't be read: {reason(error)}") from error
    except Exception as error:  # whatever Gymnasium's and Minari's readers raise
        raise damaged_dataset(dataset, error) from error


def dataset_folder(dataset: str) -> Path:
    """The folder for a Minari id, which may not exist.

    Raises:
        ValueError: Minari is not installed, or the id is malformed.
    """
    _import_minari()
    from minari.dataset.minari_dataset import DATASET_ID_RE

    match = DATASET_ID_RE.fullmatch(dataset)
    if match is None or match["version"] is None:
        if (path := Path(dataset)).exists():
            kind = "a folder without a dataset" if path.is_dir() else "a file"
            raise ValueError(
                f"{dataset} is {kind}: give a folder that rppdyn collect has written, or an id of Minari's"
            )
        raise ValueError(
            f"{dataset!r} is neither a dataset's folder nor an id of Minari's: letters, digits, _ and -, folders of "
            "two letters or more before it, a version behind it, as in swimmer/random-v0"
        )
    return _root() / dataset


def _import_minari() -> Any:
    try:
        import h5py  # noqa: F401 (what Minari stores in)
        import minari
    except ImportError as error:
        raise ValueError(f"datasets of episodes need Minari ({error}): {INSTALL}") from error
    return minari


def _root() -> Path:
    from minari.storage.datasets_root_dir import get_dataset_path

    return Path(get_dataset_path()).resolve()  # h5py and Minari would join a relative path twice


def damaged_dataset(dataset: str, error: Exception) -> ValueError:
    """The error for a dataset that one of Minari's own functions could not read."""
    return ValueError(f"{dataset} can't be read ({reason(error)}): collect or download it again")
