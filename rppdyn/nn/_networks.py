"""Multilayer perceptrons of relaxed layers: EMLP, RPP-EMLP and MLP are one class with different pathways.

A strict network is checked for bottlenecks: between representations without a common part nothing passes.
"""

from __future__ import annotations

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Any, Generic, Literal, TypedDict, TypeVar, Unpack, cast, get_args, overload

import numpy as np
import torch
from jaxtyping import Bool, Float
from scipy.sparse import coo_array
from torch import Tensor, nn
from torch.nn import functional as F

from rppdyn.basis import isotypic
from rppdyn.groups import Group
from rppdyn.nn._bilinear import Bilinear
from rppdyn.nn._coefficients import ExactBuffers, check_layouts, layout_number
from rppdyn.nn._hidden import (
    Activation,
    Architecture,
    AtPoints,
    Gate,
    Points,
    Pointwise,
    activation_of,
    gated,
    hidden_representation,
    missing_types,
    points_hidden,
    product_channels,
    products_hidden,
    tensor_rank,
)
from rppdyn.nn._linear import FREE_SCALE, RelaxedLinear, bind, call_in_float32, chain_text, check_size, largest_group
from rppdyn.nn._normalisation import WARM_UP, BatchNorm
from rppdyn.nn._pathways import AffineMap, BreakingInputs, EquivariantPathway, named_pathways
from rppdyn.nn._products import ChannelProducts, product_maps, with_operands
from rppdyn.reps import Rep, RepType, Scalar
from rppdyn.reps._rep import is_int

Form = Literal["channelwise", "published"]
FORMS = get_args(Form)
Choice = bool | Form | Literal["auto"] | None

Weights = list[Any]
Hidden = int | Rep | RepType
N = TypeVar("N", bound="Network")

UNSEEN = 1e-5
"""Changes of the output below this share of it are rounding."""


class Network(nn.Module, ABC):
    """A network that runs with weights assembled before: ``weights = net.assemble(); net.apply(x, weights)``."""

    @abstractmethod
    def assemble(self) -> Any:
        """The weights, for :meth:`apply`, in a form that the network chooses."""

    @overload
    def apply(self: N, fn: Callable[[nn.Module], None], /) -> N: ...

    @overload
    def apply(self, x: Tensor, weights: Any = None) -> Tensor: ...

    def apply(self, x, weights=None):
        """The output, with weights from :meth:`assemble`. (A function in place of ``x`` is ``nn.Module.apply``.)"""
        if weights is None and not isinstance(x, Tensor):
            return super().apply(x)
        return self._run(x, self.assemble() if weights is None else weights)

    def forward(self, x: Tensor) -> Tensor:
        return self._run(x, self.assemble())

    @abstractmethod
    def _run(self, x: Tensor, weights: Any) -> Tensor:
        """The output for these weights."""


if TYPE_CHECKING:
    M = TypeVar("M", bound=nn.Module)

    class ModuleList(nn.ModuleList, Generic[M]):
        """``nn.ModuleList`` with the type of its modules, which torch's stubs lack."""

        def __iter__(self) -> Iterator[M]: ...

        @overload
        def __getitem__(self, idx: slice) -> ModuleList[M]: ...

        @overload
        def __getitem__(self, idx: int) -> M: ...

        def __getitem__(self, idx): ...

else:
    ModuleList = nn.ModuleList


OLD_PRODUCTS_HINT = (
    "networks of such a product of groups that were saved before their layers were features at points are built with "
    "architecture='tensor' (in a run's config.yaml, model: architecture: tensor)"
)


