"""What every test shares: shapes checked while tests run, a private basis cache, figures without a display."""

from __future__ import annotations

import functools
import gc
import inspect
import io
import os
import re
import sys
import types
from pathlib import Path
from typing import Any

import jaxtyping
import pytest

gc.disable()  # while tests are collected, whose modules stay

# Public signatures carry shapes (jaxtyping); from here on a call that breaks its own is an error. Modules are checked
# when they are first imported, so the hook stands before any import of the package.
CHECKED = ["rppdyn.groups", "rppdyn.reps", "rppdyn.basis", "rppdyn.nn", "rppdyn.priors", "rppdyn.compression",
           "rppdyn.equivariance", "rppdyn.dynamics", "rppdyn.images", "rppdyn.tasks",
           "rppdyn.envs._episodes"]  # fmt: skip
SHAPE = re.compile(r"\b(Bool|Complex|Float|Inexact|Int|Shaped)\[|\bImages\b")  # Images: a name for one of these


MAX_CHECKS = 20
"""Calls of one function that are checked in one test: a trajectory takes thousands of the same shapes."""


def checked(*, typechecker: Any, jaxtyped: Any = jaxtyping.jaxtyped) -> Any:
    """Check calls of functions and dataclasses that state a shape; the many others would cost more than these."""

    def decorate(member: Any) -> Any:
        function = inspect.unwrap(member.fget if isinstance(member, property) else getattr(member, "__func__", member))
        stated = any(SHAPE.search(str(kind)) for kind in getattr(function, "__annotations__", {}).values())
        if not stated or not inspect.isfunction(member):
            return jaxtyped(member, typechecker=typechecker) if stated else member
        checking: list[Any] = []  # made at the first call: to make all of them takes seconds

        @functools.wraps(member)
        def call(*args: Any, **options: Any) -> Any:
            if COUNTS is None or COUNTS.get(call, 0) == MAX_CHECKS:
                return member(*args, **options)
            COUNTS[call] = COUNTS.get(call, 0) + 1
            if not checking:
                checking.append(jaxtyped(member, typechecker=typechecker))
            return checking[0](*args, **options)

        return call

    return decorate


COUNTS: dict[Any, int] | None = None
"""Checked calls of each function in the test that runs; None in tests without checks."""


jaxtyping.jaxtyped = checked
jaxtyping.install_import_hook(CHECKED, "beartype.beartype")

# Whole jobs call the mathematics many thousand times, and a check takes longer than most of what it checks: it was half of
# their time. What they call is checked in the tests of its own folder; so is what tests marked `unchecked` call.
UNCHECKED = ("acceptance", "agents", "golden", "integrations", "jobs", "test_docs.py", "test_site.py")

os.environ.setdefault("MPLBACKEND", "Agg")


# Whole jobs draw figures, which took a third of their time: these are made and written empty, but in tests marked `rendered`.
EMPTY = ("acceptance", "golden", "integrations", "jobs", "tasks")
EMPTY_SVG = '<svg xmlns="http://www.w3.org/2000/svg" width="10pt" height="10pt" viewBox="0 0 10 10"></svg>'


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.set_threshold(10_000, 20, 10)  # at 700, which is Python's own, nineteen tests spent 3 % of their time on it
    gc.enable()


def save_empty(figure: Any, file: Any, **options: Any) -> None:
    if isinstance(file, str | Path):
        Path(file).write_bytes(b"")
    else:  # of a page
        file.write(EMPTY_SVG if isinstance(file, io.TextIOBase) else EMPTY_SVG.encode())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item):
    """A test with its fixtures, with shapes checked or without, with figures or empty ones."""
    folder = item.path.relative_to(Path(__file__).parent).parts[0]
    global COUNTS
    COUNTS = None if folder in UNCHECKED or item.get_closest_marker("unchecked") else {}
    jaxtyping.config.update("jaxtyping_disable", COUNTS is None)
    if folder not in EMPTY or item.get_closest_marker("rendered"):
        return (yield)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("matplotlib.figure.Figure.savefig", save_empty)
        return (yield)


@pytest.fixture(scope="session", autouse=True)
def private_cache(tmp_path_factory: pytest.TempPathFactory):
    """Bases solved by tests are cached, and datasets kept, in folders of the session's own, never in the user's.

    Processes that share out the tests share the cache, in which each basis is solved once.
    """
    own = tmp_path_factory.getbasetemp()
    folder = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "cache"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RPPDYN_CACHE_DIR", str(folder))
        patch.setenv("RPPDYN_CONFIG_DIR", str(tmp_path_factory.mktemp("config")))
        patch.setenv("MINARI_DATASETS_PATH", str(tmp_path_factory.mktemp("datasets")))
        yield folder


FOUND: dict[str, Any] = {}
"""Modules that are no user's, by name: to look at all of them after each test would take 3 ms."""


@pytest.fixture(autouse=True)
def users_code_is_forgotten(tmp_path_factory: pytest.TempPathFactory):
    """Forget a user's module, which a test wrote and imported, and the environments that it registered.

    The next test of the process may write another module of the same name, or register another environment under it.
    """
    yield
    folder = str(tmp_path_factory.getbasetemp())
    new = {name: module for name, module in [*sys.modules.items()] if FOUND.get(name) is not module}
    own = [name for name, module in new.items() if str(getattr(module, "__file__", "")).startswith(folder)]
    if own:
        registry = sys.modules["gymnasium"].registry if "gymnasium" in sys.modules else {}
        for name, spec in [*registry.items()]:
            entry = spec.entry_point
            if (entry.split(":")[0] if isinstance(entry, str) else getattr(entry, "__module__", None)) in own:
                del registry[name]
    for name in own:
        sys.modules.pop(name, None)
    FOUND.update((name, module) for name, module in new.items() if name not in own)


@pytest.fixture
def data_collector(monkeypatch: pytest.MonkeyPatch):
    """Minari's own `DataCollector`, which asks jax, a heavy package, for a map over nested containers; torch has one too."""
    import minari
    import torch.utils._pytree as pytree

    monkeypatch.setitem(sys.modules, "jax", types.ModuleType("jax"))
    monkeypatch.setitem(sys.modules, "jax.tree_util", pytree)
    monkeypatch.setattr(sys.modules["jax"], "tree_util", pytree, raising=False)
    yield minari.DataCollector
    gc.collect()  # its temporary folders warn when they go
