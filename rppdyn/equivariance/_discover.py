"""Find the continuous symmetry of a function, among the generators of a family."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Inexact, Shaped
from torch import Tensor

from rppdyn.equivariance._lie import check_actions, check_finite, derivative, tangents
from rppdyn.equivariance.images import Interpolation, affine_generator
from rppdyn.groups import Group
from rppdyn.reps import Rep

MIN_GAP = 2.0  # smallest ratio of the first defect outside of the symmetry and the last one inside
MAX_APPROXIMATE_DEFECT = 0.4  # largest relative defect of a symmetry that is called approximate
ROUNDING_FACTOR = 1e3  # largest relative defect of an exact symmetry, in machine epsilons
MAX_CLOSURE_DEFECT = 0.05  # largest part of commutators outside of the generators' span, relative to their size


MAX_OTHER_PART = 0.1
"""Largest relative part of a generator that its description leaves out."""


def describe_generator(A: Float[Tensor, "d d"]) -> str:
    """Describe a generator of linear maps in words.

    >>> describe_generator(torch.tensor([[0.0, 1.0], [1.0, 0.0]]))
    'a boost'
    """
    A = A.double() / A.double().norm()
    turn, stretch = (A - A.T) / 2, (A + A.T) / 2
    even = torch.eye(len(A)).double() * A.trace() / len(A)
    if float(stretch.norm()) < MAX_OTHER_PART:
        return "a rotation"
    if float((A - even).norm()) < MAX_OTHER_PART:
        return "a scaling, of all axes alike"
    if float(turn.norm()) < MAX_OTHER_PART:
        lengths = torch.linalg.eigvalsh(stretch)
        boost = abs(float(lengths[0] + lengths[-1])) < MAX_OTHER_PART and float(lengths[1:-1].norm()) < MAX_OTHER_PART
        return "a boost" if boost else "a scaling, of some axes more than of others"
    if float((A @ A).norm()) < MAX_OTHER_PART:
        return "a shear"
    if float((A - even - turn).norm()) < MAX_OTHER_PART:
        return "a rotation with a scaling"
    return "a mixture of rotation, scaling and shear"


@dataclass(frozen=True)
class Discovery:
    """The symmetry of a function in a family of generators, or the finding that there is none.

    Attributes:
        spectrum: relative defects of the family's directions, ascending, ``(D,)``: 0 for a symmetry, about 1 for a direction
            in which nothing agrees.
        gap: ratio of the first defect outside of the symmetry and the last one inside; without symmetry, of the two smallest.
        generators: generators of the symmetry, ``(k, d, d)``, an orthogonal basis in which each has the Frobenius norm of a
            plane rotation, :math:`\\sqrt 2`.
        coefficients: their coordinates in the family's basis, ``(k, D)``.
        verdict: "exact", "approximate" or "none".
        unfelt: number of generators that change only entries on which the function does not depend. They are symmetries only
            because the function ignores these entries.
        closure: the part of the generators' commutators outside of their span, relative to their size; 0 for a Lie algebra.
    """

    family: Group
    spectrum: Float[Tensor, " D"]
    gap: float
    generators: Float[Tensor, "k d d"]
    coefficients: Float[Tensor, "k D"]
    verdict: str
    closure: float
    unfelt: int = 0

    @property
    def defect(self) -> float:
        """The largest relative defect inside the symmetry; without one, the smallest of the family."""
        return float(self.spectrum[max(len(self.generators) - 1, 0)])

    @property
    def group(self) -> Group:
        """The connected group of the generators, for networks; the trivial group without a symmetry.

        Raises:
            ValueError: the commutators leave the generators' span.
        """
        if self.closure > MAX_CLOSURE_DEFECT:
            raise ValueError(
                f"the {len(self.generators)} generators are no Lie algebra: their commutators leave their span by "
                f"{self.closure:.2g} of their size; give more states, or a smaller family"
            )
        d = self.family.lie_algebra.shape[-1]
        generators = self.generators if len(self.generators) else None
        identity = None if len(self.generators) else torch.eye(d, dtype=torch.float64)[None]
        return Group(f"found in {self.family}", lie_algebra=generators, discrete_generators=identity)

    def __str__(self) -> str:
        defects = ", ".join(f"{value:.2g}" for value in self.spectrum[:8]) + (", ..." if len(self.spectrum) > 8 else "")
        text = {
            "none": f"no symmetry in {self.family}",
            "exact": f"an exact symmetry of dimension {len(self.generators)} in {self.family}",
            "approximate": f"an approximate symmetry of dimension {len(self.generators)} in {self.family}, "
            f"relative defect {self.defect:.2g}",
        }[self.verdict]
        if len(self.generators) == len(self.spectrum):
            text += ", which is all of it"
        if self.unfelt:
            text += f", {self.unfelt} of which change nothing that the function depends on"
        return f"{text}; relative defects {defects}; gap {self.gap:.2g}"


def discover(
    f: Callable[[Tensor], Tensor],
    rep_in: Rep,
    rep_out: Rep,
    x: Inexact[Tensor, "batch dim_in"],
    *,
    gap: float = MIN_GAP,
    largest: float = MAX_APPROXIMATE_DEFECT,
) -> Discovery:
    r"""Find the generators under which a function is equivariant, in the Lie algebra of the group of its representations.

    With the family's basis :math:`B_i` (all of gl(3), say), let

    .. math:: D_i = Df(x)\, d\rho_{in}(B_i)\, x - d\rho_{out}(B_i)\, f(x), \quad M_{ij} = E \langle D_i, D_j \rangle

    and N the sum of the second moments of both terms. :math:`M a = \lambda N a` gives the directions in which f is most
    nearly equivariant; :math:`\sqrt\lambda` is their relative defect, computed from singular values, so that it is accurate
    to rounding. The symmetry is spanned by the directions below the spectrum's largest gap, if that is at least `gap` and the
    defects below it are at most `largest`. If all directions of a family are symmetries, the gap is from the last defect to 1.

    For an invariant function, whose output does not transform, only one term remains, and a defect is 0 or 1: only exact
    symmetries are found. Give the field of a learned energy, not the energy.

    Args:
        f: maps ``(batch, dim_in)`` to ``(batch, dim_out)``; a vector field, a model, a policy.
        rep_in, rep_out: representations of the family, a group that contains all symmetries in question: ``4 * V(GL(3))``.
        x: states, ``(batch, dim_in)``; in double precision defects of exact symmetries are near 1e-15.
    Raises:
        ValueError: the family has no continuous generators, or dependent ones, or does not act on the states; there are fewer
            states than unknowns; or f is constant or does not depend on the entries that the family moves, so that everything
            is its symmetry.

    >>> from rppdyn.groups import GL
    >>> from rppdyn.reps import Scalar, V
    >>> x = torch.randn(50, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    >>> discovery = discover(lambda x: x[:, :2].norm(dim=1, keepdim=True), V(GL(3)), Scalar(GL(3)), x)
    >>> discovery.verdict, len(discovery.generators)  # rotations about z, and all that changes z alone
    ('exact', 4)
    """
    check_actions(rep_in, rep_out, x)
    if not bool(x.isfinite().all()):
        wrong = int((~x.isfinite().all(1)).sum())
        raise ValueError(f"{wrong} of {len(x)} states have entries that are not finite: leave these states out")
    family, count = rep_in.G, len(rep_in.G.lie_algebra)
    if not count:
        raise ValueError(f"{family} has no continuous generators to choose from: give a larger family, such as GL(3)")
    rank = int(torch.linalg.matrix_rank(family.lie_algebra.flatten(1)))
    if rank < count:
        raise ValueError(
            f"{count - rank} of the {count} generators of {family} are sums of others: leave them out, a basis is needed"
        )
    if family.is_complex:
        raise ValueError(f"{family} is complex: discovery is in real families")
    velocities = tangents(rep_in, x)
    unseen = count - int(torch.linalg.matrix_rank(torch.stack([v.flatten() for v in velocities]), rtol=rounding(x)))
    if len(x) * x.shape[-1] < count or (unseen and not len(x) > count):
        raise ValueError(f"{len(x)} states are too few for {count} generators of {family}: give {count + 1} or more")
    if unseen:
        raise ValueError(
            f"{unseen} of the {count} directions of {family} move none of the states: {rep_in} does not show them, or the "
            "states lie in a subspace; give a smaller family, or other states"
        )
    pushed, values = [], None
    for velocity in velocities:
        values, change = (part.detach() for part in derivative(f, x, velocity))
        pushed.append(change.flatten())
    assert values is not None
    check_finite(values, "f(x)")
    first, second = torch.stack(pushed), torch.stack([t.flatten() for t in tangents(rep_out, values)])
    # N = A A^T with this matrix A of shape (D, 2 n m)
    left, sizes, _ = torch.linalg.svd(torch.cat([first, second], 1), full_matrices=False)
    variation = float((values - values.mean(0)).norm())
    if variation <= rounding(x) * float(values.norm()):
        raise ValueError(
            "f is constant on these states, so everything is a symmetry of it: give states that it tells apart"
        )
    # directions that change f's values or transform them
    has_effect = sizes > rounding(x) * max(float(sizes[0]), variation)
    unfelt = _count_unfelt(f, x, rep_in, left[:, ~has_effect])
    if unfelt == count:
        raise ValueError(
            f"f does not depend on what {family} moves, so everything is a symmetry of it: give a family that acts on its "
            "arguments, or leave those out that it does not move"
        )
    white = left[:, has_effect] / sizes[has_effect]  # directions in which N is the identity
    directions, defects, _ = torch.linalg.svd(white.mT @ (first - second), full_matrices=False)
    # the directions without effect come first: their defect is 0
    coefficients = torch.cat([left[:, ~has_effect], (white @ directions).flip(1)], 1).mT.double()
    spectrum = torch.cat([defects.new_zeros(int((~has_effect).sum())), defects.flip(0)]).double()
    discovery = make_discovery(family, spectrum, coefficients, rounding(x), gap, largest)
    return replace(discovery, unfelt=min(unfelt, len(discovery.generators)))


def _count_unfelt(f: Callable[[Tensor], Tensor], x: Tensor, rep_in: Rep, directions: Tensor) -> int:
    """Count the directions, columns in the family's basis, that change only entries of x on which f does not depend."""
    if not directions.shape[1]:
        return 0
    slopes = []
    for c in range(x.shape[1]):
        direction = torch.zeros_like(x)
        direction[:, c] = 1
        slopes.append(derivative(f, x, direction)[1].detach().flatten(1).norm(dim=1))
    effects = torch.stack([(torch.stack(slopes, 1) * v).flatten() for v in tangents(rep_in, x)])
    sizes = torch.linalg.svdvals(directions.mT @ effects)
    return directions.shape[1] - int((sizes > rounding(x) * torch.linalg.matrix_norm(effects)).sum())


def block_family(parts: Mapping[str, int], *together: Sequence[str]) -> Rep:
    """The family that acts on named blocks of a vector: one gl(n) for each list of blocks, equally on all of them.

    Args:
        parts: the blocks' names and sizes, in order (``Pendulum.parts``).
        together: lists of names; the same matrix moves all blocks of a list, and blocks in no list stay fixed.
    Raises:
        ValueError: no list, an unknown name, one in two lists, or blocks of different sizes in a list.

    >>> rep = block_family({"x_1": 3, "x_2": 3, "t": 1}, ["x_1", "x_2"])
    >>> rep.dim, len(rep.G.lie_algebra)
    (7, 9)
    """
    names = [name for block_names in together for name in block_names]
    if not names:
        raise ValueError(f"no block is moved: name some of {', '.join(parts)}")
    for name in names:
        if name not in parts:
            raise ValueError(f"there is no block {name!r}: choose of {', '.join(parts)}")
        if names.count(name) > 1:
            raise ValueError(f"block {name!r} is named twice: it can be moved by one matrix only")
    starts = dict(zip(parts, torch.tensor([0, *parts.values()]).cumsum(0).tolist(), strict=False))
    for block_names in together:
        if len({parts[name] for name in block_names}) != 1:
            sizes = ", ".join(f"{name} has {parts[name]}" for name in block_names)
            raise ValueError(f"blocks of different sizes can't be moved by one matrix: {sizes} entries")
    blocks = [[range(starts[name], starts[name] + parts[name]) for name in block_names] for block_names in together]
    return index_families([parts[block_names[0]] for block_names in together], (sum(parts.values()), blocks))[0]


def index_families(sizes: Sequence[int], *spaces: tuple[int, Sequence[Sequence[Sequence[int]]]]) -> tuple[Rep, ...]:
    """One family on several spaces: a gl(n) for each list of blocks, with the same matrix on its blocks in every space.

    Args:
        sizes: n of each list.
        spaces: for each space its dimension and, for each list, its blocks there, of n indices each in any order; a list may
            have no blocks in a space.

    >>> states, actions = index_families([2], (4, [[(0, 2), (1, 3)]]), (3, [[(1, 2)]]))
    >>> states.dim, actions.dim, states.G == actions.G, len(states.G.lie_algebra)
    (4, 3, True, 4)
    """
    small, large, first = [], [[] for _ in spaces], 0  # type: ignore[var-annotated]
    for number, n in enumerate(sizes):
        for i in range(n):
            for j in range(n):
                A = torch.zeros(sum(sizes), sum(sizes), dtype=torch.float64)
                A[first + i, first + j] = 1
                small.append(A)
                for (dim, blocks), matrices in zip(spaces, large, strict=True):
                    B = torch.zeros(dim, dim, dtype=torch.float64)
                    for block in blocks[number]:
                        B[block[i], block[j]] = 1
                    matrices.append(B)
        first += n
    group = Group(" x ".join(f"GL({n})" for n in sizes), lie_algebra=torch.stack(small))
    return tuple(Rep.from_generators(group, lie_algebra=torch.stack(matrices)) for matrices in large)


def rounding(x: Tensor) -> float:
    """The relative size of rounding, with a margin."""
    return ROUNDING_FACTOR * torch.finfo(x.dtype).eps


def make_discovery(
    family: Group, spectrum: Tensor, coefficients: Tensor, rounding: float, gap: float, largest: float
) -> Discovery:
    """Find the symmetry below a spectrum's largest gap, see :func:`discover`."""
    floored = spectrum.clamp(min=rounding)
    ratios = torch.cat([floored[1:], floored.new_ones(1)]) / floored
    allowed = (floored <= largest) & (ratios >= gap)
    size = int(torch.where(allowed, ratios, 0.0).argmax()) + 1 if bool(allowed.any()) else 0
    inside = coefficients[:size]
    basis = torch.einsum("ki,iab->kab", inside, family.lie_algebra)
    if size:  # an orthogonal basis of their span, with the norm of plane rotations
        q, r = torch.linalg.qr(basis.flatten(1).mT)
        basis = 2**0.5 * q.mT.reshape(basis.shape)
        inside = 2**0.5 * torch.linalg.solve_triangular(r.mT, inside, upper=False)
    verdict = "none" if not size else "exact" if float(spectrum[size - 1]) <= rounding else "approximate"
    ratio = float(ratios[size - 1]) if size else float(ratios[0])
    return Discovery(family, spectrum, ratio, basis, inside, verdict, _closure(basis))


def _closure(generators: Float[Tensor, "k d d"]) -> float:
    """The largest part of a commutator outside of the span, relative to the square of the largest generator's norm."""
    if len(generators) < 2:
        return 0.0
    products = torch.einsum("iab,jbc->ijac", generators, generators)
    commutators = (products - products.transpose(0, 1)).flatten(2)
    span = torch.nn.functional.normalize(generators.flatten(1), dim=1)
    outside = commutators - torch.einsum("ijx,kx,ky->ijy", commutators, span, span)
    return float(outside.norm(dim=-1).max() / generators.flatten(1).norm(dim=1).max() ** 2)


# -- affine maps under which a function of images is invariant -----------------------------------------------------------------


def affine_family() -> Group:
    """All affine maps of the plane as homogeneous 3 x 3 matrices; coordinates about the centre, in half widths of an image."""
    basis = torch.zeros(6, 3, 3, dtype=torch.float64)
    for k, (i, j) in enumerate((i, j) for i in range(2) for j in range(3)):
        basis[k, i, j] = 1
    return Group("affine maps", lie_algebra=basis)


def discover_affine(
    f: Callable[[Tensor], Tensor],
    x: Shaped[Tensor, "batch channels height width"],
    *,
    interpolation: Interpolation = "flow",
    gap: float = MIN_GAP,
    largest: float = MAX_APPROXIMATE_DEFECT,
) -> Discovery:
    r"""Find the generators of affine maps under which a function of images is invariant, exactly or nearly.

    With the generators :math:`G_i` of the six directions on the pixel grid

    .. math:: M_{ij} = E \langle Df(x) G_i x, Df(x) G_j x \rangle, \quad N_{ij} = E \langle G_i x, G_j x \rangle

    and :math:`M a = \lambda N a`: how far f changes for a change of the image. A defect is :math:`\sqrt\lambda` relative to
    the largest, so that there is no gap if f is equally sensitive to all directions. Otherwise as
    :func:`~rppdyn.equivariance.discover`; a generator is a homogeneous matrix.

    Args:
        f: maps ``(batch, channels, height, width)`` to ``(batch, ...)``, logits of a classifier, say.
        x: images.
        interpolation: how they are differentiated (:mod:`~rppdyn.equivariance.images`).
    Raises:
        ValueError: fewer than 7 images, or images that some directions don't change; f is constant, or does not change in any
            direction, so that everything is a symmetry; an even size with "shannon_whittaker".
    """
    if x.ndim != 4 or not x.is_floating_point():
        raise ValueError(
            f"x of shape {tuple(x.shape)} and {x.dtype}: give images (batch, channels, height, width) of floats"
        )
    family = affine_family()
    if len(x) <= len(family.lie_algebra):
        raise ValueError(
            f"{len(x)} images are too few for {len(family.lie_algebra)} generators of {family}: give 7 or more"
        )
    size = (int(x.shape[2]), int(x.shape[3]))
    half = torch.tensor([1.0, 1, size[1] / 2], dtype=torch.float64)  # in half widths along both axes
    velocities, pushed = [], []
    for A in family.lie_algebra:
        G = affine_generator(size, (A[:2] * half).tolist(), interpolation).to(x)
        velocity = (x.flatten(2) @ G.mT).view_as(x)
        values, change = (part.detach() for part in derivative(f, x, velocity))
        check_finite(values, "f(x)")
        velocities.append(velocity.flatten())
        pushed.append(change.flatten())
    left, sizes, _ = torch.linalg.svd(torch.stack(velocities), full_matrices=False)
    unseen = int((sizes <= rounding(x) * sizes[0]).sum()) if float(sizes[0]) > 0 else len(sizes)
    if unseen:
        raise ValueError(f"{unseen} of the {len(sizes)} directions of {family} change none of the images: give others")
    directions, changes, _ = torch.linalg.svd((left / sizes).mT @ torch.stack(pushed), full_matrices=False)
    variation = float((values - values.mean(0)).norm())
    is_constant = variation <= rounding(x) * float(values.norm())
    if is_constant or float(changes[0]) * float(sizes[0]) <= rounding(x) * variation:
        raise ValueError("f does not change with affine maps of these images, so all of them are symmetries of it")
    coefficients = ((left / sizes) @ directions).flip(1).mT.double()
    return make_discovery(family, (changes / changes[0]).flip(0).double(), coefficients, rounding(x), gap, largest)
