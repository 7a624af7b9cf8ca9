"""`agent=crossq` by the command line: killed and resumed it ends bit for bit as it would have, and its run can be read."""

from __future__ import annotations

import signal

import pytest
import torch
from forked import start_code

from rppdyn.agents import RPPCrossQ
from rppdyn.jobs import playing, train_agent
from rppdyn.jobs.config import compose
from rppdyn.jobs.config.base import ConfigError
from rppdyn.jobs.config.command import EvaluateAgentConfig
from rppdyn.runs import RunFolder, read_metrics

WORDS = [
    "env=InvertedPendulum-v5", "agent=crossq", "model=emlp", "device=cpu", "threads=1", "model.hidden=8", "agent.batch_size=8",
    "agent.learning_starts=20", "agent.buffer_size=200", "evaluation.every=30", "evaluation.episodes=1",
    "evaluation.states=16", "checkpoint_every=30", "total_steps=90",
]  # fmt: skip
XQC = ["agent.crossq.critic_head=categorical", "agent.crossq.bins=11", "agent.crossq.weight_norm=true"]

KILLED = """
import os, signal, sys
from rppdyn.jobs import train_agent
from rppdyn.jobs.config import compose
from rppdyn.runs import Session

save = Session.checkpoint
def checkpoint(session, step, *rest):
    save(session, step, *rest)
    if step >= 60:
        os.kill(os.getpid(), signal.SIGKILL)
Session.checkpoint = checkpoint
train_agent.run(compose.composed("train_agent", sys.argv[1:]))
"""


def configured(run, *words):
    return compose.composed("train_agent", [*WORDS, *words, f"run_dir={run}"])


@pytest.mark.parametrize(("words", "total"), [(["total_steps=70"], 70), (XQC, 90)], ids=["CrossQ", "XQC"])
def test_killed_and_resumed_bit_for_bit(tmp_path, words, total):
    whole = train_agent.run(configured(tmp_path / "whole", *words))
    process = start_code(KILLED, *WORDS, *words, f"run_dir={tmp_path / 'killed'}", folder=tmp_path)
    process.communicate(timeout=300)
    assert process.returncode == -signal.SIGKILL
    resumed = train_agent.run(configured(tmp_path / "killed", *words), resume=True)
    assert resumed.steps == whole.steps == total
    expected, found = (RunFolder.open(tmp_path / name) for name in ("whole", "killed"))
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
        (["agent.tau=0.01"], r"agent.tau=0.01: agent=crossq has no targets"),
        (["agent.crossq.value_range=[1,0]"], r"agent.crossq.value_range"),
        (["agent=sac", "agent.crossq.bins=5"], r"agent.crossq.bins=5: it is of agent=crossq alone"),
    ],
)
def test_what_it_refuses(words, message):
    with pytest.raises(ConfigError, match=message):
        compose.composed("train_agent", ["agent=crossq", *words])
