"""`agent=crossq` by the command line: stopped and resumed it ends bit for bit as it would have, and its run can be read."""

from __future__ import annotations

import pytest
import torch

from rppdyn.agents import RPPCrossQ
from rppdyn.jobs import playing, train_agent
from rppdyn.jobs.config import compose
from rppdyn.jobs.config.base import ConfigError
from rppdyn.jobs.config.command import EvaluateAgentConfig
from rppdyn.runs import RunFolder, Session, read_metrics

WORDS = [
    "env=InvertedPendulum-v5", "agent=crossq", "model=emlp", "device=cpu", "threads=1", "model.hidden=8", "agent.batch_size=8",
    "agent.learning_starts=15", "agent.buffer_size=200", "evaluation.every=30", "evaluation.episodes=1", "evaluation.states=16",
    "checkpoint_every=30", "total_steps=50", "agent.crossq.critic_head=categorical", "agent.crossq.bins=11",
    "agent.crossq.weight_norm=true",
]  # fmt: skip


def configured(run):
    return compose.composed("train_agent", [*WORDS, f"run_dir={run}"])


def test_stopped_and_resumed_bit_for_bit(tmp_path, monkeypatch):
    whole = train_agent.run(configured(tmp_path / "whole"))
    save = Session.checkpoint

    def checkpoint(session, step, *rest):
        save(session, step, *rest)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Session, "checkpoint", checkpoint)
        train_agent.run(configured(tmp_path / "stopped"))
    resumed = train_agent.run(configured(tmp_path / "stopped"), resume=True)
    assert resumed.steps == whole.steps == 50
    expected, found = (RunFolder.open(tmp_path / name) for name in ("whole", "stopped"))
    policies = [torch.load(folder.policy_file, weights_only=True) for folder in (expected, found)]
    assert policies[0].keys() == policies[1].keys()
    assert all(torch.equal(value, policies[1][name]) for name, value in policies[0].items())
    assert read_metrics(found.metrics.path) == read_metrics(expected.metrics.path)
    assert not any(name.startswith("critic_target") for name in policies[0])
    assert type(RPPCrossQ.load(found.model_file)) is RPPCrossQ
    assert len(playing.evaluate(EvaluateAgentConfig(run=str(found.path), episodes=1)).returns) == 1


@pytest.mark.parametrize(
    "words, message",
    [
        (["agent.tau=0.01"], r"agent.tau=0.01: agent=crossq has no such setting"),
        (["agent.crossq.value_range=[1,0]"], r"agent.crossq.value_range"),
        (
            ["agent.crossq.value_range=[-5,0]"],
            r"agent.crossq.value_range=\[-5,0\]: give a number below 0 and one above",
        ),
        (["agent=sac", "agent.crossq.bins=5"], r"agent.crossq.bins=5: it is of agent=crossq alone"),
    ],
)
def test_what_it_refuses(words, message):
    with pytest.raises(ConfigError, match=message):
        compose.composed("train_agent", ["agent=crossq", *words])
