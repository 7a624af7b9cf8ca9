"""TensorBoard has each value once: under one name, and once at a step."""

from __future__ import annotations

from collections import Counter

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from rppdyn.jobs import train_agent
from rppdyn.jobs.config import compose
from rppdyn.runs import RunFolder

WORDS = (
    "env=Hopper-v5", "device=cpu", "threads=1", "model.hidden=8", "agent.learning_starts=20", "agent.batch_size=8",
    "agent.buffer_size=400", "evaluation.every=60", "evaluation.episodes=1", "evaluation.states=16", "checkpoint_every=60",
)  # fmt: skip


def scalars(run) -> dict[str, list[tuple[int, float]]]:
    events = EventAccumulator(str(RunFolder.open(run).events)).Reload()
    return {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


@pytest.fixture(scope="module")
def resumed(tmp_path_factory):
    """A run that was killed as its second checkpoint had been written, whose evaluation then came, and resumed."""
    run = tmp_path_factory.mktemp("events") / "run"
    config = compose.composed("train_agent", [*WORDS, "total_steps=180", f"run_dir={run}"])
    record, patch = train_agent.AgentRun._record, pytest.MonkeyPatch()

    def kill(self, wait):
        record(self, wait)
        if self.session.recorded == 120:
            raise KeyboardInterrupt

    patch.setattr(train_agent.AgentRun, "_record", kill)
    with pytest.raises(KeyboardInterrupt):
        train_agent.run(config)
    patch.undo()
    train_agent.run(config, resume=True)
    return scalars(run)


def test_no_value_is_written_twice_at_a_step(resumed):
    twice = {
        tag: [step for step, n in Counter(s for s, _ in points).items() if n > 1] for tag, points in resumed.items()
    }
    assert not {tag: steps for tag, steps in twice.items() if steps}
    assert [step for step, _ in resumed["eval/return_mean"]] == [0, 60, 120, 180]


def test_no_value_has_two_names(resumed):
    """Tags whose values agree at every step that both have; those that never change say nothing."""
    same = [
        (one, other)
        for one in resumed
        for other in resumed
        if one < other
        and (both := dict(resumed[one]).keys() & dict(resumed[other]).keys())
        and len({dict(resumed[one])[s] for s in both}) > 1
        and all(dict(resumed[one])[s] == dict(resumed[other])[s] for s in both)
    ]
    assert not [pair for pair in same if not all("equivariance/" in tag for tag in pair)]  # of a single generator
    assert not {
        tag for tag in resumed if tag.startswith("rollout/ep_") or (tag.startswith("prior/") and "penalty" not in tag)
    }
