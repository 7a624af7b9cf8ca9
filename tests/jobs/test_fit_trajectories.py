"""fit-dynamics data=: whole small fits of trajectories of one's own, and what is said of data that can't be used."""

from __future__ import annotations

import csv
import glob
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

import rppdyn
from rppdyn.cli import main
from rppdyn.dynamics import DrivenModel, MechanicalModel, NeuralODEModel, integrate
from rppdyn.equivariance import equivariance_error
from rppdyn.groups import GL, O
from rppdyn.jobs import fit_dynamics, fit_trajectories
from rppdyn.jobs.config import compose
from rppdyn.jobs.config.compose import expand_own_data_words
from rppdyn.jobs.fit_trajectories import RecordingsFit, _variation, fit
from rppdyn.nn import EMLP
from rppdyn.reps import Scalar, V
from rppdyn.runs import RunFolder
from rppdyn.tasks import read_recordings

SMALL = ("model.hidden=8", "model.num_layers=1", "optimiser.epochs=8", "optimiser.batch_size=50", "task.chunk=2",
         "optimiser.learning_rate=2e-2", "evaluation.every=4", "report=false", "device=cpu")  # fmt: skip
STEP = 0.1


def spring(rng, steps, masses=(1.0, 1.0)):
    """A planar oscillator's states (x, y, vx, vy), exact: each coordinate turns in its plane of position and velocity."""
    start, times = rng.normal(size=4), np.arange(steps) * STEP
    omega = 1 / np.sqrt(np.array(masses))
    c, s = np.cos(np.outer(times, omega)), np.sin(np.outer(times, omega))
    return times, np.concatenate([c * start[:2] + s * start[2:] / omega, c * start[2:] - s * start[:2] * omega], 1)


@pytest.fixture
def table(tmp_path, monkeypatch):
    """Eight trajectories of uneven lengths in one CSV file."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    with open("spring.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["run", "time", "x", "y", "vx", "vy"])
        for run in range(8):
            for time, row in zip(*spring(rng, int(rng.integers(10, 20))), strict=True):
                writer.writerow([run, time, *row])
    return "spring.csv"


def typed(*words):
    return main(["fit-dynamics", *SMALL, *words])


COLUMNS = ("positions=[x,y]", "velocities=[vx,vy]", "trajectory=run")


def test_a_table_with_velocities_from_file_to_report(table, capsys):
    assert typed(f"data={table}", *COLUMNS, "group=O(2)", "model=emlp", "run_dir=own", "report=true") == 0
    printed = capsys.readouterr().out
    assert "spring, emlp_mechanical, seed 0" in printed
    assert "own/report.html" in printed and "emlp_mechanical" in Path("own/report.html").read_text()
    assert all(f"rmse/{name}" in printed for name in ("x", "y", "vx", "vy"))
    result = RunFolder.open("own").result()["test"]
    assert result["test/error"][0] < 0.15
    assert result["equivariance/error"][0] < 1e-6
    assert 0 < result["energy/variation"][0] < 2
    assert glob.glob("own/figures/curves.png")

    model = rppdyn.load("own")
    times, states = spring(np.random.default_rng(9), 8)
    found = model.predict(states[0], times)
    assert isinstance(found, np.ndarray)
    assert found.shape == states.shape
    assert np.abs(found - states)[:3].max() < 0.3
    both = model.predict(torch.tensor(states[:2]), times, members="all")
    assert both.shape == (1, 2, 8, 4)
    assert torch.allclose(both[0, 0], torch.tensor(found))

    assert main(["equivariance", "own", "--states", "50"]) == 0
    assert main(["discover", "own", "--family", "GL(2)", "--states", "50"]) == 0
    assert "an approximate symmetry" in (out := capsys.readouterr().out) or "an exact symmetry" in out


def test_going_on_ends_as_if_it_had_not_stopped_and_refuses_other_data(table, capsys):
    words = (f"data={table}", *COLUMNS, "model.system=ode", "group=D(4)", "checkpoint_every=4", "run_dir=whole")
    assert typed(*words) == 0
    shutil.copytree("whole", "stopped")
    folder = RunFolder("stopped")
    folder.result_file.unlink()
    shutil.rmtree(sorted((folder.path / "checkpoints").iterdir())[-1])
    (folder.path / "members.pt").unlink()
    assert main(["fit-dynamics", "--resume", "stopped"]) == 0
    assert RunFolder.open("stopped").result()["test"] == RunFolder.open("whole").result()["test"]
    folder.result_file.unlink()
    with open(table, "a") as file:
        file.write("8,0,1,1,1,1\n" + "".join(f"8,{k},1,1,1,{k}\n" for k in range(1, 9)))
    capsys.readouterr()
    assert main(["fit-dynamics", "--resume", "stopped"]) == 2
    assert "not the data that the run began with" in capsys.readouterr().err


def test_arrays_with_momenta_and_a_symmetry_that_is_found(tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(1)
    states = np.stack([spring(rng, 30)[1] for _ in range(12)])
    np.savez("spring.npz", q=states[..., :2], p=states[..., 2:])
    found = fit("spring.npz", positions=["q"], momenta=["p"], time=STEP, group="auto", rep="V", seeds=2,
                model__hidden=4, optimiser__epochs=1, device="cpu")  # fmt: skip
    (generator,) = found.rep.G.lie_algebra
    assert torch.allclose(generator.abs(), torch.tensor([[0.0, 1.0], [1.0, 0.0]]).double(), atol=0.01)
    assert "group=auto found 1 generator in GL(2)" in caplog.text and "a rotation" in caplog.text
    assert len(found.models) == 2


def test_without_a_symmetry_networks_are_plain(tmp_path, monkeypatch, caplog):
    """Two masses on springs of very different stiffness: no turn of the plane leaves that alone."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(1)
    states = np.stack([spring(rng, 30, masses=(1.0, 0.2))[1] for _ in range(12)])
    np.savez("uneven.npz", q=states[..., :2], p=states[..., 2:])
    found = fit("uneven.npz", positions=["q"], momenta=["p"], time=STEP, group="auto", model__hidden=4,
                optimiser__epochs=1, device="cpu")  # fmt: skip
    assert "group=auto found no symmetry" in caplog.text
    assert not len(found.rep.G.lie_algebra)


