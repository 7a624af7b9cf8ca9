r"""Operator pathways: :math:`y = \sum_i M_i x W^i`, matrices on pixels times weights between channels.

The pathway includes L-conv (learned generators of low rank) and PowerNet (powers of bases). With shifts it is a convolution,
with an adjacency matrix a graph convolution, with one-hot matrices a fully connected layer.

A layer commutes with a matrix B on pixels, for all weights, exactly if B commutes with every :math:`M_i`. It is equivariant to
the *centraliser* of its operators (:func:`rppdyn.equivariance._lie.centraliser`), not to the group that they generate. That of
so(3)'s generators has multiples of the identity only. Operators that commute, such as powers of one base, are in their own
centraliser. The weights W can undo any invertible mixing of the operators, so one learned operator need not be a symmetry.
"""

from __future__ import annotations

import itertools
import math
from abc import abstractmethod

import torch
from jaxtyping import Float
from torch import Tensor, nn

from rppdyn.equivariance._lie import algebra_penalties, check_independent
from rppdyn.equivariance.images import Interpolation, affine_generator, exponential, shift
from rppdyn.images._pathways import ImagePathway, Size, check_kernel, check_maps, check_size
from rppdyn.images.registry import OperatorSettings, Place
from rppdyn.nn._coefficients import ExactBuffers
from rppdyn.nn._pathways import Kronecker, linear_curvature


class Operators(ExactBuffers):
    """n matrices of P' x P on flattened maps.

    Attributes:
        count, outputs, inputs: n, P' and P.
        generators: the matrices that penalties apply to if they are learned: matrices without the identity, or bases of powers.
    """

    count: int
    outputs: int
    inputs: int

    @abstractmethod
    def matrices(self) -> Float[Tensor, "n Q P"]:
        """All n matrices."""

    def register_drawn(self, name: str, matrices: Tensor, trained: bool) -> None:
        """Register drawn matrices as a parameter, or as a buffer if they are not trained."""
        if trained:
            self.register_parameter(name, nn.Parameter(matrices))
        else:
            self.register_exact(name, matrices)

    def forward(self, x: Float[Tensor, "N C P"]) -> Float[Tensor, "N n C Q"]:
        """Apply each operator to each channel."""
        return (x @ self.matrices().flatten(0, 1).mT).unflatten(-1, (self.count, self.outputs)).transpose(1, 2)

    @property
    def generators(self) -> Float[Tensor, "k Q P"]:
        return self.matrices()

    def extra_repr(self) -> str:
        return f"{self.count} operators, {self.inputs} -> {self.outputs} pixels"


class FixedOperators(Operators):
    """Matrices that are given and not learned: shifts, an adjacency matrix, one-hot matrices, generators."""

    fixed: Tensor

    def __init__(self, matrices: Float[Tensor, "n Q P"]):
        super().__init__()
        if not matrices.isfinite().all():
            raise ValueError(f"{len(matrices)} operators have entries that are no finite numbers: give others")
        self.count, self.outputs, self.inputs = matrices.shape
        self.register_exact("fixed", matrices)

    def matrices(self) -> Float[Tensor, "n Q P"]:
        return self.fixed


class DenseOperators(Operators):
    """The identity and n - 1 learned matrices.

    Args:
        count: n.
        trained: whether the matrices are learned; otherwise they stay as drawn.
    """

    L: Tensor

    def __init__(self, count: int, pixels: int, *, trained: bool = True, generator: torch.Generator | None = None):
        super().__init__()
        self.count, self.outputs, self.inputs = count, pixels, pixels
        L = torch.randn(count - 1, pixels, pixels, generator=generator) / math.sqrt(pixels)
        self.register_drawn("L", L, trained)

    def matrices(self) -> Float[Tensor, "n P P"]:
        return torch.cat([torch.eye(self.inputs, dtype=self.L.dtype, device=self.L.device)[None], self.L])

    @property
    def generators(self) -> Float[Tensor, "k P P"]:
        return self.L


