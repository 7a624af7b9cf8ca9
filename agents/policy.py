"""RPPPolicy: a stable-baselines3 SAC policy whose actor and critics are relaxed equivariant networks."""

from __future__ import annotations

import copy
import inspect
import logging
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from typing import Any, NamedTuple

import torch
from gymnasium import spaces
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.type_aliases import Schedule
from stable_baselines3.sac.policies import SACPolicy
from torch import Tensor

from rppdyn.agents.networks import (
    BuildNetwork,
    RPPActor,
    RPPCritic,
    SymmetricFeatures,
    check_spaces,
    in_precision,
    new_generator,
)
from rppdyn.envs import SymmetrySpec, certified_share
from rppdyn.groups import Group
from rppdyn.nn import EMLP, MLP, RPPEMLP, RelaxedLinear
from rppdyn.nn.hidden import activation_of
from rppdyn.nn.linear import check_chain
from rppdyn.nn.pathways import prior_unit
from rppdyn.priors import free_share, free_variance
from rppdyn.reps import Rep
from rppdyn.reps.rep import is_int

logger = logging.getLogger(__name__)

# Numbers that the paper leaves open; `configs/` overrides them per experiment.
HIDDEN = 256
"""Width of hidden layers."""

EQUIVARIANT_VARIANCE = 1e5
"""Prior variance of an equivariant pathway's weights: wide, so that symmetric functions are all but free."""

FREE_VARIANCE = 1e-7
"""Prior variance of a free pathway's weights: narrow, so that a departure from the symmetry must earn its keep."""

NOISE_VARIANCE = 1.0
"""Variance s^2 of the critics' Gaussian likelihood; 1 gives the usual half squared error."""

ADAM_BETAS = (0.5, 0.999)
"""Adam's betas for actor, critics and temperature (Finzi et al. 2021, appendix A.2.3.3)."""

OUTPUT_SCALE = 0.01
"""Scale of the actor's last layer at the start (Andrychowicz et al. 2020)."""

FIXED_ARGUMENTS = (
    "rep_in", "rep_out", "group", "hidden", "num_layers", "equivariant_variance", "free_variance", "output_scale", "generator",
    "groups", "variances", "device",
)  # fmt: skip
"""Arguments of networks that follow from the spec, or are the policy's own."""


class Pathways(NamedTuple):
    """The network classes of actor and critics."""

    actor: type[RPPEMLP]
    critic: type[RPPEMLP]


MODELS = {
    "rpp": Pathways(RPPEMLP, RPPEMLP),
    "emlp": Pathways(EMLP, EMLP),
    "mlp": Pathways(MLP, MLP),
    "rpp_policy_only": Pathways(RPPEMLP, MLP),
}
"""`model=` of RPPPolicy. The last is the ablation of Finzi et al. 2021, appendix A.2.2."""


def own_arguments(variables: Mapping[str, Any]) -> dict[str, Any]:
    """A policy's own arguments, of the `locals()` with which its `__init__` begins."""
    others = ("self", "__class__", "observation_space", "action_space", "lr_schedule")
    return {name: value for name, value in variables.items() if name not in others}


