r"""Time and size of installing the wheel, and what importing it and starting the command line take.

    python benchmarks/install.py --json docs/results/install.json
    python benchmarks/install.py --here                    # this interpreter's imports alone, nothing installed

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
COMMANDS = ("--help", "--version", "train-agent --help", "fit-dynamics --help")
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
    """Start a process, wait for it, and note its times."""
    before, start = os.times(), time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=tempfile.gettempdir())
    timing.wall.append(time.perf_counter() - start)
    after = os.times()
    timing.cpu.append(after.children_user + after.children_system - before.children_user - before.children_system)


def starts(python: Path, rounds: int) -> list[Timing]:
    """Fresh processes that import, and that print help; in turns."""
    commands = {statement: [str(python), "-c", statement] for statement in STATEMENTS}
    commands |= {f"rppdyn {words}": [str(python.with_name("rppdyn")), *words.split()] for words in COMMANDS}
    for command in commands.values():  # bytecode is compiled, files are read
        process(command, Timing("warm-up"))
    timings = {name: Timing(name, PEER) for name in commands}
    for _ in range(rounds):
        for name, command in commands.items():
            process(command, timings[name])
    return list(timings.values())


def main() -> None:
    """Parse arguments, install, measure, print, and write the raw times."""
    parser = command_line(__doc__, rounds=9, quick=3)
    parser.add_argument("--here", action="store_true", help="install nothing: time this interpreter's imports")
    arguments, where = begin(parser, "pip", "stable-baselines3")
    with tempfile.TemporaryDirectory() as folder:
        found: dict[str, Any] = {}
        python = Path(sys.executable)
        if not arguments.here:
            python, found = install(Path(folder))
            for name, value in found.items():
                words = value
                if isinstance(value, dict):
                    words = ", ".join(f"{package} {megabytes:.0f}" for package, megabytes in value.items())
                elif isinstance(value, float):
                    words = f"{value:.1f}"
                print(f"  {name:28} {words}", flush=True)
        timings = starts(python, arguments.rounds)
    report(f"Processes of their own, {python if arguments.here else 'in the new environment'}", timings)
    write(arguments.json, where, {"installation": found, "times": {"starts": timings}})


if __name__ == "__main__":
    main()
