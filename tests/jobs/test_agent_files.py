"""`rppdyn report` and `rppdyn figure` of stable-baselines3 files."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from sb3_contrib import RecurrentPPO
from stable_baselines3 import SAC

from rppdyn.agents import RPPSAC
from rppdyn.cli import main
from rppdyn.jobs import building, loading

ENV = "InvertedPendulum-v5"


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    SAC("MlpPolicy", ENV, device="cpu", policy_kwargs=dict(net_arch=[4]), buffer_size=10, seed=0).save(folder / "plain")
    RPPSAC("RPPPolicy", ENV, device="cpu", policy_kwargs=dict(hidden=4), buffer_size=10, seed=0).save(
        folder / "relaxed"
    )
    return folder


@pytest.mark.rendered
def test_report_and_figure(files, monkeypatch, capsys):
    monkeypatch.chdir(files)
    both = ["plain.zip", "relaxed.zip", "--env", ENV, "--trust"]
    assert main(["report", *both, "--out", "page.html"]) == 0
    page = (files / "page.html").read_text()
    assert "Agents from files" in page and "plain.zip" in page and "left-right" in page
    assert main(["figure", *both, "--out", "picture.png", "--json", "numbers.json"]) == 0
    plain, relaxed = json.loads((files / "numbers.json").read_text())
    assert plain["errors"]["left-right"] > 0.01 > 1e-3 > relaxed["errors"]["left-right"]
    assert len(plain["returns"]) == 10 and (files / "picture.png").stat().st_size > 5000


def test_errors_are_of_exploring_states_as_those_of_runs(files, monkeypatch):
    """They were of the deterministic episodes, where a symmetric policy stays and every function looks equivariant."""
    played, measured = [], []
    run, error = building.Evaluator.run, loading.function_equivariance_error
    monkeypatch.setattr(building.Evaluator, "run", lambda self, act: played.append(run(self, act)) or played[-1])
    measure = lambda act, spec, states, bound: measured.append(states) or error(act, spec, states, bound)  # noqa: E731
    monkeypatch.setattr(loading, "function_equivariance_error", measure)
    agent = loading.measure_file(str(files / "plain.zip"), ENV)
    deterministic, exploring = played
    assert agent.returns == deterministic.returns.tolist()
    (states,) = measured
    assert np.isin(states, exploring.observations).all() and not np.isin(states, deterministic.observations).all()
    assert agent.error == pytest.approx(agent.errors["left-right"])


def test_a_policy_that_stands_still_has_no_error(tmp_path):
    """Its error was a number beside the null of a run's."""
    agent = SAC("MlpPolicy", ENV, device="cpu", policy_kwargs=dict(net_arch=[4]), buffer_size=10, seed=0)
    with torch.no_grad():
        for p in agent.actor.mu.parameters():
            p.zero_()
    agent.save(tmp_path / "still")
    measured = loading.measure_file(str(tmp_path / "still.zip"), ENV)
    assert measured.errors == {} and measured.error is None and "vacuous" in measured.note


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["plain.zip"], "loading it runs the code it holds: add --trust"),
        (["plain.zip", "--trust"], "give --env, the environment that it plays in"),
        (
            ["plain.zip", "--trust", "--env", "Hopper-v5"],
            "plain.zip takes no observations of Hopper-v5, (11,): give the environment that it was made for",
        ),
        (["absent.zip", "--trust"], "there is no such file"),
    ],
)
def test_refused_in_one_line(files, monkeypatch, capsys, words, said):
    monkeypatch.chdir(files)
    for verb in (["report"], ["figure", "--out", "no.png"]):
        assert main([*verb, *words]) == 2
        err = capsys.readouterr().err
        assert said in err and err.strip().count("\n") == 0


def test_a_policy_with_a_memory_is_refused(tmp_path, monkeypatch, capsys):
    """Without it every step would begin anew, and returns would be those of another policy."""
    monkeypatch.chdir(tmp_path)
    small = dict(policy_kwargs=dict(lstm_hidden_size=4), n_steps=8, batch_size=8, seed=0, device="cpu")
    RecurrentPPO("MlpLstmPolicy", ENV, **small).save("recurrent")
    for verb in ("evaluate-agent", "equivariance"):
        assert main([verb, "recurrent.zip", "--env", ENV, "--trust"]) == 2
        assert "keeps a memory between steps" in capsys.readouterr().err
