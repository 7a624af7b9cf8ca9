"""Where a relaxed GRU's iteration goes, and two ideas that were not kept: `python docs/evidence/trainers_ideas.py --json FILE`.

Processor times, kinds in turn, on states that stand still (`trainers.py`): rsl_rl's perceptron with mirrored batches, its GRU,
the relaxed GRU, the same with its gradient written out, and with dense weights in the place of pathways, which bounds what
could be saved by putting weights together less often. And one mini-batch of a GRU layer alone: PyTorch's kernel, the gradient
written out, and that with compiled steps.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import trainers
from rsl_rl.runners import OnPolicyRunner
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

STEPS, BATCH, INPUTS, HIDDEN = 24, 128, 48, 128  # of a mini-batch


class WrittenOut(torch.autograd.Function):
    """All steps of a GRU layer; weights' gradients of all steps are summed in place, without a record of each operation."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, h: Tensor, w: Tensor, u: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        steps, batch, size = len(x), x.shape[1], h.shape[-1]
        gates = torch.addmm(b, x.flatten(0, 1), w.mT).view(steps, batch, 3 * size)
        hidden, own = x.new_empty(steps + 1, batch, size), x.new_empty(steps, batch, size)
        hidden[0] = h
        product = x.new_empty(batch, 3 * size)
        for t in range(steps):
            torch.addmm(c, hidden[t], u.mT, out=product)
            rz, n = gates[t, :, : 2 * size], gates[t, :, 2 * size :]
            rz.add_(product[:, : 2 * size]).sigmoid_()
            n.addcmul_(rz[:, :size], own[t].copy_(product[:, 2 * size :])).tanh_()
            torch.lerp(n, hidden[t], rz[:, size:], out=hidden[t + 1])
        ctx.save_for_backward(x, w, u, gates, own, hidden)
        return hidden[1:], hidden[-1].clone()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, outputs: Tensor, last: Tensor) -> Any:
        x, w, u, gates, own, hidden = ctx.saved_tensors
        steps, batch, size = own.shape
        slope, total, dz, rest = last.clone(), *x.new_empty(3, batch, size)
        inner, outer = x.new_empty(batch, 3 * size), x.new_empty(steps, batch, 3 * size)
        of_u, of_c = torch.zeros_like(u), u.new_zeros(3 * size)
        for t in reversed(range(steps)):
            r, z, n = gates[t].chunk(3, -1)
            to_r, to_z, to_n = outer[t].chunk(3, -1)
            torch.add(slope, outputs[t], out=total)
            torch.mul(total, z, out=dz)
            torch.sub(total, dz, out=rest)
            torch.mul(n, n, out=to_n)
            torch.addcmul(rest, rest, to_n, value=-1, out=to_n)
            torch.sub(hidden[t], n, out=to_z).mul_(rest).mul_(z)
            torch.mul(to_n, r, out=inner[:, 2 * size :])
            torch.mul(inner[:, 2 * size :], own[t], out=to_r)
            to_r.addcmul_(to_r, r, value=-1)
            inner[:, : 2 * size] = outer[t, :, : 2 * size]
            torch.addmm(dz, inner, u, out=slope)
            of_u.addmm_(inner.mT, hidden[t])
            of_c[2 * size :] += inner[:, 2 * size :].sum(0)
        flat = outer.flatten(0, 1)
        of_b = flat.sum(0)
        of_c[: 2 * size] = of_b[: 2 * size]
        of_x = (flat @ w).view_as(x) if ctx.needs_input_grad[0] else None
        return of_x, slope, flat.mT @ x.flatten(0, 1), of_u, of_b, of_c


