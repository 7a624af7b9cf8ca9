"""Make environments for experiments: with weakened actuators, monitored and resumable, and from datasets; load models."""

from __future__ import annotations

import math
import os
import re
import traceback
from collections.abc import Mapping
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from numbers import Integral
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import gymnasium as gym
import mujoco
import numpy as np
from gymnasium.envs.mujoco import MujocoEnv
from gymnasium.envs.registration import EnvSpec

from rppdyn.envs._model_symmetry import JOINT_TRANSMISSIONS
from rppdyn.envs._state import Resumable
from rppdyn.envs._wrappers import (
    PASSIVE,
    ReturnedError,
    delay_warnings,
    flattened,
    raise_naming_method,
    require_reset,
)
from rppdyn.errors import UserError, place_in_users_code, reason, require_trust, search_modules
from rppdyn.runs.files import require_memory

ARGUMENTS = ("env_id", "actuator_scale", "monitor", "named_by")
"""Arguments of `make_env` itself, whose names no option of an environment may have."""

TESTED_VERSIONS = {
    "gymnasium_robotics": "gymnasium-robotics 1.4.2 runs on mujoco 3.3.7 and 3.8.0, and only its mazes and Adroit on 4.0.0",
    "dm_control": "dm_control 1.0.50 runs on mujoco 3.17.0, through shimmy 2.0.1",
}
"""Versions that were tested, by package; docs/jobs/your-environment.md has the table."""

MOTORISED_JOINTS = (mujoco.mjtJoint.mjJNT_HINGE, mujoco.mjtJoint.mjJNT_SLIDE)
"""Joints of a URDF file that get a motor."""


class ScaledActuators(gym.Wrapper, gym.utils.RecordConstructorArgs):
    """Multiplies the strength (gear) of named actuators; observation, action space and time step stay as they are.

    Args:
        env: a MuJoCo environment.
        scale: factors by name of an actuator, or of a joint for all actuators that drive it. A name of both is the actuator's.
    Raises:
        ValueError: an unknown actuator, or a factor that is negative or not finite.
    """

    def __init__(self, env: gym.Env, scale: Mapping[str, float]):
        scale = {str(name): float(factor) for name, factor in scale.items()}
        gym.utils.RecordConstructorArgs.__init__(self, scale=scale)
        gym.Wrapper.__init__(self, env)
        model = self._model()
        names = _actuators_by_name(model)
        for name, factor in scale.items():
            if name not in names:
                raise ValueError(f"no actuator {name!r} in {env_name(env)}; it has {', '.join(dict.fromkeys(names))}")
            if not (math.isfinite(factor) and factor >= 0):
                raise ValueError(f"actuator_scale of {name!r} is {factor}; it must be finite and not negative")
        self.scale = scale
        chosen = [(i, factor) for name, factor in scale.items() for i in names[name]]
        self._gear = {i: model.actuator(i).gear * factor for i, factor in chosen}
        if len(self._gear) < len(chosen):
            raise ValueError(f"actuator_scale {scale} names one actuator twice; use its name or its joint, not both")
        self._apply()

    def _model(self) -> mujoco.MjModel:
        base = self.env.unwrapped
        if not isinstance(base, MujocoEnv):
            raise ValueError(f"{env_name(self.env)} is no Gymnasium MuJoCo environment; it has no actuators to scale")
        return base.model

    def _apply(self) -> None:
        model = self._model()
        for i, gear in self._gear.items():
            model.actuator(i).gear[:] = gear

    def __setstate__(self, state: dict) -> None:
        # Gymnasium's environments are pickled by their constructor's arguments, so a copy has the stock model.
        self.__dict__.update(state)
        self._apply()


