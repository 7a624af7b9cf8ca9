r"""RPPCrossQ: critics normalised by batch, without targets (CrossQ), and the options that make it XQC.

It differs from RPP-SAC in the critics' loss and the networks. States and next states go through the critics as one batch, and
are normalised by the same statistics; then no moving average of critics is needed. The actor is updated every third time.
Networks are RPP-SAC's, with :class:`rppdyn.nn.BatchNorm` before each linear layer.

Source: Bhatt et al. 2024 (CrossQ); Palenicek et al. 2025 (XQC); Bellemare, Dabney & Munos 2017 (the categorical critic).
"""

from __future__ import annotations

import io
import pathlib
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, ClassVar

import numpy as np
import torch
from stable_baselines3.common.type_aliases import GymEnv, MaybeCallback
from torch import Tensor
from torch.nn import functional as F

from rppdyn.agents._sac import RPPSAC
from rppdyn.agents._update import Batch, Metrics, SACSettings, SACUpdate, State, gradient_of
from rppdyn.agents.policy import RPPPolicy
from rppdyn.envs import SymmetrySpec
from rppdyn.nn._normalisation import WARM_UP, RowNorm
from rppdyn.reps._rep import is_int

CRITIC_HEADS = ("scalar", "categorical")
MAX_BINS, MAX_VALUE = 1001, 1e6
NO_TARGETS = ": RPPCrossQ has no targets; leave it out, or use RPPSAC"


@dataclass(frozen=True)
class CrossQSettings(SACSettings):
    """The numbers of an update.

    Attributes:
        moves_actor: whether actor and temperature are updated, too.
        weight_norm: whether rows of hidden layers are scaled to norm 1 afterwards.
    """

    moves_actor: bool = True
    weight_norm: bool = False


