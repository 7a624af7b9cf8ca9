"""Compose configurations from overrides of a command line, by Hydra, with errors of one line; check run folders."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import asdict
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from hydra import compose as hydra_compose
from hydra import initialize_config_module
from hydra._internal.hydra import Hydra
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException, MissingConfigException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from rppdyn.errors import search_modules
from rppdyn.jobs.config.agent import UNUSED_KEYS, EnvConfig, TrainAgentConfig
from rppdyn.jobs.config.base import RunConfig
from rppdyn.jobs.config.fit import FitDynamicsConfig, FitRegressionConfig, FitTrajectoriesConfig, FitTransitionConfig
from rppdyn.jobs.config.image import BoundImageConfig, BoundRegressionConfig, FitImageConfig
from rppdyn.runs import RunFolder, RunFolderError, differences
from rppdyn.runs.files import plain
from rppdyn.runs.folder import is_own
from rppdyn.runs.session import missing_package
from rppdyn.settings import (
    ConfigError,
    defaults,
    did_you_mean,
    fields_of,
    format_value,
    keys_of,
    read,
    section_of,
    unknown_key,
)

SCHEMAS: dict[str, type[RunConfig]] = {
    "train_agent": TrainAgentConfig,
    "fit_regression": FitRegressionConfig,
    "fit_dynamics": FitDynamicsConfig,
    "fit_trajectories": FitTrajectoriesConfig,
    "fit_transition": FitTransitionConfig,
    "fit_image": FitImageConfig,
    "bound_regression": BoundRegressionConfig,  # after the fits, whose keys it has, too: name_of_run takes the first of several
    "bound_image": BoundImageConfig,
}
CONFIGS = {name: f"rppdyn.configs.{name.replace('bound_', 'fit_')}" for name in SCHEMAS}
CONFIGS["train_agent"] = "rppdyn.configs"
"""Package with the YAML files of each configuration and its groups."""


def choices(group: str, name: str = "train_agent") -> list[str]:
    """The choices of a group of the configuration `name`: the names of the YAML files in its folder."""
    folder = resources.files(CONFIGS[name]).joinpath(group)
    if not folder.is_dir():
        return []
    return sorted(entry.name.removesuffix(".yaml") for entry in folder.iterdir() if entry.name.endswith(".yaml"))


def groups(name: str) -> list[str]:
    """The keys whose values are chosen by name, and "experiment" if there are experiments."""
    keys = [key for key, item in fields_of(SCHEMAS[name]).items() if section_of(item.annotation)]
    return [key for key in (*keys, "experiment") if choices(key, name)]


# -- errors of Hydra and OmegaConf, in one line with the remedy --------------------------------------------------------

LAUNCHERS = {  # of sweeps, with the packages that install them
    "joblib": "hydra-joblib-launcher",
    "submitit": "hydra-submitit-launcher",
    "ray": "ray, then pip install --no-deps hydra-ray-launcher",  # its pin of cloudpickle excludes gymnasium's
}


@contextmanager
def one_line(name: str) -> Iterator[None]:
    """Turn errors of Hydra and OmegaConf into a ConfigError of one line."""
    try:
        yield
    except ConfigError:
        raise
    except MissingConfigException as error:
        group, _, choice = (error.missing_cfg_file or "").rpartition("/")
        raise ConfigError(_missing(group, choice, name)) from error
    except (HydraException, OmegaConfBaseException, ValueError, AssertionError) as error:
        first = (str(error).strip().splitlines() or ["leave out one override after the other"])[0]
        raise ConfigError(f"the overrides can't be used: {first}") from error


def _missing(group: str, choice: str, name: str) -> str:
    """The message for a choice that does not exist."""
    if not group.startswith("hydra/"):
        known = choices(group, name)
        return f"{group}={choice}: no such choice{did_you_mean(choice, known)}; choose one of {', '.join(known)}"
    plugin = LAUNCHERS.get(choice.partition("_")[0])
    if group == "hydra/sweeper":
        remedy = "pip install 'rppdyn[optuna]'" if choice == "optuna" else "known are basic and optuna"
    else:
        remedy = f"pip install {plugin}" if plugin else f"known are {', '.join(LAUNCHERS)}"
    return f"{group}={choice}: not installed; {remedy}, or leave it out"


# -- schemas -----------------------------------------------------------------------------------------------------------

ENVIRONMENT_PACKAGES = {"gymnasium_robotics": "gymnasium-robotics", "shimmy": "'shimmy[dm-control]'"}
"""Modules in names of environments, with the packages that install them."""

OPEN_KEYS = ("hydra.launcher.ray.init.", "hydra.launcher.ray.remote.", "hydra.sweeper.params.", "hydra.job.env_set.")
"""Dictionaries of Hydra's configuration that take any name."""

