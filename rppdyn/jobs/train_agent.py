"""`rppdyn train-agent`: train RPP-SAC, evaluate it on the way, and be able to go on after any interruption."""

from __future__ import annotations

import copy
import inspect
import io
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from stable_baselines3.common.callbacks import BaseCallback, ConvertCallback
from stable_baselines3.common.logger import KVWriter, Logger
from stable_baselines3.common.vec_env import DummyVecEnv

from rppdyn.agents import RPPSAC, Agent, LearnVariances, WidenVariances
from rppdyn.agents._seeds import EPISODES_PER_LOG, SeedTrainer, train_together
from rppdyn.agents.policy import prior_share, widest_layer
from rppdyn.envs import SymmetrySpec, certificate_for
from rppdyn.envs._spec import VERDICTS
from rppdyn.envs._state import why_not_capturable
from rppdyn.envs.certification._certificate import share_of
from rppdyn.errors import UntrustedError, is_user_error, one_line
from rppdyn.jobs import building
from rppdyn.jobs.building import (
    PRELOAD,
    Evaluator,
    WorkerEnv,
    build_agent,
    build_env,
    certify_variance,
    process_state,
    spec_of,
)
from rppdyn.jobs.config.agent import EVALUATION_SEED, ModelConfig, TrainAgentConfig
from rppdyn.jobs.config.base import CERTIFIED, LEARNED, ConfigError, device_of
from rppdyn.jobs.config.compose import preflight
from rppdyn.jobs.figure import draw_run
from rppdyn.jobs.loading import load_function
from rppdyn.jobs.results import TrainAgentResult, TrainManyResult
from rppdyn.priors._likelihood import STRICT_SHARE
from rppdyn.runs import Progress, RunFolder, RunFolderError, Session, StopRequest, stop_on_signals
from rppdyn.runs.files import load_tensors, replacing, write_json, write_tensors
from rppdyn.runs.workers import Stopped, Worker, WorkerError, portable, preserve_random_state, processes, worker_stop
from rppdyn.settings import keys_of_sections

logger = logging.getLogger(__name__)


# -- evaluations -------------------------------------------------------------------------------------------------------

Evaluation = tuple[dict[str, Any], float]
"""Values by metric name (`docs/metrics.md`), and the seconds that measuring took."""


class Evaluations:
    """Measure an agent on a fixed set of initial states: in this process, or with `workers=true` in a worker on the CPU.

    Args:
        spec: the symmetry of the agent's networks.
    """

    def __init__(self, config: TrainAgentConfig, spec: SymmetrySpec) -> None:
        if config.workers:  # evaluation needs no buffer, no second environment and no compiled updates
            agent = replace(config.agent, buffer_size=1, num_envs=1, compile=False, matmul_precision=None)
            self._arguments = replace(config, device="cpu", agent=agent), spec
        self._states = config.evaluation.states
        self._worker = Worker(PRELOAD) if config.workers else None
        self._evaluator = None if config.workers else _evaluator(config)

    def begin(self, agent: Agent) -> Future[Evaluation]:
        """Measure the agent as it is now."""
        if self._worker is None:
            assert self._evaluator is not None
            answer: Future[Evaluation] = Future()
            answer.set_result(_measure(agent, self._evaluator, self._states))
            return answer
        weights = io.BytesIO()
        # agents that are trained together hold views of shared tensors, which would be saved whole: copy them
        copied = {key: value.to("cpu", copy=True) for key, value in agent.policy.state_dict().items()}
        torch.save(copied, weights)
        return self._worker.submit(_measure_in_worker, *self._arguments, weights.getvalue())

    def close(self) -> None:
        """Close environments."""
        for part in (self._worker, self._evaluator):
            if part is not None:
                part.close()


def _evaluator(config: TrainAgentConfig) -> Evaluator:
    return Evaluator(partial(build_env, config), config.evaluation.episodes, EVALUATION_SEED)


def _measure(agent: Agent, evaluator: Evaluator, states: int) -> Evaluation:
    start = time.monotonic()
    with preserve_random_state():
        values = measure(agent, evaluator, states)
    return values, time.monotonic() - start


_worker_agent: tuple[Agent, Evaluator] | None = None


