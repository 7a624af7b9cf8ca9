"""Capture and restore the complete state of an environment, so that a resumed run continues bit-identically on the CPU.

A state consists of MuJoCo's integration state (positions, velocities, time, controls, the solver's warm start) and the
parameters of its model. It also has the random generators of the environment and its spaces, and the attributes of environment
and wrappers (`Packing`). It is plain data: NumPy arrays, numbers, strings, lists and dictionaries, saved without pickle. An
environment without MuJoCo defines its own state: `simulator_state()` returns plain data, and `restore_simulator_state(data)`
restores it.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import logging
import operator
import random
import re
import sys
import time
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

import gymnasium as gym
import numpy as np
import torch
from gymnasium.envs.mujoco import MujocoEnv

from rppdyn.envs._simulator import get_derived, get_integration_state, set_integration_state
from rppdyn.envs._wrappers import PASSIVE, delay_warnings, layers, raise_naming_method, require_reset, require_step

if TYPE_CHECKING:
    from stable_baselines3.common.vec_env import VecEnv

FORMAT = 2

CAPTURED_ELSEWHERE = frozenset({
    "env", "spec", "metadata", "action_space", "observation_space", "_action_space", "_observation_space",
    "_np_random", "_np_random_seed", "_metadata", "_cached_spec", "_saved_kwargs", "_ezpickle_args", "_ezpickle_kwargs",
    "mujoco_renderer", "viewer", "window", "render_mode",
})  # fmt: skip
"""Attributes of environments and wrappers that are captured separately, or belong to construction and rendering."""

CAPTURED_OF_MUJOCO = CAPTURED_ELSEWHERE | {"model", "data", "fullpath", "width", "height", "camera_name", "camera_id"}
"""The same of a `MujocoEnv`."""

RANDOMISED_PREFIXES = (
    "actuator_", "body_", "bvh_aabb", "dof_", "eq_", "geom_", "hfield_data", "hfield_size", "jnt_", "pair_", "qpos0",
    "qpos_spring", "site_", "tendon_",
)  # fmt: skip
"""Prefixes of the model's arrays that are captured, because an environment may randomise them; options are captured too."""


def capture_state(env: gym.Env | VecEnv, *, strict: bool = True) -> dict[str, Any]:
    """Capture everything that determines how an environment continues, as plain data.

    Args:
        env: a Gymnasium MuJoCo environment or one with a `simulator_state`, wrapped or not; or a stable-baselines3
            `DummyVecEnv` or `SubprocVecEnv`. Environments of a `SubprocVecEnv` must come from `rppdyn.envs.make_env`.
        strict: refuse attributes of instances that can't be captured; if False, leave them out. Attributes of classes that
            can't be captured are left out in any case. Environments of a `VecEnv` are always strict.
    Raises:
        ValueError: the environment's state is not known, or an attribute of it or of a wrapper can't be captured.
    """
    if _is_vectorised(env):
        return {"format": FORMAT, "envs": _each(env, capture_state, [()] * env.num_envs)}
    wrappers, base = _unwrap(env)
    separate: list[Any] = [space for layer in (*wrappers, base) for space in _own_spaces(layer).values()]
    separate += [*wrappers, base, base._np_random, *(getattr(base, key, None) for key in ("model", "data"))]
    packing = Packing(frozenset(map(id, separate)) - {id(None)}, strict)
    return {
        "format": FORMAT,
        "env_id": base.spec.id if base.spec else type(base).__name__,
        **_simulator_state(base),
        "random": {"env": _pack_bits(base._np_random)} | _random_spaces(base),
        "seed": base._np_random_seed,
        "wrappers": [_wrapper_state(layer) for layer in wrappers],
        "own": [
            packing.pack_attributes(owner, type(owner).__name__, _captured_elsewhere(owner))
            for owner in _packed_owners(base, wrappers)
        ],
    }


def why_not_capturable(env: gym.Env) -> str:
    """The reason why an environment's state can't be captured; "" if it can.

    A user's environment or wrapper may add attributes later. It is therefore reset and stepped once, then restored.
    """
    try:
        wrappers, base = _unwrap(env)
        if not any(is_foreign(type(layer)) for layer in (*wrappers, base)):
            return ""
        with keep_state(env):
            with contextlib.suppress(Exception):  # an error here is raised again by the run, with its place
                env.reset(seed=0)
                env.step(env.action_space.sample())
            capture_state(env)
    except ValueError as error:
        return str(error)
    return ""


