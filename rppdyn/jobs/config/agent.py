"""The configuration of `rppdyn train-agent`: the task, the networks, the algorithm and what is measured."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

from omegaconf import MISSING

from rppdyn.jobs.config.base import (
    CERTIFIED,
    LEARNED,
    PRECISIONS,
    ConfigError,
    RunConfig,
    activation,
    at_least,
    betas,
    bilinear,
    chain,
    free_variance,
    free_variance_number,
    learning_rate_end,
    number,
    one_of,
    positive,
    require,
    variance,
    widths,
)

ARCHITECTURES = ("auto", "regular", "tensor")
MODELS = ("rpp", "emlp", "mlp", "rpp_policy_only")
VARIANTS = ("derived", "published")

EVALUATION_SEED = 10_000  # of the first evaluation episode's reset; training uses seeds of its own


@dataclass
class EnvConfig:
    """The task: a Gymnasium environment, stock or with actuators made weaker or stronger, and which symmetry is used."""

    id: str = MISSING  # of a Gymnasium environment, module:Id for one of your own; written by env=
    symmetry: str | None = None  # a choice of the task ("D4"), or derived symmetries joined by "+"; null: its default
    variant: str = "derived"  # derived, or published, the representation of the residual-pathway papers, right or wrong
    spec: str | None = (
        None  # a file with the symmetry: YAML of terms or of a mirror image, or JSON of a spec; null: derived from the model
    )
    actuator_scale: dict[str, float] = field(default_factory=dict)  # strength by name of an actuator
    kwargs: dict[str, Any] = field(default_factory=dict)  # options of gymnasium.make: env.kwargs.NAME=VALUE

    named_by: ClassVar[str | None] = None  # the file that alone names it, and that nobody has trusted

    def __post_init__(self) -> None:
        require("env.variant", self.variant, self.variant in VARIANTS, " or ".join(VARIANTS))
        if self.spec is not None and self.variant != "derived":
            raise ConfigError(f"env.variant={self.variant} and env.spec={self.spec} are two symmetries: leave out one")
        if self.kwargs.get("render_mode") == "human":
            raise ConfigError(
                "env.kwargs.render_mode=human: nothing is shown in training; leave it out (rppdyn evaluate-agent --video films)"
            )
        for name, factor in self.actuator_scale.items():
            require(f"env.actuator_scale.{name}", factor, math.isfinite(factor) and factor >= 0, "zero or positive")
        for name in ("env_id", "actuator_scale", "monitor", "named_by"):
            if name in self.kwargs:
                raise ConfigError(f"env.kwargs.{name}: it is no option of an environment; leave it out")

    def read_from(self, file: str) -> None:
        """Note that a file alone names the environment: no module is then imported to make it."""
        object.__setattr__(self, "named_by", file)


@dataclass
class ModelConfig:
    """The networks of actor and critics: which pathways, how wide, how much each is believed."""

    kind: str = MISSING  # rpp (both pathways), emlp (strict), mlp (no symmetry), rpp_policy_only; written by model=
    hidden: Any = 256  # channels of each hidden layer; or a list, one for each: [64,32]
    critic_hidden: Any = None  # the critics' own; null: as the actor's
    num_layers: int = 2  # as many as hidden lists, where it is a list
    activation: str | None = None  # swish, relu, tanh, ..., as rppdyn.nn.ACTIVATIONS has them; null: swish
    equivariant_variance: float = 1e5  # prior variance of the equivariant pathway; 0 removes it
    # prior variance of the free pathway; or certified, by how far the symmetry is off in the simulator; or learned by the
    # critics, whom the actor follows
    free_variance: Any = 1e-7
    critic_equivariant_variance: float | None = None  # of the critics' equivariant pathway; null: as the actor's
    critic_free_variance: float | None = None  # of the critics' free pathway; null: as the actor's
    free_scale: Any = None  # initial size of free pathways, of a layer's own; prior: as their prior has it; null: 1e-3
    widen: int | None = None  # steps in which free variances widen from 1e-7 to what they are; null: they don't
    architecture: str = "auto"  # hidden representation: of the group's regular one, of tensors, or what fits the group
    bilinear: Any = "auto"  # channelwise for infinite groups; published (true), channelwise, false; null: published
    certified_variance: float | None = None  # what free_variance=certified came to; written by the run
    learn_every: int = 2000  # steps of the environment between updates of learned variances
    groups: Any = None  # a chain in the place of the symmetry's group, which it begins with: ["D(4)","left-right"]
    variances: Any = (
        None  # with groups, in the place of all other variances: one for each group, and the free pathway's last
    )

    def __post_init__(self) -> None:
        one_of("model.kind", self.kind, MODELS)
        one_of("model.architecture", self.architecture, ARCHITECTURES)
        bilinear("model.bilinear", self.bilinear)
        self.hidden = widths("model.hidden", self.hidden)
        if self.critic_hidden is not None:
            self.critic_hidden = widths("model.critic_hidden", self.critic_hidden)
        at_least("model.num_layers", self.num_layers, 1)
        if isinstance(self.hidden, list):
            self.num_layers = len(self.hidden)
        activation("model.activation", self.activation)
        variance("model.equivariant_variance", self.equivariant_variance)
        words = (CERTIFIED, LEARNED)
        self.free_variance = free_variance(
            "model.free_variance", self.free_variance, self.kind, words, self.equivariant_variance
        )
        at_least("model.learn_every", self.learn_every, 1)
        critics = ("critic_equivariant_variance", "critic_free_variance")
        own = [name for name in critics if getattr(self, name) is not None]
        for name in own:
            variance(f"model.{name}", getattr(self, name))
        if self.widen is not None:
            self._check_widen()
        if self.free_scale is not None:
            self.free_scale = self._free_scale()
        self._require_pathways("actor", "", self.kind.startswith("rpp"))
        self._require_pathways("critics", "critic_", self.kind == "rpp")
        chain(self.groups, self.variances, self.kind, self.free_variance, words=(LEARNED,))
        if self.groups is not None and self.kind == "rpp" and own:
            raise ConfigError(
                f"model.{own[0]}={getattr(self, own[0]):g} with model.groups: model.variances are the critics', too; leave it "
                "out"
            )

    @property
    def free(self) -> float:
        """The prior variance of the free pathway that networks are built with."""
        return free_variance_number(self.free_variance, self.certified_variance)

    def _check_widen(self) -> None:
        at_least("model.widen", self.widen or 0, 1)
        others = {f"model={self.kind}": not self.kind.startswith("rpp"),
                  "model.free_variance=learned": self.free_variance == LEARNED,
                  "model.groups": self.groups is not None}  # fmt: skip
        for other, is_so in others.items():
            if is_so:
                raise ConfigError(
                    f"model.widen={self.widen} with {other}: it is the variances of free pathways beside equivariant ones that "
                    "widen, by a schedule alone; leave one of the two out"
                )

    def _free_scale(self) -> float | str:
        if not self.kind.startswith("rpp"):
            raise ConfigError(
                f"model.free_scale={self.free_scale} with model={self.kind}, which has one pathway, of full size: use "
                "model=rpp, or leave it out"
            )
        if self.free_scale == "prior":
            return "prior"
        scale = number("model.free_scale", self.free_scale, "a number, or prior")
        require("model.free_scale", scale, 0 <= scale < math.inf, "zero or positive, or prior")
        return scale

    def _require_pathways(self, who: str, prefix: str, relaxed: bool) -> None:
        """Refuse networks of which no pathway is left; those with one pathway have the variance that is called equivariant."""
        zero = []
        for name in ("equivariant_variance", "free_variance") if relaxed else ("equivariant_variance",):
            key = name if getattr(self, prefix + name) is None else prefix + name
            if getattr(self, key):
                return
            zero.append(f"model.{key}=0")
        which = "one of them" if relaxed else "it"
        raise ConfigError(
            f"{' and '.join(zero)}: no pathway of the {who} is left (model={self.kind}); make {which} positive"
        )


@dataclass
class PPOConfig:
    """Settings of `agent=ppo` alone; names and defaults are stable-baselines3's."""

    n_steps: int = 2048  # of each environment between updates
    n_epochs: int = 10  # passes over a rollout
    gae_lambda: float = 0.95  # of generalised advantage estimation, from 0 (one step) to 1 (whole returns)
    clip_range: float = 0.2  # of the ratio of probabilities, about 1
    clip_range_vf: float | None = None  # of the value; null: none
    normalize_advantage: bool = True  # of each batch
    ent_coef: float = 0.0  # weight of the entropy in the loss
    vf_coef: float = 0.5  # 0.5: the value's part is a Gaussian likelihood of variance 1
    target_kl: float | None = None  # a pass ends above one and a half times this; null: none does

    def __post_init__(self) -> None:
        at_least("agent.ppo.n_steps", self.n_steps, 1)
        at_least("agent.ppo.n_epochs", self.n_epochs, 1)
        require("agent.ppo.gae_lambda", self.gae_lambda, 0 <= self.gae_lambda <= 1, "in [0, 1]")
        positive("agent.ppo.clip_range", self.clip_range)
        for name in ("ent_coef", "vf_coef"):
            value = getattr(self, name)
            require(f"agent.ppo.{name}", value, math.isfinite(value) and value >= 0, "zero or positive")
        for name in ("clip_range_vf", "target_kl"):
            if (value := getattr(self, name)) is not None:
                positive(f"agent.ppo.{name}", value)


