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

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import TYPE_CHECKING

import torch
from jaxtyping import Inexact, Int
from torch import Tensor

from rppdyn.groups import MAX_ORDER, Group, is_signed_permutation

if TYPE_CHECKING:
    from rppdyn.basis import Basis

__all__ = ["V", "Scalar", "Pseudoscalar", "T", "Rep", "RepType", "regular"]

_TOLERANCE = 1e-9


class _Algebra:
    """The operators that bound and unbound representations share."""

    def __add__(self, other):
        return self._sum(other, swap=False)

    def __radd__(self, other):
        return self if _is_int(other) and other == 0 else self._sum(other, swap=True)  # so that sum([...]) works

    def __mul__(self, other):
        return self._multiple(other) if _is_int(other) else self._product(other, swap=False)

    def __rmul__(self, other):
        return self._multiple(other) if _is_int(other) else self._product(other, swap=True)

    def __pow__(self, n):
        if not _is_int(n) or n < 0:
            raise ValueError(f"{self} ** {n!r}: a tensor power is a non-negative integer")
        return reduce(lambda a, b: a * b, [self] * n) if n else self._one()

    def __rshift__(self, other):
        """``rep_in >> rep_out``: the linear maps, as ``rep_out * rep_in.T``, row-major vec(W)."""
        return other * self.T

    def __rrshift__(self, other):
        return self * other.T


def _is_int(value) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


# -- types, not bound to a group --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RepType(_Algebra):
    """An expression in ``V``, ``Scalar``, ``Pseudoscalar`` and ``T(p, q)`` that waits for a group."""

    operation: str
    arguments: tuple = ()

    def __call__(self, G: Group) -> Rep:
        """The representation of ``G`` that this expression describes."""
        if not isinstance(G, Group):
            raise ValueError(f"{self} is called with a group, such as {self}(SO(3)); got {G!r}")
        match self.operation, self.arguments:
            case "tensor", (p, q):
                vector = VectorRep(G)
                return _product(G, [vector] * p + [vector.T] * q)
            case "pseudoscalar", ():
                return PseudoscalarRep(G)
            case "sum", terms:
                return _sum(G, [(rep(G), n) for rep, n in terms])
            case "product", factors:
                return _product(G, [rep(G) for rep in factors])
            case "dual", (rep,):
                return rep(G).T
            case "abs", (rep,):
                return abs(rep(G))
        raise AssertionError(self.operation)

    @property
    def T(self) -> RepType:
        return RepType("dual", (self,))

    def __abs__(self) -> RepType:
        return RepType("abs", (self,))

    def _sum(self, other, swap):
        if isinstance(other, Rep):
            return self(other.G)._sum(other, swap)
        if not isinstance(other, RepType):
            return NotImplemented
        first, second = (other, self) if swap else (self, other)
        return RepType("sum", ((first, 1), (second, 1)))

    def _product(self, other, swap):
        if isinstance(other, Rep):
            return self(other.G)._product(other, swap)
        if not isinstance(other, RepType):
            return NotImplemented
        return RepType("product", (other, self) if swap else (self, other))

    def _multiple(self, n):
        return RepType("sum", ((self, _check_multiplicity(n, self)),))

    def _one(self):
        return Scalar

    def __repr__(self) -> str:
        match self.operation, self.arguments:
            case "tensor", (p, q):
                return f"T({p},{q})" if q else "V" if p == 1 else f"T({p})" if p else "Scalar"
            case "sum", terms:
                return "(" + " + ".join(f"{n}*{rep}" if n != 1 else f"{rep}" for rep, n in terms) + ")"
            case "product", factors:
                return "*".join(map(repr, factors))
            case "dual", (rep,):
                return f"{rep}.T"
            case "abs", (rep,):
                return f"abs({rep})"
        return "Pseudoscalar"


def T(p: int, q: int = 0) -> RepType:
    """Tensors of rank (p, q): p factors V and q factors V*; for orthogonal groups V* is V."""
    if not (_is_int(p) and _is_int(q)) or p < 0 or q < 0:
        raise ValueError(f"T({p!r}, {q!r}): both ranks must be non-negative integers")
    return RepType("tensor", (p, q))


V = T(1)
Scalar = T(0)
Pseudoscalar = RepType("pseudoscalar")


# -- bound to a group -------------------------------------------------------------------------------------------------


