"""Symmetry specs of environments and models. Tasks name their symmetries here; the action follows from the model.

No index or sign is written here. `rppdyn.envs.derivation` derives a model's symmetries, `rppdyn.envs.observation._action` their
action on the raw observation, and `rppdyn.envs.certify` tests them in the simulator.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import cache
from importlib import resources
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, Union

import gymnasium as gym
import mujoco
import numpy as np
from gymnasium.envs.mujoco import MujocoEnv

from rppdyn.envs._making import env_name, is_model_file, load_model, stock_env
from rppdyn.envs._mirror import entry_names, group_spec, mirror_spec, published_spec
from rppdyn.envs._model_symmetry import ModelSymmetry
from rppdyn.envs._simulator import quiet_mujoco
from rppdyn.envs._spec import Space, Symmetry, SymmetrySpec
from rppdyn.envs._state import keep_state
from rppdyn.envs._wrappers import acting_wrappers, flattened, refuse_vector_env, step_wrappers
from rppdyn.envs.certification._certificate import (
    RENDER_OPTIONS,
    certifiable_source,
    digests,
    find_certificate,
    find_or_derive,
    model_digest,
    spec_digest,
)
from rppdyn.envs.derivation import Derivation, derive, state_spaces, symmetry_group
from rppdyn.envs.observation._action import notes, space_of
from rppdyn.envs.observation._recognition import observation_of, recognise
from rppdyn.envs.terms._layout import CompiledTerms, compile_terms, read_terms
from rppdyn.envs.terms._robot import Pose
from rppdyn.errors import reading, reason

if TYPE_CHECKING:
    from stable_baselines3.common.vec_env import VecEnv

VARIANTS = ("derived", "published")

Choice = tuple[str, ...]
"""Names of the symmetries that generate a group."""

Source: TypeAlias = Union[str, Path, gym.Env, "VecEnv", mujoco.MjModel]
"""An environment's id, a model's file, an environment, stable-baselines3's `VecEnv`, or a model."""

SourcedSpec = tuple[SymmetrySpec, mujoco.MjModel | gym.Env | None]
"""(spec, model or environment whose verdicts may be known); None without a simulator, or if wrappers act on steps."""

_MIRROR_AND_YAW: Mapping[str, Choice] = {
    "left-right": ("left-right",), "yaw": ("yaw",), "both": ("left-right", "yaw"),
}  # fmt: skip

_TASKS: Mapping[str, Mapping[str, Choice]] = {
    "InvertedPendulum": {"left-right": ("left-right",)},
    "InvertedDoublePendulum": {"left-right": ("left-right",)},
    "Swimmer": {
        "left-right": ("left-right",), "planar rotation": ("planar rotation",), "both": ("left-right", "planar rotation"),
    },
    "Walker2d": {"leg swap": ("leg swap",)},
    "HalfCheetah": {"front-back": ("front-back",)},
    "Hopper": {"front-back": ("front-back",)},
    "Ant": {"D4": ("quarter turn", "left-right"), "Z4": ("quarter turn",), "left-right": ("left-right",), "yaw": ("yaw",)},
    "Humanoid": _MIRROR_AND_YAW,
    "HumanoidStandup": _MIRROR_AND_YAW,
    "Reacher": {"O(2)": ("left-right", "yaw"), "yaw": ("yaw",), "left-right": ("left-right",)},
    "Pusher": _MIRROR_AND_YAW,
}  # fmt: skip
"""Named choices of each of Gymnasium's tasks. The default comes first: the largest group that keeps the reward.

It is the default for the task's own model. For another model in the task (``xml_file=``) it is derived from that model.
"""

KNOWN_ENVIRONMENTS: tuple[str, ...] = tuple(f"{task}-v5" for task in _TASKS)
"""Gymnasium's MuJoCo tasks, whose choices are named; for others, choices are names of derived symmetries."""


