"""Count the files and functions of the package that a job passes through, and print the files in the order of first entry.

    python benchmarks/walk.py [--files] [--plot docs/architecture.png]

All modules are imported before, so that what is counted is what a run calls and not what it loads. Jobs are small and run in
this process by the command's own `main`, in a folder of their own.
"""

from __future__ import annotations

import argparse
import importlib
import os
import pkgutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import chdir, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from types import FrameType

import matplotlib.pyplot as plt

import rppdyn
from rppdyn.runs.figures import COLOURS

ROOT = Path(rppdyn.__file__).resolve().parents[1]
AGENT = ("env=Hopper-v5", "model.hidden=16", "agent.learning_starts=50", "agent.batch_size=16", "evaluation.episodes=1")
JOBS = {
    "train-agent": ("train-agent", *AGENT, "total_steps=100", "evaluation.every=100", "device=cpu", "run_dir=agent"),
    "fit-dynamics": (
        "fit-dynamics", "task=pendulum", "model.hidden=8", "task.train=20", "optimiser.epochs=2", "run_dir=dynamics",
    ),
    "equivariance of a transition model": ("equivariance", "transition"),
}  # fmt: skip
FLOORS = (
    ("errors",), ("groups", "reps", "runs", "settings"), ("basis",), ("nn", "priors", "compression", "equivariance"),
    ("dynamics", "images", "tasks"), ("envs",), ("agents",), ("jobs",), ("cli",),
)  # fmt: skip
BEFORE = {
    "equivariance of a transition model": (
        ("collect", "env=Swimmer-v5", "--random", "--steps", "3000", "--name", "rppdyn/walk/swimmer-v0"),
        (
            "fit-transition",
            "dataset=rppdyn/walk/swimmer-v0",
            "task.trajectories=10",
            "task.train=50",
            "model.hidden=16",
            "optimiser.epochs=1",
            "run_dir=transition",
        ),
    )
}


def import_all() -> None:
    """Every module of the package that can be imported here."""
    for module in pkgutil.walk_packages(rppdyn.__path__, "rppdyn.", onerror=lambda name: None):
        if module.name.startswith("rppdyn.integrations"):
            continue  # of packages that need not be installed
        importlib.import_module(module.name)


def walk(work: Callable[[], int]) -> tuple[list[str], int]:
    """The package's files in the order in which their functions were first called, and how many functions were."""
    files: dict[str, None] = {}
    functions = set()

    def look(frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        if event != "call" or code in functions or not (path := code.co_filename).startswith(str(ROOT)):
            return
        if ".venv" not in path and path != __file__:
            functions.add(code)
            files.setdefault(Path(path).resolve().relative_to(ROOT).as_posix())

    sys.setprofile(look)
    try:
        status = work()
    finally:
        sys.setprofile(None)
    if status:
        raise SystemExit(f"a job ended with status {status}: run it by itself")
    return list(files), len(functions)


def plot(path: Path, found: dict[str, tuple[list[str], int]]) -> None:
    """Draw the files of each job: floors of the house upwards, the order of first entry to the right."""
    figure, panels = plt.subplots(1, len(found), figsize=(11, 4.2), sharey=True, layout="constrained")
    height = {room: i for i, floor in enumerate(FLOORS) for room in floor}
    for axes, (job, (files, functions)) in zip(panels, found.items(), strict=True):
        rooms = [file.removeprefix("rppdyn/").split("/")[0].removesuffix(".py") for file in files]
        axes.plot([height[room] for room in rooms], color=COLOURS[0], linewidth=0.6, alpha=0.5)
        axes.scatter(range(len(rooms)), [height[room] for room in rooms], s=12, color=COLOURS[0])
        axes.set_title(f"{job}\n{len(files)} files, {functions} functions", fontsize=9)
        axes.set_xlabel("files, in the order of first entry", fontsize=8)
        axes.tick_params(labelsize=8)
        axes.grid(axis="y", alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_yticks(range(len(FLOORS)), [", ".join(floor) for floor in FLOORS])
    figure.savefig(path, dpi=110)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the jobs, and print or write what they passed through."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--files", action="store_true", help="name the files, in the order of first entry")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="also draw them, floor by floor")
    parsed = parser.parse_args(arguments)
    import_all()
    from rppdyn.cli import main as rppdyn_main

    found: dict[str, tuple[list[str], int]] = {}
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        os.environ["MINARI_DATASETS_PATH"] = folder
        for job, command in JOBS.items():
            with redirect_stdout(StringIO()), redirect_stderr(StringIO()) as errors:
                for before in BEFORE.get(job, ()):
                    if rppdyn_main(list(before)):
                        raise SystemExit(errors.getvalue())
                files, functions = walk(lambda command=command: rppdyn_main(list(command)))
            found[job] = files, functions
            print(f"{job}: {len(files)} files, {functions} functions")
            if parsed.files:
                print(*(f"    {file}" for file in files), sep="\n")
    if parsed.plot:
        plot(parsed.plot, found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
