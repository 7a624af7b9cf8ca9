"""Episodes of agents in stable-baselines3 files, which have no records of their training, for a report and a figure."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

from gymnasium import spaces

from rppdyn.agents.equivariance import function_equivariance_error
from rppdyn.envs import dictionary_of, make_env, symmetry_spec, unflattening
from rppdyn.jobs.config.agent import EVALUATION_SEED
from rppdyn.jobs.config.checks import ConfigError
from rppdyn.jobs.measuring.loading import load_policy
from rppdyn.jobs.training.evaluation import Evaluator, policy_of

__all__ = ["FileAgent", "measure_files"]

EPISODES = 10
STATES = 512


@dataclass(frozen=True)
class FileAgent:
    """Episodes of the deterministic policy in a file, and its equivariance error at states of exploring ones.

    Attributes:
        errors: by generator of the environment's symmetry; empty where it has none.
        note: why there are none.
    """

    file: str
    env: str
    policy: str
    returns: list[float]
    lengths: list[int]
    errors: dict[str, float] = field(default_factory=dict)
    note: str = ""


def measure_files(files: list[str], env_id: str | None) -> list[FileAgent]:
    """Play episodes with each.

    Args:
        env_id: the environment; None for that of the policy's own symmetry, which an RPPPolicy has.
    Raises:
        ConfigError: a file is damaged, or its environment is not known, or another than it was made for.
    """
    return [_measured(file, env_id) for file in files]


def _measured(file: str, env_id: str | None) -> FileAgent:
    loaded = load_policy(file)
    env_id = env_id or getattr(getattr(loaded, "spec", None), "env_id", None)
    if env_id is None:
        raise ConfigError(f"{file}: give --env, the environment that it plays in")
    act, evaluator = policy_of(loaded), Evaluator(partial(make_env, env_id), EPISODES, EVALUATION_SEED)
    try:
        env = evaluator.envs[0]
        if (keys := dictionary_of(env)) is not None and not isinstance(loaded.observation_space, spaces.Box):
            of_keys, as_keys = act, unflattening(keys)
            act = lambda observations: of_keys(as_keys(observations))  # noqa: E731
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