class HiddenBlock(nn.Module):
    """Linear into ``gated(rep_out)``, then the bilinear layer (identity and contractions) where there is one, then the gate."""

    linear: RelaxedLinear  # `merge` puts an nn.Linear in its place
    bilinear: Bilinear | ChannelProducts | AtPoints | None
    gate: Gate | Pointwise | AtPoints

    def __init__(self, rep_in: Rep, rep_out: Rep | Points, *, groups: Sequence[Group], variances: Sequence[int | float],
                 bilinear: Form | None, bilinear_maps: int | None, gain: int | float, free_scale: int | float,
                 activation: Activation, generator: torch.Generator | None):  # fmt: skip
        super().__init__()
        points, rep_out = (rep_out.rep, rep_out.inner) if isinstance(rep_out, Points) else (None, rep_out)

        def at_points(layer: Any, **options: Any) -> Any:
            """The layer, at each point if there are points."""
            return layer if points is None else AtPoints(layer, points, **options)

        channels = product_channels(rep_out) if bilinear_maps is None else bilinear_maps
        rows = with_operands(rep_out, channels) if bilinear == "channelwise" else gated(rep_out)
        self.linear = RelaxedLinear(
            rep_in, rows if points is None else rows.lift(points.G) * points,
            groups=groups, variances=variances, gain=gain, free_scale=free_scale, generator=generator,
        )  # fmt: skip
        self.bilinear = None
        variance = next(filter(None, variances[:-1]), 0)  # of the largest group that has a pathway
        options: dict[str, Any] = dict(variance=variance, generator=generator)
        if bilinear == "channelwise":
            self.bilinear = at_points(ChannelProducts(rep_out, channels=channels, **options))
        elif bilinear == "published":
            self.bilinear = Bilinear(gated(rep_out), maps=bilinear_maps, **options)
        if rep_out.is_permutation:
            self.gate = Pointwise(rep_out, activation)
        else:
            gate = Gate(
                rep_out, free_variance=variances[-1], free_scale=free_scale, activation=activation, generator=generator
            )
            self.gate = at_points(gate, outermost=True)

    def assemble(self) -> tuple:
        """Weights of the linear layer, the bilinear one and the gate; None for a layer that is absent."""
        bilinear = None if self.bilinear is None else self.bilinear.assemble()
        gate = None if isinstance(self.gate, Pointwise) else self.gate.assemble()
        return _assemble(self.linear), bilinear, gate

    def forward(self, x: Float[Tensor, "*batch in"], weights: tuple | None = None) -> Float[Tensor, "*batch out"]:
        weights = self.assemble() if weights is None else weights
        linear, *_ = weights
        if self.is_plain:
            return self.gate(_samples_first(x, *linear))
        y = self.samples_last(_samples_last(x, linear[0]), weights)
        return y.mT.view(*x.shape[:-1], y.shape[-2])

    @property
    def is_plain(self) -> bool:
        """True for a linear layer and a point-wise activation alone."""
        return isinstance(self.gate, Pointwise) and self.bilinear is None

    def samples_last(
        self, x: Float[Tensor, "*stack in samples"], weights: tuple
    ) -> Float[Tensor, "*stack out samples"]:
        """The same map for features with the samples last, as they lie in memory between layers."""
        linear, bilinear, gate = weights
        y = _affine(x, *linear)
        y = y if self.bilinear is None else call_in_float32(self.bilinear.samples_last, y, bilinear)
        gates = self.gate
        return gates.activation(y) if isinstance(gates, Pointwise) else call_in_float32(gates.samples_last, y, gate)


def _assemble(layer: RelaxedLinear | nn.Linear) -> AffineMap:
    return layer.assemble() if isinstance(layer, RelaxedLinear) else (layer.weight, layer.bias)


# Weights of several networks have one leading axis, and so have their features: one product does all.


def _samples_last(
    x: Float[Tensor, "*batch n"], weight: Float[Tensor, "*stack out n"]
) -> Float[Tensor, "*stack n samples"]:
    """Features with the samples last, as gates and bilinear layers take them."""
    return x.reshape(*weight.shape[:-2], -1, x.shape[-1]).mT


def _samples_first(x: Float[Tensor, "*batch in"], weight: Tensor, bias: Tensor | None) -> Float[Tensor, "*batch out"]:
    if weight.ndim == 2:
        return F.linear(x, weight, bias)
    samples = x.reshape(len(weight), -1, x.shape[-1])
    y = samples @ weight.mT if bias is None else torch.baddbmm(bias.unsqueeze(1), samples, weight.mT)
    return y.view(*x.shape[:-1], weight.shape[-2])


def _affine(
    x: Float[Tensor, "*stack in samples"], weight: Tensor, bias: Tensor | None
) -> Float[Tensor, "*stack out samples"]:
    if bias is None:
        return weight @ x
    return (torch.addmm if weight.ndim == 2 else torch.baddbmm)(bias.unsqueeze(-1), weight, x)


