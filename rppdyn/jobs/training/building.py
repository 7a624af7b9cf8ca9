"""The agent of a configuration, and the one of a run's folder, with the environment and the process state that it needs."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import torch
from gymnasium.envs.mujoco import MujocoEnv
from stable_baselines3.common.utils import LinearSchedule

from rppdyn.agents import RPPMBPO, RPPPPO, RPPSAC, Agent, defaults
from rppdyn.envs import SymmetrySpec, file_spec, make_env, plain_spec, symmetry_spec
from rppdyn.errors import place_in_users_code
from rppdyn.jobs.config import compose, notation
from rppdyn.jobs.config.agent import ImaginationConfig, ModelConfig, TrainAgentConfig
from rppdyn.jobs.config.devices import device_of
from rppdyn.jobs.training import agent_files
from rppdyn.jobs.training.rollouts import Evaluator
from rppdyn.runs import RunFolder
from rppdyn.runs.threads import torch_threads

logger = logging.getLogger(__name__)


def build_env(config: TrainAgentConfig, **options: Any) -> Any:
    """The configured environment, monitored and resumable, its spaces seeded (Gymnasium takes entropy from the system).

    Args:
        options: of `gymnasium.make`, beside the configured ones.
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
    if (stored := agent_files.load_spec(folder)) is not None:
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


def build_agent(config: TrainAgentConfig, env: Any, spec: SymmetrySpec, **options: Any) -> Agent:
    """The configured agent, untrained.

    Args:
        options: of the agent, beside the configured ones.
    """
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
    return _algorithm(agent.imagination)(
        "RPPPolicy",
        env,
        spec=spec,
        learning_rate=learning_rate,
        buffer_size=agent.buffer_size,
        learning_starts=agent.learning_starts,
        batch_size=agent.batch_size,
        tau=agent.tau,
        gamma=agent.gamma,
        train_freq=agent.train_freq,
        gradient_steps=agent.gradient_steps,
        target_entropy=agent.target_entropy,
        noise_variance=agent.noise_variance,
        max_gradient_norm=agent.max_gradient_norm,
        augment=agent.augment,
        mirror_loss=agent.mirror_loss,
        matmul_precision=agent.matmul_precision,
        compile=agent.compile,
        seed=config.seed,
        device=device,
        policy_kwargs=_networks(model) | _chain(model, spec) | dict(optimizer_kwargs=dict(betas=tuple(agent.betas))),
        **options,
    )


def _networks(model: ModelConfig) -> dict[str, Any]:
    """Arguments of policies that say what their networks are."""
    return dict(
        model=model.kind,
        hidden=model.hidden,
        num_layers=model.num_layers,
        equivariant_variance=model.equivariant_variance,
        free_variance=defaults.FREE_VARIANCE if model.groups else model.free,
        critic_equivariant_variance=model.critic_equivariant_variance,
        critic_free_variance=model.critic_free_variance,
        network_kwargs=_network(model),
    )


def _network(model: ModelConfig) -> dict[str, Any]:
    """Further arguments of the networks; the usual parametrisation goes without saying, as in older checkpoints."""
    options: dict[str, Any] = dict(architecture=model.architecture, bilinear=model.bilinear)
    if model.free_scale is not None:
        options["free_scale"] = model.free_scale
    if model.activation is not None:
        options["activation"] = model.activation
    return options if model.parametrisation == "pathways" else options | dict(parametrisation=model.parametrisation)


def _chain(model: ModelConfig, spec: SymmetrySpec) -> dict[str, Any]:
    """Arguments of a policy whose networks have a chain of groups; none without, as in older checkpoints."""
    if model.groups is None:
        return {}
    return dict(groups=notation.chain(model.groups, spec.group, spec.generator_names), variances=model.variances)


def _algorithm(imagination: ImaginationConfig | None) -> Callable[..., RPPSAC]:
    if imagination is None:
        return RPPSAC
    network = ("hidden", "num_layers", "equivariant_variance", "free_variance", "learning_rate")
    return partial(
        RPPMBPO,
        dynamics=imagination.kind,
        dynamics_kwargs={name: getattr(imagination, name) for name in network},
        members=imagination.members,
        model_every=imagination.every,
        model_steps=imagination.steps,
        model_batch_size=imagination.batch_size,
        rollouts=imagination.rollouts,
        rollout_length=imagination.length,
        kept_fits=imagination.kept_fits,
        real_ratio=imagination.real_ratio,
    )


@contextmanager
def agent_of(
    run: str, episodes: int, seed: int, *, whole: bool = False, trust: bool = False
) -> Iterator[tuple[Agent, str, Evaluator]]:
    """The agent of a run, or its policy alone, where its weights come from, and an evaluator to play episodes with.

    Args:
        trust: whether a module that the run names may be imported to make its environment.
    """
    folder = RunFolder.open(run)
    config = compose.from_run("train_agent", folder, trust=trust)
    if not torch.cuda.is_available():  # a run that was trained elsewhere can be looked at here
        config = replace(config, device="cpu")
    with process_state(config.threads):
        env = build_env(config)
        agent = build_agent(config, env, spec_of(config, folder, env))
        source = agent_files.load_policy(agent, folder, whole=whole)
        evaluator = Evaluator(partial(build_env, config), episodes, seed)
        try:
            yield agent, source, evaluator
        finally:
            evaluator.close()
            env.close()


@contextmanager
def process_state(threads: int | None, together: int = 1) -> Iterator[None]:
    """Torch's thread count and the global random states as the job needs them, put back afterwards.

    Stable-baselines3 seeds Python's, NumPy's and torch's global generators and draws from them.
    """
    with torch_threads(threads, together), agent_files.kept_random_state():
        yield
