"""A network in a frame that is learned: the symmetry's axis need not be known."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from rppdyn.nn.coefficients import ExactBuffers
from rppdyn.reps import Rep


class LearnedFrame(ExactBuffers):
    r"""A network whose symmetry is turned by a learned element of a larger group.

    .. math:: f(x) = \rho_{out}(R)\, f_0(\rho_{in}(R)^{-1} x), \qquad R = \exp\Big(\sum_i \theta_i A_i\Big)

    If :math:`f_0` is equivariant under G, f is under :math:`R G R^{-1}`: turns about the vertical become turns about
    :math:`R \hat z`. The equivariant basis is that of :math:`f_0`, whatever R is. Directions of the larger group's algebra
    that lie in that of G change nothing, and have no gradient.

    Args:
        net: :math:`f_0`, ``(..., dim_in)`` to ``(..., dim_out)``, equivariant under a subgroup of the representations' group.
        rep_in, rep_out: representations of the larger group, SO(3) for the axis of a pendulum, on the spaces that the network
            maps.
    Raises:
        ValueError: the representations belong to different groups, or to one without continuous generators.

    >>> from rppdyn.groups import SO, SO2eR3
    >>> from rppdyn.nn import EMLP
    >>> from rppdyn.reps import V
    >>> net = EMLP(2 * V, V, SO2eR3(), hidden=16)
    >>> turned = LearnedFrame(net, 2 * V(SO(3)), V(SO(3)))
    >>> turned(torch.zeros(5, 6)).shape
    torch.Size([5, 3])
    """

    def __init__(self, net: nn.Module, rep_in: Rep, rep_out: Rep):
        super().__init__()
        if rep_in.G != rep_out.G:
            raise ValueError(
                f"rep_in belongs to {rep_in.G} and rep_out to {rep_out.G}: give representations of one group"
            )
        count = len(rep_in.G.lie_algebra)
        if not count:
            raise ValueError(
                f"{rep_in.G} has no continuous generators, so no frame can be learned: give SO(3), for example"
            )
        self.net, self.group = net, rep_in.G
        like = next(iter(net.parameters()), torch.zeros(()))
        self.coefficients = nn.Parameter(like.new_zeros(count))
        self.register_constant("generators_in", rep_in.lie_generators)
        self.register_constant("generators_out", rep_out.lie_generators)
        self.to(like)

    def element(self) -> Float[Tensor, "d d"]:
        """R, as it acts on the group's own space."""
        algebra = self.group.lie_algebra.to(self.coefficients)
        return torch.linalg.matrix_exp(torch.einsum("i,iab->ab", self.coefficients, algebra))

    def forward(self, x: Float[Tensor, "*batch dim_in"]) -> Float[Tensor, "*batch dim_out"]:
        back = torch.linalg.matrix_exp(-torch.einsum("i,iab->ab", self.coefficients, self.generators_in))
        out = torch.linalg.matrix_exp(torch.einsum("i,iab->ab", self.coefficients, self.generators_out))
        return self.net(x @ back.mT) @ out.mT
