"""rsl_rl with symmetry: `python docs/evidence/trainers.py --json FILE.json`; 50 iterations of each kind, strictness, and times.

Times are of whole iterations on states that stand still, 512 environments of 24 steps, kinds in turn; medians of ratios. Curves
are of 16 crawlers that are paid for moving forwards: the mean reward of a step and the losses of each iteration.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from tensordict import TensorDict

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
import crawler_rsl_rl as example
from rsl_rl.env import VecEnv
from rsl_rl.runners import OnPolicyRunner

from rppdyn.integrations.augmentation import SpaceImages
from rppdyn.integrations.rsl_rl import export_policy
from rppdyn.runs import provenance

KINDS = (
    "mlp",
    "augmented",
    "relaxed",
    "recurrent",
    "rsl_rl's own gru",
    "recurrent, 64 units",
    "rsl_rl's own gru, 64 units",
)
SPEC = example.TERMS.spec


class Noise(VecEnv):
    """Random observations and rewards: nothing is simulated."""

    def __init__(self, num_envs: int):
        self.num_envs, self.num_actions, self.device, self.cfg = num_envs, SPEC.action.dim, "cpu", {}
        self.max_episode_length, self.episode_length_buf = 1000, torch.zeros(num_envs, dtype=torch.long)
        self.seen = {name: torch.randn(num_envs, size) for name, size in SPEC.observation_groups}

    def get_observations(self) -> TensorDict:
        return TensorDict({name: x.clone() for name, x in self.seen.items()}, batch_size=[self.num_envs])

    def step(self, actions):
        return self.get_observations(), -actions.square().mean(1), torch.zeros(self.num_envs, dtype=torch.long), {}


def config(kind: str, hidden: int) -> dict:
    units = 64 if kind.endswith("64 units") else hidden
    if kind.startswith("rsl_rl's own gru"):
        found = example.configuration("mlp", hidden)
        for key in ("actor", "critic"):
            found[key] |= {"class_name": "RNNModel", "rnn_type": "gru", "rnn_hidden_dim": units}
        return found
    found = example.configuration(kind.split(",")[0], hidden)
    if kind.startswith("recurrent"):
        for key in ("actor", "critic"):
            found[key]["rnn_hidden_dim"] = units
    return found


def curve(kind: str, iterations: int) -> dict[str, list[float]]:
    """Mean reward of a step, and losses, of each iteration."""
    torch.manual_seed(0)
    runner = OnPolicyRunner(example.Crawlers(16), example.configuration(kind), None, "cpu")
    found: dict[str, list[float]] = {"reward": []}
    update = runner.alg.update

    def recorded():
        found["reward"].append(float(runner.alg.storage.rewards.mean()))
        losses = update()
        for name, value in losses.items():
            found.setdefault(name, []).append(float(value))
        return losses

    runner.alg.update = recorded
    runner.learn(iterations)
    return {name: [round(value, 5) for value in values] for name, values in found.items()}


def seconds(rounds: int, hidden: int) -> dict[str, list[float]]:
    """Times of iterations, kinds in turn."""
    runners = {}
    for kind in KINDS:
        torch.manual_seed(0)
        runners[kind] = OnPolicyRunner(Noise(512), config(kind, hidden) | {"num_steps_per_env": 24}, None, "cpu")
    found: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for k in range(rounds + 1):
        for kind, runner in runners.items():
            start = time.perf_counter()
            runner.learn(1)
            if k:
                found[kind].append(time.perf_counter() - start)
    return found


def strictness(steps: int) -> float:
    """Largest relative difference between a strict recurrent policy on mirrored observations and its mirrored actions."""
    torch.manual_seed(0)
    runner = OnPolicyRunner(example.Crawlers(4), example.configuration("recurrent", free_variance=0.0), None, "cpu")
    runner.learn(2)
    actor = runner.alg.actor.eval()
    images = {name: SpaceImages(SPEC.observation_group(name).obs, SPEC.group) for name, _ in SPEC.observation_groups}
    acting, worst, hidden, mirrored = SpaceImages(SPEC.action, SPEC.group), 0.0, None, None
    actor.reset()
    with torch.no_grad():
        for _ in range(steps):
            obs = runner.env.get_observations()
            actor.reset(hidden_state=hidden)
            action = actor(obs)
            hidden = actor.get_hidden_state()
            actor.reset(hidden_state=mirrored)
            other = actor(TensorDict({n: images[n].image(x, 1) for n, x in obs.items()}, batch_size=obs.batch_size))
            mirrored = actor.get_hidden_state()
            image = acting.image(action, 1)
            worst = max(worst, float((image - other).norm() / (image.norm() + other.norm())))
            runner.env.step(action)
    return worst


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--iterations", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    result: dict = {"provenance": provenance()}
    with contextlib.redirect_stdout(io.StringIO()):
        result["strictness_over_1000_steps"] = strictness(1000)
    print(result["strictness_over_1000_steps"], flush=True)
    save = lambda: arguments.json.write_text(json.dumps(result, indent=1, default=str) + "\n")  # noqa: E731
    result["curves_of_50_iterations"] = {}
    for kind in ("mlp", "augmented", "relaxed", "recurrent"):
        with contextlib.redirect_stdout(io.StringIO()):
            found = result["curves_of_50_iterations"][kind] = curve(kind, arguments.iterations)
        print(kind, {name: (values[0], values[-1]) for name, values in found.items()}, flush=True)
        save()
    with contextlib.redirect_stdout(io.StringIO()):
        times = seconds(arguments.rounds, 128)
    base = np.array(times["augmented"])
    result["seconds"] = {kind: [round(value, 4) for value in values] for kind, values in times.items()}
    result["ratio_to_augmented_mlp"] = {k: float(np.median(np.array(v) / base)) for k, v in times.items()}
    own = {
        k: float(np.median(np.array(times[f"recurrent{k}"]) / np.array(times[f"rsl_rl's own gru{k}"])))
        for k in ("", ", 64 units")
    }
    result["relaxed_gru_to_rsl_rl's"] = own
    print(result["ratio_to_augmented_mlp"], own, flush=True)
    save()
    with contextlib.redirect_stdout(io.StringIO()), tempfile.TemporaryDirectory() as folder:
        actor = OnPolicyRunner(example.Crawlers(2), example.configuration("recurrent"), None, "cpu").alg.actor
        result["export_of_1000_recurrent_steps"] = export_policy(
            actor, onnx=Path(folder, "a.onnx"), torch_file=Path(folder, "a.pt2"), steps=1000
        )
    print(result["export_of_1000_recurrent_steps"], flush=True)
    save()


if __name__ == "__main__":
    main()