def restore_state(env: gym.Env | VecEnv, state: Mapping[str, Any]) -> None:
    """Bring an environment, made in the same way, into a state that `capture_state` returned.

    Raises:
        ValueError: another format version, environment, model or stack of wrappers.
    """
    if state.get("format") != FORMAT:
        raise ValueError(f"environment state has format {state.get('format')!r}, this version reads {FORMAT}")
    if _is_vectorised(env):
        saved = state.get("envs", [])
        if len(saved) != env.num_envs:
            raise ValueError(f"the state holds {len(saved)} environments, this one has {env.num_envs}; use as many")
        _each(env, restore_state, [(s,) for s in saved])
        return
    if "simulator" not in state:
        raise ValueError("the state is of a vectorised environment; restore it into one")
    wrappers, base = _unwrap(env)
    env_id = base.spec.id if base.spec else type(base).__name__
    if env_id != state["env_id"]:
        raise ValueError(f"the state is of {state['env_id']}, the environment is {env_id}; make the same one")
    names, captured = [type(layer).__name__ for layer in wrappers], [saved["type"] for saved in state["wrappers"]]
    if names != captured:
        raise ValueError(f"the state was captured with wrappers {captured}, the environment has {names}; wrap it alike")
    _restore_simulator(base, state)
    if state["random"]["env"] is None:
        base._np_random = None
    else:
        base.np_random.bit_generator.state = _unpack_bits(state["random"]["env"])
    _restore_spaces(base, state["random"])
    base._np_random_seed = state["seed"]
    for layer, saved in zip(wrappers, state["wrappers"], strict=True):
        _restore_wrapper(layer, saved)
    if "own" in state:  # version 0.1 left it out
        unpacking = Unpacking()
        for owner, saved in zip(_packed_owners(base, wrappers), state["own"], strict=True):
            unpacking.unpack_attributes(owner, saved, CAPTURED_OF_MUJOCO)


@contextlib.contextmanager
def keep_state(env: gym.Env) -> Iterator[None]:
    """Restore an environment at the end of the context, but for attributes that can't be captured."""
    before, base = capture_state(env, strict=False), env.unwrapped
    generator: Any = base._np_random
    try:
        yield
    finally:
        base._np_random = generator  # a reset with a seed makes another; attributes may refer to this one
        restore_state(env, before)


class Resumable(gym.Wrapper, gym.utils.RecordConstructorArgs):
    """Outermost wrapper with the methods `capture_state()` and `restore_state(state)`, which a `SubprocVecEnv` can call.

    It also checks what a user's environment returns, and names the method at fault.
    """

    _stepped = False

    def __init__(self, env: gym.Env):
        gym.utils.RecordConstructorArgs.__init__(self)
        gym.Wrapper.__init__(self, env)

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        try:
            with delay_warnings():
                return require_reset(self.env, self.env.reset(**options))
        except Exception as error:
            raise_naming_method(self.env, "reset", error)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        try:
            if self._stepped:
                return require_step(self.env, self.env.step(action))
            with delay_warnings():
                self._stepped = True
                return require_step(self.env, self.env.step(action), check_bounds=True)
        except Exception as error:
            raise_naming_method(self.env, "step", error)

    def capture_state(self) -> dict[str, Any]:
        return capture_state(self)

    def restore_state(self, state: Mapping[str, Any]) -> None:
        restore_state(self, state)


# -- parts of a state -------------------------------------------------------------------------------------------------


def _unwrap(env) -> tuple[list[Any], Any]:
    """(wrappers from the outermost to the innermost, the environment inside)."""
    base = getattr(env, "unwrapped", env)
    if not (isinstance(base, MujocoEnv) or hasattr(base, "simulator_state")):
        raise ValueError(
            f"{type(base).__name__} is no Gymnasium MuJoCo environment; its state can't be captured unless it has the "
            "methods simulator_state and restore_simulator_state"
        )
    return list(layers(env)), base


def _state_attributes(layer: Any) -> tuple[str, ...] | None:
    """Names of the attributes of a library's wrapper that belong to its state; None for all attributes."""
    known = PASSIVE.get(type(layer).__name__)
    return None if known is None or is_foreign(type(layer)) else known.remembers


