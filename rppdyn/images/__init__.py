"""Image pathways, relaxed image layers and models made of them.

Names are imported when they are first asked for, so that configurations read :mod:`rppdyn.images.registry` without torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rppdyn.images.continuous import AnchoredConv2d, anchored, sampled
    from rppdyn.images.group_convolution import (
        GroupConvolution,
        SeparableGroupConvolution,
        SparseConvolution,
        SparseFullyConnected,
    )
    from rppdyn.images.lie_convolution import (
        LieConvolution,
        RelaxedLieConvolution,
        draw_elements,
        implied_omega,
        implied_omegas,
        learn_omega,
        omega_penalty,
        set_omega,
    )
    from rppdyn.images.models import (
        ARCHITECTURES,
        ImageModel,
        LayerSpec,
        LieResNet18,
        MaxSubsampling,
        PolyphaseSubsampling,
        nine_layers,
        small,
        ten_layers,
        three_layers,
    )
    from rppdyn.images.operators import OperatorPathway
    from rppdyn.images.pathways import (
        Convolution,
        FactoredFullyConnected,
        FullyConnected,
        ImagePathway,
        PixelBias,
        RelaxedImageLayer,
        SharedBias,
    )

__all__ = [
    "ARCHITECTURES", "AnchoredConv2d", "Convolution", "FactoredFullyConnected", "FullyConnected",
    "GroupConvolution", "ImageModel", "ImagePathway", "LayerSpec", "LieConvolution", "LieResNet18",
    "MaxSubsampling", "OperatorPathway", "PixelBias", "PolyphaseSubsampling", "RelaxedImageLayer",
    "RelaxedLieConvolution", "SeparableGroupConvolution", "SharedBias", "SparseConvolution", "SparseFullyConnected",
    "anchored", "draw_elements", "implied_omega", "implied_omegas", "learn_omega", "nine_layers", "omega_penalty",
    "sampled", "set_omega", "small", "ten_layers", "three_layers",
]  # fmt: skip

_MODULES = {
    "continuous": ("AnchoredConv2d", "anchored", "sampled"),
    "group_convolution": (
        "GroupConvolution", "SeparableGroupConvolution", "SparseConvolution", "SparseFullyConnected",
    ),
    "lie_convolution": (
        "LieConvolution", "RelaxedLieConvolution", "draw_elements", "implied_omega", "implied_omegas", "learn_omega",
        "omega_penalty", "set_omega",
    ),
    "models": (
        "ARCHITECTURES", "ImageModel", "LayerSpec", "LieResNet18", "MaxSubsampling", "PolyphaseSubsampling", "nine_layers",
        "small", "ten_layers", "three_layers",
    ),
    "operators": ("OperatorPathway",),
    "pathways": (
        "Convolution", "FactoredFullyConnected", "FullyConnected", "ImagePathway", "PixelBias", "RelaxedImageLayer",
        "SharedBias",
    ),
}  # fmt: skip
_HOMES = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
