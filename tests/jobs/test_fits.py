"""fit-regression and fit-dynamics: whole small fits, what they claim, and going on after an interruption."""

from __future__ import annotations

import json
import re
import shutil
import signal
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from refusals import refused

from rppdyn.cli import main
from rppdyn.dynamics import rollout_error
from rppdyn.equivariance import equivariance_error
from rppdyn.groups import O, O2eR3
from rppdyn.jobs import fit_dynamics, fit_regression
from rppdyn.jobs.config import compose
from rppdyn.jobs.config.base import ConfigError
from rppdyn.jobs.fit import StackFit
from rppdyn.nn import hidden_representation
from rppdyn.reps import Scalar, V
from rppdyn.runs import CheckpointError, RunFolder, RunFolderError, read_metrics
from rppdyn.tasks import Pendulum, load_trajectories
from rppdyn.tasks._regression import RegressionTask

REGRESSION = ("task=inertia", "model.hidden=16", "model.num_layers=2", "task.train=60", "task.validation=40",
              "task.test=50", "optimiser.batch_size=32", "evaluation.every=2", "evaluation.states=20",
              "checkpoint_every=1", "dtype=float64", "device=cpu")  # fmt: skip
DYNAMICS = ("task=pendulum", "task.train=100", "task.validation=30", "task.test=30", "task.horizon=2",
            "model.num_layers=2", "model.hidden=20", "optimiser.batch_size=50", "evaluation.every=40", "evaluation.states=30",
            "rollout.trajectories=5", "rollout.method=rk4", "optimiser.learning_rate=1e-2", "device=cpu")  # fmt: skip


def regression(tmp_path, *words):
    return compose.composed("fit_regression", [*REGRESSION, f"run_dir={tmp_path}", *words])


def dynamics(tmp_path, *words):
    return compose.composed("fit_dynamics", [*DYNAMICS, f"run_dir={tmp_path}", *words])


def test_seeds_trained_together_are_those_trained_alone(tmp_path, monkeypatch, capsys):
    """From the command line; each member sees every datum once in an epoch, in an order of its own."""
    monkeypatch.chdir(tmp_path)
    words = [*REGRESSION, "model=mlp", "seeds=3", "optimiser.epochs=2", "run_dir=run"]
    assert main(["fit-regression", *words]) == 0
    out = capsys.readouterr().out
    assert "inertia, mlp, seeds 0 to 2: 2 epochs" in out and "test/error" in out and out.endswith("run/figures\n")
    together = RunFolder.open("run").result()["test"]["test/error"]
    alone = fit_regression.run(regression(tmp_path / "alone", "model=mlp", "seed=1", "optimiser.epochs=2"))
    assert alone.test["test/error"][0] == pytest.approx(together[1], rel=1e-9) and len(set(together)) == 3
    assert main(["fit-regression", *words]) == 2 and "run folder run exists" in capsys.readouterr().err
    assert main(["fit-regression", "--resume", "run"]) == 0 and "finished before" in capsys.readouterr().out
    assert main(["fit-regression", "--resume", "run", "report=true"]) == 0 and Path("run/report.html").exists()

    fit = fit_regression.Regression(regression(tmp_path, "model=mlp", "seeds=2"))
    batch = partial(fit._rows, fit.inputs, fit.targets)
    epochs = [torch.cat([batch(epoch, b)[0] for b in range(fit.steps_per_epoch)], 1) for epoch in (0, 1)]
    for member in range(2):
        for seen in epochs:
            assert torch.equal(seen[member].sort(0).values, fit.inputs[member].sort(0).values)
    assert not torch.equal(*epochs)


def test_an_equivariant_network_learns_inertia_faster_and_stays_equivariant(tmp_path):
    words = ("optimiser.epochs=60", "optimiser.learning_rate=1e-2", "task.train=500", "optimiser.batch_size=250",
             "model.hidden=64", "checkpoint_every=60", "dtype=float32", "evaluation.every=60", "task.test=200")  # fmt: skip
    emlp = fit_regression.run(regression(tmp_path / "emlp", "model=emlp", *words))
    mlp = fit_regression.run(regression(tmp_path / "mlp", "model=mlp", *words))
    assert emlp.test["test/error"][0] < 0.9 * mlp.test["test/error"][0]
    assert emlp.test["equivariance/error"][0] < 1e-12 < 1e-2 < mlp.test["equivariance/error"][0]
    config = regression(tmp_path / "emlp", "model=emlp", *words)
    loaded = fit_regression.Regression.load(config, RunFolder(tmp_path / "emlp"))
    members = loaded.members()
    x, y = loaded.task.sample(50, torch.Generator().manual_seed(5))
    assert float((members[0](x) - y).square().mean() / y.square().mean()) < 0.15


