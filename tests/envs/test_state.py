"""A restored environment goes on bit-identically, in a fresh process too."""

from __future__ import annotations

import functools
import hashlib
import json
import random
from collections import Counter, defaultdict, deque, namedtuple
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import ClassVar

import gymnasium as gym
import mujoco
import numpy as np
import pytest
import torch
from forked import run_code
from gymnasium.envs.mujoco import MujocoEnv
from gymnasium.envs.mujoco.inverted_pendulum_v5 import InvertedPendulumEnv
from refusals import refused

from rppdyn.envs import capture_state, make_env, restore_state
from rppdyn.envs._catalogue import KNOWN_ENVIRONMENTS
from rppdyn.envs._state import Resumable, why_not_capturable

ENVIRONMENTS = [env_id for env_id in KNOWN_ENVIRONMENTS if env_id != "HumanoidStandup-v5"]  # it resembles Humanoid

OPTIONS = dict(max_episode_steps=90)  # so that Swimmer and HalfCheetah, which never terminate, are truncated and reset


def record(env, steps: int) -> dict:
    """Everything `steps` random steps return, resets and Monitor's episodes included, as hexadecimal bytes."""
    trace, episodes = hashlib.sha256(), []
    for _ in range(steps):
        action = env.action_space.sample()
        obs, reward, terminated, truncated, info = env.step(action)
        for part in (action, obs, np.float64(reward), np.array([terminated, truncated])):
            trace.update(np.ascontiguousarray(part).tobytes())
        if terminated or truncated:
            episodes.append([info["episode"]["r"], info["episode"]["l"]])
            obs, info = env.reset()
            trace.update(obs.tobytes())
            trace.update(repr(sorted(info.items())).encode())
    trace.update(env.observation_space.sample().tobytes())
    return {"trace": trace.hexdigest(), "episodes": episodes, "next": env.unwrapped.np_random.random().hex()}


def started(env_id: str, steps: int = 100):
    env = make_env(env_id, **OPTIONS)
    env.reset(seed=5)
    env.action_space.seed(6)
    env.observation_space.seed(7)
    record(env, steps)
    return env


def to_json(state) -> str:
    """Plain data indeed: arrays become lists, everything else is JSON already (floats are exact in it)."""
    return json.dumps(state, default=lambda x: x.tolist() if isinstance(x, np.ndarray) else {}["not plain data"])


def test_fresh_process_continues_bit_identically(tmp_path):
    expected = {}
    for env_id in ENVIRONMENTS:
        env = started(env_id)
        (tmp_path / f"{env_id}.json").write_text(to_json(capture_state(env)))
        expected[env_id] = record(env, 200)
        assert len(expected[env_id]["episodes"]) >= 2
    code = f"""
import json, pathlib, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
import test_state as t
for env_id in t.ENVIRONMENTS:
    env, file = t.make_env(env_id, **t.OPTIONS), pathlib.Path(f"{{env_id}}.json")
    t.restore_state(env, json.loads(file.read_text()))
    file.write_text(json.dumps(t.record(env, 200)))
"""
    run_code(code, folder=tmp_path)
    found = {env_id: json.loads((tmp_path / f"{env_id}.json").read_text()) for env_id in ENVIRONMENTS}
    assert found == expected


@pytest.mark.parametrize("env_id", ENVIRONMENTS)
def test_used_environment_continues_bit_identically_and_capturing_changes_nothing(env_id):
    one, other = started(env_id), started(env_id)
    first, second = capture_state(one), capture_state(one)
    expected = record(other, 60)
    assert record(one, 60) == expected
    record(one, 30)
    restore_state(one, first)
    assert record(one, 60) == expected
    for state in (first, second):
        state["wrappers"][1].pop("elapsed")  # Monitor's clock
    assert to_json(first) == to_json(second)


def test_restoring_before_the_first_reset():
    env, other = make_env("Hopper-v5"), make_env("Hopper-v5")
    env.action_space.seed(0)
    restore_state(other, capture_state(env))
    for e in (env, other):
        e.reset(seed=1)
    assert record(env, 50) == record(other, 50)
    with pytest.raises(gym.error.ResetNeeded):
        fresh = make_env("Hopper-v5")
        fresh.env.needs_reset = False  # past Monitor, to Gymnasium's own check
        fresh.step(fresh.action_space.sample())


