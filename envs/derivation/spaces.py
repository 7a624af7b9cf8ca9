"""How chosen symmetries act on a simulator's state, its controls and its actuators' activations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import mujoco

from rppdyn.envs.derivation.skeleton import BIAS, GAIN, JOINT, TRANSMISSION, control_addresses
from rppdyn.envs.model_symmetry import ModelSymmetry
from rppdyn.envs.observation.action import space_of
from rppdyn.envs.observation.matching import Source
from rppdyn.envs.observation.quantities import fields_of
from rppdyn.envs.observation.recognition import Observation
from rppdyn.envs.spec import Entry, Space

__all__ = ["state_spaces"]

# Field of `mjData` that each space is about.
_FIELDS = {"qpos": "qpos", "qvel": "qvel", "action": "ctrl", "act": "act"}


def state_spaces(model: mujoco.MjModel, symmetries: Sequence[ModelSymmetry]) -> dict[str, Space]:
    """The spaces "qpos", "qvel", "action" and, where actuators have any activation, "act"; a generator per symmetry in each.

    A quaternion is encoded as a rotation matrix. A hinge's angle is encoded as cosine and sine if the chosen symmetries
    shift it and no fixed point that they have in common (`Space.origin`) makes them linear.

    Raises:
        ValueError: positions in the world have no fixed point in common.
    """
    data = mujoco.MjData(model)
    fields = {field.name: field for field in fields_of(model)}
    spaces = {}
    for key, name in _FIELDS.items():
        if (field := fields.get(name)) is None:
            continue
        seen = (field, *(fields[key] for key in ("cosine and sine",) if key in fields))  # of hinges, if there are any
        sources = tuple(Source(((i, 1.0),)) for i in range(len(field.entries)))
        observed = Observation(name, model, data, partial(getattr, data, name), seen, sources)
        spaces[key] = space_of(observed, symmetries)
    if "action" in spaces:
        spaces["action"] = replace(spaces["action"], entries=_controls(model))
    return spaces


def _controls(model: mujoco.MjModel) -> tuple[Entry, ...]:
    """What each control does: the torque or force on a joint that a motor gives, or the actuator's own name."""
    found = []
    plain = (GAIN.FIXED, BIAS.NONE)
    kinds = zip(model.actuator_gaintype, model.actuator_biastype, strict=True)
    motors = [(int(gain), int(bias)) == plain for gain, bias in kinds]
    adr, num = control_addresses(model)
    for i in range(len(adr)):
        on_joint = model.actuator_trntype[i] in (TRANSMISSION.JOINT, TRANSMISSION.JOINTINPARENT)
        j = int(model.actuator_trnid[i, 0])
        joint = (model.joint(j).name or f"joint {j}") if on_joint else ""
        name = model.actuator(i).name or joint or f"actuator {i}"
        for _ in range(num[i]):
            if on_joint and motors[i] and model.jnt_type[j] in (JOINT.SLIDE, JOINT.HINGE):
                slides = model.jnt_type[j] == JOINT.SLIDE
                found.append(Entry(f"{joint} {'force' if slides else 'torque'}", joint, "N" if slides else "N m"))
            else:
                found.append(Entry(f"{name} control", joint))
    return tuple(found)
