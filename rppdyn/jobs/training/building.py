"""The agent of a run: built from its configuration, with its environment and its symmetry; kept in its folder, and loaded."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from gymnasium.envs.mujoco import MujocoEnv
from stable_baselines3.common.utils import LinearSchedule

from rppdyn.agents import RPPPPO, RPPSAC, Agent, RPPCrossQ
from rppdyn.agents.buffers import RowReplayBuffer
from rppdyn.agents.policy import FREE_VARIANCE
from rppdyn.envs import SymmetrySpec, certified_share, file_spec, make_env, symmetry_spec
from rppdyn.envs.mirror import plain_spec
from rppdyn.errors import place_in_users_code
from rppdyn.jobs.config import notation
from rppdyn.jobs.config.agent import SAC_ONLY, ModelConfig, TrainAgentConfig
from rppdyn.jobs.config.base import CERTIFIED, ConfigError, device_of
from rppdyn.jobs.results import final_policy
from rppdyn.priors import free_variance
from rppdyn.runs import CheckpointError, RunFolder, RunFolderError
from rppdyn.runs.files import load_tensors, replacing, write_json, write_tensors
from rppdyn.runs.ownership import staying_own
from rppdyn.runs.workers import kept_random_state, torch_threads

logger = logging.getLogger(__name__)


def build_env(config: TrainAgentConfig, **options: Any) -> Any:
    """The configured environment, monitored and resumable, its spaces seeded (Gymnasium takes entropy from the system).

    Args:
        options: options of `gymnasium.make`, beside the configured ones.
    """
    scale = config.env.actuator_scale or None
    env = make_env(config.env.id, actuator_scale=scale, named_by=config.env.named_by, **(config.env.kwargs | options))
    env.observation_space.seed(config.seed)
    env.action_space.seed(config.seed)
    return env


def spec_of(config: TrainAgentConfig, folder: RunFolder, env: Any) -> SymmetrySpec:
    """The symmetry that a run was begun with, and that its networks fit; for a new run that of its environment.

    Of an environment from which none can be derived, and which says none itself, a plain network has none.

    Raises:
        ValueError: the environment has no such symmetry, or none that can be derived.
        RunFolderError: the run's own is damaged.
    """
    if (stored := load_spec(folder)) is not None:
        return stored
    if config.env.spec is not None:
        return file_spec(env, config.env.spec, symmetry=config.env.symmetry)
    needs_none = config.model.kind == "mlp" and not (config.agent.augment or config.agent.mirror_loss)
    needs_none = needs_none and config.env.symmetry is None and config.env.variant == "derived"
    if needs_none and not (isinstance(env.unwrapped, MujocoEnv) or hasattr(env.unwrapped, "symmetry_spec")):
        return plain_spec(env)
    try:
        return symmetry_spec(env, symmetry=config.env.symmetry, variant=config.env.variant)
    except ValueError as error:
        if not needs_none or place_in_users_code(error) is not None:
            raise
        logger.warning("%s; the plain network does without", error)
        return plain_spec(env)


def build_agent(config: TrainAgentConfig, env: Any, spec: SymmetrySpec) -> Agent:
    """The configured agent, untrained."""
    model, agent = config.model, config.agent
    device = device_of(config.device)
    learning_rate: float | LinearSchedule = agent.learning_rate
    if agent.learning_rate_end is not None:
        learning_rate = LinearSchedule(agent.learning_rate, agent.learning_rate_end, 1.0)
    if agent.ppo is not None:
        return RPPPPO(
            "RPPPolicy",
            env,
            spec=spec,
            learning_rate=learning_rate,
            batch_size=agent.batch_size,
            gamma=agent.gamma,
            max_grad_norm=math.inf if agent.max_gradient_norm is None else agent.max_gradient_norm,
            **asdict(agent.ppo),
            seed=config.seed,
            device=device,
            policy_kwargs=_networks(model) | dict(optimizer_kwargs=dict(betas=tuple(agent.betas), eps=1e-5)),
        )
    networks = _networks(model) | _chain(model, spec) | dict(optimizer_kwargs=dict(betas=tuple(agent.betas)))
    kind, own = RPPSAC, {name: getattr(agent, name) for name in SAC_ONLY}
    if agent.crossq is not None:
        kind, own = RPPCrossQ, own | asdict(agent.crossq)
        del own["tau"]
        networks["normalisation"] = own.pop("normalisation")
    built = kind(
        "RPPPolicy",
        env,
        spec=spec,
        learning_rate=learning_rate,
        batch_size=agent.batch_size,
        gamma=agent.gamma,
        **own,
        max_gradient_norm=agent.max_gradient_norm,
        seed=config.seed,
        device=device,
        policy_kwargs=networks,
    )
    if isinstance(built.replay_buffer, RowReplayBuffer):
        _ = built.replay_buffer.rows  # whose memory is taken, or found wanting, before the run has a folder
    return built


def _networks(model: ModelConfig) -> dict[str, Any]:
    """Arguments of policies that say what their networks are."""
    same = (
        "hidden",
        "critic_hidden",
        "num_layers",
        "equivariant_variance",
        "critic_equivariant_variance",
        "critic_free_variance",
    )
    free = FREE_VARIANCE if model.groups else model.free
    arguments = {name: getattr(model, name) for name in same}
    return (
        dict(model=model.kind, free_variance=free, network_kwargs=_network(model), critic_hidden=model.critic_hidden)
        | arguments
    )


def _network(model: ModelConfig) -> dict[str, Any]:
    """Further arguments of the networks."""
    options: dict[str, Any] = dict(architecture=model.architecture, bilinear=model.bilinear)
    if model.free_scale is not None:
        options["free_scale"] = model.free_scale
    if model.activation is not None:
        options["activation"] = model.activation
    return options


def _chain(model: ModelConfig, spec: SymmetrySpec) -> dict[str, Any]:
    """Arguments of a policy whose networks have a chain of groups; none without, as in older checkpoints."""
    if model.groups is None:
        return {}
    return dict(groups=notation.chain(model.groups, spec.group, spec.generator_names), variances=model.variances)


@contextmanager
def process_state(threads: int | None) -> Iterator[None]:
    """Torch's thread count and the global random states as the job needs them, put back afterwards.

    Stable-baselines3 seeds Python's, NumPy's and torch's global generators and draws from them.
    """
    with torch_threads(threads), kept_random_state():
        yield


def certify_variance(model: Any, folder: RunFolder, env: Any, spec: SymmetrySpec, inputs: int, *, reward: bool) -> None:
    """Set `certified_variance` of a model's configuration: as the run has it, else from the environment's certificate.

    Args:
        model: configuration of the networks; left alone where the variance is not certified.
        folder: folder of the run, or where it will be.
        inputs: number of inputs of the layer with the most, see :func:`rppdyn.priors.free_variance`.
        reward: whether networks learn rewards or values.
    Raises:
        ConfigError: the environment's symmetry can't be certified.
    """
    if model.free_variance != CERTIFIED:
        return
    if folder.config_file.is_file():
        model.certified_variance = folder.config().get("model", {}).get("certified_variance")
    if model.certified_variance is not None:
        return
    try:
        found = certified_share(env, spec, reward=reward)
        model.certified_variance = free_variance(found.share, model.equivariant_variance, inputs)
    except ValueError as error:
        raise ConfigError(f"model.free_variance={CERTIFIED}: {error}") from error
    number = f"model.free_variance={CERTIFIED} is {model.certified_variance:.3g}"
    if found.share == 0:
        logger.warning("%s: %s is %s, networks are strict", number, spec.env_id, found.note)
    elif found.verdict == "broken":
        logger.warning("%s, wide: the symmetry of %s is %s; model=mlp does without it", number, spec.env_id, found.note)
    else:
        share = f"the prior allows the free pathway {100 * found.share:.2g} % of the squared weights"
        logger.warning("%s: %s is %s, %s", number, spec.env_id, found.note, share)


# -- its files ---------------------------------------------------------------------------------------------------------

AGENT = "agent.pt"
SPEC = "spec.json"


def capture_into(agent: Agent, checkpoint: Path) -> None:
    """Write what an exact continuation needs of an agent: model, optimisers, replay buffer, random states, simulator."""
    torch.save(agent.capture(), checkpoint / AGENT)


def restore_from(agent: Agent, checkpoint: Path) -> None:
    """Put an agent where a checkpoint left it.

    Raises:
        CheckpointError: the file is damaged.
        ValueError: the checkpoint is of another agent.
    """
    agent.restore(load_tensors(checkpoint / AGENT))


def save_model(agent: Agent, folder: RunFolder) -> None:
    """The final agent, twice: `policy.pt`, tensors that this package loads, and stable-baselines3's `model.zip`.

    The second is for `RPPSAC.load`; stable-baselines3 writes parts of it as pickles, so load it from people you trust.
    """
    write_tensors(folder.policy_file, agent.policy.state_dict())
    with replacing(folder.model_file) as path:
        agent.save(path)


def save_spec(folder: RunFolder, spec: SymmetrySpec) -> None:
    """The symmetry that a run's networks were built for, in `spec.json`."""
    with staying_own(folder.path):
        write_json(folder.path / SPEC, spec.to_dict())


