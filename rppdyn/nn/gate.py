"""The gated nonlinearity, and its relaxed form with a free activation per channel."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from rppdyn.nn.activations import SWISH, Activation, activation_of
from rppdyn.nn.curvature import Kronecker, of_gradients
from rppdyn.nn.derivatives import PullBack, evaluate, evaluate_vjp, plain_vjp
from rppdyn.nn.gating import Gating
from rppdyn.nn.hidden import gated, is_pointwise
from rppdyn.nn.linear import FREE_SCALE, bind, check_size
from rppdyn.nn.pathways import Pathway, prior_unit, written
from rppdyn.reps import Rep

__all__ = ["Gate", "Pointwise", "GatePathway"]


class GatePathway(Pathway):
    r"""The free part of a gate, ``c * f(x)`` with the activation f, :math:`c \sim N(0, \sigma_b^2)`, one per channel."""

    is_free = True

    def __init__(self, channels: int, variance: int | float, *, scale: int | float = FREE_SCALE,
                 activation: Activation = SWISH, generator: torch.Generator | None = None):  # fmt: skip
        super().__init__(variance)
        self.activation = activation
        unit = prior_unit(variance)
        self.register_unit(unit)
        self.weight = nn.Parameter(scale / unit * torch.randn(channels, generator=generator))

    def coefficients(self) -> tuple[Tensor, ...]:
        return (self.in_units(self.weight),)

    def forward(self, x: Float[Tensor, "*batch channels"], c: Float[Tensor, " channels"] | None = None) -> Tensor:
        return (self.coefficients()[0] if c is None else c) * self.activation(x)

    def curvature(
        self, x: Float[Tensor, "N *places gated"], g: Float[Tensor, "S N *places channels"]
    ) -> list[Kronecker]:
        """One number for each channel, exact; of the gate's input the last channels are its features."""
        used = (self.activation(x[..., -g.shape[-1] :]) * g).double()
        used = used.reshape(*g.shape[:2], -1, g.shape[-1]).sum(2).square().sum((0, 1))
        return [Kronecker(torch.full_like(used, len(x))[:, None, None], used[:, None, None])]

    def gradient_curvature(self, weight: Float[Tensor, "K channels"], bias: Tensor | None = None) -> list[Kronecker]:
        """One number for each channel, exact; there is no bias."""
        return [of_gradients(weight.mT[..., None, None])]

    def extra_repr(self) -> str:
        return f"{self.weight.numel()} channels, variance={written(self.log_variance)}"


