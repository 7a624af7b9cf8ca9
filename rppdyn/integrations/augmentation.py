"""Images of observations and actions under all elements of a finite group, for trainers that append them to a batch."""

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

from rppdyn.envs._spec import Space, SymmetrySpec, representation
from rppdyn.groups import Group

__all__ = ["SpaceImages", "data_augmentation", "group_elements", "space_of_groups"]

POLICY_NAMES = ("policy", "actor")  # names of the same observation group in `obs_type`
NAME_PREFIX = "augmentation_"  # of the names of augmentations


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
    elements = [torch.eye(group.d, dtype=group.dtype)]
    for element in [*group.discrete_generators, *group.elements()]:
        if not any(torch.allclose(element, listed, atol=1e-9) for listed in elements):
            elements.append(element)
    return torch.stack(elements)


def space_of_groups(spec: SymmetrySpec, names: list[str]) -> Space:
    """The space of concatenated observation groups.

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
    starts = np.cumsum([0, *(part.dim for part in parts)])
    return Space(
        [entry for part in parts for entry in part.entries],
        [block_diag(*m) for m in zip(*(part.discrete_generators for part in parts), strict=True)],
        origin=[c for part in parts for c in part.origin],
        angles=[int(start) + i for start, part in zip(starts, parts, strict=False) for i in part.angles],
        quaternions=[int(start) + i for start, part in zip(starts, parts, strict=False) for i in part.quaternions],
    )


class SpaceImages:
    """Images of raw vectors under every element of a finite group.

    Signed permutations are computed by index and sign, other elements by features.

    Args:
        space: the space, with the action of the group's generators.
        group: the finite group.
    """

    def __init__(self, space: Space, group: Group):
        self.space = space
        elements = group_elements(group)
        rho = representation(group, space, "observation").rho(elements)
        self.order = len(rho)
        self._matrices = rho
        is_signed = bool(((rho != 0).sum(-1) == 1).all()) and bool((rho.abs().sum(-1) == 1).all())
        self._tables: dict[tuple[torch.device, torch.dtype], tuple[Tensor, Tensor, Tensor]] = {}
        self._signed = is_signed and space.encoding.is_identity

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
        """The image (..., n) under one element: 0 is the identity, then come the generators."""
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
        """The batch (n, ...) followed by its images, (order n, ...).

        A history of whole steps, (n, steps, entries) with the newest last, is mirrored step by step.
        """
        if x.ndim < 3 or x.shape[-1] == self.space.dim:
            return torch.cat([x, *(self.image(x, element) for element in range(1, self.order))])
        places = torch.tensor(self._places_by_step(*x.shape[-2:]), device=x.device)
        images = self.append(x.flatten(-2)[..., places])
        return images[..., places.argsort()].unflatten(-1, x.shape[-2:])

    def _places_by_step(self, steps: int, size: int) -> list[int]:
        """The index of each entry, "name" or "name 2 ago", in a flattened history of whole steps."""
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
        return self.__dict__ | {"_tables": {}}  # tables are on the devices of this process


class DataAugmentation:
    """The function with which trainers append mirrored samples: `f(env=None, obs=None, actions=None, obs_type="policy")`.

    Observations are a TensorDict with an entry per observation group, or the tensor of one group, which `obs_type` names
    ("policy" stands for "actor", too). The result has the originals first, then the images under each generator, then those
    under the other elements of the group: the batch grows by the order of the group.

    It can be pickled. Its name encodes its arguments, so that a configuration that stores functions as text "module:name"
    finds it again in any process.

    Args:
        spec: the symmetry, or the dictionary that its `to_dict` returns; its group is finite.
        groups: names of the spec's observation groups by the trainer's names, such as {"policy": "actor"}.
        unlisted: for groups that the spec does not describe: "refuse" them, or "keep" them unchanged, once for each image
            (a spec without groups describes "policy", "actor" and "critic").
        images: observation groups of pictures, with the axis that the symmetry reverses, {"camera": -1} for the columns of
            (n, channels, rows, columns); only for a spec with one mirror image.
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
        spec, self._renamed, self._unlisted = SymmetrySpec.from_dict(spec), dict(groups or {}), unlisted
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
        self.__name__ = NAME_PREFIX + base64.urlsafe_b64encode(zlib.compress(arguments, 9)).decode()
        self.__qualname__ = self.__name__

    def _images_of(self, name: str) -> SpaceImages | None:
        """The images of an observation group; None if it stays unchanged."""
        spec_name = self._renamed.get(name, name)
        if self._whole is not None:
            is_kept = self._unlisted == "keep" and spec_name == name and name not in (*POLICY_NAMES, "critic")
            return None if is_kept else self._whole
        if spec_name not in self._observations and spec_name in POLICY_NAMES:
            spec_name = next((alias for alias in POLICY_NAMES if alias in self._observations), spec_name)
        if spec_name not in self._observations and self._unlisted == "refuse":
            raise ValueError(
                f"the spec has no observation group {name!r}; it has {', '.join(self._observations)}: describe its terms, give "
                'groups=, or unlisted="keep" where no symmetry acts on it'
            )
        return self._observations.get(spec_name)

    def _append(self, obs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The batch of every group with its images."""
        images_by_group = {name: self._images_of(name) for name in obs if name not in self._pictures}
        if not any(images_by_group.values()):
            known = ", ".join(self._observations or (*POLICY_NAMES, "critic"))
            raise ValueError(f"none of the groups {', '.join(obs)} is one of the spec's, {known}; give groups=")
        can_keep = self._whole is not None and self._unlisted == "refuse"
        hint = ', or unlisted="keep" if no symmetry acts on it' if can_keep else ""
        batches = {
            name: torch.cat([obs[name], obs[name].flip(axis)]) for name, axis in self._pictures.items() if name in obs
        }
        for name, images in images_by_group.items():
            try:
                batches[name] = images.append(obs[name]) if images else torch.cat([obs[name]] * self._actions.order)
            except ValueError as error:
                raise ValueError(f"observation group {name!r}: {error}{hint}") from None
        return batches

    def __call__(
        self, env: Any = None, obs: Any = None, actions: Tensor | None = None, obs_type: str = "policy", **_: Any
    ) -> tuple[Any, Tensor | None]:
        """The batch with its images: observations and actions, each None if not given."""
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
    """Rebuild an augmentation from its name."""
    if not name.startswith(NAME_PREFIX):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        spec, groups, unlisted, *images = json.loads(
            zlib.decompress(base64.urlsafe_b64decode(name.removeprefix(NAME_PREFIX)))
        )
    except (ValueError, zlib.error) as error:
        raise AttributeError(f"the name of an augmentation is damaged: {name[:40]}...") from error
    return DataAugmentation(spec, groups=groups, unlisted=unlisted, images=images[0] if images else None)