def test_counters_and_clock_are_kept():
    env, other = started("Swimmer-v5", 100), make_env("Swimmer-v5", **OPTIONS)
    env.env.t_start -= 1000.0
    restore_state(other, capture_state(env))
    assert other.env.total_steps == 100 and other.env.episode_lengths == [90]
    assert other.env.rewards == env.env.rewards and len(other.env.rewards) == 10
    assert other.env.env._elapsed_steps == 10
    assert other.env.t_start == pytest.approx(env.env.t_start, abs=5.0)
    other.env.rewards.append(1.0)
    assert len(env.env.rewards) == 10  # copies, not references


def test_environments_of_other_processes():
    from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

    make = functools.partial(make_env, "Walker2d-v5", actuator_scale={"leg_joint": 0.5})
    actions = np.random.default_rng(0).uniform(-1, 1, (30, 2, 6)).astype(np.float32)
    vec, other = SubprocVecEnv([make, make], start_method="forkserver"), DummyVecEnv([make, make])
    try:
        vec.seed(3)
        vec.reset()
        for action in actions:
            vec.step(action)
        restore_state(other, json.loads(to_json(capture_state(vec))))
        for action in actions:
            for a, b in zip(vec.step(action)[:3], other.step(action)[:3], strict=True):
                assert np.array_equal(np.float32(a), np.float32(b))  # DummyVecEnv has float32 rewards
    finally:
        vec.close()


def test_errors():
    state = capture_state(started("Hopper-v5", 5))
    for call, parts in (
        (lambda: restore_state(make_env("Swimmer-v5"), state), ("Hopper-v5", "Swimmer-v5")),
        (lambda: restore_state(make_env("Hopper-v5", monitor=False), state), ("Monitor", "wrap it alike")),
        (lambda: restore_state(make_env("Hopper-v5"), state | {"format": 9}), ("9",)),
        (lambda: restore_state(make_env("Hopper-v5"), state | {"simulator": np.zeros(3)}), ("(3,)",)),
        (lambda: restore_state(make_env("Hopper-v5"), {"format": 2, "envs": []}), ("vectorised",)),
        (lambda: capture_state(remembering(Stream)), ("Remembering.memory", "generator")),
        (lambda: capture_state(gym.make("CartPole-v1")), ("CartPole", "MuJoCo")),
    ):
        with refused(*parts):
            call()


# -- what environments and wrappers remember themselves --------------------------------------------------------------------


class Own:
    """Something that an episode remembers: `next` is a number of the past steps, which `begin` forgets."""

    def __init__(self):
        self.begin()

    @property
    def count(self):
        return self._count

    @count.setter
    def count(self, value):
        self._count = value

    def begin(self):
        self.count = 0

    def next(self):
        self.count += 1
        return self.count


class Lazy(Own):
    def begin(self):
        vars(self).pop("late", None)

    def next(self):
        if not hasattr(self, "late"):
            self.late = {"steps": np.zeros(2), "pairs": [(1, 2.0)]}
        self.late["steps"] += 1
        self.late["pairs"].append((3, float(self.late["steps"][0])))
        return self.late["pairs"][-1][1]


class Containers(Own):
    def begin(self):
        self.queue = deque([0.0, 1.0], maxlen=3)
        self.nested = {"a": [1, {2}], 3: (4, [5.0]), "count": defaultdict(int), "sum": Counter()}

    def next(self):
        self.queue.append(self.queue[-1] + self.queue[0])
        self.nested["a"][1].add(len(self.nested["a"][1]) + 7)
        self.nested[3][1][0] *= 1.1
        self.nested["count"]["x"] += 1
        self.nested["sum"].update("ab")
        return sum(self.queue) + len(self.nested["a"][1]) + self.nested[3][1][0] + self.nested["sum"]["a"]


class Generators(Own):
    def begin(self):
        bits = np.random.MT19937(1)
        self.all = [np.random.default_rng(1), random.Random(1), np.random.Generator(bits), np.random.RandomState(1)]
        self.torch = torch.Generator().manual_seed(1)

    def next(self):
        return sum(float(g.random()) for g in self.all) + torch.rand(1, generator=self.torch).item()


class Arrays(Own):
    def begin(self):
        self.array, self.number = np.arange(3, dtype=np.float32), np.int16(1)
        self.tensor, self.view = torch.ones(2, dtype=torch.bfloat16), self.array[:2]

    def next(self):
        self.view *= 1.5
        self.tensor += 1
        self.number += np.int16(1)
        return float(self.array.sum() + self.tensor.sum()) + int(self.number)


