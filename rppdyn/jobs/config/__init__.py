"""Configurations of the verbs, their checks, and how the words of a command line become one."""
