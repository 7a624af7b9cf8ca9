"""`rppdyn equivariance` on runs of fit-regression and fit-dynamics: each member, all of them, and rollouts."""

from __future__ import annotations

import functools
import json
import math
import shutil
from itertools import pairwise
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest
import torch

from rppdyn.cli import main
from rppdyn.dynamics import integrate
from rppdyn.equivariance import rollout_equivariance_error
from rppdyn.groups import Z
from rppdyn.jobs import equivariance, fit_dynamics, fit_regression
from rppdyn.jobs.config import compose
from rppdyn.jobs.config.base import ConfigError
from rppdyn.jobs.config.command import EquivarianceConfig
from rppdyn.jobs.fit import save_members
from rppdyn.jobs.loading import load_fit
from rppdyn.jobs.measure import MAX_ELEMENTS, _elements, largest_entries, pool_members
from rppdyn.runs import RunFolder, RunFolderError, iqm, read_metrics

REGRESSION = ("model.hidden=8", "model.num_layers=1", "task.train=60", "task.validation=20", "task.test=40",
              "optimiser.epochs=2", "evaluation.every=2", "evaluation.states=40", "device=cpu")  # fmt: skip
DYNAMICS = ("model.hidden=8", "model.num_layers=1", "task.train=30", "task.validation=10", "task.test=20", "task.horizon=2",
            "optimiser.epochs=2", "evaluation.every=2", "evaluation.states=20", "rollout.trajectories=6",
            "device=cpu")  # fmt: skip
MADE = {
    "rpp": ("fit_regression", "task=inertia", "model=rpp", "seeds=3"),
    "emlp": ("fit_regression", "task=modified_inertia", "model=emlp"),
    "mlp": ("fit_regression", "task=lorentz", "model=mlp"),
    "hnn": ("fit_dynamics", "task=windy_pendulum", "model=mlp_hnn", "seeds=2"),
    "emlp_hnn": ("fit_dynamics", "task=pendulum", "model=emlp_hnn"),
    "ode": ("fit_dynamics", "task=pendulum", "model=rpp_ode"),
}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A finished run of MADE by its name, fitted when it is first asked for."""
    root, made = tmp_path_factory.mktemp("fits"), {}

    def run(name):
        if name not in made:
            verb, *words = MADE[name]
            small = REGRESSION if verb == "fit_regression" else DYNAMICS
            made[name] = root / name
            job = fit_regression if verb == "fit_regression" else fit_dynamics
            job.run(compose.composed(verb, [*small, *words, f"run_dir={made[name]}"]))
        return made[name]

    return run


@pytest.fixture(scope="module")
def found(run):
    """What is found of such a run as it is."""
    return functools.cache(lambda name: measured(run(name)))


def measured(folder, **options):
    result = equivariance.run(EquivarianceConfig(what=str(folder), **options))
    written = json.loads((Path(folder) / "equivariance.json").read_text())
    assert written["functions"].keys() == written["members"].keys() == result.functions.keys()
    return result


def opened(folder):
    return load_fit(RunFolder.open(folder), verify=False)


def copy_of(folder, path):
    """A copy of a run that may be changed, and its fit."""
    shutil.copytree(folder, path)
    return path, opened(path)


def save(subject, path):
    """Write a fit's members as they are now, as if it had ended so."""
    folder = RunFolder.open(path)
    save_members(subject.stack, folder)
    result = folder.result()
    result["metrics"] = subject.evaluate()
    folder.write_result(result)


# -- regression -------------------------------------------------------------------------------------------------------