def _measure_in_worker(config: TrainAgentConfig, spec: SymmetrySpec, weights: bytes) -> Evaluation:
    """Measure an agent with these weights, in a worker, which builds the agent at the first call."""
    global _worker_agent
    if _worker_agent is None:
        _worker_agent = build_agent(config, build_env(config), spec), _evaluator(config)
    agent, evaluator = _worker_agent
    agent.policy.load_state_dict(torch.load(io.BytesIO(weights), map_location="cpu", weights_only=True))
    return _measure(agent, evaluator, config.evaluation.states)


def measure(agent: Agent, evaluator: Evaluator, states: int) -> dict[str, Any]:
    """Returns, equivariance errors and pathways of an agent, by the names that `docs/metrics.md` defines."""
    # the few actions of one step are no faster on a GPU
    player = agent.policy if agent.device.type == "cpu" else copy.deepcopy(agent.policy).to("cpu")
    episodes = evaluator.play(player)
    observations, actions = evaluator.explore(player).spread(states)
    values: dict[str, Any] = {
        "eval/return_mean": float(episodes.returns.mean()),
        "eval/return_std": float(episodes.returns.std()),
        "eval/length_mean": float(episodes.lengths.mean()),
        "eval/returns": episodes.returns.tolist(),
    }
    if not agent.spec.is_trivial:
        for network, error in agent.equivariance_errors(observations, actions).items():  # null where they are vacuous
            errors = {network: error.error} | {
                f"{network}/{name}": value for name, value in error.per_generator.items()
            }
            values |= {f"equivariance/{name}": None if error.vacuous else value for name, value in errors.items()}
    return values | {f"pathway/{name}": value for name, value in agent.pathway_statistics().items()}


# -- metrics of training -----------------------------------------------------------------------------------------------


def _training_metrics(agent: Agent) -> dict[str, Any]:
    """The agent's last records of its updates, and the mean return of its last training episodes."""
    agent.record_updates()
    recorded: Mapping[str, Any] = agent.logger.name_to_value
    values = {name: float(recorded[name]) for name in sorted(recorded) if name.startswith(("train/", "prior/"))}
    episodes: list[dict[str, float]] = list(agent.ep_info_buffer or [])
    if episodes:
        values["rollout/return_mean"] = float(np.mean([episode["r"] for episode in episodes]))
        values["rollout/length_mean"] = float(np.mean([episode["l"] for episode in episodes]))
    return values


class Events(KVWriter):
    """Pass an agent's log on to a run's loggers, each value under one name and once per step.

    Values under `pathway/` are left out: the last evaluation has recorded them already, some updates earlier.
    """

    NAMES: ClassVar[dict[str, str]] = {
        "rollout/ep_rew_mean": "rollout/return_mean",
        "rollout/ep_len_mean": "rollout/length_mean",
    }

    def __init__(self, run: Session) -> None:
        self._run = run

    def write(self, key_values: dict[str, Any], key_excluded: dict[str, tuple[str, ...]], step: int = 0) -> None:
        values = {}
        for name, value in key_values.items():
            is_number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
            if is_number and "tensorboard" not in (key_excluded.get(name) or ()) and not name.startswith("pathway/"):
                values[self.NAMES.get(name, name)] = float(value)
        self._run.log(values, step)

    def close(self) -> None:
        """Leave the loggers to the session."""


# -- callbacks of the user ---------------------------------------------------------------------------------------------


def load_callbacks(names: Sequence[str], named_by: str | None = None) -> list[BaseCallback]:
    """Create callbacks: a class is called without arguments, a function of (locals, globals) is called at each step.

    Args:
        names: `module:Class` or `module:function`.
        named_by: untrusted file that names them, so that their modules are not imported; None if the user names them.
    Raises:
        UntrustedError: an untrusted file names them.
        ConfigError: a name has no object, or the object is no callback.
    """
    if names and named_by is not None:
        raise UntrustedError(
            f"{named_by} names the callback {names[0]}, and going on runs the module {names[0].partition(':')[0]!r}: add "
            "--trust if you know where it is from"
        )
    return [_create_callback(name, load_function(name)) for name in names]


