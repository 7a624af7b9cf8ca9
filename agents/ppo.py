"""RPPActorCriticPolicy: relaxed equivariant networks with their priors for stable-baselines3's PPO and A2C.

    spec = symmetry_spec("Walker2d-v5")
    model = PPO(RPPActorCriticPolicy, "Walker2d-v5", policy_kwargs=dict(spec=spec, model="rpp")).learn(100_000)

PPO stays stock. What it has no hook for, the policy does: the prior's gradient is added when the optimiser steps, and the
normalisation of observations moves between an update and the next rollout.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from gymnasium import spaces
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.type_aliases import Schedule
from torch import Tensor, nn

from rppdyn.agents import defaults
from rppdyn.agents.networks import SymmetricFeatures, in_precision, new_generator
from rppdyn.agents.policy import MODELS, SymmetricPolicy, network_builder, pathway_statistics, pathway_variances
from rppdyn.agents.refusals import check_observations
from rppdyn.envs import SymmetrySpec
from rppdyn.nn import RPPEMLP, RelaxedLinear
from rppdyn.priors import negative_log_prior
from rppdyn.reps import Scalar
from rppdyn.runs.finite import DivergedError


class RPPActorCriticPolicy(SymmetricPolicy, ActorCriticPolicy):
    r"""A Gaussian policy and a value function over one symmetry spec.

    The mean is a network from obs_rep to action_rep, the value one from obs_rep to a scalar. The logarithm of the standard
    deviation does not depend on the state: it is a relaxed layer from a scalar to |action_rep|, whose equivariant pathway is
    confined to the invariants of |action_rep| (legs that the symmetry exchanges explore alike), so the whole distribution
    transforms with the state.

    With N the transitions of a rollout, what is minimised is stable-baselines3's loss plus negative_log_prior / N of mean,
    value and standard deviation. The prior's gradient is added to the clipped gradient of the loss before each step of the
    optimiser. `vf_coef=0.5` makes the value's part a Gaussian likelihood of variance 1.

    Statistics of observations are taken from rollouts (`forward`) and moved when the next one begins, so that a rollout and
    the updates on it see the same features and the ratio of probabilities starts at one.

    Args:
        spec: the symmetry of the environment, as `SymmetrySpec` or as what its `to_dict` returns.
        model: "rpp", "emlp", "mlp" or "rpp_policy_only", as for `RPPPolicy`.
        hidden, num_layers: width and number of hidden layers of both networks.
        equivariant_variance, free_variance: prior variances of the pathways; 0 removes a pathway.
        critic_equivariant_variance, critic_free_variance: the value's own; None means the policy's.
        output_scale: scale of the mean's last layer at the start, as stable-baselines3's gain. Its orthogonal initialisation
            is for `nn.Linear`; layers here have their own, which keeps the variance of features, too.
        log_std_init: logarithm of the standard deviation at the start.
        optimizer_class, optimizer_kwargs: as in stable-baselines3 (Adam with eps=1e-5).
        network_kwargs: further arguments of the networks (see `rppdyn.nn.RPPEMLP`).
        use_sde: accepted because stable-baselines3 passes it; must be False.
    Raises:
        ValueError: an unknown model, a negative variance, or spaces that the spec doesn't fit.
    """

    action_net: RPPEMLP
    value_net: RPPEMLP  # type: ignore[assignment]  # stable-baselines3's own is an nn.Linear

    def __init__(
        self,
        observation_space: spaces.Box,
        action_space: spaces.Box,
        lr_schedule: Schedule,
        spec: SymmetrySpec | Mapping[str, Any] | None = None,
        model: str = "rpp",
        hidden: int = 64,
        num_layers: int = 2,
        equivariant_variance: float = defaults.EQUIVARIANT_VARIANCE,
        free_variance: float = defaults.FREE_VARIANCE,
        critic_equivariant_variance: float | None = None,
        critic_free_variance: float | None = None,
        output_scale: float = defaults.OUTPUT_SCALE,
        log_std_init: float = 0.0,
        optimizer_class: type[torch.optim.Optimizer] = torch.optim.Adam,
        optimizer_kwargs: dict[str, Any] | None = None,
        network_kwargs: Mapping[str, Any] | None = None,
        use_sde: bool = False,
    ) -> None:
        if spec is None:
            raise ValueError(
                "policy_kwargs has no spec: give dict(spec=rppdyn.envs.symmetry_spec(env)), for PPO does not hand it on"
            )
        self._keep(
            observation_space,
            action_space,
            spec=spec,
            model=model,
            hidden=hidden,
            num_layers=num_layers,
            equivariant_variance=equivariant_variance,
            free_variance=free_variance,
            critic_equivariant_variance=critic_equivariant_variance,
            critic_free_variance=critic_free_variance,
            output_scale=output_scale,
            log_std_init=log_std_init,
            optimizer_class=optimizer_class,
            optimizer_kwargs=optimizer_kwargs,
            network_kwargs=network_kwargs,
            use_sde=use_sde,
        )
        if not self.spec.action_rep.is_signed_permutation:
            raise ValueError(
                f"{self.spec.env_id}: the action representation {self.spec.action_rep} is no signed permutation, and "
                "stable-baselines3's PPO clips every action by itself, which is equivariant for those only; use RPPSAC, or "
                "a subgroup that permutes and flips the actions"
            )
        self._rollout: list[Tensor] = []  # observations since the last update
        self._trained_on: Tensor | None = None  # those of the last update, until the statistics have moved
        super().__init__(
            observation_space,
            action_space,
            lr_schedule,
            net_arch=[],
            ortho_init=False,
            log_std_init=log_std_init,
            features_extractor_class=SymmetricFeatures,
            features_extractor_kwargs=dict(spec=self.spec),
            optimizer_class=optimizer_class,
            optimizer_kwargs=optimizer_kwargs,
        )

    def _build(self, lr_schedule: Schedule) -> None:
        self._build_mlp_extractor()  # the identity: the networks below start from the features
        spec, generator, pathways = self.spec, new_generator(), MODELS[self.model]
        build_mean = network_builder(pathways.actor, spec, self._arguments, generator)
        self.action_net = build_mean(spec.obs_rep, spec.action_rep, output_scale=self._arguments["output_scale"])
        build_value = network_builder(pathways.critic, spec, self._arguments, generator, prefix="critic_")
        self.value_net = build_value(spec.obs_rep, Scalar(spec.group))
        variances = pathway_variances(pathways.actor, self._arguments)
        self.log_std_layer = RelaxedLinear(
            Scalar(spec.group),
            abs(spec.action_rep),
            bias=False,
            equivariant_variance=variances["equivariant_variance"],
            free_variance=variances["free_variance"],
        )
        with torch.no_grad():
            for parameter in self.log_std_layer.parameters():
                parameter.zero_()
        self.optimizer = self.optimizer_class(  # type: ignore[call-arg]  # every optimiser of torch's has lr=
            self.parameters(), lr=lr_schedule(1), **self.optimizer_kwargs
        )
        self.optimizer.register_step_pre_hook(self._add_prior)

    @property
    def log_std(self) -> Tensor:  # type: ignore[override]  # stable-baselines3's own is a parameter
        """The logarithm of the standard deviation, one number per action."""
        weight, _ = self.log_std_layer.assemble()
        return self.log_std_init + weight[:, 0]

    def extract_features(self, obs: Tensor, features_extractor: nn.Module | None = None) -> Tensor:  # type: ignore[override]
        """Normalised features; stable-baselines3 would round observations to single precision first."""
        return self.features_extractor(obs)

    def forward(self, obs: Tensor, deterministic: bool = False) -> tuple[Tensor, Tensor, Tensor]:
        """Action, value and log-density, for the collection of a rollout; what the last update saw counts from now on.

        Raises:
            ValueError: an observation that is not finite, naming entry, value and step.
        """
        if self._trained_on is not None:
            self.features_extractor.observe(self._trained_on)
            self._trained_on = None
        step = len(self._rollout)
        check_observations(
            obs.cpu().numpy(),
            self.spec,
            lambda env: f"{self.spec.env_id}, environment {env} at step {step} of a rollout",
        )
        self._rollout.append(obs.detach().clone())
        return super().forward(obs, deterministic)

    def set_training_mode(self, mode: bool) -> None:
        """Begin or end training, on the rollout since the last one."""
        if mode and self._rollout:
            self._trained_on, self._rollout = torch.cat(self._rollout), []
        super().set_training_mode(mode)

    def negative_log_prior(self) -> Tensor:
        """Of the parameters of mean, value and standard deviation; a scalar."""
        mean, value, log_std = map(negative_log_prior, (self.action_net, self.value_net, self.log_std_layer))
        return mean + value + log_std

    def _add_prior(self, *_: Any) -> None:
        gradients = {p: p.grad for p in self.parameters() if p.grad is not None}
        of_value = [gradients[p] for p in self.value_net.parameters() if p in gradients]
        lost = not all(gradient.isfinite().all() for gradient in gradients.values())
        # stable-baselines3 clips one whose length overflows to 0, which would end learning without a word
        if lost or not any(gradient.any() for gradient in of_value):
            raise DivergedError(
                f"training diverged: the gradient of the loss is {'not finite' if lost else 'clipped to 0'}; see that the "
                "environment's rewards are finite, and scale large ones (VecNormalize), or give a smaller learning_rate"
            )
        transitions = 1 if self._trained_on is None else len(self._trained_on)
        with torch.enable_grad():
            of_prior = torch.autograd.grad(self.negative_log_prior() / transitions, list(gradients))
        for gradient, added in zip(gradients.values(), of_prior, strict=True):
            gradient += added

    def action_function(self, dtype: torch.dtype | None) -> Callable[[Tensor], Tensor]:
        """Raw observations to the mean action within its bounds, by networks in a precision; for measures."""
        net = in_precision(nn.Sequential(self.features_extractor, self.action_net), dtype)
        high = torch.as_tensor(self.action_space.high, dtype=torch.float64)
        return lambda obs: net(obs.to(self.device)).double().cpu().clamp(-high, high)

    def value_function(self, dtype: torch.dtype | None) -> Callable[[Tensor, Tensor], Tensor]:
        """Raw observations (and actions, which don't matter) to values (1, n), by networks in a precision; for measures."""
        net = in_precision(nn.Sequential(self.features_extractor, self.value_net), dtype)
        return lambda obs, actions: net(obs.to(self.device)).double().cpu().mT

    def pathway_statistics(self) -> dict[str, float]:
        """As `RPPPolicy.pathway_statistics`, the value function as critic."""
        return pathway_statistics({"actor": [self.action_net], "critic": [self.value_net]})
