"""The command `rppdyn`, with a verb (a subcommand) for each job.

argparse reads the arguments of a verb. For a verb with a configuration the other words are Hydra overrides, checked before
anything heavy is imported. An error of the user ends in one line and exit status 2; any other error keeps its traceback.
"""

from __future__ import annotations

import argparse
import logging
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import chdir, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from statistics import fmean
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, NoReturn, get_args, get_origin

from rppdyn._version import __version__
from rppdyn.errors import (
    UserCodeError,
    UserError,
    is_from_drawing,
    is_out_of_memory,
    is_out_of_space,
    is_user_error,
    modules_of,
    one_line,
    place_in_users_code,
)

if TYPE_CHECKING:
    from rppdyn.jobs.config import command

USER_ERROR = 2
INTERRUPTED = 130
TRACEBACK_VARIABLE = "RPPDYN_TRACEBACK"
"""Environment variable; unless it is 0 or empty, tracebacks are printed."""


class UsageError(UserError):
    """The command line can't be understood."""


MAX_CHARACTERS = 2000
"""Largest length of an error message; longer ones are cut in the middle."""


class Parser(argparse.ArgumentParser):
    describe: Callable[[], str] | None = None  # makes the end of the help text, when it is shown

    def format_help(self) -> str:
        if self.describe is not None:
            self.epilog = self.describe()
        return super().format_help()

    def add_fields(self, schema: type) -> None:
        """Add the arguments described by a class of settings; the default of a number is added to its help."""
        from rppdyn.settings import fields_of

        for name, item in fields_of(schema).items():
            if not isinstance(item.json_schema_extra, dict):
                continue
            words: dict[str, Any] = {"help": item.description, **item.json_schema_extra}
            if "flag" not in words:
                self.add_argument(name, **words)
                continue
            flag = words.pop("flag") or f"--{name.replace('_', '-')}"
            kinds = [item.annotation, *get_args(item.annotation)]
            if item.annotation is bool:
                words["action"] = "store_true"
                del words["metavar"]
            elif item.is_required():
                words["required"] = True
            else:
                words["default"] = item.default
            if choices := [choice for kind in kinds if get_origin(kind) is Literal for choice in get_args(kind)]:
                words["metavar"] = words["metavar"] or f"{{{','.join(choices)}}}"
            if item.annotation in (int, float):
                words["help"] += f" ({item.default})"
            self.add_argument(flag, dest=name, **words)

    def parse_intermixed_args(self, args=None, namespace=None):
        """Parse as argparse does, and refuse empty words."""
        namespace = super().parse_intermixed_args(args, namespace)
        for action in self._actions:
            value = getattr(namespace, action.dest, None)
            if value == [] and action.option_strings:  # as argparse reads --out=--
                value = ""
            for text in value if isinstance(value, list) else [value]:
                if isinstance(text, str) and not text.strip():
                    name = action.option_strings[0] if action.option_strings else action.metavar
                    self.error(f"{name} is empty: give a value, or leave it out")
        return namespace

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; see {self.prog} --help")


HELP_FORMATTER = argparse.RawDescriptionHelpFormatter


@dataclass(frozen=True)
class Verb:
    """A verb of the command line: its summary, its arguments, and the function that executes it."""

    summary: str
    arguments: Callable[[Parser], None]
    execute: Callable[[argparse.Namespace], int]


def report_error(error: BaseException, prefix: str = "") -> int:
    """Print an error of the user in one line, behind a prefix; raise other errors again."""
    if not is_user_error(error):
        raise error
    message = one_line(error)
    if os.environ.get(TRACEBACK_VARIABLE, "0") not in ("", "0"):
        traceback.print_exception(error)
    elif isinstance(error, UserCodeError) or place_in_users_code(error) is not None:
        message += " (--traceback shows the rest)"
    if is_out_of_memory(error):
        message = f"not enough memory for sizes as configured: {message or type(error).__name__}; give smaller ones"
    if is_out_of_space(error):
        message = f"no room for a file ({message}): make room, or raise the limit, and type it again (runs: --resume)"
    if is_from_drawing(error):
        message = f"MUJOCO_GL={os.environ.get('MUJOCO_GL')}: {message}; unset it, or give a library that is installed"
    # control characters would change a terminal
    message = "".join(c if c.isprintable() else repr(c)[1:-1] for c in prefix + message)
    if len(message) > MAX_CHARACTERS:
        message = f"{message[: MAX_CHARACTERS // 2]} ... {message[-MAX_CHARACTERS // 2 :]}"
    print(f"rppdyn: error: {message}", file=sys.stderr)
    return USER_ERROR


