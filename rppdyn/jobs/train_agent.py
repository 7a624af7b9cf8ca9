"""`rppdyn train-agent`: train RPP-SAC, evaluate it on the way, and be able to go on after any interruption."""

from __future__ import annotations

import inspect
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import KVWriter, Logger
from stable_baselines3.common.vec_env import DummyVecEnv

from rppdyn.agents import RPPSAC, Agent, LearnVariances, WidenVariances
from rppdyn.agents.policy import prior_share, widest
from rppdyn.agents.seeds import LOG_INTERVAL, SeedTrainer, train_together
from rppdyn.envs import SymmetrySpec, certificate_for
from rppdyn.envs.certification.certificate import share_of
from rppdyn.envs.spec import VERDICTS
from rppdyn.envs.state import why_not_capturable
from rppdyn.errors import UntrustedError, by_user, one_line
from rppdyn.jobs.config.agent import ModelConfig, TrainAgentConfig
from rppdyn.jobs.config.base import CERTIFIED, LEARNED, ConfigError
from rppdyn.jobs.config.compose import preflight
from rppdyn.jobs.figure import draw_run
from rppdyn.jobs.loading import load_function
from rppdyn.jobs.results import TrainAgentResult, TrainManyResult
from rppdyn.jobs.training import building
from rppdyn.jobs.training.building import build_agent, build_env, capture_into, certify_variance, process_state, spec_of
from rppdyn.jobs.training.evaluation import AsyncEvaluations, Evaluations, SyncEvaluations
from rppdyn.jobs.training.processes import RemoteProgress, Seeds, portable, shared_out, side_by_side
from rppdyn.jobs.training.workers import WorkerEnv
from rppdyn.priors.likelihood import NARROW_SHARE
from rppdyn.runs import Progress, RunFolder, RunFolderError, Session, StopRequest, stop_on_signals
from rppdyn.runs.files import write_json
from rppdyn.runs.session import ProgressBar
from rppdyn.runs.workers import Stopped, WorkerError, asked_to_stop
from rppdyn.settings import keys_of_sections

logger = logging.getLogger(__name__)


# -- evaluations and checkpoints on the way ----------------------------------------------------------------------------


class Recorder(BaseCallback):
    """Evaluates and saves an agent between two of its updates.

    Everything happens before a step is taken and after the updates of the one before, where the agent, its buffer and
    its environment agree; nothing it does draws from the random states that training uses. An evaluation beside training is
    recorded when its values come, at the step that it was begun at; the next one, and the next checkpoint, wait for it. One
    that is due with a checkpoint comes after it, and again in a run that goes on from there.
    """

    def __init__(
        self, run: Session, total_steps: int, evaluations: Evaluations, stop: StopRequest, progress: ProgressBar
    ) -> None:
        super().__init__()
        self.run, self.total_steps, self.evaluations = run, total_steps, evaluations
        self.stop, self.progress = stop, progress
        self.stopped = False
        self._clock = time.monotonic()
        self._counted = run.saved
        self._pending: _Pending | None = None
        self._is_first = True  # of this process's updates

    def _on_rollout_start(self) -> None:
        agent: Any = self.model
        step = agent.num_timesteps
        self.stop.interrupts = False
        if self.stop:
            self.stopped = True
            self._save(agent)  # at once: an evaluation that is under way may take longer than there is
            if self._pending is not None:
                self._record(agent, wait=True)
                self._save(agent)
            return
        self._record(agent, wait=False)
        if self.run.save_due(step):
            self._record(agent, wait=True)
            self._save(agent)
        if self.run.due(step):
            self._evaluate(agent)
        if (
            self._is_first
            and agent.compiles
            and step + agent.train_freq.frequency * agent.n_envs > agent.learning_starts
        ):
            self._is_first = False
            self._record(agent, wait=True)
            if self.run.saved < step:
                self._save(agent)
            self.progress.say("compiling, up to a minute")
            self.stop.interrupts = True  # the checkpoint has all that there is

    def _on_training_end(self) -> None:
        """Begin the last evaluation, so that those of all seeds are under way before one is waited for."""
        agent: Any = self.model
        self.stop.interrupts = False
        if not self.stopped:
            self._evaluate_at_end(agent)

    def _on_step(self) -> bool:
        agent: Any = self.model
        if not self.stop.interrupts:
            self.progress.update(min(agent.num_timesteps, self.total_steps))
        return not self.stopped

    def finish(self, agent: Agent) -> None:
        """The last evaluation and the last checkpoint, where they are not there already."""
        self._evaluate_at_end(agent)
        self._record(agent, wait=True)
        if self.run.saved < agent.num_timesteps:
            self._save(agent)

    def _evaluate_at_end(self, agent: Agent) -> None:
        if self.run.measured < agent.num_timesteps:
            self._evaluate(agent)

    def _save(self, agent: Agent) -> None:
        self.run.checkpoint(agent.num_timesteps, partial(capture_into, agent))

    def _evaluate(self, agent: Agent) -> None:
        agent.record_updates()
        agent.check_finite()  # stop a run that has diverged before it evaluates nothing
        self._record(agent, wait=True)
        step, now = agent.num_timesteps, time.monotonic()
        speed = (step - self._counted) / (now - self._clock) if now > self._clock else 0.0
        self._pending = _Pending(step, _training_metrics(agent), speed)
        self.run.measured = self._counted = step
        agent.logger.dump(step)
        self.evaluations.begin(agent)
        self._clock = time.monotonic()
        self._record(agent, wait=False)

    def _record(self, agent: Agent, wait: bool) -> None:
        """Record the evaluation that was begun last, once."""
        pending = self._pending
        if pending is None:
            return
        start = time.monotonic()
        try:
            found = self.evaluations.found(wait)
        except (WorkerError, RuntimeError) as error:
            self._pending = None
            if self.run.saved < agent.num_timesteps:
                self._save(agent)
            raise type(error)(f"the evaluation at step {pending.step}: {error}") from error
        self._clock += time.monotonic() - start  # what training waited for an evaluation is none of its time
        if found is None:
            return
        values, seconds = found
        timing = {"time/steps_per_second": pending.steps_per_second, "time/evaluation_seconds": seconds}
        # not by the agent's log, whose records may be of a later step
        self.run.record(pending.step, values | pending.training, timing, unlogged=("train/", "prior/"))
        self.progress.show(**{"return": values["eval/return_mean"]})
        self._pending = None


