"""The group of derived symmetries and its action on the simulator's state."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from robots import derived

from rppdyn.envs.derivation import state_spaces, symmetry_group
from rppdyn.groups import SO, D, O, Z
from rppdyn.reps import Rep


def represent(group, space) -> Rep:
    """The representation on a space's features; it checks the relations of the group."""
    parts = {key: torch.tensor(getattr(space, key), dtype=torch.float64)
             for key in ("discrete_generators", "lie_algebra") if getattr(space, key)}  # fmt: skip
    return Rep.from_generators(group, **parts)


@pytest.mark.parametrize("names, order", [
    (("left-right",), 2), (("quarter turn",), 4), (("left-right", "half turn"), 4), (("left-right", "front-back"), 4),
    (("left-right", "quarter turn"), 8), (("quarter turn", "left-right", "half turn"), 8), (("yaw",), None),
    (("left-right", "yaw"), None), (("quarter turn", "yaw"), None), (("left-right", "quarter turn", "yaw"), None),
], ids=str)  # fmt: skip
def test_groups_of_ant(names, order):
    found = derived("gymnasium/ant")
    chosen = [found[name] for name in names]
    group = symmetry_group(chosen)
    assert group.order == order and group.is_orthogonal and group.d <= 4
    for space in state_spaces(found.model, chosen).values():
        represent(group, space)


def test_relations_are_checked_and_not_only_claimed():
    found = derived("gymnasium/ant")
    with pytest.raises(ValueError):  # four quarter turns, not two, change nothing
        represent(Z(2), state_spaces(found.model, [found["quarter turn"]])["qpos"])


def test_well_known_groups_are_recognised():
    ant = derived("gymnasium/ant")
    assert symmetry_group([ant["left-right"]]) == Z(2)
    assert symmetry_group([ant["quarter turn"], ant["left-right"]]) == D(4)
    assert symmetry_group([ant["yaw"]]) == SO(2)
    assert symmetry_group([ant["left-right"], ant["yaw"]]) == O(2)
    walker = derived("gymnasium/walker2d_v5")
    assert symmetry_group([walker["leg swap"]]) == Z(2)
    assert symmetry_group([walker["leg swap"], walker["front-back"]]).order == 4
    stacker = derived("dm_control/stacker")
    boxes = [s for s in stacker.symmetries if s.name.startswith("exchange")]
    assert symmetry_group(boxes).order == 24


def test_choices_that_make_no_group_are_refused():
    ant, reacher = derived("gymnasium/ant"), derived("gymnasium/reacher")
    for chosen, words in (
        ([ant["yaw"], ant["left-right"]], "discrete ones first"),
        ([ant["yaw"], ant["yaw"]], "choose one"),
        ([reacher["world quarter turn"], reacher["yaw"]], "leave it out"),
    ):
        with pytest.raises(ValueError, match=words):
            symmetry_group(chosen)


def test_angles_are_encoded_only_where_no_fixed_point_serves():
    swimmer = derived("gymnasium/swimmer").model
    found = derived("gymnasium/swimmer")
    assert state_spaces(swimmer, [found["left-right"]])["qpos"].is_linear
    turned = state_spaces(swimmer, [found["left-right"], found["planar rotation"]])["qpos"]
    assert [turned.names[i] for i in turned.angles] == ["free_body_rot position"]
    pendulum = derived("gymnasium/inverted_pendulum").model
    mirrored = state_spaces(pendulum, list(derived("gymnasium/inverted_pendulum").symmetries))["qpos"]
    assert not mirrored.angles and mirrored.origin[1] == pytest.approx(-0.001 / 0.6, rel=1e-5)
    pusher = derived("gymnasium/pusher_v5").model
    arm = state_spaces(pusher, list(derived("gymnasium/pusher_v5").symmetries))["qpos"]
    assert [arm.names[i] for i in arm.angles] == ["r_shoulder_pan_joint position"]
    # The object stands in the shoulder, at (0, -0.6), when its slides are at minus its place in the model.
    np.testing.assert_allclose(np.array(arm.origin)[7:9], [-0.55, -0.45])


def test_names_joints_and_units():
    ant = derived("gymnasium/ant")
    spaces = state_spaces(ant.model, [ant["left-right"]])
    assert spaces["qpos"].names[:8] == ("torso x", "torso y", "torso z", *(f"torso orientation {c}" for c in "wxyz"),
                                        "hip_1 position")  # fmt: skip
    assert spaces["qpos"].quaternions == (3,)
    assert spaces["qvel"].entries[6] == ("hip_1 velocity", "hip_1", "rad/s", *spaces["qvel"].entries[6][3:])
    assert spaces["action"].entries[0][:3] == ("hip_4 torque", "hip_4", "N m")
    assert set(spaces) == {"qpos", "qvel", "action"}
    quadruped = derived("dm_control/quadruped")
    assert state_spaces(quadruped.model, [quadruped["left-right"]])["act"].dim == 12
