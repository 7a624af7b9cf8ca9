"""`rppdyn train-agent`: train RPP-SAC, evaluate it on the way, and be able to go on after any interruption."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict
from functools import partial
from typing import Any

import numpy as np
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.vec_env import DummyVecEnv

from rppdyn.agents import RPPSAC, Agent, LearnVariances, WidenVariances
from rppdyn.agents.policy import prior_share, widest
from rppdyn.agents.trainees import LOG_INTERVAL, Trainee, train_together
from rppdyn.agents.workers import WorkerEnv
from rppdyn.envs import SymmetrySpec, certificate_for, share_of, termination, why_not_capturable
from rppdyn.envs.spec import VERDICTS
from rppdyn.errors import by_user, one_line
from rppdyn.jobs.config.agent import ModelConfig, TrainAgentConfig
from rppdyn.jobs.config.checks import CERTIFIED, LEARNED
from rppdyn.jobs.config.preflight import preflight
from rppdyn.jobs.measuring.loading import load_function
from rppdyn.jobs.training import agent_files
from rppdyn.jobs.training.agent_files import RunState
from rppdyn.jobs.training.building import build_agent, build_env, process_state, spec_of
from rppdyn.jobs.training.callbacks import load_callbacks
from rppdyn.jobs.training.certified import certify_variance
from rppdyn.jobs.training.curves import learning_curves
from rppdyn.jobs.training.evaluations import Aside, Evaluations, Here
from rppdyn.jobs.training.processes import Seeds, Told, portable, shared_out, side_by_side
from rppdyn.jobs.training.recorder import Events, Recorder
from rppdyn.jobs.training.result import TrainAgentResult, TrainManyResult
from rppdyn.priors.shares import NARROW_SHARE
from rppdyn.runs import Progress, RunFolder, RunFolderError, StopRequest, provenance, stop_on_signals
from rppdyn.runs.files import write_json
from rppdyn.runs.loggers import open_loggers
from rppdyn.runs.progress import Shown
from rppdyn.runs.workers import asked_to_stop

logger = logging.getLogger(__name__)

MUCH = 100
"""How many times as large as the free pathway's share of the prior is what a certificate leaves to it, where that is said."""

_STRICT = (
    "the free pathway has {:.1g}% of the prior, strict in all but name: model.free_variance=certified leaves it more"
)

ALONE = 2
"""Threads of one agent, whose critics are two networks: networks that are trained together share out their products."""


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
        stack.enter_context(process_state(config.threads, ALONE))
        run = stack.enter_context(_begun(config))
        stop = stack.enter_context(stop_on_signals())
        bar = stack.enter_context(_bar(config, 1, run.state.step, progress))
        return run.train(stop, bar)


