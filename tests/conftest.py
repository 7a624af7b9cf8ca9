"""What every test shares: shapes checked while tests run, a private basis cache, figures without a display."""

from __future__ import annotations

import gc
import inspect
import os
import re
import sys
import types
from pathlib import Path
from typing import Any

import jaxtyping
import pytest

# Public signatures carry shapes (jaxtyping); from here on a call that breaks its own is an error. Modules are checked
# when they are first imported, so the hook stands before any import of the package.
CHECKED = ["rppdyn.groups", "rppdyn.reps", "rppdyn.basis", "rppdyn.nn", "rppdyn.priors", "rppdyn.compression",
           "rppdyn.equivariance", "rppdyn.dynamics", "rppdyn.images", "rppdyn.tasks",
           "rppdyn.envs.episodes"]  # fmt: skip
SHAPE = re.compile(r"\b(Bool|Complex|Float|Inexact|Int|Shaped)\[|\bImages\b")  # Images: a name for one of these


def checked(*, typechecker: Any, jaxtyped: Any = jaxtyping.jaxtyped) -> Any:
    """Check the calls of functions and dataclasses that state a shape; the many others would cost more than these."""

    def decorate(member: Any) -> Any:
        function = inspect.unwrap(member.fget if isinstance(member, property) else getattr(member, "__func__", member))
        stated = any(SHAPE.search(str(kind)) for kind in getattr(function, "__annotations__", {}).values())
        return jaxtyped(member, typechecker=typechecker) if stated else member

    return decorate


jaxtyping.jaxtyped = checked
jaxtyping.install_import_hook(CHECKED, "beartype.beartype")

# Whole jobs call the mathematics many thousand times, and a check takes longer than most of what it checks: it was half of
# their time. What they call is checked in the tests of its own folder; so is what tests marked `unchecked` call.
UNCHECKED = ("acceptance", "agents", "jobs")

os.environ.setdefault("MPLBACKEND", "Agg")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item):
    """A test with its fixtures, with shapes checked or without."""
    folder = item.path.relative_to(Path(__file__).parent).parts[0]
    jaxtyping.config.update(
        "jaxtyping_disable", folder in UNCHECKED or item.get_closest_marker("unchecked") is not None
    )
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