class RPPEMLP(Network, ExactBuffers):
    r"""An equivariant multilayer perceptron with a residual pathway prior (Finzi 2023, 2.6 and 3.4).

    Every linear layer is a sum of an equivariant pathway with prior variance :math:`\sigma_a^2` and a free one with
    :math:`\sigma_b^2`; biases and gates likewise. ``free_variance=0`` makes it an :class:`EMLP`, exactly equivariant;
    ``equivariant_variance=0`` a plain MLP where activations are point-wise, and a gated dense network otherwise.

    An integer width is shared out by the kind of group:

    - Finite groups of order up to 64, and up to the width: copies of the regular representation, with a point-wise activation.
    - Products of groups, of which some permute: features of the other factors at each of the points that are permuted
      (:class:`~rppdyn.nn._hidden.Points`).
    - Infinite groups: scalars, vectors, tensors up to the output's rank, and other types of input and output, with gates and
      :class:`~rppdyn.nn.ChannelProducts`, at about twice an MLP's cost. The width counts the rows of a linear layer, gates and
      operands included. ``bilinear="published"`` has the thesis's tensors and bilinear layers, at eight to ten times an MLP's.
    - All others: tensors with gates and bilinear layers. An activation acts on scalars alone.

    For a chain of groups, the largest first, every linear layer has an equivariant pathway for each (:class:`RelaxedLinear`):
    which subgroup survives can be learned. Hidden representations, gates and bilinear layers are those of the largest group,
    and so equivariant under all. Bilinear layers have the prior of the largest group whose variance is not 0.

    ``net(x)`` assembles the dense weights and applies them. A training step that runs the network several times
    assembles once: ``weights = net.assemble(); net.apply(x, weights)``; nothing is cached in between.

    Args:
        rep_in, rep_out: representations of input and output, bound or not; those of a factor of ``group`` are lifted.
        group: the symmetry group, where ``groups`` does not name several.
        hidden: channels per hidden layer, a representation, or a list with one of these per layer.
        num_layers: number of hidden layers, 3 unless ``hidden`` is a list.
        architecture: "auto", "regular" or "tensor"; how an integer width is shared out.
        bilinear: the bilinear layer of blocks. "channelwise" is :class:`ChannelProducts`; "published" or None is
            :class:`Bilinear`, in blocks with a gated part; True is :class:`Bilinear` in every block; False is none. "auto" is
            "channelwise" for infinite groups and layers of points, if the width has room for it, and otherwise "published".
        bilinear_maps: for :class:`Bilinear`, how many copies of a part serve as maps, None for its dimension; for
            :class:`ChannelProducts`, how many channels are multiplied, None for operands half as wide as the features.
        output_scale: multiplies the initial weights of the last layer, both pathways (0.01 for policies).
        free_scale: initial size of the free pathway relative to a layer of its own.
        groups: a chain in the place of ``group``, each a subgroup of the one before, given by some of its matrices.
        variances: with ``groups``, one for each of them and the free pathway's, in the place of the two variances.
        activation: activation of hidden features that a symmetry only permutes: "swish", "relu", "tanh", ..., or a class of
            `torch.nn`. All other features are gated by sigmoids.
        breaking: representation, type or text such as "V" of constant inputs through which a strict network can leave its
            symmetry (:class:`~rppdyn.nn._pathways.BreakingInputs`); None for none.
        breaking_variance: prior variance of the constant inputs.
        breaking_learned: False draws them from their prior and leaves them so.
        normalisation: "batch" or "renorm", of the inputs of each linear layer (:class:`BatchNorm`); None for none. Calls use
            running statistics; :meth:`on_batch`, for training, uses those of the batch.
        device: where parameters and buffers are; they are drawn on the CPU.
        generator: source of all random choices, the global one if None; the choices themselves are parameters and
            buffers, so a state dict rebuilds the network.
    Raises:
        ValueError: a representation of another group, a complex group, no pathway, an impossible hidden layer, or, without a
            free pathway, a layer that lets nothing of the input through; groups that are no chain, or given beside a group;
            variances of another number; no such activation.

    >>> from rppdyn.groups import Z
    >>> from rppdyn.reps import V, Scalar
    >>> net = RPPEMLP(V, V, Z(4), hidden=16, num_layers=1, generator=torch.Generator().manual_seed(0))
    >>> net(torch.ones(7, 4)).shape
    torch.Size([7, 4])
    """

    blocks: ModuleList[HiddenBlock]
    head: RelaxedLinear  # `merge` puts an nn.Linear in its place

    def __init__(self, rep_in: Rep | RepType, rep_out: Rep | RepType, group: Group | None = None,
                 hidden: Hidden | Sequence[Hidden] = 384, num_layers: int | None = None,
                 equivariant_variance: int | float = 1e5, free_variance: int | float = 1.0, *,
                 architecture: Architecture = "auto", bilinear: Choice = "auto", bilinear_maps: int | None = None,
                 output_scale: int | float = 1.0, free_scale: int | float = FREE_SCALE,
                 groups: Sequence[Group] | None = None, variances: Sequence[int | float] | None = None,
                 activation: Any = "swish", breaking: Rep | RepType | str | None = None,
                 breaking_variance: int | float = 1.0, breaking_learned: bool = True, normalisation: str | None = None,
                 device: torch.device | str | None = None, generator: torch.Generator | None = None):  # fmt: skip
        super().__init__()
        self.activation = activation_of(activation)
        if groups is not None or variances is not None:
            group = largest_group(group, groups, variances, (equivariant_variance, free_variance), rep_in, rep_out)
        elif group is None:
            raise ValueError("group=None: give the symmetry group, or groups=[...] with variances=[...] for a chain")
        self.group = group
        self.groups = (group,) if groups is None else tuple(groups)
        variances = (equivariant_variance, free_variance) if variances is None else tuple(variances)
        has_symmetry = any(variances[:-1])
        self.rep_in, self.rep_out = bind(rep_in, group), bind(rep_out, group)
        self.breaking: BreakingInputs | None = None
        rep = self.rep_in
        if breaking is not None:
            if not has_symmetry:
                raise ValueError(
                    f"breaking={breaking!r}: a network without an equivariant pathway has no symmetry to leave"
                )
            try:
                if isinstance(breaking, str):
                    from rppdyn.reps.notation import representation  # with pydantic, for text alone

                    breaking = representation(breaking, group, "")
                constants = bind(breaking, group)
            except ValueError as error:
                raise ValueError(f"breaking={str(error).strip()}") from None  # to which a command adds its section
            self.breaking = BreakingInputs(constants, breaking_variance, breaking_learned, generator)
            rep = rep + self.breaking.rep
        rep_wide = rep  # representation of x and the constants
        shapes, bilinear = self._choose_hidden(_list_hidden(hidden, num_layers), architecture, bilinear, has_symmetry)
        self.hidden = [shape.hidden if isinstance(shape, Points) else shape for shape in shapes]
        if has_symmetry:
            for inner, outer in pairwise([rep_wide, *self.hidden, self.rep_out]):
                (inner >> outer).require_countable()
        for name, scale in (("output_scale", output_scale), ("free_scale", free_scale)):
            if not 0 <= scale < math.inf:
                raise ValueError(f"{name}={scale!r}: give a number of at least 0")
        if bilinear not in (None, True, False, *FORMS):
            raise ValueError(
                f"bilinear={bilinear!r}: choose 'auto', {', '.join(map(repr, FORMS))}, True, False or None"
            )
        if bilinear and not has_symmetry:
            raise ValueError(
                f"bilinear={bilinear!r} needs the equivariant pathway: raise equivariant_variance or leave it out"
            )
        if normalisation not in (None, *WARM_UP):
            raise ValueError(f"normalisation={normalisation!r}: choose {', '.join(map(repr, WARM_UP))} or None")
        shared: dict[str, Any] = dict(
            groups=self.groups, variances=variances, free_scale=free_scale, generator=generator
        )
        in_hidden: dict[str, Any] = shared | dict(activation=self.activation)
        self.blocks = ModuleList()
        for i, (rep_hidden, shape) in enumerate(zip(self.hidden, shapes, strict=True)):
            form = _bilinear_form(bilinear, rep, shape) if has_symmetry else None
            gain = self.activation.gain if i else 1.0
            block = HiddenBlock(rep, shape, bilinear=form, bilinear_maps=bilinear_maps, gain=gain, **in_hidden)
            self.blocks.append(block)
            rep = rep_hidden
        self.head = RelaxedLinear(
            rep, self.rep_out, gain=output_scale * (self.activation.gain if self.hidden else 1.0), **shared
        )

        self.norms: ModuleList[BatchNorm] = ModuleList()
        if normalisation is not None:
            inputs = self.rep_in if has_symmetry else self.rep_in.dim * Scalar(group)
            self.norms.extend(BatchNorm(rep, warm_up=WARM_UP[normalisation]) for rep in (inputs, *self.hidden))
        check_bottlenecks(self)
        parts = [m for m in self.modules() if isinstance(m, ExactBuffers) and "layout" in m._buffers]
        if numbers := [number for part in parts for number in part.take_layout()]:
            between = (f"{len(list(layers))} x ({rep})" for rep, layers in groupby(self.hidden))
            words = " -> ".join([str(rep_wide), *between, str(self.rep_out)])
            place = torch.arange(len(numbers))
            self.register_layout(f"{words} of {chain_text(self.groups)}", [layout_number(torch.tensor(numbers), place)])
        self.register_state_dict_post_hook(pack_variances)
        if device is not None:
            self.to(device)

    def _choose_hidden(
        self, hidden: Sequence[Hidden], architecture: Architecture, bilinear: Choice, has_symmetry: bool
    ) -> tuple[list[Rep | Points], bool | Form | None]:
        """The hidden layers' features, and the form of bilinear layers; "auto" is resolved for both."""
        layers: list[Hidden | Points] = [*hidden]
        if architecture == "auto" and has_symmetry and bilinear in ("auto", "channelwise"):
            layers = [self._points(h) for h in layers]
        form: Any = bilinear
        if bilinear == "auto":
            has_vectors = len(self.group.lie_algebra) or any(isinstance(h, Points) for h in layers)
            form = "channelwise" if has_symmetry and has_vectors else None
        share: tuple[Any, ...] = (architecture,)
        if form == "channelwise" and (widths := [h for h in layers if is_int(h)]):
            inputs = self.rep_in if self.breaking is None else self.rep_in + self.breaking.rep
            rank = max(1, tensor_rank(self.rep_out))
            missing = missing_types(inputs, self.rep_out, rank)
            with_products = rank, missing or ()
            # room for a vector and one of each missing type, beside gates and operands
            has_room = all(tensor_rank(products_hidden(h, self.group, *with_products)) for h in widths)
            acts = missing is not None or tensor_rank(inputs) < 2  # matrices of the input, on vectors
            if (has_room and acts) or bilinear == "channelwise":
                share = architecture, *with_products
            else:
                form = None
        return [h if isinstance(h, Points) else self._hidden(h, *share) for h in layers], form

    def _hidden(self, hidden: Hidden, *share: Any) -> Rep:
        return hidden_representation(hidden, self.group, *share)

    def _points(self, hidden: Hidden | Points) -> Hidden | Points:
        """A layer of points for a width, if points suffice and the regular representation does not exist or fit."""
        order = self.group.order
        if not is_int(hidden) or hidden < 1 or (order is not None and order <= hidden):
            return hidden
        layer = points_hidden(int(hidden), self.rep_in, self.rep_out)
        self.hint = "" if layer is None else OLD_PRODUCTS_HINT
        return hidden if layer is None else layer

    def assemble(self) -> Weights:
        """The weights of all layers, assembled: a list of nested tuples of tensors, for :meth:`apply`.

        Weights of several networks (:class:`~rppdyn.nn.Ensemble`) have one leading axis, and so have their inputs.
        """
        *hidden, head = self._layers_weights()
        if not self.norms:
            return [*hidden, head]
        *norms, last = self.norms
        folded = [(norm.fold(*linear), *rest) for norm, (linear, *rest) in zip(norms, hidden, strict=True)]
        return [*folded, last.fold(*head)]

    def _layers_weights(self) -> Weights:
        layers: Weights = [*(block.assemble() for block in self.blocks), _assemble(self.head)]
        if self.breaking is not None:
            if self.blocks:
                linear, *rest = layers[0]
                layers[0] = (self.breaking.fold(*linear), *rest)
            else:
                layers[0] = self.breaking.fold(*layers[0])
        return layers

    def on_batch(self, x: Float[Tensor, "*stack batch in"]) -> tuple[Float[Tensor, "*stack batch out"], Tensor]:
        """The output of a normalised network with the statistics of this batch, and the new running statistics.

        The caller puts these in place; they are in the order of :attr:`norms`.
        """
        check_size(x, self.rep_in)
        *hidden, head = self._layers_weights()
        *norms, last = self.norms
        running = []
        for block, norm, (linear, *rest) in zip(self.blocks, norms, hidden, strict=True):
            folded, updated = norm.on_batch(x, *linear)
            x = block(x, (folded, *rest))
            running.append(updated)
        folded, updated = last.on_batch(x, *head)
        return _samples_first(x, *folded), torch.cat([*running, updated], -1)

    def _run(self, x: Float[Tensor, "*batch in"], weights: Weights) -> Float[Tensor, "*batch out"]:
        check_size(x, self.rep_in)
        *hidden, head = weights
        # ensembles have the samples last: gradients of weights then lie in memory as the weights do
        if all(block.is_plain for block in self.blocks) and head[0].ndim == 2:
            for block, block_weights in zip(self.blocks, hidden, strict=True):
                x = block(x, block_weights)
            return F.linear(x, *head)
        y = _samples_last(x, hidden[0][0][0] if hidden else head[0])
        for block, block_weights in zip(self.blocks, hidden, strict=True):
            y = block.samples_last(y, block_weights)
        return _affine(y, *head).mT.contiguous().view(*x.shape[:-1], self.rep_out.dim)

    def _load_from_state_dict(self, state_dict, prefix, *args, **kwargs):
        check_layouts(self, state_dict, prefix)
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)

    def gradient(self, x: Float[Tensor, "*batch in"], weights: Weights | None = None) -> Float[Tensor, "*batch in"]:
        """The gradient by ``x`` of a network with one output, such as a Hamiltonian; with weights from :meth:`assemble`."""
        if self.rep_out.dim != 1:
            raise ValueError(
                f"a gradient is of one number, and the output is {self.rep_out}, {self.rep_out.dim} of them"
            )
        weights = self.assemble() if weights is None else weights
        return torch.func.grad(lambda x: self._run(x, weights).sum())(x)

    def layers(self) -> list[tuple[str, nn.Module]]:
        """The layers by name, in the order of a forward pass: (norm,) (breaking,) linear, (bilinear,) gate, ..., head."""
        before: list[list[tuple[str, nn.Module]]] = [[] for _ in (*self.blocks, self.head)]  # before each linear layer
        for i, norm in enumerate(self.norms):
            before[i].append((f"norms.{i}", norm))
        if self.breaking is not None:
            before[0].append(("breaking", self.breaking))
        layers: list[tuple[str, nn.Module]] = []
        for i, block in enumerate(self.blocks):
            parts = ((name, getattr(block, name)) for name in ("linear", "bilinear", "gate"))
            layers += [*before[i], *((f"blocks.{i}.{name}", layer) for name, layer in parts if layer is not None)]
        return [*layers, *before[-1], ("head", self.head)]

    def pathway_variances(self) -> dict[str, dict[str, float]]:
        """``{layer: {pathway: prior variance}}``."""
        rounded = lambda x: float(f"{x:.12g}")  # noqa: E731  exp(log 10) is 10.000000000000002
        return _nest((layer, name, rounded(p.variance.item())) for layer, name, p in named_pathways(self))

    def pathway_norms(self) -> dict[str, dict[str, float]]:
        """``{layer: {pathway: Frobenius norm of its dense weight}}``; for pathways that are not linear, of the coefficients."""
        return _nest((layer, name, p.norm().item()) for layer, name, p in named_pathways(self))

    def extra_repr(self) -> str:
        return f"{self.rep_in} -> {self.rep_out}, {chain_text(self.groups)}"