@dataclass
class CrossQConfig:
    """Settings of `agent=crossq` alone."""

    policy_delay: int = 3  # updates of the critics for one of the actor
    normalisation: str = (
        "renorm"  # of networks, by batches: batch, or renorm, which running statistics correct in long runs
    )
    critic_head: str = (
        "scalar"  # or categorical: probabilities of values, of rewards that are divided by a running scale
    )
    bins: int = 101  # values of a categorical head
    value_range: list[float] = field(default_factory=lambda: [-5.0, 5.0])  # the least and the largest of them
    weight_norm: bool = False  # scale rows of hidden layers to norm 1 after each update

    def __post_init__(self) -> None:
        at_least("agent.crossq.policy_delay", self.policy_delay, 1)
        one_of("agent.crossq.normalisation", self.normalisation, ("batch", "renorm"))
        one_of("agent.crossq.critic_head", self.critic_head, ("scalar", "categorical"))
        at_least("agent.crossq.bins", self.bins, 2)
        is_range = len(self.value_range) == 2 and -math.inf < self.value_range[0] < self.value_range[1] < math.inf
        require("agent.crossq.value_range", self.value_range, is_range, "the least and the largest value, as [-5,5]")


SAC_ONLY = (
    "buffer_size", "learning_starts", "tau", "train_freq", "gradient_steps", "target_entropy", "noise_variance", "augment",
    "mirror_loss", "matmul_precision", "compile",
)  # fmt: skip
"""Keys of an agent that `agent=ppo` has no use for."""

