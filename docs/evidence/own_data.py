"""Three systems that are not in the package, from file to report: `python docs/evidence/own_data.py --seeds 10`.

A cart-pole's table with velocities, three bodies' arrays with momenta, and Reacher's episodes with controls are written to
files, and each arm is one `rppdyn fit-dynamics data=...`, as a user types it; without seeds, the tables of what has been
measured. An arm is written when it is measured, and one that the file holds is passed over (docs/evidence/protocol.md).
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import json
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats
from scipy.integrate import solve_ivp

from rppdyn.cli import main as rppdyn
from rppdyn.runs import RunFolder

HERE = Path(__file__).parent
TRAJECTORIES = 30
SEED = 1500
COMMON = ["task.split_seed=null", "optimiser.batch_size=500", "optimiser.learning_rate=1e-2", "evaluation.every=100"]
OPTIONS = {
    "cart-pole": ["task.split=[0.2,0.2,0.6]", "task.chunk=3", "model.hidden=32", "optimiser.epochs=120"],
    "bodies": ["task.split=[0.3,0.2,0.5]", "model.hidden=32", "optimiser.epochs=150"],
    "arm": ["task.split=[0.3,0.2,0.5]", "model.hidden=64", "optimiser.epochs=300"],
}
AUTO = ["group=auto", "model=emlp"]
ARMS = {
    "symmetric": ["model=emlp"],
    "control": ["model=rpp", "model.equivariant_variance=1"],
    "plain": ["model=mlp"],
}


def cart_pole(seed: int) -> list[str]:
    """A pole that hangs from a cart without friction: a CSV file with velocities; every other way round is the same."""
    rng, cart, bob, length, g = np.random.default_rng(seed), 1.0, 0.3, 0.8, 9.81

    def field(_: float, s: NDArray) -> list[float]:
        _, theta, v, omega = s
        c, sine = np.cos(theta), np.sin(theta)
        mass = [[cart + bob, bob * length * c], [bob * length * c, bob * length**2]]
        return [v, omega, *np.linalg.solve(mass, [bob * length * omega**2 * sine, -bob * g * length * sine])]

    with open("cartpole.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["run", "time", "x", "theta", "v", "omega"])
        for run in range(TRAJECTORIES):
            times = np.arange(rng.integers(40, 80)) * 0.05
            start = rng.normal(0, [0.3, 0.8, 0.3, 1.5])
            path = solve_ivp(field, (0, times[-1]), start, t_eval=times, rtol=1e-9, atol=1e-9).y.T
            writer.writerows([run, f"{t:.2f}", *(f"{x:.8f}" for x in row)] for t, row in zip(times, path, strict=True))
    return ["data=cartpole.csv", "positions=[x,theta]", "velocities=[v,omega]", "trajectory=run", "group=O(1)"]


def bodies(seed: int, trap: tuple[float, float] = (0.5, 0.5)) -> list[str]:
    """Three bodies of unit mass in a plane, that attract each other and are held by a trap: arrays of positions and momenta."""
    rng = np.random.default_rng(seed)

    def field(_: float, s: NDArray) -> NDArray:
        q, p = s.reshape(2, 3, 2)
        apart = q[None] - q[:, None]
        pull = (apart / ((apart**2).sum(-1, keepdims=True) + 0.25) ** 1.5).sum(1)
        return np.concatenate([p.ravel(), (pull - np.array(trap) * q).ravel()])

    times = np.arange(50) * 0.1
    starts = rng.normal(size=(TRAJECTORIES, 12)) * np.repeat([1.0, 0.5], 6)
    paths = np.stack(
        [solve_ivp(field, (0, times[-1]), start, t_eval=times, rtol=1e-9, atol=1e-9).y.T for start in starts]
    )
    np.savez("bodies.npz", q=paths[..., :6], p=paths[..., 6:])
    return ["data=bodies.npz", "positions=[q]", "momenta=[p]", "time=0.1", "group=D(4)", "rep=3*V"]


def uneven_bodies(seed: int) -> list[str]:
    """The same in a trap that is stiffer along y: no turn leaves that alone."""
    return bodies(seed, (0.3, 1.5))


def reacher(seed: int) -> list[str]:
    """Gymnasium's Reacher under random torques, a Minari dataset: an arm on a table looks alike from all sides."""
    os.environ["MINARI_DATASETS_PATH"] = os.path.abspath("minari")
    rppdyn(["collect", "env=Reacher-v5", "--random", "--seed", str(seed), "--steps", str(50 * TRAJECTORIES), "--name",
            "arm/random-v0"])  # fmt: skip
    columns = ",".join(f'"observations[{k}]"' for k in (0, 2, 1, 3, 6, 7))  # cosine and sine of each angle, velocities
    return ["data=arm/random-v0", f"state=[{columns}]", "controls=[actions]", "time=0.02", "group=D(4)",
            "rep=V+T(0)+3*Pseudoscalar", "control_rep=2*Pseudoscalar"]  # fmt: skip


CELLS = {"cart-pole": cart_pole, "bodies": bodies, "arm": reacher}
DISCOVERIES = {"bodies": bodies, "uneven bodies": uneven_bodies}


@contextmanager
def folder() -> Iterator[None]:
    """A new folder, in which the block works."""
    with tempfile.TemporaryDirectory() as name, contextlib.chdir(name):
        yield


def ran(words: list[str]) -> tuple[RunFolder, float]:
    """The run of the command with these words, and how many seconds of a core it took from the file to the report."""
    start = time.process_time()
    status = rppdyn(["fit-dynamics", *words, "run_dir=run", "device=cpu"])
    if status:
        raise RuntimeError(f"rppdyn fit-dynamics {' '.join(words)}: ended with {status}")
    return RunFolder.open("run"), time.process_time() - start


