"""What `result.json` of a finished run is read back as."""

from __future__ import annotations

from dataclasses import MISSING, dataclass, fields
from typing import Any, Self

from rppdyn.runs import RunFolderError


@dataclass
class RunResult:
    """What every run ends with."""

    run: str

    @classmethod
    def from_dict(cls, result: dict[str, Any]) -> Self:
        """What a finished run wrote.

        Raises:
            RunFolderError: something of it is missing.
        """
        needed = [f.name for f in fields(cls) if f.default is MISSING and f.default_factory is MISSING]
        if missing := [name for name in needed if name not in result]:
            raise RunFolderError(
                f"{result['run']}/result.json is damaged: it has no {missing[0]}; delete it and use --resume to write it again"
            )
        return cls(**{f.name: result[f.name] for f in fields(cls) if f.name in result})