OTHERS = ("ppo", "crossq")
"""Agents other than soft actor-critic, with keys of their own."""


@dataclass
class AgentConfig:
    """Soft actor-critic, CrossQ, or proximal policy optimisation."""

    learning_rate: float = 3e-4  # of Adam
    learning_rate_end: float | None = None  # reached on a straight line at total_steps; null: constant
    buffer_size: int = 1_000_000  # transitions that the replay buffer holds
    learning_starts: int = 1000  # random steps before the first update
    batch_size: int = 256  # transitions in an update
    tau: float = 0.005  # share of the critics that targets move by at each update
    gamma: float = 0.99  # discount of a step
    num_envs: int = 1  # environments that a seed steps at once
    train_freq: int = 1  # steps of each before gradient updates
    gradient_steps: int = 1  # gradient updates then; -1: as many as there are new transitions
    betas: list[float] = field(default_factory=lambda: [0.5, 0.999])  # of Adam, as published for relaxed networks
    target_entropy: Any = "auto"  # of the learned temperature, in nats; auto: minus the action's dimension
    noise_variance: float = 1.0  # of the critics' Gaussian likelihood; the smaller, the less the priors weigh
    max_gradient_norm: float | None = None  # longest gradient, longer ones are clipped; null: none is
    augment: bool = False  # sampled transitions are replaced by images under random elements of the group
    mirror_loss: float = 0.0  # weight of |pi(g s) - g pi(s)|^2 in the actor's loss
    matmul_precision: str | None = None  # of gradient updates: highest, high, medium; null: medium where as accurate
    compile: bool | None = (
        None  # updates, and actions in training, by torch.compile; null: in long runs, where it works
    )
    ppo: PPOConfig | None = None  # of agent=ppo
    crossq: CrossQConfig | None = None  # of agent=crossq, which has no use for tau

    def __post_init__(self) -> None:
        positive("agent.learning_rate", self.learning_rate)
        learning_rate_end("agent.learning_rate_end", self.learning_rate_end)
        for name in ("buffer_size", "learning_starts", "batch_size", "num_envs", "train_freq"):
            at_least(f"agent.{name}", getattr(self, name), 1)
        require("agent.tau", self.tau, 0 < self.tau <= 1, "in (0, 1]")
        require("agent.gamma", self.gamma, 0 <= self.gamma <= 1, "in [0, 1]")
        positive_or_all = self.gradient_steps >= 1 or self.gradient_steps == -1
        require(
            "agent.gradient_steps", self.gradient_steps, positive_or_all, "1 or more, or -1 (one for each transition)"
        )
        betas("agent.betas", self.betas)
        if self.target_entropy != "auto":
            self.target_entropy = number("agent.target_entropy", self.target_entropy, "auto or a number")
        positive("agent.noise_variance", self.noise_variance)
        if self.max_gradient_norm is not None:
            positive("agent.max_gradient_norm", self.max_gradient_norm)
        mirror = math.isfinite(self.mirror_loss) and self.mirror_loss >= 0
        require("agent.mirror_loss", self.mirror_loss, mirror, "zero (none) or positive")
        if self.matmul_precision is not None:
            one_of("agent.matmul_precision", self.matmul_precision, PRECISIONS)
        if self.ppo is not None:
            self._check_ppo(self.ppo)

    def _check_ppo(self, ppo: PPOConfig) -> None:
        for name in ("augment", "mirror_loss", "compile", "matmul_precision"):
            if value := getattr(self, name):
                raise ConfigError(
                    f"agent.{name}={value}: agent=ppo has no such setting; leave it out, or use agent=sac"
                )
        at_least("agent.batch_size", self.batch_size, 2)
        if (count := ppo.n_steps * self.num_envs) % self.batch_size:
            raise ConfigError(
                f"agent.batch_size={self.batch_size} does not divide the {count} transitions of a rollout (agent.ppo.n_steps "
                "times agent.num_envs); give one that does"
            )

    @property
    def name(self) -> str:
        """As `agent=` chooses it."""
        return next((name for name in OTHERS if getattr(self, name) is not None), "sac")

    @property
    def rollout(self) -> int:
        """Steps of all environments between updates."""
        return (self.train_freq if self.ppo is None else self.ppo.n_steps) * self.num_envs