def test_a_resumed_fit_ends_as_if_it_had_not_stopped(tmp_path):
    words = ("model=rpp", "model.hidden=8", "seeds=2", "optimiser.epochs=3")
    whole = fit_regression.run(regression(tmp_path / "whole", *words))
    shutil.copytree(tmp_path / "whole", tmp_path / "stopped")
    folder = RunFolder(tmp_path / "stopped")
    folder.result_file.unlink()  # as if killed after the first of the two checkpoints that are kept
    shutil.rmtree(sorted((folder.path / "checkpoints").iterdir())[-1])
    (folder.path / "members.pt").unlink()

    config = regression(folder.path, *words)
    with pytest.raises(RunFolderError, match="exists: add --resume"):
        fit_regression.run(config)
    again = fit_regression.run(config, resume=True)
    assert again.test == whole.test
    assert (folder.path / "metrics.jsonl").read_bytes() == (tmp_path / "whole" / "metrics.jsonl").read_bytes()
    state, reference = (torch.load(p / "members.pt", weights_only=True) for p in (folder.path, tmp_path / "whole"))
    assert all(torch.equal(state[name], reference[name]) for name in reference)

    assert fit_regression.run(config, resume=True).note == "finished before; nothing left to do"
    with pytest.raises(RunFolderError, match=r"was run with optimiser\.epochs=3, not 4"):
        fit_regression.run(regression(folder.path, *words[:3], "optimiser.epochs=4"), resume=True)
    for checkpoint in (folder.path / "checkpoints").iterdir():
        (checkpoint / "state.pt").write_bytes(b"nothing")
    folder.result_file.unlink()
    with pytest.raises(CheckpointError, match="truncated"):
        fit_regression.run(config, resume=True)


def test_the_state_of_a_fit_goes_to_the_device_of_its_members(tmp_path):
    """The lengths of the gradients stayed on the CPU, where checkpoints are read, and a fit resumed on a GPU failed."""
    subject = fit_dynamics.Dynamics(dynamics(tmp_path, "model=mlp_ode", "optimiser.epochs=1"))
    state = subject.state_dict()
    subject.lengths = subject.lengths.to("meta")
    subject.load_state_dict(state)
    assert subject.lengths.device.type == "meta"


def test_a_step_that_ctrl_c_makes_impossible_ends_a_fit_as_ctrl_c_does(tmp_path, monkeypatch):
    """As where it ends the compiler that the first step waits for."""

    def fails(self, inputs):
        signal.raise_signal(signal.SIGINT)
        raise RuntimeError("the compiler is gone")

    config = regression(tmp_path / "run", "model=mlp", "optimiser.epochs=1")
    with monkeypatch.context() as patch:
        patch.setattr(fit_regression.Regression, "predict", fails)
        stopped = fit_regression.run(config)
    assert stopped.interrupted and stopped.note == "stopped"
    again = fit_regression.run(config, resume=True)
    whole = fit_regression.run(regression(tmp_path / "whole", "model=mlp", "optimiser.epochs=1"))
    assert not again.interrupted and again.test == whole.test


def test_ctrl_c_while_the_first_step_is_compiled_stops_at_once(tmp_path, monkeypatch, capsys):
    left = []

    def compiles(self, step):
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        try:
            time.sleep(30)
            left.append("late")
        finally:
            left.append("left")

    config = regression(tmp_path / "run", "model=mlp", "optimiser.epochs=1")
    with monkeypatch.context() as patch:
        patch.setattr(fit_regression.Regression, "step", compiles)
        patch.setattr(fit_regression.Regression, "compiled", True)
        before = signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGTERM))
        try:
            stopped = fit_regression.run(config, progress=True)
        finally:
            signal.signal(signal.SIGALRM, before)
    assert stopped.interrupted and left == ["left"]
    assert "compiling, up to a minute" in capsys.readouterr().err


