"""The base class of networks that are assembled once and applied several times, and a typed list of modules."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from torch import Tensor, nn

N = TypeVar("N", bound="Network")


class Network(nn.Module, ABC):
    """A network that runs with weights assembled before: ``weights = net.assemble(); net.apply(x, weights)``."""

    @abstractmethod
    def assemble(self) -> Any:
        """The weights, for :meth:`apply`; what they consist of is the network's own affair."""

    @overload
    def apply(self: N, fn: Callable[[nn.Module], None], /) -> N: ...

    @overload
    def apply(self, x: Tensor, weights: Any = None) -> Tensor: ...

    def apply(self, x, weights=None):
        """The output, with weights from :meth:`assemble`. (A function in place of ``x`` is ``nn.Module.apply``.)

        Raises:
            ValueError: inputs of another size.
        """
        if weights is None and not isinstance(x, Tensor):
            return super().apply(x)
        return self._run(x, self.assemble() if weights is None else weights)

    @abstractmethod
    def _run(self, x: Tensor, weights: Any) -> Tensor:
        """The output for these weights."""


if TYPE_CHECKING:
    M = TypeVar("M", bound=nn.Module)

    class ModuleList(nn.ModuleList, Generic[M]):
        """``nn.ModuleList``, whose stubs forget what modules it holds."""

        def __iter__(self) -> Iterator[M]: ...

        @overload
        def __getitem__(self, idx: slice) -> ModuleList[M]: ...

        @overload
        def __getitem__(self, idx: int) -> M: ...

        def __getitem__(self, idx): ...

else:
    ModuleList = nn.ModuleList
