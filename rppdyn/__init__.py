"""rppdyn: residual pathway priors, approximate symmetry for reinforcement learning and dynamics.

Importing this package costs nothing: what it offers is imported by floor, from `rppdyn.groups`, `rppdyn.reps`,
`rppdyn.nn`, `rppdyn.envs`, `rppdyn.agents` and so on.
"""

from rppdyn._version import __version__

__all__ = ["__version__"]