class CrossQUpdate(SACUpdate):
    """Gradient updates of several agents at once."""

    has_targets = False

    agents: list[RPPCrossQ]  # type: ignore[assignment]

    def __init__(self, agents: Sequence[RPPCrossQ]) -> None:
        super().__init__(agents)
        self.atoms = agents[0].critic.atoms
        self.rows: dict[str, RowNorm] = {}

    def refresh(self) -> None:
        before = self.state
        super().refresh()
        if self.state is not before:  # perhaps on another device, in another dtype
            self.atoms, self.rows = self.agents[0].critic.atoms, {}
        if self.agents[0].weight_norm and not self.rows:
            each = (("actor", self.actors), ("critic", self.critics))
            self.rows = {name: RowNorm(ensemble.nets[0], ensemble.trainable) for name, ensemble in each}

    def update_(self, state: State, batch: Batch, numbers: Tensor, settings: SACSettings) -> Metrics:
        r"""One step of critics and, every `policy_delay` updates, of actor and temperature, in place.

        The losses are those of `SACUpdate.update_`, but for

            y       = r + (1 - done) gamma (min_k q_k(s', a') - alpha log pi(a' | s')), q_k(s', a') in one batch with q_k(s, a)
            critics : for a categorical head, cross-entropy to the distribution of y under the critic with the smaller mean,
                      projected on the atoms

        Arguments as there. There are metrics of the actor only when it is updated, and there is no `critic_prior`.
        """
        assert isinstance(settings, CrossQSettings)
        rate, gamma, _, noise_variance, _ = numbers.unbind()
        next_actions, log_prob = self.next_actions(state, batch)
        bonus = state["log_alpha"].exp() * log_prob
        discounts = (1 - batch["dones"]) * batch.get("discounts", gamma.to(batch["dones"].dtype))
        x = self.critic_inputs(
            torch.cat([batch["features"], batch["next_features"]], 1), torch.cat([batch["actions"], next_actions], 1)
        )

        def loss(vectors: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
            output, running = self.critics.on_batch(x, vectors, state["critic.running"])
            output, next_output = output.unflatten(0, (len(bonus), -1)).chunk(2, 2)  # (S, K, B, .) each
            losses = self.head_loss(output, next_output.detach(), batch["rewards"], discounts, bonus)
            losses = losses / noise_variance.squeeze(1)
            return losses.sum(), {"losses": losses, "running": running}

        gradient, results = gradient_of(loss, state["critic"])
        # the prior's part is no metric here: torch 2.13 can't compile that
        self.move_critics_(state, batch, gradient, rate, settings)
        metrics = {"critic_loss": results["losses"]}
        if settings.moves_actor:
            metrics |= self.move_actors_(state, batch, numbers, settings, results["running"])
        state["critic.running"].copy_(results["running"])
        if settings.weight_norm:
            self.normalise_weights_(state)
        return Metrics(tuple(metrics), torch.stack(list(metrics.values())))

    def normalise_weights_(self, state: State) -> None:
        """Scale the rows of the hidden layers to norm 1 (:class:`rppdyn.nn._normalisation.RowNorm`)."""
        self.rows["actor"].scale_(state["actor"], self.actors.hidden_weights(state["actor"]))
        self.rows["critic"].scale_(state["critic"], self.critics.hidden_weights(state["critic"]))

    def head_loss(
        self, output: Tensor, next_output: Tensor, rewards: Tensor, discounts: Tensor, bonus: Tensor
    ) -> Tensor:
        """The critics' loss of each agent, (S,), from their outputs in states and next states, (S, K, B, .)."""
        if self.atoms is None:
            y = rewards + discounts * (next_output.squeeze(-1).amin(1) - bonus)
            return (output.squeeze(-1) - y.unsqueeze(1)).square().mean(2).sum(1) / 2
        probabilities = next_output.softmax(-1)
        lowest = (probabilities @ self.atoms).argmin(1)  # (S, B), the critic with the smallest mean
        probabilities = probabilities.take_along_dim(lowest[:, None, :, None], 1).squeeze(1)
        y = rewards.unsqueeze(-1) + discounts.unsqueeze(-1) * (self.atoms - bonus.unsqueeze(-1))
        target = project_on_atoms(y, probabilities, self.atoms)
        return -(target.unsqueeze(1) * F.log_softmax(output, -1)).sum(-1).mean(2).sum(1)

    def values(self, features: Tensor, actions: Tensor, weights: Any) -> Tensor:
        if self.atoms is None:
            return super().values(features, actions, weights)
        x = self.critic_inputs(features, actions)
        output = self.critics.apply(x, weights).unflatten(0, (len(features), -1))
        return output.softmax(-1) @ self.atoms


def project_on_atoms(values: Tensor, probabilities: Tensor, atoms: Tensor) -> Tensor:
    """Divide the probabilities (..., N) of values (..., N) between the atoms (N,) next to each value."""
    place = (values.clamp(atoms[0], atoms[-1]) - atoms[0]) * ((len(atoms) - 1) / (atoms[-1] - atoms[0]))
    index = torch.arange(len(atoms), device=atoms.device, dtype=atoms.dtype)
    # sums over all pairs, as the order of a scatter depends on the number of threads; in parts, as there are many pairs
    parts = ((1 - (place.unsqueeze(-1) - part).abs()).clamp_min(0) for part in index.split(128))
    return torch.cat([(probabilities.unsqueeze(-1) * shares).sum(-2) for shares in parts], -1)


def _is_range(ends: Any) -> bool:
    numbers = isinstance(ends, Sequence | np.ndarray) and len(ends) == 2 and all(isinstance(end, Real) for end in ends)
    return numbers and -MAX_VALUE <= ends[0] < 0 < ends[1] <= MAX_VALUE


class RPPCrossQ(RPPSAC):
    """CrossQ with residual pathway priors.

        model = RPPCrossQ("RPPPolicy", "Ant-v5", policy_kwargs=dict(model="emlp"), seed=0).learn(100_000)

    Defaults are those of sb3-contrib's CrossQ, but for the critics' width, which is the actor's (256; there 1024, here
    `policy_kwargs=dict(critic_hidden=1024)`), and the temperature's Adam, which has the `betas` of the others.

    Args:
        policy, env, spec: as of :class:`RPPSAC`.
        policy_delay: updates of the critics for one of actor and temperature.
        critic_head: "scalar"; or "categorical", critics with probabilities of `bins` values, and rewards divided by a running
            scale.
        bins, value_range: number of those values, and the least and the largest, below and above 0. Running returns (of the
            past), scaled, stay within the nearer one; values beyond the range are clipped.
        weight_norm: scale the rows of hidden layers to norm 1 after each update. Rows that a symmetry exchanges are scaled by
            one number, the same in all pathways. With `critic_head="categorical"` this is XQC.
        policy_kwargs: RPPPolicy's arguments; `normalisation` defaults to "renorm", and the activation to "relu".
        **kwargs: other arguments of RPPSAC and stable-baselines3; there are no targets, so no `tau`.
    Raises:
        ValueError: as of :class:`RPPSAC`; settings of targets; an unknown head, or an invalid number or range.
    """

    update_class: ClassVar[type[SACUpdate]] = CrossQUpdate

    def __init__(
        self,
        policy: str | type[RPPPolicy],
        env: GymEnv | str | None,
        spec: SymmetrySpec | None = None,
        *,
        learning_rate: Any = 1e-3,
        learning_starts: int = 100,
        policy_delay: int = 3,
        critic_head: str = "scalar",
        bins: int = 101,
        value_range: tuple[float, float] = (-5.0, 5.0),
        weight_norm: bool = False,
        policy_kwargs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        if "atoms" in (policy_kwargs or {}):
            raise ValueError("policy_kwargs has atoms: give critic_head='categorical', bins and value_range for it")
        self.policy_delay, self.weight_norm = policy_delay, weight_norm
        self.critic_head, self.bins, self.value_range = critic_head, bins, value_range
        arguments = {"normalisation": "renorm", **(policy_kwargs or {})}
        if "activation_fn" not in arguments:
            arguments["network_kwargs"] = {"activation": "relu", **(arguments.get("network_kwargs") or {})}
        if critic_head == "categorical" and _is_range(value_range):
            arguments["atoms"] = [*map(float, value_range), bins]
        super().__init__(
            policy, env, spec, learning_rate=learning_rate, learning_starts=learning_starts, policy_kwargs=arguments,
            **{"tau": 1.0, **kwargs},
        )  # fmt: skip

    def _setting_rules(self) -> dict[str, tuple[bool, str]]:
        return super()._setting_rules() | {
            "tau": (self.tau == 1, NO_TARGETS),
            "target_update_interval": (self.target_update_interval == 1, NO_TARGETS),
            "policy_delay": (is_int(self.policy_delay) and self.policy_delay >= 1, ": give a number of at least 1"),
            "critic_head": (self.critic_head in CRITIC_HEADS, f": choose {' or '.join(map(repr, CRITIC_HEADS))}"),
            "bins": (is_int(self.bins) and 2 <= self.bins <= MAX_BINS, f": give a number from 2 to {MAX_BINS}"),
            "value_range": (_is_range(self.value_range), f": give a number below 0 and one above, up to {MAX_VALUE:g}"),
            "weight_norm": (isinstance(self.weight_norm, bool), ": give True or False"),
        }

    def _setup_model(self) -> None:
        normalisation = self.policy_kwargs.get("normalisation")
        if normalisation not in [*WARM_UP]:  # it may be a list
            raise ValueError(
                f"normalisation={normalisation!r}: RPPCrossQ's networks need one; choose {' or '.join(map(repr, WARM_UP))}; "
                "an RPPSAC file is loaded by RPPSAC"
            )
        super()._setup_model()
        atoms = [*map(float, self.value_range), self.bins] if self.critic_head == "categorical" else None
        if self.policy_kwargs.get("atoms") != atoms:
            raise ValueError("critic_head, bins and value_range are those of the saved networks: leave them out")

    def load_replay_buffer(self, path: str | pathlib.Path | io.BufferedIOBase, truncate_last_traj: bool = True) -> None:
        """Load transitions; arguments as in stable-baselines3. They are not in the running scale of rewards."""
        super().load_replay_buffer(path, truncate_last_traj)
        if self.critic_head == "categorical" and not self.policy.reward_scale.moments[0]:
            warnings.warn(
                "rewards of this buffer are not scaled until the agent has stored some of its own: load the agent that filled "
                "it, or give their discounted returns to agent.policy.reward_scale.observe",
                stacklevel=2,
            )

    def _setup_learn(
        self, total_timesteps: int, callback: MaybeCallback = None, reset_num_timesteps: bool = True, *args, **kwargs
    ):
        if self.critic_head == "categorical" and (reset_num_timesteps or self._last_obs is None):
            self._discounted_returns = np.zeros(self.n_envs)  # new episodes begin
        return super()._setup_learn(total_timesteps, callback, reset_num_timesteps, *args, **kwargs)

    def settings(self) -> CrossQSettings:
        """The settings of the next update."""
        return CrossQSettings(
            **vars(super().settings()),
            moves_actor=(self._n_updates + 1) % self.policy_delay == 0,
            weight_norm=self.weight_norm,
        )

    def scale_rewards(self, rewards: Tensor) -> Tensor:
        """Divide rewards by the running scale if the head is categorical."""
        return rewards if self.critic_head == "scalar" else rewards / self.policy.reward_scale.scale.to(rewards)

    def _store_transition(self, replay_buffer, buffer_action, new_obs, reward, dones, infos) -> None:
        super()._store_transition(replay_buffer, buffer_action, new_obs, reward, dones, infos)
        if self.critic_head == "categorical":
            self._discounted_returns = self.gamma * self._discounted_returns + reward
            self.policy.reward_scale.observe(torch.from_numpy(self._discounted_returns))
            # values go on after a time limit, and so do these
            limits = [info.get("TimeLimit.truncated", False) for info in infos]
            goes_on = replay_buffer.handle_timeout_termination & np.array(limits, dtype=bool)
            self._discounted_returns = np.where(dones & ~goes_on, 0.0, self._discounted_returns)

    def identity(self) -> dict[str, Any]:
        return super().identity() | {
            "algorithm": "CrossQ",
            "policy_delay": self.policy_delay,
            "weight_norm": self.weight_norm,
        }
