"""The job as a function: run(config) -> result."""

from __future__ import annotations

from dataclasses import asdict, replace

import numpy as np
import pytest
import torch

from rppdyn.agents import RPPSAC
from rppdyn.jobs import agent_files, compose, evaluate_agent, train_agent
from rppdyn.jobs.schema import EvaluateAgentConfig
from rppdyn.jobs.training_result import summary
from rppdyn.runs import RunFolder, RunFolderError

WORDS = (
    "device=cpu",
    "model.hidden=8",
    "agent.learning_starts=20",
    "agent.batch_size=8",
    "agent.buffer_size=100",
    "evaluation.every=40",
    "evaluation.episodes=1",
    "evaluation.states=16",
    "checkpoint_every=20",
    "total_steps=50",
)


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run") / "run"
    return compose.composed("train_agent", [*WORDS, "env.actuator_scale.slider=0.5", f"run_dir={folder}"])


@pytest.fixture(scope="module")
def result(config):
    states = np.random.get_state()[1].copy(), torch.get_rng_state(), torch.get_num_threads()  # noqa: NPY002
    result = train_agent.run(config)
    assert np.array_equal(states[0], np.random.get_state()[1])  # noqa: NPY002
    assert torch.equal(states[1], torch.get_rng_state())
    assert states[2] == torch.get_num_threads()
    return result


def test_the_result_says_what_was_reached(config, result):
    assert (result.steps, result.interrupted, result.run) == (50, False, config.run_dir)
    assert result.metrics["step"] == 50
    assert "50 of 50 steps" in summary(result)


def test_a_vacuous_error_is_said_to_be_one(result):
    text = summary(replace(result, metrics={**result.metrics, "equivariance/policy": None}))
    assert "policy vacuous" in text


def test_evaluations_step_the_configured_environment(config, result):
    env = train_agent.build_env(config)
    stock = train_agent.build_env(compose.composed("train_agent", WORDS))
    assert env.unwrapped.model.actuator_gear[0, 0] == 0.5 * stock.unwrapped.model.actuator_gear[0, 0]
    played = evaluate_agent.run(EvaluateAgentConfig(run=result.run, episodes=1))
    assert played.returns == result.metrics["eval/returns"]


def test_the_zip_is_the_same_agent(config, result):
    folder = RunFolder.open(result.run)
    loaded = RPPSAC.load(folder.model_file, device="cpu")
    weights = torch.load(folder.policy_file, weights_only=True)
    assert weights.keys() == loaded.policy.state_dict().keys()
    assert all(torch.equal(value, weights[name]) for name, value in loaded.policy.state_dict().items())


def test_checkpoints_are_at_their_steps(result):
    steps = [path.name for path in sorted((RunFolder(result.run).path / "checkpoints").iterdir())]
    assert steps == ["step-000000000040", "step-000000000050"]


@pytest.mark.parametrize("damage", [lambda data: data[: len(data) // 2], lambda data: b""])
def test_a_damaged_policy_is_named(config, result, damage):
    folder = RunFolder.open(result.run)
    whole = folder.policy_file.read_bytes()
    try:
        folder.policy_file.write_bytes(damage(whole))
        with pytest.raises(RunFolderError, match=r"policy\.pt is damaged: delete .*result\.json") as error:
            evaluate_agent.run(EvaluateAgentConfig(run=result.run, episodes=1))
        assert "\n" not in str(error.value)
    finally:
        folder.policy_file.write_bytes(whole)


def test_a_run_without_any_policy_is_refused(config, tmp_path):
    empty = replace(config, run_dir=str(tmp_path / "run"))
    RunFolder.create(empty.folder(), asdict(empty))
    with pytest.raises(RunFolderError, match="has no policy yet"):
        evaluate_agent.run(EvaluateAgentConfig(run=empty.run_dir, episodes=1))


def test_a_folder_in_use_is_refused(config, result):
    with RunFolder.open(result.run).lock(), pytest.raises(RunFolderError, match="another process"):
        train_agent.run(replace(config, total_steps=60), resume=True)


def test_fewer_steps_than_done_are_refused(config, result):
    with pytest.raises(RunFolderError, match=r"total_steps=10: .* 50 already"):
        train_agent.run(replace(config, total_steps=10), resume=True)


def test_an_evaluation_leaves_training_as_it_was(config, tmp_path):
    """The same run with more evaluations ends with the same weights."""

    def weights(every, name):
        changed = replace(config, run_dir=str(tmp_path / name), evaluation=replace(config.evaluation, every=every))
        train_agent.run(changed)
        return torch.load(changed.folder() / "policy.pt", weights_only=True)

    often, seldom = weights(7, "often"), weights(1000, "seldom")
    assert all(torch.equal(often[name], seldom[name]) for name in often)


def test_state_files_are_plain_json(result):
    checkpoint = RunFolder(result.run).checkpoints.latest()
    assert (checkpoint.path / agent_files.STATE).read_text() == '{"step": 50, "evaluated": 50}\n'
