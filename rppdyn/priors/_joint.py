r"""The Laplace approximation with the Gauss-Newton matrix, joint over pathways, from kernel matrices of their Jacobians."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import functional_call

from rppdyn.errors import DivergedError
from rppdyn.nn._ensemble import Ensemble
from rppdyn.nn._pathways import Pathway, named_pathways, pathway_path
from rppdyn.priors._laplace import Evidence, PathwayEvidence, PredictEach, check_total, output_gradients
from rppdyn.priors._likelihood import Likelihood
from rppdyn.runs.files import memory_limit

Predict = Callable[[Any, Tensor], Tensor]
"""Outputs ``(N, *out)`` of N data by a module, or by a member of an ensemble."""

BLOCK_BYTES = 2**29  # of gradients in memory at a time
CHUNK_DATA = 64  # number of data whose gradients are computed at a time, which limits the memory for activations
MATRIX_COPIES = 4  # of a kernel matrix, for a determinant and its gradient
WEIGHTS = "the network's weights"  # what gradients are by, in messages


class JointEvidence(Evidence):
    r"""The evidence with :math:`\log\det(I + \sum_p \sigma_p^2 K_p)`, joint over pathways.

    Args:
        kernels: :math:`K_p = J_p J_p^T` of each pathway, float64.
    Raises:
        DivergedError: a kernel matrix is not finite.
    """

    def __init__(
        self,
        pathways: list[PathwayEvidence],
        kernels: Float[Tensor, "pathways M M"],
        negative_log_likelihood: float | Tensor = 0.0,
    ):
        super().__init__(pathways, negative_log_likelihood)
        self.kernels = kernels
        finite = kernels.isfinite().flatten(1).all(1)
        if not bool(finite.all()):
            p = pathways[int((~finite).nonzero()[0, 0])]
            raise DivergedError(
                f"the kernel matrix of {p.layer}.{p.name} has entries that are no finite numbers: the network's outputs or "
                "their gradients have diverged, or overflow its dtype"
            )

    def log_determinant(
        self, log_variances: Float[Tensor, " pathways"], curvature_scale: float | Tensor = 1.0
    ) -> Float[Tensor, ""]:
        value, failed = _LogDeterminant.apply(self._matrix(curvature_scale * log_variances.exp()))
        if int(failed):
            low, high = (float(value) for value in log_variances.detach().exp().aminmax())
            raise ValueError(
                f"the kernel matrix I + sum_p sigma_p^2 K_p of {self.kernels.shape[-1]} rows is singular in float64, with "
                f"prior variances from {low:.3g} to {high:.3g}: lower the largest variance, or raise the likelihood's"
            )
        return value

    def _matrix(self, variances: Float[Tensor, " pathways"]) -> Float[Tensor, "M M"]:
        size = self.kernels.shape[-1]
        total = (variances @ self.kernels.flatten(1)).view(size, size)
        return total + torch.eye(size, dtype=total.dtype)

    def squared_norms_at_optimum(self, targets: Float[Tensor, " M"]) -> Float[Tensor, " pathways"]:
        r"""Squared norms of the pathways where the posterior of the linearised network is largest.

        With t its targets (:func:`linear_targets`) in units of the noise and :math:`C = I + \sum_p \sigma_p^2 K_p`,

        .. math:: |\theta_p|^2 = \sigma_p^4\, t^T C^{-1} K_p C^{-1} t.

        Gradient steps leave weights elsewhere, above all where layers are normalised and their scale has no effect.
        Source: Antorán et al. 2022.
        """
        variances = self.log_variances.detach().exp()
        solved = torch.linalg.solve(self._matrix(variances), targets.to(self.kernels))
        # where variances are far too large rounding is left, perhaps negative; it falls as they do
        return variances.square() * torch.einsum("m,pmn,n->p", solved, self.kernels, solved).abs()


class _LogDeterminant(torch.autograd.Function):
    """Log-determinant of a matrix, and whether it is not positive definite; autograd's gradient takes four times as long."""

    @staticmethod
    def forward(ctx: Any, matrix: Float[Tensor, "M M"]) -> tuple[Tensor, Tensor]:
        root, failed = torch.linalg.cholesky_ex(matrix)
        ctx.mark_non_differentiable(failed)
        ctx.save_for_backward(matrix, root)
        return 2 * root.diagonal().log().sum(), failed

    @staticmethod
    def backward(ctx: Any, g: Tensor, _: Tensor) -> Tensor:
        matrix, root = ctx.saved_tensors
        return g * (torch.linalg.inv(matrix) if torch.is_grad_enabled() else torch.cholesky_inverse(root))


