"""Pictures of fits: what is drawn are the members' numbers."""

from __future__ import annotations

from dataclasses import asdict

import matplotlib.image
import numpy as np
import pytest

from rppdyn.jobs import plots
from rppdyn.jobs.config import compose
from rppdyn.jobs.plots import compare_equivariance, draw_horizons, draw_pathways, draw_rollouts, fit_curves
from rppdyn.runs import RunFolder, iqm, read_metrics

pytestmark = pytest.mark.rendered

ERRORS = np.random.default_rng(0).uniform(0.01, 0.1, size=(10, 6))  # (members, evaluations)


def make_run(path, *words, errors=ERRORS):
    config = compose.composed("fit_regression", ["task.train=100", "optimiser.batch_size=30", "seeds=10", *words])
    folder = RunFolder.create(path, asdict(config))
    for i, values in enumerate(np.transpose(errors)):
        own = {
            "validation/error": values.tolist(),
            "test/error": values.tolist(),
            "equivariance/error": values.tolist(),
        }
        folder.metrics.append(4 * i, own)
    return folder


def near(picture, colour):
    wanted = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    return int((np.abs(picture[..., :3] - wanted).max(-1) < 0.03).sum())


def test_runs_are_compared_in_one_picture(tmp_path):
    exact, modified = make_run(tmp_path / "a"), make_run(tmp_path / "b", "task=modified_inertia", errors=5 * ERRORS)
    one = matplotlib.image.imread(compare_equivariance([exact.path], tmp_path / "one.png"))
    two = matplotlib.image.imread(compare_equivariance([exact.path, modified.path], tmp_path / "out" / "two.png"))
    assert near(one, "#0072B2") > 300 and not near(one, "#D55E00") and near(two, "#D55E00") > 300


def test_a_member_that_diverged_is_left_out(tmp_path):
    errors = ERRORS.copy()
    errors[3, 4:] = np.nan
    folder = make_run(tmp_path / "a", errors=errors)
    text = compare_equivariance([folder.path], tmp_path / "a.svg").read_text()
    assert "<!-- inertia, rpp (9 of 10 members) -->" in text
    assert matplotlib.image.imread(fit_curves(folder)).std() > 0.05


@pytest.fixture
def figures_kept(monkeypatch):
    """Figures that would be written."""
    kept = []
    monkeypatch.setattr(plots, "save", lambda figure, path: kept.append(figure))
    return kept


def labels(figure):
    return [text.get_text() for legend in figure.legends for text in legend.get_texts()]


def diverged(folder, members):
    """The errors of some members are no numbers any more; their equivariance errors still are."""
    last = read_metrics(folder.metrics.path)[-1]
    for name in ("validation/error", "test/error"):
        last[name] = [None if i in members else value for i, value in enumerate(last[name])]
    folder.metrics.append(24, {key: value for key, value in last.items() if key != "step"})


def test_a_member_without_an_error_has_diverged_whatever_its_equivariance_error(tmp_path, figures_kept):
    some, all_lost = make_run(tmp_path / "a"), make_run(tmp_path / "b", "model=mlp")
    diverged(some, {3, 4}), diverged(all_lost, range(10))
    compare_equivariance([some.path, all_lost.path], "out.png")
    fit_curves(some), fit_curves(all_lost)
    compared, *curves = figures_kept
    assert labels(compared) == ["inertia, rpp (8 of 10 members)", "inertia, mlp (0 of 10 members)"]
    *thin, mean, empty = compared.axes[0].lines
    assert len(thin) == 8 and mean.get_ydata()[-1] == pytest.approx(iqm(np.delete(ERRORS, (3, 4), 0))[-1])
    assert not len(empty.get_xdata())
    partly, none = ([axes.get_title() for axes in figure.axes] for figure in curves)
    assert partly == ["error (8 of 10 seeds)", "equivariance error (8 of 10 seeds)"]
    assert none == ["error", "equivariance error"]
    for axes in curves[1].axes:
        assert [text.get_text() for text in axes.texts] == ["10 of 10 diverged"] and not axes.lines
        curves[1].draw_without_rendering()
        ticks = [*axes.xaxis.get_ticklabels("both"), *axes.yaxis.get_ticklabels("both")]
        assert not any(tick.get_visible() and tick.get_text() for tick in ticks)


def test_curves_say_what_they_are_of_and_run_over_epochs(tmp_path, figures_kept):
    fit_curves(make_run(tmp_path / "a"))
    (figure,) = figures_kept
    assert figure.get_suptitle() == "inertia, rpp\ninterquartile mean and 95 % bootstrap interval over 10 seeds"
    for axes in figure.axes:
        assert axes.get_xlabel() == "epochs" and axes.lines[0].get_xdata().tolist() == [0, 1, 2, 3, 4, 5]