def _packed_owners(base: Any, wrappers: list[Any]) -> list[Any]:
    """The environment, if it is a MuJoCo one, and the wrappers all of whose attributes are captured."""
    owners = [base] if isinstance(base, MujocoEnv) else []
    return owners + [layer for layer in wrappers if _state_attributes(layer) is None]


def _captured_elsewhere(owner: Any) -> frozenset[str]:
    return CAPTURED_OF_MUJOCO if isinstance(owner, MujocoEnv) else CAPTURED_ELSEWHERE


def _simulator_state(base: Any) -> dict:
    if not isinstance(base, MujocoEnv):
        return {"simulator": _copy_plain(base.simulator_state())}
    model = base.model
    named = {key: getattr(model, key) for key in dir(model) if key.startswith(RANDOMISED_PREFIXES)}
    named |= {f"opt.{key}": getattr(model.opt, key) for key in dir(model.opt) if not key.startswith("_")}
    return {
        "model": {key: np.array(v) for key, v in named.items() if isinstance(v, np.ndarray | int | float)},
        "simulator": get_integration_state(base.model, base.data),
        "derived": get_derived(base.data),
    }


def _restore_simulator(base: Any, state: Mapping[str, Any]) -> None:
    if not isinstance(base, MujocoEnv):
        base.restore_simulator_state(_copy_plain(state["simulator"]))
        return
    shape, needed = np.shape(state["simulator"]), get_integration_state(base.model, base.data).shape
    if shape != needed:
        raise ValueError(f"the state has shape {shape}, the model of {state['env_id']} {needed}; use the same model")
    for key, value in state.get("model", {}).items():
        owner, name = (base.model.opt, key[4:]) if key.startswith("opt.") else (base.model, key)
        current = getattr(owner, name)
        if isinstance(current, np.ndarray):
            if np.size(value) != current.size:
                raise ValueError(f"{key} has {np.size(value)} entries, the model {current.size}; use the same model")
            current[...] = np.asarray(value, current.dtype).reshape(current.shape)
        elif current != type(current)(value):
            setattr(owner, name, type(current)(value))
    set_integration_state(base.model, base.data, np.array(state["simulator"], dtype=np.float64))
    for name, value in state["derived"].items():
        getattr(base.data, name)[...] = np.asarray(value)


def _wrapper_state(layer: Any) -> dict:
    name = type(layer).__name__
    keys = _state_attributes(layer) or ()
    saved = {"type": name, "attributes": {key: _copy_plain(getattr(layer, key)) for key in keys}}
    saved["random"] = _random_spaces(layer)
    if name == "Monitor" and keys:
        saved["elapsed"] = time.time() - layer.t_start
    return saved


def _restore_wrapper(layer: Any, saved: dict) -> None:
    for key, value in saved["attributes"].items():
        setattr(layer, key, _copy_plain(value))
    _restore_spaces(layer, saved["random"])
    if "elapsed" in saved:
        layer.t_start = time.time() - saved["elapsed"]
    if saved["type"] == "PassiveEnvChecker" and _state_attributes(layer) and layer.checked_reset:
        # The checker compares a step with the one before, which is not saved: mark its checks as done.
        layer.checked_step = layer.checked_data_reuse = True
        layer._previous_data = None


def _own_spaces(layer) -> dict[str, gym.Space]:
    """The spaces of a layer itself; a wrapper usually has none and passes on those inside."""
    prefix = "_" if isinstance(layer, gym.Wrapper) else ""
    spaces = {key: getattr(layer, key) for key in (f"{prefix}action_space", f"{prefix}observation_space")}
    return {key: space for key, space in spaces.items() if space is not None}


def _spaces_within(space: gym.Space) -> list[gym.Space]:
    """A space and all spaces within it. Each has a random generator of its own."""
    parts = getattr(space, "spaces", ())
    parts = list(parts.values() if isinstance(parts, Mapping) else parts)
    parts += [part for key in ("feature_space", "node_space", "edge_space") if (part := getattr(space, key, None))]
    return [space, *(inner for part in parts for inner in _spaces_within(part))]


def _random_spaces(layer: Any) -> dict[str, Any]:
    """{space: states of its random generators}; one state, not in a list, for a space that consists of no others."""
    states = {key: [_pack_bits(s.np_random) for s in _spaces_within(own)] for key, own in _own_spaces(layer).items()}
    return {key: bits if len(bits) > 1 else bits[0] for key, bits in states.items()}


