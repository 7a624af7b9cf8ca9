"""The critics' prior variances learned during training."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from agent_states import update_state
from refusals import refused

from rppdyn.agents import RPPSAC, LearnVariances, RelaxedPPO, RPPCrossQ, WidenVariances
from rppdyn.agents._update import with_features
from rppdyn.envs import certify, make_env, save_certificate, symmetry_spec
from rppdyn.envs.certification._certificate import share_of
from rppdyn.nn._pathways import FreePathway, named_pathways, prior_unit
from rppdyn.priors import Gaussian, free_share, free_variance, joint_evidence


def agent(free_variance=1e-4, env="InvertedPendulum-v5", network_kwargs=None, **kwargs):
    small = dict(seed=0, device="cpu", learning_starts=60, batch_size=32, buffer_size=500)
    policy = dict(model="rpp", hidden=16, num_layers=1, free_variance=free_variance, network_kwargs=network_kwargs)
    return RPPSAC("RPPPolicy", env, policy_kwargs=policy, **small | kwargs)


def test_the_fixed_point_has_the_largest_marginal_likelihood():
    model = agent().learn(120)
    net, target = (critic.q_networks[0].double() for critic in (model.critic, model.critic_target))
    x, likelihood = torch.randn(100, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1)), Gaussian(1.0)
    callback = LearnVariances(rate=1.0)
    callback.model, callback.num_timesteps = model, 120

    def around():
        return joint_evidence(net, x, likelihood, total=1000)

    before = around().log_variances.requires_grad_()
    around().negative_log(0.0, before).backward()
    assert before.grad.abs().max() > 5
    for _ in range(60):
        callback._move(net, target, x, None, likelihood, 1000)
    found = around()
    s = found.log_variances.clone().requires_grad_()
    found.negative_log(0.0, s).backward()
    assert s.grad.abs().max() < 0.05  # in nats
    assert float(found.negative_log(0.0)) < float(found.negative_log(0.0, before.detach())) - 1


def test_the_noise_is_the_mean_squared_error_of_the_critics_loss():
    model = agent(noise_variance=3.0).learn(100)
    callback = LearnVariances(data=64)
    callback.model, callback.num_timesteps = model, 100
    batch = with_features(model.sampler.sample(64), model.policy.features_extractor)
    x, y = torch.cat([batch["features"], batch["actions"]], -1), callback._targets(batch)
    errors = [(net(x).squeeze(-1) - y).square().mean().item() for net in model.critic.q_networks]
    found = sum(errors) / len(errors)
    update = model.own_update
    settings = model.settings()
    numbers = torch.tensor(settings.numbers).view(-1, 1, 1)
    metrics = update.update_(update.state, update.stacked([batch]), numbers, settings)
    expected = dict(zip(metrics.names, metrics.values[:, 0].tolist(), strict=True))["critic_loss"]
    assert 2 * found / (2 * 3.0) == pytest.approx(expected, rel=1e-5)  # two critics


def test_weights_that_drift_in_normalised_critics_are_no_evidence_of_a_broken_symmetry():
    """A part of the free weights that no data determine is left out, as around the optimum it would be gone."""
    policy = dict(model="rpp", hidden=16, num_layers=1, free_variance=1e-4)
    small = dict(seed=0, device="cpu", learning_starts=60, batch_size=32, buffer_size=500)
    model = RPPCrossQ("RPPPolicy", "InvertedPendulum-v5", policy_kwargs=policy, **small).learn(100)
    net, target = (critic.q_networks[0] for critic in (model.critic, model.critic_target))
    x = torch.randn(40, 5, generator=torch.Generator().manual_seed(1))
    x[:, 0] = 0.0  # a mirrored entry, whose mean is 0: no output depends on the first layer's first column
    y, place = x[:, 1].clone(), "blocks.0.linear.free"
    callback = LearnVariances(rate=1.0)
    callback.model = model
    found = []
    for drift in (0.0, 10.0):
        free, before = net.blocks[0].linear.free, {k: v.clone() for k, v in net.state_dict().items()}
        with torch.no_grad():
            free.weight[:, 0] += drift
        found.append(callback._move(net, target, x, y, Gaussian(0.1), 40)[place])
        net.load_state_dict(before)
    assert found[1] == pytest.approx(found[0], abs=0.02)


def test_a_curvature_has_as_many_rows_as_its_effective_parameters_need(monkeypatch):
    rows, found = [], []
    spy = lambda net, x, *args, **options: rows.append(len(x)) or joint_evidence(net, x, *args, **options)  # noqa: E731
    monkeypatch.setattr("rppdyn.agents._callbacks.joint_evidence", spy)
    monkeypatch.setattr("rppdyn.agents._callbacks.FIRST_ROWS", 16)
    trained = agent().learn(200).capture()
    for data in (16, 1024):
        model = agent()
        model.restore(trained)
        callback = LearnVariances(data=data, rate=1.0)
        callback.model, callback.num_timesteps = model, 200
        callback._init_callback()
        found.append(callback.update())
    few, many = (sum(v for k, v in moved.items() if k.startswith("critic0") and "effective" in k) for moved in found)
    assert rows[:5] == [16, 16, 16, 32, 64]
    assert few <= 16 < 2 * 16 < many < max(rows) / 2
    assert found[0]["critic0.head.free"] > found[1]["critic0.head.free"]


def test_variances_move_during_training():
    model = agent()
    before = model.critic.q_networks[0].pathway_variances()
    model.learn(100, callback=LearnVariances(every=40, data=64))
    at_80 = model.critic.q_networks[0].pathway_variances()
    assert (
        at_80["head"]["free"] != before["head"]["free"] and at_80["head"]["equivariant"] < before["head"]["equivariant"]
    )
    actor = model.actor.net.pathway_variances()
    assert actor["head"]["free"] != pytest.approx(1e-4) and actor["head"]["equivariant"] == pytest.approx(1e5)


@pytest.mark.parametrize("callback", [LearnVariances(), WidenVariances(100)], ids=lambda c: type(c).__name__)
def test_an_agent_without_their_critics_is_refused(callback):
    with refused(type(callback).__name__, "RelaxedPPO has no such critics; use RPPSAC"):
        RelaxedPPO("RPPPolicy", "InvertedPendulum-v5", n_steps=8, batch_size=8).learn(8, callback)


def test_constant_inputs_keep_their_prior():
    model = agent(env="rppdyn/Navigation-v0", network_kwargs=dict(breaking="V", breaking_variance=0.1))
    model.learn(130, callback=LearnVariances(every=40, data=64))
    variances = [net.breaking.variance.item() for net in (*model.critic.q_networks, model.actor.net)]
    assert variances == pytest.approx([0.1] * 3) and model.critic.q_networks[0].pathway_norms()[""]["breaking"] > 0


def test_variances_widen_on_a_straight_line_of_their_logarithms():
    model = agent(1e-3)
    widen = dict(steps=120, start=1e-7, every=20)
    model.learn(70, callback=WidenVariances(**widen))  # gradient steps from 60 on
    expected = 10 ** (-7 + 4 * 60 / 120)
    nets = [model.actor.net, *model.critic.q_networks, *model.critic_target.q_networks]
    assert [net.pathway_variances()["head"]["free"] for net in nets] == pytest.approx([expected] * len(nets))
    assert float(model.actor.net.head.free.unit) == pytest.approx(prior_unit(expected, 16))
    model.learn(60, callback=WidenVariances(**widen), reset_num_timesteps=False)
    assert model.actor.net.pathway_variances()["head"]["free"] == pytest.approx(1e-3)


def test_variances_widen_in_fewer_steps_than_those_between_changes():
    model = agent(1e-3)
    model.learn(70, callback=WidenVariances(60))
    assert model.actor.net.pathway_variances()["head"]["free"] == pytest.approx(1e-3)


def test_the_actor_has_its_critics_shares_of_squared_weights_and_acts_as_before():
    model = agent(1e-6, env="Walker2d-v5").learn(100)
    callback = LearnVariances(rate=1.0)
    callback.model, callback.num_timesteps = model, 100
    callback._init_callback()
    observations = torch.randn(20, 17, generator=torch.Generator().manual_seed(0)).numpy()
    before = model.predict(observations, deterministic=True)[0]
    callback.update()
    assert np.allclose(model.predict(observations, deterministic=True)[0], before, atol=1e-5)

    for layer in ("blocks.0.linear", "head"):
        norms = [net.pathway_norms()[layer] for net in model.critic.q_networks]
        odds = np.prod([own["free"] / own["equivariant"] for own in norms])  # the geometric mean of two squares
        own, inputs = model.actor.net.pathway_variances()[layer], model.actor.net.get_submodule(layer).rep_in.dim
        share = free_share(own["free"], own["equivariant"], inputs)
        assert share / (1 - share) == pytest.approx(odds, rel=1e-5)
        assert share != pytest.approx(1e-6 * 16, rel=0.01)


def test_a_critic_without_equivariant_or_free_weights_leaves_the_actor_a_prior():
    model = agent(1e-6, env="Walker2d-v5").learn(100)
    callback = LearnVariances()
    callback.model = model
    inputs = model.actor.net.head.rep_in.dim
    for pathway, share in (("free", 1e-12), ("equivariant", 0.99)):
        for net in model.critic.q_networks:
            for coefficients in getattr(net.head, pathway).parameters():
                coefficients.data.zero_()
        callback._move_actor()
        variances = model.actor.net.pathway_variances()["head"]
        assert free_share(variances["free"], variances["equivariant"], inputs) == pytest.approx(share, rel=1e-6)
        with torch.no_grad():
            for net in model.critic.q_networks:
                for coefficients in net.head.parameters():
                    coefficients.fill_(1.0)


def test_a_certified_variance_is_a_number_of_the_saved_policy(tmp_path, monkeypatch):
    monkeypatch.setenv("RPPDYN_CACHE_DIR", str(tmp_path / "cache"))
    env = make_env("Walker2d-v5", actuator_scale={"leg_joint": 0.5})
    certificate = certify(env, symmetry_spec(env), n_states=40, n_resets=20)
    save_certificate(certificate)
    model = agent("certified", env=env)
    number = free_variance(share_of(certificate).share, 1e5, 16)
    assert model.policy_kwargs["free_variance"] == number > 0
    assert model.actor.net.pathway_variances()["head"]["free"] == pytest.approx(number)
    model.save(tmp_path / "agent")

    def again(*_, **__):
        raise AssertionError("the number stands in the file")

    monkeypatch.setattr("rppdyn.agents.policy.certified_share", again)
    assert RPPSAC.load(tmp_path / "agent", device="cpu").policy_kwargs["free_variance"] == number


def dense(critic):
    """The free pathways' dense weights and biases."""
    pathways = [p for net in critic.q_networks for _, name, p in named_pathways(net) if name == "free"]
    return [tensor.detach().clone() for pathway in pathways for tensor in pathway.dense()]


