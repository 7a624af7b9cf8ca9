r"""Other measures for images that the Lie derivative is compared with: they transform by a finite amount.

Each takes one choice that the Lie derivative does not ask for, the size of the transformation, and none adds up over layers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from rppdyn.equivariance.actions import Action, act, inverse
from rppdyn.equivariance.images import translation
from rppdyn.equivariance.lie import standard_error

__all__ = ["TranslationError", "discrete_inconsistency", "eq_t", "eq_t_frac", "expected_group_sample"]


@torch.no_grad()
def discrete_inconsistency(
    f: Callable[[Tensor], Tensor], x: Float[Tensor, "batch channels height width"], pixels: int = 10
) -> float:
    """The share of inputs whose top class changes when the image moves by whole pixels: 1 - consistency.

    Moved along either axis, one at a time, with reflection padding (the published code wraps around).

    Source: Zhang 2019; Finzi 2023, A.3.3.3.
    """
    here = f(x.clone()).argmax(-1)
    flows = ((translation("x"), x.shape[-1]), (translation("y"), x.shape[-2]))
    changed = [f(flow(x, pixels / size)).argmax(-1) != here for flow, size in flows]
    return float(torch.stack(changed).double().mean())


@torch.no_grad()
def expected_group_sample(
    f: Callable[[Tensor], Tensor],
    flow_in: Action,
    flow_out: Action,
    x: Float[Tensor, "batch ..."],
    radius: float,
    *,
    n_samples: int = 10,
    generator: torch.Generator | None = None,
) -> tuple[float, float]:
    r"""The mean of :math:`\|\rho_{out}(g_t)^{-1} f(\rho_{in}(g_t) x) - f(x)\|` for t uniform in (-radius, radius).

    Args:
        radius: in units of the flow: 5 / width for translations by up to 5 pixels, as published.
        generator: of t; seed 0 if not given.
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
        difference = act(flow_out, inverse(t), f(act(flow_in, t, x))) - y
        sizes.append(torch.linalg.vector_norm(difference.flatten(1), dim=1))
    per_input = torch.stack(sizes).double().mean(0)
    return float(per_input.mean()), float(standard_error(per_input))


def _check_samples(n_samples: int) -> None:
    if n_samples < 1:
        raise ValueError(f"n_samples={n_samples}: give 1 or more")


@dataclass(frozen=True)
class TranslationError:
    """Squared errors under translation, in the three published normalisations; which one is chosen changes comparisons.

    Attributes:
        total: summed over the output's entries (the text's normalisation 1).
        root: divided by the square root of their number (what the published code does).
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

    Shifts along both axes at once, uniform up to ``max_shift`` of the image and rounded to whole pixels of the *output*, so
    that a strided layer is shifted by a multiple of its stride (the published code rounds either side for itself, which
    measures the rounding too). Compared is the output's interior, further than ``max_shift`` from the edge. Blind to aliasing.

    Args:
        f: to images of any resolution, or to vectors, which should not change.
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

    The published code shifts by a windowed sinc; the two are equal for band-limited periodic images. What an image with an even
    side has at the Nyquist frequency a shift by half a pixel takes away, there and back: of such images the error of a map that
    changes nothing is not 0 either.

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
        raise ValueError(f"max_shift={max_shift}: a share of the image between 0 and 0.5")
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
