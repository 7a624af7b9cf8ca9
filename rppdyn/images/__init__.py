"""Image pathways, relaxed image layers and models made of them.

Names are imported when they are first asked for, so that configurations read :mod:`rppdyn.images.registry` without torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rppdyn.images._continuous import AnchoredConv2d, anchored, sampled
    from rppdyn.images._group_convolution import (
        GroupConvolution,
        SeparableGroupConvolution,
        SparseConvolution,
        SparseFullyConnected,
    )
    from rppdyn.images._lie_convolution import (
        LieConvolution,
        RelaxedLieConvolution,
        draw_elements,
        implied_omega,
        implied_omegas,
        learn_omega,
        omega_penalty,
        set_omega,
    )
    from rppdyn.images._models import (
        ARCHITECTURES,
        ImageModel,
        LayerSpec,
        LieResNet18,
        MaxSubsampling,
        PolyphaseSubsampling,
        nine_layers,
        power_blocks,
        small,
        ten_layers,
        three_layers,
    )
    from rppdyn.images._operators import (
        DenseOperators,
        FixedOperators,
        LowRankOperators,
        OperatorPathway,
        PowerOperators,
        affine_base,
        kernel_shifts,
        one_hot,
    )
    from rppdyn.images._pathways import (
        Convolution,
        FactoredFullyConnected,
        FullyConnected,
        ImagePathway,
        PixelBias,
        RelaxedImageLayer,
        SharedBias,
    )

__all__ = [
    "ARCHITECTURES", "AnchoredConv2d", "Convolution", "DenseOperators", "FactoredFullyConnected", "FixedOperators",
    "FullyConnected", "GroupConvolution", "ImageModel", "ImagePathway", "LayerSpec", "LieConvolution", "LieResNet18",
    "LowRankOperators", "MaxSubsampling", "OperatorPathway", "PixelBias", "PolyphaseSubsampling", "PowerOperators",
    "RelaxedImageLayer", "RelaxedLieConvolution", "SeparableGroupConvolution", "SharedBias", "SparseConvolution",
    "SparseFullyConnected", "affine_base", "anchored", "draw_elements", "implied_omega", "implied_omegas",
    "kernel_shifts", "learn_omega", "nine_layers", "omega_penalty", "one_hot", "power_blocks", "sampled", "set_omega",
    "small", "ten_layers", "three_layers",
]  # fmt: skip

_MODULES = ("_pathways", "_group_convolution", "_lie_convolution", "_continuous", "_operators", "_models")


def __getattr__(name: str) -> Any:
    for module in _MODULES if name in __all__ else ():
        if hasattr(loaded := import_module(f"{__name__}.{module}"), name):
            return getattr(loaded, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *__all__]