class _Pending(NamedTuple):
    """An evaluation that was begun: at which step, and what else is recorded with it."""

    step: int
    training: dict[str, Any]
    steps_per_second: float


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
    """Pass an agent's log on to a run's loggers, each value under one name and once at a step.

    An agent's log has pathways, too, newer by some updates than those of the last evaluation, which are kept.
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


# -- the user's --------------------------------------------------------------------------------------------------------


def load_callbacks(
    names: Sequence[str], load: Callable[[str], Callable], named_by: str | None = None
) -> list[BaseCallback]:
    """New callbacks: of a class one without arguments, of a function (locals, globals) one that calls it at each step.

    Args:
        names: `module:Class` or `module:function`.
        load: the object that a name stands for.
        named_by: the file that alone names them; no module is imported then.
    Raises:
        UntrustedError: a file alone names them.
        ConfigError: there is none of that name, or it is no callback.
    """
    if names and named_by is not None:
        raise UntrustedError(
            f"{named_by} names the callback {names[0]}, and going on runs the module {names[0].partition(':')[0]!r}: add "
            "--trust if you know where it is from"
        )
    return [_callback(name, load(name)) for name in names]


class _Called(BaseCallback):
    """Calls a function of (locals, globals) at each step; False ends the training, as in stable-baselines3, nothing doesn't."""

    def __init__(self, function: Callable[[dict[str, Any], dict[str, Any]], bool | None]) -> None:
        super().__init__()
        self._function = function

    def _on_step(self) -> bool:
        return self._function(self.locals, self.globals) is not False


def _callback(name: str, found: Callable) -> BaseCallback:
    what = "give a class derived from stable_baselines3's BaseCallback, or a function of (locals, globals)"
    if not inspect.isclass(found):
        return _Called(found)
    if not issubclass(found, BaseCallback):
        raise ConfigError(f"callbacks={name}: the class {found.__name__} is no callback; {what}")
    needed = [p.name for p in list(inspect.signature(found).parameters.values())
              if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]  # fmt: skip
    if needed:
        raise ConfigError(
            f"callbacks={name}: {found.__name__} needs {', '.join(needed)}, and is made without arguments; give them "
            "defaults, or name a class of yours that gives them"
        )
    return found()


# -- runs --------------------------------------------------------------------------------------------------------------

MUCH = 100
"""How many times as large as the free pathway's share of the prior is what a certificate leaves to it, where that is said."""

_STRICT = (
    "the prior allows the free pathway {:.1g}% of the squared weights, practically a strict network: "
    "model.free_variance=certified allows it more"
)