# -- verbs that train --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Training:
    """A job that trains something into a run folder.

    Attributes:
        name: name of its configuration.
        others: configurations of the same verb for other tasks, selected by the choice of the task.
        trusts: whether its files, runs or datasets, may name a module.
        module: module in `rppdyn.jobs`; empty if it has the name of the configuration.
    """

    name: str
    others: tuple[str, ...] = ()
    trusts: bool = False
    module: str = ""

    @property
    def implementation(self) -> ModuleType:
        """The module of the job."""
        return import_module(f"rppdyn.jobs.{self.module or self.name}")

    def choose_task(self, words: Sequence[str]) -> Training:
        """The job with the configuration selected by `task=` among overrides."""
        if not self.others:
            return self
        from rppdyn.jobs.config.compose import choices
        from rppdyn.settings import ConfigError, did_you_mean

        tasks = {task: name for name in (self.name, *self.others) for task in choices("task", name)}
        values = [word.removeprefix("task=").strip("'\"") for word in words if word.startswith("task=")]
        requested = [task.strip("'\" ") for value in values for task in value.split(",")]
        for task in requested:
            if task not in tasks and re.fullmatch(r"\w+", task):
                raise ConfigError(
                    f"task={task}: no such choice{did_you_mean(task, tasks)}; choose one of {', '.join(tasks)}"
                )
        names = {tasks[task] for task in requested if task in tasks}
        if len(names) > 1:
            raise ConfigError(f"task={','.join(requested)}: these tasks have different keys; give one kind at a time")
        return replace(self, name=names.pop()) if names else self

    @property
    def objective(self) -> tuple[str, str]:
        """The metric that a search optimises, and the direction."""
        if self.name == "train_agent":
            return "eval/return_mean", "maximize"
        return ("bound/value" if self.module == "bound" else "validation/error"), "minimize"

    def value_of(self, result: Any) -> float:
        """The objective of a result, the mean over seeds.

        Raises:
            ValueError: a run was stopped, or a member diverged; a failed seed's own error.
        """
        for error in getattr(result, "errors", {}).values():  # of seeds
            raise error
        name, _ = self.objective
        values: list[float | None] = []
        for run in getattr(result, "results", [result]):
            value = {**run.metrics, **getattr(run, "test", {})}.get(name)
            values += value if isinstance(value, list) else [value]
        if not values or any(value is None for value in values):
            raise ValueError(f"{name} is no number: the run was stopped, or a member diverged")
        return fmean(value for value in values if value is not None)

    def choose_by_run(self, run: str) -> Training:
        """The job with the configuration of a run."""
        if not self.others:
            return self
        from rppdyn.jobs.config.compose import name_of_run
        from rppdyn.runs import RunFolder

        name = name_of_run(RunFolder.open(run))
        return replace(self, name=name) if name in self.others else self

    def run(self, config: Any, resume: bool, trust: bool) -> Any:
        """Train, or read the result of a finished run."""
        from rppdyn.jobs import results  # a light module, so that a finished run is shown at once
        from rppdyn.jobs.config.compose import preflight

        finished = preflight(config, resume)
        if finished is not None and not getattr(config, "report", None):  # a page of a finished fit is the job's
            kind = results.TrainAgentResult if self.name == "train_agent" else results.FitResult
            return kind.from_dict(finished)
        options = {"trust": trust} if hasattr(config, "dataset") else {}  # a stored run was checked when it was read
        return self.implementation.run(config, resume=resume, progress=True, **options)


def training_verb(summary: str, job: Training) -> Verb:
    """A verb with a configuration, whose job trains something into a run folder."""
    return Verb(summary, partial(_training_arguments, job), partial(_train, job))


