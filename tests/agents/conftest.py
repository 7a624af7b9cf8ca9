"""Small agents, shared by the tests of this folder."""

from __future__ import annotations

import pytest

from rppdyn.agents import RPPSAC


@pytest.fixture(scope="session")
def make_agent():
    """make_agent(model, env) -> an untrained agent with tiny networks."""

    def make(
        model: str = "rpp", env="InvertedPendulum-v5", *, seed: int | None = 0, policy_kwargs=None, **kwargs
    ) -> RPPSAC:
        width = {} if "net_arch" in (policy_kwargs or {}) else dict(hidden=16, num_layers=2)
        small = dict(model=model) | width | dict(policy_kwargs or {})
        options = dict(buffer_size=2000, learning_starts=50, batch_size=32) | kwargs
        return RPPSAC("RPPPolicy", env, policy_kwargs=small, seed=seed, device="cpu", **options)

    return make
