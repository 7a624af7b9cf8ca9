"""Runs in one picture: agents by their learning curves, fits by their errors, and their numbers beside it."""

from __future__ import annotations

import json
from dataclasses import asdict
from functools import partial

import matplotlib.image
import numpy as np
import pytest
from matplotlib.figure import Figure

from rppdyn.cli import main
from rppdyn.jobs import figure
from rppdyn.jobs.config import compose
from rppdyn.jobs.config.base import ConfigError
from rppdyn.jobs.config.command import FigureConfig
from rppdyn.jobs.figure import draw_curves, draw_files, draw_run, file_runs, read_runs
from rppdyn.jobs.results import FileAgent
from rppdyn.runs import RunFolder, RunFolderError, iqm
from rppdyn.runs.files import write_json
from rppdyn.runs.table import group_runs

pytestmark = pytest.mark.rendered

ERRORS = np.random.default_rng(0).uniform(0.01, 0.1, size=(10, 6))  # (members, evaluations)


def make_agent(path, *words, env="InvertedPendulum-v5", steps=(0, 100), **metrics):
    config = compose.composed("train_agent", [f"env={env}", "total_steps=100", *words])
    folder = RunFolder.create(path, asdict(config))
    for step in steps:
        folder.metrics.append(step, {"eval/return_mean": 10.0 + step, "equivariance/policy": 0.1} | metrics)
    return str(path)


def make_fit(path, *words, verb="fit_regression", errors=ERRORS):
    size = ["optimiser.batch_size=30"] * (verb != "fit_image")
    config = compose.composed(verb, ["task.train=100", *size, f"seeds={len(errors)}", *words])
    folder = RunFolder.create(path, asdict(config))
    for i, values in enumerate(np.transpose(errors)):
        names = ("validation/error", "test/error", "equivariance/error")
        folder.metrics.append(config.steps_per_epoch * i, dict.fromkeys(names, values.tolist()))
    return str(path)


def drawn(*runs):
    return draw_curves(group_runs(read_runs(runs)))


def texts(legend):
    return [text.get_text() for text in legend.get_texts()]


def test_agents_are_drawn_as_learning_curves_with_their_numbers_beside(tmp_path):
    runs = [
        make_agent(tmp_path / f"{kind}{seed}", f"model={kind}", f"seed={seed}")
        for kind in ("rpp", "mlp")
        for seed in (0, 1)
    ]
    config = FigureConfig(runs=runs, out=str(tmp_path / "agents.png"), json=str(tmp_path / "agents.json"))
    assert matplotlib.image.imread(figure.run(config)).std() > 0.02
    kept = json.loads((tmp_path / "agents.json").read_text())
    assert [(run["run"], run["config"]["seed"]) for run in kept] == [("rpp0", 0), ("rpp1", 1), ("mlp0", 0), ("mlp1", 1)]
    assert [record["eval/return_mean"] for record in kept[0]["metrics"]] == [10.0, 110.0]


def test_each_environment_has_a_row_and_each_model_a_colour(tmp_path):
    envs = ("Walker2d-v5", "Ant-v5", "Swimmer-v5")
    runs = [make_agent(tmp_path / env / kind, f"model={kind}", env=env) for env in envs for kind in ("rpp", "mlp")]
    picture = drawn(*runs)
    titles = [axes.get_title() for axes in picture.axes]
    assert len(titles) == 9 and titles[::3] == [f"{env}: mean return" for env in envs]
    assert texts(picture.legends[0]) == ["rpp", "mlp"]
    colours = [[line.get_color() for line in axes.lines] for axes in picture.axes[::3]]
    assert colours[0] == colours[1] == colours[2] and len(set(colours[0])) == 2


def test_legends_stand_below_the_axes_and_hide_nothing(tmp_path):
    metrics = {"equivariance/critic": 0.2, "rollout/return_mean": 5.0}
    runs = [make_agent(tmp_path / f"{kind}{seed}", f"model={kind}", f"seed={seed}", **metrics)
            for kind in ("rpp", "mlp") for seed in (0, 1)]  # fmt: skip
    picture = drawn(*runs)
    picture.canvas.draw()
    assert picture.get_suptitle() == "InvertedPendulum-v5\nmean (thick) and each (thin) of 2 seeds"
    legends = [axes.get_legend() for axes in picture.axes]
    assert [texts(legend) for legend in legends[:2]] == [["evaluation", "training"], ["policy", "critics"]]
    assert legends[2] is None and picture.axes[2].texts[0].get_text() == "nothing measured"
    for axes in picture.axes:
        for legend in filter(None, [*picture.legends, *legends]):
            assert not axes.bbox.overlaps(legend.get_window_extent())
    assert {line.get_linestyle() for line in picture.axes[0].lines} == {"-", "--"}
    alone = drawn(make_agent(tmp_path / "alone", **metrics)).axes[0]
    assert len({line.get_color() for line in alone.lines}) == 2


