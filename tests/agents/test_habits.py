"""What users of stable-baselines3 type: `net_arch` and `activation_fn` of policies."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from rppdyn.agents import RPPPPO, RPPSAC
from rppdyn.agents.update import gradient_of
from rppdyn.groups import Z
from rppdyn.nn import RPPEMLP
from rppdyn.nn.ensemble import Ensemble
from rppdyn.reps import V

PENDULUM = "InvertedPendulum-v5"


def make(algorithm, **policy_kwargs):
    options = (
        dict(buffer_size=100, learning_starts=4, batch_size=4) if algorithm is RPPSAC else dict(n_steps=8, batch_size=4)
    )
    return algorithm("RPPPolicy", PENDULUM, seed=0, device="cpu", policy_kwargs=policy_kwargs, **options)


def widths(net):
    return [rep.dim for rep in net.hidden]


@pytest.mark.parametrize(("algorithm", "critic"), [(RPPSAC, "qf"), (RPPPPO, "vf")])
def test_net_arch_and_activation_fn(algorithm, critic, tmp_path):
    agent = make(algorithm, net_arch={"pi": [12, 8], critic: [16]}, activation_fn=nn.ReLU)
    networks = agent.policy.networks
    assert widths(networks["actor"][0]) == [12, 8]
    assert all(widths(net) == [16] for net in networks["critic"])
    assert {net.activation.name for own in networks.values() for net in own} == {"relu"}
    agent.learn(8)
    agent.save(tmp_path / "agent")
    loaded = algorithm.load(tmp_path / "agent")
    obs = torch.randn(3, 4, generator=torch.Generator().manual_seed(0)).double().numpy()
    assert (agent.predict(obs, deterministic=True)[0] == loaded.predict(obs, deterministic=True)[0]).all()


def test_net_arch_is_hidden():
    long, short = make(RPPSAC, hidden=[8, 8, 8], num_layers=3), make(RPPSAC, net_arch=[8, 8, 8])
    assert long.policy._arguments == short.policy._arguments
    assert all(map(torch.equal, long.policy.parameters(), short.policy.parameters()))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (dict(net_arch=64), "net_arch=64: give numbers of channels"),
        (dict(net_arch=[64, "a"]), "net_arch=.*: give numbers of channels"),
        (dict(net_arch=[]), r"net_arch=\[\]: give one hidden layer at least"),
        (dict(net_arch=dict(pi=[8], vf=[8])), "give a list, or a dictionary with the keys pi and qf"),
        (dict(hidden=[]), r"hidden=\[\]: give one hidden layer at least"),
        (dict(hidden=0), "hidden=0: give a number of channels"),
        (dict(activation_fn=nn.Linear), "activation_fn=<class 'torch.nn.*Linear'>: no activation"),
        (dict(activation_fn=nn.ReLU, network_kwargs=dict(activation="tanh")), "give one"),
        (dict(network_kwargs=dict(device="cuda")), "network_kwargs has 'device'"),
        (dict(optimizer_class=torch.optim.SGD), "optimizer_class, which RPPPolicy hasn't"),
    ],
)
def test_refused_in_one_line(wrong, message):
    with pytest.raises(ValueError, match=message) as error:
        make(RPPSAC, **wrong)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["swish", "relu", "tanh", "gelu"])
def test_updates_have_autograds_gradients(name):
    nets = [
        RPPEMLP(V, V, Z(2), hidden=8, num_layers=2, activation=name, free_scale=1.0,
                generator=torch.Generator().manual_seed(seed)).double()
        for seed in (0, 1)
    ]  # fmt: skip
    x = torch.randn(2, 5, 2, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    ensemble = Ensemble(nets, own=False)

    def loss(vectors):
        y = ensemble.apply(x, ensemble.assemble(vectors))
        return y.sum(), y

    gradients, y = gradient_of(loss, ensemble.flat, ensemble)
    torch.testing.assert_close(gradients, gradient_of(loss, ensemble.flat.clone())[0])
    torch.testing.assert_close(y, torch.stack([net(x_) for net, x_ in zip(nets, x, strict=True)]).detach())
    for net, x_, found in zip(nets, x, gradients, strict=True):
        net.zero_grad()
        net(x_).sum().backward()
        torch.testing.assert_close(found, torch.cat([net.get_parameter(n).grad.flatten() for n in ensemble.trainable]))
