"""Head-tail reversal of serial chains: derived from the model, carried out on states, measured in the simulator."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import gymnasium as gym
import mujoco
import numpy as np
import pytest
from robots import robot

from rppdyn.envs.certification.certify import reversal_defect
from rppdyn.envs.derivation import derive
from rppdyn.envs.derivation.reversal import Reversal, derive_reversal

PLANE = """<joint type="slide" axis="1 0 0"/><joint type="slide" axis="0 1 0"/><joint type="hinge" axis="0 0 1"/>"""
LINK = '<geom type="capsule" fromto="0 0 0 1 0 0" size="0.1" fluidshape="{fluid}"/>'


def chain(
    root: str,
    axes: list[str],
    *,
    option: str = "",
    link: str = LINK.format(fluid="none"),
    first: str = "",
) -> mujoco.MjModel:
    """Equal links along x in Swimmer's fluid, each hinged at the end of the one before it."""
    body, end = "", ""
    for n, axis in enumerate(axes):
        hinge = f'<joint name="h{n}" axis="{axis}" armature="0.1" damping="0.3" range="-100 100" limited="true"/>'
        body, end = f'{body}<body pos="1 0 0">{hinge}{link}', end + "</body>"
    motors = "".join(f'<motor joint="h{n}" gear="30" ctrlrange="-1 1"/>' for n in reversed(range(len(axes))))
    return mujoco.MjModel.from_xml_string(
        f"""<mujoco><option density="4000" viscosity="0.1" timestep="0.001" integrator="RK4" {option}/>
        <default><geom contype="0" conaffinity="0"/></default>
        <worldbody><body>{root}{first or link}{body}{end}</body></worldbody><actuator>{motors}</actuator></mujoco>"""
    )


# A link that is lopsided across the chain: it is its own image under x -> 1 - x, but under no turn in the plane.
LOPSIDED = LINK.format(fluid="none") + '<geom type="sphere" pos="0.5 0.4 0" size="0.2"/>'
EXACT = {
    "planar": chain(PLANE, ["0 0 1"] * 3, option='gravity="0 0 0"'),
    "planar, an axis turned over": chain(PLANE, ["0 0 1", "0 0 -1", "0 0 1"], option='gravity="0 0 0"'),
    "planar, a reflection": chain(PLANE, ["0 0 1"] * 2, option='gravity="0 0 0"', link=LOPSIDED),
    "in space": chain("<freejoint/>", ["0 1 0", "0 1 0"]),
    "in space, each shape dragged": chain("<freejoint/>", ["0 1 0", "0 1 0"], link=LINK.format(fluid="ellipsoid")),
    "in space, axes that differ": chain("<freejoint/>", ["0 1 0", "0 0 1"], option='wind="1 2 3"'),
}


@pytest.mark.parametrize("name", EXACT)
def test_exact_chains(name):
    model, reversal = EXACT[name], derive_reversal(EXACT[name])
    assert reversal is not None and reversal.deviations == ()
    assert (np.linalg.det(reversal.rotation) < 0) == (name == "planar, a reflection")
    assert reversal_defect(model, reversal, n_states=40).max < 1e-8
    check_involution(model, reversal)


def check_involution(model: mujoco.MjModel, reversal: Reversal) -> None:
    rng, gap = np.random.default_rng(0), np.zeros(model.nv)
    for _ in range(5):
        qpos, qvel = model.qpos0.copy(), rng.normal(size=model.nv)
        mujoco.mj_integratePos(model, qpos, rng.normal(size=model.nv), 1.5)
        image = reversal.image(model, qpos, qvel)
        mujoco.mj_differentiatePos(model, gap, 1.0, qpos, image[0])
        assert np.abs(gap).max() > 1e-2
        again, velocity = reversal.image(model, *image)
        mujoco.mj_differentiatePos(model, gap, 1.0, qpos, again)
        hinges = model.jnt_dofadr[model.jnt_type == mujoco.mjtJoint.mjJNT_HINGE]
        gap[hinges] = (gap[hinges] + np.pi) % (2 * np.pi) - np.pi
        np.testing.assert_allclose(gap, 0, atol=1e-12)
        np.testing.assert_allclose(velocity, qvel, atol=1e-12)


def test_velocities_are_those_of_the_positions():
    for model in EXACT.values():
        reversal, rng, h, rate = derive_reversal(model), np.random.default_rng(1), 1e-6, np.zeros(model.nv)
        qpos, qvel = model.qpos0.copy(), rng.normal(size=model.nv)
        mujoco.mj_integratePos(model, qpos, rng.normal(size=model.nv), 0.3)
        ends = [qpos.copy(), qpos.copy()]
        for end, t in zip(ends, (-h, h), strict=True):
            mujoco.mj_integratePos(model, end, qvel, t)
        before, after = (reversal.image(model, end, qvel)[0] for end in ends)
        mujoco.mj_differentiatePos(model, rate, 2 * h, before, after)
        np.testing.assert_allclose(rate, reversal.image(model, qpos, qvel)[1], atol=1e-6)