class Rep(_Algebra, ABC):
    """A representation of a group: immutable, and equal to another if it has the same group and the same content."""

    G: Group
    dim: int

    @abstractmethod
    def rho(self, g: Inexact[Tensor, "*batch d d"]) -> Inexact[Tensor, "*batch n n"]:
        """The matrix of a group element, ``(..., d, d) -> (..., dim, dim)``."""

    def drho(self, A: Inexact[Tensor, "*batch d d"]) -> Inexact[Tensor, "*batch n n"]:
        """The matrix of a Lie-algebra element, by default the derivative of ``rho`` along it at the identity."""
        eye = torch.eye(self.G.d, dtype=A.dtype, device=A.device)
        flat = A.reshape(-1, self.G.d, self.G.d)
        images = [torch.func.jvp(self.rho, (eye,), (a,))[1] for a in flat]
        images = torch.stack(images) if images else flat.new_zeros(0, self.dim, self.dim)
        return images.reshape(*A.shape[:-2], self.dim, self.dim)

    @abstractmethod
    def _content(self) -> tuple:
        """What distinguishes this representation from others of its class, apart from the group."""

    @abstractmethod
    def _rebind(self, G: Group) -> Rep:
        """The same representation of a subgroup."""

    @property
    @abstractmethod
    def T(self) -> Rep:
        """The dual, ``rho(g)^-T``."""

    # -- identity -----------------------------------------------------------------------------------------------------

    @cached_property
    def _key(self) -> tuple:
        return type(self).__name__, self.G, self._content()

    def __eq__(self, other) -> bool:
        return isinstance(other, Rep) and (self is other or self._key == other._key)

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash(self._key)

    def __setattr__(self, key, value):
        raise AttributeError(f"representations are immutable; cannot set {key!r} of {self}")

    def _set(self, **values) -> None:
        self.__dict__.update(values)

    def __getstate__(self) -> dict:
        cached = {k for cls in type(self).__mro__ for k, v in vars(cls).items() if isinstance(v, cached_property)}
        return {k: v for k, v in self.__dict__.items() if k not in cached}

    def __setstate__(self, state: dict) -> None:
        self.__dict__.update(state)

    def __copy__(self):
        return self

    def __deepcopy__(self, memo):
        return self

    # -- structure ----------------------------------------------------------------------------------------------------

    @property
    def dtype(self) -> torch.dtype:
        return self.G.dtype

    @property
    def terms(self) -> tuple[tuple[Rep, int], ...]:
        """The direct sum in coordinate order, as ``(representation, multiplicity)``; no term is a sum."""
        return ((self, 1),)

    @property
    def factors(self) -> tuple[Rep, ...]:
        """The factors of a tensor product; no factor is a product."""
        return (self,)

    def blocks(self) -> tuple[tuple[Rep, Int[Tensor, "multiplicity dim"]], ...]:
        """The distinct parts of the expanded direct sum, each with the coordinates that its copies occupy.

        Products of sums are expanded, so each part is a product of leaves. For part ``k`` and its copy ``c``,
        ``v[index[c]]`` transforms as part ``k``.
        """
        parts: dict[Rep, list[Tensor]] = {}
        for leaves, index in self._expand():
            parts.setdefault(_product(self.G, leaves), []).append(index)
        return tuple((rep, torch.cat(indices)) for rep, indices in parts.items())

    def _expand(self) -> list[tuple[tuple[Rep, ...], Tensor]]:
        return [((self,), torch.arange(self.dim)[None])]

    @cached_property
    def lie_generators(self) -> Inexact[Tensor, "D n n"]:
        """``drho`` of the group's Lie-algebra basis."""
        return self.drho(self.G.lie_algebra)

    @cached_property
    def discrete_generators(self) -> Inexact[Tensor, "M n n"]:
        """``rho`` of the group's discrete generators."""
        return self.rho(self.G.discrete_generators)

    def _all_leaves(self, test: Callable[[Rep], bool]) -> bool:
        return all(test(leaf) for leaf in self._leaves())

    def _leaves(self) -> Iterable[Rep]:
        return (self,)

    @cached_property
    def is_signed_permutation(self) -> bool:
        """Whether every element permutes the coordinates up to sign (and the Lie algebra acts by zero)."""
        return self._all_leaves(lambda r: not r.lie_generators.any() and is_signed_permutation(r.discrete_generators))

    @cached_property
    def is_permutation(self) -> bool:
        """Whether every element permutes the coordinates."""
        return self.is_signed_permutation and self._all_leaves(lambda r: bool((r.discrete_generators.real >= 0).all()))

    @cached_property
    def is_trivial(self) -> bool:
        """Whether every element acts as the identity."""

        def trivial(r: Rep) -> bool:
            eye = torch.eye(r.dim, dtype=r.dtype)
            return not r.lie_generators.any() and bool((r.discrete_generators == eye).all())

        return self._all_leaves(trivial)

    @cached_property
    def is_orthogonal(self) -> bool:
        """Whether every element acts by an orthogonal (unitary) matrix."""

        def orthogonal(r: Rep) -> bool:
            h, A = r.discrete_generators, r.lie_generators
            return _near(h @ h.mH, torch.eye(r.dim, dtype=r.dtype)) and _near(A, -A.mH)

        return self._all_leaves(orthogonal)

    # -- algebra ------------------------------------------------------------------------------------------------------

    def _sum(self, other, swap):
        if isinstance(other, RepType):
            other = other(self.G)
        if not isinstance(other, Rep):
            return NotImplemented
        a, b = _same_group(self, other)
        return _sum(a.G, [(b, 1), (a, 1)] if swap else [(a, 1), (b, 1)])

    def _product(self, other, swap):
        if isinstance(other, RepType):
            other = other(self.G)
        if not isinstance(other, Rep):
            return NotImplemented
        a, b = _same_group(self, other)
        return _product(a.G, [b, a] if swap else [a, b])

    def _multiple(self, n):
        return _sum(self.G, [(self, _check_multiplicity(n, self))])

    def _one(self):
        return ScalarRep(self.G)

    def __abs__(self) -> Rep:
        r"""The representation that :math:`|\rho|` induces: permutations stay, signs go.

        Raises:
            ValueError: an element acts by something other than a signed permutation, so :math:`|\rho|` is none.
        """
        if not self.is_signed_permutation:
            raise ValueError(f"abs({self}): |rho| is a representation only for signed permutations")
        return self if self.is_permutation else self._abs()

    def _abs(self) -> Rep:
        return AbsRep(self)

    def restrict(self, H: Group) -> Rep:
        """This representation, restricted to a subgroup ``H`` whose elements are the same matrices.

        Raises:
            ValueError: the Lie algebra of ``H`` is not inside the group's, a discrete generator of ``H`` is not an
                element of an enumerable group, or ``H`` acts on another dimension.
        """
        _check_subgroup(H, self.G)
        return self._rebind(H)

    def lift(self, G: Group, factor: int | None = None) -> Rep:
        """This representation as one of a direct product ``G``, in which the other factors act trivially.

        Args:
            factor: which of ``G.factors`` this representation's group is; needed only where it occurs more than once.
        """
        if G == self.G and factor is None:
            return self
        own, others = self.G.factors, G.factors
        if factor is None:
            starts = [i for i in range(len(others) - len(own) + 1) if others[i : i + len(own)] == own]
            if len(starts) != 1:
                what = "is not a factor" if not starts else "is a factor more than once; say which by factor=i"
                raise ValueError(f"cannot lift {self} from {self.G} to {G}: {self.G} {what}")
            factor = starts[0]
        elif others[factor : factor + len(own)] != own:
            raise ValueError(f"cannot lift {self}: factor {factor} of {G} is not {self.G}")
        return self._lift(G, sum(f.d for f in others[:factor]))

    def _lift(self, G: Group, offset: int) -> Rep:
        return LiftedRep(self, G, offset)

    # -- solutions ----------------------------------------------------------------------------------------------------

    def solve(self) -> Basis:
        """The invariants of this representation as a lazy, certified basis."""
        from rppdyn.basis import solve  # the solver stands one floor up and is built on representations

        return solve(self)

    def equivariant_basis(self) -> Inexact[Tensor, "n r"]:
        """Orthonormal basis of the invariants, dense, ``(dim, r)``."""
        return self.solve().dense()

    def equivariant_projector(self) -> Inexact[Tensor, "n n"]:
        """Orthogonal projector onto the invariants, dense, ``(dim, dim)``."""
        Q = self.equivariant_basis()
        return Q @ Q.mH

    def check(self, n: int = 5, generator: torch.Generator | None = None) -> None:
        r"""Verify on samples that this is a representation.

        :math:`\rho(h_k g) = \rho(h_k) \rho(g)` for each discrete generator, :math:`\rho(\exp tA_i) = \exp t\,d\rho(A_i)`
        and :math:`\rho(\exp(tA_i) g) = \rho(\exp tA_i)\rho(g)` for each Lie generator.

        Raises:
            ValueError: naming the first generator for which one of them fails.
        """
        generator = generator if generator is not None else torch.Generator().manual_seed(0)
        g = self.G.samples(n, generator)
        eye = torch.eye(self.G.d, dtype=self.G.dtype)
        if not _near(self.rho(eye), torch.eye(self.dim, dtype=self.dtype)):
            raise ValueError(f"{self} of {self.G} is no representation: rho(identity) is not the identity")
        for i, A in enumerate(self.G.lie_algebra):
            exp_A = torch.linalg.matrix_exp(0.3 * A)
            if not _near(self.rho(exp_A), torch.linalg.matrix_exp(0.3 * self.drho(A)), 1e-7):
                raise ValueError(f"{self} of {self.G}: rho(exp tA) differs from exp(t drho(A)) for A = lie_algebra[{i}]")
            if not _near(self.rho(exp_A @ g), self.rho(exp_A) @ self.rho(g), 1e-7):
                raise ValueError(
                    f"{self} of {self.G}: rho(g1 g2) differs from rho(g1) rho(g2) for g1 = exp lie_algebra[{i}]"
                )
        for k, h in enumerate(self.G.discrete_generators):
            if not _near(self.rho(h @ g), self.rho(h) @ self.rho(g), 1e-7):
                raise ValueError(
                    f"{self} of {self.G}: rho(g1 g2) differs from rho(g1) rho(g2) for g1 = discrete_generators[{k}]"
                )

    @staticmethod
    def from_generators(G: Group, lie_algebra=None, discrete_generators=None, name: str | None = None) -> Rep:
        """A representation given by the matrices of the group's generators.

        Args:
            lie_algebra: ``(D, n, n)``, the images of ``G.lie_algebra``.
            discrete_generators: ``(M, n, n)``, the images of ``G.discrete_generators``.
        Raises:
            ValueError: the matrices don't extend to a representation, naming the generator at fault.
        """
        return GeneratedRep(G, lie_algebra, discrete_generators, name)

    @staticmethod
    def from_function(G: Group, dim: int, rho: Callable[[Tensor], Tensor], name: str | None = None) -> Rep:
        """A representation given by a differentiable function ``rho(g)`` of one element, ``(d, d) -> (dim, dim)``.

        Its Lie-algebra action is the Jacobian-vector product of ``rho`` at the identity. Checked on samples.
        """
        return FunctionRep(G, dim, rho, name)