def symmetry_spec(
    source: Source,
    *,
    symmetry: str | Sequence[str] | None = None,
    variant: str = "derived",
    observation: Any = None,
    action: Any = None,
    base: str = "",
    default_pose: Pose = None,
) -> SymmetrySpec:
    """The symmetry of an environment, as it acts on the raw observation and action.

    Args:
        source: an environment's id; an environment, wrapped or not; a stable-baselines3 `VecEnv`; an `mujoco.MjModel`; or the
            path of an MJCF or URDF file. A model is observed by its positions and velocities. An environment with a method
            `symmetry_spec` gives its own spec.
        symmetry: a named choice of the task ("D4"), or names of derived symmetries ("left-right", "quarter turn"; several as a
            sequence or joined by "+"). By default, a Gymnasium task has the largest group known to keep its reward. Any other
            source has the discrete symmetries from which no parameter of its model deviates.
        variant: "derived", or "published" for the representation of the residual-pathway papers, right or wrong.
        observation: terms of the observation of a model, or groups of terms by name (`rppdyn.envs.terms`), instead of
            positions and velocities.
        action: terms of the action; None for the model's controls, or for targets of all joints if it has no controls.
        base: the body of base velocities and scans; by default the one with a free joint.
        default_pose: pose to which positions of joints are relative: angles by joint, a list of angles in the model's order, or
            the name of a keyframe.
    Raises:
        ValueError: no such environment, file, symmetry or variant, or an observation that can't be explained.
    """
    if observation is not None:
        if variant != "derived":
            raise ValueError(f"variant={variant!r} is of Gymnasium's tasks only; leave it out with observation=")
        return compiled_terms(source, observation, action, symmetry=symmetry, base=base, default_pose=default_pose).spec
    if action is not None or base or default_pose is not None:
        raise ValueError("action=, base= and default_pose= belong to observation=, a list of terms; give that too")
    if variant not in VARIANTS:
        raise ValueError(f"variant={variant!r} is unknown; use {' or '.join(map(repr, VARIANTS))}")
    names = _join_names(symmetry)
    with open_source(source) as (system, name):
        return _with_verdicts(*_spec_of_system(system, name, names, variant))


def open_source(source: Source) -> AbstractContextManager[tuple[Any, str]]:
    """Open a source as (model or environment, name); of a `VecEnv` the first environment.

    An environment that is made here is closed at the end of the context.

    Raises:
        ValueError: no such environment or file, or another type.
    """
    refuse_vector_env(source)
    if isinstance(source, Path) or (isinstance(source, str) and is_model_file(source)):
        return nullcontext((load_model(source), Path(source).stem))
    if isinstance(source, mujoco.MjModel):
        return nullcontext((source, "model"))
    if isinstance(source, str):  # made here: a generator can't pass on a user's StopIteration
        return _with_name(closing(stock_env(source, disable_env_checker=True)))
    if hasattr(source, "get_attr") and hasattr(source, "num_envs"):
        return _with_name(single_environment(source))
    if hasattr(source, "unwrapped"):
        return nullcontext((source, env_name(source)))
    raise ValueError(f"{type(source).__name__} is no environment id, environment, model or model file; pass one")


@contextmanager
def _with_name(opened: AbstractContextManager[Any]) -> Iterator[tuple[Any, str]]:
    with opened as env:
        yield env, env_name(env)


def compiled_terms(
    source: Source,
    observation: Any,
    action: Any = None,
    *,
    symmetry: str | Sequence[str] | None = None,
    base: str = "",
    default_pose: Pose = None,
) -> CompiledTerms:
    """Compile a list of terms for a model: its spec, and functions that compute the observation from the simulator's state.

    Arguments and errors are those of `symmetry_spec`.
    """
    with open_source(source) as (system, name):
        model = system if isinstance(system, mujoco.MjModel) else getattr(system.unwrapped, "model", None)
    if not isinstance(model, mujoco.MjModel):
        raise ValueError(f"terms are of a MuJoCo model: give one, its file or a MuJoCo environment, not {source!r}")
    derivation = derive(model)
    choice = _choose({}, derivation, _join_names(symmetry), name)
    return compile_terms(model, derivation, choice, observation, action, base, default_pose, name)


def _join_names(names: Any) -> str | None:
    """Join the names of several symmetries by "+"."""
    if names is None or isinstance(names, str):
        return names
    if not isinstance(names, Sequence) or not names or not all(isinstance(name, str) for name in names):
        raise ValueError(f"symmetry={names!r}: give a name, or a list of names, or leave it out")
    return "+".join(names)


