"""What the verbs that take flags are asked: dataclasses that check them, and import neither torch nor a simulator."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from rppdyn.jobs.config.agent import EVALUATION_SEED, EnvConfig
from rppdyn.jobs.config.checks import ConfigError, different_files, each_once, figure, file, flag, require, trusted


@dataclass
class EvaluateAgentConfig:
    """`rppdyn evaluate-agent`."""

    run: str  # a run's folder, a stable-baselines3 zip, or what `rppdyn export` wrote
    episodes: int = 10
    seed: int = EVALUATION_SEED
    video: str | None = None  # where the film of the first episode goes
    env: str | None = None  # of a file: the environment that it plays in; None: that of its symmetry
    trust: bool = False  # a module that the run names may be imported, a file's pickles read
    vecnormalize: str | None = None  # the statistics that a stable-baselines3 policy's observations were normalised by

    def __post_init__(self) -> None:
        flag("--episodes", self.episodes, 1)
        flag("--seed", self.seed, 0)
        file("--video", self.video)
        policy_file(self, self.run)

    @property
    def kind(self) -> str:
        """What `run` names: "run", PRETRAINED, or one of the values of POLICIES."""
        return kind_of_policy(self.run)


@dataclass
class ExportConfig:
    """`rppdyn export`."""

    what: str  # a run's folder, or a stable-baselines3 zip
    onnx: str | None = None
    torch: str | None = None
    env: str | None = None  # of a zip: the environment that it is checked in; None: that of its symmetry
    states: int = 1000
    seed: int = EVALUATION_SEED
    trust: bool = False
    vecnormalize: str | None = None

    def __post_init__(self) -> None:
        flag("--states", self.states, 1)
        flag("--seed", self.seed, 0)
        if self.onnx is None and self.torch is None:
            raise ConfigError("--onnx FILE or --torch FILE is missing: say which file is to be written")
        for name, path, suffix in (("--onnx", self.onnx, ".onnx"), ("--torch", self.torch, ".pt2")):
            file(name, path)
            if path is not None and Path(path).suffix != suffix:
                raise ConfigError(f"{name} {path}: must end in {suffix}")
        policy_file(self, self.what)
        if self.kind not in ("run", PRETRAINED, POLICIES[".zip"]):
            raise ConfigError(f"{self.what} is a {self.kind}, exported already: give a run or a stable-baselines3 .zip")

    @property
    def kind(self) -> str:
        """What `what` names: "run", PRETRAINED, or one of the values of POLICIES."""
        return kind_of_policy(self.what)

    @property
    def card(self) -> str:
        """The JSON file beside the policy."""
        return str(Path(self.onnx or self.torch or "").with_suffix(".json"))


PRETRAINED = "pretrained agent"


def pretrained_name(what: str) -> str | None:
    """NAME of `pretrained:NAME`; None of anything else."""
    word, _, name = what.partition(":")
    return name if word == "pretrained" and name else None


def kind_of_policy(what: str) -> str:
    """ "run", PRETRAINED, or one of the values of POLICIES."""
    return PRETRAINED if pretrained_name(what) else POLICIES.get(Path(what).suffix, "run")


POLICIES = {".zip": "stable-baselines3 file", ".pt2": "torch.export program", ".onnx": "ONNX model"}


def policy_file(config: EvaluateAgentConfig | ExportConfig, path: str) -> None:
    """Refuse flags that a run's folder, or a file of its kind, has no use for, and pickles that nobody trusts.

    Raises:
        ConfigError: naming the flag, or the file.
    """
    if config.kind == "run" and Path(path).is_file():
        raise ConfigError(f"{path} is a file of no policy: give a run's folder, or a file in {', '.join(POLICIES)}")
    if config.kind in ("run", PRETRAINED):
        if config.env is not None:
            raise ConfigError(f"--env {config.env}: a {config.kind} has an environment of its own; leave it out")
    elif config.kind == POLICIES[".onnx"]:
        if not Path(path).is_file():
            raise ConfigError(f"{path}: there is no such file; give what rppdyn export has written")
    else:
        trusted(path, config.kind, config.trust)
    if config.vecnormalize is not None and config.kind != POLICIES[".zip"]:
        raise ConfigError(f"--vecnormalize {config.vecnormalize}: {path} is no stable-baselines3 file; leave it out")


SUBJECTS = {".zip": "stable-baselines3 file", ".pt2": "torch.export program"}


@dataclass
class EquivarianceConfig:
    """`rppdyn equivariance`."""

    what: str  # a run's folder, a stable-baselines3 zip, a torch.export program, or module:function
    env: str | None = None
    symmetry: str | None = None  # None: the run's or policy's own, else the default of `symmetry_spec`
    group: str | None = None  # with rep_in and rep_out in place of an environment's symmetry; of a fit alone
    rep_in: str | None = None
    rep_out: str | None = None
    states_from: str | None = None  # rollouts, reset, normal, test (of a fit), or a file; None: rollouts, of a fit test
    states: int = 2000
    episodes: int = 10
    seed: int = EVALUATION_SEED
    trust: bool = False  # of what it names may run code
    vecnormalize: str | None = None  # the statistics that a stable-baselines3 policy's observations were normalised by
    image: str | None = None  # images for a model of images: a file, or the name of a data set
    transformations: str | None = None  # of them, by name; None: the default ones
    weights: str | None = None  # of the model that `what` names
    whole: str | None = None  # modules that are one layer whatever is inside
    json: str | None = None
    figure: str | None = None

    def __post_init__(self) -> None:
        flag("--states", self.states, 1)
        flag("--episodes", self.episodes, 1)
        flag("--seed", self.seed, 0)
        file("--json", self.json)
        figure("--figure", self.figure)
        different_files(json=self.json, figure=self.figure)
        if self.vecnormalize is not None and self.kind != SUBJECTS[".zip"]:
            raise ConfigError(
                f"--vecnormalize {self.vecnormalize}: {self.what} is no stable-baselines3 file; leave it out"
            )
        if self.image is not None:
            other = {"--env": self.env, "--group": self.group, "--symmetry": self.symmetry, "--from": self.states_from}
            for name, value in other.items():
                if value is not None:
                    raise ConfigError(
                        f"--image and {name}: of images the symmetry is --transformations; leave {name} out"
                    )
            if self.kind not in ("function", "run"):
                raise ConfigError(f"--image {self.image}: of module:function, or of a run of fit-image; leave it out")
        elif self.kind != "run":
            for name, value in {
                "--transformations": self.transformations,
                "--weights": self.weights,
                "--whole": self.whole,
            }.items():
                if value is not None:
                    raise ConfigError(f"{name} {value}: of a model of images; give them with --image")
        if self.weights is not None and self.kind == "run":
            raise ConfigError(f"--weights {self.weights}: a run has its own; leave it out")
        if self.kind in SUBJECTS.values():
            trusted(self.what, self.kind, self.trust)

    @property
    def kind(self) -> str:
        """What `what` names: "run", "function", PRETRAINED, or one of the values of SUBJECTS."""
        path = Path(self.what)
        if path.is_dir():
            return "run"
        if pretrained_name(self.what):
            return PRETRAINED
        if path.suffix in SUBJECTS:
            return SUBJECTS[path.suffix]
        module, colon, name = self.what.partition(":")
        return "function" if colon and module and name.isidentifier() else "run"

    @property
    def representations(self) -> tuple[str, str, str] | None:
        """Group, input and output representation, where they are given.

        Raises:
            ConfigError: only some of them are given, or an environment's symmetry is given as well.
        """
        given = {"--group": self.group, "--rep-in": self.rep_in, "--rep-out": self.rep_out}
        missing = [flag for flag, text in given.items() if text is None]
        if len(missing) == len(given):
            return None
        if missing:
            raise ConfigError(f"{missing[0]} is missing: --group, --rep-in and --rep-out belong together")
        if self.env is not None or self.symmetry is not None:
            other = "--env" if self.env is not None else "--symmetry"
            raise ConfigError(f"{other} and --group: give an environment's symmetry or representations, not both")
        return self.group, self.rep_in, self.rep_out  # type: ignore[return-value]


@dataclass
class DiscoverConfig:
    """`rppdyn discover`."""

    what: str  # a run's folder, module:function, a dataset, or an environment's id
    family: str | None = None  # a group whose generators are searched; of a fit GL(n), n the dimension of its group
    blocks: str | None = None  # of a transition model or an agent: which entries are moved alike, in place of a family
    rep_in: str | None = None
    rep_out: str | None = None
    states_from: str | None = None  # test (of a fit), rollouts or reset (of an agent), normal, or a file
    states: int = 500
    episodes: int = 5  # of an agent
    seed: int = 0
    json: str | None = None
    steps: int = 6000  # of random actions, in an environment; states, at most, that candidates of a run are ranked by
    signs: bool = True  # whether a robot's joints may change their direction
    trust: bool = False  # of a module that a dataset names

    def __post_init__(self) -> None:
        flag("--states", self.states, 1)
        flag("--episodes", self.episodes, 1)
        flag("--seed", self.seed, 0)
        flag("--steps", self.steps, 1)
        file("--json", self.json)
        given = {"--rep-in": self.rep_in, "--rep-out": self.rep_out}
        if self.kind in ("dataset", "environment"):
            others = {"--family": self.family, "--blocks": self.blocks, "--from": self.states_from, **given}
            for name, value in others.items():
                if value is not None:
                    raise ConfigError(
                        f"{name} {value}: of a robot permutations of joints are ranked, not generators; leave it out"
                    )
            return
        if self.kind == "run":
            if self.blocks is not None and self.family is not None:
                raise ConfigError(f"--blocks {self.blocks} and --family {self.family}: give one of them")
            for name, value in given.items():
                if value is not None and self.family is None:
                    raise ConfigError(f"{name} {value}: of which group? give --family, too, or leave it out")
            return
        if self.blocks is not None:
            raise ConfigError(
                f"--blocks {self.blocks}: of a run alone; of a function give --family, --rep-in and --rep-out"
            )
        for name, value in {"--family": self.family, **given}.items():
            if value is None:
                raise ConfigError(f"{name} is missing: of a function give --family, --rep-in and --rep-out")

    @property
    def kind(self) -> str:
        """What `what` names: "run", "function", "dataset" or "environment"."""
        if (folder := Path(self.what)).is_dir():
            return "dataset" if (folder / "data").is_dir() and not (folder / "config.yaml").exists() else "run"
        module, colon, name = self.what.partition(":")
        if colon and module and name.isidentifier():
            return "function"
        if not re.search(r"-v\d+$", self.what):
            return "run"
        return "dataset" if "/" in self.what and not colon else "environment"

    @property
    def representations(self) -> tuple[str, tuple[str, str]]:
        """The family, and the representations of a function."""
        assert self.family is not None and self.rep_in is not None and self.rep_out is not None
        return self.family, (self.rep_in, self.rep_out)


@dataclass
class PredictConfig:
    """`rppdyn predict`."""

    run: str
    data: str = ""  # an NPZ file with the arrays that the model takes
    out: str = ""
    members: str = "mean"  # over seeds; or all
    trust: bool = False  # a module that the run names may be imported

    def __post_init__(self) -> None:
        if not self.data or not self.out:
            raise ConfigError("--data FILE and --out FILE are needed: what is predicted from, and where it is written")
        file("--out", self.out)
        if Path(self.out).suffix != ".npz":
            raise ConfigError(f"--out {self.out}: must end in .npz")
        require("--members", self.members, self.members in ("mean", "all"), "mean or all")
        different_files(data=self.data, out=self.out)


PLAYS = ("exploring", "deterministic")


@dataclass
class CollectConfig:
    """`rppdyn collect`."""

    env: EnvConfig | None = None  # None: that of the run
    source: str | None = None  # a run's folder or a stable-baselines3 zip; None: random actions
    play: str | None = None  # which of its policies plays; None: of a run the replay buffer is taken, a zip explores
    steps: int | None = None  # at least; None: all of a replay buffer, else as many as the job says
    seed: int = 0
    name: str | None = None  # the dataset's Minari id; None: one that follows from the others
    trust: bool = False  # of what it names may run code
    vecnormalize: str | None = None  # the statistics that a stable-baselines3 policy's observations were normalised by

    def __post_init__(self) -> None:
        if self.steps is not None:
            flag("--steps", self.steps, 1)
        flag("--seed", self.seed, 0)
        if self.env is None and self.kind != "run":
            raise ConfigError("env= is missing: name the environment, for example env=Swimmer-v5")
        if self.play is not None:
            require("play", self.play, self.play in PLAYS, " or ".join(PLAYS))
        if self.kind == "random" and self.play is not None:
            raise ConfigError(f"--play {self.play} with --random: there is no policy to play; leave out one of the two")
        if self.kind != "file":
            if self.vecnormalize is not None:
                raise ConfigError(f"--vecnormalize {self.vecnormalize}: of a stable-baselines3 file only; leave it out")
            return
        trusted(str(self.source), SUBJECTS[".zip"], self.trust)

    @property
    def kind(self) -> str:
        """Where episodes are from: "random", "run" or "file"."""
        if self.source is None:
            return "random"
        return "file" if Path(self.source).suffix == ".zip" and not Path(self.source).is_dir() else "run"


def is_agent_file(path: str) -> bool:
    """Whether this is a stable-baselines3 file and no folder of a run."""
    return Path(path).suffix == ".zip" and not Path(path).is_dir()


def agent_files(config: ReportConfig | FigureConfig) -> None:
    """Refuse stable-baselines3 files that nobody trusts, and flags of theirs where there are none."""
    files = [path for path in config.runs if is_agent_file(path)]
    for path in files:
        trusted(path, POLICIES[".zip"], config.trust)
    if config.env is not None and not files:
        raise ConfigError(f"--env {config.env}: a run has an environment of its own; leave it out")


@dataclass
class ReportConfig:
    """`rppdyn report`."""

    runs: list[str]
    out: str = "report.html"
    env: str | None = None  # of stable-baselines3 files, which episodes are played with
    trust: bool = False

    def __post_init__(self) -> None:
        each_once(self.runs)
        agent_files(self)
        if Path(self.out).suffix not in (".html", ".htm"):
            raise ConfigError(f"--out {self.out}: must end in .html")
        file("--out", self.out)


@dataclass
class FigureConfig:
    """`rppdyn figure`."""

    runs: list[str]
    out: str
    json: str | None = None  # where the numbers that are drawn go
    env: str | None = None  # of stable-baselines3 files, which episodes are played with
    trust: bool = False

    def __post_init__(self) -> None:
        each_once(self.runs)
        agent_files(self)
        figure("--out", self.out)
        if self.json is not None and Path(self.json).suffix != ".json":
            raise ConfigError(f"--json {self.json}: must end in .json")
        file("--json", self.json)


@dataclass
class AuditConfig:
    """`rppdyn audit`."""

    what: str  # module:function, a map of observations
    model: str = ""  # a model file, or an environment's identifier
    observation: str = ""  # a YAML file of terms
    actions: str | None = None  # module:function, a map of actions where the first one has none
    symmetry: str | None = None  # None: the file's own
    states: int = 40
    seed: int = 0
    json: str | None = None

    def __post_init__(self) -> None:
        for name, value in (("WHAT", self.what), ("--actions", self.actions)):
            require(name, value, value is None or ":" in value, "a function, as module:function")
        flag("--states", self.states, 1)
        flag("--seed", self.seed, 0)
        file("--json", self.json)


@dataclass
class CertifyConfig:
    """`rppdyn certify`."""

    what: str  # an environment's identifier, or a model file
    states: int = 400
    seed: int = 0
    solver: str = "stock"
    symmetry: str | None = None  # None: the default of `symmetry_spec`
    variant: str = "derived"
    spec: str | None = None  # a YAML file of the terms that an environment's observation consists of
    json: str | None = None
    figure: str | None = None
    rank: bool = False  # say which of the model's deviations break it in motion
    log: str | None = None  # a Minari dataset of the robot, in which a part may be at fault

    def __post_init__(self) -> None:
        flag("--states", self.states, 20)
        flag("--seed", self.seed, 0)
        other = {"--figure": self.figure, "--rank": self.rank, "--symmetry": self.symmetry, "--spec": self.spec}
        if self.log is not None and (given := [name for name, value in other.items() if value]):
            raise ConfigError(
                f"--from {self.log} and {given[0]}: a log is compared with the model as it is; leave out one"
            )
        if self.spec is not None and self.variant != "derived":
            raise ConfigError(f"--variant {self.variant} and --spec {self.spec} are two symmetries: leave out one")
        if self.spec is not None and self.is_model_file:
            raise ConfigError(f"--spec {self.spec}: {self.what} is a model without an observation; give an environment")
        file("--json", self.json)
        figure("--figure", self.figure)
        different_files(json=self.json, figure=self.figure)

    @property
    def is_model_file(self) -> bool:
        """Whether a model's file is certified, not an environment."""
        return self.what.lower().endswith((".xml", ".mjcf", ".urdf"))