def _training_arguments(job: Training, parser: Parser) -> None:
    def describe() -> str:
        from rppdyn.jobs.config import compose

        return "\n\n".join(map(compose.describe, (job.name, *job.others)))

    parser.describe = describe
    parser.usage = f"{parser.prog} [--resume [RUN]] [--multirun] [--cfg job] [KEY=VALUE ...]"
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="changes to the configuration below")
    parser.add_argument(
        "--resume",
        action="store_true",
        help="go on from the last checkpoint of the run RUN, or of the run that has this configuration",
    )
    parser.add_argument(
        "-m",
        "--multirun",
        action="store_true",
        help="run every combination of values such as seed=0,1,2 (Hydra's sweep)",
    )
    parser.add_argument(
        "-c", "--cfg", choices=("job", "hydra", "all"), help="print the configuration as YAML, or Hydra's own, and stop"
    )
    if job.trusts:
        from rppdyn.jobs.config.command import TRUST

        parser.add_argument("--trust", action="store_true", help=TRUST)


def _train(job: Training, arguments: argparse.Namespace) -> int:
    from rppdyn.jobs.config import compose
    from rppdyn.jobs.config.compose import expand_own_data_words
    from rppdyn.runs import RunFolder

    words: list[str] = arguments.overrides
    trust = job.trusts and arguments.trust
    run, words = _run_argument(words) if arguments.resume else (None, words)
    words = expand_own_data_words(job.name, words, begun=run is not None)
    job = job.choose_task(words) if run is None else job.choose_by_run(run)
    if arguments.cfg is not None:
        for flag in ("resume", "multirun"):
            if vars(arguments)[flag]:
                raise UsageError(
                    f"--cfg {arguments.cfg} with --{flag}: one configuration is shown; leave out one of the two"
                )
        compose.show(job.name, words, arguments.cfg)
        return 0
    if run is not None:
        if arguments.multirun:
            raise UsageError(f"--resume {run} with --multirun: a folder is one run; leave out one of the two")
        for word in words:
            if word.lstrip("+").startswith(("run_dir=", "runs_root=")):
                raise UsageError(f"--resume {run} with {word}: it goes on where it is; leave out one of the two")
        config = compose.from_run(job.name, RunFolder.open(run), words, trust=trust)
        config.run_dir = run
        if len(config.runs()) > 1:
            raise UsageError(f"--resume {run} with seeds={config.seeds}: a folder is one run; leave out one of the two")
        return _run_training(job, config, True, trust)[0]
    if not arguments.multirun:
        return _run_training(job, compose.composed(job.name, words), arguments.resume, trust)[0]

    if compose.is_search(words):
        return _search(job, words, trust)
    configs = compose.compose_sweep(job.name, words)
    folders = [run.folder() for config in configs for run in config.runs()]
    for folder in folders:
        if folders.count(folder) > 1:
            raise UsageError(f"several runs of this sweep share the folder {folder}: {_folder_advice(configs)}")
        if not arguments.resume:
            RunFolder(folder).refuse_existing()
    with _show_warnings_once(job):
        statuses = compose.sweep(job.name, words, _SweepTask(job, arguments.resume, trust))
    return int(max(statuses, default=0))


def _search(job: Training, words: Sequence[str], trust: bool) -> int:
    """Search for good settings by Hydra's Optuna sweeper; trials with a finished run are read, not repeated."""
    from rppdyn.jobs.config import compose

    name, direction = job.objective
    if not any(word.startswith("hydra.sweeper.direction=") for word in words):
        words = [*words, f"hydra.sweeper.direction={direction}"]
    base = compose.compose_search(job.name, words)
    if base.run_dir is not None:
        raise UsageError(
            f"run_dir={base.run_dir} in a search: its trials would share the folder; give runs_root= instead"
        )
    search = compose.search(job.name, words, _SweepTask(job, True, trust, searches=True))
    best = " ".join(f"{key}={value}" for key, value in search["best_params"].items())
    print(f"best of {search['trials']} trials: {name} {search['best_value']:.4g} with {best}")
    print(f"  written to {search['file']}; each trial's run is below {Path(base.runs_root, base.verb)}")
    return 0


