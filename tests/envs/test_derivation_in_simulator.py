"""Derived symmetries against MuJoCo's own step: from an image it goes to the image."""

from __future__ import annotations

from dataclasses import replace

import mujoco
import numpy as np
import pytest
from robots import derived, robot, step_defects, tighten

from rppdyn.envs.derivation import derive, symmetrise

# Symmetries from which nothing deviates, or nothing that these states meet (walls, limits of far away targets).
EXACT = {
    "gymnasium/swimmer": ("left-right", "planar rotation"),
    "gymnasium/walker2d_v5": ("leg swap",),
    "gymnasium/ant": ("left-right", "front-back", "quarter turn", "half turn", "yaw"),
    "gymnasium/humanoid": ("yaw",),
    "gymnasium/humanoidstandup": ("yaw",),
    "gymnasium/reacher": ("left-right", "world quarter turn", "yaw"),
    "gymnasium/pusher_v5": ("left-right", "yaw"),
    "dm_control/acrobot": ("left-right",),
    "dm_control/ball_in_cup": ("left-right",),
    "dm_control/cartpole": ("left-right",),
    "dm_control/fish": ("left-right", "yaw"),
    "dm_control/humanoid": ("left-right", "yaw"),
    "dm_control/humanoid_CMU": ("yaw",),
    "dm_control/point_mass": ("left-right", "front-back", "world quarter turn"),
    "dm_control/quadruped": ("left-right", "world quarter turn", "yaw"),
    "dm_control/reacher": ("left-right", "yaw"),
    "dm_control/stacker": ("left-right", "exchange of box1 and box2"),
    "dm_control/walker": ("leg swap",),
}


@pytest.mark.parametrize("name", EXACT)
def test_exact_ones(name):
    model = tighten(robot(name))
    for symmetry in EXACT[name]:
        defects = step_defects(model, derived(name)[symmetry])
        assert defects.max() < 1e-9, symmetry


@pytest.mark.parametrize(
    "name, symmetry",
    [("gymnasium/walker2d_v5", "leg swap"), ("gymnasium/ant", "quarter turn"), ("dm_control/quadruped", "left-right")],
)
def test_in_contact(name, symmetry):
    defects = step_defects(tighten(robot(name)), derived(name)[symmetry], n=3, touching=True)
    assert defects.max() < 1e-9


