"""Isaac Lab: `RslRlSymmetryCfg(data_augmentation_func=data_augmentation(spec), use_data_augmentation=True)`.

Its observation manager stacks histories term by term (`stack: term`), scans grids with x fastest (`ordering: xy`) and calls
its groups "policy" and "critic". Joints are in the order of the simulator's tree, level by level, and not in MuJoCo's: list
them.
"""

from __future__ import annotations

from rppdyn.integrations.augmentation import data_augmentation

__all__ = ["data_augmentation"]
