"""Attributes of environments and wrappers as plain data, and back: what they remember beside the simulator.

Numbers, texts, arrays, tensors, random generators and containers of these are taken, and objects by their own attributes;
what is shared stays shared. Functions, classes, files' paths and MuJoCo's objects are left alone. What else an attribute holds
(an iterator, a lock) is refused by name.
"""

from __future__ import annotations

import collections
import functools
import logging
import operator
import random
import re
import sys
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch

ALONE = (
    type, types.FunctionType, types.MethodType, types.BuiltinFunctionType, types.ModuleType, types.MethodWrapperType,
    functools.partial, property, Path, re.Pattern, range, slice, logging.Logger, np.ufunc, np.dtype, torch.dtype,
    torch.device, gym.envs.registration.EnvSpec, type(Ellipsis), type(NotImplemented), types.MappingProxyType,
)  # fmt: skip
"""Values that hold no state of an episode."""
CONTAINERS: dict[str, type] = {
    kind.__name__: kind
    for kind in (list, tuple, set, frozenset, collections.deque, dict, collections.OrderedDict, collections.Counter)
}
FACTORIES: dict[str, type] = {kind.__name__: kind for kind in (bool, dict, float, int, list, set, str, tuple)}
BIT_GENERATORS: dict[str, Any] = {
    kind: getattr(np.random, kind) for kind in ("MT19937", "PCG64", "PCG64DXSM", "Philox", "SFC64")
}
PACKAGES = ("gymnasium", "mujoco", "rppdyn", "stable_baselines3", "builtins", "abc", "typing", "torch", "numpy")


class UnknownStateError(ValueError):
    """An attribute whose value can't be captured."""


def is_foreign(kind: type) -> bool:
    """Check whether a class is none of the libraries whose attributes are known."""
    return kind.__module__.partition(".")[0] not in PACKAGES


def attributes_of(owner: Any) -> Iterator[tuple[str, Any]]:
    """Name and value of each attribute that an object has itself, slots included."""
    yield from vars(owner).items() if hasattr(owner, "__dict__") else ()
    for kind in type(owner).__mro__:
        slots = vars(kind).get("__slots__", ())
        for slot in (slots,) if isinstance(slots, str) else slots:
            if slot not in ("__dict__", "__weakref__") and hasattr(owner, slot):
                yield slot, getattr(owner, slot)


def class_attributes(kind: type, skip: frozenset[str]) -> Iterator[tuple[type, str, Any]]:
    """Attributes that hold data on the classes that are no library's."""
    for one in kind.__mro__:
        if is_foreign(one):
            for name, value in vars(one).items():
                descriptor = hasattr(value, "__get__") or isinstance(value, staticmethod | classmethod)
                if not (name.startswith("__") or name in skip or name == "_abc_impl" or descriptor):
                    yield one, name, value


