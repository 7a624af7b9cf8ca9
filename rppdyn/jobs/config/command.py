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


def argument(text: str, metavar: str, **words: Any) -> Any:
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


TRUST_FLAG = option(False, TRUST)
VECNORMALIZE = option(
    None, "file that VecNormalize.save wrote beside a .zip, whose policy saw such observations", "FILE"
)
EPISODE_SEED = option(EVALUATION_SEED, "seed of the first episode's reset; the others follow from it")
ENV_OF_FILES = option(None, "environment in which stable-baselines3 files play", "ENV")


@settings
class EvaluateAgentConfig:
    """`rppdyn evaluate-agent`."""

    run: str = argument(
        "the folder of a run of train-agent, a stable-baselines3 .zip, an .onnx or .pt2 of rppdyn export, or "
        "pretrained:NAME, an agent that comes with rppdyn (pretrained:Walker2d-v5)",
        "RUN",
    )
    episodes: Count = option(10, "number of episodes")
    seed: Natural = EPISODE_SEED
    video: Output | None = option(None, "film of the first episode: a .gif or .mp4", "FILE")
    env: str | None = option(None, "environment for a file's policy; default: that of its symmetry", "ENV")
    trust: bool = TRUST_FLAG
    vecnormalize: str | None = VECNORMALIZE

    def __post_init__(self) -> None:
        check_policy_file(self, self.run)

    @property
    def kind(self) -> str:
        """Kind of `run`: "run", PRETRAINED, or a value of POLICIES."""
        return kind_of_subject(self.run)


@settings
class ExportConfig:
    """`rppdyn export`."""

    what: str = argument("the folder of a run of train-agent, a stable-baselines3 .zip, or pretrained:NAME", "WHAT")
    onnx: Annotated[Output, _ends_in(".onnx")] | None = option(None, "file for an ONNX model, .onnx", "FILE")
    torch: Annotated[Output, _ends_in(".pt2")] | None = option(None, "file for a torch.export program, .pt2", "FILE")
    env: str | None = option(None, "environment to check a .zip's exports in; default: its symmetry's", "ENV")
    states: Count = option(1000, "number of states on which exports are checked")
    seed: Natural = EPISODE_SEED
    trust: bool = TRUST_FLAG
    vecnormalize: str | None = VECNORMALIZE

    def __post_init__(self) -> None:
        if self.onnx is None and self.torch is None:
            raise ConfigError("--onnx FILE or --torch FILE is missing: say which file is to be written")
        check_policy_file(self, self.what)
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


