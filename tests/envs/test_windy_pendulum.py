"""rppdyn/WindyPendulum-v0: Gymnasium's contract, the physics, and the symmetry by stepping."""

from __future__ import annotations

import copy
import pickle

import gymnasium as gym
import matplotlib
import numpy as np
import pytest
import torch
from gymnasium.utils.env_checker import check_env
from matplotlib import pyplot
from refusals import refused
from scipy.integrate import solve_ivp

from rppdyn.envs import capture_state, certificate_for, make_env, restore_state, symmetry_spec
from rppdyn.envs._catalogue import symmetry_choices
from rppdyn.envs.windy_pendulum import WindyPendulum
from rppdyn.groups import DkeR3, O2eR3

ID = "rppdyn/WindyPendulum-v0"


def rollout(env, steps=50, seed=0):
    rng = np.random.default_rng(seed)
    return [env.step(rng.uniform(-3, 3, 3)) for _ in range(steps)]


# Gymnasium's own MuJoCo tasks are unbounded, too.
@pytest.mark.filterwarnings("ignore:.*A Box observation space m..imum value is -?infinity.*:UserWarning")
@pytest.mark.filterwarnings(
    "ignore:.*For Box action spaces, we recommend using a symmetric and normalized.*:UserWarning"
)
@pytest.mark.filterwarnings("ignore:.*render_mode='human' draws nothing here.*:UserWarning")
@pytest.mark.parametrize("options", [{}, {"wind": 0.0, "k2": 2.0}, {"render_mode": "rgb_array"}], ids=str)
def test_gymnasiums_checker(options):
    env = gym.make(ID, **options)
    assert env.spec.max_episode_steps == 200 and env.spec.kwargs == options
    check_env(env.unwrapped)
    env.reset(seed=0)
    ends = [env.step(env.action_space.sample())[2:4] for _ in range(200)]
    assert ends[-1] == (False, True) and set(ends[:-1]) == {(False, False)}
    env.close()


def test_starts_are_distributed_as_documented():
    env = gym.make(ID)
    starts = np.array([env.reset(seed=None if i else 5)[0] for i in range(400)])
    assert np.allclose(starts.mean(0), [0, 0, -1.5, 0, 0, -3, 0, 0, 0, 0, 0, 0], atol=0.08)
    assert np.allclose(starts.std(0), [0.2] * 6 + [0.4] * 6, rtol=0.15)


def test_without_a_torque_it_is_the_pendulum():
    """A step is a tenth of a second of the true trajectory; over an episode the energy is kept to 1e-6."""
    env = gym.make(ID, wind=0.02, k2=2.0)
    pendulum = env.unwrapped.pendulum
    assert (pendulum.wind, pendulum.k2) == (0.02, 2.0)
    z0, _ = env.reset(seed=1)
    states = torch.from_numpy(np.array([z0] + [env.step(np.zeros(3))[0] for _ in range(200)]))
    truth = pendulum.trajectories(torch.from_numpy(z0)[None], torch.arange(21).double() * 0.1)[0]
    assert torch.allclose(states[:21], truth, rtol=1e-6, atol=1e-6)
    energy = pendulum.energy(states)
    assert ((energy - energy[0]).abs() / energy[0].abs()).max() < 1e-6


def test_a_torque_does_what_it_says():
    """Against scipy; and the force on the upper mass has the torque's part perpendicular to the arm as its torque."""
    env = gym.make(ID, wind=0.01).unwrapped
    z0, _ = env.reset(seed=2)
    tau = np.array([1.5, -1.0, 0.7])

    def field(t, z):
        dz = env.pendulum.vector_field(torch.from_numpy(z)).numpy()
        dz[6:9] += np.cross(tau, z[:3]) / (z[:3] @ z[:3])
        return dz

    z, reward, *_, info = env.step(tau)
    truth = solve_ivp(field, (0, 0.1), z0, method="DOP853", rtol=1e-12, atol=1e-12).y[:, -1]
    assert np.allclose(z, truth, rtol=1e-8, atol=1e-9)
    arm = z0[:3]
    push = np.cross(tau, arm) / (arm @ arm)
    assert np.allclose(np.cross(arm, push), tau - (tau @ arm) / (arm @ arm) * arm)
    assert reward == pytest.approx(np.exp(-2 * z[3:5] @ z[3:5]) - 0.001 * tau @ tau)
    assert reward == pytest.approx(sum(info.values()))


