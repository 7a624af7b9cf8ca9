"""Models that the mjlab wheel ships, for tests and evidence; nothing of them is kept here. They stand on a plane."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import mujoco
import pytest

FILES = {"g1": "unitree_g1/xmls/g1.xml", "go1": "unitree_go1/xmls/go1.xml", "yam": "i2rt_yam/xmls/yam.xml"}


def mjlab_model(name: str) -> mujoco.MjModel:
    """The model; the test is skipped where mjlab is not installed."""
    found = find_spec("mjlab")
    if found is None or not found.submodule_search_locations:
        pytest.skip("mjlab is not installed (pip install --no-deps mjlab)")
    file = Path(found.submodule_search_locations[0]) / "asset_zoo" / "robots" / FILES[name]
    spec = mujoco.MjSpec.from_file(str(file))
    spec.worldbody.add_geom(name="floor", type=mujoco.mjtGeom.mjGEOM_PLANE, size=[20, 20, 1])
    return spec.compile()