OMITTED_HYDRA_GROUPS = [
    f"~hydra/{group}"
    for group in ("help", "hydra_help", "hydra_logging", "job_logging", "launcher", "output", "sweeper")
]
"""Hydra's own settings, which would take two fifths of the time to compose a configuration."""


def composed(name: str, overrides: Sequence[str]) -> Any:
    """Compose and check the configuration `name` with overrides.

    Raises:
        ConfigError: one line that names the key or the choice, the value and the remedy.
    """
    with _hydra(name, overrides) as prepared:
        for override in map(_parse, map(_quote, overrides)):
            if override.is_sweep_override():
                word = str(override.input_line)
                if word.startswith("seeds="):
                    raise ConfigError(f"{word}: give their number, such as seeds=3, or seed=0,1,2 with --multirun")
                raise ConfigError(f"{word}: several values; add --multirun to run each, or write [a,b] for a list")
        return _compose(name, prepared)


def show(name: str, overrides: Sequence[str], kind: str) -> None:
    """Print a configuration as YAML: that of the "job", Hydra's own ("hydra") or "all"."""
    config = composed(name, overrides)
    if kind == "job":
        print(OmegaConf.to_yaml(OmegaConf.create(plain(asdict(config)))))
        return
    with _hydra(name, overrides) as prepared:
        _instance().show_cfg(name, prepared, kind, package=None)


def environment(words: Sequence[str]) -> EnvConfig | None:
    """The environment chosen by overrides, for a command without other overrides; None without any.

    Raises:
        ConfigError: an override is not of an environment or can't be used, or env= is missing.
    """
    for word in words:
        if not re.match(r"env(\.(kwargs|actuator_scale)(\..+)?)?=", word):
            raise ConfigError(f"{word}: only env=, env.kwargs.NAME= and env.actuator_scale.NAME= are known here")
    if words and not any(word.startswith("env=") for word in words):
        raise ConfigError(f"{words[0]}: env= is missing; name the environment, for example env=Swimmer-v5")
    return composed("train_agent", words).env if words else None


def compose_sweep(name: str, overrides: Sequence[str]) -> list[Any]:
    """The configurations of a sweep, one per job that Hydra's basic sweeper would start.

    Raises:
        ConfigError: one of them can't be used.
    """
    from hydra._internal.core_plugins.basic_sweeper import BasicSweeper

    with _hydra(name, overrides) as prepared, one_line(name):
        hydra_compose(name, [word for word in prepared if _is_hydra(word)])  # refuses a launcher that is not installed
        task = [_parse(word) for word in prepared if not _is_hydra(word)]
        for override in task:  # Hydra would complain after the first jobs
            if override.is_sweep_override() and not override.is_discrete_sweep():
                raise ConfigError(f"{override.input_line}: a sweep needs a list or a range, for example seed=0,1,2")
            if override.is_sweep_override() and not list(override.sweep_string_iterator()):
                raise ConfigError(f"{override.input_line}: the sweep is empty; give it a value at least")
        jobs = BasicSweeper.split_arguments(task, max_batch_size=None)[0]
        return [_compose(name, job) for job in jobs]


def sweep(name: str, overrides: Sequence[str], task: Callable[[DictConfig], Any]) -> list[Any]:
    """Run `task` on each configuration of a sweep, by Hydra's configured sweeper and launcher.

    Returns:
        the values of the tasks, in order; the first exception of a task is raised.
    """
    with _hydra(name, overrides) as prepared:
        batches = _instance().multirun(config_name=name, task_function=task, overrides=list(prepared))
    return [job.return_value for batch in batches or [] for job in batch]


def is_search(words: Sequence[str]) -> bool:
    """Return whether a sweep is a search by Optuna."""
    return any(re.fullmatch(r"\+{0,2}hydra/sweeper=['\"]?optuna['\"]?", word) for word in words)