def terms_spec(env: gym.Env, path: str | Path, *, symmetry: str | Sequence[str] | None = None) -> SymmetrySpec:
    """The spec of a MuJoCo environment whose observation is the list of terms in a YAML file.

    Groups of the observation follow each other. `certify` tests whether the environment observes what the file lists.

    Args:
        env: the environment, wrapped or not.
        path: path of the file, see `rppdyn.envs.terms.read_terms`.
        symmetry: as in `symmetry_spec`; overrides the file's.
    Raises:
        ValueError: the file can't be used, or its observation or action has another size than the environment's.
    """
    terms = read_terms(path)
    if symmetry is not None:
        terms["symmetry"] = symmetry
    try:
        spec = compiled_terms(env, **terms).spec
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    _require_fit(env, spec, f"{path} lists", ": list the terms that it consists of, in its order")
    return _with_verdicts(spec, certifiable_source(env))


def _require_fit(env: gym.Env, spec: SymmetrySpec, what: str, remedy: str = "") -> None:
    """Refuse a spec whose observation or action has another size than the environment's."""
    spaces = ("observation", env.observation_space, spec.obs.dim), ("action", env.action_space, spec.action.dim)
    for key, space, dim in spaces:
        if space.shape != (dim,):
            raise ValueError(f"{what} {dim} entries of {key}, and {env_name(env)} has {space.shape or space}{remedy}")


MIRROR_KEYS = ("obs_permutation", "obs_signs", "action_permutation", "action_signs")


def file_spec(env: str | gym.Env, path: str | Path, *, symmetry: str | Sequence[str] | None = None) -> SymmetrySpec:
    """Read the spec of any environment from a user's file.

    Args:
        env: an environment or its id; dictionaries are flattened.
        path: JSON of `SymmetrySpec.to_dict`, such as a run's `spec.json`; YAML with the lists of
            :func:`rppdyn.envs.mirror_spec`, or with ``group`` and the spaces of :func:`rppdyn.envs.group_spec`; or YAML with
            terms, for an environment with a MuJoCo model (:func:`terms_spec`).
        symmetry: as in `symmetry_spec`, for terms only.
    Raises:
        ValueError: the file can't be used, or its observations or actions have another size than the environment's.
    """
    if isinstance(env, str):
        with open_source(env) as (made, _):
            return file_spec(made, path, symmetry=symmetry)
    if isinstance(env, mujoco.MjModel):
        raise ValueError(
            f"{path} is of an environment's observation, and a model has none; give an environment, "
            "or list a model's terms in symmetry_spec(model, observation=...)"
        )
    env, file = flattened(env), Path(path)
    if not file.is_file() or not file.stat().st_size:
        return terms_spec(env, path, symmetry=symmetry)  # raises the error for a missing file
    arguments: dict[str, Any] | None = None
    if file.suffix != ".json":
        with reading(path, "give JSON of SymmetrySpec.to_dict, or YAML"):
            arguments = _parse_mirror(file.read_text(encoding="utf-8"))
        if arguments is None and hasattr(env.unwrapped, "model"):
            return terms_spec(env, path, symmetry=symmetry)
        if arguments is None:
            raise ValueError(
                f"{path}: {env_name(env)} has no MuJoCo model that terms could be of; give the lists {', '.join(MIRROR_KEYS)} "
                "of a mirror image, or group, obs and action (rppdyn.envs.group_spec), or JSON of SymmetrySpec.to_dict"
            )
    if symmetry is not None:
        raise ValueError(f"symmetry={symmetry!r} with {path}, which is one symmetry: leave one out")
    if arguments is None:
        spec = replace(read_spec(path), env_id=env_name(env))
    else:
        make: Callable[..., SymmetrySpec] = group_spec if "group" in arguments else mirror_spec
        if unknown := [key for key in arguments if key not in (known := list(signature(make).parameters)[1:])]:
            raise ValueError(f"{path}: unknown {', '.join(map(str, unknown))}; known: {', '.join(known)}")
        try:
            spec = make(env_name(env), **({**entry_names(env), **arguments}))
        except Exception as error:  # a user's file may cause any
            raise ValueError(f"{path}: {reason(error)}") from error
    _require_fit(env, spec, f"{path} is of")
    return spec


def read_spec(path: str | Path) -> SymmetrySpec:
    """Read the spec in a JSON file: a run's `spec.json`, or the `symmetry.json` beside a policy.

    Raises:
        ValueError: there is no such file, it holds something else, or it was changed after it was written.
    """
    with reading(path, "give a symmetry.json of rppdyn export, or JSON of SymmetrySpec.to_dict"):
        return SymmetrySpec.from_dict(json.loads(Path(path).read_text(encoding="utf-8"))).check()


