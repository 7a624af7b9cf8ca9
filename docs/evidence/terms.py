"""Mutants of maps of observations: `python docs/evidence/terms.py --json FILE.json`; section 12 of `protocol.md`."""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

import gymnasium as gym
import mujoco
import numpy as np

from rppdyn.envs import compiled_terms
from rppdyn.envs.certification._evidence import Comparison
from rppdyn.envs.terms import CompiledTerms, TermSteps, step_terms
from rppdyn.runs import provenance

STATES, SEED, MUTANTS = 40, 2020, 1000
TOLERANCE = 1e-6  # of an entry's change in a step
KINDS = ("sign", "index", "leg", "history", "grid")
ANT_FEET = [f"{leg}_ankle_geom" for leg in ("left", "right", "third", "fourth")]


def mjlab_model(file: str) -> mujoco.MjModel:
    """A robot of the mjlab wheel, on a plane."""
    found = find_spec("mjlab")
    if found is None or not found.submodule_search_locations:
        raise SystemExit("mjlab is not installed: pip install --no-deps mjlab")
    spec = mujoco.MjSpec.from_file(str(Path(found.submodule_search_locations[0]) / "asset_zoo" / "robots" / file))
    spec.worldbody.add_geom(name="floor", type=mujoco.mjtGeom.mjGEOM_PLANE, size=[20, 20, 1])
    return spec.compile()


def robots() -> dict[str, CompiledTerms]:
    """Each robot's terms."""

    def terms(model: mujoco.MjModel, feet: list[str], offsets: list[float], symmetry: str) -> CompiledTerms:
        actor = [
            "base_angular_velocity", "projected_gravity", "commands", {"term": "joint_positions", "scale": 0.5},
            {"term": "joint_velocities", "scale": 0.05}, "last_action",
            {"term": "gait_phase", "feet": feet, "offsets": offsets},
        ]  # fmt: skip
        critic = [
            "base_linear_velocity", "euler_angles", {"term": "foot_contacts", "feet": feet},
            {"term": "foot_forces", "feet": feet}, {"term": "height_scan", "size": [1.6, 1.0]},
        ]  # fmt: skip
        groups = {"actor": {"terms": actor, "history": 5}, "critic": critic}
        return compiled_terms(model, groups, [{"term": "joint_positions", "scale": 0.25}], symmetry=symmetry)

    legs = ["FR", "FL", "RR", "RL"]
    ant = gym.make("Ant-v5").unwrapped.model
    return {
        "Unitree G1": terms(mjlab_model("unitree_g1/xmls/g1.xml"), ["left_foot", "right_foot"], [0, 0.5], "left-right"),
        "Unitree Go1": terms(mjlab_model("unitree_go1/xmls/go1.xml"), legs, [0, 0.5, 0.5, 0], "left-right"),
        "Ant-v5": terms(ant, ANT_FEET, [0, 0.5, 0, 0.5], "left-right"),
    }


def mutant(kind: str, compiled: CompiledTerms, rng: np.random.Generator) -> np.ndarray:
    """A wrong map of one kind."""
    A = compiled.spec.obs.generator(0).copy()
    actor = compiled.groups["actor"]
    slices = actor.slices()
    if kind == "sign":
        i = int(rng.integers(len(A)))
        A[i] *= -1
    elif kind == "index":
        i, j = rng.choice(len(A), 2, replace=False)
        A[[i, j]] = A[[j, i]]
    elif kind == "leg":  # two joints are taken for one another in every block that joints have
        i, j = rng.choice(len(compiled.robot.joints), 2, replace=False)
        for title in ("joint_positions", "joint_velocities", "last_action"):
            size = len(compiled.robot.joints)
            for first in range(slices[title].start, slices[title].stop, size):
                A[[first + i, first + j]] = A[[first + j, first + i]]
    elif kind == "history":  # the steps of one term in another order
        block = slices[str(rng.choice(list(slices)))]
        size = (block.stop - block.start) // 5
        order = rng.permutation(5)
        A[block] = A[block].reshape(5, size, -1)[order].reshape(5 * size, -1)
    else:  # the grid is mirrored along another axis, turned, or read in another order, perhaps in a part of its rows only
        first = (
            dict(compiled.spec.observation_groups)["actor"] + compiled.groups["critic"].slices()["height_scan"].start
        )
        places = np.arange(17 * 11).reshape(11, 17)
        other = [places, places[:, ::-1], places[::-1, ::-1], places.T, places[::-1].T][rng.integers(5)].ravel()
        part = np.arange(int(rng.integers(20, 17 * 11 + 1)))
        A[first + part] = 0.0
        A[first + part, first + other[part]] = 1.0
    return A


def defects(steps: TermSteps, matrix: np.ndarray | None = None) -> dict[str, float]:
    """Largest defect of each entry under a map; None is the derived one."""
    elements = steps.elements if matrix is None else steps.elements.with_generator("obs", matrix)
    found = Comparison.of_space(elements, "obs", steps.outcome, steps.images)
    return {name: defect.max for name, defect in found.components.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, required=True)
    arguments = parser.parse_args()
    compiled = robots()
    rng = np.random.default_rng(SEED + 1)
    rows, maps, seen = {}, {}, {}
    for name, terms in compiled.items():
        start = time.perf_counter()
        (seen[name],) = step_terms(terms, states=STATES, seed=SEED)
        maps[name] = terms.spec.check().obs
        found = defects(seen[name])
        values = np.concatenate([seen[name].outcome.obs, seen[name].images.obs])
        rows[name] = {
            "entries": maps[name].dim, "largest_defect": max(found.values()),
            "certified": max(found.values()) < TOLERANCE,
            "constant": [n for n, still in zip(maps[name].names, np.ptp(values, axis=0) < 1e-9, strict=True) if still],
            "seconds": time.perf_counter() - start,
        }  # fmt: skip
        print(name, rows[name], flush=True)
    caught, without, missed = Counter(), Counter(), []
    names = list(compiled)
    for k in range(MUTANTS):
        kind, name = KINDS[k % len(KINDS)], names[k // len(KINDS) % len(names)]
        A = mutant(kind, compiled[name], rng)
        space = maps[name]
        if max(defects(seen[name], A).values()) >= TOLERANCE:
            caught[kind] += 1
        elif np.array_equal(A, space.generator(0)):
            without[kind] += 1
        else:
            missed.append([k, kind, name])
    result = {
        "robots": rows, "mutants": MUTANTS, "caught": caught, "without_effect": without, "missed": missed,
        "provenance": provenance(),
    }  # fmt: skip
    arguments.json.write_text(json.dumps(result, indent=1, default=str))
    print(dict(caught), dict(without), missed)


if __name__ == "__main__":
    main()
