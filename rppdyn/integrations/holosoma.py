"""holosoma: an object with the methods that its trainers call for augmentation and the mirror loss.

Its observation manager sorts a group's terms by name and stacks histories by time: list the terms in that order, with
`stack: time`. Several groups are concatenated in the trainer's order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from rppdyn.envs._spec import SymmetrySpec
from rppdyn.integrations.augmentation import SpaceImages

__all__ = ["SymmetryUtils"]


class SymmetryUtils:
    """Mirrored observations and actions under the signatures of holosoma's own class of this name.

    Args:
        spec: a mirror, with one observation group for each of the trainer's.
    Raises:
        ValueError: the group has more than two elements, for which the trainer's doubled batch has no room.
    """

    def __init__(self, spec: SymmetrySpec | Mapping[str, Any]):
        spec = SymmetrySpec.from_dict(spec)
        if spec.group.order != 2:
            raise ValueError(
                f"holosoma appends one mirror image, and {spec.group} has order {spec.group.order}; choose a mirror"
            )
        self._observations = {
            name: SpaceImages(spec.observation_group(name).obs, spec.group) for name, _ in spec.observation_groups
        }
        self._actions = SpaceImages(spec.action, spec.group)

    def mirror_xz_plane(self, observation: Tensor, env: Any, obs_list: Sequence[str]) -> Tensor:
        """The mirror images (batch, dim) of the named groups' concatenation."""
        if unknown := [name for name in obs_list if name not in self._observations]:
            raise ValueError(
                f"the spec has no observation group {unknown[0]!r}; it has {', '.join(self._observations)}"
            )
        parts = observation.split([self._observations[name].space.dim for name in obs_list], -1)
        return torch.cat([self._observations[n].image(part, 1) for n, part in zip(obs_list, parts, strict=True)], -1)

    def mirror_action_xz_plane(self, action: Tensor) -> Tensor:
        """The mirror images (batch, dim) of actions."""
        return self._actions.image(action, 1)

    def augment_observations(self, obs: Tensor, env: Any, obs_list: Sequence[str]) -> Tensor:
        """Observations and their mirror images, (2 batch, dim)."""
        return torch.cat([obs, self.mirror_xz_plane(obs, env, obs_list)])

    def augment_actions(self, actions: Tensor) -> Tensor:
        """Actions and their mirror images, (2 batch, dim)."""
        return self._actions.append(actions)
