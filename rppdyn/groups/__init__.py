r"""Matrix groups, given by a basis of their Lie algebra and by discrete generators.

Elements of the groups treated here are products :math:`\exp(\sum_i a_i A_i) \prod_k h_k` of the exponential of
the Lie algebra and a word in the discrete generators (Finzi 2023, Eq. A.10), so a linear map commutes with the whole
group if and only if it commutes with each :math:`A_i` and each :math:`h_k`.
"""

from __future__ import annotations

from rppdyn.groups.catalogue import (
    GL,
    O13,
    SL,
    SO,
    SO13,
    SU,
    D,
    DkeR3,
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
from rppdyn.groups.group import MAX_ORDER, Group, is_signed_permutation

__all__ = [
    "SO",
    "O",
    "GL",
    "SL",
    "Sp",
    "U",
    "SU",
    "Z",
    "S",
    "D",
    "SO13p",
    "SO13",
    "O13",
    "SO2eR3",
    "O2eR3",
    "DkeR3",
    "RubiksCube",
    "Trivial",
    "Group",
    "MAX_ORDER",
    "is_signed_permutation",
]