def _check_multiplicity(n: int, rep) -> int:
    if n < 0:
        raise ValueError(f"{n} * {rep}: a multiplicity must not be negative")
    return n


def _near(a: Tensor, b: Tensor, tolerance: float = _TOLERANCE) -> bool:
    return a.numel() == 0 or bool((a - b).abs().max() <= tolerance * max(1.0, a.abs().max().item()))


def _check_subgroup(H: Group, G: Group) -> None:
    if H.d != G.d:
        raise ValueError(f"{H} acts on {H.d} dimensions and {G} on {G.d}: not a subgroup of the same matrices")
    for i, A in enumerate(H.lie_algebra):
        if _coefficients(A[None], G)[1].max() > _TOLERANCE:
            raise ValueError(f"{H} is no subgroup of {G}: lie_algebra[{i}] is not in the Lie algebra of {G}")
    if G.is_orthogonal and not H.is_orthogonal:
        raise ValueError(f"{H} is no subgroup of {G}: it is not orthogonal")
    if G.order is not None:
        for k, h in enumerate(H.discrete_generators):
            if (G.elements() - h).abs().amax((1, 2)).min() > 1e-6:
                raise ValueError(f"{H} is no subgroup of {G}: discrete_generators[{k}] is not an element of {G}")


def _coefficients(A: Tensor, G: Group) -> tuple[Tensor, Tensor]:
    """Coefficients of ``A (n, d, d)`` in the Lie-algebra basis of ``G``, and the relative residual of each."""
    basis = G.lie_algebra.reshape(len(G.lie_algebra), -1).to(A.dtype)
    flat = A.reshape(len(A), -1)
    coefficients = flat @ torch.linalg.pinv(basis) if len(basis) else flat.new_zeros(len(A), 0)
    residual = torch.linalg.vector_norm(flat - coefficients @ basis, dim=1)
    return coefficients, residual / torch.linalg.vector_norm(flat, dim=1).clamp_min(1e-12)


