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

from rppdyn.nn.coefficients import ExactBuffers
from rppdyn.nn.linear import RelaxedLinear, bind, check_size
from rppdyn.nn.pathways import AffineMap, EquivariantPathway, FreePathway, LinearPathway
from rppdyn.reps import Rep

TOLERANCE = 1e-6

WARM_UP = {"batch": math.inf, "renorm": 100_000}
"""`normalisation=` of networks: batches after which running statistics take part in training; none ever do with "batch"."""

LARGEST_RATIO, LARGEST_SHIFT = 3.0, 5.0
"""Bounds of r and d (Ioffe 2017)."""


def pools(rep: Rep) -> tuple[Tensor, int]:
    """A label for each coordinate, the same for those of one pool, and how many pools have a mean, which come first.

    Raises:
        ValueError: a part that is not orthogonal, whose mean square is not invariant.
    """
    labels = torch.zeros(rep.dim, dtype=torch.int64)
    centred: list[Tensor] = []
    others: list[Tensor] = []
    for part, index in rep.blocks():
        components = part.components
        for label in components.unique().tolist():
            at = (components == label).nonzero()[:, 0]
            lie, h = (m[:, at[:, None], at] for m in (part.unit_lie_generators, part.discrete_generators))
            is_lie = bool((lie.abs() > TOLERANCE).any())
            eye = torch.eye(len(at), dtype=h.dtype)
            if not (torch.allclose(lie, -lie.mT) and torch.allclose(h @ h.mT, eye.expand_as(h))):
                raise ValueError(
                    f"normalisation of {rep} of {rep.G}: {part} is not orthogonal, so the size of its features depends on "
                    "where one looks from; leave normalisation out, or give hidden layers without it"
                )
            is_permuted = not is_lie and torch.allclose(h, h.round()) and bool((h.round() >= 0).all())
            (centred if is_permuted else others).extend(copy[at] for copy in index)
    for order, index in enumerate([*centred, *others]):
        labels[index] = order
    return labels, len(centred)


