"""Images of observations and actions under all elements of a finite group, as trainers append them to a batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from scipy.linalg import block_diag
from torch import Tensor

from rppdyn.envs.spec import Space, SymmetrySpec
from rppdyn.groups import Group
from rppdyn.reps import Rep

__all__ = ["GroupImages", "as_spec", "data_augmentation", "group_elements", "representation", "space_of_groups"]

POLICY = ("policy", "actor")  # what a tensor's `obs_type` may call the same group


def as_spec(spec: Any) -> SymmetrySpec:
    """A spec as it is, or from what its `to_dict` returns.

    Raises:
        ValueError: it is neither.
    """
    if isinstance(spec, SymmetrySpec):
        return spec
    if not isinstance(spec, Mapping):
        raise ValueError(f"spec={spec!r}: give a SymmetrySpec, or what its to_dict returns")
    return SymmetrySpec.from_dict(dict(spec))


def group_elements(group: Group) -> Tensor:
    """The elements (order, d, d) of a finite group: the identity, the generators, then the others.

    Raises:
        ValueError: the group is infinite.
    """
    if group.order is None:
        raise ValueError(
            f"{group} is infinite, and a batch takes the images under every element; choose a finite group"
        )
    found = [torch.eye(group.d, dtype=group.dtype)]
    for element in [*group.discrete_generators, *group.elements()]:
        if not any(torch.allclose(element, one, atol=1e-9) for one in found):
            found.append(element)
    return torch.stack(found)


def representation(group: Group, space: Space, name: str = "observation") -> Rep:
    """How the group acts on a space's features."""
    matrices = torch.tensor(np.array(space.discrete_generators), dtype=torch.float64)
    return Rep.from_generators(group, discrete_generators=matrices, name=name)


def space_of_groups(spec: SymmetrySpec, names: list[str]) -> Space:
    """The space of observation groups one after the other.

    Raises:
        ValueError: the spec has no such group.
    """
    if not spec.observation_groups:
        if len(names) != 1:
            raise ValueError(
                f"the spec has one observation without groups, and {', '.join(names)} are asked for; name groups"
            )
        return spec.obs
    parts = [spec.observation_group(name).obs for name in names]
    firsts = np.cumsum([0, *(part.dim for part in parts)])
    return Space(
        [entry for part in parts for entry in part.entries],
        [block_diag(*m) for m in zip(*(part.discrete_generators for part in parts), strict=True)],
        origin=[c for part in parts for c in part.origin],
        angles=[int(first) + i for first, part in zip(firsts, parts, strict=False) for i in part.angles],
        quaternions=[int(first) + i for first, part in zip(firsts, parts, strict=False) for i in part.quaternions],
    )


class GroupImages:
    """Images of raw vectors under every element of a finite group.

    A signed permutation is an index and a sign; everything else goes through features.

    Args:
        space: how the group's generators act.
        group: the finite group.
    """

    def __init__(self, space: Space, group: Group):
        self.space = space
        elements = group_elements(group)
        rho = representation(group, space).rho(elements)
        self.order = len(rho)
        self._matrices = rho
        signed = bool(((rho != 0).sum(-1) == 1).all()) and bool((rho.abs().sum(-1) == 1).all())
        self._tables: dict[tuple[torch.device, torch.dtype], tuple[Tensor, Tensor, Tensor]] = {}
        self._signed = signed and space.encoding.is_identity

    def _table(self, like: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Index, sign and shift of every element: (order, n) each."""
        key = (like.device, like.dtype)
        if key not in self._tables:
            index = self._matrices.abs().argmax(-1)
            sign = self._matrices.sum(-1)
            origin = torch.tensor(self.space.origin, dtype=torch.float64)
            shift = origin - sign * origin[index]
            self._tables[key] = index.to(like.device), sign.to(like), shift.to(like)
        return self._tables[key]

    def image(self, x: Tensor, element: int) -> Tensor:
        """The image (..., n) under one element; 0 is the identity, and then come the generators."""
        if x.shape[-1] != self.space.dim:
            raise ValueError(
                f"{x.shape[-1]} numbers where the symmetry acts on {self.space.dim}; check the order of terms"
            )
        if not self._signed:
            return self.space.transform(self._matrices[element], x)
        index, sign, shift = self._table(x)
        image = x[..., index[element]] * sign[element]
        return image if self.space.is_centred else image + shift[element]

    def append(self, x: Tensor) -> Tensor:
        """The batch (n, ...) and its images one below the other, (order n, ...)."""
        return torch.cat([x, *(self.image(x, element) for element in range(1, self.order))])


def data_augmentation(
    spec: SymmetrySpec | Mapping[str, Any], *, groups: Mapping[str, str] | None = None
) -> Callable[..., tuple[Any, Any]]:
    """The function that trainers append mirrored samples with: `f(env=None, obs=None, actions=None, obs_type="policy")`.

    Observations are a TensorDict with an entry per observation group, or the tensor of one group, which `obs_type` names
    ("policy" stands for "actor", too). The originals come first, then the images under each generator, then those under the
    other elements of the group, as many times the batch as the group has elements.

    Args:
        spec: the symmetry, or what its `to_dict` returns; its group is finite.
        groups: the spec's observation group for groups that a trainer calls by another name, such as {"policy": "actor"}.
    Raises:
        ValueError: the group is infinite; later, an observation group or a size that the spec does not have.
    """
    spec = as_spec(spec)
    renamed = dict(groups or {})
    known = [name for name, _ in spec.observation_groups]
    of_group = {name: GroupImages(spec.observation_group(name).obs, spec.group) for name in known}
    whole = GroupImages(spec.obs, spec.group) if not known else None
    acting = GroupImages(spec.action, spec.group)

    def images_of(name: str) -> GroupImages:
        if whole is not None:
            return whole
        called = renamed.get(name, name)
        if called not in of_group and called in POLICY:
            called = next((other for other in POLICY if other in of_group), called)
        if called not in of_group:
            raise ValueError(
                f"the spec has no observation group {name!r}; it has {', '.join(of_group)}: describe its terms, or give groups="
            )
        return of_group[called]

    def augment(env: Any = None, obs: Any = None, actions: Tensor | None = None, obs_type: str = "policy", **_: Any):
        """The batch with its images: observations and actions, or None where none is given."""
        with torch.no_grad():
            if not (obs is None or isinstance(obs, Tensor) or hasattr(obs, "items")):
                raise ValueError(
                    f"obs is a {type(obs).__name__}; give a TensorDict by observation group, or a tensor of one"
                )
            if obs is not None and not isinstance(obs, Tensor):
                parts = {name: images_of(name).append(value) for name, value in obs.items()}
                size = next(iter(parts.values())).shape[:1]
                obs = type(obs)(parts, batch_size=size, device=obs.device) if hasattr(obs, "batch_size") else parts
            elif obs is not None:
                obs = images_of(obs_type).append(obs)
        # Mean actions carry gradients: a mirror loss compares them with their images.
        return obs, None if actions is None else acting.append(actions)

    return augment