def joint_evidence(
    net: nn.Module,
    x: Float[Tensor, "N ..."],
    likelihood: Likelihood,
    outputs: Tensor | None = None,
    *,
    predict: Predict | None = None,
    predict_each: PredictEach | None = None,
    total: int | None = None,
    generator: torch.Generator | None = None,
    draws: int = 1,
    memory: int | float | None = None,
) -> JointEvidence:
    r"""The Laplace approximation of the evidence around a network's weights, joint over its pathways.

    With :math:`J_p` the Jacobian ``(N S, P_p)`` of the outputs by a pathway's coefficients, times the S square-root factors of
    each datum's Hessian, and :math:`K_p = J_p J_p^T`,

    .. math:: -\log p(D) \approx -\log p(D \mid \theta) + \frac12 \sum_p \frac{|\theta_p|^2}{\sigma_p^2}
        + \frac12 \log\det\Big(I + \sum_p \sigma_p^2 K_p\Big), \qquad
        \gamma_p = \sigma_p^2\, \mathrm{tr}\Big[\Big(I + \sum_q \sigma_q^2 K_q\Big)^{-1} K_p\Big].

    That is the determinant of the whole Gauss-Newton matrix, blocks between pathways and layers included, so functions that
    several pathways share are counted once. Around the mode of a linear model with normal noise it is the evidence itself.
    Matrices have ``N S`` rows, for any number of weights.

    Args:
        net: any module with pathways of this package.
        x: inputs of N data.
        likelihood: density of the outputs.
        outputs: the targets, as ``likelihood.negative_log`` takes them; None leaves out :math:`-\log p(D \mid \theta)`, which
            does not depend on prior variances.
        predict: outputs ``(N, *out)`` of a module and inputs, ``net(x)`` if None; for example, for a vector field,
            ``lambda net, z: net.vector_field(z)``. Functions that ``torch.vmap`` can't map get one datum at a time.
        predict_each: outputs of ``(stack, None, x)``, an ensemble with one copy of the network for each datum; may be faster.
        total: number of data of the evidence, if x is a subset of them: likelihood and curvature are multiplied by
            ``total / N``. A matrix determines at most as many coefficients as it has rows: for a subset, or few draws,
            effective numbers are too small if their sum is near that.
        generator: draws targets of each datum from the likelihood; without it S is the number of outputs.
        draws: S, number of targets drawn for each datum.
        memory: bytes available for the matrices; half of the machine's, or of its container's, if None.
    Returns:
        An evidence with ``log_evidence`` and ``effective_parameters``, ``{layer: {pathway: gamma}}``, both differentiable in
        the pathways' ``log_variance`` if these are parameters (:func:`~rppdyn.priors.learn_variances`).
    Raises:
        ValueError: the network has no pathways; outputs don't fit; more rows than memory; values are not finite.
    Source: MacKay 1992; Immer et al. 2021; the kernel form is Sylvester's identity.
    """
    if not draws >= 1:
        raise ValueError(f"draws={draws}: give a number of targets for each datum, one or more")
    check_total(total)
    pathways, kernels, predicted = kernel_matrices(
        net, x, likelihood, predict=predict, predict_each=predict_each, generator=generator, draws=draws,
        memory=memory,
    )  # fmt: skip
    scale = 1.0 if total is None else total / len(x)
    nll = 0.0 if outputs is None else scale * float(likelihood.negative_log(predicted, outputs.to(predicted.device)))
    return JointEvidence(pathways, scale * kernels, nll)


@torch.no_grad()
def linear_targets(net: nn.Module, x: Float[Tensor, "N in"], y: Float[Tensor, " N"]) -> Float[Tensor, " N"]:
    """Targets ``y - f(x) + J w`` of a network with one output when it is linear in the weights w of its pathways."""
    parameters = dict(net.named_parameters())
    own = {
        f"{pathway_path(layer, name)}.{leaf}".lstrip(".")
        for layer, name, p in named_pathways(net)
        for leaf in p.coefficient_names()
    }
    tangents = {name: p if name in own else torch.zeros_like(p) for name, p in parameters.items()}
    along = torch.func.jvp(lambda p: functional_call(net, p, (x,)).squeeze(-1), (parameters,), (tangents,))[1]
    return y - net(x).squeeze(-1) + along


