"""The complete state of an environment, so that a run resumed from a checkpoint continues bit-identically on the CPU.

Captured are MuJoCo's integration state (positions, velocities, time, controls, the solver's warm start), the parameters of its
model, the random generators of the environment and its spaces, and what environment and wrappers remember as attributes
(`rppdyn.envs.attributes`). All of it is plain data: NumPy arrays, numbers, strings, lists and dictionaries; no pickle is needed
to save it. An environment without MuJoCo says itself what its state is: its method `simulator_state()` returns plain data, and
`restore_simulator_state(data)` takes it up.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeGuard

import gymnasium as gym
import mujoco
import numpy as np
from gymnasium.envs.mujoco import MujocoEnv

from rppdyn.envs.attributes import Packing, Unpacking, is_foreign
from rppdyn.envs.simulator import get_derived, get_integration_state, set_derived, set_integration_state
from rppdyn.envs.wrappers import PASSIVE, blamed, held_remarks, require_reset, require_step

if TYPE_CHECKING:
    from stable_baselines3.common.vec_env import VecEnv

FORMAT = 2

OTHERWISE = frozenset({
    "env", "model", "data", "spec", "metadata", "action_space", "observation_space", "_action_space", "_observation_space",
    "_np_random", "_np_random_seed", "_metadata", "_cached_spec", "_saved_kwargs", "_ezpickle_args", "_ezpickle_kwargs",
    "mujoco_renderer", "viewer", "window", "fullpath", "render_mode", "width", "height", "camera_name", "camera_id",
})  # fmt: skip
"""Attributes that are captured otherwise, or belong to construction and drawing."""

RANDOMISED = ("actuator_", "body_", "dof_", "eq_", "geom_", "jnt_", "pair_", "qpos0", "qpos_spring", "site_", "tendon_")
"""Arrays of a model that an environment may draw anew in each episode, besides its options."""


def capture_state(env: gym.Env | VecEnv, *, strict: bool = True) -> dict[str, Any]:
    """Everything that determines how an environment goes on, as plain data.

    Args:
        env: a Gymnasium MuJoCo environment or one with a `simulator_state`, wrapped or not, or a stable-baselines3
            `DummyVecEnv` or `SubprocVecEnv` (for the latter the environments must come from `rppdyn.envs.make_env`).
        strict: whether to refuse what can't be captured; if not, an attribute that holds such is left out.
    Raises:
        ValueError: an environment whose state is not known, or an attribute of it or of a wrapper that can't be captured.
    """
    if _is_vectorised(env):
        return {"format": FORMAT, "envs": _each(env, "capture_state", [()] * env.num_envs)}
    layers, base = _layers(env)
    packing = Packing(_references(layers, base), strict)
    owner = [base] if isinstance(base, MujocoEnv) else []  # what says its state itself has no other
    return {
        "format": FORMAT,
        "env_id": base.spec.id if base.spec else type(base).__name__,
        **_simulator_state(base),
        "random": _random_state(base),
        "seed": base._np_random_seed,
        "wrappers": [_wrapper_state(layer) for layer in layers],
        "own": [packing.owner(one, type(one).__name__, OTHERWISE) for one in (*owner, *_with_attributes(layers))],
    }


def why_not_capturable(env: gym.Env) -> str:
    """Why an environment's state can't be captured; "" where it can.

    An environment or wrapper of a user's is reset and stepped once, since it may make attributes then, and put back.
    """
    try:
        layers, base = _layers(env)
        if not any(is_foreign(type(one)) for one in (*layers, base)):
            return ""
        before = capture_state(env, strict=False)
        try:
            with contextlib.suppress(Exception):  # what fails here will fail in the run, which says where
                env.reset(seed=0)
                env.step(env.action_space.sample())
            capture_state(env)
        finally:
            restore_state(env, before)
    except ValueError as error:
        return str(error)
    return ""


def restore_state(env: gym.Env | VecEnv, state: Mapping[str, Any]) -> None:
    """Put an environment, made as the captured one was, into a state that `capture_state` returned.

    Raises:
        ValueError: another format version, environment, model or stack of wrappers than the captured one.
    """
    if state.get("format") != FORMAT:
        raise ValueError(f"environment state has format {state.get('format')!r}, this version reads {FORMAT}")
    if _is_vectorised(env):
        saved = state.get("envs", [])
        if len(saved) != env.num_envs:
            raise ValueError(f"the state holds {len(saved)} environments, this one has {env.num_envs}; use as many")
        _each(env, "restore_state", [(s,) for s in saved])
        return
    if "simulator" not in state:
        raise ValueError("the state is of a vectorised environment; restore it into one")
    layers, base = _layers(env)
    env_id = base.spec.id if base.spec else type(base).__name__
    if env_id != state["env_id"]:
        raise ValueError(f"the state is of {state['env_id']}, the environment is {env_id}; make the same one")
    here, there = [type(layer).__name__ for layer in layers], [saved["type"] for saved in state["wrappers"]]
    if here != there:
        raise ValueError(f"the state was captured with wrappers {there}, the environment has {here}; wrap it alike")
    _restore_simulator(base, state)
    _restore_random(base, state["random"])
    base._np_random_seed = state["seed"]
    for layer, saved in zip(layers, state["wrappers"], strict=True):
        _restore_wrapper(layer, saved)
    if "own" in state:  # version 0.1 left it out
        unpacking = Unpacking()
        owner = [base] if isinstance(base, MujocoEnv) else []
        for one, saved in zip((*owner, *_with_attributes(layers)), state["own"], strict=True):
            unpacking.owner(one, saved, OTHERWISE)


class Resumable(gym.Wrapper, gym.utils.RecordConstructorArgs):
    """Outermost wrapper with `capture_state()` and `restore_state(state)` as methods, callable in a `SubprocVecEnv`.

    It says where an environment of the user's returns what does not fit.
    """

    _stepped = False

    def __init__(self, env: gym.Env):
        gym.utils.RecordConstructorArgs.__init__(self)
        gym.Wrapper.__init__(self, env)

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        try:
            with held_remarks():
                return require_reset(self.env, self.env.reset(**options))
        except Exception as error:
            if (other := blamed(self.env, "reset", error)) is not None:
                raise other from error
            raise

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        try:
            if self._stepped:
                return require_step(self.env, self.env.step(action))
            with held_remarks():
                self._stepped = True
                return require_step(self.env, self.env.step(action), within=True)
        except Exception as error:
            if (other := blamed(self.env, "step", error)) is not None:
                raise other from error
            raise

    def capture_state(self) -> dict[str, Any]:
        return capture_state(self)

    def restore_state(self, state: Mapping[str, Any]) -> None:
        restore_state(self, state)


# -- the layers -------------------------------------------------------------------------------------------------------


def _layers(env) -> tuple[list[Any], Any]:
    """Wrappers from the outermost to the innermost, and the environment inside, of whatever classes."""
    layers = []
    while isinstance(env, gym.Wrapper):
        layers.append(env)
        env = env.env
    if not (isinstance(env, MujocoEnv) or hasattr(env, "simulator_state")):
        raise ValueError(
            f"{type(env).__name__} is no Gymnasium MuJoCo environment; its state can't be captured unless it has the "
            "methods simulator_state and restore_simulator_state"
        )
    return layers, env


def _remembered(layer: Any) -> tuple[str, ...] | None:
    """Names of what a library's wrapper holds between steps; None where every attribute is taken."""
    known = PASSIVE.get(type(layer).__name__)
    return None if known is None or is_foreign(type(layer)) else known.remembers


