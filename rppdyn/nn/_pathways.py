r"""Pathways: the additive contributions of a layer, each with its own Gaussian prior.

A pathway knows its parameters, its prior variance, its output and, where it is linear, its dense weight; and from inputs and
gradients it gives the curvature of its coefficients. A class with these methods can take part in a relaxed layer, in the prior
and in the marginal likelihood.

That curvature is Kronecker-factored. The loss of a linear map :math:`y = W x` has the generalised Gauss-Newton matrix
:math:`\sum_{n,s} (x_n \otimes g_{ns})(x_n \otimes g_{ns})^T`, :math:`g_{ns}` being gradients of square-root factors of its
Hessian by :math:`y_n`. It is approximated by :math:`A \otimes G` with :math:`A = \frac1N \sum_n x_n x_n^T` and
:math:`G = \sum_{n,s} g_{ns} g_{ns}^T` (Martens & Grosse 2015). For a weight that is used at P places (pixels, copies of an
irreducible representation) A is a sum over places and G a mean over them (Grosse & Martens 2016).

A weight may also enter in other ways, as a Hamiltonian network's enters its vector field. Then each datum gives gradients
:math:`M_{ns}` by the weight, and :math:`\sum_{n,s} \mathrm{vec}(M_{ns}) \mathrm{vec}(M_{ns})^T` is approximated by
:math:`\sum M^T M \otimes \sum M M^T / \sum |M|^2`, which has the same partial traces (Ren & Goldfarb 2021); for a linear map
with normal noise it equals the one above.
"""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from operator import attrgetter
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from rppdyn.basis import IrreducibleType, Isotypic, isotypic
from rppdyn.nn._coefficients import CoefficientMap, ExactBuffers
from rppdyn.reps import Rep, Scalar

VARIANCE_PARAMETERS = ("log_variance", "unit")
"""Names of the parameters of a learned variance, which an optimiser of weights leaves alone."""

AffineMap = tuple[Tensor, Tensor | None]
"""A dense weight ``(out, in)`` and a bias ``(out,)``, None where there is none."""


@dataclass(frozen=True, eq=False)
class Root:
    r"""A matrix :math:`R^T R`, stored as R of shape (k, n) with few rows k; leading axes are of blocks.

    A layer may have thousands of inputs n and hundreds of data k. The eigenvalues that are not zero are those of :math:`R R^T`,
    in time :math:`k^2 n`; those of the matrix would take :math:`n^3`. Sums and multiples of roots stand for those of the
    matrices.
    """

    rows: Float[Tensor, "*blocks k n"]

    def matrix(self) -> Float[Tensor, "*blocks n n"]:
        """:math:`R^T R`."""
        return (self.rows.mT @ self.rows).double()

    def eigenvalues(self) -> Float[Tensor, "*blocks k"]:
        """All eigenvalues but :math:`n - k` zeros, in float64 on the CPU."""
        rows = self.rows.double().cpu()
        return torch.linalg.eigvalsh(rows @ rows.mT)

    def isfinite(self) -> Tensor:
        return self.rows.isfinite()

    def __add__(self, other: Factor) -> Factor:
        return gram(torch.cat([self.rows, other.rows], -2)) if isinstance(other, Root) else self.matrix() + other

    def __radd__(self, other: Tensor) -> Tensor:
        return other + self.matrix()

    def __mul__(self, scale: int | float) -> Root:
        return Root(self.rows * math.sqrt(scale))

    def __truediv__(self, scale: int | float) -> Root:
        return Root(self.rows / math.sqrt(scale))


Factor = Tensor | Root
"""A positive semi-definite matrix, float64, or a root of it."""


def gram(rows: Float[Tensor, "*blocks k n"]) -> Factor:
    """The sum of outer products of rows; a :class:`Root` if there are at most half as many rows as columns."""
    root = Root(rows)
    return root if 2 * rows.shape[-2] <= rows.shape[-1] else root.matrix()


