"""Networks in a learned frame."""

from __future__ import annotations

import pytest
import torch
from registry import generator

from rppdyn.dynamics import LearnedFrame
from rppdyn.equivariance import discover, equivariance_error
from rppdyn.groups import SO, Group, O2eR3, SO2eR3, Z
from rppdyn.nn import EMLP
from rppdyn.priors import negative_log_prior
from rppdyn.reps import V


def framed(angles=(0.0, 0.0, 0.0)):
    net = EMLP(2 * V, V, O2eR3(), hidden=16, generator=generator())
    frame = LearnedFrame(net, (2 * V)(SO(3)), V(SO(3))).double()
    with torch.no_grad():
        frame.coefficients.copy_(torch.tensor(angles))
    return frame


def test_at_first_it_is_the_network_itself():
    frame, x = framed(), torch.randn(5, 6, dtype=torch.float64, generator=generator())
    assert torch.equal(frame(x), frame.net(x))
    assert float(negative_log_prior(frame).detach()) == float(negative_log_prior(frame.net).detach())


def test_its_symmetry_is_that_of_the_turned_group():
    frame, x = framed((0.5, -0.8, 0.3)), torch.randn(50, 6, dtype=torch.float64, generator=generator())
    R = frame.element().detach()
    assert torch.allclose(R @ R.mT, torch.eye(3).double())
    turned = Group("turned", lie_algebra=R @ SO2eR3().lie_algebra @ R.mT)
    assert equivariance_error(frame, (2 * V)(turned), V(turned), x).mean < 1e-12
    assert equivariance_error(frame, (2 * V)(SO2eR3()), V(SO2eR3()), x).mean > 1e-3
    found = discover(frame, (2 * V)(SO(3)), V(SO(3)), x)
    (A,) = found.generators
    assert found.verdict == "exact" and torch.allclose(A.abs(), (R @ SO2eR3().lie_algebra[0] @ R.mT).abs(), atol=1e-9)


def test_turns_that_the_network_has_anyway_change_nothing():
    x = torch.randn(5, 6, dtype=torch.float64, generator=generator())
    algebra = SO(3).lie_algebra
    (z,) = [i for i, A in enumerate(algebra) if A[2].abs().max() == 0]
    angles = [0.0, 0.0, 0.0]
    angles[z] = 0.7
    assert torch.allclose(framed(angles)(x), framed()(x), atol=1e-12)


def test_the_axis_is_learned():
    """A force along a tilted axis: the frame finds it, where the fixed one can't."""
    g = generator()
    axis = torch.nn.functional.normalize(torch.tensor([0.4, -0.5, 1.0]), dim=0)
    x = torch.randn(100, 6, generator=g)
    y = x[:, :3] * (x[:, 3:] @ axis)[:, None] + axis
    errors = []
    for learns in (True, False):
        net = EMLP(2 * V, V, O2eR3(), hidden=24, num_layers=1, generator=generator())
        frame = LearnedFrame(net, (2 * V)(SO(3)), V(SO(3)))
        frame.coefficients.requires_grad_(learns)
        optimiser = torch.optim.Adam(frame.parameters(), lr=2e-2)
        for _ in range(150):
            loss = (frame(x) - y).square().mean()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        errors.append(float(loss.detach()))
        found = frame.element().detach()[:, 2]
    assert errors[0] < 0.2 * errors[1]
    assert found[2] == 1  # of the fixed one


def test_bad_input():
    net = EMLP(2 * V, V, O2eR3(), hidden=16)
    with pytest.raises(ValueError, match="belongs to"):
        LearnedFrame(net, (2 * V)(SO(3)), V(O2eR3()))
    with pytest.raises(ValueError, match="no continuous generators"):
        LearnedFrame(net, (2 * V)(Z(3)), V(Z(3)))
