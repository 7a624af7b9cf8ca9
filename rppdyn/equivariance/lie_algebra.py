r"""The algebra that a set of matrices generates, what commutes with it, and the symmetries of a linear regression.

A sum of operators :math:`y = \sum_i M_i x W^i` commutes with a matrix B on pixels, whatever its weights W are, exactly if B
commutes with every :math:`M_i`. So it is equivariant to their :func:`centraliser`, and not to the group that they generate,
which is in the centraliser only if they commute with each other.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

__all__ = [
    "algebra_penalties",
    "centraliser",
    "check_independent",
    "commutators",
    "killing_form",
    "regression_symmetries",
    "structure_constants",
]


def commutators(matrices: Float[Tensor, "k n n"]) -> Float[Tensor, "k k n n"]:
    """[M_i, M_j]."""
    products = matrices[:, None] @ matrices
    return products - products.transpose(0, 1)


def centraliser(matrices: Float[Tensor, "k n n"], *, rtol: float = 1e-9) -> Float[Tensor, "r n n"]:
    """An orthonormal basis of the matrices that commute with all of these; to 40 rows, since it has n^2 unknowns.

    Raises:
        ValueError: larger matrices.
    """
    n = matrices.shape[-1]
    if n > 40:
        raise ValueError(f"matrices of {n} rows: their centraliser has {n**2} unknowns; give at most 40 rows")
    one = torch.eye(n, dtype=torch.float64, device=matrices.device)
    generators = matrices.double()
    system = torch.cat([torch.kron(one, M.mT.contiguous()) - torch.kron(M, one) for M in generators])
    gram = system.mT @ system
    values, vectors = torch.linalg.eigh(gram)
    zero = values <= rtol**2 * n**2 + 1e-14 * values[-1].clamp_min(1e-300)
    return vectors[:, zero].mT.unflatten(1, (n, n))


def structure_constants(matrices: Float[Tensor, "k n n"]) -> tuple[Float[Tensor, "k k k"], Float[Tensor, ""]]:
    r"""f with :math:`[M_i, M_j] \approx \sum_k f_{ij}^k M_k` by least squares; the share of their squares that is left.

    Raises:
        ValueError: matrices that are dependent, of which f is not unique.
    """
    check_independent(matrices)
    return _structure_constants(matrices)


def _structure_constants(matrices: Float[Tensor, "k n n"]) -> tuple[Float[Tensor, "k k k"], Float[Tensor, ""]]:
    rows = matrices.flatten(1)
    brackets = commutators(matrices).flatten(2)
    f = torch.linalg.solve(rows @ rows.mT, brackets.flatten(0, 1) @ rows.mT, left=False).unflatten(
        0, brackets.shape[:2]
    )
    left = (brackets - f @ rows).square().sum()
    return f, left / brackets.square().sum().clamp_min(torch.finfo(rows.dtype).tiny)


def check_independent(matrices: Float[Tensor, "k m n"], what: str = "generators") -> None:
    """Refuse dependent matrices."""
    rows = matrices.detach().flatten(1)
    rows = rows.double() / rows.double().norm(dim=1, keepdim=True).clamp_min(1e-300)
    if len(rows) > rows.shape[1]:
        rank = int(torch.linalg.matrix_rank(rows))
    else:
        rank = int((torch.linalg.eigvalsh(rows @ rows.mT) > 1e-10).sum())
    if rank < len(rows):
        raise ValueError(f"{len(rows)} {what} of rank {rank} are dependent: leave out {len(rows) - rank} of them")


def killing_form(matrices: Float[Tensor, "k n n"]) -> Float[Tensor, "k k"]:
    r""":math:`K_{ij} = \sum_{kl} f_{ik}^l f_{jl}^k = tr(ad_i ad_j)`, of the algebra that the matrices span."""
    f, _ = structure_constants(matrices)
    return _killing(f)


def _killing(f: Float[Tensor, "k k k"]) -> Float[Tensor, "k k"]:
    return torch.einsum("ikl,jlk->ij", f, f)


def algebra_penalties(matrices: Float[Tensor, "k n n"]) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """Two shares between 0 and 1, differentiable: of commutators' squares what leaves the span (0 of a Lie algebra), and of the
    Killing form's squares what is off its diagonal (0 of an orthogonal basis, and of matrices that commute).

    Matrices that are dependent are not refused here, where they are in the middle of being learned.
    """
    f, left = _structure_constants(matrices)
    K = _killing(f).square()
    total = K.sum()
    return left, (total - K.diagonal().sum()) / total.clamp_min(torch.finfo(K.dtype).tiny)


def regression_symmetries(
    x: Float[Tensor, "N d"], y: Float[Tensor, "N c"] | None = None, *, rtol: float = 1e-8
) -> Float[Tensor, "k d d"] | tuple[Float[Tensor, "k d d"], Float[Tensor, "k c c"]]:
    r"""Generators of the symmetries of a linear regression: :math:`L = H^{1/2} L' H^{-1/2}`, L' antisymmetric.

    They keep the second moments :math:`H = x^T x / N`: :math:`L H + H L^T = 0`, an algebra isomorphic to so(d) (the group that
    keeps H is O(d), with reflections). With targets, those that keep :math:`C = y^T x` too, with a generator of their own on
    targets: :math:`L_c C + C L^T = 0`; the regression :math:`A = C (x^T x)^{-1}` is then equivariant, :math:`L_c A = A L`.

    Returns:
        all ``d (d - 1) / 2`` of them; with targets, a basis of the pairs (L, L_c) in which L is not zero.
    Raises:
        ValueError: second moments that are singular, of which there is no inverse root.
    Source: Dehmamy et al., Theorem 1 and Corollary 1.
    """
    count, d = x.shape
    inputs = x.double()
    values, vectors = torch.linalg.eigh(inputs.mT @ inputs / count)
    if values[0] <= values[-1] * d * torch.finfo(torch.float64).eps:
        raise ValueError(
            f"second moments of {count} inputs of {d} numbers are singular: give more inputs, or leave out dependent numbers"
        )
    root, inverse = (vectors * values ** (sign / 2) @ vectors.mT for sign in (1, -1))
    i, j = torch.triu_indices(d, d, 1)
    turns = torch.zeros(len(i), d, d, dtype=torch.float64)
    turns[torch.arange(len(i)), i, j], turns[torch.arange(len(i)), j, i] = -1.0, 1.0
    L = root @ turns @ inverse
    if y is None:
        return L
    C, c = y.double().mT @ inputs / count, y.shape[1]
    one = torch.eye(c, dtype=torch.float64)
    by_L = (C @ L.mT).flatten(1).mT  # columns are generators
    by_c = torch.einsum("ap,qd->adpq", one, C).flatten(2).flatten(0, 1)  # of L_c's entries (p, q)
    scale = C.norm().clamp_min(1e-300)
    _, singular, right = torch.linalg.svd(torch.cat([by_L, by_c], 1) / scale)
    null = right[int((singular > rtol * singular[0]).sum()) :]
    # pairs whose L is zero move targets alone, where they span less than all of R^c; leave those out
    a, b = null[:, : len(L)], null[:, len(L) :]
    u, size, _ = torch.linalg.svd(a, full_matrices=False)
    mix = u[:, size > rtol].mT
    return torch.einsum("ka,aij->kij", mix @ a, L), (mix @ b).unflatten(1, (c, c))