def test_a_torque_that_is_too_long_is_shortened():
    env = gym.make(ID).unwrapped
    step = lambda tau: (env.reset(options={"state": start}), env.step(np.array(tau)))[1][:2]  # noqa: E731
    start, _ = env.reset(seed=3)
    difference = lambda a, b: np.abs(step(a)[0] - step(b)[0]).max()  # noqa: E731
    assert difference([6.0, 8.0, -9.0], [1.8, 2.4, -3.0]) < 1e-14
    assert difference([3.0, 3.0, 0.0], [4.5**0.5, 4.5**0.5, 0.0]) < 1e-14
    assert difference([1.8, 2.4, -3.0], [1.7, 2.4, -3.0]) > 1e-4


def defects(symmetry: str, wind: float, n: int = 8) -> np.ndarray:
    """|step(g s, g a) - g step(s, a)| over |step(s, a) - s|, and the reward's difference, for random elements g."""
    env = gym.make(ID, wind=wind).unwrapped
    spec = symmetry_spec(gym.make(ID, wind=wind), symmetry=symmetry)
    rng, found = np.random.default_rng(0), []

    def step(state, action):
        env.reset(options={"state": state})
        return env.step(action)[:2]

    for g in spec.group.samples(n, torch.Generator().manual_seed(0)):
        s, a = env.reset(seed=int(rng.integers(2**31)))[0], rng.uniform(-4, 4, 3)  # beyond the limit, too
        for _ in range(5):
            s = env.step(rng.uniform(-3, 3, 3))[0]
        z, r = step(s, a)
        moved, moved_reward = step(spec.transform_observation(g, s), spec.transform_action(g, a))
        difference = np.linalg.norm(moved - spec.transform_observation(g, z)) / np.linalg.norm(z - s)
        found.append((difference, abs(moved_reward - r)))
    return np.array(found)


@pytest.mark.parametrize("symmetry", WindyPendulum.symmetry_choices)
def test_symmetry_by_stepping(symmetry):
    """Exact without wind, reward included; with it, off in proportion to its strength."""
    assert defects(symmetry, 0.0).max() < 1e-12
    one, two = (np.median(defects(symmetry, wind)[:, 0]) for wind in (0.01, 0.02))
    assert 1e-3 < one < 0.2 and two / one == pytest.approx(2, rel=0.1)


def test_a_torque_is_no_vector():
    """Negative control: reflected as a vector it is not a symmetry."""
    env = gym.make(ID, wind=0.0).unwrapped
    s, tau, mirror = env.reset(seed=0)[0], np.array([1.0, 2.0, 0.5]), np.array([-1.0, 1.0, 1.0])
    image = lambda z: (z.reshape(4, 3) * mirror).ravel()  # noqa: E731
    env.reset(options={"state": s})
    z = env.step(tau)[0]
    env.reset(options={"state": image(s)})
    as_pseudovector = env.step(-mirror * tau)[0]
    env.reset(options={"state": image(s)})
    as_vector = env.step(mirror * tau)[0]
    assert np.allclose(as_pseudovector, image(z), atol=1e-13) and np.abs(as_vector - image(z)).max() > 1e-2


def test_spec():
    spec = symmetry_spec(ID)
    assert spec.env_id == ID and spec.group == O2eR3()
    assert [s.name for s in spec.symmetries] == ["left-right", "yaw"]
    assert {s.verdict for s in spec.symmetries} == {"approximate"} and "0.0943 N" in spec.symmetries[0].note
    assert {s.verdict for s in symmetry_spec(gym.make(ID, wind=0.0)).symmetries} == {"exact"}
    assert {s.verdict for s in symmetry_spec(gym.make(ID, wind=0.2)).symmetries} == {"broken"}  # stronger than gravity
    assert symmetry_spec(ID, symmetry="D6").group == DkeR3(6)
    assert symmetry_choices(ID) == {
        "O(2)": ("left-right", "yaw"), "SO(2)": ("yaw",), "D6": ("sixth turn", "left-right"),
        "D4": ("quarter turn", "left-right"),
    }  # fmt: skip
    assert symmetry_spec(ID, symmetry="D4").action_rep.is_signed_permutation
    assert "tau z" in spec.table()
    certificate, reason = certificate_for(gym.make(ID), spec)
    assert certificate is None and "not certified" in reason