def test_augmentation_makes_a_plain_network_more_symmetric(tmp_path):
    words = ("model=mlp", "model.hidden=32", "optimiser.epochs=40", "evaluation.every=40", "optimiser.learning_rate=1e-2",
             "task.train=100")  # fmt: skip
    plain = fit_regression.run(regression(tmp_path / "plain", *words))
    augmented = fit_regression.run(regression(tmp_path / "augmented", "task.augment=true", *words))
    assert augmented.test["equivariance/error"][0] < 0.7 * plain.test["equivariance/error"][0]
    assert augmented.test["test/error"][0] < plain.test["test/error"][0]


def test_both_hamiltonians_learn_the_pendulum_and_the_symmetric_one_conserves_its_momentum(tmp_path):
    words = ("optimiser.epochs=14", "checkpoint_every=14")
    emlp = fit_dynamics.run(dynamics(tmp_path / "emlp", "model=emlp_hnn", *words))
    mlp = fit_dynamics.run(dynamics(tmp_path / "mlp", "model=mlp_hnn", *words))
    assert max(*emlp.test["test/error"], *mlp.test["test/error"]) < 0.1
    assert max(emlp.test["rollout/momentum_drift"]) < 1e-5 < 1e-2 < min(mlp.test["rollout/momentum_drift"])
    assert max(emlp.test["equivariance/error"]) < 1e-12 < 1e-2 < min(mlp.test["equivariance/error"])
    assert emlp.test["rollout/diverged"] == [0.0]
    assert (tmp_path / "emlp" / "figures" / "curves.png").exists()
    curves = json.loads((tmp_path / "emlp" / "rollouts.json").read_text())
    assert np.array(curves["error"]).shape == (1, 10) and len(curves["times"]) == 11
    truth, found = (torch.tensor(curves["example"][name], dtype=torch.float64) for name in ("truth", "found"))
    assert rollout_error(found, truth)[-1] < 0.5 and not torch.equal(found, truth)
    records = read_metrics(tmp_path / "mlp" / "metrics.jsonl")
    assert records[-1]["validation/error_mean"] < 0.7 * records[0]["validation/error_mean"]


def test_the_first_layer_of_a_default_hamiltonian_multiplies_all_pairs_of_the_vectors_of_a_state(tmp_path):
    config = [word for word in DYNAMICS if not word.startswith("model.")]
    config = compose.composed("fit_dynamics", [*config, "model=emlp_hnn", f"run_dir={tmp_path}"])
    net = fit_dynamics.Dynamics(config).stack.member(0).double()
    assert [{rep.dim for rep, _ in hidden.blocks()} for hidden in net.hidden] == [{1, 3}, {1}, {1}]
    generator = torch.Generator().manual_seed(0)
    block, states = net.blocks[0], torch.randn(200, 4, 3, generator=generator, dtype=torch.float64)
    states[..., 2] = 0  # heights are invariants of their own
    y, at_rest = (block.bilinear(block.linear(x.flatten(-2))) for x in (states, torch.zeros_like(states)))
    scalars = torch.cat([index.flatten() for rep, index in block.bilinear.rep.blocks() if rep.dim == 1])
    assert torch.linalg.matrix_rank((y - at_rest)[:, scalars], rtol=1e-9) == 10
    seven = dynamics(tmp_path, "model.bilinear_maps=7", 'model.hidden=["6*T(0)+8*T(1)",4]')
    net = fit_dynamics.Dynamics(seven).stack.member(0)
    assert {k.maps for k in net.blocks[0].bilinear.contractions} == {7}


