"""Dense weights and their parameters' gradients: as torch.compile has them, and as single operations have."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from rppdyn.agents import functional
from rppdyn.agents.functional import Assembly, ModuleNetworks, stacked
from rppdyn.envs import symmetry_spec
from rppdyn.groups import O
from rppdyn.nn import RPPEMLP
from rppdyn.nn.pathways import named_pathways
from rppdyn.priors import learn_variances
from rppdyn.reps import T

CASES = [
    (env, model, symmetry)
    for env, symmetry in (("Hopper-v5", None), ("InvertedPendulum-v5", None), ("Walker2d-v5", None), ("Ant-v5", "D4"))
    for model in ("rpp", "emlp", "mlp")
]


def both(monkeypatch, subject: Assembly, vectors: Tensor, dense: list[Tensor]) -> list[tuple[list[Tensor], Tensor]]:
    found = []
    for compiling in (False, True):
        monkeypatch.setattr(torch.compiler, "is_compiling", lambda compiling=compiling: compiling)
        found.append((subject.dense(vectors), subject.gradient(dense)))
    monkeypatch.undo()
    return found


@pytest.mark.parametrize("env, model, symmetry", CASES, ids=str)
def test_each_tensor_by_itself_is_as_the_whole_and_gradients_are_the_transpose(
    make_agent, monkeypatch, env, model, symmetry
):
    agent = make_agent(
        model, env, spec=symmetry_spec(env, symmetry=symmetry), policy_kwargs=dict(hidden=32, num_layers=2)
    )
    order = 8 if symmetry else 2
    for function in (agent.actor.function, agent.critic.function):
        size = sum(function._sizes)
        draw = torch.Generator().manual_seed(0)
        vectors = torch.randn(3, size, generator=draw, dtype=torch.float64)
        subject = function.assembly(vectors)
        count = max(place.stop for place in subject.places)
        flat = torch.randn(3, count, generator=draw, dtype=torch.float64)
        dense = [flat[:, place] for place in subject.places]
        (whole, plain), (each, compiled) = both(monkeypatch, subject, vectors, dense)
        for one, other in zip(whole, each, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-14, atol=1e-15)
        torch.testing.assert_close(plain, compiled, rtol=1e-13, atol=1e-13)
        # <dense(v), g> = <v, gradient(g)>
        ours = sum((d.flatten(1) * g).sum() for d, g in zip(each, dense, strict=True))
        torch.testing.assert_close(ours, (vectors * compiled).sum(), rtol=1e-12, atol=1e-12)
        if model == "mlp":
            assert subject._ties is None and subject.tied == 0
        else:
            hidden = subject._ties[2]  # of the second layer: a regular representation's blocks
            assert (hidden.run, len(hidden.back)) == (32 // order, order)


def entries(index: list[int], factor: list[float] | None = None, tied: int = 4) -> Assembly:
    numbers = torch.tensor(factor or [1.0] * len(index), dtype=torch.float64)
    like = torch.zeros(1, dtype=torch.float64)
    return Assembly(
        torch.tensor(index), numbers, tied, None, [(2, 2)], like
    )  # a weight of four entries and a bias of two


def test_whatever_ties_them_the_two_ways_agree(monkeypatch):
    draw = torch.Generator().manual_seed(0)
    dense = list(torch.randn(2, 6, generator=draw, dtype=torch.float64).split((4, 2), 1))
    cases = {
        "runs": (entries([0, 1, 0, 1, 2, 3]), [2, 2]),
        "no runs": (entries([1, 0, 0, 1, 3, 2]), [1, 1]),
        "a parameter of one weight": (entries([0, 1, 2, 0, 3, 3]), [1, 1]),
        "signs": (entries([0, 1, 1, 0, 2, 3], [1, -1, 1, -2, 1, 1]), [1, 2]),
        "nothing ties the bias": (entries([0, 1, 2, 3, 0, 0], [1, 1, 1, 1, 0, 0]), [4, None]),
        "a weight that is zero": (entries([0, 0, 1, 2, 3, 3], [1, 0, 1, 1, 1, 1]), [1, 1]),
        "a stretch that is not one's own": (entries([0, 1, 2, 3, 0, 1]), None),
        "a parameter without a weight": (entries([0, 2, 0, 2, 3, 3]), None),
    }
    for name, (subject, runs) in cases.items():
        vectors = torch.randn(2, 4, generator=draw, dtype=torch.float64)
        found = subject._ties and [tie and tie.run for tie in subject._ties]
        assert found == runs, name
        (whole, plain), (each, compiled) = both(monkeypatch, subject, vectors, dense)
        assert all(torch.equal(a, b) for a, b in zip(whole, each, strict=True)), name
        torch.testing.assert_close(plain, compiled, rtol=1e-14, atol=1e-15)
    monkeypatch.setattr(functional, "MOST_TIES", 1)
    assert entries([0, 1, 0, 1, 2, 3])._ties is None


@pytest.mark.parametrize("learned", [True, False], ids=["parameters", "buffers"])
def test_networks_that_are_applied_as_one_keep_the_units_of_their_own_variances(learned):
    rep = 4 * T(0) + 3 * T(1)
    nets = [RPPEMLP(rep, T(0), O(2), hidden=24, bilinear="channelwise", free_variance=1e-6).double() for _ in range(3)]
    x = torch.randn(3, 5, nets[0].rep_in.dim, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    networks = stacked(nets)
    assert isinstance(networks, ModuleNetworks) and networks.prepare(x) == (True,)
    for shift, net in enumerate(nets):
        if learned:
            learn_variances(net)
        for _, _, pathway in named_pathways(net):
            pathway.log_variance.requires_grad_(False).add_(shift)
            if learned and pathway.has_unit:
                pathway.unit.mul_(1 + shift)
            elif pathway.has_unit:
                pathway.follow_variance()
    as_one, *own = networks.prepare(x)
    assert as_one and own
    alone = torch.stack([net(own) for net, own in zip(nets, x, strict=True)])
    torch.testing.assert_close(networks(x, networks.current()), alone)
    loss = lambda weights: (networks(x, weights).square().sum(), x)  # noqa: E731
    gradient, _ = networks.gradient(loss, networks.weights(networks.vectors(), trained=True))
    for net, inputs, found in zip(nets, x, gradient, strict=True):
        weights = [p for p in net.parameters() if p.requires_grad]
        by_itself = torch.autograd.grad(net(inputs).square().sum(), weights)
        torch.testing.assert_close(found, torch.cat([g.flatten() for g in by_itself]))