@pytest.mark.parametrize("call, message", [
    (lambda: symmetry_spec(ID, symmetry="O(3)"), "has no symmetry 'O(3)'; known: O(2), SO(2), D6, D4"),
    (lambda: symmetry_spec(ID, variant="published"), "leave it out for rppdyn/WindyPendulum-v0"),
    (lambda: symmetry_spec(gym.wrappers.FrameStackObservation(gym.make(ID), 2)), "has (2, 12) behind its wrappers"),
    (lambda: WindyPendulum(render_mode="ansi"), "render_mode='ansi': choose human, rgb_array"),
    (lambda: WindyPendulum(k2=-1.0), "k2=-1.0: give 0 or more"),
    (lambda: WindyPendulum().step(np.zeros(2)), "must be 3 finite numbers"),
    (lambda: WindyPendulum().step(np.full(3, np.nan)), "must be 3 finite numbers"),
    (lambda: WindyPendulum().reset(options={"state": np.zeros(12)}), "a spring has no length"),
    (lambda: WindyPendulum().reset(options={"state": [1.0]}), "must be 12 finite numbers"),
])  # fmt: skip
def test_bad_arguments(call, message):
    with refused(message):
        call()


def test_its_state_is_captured_and_restored():
    env, other = make_env(ID, wind=0.02), make_env(ID, wind=0.02)
    env.reset(seed=4)
    rollout(env, 20)
    state = capture_state(env)
    expected = rollout(env, 180, seed=1)  # to the end of the episode
    env.reset()
    other.reset(seed=9)
    restore_state(other, state)
    twin = pickle.loads(pickle.dumps(other.unwrapped))
    assert np.array_equal(twin.step(np.ones(3))[0], copy.deepcopy(other.unwrapped).step(np.ones(3))[0])
    for a, b in zip(expected, rollout(other, 180, seed=1), strict=True):
        assert np.array_equal(a[0], b[0]) and a[1:4] == b[1:4]
    assert expected[-1][3] and not expected[-2][3]  # the time limit was restored, too
    with refused("the state is of rppdyn/WindyPendulum-v0", "InvertedPendulum-v5"):
        restore_state(make_env("InvertedPendulum-v5"), state)


def test_frames():
    env = gym.make(ID, render_mode="rgb_array", wind=0.05)
    env.reset(seed=0)
    first = env.render()
    rollout(env, 5)
    second = env.render()
    assert first.shape == (480, 480, 3) and first.dtype == np.uint8
    assert 1e-3 < (first != second).any(-1).mean() < 0.2  # the pendulum moves, the scene does not
    calm = gym.make(ID, render_mode="rgb_array", wind=0.0)
    calm.reset(seed=0)
    assert (calm.render() != first).any()  # the arrow of the wind
    env.close()
    assert env.unwrapped._figure is None
    with pytest.warns(UserWarning, match="backend agg has no window; use render_mode='rgb_array'"):
        gym.make(ID, render_mode="human").reset()
    pyplot.close("all")


def test_a_window_is_drawn_in(monkeypatch):
    """With a backend that claims a window, every step is shown for its length."""
    shown = []
    monkeypatch.setattr(matplotlib, "get_backend", lambda: "tkagg")
    monkeypatch.setattr(pyplot, "pause", shown.append)
    env = gym.make(ID, render_mode="human")
    env.reset(seed=0)
    rollout(env, 3)
    assert shown == [0.1] * 4 and env.render() is None
    assert len(pyplot.get_fignums()) == 1
    env.close()
    assert not pyplot.get_fignums()
