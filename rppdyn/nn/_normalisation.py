r"""Batch normalisation of features that commutes with a symmetry.

Entries that the group exchanges or mixes are a *pool* and are normalised as one. Entries that it only permutes have a mean and
a variance, over the batch and the pool. All others (signs, vectors, tensors) have a mean square alone, since no mean of theirs
is invariant. Pools of a regular representation are its copies.

Statistics of a batch are then invariant: those of :math:`g x_1, ..., g x_B` are those of :math:`x_1, ..., x_B`, and
:math:`f(g x) = g f(x)` holds with statistics of the batch as well as with running ones.

Source: Ioffe & Szegedy 2015 (batch normalisation); Ioffe 2017 (renormalisation); Bhatt et al. 2024 (CrossQ, both in agents).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from rppdyn.nn._coefficients import ExactBuffers
from rppdyn.nn._linear import RelaxedLinear, bind, check_size
from rppdyn.nn._pathways import AffineMap, EquivariantPathway, FreePathway, LinearPathway
from rppdyn.reps import Rep

ZERO_TOLERANCE = 1e-6

WARM_UP = {"batch": math.inf, "renorm": 100_000}
"""Batches after which running statistics take part in training, by ``normalisation=`` of networks; never with "batch"."""

MAX_RATIO, MAX_SHIFT = 3.0, 5.0
"""Bounds of r and d (Ioffe 2017)."""


def pools(rep: Rep) -> tuple[Tensor, int]:
    """The number of each coordinate's pool, and how many pools have a mean; these come first.

    Raises:
        ValueError: a part that is not orthogonal, whose mean square is not invariant.
    """
    labels = torch.zeros(rep.dim, dtype=torch.int64)
    centred: list[Tensor] = []
    uncentred: list[Tensor] = []
    for part, index in rep.blocks():
        components = part.components
        for label in components.unique().tolist():
            at = (components == label).nonzero()[:, 0]
            lie, h = (m[:, at[:, None], at] for m in (part.unit_lie_generators, part.discrete_generators))
            is_lie = bool((lie.abs() > ZERO_TOLERANCE).any())
            eye = torch.eye(len(at), dtype=h.dtype)
            if not (torch.allclose(lie, -lie.mT) and torch.allclose(h @ h.mT, eye.expand_as(h))):
                raise ValueError(
                    f"normalisation of {rep} of {rep.G}: {part} is not orthogonal, so the size of its features depends on "
                    "where one looks from; leave normalisation out (of agents: RPPSAC in place of RPPCrossQ)"
                )
            is_permuted = not is_lie and torch.allclose(h, h.round()) and bool((h.round() >= 0).all())
            (centred if is_permuted else uncentred).extend(copy[at] for copy in index)
    for order, index in enumerate([*centred, *uncentred]):
        labels[index] = order
    return labels, len(centred)


class BatchNorm(ExactBuffers):
    r"""``y = scale (x - mean) / sqrt(variance + eps) + shift``, with one scale, mean, variance and shift for each pool.

    :meth:`on_batch` computes with the statistics of a batch and returns the new running ones; calling the module uses the
    running ones. Both maps are affine, so the next linear layer absorbs them into its weight (:meth:`fold`).

    After ``warm_up`` batches, normalised features of a batch are corrected towards the running statistics,

    .. math:: \hat x = \frac{x - \mu}{\sigma} r + d, \quad
        r = \mathrm{clip}(\sigma / \sigma_{run}), \quad d = \mathrm{clip}((\mu - \mu_{run}) / \sigma_{run}),

    without a gradient through r and d. Variances have Bessel's correction, over all entries of a pool that has a mean.

    Args:
        rep: the representation of ``x``.
        warm_up: batches before the correction; infinite for batch normalisation.
        momentum: the share of a batch in the running statistics.
        eps: added to variances.
    Attributes:
        running: the running means, variances, and the number of batches, in this order.
    Raises:
        ValueError: a representation that is not orthogonal, is complex, or is bound to no group; a number out of range.
    """

    running: Tensor
    pool: Tensor | None
    size: Tensor

    def __init__(self, rep: Rep, *, warm_up: int | float = math.inf, momentum: float = 0.01, eps: int | float = 1e-3):
        super().__init__()
        if not (0 < momentum <= 1 and 0 <= eps < math.inf and warm_up >= 0):
            raise ValueError(f"momentum={momentum}, eps={eps}, warm_up={warm_up}: give a share, and 0 or more")
        self.rep_in = self.rep_out = bind(rep, None)
        self.warm_up, self.momentum, self.eps = warm_up, momentum, eps
        labels, self.centred = pools(self.rep_in)
        self.pools = int(labels.max()) + 1
        is_entrywise = torch.equal(labels, torch.arange(self.rep_in.dim))
        self.register_constant("pool", None if is_entrywise else F.one_hot(labels).double())
        self.register_constant("size", torch.bincount(labels).double())
        start = torch.cat([torch.zeros(self.centred), torch.ones(self.pools), torch.zeros(1)])
        self.register_buffer("running", start)
        self.scale = nn.Parameter(torch.ones(self.pools))
        self.shift = nn.Parameter(torch.zeros(self.centred))

    def _pool_means(self, x: Float[Tensor, "*stack n"]) -> Float[Tensor, "*stack pools"]:
        # a product: its gradient, unlike a gather's, adds in an order that does not depend on the number of threads
        return x if self.pool is None else x @ self.pool / self.size

    def _spread(self, x: Float[Tensor, "*stack pools"]) -> Float[Tensor, "*stack n"]:
        return x if self.pool is None else x @ self.pool.mT

    def _pad_means(self, x: Float[Tensor, "*stack centred"]) -> Float[Tensor, "*stack pools"]:
        return F.pad(x, (0, self.pools - self.centred))

    def _read(self) -> tuple[Tensor, Tensor, Tensor]:
        mean, variance, batches = self.running.split([self.centred, self.pools, 1], -1)
        return mean, variance, batches

    def _affine(
        self, mean: Tensor, variance: Tensor, r: Tensor | float = 1.0, d: Tensor | float = 0.0
    ) -> tuple[Tensor, Tensor]:
        """Factor and offset of each entry."""
        factor = self.scale * r / (variance + self.eps).sqrt()
        offset = self.shift + self.scale[..., : self.centred] * d - mean * factor[..., : self.centred]
        return self._spread(factor), self._spread(self._pad_means(offset))

    def forward(self, x: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch n"]:
        check_size(x, self.rep_in)
        factor, offset = self._affine(*self._read()[:2])
        return x * factor + offset

    def fold(self, weight: Float[Tensor, "*stack out n"], bias: Float[Tensor, "*stack out"] | None) -> AffineMap:
        """Absorb the normalisation into the linear layer after it: one affine map of this module's inputs."""
        return _fold(weight, bias, *self._affine(*self._read()[:2]))

    def on_batch(
        self, x: Float[Tensor, "*stack batch n"], weight: Float[Tensor, "*stack out n"], bias: Tensor | None
    ) -> tuple[AffineMap, Float[Tensor, "*stack statistics"]]:
        """:meth:`fold` with the statistics of a batch, and the new running statistics."""
        check_size(x, self.rep_in)
        variance, mean = torch.var_mean(x, dim=-2, correction=0)
        centre = self._pool_means(mean)[..., : self.centred]
        about = self._pool_means(variance + (mean - self._spread(self._pad_means(centre))).square())
        count = self.size[: self.centred] * x.shape[-2]
        bessel = F.pad(count / (count - 1).clamp_min(1), (0, self.pools - self.centred), value=1.0)
        about = about * bessel
        old_mean, old_variance, batches = self._read()
        r: Tensor | float = 1.0
        d: Tensor | float = 0.0
        if self.warm_up < math.inf:
            now, before = ((v.detach() + self.eps).sqrt() for v in (about, old_variance))
            is_warm_up = batches <= self.warm_up
            r = torch.where(is_warm_up, torch.ones_like(now), (now / before).clamp(1 / MAX_RATIO, MAX_RATIO))
            d = (centre.detach() - old_mean) / before[..., : self.centred]
            d = torch.where(is_warm_up, 0 * d, d.clamp(-MAX_SHIFT, MAX_SHIFT))
        running = torch.cat(
            [old_mean.lerp(centre.detach(), self.momentum), old_variance.lerp(about.detach(), self.momentum), batches + 1], -1
        )  # fmt: skip
        return _fold(weight, bias, *self._affine(centre, about, r, d)), running

    def extra_repr(self) -> str:
        renormalised = f", renormalised after {self.warm_up}" if self.warm_up < math.inf else ""
        return f"{self.rep_in}, {self.pools} pools, {self.centred} with a mean{renormalised}"