def _same_group(a: Rep, b: Rep) -> tuple[Rep, Rep]:
    """Both representations bound to one group: their own if it is the same, else the product that holds both."""
    if a.G == b.G:
        return a, b
    if set(b.G.factors) <= set(a.G.factors) and len(b.G.factors) < len(a.G.factors):
        return a, b.lift(a.G)
    if set(a.G.factors) <= set(b.G.factors) and len(a.G.factors) < len(b.G.factors):
        return a.lift(b.G), b
    shared = [f for f in b.G.factors if f in a.G.factors]
    if shared:
        raise ValueError(f"{a.G} and {b.G} share {shared[0]}: lift both to one product with rep.lift(G) first")
    G = a.G * b.G
    return a.lift(G), b.lift(G)


# -- leaves -----------------------------------------------------------------------------------------------------------


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

    def _lift(self, G, offset):
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

    def _lift(self, G, offset):
        return self.of._lift(G, offset).T

    @property
    def T(self):
        return self.of

    def __repr__(self):
        return f"{self.of}*"


class AbsRep(Rep):
    """``|rho|`` of a signed-permutation leaf."""

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

    def _lift(self, G, offset):
        return abs(self.of._lift(G, offset))

    @property
    def T(self):
        return self

    def __repr__(self):
        return f"|{self.of}|"