def kernel_matrices(
    module: nn.Module,
    x: Float[Tensor, "N ..."],
    likelihood: Likelihood,
    *,
    predict: Predict | None = None,
    predict_each: PredictEach | None = None,
    generator: torch.Generator | None = None,
    draws: int = 1,
    memory: int | float | None = None,
) -> tuple[list[PathwayEvidence], Float[Tensor, "pathways M M"], Tensor]:
    """Pathways, their kernel matrices ``J_p J_p^T`` on the CPU in float64, and the outputs; as :func:`joint_evidence`.

    Rows are ordered by datum, then by factor of its Hessian. A Jacobian larger than `BLOCK_BYTES` is computed in blocks of
    rows, again for each pair of blocks.
    """
    if not len(x):
        raise ValueError("evidence of no data: give inputs of one datum or more")
    named = [each for each in named_pathways(module) if each[2].coefficient_names()]  # not constants that are fixed
    if not named:
        raise ValueError(
            f"{type(module).__name__} has no pathways, and so no evidence: give a network of rppdyn.nn or rppdyn.images, "
            "before layers are merged"
        )
    pathways = [PathwayEvidence.of(*each) for each in named]
    units = [_coefficient_units(layer, name, pathway) for layer, name, pathway in named]
    jacobian = _Jacobian(
        module, list(dict.fromkeys(name for rows_of in units for name in rows_of)), predict, predict_each
    )

    with torch.no_grad():
        first_output = jacobian.outputs(x[:1])
        S = len(likelihood.factors(first_output.nan_to_num())) if generator is None else draws
        _check_memory(len(x), S, len(named), memory)
        predicted = torch.cat([jacobian.outputs(part) for part in x.split(CHUNK_DATA)])
    if len(predicted) != len(x):
        raise ValueError(
            f"outputs of shape {tuple(predicted.shape)} for {len(x)} data: predict must give one of each, (N, *out)"
        )
    if not bool(predicted.isfinite().all()):
        wrong = int((~predicted.flatten(1).isfinite().all(1)).sum())
        raise DivergedError(
            f"outputs of {wrong} of {len(x)} data are no finite numbers: the network has diverged, or the data have"
        )
    factors = _factors(likelihood, predicted, generator, draws).transpose(0, 1)
    kernels = torch.zeros(len(named), len(x) * S, len(x) * S, dtype=torch.float64)
    width = 8 * S * sum(unit.numel() for rows_of in units for unit in rows_of.values())
    parts = torch.arange(len(x)).split(max(1, BLOCK_BYTES // max(width, 1)))
    for i, first in enumerate(parts):
        rows = _split_by_pathway(jacobian(x[first], factors[first]), units)
        for second in parts[i:]:
            columns = rows if second is first else _split_by_pathway(jacobian(x[second], factors[second]), units)
            i_rows, j_rows = (slice(S * int(part[0]), S * (int(part[-1]) + 1)) for part in (first, second))
            for kernel, first_rows, second_rows in zip(kernels, rows, columns, strict=True):
                for a, b in zip(first_rows, second_rows, strict=True):
                    kernel[i_rows, j_rows] += _products(a, b).cpu()
                if second is not first:
                    kernel[j_rows, i_rows] = kernel[i_rows, j_rows].mT
    return pathways, kernels, predicted


class _Jacobian:
    """Gradients of single data by parameters, ``(N S, *shape)``, from one copy of a module for each datum."""

    def __init__(self, module: nn.Module, names: list[str], predict: Predict | None, predict_each: PredictEach | None):
        self.module, self.names = copy.deepcopy(module).requires_grad_(True), names
        self.stack = Ensemble([self.module])
        self.predict = predict or (lambda net, x: net(x))
        self.predict_each = predict_each or self._by_vmap
        self.has_predict_each = predict_each is not None

    def _by_vmap(self, stack: Ensemble, weights: None, x: Tensor) -> Tensor:
        return stack.per_member(lambda net, x: self.predict(net, x.unsqueeze(0)).squeeze(0), x)

    def outputs(self, x: Tensor) -> Tensor:
        stack = self.stack.repeat(len(x))
        return self.predict_each(stack, None, x) if self.has_predict_each else self.predict(self.module, x)

    def __call__(self, x: Tensor, factors: Float[Tensor, "N S *out"]) -> dict[str, Tensor]:
        parts = [self._gradients(*part) for part in zip(x.split(CHUNK_DATA), factors.split(CHUNK_DATA), strict=True)]
        return {name: torch.cat([part[name] for part in parts]) for name in self.names}

    @torch.enable_grad()
    def _gradients(self, x: Tensor, factors: Float[Tensor, "N S *out"]) -> dict[str, Tensor]:
        stack = self.stack.repeat(len(x))
        try:
            outputs = self.predict_each(stack, None, x)
        except RuntimeError as error:
            if self.has_predict_each or "vmap" not in str(error):
                raise
            return self._sequential_gradients(x, factors)
        named = dict(zip(stack.names, stack.stacked, strict=True))
        parameters = [named[name] for name in self.names]
        rows = [output_gradients(outputs, parameters, factor, WEIGHTS) for factor in factors.unbind(1)]
        return {name: torch.stack(g, 1).flatten(0, 1) for name, *g in zip(self.names, *rows, strict=True)}

    def _sequential_gradients(self, x: Tensor, factors: Float[Tensor, "N S *out"]) -> dict[str, Tensor]:
        """The gradients, one datum at a time: for functions with steps that depend on the datum, such as solvers."""
        parameters: list[Tensor] = [self.module.get_parameter(name) for name in self.names]
        rows = []
        for datum, each in zip(x.split(1), factors, strict=True):
            outputs = self.predict(self.module, datum)
            rows += [output_gradients(outputs, parameters, factor.unsqueeze(0), WEIGHTS) for factor in each]
        return {name: torch.stack(g) for name, *g in zip(self.names, *rows, strict=True)}


@torch.enable_grad()
def _coefficient_units(layer: str, name: str, pathway: Pathway) -> dict[str, Tensor]:
    """Factors from a pathway's parameters to its coefficients, by the parameters' names in the module."""
    pathway = copy.deepcopy(pathway).requires_grad_(True)
    parameters = {leaf: pathway.get_parameter(leaf) for leaf in pathway.coefficient_names()}
    if not parameters:
        return {}
    total = torch.stack([c.sum() for c in pathway.coefficients()]).sum()
    units = torch.autograd.grad(total, list(parameters.values()))
    path = pathway_path(layer, name)
    return {f"{path}.{leaf}".lstrip("."): unit.double() for leaf, unit in zip(parameters, units, strict=True)}


Rows = Tensor | tuple[Tensor, Tensor]
"""Gradients of N data in float64: (N, P), or the factors (N, a) and (N, b) of N outer products."""


def _split_by_pathway(gradients: dict[str, Tensor], units: list[dict[str, Tensor]]) -> list[list[Rows]]:
    """Gradients by each pathway's coefficients, one entry for each of its parameters."""
    return [
        [_outer_factors(gradients[name] / unit.to(gradients[name])) for name, unit in each.items()] for each in units
    ]


def _outer_factors(gradients: Float[Tensor, "N ..."]) -> Rows:
    """Factors u and v of each datum's gradient u v^T, which a matrix has that is used once; else rows."""
    if gradients.dim() == 3:
        count, _, width = gradients.shape
        largest = gradients.abs().flatten(1).argmax(1)
        data, i, j = torch.arange(count, device=largest.device), largest // width, largest % width
        v, pivot = gradients[data, i], gradients[data, i, j].unsqueeze(1)
        u = gradients[data, :, j] / pivot.where(pivot != 0, torch.ones_like(pivot))
        error = torch.einsum("na,nb->nab", u, v).sub_(gradients).abs_().flatten(1).amax(1, keepdim=True)
        if bool((error <= 64 * torch.finfo(gradients.dtype).eps * pivot.abs()).all()):
            return u.double(), v.double()
    return gradients.double().flatten(1)


def _products(a: Rows, b: Rows) -> Float[Tensor, "N M"]:
    """Inner products of gradients; those of outer products are products of their factors'."""
    if isinstance(a, tuple) and isinstance(b, tuple):
        return (a[0] @ b[0].mT) * (a[1] @ b[1].mT)
    full = (torch.einsum("na,nb->nab", *rows).flatten(1) if isinstance(rows, tuple) else rows for rows in (a, b))
    return next(full) @ next(full).mT


def _factors(
    likelihood: Likelihood, outputs: Tensor, generator: torch.Generator | None, draws: int
) -> Float[Tensor, "S N *out"]:
    if generator is None:
        return likelihood.factors(outputs)
    return torch.cat([likelihood.factors(outputs, generator) for _ in range(draws)]) / draws**0.5


def _check_memory(data: int, S: int, pathways: int, memory: int | float | None) -> None:
    if excess := describe_memory_excess(data * S, pathways, memory):
        raise ValueError(
            f"{data * S} rows, {data} data of {S} each, and {pathways} pathways: {excess}; give a subset of the data with "
            f"total={data}, or a generator for one row of each, or take curvature=kronecker"
        )


def describe_memory_excess(rows: int, matrices: int, memory: int | float | None = None) -> str:
    """Say in words by how much kernel matrices exceed the memory; empty if they fit."""
    needed = 8 * rows**2 * (matrices + MATRIX_COPIES)
    if memory is None:
        memory = memory_limit() / 2
    if needed <= memory:
        return ""
    return f"kernel matrices take {needed} bytes ({needed / 2**30:.3g} GiB), more than the {memory:.0f} available"
