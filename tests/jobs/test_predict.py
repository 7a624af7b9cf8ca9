"""predict, and rppdyn.load: raw data in and raw predictions out, of each kind of run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import rppdyn
from rppdyn.cli import main


def predicted(run, *words, **arrays):
    np.savez("in.npz", **arrays)
    assert main(["predict", run, "--data", "in.npz", "--out", "out.npz", *words]) == 0
    with np.load("out.npz") as file:
        return file["prediction"]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_a_regression(capsys):
    words = ("task=inertia", "model=emlp", "model.hidden=8", "model.num_layers=1", "seeds=2",
             "optimiser.epochs=1", "task.train=50", "task.validation=20", "task.test=20", "run_dir=run",
             "device=cpu")  # fmt: skip
    assert main(["fit-regression", *words]) == 0
    x = np.random.default_rng(0).normal(size=(7, 20)).astype(np.float32)
    every = predicted("run", "--members", "all", x=x)
    assert every.shape == (2, 7, 9)
    assert np.allclose(predicted("run", x=x), every.mean(0))
    model = rppdyn.load("run")
    assert torch.allclose(model.predict(torch.tensor(x)), torch.tensor(every.mean(0)))
    with torch.no_grad():
        next(model.members[1].parameters()).fill_(torch.nan)
    with pytest.warns(UserWarning, match="1 of 2 members diverged"):
        assert np.allclose(model.predict(x), every[0])
    with pytest.raises(ValueError, match="give 'mean' or 'all'"):
        model.predict(x, members="both")
    np.savez("bad.npz", y=x)
    assert main(["predict", "run", "--data", "bad.npz", "--out", "out.npz"]) == 2
    assert "it has y, and x is missing; the run predicts from x" in capsys.readouterr().err
    np.savez("bad.npz", x=x[:, :3])
    assert main(["predict", "run", "--data", "bad.npz", "--out", "out.npz"]) == 2
    assert "--data bad.npz: " in (error := capsys.readouterr().err) and len(error.splitlines()) == 1


def test_data_like_those_that_were_fitted(capsys):
    """A table that a fit took, with rows and trajectories as they stand there."""
    t = np.arange(12) * 0.1
    rows = [(k, s, np.cos(s + k), -np.sin(s + k)) for k in range(5) for s in t]
    Path("own.csv").write_text("run,time,x,v\n" + "".join(f"{k},{s:g},{a},{b}\n" for k, s, a, b in rows))
    small = ["data=own.csv", "model.hidden=4", "optimiser.epochs=1", "report=false", "device=cpu"]
    assert (
        main(["fit-dynamics", *small, "positions=[x]", "velocities=[v]", "trajectory=run", "seeds=2", "run_dir=d"]) == 0
    )
    assert main(["fit-regression", *small, "inputs=[x,v]", "outputs=[time]", "run_dir=r"]) == 0
    for run, shape in (("d", (2, 60, 2)), ("r", (1, 60, 1))):
        assert main(["predict", run, "--data", "own.csv", "--out", "o.npz", "--members", "all"]) == 0, (
            capsys.readouterr().err
        )
        found = np.load("o.npz")["prediction"]
        assert found.shape == shape
    assert main(["discover", "r"]) == 2
    assert "r knows no group, and so no vectors: give --family" in capsys.readouterr().err
    start = [rows[12][2], rows[12][3]]
    assert main(["predict", "d", "--data", "own.csv", "--out", "o.npz"]) == 0
    assert np.allclose(np.load("o.npz")["prediction"][12:24], rppdyn.load("d").predict(start, t))
    Path("other.csv").write_text("time,x,w\n0,1,2\n1,1,2\n")
    capsys.readouterr()
    assert main(["predict", "r", "--data", "other.csv", "--out", "o.npz"]) == 2
    assert "inputs=v: other.csv has no such column" in capsys.readouterr().err


def test_columns_of_the_fit_come_before_arrays_of_other_names():
    rng = np.random.default_rng(0)
    a, small = rng.normal(size=(60, 3)), ["model.hidden=4", "optimiser.epochs=1", "report=false", "device=cpu"]
    part = np.array(["train"] * 40 + ["validation"] * 10 + ["test"] * 10)
    np.savez("own.npz", a=a, x=100 * a, out=(a**2).sum(1), part=part)
    words = ["data=own.npz", "inputs=[a]", "outputs=[out]", "split=part", "group=O(3)", "run_dir=r"]
    assert main(["fit-regression", *words, *small]) == 0
    assert main(["predict", "r", "--data", "own.npz", "--out", "o.npz"]) == 0
    expected = rppdyn.load("r").predict(a)
    assert np.allclose(np.load("o.npz")["prediction"], expected)
    assert np.allclose(predicted("r", x=a), expected)
    np.savez("own.npz", a=a, x=100 * a, out=(a**2).sum(1), part=part[::-1])
    with pytest.raises(ValueError, match="not the data that the run began with"):
        rppdyn.load("r")
    t = np.arange(31) * 0.1
    z = np.stack([np.cos(t), -np.sin(t)], 1)
    np.savez("st.npz", state=z, times=t)
    words = ["data=st.npz", "state=[state]", "time=times", "task.chunk=3", "model=mlp", "run_dir=s"]
    assert main(["fit-dynamics", *words, *small]) == 0
    assert main(["predict", "s", "--data", "st.npz", "--out", "o.npz"]) == 0
    model = rppdyn.load("s")
    assert np.allclose(np.load("o.npz")["prediction"], model.predict(z[0], t))
    assert np.allclose(
        model.predict(z[0], t[::10])[-1], model.predict(z[0], t)[-1]
    )  # steps are no longer than the data's


def test_the_pendulum():
    words = ("task=pendulum", "task.train=20", "task.validation=5", "task.test=5", "task.horizon=2",
             "model=mlp_hnn", "model.hidden=8", "optimiser.epochs=1", "rollout.trajectories=2", "run_dir=run",
             "device=cpu")  # fmt: skip
    assert main(["fit-dynamics", *words]) == 0
    state = np.array([[0, 0, -1.5, 0, 0, -3, 0, 0.1, 0, 0, 0, 0]])
    found = predicted("run", state=state, times=np.array([0.0, 0.2, 0.4]))
    assert found.shape == (1, 3, 12)
    assert np.array_equal(found[:, 0], state)
    assert np.abs(found[:, 1] - state).max() > 1e-4
    assert np.allclose(found[0, 1], rppdyn.load("run").predict(state[0], [0, 0.2])[1], atol=1e-12)


def test_a_transition_model(monkeypatch, tmp_path):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "datasets"))
    assert main(["collect", "env=Swimmer-v5", "--random", "--steps", "3000", "--name", "swimmer/random-v0"]) == 0
    words = ("dataset=swimmer/random-v0", "task.trajectories=10", "task.train=200",
             "model.hidden=8", "model.num_layers=1", "seeds=2", "optimiser.epochs=1",
             "run_dir=run", "device=cpu")  # fmt: skip
    assert main(["fit-transition", *words]) == 0
    rng = np.random.default_rng(0)
    observation, actions = rng.normal(size=(4, 8)), rng.uniform(-1, 1, size=(4, 5, 2))
    every = predicted("run", "--members", "all", observation=observation, actions=actions)
    assert every.shape == (2, 4, 5, 8)
    model = rppdyn.load("run")
    step = model.predict(observation, actions[:, 0], members="all")
    assert np.allclose(step, every[:, :, 0])
    assert np.allclose(
        model.predict(step[0], actions[:, 1], members="all")[0], every[0, :, 1]
    )  # each member goes on alone
    assert model.predict(observation[0], actions[0, 0]).shape == (8,)
    with pytest.raises(ValueError, match="Swimmer-v5 has 8 and 2 entries"):
        model.predict(observation[:, :3], actions[:, 0])


def test_an_agent_and_what_has_no_model(capsys):
    words = ("env=InvertedPendulum-v5", "total_steps=20", "agent.learning_starts=10", "model.hidden=8", "run_dir=run",
             "device=cpu", "agent.compile=false", "evaluation.episodes=1", "evaluation.states=10")  # fmt: skip
    assert main(["train-agent", *words]) == 0
    observations = np.random.default_rng(0).normal(size=(6, 4))
    actions = predicted("run", observations=observations)
    assert actions.shape == (6, 1)
    assert np.allclose(rppdyn.load("run").predict(observations, deterministic=True)[0], actions)
    capsys.readouterr()
    assert main(["predict", "nowhere", "--data", "in.npz", "--out", "out.npz"]) == 2
    assert main(["predict", "run", "--data", "none.npz", "--out", "out.npz"]) == 2
    # it was ignored
    assert main(["predict", "run", "--data", "in.npz", "--out", "out.npz", "--members", "all"]) == 2
    assert main(["predict", "run", "--data", "in.npz", "--out", "out.csv"]) == 2
    assert main(["predict", "run"]) == 2
    said = capsys.readouterr().err
    assert len(said.splitlines()) == 5 and "--members all: a run of train-agent is one agent" in said


@pytest.mark.parametrize(
    ("change", "options", "words"),
    [
        ({"q": [np.zeros((30, 1)), np.zeros((20, 1))]}, {}, "q: its trajectories differ in length"),
        ({}, {"report": True}, "report: a function writes no files"),
        ({}, {"logger": "wandb"}, "logger: a function writes no files"),
        ({}, {"runs_root": "here"}, "runs_root: a function writes no files"),
        ({}, {"state": ["q[]", "p"]}, r"state=q\[\]: .* give a part of 0:1"),
    ],
)
def test_what_a_fit_without_a_folder_can_not_take_is_named(change, options, words):
    data = {"q": np.zeros((4, 30, 1)), "p": np.zeros((4, 30, 1))} | change
    with pytest.raises(ValueError, match=words):
        rppdyn.fit_dynamics(data, **{"state": ["q", "p"], "time": 0.1, "model": "mlp"} | options)
