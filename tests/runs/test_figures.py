"""What figures share: axes that can be read, whatever they show."""

from __future__ import annotations

import pytest
from matplotlib.figure import Figure

from rppdyn.runs.figures import label_decades, label_steps


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
