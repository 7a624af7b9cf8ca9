"""Relaxed equivariant networks with their priors for stable-baselines3's PPO and A2C: RPPActorCriticPolicy, and RelaxedPPO.

    spec = symmetry_spec("Walker2d-v5")
    model = PPO(RPPActorCriticPolicy, "Walker2d-v5", policy_kwargs=dict(spec=spec, model="rpp")).learn(100_000)

or `RelaxedPPO("RPPPolicy", "Walker2d-v5")`, which finds the spec and can be captured. PPO's algorithm is stable-baselines3's.
The policy adds the prior's gradient when the optimiser steps, and updates the normalisation of observations between an update
and the next rollout.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from gymnasium import spaces
from stable_baselines3 import PPO
from stable_baselines3.common.distributions import Distribution
from stable_baselines3.common.policies import ActorCriticPolicy, BasePolicy
from stable_baselines3.common.type_aliases import Schedule
from torch import Tensor, nn

from rppdyn.agents._base import SymmetricAgent, check_observations
from rppdyn.agents._networks import SymmetricFeatures, cast_module, new_generator
from rppdyn.agents._sac import RPPSAC
from rppdyn.agents.policy import OUTPUT_SCALE, SymmetricPolicy
from rppdyn.envs import SymmetrySpec
from rppdyn.errors import DivergedError
from rppdyn.nn import RPPEMLP, RelaxedLinear
from rppdyn.priors import negative_log_prior
from rppdyn.reps import Scalar


class RPPActorCriticPolicy(SymmetricPolicy, ActorCriticPolicy):
    r"""A Gaussian policy and a value function over one symmetry spec.

    The mean is a network from obs_rep to action_rep, the value one from obs_rep to a scalar. The logarithm of the standard
    deviation does not depend on the state: it is a relaxed layer from a scalar to |action_rep|, whose equivariant pathway is
    confined to the invariants of |action_rep| (legs that the symmetry exchanges explore alike), so the whole distribution
    transforms with the state.

    With N the transitions of a rollout, the objective is stable-baselines3's loss plus negative_log_prior / N of mean, value
    and standard deviation. The prior's gradient is added to the clipped gradient of the loss before each step of the optimiser.
    `vf_coef=0.5` makes the value's part a Gaussian likelihood of variance 1.

    Observations of a rollout (`forward`) enter the normaliser's statistics when the next rollout begins, so that a rollout and
    the updates on it see the same features and the ratio of probabilities starts at one.

    Args:
        spec: the symmetry of the environment, a `SymmetrySpec` or the dictionary that its `to_dict` returns.
        output_scale: scale of the mean's last layer at the start, as stable-baselines3's gain. Its orthogonal initialisation
            is for `nn.Linear`; layers here have another, which also keeps the variance of features.
        log_std_init: logarithm of the standard deviation at the start.
        optimizer_class, optimizer_kwargs: as in stable-baselines3 (Adam with eps=1e-5).
        use_sde: accepted because stable-baselines3 passes it; must be False.
        **network_options: as for `RPPPolicy`, without chains of groups and normalisation. `hidden` defaults to 64, the critics'
            options are for the value, and `net_arch` as a dictionary has the keys pi and vf.
    Raises:
        ValueError: the reasons of `NetworkOptions`, or spaces that the spec doesn't fit.
    """

    critic_key = "vf"
    network_defaults: ClassVar[Mapping[str, Any]] = {"hidden": 64}
    refused_options = ("groups", "variances", "normalisation")
    action_net: RPPEMLP
    value_net: RPPEMLP  # type: ignore[assignment]  # stable-baselines3's own is an nn.Linear

    def __init__(
        self,
        observation_space: spaces.Box,
        action_space: spaces.Box,
        lr_schedule: Schedule,
        spec: SymmetrySpec | Mapping[str, Any] | None = None,
        *,
        output_scale: float = OUTPUT_SCALE,
        log_std_init: float = 0.0,
        optimizer_class: type[torch.optim.Optimizer] = torch.optim.Adam,
        optimizer_kwargs: dict[str, Any] | None = None,
        use_sde: bool = False,
        **network_options: Any,
    ) -> None:
        if spec is None:
            raise ValueError(
                "policy_kwargs has no spec: give dict(spec=rppdyn.envs.symmetry_spec(env)), for PPO does not hand it on"
            )
        arguments = dict(log_std_init=log_std_init, optimizer_class=optimizer_class, optimizer_kwargs=optimizer_kwargs)
        self._set_options(
            observation_space, action_space, spec, network_options, use_sde, **arguments, output_scale=output_scale
        )
        if not self.spec.action_rep.is_signed_permutation:
            raise ValueError(
                f"{self.spec.env_id}: the action representation {self.spec.action_rep} is no signed permutation, and "
                "stable-baselines3's PPO clips every action by itself, which is equivariant for those only; use RPPSAC, or "
                "a subgroup that permutes and flips the actions"
            )
        self.rollout: list[Tensor] = []  # observations since the last update
        self.trained_on: Tensor | None = None  # observations of the last update, until the statistics have them
        super().__init__(
            observation_space,
            action_space,
            lr_schedule,
            net_arch=[],
            ortho_init=False,
            features_extractor_class=SymmetricFeatures,
            features_extractor_kwargs=dict(spec=self.spec),
            **arguments,  # type: ignore[arg-type]
        )

    def _build(self, lr_schedule: Schedule) -> None:
        self._build_mlp_extractor()  # the identity: the networks below start from the features
        spec, generator, scale = self.spec, new_generator(), self._arguments["output_scale"]
        self.action_net = self.options.build("actor", spec, spec.obs_rep, spec.action_rep, generator, scale)
        self.value_net = self.options.build("critic", spec, spec.obs_rep, Scalar(spec.group), generator)
        variances = self.options.prior("actor")
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
        """Normalised features of observations in their own precision, which stable-baselines3 would round to float32."""
        return self.features_extractor(obs)

    def get_distribution(self, obs: Any) -> Distribution:
        return self._get_action_dist_from_latent(self.mlp_extractor.forward_actor(self.extract_features(obs)))

    def predict_values(self, obs: Any) -> Tensor:
        return self.value_net(self.mlp_extractor.forward_critic(self.extract_features(obs)))

    def forward(self, obs: Tensor, deterministic: bool = False) -> tuple[Tensor, Tensor, Tensor]:
        """Action, value and log-density for a rollout; the statistics take the last update's observations first.

        Raises:
            ValueError: an observation that is not finite, naming entry, value and step.
        """
        if self.trained_on is not None:
            self.features_extractor.observe(self.trained_on)
            self.trained_on = None
        step = len(self.rollout)
        check_observations(
            obs.cpu().numpy(),
            self.spec,
            lambda env: f"{self.spec.env_id}, environment {env} at step {step} of a rollout",
        )
        self.rollout.append(obs.detach().clone())
        return super().forward(obs, deterministic)

    def set_training_mode(self, mode: bool) -> None:
        """Begin or end training, on the observations since the last training."""
        if mode and self.rollout:
            self.trained_on, self.rollout = torch.cat(self.rollout), []
        super().set_training_mode(mode)

    def negative_log_prior(self) -> Tensor:
        """The negative log prior of mean, value and standard deviation, a scalar."""
        mean, value, log_std = map(negative_log_prior, (self.action_net, self.value_net, self.log_std_layer))
        return mean + value + log_std

    def _add_prior(self, *_: Any) -> None:
        gradients = {p: p.grad for p in self.parameters() if p.grad is not None}
        is_finite = all(gradient.isfinite().all() for gradient in gradients.values())
        # stable-baselines3 clips a gradient of infinite norm to 0, which would end learning silently
        if not is_finite or not any(gradient.any() for gradient in gradients.values()):
            raise DivergedError(
                f"training diverged: the gradient of the loss is {'clipped to 0' if is_finite else 'not finite'}; see that the "
                "environment's rewards are finite, and scale large ones (VecNormalize), or give a smaller learning_rate"
            )
        transitions = 1 if self.trained_on is None else len(self.trained_on)
        with torch.enable_grad():
            prior_gradients = torch.autograd.grad(self.negative_log_prior() / transitions, list(gradients))
        for gradient, prior_gradient in zip(gradients.values(), prior_gradients, strict=True):
            gradient += prior_gradient

    def action_function(self, dtype: torch.dtype | None) -> Callable[[Tensor], Tensor]:
        net = cast_module(nn.Sequential(self.features_extractor, self.action_net), dtype)
        high = torch.as_tensor(self.action_space.high, dtype=torch.float64)
        return lambda obs: net(obs.to(self.device)).double().cpu().clamp(-high, high)

    def value_function(self, dtype: torch.dtype | None) -> Callable[[Tensor, Tensor], Tensor]:
        net = cast_module(nn.Sequential(self.features_extractor, self.value_net), dtype)
        return lambda obs, actions: net(obs.to(self.device)).double().cpu().mT

    @property
    def networks(self) -> dict[str, Sequence[RPPEMLP]]:
        """The network of the mean as "actor", and that of the value as "critic"."""
        return {"actor": [self.action_net], "critic": [self.value_net]}


class RelaxedPPO(SymmetricAgent, PPO):
    """Proximal policy optimisation with residual pathway priors: stable-baselines3's own loop, with an RPPActorCriticPolicy.

        model = RelaxedPPO("RPPPolicy", "Walker2d-v5", seed=0).learn(100_000)

    Unlike stable-baselines3's PPO it finds the symmetry itself, and `capture` returns all that an exact continuation needs.

    Args:
        policy: "RPPPolicy", which is RPPActorCriticPolicy, or a subclass of that.
        env: an environment, its id, or a VecEnv.
        spec: the environment's symmetry; None looks it up (`rppdyn.envs.symmetry_spec`).
        policy_kwargs: RPPActorCriticPolicy's arguments: model, hidden, num_layers, variances.
        **kwargs: stable-baselines3's own, with its defaults.
    Raises:
        ValueError: another policy, no spec for the environment, or spaces that the symmetry doesn't preserve.
    """

    policy_aliases: ClassVar[dict[str, type[BasePolicy]]] = {"RPPPolicy": RPPActorCriticPolicy}
    policy: RPPActorCriticPolicy
    action_space: spaces.Box
    compiles = False

    def collect_rollouts(self, *args: Any, **kwargs: Any) -> bool:
        """Collect a rollout; one that a callback or an error ends is forgotten, as stable-baselines3 does."""
        self.policy.rollout = []
        is_complete = False
        try:
            is_complete = super().collect_rollouts(*args, **kwargs)
        finally:
            if not is_complete:
                self.policy.rollout = []
        return is_complete

    def train(self) -> None:
        """Update on the last rollout, and record metrics."""
        # without those that a callback gave the policy besides; (steps, environments, n), in a second update (steps, n)
        observations = torch.as_tensor(self.rollout_buffer.observations, device=self.device)
        self.policy.rollout = [observations.flatten(0, -2)]
        super().train()
        count = self.n_steps * self.n_envs
        with torch.no_grad():
            policy = self.policy
            actor = negative_log_prior(policy.action_net) + negative_log_prior(policy.log_std_layer)
            self.logger.record("prior/actor_penalty", float(actor) / count)
            self.logger.record("prior/critic_penalty", float(negative_log_prior(policy.value_net)) / count)

    def identity(self) -> dict[str, Any]:
        return super().identity() | {"n_steps": self.n_steps}

    def _capture_algorithm(self) -> dict[str, Any]:
        if steps := len(self.policy.rollout):
            raise ValueError(
                f"a rollout is under way ({steps} steps of {self.n_steps}): capture between two, in a "
                "callback's on_rollout_start"
            )
        trained_on = self.policy.trained_on
        return {"trained_on": None if trained_on is None else trained_on.cpu().clone()}

    def _restore_algorithm(self, data: dict[str, Any]) -> None:
        trained_on = data["trained_on"]
        self.policy.trained_on = None if trained_on is None else trained_on.to(self.device)


RPPPPO = RelaxedPPO
"""The old name."""

Agent = RPPSAC | RelaxedPPO
"""An algorithm that a run trains."""
