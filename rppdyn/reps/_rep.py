"""The base class of representations bound to a group, and the operators that bound and unbound ones share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable
from functools import cached_property, reduce
from numbers import Integral
from typing import TYPE_CHECKING, TypeGuard

import torch
from jaxtyping import Inexact, Int
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from rppdyn.groups import Group, Matrices, compute_on_cpu, is_signed_permutation

if TYPE_CHECKING:
    from rppdyn.basis import Basis  # for the annotation of `solve`


class Algebra(ABC):
    """The operators that bound and unbound representations share."""

    @property
    @abstractmethod
    def T(self) -> Algebra:
        """The dual."""

    @abstractmethod
    def _sum(self, other, swap: bool): ...

    @abstractmethod
    def _product(self, other, swap: bool): ...

    @abstractmethod
    def _multiple(self, n: int): ...

    @abstractmethod
    def _one(self): ...

    def __add__(self, other):
        return self._sum(other, swap=False)

    def __radd__(self, other):
        return self if is_int(other) and other == 0 else self._sum(other, swap=True)  # so that sum([...]) works

    def __mul__(self, other):
        return self._multiple(other) if is_int(other) else self._product(other, swap=False)

    def __rmul__(self, other):
        return self._multiple(other) if is_int(other) else self._product(other, swap=True)

    def __pow__(self, n):
        if not is_int(n) or n < 0:
            raise ValueError(f"{self} ** {n!r}: a tensor power is a non-negative integer")
        check_factors(n, f"{self} ** {n}")
        return reduce(lambda a, b: a * b, [self] * n) if n else self._one()

    def __rshift__(self, other):
        """``rep_in >> rep_out``: the linear maps, as ``rep_out * rep_in.T``, row-major vec(W)."""
        return other * self.T

    def __rrshift__(self, other):
        return self * other.T


MAX_FACTORS = 64
"""Largest number of factors of a tensor product; even in two dimensions its coordinates would not fit in memory."""


def check_factors(n: int, product: str) -> None:
    """Refuse a tensor product of too many factors."""
    if n > MAX_FACTORS:
        raise ValueError(f"{product}: a product of {n} factors is beyond any memory; use {MAX_FACTORS} at most")


def is_int(value: object) -> TypeGuard[int]:
    return isinstance(value, Integral) and not isinstance(value, bool)


def check_multiplicity(n: int, rep) -> int:
    if n < 0:
        raise ValueError(f"{n} * {rep}: a multiplicity must not be negative")
    return n


TOLERANCE = 1e-9  # of equal matrices, relative to their largest entry or 1
MAX_DENSE_BYTES = 2**30  # of a dense projector
MAX_BYTES = 2**33  # of a representation's coordinates while it is split into its parts ...
BYTES_PER_COORDINATE = 64  # ... and of one of them


@compute_on_cpu
class Rep(Algebra):
    """A representation of a group: immutable, and equal to another if it has the same group and the same content."""

    G: Group
    dim: int

    def __init_subclass__(cls) -> None:
        compute_on_cpu(cls)

    @abstractmethod
    def rho(self, g: Inexact[Tensor, "*batch d d"]) -> Inexact[Tensor, "*batch n n"]:
        """The matrix of a group element, ``(..., d, d) -> (..., dim, dim)``."""

    def drho(self, A: Inexact[Tensor, "*batch d d"]) -> Inexact[Tensor, "*batch n n"]:
        """The matrix of a Lie-algebra element, by default the derivative of ``rho`` along it at the identity."""
        eye = torch.eye(self.G.d, dtype=A.dtype, device=A.device)
        flat = A.reshape(-1, self.G.d, self.G.d)
        derivatives = [torch.func.jvp(self.rho, (eye,), (a,))[1] for a in flat]
        images = torch.stack(derivatives) if derivatives else flat.new_zeros(0, self.dim, self.dim)
        return images.reshape(*A.shape[:-2], self.dim, self.dim)

    @abstractmethod
    def _content(self) -> tuple:
        """The data that distinguish this representation from others of its class and group."""

    @abstractmethod
    def _rebind(self, G: Group) -> Rep:
        """The same representation of a subgroup."""

    @property
    @abstractmethod
    def T(self) -> Rep:
        """The dual, ``rho(g)^-T``."""

    if TYPE_CHECKING:  # types of the operators of `Algebra`

        def __add__(self, other: Rep | builtin.RepType) -> Rep: ...

        def __mul__(self, other: Rep | builtin.RepType | int) -> Rep: ...

        def __rmul__(self, other: int) -> Rep: ...

        def __pow__(self, n: int) -> Rep: ...

        def __rshift__(self, other: Rep | builtin.RepType) -> Rep: ...

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

    def __delattr__(self, key):
        raise AttributeError(f"representations are immutable; cannot delete {key!r} of {self}")

    def _set(self, **values) -> None:
        self.__dict__.update(values)

    def __getstate__(self) -> dict:
        cached = {k for cls in type(self).__mro__ for k, v in vars(cls).items() if isinstance(v, cached_property)}
        return {k: v for k, v in self.__dict__.items() if k not in cached}

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
        """The distinct parts of the expanded direct sum, each with the coordinates of its copies.

        Products of sums are expanded, so each part is a product of leaves. For part ``k`` and its copy ``c``,
        ``v[index[c]]`` transforms as part ``k``.

        Raises:
            ValueError: the coordinates alone would not fit in memory.
        """
        self.require_countable()
        parts: dict[Rep, list[Tensor]] = {}
        for factors, index in self._expand():
            parts.setdefault(builtin.tensor_product(self.G, factors), []).append(index)
        return tuple((rep, torch.cat(indices)) for rep, indices in parts.items())

    def require_countable(self) -> None:
        """Refuse a representation that is too large to be split into its parts.

        Raises:
            ValueError: the coordinates alone would not fit in memory.
        """
        if (needed := BYTES_PER_COORDINATE * self.dim) > MAX_BYTES:
            raise ValueError(
                f"the basis of {self} of {self.G} needs about {needed} bytes to keep account of its {self.dim} coordinates, "
                f"more than {MAX_BYTES}; use a lower tensor power or fewer copies"
            )

    def _expand(self) -> list[tuple[tuple[Rep, ...], Tensor]]:
        """Parts of the expanded direct sum: the leaves of a product, and the coordinates (copies, dim) of its copies."""
        return [((self,), torch.arange(self.dim)[None])]

    @property
    def lie_generators(self) -> Inexact[Tensor, "D n n"]:
        """``drho`` of the group's Lie-algebra basis, a copy."""
        return self._lie_generators.clone()

    @property
    def discrete_generators(self) -> Inexact[Tensor, "M n n"]:
        """``rho`` of the group's discrete generators, a copy."""
        return self._discrete_generators.clone()

    @property
    def unit_lie_generators(self) -> Inexact[Tensor, "D n n"]:
        """``drho`` of the group's ``unit_lie_algebra``, which does not depend on the generators' lengths."""
        return self.lie_generators / self.G.lie_sizes

    @cached_property
    def _lie_generators(self) -> Tensor:
        return self.drho(self.G.lie_algebra)

    @cached_property
    def _discrete_generators(self) -> Tensor:
        return self.rho(self.G.discrete_generators)

    def _all_leaves(self, test: Callable[[Rep], bool]) -> bool:
        return all(test(leaf) for leaf in self._leaves())

    def _leaves(self) -> Iterable[Rep]:
        return (self,)

    @cached_property
    def is_signed_permutation(self) -> bool:
        """True if every element permutes the coordinates up to sign (and the Lie algebra acts by zero)."""
        return self._all_leaves(lambda r: not r.lie_generators.any() and is_signed_permutation(r.discrete_generators))

    @cached_property
    def is_permutation(self) -> bool:
        """True if every element permutes the coordinates, so that any function of each of them is equivariant."""
        return self.is_signed_permutation and self._all_leaves(lambda r: bool((r.discrete_generators.real >= 0).all()))

    @cached_property
    def is_trivial(self) -> bool:
        """True if every element acts as the identity."""

        def trivial(r: Rep) -> bool:
            eye = torch.eye(r.dim, dtype=r.dtype)
            return not r.lie_generators.any() and bool((r.discrete_generators == eye).all())

        return self._all_leaves(trivial)

    @cached_property
    def is_orthogonal(self) -> bool:
        """True if every element acts by an orthogonal (unitary) matrix."""

        def orthogonal(r: Rep) -> bool:
            h, A = r.discrete_generators, r.unit_lie_generators
            return are_close(h @ h.mH, torch.eye(r.dim, dtype=r.dtype)) and are_close(A, -A.mH)

        return self._all_leaves(orthogonal)

    @property
    def components(self) -> Int[Tensor, " n"]:
        """Labels of coordinates, equal for those that the group exchanges or mixes, numbered by first occurrence."""
        generators = torch.cat([self.unit_lie_generators, self.discrete_generators])
        pattern = (generators.abs() > TOLERANCE).any(0)
        return torch.from_numpy(connected_components(pattern.numpy(), directed=False)[1]).to(torch.int64)

    # -- algebra ------------------------------------------------------------------------------------------------------

    def _sum(self, other, swap):
        if isinstance(other, builtin.RepType):
            other = other(self.G)
        if not isinstance(other, Rep):
            return NotImplemented
        a, b = _same_group(self, other)
        return builtin.direct_sum(a.G, [(b, 1), (a, 1)] if swap else [(a, 1), (b, 1)])

    def _product(self, other, swap):
        if isinstance(other, builtin.RepType):
            other = other(self.G)
        if not isinstance(other, Rep):
            return NotImplemented
        a, b = _same_group(self, other)
        return builtin.tensor_product(a.G, [b, a] if swap else [a, b])

    def _multiple(self, n):
        return builtin.direct_sum(self.G, [(self, check_multiplicity(n, self))])

    def _one(self):
        return builtin.ScalarRep(self.G)

    def __abs__(self) -> Rep:
        r"""The representation that :math:`|\rho|` induces: permutations stay, signs go.

        Raises:
            ValueError: an element is no signed permutation, so :math:`|\rho|` is no representation.
        """
        if not self.is_signed_permutation:
            raise ValueError(f"abs({self}): |rho| is a representation only for signed permutations")
        return self if self.is_permutation else self._abs()

    def _abs(self) -> Rep:
        return builtin.AbsRep(self)

    def restrict(self, H: Group) -> Rep:
        """This representation, restricted to a subgroup ``H`` whose elements are the same matrices.

        Raises:
            ValueError: ``H`` acts on another dimension, its Lie algebra is not inside the group's, or one of its discrete
                generators is no element of the group. (A group that can't be enumerated is judged by its properties: if it is
                orthogonal, of (signed) permutations or of determinant 1, ``H`` must be, too.)
        """
        _check_subgroup(H, self.G)
        return self._rebind(H)

    def lift(self, G: Group, factor: int | None = None) -> Rep:
        """This representation as one of a direct product ``G``, in which the other factors act trivially.

        A product's factors may have another order in ``G``, with others in between.

        Args:
            factor: index of this representation's group in ``G.factors``; needed only if it occurs more than once.
        Raises:
            ValueError: ``G`` lacks a factor of this representation's group, or has one more often.
        """
        if G == self.G and factor is None:
            return self
        factors, all_factors = self.G.factors, G.factors
        starts = [i for i in range(len(all_factors) - len(factors) + 1) if all_factors[i : i + len(factors)] == factors]
        if factor is not None:
            if factor not in starts:
                raise ValueError(f"cannot lift {self}: factor {factor} of {G} is not {self.G}")
            starts = [factor]
        if len(starts) == 1:
            places = list(range(starts[0], starts[0] + len(factors)))
        else:
            for f in factors:
                if f not in all_factors:
                    raise ValueError(
                        f"cannot lift {self} from {self.G} to {G}: {f} is not a factor; take the product with it, as "
                        f"{G} * {f}"
                    )
                if all_factors.count(f) != factors.count(f):
                    raise ValueError(
                        f"cannot lift {self} from {self.G} to {G}: {f} is a factor more than once; say which by factor=i, in "
                        "rep.lift(G, factor=i) of a part of one factor"
                    )
            free = list(enumerate(all_factors))
            places = [free.pop([g for _, g in free].index(f))[0] for f in factors]
        sizes = [f.d for f in all_factors]
        offsets = [sum(sizes[:place]) for place in places]
        slot = tuple(i for f, offset in zip(factors, offsets, strict=True) for i in range(offset, offset + f.d))
        return self._lift(G, slot)

    def _lift(self, G: Group, slot: tuple[int, ...]) -> Rep:
        """This representation as one of ``G``, whose elements contain this group's in the rows and columns ``slot``."""
        return builtin.LiftedRep(self, G, slot)

    # -- solutions ----------------------------------------------------------------------------------------------------

    def solve(self) -> Basis:
        """The invariants of this representation as a lazy, certified basis."""
        from rppdyn.basis import solve  # which is built on this class

        return solve(self)

    def equivariant_basis(self) -> Inexact[Tensor, "n r"]:
        """Orthonormal basis of the invariants, dense, ``(dim, r)``."""
        return self.solve().dense()

    def equivariant_projector(self) -> Inexact[Tensor, "n n"]:
        """Orthogonal projector onto the invariants, dense, ``(dim, dim)``.

        Raises:
            ValueError: the projector would not fit in memory.
        """
        size = self.dim**2 * (16 if self.dtype.is_complex else 8)
        if size > MAX_DENSE_BYTES:
            raise ValueError(
                f"the dense projector of {self} of {self.G} has shape ({self.dim}, {self.dim}) and {size} bytes, more than "
                f"{MAX_DENSE_BYTES}; use the lazy rep.solve().project(v)"
            )
        Q = self.equivariant_basis()
        return Q @ Q.mH

    def check(self, n: int = 5, generator: torch.Generator | None = None) -> None:
        r"""Verify on samples that this is a representation.

        :math:`\rho(h_k g) = \rho(h_k) \rho(g)` for each discrete generator, and for each Lie generator
        :math:`\rho(\exp tA_i) = \exp t\,d\rho(A_i)` and :math:`\rho(\exp(tA_i) g) = \rho(\exp tA_i)\rho(g)`; for pairs
        of samples :math:`\rho(g_1 g_2) = \rho(g_1) \rho(g_2)`; and that a full turn goes to the identity.

        Raises:
            ValueError: it names the first generator for which one of them fails.
        """
        generator = generator if generator is not None else torch.Generator().manual_seed(0)
        g = self.G.samples(n, generator)
        eye = torch.eye(self.G.d, dtype=self.G.dtype)
        if not are_close(self.rho(eye), torch.eye(self.dim, dtype=self.dtype)):
            raise ValueError(f"{self} of {self.G} is no representation: rho(identity) is not the identity")
        for i, A in enumerate(self.G.unit_lie_algebra):
            exp_A = torch.linalg.matrix_exp(0.3 * A)
            if not are_close(self.rho(exp_A), torch.linalg.matrix_exp(0.3 * self.drho(A)), 1e-7):
                raise ValueError(
                    f"{self} of {self.G}: rho(exp tA) differs from exp(t drho(A)) for A = lie_algebra[{i}]"
                )
            if not are_close(self.rho(exp_A @ g), self.rho(exp_A) @ self.rho(g), 1e-7):
                raise ValueError(
                    f"{self} of {self.G}: rho(g1 g2) differs from rho(g1) rho(g2) for g1 = exp lie_algebra[{i}]"
                )
        for k, h in enumerate(self.G.discrete_generators):
            if not are_close(self.rho(h @ g), self.rho(h) @ self.rho(g), 1e-7):
                raise ValueError(
                    f"{self} of {self.G}: rho(g1 g2) differs from rho(g1) rho(g2) for g1 = discrete_generators[{k}]"
                )
        if not are_close(self.rho(g @ g.roll(1, 0)), self.rho(g) @ self.rho(g.roll(1, 0)), 1e-7):
            raise ValueError(
                f"{self} of {self.G}: rho(g1 g2) differs from rho(g1) rho(g2) for elements g1, g2 of the group"
            )
        matrices.check_full_turns(self)

    @staticmethod
    def from_generators(
        G: Group,
        lie_algebra: Matrices | None = None,
        discrete_generators: Matrices | None = None,
        name: str | None = None,
    ) -> Rep:
        """A representation given by the matrices of the group's generators.

        Args:
            lie_algebra: ``(D, n, n)``, the images of ``G.lie_algebra``.
            discrete_generators: ``(M, n, n)``, the images of ``G.discrete_generators``.
        Raises:
            ValueError: the matrices don't extend to a representation; the message names the generator.
        """
        return matrices.GeneratedRep(G, lie_algebra, discrete_generators, name)

    @staticmethod
    def from_function(G: Group, dim: int, rho: Callable[[Tensor], Tensor], name: str | None = None) -> Rep:
        """A representation given by a differentiable function ``rho(g)`` of one element, ``(d, d) -> (dim, dim)``.

        Its Lie-algebra action is the Jacobian-vector product of ``rho`` at the identity. Checked on samples.
        """
        return matrices.FunctionRep(G, dim, rho, name)


