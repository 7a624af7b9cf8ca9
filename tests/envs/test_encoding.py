"""Encodings: quaternions and angles against their definitions, both libraries, and back."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.spatial.transform import Rotation

from rppdyn.envs._spec import Encoding, Entry, Space, SymmetrySpec, quaternion, rotation_matrix
from rppdyn.groups import SO, Group


def quaternions(n: int) -> np.ndarray:
    q = np.random.default_rng(0).normal(size=(n, 4))
    special = np.vstack([np.eye(4), -np.eye(4), [[0, 1, 1, 0], [1, 0, 0, 1], [0, -1, 1e-9, 0]]])  # identity, half turns
    q = np.vstack([q, special])
    return q / np.linalg.norm(q, axis=1, keepdims=True)


@pytest.mark.parametrize("convert", [np.asarray, torch.from_numpy])
def test_rotation_matrices_are_scipys_and_come_back(convert):
    q = quaternions(200)
    found = np.asarray(rotation_matrix(convert(q)))
    expected = Rotation.from_quat(q, scalar_first=True).as_matrix().reshape(-1, 9)
    assert np.allclose(found, expected, rtol=0, atol=1e-15)
    back = np.asarray(quaternion(convert(found)))
    assert (back[:, 0] >= 0).all()
    assert np.allclose(np.abs(np.sum(back * q, axis=1)), 1, rtol=0, atol=1e-15)


def test_a_mixed_encoding_keeps_the_order_and_returns():
    encoding = Encoding(8, angles=(1,), quaternions=(3,))
    assert encoding.feature_dim == 14
    y = np.random.default_rng(1).normal(size=(5, 8))
    y[:, 1] = np.linspace(-3, 3, 5)
    y[:, 3:7] = quaternions(5)[:5] * np.sign(quaternions(5)[:5, :1])
    z = encoding.encode(y)
    assert np.array_equal(z[:, 0], y[:, 0]) and np.array_equal(z[:, 1], np.cos(y[:, 1]))
    assert np.array_equal(z[:, 3], y[:, 2]) and np.array_equal(z[:, 13], y[:, 7])
    assert [list(encoding.features_of(i)) for i in (0, 1, 3)] == [[0], [1, 2], list(range(4, 13))]
    assert np.allclose(encoding.decode(z), y, rtol=0, atol=1e-14)
    assert torch.allclose(encoding.encode(torch.from_numpy(y)), torch.from_numpy(z), rtol=0, atol=1e-15)


def test_compiled_code_may_be_the_first_to_encode():
    """As in a resumed agent, whose first call is a compiled update."""
    space = Space([f"x{i}" for i in range(5)], quaternions=(1,))
    y = torch.randn(3, 5, generator=torch.Generator().manual_seed(0))
    encode = torch.compile(space.encode, backend="eager", fullgraph=True)
    assert torch.equal(encode(y), space.encode(y))


def test_overlapping_or_missing_coordinates_are_refused():
    with pytest.raises(ValueError, match=r"angles \(2,\) and quaternions \(0,\)"):
        Encoding(5, angles=(2,), quaternions=(0,))
    with pytest.raises(ValueError, match=r"quaternions \(3,\)"):
        Encoding(5, quaternions=(3,))


def test_four_quarter_turns_of_a_quaternion_observation_are_the_identity():
    """On raw quaternions four quarter turns give -1; on their features they give 1."""
    quarter = np.array([[0.0, -1, 0], [1, 0, 0], [0, 0, 1]])
    entries = tuple(Entry(f"torso {c}") for c in "wxyz")
    G = Group("C4", discrete_generators=quarter[None])
    turn = np.kron(quarter, np.eye(3))
    spec = SymmetrySpec(
        "Top-v0", G, Space(entries, (turn,), quaternions=(0,)), Space((Entry("f"),), (((1.0,),),))
    ).check()
    q = quaternions(20)
    y = q
    for _ in range(4):
        y = spec.transform_observation(torch.from_numpy(quarter), y)
    assert np.allclose(np.abs(np.sum(y * q, axis=1)), 1, rtol=0, atol=1e-14)
    once = spec.transform_observation(torch.from_numpy(quarter), q)
    expected = Rotation.from_matrix(quarter) * Rotation.from_quat(q, scalar_first=True)
    assert np.allclose(np.abs(np.sum(once * expected.as_quat(scalar_first=True), axis=1)), 1, rtol=0, atol=1e-14)
    assert spec.feature_names[:2] == ("torso R[0,0]", "torso R[0,1]") and "R[2,2]" in spec.table()
    assert SymmetrySpec.from_dict(spec.to_dict()) == spec


def test_a_shifted_angle_is_rotated_as_a_pair():
    G = SO(2)
    angle = Space((Entry("yaw"),), lie_algebra=G.lie_algebra.tolist(), angles=(0,))
    spec = SymmetrySpec("Top-v0", G, angle, Space((Entry("f"),), lie_algebra=([[0.0]],))).check()
    g = torch.linalg.matrix_exp(0.5 * G.lie_algebra[0])
    shift = np.arctan2(float(g[1, 0]), float(g[0, 0]))
    y = np.array([[0.2], [1.0], [-2.0]])
    assert np.allclose(spec.transform_observation(g, y), y + shift, rtol=0, atol=1e-12)
