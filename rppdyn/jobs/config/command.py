"""Settings of the commands with flags; neither torch nor a simulator is imported here."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from rppdyn.jobs.config.agent import EVALUATION_SEED, EnvConfig, Variant
from rppdyn.jobs.config.base import refuse
from rppdyn.settings import ConfigError, Count, Integer, Natural, Positive, setting, settings


def option(default: Any, text: str, metavar: str | None = None, name: str | None = None, **limits: Any) -> Any:
    """A field for a flag of the command line.

    Args:
        text: a line of help, to which the default of a number is added.
        name: name of the flag; None for the field's.
    """
    return setting(default, text, json_schema_extra={"flag": name, "metavar": metavar}, **limits)


def word(text: str, metavar: str, **words: Any) -> Any:
    """A field for a positional argument; further words are options of argparse."""
    return setting(..., text, json_schema_extra={"metavar": metavar, **words})


# -- files -------------------------------------------------------------------------------------------------------------


def _writable(path: str) -> str:
    """Refuse a file that can't be written: a folder, a protected file, or a file in a missing folder."""
    target = Path(path)
    if target.is_dir():
        raise ValueError("is a folder; give a file")
    if not target.parent.is_dir():
        raise ValueError(f"there is no folder {target.parent}; make it first, or give another place")
    if not os.access(target if target.exists() else target.parent, os.W_OK):
        raise ValueError("can't be written there; give another place")
    return path


def _ends_in(*suffixes: str) -> AfterValidator:
    def check(path: str) -> str:
        if Path(path).suffix not in suffixes:
            raise ValueError(f"must end in {', '.join(suffixes)}")
        return path

    return AfterValidator(check)


Output = Annotated[str, AfterValidator(_writable)]
Picture = Annotated[Output, _ends_in(".png", ".svg", ".pdf")]


def _refuse_duplicates(runs: list[str]) -> list[str]:
    """Refuse a run that is named twice, since it would be counted twice."""
    paths = [Path(run).resolve() for run in runs]
    for run, path in zip(runs, paths, strict=True):
        if paths.count(path) > 1:
            raise ConfigError(f"{run} is given twice: name each run once")
    return runs


Runs = Annotated[list[str], AfterValidator(_refuse_duplicates)]


def different_files(config: Any, *names: str) -> None:
    """Refuse the same file for two flags."""
    first, second = ((name, getattr(config, name)) for name in names)
    if first[1] is not None and second[1] is not None and Path(first[1]).resolve() == Path(second[1]).resolve():
        raise ConfigError(f"--{first[0]} {first[1]} and --{second[0]} {second[1]} are one file; give two")


def require_trusted_file(path: str, kind: str, trust: bool) -> None:
    """Refuse a missing file, and one whose loading runs code unless the user trusts it."""
    if not Path(path).is_file():
        raise ConfigError(f"{path}: there is no such file; give the path of a {kind}")
    if not trust:
        raise ConfigError(
            f"{path} is a {kind}, and loading it runs the code it holds: add --trust if you know where it is from"
        )


TRUST = "let the file run code, its own or of modules it names: you know where it is from"


def _trust() -> Any:
    return option(False, TRUST)


def _vecnormalize() -> Any:
    return option(None, "what VecNormalize.save wrote beside a .zip, whose policy saw such observations", "FILE")


def _episode_seed() -> Any:
    return option(EVALUATION_SEED, "of the first episode's reset; the others follow")


def _env_of_files() -> Any:
    return option(None, "of stable-baselines3 files: the environment that they play in", "ENV")


@settings
class EvaluateAgentConfig:
    """`rppdyn evaluate-agent`."""

    run: str = word(
        "the folder of a run of train-agent, a stable-baselines3 .zip, an .onnx or .pt2 of rppdyn export, or "
        "pretrained:NAME, an agent that comes with rppdyn (pretrained:Walker2d-v5)",
        "RUN",
    )
    episodes: Count = option(10, "how many")
    seed: Natural = _episode_seed()
    video: Output | None = option(None, "film the first episode: a .gif or .mp4", "FILE")
    env: str | None = option(None, "of a file: the environment that it plays in", "ENV")  # None: that of its symmetry
    trust: bool = _trust()
    vecnormalize: str | None = _vecnormalize()

    def __post_init__(self) -> None:
        policy_file(self, self.run)

    @property
    def kind(self) -> str:
        """Kind of `run`: "run", PRETRAINED, or a value of POLICIES."""
        return kind_of_subject(self.run)