@pytest.mark.parametrize("variance", [1e-4, 10.0], ids=["narrow", "wide"])
def test_units_follow_variances_and_functions_stay(variance):
    model = agent(variance).learn(100)
    callback = LearnVariances(rate=1.0)
    callback.model, callback.num_timesteps = model, 100
    callback._init_callback()
    before = dense(model.critic), dense(model.critic_target)
    callback.update()
    for found, expected in zip((dense(model.critic), dense(model.critic_target)), before, strict=True):
        for a, b in zip(found, expected, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-9)
    units = []
    for critic in (model.critic, model.critic_target):
        for net in critic.q_networks:
            for _, name, pathway in named_pathways(net):
                if name == "free":
                    unit = prior_unit(float(pathway.variance), pathway.weight.shape[1])
                    assert float(pathway.unit) == pytest.approx(unit, rel=1e-6)
                    units.append(unit)
    assert len(set(units)) == 4 and min(units) < 0.9  # two layers of two critics, and their targets'

    # what updates work on is what the modules are, and Adam's step in the free weights is of the unit's size
    model.own_update.refresh()
    (hidden, *_), head = model.own_update.critics.assemble(update_state(model)["critic"])
    for (weight, _), k in zip((hidden, head), range(2), strict=True):
        for one, net in zip(weight, model.critic.q_networks, strict=True):
            layer = net.head if k == 1 else net.blocks[0].linear
            torch.testing.assert_close(one, layer.assemble()[0], rtol=1e-5, atol=1e-7)


