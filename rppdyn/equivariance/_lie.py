r"""Lie derivatives of functions, and Lie algebras of matrices.

The Lie derivative is a function's failure to be equivariant to first order, along each generator.

The second part has the algebra that a set of matrices generates, their centraliser, and the symmetries of a linear
regression. A sum of operators :math:`y = \sum_i M_i x W^i` commutes with a matrix B on pixels, for all weights W, exactly
if B commutes with every :math:`M_i`. So it is equivariant to their :func:`centraliser`, and not to the group that they
generate, which is in the centraliser only if they commute with each other.
"""

from __future__ import annotations

import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Inexact
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from rppdyn.reps import Rep, RepType


class Flow(ABC):
    """A one-parameter group of transformations of a space: ``flow(x, t)`` with ``flow(x, 0) = x``, inverse ``flow(x, -t)``.

    It must be differentiable in ``t`` at 0. With interpolation ``flow(., -t)`` may be an inverse only approximately; Lie
    derivatives need only that its derivative at 0 is minus that of ``flow(., t)``.
    """

    name: str

    @abstractmethod
    def __call__(self, x: Inexact[Tensor, "..."], t: Tensor | float) -> Inexact[Tensor, "..."]:
        """The image of a batch ``x`` after time ``t``, a number."""

    def field(self, x: Inexact[Tensor, "..."]) -> Inexact[Tensor, "..."]:
        """The velocity at ``x``: the derivative of ``flow(x, t)`` at t = 0."""
        zero = torch.zeros((), dtype=torch.float64, device=x.device)
        return torch.func.jvp(lambda t: self(x, t), (zero,), (torch.ones_like(zero),))[1]


@dataclass(frozen=True)
class TrivialFlow(Flow):
    """The trivial action of a flow, on a vector that should be invariant."""

    name: str

    def __call__(self, x: Inexact[Tensor, "..."], t: Tensor | float) -> Inexact[Tensor, "..."]:
        return x


Action = Rep | Flow
"""A representation acts by one matrix per group element, a flow by one function of time."""


def act(action: Action, g: Tensor | float, x: Inexact[Tensor, "..."]) -> Inexact[Tensor, "..."]:
    """The image of ``x`` under ``g``: an element ``(d, d)`` or one per input ``(batch, d, d)``; a time for a flow.

    Raises:
        ValueError: complex matrices would act on real vectors.
    """
    if isinstance(action, Flow):
        return action(x, g)
    rho = real_matrices(x, action.rho(torch.as_tensor(g, dtype=action.G.dtype)), action)
    if x.ndim > 1 and rho.numel() == rho.shape[-1] ** 2:  # one element for all inputs: one product of matrices
        return x @ rho.reshape(rho.shape[-2:]).mT
    return (rho @ x[..., None])[..., 0]


def inverse(g: Tensor | float) -> Tensor | float:
    """The inverse of a group element, or of a time."""
    return torch.linalg.inv(g) if isinstance(g, Tensor) and g.ndim >= 2 else -g


def tangents(action: Action, x: Inexact[Tensor, "..."]) -> list[Tensor]:
    """The velocity of ``x`` along each generator of the Lie algebra; a flow has one."""
    if isinstance(action, Flow):
        return [action.field(x)]
    return [x @ A.mT for A in real_matrices(x, action.lie_generators, action)]


def real_matrices(x: Tensor, matrices: Tensor, rep: Rep) -> Tensor:
    """Matrices of a representation with the device and dtype of ``x``.

    Raises:
        ValueError: they are complex and ``x`` is real: their imaginary parts would be lost.
    """
    if matrices.is_complex() and not x.is_complex():
        if bool((matrices.imag.abs() > 1e-9 * matrices.abs().max()).any()):
            raise ValueError(f"{rep} of {rep.G} acts by complex matrices, and the vectors are real: give complex ones")
        matrices = matrices.real
    return matrices.to(x)


def generator_names(action: Action, kind: str = "lie") -> tuple[str, ...]:
    """``A0, A1, ...`` for the Lie algebra (a flow's own name), ``h0, h1, ...`` for the discrete generators."""
    if isinstance(action, Flow):
        return (action.name,) if kind == "lie" else ()
    letter, count = ("A", len(action.G.lie_algebra)) if kind == "lie" else ("h", len(action.G.discrete_generators))
    return tuple(f"{letter}{i}" for i in range(count))