@dataclass
class Packing:
    """Values as plain data.

    Args:
        references: objects that are known elsewhere: environments, wrappers, MuJoCo's model and data.
        strict: whether to refuse what can't be taken; if not, it is left out.
    """

    references: frozenset[int]
    strict: bool = True
    memo: dict[int, int] = field(default_factory=dict)
    alive: list[Any] = field(default_factory=list)

    def owner(self, owner: Any, where: str, skip: frozenset[str] = frozenset()) -> dict[str, Any]:
        """Attributes of an object, and those that hold data on its classes.

        Raises:
            UnknownStateError: naming an attribute that can't be taken.
        """
        own = {k: v for k, v in attributes_of(owner) if k not in skip}
        shared = {f"{kind.__qualname__}.{k}": v for kind, k, v in class_attributes(type(owner), skip)}
        return {
            "attributes": {key: self._attribute(value, f"{where}.{key}", self.strict) for key, value in own.items()},
            "class": {key: self._attribute(value, key, False) for key, value in shared.items()},
        }

    def _attribute(self, value: Any, where: str, strict: bool) -> Any:
        try:
            return self.pack(value, where)
        except UnknownStateError:
            if strict:
                raise
            return {"is": "alone"}

    def is_state(self, value: Any) -> bool:
        own = value
        while isinstance(own, np.ndarray) and own.base is not None:
            own = own.base
        is_simulators = type(value).__module__.startswith("mujoco") or type(own).__name__ == "PyCapsule"
        return not (isinstance(value, ALONE) or id(value) in self.references or is_simulators)

    def pack(self, value: Any, where: str) -> Any:
        """Raises:
        UnknownStateError: naming the attribute and the class of its value.
        """
        if value is None or type(value) in (bool, float, str) or (type(value) is int and abs(value) < 2**63):
            return value
        if not self.is_state(value):
            return {"is": "alone"}
        if type(value) is int:
            return {"is": "int", "text": str(value)}
        if isinstance(value, Enum):
            return {"is": "enum", "class": _name(type(value)), "name": value.name}
        if id(value) in self.memo:
            return {"is": "same", "of": self.memo[id(value)]}
        self.memo[id(value)] = len(self.memo)
        self.alive.append(value)  # so that no other value gets its id
        return {"is": "", "id": self.memo[id(value)]} | self._one(value, where)

    def _one(self, value: Any, where: str) -> dict[str, Any]:
        name = type(value).__name__
        if type(value) is complex:
            return {"is": "complex", "parts": [value.real, value.imag]}
        if isinstance(value, bytes | bytearray):
            return {"is": name, "hex": value.hex()}
        if isinstance(value, np.ndarray | np.generic) and value.dtype.kind != "O" and not value.dtype.hasobject:
            array = np.ascontiguousarray(value)
            kind = "array" if isinstance(value, np.ndarray) else "number"
            if isinstance(base := getattr(value, "base", None), np.ndarray) and base.flags.c_contiguous and value.size:
                start = value.__array_interface__["data"][0] - base.__array_interface__["data"][0]
                part = {"offset": start, "strides": list(value.strides), "base": self.pack(base, where)}
                return {"is": "view", "dtype": array.dtype.str, "shape": list(value.shape), **part}
            return {"is": kind, "dtype": array.dtype.str, "shape": list(np.shape(value)), **_bytes(array)}
        if isinstance(value, torch.Tensor) and not value.is_sparse:
            plain = value.detach().cpu().contiguous()
            raw = plain.reshape(-1).view(torch.uint8).numpy() if plain.numel() else np.empty(0, np.uint8)
            return {"is": "tensor", "dtype": str(plain.dtype), "shape": list(plain.shape), **_bytes(raw)}
        if isinstance(value, torch.Generator):
            return {"is": "torch generator", **_bytes(value.get_state().numpy())}
        if isinstance(value, np.random.Generator | np.random.BitGenerator):
            bits: Any = getattr(value, "bit_generator", value)
            return {"is": name, "bits": type(bits).__name__, "state": self.pack(bits.state, where)}
        if isinstance(value, np.random.RandomState):
            return {"is": "RandomState", "state": self.pack(value.get_state(legacy=False), where)}
        if isinstance(value, random.Random):
            return {"is": "Random", "state": self.pack(value.getstate(), where)}
        if isinstance(value, gym.Space):
            state = None if value._np_random is None else self.pack(value._np_random, where)
            return {"is": "space", "random": state}
        if isinstance(value, dict) and (type(value) is collections.defaultdict or name in CONTAINERS):
            factory = getattr(value, "default_factory", None)
            if factory is not None and factory not in FACTORIES.values():
                raise UnknownStateError(f"its attribute {where} is a defaultdict of {factory}, which can't be captured")
            some = {} if factory is None else {"factory": factory.__name__}
            pairs = [[self.pack(k, where), self.pack(v, f"{where}[{k!r}]")] for k, v in value.items()]
            return {"is": name, "pairs": pairs, **some}
        if type(value) in CONTAINERS.values() or (isinstance(value, tuple) and hasattr(value, "_fields")):
            items = [self.pack(x, f"{where}[{i}]") for i, x in enumerate(value)]
            some = {"maxlen": value.maxlen} if isinstance(value, collections.deque) else {}
            named = {} if type(value) in CONTAINERS.values() else {"class": _name(type(value))}
            return {"is": name if not named else "namedtuple", "items": items, **some, **named}
        own = hasattr(value, "__dict__") or any("__slots__" in vars(kind) for kind in type(value).__mro__[:-1])
        unknown = isinstance(value, np.ndarray | Iterator | dict | list | set | tuple) or not own
        if unknown or type(value).__module__ in ("_io", "io", "threading", "_thread", "socket", "subprocess"):
            kind = type(value).__qualname__
            raise UnknownStateError(f"its attribute {where} is a {kind}, which can't be captured")
        return {"is": "object", "class": _name(type(value)), "own": self.owner(value, where)}


