"""The verbs that take flags: a run, an environment or a file, and what is asked of it."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from rppdyn.verbs.verb import Parser, Verb

if TYPE_CHECKING:
    from rppdyn.jobs.config import command


def flag_verb(schema: str, summary: str, execute: Callable[[Any], int]) -> Verb:
    """The verb whose words and flags are the fields of a dataclass in `rppdyn.jobs.config.command`."""

    def config() -> type:
        return getattr(import_module("rppdyn.jobs.config.command"), schema)

    return Verb(summary, lambda parser: parser.add_fields(config()), lambda given: execute(config()(**vars(given))))


def _require_run(path: str) -> None:
    """Refuse what is no run's folder before anything heavy is imported."""
    from rppdyn.runs import RunFolder

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


def evaluate_agent(config: command.EvaluateAgentConfig) -> int:
    if config.kind == "run":
        _require_run(config.run)
    if config.video is not None:  # before MuJoCo is imported, which fails where MUJOCO_GL names what is not there
        from rppdyn.jobs.training.film import require_format

        require_format(config.video)
    from rppdyn.jobs import evaluate_agent

    return _print_measured(lambda: evaluate_agent.run(config, progress=True), evaluate_agent.table)


def export(config: command.ExportConfig) -> int:
    if config.kind == "run":
        _require_run(config.what)
    from rppdyn.jobs import export

    print(export.table(export.run(config)))
    return 0


def equivariance(config: command.EquivarianceConfig) -> int:
    if config.kind == "run":
        _require_run(config.what)
    if config.env is not None:
        from rppdyn.jobs.config.compose import require_environment

        require_environment(config.env)
    from rppdyn.jobs import equivariance

    return _print_measured(lambda: equivariance.run(config), equivariance.table)


def discover(config: command.DiscoverConfig) -> int:
    if config.kind == "run":
        _require_run(config.what)
    from rppdyn.jobs import discover

    return _print_measured(lambda: discover.run(config), discover.table)


def predict(config: command.PredictConfig) -> int:
    _require_run(config.run)
    from rppdyn.jobs import predict

    return _print_measured(lambda: predict.run(config), predict.table)


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
        _require_run(str(config.source))
    from rppdyn.jobs import collect

    print(collect.run(config, progress=True))
    return 0


def report_runs(config: command.ReportConfig) -> int:
    from rppdyn.jobs.config.command import is_agent_file

    for run in config.runs:
        if not is_agent_file(run):
            _require_run(run)
    from rppdyn.jobs import report

    print(report.run(config))
    return 0


def figure(config: command.FigureConfig) -> int:
    from rppdyn.jobs.config.command import is_agent_file

    for run in config.runs:
        if not is_agent_file(run):
            _require_run(run)
    from rppdyn.jobs import figure

    print(figure.run(config))
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


def cache(config: command.CacheConfig) -> int:
    from rppdyn.jobs import cache

    print(cache.run(clear=config.clear))
    return 0
