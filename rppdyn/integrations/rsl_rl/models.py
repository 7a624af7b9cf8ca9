"""Relaxed equivariant actors and critics as rsl_rl's `class_name` models: multilayer perceptron and gated recurrent unit."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import torch
from rsl_rl.models import MLPModel, RNNModel
from torch import Tensor, nn
from torch.nn.utils import parametrize

from rppdyn.envs._spec import SymmetrySpec, representation
from rppdyn.integrations.augmentation import group_elements, space_of_groups
from rppdyn.nn import RPPEMLP, RelaxedLinear, merge
from rppdyn.nn._ensemble import call_with
from rppdyn.nn._hidden import regular_hidden
from rppdyn.nn._networks import Network
from rppdyn.priors import negative_log_prior
from rppdyn.reps import Rep, Scalar


def _mean_over(sets: Tensor, x: Tensor) -> Tensor:
    """Each entry's mean over its set."""
    count = torch.zeros(int(sets.max()) + 1, dtype=x.dtype, device=x.device)
    total = count.clone().index_add_(0, sets, x)
    return (total / count.index_add_(0, sets, torch.ones_like(x)))[sets]


class Tied(nn.Module):
    """Parametrisation of a vector (n,) in which entries of one set are equal.

    Args:
        sets: the number of each entry's set (`Rep.components`).
    """

    sets: Tensor

    def __init__(self, sets: Tensor):
        super().__init__()
        self.register_buffer("sets", sets)

    def forward(self, x: Tensor) -> Tensor:
        return _mean_over(self.sets, x)


class PooledNormalization(nn.Module):
    r"""Normalisation by a running mean and standard deviation that are invariant under a symmetry.

    The mean is projected on the invariants of the group, and variances are pooled over the entries that it mixes:
    :math:`\rho(g)(x - \mu)/\sigma = (\rho(g) x - \mu)/\sigma`.

    Args:
        rep: representation of the features.
        elements: all elements of the group.
        eps: added to the standard deviation.
    """

    mean: Tensor
    var: Tensor
    count: Tensor
    sets: Tensor
    projector: Tensor

    def __init__(self, rep: Rep, elements: Tensor, eps: float = 1e-2):
        super().__init__()
        self.eps = eps
        self.register_buffer("mean", torch.zeros(rep.dim))
        self.register_buffer("var", torch.ones(rep.dim))
        self.register_buffer("count", torch.tensor(0, dtype=torch.long))
        self.register_buffer("sets", rep.components)
        self.register_buffer("projector", rep.rho(elements).mean(0))

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.mean) / (self.var.sqrt() + self.eps)

    @torch.no_grad()
    def update(self, x: Tensor) -> None:
        """Add a batch (n, dim) to the statistics."""
        if not self.training:
            return
        self.count += len(x)
        rate = len(x) / self.count
        mean = (self.projector @ x.mean(0).double()).to(x)
        mean = torch.where(mean.abs() < 1e-12, 0.0, mean)  # rounding, for entries whose signs flip
        var = _mean_over(self.sets, x.var(0, unbiased=False) + (x.mean(0) - mean) ** 2)
        delta = mean - self.mean
        self.mean += rate * delta
        self.var += rate * (var - self.var + _mean_over(self.sets, delta * (mean - self.mean)))


class Assembled:
    """The dense weights of a module. Without gradients they are kept until parameters change.

    A rollout runs the network at every step with the same parameters.
    """

    def __init__(self) -> None:
        self._key: tuple | None = None
        self._weights: Any = None

    def __call__(self, module: nn.Module, assemble: Callable[[], Any]) -> Any:
        """The weights.

        Args:
            module: the module whose parameters determine them.
            assemble: computes them.
        """
        if torch.is_grad_enabled() or torch.compiler.is_compiling():  # compiled or exported tensors have no addresses
            return assemble()
        key = tuple((p.data_ptr(), p._version, p.dtype) for p in module.parameters())
        if key != self._key:
            self._key, self._weights = key, assemble()
        return self._weights

    def __deepcopy__(self, memo: dict) -> Assembled:
        return Assembled()


