"""The report of fits: its numbers are those of the members, seed by seed, and it stands beside that of agents."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from pages import Page, rows_of
from refusals import refused

from rppdyn.jobs import report
from rppdyn.jobs.config import compose
from rppdyn.jobs.config.command import ReportConfig
from rppdyn.jobs.report import read_groups
from rppdyn.runs import RunFolder, bootstrap_interval, iqm, paired_ratio
from rppdyn.runs.files import write_json
from rppdyn.runs.table import AT_END

ERRORS = np.random.default_rng(0).uniform(0.1, 0.3, size=10)
HORIZON = ["task.horizon=2"]


def make_fit(path, *words, errors, verb="fit_regression", seed=0, equivariance=0.02, finished=True):
    """The folder of a fit, as its verb leaves it, with made-up numbers; nan is a member that diverged."""
    small = [
        "task.train=100",
        "optimiser.batch_size=30",
        "optimiser.epochs=10",
        "marginal_likelihood.burn_in=2",
    ]  # four steps an epoch
    small += HORIZON if verb == "fit_dynamics" else []
    config = compose.composed(verb, [*small, f"seeds={len(errors)}", f"seed={seed}", *words])
    folder = RunFolder.create(path, asdict(config))
    errors = np.asarray(errors, dtype=float)
    own = {"equivariance/error": (equivariance * (1 + errors)).tolist()}
    for epoch in (0, 5, 10):
        record = {"test/error": (errors * (11 - epoch)).tolist(), **own}
        folder.metrics.append(4 * epoch, {**record, "test/error_mean": 1.0})
    if not finished:
        return folder.path
    test = {"test/error": errors.tolist(), "equivariance/h0": own["equivariance/error"], **own}
    if verb == "fit_dynamics":
        test |= {"rollout/error": (2 * errors).tolist(), "rollout/diverged": np.isnan(errors).astype(float).tolist()}
        curves = [None if np.isnan(e) else (e * np.arange(1, 11)).tolist() for e in errors]
        names = ("error", "energy_drift", "momentum_drift")
        write_json(folder.path / "rollouts.json", {"times": np.arange(11) / 5} | dict.fromkeys(names, curves))
    folder.write_result({"test": {k: [None if np.isnan(x) else x for x in v] for k, v in test.items()}})
    return folder.path


def make_agent(path):
    config = compose.composed("train_agent", ["env=InvertedPendulum-v5", "total_steps=200"])
    folder = RunFolder.create(path, asdict(config))
    who = {f"equivariance/{who}{name}": 0.1 for who in ("policy", "critic") for name in ("", "/left-right")}
    parts = {f"pathway/{who}_{part}": 0.2 for who in ("actor", "critic")
             for part in ("equivariant_norm", "free_norm", "free_share")}  # fmt: skip
    for step in (0, 100):
        folder.metrics.append(step, {"eval/return_mean": 1.0 + step} | who | parts)
    return folder.path


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    root = tmp_path_factory.mktemp("fits")
    rpp = [make_fit(root / f"rpp{k}", "model=rpp", errors=ERRORS[5 * k : 5 * k + 5], seed=5 * k) for k in (0, 1)]
    lost = [*1.5 * ERRORS[:7], np.nan, *1.5 * ERRORS[8:]]
    dynamics = dict(verb="fit_dynamics", errors=ERRORS[:4])
    return [
        *rpp,
        make_fit(root / "mlp", "model=mlp", errors=lost),
        make_fit(root / "emlp", "model=emlp", errors=ERRORS[:3], equivariance=1e-16, finished=False),
        make_fit(root / "hnn", "model=rpp_hnn", **dynamics),
        make_fit(root / "ode", "model=mlp_ode", **dynamics | dict(errors=[0.5, np.nan, 0.4, 0.3])),
        make_agent(root / "agent"),
    ]


@pytest.fixture(scope="module")
def text(runs, tmp_path_factory):
    """The page of all of them."""
    return written(runs, tmp_path_factory.mktemp("page"))


def written(runs, tmp_path):
    return report.run(ReportConfig(runs=list(map(str, runs)), out=str(tmp_path / "report.html"))).read_text("utf-8")


def shown(values):
    values = [value for value in values if not np.isnan(value)]
    low, high = bootstrap_interval(values)
    return f"{float(iqm(values)):.3g} [{float(low):.3g}, {float(high):.3g}]"


# -- numbers ----------------------------------------------------------------------------------------------------------


def test_members_of_several_folders_are_seeds_of_one_configuration(runs):
    groups = {group.label: group for group in read_groups(list(map(str, runs[:4])))}
    assert [run.seed for run in groups["rpp"].runs] == list(range(10)) and set(groups) == {"rpp", "mlp", "emlp"}
    assert [run.last(AT_END + "test/error") for run in groups["rpp"].runs] == ERRORS.tolist()
    curve = groups["rpp"].curve("test/error")
    assert curve.steps.tolist() == [0, 5, 10]  # epochs
    assert curve.centre == pytest.approx([float(iqm(ERRORS * scale)) for scale in (11, 6, 1)])
    kept = 1.5 * np.delete(ERRORS, 7)  # one of the others diverged
    assert groups["mlp"].curve("test/error").centre[-1] == pytest.approx(float(iqm(kept)))
    assert groups["mlp"].final("test/error").each == pytest.approx(kept.tolist())


def test_the_numbers_are_those_of_the_members(text):
    glance = {(row[0], row[1]): row[2:] for row in rows_of(text, "Results of fits so far")}
    assert glance["rpp", "inertia"][:3] == ["10", "10", shown(ERRORS)]
    emlp = glance["emlp", "inertia"]
    assert emlp[:2] == ["3", "10 of 10, unfinished"] and emlp[3] == "–"  # no rollouts
    assert glance["rpp_hnn", "windy_pendulum"][2:4] == [shown(ERRORS[:4]), shown(2 * ERRORS[:4])]
    tested = {row[0]: row[1:] for row in rows_of(text, "At the end on inertia")}
    assert tested["rpp"][0] == shown(ERRORS)
    kept = np.delete(1.5 * ERRORS, 7)
    assert tested["mlp"][0] == f"{shown(kept)} 1 of 10 diverged" and len(tested["emlp"][-1].split(", ")) == 3
    dynamics = {row[0]: row[1:] for row in rows_of(text, "At the end on windy_pendulum")}
    assert dynamics["mlp_ode"][1].startswith("0.8 1, 0.8, 0.6 ")  # of three seeds each, and no interval
    generators = rows_of(text, "Equivariance errors by generator on inertia")
    assert [row[:2] for row in generators] == [["rpp", "h0"], ["mlp", "h0"]]
    assert generators[0][2] == shown(0.02 * (1 + ERRORS))


def test_what_diverged_is_said_where_results_are_read(tmp_path, monkeypatch):
    dynamics = dict(verb="fit_dynamics", finished=True)
    lost = make_fit(tmp_path / "ode", "model=mlp_ode", errors=[np.nan] * 3, **dynamics)
    some = make_fit(tmp_path / "hnn", "model=mlp_hnn", errors=[0.1, np.nan, 0.1], **dynamics)
    going = make_fit(tmp_path / "going", "model=emlp_hnn", errors=[np.nan] * 2, verb="fit_dynamics", finished=False)
    partly = RunFolder.open(some)
    partly.write_result({"test": partly.result()["test"] | {"rollout/diverged": [0.25, 1.0, 0.0]}})
    drawn, draw = [], report.draw_panels
    monkeypatch.setattr(report, "draw_panels", lambda *a, **k: drawn.append(draw(*a, **k)) or drawn[-1])
    text = written([lost, some, going], tmp_path)
    glance = {row[0]: row[1:] for row in rows_of(text, "Results of fits so far")}
    assert glance["mlp_ode"][:4] == ["3", "10", "3 of 3 diverged", "3 of 3 diverged"]
    assert glance["mlp_hnn"][:3] == ["3", "10", "0.1 1 of 3 diverged"]  # both others have the same: no interval
    assert glance["emlp_hnn"][:3] == ["2", "10 of 10, unfinished", "2 of 2 diverged"]
    tested = rows_of(text, "At the end on windy_pendulum")
    assert [row[2] for row in tested] == ["3 of 3 diverged", "0.2 1 of 3 diverged 12.5 % of rollouts diverged", "–"]
    words = "mlp_ode: 3 of 3 diverged\nmlp_hnn: 2 of 3 seeds"
    training, _, along = drawn
    assert training.axes[0].get_xlabel() == f"epochs\n{words}\nemlp_hnn: 2 of 2 diverged"
    assert [axes.get_xlabel() for axes in along.axes] == [f"time, s\n{words}"] * 3


def test_ratios_are_taken_seed_by_seed(text):
    rows = rows_of(text, "Ratios of errors on inertia")
    assert [row[0] for row in rows] == ["rpp to mlp"]  # the emlp has not finished
    assert rows[0][1] == "0.67"  # of nine pairs, each 1 / 1.5, however different the seeds are
    (row,) = rows_of(text, "Ratios of errors on windy_pendulum")
    first, second = ERRORS[[0, 2, 3]], np.array([0.5, 0.4, 0.3])
    each = ", ".join(f"{ratio:.2f}" for ratio in first / second)
    assert row[1] == f"{paired_ratio(first, second)[0]:.2f} {each}"


def test_only_differences_that_the_interval_supports_are_bold(tmp_path):
    noise = np.exp(np.random.default_rng(1).normal(size=10))
    made = [
        make_fit(tmp_path / "a", "model=rpp", errors=ERRORS),
        make_fit(tmp_path / "b", "model=mlp", errors=2 * ERRORS),
        make_fit(tmp_path / "c", "model=emlp", errors=ERRORS * noise),
    ]
    text = written(made, tmp_path)
    assert re.findall(r"<strong>(.*?)</strong>", text)[0] == "0.50"
    by_pair = {row[0]: row[1] for row in rows_of(text, "Ratios of errors on inertia")}
    low, high = map(float, re.findall(r"[\d.]+", by_pair["rpp to emlp"])[1:])
    assert low < 1 < high and text.count("<strong>") < 3
    few = [make_fit(tmp_path / f"few{k}", f"model={m}", errors=k * ERRORS[:3]) for k, m in ((1, "rpp"), (2, "mlp"))]
    text = written(few, tmp_path)
    assert rows_of(text, "Ratios of errors on inertia")[0][1] == "0.50" and "<strong>" not in text


def test_tasks_with_other_truths_are_apart(tmp_path):
    made = [
        make_fit(tmp_path / f"{k2}", f"task.k2={k2}", "model=rpp_hnn", verb="fit_dynamics", errors=ERRORS[:2])
        for k2 in (1, 2)
    ]
    groups = read_groups(list(map(str, made)))
    assert [(group.subject, group.label) for group in groups] == [
        ("windy_pendulum k2=1.0", "rpp_hnn"),
        ("windy_pendulum k2=2.0", "rpp_hnn"),
    ]
    assert "Ratios of errors" not in written(made, tmp_path)
    words = ("dataset=some/data-v0", "task.chunk=5")
    lengths = [make_fit(tmp_path / f"l{k}", *words, f"task.length={k}", verb="fit_transition", errors=ERRORS[:2])
               for k in (30, 50)]  # fmt: skip
    assert [group.subject for group in read_groups([*map(str, lengths)])] == [
        "some-data-v0 length=30",
        "some-data-v0 length=50",
    ]
    own = [
        make_fit(tmp_path / k, "task=own", f"task.data={k}/log.csv", "model=mlp", errors=ERRORS[:2]) for k in ("a", "b")
    ]
    assert {g.subject for g in read_groups([*map(str, own)])} == {f"log data={k}/log.csv" for k in ("a", "b")}
    group = make_fit(tmp_path / "g", "task.group=SO(3)", errors=ERRORS[:2])
    assert [g.label for g in read_groups([str(make_fit(tmp_path / "o", errors=ERRORS[:2])), str(group)])] == [
        "rpp group=null",
        "rpp group=SO(3)",
    ]


def test_a_certified_variance_is_a_number(tmp_path):
    words = ("dataset=some/data-v0", "model.free_variance=certified", "model.certified_variance=0.0123")
    run = make_fit(tmp_path / "run", *words, verb="fit_transition", errors=ERRORS[:2])
    assert "0.0123" in written([run], tmp_path)


def test_priors_and_runs(runs, text):
    priors = {tuple(row[:3]): row[3] for row in rows_of(text, "Variances of the priors on inertia")}
    assert (priors["rpp", "network", "equivariant"], priors["rpp", "likelihood", "noise"]) == ("105", "10−4")
    assert priors["mlp", "network", "equivariant"] == priors["emlp", "network", "free"] == "no such pathway"
    every = {row[-1]: row for row in rows_of(text, "Every run")}
    assert len(every) == len(runs)
    assert every[str(runs[1].resolve())][2:4] == ["5 to 9", "finished"]
    assert every[str(runs[3].resolve())][3] == "unfinished, at epoch 10 of 10"


def test_variances_of_a_chain_are_listed_and_learned_ones_are_those_at_the_end(tmp_path):
    learned = make_fit(tmp_path / "learned", "objective=marginal_likelihood", errors=ERRORS[:2], finished=False)
    values = {"log10_variance/head.free": [-7.0, -7.0], "effective/head.free": [3.0, 5.0]}
    RunFolder.open(learned).metrics.append(44, {"test/error": [0.1, 0.2], **values})
    chain = ('model.groups=["O(3)","O2eR3()"]', "model.variances=[1,1e-4,0]")
    text = written([learned, make_fit(tmp_path / "chain", *chain, errors=ERRORS[:2])], tmp_path)
    (caption,) = re.findall("<caption>(Learned variances on inertia.*?)</caption>", text)
    (row,) = rows_of(text, caption)
    assert row[0] == "head.free" and row[1].startswith("10−7") and row[2].startswith("4 ")
    rows = [row for row in rows_of(text, "Variances of the priors on inertia") if row[1] == "network"]
    assert ["1", "10−4", "no such pathway"] in ([row[3] for row in rows][:3], [row[3] for row in rows][-3:])


# -- the page ---------------------------------------------------------------------------------------------------------


@pytest.mark.rendered
def test_agents_and_fits_on_one_page(runs, tmp_path, monkeypatch):
    text = written(runs, tmp_path)
    page = Page(text)
    headings = [content for _, content in page.all("h2")]
    assert headings[:2] == ["At a glance", "What was trained"]
    assert headings[2:] == ["inertia", "windy_pendulum", "InvertedPendulum-v5", "Runs"]
    ids = [attributes["id"] for _, attributes in page.found if "id" in attributes]
    assert len(ids) == len(set(ids))
    pictures = [attributes for attributes, _ in page.all("svg") if "aria-hidden" not in attributes]
    assert (
        len(pictures) == len(page.all("figure")) == 1 + 4 + 2 * 2 + 1
    )  # at a glance, of agents, training and end, along rollouts
    assert all(p["role"] == "img" and len(p["aria-label"]) > 30 for p in pictures)
    assert "far below: emlp" in text  # its line at rounding would flatten the others
    monkeypatch.setattr(report, "picture", lambda *arguments: "")  # the next page's are not looked at
    of_fits = written(runs[:6], tmp_path)
    assert "InvertedPendulum" not in of_fits and "Learning curves" not in of_fits


def test_rollouts_of_dynamics_are_over_time(tmp_path):
    """Whatever is known beside their errors: data of one's own have no true energy."""
    path = make_fit(tmp_path / "run", errors=ERRORS[:3], verb="fit_dynamics")
    file = Path(path) / "rollouts.json"
    content = json.loads(file.read_text())
    file.write_text(json.dumps({name: content[name] for name in ("times", "error")}))
    text = written([path], tmp_path)
    assert "relative error over time, s: " in text and "over steps" not in text
    file.write_text("{")
    with refused("rollouts.json is damaged"):
        written([path], tmp_path)
