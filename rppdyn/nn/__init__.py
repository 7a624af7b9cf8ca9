"""Relaxed layers and networks: sums of pathways, each with its own prior."""

from rppdyn.nn._bilinear import Bilinear
from rppdyn.nn._ensemble import Ensemble
from rppdyn.nn._hidden import (
    ACTIVATIONS,
    Activation,
    Gate,
    Pointwise,
    gated,
    hidden_representation,
    regular_hidden,
    tensor_hidden,
)
from rppdyn.nn._linear import RelaxedLinear
from rppdyn.nn._merging import freeze, merge
from rppdyn.nn._networks import EMLP, MLP, RPPEMLP, Chained
from rppdyn.nn._normalisation import BatchNorm
from rppdyn.nn._normaliser import InvariantNormaliser
from rppdyn.nn._pathways import EquivariantPathway, FreePathway, LinearPathway, Pathway, named_pathways
from rppdyn.nn._products import ChannelProducts

__all__ = [
    "ACTIVATIONS", "Activation", "BatchNorm", "Bilinear", "ChannelProducts", "Chained", "EMLP",
    "EquivariantPathway", "FreePathway", "Gate", "InvariantNormaliser", "LinearPathway", "MLP",
    "Pathway", "Pointwise", "RPPEMLP", "RelaxedLinear", "Ensemble", "freeze", "gated", "hidden_representation", "merge",
    "named_pathways", "regular_hidden", "tensor_hidden",
]  # fmt: skip
