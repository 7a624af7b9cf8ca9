"""Environments of the user's own on the command line: without MuJoCo, without a state that it says, with dictionaries."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from stable_baselines3 import SAC

from rppdyn.cli import main
from rppdyn.envs import make_env
from rppdyn.envs._wrappers import flat_names, unflattening
from rppdyn.jobs import train_agent
from rppdyn.jobs.config import compose
from rppdyn.runs import RunFolder, Session, read_metrics

MODULE = """
import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete

class Point(gym.Env):
    '''A point that is pushed towards a goal; mirrored left to right it is the same.'''
    observation_space = Dict(goal=Box(-9, 9, (2,)), arm=Dict(position=Box(-9, 9, (2,)), speed=Box(-9, 9, (2,))))
    action_space = Box(-1, 1, (2,))
    first = []

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.x, self.v, self.goal = *self.np_random.normal(size=(2, 2)).clip(-2, 2), self.np_random.normal(size=2).clip(-2, 2)
        Point.first.append(self.x.copy())
        return self.seen(), {}

    def seen(self):
        arrays = [np.float32(a) for a in (self.goal, self.x, self.v)]
        return {"goal": arrays[0], "arm": {"position": arrays[1], "speed": arrays[2]}}

    def step(self, action):
        self.v = (self.v + 0.1 * np.asarray(action)).clip(-2, 2)
        self.x = (self.x + 0.1 * self.v).clip(-9, 9)
        return self.seen(), -float(np.abs(self.x - self.goal).sum()), False, False, {}

class Flat(Point):
    observation_space = Box(-9, 9, (6,))
    def seen(self):
        return np.concatenate([self.goal, self.x, self.v]).astype(np.float32)

class Camera(Point):
    observation_space = Dict(eye=Dict(left=Box(0, 255, (8, 8, 3), np.uint8)), goal=Box(-9, 9, (2,)))
    def seen(self):
        return {"eye": {"left": np.zeros((8, 8, 3), np.uint8)}, "goal": np.float32(self.goal)}
class Goal(Point):
    observation_space = Dict(goal=Box(-9, 9, (2,)), position=Box(-9, 9, (2,)))
    def seen(self):
        return {"goal": np.float32(self.goal), "position": np.float32(self.x)}
class Keys(Point):
    observation_space = Dict(goal=Box(-9, 9, (2,)))
class Buttons(Flat):
    action_space = Discrete(4)
class Leaves(Flat):
    observation_space = Box(-0.01, 0.01, (6,))
class Wrong(Flat):
    def reset(self, **options):
        return super().reset(**options)[0]
class Unregistered(gym.Env): ...

for kind in (Point, Flat, Goal, Keys, Camera, Buttons, Leaves, Wrong):
    gym.register(f"{kind.__name__}-v0", f"my_point:{kind.__name__}", max_episode_steps=15)
