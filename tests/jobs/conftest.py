"""Jobs without the rendering of their figures, which took a third of their time."""

from __future__ import annotations

from pathlib import Path

import pytest
from matplotlib.figure import Figure

HERE = Path(__file__).parent


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item):
    """A test with its fixtures; figures are made but written as empty files, but in tests marked `rendered`."""
    if item.get_closest_marker("rendered") or HERE not in item.path.parents:  # pytest calls this hook for all tests
        return (yield)
    render = Figure.savefig

    def savefig(figure: Figure, file, **options) -> None:
        if isinstance(file, str | Path):
            Path(file).write_bytes(b"")
        else:  # of a page
            render(figure, file, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Figure, "savefig", savefig)
        return (yield)
