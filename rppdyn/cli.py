"""The command `rppdyn`: one verb per job.

Each verb's arguments are read by argparse; for a verb with a configuration, what is left are Hydra overrides, checked
before anything heavy is imported. What a user did wrong ends in one line and exit status 2; anything else keeps its
traceback.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from rppdyn._version import __version__
from rppdyn.errors import by_user

USER_ERROR = 2
INTERRUPTED = 130


class UsageError(ValueError):
    """The command line can't be understood."""


class _Parser(argparse.ArgumentParser):
    describe: Callable[[], str] | None = None  # what the help text ends with, made only when it is shown

    def format_help(self) -> str:
        if self.describe is not None:
            self.epilog = self.describe()
        return super().format_help()

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; see {self.prog} --help")


_Help = argparse.RawDescriptionHelpFormatter


@dataclass(frozen=True)
class Verb:
    """A word after `rppdyn`: what it does, its arguments, and the function that does it."""

    summary: str
    arguments: Callable[[_Parser], None]
    execute: Callable[[argparse.Namespace], int]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line; the exit status."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        with _modules_from_here():
            return _dispatch(words)
    except KeyboardInterrupt:
        print("rppdyn: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # the reader of our output has gone, as in `rppdyn ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (ValueError, OSError) as error:
        return _report(error)


@contextlib.contextmanager
def _modules_from_here() -> Iterator[None]:
    """Let env=my_robot:MyRobot-v0 find my_robot.py in the current folder, as `python -m` does.

    It is searched last, so that nothing installed is hidden by a file that happens to lie here.
    """
    here = os.getcwd()
    missing = here not in sys.path
    if missing:
        sys.path.append(here)
    try:
        yield
    finally:
        if missing and here in sys.path:
            sys.path.remove(here)


def _dispatch(words: list[str]) -> int:
    if words and not words[0].startswith("-"):
        name = words[0]
        if name not in VERBS:
            from rppdyn.jobs.checks import did_you_mean

            raise UsageError(f"unknown verb {name!r}{did_you_mean(name, VERBS)}; choose one of {', '.join(VERBS)}")
        verb = VERBS[name]
        parser = _Parser(
            prog=f"rppdyn {name}",
            description=f"{verb.summary}.".capitalize(),
            formatter_class=_Help,
            allow_abbrev=False,
        )
        verb.arguments(parser)
        return verb.execute(parser.parse_intermixed_args(words[1:]))
    parser = _Parser(
        prog="rppdyn",
        usage="rppdyn VERB ... | rppdyn VERB --help | rppdyn --version",
        description="Residual pathway priors: approximate symmetry for reinforcement learning and dynamics.",
        epilog="verbs:\n" + "\n".join(f"  {name:15} {verb.summary}" for name, verb in VERBS.items()),
        formatter_class=_Help,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"rppdyn {__version__}")
    parser.parse_args(words)
    parser.print_help()
    return 0


def _report(error: Exception, of: str = "") -> int:
    """Say what a user did wrong, and in which of several runs, in one line; raise again what wasn't the user."""
    if not by_user(error):
        raise error
    print(f"rppdyn: error: {of}{' '.join(str(error).split())}", file=sys.stderr)
    return USER_ERROR


# the verbs that train -----------------------------------------------------------------------------------------------


def _training(name: str, summary: str) -> Verb:
    """The verb of a configuration whose job trains something into a run folder."""
    return Verb(summary, partial(_training_arguments, name), partial(_train, name))


def _training_arguments(name: str, parser: _Parser) -> None:
    def describe() -> str:
        from rppdyn.jobs import compose

        return compose.describe(name)

    parser.describe = describe
    parser.usage = f"{parser.prog} [--resume [RUN]] [--multirun] [KEY=VALUE ...]"
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="changes to the configuration below")
    parser.add_argument(
        "--resume",
        action="store_true",
        help="go on from the last checkpoint, of the run RUN or of this configuration's",
    )
    parser.add_argument(
        "-m",
        "--multirun",
        action="store_true",
        help="run every combination of values such as seed=0,1,2 (Hydra's sweep)",
    )


def _train(name: str, arguments: argparse.Namespace) -> int:
    from rppdyn.jobs import compose
    from rppdyn.runs import RunFolder

    words: list[str] = arguments.overrides
    run, words = _run_argument(words) if arguments.resume else (None, words)
    if run is not None:
        if arguments.multirun:
            raise UsageError(f"--resume {run} with --multirun: a folder is one run; leave out one of the two")
        for word in words:
            if word.lstrip("+").startswith(("run_dir=", "runs_root=")):
                raise UsageError(f"--resume {run} with {word}: it goes on where it is; leave out one of the two")
        config = compose.from_run(name, RunFolder.open(run), words)
        config.run_dir = run
        if name == "train_agent" and config.seeds > 1:
            raise UsageError(f"--resume {run} with seeds={config.seeds}: a folder is one run; leave out one of the two")
        return _train_one(name, config, resume=True)
    if not arguments.multirun:
        return _train_one(name, compose.composed(name, words), resume=arguments.resume)

    configs = compose.composed_sweep(name, words)
    folders = [own.folder() for config in configs for own in (config.each() if name == "train_agent" else [config])]
    for folder in folders:
        if folders.count(folder) > 1:
            raise UsageError(f"several runs of this sweep share the folder {folder}: {_apart(configs)}")
        if not arguments.resume:
            RunFolder(folder).refuse_existing()
    statuses = compose.sweep(name, words, _SweepTask(name, resume=arguments.resume))
    return max(statuses, default=0)


