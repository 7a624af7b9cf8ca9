"""The configuration of `rppdyn train-agent`: the task, the networks, the algorithm and what is measured."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from rppdyn.jobs.config.base import LEARNED, Betas, NetworkSettings, Precision, RunConfig, Widths
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
SYMMETRY_HELP = 'a choice of the task ("D4"), or derived symmetries joined by "+"; null: its default'
VARIANT_HELP = "derived, or published, the representation of the residual-pathway papers, right or wrong"

EVALUATION_SEED = 10_000  # of the first evaluation episode's reset; training uses other seeds


@settings
class EnvConfig:
    """The task: a Gymnasium environment, stock or with actuators made weaker or stronger, and which symmetry is used."""

    id: str = setting(..., "of a Gymnasium environment, module:Id for one of your own; written by env=")
    symmetry: str | None = setting(None, SYMMETRY_HELP)
    variant: Variant = setting("derived", VARIANT_HELP)
    spec: str | None = setting(
        None,
        "a file with the symmetry: YAML of terms or of a mirror image, or JSON of a spec; null: derived from the model",
    )
    actuator_scale: dict[str, Nonnegative] = setting({}, "strength by name of an actuator")
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
                raise ConfigError(f"env.kwargs.{name}: it is no option of an environment; leave it out")

    def read_from(self, file: str) -> None:
        """Record that an untrusted file names the environment: no module is then imported to make it."""
        object.__setattr__(self, "named_by", file)


@settings
class ModelConfig(NetworkSettings):
    """The networks of actor and critics: which pathways, how wide, how much each is believed."""

    kind: Literal["rpp", "emlp", "mlp", "rpp_policy_only"] = setting(
        ..., "rpp (both pathways), emlp (strict), mlp (no symmetry), rpp_policy_only; written by model="
    )
    hidden: Widths = setting(256, "channels of each hidden layer; or a list, one for each: [64,32]")
    critic_hidden: Widths | None = setting(None, "the critics' own; null: as the actor's")
    free_variance: Literal["certified", "learned"] | Variance = setting(
        1e-7,
        "prior variance of the free pathway; or certified, by how far the symmetry is off in the simulator; or learned by the "
        "critics, whom the actor follows",
    )
    critic_equivariant_variance: Variance | None = setting(
        None, "of the critics' equivariant pathway; null: as the actor's"
    )
    critic_free_variance: Variance | None = setting(None, "of the critics' free pathway; null: as the actor's")
    free_scale: Literal["prior"] | Nonnegative | None = setting(
        None, "initial size of free pathways, of a layer's own; prior: as their prior has it; null: 1e-3"
    )
    widen: Count | None = setting(
        None, "steps in which free variances widen from 1e-7 to what they are; null: they don't"
    )
    certified_variance: Variance | None = setting(None, "what free_variance=certified came to; written by the run")
    learn_every: Count = setting(2000, "steps of the environment between updates of learned variances")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.widen is not None and (self.free_variance == LEARNED or self.groups is not None):
            cause = "model.groups" if self.groups is not None else "model.free_variance=learned"
            raise ConfigError(
                f"model.widen={self.widen} with {cause}: either moves variances; leave one of the two out"
            )


@settings
class PPOConfig:
    """Settings of `agent=ppo` alone; names and defaults are stable-baselines3's."""

    n_steps: Count = setting(2048, "of each environment between updates")
    n_epochs: Count = setting(10, "passes over a rollout")
    gae_lambda: Nonnegative = setting(
        0.95, "of generalised advantage estimation, from 0 (one step) to 1 (whole returns)", le=1
    )
    clip_range: Positive = setting(0.2, "of the ratio of probabilities, about 1")
    clip_range_vf: Positive | None = setting(None, "of the value; null: none")
    normalize_advantage: bool = setting(True, "of each batch")
    ent_coef: Nonnegative = setting(0.0, "weight of the entropy in the loss")
    vf_coef: Nonnegative = setting(0.5, "0.5: the value's part is a Gaussian likelihood of variance 1")
    target_kl: Positive | None = setting(None, "a pass ends above one and a half times this; null: none does")


@settings
class CrossQConfig:
    """Settings of `agent=crossq` alone."""

    policy_delay: Count = setting(3, "updates of the critics for one of the actor")
    normalisation: Literal["batch", "renorm"] = setting(
        "renorm", "of networks, by batches: batch, or renorm, which running statistics correct in long runs"
    )
    critic_head: Literal["scalar", "categorical"] = setting(
        "scalar", "or categorical: probabilities of values, of rewards that are divided by a running scale"
    )
    bins: Integer = setting(101, "values of a categorical head", ge=2)
    value_range: list[Number] = setting([-5.0, 5.0], "the least and the largest of them", min_length=2, max_length=2)
    weight_norm: bool = setting(False, "scale rows of hidden layers to norm 1 after each update")

    def __post_init__(self) -> None:
        if self.value_range[0] >= self.value_range[1]:
            raise ConfigError(
                f"agent.crossq.value_range={format_value(self.value_range)}: give the least and the largest value, as [-5,5]"
            )


