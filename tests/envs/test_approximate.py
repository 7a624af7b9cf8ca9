"""Tasks whose symmetry one number breaks, and certificates of environments that say their state themselves."""

from __future__ import annotations

import pickle
from dataclasses import replace

import gymnasium as gym
import numpy as np
import pytest

from rppdyn.envs import (
    capture_state,
    certificate_for,
    certified_share,
    certify,
    make_env,
    restore_state,
    save_certificate,
    symmetry_spec,
)
from rppdyn.envs._catalogue import symmetry_choices
from rppdyn.envs.approximate import CURRENT_SWIMMER, HEADING_ANT, KNOBS, TILTED_REACHER
from rppdyn.envs.certification._certificate import find_certificate
from rppdyn.envs.planar import NAVIGATION, SWARM
from rppdyn.envs.windy_pendulum import WINDY_PENDULUM

FEW = dict(n_states=20, n_resets=20)
STRENGTHS = {WINDY_PENDULUM: (0.01, 0.03), TILTED_REACHER: (0.1, 0.5), CURRENT_SWIMMER: (0.1, 0.3),
             HEADING_ANT: (0.1, 0.25), NAVIGATION: (0.02, 0.06), SWARM: (0.1, 0.3)}  # fmt: skip
KEPT = {SWARM: {"quarter turn", "left-right"}}
"""Symmetries that the number leaves exact."""
STOCK = {TILTED_REACHER: "Reacher-v5", CURRENT_SWIMMER: "Swimmer-v5"}


@pytest.fixture(autouse=True)
def empty_store(monkeypatch, tmp_path):
    monkeypatch.setenv("RPPDYN_CACHE_DIR", str(tmp_path / "cache"))


def broken_by(env_id, strength):
    return make_env(env_id, **{KNOBS[env_id]: strength})


def certificate_of(env):
    return certify(env, symmetry_spec(env), **FEW)


def defects(certificate):
    return np.array([report.defect for report in certificate.generators])


@pytest.mark.parametrize("env_id", KNOBS)
def test_the_symmetry_is_exact_at_zero_and_off_in_proportion_to_the_number(env_id):
    exact = certificate_of(broken_by(env_id, 0.0))
    assert {g.dynamics_verdict for g in exact.generators} == {"exact"} and all(g.keeps_reward for g in exact.generators)
    weak, strong = STRENGTHS[env_id]
    first, second = (certificate_of(broken_by(env_id, strength)) for strength in (weak, strong))
    for one, two in zip(first.generators, second.generators, strict=True):
        if one.name in KEPT.get(env_id, ()):
            assert one.dynamics_verdict == two.dynamics_verdict == "exact"
        else:
            assert one.defect > 1e-3 and 0.5 < two.defect / one.defect / (strong / weak) < 2
            assert two.dynamics_verdict == "approximate"


@pytest.mark.parametrize("env_id", STOCK)
def test_the_group_is_the_stock_robots_whatever_the_number(env_id):
    stock = symmetry_spec(STOCK[env_id])
    for strength, verdict in ((0.0, "exact"), (STRENGTHS[env_id][0], "approximate")):
        spec = symmetry_spec(broken_by(env_id, strength))
        assert spec.group == stock.group and spec.env_id == env_id
        assert np.array_equal(spec.obs.discrete_generators, stock.obs.discrete_generators)
        assert {s.verdict for s in spec.symmetries} == {verdict}
    assert symmetry_choices(env_id) == symmetry_choices(STOCK[env_id])


def test_a_strong_current_is_called_broken_before_and_after_certifying():
    env = broken_by(CURRENT_SWIMMER, 1.0)
    assert [s.verdict for s in symmetry_spec(env).symmetries] == ["broken"]
    save_certificate(certificate_of(env))
    assert [s.verdict for s in symmetry_spec(env).symmetries] == ["broken"]
    assert "refutes left-right" in certificate_for(env, symmetry_spec(env))[1]