def make_env(
    env_id: str,
    *,
    actuator_scale: Mapping[str, float] | None = None,
    monitor: bool = True,
    named_by: str | Path | None = None,
    **options: Any,
) -> gym.Env:
    """Make an environment whose state can be captured, also inside a `SubprocVecEnv` (pass `functools.partial(make_env, ...)`).

    Dictionaries of observations are flattened (:func:`rppdyn.envs._wrappers.flattened`).

    Args:
        env_id: a registered environment.
        actuator_scale: factor on the strength of actuators, for instance ``{"leg_joint": 0.5}``.
        monitor: count episodes with stable-baselines3's `Monitor`.
        named_by: a file, if only this file names the environment; no module is then imported by name.
        options: the environment's own options, passed to `gymnasium.make`.
    Raises:
        ValueError: an unknown environment, option or actuator, or dictionaries with images inside.
        UntrustedError: only a file names a module, see `rppdyn.errors.require_trust`.
    """
    env = stock_env(env_id, named_by=named_by, **options)
    if actuator_scale:
        env = ScaledActuators(env, actuator_scale)
    try:
        env = flattened(env)
    except ValueError as error:
        env.close()
        raise ValueError(f"{env_id}: {error}") from error
    if monitor:
        from stable_baselines3.common.monitor import Monitor

        env = Monitor(env)
    return Resumable(env)


@delay_warnings()
def stock_env(env_id: str, *, named_by: str | Path | None = None, **options: Any) -> gym.Env:
    """Call `gymnasium.make`, with errors of one line.

    Args:
        named_by: as in `make_env`.
    Raises:
        ValueError: the environment, its module ("module:EnvId") or an option of it is unknown, or it can't be made or reset
            with these options.
    """
    if named_by is not None:
        require_trust(env_id, named_by, options)
    if os.path.isfile(model := str(options.get("xml_file", ""))):
        require_model_fits(model)
    if ":" in env_id:
        search_modules()
    settings = {name: value for name, value in options.items() if name != "disable_env_checker"}  # Gymnasium's option
    suffix = " with " + ", ".join(f"{name}={value}" for name, value in settings.items()) if settings else ""
    try:
        env = gym.make(env_id, **options)
        if settings or ":" in env_id:  # some wrong options only show here
            try:
                require_reset(env, env.reset())
            except BaseException as error:
                env.close()
                raise_naming_method(env, "reset", error)
    except gym.error.UnregisteredEnv as error:
        raise ValueError(f"unknown environment {env_id!r}: {reason(error)} (see gymnasium.pprint_registry())") from None
    except ModuleNotFoundError as error:
        if place_in_users_code(error) is not None:
            raise
        raise ValueError(
            f"{env_id}: {error}; the part before the colon is a module to import: run in its folder, or set PYTHONPATH"
        ) from None
    except (ImportError, TypeError, gym.error.Error) as error:
        if place_in_users_code(error) is not None and not settings:
            raise
        raise ValueError(f"{env_id} can't be made{suffix}: {reason(error)}") from error
    except ReturnedError:
        raise
    except Exception as error:
        if advice := version_advice(error):
            raise ValueError(f"{env_id} can't be made: {advice}") from error
        if not settings and place_in_users_code(error) is not None:
            raise
        raise ValueError(f"{env_id} can't be made or reset{suffix}: {reason(error)}") from error
    frames = getattr(env.unwrapped, "frame_skip", 1)
    if not isinstance(frames, Integral) or frames < 1:
        env.close()
        raise ValueError(f"{env_id} can't be made{suffix}: frame_skip={frames} must be an integer, at least 1")
    return env


def is_model_file(name: str | Path) -> bool:
    """Check whether a name is that of an MJCF or URDF file, and not of an environment."""
    return Path(name).suffix.lower() in (".xml", ".mjcf", ".urdf")