def fitted(cell: str, arm: str, seed: int, seeds: int, options: list[str]) -> dict[str, Any]:
    """An arm of a cell: one command, whose members each have a split of their own."""
    with folder():
        words = CELLS[cell](seed)
        own = AUTO if arm == "auto" else ARMS[arm]
        words = [word for word in words if arm != "auto" or not word.startswith("group=")]
        run, seconds = ran([*words, *own, f"seed={seed}", f"seeds={seeds}", *COMMON, *OPTIONS[cell], *options])
        test = (run.result() or {})["test"]
        row = {"cell": cell, "arm": arm, "seeds": list(range(seed, seed + seeds)), "values": test["rollout/error"],
               "chunks": test["test/error"], "diverged": test["rollout/diverged"], "seconds": seconds}  # fmt: skip
        for name in ("energy/variation", "equivariance/error"):
            row |= {name: test[name]} if name in test else {}
        return row


def discovered(cell: str, seed: int) -> dict[str, Any]:
    """What `group=auto` finds in one file: the degrees between its generator and a turn, None where it finds nothing."""
    with folder():
        words = [word for word in DISCOVERIES[cell](seed) if not word.startswith("group=")]
        run, seconds = ran(
            [*words, *AUTO, f"seed={seed}", f"task.split_seed={seed}", "model.hidden=4", "optimiser.epochs=1"]
        )
        generators = run.config()["task"]["generators"]
    angles = []
    for A in map(np.array, generators):
        turn = np.array([[0, -1], [1, 0]]) / np.sqrt(2)
        angles.append(float(np.degrees(np.arccos(min(1.0, abs((A * turn).sum()) / np.linalg.norm(A))))))
    return {"cell": f"{cell}, found", "seed": seed, "degrees": angles, "seconds": seconds}


def rounded(value: Any) -> Any:
    """Six significant digits."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, list):
        return [rounded(each) for each in value]
    return {key: rounded(each) for key, each in value.items()} if isinstance(value, dict) else value


def table(rows: list[dict[str, Any]]) -> str:
    """Geometric means over seeds, and paired ratios to the symmetric arm with 95 % t intervals, as Markdown."""
    lines = ["| system | arm | rollout error | chunk error | diverged | ratio symmetric / arm | core seconds |",
             "| --- | --- | ---: | ---: | ---: | ---: | ---: |"]  # fmt: skip
    for cell in CELLS:
        own = {row["arm"]: row for row in rows if row["cell"] == cell}
        for arm, row in own.items():
            values, ratio = np.array(row["values"], dtype=float), "–"
            if arm not in ("symmetric", "auto") and "symmetric" in own:
                logs = np.log(np.array(own["symmetric"]["values"], dtype=float) / values)
                half = stats.t.ppf(0.975, len(logs) - 1) * logs.std(ddof=1) / np.sqrt(len(logs))
                centre, low, high = np.exp([logs.mean(), logs.mean() - half, logs.mean() + half])
                ratio = f"{centre:.2f} [{low:.2f}, {high:.2f}]"
            means = (np.exp(np.log(np.array(row[name], dtype=float)).mean()) for name in ("values", "chunks"))
            lost = f"{100 * np.mean(row['diverged']):.0f} %"
            shown = " | ".join(f"{mean:.3g}" for mean in means)
            lines.append(f"| {cell} | {arm} | {shown} | {lost} | {ratio} | {row['seconds']:.0f} |")
    return "\n".join(lines)


def main() -> None:
    """Measure, or show what has been measured."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--seeds", type=int, default=0)
    parser.add_argument("--cells", nargs="*", default=list(CELLS))
    parser.add_argument("--arms", nargs="*", default=[*ARMS])
    parser.add_argument("--found", nargs="*", default=list(DISCOVERIES), help="cells whose symmetry is looked for")
    parser.add_argument("--auto", action="store_true", help="bodies also with the group that is found")
    parser.add_argument("--json", type=Path, default=HERE / "own_data.json")
    parser.add_argument("--options", nargs="*", default=[])
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    file: Path = arguments.json.resolve()
    rows: list[dict[str, Any]] = json.loads(file.read_text()) if file.exists() else []

    def keep(row: dict[str, Any]) -> None:
        print(rounded(row), flush=True)
        rows.append(rounded(row))
        file.write_text("[\n" + ",\n".join(json.dumps(each) for each in rows) + "\n]\n")

    if arguments.seeds:
        for cell in arguments.cells:
            for arm in (*arguments.arms, *(["auto"] if cell == "bodies" and arguments.auto else [])):
                if not any((row["cell"], row.get("arm")) == (cell, arm) for row in rows):
                    keep(fitted(cell, arm, arguments.seed, arguments.seeds, arguments.options))
        for cell in arguments.found:
            for seed in range(arguments.seed, arguments.seed + arguments.seeds):
                if not any((row["cell"], row.get("seed")) == (f"{cell}, found", seed) for row in rows):
                    keep(discovered(cell, seed))
    print(table(rows))
    for cell in DISCOVERIES:
        found = [row["degrees"] for row in rows if row["cell"] == f"{cell}, found"]
        if found:
            degrees = ", ".join(f"{angle:.2g}" for angles in found for angle in angles) or "nothing"
            print(
                f"{cell}: something found in {sum(map(bool, found))} of {len(found)} files; degrees from a turn: {degrees}"
            )


if __name__ == "__main__":
    main()
