r"""Representations of a group and their algebra.

A representation is first a *type*, not bound to a group (``V``, ``T(2)``, ``5 * T(0) + 5 * T(1)``), and becomes a
:class:`Rep` when called with one. Sums keep the order in which they are written, because that is the layout of the
user's data; the solver finds and shares equal parts by itself.

>>> from rppdyn.groups import SO
>>> rep = (5 * T(0) + 5 * T(1))(SO(3))
>>> rep, rep.dim
(5*T0 + 5*T1, 20)
>>> (V >> V)(SO(3)).equivariant_basis().shape
torch.Size([9, 1])
"""

from __future__ import annotations

from rppdyn.reps._rep import Rep  # isort: skip  (the base class first)
from rppdyn.reps._builtin import Pseudoscalar, RepType, Scalar, T, V
from rppdyn.reps._matrices import regular

__all__ = ["V", "Scalar", "Pseudoscalar", "T", "Rep", "RepType", "regular"]
