"""Model-predictive control: actions that a transition model says are good, by the cross-entropy method."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from rppdyn.dynamics.transition import TransitionModel

__all__ = ["CrossEntropyPlanner", "Reward"]

Reward = Callable[
    [Float[Tensor, "*batch n"], Float[Tensor, "*batch m"], Float[Tensor, "*batch n"]], Float[Tensor, "*batch"]
]
KEPT = 3
"""One in so many of the elites, the best of them, stays among the sequences of the next iteration."""

Ends = Callable[[Float[Tensor, "*batch n"]], Bool[Tensor, "*batch"]]


class CrossEntropyPlanner:
    r"""Plans a sequence of actions whose sum of rewards, along the model's rollouts, is large.

    Sequences are drawn from a Gaussian, independent over time; it is moved onto the best of them, and so on for some
    ``iterations``. The first action of the last mean is taken, and the next plan begins with the rest of it (Chua et al. 2018;
    de Boer et al. 2005 for the method). The mean itself and the best sequences so far are among those that are compared
    (Pinneri et al. 2020), without which long plans come out worse. Rewards of an ensemble are the mean over its members,
    each of which rolls out for itself. Draws come from a generator of its own, so that an episode can be repeated.

    Args:
        model: with ``reward=True``, unless ``reward`` is given.
        low, high: bounds of the actions, ``(m,)`` each.
        horizon: steps that are looked ahead.
        samples, elites: sequences drawn, and the best of them that the Gaussian is moved onto, in each iteration.
        iterations: how often it is moved.
        discount: discount of rewards, per step.
        reward: reward of a step from state to state, as features, in the place of the learned one.
        ends: whether an episode ends at a state; rewards after that do not count.
        seed: seed of the draws.
    Raises:
        ValueError: a number that makes no sense, or a model without rewards and none given.
    """

    def __init__(
        self,
        model: TransitionModel,
        low: Float[Tensor, " m"],
        high: Float[Tensor, " m"],
        *,
        horizon: int = 25,
        samples: int = 300,
        elites: int = 30,
        iterations: int = 4,
        discount: float = 1.0,
        reward: Reward | None = None,
        ends: Ends | None = None,
        seed: int = 0,
    ):
        if not 1 < elites <= samples:
            raise ValueError(f"elites={elites} of samples={samples}: two at least, and no more than there are")
        if horizon < 1 or iterations < 1:
            raise ValueError(f"horizon={horizon}, iterations={iterations}: each must be at least 1")
        if not 0 <= discount <= 1:
            raise ValueError(f"discount={discount} of rewards per step: give a number from 0 to 1")
        if not bool(low.isfinite().all() and high.isfinite().all()):
            raise ValueError(f"low={low.tolist()} and high={high.tolist()}: give bounds that are finite")
        if not bool((low <= high).all()):
            raise ValueError(f"low={low.tolist()} and high={high.tolist()}: no bound may be above the other")
        if reward is None and not model.reward:
            raise ValueError("the model has learned no rewards: fit it with model.reward=true, or give reward=")
        self.model, self.reward, self.ends = model, reward, ends
        self.low, self.high = low, high
        self.horizon, self.samples, self.elites, self.iterations = horizon, samples, elites, iterations
        self.discount = discount
        self.generator = torch.Generator().manual_seed(seed)
        self.reset()

    def reset(self) -> None:
        """Forget the last plan, as at the beginning of an episode."""
        self.mean = ((self.low + self.high) / 2).expand(self.horizon, -1).clone()

    @torch.no_grad()
    def plan(self, x: Float[Tensor, " n"]) -> Float[Tensor, "horizon m"]:
        """The best sequence's mean from a state, after which :meth:`act` would go on."""
        mean, std = self.mean, ((self.high - self.low) / 2).expand(self.horizon, -1)
        elite: list[Tensor] = []
        weights = self.model.assemble()
        for _ in range(self.iterations):
            noise = torch.randn(self.samples, *mean.shape, generator=self.generator).to(mean)
            actions = torch.minimum(torch.maximum(mean + std * noise, self.low), self.high)
            actions = torch.cat([actions, mean[None], *elite])
            best = actions[self._returns(x, actions, weights).topk(self.elites).indices]
            mean, std, elite = best.mean(0), best.std(0), [best[: self.elites // KEPT]]
        return mean

    def act(self, x: Float[Tensor, " n"]) -> Float[Tensor, " m"]:
        """The first action of a plan; the rest of it is where the next one begins."""
        plan = self.plan(x)
        self.mean = torch.cat([plan[1:], plan[-1:]])
        return plan[0]

    @torch.no_grad()
    def returns(self, x: Float[Tensor, " n"], actions: Float[Tensor, "samples T m"]) -> Float[Tensor, " samples"]:
        """Discounted sums of rewards of action sequences from a state, by the model."""
        return self._returns(x, actions, self.model.assemble())

    def _returns(self, x: Tensor, actions: Tensor, weights: Any) -> Tensor:
        members = (self.model.net.members,) if hasattr(self.model.net, "members") else ()
        states = x.expand(*members, len(actions), -1)
        actions = actions.expand(*members, *actions.shape)
        total = states.new_zeros(states.shape[:-1])
        alive = torch.ones_like(total, dtype=torch.bool)
        for t, u in enumerate(actions.unbind(-2)):
            after, _, reward = self.model.step(states, u, weights)
            if self.reward is not None:
                reward = self.reward(states, u, after)
            assert reward is not None, "the constructor refuses a model without rewards where none is given"
            total += self.discount**t * torch.where(alive, reward, 0)  # a model may say anything of what follows an end
            if self.ends is not None:
                alive = alive & ~self.ends(after)
            states = after
        total = total.nan_to_num(nan=-torch.inf)
        return total.mean(0) if members else total
