"""Both pathways of a linear layer as one dense weight, under the prior of their sum."""

from __future__ import annotations

from typing import NoReturn

import torch
from jaxtyping import Float
from torch import Tensor, nn

from rppdyn.nn.coefficients import CoefficientMap
from rppdyn.nn.pathways import (
    AffineMap,
    EquivariantPathway,
    FreePathway,
    LinearPathway,
    PriorTerm,
    added,
    summed_squares,
    written,
)

__all__ = ["DensePathway"]


class DensePathway(LinearPathway):
    r"""One weight in the place of an equivariant and a free pathway, with the prior that their sum has.

    With :math:`w = \mathrm{vec}(W)` of n entries, Q the orthonormal basis of the r equivariant directions and
    :math:`P P^T = 1 - Q Q^T`, the sum of :math:`Q\beta`, :math:`\beta \sim N(0, \sigma_a^2)`, and a free
    :math:`N(0, \sigma_b^2)` is :math:`N(0, (\sigma_a^2 + \sigma_b^2) QQ^T + \sigma_b^2 PP^T)` (Finzi 2023, Eq. 3.1):

    .. math:: -\log p(w) = \frac{|Q^T w|^2}{2 (\sigma_a^2 + \sigma_b^2)} + \frac{|w|^2 - |Q^T w|^2}{2 \sigma_b^2}
        + \frac{r}{2} \log 2\pi(\sigma_a^2 + \sigma_b^2) + \frac{n - r}{2} \log 2\pi\sigma_b^2,

    and the same of the bias, with the invariants of ``rep_out``. The quadratic part is the least that
    :math:`|\beta|^2 / 2\sigma_a^2 + |B|^2 / 2\sigma_b^2` can be for :math:`W = A + B`, and it is that at the posterior mean
    :math:`A = E[A | W] = \rho\, QQ^T W`, :math:`\rho = \sigma_a^2 / (\sigma_a^2 + \sigma_b^2)`. So the layer has the maximum a
    posteriori of the two pathways, and there their norms; its forward pass is that of an ordinary layer.

    The weight is stored as it is: entries have one unit, and cannot have the prior's in some directions and the usual one
    in others (:func:`rppdyn.nn.pathways.prior_unit`). ``log_variance`` is that of the free pathway.

    Args:
        equivariant, free: pathways of one layer, whose bases, variances and sum are taken over.
    """

    log_equivariant_variance: Tensor

    def __init__(self, equivariant: EquivariantPathway, free: FreePathway):
        super().__init__(free.variance.item())
        self.register_exact("log_equivariant_variance", equivariant.log_variance, working_copy=False)
        self.weight_map, self.bias_map = equivariant.weight_map, equivariant.bias_map
        with torch.no_grad():
            weight, bias = equivariant.dense(free.dense())
        self.weight = nn.Parameter(weight)
        self.bias = None if bias is None else nn.Parameter(bias)

    @property
    def constrained(self) -> list[tuple[str, Tensor, CoefficientMap]]:
        """Each parameter by name, and the map whose image is its equivariant subspace."""
        both = ("weight", self.weight, self.weight_map), ("bias", self.bias, self.bias_map)
        return [(name, p, basis) for name, p, basis in both if p is not None and basis is not None]

    def coefficients(self) -> tuple[Tensor, ...]:
        """Weight and bias; under this prior their entries are correlated."""
        return tuple(p for _, p, _ in self.constrained)

    def dense(self, onto: AffineMap | None = None) -> AffineMap:
        return added((self.weight, self.bias), onto)

    def log_variances(self, name: str) -> dict[str, Tensor]:
        return {"equivariant": self.log_equivariant_variance, "free": self.log_variance}

    def prior_terms(self, *log_variances: Tensor) -> list[PriorTerm]:
        """Norms are taken in float64: what is outside of the subspace is a small difference of large numbers."""
        log_equivariant, log_free = log_variances
        exact = [(p.double(), basis) for _, p, basis in self.constrained]
        inside = summed_squares(basis.transpose(p) for p, basis in exact)
        outside = summed_squares(p for p, _ in exact) - inside
        rank = sum(basis.rank for _, basis in exact)
        return [
            PriorTerm(inside.to(self.weight.dtype), torch.logaddexp(log_equivariant, log_free), rank),
            PriorTerm(outside.to(self.weight.dtype), log_free, self.num_coefficients - rank),
        ]

    @torch.no_grad()
    def pathways(self) -> tuple[AffineMap, AffineMap]:
        """The posterior means of both pathways given their sum, ``E[A | W]`` and ``W - E[A | W]``; biases likewise."""
        share = torch.sigmoid(self.log_equivariant_variance - self.log_variance)
        found = {name: share.to(p) * basis(basis.theta(p)) for name, p, basis in self.constrained}
        weight, bias = found["weight"], found.get("bias")
        free_bias = None if self.bias is None or bias is None else self.bias - bias
        return (weight, bias), (self.weight - weight, free_bias)

    def norms(self, name: str) -> dict[str, Tensor]:
        """Of the posterior means, :meth:`pathways`."""
        (a, _), (b, _) = self.pathways()
        return {"equivariant": a.norm(), "free": b.norm()}

    def learn_variance(self) -> NoReturn:
        """One weight has no pathways whose evidence could be told apart.

        Raises:
            ValueError: always.
        """
        raise ValueError(
            "one dense weight has no pathways whose variances could be learned: use parametrisation='pathways'"
        )

    def curvature(self, x: Float[Tensor, "N *places in"], g: Float[Tensor, "S N *places out"]) -> NoReturn:
        """Refused, as :meth:`learn_variance` is."""
        self.learn_variance()

    def gradient_curvature(
        self, weight: Float[Tensor, "K out in"], bias: Float[Tensor, "K out"] | None = None
    ) -> NoReturn:
        """Refused, as :meth:`learn_variance` is."""
        self.learn_variance()

    def extra_repr(self) -> str:
        a, b = written(self.log_equivariant_variance), written(self.log_variance)
        count = self.num_coefficients
        return f"{count} weights and biases, equivariant_variance={a}, free_variance={b}"