class Kronecker(NamedTuple):
    r"""The curvature :math:`A \otimes G` of a matrix of coefficients; leading axes are of independent blocks.

    Attributes:
        A: factor of inputs, ``(*blocks, n, n)``, a sum over the data, to be divided by their number at the end.
        G: factor of gradients, ``(*blocks, m, m)``, a sum over the data and the factors of the loss's Hessian.
    """

    A: Factor
    G: Factor

    def eigenvalues(self) -> tuple[Float[Tensor, " eigenvalues"], int]:
        """Eigenvalues of the curvature, none negative and some zeros left out; and their number with all zeros."""
        (a, n), (g, m) = (_eigenvalues(factor) for factor in (self.A, self.G))
        return (a.unsqueeze(-1) * g.unsqueeze(-2)).flatten(), math.prod(a.shape[:-1]) * n * m


def _eigenvalues(factor: Factor) -> tuple[Float[Tensor, "*blocks k"], int]:
    """Eigenvalues of each block of a factor, and its number of rows and columns."""
    if isinstance(factor, Root):
        return factor.eigenvalues().clamp_min(0), factor.rows.shape[-1]
    return torch.linalg.eigvalsh(factor.double().cpu()).clamp_min(0), factor.shape[-1]


def linear_curvature(x: Float[Tensor, "N *places n"], g: Float[Tensor, "S N *places m"]) -> Kronecker:
    """Curvature of a weight ``(m, n)`` that is used at several places of each of N data, from S gradients of each."""
    places = math.prod(x.shape[1:-1])
    x, g = (rows.reshape(-1, rows.shape[-1]).double() for rows in (x, g))
    return Kronecker(gram(x), gram(g) / places)


def curvature_from_gradients(M: Float[Tensor, "*blocks K m n"]) -> Kronecker:
    """Curvature of a weight ``(m, n)``, from its K gradients; the sum over all is to be divided by the trace of A."""
    M = M.double()
    return Kronecker(torch.einsum("...kmn,...kmp->...np", M, M), torch.einsum("...kmn,...kpn->...mp", M, M))


