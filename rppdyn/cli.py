"""The command `rppdyn`: one verb per job.

Each verb's arguments are read by argparse; for a verb with a configuration, what is left are Hydra overrides, checked
before anything heavy is imported. What a user did wrong ends in one line and exit status 2; anything else keeps its
traceback.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from rppdyn._version import __version__
from rppdyn.errors import modules_of, place_in_users_code
from rppdyn.verbs import HELP, INTERRUPTED, TRACEBACK, Parser, UsageError, Verb, report_error, training_verb

if TYPE_CHECKING:
    from rppdyn.jobs.config import command


# -- verbs that take flags: a run, an environment or a file, and what is asked of it -----------------------------------


def flag_verb(schema: str, summary: str, execute: Callable[[Any], int]) -> Verb:
    """The verb whose words and flags are the fields of a dataclass in `rppdyn.jobs.config.command`."""

    def config() -> type:
        return getattr(import_module("rppdyn.jobs.config.command"), schema)

    return Verb(summary, lambda parser: parser.add_fields(config()), lambda given: execute(config()(**vars(given))))


def _require_runs(*paths: str) -> None:
    """Refuse what is no run's folder before anything heavy is imported."""
    from rppdyn.runs import RunFolder

    for path in paths:
        RunFolder.open(path)


def _print_measured(measure: Callable[[], Any], table: Callable[..., str]) -> int:
    """Print the table of what is measured, also where no file can be written; that is said then, as any other error."""
    from rppdyn.runs.files import UnwrittenError

    try:
        print(table(measure()))
    except UnwrittenError as error:
        print(table(error.result, written=False), flush=True)
        raise
    return 0


def _measure(job: str, config: Any, of: str, **options: Any) -> int:
    """Print the table of a job, `of` a run or of something else."""
    if getattr(config, "kind", "run") == "run":
        _require_runs(of)
    module = import_module(f"rppdyn.jobs.{job}")
    return _print_measured(lambda: module.run(config, **options), module.table)


def evaluate_agent(config: command.EvaluateAgentConfig) -> int:
    if config.kind == "run":
        _require_runs(config.run)
    from rppdyn.jobs import playing

    return _print_measured(lambda: playing.evaluate(config, progress=True), playing.table)


def export(config: command.ExportConfig) -> int:
    if config.kind == "run":
        _require_runs(config.what)
    from rppdyn.jobs import export

    print(export.table(export.run(config)))
    return 0


def equivariance(config: command.EquivarianceConfig) -> int:
    if config.kind == "run":
        _require_runs(config.what)
    if config.env is not None:
        from rppdyn.jobs.config.compose import require_environment

        require_environment(config.env)
    return _measure("equivariance", config, config.what)


def discover(config: command.DiscoverConfig) -> int:
    return _measure("discover", config, config.what)


def predict(config: command.PredictConfig) -> int:
    return _measure("predict", config, config.run)


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

    options = {key: value for key, value in vars(arguments).items() if key not in ("overrides", "random")}
    config = CollectConfig(env=compose.environment(arguments.overrides), **options)
    if config.kind == "run":
        _require_runs(str(config.source))
    from rppdyn.jobs import playing

    print(playing.collect(config, progress=True))
    return 0


def _compare(job: str, config: command.ReportConfig | command.FigureConfig) -> int:
    from rppdyn.jobs.config.command import is_agent_file

    _require_runs(*(run for run in config.runs if not is_agent_file(run)))
    print(import_module(f"rppdyn.jobs.{job}").run(config))
    return 0


def certify(config: command.CertifyConfig) -> int:
    if not config.is_model_file:
        from rppdyn.jobs.config.compose import require_environment

        require_environment(config.what)
    from rppdyn.jobs import certify

    if config.log is not None:
        return _print_measured(lambda: certify.find(config), lambda found, **_: found.table())
    status = _print_measured(lambda: certify.run(config, progress=True), lambda found, **_: found.table())
    if config.rank:
        print("\n" + certify.rank(config).table())
    return status


def audit(config: command.AuditConfig) -> int:
    """Print the audit; exit with 1 where the map is wrong."""
    from rppdyn.jobs import audit

    right: list[bool] = []

    def table(found: Any, **_: Any) -> str:
        right.append(found.is_right)
        return found.table()

    return _print_measured(lambda: audit.run(config, progress=True), table) or int(not right[0])


# -- the command -------------------------------------------------------------------------------------------------------

