"""Matrix products that may be computed faster, where they are as accurate."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager

import torch

PRECISIONS = ("highest", "high", "medium")
TOLERATED = 4.0
"""How many times larger than at "highest" a product's error may be."""


FASTEST = "medium"
"""What torch computes fastest: by oneDNN in place of MKL on some processors, on others in bfloat16 or TensorFloat32. Where both
libraries are at the processor's peak, updates of one seed that are not compiled are up to a tenth slower by it."""


@contextmanager
def matmul_precision(name: str | None) -> Iterator[None]:
    """`torch.set_float32_matmul_precision` inside the block, put back afterwards; None leaves it as it is."""
    before = torch.get_float32_matmul_precision()
    if name in (None, before):
        yield
        return
    torch.set_float32_matmul_precision(name)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def update_precision(name: str | None, device: torch.device) -> str | None:
    """The precision that gradient updates have: the one given, or the fastest that costs no accuracy on this device.

    A process that has another precision than torch's "highest" was given it by its user, and keeps it: None. What is chosen
    depends on errors alone and never on times, so that a machine's numbers are the same however busy it is.
    """
    if name is None and torch.get_float32_matmul_precision() == "highest" and _is_accurate(FASTEST, device):
        return FASTEST
    return name


def check_matmul_precision(name: str | None, device: torch.device) -> None:
    """Refuse a precision whose products have larger errors on this device.

    Where they mean another library for the same arithmetic, "high" and "medium" are as accurate as "highest", and may be twice
    as fast; on other processors, and on GPUs, they mean bfloat16 or TensorFloat32.

    Raises:
        ValueError: no such precision; a product's error is more than `TOLERATED` times that at "highest".
    """
    if name is None:
        return
    if name not in PRECISIONS:
        raise ValueError(f"matmul_precision={name!r} is not one of {', '.join(PRECISIONS)}")
    if not _is_accurate(name, device):
        error, least = product_error(name, device), product_error("highest", device)
        raise ValueError(
            f"matmul_precision={name}: on this {device.type} products have a relative error of {error:.0e} then, and of "
            f"{least:.0e} at highest; leave it out"
        )


def _is_accurate(name: str, device: torch.device) -> bool:
    return product_error(name, device) <= TOLERATED * product_error("highest", device)


@functools.cache
def product_error(name: str, device: torch.device) -> float:
    """The relative error of a product of two (256, 256) matrices of normal numbers against the same in double precision."""
    generator = torch.Generator().manual_seed(0)
    a, b = torch.randn(2, 256, 256, generator=generator, dtype=torch.float64)
    with matmul_precision(name):
        found = (a.float().to(device) @ b.float().to(device)).cpu().double()
    truth = a.float().double() @ b.float().double()
    return float((found - truth).norm() / truth.norm())