def _fold(weight: Tensor, bias: Tensor | None, factor: Tensor, offset: Tensor) -> AffineMap:
    shift = (weight @ offset.unsqueeze(-1)).squeeze(-1)
    return weight * factor.unsqueeze(-2), shift if bias is None else bias + shift


class RowNorm:
    """Scales the rows of hidden layers to norm 1, those of one pool to a mean square norm of 1.

    Norms are those of the dense weight, the sum of a layer's pathways. The parameters of all pathways, biases too, are
    multiplied by one number for each pool. So the ratio of pathways stays. The function of a batch stays, too, in networks
    of "relu" and normalisation (not with gates) while variances are far above ``eps``; running statistics follow with later
    batches. Rows that no weight of the first pathway reaches, such as scalars from vectors alone, stay: scaled to 1, what is
    left of them would outgrow its prior.

    Args:
        net: a network with the layers to scale.
        names: names of the parameters, in the order in which the scaled vectors hold them.
    Raises:
        ValueError: a layer's basis mixes the rows of several pools.
    """

    def __init__(self, net: nn.Module, names: Sequence[str]):
        parameters = dict(net.named_parameters())
        places: dict[str, Tensor] = {}
        self.means: list[Tensor] = []
        start = 1  # index of a layer's first pool among all factors; factor 0 is 1, for parameters that are not scaled
        for layer, linear in net.named_modules():
            if not isinstance(linear, RelaxedLinear) or layer == "head":
                continue
            labels, _ = pools(linear.rep_out)
            reached: Tensor | None = None
            for pathway in linear.linear_pathways:
                name = next(n for n, child in linear.named_children() if child is pathway)
                of = _parameter_pools(pathway, labels)
                reached = of.get("weight", labels[:0]) if reached is None else reached
                places |= {f"{layer}.{name}.{k}": (start + p) * torch.isin(p, reached) for k, p in of.items()}
            membership = F.one_hot(labels).to(next(net.parameters()))
            self.means.append(membership / membership.sum(0))
            start += membership.shape[1]
        each = [places.get(name, torch.zeros(parameters[name].numel(), dtype=torch.int64)) for name in names]
        self.index = torch.cat(each).to(next(net.parameters()).device)

    @torch.no_grad()
    def scale_(self, vectors: Float[Tensor, "members n"], weights: Sequence[Float[Tensor, "members out in"]]) -> None:
        """Scale parameters in place; ``weights`` are the hidden layers' dense weights for them."""
        factors = [vectors.new_ones(len(vectors), 1)]
        for weight, mean in zip(weights, self.means, strict=True):
            factors.append((weight.square().sum(-1) @ mean).clamp_min(MIN_SCALED_NORM**2).rsqrt())
        vectors.mul_(torch.cat(factors, 1).index_select(1, self.index))