class BatchNorm(ExactBuffers):
    r"""``y = scale (x - mean) / sqrt(variance + eps) + shift``, one number of each for a pool.

    :meth:`on_batch` computes with the statistics of a batch and returns what the running ones become; calling the module uses
    the running ones. Both maps are affine, so the linear layer that comes next takes them into its weight (:meth:`fold`).

    After ``warm_up`` batches, normalised features of a batch are corrected towards the running statistics,

    .. math:: \hat x = \frac{x - \mu}{\sigma} r + d, \quad
        r = \mathrm{clip}(\sigma / \sigma_{run}), \quad d = \mathrm{clip}((\mu - \mu_{run}) / \sigma_{run}),

    without a gradient through r and d. Variances have Bessel's correction, over all entries of a pool.

    Args:
        rep: the representation of ``x``.
        warm_up: batches before the correction; infinite for batch normalisation.
        momentum: the share of a batch in the running statistics.
        eps: added to variances.
    Attributes:
        running: the running means, variances, and the number of batches, in this order.
    Raises:
        ValueError: a representation that is not orthogonal, is complex, or is bound to no group.
    """

    running: Tensor
    pool: Tensor | None
    size: Tensor

    def __init__(self, rep: Rep, *, warm_up: int | float = math.inf, momentum: float = 0.01, eps: int | float = 1e-3):
        super().__init__()
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

    def _over_pools(self, x: Float[Tensor, "*stack n"]) -> Float[Tensor, "*stack pools"]:
        # by a product: its gradient, unlike that of a gather, adds in the same order whatever the number of threads
        return x if self.pool is None else x @ self.pool / self.size

    def _spread(self, x: Float[Tensor, "*stack pools"]) -> Float[Tensor, "*stack n"]:
        return x if self.pool is None else x @ self.pool.mT

    def _all(self, x: Float[Tensor, "*stack centred"]) -> Float[Tensor, "*stack pools"]:
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
        return self._spread(factor), self._spread(self._all(offset))

    def forward(self, x: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch n"]:
        check_size(x, self.rep_in)
        factor, offset = self._affine(*self._read()[:2])
        return x * factor + offset

    def fold(self, weight: Float[Tensor, "*stack out n"], bias: Float[Tensor, "*stack out"] | None) -> AffineMap:
        """A linear layer that is given what this module makes of its inputs, as one of the inputs themselves."""
        return _folded(weight, bias, *self._affine(*self._read()[:2]))

    def on_batch(
        self, x: Float[Tensor, "*stack batch n"], weight: Float[Tensor, "*stack out n"], bias: Tensor | None
    ) -> tuple[AffineMap, Float[Tensor, "*stack statistics"]]:
        """The same with the statistics of a batch, and what the running ones become."""
        variance, mean = torch.var_mean(x, dim=-2, correction=0)
        centre = self._over_pools(mean)[..., : self.centred]
        about = self._over_pools(variance + (mean - self._spread(self._all(centre))).square())
        count = self.size[: self.centred] * x.shape[-2]
        bessel = F.pad(count / (count - 1).clamp_min(1), (0, self.pools - self.centred), value=1.0)
        about = about * bessel
        old_mean, old_variance, batches = self._read()
        r: Tensor | float = 1.0
        d: Tensor | float = 0.0
        if self.warm_up < math.inf:
            now, before = ((v.detach() + self.eps).sqrt() for v in (about, old_variance))
            begins, one = batches <= self.warm_up, torch.ones_like(now)
            r = torch.where(begins, one, (now / before).clamp(1 / LARGEST_RATIO, LARGEST_RATIO))
            d = (centre.detach() - old_mean) / before[..., : self.centred]
            d = torch.where(begins, 0 * d, d.clamp(-LARGEST_SHIFT, LARGEST_SHIFT))
        running = torch.cat(
            [old_mean.lerp(centre.detach(), self.momentum), old_variance.lerp(about.detach(), self.momentum), batches + 1], -1
        )  # fmt: skip
        return _folded(weight, bias, *self._affine(centre, about, r, d)), running

    def extra_repr(self) -> str:
        renormalised = f", renormalised after {self.warm_up}" if self.warm_up < math.inf else ""
        return f"{self.rep_in}, {self.pools} pools, {self.centred} with a mean{renormalised}"


def _folded(weight: Tensor, bias: Tensor | None, factor: Tensor, offset: Tensor) -> AffineMap:
    moved = (weight @ offset.unsqueeze(-1)).squeeze(-1)
    return weight * factor.unsqueeze(-2), moved if bias is None else bias + moved


class RowNorm:
    """Scales the rows of hidden layers to norm 1, those of one pool to a mean square norm of 1.

    It is the sum of a layer's pathways whose rows are measured. The parameters of all pathways are multiplied by one number for
    a pool, biases as well. So the ratio of pathways stays, and so does the function, with "relu" and normalisation behind it.

    Args:
        net: a network of the kind.
        names: parameters, as they lie in the vectors that are scaled.
    Raises:
        ValueError: a layer's basis mixes the rows of several pools.
    """

    def __init__(self, net: nn.Module, names: Sequence[str]):
        parameters = dict(net.named_parameters())
        places: dict[str, Tensor] = {}
        self.means: list[Tensor] = []
        start = 1  # of a layer's pools among all factors, of which the first is 1
        for layer, linear in net.named_modules():
            if not isinstance(linear, RelaxedLinear) or layer == "head":
                continue
            labels, _ = pools(linear.rep_out)
            for pathway in linear.linear_pathways:
                name = next(n for n, child in linear.named_children() if child is pathway)
                places |= {f"{layer}.{name}.{k}": start + place for k, place in _places(pathway, labels).items()}
            one_hot = F.one_hot(labels).to(next(net.parameters()))
            self.means.append(one_hot / one_hot.sum(0))
            start += one_hot.shape[1]
        each = [places.get(name, torch.zeros(parameters[name].numel(), dtype=torch.int64)) for name in names]
        self.index = torch.cat(each).to(self.means[0].device)

    @torch.no_grad()
    def scale_(self, vectors: Float[Tensor, "members n"], weights: Sequence[Float[Tensor, "members out in"]]) -> None:
        """Scale parameters in place; ``weights`` are the hidden layers' of these parameters."""
        factors = [vectors.new_ones(len(vectors), 1)]
        for weight, mean in zip(weights, self.means, strict=True):
            factors.append((weight.square().sum(-1) @ mean).clamp_min(SMALLEST_NORM**2).rsqrt())
        vectors.mul_(torch.cat(factors, 1).index_select(1, self.index))


SMALLEST_NORM = 1e-6  # of rows that are scaled: others would be mostly rounding


def _places(pathway: LinearPathway, labels: Tensor) -> dict[str, Tensor]:
    """The pool of each entry of a pathway's parameters, by their names."""
    if isinstance(pathway, FreePathway):
        weight, bias = pathway.weight, pathway.bias
        return {"weight": labels.repeat_interleave(weight.shape[1]), **({} if bias is None else {"bias": labels})}
    assert isinstance(pathway, EquivariantPathway)
    found = {}
    for name, basis in (("weight", pathway.weight_map), ("bias", pathway.bias_map)):
        if basis is None or not basis.rank:
            continue
        rows, cols, values = (t.cpu() for t in basis.entries())
        rows, cols = rows[values != 0] // (basis.size // len(labels)), cols[values != 0]
        found[name] = torch.zeros(basis.rank, dtype=torch.int64).index_copy_(0, cols, labels[rows])
        if not torch.equal(found[name][cols], labels[rows]):
            raise ValueError(
                f"weight normalisation of {pathway.rep_in} -> {pathway.rep_out} of {pathway.rep_out.G}: its basis mixes "
                "features that are normalised apart; leave weight_norm out"
            )
    return found
