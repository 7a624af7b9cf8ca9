r"""The Laplace approximation of the marginal likelihood, by which prior variances are learned from training data alone."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from rppdyn.nn.pathways import Pathway, named_pathways
from rppdyn.priors.curvature import Blocks

__all__ = [
    "BIASES",
    "CURVATURES",
    "Evidence",
    "KroneckerEvidence",
    "PathwayEvidence",
    "check_form",
    "kronecker_evidence",
    "learn_variances",
]

CURVATURES = ("joint", "kronecker")
"""Forms of the evidence."""

BIASES = ("bias", "pixel_bias")
"""Pathways that are no maps."""


@dataclass(frozen=True, eq=False)
class PathwayEvidence:
    """What the Laplace approximation knows of one pathway.

    Attributes:
        layer, name: of the pathway.
        squared_norm: sum of its squared coefficients.
        log_variance: of the prior, as it stands.
        size: how many coefficients it has.
        within: the pathway of the same layer that contains it, None for one that no other does.
        uses: squared norm of the dense map that one coefficient of 1 stands for.
    """

    layer: str
    name: str
    squared_norm: float
    log_variance: Float[Tensor, ""]
    size: int
    within: str | None = None
    uses: int | float = 1

    @classmethod
    def of(cls, layer: str, name: str, pathway: Pathway) -> PathwayEvidence:
        """A pathway with its weights as they stand.

        Raises:
            ValueError: it stands for several pathways at once.
        """
        if list(pathway.log_variances(name)) != [name]:
            pathway.learn_variance()
        squared = sum(float(c.detach().double().square().sum()) for c in pathway.coefficients())
        return cls(
            layer, name, squared, pathway.log_variance.cpu(), pathway.num_coefficients, pathway.within, pathway.uses
        )


class Evidence(ABC):
    r"""Minus the logarithm of the marginal likelihood around weights :math:`\theta`, as a function of prior variances.

    .. math:: -\log p(D) \approx -\log p(D \mid \theta) + \frac12 \sum_p \frac{|\theta_p|^2}{\sigma_p^2}
        + \frac12 \log\det\big(I + \Sigma^{1/2} H \Sigma^{1/2}\big)

    over pathways p with coefficients of prior variance :math:`\sigma_p^2`, of which :math:`\Sigma` consists, and H the
    curvature of the negative log-likelihood by all of them (MacKay 1992; Immer et al. 2021; van der Ouderaa, Immer &
    van der Wilk 2023, Eq. 9, where the determinant is that of the posterior precision, prior included). How the
    determinant is found is the subclasses' affair.

    Args:
        pathways: one or more.
        negative_log_likelihood: of all data, for :attr:`log_evidence`.
    Raises:
        ValueError: there is none.
    """

    def __init__(self, pathways: list[PathwayEvidence], negative_log_likelihood: float | Tensor = 0.0):
        if not pathways:
            raise ValueError(
                "no pathway has curvature: give the blocks of a module that has pathways, by rppdyn.priors.curvature"
            )
        self.pathways = pathways
        self.negative_log_likelihood = negative_log_likelihood
        self.squared_norms = torch.tensor([p.squared_norm for p in pathways], dtype=torch.float64)
        self.counts = torch.tensor([p.size for p in pathways], dtype=torch.float64)
        self.log_variances = torch.stack([p.log_variance.double() for p in pathways])

    @abstractmethod
    def log_determinant(
        self, log_variances: Float[Tensor, " pathways"], curvature_scale: float | Tensor = 1.0
    ) -> Float[Tensor, ""]:
        """That of the formula above, with a curvature that is multiplied by a number; twice differentiable."""

    @property
    def log_evidence(self) -> Float[Tensor, ""]:
        r""":math:`\log p(D)` at the variances that stand, differentiable in those that are parameters."""
        return -self.negative_log(self.negative_log_likelihood)

    @property
    def effective_parameters(self) -> dict[str, dict[str, Tensor]]:
        """:meth:`effective` at the variances that stand, ``{layer: {pathway: number}}``."""
        found: dict[str, dict[str, Tensor]] = {}
        for p, value in zip(self.pathways, self.effective(), strict=True):
            found.setdefault(p.layer, {})[p.name] = value
        return found

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
            curvature_scale: multiplies the curvature: of a normal likelihood the ratio of the noise variance that it was
                computed with to another one.
        """
        s = self.log_variances if log_variances is None else log_variances
        penalty = (-s).exp() @ self.squared_norms
        return negative_log_likelihood + 0.5 * (penalty + self.log_determinant(s, curvature_scale))

    def effective(
        self, log_variances: Float[Tensor, " pathways"] | None = None, curvature_scale: float | Tensor = 1.0
    ) -> Float[Tensor, " pathways"]:
        r""":math:`\gamma_p = \partial \log\det / \partial \log\sigma_p^2`: how many the data determine (MacKay 1992).

        Args:
            log_variances, curvature_scale: as of :meth:`negative_log`.
        """
        s = self.log_variances if log_variances is None else log_variances
        differentiable = torch.is_grad_enabled() and s.requires_grad
        with torch.enable_grad():
            s = s if s.requires_grad else s.detach().requires_grad_()
            return torch.autograd.grad(self.log_determinant(s, curvature_scale), s, create_graph=differentiable)[0]

    def shares(
        self, log_variances: Float[Tensor, " pathways"] | None = None, curvature_scale: float | Tensor = 1.0
    ) -> dict[str, Float[Tensor, " pathways"]]:
        r"""How much the data determine of each pathway (van der Ouderaa, Immer & van der Wilk 2023, Table 4).

        ``effective`` is the number :math:`\gamma` of the P coefficients, ``normalised`` is :math:`\gamma / P`, and ``relative``
        its share of the sum over the layer's pathways, in which biases that are pathways of their own have no part.

        Args:
            log_variances, curvature_scale: as of :meth:`negative_log`.
        """
        effective = self.effective(log_variances, curvature_scale)
        normalised = effective / self.counts.clamp_min(1)
        maps = torch.tensor([p.name not in BIASES for p in self.pathways])
        together = torch.tensor([[p.layer == q.layer for q in self.pathways] for p in self.pathways])
        total = (together & maps).to(normalised) @ normalised
        relative = torch.where(maps & (total > 0), normalised / total, 0.0)
        return {"effective": effective, "normalised": normalised, "relative": relative}


