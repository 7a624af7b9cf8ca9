"""Wrappers are certified with the environment inside them, or refused by name."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import wrappers
from gymnasium.envs.mujoco.inverted_pendulum_v5 import InvertedPendulumEnv
from refusals import refused
from stable_baselines3.common.monitor import Monitor

from rppdyn.envs import certificate_for, certify, save_certificate, symmetry_spec
from rppdyn.envs._wrappers import step_wrappers
from rppdyn.envs.certification._evidence import require_symmetric_wrappers, reward_defects

PENDULUM = "InvertedPendulum-v5"
FEW = dict(n_states=20, n_resets=20)


class LeanLeft(gym.Wrapper):
    """Pays for leaning to one side."""

    def step(self, action):
        obs, reward, *rest = self.env.step(action)
        return obs, reward + 10.0 * float(obs[1] > 0), *rest


class Shaped(gym.Wrapper):
    """Pays for what has changed since the last step."""

    def reset(self, **options):
        obs, info = self.env.reset(**options)
        self.potential = obs[1] ** 2
        return obs, info

    def step(self, action):
        obs, reward, *rest = self.env.step(action)
        reward, self.potential = reward + self.potential - obs[1] ** 2, obs[1] ** 2
        return obs, reward, *rest


class Shifted(gym.Wrapper):
    """Shifts the observation without saying so."""

    def reset(self, **options):
        obs, info = self.env.reset(**options)
        return obs + 1, info

    def step(self, action):
        obs, *rest = self.env.step(action)
        return obs + 1, *rest


class Counts(gym.Wrapper):
    """A time limit and a log of one's own, with a file that can't be copied."""

    def __init__(self, env):
        super().__init__(env)
        self.rewards, self.steps, self.file = [], 0, open("/dev/null")

    def step(self, action):
        obs, reward, terminated, _, info = self.env.step(action)
        self.steps += 1
        self.rewards.append(reward)
        return obs, reward, terminated, self.steps > 7, info

    def close(self):
        self.file.close()
        super().close()


class Noisy(gym.ObservationWrapper):
    def observation(self, observation):
        return observation + self.np_random.normal(size=4)


class Smooth(gym.ActionWrapper):
    last = 0.0

    def action(self, action):
        self.last = (self.last + action) / 2
        return self.last


def with_actions(function):
    def wrap(env):
        return wrappers.TransformAction(env, function, env.action_space)

    return wrap


def with_observations(function):
    def wrap(env):
        return wrappers.TransformObservation(env, function, env.observation_space)

    return wrap


STEPPED = {
    "inside another": (lambda env: wrappers.TimeLimit(with_actions(np.abs)(Monitor(env)), 3), "broken", "broken"),
    "reward for leaning left": (LeanLeft, "exact", "broken"),
    "other bounds": (lambda env: wrappers.RescaleAction(env, np.float32(-1), np.float32(1)), "exact", "exact"),
    "lopsided bounds": (lambda env: wrappers.RescaleAction(env, np.float32(-1), np.float32(2)), "broken", "exact"),
    "any action": (wrappers.ClipAction, "exact", "exact"),
    "reward doubled": (lambda env: wrappers.TransformReward(env, lambda r: 2 * r), "exact", "exact"),
    "observation scaled": (with_observations(lambda o: 2 * o + 1), "exact", "exact"),
    "a log": (Counts, "exact", "exact"),
}


@pytest.mark.parametrize(("wrap", "dynamics", "reward"), STEPPED.values(), ids=STEPPED)
def test_steps_go_through_wrappers(wrap, dynamics, reward):
    env = wrap(gym.make(PENDULUM))
    certificate = certify(env, **FEW)
    assert (certificate.dynamics_verdict, certificate.reward_verdict) == (dynamics, reward)
    assert certificate.wrappers == tuple(type(layer).__name__ for layer in step_wrappers(env))
    assert all(name in certificate.table() for name in certificate.wrappers)
    env.close()


REFUSED = {
    "StickyAction": lambda env: wrappers.StickyAction(env, 0.25),
    "NormalizeReward": wrappers.NormalizeReward,
    "NormalizeObservation": wrappers.NormalizeObservation,
    "DelayObservation": lambda env: wrappers.DelayObservation(env, 2),
    "FrameStackObservation": lambda env: wrappers.FrameStackObservation(env, 2),
    "Shaped": Shaped,
    "Shifted": Shifted,
    "Noisy": Noisy,
    "Smooth": Smooth,
    "DiscretizeAction": lambda env: wrappers.DiscretizeAction(env, 5),
}


@pytest.mark.parametrize(("name", "wrap"), REFUSED.items(), ids=REFUSED)
def test_wrappers_with_a_state_of_their_own_are_refused_by_name(name, wrap):
    """Under another wrapper that is none of it."""
    env = with_observations(lambda o: o)(wrap(LeanLeft(gym.make(PENDULUM))))
    with refused(name):
        certify(env, symmetry_spec(PENDULUM), **FEW)
    if "Observation" in name or name in ("Shifted", "Noisy"):
        with refused(name):
            symmetry_spec(env)


def test_an_environment_that_remembers_is_refused():
    class Remembers(type(gym.make("Swimmer-v5").unwrapped)):
        total = 0.0

        def _get_rew(self, *arguments):
            self.total += 1
            return super()._get_rew(*arguments)[0] + self.total, {}

    with refused("the environment itself remembers", "reward"):
        certify(Remembers(), symmetry_spec("Swimmer-v5"), **FEW)


def test_wrappers_stay_as_they_were(tmp_path):
    env = Counts(Monitor(gym.make(PENDULUM, max_episode_steps=20), str(tmp_path / "log")))
    env.reset(seed=0)
    env.step(env.action_space.sample())
    limit = env.env.env
    certify(env, **FEW)
    assert (env.steps, len(env.rewards), limit._elapsed_steps, len(env.env.rewards)) == (1, 1, 1, 1)
    assert len((tmp_path / "log.monitor.csv").read_text().splitlines()) == 2  # the header
    env.step(env.action_space.sample())
    assert limit._elapsed_steps == 2
    env.close()


def test_verdicts_and_certificates_are_not_those_of_the_environment_inside(monkeypatch, tmp_path, caplog):
    monkeypatch.setenv("RPPDYN_CACHE_DIR", str(tmp_path))
    env = with_actions(np.abs)(gym.make(PENDULUM))
    spec = symmetry_spec(env)
    assert spec.symmetries[0].verdict == "not certified" and symmetry_spec(PENDULUM).symmetries[0].verdict == "exact"
    assert save_certificate(certify(env, spec, **FEW)) is None and "TransformAction" in caplog.text
    save_certificate(certify(PENDULUM, **FEW))
    assert certificate_for(gym.make(PENDULUM), spec)[0] is not None
    certificate, reason = certificate_for(env, spec)
    assert certificate is None and "TransformAction" in reason


class DictPole(InvertedPendulumEnv):
    """The pendulum with a dictionary of observations."""

    def __init__(self):
        super().__init__()
        self.observation_space = gym.spaces.Dict({"all": self.observation_space})

    def _get_obs(self):
        return {"all": super()._get_obs()}

    def step(self, action):
        self.do_simulation(action, self.frame_skip)
        obs = self._get_obs()
        return obs, 1.0, bool(abs(obs["all"][1]) > 0.2), False, {}


def test_acting_wrappers_of_a_dictionary_of_observations_are_tested():
    """A TypeError: a dictionary is no vector."""
    rescaled = wrappers.RescaleAction(DictPole(), np.float32(-1), np.float32(1))
    require_symmetric_wrappers(wrappers.FlattenObservation(rescaled), symmetry_spec(PENDULUM))
    with refused("its wrapper TransformAction "):
        env = wrappers.FlattenObservation(with_actions(lambda a: a + 0.2)(DictPole()))
        require_symmetric_wrappers(env, symmetry_spec(PENDULUM))


def test_a_spec_without_activations_tests_no_wrapper_of_a_model_with_some(tmp_path):
    """An AttributeError."""
    stock = Path(gym.envs.mujoco.__file__).parent / "assets" / "inverted_pendulum.xml"
    muscular = tmp_path / "muscular.xml"
    muscular.write_text(stock.read_text().replace("<motor ", '<general dyntype="filter" dynprm=".1" '))
    env = wrappers.RescaleAction(gym.make(PENDULUM, xml_file=str(muscular)), np.float32(-1), np.float32(1))
    assert env.unwrapped.model.na == 1
    require_symmetric_wrappers(env, symmetry_spec(PENDULUM))
    env.close()


def test_constant_rewards_are_compared_with_their_size():
    """A wrapper's were compared in absolute numbers, those of a certificate with their size."""
    s, m = (SimpleNamespace(reward=np.full(5, reward)) for reward in (100.0, 101.0))
    assert reward_defects(s, m) == pytest.approx(np.full(5, 0.01))


SPOILING = {"TransformAction": with_actions(lambda a: a + 0.2), "LeanLeft": LeanLeft, "Smooth": Smooth}


def test_wrappers_that_keep_a_symmetry_pass_and_others_are_refused():
    for name, wrap in SPOILING.items():
        env = wrappers.RescaleAction(wrap(gym.make(PENDULUM)), np.float32(-1), np.float32(1))
        with refused(f"its wrapper {name} ", "pass spec="):
            require_symmetric_wrappers(env, symmetry_spec(env))
    env = wrappers.NormalizeReward(Counts(wrappers.RescaleAction(gym.make(PENDULUM), np.float32(-1), np.float32(1))))
    require_symmetric_wrappers(env, symmetry_spec(env))
    require_symmetric_wrappers(gym.make("CartPole-v1"), symmetry_spec(PENDULUM))
    env.close()
