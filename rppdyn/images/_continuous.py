r"""Continuous filters: functions on a group that a few anchor points and the values there determine.

.. math:: f(v) = \phi(v)^T (\Phi + s^2 I)^{-1} u, \qquad \phi_i(v) = \phi(v - z_i), \quad \Phi_{ij} = \phi(z_i - z_j)

with anchors :math:`z_i`, values :math:`u_i`, and a product :math:`\phi` of one function for each dimension (van der Ouderaa &
van der Wilk 2023, Eqs. 3, 7 and 12). Translations are in pixels, logarithms of scales in octaves, rotations in half turns.

Torch's convolutions can be converted to continuous filters, made sparse, and converted back:

>>> import torch
>>> conv = torch.nn.Conv2d(3, 8, 5, padding=2)
>>> dense = AnchoredConv2d.of(conv)                        # the same function, by 25 anchors
>>> sparse = AnchoredConv2d.of(conv, 13, learned=True)     # the nearest one with 13 anchors, which are trained
>>> sparse.to_conv2d().weight.shape
torch.Size([8, 3, 5, 5])
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any, Literal, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from rppdyn.equivariance.images import coordinates
from rppdyn.images._pathways import check_size
from rppdyn.nn._coefficients import ExactBuffers
from rppdyn.nn._merging import replace_modules


def pixel_grid(size: tuple[int, int]) -> Float[Tensor, "P 2"]:
    """Rows and columns of pixels, about the centre."""
    return coordinates(size, dtype=torch.get_default_dtype()).flip(-1).flatten(0, 1)


class ExponentialBasis(ExactBuffers):
    r"""M learned basis functions :math:`\phi_j(p) = \exp(-\omega_j^2 |p - z_j|^2)` at P pixels of a grid about the origin.

    A filter or a factor is :math:`s(p) = \sum_j u_j\, \phi_j(p)`, with values u at the anchors z. Anchors start at the pixels
    of one colour of a chessboard, with :math:`\omega = 1` per pixel.
    """

    grid: Tensor

    def __init__(self, size: tuple[int, int]):
        super().__init__()
        check_size(size)
        grid = pixel_grid(size)
        black = (grid - grid[0]).sum(1) % 2 == 0  # the colour of the first pixel: half of them, rounded up
        self.register_exact("grid", grid)
        self.anchors = nn.Parameter(grid[black])
        self.omega = nn.Parameter(torch.ones(int(black.sum())))

    def forward(self) -> Float[Tensor, "M P"]:
        return (-self.omega.square()[:, None] * self.squared_distances()).exp()

    @torch.no_grad()
    def anchor_std(self, std: float) -> float:
        """Standard deviation of anchor values that gives pixels the standard deviation ``std``, on average."""
        return std / math.sqrt(self().square().sum(0).mean())

    def squared_distances(self) -> Float[Tensor, "M P"]:
        return (self.anchors[:, None] - self.grid).square().sum(-1)

    def omega_derivative(self) -> Float[Tensor, "M P"]:
        r""":math:`\partial \phi_j / \partial \omega_j`."""
        return -2 * self.omega[:, None] * self.squared_distances() * self()


Kind = Literal["rbf", "periodic"]

NUGGET = 1e-6
"""s^2: small compared with the smallest eigenvalue of a pixel grid's Gram matrix, 1.3e-3; enough for coincident anchors."""

LEARNED_ANCHOR_NOISE = 1e-2
"""s^2 of learned anchors: if two of them meet, the difference of their values has little effect."""

MAX_CONDITION = 1e12
"""Condition of a Gram matrix beyond which a filter has fewer than four digits in float64."""


