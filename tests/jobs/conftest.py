"""Jobs without the rendering of their figures, which took a third of their time."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from matplotlib.figure import Figure

HERE = Path(__file__).parent
EMPTY_SVG = '<svg xmlns="http://www.w3.org/2000/svg" width="10pt" height="10pt" viewBox="0 0 10 10"></svg>'


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item):
    """A test with its fixtures; figures are made and written empty, but in tests marked `rendered`."""
    if item.get_closest_marker("rendered") or HERE not in item.path.parents:  # pytest calls this hook for all tests
        return (yield)

    def savefig(figure: Figure, file, **options) -> None:
        if isinstance(file, str | Path):
            Path(file).write_bytes(b"")
        else:  # of a page
            file.write(EMPTY_SVG if isinstance(file, io.TextIOBase) else EMPTY_SVG.encode())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Figure, "savefig", savefig)
        return (yield)
