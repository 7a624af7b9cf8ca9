"""The configurations of `rppdyn fit-transition`."""
