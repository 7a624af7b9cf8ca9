"""The configurations of `rppdyn fit-dynamics`."""
