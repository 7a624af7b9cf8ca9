"""Twenty actions of a first user, in an empty folder: commands typed as the pages have them, smaller where they take sizes.

    make newcomer                       or: python tests/acceptance/newcomer.py [FOLDER]

Each action names its page, and its command must stand there. What is added are sizes alone (steps, seeds, states). RUN is the
folder that an earlier action has printed. An action fails unless it exits with 0 and leaves the file, or prints the line, that
is promised. Installing is left aside.
"""

from __future__ import annotations

import math
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
AGENT = "agent.learning_starts=20 agent.batch_size=8 model.hidden=8 evaluation.every=40 evaluation.episodes=1"
FIT = "model.hidden=8 optimiser.epochs=2"


@dataclass(frozen=True)
class Action:
    """A command of a page.

    Attributes:
        page: where it stands, in the repository.
        command: as it stands there; "python" takes the page's Python blocks in the place of a command.
        promised: a file that is there afterwards, or a pattern that is printed.
        sizes: what is added.
        run: the command's name whose run folder RUN is.
        keep: the name by which later actions find the run folder that this one has printed.
        before: makes what the user brings: data, files copied from the examples.
    """

    page: str
    command: str
    promised: str
    sizes: str = ""
    run: str = ""
    keep: str = ""
    before: Callable[[Path], None] | None = None


def examples(folder: Path) -> None:
    """Copy the robot, as its page says."""
    for name in ("crawler.xml", "crawler.py"):
        shutil.copy(ROOT / "docs" / "examples" / name, folder)


def cartpole(folder: Path) -> None:
    """Trajectories of the user's own: twelve swings of a cart-pole by small angles."""
    rows = ["run,time,x,theta,v,omega"]
    for run in range(12):
        a, b = 0.1 + 0.02 * run, 0.3 - 0.01 * run
        for i in range(30):
            t = 0.1 * i
            rows.append(f"{run},{t:.1f},{a * math.cos(t):.6f},{b * math.cos(2 * t):.6f},"
                        f"{-a * math.sin(t):.6f},{-2 * b * math.sin(2 * t):.6f}")  # fmt: skip
    (folder / "cartpole.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")


def new_data(folder: Path) -> None:
    """States to predict from."""
    import numpy as np

    np.savez(folder / "new.npz", state=np.zeros((3, 4)) + 0.1, times=np.array([0.0, 0.1, 0.2]))


# fmt: off
ACTIONS = [
    Action("README.md", "python", r"0 is equivariant|[0-9]e-|0\.\d"),
    Action("README.md", "rppdyn certify Humanoid-v5 --rank", "right_knee has stiffness 0", "--states 40"),
    Action("docs/pretrained.md", "rppdyn evaluate-agent pretrained:rppdyn/WindyPendulum-v0 --video pendulum.gif --seed 3",
           "pendulum.gif", "--episodes 1"),
    Action("docs/pretrained.md", "rppdyn evaluate-agent pretrained:Walker2d-v5", "mean return", "--episodes 1"),
    Action("docs/pretrained.md", "rppdyn equivariance pretrained:rppdyn/WindyPendulum-v0", "quarter turn",
           "--episodes 1 --states 20"),
    Action("docs/pretrained.md", "rppdyn export pretrained:Reacher-v5 --torch reacher.pt2", "reacher.pt2", "--states 50"),
    Action("docs/jobs/train-agent.md", "rppdyn train-agent env=Walker2d-v5 model=rpp seed=0 total_steps=100000",
           "learning curve", f"total_steps=80 {AGENT}", keep="agent"),
    Action("docs/jobs/train-agent.md", "rppdyn train-agent --resume RUN total_steps=200000", "120 of 120 steps",
           "total_steps=120", run="agent"),
    Action("docs/jobs/own-robot.md", "rppdyn certify crawler.xml", "left-right", "--states 40", before=examples),
    Action("docs/jobs/own-robot.md", "rppdyn certify crawler:Crawler-v0", "reward", "--states 40"),
    Action("docs/jobs/own-robot.md", "rppdyn train-agent env=crawler:Crawler-v0 model=rpp total_steps=50000",
           "learning curve", f"total_steps=80 {AGENT}", keep="crawler"),
    Action("docs/jobs/own-data.md", "rppdyn fit-dynamics data=cartpole.csv 'positions=[x,theta]' 'velocities=[v,omega]' "
           "trajectory=run 'group=O(1)'", "rmse", f"{FIT} task.chunk=3", keep="own", before=cartpole),
    Action("docs/jobs/fit-dynamics.md", "rppdyn fit-dynamics task=windy_pendulum model=rpp_hnn seeds=10", "rollout/error",
           f"seeds=1 {FIT} task.train=20 task.validation=10 task.test=10 task.horizon=2 rollout.trajectories=2"),
    Action("docs/jobs/fit-regression.md", "rppdyn fit-regression task=inertia model=rpp seeds=10", "test",
           f"seeds=2 {FIT} task.train=50 task.validation=50 task.test=50", keep="fit"),
    Action("docs/jobs/predict.md", "rppdyn predict RUN --data new.npz --out predicted.npz", "predicted.npz", run="own",
           before=new_data),
    Action("docs/jobs/report.md", "rppdyn report RUN", "report.html", run="fit"),
    Action("docs/jobs/collect.md", "rppdyn collect env=Swimmer-v5 --random --steps 50000", "Swimmer",
           "--steps 1100 --name newcomer/random-v0"),
    Action("docs/jobs/fit-image.md", "rppdyn fit-image task=digit model=f_fc+conv seeds=5", "test",
           "seeds=1 optimiser.epochs=1 task.train=64 task.validation=32 model.width=2"),
    Action("docs/jobs/evaluate-agent.md", "rppdyn evaluate-agent RUN", "mean return", "--episodes 1", run="agent"),
    Action("docs/jobs/certify.md", "rppdyn certify Walker2d-v5", "leg swap", "--states 40"),
]
# fmt: on


