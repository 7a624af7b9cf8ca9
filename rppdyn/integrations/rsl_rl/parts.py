"""Parts of relaxed models: statistics, standard deviations and recurrent cells that a symmetry carries to themselves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from scipy.sparse.csgraph import connected_components
from torch import Tensor, nn

from rppdyn.nn import RelaxedLinear
from rppdyn.priors import negative_log_prior
from rppdyn.reps import Rep

__all__ = ["Assembled", "PooledNormalization", "RelaxedGRU", "Tied", "add_prior", "orbits"]


def orbits(matrices: Tensor) -> Tensor:
    """The number of the set that each entry belongs to, (n,): entries that the matrices (k, n, n) mix are in one set."""
    _, found = connected_components((matrices.abs().sum(0) > 1e-9).numpy(), directed=False)
    return torch.as_tensor(found, dtype=torch.long)


def _mean_over(sets: Tensor, x: Tensor) -> Tensor:
    """Each entry's mean over its set."""
    count = torch.zeros(int(sets.max()) + 1, dtype=x.dtype, device=x.device)
    total = count.clone().index_add_(0, sets, x)
    return (total / count.index_add_(0, sets, torch.ones_like(x)))[sets]


class Tied(nn.Module):
    """Parametrisation of a vector (n,) in which entries of one set are equal.

    Args:
        sets: see `orbits`.
    """

    sets: Tensor

    def __init__(self, sets: Tensor):
        super().__init__()
        self.register_buffer("sets", sets)

    def forward(self, x: Tensor) -> Tensor:
        return _mean_over(self.sets, x)


class PooledNormalization(nn.Module):
    r"""Running mean and standard deviation of features that a symmetry leaves alone.

    The mean is projected on the invariants of the group, and variances are pooled over the entries that it mixes:
    :math:`\rho(g)(x - \mu)/\sigma = (\rho(g) x - \mu)/\sigma`.

    Args:
        rep: of the features.
        elements: all elements of the group.
        eps: added to the standard deviation.
    """

    mean: Tensor
    var: Tensor
    count: Tensor
    sets: Tensor
    projector: Tensor

    def __init__(self, rep: Rep, elements: Tensor, eps: float = 1e-2):
        super().__init__()
        rho = rep.rho(elements)
        self.eps = eps
        self.register_buffer("mean", torch.zeros(rep.dim))
        self.register_buffer("var", torch.ones(rep.dim))
        self.register_buffer("count", torch.tensor(0, dtype=torch.long))
        self.register_buffer("sets", orbits(rho))
        self.register_buffer("projector", rho.mean(0))

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.mean) / (self.var.sqrt() + self.eps)

    @torch.no_grad()
    def update(self, x: Tensor) -> None:
        """Take a batch (n, dim) into the statistics."""
        if not self.training:
            return
        self.count += len(x)
        rate = len(x) / self.count
        mean = (self.projector @ x.mean(0).double()).to(x)
        mean = torch.where(mean.abs() < 1e-12, 0.0, mean)  # of an entry whose sign flips
        var = _mean_over(self.sets, x.var(0, unbiased=False) + (x.mean(0) - mean) ** 2)
        delta = mean - self.mean
        self.mean += rate * delta
        self.var += rate * (var - self.var + _mean_over(self.sets, delta * (mean - self.mean)))


class Assembled:
    """Dense weights of a module: assembled anew where gradients are wanted, and once between two changes where not.

    A rollout runs the network at every step with the same parameters.
    """

    def __init__(self) -> None:
        self._key: tuple | None = None
        self._weights: Any = None

    def __call__(self, module: nn.Module, assemble: Callable[[], Any]) -> Any:
        """The weights.

        Args:
            module: whose parameters they follow from.
            assemble: gives them.
        """
        if torch.is_grad_enabled() or torch.compiler.is_compiling():  # exporting, too: there are no addresses then
            return assemble()
        key = tuple((p.data_ptr(), p._version, p.dtype) for p in module.parameters())
        if key != self._key:
            self._key, self._weights = key, assemble()
        return self._weights

    def __deepcopy__(self, memo: dict) -> Assembled:
        return Assembled()