def pack_variances(net: nn.Module, state_dict: dict[str, Tensor], prefix: str, local_metadata: Any) -> None:
    """Make variances and units in a state dict views of one tensor, as each tensor adds 300 bytes to a file; drop versions."""
    names = [key for key in state_dict if key.startswith(prefix) and key.endswith((".log_variance", ".unit_exact"))]
    are_buffers = not any(state_dict[name].ndim or state_dict[name].requires_grad for name in names)
    if names and are_buffers:
        state_dict.update(zip(names, torch.stack([state_dict[name] for name in names]).unbind(), strict=True))
    versions = getattr(state_dict, "_metadata", {})
    for key in [key for key in versions if key.startswith(prefix)]:
        del versions[key]


class Chained(Network):
    """The same network as a chain of its layers, each called as a module, so that forward hooks see its inputs.

    It is slower than the network: layers assemble their own weights at each call.
    """

    def __init__(self, net: RPPEMLP):
        super().__init__()
        self.net = net

    def assemble(self) -> None:
        """Nothing: each layer assembles its own weights."""

    def _run(self, x: Float[Tensor, "*batch in"], weights: None) -> Float[Tensor, "*batch out"]:
        for _, layer in self.net.layers():
            x = layer(x)
        return x


def _bilinear_form(bilinear: bool | Form | None, rep_in: Rep, rep_hidden: Rep | Points) -> Form | None:
    """The form of a block's bilinear layer, None for no layer.

    A channel-wise one needs vectors to multiply, and products that end in the hidden representation.
    """
    if isinstance(rep_hidden, Points):  # products are at each point, whatever other layers have room for
        bilinear, rep_hidden = "channelwise", rep_hidden.inner
    if bilinear == "channelwise":
        has_vectors = not (rep_hidden.is_permutation and rep_in.is_permutation)
        return "channelwise" if has_vectors and any(basis.rank for basis in product_maps(rep_hidden)) else None
    if bilinear in (None, "published"):
        bilinear = not rep_hidden.is_permutation
    return "published" if bilinear else None


