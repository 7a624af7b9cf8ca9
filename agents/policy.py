"""RPPPolicy: a stable-baselines3 SAC policy whose actor and critics are relaxed equivariant networks."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import logging
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, ClassVar, NamedTuple

import torch
from gymnasium import spaces
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.type_aliases import Schedule
from stable_baselines3.sac.policies import SACPolicy
from torch import Tensor

from rppdyn.agents._networks import (
    RewardScale,
    RPPActor,
    RPPCritic,
    SymmetricFeatures,
    action_distribution_rep,
    cast_module,
    check_spaces,
    new_generator,
)
from rppdyn.agents._update import SACSettings
from rppdyn.envs import SymmetrySpec, certified_share
from rppdyn.groups import Group
from rppdyn.nn import EMLP, MLP, RPPEMLP, RelaxedLinear
from rppdyn.nn._hidden import activation_of
from rppdyn.nn._linear import check_chain
from rppdyn.nn._pathways import prior_unit
from rppdyn.priors import free_share, free_variance
from rppdyn.reps import Rep, Scalar
from rppdyn.reps._rep import is_int

logger = logging.getLogger(__name__)

# Defaults for numbers that the paper does not give; `configs/` overrides them per experiment.
HIDDEN_WIDTH = 256
"""Width of hidden layers."""

EQUIVARIANT_VARIANCE = 1e5
"""Prior variance of an equivariant pathway's weights: wide, so that symmetric functions are all but free."""

FREE_VARIANCE = 1e-7
"""Prior variance of a free pathway's weights: narrow, so that only data can make the policy leave the symmetry."""

OUTPUT_SCALE = 0.01
"""Scale of the actor's last layer at the start (Andrychowicz et al. 2020)."""

FIXED_ARGUMENTS = (
    "rep_in", "rep_out", "group", "hidden", "num_layers", "equivariant_variance", "free_variance", "output_scale", "generator",
    "groups", "variances", "device", "normalisation",
)  # fmt: skip
"""Arguments of networks that `network_kwargs` can't set: they follow from the spec or from other fields."""

SB3_COUNTERPARTS = {
    "optimizer_class": "Adam, with optimizer_kwargs=",
    "features_extractor_class": "the spec's own features",
}
"""Arguments of stable-baselines3's policies, and their counterparts here."""

WORDS_FOR_VARIANCES = {"certified": "use RPPSAC or train-agent", "learned": "LearnVariances() learns it"}
"""Words that may stand for the number `free_variance`, and what replaces each by a number."""


class NetworkClasses(NamedTuple):
    """The network classes of actor and critics."""

    actor: type[RPPEMLP]
    critic: type[RPPEMLP]


MODELS = {
    "rpp": NetworkClasses(RPPEMLP, RPPEMLP),
    "emlp": NetworkClasses(EMLP, EMLP),
    "mlp": NetworkClasses(MLP, MLP),
    "rpp_policy_only": NetworkClasses(RPPEMLP, MLP),
}
"""`model=` of RPPPolicy. The last is the ablation of Finzi et al. 2021, appendix A.2.2."""