def _with_attributes(layers: list[Any]) -> list[Any]:
    return [layer for layer in layers if _remembered(layer) is None]


def _references(layers: list[Any], base: Any) -> frozenset[int]:
    own = [getattr(base, key, None) for key in ("model", "data")]
    spaces = [space for one in (*layers, base) for space in _own_spaces(one).values()]
    return frozenset(map(id, [*layers, base, *own, *spaces, base._np_random])) - {id(None)}


def _model_state(model: mujoco.MjModel) -> dict[str, np.ndarray]:
    """Parameters of the model that an environment may change from episode to episode."""
    named = {key: getattr(model, key) for key in dir(model) if key.startswith(RANDOMISED)}
    options = {f"opt.{key}": getattr(model.opt, key) for key in dir(model.opt) if not key.startswith("_")}
    return {
        key: np.array(value) for key, value in (named | options).items() if isinstance(value, np.ndarray | int | float)
    }


def _restore_model(model: mujoco.MjModel, saved: Mapping[str, Any]) -> None:
    for key, value in saved.items():
        owner, name = (model.opt, key[4:]) if key.startswith("opt.") else (model, key)
        here = getattr(owner, name)
        if isinstance(here, np.ndarray):
            here[...] = np.asarray(value, here.dtype).reshape(here.shape)
        elif here != type(here)(value):
            setattr(owner, name, type(here)(value))


def _simulator_state(base: Any) -> dict:
    if not isinstance(base, MujocoEnv):
        return {"simulator": _plain(base.simulator_state())}
    return {
        "model": _model_state(base.model),
        "simulator": get_integration_state(base.model, base.data),
        "derived": get_derived(base.data),
    }