class LowRankOperators(Operators):
    r"""The identity and n - 1 learned matrices :math:`L_i = U_i V_i` of a low rank; L-conv's.

    Args:
        count: n.
        rank: rank of each learned matrix.
        trained: whether the matrices are learned; otherwise they stay as drawn.
    """

    U: Tensor
    V: Tensor

    def __init__(
        self, count: int, pixels: int, rank: int, *, trained: bool = True, generator: torch.Generator | None = None
    ):
        super().__init__()
        self.count, self.outputs, self.inputs = count, pixels, pixels
        U = torch.randn(count - 1, pixels, rank, generator=generator)
        V = torch.randn(count - 1, rank, pixels, generator=generator)
        self.register_drawn("U", U / math.sqrt(rank), trained)
        self.register_drawn("V", V / math.sqrt(pixels), trained)

    def matrices(self) -> Float[Tensor, "n P P"]:
        identity = torch.eye(self.inputs, dtype=self.U.dtype, device=self.U.device)
        return torch.cat([identity[None], self.generators])

    @property
    def generators(self) -> Float[Tensor, "k P P"]:
        return self.U @ self.V

    def forward(self, x: Float[Tensor, "N C P"]) -> Float[Tensor, "N n C P"]:
        hidden = (x @ self.V.flatten(0, 1).mT).unflatten(-1, (self.count - 1, -1))  # (N, C, n - 1, rank)
        return torch.cat([x[:, None], torch.einsum("ncir,ipr->nicp", hidden, self.U)], 1)


class PowerOperators(Operators):
    r"""Products of powers of bases, :math:`A^{D i} B^{D j} \cdots` with i, j from -K to K; PowerNet's.

    Each product is scaled to the Frobenius norm ``sqrt(P)`` of an orthogonal matrix: all outputs on white noise have one size.
    (Without this, the fourth power of a scaling by a pixel has singular values from 1e-4 to 1e4.)

    Args:
        bases: invertible matrices. With one base, or commuting ones, a layer is equivariant to the bases.
        reach: K; a pair gives the smallest and the largest power.
        dilation: D.
        trained: whether the bases are learned, from these initial values.
    Raises:
        ValueError: a base is not finite, or is singular and has negative powers; the dilation is below 1; powers are linearly
            dependent, or overflow.
    """

    bases: Tensor

    def __init__(self, bases: Float[Tensor, "b P P"], reach: int | tuple[int, int] = 2, *, dilation: int = 1,
                 trained: bool = False):  # fmt: skip
        super().__init__()
        low, high = (-reach, reach) if isinstance(reach, int) else reach
        if dilation < 1 or low > high:
            raise ValueError(
                f"dilation={dilation}, powers from {low} to {high}: give a dilation from 1 on and some powers"
            )
        self.powers = tuple(dilation * power for power in range(low, high + 1))
        self.count, self.outputs, self.inputs = len(self.powers) ** len(bases), bases.shape[-1], bases.shape[-1]
        if not bases.isfinite().all():
            raise ValueError(f"{len(bases)} bases have entries that are no finite numbers: give others")
        if low < 0:
            for number, base in enumerate(bases.double()):
                values = torch.linalg.svdvals(base)
                if values[-1] <= values[0] * len(base) * torch.finfo(torch.float64).eps:
                    raise ValueError(
                        f"base {number} is singular (its smallest singular value is {values[-1]:.1e}, its largest "
                        f"{values[0]:.1e}): powers below 0 need its inverse; give powers from 0 on, or another base"
                    )
        matrices = self._products(bases.double())
        if not matrices.isfinite().all():
            raise ValueError(
                f"powers of bases from {low * dilation} to {high * dilation} overflow: give a smaller reach or dilation, "
                "or bases closer to orthogonal ones"
            )
        check_independent(matrices, "powers of bases")
        self.trained = trained
        if trained:
            self.bases = nn.Parameter(bases.to(torch.get_default_dtype()))
        else:
            self.register_exact("bases", bases, working_copy=False)
            self.register_exact("fixed", matrices)

    def _products(self, bases: Float[Tensor, "b P P"]) -> Float[Tensor, "n P P"]:
        powers, products = [], []
        for base in bases:
            inverse = torch.linalg.inv(base) if self.powers[0] < 0 else base
            powers.append([torch.linalg.matrix_power(base if p >= 0 else inverse, abs(p)) for p in self.powers])
        for indices in itertools.product(range(len(self.powers)), repeat=len(bases)):
            product = powers[0][indices[0]]
            for power, index in zip(powers[1:], indices[1:], strict=True):
                product = product @ power[index]
            products.append(product * (math.sqrt(len(product)) / product.norm()))
        return torch.stack(products)

    def matrices(self) -> Float[Tensor, "n P P"]:
        return self._products(self.bases) if self.trained else self.get_buffer("fixed")

    @property
    def generators(self) -> Float[Tensor, "b P P"]:
        return self.bases