FLAG = "--traceback"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line; the exit status."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        with modules_of(os.getcwd()):
            return _dispatch(words)
    except KeyboardInterrupt:
        print("rppdyn: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # the reader of our output has gone, as in `rppdyn ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (Exception, SystemExit) as error:
        if isinstance(error, SystemExit) and place_in_users_code(error) is None:  # argparse's, of --help
            raise
        with _tracebacks(FLAG in words):
            return report_error(error)


@contextmanager
def _tracebacks(wanted: bool) -> Iterator[None]:
    """Have errors said with their tracebacks in the block, also by the processes that are started there."""
    before = os.environ.get(TRACEBACK)
    if wanted:
        os.environ[TRACEBACK] = "1"
    try:
        yield
    finally:
        if wanted and before is None:
            os.environ.pop(TRACEBACK, None)
        elif wanted and before is not None:
            os.environ[TRACEBACK] = before


def _dispatch(words: list[str]) -> int:
    if words and not words[0].startswith("-"):
        name = words[0]
        if name not in VERBS:
            from rppdyn.settings import did_you_mean

            raise UsageError(f"unknown verb {name!r}{did_you_mean(name, VERBS)}; choose one of {', '.join(VERBS)}")
        verb = VERBS[name]
        parser = Parser(
            prog=f"rppdyn {name}",
            description=f"{verb.summary}.".capitalize(),
            formatter_class=HELP,
            allow_abbrev=False,
        )
        verb.arguments(parser)
        parser.add_argument(
            FLAG, action="store_true", help=f"print where an error comes from ({TRACEBACK}=1 does so, too)"
        )
        parsed = parser.parse_intermixed_args(words[1:])
        with _tracebacks(vars(parsed).pop("traceback")):
            return verb.execute(parsed)
    parser = Parser(
        prog="rppdyn",
        usage="rppdyn VERB ... | rppdyn VERB --help | rppdyn --version",
        description="Residual pathway priors: approximate symmetry for reinforcement learning and dynamics.",
        epilog="verbs:\n" + "\n".join(f"  {name:15} {verb.summary}" for name, verb in VERBS.items()),
        formatter_class=HELP,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"rppdyn {__version__}")
    parser.parse_args(words)
    parser.print_help()
    return 0


VERBS: dict[str, Verb] = {
    "train-agent": training_verb(
        "train_agent",
        "train a soft actor-critic with symmetry priors",
        result="rppdyn.jobs.results:TrainAgentResult",
        trusts=True,
    ),
    "evaluate-agent": flag_verb("EvaluateAgentConfig", "play episodes with a trained agent", evaluate_agent),
    "export": flag_verb("ExportConfig", "write a policy as an ONNX or torch file for a robot", export),
    "certify": flag_verb("CertifyConfig", "check an environment's symmetries in the simulator", certify),
    "audit": flag_verb("AuditConfig", "judge a hand-written map of observations in the simulator", audit),
    "equivariance": flag_verb(
        "EquivarianceConfig", "measure how equivariant an agent, a fit or any function is", equivariance
    ),
    "discover": flag_verb(
        "DiscoverConfig", "find the continuous symmetry of a fit, an agent or any function", discover
    ),
    "predict": flag_verb("PredictConfig", "predict from arrays with the model of a finished run", predict),
    "collect": Verb("write episodes of an agent, or of random actions, as a dataset", collect_arguments, collect),
    "report": flag_verb("ReportConfig", "compare runs on one HTML page", partial(_compare, "report")),
    "figure": flag_verb("FigureConfig", "draw runs in one picture", partial(_compare, "figure")),
    "fit-dynamics": training_verb(
        "fit_dynamics",
        "fit Hamiltonian and neural-ODE models to trajectories, your own too",
        others=("fit_trajectories",),
    ),
    "fit-regression": training_verb("fit_regression", "fit networks with symmetry priors to a regression task"),
    "fit-transition": training_verb(
        "fit_transition", "fit models of an environment's transitions to a dataset", trusts=True
    ),
    "fit-image": training_verb("fit_image", "fit relaxed image models, with symmetry given or learned"),
    "bound": training_verb(
        "bound_regression",
        "bound what networks get wrong by how shortly they can be coded",
        others=("bound_image",),
        module="bound",
    ),
}


if __name__ == "__main__":
    if not sys.flags.safe_path:
        del sys.path[0]  # the current folder, which `python -m` puts before everything installed
    sys.exit(main())