def _parse_mirror(text: str) -> dict[str, Any] | None:
    """Arguments of `mirror_spec` or `group_spec` in a YAML text; None if it holds something else."""
    from omegaconf import OmegaConf  # as terms are read
    from yaml import YAMLError

    try:
        content: Any = OmegaConf.to_container(OmegaConf.create(text)) if text.strip() else None
    except YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from error
    return content if isinstance(content, dict) and {*MIRROR_KEYS, "group"} & set(content) else None


def symmetry_specs(source: Source) -> tuple[list[SymmetrySpec], list[str]]:
    """The default spec, if there is one, then a spec for each other derived symmetry, exact or approximate.

    Gymnasium's tasks, and environments that give their own spec, have the default one alone.

    Returns:
        (specs, a line on each symmetry without a spec).
    Raises:
        ValueError: no such environment or file, no symmetry, or none that acts on the observation.
    """
    with open_source(source) as (system, name):
        if not isinstance(system, mujoco.MjModel) and (hasattr(system.unwrapped, "symmetry_spec") or _is_stock(system)):
            return [_with_verdicts(*_spec_of_system(system, name, None, "derived"))], []
        derivation = derive(_model_of(system))
        default = _exact_symmetries(derivation)
        choices = ["+".join(default)] if default else []
        choices += [name for name in derivation.names if name not in default]
        if not choices:
            raise ValueError(_no_symmetry_message(name, derivation))
        specs, refused = [], [derivation.hint.removeprefix("; ")] if derivation.unpaired else []
        for choice in choices:
            try:
                specs.append(_with_verdicts(*_spec_of_system(system, name, choice, "derived")))
            except ValueError as error:
                refused.append(str(error) if choice in str(error) else f"{choice}: {error}")
                # If the default group has no spec, try its symmetries one by one.
                choices += default if choice not in derivation.names else ()
    if not specs:
        raise ValueError(refused[-1])
    return specs, refused


def _no_symmetry_message(name: str, derivation: Derivation) -> str:
    return (
        f"no symmetry of {name} was found: no mirror image, turn or exchange of limbs carries its bodies and joints onto "
        f"one another{derivation.hint}; one that you know is described by hand with rppdyn.envs.mirror_spec"
    )


def symmetry_choices(source: Source) -> dict[str, Choice]:
    """Choices of a task's symmetries by name, the default first; for other models, each derived symmetry alone.

    Raises:
        ValueError: no such environment or file, or one without a MuJoCo model.
    """
    if isinstance(source, str) and (choices := _TASKS.get(_task_name(source))):
        return dict(choices)
    with open_source(source) as (system, name):
        if isinstance(system, mujoco.MjModel):
            choices = None
        elif _is_stock(system):
            choices = _TASKS[_task_name(name)]
        else:
            choices = getattr(system.unwrapped, "symmetry_choices", None)
        return dict(choices) if choices else {key: (key,) for key in derive(_model_of(system)).names}


def _spec_of_system(system: Any, name: str, symmetry: str | None, variant: str) -> SourcedSpec:
    """The spec of a model or an environment."""
    is_model = isinstance(system, mujoco.MjModel)
    is_stock = not is_model and _is_stock(system)
    if variant == "published" and not is_stock:
        raise ValueError(f"variant='published' is of the models of Gymnasium's tasks only; leave it out for {name}")
    if not is_model and hasattr(system.unwrapped, "symmetry_spec"):
        spec = system.unwrapped.symmetry_spec(symmetry)
        remedy = " behind its wrappers: take them off, or pass a spec of your own as spec="
        _require_fit(system, spec, f"the symmetry of {name} acts on", remedy)
        return spec, certifiable_source(system)
    model = _model_of(system)
    if variant == "published" and symmetry is not None:
        raise ValueError(f"{name}: symmetry={symmetry!r} with variant='published', one symmetry; leave one out")
    if not is_model and (shape := system.unwrapped.action_space.shape) != (model.nu,):
        raise ValueError(
            f"{name} takes actions of shape {shape}, and its model {model.nu} controls: how actions transform is unknown; give "
            "a spec of your own, made with rppdyn.envs.mirror_spec or group_spec (on the command line env.spec=FILE)"
        )

    def build() -> SymmetrySpec:
        derivation, own = derive(model), {} if is_model else getattr(system.unwrapped, "symmetry_choices", {})
        named = own or ({} if is_model else _TASKS.get(_task_name(name), {}))
        choice = _choose(named, derivation, symmetry, name, next(iter(named.values())) if own or is_stock else ())
        chosen = [derivation[key] for key in choice]
        with nullcontext() if is_model else keep_state(system.unwrapped):  # it is reset
            if is_model:
                data = mujoco.MjData(model)
                observation = recognise(model, data, lambda: np.concatenate([data.qpos, data.qvel]), name=name)
            else:
                observation = observation_of(system)
            obs = space_of(observation, chosen)
            spec = _build(name, model, chosen, obs, notes(observation, chosen, obs))
        return published_spec(spec, _task_name(name)) if variant == "published" else spec

    if is_model:
        return find_or_derive(model, (name, symmetry), build), model
    spec = find_or_derive(system, (name, symmetry, variant, is_stock, system.observation_space.shape), build)
    # Wrappers that only map observations are a part of the spec.
    return spec, None if step_wrappers(system) else system.unwrapped


