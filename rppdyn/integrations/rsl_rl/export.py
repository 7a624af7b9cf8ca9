"""Export of rsl_rl's actors to files that run without this package; a hidden state is an input and an output."""

from __future__ import annotations

from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict
from torch import Tensor, nn
from torch.nn import functional as F

from rppdyn.agents._export import (
    HIDDEN,
    TOLERANCE,
    contract_beside,
    list_entries,
    onnx_policy,
    torch_policy,
    write_onnx,
    write_program,
)
from rppdyn.envs import Certificate
from rppdyn.integrations.rsl_rl.models import RelaxedMLPModel, RelaxedRNNModel
from rppdyn.runs.files import replacing, write_json

__all__ = ["export_policy"]

VERSIONS = ("rppdyn", "torch", "rsl-rl-lib")
CHECK_BATCH = 4  # observations per step of the comparison


def export_policy(
    model: RelaxedMLPModel | RelaxedRNNModel,
    *,
    onnx: str | Path | None = None,
    torch_file: str | Path | None = None,
    steps: int = 1000,
    seed: int = 0,
    certificate: Certificate | None = None,
) -> dict[str, float]:
    """Write an actor's deterministic policy, its layers merged, and a JSON file that describes its inputs and outputs.

    Beside it `symmetry.json` describes the action of the symmetry on each entry, for `rppdyn audit`.

    A recurrent policy maps ``observation`` (batch, n) and ``hidden_state`` (layers, batch, h), zero at the start of an episode,
    to ``action`` and ``next_hidden_state``.

    Args:
        model: the actor.
        onnx, torch_file: the files, at least one.
        steps: number of steps, with random observations, over which a file is compared with the model.
        seed: seed of the observations.
        certificate: the simulator's (`rppdyn.envs.certify`), for `symmetry.json`.
    Returns:
        the largest difference of an action, as a share of the actions' spread, for "onnx" and "torch".
    Raises:
        ValueError: a critic, no file, a package that is not installed, or a file that differs; nothing is written then.
    """
    if not isinstance(model, RelaxedMLPModel | RelaxedRNNModel):
        raise ValueError(f"a {type(model).__name__} is no relaxed model; give the runner's alg.actor")
    if steps < 1:
        raise ValueError(f"steps={steps}: give at least one, over which the file is compared with the actor")
    if model.distribution is None:
        raise ValueError("a critic has no actions; give the actor")
    files = {"onnx": onnx, "torch": torch_file}
    paths = {kind: Path(path) for kind, path in files.items() if path is not None}
    if not paths:
        raise ValueError("no file is given; give onnx= or torch_file=")
    for path in paths.values():
        if path.is_dir():
            raise ValueError(f"{path} is a folder; give a file")
    card = next(iter(paths.values())).with_suffix(".json")
    contract = contract_beside(card, model.spec)
    step = _Step(model)
    state = None if step.layers == 0 else (step.layers, step.size)
    differences: dict[str, float] = {}
    with ExitStack() as stack:
        for kind, path in paths.items():
            temporary = stack.enter_context(replacing(path))
            if kind == "onnx":
                write_onnx(step, temporary, model.obs_dim, torch.float32, state)
                policy = onnx_policy(temporary)
            else:
                write_program(step, temporary, model.obs_dim, torch.float32, state)
                policy = torch_policy(torch.export.load(temporary))
            differences[kind] = difference = _difference(model, policy, steps, seed)
            if not difference <= TOLERANCE:
                raise ValueError(
                    f"{path}: over {steps} steps the exported policy differs by {difference:.2g} of the actions' spread, more "
                    f"than {TOLERANCE:g}; nothing is written"
                )
    write_json(card, _card(model, state, steps, differences))
    write_json(contract, model.spec.contract(None if certificate is None else certificate.to_dict()))
    return differences


class _Step(nn.Module):
    """One step of a merged policy, with the recurrent unit's gates written out."""

    def __init__(self, model: RelaxedMLPModel | RelaxedRNNModel):
        super().__init__()
        self.merged: Any = model.merged().cpu().eval()
        unit = getattr(self.merged, "unit", None)
        self.layers: int = 0 if unit is None else unit.num_layers
        self.size: int = 0 if unit is None else unit.hidden_size
        for parameter in self.parameters():
            parameter.requires_grad_(False)

    def forward(self, observation: Tensor, hidden_state: Tensor | None = None) -> Any:
        policy = self.merged
        if hidden_state is None:
            return policy(observation)
        y, states = policy.normalizer(policy.space.encode(observation)), []
        for layer in range(self.layers):
            h = hidden_state[layer]
            weights = [
                getattr(policy.unit, f"{name}_l{layer}") for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
            ]
            r, z, n = F.linear(y, weights[0], weights[2]).chunk(3, -1)
            hr, hz, hn = F.linear(h, weights[1], weights[3]).chunk(3, -1)
            z = torch.sigmoid(z + hz)
            y = (1 - z) * torch.tanh(n + torch.sigmoid(r + hr) * hn) + z * h
            states.append(y)
        return policy.head(y), torch.stack(states)


def _difference(model: Any, policy: Any, steps: int, seed: int) -> float:
    """The largest difference of an action over a rollout of random observations, as a share of the actions' spread."""
    generator = torch.Generator().manual_seed(seed)
    was_training = model.training
    hidden_state = model.get_hidden_state()
    model.eval().reset()
    expected, actual = [], []
    device = next(model.parameters()).device
    with torch.no_grad():
        for _ in range(steps):
            x = torch.randn(CHECK_BATCH, getattr(model, "obs_dim", 0), generator=generator)
            groups = dict(zip(model.obs_groups, x.to(device).split(model.group_sizes, -1), strict=True))
            expected.append(model(TensorDict(groups, batch_size=[len(x)])).cpu().numpy())
            actual.append(policy(x.numpy()))
    model.reset(hidden_state=hidden_state)
    model.train(was_training)
    actions = np.concatenate(expected)
    spread = np.maximum(actions.std(0), 1e-6)
    return float((np.abs(np.concatenate(actual) - actions) / spread).max())


def _card(model: Any, state: tuple[int, int] | None, steps: int, differences: dict[str, float]) -> dict[str, Any]:
    spec = model.spec
    recurrent = None
    if state is not None:
        recurrent = {"input": HIDDEN, "output": f"next_{HIDDEN}", "layers": state[0], "size": state[1], "initial": 0.0}
    return {
        "format": 1,
        "environment": spec.env_id,
        "observation": {"dtype": "float32", "groups": dict(zip(model.obs_groups, model.group_sizes, strict=True)),
                        "entries": list_entries(model._space.entries)},
        "action": {"dtype": "float32", "entries": list_entries(spec.action.entries)},
        "hidden_state": recurrent,
        "symmetry": {"group": str(spec.group), "digest": spec.digest},
        "check": {"steps": steps, "largest_difference": differences, "tolerance": TOLERANCE},
        "versions": {name: version(name) for name in VERSIONS},
    }  # fmt: skip