def test_small_numbers_are_drawn_as_they_are_and_zeros_are_named(tmp_path):
    run = make_agent(tmp_path / "a", steps=())
    folder = RunFolder.open(run)
    for i in range(9, 15):
        folder.metrics.append(
            i, {"eval/return_mean": 0.0, "equivariance/policy": 0.0, "pathway/actor_free_share": 10.0**-i}
        )
    returns, errors, shares = drawn(run).axes
    assert returns.lines[0].get_ydata().tolist() == [0.0] * 6  # on a linear axis
    assert not errors.lines and errors.texts[0].get_text() == "zero: rpp"
    assert shares.lines[0].get_ydata() == pytest.approx(10.0 ** -np.arange(9, 15)) and shares.get_yscale() == "log"


def test_fits_of_any_kind_are_drawn_by_their_errors(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    runs = [make_fit("a"), make_fit("b", "task=modified_inertia"), make_fit("c", verb="fit_image")]
    assert main(["figure", *runs, "--out", "fits.svg"]) == 0
    assert capfd.readouterr() == ("fits.svg\n", "")
    text = (tmp_path / "fits.svg").read_text()
    for label in ("inertia: error", "modified_inertia: equivariance error", "digit: error", "f_fc+conv"):
        assert f"<!-- {label} -->" in text
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "c", "fits.svg"]


def test_members_of_several_fits_are_seeds_of_one_configuration_over_epochs(tmp_path):
    runs = [make_fit(tmp_path / "a", errors=ERRORS[:5]), make_fit(tmp_path / "b", "seed=5", errors=ERRORS[5:])]
    picture = drawn(*runs)
    assert picture.get_suptitle() == "inertia, rpp\ninterquartile mean and 95 % bootstrap interval over 10 seeds"
    for axes in picture.axes:
        assert axes.get_xlabel() == "epochs" and axes.lines[0].get_xdata().tolist() == [0, 1, 2, 3, 4, 5]
        assert axes.lines[-1].get_ydata() == pytest.approx(iqm(ERRORS))


def test_a_member_without_an_error_has_diverged_whatever_its_equivariance_error(tmp_path):
    run, lost = make_fit(tmp_path / "a"), make_fit(tmp_path / "b")
    for path, members in ((run, (3, 4)), (lost, range(10))):
        errors = [None if i in members else 0.1 for i in range(10)]
        folder = RunFolder.open(path)
        folder.metrics.append(24, {"test/error": errors, "equivariance/error": [0.1] * 10})
    for axes in drawn(run).axes:
        assert axes.get_xlabel() == "epochs\nrpp: 8 of 10 seeds"
    kept = np.delete(ERRORS, (3, 4), 0)
    assert drawn(run).axes[1].lines[0].get_ydata()[:-1] == pytest.approx(iqm(kept))
    picture = drawn(lost)
    picture.draw_without_rendering()
    for axes in picture.axes:
        assert [text.get_text() for text in axes.texts] == ["rpp: 10 of 10 diverged"] and not axes.lines
        ticks = [*axes.xaxis.get_ticklabels("both"), *axes.yaxis.get_ticklabels("both")]
        assert not any(tick.get_visible() and tick.get_text() for tick in ticks)


# -- the figure of one run ---------------------------------------------------------------------------------------------


@pytest.fixture
def kept(monkeypatch):
    """Figures that would be written."""
    figures: list[Figure] = []
    monkeypatch.setattr(figure, "save", lambda picture, path: figures.append(picture) or path)
    return figures


def finish(path, rollouts, **result):
    folder = RunFolder.open(path)
    write_json(folder.path / "rollouts.json", rollouts)
    folder.write_result({"test": {}} | result)
    return folder


def test_rollouts_and_an_example_stand_beside_the_errors(tmp_path, kept):
    truth = np.random.default_rng(0).uniform(-1, 1, size=(50, 12))
    found = truth + np.geomspace(1e-3, 1e6, 50)[:, None]
    rollouts = {"times": np.arange(50) / 5, "example": {"truth": truth, "found": found}}
    rollouts |= {name: [None, [0.1] * 49] for name in ("error", "energy_drift", "momentum_drift")}
    path = make_fit(tmp_path / "run", "task.horizon=2", verb="fit_dynamics", errors=ERRORS[:2])
    assert draw_run(finish(path, rollouts), "curves").name == "curves.png"
    *_, error, drift, example = (axes for axes in kept[0].axes if axes.lines)
    assert error.get_xlabel() == "time, s\nrpp_hnn: 1 of 2 seeds"
    assert texts(drift.get_legend()) == ["energy", "angular momentum"]
    low, high = example.get_ylim()
    assert -2 < low < -1 and 1 < high < 2  # a model that flies off leaves the true trajectory large
    assert all(np.nanmax(np.abs(line.get_ydata())) < 6 for line in example.lines)


