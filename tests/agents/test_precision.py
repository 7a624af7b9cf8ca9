"""Faster matrix products are used inside updates only, and where they are as accurate."""

from __future__ import annotations

import pytest
import torch

from rppdyn.agents import RPPSAC, train_many
from rppdyn.agents import _compiling as compiling
from rppdyn.agents._compiling import check_matmul_precision, matmul_precision, product_error
from rppdyn.agents.buffers import BatchSampler

CPU = torch.device("cpu")


def test_the_error_is_that_of_a_product_in_single_precision():
    assert 1e-8 < product_error("highest", CPU) < 1e-6


def test_a_coarser_product_is_refused(monkeypatch):
    def bfloat16(name: str, device: torch.device) -> float:
        return 3e-3 if name == "medium" else 2e-7

    monkeypatch.setattr(compiling, "product_error", bfloat16)
    check_matmul_precision("high", CPU)
    with pytest.raises(
        ValueError, match=r"matmul_precision=medium: on this cpu products have a relative error of 3e-03"
    ):
        check_matmul_precision("medium", CPU)
    with pytest.raises(ValueError, match=r"matmul_precision='fast' is not one of highest, high, medium"):
        check_matmul_precision("fast", CPU)


def test_updates_have_it_and_nothing_else_has(make_agent, monkeypatch):
    seen = {}

    def noting(name: str, method):
        def noted(self, *arguments, **options):
            seen.setdefault(name, set()).add(torch.get_float32_matmul_precision())
            return method(self, *arguments, **options)

        return noted

    for kind, name in ((BatchSampler, "sample"), (RPPSAC, "_store_transition")):
        monkeypatch.setattr(kind, name, noting(name, getattr(kind, name)))
    builds = [lambda seed=seed: make_agent(seed=seed, matmul_precision="high") for seed in (0, 1)]
    agents = [trainer.agent for trainer in train_many(builds, 60)]
    assert all(agent._n_updates == 10 for agent in agents)
    assert seen == {"sample": {"high"}, "_store_transition": {"highest"}}


@pytest.mark.parametrize("error, chosen", [(2e-7, "medium"), (3e-3, "highest")])
def test_without_one_updates_have_the_fastest_that_is_as_accurate(make_agent, monkeypatch, error, chosen):
    seen = []
    monkeypatch.setattr(compiling, "product_error", lambda name, device: error if name == "medium" else 2e-7)
    monkeypatch.setattr(
        BatchSampler, "sample",
        lambda self, like, draw=BatchSampler.sample: seen.append(torch.get_float32_matmul_precision()) or draw(self, like),
    )  # fmt: skip
    agent = make_agent().learn(55)
    with matmul_precision("high"):  # its user's own choice
        agent.learn(5, reset_num_timesteps=False)
    assert agent.matmul_precision is None and seen == [chosen] * 5 + ["high"] * 5


def test_what_is_chosen_costs_no_accuracy_on_this_machine():
    """Updates have, by default, products of single precision, whatever the processor makes of the faster ones."""
    with matmul_precision(compiling.update_precision(None, CPU)):
        a, b = torch.randn(2, 2, 512, 300, generator=torch.Generator().manual_seed(1))
        error = (torch.bmm(a.mT, b).double() - torch.bmm(a.double().mT, b.double())).norm()
    assert error < 1e-6 * torch.bmm(a.double().mT, b.double()).norm()


def cast(agent: RPPSAC) -> RPPSAC:
    agent.policy.double()
    agent.log_ent_coef.data = agent.log_ent_coef.data.double()
    return agent


def test_one_agent_has_one_precision(make_agent):
    agent = make_agent()
    agent.policy.double()
    with pytest.raises(ValueError, match=r"^the temperature is in torch.float32, features in torch.float64: cast"):
        agent.learn(60)
    cast(agent).learn(60)
    trained = cast(make_agent("emlp", "rppdyn/WindyPendulum-v0").learn(60))  # whose actions a rotation mixes
    with pytest.raises(ValueError, match=r"^the actor's optimiser is in torch.float32, features in torch.float64"):
        trained.learn(5, reset_num_timesteps=False)
    trained.set_parameters(trained.get_parameters())  # as it says
    assert trained.learn(5, reset_num_timesteps=False)._n_updates == 15


def test_a_state_goes_on_in_the_precision_that_it_had(make_agent):
    data = cast(make_agent()).learn(60).capture()
    with pytest.raises(
        ValueError, match=r"captured from an agent with .* in torch.float64, this one's is in torch.float32"
    ):
        make_agent().restore(data)
    half = make_agent()
    half.policy.double()
    with pytest.raises(ValueError, match=r"agent with log_ent_coef in torch.float64, this one's is in torch.float32"):
        half.restore(data)
    resumed = cast(make_agent(seed=1))
    resumed.restore(data)
    assert resumed.learn(5, reset_num_timesteps=False).num_timesteps == 65


def test_agents_of_two_precisions_are_not_trained_together(make_agent):
    with pytest.raises(ValueError, match=r"one configuration; dtype is torch.float32 and torch.float64"):
        train_many([make_agent, lambda: cast(make_agent(seed=1))], 60)
