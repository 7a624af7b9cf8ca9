"""Representations of the user's own: by a function of the group element, or by the images of the generators."""

from __future__ import annotations

import hashlib
import math
import warnings
from collections.abc import Callable
from functools import cached_property, reduce

import numpy as np
import torch
from torch import Tensor

from rppdyn.groups import Group, as_matrices
from rppdyn.reps._builtin import DualRep
from rppdyn.reps._rep import Rep, are_close, lie_coefficients

MAX_TABLE_NUMBERS = 2**23  # entries of all elements and images in a table; S(8) and its defining representation fit
MAX_ELEMENTS = 50_000  # of a table
MAX_DEPTH = 600  # letters of a word
MAX_WORDS = 128  # that are tried to find an element's image


class FunctionRep(Rep):
    """A representation given by a function of the group element."""

    function: Callable[[Tensor], Tensor]
    name: str

    def __init__(self, G: Group, dim: int, rho: Callable[[Tensor], Tensor], name: str | None = None):
        self._set(G=G, dim=dim, function=rho, name=name or f"rho({dim})")
        image = rho(torch.eye(G.d, dtype=G.dtype))
        if tuple(image.shape) != (dim, dim):
            raise ValueError(
                f"{self.name} of {G}: rho(g) has shape {tuple(image.shape)}, expected {(dim, dim)} for dim={dim}"
            )
        if image.is_complex() and not G.is_complex:
            raise ValueError(
                f"{self.name}: a representation of the real group {G} by complex matrices: give a real form of it"
            )
        self.check()

    def rho(self, g):
        if g.ndim == 2:
            image = self.function(g)
            return image.to(g.dtype) if g.is_complex() else image
        one_by_one = [self.rho(h) for h in g.reshape(-1, *g.shape[-2:])]
        images = torch.stack(one_by_one) if one_by_one else g.new_zeros(0, self.dim, self.dim)
        return images.reshape(*g.shape[:-2], self.dim, self.dim)

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

    _lie: Tensor
    _discrete: Tensor
    name: str

    def __init__(self, G: Group, lie_algebra=None, discrete_generators=None, name: str | None = None):
        lie = as_matrices(lie_algebra, "lie_algebra")
        discrete = as_matrices(discrete_generators, "discrete_generators")
        parts = [x for x in (lie, discrete) if x is not None]
        if not parts:
            raise ValueError(f"a representation of {G} needs the images of its generators; got none")
        dim, dtype = parts[0].shape[-1], reduce(torch.promote_types, [x.dtype for x in parts], G.dtype)
        if dtype.is_complex and not G.is_complex:
            raise ValueError(f"a representation of the real group {G} by complex matrices: give a real form of it")
        lie, discrete = (torch.zeros(0, dim, dim, dtype=dtype) if x is None else x.to(dtype) for x in (lie, discrete))
        for argument, images, count in (
            ("lie_algebra", lie, len(G.lie_algebra)),
            ("discrete_generators", discrete, len(G.discrete_generators)),
        ):
            if images.shape != (count, dim, dim):
                raise ValueError(
                    f"{argument} has shape {tuple(images.shape)}: {G} has {count} of them, so give {(count, dim, dim)}"
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
        """All elements and their images, if the group is finite and they fit in ``MAX_TABLE_NUMBERS``; else None."""
        if len(self._lie):
            return None
        if self.G.order is None:
            return _extend(self.G.discrete_generators, self._discrete, str(self))
        elements, images = map(torch.stack, zip(*self._words, strict=True))  # words of few elements are all of them
        for k, (h, image) in enumerate(zip(self.G.discrete_generators, self._discrete, strict=True)):
            places = torch.cdist(_real_rows(h @ elements), _real_rows(elements)).argmin(1)
            if not are_close(images[places], image @ images, 1e-7):
                raise ValueError(
                    f"{self} is no representation: discrete_generators[{k}] breaks a relation of the group, "
                    f"rho(g1 g2) differs from rho(g1) rho(g2)"
                )
        return elements, images

    def rho(self, g):
        flat = g.reshape(-1, *g.shape[-2:]).to(torch.promote_types(g.dtype, self.dtype)).detach().cpu()
        if self._table is not None:
            elements, images = self._table
            distance, index = torch.cdist(_real_rows(flat), _real_rows(elements)).min(1)
            if (distance > 1e-4).any():
                raise ValueError(f"{self}: a matrix that is not an element of {self.G} (distance {distance.max():.2g})")
            result = images[index]
        else:
            result = torch.stack([self._image(h) for h in flat]) if len(flat) else flat.new_zeros(0, 1, 1)
        return result.to(g).reshape(*g.shape[:-2], self.dim, self.dim)

    def _image(self, g: Tensor) -> Tensor:
        """The image of ``g = exp(A) exp(X) w``, with the first short word ``w`` and small ``X`` for which an ``A`` exists.

        ``X = 0`` nearly always works; elements whose logarithm is ambiguous (half turns) need another.
        """
        for X, image_X in self._steps:
            for h, image_h in self._words:
                coefficients = _logarithm(g @ torch.linalg.inv(X @ h), self.G)
                if coefficients is not None:
                    return _exp(coefficients, self._lie) @ image_X @ image_h
        raise ValueError(
            f"{self} of {self.G}: this element is not exp(A) times a short word of generators, so its image is "
            f"unknown; give the representation as a function instead (Rep.from_function)"
        )

    @cached_property
    def _steps(self) -> list[tuple[Tensor, Tensor]]:
        """A few elements of the identity component and their images, the identity first."""
        D = len(self._lie)
        a = torch.randn(6 if D else 0, D, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        a = torch.cat([a.new_zeros(1, D), a]).to(self._lie.dtype)
        return [(_exp(row, self.G.lie_algebra), _exp(row, self._lie)) for row in a]

    @cached_property
    def _words(self) -> list[tuple[Tensor, Tensor]]:
        """The first ``MAX_WORDS`` distinct words in the discrete generators and their images, the empty one first."""
        letters = list(zip(self.G.discrete_generators, self._discrete, strict=True))
        elements = [(torch.eye(self.G.d, dtype=self.dtype), torch.eye(self.dim, dtype=self.dtype))]
        for h, image in elements:  # the list grows in this loop
            for letter, image_letter in letters:
                g = letter @ h
                distances = (torch.stack([known for known, _ in elements]) - g).abs().amax((1, 2))
                if len(elements) < MAX_WORDS and distances.min() > 1e-6:
                    elements.append((g, image_letter @ image))
        return elements

    def drho(self, A):
        flat = A.reshape(-1, *A.shape[-2:]).to(torch.promote_types(A.dtype, self.dtype)).cpu()
        coefficients, residual = lie_coefficients(flat, self.G)
        if len(flat) and residual.max() > 1e-4 and flat.abs().max() > 0:
            raise ValueError(f"{self}: a matrix that is not in the Lie algebra of {self.G}")
        images = torch.einsum("ni,ijk->njk", coefficients, self._lie.to(coefficients.dtype))
        return images.to(A).reshape(*A.shape[:-2], self.dim, self.dim)

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


def _real_rows(x: Tensor) -> Tensor:
    return (torch.view_as_real(x) if x.is_complex() else x).reshape(len(x), -1).double()


def _digest(*tensors: Tensor) -> tuple:
    content = hashlib.sha256()
    for x in tensors:
        content.update(repr((tuple(x.shape), str(x.dtype))).encode() + (x + 0.0).contiguous().numpy().tobytes())
    return (content.digest(),)


def _extend(generators: Tensor, images: Tensor, name: str) -> tuple[Tensor, Tensor] | None:
    """All elements and their images; None beyond ``MAX_TABLE_NUMBERS``. Refuse images that depend on the word of an element.

    Elements are compared by their entries to six digits, which generators of full precision allow. For infinite groups it stops
    when entries grow, words reach ``MAX_DEPTH`` letters, or there are too many elements.
    """
    if ((torch.linalg.det(generators).abs() - 1).abs() > 1e-4).any():
        return None
    d, dim = generators.shape[-1], images.shape[-1]
    limit = min(MAX_ELEMENTS, MAX_TABLE_NUMBERS // (d * d + dim * dim))
    elements = [torch.eye(d, dtype=generators.dtype)]
    values = [torch.eye(dim, dtype=images.dtype)]
    places = {_rounded(elements[0][None])[0]: 0}
    position = 0
    for _ in range(MAX_DEPTH):
        frontier, frontier_images = torch.stack(elements[position:]), torch.stack(values[position:])
        position = len(elements)
        for k, (h, image) in enumerate(zip(generators, images, strict=True)):
            products, results = h @ frontier, image @ frontier_images
            if products.abs().max() > 1e6:
                return None
            known = torch.zeros(len(products), dtype=torch.int64)
            for i, key in enumerate(_rounded(products)):
                known[i] = places.setdefault(key, len(elements))
                if known[i] == len(elements):
                    elements.append(products[i])
                    values.append(results[i])
                    if len(elements) > limit:
                        return None
            if not are_close(torch.stack([values[i] for i in known]), results, 1e-7):
                raise ValueError(
                    f"{name} is no representation: discrete_generators[{k}] breaks a relation of the group, "
                    f"rho(g1 g2) differs from rho(g1) rho(g2)"
                )
        if position == len(elements):
            return torch.stack(elements), torch.stack(values)
    return None


def _rounded(x: Tensor) -> list[bytes]:
    rows = (_real_rows(x) * 1e6).round().to(torch.int64).numpy()
    return [hashlib.blake2b(row.tobytes(), digest_size=16).digest() for row in rows]


def _exp(coefficients: Tensor, lie: Tensor) -> Tensor:
    return torch.linalg.matrix_exp(torch.einsum("i,ijk->jk", coefficients.to(lie.dtype), lie))


def _logarithm(g: Tensor, G: Group) -> Tensor | None:
    """Coefficients of the principal logarithm of ``g`` in the Lie algebra, or None if it lies outside."""
    from scipy.linalg import logm, schur

    if are_close(g, torch.eye(G.d, dtype=g.dtype), 1e-7 if not len(G.lie_algebra) else 1e-14):
        return g.new_zeros(len(G.lie_algebra))
    if not len(G.lie_algebra):
        return None
    T, Z = map(torch.as_tensor, schur(g.numpy(), output="complex"))
    if are_close(T, T.diagonal().diag(), 1e-13):  # a rotation, say: logm does without this short cut
        log = (Z * T.diagonal().log()) @ Z.mH
    else:
        state = np.random.get_state()  # noqa: NPY002  SciPy draws from NumPy's global generator to estimate a norm
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)  # about its accuracy, which is checked below
                log = torch.as_tensor(logm(g.numpy()))
        finally:
            np.random.set_state(state)  # noqa: NPY002
    if not g.is_complex() and log.is_complex() and log.imag.abs().max() < 1e-9:
        log = log.real
    if log.dtype != g.dtype or not torch.isfinite(log.abs()).all():
        return None
    coefficients, residual = lie_coefficients(log[None], G)
    is_small = log.abs().max() < 1e-7
    is_exact = (is_small or residual.max() < 1e-6) and are_close(_exp(coefficients[0], G.lie_algebra), g, 1e-6)
    return coefficients[0] if is_exact else None


def _full_turn(A: Tensor) -> float | None:
    """The smallest ``t`` (of the first dozen candidates) with ``exp(tA) = 1``, or None."""
    eigenvalues = torch.linalg.eigvals(A)
    speeds = eigenvalues.imag.abs()
    if eigenvalues.real.abs().max() > 1e-9 or speeds.max() < 1e-9:
        return None
    slowest = speeds[speeds > 1e-9].min().item()
    eye = torch.eye(len(A), dtype=A.dtype)
    turns = (2 * math.pi * m / slowest for m in range(1, 13))
    return next((t for t in turns if are_close(torch.linalg.matrix_exp(t * A), eye)), None)


def _in_identity_component(rep: GeneratedRep, g: Tensor) -> Tensor | None:
    """The image of an element as a product of exponentials; None if the element is no such product, or none was found."""
    if not len(rep._lie):
        return None
    for X, image_X in rep._steps:
        coefficients = _logarithm(g @ torch.linalg.inv(X), rep.G)
        if coefficients is not None:
            return _exp(coefficients, rep._lie) @ image_X
    return None


def check_full_turns(rep: Rep) -> None:
    """Check that where a generator's exponential returns to the identity, that of its image does, too."""
    for i, (A, image) in enumerate(zip(rep.G.unit_lie_algebra, rep.unit_lie_generators, strict=True)):
        t = _full_turn(A)
        if t is not None and not are_close(
            torch.linalg.matrix_exp(t * image), torch.eye(rep.dim, dtype=rep.dtype), 1e-7
        ):
            raise ValueError(
                f"{rep} is no representation of {rep.G}: lie_algebra[{i}] turns by a full turn to the identity, and its image "
                "does not"
            )


def _check_relations(rep: GeneratedRep) -> None:
    """Check linearity, brackets, adjoint action, the identity component, full turns, and the relations of the group.

    Relations of large discrete groups are checked by the orders of short words only.
    """
    G, lie, discrete = rep.G, rep.lie_generators, rep.discrete_generators
    A, h = G.unit_lie_algebra, G.discrete_generators
    unit = rep.unit_lie_generators
    for i in range(len(A)):
        if not are_close(rep.drho(A[i]), unit[i], 1e-7):
            raise ValueError(
                f"{rep} is no representation of {G}: lie_algebra[{i}] depends linearly on the others, and its image does not"
            )
        for j in range(i):
            bracket = A[i] @ A[j] - A[j] @ A[i]
            c, _ = lie_coefficients(bracket[None], G)
            outside = bracket - torch.einsum("i,ijk->jk", c[0].to(A.dtype), G.lie_algebra)
            if outside.norm() > 1e-6 * A[i].norm() * A[j].norm():
                raise ValueError(
                    f"{rep} of {G}: [lie_algebra[{j}], lie_algebra[{i}]] is no sum of the Lie algebra's generators, so it "
                    "has no image; give the group a basis of its whole Lie algebra"
                )
            if not are_close(unit[i] @ unit[j] - unit[j] @ unit[i], torch.einsum("i,ijk->jk", c[0], lie), 1e-7):
                raise ValueError(f"{rep} is no representation of {G}: it breaks [lie_algebra[{j}], lie_algebra[{i}]]")
    for k in range(len(h)):
        image, tolerance = _in_identity_component(rep, h[k]), 1e-7 * float(torch.linalg.cond(h[k]))  # of the logarithm
        if image is not None and not are_close(image, discrete[k], tolerance):
            raise ValueError(
                f"{rep} is no representation of {G}: discrete_generators[{k}] is a product of exponentials of the Lie algebra, "
                "and its image is not that of the same product"
            )
        if torch.linalg.matrix_rank(discrete[k]) < rep.dim:
            raise ValueError(f"{rep} is no representation of {G}: the image of discrete_generators[{k}] is singular")
        if len(A):
            c, _ = lie_coefficients(h[k] @ A @ torch.linalg.inv(h[k]), G)
            expected = torch.einsum("ni,ijk->njk", c, lie)
            if not are_close(discrete[k] @ unit @ torch.linalg.inv(discrete[k]), expected, 1e-7):
                raise ValueError(
                    f"{rep} is no representation of {G}: discrete_generators[{k}] breaks the adjoint action"
                )
    check_full_turns(rep)
    if rep._table is not None:  # computing it raises if a relation is broken
        return
    for k in range(len(h)):
        for j in range(k + 1):
            g, image = (h[k], discrete[k]) if j == k else (h[k] @ h[j], discrete[k] @ discrete[j])
            power, value = g, image
            for _ in range(120):
                if are_close(power, torch.eye(G.d, dtype=G.dtype)):
                    if not are_close(value, torch.eye(rep.dim, dtype=rep.dtype), 1e-7):
                        raise ValueError(
                            f"{rep} is no representation of {G}: discrete_generators[{k}] breaks a relation of the group"
                        )
                    break
                power, value = power @ g, value @ image


def regular(G: Group) -> Rep:
    """The regular representation of a finite group: ``G`` permutes its own elements, with the identity as coordinate 0.

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
