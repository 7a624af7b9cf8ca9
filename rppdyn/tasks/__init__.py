"""Tasks with a known symmetry, each with ground truth in float64.

    task = regression_task("modified_inertia")
    x, y = task.sample(1000, torch.Generator().manual_seed(0))
    pendulum = Pendulum(k2=2.0, wind=0.01)
    data = load_trajectories(pendulum)          # data.train, data.validation, data.test, data.rollouts

Errors are `ValueError`s of one line.
"""

from __future__ import annotations

from rppdyn.tasks._images import ImageData, ImageSet, image_data
from rppdyn.tasks._labelled import LabelledImages, Rows, read_images, read_rows
from rppdyn.tasks._pendulum import TASK_CACHE, OtherParametersError, Pendulum, TrajectoryData, load_trajectories
from rppdyn.tasks._recordings import Recording, Recordings, read_recordings
from rppdyn.tasks._regression import (
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
    "REGRESSION_TASKS", "TASK_CACHE", "ElectronMuon", "ImageData", "ImageSet", "LabelledImages", "Inertia",
    "ModifiedInertia", "ModifiedInertiaCode", "O5Invariant", "OtherParametersError", "Pendulum", "Recording",
    "Recordings", "RegressionTask", "Rows", "TrajectoryData", "image_data", "load_trajectories", "read_images",
    "read_recordings", "read_rows", "regression_task",
]  # fmt: skip
