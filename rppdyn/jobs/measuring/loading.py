"""Policies, programs and functions that others have made, loaded from their files."""

from __future__ import annotations

import importlib
import inspect
import json
import pickle
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.running_mean_std import RunningMeanStd
from stable_baselines3.common.save_util import load_from_zip_file
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.vec_env import VecNormalize
from torch import Tensor, nn

from rppdyn.agents.export import pretrained_card, pretrained_env, pretrained_policy
from rppdyn.agents.measures import function_equivariance_error
from rppdyn.agents.policy import RPPPolicy
from rppdyn.envs import make_env, symmetry_spec
from rppdyn.envs.wrappers import dictionary_of, unflattening
from rppdyn.errors import modules_of, place_in_users_code, reason, search_modules
from rppdyn.jobs.config.agent import EVALUATION_SEED
from rppdyn.jobs.config.command import pretrained_name
from rppdyn.jobs.results import FileAgent
from rppdyn.jobs.training.evaluation import Evaluator, Policy, policy_of
from rppdyn.settings import ConfigError, did_you_mean

POLICY_KEYS = ("policy_class", "policy_kwargs", "observation_space", "action_space", "use_sde")
"""The entries that a policy is rebuilt from; the rest of a stable-baselines3 file stays unread."""


def load_policy(path: str, vecnormalize: str | None = None) -> BasePolicy:
    """The policy in a file that any algorithm of stable-baselines3 has saved, on the CPU.

    Only the policy's class, arguments and weights are read: no environment, replay buffer or schedule.

    Args:
        vecnormalize: file that `VecNormalize.save` wrote beside it; the policy then takes raw observations and normalises them
            first.
    Raises:
        ConfigError: a file is damaged or no such file, or needs a module that is not installed.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            keys = json.loads(archive.read("data"))
        ignored = {key: None for key in keys if key not in POLICY_KEYS}
        data, weights, _ = load_from_zip_file(path, device="cpu", custom_objects=ignored)
        if data is None:
            raise ValueError("it holds no data")
        policy_class, arguments = data["policy_class"], dict(data["policy_kwargs"] or {})
        arguments.pop("device", None)
        if "use_sde" in inspect.signature(policy_class).parameters:
            arguments.setdefault("use_sde", bool(data.get("use_sde")))
        policy = policy_class(data["observation_space"], data["action_space"], lambda _: 0.0, **arguments)
        policy.load_state_dict(weights["policy"])
    except FileNotFoundError:
        raise
    except Exception as error:  # whatever the archive's readers and the pickles in it raise
        raise ConfigError(
            f"{path} can't be loaded as a stable-baselines3 file ({reason(error)}): write it again with model.save"
        ) from error
    if vecnormalize is not None:
        _normalise_first(policy, vecnormalize)
    policy.set_training_mode(False)
    return policy


def load_pretrained(what: str) -> tuple[RPPPolicy, Callable[..., gymnasium.Env]]:
    """The policy of `pretrained:NAME`, and what makes its environment.

    Raises:
        ValueError: an unknown name, or a damaged file.
    """
    name = pretrained_name(what) or what
    return pretrained_policy(name), partial(pretrained_env, pretrained_card(name))


def takes_keys(policy: BasePolicy, env: gymnasium.Env) -> Policy | None:
    """A policy of dictionaries, of the vectors that an environment flattens its own to; None of any other."""
    keys = dictionary_of(env)
    if keys is None or isinstance(policy.observation_space, spaces.Box):
        return None
    of_keys, as_keys = policy_of(policy), unflattening(keys)
    return lambda observations: of_keys(as_keys(observations))


class _Normalised(nn.Module):
    """A features extractor behind the normalisation of `VecNormalize`."""

    mean: Tensor
    std: Tensor

    def __init__(self, extractor: nn.Module, statistics: RunningMeanStd, normalise: VecNormalize):
        super().__init__()
        self.extractor, self.clip = extractor, float(normalise.clip_obs)
        self.register_buffer("mean", torch.as_tensor(statistics.mean))
        self.register_buffer("std", torch.as_tensor(np.sqrt(statistics.var + normalise.epsilon)))

    def forward(self, obs: Tensor) -> Tensor:
        return self.extractor(((obs - self.mean) / self.std).clamp(-self.clip, self.clip).to(obs.dtype))


def _normalise_first(policy: BasePolicy, path: str) -> None:
    """Put the normalisation of a `VecNormalize` file before each of a policy's features extractors."""
    try:
        with open(path, "rb") as file:
            normalise = pickle.load(file)
    except FileNotFoundError as error:
        raise ConfigError(f"--vecnormalize {path}: there is no such file; give what VecNormalize.save wrote") from error
    except Exception as error:  # whatever unpickling raises
        raise ConfigError(
            f"--vecnormalize {path}: can't be read ({reason(error)}); give what VecNormalize.save wrote"
        ) from error
    if not isinstance(normalise, VecNormalize):
        raise ConfigError(f"--vecnormalize {path}: holds a {type(normalise).__name__}, not a VecNormalize")
    if hasattr(policy, "spec"):
        raise ConfigError(f"--vecnormalize {path}: a {type(policy).__name__} normalises by itself; leave it out")
    if not normalise.norm_obs:
        return
    statistics: object = normalise.obs_rms  # several, one for each key, where observations are dictionaries
    if not isinstance(statistics, RunningMeanStd) or statistics.mean.shape != policy.observation_space.shape:
        shape = statistics.mean.shape if isinstance(statistics, RunningMeanStd) else "several"
        raise ConfigError(
            f"--vecnormalize {path}: its observations have shape {shape}, the policy's {policy.observation_space.shape}; "
            "give the one that was saved with it"
        )
    wrapped: dict[nn.Module, _Normalised] = {}
    for module in list(policy.modules()):
        for name, child in module._modules.items():  # named_children leaves out the second name of a shared one
            if isinstance(child, BaseFeaturesExtractor):
                module._modules[name] = wrapped.setdefault(child, _Normalised(child, statistics, normalise))