@settings
class ExportConfig:
    """`rppdyn export`."""

    what: str = word("the folder of a run of train-agent, a stable-baselines3 .zip, or pretrained:NAME", "WHAT")
    onnx: Annotated[Output, _ends_in(".onnx")] | None = option(None, "write an ONNX model, .onnx", "FILE")
    torch: Annotated[Output, _ends_in(".pt2")] | None = option(None, "write a program of torch.export, .pt2", "FILE")
    # None for the environment of its symmetry
    env: str | None = option(None, "of a .zip: the environment that the files are checked in", "ENV")
    states: Count = option(1000, "how many they are checked on")
    seed: Natural = _episode_seed()
    trust: bool = _trust()
    vecnormalize: str | None = _vecnormalize()

    def __post_init__(self) -> None:
        if self.onnx is None and self.torch is None:
            raise ConfigError("--onnx FILE or --torch FILE is missing: say which file is to be written")
        policy_file(self, self.what)
        if self.kind not in ("run", PRETRAINED, POLICIES[".zip"]):
            raise ConfigError(f"{self.what} is a {self.kind}, exported already: give a run or a stable-baselines3 .zip")

    @property
    def kind(self) -> str:
        """Kind of `what`: "run", PRETRAINED, or a value of POLICIES."""
        return kind_of_subject(self.what)

    @property
    def card(self) -> str:
        """The JSON file with the description of the policy."""
        return str(Path(self.onnx or self.torch or "").with_suffix(".json"))


PRETRAINED = "pretrained agent"


def pretrained_name(text: str) -> str | None:
    """NAME of `pretrained:NAME`; None for any other text."""
    word, _, name = text.partition(":")
    return name if word == "pretrained" and name else None


POLICIES = {".zip": "stable-baselines3 file", ".pt2": "torch.export program", ".onnx": "ONNX model"}
SUBJECTS = {suffix: kind for suffix, kind in POLICIES.items() if suffix != ".onnx"}


def kind_of_subject(text: str, files: Mapping[str, str] = POLICIES, functions: bool = False) -> str:
    """The kind of a subject: "run", PRETRAINED, "function" for module:function, or the kind of a file by its suffix."""
    module, colon, name = text.partition(":")
    if Path(text).is_dir():
        return "run"
    if pretrained_name(text):
        return PRETRAINED
    return "function" if functions and colon and module and name.isidentifier() else files.get(Path(text).suffix, "run")


def policy_file(config: EvaluateAgentConfig | ExportConfig, path: str) -> None:
    """Refuse flags without effect for a run or for this kind of file, and untrusted pickles.

    Raises:
        ConfigError: naming the flag or the file.
    """
    if config.kind == "run" and Path(path).is_file():
        raise ConfigError(f"{path} is a file of no policy: give a run's folder, or a file in {', '.join(POLICIES)}")
    if config.kind in ("run", PRETRAINED):
        refuse({"--env": config.env}, f"a {config.kind} has an environment of its own; leave it out")
    elif config.kind == POLICIES[".onnx"]:
        if not Path(path).is_file():
            raise ConfigError(f"{path}: there is no such file; give what rppdyn export has written")
    else:
        require_trusted_file(path, config.kind, config.trust)
    if config.kind != POLICIES[".zip"]:
        refuse({"--vecnormalize": config.vecnormalize}, f"{path} is no stable-baselines3 file; leave it out")


