"""Models of continuous filters and operators by the command line: `python docs/evidence/fit_image.py --json FILE`; a table.

Each row is a command of `rppdyn fit-image`; runs are kept in a temporary folder, and what the file holds is passed over.
"""

from __future__ import annotations

import argparse
import json
import shlex
import tempfile
import time
from pathlib import Path
from statistics import mean
from typing import Any

import torch

from rppdyn.jobs import fit_image
from rppdyn.jobs.config import compose
from rppdyn.runs import RunFolder, provenance
from rppdyn.runs.files import write_json

COMMON = "optimiser.epochs=30 evaluation.every=30 seed=1300 seeds=3 device=cpu threads=1"
COMMANDS = (
    "task=upright model=conv model.batch_norm=true",
    "task=upright model=anchored",
    "task=upright model=anchored model.filters.share=0.5",
    "task=upright model=p4",
    "task=upright model=se2",
    "task=upright model=scaling",
    "task=upright model=se2+relaxed",
    "task=rotated task.canvas=8 model=conv model.batch_norm=true",
    "task=rotated task.canvas=8 model=p4",
    "task=rotated task.canvas=8 model=se2",
    "task=rotated_odd task.canvas=9 model=l_conv",
    "task=rotated_odd task.canvas=9 model=powernet",
    "task=upright model=se2+relaxed model.filters.omega=0.1",
    "task=upright model=se2+relaxed model.filters.omega=0.1 model.filters.penalty=0.01",
    "task=upright model=se2+relaxed objective=marginal_likelihood",
    "task=upright model=se2+relaxed objective=marginal_likelihood marginal_likelihood.curvature=joint "
    "marginal_likelihood.data=100 marginal_likelihood.fisher=sampled",
)


def measured(command: str, folder: Path) -> dict[str, Any]:
    """Run a command; accuracies in percent, one for each seed, and omegas."""
    start = time.process_time()
    config: Any = compose.composed("fit_image", [*shlex.split(command), *shlex.split(COMMON), f"run_dir={folder}"])
    result = fit_image.run(config)
    images, models = fit_image.load_image_models(config, RunFolder.open(folder))
    train = []
    for model, data in zip(models, images.data, strict=True):
        with torch.no_grad():
            train.append(100 * float((model(data.train.x).argmax(-1) == data.train.y).double().mean()))
    return {
        "command": command,
        "seeds": list(config.all_seeds),
        "test": [100 - 100 * e for e in result.test["test/error"]],
        "train": train,
        "parameters": sum(p.numel() for p in models[0].parameters()),
        "omega": {name: values for name, values in result.test.items() if name.startswith("omega/")},
        "seconds": time.process_time() - start,
        "provenance": provenance(),
    }


def main() -> None:
    """Run what is not there yet, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, required=True)
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = json.loads(arguments.json.read_text()) if arguments.json.exists() else []
    for command in COMMANDS:
        if command not in [row["command"] for row in rows]:
            with tempfile.TemporaryDirectory() as folder:
                rows.append(measured(command, Path(folder, "run")))
            write_json(arguments.json, rows)
    for row in rows:
        test, train = (f"{mean(row[k]):.1f} ({min(row[k]):.1f}, {max(row[k]):.1f})" for k in ("test", "train"))
        print(f"| `{row['command']}` | {row['parameters']} | {train} | {test} | {row['seconds']:.0f}")
        for name, values in row["omega"].items():
            print("   ", name, " ".join(f"{v:.2f}" for v in values))


if __name__ == "__main__":
    main()
