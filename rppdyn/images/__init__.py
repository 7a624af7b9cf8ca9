"""Image pathways, relaxed image layers and models made of them.

Names are imported when they are first asked for, so that configurations read :mod:`rppdyn.images.registry` without torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rppdyn.images.factored import FactoredFullyConnected
    from rppdyn.images.group_convolution import GroupConvolution, SeparableGroupConvolution
    from rppdyn.images.layer import RelaxedImageLayer
    from rppdyn.images.models import ARCHITECTURES, ImageModel, LayerSpec, nine_layers, small, ten_layers, three_layers
    from rppdyn.images.pathways import Convolution, FullyConnected, ImagePathway, PixelBias, SharedBias
    from rppdyn.images.sparse import SparseConvolution, SparseFullyConnected
    from rppdyn.images.subsampling import MaxSubsampling, PolyphaseSubsampling

__all__ = [
    "ARCHITECTURES",
    "Convolution",
    "FactoredFullyConnected",
    "FullyConnected",
    "GroupConvolution",
    "ImageModel",
    "ImagePathway",
    "LayerSpec",
    "MaxSubsampling",
    "PixelBias",
    "PolyphaseSubsampling",
    "RelaxedImageLayer",
    "SeparableGroupConvolution",
    "SharedBias",
    "SparseConvolution",
    "SparseFullyConnected",
    "nine_layers",
    "small",
    "ten_layers",
    "three_layers",
]

_MODULES = {
    "factored": ("FactoredFullyConnected",),
    "group_convolution": ("GroupConvolution", "SeparableGroupConvolution"),
    "layer": ("RelaxedImageLayer",),
    "models": ("ARCHITECTURES", "ImageModel", "LayerSpec", "nine_layers", "small", "ten_layers", "three_layers"),
    "pathways": ("Convolution", "FullyConnected", "ImagePathway", "PixelBias", "SharedBias"),
    "sparse": ("SparseConvolution", "SparseFullyConnected"),
    "subsampling": ("MaxSubsampling", "PolyphaseSubsampling"),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