def _list_hidden(hidden: Hidden | Sequence[Hidden], num_layers: int | None) -> list[Hidden]:
    if isinstance(hidden, Sequence) and not isinstance(hidden, str):
        if num_layers not in (None, len(hidden)):
            raise ValueError(f"num_layers={num_layers} but hidden lists {len(hidden)} layers: give one of them")
        return list(hidden)
    num_layers = 3 if num_layers is None else num_layers
    if not is_int(num_layers) or num_layers < 0:
        raise ValueError(f"num_layers={num_layers!r}: give a number of hidden layers, 0 or more")
    return [hidden] * num_layers


def _nest(triples) -> dict[str, dict[str, float]]:
    result: dict[str, dict[str, float]] = {}
    for layer, name, value in triples:
        result.setdefault(layer, {})[name] = value
    return result


class Options(TypedDict, total=False):
    """Arguments that :class:`EMLP` and :class:`MLP` pass on to :class:`RPPEMLP`, where they are described."""

    architecture: Architecture
    bilinear: Choice
    bilinear_maps: int | None
    output_scale: int | float
    free_scale: int | float
    activation: Any
    breaking: Rep | RepType | str | None
    breaking_variance: int | float
    breaking_learned: bool
    normalisation: str | None
    device: torch.device | str | None
    generator: torch.Generator | None


