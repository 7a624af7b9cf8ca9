"""Load what a command measures or plays: runs of agents and of fits, policies, programs and functions."""

from __future__ import annotations

import importlib
import inspect
import json
import pickle
import zipfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

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

from rppdyn.agents._export import onnx_policy, pretrained_card, pretrained_env, pretrained_policy, torch_policy
from rppdyn.agents._measures import function_equivariance_error
from rppdyn.envs import SymmetrySpec, make_env, symmetry_spec
from rppdyn.envs._wrappers import dictionary_of, unflattening
from rppdyn.errors import modules_of, place_in_users_code, reading, reason, search_modules
from rppdyn.jobs.building import Evaluator, Policy, add_noise, agent_of, policy_of
from rppdyn.jobs.config import compose
from rppdyn.jobs.config.base import refuse
from rppdyn.jobs.config.command import POLICIES, PRETRAINED, SUBJECTS, EvaluateAgentConfig, pretrained_name
from rppdyn.jobs.results import FileAgent
from rppdyn.runs import RunFolder, RunFolderError
from rppdyn.settings import ConfigError, did_you_mean

FITS = {
    "fit_regression": "Regression",
    "fit_dynamics": "Dynamics",
    "fit_trajectories": "RecordingsFit",
    "fit_transition": "Transition",
    "fit_image": "ImageFit",
}
"""Class of each kind of fit, by the name of its module."""
ERROR_TOLERANCE = 0.01  # relative; test errors of one function differ far less between machines

POLICY_KEYS = ("policy_class", "policy_kwargs", "observation_space", "action_space", "use_sde")
"""Entries of a stable-baselines3 file from which a policy is rebuilt; the others stay unread."""


@dataclass(frozen=True)
class Loaded:
    """An agent, a policy or a callable.

    Attributes:
        source: its weights or code, in words.
        policy: policy of stable-baselines3.
        call: function of tensors.
        act: deterministic policy of arrays, if there is no policy of stable-baselines3.
        evaluator: make an evaluator of its episodes; None without an environment.
        spec: its symmetry, if it has one.
    """

    source: str
    policy: Any = None
    call: Callable[[Tensor], Tensor] | None = None
    act: Policy | None = None
    evaluator: Callable[[], Evaluator] | None = None
    spec: SymmetrySpec | None = None

    def acting_in(self, env: gymnasium.Env) -> Policy:
        """The deterministic policy, of flattened observations even if it takes dictionaries."""
        if self.act is not None:
            return self.act
        act, keys = policy_of(self.policy), dictionary_of(env)
        if keys is None or isinstance(self.policy.observation_space, spaces.Box):
            return act
        as_keys = unflattening(keys)
        return lambda observations: act(as_keys(observations))


@contextmanager
def load(config: Any, episodes: int) -> Iterator[Loaded]:
    """Load the object named by a command's ``config.what`` or ``config.run``, of the kind ``config.kind``; no fit.

    Args:
        config: settings of the command; ``env``, ``seed``, ``trust`` and ``vecnormalize`` are read if it has them.
        episodes: number of episodes that the evaluator plays.
    """
    target, env_id = getattr(config, "what", None) or config.run, getattr(config, "env", None)
    if config.kind == "run":
        refuse({"--env": env_id}, "a run brings its environment; leave it out")
        with agent_of(target, episodes, config.seed, trust=config.trust) as (agent, source, its_evaluator):
            yield Loaded(source, agent.policy, evaluator=lambda: its_evaluator, spec=agent.spec)
        return
    make: Any = None
    source, call, act = config.kind, None, None
    policy: Any = None
    if config.kind == PRETRAINED:
        name = pretrained_name(target) or target
        policy, make = pretrained_policy(name), partial(pretrained_env, pretrained_card(name))
    elif config.kind == SUBJECTS[".zip"]:
        policy = load_policy(target, config.vecnormalize)
        source = f"{type(policy).__module__.split('.')[0]}'s {type(policy).__name__}"
    elif config.kind == "function":
        call, source = load_function(target), "a function"
    elif config.kind == POLICIES[".onnx"]:
        act = onnx_policy(target)
    else:
        program = load_program(target)
        call, act, source = program.module(), torch_policy(program), "an exported program"
    spec = getattr(policy, "spec", None)
    if make is None and spec is not None:
        env_id = env_id or spec.env_id
    if env_id is not None:
        make = partial(make_env, env_id)
    evaluator = None if make is None else lambda: Evaluator(make, episodes, config.seed)
    yield Loaded(source, policy, call, act, evaluator=evaluator, spec=spec)


@contextmanager
def load_player(config: EvaluateAgentConfig) -> Iterator[tuple[Loaded, Policy, Evaluator]]:
    """Load an agent, its deterministic policy, and an evaluator of its episodes.

    Raises:
        ConfigError: there is no environment to play in, or the agent is for another one.
    """
    missing = f"{config.run}: give --env, the environment that it plays in"
    if config.env is None and config.kind in (POLICIES[".onnx"], POLICIES[".pt2"]):
        raise ConfigError(missing)
    with load(config, config.episodes) as loaded:
        if loaded.evaluator is None:
            raise ConfigError(missing)
        with closing(loaded.evaluator()) as evaluator:
            env, space = evaluator.envs[0], evaluator.envs[0].observation_space
            act = loaded.acting_in(env)
            try:
                if config.kind != "run":
                    act(np.zeros((config.episodes, *(space.shape or ())), dtype=space.dtype))
            except Exception as error:  # whatever its runtime raises
                name = config.env or (env.spec.id if env.spec else type(env.unwrapped).__name__)
                raise ConfigError(
                    f"{config.run} takes no observations of {name}, {space.shape}: give the environment that it was made for"
                ) from error
            yield loaded, act, evaluator