class AnchorBasis(ExactBuffers):
    r"""The basis functions whose coefficients are anchor values: rows :math:`\phi(v)^T (\Phi + s^2 I)^{-1}`.

    ======== =========================================== ==========================
    kind     :math:`\phi(a)`                             dimensions
    ======== =========================================== ==========================
    rbf      :math:`\exp(-\omega^2 a^2 / 2)`             translations, log-scales
    periodic :math:`\exp(-2 \omega^2 \sin^2(\pi a / 2))` rotations, of period 2
    ======== =========================================== ==========================

    All computations are in float64, whatever the dtype of the module.

    Args:
        anchors: ``(P, D)``.
        kinds: kinds of the D dimensions.
        frequencies: :math:`\omega` of each dimension; by default 1, a length scale of one pixel. (The published length scale is
            half a filter's width, at which float32 can't solve for a 7 x 7 filter.)
        noise: :math:`s^2`; by default 1e-6, and 1e-2 for learned anchors, as the difference of two that have come close is
            steep.
        learned: whether anchors are a parameter.
    Raises:
        ValueError: no anchors, a wrong number or kind of dimensions, negative numbers, or an ill-conditioned Gram matrix.
    Source: van der Ouderaa & van der Wilk 2023, Eqs. 3 and 12 (appendix A prints the factor 2 for 1/2).
    """

    frequencies: Tensor

    def __init__(
        self,
        anchors: Float[Tensor, "P D"],
        kinds: Sequence[Kind] = ("rbf", "rbf"),
        *,
        frequencies: Sequence[int | float] | None = None,
        noise: int | float | None = None,
        learned: bool = False,
    ):
        super().__init__()
        noise = (LEARNED_ANCHOR_NOISE if learned else NUGGET) if noise is None else noise
        self.kinds, self.noise = tuple(kinds), noise
        frequencies = [1.0] * len(self.kinds) if frequencies is None else list(frequencies)
        if anchors.ndim != 2 or not len(anchors) or not anchors.shape[1] == len(self.kinds) == len(frequencies):
            raise ValueError(
                f"anchors of shape {tuple(anchors.shape)} with {len(self.kinds)} kinds and {len(frequencies)} "
                "frequencies: give (P, D) anchors, one or more, and D of the others"
            )
        if not set(self.kinds) <= {"rbf", "periodic"}:
            raise ValueError(f"kinds={list(kinds)}: give 'rbf' or 'periodic' for each dimension")
        if not anchors.isfinite().all():
            raise ValueError(f"anchors={anchors.tolist()}: give finite numbers")
        if min(frequencies) < 0 or not noise >= 0:
            raise ValueError(f"frequencies={frequencies}, noise={noise}: neither may be negative")
        self.register_exact("frequencies", torch.tensor(frequencies, dtype=torch.float64))
        if learned:
            self.anchors = nn.Parameter(anchors.to(torch.get_default_dtype()))
        else:
            self.register_exact("anchors", anchors)
        self._check_condition()

    @property
    def places(self) -> Float[Tensor, "P D"]:
        """The anchors in float64."""
        exact = self._buffers.get("anchors_exact")
        return self.anchors.double() if exact is None else exact

    def similarity(self, v: Float[Tensor, "A D"], z: Float[Tensor, "B D"]) -> Float[Tensor, "A B"]:
        r""":math:`\phi(v_a - z_b)`, in float64."""
        difference, squares = v.double()[:, None] - z.double(), self.get_buffer("frequencies_exact").square()
        exponent = difference.new_zeros(difference.shape[:-1])
        for d, kind in enumerate(self.kinds):
            a = difference[..., d]
            half_square = 2 * (torch.pi / 2 * a).sin().square() if kind == "periodic" else a.square() / 2
            exponent = exponent - squares[d] * half_square
        return exponent.exp()

    def gram(self) -> Float[Tensor, "P P"]:
        r""":math:`\Phi + s^2 I`."""
        identity = torch.eye(len(self.anchors), dtype=torch.float64, device=self.anchors.device)
        return self.similarity(self.places, self.places) + self.noise * identity

    def forward(self, v: Float[Tensor, "Q D"]) -> Float[Tensor, "Q P"]:
        r"""The rows :math:`\phi(v)^T (\Phi + s^2 I)^{-1}`, in float64; the product with values is a filter at points v."""
        return torch.linalg.solve(self.gram(), self.similarity(self.places, v)).mT

    @torch.no_grad()
    def _check_condition(self) -> None:
        condition = float(torch.linalg.cond(self.gram()))
        if not condition <= MAX_CONDITION:
            raise ValueError(
                f"the Gram matrix of {len(self.anchors)} anchors has condition {condition:.1e}: anchors are too close for "
                f"frequencies={self.get_buffer('frequencies_exact').tolist()}; raise noise={self.noise} or the frequencies"
            )

    def extra_repr(self) -> str:
        return f"{len(self.anchors)} anchors in {' x '.join(self.kinds)}"