@dataclass
class EvaluationConfig:
    """Measurements while training, on environments and random states of its own."""

    every: int = 5000  # steps between two evaluations
    episodes: int = 10  # played in each
    states: int = 512  # of the policy's own rollouts, for the equivariance errors

    def __post_init__(self) -> None:
        for name in ("every", "episodes", "states"):
            at_least(f"evaluation.{name}", getattr(self, name), 1)


@dataclass
class TrainAgentConfig(RunConfig):
    """`rppdyn train-agent`."""

    env: EnvConfig = MISSING
    model: ModelConfig = MISSING
    agent: AgentConfig = MISSING
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    total_steps: int = 1_000_000  # steps of the environment, of all its copies together
    checkpoint_every: int = 10_000  # steps between two checkpoints
    callbacks: Any = None  # of your own: module:Class of a stable-baselines3 callback, or a list of them; null: none
    seeds: int = 1  # seed, seed + 1, ..., trained at once, each into its own folder, in as many processes as threads
    workers: bool = (
        False  # each seed has a process for its environments and one for evaluations; on a CPU one trains all seeds
    )

    verb = "train-agent"
    resumable = (*RunConfig.resumable, "total_steps", "seeds", "workers")

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least("total_steps", self.total_steps, 1)
        at_least("seeds", self.seeds, 1)
        for name in self.callback_names:
            module, _, attribute = str(name).partition(":")
            require(
                "callbacks", name, bool(module) and attribute.isidentifier(), "module:Class, or a list of such names"
            )
        if self.agent.ppo is not None and self.workers:
            raise ConfigError("workers=true: it is of agent=sac; leave it out, agent.num_envs=N steps several")
        if self.agent.ppo is not None and self.model.groups is not None:
            raise ConfigError(
                f"model.groups={self.model.groups}: chains are of agent=sac; leave them out, or use agent=sac"
            )
        if self.agent.ppo is not None and self.model.widen is not None:
            raise ConfigError(
                f"model.widen={self.model.widen}: variances widen in agent=sac; leave it out, or use agent=sac"
            )
        if self.agent.ppo is not None and self.model.free_variance == LEARNED:
            raise ConfigError(
                f"model.free_variance={LEARNED}: it is learned by the critics of agent=sac; give a number, or {CERTIFIED}"
            )

    @property
    def callback_names(self) -> list[str]:
        """Names in `callbacks`."""
        return (
            [] if self.callbacks is None else self.callbacks if isinstance(self.callbacks, list) else [self.callbacks]
        )

    def each(self) -> list[TrainAgentConfig]:
        """The configurations of the seeds' own runs; where there is a `run_dir`, in folders `seed0`, ... of it."""
        if self.seeds == 1:
            return [self]
        own = []
        for seed in range(self.seed, self.seed + self.seeds):
            run_dir = None if self.run_dir is None else str(Path(self.run_dir, f"seed{seed}"))
            own.append(replace(self, seed=seed, seeds=1, run_dir=run_dir))
        return own

    @property
    def length(self) -> tuple[str, int]:
        return "total_steps", self.total_steps

    @property
    def place(self) -> tuple[str, ...]:
        name = self.model.kind if self.agent.name == "sac" else f"{self.model.kind}_{self.agent.name}"
        return self.env.id.replace("/", "_").replace(":", "_"), name, f"seed{self.seed}"
