"""Small agents, shared by the tests of this folder."""

from __future__ import annotations

import numpy as np
import pytest
from forked import run_code

from rppdyn.agents import RPPSAC


@pytest.fixture
def make_agent():
    """make_agent(model, env) -> an untrained agent with tiny networks."""

    def make(
        model: str = "rpp", env="InvertedPendulum-v5", *, seed: int | None = 0, policy_kwargs=None, **kwargs
    ) -> RPPSAC:
        small = dict(model=model, hidden=16, num_layers=2) | dict(policy_kwargs or {})
        options = dict(buffer_size=2000, learning_starts=50, batch_size=32) | kwargs
        return RPPSAC("RPPPolicy", env, policy_kwargs=small, seed=seed, device="cpu", **options)

    return make


@pytest.fixture
def actions_elsewhere(tmp_path):
    """actions_elsewhere(agent, observations, without) -> what the agent, saved as agent.zip, does in another process.

    Loading it there must not import the module `without`, which holds its environment.
    """

    def act(agent, observations: np.ndarray, without: str) -> np.ndarray:
        agent.save(tmp_path / "agent")
        np.save(tmp_path / "observations.npy", observations)
        kind = type(agent)
        code = (
            f"import numpy as np, sys\nfrom {kind.__module__} import {kind.__name__} as kind\n"
            "agent = kind.load('agent.zip', device='cpu')\n"
            f"assert {without!r} not in sys.modules\n"
            "np.save('actions.npy', agent.predict(np.load('observations.npy'), deterministic=True)[0])"
        )
        run_code(code, folder=tmp_path)
        return np.load(tmp_path / "actions.npy")

    return act