ARM = """<body name="{n}" pos="{p}"><joint axis="{a}"/><geom type="capsule" fromto="0 0 0 {p}" size=".05"/>
<site name="{n}" pos="{p}" euler="{e}"/></body>"""
AXES_OF_FORCES = {
    "refsite": (
        '<body><freejoint/><geom size=".1"/><site name="ref" euler="0 20 0"/>'
        + ARM.format(n="l", p="0 .3 0", a="1 0 0", e="0 0 0") + ARM.format(n="r", p="0 -.3 0", a="1 0 0", e="10 20 90")
        + "</body>",
        '<motor site="l" refsite="ref" gear="1 2 3 .1 .2 .3"/><motor site="r" refsite="ref" gear="1 -2 3 -.1 .2 -.3"/>',
        {"left-right"},
    ),
    "free joint": (
        '<body quat=".9 0 0 .3"><freejoint name="f"/><geom size=".1"/>' + ARM.format(n="l", p="0 .3 0", a="1 0 0", e="0 0 0")
        + ARM.format(n="r", p="0 -.3 0", a="-1 0 0", e="0 0 0") + "</body>",
        '<motor jointinparent="f" gear="1 0 0 0 2 0"/><motor jointinparent="f" gear="0 1 0 -2 0 0"/>',
        {"half turn", "yaw"},
    ),
    "ball joint": (
        '<body quat=".9 .1 .3 .2"><joint name="b" type="ball"/><geom size=".1" pos=".1 .2 .3"/></body>',
        "".join(f'<motor jointinparent="b" gear="{gear}"/>' for gear in ("1 0 0", "0 1 0", "0 0 1")),
        {"yaw"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", AXES_OF_FORCES)
def test_forces_in_axes_other_than_the_bodys(kind):
    """Gears in a reference site's axes, in the world's and in those of a ball joint's parent."""
    bodies, motors, names = AXES_OF_FORCES[kind]
    xml = f"<mujoco><worldbody>{bodies}</worldbody><actuator>{motors}</actuator></mujoco>"
    found = derive(model := tighten(mujoco.MjModel.from_xml_string(xml)))
    assert names <= set(found.names)
    for symmetry in found.symmetries:
        assert symmetry.deviations or step_defects(model, symmetry).max() < 1e-9, symmetry.name


def test_pendulum_is_exact_about_its_own_axis():
    model = tighten(robot("gymnasium/inverted_pendulum"))
    symmetry = derived("gymnasium/inverted_pendulum")["left-right"]
    defects = step_defects(model, symmetry, steps=3)
    assert defects.max() < 1e-12
    naive = step_defects(model, replace(symmetry, joint_shift=np.zeros(2)), steps=3)
    assert naive.min() > 1e-5


@pytest.mark.parametrize(
    "name, symmetry, least", [("humanoid", "left-right", 1e-3), ("half_cheetah", "front-back", 0.1)]
)
def test_made_symmetric_it_becomes_exact(name, symmetry, least):
    """Humanoid's sides differ a little; a cheetah with equal halves runs both ways."""
    model, found = tighten(robot(f"gymnasium/{name}")), derived(f"gymnasium/{name}")[symmetry]
    assert np.median(step_defects(model, found)) > least
    assert step_defects(symmetrise(model, found), found).max() < 1e-9


@pytest.mark.parametrize("change", ["joint sign", "control sign", "limb"])
def test_a_wrong_map_fails(change):
    model = tighten(robot("gymnasium/ant"))
    right = derived("gymnasium/ant")["quarter turn"]
    if change == "joint sign":  # of an ankle, which stands far from zero
        P, D = right.joint_matrix.copy(), right.dofs.copy()
        P[3], D[9] = -P[3], -D[9]
        wrong = replace(right, joint_matrix=P, dofs=D)
    elif change == "control sign":
        wrong = replace(right, controls=right.controls * np.r_[-1.0, np.ones(7)][:, None])
    else:
        wrong = replace(right, joint_matrix=right.joint_matrix.T, dofs=right.dofs.T)
    defects = step_defects(model, wrong)
    assert np.median(defects) > 1e-3


SLIDES = """<body><joint name="x" type="slide" axis="{a} {b} 0" {j}/><joint name="y" type="slide" axis="-{b} {a} 0" {k}/>
<geom size=".1"/></body>"""
PENDULUM = """<body><joint name="h" axis="1 0 0" {j}/><geom type="capsule" fromto="0 0 0 0 {y} -.5" size=".05"/>
<body pos="0 {y} -.5"><joint name="k" axis="1 0 0"/><geom type="capsule" fromto="0 0 0 0 {y} -.5" size=".05"/></body></body>"""
BALL = """<body pos="1 0 0"><freejoint/><geom size=".1"/></body>
<body><joint name="b" type="ball"/><geom size=".1" pos=".1 0 .3"/></body>"""
TRIAD = "<body>" + "".join(
    f'<joint name="{n}" type="slide" axis="{x} {y} 1" {{{n}}}/>'
    for n, x, y in (("x", 2**0.5, 0), ("y", -(0.5**0.5), 1.5**0.5), ("z", -(0.5**0.5), -(1.5**0.5)))
) + '<geom size=".1"/></body>'  # fmt: skip


def slides(j: str = "", k: str | None = None, a: int = 1, b: int = 0) -> str:
    return SLIDES.format(j=j, k=j if k is None else k, a=a, b=b)


def pendulum(j: str = "", y: float = 0.0) -> str:
    """About h's zero, or leaning so that its mirror image leans the other way."""
    return PENDULUM.format(j=j, y=y)


def on(*joints: str, **general: str) -> str:
    attributes = " ".join(f'{key}="{value}"' for key, value in general.items())
    return "<actuator>" + "".join(f'<general joint="{joint}" {attributes}/>' for joint in joints) + "</actuator>"


def tendon(attributes: str, more: str = "") -> str:
    return f'<tendon><fixed name="t" {attributes}><joint joint="h" coef="2"/></fixed></tendon>{more}'


def lock(joint: str, *coefficients: float, other: str = "") -> str:
    values = " ".join(map(str, [*coefficients, *[0] * (5 - len(coefficients))]))
    return f'<equality><joint joint1="{joint}" {other} polycoef="{values}"/></equality>'


LEAN = float(np.arctan2(0.2, 0.5))  # of `pendulum(y=0.2)`; its mirror image turns h by -2 LEAN
MUSCLE = ".75 1.05 9 200 .5 1.6 1.5 1.3 1.2"
SERVO = {"gainprm": "3", "biastype": "affine", "biasprm": "0 -3 -.1"}
DC = '<actuator><dcmotor joint="h" motorconst=".5" resistance="2" {}/></actuator>'
PIDS = "".join(f'<pid joint="{joint}" kp="2" ki=".3" slewmax=".1" input="pos"/>' for joint in "xy")
TWO_SETPOINTS = '<actuator><pid joint="h" kp="2" kv=".1"/></actuator>'
PARAMETERS = {
    # Elements that mix: name of the symmetry, bodies, other elements, the parameters that deviate.
    "bias": ("yaw", slides(), on("x", "y", biastype="affine", biasprm=".5 0 0"), "biasprm"),
    "servo": ("yaw", slides(), on("x", "y", **SERVO), ""),
    "bias along the axis": ("yaw", TRIAD.format(x="", y="", z=""), on(*"xyz", biastype="affine", biasprm=".5"), ""),
    "gain by length": ("yaw", slides(), on("x", "y", gaintype="affine", gainprm="1 .5 0"), "gainprm"),
    "gain by velocity": ("yaw", slides(), on("x", "y", gaintype="affine", gainprm="1 0 .5"), "gainprm"),
    "constant gain": ("yaw", slides(), on("x", "y", gaintype="affine", gainprm="2 0 0"), ""),
    "muscle": ("yaw", slides(), on("x", "y", gaintype="muscle", gainprm=MUSCLE, lengthrange="-1 1"), "gainprm lengthrange"),
    "muscle's activation": ("yaw", slides(), on("x", "y", dyntype="muscle", dynprm=".01 .04"), "dynprm"),
    "filter": ("yaw", slides(), on("x", "y", dyntype="filter", dynprm=".1"), ""),
    "limited setpoint": ("yaw", slides(), f"<actuator>{PIDS}</actuator>", "dynprm"),
    "damping of actuators": ("yaw", slides(), on("x", "y", damping=".3 .5"), "dampingpoly"),
    "dry friction": ("yaw", slides('frictionloss=".3"'), "", "frictionloss"),
    "dry friction of a free joint": ("yaw", '<body><joint type="free" frictionloss=".1"/><geom size=".1"/></body>', "",
                                     "frictionloss"),
    "damping": ("yaw", slides('damping=".3"'), "", ""),
    "drag": ("yaw", slides('damping=".3 .5"'), "", "dampingpoly"),
    "springs": ("yaw", slides('stiffness="3"'), "", ""),
    "cubic springs": ("yaw", slides('stiffness="3 0 5"'), "", "stiffnesspoly"),
    "unequal springs": ("left-right", slides('stiffness="3"', 'stiffness="5"', a=4, b=1), "", "stiffness"),
    "unequal springs along three axes": ("yaw", TRIAD.format(x='stiffness="2"', y='stiffness="2"', z='stiffness="3"'), "",
                                         "stiffness"),
    "a lock on one": ("left-right", slides(a=4, b=1), lock("x", 0), "data"),
    "servos of a ball": ("yaw", BALL, "".join(on("b", gear=axis, **SERVO) for axis in ("1 0 0", "0 1 0", "0 0 1")), "biasprm"),
    # Signs of -1.
    "quadratic spring": ("left-right", slides('stiffness="3 5"'), "", "stiffnesspoly"),
    "quadratic spring of a tendon": ("left-right", pendulum(), tendon('stiffness="1 4" springlength="0"'), "stiffnesspoly"),
    "cubic spring of a tendon": ("left-right", pendulum(), tendon('stiffness="0 0 4" springlength="0"'), ""),
    "one muscle's activation": ("left-right", pendulum(), on("h", dyntype="muscle", dynprm=".01 .04"), "dynprm"),
    "cogging": ("left-right", pendulum(), DC.format('cogging="1 3 .4"'), "biasprm"),
    "odd cogging": ("left-right", pendulum(), DC.format('cogging="1 3 0"'), ""),
    "temperature": ("left-right", pendulum(), DC.format('thermal="1 2 3 .4 5 6"'), "dynprm"),
    "two setpoints": ("left-right", pendulum(), TWO_SETPOINTS, ""),
    "numbers that a gain does not use": ("left-right", pendulum(), on("h", gainprm="1 .5", biasprm=".5"), ""),
    # A zero that is shifted, by `ref` or by the mirror image of a pendulum that leans.
    "range": ("left-right", pendulum('ref=".3"'), tendon('range="-.2 .2"'), "range"),
    "range about ref": ("left-right", pendulum('ref=".3"'), tendon('range=".4 .8"'), ""),
    "range about the middle": ("left-right", pendulum(y=0.2), tendon(f'range="{-2 * LEAN - 0.2} {-2 * LEAN + 0.2}"'), ""),
    "spring": ("left-right", pendulum('ref=".3"'), tendon('stiffness="5" springlength="0"'), "lengthspring"),
    "spring about ref": ("left-right", pendulum('ref=".3"'), tendon('stiffness="5" springlength=".6"'), ""),
    "cubic spring": ("left-right", pendulum('ref=".3"'), tendon('stiffness="0 0 5" springlength="0"'), "lengthspring"),
    "servo about zero": ("left-right", pendulum('ref=".3"'), on("h", **SERVO), "biasprm"),
    "servo about ref": ("left-right", pendulum('ref=".3"'), on("h", **SERVO | {"biasprm": ".9 -3 -.1"}), ""),
    "servo of a leaning link": ("left-right", pendulum(y=0.2), on("h", **SERVO), "biasprm"),
    "servo of a tendon": ("left-right", pendulum('ref=".3"'), tendon("", on("h", **SERVO).replace('joint="h"', 'tendon="t"')),
                          "biasprm"),
    "gain about zero": ("left-right", pendulum('ref=".3"'), on("h", gaintype="affine", gainprm="1 .5 0"), "gainprm"),
    "two setpoints about zero": ("left-right", pendulum('ref=".3"'), TWO_SETPOINTS, "biasprm"),
    "motor's controller": ("left-right", pendulum('ref=".3"'), DC.format('input="pos" controller="3"'), "gainprm"),
    "lock": ("left-right", pendulum(y=0.2), lock("h", 0), "data"),
    "lock in the middle": ("left-right", pendulum(y=0.2), lock("h", -LEAN), ""),
    "cubic relation": ("left-right", pendulum(y=0.2), lock("k", 0, 0.5, 0.3, 0.1, other='joint2="h"'), "data"),
    "cubic relation about the middle": (
        "left-right", pendulum(y=0.2), lock("k", LEAN**3, 3 * LEAN**2, 3 * LEAN, 1, other='joint2="h"'), ""),
}  # fmt: skip


@pytest.mark.parametrize("case", PARAMETERS)
def test_parameters_deviate_where_the_step_does(case):
    name, bodies, others, parameter = PARAMETERS[case]
    xml = f'<mujoco><compiler angle="radian"/><worldbody>{bodies}</worldbody>{others}</mujoco>'
    symmetry = derive(model := tighten(mujoco.MjModel.from_xml_string(xml)))[name]
    assert {d.parameter for d in symmetry.deviations} == set(parameter.split())
    defects = step_defects(model, symmetry)
    assert defects.max() > 1e-6 if parameter else defects.max() < 1e-9


@pytest.mark.parametrize(
    "case", ["range", "spring", "servo about zero", "servo of a tendon", "gain about zero", "lock"]
)
def test_symmetrise_moves_parameters_to_the_middle_of_a_shifted_zero(case):
    name, bodies, others, _ = PARAMETERS[case]
    xml = f'<mujoco><compiler angle="radian"/><worldbody>{bodies}</worldbody>{others}</mujoco>'
    model = tighten(mujoco.MjModel.from_xml_string(xml))
    exact = symmetrise(model, derive(model)[name])
    symmetry = derive(exact)[name]
    assert not symmetry.deviations and step_defects(exact, symmetry).max() < 1e-9