@dataclass
class NetworkOptions:
    """The networks of a policy: their pathways, widths and prior variances.

    A saved policy keeps it as a dictionary (:meth:`plain`).

    Attributes:
        model: "rpp" (an equivariant and a free pathway), "emlp" (equivariant only, whatever `free_variance` is), "mlp" (free
            only, under the wide prior `equivariant_variance`), or "rpp_policy_only" (an rpp actor, mlp critics).
        hidden: width of every network's hidden layers, or a list of widths.
        num_layers: number of hidden layers of networks given by one width; if `hidden` is a list, its length replaces it.
        equivariant_variance, free_variance: prior variances of the pathways; 0 removes a pathway.
        critic_equivariant_variance, critic_free_variance, critic_hidden: the critics' own; None means the actor's.
        network_kwargs: further arguments of the networks (see `rppdyn.nn.RPPEMLP`), `breaking` as text. Here
            `free_scale="prior"` starts free weights at their prior's size, as if each layer had as many inputs as the network's
            widest hidden layer. Networks with one pathway ignore `free_scale`.
        groups: a chain of groups, for "rpp" and for the actor of "rpp_policy_only": the spec's group first, then subgroups,
            each given by matrices of the group before.
        variances: with `groups`, one variance for each group and the free pathway's last; all other variances are left out.
        normalisation: "batch" or "renorm", of networks that `RPPCrossQ` trains; None for none.
    Raises:
        ValueError: an unknown model or activation, invalid layers, arguments that networks don't have.
    """

    model: str = "rpp"
    hidden: Any = HIDDEN_WIDTH
    num_layers: int = 2
    equivariant_variance: Any = EQUIVARIANT_VARIANCE
    free_variance: Any = FREE_VARIANCE
    critic_equivariant_variance: float | None = None
    critic_free_variance: float | None = None
    critic_hidden: Any = None
    network_kwargs: Mapping[str, Any] | None = None
    groups: Any = None
    variances: Any = None
    normalisation: str | None = None

    def __post_init__(self) -> None:
        if self.model not in MODELS:
            raise ValueError(f"model={self.model!r} is not one of {', '.join(MODELS)}")
        known = [name for name in inspect.signature(RPPEMLP).parameters if name not in FIXED_ARGUMENTS]
        self.network_kwargs = dict(self.network_kwargs or {})
        if unknown := [name for name in self.network_kwargs if name not in known]:
            raise ValueError(f"network_kwargs has {unknown[0]!r}: networks here take {', '.join(known)}")
        if "activation" in self.network_kwargs:
            self.network_kwargs["activation"] = activation_of(self.network_kwargs["activation"]).name
        for key in ("hidden", "critic_hidden"):
            widths = getattr(self, key)
            if isinstance(widths, Sequence):
                setattr(self, key, _widths(key, widths))
            elif widths is not None and (not is_int(widths) or widths < 1):
                raise ValueError(f"{key}={widths!r}: give a number of channels, or a list of them such as [64, 64]")
        if isinstance(self.hidden, list):
            self.num_layers = len(self.hidden)
        if self.groups is not None or self.variances is not None:
            chain: Any = self.groups  # which may be none
            if isinstance(chain, Sequence):
                chain = [Group.from_dict(G) if isinstance(G, Mapping) else G for G in chain]
            check_chain(chain, self.variances)
            self.variances = list(self.variances)
            self.groups = [G.to_dict() for G in chain]

    def plain(self) -> dict[str, Any]:
        """Plain data; newer fields are left out where they are None."""
        newer_fields = ("critic_hidden", "groups", "variances", "normalisation")
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {name: value for name, value in fields.items() if value is not None or name not in newer_fields}

    def network_class(self, role: str) -> type[RPPEMLP]:
        """The class of the "actor" or of the "critic"."""
        return getattr(MODELS[self.model], role)

    def prior(self, role: str) -> dict[str, float]:
        """The variances of both pathways of the "actor" or the "critic", 0 for a pathway that the network lacks.

        Raises:
            ValueError: a variance is negative or no number; an mlp is given a free variance; no pathway is left.
        """
        network, prefix = self.network_class(role), "critic_" if role == "critic" else ""
        keys, values = {}, {}
        for name in ("equivariant_variance", "free_variance"):
            keys[name] = key = name if getattr(self, prefix + name) is None else prefix + name
            value = getattr(self, key)
            if key == "free_variance" and isinstance(value, str) and value in WORDS_FOR_VARIANCES:
                raise ValueError(
                    f"free_variance={value!r}: a policy built directly needs a number; {WORDS_FOR_VARIANCES[value]}"
                )
            if not isinstance(value, Real) or not float(value) >= 0:
                raise ValueError(f"{key}={value!r} must be a number of at least 0")
            values[name] = float(value)
        if network is MLP:
            free = getattr(self, f"{prefix}free_variance")
            if free != (None if prefix else FREE_VARIANCE):  # the default of the field
                raise ValueError(
                    f"{prefix}free_variance={free}: an mlp has one pathway, under {prefix}equivariant_variance; give that"
                )
            # the only pathway of this baseline has the wide prior
            values = {"equivariant_variance": 0.0, "free_variance": values["equivariant_variance"]}
        elif network is EMLP:
            values["free_variance"] = 0.0
        if not any(values.values()):
            zeros = keys.values() if network is RPPEMLP else [keys["equivariant_variance"]]
            raise ValueError(
                f"{' and '.join(f'{key}=0' for key in zeros)}: no pathway of the network is left; give a positive variance"
            )
        return values

    def build(
        self,
        role: str,
        spec: SymmetrySpec,
        rep_in: Rep,
        rep_out: Rep,
        generator: torch.Generator,
        output_scale: float = 1.0,
    ) -> RPPEMLP:
        """Build a network of the "actor" or of the "critic".

        Raises:
            ValueError: the reasons of `prior`; a chain that begins with another group than the spec's, that is given for a
                network with one pathway, or that is given beside other variances.
        """
        network, options = self.network_class(role), dict(self.network_kwargs or {})
        hidden = self.critic_hidden if role == "critic" and self.critic_hidden is not None else self.hidden
        if self.model == "rpp_policy_only" and role == "critic":
            options.pop("breaking", None)
        if self.groups is not None and MODELS[self.model].actor is not RPPEMLP:
            raise ValueError(
                f"groups with model={self.model!r}, which has one pathway: use model='rpp', or leave them out"
            )
        prior: dict[str, Any] = {}
        if network is not RPPEMLP:  # a single pathway has one variance and full size
            key = "equivariant_variance" if network is EMLP else "free_variance"
            prior[key] = self.prior(role)[key]
            options.pop("free_scale", None)
        elif self.groups is None:
            prior = self.prior(role)
            free = prior["free_variance"]
        else:
            prior = dict(groups=self._read_groups(spec, role), variances=self.variances)
            free = max(self.variances[1:])
        if options.get("free_scale") == "prior":
            options["free_scale"] = prior_unit(free, widest_layer(hidden))
        return network(
            rep_in,
            rep_out,
            None if "groups" in prior else spec.group,
            hidden=hidden,
            num_layers=None if isinstance(hidden, list) else self.num_layers,
            generator=generator,
            output_scale=output_scale,
            normalisation=self.normalisation,
            **prior,
            **options,
        )

    def _read_groups(self, spec: SymmetrySpec, role: str) -> list[Group]:
        groups = [Group.from_dict(data) for data in self.groups]
        if groups[0] != spec.group:
            raise ValueError(
                f"groups={groups}: begins with {groups[0]}, and the symmetry of {spec.env_id} is {spec.group}: begin with "
                "spec.group"
            )
        prefix = "critic_" if role == "critic" else ""
        defaults = (None, None) if prefix else (EQUIVARIANT_VARIANCE, FREE_VARIANCE)
        for key, default in zip(("equivariant_variance", "free_variance"), defaults, strict=True):
            if (value := getattr(self, prefix + key)) != default:
                raise ValueError(
                    f"{prefix + key}={value} with groups: variances has them all, the free pathway's last; leave it out"
                )
        return groups


