"""Make the trained agents that come with the package: `agents/weights/`, and the strip of frames in docs/pretrained.png.

    python benchmarks/pretrained.py --list                              # the commands that train them
    python benchmarks/pretrained.py Walker2d-v5=runs/walker ...         # write them again, from runs of those commands

NAME=RUN@STEP takes the checkpoint at that step. A run that was stopped gives the agent of its last checkpoint.

Each run's agent plays ten episodes that training did not see, from resets with seeds 30000 to 30009. Its file holds policy,
temperature, certificate, command, commit and these returns; manifest.json has the SHA-256 of each.
"""

from __future__ import annotations

import argparse
import json
import os
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from rppdyn.agents import RPPSAC, pretrained_card
from rppdyn.agents._export import (
    FOLDER,
    MANIFEST,
    load_pretrained,
    pretrained_agents,
    pretrained_env,
    write_pretrained,
)
from rppdyn.envs import certify
from rppdyn.jobs.building import Evaluator, agent_of, policy_of
from rppdyn.jobs.config import compose
from rppdyn.runs import RunFolder, provenance
from rppdyn.runs.files import load_tensors, replacing, write_json

ROOT = Path(__file__).resolve().parents[1]
PICTURE = ROOT / "docs" / "pretrained.png"
PAGE, MARK = ROOT / "docs" / "pretrained.md", "<!-- returns: made by benchmarks/pretrained.py -->"
SEED, EPISODES = 30000, 10
COMMANDS = {
    "Reacher-v5": "env=Reacher-v5 model=emlp model.hidden=64 model.bilinear=channelwise total_steps=6000 seed=621",
    "Walker2d-v5": "env=Walker2d-v5 model=rpp model.hidden=64 total_steps=150000 threads=1 seed=0",  # its checkpoint at 140,000
    "rppdyn/WindyPendulum-v0": "env=rppdyn/WindyPendulum-v0 env.symmetry=D4 env.kwargs.wind=0.03 model=rpp model.hidden=64 "
    "model.free_variance=certified model.widen=9000 agent.batch_size=128 total_steps=21000 seed=1107",
}  # fmt: skip


def store(name: str, run: str) -> dict[str, Any]:
    """Write one agent of a finished or stopped run; returns its line of the manifest."""
    run, _, step = run.partition("@")
    folder = RunFolder.open(run)
    config = compose.from_run("train_agent", folder)
    result = folder.result() or {}
    with agent_of(run, EPISODES, SEED, whole=True) as (agent, source, evaluator):
        assert isinstance(agent, RPPSAC)
        if step:
            agent.restore(load_tensors(folder.path / "checkpoints" / f"step-{int(step):012d}" / "agent.pt"))
            source = f"policy of the checkpoint at step {int(step)}"
        episodes = evaluator.run(policy_of(agent))
        file = folder.path / "certificate.json"
        certificate = json.loads(file.read_text()) if file.is_file() else certify(config.env.id, agent.spec).to_dict()
        found = result.get("provenance") or provenance() | {
            "command": ["rppdyn", "train-agent", *COMMANDS[name].split()]  # stopped: by this checkout
        }
        card = {
            "name": name,
            "env": {"id": config.env.id, "kwargs": dict(config.env.kwargs)},
            "training": {
                "command": found.get("command"),
                "commit": found.get("commit"),
                "packages": found.get("packages"),
                "seed": config.seed,
                "source": source,
            },
            "certificate": certificate,
            "evaluation": {
                "seeds": list(range(SEED, SEED + EPISODES)),
                "returns": episodes.returns.tolist(),
                "lengths": episodes.lengths.tolist(),
            },
        }
        weights = f"{name.split('/')[-1]}.safetensors"
        with replacing(FOLDER / weights) as path:
            digest = write_pretrained(agent, path, card)
    return {
        "file": weights,
        "sha256": digest,
        "source": source,
        "return_mean": round(float(episodes.returns.mean()), 2),
        "return_std": round(float(episodes.returns.std()), 2),
    }


