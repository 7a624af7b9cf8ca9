"""rsl_rl (`pip install rsl-rl-lib`, 5.x): mirrored batches, and relaxed equivariant actors and critics.

    train_cfg["algorithm"]["symmetry_cfg"] = {"data_augmentation_func": data_augmentation(spec), "use_data_augmentation": True}
    train_cfg["actor"]["class_name"] = "rppdyn.integrations.rsl_rl:RelaxedMLPModel"      # with spec=spec.to_dict()

The models are imported on first use: the augmentation needs no rsl_rl.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from rppdyn.integrations.augmentation import data_augmentation

if TYPE_CHECKING:
    from rppdyn.integrations.rsl_rl.export import export_policy
    from rppdyn.integrations.rsl_rl.models import RelaxedMLPModel, RelaxedRNNModel

__all__ = ["RelaxedMLPModel", "RelaxedRNNModel", "data_augmentation", "export_policy"]


def __getattr__(name: str) -> Any:
    modules = {"RelaxedMLPModel": "models", "RelaxedRNNModel": "models", "export_policy": "export"}
    if name not in modules:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{modules[name]}"), name)