class SymmetricPolicy(BasePolicy):
    """A stable-baselines3 policy over one symmetry spec; a mixin beside stable-baselines3's own base class."""

    spec: SymmetrySpec
    observation_space: spaces.Box
    action_space: spaces.Box
    features_extractor: SymmetricFeatures

    @property
    @abstractmethod
    def networks(self) -> dict[str, Sequence[RPPEMLP]]:
        """Relaxed networks of the "actor" and of the "critic"."""

    def pathway_statistics(self) -> dict[str, float]:
        """Norms of the pathways of actor and critics, and shares of the free ones; see `pathway_statistics`."""
        return pathway_statistics(self.networks)

    @abstractmethod
    def action_function(self, dtype: torch.dtype | None) -> Callable[[Tensor], Tensor]:
        """Raw observations to deterministic actions in the environment's units, by networks in a precision; for measures."""

    @abstractmethod
    def value_function(self, dtype: torch.dtype | None) -> Callable[[Tensor, Tensor], Tensor]:
        """Raw observations and actions to values (n_critics, n), by networks in a precision; for measures."""

    def _set_arguments(
        self,
        observation_space: spaces.Space,
        action_space: spaces.Space,
        *,
        spec: SymmetrySpec | Mapping[str, Any],
        model: str,
        network_kwargs: Mapping[str, Any] | None,
        use_sde: bool,
        net_arch: Any,
        activation_fn: Any,
        critic: str,
        **arguments: Any,
    ) -> None:
        """Check the arguments of every policy, and keep them as the plain data that a saved policy is built from again.

        Args:
            critic: the key of the critics' layers in `net_arch`, "qf" or "vf".
        Raises:
            ValueError: an unknown model, spaces that the spec doesn't fit, layers or an activation that are none, or `use_sde`.
        """
        if use_sde:
            name = type(self).__name__
            raise ValueError(f"{name} does not support use_sde=True (its noise would not transform); leave it out")
        if model not in MODELS:
            raise ValueError(f"model={model!r} is not one of {', '.join(MODELS)}")
        self.spec = spec if isinstance(spec, SymmetrySpec) else SymmetrySpec.from_dict(dict(spec))
        check_spaces(self.spec, observation_space, action_space)
        known = [name for name in inspect.signature(RPPEMLP).parameters if name not in FIXED_ARGUMENTS]
        if unknown := [name for name in network_kwargs or {} if name not in known]:
            raise ValueError(f"network_kwargs has {unknown[0]!r}: networks here take {', '.join(known)}")
        network = dict(network_kwargs or {})
        if activation_fn is not None:
            if "activation" in network:
                raise ValueError(
                    f"activation_fn={activation_fn!r} and network_kwargs with activation={network['activation']!r}: give one"
                )
            network["activation"] = activation_of(activation_fn, "activation_fn").name
        elif "activation" in network:
            network["activation"] = activation_of(network["activation"]).name
        common = dict(spec=self.spec.to_dict(), model=model, network_kwargs=network)
        self._arguments = common | layers(arguments, net_arch, critic)

    @property
    def model(self) -> str:
        """The name of the pathways in use, a key of `MODELS`."""
        return self._arguments["model"]

    def _get_constructor_parameters(self) -> dict[str, Any]:
        return dict(
            observation_space=self.observation_space,
            action_space=self.action_space,
            lr_schedule=self._dummy_schedule,
            **self._arguments,
        )


