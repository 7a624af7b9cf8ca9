"""Image pathways, relaxed image layers and models made of them."""

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
