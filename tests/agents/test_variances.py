"""The critics' prior variances learned during training."""

from __future__ import annotations

import pytest
import torch

from rppdyn.agents import RPPSAC, LearnVariances
from rppdyn.nn import Chained
from rppdyn.priors import Gaussian, curvature, evidence


def agent(**kwargs):
    small = dict(seed=0, device="cpu", learning_starts=60, batch_size=32, buffer_size=500)
    policy = dict(model="rpp", hidden=16, num_layers=1, free_variance=1e-4)
    return RPPSAC("RPPPolicy", "InvertedPendulum-v5", policy_kwargs=policy, **small | kwargs)


def test_the_fixed_point_has_the_largest_marginal_likelihood():
    model = agent().learn(120)
    net = model.critic.q_networks[0].double()
    x, likelihood = torch.randn(300, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1)), Gaussian(1.0)
    callback = LearnVariances(rate=1.0)
    callback.model, callback.num_timesteps = model, 120

    def around():
        draws = torch.Generator().manual_seed(120)  # as the callback draws at this step
        return evidence(net, curvature(net, Chained(net), x.split(256), likelihood, total=1000, generator=draws))

    before = around().log_variances.requires_grad_()
    around().negative_log(0.0, before).backward()
    assert before.grad.abs().max() > 5
    for _ in range(100):
        callback._move(net, x, 1000)
    blocks = curvature(
        net, Chained(net), x.split(256), likelihood, total=1000, generator=torch.Generator().manual_seed(120)
    )
    found = evidence(net, blocks)
    s = found.log_variances.clone().requires_grad_()
    found.negative_log(0.0, s).backward()
    assert s.grad.abs().max() < 0.05  # in nats
    assert float(found.negative_log(0.0)) < float(found.negative_log(0.0, before.detach())) - 1


def test_variances_move_during_training_and_go_on_after_a_checkpoint():
    again, model = agent(), agent()
    before = model.critic.q_networks[0].pathway_variances()
    model.learn(100, callback=LearnVariances(every=40, data=64))
    at_80 = model.critic.q_networks[0].pathway_variances()
    assert (
        at_80["head"]["free"] != before["head"]["free"] and at_80["head"]["equivariant"] < before["head"]["equivariant"]
    )
    assert model.actor.net.pathway_variances()["head"]["free"] == pytest.approx(1e-4)

    captured = model.capture()
    model.learn(60, callback=LearnVariances(every=40, data=64), reset_num_timesteps=False)
    again.restore(captured)
    again.learn(60, callback=LearnVariances(every=40, data=64), reset_num_timesteps=False)
    for a, b in zip(model.critic.state_dict().values(), again.critic.state_dict().values(), strict=True):
        assert torch.equal(a, b)
    assert model.critic.q_networks[0].pathway_variances() != at_80


@pytest.mark.parametrize("argument", [{"every": 0}, {"data": -1}, {"rate": 0}, {"rate": 1.5}])
def test_bad_input(argument):
    (name,) = argument
    with pytest.raises(ValueError, match=f"^{name}="):
        LearnVariances(**argument)