class Pathway(ExactBuffers):
    r"""One contribution to a layer, whose coefficients have the prior :math:`N(0, \sigma^2)`.

    ``log_variance``, the natural logarithm of :math:`\sigma^2`, is a float64 buffer; :meth:`learn_variance` makes it a
    parameter.

    Attributes:
        is_free: whether it has less symmetry than another pathway of its layer; the layer sets it.
        fan_in: how many of its coefficients one output is a sum of, for its unit (:func:`prior_unit`).
        within: name of the smallest other pathway of its layer that contains this one's functions; None if there is none.
        uses: the squared Frobenius norm of the dense map with one coefficient of 1 and all others 0.
    Raises:
        ValueError: the variance is not a positive finite number (a layer leaves out a pathway of variance 0).
    """

    log_variance: Tensor
    unit: Tensor | None
    is_free = False
    fan_in: int | float = 1
    within: str | None = None
    uses: int | float = 1

    def __init__(self, variance: int | float):
        super().__init__()
        if not (math.isfinite(variance) and variance > 0):
            raise ValueError(f"a pathway's prior variance must be positive and finite; got {variance!r}")
        log_variance = torch.tensor(math.log(variance), dtype=torch.float64)
        self.register_exact("log_variance", log_variance, working_copy=False)
        self.register_buffer("unit", None)

    @property
    def variance(self) -> Tensor:
        """The prior variance, a scalar tensor."""
        return self.log_variance.exp()

    def register_unit(self, unit: int | float | None) -> None:
        """Store parameters in multiples of ``unit``, a buffer; None for a pathway that never has one."""
        if unit is not None:
            self.register_exact("unit", torch.tensor(unit, dtype=torch.float64))

    def in_units(self, parameter: Tensor, onto: Tensor | None = None) -> Tensor:
        """Unit times stored parameter, plus ``onto``; in an ensemble each member has its own unit."""
        if self.unit is None:
            return parameter if onto is None else parameter + onto
        unit = self.unit if self.unit.ndim == 0 else self.unit.view(-1, *[1] * (parameter.ndim - 1))
        return unit * parameter if onto is None else torch.addcmul(onto, unit, parameter)

    @torch.no_grad()
    def follow_variance(self, optimiser: torch.optim.Optimizer | None = None) -> None:
        r"""Store parameters in the unit that a layer built with the variance as it is now would have (:func:`prior_unit`).

        With :math:`\phi = w / u` stored and a new unit :math:`u'`, :math:`\phi' = (u / u') \phi`: the function stays as it is.
        Gradients by :math:`\phi'` are :math:`u' / u` times those by :math:`\phi`. Adam's means of them are scaled by the same
        factor, its means of squares by the square of it: Adam continues as if it had trained :math:`\phi'` from the start.

        Args:
            optimiser: Adam, whose moments follow.
        """
        if self.unit is None:
            return
        parameters = [self.get_parameter(name) for name in self.coefficient_names()]
        old = self.unit if isinstance(self.unit, nn.Parameter) else self.get_buffer("unit_exact")
        new = (self.variance * max(self.fan_in, 1)).sqrt().clamp(max=1.0).to(old)
        rescale_parameters(parameters, (old / new).to(parameters[0]), optimiser)
        old.copy_(new)
        self.unit.copy_(new)

    def learn_variance(self) -> None:
        """Make ``log_variance`` a parameter, and the unit of storage, which follows it, a parameter without a gradient."""
        if not isinstance(self.log_variance, nn.Parameter):
            self.log_variance = nn.Parameter(self.drop_exact("log_variance"))
        if self.unit is not None and not isinstance(self.unit, nn.Parameter):
            like = self.get_parameter(self.coefficient_names()[0])
            self.unit = nn.Parameter(self.drop_exact("unit").to(like), requires_grad=False)

    def _load_from_state_dict(self, state_dict, prefix, *args, **kwargs):
        """Read a unit in any form: exact, a parameter once the variance is learned, or, in earlier versions, absent for 1."""
        weight = None if self.unit is None else state_dict.get(prefix + self.coefficient_names()[0])
        if self.unit is not None and weight is not None:
            learned, exact = f"{prefix}unit", f"{prefix}unit_exact"
            saved = [state_dict.pop(key) for key in (learned, exact) if key in state_dict]
            if saved or f"{prefix}log_variance" in state_dict:  # else part of a state dict
                target = learned if isinstance(self.unit, nn.Parameter) else exact
                state_dict[target] = saved[0] if saved else torch.ones_like(self.unit, device=weight.device)
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)

    def coefficients(self) -> tuple[Tensor, ...]:
        """The variables of the prior: orthonormal coefficients or, by default, the parameters themselves, in their unit."""
        return tuple(self.in_units(attrgetter(name)(self)) for name in self.coefficient_names())

    def coefficient_names(self) -> list[str]:
        """Names of the parameters whose multiples are the coefficients."""
        return [name for name, p in self._parameters.items() if p is not None and name not in VARIANCE_PARAMETERS]

    def curvature(self, x: Float[Tensor, "N ..."], g: Float[Tensor, "S N ..."]) -> list[Kronecker]:
        """Curvature of all coefficients, in blocks that are taken to be independent.

        Args:
            x: inputs of N data.
            g: gradients by the pathway's output of S square-root factors of the loss's Hessian.
        Raises:
            NotImplementedError: this kind of pathway has no curvature, and its variance can't be learned.
        """
        raise NotImplementedError(f"{type(self).__name__} has no curvature: its variance is not learned")

    def gradient_curvature(
        self, weight: Float[Tensor, "K ..."], bias: Float[Tensor, "K ..."] | None = None
    ) -> list[Kronecker]:
        """Curvature in the blocks of :meth:`curvature`, from K gradients by what the layer assembles: a weight and a bias."""
        raise NotImplementedError(f"{type(self).__name__} has no curvature: its variance is not learned")

    def check_curvature(self) -> None:
        """Refuse, before any work, a pathway for which :meth:`curvature` will fail."""

    @property
    def has_curvature(self) -> bool:
        """True if :meth:`curvature` is known, so that the variance can be learned."""
        return type(self).curvature is not Pathway.curvature

    @property
    def num_coefficients(self) -> int:
        """Number of coefficients, the variables of the prior."""
        return sum(c.numel() for c in self.coefficients())

    def norm(self) -> Float[Tensor, ""]:
        """Root of the sum of squared coefficients, which is the Frobenius norm of the dense tensors they describe."""
        return torch.stack([c.detach().square().sum() for c in self.coefficients()] or [torch.zeros(())]).sum().sqrt()


