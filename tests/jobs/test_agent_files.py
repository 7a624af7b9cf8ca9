"""`rppdyn report` and `rppdyn figure` of stable-baselines3 files."""

from __future__ import annotations

import json

import pytest
from sb3_contrib import RecurrentPPO
from stable_baselines3 import SAC

from rppdyn.agents import RPPSAC
from rppdyn.cli import main

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