def _restore_spaces(layer: Any, saved: Mapping[str, Any]) -> None:
    for key, own in _own_spaces(layer).items():
        states = saved[key] if isinstance(saved[key], list) else [saved[key]]
        for space, bits in zip(_spaces_within(own), states, strict=False):  # earlier versions saved the first one only
            space.np_random.bit_generator.state = _unpack_bits(bits)


def _pack_bits(generator: np.random.Generator | None) -> Any:
    """State of a bit generator, with integers of more than 63 bits as strings, which every file format can hold."""

    def plain(x: Any) -> Any:
        if isinstance(x, dict):
            return {key: plain(value) for key, value in x.items()}
        return {"int": str(x)} if type(x) is int and abs(x) >= 2**63 else x

    return None if generator is None else plain(generator.bit_generator.state)


def _unpack_bits(saved: Any) -> Any:
    """The inverse of `_pack_bits`."""
    if not isinstance(saved, dict):
        return saved
    return int(saved["int"]) if set(saved) == {"int"} else {key: _unpack_bits(value) for key, value in saved.items()}


def _copy_plain(value):
    """Copy plain data: keys become strings, tuples lists, NumPy's scalars numbers. Refuse anything else."""
    if isinstance(value, dict):
        return {str(key): _copy_plain(x) for key, x in value.items()}
    if isinstance(value, (list, tuple)):
        return [_copy_plain(x) for x in value]
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return value.copy()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise ValueError(
        f"{value!r} is no plain data and can't be kept with an environment's state: give arrays, numbers, strings, lists and "
        "dictionaries"
    )


# -- vectorised environments ------------------------------------------------------------------------------------------


def _is_vectorised(env: gym.Env | VecEnv) -> TypeGuard[VecEnv]:
    return hasattr(env, "num_envs") and hasattr(env, "env_method")


def _each(env, function: Callable[..., Any], arguments: list[tuple]) -> list:
    """Call `capture_state` or `restore_state` on each environment of a `VecEnv`."""
    if hasattr(env, "venv"):
        raise ValueError(
            f"the state of the wrapper {type(env).__name__} is not captured with the environments; "
            "pass the VecEnv inside and save the wrapper beside it"
        )
    if hasattr(env, "envs"):
        return [function(single, *args) for single, args in zip(env.envs, arguments, strict=True)]
    try:
        return [env.env_method(function.__name__, *args, indices=i)[0] for i, args in enumerate(arguments)]
    except AttributeError:
        raise ValueError("environments in other processes must be made with rppdyn.envs.make_env") from None


# -- attributes as plain data, and back ----------------------------------------------------------------------------------
#
# Numbers, texts, arrays, tensors, random generators and containers of these are packed, other objects by their attributes.
# Shared objects stay shared. Functions, classes, paths and MuJoCo's objects hold no state and are left as they are. Other
# values (an iterator, a lock) are refused by name.

STATELESS_TYPES = (
    type, types.FunctionType, types.MethodType, types.BuiltinFunctionType, types.ModuleType, types.MethodWrapperType,
    functools.partial, property, Path, re.Pattern, range, slice, logging.Logger, np.ufunc, np.dtype, torch.dtype,
    torch.device, gym.envs.registration.EnvSpec, type(Ellipsis), type(NotImplemented), types.MappingProxyType,
)  # fmt: skip
"""Types of values that are not captured: a restore leaves such attributes as they are."""
CONTAINERS: dict[str, type] = {
    kind.__name__: kind
    for kind in (list, tuple, set, frozenset, collections.deque, dict, collections.OrderedDict, collections.Counter)
}
FACTORIES: dict[str, type] = {kind.__name__: kind for kind in (bool, dict, float, int, list, set, str, tuple)}
BIT_GENERATORS: dict[str, Any] = {
    kind: getattr(np.random, kind) for kind in ("MT19937", "PCG64", "PCG64DXSM", "Philox", "SFC64")
}
PACKAGES = ("gymnasium", "mujoco", "rppdyn", "stable_baselines3", "builtins", "abc", "typing", "torch", "numpy")


NOT_STORED = {"is": "alone"}
"""Packed form of a value that is not captured; a restore leaves the attribute as it is."""


class UnknownStateError(ValueError):
    """An attribute whose value can't be captured."""