@contextmanager
def _show_log(name: str) -> Iterator[None]:
    """Print the informational log records of a module in the block."""
    handler, module = logging.StreamHandler(), logging.getLogger(name)
    level = module.level
    module.addHandler(handler)
    module.setLevel(logging.INFO)
    try:
        yield
    finally:
        module.setLevel(level)
        module.removeHandler(handler)


@contextmanager
def _show_warnings_once(job: Training) -> Iterator[None]:
    """Show each warning of several runs once in the block."""
    messages: set[tuple[str, str]] = set()

    def is_new(record: logging.LogRecord) -> bool:
        count = len(messages)
        messages.add((record.name, record.getMessage()))
        return len(messages) > count

    _ = job.implementation  # its import makes the loggers
    loggers = [logging.getLogger(name) for name in logging.root.manager.loggerDict if name.startswith("rppdyn")]
    for logger in loggers:
        logger.addFilter(is_new)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(is_new)


def _folder_advice(configs: Sequence[Any]) -> str:
    """Advice on how to give the runs of a sweep different folders."""
    seeds = max(getattr(config, "seeds", 1) for config in configs)
    if seeds > 1 and all(config.run_dir is None for config in configs):
        return (
            f"with seeds={seeds} a run has the seeds from seed= on; sweep over seed=0,{seeds},... or leave out seeds="
        )
    return "leave out run_dir=, or sweep over it"


class _SweepTask:
    """One job of a sweep, called by Hydra's launchers; picklable, since some run it in another process or on another machine.

    Attributes:
        searches: return the job's objective, for a search, not its status.
        folder: working folder of the sweep, for relative paths; some launchers run elsewhere.
    """

    def __init__(self, job: Training, resume: bool, trust: bool, searches: bool = False):
        self.__name__ = job.name  # Hydra's name of the job
        self.searches = searches
        self.job = job
        self.resume = resume
        self.trust = trust
        self.folder = Path.cwd()

    def __call__(self, node: Any) -> float:
        from rppdyn.jobs.config import compose

        config = None
        try:
            with chdir(self.folder), modules_of(self.folder):
                config = compose.read_config(self.job.name, node)
                status, result = _run_training(self.job, config, resume=self.resume, trust=self.trust)
                value = self.job.value_of(result) if self.searches and status != INTERRUPTED else float(status)
        except Exception as error:  # reported here, so that later jobs still run
            folder = "" if config is None else str(config.folder())
            status = report_error(error, prefix="" if folder in str(error) else f"{folder}: ")
            if self.searches:  # a trial that failed
                raise
            return status
        if status == INTERRUPTED:
            raise KeyboardInterrupt
        return value


def _run_argument(words: list[str]) -> tuple[str | None, list[str]]:
    """Split the words after --resume into the run's folder, if there is one, and the overrides."""
    folders = [word for word in words if "=" not in word or Path(word).is_dir()]
    if len(folders) > 1:
        raise UsageError(f"--resume takes one run, and {', '.join(folders)} were given; resume each by itself")
    return (folders[0] if folders else None), [word for word in words if word not in folders]


def _run_training(job: Training, config: Any, resume: bool, trust: bool) -> tuple[int, Any]:
    """Run a configuration, of one or several seeds; returns the exit status and the result."""
    log = _show_log("rppdyn.runs.session") if resume else nullcontext()
    if len(config.runs()) > 1:
        with _show_warnings_once(job), log:
            result = job.implementation.run_many(config, resume=resume, progress=True)
        print(result)
        if result.interrupted:
            return INTERRUPTED, result
        fixable = all(map(is_user_error, result.errors.values()))
        return (0 if not result.errors else USER_ERROR if fixable else 1), result
    with log:
        result = job.run(config, resume, trust)
    print(result)
    return (INTERRUPTED if result.interrupted else 0), result


# -- verbs with flags --------------------------------------------------------------------------------------------------