def check_policy_file(config: EvaluateAgentConfig | ExportConfig, path: str) -> None:
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

    what: str = argument(
        "a run's folder, a stable-baselines3 .zip, a torch.export .pt2, pretrained:NAME, or module:function (n inputs "
        "to n outputs)",
        "WHAT",
    )
    env: str | None = option(None, "environment that a policy, or a function like one, is for", "ENV")
    symmetry: str | None = option(None, "symmetry, for example D4 (the run's own, or the default one)", "NAME")
    group: str | None = option(
        None, 'group in place of --env, or of the one that a fit was given, for example "SO(3)"', "GROUP"
    )
    rep_in: str | None = option(None, 'how inputs transform under --group, for example "5*T(0)+5*T(1)"', "REP")
    rep_out: str | None = option(None, 'how outputs transform under --group, for example "T(2)"', "REP")
    states_from: str | None = option(
        None,
        "where states come from: rollouts (exploring episodes of its own; the default), reset, normal (standard "
        "normal inputs), test (of a fit; its default), or a .npy or .npz file",
        "SOURCE",
        "--from",
    )
    states: Count = option(2000, "largest number of states, evenly spaced in what there is")
    episodes: Count = option(10, "number of episodes from which states are taken")
    seed: Natural = EPISODE_SEED
    image: str | None = option(
        None,
        "images for a model module:function, or a function that makes one: .npy or .npz (n, channels, "
        "height, width), a picture, or digits",
        "FILE",
    )
    transformations: str | None = option(
        None, "transformations of --image, for example translation_x,rotation,stretch_x,brightening", "NAMES"
    )
    weights: str | None = option(None, "weights of WHAT: torch.save of its state_dict, or .safetensors", "FILE")
    whole: str | None = option(None, "modules of the model of --image that are taken as one layer each", "NAMES")
    trust: bool = TRUST_FLAG
    vecnormalize: str | None = VECNORMALIZE
    json: Output | None = option(None, "file for the result (RUN/equivariance.json)", "FILE")
    figure: Picture | None = option(None, "file for a picture: png, svg, pdf (RUN/figures/equivariance.png)", "FILE")

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

    what: str = argument("a run of train-agent or of a fit, that of images excepted, or module:function", "WHAT")
    family: str | None = option(
        None, 'group whose generators are searched, for example "GL(3)" (for a run GL(n))', "GROUP"
    )  # n the dimension of its group
    rep_in: str | None = option(None, 'how the family acts on inputs, for example "4*V"; a run of a task has it', "REP")
    rep_out: str | None = option(None, 'how the family acts on outputs, for example "V"; a run of a task has it', "REP")
    blocks: str | None = option(
        None,
        'vectors in a model of transitions or an agent that one matrix moves, "torso velocity, tau"; a '
        'semicolon begins another matrix, "+" joins entries; default: all that have x, y and z',
        "NAMES",
    )
    states_from: str | None = option(
        None,
        "where states come from: test (of a fit; its default), rollouts (of an agent), reset, normal, .npy or .npz file",
        "STATES",
        "--from",
    )
    episodes: Count = option(5, "number of an agent's episodes from which states are taken")
    states: Count = option(500, "largest number of states")
    seed: Natural = option(0, "seed of normal states, or of an agent's episodes")
    json: Output | None = option(None, "file for the result (RUN/discover.json)", "FILE")
    trust: bool = TRUST_FLAG

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

    run: str = argument("folder of a finished run", "RUN")
    data: str = option(..., "NPZ file with the arrays that the model takes, or data as the fit took them", "FILE")
    out: Annotated[Output, _ends_in(".npz")] = option(..., "file for the array `prediction`, .npz", "FILE")
    members: Literal["mean", "all"] = option("mean", "mean over seeds (the default), or all members", "WHICH")
    trust: bool = TRUST_FLAG

    def __post_init__(self) -> None:
        different_files(self, "data", "out")


@settings
class CollectConfig:
    """`rppdyn collect`."""

    env: EnvConfig | None = None  # None for that of the run
    source: str | None = None  # a run's folder or a stable-baselines3 zip; None for random actions
    play: Literal["exploring", "deterministic"] | None = option(
        None, "play episodes of the policy, in place of a run's replay buffer; a .zip explores by default"
    )
    steps: Count | None = option(None, "smallest number of steps, in whole episodes (50000, or a whole replay buffer)")
    seed: Natural = option(0, "seed of resets and actions, or of the choice of episodes")
    name: str | None = option(None, "Minari id of the dataset (rppdyn/ENV/SOURCE-v0)", "ID")
    trust: bool = TRUST_FLAG
    vecnormalize: str | None = VECNORMALIZE

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


def check_agent_files(config: ReportConfig | FigureConfig) -> None:
    """Refuse untrusted stable-baselines3 files, and flags for such files if there are none."""
    files = [path for path in config.runs if is_agent_file(path)]
    for path in files:
        require_trusted_file(path, POLICIES[".zip"], config.trust)
    if not files:
        refuse({"--env": config.env}, "a run has an environment of its own; leave it out")


@settings
class ReportConfig:
    """`rppdyn report`."""

    runs: Runs = argument(
        "run folders, together if they differ in the seed alone; stable-baselines3 .zip files, which play episodes",
        "RUN",
        nargs="+",
    )
    out: Annotated[Output, _ends_in(".html", ".htm")] = option("report.html", "file for the page (report.html)", "FILE")
    env: str | None = ENV_OF_FILES
    trust: bool = TRUST_FLAG

    def __post_init__(self) -> None:
        check_agent_files(self)


