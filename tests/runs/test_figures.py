"""What figures share: axes that can be read, whatever they show."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.figure import Figure

from rppdyn.runs import bootstrap_interval, iqm
from rppdyn.runs.figures import draw_several, label_decades, label_steps, over_seeds, save

ERRORS = np.random.default_rng(0).lognormal(size=(10, 6))


def test_several_are_thin_lines_and_their_mean_is_a_thick_one():
    axes, x = Figure().subplots(), np.arange(6)
    draw_several(axes, x, ERRORS, "C0", label="ten", each=True)
    *thin, thick = axes.lines
    assert [line.get_ydata().tolist() for line in thin] == ERRORS.tolist()
    assert np.allclose(thick.get_ydata(), iqm(ERRORS)) and thick.get_linewidth() > 2 * thin[0].get_linewidth()
    low, high = bootstrap_interval(ERRORS)
    corners = axes.collections[0].get_paths()[0].vertices[:, 1]
    assert (corners.min(), corners.max()) == pytest.approx((low.min(), high.max()))
    axes = Figure().subplots()
    draw_several(axes, x, np.array([[0.0, 0.0, 1e-30, 1e-16, 1e-9, 0.1]]), "C0")
    assert len(axes.lines) == 1 and not axes.collections
    shown = axes.lines[0].get_ydata()  # on a logarithmic axis
    assert np.isnan(shown[:2]).all() and shown[2:].tolist() == [1e-17, 1e-16, 1e-9, 0.1]


@pytest.mark.parametrize(("count", "lines", "bands"), [(1, 1, 0), (3, 4, 0), (4, 1, 1)])
def test_three_and_fewer_are_shown_each_and_have_no_interval(count, lines, bands):
    axes = Figure().subplots()
    draw_several(axes, np.arange(6), -ERRORS[:count], "C0", log=False)
    assert (len(axes.lines), len(axes.collections)) == (lines, bands)
    assert np.allclose(axes.lines[-1].get_ydata(), iqm(-ERRORS[:count]))
    for line, own in zip(axes.lines[:-1], -ERRORS, strict=False):
        assert line.get_ydata().tolist() == own.tolist()


def test_what_is_drawn_of_seeds_is_said():
    assert over_seeds([1]) == []
    assert over_seeds([1, 5, 10]) == ["interquartile mean and 95 % bootstrap interval over 5 or 10 seeds"]
    assert over_seeds([3, 4]) == [
        "interquartile mean and 95 % bootstrap interval over 4 seeds", "mean (thick) and each (thin) of 3 seeds"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("shown", "labels"),
    [
        ((0.9, 12), ["1", "1.5", "2", "3", "5", "7", "10"]),
        ((0.00011, 0.0004), ["0.00015", "0.0002", "0.0003"]),
        ((0.9, 110), None),  # decades suffice
    ],
)
def test_a_logarithmic_axis_of_few_decades_has_plain_labels_between_them(shown, labels):
    figure = Figure()
    axes = figure.subplots()
    axes.set(yscale="log", ylim=shown)
    before = axes.yaxis.get_major_formatter()
    label_decades(axes.yaxis)
    figure.draw_without_rendering()
    if labels is None:
        assert axes.yaxis.get_major_formatter() is before
    else:
        ticks = zip(axes.yaxis.get_majorticklocs(), axes.yaxis.get_majorticklabels(), strict=True)
        assert [text.get_text() for at, text in ticks if shown[0] <= at <= shown[1]] == labels
        assert not any(text.get_text() for text in axes.yaxis.get_minorticklabels())


@pytest.mark.parametrize(
    ("shown", "labels"),
    [
        ((-0.05, 0.05), ["0"]),  # of one evaluation, before the first step
        ((-0.1, 2.1), ["0", "1", "2"]),
        ((0, 20_000), ["0", "5k", "10k", "15k", "20k"]),
        ((0, 2_000_000), ["0", "500k", "1M", "1.5M", "2M"]),
    ],
)
def test_an_axis_of_steps_has_whole_ones_alone(shown, labels):
    figure = Figure(figsize=(4, 3))
    axes = figure.subplots()
    axes.set_xlim(shown)
    label_steps(axes.xaxis)
    figure.draw_without_rendering()
    ticks = zip(axes.xaxis.get_majorticklocs(), axes.xaxis.get_majorticklabels(), strict=True)
    assert [text.get_text() for at, text in ticks if shown[0] <= at <= shown[1]] == labels


@pytest.mark.parametrize(("value", "seeds"), [(0.0, 3), (np.nan, 12)])
def test_curves_without_a_logarithm_leave_a_figure_that_can_be_saved(tmp_path, value, seeds):
    figure = Figure(layout="constrained")
    axes = figure.subplots()
    draw_several(axes, np.arange(4), np.full((seeds, 4), value), "k", label="error")
    axes.set_yscale("log")
    label_decades(axes.yaxis)
    assert save(figure, tmp_path / "zero.png").stat().st_size > 0