def test_every_member_is_measured_and_agrees_with_its_own_result(found, run):
    result = found("rpp")
    own = RunFolder.open(run("rpp")).result()["test"]
    members = result.members["regressor"]
    assert result.seeds == [0, 1, 2] and result.states == 40 and result.states_from == "inputs of the test data"
    for i, member in enumerate(members):  # the same inputs, measured by the fit and here
        for generator in ("h0", "A0", "A1", "A2"):
            assert member.per_generator[generator].published == pytest.approx(
                own[f"equivariance/{generator}"][i], rel=1e-9
            )
        assert member.precision == "float64" and 1e-4 < member.overall.error < 1
    assert list(members[0].by_output) == [f"I_{a}{b}" for a in "xyz" for b in "xyz"]
    assert list(members[0].by_input) == [f"m_{i}" for i in range(1, 6)] + [f"x_{i}" for i in range(1, 6)]
    assert list(members[0].layers) == ["network"] and members[0].layers["network"].layers[-1] == "head"


def test_over_members_it_is_the_interquartile_mean_with_an_interval_over_them(found):
    result = found("rpp")
    members, whole = result.members["regressor"], result.functions["regressor"]
    for name, estimate in whole.per_generator.items():
        each = [m.per_generator[name].error for m in members]
        assert estimate.error == pytest.approx(float(iqm(each)))
        ordered = [min(each), estimate.interval[0], estimate.error, estimate.interval[1], max(each)]
        assert all(a <= b * (1 + 1e-12) for a, b in pairwise(ordered))  # a mean of equal numbers may be off by rounding
    assert whole.by_output["I_xy"] == pytest.approx(float(iqm([m.by_output["I_xy"] for m in members])))
    norms = [m.layers["network"].norm["A1"] for m in members]
    assert whole.layers["network"].norm["A1"] == pytest.approx(iqm(norms).tolist())
    assert pool_members(members[:1]) is members[0]  # one member: its interval is over states
    table = equivariance.table(result)
    assert "3 members: interquartile means over them" in table and "blocks.0.gate" in table and "-0%" not in table


@pytest.mark.rendered
def test_other_inputs_and_another_group(found, run, tmp_path):
    by_test, by_normal = found("mlp"), measured(run("mlp"), states_from="normal", states=50)
    assert matplotlib.image.imread(by_normal.figure).std() > 0.02
    assert by_normal.states == 50 and by_normal.states_from == "standard normal inputs"
    np.save(tmp_path / "x.npy", np.random.default_rng(0).normal(size=(30, 16)))
    by_file = measured(run("mlp"), states_from=str(tmp_path / "x.npy"), states=20)
    assert by_file.states == 20 and by_file.states_from.endswith("x.npy")
    errors = [r.functions["regressor"].overall.error for r in (by_test, by_normal, by_file)]
    assert len(set(errors)) == 3 and errors[0] > 0.05  # invariance under boosts, not learned
    assert measured(run("mlp"), group="O(4)").symmetry == "O(4): 4*T1 to T0"
    # O(3)'s network under its subgroup: equivariant still, but its layers are told apart for O(3) alone
    subgroup = measured(run("emlp"), group="SO(3)").functions["regressor"]
    assert (
        subgroup.overall.error < 1e-13 and subgroup.layers == {} and list(subgroup.per_generator) == ["A0", "A1", "A2"]
    )


def test_a_member_that_diverged_is_left_out_by_name(found, run, tmp_path):
    copied, regression = copy_of(run("rpp"), tmp_path / "run")
    with torch.no_grad():
        regression.stack.stacked[0][1] = math.nan
    save(regression, copied)
    whole, rest = found("rpp"), measured(copied)
    assert rest.seeds == [0, 2] and rest.diverged == [1]
    assert rest.members["regressor"][1].overall == whole.members["regressor"][2].overall
    assert "left out, with numbers that are not finite: seed 1" in equivariance.table(rest)
    with torch.no_grad():
        regression.stack.stacked[0][:] = math.nan
    save(regression, copied)
    with pytest.raises(ConfigError, match="no member gives finite numbers"):
        measured(copied)