def compose_search(name: str, overrides: Sequence[str]) -> Any:
    """The configuration of a search without the varied keys.

    Raises:
        ConfigError: the overrides can't be used, or nothing is varied.
    """
    with _hydra(name, overrides) as prepared, one_line(name):
        parsed = [_parse(word) for word in prepared]
        varied = [override for override in parsed if override.is_sweep_override()]
        has_parameters = any(str(override.get_key_element()).startswith("hydra.sweeper.params") for override in parsed)
        if not varied and not has_parameters:
            raise ConfigError(
                "hydra/sweeper=optuna: nothing is varied; give an interval or choices, for example "
                "'agent.learning_rate=tag(log,interval(1e-5,1e-2))' or model.hidden=32,64"
            )
        for override in varied:
            key = override.get_key_element().lstrip("+~")
            if key not in keys_of(SCHEMAS[name]) and key not in groups(name) and not key.startswith("hydra"):
                raise ConfigError(unknown_key(key, SCHEMAS[name]))
        return _compose(name, [word for word, each in zip(prepared, parsed, strict=True) if each not in varied])


def search(name: str, overrides: Sequence[str], task: Callable[[DictConfig], float]) -> dict[str, Any]:
    """Run a search by Optuna, and read the sweeper's results.

    Returns:
        `best_params`, `best_value`, the number of `trials`, and the `file`.
    """
    with _hydra(name, overrides) as prepared:
        hydra = _instance()
        node = hydra.compose_config(
            name, [word for word in prepared if _is_hydra(word)], RunMode.MULTIRUN, with_log_configuration=False
        )
        hydra.multirun(config_name=name, task_function=task, overrides=list(prepared))
    file = Path(node.hydra.sweep.dir, "optimization_results.yaml")
    best = OmegaConf.to_container(OmegaConf.load(file))
    assert isinstance(best, dict)
    return {
        **{str(key): value for key, value in best.items()},
        "trials": node.hydra.sweeper.n_trials,
        "file": str(file),
    }


def read_config(name: str, node: Any) -> Any:
    """Convert a composed configuration to settings."""
    with one_line(name):
        return read(SCHEMAS[name], OmegaConf.to_container(node, resolve=True))


def from_run(name: str | None, folder: RunFolder, overrides: Sequence[str] = (), *, trust: bool = False) -> Any:
    """The configuration of a run, with overrides on top; keys newer than the run have their defaults.

    Args:
        name: required name of the configuration; None allows any.
        trust: whether a module that it names may be imported to make its environment; the user's own runs need no trust.
    Raises:
        RunFolderError: the file can't be read.
        ConfigError: the run is one of another command, or the file or an override has an unknown key or an impossible value.
    """
    stored = folder.config()
    stored_name = _name_of(stored)
    if name not in (None, stored_name):
        raise ConfigError(f"{folder.path} is a run of {SCHEMAS[stored_name].verb}: give one of {SCHEMAS[name].verb}")
    try:
        config = from_stored(stored_name, stored, [])
    except ConfigError as error:
        raise ConfigError(f"{folder.config_file}: {error}") from error
    if overrides:
        config = from_stored(stored_name, stored, overrides)
    if hasattr(config, "env") and not (trust or is_own(folder.path)):
        config.env.mark_untrusted(str(folder.config_file))
    return config


def from_stored(name: str, stored: dict[str, Any], overrides: Sequence[str]) -> Any:
    """The settings in a nested dictionary, with overrides on top.

    Raises:
        ConfigError: an override is malformed, or has an unknown key or an impossible value.
    """
    with one_line(name):
        if not overrides:
            return read(SCHEMAS[name], stored)
        node = OmegaConf.create(stored)
        for override in map(_parse, map(_quote, overrides)):
            key = override.get_key_element().lstrip("+~")
            if override.is_sweep_override():
                raise ConfigError(f"{override.input_line}: a sweep can't resume one run; resume each folder by itself")
            if key in groups(name):
                raise ConfigError(
                    f"{override.input_line}: a resumed run keeps its {key}; leave it out, or begin another run"
                )
            OmegaConf.update(node, key, override.value(), merge=False, force_add=True)
        return read_config(name, node)


def name_of_run(folder: RunFolder) -> str:
    """The name of a run's configuration: the schema that has the most keys in common with it."""
    return _name_of(folder.config())


def _name_of(stored: dict[str, Any]) -> str:
    return max(SCHEMAS, key=lambda name: sum(_holds(stored, key) for key in keys_of(SCHEMAS[name])))