class LiftedRep(Rep):
    """A leaf of one factor of a direct product, acting through that factor's diagonal block."""

    def __init__(self, of: Rep, G: Group, offset: int):
        self._set(G=G, dim=of.dim, of=of, offset=offset)

    def _own(self, g: Tensor) -> Tensor:
        slot = slice(self.offset, self.offset + self.of.G.d)
        g = g[..., slot, slot]
        # A real factor of a product that is complex through another factor still acts by real matrices.
        return g.real if g.is_complex() and not self.of.G.is_complex else g

    def rho(self, g):
        return self.of.rho(self._own(g)).to(g.dtype)

    def drho(self, A):
        return self.of.drho(self._own(A)).to(A.dtype)

    def _content(self):
        return self.of, self.offset

    def _rebind(self, G):
        return Rep.from_generators(G, self.drho(G.lie_algebra), self.rho(G.discrete_generators), repr(self))

    def _lift(self, G, offset):
        return LiftedRep(self.of, G, offset + self.offset)

    @property
    def T(self):
        dual = self.of.T
        return self if dual == self.of else LiftedRep(dual, self.G, self.offset)

    def __repr__(self):
        return f"{self.of}[{self.of.G}]"


class FunctionRep(Rep):
    """A representation given by a function of the group element."""

    def __init__(self, G: Group, dim: int, rho: Callable[[Tensor], Tensor], name: str | None = None):
        self._set(G=G, dim=dim, function=rho, name=name or f"rho({dim})")
        shape = tuple(rho(torch.eye(G.d, dtype=G.dtype)).shape)
        if shape != (dim, dim):
            raise ValueError(f"{self.name} of {G}: rho(g) has shape {shape}, expected {(dim, dim)} for dim={dim}")
        self.check()

    def rho(self, g):
        if g.ndim == 2:
            return self.function(g)
        flat = [self.function(h) for h in g.reshape(-1, *g.shape[-2:])]
        flat = torch.stack(flat) if flat else g.new_zeros(0, self.dim, self.dim)
        return flat.reshape(*g.shape[:-2], self.dim, self.dim)

    def _content(self):
        return _digest(self.lie_generators, self.discrete_generators)

    def _rebind(self, G):
        return FunctionRep(G, self.dim, self.function, self.name)

    @property
    def T(self):
        return self if self.is_orthogonal and not self.G.is_complex else DualRep(self)

    def __repr__(self):
        return self.name


