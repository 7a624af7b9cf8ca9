"""RPPSAC: stable-baselines3's SAC with relaxed equivariant networks, priors, and exact resume.

`learn` is stable-baselines3's loop: `collect_rollouts` and `train`, in turn. Where to find what:

| | |
| --- | --- |
| exploration noise | `SACUpdate.act`, drawn by `RPPActor.draw_noise`; `action_noise=` comes on top in `rollout_steps` |
| losses, prior, target, temperature | `SACUpdate.update_` (`_update.py`), whose docstring has the formulas |
| settings, batches and noise of an update | `RPPSAC.settings`; `BatchSampler` (`buffers.py`) draws batches and noise |
| networks and their prior variances | `NetworkOptions` and `RPPPolicy` (`policy.py`) |
| speed | `FastUpdate` (`_compiling.py`): the same update compiled, or replayed on a GPU |
| several agents at once | `train_many` (`_seeds.py`) |
| files and exact resume | `SymmetricAgent` (`_base.py`), `_checkpoint.py` |
"""

from __future__ import annotations

import copy
import math
from collections.abc import Generator
from functools import partial
from numbers import Real
from typing import Any, ClassVar

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3 import SAC, HerReplayBuffer
from stable_baselines3.common.buffers import NStepReplayBuffer, ReplayBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.noise import ActionNoise, NormalActionNoise
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.type_aliases import GymEnv, MaybeCallback, RolloutReturn, TrainFreq, TrainFrequencyUnit
from stable_baselines3.common.utils import should_collect_more_steps
from stable_baselines3.common.vec_env import VecEnv
from torch import Tensor
from torch.utils._pytree import tree_map

from rppdyn.agents import _checkpoint as checkpoint
from rppdyn.agents import buffers
from rppdyn.agents._base import DIVERGED_REMEDY, LOST_REMEDY, SymmetricAgent, check_observations
from rppdyn.agents._compiling import COMPILE_OPTIONS, check_matmul_precision, worth_compiling
from rppdyn.agents._goals import HindsightBuffer
from rppdyn.agents._networks import RPPActor, RPPCritic
from rppdyn.agents._update import Metrics, SACSettings, SACUpdate, check_trainable
from rppdyn.agents.buffers import BatchSampler, RowReplayBuffer, refuse_changed_rewards
from rppdyn.agents.policy import RPPPolicy
from rppdyn.envs import SymmetrySpec
from rppdyn.errors import DivergedError
from rppdyn.nn._compiling import check_compiler
from rppdyn.reps._rep import is_int
from rppdyn.runs.workers import use_numpy_generator

RolloutSteps = Generator[NDArray | None, NDArray | None, RolloutReturn]
"""Yields observations, and is sent the policy's actions for them; yields None while the environment steps."""

MAX_ABS_REWARD = 1e18
"""Largest accepted reward. Its square fits into single precision, with a margin for values, which are sums of rewards."""