class LinearPathway(Pathway, ABC):
    """A pathway of a linear layer: an affine map with a dense weight."""

    @abstractmethod
    def dense(self, onto: AffineMap | None = None) -> AffineMap:
        """Weight and bias, assembled from the parameters; added to those of ``onto``, which saves passes over memory."""

    def forward(self, x: Float[Tensor, "*batch in"]) -> Float[Tensor, "*batch out"]:
        """This pathway's share of the layer's output."""
        return F.linear(x, *self.dense())

    @abstractmethod
    def gradient_curvature(
        self, weight: Float[Tensor, "K out in"], bias: Float[Tensor, "K out"] | None = None
    ) -> list[Kronecker]:
        """Curvature in the blocks of :meth:`curvature`, from K gradients by the layer's dense weight and bias.

        Factors ``A`` are to be divided by their traces (:func:`curvature_from_gradients`).
        """

    def norm(self) -> Float[Tensor, ""]:
        """Frobenius norm of the dense weight, without the bias."""
        return self.dense()[0].detach().norm()


class EquivariantPathway(LinearPathway):
    r"""The equivariant affine maps: ``vec(A) = Q beta``, and a bias among the invariants of ``rep_out``.

    Stored are the scaled coefficients of :class:`~rppdyn.nn._coefficients.CoefficientMap`, so that Adam moves tied weights
    as fast as free ones. A part without equivariant maps (or invariants) has no parameters and contributes zero.

    Args:
        gain: output standard deviation at initialisation for inputs of unit mean square; biases start at zero.
        has_unit: whether parameters are stored in multiples of :func:`prior_unit`, as those of a subgroup's pathway are beside
            one that knows more symmetry.
    """

    def __init__(self, rep_in: Rep, rep_out: Rep, variance: int | float, *, bias: bool = True, gain: int | float = 1.0,
                 has_unit: bool = False, generator: torch.Generator | None = None):  # fmt: skip
        super().__init__(variance)
        self.rep_in, self.rep_out = rep_in, rep_out
        self.weight_map = CoefficientMap((rep_in >> rep_out).solve(), (rep_out.dim, rep_in.dim))
        self.bias_map = CoefficientMap(rep_out.solve(), (rep_out.dim,)) if bias else None
        rank = 0 if self.bias_map is None else self.bias_map.rank
        self.fan_in = self.weight_map.rank / rep_out.dim
        unit = prior_unit(variance, self.fan_in) if has_unit and (self.weight_map.rank or rank) else None
        self.register_unit(unit)
        std = self.weight_map.initial_std(gain / (unit or 1))
        draw = torch.randn(len(std), generator=generator, dtype=torch.float64) * std
        self.weight = nn.Parameter(draw.to(torch.get_default_dtype())) if len(std) else None
        self.bias = nn.Parameter(torch.zeros(rank)) if rank else None

    def _load_from_state_dict(self, state_dict, prefix, *args, **kwargs):
        for name, basis in (("weight", self.weight_map), ("bias", self.bias_map)):
            saved = {} if basis is None else basis.saved_basis(state_dict, f"{prefix}{name}_map.")
            if basis is not None and saved and prefix + name in state_dict:
                state_dict[prefix + name] = basis.from_saved(saved, state_dict[prefix + name])
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)

    def coefficients(self) -> tuple[Tensor, ...]:
        parts = (self.weight_map, self.weight), (self.bias_map, self.bias)
        return tuple(m.beta(self.in_units(theta)) for m, theta in parts if m is not None and theta is not None)

    def check_curvature(self) -> None:
        try:
            _adapted(self.rep_in, self.rep_out, self.bias is not None)
        except ValueError as error:
            raise ValueError(
                f"the variance of maps {self.rep_in} -> {self.rep_out} of {self.rep_in.G} can't be learned by "
                "curvature=kronecker: adapted bases of them are not known. Take curvature=joint, or give the "
                "group's generators in coordinates in which compact ones are skew-symmetric or orthogonal"
            ) from error

    def dense(self, onto: AffineMap | None = None) -> AffineMap:
        weight, bias = (None, None) if onto is None else onto
        if self.weight is not None:
            weight = self.weight_map(self.in_units(self.weight), weight)
        elif weight is None:
            members = () if self.bias is None else self.bias.shape[:-1]
            weight = self.weight_map.scale.new_zeros(*members, *self.weight_map.shape)
        stored, bias_map = self.bias, self.bias_map
        return weight, bias if stored is None or bias_map is None else bias_map(self.in_units(stored), bias)

    def curvature(self, x: Float[Tensor, "N *places in"], g: Float[Tensor, "S N *places out"]) -> list[Kronecker]:
        r"""One pair of factors for each irreducible type k, of dimension :math:`d_k`.

        In symmetry-adapted bases :math:`A = U_{out} (\oplus_k \sum_u W_{ku} \otimes J_{ku}) U_{in}^T`, with :math:`J_{ku}` the
        matrices that commute with the type; :math:`\sqrt{d_k} W_{ku}` are orthonormal coefficients. So a type's weight is used
        at :math:`d_k` places, with inputs :math:`J_{ku} U_{in}^T x / \sqrt{d_k}`. The bias is the weight of an input of one.
        """
        has_bias = self.bias is not None
        adapted = _adapted(self.rep_in, self.rep_out, has_bias)
        (u_in, u_out), x = (u.to(x) for u in adapted.u), F.pad(x, (0, 1), value=1.0) if has_bias else x
        z, h = x @ u_in, g @ u_out
        blocks = []
        for kind, inputs, outputs in _types(adapted):
            n, m, d = *kind.multiplicities, kind.dim
            z_k = torch.einsum("upq,...nq->...pnu", kind.units.to(z), z[..., inputs].unflatten(-1, (n, d)))
            blocks.append(linear_curvature(z_k.flatten(-2) / math.sqrt(d), h[..., outputs].unflatten(-1, (m, d)).mT))
        return blocks

    def gradient_curvature(
        self, weight: Float[Tensor, "K out in"], bias: Float[Tensor, "K out"] | None = None
    ) -> list[Kronecker]:
        r"""One pair of factors for each type, from gradients by :math:`\sqrt{d_k} W_{ku}`: inner products of
        :math:`J_{ku} / \sqrt{d_k}` with the type's part of :math:`U_{out}^T M U_{in}`."""
        has_bias = self.bias is not None
        adapted = _adapted(self.rep_in, self.rep_out, has_bias)
        M = _with_bias(weight, bias if has_bias else None)
        M = adapted.u[1].to(M).mT @ M @ adapted.u[0].to(M)
        blocks = []
        for kind, inputs, outputs in _types(adapted):
            n, m, d = *kind.multiplicities, kind.dim
            block = M[:, outputs, inputs].unflatten(2, (n, d)).unflatten(1, (m, d))
            blocks.append(
                curvature_from_gradients(
                    torch.einsum("upq,kmpnq->kmnu", kind.units.to(M), block).flatten(2) / math.sqrt(d)
                )
            )
        return blocks

    def extra_repr(self) -> str:
        return _count(self) + (f", {self.rep_in.G}" if self.is_free else "")


