"""The configuration of `rppdyn train-agent`: the task, the networks, the algorithm and what is measured."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from rppdyn.jobs.config.base import CERTIFIED, LEARNED, Betas, NetworkSettings, Precision, RunConfig, Widths
from rppdyn.settings import (
    ConfigError,
    Count,
    Integer,
    Nonnegative,
    Number,
    Positive,
    Variance,
    format_value,
    setting,
    settings,
)

Variant = Literal["derived", "published"]
SYMMETRY_HELP = 'symmetry by its name in the task, "D4", or derived ones joined by "+"; null: the task\'s default'
VARIANT_HELP = "representation: derived, or published, that of the residual-pathway papers, right or wrong"

EVALUATION_SEED = 10_000
"""Seed of the reset of the first evaluation episode; those of the next episodes follow, and training has none of them."""

WIDEN_FROM = 1e-7
"""Free variance from which `model.widen` starts: the `start` of `rppdyn.agents.WidenVariances`, a module with torch."""


@settings
class EnvConfig:
    """The task: a Gymnasium environment, stock or with actuators made weaker or stronger, and which symmetry is used."""

    id: str = setting(..., "Gymnasium id of the environment, module:Id for one of your own; written by env=")
    symmetry: str | None = setting(None, SYMMETRY_HELP)
    variant: Variant = setting("derived", VARIANT_HELP)
    spec: str | None = setting(
        None,
        "file with the symmetry: YAML of terms or of a mirror image, or JSON of a spec; null: derived from the model",
    )
    actuator_scale: dict[str, Nonnegative] = setting({}, "factors on actuators' strength: env.actuator_scale.NAME=0.5")
    kwargs: dict[str, Any] = setting({}, "options of gymnasium.make: env.kwargs.NAME=VALUE")

    named_by: ClassVar[str | None] = None  # an untrusted file that names the environment

    def __post_init__(self) -> None:
        if self.spec is not None and self.variant != "derived":
            raise ConfigError(f"env.variant={self.variant} and env.spec={self.spec} are two symmetries: leave out one")
        if self.kwargs.get("render_mode") == "human":
            raise ConfigError(
                "env.kwargs.render_mode=human: nothing is shown in training; leave it out (rppdyn evaluate-agent --video films)"
            )
        for name in ("env_id", "actuator_scale", "monitor", "named_by"):
            if name in self.kwargs:
                remedy = "give env.actuator_scale.NAME=VALUE instead" if name == "actuator_scale" else "leave it out"
                raise ConfigError(f"env.kwargs.{name}: it is no option of an environment; {remedy}")

    def mark_untrusted(self, file: str) -> None:
        """Record that an untrusted file names the environment: no module is then imported to make it."""
        object.__setattr__(self, "named_by", file)


@settings
class ModelConfig(NetworkSettings):
    """The networks of actor and critics: which pathways, how wide, and their prior variances."""

    kind: Literal["rpp", "emlp", "mlp", "rpp_policy_only"] = setting(
        ..., "rpp (both pathways), emlp (strict), mlp (no symmetry), rpp_policy_only (mlp critics); set it with model="
    )
    hidden: Widths = setting(256, "channels of each hidden layer; or a list with one number per layer: [64,32]")
    critic_hidden: Widths | None = setting(None, "channels of the critics' hidden layers; null: as the actor's")
    free_variance: Literal["certified", "learned"] | Variance = setting(
        1e-7,
        "prior variance of the free pathway; certified: from the symmetry's error in the simulator; learned: "
        "from the critics' evidence, for the actor, too",
    )
    critic_equivariant_variance: Variance | None = setting(
        None, "prior variance of the critics' equivariant pathway; null: as the actor's"
    )
    critic_free_variance: Variance | None = setting(None, "prior variance of critics' free pathway; null: the actor's")
    free_scale: Literal["prior"] | Nonnegative | None = setting(
        None, "initial size of free pathways, relative to a layer with only them; prior: their prior's size; null: 1e-3"
    )
    widen: Count | None = setting(
        None,
        "environment steps over which free variances rise from 1e-7 to their configured, larger values; null: constant",
    )
    certified_variance: Variance | None = setting(None, "value of free_variance=certified; written by the run")
    learn_every: Count = setting(2000, "environment steps between updates of the variances, with free_variance=learned")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.widen is not None and (self.free_variance == LEARNED or self.groups is not None):
            cause = "model.groups" if self.groups is not None else "model.free_variance=learned"
            raise ConfigError(
                f"model.widen={self.widen} with {cause}: either moves variances; leave one of the two out"
            )
        values = (self.free_variance, self.critic_free_variance)
        is_wide = any(value == CERTIFIED or (isinstance(value, float) and value > WIDEN_FROM) for value in values)
        if self.widen is not None and not is_wide:
            raise ConfigError(
                f"model.widen={self.widen} with model.free_variance={self.free_variance:g}: free variances rise from "
                f"{WIDEN_FROM:g}, and none is larger; give for example model.free_variance=1e-3, or leave out model.widen"
            )


@settings
class PPOConfig:
    """Settings of `agent=ppo` alone; names and defaults are stable-baselines3's."""

    n_steps: Count = setting(2048, "steps of each environment between updates")
    n_epochs: Count = setting(10, "passes over the rollout in an update")
    gae_lambda: Nonnegative = setting(
        0.95, "lambda of generalised advantage estimation, from 0 (one step) to 1 (whole returns)", le=1
    )
    clip_range: Positive = setting(0.2, "largest change of the probability ratio from 1")
    clip_range_vf: Positive | None = setting(None, "largest change of a value in an update; null: not clipped")
    normalize_advantage: bool = setting(True, "normalise advantages over each batch")
    ent_coef: Nonnegative = setting(0.0, "weight of the entropy bonus in the loss")
    vf_coef: Nonnegative = setting(0.5, "weight of the value loss; 0.5 is a Gaussian likelihood of variance 1")
    target_kl: Positive | None = setting(None, "a KL divergence 1.5 times this ends a rollout's updates; null: never")


