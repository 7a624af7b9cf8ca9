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
