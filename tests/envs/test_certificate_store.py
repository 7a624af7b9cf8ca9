"""Certificates are found by the content of model and spec, say how far a symmetry is to be believed, and are drawn."""

from __future__ import annotations

import json
import logging
from dataclasses import replace

import gymnasium as gym
import mujoco
import numpy as np
import pytest
from refusals import refused

from rppdyn.envs import (
    Symmetry,
    certificate_for,
    certified_share,
    certify,
    make_env,
    mirror_spec,
    save_certificate,
    symmetry_spec,
)  # fmt: skip
from rppdyn.envs.certification import _certify as module
from rppdyn.envs.certification._certificate import (
    Defect,
    environment_digest,
    find_certificate,
    model_digest,
    share_of,
    spec_digest,
)  # fmt: skip

FEW = dict(n_states=20, n_resets=20)


@pytest.fixture(autouse=True)
def empty_store(monkeypatch, tmp_path):
    monkeypatch.setenv("RPPDYN_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache" / "certificates"


@pytest.fixture(scope="module")
def swimmer():
    env = make_env("Swimmer-v5")
    spec = symmetry_spec(env)
    return env, spec, certify(env, spec, **FEW)


def test_what_is_stored_is_found(swimmer, empty_store):
    env, spec, certificate = swimmer
    assert find_certificate(env, spec) is None
    path = save_certificate(certificate)
    assert path.parent == empty_store and [p.name for p in empty_store.iterdir()] == [path.name]
    assert find_certificate(env, spec) == certificate == find_certificate(gym.make("Swimmer-v5"), spec)
    assert certificate_for(env, spec) == (certificate, "")
    assert find_certificate(env, spec, solver="tight") is None  # solvers are kept apart
    save_certificate(replace(certificate, solver="tight"))
    assert find_certificate(env, spec, solver="tight").solver == "tight"


def test_reasons_not_to_rely_on_a_spec(swimmer):
    env, spec, certificate = swimmer
    none, reason = certificate_for(env, spec)
    assert none is None and "\n" not in reason
    assert "Swimmer-v5 is not certified" in reason and "rppdyn certify" in reason
    save_certificate(certificate)
    weak = make_env("Swimmer-v5", actuator_scale={"motor1_rot": 0.5})
    none, reason = certificate_for(weak, spec)
    assert none is None and "certified for another model" in reason
    same = dict(action_permutation=[0, 1], action_signs=[1, 1], obs_permutation=range(8), obs_signs=[1, -1] * 4)
    wrong = mirror_spec("Swimmer-v5", **same, qpos_permutation=range(5), qpos_signs=[1, 1, 1, -1, -1])
    save_certificate(certify(env, wrong, **FEW))
    found, reason = certificate_for(env, wrong)
    assert found is not None and reason == "Swimmer-v5: the simulator refutes mirror"


def test_digest_of_a_model_is_of_its_physics():
    model, other = (gym.make("Walker2d-v5").unwrapped.model for _ in range(2))
    digest = model_digest(model)
    assert digest == model_digest(other)
    model.geom_rgba[:] = 0.5
    model.vis.map.force = 3.0
    model.mat_reflectance[:] = 0.7
    assert model_digest(model) == digest
    for change in (
        lambda: model.opt.gravity.__setitem__(2, -9.8),
        lambda: model.body_mass.__setitem__(2, 1.5),
        lambda: model.jnt_range.__setitem__((3, 0), -1.0),
        lambda: setattr(model.opt, "timestep", 0.001),
        lambda: model.actuator_gear.__setitem__((0, 0), 50.0),
        lambda: model.geom_friction.__setitem__((1, 0), 0.1),
        lambda: setattr(model.opt, "integrator", mujoco.mjtIntegrator.mjINT_IMPLICIT),
        lambda: setattr(model.opt, "disableactuator", 2),
        lambda: model.actuator_group.__setitem__(0, 1),
    ):
        before = model_digest(model)
        change()
        assert model_digest(model) != before


def test_digest_of_an_environment_is_of_its_options_precision():
    ranges = [np.array([0.25, 1.0], dtype) for dtype in (np.float64, np.float32, np.float64)]
    wide, narrow, again = (environment_digest(gym.make("Ant-v5", healthy_z_range=values)) for values in ranges)
    assert wide == again != narrow and narrow is not None


def test_digest_of_a_spec_is_of_its_action():
    spec = symmetry_spec("Walker2d-v5")
    said = replace(spec, symmetries=(Symmetry("leg swap", "broken", False, "who knows"),))
    assert spec_digest(said) == spec_digest(spec) and said.digest != spec.digest
    flipped = spec.obs.generator(0)
    flipped[0] *= -1
    assert spec_digest(replace(spec, obs=replace(spec.obs, discrete_generators=(flipped,)))) != spec_digest(spec)


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", json.dumps({"format": 1}), json.dumps({"format": 99})])
def test_a_damaged_entry_is_none_with_a_warning(swimmer, caplog, content):
    env, spec, certificate = swimmer
    save_certificate(certificate).write_text(content)
    with caplog.at_level(logging.WARNING):
        assert find_certificate(env, spec) is None
    assert "certify again" in caplog.text


def test_a_folder_that_cannot_be_written_costs_a_warning(swimmer, empty_store, caplog):
    empty_store.parent.mkdir()
    empty_store.write_text("a file where the folder should be")
    with caplog.at_level(logging.WARNING):
        assert save_certificate(swimmer[2]) is None
    assert "is not stored" in caplog.text
    assert find_certificate(swimmer[0], swimmer[1]) is None


# -- how far symmetries are to be believed --------------------------------------------------------------------------------


def with_defects(certificate, **defects):
    """The certificate with other defects of its first generator."""
    first, *others = certificate.generators
    return replace(certificate, generators=(replace(first, contact={}, free={}, **defects), *others))


def defect(p95, share=1.0, largest=None):
    return Defect(p95 / 2, p95, 2 * p95 if largest is None else largest, share)


def test_the_share_is_the_square_of_the_worst_95th_percentile(swimmer):
    exact = share_of(swimmer[2])
    assert (exact.share, exact.defect, exact.verdict) == (0.0, 0.0, "exact") and "exact" in exact.note
    found = share_of(with_defects(swimmer[2], state=defect(0.1), observation=defect(0.3)))
    assert (found.share, found.verdict) == (pytest.approx(0.09), "approximate") and "0.3" in found.note
    broken = share_of(with_defects(swimmer[2], state=defect(3.0)))
    assert (broken.share, broken.verdict) == (pytest.approx(0.99**2), "broken") and "counted as 0.99" in broken.note
    rounding = share_of(with_defects(swimmer[2], state=defect(2e-8)))
    assert (rounding.share, rounding.verdict) == (pytest.approx(1e-12), "approximate")


def test_values_are_not_invariant_where_the_reward_or_the_end_of_episodes_is_not(swimmer):
    certificate = with_defects(swimmer[2], reward=defect(0.2))
    assert share_of(certificate).share == pytest.approx(0.04) and share_of(certificate, reward=False).share == 0
    certificate = with_defects(swimmer[2], termination=0.01)
    assert share_of(certificate).share == pytest.approx(0.01) and share_of(certificate, reward=False).share == 0


def test_rare_states_count_by_how_rare_they_are(swimmer):
    rare = with_defects(swimmer[2], state=defect(1e-15, share=0.01, largest=0.5), components={"x": defect(0.5)})
    assert rare.dynamics_verdict == "approximate"
    assert share_of(rare).defect == pytest.approx(0.05)


def test_the_stored_certificate_is_used_and_another_robot_is_certified_with_a_word(swimmer, caplog, monkeypatch):
    (env, spec, certificate), counted = swimmer, []

    def counting(*arguments):
        counted.append(arguments)
        return certify(*arguments, **FEW)

    monkeypatch.setattr(module, "certify", counting)
    save_certificate(with_defects(certificate, state=defect(0.2)))
    with caplog.at_level(logging.WARNING):
        assert certified_share(env, spec).share == pytest.approx(0.04)
        assert not counted and not caplog.text
        weak = make_env("Swimmer-v5", actuator_scale={"motor1_rot": 0.0})
        first = certified_share(weak, symmetry_spec(weak))
    assert len(counted) == 1 and "takes some seconds" in caplog.text
    assert certified_share(weak, symmetry_spec(weak)) == first and len(counted) == 1


def test_what_has_no_simulator_is_refused_in_one_line():
    spec = symmetry_spec("rppdyn/WindyPendulum-v0")
    with refused("WindyPendulum-v0 has neither model nor simulator_state"):
        certified_share(gym.make("CartPole-v1"), spec)


def test_figures(swimmer, tmp_path):
    """Figures are drawn of exact symmetries of a task, and of approximate ones of a bare model."""
    bare = certify(gym.make("Hopper-v5").unwrapped.model, symmetry_spec("Hopper-v5"), **FEW)
    for certificate, suffix in ((swimmer[2], "png"), (bare, "svg"), (swimmer[2], "pdf")):
        assert certificate.figure(tmp_path / f"c.{suffix}").stat().st_size > 10_000
    with refused("no suffix of a picture; use .png"):
        swimmer[2].figure(tmp_path / "c.txt")
    assert sorted(path.name for path in tmp_path.glob("*.*")) == ["c.pdf", "c.png", "c.svg"]
