"""Tables of fits at several levels of symmetry: `python docs/results/symmetry_levels.py RUNS... --json FILE`.

Runs of `rppdyn fit-regression` or `rppdyn fit-dynamics`. A level is a task and the group that networks are given. For each one:
interquartile means over seeds with 95 % bootstrap intervals, and paired ratios (exp of the interquartile mean of log ratios,
resampled as pairs; `rppdyn.runs.statistics.paired_ratio`) of each rpp to emlp and mlp. Equivariance errors by generator of the
group are interquartile means: `A0`, `A1`, ... the infinitesimal ones, `h0`, ... the discrete ones.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from reading import gather, over_seeds

from rppdyn.runs import iqm
from rppdyn.runs.files import write_json
from rppdyn.runs.statistics import paired_ratio


def main() -> None:
    """Print the tables, as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", metavar="RUN")
    parser.add_argument("--metric", default="test/error", help="that ratios are of")
    parser.add_argument("--json", metavar="FILE", help="also write what the runs hold")
    arguments = parser.parse_args()
    runs = gather(arguments.runs)
    levels: dict[str, dict[str, dict[str, Any]]] = {}
    plain: dict[str, dict[str, dict[str, Any]]] = {}  # by task: where a level has no mlp, that of the task's own group
    tasks: dict[str, str] = {}
    for run in runs:
        own, name = levels.setdefault(level(run["config"]), {}), model(run["config"])
        if name in own:
            raise ValueError(
                f"two runs of {level(run['config'])}, {name}, which differ in other settings: leave one out"
            )
        own[name] = run["result"]
        tasks[level(run["config"])] = task = level(run["config"], with_group=False)
        if run["config"]["model"]["kind"] == "mlp":
            plain.setdefault(task, {})[name] = run["result"]
    for name, results in sorted(levels.items()):
        print(f"\n**{name}**\n")
        known = dict.fromkeys(n for result in results.values() for n in result["test"])
        names = [n for n in known if "/" in n and n.split("/")[1][0] not in "hA"]
        lost = {n for n in names if any(any(result["test"].get(n) or []) for result in results.values())}
        names = [n for n in names if "diverge" not in n or n in lost - {"rollout/first_divergence"}]
        print("| model | " + " | ".join(f"`{n}`" for n in names) + " |\n" + "| --- " * (len(names) + 1) + "|")
        for key, result in sorted(results.items()):
            print(f"| {key} | " + " | ".join(over_seeds(result["test"].get(n, [])) for n in names) + " |")
        generators = list(
            dict.fromkeys(n for n in known if n.startswith("equivariance/") and n != "equivariance/error")
        )
        print("\n| error by generator | " + " | ".join(f"`{n.split('/')[1]}`" for n in generators) + " |")
        print("| --- " * (len(generators) + 1) + "|")
        for key, result in sorted(results.items()):
            print(f"| {key} | " + " | ".join(f"{float(iqm(result['test'][n])):.2g}" for n in generators) + " |")
        if any(key.startswith("rpp") for key in results):
            print(f"\n| ratio of `{arguments.metric}` | |\n| --- | --- |")
        for first in sorted(key for key in results if key.startswith("rpp")):
            others = {key: of for key, of in results.items() if not key.startswith("rpp")}
            if not any(key.startswith("mlp") for key in others):
                others |= plain.get(tasks[name], {})
            for second, other in sorted(others.items()):
                pairs = zip(*(of["test"][arguments.metric] for of in (results[first], other)), strict=True)
                kept = [pair for pair in pairs if None not in pair]
                centre, (low, high) = paired_ratio(*zip(*kept, strict=True))
                print(f"| {first} / {second} | {centre:.2f} [{low:.2f}, {high:.2f}] |")
    if arguments.json:
        write_json(Path(arguments.json), runs)


def level(config: dict[str, Any], with_group: bool = True) -> str:
    """The task, the group where it is not the task's own, the wind, and the number of data."""
    task = config["task"]
    wind = f", wind {task['wind']:g}" if task.get("wind") else ""
    return (
        task["name"]
        + wind
        + (f", {task['group']}" if task["group"] and with_group else "")
        + f", {task['train']:,} data"
    )


def model(config: dict[str, Any]) -> str:
    """The model and the free variance that it was given."""
    kind, variance = config["model"]["kind"], config["model"]["free_variance"]
    system = {"hamiltonian": " HNN", "ode": " ODE"}.get(config["model"].get("system"), "")
    augmented = ", augmented" if config["task"].get("augment") else ""
    return kind + system + ("" if kind == "emlp" else f", free variance {variance:g}") + augmented


if __name__ == "__main__":
    main()