def is_foreign(kind: type) -> bool:
    """Check whether a class belongs to none of the libraries whose attributes are known (`PACKAGES`)."""
    return kind.__module__.partition(".")[0] not in PACKAGES


def attributes_of(owner: Any) -> Iterator[tuple[str, Any]]:
    """(name, value) of the attributes of an object itself, slots included."""
    yield from vars(owner).items() if hasattr(owner, "__dict__") else ()
    for kind in type(owner).__mro__:
        slots = vars(kind).get("__slots__", ())
        for slot in (slots,) if isinstance(slots, str) else slots:
            if slot not in ("__dict__", "__weakref__") and hasattr(owner, slot):
                yield slot, getattr(owner, slot)


def class_attributes(kind: type, skip: frozenset[str]) -> Iterator[tuple[type, str, Any]]:
    """(class, name, value) of the data attributes of a class and its bases, but for classes of `PACKAGES`."""
    for base in kind.__mro__:
        if is_foreign(base):
            for name, value in vars(base).items():
                descriptor = hasattr(value, "__get__") or isinstance(value, staticmethod | classmethod)
                if not (name.startswith("__") or name in skip or name == "_abc_impl" or descriptor):
                    yield base, name, value


@dataclass
class Packing:
    """Conversion of attributes to plain data.

    Args:
        references: ids of objects that are captured separately: environments, wrappers, MuJoCo's model and data.
        strict: refuse values that can't be packed; otherwise they are left out.
        memo: (number, object) of each packed object by its id, which no other object gets while it is here.
    """

    references: frozenset[int]
    strict: bool = True
    memo: dict[int, tuple[int, Any]] = field(default_factory=dict)

    def pack_attributes(self, owner: Any, where: str, skip: frozenset[str] = frozenset()) -> dict[str, Any]:
        """Pack the attributes of an object, and those that hold data on its classes."""
        attributes = {k: v for k, v in attributes_of(owner) if k not in skip}
        shared = {f"{kind.__qualname__}.{k}": v for kind, k, v in class_attributes(type(owner), skip)}
        return {
            "attributes": {
                key: self._pack_attribute(value, f"{where}.{key}", self.strict) for key, value in attributes.items()
            },
            "class": {key: self._pack_attribute(value, key, False) for key, value in shared.items()},
        }

    def _pack_attribute(self, value: Any, where: str, strict: bool) -> Any:
        count = len(self.memo)
        try:
            return self.pack(value, where)
        except UnknownStateError:
            if strict:
                raise
            for part in list(self.memo)[count:]:  # packed parts of what is left out: nothing may refer to them
                del self.memo[part]
            return NOT_STORED

    def _is_state(self, value: Any) -> bool:
        """Check whether a value is to be packed: it is no stateless object, no reference, and not MuJoCo's."""
        memory = value
        while isinstance(memory, np.ndarray) and memory.base is not None:
            memory = memory.base
        is_mujocos = type(value).__module__.startswith("mujoco") or type(memory).__name__ == "PyCapsule"
        return not (isinstance(value, STATELESS_TYPES) or id(value) in self.references or is_mujocos)

    def pack(self, value: Any, where: str) -> Any:
        """Pack a value; `where` is the attribute that holds it, for messages.

        Raises:
            UnknownStateError: the value can't be packed.
        """
        if value is None or type(value) in (bool, float, str) or (type(value) is int and abs(value) < 2**63):
            return value
        if not self._is_state(value):
            return NOT_STORED
        if type(value) is int:
            return {"is": "int", "text": str(value)}
        if isinstance(value, Enum):
            return {"is": "enum", "class": _name(type(value)), "name": value.name}
        if id(value) in self.memo:
            return {"is": "same", "of": self.memo[id(value)][0]}
        number = len(self.memo)
        self.memo[id(value)] = number, value
        return {"is": "", "id": number} | self._pack_object(value, where)

    def _pack_object(self, value: Any, where: str) -> dict[str, Any]:
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
            generators = [space._np_random for space in _spaces_within(value)]
            return {"is": "space", "random": [None if g is None else self.pack(g, where) for g in generators]}
        if isinstance(value, dict) and (type(value) is collections.defaultdict or name in CONTAINERS):
            factory = getattr(value, "default_factory", None)
            if factory is not None and factory not in FACTORIES.values():
                raise UnknownStateError(f"its attribute {where} is a defaultdict of {factory}, which can't be captured")
            options = {} if factory is None else {"factory": factory.__name__}
            pairs = [[self.pack(k, where), self.pack(v, f"{where}[{k!r}]")] for k, v in value.items()]
            return {"is": name, "pairs": pairs, **options}
        if type(value) in CONTAINERS.values() or (isinstance(value, tuple) and hasattr(value, "_fields")):
            items = [self.pack(x, f"{where}[{i}]") for i, x in enumerate(value)]
            options = {"maxlen": value.maxlen} if isinstance(value, collections.deque) else {}
            named = {} if type(value) in CONTAINERS.values() else {"class": _name(type(value))}
            return {"is": name if not named else "namedtuple", "items": items, **options, **named}
        has_attributes = hasattr(value, "__dict__") or any("__slots__" in vars(k) for k in type(value).__mro__[:-1])
        is_unknown = isinstance(value, np.ndarray | Iterator | dict | list | set | tuple) or not has_attributes
        if is_unknown or type(value).__module__ in ("_io", "io", "threading", "_thread", "socket", "subprocess"):
            kind = type(value).__qualname__
            raise UnknownStateError(f"its attribute {where} is a {kind}, which can't be captured")
        return {"is": "object", "class": _name(type(value)), "own": self.pack_attributes(value, where)}


