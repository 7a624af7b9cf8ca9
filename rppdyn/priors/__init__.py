"""Gaussian priors of pathways, and the marginal likelihood by which their variances are learned."""

from rppdyn.nn._ensemble import weights_of
from rppdyn.priors._joint import joint_evidence
from rppdyn.priors._laplace import Evidence, curvature, gradient_curvature, kronecker_evidence, learn_variances
from rppdyn.priors._learning import VarianceLearning
from rppdyn.priors._likelihood import (
    Categorical,
    Gaussian,
    Laplace,
    Likelihood,
    free_share,
    free_variance,
    negative_log_prior,
    share_of_defect,
)

__all__ = [
    "Categorical", "Evidence", "Gaussian", "Laplace", "Likelihood", "VarianceLearning", "curvature", "free_share",
    "free_variance", "gradient_curvature", "joint_evidence", "kronecker_evidence", "learn_variances",
    "negative_log_prior", "share_of_defect", "weights_of",
]  # fmt: skip