def test_every_metric_of_fits_is_documented_and_every_documented_one_is_there(run):
    page = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()
    rows = [
        line.split("|")[1]
        for line in page.partition("\n## Fits\n")[2].partition("\n## ")[0].splitlines()
        if line.startswith("| `")
    ]
    documented = {name for cell in rows for name in cell.split("`")[1::2]}
    folders = [RunFolder.open(run(name)) for name in ("emlp", "emlp_hnn")]
    logged = {name for folder in folders for record in read_metrics(folder.metrics.path) for name in record}
    logged = {name for name in logged if not name.endswith("_mean")}
    logged |= {name for folder in folders for name in folder.result()["test"]}
    of_others = set(
        "train/l1 train/nll validation/nll test/nll log10_variance/LAYER.PATHWAY effective/LAYER.PATHWAY "
        "normalised/LAYER.PATHWAY relative/LAYER.PATHWAY norm/LAYER.PATHWAY marginal_likelihood/negative_log test/error_10 "
        "test/error_30 test/error_100 equivariance/rollout omega/LAYER rmse/NAME energy/variation".split()
    )
    assert {name for name in logged if name not in ("equivariance/A1", "equivariance/A2")} == documented - of_others


# -- dynamics ---------------------------------------------------------------------------------------------------------


def test_a_hamiltonian_is_measured_by_its_vector_field(found, run):
    """Which a constant added to H does not change, while it would make H itself look invariant."""
    result = found("hnn")
    own = RunFolder.open(run("hnn")).result()["test"]
    members = result.members["vector field"]
    for i, member in enumerate(members):
        for generator in ("h0", "A0"):
            assert member.per_generator[generator].published == pytest.approx(
                own[f"equivariance/{generator}"][i], rel=1e-9
            )
    assert list(members[0].by_output) == ["dx_1/dt", "dx_2/dt", "dp_1/dt", "dp_2/dt"]
    assert list(members[0].by_input) == ["x_1", "x_2", "p_1", "p_2"]
    assert "along rollouts" in equivariance.table(result) and "vector field" in equivariance.table(result)


def test_the_error_along_rollouts_is_that_of_the_library(found, run):
    rollouts = found("hnn").rollouts
    dynamics = opened(run("hnn"))
    models = dynamics.members()
    assert rollouts.trajectories == 6 and rollouts.left_out == [0, 0] and rollouts.times[-1] == pytest.approx(2.0)
    for model, data, per_step, error in zip(models, dynamics.data, rollouts.per_step, rollouts.per_member, strict=True):
        times = data.times[:2]
        step = lambda z, model=model, times=times: integrate(model, z, times, method="rk4", step=0.05).states[:, -1]  # noqa: E731
        expected = rollout_equivariance_error(step, dynamics.rep, data.rollouts[:6, 0], len(per_step))
        assert per_step == pytest.approx(expected.per_step.tolist(), rel=1e-7)
        assert error == pytest.approx(expected.over().mean, rel=1e-7)
    assert rollouts.error == pytest.approx(float(iqm(rollouts.per_member)))
    assert min(rollouts.per_member) <= rollouts.interval[0] <= rollouts.interval[1] <= max(rollouts.per_member)


def test_an_equivariant_model_and_the_rotations_that_it_does_not_know(found, run):
    assert found("emlp").functions["regressor"].overall.error < 1e-13
    own = found("emlp_hnn")
    assert own.functions["vector field"].overall.error < 1e-12 and own.rollouts.error < 1e-10
    assert list(own.members["vector field"][0].layers) == ["Hamiltonian"]
    other = measured(run("emlp_hnn"), group="SO(3)")
    errors = other.functions["vector field"].per_generator
    kept = [name for name, e in errors.items() if e.error < 1e-12]  # about the vertical
    assert len(kept) == 1 and sum(e.error > 1e-3 for e in errors.values()) == 2 and other.rollouts.error > 1e-3
    field = found("ode").functions["vector field"]
    assert list(field.layers) == ["network"] and 1e-6 < field.overall.error < 1


