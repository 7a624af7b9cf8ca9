"""What a model file asks of the memory before it is compiled: sizes that it declares, and copies of what it holds.

MuJoCo allocates what a height field, a texture, an arena or a replication declares, and takes the machine down with it.
"""

from __future__ import annotations

import math
import re
from pathlib import Path

from rppdyn.errors import UserError
from rppdyn.runs.files import require_memory

MAX_ELEMENTS = 100_000
"""Elements of a model, copies counted, that MuJoCo compiles in seconds."""
ELEMENT_BYTES = 10_000
TAG = re.compile(r"""<(/?)([\w:]+)((?:"[^"]*"|'[^']*'|[^<>"'])*)>""")
ATTRIBUTE = re.compile(r"""([\w:]+)\s*=\s*(?:"([^"]*)"|'([^']*)')""")
NAMES = ("name", "class", "childclass", "joint", "body", "geom", "site", "tendon", "target", "objname", "material", "mesh",
         "model", "texture", "prefix", "file")  # fmt: skip
UNITS = {unit: 1024**power for power, unit in enumerate("KMGTPE", 1)}


def require_model_fits(path: str | Path) -> None:
    """Refuse a model file that declares more than fits in memory, more elements than MuJoCo compiles in seconds, or nan.

    Raises:
        UserError: it does.
    """
    elements, size = _declared(Path(path), [])
    if elements > MAX_ELEMENTS:
        raise UserError(
            f"{path} declares {elements:.3g} elements, with the copies of its replications; {MAX_ELEMENTS} are compiled in "
            "seconds: give smaller counts"
        )
    require_memory(
        str(path), elements * ELEMENT_BYTES + size, "declare smaller height fields, textures, arenas and counts"
    )


def _declared(path: Path, parents: list[Path]) -> tuple[float, float]:
    """Elements of a file, and bytes that it declares beside them; included files too."""
    if path in parents or len(parents) > 20 or not path.is_file():
        return 0.0, 0.0  # MuJoCo says so
    text = re.sub(r"<!--.*?-->", "", path.read_bytes().decode("utf-8", "replace"), flags=re.S)
    elements, size, copies = 0.0, 0.0, [1.0]
    for closing, tag, inside in TAG.findall(text):
        if closing:
            if tag == "replicate" and len(copies) > 1:
                copies.pop()
            continue
        own = {name: double or single for name, double, single in ATTRIBUTE.findall(inside)}
        for name, value in own.items():  # MuJoCo takes them, and leaves a file of its own beside yours
            parts = value.lower().split()
            if {"nan", "-nan"} & set(parts) and (len(parts) > 1 or name not in NAMES):
                raise UserError(
                    f"{path}: {name}={value!r} of <{tag}> is no number: write it, or leave the attribute out"
                )
        count = math.prod(max(_number(part), 1.0) for part in own.get("count", "1").split())
        elements += copies[-1] * count
        if tag == "replicate" and not inside.rstrip().endswith("/"):
            copies.append(copies[-1] * count)
        size += 8 * _number(own.get("nrow", "")) * _number(own.get("ncol", ""))
        width = _number(own.get("width", "")) if tag == "texture" else 0.0
        size += 6 * 4 * width * max(_number(own.get("height", "")), width)
        if tag == "size":
            size += sum(8 * _number(value) if name != "memory" else _bytes(value) for name, value in own.items())
        if tag in ("include", "model") and "file" in own:
            more, bytes_there = _declared(path.parent / own["file"], [*parents, path])
            elements, size = elements + copies[-1] * more, size + copies[-1] * bytes_there
    return elements, size


def _number(text: str) -> float:
    try:
        value = abs(float(text))
    except ValueError:
        return 0.0
    return value if math.isfinite(value) else 1e300


def _bytes(text: str) -> float:
    text = text.strip().upper()
    return _number(text[:-1]) * UNITS[text[-1]] if text[-1:] in UNITS else _number(text)
