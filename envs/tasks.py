"""Re-export of :mod:`rppdyn.tasks`, where tasks are, and of the data of transition models, which come from environments."""

import rppdyn.tasks
from rppdyn.envs.episodes import TransitionData, draw_chunks, transition_data
from rppdyn.tasks import *  # noqa: F403

__all__ = ["TransitionData", "draw_chunks", "transition_data"]
__all__ += rppdyn.tasks.__all__
