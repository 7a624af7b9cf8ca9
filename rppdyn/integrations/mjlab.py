"""mjlab: the same function as for rsl_rl, whose runner it uses; groups are called "actor" and "critic".

Histories are stacked term by term (`stack: term`), and joints stand in the model's order.
"""

from __future__ import annotations

from rppdyn.integrations.augmentation import data_augmentation

__all__ = ["data_augmentation"]