def _model_of(system: Any) -> mujoco.MjModel:
    if isinstance(system, mujoco.MjModel):
        return system
    if not isinstance(system.unwrapped, MujocoEnv):
        raise ValueError(
            f"no symmetry spec for {env_name(system)}: it is no Gymnasium MuJoCo environment to derive one from, and offers "
            "none; give it a method symmetry_spec(symmetry), or pass spec=, made with rppdyn.envs.mirror_spec or group_spec "
            "(on the command line env.spec=FILE, or model=mlp for none)"
        )
    return system.unwrapped.model


@contextmanager
def single_environment(env: Any) -> Iterator[gym.Env]:
    """The first environment of a VecEnv; for one in another process, a copy made from its registration.

    Raises:
        ValueError: it has no registration, or a wrapper that can't be made again.
    """
    if hasattr(env, "envs"):
        yield env.envs[0]
        return
    registered = env.get_attr("spec", indices=[0])[0]
    if registered is None:
        raise ValueError(f"{env} has environments without an id to find their symmetry by; pass spec=")
    registered = copy.copy(registered)
    # stable-baselines3's `Monitor` can't be made from its spec, and changes neither observations nor actions.
    monitor = "stable_baselines3.common.monitor:Monitor"
    registered.additional_wrappers = tuple(w for w in registered.additional_wrappers if w.entry_point != monitor)
    for wrapper in registered.additional_wrappers:
        if wrapper.kwargs is None:
            raise ValueError(
                f"the environments are in other processes, and their wrapper {wrapper.name} can't be made again here to find "
                "their symmetry: derive it from gymnasium.utils.RecordConstructorArgs, or pass spec="
            )
    with closing(gym.make(registered, disable_env_checker=True)) as single:
        yield single


def _choose(
    choices: Mapping[str, Choice], derivation: Derivation, symmetry: str | None, name: str, default: Choice = ()
) -> Choice:
    """Names of the chosen symmetries.

    Args:
        symmetry: name of a choice, or names of symmetries joined by "+"; None for the default, or else all exact discrete ones.
    """
    choices = {key: names for key, names in choices.items() if set(names) <= set(derivation.names)}
    if symmetry is not None:
        if symmetry in choices:
            return choices[symmetry]
        parts = [part.strip() for part in symmetry.split("+")]
        if unknown := [part for part in parts if part not in derivation.names]:
            known = ", ".join(dict.fromkeys([*choices, *derivation.names])) or "none"
            raise ValueError(
                f"{name} has no symmetry {unknown[0]!r}; known: {known} (several are joined by +){derivation.hint}"
            )
        return tuple(sorted(parts, key=derivation.names.index))
    if default in choices.values():
        return default
    if exact := _exact_symmetries(derivation):
        return exact
    if not derivation.symmetries:
        raise ValueError(_no_symmetry_message(name, derivation))
    first = derivation.symmetries[0]
    deviation_text = f" ({first.name}: {first.deviations[0]})" if first.deviations else ""
    raise ValueError(
        f"no exact discrete symmetry of {name} to take by default{deviation_text}: choose one by symmetry= (on the "
        f"command line env.symmetry=, for certify --symmetry), of {', '.join(derivation.names)}; `rppdyn certify` says how "
        "far each is off"
    )


