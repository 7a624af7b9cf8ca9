"""What `rppdyn equivariance` measures, where, and how."""
