"""Relaxed layers and networks: sums of pathways, each with its own prior."""

from rppdyn.nn.bilinear import Bilinear
from rppdyn.nn.ensemble import Ensemble
from rppdyn.nn.hidden import (
    ACTIVATIONS,
    Activation,
    Gate,
    Pointwise,
    gated,
    hidden_representation,
    regular_hidden,
    tensor_hidden,
)
from rppdyn.nn.linear import RelaxedLinear
from rppdyn.nn.merging import freeze, merge
from rppdyn.nn.networks import EMLP, MLP, RPPEMLP, Chained
from rppdyn.nn.normalisation import BatchNorm
from rppdyn.nn.normaliser import InvariantNormaliser
from rppdyn.nn.pathways import EquivariantPathway, FreePathway, LinearPathway, Pathway, named_pathways
from rppdyn.nn.products import ChannelProducts

__all__ = [
    "ACTIVATIONS", "Activation", "BatchNorm", "Bilinear", "ChannelProducts", "Chained", "EMLP",
    "EquivariantPathway", "FreePathway", "Gate", "InvariantNormaliser", "LinearPathway", "MLP",
    "Pathway", "Pointwise", "RPPEMLP", "RelaxedLinear", "Ensemble", "freeze", "gated", "hidden_representation", "merge",
    "named_pathways", "regular_hidden", "tensor_hidden",
]  # fmt: skip
