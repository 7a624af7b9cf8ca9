"""What the page of `rppdyn report` is made of, and the table of robots' symmetries."""