@torch.no_grad()
def refit(
    basis: AnchorBasis, points: Float[Tensor, "Q D"], filters: Float[Tensor, "*channels Q"]
) -> Float[Tensor, "*channels P"]:
    r"""The anchor values whose filters are closest to given filters at given points.

    :math:`u' = \mathrm{lstsq}(A, b)`, of minimum norm, with :math:`A = \Phi_{ZZ'} (\Phi_{Z'Z'} + s^2 I)^{-1}` for points Z and
    anchors Z', and values b of the given filters. With anchors at the points themselves the filters are equal, for any noise.

    Source: van der Ouderaa & van der Wilk 2023, Eq. 5 (which prints both inverses in the wrong place).
    """
    rows = filters.double().flatten(0, -2) if filters.ndim > 1 else filters.double()[None]
    values = torch.linalg.lstsq(basis(points), rows.mT, driver="gelsd").solution.mT
    return values.unflatten(0, filters.shape[:-1]).to(filters) if filters.ndim > 1 else values[0].to(filters)


def spread(
    candidates: Float[Tensor, "Q D"],
    count: int,
    kinds: Sequence[Kind] = ("rbf", "rbf"),
    frequencies: Sequence[int | float] | None = None,
) -> Float[Tensor, "count D"]:
    r"""Spread ``count`` anchors over candidates; if there are as many candidates, return these in their order.

    The first anchor is the candidate nearest the centre. Each next one is the candidate farthest from those before it, by the
    distance of the basis, :math:`-2 \log \phi`. If no dimension is periodic, anchors then move to the means of the candidates
    nearest to them (Lloyd's iterations), since the farthest candidates are corners.

    Raises:
        ValueError: fewer candidates than ``count``.
    """
    if not 1 <= count <= len(candidates):
        raise ValueError(f"anchors={count}: choose from 1 to {len(candidates)}, the places there are")
    if count == len(candidates):
        return candidates
    basis = AnchorBasis(candidates[:1], kinds, frequencies=frequencies)

    def distances(a: Tensor) -> Tensor:
        return -2 * basis.similarity(a, candidates).log()

    order = 1e-9 * torch.arange(len(candidates))  # among equal candidates the first
    indices = [int((distances(torch.zeros_like(candidates[:1]))[0] + order).argmin())]
    nearest = distances(candidates[indices])[0]
    while len(indices) < count:
        nearest[indices] = -1
        indices.append(int((nearest - order).argmax()))
        nearest = torch.minimum(nearest, distances(candidates[indices[-1:]])[0])
    anchors = candidates[indices]
    for _ in range(20 if set(kinds) == {"rbf"} else 0):
        assignment = F.one_hot(distances(anchors).argmin(0), count).to(anchors)
        anchors = (assignment.mT @ candidates) / assignment.sum(0).clamp_min(1)[:, None]
    return anchors


def frequency(count: int, places: int) -> float:
    r""":math:`\omega` of anchors in the plane: 1, a length scale of one pixel, and less if anchors are farther apart."""
    return math.sqrt(min(1.0, count / places))


# -- anchors -----------------------------------------------------------------------------------------------------------

Net = TypeVar("Net", bound=nn.Module)