def _widths(key: str, widths: Any) -> list[int]:
    is_list = isinstance(widths, Sequence) and not isinstance(widths, str)
    if not is_list or not all(is_int(width) and width >= 1 for width in widths):
        raise ValueError(f"{key}={widths!r}: give numbers of channels, one for each hidden layer, such as [64, 64]")
    if not widths:
        raise ValueError(f"{key}=[]: give at least one width; num_layers=0 makes a linear network")
    return [int(width) for width in widths]


def widest_layer(hidden: int | Sequence[int]) -> int:
    """The channels of the widest hidden layer."""
    return max(hidden) if isinstance(hidden, Sequence) else hidden


class SymmetricPolicy(BasePolicy):
    """A stable-baselines3 policy over one symmetry spec; a mixin beside stable-baselines3's own base class.

    Attributes:
        critic_key: key of the critics' layers in `net_arch`.
        network_defaults: fields of `NetworkOptions` with other defaults here.
        refused_options: fields of `NetworkOptions` that the policy doesn't take.
    """

    spec: SymmetrySpec
    observation_space: spaces.Box
    action_space: spaces.Box
    features_extractor: SymmetricFeatures
    critic_key: ClassVar[str] = "qf"
    network_defaults: ClassVar[Mapping[str, Any]] = {}
    refused_options: ClassVar[tuple[str, ...]] = ()

    @property
    @abstractmethod
    def networks(self) -> dict[str, Sequence[RPPEMLP]]:
        """Relaxed networks of the "actor" and of the "critic"."""

    def pathway_statistics(self) -> dict[str, float]:
        """Pathway norms and free share of each role, pooled over its networks.

        share = ||B||_F^2 / (sum ||A_i||_F^2 + ||B||_F^2), with norms of the dense weights over all layers: 0 for an equivariant
        network, 1 for an MLP. A_i are the pathways of the groups, B is the free one. Constant inputs (`breaking`) don't enter.
        """
        statistics = {}
        for name, nets in self.networks.items():
            squares = {"equivariant": 0.0, "free": 0.0}
            for net in nets:
                for norms in net.pathway_norms().values():
                    for pathway, norm in norms.items():
                        squares[pathway] = squares.get(pathway, 0.0) + float(norm) ** 2
            total = sum(square for pathway, square in squares.items() if pathway != "breaking")
            for pathway, square in squares.items():
                statistics[f"{name}_{pathway}_norm"] = square**0.5
            statistics[f"{name}_free_share"] = squares["free"] / total if total else 0.0
        return statistics

    @abstractmethod
    def action_function(self, dtype: torch.dtype | None) -> Callable[[Tensor], Tensor]:
        """The map from raw observations to deterministic actions in the environment's units; networks are cast to `dtype`."""

    @abstractmethod
    def value_function(self, dtype: torch.dtype | None) -> Callable[[Tensor, Tensor], Tensor]:
        """The map from raw observations and actions to values (n_critics, n); networks are cast to `dtype`."""

    @classmethod
    def option_names(cls) -> list[str]:
        """Names of arguments that describe networks: fields of `NetworkOptions`, `net_arch` and `activation_fn`."""
        fields = [field.name for field in dataclasses.fields(NetworkOptions)]
        return [name for name in (*fields, "net_arch", "activation_fn") if name not in cls.refused_options]

    @classmethod
    def read_options(cls, arguments: Mapping[str, Any]) -> NetworkOptions:
        """Read the network options among a policy's arguments, which may be in stable-baselines3's form.

        `net_arch` has layers in the place of `hidden` and `critic_hidden`; `activation_fn` is a class of `torch.nn`, in the
        place of the activation in `network_kwargs`.

        Raises:
            ValueError: layers or an activation are given twice, or `net_arch` has other keys.
        """
        options = {name: arguments[name] for name in cls.option_names() if name in arguments}
        net_arch, activation_fn = options.pop("net_arch", None), options.pop("activation_fn", None)
        if activation_fn is not None:
            network_kwargs = options.get("network_kwargs") or {}
            if "activation" in network_kwargs:
                second = f"network_kwargs with activation={network_kwargs['activation']!r}"
                raise ValueError(f"activation_fn={activation_fn!r} and {second}: give one")
            activation = activation_of(activation_fn, "activation_fn").name
            options["network_kwargs"] = {**network_kwargs, "activation": activation}
        if net_arch is not None:
            for key in ("hidden", "critic_hidden"):
                if options.get(key) is not None:
                    raise ValueError(f"net_arch={net_arch} and {key}={options[key]}: give one of them")
            critic_hidden = None
            if isinstance(net_arch, Mapping):
                if set(net_arch) != {"pi", cls.critic_key}:
                    raise ValueError(
                        f"net_arch={dict(net_arch)}: give a list, or a dictionary with the keys pi and {cls.critic_key}"
                    )
                net_arch, critic_hidden = net_arch["pi"], _widths("net_arch", net_arch[cls.critic_key])
            options["hidden"] = _widths("net_arch", net_arch)
            options["critic_hidden"] = None if critic_hidden == options["hidden"] else critic_hidden
        return NetworkOptions(**{**cls.network_defaults, **options})

    def _set_options(
        self,
        observation_space: spaces.Space,
        action_space: spaces.Space,
        spec: SymmetrySpec | Mapping[str, Any],
        network_options: Mapping[str, Any],
        use_sde: bool,
        **arguments: Any,
    ) -> None:
        """Check the arguments of a policy, and keep them as plain data, from which a saved policy is rebuilt.

        Raises:
            ValueError: spaces that the spec doesn't fit, `use_sde`, or an unknown option.
        """
        name, known = type(self).__name__, ["spec", *self.option_names(), *arguments]
        if use_sde:
            raise ValueError(f"{name} does not support use_sde=True (its noise would not transform); leave it out")
        if unknown := [option for option in network_options if option not in known]:
            counterpart = SB3_COUNTERPARTS.get(unknown[0], f"one of {', '.join(known)}")
            raise ValueError(f"policy_kwargs: {name} has no argument {unknown[0]}; use {counterpart}")
        self.spec = SymmetrySpec.from_dict(spec)
        check_spaces(self.spec, observation_space, action_space)
        self.options = self.read_options(network_options)
        self._arguments = dict(spec=self.spec.to_dict()) | self.options.plain() | arguments

    @property
    def model(self) -> str:
        """The key in `MODELS` of the classes of actor and critics."""
        return self.options.model

    def _get_constructor_parameters(self) -> dict[str, Any]:
        return dict(
            observation_space=self.observation_space,
            action_space=self.action_space,
            lr_schedule=self._dummy_schedule,
            **self._arguments,
        )


