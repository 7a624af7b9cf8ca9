r"""Joint isotypic decomposition of several representations ("sites") whose generated algebra is self-adjoint.

Everything that commutes with the algebra commutes with a random symmetric element X of it, hence is block-diagonal
over the eigenspaces E_i of X. On an irreducible type k (with multiplicity m_k) X is a random symmetric matrix of the
type's own matrix algebra over R, C or H, so it has d_k, d_k/2 or d_k/4 distinct eigenvalues, each eigenspace being
m_k copies of R, C or H. A second random element Y links the eigenspaces: its block Y_ji: E_i -> E_j is a scalar (a
unit of R, C or H times a length) times an isometry inside a type and zero between types. A maximal spanning forest of
strong links therefore *is* the list of types; the polar factors of Y_ji along it carry one orthonormal basis of the
root to all eigenspaces, the same way on all sites. What is left to know is how random elements act on the root: by
scalars (real type), by one imaginary unit J (complex), or by three (quaternionic).

Upper bound of the number of maps: one commuting W is determined by its block at each root, and that block commutes
with the root's units, which leaves sum_k units_k m_k m'_k. Lower bound: the residual of each of the maps written down.
The two agree, which is the certificate; it rests on eigenvalue gaps, link strengths and loop strengths, whose minimum
is `gap`.

Over the complex numbers all types are "real" (Schur).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rppdyn.basis.problem import Array, Factor, chain_apply
from rppdyn.basis.sampling import Sampler
from rppdyn.basis.subspace import unit_matrices

SPLIT = 1e-7  # eigenvalues closer than this (relative to the spread) belong together ...
WITHIN = 1e-11  # ... and then must agree to this
COMFORT = 2e-6  # smallest eigenvalue gap that needs no further draw
LINK = 1e-3  # blocks of Y stronger than this link two eigenspaces of one type
NOISE = 1e-9  # blocks weaker than this are zero; between the two the draw is discarded
DRAWS = 8
CHUNK = 2**24  # entries of the generators' matrices held at a time when residuals are measured


class Ambiguous(Exception):
    """A draw of random elements did not separate the types; another may."""


@dataclass(frozen=True)
class TypeBlock:
    """One irreducible type: dimension, number of units (1, 2, 4), and per site its multiplicity and first column in U."""

    dim: int
    units: int
    multiplicities: tuple[int, ...]
    starts: tuple[int, ...]


@dataclass(frozen=True)
class Decomposition:
    """Symmetry-adapted bases of the sites.

    Args:
        u: per site, (n, n) unitary, columns ordered (type, multiplicity, component).
        types: irreducible types, ordered by dimension, then by first occurrence.
        gap: the smallest of the gaps the completeness rests on.
        residual: per site and type, largest |(rho - I (x) D) on one copy| / sqrt(d), relative to the constraint's
            scale.
        orthonormality: largest |U^H U - I|.
    """

    u: tuple[Array, ...]
    types: tuple[TypeBlock, ...]
    gap: float
    residual: Array
    orthonormality: float


def decompose(
    factors: Sequence[Factor], sites: Sequence[tuple[int, ...]], theta: Array, seed: int = 0
) -> Decomposition:
    """Decompose the sites jointly.

    Args:
        factors: distinct factors of one group.
        sites: products of factors, tuples of indices into `factors`; list equal sites once.
        theta: adjoint map of the factors.
        seed: of the internal random draws; the answer is a function of the arguments alone.
    Raises:
        Ambiguous: no draw separated the types.
    """
    best: Decomposition | None = None
    reason = "no draw"
    for draw in range(DRAWS):
        rng = np.random.default_rng([seed, draw])
        try:
            found = _attempt(factors, sites, Sampler(factors, sites, theta, rng), rng)
        except Ambiguous as e:
            reason = str(e)
            continue
        if best is None or found.residual.max(initial=0.0) < best.residual.max(initial=0.0):
            best = found
        if (best.gap >= COMFORT and best.residual.max(initial=0.0) <= 1e-11) or draw >= 3:
            break
    if best is None:
        raise Ambiguous(reason)
    return best


def _attempt(
    factors: Sequence[Factor], sites: Sequence[tuple[int, ...]], sampler: Sampler, rng: np.random.Generator
) -> Decomposition:
    """One draw: eigenspaces, links, roots, bases, residuals."""
    weights = rng.standard_normal((6, sampler.size)) / sampler.size**0.5
    if factors[0].lie.dtype.kind == "c":  # real combinations of SU(2) are quaternions: their eigenvalues never separate
        weights = weights + 1j * rng.standard_normal((6, sampler.size)) / sampler.size**0.5
    elements = [sampler.algebra_elements(s, weights) for s in range(len(sites))]
    eigen = [np.linalg.eigh((y[0] + y[0].conj().T) / 2) for y in elements]
    clusters, gap = _cluster([w for w, _ in eigen])
    vectors = [v for _, v in eigen]
    links = [v.conj().T @ (y[1] @ v) for v, y in zip(vectors, elements, strict=True)]
    trees, link_gap = _forest(links, clusters)
    gap = min(gap, link_gap)
    types = []
    for tree in trees:
        units, roots, loop_gap = _root(tree[0][0], vectors, elements, clusters)
        gap = min(gap, loop_gap)
        types.append((tree, units, _carry(tree, roots, links, clusters)))
    types.sort(key=lambda t: len(t[0]) * t[1])  # stable: equal dimensions stay in the order of X's eigenvalues
    u, blocks = _assemble(types, vectors, clusters)
    residual, orthonormality = _residuals(factors, sites, u, blocks)
    return Decomposition(u, blocks, gap, residual, orthonormality)


def _cluster(eigenvalues: list[Array]) -> tuple[list[Array], float]:
    """Boundaries of the eigenspaces, per site (K + 1,), and the smallest relative gap between neighbours."""
    values = np.sort(np.concatenate(eigenvalues))
    scale = max(np.abs(values).max(), 1e-300)
    steps = np.diff(values) / scale
    cuts = steps > SPLIT
    if (steps[~cuts] > WITHIN).any():
        raise Ambiguous("eigenvalues of a random element nearly coincide")
    edges = np.concatenate([[-np.inf], (values[1:][cuts] + values[:-1][cuts]) / 2, [np.inf]])
    gap = float(steps[cuts].min(initial=1.0))
    return [np.searchsorted(w, edges) for w in eigenvalues], gap


Tree = list[tuple[int, int, bool]]


def _forest(links: list[Array], clusters: list[Array]) -> tuple[list[Tree], float]:
    """Maximal spanning forest over the eigenspaces, and its weakest link.

    Returns:
        per tree its (cluster, parent, whether the stronger block is Y_parent,cluster), root first with parent -1.
    """
    count = len(clusters[0]) - 1
    strength = np.zeros((count, count))
    for y, bounds in zip(links, clusters, strict=True):
        sizes = np.diff(bounds)
        present = np.flatnonzero(sizes)
        norms = np.add.reduceat(np.add.reduceat(np.abs(y) ** 2, bounds[present], 0), bounds[present], 1)
        norms = np.sqrt(norms / np.minimum.outer(sizes[present], sizes[present]))
        strength[np.ix_(present, present)] = np.maximum(strength[np.ix_(present, present)], norms)
    reversed_ = strength < strength.T
    strength = np.maximum(strength, strength.T)
    scale = strength.max()
    np.fill_diagonal(strength, 0.0)
    sizes = np.stack([np.diff(b) for b in clusters])
    tree_of = np.full(count, -1)
    trees: list[Tree] = []
    weakest = 1.0
    best, parent = np.zeros(count), np.full(count, -1)
    for _ in range(count):
        waiting = tree_of < 0
        j = int(np.argmax(np.where(waiting, best, -1.0)))
        if best[j] <= LINK * scale:
            j = int(np.flatnonzero(waiting)[0])
            trees.append([])
            best[:], parent[:] = 0.0, -1
        else:
            weakest = min(weakest, best[j] / scale)
        tree_of[j] = len(trees) - 1
        trees[-1].append((j, int(parent[j]), bool(reversed_[j, parent[j]])))
        better = strength[j] > best
        best[better], parent[better] = strength[j][better], j
        if (sizes[:, j] != sizes[:, trees[-1][0][0]]).any():
            raise Ambiguous("a random element links eigenspaces of different size")
    across = strength[tree_of[:, None] != tree_of[None, :]].max(initial=0.0)
    if across > NOISE * scale:
        raise Ambiguous("links between eigenspaces are neither strong nor zero")
    return trees, weakest


def _root(r: int, vectors: list[Array], elements: list[Array], clusters: list[Array]) -> tuple[int, list[Array], float]:
    """How the algebra acts on a root: number of units, per site an adapted basis of it, strength of the units."""
    spaces = [v[:, b[r] : b[r + 1]] for v, b in zip(vectors, clusters, strict=True)]
    loops = [np.matmul(e.conj().T, np.matmul(y[1:], e)) for e, y in zip(spaces, elements, strict=True)]
    total = sum(e.shape[1] for e in spaces)
    adjoint = [x.conj().transpose(0, 2, 1) for x in loops]
    complex_ = np.iscomplexobj(loops[0])
    scalar = sum(np.trace(x, axis1=1, axis2=2) for x in loops) / total
    scale = max(
        float(np.linalg.norm(y[1], 2)) if len(y[1]) < 8 else float(np.linalg.norm(y[1])) / len(y[1]) ** 0.5
        for y in elements
    )
    symmetric = loops if complex_ else [(x + h) / 2 for x, h in zip(loops, adjoint, strict=True)]
    deviation = max(
        (float(np.abs(x - scalar[:, None, None] * np.eye(x.shape[-1])).max(initial=0.0)) for x in symmetric),
        default=0.0,
    )
    if deviation > NOISE * scale:
        raise Ambiguous("two types share an eigenspace")
    if complex_:
        return 1, [np.eye(e.shape[1], dtype=e.dtype) for e in spaces], 1.0
    skew = [(x - h) / 2 for x, h in zip(loops, adjoint, strict=True)]
    stacked = np.concatenate([x.reshape(len(x), -1) for x in skew], axis=1) / total**0.5
    left, sigma, _ = np.linalg.svd(stacked, full_matrices=False)
    sigma = sigma / scale
    rank = int((sigma > LINK).sum())
    if (sigma[rank:] > NOISE).any() or rank not in (0, 1, 3):
        raise Ambiguous("the algebra's action on an eigenspace is of no division algebra's form")
    if rank == 0:
        return 1, [np.eye(e.shape[1]) for e in spaces], 1.0
    # J_u = sum_l left[l, u] loop_l, scaled so that J J^T = 1; trace-orthogonal units anticommute
    units = [np.tensordot(left[:, :rank].T, x, 1) for x in skew]
    lengths = np.sqrt(sum((u**2).sum((1, 2)) for u in units) / total)
    units = [u / lengths[:, None, None] for u in units]
    adapted = [_adapt_complex(u[0]) if rank == 1 else _adapt_quaternionic(u[0], u[1]) for u in units]
    return rank + 1, adapted, float(sigma[rank - 1])


def _adapt_complex(j: Array) -> Array:
    """Orthonormal columns (e_1, J e_1, e_2, J e_2, ...) for a skew J with J^2 = -1."""
    if not len(j):
        return np.zeros((0, 0))
    values, vectors = np.linalg.eigh(1j * j)
    u = vectors[:, values > 0] * 2**0.5  # i J u = u, so J Re u = Im u
    if np.abs(np.abs(values) - 1).max() > NOISE or 2 * u.shape[1] != len(j):
        raise Ambiguous("the complex unit of an eigenspace does not square to -1")
    return np.stack([u.real, u.imag], axis=2).reshape(len(j), -1)


def _adapt_quaternionic(i: Array, j: Array) -> Array:
    """Orthonormal columns (e, ie, je, ke, ...) for anticommuting skew units i and j."""
    n = len(i)
    basis = np.zeros((n, 0))
    while basis.shape[1] < n:
        rest = np.eye(n) - basis @ basis.T
        e = rest[:, np.argmax(np.diagonal(rest))]
        e = e - basis @ (basis.T @ e)
        e = e / np.linalg.norm(e)
        ie, je = i @ e, j @ e
        four = np.stack([e, ie, je, i @ je], axis=1)
        basis = np.concatenate([basis, four], axis=1) if basis.shape[1] + 4 <= n else basis[:, :0]
        if np.abs(basis.T @ basis - np.eye(basis.shape[1])).max(initial=0.0) > NOISE or not basis.shape[1]:
            raise Ambiguous("the quaternionic units of an eigenspace do not anticommute")
    return _orthonormalise(basis) if n else basis


def _orthonormalise(m: Array, steps: int = 2) -> Array:
    """Nearest matrix with orthonormal columns, for one that nearly is: Newton-Schulz steps."""
    for _ in range(steps):
        m = 1.5 * m - 0.5 * m @ (m.conj().T @ m)
    return m


def _carry(tree: Tree, roots: list[Array], links: list[Array], clusters: list[Array]) -> list[Array]:
    """Per site, the aligned bases of a tree's eigenspaces, (c, m, m): basis_j = polar factor of Y_ji basis_i.

    Y and Y^H are both in the algebra; which one carries a link is decided once for all sites.
    """
    carried = []
    for root, y, b in zip(roots, links, clusters, strict=True):
        size = len(root)
        if not size:
            carried.append(np.zeros((0, 0, 0)))
            continue
        bases = {tree[0][0]: root}
        raw = np.empty((len(tree), size, size), root.dtype)
        raw[0] = root
        for step, (j, i, reverse) in enumerate(tree[1:], start=1):
            here, there = slice(b[j], b[j + 1]), slice(b[i], b[i + 1])
            m = (y[there, here].conj().T if reverse else y[here, there]) @ bases[i]
            m *= (size / np.vdot(m, m).real) ** 0.5
            raw[step] = m
            bases[j] = 1.5 * m - 0.5 * m @ (m.conj().T @ m)
        worst = np.abs(np.matmul(raw.conj().transpose(0, 2, 1), raw) - np.eye(size)).max()
        if worst > NOISE:
            raise Ambiguous("a link between eigenspaces is no multiple of an isometry")
        carried.append(np.stack([bases[j] for j, _, _ in tree]))
    return carried


def _assemble(
    types: list, vectors: list[Array], clusters: list[Array]
) -> tuple[tuple[Array, ...], tuple[TypeBlock, ...]]:
    """U per site with columns (type, multiplicity, (eigenspace, unit)), and the table of types."""
    columns: list[list[Array]] = [[] for _ in vectors]
    starts = [0] * len(vectors)
    blocks = []
    for tree, units, bases in types:
        multiplicities, first = [], tuple(starts)
        for s, (v, b) in enumerate(zip(vectors, clusters, strict=True)):
            size = bases[s].shape[1]
            if not size:
                multiplicities.append(0)
                continue
            index = b[[j for j, _, _ in tree]][:, None] + np.arange(size)
            part = np.matmul(v[:, index].transpose(1, 0, 2), bases[s])  # (eigenspace, n, (a, unit))
            part = part.reshape(len(tree), len(v), size // units, units).transpose(1, 2, 0, 3)
            columns[s].append(part.reshape(len(v), -1))
            multiplicities.append(size // units)
            starts[s] += columns[s][-1].shape[1]
        blocks.append(TypeBlock(len(tree) * units, units, tuple(multiplicities), first))
    return tuple(_orthonormalise(np.concatenate(c, axis=1), steps=1) for c in columns), tuple(blocks)


def _residuals(
    factors: Sequence[Factor], sites: Sequence[tuple[int, ...]], u: tuple[Array, ...], types: tuple[TypeBlock, ...]
) -> tuple[Array, float]:
    """Residuals (sites, types, 2) by columns and by rows, and the loss of orthonormality.

    In the adapted basis every generator is sum_k I (x) D_k + N. A map written in these bases commutes with the first
    part exactly, so N, measured here, bounds its residual.
    """
    out = np.zeros((len(sites), len(types), 2))
    orthonormality = max(float(np.abs(q.conj().T @ q - np.eye(len(q))).max()) for q in u)
    count = len(factors[0].lie) + len(factors[0].discrete)
    chunk = max(1, CHUNK // max(len(q) for q in u) ** 2)
    for first in range(0, count, chunk):
        which = range(first, min(first + chunk, count))
        images = [_images([factors[f] for f in site], which, q) for site, q in zip(sites, u, strict=True)]
        noise = [q.conj().T @ moved for q, (moved, _) in zip(u, images, strict=True)]
        scale = np.maximum(np.max([s for _, s in images], axis=0), 1e-300)
        for t in types:
            cells = []
            for x, m, start in zip(noise, t.multiplicities, t.starts, strict=True):
                cut = slice(start, start + m * t.dim)
                cells.append(np.einsum("gaman->agmn", x[:, cut, cut].reshape(len(x), m, t.dim, m, t.dim)))
            mean = _commuting_part(np.concatenate(cells).mean(0), t.units)
            for x, m, start in zip(noise, t.multiplicities, t.starts, strict=True):
                for a in range(start, start + m * t.dim, t.dim):
                    x[:, a : a + t.dim, a : a + t.dim] -= mean
        for s, x in enumerate(noise):
            x = x / scale[:, None, None]  # before it is squared: the square of the least scale is 0
            square = x.real**2 + x.imag**2 if np.iscomplexobj(x) else x**2
            for axis in (0, 1):
                sums = square.sum(axis + 1)
                for k, t in enumerate(types):
                    m = t.multiplicities[s]
                    if m:
                        copies = sums[:, t.starts[s] : t.starts[s] + m * t.dim].reshape(-1, m, t.dim).sum(2)
                        out[s, k, axis] = max(out[s, k, axis], (copies.max() / t.dim) ** 0.5)
    return out, orthonormality


def _images(parts: list[Factor], which: range, q: Array) -> tuple[Array, Array]:
    """Generators `which` of a product of factors applied to q, (g, n, n), and the scales of their constraints, (g,)."""
    moved, scales = np.zeros((len(which), *q.shape), q.dtype), np.ones(len(which))
    num_lie = len(parts[0].lie)
    for row, i in enumerate(which):
        if i < num_lie:
            before, after = 1, q.size
            for f in parts:
                after //= f.dim
                moved[row] += np.matmul(f.lie[i], q.reshape(before, f.dim, after)).reshape(q.shape)
                before *= f.dim
            scales[row] = sum(f.lie_norms[i] for f in parts)
        else:
            moved[row] = chain_apply([f.discrete[i - num_lie] for f in parts], q)
            for f in parts:  # a constraint h W h'^T - W has the norm of h' besides
                scales[row] /= max(1.0, f.discrete_norms[i - num_lie])
    return moved, scales


def _commuting_part(d: Array, units: int) -> Array:
    """The parts of one copy's (g, d, d) matrices that commute with the type's units."""
    if units == 1:
        return d
    c = d.shape[-1] // units
    cells = d.reshape(-1, c, units, c, units)
    rights = unit_matrices(units)
    return (np.einsum("umn,ganbp,uqp->gambq", rights, cells, rights) / units).reshape(d.shape)
