"""The representations from which the others are built, and their duals, absolute values and lifts."""

from __future__ import annotations

import torch
from torch import Tensor

from rppdyn.groups import Group
from rppdyn.reps.rep import Rep


class ScalarRep(Rep):
    """The trivial representation on one dimension."""

    def __init__(self, G: Group):
        self._set(G=G, dim=1)

    def rho(self, g):
        return torch.ones_like(g[..., :1, :1])

    def drho(self, A):
        return torch.zeros_like(A[..., :1, :1])

    def _content(self):
        return ()

    def _rebind(self, G):
        return ScalarRep(G)

    def _lift(self, G, slot):
        return ScalarRep(G)

    def _expand(self):
        return [((), torch.zeros(1, 1, dtype=torch.int64))]

    @property
    def T(self):
        return self

    def __repr__(self):
        return "T0"


class PseudoscalarRep(Rep):
    """One dimension on which an element acts by the sign of its determinant (its phase for a complex group)."""

    def __init__(self, G: Group):
        self._set(G=G, dim=1)

    def rho(self, g):
        return torch.sgn(torch.linalg.det(g))[..., None, None]

    def drho(self, A):
        trace = A.diagonal(dim1=-2, dim2=-1).sum(-1)[..., None, None]
        return 1j * trace.imag if A.is_complex() else torch.zeros_like(trace)

    def _content(self):
        return ()

    def _rebind(self, G):
        return PseudoscalarRep(G)

    @property
    def T(self):
        return DualRep(self) if self.G.is_complex else self

    def __repr__(self):
        return "P"


class VectorRep(Rep):
    """The defining representation: an element acts as the matrix that it is."""

    def __init__(self, G: Group):
        self._set(G=G, dim=G.d)

    def rho(self, g):
        return g

    def drho(self, A):
        return A

    def _content(self):
        return ()

    def _rebind(self, G):
        return VectorRep(G)

    @property
    def T(self):
        return self if self.G.is_orthogonal and not self.G.is_complex else DualRep(self)

    def __repr__(self):
        return "T1"


class DualRep(Rep):
    """The dual of a leaf, ``rho(g)^-T``."""

    of: Rep

    def __init__(self, of: Rep):
        self._set(G=of.G, dim=of.dim, of=of)

    def rho(self, g):
        return torch.linalg.inv(self.of.rho(g)).mT

    def drho(self, A):
        return -self.of.drho(A).mT

    def _content(self):
        return (self.of,)

    def _rebind(self, G):
        return self.of._rebind(G).T

    def _lift(self, G, slot):
        return self.of._lift(G, slot).T

    @property
    def T(self):
        return self.of

    def __repr__(self):
        return f"{self.of}*"


class AbsRep(Rep):
    """``|rho|`` of a signed-permutation leaf."""

    of: Rep

    def __init__(self, of: Rep):
        self._set(G=of.G, dim=of.dim, of=of)

    def rho(self, g):
        return self.of.rho(g).abs()

    def drho(self, A):
        return torch.zeros_like(self.of.drho(A))

    def _content(self):
        return (self.of,)

    def _rebind(self, G):
        return abs(self.of._rebind(G))

    def _lift(self, G, slot):
        return abs(self.of._lift(G, slot))

    @property
    def T(self):
        return self

    def __repr__(self):
        return f"|{self.of}|"


class LiftedRep(Rep):
    """A leaf of factors of a direct product, acting through their diagonal block, on the coordinates ``slot``."""

    of: Rep
    slot: tuple[int, ...]

    def __init__(self, of: Rep, G: Group, slot: tuple[int, ...]):
        self._set(G=G, dim=of.dim, of=of, slot=slot)

    def _own(self, g: Tensor) -> Tensor:
        slot = torch.tensor(self.slot, device=g.device)
        g = g[..., slot[:, None], slot]
        # A real factor of a product that is complex through another factor still acts by real matrices.
        return g.real if g.is_complex() and not self.of.G.is_complex else g

    def rho(self, g):
        return self.of.rho(self._own(g)).to(g.dtype)

    def drho(self, A):
        return self.of.drho(self._own(A)).to(A.dtype)

    def _content(self):
        return self.of, self.slot

    def _rebind(self, G):
        return Rep.from_generators(G, self.drho(G.lie_algebra), self.rho(G.discrete_generators), repr(self))

    def _lift(self, G, slot):
        return LiftedRep(self.of, G, tuple(slot[i] for i in self.slot))

    @property
    def T(self):
        dual = self.of.T
        return self if dual == self.of else LiftedRep(dual, self.G, self.slot)

    def __repr__(self):
        return f"{self.of}[{self.of.G}]"
