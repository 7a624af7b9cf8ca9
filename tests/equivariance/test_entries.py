"""Errors by named entry: planted breakage is found in the output and in the input."""

from __future__ import annotations

import math

import pytest
import torch
from registry import generator

from rppdyn.envs import symmetry_spec
from rppdyn.equivariance import error_by_input, error_by_output
from rppdyn.groups import SO, D, Group
from rppdyn.nn import EMLP
from rppdyn.reps import Scalar, V

WALKER = symmetry_spec("Walker2d-v5")
ENDS = (WALKER.obs_rep, WALKER.action_rep)
X = torch.randn(64, WALKER.feature_dim, generator=generator(0), dtype=torch.float64) + 0.3
POLICY = EMLP(*ENDS, WALKER.group, hidden=16, num_layers=1, generator=generator(1)).double()


def test_a_broken_action_is_named():
    """The policy adds a constant torque to one joint: only it and its mirror image disagree."""
    culprit = 1
    error = error_by_output(
        lambda x: POLICY(x) + 0.5 * torch.eye(6, dtype=x.dtype)[culprit], *ENDS, X, WALKER.action_names
    )
    partner = int(WALKER.action.generator(0)[culprit].argmax())
    broken = {WALKER.action_names[culprit], WALKER.action_names[partner]}
    assert partner != culprit
    assert {name for name, value in error.items() if value > 1e-12} == broken
    a = POLICY(WALKER.transform_observation(WALKER.group.discrete_generators[0], X))
    # the partner's difference under the swap is 0.5 for both, beside |a| and |a + 0.5|, summed over inputs
    swapped = a[:, partner].abs().sum() + (a[:, partner] + 0.5).abs().sum()
    assert error[WALKER.action_names[partner]] == pytest.approx((0.5 * len(X) / swapped).item(), rel=1e-9)


def test_blocks_of_the_output_and_vacuous_ones():
    error = error_by_output(lambda x: POLICY(x) * 0, *ENDS, X, {"right": [0, 1, 2], "left": [3, 4, 5]})
    assert all(map(math.isnan, error.values())) and set(error) == {"right", "left"}
    half = error_by_output(
        lambda x: torch.cat([x, 0 * x], 1), V(SO(2)), (2 * V)(SO(2)), X[:, :2], {"x": [0, 1], "0": [2, 3]}
    )
    assert half["x"] < 1e-12 and math.isnan(half["0"])


def test_a_broken_dependence_on_the_state_is_named():
    """The policy turns with the torso's angle, which the mirror leaves alone, and breaks on the velocity of one foot."""
    names = WALKER.feature_names
    foot = len(names) - 1
    shares = error_by_input(lambda x: POLICY(x) + torch.tanh(x[:, foot : foot + 1]), *ENDS, X, names)
    (culprit,) = (name for name in shares if names[foot] in name)
    assert shares[culprit] == pytest.approx(1, abs=1e-12)
    assert max(value for name, value in shares.items() if name != culprit) < 1e-12
    partner = int(abs(torch.tensor(WALKER.obs.discrete_generators[0])[foot]).argmax())
    assert culprit == ", ".join(names[i] for i in sorted({foot, partner}))


def test_without_an_error_there_is_nothing_to_explain():
    assert all(map(math.isnan, error_by_input(POLICY, *ENDS, X, WALKER.feature_names).values()))


def test_held_values_are_invariant_under_continuous_groups_too():
    G = D(4)
    rep = (V + 2 * Scalar)(G)
    x = torch.randn(50, 4, generator=generator(2), dtype=torch.float64) + 1
    shares = error_by_input(lambda x: x[:, :1] * x[:, 2:3], rep, Scalar(G), x, {"vector": [0], "s": [2], "other": [3]})
    assert shares["vector"] == pytest.approx(1, abs=1e-12) and shares["other"] == pytest.approx(0, abs=1e-12)
    assert 0 < abs(shares["s"]) < 1
    rotating = (V + Scalar)(SO(3))
    x = torch.randn(50, 4, generator=generator(3), dtype=torch.float64)
    shares = error_by_input(lambda x: x[:, :1] + x[:, 3:], rotating, Scalar(SO(3)), x, ["x", "y", "z", "s"])
    assert set(shares) == {"x, y, z", "s"} and shares["x, y, z"] == pytest.approx(1) and abs(shares["s"]) < 1e-12


def test_errors_name_the_fault():
    with pytest.raises(ValueError, match="2 different names for an output of 6"):
        error_by_output(POLICY, *ENDS, X, ["a", "b"])
    with pytest.raises(ValueError, match=r"block 'a' has indices \[6\]"):
        error_by_output(POLICY, *ENDS, X, {"a": [6]})
    phases = V(Group("phases", discrete_generators=[[[1j]]]))
    with pytest.raises(ValueError, match="acts by complex matrices, and the vectors are real"):
        error_by_input(lambda x: x, phases, phases, X[:, :1], ["z"])


def test_a_small_block_counts_and_one_at_rounding_does_not():
    rep_out = Scalar(D(4)) + Scalar(D(4))
    for size, vacuous in ((1e-7, False), (1e-9, True)):
        f = lambda x, size=size: torch.stack([x.square().sum(-1), size * x[:, 0]], -1)  # noqa: E731
        error = error_by_output(f, V(D(4)), rep_out, X[:, :2], ["large", "small"])
        assert math.isnan(error["small"]) == vacuous and error["large"] < 1e-12
