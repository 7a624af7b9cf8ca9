r"""Networks in a random subspace, :math:`\theta = \theta_0 + P w`, with a few coefficients that are quantised and coded.

Projectors P from d coefficients to the D parameters of a network are random and approximately orthonormal.
"""

from __future__ import annotations

import copy
import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from rppdyn.compression._coding import decode, encode

PROJECTORS = ("kronecker", "film", "film+kronecker")
MODULATING_PARAMETERS = ("bias", "gate", "norm")
"""Parts of the names of parameters that scale and shift features."""


class Projector(nn.Module):
    r"""A fixed linear map ``(d,) -> (D,)`` with :math:`P^T P \approx I`; its random numbers are buffers."""

    def __init__(self, d: int, D: int):
        super().__init__()
        if not 0 <= d <= D:
            raise ValueError(f"dimension={d} of a subspace of {D} parameters: give a number from 0 to {D}")
        self.d, self.D = d, D

    @abstractmethod
    def forward(self, w: Float[Tensor, " d"]) -> Float[Tensor, " D"]:
        """``P w``."""

    def dense(self) -> Float[Tensor, "D d"]:
        """The matrix P."""
        eye = torch.eye(self.d).to(next(b for b in self.buffers() if b.is_floating_point()))
        return torch.stack([self(w) for w in eye], 1) if self.d else eye.new_zeros(self.D, 0)

    def extra_repr(self) -> str:
        return f"{self.d} -> {self.D}"


class KroneckerProjector(Projector):
    r"""The product :math:`P = Q_1 \otimes Q_2 / \sqrt D` of normal matrices, :math:`\sqrt D \times \sqrt d` each.

    If D or d is no square, the factors are those of the next larger square, and P is the product's first D rows and d columns.
    (The source pads by a dense matrix.) ``P w`` takes :math:`O(D \sqrt d)` operations. Source: Finzi 2023, 5.4.1.
    """

    first: Tensor
    second: Tensor

    def __init__(self, d: int, D: int, generator: torch.Generator | None = None):
        super().__init__(d, D)
        shape = math.isqrt(max(D - 1, 0)) + 1, math.isqrt(max(d - 1, 0)) + 1
        for name in ("first", "second"):
            self.register_buffer(name, torch.randn(shape, generator=generator))

    def forward(self, w):
        side = self.first.shape[1]
        square = nn.functional.pad(w, (0, side**2 - self.d)).view(side, side)
        return (self.first @ square @ self.second.mT).flatten()[: self.D] / self.D**0.5


class FiLMProjector(Projector):
    r"""A dense normal matrix :math:`/ \sqrt S` in the rows of S chosen parameters, zero elsewhere.

    The source divides by :math:`\sqrt D`, which makes columns shorter than one. Source: Finzi 2023, 5.4.1 (after Perez et al.
    2018).

    Args:
        chosen: mask of the chosen parameters, see :func:`modulating`.
    Raises:
        ValueError: the dimension is above the number of chosen parameters.
    """

    rows: Tensor
    matrix: Tensor

    def __init__(self, d: int, chosen: Bool[Tensor, " D"], generator: torch.Generator | None = None):
        super().__init__(d, len(chosen))
        count = int(chosen.sum())
        if d > count:
            raise ValueError(
                f"dimension={d} with projector=film: {count} parameters scale and shift features; give at most {count}, or "
                "projector=film+kronecker"
            )
        self.register_buffer("rows", chosen.nonzero()[:, 0])
        self.register_buffer("matrix", torch.randn(count, d, generator=generator) / max(count, 1) ** 0.5)

    def forward(self, w):
        return w.new_zeros(self.D).index_put((self.rows,), self.matrix @ w)


class SumProjector(Projector):
    r"""The sum of n projectors, divided by :math:`\sqrt n`. Source: Finzi 2023, 5.4.1, for n = 2."""

    def __init__(self, parts: Sequence[Projector]):
        super().__init__(parts[0].d, parts[0].D)
        self.parts = nn.ModuleList(parts)

    def forward(self, w):
        return torch.stack([part(w) for part in self.parts]).sum(0) / len(self.parts) ** 0.5


def modulating(parameters: Mapping[str, Tensor]) -> Bool[Tensor, " D"]:
    """Mask of the parameters that scale and shift features: biases, gates, normalisations, and all of the last layer.

    Args:
        parameters: a network's, by name, in order. The last layer is the child of the network that has the last one.
    """
    last = list(parameters)[-1].split(".")[0]
    masks = []
    for name, p in parameters.items():
        is_modulating = name.split(".")[0] == last or any(part in name.lower() for part in MODULATING_PARAMETERS)
        masks.append(torch.full((p.numel(),), is_modulating))
    return torch.cat(masks)