def affine_base(
    size: Size, name: str, step: float = 1.0, interpolation: Interpolation = "shannon_whittaker"
) -> Float[Tensor, "P P"]:
    """A base of :class:`PowerOperators`: exp(t D) for a generator D by its name in :data:`~rppdyn.equivariance.images.AFFINE`.

    The number t is such that the middle of an edge moves by ``step`` pixels.

    Raises:
        ValueError: an unknown name, or an even size with Shannon-Whittaker interpolation.
    """
    t = step if name.startswith("translation") else 2 * step / max(1, max(size) - 1)
    return exponential(affine_generator(size, name, interpolation), t)


def kernel_shifts(size: Size, kernel_size: int) -> Float[Tensor, "kk P P"]:
    """The shifts of a circular convolution's taps, row by row; with these operators a pathway is a convolution.

    Raises:
        ValueError: an even kernel size.
    """
    reach = check_kernel(kernel_size, pooled=False) // 2
    taps = range(-reach, reach + 1)
    return torch.stack([shift(size, (-i, -j)) for i in taps for j in taps])


def one_hot(outputs: int, inputs: int) -> Float[Tensor, "n Q P"]:
    """One matrix for each entry; with these operators a pathway is fully connected."""
    return torch.eye(outputs * inputs, dtype=torch.float64).view(-1, outputs, inputs)


def operators_of(settings: OperatorSettings, size: Size, generator: torch.Generator | None = None) -> Operators:
    """The configured operators on maps of a size; powers and shifts are fixed, whatever ``settings.trained`` is.

    Raises:
        ValueError: an unknown base, an even size with Shannon-Whittaker interpolation, or a setting that the operators refuse.
    """
    pixels = check_size(size)
    if not settings.trained:  # the same in all members of an ensemble, which share buffers
        generator = torch.Generator().manual_seed(settings.drawn)
    match settings.form:
        case "low_rank":
            return LowRankOperators(
                settings.count, pixels, settings.rank, trained=settings.trained, generator=generator
            )
        case "dense":
            return DenseOperators(settings.count, pixels, trained=settings.trained, generator=generator)
        case "shifts":
            return FixedOperators(kernel_shifts(size, 2 * settings.reach + 1))
        case _:
            bases = [affine_base(size, name, settings.step, settings.interpolation) for name in settings.bases]
            return PowerOperators(torch.stack(bases), settings.reach, dilation=settings.dilation)


