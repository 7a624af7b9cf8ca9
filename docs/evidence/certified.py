"""Certified variances: `python docs/evidence/certified.py --json FILE.json`; with `--tables` the tables of what is there alone.

Transition models of the six robots, and of a Walker2d with a weak actuator, as section 3 of `protocol.md` says. Each robot's
random transitions are collected first (`MINARI_DATASETS_PATH` says where), then each arm is fitted in one process. A file that
is there is gone on with: what is in it is not fitted again.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

import gymnasium
import minari
import numpy as np

from rppdyn.envs import Episode, certified_share, make_env, symmetry_spec, write_episodes
from rppdyn.jobs import fit_transition
from rppdyn.jobs.config import compose
from rppdyn.runs import RunFolder, provenance

ROBOTS: dict[str, tuple[str, dict[str, float]]] = {
    "Swimmer": ("Swimmer-v5", {}),
    "Walker2d": ("Walker2d-v5", {}),
    "Ant": ("Ant-v5", {}),
    "HalfCheetah": ("HalfCheetah-v5", {}),
    "Hopper": ("Hopper-v5", {}),
    "Walker2d, weak": ("Walker2d-v5", {"leg_joint": 0.5}),
    "Humanoid": ("Humanoid-v5", {}),
}
"""Environment, and factors on the gears of actuators."""

ARMS = {
    "strict": ["model=emlp"],
    "narrow": ["model.free_variance=1e-7"],
    "certified": ["model.free_variance=certified"],
    "learned": ["model.free_variance=learned"],
    "wide": ["model.free_variance=1"],
    "mlp": ["model=mlp"],
}
TRANSITIONS = 24_000
LONGEST = 200  # steps of an episode
SETTINGS = (
    "task.train=10000", "task.length=10", "task.trajectories=100", "model.hidden=64", "optimiser.epochs=60",
    "optimiser.batch_size=100", "evaluation.every=60", "checkpoint_every=60", "marginal_likelihood.every=10",
    "marginal_likelihood.data=150", "device=cpu", "threads=1",
)  # fmt: skip


def play(env: gymnasium.Env, seed: int) -> list[Episode]:
    """Episodes of random actions that are correlated over time; those of fewer steps than a chunk are left out."""
    rng, high, played, reset = np.random.default_rng(seed), env.action_space.high, [], seed * 100_000
    while sum(len(episode.actions) for episode in played) < TRANSITIONS:
        observations, actions, rewards = [env.reset(seed=reset)[0]], [], []
        reset, noise, ended = reset + 1, np.zeros(high.shape), False
        while len(actions) < LONGEST and not ended:
            noise = np.clip(0.8 * noise + 0.6 * rng.normal(size=high.shape), -1, 1)
            actions.append((noise * high).astype(np.float32))
            observation, reward, ended, *_ = env.step(actions[-1])
            observations.append(observation), rewards.append(reward)
        if len(actions) >= 10:
            played.append(Episode(np.array(observations), np.array(actions), np.array(rewards)))
    return played


def dataset(robot: str, seed: int) -> tuple[str, dict[str, Any]]:
    """The id of a robot's dataset, which is collected where it is not there, and what its certificate leaves free."""
    env_id, scale = ROBOTS[robot]
    name = f"evidence/{env_id}/{'weak' if scale else 'stock'}-v{seed}"
    with closing(make_env(env_id, monitor=False, actuator_scale=scale or None)) as env:
        if name not in minari.list_local_datasets():
            write_episodes(name, play(env, seed), env=env)
        share = certified_share(env, symmetry_spec(env), reward=False)
    return name, {"defect": share.defect, "share": share.share, "verdict": share.verdict}


def fit(name: str, words: list[str], seeds: list[int]) -> dict[str, Any]:
    """Fit one arm: errors by seed, and the free pathway's variance where it was certified."""
    with tempfile.TemporaryDirectory() as folder:
        asked = [f"dataset={name}", f"seed={seeds[0]}", f"seeds={len(seeds)}", f"run_dir={folder}/run"]
        result = fit_transition.run(compose.composed("fit_transition", [*asked, *SETTINGS, *words]))
        model = RunFolder.open(f"{folder}/run").config()["model"]
    kept = {key: result.test[key] for key in ("test/error_10", "validation/error", "equivariance/error")}
    return kept | {"variance": model.get("certified_variance"), "pathways": result.pathways, "seconds": result.seconds}


def run(file: Path, seeds: list[int]) -> dict[str, Any]:
    """All robots and arms that the file has not yet."""
    found = json.loads(file.read_text()) if file.exists() else {"seeds": seeds, "settings": SETTINGS, "robots": {}}
    for robot in ROBOTS:
        own = found["robots"].setdefault(robot, {"arms": {}})
        if len(own["arms"]) == len(ARMS):
            continue
        name, certificate = dataset(robot, seeds[0])
        own |= certificate
        for arm, words in ARMS.items():
            if arm not in own["arms"]:
                own["arms"][arm] = fit(name, words, seeds)
                print(robot, arm, own["arms"][arm]["test/error_10"], flush=True)
                file.write_text(json.dumps(found | {"provenance": provenance()}, indent=1) + "\n")
    return found


def main() -> None:
    """Run what is missing, and print the tables as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[700, 701, 702])
    parser.add_argument("--tables", action="store_true", help="fit nothing")
    arguments = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    found = json.loads(arguments.json.read_text()) if arguments.tables else run(arguments.json, arguments.seeds)
    print("| 10-step error, % | defect | variance | " + " | ".join(ARMS) + " |\n| --- |" + " ---: |" * (len(ARMS) + 2))
    for robot, own in found["robots"].items():
        errors = {arm: np.array(each["test/error_10"]) for arm, each in own["arms"].items()}
        means = [f"{100 * errors[arm].mean():.1f}" if arm in errors else "" for arm in ARMS]
        defect = f"{own['defect']:.2g}" if own["defect"] else "exact"
        print(f"| {robot} | {defect} | {own['arms']['certified']['variance']:.2g} | " + " | ".join(means) + " |")
    others = [arm for arm in ARMS if arm != "certified"]
    print("\n| certified / other, by seed | " + " | ".join(others) + " |\n| --- |" + " --- |" * len(others))
    for robot, own in found["robots"].items():
        errors = {arm: np.array(each["test/error_10"]) for arm, each in own["arms"].items()}
        ratios = [errors["certified"] / errors[arm] if arm in errors else [] for arm in others]
        cells = [", ".join(f"{ratio:.2f}" for ratio in each) for each in ratios]
        print(f"| {robot} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
