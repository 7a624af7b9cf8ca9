"""The image pathways by name: their constructors, symmetries and settings.

Layers, models and configurations read this list. It imports no torch, so that commands refuse wrong arguments at once:
constructors are given by name, and imported when a layer is built.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from rppdyn.settings import ConfigError, Count, Integer, Natural, Nonnegative, Number, Positive, setting, settings

if TYPE_CHECKING:
    import torch

    from rppdyn.images._pathways import ImagePathway


@settings
class OperatorSettings:
    """Matrices on pixels of an operator pathway; see `rppdyn.images._operators`."""

    form: Literal["low_rank", "dense", "powers", "shifts"] = setting(
        "low_rank", "low_rank or dense, both learned matrices; powers of bases; or shifts of a convolution"
    )
    count: Integer = setting(9, "number of low_rank or dense matrices; the first is the identity", ge=2, le=10_000)
    rank: Count = setting(8, "rank of the matrices of form low_rank", le=10_000)
    trained: bool = setting(
        True, "learn matrices of form low_rank or dense; false: they stay as drawn; powers and shifts are always fixed"
    )
    drawn: Integer = setting(0, "random seed of low_rank or dense matrices that are not trained")
    bases: list[str] = setting(["rotation"], "generators whose exponentials are the bases of powers", min_length=1)
    step: Number = setting(1.0, "how far a base of form powers moves the middle of an edge, in pixels")
    interpolation: Literal["shannon_whittaker", "bilinear", "flow"] = setting(
        "shannon_whittaker", "interpolation between pixels, for form powers: shannon_whittaker, bilinear or flow"
    )
    reach: Natural = setting(2, "K: powers of bases from -K to K; with form shifts, kernels of 2 K + 1 pixels", le=100)
    dilation: Count = setting(1, "factor on the exponents of form powers", le=10_000)
    closure: Nonnegative = setting(0.0, "weight of a penalty on commutators that leave the span of learned matrices")
    orthogonality: Nonnegative = setting(0.0, "weight of a penalty on the learned matrices' off-diagonal Killing form")

    def __post_init__(self) -> None:
        if self.step == 0:
            raise ConfigError("model.operators.step=0: give a finite number that is not 0")
        if repeated := [base for base in self.bases if self.bases.count(base) > 1]:
            raise ConfigError(
                f"model.operators.bases={self.bases}: {repeated[0]} stands twice; powers of one base are dependent"
            )


@settings
class FilterSettings:
    """Anchors and group elements of Lie-group filters; see `rppdyn.images._lie_convolution`."""

    elements: Integer = setting(8, "number of elements that stand for all of SE(2) or of scalings", ge=2, le=64)
    redraw: bool = setting(
        False, "draw group elements anew for each training step, alike in all layers; in evaluation they are fixed"
    )
    share: Positive = setting(1.0, "number of anchors of a filter for each of its pixels", le=1)
    learned: bool = setting(False, "learn the places of anchors; false: they are fixed")
    omega: Nonnegative = setting(
        1.0,
        "omega, how far relaxed pathways break the symmetry; 0: not at all; the initial value if it is learned",
        le=4,
    )
    penalty: Nonnegative = setting(
        0.0, "weight of omega^2 in the loss; above 0, omega is learned with the weights; 0: fixed", le=1e6
    )


def elements(settings: FilterSettings | None) -> int:
    """Number of elements of a continuous group."""
    return (settings or FilterSettings()).elements


ROTATIONS_AND_SHIFTS, SHIFTS, NO_SYMMETRY = 0, 1, 2
"""The symmetries of pathways, the largest first."""


class Place(NamedTuple):
    """Place of a pathway in a layer: shapes, initial size and settings.

    Attributes:
        orientations: numbers of orientations of input and output, ``(1, N)``, ``(N, N)`` or ``(N, 1)`` if channels stand for
            N orientations.
        kernel_size: kernel size of convolutions; 1 on pooled maps.
        pooled: whether output maps are one pixel and input maps are larger.
        gain: output standard deviation at initialisation for inputs of unit mean square.
        settings: an instance of :attr:`PathwayKind.settings`, None for the defaults.
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
        name: its name in layers, models and ``model.pathways``.
        constructor: "module:Class", of an :class:`~rppdyn.images.ImagePathway`, whose ``from_place(place, variance,
            **arguments)`` builds one.
        symmetry: the transformations with which it commutes: ``ROTATIONS_AND_SHIFTS``, ``SHIFTS`` or ``NO_SYMMETRY``.
        arguments: arguments of ``from_place`` beside the place and the variance.
        rotations: number of orientations of a field, or a function from settings to this number; 1 if channels don't stand for
            orientations.
        is_map: False for biases.
        within: names of pathways that contain all its maps, the smallest first; empty if none is known.
        settings: its section of a model's configuration, and the dataclass of its keys; None if it has no settings.
    """

    name: str
    constructor: str
    symmetry: int = NO_SYMMETRY
    arguments: Mapping[str, Any] = field(default_factory=dict)
    rotations: int | Callable[[Any], int] = 1
    is_map: bool = True
    within: tuple[str, ...] = ()
    settings: tuple[str, type] | None = None

    def build(self, place: Place, variance: int | float) -> ImagePathway:
        """Build the pathway for its place."""
        module, _, name = self.constructor.partition(":")
        return getattr(import_module(module), name).from_place(place, variance, **self.arguments)

    def orientations(self, settings: Any = None) -> int:
        """Number of orientations of a field."""
        return self.rotations(settings) if callable(self.rotations) else self.rotations


_CONV, _LIE = "rppdyn.images._pathways:", "rppdyn.images._lie_convolution:"
_GROUP = _SPARSE = "rppdyn.images._group_convolution:"
_FILTERS: Any = {"settings": ("filters", FilterSettings)}
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
    PathwayKind("p4_relaxed", f"{_LIE}RelaxedLieConvolution", SHIFTS, {"group": "p4"}, rotations=4, **_FILTERS),
    PathwayKind(
        "se2_relaxed", f"{_LIE}RelaxedLieConvolution", SHIFTS, {"group": "se2"}, rotations=elements, **_FILTERS
    ),
    PathwayKind("s_conv", f"{_SPARSE}SparseConvolution", SHIFTS),
    PathwayKind("s_conv_lengthscales", f"{_SPARSE}SparseConvolution", SHIFTS, {"prior": "lengthscales"}),
    PathwayKind("s_fc", f"{_SPARSE}SparseFullyConnected"),
    PathwayKind("s_fc_lengthscales", f"{_SPARSE}SparseFullyConnected", arguments={"prior": "lengthscales"}),
    PathwayKind("f_fc", "rppdyn.images._pathways:FactoredFullyConnected"),
    PathwayKind("fc", f"{_CONV}FullyConnected"),
    PathwayKind(
        "operators", "rppdyn.images._operators:OperatorPathway", within=("fc",), settings=("operators", OperatorSettings),
    ),
    PathwayKind("pixel_bias", f"{_CONV}PixelBias", is_map=False),
)  # fmt: skip
REGISTRY: dict[str, PathwayKind] = {kind.name: kind for kind in _KINDS}
"""All kinds by name in the order of a layer's pathways: the most symmetric first, biases last."""
