"""Public maps of observations, written anew and audited: `python docs/evidence/maps.py --json FILE.json`.

Each is a map that somebody published for a trainer: which entries change places and which change their signs, on a model of the
robot or of one like it. Nothing is copied. `--models DIR` as in `robots.py` adds ANYmal.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
import mujoco
import torch
from robots import load_urdf, mjlab_file

from rppdyn.envs import compiled_terms
from rppdyn.envs.terms import CompiledTerms, audit
from rppdyn.runs import provenance

Map = Callable[[torch.Tensor], torch.Tensor]
G1_FEET = ["left_foot", "right_foot"]


def signs(*numbers: float) -> Map:
    """Numbers that keep their places."""
    return lambda x: x * torch.tensor(numbers, dtype=x.dtype)


def places(index: Sequence[int], negative: Sequence[int] = ()) -> Map:
    """y_i = x_index[i], negated where i is in `negative`."""

    def act(x: torch.Tensor) -> torch.Tensor:
        y = x[..., list(index)].clone()
        y[..., list(negative)] *= -1
        return y

    return act


def blocks(*parts: tuple[int, Map]) -> Map:
    """Maps of consecutive blocks of the given sizes."""
    sizes = [size for size, _ in parts]
    return lambda x: torch.cat([act(part) for (_, act), part in zip(parts, x.split(sizes, -1), strict=True)], -1)


def same(x: torch.Tensor) -> torch.Tensor:
    return x


def exchanged(names: Sequence[str], left: str, right: str, negative: Callable[[str], bool]) -> Map:
    """Joints by name: left ones with right ones, and a sign where `negative` says so."""
    other = [name.replace(left, "#").replace(right, left).replace("#", right) for name in names]
    return places([names.index(name) for name in other], [i for i, name in enumerate(names) if negative(name)])


def lateral(name: str) -> bool:
    """Whether a joint is called a roll or yaw, whose sign changes."""
    return "roll" in name or "yaw" in name


AXIAL, VECTOR, COMMAND = signs(-1, 1, -1), signs(1, -1, 1), signs(1, -1, -1)


def cases(folder: Path | None) -> list[tuple[str, str, CompiledTerms, Map]]:
    """Name of the map, robot, terms and the map."""
    spec = mujoco.MjSpec.from_file(str(mjlab_file("unitree_g1/xmls/g1.xml")))
    g1 = spec.compile()
    joints = [g1.joint(j).name for j in range(1, g1.njnt)]
    n = len(joints)
    right = exchanged(joints, "left", "right", lateral)
    unsigned = exchanged(joints, "left", "right", lambda name: False)
    legs = exchanged(joints, "left", "right", lambda name: lateral(name) and "hip" not in name and "ankle" not in name)

    def one_sided(name: str) -> bool:
        return lateral(name) and "right" not in name

    def on_g1(terms: Sequence[Any]) -> CompiledTerms:
        return compiled_terms(g1, list(terms), [{"term": "joint_positions", "scale": 0.25}], symmetry="left-right")

    imu = ["base_angular_velocity", "projected_gravity"]
    body = ["commands", "joint_positions", "joint_velocities", "last_action"]
    flat = on_g1([*imu, *body])
    gait = {"feet": G1_FEET, "offsets": [0.0, 0.5]}
    three = [(n, right)] * 3
    found = [
        ("OpenHomie: commands with height, velocities, joints, actions", "G1", on_g1([
            {"term": "commands", "entries": ["forward", "lateral", "yaw", "height"]}, *imu, *body[1:],
        ]), blocks((4, signs(1, -1, -1, 1)), (3, AXIAL), (3, VECTOR), *three)),
        ("rsl_rl issue 64: sides exchanged without signs", "G1", flat,
         blocks((3, same), (3, same), (3, same), *[(n, unsigned)] * 3)),
        ("a variant of it: base signs, legs without", "G1", flat,
         blocks((3, AXIAL), (3, VECTOR), (3, COMMAND), *[(n, legs)] * 3)),
        ("Isaac Lab task for crawling: phase left as it is", "G1", on_g1([
            *imu, "joint_positions", "joint_velocities", "commands", {"term": "gait_phase", **gait}, "last_action",
        ]), blocks((3, AXIAL), (3, VECTOR), (n, right), (n, right), (3, COMMAND), (2, same), (n, right))),
        ("its critic: of the angular velocity only yaw flips", "G1", on_g1(["base_linear_velocity", *imu, *body]),
         blocks((3, VECTOR), (3, signs(1, 1, -1)), (3, VECTOR), (3, COMMAND), *three)),
        ("holosoma before pull request 184: channels of the feet's phase stay", "G1", on_g1([
            *imu, *body, {"term": "foot_clocks", "functions": ["sin", "cos"], **gait},
        ]), blocks((3, AXIAL), (3, VECTOR), (3, COMMAND), *three, (4, same))),
        ("Euler angles taken for a vector: one sign flips", "G1", on_g1(["base_angular_velocity", "euler_angles", *body]),
         blocks((3, AXIAL), (3, VECTOR), (3, COMMAND), *three)),
        ("SymmetricRL issue 19: signs on one side", "G1", flat,
         blocks((3, AXIAL), (3, VECTOR), (3, COMMAND), *[(n, exchanged(joints, "left", "right", one_sided))] * 3)),
        ("height map of 12 by 8, flipped along its second axis", "G1", on_g1([
            *imu, {"term": "height_scan", "size": [1.1, 0.7], "ordering": "yx"},
        ]), blocks((3, AXIAL), (3, VECTOR), (96, lambda x: x.reshape(-1, 12, 8).flip(2).reshape(x.shape)))),
    ]  # fmt: skip
    humanoid = gym.make("Humanoid-v5").unwrapped.model
    order = [*range(8), *range(12, 16), *range(8, 12), 19, 20, 21, 16, 17, 18, *range(22, 31), *range(35, 39)]
    order += [*range(31, 35), 42, 43, 44, 39, 40, 41, 46, 45]
    feet = ["right_foot", "left_foot"]
    terms = [
        "base_height", "quaternion", {"term": "joint_positions", "relative": False},
        {"term": "base_linear_velocity", "frame": "world"}, "base_angular_velocity", "joint_velocities",
        {"term": "foot_clocks", "feet": feet, "offsets": [0.0, 0.5]},
    ]  # fmt: skip
    found.append((
        "SymmetricRL for Gymnasium: sides exchanged, the rest stays", "Humanoid-v5",
        compiled_terms(humanoid, terms, symmetry="left-right"), places(order),
    ))  # fmt: skip
    walker = gym.make("Walker2d-v5").unwrapped.model
    seen = ["rootz", "rooty", *(f"{j}_{s}joint" for s in ("", "left_") for j in ("thigh", "leg", "foot"))]
    order = [0, 1, 5, 6, 7, 2, 3, 4, 8, 9, 10, 14, 15, 16, 11, 12, 13]
    terms = [{"term": "joint_positions", "joints": seen, "relative": False}, "joint_velocities"]
    found.append((
        "SymmetricRL for Gymnasium: sides exchanged", "Walker2d-v5",
        compiled_terms(walker, terms, base="torso", symmetry="leg swap"), places(order),
    ))  # fmt: skip
    if folder is not None:
        found += anymal(folder)
    return found


def anymal(folder: Path) -> list[tuple[str, str, CompiledTerms, Map]]:
    """Isaac Lab's map of ANYmal's 235 numbers: left-right, front-back, and both."""
    model = load_urdf(sorted(folder.glob("**/anymal_c_simple_description/urdf/anymal.urdf"))[0])
    names = [f"{leg}_{joint}" for joint in ("HAA", "HFE", "KFE") for leg in ("LF", "LH", "RF", "RH")]
    sides = exchanged(names, "L", "R", lambda name: name.endswith("HAA"))
    ends = places(
        [names.index(n.replace("F_", "#_").replace("H_", "F_").replace("#_", "H_")) for n in names],
        [i for i, name in enumerate(names) if not name.endswith("HAA")],
    )
    terms = [
        "base_linear_velocity", "base_angular_velocity", "projected_gravity", "commands",
        {"term": "joint_positions", "joints": names}, {"term": "joint_velocities", "joints": names}, "last_action",
        {"term": "height_scan", "size": [1.6, 1.0], "ordering": "xy"},
    ]  # fmt: skip
    compiled = compiled_terms(
        model, terms, [{"term": "joint_positions", "joints": names}], symmetry=["left-right", "front-back"]
    )

    def scan(axis: int) -> Map:
        return lambda x: x.reshape(-1, 11, 17).flip(axis).reshape(x.shape)

    across = blocks((3, VECTOR), (3, AXIAL), (3, VECTOR), (3, COMMAND), *[(12, sides)] * 3, (187, scan(1)))
    along = blocks(
        (3, signs(-1, 1, 1)),
        (3, signs(1, -1, -1)),
        (3, signs(-1, 1, 1)),
        (3, signs(-1, 1, -1)),
        *[(12, ends)] * 3,
        (187, scan(2)),
    )
    both = lambda x: torch.cat([x, across(x), along(x), along(across(x))])  # noqa: E731
    return [("Isaac Lab: left-right, front-back and both, with height scan", "ANYmal C", compiled, both)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--models", type=Path)
    arguments = parser.parse_args()
    rows = []
    for name, robot, compiled, mirror in cases(arguments.models):
        found = audit(mirror, compiled, states=20, name=name)
        wrong = [f"{w.name}: {w.found}, right {w.right}" for w in found.wrong]
        rows.append({
            "map": name, "robot": robot, "entries": found.entries["observation"], "representation": found.is_representation,
            "wrong": len(wrong), "first": wrong[:6], "all_wrong_in_simulator": all(w.defect > 1e-3 for w in found.wrong),
            "worst_right": found.worst, "notes": list(found.notes),
        })  # fmt: skip
        print(
            robot, name, len(wrong), found.is_representation, f"{found.worst:.1e}", wrong[:3], found.notes, flush=True
        )
    arguments.json.write_text(json.dumps({"maps": rows, "provenance": provenance()}, indent=1, default=str))


if __name__ == "__main__":
    main()