def _holds(node: Any, key: str) -> bool:
    first, _, rest = key.partition(".")
    return isinstance(node, dict) and first in node and (not rest or _holds(node[first], rest))


def describe(name: str) -> str:
    """A help text with the choices of each group, and every key with its default."""
    with _hydra(name, []):
        node = hydra_compose(config_name=name)
    lines = ["choices:"]
    for group in groups(name):
        lines.append(f"  {group}={' | '.join(choices(group, name))}")
    of_choices = " (a choice brings its own)" if groups(name) else ""
    lines += ["", f"keys and defaults{of_choices}:"]
    for key, item in keys_of(SCHEMAS[name]).items():
        value = OmegaConf.select(node, key, default="")
        value = OmegaConf.to_container(value) if OmegaConf.is_config(value) else value
        is_optional = key.startswith(tuple(f"agent.{agent}." for agent in UNUSED_KEYS))
        lines.append(f"  {key}={'' if is_optional else format_value(value)}\n      {item.description}")
    return "\n".join(lines)


@cache
def _compose_choices(name: str, choices: tuple[str, ...]) -> DictConfig:
    """Compose the files of these choices, which takes most of the time."""
    return hydra_compose(name, [*choices, *OMITTED_HYDRA_GROUPS])


def _compose(name: str, overrides: Sequence[str]) -> Any:
    """Compose the choices among the overrides, and set the values of the others (`++key=value`), as Hydra does."""
    with one_line(name):
        words = [word for word in overrides if not _is_hydra(word)]
        node = deepcopy(_compose_choices(name, tuple(word for word in words if not word.startswith("++"))))
        for override in (_parse(word) for word in words if word.startswith("++")):
            OmegaConf.update(node, override.get_key_element().lstrip("+"), override.value(), force_add=True)
        if len(words) < len(overrides):  # check overrides of Hydra's own settings
            hydra_compose(name, list(overrides), return_hydra_config=True)
    return read_config(name, node)


def _instance() -> Hydra:
    hydra = GlobalHydra.instance().hydra
    assert hydra is not None
    return hydra


@contextmanager
def _hydra(name: str, overrides: Sequence[str]) -> Iterator[list[str]]:
    """Initialise Hydra on the packaged configurations; yields the prepared overrides."""
    ConfigStore.instance().store(name=f"{name}_schema", node=defaults(SCHEMAS[name]))
    overrides = [_quote(override) for override in overrides]
    agent = next((word for word in reversed(overrides) if word.lstrip("+").startswith("agent=")), "agent=sac")
    for override in overrides:
        _parse(override)
        key, _, value = override.lstrip("+").partition("=")
        if key in groups(name) and key != "experiment" and value in ("null", ""):
            raise ConfigError(f"{override}: a choice is needed; choose one of {', '.join(choices(key, name))}")
        _check_agent(override, key, agent)
    with initialize_config_module(CONFIGS[name], version_base="1.3", job_name=name.replace("_", "-")):
        yield [_prepare(name, override) for override in overrides]


def _check_agent(override: str, key: str, chosen: str) -> None:
    """Refuse an override of a key that the chosen agent does not use.

    Args:
        key: key of the override.
        chosen: override of the agent, `agent=NAME`; several names in a sweep.
    """
    agents = re.split(r"[=,]", chosen)[1:]
    for agent in UNUSED_KEYS:
        if key.startswith(f"agent.{agent}") and agent not in agents:
            raise ConfigError(f"{override}: it is of agent={agent} alone; add that")
        if key == f"agent.{agent}":
            raise ConfigError(f"{override}: it has keys; set them one by one, as agent.{agent}.KEY=VALUE")
    if len(agents) == 1 and key.startswith("agent.") and key.removeprefix("agent.") in UNUSED_KEYS.get(agents[0], ()):
        raise ConfigError(f"{override}: agent={agents[0]} has no such setting; leave it out, or use agent=sac")


QUOTED_KEYS = ("task.group", "task.rep", "task.rep_out", "task.control_rep", "task.data")
"""Keys whose values Hydra would misread, such as SO(3) as a function call."""