@settings
class FigureConfig:
    """`rppdyn figure`."""

    runs: Runs = argument(
        "folders of runs, or stable-baselines3 .zip files; agents that differ in the seed alone are one curve",
        "RUN",
        nargs="+",
    )
    out: Picture = option(..., "file for the picture: png, svg, pdf", "FILE")
    json: Annotated[Output, _ends_in(".json")] | None = option(
        None, "file for the runs' configurations, results and metrics", "FILE"
    )
    env: str | None = ENV_OF_FILES
    trust: bool = TRUST_FLAG

    def __post_init__(self) -> None:
        check_agent_files(self)


@settings
class AuditConfig:
    """`rppdyn audit`."""

    what: Annotated[str, Field(pattern=":")] = argument(
        "module:function, which maps observations (n, dim) to their images", "WHAT"
    )
    observation: str = option(
        ..., "YAML file that lists the terms, or the symmetry.json that rppdyn export wrote beside a policy", "TERMS"
    )
    model: str | None = option(
        None, "the robot: an .xml or .urdf file, or an environment; not needed with a symmetry.json", "FILE"
    )
    actions: Annotated[str, Field(pattern=":")] | None = option(
        None, "module:function that maps actions, if WHAT maps observations only", "WHAT"
    )
    symmetry: str | None = option(None, "symmetry, for example left-right (the file's own); several: a+b", "NAME")
    states: Count = option(40, "number of states that are mirrored, stepped and compared")
    seed: Natural = option(0, "seed of the states that are compared")
    json: Output | None = option(None, "file for the findings", "FILE")

    def __post_init__(self) -> None:
        if self.is_contract:
            refuse({"--symmetry": self.symmetry}, f"{self.observation} is of one symmetry; leave it out")
        elif self.model is None:
            raise ConfigError(
                "--model is missing: give the robot that the terms are of, an .xml or .urdf file or an environment"
            )

    @property
    def is_contract(self) -> bool:
        """True if the map is compared with a policy's contract, not with a list of terms."""
        return Path(self.observation).suffix == ".json"


@settings
class CertifyConfig:
    """`rppdyn certify`."""

    what: str = argument("an environment's identifier, for example Walker2d-v5, or an .xml or .urdf file", "WHAT")
    symmetry: str | None = option(None, "symmetry to certify, for example D4 (the default one); several: a+b", "NAME")
    variant: Variant = option("derived", "representation: derived, or published, as the papers have it")
    spec: str | None = option(None, "file with a symmetry of yours, or the terms that the environment observes", "FILE")
    states: Integer = option(400, "number of states that are mirrored, stepped and compared", ge=20)
    seed: Natural = option(0, "seed of the states and actions that are compared")
    solver: Literal["stock", "tight"] = option("stock", "contact solver: stock, the model's; tight, to rounding")
    control_scale: Positive = option(
        1.0, "share of their range from which random controls are drawn; below 1 for a robot that falls over", le=1
    )
    json: Output | None = option(None, "file for the certificate", "FILE")
    figure: Picture | None = option(None, "file for a picture of the certificate: png, svg, pdf", "FILE")
    rank: bool = option(False, "repair each deviation in the model by itself, and rank it by its effect")
    log: str | None = option(None, "instead, name the part at fault in these logged transitions", "DATASET", "--from")
    trust: bool = TRUST_FLAG

    def __post_init__(self) -> None:
        flags = {
            "--figure": self.figure, "--rank": self.rank, "--symmetry": self.symmetry, "--spec": self.spec,
            "--variant": self.variant != "derived", "--solver": self.solver != "stock",
            "--control-scale": self.control_scale != 1,
        }  # fmt: skip
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
        """True if a model's file is certified, not an environment."""
        return self.what.lower().endswith((".xml", ".mjcf", ".urdf"))
