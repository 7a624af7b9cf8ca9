"""Buffers that keep float64 while the module around them is cast."""

from __future__ import annotations

import torch
from torch import Tensor, nn

__all__ = ["ExactBuffers"]


class ExactBuffers(nn.Module):
    """A module whose structural constants survive ``float()``, ``half()`` and ``double()`` without rounding.

    ``register_exact("values", t)`` keeps ``values_exact`` in float64, saved in the state dict, and derives ``values`` in
    the module's dtype, which is what forward passes read. Casting to float32 and back, or building in float32 and
    calling ``double()``, therefore loses nothing: ``net.double()`` is equivariant to 1e-12.
    """

    def __init__(self) -> None:
        super().__init__()
        self._exact: dict[str, str | None] = {}

    def register_exact(self, name: str, value: Tensor, *, working_copy: bool = True) -> None:
        """Keep ``value`` in float64; with ``working_copy``, under ``<name>_exact`` beside a cast one under ``name``."""
        exact = value.detach().to(torch.float64)
        if working_copy:
            self.register_buffer(f"{name}_exact", exact)
            self.register_buffer(name, exact.to(torch.get_default_dtype()), persistent=False)
            self._exact[f"{name}_exact"] = name
        else:
            self.register_buffer(name, exact)
            self._exact[name] = None

    def drop_exact(self, name: str) -> Tensor:
        """Keep ``name`` no longer, neither in float64 nor cast; returns what it was in float64."""
        kept = f"{name}_exact" if f"{name}_exact" in self._exact else name
        working, value = self._exact.pop(kept), self.get_buffer(kept)
        del self._buffers[kept]
        if working is not None:
            del self._buffers[working]
        return value

    def _apply(self, fn, recurse=True):
        exact = {name: self.get_buffer(name) for name in self._exact if name in self._buffers}
        super()._apply(fn, recurse)
        for name, value in exact.items():
            self._buffers[name] = value.to(self.get_buffer(name).device)  # moved like the others, but not cast
        self._derive()
        return self

    def _load_from_state_dict(self, *args, **kwargs):
        super()._load_from_state_dict(*args, **kwargs)
        self._derive()

    def _derive(self) -> None:
        for name, working in self._exact.items():
            if working is not None:
                exact, old = self.get_buffer(name), self.get_buffer(working)
                self._buffers[working] = exact.to(device=old.device, dtype=old.dtype)
