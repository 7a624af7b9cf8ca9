"""Three systems that are not in the package, from file to fit: `python docs/evidence/own_data.py --seeds 1500 ... --json FILE`.

A cart-pole's table with velocities, three bodies' arrays with momenta, and Reacher's episodes with controls are made with each
seed, and fitted as a user would by `rppdyn fit-dynamics data=...`; without seeds, the tables of what is in the file. Each arm of
each seed is written when it is measured, and one that the file holds is passed over (docs/evidence/protocol.md).
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.integrate import solve_ivp

from rppdyn.cli import main as rppdyn
from rppdyn.runs import RunFolder

HERE = Path(__file__).parent
TRAJECTORIES = 30
ARMS = {
    "symmetric": ["model=emlp"],
    "relaxed": ["model=rpp"],
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
    return ["data=bodies.npz", "positions=[q]", "momenta=[p]", "time=0.1", "group=O(2)", "rep=3*V"]


def uneven_bodies(seed: int) -> list[str]:
    """The same in a trap that is stiffer along y: no turn leaves that alone."""
    return bodies(seed, (0.3, 1.5))


def reacher(seed: int) -> list[str]:
    """Gymnasium's Reacher under random torques, a Minari dataset: an arm on a table looks alike from all sides."""
    os.environ["MINARI_DATASETS_PATH"] = os.path.abspath("minari")
    rppdyn(["collect", "env=Reacher-v5", "--random", "--seed", str(seed), "--steps", str(50 * TRAJECTORIES), "--name",
            "arm/random-v0"])  # fmt: skip
    columns = ",".join(f'"observations[{k}]"' for k in (0, 2, 1, 3, 6, 7))  # cosine and sine of each angle, velocities
    return ["data=arm/random-v0", f"state=[{columns}]", "controls=[actions]", "time=0.02", "group=O(2)",
            "rep=V+T(0)+3*Pseudoscalar", "control_rep=2*Pseudoscalar"]  # fmt: skip


CELLS = {"cart-pole": cart_pole, "bodies": bodies, "arm": reacher, "uneven bodies": uneven_bodies}
OWN_ARMS = {"bodies": [*ARMS, "auto"], "uneven bodies": ["auto"]}


def measured(cell: str, arm: str, seed: int, options: list[str]) -> dict[str, Any]:
    """One run of the command, in a folder of its own."""
    home = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            words = CELLS[cell](seed)
            if arm == "auto":
                words = ["group=auto" if word.startswith("group=") else word for word in words]
            chosen = ARMS.get(arm, [])
            start = time.perf_counter()
            status = rppdyn(["fit-dynamics", *words, *chosen, f"seed={seed}", f"task.split_seed={seed}", "run_dir=run",
                             "device=cpu", *options])  # fmt: skip
            seconds = time.perf_counter() - start
            if status:
                raise RuntimeError(f"{cell}, {arm}, seed {seed}: ended with {status}")
            run = RunFolder.open("run")
            test = (run.result() or {})["test"]
            found = {"error": test["rollout/error"][0], "chunk": test["test/error"][0], "validation": test["validation/error"][0], "seconds": seconds,
                     "diverged": test["rollout/diverged"][0], "equivariance": test.get("equivariance/error", [None])[0],
                     "energy": test.get("energy/variation", [None])[0]}  # fmt: skip
            if arm == "auto":
                found["generators"] = run.config()["task"]["generators"]
            return found
        finally:
            os.chdir(home)


def main() -> None:
    """Measure, or show what has been measured."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, nargs="*", default=[])
    parser.add_argument("--cells", nargs="*", default=list(CELLS))
    parser.add_argument("--arms", nargs="*")
    parser.add_argument("--json", type=Path, default=HERE / "own_data.json")
    parser.add_argument("--options", nargs="*", default=[])
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    file: Path = arguments.json.resolve()
    rows: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    for seed in arguments.seeds:
        for cell in arguments.cells:
            for arm in arguments.arms or OWN_ARMS.get(cell, ARMS):
                key = f"{cell},{arm},{seed}"
                if key not in rows:
                    rows[key] = measured(cell, arm, seed, arguments.options)
                    print(key, {k: (float(f"{v:.3g}") if isinstance(v, float) else v) for k, v in rows[key].items()}, flush=True)
                    file.write_text(json.dumps(rows))


if __name__ == "__main__":
    main()
