"""Asymmetries planted in one number of a symmetric MuJoCo model at a time: `derive` names it, or it is without effect.

Addresses and references (`jnt_qposadr`, `geom_bodyid`, ...) are not planted: a compiled model in which one of them is changed
alone is no model, and MuJoCo reads beyond its arrays. `NEXT` holds the whole numbers that can be changed.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass

import mujoco
import numpy as np
from robots import derived, robot, step_defects, tighten, visited

from rppdyn.envs.derivation import derive, symmetrise

ROUNDING = 1e-9
"""Largest relative defect of a step from a mirrored state that is rounding, contacts solved as well as they can be."""

NEXT = {
    "geom_condim": {1: 3, 3: 4, 4: 6, 6: 3},
    "pair_dim": {1: 3, 3: 4, 4: 6, 6: 3},
    "geom_type": {3: 5, 5: 3, 6: 4, 4: 6},  # a capsule becomes a cylinder, a box an ellipsoid
    "actuator_gaintype": {0: 1},
    "actuator_biastype": {0: 1},
    "actuator_dyntype": {2: 3, 3: 2},
    "geom_contype": {0: 1, 1: 0},
    "geom_conaffinity": {0: 1, 1: 0},
    "geom_priority": {0: 1},
    "body_contype": {0: 1, 1: 0},
    "body_conaffinity": {0: 1, 1: 0},
    "body_simple": {0: 1, 1: 0, 2: 1},
    "body_sameframe": {0: 1, 1: 0, 3: 1},
    "geom_sameframe": {0: 1, 1: 0, 2: 1, 3: 1, 4: 1},
    "site_sameframe": {0: 1, 1: 0, 2: 1, 3: 1, 4: 1},
}
"""What a whole number becomes; others are addresses and references, which can't be changed alone in a compiled model."""

UNIT = ("jnt_axis", "_quat", "_iquat")


@dataclass(frozen=True)
class Plant:
    """One number of one field, `index` into the field's array."""

    field: str
    index: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.field}[{', '.join(map(str, self.index))}]"

    def into(self, model: mujoco.MjModel) -> mujoco.MjModel | None:
        """A copy with the number changed by a tenth of the field's size, or to the next kind; None if it can't be."""
        made = copy.copy(model)
        array = _array(made, self.field)
        value = array[self.index]
        if array.dtype == bool or self.field in FLAGS:
            array[self.index] = not value
        elif np.issubdtype(array.dtype, np.integer):
            following = NEXT.get(self.field, {}).get(int(value))
            if following is None:
                return None
            array[self.index] = following
        else:
            array[self.index] = value + 0.1 * (np.abs(array).max() or 1.0)
            if self.field.endswith(UNIT):
                array[self.index[0]] /= np.linalg.norm(array[self.index[0]])
        return made


FLAGS = ("eq_active0",)


def _array(model: mujoco.MjModel, field: str) -> np.ndarray:
    """The field's array, with a row per element."""
    return getattr(model.opt, field[4:]) if field.startswith("opt.") else getattr(model, field)


def fields(model: mujoco.MjModel) -> list[str]:
    """Names of all fields of `MjModel` that hold data, those of its options as ``"opt.gravity"``."""
    names = [name for name in dir(model) if not name.startswith("_") and not callable(getattr(model, name))]
    return [*names, *(f"opt.{name}" for name in dir(model.opt) if not name.startswith("_"))]


def plants(
    model: mujoco.MjModel, numbers: int | None = None, rng: np.random.Generator | None = None
) -> Iterator[Plant]:
    """Every number of every array of a model; with `numbers`, so many of each array, drawn at random."""
    for field in fields(model):
        array = _array(model, field)
        if not isinstance(array, np.ndarray) or not array.size or array.dtype.kind not in "biuf":
            continue
        chosen = np.arange(array.size)
        if numbers is not None and numbers < array.size:
            chosen = np.sort(rng.choice(array.size, numbers, replace=False))
        yield from (Plant(field, tuple(map(int, np.unravel_index(k, array.shape)))) for k in chosen)