class RPPSAC(SymmetricAgent, SAC):
    """Soft actor-critic with residual pathway priors.

        model = RPPSAC("RPPPolicy", "Walker2d-v5", seed=0).learn(100_000)
        model.save("walker"); RPPSAC.load("walker")         # the symmetry spec is saved with the policy

    Args:
        policy: "RPPPolicy" or a subclass of it.
        env: an environment, its id, or a VecEnv. Dictionaries of observations are flattened; with
            `replay_buffer_class=HerReplayBuffer` goals are relabelled in hindsight.
        spec: the environment's symmetry; None looks it up (`rppdyn.envs.symmetry_spec`).
        noise_variance: s^2 of the critics' likelihood; the smaller, the less the critics' priors weigh.
        max_gradient_norm: clips the gradients of actor and critics; None doesn't (the published code clips at 0.5).
        augment: replace each sampled transition by its image under a random element of the group, a baseline beside
            equivariant networks. Its expected gradient is that of a batch extended by all images (Abdolhosseini et al.
            2019, "duplicate tuples"), without its cost.
        mirror_loss: weight of |pi(g s) - g pi(s)|^2 in the actor's loss (Yu, Turk & Liu 2018), another baseline.
        matmul_precision: torch's precision of matrix products during gradient updates, "highest", "high" or "medium". On some
            processors "medium" is as accurate and twice as fast. On others it rounds more coarsely, and is refused. None takes
            "medium" where it is as accurate, unless the process has changed torch's default "highest".
        compile: whether gradient updates, and actions in training, go through `torch.compile`. On a CPU they then take two
            thirds of the time, with gates and products one third. The first compilation takes ten to sixty seconds; it needs a
            C++ compiler. None compiles trainings of 5,000 updates or more, if compilation works.
        policy_kwargs: RPPPolicy's arguments: model, hidden, num_layers, variances.
        **kwargs: stable-baselines3's own, with its defaults (`tau`, `target_entropy`, `learning_rate`, ...).
    Raises:
        ValueError: another policy, or arguments that it doesn't have; no spec for the environment; spaces that the symmetry
            doesn't preserve; actions without bounds; `augment` with a symmetry that changes the reward; a negative temperature;
            a `matmul_precision` that is less accurate here; updates that can't be compiled.

    Adam's betas, the temperature's too, are (0.5, 0.999) unless `policy_kwargs=dict(optimizer_kwargs=dict(betas=...))`.
    Two departures from SAC's bookkeeping: `target_update_interval` counts all gradient steps, not those since the last
    rollout; and callbacks see a transition after it was stored, so that a checkpoint taken by one is consistent.
    """

    policy_aliases: ClassVar[dict[str, type[BasePolicy]]] = {"RPPPolicy": RPPPolicy}
    update_class: ClassVar[type[SACUpdate]] = SACUpdate
    policy: RPPPolicy
    action_space: spaces.Box
    train_freq: TrainFreq  # type: ignore[assignment]  # stable-baselines3 converts the argument
    _last_obs: NDArray | None
    actor: RPPActor  # type: ignore[assignment]
    critic: RPPCritic  # type: ignore[assignment]
    critic_target: RPPCritic  # type: ignore[assignment]
    replay_buffer: ReplayBuffer

    def __init__(
        self,
        policy: str | type[RPPPolicy],
        env: GymEnv | str | None,
        spec: SymmetrySpec | None = None,
        *,
        noise_variance: float = SACSettings.noise_variance,
        max_gradient_norm: float | None = SACSettings.max_gradient_norm,
        augment: bool = False,
        mirror_loss: float = SACSettings.mirror_loss,
        matmul_precision: str | None = None,
        compile: bool | None = None,
        policy_kwargs: dict[str, Any] | None = None,
        _init_setup_model: bool = True,
        **kwargs: Any,
    ) -> None:
        self.noise_variance = noise_variance
        self.max_gradient_norm = max_gradient_norm
        self.augment = augment
        self.mirror_loss = mirror_loss
        self.matmul_precision = matmul_precision
        self.compile = compile
        self._worth_compiling = False  # whether the current training is compiled, where `compile` is None
        super().__init__(policy, env, spec, policy_kwargs=policy_kwargs, _init_setup_model=False, **kwargs)
        check_matmul_precision(matmul_precision, self.device)
        self._collected_steps = self._collected_episodes = 0  # of the current rollout
        if _init_setup_model:  # load() sets up later, with the saved policy_kwargs
            self._find_symmetry(spec, bool(augment or mirror_loss))
            self._setup_model()
            check_compiled(self)

    def _setup_model(self) -> None:
        for name, (is_right, remedy) in self._setting_rules().items():
            if not is_right:
                raise ValueError(f"{name}={getattr(self, name)!r}{remedy}")
        rate = self.learning_rate(1) if callable(self.learning_rate) else self.learning_rate
        if not (isinstance(rate, Real) and 0 <= rate < math.inf):
            raise ValueError(f"learning_rate={rate!r} must be positive, or 0 to learn nothing")
        self.action_space = copy.deepcopy(self.action_space)  # environments may share one, and its state
        for name in ("normalisation", "atoms"):
            if self.update_class.has_targets and (value := self.policy_kwargs.get(name)) is not None:
                raise ValueError(f"{name}={value!r}: use RPPCrossQ, whose critics have it and no targets")
        # stable-baselines3 builds the buffer from this attribute; agents are saved with the user's class, not with ours
        buffer_class = self.replay_buffer_class
        is_plain = buffer_class in (None, ReplayBuffer) and self.n_steps == 1
        if is_plain and not self.optimize_memory_usage and not self.replay_buffer_kwargs:
            self.replay_buffer_class = RowReplayBuffer
        if buffer_class is HerReplayBuffer:
            self.replay_buffer_class = HindsightBuffer
        super()._setup_model()
        self.replay_buffer_class = buffer_class
        if self.ent_coef_optimizer is None and not 0 <= self.ent_coef_tensor < math.inf:
            raise ValueError(f"ent_coef={self.ent_coef}: give a temperature of 0 or more, or 'auto' to learn it")
        if self.log_ent_coef is not None:
            self.ent_coef_optimizer = torch.optim.Adam(
                [self.log_ent_coef], lr=self.lr_schedule(1), **self.policy.optimizer_kwargs
            )
        self.sampler: BatchSampler = BatchSampler(self)
        if self.augment:
            refuse_changed_rewards(self.spec)
        self._log_alpha: Tensor | None = None  # of a fixed temperature
        self._own_update: SACUpdate | None = None  # of this agent alone, from its first action or update on
        # sums over the last updates and their number, one pair for each set of metric names
        self._sums: list[tuple[Metrics, int]] = []

    def set_random_seed(self, seed: int | None = None) -> None:
        """Seed the global generators, as stable-baselines3 does, and from them those that the agent draws from."""
        super().set_random_seed(seed)
        if seed is not None and hasattr(self, "sampler"):  # they are made after stable-baselines3's first call
            rows = [self.replay_buffer.generator] if isinstance(self.replay_buffer, RowReplayBuffer) else []
            for generator in (self.actor.generator, self.sampler.generator, *rows):
                generator.manual_seed(int(np.random.randint(2**63 - 1)))  # noqa: NPY002
            self.sampler.numpy.state = np.random.MT19937(int(np.random.randint(2**63 - 1))).state  # noqa: NPY002

    def _setting_rules(self) -> dict[str, tuple[bool, str]]:
        """For each setting, whether it is possible, and what to say if not; loaded agents may have been given others, too."""
        entropy, norm = self.target_entropy, self.max_gradient_norm
        number = lambda name: float(v) if isinstance(v := getattr(self, name), Real) else math.nan  # noqa: E731
        is_norm = norm is None or 0 < number("max_gradient_norm") < math.inf
        return {
            "noise_variance": (0 < number("noise_variance") < math.inf, " must be positive and finite"),
            "batch_size": (is_int(self.batch_size) and self.batch_size >= 1, " must be a whole number, at least 1"),
            "target_update_interval": (number("target_update_interval") >= 1, " must be at least 1"),
            "tau": (0 < number("tau") <= 1, ": a share of the way to the critics, above 0 and at most 1"),
            "gamma": (0 <= number("gamma") <= 1, ": a discount from 0 to 1"),
            "max_gradient_norm": (is_norm, " must be positive, or None for no clipping"),
            "mirror_loss": (0 <= number("mirror_loss") < math.inf, " must be positive, or 0 for none, and finite"),
            "target_entropy": (
                entropy == "auto" or (isinstance(entropy, Real) and math.isfinite(entropy)),
                ": give a number of nats, or 'auto' for minus the actions",
            ),
            "augment": (isinstance(self.augment, bool), ": give True or False"),
            "compile": (isinstance(self.compile, bool | None), ": give True or False or None"),
            "use_sde": (not self.use_sde, ": its noise would not transform; leave it out"),
        }

    # -- gradient updates ---------------------------------------------------------------------------------------------

    def train(self, gradient_steps: int, batch_size: int = 64) -> None:
        """Run gradient updates on batches from the replay buffer, and record their mean metrics.

        `SACUpdate.train` leaves their sums in `_sums` and counts `_n_updates`; `train_many` calls it for all agents instead.
        """
        self.own_update.train(gradient_steps, batch_size)
        self.record_updates(wait=False)

    def settings(self) -> SACSettings:
        """The settings of the next update.

        Those of Adam are read from the actor's optimiser; `check_trainable` refuses agents whose other optimisers differ.
        """
        group = self.actor.optimizer.param_groups[0]
        move_targets = self._n_updates % self.target_update_interval == 0  # the first update does
        return SACSettings(
            learning_rate=group["lr"],
            betas=tuple(group["betas"]),
            epsilon=group["eps"],
            gamma=self.gamma,
            tau=self.tau if move_targets else 0.0,
            noise_variance=self.noise_variance,
            target_entropy=float(self.target_entropy),
            learn_temperature=self.ent_coef_optimizer is not None,
            max_gradient_norm=self.max_gradient_norm,
            mirror_loss=self.mirror_loss,
        )

    @property
    def optimisers(self) -> dict[str, torch.optim.Optimizer]:
        """Adam of the actor, of the critics and, where the temperature is learned, of its logarithm."""
        optimisers = {"actor": self.actor.optimizer, "critic": self.critic.optimizer}
        return optimisers if self.ent_coef_optimizer is None else optimisers | {"log_alpha": self.ent_coef_optimizer}

    @property
    def log_alpha(self) -> Tensor:
        """The logarithm of the temperature, (1,); a fixed one keeps its address, which replayed updates read."""
        if self.log_ent_coef is not None:
            return self.log_ent_coef
        now = self.ent_coef_tensor.double().log().view(1).to(self.policy.features_extractor.dtype)
        if self._log_alpha is None or self._log_alpha.dtype != now.dtype:
            self._log_alpha = now
        return self._log_alpha.copy_(now)

    @property
    def own_update(self) -> SACUpdate:
        """The gradient update of this agent alone, which also computes its actions in training."""
        if self._own_update is None:
            self._own_update = self.update_class([self])
        return self._own_update

    @property
    def compiles(self) -> bool:
        """True if gradient updates, and actions in training, are compiled."""
        return self._worth_compiling if self.compile is None else self.compile

    def identity(self) -> dict[str, Any]:
        buffer, rows = self.replay_buffer, isinstance(self.replay_buffer, RowReplayBuffer)
        return super().identity() | {
            "buffer_size": buffer.buffer_size,
            "replay_buffer": "ReplayBuffer" if rows else type(buffer).__name__,
            "train_freq": f"{self.train_freq.frequency} {self.train_freq.unit.value}",
        }

    def record_updates(self, wait: bool = True) -> None:
        """Record the mean metrics of the gradient updates since the last record, if there were any.

        Args:
            wait: False leaves metrics on an accelerator until the log is written, since reading them waits for the device;
                the record then has those of the last `train` only.
        """
        if not self._sums or not (wait or self._sums[0][0].values.device.type == "cpu"):
            return
        totals: dict[str, list[float]] = {}
        for (names, sums), count in self._sums:
            for name, value in zip(names, sums.tolist(), strict=True):
                total = totals.setdefault(name, [0.0, 0.0])
                total[:] = total[0] + value, total[1] + count
        means = {name: value / count for name, (value, count) in totals.items()}
        self._sums = []
        # an infinite temperature makes the actor's loss infinite, too; the message names the loss
        self.check_finite({name: value for name, value in means.items() if name != "ent_coef"})
        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")
        for name, value in sorted(means.items()):
            network, is_prior, _ = name.partition("_prior")
            self.logger.record(f"prior/{network}_penalty" if is_prior else f"train/{name}", value)

    def dump_logs(self) -> None:
        """Write the log, and with it the norms and shares of the pathways."""
        self.record_updates()
        self.check_finite()
        if self._n_updates:
            for name, value in self.pathway_statistics().items():
                self.logger.record(f"pathway/{name}", value)
        super().dump_logs()

    def scale_rewards(self, rewards: Tensor) -> Tensor:
        """Scale rewards for updates; here they stay as they are."""
        return rewards

    # -- collection of transitions ------------------------------------------------------------------------------------

    def _store_transition(self, replay_buffer, buffer_action, new_obs, reward, dones, infos) -> None:
        check_rewards(self, reward)
        self._check_observations(new_obs)
        if dones.any():  # the buffer stores an episode's last observation, and new_obs has the next one's first
            ends = [info.get("terminal_observation", obs) for info, obs in zip(infos, new_obs, strict=True)]
            self._check_observations(np.stack(ends))
        observations = self._last_obs  # VecNormalize(norm_obs=False) leaves them as they are
        super()._store_transition(replay_buffer, buffer_action, new_obs, reward, dones, infos)
        self.policy.features_extractor.observe(torch.as_tensor(observations))

    def _check_observations(self, observations: NDArray) -> None:
        check_observations(observations, self.spec, partial(describe_step, self))

    def collect_rollouts(self, *args: Any, **kwargs: Any) -> RolloutReturn:
        """Collect `train_freq` steps or episodes; arguments as in stable-baselines3, which are those of `rollout_steps`.

        The agent keeps the counts of the current rollout, and callbacks run after a transition was stored and counted:
        a checkpoint taken in any callback continues where it was taken, also in the middle of a rollout.
        """
        steps = self.rollout_steps(*args, **kwargs)
        actions = None
        while True:
            try:
                observations = steps.send(actions)
            except StopIteration as end:
                return end.value
            actions = None if observations is None else self.own_update.act([observations])[0]

    def rollout_steps(
        self,
        env: VecEnv,
        callback: BaseCallback,
        train_freq: TrainFreq,
        replay_buffer: ReplayBuffer,
        action_noise: ActionNoise | None = None,
        learning_starts: int = 0,
        log_interval: int | None = None,
    ) -> RolloutSteps:
        """Collect as `collect_rollouts` does, but let the caller compute actions, and decide when to wait for environments."""
        self.policy.set_training_mode(False)
        if train_freq.frequency <= 0:
            raise ValueError(f"train_freq={train_freq.frequency} must be at least 1")
        if env.num_envs > 1 and train_freq.unit != TrainFrequencyUnit.STEP:
            raise ValueError("train_freq in episodes needs a single environment; give it in steps")
        callback.on_rollout_start()
        actions: NDArray | None
        while should_collect_more_steps(train_freq, self._collected_steps, self._collected_episodes):
            if self.num_timesteps < learning_starts:
                actions = np.array([self.action_space.sample() for _ in range(env.num_envs)])
            else:
                actions = yield self._last_obs
                if actions is None:
                    raise ValueError("a rollout was sent None for its observations; send it the policy's actions")
            buffer_actions = self.policy.scale_action(actions)
            if action_noise is not None:
                with use_numpy_generator(self.sampler.numpy):
                    buffer_actions = np.clip(buffer_actions + action_noise(), -1, 1)
            check_finite_actions(self, buffer_actions)
            actions = self.policy.unscale_action(buffer_actions)
            env.step_async(actions)
            yield None
            new_obs, rewards, dones, infos = env.step_wait()
            self.num_timesteps += env.num_envs
            self._collected_steps += 1
            self._update_info_buffer(infos, dones)
            self._store_transition(replay_buffer, buffer_actions, new_obs, rewards, dones, infos)
            self._update_current_progress_remaining(self.num_timesteps, self._total_timesteps)
            self._on_step()
            for index in np.flatnonzero(dones):
                self._collected_episodes += 1
                self._episode_num += 1
                if action_noise is not None:
                    action_noise.reset(**({"indices": [index]} if env.num_envs > 1 else {}))
                if log_interval is not None and self._episode_num % log_interval == 0:
                    self.dump_logs()
            callback.update_locals(
                locals()
                | {
                    "num_collected_steps": self._collected_steps,
                    "num_collected_episodes": self._collected_episodes,
                    "continue_training": True,
                }
            )
            if not callback.on_step():
                return RolloutReturn(self._collected_steps * env.num_envs, self._collected_episodes, False)
        callback.on_rollout_end()
        collected = RolloutReturn(self._collected_steps * env.num_envs, self._collected_episodes, True)
        self._collected_steps = self._collected_episodes = 0
        return collected

    def _setup_learn(
        self,
        total_timesteps: int,
        callback: MaybeCallback = None,
        reset_num_timesteps: bool = True,
        *args: Any,
        **kwargs: Any,
    ) -> tuple[int, BaseCallback]:
        check_matmul_precision(self.matmul_precision, self.device)  # a loaded agent may come from another machine
        check_trainable(self)
        check_compiled(self)
        if isinstance(self.replay_buffer, RowReplayBuffer):
            _ = self.replay_buffer.rows  # allocates their memory, or fails, before any step
        result = super()._setup_learn(total_timesteps, callback, reset_num_timesteps, *args, **kwargs)
        if self._last_obs is not None:
            self._check_observations(self._last_obs)
        self._worth_compiling = self.compile is None and worth_compiling(self)
        if reset_num_timesteps:
            self._collected_steps = self._collected_episodes = 0
        return result

    # -- saving -------------------------------------------------------------------------------------------------------

    def _capture_algorithm(self) -> dict[str, Any]:
        noises = getattr(self.action_noise, "noises", [self.action_noise])  # one for each of several environments
        if not all(noise is None or isinstance(noise, NormalActionNoise) for noise in noises):
            raise ValueError(f"the state of {self.action_noise!r} can't be captured; use NormalActionNoise or none")
        random = {
            "update": self.sampler.generator.get_state(),
            "actor": self.actor.generator.get_state(),
            "draws": checkpoint.plain(self.sampler.numpy.state),
        }
        return {"replay": buffers.capture(self.replay_buffer), "random": random}

    def _restore_algorithm(self, data: dict[str, Any]) -> None:
        buffers.restore(self.replay_buffer, data["replay"])
        buffer = self.replay_buffer
        if self.fresh_episodes and isinstance(buffer, HindsightBuffer):
            buffer.end_episodes()
        elif self.fresh_episodes and isinstance(buffer, NStepReplayBuffer) and buffer.size():
            last = buffer.pos - 1  # returns end there, as at a time limit
            buffer.timeouts[last] = np.maximum(buffer.timeouts[last], 1 - buffer.dones[last])
        states = data["random"]
        self.sampler.generator.set_state(states["update"])
        self.actor.generator.set_state(states["actor"])
        if "draws" in states:  # version 0.1 drew from NumPy's global generator
            self.sampler.numpy.state = checkpoint.arrays(states["draws"])

    @classmethod
    def pretrained(cls, name: str, env: GymEnv | str | None = None, **kwargs: Any) -> RPPSAC:
        """A trained agent that comes with the package; nothing is downloaded or unpickled.

            agent = RPPSAC.pretrained("Walker2d-v5")

        Args:
            name: a key of `rppdyn.agents.pretrained_agents()`.
            env: None makes the one that it was trained in.
            **kwargs: arguments of a new agent, in place of those it was trained with; not `spec` or `policy_kwargs`.
        Raises:
            ValueError: an unknown name, an agent of another class, a damaged file, or an environment with other spaces.

        Its replay buffer is empty, and target critics begin as the critics are.
        """
        from rppdyn.agents._export import load_pretrained  # which needs this class

        return load_pretrained(cls, name, env, **kwargs)

    def get_parameters(self) -> dict[str, dict]:
        """Copies of stable-baselines3's parameters: those of agents that are updated at once are views of common vectors."""
        return tree_map(lambda value: value.clone() if isinstance(value, Tensor) else value, super().get_parameters())

    def _excluded_save_params(self) -> list[str]:
        counts, parts = ("_collected_steps", "_collected_episodes"), ("sampler", "_own_update", "_sums", "_log_alpha")
        return [*super()._excluded_save_params(), *counts, *parts, "_worth_compiling"]