def flag_verb(schema: str, summary: str, job: str | Callable[[Any], int], **options: Any) -> Verb:
    """A verb whose arguments are the fields of a class of settings in `rppdyn.jobs.config.command`."""

    def config() -> type:
        return getattr(import_module("rppdyn.jobs.config.command"), schema)

    execute = partial(_run_job, job, **options) if isinstance(job, str) else job
    return Verb(summary, lambda parser: parser.add_fields(config()), lambda words: execute(config()(**vars(words))))


def _print_measured(measure: Callable[[], Any], table: Callable[..., str]) -> Any:
    """Measure and print the table, even if a file can't be written; that error is then raised."""
    from rppdyn.runs.files import UnwrittenError

    try:
        print(table(result := measure()))
    except UnwrittenError as error:
        print(table(error.result, written=False), flush=True)
        raise
    return result


def _run_job(job: str, config: Any, **options: Any) -> int:
    """Run `module:function` of `rppdyn.jobs` and print its result; wrong run folders are refused before heavy imports."""
    from rppdyn.jobs.config.command import is_agent_file
    from rppdyn.runs import RunFolder

    if hasattr(config, "runs"):
        runs = [run for run in config.runs if not is_agent_file(run)]
    else:
        runs = [getattr(config, "what", None) or config.run] if getattr(config, "kind", "run") == "run" else []
    for run in runs:
        RunFolder.open(run)
    if getattr(config, "env", None) is not None:
        from rppdyn.jobs.config.compose import require_environment

        require_environment(config.env)
    module_name, _, function = job.partition(":")
    module = import_module(f"rppdyn.jobs.{module_name}")
    table = getattr(module, "table", lambda result, **_: str(result))
    _print_measured(lambda: getattr(module, function)(config, **options), table)
    return 0


def collect_arguments(parser: Parser) -> None:
    from rppdyn.jobs.config.command import CollectConfig

    parser.usage = f"{parser.prog} [env=ENV ...] (--from SOURCE | --random) [options]"
    parser.add_argument(
        "overrides",
        nargs="*",
        metavar="KEY=VALUE",
        help="the environment: env=, env.kwargs.NAME=, env.actuator_scale.NAME= (a run has its own)",
    )
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument(
        "--from", dest="source", metavar="SOURCE", help="a run of train-agent, or a stable-baselines3 .zip"
    )
    source.add_argument("--random", action="store_true", help="actions drawn uniformly within their bounds")
    parser.add_fields(CollectConfig)


def collect(arguments: argparse.Namespace) -> int:
    from rppdyn.jobs.config import compose
    from rppdyn.jobs.config.command import CollectConfig
    from rppdyn.runs import RunFolder

    options = {key: value for key, value in vars(arguments).items() if key not in ("overrides", "random")}
    config = CollectConfig(env=compose.environment(arguments.overrides), **options)
    if config.kind == "run":
        RunFolder.open(str(config.source))
    from rppdyn.jobs import playing

    print(playing.collect(config, progress=True))
    return 0


def certify(config: command.CertifyConfig) -> int:
    if not config.is_model_file:
        from rppdyn.jobs.config.compose import require_environment

        require_environment(config.what)
    from rppdyn.jobs import certify

    find = partial(certify.run, config, progress=True) if config.log is None else partial(certify.find, config)
    _print_measured(find, lambda result, **_: result.table())
    if config.rank:
        print("\n" + certify.rank(config).table())
    return 0


def audit(config: command.AuditConfig) -> int:
    """Print the audit; the exit status is 1 if the map is wrong."""
    from rppdyn.jobs import certify

    return int(not _print_measured(lambda: certify.audit(config), lambda result, **_: result.table()).is_right)


# -- the command -------------------------------------------------------------------------------------------------------

