"""One gradient update of RPP-SAC, of one agent or of several at once.

`RPPSAC.train` (`_sac.py`) -> `SACUpdate.train` -> `SACUpdate.step` -> `FastUpdate.step` (`_compiling.py`: compiled, captured,
or plain) -> `SACUpdate.sample`, `SACUpdate.stacked`, then `SACUpdate.update_`, the algorithm. Actions during training:
`RPPSAC.collect_rollouts` -> `SACUpdate.act`, which draws the noise -> `FastUpdate.act` -> `SACUpdate.actions`.

S agents are updated together, each as if it were alone. `SACUpdate.state` holds vectors that share their memory with the
agents' networks and optimisers; n_pi and n_q are the numbers of parameters, K the number of critics of an agent:

| key | shape | |
| --- | --- | --- |
| `actor` | (S, n_pi) | the actors' parameters |
| `critic`, `target` | (S K, n_q) | parameters of critics, and their moving averages; one agent's K rows are adjacent |
| `log_alpha` | (S, 1) | the logarithms of the temperatures |
| `<name>.mean`, `<name>.square` | as `<name>` | Adam's moments of `actor`, `critic` and `log_alpha` |
| `<name>.step` | (S, p) | Adam's step count, once per parameter tensor, all equal |
| `<name>.precision` | (R or 1, n) | a network's -log prior is v' diag(precision) v / 2 + constant; R = S or S K |
| `<name>.constant` | (R,) | the constant in it |
| `actor.running`, `critic.running` | (S, .), (S K, .) | running statistics, for normalised networks only (CrossQ) |

Losses are functions of assembled weights (dense matrices that `Ensemble.assemble` makes of parameters). Autograd computes their
gradients; those of the priors, which are quadratic, are written out. `SACUpdate.update_` neither reads a value nor waits for a
device.

Source: Haarnoja et al. 2018 (SAC with a learned temperature); Finzi et al. 2021 (the priors); Yu, Turk & Liu 2018 (the mirror
loss); Adam is Kingma & Ba 2015.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import is_not
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils._pytree import tree_map

from rppdyn.agents._compiling import FastUpdate, matmul_precision, update_precision
from rppdyn.agents._networks import mode_action, sample_action, sample_with_log_prob
from rppdyn.nn._ensemble import Ensemble, flatten_
from rppdyn.priors._likelihood import prior_precision

if TYPE_CHECKING:
    from rppdyn.agents._sac import RPPSAC

State = dict[str, Tensor]
Batch = Mapping[str, Tensor]


@dataclass(frozen=True)
class SACSettings:
    """Settings of an update: first those in `PER_AGENT`, in that order, then those in `structure`.

    Attributes:
        learning_rate: Adam's, for actor, critics and temperature.
        gamma: the discount, where a batch brings none of its own.
        tau: speed of the targets' moving average; 0 leaves them as they are.
        noise_variance: s^2 of the critics' Gaussian likelihood; the smaller, the less the critics' priors weigh.
        target_entropy: in nats, for the learned temperature.
        learn_temperature: False keeps `log_alpha`.
        betas, epsilon: Adam's; betas are those of Finzi et al. 2021, appendix A.2.3.3.
        max_gradient_norm: bound on the norm of the actor's gradient, and of its critics' together, priors included; None for
            no clipping.
        mirror_loss: weight w of the mirror loss; 0 leaves it out.
    """

    learning_rate: float = 3e-4
    gamma: float = 0.99
    tau: float = 0.005
    noise_variance: float = 1.0
    target_entropy: float = -1.0
    learn_temperature: bool = True
    betas: tuple[float, float] = (0.5, 0.999)
    epsilon: float = 1e-8
    max_gradient_norm: float | None = None
    mirror_loss: float = 0.0

    @property
    def numbers(self) -> list[float]:
        """The `PER_AGENT` settings, in their order."""
        return [getattr(self, name) for name in PER_AGENT]

    @property
    def structure(self) -> tuple:
        """The settings that agents updated at once have in common; compiled code depends on them."""
        return tuple(getattr(self, field.name) for field in dataclasses.fields(self)[len(PER_AGENT) :])


PER_AGENT = ("learning_rate", "gamma", "tau", "noise_variance", "target_entropy")
"""The first settings: they may change between updates and differ between agents, and are tensors in an update."""


class Metrics(NamedTuple):
    """Metrics of one update, or sums over several: their names, and values (M, S), or (M,) for one agent in `RPPSAC._sums`."""

    names: tuple[str, ...]
    values: Tensor


class SACUpdate:
    """Gradient updates, and actions in training, of several agents at once (of one, S = 1).

    The agents' parameters and their optimisers' moments become views of common vectors, so that updates train the agents.

    Args:
        agents: agents of the same networks and spaces.
    Attributes:
        errors: errors in drawing batches, by the agent's place. Where a draw fails, the agent is trained on another agent's
            batch, and the caller should stop it.
    Raises:
        ValueError: networks that differ in more than drawn or learned numbers.
    """

    has_targets = True

    def __init__(self, agents: Sequence[RPPSAC]) -> None:
        self.agents = list(agents)
        self.actors = Ensemble([agent.actor.net for agent in agents], own=False)
        self.critics = Ensemble([net for agent in agents for net in agent.critic.q_networks], own=False)
        targets = [net for agent in agents for net in agent.critic_target.q_networks]
        self.targets = Ensemble(targets, own=False) if self.has_targets else self.critics
        self.features = [agent.policy.features_extractor for agent in agents]
        self.blocks: Tensor | None = None
        self.state: State = {}
        self.errors: dict[int, Exception] = {}
        self._optimiser_states: list[Any] = []  # optimiser states whose moments `state` holds
        self._addresses: list[int] = []  # addresses of the log temperatures
        self._fast = FastUpdate(self)

    def train(self, gradient_steps: int, batch_size: int) -> None:
        """Run gradient updates of all agents; the sums of their metrics replace those in each agent's `_sums`."""
        for agent in self.agents:
            agent.policy.set_training_mode(True)
            agent._update_learning_rate([*agent.optimisers.values()])
        totals: dict[tuple[str, ...], tuple[Tensor, int]] = {}
        first = self.agents[0]
        with matmul_precision(update_precision(first.matmul_precision, first.device)):
            for _ in range(gradient_steps):
                names, values = self.step(batch_size, [agent.settings() for agent in self.agents])
                total, count = totals.get(names, (None, 0))
                # the first values are copied, since the next replay of a captured update overwrites them
                totals[names] = values.clone() if total is None else total.add_(values), count + 1
                for agent in self.agents:
                    agent._n_updates += 1
        for i, agent in enumerate(self.agents if totals else ()):
            agent._sums = [(Metrics(names, total[:, i]), count) for names, (total, count) in totals.items()]

    def step(self, batch_size: int, settings: Sequence[SACSettings]) -> Metrics:
        """Update each agent once, on a batch from its own replay buffer, with settings of its own."""
        self.refresh()
        return self._fast.step(batch_size, settings)

    @torch.no_grad()
    def act(self, observations: Sequence[NDArray]) -> list[NDArray]:
        """Actions of each agent at observations (n_envs, n), in its environment's units, with its actor's exploration noise."""
        self.refresh()
        x = torch.from_numpy(np.stack(observations))
        like = self.features[0].like  # noise has its dtype: observations may be whole numbers
        noise = torch.stack([a.actor.draw_noise(obs) for a, obs in zip(self.agents, x.to(like.dtype), strict=True)])
        scaled = self._fast.act(x.to(like.device, non_blocking=True), noise.to(like, non_blocking=True)).cpu().numpy()
        return [agent.policy.unscale_action(actions) for agent, actions in zip(self.agents, scaled, strict=True)]

    def actions(
        self, observations: Tensor, noise: Tensor, vectors: Tensor | None = None, running: Tensor | None = None
    ) -> Tensor:
        """Actions in [-1, 1], (S, B, m), at raw observations (S, B, n), sampled with standard normal noise (S, B, m).

        Args:
            vectors, running: the actors' parameters and running statistics; None for their own.
        """
        inputs = [features(x) for features, x in zip(self.features, observations.unbind(), strict=True)]
        output = self.actors.apply(torch.stack(inputs), self.actors.assemble(vectors, running))
        return sample_action(output, noise, self.blocks)

    def sample(self, batch_size: int) -> list[Batch]:
        """Draw a batch for each agent; where that fails, put the error into `errors` and take another agent's batch.

        Raises:
            Exception: no agent's batch could be drawn.
        """
        batches: dict[int, Batch] = {}
        for i, agent in enumerate(self.agents):
            try:
                batches[i] = agent.sampler.sample(batch_size)
            except Exception as error:
                self.errors[i] = error
        if not batches:
            raise self.errors[0]
        stand_in = next(iter(batches.values()))
        return [batches.get(i, stand_in) for i in range(len(self.agents))]

    def stacked(self, batches: Sequence[Batch]) -> Batch:
        """Stack the batches of all agents, with features in the place of raw observations."""
        each = [with_features(batch, features) for batch, features in zip(batches, self.features, strict=True)]
        return {name: torch.stack([batch[name] for batch in each]) for name in each[0]}

    # -- the update ------------------------------------------------------------------------------------------------

    def update_(self, state: State, batch: Batch, numbers: Tensor, settings: SACSettings) -> Metrics:
        r"""One step of critics, actor, temperature and targets, in place and in that order.

        With N the number of transitions in the replay buffer (`learning_starts` at least), for each agent

            y           = r + (1 - done) gamma (min_k target_k(s', a') - alpha log pi(a' | s'))
            critics     : sum_k mean (q_k - y)^2 / (2 s^2) + negative_log_prior(q_k) / N
            actor       : mean (alpha log pi(a | s) - min_k q_k(s, a)) + alpha negative_log_prior(pi) / N
                          + w mean |mu(g s) - g mu(s)|^2,  mu = tanh(mean of pi), g drawn for each state, not the identity
            temperature : -mean log_alpha (log pi(a | s) + target_entropy)

        The actor's loss is its MAP objective, KL(pi || exp(q / alpha)) summed over N states, plus the prior, times alpha / N;
        and the mirror loss. y and the actor's loss use alpha from before the temperature's step. That step uses log pi from
        before the actor's, as in stable-baselines3.

        Args:
            state: see the module's docstring.
            batch: `features`, `next_features` (S, B, n), `actions` (S, B, m) in [-1, 1], `rewards`, `dones` (S, B);
                `transitions` (S,) the N above; `noise`, `next_noise` (S, B, m), standard normal; `discounts` (S, B) for
                n-step returns only; and for the mirror loss `image_features` (S, B, n) of the states g s, and
                `action_maps` (S, B, m, m).
            numbers: the `PER_AGENT` settings, (5, S, 1), in the state's dtype.
            settings: one agent's, of which only what is in `structure` is read; the rest, each agent's, is in `numbers`.
        Returns:
            Metrics, (S,) each: `actor_loss`, `critic_loss` (both without the prior and the mirror loss), `ent_coef`,
            `actor_prior`, `critic_prior` (negative log priors over N, constants included), `entropy`; `ent_coef_loss` if the
            temperature is learned; `mirror_loss` (without its weight) if it is in use.
        """
        rate, gamma, tau, noise_variance, _ = numbers.unbind()
        alpha = state["log_alpha"].exp()  # the temperature
        # built with gradients, so that an uncompiled `move_actors_` can reuse these weights
        with torch.enable_grad():
            actors = self.actors.assemble(state["actor"])
        # y, by the targets, with gamma rounded as stable-baselines3's
        next_actions, log_prob = self.next_actions(state, batch, actors)
        values = self.values(batch["next_features"], next_actions, self.targets.assemble(state["target"]))
        y = bootstrapped(batch, gamma.to(batch["dones"].dtype), values.amin(1) - alpha * log_prob)
        # critics, with their prior
        gradient, losses = gradient_of(
            lambda vectors: self.critic_loss(batch, y, noise_variance, self.critics.assemble(vectors)),
            state["critic"],
            self.critics,
        )
        prior = self.move_critics_(state, batch, gradient, rate, settings)
        metrics = {"critic_loss": losses, "critic_prior": prior}
        # actor with its prior, and temperature
        metrics |= self.move_actors_(state, batch, numbers, settings, weights=actors)
        # targets; tau is 0 where they stay (`RPPSAC.settings`)
        state["target"].lerp_(state["critic"], tau.repeat_interleave(self.critics.members // len(alpha), 0))
        return Metrics(tuple(metrics), torch.stack(list(metrics.values())))

    def next_actions(self, state: State, batch: Batch, weights: Any = None) -> tuple[Tensor, Tensor]:
        """Actions in the next states, and their log-densities; the actors' weights are the state's unless given."""
        if weights is None:
            weights = self.actors.assemble(state["actor"], state.get("actor.running"))
        output = self.actors.apply(batch["next_features"], weights)
        return sample_with_log_prob(output, batch["next_noise"], self.blocks)

    def move_critics_(
        self, state: State, batch: Batch, gradient: Tensor, rate: Tensor, settings: SACSettings
    ) -> Tensor:
        """Move the critics by the gradient of their loss and prior; returns their negative log priors over N, (S,)."""
        count = self.critics.members // self.actors.members
        share = 1 / batch["transitions"]
        prior = add_prior_(gradient, state, "critic", share.repeat_interleave(count).unsqueeze(1))
        clipped = clip_(gradient.view(len(share), -1), settings.max_gradient_norm).view_as(gradient)
        adam_step_(state, "critic", clipped, rate, settings)
        return prior.view(-1, count).sum(1)

    def move_actors_(
        self,
        state: State,
        batch: Batch,
        numbers: Tensor,
        settings: SACSettings,
        running: Tensor | None = None,
        weights: Any = None,
    ) -> dict[str, Tensor]:
        """Move actors and temperatures by one step; returns their metrics.

        Args:
            running: the critics' new running statistics (CrossQ); None without normalisation.
            weights: the actors' current weights, if assembled with gradients enabled; uncompiled, the loss reuses them.
        """
        rate, *_, target_entropy = numbers.unbind()
        alpha = state["log_alpha"].exp()
        critics = self.critics.assemble(state["critic"], running)  # after their step

        def loss(vectors: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
            # `weights` depend on the parameters, so they serve only where `gradient_of` differentiates by these
            reused = None if torch.compiler.is_compiling() or vectors is not self.actors.flat else weights
            return self.actor_loss(batch, alpha, critics, vectors, state, settings, reused)

        # with batch statistics the loss depends on the vectors directly, and not through assembled weights
        gradient, metrics = gradient_of(loss, state["actor"], self.actors if self.actors.running is None else None)
        running_actors = metrics.pop("running", None)
        # the prior is part of the gradient, scaled by alpha as the rest of the loss is; its metric is without alpha
        metrics["actor_prior"] = add_prior_(gradient, state, "actor", (1 / batch["transitions"]).unsqueeze(1), alpha)
        metrics["ent_coef"] = alpha.squeeze(1)
        adam_step_(state, "actor", clip_(gradient, settings.max_gradient_norm), rate, settings)
        if settings.learn_temperature:
            surplus = metrics["entropy"].unsqueeze(1) - target_entropy
            metrics["ent_coef_loss"] = (state["log_alpha"] * surplus).squeeze(1)
            adam_step_(state, "log_alpha", surplus, rate, settings)
        if running_actors is not None:
            state["actor.running"].copy_(running_actors)
        return metrics

    def critic_loss(self, batch: Batch, y: Tensor, noise_variance: Tensor, weights: Any) -> tuple[Tensor, Tensor]:
        """The critics' loss, summed over agents for its gradient, and each agent's, (S,)."""
        error = self.values(batch["features"], batch["actions"], weights) - y.unsqueeze(1)
        losses = error.square().mean(2).sum(1) / (2 * noise_variance.squeeze(1))
        return losses.sum(), losses

    def actor_loss(
        self,
        batch: Batch,
        alpha: Tensor,
        critics: Any,
        vectors: Tensor,
        state: State,
        settings: SACSettings,
        weights: Any = None,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The actors' loss, summed over agents for its gradient, and each agent's metrics, (S,).

        Weights are assembled from the parameters where none are given. Metrics of normalised actors include the new `running`
        statistics.
        """
        states = [batch["features"], *([batch["image_features"]] if settings.mirror_loss else [])]
        x, statistics = torch.cat(states, 1), {}
        if self.actors.running is None:
            output = self.actors.apply(x, self.actors.assemble(vectors) if weights is None else weights)
        else:
            output, statistics["running"] = self.actors.on_batch(x, vectors, state["actor.running"])
        distribution = output[:, : batch["features"].shape[1]]
        actions, log_prob = sample_with_log_prob(distribution, batch["noise"], self.blocks)
        losses = (alpha * log_prob - self.values(batch["features"], actions, critics).amin(1)).mean(1)
        metrics = {"actor_loss": losses, "entropy": -log_prob.mean(1), **statistics}
        if settings.mirror_loss:
            mean, image = mode_action(output, self.blocks).chunk(2, dim=1)
            difference = image - torch.einsum("...ij,...j->...i", batch["action_maps"], mean)
            metrics["mirror_loss"] = difference.square().sum(-1).mean(1)
            losses = losses + settings.mirror_loss * metrics["mirror_loss"]
        return losses.sum(), metrics

    def values(self, features: Tensor, actions: Tensor, weights: Any) -> Tensor:
        """The value of each of an agent's critics, (S, K, B)."""
        x = self.critic_inputs(features, actions)
        return self.critics.apply(x, weights).view(len(features), -1, x.shape[1])

    def critic_inputs(self, features: Tensor, actions: Tensor) -> Tensor:
        """States and actions (S, B, .) for each of an agent's critics, (S K, B, n)."""
        x = torch.cat([features, actions], dim=-1)
        return x.unsqueeze(1).expand(-1, self.critics.members // len(x), -1, -1).flatten(0, 1)

    # -- memory ----------------------------------------------------------------------------------------------------

    def refresh(self) -> None:
        """Follow changes of the agents since the last update: loaded, cast or moved networks, new variances or optimisers.

        Without a change it compares versions, addresses and optimisers, and writes the value of a fixed temperature.
        """
        moved = [ensemble.restack_() for ensemble in (self.actors, self.critics, self.targets)]
        log_alphas = [agent.log_alpha for agent in self.agents]
        moved.append(self._addresses != [t.data_ptr() for t in log_alphas])
        states = [optimiser.state for agent in self.agents for optimiser in agent.optimisers.values()]
        moved.append(len(states) != len(self._optimiser_states) or any(map(is_not, states, self._optimiser_states)))
        if not any(moved):
            return
        state: State = {"actor": self.actors.flat, "critic": self.critics.flat}
        if self.has_targets:
            state["target"] = self.targets.flat
        state["log_alpha"] = flatten_(log_alphas).view(-1, 1)
        for name, ensemble in (("actor", self.actors), ("critic", self.critics)):
            if ensemble.running is not None:
                state[f"{name}.running"] = ensemble.running
            state[f"{name}.precision"], state[f"{name}.constant"] = prior_precision(ensemble)
        for name, parameters in self._parameters_by_optimiser(log_alphas).items():
            moments = [_adam_moments(o, p) for o, ps in parameters for p in ps]
            shape = state[name].shape
            state[f"{name}.mean"] = flatten_([m["exp_avg"] for m in moments]).view(shape)
            state[f"{name}.square"] = flatten_([m["exp_avg_sq"] for m in moments]).view(shape)
            state[f"{name}.step"] = flatten_([m["step"] for m in moments]).view(len(self.agents), -1)
        self.state, self._optimiser_states, self.blocks = state, states, self.agents[0].actor.blocks
        self._addresses = [t.data_ptr() for t in log_alphas]

    def _parameters_by_optimiser(self, log_alphas: Sequence[Tensor]) -> dict[str, list[tuple[Any, Sequence[Tensor]]]]:
        """Each agent's optimiser and its parameters, by the state's names."""
        trained: dict[str, list[tuple[Any, Sequence[Tensor]]]] = {}
        ensembles = {"actor": self.actors, "critic": self.critics}
        for name in self.agents[0].optimisers:
            parts = log_alphas if name == "log_alpha" else ensembles[name].parts
            n = len(parts) // len(self.agents)
            trained[name] = [(a.optimisers[name], parts[i * n : (i + 1) * n]) for i, a in enumerate(self.agents)]
        return trained


def _adam_moments(optimiser: torch.optim.Optimizer, p: Tensor) -> dict[str, Tensor]:
    moments = optimiser.state[p]
    if not moments:
        moments.update(step=torch.zeros(()), exp_avg=torch.zeros_like(p), exp_avg_sq=torch.zeros_like(p))
    moments["step"] = moments["step"].to(p.device)  # torch.optim.Adam keeps it on the CPU
    return moments


def with_features(batch: Batch, extractor: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
    """Replace the raw observations of a batch, if it has any, by their features."""
    if "observations" not in batch:
        return dict(batch)
    rest = {name: tensor for name, tensor in batch.items() if name not in ("observations", "next_observations")}
    features, next_features = extractor(torch.cat([batch["observations"], batch["next_observations"]])).chunk(2)
    return {"features": features, "next_features": next_features, **rest}


def bootstrapped(batch: Batch, gamma: float | Tensor, value: Tensor) -> Tensor:
    """y = r + (1 - done) gamma value; n-step returns bring discounts of their own."""
    return batch["rewards"] + (1 - batch["dones"]) * batch.get("discounts", gamma) * value


def gradient_of(
    loss: Callable[[Tensor], tuple[Tensor, Any]], vectors: Tensor, ensemble: Ensemble | None = None
) -> tuple[Tensor, Any]:
    """The gradient of a loss by parameter vectors, and the loss's second output.

    Args:
        ensemble: if `vectors` is its `flat` and torch is not compiling, differentiate by the networks' parameters, which is
            faster; the loss may pass the vectors only to :meth:`Ensemble.assemble`.
    """
    if torch.compiler.is_compiling():  # it traces torch.func.grad; uncompiled, plain autograd takes less time
        return torch.func.grad(loss, has_aux=True)(vectors)
    with torch.enable_grad():
        if ensemble is not None and vectors is ensemble.flat:
            value, aux = loss(vectors)
            gradient = ensemble.gradient_by_parameters(value)
        else:
            leaf = vectors.detach().requires_grad_()
            value, aux = loss(leaf)
            (gradient,) = torch.autograd.grad(value, leaf)
    return gradient, tree_map(Tensor.detach, aux)


def add_prior_(
    gradient: Tensor, state: Mapping[str, Tensor], name: str, share: Tensor, weight: Tensor | float = 1.0
) -> Tensor:
    """Add the gradients of the networks' negative log priors, times `share` and `weight`, to the gradients (R, n).

    Args:
        share, weight: 1 / N of each network, (R, 1); a factor of the gradient only, such as alpha, (R, 1) or a number.
    Returns:
        the negative log priors times `share`, (R,).
    """
    prior_gradient = state[f"{name}.precision"] * state[name]
    gradient.addcmul_(prior_gradient, share * weight)
    return (0.5 * torch.linalg.vecdot(prior_gradient, state[name]) + state[f"{name}.constant"]) * share.squeeze(1)


def clip_(gradient: Tensor, max_norm: float | None) -> Tensor:
    """Scale down gradients (S, n) whose norm exceeds `max_norm`; gradients of infinite norm become nan."""
    if max_norm is not None:
        norm = gradient.norm(dim=1, keepdim=True)
        scale = (max_norm / (norm + 1e-6)).clamp(max=1.0)
        gradient.mul_(torch.where(norm.isfinite(), scale, torch.nan))  # a scale of 0 would end learning silently
    return gradient


def adam_step_(state: State, name: str, gradient: Tensor, rate: Tensor, settings: SACSettings) -> None:
    """One step of Adam, in place, for the state's vectors of a name; `rate` is each agent's learning rate, (S, 1).

    With c = sqrt(1 - b2^t), Adam's x -= rate m / (1 - b1^t) / (sqrt(v) / c + eps) is, for rate' = rate c / (1 - b1^t) and
    eps' = eps c, the same as x -= rate' m / (sqrt(v) + eps').
    """
    first, second = settings.betas
    mean, square, step = (state[f"{name}.{part}"] for part in ("mean", "square", "step"))
    t = step.add_(1)[:, :1].double()
    c = (1 - second**t).sqrt()
    corrected = torch.stack([rate * c / (1 - first**t), settings.epsilon * c]).to(gradient.dtype)
    rates, epsilon = corrected.repeat_interleave(len(gradient) // len(t), 1).unbind()
    mean.lerp_(gradient, 1 - first)
    square.mul_(second).addcmul_(gradient, gradient, value=1 - second)
    state[name].addcdiv_(rates * mean, square.sqrt().add_(epsilon), value=-1)


REQUIRED_ADAM_OPTIONS = {"weight_decay": 0, "amsgrad": False, "maximize": False}
"""Options of Adam that `adam_step_` does not implement, with the values that leave them off."""


def check_trainable(agent: RPPSAC) -> None:
    """Refuse optimisers, frozen parameters and mixed dtypes, which these updates do not support."""
    actor, critic, like = agent.actor, agent.critic, agent.policy.features_extractor.dtype
    common = actor.optimizer.param_groups[0]
    expected = {"betas": common["betas"], "eps": common["eps"], **REQUIRED_ADAM_OPTIONS}
    modules = {"actor": actor, "critic": critic, "target": agent.critic_target}
    tensors: list[tuple[str, Tensor]] = [(name, p) for name, module in modules.items() for p in module.parameters()]
    tensors.append(("temperature", agent.log_alpha))
    for key, optimiser in agent.optimisers.items():
        name = "temperature" if key == "log_alpha" else key
        if type(optimiser) is not torch.optim.Adam:
            raise ValueError(
                f"the {name}'s optimiser is {type(optimiser).__name__}, and updates are Adam's: give torch.optim.Adam"
            )
        for setting, value in ((s, v) for group in optimiser.param_groups for s, v in group.items() if s in expected):
            if value != expected[setting]:
                remedy = "give betas and eps for all networks, as policy_kwargs=dict(optimizer_kwargs=...)"
                if setting in REQUIRED_ADAM_OPTIONS:
                    remedy = f"set it to {expected[setting]}"
                raise ValueError(
                    f"the {name}'s optimiser has {setting}={value}, and updates are computed with {expected[setting]}: "
                    f"{remedy}"
                )
        tensors += [(f"{name}'s optimiser", moments["exp_avg"]) for moments in optimiser.state.values() if moments]
    for name, network in (("actor", actor), ("critic", critic)):
        if not all(p.requires_grad for p in network.parameters()):
            raise ValueError(
                f"parameters of the {name} require no gradients, but updates train all: call requires_grad_(True) on them"
            )
    for name, tensor in tensors:
        if tensor.dtype != like:
            raise ValueError(
                f"the {name} is in {tensor.dtype}, features in {like}: cast agent.policy, agent.log_ent_coef.data and "
                "then optimisers, by agent.set_parameters(agent.get_parameters())"
            )