class RelaxedGRU(nn.Module):
    r"""A gated recurrent unit of relaxed linear layers, whose hidden state transforms by a permutation representation.

    .. math:: r = \sigma(W_r x + U_r h),\quad z = \sigma(W_z x + U_z h),\quad
              n = \tanh(W_n x + r \odot U_n h),\quad h' = (1 - z) \odot n + z \odot h

    Gates act entry by entry, so permutations of the hidden state commute with them. PyTorch's own kernel runs on the layers'
    dense weights.

    Args:
        rep_in: representation of the input.
        rep_hidden: representation of the hidden state; permutes its entries.
        num_layers: number of stacked units.
        variances: prior variances of the equivariant and the free pathway.
        generator: random generator of the initial weights.
    Raises:
        ValueError: the hidden representation is no permutation.
    """

    def __init__(
        self,
        rep_in: Rep,
        rep_hidden: Rep,
        num_layers: int = 1,
        variances: Sequence[float] = (1e5, 1.0),
        generator: torch.Generator | None = None,
    ):
        super().__init__()
        if not rep_hidden.is_permutation:
            raise ValueError(
                f"the hidden state's {rep_hidden} is no permutation, which gates need; use the regular one"
            )
        self.rep_hidden, self.num_layers, self.hidden_size = rep_hidden, num_layers, rep_hidden.dim
        options: dict[str, Any] = dict(
            equivariant_variance=variances[0], free_variance=variances[1], generator=generator
        )
        reps = [rep_in, *[rep_hidden] * (num_layers - 1)]
        # one layer for each gate: a joint layer would have the same maps, but solve them as one larger problem
        self.inputs = nn.ModuleList(RelaxedLinear(rep, rep_hidden, **options) for rep in reps for _ in range(3))
        self.recurrent = nn.ModuleList(RelaxedLinear(rep_hidden, rep_hidden, **options) for _ in reps for _ in range(3))
        self._assembled = Assembled()

    def flat_weights(self) -> list[Tensor]:
        """Dense weights and biases in the order of PyTorch's kernel: input, hidden, and their biases, for each layer."""
        flat: list[Tensor] = []
        for layer in range(self.num_layers):
            gates = slice(3 * layer, 3 * layer + 3)
            sides = [
                [cast(RelaxedLinear, gate).assemble() for gate in side[gates]] for side in (self.inputs, self.recurrent)
            ]
            flat += [torch.cat([weight for weight, _ in side]) for side in sides]
            flat += [torch.cat([bias for _, bias in side if bias is not None]) for side in sides]
        return flat

    def forward(self, x: Tensor, h: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Outputs (time, batch, hidden) of inputs (time, batch, n), and the last hidden state (layers, batch, hidden)."""
        if h is None:
            h = x.new_zeros(self.num_layers, x.shape[1], self.hidden_size)
        weights = self._assembled(self, self.flat_weights)
        return torch._VF.gru(x, h, weights, True, self.num_layers, 0.0, self.training, False, False)

    def merged(self) -> nn.GRU:
        """The same function as PyTorch's own module, for deployment."""
        weights = self.flat_weights()
        unit = nn.GRU(self.inputs[0].rep_in.dim, self.hidden_size, self.num_layers, device="meta")  # draws no weights
        unit = unit.to_empty(device=weights[0].device)
        with torch.no_grad():
            for parameter, value in zip(unit.parameters(), weights, strict=True):
                parameter.copy_(value)
        return unit


def add_prior(modules: Sequence[nn.Module], transitions: int) -> None:
    """Let each backward pass add the gradient of the negative log prior, divided by the number of transitions.

    The prior is quadratic in every parameter, so its gradient is a constant times the parameter.
    """
    for module in modules:
        parameters = {name: p for name, p in module.named_parameters() if p.requires_grad}
        ones = {name: torch.ones_like(p).requires_grad_() for name, p in parameters.items()}
        prior = call_with(module, ones, negative_log_prior)
        slopes = torch.autograd.grad(prior, list(ones.values()), allow_unused=True)
        for p, slope in zip(parameters.values(), slopes, strict=True):
            if slope is not None:
                p.register_hook(partial(_pull, p, slope / transitions))


def _pull(parameter: nn.Parameter, slope: Tensor, gradient: Tensor) -> Tensor:
    """Add slope * parameter to a gradient."""
    return gradient + slope.to(gradient) * parameter.detach()


class _Relaxed:
    """Base of both models: features, networks, statistics and standard deviations over one spec.

    `_prepare` runs before rsl_rl's constructor, when `nn.Module` accepts attributes that are neither parameters nor modules.
    """

    spec: SymmetrySpec

    def _prepare(
        self, obs_groups: Mapping[str, Sequence[str]], obs_set: str, output_dim: int, spec: Any,
        groups: Mapping[str, str] | None, equivariant_variance: float, free_variance: float, seed: int,
    ) -> None:  # fmt: skip
        spec = SymmetrySpec.from_dict(spec)
        if obs_set not in obs_groups:
            raise ValueError(f"obs_groups has no {obs_set!r}; it has {', '.join(obs_groups)}")
        if not obs_groups[obs_set]:
            raise ValueError(f"obs_groups lists no observation group of {obs_set!r}; name some")
        space = space_of_groups(spec, [dict(groups or {}).get(name, name) for name in obs_groups[obs_set]])
        acts = obs_set in ("actor", "student", "teacher")
        if acts and output_dim != spec.action.dim:
            raise ValueError(
                f"the environment has {output_dim} actions, the spec {spec.action.dim}; list the joints that move"
            )
        if acts and not spec.action_rep.is_signed_permutation:
            raise ValueError(
                f"{spec.action_rep} is no signed permutation, which a diagonal Gaussian needs; choose a subgroup"
            )
        self.spec, self._space = spec, space
        self._rep_in = representation(spec.group, space, f"{obs_set} observation")
        self._rep_out = spec.action_rep if acts else output_dim * Scalar(spec.group)
        self._origin = spec.action.origin if acts and not spec.action.is_centred else None
        self._variances, self._generator = (equivariant_variance, free_variance), torch.Generator().manual_seed(seed)

    def _network(
        self, rep_in: Rep, hidden_dims: Sequence[int], output_scale: float, rep_out: Rep | None = None
    ) -> RPPEMLP:
        equivariant, free = self._variances
        rep_out = self._rep_out if rep_out is None else rep_out
        return RPPEMLP(
            rep_in, rep_out, self.spec.group, hidden=list(hidden_dims), equivariant_variance=equivariant,
            free_variance=free, output_scale=output_scale, generator=self._generator,
        )  # fmt: skip

    def _build(self, encoder: Mapping[str, Any] | None, hidden_dims: Sequence[int], output_scale: float) -> Network:
        """Build the network; with an encoder for some of the features, such as a height scan, if its options are given."""
        if encoder is None:
            return self._network(self._rep_in, hidden_dims, output_scale)
        if not isinstance(encoder, Mapping):
            raise ValueError(
                f"encoder={encoder!r} must be a mapping, such as {{'entries': 'height_scan', 'latent_dim': 64}}"
            )
        if unknown := set(encoder) - {"entries", "hidden_dims", "latent_dim"}:
            raise ValueError(f"encoder has no option {min(unknown)!r}; known: entries, hidden_dims, latent_dim")
        entries = str(encoder.get("entries", "height_scan"))
        is_scan = torch.tensor([entries in entry.name for entry in self._space.features])
        if not is_scan.any() or is_scan.all():
            raise ValueError(
                f"encoder: entries={entries!r} names {int(is_scan.sum())} of {len(is_scan)} entries; name some"
            )
        scan, rest = torch.nonzero(is_scan).ravel(), torch.nonzero(~is_scan).ravel()
        matrices = torch.tensor(np.array(self._space.discrete_generators), dtype=torch.float64)
        if matrices[:, rest][:, :, scan].any() or matrices[:, scan][:, :, rest].any():
            raise ValueError(f"encoder: a symmetry mixes entries {entries!r} with others; choose whole terms")
        part = lambda index: Rep.from_generators(  # noqa: E731
            self.spec.group, discrete_generators=matrices[:, index][:, :, index], name="entries"
        )
        latent = regular_hidden(int(encoder.get("latent_dim", 64)), self.spec.group)
        scan_encoder = self._network(part(scan), encoder.get("hidden_dims", (128,)), 1.0, latent)
        return EncodedNetwork(scan_encoder, self._network(part(rest) + latent, hidden_dims, output_scale), scan, rest)

    def as_jit(self) -> nn.Module:
        """The merged policy for rsl_rl's export to TorchScript, which can't compile its parts: they are traced."""
        model, trace = self._exported(), torch.jit.trace
        x = torch.zeros(1, model.obs_dim)
        y = model.obs_normalizer(x)
        h = y if model.rnn.rnn is None else model.rnn.rnn(y[None])[0][0].detach()
        with warnings.catch_warnings(action="ignore", category=torch.jit.TracerWarning):  # sizes become constants
            model.obs_normalizer, model.mlp = trace(model.obs_normalizer, x), trace(model.mlp, h)
        return cast(Any, super(_Relaxed, type(self))).as_jit(model)

    def as_onnx(self, verbose: bool = False) -> nn.Module:
        """The merged policy for rsl_rl's export to ONNX."""
        return cast(Any, super(_Relaxed, type(self))).as_onnx(self._exported(), verbose)

    def _exported(self: Any) -> Any:
        """The attributes that rsl_rl's exporters copy, with the encoding, which they leave out, in the normaliser."""
        policy = self.merged().cpu()
        features, unit = _Deployed(policy.space, policy.normalizer, nn.Identity()), getattr(policy, "unit", None)
        return SimpleNamespace(obs_normalizer=features, rnn=SimpleNamespace(rnn=unit), mlp=policy.head,
                               distribution=self.distribution, obs_dim=self.obs_dim)  # fmt: skip

    @staticmethod
    def _check_count(name: str, value: Any, minimum: int, factor: int = 1) -> None:
        """Refuse a value that is no integer of at least ``minimum``, or no multiple of ``factor``."""
        if not isinstance(value, int) or value < minimum or value % factor:
            multiple = f", a multiple of {factor}" if factor > 1 else ""
            raise ValueError(f"{name}={value!r} must be a whole number of at least {minimum}{multiple}")

    def _finish(self, model: Any, obs_normalization: bool, networks: Sequence[nn.Module], transitions: int) -> None:
        """Install equivariant normalisation and standard deviations, and the prior's gradient."""
        elements = group_elements(self.spec.group)
        if obs_normalization:
            model.obs_normalizer = PooledNormalization(self._rep_in, elements)
        distribution = model.distribution
        if distribution is not None:
            if distribution.input_dim != self._rep_out.dim:
                raise ValueError(
                    f"{type(distribution).__name__} takes {distribution.input_dim} numbers of the network, which gives the "
                    f"{self._rep_out.dim} means; use GaussianDistribution"
                )
            for name in ("std_param", "log_std_param"):
                if hasattr(distribution, name):
                    parametrize.register_parametrization(distribution, name, Tied(self._rep_out.components))
        if transitions:
            add_prior(networks, transitions)


class EncodedNetwork(Network):
    """A network whose inputs are some of the features, and an encoder's output for the others.

    Args:
        encoder: network of the features `scan`.
        network: network of the features `rest`, followed by the encoder's output.
        scan, rest: indices of features.
    """

    scan: Tensor
    rest: Tensor

    def __init__(self, encoder: RPPEMLP, network: RPPEMLP, scan: Tensor, rest: Tensor):
        super().__init__()
        self.encoder, self.network = encoder, network
        self.register_buffer("scan", scan)
        self.register_buffer("rest", rest)

    def assemble(self) -> tuple[Any, Any]:
        """Weights of encoder and network."""
        return self.encoder.assemble(), self.network.assemble()

    def _run(self, x: Tensor, weights: tuple[Any, Any]) -> Tensor:
        """The output (..., m) of features (..., f)."""
        latent = self.encoder.apply(x[..., self.scan], weights[0])
        return self.network.apply(torch.cat([x[..., self.rest], nn.functional.silu(latent)], -1), weights[1])


class _Head(nn.Module):
    """The network, plus the fixed point of the action."""

    def __init__(self, network: Network, origin: Sequence[float] | None):
        super().__init__()
        self._assembled = Assembled()
        self.network = network
        self.origin: Tensor | None
        self.register_buffer("origin", None if origin is None else torch.tensor(origin, dtype=torch.float32))

    def forward(self, x: Tensor) -> Tensor:
        y = self.network.apply(x, self._assembled(self.network, self.network.assemble))
        return y if self.origin is None else y + self.origin


class RelaxedMLPModel(_Relaxed, MLPModel):
    """rsl_rl's MLP model with a relaxed equivariant network.

    Equivariant pathways have a wide prior, free ones a narrow one. Hidden layers are copies of the regular representation with
    swish. Entries that the symmetry mixes share statistics of observations and a standard deviation, so that with
    `free_variance=0` the whole policy is exactly equivariant.

    Args:
        obs, obs_groups, obs_set, output_dim, hidden_dims, obs_normalization, distribution_cfg: as in rsl_rl.
        activation: accepted and not used: layers have swish, scaled to keep the size of features.
        spec: the symmetry, or the dictionary that its `to_dict` returns, with the environment's observation groups.
        groups: names of the spec's groups by the environment's names, if they differ.
        equivariant_variance, free_variance: prior variances of the pathways; 0 removes one.
        transitions: number of transitions by which the prior is divided, those of an iteration; 0 leaves the prior out.
        output_scale: initial size of the output.
        seed: seed of the initial weights.
        encoder: for a height scan or image: `entries`, a part of their names ("height_scan"), `hidden_dims` and `latent_dim`.
    Raises:
        ValueError: groups or sizes that the spec does not have, entries for an encoder that the symmetry mixes with others, or
            an action representation that is no signed permutation.
    """

    def __init__(
        self, obs: Any, obs_groups: dict[str, list[str]], obs_set: str, output_dim: int,
        hidden_dims: Sequence[int] = (256, 256, 256), activation: str = "swish", obs_normalization: bool = False,
        distribution_cfg: dict | None = None, *, spec: SymmetrySpec | Mapping[str, Any],
        groups: Mapping[str, str] | None = None, equivariant_variance: float = 1e5, free_variance: float = 1.0,
        transitions: int = 100_000, output_scale: float = 0.1, seed: int = 0, encoder: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        self._check_count("transitions", transitions, 0)
        self._prepare(obs_groups, obs_set, output_dim, spec, groups, equivariant_variance, free_variance, seed)
        MLPModel.__init__(
            self, obs, obs_groups, obs_set, output_dim, (1,), "elu", False, _copy_config(distribution_cfg)
        )
        _check_size(self)
        self.group_sizes = [int(obs[name].shape[-1]) for name in self.obs_groups]
        self.obs_normalization = obs_normalization
        network = self._build(encoder, hidden_dims, output_scale)
        self.mlp = _Head(network, self._origin)
        self._finish(self, obs_normalization, [network], transitions)

    def get_latent(self, obs: Any, masks: Tensor | None = None, hidden_state: Any = None) -> Tensor:
        """Normalised features (..., f) of the observation groups."""
        return self.obs_normalizer(self._features(obs))

    def _features(self, obs: Any) -> Tensor:
        return self._space.encode(torch.cat([obs[group] for group in self.obs_groups], dim=-1))

    def update_normalization(self, obs: Any) -> None:
        """Add a batch to the statistics of features."""
        if self.obs_normalization:
            self.obs_normalizer.update(self._features(obs).flatten(0, -2))

    def merged(self) -> nn.Module:
        """The deterministic policy as a plain module: raw observation groups, concatenated, to the mean action."""
        return _Deployed(self._space, self.obs_normalizer, _Head(cast(Any, merge(self.mlp.network)), self._origin))


class RelaxedRNNModel(_Relaxed, RNNModel):
    """rsl_rl's recurrent model with a relaxed gated recurrent unit, whose hidden state transforms with the observation.

    Args:
        rnn_hidden_dim: size of the hidden state, in copies of the regular representation.
        rnn_num_layers: number of stacked units.
        rnn_type: "gru".
        others: as in `RelaxedMLPModel`.
    Raises:
        ValueError: another kind of unit; or as in `RelaxedMLPModel`.
    """

    def __init__(
        self, obs: Any, obs_groups: dict[str, list[str]], obs_set: str, output_dim: int,
        hidden_dims: Sequence[int] = (256, 256, 256), activation: str = "swish", obs_normalization: bool = False,
        distribution_cfg: dict | None = None, rnn_type: str = "gru", rnn_hidden_dim: int = 256, rnn_num_layers: int = 1, *,
        spec: SymmetrySpec | Mapping[str, Any], groups: Mapping[str, str] | None = None, equivariant_variance: float = 1e5,
        free_variance: float = 1.0, transitions: int = 100_000, output_scale: float = 0.1, seed: int = 0,
    ) -> None:  # fmt: skip
        if rnn_type.lower() != "gru":
            raise ValueError(f"rnn_type={rnn_type!r}: a relaxed recurrent model is a gru")
        self._check_count("transitions", transitions, 0)
        self._check_count("rnn_num_layers", rnn_num_layers, 1)
        self._prepare(obs_groups, obs_set, output_dim, spec, groups, equivariant_variance, free_variance, seed)
        self._check_count("rnn_hidden_dim", rnn_hidden_dim, 1, self.spec.group.order or 1)
        RNNModel.__init__(
            self, obs, obs_groups, obs_set, output_dim, (1,), "elu", False, _copy_config(distribution_cfg), "gru", 1
        )
        _check_size(self)
        self.group_sizes = [int(obs[name].shape[-1]) for name in self.obs_groups]
        self.obs_normalization = obs_normalization
        rep_hidden = regular_hidden(rnn_hidden_dim, self.spec.group)
        self.latent_dim = rnn_hidden_dim
        self.rnn.rnn = RelaxedGRU(self._rep_in, rep_hidden, rnn_num_layers, self._variances, self._generator)
        network = self._network(rep_hidden, hidden_dims, output_scale)
        self.mlp = _Head(network, self._origin)
        self._finish(self, obs_normalization, [network, self.rnn.rnn], transitions)

    update_normalization = RelaxedMLPModel.update_normalization
    _features = RelaxedMLPModel._features

    def get_latent(self, obs: Any, masks: Tensor | None = None, hidden_state: Any = None) -> Tensor:
        """Hidden state of the unit after the observation, (..., h)."""
        latent = self.obs_normalizer(self._features(obs))
        return self.rnn(latent, masks, hidden_state).squeeze(0)

    def transform_hidden_state(self, g: Tensor, hidden_state: Tensor) -> Tensor:
        """The image of a hidden state (layers, batch, h) under an element of the group."""
        rho = self.rnn.rnn.rep_hidden.rho(torch.as_tensor(g))
        return hidden_state @ rho.to(hidden_state).mT

    def merged(self) -> nn.Module:
        """The deterministic policy as a plain module: features and hidden state to mean action and hidden state."""
        head = _Head(cast(Any, merge(self.mlp.network)), self._origin)
        return _DeployedRecurrent(self._space, self.obs_normalizer, self.rnn.rnn.merged(), head)


class _Deployed(nn.Module):
    """A deterministic policy without recurrence: encoding, normalisation and network."""

    def __init__(self, space: Any, normalizer: nn.Module, head: nn.Module):
        super().__init__()
        self.space, self.normalizer, self.head = space, copy.deepcopy(normalizer), head
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.normalizer(self.space.encode(x)))


class _DeployedRecurrent(_Deployed):
    def __init__(self, space: Any, normalizer: nn.Module, unit: nn.GRU, head: nn.Module):
        super().__init__(space, normalizer, head)
        self.unit = unit

    def forward(self, x: Tensor, hidden_state: Tensor | None = None) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        y, hidden_state = self.unit(self.normalizer(self.space.encode(x))[None], hidden_state)
        return self.head(y[0]), hidden_state


def _copy_config(config: dict | None) -> dict | None:
    """Copy a configuration, since rsl_rl removes entries from it."""
    if not (config is None or isinstance(config, Mapping)):
        raise ValueError(
            f"distribution_cfg={config!r} must be a mapping, such as {{'class_name': 'GaussianDistribution'}}"
        )
    return None if config is None else dict(config)


def _check_size(model: Any) -> None:
    if model.obs_dim != model._space.dim:
        raise ValueError(
            f"observation groups {', '.join(model.obs_groups)} have {model.obs_dim} entries, the spec {model._space.dim}; "
            "list the terms as the environment has them"
        )