@settings
class EquivarianceConfig:
    """`rppdyn equivariance`."""

    what: str = word(
        "a run's folder, a stable-baselines3 .zip, a torch.export .pt2, pretrained:NAME, or module:function (n inputs "
        "to n outputs)",
        "WHAT",
    )
    env: str | None = option(None, "the environment that a policy, or a function like one, is for", "ENV")
    symmetry: str | None = option(None, "which one, for example D4 (the run's own, or the default one)", "NAME")
    group: str | None = option(
        None, 'in place of --env, or of the group that a fit was given, for example "SO(3)"', "GROUP"
    )
    rep_in: str | None = option(None, 'how inputs transform under --group, for example "5*T(0)+5*T(1)"', "REP")
    rep_out: str | None = option(None, 'how outputs do, for example "T(2)"', "REP")
    states_from: str | None = option(
        None,
        "where states come from: rollouts (exploring episodes of its own; the default), reset, normal (standard "
        "normal inputs), test (of a fit; its default), or a .npy or .npz file",
        "SOURCE",
        "--from",
    )
    states: Count = option(2000, "how many, evenly spaced in what there is")
    episodes: Count = option(10, "how many episodes they are taken from")
    seed: Natural = _episode_seed()
    image: str | None = option(
        None,
        "images for module:function, a model of images or a function that makes one: .npy or .npz (n, channels, "
        "height, width), a picture, or digits",
        "FILE",
    )
    transformations: str | None = option(
        None, "of images, for example translation_x,rotation,stretch_x,brightening", "NAMES"
    )
    weights: str | None = option(None, "of that model: torch.save of its state_dict, or .safetensors", "FILE")
    whole: str | None = option(None, "modules of it that are taken as one layer each", "NAMES")
    trust: bool = _trust()
    vecnormalize: str | None = _vecnormalize()
    json: Output | None = option(None, "where the result goes (RUN/equivariance.json)", "FILE")
    figure: Picture | None = option(None, "where it is drawn: png, svg, pdf (RUN/figures/equivariance.png)", "FILE")

    def __post_init__(self) -> None:
        different_files(self, "json", "figure")
        if self.kind != SUBJECTS[".zip"]:
            refuse({"--vecnormalize": self.vecnormalize}, f"{self.what} is no stable-baselines3 file; leave it out")
        if self.image is not None:
            flags = {"--env": self.env, "--group": self.group, "--symmetry": self.symmetry, "--from": self.states_from}
            refuse(flags, "of images (--image) the symmetry is --transformations; leave it out")
            if self.kind not in ("function", "run"):
                raise ConfigError(f"--image {self.image}: of module:function, or of a run of fit-image; leave it out")
        elif self.kind != "run":
            of_images = {"--transformations": self.transformations, "--weights": self.weights, "--whole": self.whole}
            refuse(of_images, "of a model of images; give them with --image")
        if self.kind == "run":
            refuse({"--weights": self.weights}, "a run has its own; leave it out")
        if self.kind in SUBJECTS.values():
            require_trusted_file(self.what, self.kind, self.trust)

    @property
    def kind(self) -> str:
        """Kind of `what`: "run", PRETRAINED, "function", or a value of SUBJECTS."""
        return kind_of_subject(self.what, SUBJECTS, functions=True)

    @property
    def representations(self) -> tuple[str, str, str] | None:
        """Group, input and output representation; None if none of them is given.

        Raises:
            ConfigError: only some of them are given, or an environment's symmetry is given as well.
        """
        flags = {"--group": self.group, "--rep-in": self.rep_in, "--rep-out": self.rep_out}
        missing = [flag for flag, text in flags.items() if text is None]
        if len(missing) == len(flags):
            return None
        if missing:
            raise ConfigError(f"{missing[0]} is missing: --group, --rep-in and --rep-out belong together")
        if self.env is not None or self.symmetry is not None:
            excluded = "--env" if self.env is not None else "--symmetry"
            raise ConfigError(f"{excluded} and --group: give an environment's symmetry or representations, not both")
        return self.group, self.rep_in, self.rep_out  # type: ignore[return-value]


