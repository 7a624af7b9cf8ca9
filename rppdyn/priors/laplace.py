r"""The Laplace approximation of the marginal likelihood, by which prior variances are learned from training data alone."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from rppdyn.nn.pathways import named_pathways
from rppdyn.priors.curvature import Blocks

__all__ = ["BIASES", "Evidence", "PathwayEvidence", "evidence", "learn_variances"]

BIASES = ("bias", "pixel_bias")
"""Pathways that are no maps."""


@dataclass(frozen=True)
class PathwayEvidence:
    """What the Laplace approximation knows of one pathway.

    Attributes:
        layer, name: of the pathway.
        squared_norm: sum of its squared coefficients.
        eigenvalues: of the curvature of its coefficients, none negative; those that are not among them are zero.
        log_variance: of the prior, as it stands.
        size: how many coefficients it has.
    """

    layer: str
    name: str
    squared_norm: float
    eigenvalues: Float[Tensor, " known"]
    log_variance: float
    size: int


class Evidence:
    r"""Minus the logarithm of the marginal likelihood around weights :math:`\theta`, as a function of prior variances.

    .. math:: -\log p(D) \approx -\log p(D \mid \theta) + \frac12 \sum_p \Big[\delta_p |\theta_p|^2 - P_p \log \delta_p
        + \sum_i \log(\lambda_{pi} + \delta_p)\Big]

    over pathways p with :math:`P_p` coefficients of prior precision :math:`\delta_p = 1 / \sigma_p^2` and curvature
    :math:`\lambda_{pi}` (MacKay 1992; Immer et al. 2021; van der Ouderaa, Immer & van der Wilk 2023, Eq. 9, where the
    determinant is that of the posterior precision, prior included).

    Args:
        pathways: one or more.
    Raises:
        ValueError: there is none.
    """

    def __init__(self, pathways: list[PathwayEvidence]):
        if not pathways:
            raise ValueError(
                "no pathway has curvature: give the blocks of a module that has pathways, by rppdyn.priors.curvature"
            )
        self.pathways = pathways
        self.squared_norms = torch.tensor([p.squared_norm for p in pathways], dtype=torch.float64)
        self.counts = torch.tensor([p.size for p in pathways], dtype=torch.float64)
        # how many log(lambda + delta) - log delta do not vanish
        self._known = torch.tensor([len(p.eigenvalues) for p in pathways], dtype=torch.float64)
        self.log_variances = torch.tensor([p.log_variance for p in pathways], dtype=torch.float64)

    def negative_log(
        self,
        negative_log_likelihood: float | Tensor,
        log_variances: Float[Tensor, " pathways"] | None = None,
        curvature_scale: float | Tensor = 1.0,
    ) -> Float[Tensor, ""]:
        r"""The formula above, differentiable in all of its arguments.

        Args:
            negative_log_likelihood: of all data, :math:`-\log p(D \mid \theta)`.
            log_variances: :math:`\log \sigma_p^2`, in the order of `pathways`; None for those that stand.
            curvature_scale: multiplies the eigenvalues: of a normal likelihood the ratio of the noise variance that they were
                computed with to another one.
        """
        s = self.log_variances if log_variances is None else log_variances
        logs = [
            (curvature_scale * p.eigenvalues + delta).log().sum()
            for p, delta in zip(self.pathways, (-s).exp(), strict=True)
        ]
        return negative_log_likelihood + 0.5 * (
            (-s).exp() @ self.squared_norms + self._known @ s + torch.stack(logs).sum()
        )

    def effective_parameters(
        self, log_variances: Float[Tensor, " pathways"] | None = None, curvature_scale: float | Tensor = 1.0
    ) -> Float[Tensor, " pathways"]:
        r""":math:`\gamma_p = \sum_i \lambda_{pi} / (\lambda_{pi} + \delta_p)`: how many the data determine (MacKay 1992).

        Args:
            log_variances, curvature_scale: as of :meth:`negative_log`.
        """
        deltas = (-(self.log_variances if log_variances is None else log_variances)).exp() / curvature_scale
        return torch.stack(
            [(p.eigenvalues / (p.eigenvalues + d)).sum() for p, d in zip(self.pathways, deltas, strict=True)]
        )

    def shares(
        self, log_variances: Float[Tensor, " pathways"] | None = None, curvature_scale: float | Tensor = 1.0
    ) -> dict[str, Float[Tensor, " pathways"]]:
        r"""How much the data determine of each pathway (van der Ouderaa, Immer & van der Wilk 2023, Table 4).

        ``effective`` is the number :math:`\gamma` of the P coefficients, ``normalised`` is :math:`\gamma / P`, and ``relative``
        its share of the sum over the layer's pathways, in which biases that are pathways of their own have no part.

        Args:
            log_variances, curvature_scale: as of :meth:`negative_log`.
        """
        effective = self.effective_parameters(log_variances, curvature_scale)
        normalised = effective / self.counts.clamp_min(1)
        maps = torch.tensor([p.name not in BIASES for p in self.pathways])
        together = torch.tensor([[p.layer == q.layer for q in self.pathways] for p in self.pathways])
        total = (together & maps).to(normalised) @ normalised
        relative = torch.where(maps & (total > 0), normalised / total, 0.0)
        return {"effective": effective, "normalised": normalised, "relative": relative}


def learn_variances(module: nn.Module) -> None:
    """Make the prior variances of all pathways that have curvature parameters, in place (:meth:`Pathway.learn_variance`)."""
    for *_, pathway in named_pathways(module):
        if pathway.has_curvature:
            pathway.learn_variance()


@torch.no_grad()
def evidence(module: nn.Module, blocks: Blocks) -> Evidence:
    """The marginal likelihood around a module's weights as they stand.

    Args:
        blocks: from :func:`rppdyn.priors.curvature`; pathways without are left out.
    Raises:
        ValueError: a block does not have as many coefficients as its pathway.
    """
    found = []
    for layer, name, pathway in named_pathways(module):
        if (layer, name) not in blocks:
            continue
        spectra = [block.eigenvalues() for block in blocks[layer, name]]
        eigenvalues = torch.cat([torch.zeros(0, dtype=torch.float64), *(own for own, _ in spectra)])
        size = sum(count for _, count in spectra)
        if size != pathway.num_coefficients:
            raise ValueError(
                f"curvature of {layer}.{name} is of {size} coefficients, and it has {pathway.num_coefficients}"
            )
        squared = sum(float(c.double().square().sum()) for c in pathway.coefficients())
        found.append(PathwayEvidence(layer, name, squared, eigenvalues, float(pathway.log_variance), size))
    return Evidence(found)