class GeneratedRep(Rep):
    """A representation given by the images of the group's generators."""

    def __init__(self, G: Group, lie_algebra=None, discrete_generators=None, name: str | None = None):
        lie, discrete = (_images(x, what) for x, what in
                         ((lie_algebra, "lie_algebra"), (discrete_generators, "discrete_generators")))  # fmt: skip
        known = [x for x in (lie, discrete) if x is not None]
        if not known:
            raise ValueError(f"a representation of {G} needs the images of its generators; got none")
        dim, dtype = known[0].shape[-1], reduce(torch.promote_types, [x.dtype for x in known], G.dtype)
        if dtype.is_complex and not G.is_complex:
            raise ValueError(f"a representation of the real group {G} by complex matrices: give a real form of it")
        lie, discrete = (torch.zeros(0, dim, dim, dtype=dtype) if x is None else x.to(dtype) for x in (lie, discrete))
        for what, images, expected in (
            ("lie_algebra", lie, len(G.lie_algebra)),
            ("discrete_generators", discrete, len(G.discrete_generators)),
        ):
            if images.shape != (expected, dim, dim):
                raise ValueError(
                    f"{what} has shape {tuple(images.shape)}: {G} has {expected} of them, so give {(expected, dim, dim)}"
                )
        self._set(G=G, dim=dim, _lie=lie, _discrete=discrete, name=name or f"rho({dim})")
        _check_relations(self)

    @property
    def lie_generators(self):
        return self._lie.clone()

    @property
    def discrete_generators(self):
        return self._discrete.clone()

    @cached_property
    def _table(self) -> tuple[Tensor, Tensor] | None:
        return _extend(self.G.discrete_generators, self._discrete, str(self)) if not len(self._lie) else None

    def rho(self, g):
        flat = g.reshape(-1, *g.shape[-2:]).to(torch.promote_types(g.dtype, self.dtype)).detach()
        if self.G.order is not None:
            elements, images = self._table
            distance, index = torch.cdist(_real_rows(flat), _real_rows(elements)).min(1)
            if (distance > 1e-4).any():
                raise ValueError(f"{self}: a matrix that is not an element of {self.G} (distance {distance.max():.2g})")
            result = images[index.cpu()].to(g.device)
        else:
            result = torch.stack([self._image(h) for h in flat.cpu()]) if len(flat) else flat.new_zeros(0, 1, 1)
        return result.to(g.dtype).reshape(*g.shape[:-2], self.dim, self.dim)

    def _image(self, g: Tensor) -> Tensor:
        """The image of one element ``exp(A) w``: the first short word ``w`` for which ``log(g w^-1)`` is in the algebra."""
        from scipy.linalg import logm

        letters = list(zip(self.G.discrete_generators, self._discrete, strict=True))
        words = [(torch.eye(self.G.d, dtype=g.dtype), torch.eye(self.dim, dtype=g.dtype))]
        seen = 0
        while seen < len(words):
            h, image = words[seen]
            seen += 1
            log = torch.as_tensor(logm((g @ torch.linalg.inv(h)).numpy()))
            if not g.is_complex() and log.is_complex() and log.imag.abs().max() < 1e-9:
                log = log.real
            if log.dtype == g.dtype and torch.isfinite(log.abs()).all():
                if log.abs().max() < 1e-7:
                    return image
                coefficients, residual = _coefficients(log[None], self.G)
                if residual.max() < 1e-6:
                    return torch.linalg.matrix_exp(torch.einsum("i,ijk->jk", coefficients[0], self._lie)) @ image
            if len(words) < MAX_ORDER:
                words += [(a @ h, b @ image) for a, b in letters]
        raise ValueError(
            f"{self} of {self.G}: this element is not exp(A) times a short word of generators, so its image is unknown; "
            f"give the representation as a function instead (Rep.from_function)"
        )

    def drho(self, A):
        flat = A.reshape(-1, *A.shape[-2:]).to(torch.promote_types(A.dtype, self.dtype))
        coefficients, residual = _coefficients(flat, self.G)
        if len(flat) and residual.max() > 1e-4 and flat.abs().max() > 0:
            raise ValueError(f"{self}: a matrix that is not in the Lie algebra of {self.G}")
        images = torch.einsum("ni,ijk->njk", coefficients, self._lie.to(coefficients.dtype))
        return images.to(A.dtype).reshape(*A.shape[:-2], self.dim, self.dim)

    def _content(self):
        return _digest(self._lie, self._discrete)

    def _rebind(self, G):
        return GeneratedRep(G, self.drho(G.lie_algebra), self.rho(G.discrete_generators), self.name)

    @property
    def T(self):
        if self.is_orthogonal and not self.G.is_complex:
            return self
        return GeneratedRep(self.G, -self._lie.mT, torch.linalg.inv(self._discrete).mT, f"{self.name}*")

    def __repr__(self):
        return self.name


def _images(value, what: str) -> Tensor | None:
    if value is None:
        return None
    images = torch.stack([torch.as_tensor(v) for v in value]) if len(value) else None
    if images is not None and (images.ndim != 3 or images.shape[1] != images.shape[2]):
        raise ValueError(f"{what} has shape {tuple(images.shape)}; give square matrices stacked as (n, dim, dim)")
    return None if images is None else images.detach().cpu().to(
        torch.complex128 if images.is_complex() else torch.float64, copy=True)  # fmt: skip


def _real_rows(x: Tensor) -> Tensor:
    return (torch.view_as_real(x) if x.is_complex() else x).reshape(len(x), -1).double()


def _digest(*tensors: Tensor) -> tuple:
    content = hashlib.sha256()
    for x in tensors:
        content.update(repr((tuple(x.shape), str(x.dtype))).encode() + (x + 0.0).contiguous().numpy().tobytes())
    return (content.digest(),)


