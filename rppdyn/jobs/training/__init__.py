"""Shared by the verbs of agents: an agent's files, episodes, films, and the records of its training."""
