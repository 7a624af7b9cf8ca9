"""Callbacks of stable-baselines3 that change the prior variances of pathways while an agent is trained."""

from __future__ import annotations

import math
import statistics
from abc import abstractmethod
from collections import defaultdict
from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch
from stable_baselines3.common.callbacks import BaseCallback

from rppdyn.agents._networks import sample_with_log_prob
from rppdyn.agents._update import bootstrapped, with_features
from rppdyn.nn import RPPEMLP, Pathway, RelaxedLinear
from rppdyn.nn._pathways import named_pathways
from rppdyn.priors import Categorical, Gaussian, Likelihood, free_variance, joint_evidence
from rppdyn.priors._joint import linear_targets

if TYPE_CHECKING:
    from rppdyn.agents._sac import RPPSAC

STRICT_VARIANCE = 1e-7
"""Free variance of a practically strict network, from which widening starts."""

FIRST_ROWS = 512
"""Transitions that a curvature is first estimated from."""


class PeriodicCallback(BaseCallback):
    """Calls `update` when the number of environment steps passes a multiple of `every`, and logs the result."""

    model: RPPSAC
    every: int

    def _init_callback(self) -> None:
        if not hasattr(self.model, "update_class"):
            raise ValueError(
                f"{type(self).__name__}: {type(self.model).__name__} has no such critics; use RPPSAC or RPPCrossQ"
            )

    def _on_step(self) -> bool:
        before = self.num_timesteps - self.training_env.num_envs
        if self.num_timesteps // self.every > before // self.every:
            for name, value in self.update().items():
                self.logger.record(f"variance/{name}", value)
        return True

    @abstractmethod
    def update(self) -> dict[str, float]:
        """Change the agent; returns numbers for the log."""


