"""The image pathways by name: how each is built, with what it commutes, and what can be configured of it.

This is the one place that lists them; layers, models and configurations read it. It imports no torch, so that a wrong
argument is refused at once: constructors are named, and imported when a layer is built.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from rppdyn.images.filter_settings import FilterSettings, elements
from rppdyn.images.operator_settings import OperatorSettings

if TYPE_CHECKING:
    import torch

    from rppdyn.images.pathways import ImagePathway

__all__ = ["REGISTRY", "ROTATIONS_AND_SHIFTS", "SHIFTS", "NOTHING", "PathwayKind", "Place"]

ROTATIONS_AND_SHIFTS, SHIFTS, NOTHING = 0, 1, 2
"""With what a pathway commutes, the most first."""


class Place(NamedTuple):
    """Where a pathway stands: all that a layer knows of it.

    Attributes:
        orientations: of input and output, ``(1, N)``, ``(N, N)`` or ``(N, 1)`` where channels stand for N orientations.
        kernel_size: of convolutions; 1 where maps are pooled.
        pooled: whether output maps are one pixel and input maps are larger.
        gain: output standard deviation at initialisation for inputs of unit mean square.
        settings: the pathway's own, None for the usual ones; what :attr:`PathwayKind.settings` says.
    """

    in_channels: int
    out_channels: int
    size: tuple[int, int]
    out_size: tuple[int, int]
    kernel_size: int
    orientations: tuple[int, int]
    pooled: bool
    gain: float
    generator: torch.Generator | None
    settings: Any = None


@dataclass(frozen=True)
class PathwayKind:
    """A pathway that a layer can have.

    Attributes:
        name: in layers, models and ``model.pathways``.
        constructor: "module:Class", of an :class:`~rppdyn.images.pathways.ImagePathway`, whose ``at(place, variance,
            **arguments)`` builds one.
        symmetry: with what it commutes: ``ROTATIONS_AND_SHIFTS``, ``SHIFTS`` or ``NOTHING``.
        arguments: of the constructor, beside the place.
        rotations: of the group of a pathway that commutes with them: how many orientations a field has, or a function of the
            settings that says so. 1 where channels stand for no orientations.
        is_map: False of biases.
        within: pathways that contain it, the narrowest first, where it is linear in its coefficients.
        settings: its section of a model's configuration and the dataclass with its keys and their checks; None for none.
        later: whether runs had been named before there was such a pathway. A run without it keeps its name.
    """

    name: str
    constructor: str
    symmetry: int = NOTHING
    arguments: Mapping[str, Any] = field(default_factory=dict)
    rotations: int | Callable[[Any], int] = 1
    is_map: bool = True
    within: tuple[str, ...] = ()
    settings: tuple[str, type] | None = None
    later: bool = False

    def build(self, place: Place, variance: int | float) -> ImagePathway:
        """The pathway at its place."""
        module, _, name = self.constructor.partition(":")
        pathway: ImagePathway = getattr(import_module(module), name).at(place, variance, **self.arguments)
        return pathway

    def orientations(self, settings: Any = None) -> int:
        """How many orientations a field has."""
        return self.rotations(settings) if callable(self.rotations) else self.rotations


_CONV, _GROUP, _SPARSE = "rppdyn.images.pathways:", "rppdyn.images.group_convolution:", "rppdyn.images.sparse:"
_LIE, _RELAXED = "rppdyn.images.lie_convolution:", "rppdyn.images.lie_relaxed:"
_FILTERS: Any = {"settings": ("filters", FilterSettings), "later": True}
_KINDS = (
    PathwayKind("gconv", f"{_GROUP}GroupConvolution", ROTATIONS_AND_SHIFTS, rotations=4, within=("conv", "fc")),
    PathwayKind("gconv_separable", f"{_GROUP}SeparableGroupConvolution", ROTATIONS_AND_SHIFTS, rotations=4),
    PathwayKind(
        "gconv_pointwise", f"{_GROUP}GroupConvolution", ROTATIONS_AND_SHIFTS, {"pointwise": True}, rotations=4,
        within=("gconv", "conv", "fc"),
    ),
    PathwayKind("p4", f"{_LIE}LieConvolution", ROTATIONS_AND_SHIFTS, {"group": "p4"}, rotations=4, **_FILTERS),
    PathwayKind("se2", f"{_LIE}LieConvolution", ROTATIONS_AND_SHIFTS, {"group": "se2"}, rotations=elements, **_FILTERS),
    PathwayKind(
        "scaling", f"{_LIE}LieConvolution", ROTATIONS_AND_SHIFTS, {"group": "scale"}, rotations=elements, **_FILTERS
    ),
    PathwayKind("conv", f"{_CONV}Convolution", SHIFTS, within=("fc",)),
    PathwayKind("anchored", f"{_LIE}LieConvolution", SHIFTS, {"group": "t2"}, **_FILTERS),
    PathwayKind("p4_relaxed", f"{_RELAXED}RelaxedLieConvolution", SHIFTS, {"group": "p4"}, rotations=4, **_FILTERS),
    PathwayKind(
        "se2_relaxed", f"{_RELAXED}RelaxedLieConvolution", SHIFTS, {"group": "se2"}, rotations=elements, **_FILTERS
    ),
    PathwayKind("s_conv", f"{_SPARSE}SparseConvolution", SHIFTS),
    PathwayKind("s_conv_lengthscales", f"{_SPARSE}SparseConvolution", SHIFTS, {"prior": "lengthscales"}),
    PathwayKind("s_fc", f"{_SPARSE}SparseFullyConnected"),
    PathwayKind("s_fc_lengthscales", f"{_SPARSE}SparseFullyConnected", arguments={"prior": "lengthscales"}),
    PathwayKind("f_fc", "rppdyn.images.factored:FactoredFullyConnected"),
    PathwayKind("fc", f"{_CONV}FullyConnected"),
    PathwayKind(
        "operators", "rppdyn.images.operators:OperatorPathway", within=("fc",), settings=("operators", OperatorSettings),
        later=True,
    ),
    PathwayKind("pixel_bias", f"{_CONV}PixelBias", is_map=False),
)  # fmt: skip
REGISTRY: dict[str, PathwayKind] = {kind.name: kind for kind in _KINDS}
"""All kinds by name, the most symmetric first, biases last: the order in which a layer has them."""
