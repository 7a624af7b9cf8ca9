"""Optional packages, run for real: loggers, Optuna, environments of others. `make test-extras` installs them."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from rppdyn.runs import RunFolder, read_metrics

from .conftest import SMALL

WORDS = ("train-agent", *SMALL, "total_steps=110", "threads=1", "agent.learning_starts=30", "run_dir=run")
GOAL = ("device=cpu", "threads=1", "model=mlp", "model.hidden=16", "agent.learning_starts=100", "agent.batch_size=32",
        "agent.buffer_size=400", "evaluation.every=1000", "evaluation.episodes=1", "evaluation.states=8",
        "total_steps=300", "env.kwargs.max_episode_steps=50")  # fmt: skip


def needs(*packages: str) -> pytest.MarkDecorator:
    missing = [name for name in packages if find_spec(name) is None]
    return pytest.mark.skipif(bool(missing), reason=f"{', '.join(missing)} not installed: make test-extras")


@pytest.fixture
def run(fresh):
    """A command in an interpreter of its own: these packages start threads and processes."""

    def run(*words: str, cwd: Path) -> str:
        status, out, err = fresh(*words, cwd=cwd)
        assert status == 0, err
        return out

    return run


def logged(data: bytes) -> list[bytes]:
    """The records of a file of wandb's, a log of LevelDB: in blocks, fragments with checksum, length and kind."""
    records, place, parts = [], 7, []
    while place + 7 <= len(data):
        if 32768 - place % 32768 < 7:  # padding at a block's end
            place += 32768 - place % 32768
            continue
        length, kind = int.from_bytes(data[place + 4 : place + 6], "little"), data[place + 6]
        parts.append(data[place + 7 : place + 7 + length])
        place += 7 + length
        if kind in (1, 4):  # whole, or the last of several
            records.append(b"".join(parts))
            parts = []
    return records


@needs("wandb")
def test_wandb_offline(run, tmp_path, environment, monkeypatch):
    monkeypatch.setitem(environment, "WANDB_MODE", "offline")
    run(*WORDS, "logger=[tensorboard,wandb]", cwd=tmp_path)
    run("train-agent", "--resume", "run", "total_steps=150", cwd=tmp_path)
    recorded = sorted((tmp_path / "run" / "wandb").glob("offline-run-*/run-*.wandb"))
    assert len(recorded) == 2 and len({path.name for path in recorded}) == 1  # one run, gone on with
    from wandb.proto.wandb_internal_pb2 import Record

    steps = []
    for record in (Record.FromString(data) for path in recorded for data in logged(path.read_bytes())):
        items = {item.key or item.nested_key[0]: item.value_json for item in record.history.item}
        steps += [int(float(items["step"]))] if "eval/return_mean" in items else []
    assert steps == [record["step"] for record in read_metrics(RunFolder.open(tmp_path / "run").metrics.path)]
    assert list((tmp_path / "run" / "events").iterdir())


@needs("hydra_plugins.hydra_optuna_sweeper" if find_spec("hydra_plugins") else "hydra_plugins")
def test_optuna_with_eight_trials(run, tmp_path):
    """An agent's best return, and a fit's least error, are those of the runs that the search has left."""
    out = run(
        "train-agent", *SMALL, "threads=1", "total_steps=60", "agent.learning_starts=20", "--multirun",
        "hydra/sweeper=optuna", "hydra.sweeper.n_trials=8", "hydra.sweeper.sampler.seed=0",
        "agent.learning_rate=tag(log,interval(1e-4,1e-2))", "model.hidden=8,16", cwd=tmp_path,
    )  # fmt: skip
    results = [RunFolder(path.parent).result() for path in tmp_path.glob("runs/train-agent/**/result.json")]
    best = max(result["metrics"]["eval/return_mean"] for result in results)
    assert len(results) == 8 and f"best of 8 trials: eval/return_mean {best:.4g}" in out
    out = run(
        "fit-regression", "task=inertia", "model.hidden=8", "model.num_layers=1", "task.train=50", "task.validation=50",
        "task.test=20", "optimiser.epochs=2", "evaluation.every=2", "--multirun", "hydra/sweeper=optuna",
        "hydra.sweeper.n_trials=3", "optimiser.learning_rate=tag(log,interval(1e-4,1e-1))", cwd=tmp_path,
    )  # fmt: skip
    results = [RunFolder(path.parent).result() for path in tmp_path.glob("runs/fit-regression/**/result.json")]
    best = min(result["metrics"]["validation/error"][0] for result in results)
    assert len(results) == 3 and f"best of 3 trials: validation/error {best:.4g}" in out


@needs("gymnasium_robotics")
@pytest.mark.parametrize(
    ("name", "hindsight"), [("PointMaze_UMaze-v3", False), ("PointMaze_UMaze-v3", True), ("AntMaze_UMaze-v5", False)]
)
def test_goal_environments(run, tmp_path, name, hindsight):
    words = (f"env=gymnasium_robotics:{name}", *GOAL, f"agent.hindsight={str(hindsight).lower()}", "run_dir=run")
    out = run("train-agent", *words, cwd=tmp_path)
    assert "300 of 300 steps" in out and "from the last checkpoint, with a fresh episode" in out
    assert '"achieved_goal[0]"' in (tmp_path / "run" / "spec.json").read_text()


@pytest.mark.parametrize(
    ("env", "said"),
    [
        pytest.param("gymnasium_robotics:FetchReach-v4", "gymnasium-robotics 1.4.2", marks=needs("gymnasium_robotics")),
        pytest.param("shimmy:dm_control/cartpole-balance-v0", "dm_control", marks=needs("shimmy", "dm_control")),
    ],
)
def test_packages_that_break_on_this_mujoco_end_in_one_line(fresh, tmp_path, env, said):
    status, _, err = fresh("train-agent", f"env={env}", *GOAL, "run_dir=run", cwd=tmp_path)
    last = err.strip().splitlines()[-1]
    assert status == 2 and f"{said}" in last and "fails on mujoco" in last and "versions that go together" in last