class Pointwise(nn.Module):
    """An activation of every coordinate, for representations that only permute them; an odd one, for signs, too.

    Args:
        activation: its name, or a class of `torch.nn` (:func:`~rppdyn.nn.activations.activation_of`).
    Raises:
        ValueError: naming a part that an activation per coordinate would not commute with; no such activation; the
            representation is complex, or bound to no group.
    """

    def __init__(self, rep: Rep, activation: Any = SWISH):
        super().__init__()
        rep = bind(rep, None)
        self.activation = activation_of(activation)
        for part, _ in rep.blocks():
            if not (is_pointwise(part) or (self.activation.is_odd and part.is_signed_permutation)):
                raise ValueError(
                    f"a point-wise activation breaks the symmetry of {part} in {rep}: its coordinates are not merely "
                    "permuted; use Gate"
                )
        self.rep = rep

    def forward(self, x: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch n"]:
        check_size(x, self.rep)
        return self.activation(x)

    def vjp(self, x: Float[Tensor, "*stack n samples"]) -> tuple[Tensor, PullBack]:
        """The activation of features with the samples last, and the function from a cotangent of it to that of ``x``."""
        if self.activation is not SWISH:
            return plain_vjp(self.activation, x)

        def pull_back(g: Tensor) -> Tensor:
            s = x.sigmoid()
            return g * (s * (1 + x * (1 - s)))

        return F.silu(x), pull_back

    def extra_repr(self) -> str:
        return f"{self.rep}" + ("" if self.activation is SWISH else f", {self.activation.name}")


class Gate(nn.Module):
    r"""``gate(x) = sigmoid(g) x + c swish(x)``: equivariant for ``c = 0``, with a free swish per channel otherwise.

    Scalars and permutation-like parts gate themselves (swish); each other part, sign representations and pseudoscalars
    included, is multiplied by the sigmoid of a scalar of its own, which the previous layer puts first
    (``gated(rep)``). An ``activation`` other than swish is in the place of swish, for those parts and in the relaxed term;
    what is gated stays gated by sigmoids. The relaxed term exists where ``free_variance`` is positive, with prior
    :math:`c \sim N(0, \sigma_b^2)` (Finzi 2023, 3.4, footnote 1).

    Args:
        rep: representation of the output; the input has that of ``gated(rep)``.
        activation: its name, or a class of `torch.nn`.
    Raises:
        ValueError: no such activation; the representation is complex, or bound to no group.
    """

    gates: Tensor
    order: Tensor | None
    inverse: Tensor | None
    free: GatePathway | None

    def __init__(self, rep: Rep, *, free_variance: int | float = 0.0, free_scale: int | float = FREE_SCALE,
                 activation: Any = SWISH, generator: torch.Generator | None = None):  # fmt: skip
        super().__init__()
        self.activation = activation_of(activation)
        self.rep, self.rep_in = rep, gated(rep)
        parts = rep.blocks()
        own = [index.flatten() for part, index in parts if is_pointwise(part)]
        others = [index.T for part, index in parts if not is_pointwise(part)]  # (components, copies)
        pointwise = torch.cat(own).sort().values if own else torch.empty(0, dtype=torch.int64)
        shapes = tuple((len(index), index.shape[1]) for index in others)
        self.gating = Gating(len(pointwise), shapes)
        n = self.gating.gates
        order = torch.cat([pointwise, *(index.flatten() for index in others)])
        gates = torch.arange(n).split([copies for _, copies in shapes])
        repeated = [gate.repeat(components) for gate, (components, _) in zip(gates, shapes, strict=True)]
        self.register_buffer("gates", torch.cat([n + torch.arange(len(pointwise)), *repeated]))
        contiguous = bool((order == torch.arange(rep.dim)).all())
        self.register_buffer("order", None if contiguous else torch.cat([torch.arange(n), n + order]))
        self.register_buffer("inverse", None if contiguous else order.argsort())
        self.free = None
        if free_variance != 0:
            self.free = GatePathway(
                rep.dim, free_variance, scale=free_scale, activation=self.activation, generator=generator
            )

    def _load_from_state_dict(
        self, state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
    ):
        saved = state_dict.get(f"{prefix}gates")
        if saved is not None and not torch.equal(saved.cpu(), self.gates.cpu()):  # the weights would be read wrongly
            error_msgs.append(
                f"{prefix}gates: saved by a version of rppdyn that ordered gated features otherwise, or of another network; "
                "train it again with this version"
            )
        super()._load_from_state_dict(
            state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )

    def assemble(self) -> Tensor | None:
        """The free pathway's coefficients, if there is one."""
        return None if self.free is None else self.free.coefficients()[0]

    def forward(
        self, x: Float[Tensor, "*batch gated"], c: Float[Tensor, " n"] | None = None
    ) -> Float[Tensor, "*batch n"]:
        check_size(x, self.rep_in)
        y = self.samples_last(x.reshape(-1, x.shape[-1]).mT.contiguous(), self.assemble() if c is None else c)
        return y.mT.view(*x.shape[:-1], self.rep.dim)

    def samples_last(
        self, x: Float[Tensor, "*stack gated samples"], c: Float[Tensor, "*stack n"] | None
    ) -> Float[Tensor, "*stack n samples"]:
        """The same for features as they lie in memory between layers."""
        if self.order is not None:
            x = x.index_select(-2, self.order)
            c = None if c is None else c.index_select(-1, self.order[self.gating.gates :] - self.gating.gates)
        own = () if c is None else (c,)
        if self.activation is SWISH:
            y = evaluate(self.gating, self.gates, x, *own)
        else:
            y = self.gating.with_activation(self.activation, x, *own)
        return y if self.inverse is None else y.index_select(-2, self.inverse)

    def vjp(
        self, x: Float[Tensor, "*stack gated samples"], c: Float[Tensor, "*stack n"] | None
    ) -> tuple[Tensor, PullBack]:
        """:meth:`samples_last`, and the function from a cotangent of its result to that of ``x``."""
        if self.order is not None or self.activation is not SWISH:
            return plain_vjp(lambda x: self.samples_last(x, c), x)
        return evaluate_vjp(self.gating, self.gates, x, *(() if c is None else (c,)))

    def extra_repr(self) -> str:
        return f"{self.rep_in} -> {self.rep}" + ("" if self.activation is SWISH else f", {self.activation.name}")