def check_actions(action_in: Action, action_out: Action, x: Tensor) -> None:
    """Refuse actions of different symmetries, and inputs that the first does not act on."""
    if not isinstance(x, Tensor) or not (x.is_floating_point() or x.is_complex()):
        kind = x.dtype if isinstance(x, Tensor) else type(x).__name__
        raise ValueError(
            f"x is of type {kind}: give a tensor of floating-point numbers, as torch.as_tensor(x).double()"
        )
    for action in (action_in, action_out):
        if isinstance(action, RepType):
            raise ValueError(f"{action} is not bound to a group: call it with one, as {action}(G)")
    if isinstance(action_in, Rep) and isinstance(action_out, Rep):
        if action_in.G != action_out.G:
            raise ValueError(
                f"rep_in belongs to {action_in.G} and rep_out to {action_out.G}: lift or restrict one of them first"
            )
    elif len(generator_names(action_in)) != len(generator_names(action_out)):
        raise ValueError(
            f"{_describe(action_in)} and {_describe(action_out)} have different numbers of continuous generators: "
            "give the same symmetry on both sides"
        )
    if isinstance(action_in, Rep) and x.shape[-1] != action_in.dim:
        raise ValueError(f"x has {x.shape[-1]} components and rep_in ({action_in}) has {action_in.dim}")


def check_finite(y: Tensor, name: str) -> None:
    """Refuse values that are not finite: every mean would silently be nan, or leave them out."""
    if not torch.isfinite(y).all():
        raise ValueError(f"{name} has entries that are not finite, so it has no equivariance error: check the inputs")


def _describe(action: Action) -> str:
    return f"the flow {action.name}" if isinstance(action, Flow) else f"{action} of {action.G}"


# -- Lie derivatives ---------------------------------------------------------------------------------------------------

MAX_HALVINGS = 30  # of the step of finite differences
MAX_IDLE_HALVINGS = 3  # halvings in a row that gain little, after which halving ends
MAX_DIFFERENCE_NOISE = 0.05  # largest relative error of finite differences that still count as a derivative
MAX_PRECISION_DIFFERENCE = 0.05  # largest relative difference between values in half and in double precision
KINK_SHIFT = 0.01  # share of their size by which inputs are moved off kinks
MAX_SLOPE_SPREAD = (
    0.1  # largest spread of slopes that agree, as a share of their distance from forward mode's derivative
)

logger = logging.getLogger(__name__)


def lie_derivative(
    f: Callable[[Tensor], Tensor], rep_in: Action, rep_out: Action, x: Inexact[Tensor, "..."]
) -> Inexact[Tensor, "D ..."]:
    r"""The derivative at t = 0 of :math:`\rho_{out}(g_t)^{-1} f(\rho_{in}(g_t) x)`, :math:`g_t = \exp(t A_i)`.

    .. math:: (L_i f)(x) = Df(x)\, d\rho_{in}(A_i)\, x - d\rho_{out}(A_i)\, f(x)

    by one Jacobian-vector product (forward mode) per generator of the Lie algebra. Zero for every generator and every x
    if and only if f is equivariant to the group's identity component.

    Functions without derivatives, or with parts detached (inference mode, NumPy), are differentiated by central differences of
    fourth order in double precision, to about 1e-11, or, if the function refuses that, in float32 to about 1e-4. At a kink the
    derivative is that of forward mode.

    Args:
        f: maps ``(..., dim_in)`` to ``(..., dim_out)``; for flows, whatever they act on.
        rep_in, rep_out: representations of one group, or flows (``rppdyn.equivariance.images``), which have one generator.
        x: ``(..., dim_in)``, or a batch of what the flow acts on.
    Returns:
        ``(D, ..., dim_out)``, in units of the output per unit of the generator's coefficient (a radian, say).
    Raises:
        ValueError: the representations belong to different groups, or sizes don't match.
    Source: Finzi 2023, Eq. 4.3, with the sign of the text (a pull-back by the inverse on the output).

    >>> from rppdyn.groups import SO
    >>> from rppdyn.reps import V, Scalar
    >>> G, x = SO(2), torch.tensor([[3.0, 4.0]])
    >>> lie_derivative(lambda x: x.norm(dim=-1, keepdim=True), V(G), Scalar(G), x)
    tensor([[[0.]]])
    >>> lie_derivative(lambda x: x[..., :1], V(G), Scalar(G), x)
    tensor([[[-4.]]])
    """
    check_actions(rep_in, rep_out, x)
    derivatives = []
    for k, (y, pushed) in enumerate(_complete_derivatives(f, x, tangents(rep_in, x))):
        if isinstance(rep_out, Rep) and y.shape[-1:] != (rep_out.dim,):
            raise ValueError(f"f(x) has shape {tuple(y.shape)}; rep_out ({rep_out}) asks for {rep_out.dim} components")
        derivatives.append(pushed - tangents(rep_out, y)[k])
    if isinstance(rep_out, Rep) and not derivatives:
        return x.new_zeros(0, *x.shape[:-1], rep_out.dim)
    return torch.stack(derivatives)


