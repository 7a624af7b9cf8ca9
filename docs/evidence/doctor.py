"""Does the doctor name the right part? Single faults planted in symmetric robots: `python docs/evidence/doctor.py --json FILE`.

Five robots that are exactly symmetric (Gymnasium's Walker2d, Ant, and Humanoid after `symmetrise`; dm_control's quadruped and
planar walker), forty faults each: the damping, armature or stiffness of a joint, the mass of a body (with its inertia), or the
gear of a motor, of an element that has a partner, times 0.7, 0.8, 0.9, 1.1, 1.2 or 1.3. A fault is found if its element, or its
partner, is in the deviation of the largest share.

With `--log` the doctor sees 2,000 transitions of the faulty robot under random actions and the intact model; the very element
has to be named, and intact robots are to raise no alarm. `--noise` is of each observed entry, in standard deviations of it.
"""

from __future__ import annotations

import argparse
import copy
import json
from collections import Counter
from pathlib import Path

import gymnasium as gym
import mujoco
import numpy as np

from rppdyn.envs import Episode, diagnose, find_fault
from rppdyn.envs._model_symmetry import name_of
from rppdyn.envs._simulator import BareSimulator
from rppdyn.envs.derivation import derive, symmetrise

FACTORS = (0.7, 0.8, 0.9, 1.1, 1.2, 1.3)
KINDS = {
    "damping": ("joint", lambda m: m.dof_damping),
    "armature": ("joint", lambda m: m.dof_armature),
    "stiffness": ("joint", lambda m: m.jnt_stiffness),
    "mass": ("body", lambda m: m.body_mass),
    "gear": ("actuator", lambda m: m.actuator_gear[:, 0]),
}


def robots() -> dict[str, mujoco.MjModel]:
    """The intact robots."""
    from dm_control.suite import common

    models = {name: gym.make(name).unwrapped.model for name in ("Walker2d-v5", "Ant-v5")}
    humanoid = gym.make("Humanoid-v5").unwrapped.model
    models["Humanoid-v5, symmetrised"] = symmetrise(humanoid, derive(humanoid).symmetries[0])
    for name in ("quadruped", "walker"):
        xml = common.read_model(f"{name}.xml").decode()
        models[f"dm_control {name}"] = mujoco.MjModel.from_xml_string(xml, common.ASSETS)
    return models


def plant(model: mujoco.MjModel, rng: np.random.Generator) -> tuple[mujoco.MjModel, str, str]:
    """A copy with one fault, its kind, and the name of the element."""
    while True:
        kind = str(rng.choice(list(KINDS)))
        what, values = KINDS[kind]
        faulty = copy.deepcopy(model)
        array = values(faulty)
        i = int(rng.integers(len(array)))
        if array[i] == 0:
            continue
        factor = rng.choice(FACTORS)
        array[i] *= factor
        if kind == "mass":
            faulty.body_inertia[i] *= factor
            mujoco.mj_setConst(faulty, mujoco.MjData(faulty))
        element = int(model.dof_jntid[i]) if what == "joint" and len(array) == model.nv else i
        if what == "joint" and model.jnt_type[element] in (mujoco.mjtJoint.mjJNT_FREE, mujoco.mjtJoint.mjJNT_BALL):
            continue
        broken = [s for s in derive(faulty).symmetries if not s.is_continuous and s.deviations]
        intact = {s.name for s in derive(model).symmetries if not s.deviations}
        if not any(s.name in intact for s in broken):  # in the middle: every symmetry is kept
            continue
        return faulty, kind, name_of(model, what, element)


