"""Families of `rppdyn discover`: which entries are vectors, and what is refused."""

from __future__ import annotations

import pytest
import torch

from rppdyn.jobs.config.base import ConfigError
from rppdyn.jobs.discover import family_of

NAMES = ["z", "root x", "root y", "root z", *(f"root R[{i},{j}]" for i in range(3) for j in range(3))]
NAMES += ["root angular velocity x", "root angular velocity y", "root angular velocity z", "a cos", "b", "a sin"]


def test_vectors_and_columns_turn_alike():
    family = family_of(NAMES, NAMES[:4])
    assert family.words == "root"  # whose columns are what the name stands for, beside the angular velocity of the body
    A = torch.arange(9.0).view(3, 3).double()
    B = torch.einsum(
        "i,iab->ab", A.flatten(), torch.stack([family.rep_in.drho(E) for E in family.rep_in.G.lie_algebra])
    )
    R = torch.randn(3, 3, generator=torch.Generator().manual_seed(0)).double()
    x = torch.zeros(len(NAMES)).double()
    x[4:13] = R.flatten()
    assert torch.allclose((B @ x)[4:13], (A @ R).flatten()) and not (B @ x)[:4].any() and not (B @ x)[13:].any()


def test_blocks_by_names():
    family = family_of(NAMES, ["u x", "u y", "v"], "a cos + a sin; root angular velocity")
    assert (family.rep_in.dim, family.rep_out.dim, len(family.rep_in.G.lie_algebra)) == (len(NAMES), 3, 4 + 9)
    for blocks, words in [
        ("a", "there is no 'a' among the entries"),
        ("root, root", "name each block once"),
        ("root;", "at least one between semicolons"),
        ("root, a cos + a sin", "blocks of 2 and 3 entries can't be moved by one matrix"),
    ]:
        with pytest.raises(ConfigError, match=words):
            family_of(NAMES, ["u"], blocks)
