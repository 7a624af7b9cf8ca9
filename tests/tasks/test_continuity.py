"""Logs that are not what they say they are, and honest ones that look as if they were not."""

from __future__ import annotations

import csv
import logging
from functools import cache

import gymnasium as gym
import numpy as np
import pytest
import torch

from rppdyn.cli import main
from rppdyn.tasks import Pendulum, Recording, Recordings, load_trajectories, read_recordings
from rppdyn.tasks._continuity import Log

STEP = 0.1


def recordings(states, step=STEP):
    names = tuple(f"c{i}" for i in range(states[0].shape[1]))
    return Recordings("own", names, (), tuple(
        Recording(f"t{k}", torch.arange(len(z)) * step, torch.tensor(z), torch.zeros(len(z) - 1, 0), np.arange(len(z)) + 1)
        for k, z in enumerate(states)
    ))  # fmt: skip


def check(states, *, rates=True, unwrap=None, step=STEP):
    pairs = states[0].shape[1] // 2 if rates else 0
    return Log(recordings(states, step), pairs=pairs, unwrap=unwrap).check()


def rotors(seed=0, steps=60):
    """Angle and velocity of pendulums that go over the top."""
    rng, every = np.random.default_rng(seed), []
    for _ in range(12):
        angle, rate, path = rng.uniform(0, 6), rng.uniform(1, 6) * rng.choice([-1, 1]), []
        for _ in range(steps):
            path.append([angle, rate])
            for _ in range(10):
                rate -= STEP / 10 * 9.8 * np.sin(angle)
                angle += STEP / 10 * rate
        every.append(np.array(path))
    return every


def wrapped(states, period, low):
    return [np.stack([(z[:, 0] - low) % period + low, z[:, 1]], 1) for z in states]


DEGREES = 180 / np.pi
WRAPS = [(2 * np.pi, -np.pi, 1), (2 * np.pi, -1, 1), (360, 0, DEGREES), (np.pi, 0, 1), (180, -90, DEGREES)]


@pytest.mark.parametrize(("period", "low", "unit"), WRAPS)
def test_an_angle_that_wraps_is_unwrapped_by_its_velocity_and_refused_without(period, low, unit, caplog):
    states = [z * unit for z in rotors()]
    found = check(wrapped(states, period, low))
    for recording, z in zip(found.trajectories, states, strict=True):
        assert np.allclose(recording.states.diff(dim=0), np.diff(z, axis=0))
    assert "t0, row " in caplog.text and "c0 goes from" in caplog.text and "unwrap=[] leaves it" in caplog.text
    with pytest.raises(ValueError, match=r"t0, row \d+: c0 goes from .* wraps at .*: give unwrap=\[c0\]"):
        check(wrapped(states, period, low), rates=False)
    asked = check(wrapped(states, period, low), rates=False, unwrap=["c0"])
    assert all(map(torch.equal, *([r.states for r in each.trajectories] for each in (asked, found))))
    left = check(wrapped(states, period, low), unwrap=[])
    assert np.array_equal(left.trajectories[0].states, wrapped(states, period, low)[0])
    with pytest.raises(ValueError, match=r"unwrap=\[th\]: there is no such column"):
        check(states, unwrap=["th"])


def test_noise_of_an_angle_at_its_wrap_and_one_that_never_wraps(caplog):
    rng, t = np.random.default_rng(0), np.arange(400) * 0.02
    noisy = (1.5 * t + np.pi) % (2 * np.pi) - np.pi + 0.01 * rng.normal(size=400)
    assert np.ptp(noisy) > 2 * np.pi
    states = [np.stack([noisy, np.cos(3 * t)], 1)]
    (found,) = check(states, rates=False, unwrap=["c0"], step=0.02).trajectories
    assert np.allclose(found.states[:, 0], 1.5 * t, atol=0.1) and not caplog.text
    with pytest.raises(ValueError, match=r"c0 goes from .* wraps at 2 pi: give unwrap=\[c0\]"):
        check(states, rates=False, step=0.02)
    check(states, rates=False, unwrap=["c0", "c1"], step=0.02)
    assert "unwrap=[c1]: it wraps nowhere" in caplog.text and "[c0]" not in caplog.text