def test_runs_of_one_model_are_told_apart_by_what_differs(tmp_path, figures_kept):
    runs = [
        make_run(tmp_path / "a"),
        make_run(tmp_path / "b", "model.free_variance=1e-4"),
        make_run(tmp_path / "c", "model=mlp", "seeds=1", errors=ERRORS[:1]),
        *(make_run(tmp_path / f"d{i}", "task=modified_inertia", f"seed={10 * i}") for i in range(5)),
    ]
    compare_equivariance([run.path for run in runs], "out.png")
    (figure,) = figures_kept
    names = ["inertia, rpp free_variance=1.0", "inertia, rpp free_variance=0.0001", "inertia, mlp"]
    names += [f"modified_inertia, rpp seed={10 * i}" for i in range(5)]
    assert labels(figure) == [
        f"{name} ({1 if 'mlp' in name else 10} member{'s' * ('mlp' not in name)})" for name in names
    ]
    looks = [(line.get_color(), line.get_linestyle()) for line in figure.legends[0].get_lines()]
    assert len(set(looks)) == 8 and looks[0] == (looks[7][0], "-") and looks[7][1] == "--"


def test_a_model_that_flies_off_leaves_the_true_trajectory_large(figures_kept):
    truth = np.random.default_rng(0).uniform(-1, 1, size=(50, 12))
    found = truth + np.geomspace(1e-3, 1e6, 50)[:, None]
    curves = {"times": np.arange(50), "error": [None, [0.1] * 49], "energy_drift": [None, [0.2] * 49]}
    draw_rollouts(curves | {"momentum_drift": [None, [0.3] * 49]}, {"truth": truth, "found": found}, "out.png")
    (figure,) = figures_kept
    space, error, drift = figure.axes
    assert all(-2 < low < -1 and 1 < high < 2 for low, high in (space.get_xlim(), space.get_ylim(), space.get_zlim()))
    for line in space.lines:
        assert np.nanmax(np.abs(line.get_data_3d())) < 2
    assert [axis.get_label_text() for axis in (space.xaxis, space.yaxis, space.zaxis)] == ["x, m", "y, m", "z, m"]
    assert error.get_title() == "relative error of the state (1 of 2 seeds)"
    assert drift.get_title() == "relative drift (1 of 2 seeds)"
    assert [line.get_label() for line in drift.lines] == ["energy", "angular momentum about the vertical"]


def test_without_components_there_is_no_panel_of_them(figures_kept):
    components = {"names": ["x"], "horizons": [1], "errors": []}
    draw_horizons({"error": [[0.1, 0.2]], "components": components}, "out.png")
    draw_horizons({"error": [[0.1, 0.2]], "components": components | {"errors": [[0.3]]}}, "out.png")
    assert [len(figure.axes) for figure in figures_kept] == [1, 2]


def test_bad_input_is_one_line(tmp_path):
    agent = RunFolder.create(tmp_path / "agent", asdict(compose.composed("train_agent", ["env=Ant-v5"])))
    empty = make_run(tmp_path / "empty", errors=np.zeros((10, 0)))
    for runs, match in (([], "no runs"), ([agent.path], "run of train-agent"), ([empty.path], "no metrics yet")):
        with pytest.raises(ValueError, match=match):
            compare_equivariance(runs, tmp_path / "out.png")


def test_bars_begin_at_zero_and_end_inside_the_axes(monkeypatch):
    kept = []
    monkeypatch.setattr(plots, "save", lambda figure, path: kept.append(figure))
    numbers = {"precision": [2.0, None], "norm": [1.0, None], "effective": [9.0, None], "normalised": [1.0, None]}
    rows = [{"layer": "head", "pathway": name, "coefficients": 9, "relative": [share, None], **numbers}
            for name, share in (("free", 0.0), ("equivariant", 1.0))]  # fmt: skip
    draw_pathways(rows, "pathways.png")
    for axes in kept[0].axes[:5]:
        bars = [patch.get_height() for patch in axes.patches]
        if axes.get_title() == "prior precision":  # a logarithmic axis has no zero
            assert (
                not bars
                and [line.get_ydata().tolist() for line in axes.lines if line.get_marker() == "o"] == [[2.0]] * 2
            )
        else:
            assert len(bars) == 2 and axes.get_ylim()[0] == 0 and max(bars) < axes.get_ylim()[1]