def test_swimmer_is_approximate():
    model = robot("gymnasium/swimmer")
    reversal = derive_reversal(model)
    check_involution(model, reversal)
    spoils = {(d.element, d.parameter) for d in reversal.deviations}
    assert spoils == {(f"joint {j}", "armature") for j in ("slider1", "slider2", "free_body_rot")}
    assert 1e-3 < reversal_defect("Swimmer-v5", reversal, n_states=60).median < 5e-2

    def signed_permutation(model, qpos, qvel):
        order, signs = [0, 1, 2, 4, 3], np.array([1, 1, 1, -1, -1])
        return signs * qpos[order], signs * qvel[order]

    naive = SimpleNamespace(image=signed_permutation, controls=reversal.controls)
    assert reversal_defect("Swimmer-v5", naive, n_states=60).median > 0.3


def test_swimmer_without_what_spoils_it_is_exact():
    model = robot("gymnasium/swimmer")
    model.dof_armature[:3] = 0
    mujoco.mj_setConst(model, mujoco.MjData(model))
    reversal = derive_reversal(model)
    assert reversal.deviations == ()
    defects = []
    for model.opt.timestep in (0.01, 0.005, 0.001):
        defects.append(reversal_defect(model, reversal, n_states=40))
    assert defects[-1].p95 < 1e-8  # not the maximum: a joint that meets its limit within a step is not smooth there
    # The step of a Runge-Kutta method of fourth order is another one in other coordinates.
    assert np.log2(defects[0].median / defects[1].median) == pytest.approx(4, abs=0.3)


SWIMMER_OF_SIX = """
import sys, mujoco
from dm_control.suite import swimmer
xml, assets = swimmer.get_model_and_assets(6)
mujoco.mj_saveModel(mujoco.MjModel.from_xml_string(xml, assets=assets), sys.argv[1], None)
"""


def test_a_chain_that_nobody_here_wrote(tmp_path):
    """dm_control's swimmer, which its own code puts together; that runs apart, since importing dm_control warns."""
    file = str(tmp_path / "swimmer.mjb")
    subprocess.run([sys.executable, "-W", "ignore", "-c", SWIMMER_OF_SIX, file], check=True, capture_output=True)
    model = mujoco.MjModel.from_binary_path(file)
    reversal = derive_reversal(model)
    assert len(reversal.chain) == 6 and reversal.deviations == ()
    assert 1e-5 < reversal_defect(model, reversal, n_states=40).median < 1e-3  # of an Euler step
    model.opt.integrator = mujoco.mjtIntegrator.mjINT_RK4
    assert reversal_defect(model, reversal, n_states=40).max < 1e-8


def test_what_spoils_a_chain_is_named():
    link = LINK.format(fluid="ellipsoid")
    model = chain("<freejoint/>", ["0 1 0"] * 3, link=link, first=link.replace("0 0 0 1", "-0.1 0 0 1"))
    model.dof_damping[6], model.actuator_gear[0, 0] = 0.4, 40
    reversal = derive_reversal(model)
    assert {d.parameter for d in reversal.deviations} == {
        *("mass", "com", "inertia", "pos", "size", "fluid", "damping", "gear")
    }
    assert reversal_defect(model, reversal, n_states=40).median > 1e-4


@pytest.mark.parametrize("change", ["joint", "control", "offset"])
def test_a_wrong_reversal_fails(change):
    model = EXACT["planar"]
    reversal = derive_reversal(model)
    part = {"joint": reversal.signs[3:4], "control": reversal.controls[:1], "offset": reversal.offsets[-1]}[change]
    part *= -1
    assert reversal_defect(model, reversal, n_states=40).median > 1e-3


@pytest.mark.parametrize("name", ["Ant-v5", "Walker2d-v5", "Hopper-v5", "InvertedDoublePendulum-v5"])
def test_models_without(name):
    env = gym.make(name)
    assert derive_reversal(env.unwrapped.model) is None
    env.close()


def test_an_actuator_at_the_root_is_refused():
    model = EXACT["planar"].__copy__()
    model.actuator_trnid[0, 0] = 2
    assert derive_reversal(model) is None


def test_the_table_has_a_line():
    assert (
        "head-tail reversal (not linear, so no spec): 3 parameters deviate"
        in derive(robot("gymnasium/swimmer")).table()
    )
    assert "reversal" not in derive(robot("gymnasium/ant")).table()