def _apart(configs: Sequence[Any]) -> str:
    """What keeps the folders of a sweep apart."""
    seeds = max(getattr(config, "seeds", 1) for config in configs)
    if seeds > 1 and all(config.run_dir is None for config in configs):
        return (
            f"with seeds={seeds} a run has the seeds from seed= on; sweep over seed=0,{seeds},... or leave out seeds="
        )
    return "leave out run_dir=, or sweep over it"


class _SweepTask:
    """One job of a sweep, as Hydra's launchers call it; picklable, since some start it in another process or machine.

    Attributes:
        folder: where the sweep was started, in which the job's relative paths are; some launchers' workers are elsewhere.
    """

    def __init__(self, name: str, resume: bool):
        self.__name__ = name  # what Hydra calls the job
        self.resume = resume
        self.folder = Path.cwd()

    def __call__(self, node: Any) -> int:
        from rppdyn.jobs import compose

        config = None
        try:
            with contextlib.chdir(self.folder):
                config = compose.as_config(self.__name__, node)
                status = _train_one(self.__name__, config, resume=self.resume)
        except (ValueError, OSError) as error:  # said here, so that the jobs after this one still run
            known = config is None or str(config.folder()) in str(error)
            return _report(error, of="" if known else f"{config.folder()}: ")
        if status == INTERRUPTED:
            raise KeyboardInterrupt
        return status


def _run_argument(words: list[str]) -> tuple[str | None, list[str]]:
    """The run's folder among the words after --resume, if one is given, and the overrides."""
    folders = [word for word in words if "=" not in word or Path(word).is_dir()]
    if len(folders) > 1:
        raise UsageError(f"--resume takes one run, and {', '.join(folders)} were given; resume each by itself")
    return (folders[0] if folders else None), [word for word in words if word not in folders]


def _train_one(name: str, config: Any, resume: bool) -> int:
    from rppdyn.jobs.preflight import preflight

    if name == "train_agent" and config.seeds > 1:
        several = import_module("rppdyn.jobs.train_agent").run_many(config, resume=resume, progress=True)
        print(several)
        return INTERRUPTED if several.interrupted else USER_ERROR if several.errors else 0
    finished = preflight(config, resume)
    if finished is not None:
        results = import_module("rppdyn.jobs.training_result" if name == "train_agent" else "rppdyn.jobs.fit_result")
        result = (results.TrainAgentResult if name == "train_agent" else results.FitResult).from_dict(finished)
    else:
        result = import_module(f"rppdyn.jobs.{name}").run(config, resume=resume, progress=True)
    print(result)
    return INTERRUPTED if result.interrupted else 0


# the verbs that take a run or an environment --------------------------------------------------------------------------


def _evaluate_agent_arguments(parser: _Parser) -> None:
    parser.add_argument("run", metavar="RUN", help="the folder of a run of train-agent")
    parser.add_argument("--episodes", type=int, default=10, help="how many (10)")
    parser.add_argument(
        "--seed", type=int, default=10_000, help="of the first episode's reset; the others follow (10000)"
    )
    parser.add_argument("--video", metavar="FILE", default=None, help="film the first episode: a .gif or .mp4")


def _evaluate_agent(arguments: argparse.Namespace) -> int:
    from rppdyn.jobs.command_schema import EvaluateAgentConfig
    from rppdyn.runs import RunFolder

    config = EvaluateAgentConfig(
        run=arguments.run, episodes=arguments.episodes, seed=arguments.seed, video=arguments.video
    )
    RunFolder.open(config.run)
    if config.video is not None:  # before MuJoCo is imported, which fails where MUJOCO_GL names what is not there
        from rppdyn.jobs.film import require_format

        require_format(config.video)
    from rppdyn.jobs import evaluate_agent

    print(evaluate_agent.table(evaluate_agent.run(config, progress=True)))
    return 0