def load_model(path: str | Path) -> mujoco.MjModel:
    """Compile the model of an MJCF or URDF file, with errors of one line.

    A URDF file names no actuators. Each of its hinges and slides gets a motor, limited by the joint's effort, or an equality
    constraint if it mimics another joint.

    Raises:
        ValueError: there is no such file, MuJoCo can't compile it, or a joint mimics one that can't be followed.
    """
    if not Path(path).is_file():
        raise ValueError(f"there is no model file {str(path)!r}; give the path of an MJCF or URDF file")
    require_model_fits(path)
    try:
        if Path(path).suffix.lower() != ".urdf":
            compiled = mujoco.MjModel.from_xml_path(str(path))
        else:
            model = mujoco.MjSpec.from_file(str(path))
            _add_motors(model, _add_mimics(model, path))
            compiled = model.compile()
    except UserError:
        raise
    except Exception as error:  # MuJoCo's error types included
        remedy = "; write paths of meshes relative to the file, not package://NAME/" if "package:" in str(error) else ""
        raise ValueError(f"MuJoCo can't compile {path}: {' '.join(str(error).split())}{remedy}") from None
    for name in FINITE_ARRAYS:
        if not np.isfinite(getattr(compiled, name)).all():
            raise ValueError(f"{path}: {name} of the compiled model is not finite; look for nan in the file")
    return compiled


FINITE_ARRAYS = (
    "qpos0", "body_pos", "body_quat", "body_ipos", "body_iquat", "body_mass", "body_inertia", "jnt_pos", "jnt_axis",
    "jnt_range", "dof_armature", "dof_damping", "geom_pos", "geom_quat", "geom_size", "actuator_gear",
)  # fmt: skip
"""Arrays of a compiled model that must be finite."""


def _add_mimics(model: mujoco.MjSpec, path: str | Path) -> set[str]:
    """Add equality constraints for the mimic joints of a URDF file that MuJoCo left out; return the mimic joints' names."""
    followers = {}
    for joint in ElementTree.parse(path).getroot().iter("joint"):
        if (mimic := joint.find("mimic")) is not None and joint.get("type") != "fixed":
            followers[joint.get("name", "")] = mimic
    moving = {joint.name: joint for joint in model.joints if joint.type in MOTORISED_JOINTS}
    present = {equality.name1 for equality in model.equalities if equality.type == mujoco.mjtEq.mjEQ_JOINT}
    for name, mimic in followers.items():
        leader = mimic.get("joint", "")
        chain = {name}
        while leader in followers and leader not in chain:  # a follower may have followers
            chain.add(leader)
            leader = followers[leader].get("joint", "")
        if leader in chain or leader not in moving or name not in moving:
            raise UserError(
                f"{path}: the joint {name} mimics {mimic.get('joint', '')!r}, which is no other joint that turns or slides by "
                "itself: name one that does, or take <mimic> out"
            )
        if name not in present:  # before MuJoCo 4
            offset, multiplier = float(mimic.get("offset", 0)), float(mimic.get("multiplier", 1))
            equality = model.add_equality(type=mujoco.mjtEq.mjEQ_JOINT, name1=name, name2=mimic.get("joint"))
            equality.objtype = mujoco.mjtObj.mjOBJ_JOINT
            equality.data[:2] = offset, multiplier
    return set(followers)


def _add_motors(model: mujoco.MjSpec, followers: set[str]) -> None:
    for joint in model.joints:
        if joint.type in MOTORISED_JOINTS and joint.name not in followers:
            limited = joint.actfrcrange[0] < joint.actfrcrange[1]
            motor = model.add_actuator(
                name=joint.name, target=joint.name, trntype=mujoco.mjtTrn.mjTRN_JOINT, ctrllimited=limited
            )
            motor.set_to_motor()
            motor.ctrlrange = joint.actfrcrange


def _actuators_by_name(model) -> dict[str, list[int]]:
    """Indices of actuators by joint, all that drive it, and by their own names, which come before those of joints."""
    by_joint: dict[str, list[int]] = {}
    actuators = range(len(model.actuator_trntype))  # `nu` is the number of controls
    for i in actuators:
        if model.actuator_trntype[i] in JOINT_TRANSMISSIONS:
            by_joint.setdefault(model.joint(int(model.actuator_trnid[i, 0])).name, []).append(i)
    return by_joint | {name: [i] for i in actuators if (name := model.actuator(i).name)}


