"""Opening somebody's file runs nothing: each test plants code that leaves a marker, and opens what names it."""

from __future__ import annotations

import json
import os
import pathlib
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch
import yaml
from refusals import refused

from rppdyn.cli import main
from rppdyn.envs import make_env, read_episodes, write_episodes
from rppdyn.errors import code_named_in, modules_of
from rppdyn.jobs import playing
from rppdyn.jobs.building import agent_of
from rppdyn.jobs.config.command import EvaluateAgentConfig
from rppdyn.runs.files import user_folder
from rppdyn.runs.folder import is_own, sign

PAYLOAD = "import pathlib\npathlib.Path({marker!r}).touch()\n"
STOCK = "InvertedPendulum-v5"
NAME = "swimmer/mine-v0"


class Planted:
    """A folder `dl` as somebody else may have sent it, below the current one, and what its code leaves when it is run."""

    def __init__(self, small_run: Path, root: Path):
        self.root, self.run, self.marker = root, root / "dl", root / "marker"
        shutil.copytree(small_run, self.run)
        self.payload = PAYLOAD.format(marker=str(self.marker))

    def write(self, path: str, text: str | None = None) -> None:
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(self.payload if text is None else text)

    def configure(self, change: Callable[[dict], None]) -> None:
        config = yaml.safe_load((self.run / "config.yaml").read_text())
        change(config)
        (self.run / "config.yaml").write_text(yaml.safe_dump(config))

    def name(self, env_id: str) -> None:
        self.configure(lambda config: config["env"].update(id=env_id))

    def plant(self, module: str | None, *paths: str, env: str = STOCK) -> None:
        """Code in files, and a module that the run names its environment by."""
        for path in paths:
            self.write(path)
        if module is not None:
            self.name(f"{module}:{env}")

    def append(self, text: str) -> None:
        with (self.run / "config.yaml").open("a") as file:
            file.write(text)


@pytest.fixture
def planted(small_run, tmp_path, monkeypatch):
    before = set(sys.modules)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "datasets"))
    yield Planted(small_run, tmp_path)
    for name in set(sys.modules) - before:
        if name.partition(".")[0] in ("dl", "evil"):
            del sys.modules[name]


def in_the_folder(planted: Planted) -> None:
    planted.plant("dl.evil", "dl/evil.py")


def evil(planted: Planted, **changes) -> None:
    """A module that other keys of the configuration name."""
    planted.plant(None, "evil.py")
    planted.configure(lambda config: config.update(changes))


NAMED = {
    "beside it": lambda p: p.plant("evil", "evil.py"),
    "symbolic link": lambda p: (p.plant("evil", "dl/notes.txt"), (p.root / "evil.py").symlink_to("dl/notes.txt")),
    "linked run": lambda p: (in_the_folder(p), os.rename(p.run, p.root / "other"), p.run.symlink_to("other")),
    # looking for a module in a package imports the package
    "parent package": lambda p: (
        p.plant("dl.evil.harmless", "dl/evil/__init__.py"),
        p.write("dl/evil/harmless.py", ""),
    ),
    "unknown environment": lambda p: p.plant("evil", "evil.py", env="Absent-v0"),
}
"""Ways in which a run names a module that --trust imports."""


NEVER = {
    "relative": lambda p: p.plant(".evil", "dl/evil.py"),
    "two colons": lambda p: p.plant("evil:evil", "evil.py"),
    "target of Hydra": lambda p: evil(p, hydra={"_target_": "evil.run"}),
    "defaults": lambda p: evil(p, defaults=["evil"], callbacks=["evil:Callback"]),
    "target of the environment": lambda p: (evil(p), p.configure(lambda c: c["env"].update(_target_="evil.Env"))),
    "Python tag": lambda p: (evil(p), p.append("device: !!python/name:evil.device\n")),
    # an option that is called as what says that a file alone names the environment
    "option of ours": lambda p: (
        p.plant("evil", "evil.py"),
        p.configure(lambda c: c["env"]["kwargs"].update(named_by=None)),
    ),
    # the stored configuration says that it is trusted
    "trusts itself": lambda p: (p.plant("evil", "evil.py"), p.configure(lambda c: c.update(trust=True))),
}
"""Ways that are refused as they are, by keys that are none or names that are malformed."""