def _extend(generators: Tensor, images: Tensor, name: str) -> tuple[Tensor, Tensor]:
    """All elements of a finite group beside their images; the map must not depend on the word."""
    elements = [torch.eye(generators.shape[-1], dtype=generators.dtype)]
    values = [torch.eye(images.shape[-1], dtype=images.dtype)]
    position = 0
    while position < len(elements):
        for k, (h, image) in enumerate(zip(generators, images, strict=True)):
            g, value = h @ elements[position], image @ values[position]
            distance = (torch.stack(elements) - g).abs().amax((1, 2))
            if distance.min() > 1e-6:
                elements.append(g)
                values.append(value)
            elif not _near(values[int(distance.argmin())], value, 1e-7):
                raise ValueError(
                    f"{name} is no representation: discrete_generators[{k}] breaks a relation of the group, "
                    f"rho(g1 g2) differs from rho(g1) rho(g2)"
                )
        position += 1
    return torch.stack(elements), torch.stack(values)


def _check_relations(rep: GeneratedRep) -> None:
    """Brackets, adjoint action and (for enumerable groups, else orders of short words) the relations of the group."""
    G, lie, discrete = rep.G, rep.lie_generators, rep.discrete_generators
    A, h = G.lie_algebra, G.discrete_generators
    for i in range(len(A)):
        for j in range(i):
            c, residual = _coefficients((A[i] @ A[j] - A[j] @ A[i])[None], G)
            if residual.max() < 1e-6 or (A[i] @ A[j] - A[j] @ A[i]).abs().max() < 1e-9:
                expected = torch.einsum("i,ijk->jk", c[0], lie)
                if not _near(lie[i] @ lie[j] - lie[j] @ lie[i], expected, 1e-7):
                    raise ValueError(f"{rep} is no representation of {G}: it breaks [lie_algebra[{j}], lie_algebra[{i}]]")
    for k in range(len(h)):
        if torch.linalg.matrix_rank(discrete[k]) < rep.dim:
            raise ValueError(f"{rep} is no representation of {G}: the image of discrete_generators[{k}] is singular")
        if len(A):
            c, _ = _coefficients(h[k] @ A @ torch.linalg.inv(h[k]), G)
            expected = torch.einsum("ni,ijk->njk", c, lie)
            if not _near(discrete[k] @ lie @ torch.linalg.inv(discrete[k]), expected, 1e-7):
                raise ValueError(f"{rep} is no representation of {G}: discrete_generators[{k}] breaks the adjoint action")
    if G.order is not None:
        _ = rep._table  # raises where a relation is broken
        return
    for k in range(len(h)):
        for j in range(k + 1):
            g, image = (h[k], discrete[k]) if j == k else (h[k] @ h[j], discrete[k] @ discrete[j])
            power, value = g, image
            for _ in range(120):
                if _near(power, torch.eye(G.d, dtype=G.dtype)):
                    if not _near(value, torch.eye(rep.dim, dtype=rep.dtype), 1e-7):
                        raise ValueError(
                            f"{rep} is no representation of {G}: discrete_generators[{k}] breaks a relation of the group"
                        )
                    break
                power, value = power @ g, value @ image


# -- sums and products ------------------------------------------------------------------------------------------------


def _sum(G: Group, terms: Iterable[tuple[Rep, int]]) -> Rep:
    merged: list[tuple[Rep, int]] = []
    for rep, n in terms:
        # n copies of one leaf stay one term; n copies of a sum repeat its terms, because the layout does.
        inner = [(r, m * n) for r, m in rep.terms] if len(rep.terms) == 1 else list(rep.terms) * n
        for r, m in inner:
            if merged and merged[-1][0] == r:
                merged[-1] = (r, merged[-1][1] + m)
            elif m:
                merged.append((r, m))
    return merged[0][0] if len(merged) == 1 and merged[0][1] == 1 else SumRep(G, tuple(merged))


class SumRep(Rep):
    """A direct sum, in the order in which it was written."""

    def __init__(self, G: Group, terms: tuple[tuple[Rep, int], ...]):
        self._set(G=G, dim=sum(r.dim * n for r, n in terms), _terms=terms)

    @property
    def terms(self):
        return self._terms

    def _block_diagonal(self, x: Tensor, blocks: list[Tensor]) -> Tensor:
        result = x.new_zeros(*x.shape[:-2], self.dim, self.dim)
        start = 0
        for (rep, n), block in zip(self._terms, blocks, strict=True):
            index = start + torch.arange(n * rep.dim, device=x.device).reshape(n, rep.dim)
            result[..., index[:, :, None], index[:, None, :]] = block[..., None, :, :]
            start += n * rep.dim
        return result

    def rho(self, g):
        return self._block_diagonal(g, [rep.rho(g) for rep, _ in self._terms])

    def drho(self, A):
        return self._block_diagonal(A, [rep.drho(A) for rep, _ in self._terms])

    def _content(self):
        return self._terms

    def _rebind(self, G):
        return _sum(G, [(rep._rebind(G), n) for rep, n in self._terms])

    def _lift(self, G, offset):
        return _sum(G, [(rep._lift(G, offset), n) for rep, n in self._terms])

    def _abs(self):
        return _sum(self.G, [(abs(rep), n) for rep, n in self._terms])

    def _leaves(self):
        return (leaf for rep, _ in self._terms for leaf in rep._leaves())

    def _expand(self):
        parts, start = [], 0
        for rep, n in self._terms:
            copies = start + rep.dim * torch.arange(n)[:, None, None]
            parts += [(leaves, (copies + index).reshape(-1, index.shape[1])) for leaves, index in rep._expand()]
            start += rep.dim * n
        return parts

    @property
    def T(self):
        return _sum(self.G, [(rep.T, n) for rep, n in self._terms])

    def __repr__(self):
        return " + ".join(f"{n}*{rep}" if n != 1 else f"{rep}" for rep, n in self._terms) or "0"