def derivative(f: Callable[[Tensor], Tensor], x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """``f(x)`` and its derivative along ``v``, by forward mode (where detached values are constants) or else by differences."""
    try:
        return _forward(f, x, v)
    except RuntimeError:  # no forward mode; an error of f itself is raised again below
        y = f(x.clone())
        double, at = _double_function(f, x, y)
        return y, _differences(double, at, v.to(at.dtype))[0].to(y.dtype)


def _complete_derivatives(
    f: Callable[[Tensor], Tensor], x: Tensor, velocities: Sequence[Tensor]
) -> list[tuple[Tensor, Tensor]]:
    """``f(x)`` and its derivative along each velocity, detached parts included.

    One test along a combination of all velocities finds whether anything was detached.
    """
    results = [derivative(f, x, v) for v in velocities]
    if not results:
        return results
    try:
        double, at = _double_function(f, x, results[0][0])
        combination = torch.stack([math.cos(k) * v.to(at.dtype) for k, v in enumerate(velocities)]).sum(0)
        if not _is_complete(double, at, combination):
            for k, v in enumerate(velocities):
                slope, error = _differences(double, at, v.to(at.dtype))
                if error.norm() < MAX_DIFFERENCE_NOISE * slope.norm():  # else f is noisy
                    y, _ = results[k]
                    results[k] = y, slope.to(y.dtype)
    except RuntimeError:  # no forward mode to test; or inside torch.vmap, where values can't decide anything
        pass
    return results


def _forward(f: Callable[[Tensor], Tensor], x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    # strict, so that a detached output raises instead of having a zero derivative; optimised TorchScript drops tangents
    with torch.jit.optimized_execution(False):
        return torch.func.jvp(lambda x: f(x.clone()), (x,), (v,), strict=True)[:2]


class _Double(TorchFunctionMode):
    """Run torch's functions in double precision, whatever the dtype of their weights and buffers."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        func = Tensor.double if func in (Tensor.float, Tensor.half, Tensor.bfloat16) else func
        copies: list[tuple[Tensor, Tensor]] = []
        args, kwargs = _to_double(args, copies), _to_double(kwargs or {}, copies)
        result = func(*args, **kwargs)
        for leaf, copy in copies:
            if copy._version:  # the function wrote into the copy, and not into its own tensor
                raise TypeError(f"{func.__name__} writes into a tensor of {leaf.dtype}")
        return _to_double(result, [])


def _to_double(value: Any, copies: list[tuple[Tensor, Tensor]]) -> Any:
    """Convert tensors and dtypes in nested data to double precision, and append (original, copy) to ``copies``."""
    if isinstance(value, Tensor):
        dtype = _to_double(value.dtype, copies)
        if dtype is value.dtype:
            return value
        with torch.inference_mode(False):  # so that tensors count writes
            copies.append((value, value.to(dtype)))
        return copies[-1][1]
    if isinstance(value, torch.dtype):
        return torch.complex128 if value.is_complex else torch.float64 if value.is_floating_point else value
    if type(value) in (tuple, list):
        return type(value)(_to_double(item, copies) for item in value)
    if isinstance(value, tuple | list | dict):  # `torch.return_types`, too
        return tree_map(
            lambda item: _to_double(item, copies) if isinstance(item, Tensor | torch.dtype) else item, value
        )
    return value


def _double_function(f: Callable[[Tensor], Tensor], x: Tensor, y: Tensor) -> tuple[Callable[[Tensor], Tensor], Tensor]:
    """f and x in double precision, if f works there and its value is close to y = f(x); else f and x themselves."""

    def double(x: Tensor) -> Tensor:
        with _Double():
            return f(x.clone())

    try:
        at = _to_double(x, [])
        if (double(at) - y).norm() <= MAX_PRECISION_DIFFERENCE * y.norm():
            return double, at
    except Exception:  # f may be scripted, check dtypes, or write into a tensor of its own
        logger.debug("not in double precision: %r", f, exc_info=True)
    return f, x


def _is_complete(f: Callable[[Tensor], Tensor], x: Tensor, v: Tensor) -> bool:
    """Check that forward mode gives the whole derivative of f: that no part of f was detached.

    Where f is smooth, slopes to both sides at two distances agree. If they agree on another value than forward mode's, a part
    was detached. Next to a kink they disagree. Inputs that may lie on a kink (a dark background) are moved off it first.
    """
    noise = torch.randn(x.shape, generator=torch.Generator().manual_seed(0), dtype=x.dtype).to(x.device)
    x = x + KINK_SHIFT * x.abs().square().mean().sqrt() * noise
    y, pushed = _forward(f, x, v)
    eps = torch.finfo(x.dtype).eps
    step = _step(x, v, eps ** (1 / 3))
    tolerance = eps**0.2 * pushed.norm() + 10 * eps * y.norm() / step
    near = [(f(x + h * v) - y) / h for h in (step, -step)]
    if (sum(near) / 2 - pushed).norm() <= tolerance / 2:
        return True
    slopes = torch.stack([*near, *((f(x + h * v) - y) / h for h in (3 * step, -3 * step))])
    middle = slopes.mean(0)
    off = (middle - pushed).abs()
    smooth = torch.where((slopes - middle).abs().amax(0) < MAX_SLOPE_SPREAD * off, off, 0.0).norm()
    # next to several kinks the four slopes may agree by chance in some entries, but not in most
    return not bool(smooth > tolerance and smooth > 0.5 * off.norm())


def _step(x: Tensor, v: Tensor, share: float) -> Tensor:
    """The step along v that moves inputs by a share of their size."""
    size = torch.where(x.norm() > 0, x.norm(), 1.0)
    return share * size / torch.where(v.norm() > 0, v.norm(), 1.0)


def _differences(f: Callable[[Tensor], Tensor], x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """The derivative by central differences of fourth order, each entry at the step where it agrees best with its neighbours.

    Since it is not known how fast f varies, steps are halved from a tenth of x until little is gained.

    Returns:
        the derivative, and the largest difference of each entry from the neighbouring steps.
    """
    step = _step(x, v, 0.1)
    central = lambda step: (f(x + step * v) - f(x - step * v)) / (2 * step)  # noqa: E731
    coarse = central(step)
    estimates: list[Tensor] = []
    best, error = coarse, torch.full_like(coarse.abs(), torch.inf)
    idle = 0
    for _ in range(MAX_HALVINGS):
        step = step / 2
        fine = central(step)
        estimates = [*estimates[-2:], (4 * fine - coarse) / 3]
        coarse = fine
        if len(estimates) < 3:
            continue
        first, middle, last = estimates
        change = torch.maximum((middle - first).abs(), (last - middle).abs())
        smaller = torch.minimum(change, error)
        best, idle = torch.where(change < error, middle, best), 0 if smaller.sum() < 0.9 * error.sum() else idle + 1
        error = smaller
        if idle == MAX_IDLE_HALVINGS:
            break
    return best, error


@dataclass(frozen=True)
class LocalEquivarianceError:
    r"""Sizes of the Lie derivative, one value per generator in each field.

    Attributes:
        generators: their names.
        squared: :math:`E_x \|L f(x)\|^2 / \dim` with its standard error over inputs: the published *text* (Eq. 4.4).
        absolute: :math:`E_x \|L f(x)\|_1 / \dim`, the mean absolute entry, likewise: end to end, the published *code*.
    """

    generators: tuple[str, ...]
    squared: Float[Tensor, " D"]
    absolute: Float[Tensor, " D"]
    squared_standard_error: Float[Tensor, " D"]
    absolute_standard_error: Float[Tensor, " D"]

    def __repr__(self) -> str:
        columns = zip(self.generators, self.squared, self.squared_standard_error, strict=True)
        parts = ", ".join(f"{name} {value:.2e} ± {error:.0e}" for name, value, error in columns)
        return f"LocalEquivarianceError(squared: {parts})"


@torch.no_grad()
def local_equivariance_error(
    f: Callable[[Tensor], Tensor], rep_in: Action, rep_out: Action, x: Inexact[Tensor, "batch ..."]
) -> LocalEquivarianceError:
    r"""The local equivariance error (LEE): the mean size of the Lie derivative per entry of the output.

    The text squares the norm; the code published with it takes the mean absolute value instead. Both are here by name.
    Squared values are in squared units of the output, so neither compares functions of different scale: ``f`` is
    usually a softmax, or use :func:`equivariance_error`, which is relative.

    Args:
        f, rep_in, rep_out: as for :func:`lie_derivative`.
        x: a batch of inputs, over which the mean is taken.
    Raises:
        ValueError: as :func:`lie_derivative`; there are no inputs, or a derivative is not finite.
    Source: Finzi 2023, Eq. 4.4 and Figure 4.3 (squared).
    """
    if not len(x):
        raise ValueError(f"x has shape {tuple(x.shape)}; give at least one input")
    derivatives = lie_derivative(f, rep_in, rep_out, x)
    check_finite(derivatives, "the Lie derivative")
    entries = derivatives.abs().flatten(2) if derivatives.ndim > 2 else derivatives.abs()[..., None]
    squared, absolute = entries.square().mean(-1).double(), entries.mean(-1).double()  # (D, batch)
    return LocalEquivarianceError(
        generators=generator_names(rep_in),
        squared=squared.mean(1),
        absolute=absolute.mean(1),
        squared_standard_error=standard_error(squared),
        absolute_standard_error=standard_error(absolute),
    )


def standard_error(values: Float[Tensor, "*any n"]) -> Float[Tensor, "*any"]:
    """Standard error of the mean along the last axis; nan for one value."""
    n = values.shape[-1]
    return values.std(-1) / n**0.5 if n > 1 else torch.full(values.shape[:-1], torch.nan, dtype=values.dtype)


# -- Lie algebras ------------------------------------------------------------------------------------------------------


def commutators(matrices: Float[Tensor, "k n n"]) -> Float[Tensor, "k k n n"]:
    """[M_i, M_j]."""
    products = matrices[:, None] @ matrices
    return products - products.transpose(0, 1)


def centraliser(matrices: Float[Tensor, "k n n"], *, rtol: float = 1e-9) -> Float[Tensor, "r n n"]:
    """An orthonormal basis of the matrices that commute with all of the given ones.

    Raises:
        ValueError: more than 40 rows n, since there are n^2 unknowns.
    """
    n = matrices.shape[-1]
    if n > 40:
        raise ValueError(f"matrices of {n} rows: their centraliser has {n**2} unknowns; give at most 40 rows")
    identity = torch.eye(n, dtype=torch.float64, device=matrices.device)
    generators = matrices.double()
    system = torch.cat([torch.kron(identity, M.mT.contiguous()) - torch.kron(M, identity) for M in generators])
    gram = system.mT @ system
    values, vectors = torch.linalg.eigh(gram)
    zero = values <= rtol**2 * n**2 + 1e-14 * values[-1].clamp_min(1e-300)
    return vectors[:, zero].mT.unflatten(1, (n, n))


def structure_constants(matrices: Float[Tensor, "k n n"]) -> tuple[Float[Tensor, "k k k"], Float[Tensor, ""]]:
    r"""f with :math:`[M_i, M_j] \approx \sum_k f_{ij}^k M_k` by least squares, and the share of the squares that f leaves.

    Matrices must be independent (:func:`check_independent`), or f is not unique.
    """
    rows = matrices.flatten(1)
    brackets = commutators(matrices).flatten(2)
    f = torch.linalg.solve(rows @ rows.mT, brackets.flatten(0, 1) @ rows.mT, left=False)
    f = f.unflatten(0, brackets.shape[:2])
    residual = (brackets - f @ rows).square().sum()
    return f, residual / brackets.square().sum().clamp_min(torch.finfo(rows.dtype).tiny)


def check_independent(matrices: Float[Tensor, "k m n"], name: str = "generators") -> None:
    """Refuse linearly dependent matrices."""
    rows = matrices.detach().flatten(1)
    rows = rows.double() / rows.double().norm(dim=1, keepdim=True).clamp_min(1e-300)
    if len(rows) > rows.shape[1]:
        rank = int(torch.linalg.matrix_rank(rows))
    else:
        rank = int((torch.linalg.eigvalsh(rows @ rows.mT) > 1e-10).sum())
    if rank < len(rows):
        raise ValueError(f"{len(rows)} {name} of rank {rank} are dependent: leave out {len(rows) - rank} of them")


def algebra_penalties(matrices: Float[Tensor, "k n n"]) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """Measure how far matrices are from a Lie algebra's orthogonal basis, by two differentiable shares between 0 and 1.

    The first is the share of the commutators' squares that leaves the span; it is 0 for a Lie algebra. The second is the share
    of the Killing form's squares off its diagonal; it is 0 for an orthogonal basis, and for matrices that commute. Matrices
    must be independent, as for :func:`structure_constants`.
    """
    f, outside = structure_constants(matrices)
    K = torch.einsum("ikl,jlk->ij", f, f).square()  # squares of the Killing form, tr(ad_i ad_j)
    total = K.sum()
    return outside, (total - K.diagonal().sum()) / total.clamp_min(torch.finfo(K.dtype).tiny)


def regression_symmetries(
    x: Float[Tensor, "N d"], y: Float[Tensor, "N c"] | None = None, *, rtol: float = 1e-8
) -> Float[Tensor, "k d d"] | tuple[Float[Tensor, "k d d"], Float[Tensor, "k c c"]]:
    r"""Generators of the symmetries of a linear regression: :math:`L = H^{1/2} L' H^{-1/2}`, L' antisymmetric.

    They preserve the second moments :math:`H = x^T x / N`, :math:`L H + H L^T = 0`: an algebra isomorphic to so(d) (the group
    that preserves H is O(d), with reflections). With targets, pairs that also preserve :math:`C = y^T x`, with a generator
    :math:`L_c` on targets: :math:`L_c C + C L^T = 0`. The regression :math:`A = C (x^T x)^{-1}` is then equivariant,
    :math:`L_c A = A L`.

    Returns:
        all ``d (d - 1) / 2`` generators; with targets, a basis of the pairs (L, L_c) in which L is not zero.
    Raises:
        ValueError: singular second moments, which have no inverse root.
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
    identity = torch.eye(c, dtype=torch.float64)
    by_L = (C @ L.mT).flatten(1).mT  # columns are generators
    by_c = torch.einsum("ap,qd->adpq", identity, C).flatten(2).flatten(0, 1)  # columns are L_c's entries (p, q)
    scale = C.norm().clamp_min(1e-300)
    _, singular, right = torch.linalg.svd(torch.cat([by_L, by_c], 1) / scale)
    null = right[int((singular > rtol * singular[0]).sum()) :]
    # leave out pairs with L = 0, which transform targets alone; there are some if the targets do not span R^c
    a, b = null[:, : len(L)], null[:, len(L) :]
    u, size, _ = torch.linalg.svd(a, full_matrices=False)
    mix = u[:, size > rtol].mT
    return torch.einsum("ka,aij->kij", mix @ a, L), (mix @ b).unflatten(1, (c, c))