@settings
class DiscoverConfig:
    """`rppdyn discover`."""

    what: str = word("a run (of an agent, fit-dynamics, fit-regression or fit-transition), or module:function", "WHAT")
    family: str | None = option(
        None, 'whose generators are searched, for example "GL(3)" (of a run GL(n))', "GROUP"
    )  # n the dimension of its group
    rep_in: str | None = option(
        None, 'how the family acts on inputs, for example "4*V"; a run of a task brings it', "REP"
    )
    rep_out: str | None = option(None, "and on outputs", "REP")
    blocks: str | None = option(
        None,
        'of a transition model or an agent: vectors among its entries, "torso velocity, tau" by one matrix, those '
        'behind a semicolon by another, entries joined by "+"; by default all with x, y and z',
        "NAMES",
    )
    states_from: str | None = option(
        None,
        "test (the default of a fit), rollouts (of an agent), reset, normal, or a .npy or .npz file",
        "STATES",
        "--from",
    )
    episodes: Count = option(5, "of an agent, that states are from")
    states: Count = option(500, "how many at most")
    seed: Natural = option(0, "of normal states")
    json: Output | None = option(None, "where the result is written (RUN/discover.json)", "FILE")
    trust: bool = _trust()

    def __post_init__(self) -> None:
        flags = {"--rep-in": self.rep_in, "--rep-out": self.rep_out}
        if self.kind == "run":
            if re.search(r"-v\d+$", self.what) and not Path(self.what).exists():
                raise ConfigError(
                    f"{self.what}: a robot's symmetries are derived from its model, by rppdyn certify ENV; give a run or a "
                    "function"
                )
            if self.blocks is not None and self.family is not None:
                raise ConfigError(f"--blocks {self.blocks} and --family {self.family}: give one of them")
            if self.family is None:
                refuse(flags, "of which group? give --family, too, or leave it out")
            return
        refuse({"--blocks": self.blocks}, "of a run alone; of a function give --family, --rep-in and --rep-out")
        for name, value in {"--family": self.family, **flags}.items():
            if value is None:
                raise ConfigError(f"{name} is missing: of a function give --family, --rep-in and --rep-out")

    @property
    def kind(self) -> str:
        """Kind of `what`: "run" or "function"."""
        return "function" if kind_of_subject(self.what, functions=True) == "function" else "run"


@settings
class PredictConfig:
    """`rppdyn predict`."""

    run: str = word("a finished run", "RUN")
    data: str = option(..., "an NPZ file with the arrays that the model takes, or data as the fit took them", "FILE")
    out: Annotated[Output, _ends_in(".npz")] = option(..., "where the array `prediction` is written (.npz)", "FILE")
    members: Literal["mean", "all"] = option("mean", "mean over seeds (the default), or all", "WHICH")
    trust: bool = _trust()

    def __post_init__(self) -> None:
        different_files(self, "data", "out")


@settings
class CollectConfig:
    """`rppdyn collect`."""

    env: EnvConfig | None = None  # None for that of the run
    source: str | None = None  # a run's folder or a stable-baselines3 zip; None for random actions
    play: Literal["exploring", "deterministic"] | None = option(
        None, "episodes of the policy, in place of a run's replay buffer; a .zip explores unless told otherwise"
    )
    steps: Count | None = option(
        None, "how many at least, in whole episodes (50000, or all that a replay buffer holds)"
    )
    seed: Natural = option(0, "of resets and actions, or of which episodes are drawn")
    name: str | None = option(None, "the dataset's Minari id (rppdyn/ENV/SOURCE-v0)", "ID")
    trust: bool = _trust()
    vecnormalize: str | None = _vecnormalize()

    def __post_init__(self) -> None:
        if self.env is None and self.kind != "run":
            raise ConfigError("env= is missing: name the environment, for example env=Swimmer-v5")
        if self.kind == "random" and self.play is not None:
            raise ConfigError(f"--play {self.play} with --random: there is no policy to play; leave out one of the two")
        if self.kind != "file":
            refuse({"--vecnormalize": self.vecnormalize}, "of a stable-baselines3 file only; leave it out")
            return
        require_trusted_file(str(self.source), SUBJECTS[".zip"], self.trust)

    @property
    def kind(self) -> str:
        """Source of the episodes: "random", "run" or "file"."""
        if self.source is None:
            return "random"
        return "file" if is_agent_file(self.source) else "run"


def is_agent_file(path: str) -> bool:
    """Return whether a path is a stable-baselines3 file, not the folder of a run."""
    return kind_of_subject(path) == POLICIES[".zip"]


def agent_files(config: ReportConfig | FigureConfig) -> None:
    """Refuse untrusted stable-baselines3 files, and flags for such files if there are none."""
    files = [path for path in config.runs if is_agent_file(path)]
    for path in files:
        require_trusted_file(path, POLICIES[".zip"], config.trust)
    if not files:
        refuse({"--env": config.env}, "a run has an environment of its own; leave it out")


@settings
class ReportConfig:
    """`rppdyn report`."""

    runs: Runs = word(
        "run folders, those that differ in the seed alone go together; stable-baselines3 .zip files, which play episodes",
        "RUN",
        nargs="+",
    )
    out: Annotated[Output, _ends_in(".html", ".htm")] = option("report.html", "the page (report.html)", "FILE")
    env: str | None = _env_of_files()
    trust: bool = _trust()

    def __post_init__(self) -> None:
        agent_files(self)