def test_adam_goes_on_as_if_the_unit_had_always_been_the_new_one():
    inputs = torch.randn(50, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    wanted = torch.randn(50, 4, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    new = prior_unit(1e-4, 3)
    followed, built = (FreePathway(3, 4, v, unit=prior_unit(v, 3)).double() for v in (1e-2, 1e-4))
    with torch.no_grad():
        for pathway in (followed, built):
            pathway.weight.copy_(torch.ones(4, 3) * 0.01 / pathway.unit)
    optimisers = [torch.optim.Adam(p.parameters(), lr=1e-2, eps=0.0) for p in (followed, built)]
    # moments of the same dense gradients
    for pathway, optimiser in zip((followed, built), optimisers, strict=True):
        (pathway(inputs) - wanted).square().mean().backward()
        optimiser.param_groups[0]["lr"] = 0.0
        optimiser.step()
        optimiser.param_groups[0]["lr"] = 1e-2
    with torch.no_grad():
        followed.log_variance.copy_(built.log_variance)
    followed.follow_variance(optimisers[0])
    assert float(followed.unit) == pytest.approx(new)
    for _ in range(5):
        for pathway, optimiser in zip((followed, built), optimisers, strict=True):
            optimiser.zero_grad()
            (pathway(inputs) - wanted).square().mean().backward()
            optimiser.step()
    for a, b in zip(followed.dense(), built.dense(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)


def test_categorical_critics_are_measured_as_classes(monkeypatch):
    """By one drawn class for each transition, and not as so many normal numbers as there are classes."""
    policy = dict(model="rpp", hidden=16, num_layers=1, free_variance=1e-4)
    model = RPPCrossQ(
        "RPPPolicy", "InvertedPendulum-v5", policy_kwargs=policy, critic_head="categorical", bins=11, seed=0, device="cpu",
        learning_starts=40, batch_size=16, buffer_size=200,
    )  # fmt: skip
    found = []
    spy = lambda *args, **options: found.append(joint_evidence(*args, **options)) or found[-1]  # noqa: E731
    monkeypatch.setattr("rppdyn.agents._callbacks.joint_evidence", spy)
    before = model.critic.q_networks[0].pathway_variances()["head"]["free"]
    model.learn(60, callback=LearnVariances(every=20, data=30))
    assert [len(evidence.kernels[0]) for evidence in found] == [30, 30]
    assert model.critic.q_networks[0].pathway_variances()["head"]["free"] != before