def are_close(a: Tensor, b: Tensor, tolerance: float = TOLERANCE) -> bool:
    """Check whether two matrices agree to ``tolerance``, relative to ``a``'s largest entry or 1, whichever is larger."""
    return a.numel() == 0 or bool((a - b).abs().max() <= tolerance * max(1.0, a.abs().max().item()))


SUBGROUP_PROPERTIES = {
    "is_orthogonal": "orthogonal",
    "is_signed_permutation": "a group of signed permutations",
    "is_permutation": "a group of permutations",
}
"""Properties of groups that all their subgroups inherit, with their names in messages."""


def _check_subgroup(H: Group, G: Group) -> None:
    if H.d != G.d:
        raise ValueError(f"{H} acts on {H.d} dimensions and {G} on {G.d}: not a subgroup of the same matrices")
    for i, A in enumerate(H.lie_algebra):
        if lie_coefficients(A[None], G)[1].max() > TOLERANCE:
            raise ValueError(f"{H} is no subgroup of {G}: lie_algebra[{i}] is not in the Lie algebra of {G}")
    for attribute, description in SUBGROUP_PROPERTIES.items():
        if getattr(G, attribute) and not getattr(H, attribute):
            raise ValueError(f"{H} is no subgroup of {G}: it is not {description}")
    for k, h in enumerate(H.discrete_generators):
        if not _may_belong(h, G):
            raise ValueError(f"{H} is no subgroup of {G}: discrete_generators[{k}] is not an element of {G}")