class RPPPolicy(SymmetricPolicy, SACPolicy):
    """Actor, critics and targets over one symmetry spec.

    Args:
        spec: the symmetry of the environment, as `SymmetrySpec` or as what its `to_dict` returns.
        model: "rpp" (an equivariant and a free pathway), "emlp" (equivariant only), "mlp" (free only, under the wide
            prior `equivariant_variance`), or "rpp_policy_only" (an rpp actor, mlp critics).
        hidden, num_layers: width and number of hidden layers of every network.
        equivariant_variance, free_variance: prior variances of the pathways; 0 removes a pathway. `RPPSAC` takes
            free_variance="certified", too, and keeps the number that the environment's certificate makes of it.
        critic_equivariant_variance, critic_free_variance: the critics' own; None means the actor's.
        output_scale: scale of the actor's last layer at the start.
        n_critics: number of critics, of which targets take the minimum.
        optimizer_kwargs: Adam's `betas` and `eps`; betas default to (0.5, 0.999).
        network_kwargs: further arguments of the networks (see `rppdyn.nn.RPPEMLP`), such as their architecture.
            Here `free_scale="prior"` starts free pathways at the size that their prior has in a layer
            with as many inputs as it is wide.
        groups: a chain of groups, the spec's first, each a subgroup of the one before, given by the matrices by which it acts
            in that; of "rpp", and of the actor of "rpp_policy_only". A spec's representations are restricted to them.
        variances: with `groups`, one for each of them and the free pathway's last, in the place of all other variances.
        net_arch, activation_fn: as stable-baselines3's policies have them, in the place of `hidden` and of the activation in
            `network_kwargs`: [64, 64] or dict(pi=[64, 64], qf=[128, 128]), and a class of `torch.nn`.
        critic_hidden: the critics' own layers; None means the actor's.
        use_sde: accepted because stable-baselines3 passes it; must be False.
    Raises:
        ValueError: an unknown model, a negative variance, layers or an activation that are none, an unknown option of Adam,
            spaces that the spec doesn't fit, or groups that are no chain, begin with another group than the spec's, or are of a
            network with one pathway.

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
        model: str = "rpp",
        hidden: int | Sequence[int] = HIDDEN,
        num_layers: int = 2,
        equivariant_variance: float = EQUIVARIANT_VARIANCE,
        free_variance: float = FREE_VARIANCE,
        critic_equivariant_variance: float | None = None,
        critic_free_variance: float | None = None,
        output_scale: float = OUTPUT_SCALE,
        n_critics: int = 2,
        optimizer_kwargs: Mapping[str, Any] | None = None,
        network_kwargs: Mapping[str, Any] | None = None,
        groups: Sequence[Group | Mapping[str, Any]] | None = None,
        variances: Sequence[int | float] | None = None,
        net_arch: Any = None,
        activation_fn: Any = None,
        critic_hidden: int | Sequence[int] | None = None,
        use_sde: bool = False,
    ) -> None:
        given = own_arguments(locals())
        if n_critics < 1:
            raise ValueError(f"n_critics={n_critics} must be at least 1")
        optimizer_kwargs = {"betas": tuple(ADAM_BETAS), "eps": 1e-8} | dict(optimizer_kwargs or {})
        if unknown := sorted(set(optimizer_kwargs) - {"betas", "eps"}):
            raise ValueError(f"optimizer_kwargs has {unknown[0]!r}; RPP-SAC runs Adam with betas and eps only")
        given |= dict(optimizer_kwargs=optimizer_kwargs) | _chain(given.pop("groups"), given.pop("variances"))
        self._set_arguments(observation_space, action_space, critic="qf", **given)
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
        self.actor.optimizer = torch.optim.Adam(self.actor.net.parameters(), lr=lr_schedule(1), **self.optimizer_kwargs)
        self.critic = self.make_critic(generator)
        # A copy, down to whatever the networks drew at construction; the features stay shared.
        shared = {id(self.features_extractor): self.features_extractor}
        self.critic_target = copy.deepcopy(self.critic, shared)
        parameters = self.critic.q_networks.parameters()
        self.critic.optimizer = torch.optim.Adam(parameters, lr=lr_schedule(1), **self.optimizer_kwargs)

    def make_actor(self, generator: torch.Generator) -> RPPActor:  # type: ignore[override]
        build = network_builder(MODELS[self.model].actor, self.spec, self._arguments, generator)
        return RPPActor(
            self.observation_space, self.action_space, self.features_extractor, build, self._arguments["output_scale"]
        ).to(self.device)

    def make_critic(self, generator: torch.Generator) -> RPPCritic:  # type: ignore[override]
        build = network_builder(MODELS[self.model].critic, self.spec, self._arguments, generator, prefix="critic_")
        return RPPCritic(
            self.observation_space, self.action_space, self.features_extractor, build, self._arguments["n_critics"]
        ).to(self.device)

    def set_training_mode(self, mode: bool) -> None:
        """Note the mode; nothing here works differently in training, and stable-baselines3 calls this at every step."""
        self.training = mode

    def action_function(self, dtype: torch.dtype | None) -> Callable[[Tensor], Tensor]:
        """Raw observations to deterministic actions in the environment's units, by networks in a precision; for measures."""
        actor = in_precision(self.actor, dtype)
        high = torch.as_tensor(self.action_space.high, dtype=torch.float64)
        return lambda obs: high * actor(obs.to(self.device), deterministic=True).double().cpu()

    def value_function(self, dtype: torch.dtype | None) -> Callable[[Tensor, Tensor], Tensor]:
        """Raw observations and actions to the critics' values (n_critics, n), by networks in a precision; for measures."""
        critic = in_precision(self.critic, dtype)
        high = torch.as_tensor(self.action_space.high, dtype=torch.float64)

        def q(obs: Tensor, actions: Tensor) -> Tensor:
            scaled = (actions / high).to(dtype=critic.features_extractor.dtype, device=self.device)
            return torch.stack(critic(obs.to(self.device), scaled)).squeeze(-1).double().cpu()

        return q

    @property
    def networks(self) -> dict[str, Sequence[RPPEMLP]]:
        """The actor's, and those of the critics."""
        return {"actor": [self.actor.net], "critic": self.critic.function.nets}


