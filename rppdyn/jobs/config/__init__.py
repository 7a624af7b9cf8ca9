"""What the verbs are asked: configurations, their checks, and how the words of a command line become one."""