def _exact_symmetries(derivation: Derivation) -> Choice:
    """Names of the discrete symmetries from which no parameter of the model deviates."""
    return tuple(s.name for s in derivation.symmetries if not s.is_continuous and not s.deviations)


def _build(name: str, model, chosen: list[ModelSymmetry], obs: Space, remarks: tuple[str, ...]) -> SymmetrySpec:
    spaces: dict[str, Any] = state_spaces(model, chosen)
    if "action" not in spaces:
        raise ValueError(
            f"the model of {name} has no actuator, so there is no action for a symmetry to act on; add actuators to "
            "its file, or list the terms of the action (symmetry_spec(..., observation=, action=))"
        )
    symmetries = tuple(
        Symmetry(s.name, note=" ".join((*(f"{deviation}." for deviation in s.deviations[:3]), *remarks)))
        for s in chosen
    )
    return SymmetrySpec(name, symmetry_group(chosen), obs=obs, symmetries=symmetries, **spaces)


def verdict_key(model: str, spec: SymmetrySpec) -> str:
    """Key of a spec's verdicts in the package's `verdicts.json`, from the model's digest and the spec's."""
    return f"{model[:24]}-{spec_digest(spec)[:24]}"


def _with_verdicts(spec: SymmetrySpec, source: mujoco.MjModel | gym.Env | None) -> SymmetrySpec:
    """The spec with the verdicts of its stored certificate, or of `verdicts.json` for stock models and tasks."""
    if source is None:
        return spec
    certificate = find_certificate(source, spec)
    if certificate is not None:
        reports = [(g.name, g.dynamics_verdict, g.keeps_reward) for g in certificate.generators]
    elif isinstance(source, mujoco.MjModel) or _has_stock_dynamics(source):
        reports = _shipped_verdicts().get(verdict_key(digests(source)[0], spec), [])
    else:
        return spec
    verdicts = {name: (verdict, reward) for name, verdict, reward in reports}
    symmetries = (
        Symmetry(s.name, *verdicts.get(s.name, (s.verdict, s.reward_symmetric)), s.note) for s in spec.symmetries
    )
    return replace(spec, symmetries=tuple(symmetries))


def _has_stock_dynamics(env: gym.Env) -> bool:
    """Check for one of Gymnasium's tasks, version 5, whose options only concern model file, observation and rendering."""
    base: Any = env.unwrapped
    options = {} if base.spec is None else base.spec.kwargs
    neutral = {"xml_file", *RENDER_OPTIONS}
    return (
        type(base).__module__.startswith("gymnasium.")
        and base.spec is not None
        and base.spec.id in KNOWN_ENVIRONMENTS
        and not acting_wrappers(env)
        and all(key in neutral or key.startswith(("include_", "exclude_")) for key in options)
    )


@cache
def _shipped_verdicts() -> dict[str, list]:
    return json.loads(resources.files("rppdyn.envs").joinpath("verdicts.json").read_text(encoding="utf-8"))


def _task_name(env_id: str) -> str:
    """Name of a Gymnasium task without its version, "" for another environment."""
    task, _, version = env_id.rpartition("-v")
    return task if version in ("4", "5") else ""


def _is_stock(env) -> bool:
    """Check for one of Gymnasium's tasks whose file compiles to the task's own model.

    Later changes of the model, such as an actuator's strength, don't count: the task's symmetries are then approximate.
    """
    known, path = _stock_models(_task_name(env_name(env))), getattr(env.unwrapped, "fullpath", None)
    return bool(known) and path is not None and _file_digest(path) in known


def _file_digest(path: Any) -> str:
    with quiet_mujoco(), suppress(ValueError):  # the file is gone
        return model_digest(mujoco.MjModel.from_xml_path(str(path)))
    return ""


@cache
def _stock_models(task: str) -> frozenset[str]:
    """Digests of Gymnasium's models for a task, in all versions."""
    if task not in _TASKS:
        return frozenset()
    files = resources.files("gymnasium.envs.mujoco").joinpath("assets").iterdir()
    assets = (f for f in files if f.name.removesuffix(".xml").removesuffix("_v5").replace("_", "") == task.lower())
    return frozenset(map(_file_digest, assets))
