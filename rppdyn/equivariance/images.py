r"""Transformations of images: flows, matrices on the pixel grid, the error of aliasing, and other measures.

**Flows** are translation, rotation, scaling, stretch, shear, brightening and others. Images are tensors
``(batch, channels, height, width)``; a tensor with another number of axes (class probabilities, say) stays as it is, so that
one flow serves the input of a network, its feature maps and its output.

Translations are measured in image widths (heights), as in the published text, so that a feature map of half the
resolution moves by half as many pixels; the published code runs in half widths. All others turn or stretch about the
image's centre, in units of the pixel grid: radians, or logarithms of the stretch. Positive x is to the right and positive
y is down.

Interpolated images are extended by reflection at their outer edge (as ``padding_mode="reflection"`` of torch's
``grid_sample``). Bilinear interpolation has a kink at every pixel, and t = 0 is on it: positions are computed
in float64 from whole pixel numbers, so that every pixel takes the same, right-hand, side (rounded normalised coordinates
may take the other side at a third of the columns). The Fourier translation has no kink, and shifts a band-limited
periodic image exactly; use it to measure aliasing.

**Aliasing** causes an equivariance error that is known in closed form. Sampling every s-th pixel of an image maps frequency n
to :math:`\mathrm{Alias}(n)`, its remainder in the coarse image's band. A translation then moves the aliased part by the wrong
amount. The Lie derivative of the sampling is a ground truth for measures of equivariance, and holds to rounding for Fourier
translations.

**Other measures** transform images by a finite amount, for comparison with the Lie derivative. Each needs a choice that the
Lie derivative does not need, the size of the transformation, and none adds up over layers.

**Matrices on the pixel grid** are generators of affine maps, their exponentials, and shifts. Maps of H x W pixels are vectors
of ``P = H W`` numbers, row by row. A generator D is the matrix whose exponential ``exp(tD)`` moves them. Coordinates are
x to the right, y down, in pixels about the centre. There are three ways to differentiate an image that is known at pixels
only:

================== =======================================================================================================
shannon_whittaker  the derivative of its trigonometric interpolation, on a torus. At odd sizes ``exp(D)`` of a translation
                   is the shift by one pixel, exactly. At even sizes it is not, and they are refused.
bilinear           central differences, which are what bilinear interpolation gives on average at its kinks; on a torus
flow               the derivative of :class:`~rppdyn.equivariance.images.AffineFlow` at time 0: one-sided differences,
                   reflected at the edges
================== =======================================================================================================

Rotations and scalings from such derivatives are no exact actions: ``exp(2 pi R)`` is not the identity (its error is 0.6 at
n = 9).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from jaxtyping import Complex, Float
from torch import Tensor

from rppdyn.equivariance._lie import Flow, standard_error

Interpolation = Literal["shannon_whittaker", "bilinear", "flow"]
Affine = tuple[tuple[int, int, int], tuple[int, int, int]]

AFFINE: Mapping[str, Affine] = {
    "translation_x": ((0, 0, 1), (0, 0, 0)),
    "translation_y": ((0, 0, 0), (0, 0, 1)),
    "rotation": ((0, -1, 0), (1, 0, 0)),
    "scaling": ((1, 0, 0), (0, 1, 0)),
    "stretch_x": ((1, 0, 0), (0, 0, 0)),
    "stretch_y": ((0, 0, 0), (0, 1, 0)),
    "shear_x": ((0, 1, 0), (0, 0, 0)),
    "shear_y": ((0, 0, 0), (1, 0, 0)),
    "hyperbolic_rotation": ((0, 1, 0), (1, 0, 0)),
}
"""Velocities of points: rows are the velocities of x and y, columns multiply x, y and 1. Translations are by pixels."""


def coordinates(
    size: Sequence[int], *, dtype: torch.dtype = torch.float64, device: torch.device | None = None
) -> Float[Tensor, "H W 2"]:
    """x and y of each pixel about the centre."""
    height, width = size
    rows, columns = torch.meshgrid(
        torch.arange(height, dtype=dtype, device=device), torch.arange(width, dtype=dtype, device=device), indexing="ij"
    )
    return torch.stack([columns - (width - 1) / 2, rows - (height - 1) / 2], -1)


def derivative(n: int, interpolation: Interpolation = "shannon_whittaker") -> Float[Tensor, "n n"]:
    r"""The matrix of d/dp for values at n pixels of a circle, ``(D x)_i = x'(p_i)``.

    For trigonometric interpolation, n odd, :math:`D_{ij} = \frac{\pi}{n} (-1)^{i-j} / \sin(\pi (i - j) / n)` and 0 on the
    diagonal; the printed sum to (n - 3) / 2 lacks the top frequency.

    Raises:
        ValueError: an even n with "shannon_whittaker", or an interpolation that has no such derivative.
    Source: Dehmamy et al. 2021, B; Shannon-Whittaker interpolation with the sum to (n - 1) / 2.
    """
    if n < 1:
        raise ValueError(f"n={n} pixels: give a positive number")
    if interpolation == "bilinear":
        identity = torch.eye(n, dtype=torch.float64)
        return (identity.roll(1, 1) - identity.roll(-1, 1)) / 2
    if interpolation != "shannon_whittaker":
        raise ValueError(f"interpolation={interpolation!r} of a circle: choose 'shannon_whittaker' or 'bilinear'")
    if n % 2 == 0:
        raise ValueError(
            f"n={n} pixels: at even sizes exp(D) of Shannon-Whittaker interpolation is no shift; give an odd number, {n - 1} "
            f"or {n + 1}"
        )
    k = torch.arange(n)[:, None] - torch.arange(n)
    sign = 1.0 - 2 * (k % 2).double()
    sine = (math.pi / n * k.double()).sin()
    return torch.where(k == 0, 0.0, math.pi / n * sign / torch.where(k == 0, 1.0, sine))


def affine_generator(
    size: Sequence[int],
    velocity: str | Sequence[Sequence[int | float]],
    interpolation: Interpolation = "shannon_whittaker",
) -> Float[Tensor, "P P"]:
    r"""D of images whose points move with a velocity :math:`v(p) = A p + b`: :math:`(D x)(p) = -v(p) \cdot \nabla x(p)`.

    Args:
        size: height and width.
        velocity: a name of :data:`AFFINE`, or ``(A | b)``, 2 x 3.
        interpolation: how images are differentiated.
    Returns:
        a float64 matrix; the sign is that of :class:`~rppdyn.equivariance.images.AffineFlow`.
    Raises:
        ValueError: an unknown name, or an even size with "shannon_whittaker".
    """
    if isinstance(velocity, str):
        if velocity not in AFFINE:
            raise ValueError(f"velocity={velocity!r}: choose one of {', '.join(AFFINE)}, or give a 2 x 3 matrix")
        velocity = AFFINE[velocity]
    height, width = size
    if interpolation == "flow":
        (a, b, x), (c, d, y) = velocity
        flow = AffineFlow("", ((a, b), (c, d)), (x / width, y / height))  # whose shift is in widths and heights
        return flow.field(torch.eye(height * width, dtype=torch.float64).view(-1, 1, height, width)).flatten(1).mT
    p = torch.nn.functional.pad(coordinates(size).flatten(0, 1), (0, 1), value=1.0)
    v = p @ torch.tensor(velocity, dtype=torch.float64).mT
    along_x = torch.kron(torch.eye(height, dtype=torch.float64), derivative(width, interpolation))
    along_y = torch.kron(derivative(height, interpolation), torch.eye(width, dtype=torch.float64))
    return -(v[:, :1] * along_x + v[:, 1:] * along_y)


def exponential(generator: Float[Tensor, "P P"], t: Tensor | int | float = 1.0) -> Float[Tensor, "P P"]:
    """exp(tD)."""
    return torch.linalg.matrix_exp(t * generator)


def shift(size: Sequence[int], by: Sequence[int]) -> Float[Tensor, "P P"]:
    """The permutation of a torus that moves images by so many rows and columns, as ``torch.roll`` does."""
    images = torch.eye(math.prod(size), dtype=torch.float64).view(-1, *size)
    return images.roll(tuple(by), (-2, -1)).flatten(1).mT.contiguous()


def bilinear(
    x: Float[Tensor, "batch channels height width"], positions: Float[Tensor, "rows columns 2"]
) -> Float[Tensor, "batch channels rows columns"]:
    """Bilinear interpolation at positions (x, y) in pixels, with reflection at the outer edges; differentiable in both."""
    height, width = x.shape[-2:]
    corner = positions.floor()
    fraction = (positions - corner).to(x.dtype)
    u, v = fraction[..., 0], fraction[..., 1]
    left, top = corner.long().unbind(-1)

    def at(row: Tensor, column: Tensor) -> Tensor:
        return x[..., _reflect(row, height), _reflect(column, width)]

    upper = (1 - u) * at(top, left) + u * at(top, left + 1)
    lower = (1 - u) * at(top + 1, left) + u * at(top + 1, left + 1)
    return (1 - v) * upper + v * lower


def _reflect(index: Tensor, n: int) -> Tensor:
    """Reflect pixel numbers beyond the edges: ... 1 0 | 0 1 ... n-1 | n-1 n-2 ..."""
    index = index.remainder(2 * n)
    return torch.minimum(index, 2 * n - 1 - index)


# -- grids of pixels ---------------------------------------------------------------------------------------------------

Matrix = tuple[tuple[float, float], tuple[float, float]]
ZERO: Matrix = ((0.0, 0.0), (0.0, 0.0))


@dataclass(frozen=True)
class AffineFlow(Flow):
    r"""Points move by :math:`p \mapsto c + e^{tA}(p - c) + t b`, and images with them, by bilinear interpolation.

    Args:
        name: its name in tables.
        linear: A, on (x, y) in pixels about the centre c.
        shift: b, in image widths and heights. One of the two is zero.
    """

    name: str
    linear: Matrix = ZERO
    shift: tuple[float, float] = (0.0, 0.0)

    def __call__(self, x: Float[Tensor, "..."], t: Tensor | float) -> Float[Tensor, "..."]:
        if x.ndim != 4:
            return x
        height, width = x.shape[-2:]
        t = torch.as_tensor(t, dtype=torch.float64, device=x.device)
        options: dict[str, Any] = dict(dtype=torch.float64, device=x.device)
        centre = torch.tensor([(width - 1) / 2, (height - 1) / 2], **options)
        # the value at p comes from the point that the flow moves to p
        back = torch.linalg.matrix_exp(-t * torch.tensor(self.linear, **options))
        shift = torch.tensor(self.shift, **options) * torch.tensor([width, height], **options)
        return bilinear(x, coordinates((height, width), **options) @ back.mT + centre - t * shift)


@dataclass(frozen=True)
class FourierTranslation(Flow):
    """Periodic translation along one axis by a phase for each frequency; exact for band-limited images.

    At an even size the Nyquist frequency stands for +n/2 and -n/2 alike, so it keeps its amplitude times cos(pi n t).
    """

    name: str
    axis: str

    def __call__(self, x: Float[Tensor, "..."], t: Tensor | float) -> Float[Tensor, "..."]:
        if x.ndim != 4:
            return x
        dim = -1 if self.axis == "x" else -2
        n = x.shape[dim]
        angle = -2 * torch.pi * torch.as_tensor(t, dtype=torch.float64, device=x.device)
        angle = angle * torch.arange(n // 2 + 1, dtype=torch.float64, device=x.device)
        phase = torch.complex(angle.cos(), angle.sin())
        if n % 2 == 0:
            phase = torch.cat([phase[:-1], torch.complex(angle[-1:].cos(), torch.zeros_like(angle[-1:]))])
        spectrum = torch.fft.rfft(x, dim=dim)
        phase = phase.to(spectrum.dtype)
        return torch.fft.irfft(spectrum * (phase if dim == -1 else phase[:, None]), n=n, dim=dim)


@dataclass(frozen=True)
class Brightening(Flow):
    """Values of images and feature maps times ``exp(t)``; biases and normalisation break this symmetry."""

    name: str = "brightening"

    def __call__(self, x: Float[Tensor, "..."], t: Tensor | float) -> Float[Tensor, "..."]:
        if x.ndim != 4:
            return x
        return x * torch.as_tensor(t, dtype=torch.float64, device=x.device).exp().to(x.dtype)


def _affine_flow(name: str) -> AffineFlow:
    (a, b, x), (c, d, y) = AFFINE[name]
    return AffineFlow(name.replace("_", " "), ((a, b), (c, d)), (x, y))


def _along(kind: str, axis: str) -> AffineFlow:
    if axis not in ("x", "y"):
        raise ValueError(f"axis={axis!r}: choose 'x' or 'y'")
    return _affine_flow(f"{kind}_{axis}")


def translation(axis: str, interpolation: str = "bilinear") -> Flow:
    """Translation along an axis, in image widths (heights) per unit of t."""
    flow = _along("translation", axis)
    if interpolation == "fourier":
        return FourierTranslation(flow.name, axis)
    if interpolation != "bilinear":
        raise ValueError(f"interpolation={interpolation!r}: choose 'bilinear' or 'fourier'")
    return flow


def rotation() -> AffineFlow:
    """Rotation about the centre, in radians, from x towards y (clockwise on the screen)."""
    return _affine_flow("rotation")


def scaling() -> AffineFlow:
    """Magnification by ``exp(t)`` about the centre."""
    return _affine_flow("scaling")


def shear(axis: str) -> AffineFlow:
    """Shear along an axis: x moves by t times y, or y by t times x."""
    return _along("shear", axis)


def stretch(axis: str) -> AffineFlow:
    """Stretch by ``exp(t)`` along one axis, about the centre."""
    return _along("stretch", axis)


def brightening() -> Brightening:
    """All values of an image times ``exp(t)``."""
    return Brightening()


def hyperbolic_rotation() -> AffineFlow:
    """Hyperbolic rotation: ``[[cosh t, sinh t], [sinh t, cosh t]]``, stretching one diagonal and shrinking the other."""
    return _affine_flow("hyperbolic_rotation")


TRANSFORMATIONS: dict[str, Callable[[], Flow]] = {
    **{name: partial(_affine_flow, name) for name in AFFINE},
    "fourier_x": partial(translation, "x", "fourier"),
    "fourier_y": partial(translation, "y", "fourier"),
    "brightening": brightening,
}
"""Flows by their names on the command line."""


# -- the equivariance error of aliasing, in closed form ------------------------------------------------------------------------


def alias(n: Float[Tensor, "*any"], size: int) -> Float[Tensor, "*any"]:
    """The frequency as which ``n`` is observed at ``size`` samples per period (Finzi 2023, Eq. 4.2); size/2 stays.

    >>> alias(torch.tensor([3.0, 5.0, -5.0, 8.0]), 8)
    tensor([ 3., -3.,  3.,  0.])
    """
    remainder = n.remainder(size)
    return torch.where(remainder > size / 2, remainder - size, remainder)


def aliasing_lie_derivative(
    x: Float[Tensor, "batch channels height width"], stride: int, v: tuple[float, float]
) -> Float[Tensor, "batch channels rows columns"]:
    r"""The Lie derivative of ``x[..., ::stride, ::stride]`` under translation along v, from the spectrum of x.

    .. math:: \hat L_{n'm'} = \sum_{\mathrm{Alias}(n) = n', \mathrm{Alias}(m) = m'}
              2 \pi i\, [v_x (n' - n) + v_y (m' - m)]\, H_{nm}

    with H the Fourier coefficients of x over the unit square. All frequencies that share an alias are added *before* any
    square is taken, so it holds for every image and stride.

    Args:
        stride: divides height and width.
        v: the direction (v_x, v_y), in image widths and heights.
    Source: Finzi 2023, A.3.2.2, before the last step.
    """
    H, n, m, n_coarse, m_coarse = _spectrum(x, stride)
    factor = 2j * math.pi * (v[0] * (n_coarse - n) + v[1] * (m_coarse - m)[:, None])
    rows, columns = x.shape[-2] // stride, x.shape[-1] // stride
    # fft order: index i of the fine image and i + rows, i + 2 rows, ... have the same alias
    folded = (factor * H).unflatten(-2, (stride, rows)).unflatten(-1, (stride, columns)).sum((-4, -2))
    return torch.fft.ifft2(folded * (rows * columns)).real


def aliasing_error(
    x: Float[Tensor, "batch channels height width"], stride: int, v: tuple[float, float]
) -> Float[Tensor, " batch"]:
    r"""The mean square of :func:`aliasing_lie_derivative` for each image, as Theorem 4.1 prints it.

    .. math:: (2\pi)^2 \sum_{n,m} |H_{nm}|^2 \left(v_x^2 (\mathrm{Alias}(n) - n)^2 + v_y^2 (\mathrm{Alias}(m) - m)^2\right)

    in units in which Parseval's theorem holds: the mean square over pixels is the sum of squared coefficients (without the
    printed 1 / 2 pi of the series). The formula omits all products between frequencies that share an alias, and of the two
    axes. It is exact if each alias has one frequency that moves wrongly: in one dimension at stride 2, as its proof
    assumes, or for sparse spectra. In two dimensions, or from stride 3 on, it is the mean over random phases; for single images
    take :func:`aliasing_lie_derivative`. The frequency that maps to the coarse image's Nyquist frequency, which Eq. 4.2 does
    not define, differs, too.

    Source: Finzi 2023, Theorem 4.1.
    """
    H, n, m, n_coarse, m_coarse = _spectrum(x, stride)
    weight = (v[0] * (n_coarse - n)).square() + (v[1] * (m_coarse - m)).square()[:, None]
    return (2 * math.pi) ** 2 * (weight * H.abs().square()).sum((-2, -1)).mean(-1)


def _spectrum(x: Tensor, stride: int) -> tuple[Complex[Tensor, "..."], Tensor, Tensor, Tensor, Tensor]:
    """Coefficients of x, and the frequencies of columns (n, n_coarse) and rows (m, m_coarse) before and after sampling.

    The Nyquist frequency of an even size stands for both signs, and does not move: it counts as 0, before and after.
    """
    height, width = x.shape[-2:]
    if stride < 1 or height % stride or width % stride:
        raise ValueError(f"stride={stride} must divide the image's {height} rows and {width} columns")
    frequencies = []
    for size in (width, height):
        fine = torch.fft.fftfreq(size, 1 / size, dtype=x.dtype, device=x.device)
        coarse = alias(fine, size // stride)
        frequencies.append((_drop_nyquist(fine, size), _drop_nyquist(coarse, size // stride)))
    (n, n_coarse), (m, m_coarse) = frequencies
    return torch.fft.fft2(x) / (height * width), n, m, n_coarse, m_coarse


def _drop_nyquist(frequency: Tensor, size: int) -> Tensor:
    return torch.where(2 * frequency.abs() == size, 0.0, frequency)


# -- other measures, of transformations by a finite amount ---------------------------------------------------------------------


@torch.no_grad()
def discrete_inconsistency(
    f: Callable[[Tensor], Tensor], x: Float[Tensor, "batch channels height width"], pixels: int = 10
) -> float:
    """The share of inputs whose top class changes when the image moves by whole pixels: 1 - consistency.

    Images move along one axis at a time, with reflection padding (the published code wraps around).

    Source: Zhang 2019; Finzi 2023, A.3.3.3.
    """
    classes = f(x.clone()).argmax(-1)
    flows = ((translation("x"), x.shape[-1]), (translation("y"), x.shape[-2]))
    changed = [f(flow(x, pixels / size)).argmax(-1) != classes for flow, size in flows]
    return float(torch.stack(changed).double().mean())


@torch.no_grad()
def expected_group_sample(
    f: Callable[[Tensor], Tensor],
    flow_in: Flow,
    flow_out: Flow,
    x: Float[Tensor, "batch ..."],
    radius: float,
    *,
    n_samples: int = 10,
    generator: torch.Generator | None = None,
) -> tuple[float, float]:
    r"""The mean of :math:`\|\rho_{out}(g_t)^{-1} f(\rho_{in}(g_t) x) - f(x)\|` for t uniform in (-radius, radius).

    Args:
        radius: in units of the flow: 5 / width for translations by up to 5 pixels, as published.
        generator: generator of t; seed 0 if not given.
    Returns:
        The mean and its standard error over inputs. (The text has the norm, the code the mean square.)
    Raises:
        ValueError: no samples, or a radius that is no positive number.
    Source: Hutchinson et al. 2021; Finzi 2023, A.3.3.3.
    """
    _check_samples(n_samples)
    if not 0 < radius < math.inf:
        raise ValueError(f"radius={radius}: give a positive finite number, in units of the flow")
    generator = generator if generator is not None else torch.Generator().manual_seed(0)
    y, sizes = f(x.clone()), []
    for t in radius * (2 * torch.rand(n_samples, generator=generator, dtype=torch.float64) - 1):
        difference = flow_out(f(flow_in(x, t)), -t) - y
        sizes.append(torch.linalg.vector_norm(difference.flatten(1), dim=1))
    per_input = torch.stack(sizes).double().mean(0)
    return float(per_input.mean()), float(standard_error(per_input))


def _check_samples(n_samples: int) -> None:
    if n_samples < 1:
        raise ValueError(f"n_samples={n_samples}: give 1 or more")


@dataclass(frozen=True)
class TranslationError:
    """Squared errors under translation, in the three published normalisations, between which comparisons may differ.

    Attributes:
        total: summed over the output's entries (the text's normalisation 1).
        root: divided by the square root of their number (as in the published code).
        mean: divided by their number.
    """

    total: float
    root: float
    mean: float


def eq_t(
    f: Callable[[Tensor], Tensor],
    x: Float[Tensor, "batch channels height width"],
    *,
    max_shift: float = 0.125,
    n_samples: int = 10,
    generator: torch.Generator | None = None,
) -> TranslationError:
    """Error under translations by whole pixels, EQ-T.

    Images are shifted along both axes at once, uniformly up to ``max_shift`` of the image, rounded to whole pixels of the
    *output*, so that a strided layer is shifted by a multiple of its stride (the published code rounds input and output
    separately, which measures the rounding too). The output's interior, further than ``max_shift`` from the edge, is compared.
    Aliasing is not seen.

    Args:
        f: maps images to images of any resolution, or to vectors, which should not change.
    Source: Karras et al. 2021; Finzi 2023, A.3.3.1.
    """
    return _translation_error(f, x, "bilinear", max_shift, n_samples, generator, whole=True)


def eq_t_frac(
    f: Callable[[Tensor], Tensor],
    x: Float[Tensor, "batch channels height width"],
    *,
    max_shift: float = 0.125,
    n_samples: int = 10,
    generator: torch.Generator | None = None,
) -> TranslationError:
    """Error under translations by fractions of pixels, EQ-T_frac: as :func:`eq_t`, shifted in Fourier space.

    The published code shifts by a windowed sinc; the two are equal for band-limited periodic images. A shift by half a pixel
    removes the Nyquist frequency of an image with an even side, and shifting back does not restore it: for such images even the
    identity has an error.

    Source: Karras et al. 2021; Finzi 2023, A.3.3.1.
    """
    return _translation_error(f, x, "fourier", max_shift, n_samples, generator, whole=False)


@torch.no_grad()
def _translation_error(
    f: Callable[[Tensor], Tensor],
    x: Tensor,
    interpolation: str,
    max_shift: float,
    n_samples: int,
    generator: torch.Generator | None,
    whole: bool,
) -> TranslationError:
    if not 0 < max_shift < 0.5:
        raise ValueError(f"max_shift={max_shift}: give a share of the image between 0 and 0.5")
    _check_samples(n_samples)
    generator = generator if generator is not None else torch.Generator().manual_seed(0)
    along_x, along_y = translation("x", interpolation), translation("y", interpolation)
    y, totals = f(x.clone()), []
    rows, columns = y.shape[-2:] if y.ndim == 4 else x.shape[-2:]
    grid = torch.tensor([columns, rows], dtype=torch.float64)
    margins = [int(max_shift * n) + 1 for n in (rows, columns)]
    inner_rows, inner_columns = (slice(m, n - m) for m, n in zip(margins, (rows, columns), strict=True))
    if y.ndim == 4 and (2 * margins[0] >= rows or 2 * margins[1] >= columns):
        raise ValueError(
            f"max_shift={max_shift} leaves no interior of outputs of {rows} x {columns} pixels to compare: give a smaller one, "
            "or outputs of more pixels"
        )
    for t in max_shift * (2 * torch.rand(n_samples, 2, generator=generator, dtype=torch.float64) - 1):
        t = (t * grid).round() / grid if whole else t
        image = f(along_y(along_x(x, t[0]), t[1]))
        error = (along_x(along_y(image, -t[1]), -t[0]) - y).square()
        error = error[..., inner_rows, inner_columns] if y.ndim == 4 else error
        totals.append(error.flatten(1).sum(1).double().mean())
    total, entries = float(torch.stack(totals).mean()), error[0].numel()
    return TranslationError(total, total / entries**0.5, total / entries)
