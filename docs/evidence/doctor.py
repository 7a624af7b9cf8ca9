"""Does the doctor name the right part? Single faults planted in symmetric robots: `python docs/evidence/doctor.py --json FILE`.

Five robots that are exactly symmetric (Gymnasium's Walker2d, Ant, and Humanoid after `symmetrise`; dm_control's quadruped and
planar walker), forty faults each: the damping, armature or stiffness of a joint, the mass of a body (with its inertia), or the
gear of a motor, of an element that has a partner, times 0.7, 0.8, 0.9, 1.1, 1.2 or 1.3. A fault is found if its element, or its
partner, is in the deviation of the largest share.
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

from rppdyn.envs import diagnose
from rppdyn.envs.derivation import derive, symmetrise
from rppdyn.envs.derivation.skeleton import name_of

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


def main() -> None:
    """Plant, diagnose, count."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--faults", type=int, default=40)
    arguments = parser.parse_args()
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