class FreePathway(LinearPathway):
    """A dense weight and bias without constraint, stored in multiples of ``unit``.

    Args:
        gain: output standard deviation at initialisation for inputs of unit mean square; biases start at zero.
        unit: the weight that a stored parameter of 1 stands for (:func:`prior_unit`); None for storage without a unit.
    """

    def __init__(self, dim_in: int, dim_out: int, variance: int | float, *, bias: bool = True, gain: int | float = 1.0,
                 unit: int | float | None = None, generator: torch.Generator | None = None):  # fmt: skip
        super().__init__(variance)
        self.fan_in = dim_in
        self.register_unit(unit)
        draw = torch.randn(dim_out, dim_in, generator=generator) * (gain / (unit or 1) / math.sqrt(max(dim_in, 1)))
        self.weight = nn.Parameter(draw)
        self.bias = nn.Parameter(torch.zeros(dim_out)) if bias else None

    def dense(self, onto: AffineMap | None = None) -> AffineMap:
        weight, bias = (None, None) if onto is None else onto
        return self.in_units(self.weight, weight), bias if self.bias is None else self.in_units(self.bias, bias)

    def curvature(self, x: Float[Tensor, "N *places in"], g: Float[Tensor, "S N *places out"]) -> list[Kronecker]:
        """One pair of factors; the bias is the weight of an input of one."""
        return [linear_curvature(F.pad(x, (0, 1), value=1.0) if self.bias is not None else x, g)]

    def gradient_curvature(
        self, weight: Float[Tensor, "K out in"], bias: Float[Tensor, "K out"] | None = None
    ) -> list[Kronecker]:
        return [curvature_from_gradients(_with_bias(weight, None if self.bias is None else bias))]

    def extra_repr(self) -> str:
        return _count(self)


