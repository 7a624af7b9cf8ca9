"""Make the golden set: three agents and six runs, with the numbers that the code which made them had for them.

    git worktree add /tmp/old 17d2540
    cd /tmp && PYTHONPATH=/tmp/old python .../tests/golden/make.py OUT

writes `OUT`, which is this folder's `set` but for last digits. `test_golden.py` says what is asked of it, and asks today's code
for the same numbers.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from test_golden import inputs, load_agent, policy_numbers, resumed_numbers, run_numbers

from rppdyn import agents

AGENT = (
    "threads=1", "device=cpu", "model.hidden=8", "model.num_layers=1", "agent.learning_starts=40", "agent.batch_size=16",
    "agent.buffer_size=400", "evaluation.every=50", "evaluation.episodes=1", "evaluation.states=16",
)  # fmt: skip
FIT = ("threads=1", "device=cpu", "seeds=2", "checkpoint_every=2", "evaluation.every=2", "evaluation.states=16")
RUNS = {
    "agent": ("train-agent", *AGENT, "env=InvertedPendulum-v5", "model=rpp", "total_steps=150", "checkpoint_every=150"),
    "half": ("train-agent", *AGENT, "env=InvertedPendulum-v5", "model=rpp", "model.free_variance=1e-2",
             "total_steps=140", "checkpoint_every=100"),
    "windy_pendulum": ("fit-dynamics", *FIT, "task=windy_pendulum", "model=rpp_hnn", 'model.hidden=["4*T(0)+2*T(1)","8*T(0)"]',
                       "optimiser.epochs=4", "optimiser.batch_size=10", "task.train=20", "task.validation=10", "task.test=10",
                       "task.horizon=2.0", "rollout.trajectories=4"),
    "regression": ("fit-regression", *FIT, "task=inertia", "model=rpp", "model.hidden=16", "model.num_layers=2",
                   "optimiser.epochs=4", "optimiser.batch_size=50", "task.train=100", "task.validation=50", "task.test=50"),
    "image": ("fit-image", *FIT, "task=digit", "model=f_fc+conv", "model.width=2", "optimiser.epochs=2",
              "optimiser.batch_size=32", "task.train=64", "task.validation=32"),
    "trajectories": ("fit-dynamics", *FIT, "data=circles.csv", "positions=[x,y]", "velocities=[u,v]", "trajectory=run",
                     "group=O(2)", "model.hidden=8", "model.num_layers=2", "optimiser.epochs=4", "optimiser.batch_size=16",
                     "report=false", "rollout.trajectories=2"),
}  # fmt: skip
"""The run `half` is killed after its checkpoint at step 100."""

AGENTS = {
    "walker_rpp.zip": ("RPPSAC", "Walker2d-v5", dict(model="rpp", free_variance=1e-2)),
    "reacher_rpp.zip": ("RPPSAC", "Reacher-v5", dict(model="rpp", free_variance=1e-2, network_kwargs=dict(free_scale=0.1))),
    "pendulum_emlp_ppo.zip": ("RPPPPO", "InvertedPendulum-v5", dict(model="emlp")),
}  # fmt: skip
"""File, class, environment, options of the policy."""


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "MPLBACKEND": "Agg"}


def circles() -> str:
    """Bodies on circles about the middle, as text of a CSV file."""
    lines = ["run,t,x,y,u,v"]
    for run, (radius, phase) in enumerate(
        [(0.6, 0.0), (0.9, 1.0), (1.1, 2.5), (0.7, 4.0), (1.3, 5.0), (1.0, 3.0), (0.8, 2.0)]
    ):
        for t in np.arange(12) * 0.1:
            x, y = radius * np.cos(t + phase), radius * np.sin(t + phase)
            lines.append(f"{run},{t:.1f},{x:.6f},{y:.6f},{-y:.6f},{x:.6f}")
    return "\n".join(lines) + "\n"


def make_agents(out: Path) -> None:
    for name, (kind, env, options) in AGENTS.items():
        torch.manual_seed(0)
        options = options | dict(hidden=8, num_layers=1)
        sac = dict(learning_starts=40, batch_size=16, buffer_size=200, learning_rate=1e-3)
        ppo = dict(n_steps=64, batch_size=32, n_epochs=2)
        settings = sac if kind == "RPPSAC" else ppo
        agent = getattr(agents, kind)("RPPPolicy", env, seed=0, device="cpu", policy_kwargs=options, **settings)
        agent.learn(120).save(out / name)


def make_runs() -> None:
    """In the current folder."""
    Path("circles.csv").write_text(circles())
    for name, (verb, *words) in RUNS.items():
        seeds = ("seeds=2",) if name == "agent" else ()
        command = [sys.executable, "-m", "rppdyn.cli", verb, *words, *seeds, f"run_dir={name}"]
        process = subprocess.Popen(command, env=environment())
        if name == "half":
            while not list(Path(name).glob("checkpoints/step-*/manifest.json")):
                time.sleep(0.005)
                assert process.poll() is None
            process.send_signal(signal.SIGKILL)
            process.wait()
            assert not Path(name, "result.json").exists(), "it ended before it was killed"
        else:
            assert process.wait() == 0, name


def strip(folder: Path) -> None:
    """Leave out what runs load without."""
    for unneeded in ("figures", "events"):
        for path in list(folder.rglob(unneeded)):
            shutil.rmtree(path)
    for pattern in (".lock", "timing.jsonl", "report.html", "equivariance.json", "agent/*/model.zip"):
        for path in list(folder.glob("**/" + pattern)):
            path.unlink()
    for path in list(folder.rglob("checkpoints")):
        if path.parent.name != "half":
            shutil.rmtree(path)
    for path in folder.rglob("result.json"):
        result = json.loads(path.read_text())
        result["provenance"]["platform"] = "Linux"
        path.write_text(json.dumps(result, indent=1) + "\n")
    for path in folder.glob("*.zip"):
        with zipfile.ZipFile(path) as file:
            members = {name: file.read(name) for name in file.namelist() if name != "system_info.txt"}
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
            for name, content in members.items():
                file.writestr(name, content)


def main() -> None:
    out = Path(sys.argv[1]).resolve()
    out.mkdir(parents=True)
    make_agents(out)
    os.chdir(out)
    make_runs()
    strip(out)
    expected: dict[str, Any] = {name: policy_numbers(load_agent(out / name), *inputs(name)) for name in AGENTS}
    copy = out.with_name(out.name + "-copy")
    shutil.copytree(out, copy)
    os.chdir(copy)
    runs = ["agent/seed0", "agent/seed1", *[name for name in RUNS if name not in ("agent", "half")]]
    expected |= {run: run_numbers(run) for run in runs}
    expected["half"] = resumed_numbers()
    (out / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")


if __name__ == "__main__":
    main()
