"""The configurations of `rppdyn fit-dynamics data=...`."""