class EMLP(RPPEMLP):
    """An exactly equivariant multilayer perceptron: :class:`RPPEMLP` without free pathways."""

    def __init__(self, rep_in: Rep | RepType, rep_out: Rep | RepType, group: Group,
                 hidden: Hidden | Sequence[Hidden] = 384, num_layers: int | None = None,
                 equivariant_variance: int | float = 1e5, **options: Unpack[Options]):  # fmt: skip
        super().__init__(rep_in, rep_out, group, hidden, num_layers, equivariant_variance, 0.0, **options)


class MLP(RPPEMLP):
    """A plain multilayer perceptron: only free pathways.

    The representations give the sizes of input, output and, where ``hidden`` is one, of hidden layers; these are scalars.
    """

    def __init__(self, rep_in: Rep | RepType, rep_out: Rep | RepType, group: Group,
                 hidden: Hidden | Sequence[Hidden] = 384, num_layers: int | None = None,
                 free_variance: int | float = 1.0, **options: Unpack[Options]):  # fmt: skip
        super().__init__(rep_in, rep_out, group, hidden, num_layers, 0.0, free_variance, **options)

    def _hidden(self, hidden: Hidden, *share: Any) -> Rep:
        channels = int(hidden) if is_int(hidden) else hidden_representation(hidden, self.group, *share).dim
        return channels * Scalar(self.group)


