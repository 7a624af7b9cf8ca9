"""What a run keeps of its agent: checkpoints to go on from, the final policy, and the agent as users load it."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from rppdyn.agents import Agent
from rppdyn.envs import SymmetrySpec
from rppdyn.runs import CheckpointError, RunFolder, RunFolderError
from rppdyn.runs.files import read_tensors, replacing, write_json, write_tensors
from rppdyn.runs.streams import GlobalStates

AGENT = "agent.pt"
STATE = "state.json"
SPEC = "spec.json"


@dataclass
class RunState:
    """Where a run stands, besides its agent."""

    step: int = 0
    evaluated: int = -1  # the step of the last evaluation


def write_checkpoint(agent: Agent, folder: RunFolder, state: RunState) -> None:
    """Everything an exact continuation needs: model, optimisers, replay buffer, random states, simulator, counters."""

    def write(target: Path) -> None:
        torch.save(agent.capture(), target / AGENT)
        (target / STATE).write_text(json.dumps(asdict(state)) + "\n")

    folder.checkpoints.save(state.step, write)


def restore_latest(agent: Agent, folder: RunFolder) -> RunState:
    """Put an agent where the folder's last checkpoint left it; at the beginning, where there is none.

    Newer, damaged checkpoints are removed.

    Raises:
        CheckpointError: none of the checkpoints can be read.
        ValueError: the checkpoint is of another agent.
    """
    state = _restore(agent, folder)
    if state is None:
        return RunState()
    folder.checkpoints.discard_after(state.step)
    return state


def save_model(agent: Agent, folder: RunFolder) -> None:
    """The final agent, twice: its parts (`policy.pt`), tensors that this package loads, and stable-baselines3's `model.zip`.

    The second is for `RPPSAC.load`; stable-baselines3 writes parts of it as pickles, so load it from people you trust.
    """
    for file, part in _parts(agent, folder).items():
        write_tensors(file, part.state_dict())
    with replacing(folder.model_file) as path:
        agent.save(path)


def _parts(agent: Agent, folder: RunFolder) -> dict[Path, torch.nn.Module]:
    """`policy.pt`, and `dynamics.pt` of an agent that learns a model of them."""
    return {folder.path / f"{name}.pt": part for name, part in agent.parts.items()}


def save_spec(folder: RunFolder, spec: SymmetrySpec) -> None:
    """The symmetry that a run's networks were built for, in `spec.json`."""
    write_json(folder.path / SPEC, spec.to_dict())


def load_spec(folder: RunFolder) -> SymmetrySpec | None:
    """The symmetry that a run's networks were built for; None where it was not written yet.

    Raises:
        RunFolderError: the file is damaged, or of another version.
    """
    path = folder.path / SPEC
    if not path.is_file():
        return None
    try:
        return SymmetrySpec.from_dict(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError, AttributeError) as error:
        raise RunFolderError(f"{path} can't be read ({error}): delete it, and the symmetry is derived anew") from error


def load_policy(agent: Agent, folder: RunFolder, *, whole: bool = False) -> str:
    """Give an agent the weights of a run: those of its end, or else of its last checkpoint; says which.

    Args:
        whole: all parts of the agent, not the policy alone.
    Raises:
        RunFolderError: the run has neither yet, or the file is damaged.
        CheckpointError: none of the checkpoints can be read.
    """
    parts = {file: part for file, part in _parts(agent, folder).items() if whole or file == folder.policy_file}
    if folder.result() is not None and all(file.is_file() for file in parts):
        for file, part in parts.items():
            weights = _load(file, RunFolderError)
            try:
                part.load_state_dict(weights)
            except (RuntimeError, KeyError, TypeError) as error:
                raise RunFolderError(
                    f"{file} is of another network than config.yaml says; delete {folder.result_file} and write it "
                    f"again with rppdyn train-agent --resume {folder.path}"
                ) from error
        return final_policy(folder.result() or {})
    return f"policy of the checkpoint at step {load_checkpoint(agent, folder).step}"


def final_policy(result: Mapping[str, Any]) -> str:
    """What the policy at the end of a run is called; the run may have gone on since."""
    return f"final policy, after {result['steps']} steps"


def load_checkpoint(agent: Agent, folder: RunFolder) -> RunState:
    """Give an agent all that a run's last checkpoint holds, its replay buffer included; the run stays as it is.

    Raises:
        RunFolderError: the run has none yet.
        CheckpointError: none of the checkpoints can be read.
    """
    state = _restore(agent, folder)
    if state is None:
        if folder.result() is not None:
            missing = ", ".join(file.name for file in _parts(agent, folder) if not file.is_file())
            raise RunFolderError(
                f"{folder.path} is finished and has neither {missing} nor a checkpoint: train it again with another run_dir="
            )
        raise RunFolderError(
            f"{folder.path} has no policy yet: let the run go on with rppdyn train-agent --resume {folder.path}"
        )
    return state


@contextmanager
def kept_random_state() -> Iterator[None]:
    """Put the global random states of Python, NumPy and torch back on leaving."""
    states = GlobalStates.now()
    try:
        with torch.random.fork_rng(devices=range(torch.cuda.device_count()), enabled=torch.cuda.is_initialized()):
            yield
    finally:
        states.put()


def _restore(agent: Agent, folder: RunFolder) -> RunState | None:
    checkpoint = folder.checkpoints.latest()
    if checkpoint is None:
        return None
    agent.restore(_load(checkpoint.path / AGENT, CheckpointError))
    return RunState(**json.loads((checkpoint.path / STATE).read_text()))


def _load(path: Path, error_type: type[ValueError]) -> Any:
    try:
        return read_tensors(path)
    except (OSError, RuntimeError, EOFError, ValueError, KeyError, pickle.UnpicklingError) as error:
        raise error_type(
            f"{path} is damaged: delete {path.parent / 'result.json'} and write it again "
            f"with rppdyn train-agent --resume {path.parent}"
            if error_type is RunFolderError
            else f"{path} is damaged: delete the folder {path.parent} to use the checkpoint before it"
        ) from error