def _quote(override: str) -> str:
    """Quote a group's name or a path, since a shell has removed the user's quotes."""
    key, _, value = override.partition("=")
    if key not in QUOTED_KEYS or re.search("[\"']", value) or not (key == "task.data" or re.search(r"\w\(", value)):
        return override
    names = re.split(r",(?![^(]*\))", value)  # of a sweep; a comma in brackets separates a group's arguments
    return f"{key}=" + ",".join(f'"{name.strip()}"' for name in names)


@cache
def _parse(override: str) -> Override:
    try:
        parsed = OverridesParser.create().parse_override(override)
    except HydraException as error:
        raise ConfigError(
            f"{override!r} is no override: write key=value, and quotes around a value with special characters"
        ) from error
    if parsed.is_delete():
        raise ConfigError(f"{override}: a configuration keeps its keys; leave it out")
    return parsed


def _prepare(name: str, override: str) -> str:
    """Prepare an override for Hydra: register environments without a file, and add `++` to keys, which Hydra then accepts."""
    word = override.lstrip("+")
    key, _, value = word.partition("=")
    if key == "env":
        _offer_environments(value)
    is_open = word.startswith(OPEN_KEYS) or not (_is_hydra(word) or key in groups(name))
    return f"++{word}" if is_open else word


def _offer_environments(value: str) -> None:
    """Make each registered environment among the choices `a,b,...` selectable, with default settings."""
    for choice in value.split(","):
        choice = choice.strip().strip("'\"")
        if choice and choice not in choices("env") and not re.search(r"[\[\](){}$*]", choice):
            require_environment(choice)
            folder, _, name = f"env/{choice}".rpartition("/")  # Gymnasium's namespaces are folders to Hydra
            ConfigStore.instance().store(group=folder, name=name, node={"id": choice}, package="env")


def require_environment(env_id: str) -> None:
    """Refuse an identifier unknown to Gymnasium.

    Raises:
        ConfigError: naming the environments with a configuration.
    """
    known = choices("env")
    if env_id in known:
        return
    module, colon, _ = env_id.partition(":")
    if colon:
        search_modules()
    if module in ENVIRONMENT_PACKAGES and not _importable(module):
        raise ConfigError(f"env={env_id}: {module} is not installed; pip install {ENVIRONMENT_PACKAGES[module]}")
    if colon and not _importable(module):
        raise ConfigError(
            f"env={env_id}: there is no module {module!r} to import; run in the folder of its file, or set PYTHONPATH"
        )
    if not _is_registered(env_id):
        if colon and (kind := _find_unregistered_class(env_id)):
            raise ConfigError(
                f"env={env_id}: {module} has a class {kind}, which is no registered environment: add "
                f'gymnasium.register("{kind}-v0", "{module}:{kind}", max_episode_steps=...) at the end of its file, and give '
                f"env={module}:{kind}-v0"
            )
        raise ConfigError(
            f"env={env_id}: unknown environment{did_you_mean(env_id, known)}; known: {', '.join(known)}, any other MuJoCo "
            "task of Gymnasium, and your own as env=module:EnvId; `rppdyn certify` says what symmetry a robot has"
        )


def _importable(module: str) -> bool:
    from importlib.util import find_spec

    try:
        return find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def _find_unregistered_class(env_id: str) -> str:
    """The environment class of that name in its module, or the only one there; "" if there is none."""
    import sys

    import gymnasium

    module, _, name = env_id.rpartition(":")
    members = vars(sys.modules[module]) if module in sys.modules else {}
    kinds = [key for key, kind in members.items() if isinstance(kind, type) and issubclass(kind, gymnasium.Env)
             and kind.__module__ == module]  # fmt: skip
    base = re.sub(r"-v\d+$", "", name)
    return base if base in kinds else kinds[0] if len(kinds) == 1 else ""


def _is_registered(env_id: str) -> bool:
    import gymnasium

    module, colon, name = env_id.rpartition(":")
    # importing a module registers its environments, as in gymnasium.make; this package's own need no module:
    if colon or name.startswith("rppdyn/"):
        importlib.import_module(module or "rppdyn.envs")
    try:
        gymnasium.spec(name)
    except gymnasium.error.Error:
        return False
    return True


def _is_hydra(override: str) -> bool:
    return override.lstrip("+~").startswith(("hydra.", "hydra/"))


# -- keys of the user's own data, without a section --------------------------------------------------------------------