VERBS = {
    "evaluate-agent": ["evaluate-agent", "dl", "--episodes", "1"],
    "equivariance": ["equivariance", "dl", "--episodes", "1", "--states", "4"],
    "equivariance, named symmetry": ["equivariance", "dl", "--episodes", "1", "--symmetry", "left-right"],
    "collect": ["collect", "--from", "dl"],
    "collect, played": ["collect", "--from", "dl", "--play", "exploring", "--steps", "1"],
    "train-agent": ["train-agent", "--resume", "dl", "total_steps=24"],
}


@pytest.mark.parametrize("way", NAMED | NEVER)
def test_a_run_runs_nothing_that_is_not_trusted(planted, way, capfd):
    (NAMED | NEVER)[way](planted)
    status = main(VERBS["evaluate-agent"])
    err = capfd.readouterr().err
    assert not planted.marker.exists()
    assert status == 2 and err.count("\n") == 1, err
    if way in NAMED:
        module = yaml.safe_load((planted.run / "config.yaml").read_text())["env"]["id"].partition(":")[0]
        assert f"{Path('dl', 'config.yaml')} names" in err and f"module {module!r}: add --trust" in err
        status = main([*VERBS["evaluate-agent"], "--trust"])
        assert planted.marker.exists()
        assert status == (2 if way == "unknown environment" else 0), capfd.readouterr().err


@pytest.mark.parametrize("verb", VERBS)
def test_no_verb_runs_what_a_run_names(planted, verb, capfd):
    in_the_folder(planted)
    assert main(VERBS[verb]) == 2
    err = capfd.readouterr().err
    assert not planted.marker.exists() and err.count("\n") == 1
    assert "config.yaml names the environment dl.evil:InvertedPendulum-v5" in err and "'dl.evil': add --trust" in err
    assert main([*VERBS[verb], "--trust"]) == 0
    assert planted.marker.exists()


def test_reports_and_figures_make_no_environment_not_even_inside_the_folder(planted, monkeypatch):
    planted.plant("evil", "dl/evil.py")
    monkeypatch.chdir(planted.run)
    assert main(["evaluate-agent", "."]) == 2
    assert main(["report", "."]) == main(["figure", ".", "--out", "a.png"]) == 0
    assert not planted.marker.exists()
    assert main(["evaluate-agent", ".", "--episodes", "1", "--trust"]) == 0
    assert planted.marker.exists()


def test_the_environment_of_a_spec(planted, capfd):
    """`spec.json` says which environment it is of, and another symmetry of that can be asked for."""
    planted.write("evil.py")
    spec = json.loads((planted.run / "spec.json").read_text())
    (planted.run / "spec.json").write_text(json.dumps(spec | {"env_id": f"evil:{STOCK}"}))
    words = ["equivariance", "dl", "--symmetry", "left-right", "--episodes", "1", "--states", "4"]
    assert main(words) == 2
    err = capfd.readouterr().err
    assert not planted.marker.exists()
    assert "spec.json names" in err and "'evil': add --trust" in err
    assert main([*words, "--trust"]) == 0 and planted.marker.exists()


def test_what_is_typed_or_imported_is_not_asked_about(planted, capfd):
    """A user's own environment is typed in training, and imported in Python."""
    planted.write("evil.py")
    assert main(["certify", f"evil:{STOCK}", "--states", "20"]) == 0, capfd.readouterr().err
    assert planted.marker.exists()
    planted.name(f"evil:{STOCK}")
    assert playing.evaluate(EvaluateAgentConfig(run="dl", episodes=1)).lengths  # imported above