def run(config: TrainAgentConfig, *, resume: bool = False, progress: bool = False) -> TrainAgentResult:
    """Train an agent into its run folder.

    Args:
        resume: go on from the folder's last checkpoint; start where there is no folder yet.
        progress: show a bar on standard error.
    Raises:
        RunFolderError: the folder exists (without `resume`), is in use, or holds another configuration.
        ConfigError, ValueError: the environment, its symmetry or the networks can't be made as configured; no folder
            has been made then.
        CheckpointError: the folder's checkpoints are all damaged.
        ValueError: an observation, a reward or an action that is not finite; the last checkpoint is one from before.
        DivergedError: weights, losses or an optimiser's state are no longer finite; the last checkpoint is one from before.
    """
    finished = preflight(config, resume)
    if finished is not None:
        return TrainAgentResult.from_dict(finished)
    with ExitStack() as stack:
        stack.enter_context(process_state(config.threads))
        run = stack.enter_context(_begun(config))
        stop = stack.enter_context(stop_on_signals())
        bar = stack.enter_context(_bar(config, 1, run.session.saved, progress))
        return run.train(stop, bar)


def run_many(config: TrainAgentConfig, *, resume: bool = False, progress: bool = False) -> TrainManyResult:
    """Train the agents of `config.seeds` seeds at once, each into the run folder that it would have alone.

    They are shared out over as many processes as there are threads (on a GPU as `threads` says, or one), up to one for each
    seed; the gradient updates of those of a process are done as one. What ends one seed's training is warned of and said in the
    result; the others go on.
    Arguments as for `run`.

    Raises:
        ValueError: a fault that stops every seed.
    """
    found: dict[int, TrainAgentResult] = {}
    waiting: list[TrainAgentConfig] = []
    errors: dict[int, Exception] = {}
    for own in config.each():
        try:
            finished = preflight(own, resume)
        except RunFolderError as error:
            if not resume:
                raise
            errors[own.seed] = error
            logger.warning("seed %d: %s", own.seed, error)
            continue
        if finished is None:
            waiting.append(own)
        else:
            found[own.seed] = TrainAgentResult.from_dict(finished)
    parts, threads = shared_out(config, waiting)
    bar_from = partial(_bar, config, len(waiting), enabled=progress)
    with stop_on_signals() as stop:
        if len(parts) > 1:
            trained = side_by_side(partial(_train_part, threads=threads), parts, stop, bar_from)
        else:
            trained = [_train_seeds(waiting, threads, stop, bar_from)]
    if stop and not any(part.results or part.errors for part in trained):
        raise Stopped
    for part in trained:
        found |= {result.seed: result for result in part.results}
        errors |= part.errors
    if errors and not found:
        raise next(iter(errors.values()))
    return TrainManyResult([found[seed] for seed in sorted(found)], errors)


def _train_seeds(
    waiting: Seeds, threads: int, stop: StopRequest, bar_from: Callable[[int], ProgressBar]
) -> TrainManyResult:
    """Train seeds in this process; the bar shows steps from that on at which the last one begins."""
    if waiting and waiting[0].agent.ppo is not None:
        return _train_in_turn(waiting, threads, stop, bar_from)
    runs: dict[int, _Run] = {}
    found: list[TrainAgentResult] = []
    with process_state(threads), ExitStack() as stack:

        def build(own: TrainAgentConfig) -> RPPSAC:
            runs[own.seed] = stack.enter_context(_begun(own))
            agent = runs[own.seed].agent
            assert isinstance(agent, RPPSAC)
            return agent

        stop.interrupts = True
        trainees = {own.seed: SeedTrainer(partial(build, own), name=f"seed {own.seed}") for own in waiting}
        stop.interrupts = False
        if runs:
            bar = stack.enter_context(bar_from(min(run.session.saved for run in runs.values())))
            for seed, run in runs.items():
                trainees[seed].callback = run.callbacks(stop, bar)
            try:
                train_together(list(trainees.values()), waiting[0].total_steps)
            except Stopped:
                for run in runs.values():
                    run.end_at_checkpoint()
            for seed, run in runs.items():
                if trainees[seed].error is None:
                    with trainees[seed].guarded():
                        found.append(run.finish())
    errors = {seed: trainee.error for seed, trainee in trainees.items() if trainee.error is not None}
    return TrainManyResult(found, errors)


