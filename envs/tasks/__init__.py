"""Tasks with a known symmetry, each with ground truth in float64.

    task = regression_task("modified_inertia")
    x, y = task.sample(1000, torch.Generator().manual_seed(0))

Errors are `ValueError`s of one line.
"""

from __future__ import annotations

from rppdyn.envs.tasks.regression import (
    REGRESSION_TASKS,
    ElectronMuon,
    Inertia,
    ModifiedInertia,
    ModifiedInertiaCode,
    O5Invariant,
    RegressionTask,
    regression_task,
)

__all__ = [
    "REGRESSION_TASKS",
    "ElectronMuon",
    "Inertia",
    "ModifiedInertia",
    "ModifiedInertiaCode",
    "O5Invariant",
    "RegressionTask",
    "regression_task",
]
