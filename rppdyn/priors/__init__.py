"""Gaussian priors of pathways."""

from rppdyn.priors.gaussian import negative_log_prior

__all__ = ["negative_log_prior"]