def test_a_function_is_typed(planted):
    planted.write("evil.py", planted.payload + "def f(x):\n    return -x\n")
    group = ["--group", "O(2)", "--rep-in", "V", "--rep-out", "V", "--from", "normal", "--states", "4"]
    assert main(["equivariance", "evil:f", *group]) == 0
    assert planted.marker.exists()


def test_the_same_in_python(planted, monkeypatch):
    in_the_folder(planted)
    monkeypatch.syspath_prepend(planted.root)
    with refused("config.yaml", "dl.evil", "trust=True"), agent_of("dl", 1, 0):
        pass
    assert not planted.marker.exists()
    with agent_of("dl", 1, 0, trust=True):
        assert planted.marker.exists()


# -- datasets ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def dataset(planted):
    """A dataset of one episode, with its metadata to be changed."""
    from rppdyn.agents import played_episodes, random_policy

    with closing(make_env("Swimmer-v5", monitor=False, max_episode_steps=20)) as env:
        episodes = list(played_episodes(env, random_policy(env.action_space, 0), steps=20, seed=0))
        folder = write_episodes(NAME, episodes, env=env)
    metadata = folder / "data" / "metadata.json"

    def change(without: str = "", **changes) -> None:
        content = json.loads(metadata.read_text())
        spec = json.loads(content["env_spec"]) | changes
        content.pop(without, None)
        metadata.write_text(json.dumps(content | {"env_spec": json.dumps(spec)}))

    return change


WRAPPER = {"name": "Monitor", "entry_point": "evil:Wrapper", "kwargs": {}}
SPECS = {
    "entry point": dict(id="Mine-v0", entry_point="evil:Env"),
    "a module in the id": dict(id="evil:Swimmer-v5", entry_point="evil:Env"),
    "of a package": dict(id="Mine-v0", entry_point="dl.evil.harmless:Env"),
    "vectorised too": dict(id="Mine-v0", entry_point="evil:Env", vector_entry_point="evil:Vector"),
}
HARMLESS = {
    "wrapper's entry point": dict(additional_wrappers=[WRAPPER]),
    "entry point of a stock environment": dict(entry_point="evil:Env", vector_entry_point="evil:Env"),
    "relative": dict(id="Mine-v0", entry_point=".evil:Env"),
    "option of ours": dict(id="Mine-v0", entry_point="evil:Env", kwargs={"named_by": None}),
    "no entry point": dict(id="evil:Swimmer-v5", entry_point=None),
}


@pytest.mark.parametrize("case", [*SPECS, *HARMLESS])
def test_a_dataset_runs_nothing_that_is_not_trusted(planted, dataset, case, monkeypatch, capfd):
    for path in ("evil.py", "dl/evil/__init__.py", "dl/evil/harmless.py"):
        planted.write(path)
    dataset(**(SPECS | HARMLESS)[case])
    words = ["fit-transition", f"dataset={NAME}"]
    status = main(words)
    err = capfd.readouterr().err
    assert not planted.marker.exists()
    assert status == 2 and err.count("\n") == 1, err
    if case in SPECS:
        assert f"{NAME}" in err and "add --trust" in err, err
        with monkeypatch.context() as patch:
            patch.syspath_prepend(planted.root)
            with refused(NAME, "trust=True"):
                read_episodes(NAME)
        assert not planted.marker.exists()
        assert main([*words, "--trust"]) == 2  # what was planted is no environment
        assert planted.marker.exists() == (case != "a module in the id")


def test_who_names_the_environment_of_a_dataset_trusts_it(planted, dataset, monkeypatch):
    planted.write("evil.py", planted.payload + "from gymnasium.envs.mujoco.swimmer_v5 import SwimmerEnv as Env\n"
                  "import gymnasium\ngymnasium.register('Mine-v0', 'evil:Env', max_episode_steps=20)\n")  # fmt: skip
    dataset(id="Mine-v0", entry_point="evil:Env")
    monkeypatch.syspath_prepend(planted.root)
    try:
        assert read_episodes(NAME, env_id="evil:Mine-v0").env().spec.id == "Mine-v0"
    finally:
        gym.registry.pop("Mine-v0", None)
    assert planted.marker.exists()


