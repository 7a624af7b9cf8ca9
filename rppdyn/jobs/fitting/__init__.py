"""Shared by the fits: stacked members, their objective, learned variances, and the life of a run."""