def test_the_hill_pulls_the_arm_and_leaves_the_target():
    env = broken_by(TILTED_REACHER, 0.5).unwrapped
    env.reset(seed=0)
    env.set_state(np.array([0.0, 0.0, 0.1, 0.05]), np.zeros(4))
    for _ in range(25):
        env.step(np.zeros(2))
    assert env.data.qpos[0] < -0.3 and np.allclose(env.data.qpos[2:], [0.1, 0.05], atol=1e-5)


@pytest.mark.parametrize("env_id", STOCK)
def test_at_zero_it_is_the_stock_robot_and_copies_keep_the_number(env_id):
    assert np.allclose(gym.make(env_id).reset(seed=3)[0], gym.make(STOCK[env_id]).reset(seed=3)[0])
    strength = STRENGTHS[env_id][1]
    env = broken_by(env_id, strength).unwrapped
    copy = pickle.loads(pickle.dumps(env))
    action = env.action_space.sample()
    env.reset(seed=1), copy.reset(seed=1)
    assert getattr(copy, KNOBS[env_id]) == strength and np.array_equal(env.step(action)[0], copy.step(action)[0])
    with pytest.raises(ValueError, match=f"{KNOBS[env_id]}=-1.* give a number from 0 to"):
        type(env)(**{KNOBS[env_id]: -1.0})


def test_a_pendulums_certificate_is_kept_by_its_options():
    env, other = broken_by(WINDY_PENDULUM, 0.01), broken_by(WINDY_PENDULUM, 0.02)
    spec = symmetry_spec(env, symmetry="D4")
    certificate = certify(env, spec, **FEW)
    save_certificate(certificate)
    assert find_certificate(env.unwrapped, spec) == certificate and certificate_for(env, spec) == (certificate, "")
    assert find_certificate(other.unwrapped, spec) is None
    worst = max(*defects(certificate), *(g.value_defect for g in certificate.generators))
    assert certified_share(env, spec).share == pytest.approx(worst**2)


def test_certifying_leaves_an_environment_where_it_was():
    env = broken_by(WINDY_PENDULUM, 0.01)
    env.reset(seed=2)
    env.step(np.ones(3, dtype=np.float32))
    before = env.unwrapped.simulator_state()["state"]
    certify(env, n_states=20, n_resets=20)
    assert np.array_equal(env.unwrapped.simulator_state()["state"], before)


def test_a_spec_that_acts_wrongly_is_refuted():
    """Negative control: a torque that a reflection turns as it does a vector."""
    env = broken_by(WINDY_PENDULUM, 0.0)
    spec = symmetry_spec(env, symmetry="D4")
    opposite = [-np.array(matrix) for matrix in spec.action.discrete_generators]
    wrong = replace(spec, action=replace(spec.action, discrete_generators=opposite))
    assert {g.dynamics_verdict for g in certify(env, wrong, n_states=20, n_resets=20).generators} == {"broken"}


def test_an_environment_that_does_not_say_its_state_is_refused():
    class Silent(type(gym.make(WINDY_PENDULUM).unwrapped)):
        def simulator_state(self):
            return {"elsewhere": 1.0}

    with pytest.raises(ValueError, match="no entry 'state'"):
        certify(Silent())