@settings
class CrossQConfig:
    """Settings of `agent=crossq` alone."""

    policy_delay: Count = setting(3, "updates of the critics for each update of the actor")
    normalisation: Literal["batch", "renorm"] = setting(
        "renorm", "network normalisation: batch, or renorm, which running statistics correct in long runs"
    )
    critic_head: Literal["scalar", "categorical"] = setting(
        "scalar", "scalar, or categorical: a distribution over bins, on rewards divided by a running scale"
    )
    bins: Integer = setting(101, "number of bins of a categorical head", ge=2, le=1001)
    value_range: list[Number] = setting([-5.0, 5.0], "smallest and largest value of bins", min_length=2, max_length=2)
    weight_norm: bool = setting(False, "scale rows of hidden layers to norm 1 after each update")

    def __post_init__(self) -> None:
        if not -1e6 <= self.value_range[0] < 0 < self.value_range[1] <= 1e6:
            raise ConfigError(
                f"agent.crossq.value_range={format_value(self.value_range)}: give a number below 0 and one above, as [-5,5], "
                "up to 1e6"
            )


OFF_POLICY_KEYS = (
    "buffer_size", "learning_starts", "tau", "train_freq", "gradient_steps", "target_entropy", "noise_variance", "augment",
    "mirror_loss", "hindsight", "matmul_precision", "compile",
)  # fmt: skip
"""Keys of the replay buffer and of updates from it, which `agent=ppo` does not have."""

UNUSED_KEYS: dict[str, tuple[str, ...]] = {"ppo": OFF_POLICY_KEYS, "crossq": ("tau",)}
"""Keys of `agent` without use for `agent=ppo` and `agent=crossq`, which also have sections of their own."""


@settings
class AgentConfig:
    """Soft actor-critic, CrossQ, or proximal policy optimisation."""

    learning_rate: Positive = setting(3e-4, "learning rate of Adam")
    learning_rate_end: Nonnegative | None = setting(None, "learning rate at the end, reached linearly; null: constant")
    buffer_size: Count = setting(1_000_000, "transitions that the replay buffer holds")
    learning_starts: Count = setting(1000, "environment steps with random actions before the first update")
    batch_size: Count = setting(256, "transitions in a gradient update")
    tau: Positive = setting(0.005, "share of the way from target critics to critics at each update", le=1)
    gamma: Nonnegative = setting(0.99, "discount factor of a step", le=1)
    num_envs: Count = setting(1, "environments that each seed steps at once")
    train_freq: Count = setting(1, "steps of each environment between updates")
    gradient_steps: Count | Literal[-1] = setting(1, "gradient updates each train_freq steps; -1: one per transition")
    betas: Betas = setting([0.5, 0.999], "beta_1 and beta_2 of Adam, as published for relaxed networks")
    target_entropy: Literal["auto"] | Number = setting(
        "auto", "entropy, in nats, that the learned temperature aims at; auto: minus the action's dimension"
    )
    noise_variance: Positive = setting(
        1.0, "variance of the critics' Gaussian likelihood; the smaller, the less their priors weigh"
    )
    max_gradient_norm: Positive | None = setting(None, "norm to which longer gradients are clipped; null: no clipping")
    augment: bool = setting(False, "replace sampled transitions by their images under random elements of the group")
    mirror_loss: Nonnegative = setting(0.0, "weight of |pi(g s) - g pi(s)|^2 in the actor's loss")
    hindsight: bool = setting(False, "relabel goals in hindsight (HerReplayBuffer); for goal environments")
    matmul_precision: Precision | None = setting(
        None, "precision of matrix products in updates: highest, high, medium; null: medium where as accurate"
    )
    compile: bool | None = setting(
        None, "torch.compile for updates, and for actions in training; null: in long runs, where it works"
    )
    ppo: PPOConfig | None = setting(None, "settings of agent=ppo")
    crossq: CrossQConfig | None = setting(None, "settings of agent=crossq, which does not use tau")

    def __post_init__(self) -> None:
        if self.ppo is not None and self.crossq is not None:
            raise ConfigError("agent.ppo and agent.crossq are settings of two agents: leave out one of them")
        if self.ppo is not None:
            self._check_ppo(self.ppo)

    def _check_ppo(self, ppo: PPOConfig) -> None:
        for name in ("augment", "mirror_loss", "hindsight", "compile", "matmul_precision"):
            if value := getattr(self, name):
                raise ConfigError(f"agent.{name}={value}: agent=ppo has no such setting; leave it out")
        if self.batch_size < 2:
            raise ConfigError("agent.batch_size=1: must be at least 2 with agent=ppo")
        if (count := ppo.n_steps * self.num_envs) % self.batch_size:
            raise ConfigError(
                f"agent.batch_size={self.batch_size} does not divide the {count} transitions of a rollout (agent.ppo.n_steps "
                "times agent.num_envs); give one that does"
            )

    @property
    def name(self) -> str:
        """The choice of `agent=`."""
        return next((name for name in UNUSED_KEYS if getattr(self, name) is not None), "sac")

    @property
    def rollout(self) -> int:
        """Steps of all environments between updates."""
        return (self.train_freq if self.ppo is None else self.ppo.n_steps) * self.num_envs