READERS = {
    "fit-transition": ["fit-transition", f"dataset={NAME}"],
    "fit-dynamics": ["fit-dynamics", f"data={NAME}", "state=[observations]", "time=0.1"],
    "certify": ["certify", "Swimmer-v5", "--from", NAME],
    "certify a model": ["certify", "robot.xml", "--from", NAME],
}
ROBOT = (
    "<mujoco><worldbody><body><joint name='a'/><geom size='.1'/></body></worldbody>"
    "<actuator><motor joint='a'/></actuator></mujoco>"
)


@pytest.mark.parametrize(("verb", "space"), [*zip(READERS, ("observation_space", "action_space") * 2, strict=True)])
def test_no_environment_is_made_for_spaces_that_a_dataset_leaves_out(planted, dataset, verb, space, monkeypatch, capfd):
    """Minari would make it, whatever module that is of."""
    planted.write("evil.py")
    planted.write("robot.xml", ROBOT)
    dataset(without=space, **SPECS["entry point"])
    monkeypatch.syspath_prepend(planted.root)
    assert main(READERS[verb]) == 2
    err = capfd.readouterr().err
    assert not planted.marker.exists() and err.count("\n") == 1
    assert f"{NAME} does not say its {space}: write it again" in err


@pytest.mark.parametrize("verb", [verb for verb in READERS if verb != "fit-dynamics"])
def test_an_option_of_a_dataset_that_names_code_asks_for_trust(planted, dataset, verb, capfd):
    planted.write("robot.xml", ROBOT)
    dataset(kwargs={"reset_noise_scale": "evil:Reward"})
    assert main(READERS[verb]) == 2
    err = capfd.readouterr().err
    assert "gives the environment Swimmer-v5 the option 'evil:Reward'" in err and "add --trust" in err
    assert err.count("\n") == 1


def test_a_model_is_compared_with_a_dataset_that_is_trusted(planted, dataset):
    planted.write("evil.py")
    planted.write("robot.xml", ROBOT)
    dataset(**SPECS["entry point"])
    assert main(READERS["certify a model"]) == 2 and not planted.marker.exists()
    assert main([*READERS["certify a model"], "--trust"]) == 2  # what was planted is no environment
    assert planted.marker.exists()


# -- options of an environment, which may name code, and pickled weights -------------------------------------------------


CODE = [
    "evil:Reward",
    "evil.Reward",
    ["evil:Reward"],
    {"reward": "evil:Reward"},
    "./evil.py",
    "/tmp/evil.so",
    "teacher.pkl",
]
DATA = ["robots/ant.xml", "rgb_array", "v1.5", "0:3", "a word. Another", 1.0, None, [1, 2]]


def test_an_option_that_names_code_is_not_passed_on(planted, capfd):
    assert [option for option in CODE + DATA if list(code_named_in({"key": option}))] == CODE
    planted.write("evil.py")
    planted.configure(lambda config: config["env"]["kwargs"].update(reset_noise_scale=CODE[0]))
    for words in (VERBS["evaluate-agent"], VERBS["train-agent"], VERBS["collect, played"]):
        assert main(words) == 2
        err = capfd.readouterr().err
        assert "config.yaml gives the environment InvertedPendulum-v5 the option" in err and "add --trust" in err
        assert err.count("\n") == 1