class RPPPolicy(SymmetricPolicy, SACPolicy):
    """Actor, critics and target critics for one symmetry spec.

    Args:
        spec: the symmetry of the environment, a `SymmetrySpec` or the dictionary that its `to_dict` returns.
        output_scale: scale of the actor's last layer at the start.
        n_critics: number of critics, of which targets take the minimum.
        optimizer_kwargs: Adam's `betas` and `eps`; betas default to (0.5, 0.999).
        atoms: least value, largest value and number of the values of a categorical critic, as `RPPCrossQ` gives them; None for
            critics that return one value.
        use_sde: accepted because stable-baselines3 passes it; must be False.
        **network_options: fields of `rppdyn.agents.policy.NetworkOptions`; or stable-baselines3's `net_arch` ([64, 64], or
            dict(pi=[64, 64], qf=[128, 128])) in the place of `hidden`, and `activation_fn` (a class of `torch.nn`) in the
            place of the activation in `network_kwargs`. `RPPSAC` also takes free_variance="certified", and replaces it by the
            number that follows from the environment's certificate.
    Raises:
        ValueError: the reasons of `NetworkOptions` and its `build`; an unknown option of Adam or of the policy; spaces that the
            spec doesn't fit; use_sde=True; no critic.

    Networks are drawn, and exploration noise is seeded, from torch's global generator, which stable-baselines3 seeds
    with the agent's `seed`.
    """

    actor: RPPActor  # type: ignore[assignment]
    critic: RPPCritic  # type: ignore[assignment]
    critic_target: RPPCritic  # type: ignore[assignment]

    def __init__(
        self,
        observation_space: spaces.Box,
        action_space: spaces.Box,
        lr_schedule: Schedule,
        spec: SymmetrySpec | Mapping[str, Any],
        *,
        output_scale: float = OUTPUT_SCALE,
        n_critics: int = 2,
        optimizer_kwargs: Mapping[str, Any] | None = None,
        atoms: Sequence[float] | None = None,
        use_sde: bool = False,
        **network_options: Any,
    ) -> None:
        if n_critics < 1:
            raise ValueError(f"n_critics={n_critics} must be at least 1")
        optimizer_kwargs = {"betas": SACSettings.betas, "eps": SACSettings.epsilon} | dict(optimizer_kwargs or {})
        if unknown := sorted(set(optimizer_kwargs) - {"betas", "eps"}):
            raise ValueError(f"optimizer_kwargs has {unknown[0]!r}; RPP-SAC runs Adam with betas and eps only")
        arguments = dict(output_scale=output_scale, n_critics=n_critics, optimizer_kwargs=optimizer_kwargs)
        if atoms is not None:
            arguments["atoms"] = list(atoms)
        self._set_options(observation_space, action_space, spec, network_options, use_sde, **arguments)
        super(SACPolicy, self).__init__(
            observation_space,
            action_space,
            features_extractor=SymmetricFeatures(observation_space, self.spec),
            optimizer_kwargs=optimizer_kwargs,
            squash_output=True,
        )
        self._build(lr_schedule)

    def _build(self, lr_schedule: Schedule) -> None:
        generator = new_generator()
        self.actor = self.make_actor(generator)
        self.critic = self.make_critic(generator)
        if self.options.normalisation is not None:
            object.__setattr__(self, "critic_target", self.critic)  # not registered as a module, so not saved twice
        else:  # a copy, with all buffers that the networks drew at construction; the features stay shared
            shared = {id(self.features_extractor): self.features_extractor}
            self.critic_target = copy.deepcopy(self.critic, shared)
        if "atoms" in self._arguments:
            self.reward_scale = RewardScale(min(map(abs, self._arguments["atoms"][:2])))
        for module, networks in ((self.actor, self.actor.net), (self.critic, self.critic.q_networks)):
            module.optimizer = torch.optim.Adam(networks.parameters(), lr=lr_schedule(1), **self.optimizer_kwargs)

    def make_actor(self, generator: torch.Generator) -> RPPActor:  # type: ignore[override]
        rep_out = action_distribution_rep(self.spec)
        scale = self._arguments["output_scale"]
        net = self.options.build("actor", self.spec, self.spec.obs_rep, rep_out, generator, scale)
        return RPPActor(self.observation_space, self.action_space, self.features_extractor, net).to(self.device)

    def make_critic(self, generator: torch.Generator) -> RPPCritic:  # type: ignore[override]
        rep_in, rep_out = self.spec.obs_rep + self.spec.action_rep, Scalar(self.spec.group)
        count, atoms = self._arguments["n_critics"], self._arguments.get("atoms")
        if atoms is not None:
            rep_out = int(atoms[2]) * rep_out
        nets = [self.options.build("critic", self.spec, rep_in, rep_out, generator) for _ in range(count)]
        critic = RPPCritic(self.observation_space, self.action_space, self.features_extractor, nets, atoms)
        return critic.to(self.device)

    def set_training_mode(self, mode: bool) -> None:
        """Set the mode of this module alone, which is cheap. Every step sets it, and no module here depends on it."""
        self.training = mode

    def action_function(self, dtype: torch.dtype | None) -> Callable[[Tensor], Tensor]:
        actor = cast_module(self.actor, dtype)
        high = torch.as_tensor(self.action_space.high, dtype=torch.float64)
        return lambda obs: high * actor(obs.to(self.device), deterministic=True).double().cpu()

    def value_function(self, dtype: torch.dtype | None) -> Callable[[Tensor, Tensor], Tensor]:
        critic = cast_module(self.critic, dtype)
        high = torch.as_tensor(self.action_space.high, dtype=torch.float64)

        def q(obs: Tensor, actions: Tensor) -> Tensor:
            scaled = (actions / high).to(dtype=critic.features_extractor.dtype, device=self.device)
            return torch.stack(critic(obs.to(self.device), scaled)).squeeze(-1).double().cpu()

        return q

    @property
    def networks(self) -> dict[str, Sequence[RPPEMLP]]:
        """The network of the "actor", and those of the "critic"."""
        return {"actor": [self.actor.net], "critic": [*self.critic.q_networks]}


