"""Targets of `rppdyn equivariance`, the states to measure them at, and the measures."""