def reset_in_the_middle(states):
    return [*states[:-1], np.concatenate([states[-1][:37], states[0][: len(states[-1]) - 37]])]


def swapped(states):
    return [np.concatenate([a[:, :1], b[:, :1], b[:, 1:], a[:, 1:]], 1)
            for a, b in zip(states, rotors(seed=5), strict=True)]  # fmt: skip


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (reset_in_the_middle, "t11, row 38: c0 jumps from .* where its velocity c1 says"),
        (lambda s: [z + np.where(np.arange(60) < 20, 0, 3)[:, None] * [1, 0] for z in s], "t0, row 21: c0 jumps"),
        (lambda s: [np.delete(z, slice(20, 50), 0) for z in s], "t0, row 21: c0 jumps from .* or rows are missing"),
        (lambda s: [z * [1, -1] for z in s], "c1 is not the rate of c0.* row .*of the other sign"),
        (lambda s: [z * [1, DEGREES] for z in s], "in degrees, and the positions in radians"),
        (lambda s: [z * [DEGREES, 1] for z in s], "in radians, and the positions in degrees"),
        (lambda s: [z * [1000, 1] for z in s], "in another unit, or the time is"),
        (swapped, "c2 is not the rate of c0, and c3 is"),
    ],
)
def test_what_contradicts_itself_is_refused(change, said):
    with pytest.raises(ValueError, match=said):
        check(change(rotors()))
    check(change(rotors()), rates=False)  # columns of any kind


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda s: [z + np.where(np.arange(60) < 20, 0, 1)[:, None] * [20, 9] for z in s[:1]] + s[1:],
         "t0, row 21: all columns jump at once (1 such steps)"),
        (lambda s: [np.repeat(z, 2, 0) for z in s], "50 % of rows repeat the row before them"),
    ],
)  # fmt: skip
def test_what_may_be_meant_is_warned_of(change, said, caplog):
    check(change(rotors()), rates=False)
    assert said in caplog.text


@cache
def ball(restitution=0.95, step=0.02):
    every = []
    for height in np.linspace(0.2, 0.5, 8):
        y, v, path = height, 0.0, []
        for _ in range(300):
            path.append([y, v])
            for _ in range(10):
                v -= 9.8 * step / 10
                y += v * step / 10
                if y < 0:
                    y, v = -y, -restitution * v
        every.append(np.array(path))
    return every, step


@cache
def hopper():
    every = []
    for seed in range(4):
        env = gym.make("Hopper-v5", terminate_when_unhealthy=False)
        env.reset(seed=seed)
        env.action_space.seed(seed)
        path = []
        for _ in range(100):
            path.append(np.concatenate([env.unwrapped.data.qpos, env.unwrapped.data.qvel]))
            env.step(env.action_space.sample())
        every.append(np.array(path))
    return every, env.unwrapped.dt


@cache
def double_pendulum():
    """Positions, and momenta of masses of 1, which are velocities."""
    data = load_trajectories(Pendulum(), n_train=0, n_validation=0, n_test=6, horizon=15.0, cache=False)
    return list(data.rollouts.numpy()), 0.2


DISTORTIONS = {
    "as it is": lambda z, n, step, rng: z,
    "noise": lambda z, n, step, rng: z + 0.3 * rng.normal(size=z.shape) * np.where(np.arange(2 * n) < n, 0, z.std(0)),
    "encoder": lambda z, n, step, rng: np.concatenate([np.round(z[:, :n] / 0.01) * 0.01, z[:, n:]], 1),
    "differences": lambda z, n, step, rng: np.concatenate([z[1:, :n], np.diff(z[:, :n], axis=0) / step], 1),
    "float32": lambda z, n, step, rng: z.astype(np.float32),
}