class BreakingInputs(Pathway):
    r"""Constant inputs b beside x, which transform under a representation: through them a strict network leaves its symmetry.

    An equivariant network has :math:`f(gx, gb) = g f(x, b)`: with b fixed it is equivariant under the elements that fix b, and
    with :math:`b = 0` under all. So the norm of a learned b, less its invariant part, says how far the symmetry is broken, and
    its direction which way, up to a sign that the next layer can undo (Smidt, Geiger & Miller 2021, where b are order
    parameters; Kaba & Ravanbakhsh 2023). A learned b starts at zero, where its gradient needn't vanish, and has the prior
    :math:`N(0, \sigma^2)`. One that is not learned is drawn from that prior.
    """

    vector: Tensor

    def __init__(self, rep: Rep, variance: int | float, learned: bool, generator: torch.Generator | None = None):
        super().__init__(variance)
        self.rep = rep
        self.register_unit(prior_unit(variance) if learned else None)
        if learned:
            self.vector = nn.Parameter(torch.zeros(rep.dim))
        else:
            self.register_buffer("vector", math.sqrt(variance) * torch.randn(rep.dim, generator=generator))

    def value(self) -> Float[Tensor, " constants"]:
        """The current b."""
        return self.in_units(self.vector).detach()

    def moved(self) -> Float[Tensor, " constants"]:
        """The part of b that the group moves, on the CPU: the invariant part breaks nothing."""
        b = self.value().double().cpu()
        return b - self.rep.solve().project(b)

    def norm(self) -> Float[Tensor, ""]:
        return self.moved().norm()

    def forward(self, x: Float[Tensor, "*batch in"]) -> Float[Tensor, "*batch wide"]:
        """The inputs with the constants after them."""
        return torch.cat([x, self.in_units(self.vector).to(x).expand(*x.shape[:-1], -1)], -1)

    def fold(self, weight: Float[Tensor, "*stack out wide"], bias: Tensor | None) -> AffineMap:
        """Absorb the constants into the bias: turn an affine map of (x, b) into one of x."""
        constants = self.in_units(self.vector)
        inputs = weight.shape[-1] - constants.shape[-1]
        shift = (weight[..., inputs:] @ constants.unsqueeze(-1)).squeeze(-1)
        return weight[..., :inputs], shift if bias is None else bias + shift

    def unfold_gradient(self, weight: Float[Tensor, "K out in"], bias: Float[Tensor, "K out"] | None) -> Tensor:
        """Gradients by the weight of (x, b), from those by the map of x that :meth:`fold` makes of it."""
        assert bias is not None  # as of every folded map
        return torch.cat([weight, bias.unsqueeze(-1) * self.value()], -1)

    def extra_repr(self) -> str:
        return f"{self.rep}, variance={format_variance(self.log_variance)}"