@pytest.mark.parametrize("how", ["pickle", "torch"])
def test_pickled_weights_are_refused_without_advice_to_load_them(planted, how, capfd):
    planted.write("mine.py", "import torch\nnet = torch.nn.Linear(2, 2)\n")

    class Payload:
        def __reduce__(self):
            return pathlib.Path.touch, (planted.marker,)

    with open("w.pt", "wb") as file:
        pickle.dump(Payload(), file) if how == "pickle" else torch.save({"weight": Payload()}, file)
    np.save("x.npy", np.zeros((2, 2)))
    assert main(["equivariance", "mine:net", "--image", "x.npy", "--weights", "w.pt"]) == 2
    err = capfd.readouterr().err
    assert not planted.marker.exists()
    assert "weights_only" not in err and "pickled objects" in err and err.count("\n") == 1, err


# -- runs of one's own ----------------------------------------------------------------------------------------------------


@pytest.fixture
def own(planted):
    """A run that this user made with a module in the current folder."""
    planted.write("evil.py")
    planted.name(f"evil:{STOCK}")
    with modules_of(planted.root):
        sign(planted.run)
    return planted


def test_a_run_of_ones_own_needs_no_trust(own, capfd):
    for verb in ("train-agent", "evaluate-agent", "equivariance, named symmetry", "collect"):
        sys.modules.pop("evil", None)
        own.marker.unlink(missing_ok=True)
        assert main(VERBS[verb]) == 0, capfd.readouterr().err
        assert own.marker.exists()


EDITS = {
    "option": lambda own: own.configure(lambda config: config["env"]["kwargs"].update(frame_skip=3)),
    "callback": lambda own: own.configure(lambda config: config.update(callbacks=["evil:Callback"])),
    "module": lambda own: own.write("evil.py", own.payload + "# changed"),
    "module elsewhere": lambda own: (own.write("evil/__init__.py"), os.remove("evil.py")),
    "spec": lambda own: (own.run / "spec.json").write_text((own.run / "spec.json").read_text() + " "),
    "signature": lambda own: (own.run / "signature").write_text("0" * 64),
    "signature of another run": lambda own: (own.run / "signature").write_text("\u00e9"),
    "no signature": lambda own: os.remove(own.run / "signature"),
    "another user's key": lambda own: (user_folder("config") / "key").write_bytes(b"1" * 32),
    "readable key": lambda own: (user_folder("config") / "key").chmod(0o644),
    "no key": lambda own: (user_folder("config") / "key").unlink(),
}


@pytest.mark.parametrize("edit", EDITS)
def test_what_was_edited_asks_as_before_and_stays_so_when_trusted(own, edit, capfd, monkeypatch, tmp_path):
    monkeypatch.setenv("RPPDYN_CONFIG_DIR", str(tmp_path / "config"))
    with modules_of(own.root):
        sign(own.run)
    assert is_own(own.run) is False  # outside of the folder its module is not found
    EDITS[edit](own)
    assert main(VERBS["train-agent"]) == 2
    assert not own.marker.exists() and "add --trust" in capfd.readouterr().err
    if edit in ("module", "spec"):
        assert main([*VERBS["train-agent"], "--trust"]) == 0
        sys.modules.pop("evil")
        assert main(VERBS["evaluate-agent"]) == 2


def test_training_signs_its_run_with_a_key_of_the_users_own(planted, monkeypatch, tmp_path, capfd):
    monkeypatch.setenv("RPPDYN_CONFIG_DIR", str(tmp_path / "config"))
    planted.write("evil.py")
    small = ["device=cpu", "model=mlp", "model.hidden=4", "agent.learning_starts=10", "agent.batch_size=4",
             "evaluation.every=100", "evaluation.episodes=1", "evaluation.states=4", "total_steps=20"]  # fmt: skip
    assert main(["train-agent", f"env=evil:{STOCK}", *small, "run_dir=mine"]) == 0
    key = tmp_path / "config" / "key"
    assert key.stat().st_mode & 0o777 == 0o600 and len(key.read_bytes()) == 32
    assert [path.name for path in key.parent.iterdir()] == ["key"]
    sys.modules.pop("evil")
    assert main(["train-agent", "--resume", "mine", "total_steps=24"]) == 0, capfd.readouterr().err
    sys.modules.pop("evil")
    assert main(["evaluate-agent", "mine", "--episodes", "1"]) == 0
    for place in (str(key), "/proc/none"):  # a folder that can't be made: the run is trained, and asks for trust
        monkeypatch.setenv("RPPDYN_CONFIG_DIR", place)
        with modules_of(planted.root):
            sign(Path("mine"))
            assert not is_own(Path("mine"))


