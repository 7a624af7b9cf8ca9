"""`import rppdyn; rppdyn.nn` works."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

import rppdyn

FLOORS = sorted(
    path.stem
    for path in Path(rppdyn.__file__).parent.iterdir()
    if path.name[0] not in "_." and path.stem not in ("cli", "configs", "py")
)


def test_every_floor_is_an_attribute():
    assert sorted(rppdyn.FLOORS) == FLOORS
    for name in FLOORS:  # as where it is no attribute yet
        assert rppdyn.__getattr__(name).__name__ == f"rppdyn.{name}"


def test_what_is_no_floor_is_refused():
    with pytest.raises(AttributeError, match="'rppdyn' has no attribute 'nets'"):
        rppdyn.nets  # noqa: B018


def test_names_to_begin_with_are_those_of_their_floors():
    for name, place in rppdyn.NAMES.items():
        module, _, attribute = place.partition(":")
        assert getattr(rppdyn, name) is getattr(importlib.import_module(f"rppdyn.{module}"), attribute)
    assert rppdyn.agents.RPPPPO is rppdyn.RelaxedPPO


def test_the_old_name_of_three_functions_says_which_one_is_meant(monkeypatch):
    """By the options' names."""
    for options, name in (({"state": "q"}, "dynamics"), ({"labels": "y"}, "images"), ({"rep": "V"}, "regression")):
        monkeypatch.setitem(rppdyn.NAMES, f"fit_{name}", "runs:iqm")
        monkeypatch.setattr("rppdyn.runs.iqm", lambda data, **options: (data, options))
        with pytest.warns(DeprecationWarning, match=f"call rppdyn.fit_{name}$"):
            assert rppdyn.fit("data", **options) == ("data", options)


def test_names_of_version_0_1_are_still_found_in_envs():
    import rppdyn.envs

    names = [name for names in rppdyn.envs.EARLIER.values() for name in names.split()]
    assert all(getattr(rppdyn.envs, name).__name__ for name in names if name[1:2].islower())
    from rppdyn.envs import why_not_capturable

    assert callable(why_not_capturable) and not hasattr(rppdyn.envs, "anything_else")
