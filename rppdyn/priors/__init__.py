"""Gaussian priors of pathways, and the marginal likelihood by which their variances are learned."""

from rppdyn.priors.curvature import curvature
from rppdyn.priors.gaussian import negative_log_prior
from rppdyn.priors.laplace import Evidence, evidence
from rppdyn.priors.likelihood import Categorical, Gaussian

__all__ = ["Categorical", "Evidence", "Gaussian", "curvature", "evidence", "negative_log_prior"]
