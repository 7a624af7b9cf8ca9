"""The configurations of `rppdyn fit-regression`."""