def check_bottlenecks(net: RPPEMLP) -> None:
    """Refuse a strict network whose output can't depend on its input, and warn where parts of the output can't.

    A layer between representations without a common part has no equivariant map but zero, whatever is learned. The check
    follows the non-zero entries of the linear maps from input to output. Products are taken to reach all features, unless their
    operands are invariant.
    """
    depends = present = torch.ones(net.rep_in.dim, dtype=torch.bool)  # on the input; on it or on constant inputs
    is_invariant = False  # whether all features that are present are invariant
    for name, layer in net.layers():
        if isinstance(layer, RelaxedLinear):
            if not layer.equivariant_pathways or layer.free is not None:
                return
            widest = layer.equivariant_pathways[-1]
            is_invariant |= not any(
                present[index].any() for part, index in widest.rep_in.blocks() if not part.is_trivial
            )
            depends, present = (_reached_outputs(widest, mask) for mask in (depends, present))
            if not depends.any():
                part = "" if widest.weight is None else "what depends on the input in "
                raise ValueError(
                    f"{name} lets nothing through: no equivariant map but zero leads from {part}{layer.rep_in} to "
                    f"{layer.rep_out} of {widest.rep_in.G}. Give hidden layers parts that input and output share, such as "
                    "those of an integer width, or the layers a free pathway (RPPEMLP)"
                )
        elif isinstance(layer, BreakingInputs):
            depends, present = F.pad(depends, (0, layer.rep.dim)), F.pad(present, (0, layer.rep.dim), value=True)
        elif isinstance(layer, AtPoints) and layer.outermost:
            masks = _gated(cast(Gate, layer.layer), *(mask.view(-1, layer.points) for mask in (depends, present)))
            depends, present = (mask.T.flatten() for mask in masks)
        elif isinstance(layer, Gate):
            depends, present = _gated(layer, depends, present)
        elif not isinstance(layer, Pointwise | BatchNorm):  # a bilinear layer of any kind
            rep = cast(Rep, layer.rep)
            depends = torch.ones(rep.dim, dtype=torch.bool)
            if is_invariant:  # products reach the coordinates in which a vector invariant under H may differ from zero
                H = net.blocks[0].linear.equivariant_pathways[-1].rep_in.G  # the smallest group
                rows = (rep if H == rep.G else rep.restrict(H)).solve().sparse()[0]
                depends = torch.zeros_like(depends).index_fill_(0, rows, True)
            present = depends
    constant = [str(part) for part, index in net.rep_out.blocks() if not depends[index].any(1).all()]
    if net.breaking is not None and not _breaks_symmetry(net, net.breaking):
        warnings.warn(
            f"breaking={net.breaking.rep} of {net.group} breaks nothing: only invariant numbers of these constants reach the "
            "output; choose a type that the group moves and hidden layers have, or other hidden layers",
            stacklevel=3,
        )
    if unseen := _unseen_types(net):
        warnings.warn(
            f"types of dimension {', '.join(map(str, unseen))} in the input {net.rep_in} of {net.group} don't reach the "
            "output: hidden layers lack them, or products with them; raise the width, or list them in hidden=",
            stacklevel=3,
        )
    if constant:
        warnings.warn(
            f"parts {', '.join(constant)} of the output {net.rep_out} of {net.group} don't depend on the input: no equivariant "
            "map but zero leads to them from what does in the last hidden layer; give it such parts, or the network a free "
            "pathway (RPPEMLP)",
            stacklevel=3,
        )
    elif zeros := _unreached(widest):
        warnings.warn(
            f"{zeros} of the {net.rep_out.dim} numbers of the output {net.rep_out} of {net.group} (in some basis) are always "
            f"zero: no equivariant map leads to them from the last hidden layer, {widest.rep_in}; raise the width, or list "
            "tensors of the output's rank in hidden=",
            stacklevel=3,
        )


