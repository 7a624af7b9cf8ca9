"""RPP-SAC: a stable-baselines3 SAC whose actor and critics are relaxed equivariant networks.

    model = RPPSAC("RPPPolicy", "Walker2d-v5", seed=0)
    model.learn(100_000)
    error = policy_equivariance_error(model, observations)

See docs/concepts/rpp-sac.md.
"""

from __future__ import annotations

if __name__ != "rppdyn.agents":
    raise ImportError(f"this folder is imported as rppdyn.agents, not as {__name__!r}; write `import rppdyn.agents`")

from rppdyn.agents.algorithm import RPPSAC
from rppdyn.agents.equivariance import EquivarianceError, critic_equivariance_error, policy_equivariance_error
from rppdyn.agents.policy import MODELS, RPPPolicy
from rppdyn.agents.update import UpdateConfig, update

__all__ = [
    "MODELS",
    "RPPSAC",
    "EquivarianceError",
    "RPPPolicy",
    "UpdateConfig",
    "critic_equivariance_error",
    "policy_equivariance_error",
    "update",
]