@settings
class EvaluationConfig:
    """Measurements during training, with environments and random generators of their own."""

    every: Count = setting(5000, "environment steps between two evaluations")
    episodes: Count = setting(10, "episodes in each evaluation")
    states: Count = setting(512, "number of states from the policy's rollouts, for equivariance errors")


Callback = Annotated[str, Field(pattern=r"^[^:]+:[A-Za-z_]\w*$")]


@settings
class TrainAgentConfig(RunConfig):
    """`rppdyn train-agent`."""

    env: EnvConfig
    model: ModelConfig
    agent: AgentConfig
    evaluation: EvaluationConfig = EvaluationConfig()
    total_steps: Count = setting(1_000_000, "length of training in environment steps, summed over its environments")
    checkpoint_every: Count = setting(10_000, "environment steps between two checkpoints")
    callbacks: Callback | list[Callback] | None = setting(
        None, "module:Class of a stable-baselines3 callback of your own, or a list of them; null: none"
    )
    seeds: Count = setting(1, "number of runs, seed, seed + 1, ...; trained at once, each into its own folder")
    workers: bool = setting(
        False, "per seed, one process for environments and one for evaluation; on a CPU, one process trains all seeds"
    )

    verb = "train-agent"
    resumable = (*RunConfig.resumable, "total_steps", "seeds", "workers")

    def __post_init__(self) -> None:
        end = EVALUATION_SEED + self.evaluation.episodes
        if (shared := max(self.seed, EVALUATION_SEED)) < min(self.seed + self.seeds, end):
            raise ConfigError(
                f"seed={shared}: evaluation episodes have the seeds {EVALUATION_SEED} to {end - 1}, and training would begin "
                "with one of them; give another seed"
            )
        if self.agent.ppo is None:
            return
        off_policy = {"workers": self.workers, "model.groups": self.model.groups, "model.widen": self.model.widen,
                      "model.free_variance": self.model.free_variance == LEARNED and LEARNED}  # fmt: skip
        for key, value in off_policy.items():
            if value:
                raise ConfigError(
                    f"{key}={format_value(value)}: agent=ppo has no such setting; use agent=sac or agent=crossq, or "
                    "leave it out"
                )

    @property
    def callback_names(self) -> list[str]:
        """Names in `callbacks`."""
        return self.callbacks if isinstance(self.callbacks, list) else [self.callbacks] if self.callbacks else []

    def runs(self) -> list[TrainAgentConfig]:
        """The configurations of the seeds' runs; with a `run_dir` their folders are `seed0`, ... in it."""
        if self.seeds == 1:
            return [self]
        configs = []
        for seed in range(self.seed, self.seed + self.seeds):
            run_dir = None if self.run_dir is None else str(Path(self.run_dir, f"seed{seed}"))
            configs.append(replace(self, seed=seed, seeds=1, run_dir=run_dir))
        return configs

    @property
    def length(self) -> tuple[str, int]:
        return "total_steps", self.total_steps

    @property
    def place(self) -> tuple[str, ...]:
        name = self.model.kind if self.agent.name == "sac" else f"{self.model.kind}_{self.agent.name}"
        return self.env.id.replace("/", "_").replace(":", "_"), name, f"seed{self.seed}"
