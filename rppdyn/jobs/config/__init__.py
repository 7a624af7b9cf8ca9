"""Configurations of the commands and their checks."""
