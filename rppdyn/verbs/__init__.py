"""The words after `rppdyn`: their arguments, and what they do with them."""