OWN_DATA_TASKS = {"fit_dynamics": "trajectories", "fit_regression": "own", "fit_image": "own"}
"""The task chosen by `data=`, by name of the configuration."""
UNPREFIXED_KEYS = {
    "fit_dynamics": ("data", "state", "positions", "velocities", "momenta", "controls", "time", "trajectory", "unwrap",
                     "group", "rep", "control_rep", "split"),
    "fit_regression": ("data", "inputs", "outputs", "group", "rep", "rep_out", "split"),
    "fit_image": ("data", "images", "labels", "targets", "split"),
}  # fmt: skip
"""Keys of the task that may be given without their section."""


def expand_own_data_words(name: str, words: Sequence[str], *, begun: bool = False) -> list[str]:
    """Expand overrides for the user's own data: add `task=` if there is `data=`, and the section `task.` to its keys.

    Args:
        name: name of the configuration.
        begun: the overrides are for an existing run, which has a task already.
    Raises:
        ConfigError: a key of such data without `data=`, or together with another task.
    """
    if name not in OWN_DATA_TASKS:
        return list(words)
    has_data = any(word.startswith(("data=", "task.data=")) for word in words)
    prefixed = [f"task.{word}" if word.partition("=")[0] in UNPREFIXED_KEYS[name] else word for word in words]
    if not has_data:
        for word, expanded in zip(words, prefixed, strict=True):
            if word != expanded and not word.startswith("group=") and not begun:
                raise ConfigError(f"{word} without data=: it is of data of your own; give data=FILE too")
        return prefixed
    if begun:
        return prefixed
    task = f"task={OWN_DATA_TASKS[name]}"
    other_tasks = [word for word in prefixed if word.startswith("task=") and word != task]
    if other_tasks:
        raise ConfigError(f"data= with {other_tasks[0]}: that task makes its own data; leave out one of the two")
    has_group = any(word.startswith("task.group=") and word != "task.group=null" for word in prefixed)
    if name == "fit_regression" and not has_group and not any(word.startswith("model=") for word in prefixed):
        prefixed = ["model=mlp", *prefixed]
    return prefixed if task in prefixed else [task, *prefixed]


def overrides(name: str, **options: Any) -> list[str]:
    """Convert options of a function to overrides; ``__`` in a name stands for a dot."""
    if unused := {"run_dir", "runs_root", "report", "logger"} & options.keys():
        raise ConfigError(f"{min(unused)}: a function writes no files; leave it out, or use the command")
    return expand_own_data_words(
        name, [f"{key.replace('__', '.')}={_format_option(value)}" for key, value in options.items()]
    )


def _format_option(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"[{','.join(map(_format_option, value))}]"
    if value is None or isinstance(value, int | float):
        return "null" if value is None else str(value)
    escaped = re.sub(r"(\\+)(?='|$)", r"\1\1", str(value)).replace("'", r"\'")  # as Hydra's quoted strings are written
    return f"'{escaped}'"


# -- checks before a run begins, in milliseconds -----------------------------------------------------------------------


def preflight(config: RunConfig, resume: bool) -> dict[str, Any] | None:
    """Refuse a run folder that can't be used; returns the content of `result.json` if the run is finished.

    Raises:
        RunFolderError: the folder exists (without `resume`), is no run folder, or has another configuration.
        ConfigError: a logger's package is not installed.
    """
    if (missing := missing_package(config.loggers)) is not None:
        raise ConfigError(missing)
    folder = RunFolder(config.folder())
    if not resume or folder.is_vacant():
        folder.refuse_existing()
        return None
    return _check_resume(config, RunFolder.open(folder.path))


def _check_resume(config: RunConfig, folder: RunFolder) -> dict[str, Any] | None:
    stored = from_run(next(name for name, schema in SCHEMAS.items() if type(config) is schema), folder)
    different = differences(plain(stored.identity()), plain(config.identity()))
    if different:
        key, before, now = different[0]
        raise RunFolderError(
            f"{folder.path} was run with {key}={before}, not {now}: resume it with that, or leave out --resume "
            "and choose another run_dir="
        )
    result = folder.result()
    key, length = config.length
    # the steps in the result may be a few more, since a rollout is collected to its end
    if result is None or stored.length[1] < length:
        return None
    if stored.length[1] > length:
        steps = result.get("steps", stored.length[1])
        raise RunFolderError(
            f"{key}={length}: the run in {folder.path} has {steps} already; give at least as many, or another run_dir="
        )
    return result | {"run": str(folder.path), "note": "finished before; nothing left to do"}
