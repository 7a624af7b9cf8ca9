"""One gradient update of RPP-SAC: a function of a dictionary of tensors, for one agent or several at once.

The state holds vectors, not modules. S agents are updated together, each as if it were alone; n_pi and n_q are the numbers
of parameters, K the number of critics:

| key | shape | |
| --- | --- | --- |
| `actor` | (S, n_pi) | the actors' parameters |
| `critic`, `target` | (S, K, n_q) | the critics' parameters and their moving averages |
| `log_alpha` | (S, 1) | the logarithms of the temperatures |
| `<name>.mean`, `<name>.square` | as `<name>` | Adam's moments of `actor`, `critic` and `log_alpha` |
| `<name>.step` | (S, p) | Adam's step count, once per parameter tensor, all equal |

Losses are functions of assembled weights, and gradients those of autograd; priors are quadratic, and theirs are written out.
Nothing here looks at a value or waits for a device.

Source: Haarnoja et al. 2018 (SAC with a learned temperature); Finzi et al. 2021 (the priors); Yu, Turk & Liu 2018 (the mirror
loss); Adam is Kingma & Ba 2015.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rppdyn.agents.functional import Networks, Prior, materialised
from rppdyn.agents.networks import SymmetricFeatures, mode_action, sample_action, sample_with_log_prob

State = dict[str, Tensor]


@dataclass(frozen=True)
class UpdateConfig:
    """The configuration of an update.

    Attributes:
        actors: features -> mean and log standard deviation (2 action entries, or fewer where there are blocks), S of them.
        critics: features and action -> one value, S K of them, an agent's next to each other.
        learning_rate: Adam's, for all three. This and the next four are tensors where they are to change under a captured or a
            compiled update.
        gamma: the discount, where a batch brings none of its own.
        tau: speed of the targets' moving average; 0 leaves them as they are.
        noise_variance: s^2 of the critic's Gaussian likelihood.
        target_entropy: in nats, for the learned temperature.
        learn_temperature: False keeps `log_alpha`.
        betas, epsilon: Adam's.
        max_gradient_norm: clips actor's and critics' gradients (all critics of an agent together); None does not.
        mirror_loss: weight w of the mirror loss; 0 leaves it out.
        blocks: the actions' blocks, as `rppdyn.agents.networks` has them, or None.
    """

    actors: Networks
    critics: Networks
    learning_rate: float | Tensor
    gamma: float | Tensor
    tau: float | Tensor
    noise_variance: float | Tensor
    target_entropy: float | Tensor
    learn_temperature: bool = True
    betas: tuple[float, float] = (0.5, 0.999)
    epsilon: float = 1e-8
    max_gradient_norm: float | None = None
    mirror_loss: float = 0.0
    blocks: Tensor | None = None


def scalar_settings(config: UpdateConfig) -> dict[str, Any]:
    """The numbers of an update's configuration."""
    return {
        field.name: value
        for field in dataclasses.fields(config)
        if isinstance(value := getattr(config, field.name), int | float | tuple | None)
    }


class Metrics(NamedTuple):
    """Metrics of one update or sums over several: their names, and values (M, S) of S agents or (M,) of one."""

    names: tuple[str, ...]
    values: Tensor

    @classmethod
    def of(cls, metrics: Mapping[str, Tensor]) -> Metrics:
        """Metrics that `update_` returns."""
        return cls(tuple(metrics), torch.stack(list(metrics.values())))


