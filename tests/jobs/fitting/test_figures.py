"""Pictures of fits: what is drawn are the members' numbers."""

from __future__ import annotations

from dataclasses import asdict

import matplotlib.image
import numpy as np
import pytest
from matplotlib.figure import Figure

from rppdyn.jobs.config import compose
from rppdyn.jobs.fitting.figures import compare_equivariance, draw_members, fit_curves
from rppdyn.runs import RunFolder, bootstrap_interval, iqm

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


def test_members_are_thin_lines_and_their_mean_is_a_thick_one():
    axes, x = Figure().subplots(), np.arange(6)
    draw_members(axes, x, ERRORS, "C0", label="ten", each=True)
    *thin, thick = axes.lines
    assert [line.get_ydata().tolist() for line in thin] == ERRORS.tolist()
    assert np.allclose(thick.get_ydata(), iqm(ERRORS)) and thick.get_linewidth() > 2 * thin[0].get_linewidth()
    low, high = bootstrap_interval(ERRORS)
    corners = axes.collections[0].get_paths()[0].vertices[:, 1]
    assert (corners.min(), corners.max()) == pytest.approx((low.min(), high.max()))
    axes = Figure().subplots()
    draw_members(axes, x, np.array([[0.0, 0.0, 1e-30, 1e-16, 1e-9, 0.1]]), "C0")
    assert len(axes.lines) == 1 and not axes.collections
    shown = axes.lines[0].get_ydata()  # on a logarithmic axis
    assert np.isnan(shown[:2]).all() and shown[2:].tolist() == [1e-17, 1e-16, 1e-9, 0.1]


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


def test_bad_input_is_one_line(tmp_path):
    agent = RunFolder.create(tmp_path / "agent", asdict(compose.composed("train_agent", ["env=Ant-v5"])))
    empty = make_run(tmp_path / "empty", errors=np.zeros((10, 0)))
    for runs, match in (([], "no runs"), ([agent.path], "run of train-agent"), ([empty.path], "no metrics yet")):
        with pytest.raises(ValueError, match=match):
            compare_equivariance(runs, tmp_path / "out.png")