def _may_belong(h: Tensor, G: Group) -> bool:
    """Check whether a matrix is an element of a group, if that can be enumerated; else whether its determinant is possible."""
    if G.order is not None:
        return bool((G.elements() - h).abs().amax((1, 2)).min() <= 1e-6)
    volumes = torch.cat([G.lie_algebra.diagonal(dim1=1, dim2=2).sum(1), torch.linalg.det(G.discrete_generators) - 1])
    return bool((volumes.abs() > TOLERANCE).any()) or abs(torch.linalg.det(h).item() - 1) <= 1e-6


def lie_coefficients(A: Tensor, G: Group) -> tuple[Tensor, Tensor]:
    """Coefficients of ``A (n, d, d)`` in the Lie-algebra basis of ``G``, and the relative residual of each."""
    basis = G.lie_algebra.flatten(1).to(A.dtype)
    flat = A.flatten(1)
    coefficients = flat @ torch.linalg.pinv(basis) if len(basis) else flat.new_zeros(len(A), 0)
    residual = torch.linalg.vector_norm(flat - coefficients @ basis, dim=1)
    size = torch.linalg.vector_norm(flat, dim=1)
    return coefficients, residual / torch.where(size > 0, size, 1.0)


def _same_group(a: Rep, b: Rep) -> tuple[Rep, Rep]:
    """Both representations bound to one group: their own if it is the same, else a product with both as factors."""
    if a.G == b.G:
        return a, b
    if not Counter(b.G.factors) - Counter(a.G.factors):
        return a, b.lift(a.G)
    if not Counter(a.G.factors) - Counter(b.G.factors):
        return a.lift(b.G), b
    shared = [f for f in b.G.factors if f in a.G.factors]
    if shared:
        raise ValueError(f"{a.G} and {b.G} share {shared[0]}: lift both to one product with rep.lift(G) first")
    G = a.G * b.G
    return a.lift(G), b.lift(G)


# The operators above build subclasses of Rep, whose modules in turn need Rep, so these stand after it.
from rppdyn.reps import _builtin as builtin  # noqa: E402
from rppdyn.reps import _matrices as matrices  # noqa: E402