class RelaxedGRU(nn.Module):
    r"""A gated recurrent unit of relaxed linear layers, whose hidden state transforms by a permutation representation.

    .. math:: r = \sigma(W_r x + U_r h),\quad z = \sigma(W_z x + U_z h),\quad
              n = \tanh(W_n x + r \odot U_n h),\quad h' = (1 - z) \odot n + z \odot h

    Gates act entry by entry, so permutations of the hidden state commute with them. The layers' dense sums are what
    PyTorch's own kernel runs on.

    Args:
        rep_in: of the input.
        rep_hidden: of the hidden state; permutes its entries.
        num_layers: how many are stacked.
        variances: of the equivariant and the free pathway.
        generator: of the initial weights.
    Raises:
        ValueError: the hidden representation is no permutation.
    """

    def __init__(
        self,
        rep_in: Rep,
        rep_hidden: Rep,
        num_layers: int = 1,
        variances: Sequence[float] = (1e5, 1.0),
        generator: torch.Generator | None = None,
    ):
        super().__init__()
        if not rep_hidden.is_permutation:
            raise ValueError(
                f"the hidden state's {rep_hidden} is no permutation, which gates need; use the regular one"
            )
        self.rep_hidden, self.num_layers, self.hidden_size = rep_hidden, num_layers, rep_hidden.dim
        own: dict[str, Any] = dict(equivariant_variance=variances[0], free_variance=variances[1], generator=generator)
        reps = [rep_in, *[rep_hidden] * (num_layers - 1)]
        # Each gate has a layer of its own: three representations in one would be the same maps, solved as one problem.
        self.inputs = nn.ModuleList(RelaxedLinear(rep, rep_hidden, **own) for rep in reps for _ in range(3))
        self.recurrent = nn.ModuleList(RelaxedLinear(rep_hidden, rep_hidden, **own) for _ in reps for _ in range(3))
        self._assembled = Assembled()

    def _layers(self, side: str) -> list[RelaxedLinear]:
        return list(getattr(self, side))

    def flat_weights(self) -> list[Tensor]:
        """Dense weights and biases in the order of PyTorch's kernel: input, hidden, and their biases, for each layer."""
        found: list[Tensor] = []
        for layer in range(self.num_layers):
            three = slice(3 * layer, 3 * layer + 3)
            sides = [
                [part.assemble() for part in side[three]]
                for side in (self._layers("inputs"), self._layers("recurrent"))
            ]
            found += [torch.cat([weight for weight, _ in side]) for side in sides]
            found += [torch.cat([bias for _, bias in side if bias is not None]) for side in sides]
        return found

    def forward(self, x: Tensor, h: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Outputs (time, batch, hidden) of inputs (time, batch, n), and the hidden state (layers, batch, hidden) after them."""
        if h is None:
            h = x.new_zeros(self.num_layers, x.shape[1], self.hidden_size)
        weights = self._assembled(self, self.flat_weights)
        return torch._VF.gru(x, h, weights, True, self.num_layers, 0.0, self.training, False, False)

    def merged(self) -> nn.GRU:
        """The same function as PyTorch's own module, for deployment."""
        found = nn.GRU(self.inputs[0].rep_in.dim, self.hidden_size, self.num_layers)
        with torch.no_grad():
            for parameter, value in zip(found.parameters(), self.flat_weights(), strict=True):
                parameter.copy_(value)
        return found


def add_prior(modules: Sequence[nn.Module], transitions: int) -> None:
    """Have each backward pass add the gradient of the negative log prior, divided by the number of transitions.

    The prior is quadratic in every parameter, so its gradient is a constant times the parameter.
    """
    for module in modules:
        parameters = [p for p in module.parameters() if p.requires_grad]
        before = [p.detach().clone() for p in parameters]
        with torch.no_grad():
            for p in parameters:
                p.fill_(1.0)
        slopes = torch.autograd.grad(negative_log_prior(module), parameters, allow_unused=True)
        with torch.no_grad():
            for p, value in zip(parameters, before, strict=True):
                p.copy_(value)
        for p, slope in zip(parameters, slopes, strict=True):
            if slope is not None:
                p.register_hook(_Pull(p, slope / transitions))


class _Pull:
    """Adds slope * parameter to a gradient."""

    def __init__(self, parameter: nn.Parameter, slope: Tensor):
        self.parameter, self.slope = parameter, slope

    def __call__(self, gradient: Tensor) -> Tensor:
        return gradient + self.slope.to(gradient) * self.parameter.detach()
