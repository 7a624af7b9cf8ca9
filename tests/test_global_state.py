"""What merges, measures, certifies, or builds from a generator leaves random numbers, threads and precision alone."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

from rppdyn.dynamics import HamiltonianModel, integrate
from rppdyn.envs import certify, symmetry_spec
from rppdyn.equivariance import (
    discover,
    equivariance_error,
    layerwise_lie_derivative,
    local_equivariance_error,
    rollout_equivariance_error,
)
from rppdyn.groups import GL, SO
from rppdyn.images import AnchoredConv2d, LieResNet18
from rppdyn.nn import (
    EMLP,
    RPPEMLP,
    Bilinear,
    ChannelProducts,
    Ensemble,
    Gate,
    InvariantNormaliser,
    RelaxedLinear,
    merge,
)
from rppdyn.priors import Gaussian, joint_evidence, negative_log_prior
from rppdyn.reps import Scalar, T, V

G = SO(3)
REP, TENSORS = (Scalar + 2 * V)(G), (Scalar + 2 * V + T(2))(G)


def generator():
    return torch.Generator().manual_seed(0)


NET = RPPEMLP(REP, REP, G, hidden=24, num_layers=2, generator=generator()).double()
X = torch.randn(60, REP.dim, generator=generator(), dtype=torch.float64)
ANCHORED = AnchoredConv2d.of(torch.nn.Conv2d(2, 3, 5), 9)
ENERGY = EMLP(2 * V, Scalar, G, hidden=16, generator=generator()).double()

CALLS = {
    "RPPEMLP": lambda: RPPEMLP(REP, REP, G, hidden=24, generator=generator()),
    "published layers": lambda: EMLP(REP, REP, G, hidden=32, bilinear="published", generator=generator()),
    "LieResNet18": lambda: LieResNet18(group="p4", stages=((2, 1), (2, 2)), generator=generator()),
    "RelaxedLinear": lambda: RelaxedLinear(REP, REP, generator=generator()),
    "Gate": lambda: Gate(REP, free_variance=1.0, generator=generator()),
    "Bilinear": lambda: Bilinear(TENSORS, generator=generator()),
    "ChannelProducts": lambda: ChannelProducts(REP, channels=2, generator=generator()),
    "InvariantNormaliser": lambda: InvariantNormaliser(REP).update(X),
    "on meta": lambda: RPPEMLP(REP, REP, G, hidden=24, generator=generator(), device="meta"),
    "Ensemble": lambda: Ensemble([NET, NET]).member(0),
    "merge": lambda: merge(NET),
    "filters sampled": lambda: ANCHORED.to_conv2d(),
    "merge a layer": lambda: merge(NET.head),
    "deepcopy and load": lambda: copy.deepcopy(NET).load_state_dict(NET.state_dict()),
    "solve": lambda: (TENSORS >> TENSORS).solve().canonical(),
    "equivariance_error": lambda: equivariance_error(NET, REP, REP, X),
    "local_equivariance_error": lambda: local_equivariance_error(NET, REP, REP, X),
    "layerwise": lambda: layerwise_lie_derivative(NET, REP, REP, X),
    "layerwise by probes": lambda: layerwise_lie_derivative(NET, REP, REP, X, probes=2),
    "rollout_equivariance_error": lambda: rollout_equivariance_error(lambda x: NET(x), REP, X, 2),
    "discover": lambda: discover(lambda x: x, V(GL(3)), V(GL(3)), X[:, :3]),
    "negative_log_prior": lambda: negative_log_prior(NET),
    "joint_evidence": lambda: joint_evidence(NET, X, Gaussian(1.0)),
    "integrate": lambda: integrate(HamiltonianModel(ENERGY), X[:, :6], torch.tensor([0.0, 0.1]).double()),
    "symmetry_spec": lambda: symmetry_spec("InvertedPendulum-v5"),
    "certify": lambda: certify("InvertedPendulum-v5", n_states=20, n_resets=20),
}


def state():
    return (
        torch.get_rng_state().tolist(), str(np.random.get_state()), torch.get_num_threads(),  # noqa: NPY002
        torch.get_float32_matmul_precision(), torch.get_default_dtype(), torch.get_default_device(),
        torch.is_grad_enabled(), torch.are_deterministic_algorithms_enabled(),
    )  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_the_process_is_left_as_it_was(name):
    before = state()
    CALLS[name]()
    assert state() == before


def test_exports_leave_it_too(tmp_path):
    pytest.importorskip("onnx")
    from rppdyn.agents import RPPSAC
    from rppdyn.agents._export import export_onnx, export_torch

    agent = RPPSAC("RPPPolicy", "InvertedPendulum-v5", policy_kwargs=dict(hidden=16, num_layers=1), device="cpu")
    before = state()
    export_torch(agent.policy, tmp_path / "policy.pt2")
    export_onnx(agent.policy, tmp_path / "policy.onnx")
    assert state() == before


def test_a_recurrent_model_is_merged_without_a_draw():
    pytest.importorskip("rsl_rl")
    from rppdyn.integrations.rsl_rl.models import RelaxedGRU

    gru = RelaxedGRU(REP, 2 * REP)
    before = state()
    gru.merged()
    assert state() == before