class Compiled(torch.autograd.Function):
    """The same, its elementwise work compiled."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, h: Tensor, w: Tensor, u: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        given = torch.addmm(b, x.flatten(0, 1), w.mT).view(len(x), x.shape[1], -1)
        hidden, gates, own = [h], [], []
        for one in given:
            product = torch.addmm(c, hidden[-1], u.mT)
            gate, after = _forward(one, product, hidden[-1])
            hidden.append(after)
            gates.append(gate)
            own.append(product[:, 2 * h.shape[-1] :])
        ctx.save_for_backward(x, w, u)
        ctx.steps = hidden, gates, own
        return torch.stack(hidden[1:]), hidden[-1].clone()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, outputs: Tensor, last: Tensor) -> Any:
        x, _, u = ctx.saved_tensors
        hidden, gates, own = ctx.steps
        size, slope = u.shape[1], last
        of_u, of_c, outer = torch.zeros_like(u), u.new_zeros(3 * size), []
        for t in reversed(range(len(gates))):
            one, inner, dz = _backward(gates[t], own[t], hidden[t], slope, outputs[t])
            outer.append(one)
            slope = dz.addmm_(inner, u)
            of_u.addmm_(inner.mT, hidden[t])
            of_c[2 * size :] += inner[:, 2 * size :].sum(0)
        flat = torch.cat(outer[::-1])
        of_b = flat.sum(0)
        of_c[: 2 * size] = of_b[: 2 * size]
        return None, slope, flat.mT @ x.flatten(0, 1), of_u, of_b, of_c


@torch.compile
def _forward(given: Tensor, product: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    s = h.shape[-1]
    rz = torch.sigmoid(given[:, : 2 * s] + product[:, : 2 * s])
    n = torch.tanh(given[:, 2 * s :] + rz[:, :s] * product[:, 2 * s :])
    return torch.cat([rz, n], 1), n + rz[:, s:] * (h - n)


@torch.compile
def _backward(gates: Tensor, own: Tensor, h: Tensor, slope: Tensor, output: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    r, z, n = gates.chunk(3, -1)
    total = slope + output
    dz = total * z
    to_n = (total - dz) * (1 - n * n)
    to_z, inner = (h - n) * (total - dz) * z, to_n * r
    to_r = inner * own * (1 - r)
    return torch.cat([to_r, to_z, to_n], 1), torch.cat([to_r, to_z, inner], 1), dz


def layer(rounds: int) -> dict[str, Any]:
    """Milliseconds of one forward and backward pass of a layer, and the largest difference of a gradient."""
    torch.manual_seed(0)
    gru, x, h = torch.nn.GRU(INPUTS, HIDDEN), torch.randn(STEPS, BATCH, INPUTS), torch.randn(1, BATCH, HIDDEN)
    weights = list(gru.parameters())
    ways: dict[str, Callable[[], Tensor]] = {
        "PyTorch's kernel": lambda: torch._VF.gru(x, h, weights, True, 1, 0.0, True, False, False)[0],
        "gradient written out": lambda: WrittenOut.apply(x, h[0], *weights)[0],
        "written out, compiled steps": lambda: Compiled.apply(x, h[0], *weights)[0],
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    gradients: dict[str, list[Tensor]] = {}
    for k in range(rounds + 5):
        for name, way in ways.items():
            start = time.process_time()
            gradients[name] = list(torch.autograd.grad(way().sum(), weights))
            if k >= 5:
                times[name].append(time.process_time() - start)
    first = gradients["PyTorch's kernel"]
    off = max(
        float((a - b).abs().max() / a.abs().max())
        for own in gradients.values()
        for a, b in zip(first, own, strict=True)
    )
    return {
        "milliseconds": {n: round(1e3 * float(np.median(t)), 2) for n, t in times.items()},
        "gradients_differ_by": off,
    }


def _written_out(self: Any, x: Tensor, h: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """`RelaxedGRU.forward` of one layer, its gradient written out."""
    h = x.new_zeros(1, x.shape[1], self.hidden_size) if h is None else h
    weights = self._assembled(self, self.flat_weights)
    if not torch.is_grad_enabled():
        return torch._VF.gru(x, h, weights, True, 1, 0.0, self.training, False, False)
    outputs, last = WrittenOut.apply(x, h[0], *weights)
    return outputs, last[None]


def _dense(runner: OnPolicyRunner) -> None:
    """Give a runner's networks dense parameters in the place of pathways and their prior."""
    free = lambda value: value.detach().clone().requires_grad_() if isinstance(value, Tensor) else value  # noqa: E731
    parameters = []
    for model in (runner.alg.actor, runner.alg.critic):
        unit, head = tree_map(free, model.rnn.rnn.flat_weights()), tree_map(free, model.mlp.network.assemble())
        model.rnn.rnn._assembled = lambda module, assemble, weights=unit: weights
        model.mlp._assembled = lambda module, assemble, weights=head: weights
        parameters += [value for value in tree_leaves((unit, head)) if isinstance(value, Tensor)]
        parameters += [p for name, p in model.named_parameters() if "std" in name]
    runner.alg.optimizer = torch.optim.Adam(parameters, lr=1e-3)


def iterations(rounds: int) -> dict[str, Any]:
    """Processor seconds of whole iterations, and medians of their ratios to the doubled perceptron's and rsl_rl's GRU's."""
    kinds = {
        "rsl_rl's perceptron, mirrored batch": "augmented",
        "rsl_rl's GRU": "rsl_rl's own gru",
        "relaxed GRU": "recurrent",
        "relaxed GRU, gradient written out": "recurrent",
        "relaxed GRU, dense weights": "recurrent",
    }
    runners = {}
    for name, kind in kinds.items():
        torch.manual_seed(0)
        config = trainers.config(kind, HIDDEN) | {"num_steps_per_env": STEPS}
        runners[name] = OnPolicyRunner(trainers.Noise(512), config, None, "cpu")
    for model in (
        runners["relaxed GRU, gradient written out"].alg.actor,
        runners["relaxed GRU, gradient written out"].alg.critic,
    ):
        model.rnn.rnn.forward = types.MethodType(_written_out, model.rnn.rnn)
    _dense(runners["relaxed GRU, dense weights"])
    times: dict[str, list[float]] = {name: [] for name in kinds}
    for k in range(rounds + 1):
        for name, runner in runners.items():
            start = time.process_time()
            runner.learn(1)
            if k:
                times[name].append(time.process_time() - start)
    ratio = lambda name, other: round(float(np.median(np.array(times[name]) / np.array(times[other]))), 3)  # noqa: E731
    doubled, own = list(kinds)[:2]
    return {
        "seconds": {name: [round(value, 3) for value in values] for name, values in times.items()},
        "to_doubled_perceptron": {name: ratio(name, doubled) for name in kinds},
        "to_rsl_rl's_gru": {name: ratio(name, own) for name in kinds},
    }


def main() -> None:
    """Measure, and write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    found: dict[str, Any] = {"layer": layer(20)}
    print(found, flush=True)
    with contextlib.redirect_stdout(io.StringIO()):
        found["iterations"] = iterations(arguments.rounds)
    print(found["iterations"], flush=True)
    arguments.json.write_text(json.dumps(found, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