def check_compiled(agent: RPPSAC) -> None:
    """Refuse `compile` without a compiler, and on devices other than CPU and CUDA."""
    if not agent.compile:
        return
    if agent.device.type not in COMPILE_OPTIONS:
        raise ValueError(f"compile=true: updates are compiled on a CPU and on CUDA devices, not on {agent.device}")
    check_compiler(agent.device)


def check_rewards(agent: RPPSAC, rewards: NDArray) -> None:
    """Refuse rewards that are not finite, or so large that squared errors of values overflow in single precision."""
    if (np.abs(rewards) <= MAX_ABS_REWARD).all():
        return
    (env,) = np.argwhere(~(np.abs(rewards) <= MAX_ABS_REWARD))[0]
    raise ValueError(
        f"{describe_step(agent, env)}: the reward is {rewards[env]:g}; {LOST_REMEDY}, and none above {MAX_ABS_REWARD:g}: scale "
        "them, as VecNormalize(env, norm_obs=False) does"
    )


def check_finite_actions(agent: RPPSAC, actions: NDArray) -> None:
    """Refuse actions that are not finite, those of a diverged policy, before the environment gets them."""
    if np.isfinite(actions).all():
        return
    env, entry = np.argwhere(~np.isfinite(actions))[0]
    name, value = agent.spec.action_names[entry], actions[env, entry]
    raise DivergedError(
        f"training diverged: {describe_step(agent, env)}, action {name!r} is {value:g}; {DIVERGED_REMEDY}"
    )


def describe_step(agent: RPPSAC, env: int) -> str:
    """Name an environment by its index, and the current step, for messages."""
    index = f", environment {env}" if agent.n_envs > 1 else ""
    return f"{agent.spec.env_id}{index} at step {agent.num_timesteps}"
