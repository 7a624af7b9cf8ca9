"""Trained agents that come with the package."""

from __future__ import annotations

import json
import shutil
from functools import partial
from pathlib import Path

import pytest
import torch

from rppdyn import cli
from rppdyn.agents import RPPSAC, pretrained_agents, pretrained_card
from rppdyn.agents import _export as export
from rppdyn.envs import make_env
from rppdyn.jobs.building import Evaluator, policy_of

NAMES = sorted(pretrained_agents())
WINDY = "rppdyn/WindyPendulum-v0"


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """A copy of the files, to be damaged."""
    shutil.copytree(export.FOLDER, tmp_path / "weights")
    monkeypatch.setattr(export, "FOLDER", tmp_path / "weights")
    return tmp_path / "weights"


@pytest.mark.parametrize("name", NAMES)
def test_a_card_says_where_it_is_from(name):
    card = pretrained_card(name)
    assert card["training"]["commit"] and "train-agent" in card["training"]["command"]
    assert len(card["evaluation"]["returns"]) == 10
    assert sum(card["evaluation"]["returns"]) / 10 == pytest.approx(pretrained_agents()[name]["return_mean"], abs=0.01)
    assert (export.FOLDER / pretrained_agents()[name]["file"]).stat().st_size < 2_000_000
    assert card["certificate"]["verdict"]["dynamics"] in ("exact", "approximate")


def test_policy_and_agent_are_one_and_it_goes_on_learning():
    agent = RPPSAC.pretrained(WINDY, seed=0, learning_starts=0, batch_size=8)
    policy, settings = export.pretrained_policy(WINDY), pretrained_card(WINDY)["settings"]
    assert agent.get_env().envs[0].unwrapped.pendulum.wind == 0.03 and agent.gamma == settings["gamma"]
    observation = agent.get_env().reset()
    assert (
        agent.predict(observation, deterministic=True)[0] == policy.predict(observation, deterministic=True)[0]
    ).all()
    a, b = agent.policy.critic.state_dict(), agent.policy.critic_target.state_dict()
    assert all(torch.equal(a[key], b[key]) for key in a)
    before = [p.clone() for p in agent.policy.actor.parameters()]
    agent.learn(4)
    assert any(not torch.equal(a, b) for a, b in zip(before, agent.policy.actor.parameters(), strict=True))
    agent.get_env().close()


def test_a_fixed_temperature_is_stored_and_may_be_learned_later(elsewhere, make_agent):
    file, known = elsewhere / "Fixed.safetensors", pretrained_agents()
    digest = export.write_pretrained(make_agent("mlp", make_env("Reacher-v5"), ent_coef=0.25), file, {})
    known["Fixed"] = {"file": file.name, "sha256": digest}
    (elsewhere / export.MANIFEST).write_text(json.dumps(known))
    assert RPPSAC.pretrained("Fixed", make_env("Reacher-v5")).ent_coef == 0.25
    assert (
        float(RPPSAC.pretrained("Fixed", make_env("Reacher-v5"), ent_coef="auto_0.5").log_alpha.detach().exp()) == 0.5
    )


def test_it_plays_the_episodes_of_its_card():
    card = pretrained_card(WINDY)
    evaluator = Evaluator(partial(export.pretrained_env, card), 2, card["evaluation"]["seeds"][0])
    returns = evaluator.run(policy_of(export.pretrained_policy(WINDY))).returns
    evaluator.close()
    assert returns == pytest.approx(card["evaluation"]["returns"][:2], rel=1e-2)  # other versions round differently


def test_unknown_and_damaged(elsewhere):
    with pytest.raises(ValueError, match=r"no pretrained agent 'Walker'; there are Reacher-v5"):
        RPPSAC.pretrained("Walker")
    file = elsewhere / pretrained_agents()["Reacher-v5"]["file"]
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(ValueError, match="is not the file that rppdyn was released with"):
        pretrained_card("Reacher-v5")


def test_a_file_that_is_no_safetensors_is_named(elsewhere):
    file = elsewhere / pretrained_agents()["Reacher-v5"]["file"]
    torch.save({"a": torch.zeros(1)}, file)
    known = pretrained_agents()
    known["Reacher-v5"]["sha256"] = export._digest(file)
    (elsewhere / export.MANIFEST).write_text(json.dumps(known))
    with pytest.raises(ValueError, match=r"can't be read \(SafetensorError\)"):
        pretrained_card("Reacher-v5")


def test_commands(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["evaluate-agent", f"pretrained:{WINDY}", "--episodes", "1", "--seed", "30000"]) == 0
    assert f"pretrained:{WINDY}: pretrained agent" in capsys.readouterr().out
    returns = json.loads((tmp_path / "WindyPendulum-v0.evaluation.json").read_text())["returns"]
    assert returns == pytest.approx(pretrained_card(WINDY)["evaluation"]["returns"][:1], rel=1e-2)
    assert cli.main(["evaluate-agent", "pretrained:Nobody-v0"]) == 2
    assert "no pretrained agent 'Nobody-v0'" in capsys.readouterr().err
    assert cli.main(["evaluate-agent", f"pretrained:{WINDY}", "--env", "Ant-v5"]) == 2


def test_the_page_has_the_returns():
    page = (Path(__file__).parents[2] / "docs" / "pretrained.md").read_text(encoding="utf-8")
    for name, line in pretrained_agents().items():
        assert f"| `{name}` |" in page and f"| {line['return_mean']:.1f} ± {line['return_std']:.1f} |" in page