def test_long_fits_are_compiled_where_that_works(tmp_path, monkeypatch, caplog):
    """Only that they are: numbers of compiled fields are compared with the models of dynamics."""
    fields = []
    monkeypatch.setattr(fit_dynamics, "MIN_STEPS_TO_COMPILE", 4)
    # two steps an epoch
    words = ("model=mlp_hnn", "task.train=10", "task.test=5", "task.horizon=1", "optimiser.batch_size=5")
    with monkeypatch.context() as patch:
        patch.setattr("rppdyn.dynamics._models.compiled", lambda field, **options: fields.append(field) or field)
        patch.setattr(fit_dynamics, "can_compile", lambda device: True)
        for name, more, count in (
            ("short", "optimiser.epochs=1", 0),
            ("long", "compile=null", 1),
            ("told", "compile=false", 0),
        ):
            fields.clear()
            result = fit_dynamics.run(dynamics(tmp_path / name, *words, "optimiser.epochs=2", more))
            assert (result.compiled, len(fields)) == (bool(count), count)
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert not fit_dynamics.run(dynamics(tmp_path / "without", *words, "optimiser.epochs=2")).compiled
    assert "without torch.compile, in up to twice the time: torch.compile needs a C++ compiler" in caplog.text
    with refused("compile=true", "no-such-compiler is not found: install it"):
        fit_dynamics.run(dynamics(tmp_path / "no", "compile=true", "optimiser.epochs=1"))
    assert not (tmp_path / "no").exists()


def test_a_warm_up_multiplies_the_rate_of_its_schedule_by_what_rises_to_one(tmp_path):
    words = ("model=mlp", "optimiser.epochs=4", "optimiser.batch_size=20")
    plain, warm = (fit_regression.Regression(regression(tmp_path, *words, f"optimiser.warm_up={n}")) for n in (0, 2))
    steps = plain.steps_per_epoch
    for step in range(4 * steps):
        for subject in (plain, warm):
            subject.step(step)
        usual, found = (subject.optimiser.param_groups[0]["lr"] for subject in (plain, warm))
        assert usual > 0 and found == pytest.approx(usual * min(1, (step + 1) / (2 * steps))), step
    with pytest.raises(ValueError, match=r"optimiser.*warm_up"):
        regression(tmp_path, *words, "optimiser.warm_up=5")


def test_members_that_diverge_are_counted_and_give_no_number(tmp_path):
    words = ("model=mlp_ode", "optimiser.epochs=3", "optimiser.learning_rate=30", "optimiser.schedule=constant",
             "seeds=2")  # fmt: skip
    result = fit_dynamics.run(dynamics(tmp_path / "wild", *words))
    stored = json.loads((tmp_path / "wild" / "result.json").read_text())
    lost = [share == 1.0 for share in result.test["rollout/diverged"]]
    assert any(lost), result.test
    for name in ("rollout/error", "rollout/energy_drift", "rollout/momentum_drift", "test/error", "validation/error"):
        assert [value is None for value in stored["test"][name]] == lost, name
    assert stored["test"]["test/diverged"] == [float(of) for of in lost]
    assert all(len(values) == 2 for values in stored["test"].values())
    assert "diverged" in str(result) and "nan" not in str(result)


def test_a_gradient_that_is_much_too_long_is_shortened_for_its_member_alone(tmp_path):
    subject = fit_dynamics.Dynamics(dynamics(tmp_path, "model=mlp_hnn", "seeds=3"))
    weights = [p for group in subject.optimiser.param_groups for p in group["params"]]
    generator = torch.Generator().manual_seed(0)

    def shortened(*factors):
        for p in weights:
            p.grad = torch.randn(p.shape, generator=generator)
        before = [p.grad.clone() for p in weights]
        for p in weights:
            p.grad.mul_(torch.tensor(factors).view(-1, *[1] * (p.ndim - 1)))
        subject._clip_gradients(10.0)
        norms = lambda gradients: torch.stack([g.flatten(1).norm(dim=1) for g in gradients]).norm(dim=0)  # noqa: E731
        return (norms([p.grad for p in weights]) / norms(before)).tolist()

    assert shortened(1.0, 1.0, 1.0) == pytest.approx([1, 1, 1])  # the first is taken as it is
    assert shortened(1.0, 1e6, 5.0) == pytest.approx([1, 10, 5], rel=0.1)
    assert shortened(1.0, torch.nan, 1.0) == pytest.approx([1, 0, 1])
    assert shortened(1.0, 1.0, 1.0) == pytest.approx([1, 1, 1])
    assert torch.equal(subject.state_dict()["lengths"], subject.lengths)