class Shared(Own):
    """Attributes that begin as one object and become two, arrays that can't be written, names that MuJoCo's classes use."""

    def begin(self):
        self.low = self.high = np.zeros(2)
        self.first = self.second = [0.0]
        self.mean = np.zeros(2)
        self.mean.flags.writeable = False
        self.phase = 0.0

    def next(self):
        self.low, self.high = self.low + 1, self.high + 3
        self.first, self.second = [self.first[0] + 1], [self.second[0] + 5]
        self.mean = self.mean + 7
        self.mean.flags.writeable = False
        return float(self.low[0] + 10 * self.high[0] + 100 * self.first[0] + 1000 * self.second[0] + 1e4 * self.mean[0])


class Gait(Enum):
    WALK = 1
    RUN = 2


@dataclass
class Command:
    speed: float = 0.0
    gait: Gait = Gait.WALK
    history: list = field(default_factory=list)
    point: namedtuple("Point", "x y") = (1.0, 2.0)


class Slots:
    __slots__ = ("phase",)

    def __init__(self):
        self.phase = 2**70


class Objects(Own):
    def begin(self):
        self.command, self.slots = Command(), Slots()
        self.same = self.command
        self.command.history.append(self)  # a circle

    def next(self):
        self.slots.phase += 1
        self.same.speed += 0.5
        self.same.gait = Gait.RUN if self.same.gait is Gait.WALK else Gait.WALK
        return self.command.speed + self.slots.phase % 1000 + self.command.gait.value


class OfTheClass(Own):
    log: ClassVar[list] = []
    steps = 0

    def begin(self):
        self.log.clear()

    def next(self):
        self.log.append(len(self.log))
        type(self).steps += 1
        return sum(self.log) + self.steps


class Stream(Own):
    def begin(self):
        self.memory = (x for x in range(100))

    def next(self):
        return next(self.memory)


OWN = [Own, Lazy, Containers, Generators, Arrays, Shared, Objects, OfTheClass]


def remembering(own: type, where: str = "environment"):
    """An environment, or one in a wrapper, that has the attributes of a class, and adds its numbers to the reward."""

    class Remembering(own, InvertedPendulumEnv):
        def __init__(self, **options):
            InvertedPendulumEnv.__init__(self, **options)
            self.begin()

        def reset_model(self):
            self.begin()
            return super().reset_model()

        def step(self, action):
            obs, reward, *rest = super().step(action)
            return obs, reward + self.next(), *rest

    class Wrapping(own, gym.Wrapper):
        def __init__(self, env):
            gym.Wrapper.__init__(self, env)
            self.begin()

        def reset(self, **options):
            self.begin()
            return self.env.reset(**options)

        def step(self, action):
            obs, reward, *rest = self.env.step(action)
            return obs, reward + self.next(), *rest

    class Holding(InvertedPendulumEnv):
        def reset_model(self):
            self.memory = own()
            return super().reset_model()

        def step(self, action):
            obs, reward, *rest = super().step(action)
            return obs, reward + self.memory.next(), *rest

    if where == "wrapper":
        return Resumable(Wrapping(gym.make("InvertedPendulum-v5")))
    return Resumable({"environment": Remembering, "object": Holding}[where]())


@pytest.mark.parametrize("where", ["environment", "wrapper", "object"])
@pytest.mark.parametrize("own", OWN)
def test_what_an_environment_remembers_itself_is_kept(own, where):
    """Restored in a fresh environment, and in one that was used."""
    env, fresh, used = (remembering(own, where) for _ in range(3))
    action = np.zeros(1, np.float32)
    assert not why_not_capturable(env)
    env.reset(seed=0)
    for _ in range(6):
        env.step(action)
    state = json.loads(to_json(capture_state(env)))
    expected = [env.step(action)[1] for _ in range(5)]
    assert len(set(expected)) > 1
    used.reset(seed=3)
    for _ in range(9):
        used.step(action)
    for other in (fresh, used):
        restore_state(other, state)
        assert [other.step(action)[1] for _ in range(5)] == expected


@pytest.mark.parametrize("where", ["environment", "wrapper", "object"])
def test_what_can_not_be_captured_is_named(where):
    env = remembering(Stream, where)
    assert "memory" in (why := why_not_capturable(env)) and "generator" in why
    capture_state(env, strict=False)


def test_what_two_attributes_share_is_kept_though_one_of_them_can_not_be():
    class Half(InvertedPendulumEnv):
        def reset_model(self):
            generator = np.random.default_rng(0)
            self.left_out, self.kept = {"of": generator, "stream": iter([1])}, generator
            return super().reset_model()

    env, other = Resumable(Half()), Resumable(Half())
    for e in (env, other):
        e.reset(seed=0)
    env.unwrapped.kept.random(5)
    restore_state(other, json.loads(to_json(capture_state(env, strict=False))))
    assert other.unwrapped.kept.random() == env.unwrapped.kept.random()
    assert "left_out" in why_not_capturable(env)


