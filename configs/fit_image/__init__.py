"""The configurations of `rppdyn fit-image`."""
