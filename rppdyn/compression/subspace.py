r"""Networks in a random subspace, :math:`\theta = \theta_0 + P w`, whose few coefficients are quantised and coded."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from rppdyn.compression.coding import decode, encode
from rppdyn.compression.projectors import make_projector

__all__ = ["Subspace", "compress"]

START = ("uniform", "kmeans")


class Subspace(nn.Module):
    r"""A network whose parameters are :math:`\theta_0 + P w`, of which w alone is trained.

    :meth:`quantise` begins quantisation-aware training: each coefficient is the nearest of L learned levels c, and gradients
    pass straight through,

    .. math:: \hat w_i = c_{q(i)},\quad q(i) = \arg\min_k |w_i - c_k|,\qquad
        \partial \hat w_i / \partial w_j = \delta_{ij},\quad \partial \hat w_i / \partial c_k = 1_{q(i) = k}.

    The initial parameters and P are part of the prior: they must not depend on the data of the bound.

    Args:
        net: any module; it is copied, and its parameters as they stand are :math:`\theta_0`.
        dimension: d; with 0 the network is :math:`\theta_0`.
        projector: kronecker, film, or film+kronecker.
        generator: of P.
    Attributes:
        weight: w, zero at first.
        levels: c, None until :meth:`quantise`.
    Raises:
        ValueError: a dimension above the number of parameters.
    Source: Finzi 2023, 5.4.

    >>> subspace = Subspace(nn.Linear(20, 3), 10, generator=torch.Generator().manual_seed(0))
    >>> subspace(torch.ones(5, 20)).shape, [name for name, p in subspace.named_parameters() if p.requires_grad]
    (torch.Size([5, 3]), ['weight'])
    """

    levels: nn.Parameter | None

    def __init__(
        self,
        net: nn.Module,
        dimension: int,
        *,
        projector: str = "kronecker",
        generator: torch.Generator | None = None,
    ):
        super().__init__()
        self.net = copy.deepcopy(net).requires_grad_(False)
        parameters = dict(self.net.named_parameters())
        self.project = make_projector(projector, dimension, parameters, generator)
        self.project.to(next(iter(parameters.values())))
        self.weight = nn.Parameter(next(iter(parameters.values())).new_zeros(dimension))
        self.register_parameter("levels", None)

    @property
    def dimension(self) -> int:
        return len(self.weight)

    def quantise(self, levels: int, start: str = "uniform") -> None:
        """Begin quantisation-aware training from the coefficients as they stand.

        Args:
            levels: their number L.
            start: evenly between the smallest and the largest coefficient, or kmeans.
        Raises:
            ValueError: fewer than two levels, or an unknown start.
        """
        if levels < 2:
            raise ValueError(f"levels={levels}: a quantiser has two levels or more")
        if start not in START:
            raise ValueError(f"start={start!r}: choose one of {', '.join(START)}")
        w = self.weight.detach()
        if self.dimension == 0:
            centres = w.new_zeros(levels)
        elif start == "uniform" or len(w.unique()) <= levels:
            centres = torch.lerp(w.min(), w.max(), torch.linspace(0, 1, levels).to(w))
        else:
            from sklearn.cluster import KMeans

            found = KMeans(levels, n_init=4, random_state=0).fit(w.cpu().double()[:, None].numpy())
            centres = torch.from_numpy(found.cluster_centers_[:, 0]).sort().values.to(w)
        self.levels = nn.Parameter(centres)

    def symbols(self) -> Tensor:
        """The index of each coefficient's nearest level, ``(d,)``."""
        assert self.levels is not None, "quantise() comes first"
        return (self.weight.detach()[:, None] - self.levels.detach()).abs().argmin(1)

    def coefficients(self) -> Float[Tensor, " d"]:
        """The coefficients as the network has them: w, or the nearest levels with gradients straight through."""
        if self.levels is None:
            return self.weight
        return self.levels[self.symbols()] + (self.weight - self.weight.detach())

    def parameters_by_name(self) -> dict[str, Tensor]:
        """The network's parameters, differentiable by w and c."""
        moved, parameters = self.project(self.coefficients()), dict(self.net.named_parameters())
        parts = moved.split([p.numel() for p in parameters.values()])
        return {name: p + part.view_as(p) for (name, p), part in zip(parameters.items(), parts, strict=True)}

    def forward(self, *inputs: Tensor) -> Tensor:
        return torch.func.functional_call(self.net, self.parameters_by_name(), inputs)

    def message(self) -> str:
        """The code of the quantised coefficients, as text of zeros and ones."""
        if self.dimension == 0:
            return ""
        assert self.levels is not None, "quantise() comes first"
        return encode(self.symbols().cpu().numpy(), self.levels.detach().cpu().double().numpy())

    @torch.no_grad()
    def load_message(self, bits: str, levels: int) -> None:
        """Take up coefficients from a message, as the decoder does; the network is then the coded one, to the last bit."""
        symbols, codebook = decode(bits, self.dimension, levels)
        self.levels = nn.Parameter(torch.from_numpy(codebook.astype("float64")).to(self.weight))
        self.weight.copy_(self.levels[torch.from_numpy(symbols).to(self.levels.device)])

    def network(self) -> nn.Module:
        """A copy of the network with the parameters as they stand."""
        net = copy.deepcopy(self.net)
        net.load_state_dict({name: p.detach() for name, p in self.parameters_by_name().items()}, strict=False)
        return net


def compress(
    subspace: Subspace,
    loss: Callable[[Subspace], Tensor],
    *,
    levels: int,
    steps: int,
    quantised_steps: int,
    learning_rate: int | float = 0.05,
    quantised_rate: int | float = 0.005,
    start: str = "uniform",
) -> str:
    """Train a subspace's coefficients by Adam, then with their levels, and leave it with what its message says.

    Args:
        loss: of the subspace, to be minimised; it may draw a batch.
        levels: number of levels.
        steps, quantised_steps: before and after quantisation begins.
    Returns:
        the message.
    """

    def train(count: int, rate: float) -> None:
        trained = [p for p in (subspace.weight, subspace.levels) if p is not None]
        optimiser = torch.optim.Adam(trained, lr=rate)
        for _ in range(count):
            optimiser.zero_grad()
            loss(subspace).backward()
            optimiser.step()

    if subspace.dimension:
        train(steps, learning_rate)
    subspace.quantise(levels, start)
    if subspace.dimension:
        train(quantised_steps, quantised_rate)
    message = subspace.message()
    subspace.load_message(message, levels)
    return message