def _train_in_turn(
    waiting: Seeds, threads: int, stop: StopRequest, bar_from: Callable[[int], ProgressBar]
) -> TrainManyResult:
    """Train seeds one after the other: updates of PPO are not done as one."""
    found: list[TrainAgentResult] = []
    errors: dict[int, Exception] = {}
    with process_state(threads), bar_from(0) as bar:
        for own in waiting:
            if stop:
                break
            try:
                with _begun(own) as run:
                    found.append(run.train(stop, bar))
            except Exception as error:
                errors[own.seed] = error
                logger.warning("seed %d: %s", own.seed, one_line(error), exc_info=None if by_user(error) else error)
    return TrainManyResult(found, errors)


def _train_part(waiting: Seeds, threads: int) -> TrainManyResult:
    """Train seeds in a worker process."""
    try:
        return portable(_train_seeds(waiting, threads, asked_to_stop, RemoteProgress))
    except Stopped:
        return TrainManyResult([])


class _Run:
    """A run under way: its agent, as its last checkpoint left it, and what it writes.

    Args:
        users: callbacks of the user's.
    """

    def __init__(
        self,
        config: TrainAgentConfig,
        session: Session,
        agent: Agent,
        evaluations: Evaluations,
        users: list[BaseCallback],
    ) -> None:
        self.config, self.session, self.agent = config, session, agent
        self.evaluations, self.users = evaluations, users

    def train(self, stop: StopRequest, bar: ProgressBar) -> TrainAgentResult:
        """Train for the steps that are left, and finish."""
        callbacks, agent, begun = self.callbacks(stop, bar), self.agent, self.session.saved
        if begun < self.config.total_steps:
            interval = LOG_INTERVAL * agent.n_envs if isinstance(agent, RPPSAC) else 1  # episodes, or rollouts
            try:
                agent.learn(
                    self.config.total_steps - begun,
                    callback=callbacks,
                    reset_num_timesteps=begun == 0,
                    log_interval=interval,
                )
            except Stopped:
                self.end_at_checkpoint()
        return self.finish()

    def callbacks(self, stop: StopRequest, bar: ProgressBar) -> list[BaseCallback]:
        """The callbacks of each step: the user's, those that move variances, and the recorder."""
        model, before = self.config.model, list(self.users)
        if model.widen is not None:
            before.append(WidenVariances(model.widen))
        elif model.free_variance == LEARNED:
            before.append(LearnVariances(model.learn_every))
        self._recorder = Recorder(self.session, self.config.total_steps, self.evaluations, stop, bar)
        return [*before, self._recorder]

    def end_at_checkpoint(self) -> None:
        """End where the last checkpoint was taken: what came after it was interrupted."""
        self._recorder.stopped = True

    def _ended_early(self) -> str:
        left = self.config.total_steps - self.session.saved
        return f"ended by {' or '.join(self.config.callback_names)}" if left > 0 and self.users else ""

    def finish(self) -> TrainAgentResult:
        """The last evaluation and checkpoint, the final agent, figure and result; unless the run was stopped."""
        config, folder, stopped = self.config, self.session.folder, self._recorder.stopped
        if not stopped:
            self._recorder.finish(self.agent)
        result = TrainAgentResult(
            run=str(folder.path),
            env=config.env.id,
            model=config.model.kind,
            seed=config.seed,
            steps=self.session.saved,
            total_steps=config.total_steps,
            metrics=folder.metrics.last(),
            compiled=self.agent.compiles,
            fresh_episodes=self.agent.fresh_episodes,
            prior=_prior(config.model, self.agent),
            seconds=self.session.seconds,
            interrupted=stopped,
            note="stopped; a checkpoint was written" if stopped else self._ended_early(),
        )
        if not stopped:
            building.save_model(self.agent, folder)
            self.session.finish(result)
            draw_run(folder, "learning_curve")  # it must not cost the result
        return result


@contextmanager
def _begun(config: TrainAgentConfig) -> Iterator[_Run]:
    """Build a run's agent, or take it from its last checkpoint; the folder is held, and files are open, in the block."""
    users = load_callbacks(config.callback_names, load_function, config.env.named_by)
    with ExitStack() as stack:
        session = stack.enter_context(Session(config))
        env = stack.enter_context(closing(build_env(config)))
        spec = spec_of(config, session.folder, env)
        certify_variance(config.model, session.folder, env, spec, widest(config.model.hidden), reward=True)
        fresh = why_not_capturable(env)
        stepped, count = env, config.agent.num_envs
        if config.workers:
            stepped = stack.enter_context(closing(WorkerEnv(partial(build_env, config), count)))
        elif count > 1:
            stepped = stack.enter_context(closing(DummyVecEnv([partial(build_env, config)] * count)))
        with keys_of_sections(model=config.model, agent=config.agent):
            agent = build_agent(config, stepped, spec)
        if count > 1 and agent.env is not None:  # from far apart, so that no two seeds have one in common
            agent.env.seed(int(np.random.SeedSequence(config.seed).generate_state(1)[0]))
        agent.fresh_episodes = bool(fresh)
        session.begin(
            partial(_restore, config, agent),
            evaluate_every=config.evaluation.every,
            checkpoint_every=config.checkpoint_every,
        )
        if agent.fresh_episodes:
            _say_fresh(config, agent, session.saved, fresh or "its checkpoints hold no environment")
        _describe_symmetry(session.folder, spec, env, agent)
        agent.set_logger(Logger(folder=None, output_formats=[Events(session)]))
        evaluations = stack.enter_context(
            closing(AsyncEvaluations(config, spec) if config.workers else SyncEvaluations(config))
        )
        yield _Run(config, session, agent, evaluations, users)