def on_page(action: Action) -> bool:
    """Whether the command stands on its page, alone or with more behind it."""
    text = (ROOT / action.page).read_text(encoding="utf-8")
    return "```python" in text if action.command == "python" else action.command in text


def words_of(action: Action, runs: dict[str, str]) -> list[str]:
    """The command as typed, RUN filled in and sizes at the end; what is said twice is said the last time."""
    if action.command == "python":
        blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / action.page).read_text(encoding="utf-8"), re.M | re.S)
        return [sys.executable, "-c", "\n".join(blocks)]
    words = [runs[action.run] if word == "RUN" else word for word in shlex.split(action.command)]
    sizes = shlex.split(action.sizes)
    taken = {word.split("=")[0] for word in sizes if "=" in word} | {word for word in sizes if word.startswith("--")}
    kept: list[str] = []
    for i, word in enumerate(words):
        if word.split("=")[0] in taken or (i and words[i - 1] in taken and words[i - 1].startswith("--")):
            continue
        kept.append(word)
    return [sys.executable, "-m", "rppdyn.cli", *kept[1:], *sizes]


def run(folder: Path) -> list[str]:
    """Play all actions; returns a line for each that failed."""
    runs: dict[str, str] = {}
    failed = []
    kept_here = {"MINARI_DATASETS_PATH": str(folder / "minari")}
    for number, action in enumerate(ACTIONS, 1):
        if action.before is not None:
            action.before(folder)
        start = time.monotonic()
        try:
            words = words_of(action, runs)
        except KeyError as error:
            failed.append(f"{number} {action.command}: no run {error}")
            continue
        done = subprocess.run(words, cwd=folder, capture_output=True, text=True, env=os.environ | kept_here)
        said = done.stdout + done.stderr
        if action.keep and (found := re.search(r"run folder +(\S+)", said)):
            runs[action.keep] = found[1]
        kept = (folder / action.promised).is_file() or re.search(action.promised, said)
        good = done.returncode == 0 and kept and on_page(action)
        print(
            f"{number:2d} {'ok  ' if good else 'FAIL'} {time.monotonic() - start:5.1f} s  {action.page}: {action.command}",
            flush=True,
        )
        if not good:
            why = (
                "stands on no page" if not on_page(action) else f"exit {done.returncode}, {action.promised!r} promised"
            )
            failed.append(f"{number} {action.command}: {why}\n{said[-1500:]}")
    return failed


def main() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(sys.argv[1]) if sys.argv[1:] else Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        failed = run(folder)
    print("\n".join(failed) or f"{len(ACTIONS)} of {len(ACTIONS)} actions")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