class AnchoredConv2d(ExactBuffers):
    r"""A ``Conv2d`` whose filters are anchor values on basis functions, ``w(c', c, q) = sum_i u(c', c, i) b_i(q)``.

    Filters are sampled at the pixels of the kernel in each pass; :meth:`to_conv2d` samples them once.

    Args:
        conv: the convolution with these channels, stride, padding, groups and bias.
        anchors: ``(P, 2)``, in pixels about the kernel's centre.
        learned: whether anchors are learned.
        noise: as of :class:`AnchorBasis`.
    Source: van der Ouderaa & van der Wilk 2023, section 4.
    """

    values: nn.Parameter

    def __init__(
        self, conv: nn.Conv2d, anchors: Float[Tensor, "P 2"], *, learned: bool = False, noise: float | None = None
    ):
        super().__init__()
        options: dict[str, Any] = dict(
            in_channels=conv.in_channels, out_channels=conv.out_channels, kernel_size=conv.kernel_size,
            stride=conv.stride, padding=conv.padding, dilation=conv.dilation, groups=conv.groups,
            padding_mode=conv.padding_mode,
        )  # fmt: skip
        # on meta, to draw no weights; in a tuple, so that torch does not register it
        self._conv = (nn.Conv2d(**options, bias=False, device="meta"),)
        frequencies = [frequency(len(anchors), math.prod(_sides(conv)))] * 2
        self.basis = AnchorBasis(anchors, frequencies=frequencies, noise=noise, learned=learned).to(conv.weight.device)
        points = pixel_grid(_sides(conv)).double().to(conv.weight.device)
        self.values = nn.Parameter(refit(self.basis, points, conv.weight.flatten(2)))
        self.bias = None if conv.bias is None else nn.Parameter(conv.bias.detach().clone())
        self.register_exact("points", points)
        if not learned:
            self.register_exact("rows", self.basis(points))
        self.to(self.values)

    @classmethod
    def of(
        cls, conv: nn.Conv2d | AnchoredConv2d, anchors: int | Float[Tensor, "P 2"] | None = None, *, learned: bool = False,
        noise: float | None = None, generator: torch.Generator | None = None,
    ) -> AnchoredConv2d:  # fmt: skip
        """The anchored convolution nearest to a convolution; with an anchor at every pixel, the same function.

        Args:
            anchors: places; or their number, for pixels spread over the kernel or, with a generator, places drawn uniformly
                from its square; None for as many as there are pixels.
        Raises:
            ValueError: more anchors than pixels, or none.
        """
        conv = conv.to_conv2d() if isinstance(conv, AnchoredConv2d) else conv
        grid = pixel_grid(_sides(conv)).double()
        anchors = len(grid) if anchors is None else anchors
        if isinstance(anchors, int):
            count, half = anchors, torch.tensor(_sides(conv), dtype=torch.float64) / 2
            anchors = spread(grid, count)
            if generator is not None:
                anchors = (2 * torch.rand(count, 2, generator=generator, dtype=torch.float64) - 1) * half
        return cls(conv, anchors, learned=learned, noise=noise)

    @property
    def weight(self) -> Float[Tensor, "C_out C k k2"]:
        """The filters at the kernel's pixels."""
        rows = getattr(self, "rows", None)
        if rows is None:
            rows = self.basis(self.get_buffer("points_exact")).to(self.values)
        return (self.values @ rows.mT).unflatten(2, _sides(self))

    def to_conv2d(self) -> nn.Conv2d:
        """The same function as a torch convolution, with filters sampled at pixels."""
        conv = copy.deepcopy(self._conv[0])
        conv.weight = nn.Parameter(self.weight.detach().clone())
        conv.bias = None if self.bias is None else nn.Parameter(self.bias.detach().clone())
        return conv

    def forward(self, x: Float[Tensor, "N C H W"]) -> Float[Tensor, "N C_out H_out W_out"]:
        return self._conv[0]._conv_forward(x, self.weight, self.bias)  # which pads, as torch.ao's convolutions do

    def extra_repr(self) -> str:
        conv = self._conv[0]
        return f"{conv.in_channels} -> {conv.out_channels} channels, {math.prod(conv.kernel_size)} pixels"


def anchored(
    net: Net, share: int | float = 1.0, *, learned: bool = False, noise: float | None = None,
    generator: torch.Generator | None = None,
) -> Net:  # fmt: skip
    """A copy of a network with anchored convolutions in place of convolutions of more than one pixel.

    Args:
        share: number of anchors for each pixel of a kernel, rounded up; 1 gives the same function.
        learned, noise, generator: as of :meth:`AnchoredConv2d.of`.
    Raises:
        ValueError: a share outside of (0, 1], or no such convolution.
    """
    if not 0 < share <= 1:
        raise ValueError(f"share={share} of anchors: give a number above 0, at most 1")

    def convert(conv: nn.Conv2d | AnchoredConv2d) -> nn.Module:
        size = math.prod(_sides(conv))
        if size == 1:
            return conv
        count = math.ceil(share * size - 1e-9)
        return AnchoredConv2d.of(conv, count, learned=learned, noise=noise, generator=generator)

    net = copy.deepcopy(net)
    if not any(isinstance(m, nn.Conv2d | AnchoredConv2d) and math.prod(_sides(m)) > 1 for m in net.modules()):
        raise ValueError(f"{type(net).__name__} has no convolution of more than one pixel: there is nothing to convert")
    return replace_modules(net, nn.Conv2d | AnchoredConv2d, convert)


def sampled(net: Net) -> Net:
    """A copy of a network with torch's convolutions in place of anchored ones."""
    return replace_modules(copy.deepcopy(net), AnchoredConv2d, AnchoredConv2d.to_conv2d)


def _sides(conv: nn.Conv2d | AnchoredConv2d) -> tuple[int, int]:
    height, width = (conv._conv[0] if isinstance(conv, AnchoredConv2d) else conv).kernel_size
    return height, width
