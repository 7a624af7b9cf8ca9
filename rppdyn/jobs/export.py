"""`rppdyn export`: the policy of an agent as a file that runs without this package, and a card for a robot's engineer."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray
from stable_baselines3.common.policies import BasePolicy

from rppdyn.agents._export import (
    TOLERANCE,
    DeployedPolicy,
    contract_beside,
    export_onnx,
    export_torch,
    largest_difference,
    list_entries,
    onnx_policy,
    torch_policy,
)
from rppdyn.envs import Entry, SymmetrySpec, certificate_for
from rppdyn.jobs.building import Evaluator
from rppdyn.jobs.config.base import ConfigError
from rppdyn.jobs.config.command import ExportConfig
from rppdyn.jobs.loading import load, load_program
from rppdyn.runs.files import replacing, write_json
from rppdyn.runs.statistics import evenly

FORMAT = 1
CHECK_EPISODES = 4
VERSIONED_PACKAGES = ("rppdyn", "torch", "gymnasium", "mujoco", "stable-baselines3")


@dataclass(frozen=True)
class ExportResult:
    """The source of an exported policy, its files, and the largest difference of each from the policy."""

    what: str
    source: str
    files: dict[str, str]
    card: str
    contract: str | None
    states: int
    differences: dict[str, float]


def run(config: ExportConfig) -> ExportResult:
    """Write an agent's deterministic policy and its card, after a check at states of its environment.

    Nothing is written unless every file agrees with the policy within `TOLERANCE` of the action's range.

    Raises:
        RunFolderError, CheckpointError: there is no such run, it has no policy yet, or its files are damaged.
        ConfigError, ValueError: there is no environment for the check, a package is missing, or the check fails.
    """
    with load(config, CHECK_EPISODES) as loaded, ExitStack() as resources:
        policy = loaded.policy
        source = loaded.source if config.kind == "run" else "its weights"
        if loaded.evaluator is None:
            raise ConfigError(f"{config.what}: give --env, in which the exported policy is checked")
        spec: SymmetrySpec | None = getattr(policy, "spec", None)
        contract = None if spec is None or spec.is_trivial else contract_beside(config.card, spec)
        evaluator = resources.enter_context(closing(loaded.evaluator()))
        observations = _states(evaluator, policy, config.states)
        paths = {"onnx": config.onnx, "torch": config.torch}
        files = {kind: path for kind, path in paths.items() if path is not None}
        differences = {}
        with ExitStack() as stack:
            for kind, path in files.items():
                temporary = stack.enter_context(replacing(Path(path)))
                differences[kind] = _write(policy, kind, temporary, observations)
                if not differences[kind] <= TOLERANCE:
                    raise ConfigError(
                        f"{path}: on {len(observations)} states the exported policy differs from {config.what} by "
                        f"{differences[kind]:.2g} of the action's range, more than {TOLERANCE:g}; nothing is written"
                    )
        env = evaluator.envs[0]
        certificate, note = (None, "") if spec is None else certificate_for(env, spec)
        reports = [] if certificate is None else certificate.generators
        certified = [{"name": report.name, "verdict": report.dynamics_verdict} for report in reports] or note
        card = _card(policy, spec, env, len(observations), differences)
        if spec is not None:
            card["symmetry"] = {"group": str(spec.group), "digest": spec.digest, "certified": certified}
        if spec is not None and contract is not None:
            write_json(contract, spec.contract(None if certificate is None else certificate.to_dict()))
        write_json(Path(config.card), card)
        contract_path = None if contract is None else str(contract)
        return ExportResult(config.what, source, files, config.card, contract_path, len(observations), differences)


def table(result: ExportResult) -> str:
    """Lines of text with the files and the results of their checks."""
    lines = [f"{result.what}: {result.source}"]
    for kind, path in result.files.items():
        lines.append(
            f"{path}: differs by {result.differences[kind]:.1e} of the action's range at most, {result.states} states"
        )
    lines.append(f"{result.card}: names, units and limits of entries, control step, symmetry, versions")
    if result.contract is not None:
        lines.append(f"{result.contract}: what its symmetry does to each entry, for rppdyn audit")
    return "\n".join(lines)


def _states(evaluator: Evaluator, policy: BasePolicy, count: int) -> NDArray:
    """Observations of exploring episodes, from as many resets as needed."""
    batches: list[NDArray] = []
    while sum(map(len, batches)) < count:
        batches.append(evaluator.explore(policy).observations)
        evaluator.seed += len(evaluator.envs)
    observations = np.concatenate(batches)
    return observations[evenly(len(observations), count)]


def _write(policy: BasePolicy, kind: str, path: Path, observations: NDArray) -> float:
    exported: Callable[[NDArray], NDArray]
    if kind == "onnx":
        export_onnx(policy, path)
        exported = onnx_policy(path)
    else:
        export_torch(policy, path)
        exported = torch_policy(load_program(str(path)))
    return largest_difference(policy, exported, observations)


def _card(
    policy: BasePolicy, spec: SymmetrySpec | None, env: gym.Env, states: int, differences: dict[str, float]
) -> dict[str, Any]:
    unwrapped, space = env.unwrapped, policy.action_space
    dtype = str(DeployedPolicy(policy).dtype).removeprefix("torch.")
    n, m = policy.observation_space.shape[0], space.shape[0]  # type: ignore[index]
    return {
        "format": FORMAT,
        "environment": None if env.spec is None else env.spec.id,
        "observation": {
            "dtype": dtype,
            "entries": list_entries(spec.obs.entries if spec else [Entry(f"[{i}]") for i in range(n)]),
        },
        "action": {
            "dtype": "float32",
            "entries": list_entries(spec.action.entries if spec else [Entry(f"[{i}]") for i in range(m)]),
            "low": space.low.tolist(),  # type: ignore[attr-defined]
            "high": space.high.tolist(),  # type: ignore[attr-defined]
        },
        "control_step": getattr(unwrapped, "dt", None),
        "symmetry": None,
        "check": {"states": states, "largest_difference": differences, "tolerance": TOLERANCE},
        "versions": {name: version(name) for name in VERSIONED_PACKAGES},
    }