@pytest.mark.parametrize("distortion", DISTORTIONS)
@pytest.mark.parametrize("source", [ball, hopper, double_pendulum, lambda: (rotors(), STEP)])
def test_honest_logs_are_taken_without_a_word(source, distortion, caplog):
    states, step = source()
    rng = np.random.default_rng(0)
    states = [DISTORTIONS[distortion](z, z.shape[1] // 2, step, rng).astype(np.float64) for z in states]
    with caplog.at_level(logging.WARNING):
        for rates in (True, False):
            found = check(states, rates=rates, step=step)
            assert np.array_equal(found.trajectories[0].states, states[0])
        check([z[::5] for z in states], step=5 * step)
    assert not caplog.text


@pytest.mark.unchecked
def test_rows_are_those_of_the_file_and_the_run_keeps_what_it_unwrapped(tmp_path, monkeypatch, capsys, caplog):
    monkeypatch.chdir(tmp_path)
    with open("own.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["run", "time", "th", "om"])
        for run, z in enumerate(wrapped(rotors(), 2 * np.pi, -np.pi)):
            writer.writerows([[run, round(STEP * k, 6), *row] for k, row in enumerate(z)])
    rows = np.loadtxt("own.csv", delimiter=",", skiprows=1)
    first = next(
        i for i in range(1, len(rows)) if rows[i, 0] == rows[i - 1, 0] and abs(rows[i, 2] - rows[i - 1, 2]) > 3
    )
    words = ["fit-dynamics", "data=own.csv", "trajectory=run", "model.hidden=4", "optimiser.epochs=1", "report=false"]
    words += ["model.num_layers=1", "rollout.trajectories=1", "evaluation.states=4", "optimiser.batch_size=200"]
    assert main([*words, "state=[th,om]"]) == 2
    said = capsys.readouterr().err
    assert f"own.csv, run {int(rows[first, 0])}, row {first + 1}: th goes from" in said and said.count("\n") == 1
    assert not (tmp_path / "runs").exists()
    assert main([*words, "positions=[th]", "velocities=[om]", "run_dir=r"]) == 0
    assert f"row {first + 1}: th goes from" in caplog.text
    assert main([*words, "positions=[th]", "velocities=[om]", "run_dir=r", "--resume"]) == 0
    caplog.clear()
    (tmp_path / "r" / "result.json").unlink()
    assert main(["fit-dynamics", "--resume", "r"]) == 0
    assert "th goes from" not in caplog.text  # it was said when the run began
    (tmp_path / "r" / "result.json").unlink()
    assert main(["fit-dynamics", "--resume", "r", "unwrap=[]"]) == 2
    assert "the run began with ['th']" in capsys.readouterr().err


def test_episodes_end_where_a_file_says(tmp_path):
    h5py = pytest.importorskip("h5py")
    states = np.cumsum(np.ones((3, 10, 4)), 1)
    ends = np.arange(1, 31) % 10 == 0
    with h5py.File(tmp_path / "flat.hdf5", "w") as file:
        file["observations"], file["infos/qpos"] = states.reshape(-1, 4), states.reshape(-1, 4)[:, :2]
        file["terminals"], file["timeouts"] = ends & (np.arange(30) < 15), ends & (np.arange(30) > 15)
    with h5py.File(tmp_path / "demos.hdf5", "w") as file:
        for k in range(3):
            file[f"data/demo_{k}/actions"], file[f"data/demo_{k}/obs/eef"] = states[k, :, :1], states[k]
        file["mask/train"] = np.array([b"demo_0"])
    np.savez(tmp_path / "flat.npz", observations=states.reshape(-1, 4), dones=ends.astype(float)[:, None])
    for name, column in (
        ("flat.hdf5", "observations"),
        ("flat.hdf5", "infos/qpos"),
        ("demos.hdf5", "obs/eef"),
        ("flat.npz", "observations"),
    ):
        found = read_recordings(tmp_path / name, [column], time=STEP)
        assert [len(recording.states) for recording in found.trajectories] == [10, 10, 10]
        assert float(found.trajectories[1].states[0, 0]) == 1.0
        assert found.trajectories[2].rows[0] == (21 if "flat" in name else 1)