@dataclass
class Unpacking:
    """The inverse of `Packing`. Existing objects are updated in place, so that other references to them stay valid.

    Args:
        known: unpacked objects by their number.
        filled: existing objects that were updated, by id. Each is filled once: a second packed object becomes a new one.
    """

    known: dict[int, Any] = field(default_factory=dict)
    filled: dict[int, Any] = field(default_factory=dict)

    def unpack_attributes(self, owner: Any, packed: Mapping[str, Any], keep: frozenset[str] = frozenset()) -> None:
        """Restore the attributes of an object; delete those that were not captured, but for those in `keep`."""
        present = dict(attributes_of(owner))
        for key, data in packed["attributes"].items():
            value = self.unpack(data, present.get(key))
            if data != NOT_STORED and (key not in present or value is not present[key]):
                object.__setattr__(owner, key, value)
        for key in present.keys() - packed["attributes"].keys() - keep:
            object.__delattr__(owner, key)
        for key, data in packed["class"].items():
            for kind in filter(is_foreign, type(owner).__mro__):
                name = key.removeprefix(f"{kind.__qualname__}.")
                if name != key and data != NOT_STORED:
                    value = self.unpack(data, vars(kind).get(name))
                    if name not in vars(kind) or value is not vars(kind)[name]:
                        setattr(kind, name, value)

    def unpack(self, data: Any, present: Any = None) -> Any:
        """The packed value: a new object, or the present one filled with the packed content."""
        if not isinstance(data, Mapping):
            return data
        kind = data["is"]
        if data == NOT_STORED:
            return present
        if kind == "same":
            return self.known[data["of"]]
        if kind == "int":
            return int(data["text"])
        if kind == "enum":
            return type(present)[data["name"]] if isinstance(present, Enum) else _class(data["class"])[data["name"]]
        if kind != "space":
            present = None if id(present) in self.filled else self.filled.setdefault(id(present), present)
        value = self._unpack_object(kind, data, present)
        return self.known.setdefault(data["id"], value)

    def _unpack_object(self, kind: str, data: Mapping[str, Any], present: Any) -> Any:
        if kind == "complex":
            return complex(*data["parts"])
        if kind in ("bytes", "bytearray"):
            return bytes.fromhex(data["hex"]) if kind == "bytes" else bytearray.fromhex(data["hex"])
        if kind == "view":
            base = self.unpack(data["base"], getattr(present, "base", None))
            return np.ndarray(data["shape"], np.dtype(data["dtype"]), base, data["offset"], data["strides"])
        if kind in ("array", "number"):
            array = np.frombuffer(_raw(data), np.dtype(data["dtype"])).reshape(data["shape"])
            if kind == "number":
                return array[()]
            alike = isinstance(present, np.ndarray) and (present.dtype, present.shape) == (array.dtype, array.shape)
            if alike and present.flags.writeable:
                present[...] = array
            return present if alike and present.tobytes() == array.tobytes() else array.copy()
        if kind == "tensor":
            tensor = torch.frombuffer(bytearray(_raw(data)) or bytearray(1), dtype=torch.uint8)[: len(_raw(data))]
            tensor = tensor.view(getattr(torch, data["dtype"].removeprefix("torch."))).reshape(data["shape"])
            if isinstance(present, torch.Tensor) and (present.dtype, present.shape) == (tensor.dtype, tensor.shape):
                present.data.copy_(tensor)
                return present
            return tensor.clone()
        if kind == "torch generator":
            generator = present if isinstance(present, torch.Generator) else torch.Generator()
            return generator.set_state(torch.frombuffer(bytearray(_raw(data)), dtype=torch.uint8))
        if "bits" in data:
            value: Any = present if type(present).__name__ == kind else None
            bits: Any = getattr(value, "bit_generator", value)
            if type(bits).__name__ != data["bits"]:
                bits = BIT_GENERATORS[data["bits"]]()
                value = bits if kind == data["bits"] else np.random.Generator(bits)
            bits.state = self.unpack(data["state"])
            return value
        if kind == "Random":
            source = present if type(present).__name__ == kind else random.Random()
            source.setstate(self.unpack(data["state"]))
            return source
        if kind == "RandomState":
            legacy = present if type(present).__name__ == kind else np.random.RandomState()
            legacy.set_state(self.unpack(data["state"]))
            return legacy
        if kind == "space":
            saved = data["random"] if isinstance(data["random"], list) else [data["random"]]  # one in earlier versions
            spaces = _spaces_within(present) if isinstance(present, gym.Space) else []
            for space, generator in zip(spaces, saved, strict=False):
                if generator is not None:
                    space._np_random = self.unpack(generator, space._np_random)
            return present
        if "pairs" in data:
            if type(present).__name__ != kind:
                factory = FACTORIES.get(data.get("factory", ""))
                present = CONTAINERS[kind]() if kind in CONTAINERS else collections.defaultdict(factory)
            self.known[data["id"]], old = present, dict(present)
            keys = [self.unpack(key) for key, _ in data["pairs"]]
            values = [self.unpack(value, old.get(key)) for key, (_, value) in zip(keys, data["pairs"], strict=True)]
            present.clear()
            present.update(dict(zip(keys, values, strict=True)))
            return present
        if "items" in data:
            return self._unpack_items(kind, data, present)
        alike = present is not None and _name(type(present)) == data["class"]
        target = present if alike else object.__new__(_class(data["class"]))
        self.known[data["id"]] = target
        self.unpack_attributes(target, data["own"])
        return target

    def _unpack_items(self, kind: str, data: Mapping[str, Any], present: Any) -> Any:
        if kind in ("list", "deque"):
            if type(present).__name__ != kind or getattr(present, "maxlen", None) != data.get("maxlen"):
                present = collections.deque(maxlen=data["maxlen"]) if kind == "deque" else []
            self.known[data["id"]] = present
        old = list(present) if isinstance(present, list | tuple | collections.deque) else []
        old += [None] * len(data["items"])
        items = [self.unpack(item, previous) for item, previous in zip(data["items"], old, strict=False)]
        if kind == "namedtuple":
            return (type(present) if hasattr(present, "_fields") else _class(data["class"]))(*items)
        is_tuple = kind == "tuple" and type(present) is tuple
        if is_tuple and len(present) == len(items) and all(map(operator.is_, present, items)):
            return present
        if type(present).__name__ != kind or kind in ("tuple", "frozenset"):
            return CONTAINERS[kind](items)
        present.clear()
        (present.update if kind == "set" else present.extend)(items)
        return present


def _bytes(array: np.ndarray) -> dict[str, Any]:
    return {"bytes": np.frombuffer(array.tobytes(), np.uint8).copy()}


def _raw(data: Mapping[str, Any]) -> bytes:
    return np.asarray(data["bytes"], np.uint8).tobytes()


def _name(kind: type) -> str:
    return f"{kind.__module__}:{kind.__qualname__}"


def _class(name: str) -> Any:
    """The class of this name in an imported module. Those of `PACKAGES` are refused: a file could build anything with them."""
    module, _, path = name.partition(":")
    try:
        kind = functools.reduce(getattr, path.split("."), sys.modules[module])
    except (KeyError, AttributeError):
        kind = None
    if not isinstance(kind, type) or not is_foreign(kind):
        raise ValueError(
            f"the state has an object of the class {name}, which is not imported, or is a library's; make the same environment"
        )
    return kind