def _product(G: Group, factors: Iterable[Rep]) -> Rep:
    """The tensor product, in its simplest form with the same layout.

    Products are flattened, factors of the trivial one-dimensional representation dropped, and a sum in the first place
    is distributed over; ``a * (b + c)`` stays a product, because its coordinates interleave those of b and c.
    """
    flat = [leaf for rep in factors for leaf in rep.factors if not isinstance(leaf, ScalarRep)]
    if len(flat) > 1 and isinstance(flat[0], SumRep):
        return _sum(G, [(_product(G, [rep, *flat[1:]]), n) for rep, n in flat[0].terms])
    return ScalarRep(G) if not flat else flat[0] if len(flat) == 1 else ProductRep(G, tuple(flat))


class ProductRep(Rep):
    """A tensor product, coordinates in row-major order of the factors' coordinates."""

    def __init__(self, G: Group, factors: tuple[Rep, ...]):
        self._set(G=G, dim=math.prod(r.dim for r in factors), _factors=factors)

    @property
    def factors(self):
        return self._factors

    def rho(self, g):
        return reduce(_kron, [rep.rho(g) for rep in self._factors])

    def drho(self, A):
        images = [rep.drho(A) for rep in self._factors]

        def kron_sum(a: Tensor, b: Tensor) -> Tensor:
            eyes = (torch.eye(x.shape[-1], dtype=x.dtype, device=x.device) for x in (a, b))
            eye_a, eye_b = eyes
            return _kron(a, eye_b) + _kron(eye_a, b)

        return reduce(kron_sum, images)

    def _content(self):
        return self._factors

    def _rebind(self, G):
        return _product(G, [rep._rebind(G) for rep in self._factors])

    def _lift(self, G, offset):
        return _product(G, [rep._lift(G, offset) for rep in self._factors])

    def _abs(self):
        return _product(self.G, [abs(rep) for rep in self._factors])

    def _leaves(self):
        return (leaf for rep in self._factors for leaf in rep._leaves())

    def _expand(self):
        parts = [((), torch.zeros(1, 1, dtype=torch.int64))]
        for rep in self._factors:
            parts = [
                (
                    leaves + more,
                    (index[:, None, :, None] * rep.dim + inner[None, :, None, :]).reshape(len(index) * len(inner), -1),
                )
                for leaves, index in parts
                for more, inner in rep._expand()
            ]
        return parts

    @property
    def T(self):
        return _product(self.G, [rep.T for rep in self._factors])

    def __repr__(self):
        if all(isinstance(r, VectorRep) for r in self._factors):
            return f"T{len(self._factors)}"
        names = [f"({r})" if isinstance(r, SumRep) else repr(r) for r in self._factors]
        return "*".join(names)


def _kron(a: Tensor, b: Tensor) -> Tensor:
    product = torch.einsum("...ij,...kl->...ikjl", a, b)
    return product.reshape(*product.shape[:-4], a.shape[-2] * b.shape[-2], a.shape[-1] * b.shape[-1])


def regular(G: Group) -> Rep:
    """The regular representation of a finite group: ``G`` permutes its own elements, coordinate 0 being the identity.

    Raises:
        ValueError: the group is infinite or has more than ``MAX_ORDER`` elements.
    """
    elements = G.elements()
    images = []
    for h in G.discrete_generators:
        target = torch.cdist(_real_rows(h @ elements), _real_rows(elements)).argmin(1)
        image = torch.zeros(len(elements), len(elements), dtype=torch.float64)
        image[target, torch.arange(len(elements))] = 1
        images.append(image)
    return Rep.from_generators(G, None, torch.stack(images).to(G.dtype), name=f"R{len(elements)}")