def check(name: str) -> None:
    """Play the stored agent's episodes again, from its file alone.

    Raises:
        RuntimeError: it reaches other returns.
    """
    card = pretrained_card(name)
    evaluator = Evaluator(partial(pretrained_env, card), EPISODES, SEED)
    returns = evaluator.run(policy_of(load_pretrained(RPPSAC, name))).returns
    evaluator.close()
    difference = float(np.abs(returns - np.array(card["evaluation"]["returns"])).max())
    print(f"{name}: {returns.mean():.2f} +- {returns.std():.2f}, again from its file: differs by {difference:.1e}")
    if difference > 1e-6:
        raise RuntimeError(f"{name}: the file plays other episodes than the run")


def draw(frames: int = 6) -> None:
    """One row of frames for each agent, evenly spaced over the first steps of the first episode."""
    os.environ.setdefault("MUJOCO_GL", "egl")
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    names = list(pretrained_agents())
    figure, axes = plt.subplots(len(names), frames, figsize=(frames * 1.6, len(names) * 1.7), squeeze=False)
    for row, name in zip(axes, names, strict=True):
        card, agent = pretrained_card(name), RPPSAC.pretrained(name)
        options = {} if card["env"]["id"].startswith("rppdyn/Windy") else dict(width=240, height=240)
        env = pretrained_env(card, render_mode="rgb_array", **options)
        steps = {"Reacher-v5": 25, "Walker2d-v5": 120}.get(name, 100)
        observation, _ = env.reset(seed=SEED)
        at = set(np.linspace(0, steps, frames).round().astype(int))
        shown = iter(row)
        for t in range(steps + 1):
            if t in at:
                ax = next(shown)
                ax.imshow(env.render())
                ax.set_title(f"{name.split('/')[-1]}, step {t}" if t == 0 else f"{t}", fontsize=7, loc="left")
            observation, _, terminated, truncated, _ = env.step(agent.predict(observation, deterministic=True)[0])
            if terminated or truncated:
                break
        env.close()
        for ax in row:
            ax.set_axis_off()
    figure.tight_layout(pad=0.4, h_pad=1.2)
    with replacing(PICTURE) as path:
        figure.savefig(path, dpi=100, bbox_inches="tight")
    plt.close(figure)


def table() -> str:
    """What each agent is and reaches, for its page."""
    lines = ["| agent | trained | symmetry, certified | return over ten new episodes |", "| --- | --- | --- | ---: |"]
    for name, line in pretrained_agents().items():
        card = pretrained_card(name)
        steps = int("".join(filter(str.isdigit, line["source"])))
        certificate, policy = card["certificate"], card["policy"]
        generators = ", ".join(generator["name"] for generator in certificate["generators"])
        lines.append(
            f"| `{name}` | `{policy['model']}`, width {policy['hidden']}, {steps:,} steps | {generators}: "
            f"{certificate['verdict']['dynamics']} | {line['return_mean']:.1f} ± {line['return_std']:.1f} |"
        )
    return "\n".join(lines)


def write_table() -> None:
    """Put the table between the marks of docs/pretrained.md."""
    before, _, after = PAGE.read_text(encoding="utf-8").split(MARK)
    PAGE.write_text(f"{before}{MARK}\n\n{table()}\n\n{MARK}{after}", encoding="utf-8")


def main() -> None:
    """Write the agents of the given runs; the others stay as they are."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*", metavar="NAME=RUN", help="a name of --list, and the folder of its run")
    parser.add_argument("--list", action="store_true", help="print the commands and stop")
    parser.add_argument("--draw", action="store_true", help="draw the strip of frames again")
    arguments = parser.parse_args()
    if arguments.list:
        print("\n".join(f"rppdyn train-agent {words}" for words in COMMANDS.values()))
        return
    known = pretrained_agents() if (FOLDER / MANIFEST).is_file() else {}
    for text in arguments.runs:
        name, _, run = text.partition("=")
        if name not in COMMANDS:
            parser.error(f"{name} is none of {', '.join(COMMANDS)}")
        known[name] = store(name, run)
        write_json(FOLDER / MANIFEST, {name: known[name] for name in COMMANDS if name in known})
        check(name)
    write_table()
    if arguments.draw:
        draw()


if __name__ == "__main__":
    main()