def adam_step_(state: Mapping[str, Tensor], gradients: Mapping[str, Tensor], config: UpdateConfig) -> None:
    """One step of Adam, in place, for the named vectors of the state."""
    first, second = config.betas
    for name, gradient in gradients.items():
        # as rows, (N, n), whose loops torch.compile makes one of
        vectors, mean, square, g = (
            tensor.flatten(0, -2) for tensor in (state[name], state[name + ".mean"], state[name + ".square"], gradient)
        )
        step = state[name + ".step"].add_(1)
        t = step[:, :1].double()
        scale = (1 - second**t).sqrt()
        numbers = torch.stack([config.learning_rate * scale / (1 - first**t), config.epsilon * scale]).to(g.dtype)
        rate, epsilon = materialised(numbers.repeat_interleave(len(vectors) // len(step), 1)).unbind()
        mean.lerp_(g, 1 - first)
        square.mul_(second).addcmul_(g, g, value=1 - second)
        vectors.addcdiv_(rate * mean, square.sqrt().add_(epsilon), value=-1)


def clip_(gradient: Tensor, max_norm: float | None) -> Tensor:
    """The gradients (S, ...), each scaled down to `max_norm` where it is longer; nan where its length is none."""
    if max_norm is not None:
        norm = gradient.flatten(1).norm(dim=1).view(-1, *[1] * (gradient.ndim - 1))
        scale = (max_norm / (norm + 1e-6)).clamp(max=1.0)
        gradient.mul_(torch.where(norm.isfinite(), scale, torch.nan))  # 0 would end learning without a word
    return gradient


def add_prior_(
    gradient: Tensor, vectors: Tensor, prior: Prior, share: Tensor, weight: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Add the gradients of the negative log priors times `share` and `weight`, (N,), to gradients (N, n).

    Returns:
        the sum, and the priors times `share` alone, (N,).
    """
    pull = prior.pull(vectors)
    value = (0.5 * torch.linalg.vecdot(pull, vectors) + prior.constant) * share
    return gradient.addcmul_(pull, (share if weight is None else share * weight).unsqueeze(1)), value


def update_(
    state: Mapping[str, Tensor], batch: Mapping[str, Tensor], noise: Mapping[str, Tensor], config: UpdateConfig
) -> dict[str, Tensor]:
    r"""One step of critics, actor, temperature and targets, in place and in that order.

    With N the number of transitions that the priors are shared out over, for each agent

        y           = r + (1 - done) gamma (min_k target_k(s', a') - alpha log pi(a' | s'))
        critics     : sum_k mean (q_k - y)^2 / (2 s^2) + negative_log_prior(q_k) / N
        actor       : mean (alpha log pi(a | s) - min_k q_k(s, a)) + alpha negative_log_prior(pi) / N
                      + w mean |mu(g s) - g mu(s)|^2,  mu = tanh(mean of pi), g another element of the group per state
        temperature : -mean log_alpha (log pi(a | s) + target_entropy)

    The actor's term is its MAP objective: minimising KL(pi || exp(q / alpha)) summed over N states, plus the prior,
    is the line above divided by alpha / N.

    Args:
        state: the tensors listed in the module's docstring.
        batch: `features`, `next_features` (S, B, n), `actions` (S, B, m) in [-1, 1], `rewards`, `dones` (S, B),
            `transitions` (S,) the N above; `discounts` (S, B) for n-step returns only; and for the mirror loss
            `image_features` (S, B, n) of the states g s, and `action_maps` (S, B, m, m), the matrices of g on actions.
        noise: `current`, `next` (S, B, m), standard normal.
    Returns:
        Metrics, (S,) each: `actor_loss`, `critic_loss` (both without the prior), `ent_coef`, `ent_coef_loss`,
        `actor_prior`, `critic_prior` (negative log priors over N, constants included), `entropy`, and `mirror_loss`
        (without its weight) where it is in use.
    """
    with torch.no_grad():
        return update_step_(state, batch, noise, config, (config.actors.prior(), config.critics.prior()))


def update_step_(
    state: Mapping[str, Tensor], batch: Mapping[str, Tensor], noise: Mapping[str, Tensor], config: UpdateConfig,
    priors: tuple[Prior, Prior],
) -> dict[str, Tensor]:  # fmt: skip
    """`update_` with the priors of actors and critics, and outside of autograd; all of it is open to torch.compile."""
    actors, critics = config.actors, config.critics
    actor_prior, critic_prior = priors
    alpha, share = state["log_alpha"].exp(), 1 / batch["transitions"]
    agents, vectors = len(alpha), state["critic"].flatten(0, -2)
    count = len(vectors) // agents
    policy = actors.weights(state["actor"], trained=True)

    def values(features: Tensor, actions: Tensor, weights: Any) -> Tensor:
        """Each critic's of each agent, (S, K, B)."""
        return critics(_pairs(features, actions, count), weights).view(agents, count, -1)

    following, log_prob = sample_with_log_prob(actors(batch["next_features"], policy), noise["next"], config.blocks)
    targets = critics.weights(state["target"].flatten(0, -2))
    value = values(batch["next_features"], following, targets).amin(1) - alpha * log_prob
    y = batch["rewards"] + (1 - batch["dones"]) * batch.get("discounts", config.gamma) * value

    def critic_loss(weights: Any) -> tuple[Tensor, Tensor]:
        error = values(batch["features"], batch["actions"], weights) - y.unsqueeze(1)
        loss = error.square().mean(2).sum(1) / (2 * config.noise_variance)
        return loss.sum(), loss

    metrics = {}
    gradient, metrics["critic_loss"] = critics.gradient(critic_loss, critics.weights(vectors, trained=True))
    gradient, log_prior = add_prior_(gradient, vectors, critic_prior, share.repeat_interleave(count))
    metrics["critic_prior"] = log_prior.view(agents, count).sum(1)
    clipped = clip_(gradient.view(agents, count, -1), config.max_gradient_norm).view_as(state["critic"])
    adam_step_(state, {"critic": clipped}, config)
    improved = critics.weights(vectors)

    def actor_loss(weights: Any) -> tuple[Tensor, dict[str, Tensor]]:
        seen = [batch["features"], *([batch["image_features"]] if config.mirror_loss else [])]
        output = actors(torch.cat(seen, 1), weights)
        here = output[:, : batch["features"].shape[1]]
        actions, log_prob = sample_with_log_prob(here, noise["current"], config.blocks)
        loss = (alpha * log_prob - values(batch["features"], actions, improved).amin(1)).mean(1)
        parts = {"actor_loss": loss, "entropy": -log_prob.mean(1)}
        if config.mirror_loss:
            parts["mirror_loss"] = _mirror_loss(output, batch["action_maps"], config.blocks)
            loss = loss + config.mirror_loss * parts["mirror_loss"]
        return loss.sum(), parts

    gradient, parts = actors.gradient(actor_loss, policy)
    # alpha scales the prior's gradient, see the objective; the metric is without it
    gradient, log_prior = add_prior_(gradient, state["actor"], actor_prior, share, alpha.squeeze(1))
    metrics |= parts | {"actor_prior": log_prior, "ent_coef": alpha.squeeze(1)}
    gradients = {"actor": clip_(gradient, config.max_gradient_norm)}
    if config.learn_temperature:
        surplus = metrics["entropy"].unsqueeze(1) - config.target_entropy
        metrics["ent_coef_loss"] = (state["log_alpha"] * surplus).squeeze(1)
        gradients["log_alpha"] = surplus
    adam_step_(state, gradients, config)
    if isinstance(config.tau, Tensor) or config.tau:
        state["target"].lerp_(state["critic"], config.tau)
    return metrics


def _mirror_loss(output: Tensor, action_maps: Tensor, blocks: Tensor | None) -> Tensor:
    """mean |mu(g s) - g mu(s)|^2, (S,), from the outputs at the states s and then at their images."""
    here, image = mode_action(output, blocks).chunk(2, dim=1)
    difference = image - torch.einsum("...ij,...j->...i", action_maps, here)
    return difference.square().sum(-1).mean(1)


def _pairs(features: Tensor, actions: Tensor, count: int) -> Tensor:
    """Features and actions (S, B, n + m) for each critic of an agent, (S K, B, n + m)."""
    x = torch.cat([features, actions], dim=-1)
    return x.unsqueeze(1).expand(-1, count, -1, -1).reshape(-1, *x.shape[1:])


def stack_tensors(parts: Sequence[Mapping[str, Tensor]], dim: int = 0) -> dict[str, Tensor]:
    """Batches or noise of several agents, stacked along a new axis."""
    if len(parts) == 1:
        return {name: tensor.unsqueeze(dim) for name, tensor in parts[0].items()}
    return {name: torch.stack([part[name] for part in parts], dim) for name in parts[0]}


def update(
    state: Mapping[str, Tensor], batch: Mapping[str, Tensor], noise: Mapping[str, Tensor], config: UpdateConfig
) -> tuple[State, dict[str, Tensor]]:
    """`update_` as a pure function: the new state, and metrics."""
    new = {name: tensor.clone() for name, tensor in state.items()}
    return new, update_(new, batch, noise, config)


def sample_actions(
    actors: Networks, weights: Any, observations: Tensor, noise: Tensor, extractors: Sequence[SymmetricFeatures],
    blocks: Tensor | None,
) -> Tensor:  # fmt: skip
    """Actions in [-1, 1] of S agents, (S, B, m), sampled with the noise, (S, B, m), at raw observations (S, B, n).

    Args:
        weights: the actors' assembled weights.
        extractors: one for each agent; they take the features.
    """
    each = [extractor(seen) for extractor, seen in zip(extractors, observations.unbind(), strict=True)]
    return sample_action(actors(torch.stack(each), weights), noise, blocks)
