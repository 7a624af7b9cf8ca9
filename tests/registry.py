"""The groups and representations over which the test suites are parametrised."""

from __future__ import annotations

import torch

from rppdyn.groups import (
    GL,
    O13,
    SL,
    SO,
    SO13,
    SU,
    D,
    DkeR3,
    Group,
    O,
    O2eR3,
    RubiksCube,
    S,
    SO2eR3,
    SO13p,
    Sp,
    Trivial,
    U,
    Z,
)
from rppdyn.reps import Pseudoscalar, Scalar, T, V

SHEAR = Group("shear", lie_algebra=[[[0.0, 1.0], [0.0, 0.0]]])
GALILEI = Group("Galilei", lie_algebra=[[[0.0, 1.0, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]],
                                        [[0.0, 0.0, 1.0], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]]])  # fmt: skip
FLIPS = Group("flips", discrete_generators=torch.tensor([[[-1.0, 0, 0], [0, 0, 1.0], [0, 1.0, 0]]]))

CATALOGUE = [
    Z(2), Z(4), S(3), S(5), D(3), D(4), SO(2), SO(3), SO(4), O(1), O(2), O(3), GL(2), SL(2), SL(3), Sp(1), Sp(2),
    U(1), U(2), SU(2), SU(3), SO13p(), SO13(), O13(), SO2eR3(), O2eR3(), DkeR3(5), DkeR3(6), RubiksCube(), Trivial(2),
]  # fmt: skip
OWN = [SHEAR, GALILEI, FLIPS]
PRODUCTS = [SO(3) * Z(4), Z(2) * S(3), SO(2) * SU(2)]
GROUPS = CATALOGUE + OWN + PRODUCTS

# One or two of each kind, for what costs more: cyclic and not, compact and not, complex, with an invariant form and without,
# reducible, indecomposable, mixing signs with permutations, products.
KINDS = [
    Z(4), S(3), D(4), O(1), SO(2), SO(3), O(3), GL(2), SL(2), Sp(2), U(1), SU(2), SO13(), O2eR3(), DkeR3(5), Trivial(2),
    *OWN, SO(3) * Z(4), SO(2) * SU(2),
]  # fmt: skip

TYPES = [
    V, Scalar, Pseudoscalar, V.T, T(2), T(1, 1), 2 * Scalar + V, V * (Scalar + V), (V + Scalar) * (V.T + 2 * Scalar),
    V >> V, V**3,
]  # fmt: skip


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)