TRACEBACK_FLAG = "--traceback"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line, and return the exit status."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        with modules_of(os.getcwd()):
            return _dispatch(words)
    except KeyboardInterrupt:
        print("rppdyn: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # the reader of the output is gone, as in `rppdyn ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (Exception, SystemExit) as error:
        if isinstance(error, SystemExit) and place_in_users_code(error) is None:  # from argparse, for --help
            raise
        with _tracebacks(TRACEBACK_FLAG in words):
            return report_error(error)


@contextmanager
def _tracebacks(enabled: bool) -> Iterator[None]:
    """Show tracebacks of errors in the block, also in processes started there."""
    before = os.environ.get(TRACEBACK_VARIABLE)
    if enabled:
        os.environ[TRACEBACK_VARIABLE] = "1"
    try:
        yield
    finally:
        if enabled and before is None:
            os.environ.pop(TRACEBACK_VARIABLE, None)
        elif enabled and before is not None:
            os.environ[TRACEBACK_VARIABLE] = before


def _dispatch(words: list[str]) -> int:
    if words and not words[0].startswith("-"):
        name = words[0]
        if name not in VERBS:
            from rppdyn.settings import did_you_mean

            raise UsageError(f"unknown verb {name!r}{did_you_mean(name, VERBS)}; choose one of {', '.join(VERBS)}")
        verb = VERBS[name]
        parser = Parser(
            prog=f"rppdyn {name}",
            description=f"{verb.summary[:1].upper()}{verb.summary[1:]}.",
            formatter_class=HELP_FORMATTER,
            allow_abbrev=False,
        )
        verb.arguments(parser)
        parser.add_argument(
            TRACEBACK_FLAG,
            action="store_true",
            help=f"print where an error comes from ({TRACEBACK_VARIABLE}=1 does so, too)",
        )
        parsed = parser.parse_intermixed_args(words[1:])
        with _tracebacks(vars(parsed).pop("traceback")):
            return verb.execute(parsed)
    parser = Parser(
        prog="rppdyn",
        usage="rppdyn VERB ... | rppdyn VERB --help | rppdyn --version",
        description="Residual pathway priors: approximate symmetry for reinforcement learning and dynamics.",
        epilog="verbs:\n" + "\n".join(f"  {name:15} {verb.summary}" for name, verb in VERBS.items()),
        formatter_class=HELP_FORMATTER,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"rppdyn {__version__}")
    parser.parse_args(words)
    parser.print_help()
    return 0


VERBS: dict[str, Verb] = {
    "train-agent": training_verb(
        "train a soft actor-critic with symmetry priors",
        Training("train_agent", trusts=True),
    ),
    "evaluate-agent": flag_verb(
        "EvaluateAgentConfig", "play episodes with a trained agent", "playing:evaluate", progress=True
    ),
    "export": flag_verb("ExportConfig", "write a policy as an ONNX or torch file for a robot", "export:run"),
    "certify": flag_verb("CertifyConfig", "check an environment's symmetries in the simulator", certify),
    "audit": flag_verb("AuditConfig", "judge a hand-written map of observations in the simulator", audit),
    "equivariance": flag_verb(
        "EquivarianceConfig", "measure how equivariant an agent, a fit or any function is", "equivariance:run"
    ),
    "discover": flag_verb(
        "DiscoverConfig", "find the continuous symmetry of a fit, an agent or any function", "discover:run"
    ),
    "predict": flag_verb("PredictConfig", "predict from arrays with the model of a finished run", "predict:run"),
    "collect": Verb("write episodes of an agent, or of random actions, as a dataset", collect_arguments, collect),
    "report": flag_verb("ReportConfig", "compare runs on one HTML page", "report:run"),
    "figure": flag_verb("FigureConfig", "draw runs in one picture", "figure:run"),
    "fit-dynamics": training_verb(
        "fit Hamiltonian and neural-ODE models to trajectories, your own too",
        Training("fit_dynamics", ("fit_trajectories",)),
    ),
    "fit-regression": training_verb(
        "fit networks with symmetry priors to a regression task", Training("fit_regression")
    ),
    "fit-transition": training_verb(
        "fit models of an environment's transitions to a dataset", Training("fit_transition", trusts=True)
    ),
    "fit-image": training_verb("fit relaxed image models, with symmetry given or learned", Training("fit_image")),
    "bound": training_verb(
        "bound the risk of networks on new data by the length of their code",
        Training("bound_regression", ("bound_image",), module="bound"),
    ),
}


if __name__ == "__main__":
    if not sys.flags.safe_path:
        del sys.path[0]  # the current folder, which `python -m` puts first
    from rppdyn import cli  # other processes of a sweep would not find the classes of __main__

    sys.exit(cli.main())
