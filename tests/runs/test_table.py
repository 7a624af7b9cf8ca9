"""Runs as a table: curves and ends over seeds, and labels that say in what configurations differ."""

from __future__ import annotations

from math import nan
from pathlib import Path

import numpy as np
import pytest

from rppdyn.runs import RunFolderError, bootstrap_interval, iqm
from rppdyn.runs.figures import MODEL_COLOURS
from rppdyn.runs.table import AT_END, Run, flatten, group_runs, split_subjects


def make(seed=0, *, name="rpp", subject="Ant-v5", path=None, values=None, **settings):
    config = {"model.kind": name, "agent.gamma": 0.99, **{key.replace("__", "."): v for key, v in settings.items()}}
    values = {"return": {0: 1.0 + seed, 10: 2.0 + seed}} if values is None else values
    path = Path(path or f"{subject}{name}{seed}{settings}")
    return Run(path, "train-agent", subject, name, seed, 20, 10, config, values)


def labels(*runs, **options):
    return [group.label for group in group_runs(runs, **options)]


def test_seeds_are_one_group_and_models_are_several():
    groups = group_runs([make(seed, name=name) for name in ("rpp", "mlp") for seed in range(3)])
    assert {group.label: len(group.runs) for group in groups} == {"rpp": 3, "mlp": 3}


@pytest.mark.parametrize(
    ("others", "expected"),
    [
        ([{"agent__augment": False}, {"agent__augment": True}], ["rpp", "rpp augment"]),
        ([{}, {"env__actuator_scale__leg": 0.5}], ["rpp leg=stock", "rpp leg=0.5"]),
        ([{"agent": "sac"}, {"agent": "ppo", "agent__ppo__rate": 1e-3}], ["rpp agent=sac", "rpp agent=ppo"]),
        ([{"agent__gamma": 0.9}, {"name": "mlp", "model__hidden": 8}], ["rpp gamma=0.9", "mlp gamma=0.99"]),
        ([{"model__hidden": 8}, {"model__hidden": 16}, {"name": "mlp"}], ["rpp hidden=8", "rpp hidden=16", "mlp"]),
        ([{}, {"subject": "Swimmer-v5", "agent__gamma": 0.9}], ["rpp", "rpp"]),
        ([{"task__group": None}, {"task__group": "SO(3)"}], ["rpp group=null", "rpp group=SO(3)"]),
    ],
)
def test_labels_say_what_differs_on_one_subject(others, expected):
    assert labels(*(make(**other) for other in others)) == expected


def test_a_long_label_keeps_what_tells_configurations_apart():
    specs = [{"env__spec": f"/{folder}/{'wrong' * 8}.json"} for folder in "ab"]
    others = [make(agent__a=1, name="mlp"), *(make(agent__a=2, agent__b=tau, model__tau=tau) for tau in (1, 2))]
    assert labels(*others, *(make(agent__a=2, **spec) for spec in specs[:1]), max_length=14)[:3] == [
        "mlp a=1",
        "rpp tau=1",
        "rpp tau=2",
    ]
    assert labels(*(make(**spec) for spec in specs), max_length=14) == [
        f"rpp spec={spec['env__spec']}" for spec in specs
    ]
    named = [make(env__spec=f"/a/{name}.json") for name in ("x" * 9, "y" * 9)]
    assert labels(*named, max_length=14) == [f"rpp spec={letter * 9}.json" for letter in "xy"]


def test_one_seed_is_not_two():
    with pytest.raises(RunFolderError, match=r"a and b both have seed 3 of one configuration: name one of them"):
        group_runs([make(3, path="a"), make(3, path="b")])


def test_tasks_with_other_truths_are_other_subjects():
    keys = {"train-agent": ("task.k2",)}
    runs = split_subjects([make(task__k2=k2, subject="pendulum") for k2 in (1.0, 2.0)], keys)
    assert [(group.subject, group.label) for group in group_runs(runs)] == [
        ("pendulum k2=1.0", "rpp"),
        ("pendulum k2=2.0", "rpp"),
    ]


def test_a_curve_has_the_steps_that_all_runs_have():
    runs = [make(0), make(2, values={"return": {0: 2.0, 10: 6.0, 20: 9.0}, "other": {0: 1.0}})]
    (group,) = group_runs(runs)
    curve = group.curve("return")
    assert curve.steps.tolist() == [0, 10] and curve.centre.tolist() == [1.5, 4.0]
    assert curve.each.tolist() == [[1.0, 2.0], [2.0, 6.0]]
    assert group.curve("absent") is None and group.curve("other") is None and group.final("absent") is None
    assert (group.final("return").each, group.final("return").step) == ([2.0, 6.0], 10)


def test_runs_that_diverged_are_left_out_and_counted():
    values = [{"error": {0: 1.0, 10: nan if seed == 2 else 0.1 * (seed + 1)}} for seed in range(6)]
    (group,) = group_runs([make(seed, values=value) for seed, value in enumerate(values)])
    kept, final = 0.1 * np.array([1, 2, 4, 5, 6]), group.final("error")
    assert group.lost("error") == final.lost == 1 and final.each == pytest.approx(kept)
    assert final.centre == pytest.approx(float(iqm(kept)))
    assert final.interval == pytest.approx([float(x) for x in bootstrap_interval(kept)])
    (lost,) = group_runs([make(values={"error": {0: 1.0, 10: nan}})])
    assert lost.curve("error") is None and (lost.final("error").each, lost.final("error").lost) == ([], 1)
    (some,) = group_runs([make(values={"error": {0: 1.0, 10: nan}}), make(1, values={})])
    assert some.final("error") is None  # the other one is on its way


def test_measures_of_finished_models_come_before_those_of_training():
    each = [
        make(seed, values={"error": {10: 1.0}} | ({AT_END + "error": {10: 2.0}} if seed else {})) for seed in (0, 1)
    ]
    (group,) = group_runs(each)
    assert group.final("error").each == [2.0] and len(group.curve("error").each) == 2


def test_a_model_has_one_colour_whatever_stands_beside_it():
    emlp, mlp, rpp = (make(name=name) for name in ("emlp", "mlp", "rpp"))
    for runs in ([emlp, mlp, rpp], [rpp, emlp], [mlp]):
        assert [group.colour for group in group_runs(runs)] == [MODEL_COLOURS[run.name] for run in runs]
    groups = group_runs([rpp, make(agent__gamma=0.9), emlp])
    assert len({group.colour for group in groups}) == 3 and groups[2].colour == MODEL_COLOURS["emlp"]
    looks = [(group.colour, group.line) for group in group_runs([make(agent__gamma=i) for i in range(9)])]
    assert len(set(looks)) == 9 and looks[0] == (looks[7][0], "-") and looks[7][1] == "--"
    first, second = group_runs([make(subject="a"), make(subject="b")])
    assert first.colour == second.colour


def test_seeds_and_folders_tell_no_runs_apart():
    config = {
        "seed": 1,
        "run_dir": "x",
        "workers": True,
        "logger": "wandb",
        "model": {"kind": "rpp", "hidden": 8},
        "task": {"generators": [[[0.0, -1.0], [1.0, 0.0]]], "windows": 7},
        "env": {"kwargs": {}},
    }
    assert flatten(config) == {"model.kind": "rpp", "model.hidden": 8}
