r"""Where in a network its symmetry is lost: the equivariance error as a sum of contributions of the layers.

Let :math:`y_0 = x`, :math:`y_i = f_i(y_{i-1})`, and let :math:`\rho_i` act on :math:`y_i`. Transforming at layer i and
nowhere before,

.. math:: T_i(g) = \rho_N(g)^{-1} f_{N:i+1}(\rho_i(g) y_i),

goes from :math:`\rho_N(g)^{-1} f(\rho_0(g) x)` at i = 0 to :math:`f(x)` at i = N, and two neighbours are equal where the layer
between them is equivariant. So :math:`C_i = T_{i-1} - T_i` are the contributions of the layers: they add up to the error end to
end. Their derivatives at the identity are :math:`df_{N:i+1} L f_i`, the published decomposition of the Lie derivative.

A contribution is a vector in the space of the output. Those of different layers may cancel: sizes don't add up, vectors do,
and so do their *shares*, :math:`\langle C_i, L\rangle / \langle L, L\rangle` with L the sum.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from jaxtyping import Float, Inexact
from torch import Tensor

from rppdyn.equivariance.actions import (
    Action,
    Flow,
    act,
    check_actions,
    check_finite,
    generator_names,
    inverse,
    tangents,
)
from rppdyn.equivariance.layers import Hidden, KnownLayer, Layer, layers_of
from rppdyn.equivariance.lie import derivative, lie_derivative
from rppdyn.reps import Rep

__all__ = ["Attribution", "layerwise_difference", "layerwise_lie_derivative"]

Network = Callable[[Tensor], Tensor] | Sequence[Layer]


@dataclass(frozen=True)
class Attribution:
    r"""The contributions of N layers to the equivariance error, for each of D generators.

    Attributes:
        generators, layers: names of the two axes.
        norm: ``(D, N)``, the mean over inputs of :math:`\|C_i\|`, which the published figures show.
        squared_norm: ``(D, N)``, the mean over inputs of :math:`\|C_i\|^2`.
        standard_error: ``(D, N)``, of ``squared_norm``, from the random probes; zero where it is exact.
        share: ``(D, N)``, the layer's part of the error, with sign; adds up to 1 over layers, nan where there is no error.
        total: ``(D, *batch, *out)``, the error end to end, computed without taking the network apart.
        contributions: ``(D, N, *batch, *out)``, the vectors :math:`C_i`; None from random probes.
    """

    generators: tuple[str, ...]
    layers: tuple[str, ...]
    norm: Float[Tensor, "D N"]
    squared_norm: Float[Tensor, "D N"]
    standard_error: Float[Tensor, "D N"]
    share: Float[Tensor, "D N"]
    total: Inexact[Tensor, "D ..."]
    contributions: Inexact[Tensor, "D N ..."] | None

    def largest(self, generator: str) -> str:
        """The layer with the largest contribution under a generator."""
        return self.layers[int(self.norm[self.generators.index(generator)].argmax())]

    def __str__(self) -> str:
        width = max(map(len, ("layer", *self.layers)))
        lines = [f"{'layer':{width}}" + "".join(f"  {g:>10} {'share':>7}" for g in self.generators)]
        for i, layer in enumerate(self.layers):
            cells = (f"  {self.norm[d, i]:10.2e} {self.share[d, i]:7.1%}" for d in range(len(self.generators)))
            lines.append(f"{layer:{width}}" + "".join(cells))
        return "\n".join(lines)


@torch.no_grad()
def layerwise_lie_derivative(
    network: Network,
    rep_in: Action,
    rep_out: Action,
    x: Inexact[Tensor, "batch ..."],
    *,
    hidden: Hidden | None = None,
    probes: int | None = None,
    generator: torch.Generator | None = None,
) -> Attribution:
    r"""How much each layer contributes to the Lie derivative, :math:`C_i = df_{N:i+1} L f_i`.

    Exact by default: Jacobian-vector products carry each layer's own Lie derivative to the output, N^2 / 2 of them for each
    generator. With ``probes``, one vector-Jacobian product per probe :math:`z \sim N(0, I)` serves all layers,
    :math:`E (z^T C_i)^2 = \|C_i\|^2`, for long chains; the contributions' sizes and shares are then estimates. Networks of
    few outputs (tens) are better done exactly.

    Args:
        network: see :func:`~rppdyn.equivariance.layers.layers_of` for what comes apart, or a sequence of layers.
        rep_in, rep_out: representations of one group, or flows.
        x: a batch; every layer must act on each input by itself (``network.eval()`` where there is batch normalisation).
        hidden: how hidden layers transform, where the network does not say; layers of unknown action are taken together.
        probes: number of random probes (the published figures use 100), or None for the exact values.
        generator: of the probes; seed 0 if not given.
    Raises:
        ValueError: no continuous generator, or what :func:`layers_of` refuses.
    Source: Finzi 2023, Eq. 4.6 and A.3.1.3.
    """
    chain = layers_of(network, rep_out, hidden)
    check_actions(rep_in, rep_out, x)
    names = generator_names(rep_in)
    if isinstance(rep_in, Rep) and not names:
        raise ValueError(f"{rep_in.G} has no continuous generator: use layerwise_difference for its discrete ones")
    total = lie_derivative(_whole(network, chain), rep_in, rep_out, x)
    check_finite(total, "the Lie derivative")
    if probes is not None:
        return _by_probes(chain, rep_in, x, names, total, probes, generator)

    carried: list[list[Tensor]] = []  # by layer and generator, pushed on as far as y
    y, action = x, rep_in
    for layer in chain:
        pushed = [[derivative(layer, y, v)[1] for v in vectors] for vectors in carried]
        images = [derivative(layer, y, v)[1] for v in tangents(action, y)]
        y, action = layer(y), layer.action
        own = [image - v for image, v in zip(images, tangents(action, y), strict=True)]
        carried = [*pushed, own]
    contributions = torch.stack([torch.stack(vectors) for vectors in carried], 1)
    return _attribution(names, chain, total, contributions)


@torch.no_grad()
def layerwise_difference(
    network: Network,
    rep_in: Action,
    rep_out: Action,
    x: Inexact[Tensor, "batch ..."],
    *,
    elements: Sequence[Tensor] | Sequence[float] | None = None,
    hidden: Hidden | None = None,
) -> Attribution:
    r"""How much each layer contributes to :math:`\rho_{out}(g)^{-1} f(\rho_{in}(g) x) - f(x)`, for finite transformations.

    The discrete counterpart of :func:`layerwise_lie_derivative`, by telescoping through the layers.

    Args:
        elements: group elements ``(d, d)`` (times, for a flow); by default the group's discrete generators.
        network, rep_in, rep_out, x, hidden: as there.
    Raises:
        ValueError: no elements given and no discrete generators, or what :func:`layers_of` refuses.
    """
    chain = layers_of(network, rep_out, hidden)
    check_actions(rep_in, rep_out, x)
    if elements is not None:
        names = tuple(f"g{k}" for k in range(len(elements)))
    else:
        names = generator_names(rep_in, "discrete")
        elements = [] if isinstance(rep_in, Flow) else list(rep_in.G.discrete_generators)
    if not names:
        raise ValueError("no elements, and no discrete generators to take instead: give elements=[g, ...]")

    whole, contributions, totals = _whole(network, chain), [], []
    for g in elements:
        transformed: list[Tensor] = []  # at each layer and nowhere before
        y, action = x, rep_in
        for i in range(len(chain) + 1):
            z = act(action, g, y)
            for layer in chain[i:]:
                z = layer(z)
            transformed.append(act(rep_out, inverse(g), z))
            if i < len(chain):
                y, action = chain[i](y), chain[i].action
        contributions.append(torch.stack([before - after for before, after in pairwise(transformed)]))
        totals.append(act(rep_out, inverse(g), whole(act(rep_in, g, x))) - y)
    total = torch.stack(totals)
    check_finite(total, "the difference")
    return _attribution(names, chain, total, torch.stack(contributions))


def _whole(network: Network, chain: list[KnownLayer]) -> Callable[[Tensor], Tensor]:
    if callable(network):
        return network

    def composed(x: Tensor) -> Tensor:
        for layer in chain:
            x = layer(x)
        return x

    return composed


def _attribution(names: tuple[str, ...], chain: list[KnownLayer], total: Tensor, contributions: Tensor) -> Attribution:
    vectors = contributions.flatten(3) if contributions.ndim > 3 else contributions[..., None]  # (D, N, batch, out)
    size = torch.linalg.vector_norm(vectors, dim=-1)
    whole = vectors.sum(1, keepdim=True)
    product = (vectors.conj() * whole).real.sum((-2, -1))
    return Attribution(
        generators=names,
        layers=tuple(layer.name for layer in chain),
        norm=size.mean(-1),
        squared_norm=size.square().mean(-1),
        standard_error=torch.zeros_like(product),
        share=product / product.sum(-1, keepdim=True),
        total=total,
        contributions=contributions,
    )


def _by_probes(
    chain: list[KnownLayer], rep_in: Action, x: Tensor, names: tuple[str, ...], total: Tensor, probes: int, generator
) -> Attribution:
    if probes < 2:
        raise ValueError(f"probes={probes}: give at least two, or None for exact values")
    generator = generator if generator is not None else torch.Generator().manual_seed(0)
    nodes, defects = [], []
    y, action = x.detach().clone().requires_grad_(), rep_in
    for layer in chain:
        defects.append(lie_derivative(layer, action, layer.action, y.detach()).flatten(2))  # (D, batch, n)
        with torch.enable_grad():
            y = layer(y)
        nodes.append(y)
        action = layer.action
    projections = []
    for _ in range(probes):
        z = torch.randn(y.shape, generator=generator, dtype=y.dtype).to(y.device)
        pulled = torch.autograd.grad(y, nodes, z, retain_graph=True, materialize_grads=True)
        pairs = zip(defects, pulled, strict=True)
        projections.append(torch.stack([(defect * v.flatten(1)).sum(-1) for defect, v in pairs], 1))
    z_C = torch.stack(projections)  # (probes, D, N, batch)
    squares = z_C.square()
    product = (z_C * z_C.sum(2, keepdim=True)).sum((0, -1))
    return Attribution(
        generators=names,
        layers=tuple(layer.name for layer in chain),
        norm=squares.mean(0).sqrt().mean(-1),
        squared_norm=squares.mean((0, -1)),
        standard_error=squares.mean(-1).std(0) / probes**0.5,
        share=product / product.sum(-1, keepdim=True),
        total=total,
        contributions=None,
    )
