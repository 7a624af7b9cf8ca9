r"""One gradient update of RPP-SAC: a pure function over a dictionary of tensors.

The state holds vectors, not modules (n_pi and n_q are the numbers of parameters, K the number of critics):

| key | shape | |
| --- | --- | --- |
| `actor` | (n_pi,) | the actor's parameters |
| `critic`, `target` | (K, n_q) | the critics' parameters and their moving averages |
| `log_alpha` | (1,) | the logarithm of the temperature |
| `<name>.mean`, `<name>.square` | as `<name>` | Adam's moments of `actor`, `critic` and `log_alpha` |
| `<name>.step` | (p,) | Adam's step count, once per parameter tensor, all equal |

Nothing here looks at a value, so a stack of states is updated by `torch.func.vmap(partial(update, ...))`.

Source: Haarnoja et al. 2018 (SAC with a learned temperature); Finzi et al. 2021 (the priors); Yu, Turk & Liu 2018 (the mirror
loss); Adam is Kingma & Ba 2015.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rppdyn.agents import gaussian
from rppdyn.agents.functional import NetworkFunction

State = dict[str, Tensor]
OPTIMISED = ("actor", "critic", "log_alpha")


def backward(loss: Callable[[Tensor], tuple[Tensor, Any]], at: Tensor) -> tuple[Tensor, Any]:
    """The gradient of a scalar function at a tensor, and its auxiliary output, by ordinary back-propagation."""
    with torch.enable_grad():
        at = at.detach().requires_grad_()
        value, auxiliary = loss(at)
        (gradient,) = torch.autograd.grad(value, at)
    return gradient, auxiliary


def functional(loss: Callable[[Tensor], tuple[Tensor, Any]], at: Tensor) -> tuple[Tensor, Any]:
    """The same as `backward` in a form that vmap can transform; about a third slower, since it keeps every graph."""
    return torch.func.grad(loss, has_aux=True)(at)


@dataclass(frozen=True)
class UpdateConfig:
    """What stays fixed over an update.

    Attributes:
        actor: features -> mean and log standard deviation (2 action entries, or fewer where there are blocks).
        critics: features and action -> one value.
        learning_rate: Adam's, for all three.
        betas, epsilon: Adam's.
        gamma: the discount, where a batch brings none of its own.
        tau: speed of the targets' moving average; 0 leaves them as they are.
        noise_variance: s^2 of the critic's Gaussian likelihood.
        target_entropy: in nats, for the learned temperature.
        learn_temperature: False keeps `log_alpha`.
        max_gradient_norm: clips actor's and critics' gradients (all critics together); None does not.
        mirror_loss: weight w of the mirror loss; 0 leaves it out.
        blocks: the actions' blocks, as `rppdyn.agents.gaussian` has them, or None.
        gradient: `backward`, or `functional` under `vmap`.
    """

    actor: NetworkFunction
    critics: tuple[NetworkFunction, ...]
    learning_rate: float
    gamma: float
    tau: float
    noise_variance: float
    target_entropy: float
    learn_temperature: bool = True
    betas: tuple[float, float] = (0.5, 0.999)
    epsilon: float = 1e-8
    max_gradient_norm: float | None = None
    mirror_loss: float = 0.0
    blocks: Tensor | None = None
    gradient: Callable = backward


def adam(state: Mapping[str, Tensor], name: str, gradient: Tensor, config: UpdateConfig) -> State:
    """The entries of the state that one step of Adam changes (Kingma & Ba 2015, Algorithm 1; as torch.optim.Adam)."""
    beta1, beta2 = config.betas
    step = state[f"{name}.step"] + 1
    mean = torch.lerp(state[f"{name}.mean"], gradient, 1 - beta1)
    square = torch.addcmul(state[f"{name}.square"] * beta2, gradient, gradient, value=1 - beta2)
    # Bias corrections in double: 1 - 0.999**step loses four digits in single precision at the first steps.
    count = step[0].double()
    size = config.learning_rate / (1 - beta1**count)
    root = (1 - beta2**count).sqrt()
    denominator = square.sqrt().div_(root.to(square.dtype)).add_(config.epsilon)
    moved = state[name] - size.to(mean.dtype) * mean.div(denominator)
    return {name: moved, f"{name}.mean": mean, f"{name}.square": square, f"{name}.step": step}


def clip(gradient: Tensor, max_norm: float | None) -> Tensor:
    """The gradient, scaled down to `max_norm` where it is longer."""
    if max_norm is None:
        return gradient
    return gradient * (max_norm / (gradient.norm() + 1e-6)).clamp(max=1.0)


def values(critics: tuple[NetworkFunction, ...], weights: list, features: Tensor, actions: Tensor) -> Tensor:
    """The critics' values, (K, batch)."""
    x = torch.cat([features, actions], dim=-1)
    return torch.stack([critic(x, w).squeeze(-1) for critic, w in zip(critics, weights, strict=True)])