def summed_squares(tensors: Iterable[Tensor]) -> Float[Tensor, ""]:
    """The sum of the squares of all entries of one tensor or more."""
    flat = (x.reshape(-1) for x in tensors)
    return functools.reduce(torch.add, (x @ x for x in flat))


def format_variance(log_variance: Tensor) -> str:
    """The variance with four digits for a layer's description; "unknown" on the meta device, which has no values."""
    return "unknown" if log_variance.is_meta else f"{log_variance.exp().item():.4g}"


def prior_unit(variance: int | float, fan_in: int | float = 1) -> float:
    r"""The unit in which a free pathway is stored beside an equivariant one: :math:`\min(1, \sigma\sqrt{n_{in}})`.

    Adam moves every parameter by about its learning rate, however small the gradient. Under a prior that is narrow beside a
    weight's usual size :math:`1/\sqrt{n_{in}}`, weights stored as they are would move by more than their prior's standard
    deviation in each step. In this unit a step is the same share of it as of an ordinary weight's usual size. Wider priors
    leave the unit at 1. For the pathway of a subgroup :math:`n_{in}` is the number of coefficients for each output.
    """
    if not variance > 0:  # which the pathway refuses
        return 1.0
    return min(1.0, math.sqrt(variance * max(fan_in, 1)))


def rescale_parameters(
    parameters: Iterable[Tensor], ratio: Tensor, optimiser: torch.optim.Optimizer | None = None
) -> None:
    """Multiply stored parameters by the ratio of an old unit to a new one, and change Adam's moments to match, in place."""
    for p in parameters:
        factor = ratio.view(-1, *[1] * (p.dim() - 1)) if ratio.dim() else ratio  # one for each member of an ensemble
        p.mul_(factor)
        if optimiser is not None and (state := optimiser.state.get(p)):
            state["exp_avg"].div_(factor)
            state["exp_avg_sq"].div_(factor**2)


@functools.lru_cache(maxsize=256)
def _adapted(rep_in: Rep, rep_out: Rep, bias: bool) -> Isotypic:
    return isotypic([rep_in + Scalar(rep_in.G) if bias else rep_in, rep_out])


def _types(adapted: Isotypic) -> Iterator[tuple[IrreducibleType, slice, slice]]:
    """Types that both representations have, and where their coordinates are."""
    for kind in adapted.types:
        (n, m), (i, j), d = kind.multiplicities, kind.starts, kind.dim
        if n and m:
            yield kind, slice(i, i + n * d), slice(j, j + m * d)


def _with_bias(weight: Tensor, bias: Tensor | None) -> Float[Tensor, "K out in"]:
    """Gradients of a weight whose last input is one, where there is a bias."""
    return weight if bias is None else torch.cat([weight, bias.unsqueeze(-1)], -1)


def _count(pathway: EquivariantPathway | FreePathway) -> str:
    weight, bias = (0 if p is None else p.numel() for p in (pathway.weight, pathway.bias))
    return f"{weight} weights, {bias} biases, variance={format_variance(pathway.log_variance)}"


def pathway_path(layer: str, name: str) -> str:
    """The name of a pathway in its network; constant inputs belong to no layer."""
    return f"{layer}.{name}".lstrip(".")


def named_pathways(module: nn.Module) -> Iterator[tuple[str, str, Pathway]]:
    """Every pathway of a module as ``(layer, pathway name, pathway)``, such as ``("blocks.0.linear", "free", ...)``."""
    for path, child in module.named_modules():
        if isinstance(child, Pathway):
            layer, _, name = path.rpartition(".")
            yield layer, name, child
