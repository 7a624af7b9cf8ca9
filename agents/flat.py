"""A list of tensors kept as views of one vector, so that an optimiser step is a handful of operations."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def flat_view(tensors: Sequence[Tensor]) -> Tensor | None:
    """The vector that the tensors already lie on, in order and without gaps, or None."""
    first = tensors[0]
    address = first.data_ptr()
    for tensor in tensors:
        if tensor.data_ptr() != address or tensor.dtype != first.dtype or not tensor.is_contiguous():
            return None
        address += tensor.nbytes
    size, start = (address - first.data_ptr()) // first.element_size(), first.storage_offset()
    if first.untyped_storage().nbytes() < (start + size) * first.element_size():
        return None  # neighbours by chance
    return first.detach().as_strided((size,), (1,), start)


def flatten_(tensors: Sequence[Tensor]) -> Tensor:
    """Make the tensors views of one vector, without changing their values, and return that vector.

    Nothing is copied where they already are, so calling this before every step costs a few microseconds. Loading a
    state dict, moving to another device or casting may take tensors apart again; the next call puts them together.
    """
    flat = flat_view(tensors)
    if flat is None:
        flat = torch.cat([tensor.detach().reshape(-1) for tensor in tensors])
        start = 0
        for tensor in tensors:
            tensor.data = flat[start : start + tensor.numel()].view(tensor.shape)
            start += tensor.numel()
    return flat
