r"""Projectors :math:`P` from d coefficients to the D parameters of a network, drawn at random and about orthonormal."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

__all__ = [
    "PROJECTORS",
    "FiLMProjector",
    "KroneckerProjector",
    "Projector",
    "SumProjector",
    "make_projector",
    "modulating",
]

PROJECTORS = ("kronecker", "film", "film+kronecker")
MODULATING = ("bias", "gate", "norm")
"""Parts of the names of parameters that scale and shift features."""


class Projector(nn.Module):
    r"""A fixed linear map ``(d,) -> (D,)`` with :math:`P^T P \approx I`; what is drawn is a buffer."""

    def __init__(self, d: int, D: int):
        super().__init__()
        if not 0 <= d <= D:
            raise ValueError(f"dimension={d} of a subspace of {D} parameters: give a number from 0 to {D}")
        self.d, self.D = d, D

    @abstractmethod
    def forward(self, w: Float[Tensor, " d"]) -> Float[Tensor, " D"]:
        """``P w``."""

    def dense(self) -> Float[Tensor, "D d"]:
        """The matrix P."""
        eye = torch.eye(self.d).to(next(b for b in self.buffers() if b.is_floating_point()))
        return torch.stack([self(w) for w in eye], 1) if self.d else eye.new_zeros(self.D, 0)

    def extra_repr(self) -> str:
        return f"{self.d} -> {self.D}"


class KroneckerProjector(Projector):
    r"""The product :math:`P = Q_1 \otimes Q_2 / \sqrt D` of normal matrices, :math:`\sqrt D \times \sqrt d` each.

    Where D and d are no squares, the factors are of the next larger squares, and P is the product's first D rows and d columns;
    the source pads by a dense matrix. ``P w`` takes :math:`O(D \sqrt d)` operations. Source: Finzi 2023, 5.4.1.
    """

    first: Tensor
    second: Tensor

    def __init__(self, d: int, D: int, generator: torch.Generator | None = None):
        super().__init__(d, D)
        shape = math.isqrt(max(D - 1, 0)) + 1, math.isqrt(max(d - 1, 0)) + 1
        for name in ("first", "second"):
            self.register_buffer(name, torch.randn(shape, generator=generator))

    def forward(self, w):
        side = self.first.shape[1]
        square = nn.functional.pad(w, (0, side**2 - self.d)).view(side, side)
        return (self.first @ square @ self.second.mT).flatten()[: self.D] / self.D**0.5


class FiLMProjector(Projector):
    r"""A dense normal matrix :math:`/ \sqrt S` in the rows of S chosen parameters, zero elsewhere.

    The source divides by :math:`\sqrt D`, by which columns are shorter than one. Source: Finzi 2023, 5.4.1 (after Perez et al.
    2018).

    Args:
        chosen: which parameters, see :func:`modulating`.
    Raises:
        ValueError: a dimension above the number of chosen parameters, or none of these.
    """

    rows: Tensor
    matrix: Tensor

    def __init__(self, d: int, chosen: Bool[Tensor, " D"], generator: torch.Generator | None = None):
        super().__init__(d, len(chosen))
        count = int(chosen.sum())
        if d > count:
            raise ValueError(
                f"dimension={d} with projector=film: {count} parameters scale and shift features; give at most {count}, or "
                "projector=film+kronecker"
            )
        self.register_buffer("rows", chosen.nonzero()[:, 0])
        self.register_buffer("matrix", torch.randn(count, d, generator=generator) / max(count, 1) ** 0.5)

    def forward(self, w):
        return w.new_zeros(self.D).index_put((self.rows,), self.matrix @ w)


class SumProjector(Projector):
    r"""The sum of projectors, each over :math:`\sqrt 2` where there are two. Source: Finzi 2023, 5.4.1."""

    def __init__(self, parts: Sequence[Projector]):
        super().__init__(parts[0].d, parts[0].D)
        self.parts = nn.ModuleList(parts)

    def forward(self, w):
        return torch.stack([part(w) for part in self.parts]).sum(0) / len(self.parts) ** 0.5


def modulating(parameters: Mapping[str, Tensor]) -> Bool[Tensor, " D"]:
    """Which parameters scale and shift features: biases, gates, normalisations, and all of the last layer.

    Args:
        parameters: of a network by name, in order. The last layer is the child of the network that has the last one.
    """
    last = list(parameters)[-1].split(".")[0]
    own = lambda name: name.split(".")[0] == last or any(part in name.lower() for part in MODULATING)  # noqa: E731
    return torch.cat([torch.full((p.numel(),), own(name)) for name, p in parameters.items()])


def make_projector(
    kind: str, d: int, parameters: Mapping[str, Tensor], generator: torch.Generator | None = None
) -> Projector:
    """Draw a projector to a network's parameters.

    Args:
        kind: kronecker, film, or film+kronecker.
        d: dimension of the subspace.
        parameters: by name.
    Raises:
        ValueError: an unknown kind, no parameters, or a dimension above their number.
    """
    D = sum(p.numel() for p in parameters.values())
    if kind not in PROJECTORS:
        raise ValueError(f"projector={kind!r}: choose one of {', '.join(PROJECTORS)}")
    if not D:
        raise ValueError("a subspace of no parameters: give a network that has some")
    if d > D:
        raise ValueError(f"dimension={d} of a subspace of {D} parameters: give a number from 0 to {D}")
    if kind == "kronecker":
        return KroneckerProjector(d, D, generator)
    film = FiLMProjector(d, modulating(parameters), generator)
    return film if kind == "film" else SumProjector([film, KroneckerProjector(d, D, generator)])