"""
SMALL = ["device=cpu", "threads=1", "model.hidden=8", "evaluation.episodes=1", "evaluation.states=8",
         "evaluation.every=1000", "total_steps=60"]  # fmt: skip
SAC_WORDS = [*SMALL, "agent.learning_starts=10", "agent.batch_size=8", "agent.buffer_size=100"]
NAMES = ["goal[0]", "goal[1]", "arm.position[0]", "arm.position[1]", "arm.speed[0]", "arm.speed[1]"]
MIRROR = """
obs_permutation: [0, 1, 2, 3, 4, 5]
obs_signs: [-1, 1, -1, 1, -1, 1]
action_permutation: [0, 1]
action_signs: [-1, 1]
"""


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "my_point.py").write_text(MODULE)
    (tmp_path / "mirror.yaml").write_text(MIRROR)
    return tmp_path


@pytest.fixture
def said_of(capsys, caplog):
    """What a command prints and warns of."""

    def run_and_read(*words) -> str:
        caplog.clear()
        return run(capsys, *words) + caplog.text

    return run_and_read


def run(capsys, *words) -> str:
    status = main(list(words))
    out, err = capsys.readouterr()
    assert status == 0, err
    return out + err


def refused(capsys, *words) -> str:
    assert main(list(words)) == 2
    err = capsys.readouterr().err.strip()
    assert "\n" not in err.removeprefix("rppdyn: ") or err.count("rppdyn: error") == 1
    return err.splitlines()[-1]


def test_a_plain_network_of_a_nested_dictionary_goes_on_with_a_fresh_episode(said_of, here):
    words = ["env=my_point:Point-v0", "model=mlp", *SAC_WORDS, "checkpoint_every=20", "run_dir=run"]
    save = Session.checkpoint

    def kill(run, step, write):
        save(run, step, write)
        if step == 40:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Session, "checkpoint", kill)
        train_agent.run(compose.composed("train_agent", words))
    first = sys.modules["my_point"].Point.first
    before = list(first)
    first.clear()
    said = said_of("train-agent", "--resume", *words)
    assert "seed 0 goes on from step 40 with a fresh episode" in said
    assert "when it goes on     from the last checkpoint, with a fresh episode" in said
    assert "none: the environment has no symmetry here" in said
    training = [x for x in first if not any((x == y).all() for y in before)]
    assert training  # episodes that the run has not seen yet
    assert [r["step"] for r in read_metrics(RunFolder.open("run").metrics.path)] == [0, 60]
    assert [entry[0] for entry in json.loads((here / "run/spec.json").read_text())["obs"]["entries"]] == NAMES

    assert "mean return" in said_of("evaluate-agent", "run", "--episodes", "1", "--trust")
    said_of("report", "run", "--out", "page.html")
    assert "No equivariance error was measured" in (here / "page.html").read_text()
    said_of("export", "run", "--torch", "run.pt2", "--states", "20", "--trust")
    card = json.loads((here / "run.json").read_text())
    assert [entry["name"] for entry in card["observation"]["entries"]] == NAMES if "observation" in card else card


def test_a_mirror_from_a_file_makes_a_strict_network(said_of):
    said = said_of("train-agent", "env=my_point:Point-v0", "model=emlp", "agent=ppo", "agent.ppo.n_steps=20",
               "agent.batch_size=20", *SMALL, "env.spec=mirror.yaml", "run_dir=run")  # fmt: skip
    assert "goes on from its last checkpoint with a fresh" in said
    record = read_metrics(RunFolder.open("run").metrics.path)[-1]
    assert record["equivariance/policy"] < 1e-6 and "equivariance/policy/mirror" in record
    said_of("train-agent", "env=my_point:Flat-v0", "model=rpp", *SAC_WORDS, "env.spec=run/spec.json", "run_dir=flat")


def test_a_stable_baselines3_file_of_dictionaries(capsys, here):
    env = make_env("my_point:Goal-v0", monitor=False)
    inner = env.unwrapped
    SAC("MultiInputPolicy", inner, policy_kwargs=dict(net_arch=[4]), buffer_size=10, device="cpu", seed=0).save("sac")
    said = run(capsys, "evaluate-agent", "sac.zip", "--env", "my_point:Goal-v0", "--episodes", "2", "--trust")
    assert "mean return" in said
    env, inner = (point := make_env("my_point:Point-v0", monitor=False)), point.unwrapped
    flat, _ = env.reset(seed=0)
    back = unflattening(inner.observation_space)(flat[None])
    assert np.allclose(back["arm"]["speed"][0], inner.v, atol=1e-6) and flat_names(inner.observation_space) == NAMES


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["env=my_point:Point-v0", "model=rpp"], "no symmetry spec for Point-v0"),
        (
            ["env=my_point:Camera-v0", "model=mlp"],
            "the entry 'eye.left' of the observation is a Box of shape (8, 8, 3)",
        ),
        (["env=shimmy:dm_control/walker-walk-v0"], "shimmy is not installed; pip install 'shimmy[dm-control]'"),
        (["env=my_point:Buttons-v0", "model=mlp"], "Discrete(4)"),
        (["env=my_point:Leaves-v0", "model=mlp"], "outside of its observation_space: entry"),
        (["env=my_point:Wrong-v0", "model=mlp"], "must return (observation, info)"),
        (["env=my_point:Keys-v0", "model=mlp"], "Keys.reset returned what does not fit (AssertionError: "),
        (["env=my_point:Unregistered", "model=mlp"], 'add gymnasium.register("Unregistered-v0"'),
        (["env=my_point:Point-v0", "env.spec=absent.yaml"], "there is no file"),
        (["env=my_point:Point-v0", "env.spec=my_point.py"], "my_point.py"),
    ],
)
def test_bad_environments_end_in_one_line(words, said, capsys, here, monkeypatch):
    importable = compose._importable
    monkeypatch.setattr(compose, "_importable", lambda module: module != "shimmy" and importable(module))
    assert said in refused(capsys, "train-agent", *words, *SAC_WORDS, "run_dir=run")
    assert not (here / "run").exists()


def test_a_dictionary_environment_is_certified_with_a_spec_from_a_file(capsys, here):
    """The page's command, on its own example, whose observations are float32 and whose state is float64."""
    examples = Path(__file__).parents[2] / "docs/examples"
    for name in ("point.py", "point_square.yaml", "point_mirror.yaml"):
        shutil.copy(examples / name, here)
    out = run(capsys, "certify", "point:Point-v0", "--spec", "point_square.yaml", "--states", "20")
    assert "quarter turn: dynamics exact, reward exact" in out and "left-right: dynamics exact, reward exact" in out
    text = (here / "point_mirror.yaml").read_text()
    (here / "mistyped.yaml").write_text(text.replace("obs_signs", "obs_sign"))
    said = refused(capsys, "certify", "point:Point-v0", "--spec", "mistyped.yaml")
    assert "mistyped.yaml: unknown obs_sign; known: obs_perm" in said
    (here / "goal_stays.yaml").write_text(text.replace("obs_signs: [-1,", "obs_signs: [1,"))
    out = run(capsys, "certify", "point:Point-v0", "--spec", "goal_stays.yaml", "--states", "20")
    assert "dynamics exact, reward broken" in out