def run_many(config: TrainAgentConfig, *, resume: bool = False, progress: bool = False) -> TrainManyResult:
    """Train the agents of `config.seeds` seeds at once, each into the run folder that it would have alone.

    They are shared out over as many processes as there are threads (on a GPU as `threads` says, or one), up to one for each
    seed; the gradient updates of those of a process are done as one. What ends one seed's training is warned of and said in the
    result; the others go on.
    Arguments as for `run`.

    Raises:
        ValueError: what no seed gets past.
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
    for part in trained:
        found |= {result.seed: result for result in part.results}
        errors |= part.errors
    if errors and not found:
        raise next(iter(errors.values()))
    return TrainManyResult([found[seed] for seed in sorted(found)], errors)


def _train_seeds(waiting: Seeds, threads: int, stop: StopRequest, bar_from: Callable[[int], Shown]) -> TrainManyResult:
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

        trainees = {own.seed: Trainee(partial(build, own), name=f"seed {own.seed}") for own in waiting}
        if runs:
            bar = stack.enter_context(bar_from(min(run.state.step for run in runs.values())))
            for seed, run in runs.items():
                trainees[seed].callback = run.callbacks(run.recorder(stop, bar))
            train_together(list(trainees.values()), waiting[0].total_steps)
            for seed, run in runs.items():
                if trainees[seed].error is None:
                    with trainees[seed].guarded():
                        found.append(run.finish())
    errors = {seed: trainee.error for seed, trainee in trainees.items() if trainee.error is not None}
    return TrainManyResult(found, errors)


def _train_in_turn(
    waiting: Seeds, threads: int, stop: StopRequest, bar_from: Callable[[int], Shown]
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
    return portable(_train_seeds(waiting, threads, asked_to_stop, Told))


class _Run:
    """A run under way: its agent, as its last checkpoint left it, and what it writes.

    Attributes:
        missing: the steps that are left.
    """

    def __init__(
        self,
        config: TrainAgentConfig,
        folder: RunFolder,
        agent: Agent,
        state: RunState,
        evaluations: Evaluations,
        own: list[BaseCallback],
    ):
        self.config, self.folder, self.agent, self.state, self.evaluations = config, folder, agent, state, evaluations
        self._own = own  # callbacks of the user's
        self.missing = config.total_steps - state.step
        self._start, self._provenance = time.monotonic(), provenance()  # a checkout may have moved on when the run ends

    def train(self, stop: StopRequest, bar: Shown) -> TrainAgentResult:
        """Train for the steps that are left, and finish."""
        recorder = self.recorder(stop, bar)
        if self.missing > 0:
            agent, is_new = self.agent, self.state.step == 0
            interval = LOG_INTERVAL * agent.n_envs if isinstance(agent, RPPSAC) else 1  # episodes, or rollouts
            agent.learn(
                self.missing, callback=self.callbacks(recorder), reset_num_timesteps=is_new, log_interval=interval
            )
        return self.finish()

    def recorder(self, stop: StopRequest, bar: Shown) -> Recorder:
        """The callback that evaluates and saves."""
        self._recorder = Recorder(self.config, self.folder, self.evaluations, self.state, stop, bar)
        return self._recorder

    def callbacks(self, recorder: Recorder) -> list[BaseCallback]:
        """What is called at each step: the user's callbacks, what moves variances where they move, and the recorder."""
        model, before = self.config.model, list(self._own)
        if model.widen is not None:
            before.append(WidenVariances(model.widen))
        elif model.free_variance == LEARNED:
            before.append(LearnVariances(model.learn_every))
        return [*before, recorder]

    def _ended_early(self) -> str:
        left = self.config.total_steps - self.state.step
        return f"ended by {' or '.join(self.config.callback_names)}" if left > 0 and self._own else ""

    def finish(self) -> TrainAgentResult:
        """The last evaluation and checkpoint, the final agent, figure and result; unless the run was stopped."""
        config, folder, stopped = self.config, self.folder, self._recorder.stopped
        if not stopped:
            self._recorder.finish(self.agent)
        result = TrainAgentResult(
            run=str(folder.path),
            env=config.env.id,
            model=config.model.kind,
            seed=config.seed,
            steps=self.state.step,
            total_steps=config.total_steps,
            metrics=folder.metrics.last(),
            compiled=self.agent.compiles,
            fresh_episodes=self.agent.fresh_episodes,
            prior=_prior(config.model, self.agent),
            seconds=time.monotonic() - self._start,
            interrupted=stopped,
            note="stopped; a checkpoint was written" if stopped else self._ended_early(),
        )
        if not stopped:
            agent_files.save_model(self.agent, folder)
            folder.write_result({**asdict(result), "provenance": self._provenance})
            learning_curves([folder.path], folder.figures / "learning_curve.png")  # it must not cost the result
        return result