def test_a_dataset_of_other_parameters_is_refused_by_the_configurations_keys(tmp_path):
    data = load_trajectories(Pendulum(), n_train=100, n_validation=30, n_test=30, horizon=2.0)
    data.save(tmp_path / "p.st")
    file = f"task.file={tmp_path / 'p.st'}"
    assert torch.equal(fit_dynamics.Dynamics(dynamics(tmp_path, "model=mlp_hnn", file)).data[0].test, data.test)
    for word, message in (
        ("task.train=99", r"made with task\.train=100, not 99"),
        ("task.k2=2", r"made with task\.k2=1\.0, not 2\.0"),
        ("task.time_step=0.1", r"made with task\.time_step=0\.2, not 0\.1"),
        ("seed=1", r"made with seed=0, not 1"),
        ("seeds=2", r"with seeds=2: a file holds the data of one seed"),
    ):
        with pytest.raises(ConfigError, match=message):
            fit_dynamics.Dynamics(dynamics(tmp_path, "model=mlp_hnn", file, word))


def test_a_member_without_numbers_keeps_its_place_and_has_none(tmp_path):
    """Values of the others stay theirs: lists are by seed."""
    subject = fit_regression.Regression(regression(tmp_path, "model=mlp", "seeds=3"))
    with torch.no_grad():
        expected = subject.test()
        for parameter in subject.stack.parameters():
            parameter[0] = torch.nan
        found = subject.test()
    assert found.keys() == expected.keys()
    for name in ("test/error", "validation/error", "equivariance/error", "equivariance/h0"):
        assert found[name] == [None, *expected[name][1:]], name


def test_hidden_layers_are_given_as_text_or_one_by_one(tmp_path):
    config = dynamics(tmp_path / "run", "model=emlp_hnn", 'model.hidden=["3*T(0)+2*T(1)","5*T(0)",9]')
    assert config.model.num_layers == 3
    net = fit_dynamics.Dynamics(config).stack.member(0)
    first, second, third = net.hidden
    assert first.dim == 9 and sorted(len(index) for _, index in first.blocks()) == [2, 3]
    assert second == 5 * Scalar(net.group) and third == hidden_representation(9, net.group)


BAD = [
    (("model.hidden=[]",), "at least 1 item"),
    (('model.hidden="3*X"',), "model.hidden 3*X: unknown 'X'"),
    (("model=mlp_hnn", "model.bilinear=true"), "bilinear=True needs the equivariant pathway"),
    (("model=mlp_hnn", "seeds=2", "model.hidden=1000000000000"), "or fewer copies"),
]


CHAIN = ("task.group=O(3)", 'model.groups=["O(3)","O2eR3()"]', "model.variances=[1,1e-4,0]")