class LearnVariances(PeriodicCallback):
    r"""Move the critics' prior variances towards those of largest marginal likelihood, and the actor's after them.

        agent.learn(100_000, callback=LearnVariances(every=2000))

    Around a pathway's weights w, with :math:`\gamma` effective parameters (:func:`rppdyn.priors.joint_evidence`), the Laplace
    approximation is largest where :math:`\sigma^2 = |w|^2 / \gamma` (MacKay 1992). Every few thousand steps

    .. math:: \log\sigma^2 \leftarrow (1 - r)\log\sigma^2 + r \log(|w|^2 / \gamma),

    which, unlike steps along the gradient, has no state besides the variances. Where critics are normalised (`RPPCrossQ`, not
    with a categorical head), w are those of the optimum of the network that is linear in its weights (Antorán et al. 2022):
    the scale of normalised weights has no effect, Adam lets them drift, and by their norms every symmetry was given up.

    Free pathways are then stored in the unit of their new variance (:meth:`rppdyn.nn.Pathway.follow_variance`), as in networks
    built with it: no function changes, and Adam's steps keep their share of the prior. The likelihood is normal around
    the critics' targets, with the mean squared error of the critics as its variance; of classes for a categorical head.
    Its number of data is that by which the priors are divided. The losses keep the agent's `noise_variance`: with the measured
    one priors weigh so little that free pathways grow where nothing is broken.

    The actor's loss is no likelihood: in each layer the free pathway's share of its prior (with a
    chain, each pathway's but the largest group's; :func:`rppdyn.priors.free_variance`) becomes its critics' share of squared
    weights, :math:`s = |B|^2 / (|A|^2 + |B|^2)`, averaged as the geometric mean of s / (1 - s), at most 0.99 (gates have no
    equivariant pathway, and the actor's keep theirs). The critics' share of the prior is larger, as data determine few of the
    free coefficients.
    **An experiment**: targets move, transitions are correlated, and the data change with the policy, so it is no marginal
    likelihood of a fixed data set.

    Args:
        every: environment steps between updates; none before the first gradient step.
        data: transitions that the error is estimated from, and at most that many the curvature. It has no more directions
            than data, and with few of them :math:`\gamma` is too small and variances are too large. So from 512 on their number
            is doubled until it is twice the sum of :math:`\gamma`.
        rate: r, of the way to the new variance.
    Raises:
        ValueError: a number that is not positive, or a rate above 1.
    """

    def __init__(self, every: int = 2000, data: int = 2048, rate: float = 0.5):
        super().__init__()
        _require_positive(every=every, data=data, rate=rate)
        if rate > 1:
            raise ValueError(f"rate={rate} must be 1 or less: the share of the way to the new variances")
        self.every, self.data, self.rate = every, data, rate

    def update(self) -> dict[str, float]:
        """Move the variances once; returns their log10 and effective numbers of parameters, by network, layer and pathway."""
        agent = self.model
        if not agent._n_updates:
            return {}
        batch = with_features(agent.sampler.sample(self.data), agent.policy.features_extractor)
        x = torch.cat([batch["features"], batch["actions"]], -1)
        likelihood: Likelihood = Categorical()
        moved: dict[str, float] = {}
        y = None
        if agent.critic.atoms is None:
            y = self._targets(batch)
            with torch.no_grad():
                errors = [float((net(x).squeeze(-1) - y).square().mean()) for net in agent.critic.q_networks]
            error = max(statistics.fmean(errors), 1e-12)
            moved["noise"], likelihood = math.log10(error), Gaussian(error)
        pairs = zip(agent.critic.q_networks, agent.critic_target.q_networks, strict=True)
        for index, (net, target) in enumerate(pairs):
            critic = self._move(net, target, x, y, likelihood, int(batch["transitions"]))
            moved |= {f"critic{index}.{name}": v for name, v in critic.items()}
        return moved | {f"actor.{name}": v for name, v in self._move_actor().items()}

    @torch.no_grad()
    def _targets(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """The critics' targets, as of `SACUpdate.update_`."""
        agent = self.model
        output = agent.actor.net(batch["next_features"])
        actions, log_prob = sample_with_log_prob(output, batch["next_noise"], agent.actor.blocks)
        next_x = torch.cat([batch["next_features"], actions], -1)
        next_values = torch.stack([net(next_x).squeeze(-1) for net in agent.critic_target.q_networks])
        return bootstrapped(batch, agent.gamma, next_values.amin(0) - agent.log_alpha.exp() * log_prob)

    def _move_actor(self) -> dict[str, float]:
        """Give the actor's free pathways the mean share of squared weights that the critics' ones have."""
        odds: dict[str, list[float]] = defaultdict(list)
        for net in self.model.critic.q_networks:
            for name, (wide, free, _) in _free_pathways(net).items():
                odds[name].append(2 * math.log(max(float(free.norm()), 1e-15) / max(float(wide.norm()), 1e-15)))
        moved = {}
        for name, (wide, free, inputs) in _free_pathways(self.model.actor.net).items():
            if name in odds:
                share = 1 / (1 + math.exp(-statistics.fmean(odds[name])))
                variance = free_variance(min(max(share, 1e-12), 0.99), float(wide.variance), inputs)
                free.log_variance.fill_(math.log(variance))
                free.follow_variance(self.model.actor.optimizer)
                moved[name] = math.log10(variance)
        return moved

    def _move(
        self,
        net: RPPEMLP,
        target_net: RPPEMLP,
        x: torch.Tensor,
        y: torch.Tensor | None,
        likelihood: Likelihood,
        transitions: int,
    ) -> dict[str, float]:
        """Move the variances of a critic and its target once; returns numbers for the log."""
        agent, scale, generator = self.model, 1.0, None
        if isinstance(likelihood, Categorical):  # a class is drawn for each; `noise_variance` divides the loss
            scale, generator = 1 / agent.noise_variance, agent.sampler.generator
        rows, effective = 0, x.new_tensor(math.inf)
        while effective.sum() > rows / 2 and rows < len(x):
            rows = min(max(2 * rows, FIRST_ROWS), len(x))
            evidence = joint_evidence(net, x[:rows], likelihood, total=transitions, generator=generator)
            effective = evidence.effective(curvature_scale=scale)
        norms = evidence.squared_norms
        if net.norms and isinstance(likelihood, Gaussian) and y is not None:
            unit = (transitions / rows / float(likelihood.variance)) ** 0.5
            norms = evidence.squared_norms_at_optimum(unit * linear_targets(net, x[:rows], y[:rows]))
        pathways, targets = ({(k, name): p for k, name, p in named_pathways(n)} for n in (net, target_net))
        moved = {}
        for entry, norm, gamma in zip(evidence.pathways, norms.tolist(), effective.tolist(), strict=True):
            if not entry.layer:
                continue  # constant inputs keep their variance, as the actor's do
            pathway, target = pathways[entry.layer, entry.name], targets[entry.layer, entry.name]
            if norm > 0 and gamma > 0:
                best = torch.tensor(norm / gamma, dtype=torch.float64).log()
                pathway.log_variance.lerp_(best.to(x.device), self.rate)
                target.log_variance.copy_(pathway.log_variance)
                pathway.follow_variance(agent.critic.optimizer)
                target.follow_variance()  # the moving average of stored weights needs equal units
            moved[f"{entry.layer}.{entry.name}"] = float(pathway.log_variance) / math.log(10)
            moved[f"{entry.layer}.{entry.name}.effective"] = gamma
        return moved


class WidenVariances(PeriodicCallback):
    r"""Widen the free pathways' prior variances from narrow ones to the policy's, on a straight line of their logarithms.

        agent.learn(100_000, callback=WidenVariances(50_000))

    At step t of T, :math:`\log\sigma_b^2(t) = \log\sigma_0^2 + \min(t / T, 1)\,(\log\sigma_b^2 - \log\sigma_0^2)`, with
    :math:`\sigma_b^2` the variance of the policy's options. A network is then practically strict while data are few, and
    departs from the symmetry later. Free pathways are stored in the unit of the variance, as with `LearnVariances`.

    Args:
        steps: T, in environment steps.
        start: the narrow variance; a narrower one of the policy stays as it is.
        every: environment steps between changes, at most T.
    Raises:
        ValueError: a number that is not positive.
    """

    def __init__(self, steps: int, start: float = STRICT_VARIANCE, every: int = 250):
        super().__init__()
        _require_positive(steps=steps, start=start, every=every)
        self.steps, self.start, self.every = steps, start, min(every, steps)

    def _on_training_start(self) -> None:
        self.update()

    def update(self) -> dict[str, float]:
        """Give free pathways the variances of the last step that is a multiple of `every`."""
        agent, options = self.model, self.model.policy.options
        if options.groups is not None:
            raise ValueError(
                "WidenVariances with groups: their variances are given one by one; use LearnVariances, or neither"
            )
        share = min(agent.num_timesteps // self.every * self.every / self.steps, 1.0)
        last = {role: options.prior(role)["free_variance"] for role in ("actor", "critic")}
        targets = () if agent.critic_target is agent.critic else agent.critic_target.q_networks
        self._widen([agent.actor.net], last["actor"], share, agent.actor.optimizer)
        self._widen(agent.critic.q_networks, last["critic"], share, agent.critic.optimizer)
        self._widen(targets, last["critic"], share, None)
        return {}

    def _widen(
        self, nets: Iterable[RPPEMLP], last: float, share: float, optimiser: torch.optim.Optimizer | None
    ) -> None:
        for free in (pathway for net in nets for *_, pathway in named_pathways(net) if pathway.is_free):
            first = math.log(min(self.start, last))
            free.log_variance.fill_(first + share * (math.log(last) - first))
            free.follow_variance(optimiser)


def _free_pathways(net: RPPEMLP) -> dict[str, tuple[Pathway, Pathway, int]]:
    """``{layer.pathway: (the layer's equivariant pathway, the pathway, number of inputs)}``, without equivariant pathways."""
    layers = {name: layer for name, layer in net.named_modules() if isinstance(layer, RelaxedLinear)}
    return {
        f"{name}.{free}": (layer.equivariant, pathway, layer.rep_in.dim)
        for name, layer in layers.items()
        for free in layer.pathway_names[1:]
        if layer.equivariant is not None and (pathway := getattr(layer, free)) is not None
    }


def _require_positive(**numbers: float) -> None:
    for name, value in numbers.items():
        if not value > 0:
            raise ValueError(f"{name}={value} must be positive")
