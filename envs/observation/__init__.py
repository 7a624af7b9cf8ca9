"""How a model's symmetries act on the raw observation.

`_recognition` identifies entries, `_quantities` says how quantities transform, `_action` combines both.
"""