def _restore(config: TrainAgentConfig, agent: Agent, checkpoint: Path) -> None:
    """Put an agent where a checkpoint left it.

    Raises:
        RunFolderError: it has gone further than is asked for.
    """
    building.restore_from(agent, checkpoint)
    if agent.num_timesteps >= config.total_steps + config.agent.rollout:  # a last rollout may end a little later
        raise RunFolderError(
            f"total_steps={config.total_steps}: the run in {config.folder()} has {agent.num_timesteps} already; "
            "give at least as many, or another run_dir="
        )


def _say_fresh(config: TrainAgentConfig, agent: Agent, step: int, why: str) -> None:
    """Say that episodes begin anew where a run goes on, and begin with one that the run has not seen."""
    if not step:
        logger.warning(
            "%s, so a run that is interrupted goes on from its last checkpoint with a fresh episode, not bit for bit",
            why,
        )
        return
    logger.warning("seed %d goes on from step %d with a fresh episode", config.seed, step)
    if agent.env is not None:
        agent.env.seed(int(np.random.SeedSequence([config.seed, step]).generate_state(1)[0]))


def _bar(config: TrainAgentConfig, count: int, initial: int, enabled: bool) -> Progress:
    """One bar for all runs, which advance together."""
    label = f"{config.env.id} {config.model.kind}" + (f", {count} seeds" if count > 1 else "")
    return Progress(config.total_steps, initial=initial, description=label, enabled=enabled)


def _prior(model: ModelConfig, agent: Agent) -> str:
    """Return the free pathways' share of the prior in words; "" of networks that have one pathway by their kind."""
    if not model.kind.startswith("rpp"):
        return ""
    networks = agent.policy.networks
    shares = {who: prior_share(networks[who]) for who in (("actor", "critic") if model.kind == "rpp" else ("actor",))}
    how = "learned" if model.free_variance == LEARNED else f"free variance {model.free:.3g}"
    if model.groups is not None and model.free_variance != LEARNED:
        how = f"variances {', '.join(f'{v:g}' for v in model.variances or [])} of {' > '.join(model.groups)} > 1"
    how += " (certified)" if model.free_variance == CERTIFIED else ""
    if not any(shares.values()):
        return f"{how}: strict, without a free pathway"
    each = ", ".join(f"{who} {100 * share:.2g}%" for who, share in shares.items())
    return f"{each}; {how}" + (": practically a strict network" if max(shares.values()) < NARROW_SHARE else "")


def _describe_symmetry(folder: RunFolder, spec: SymmetrySpec, env: Any, agent: Agent) -> None:
    """Write the spec the networks were built for, and what stepping the simulator found of it; warn where that is little.

    A certificate is one of this spec for this very model, weakened actuators included. Where the user has none, what the
    package's authors found of a stock model stands in the spec.
    """
    building.save_spec(folder, spec)
    certificate, reason = certificate_for(env, spec)
    networks = agent.policy.networks.values()
    narrow = max(map(prior_share, networks)) if agent.policy.model == "rpp" else 1.0
    if certificate is not None:
        write_json(folder.path / "certificate.json", certificate.to_dict())
        found = share_of(certificate)
        if narrow < min(NARROW_SHARE, found.share / MUCH):
            reason = f"the symmetry of {spec.env_id} is {found.note}, and {_STRICT.format(100 * narrow)}"
    elif spec.symmetries and all(s.verdict in VERDICTS for s in spec.symmetries):
        broken = [s.name for s in spec.symmetries if s.verdict == "broken"]
        reason = f"{spec.env_id}: the simulator refutes {', '.join(broken)}" if broken else ""
        reason += f", and {_STRICT.format(100 * narrow)}" if broken and narrow < NARROW_SHARE else ""
    if reason:
        logger.warning("%s", reason)
