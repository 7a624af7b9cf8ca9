"""Images of observations and actions under all elements of a finite group, as trainers append them to a batch."""

from __future__ import annotations

import base64
import json
import re
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from scipy.linalg import block_diag
from torch import Tensor

from rppdyn.envs.spec import Space, SymmetrySpec
from rppdyn.groups import Group
from rppdyn.reps import Rep

__all__ = ["SpaceImages", "as_spec", "data_augmentation", "group_elements", "representation", "space_of_groups"]

POLICY = ("policy", "actor")  # what a tensor's `obs_type` may call the same group
NAME = "augmentation_"  # begins the names of augmentations


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
            f"{group} is infinite, and a batch takes the images under every element; choose symmetries that are finite, such "
            "as symmetry='left-right', or a relaxed network for all of them"
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


class SpaceImages:
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
        """The batch (n, ...) and its images one below the other, (order n, ...).

        A history of whole steps, (n, steps, entries) with the newest last, is mirrored step by step.
        """
        if x.ndim < 3 or x.shape[-1] == self.space.dim:
            return torch.cat([x, *(self.image(x, element) for element in range(1, self.order))])
        where = torch.tensor(self._places_by_step(*x.shape[-2:]), device=x.device)
        images = self.append(x.flatten(-2)[..., where])
        return images[..., where.argsort()].unflatten(-1, x.shape[-2:])

    def _places_by_step(self, steps: int, size: int) -> list[int]:
        """Where each entry, "name" or "name 2 ago", stands in a history of whole steps."""
        parts = [re.fullmatch(r"(.*?)(?: (\d+) ago)?", entry.name) for entry in self.space.entries]
        keys = [(part[1], int(part[2] or 0)) for part in parts if part]
        names = list(dict.fromkeys(name for name, _ in keys))
        if len(names) != size or set(keys) != {(name, ago) for name in names for ago in range(steps)}:
            raise ValueError(
                f"a history of {steps} steps of {size} entries, where the symmetry acts on {self.space.dim} entries; give the "
                f"terms of one step, or history: {steps} for all of them"
            )
        return [(steps - 1 - ago) * size + names.index(name) for name, ago in keys]

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_tables": {}}  # of the devices of this process


