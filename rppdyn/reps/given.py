"""Representations given by the user: by a function of the group element, or by the images of the generators."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import cached_property, reduce

import torch
from torch import Tensor

from rppdyn.groups import MAX_ORDER, Group
from rppdyn.reps.leaves import DualRep
from rppdyn.reps.rep import Rep, coefficients_in, near


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
        """The image of ``exp(A) w``, for the first short word ``w`` for which ``log(g w^-1)`` is in the algebra."""
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
                coefficients, residual = coefficients_in(log[None], self.G)
                if residual.max() < 1e-6:
                    return torch.linalg.matrix_exp(torch.einsum("i,ijk->jk", coefficients[0], self._lie)) @ image
            if len(words) < MAX_ORDER:
                words += [(a @ h, b @ image) for a, b in letters]
        raise ValueError(
            f"{self} of {self.G}: this element is not exp(A) times a short word of generators, so its image is "
            f"unknown; give the representation as a function instead (Rep.from_function)"
        )

    def drho(self, A):
        flat = A.reshape(-1, *A.shape[-2:]).to(torch.promote_types(A.dtype, self.dtype))
        coefficients, residual = coefficients_in(flat, self.G)
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
            elif not near(values[int(distance.argmin())], value, 1e-7):
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
            c, residual = coefficients_in((A[i] @ A[j] - A[j] @ A[i])[None], G)
            if residual.max() < 1e-6 or (A[i] @ A[j] - A[j] @ A[i]).abs().max() < 1e-9:
                expected = torch.einsum("i,ijk->jk", c[0], lie)
                if not near(lie[i] @ lie[j] - lie[j] @ lie[i], expected, 1e-7):
                    raise ValueError(
                        f"{rep} is no representation of {G}: it breaks [lie_algebra[{j}], lie_algebra[{i}]]"
                    )
    for k in range(len(h)):
        if torch.linalg.matrix_rank(discrete[k]) < rep.dim:
            raise ValueError(f"{rep} is no representation of {G}: the image of discrete_generators[{k}] is singular")
        if len(A):
            c, _ = coefficients_in(h[k] @ A @ torch.linalg.inv(h[k]), G)
            expected = torch.einsum("ni,ijk->njk", c, lie)
            if not near(discrete[k] @ lie @ torch.linalg.inv(discrete[k]), expected, 1e-7):
                raise ValueError(
                    f"{rep} is no representation of {G}: discrete_generators[{k}] breaks the adjoint action"
                )
    if G.order is not None:
        _ = rep._table  # raises where a relation is broken
        return
    for k in range(len(h)):
        for j in range(k + 1):
            g, image = (h[k], discrete[k]) if j == k else (h[k] @ h[j], discrete[k] @ discrete[j])
            power, value = g, image
            for _ in range(120):
                if near(power, torch.eye(G.d, dtype=G.dtype)):
                    if not near(value, torch.eye(rep.dim, dtype=rep.dtype), 1e-7):
                        raise ValueError(
                            f"{rep} is no representation of {G}: discrete_generators[{k}] breaks a relation of "
                            f"the group"
                        )
                    break
                power, value = power @ g, value @ image


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