def test_a_wrapper_s_attributes_are_its_own_whatever_their_names():
    class Named(gym.Wrapper):
        data, height = 1.0, 2.0

    env, other = (Named(gym.make("InvertedPendulum-v5")) for _ in range(2))
    env.data, env.height, env.width = [1, 2], 3.0, {"a": 4}
    state = json.loads(to_json(capture_state(env)))
    restore_state(other, state)
    assert (other.data, other.height, other.width) == ([1, 2], 3.0, {"a": 4})
    for packed in state["own"]:  # as earlier versions captured it
        packed["attributes"] = {
            key: packed["attributes"][key] for key in packed["attributes"].keys() - {"data", "height"}
        }
    restore_state(other, state)
    assert (other.data, other.height) == ([1, 2], 3.0)


GROUND = """<mujoco><asset><hfield name="ground" nrow="9" ncol="9" size="2 2 .3 .1"/></asset><worldbody>
<geom type="hfield" hfield="ground"/><body pos="0 0 .5"><joint name="up" type="slide" axis="0 0 1"/><joint axis="0 1 0"/>
<geom name="foot" size=".1 .1 .1" type="box"/></body></worldbody><actuator><motor joint="up"/></actuator></mujoco>"""


def test_a_model_that_an_environment_draws_anew_is_kept(tmp_path):
    """Masses, gravity, sizes with the bounds that follow from them, and the heights of the ground."""
    (tmp_path / "ground.xml").write_text(GROUND)

    class Drawing(MujocoEnv):
        metadata: ClassVar = {"render_modes": ["human", "rgb_array", "depth_array", "rgbd_tuple"], "render_fps": 100}

        def __init__(self):
            space = gym.spaces.Box(-np.inf, np.inf, (4,), np.float64)
            super().__init__(str(tmp_path / "ground.xml"), 5, space)

        def reset_model(self):
            self.model.body_mass[1:] *= self.np_random.uniform(0.5, 2.0)
            self.model.opt.gravity[0] = self.np_random.uniform(-1, 1)
            self.model.geom_size[1] = self.np_random.uniform(0.05, 0.15, 3)
            self.model.hfield_data[:] = self.np_random.uniform(0, 1, 81)
            mujoco.mj_setConst(self.model, self.data)
            return self._get_obs()

        def _get_obs(self):
            return np.concatenate([self.data.qpos, self.data.qvel])

        def step(self, action):
            self.do_simulation(action, self.frame_skip)
            return self._get_obs(), 0.0, False, False, {}

    env, other = Resumable(Drawing()), Resumable(Drawing())
    for e, seed in ((env, 0), (other, 1)):
        e.reset(seed=seed)
    action = np.zeros(1, np.float32)
    for _ in range(10):
        env.step(action)
    restore_state(other, json.loads(to_json(capture_state(env))))
    for _ in range(40):
        assert np.array_equal(env.step(action)[0], other.step(action)[0])
    assert env.unwrapped.data.ncon
    models = [e.unwrapped.model for e in (env, other)]
    assert np.array_equal(*(model.bvh_aabb for model in models)) and np.array_equal(*(m.hfield_data for m in models))


def test_generators_of_spaces_within_spaces_are_kept():
    class Goals(gym.ObservationWrapper):
        def __init__(self, env):
            super().__init__(env)
            goal = gym.spaces.Tuple([gym.spaces.Discrete(1000), gym.spaces.Sequence(gym.spaces.Discrete(1000))])
            self.observation_space = gym.spaces.Dict({"seen": env.observation_space, "goal": goal})
            self.own = gym.spaces.Dict({"goal": gym.spaces.Box(0, 1)})

        def observation(self, observation):
            return {"seen": observation, "goal": (0, ())}

    env, other = (Goals(gym.make("InvertedPendulum-v5")) for _ in range(2))
    for e, seed in ((env, 0), (other, 1)):
        e.observation_space.seed(seed)
        e.own.seed(seed)
        e.observation_space.sample()
    restore_state(other, json.loads(to_json(capture_state(env))))
    for key in ("observation_space", "own"):
        assert [str(getattr(env, key).sample()) for _ in range(3)] == [
            str(getattr(other, key).sample()) for _ in range(3)
        ]


def test_states_of_the_first_version_are_read():
    """They had no attributes, and no model."""
    env = started("Hopper-v5", 5)
    state = capture_state(env)
    other = make_env("Hopper-v5")
    restore_state(other, {key: value for key, value in state.items() if key not in ("own", "model")})
    action = np.ones(3, np.float32)
    assert np.array_equal(env.step(action)[0], other.step(action)[0])