def _equivariance_arguments(parser: _Parser) -> None:
    parser.add_argument(
        "what",
        metavar="WHAT",
        help="a run's folder, a stable-baselines3 .zip, a torch.export .pt2, or module:function (n inputs to n outputs)",
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
    parser.add_argument(
        "--seed", type=int, default=10_000, help="of the first episode's reset; the others follow (10000)"
    )
    parser.add_argument(
        "--trust", action="store_true", help="load a file or module that may run code: you know where it is from"
    )
    parser.add_argument(
        "--vecnormalize",
        metavar="FILE",
        help="what VecNormalize.save wrote beside a .zip, whose policy saw such observations",
    )
    parser.add_argument("--json", metavar="FILE", help="where the result goes (RUN/equivariance.json)")
    parser.add_argument(
        "--figure", metavar="FILE", help="where it is drawn: png, svg, pdf (RUN/figures/equivariance.png)"
    )


def _equivariance(arguments: argparse.Namespace) -> int:
    from rppdyn.jobs.command_schema import EquivarianceConfig
    from rppdyn.runs import RunFolder

    config = EquivarianceConfig(**vars(arguments))
    if config.kind == "run":
        RunFolder.open(config.what)
    if config.env is not None:
        from rppdyn.jobs.compose import require_environment

        require_environment(config.env)
    from rppdyn.jobs import equivariance

    print(equivariance.table(equivariance.run(config)))
    return 0


def _collect_arguments(parser: _Parser) -> None:
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
    parser.add_argument("--trust", action="store_true", help="load a file that may run code: you know where it is from")
    parser.add_argument(
        "--vecnormalize",
        metavar="FILE",
        help="what VecNormalize.save wrote beside a .zip, whose policy saw such observations",
    )


def _collect(arguments: argparse.Namespace) -> int:
    from rppdyn.jobs import compose
    from rppdyn.jobs.command_schema import CollectConfig
    from rppdyn.runs import RunFolder

    options = {key: value for key, value in vars(arguments).items() if key not in ("overrides", "random")}
    config = CollectConfig(env=compose.environment(arguments.overrides), **options)
    if config.kind == "run":
        RunFolder.open(str(config.source))
    from rppdyn.jobs import collect

    print(collect.run(config, progress=True))
    return 0


def _report_arguments(parser: _Parser) -> None:
    parser.add_argument(
        "runs", nargs="+", metavar="RUN", help="run folders; those that differ in the seed alone go together"
    )
    parser.add_argument("--out", metavar="FILE", default="report.html", help="the page (report.html)")


def _report_runs(arguments: argparse.Namespace) -> int:
    from rppdyn.jobs.command_schema import ReportConfig
    from rppdyn.runs import RunFolder

    config = ReportConfig(**vars(arguments))
    for run in config.runs:
        RunFolder.open(run)
    from rppdyn.jobs import report

    print(report.run(config))
    return 0


def _certify_arguments(parser: _Parser) -> None:
    parser.add_argument(
        "what", metavar="WHAT", help="an environment's identifier, for example Walker2d-v5, or an .xml or .urdf file"
    )
    parser.add_argument("--symmetry", metavar="NAME", help="which one, for example D4 (the default one); several: a+b")
    parser.add_argument(
        "--variant", choices=("derived", "published"), default="derived", help="published: as the papers have it"
    )
    parser.add_argument("--states", type=int, default=400, help="how many are mirrored, stepped and compared (400)")
    parser.add_argument("--seed", type=int, default=0, help="of the states and actions that are compared (0)")
    parser.add_argument(
        "--solver", choices=("stock", "tight"), default="stock", help="tight: solve contact forces to rounding"
    )
    parser.add_argument("--json", metavar="FILE", help="also write the certificate to FILE")
    parser.add_argument("--figure", metavar="FILE", help="also draw it (png, svg or pdf)")


def _certify(arguments: argparse.Namespace) -> int:
    from rppdyn.jobs.command_schema import CertifyConfig

    config = CertifyConfig(**vars(arguments))
    if not config.what.lower().endswith((".xml", ".mjcf", ".urdf")):
        from rppdyn.jobs.compose import require_environment

        require_environment(config.what)
    from rppdyn.jobs import certify

    print(certify.run(config, progress=True).table())
    return 0


def _cache_arguments(parser: _Parser) -> None:
    parser.add_argument(
        "--clear", action="store_true", help="remove them; bases are solved again and datasets made again when needed"
    )


def _cache(arguments: argparse.Namespace) -> int:
    from rppdyn.jobs import cache

    print(cache.run(clear=arguments.clear))
    return 0


VERBS: dict[str, Verb] = {
    "train-agent": _training("train_agent", "train a soft actor-critic with symmetry priors"),
    "evaluate-agent": Verb("play episodes with a trained agent", _evaluate_agent_arguments, _evaluate_agent),
    "certify": Verb("check an environment's symmetries in the simulator", _certify_arguments, _certify),
    "equivariance": Verb(
        "measure how equivariant an agent, a fit or any function is", _equivariance_arguments, _equivariance
    ),
    "collect": Verb("write episodes of an agent, or of random actions, as a dataset", _collect_arguments, _collect),
    "report": Verb("compare runs on one HTML page", _report_arguments, _report_runs),
    "fit-dynamics": _training("fit_dynamics", "fit Hamiltonian and neural-ODE models to a pendulum"),
    "fit-regression": _training("fit_regression", "fit networks with symmetry priors to a regression task"),
    "fit-transition": _training("fit_transition", "fit models of an environment's transitions to a dataset"),
    "fit-image": _training("fit_image", "fit relaxed image models, with symmetry given or learned"),
    "cache": Verb("show where solved bases and datasets are kept, and clear them", _cache_arguments, _cache),
}


if __name__ == "__main__":
    sys.exit(main())
