"""Robots that nobody here wrote: `python docs/evidence/robots.py --models DIR --json FILE.json` derives and times each.

DIR holds the unpacked wheels of example-robot-data, icub-models, jvrc-description and robosuite
(`pip download --no-deps NAME && unzip -d DIR/NAME NAME-*.whl`); mjlab and dm_control are installed.
"""

from __future__ import annotations

import argparse
import json
import time
import xml.etree.ElementTree as ET
from importlib.util import find_spec
from pathlib import Path

import mujoco
import numpy as np

from rppdyn.envs.derivation import derive
from rppdyn.runs import provenance

COMPILER = dict(balanceinertia="true", discardvisual="true", fusestatic="true", boundmass="1e-4", boundinertia="1e-7")
URDF = {
    "ANYmal B": "**/anymal_b_simple_description/robots/anymal.urdf",
    "ANYmal C": "**/anymal_c_simple_description/urdf/anymal.urdf",
    "Unitree A1": "**/a1_description/urdf/a1.urdf",
    "Unitree B1": "**/b1_description/urdf/b1.urdf",
    "Unitree Go2": "**/go2_description/urdf/go2.urdf",
    "Unitree G1 (URDF)": "**/g1_description/urdf/g1_29dof_rev_1_0.urdf",
    "HyQ": "**/hyq_description/robots/hyq_no_sensors.urdf",
    "Laikago": "**/laikago_description/urdf/laikago.urdf",
    "Solo12": "**/solo_description/robots/solo12.urdf",
    "Bolt": "**/bolt_description/robots/bolt.urdf",
    "Talos": "**/talos_data/robots/talos_reduced.urdf",
    "Romeo": "**/romeo_description/urdf/romeo.urdf",
    "Simple humanoid": "**/simple_humanoid_description/urdf/simple_humanoid.urdf",
    "Baxter": "**/baxter_description/urdf/baxter.urdf",
    "TIAGo dual": "**/tiago_description/robots/tiago_dual.urdf",
    "PR2": "**/pr2_description/urdf/pr2.urdf",
    "iCub 2.5": "**/iCubGazeboV2_5/model.urdf",
    "JVRC-1": "**/jvrc*/**/*.urdf",
}
FIXED = {"Baxter", "TIAGo dual"}


def load_urdf(path: Path, floating: bool = True) -> mujoco.MjModel:
    """A URDF without its meshes, which the derivation of joints does not need, on a floating base."""
    root = ET.parse(path).getroot()
    for link in root.iter("link"):
        for part in [
            p for p in link if p.tag in ("visual", "collision") and (p.tag == "visual" or p.find(".//mesh") is not None)
        ]:
            link.remove(part)
    children = {joint.find("child").get("link") for joint in root.iter("joint") if joint.find("child") is not None}
    base = next(link.get("name") for link in root.iter("link") if link.get("name") not in children)
    for old in root.findall("mujoco"):
        root.remove(old)
    ET.SubElement(ET.SubElement(root, "mujoco"), "compiler", COMPILER)
    if floating:
        ET.SubElement(root, "link", name="the_world")
        joint = ET.SubElement(root, "joint", name="floating_base", type="floating")
        ET.SubElement(joint, "parent", link="the_world")
        ET.SubElement(joint, "child", link=base)
    return mujoco.MjSpec.from_string(ET.tostring(root, encoding="unicode")).compile()


def mjlab_file(name: str) -> Path:
    found = find_spec("mjlab")
    if found is None or not found.submodule_search_locations:
        raise FileNotFoundError("mjlab is not installed")
    return Path(found.submodule_search_locations[0]) / "asset_zoo" / "robots" / name


def models(folder: Path):
    """Names and functions that load a model."""
    for name, pattern in URDF.items():
        files = sorted(folder.glob(pattern))
        if files:
            yield name, lambda file=files[0], name=name: load_urdf(file, name not in FIXED)
    for name, file in (("Unitree G1", "unitree_g1/xmls/g1.xml"), ("Unitree Go1", "unitree_go1/xmls/go1.xml")):
        yield f"{name} (mjlab)", lambda file=file: mujoco.MjModel.from_xml_path(str(mjlab_file(file)))
    for robot in ("gr1", "spot", "baxter"):
        for file in sorted(folder.glob(f"**/robosuite/models/assets/robots/{robot}/robot.xml")):
            yield f"robosuite {robot}", lambda file=file: mujoco.MjModel.from_xml_path(str(file))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--json", type=Path, required=True)
    arguments = parser.parse_args()
    rows = []
    for name, load in models(arguments.models):
        try:
            model = load()
        except (ValueError, FileNotFoundError) as error:
            rows.append({"robot": name, "refused": " ".join(str(error).split())[:160]})
            print(name, rows[-1]["refused"], flush=True)
            continue
        seconds = []
        for _ in range(3):
            start = time.process_time()
            found = derive(model)
            seconds.append(time.process_time() - start)  # the machine is shared
        symmetries = [
            {"name": s.name, "deviations": len(s.deviations), "largest": str(s.deviations[0]) if s.deviations else ""}
            for s in found.symmetries
        ]
        rows.append(
            {"robot": name, "joints": model.njnt, "seconds": float(np.median(seconds)), "symmetries": symmetries}
        )
        print(
            name,
            model.njnt,
            f"{np.median(seconds):.2f}",
            [(s["name"], s["deviations"]) for s in symmetries],
            flush=True,
        )
    arguments.json.write_text(json.dumps({"robots": rows, "provenance": provenance()}, indent=1, default=str))


if __name__ == "__main__":
    main()