def pathway_statistics(networks: Mapping[str, Sequence[RPPEMLP]]) -> dict[str, float]:
    """Per name: the norms of the pathways, and the share of the free one, pooled over the networks of that name.

    share = ||B||_F^2 / (||A||_F^2 + ||B||_F^2), with norms of the dense weights over all layers: 0 for an
    equivariant network, 1 for an MLP.
    """
    statistics = {}
    for name, nets in networks.items():
        squares = {"equivariant": 0.0, "free": 0.0}
        for net in nets:
            for norms in net.pathway_norms().values():
                for pathway, norm in norms.items():
                    squares[pathway] = squares.get(pathway, 0.0) + float(norm) ** 2
        total = sum(squares.values())
        for pathway, square in squares.items():
            statistics[f"{name}_{pathway}_norm"] = square**0.5
        statistics[f"{name}_free_share"] = squares["free"] / total if total else 0.0
    return statistics


def prior_share(networks: Sequence[RPPEMLP]) -> float:
    """The free pathway's share of the prior (:func:`rppdyn.priors.free_share`), the mean over all layers of some networks.

    Of a chain it is that of all but the largest group's.
    """
    shares = []
    for net in networks:
        for layer, variances in net.pathway_variances().items():
            if isinstance(module := net.get_submodule(layer), RelaxedLinear):
                equivariant = variances.pop("equivariant", 0.0)
                shares.append(free_share(sum(variances.values()), equivariant, module.rep_in.dim))
    return sum(shares) / len(shares)


def certified_arguments(arguments: Mapping[str, Any], env: Any, spec: SymmetrySpec) -> dict[str, Any]:
    """A policy's arguments with a number in the place of `free_variance="certified"`.

    Raises:
        ValueError: a network that has not both pathways, or an environment whose symmetry can't be certified.
    """
    if arguments.get("free_variance") != "certified":
        return dict(arguments)
    if arguments.get("groups") is not None:
        raise ValueError(
            "free_variance='certified' with groups: variances has the free pathway's, too; leave out one of the two"
        )
    kind, wide = arguments.get("model", "rpp"), arguments.get("equivariant_variance", EQUIVARIANT_VARIANCE)
    if MODELS.get(kind, MODELS["rpp"]).actor is not RPPEMLP:
        raise ValueError(
            f"free_variance='certified' with model={kind!r}, which has one pathway and believes "
            f"{'the' if kind == 'emlp' else 'no'} symmetry whatever certificates say: use model='rpp', or leave it out"
        )
    if env is None:
        raise ValueError(
            "free_variance='certified' without an environment to certify the symmetry in: give env=, or a number"
        )
    try:
        certified = certified_share(env, spec)
        hidden = layers(dict(hidden=arguments.get("hidden", HIDDEN)), arguments.get("net_arch"))["hidden"]
        variance = free_variance(certified.share, wide, widest(hidden))
    except ValueError as error:
        raise ValueError(f"free_variance='certified': {error}") from error
    logger.info("free_variance='certified' is %.3g: the symmetry of %s is %s", variance, spec.env_id, certified.note)
    return dict(arguments) | {"free_variance": variance}


