"""A network as a function of one flat parameter vector."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.func import functional_call

from rppdyn.priors import negative_log_prior


class _Assembly(nn.Module):
    """The two things that are computed from the parameters alone: dense weights, and the prior."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, prior: bool) -> Any:
        weights = self.net.assemble()
        return (weights, negative_log_prior(self.net)) if prior else weights


class NetworkFunction:
    """`net` as a pure function of a vector of its trainable parameters, in the order of `net.parameters()`.

    Buffers (bases, pairings) and frozen parameters stay with the network: they never change during training. The list
    `parameters` holds the trainable ones in the vector's order.

        weights = f.weights(vector)                     # assembled once ...
        y, z = f(x1, weights), f(x2, weights)           # ... used several times
    """

    def __init__(self, net: nn.Module) -> None:
        self.net = net
        self._assembly = _Assembly(net)
        trainable = {name: p for name, p in self._assembly.named_parameters() if p.requires_grad}
        self.parameters = list(trainable.values())
        self._names = list(trainable)
        self._shapes = [p.shape for p in self.parameters]
        self._sizes = [p.numel() for p in self.parameters]

    def _named(self, vector: Tensor) -> dict[str, Tensor]:
        parts = vector.split(self._sizes, dim=-1)
        return {name: part.view(shape) for name, part, shape in zip(self._names, parts, self._shapes, strict=True)}

    def weights(self, vector: Tensor) -> Any:
        """The network's assembled weights at these parameters."""
        return functional_call(self._assembly, self._named(vector), (False,), tie_weights=False)

    def weights_and_prior(self, vector: Tensor) -> tuple[Any, Tensor]:
        """The assembled weights and the negative log prior, a scalar, at these parameters."""
        return functional_call(self._assembly, self._named(vector), (True,), tie_weights=False)

    def __call__(self, x: Tensor, weights: Any) -> Tensor:
        return self.net.apply(x, weights)
