"""Runs in one picture: agents' learning curves, fits' equivariance errors, and their numbers beside it."""

from __future__ import annotations

import json
from dataclasses import asdict

import matplotlib.image
import pytest

from rppdyn.cli import main
from rppdyn.jobs import figure
from rppdyn.jobs.config import compose
from rppdyn.jobs.config.command import FigureConfig
from rppdyn.jobs.plots import learning_curves
from rppdyn.runs import RunFolder, RunFolderError

pytestmark = pytest.mark.rendered


def make_agent(path, *words, steps=(0, 100)):
    config = compose.composed("train_agent", ["env=InvertedPendulum-v5", "total_steps=100", *words])
    folder = RunFolder.create(path, asdict(config))
    for step in steps:
        folder.metrics.append(step, {"eval/return_mean": 10.0 + step, "equivariance/policy": 0.1})
    return str(path)


def make_fit(path, *words, verb="fit_regression", steps=(0, 4, 8)):
    folder = RunFolder.create(path, asdict(compose.composed(verb, ["task.train=100", "seeds=2", *words])))
    for step in steps:
        folder.metrics.append(step, {"equivariance/error": [0.1 + step, 0.2 + step]})
    return str(path)


def test_agents_are_drawn_as_learning_curves_with_their_numbers_beside(tmp_path):
    runs = [
        make_agent(tmp_path / f"{kind}{seed}", f"model={kind}", f"seed={seed}")
        for kind in ("rpp", "mlp")
        for seed in (0, 1)
    ]
    config = FigureConfig(runs, out=str(tmp_path / "agents.png"), json=str(tmp_path / "agents.json"))
    picture = figure.run(config)
    assert picture.read_bytes() == learning_curves(runs, tmp_path / "same.png").read_bytes()
    assert matplotlib.image.imread(picture).std() > 0.02
    kept = json.loads((tmp_path / "agents.json").read_text())
    assert [(run["run"], run["config"]["seed"]) for run in kept] == [("rpp0", 0), ("rpp1", 1), ("mlp0", 0), ("mlp1", 1)]
    assert [record["eval/return_mean"] for record in kept[0]["metrics"]] == [10.0, 110.0]


def test_fits_of_any_kind_are_drawn_by_their_equivariance_errors(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    runs = [make_fit("a"), make_fit("b", "task=modified_inertia"), make_fit("c", verb="fit_image")]
    assert main(["figure", *runs, "--out", "fits.svg"]) == 0
    assert capfd.readouterr() == ("fits.svg\n", "")
    text = (tmp_path / "fits.svg").read_text()
    for label in ("inertia, rpp (2 members)", "modified_inertia, rpp (2 members)", "digit, f_fc+conv (2 members)"):
        assert f"<!-- {label} -->" in text
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "c", "fits.svg"]


def test_a_run_without_metrics_yet_is_left_out(tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    measured, fresh = make_agent("measured"), make_agent("fresh", "seed=1", steps=())
    assert main(["figure", "--out", "all.png", "--json", "all.json", fresh, measured]) == 0
    assert "fresh has no metrics yet, and is left out" in caplog.text
    assert [run["run"] for run in json.loads((tmp_path / "all.json").read_text())] == ["measured"]
    assert (tmp_path / "all.png").read_bytes() == learning_curves([measured], tmp_path / "one.png").read_bytes()


def test_bad_input_is_one_line_and_nothing_is_made(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    agent, fit = make_agent("agent"), make_fit("fit")
    unlike = RunFolder.create(tmp_path / "unlike", asdict(compose.composed("fit_regression", [])))
    unlike.config_file.write_text("[")
    new_agent, new_fit = make_agent("new_agent", steps=()), make_fit("new_fit", steps=())
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
        figure.run(FigureConfig(["absent"], out="out.png"))


@pytest.mark.parametrize("numbers", ["", "numbers", "run/metrics.jsonl", "f.png"])
def test_numbers_are_written_to_json_and_nothing_else(numbers):
    with pytest.raises(ValueError, match=rf"--json {numbers}: must end in .json"):
        FigureConfig(["run"], out="f.png", json=numbers)