@contextmanager
def _begun(config: TrainAgentConfig) -> Iterator[_Run]:
    """Build a run's agent, or take it from its last checkpoint; the folder is held, and files are open, in the block."""
    folder = RunFolder(config.folder())
    own = load_callbacks(config.callback_names, load_function, config.env.named_by)
    with ExitStack() as stack:
        env = stack.enter_context(closing(build_env(config)))
        spec = spec_of(config, folder, env)
        certify_variance(config.model, folder, env, spec, widest(config.model.hidden), reward=True)
        fresh = why_not_capturable(env)
        stepped, options, count = env, {}, config.agent.num_envs
        if config.workers:
            stepped = stack.enter_context(closing(WorkerEnv(partial(build_env, config), count)))
            if config.agent.imagination is not None:
                options["terminates"] = termination(env)
        elif count > 1:
            stepped = stack.enter_context(closing(DummyVecEnv([partial(build_env, config)] * count)))
        agent = build_agent(config, stepped, spec, **options)
        if count > 1 and agent.env is not None:  # from far apart, so that no two seeds have one in common
            agent.env.seed(int(np.random.SeedSequence(config.seed).generate_state(1)[0]))
        agent.fresh_episodes = bool(fresh)
        if folder.is_vacant():
            folder = RunFolder.create(folder.path, asdict(config))
        stack.enter_context(folder.lock())
        state = agent_files.restore_latest(agent, folder)
        if fresh:
            _say_fresh(config, agent, state, fresh)
        if (is_new := state.evaluated < 0) and folder.result() is not None:
            raise RunFolderError(
                f"{folder.path} was trained to its end and has no checkpoints to go on from: put them back, or choose another "
                "run_dir="
            )
        if is_new and folder.metrics.last():
            logger.warning("%s has records and no checkpoint yet: training begins anew", folder.path)
        if state.step >= config.total_steps + config.agent.rollout:  # a last rollout may end a little later
            raise RunFolderError(
                f"total_steps={config.total_steps}: the run in {folder.path} has {state.step} already; "
                "give at least as many, or another run_dir="
            )
        if state.step < config.total_steps:
            folder.result_file.unlink(missing_ok=True)  # of a shorter run: this one is unfinished
        folder.replace_config(asdict(config))
        _describe_symmetry(folder, spec, env, agent)
        for records in (folder.metrics, folder.timing):
            records.rewind(state.evaluated)
        if (last := folder.metrics.last().get("step", -1)) < state.evaluated:
            logger.warning(
                "%s ends at step %d, and the run was evaluated at step %d: records are lost, and what comes is measured anew",
                folder.metrics.path, last, state.evaluated,
            )  # fmt: skip
            state.evaluated = last
        after = state.step - (state.evaluated < state.step) if state.step else None  # what is measured again is hidden
        writer = Events(open_loggers(config.loggers, folder, asdict(config), after))
        stack.callback(writer.close)
        agent.set_logger(Logger(folder=None, output_formats=[writer]))
        evaluations = stack.enter_context(closing(Aside(config, spec) if config.workers else Here(config)))
        yield _Run(config, folder, agent, state, evaluations, own)


def _say_fresh(config: TrainAgentConfig, agent: Agent, state: RunState, why: str) -> None:
    """Say that episodes begin anew where a run goes on, and begin with one that the run has not seen."""
    if not state.step:
        logger.warning(
            "%s, so a run that is interrupted goes on from its last checkpoint with a fresh episode, not bit for bit",
            why,
        )
        return
    logger.warning("seed %d goes on from step %d with a fresh episode", config.seed, state.step)
    if agent.env is not None:
        agent.env.seed(int(np.random.SeedSequence([config.seed, state.step]).generate_state(1)[0]))


def _bar(config: TrainAgentConfig, count: int, initial: int, enabled: bool) -> Progress:
    """One bar for all runs, which advance together."""
    label = f"{config.env.id} {config.model.kind}" + (f", {count} seeds" if count > 1 else "")
    return Progress(config.total_steps, initial=initial, description=label, enabled=enabled)


def _prior(model: ModelConfig, agent: Agent) -> str:
    """What part of the prior is the free pathways', in words; "" of networks that have one pathway by their kind."""
    if not model.kind.startswith("rpp"):
        return ""
    networks = agent.policy.networks
    shares = {who: prior_share(networks[who]) for who in (("actor", "critic") if model.kind == "rpp" else ("actor",))}
    how = "learned" if model.free_variance == LEARNED else f"free variance {model.free:.3g}"
    if model.groups is not None and model.free_variance != LEARNED:
        how = f"variances {', '.join(f'{v:g}' for v in model.variances)} of {' > '.join(model.groups)} > 1"
    how += " (certified)" if model.free_variance == CERTIFIED else ""
    if not any(shares.values()):
        return f"{how}: strict, without a free pathway"
    each = ", ".join(f"{who} {100 * share:.2g}%" for who, share in shares.items())
    return f"{each}; {how}" + (": strict in all but name" if max(shares.values()) < NARROW_SHARE else "")


def _describe_symmetry(folder: RunFolder, spec: SymmetrySpec, env: Any, agent: Agent) -> None:
    """Write the spec the networks were built for, and what stepping the simulator found of it; warn where that is little.

    A certificate is one of this spec for this very model, weakened actuators included. Where the user has none, what the
    package's authors found of a stock model stands in the spec.
    """
    agent_files.save_spec(folder, spec)
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