class DataAugmentation:
    """The function that trainers append mirrored samples with: `f(env=None, obs=None, actions=None, obs_type="policy")`.

    Observations are a TensorDict with an entry per observation group, or the tensor of one group, which `obs_type` names
    ("policy" stands for "actor", too). The originals come first, then the images under each generator, then those under the
    other elements of the group, as many times the batch as the group has elements.

    It can be pickled. Its name holds its arguments, so that a configuration that keeps functions as the text "module:name"
    finds it again in any process.

    Args:
        spec: the symmetry, or what its `to_dict` returns; its group is finite.
        groups: the spec's observation group for groups that a trainer calls by another name, such as {"policy": "actor"}.
        unlisted: what happens to groups that the spec does not describe: "refuse" them, or "keep" them as they are, once for
            each image ("policy", "actor" and "critic" are described by a spec without groups).
        images: observation groups of pictures, and the axis that the symmetry reverses, {"camera": -1} for the columns of
            (n, channels, rows, columns); of a spec with one mirror image alone.
    Raises:
        ValueError: the group is infinite, or has more than a mirror image for `images`; later, an observation group or a size
            that the spec does not have.
    """

    def __init__(
        self,
        spec: SymmetrySpec | Mapping[str, Any],
        *,
        groups: Mapping[str, str] | None = None,
        unlisted: str = "refuse",
        images: Mapping[str, int] | None = None,
    ):
        spec, self._renamed, self._unlisted = as_spec(spec), dict(groups or {}), unlisted
        if unlisted not in ("refuse", "keep"):
            raise ValueError(f"unlisted={unlisted!r} must be 'refuse' or 'keep'")
        self._actions, self._pictures = SpaceImages(spec.action, spec.group), dict(images or {})
        if self._pictures and self._actions.order != 2:
            raise ValueError(
                f"images={self._pictures}: pictures are reversed by one mirror image, and {spec.group} has "
                f"{self._actions.order} elements; choose one symmetry"
            )
        self._observations = {
            name: SpaceImages(spec.observation_group(name).obs, spec.group) for name, _ in spec.observation_groups
        }
        self._whole = None if self._observations else SpaceImages(spec.obs, spec.group)
        arguments = json.dumps([spec.to_dict(), self._renamed, unlisted, self._pictures]).encode()
        self.__name__ = NAME + base64.urlsafe_b64encode(zlib.compress(arguments, 9)).decode()
        self.__qualname__ = self.__name__

    def _images_of(self, name: str) -> SpaceImages | None:
        """How the group acts on an observation group; None of one that is kept as it is."""
        called = self._renamed.get(name, name)
        if self._whole is not None:
            keeps = self._unlisted == "keep" and called == name and name not in (*POLICY, "critic")
            return None if keeps else self._whole
        if called not in self._observations and called in POLICY:
            called = next((other for other in POLICY if other in self._observations), called)
        if called not in self._observations and self._unlisted == "refuse":
            raise ValueError(
                f"the spec has no observation group {name!r}; it has {', '.join(self._observations)}: describe its terms, give "
                'groups=, or unlisted="keep" where no symmetry acts on it'
            )
        return self._observations.get(called)

    def _append(self, obs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The batch of every group with its images."""
        acting = {name: self._images_of(name) for name in obs if name not in self._pictures}
        if not any(acting.values()):
            known = ", ".join(self._observations or (*POLICY, "critic"))
            raise ValueError(f"none of the groups {', '.join(obs)} is one of the spec's, {known}; give groups=")
        other = self._whole is not None and self._unlisted == "refuse"
        hint = ', or unlisted="keep" if no symmetry acts on it' if other else ""
        found = {
            name: torch.cat([obs[name], obs[name].flip(axis)]) for name, axis in self._pictures.items() if name in obs
        }
        for name, images in acting.items():
            try:
                found[name] = images.append(obs[name]) if images else torch.cat([obs[name]] * self._actions.order)
            except ValueError as error:
                raise ValueError(f"observation group {name!r}: {error}{hint}") from None
        return found

    def __call__(
        self, env: Any = None, obs: Any = None, actions: Tensor | None = None, obs_type: str = "policy", **_: Any
    ) -> tuple[Any, Tensor | None]:
        """The batch with its images: observations and actions, or None where none is given."""
        with torch.no_grad():
            if not (obs is None or isinstance(obs, Tensor) or hasattr(obs, "items")):
                raise ValueError(
                    f"obs is a {type(obs).__name__}; give a TensorDict by observation group, or a tensor of one"
                )
            if obs is not None and not isinstance(obs, Tensor):
                parts = self._append(dict(obs.items()))  # a TensorDict iterates over its batch
                size = next(iter(parts.values())).shape[:1]
                obs = type(obs)(parts, batch_size=size, device=obs.device) if hasattr(obs, "batch_size") else parts
            elif obs is not None:
                obs = self._append({obs_type: obs})[obs_type]
        # Mean actions carry gradients: a mirror loss compares them with their images.
        return obs, None if actions is None else self._actions.append(actions)


data_augmentation = DataAugmentation


def __getattr__(name: str) -> DataAugmentation:
    """The augmentation of a name that one has."""
    if not name.startswith(NAME):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        spec, groups, unlisted, *images = json.loads(zlib.decompress(base64.urlsafe_b64decode(name.removeprefix(NAME))))
    except (ValueError, zlib.error) as error:
        raise AttributeError(f"the name of an augmentation is damaged: {name[:40]}...") from error
    return DataAugmentation(spec, groups=groups, unlisted=unlisted, images=images[0] if images else None)
