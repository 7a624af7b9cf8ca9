"""MuJoCo models that tests of derived symmetries share: Gymnasium's and, written by others, those of dm_control."""

from __future__ import annotations

import functools
import importlib.util
from pathlib import Path

import mujoco
import numpy as np

from rppdyn.envs._model_symmetry import ModelSymmetry, finite_element
from rppdyn.envs._simulator import control_bounds
from rppdyn.envs.derivation import Derivation, derive, state_spaces

FOLDERS = {"gymnasium": "envs/mujoco/assets", "dm_control": "suite"}


def robot(name: str) -> mujoco.MjModel:
    """The model of a name such as "gymnasium/ant"; dm_control itself is found, not imported."""
    package, stem = name.split("/")
    found = importlib.util.find_spec(package)
    return mujoco.MjModel.from_xml_path(
        str(Path(found.submodule_search_locations[0]) / FOLDERS[package] / f"{stem}.xml")
    )


def tighten(model: mujoco.MjModel) -> mujoco.MjModel:
    """Contacts solved to rounding, with a cone of friction that is round, as the world is."""
    model.opt.solver, model.opt.cone = mujoco.mjtSolver.mjSOL_NEWTON, mujoco.mjtCone.mjCONE_ELLIPTIC
    model.opt.iterations = model.opt.ls_iterations = 100
    model.opt.tolerance, model.opt.ls_tolerance = 0.0, 1e-14
    model.opt.disableflags |= int(mujoco.mjtDisableBit.mjDSBL_WARMSTART)
    return model


@functools.cache
def derived(name: str) -> Derivation:
    """What is derived from a robot as it is; its model must not be changed."""
    return derive(robot(name))


def visited(
    model: mujoco.MjModel, *, n: int = 4, steps: int = 40, touching: bool = False, seed: int = 0
) -> list[tuple[np.ndarray, ...]]:
    """Positions, velocities, activations and controls of n random states.

    States are reached by random controls from random positions; `touching` goes on until something is in contact, for at
    most 3000 steps.
    """
    data, rng = mujoco.MjData(model), np.random.default_rng(seed)
    low, high = control_bounds(model)
    states = []
    for _ in range(n):
        mujoco.mj_resetData(model, data)
        mujoco.mj_integratePos(model, data.qpos, rng.normal(size=model.nv), 0.2)
        data.qvel[:] = 0.3 * rng.normal(size=model.nv)
        for k in range(3000):
            if k >= steps and (data.ncon or not touching):
                break
            data.ctrl[:] = rng.uniform(low, high)
            mujoco.mj_step(model, data)
        assert data.ncon or not touching
        states.append((data.qpos.copy(), data.qvel.copy(), data.act.copy(), data.ctrl.copy()))
    return states


def step_defects(
    model: mujoco.MjModel, symmetry: ModelSymmetry, states: list[tuple[np.ndarray, ...]] | None = None, **visit: int
) -> np.ndarray:
    """Relative differences after one step from states, those that `visited` gives, and from their images.

    A continuous symmetry is tried at 0.7.
    """
    g = finite_element(symmetry, 0.7) if symmetry.is_continuous else symmetry
    spaces, data = state_spaces(model, [g]), mujoco.MjData(model)

    def image(key, values):
        return spaces[key].transform(spaces[key].generator(0), values) if key in spaces else values.copy()

    def features():
        return np.concatenate([spaces["qpos"].encode(data.qpos), data.qvel, data.act])

    def step(qpos, qvel, act, ctrl):
        mujoco.mj_resetData(model, data)
        data.qpos[:], data.qvel[:], data.act[:], data.ctrl[:] = qpos, qvel, act, ctrl
        before = features()
        mujoco.mj_step(model, data)
        return data.qpos.copy(), data.qvel.copy(), data.act.copy(), features() - before

    defects = []
    for state in visited(model, **visit) if states is None else states:
        *after, moved = step(*state)
        keys = ("qpos", "qvel", "act", "action")
        *mirrored, _ = step(*(image(key, part) for key, part in zip(keys, state, strict=True)))
        expected = [image(key, part) for key, part in zip(keys, after, strict=False)]
        gap = [spaces["qpos"].encode(mirrored[0]) - spaces["qpos"].encode(expected[0])]
        gap += [a - b for a, b in zip(mirrored[1:], expected[1:], strict=True)]
        defects.append(np.linalg.norm(np.concatenate(gap)) / np.linalg.norm(moved))
    return np.array(defects)