def _restore_simulator(base: Any, state: Mapping[str, Any]) -> None:
    if not isinstance(base, MujocoEnv):
        base.restore_simulator_state(_plain(state["simulator"]))
        return
    shape, needed = np.shape(state["simulator"]), get_integration_state(base.model, base.data).shape
    if shape != needed:
        raise ValueError(
            f"the simulator's state has shape {shape}, the model of {state['env_id']} has {needed}; use the same model"
        )
    _restore_model(base.model, state.get("model", {}))
    set_integration_state(base.model, base.data, np.array(state["simulator"], dtype=np.float64))
    set_derived(base.data, {name: np.asarray(value) for name, value in state["derived"].items()})


def _wrapper_state(layer: Any) -> dict:
    name = type(layer).__name__
    keys = _remembered(layer) or ()
    saved = {"type": name, "attributes": {key: _plain(getattr(layer, key)) for key in keys}}
    saved["random"] = {key: _bits(space.np_random) for key, space in _own_spaces(layer).items()}
    if name == "Monitor" and keys:
        saved["elapsed"] = time.time() - layer.t_start
    return saved


def _restore_wrapper(layer: Any, saved: dict) -> None:
    for key, value in saved["attributes"].items():
        setattr(layer, key, _plain(value))
    for key, space in _own_spaces(layer).items():
        space.np_random.bit_generator.state = _own_bits(saved["random"][key])
    if "elapsed" in saved:
        layer.t_start = time.time() - saved["elapsed"]
    if saved["type"] == "PassiveEnvChecker" and _remembered(layer) and layer.checked_reset:
        # It would compare the next step with one that is not kept; its checks were for the first run.
        layer.checked_step = layer.checked_data_reuse = True
        layer._previous_data = None


def _own_spaces(layer) -> dict[str, gym.Space]:
    """The spaces that a layer holds itself (a wrapper usually passes on those inside)."""
    keys = (
        ("_action_space", "_observation_space")
        if isinstance(layer, gym.Wrapper)
        else ("action_space", "observation_space")
    )
    spaces = {key: getattr(layer, key) for key in keys}
    return {key: space for key, space in spaces.items() if space is not None}


def _random_state(base: gym.Env) -> dict:
    bits = None if base._np_random is None else _bits(base._np_random)
    return {"env": bits} | {key: _bits(space.np_random) for key, space in _own_spaces(base).items()}


def _restore_random(base: gym.Env, saved: dict) -> None:
    if saved["env"] is None:
        base._np_random = None
    else:
        base.np_random.bit_generator.state = _own_bits(saved["env"])
    for key, space in _own_spaces(base).items():
        space.np_random.bit_generator.state = _own_bits(saved[key])


def _bits(generator: np.random.Generator) -> dict:
    """State of a bit generator; PCG64's 128-bit integers as strings, which every file format can hold."""
    return _map(generator.bit_generator.state, lambda x: {"int": str(x)} if type(x) is int and abs(x) >= 2**63 else x)


def _own_bits(saved: Any) -> Any:
    if not isinstance(saved, dict):
        return saved
    return int(saved["int"]) if set(saved) == {"int"} else {key: _own_bits(value) for key, value in saved.items()}


def _map(value, leaf):
    return {key: _map(x, leaf) for key, x in value.items()} if isinstance(value, dict) else leaf(value)


def _plain(value):
    """A copy of plain data."""
    if isinstance(value, dict):
        return {str(key): _plain(x) for key, x in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(x) for x in value]
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return value.copy()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise ValueError(f"{value!r} is no plain data and can't be kept with an environment's state")


# -- vectorised environments ------------------------------------------------------------------------------------------


def _is_vectorised(env: gym.Env | VecEnv) -> TypeGuard[VecEnv]:
    return hasattr(env, "num_envs") and hasattr(env, "env_method")


def _each(env, method: str, arguments: list[tuple]) -> list:
    """Call `capture_state` or `restore_state` on each environment of a `VecEnv`."""
    if hasattr(env, "venv"):
        raise ValueError(
            f"the state of the wrapper {type(env).__name__} is not captured with the environments; "
            "pass the VecEnv inside and save the wrapper beside it"
        )
    if hasattr(env, "envs"):
        return [globals()[method](single, *args) for single, args in zip(env.envs, arguments, strict=True)]
    try:
        return [env.env_method(method, *args, indices=i)[0] for i, args in enumerate(arguments)]
    except AttributeError:
        raise ValueError(
            "environments in other processes must have the Resumable wrapper; make them with rppdyn.envs.make_env"
        ) from None