def exact(name: str) -> tuple[mujoco.MjModel, str]:
    """A model and the name of a mirror symmetry from which nothing deviates."""
    symmetry = "leg swap" if "walker" in name else "left-right"
    if name == "puppet":
        return tighten(mujoco.MjModel.from_xml_string(PUPPET)), symmetry
    model = tighten(robot(name))
    found = derived(name)[symmetry]
    return (symmetrise(model, found) if found.deviations else model), symmetry


def judge(plant: Plant, model: mujoco.MjModel, symmetry: str, states: list[tuple[np.ndarray, ...]]) -> str:
    """ "reference", "refused", "named", "lost" (no such symmetry any more), "without effect", or "MISSED"."""
    spoilt = plant.into(model)
    if spoilt is None:
        return "reference"
    try:
        found = derive(spoilt)
    except ValueError:
        return "refused"
    if symmetry not in found.names:
        return "lost"
    if found[symmetry].deviations:
        return "named"
    return "without effect" if step_defects(spoilt, found[symmetry], states).max() < ROUNDING else "MISSED"


def states_of(model: mujoco.MjModel) -> list[tuple[np.ndarray, ...]]:
    """States in the air and on the ground, from which the effect of a plant is looked for."""
    return visited(model, n=6, steps=20) + visited(model, n=10, steps=300, seed=1)


PUPPET = """<mujoco><compiler angle="radian"/>
<option density="1.2" viscosity=".01" wind="1 0 0" integrator="implicitfast"/>
<asset><mesh name="wedge" vertex="-.05 -.03 0  .05 -.03 0  -.05 .03 0  .05 .03 0  .04 -.02 .05  .04 .02 .05"/>
<hfield name="ground" nrow="3" ncol="4" size="2 2 .05 .1" elevation="0 .1 .2 .3  0 .1 .2 .3  0 .1 .2 .3"/></asset>
<worldbody><geom name="floor" type="plane" size="5 5 .1" pos="0 0 -.05"/>
<geom name="rough" type="hfield" hfield="ground" pos="9 0 -.05" friction=".8 .01 .001"/>
<site name="hook_l" pos="0 .6 1.6"/><site name="hook_r" pos="0 -.6 1.6"/>
<body name="torso" pos="0 0 .5"><freejoint name="root"/>
 <geom name="trunk" type="box" size=".2 .1 .05" mass="4" fluidshape="ellipsoid"/>
<geom name="nose" type="mesh" mesh="wedge" pos=".22 0 .03" mass=".2"/><site name="belly" pos="0 0 -.05"/>
{l}{r}
<body name="tail" pos="-.2 0 0"><joint name="tail" axis="0 0 1" range="-1 1" damping=".02" stiffness=".1"/>
<geom type="capsule" fromto="0 0 0 -.2 0 0" size=".02" mass=".2"/></body></body></worldbody>
<contact><pair geom1="shin_l" geom2="floor" friction=".9 .9 .01 .001 .001" condim="4"/>
<pair geom1="floor" geom2="shin_r" friction=".9 .9 .01 .001 .001" condim="4"/><pair geom1="shin_l" geom2="shin_r"/>
<exclude body1="tail" body2="thigh_l"/><exclude body1="thigh_r" body2="tail"/></contact>
<tendon><spatial name="rope_l" stiffness="5" damping=".1" springlength=".3" frictionloss=".01"><site site="hook_l"/>
<geom geom="knob_l" sidesite="side_l"/><site site="eye_l"/><pulley divisor="2"/><site site="eye_l"/>
 <site site="belly"/></spatial>
<spatial name="rope_r" stiffness="5" damping=".1" springlength=".3" frictionloss=".01"><site site="hook_r"/>
<geom geom="knob_r" sidesite="side_r"/><site site="eye_r"/><pulley divisor="2"/><site site="eye_r"/>
 <site site="belly"/></spatial>
<fixed name="legs_l" range="-.5 .5" limited="true" armature=".001"><joint joint="knee_l" coef="1"/>
 <joint joint="hip_l" coef="-.5"/></fixed>
<fixed name="legs_r" range="-.5 .5" limited="true" armature=".001"><joint joint="knee_r" coef="1"/>
 <joint joint="hip_r" coef=".5"/></fixed></tendon>
<equality><joint joint1="flap_l" joint2="knee_l" polycoef=".05 .3 .1 0 0"/>
 <joint joint1="flap_r" joint2="knee_r" polycoef=".05 .3 .1 0 0"/>
<tendon tendon1="legs_l" tendon2="legs_r" polycoef="0 1 0 0 0"/>
<connect body1="bob_l" body2="thigh_l" anchor="0 0 .02" solref=".05 1"/>
 <connect body1="bob_r" body2="thigh_r" anchor="0 0 .02" solref=".05 1"/>
<weld body1="shin_l" body2="shin_r" anchor="0 .25 0" solref=".5 1" torquescale=".1"/></equality>
<actuator>
 <general name="knee_l" joint="knee_l" gear="3" ctrlrange="-1 1"
  dyntype="filter" dynprm=".05" actlimited="true" actrange="-2 2"/>
<general name="knee_r" joint="knee_r" gear="3" ctrlrange="-1 1"
  dyntype="filter" dynprm=".05" actlimited="true" actrange="-2 2"/>
<position name="hip_l" joint="hip_l" kp="4" kv=".1" ctrlrange="-.5 .3" forcerange="-3 2" forcelimited="true"/>
<position name="hip_r" joint="hip_r" kp="4" kv=".1" ctrlrange="-.3 .5" forcerange="-2 3" forcelimited="true"/>
<muscle name="rope_l" tendon="rope_l" ctrlrange="0 1" lengthrange=".5 2"/>
 <muscle name="rope_r" tendon="rope_r" ctrlrange="0 1" lengthrange=".5 2"/>
<motor name="fin_l" site="eye_l" gear="0 .1 .2 .01 0 0" ctrlrange="-1 1"/>
 <motor name="fin_r" site="eye_r" gear="0 -.1 .2 -.01 0 0" ctrlrange="-1 1"/>
<motor name="tail" joint="tail" gear=".2" ctrlrange="-1 1"/></actuator></mujoco>"""
"""A quadruped's rear half and a tail with whatever MJCF can put on two sides: tendons, pairs, constraints, springs, muscles."""

