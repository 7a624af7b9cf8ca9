"""Curvature as matrices, however it is kept, and Jacobians by coefficients."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev

from rppdyn.nn._pathways import Factor, Kronecker, Root, named_pathways
from rppdyn.priors._laplace import KroneckerEvidence


def matrix(factor: Factor) -> Tensor:
    return factor.matrix() if isinstance(factor, Root) else factor


def whole(block: Kronecker) -> Kronecker:
    """The same block with matrices for its factors."""
    return block._replace(A=matrix(block.A), G=matrix(block.G))


def spectra(found: KroneckerEvidence) -> list[Tensor]:
    """All eigenvalues of each pathway, in order, those that are not kept because they are zero among them."""
    sizes = [p.size for p in found.pathways]
    return [
        torch.cat([own, own.new_zeros(size - len(own))]).sort().values
        for own, size in zip(found.eigenvalues, sizes, strict=True)
    ]


def jacobians(net, x, likelihood, f=lambda net, x: net(x)):
    """Gradients of each pathway by its coefficients: rows times square-root factors."""
    parameters = {name: p.detach() for name, p in net.named_parameters()}
    factors = likelihood.factors(f(net, x).detach()).flatten(2)  # (S, N, out)
    found = {}
    for layer, name, pathway in named_pathways(net):
        columns = [torch.zeros(factors.shape[0] * factors.shape[1], 0).double()]
        for leaf in pathway.coefficient_names():
            key = ".".join(part for part in (layer, name, leaf) if part)
            call = _Call(net, f)
            whole = {f"net.{k}": v for k, v in parameters.items()}
            J = jacrev(lambda q, k=f"net.{key}", c=call, w=whole: functional_call(c, w | {k: q}, (x,)))(parameters[key])
            basis = getattr(pathway, f"{leaf}_map", None)
            J = (J / unit_of(pathway, basis)).flatten(1, -1 - parameters[key].ndim).flatten(2)
            columns.append(torch.einsum("sno,nop->nsp", factors, J).flatten(0, 1))
        found[layer, name] = torch.cat(columns, 1)
    return found


def unit_of(pathway, basis):
    """The factor from stored parameters to coefficients."""
    unit = 1.0 if getattr(pathway, "unit", None) is None else pathway.unit
    return unit if basis is None else unit * basis.scale_exact


class _Call(nn.Module):
    def __init__(self, net, f):
        super().__init__()
        self.net, self.f = net, f

    def forward(self, x):
        return self.f(self.net, x)
