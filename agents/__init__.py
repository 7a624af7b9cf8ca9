"""Agents of stable-baselines3 whose networks are relaxed equivariant ones: RPP-SAC, and a policy for PPO.

    model = RPPSAC("RPPPolicy", "Walker2d-v5", seed=0)
    model.learn(100_000)
    error = policy_equivariance_error(model, observations)

    PPO(RPPActorCriticPolicy, "Walker2d-v5", policy_kwargs=dict(spec=symmetry_spec("Walker2d-v5")))

See docs/concepts/rpp-sac.md and docs/concepts/rpp-ppo.md.
"""

from __future__ import annotations

if __name__ != "rppdyn.agents":
    raise ImportError(f"this folder is imported as rppdyn.agents, not as {__name__!r}; write `import rppdyn.agents`")

from rppdyn.agents._callbacks import LearnVariances, WidenVariances
from rppdyn.agents._export import DeployedPolicy, export_onnx, export_torch, pretrained_agents, pretrained_card
from rppdyn.agents._measures import AgentEquivarianceError, critic_equivariance_error, policy_equivariance_error
from rppdyn.agents._sac import RPPSAC
from rppdyn.agents._seeds import train_many
from rppdyn.agents._update import SACSettings, SACUpdate
from rppdyn.agents.crossq import CrossQSettings, CrossQUpdate, RPPCrossQ
from rppdyn.agents.policy import MODELS, RPPPolicy
from rppdyn.agents.ppo import RPPPPO, Agent, RelaxedPPO, RPPActorCriticPolicy
from rppdyn.envs._episodes import played_episodes, random_policy, replay_episodes, spread_episodes

__all__ = [
    "MODELS", "RPPPPO", "CrossQSettings", "CrossQUpdate", "RPPCrossQ", "RPPSAC", "Agent", "AgentEquivarianceError",
    "DeployedPolicy", "LearnVariances", "RPPActorCriticPolicy", "RPPPolicy", "RelaxedPPO", "SACSettings", "SACUpdate",
    "WidenVariances", "critic_equivariance_error", "export_onnx", "export_torch", "played_episodes",
    "policy_equivariance_error", "pretrained_agents", "pretrained_card", "random_policy", "replay_episodes",
    "spread_episodes", "train_many",
]  # fmt: skip
