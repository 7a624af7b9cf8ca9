"""Learning curves: grouped by what differs, drawn to a file."""

from __future__ import annotations

import matplotlib.image
import numpy as np
import pytest

from rppdyn.jobs import plots
from rppdyn.jobs.plots import PANELS, grouped, learning_curves
from rppdyn.runs import RunFolder, RunFolderError
from rppdyn.runs.figures import MODEL_COLOURS, curve

pytestmark = pytest.mark.rendered


@pytest.fixture
def make_run(tmp_path):
    def make(name, *, kind="rpp", seed=0, steps=(0, 100, 200), agent=None, **env):
        config = {"seed": seed, "model": {"kind": kind, "hidden": 8}, "env": {"id": "Walker2d-v5", **env}}
        config |= {} if agent is None else {"agent": agent}
        folder = RunFolder.create(tmp_path / name, config)
        for step in steps:
            folder.metrics.append(
                step,
                {
                    "eval/return_mean": step + seed,
                    "equivariance/policy": 0.0 if kind == "emlp" else None if step == 0 else 0.1,
                    "equivariance/critic": 0.2,
                    "pathway/actor_free_share": 0.5,
                    "pathway/critic_free_share": 0.25,
                },
            )
        return folder.path

    return make


def drawn(monkeypatch, runs):
    """The figure that would be written."""
    monkeypatch.setattr(plots, "save", lambda figure, path: figure)
    return learning_curves(runs, "curves.png")


def test_seeds_are_one_curve_and_models_are_several(make_run):
    runs = [make_run(f"{kind}{seed}", kind=kind, seed=seed) for kind in ("rpp", "mlp") for seed in range(3)]
    groups = grouped(runs)
    assert {label: len(group.records) for label, group in groups.items()} == {"rpp": 3, "mlp": 3}


def test_a_weakened_actuator_is_told_apart(make_run):
    groups = grouped([make_run("a"), make_run("b", actuator_scale={"leg_joint": 0.5})])
    assert set(groups) == {"leg_joint=stock", "leg_joint=0.5"}


def test_what_is_switched_on_is_named_and_what_is_off_is_not(make_run):
    plain, mirrored = (make_run(name, agent={"augment": on}) for name, on in (("a", False), ("b", True)))
    strict = make_run("c", kind="emlp", agent={"augment": False})
    assert list(grouped([plain, mirrored])) == ["rpp", "rpp augment"]
    assert list(grouped([plain, mirrored, strict])) == ["rpp", "rpp augment", "emlp"]


def test_one_seed_is_not_two(make_run):
    with pytest.raises(ValueError, match=r"a and .*b both have seed 3 of one configuration: name one of them"):
        grouped([make_run("a", seed=3), make_run("b", seed=3)])


def test_a_curve_has_the_steps_that_all_runs_have(make_run):
    (group,) = grouped([make_run("a", seed=0), make_run("b", seed=2, steps=(0, 200, 300))]).values()
    drawn = curve(group.records, "eval/return_mean")
    assert drawn.steps.tolist() == [0, 200]
    assert drawn.centre.tolist() == [1.0, 201.0]
    assert drawn.each.tolist() == [[0.0, 200.0], [2.0, 202.0]]
    assert curve(group.records, "absent") is None


@pytest.mark.parametrize("count", [1, 3])
def test_the_picture_is_written(make_run, tmp_path, count):
    runs = [
        make_run(f"{kind}{seed}", kind=kind, seed=seed) for kind in ("rpp", "emlp")[:count] for seed in range(count)
    ]
    out = learning_curves(runs, tmp_path / "figures" / "curves.png")
    image = matplotlib.image.imread(out)
    assert image.shape[0] > 300
    assert image.std() > 0.02
    assert [path.name for path in out.parent.iterdir()] == ["curves.png"]


def test_small_numbers_are_drawn_as_they_are_and_zeros_are_not(make_run, monkeypatch):
    run = make_run("a", kind="emlp")
    monkeypatch.setattr(plots, "read_metrics", lambda path: [
        {"step": i, "eval/return_mean": 0.0, "equivariance/policy": 0.0, "pathway/actor_free_share": 10.0**-i}
        for i in range(9, 15)
    ])  # fmt: skip
    returns, errors, shares = drawn(monkeypatch, [run]).axes
    assert returns.lines[0].get_ydata().tolist() == [0.0] * 6  # on a linear axis
    assert np.isnan(errors.lines[0].get_ydata()).all()
    assert shares.lines[0].get_ydata() == pytest.approx(10.0 ** -np.arange(9, 15))


def test_a_model_has_one_colour_whatever_stands_beside_it(make_run, monkeypatch):
    emlp, mlp, rpp = (make_run(kind, kind=kind) for kind in ("emlp", "mlp", "rpp"))
    for runs in ([emlp, mlp, rpp], [rpp, emlp], [mlp]):
        colours = [line.get_color() for line in drawn(monkeypatch, runs).axes[0].lines]
        assert colours == [MODEL_COLOURS[run.name] for run in runs]
    other = make_run("other", actuator_scale={"leg_joint": 0.5})
    colours = [line.get_color() for line in drawn(monkeypatch, [rpp, other, emlp]).axes[0].lines]
    assert len(set(colours)) == 3 and colours[2] == MODEL_COLOURS["emlp"]


def test_legends_stand_below_the_axes_and_hide_nothing(make_run, monkeypatch):
    runs = [make_run(f"{kind}{seed}", kind=kind, seed=seed) for kind in ("rpp", "mlp") for seed in (0, 1)]
    figure = drawn(monkeypatch, runs)
    figure.canvas.draw()
    assert figure.get_suptitle().splitlines()[0] == "Walker2d-v5"
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["rpp", "mlp"]
    own = [axes.get_legend() for axes in figure.axes]
    assert own[0] is None and [text.get_text() for text in own[1].get_texts()] == ["policy", "critics"]
    for axes in figure.axes:
        for one in filter(None, [legend, *own]):
            assert not axes.bbox.overlaps(one.get_window_extent())


def test_training_returns_are_drawn_beside_evaluations(make_run, monkeypatch):
    run = make_run("rpp")
    monkeypatch.setattr(plots, "read_metrics", lambda path: [
        {"step": i, "eval/return_mean": 2.0 * i, **({"rollout/return_mean": 1.0 * i} if i else {})} for i in range(4)
    ])  # fmt: skip
    returns = drawn(monkeypatch, [run]).axes[0]
    evaluation, training = returns.lines
    assert (training.get_xdata().tolist(), training.get_ydata().tolist()) == ([1, 2, 3], [1.0, 2.0, 3.0])
    assert evaluation.get_linestyle() == "-" and training.get_linestyle() == "--"
    assert [text.get_text() for text in returns.get_legend().get_texts()] == ["evaluation", "training"]


def test_shares_of_many_sizes_are_on_a_logarithmic_axis():
    assert [panel.scale for panel in PANELS] == ["linear", "log", "log"]


def test_what_can_t_be_drawn_is_named(make_run, tmp_path):
    with pytest.raises(ValueError, match="no runs"):
        learning_curves([], tmp_path / "a.png")
    with pytest.raises(RunFolderError, match="no run at"):
        learning_curves([tmp_path / "absent"], tmp_path / "a.png")
    with pytest.raises(ValueError, match="no metrics yet"):
        learning_curves([make_run("a", steps=())], tmp_path / "a.png")