def load_program(path: str) -> torch.export.ExportedProgram:
    """The program in a file that `torch.export.save` has written.

    Raises:
        ConfigError: the file is damaged or no such file.
    """
    try:
        if not zipfile.is_zipfile(path):  # the archive's reader would log a traceback of its own
            raise ValueError("no archive")
        return torch.export.load(path)
    except Exception as error:  # whatever the archive's readers and the pickles in it raise
        raise ConfigError(
            f"{path} can't be loaded as a torch.export program ({reason(error)}): write it again with torch.export.save"
        ) from error


def load_function(name: str) -> Callable[[Tensor], Tensor]:
    """The callable `module:function`; modules in the working folder are found, too.

    Raises:
        ConfigError: there is no such module or name, or it can't be called.
    """
    module_name, _, attribute = name.partition(":")
    with modules_of(Path.cwd()):
        search_modules()
        try:
            module = importlib.import_module(module_name)
        except ImportError as error:
            if place_in_users_code(error) is not None:
                raise
            raise ConfigError(f"{name}: {reason(error)}; give a module that can be imported from here") from error
    if not hasattr(module, attribute):
        public = [key for key in vars(module) if not key.startswith("_")]
        raise ConfigError(f"{name}: {module_name} has no {attribute!r}{did_you_mean(attribute, public)}")
    function = getattr(module, attribute)
    if not callable(function):
        raise ConfigError(f"{name} is of type {type(function).__name__}: give a function or a torch.nn.Module")
    return function.eval() if isinstance(function, nn.Module) else function


# -- what agents from files do -----------------------------------------------------------------------------------------

EPISODES = 10
STATES = 512


def measure_file(file: str, env_id: str | None) -> FileAgent:
    """Play episodes with the policy in a file.

    Args:
        env_id: the environment; None for that of the policy's own symmetry, which an RPPPolicy has.
    Raises:
        ConfigError: a file is damaged, or its environment is not known, or another than it was made for.
    """
    loaded = load_policy(file)
    env_id = env_id or getattr(getattr(loaded, "spec", None), "env_id", None)
    if env_id is None:
        raise ConfigError(f"{file}: give --env, the environment that it plays in")
    act, evaluator = policy_of(loaded), Evaluator(partial(make_env, env_id), EPISODES, EVALUATION_SEED)
    try:
        env = evaluator.envs[0]
        if (keys := takes_keys(loaded, env)) is not None:
            act = keys
        elif loaded.observation_space.shape != env.observation_space.shape:
            raise ConfigError(
                f"{file} takes observations of shape {loaded.observation_space.shape}, and {env_id} has "
                f"{env.observation_space.shape}: give the environment that it was made for"
            )
        episodes = evaluator.run(act)
        errors: dict[str, float] = {}
        note = ""
        try:
            spec = getattr(loaded, "spec", None) or symmetry_spec(env)
        except ValueError as error:
            note = str(error)
        else:
            states, _ = episodes.spread(STATES)
            result = function_equivariance_error(act, spec, states, getattr(env.action_space, "high", 1.0))
            errors = result.per_generator
    finally:
        evaluator.close()
    return FileAgent(
        file, env_id, type(loaded).__name__, episodes.returns.tolist(), episodes.lengths.tolist(), errors, note
    )