SIDE = """<body name="thigh_{s}" pos="0 {y}.1 0">
 <joint name="hip_{s}" axis="{hip} 0 0" range="{range}" frictionloss=".02" armature=".01"/>
<geom name="knob_{s}" type="sphere" size=".05" pos="0 {y}.08 0" mass=".3"/><site name="side_{s}" pos="0 {y}.08 .1"/>
 <site name="eye_{s}" pos="0.02 {y}.16 -.03"/>
<geom name="thigh_{s}" type="capsule" fromto="0 0 0 .03 {y}.15 -.05" size=".03" mass=".5" gap=".001"/>
<body name="shin_{s}" pos=".03 {y}.15 -.05" gravcomp=".2">
 <joint name="knee_{s}" axis="0 1 0" stiffness=".5" springref=".1" range="-1 1" actuatorfrcrange="-5 4"/>
<geom name="shin_{s}" type="capsule" fromto="0 0 0 0 0 -.3" size=".025" mass=".3"/>
<body name="flap_{s}" pos="0 0 -.3"><joint name="flap_{s}" axis="0 1 0" damping=".01"/>
 <geom name="flap_{s}" type="ellipsoid" size=".06 .03 .02" mass=".05" fluidshape="ellipsoid"/></body></body>
<body name="bob_{s}" pos="0 {y}.2 .1"><joint name="bob_{s}" type="ball" stiffness=".2" damping=".01"/>
 <geom type="sphere" size=".03" pos=".01 {y}.02 .02" mass=".1" contype="0"/></body></body>"""

PUPPET = PUPPET.format(
    l=SIDE.format(s="l", y="", hip="1", range="-.5 .8"), r=SIDE.format(s="r", y="-", hip="1", range="-.8 .5")
)
