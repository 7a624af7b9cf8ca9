"""Image pathways, relaxed image layers and models made of them."""

from rppdyn.images.factored import FactoredFullyConnected
from rppdyn.images.layer import RelaxedImageLayer
from rppdyn.images.pathways import Convolution, FullyConnected, ImagePathway, PixelBias, SharedBias

__all__ = [
    "Convolution",
    "FactoredFullyConnected",
    "FullyConnected",
    "ImagePathway",
    "PixelBias",
    "RelaxedImageLayer",
    "SharedBias",
]