def test_a_chain_of_groups_is_configured_learned_and_resumed(tmp_path):
    words = ("model=rpp_ode", *CHAIN, "objective=marginal_likelihood", "marginal_likelihood.burn_in=1",
             "marginal_likelihood.every=1", "marginal_likelihood.data=20", "seeds=2", "optimiser.epochs=3",
             "checkpoint_every=1")  # fmt: skip
    config = dynamics(tmp_path / "run", *words)
    fit_dynamics.run(config)
    members = fit_dynamics.Dynamics.load(config, RunFolder(tmp_path / "run")).members()
    net = members[0].net
    assert net.groups == (O(3), O2eR3()) and list(net.pathway_variances()["head"]) == ["equivariant", "equivariant_2"]
    assert net.pathway_variances()["head"]["equivariant_2"] != 1e-4  # learned
    metrics = read_metrics(tmp_path / "run" / "metrics.jsonl")[-1]
    assert metrics["effective/head.equivariant_2"][0] > 0
    x = torch.randn(5, 12, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    error = lambda G: float(equivariance_error(net, (4 * V)(G), (4 * V)(G), x).mean)  # noqa: E731
    assert error(O2eR3()) < 1e-5 < 1e-3 * error(O(3))


@pytest.mark.parametrize("words, part", [
    *BAD,
    (CHAIN[:2], "model.variances=null: give both"),
    (CHAIN[2:], "model.groups=null with model.variances="),
    ((*CHAIN[:2], "model.variances=[1,1]"), "model.variances=[1.0, 1.0] with 2 groups: give 3"),
    ((*CHAIN[:2], "model.variances=[0,0,0]", "model.bilinear=false"), "leaves no pathway"),
    (("model.groups=O(3)", "model.variances=[1,1]"), "model.groups=O(3)"),
    ((*CHAIN, "model=emlp_ode"), "model=emlp, which has one pathway"),
    (CHAIN[1:], "begins with O(3), and the task's representations are of O2eR3"),
])  # fmt: skip
def test_models_that_can_not_be_built_are_refused_before_there_is_a_folder(tmp_path, words, part):
    with refused(part):
        fit_dynamics.run(dynamics(tmp_path / "run", "model=rpp_ode", "optimiser.epochs=1", *words))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("which", ["inputs", "targets"])
def test_data_that_are_not_finite_are_refused(tmp_path, which):
    subject = fit_regression.Regression(regression(tmp_path))
    data = {"inputs": subject.inputs.clone(), "targets": subject.targets.clone()}
    data[which].view(-1)[3] = torch.nan
    with refused(f"the {which} of the training data have values that are not finite"):
        StackFit.__init__(subject, subject.config, subject.stack, **data)


def test_more_rows_than_memory_are_refused_in_the_words_of_the_configuration(tmp_path):
    words = ("model=rpp", "objective=marginal_likelihood", "marginal_likelihood.fisher=exact", "task.train=40000",
             "marginal_likelihood.data=40000", "marginal_likelihood.burn_in=1", "model.hidden=8")  # fmt: skip
    with refused("marginal_likelihood.data=40000 with fisher=exact, 9 rows each", "curvature=kronecker"):
        fit_regression.run(regression(tmp_path / "run", *words))
    assert not (tmp_path / "run").exists()


def test_a_member_whose_optimiser_has_stopped_moving_it_has_diverged(tmp_path, monkeypatch):
    """Weights stay finite where a second moment is infinite, and so would all that is measured of them."""
    begun = fit_regression.Regression.step

    def spoilt(subject, step):
        begun(subject, step)
        if step == 1:
            state = next(iter(subject.optimiser.state.values()))
            state["exp_avg_sq"].view(2, -1)[1, 0] = torch.inf

    words = ("model.hidden=8", "optimiser.epochs=2", "seeds=2")
    whole = fit_regression.run(regression(tmp_path / "whole", *words))
    monkeypatch.setattr(fit_regression.Regression, "step", spoilt)
    result = fit_regression.run(regression(tmp_path / "run", *words))
    error, other = result.test["test/error"]
    assert error == whole.test["test/error"][0] and other is None
    assert result.metrics["test/error"] == [error, None] and "1 of 2 diverged" in str(result)


def test_units_of_a_regression_do_not_matter(tmp_path, monkeypatch):
    def sample(task, n, generator=None):
        x, y = own(task, n, generator)
        return scale * x, scale**2 * y

    own, found = RegressionTask.sample, []
    monkeypatch.setattr(RegressionTask, "sample", sample)
    for scale in (1.0, 1e-6):
        config = regression(tmp_path / str(scale), "model=rpp", "model.hidden=8", "optimiser.epochs=3")
        found.append(fit_regression.run(config).test)
    for name in ("test/error", "equivariance/error"):
        assert found[1][name] == pytest.approx(found[0][name], rel=1e-6)


@pytest.mark.parametrize(("masses", "about_its_axis"), [("[1,1]", None), ("[1,2]", 0.3303)])
def test_wind_breaks_the_symmetry_of_unequal_masses_alone(tmp_path, masses, about_its_axis):
    words = ("task=windy_pendulum", "task.wind=0.1", f"task.masses={masses}", "task.train=2", "task.horizon=1")
    said = fit_dynamics.Dynamics(dynamics(tmp_path, *words, "model=mlp_ode")).symmetry()
    assert float(re.search(r"by ([\d.]+);", said)[1]) > 0.2  # about the vertical it is broken either way
    if about_its_axis is None:
        assert said.endswith("it is symmetric exactly.")
    else:
        assert float(re.search(r"but for ([\d.]+) of it", said)[1]) == pytest.approx(about_its_axis, rel=0.1)