def test_controls_of_a_minari_dataset(tmp_path, monkeypatch, capsys):
    """A mass that is pushed; the controls are held."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(2)
    states, forces = [], []
    for _ in range(12):
        z, own = rng.normal(size=4), [5 * rng.normal(size=2) for _ in range(12)]
        path = [z]
        for u in own:  # exact while the force is held
            z = np.concatenate([z[:2] + STEP * z[2:] + STEP**2 / 2 * u, z[2:] + STEP * u])
            path.append(z)
        states.append(path)
        forces.append(own)
    np.savez("pushed.npz", z=np.array(states), u=np.array(forces))
    assert typed("data=pushed.npz", "state=[z]", "controls=[u]", f"time={STEP}", "group=D(4)", "model=emlp", "run_dir=own",
                 "optimiser.epochs=60", "model.hidden=16", "evaluation.every=60") == 0  # fmt: skip
    model = rppdyn.load("own")
    z, u = np.array(states)[:, 0], np.array(forces)[:, :1]
    pushed, pulled = (model.predict(z, [0, STEP], sign * u)[:, 1, 2:] for sign in (1, -1))
    wanted = 2 * STEP * u[:, 0]
    assert np.abs(pushed - pulled - wanted).mean() < 0.5 * np.abs(wanted).mean()
    with pytest.raises(ValueError, match="controls= is missing"):
        model.predict(np.array(states)[0, 0], [0, 1])


def test_columns_files_folders_and_uneven_arrays(tmp_path):
    h5py = pytest.importorskip("h5py")
    rng = np.random.default_rng(3)
    paths = [spring(rng, steps) for steps in (8, 5, 6)]
    (tmp_path / "many").mkdir()
    for k, (times, states) in enumerate(paths):
        np.savez(tmp_path / "many" / f"{k}.npz", t=times, z=states)
    padded = np.full((3, 8, 4), np.nan)
    with h5py.File(tmp_path / "groups.h5", "w") as file:
        for k, (times, states) in enumerate(paths):
            padded[k, : len(states)] = states
            file[f"run{k}/t"], file[f"run{k}/z"] = times, states
    np.savez(tmp_path / "padded.npz", z=padded)
    for source, time in (("many", None), ("groups.h5", None), ("padded.npz", STEP)):
        read = read_recordings(tmp_path / source, ["z[2:4]", "z[0]"], time=time)
        assert read.names == ("z[2:4][0]", "z[2:4][1]", "z[0]")
        assert [len(recording.times) for recording in read.trajectories] == [8, 5, 6]
        for recording, (times, states) in zip(read.trajectories, paths, strict=True):
            assert np.allclose(recording.states, states[:, [2, 3, 0]])
            assert np.allclose(recording.times, times)


@pytest.mark.parametrize(
    ("content", "words", "said"),
    [
        ("", (), "is empty"),
        ("time,x,v\n0,1,2\n1,,3\n2,3,4", (), "nan in row 2, column x"),
        ("time,x,v\n0,1,2\n1,one,3\n2,3,4", (), "row 2: 'one' is no number"),
        ("time,x,v\n0,1,2,0,5\n", (), "line 2: 5 values for 3 columns; write decimal points, or ; between columns"),
        ("time,x,v,x\n0,1,2,3\n", (), "column 'x' is there twice"),
        ("time,t,x,v\n0,0,1,2\n1,1,1,2\n", (), "has columns time and t; give the step"),
        ("time;x;v\n0;1,5;2\n1;nan;3\n2;3;4", (), "nan in row 2, column x"),
        ("time,x,v\n0,1,2\n1,1,3\n0.5,3,4", (), "time goes back in row 3 (0.5 after 1)"),
        ("time,x,v\n0,1,2\n1,1,3\n2,3,4", (), "has 2 steps; give a smaller chunk"),
        ("time,x,w\n0,1,2\n1,1,3\n2,3,4", (), "state=v: own.csv has no such column"),
        ("run,x,v\n0,1,2\n1,1,3\n2,3,4", (), "no column time or t; give the step in seconds"),
        ("run,x,v\n0,1,2\n1,1,3\n2,3,4", ("time=0.1", "trajectory=run"), "one state is no trajectory"),
        (np.array([{}, 1], dtype=object), (), "array 'z' holds Python objects, which loading would run"),
        (np.zeros((4, 2)) + 1j, (), "complex numbers there"),
        (np.array([[1.0, 2], [np.inf, 3]]), (), "inf in row 2, column z[0]"),
        (np.zeros((0, 3)), (), "one state is no trajectory"),
        (np.ones((40, 2)), (), "nothing moves in it"),
        (3.0, (), "holds no arrays"),
    ],
)  # fmt: skip
def test_bad_data_is_said_in_one_line(tmp_path, monkeypatch, capsys, content, words, said):
    monkeypatch.chdir(tmp_path)
    if isinstance(content, str):
        (tmp_path / "own.csv").write_text(content)
        words = ("data=own.csv", "state=[x,v]", *words)
    else:
        np.savez("own.npz", z=content)
        words = ("data=own.npz", "state=[z]", "time=0.1", "task.chunk=1")
    assert main(["fit-dynamics", *words]) == 2
    error = capsys.readouterr().err
    assert said in error and len(error.splitlines()) == 1
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["state=[x,y,vx,vy]", "group=O(3)"], "acts on vectors of 3 numbers, and there are 4 in the state"),
        (["state=[x,y,vx,vy]", "group=O(2)", "rep=3*V"], "under O(2) it has 6 numbers"),
        (["state=[x,y,vx,vy]", "model=emlp"], "without group=: name the symmetry"),
        (["state=[x,y,vx,vy]", "model.system=hamiltonian"], "which columns are momenta?"),
        (["positions=[x,y]"], "with nothing else: give velocities"),
        (["positions=[x,y]", "velocities=[vx]"], "2 positions and 1 velocities or momenta"),
        (["state=[x,y]", "task=pendulum"], "that task makes its own data"),
        ([], "state= is missing"),
    ],
)
def test_a_configuration_that_does_not_fit_the_data_is_said_in_one_line(table, capsys, words, said):
    assert main(["fit-dynamics", f"data={table}", "trajectory=run", *words]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert len(error.splitlines()) == 1
    assert main(["fit-dynamics", "state=[x,y]"]) == 2
    assert "without data=" in capsys.readouterr().err


def test_columns_of_very_different_sizes_are_pointed_out(tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    np.savez("own.npz", z=np.stack([spring(rng, 10)[1] for _ in range(4)]) * [1, 1e7, 1, 1])
    fit("own.npz", state=["z"], time=STEP, model__hidden=4, optimiser__epochs=1)
    assert "z[1] is 1e+07 times the size of" in caplog.text


def test_a_mechanical_model_conserves_its_energy_and_is_equivariant():
    G = O(2)
    rep = 2 * V(G)
    net = EMLP(
        rep, MechanicalModel.rep_out(rep), G, hidden=16, num_layers=2, generator=torch.Generator().manual_seed(0)
    )
    model = MechanicalModel(net.double())
    z = torch.randn(6, 8, generator=torch.Generator().manual_seed(1)).double()
    field = model.vector_field(z).detach()
    gradient = torch.func.grad(lambda z: model.energy(z).sum())(z).detach()
    assert float((gradient * field).sum(-1).abs().max()) < 1e-12 * float(gradient.norm() * field.norm())
    assert float(gradient.norm()) > 0.1
    assert equivariance_error(model.vector_field, 2 * rep, 2 * rep, z).mean < 1e-12
    assert MechanicalModel.rep_out((2 * Scalar)(GL(2))).dim == 5  # scalars are orthogonal under any group


def test_long_fits_are_compiled_but_those_of_plain_fields(table, monkeypatch):
    """Only that they are: numbers of compiled fields are compared with the models of dynamics."""
    fields: list[object] = []
    monkeypatch.setattr("rppdyn.dynamics._models.compiled", lambda field, **options: fields.append(field) or field)
    monkeypatch.setattr(fit_dynamics, "can_compile", lambda device: True)
    for steps, words, compiles in (
        (8, ("group=D(4)",), True),
        (8, ("group=D(4)", "compile=false"), False),
        (8, ("model.system=ode",), False),
        (9999, ("group=D(4)",), False),
    ):
        fields.clear()
        monkeypatch.setattr(fit_dynamics, "MIN_STEPS_TO_COMPILE", steps)
        assert typed(f"data={table}", *COLUMNS, *words, "run_dir=own") == 0
        assert RunFolder.open("own").result()["compiled"] == compiles == bool(fields)
        shutil.rmtree("own")


def test_controls_are_held_over_each_step_also_in_parts():
    """dz/dt = u: a step's ends belong to that step, whatever the solver's own steps."""
    model = NeuralODEModel(torch.nn.Identity())
    model.vector_field = lambda z, weights=None: z[..., 1:]  # the control that stands after the state
    steps, controls = torch.tensor([[0.5, 2.0, 0.0]]).double(), torch.tensor([[[1.0], [-3.0], [7.0]]]).double()
    calls: list[int] = []
    model.register_forward_hook(lambda *_: calls.append(1))  # of calls as a module, which `compile` speeds up
    assert DrivenModel(model, steps, controls).float().controls.dtype == torch.float32
    for parts in (1, 3):
        found = integrate(DrivenModel(model, steps, controls), torch.zeros(1, 1).double(), torch.arange(4).double(),
                          method="rk4", step=1 / parts)  # fmt: skip
        assert found.states[0, :, 0].tolist() == pytest.approx([0.0, 0.5, -5.5, -5.5])
    assert len(calls) == (1 + 3) * 3 * 4  # four in each step of rk4
    with pytest.raises(ValueError, match="use rk4"):
        integrate(DrivenModel(model, steps, controls), torch.zeros(1, 1).double(), torch.arange(4).double())


def test_each_seed_may_have_a_split_of_its_own(table):
    """Members then differ in their test data, and a seed's part is that of a fit of its own."""
    words = (*SMALL, f"data={table}", *COLUMNS, "model.system=ode", "model=mlp", "task.split_seed=null")
    both, second = (
        RecordingsFit(compose.composed("fit_trajectories", expand_own_data_words("fit_dynamics", [*words, *more])))
        for more in (["seeds=2"], ["seed=1"])
    )
    parts = [{r.name for r in split.train} for split in (*both.splits, *second.splits)]
    assert parts[0] != parts[1] == parts[2]
    assert not torch.equal(both.scalings[0].scale, both.scalings[1].scale)
    assert torch.equal(both.scalings[1].scale, second.scalings[0].scale)