@dataclass
class Unpacking:
    """The inverse of `Packing`: what is there already is filled, so that whoever shares it goes on sharing it."""

    known: dict[int, Any] = field(default_factory=dict)

    def owner(self, owner: Any, packed: Mapping[str, Any], skip: frozenset[str] = frozenset()) -> None:
        """Put attributes in place, and delete those that were not there when the others were taken."""
        here = {key: value for key, value in attributes_of(owner) if key not in skip}
        for key, data in packed["attributes"].items():
            value = self.value(data, here.get(key))
            if data != {"is": "alone"} and (key not in here or value is not here[key]):
                object.__setattr__(owner, key, value)
        for key in here.keys() - packed["attributes"].keys():
            object.__delattr__(owner, key)
        for key, data in packed["class"].items():
            for kind in (one for one in type(owner).__mro__ if is_foreign(one)):
                name = key.removeprefix(f"{kind.__qualname__}.")
                if name != key and data != {"is": "alone"}:
                    value = self.value(data, vars(kind).get(name))
                    if name not in vars(kind) or value is not vars(kind)[name]:
                        setattr(kind, name, value)

    def value(self, data: Any, here: Any = None) -> Any:
        """The value that was packed, in place of the present one, or that one itself with the same content."""
        if not isinstance(data, Mapping):
            return data
        kind = data["is"]
        if kind == "alone":
            return here
        if kind == "same":
            return self.known[data["of"]]
        if kind == "int":
            return int(data["text"])
        if kind == "enum":
            return type(here)[data["name"]] if isinstance(here, Enum) else _class(data["class"])[data["name"]]
        value = self._one(kind, data, here)
        return self.known.setdefault(data["id"], value)

    def _one(self, kind: str, data: Mapping[str, Any], here: Any) -> Any:
        if kind == "complex":
            return complex(*data["parts"])
        if kind in ("bytes", "bytearray"):
            return bytes.fromhex(data["hex"]) if kind == "bytes" else bytearray.fromhex(data["hex"])
        if kind == "view":
            base = self.value(data["base"], getattr(here, "base", None))
            return np.ndarray(data["shape"], np.dtype(data["dtype"]), base, data["offset"], data["strides"])
        if kind in ("array", "number"):
            array = np.frombuffer(_raw(data), np.dtype(data["dtype"])).reshape(data["shape"])
            if kind == "number":
                return array[()]
            if isinstance(here, np.ndarray) and (here.dtype, here.shape) == (array.dtype, array.shape):
                if here.flags.writeable:
                    here[...] = array
                return here
            return array.copy()
        if kind == "tensor":
            tensor = torch.frombuffer(bytearray(_raw(data)) or bytearray(1), dtype=torch.uint8)[: len(_raw(data))]
            tensor = tensor.view(getattr(torch, data["dtype"].removeprefix("torch."))).reshape(data["shape"])
            if isinstance(here, torch.Tensor) and (here.dtype, here.shape) == (tensor.dtype, tensor.shape):
                here.data.copy_(tensor)
                return here
            return tensor.clone()
        if kind == "torch generator":
            generator = here if isinstance(here, torch.Generator) else torch.Generator()
            return generator.set_state(torch.frombuffer(bytearray(_raw(data)), dtype=torch.uint8))
        if "bits" in data:
            value: Any = here if type(here).__name__ == kind else None
            bits: Any = getattr(value, "bit_generator", value)
            if type(bits).__name__ != data["bits"]:
                bits = BIT_GENERATORS[data["bits"]]()
                value = bits if kind == data["bits"] else np.random.Generator(bits)
            bits.state = self.value(data["state"])
            return value
        if kind == "Random":
            source = here if type(here).__name__ == kind else random.Random()
            source.setstate(self.value(data["state"]))
            return source
        if kind == "RandomState":
            legacy = here if type(here).__name__ == kind else np.random.RandomState()
            legacy.set_state(self.value(data["state"]))
            return legacy
        if kind == "space":
            if isinstance(here, gym.Space) and data["random"] is not None:
                here._np_random = self.value(data["random"], here._np_random)
            return here
        if "pairs" in data:
            if type(here).__name__ != kind:
                factory = FACTORIES.get(data.get("factory", ""))
                here = CONTAINERS[kind]() if kind in CONTAINERS else collections.defaultdict(factory)
            self.known[data["id"]], old = here, dict(here)
            keys = [self.value(key) for key, _ in data["pairs"]]
            values = [self.value(value, old.get(key)) for key, (_, value) in zip(keys, data["pairs"], strict=True)]
            here.clear()
            here.update(dict(zip(keys, values, strict=True)))
            return here
        if "items" in data:
            return self._items(kind, data, here)
        alike = here is not None and _name(type(here)) == data["class"]
        target = here if alike else object.__new__(_class(data["class"]))
        self.known[data["id"]] = target
        self.owner(target, data["own"])
        return target

    def _items(self, kind: str, data: Mapping[str, Any], here: Any) -> Any:
        if kind in ("list", "deque"):
            if type(here).__name__ != kind or getattr(here, "maxlen", None) != data.get("maxlen"):
                here = collections.deque(maxlen=data["maxlen"]) if kind == "deque" else []
            self.known[data["id"]] = here
        old = [*(here if isinstance(here, list | tuple | collections.deque) else ()), *[None] * len(data["items"])]
        items = [self.value(item, one) for item, one in zip(data["items"], old, strict=False)]
        if kind == "namedtuple":
            return (type(here) if hasattr(here, "_fields") else _class(data["class"]))(*items)
        if kind == "tuple" and type(here) is tuple and len(here) == len(items) and all(map(operator.is_, here, items)):
            return here
        if type(here).__name__ != kind or kind in ("tuple", "frozenset"):
            return CONTAINERS[kind](items)
        here.clear()
        (here.update if kind == "set" else here.extend)(items)
        return here


def _bytes(array: np.ndarray) -> dict[str, Any]:
    return {"bytes": np.frombuffer(array.tobytes(), np.uint8).copy()}


def _raw(data: Mapping[str, Any]) -> bytes:
    return np.asarray(data["bytes"], np.uint8).tobytes()


def _name(kind: type) -> str:
    return f"{kind.__module__}:{kind.__qualname__}"


def _class(name: str) -> Any:
    """A class of a module that is imported already; no library's, of which a file could make anything.

    Raises:
        ValueError: it is not there.
    """
    module, _, path = name.partition(":")
    try:
        found = functools.reduce(getattr, path.split("."), sys.modules[module])
    except (KeyError, AttributeError):
        found = None
    if not isinstance(found, type) or not is_foreign(found):
        raise ValueError(f"the state has an object of the class {name}, which is not there; make the same environment")
    return found