@pytest.mark.parametrize(("env_id", "masses", "elements"), [(NAVIGATION, 1, 16), (SWARM, 4, 192)])
def test_masses_move_pay_and_transform_as_the_page_says(env_id, masses, elements):
    """A mass at rest on its goal stays there and earns 1; from rest, speeds under full thrust have a closed form."""
    env = make_env(env_id).unwrapped
    env.reset(seed=0)
    far = 10.0 * np.arange(2 * masses).reshape(masses, 2)  # where masses don't meet
    state = np.concatenate([far.ravel(), np.zeros(2 * masses), far.ravel()])
    env.restore_simulator_state({"state": state})
    observation, reward, terminated, truncated, info = env.step(np.zeros(2 * masses))
    assert np.allclose(observation, state) and reward == pytest.approx(masses) and not (terminated or truncated)
    env.restore_simulator_state({"state": state})
    observation, reward, *_, info = env.step(np.tile([3.0, 4.0], masses))  # as long as the longest thrust, which is 2 N
    h, decay = 0.025, 1 - 0.025
    speeds = [2.0 * (1 - decay**k) for k in range(1, 5)]
    way = h * sum(speeds)
    assert np.allclose(observation[: 2 * masses].reshape(-1, 2) - far, [0.6 * way, 0.8 * way])
    assert np.allclose(observation[2 * masses : 4 * masses].reshape(-1, 2), [0.6 * speeds[-1], 0.8 * speeds[-1]])
    expected = {"reward_goal": masses / (1 + (way / 0.3) ** 2), "reward_thrust": -0.01 * masses}
    assert {name: info[name] for name in expected} == pytest.approx(expected)
    assert reward == pytest.approx(sum(info.values()))
    choice = {NAVIGATION: "D8", SWARM: None}[env_id]
    group = [np.eye(env.observation_space.shape[0])]
    for matrix in group:  # the list grows as its elements are multiplied by the generators
        for generator in symmetry_spec(env, symmetry=choice).obs.discrete_generators:
            product = generator @ matrix
            if not any(np.allclose(product, element) for element in group):
                group.append(product)
    assert len(group) == elements


def test_the_hill_turns_masses_away_and_a_wrong_thruster_pushes_back():
    env = make_env(NAVIGATION, hill=1.0).unwrapped
    env.reset(seed=0)
    env.restore_simulator_state({"state": np.array([0.3, 0.0, 0.0, 0.0, 1.0, 0.0])})
    observation, reward, *_, info = env.step(np.zeros(2))
    assert observation[2] < -0.1 and reward == pytest.approx(sum(info.values()))
    assert info["reward_hill"] == pytest.approx(-np.exp(-0.5 * ((observation[0] - 0.45) / 0.3) ** 2))
    pushes = []
    for fault in (0.0, 1.0, 2.0):
        env = make_env(SWARM, fault=fault).unwrapped
        env.reset(seed=0)
        env.restore_simulator_state({"state": np.concatenate([np.arange(8.0) * 10, np.zeros(8), np.zeros(8)])})
        pushes.append(env.step(np.tile([1.0, 0.0], 4))[0][8:16:2])
    assert np.allclose([push[1:] for push in pushes], pushes[0][0])
    assert np.allclose([push[0] for push in pushes], np.array([1, 0, -1]) * pushes[0][0])


def test_the_ant_is_paid_for_its_speed_along_its_heading_and_begins_in_any_direction():
    env = make_env(HEADING_ANT).unwrapped
    yaws, headings = [], []
    for seed in range(40):
        observation, _ = env.reset(seed=seed)
        w, _, _, z = observation[1:5]
        yaws.append(2 * np.arctan2(z, w) % (2 * np.pi))
        headings.append(np.arctan2(*observation[14:12:-1]) % (2 * np.pi))
        assert np.hypot(*observation[13:15]) == pytest.approx(1) and not observation[-2:].any()
    for angles in (yaws, headings):
        assert (np.histogram(angles, 4, (0, 2 * np.pi))[0] >= 4).all()
    for _ in range(10):
        observation, reward, *_, info = env.step(env.action_space.sample())
    assert info["reward_forward"] == pytest.approx(observation[13:15] @ (info["x_velocity"], info["y_velocity"]))
    assert reward == pytest.approx(info["reward_forward"])
    assert headings[-1] == pytest.approx(np.arctan2(*observation[14:12:-1]) % (2 * np.pi))  # it stays
    stock, paid = make_env("Ant-v5").unwrapped, make_env(HEADING_ANT, healthy_reward=1.0).unwrapped
    assert np.allclose(env.model.actuator_gear, stock.model.actuator_gear / 2) and env.dt == pytest.approx(0.1)
    paid.reset(seed=0)
    _, reward, *_, info = paid.step(np.zeros(8))
    assert reward == pytest.approx(1 + info["reward_forward"])
    for height, upright in ((1.0, True), (0.5, False)):  # it ends where the ant lies on its back
        qpos = np.r_[0, 0, height, (1, 0, 0, 0) if upright else (0, 1, 0, 0), env.init_qpos[7:]]
        env.set_state(qpos, np.zeros_like(env.init_qvel))
        assert env.step(np.zeros(8))[2] is (not upright)