def _create_callback(name: str, kind: Callable) -> BaseCallback:
    if not inspect.isclass(kind):  # False ends the training, as in stable-baselines3; None doesn't
        return ConvertCallback(lambda local, names: kind(local, names) is not False)
    if not issubclass(kind, BaseCallback):
        raise ConfigError(
            f"callbacks={name}: the class {kind.__name__} is no callback; give a class derived from stable_baselines3's "
            "BaseCallback, or a function of (locals, globals)"
        )
    parameters = inspect.signature(kind).parameters.values()
    needed = [p.name for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    if needed:
        raise ConfigError(
            f"callbacks={name}: {kind.__name__} needs {', '.join(needed)}, and is made without arguments; give them "
            "defaults, or name a class of yours that gives them"
        )
    return kind()


# -- runs --------------------------------------------------------------------------------------------------------------


class _Pending(NamedTuple):
    """An evaluation under way, with its step and the training metrics to record with it."""

    step: int
    answer: Future[Evaluation]
    training: dict[str, Any]
    steps_per_second: float


class AgentRun(BaseCallback):
    """A run under way: the last callback of its agent, which evaluates and saves the agent between two updates.

    Both happen between two steps, after the updates of the first, when agent, buffer and environment agree. Nothing draws
    from the random states of training. An evaluation may run in a worker. Its values are recorded at the step where it began,
    and the next evaluation and the next checkpoint wait for them. If both are due, the evaluation begins after the checkpoint,
    and a run resumed from that checkpoint begins it again.

    Args:
        agent: restored from the last checkpoint.
        users: callbacks of the user.
    Attributes:
        stop: request to end the run at a checkpoint.
        bar: progress bar over its steps.
    """

    bar: Progress

    def __init__(
        self,
        config: TrainAgentConfig,
        session: Session,
        agent: Agent,
        evaluations: Evaluations,
        users: Sequence[BaseCallback],
    ) -> None:
        super().__init__()
        self.config, self.session, self.agent = config, session, agent
        self.evaluations, self.users = evaluations, users
        self.stop, self.stopped = StopRequest(), False
        self._clock = time.monotonic()
        self._counted = session.saved
        self._pending: _Pending | None = None
        # until then an update may be the first of its kind in this process, and compile
        self._compiles_until = agent._n_updates + agent.policy_delay

    @property
    def callbacks(self) -> list[BaseCallback]:
        """Callbacks of each step: those of the user, the one that changes prior variances, and this one."""
        model = self.config.model
        if model.widen is not None:
            return [*self.users, WidenVariances(model.widen), self]
        if model.free_variance == LEARNED:
            return [*self.users, LearnVariances(model.learn_every), self]
        return [*self.users, self]

    def train(self, stop: StopRequest, bar: Progress) -> TrainAgentResult:
        """Train for the remaining steps, and finish."""
        self.stop, self.bar, begun = stop, bar, self.session.saved
        if begun < self.config.total_steps:
            # in episodes for SAC, in rollouts for PPO
            interval = EPISODES_PER_LOG * self.agent.n_envs if isinstance(self.agent, RPPSAC) else 1
            try:
                self.agent.learn(
                    self.config.total_steps - begun,
                    callback=self.callbacks,
                    reset_num_timesteps=begun == 0,
                    log_interval=interval,
                )
            except Stopped:  # the run ends at its last checkpoint
                self.stopped = True
        return self.finish()

    def _on_rollout_start(self) -> None:
        step = self.agent.num_timesteps
        self.stop.interrupts = False
        if self.stop.at(step):
            self.stopped = True
            self._save()  # first: an evaluation under way may take longer than the time that is left
            if self._pending is not None:
                self._record(wait=True)
                self._save()
            return
        self._record(wait=False)
        if self.session.save_due(step):
            self._record(wait=True)
            self._save()
        if self.session.due(step):
            self._evaluate()
        agent: Any = self.agent
        compiles = agent._n_updates < self._compiles_until and agent.compiles
        if compiles and step + self.config.agent.rollout > agent.learning_starts:  # updates follow this rollout
            self._record(wait=True)
            if self.session.saved < step:
                self._save()
            self.bar.say("compiling, up to a minute")
            self.stop.interrupts = True  # the checkpoint is up to date

    def _on_step(self) -> bool:
        if not self.stop.interrupts:
            self.bar.update(min(self.agent.num_timesteps, self.config.total_steps))
        return not self.stopped

    def _on_training_end(self) -> None:
        """Begin the last evaluation here, so that all seeds evaluate at once and none waits for another."""
        self.stop.interrupts = False
        if not self.stopped and self.session.measured < self.agent.num_timesteps:
            self._evaluate()

    def _save(self) -> None:
        self.session.checkpoint(
            self.agent.num_timesteps, lambda folder: torch.save(self.agent.capture(), folder / building.AGENT_FILE)
        )

    def _evaluate(self) -> None:
        agent = self.agent
        agent.record_updates()
        agent.check_finite()  # a diverged run stops here, before an evaluation of no use
        self._record(wait=True)
        step, now = agent.num_timesteps, time.monotonic()
        if not step:
            self.bar.say("evaluating")
        speed = (step - self._counted) / (now - self._clock) if now > self._clock else 0.0
        training = _training_metrics(agent)
        self.session.measured = self._counted = step
        agent.logger.dump(step)
        self._pending = _Pending(step, self.evaluations.begin(agent), training, speed)
        self._clock = time.monotonic()
        self._record(wait=False)

    def _record(self, wait: bool) -> None:
        """Record the pending evaluation, if there is one and it is ready.

        Args:
            wait: wait until it is ready.
        """
        pending = self._pending
        if pending is None or not (wait or pending.answer.done()):
            return
        self._pending, start = None, time.monotonic()
        try:
            values, seconds = pending.answer.result()
        except (WorkerError, RuntimeError) as error:
            if self.session.saved < self.agent.num_timesteps:
                self._save()
            raise type(error)(f"the evaluation at step {pending.step}: {error}") from error
        self._clock += time.monotonic() - start  # waiting for an evaluation is not training time
        timing = {"time/steps_per_second": pending.steps_per_second, "time/evaluation_seconds": seconds}
        # the agent's own log may have records of a later step
        self.session.record(pending.step, values | pending.training, timing, unlogged=("train/", "prior/"))
        self.bar.show(**{"return": values["eval/return_mean"]})

    def finish(self) -> TrainAgentResult:
        """Write the last evaluation and checkpoint, the final agent, figure and result, unless the run was stopped."""
        config, session, folder, agent = self.config, self.session, self.session.folder, self.agent
        if not self.stopped:
            if session.measured < agent.num_timesteps:
                self._evaluate()
            self._record(wait=True)
            if session.saved < agent.num_timesteps:
                self._save()
        note = "stopped; a checkpoint was written" if self.stopped else ""
        if not note and self.users and session.saved < config.total_steps:
            note = f"ended by {' or '.join(config.callback_names)}"
        result = TrainAgentResult(
            run=str(folder.path),
            env=config.env.id,
            model=config.model.kind,
            seed=config.seed,
            steps=session.saved,
            total_steps=config.total_steps,
            metrics=folder.metrics.last(),
            compiled=agent.compiles,
            fresh_episodes=agent.fresh_episodes,
            prior=_describe_prior(config.model, agent),
            seconds=session.seconds,
            interrupted=self.stopped,
            note=note,
        )
        if not self.stopped:
            write_tensors(folder.policy_file, agent.policy.state_dict())  # for this package
            with replacing(folder.model_file) as path:
                agent.save(path)  # for `RPPSAC.load`; parts of it are pickles
            session.finish(result)
            draw_run(folder, "learning_curve")  # last, so that a failure leaves the result
        return result


@contextmanager
def begin(config: TrainAgentConfig) -> Iterator[AgentRun]:
    """Build a run's agent, or restore it from its last checkpoint; the block holds the run folder and its open files."""
    users = load_callbacks(config.callback_names, config.env.named_by)
    with ExitStack() as stack:
        session = stack.enter_context(Session(config))
        env = stack.enter_context(closing(build_env(config)))
        spec = spec_of(config, session.folder, env)
        certify_variance(config.model, session.folder, env, spec, widest_layer(config.model.hidden), reward=True)
        fresh = why_not_capturable(env)
        stepped, count = env, config.agent.num_envs
        if config.workers:
            stepped = stack.enter_context(closing(WorkerEnv(partial(build_env, config), count)))
        elif count > 1:
            stepped = stack.enter_context(closing(DummyVecEnv([partial(build_env, config)] * count)))
        with keys_of_sections(model=config.model, agent=config.agent):
            agent = build_agent(config, stepped, spec)
        if count > 1 and agent.env is not None:  # far apart, so that no two seeds share an environment's seed
            agent.env.seed(int(np.random.SeedSequence(config.seed).generate_state(1)[0]))
        agent.fresh_episodes = bool(fresh)
        session.begin(
            partial(_restore, config, agent),
            evaluate_every=config.evaluation.every,
            checkpoint_every=config.checkpoint_every,
        )
        if agent.fresh_episodes:
            _warn_of_fresh_episode(config, agent, session.saved, fresh or "its checkpoints hold no environment")
        if config.agent.ppo is None and config.total_steps <= (starts := config.agent.learning_starts):
            logger.warning(
                "nothing is learned: give more total_steps than agent.learning_starts=%d, the random ones", starts
            )
        _record_symmetry(session.folder, spec, env, agent)
        agent.set_logger(Logger(folder=None, output_formats=[Events(session)]))
        evaluations = stack.enter_context(closing(Evaluations(config, spec)))
        yield AgentRun(config, session, agent, evaluations, users)


def run(config: TrainAgentConfig, *, resume: bool = False, progress: bool = False) -> TrainAgentResult:
    """Train an agent into its run folder.

    Args:
        resume: go on from the folder's last checkpoint, or start a new run if there is no folder.
        progress: show a bar on standard error.
    """
    finished = preflight(config, resume)
    if finished is not None:
        return TrainAgentResult.from_dict(finished)
    with process_state(config.threads), begin(config) as agent_run, stop_on_signals() as stop:
        with _make_bar([config], agent_run.session.saved, progress) as bar:
            return agent_run.train(stop, bar)


# -- several seeds -----------------------------------------------------------------------------------------------------

POLL_SECONDS = 0.1  # between two checks for a stop request

Seeds = Sequence[TrainAgentConfig]
"""Configurations of one seed each."""


def run_many(config: TrainAgentConfig, *, resume: bool = False, progress: bool = False) -> TrainManyResult:
    """Train the agents of `config.seeds` seeds at once, each into the run folder that it would have alone.

    There are as many processes as threads (on a GPU `threads`, or one), at most one for each seed. Seeds that share a process
    share their gradient updates. An error that ends one seed's training is warned of and reported in the result, and the other
    seeds go on. Arguments are those of `run`.

    Raises:
        ValueError: an error that stops every seed.
    """
    results: dict[int, TrainAgentResult] = {}
    errors: dict[int, Exception] = {}
    waiting: list[TrainAgentConfig] = []
    for seed_config in config.runs():
        try:
            finished = preflight(seed_config, resume)
        except RunFolderError as error:
            if not resume:
                raise
            errors[seed_config.seed] = error
            logger.warning("seed %d: %s", seed_config.seed, error)
            continue
        if finished is None:
            waiting.append(seed_config)
        else:
            results[seed_config.seed] = TrainAgentResult.from_dict(finished)
    parts, threads = distribute_seeds(config, waiting)
    with stop_on_signals() as stop:
        if len(parts) > 1:
            trained = _train_in_workers(parts, threads, stop, progress)
        else:
            trained = [_train_seeds(waiting, threads, stop, progress)]
    if stop and not any(part.results or part.errors for part in trained):
        raise Stopped
    for part in trained:
        results |= {result.seed: result for result in part.results}
        errors |= part.errors
    if errors and not results:
        raise next(iter(errors.values()))
    return TrainManyResult([results[seed] for seed in sorted(results)], errors)


def distribute_seeds(config: TrainAgentConfig, waiting: Seeds) -> tuple[list[Seeds], int]:
    """Distribute seeds over processes; returns the seeds of each process, and torch's threads there.

    Processes are preferred to threads, which wait for each other after every product. A seed's process depends on all seeds of
    the configuration, finished ones included, so that a resumed seed shares its updates with the same seeds and rounds as
    before. On a CPU with `workers` there is one process, since environments need processors too. On a GPU there are `threads`
    processes: while one updates its seeds, others collect.
    """
    on_cpu = device_of(config.device).type == "cpu"
    threads = processes(config.threads if on_cpu else config.threads or 1)
    count = 1 if on_cpu and config.workers else min(threads, config.seeds)
    if count == 1:
        return [waiting], config.threads or 1
    parts = [
        [seed_config for seed_config in waiting if (seed_config.seed - config.seed) % count == part]
        for part in range(count)
    ]
    return [part for part in parts if part], threads // count


def _train_in_workers(parts: Sequence[Seeds], threads: int, stop: StopRequest, progress: bool) -> list[TrainManyResult]:
    """Train each part in a worker. If a worker dies, that error ends its seeds."""
    with ExitStack() as stack:
        workers = [stack.enter_context(closing(Worker(PRELOAD))) for _ in parts]
        answers = [
            worker.submit(_train_seeds_in_worker, part, threads, progress, position)
            for position, (worker, part) in enumerate(zip(workers, parts, strict=True))
        ]
        signalled = False
        while wait(answers, timeout=POLL_SECONDS).not_done:
            if stop and not signalled:
                signalled = True
                for worker in workers:
                    worker.stop()
        results = []
        for part, answer in zip(parts, answers, strict=True):
            try:
                results.append(answer.result())
            except (WorkerError, RuntimeError) as error:
                logger.warning("seeds %s: %s", ", ".join(str(seed_config.seed) for seed_config in part), error)
                results.append(TrainManyResult([], {seed_config.seed: error for seed_config in part}))
        return results


def _train_seeds_in_worker(part: Seeds, threads: int, progress: bool, position: int) -> TrainManyResult:
    """Train seeds, in a worker."""
    with suppress(Stopped):
        trained = _train_seeds(part, threads, worker_stop, progress, position)
        return TrainManyResult(trained.results, {seed: portable(error) for seed, error in trained.errors.items()})
    return TrainManyResult([])


def _train_seeds(seeds: Seeds, threads: int, stop: StopRequest, progress: bool, position: int = 0) -> TrainManyResult:
    """Train seeds in this process. The bar begins at the step of the least advanced seed."""
    if seeds and seeds[0].agent.ppo is not None:
        return _train_in_turn(seeds, threads, stop, progress, position)
    runs: dict[int, AgentRun] = {}
    results: list[TrainAgentResult] = []
    with process_state(threads), ExitStack() as stack:

        def build(config: TrainAgentConfig) -> RPPSAC:
            runs[config.seed] = stack.enter_context(begin(config))
            agent = runs[config.seed].agent
            assert isinstance(agent, RPPSAC)
            return agent

        stop.interrupts = True
        trainers = {c.seed: SeedTrainer(partial(build, c), name=f"seed {c.seed}") for c in seeds}
        stop.interrupts = False
        if runs:
            initial = min(agent_run.session.saved for agent_run in runs.values())
            bar = stack.enter_context(_make_bar(seeds, initial, progress, position))
            for seed, agent_run in runs.items():
                agent_run.stop, agent_run.bar = stop, bar
                trainers[seed].callback = agent_run.callbacks
            try:
                train_together(list(trainers.values()), seeds[0].total_steps)
            except Stopped:  # all runs end at their last checkpoints
                for agent_run in runs.values():
                    agent_run.stopped = True
            for seed, agent_run in runs.items():
                if trainers[seed].error is None:
                    with trainers[seed].guard():
                        results.append(agent_run.finish())
    return TrainManyResult(results, {seed: t.error for seed, t in trainers.items() if t.error is not None})


def _train_in_turn(seeds: Seeds, threads: int, stop: StopRequest, progress: bool, position: int) -> TrainManyResult:
    """Train seeds one after the other, each with its own bar: updates of PPO can't be shared."""
    results: list[TrainAgentResult] = []
    errors: dict[int, Exception] = {}
    with process_state(threads):
        for config in seeds:
            if stop:
                break
            try:
                with begin(config) as agent_run:
                    with _make_bar([config], agent_run.session.saved, progress, position) as bar:
                        results.append(agent_run.train(stop, bar))
            except Exception as error:
                errors[config.seed] = error
                logger.warning(
                    "seed %d: %s", config.seed, one_line(error), exc_info=None if is_user_error(error) else error
                )
    return TrainManyResult(results, errors)


def _make_bar(seeds: Seeds, initial: int, enabled: bool, position: int = 0) -> Progress:
    """One bar for the seeds of a process, which advance together."""
    config, numbers = seeds[0], " ".join(str(seed_config.seed) for seed_config in seeds)
    label = f"{config.env.id} {config.model.kind}, seed{'s' * (len(seeds) > 1)} {numbers}"
    return Progress(config.total_steps, initial=initial, description=label, enabled=enabled, position=position)


# -- warnings, and words about a run's prior ---------------------------------------------------------------------------

NARROW_PRIOR_RATIO = 100
"""A warning is given if the certified share of the free pathway is more than this times its share of the prior."""

_STRICT_WARNING = (
    "the prior allows the free pathway {:.1g}% of the squared weights, practically a strict network: "
    "model.free_variance=certified allows it more"
)


def _restore(config: TrainAgentConfig, agent: Agent, checkpoint: Path) -> None:
    """Restore an agent from a checkpoint.

    Raises:
        RunFolderError: the checkpoint is beyond the configured number of steps.
    """
    agent.restore(load_tensors(checkpoint / building.AGENT_FILE))
    if agent.num_timesteps >= config.total_steps + config.agent.rollout:  # the last rollout may end a little later
        raise RunFolderError(
            f"total_steps={config.total_steps}: the run in {config.folder()} has {agent.num_timesteps} already; "
            "give at least as many, or another run_dir="
        )


def _warn_of_fresh_episode(config: TrainAgentConfig, agent: Agent, step: int, why: str) -> None:
    """Warn that a resumed run starts a fresh episode, and give that episode a new seed."""
    if not step:
        logger.warning(
            "%s, so a run that is interrupted goes on from its last checkpoint with a fresh episode, not bit for bit",
            why,
        )
        return
    logger.warning("seed %d goes on from step %d with a fresh episode", config.seed, step)
    if agent.env is not None:
        agent.env.seed(int(np.random.SeedSequence([config.seed, step]).generate_state(1)[0]))


def _describe_prior(model: ModelConfig, agent: Agent) -> str:
    """The free pathways' share of the prior in words; empty for networks of one pathway."""
    if not model.kind.startswith("rpp"):
        return ""
    networks = agent.policy.networks
    shares = {
        name: prior_share(networks[name]) for name in (("actor", "critic") if model.kind == "rpp" else ("actor",))
    }
    if model.free_variance == LEARNED:
        description = "learned"
    elif model.groups is not None:
        variances = ", ".join(f"{variance:g}" for variance in model.variances or [])
        description = f"variances {variances} of {' > '.join(model.groups)} > 1"
    else:
        description = f"free variance {model.free:.3g}" + " (certified)" * (model.free_variance == CERTIFIED)
    if not any(shares.values()):
        return f"{description}: strict, without a free pathway"
    each = ", ".join(f"{name} {100 * share:.{2 + (share >= 0.995)}g}%" for name, share in shares.items())
    return f"{each}; {description}" + (": practically a strict network" if max(shares.values()) < STRICT_SHARE else "")


def _record_symmetry(folder: RunFolder, spec: SymmetrySpec, env: Any, agent: Agent) -> None:
    """Write the networks' spec and its certificate; warn if there is no certificate, or if it refutes the symmetry.

    The certificate must be for this spec and this very model, weakened actuators included. Without one, the verdicts in the
    spec count: the package has them for stock models.
    """
    building.save_spec(folder, spec)
    certificate, reason = certificate_for(env, spec)
    networks = agent.policy.networks.values()
    narrow = max(map(prior_share, networks)) if agent.policy.model == "rpp" else 1.0
    if certificate is not None:
        write_json(folder.path / "certificate.json", certificate.to_dict())
        certified = share_of(certificate)
        if narrow < min(STRICT_SHARE, certified.share / NARROW_PRIOR_RATIO):
            reason = f"the symmetry of {spec.env_id} is {certified.note}, and {_STRICT_WARNING.format(100 * narrow)}"
    elif spec.symmetries and all(s.verdict in VERDICTS for s in spec.symmetries):
        reason = ""
        if broken := [s.name for s in spec.symmetries if s.verdict == "broken"]:
            reason = f"{spec.env_id}: the simulator refutes {', '.join(broken)}"
            reason += f", and {_STRICT_WARNING.format(100 * narrow)}" if narrow < STRICT_SHARE else ""
    if reason:
        logger.warning("%s", reason)