@settings
class FigureConfig:
    """`rppdyn figure`."""

    runs: Runs = word(
        "run folders, of agents or of fits; agents that differ in the seed alone are one curve; or .zip of "
        "stable-baselines3",
        "RUN",
        nargs="+",
    )
    out: Picture = option(..., "the picture: png, svg, pdf", "FILE")
    json: Annotated[Output, _ends_in(".json")] | None = option(
        None, "also write the runs' configurations, results and metrics to FILE", "FILE"
    )
    env: str | None = _env_of_files()
    trust: bool = _trust()

    def __post_init__(self) -> None:
        agent_files(self)


@settings
class AuditConfig:
    """`rppdyn audit`."""

    what: Annotated[str, Field(pattern=":")] = word(
        "module:function, which maps observations (n, dim) to their images", "WHAT"
    )
    observation: str = option(
        ..., "a YAML file that lists the terms, or the symmetry.json that rppdyn export wrote beside a policy", "TERMS"
    )
    model: str | None = option(
        None, "the robot: an .xml or .urdf file, or an environment; with a symmetry.json it may be left out", "FILE"
    )
    actions: Annotated[str, Field(pattern=":")] | None = option(
        None, "module:function for actions, where WHAT maps observations only", "WHAT"
    )
    symmetry: str | None = option(None, "which one, for example left-right (the file's own); several: a+b", "NAME")
    states: Count = option(40, "how many are mirrored, stepped and compared")
    seed: Natural = option(0, "of these states")
    json: Output | None = option(None, "also write what was found to FILE", "FILE")

    def __post_init__(self) -> None:
        if self.is_contract:
            refuse({"--symmetry": self.symmetry}, f"{self.observation} is of one symmetry; leave it out")
        elif self.model is None:
            raise ConfigError(
                "--model is missing: give the robot that the terms are of, an .xml or .urdf file or an environment"
            )

    @property
    def is_contract(self) -> bool:
        """Whether the map is compared with a policy's contract, not with a list of terms."""
        return Path(self.observation).suffix == ".json"


@settings
class CertifyConfig:
    """`rppdyn certify`."""

    what: str = word("an environment's identifier, for example Walker2d-v5, or an .xml or .urdf file", "WHAT")
    symmetry: str | None = option(None, "which one, for example D4 (the default one); several: a+b", "NAME")
    variant: Variant = option("derived", "published: as the papers have it")
    spec: str | None = option(
        None, "a file of a symmetry of yours, or of the terms that the environment observes", "FILE"
    )
    states: Integer = option(400, "how many are mirrored, stepped and compared", ge=20)
    seed: Natural = option(0, "of the states and actions that are compared")
    solver: Literal["stock", "tight"] = option("stock", "tight: solve contact forces to rounding")
    control_scale: Positive = option(
        1.0, "share of the range that random controls are drawn from, for a robot that falls over", le=1
    )
    json: Output | None = option(None, "also write the certificate to FILE", "FILE")
    figure: Picture | None = option(None, "also draw it (png, svg or pdf)", "FILE")
    rank: bool = option(False, "also repair what deviates in the model, one by one, and rank it by its effect")
    log: str | None = option(None, "name the part that is at fault in these transitions instead", "DATASET", "--from")
    trust: bool = _trust()

    def __post_init__(self) -> None:
        flags = {"--figure": self.figure, "--rank": self.rank, "--symmetry": self.symmetry, "--spec": self.spec}
        if self.log is not None and (set_flags := [name for name, value in flags.items() if value]):
            raise ConfigError(
                f"--from {self.log} and {set_flags[0]}: a log is compared with the model as it is; leave out one"
            )
        if self.spec is not None and self.variant != "derived":
            raise ConfigError(f"--variant {self.variant} and --spec {self.spec} are two symmetries: leave out one")
        if self.spec is not None and self.is_model_file:
            raise ConfigError(f"--spec {self.spec}: {self.what} is a model without an observation; give an environment")
        different_files(self, "json", "figure")

    @property
    def is_model_file(self) -> bool:
        """Whether a model's file is certified, not an environment."""
        return self.what.lower().endswith((".xml", ".mjcf", ".urdf"))