def test_the_ants_payload_is_on_one_side_and_its_group_stays():
    intact, loaded = (make_env(HEADING_ANT, payload=mass).unwrapped for mass in (0.0, 0.5))
    assert loaded.model.body_mass.sum() - intact.model.body_mass.sum() == pytest.approx(0.5)
    assert not intact.model.body("torso").ipos[:2].any() and (loaded.model.body("torso").ipos[:2] > 0.1).all()
    specs = [symmetry_spec(env) for env in (intact, loaded)]
    assert specs[0].group == specs[1].group and [s.name for s in specs[1].symmetries] == ["quarter turn", "left-right"]
    assert np.array_equal(*(spec.obs.discrete_generators for spec in specs))
    assert all("torso" in s.note for s in specs[1].symmetries) and not any(s.note for s in specs[0].symmetries)
    copy = pickle.loads(pickle.dumps(loaded))
    action = loaded.action_space.sample()
    loaded.reset(seed=1), copy.reset(seed=1)
    assert copy.payload == 0.5 and np.array_equal(loaded.step(action)[0], copy.step(action)[0])
    assert symmetry_spec(intact, symmetry="D4 x SO(2)").group.lie_algebra.shape[0] == 1


@pytest.mark.parametrize(
    ("env_id", "option"),
    [
        (HEADING_ANT, {"payload": 3.0}),
        (CURRENT_SWIMMER, {"current": float("inf")}),
        (TILTED_REACHER, {"tilt": "steep"}),
        (WINDY_PENDULUM, {"wind": "strong"}),
        (NAVIGATION, {"hill": 2.5}),
        (SWARM, {"fault": -1}),
        (SWARM, {"render_mode": "human"}),
    ],
)
def test_options_that_are_none(env_id, option):
    ((name, value),) = option.items()
    with pytest.raises(ValueError, match=f"{name}=.*{value}"):
        type(gym.make(env_id).unwrapped)(**option)


def test_states_that_are_none():
    env = gym.make(NAVIGATION)
    env.reset(seed=0)
    for values in ([np.nan] * 6, [0.0] * 7, [[0.0, 0.0]] * 3):
        with pytest.raises(ValueError, match=r"Navigation-v0: state .* must be 6 finite numbers"):
            env.unwrapped.restore_simulator_state({"state": values})
    for wrong in (True, "0.5"):
        with pytest.raises(ValueError, match="give a number from 0 to 2"):
            gym.make(NAVIGATION, hill=wrong)
    loaded, other = (make_env(HEADING_ANT, payload=payload) for payload in (1.0, 0.0))
    loaded.reset(seed=0), other.reset(seed=0)
    with pytest.raises(ValueError, match="use the same model"):
        restore_state(other, capture_state(loaded))


@pytest.mark.parametrize("env_id", [NAVIGATION, SWARM])
def test_a_restored_frame_is_the_same(env_id):
    env = gym.make(env_id, render_mode="rgb_array")
    env.reset(seed=0)
    env.step(env.action_space.high)
    state, frame = capture_state(env), env.render()
    env.step(env.action_space.low)
    restore_state(env, state)
    assert np.array_equal(env.render(), frame)


@pytest.mark.parametrize(("env_id", "option"), [(NAVIGATION, {"hill": 1.0}), (SWARM, {"fault": 1.0})])
def test_frames_show_masses_and_what_is_broken(env_id, option):
    frames = []
    for chosen in ({}, option):
        env = gym.make(env_id, render_mode="rgb_array", **chosen)
        env.reset(seed=0)
        env.step(env.action_space.sample())
        frames.append(env.render())
    blue, red = (np.all(frames[1] == colour, -1).sum() for colour in ((47, 109, 181), (190, 60, 60)))
    assert (
        frames[1].shape == (480, 480, 3)
        and blue > 100
        and red > 100
        and not np.all(frames[0] == (190, 60, 60), -1).any()
    )
