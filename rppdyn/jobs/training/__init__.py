"""What the verbs of agents share: an agent's files, episodes, films, and what is recorded while one is trained."""