def prior_share(networks: Sequence[RPPEMLP]) -> float:
    """The free pathway's share of the prior (:func:`rppdyn.priors.free_share`), averaged over the networks' `RelaxedLinear`.

    For a chain, the share of all pathways but the largest group's, unlike the free share of `pathway_statistics`.
    """
    shares = []
    for net in networks:
        for layer, variances in net.pathway_variances().items():
            if isinstance(module := net.get_submodule(layer), RelaxedLinear):
                equivariant = variances.pop("equivariant", 0.0)
                shares.append(free_share(sum(variances.values()), equivariant, module.rep_in.dim))
    return sum(shares) / len(shares)


def certified_arguments(
    policy: type[SymmetricPolicy], arguments: Mapping[str, Any], env: Any, spec: SymmetrySpec
) -> dict[str, Any]:
    """A policy's arguments with the certificate's number in the place of `free_variance="certified"`.

    Actor and critics share this number, which is for a layer as wide as the widest of `hidden`, not of `critic_hidden`.

    Raises:
        ValueError: a model with one pathway, no environment, or one whose symmetry can't be certified.
    """
    if arguments.get("free_variance") != "certified" or arguments.get("groups") is not None:  # which the policy refuses
        return dict(arguments)
    options = policy.read_options(arguments)
    if options.network_class("actor") is not RPPEMLP:
        raise ValueError(
            f"free_variance='certified': model={options.model!r} has one pathway, so a certificate changes nothing: "
            "use model='rpp', or leave it out"
        )
    if env is None:
        raise ValueError(
            "free_variance='certified' without an environment to certify the symmetry in: give env=, or a number"
        )
    try:
        certified = certified_share(env, spec)
        variance = free_variance(certified.share, options.equivariant_variance, widest_layer(options.hidden))
    except ValueError as error:
        raise ValueError(f"free_variance='certified': {error}") from error
    logger.info("free_variance='certified' is %.3g: the symmetry of %s is %s", variance, spec.env_id, certified.note)
    return dict(arguments) | {"free_variance": variance}