def update(
    state: Mapping[str, Tensor], batch: Mapping[str, Tensor], noise: Mapping[str, Tensor], config: UpdateConfig
) -> tuple[State, dict[str, Tensor]]:
    r"""One step of temperature, critics, actor and targets, in that order.

    With N the number of transitions that the priors are shared out over,

        y           = r + (1 - done) gamma (min_k target_k(s', a') - alpha log pi(a' | s'))
        critics     : sum_k mean (q_k - y)^2 / (2 s^2) + negative_log_prior(q_k) / N
        actor       : mean (alpha log pi(a | s) - min_k q_k(s, a)) + alpha negative_log_prior(pi) / N
                      + w mean |mu(g s) - g mu(s)|^2,  mu = tanh(mean of pi), g another element of the group per state
        temperature : -mean log_alpha (log pi(a | s) + target_entropy)

    The actor's term is its MAP objective: minimising KL(pi || exp(q / alpha)) summed over N states, plus the prior,
    is the line above divided by alpha / N.

    Args:
        state: the tensors listed in the module's docstring.
        batch: `features`, `next_features` (B, n), `actions` (B, m) in [-1, 1], `rewards`, `dones` (B,),
            `transitions` () the N above; `discounts` (B,) for n-step returns only; and for the mirror loss
            `image_features` (B, n) of the states g s, and `action_maps` (B, m, m), the matrices of g on actions.
        noise: `current`, `next` (B, m), standard normal.
    Returns:
        The new state, and metrics as scalars: `actor_loss`, `critic_loss` (both without the prior), `ent_coef`,
        `ent_coef_loss`, `actor_prior`, `critic_prior` (negative log priors over N, constants included), `entropy`,
        and `mirror_loss` (without its weight) where it is in use.
    """
    actor, critics = config.actor, config.critics
    features, next_features = batch["features"], batch["next_features"]
    count = batch["transitions"]
    alpha = state["log_alpha"].exp().squeeze(-1)
    new: State = dict(state)

    with torch.no_grad():
        pi = actor.weights(state["actor"])
        next_actions, next_log_prob = gaussian.sample(actor(next_features, pi), noise["next"], config.blocks)
        targets = [f.weights(v) for f, v in zip(critics, state["target"], strict=True)]
        next_values = values(critics, targets, next_features, next_actions).amin(0) - alpha * next_log_prob
        y = batch["rewards"] + (1 - batch["dones"]) * batch.get("discounts", config.gamma) * next_values

    def critic_objective(vectors: Tensor) -> tuple[Tensor, Any]:
        weights, priors = zip(*(f.weights_and_prior(v) for f, v in zip(critics, vectors, strict=True)), strict=True)
        residual = values(critics, list(weights), features, batch["actions"]) - y
        data = residual.square().mean(-1).sum() / (2 * config.noise_variance)
        prior = torch.stack(priors).sum() / count
        return data + prior, (data.detach(), prior.detach())

    gradient, (critic_loss, critic_prior) = config.gradient(critic_objective, state["critic"])
    new.update(adam(state, "critic", clip(gradient, config.max_gradient_norm), config))

    with torch.no_grad():
        improved = [f.weights(v) for f, v in zip(critics, new["critic"], strict=True)]

    def actor_objective(vector: Tensor) -> tuple[Tensor, Any]:
        weights, prior = actor.weights_and_prior(vector)
        output = actor(features, weights)
        actions, log_prob = gaussian.sample(output, noise["current"], config.blocks)
        data = (alpha * log_prob - values(critics, improved, features, actions).amin(0)).mean()
        prior = prior / count
        auxiliary = {"actor_loss": data.detach(), "actor_prior": prior.detach(), "log_prob": log_prob.detach()}
        if not config.mirror_loss:
            return data + alpha * prior, auxiliary
        image = gaussian.mode(actor(batch["image_features"], weights), config.blocks)
        expected = torch.einsum("bij,bj->bi", batch["action_maps"], gaussian.mode(output, config.blocks))
        mirror = (image - expected).square().sum(-1).mean()
        auxiliary["mirror_loss"] = mirror.detach()
        return data + alpha * prior + config.mirror_loss * mirror, auxiliary

    gradient, found = config.gradient(actor_objective, state["actor"])
    new.update(adam(state, "actor", clip(gradient, config.max_gradient_norm), config))

    log_prob = found.pop("log_prob")
    surplus = -(log_prob.mean() + config.target_entropy)  # of entropy, over its target
    metrics = {
        **found,
        "critic_loss": critic_loss,
        "ent_coef": alpha,
        "entropy": -log_prob.mean(),
        "critic_prior": critic_prior,
    }
    if config.learn_temperature:
        metrics["ent_coef_loss"] = (state["log_alpha"] * surplus).sum()
        new.update(adam(state, "log_alpha", surplus.expand_as(state["log_alpha"]), config))
    if config.tau:
        new["target"] = torch.lerp(state["target"], new["critic"], config.tau)
    return new, metrics
