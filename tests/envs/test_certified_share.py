"""How far certificates say that symmetries are to be believed."""

from __future__ import annotations

import logging
from dataclasses import replace

import gymnasium
import pytest

from rppdyn.envs import certified_share, certify, make_env, save_certificate, symmetry_spec
from rppdyn.envs.certification import _certify as module
from rppdyn.envs.certification._certificate import Defect, share_of

FEW = dict(n_states=20, n_resets=20)


@pytest.fixture(autouse=True)
def empty_store(monkeypatch, tmp_path):
    monkeypatch.setenv("RPPDYN_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def swimmer():
    env = make_env("Swimmer-v5")
    return env, certify(env, symmetry_spec(env), **FEW)


def with_defects(certificate, **defects):
    """The certificate with other defects of its first generator."""
    first, *others = certificate.generators
    return replace(certificate, generators=(replace(first, contact={}, free={}, **defects), *others))


def defect(p95, share=1.0, largest=None):
    return Defect(p95 / 2, p95, 2 * p95 if largest is None else largest, share)


def test_an_exact_symmetry_leaves_nothing(swimmer):
    found = share_of(swimmer[1])
    assert (found.share, found.defect, found.verdict) == (0.0, 0.0, "exact") and "exact" in found.note


def test_the_share_is_the_square_of_the_worst_95th_percentile(swimmer):
    found = share_of(with_defects(swimmer[1], state=defect(0.1), observation=defect(0.3)))
    assert (found.share, found.verdict) == (pytest.approx(0.09), "approximate") and "0.3" in found.note
    broken = share_of(with_defects(swimmer[1], state=defect(3.0)))
    assert (broken.share, broken.verdict) == (pytest.approx(0.99**2), "broken") and "counted as 0.99" in broken.note
    rounding = share_of(with_defects(swimmer[1], state=defect(2e-8)))
    assert (rounding.share, rounding.verdict) == (pytest.approx(1e-12), "approximate")


def test_values_are_not_invariant_where_the_reward_or_the_end_of_episodes_is_not(swimmer):
    certificate = with_defects(swimmer[1], reward=defect(0.2))
    assert share_of(certificate).share == pytest.approx(0.04) and share_of(certificate, reward=False).share == 0
    certificate = with_defects(swimmer[1], termination=0.01)
    assert share_of(certificate).share == pytest.approx(0.01) and share_of(certificate, reward=False).share == 0


def test_rare_states_count_by_how_rare_they_are(swimmer):
    rare = with_defects(
        swimmer[1], state=defect(1e-15, share=0.01, largest=0.5), components={"x": defect(0.5)}
    )  # fmt: skip
    assert rare.dynamics_verdict == "approximate"
    assert share_of(rare).defect == pytest.approx(0.05)


def test_the_stored_certificate_is_used_and_another_robot_is_certified_with_a_word(swimmer, caplog, monkeypatch):
    env, certificate = swimmer
    spec, counted = symmetry_spec(env), []

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
    with pytest.raises(ValueError, match="WindyPendulum-v0 has neither model nor simulator_state") as error:
        certified_share(gymnasium.make("CartPole-v1"), spec)
    assert "\n" not in str(error.value)
