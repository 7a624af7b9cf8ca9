"""The page of `rppdyn report`: its data, its figures, its sections and their template."""