def test_a_symmetry_is_looked_for_without_the_test_trajectories(table, monkeypatch):
    """The split has a seed of its own, whatever that of the networks."""
    fits = []
    monkeypatch.setattr(fit_trajectories, "take_all_steps", lambda subject: fits.append(subject) or subject)
    words = (
        *SMALL,
        f"data={table}",
        "state=[x,y,vx,vy]",
        "trajectory=run",
        "group=auto",
        "rep=2*V",
        "model=rpp",
        "seed=3",
    )
    config = compose.composed("fit_trajectories", expand_own_data_words("fit_dynamics", words))
    fitted = RecordingsFit(config)
    names = [{recording.name for recording in subject.splits[0].test} for subject in (fits[0], fitted)]
    assert names[0] == names[1]


def test_a_conserved_energy_does_not_vary_along_trajectories():
    states = torch.tensor(np.stack([spring(np.random.default_rng(k), 20)[1] for k in range(5)]))
    known = torch.ones(5, 20, dtype=torch.bool)
    known[0, 10:] = False
    assert _variation(states.square().sum(-1) + 3, known) < 1e-12
    assert _variation(states[..., 0], known) > 0.5


def test_files_that_are_cut_off_are_said_in_one_line(tmp_path):
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "own.h5", "w") as file:
        file["z"] = np.zeros((100, 2))
    np.savez(tmp_path / "own.npz", z=np.zeros((100, 2)))
    for name in ("own.h5", "own.npz"):
        whole = (tmp_path / name).read_bytes()
        for kept in (len(whole) // 2, len(whole) - 30):
            (tmp_path / name).write_bytes(whole[:kept])
            with pytest.raises(ValueError, match=rf"{name} can't be read as an? (HDF5|NPZ) file"):
                read_recordings(tmp_path / name, ["z"], time=0.1)