def pathway_variances(network: type[RPPEMLP], arguments: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """Prior variances of both pathways of a network, 0 for one that it lacks; those with a prefix where they are given.

    Raises:
        ValueError: a variance is negative, or no number.
    """
    variances = {}
    for key in ("equivariant_variance", "free_variance"):
        value = arguments[prefix + key] if prefix else None
        value = arguments[key] if value is None else value
        if value in ("certified", "learned"):
            remedy = (
                "RPPSAC and train-agent know how"
                if value == "certified"
                else "LearnVariances() is the callback that learns"
            )
            raise ValueError(f"{prefix}{key}={value!r}: a policy by itself needs a number; {remedy}")
        if not isinstance(value, Real) or not float(value) >= 0:
            raise ValueError(f"{prefix}{key}={value!r} must be a number of at least 0")
        variances[key] = float(value)
    if network is MLP:  # the baseline's only pathway is under the wide prior
        return {"equivariant_variance": 0.0, "free_variance": variances["equivariant_variance"]}
    return variances | {"free_variance": 0.0} if network is EMLP else variances


def layers(arguments: Mapping[str, Any], net_arch: Any = None, critic: str = "") -> dict[str, Any]:
    """A policy's arguments with hidden layers as plain data: a width, or a list of widths, whose length is `num_layers`.

    Args:
        net_arch: in the place of `hidden`, as stable-baselines3's policies take it.
        critic: the key of the critics' layers there; "" for any.
    Raises:
        ValueError: they are no numbers of channels.
    """
    result = dict(arguments)
    keys = ("pi", critic or "qf")
    if net_arch is not None:
        critic_hidden = result.get("critic_hidden")
        if isinstance(net_arch, Mapping):
            if set(net_arch) != set(keys) and critic:
                raise ValueError(
                    f"net_arch={dict(net_arch)}: give a list, or a dictionary with the keys {' and '.join(keys)}"
                )
            result["hidden"] = _widths("net_arch", net_arch.get("pi"))
            widths_of_critic = _widths("net_arch", net_arch[critic]) if critic else None
            result["critic_hidden"] = None if widths_of_critic == result["hidden"] else widths_of_critic
        else:
            result["hidden"] = _widths("net_arch", net_arch)
        if critic_hidden is not None:
            raise ValueError(f"net_arch={net_arch} and critic_hidden={critic_hidden}: give one of them")
    for key in ("hidden", "critic_hidden"):
        if isinstance(widths := result.get(key), Sequence):
            result[key] = _widths(key, widths)
        elif widths is not None and (not is_int(widths) or widths < 1):
            raise ValueError(f"{key}={widths!r}: give a number of channels, or a list of them such as [64, 64]")
    if isinstance(result["hidden"], list) and "num_layers" in result:
        result["num_layers"] = len(result["hidden"])
    if result.get("critic_hidden") is None:  # as in policies from before there was one
        result.pop("critic_hidden", None)
    return result


def _widths(key: str, widths: Any) -> list[int]:
    is_list = isinstance(widths, Sequence) and not isinstance(widths, str)
    if not is_list or not all(is_int(width) and width >= 1 for width in widths):
        raise ValueError(f"{key}={widths!r}: give numbers of channels, one for each hidden layer, such as [64, 64]")
    if not widths:
        raise ValueError(f"{key}=[]: give one hidden layer at least; num_layers=0 has none, and is linear")
    return [int(width) for width in widths]


def widest(hidden: int | Sequence[int]) -> int:
    """The channels of the widest hidden layer."""
    return max(hidden) if isinstance(hidden, Sequence) else hidden


def _chain(
    groups: Sequence[Group | Mapping[str, Any]] | None, variances: Sequence[int | float] | None
) -> dict[str, Any]:
    """A chain as the plain data that a saved policy is built from again; nothing without one, as in older policies."""
    if groups is None and variances is None:
        return {}
    chain: Any = groups  # which may be none
    if isinstance(groups, Sequence):
        chain = [_group(G) if isinstance(G, Mapping) else G for G in groups]
    check_chain(chain, variances)
    matrices = [
        dict(name=G.name, lie_algebra=G.lie_algebra.tolist(), discrete_generators=G.discrete_generators.tolist())
        for G in chain
    ]
    return dict(groups=matrices, variances=list(variances or ()))


def _group(data: Mapping[str, Any]) -> Group:
    return Group(data["name"], **{key: data[key] or None for key in ("lie_algebra", "discrete_generators")})


def _chained(spec: SymmetrySpec, arguments: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """Arguments of a network that has a chain of groups.

    Raises:
        ValueError: it begins with another group than the spec's, or another variance is given.
    """
    groups = [_group(data) for data in arguments["groups"]]
    if groups[0] != spec.group:
        raise ValueError(
            f"groups={groups}: begins with {groups[0]}, and the symmetry of {spec.env_id} is {spec.group}: begin with "
            "spec.group"
        )
    usual = (None, None) if prefix else (EQUIVARIANT_VARIANCE, FREE_VARIANCE)
    for key, value in zip(("equivariant_variance", "free_variance"), usual, strict=True):
        if arguments[prefix + key] != value:
            raise ValueError(
                f"{prefix + key}={arguments[prefix + key]} with groups: variances has them all, the free pathway's last; leave "
                "it out"
            )
    return dict(groups=groups, variances=arguments["variances"])


def network_builder(
    network: type[RPPEMLP],
    spec: SymmetrySpec,
    arguments: Mapping[str, Any],
    generator: torch.Generator,
    prefix: str = "",
) -> BuildNetwork:
    """(rep_in, rep_out, output_scale) -> a network of this kind, with a policy's arguments.

    Raises:
        ValueError: no pathway is left; a variance is given of one that the network hasn't.
    """
    if "groups" in arguments:
        if MODELS[arguments["model"]].actor is not RPPEMLP:
            raise ValueError(
                f"groups with model={arguments['model']!r}, which has one pathway: use model='rpp', or leave them out"
            )
        if network is RPPEMLP:
            chained = _chained(spec, arguments, prefix) | dict(arguments["network_kwargs"])
            if chained.get("free_scale") == "prior":
                chained["free_scale"] = prior_unit(max(chained["variances"][1:]), widest(arguments["hidden"]))
            return _builder(network, None, arguments, generator, chained, prefix)
    variances = pathway_variances(network, arguments, prefix)
    key, usual = f"{prefix}free_variance", None if prefix else FREE_VARIANCE
    if network is MLP and arguments[key] != usual:
        raise ValueError(
            f"{key}={arguments[key]}: an mlp has one pathway, under {prefix}equivariant_variance; give that"
        )
    if not any(variances.values()):
        keys = ("equivariant_variance", "free_variance") if network is RPPEMLP else ("equivariant_variance",)
        zeros = " and ".join(f"{key if arguments.get(prefix + key) is None else prefix + key}=0" for key in keys)
        raise ValueError(f"{zeros}: no pathway of the network is left; give a positive variance")
    if network is not RPPEMLP:  # one pathway has one variance
        variances.pop("free_variance" if network is EMLP else "equivariant_variance")
    options: dict[str, Any] = variances | dict(arguments["network_kwargs"])
    if network is not RPPEMLP:  # one pathway is of full size
        options.pop("free_scale", None)
    elif options.get("free_scale") == "prior":
        options["free_scale"] = prior_unit(variances["free_variance"], widest(arguments["hidden"]))
    return _builder(network, spec.group, arguments, generator, options, prefix)


def _builder(
    network: type[RPPEMLP],
    group: Group | None,
    arguments: Mapping[str, Any],
    generator: torch.Generator,
    options: Mapping[str, Any],
    prefix: str,
) -> BuildNetwork:
    hidden = arguments["hidden"] if arguments.get(f"{prefix}hidden") is None else arguments[f"{prefix}hidden"]
    num_layers = None if isinstance(hidden, Sequence) else arguments["num_layers"]

    def build(rep_in: Rep, rep_out: Rep, **kwargs: Any) -> RPPEMLP:
        return network(
            rep_in,
            rep_out,
            group,
            hidden=hidden,
            num_layers=num_layers,
            generator=generator,
            **options,
            **kwargs,
        )

    return build