def make_projector(
    kind: str, d: int, parameters: Mapping[str, Tensor], generator: torch.Generator | None = None
) -> Projector:
    """Draw a projector to a network's parameters.

    Args:
        kind: kronecker, film, or film+kronecker.
        d: dimension of the subspace.
        parameters: parameters of the network, by name.
    Raises:
        ValueError: an unknown kind, no parameters, or a dimension above their number.
    """
    D = sum(p.numel() for p in parameters.values())
    if kind not in PROJECTORS:
        raise ValueError(f"projector={kind!r}: choose one of {', '.join(PROJECTORS)}")
    if not D:
        raise ValueError("a subspace of no parameters: give a network that has some")
    if kind == "kronecker":
        return KroneckerProjector(d, D, generator)
    film = FiLMProjector(d, modulating(parameters), generator)
    return film if kind == "film" else SumProjector([film, KroneckerProjector(d, D, generator)])


STARTS = ("uniform", "kmeans")


class Subspace(nn.Module):
    r"""A network with parameters :math:`\theta_0 + P w`, where only w is trained.

    :meth:`quantise` begins quantisation-aware training: each coefficient is the nearest of L learned levels c, and gradients
    pass straight through,

    .. math:: \hat w_i = c_{q(i)},\quad q(i) = \arg\min_k |w_i - c_k|,\qquad
        \partial \hat w_i / \partial w_j = \delta_{ij},\quad \partial \hat w_i / \partial c_k = 1_{q(i) = k}.

    The initial parameters and P are part of the prior: they must not depend on the data of the bound.

    Args:
        net: any module; it is copied, and its present parameters are :math:`\theta_0`.
        dimension: d; with 0 the network is :math:`\theta_0`.
        projector: kronecker, film, or film+kronecker.
        generator: draws P.
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
        self, net: nn.Module, dimension: int, *, projector: str = "kronecker", generator: torch.Generator | None = None
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
        """Begin quantisation-aware training from the present coefficients.

        Args:
            levels: number of levels L.
            start: "uniform" between the smallest and the largest coefficient, or "kmeans".
        Raises:
            ValueError: fewer than two levels, or an unknown start.
        """
        if levels < 2:
            raise ValueError(f"levels={levels}: a quantiser has two levels or more")
        if start not in STARTS:
            raise ValueError(f"start={start!r}: choose one of {', '.join(STARTS)}")
        w = self.weight.detach()
        if self.dimension == 0:
            centres = w.new_zeros(levels)
        elif start == "uniform" or len(w.unique()) <= levels:
            centres = torch.lerp(w.min(), w.max(), torch.linspace(0, 1, levels).to(w))
        else:
            from sklearn.cluster import KMeans

            clusters = KMeans(levels, n_init=4, random_state=0).fit(w.cpu().double()[:, None].numpy())
            centres = torch.from_numpy(clusters.cluster_centers_[:, 0]).sort().values.to(w)
        self.levels = nn.Parameter(centres)

    def symbols(self) -> Tensor:
        """The index of each coefficient's nearest level, ``(d,)``."""
        assert self.levels is not None, "quantise() comes first"
        return (self.weight.detach()[:, None] - self.levels.detach()).abs().argmin(1)

    def coefficients(self) -> Float[Tensor, " d"]:
        """The coefficients of the network: w, or after quantisation the nearest levels, with straight-through gradients."""
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
        """Decode coefficients from a message; the network then equals the coded one to the last bit."""
        symbols, codebook = decode(bits, self.dimension, levels)
        self.levels = nn.Parameter(torch.from_numpy(codebook.astype("float64")).to(self.weight))
        self.weight.copy_(self.levels[torch.from_numpy(symbols).to(self.levels.device)])

    def network(self) -> nn.Module:
        """A copy of the network with the present parameters."""
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
    """Train a subspace's coefficients by Adam, then with quantised levels, and decode its own message.

    Args:
        loss: function of the subspace to be minimised; it may draw a batch.
        levels: number of levels.
        steps, quantised_steps: numbers of steps before and after quantisation begins.
    Returns:
        the message.
    """

    def train(count: int, rate: float) -> None:
        parameters = [p for p in (subspace.weight, subspace.levels) if p is not None]
        optimiser = torch.optim.Adam(parameters, lr=rate)
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