SAC_ONLY = (
    "buffer_size", "learning_starts", "tau", "train_freq", "gradient_steps", "target_entropy", "noise_variance", "augment",
    "mirror_loss", "hindsight", "matmul_precision", "compile",
)  # fmt: skip
"""Keys of an agent without effect for `agent=ppo`."""

OTHER_AGENTS = ("ppo", "crossq")
"""Agents beside soft actor-critic, which have their own keys."""


@settings
class AgentConfig:
    """Soft actor-critic, CrossQ, or proximal policy optimisation."""

    learning_rate: Positive = setting(3e-4, "of Adam")
    learning_rate_end: Nonnegative | None = setting(None, "reached on a straight line at total_steps; null: constant")
    buffer_size: Count = setting(1_000_000, "transitions that the replay buffer holds")
    learning_starts: Count = setting(1000, "random steps before the first update")
    batch_size: Count = setting(256, "transitions in an update")
    tau: Positive = setting(0.005, "share of the critics that targets move by at each update", le=1)
    gamma: Nonnegative = setting(0.99, "discount of a step", le=1)
    num_envs: Count = setting(1, "environments that a seed steps at once")
    train_freq: Count = setting(1, "steps of each before gradient updates")
    gradient_steps: Count | Literal[-1] = setting(1, "gradient updates then; -1: as many as there are new transitions")
    betas: Betas = setting([0.5, 0.999], "of Adam, as published for relaxed networks")
    target_entropy: Literal["auto"] | Number = setting(
        "auto", "of the learned temperature, in nats; auto: minus the action's dimension"
    )
    noise_variance: Positive = setting(
        1.0, "of the critics' Gaussian likelihood; the smaller, the less the priors weigh"
    )
    max_gradient_norm: Positive | None = setting(None, "longest gradient, longer ones are clipped; null: none is")
    augment: bool = setting(False, "sampled transitions are replaced by images under random elements of the group")
    mirror_loss: Nonnegative = setting(0.0, "weight of |pi(g s) - g pi(s)|^2 in the actor's loss")
    hindsight: bool = setting(False, "goals are relabelled in hindsight (HerReplayBuffer), of goal environments")
    matmul_precision: Precision | None = setting(
        None, "of gradient updates: highest, high, medium; null: medium where as accurate"
    )
    compile: bool | None = setting(
        None, "updates, and actions in training, by torch.compile; null: in long runs, where it works"
    )
    ppo: PPOConfig | None = setting(None, "of agent=ppo")
    crossq: CrossQConfig | None = setting(None, "of agent=crossq, which has no use for tau")

    def __post_init__(self) -> None:
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
        return next((name for name in OTHER_AGENTS if getattr(self, name) is not None), "sac")

    @property
    def rollout(self) -> int:
        """Steps of all environments between updates."""
        return (self.train_freq if self.ppo is None else self.ppo.n_steps) * self.num_envs


@settings
class EvaluationConfig:
    """Measurements during training, with separate environments and random states."""

    every: Count = setting(5000, "steps between two evaluations")
    episodes: Count = setting(10, "played in each")
    states: Count = setting(512, "of the policy's own rollouts, for the equivariance errors")


Callback = Annotated[str, Field(pattern=r"^[^:]+:[A-Za-z_]\w*$")]


@settings
class TrainAgentConfig(RunConfig):
    """`rppdyn train-agent`."""

    env: EnvConfig
    model: ModelConfig
    agent: AgentConfig
    evaluation: EvaluationConfig = EvaluationConfig()
    total_steps: Count = setting(1_000_000, "steps of the environment, of all its copies together")
    checkpoint_every: Count = setting(10_000, "steps between two checkpoints")
    callbacks: Callback | list[Callback] | None = setting(
        None, "of your own: module:Class of a stable-baselines3 callback, or a list of them; null: none"
    )
    seeds: Count = setting(
        1, "seed, seed + 1, ..., trained at once, each into its own folder, in as many processes as threads"
    )
    workers: bool = setting(
        False, "each seed has a process for its environments and one for evaluations; on a CPU one trains all seeds"
    )

    verb = "train-agent"
    resumable = (*RunConfig.resumable, "total_steps", "seeds", "workers")

    def __post_init__(self) -> None:
        if self.agent.ppo is None:
            return
        sac_only = {"workers": self.workers, "model.groups": self.model.groups, "model.widen": self.model.widen,
                    "model.free_variance": self.model.free_variance == LEARNED and LEARNED}  # fmt: skip
        for key, value in sac_only.items():
            if value:
                raise ConfigError(f"{key}={format_value(value)}: it is of agent=sac; leave it out")

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
