"""The command `rppdyn`: one verb per job.

Each verb's arguments are read by argparse; for a verb with a configuration, what is left are Hydra overrides, checked
before anything heavy is imported. What a user did wrong ends in one line and exit status 2; anything else keeps its
traceback.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rppdyn._version import __version__
from rppdyn.trust import modules_of
from rppdyn.verbs import flags
from rppdyn.verbs.flags import flag_verb
from rppdyn.verbs.training import training_verb
from rppdyn.verbs.verb import HELP, INTERRUPTED, TRACEBACK, Parser, UsageError, Verb, report_error

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
    except Exception as error:
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
            from rppdyn.jobs.config.checks import did_you_mean

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
    "evaluate-agent": flag_verb("EvaluateAgentConfig", "play episodes with a trained agent", flags.evaluate_agent),
    "export": flag_verb("ExportConfig", "write a policy as an ONNX or torch file for a robot", flags.export),
    "certify": flag_verb("CertifyConfig", "check an environment's symmetries in the simulator", flags.certify),
    "audit": flag_verb("AuditConfig", "judge a hand-written map of observations in the simulator", flags.audit),
    "equivariance": flag_verb(
        "EquivarianceConfig", "measure how equivariant an agent, a fit or any function is", flags.equivariance
    ),
    "discover": flag_verb(
        "DiscoverConfig", "find the symmetry of a fit, of any function or of a robot", flags.discover
    ),
    "predict": flag_verb("PredictConfig", "predict from arrays with the model of a finished run", flags.predict),
    "collect": Verb(
        "write episodes of an agent, or of random actions, as a dataset", flags.collect_arguments, flags.collect
    ),
    "report": flag_verb("ReportConfig", "compare runs on one HTML page", flags.report_runs),
    "figure": flag_verb("FigureConfig", "draw runs in one picture", flags.figure),
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
    "cache": flag_verb("CacheConfig", "show where solved bases and datasets are kept, and clear them", flags.cache),
}


if __name__ == "__main__":
    if not sys.flags.safe_path:
        del sys.path[0]  # the current folder, which `python -m` puts before everything installed
    sys.exit(main())