class OperatorPathway(ImagePathway):
    r""":math:`y(c', p') = \sum_{i, c} W(c', i, c) (M_i x(c))(p')`: ``n C C'`` weights beside those of the operators.

    The prior is on the weights W; learned operators have none. A layer to output maps of one pixel has one operator, the mean.

    Args:
        operators: the matrices M.
        closure, orthogonality: factors of the two penalties on learned operators, see :meth:`penalty`.
        gain: output standard deviation at initialisation for inputs of unit mean square.
    Raises:
        ValueError: the operators act on another number of pixels, or a penalty is on operators that are fixed or dependent.
    Source: Dehmamy et al., Eq. 6; PowerNet, 3.2. PowerNet's formula lacks the sum over input channels, and its bias for each
        pixel breaks equivariance; here biases are separate pathways.
    """

    def __init__(self, in_channels: int, out_channels: int, size: Size, operators: Operators, variance: int | float = 1.0,
                 *, out_size: Size | None = None, closure: float = 0.0, orthogonality: float = 0.0,
                 gain: int | float = 1.0, generator: torch.Generator | None = None):  # fmt: skip
        super().__init__(variance)
        self.in_shape, self.out_size = (in_channels, *size), size if out_size is None else out_size
        if (operators.inputs, operators.outputs) != (check_size(size), check_size(self.out_size)):
            raise ValueError(
                f"operators on {operators.inputs} -> {operators.outputs} pixels for maps of {size} -> {self.out_size}: give "
                f"matrices of {check_size(self.out_size)} x {check_size(size)}"
            )
        for name, factor in (("closure", closure), ("orthogonality", orthogonality)):
            if factor and next(operators.parameters(), None) is None:
                raise ValueError(
                    f"operators.{name}={factor:g}: a penalty has no effect on operators that are fixed; give 0, or learn them"
                )
        if closure or orthogonality:
            check_independent(operators.generators, "learned operators")
        self.operators, self.closure, self.orthogonality = operators, closure, orthogonality
        count = operators.count * in_channels
        self.weight = self.draw(out_channels, count, std=gain / math.sqrt(count), generator=generator)

    @classmethod
    def from_place(cls, place: Place, variance: int | float) -> OperatorPathway:  # type: ignore[override]
        settings = place.settings or OperatorSettings()
        if place.pooled:
            pixels = check_size(place.size)
            mean = FixedOperators(torch.full((1, 1, pixels), 1 / pixels, dtype=torch.float64))
            return cls(*place[:3], mean, variance, out_size=place.out_size, gain=place.gain, generator=place.generator)
        return cls(
            *place[:3], operators_of(settings, place.size, place.generator), variance, closure=settings.closure,
            orthogonality=settings.orthogonality, gain=place.gain, generator=place.generator,
        )  # fmt: skip

    def transform_channels(self, x: Float[Tensor, "N C H W"]) -> Float[Tensor, "N nC Q"]:
        """Apply all operators to all channels; the weights read the n C results."""
        check_maps(x, self.in_shape)
        return self.operators(x.flatten(2)).flatten(1, 2)

    def forward(self, x: Float[Tensor, "N C H W"]) -> Float[Tensor, "N C_out H_out W_out"]:
        return (self.weight @ self.transform_channels(x)).unflatten(-1, self.out_size)

    def curvature(self, x: Float[Tensor, "N C H W"], g: Float[Tensor, "S N C_out H_out W_out"]) -> list[Kronecker]:
        r"""A sums :math:`s s^T` over images and pixels, s a column of :meth:`transform_channels`; G is a mean over pixels."""
        return [linear_curvature(self.transform_channels(x).mT, g.flatten(3).mT)]

    def penalty(self) -> Float[Tensor, ""]:
        """`closure` and `orthogonality` times the two shares of :func:`~rppdyn.equivariance._lie.algebra_penalties`, summed."""
        outside, off_diagonal = algebra_penalties(self.operators.generators)
        return self.closure * outside + self.orthogonality * off_diagonal


def penalty(module: nn.Module) -> Float[Tensor, ""] | None:
    """The sum of the penalties of a module's operator pathways; None if none has a penalty."""
    penalised = [p for p in module.modules() if isinstance(p, OperatorPathway) and (p.closure or p.orthogonality)]
    return sum((p.penalty() for p in penalised[1:]), penalised[0].penalty()) if penalised else None