def version_advice(error: BaseException) -> str:
    """One line for an error raised in a package of `TESTED_VERSIONS`; "" for any other error."""
    files = [frame.f_code.co_filename.replace("\\", "/") for frame, _ in traceback.walk_tb(error.__traceback__)]
    for package, tested in TESTED_VERSIONS.items():
        if any(f"/{package}/" in file for file in files[-3:]):
            name = package.replace("gymnasium_robotics", "gymnasium-robotics")
            message = " ".join(str(error).split())[:160] or "an assertion of its own"
            versions = f"{name} {_version(name)} fails on mujoco {mujoco.__version__}"
            return f"{versions} ({type(error).__name__}: {message}); {tested}: install versions that go together"
    return ""


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "of unknown version"


def env_name(env: gym.Env) -> str:
    """The id under which an environment was registered, or the name of its class."""
    return env.spec.id if env.spec is not None else type(env.unwrapped).__name__


# -- environments of datasets --------------------------------------------------------------------------------------------


def _is_transparent(name: str) -> bool:
    return name in PASSIVE and PASSIVE[name].is_transparent


def make_env_arguments(spec: EnvSpec, name: str) -> tuple[str, dict[str, Any], dict[str, float]]:
    """Arguments of `rppdyn.envs.make_env` for the environment of a spec: (id, options, actuator_scale).

    An unregistered id is prefixed by the module of its class, so that `gymnasium.make` imports it.

    Args:
        name: name of the dataset, for messages.
    Raises:
        ValueError: the environment is not registered and its module not known, or a wrapper may change it.
    """
    registered = gym.registry.get(spec.id)
    if registered is None and not isinstance(spec.entry_point, str):
        raise ValueError(f"{name} is of {spec.id}, which is not registered: import the module that does it first")
    kwargs = {key: value for key, value in spec.kwargs.items() if key != "render_mode"}
    for key in ARGUMENTS:
        if key in kwargs:
            raise ValueError(f"{name} is of {spec.id} with {key}, no option of an environment; collect it again")
    if registered is None or registered.max_episode_steps != spec.max_episode_steps:
        kwargs["max_episode_steps"] = -1 if spec.max_episode_steps is None else spec.max_episode_steps
    env_id = spec.id if registered else f"{str(spec.entry_point).partition(':')[0]}:{spec.id}"
    return env_id, kwargs, _actuator_scale(spec, name)


def dataset_env_spec(env: gym.Env) -> EnvSpec:
    """An environment's spec for a dataset: without transparent wrappers and without a render mode.

    Raises:
        ValueError: it was not made by its id, an option is no plain data, or a wrapper may change it.
    """
    if env.spec is None:
        raise ValueError(f"{env_name(env)} was not made by its id, so data can't say what it is; gymnasium.register it")
    _actuator_scale(env.spec, env.spec.id)  # refuses wrappers that `make_env_arguments` would refuse
    spec = replace(
        env.spec,
        additional_wrappers=tuple(w for w in env.spec.additional_wrappers if not _is_transparent(w.name)),
        kwargs={key: value for key, value in env.spec.kwargs.items() if key != "render_mode"},
    )
    try:
        spec.to_json()
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{spec.id} can't be written to a dataset ({error}): register it by a string, entry_point='module:Class', with "
            "numbers, texts and lists as options"
        ) from error
    return spec


def _actuator_scale(spec: EnvSpec, name: str) -> dict[str, float]:
    scale: dict[str, float] = {}
    for wrapper in spec.additional_wrappers:
        if wrapper.name == "ScaledActuators":
            for actuator, factor in (wrapper.kwargs or {}).get("scale", {}).items():
                scale[actuator] = scale.get(actuator, 1.0) * factor
        elif not _is_transparent(wrapper.name) and wrapper.name != "FlattenObservation":  # make_env adds that itself
            raise ValueError(
                f"{name}: behind the wrapper {wrapper.name} it may be another environment: collect without it, or from an "
                "environment that is registered with it inside"
            )
    return scale