def test_trajectories_that_diverge_are_counted(run, tmp_path):
    copied, dynamics = copy_of(run("ode"), tmp_path / "run")
    with torch.no_grad():
        for parameters in dynamics.stack.stacked:
            parameters *= 1.0 if parameters.abs().max() == 0 else 30 / parameters.abs().max()
    save(dynamics, copied)
    result = measured(copied)
    assert result.rollouts.left_out == [6] and math.isnan(result.rollouts.error)
    assert json.loads((copied / "equivariance.json").read_text())["rollouts"]["error"] is None


# -- bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "options", "match"),
    [
        ("emlp", dict(env="Ant-v5"), "--env Ant-v5: the run of a fit brings its task"),
        ("emlp", dict(group="SO(3)", rep_in="V"), "--rep-in V"),
        ("emlp", dict(states_from="rollouts"), "--from rollouts: inputs of a fit"),
        ("emlp", dict(states_from="absent.npy"), "no such file.*of a fit: test, normal"),
        ("emlp", dict(group="SP(3)"), "unknown 'SP'"),
        ("hnn", dict(group="SO(2)"), "SO\\(2\\)"),
        ("hnn", dict(vecnormalize="stats.pkl"), "--vecnormalize stats.pkl"),
        ("hnn", dict(states_from="complex.npy"), "complex.npy holds complex128: it must hold real numbers"),
        ("hnn", dict(states_from="huge.npy"), "no member gives finite numbers.*unless it is what huge.npy holds"),
    ],
)
def test_bad_input_is_one_line(run, name, options, match, tmp_path, monkeypatch):
    what = str(run(name))
    monkeypatch.chdir(tmp_path)
    np.save("complex.npy", np.ones((5, 12)) + 1j)
    np.save("huge.npy", np.full((5, 12), 1e308))
    with pytest.raises(ValueError, match=match) as error:
        equivariance.run(EquivarianceConfig(what=what, **options))
    assert "\n" not in str(error.value) and len(str(error.value)) < 300


def test_members_that_are_not_what_they_were(run, tmp_path):
    """As after a change of a layer's layout: the file fits, and is another function."""
    copied, regression = copy_of(run("rpp"), tmp_path / "run")
    with torch.no_grad():
        for parameters in regression.stack.stacked:
            parameters.copy_(parameters.flip(-1))
    save_members(regression.stack, RunFolder.open(copied))
    with pytest.raises(RunFolderError, match="other test errors than when they were fitted"):
        measured(copied)


def test_an_unfinished_run(run, tmp_path, capfd):
    copied = tmp_path / "run"
    shutil.copytree(run("emlp"), copied)
    (copied / "result.json").unlink()
    with pytest.raises(RunFolderError, match="unfinished"):
        measured(copied)
    assert main(["equivariance", str(copied)]) == 2 and "unfinished" in capfd.readouterr().err
    assert main(["equivariance", str(run("emlp"))]) == 0 and "modified_inertia, emlp" in capfd.readouterr().out


@pytest.mark.parametrize("n", [1, 4, 16, 24])
def test_elements_that_are_measured_are_not_the_identity(n):
    """Its error is 0, which pulled the mean down in groups that are sampled."""
    elements = _elements(Z(n))
    assert len(elements) == min(max(n - 1, 1), MAX_ELEMENTS)
    assert n == 1 or all((g - torch.eye(n)).abs().max() > 0.1 for g in elements)


def test_the_largest_entries_are_shown_where_there_are_many():
    errors = {"a": 0.1, "b": 0.3, "c": 0.2}
    assert list(largest_entries(errors, 3)) == ["a", "b", "c"] and largest_entries(errors, 2) == {"b": 0.3, "c": 0.2}


def test_a_fit_plays_nothing(run, capsys):
    """evaluate-agent measured it anew, then asked for --env, and with --env said that a run has one."""
    assert main(["evaluate-agent", str(run("mlp"))]) == 2
    assert "is a run of fit-regression: give one of train-agent" in capsys.readouterr().err