def load_fit(folder: RunFolder, *, trust: bool = False, verify: bool = True) -> Any:
    """Load the fit of a finished run, on the CPU.

    Args:
        trust: whether a module that a dataset names may be imported to make its environment.
        verify: refuse members whose test errors differ from the stored ones, as after a change of a layer.
    Raises:
        RunFolderError, CheckpointError: the run is unfinished, its files are damaged, or of another version.
        ConfigError: a run of another kind.
    """
    name = compose.name_of_run(folder)
    config = compose.from_run(name, folder)
    if name not in FITS:
        raise ConfigError(f"{folder.path} is a run of {config.verb}: it has no model to predict with")
    fit = getattr(importlib.import_module(f"rppdyn.jobs.{name}"), FITS[name]).load(config, folder, trust=trust)
    if verify and name != "fit_image":
        result = folder.result() or {}
        errors, stored = (np.array(m["test/error"], dtype=float) for m in (fit.evaluate(), result["metrics"]))
        if not np.allclose(errors, stored, rtol=ERROR_TOLERANCE, atol=0, equal_nan=True):
            commit = str(result.get("provenance", {}).get("commit") or "unknown")[:10]
            raise RunFolderError(
                f"{folder.path}: its members have other test errors than when they were fitted, by another version of this "
                f"package (commit {commit}); use that one, or fit again with another run_dir="
            )
    return fit


def load_policy(path: str, vecnormalize: str | None = None) -> BasePolicy:
    """Load a policy from a file of any stable-baselines3 algorithm, on the CPU; none that has a memory.

    Only the policy's class, arguments and weights are read: no environment, replay buffer or schedule.

    Args:
        vecnormalize: file of `VecNormalize.save`; the policy then takes raw observations and normalises them first.
    Raises:
        UserError: a file is damaged or no such file, needs a module that is not installed, or holds a policy with a memory.
    """
    with reading(path, "write it again with model.save", "as a stable-baselines3 file"):
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
    if len(inspect.signature(policy._predict).parameters) > 2:
        raise ConfigError(
            f"{path}: {type(policy).__name__} keeps a memory between steps, and only policies of one state are played and "
            "measured here; stable-baselines3's evaluate_policy plays it"
        )
    if vecnormalize is not None:
        _normalise_first(policy, vecnormalize)
    policy.set_training_mode(False)
    return policy


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
    """Insert the normalisation of a `VecNormalize` file before each features extractor of a policy."""
    with reading(f"--vecnormalize {path}", "give what VecNormalize.save wrote"), open(path, "rb") as file:
        normalise = pickle.load(file)
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
    """Load a program from a file of `torch.export.save`.

    Raises:
        UserError: the file is damaged or of another kind.
    """
    with reading(path, "write it again with torch.export.save", "as a torch.export program"):
        if not zipfile.is_zipfile(path):  # the archive's reader would log a traceback of its own
            raise ValueError("no archive")
        return torch.export.load(path)


def load_function(name: str) -> Callable[[Tensor], Tensor]:
    """Import the callable `module:function`, also from the working folder.

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


# -- agents from files -------------------------------------------------------------------------------------------------

FILE_STATES = 512
"""Number of states at which the equivariance error of an agent from a file is measured."""


def measure_file(file: str, env_id: str | None) -> FileAgent:
    """Play episodes with the policy in a file.

    Args:
        env_id: the environment; None for the one in the symmetry spec of an RPPPolicy.
    """
    config = EvaluateAgentConfig(run=file, env=env_id, trust=True)
    with load_player(config) as (loaded, act, evaluator):
        env: Any = evaluator.envs[0]
        episodes, note = evaluator.run(act), ""
        errors: dict[str, float] = {}
        overall: float | None = None
        try:
            spec = loaded.spec or symmetry_spec(env)
        except ValueError as error:
            note = str(error)
        else:
            if isinstance(getattr(loaded.policy, "observation_space", None), spaces.Box):
                exploring = evaluator.explore(loaded.policy)  # as runs are, and by `rppdyn equivariance`
            else:  # a policy that takes dictionaries
                exploring = evaluator.run(add_noise(act, env.action_space, config.seed))
            states, _ = exploring.spread(FILE_STATES)
            result = function_equivariance_error(act, spec, states, getattr(env.action_space, "high", 1.0))
            if result.vacuous:
                note = "vacuous: the actions are all but zero"
            elif result.per_generator:
                errors, overall = result.per_generator, result.error
        name, policy = env_id or env.spec.id, type(loaded.policy).__name__
    return FileAgent(file, name, policy, episodes.returns.tolist(), episodes.lengths.tolist(), errors, overall, note)
