"""Which environment data are of: its registration and options, written beside them and read back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec

from rppdyn.envs.making import ARGUMENTS, env_name

__all__ = ["described", "recreation"]

TRANSPARENT = ("Monitor", "RecordEpisodeStatistics", "Resumable")
"""Wrappers that change nothing of what is seen and done; data are the same without them."""


def recreation(spec: EnvSpec, name: str) -> tuple[str, dict[str, Any], dict[str, float]]:
    """What `rppdyn.envs.make_env` makes an environment of: its id, its options, and factors on the strength of actuators.

    An id that is not registered gets the module of its class before it, which `gymnasium.make` then imports.

    Args:
        name: whose spec it is, for messages.
    Raises:
        ValueError: nothing says where the environment is registered, or it is behind a wrapper that may change it.
    """
    registered = gym.registry.get(spec.id)
    if registered is None and not isinstance(spec.entry_point, str):
        raise ValueError(f"{name} is of {spec.id}, which is not registered: import the module that does it first")
    kwargs = {key: value for key, value in spec.kwargs.items() if key != "render_mode"}
    for key in ARGUMENTS:
        if key in kwargs:
            raise ValueError(
                f"{name} is of {spec.id} with {key}, which is no option of an environment; collect it again"
            )
    if registered is None or registered.max_episode_steps != spec.max_episode_steps:
        kwargs["max_episode_steps"] = -1 if spec.max_episode_steps is None else spec.max_episode_steps
    env_id = spec.id if registered else f"{str(spec.entry_point).partition(':')[0]}:{spec.id}"
    return env_id, kwargs, _actuator_scale(spec, name)


def described(env: gym.Env) -> EnvSpec:
    """An environment's spec as data are written with: without wrappers that only watch, and without a way of drawing.

    Raises:
        ValueError: it was not made by its id, has options that are no plain data, or is behind a wrapper that may change it.
    """
    if env.spec is None:
        raise ValueError(
            f"{env_name(env)} was not made by its id, so a dataset can't say what it is; gymnasium.register it"
        )
    _actuator_scale(env.spec, env.spec.id)  # refuses what could not be read again
    spec = replace(
        env.spec,
        additional_wrappers=tuple(w for w in env.spec.additional_wrappers if w.name not in TRANSPARENT),
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
        elif wrapper.name not in TRANSPARENT:
            raise ValueError(
                f"{name}: behind the wrapper {wrapper.name} it may be another environment: collect without it, or from an "
                "environment that is registered with it inside"
            )
    return scale