def log(model: mujoco.MjModel, steps: int, noise: float, rng: np.random.Generator) -> list[Episode]:
    """Episodes of 100 random actions, whose observations are positions, velocities and activations."""
    simulator = BareSimulator(model)
    low, high = simulator.action_bounds
    data, found = simulator.data, []
    while sum(map(len, found)) < steps:
        simulator.reset(rng)
        actions = rng.uniform(low, high, (100, len(low)))
        seen = [np.concatenate([data.qpos, data.qvel, data.act])]
        for action in actions:
            simulator.advance(action)
            seen.append(np.concatenate([data.qpos, data.qvel, data.act]))
        if np.isfinite(seen).all():
            found.append(Episode(np.array(seen), actions, np.zeros(len(actions))))
    spread = np.concatenate([episode.observations for episode in found]).std(0)
    for episode in found:
        episode.observations[:] += noise * spread * rng.standard_normal(episode.observations.shape)
    return found


def from_logs(arguments: argparse.Namespace) -> None:
    """Plant, log, find, count; and look at intact robots. The file grows by each log, and a second start goes on with it."""
    made = {"noise": arguments.noise, "states": arguments.states, "seeds": f"{arguments.seed} and on, one a robot"}
    table = {}
    if arguments.json.exists():
        stored = json.loads(arguments.json.read_text())
        if {key: stored[key] for key in made} != made:
            raise SystemExit(f"{arguments.json} holds other settings; give another file")
        table = stored["robots"]
    for index, (name, model) in sorted(enumerate(robots().items()), key=lambda item: item[1][1].nv):  # quick ones first
        if arguments.robots and name not in arguments.robots:
            continue
        rng = np.random.default_rng(arguments.seed + index)
        row = table.setdefault(
            name,
            {"faults": 0, "right_first": 0, "right_beyond_doubt": 0, "missed": [], "intact": 0, "false_alarms": []},
        )
        faults, intact = row["faults"], row["intact"]  # judged before: drawn again, since one stream holds all
        for i in range(arguments.faults + arguments.intact):
            planted = i < arguments.faults
            faulty, kind, element = plant(model, rng) if planted else (model, "", "")
            episodes = log(faulty, 2000, arguments.noise, rng)
            if i < faults if planted else i - arguments.faults < intact:
                continue
            report = find_fault(model, episodes, n_states=arguments.states)
            if planted:
                first = report.suspects[0] if report.suspects else None
                right = first is not None and first.part == element
                row["faults"] += 1
                row["right_first"] += right
                row["right_beyond_doubt"] += report.fault is not None and report.fault.part == element
                if not right:
                    row["missed"].append(f"{kind} of {element}: {first}")
            else:
                row["intact"] += 1
                row["false_alarms"] += [] if report.fault is None else [str(report.fault)]
            arguments.json.write_text(json.dumps({**made, "robots": table}, indent=1) + "\n")
        print(name, row, flush=True)


def main() -> None:
    """Plant, diagnose, count."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--faults", type=int, default=40)
    parser.add_argument("--log", action="store_true")
    parser.add_argument("--noise", type=float, default=0.0)
    parser.add_argument("--states", type=int, default=120)
    parser.add_argument("--intact", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1300)
    parser.add_argument("--robots", nargs="+", help="names of robots; all if left out")
    arguments = parser.parse_args()
    if arguments.log:
        from_logs(arguments)
        return
    table = {}
    for index, (name, model) in enumerate(robots().items()):
        rng = np.random.default_rng(1200 + index)
        found: Counter[str] = Counter()
        missed = []
        for _ in range(arguments.faults):
            faulty, kind, element = plant(model, rng)
            diagnosis = diagnose(faulty, n_states=40)
            first = diagnosis.findings[0].deviation
            right = element in (first.element, first.partner)
            found["right" if right else "wrong"] += 1
            if not right:
                missed.append(f"{kind} of {element}: {first}")
        table[name] = {"faults": arguments.faults, "right": found["right"], "missed": missed}
        print(name, table[name], flush=True)
        arguments.json.write_text(json.dumps({"seeds": "1200 and on, one a robot", "robots": table}, indent=1) + "\n")


if __name__ == "__main__":
    main()