def load_spec(folder: RunFolder) -> SymmetrySpec | None:
    """The symmetry that a run's networks were built for; None where it was not written yet.

    Raises:
        RunFolderError: the file is damaged, or of another version.
    """
    path = folder.path / SPEC
    if not path.is_file():
        return None
    try:
        return SymmetrySpec.from_dict(json.loads(path.read_text(encoding="utf-8")))
    except Exception as error:  # it may be anything
        raise RunFolderError(f"{path} can't be read ({error}): delete it, and the symmetry is derived anew") from error


def load_policy(agent: Agent, folder: RunFolder) -> str:
    """Give an agent the weights of a run: those of its end, or else of its last checkpoint; says which.

    Raises:
        RunFolderError: the run has neither yet, or the file is damaged.
        CheckpointError: none of the checkpoints can be read.
    """
    if folder.result() is not None and folder.policy_file.is_file():
        weights = _load(folder.policy_file)
        try:
            agent.policy.load_state_dict(weights)
        except (RuntimeError, KeyError, TypeError, ValueError) as error:
            raise RunFolderError(
                f"{folder.policy_file} is of another network than config.yaml says; delete {folder.result_file} and write it "
                f"again with rppdyn train-agent --resume {folder.path}"
            ) from error
        return final_policy(folder.result() or {})
    return f"policy of the checkpoint at step {load_checkpoint(agent, folder)}"


def load_checkpoint(agent: Agent, folder: RunFolder) -> int:
    """Give an agent all that a run's last checkpoint holds, its replay buffer included; its step. The run stays as it is.

    Raises:
        RunFolderError: the run has none yet.
        CheckpointError: none of the checkpoints can be read.
    """
    checkpoint = folder.checkpoints.latest()
    if checkpoint is not None:
        restore_from(agent, checkpoint.path)
        return checkpoint.step
    if folder.result() is not None:
        raise RunFolderError(
            f"{folder.path} is finished and has neither {folder.policy_file.name} nor a checkpoint: train it again with "
            "another run_dir="
        )
    raise RunFolderError(
        f"{folder.path} has no policy yet: let the run go on with rppdyn train-agent --resume {folder.path}"
    )


def _load(path: Path) -> Any:
    try:
        return load_tensors(path)
    except CheckpointError as error:
        raise RunFolderError(
            f"{path} is damaged: delete {path.parent / 'result.json'} and write it again "
            f"with rppdyn train-agent --resume {path.parent}"
        ) from error