# -- links in a run's folder ----------------------------------------------------------------------------------------------

LINKS = [("figures", False), ("checkpoints", True), ("metrics.jsonl", False), ("timing.jsonl", True), ("config.yaml", False),
         (".lock", False), ("figures/learning_curve.png", True), ("checkpoints/.writing-000000000024", False),
         (".writing-PID-result.json", True), ("equivariance.json", False), ("wandb", True)]  # fmt: skip


@pytest.mark.parametrize(("name", "dangling"), LINKS)
def test_nothing_is_written_through_links(planted, name, dangling, capfd):
    path, outside = planted.run / name.replace("PID", str(os.getpid())), planted.root / "outside"
    if path.exists():
        shutil.move(path, planted.root / "elsewhere" if dangling else outside)
    elif not dangling:
        outside.write_text("precious")
    path.symlink_to(outside)
    before = contents(outside)
    for words in (VERBS["train-agent"], VERBS["equivariance"], ["report", "dl"]):
        assert main(words) == 2
        err = capfd.readouterr().err
        assert f"{path.relative_to(planted.root)} is a link to {outside}" in err and err.count("\n") == 1, err
    assert path.is_symlink() and outside.exists() != dangling and contents(outside) == before


def contents(path: Path) -> dict[Path, bytes]:
    return {file: file.read_bytes() for file in (path, *path.rglob("*")) if file.is_file()}


def test_a_run_folder_may_be_reached_through_a_link_and_hold_links_to_itself(planted, capfd):
    os.rename(planted.run, planted.root / "data")
    planted.run.symlink_to("data")
    (planted.root / "data" / "latest").symlink_to("checkpoints")
    logs = planted.root / "data" / "wandb" / "offline-run-1" / "logs"
    logs.mkdir(parents=True)
    (logs / "debug-core.log").symlink_to(planted.root / "elsewhere.log")  # as W&B links its own
    assert main(VERBS["train-agent"]) == 0, capfd.readouterr().err


# -- the current folder -----------------------------------------------------------------------------------------------

SHADOWS = ["gymnasium.py", "torch.py", "numpy.py", "hydra.py", "rich.py", "shimmy.py", "tensorboard.py", "triton.py",
           "hydra_plugins/evil.py", "sitecustomize.py"]  # fmt: skip


COMMANDS = {
    "the command": (["-P", "-c", "import sys; from rppdyn.cli import main; sys.exit(main())"], "evaluate-agent dl", 0),
    "the module": (["-m", "rppdyn.cli"], "certify Absent-v0", 2),
}


@pytest.mark.parametrize("case", COMMANDS)
def test_files_that_are_called_like_packages_are_not_imported(planted, environment, case):
    """A folder holds modules with the names of installed and optional packages, a plug-in of Hydra's, and entry points."""
    for path in SHADOWS:
        planted.write(path)
    planted.write("evil.py")
    planted.write("evil-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: evil\nVersion: 1.0\n")
    planted.write(
        "evil-1.0.dist-info/entry_points.txt", "[gymnasium.envs]\nmine = evil\n[torch.backends]\nm = evil:f\n"
    )
    start, words, status = COMMANDS[case]
    done = subprocess.run(
        [sys.executable, *start, *words.split()], cwd=planted.root, env=environment, capture_output=True, text=True
    )
    assert not planted.marker.exists()
    assert done.returncode == status, done.stderr
