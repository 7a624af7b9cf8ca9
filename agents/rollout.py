"""Transitions collected step by step, so that a caller may find actions for, and wait for, several agents at once."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.noise import ActionNoise
from stable_baselines3.common.type_aliases import RolloutReturn, TrainFreq, TrainFrequencyUnit
from stable_baselines3.common.utils import should_collect_more_steps
from stable_baselines3.common.vec_env import VecEnv

from rppdyn.agents.refusals import check_actions_chosen

if TYPE_CHECKING:
    from rppdyn.agents.algorithm import RPPSAC

Steps = Generator[NDArray | None, NDArray | None, RolloutReturn]
"""Yields observations where it is to be sent the policy's actions for them, and None while the environment steps."""


def rollout(
    agent: RPPSAC,
    env: VecEnv,
    callback: BaseCallback,
    train_freq: TrainFreq,
    replay_buffer: ReplayBuffer,
    action_noise: ActionNoise | None = None,
    learning_starts: int = 0,
    log_interval: int | None = None,
) -> Steps:
    """As `RPPSAC.collect_rollouts`, but leaves it to the caller when to wait, and how actions are found."""
    agent.policy.set_training_mode(False)
    if train_freq.frequency <= 0:
        raise ValueError(f"train_freq={train_freq.frequency} must be at least 1")
    if env.num_envs > 1 and train_freq.unit != TrainFrequencyUnit.STEP:
        raise ValueError("train_freq in episodes needs a single environment; give it in steps")
    callback.on_rollout_start()
    while should_collect_more_steps(train_freq, agent._collected_steps, agent._collected_episodes):
        if agent.num_timesteps < learning_starts:
            chosen = np.array([agent.action_space.sample() for _ in range(env.num_envs)])
        elif (sent := (yield agent._last_obs)) is None:
            raise ValueError("a rollout was sent None for its observations; send it the policy's actions")
        else:
            chosen = sent
        buffer_actions = agent.policy.scale_action(chosen)
        if action_noise is not None:
            buffer_actions = np.clip(buffer_actions + action_noise(), -1, 1)
        check_actions_chosen(agent, buffer_actions)
        actions = agent.policy.unscale_action(buffer_actions)
        env.step_async(actions)
        yield None
        new_obs, rewards, dones, infos = env.step_wait()
        agent.num_timesteps += env.num_envs
        agent._collected_steps += 1
        agent._update_info_buffer(infos, dones)
        agent._store_transition(replay_buffer, buffer_actions, new_obs, rewards, dones, infos)
        agent._update_current_progress_remaining(agent.num_timesteps, agent._total_timesteps)
        agent._on_step()
        for index in np.flatnonzero(dones):
            agent._collected_episodes += 1
            agent._episode_num += 1
            if action_noise is not None:
                action_noise.reset(**({"indices": [index]} if env.num_envs > 1 else {}))
            if log_interval is not None and agent._episode_num % log_interval == 0:
                agent.dump_logs()
        callback.update_locals(
            locals()
            | {
                "num_collected_steps": agent._collected_steps,
                "num_collected_episodes": agent._collected_episodes,
                "continue_training": True,
            }
        )
        if not callback.on_step():
            return RolloutReturn(agent._collected_steps * env.num_envs, agent._collected_episodes, False)
    callback.on_rollout_end()
    collected = RolloutReturn(agent._collected_steps * env.num_envs, agent._collected_episodes, True)
    agent._collected_steps = agent._collected_episodes = 0
    return collected
