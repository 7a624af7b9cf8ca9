"""Random images of features and actions under the group: mirrored transitions, and the mirror loss."""

from __future__ import annotations

from functools import reduce

import torch
from torch import Tensor

from rppdyn.envs import SymmetrySpec

POOL = 64
"""Elements that stand for a continuous group."""

WORD = 8
"""Samples whose product is one of them: `Group.samples` favours small angles, a product of eight hardly does."""


class GroupImages:
    """Elements of a spec's group, the identity first, as matrices on features and on actions.

    All elements of a finite group; of an infinite one `POOL`, always the same.

    Args:
        spec: the symmetry.
        like: has the device and dtype of the features.
    """

    def __init__(self, spec: SymmetrySpec, like: Tensor) -> None:
        group = spec.group
        if group.order is not None:
            elements = group.elements()
        else:
            drawn = group.samples(WORD * (POOL - 1), torch.Generator().manual_seed(0))
            factors = drawn.view(WORD, POOL - 1, group.d, group.d).unbind()
            elements = torch.cat([torch.eye(group.d, dtype=group.dtype)[None], reduce(torch.matmul, factors)])
        self.elements = elements
        self.obs_maps = spec.obs_rep.rho(elements).to(like)
        self.action_maps = spec.action_rep.rho(elements).to(like)

    def __len__(self) -> int:
        return len(self.obs_maps)

    def draw(self, count: int, generator: torch.Generator, *, identity: bool) -> Tensor:
        """Indices of `count` elements, uniform, with or without the identity among them; on the CPU."""
        return torch.randint(0 if identity or len(self) == 1 else 1, len(self), (count,), generator=generator)

    def of_features(self, index: Tensor, features: Tensor) -> Tensor:
        """rho(g_i) x_i for rows x_i of the features (B, n) and elements `index` (B,)."""
        return _apply(self.obs_maps, index, features)

    def of_actions(self, index: Tensor, actions: Tensor) -> Tensor:
        """rho(g_i) a_i for rows a_i of the actions (B, m), in [-1, 1] or not, and elements `index` (B,)."""
        return _apply(self.action_maps, index, actions)


def _apply(maps: Tensor, index: Tensor, rows: Tensor) -> Tensor:
    """Rows times the matrices of their elements, one product per element: a gathered (B, n, n) would be the size of
    the replay buffer where observations have hundreds of entries."""
    order = index.argsort()
    counts = index.bincount(minlength=len(maps)).tolist()  # both on the CPU, so nothing waits for the device
    order = order.to(rows.device)
    parts = rows[order].split(counts)
    moved = torch.cat([part @ m.mT for part, m in zip(parts, maps, strict=True)])
    return torch.empty_like(moved).index_copy_(0, order, moved)


def refuse_changed_rewards(spec: SymmetrySpec, what: str = "augment=True") -> None:
    """Refuse to mirror transitions under a symmetry that is not known to keep the reward: images would carry false ones.

    Args:
        what: what would do so, for the message.
    Raises:
        ValueError: it names the symmetry.
    """
    if not spec.symmetries:
        raise ValueError(f"{spec.env_id}: {what} needs a spec that says of its symmetries that they keep the reward")
    for symmetry in spec.symmetries:
        if symmetry.reward_symmetric is None:
            raise ValueError(
                f"{spec.env_id}: {what} needs to know that {symmetry.name!r} keeps the reward; find out with "
                f"`rppdyn certify {spec.env_id}`, or state reward_symmetric=True in a spec of your own"
            )
        if not symmetry.reward_symmetric:
            raise ValueError(
                f"{spec.env_id}: {what} with {symmetry.name!r}, which changes the reward, would store rewards that "
                "are false; choose symmetries that keep it, or state reward_symmetric=True in the spec if this one does"
            )