class KroneckerEvidence(Evidence):
    r"""The evidence with a curvature of one block for each layer, from the spectra of each pathway's own.

    A layer's pathways span nested subspaces :math:`V_1 \subset V_2 \subset \ldots` of its weights, whose sum has the prior
    variance :math:`\tau_j = \sigma_j^2 + \sigma_{j+1}^2 + \ldots`, in orthonormal coordinates of what :math:`V_j` adds to
    :math:`V_{j-1}`. With the eigenvalues :math:`\lambda_{ji}` of the curvature within :math:`V_j`,

    .. math:: \log\det \approx \sum_j \sum_i \log \frac{1 + \tau_j \lambda_{ji}}{1 + \tau_{j+1} \lambda_{ji}},

    which counts no direction twice. It is exact where the curvature maps the subspaces into themselves, and an upper bound
    otherwise (of :math:`\det(I + \sigma_b^2 H) \det(I + \sigma_a^2 Q^T H (I + \sigma_b^2 H)^{-1} Q)`, by Jensen's inequality).

    Args:
        eigenvalues: of each pathway's curvature, none negative; those that are not among them are zero.
    """

    def __init__(
        self,
        pathways: list[PathwayEvidence],
        eigenvalues: list[Float[Tensor, " known"]],
        negative_log_likelihood: float | Tensor = 0.0,
    ):
        super().__init__(pathways, negative_log_likelihood)
        self.eigenvalues = eigenvalues
        index = {(p.layer, p.name): i for i, p in enumerate(pathways)}
        # of a row's pathway, where a column's contains it, how much variance that has in coordinates of the row's
        self.wider = torch.zeros(len(pathways), len(pathways), dtype=torch.float64)
        for i, p in enumerate(pathways):
            within = p.within
            while within is not None and (j := index.get((p.layer, within))) is not None:
                self.wider[i, j] = pathways[j].uses / p.uses
                within = pathways[j].within

    def log_determinant(
        self, log_variances: Float[Tensor, " pathways"], curvature_scale: float | Tensor = 1.0
    ) -> Float[Tensor, ""]:
        own = log_variances.exp()
        outer = self.wider @ own
        logs = [
            (curvature_scale * t * e).log1p().sum() - (curvature_scale * o * e).log1p().sum()
            for e, t, o in zip(self.eigenvalues, own + outer, outer, strict=True)
        ]
        return torch.stack(logs).sum()


def check_form(curvature: str) -> str:
    """A form of the evidence, if it is one."""
    if curvature not in CURVATURES:
        raise ValueError(f"curvature={curvature!r}: choose one of {', '.join(CURVATURES)}")
    return curvature


def learn_variances(module: nn.Module, curvature: str = "joint") -> None:
    """Make the prior variances of pathways parameters, in place (:meth:`Pathway.learn_variance`).

    Args:
        curvature: of the evidence that they are to be learned by: all for "joint", or those that have Kronecker factors.
    Raises:
        ValueError: a dense weight that stands for two pathways; for "kronecker", a group in coordinates in which factors are
            not known.
    """
    check_form(curvature)
    for *_, pathway in named_pathways(module):
        if curvature == "joint" or pathway.has_curvature:
            pathway.learn_variance()
            if curvature == "kronecker":
                pathway.check_curvature()


@torch.no_grad()
def kronecker_evidence(
    module: nn.Module, blocks: Blocks, negative_log_likelihood: float | Tensor = 0.0
) -> KroneckerEvidence:
    """The marginal likelihood around a module's weights as they stand, from Kronecker factors.

    Args:
        blocks: from :func:`rppdyn.priors.curvature`; pathways without are left out.
    Raises:
        ValueError: a block does not have as many coefficients as its pathway.
    """
    pathways, eigenvalues = [], []
    for layer, name, pathway in named_pathways(module):
        if (layer, name) not in blocks:
            continue
        spectra = [block.eigenvalues() for block in blocks[layer, name]]
        size = sum(count for _, count in spectra)
        if size != pathway.num_coefficients:
            raise ValueError(
                f"curvature of {layer}.{name} is of {size} coefficients, and it has {pathway.num_coefficients}"
            )
        pathways.append(PathwayEvidence.of(layer, name, pathway))
        eigenvalues.append(torch.cat([torch.zeros(0, dtype=torch.float64), *(own for own, _ in spectra)]))
    return KroneckerEvidence(pathways, eigenvalues, negative_log_likelihood)