def test_a_curve_that_ends_early_is_drawn_to_its_end_and_no_divergence(tmp_path):
    """Where a member's longest trajectory diverged, its last times have null; its seed counted as diverged."""
    path = make_fit(tmp_path / "run", "task.horizon=2", verb="fit_dynamics", errors=ERRORS[:2])
    finish(path, {"times": [0.0, 0.2, 0.4, 0.6], "error": [[0.1, 0.2, 0.3], [0.1, 0.4, None]]})
    (group,) = group_runs(read_runs([path]))
    assert group.lost("along/error") == 0
    curve = group.curve("along/error")
    assert curve.steps.tolist() == [0.2, 0.4] and curve.each.tolist() == [[0.1, 0.2], [0.1, 0.4]]


def test_learned_pathways_are_bars_from_zero(tmp_path, kept):
    rows = [{"layer": "head", "pathway": name, "coefficients": 9, "normalised": [share, None]}
            for name, share in (("free", 0.25), ("equivariant", 1.0))]  # fmt: skip
    draw_run(finish(make_fit(tmp_path / "run", errors=ERRORS[:2]), {}, pathways=rows), "curves")
    axes = kept[0].axes[-1]
    assert sorted(bar.get_width() for bar in axes.patches) == [0.25, 1.0] and axes.get_xlim()[0] <= 0
    assert texts(axes.get_legend()) == ["free", "equivariant"]


def test_agents_from_files_are_level_lines_or_dots(tmp_path):
    played = [
        FileAgent(f"{name}.zip", "InvertedPendulum-v5", "P", [1.0, 3.0], [5, 5], {"left-right": 0.5}, 0.5)
        for name in "ab"
    ]
    files = [run for agent in played for run in file_runs(agent)]
    groups = group_runs([*read_runs([make_agent(tmp_path / "run")]), *files])
    picture = draw_curves(groups)
    returns, errors, _ = picture.axes
    assert [line.get_ydata()[0] for line in returns.lines[1:]] == [2.0, 2.0]
    assert [line.get_ydata()[0] for line in errors.lines[1:]] == [0.5, 0.5]
    assert texts(picture.legends[0]) == ["rpp", "a.zip", "b.zip"]
    dots = draw_files(group_runs(files))
    assert [axes.get_title().partition(": ")[2] for axes in dots.axes] == [
        "return of each episode",
        "policy's error, left-right",
    ]
    assert dots.axes[0].lines[0].get_xdata().tolist() == [1.0, 3.0]


# -- bad input ---------------------------------------------------------------------------------------------------------


def test_bad_input_is_one_line_and_nothing_is_made(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    agent, fit = make_agent("agent"), make_fit("fit")
    unlike = RunFolder.create(tmp_path / "unlike", asdict(compose.composed("fit_regression", [])))
    unlike.config_file.write_text("[")
    empty = partial(make_fit, errors=np.zeros((2, 0)))
    new_agent, new_fit = make_agent("new_agent", steps=()), empty("new_fit")
    before = sorted(tmp_path.iterdir())
    for words, parts in (
        ([fit, agent], ("agent is an agent's run", "fit a fit's", "rppdyn report")),
        ([fit, "fit/."], ("fit is given twice",)),
        ([new_agent], ("new_agent has no metrics yet",)),
        ([new_fit], ("new_fit has no metrics yet",)),
        (["unlike"], ("unlike/config.yaml",)),
        ([fit, "--out", "out.gif"], ("--out out.gif", ".png")),
    ):
        assert main(["figure", "--out", "out.png", "--json", "out.json", *words]) == 2, words
        out, err = capfd.readouterr()
        assert out == "" and err.startswith("rppdyn: error: ") and err.count("\n") == 1, err
        assert all(part in err for part in parts), err
    assert sorted(tmp_path.iterdir()) == before
    with pytest.raises(RunFolderError, match="no run at absent"):
        figure.run(FigureConfig(runs=["absent"], out="out.png"))
    bound = RunFolder.create(tmp_path / "bound", asdict(compose.composed("bound_regression", ["task.train=100"])))
    bound.metrics.append(0, {"bound/value": [1.0]})
    with pytest.raises(ConfigError, match="run of bound: it has its own figure"):
        figure.run(FigureConfig(runs=[str(bound.path)], out="out.png"))


@pytest.mark.parametrize("numbers", ["", "numbers", "run/metrics.jsonl", "f.png"])
def test_numbers_are_written_to_json_and_nothing_else(numbers):
    with pytest.raises(ValueError, match=rf"--json {numbers}: "):
        FigureConfig(runs=["run"], out="f.png", json=numbers)