# -- size of model files: MuJoCo allocates whatever they declare, and would exhaust the machine's memory ------------------


MAX_ELEMENTS = 100_000
"""Most elements of a model, copies included, that MuJoCo compiles in seconds."""
ELEMENT_BYTES = 10_000  # memory per element
TAG_PATTERN = re.compile(r"""<(/?)([\w:]+)((?:"[^"]*"|'[^']*'|[^<>"'])*)>""")
ATTRIBUTE_PATTERN = re.compile(r"""([\w:]+)\s*=\s*(?:"([^"]*)"|'([^']*)')""")
NAME_ATTRIBUTES = (
    "name", "class", "childclass", "joint", "body", "geom", "site", "tendon", "target", "objname", "material", "mesh", "model",
    "texture", "prefix", "file",
)  # fmt: skip
"""Attributes of tags whose values are names."""
BYTE_UNITS = {unit: 1024**power for power, unit in enumerate("KMGTPE", 1)}


def require_model_fits(path: str | Path) -> None:
    """Refuse a model file that declares more than fits in memory, more than `MAX_ELEMENTS` elements, or nan.

    Raises:
        UserError: it does.
    """
    elements, size = _count_declared(Path(path), [])
    if elements > MAX_ELEMENTS:
        raise UserError(
            f"{path} declares {elements:.3g} elements, with the copies of its replications; {MAX_ELEMENTS} are compiled in "
            "seconds: give smaller counts"
        )
    require_memory(str(path), elements * ELEMENT_BYTES + size, "declare smaller fields, textures, arenas, counts")


def _count_declared(path: Path, parents: list[Path]) -> tuple[float, float]:
    """(elements, bytes declared in addition) of a file and the files that it includes."""
    if path in parents or len(parents) > 20 or not path.is_file():
        return 0.0, 0.0  # MuJoCo refuses it
    text = re.sub(r"<!--.*?-->", "", path.read_bytes().decode("utf-8", "replace"), flags=re.S)
    elements, size, copies = 0.0, 0.0, [1.0]
    for closing, tag, inside in TAG_PATTERN.findall(text):
        if closing:
            if tag == "replicate" and len(copies) > 1:
                copies.pop()
            continue
        attributes = {name: double or single for name, double, single in ATTRIBUTE_PATTERN.findall(inside)}
        for name, value in attributes.items():  # MuJoCo accepts nan, and writes a log file beside the model
            parts = value.lower().split()
            if {"nan", "-nan"} & set(parts) and (len(parts) > 1 or name not in NAME_ATTRIBUTES):
                raise UserError(f"{path}: {name}={value!r} of <{tag}> is no number: write one, or leave it out")
        count = math.prod(max(_number(part), 1.0) for part in attributes.get("count", "1").split())
        elements += copies[-1] * count
        if tag == "replicate" and not inside.rstrip().endswith("/"):
            copies.append(copies[-1] * count)
        size += 8 * _number(attributes.get("nrow", "")) * _number(attributes.get("ncol", ""))
        width = _number(attributes.get("width", "")) if tag == "texture" else 0.0
        size += 6 * 4 * width * max(_number(attributes.get("height", "")), width)
        if tag == "size":
            size += sum(8 * _number(value) if name != "memory" else _bytes(value) for name, value in attributes.items())
        if tag in ("include", "model") and "file" in attributes:
            included = _count_declared(path.parent / attributes["file"], [*parents, path])
            elements, size = elements + copies[-1] * included[0], size + copies[-1] * included[1]
    return elements, size


def _number(text: str) -> float:
    try:
        value = abs(float(text))
    except ValueError:
        return 0.0
    return value if math.isfinite(value) else 1e300


def _bytes(text: str) -> float:
    text = text.strip().upper()
    return _number(text[:-1]) * BYTE_UNITS[text[-1]] if text[-1:] in BYTE_UNITS else _number(text)