def _unreached(pathway: EquivariantPathway) -> int:
    """Dimensions of the output to which no equivariant map leads."""
    rows, columns, values = (entry.cpu().numpy() for entry in pathway.weight_map.entries())
    size_out, size_in = pathway.weight_map.shape
    maps = coo_array((values, (rows // size_in, columns * size_in + rows % size_in)))
    return size_out - int(np.linalg.matrix_rank((maps @ maps.T).toarray(), hermitian=True))


@torch.no_grad()
def _unseen_types(net: RPPEMLP) -> list[int]:
    """Dimensions of the irreducible types of the input on which the output doesn't depend; empty where types aren't known."""
    try:
        adapted = isotypic([net.rep_in])
    except ValueError:
        return []
    along = torch.randn(16, net.rep_in.dim, generator=torch.Generator().manual_seed(0))  # coordinates by types
    u = adapted.u[0].to(along)
    unseen, y = [], net(along @ u.mT)
    for kind in adapted.types:
        changed = along.clone()
        changed[:, kind.starts[0] : kind.starts[0] + kind.dim * kind.multiplicities[0]] *= -0.5
        if (net(changed @ u.mT) - y).norm() < UNSEEN * y.norm():
            unseen.append(kind.dim)
    return unseen


@torch.no_grad()
def _breaks_symmetry(net: RPPEMLP, breaking: BreakingInputs) -> bool:
    """Compare a network with random constants to its images under random elements; True if they differ."""
    generator = torch.Generator().manual_seed(0)
    before, x = breaking.vector.clone(), torch.randn(16, net.rep_in.dim, generator=generator)
    b, g = torch.randn(before.shape, generator=generator), net.group.samples(4, generator)
    breaking.vector.copy_(b if breaking.unit is None else b / breaking.unit)
    y = net(x)
    differences = net(x @ net.rep_in.rho(g).to(x).mT) - y @ net.rep_out.rho(g).to(x).mT
    breaking.vector.copy_(before)
    return bool(differences.norm() > UNSEEN * y.norm()) or not y.any()


def _gated(gate: Gate, depends: Tensor, present: Tensor) -> tuple[Tensor, Tensor]:
    """Masks of a gate's outputs: those that depend on the input, themselves or by their gates, and those that are present."""
    order = torch.arange(len(depends)) if gate.order is None else gate.order
    inverse = torch.arange(gate.rep.dim) if gate.inverse is None else gate.inverse
    depends, present = depends[order], present[order]
    opened = depends[gate.gates]
    depends, present = depends[gate.num_gates :], present[gate.num_gates :]
    return (depends | (present & opened))[inverse], present[inverse]


def _reached_outputs(pathway: EquivariantPathway, depends: Bool[Tensor, " in"]) -> Bool[Tensor, " out"]:
    rows, _, values = pathway.weight_map.entries()
    size_out, size_in = pathway.weight_map.shape
    rows = rows[values != 0].cpu()
    rows = rows[depends[rows % size_in]]
    return torch.zeros(size_out, dtype=torch.bool).index_fill_(0, rows // size_in, True)
