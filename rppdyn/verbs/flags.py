"""The verbs that take flags: a run, an environment or a file, and what is asked of it."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from rppdyn.verbs.verb import Parser


def _seed_of_episodes(parser: Parser) -> None:
    parser.add_argument(
        "--seed", type=int, default=10_000, help="of the first episode's reset; the others follow (10000)"
    )


def _print_measured(measure: Callable[[], Any], table: Callable[..., str]) -> int:
    """Print the table of what is measured, also where no file can be written; that is said then, as any other error."""
    from rppdyn.runs.files import UnwrittenError

    try:
        print(table(measure()))
    except UnwrittenError as error:
        print(table(error.result, written=False), flush=True)
        raise
    return 0


def trust_argument(parser: Parser) -> None:
    """Let what a file names be imported, and pickles be read."""
    parser.add_argument(
        "--trust",
        action="store_true",
        help="let the file run code, its own or of modules it names: you know where it is from",
    )


def _vecnormalize(parser: Parser) -> None:
    parser.add_argument(
        "--vecnormalize",
        metavar="FILE",
        help="what VecNormalize.save wrote beside a .zip, whose policy saw such observations",
    )


def evaluate_agent_arguments(parser: Parser) -> None:
    parser.add_argument(
        "run",
        metavar="RUN",
        help="the folder of a run of train-agent, a stable-baselines3 .zip, an .onnx or .pt2 of rppdyn export, or "
        "pretrained:NAME, an agent that comes with rppdyn (pretrained:Walker2d-v5)",
    )
    parser.add_argument("--episodes", type=int, default=10, help="how many (10)")
    _seed_of_episodes(parser)
    parser.add_argument("--video", metavar="FILE", default=None, help="film the first episode: a .gif or .mp4")
    parser.add_argument("--env", metavar="ENV", help="of a file: the environment that it plays in")
    trust_argument(parser)
    _vecnormalize(parser)


def evaluate_agent(arguments: argparse.Namespace) -> int:
    from rppdyn.jobs.config.command import EvaluateAgentConfig
    from rppdyn.runs import RunFolder

    config = EvaluateAgentConfig(**vars(arguments))
    if config.kind == "run":
        RunFolder.open(config.run)
    if config.video is not None:  # before MuJoCo is imported, which fails where MUJOCO_GL names what is not there
        from rppdyn.jobs.training.film import require_format

        require_format(config.video)
    from rppdyn.jobs import evaluate_agent

    return _print_measured(lambda: evaluate_agent.run(config, progress=True), evaluate_agent.table)


def export_arguments(parser: Parser) -> None:
    parser.add_argument(
        "what", metavar="WHAT", help="the folder of a run of train-agent, a stable-baselines3 .zip, or pretrained:NAME"
    )
    parser.add_argument("--onnx", metavar="FILE", help="write an ONNX model, .onnx")
    parser.add_argument("--torch", metavar="FILE", help="write a program of torch.export, .pt2")
    parser.add_argument("--env", metavar="ENV", help="of a .zip: the environment that the files are checked in")
    parser.add_argument("--states", type=int, default=1000, help="how many they are checked on (1000)")
    _seed_of_episodes(parser)
    trust_argument(parser)
    _vecnormalize(parser)


def export(arguments: argparse.Namespace) -> int:
    from rppdyn.jobs.config.command import ExportConfig
    from rppdyn.runs import RunFolder

    config = ExportConfig(**vars(arguments))
    if config.kind == "run":
        RunFolder.open(config.what)
    from rppdyn.jobs import export

    print(export.table(export.run(config)))
    return 0


def equivariance_arguments(parser: Parser) -> None:
    parser.add_argument(
        "what",
        metavar="WHAT",
        help="a run's folder, a stable-baselines3 .zip, a torch.export .pt2, pretrained:NAME, or module:function (n inputs "
        "to n outputs)",
    )
    parser.add_argument("--env", metavar="ENV", help="the environment that a policy, or a function like one, is for")
    parser.add_argument(
        "--symmetry", metavar="NAME", help="which one, for example D4 (the run's own, or the default one)"
    )
    parser.add_argument(
        "--group", metavar="GROUP", help='in place of --env, or of the group that a fit was given, for example "SO(3)"'
    )
    parser.add_argument(
        "--rep-in", metavar="REP", help='how inputs transform under --group, for example "5*T(0)+5*T(1)"'
    )
    parser.add_argument("--rep-out", metavar="REP", help='how outputs do, for example "T(2)"')
    parser.add_argument(
        "--from",
        dest="states_from",
        metavar="SOURCE",
        help="where states come from: rollouts (exploring episodes of its own; the default), reset, normal (standard "
        "normal inputs), test (of a fit; its default), or a .npy or .npz file",
    )
    parser.add_argument("--states", type=int, default=2000, help="how many, evenly spaced in what there is (2000)")
    parser.add_argument("--episodes", type=int, default=10, help="how many episodes they are taken from (10)")
    _seed_of_episodes(parser)
    parser.add_argument(
        "--image",
        metavar="FILE",
        help="images for module:function, a model of images or a function that makes one: .npy or .npz (n, channels, "
        "height, width), a picture, or digits",
    )
    parser.add_argument(
        "--transformations", metavar="NAMES", help="of images, for example translation_x,rotation,stretch_x,brightening"
    )
    parser.add_argument(
        "--weights", metavar="FILE", help="of that model: torch.save of its state_dict, or .safetensors"
    )
    parser.add_argument("--whole", metavar="NAMES", help="modules of it that are taken as one layer each")
    trust_argument(parser)
    _vecnormalize(parser)
    parser.add_argument("--json", metavar="FILE", help="where the result goes (RUN/equivariance.json)")
    parser.add_argument(
        "--figure", metavar="FILE", help="where it is drawn: png, svg, pdf (RUN/figures/equivariance.png)"
    )


def equivariance(arguments: argparse.Namespace) -> int:
    from rppdyn.jobs.config.command import EquivarianceConfig
    from rppdyn.runs import RunFolder

    config = EquivarianceConfig(**vars(arguments))
    if config.kind == "run":
        RunFolder.open(config.what)
    if config.env is not None:
        from rppdyn.jobs.config.compose import require_environment

        require_environment(config.env)
    from rppdyn.jobs import equivariance

    return _print_measured(lambda: equivariance.run(config), equivariance.table)


def discover_arguments(parser: Parser) -> None:
    parser.add_argument(
        "what",
        metavar="WHAT",
        help="a run (of an agent, fit-dynamics, fit-regression or fit-transition), module:function, a Minari dataset, or an "
        "environment's id",
    )
    parser.add_argument(
        "--family", metavar="GROUP", help='whose generators are searched, for example "GL(3)" (of a run GL(n))'
    )
    parser.add_argument(
        "--rep-in", metavar="REP", help='how the family acts on inputs, for example "4*V"; a run of a task brings it'
    )
    parser.add_argument("--rep-out", metavar="REP", help="and on outputs")
    parser.add_argument(
        "--blocks",
        metavar="NAMES",
        help='of a transition model or an agent: vectors among its entries, "torso velocity, tau" by one matrix, those '
        'behind a semicolon by another, entries joined by "+"; by default all with x, y and z',
    )
    parser.add_argument(
        "--from",
        dest="states_from",
        metavar="STATES",
        help="test (the default of a fit), rollouts (of an agent), reset, normal, or a .npy or .npz file",
    )
    parser.add_argument("--episodes", type=int, default=5, help="of an agent, that states are from (5)")
    parser.add_argument("--states", type=int, default=500, help="how many at most (500)")
    parser.add_argument("--seed", type=int, default=0, help="of normal states (0)")
    parser.add_argument(
        "--steps", type=int, default=6000, help="of random actions in an environment, or of a run at most (6000)"
    )
    parser.add_argument(
        "--no-signs", dest="signs", action="store_false", help="exchange a robot's joints only; none changes direction"
    )
    parser.add_argument("--json", metavar="FILE", help="where the result is written (RUN/discover.json)")
    trust_argument(parser)


def discover(arguments: argparse.Namespace) -> int:
    from rppdyn.jobs.config.command import DiscoverConfig
    from rppdyn.runs import RunFolder

    config = DiscoverConfig(**vars(arguments))
    if config.kind == "run":
        RunFolder.open(config.what)
    from rppdyn.jobs import discover

    return _print_measured(lambda: discover.run(config), discover.table)


def predict_arguments(parser: Parser) -> None:
    parser.add_argument("run", metavar="RUN", help="a finished run")
    parser.add_argument("--data", default="", metavar="FILE", help="an NPZ file with the arrays that the model takes")
    parser.add_argument("--out", default="", metavar="FILE", help="where the array `prediction` is written (.npz)")
    parser.add_argument("--members", default="mean", metavar="WHICH", help="mean over seeds (the default), or all")
    trust_argument(parser)


def predict(arguments: argparse.Namespace) -> int:
    from rppdyn.jobs.config.command import PredictConfig
    from rppdyn.runs import RunFolder

    config = PredictConfig(**vars(arguments))
    RunFolder.open(config.run)
    from rppdyn.jobs import predict

    return _print_measured(lambda: predict.run(config), predict.table)


def collect_arguments(parser: Parser) -> None:
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
    parser.add_argument(
        "--play",
        choices=("exploring", "deterministic"),
        help="episodes of the policy, in place of a run's replay buffer; a .zip explores unless told otherwise",
    )
    parser.add_argument(
        "--steps", type=int, help="how many at least, in whole episodes (50000, or all that a replay buffer holds)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of resets and actions, or of which episodes are drawn (0)")
    parser.add_argument("--name", metavar="ID", help="the dataset's Minari id (rppdyn/ENV/SOURCE-v0)")
    trust_argument(parser)
    _vecnormalize(parser)


def collect(arguments: argparse.Namespace) -> int:
    from rppdyn.jobs.config import compose
    from rppdyn.jobs.config.command import CollectConfig
    from rppdyn.runs import RunFolder

    options = {key: value for key, value in vars(arguments).items() if key not in ("overrides", "random")}
    config = CollectConfig(env=compose.environment(arguments.overrides), **options)
    if config.kind == "run":
        RunFolder.open(str(config.source))
    from rppdyn.jobs import collect

    print(collect.run(config, progress=True))
    return 0


def report_arguments(parser: Parser) -> None:
    parser.add_argument(
        "runs",
        nargs="+",
        metavar="RUN",
        help="run folders, those that differ in the seed alone go together; stable-baselines3 .zip files, which play episodes",
    )
    parser.add_argument("--out", metavar="FILE", default="report.html", help="the page (report.html)")
    _env_of_files(parser)


def report_runs(arguments: argparse.Namespace) -> int:
    from rppdyn.jobs.config.command import ReportConfig, is_agent_file
    from rppdyn.runs import RunFolder

    config = ReportConfig(**vars(arguments))
    for run in config.runs:
        if not is_agent_file(run):
            RunFolder.open(run)
    from rppdyn.jobs import report

    print(report.run(config))
    return 0


def figure_arguments(parser: Parser) -> None:
    parser.add_argument(
        "runs",
        nargs="+",
        metavar="RUN",
        help="run folders, of agents or of fits; agents that differ in the seed alone are one curve; or .zip of "
        "stable-baselines3",
    )
    parser.add_argument("--out", metavar="FILE", required=True, help="the picture: png, svg, pdf")
    parser.add_argument(
        "--json", metavar="FILE", help="also write the runs' configurations, results and metrics to FILE"
    )
    _env_of_files(parser)


def _env_of_files(parser: Parser) -> None:
    parser.add_argument("--env", metavar="ENV", help="of stable-baselines3 files: the environment that they play in")
    trust_argument(parser)


def figure(arguments: argparse.Namespace) -> int:
    from rppdyn.jobs.config.command import FigureConfig, is_agent_file
    from rppdyn.runs import RunFolder

    config = FigureConfig(**vars(arguments))
    for run in config.runs:
        if not is_agent_file(run):
            RunFolder.open(run)
    from rppdyn.jobs import figure

    print(figure.run(config))
    return 0


def certify_arguments(parser: Parser) -> None:
    parser.add_argument(
        "what", metavar="WHAT", help="an environment's identifier, for example Walker2d-v5, or an .xml or .urdf file"
    )
    parser.add_argument("--symmetry", metavar="NAME", help="which one, for example D4 (the default one); several: a+b")
    parser.add_argument(
        "--variant", choices=("derived", "published"), default="derived", help="published: as the papers have it"
    )
    parser.add_argument("--spec", metavar="FILE", help="a YAML file of the terms that the environment observes")
    parser.add_argument("--states", type=int, default=400, help="how many are mirrored, stepped and compared (400)")
    parser.add_argument("--seed", type=int, default=0, help="of the states and actions that are compared (0)")
    parser.add_argument(
        "--solver", choices=("stock", "tight"), default="stock", help="tight: solve contact forces to rounding"
    )
    parser.add_argument("--json", metavar="FILE", help="also write the certificate to FILE")
    parser.add_argument("--figure", metavar="FILE", help="also draw it (png, svg or pdf)")
    parser.add_argument(
        "--rank",
        action="store_true",
        help="also repair what deviates in the model, one by one, and rank it by its effect",
    )
    parser.add_argument(
        "--from", dest="log", metavar="DATASET", help="name the part that is at fault in these transitions instead"
    )


def certify(arguments: argparse.Namespace) -> int:
    from rppdyn.jobs.config.command import CertifyConfig

    config = CertifyConfig(**vars(arguments))
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


def audit_arguments(parser: Parser) -> None:
    parser.add_argument(
        "what", metavar="WHAT", help="module:function, which maps observations (n, dim) to their images"
    )
    parser.add_argument(
        "--model", metavar="FILE", required=True, help="the robot: an .xml or .urdf file, or an environment"
    )
    parser.add_argument("--observation", metavar="TERMS", required=True, help="a YAML file that lists the terms")
    parser.add_argument(
        "--actions", metavar="WHAT", help="module:function for actions, where WHAT maps observations only"
    )
    parser.add_argument(
        "--symmetry", metavar="NAME", help="which one, for example left-right (the file's own); several: a+b"
    )
    parser.add_argument("--states", type=int, default=40, help="how many are mirrored, stepped and compared (40)")
    parser.add_argument("--seed", type=int, default=0, help="of these states (0)")
    parser.add_argument("--json", metavar="FILE", help="also write what was found to FILE")


def audit(arguments: argparse.Namespace) -> int:
    """Print the audit; exit with 1 where the map is wrong."""
    from rppdyn.jobs.config.command import AuditConfig

    config = AuditConfig(**vars(arguments))
    from rppdyn.jobs import audit

    right: list[bool] = []

    def table(found: Any, **_: Any) -> str:
        right.append(found.is_right)
        return found.table()

    return _print_measured(lambda: audit.run(config, progress=True), table) or int(not right[0])


def cache_arguments(parser: Parser) -> None:
    parser.add_argument(
        "--clear", action="store_true", help="remove them; bases are solved again and datasets made again when needed"
    )


def cache(arguments: argparse.Namespace) -> int:
    from rppdyn.jobs import cache

    print(cache.run(clear=arguments.clear))
    return 0