MIN_SCALED_NORM = 1e-6  # smallest root mean square norm of a pool that is scaled to 1; smaller ones are mostly rounding


def _parameter_pools(pathway: LinearPathway, labels: Tensor) -> dict[str, Tensor]:
    """The pool of each entry of a pathway's parameters, by the parameters' names."""
    if isinstance(pathway, FreePathway):
        weight, bias = pathway.weight, pathway.bias
        return {"weight": labels.repeat_interleave(weight.shape[1]), **({} if bias is None else {"bias": labels})}
    assert isinstance(pathway, EquivariantPathway)
    places = {}
    for name, basis in (("weight", pathway.weight_map), ("bias", pathway.bias_map)):
        if basis is None or not basis.rank:
            continue
        rows, cols, values = (t.cpu() for t in basis.entries())
        rows, cols = rows[values != 0] // (basis.size // len(labels)), cols[values != 0]
        places[name] = torch.zeros(basis.rank, dtype=torch.int64).index_copy_(0, cols, labels[rows])
        if not torch.equal(places[name][cols], labels[rows]):
            raise ValueError(
                f"weight normalisation of {pathway.rep_in} -> {pathway.rep_out} of {pathway.rep_out.G}: its basis mixes "
                "features that are normalised apart; leave weight_norm out"
            )
    return places
