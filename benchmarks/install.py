r"""Time and size of installing the wheel, and what importing it and starting the command line take.

    python benchmarks/install.py --json docs/results/install.json
    python benchmarks/install.py --here                    # this interpreter's processes, nothing installed; --quick too

The wheel is built from a copy of this checkout and installed with constraints.txt into a new virtual environment, once: with
everything it needs (from one more index where TORCH_INDEX names one, as for `make`), then alone (`--no-deps`), which is its own
share. What pip downloaded and what was in its cache is counted from what it says; the rest lay in folders. Imports and
commands are timed there in processes of their own that take turns, interpreter included, bytecode compiled; a ratio is the
median over rounds, between quartiles.
"""

from __future__ import annotations

import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from measuring import ROOT, Timing, begin, command_line, report, write

PEER = "import stable_baselines3"
STATEMENTS = (
    "pass",
    "import torch",
    PEER,
    "import rppdyn",
    "import rppdyn.nn",
    "import rppdyn.envs",
    "import rppdyn.agents",
)
DATA = "from rppdyn.tasks._pendulum import Pendulum, load_trajectories; load_trajectories(Pendulum())"
COMMANDS = ("--help", "--version", "train-agent --help", "fit-dynamics --help")
ASKED = {"Walker2d-v5": 4, "Humanoid-v5": 6}  # processor seconds of certifying it, with nothing kept
LARGEST = 8
NO_SOURCE = {".git", ".venv", "runs", "build", "dist", "rppdyn.egg-info"}  # at the top of a checkout


def run_to_end(command: Sequence[str]) -> str:
    """What a command prints; a failure is told with its last lines."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command[:6])} ... failed:\n{(done.stdout + done.stderr)[-1500:]}")
    return done.stdout


def timed_run(command: Sequence[str]) -> tuple[float, str]:
    """Seconds and output of a command."""
    start = time.perf_counter()
    said = run_to_end(command)
    return time.perf_counter() - start, said


def size(path: Path) -> int:
    """Bytes of a folder's files, bytecode left out."""
    return sum(f.lstat().st_size for f in path.rglob("*") if f.is_file() and "__pycache__" not in f.parts)


def install(folder: Path) -> tuple[Path, dict[str, Any]]:
    """Build the wheel and install it; the new environment's interpreter, and what it took."""
    found: dict[str, Any] = {}
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    left_out = lambda place, names: NO_SOURCE & set(names) if Path(place) == ROOT else ()  # noqa: E731
    source = shutil.copytree(ROOT, folder / "source", symlinks=True, ignore=left_out)
    found["build the wheel, s"], _ = timed_run([*pip, "wheel", "--no-deps", "--wheel-dir", str(folder), str(source)])
    (wheel,) = folder.glob("*.whl")
    found["wheel, kB"] = wheel.stat().st_size / 1e3
    found["make the environment, s"], _ = timed_run([sys.executable, "-m", "venv", str(folder / "venv")])
    python = folder / "venv" / "bin" / "python"
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "install", "--progress-bar", "off"]
    index = ["--extra-index-url", os.environ["TORCH_INDEX"]] if os.environ.get("TORCH_INDEX") else []
    found["install everything, s"], said = timed_run([*pip, *index, "-c", str(ROOT / "constraints.txt"), str(wheel)])
    found["packages"] = len(re.findall(r"^(?:Collecting|Processing) ", said, re.MULTILINE))
    found["of these downloaded"] = len(re.findall(r"^\s*Downloading \S+\.(?:whl|tar\.gz) ", said, re.MULTILINE))
    found["of these from pip's cache"] = len(re.findall(r"^\s*Using cached ", said, re.MULTILINE))
    again = [*pip, "--no-deps", "--force-reinstall", str(wheel)]
    found["install the wheel alone, s"], _ = timed_run(again)
    (site,) = (folder / "venv" / "lib").glob("python*/site-packages")
    sizes = {entry.name: size(entry) / 1e6 for entry in site.iterdir() if entry.is_dir()}
    found["installed, MB"] = sum(sizes.values())
    found["rppdyn, MB"] = sizes["rppdyn"]
    found["largest, MB"] = dict(sorted(sizes.items(), key=lambda item: -item[1])[:LARGEST])
    return python, found


def process(command: Sequence[str], timing: Timing) -> None:
    """Start a process with an empty cache, wait for it, and note its times."""
    with tempfile.TemporaryDirectory() as folder:
        environment, nowhere = os.environ | {"RPPDYN_CACHE_DIR": folder}, subprocess.DEVNULL
        before, start = os.times(), time.perf_counter()
        done = subprocess.run(command, stdout=nowhere, stderr=subprocess.PIPE, text=True, cwd=folder, env=environment)
        if done.returncode:
            raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-1500:]}")
        timing.wall.append(time.perf_counter() - start)
        after = os.times()
    timing.cpu.append(after.children_user + after.children_system - before.children_user - before.children_system)


def processes(python: Path, rounds: int) -> dict[str, list[Timing]]:
    """Fresh processes in turns: what imports and prints help, beside stable-baselines3's import, and what a user waits for."""
    rppdyn = str(python.with_name("rppdyn"))
    starts = {statement: [str(python), "-c", statement] for statement in STATEMENTS}
    starts |= {f"rppdyn {words}": [rppdyn, *words.split()] for words in COMMANDS}
    waits = {"data of the pendulum": [str(python), "-c", DATA]}
    waits |= {f"certify {env}": [rppdyn, "certify", env] for env in ASKED}
    timings = {name: Timing(name, PEER if name in starts else None) for name in starts | waits}
    for command in starts.values():  # bytecode is compiled, files are read
        process(command, Timing("warm-up"))
    for _ in range(rounds):
        for name, command in (starts | waits).items():
            process(command, timings[name])
    for name, seconds in zip(waits, (2, *ASKED.values()), strict=True):
        print(
            f"  {name}: {statistics.median(timings[name].cpu):.1f} s of processor time, of {seconds} asked", flush=True
        )
    return {"starts": [timings[name] for name in starts], "waits": [timings[name] for name in waits]}


def main() -> None:
    """Parse arguments, install, measure, print, and write the raw times."""
    parser = command_line(__doc__, rounds=9, quick=2)
    parser.add_argument("--here", action="store_true", help="install nothing: time this interpreter's imports")
    arguments, where = begin(parser, "pip", "stable-baselines3")
    with tempfile.TemporaryDirectory() as folder:
        found: dict[str, Any] = {}
        python = Path(sys.executable)
        if not (arguments.here or arguments.quick):
            python, found = install(Path(folder))
            for name, value in found.items():
                words = value
                if isinstance(value, dict):
                    words = ", ".join(f"{package} {megabytes:.0f}" for package, megabytes in value.items())
                elif isinstance(value, float):
                    words = f"{value:.1f}"
                print(f"  {name:28} {words}", flush=True)
        times = processes(python, arguments.rounds)
    report(f"Processes of their own, {python}", times["starts"])
    write(arguments.json, where, {"installation": found, "times": times})


if __name__ == "__main__":
    main()
