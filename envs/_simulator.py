"""Simulators that step a Gymnasium MuJoCo environment, a bare MuJoCo model, or an environment of one's own from any state."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import gymnasium as gym
import mujoco
import numpy as np
from gymnasium import spaces
from gymnasium.envs.mujoco import MujocoEnv

from rppdyn.envs._wrappers import acting_wrappers, flattened, observation_function, step_wrappers, without_passive

if TYPE_CHECKING:
    from rppdyn.envs.certification._evidence import Elements

INTEGRATION = mujoco.mjtState.mjSTATE_INTEGRATION
CONTROL_INTERVAL = 0.02  # seconds that a bare model's random control lasts; shorter ones make it tremble
UNSTABLE_WARNINGS = {
    mujoco.mjtWarning.mjWARN_BADQPOS: "unstable, MuJoCo reset it: bad position",
    mujoco.mjtWarning.mjWARN_BADQVEL: "unstable, MuJoCo reset it: bad velocity",
    mujoco.mjtWarning.mjWARN_BADQACC: "unstable, MuJoCo reset it: bad acceleration",
    mujoco.mjtWarning.mjWARN_BADCTRL: "MuJoCo set the controls to zero: bad control",
}
"""Warnings of steps in which MuJoCo replaces the state or the controls; "bad" is NaN, infinite or above 1e10."""

NOT_FINITE = {"obs": "an observation is not finite", "reward": "the reward is not finite"}

NO_SIMULATOR = (
    "no Gymnasium MuJoCo environment: to certify it, give it simulator_state(), plain data with the observation as 'state', "
    "and restore_simulator_state(data)"
)

MEMORY_TEST_STATES = 40  # states by which an environment is tested for memory
START_SPREAD = 0.1  # standard deviation of a bare model's random starts, in radians or metres and their rates


def get_integration_state(model: mujoco.MjModel, data: mujoco.MjData) -> np.ndarray:
    """MuJoCo's full integration state: time, positions, velocities, controls and the solver's warm start."""
    state = np.empty(mujoco.mj_stateSize(model, INTEGRATION))
    mujoco.mj_getState(model, data, state, INTEGRATION)
    return state


def set_integration_state(model: mujoco.MjModel, data: mujoco.MjData, state: np.ndarray) -> None:
    """Put the simulator into a state, derived quantities (positions of bodies, contacts) included."""
    mujoco.mj_setState(model, data, state, INTEGRATION)
    mujoco.mj_forward(model, data)
    # mj_forward overwrites the warm start; setting the state again makes the next step a bit-exact continuation.
    mujoco.mj_setState(model, data, state, INTEGRATION)


def get_derived(data: mujoco.MjData) -> dict[str, np.ndarray]:
    """Quantities that the simulator last derived: poses and velocities of bodies, forces, sensor readings.

    After a step most of them are those of the step's beginning, and some observations and rewards use them (Ant's and
    Humanoid's). Arrays whose size depends on the contacts are left out; the next step makes new ones.
    """
    derived = {}
    for name in dir(data):
        if not name.startswith(("_", "efc_", "iefc_", "contact", "solver", "timer", "bvh_")):
            value = getattr(data, name)
            if isinstance(value, np.ndarray) and value.dtype == np.float64 and value.flags.writeable and value.size:
                derived[name] = value.copy()
    return derived


@contextmanager
def tight_solver(model: mujoco.MjModel) -> Iterator[None]:
    """Solve contact forces to rounding in the context, by Newton's method without the stock tolerances.

    Friction cone, integrator and physical parameters stay; all options are restored afterwards.
    """
    tight = {"solver": mujoco.mjtSolver.mjSOL_NEWTON, "tolerance": 1e-15, "iterations": 200,
             "ls_tolerance": 1e-6, "ls_iterations": 200}  # fmt: skip
    options = {key: getattr(model.opt, key) for key in tight}
    try:
        for key, value in tight.items():
            setattr(model.opt, key, value)
        yield
    finally:
        for key, value in options.items():
            setattr(model.opt, key, value)


@contextmanager
def quiet_mujoco() -> Iterator[None]:
    """Suppress MuJoCo's warnings in the terminal and in `MUJOCO_LOG.TXT` in the context; `mjData` still counts them."""
    before = mujoco.get_mju_user_warning()
    mujoco.set_mju_user_warning(lambda message: None)
    try:
        yield
    finally:
        mujoco.set_mju_user_warning(before)


class Outcome(NamedTuple):
    """One step: state and observation before and after it, reward, termination, and whether there was contact.

    For several states, each array has them on the first axis. A bare model has an empty observation and the reward NaN.
    `fault` says why a step is invalid (MuJoCo reset it, or a number is not finite), and is "" for a valid one. The results of
    an invalid step are zeros.
    """

    qpos: np.ndarray
    qvel: np.ndarray
    act: np.ndarray
    obs: np.ndarray
    next_qpos: np.ndarray
    next_qvel: np.ndarray
    next_act: np.ndarray
    next_obs: np.ndarray
    reward: np.ndarray
    terminated: np.ndarray
    contact: np.ndarray
    fault: np.ndarray

    def at(self, states: np.ndarray) -> Outcome:
        """The outcomes from some of the states, by index or mask."""
        return Outcome(*(column[states] for column in self))


class Simulator:
    """A Gymnasium MuJoCo environment that can be set to any state and stepped through its wrappers.

    A state is MuJoCo's full integration state (`mjSTATE_INTEGRATION`): positions and velocities are not enough, because
    the constraint solver starts from the last accelerations (`qacc_warmstart`). Wrappers that only count, check or record
    are skipped, the others are copied, see `rppdyn.envs._wrappers`. Dictionaries of observations are flattened.

    Raises:
        ValueError: the environment is no Gymnasium MuJoCo environment.
    """

    control_scale = 1.0  # share of the actions' range, about its middle, from which random actions are drawn
    tick: Callable[[int], None] = staticmethod(lambda n: None)  # reports n simulated steps to a progress bar
    is_task = True  # has a reward, terminations and a reset distribution
    is_observed = True  # has an observation

    def __init__(self, env):
        base = env.unwrapped
        if not isinstance(base, MujocoEnv) or not hasattr(base, "_get_obs"):
            raise ValueError(f"{type(base).__name__} is {NO_SIMULATOR}")
        self._set_env(env)
        self.model, self.data = base.model, base.data
        self._observation = observation_function(self.env)

    def _set_env(self, env: gym.Env) -> None:
        base = env.unwrapped
        self.env: Any = without_passive(flattened(env))
        self.name = base.spec.id if base.spec else type(base).__name__  # for messages
        # class names of the wrappers that act on steps, the outermost first
        self.wrappers: tuple[str, ...] = tuple(type(layer).__name__ for layer in step_wrappers(self.env))

    @property
    def state_keys(self) -> tuple[str, ...]:
        """The spec's spaces that make up the state; activations only if the model has any."""
        return ("qpos", "qvel", "act") if self.model.na else ("qpos", "qvel")

    @property
    def sizes(self) -> dict[str, tuple[int, ...] | None]:
        """Shapes of the spaces that a spec of this simulator acts on."""
        counts = {"action": self.model.nu, "qpos": self.model.nq, "qvel": self.model.nv, "act": self.model.na}
        return {key: (n,) for key, n in counts.items() if n or key != "act"} | self._task_sizes

    @property
    def _task_sizes(self) -> dict[str, tuple[int, ...] | None]:
        if not self.is_task:
            return {}
        return {"obs": self.env.observation_space.shape, "action": self.env.action_space.shape}

    @property
    def action_bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """Bounds of the random actions."""
        low, high = self._bounds
        if self.control_scale == 1:
            return low, high
        middle, half = (low + high) / 2, self.control_scale * (high - low) / 2
        return middle - half, middle + half

    @property
    def _bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """Bounds of the actions, float64; if a wrapper has none, those of the environment inside it."""
        layer, space = self.env, self.env.action_space
        while isinstance(space, spaces.Box) and not space.is_bounded() and isinstance(layer, gym.Wrapper):
            layer = layer.env
            space = layer.action_space if layer.action_space.shape == space.shape else space
        if not isinstance(space, spaces.Box) or not space.is_bounded():
            raise ValueError(f"{self.name}: its actions, {space}, have no bounds to draw from; give it some")
        return space.low.astype(np.float64), space.high.astype(np.float64)

    def reset(self, rng: np.random.Generator) -> None:
        """Start an episode."""
        self.env.reset(seed=int(rng.integers(2**31)))

    def observe(self) -> np.ndarray:
        """The raw observation of the present state, float64."""
        return np.array(self._observation(), dtype=np.float64)

    def advance(self, action: np.ndarray) -> tuple[np.ndarray, float, bool]:
        """Step from the present state; return (observation, reward, terminated)."""
        obs, reward, terminated, _, _ = self.env.step(action)
        return np.array(obs, dtype=np.float64), float(reward), bool(terminated)

    def require_memoryless(self) -> None:
        """Check that observation, reward and next state are functions of the simulator's state and the action.

        Raises:
            ValueError: a wrapper remembers earlier steps, draws at random, or changes the observation otherwise.
        """
        self._require(lambda simulator: simulator._find_memory() or simulator._find_observation_fault())

    def require_observed(self) -> None:
        """Check that `reset` and `step` return the observation that `observe` returns."""
        self._require(Simulator._find_observation_fault)

    def _require(self, find_fault: Callable[[Simulator], str]) -> None:
        """Refuse an environment with a fault, and name its innermost wrapper that has one."""
        if not (fault := find_fault(self)):
            return
        layer: gym.Env = self.env
        for layer in (self.env.unwrapped, *reversed(acting_wrappers(self.env))):
            if inner := find_fault(type(self)(layer)):
                fault = inner
                break
        culprit = f"its wrapper {type(layer).__name__}" if isinstance(layer, gym.Wrapper) else "the environment itself"
        raise ValueError(f"{self.name}: {culprit} {fault}, or use the environment inside it")

    def _find_memory(self) -> str:
        """A fault: steps from the same states in reverse order differ; "" if they don't."""
        states, actions = self.rollout_states(MEMORY_TEST_STATES, np.random.default_rng(0), stride=3, horizon=25)
        forward = self.steps(states, actions)
        backward = self.steps(states[::-1], actions[::-1]).at(np.arange(len(states))[::-1])
        kinds = {"obs": "observation", "next_obs": "observation", "reward": "reward", "terminated": "termination"}
        for key in ("obs", "next_qpos", "next_qvel", "next_act", "next_obs", "reward", "terminated"):
            if not np.array_equal(getattr(forward, key), getattr(backward, key)):
                kind = kinds.get(key, "next state")
                return (
                    f"remembers earlier steps or draws at random: the {kind} is not the same from the same state and action, "
                    "and a mirrored state can't be given its memory; take it off"
                )
        return ""

    def _find_observation_fault(self) -> str:
        """A fault: a returned observation differs from that of the state; "" if none does."""
        returned, observed = [self.env.reset(seed=0)[0]], [self.observe()]
        state = self.get()
        self.set(state)
        first = self.observe()
        for _ in range(3):
            returned.append(self.env.step(self.env.action_space.sample())[0])
            observed.append(self.observe())
        self.set(state)
        if not np.array_equal(first, self.observe(), equal_nan=True):
            return "gives two different observations of one state (noise, memory, running statistics?); take it off"
        pairs = ((np.asarray(a), b) for a, b in zip(returned, observed, strict=True))
        if not all(np.array_equal(a, b.astype(a.dtype), equal_nan=True) for a, b in pairs):
            return (
                "changes what step or reset return as the observation and is no gymnasium.ObservationWrapper, which could be "
                "asked for the observation of any state; make it one"
            )
        return ""

    # -- states -------------------------------------------------------------------------------------------------------

    def get(self) -> np.ndarray:
        """The integration state, one float64 vector."""
        return get_integration_state(self.model, self.data)

    def set(self, state: np.ndarray) -> None:
        """Put the simulator into an integration state, contact forces included."""
        set_integration_state(self.model, self.data, state)
        mujoco.mj_rnePostConstraint(self.model, self.data)  # computes cfrc_ext, which mj_forward does not
        mujoco.mj_subtreeVel(self.model, self.data)  # computes subtree_linvel and subtree_angmom

    def coordinates(self) -> tuple[np.ndarray, ...]:
        """Positions, velocities and activations of the present state."""
        return self.data.qpos, self.data.qvel, self.data.act

    def read(self, states: np.ndarray, *keys: str) -> list[np.ndarray]:
        """Read fields of states ("qpos", "qacc_warmstart", ...), each stacked over the states."""
        rows = []
        for state in states:
            mujoco.mj_setState(self.model, self.data, state, INTEGRATION)
            rows.append([getattr(self.data, key).copy() for key in keys])
        return [np.array(column) for column in zip(*rows, strict=True)]

    def mirror(self, elements: Elements, states: np.ndarray) -> np.ndarray:
        """Images of states, the solver's warm start, mocap bodies and, if they are the actions, controls included."""
        spaces = {key: key for key in self.state_keys} | {"qacc_warmstart": "qvel"}
        spaces |= {"ctrl": "action"} if elements.spec.action.dim == self.model.nu else {}  # a step overwrites it
        values = zip(spaces.items(), self.read(states, *spaces), strict=True)
        images = {key: elements.transform(space, fields) for (key, space), fields in values}
        mirrored = np.empty_like(states)
        for i, state in enumerate(states):
            mujoco.mj_setState(self.model, self.data, state, INTEGRATION)
            for key, fields in images.items():
                getattr(self.data, key)[:] = fields[i]
            mirrored[i] = self.get()
        if self.model.nmocap:
            elements.mirror_mocap(self.model, self.data, states, mirrored)
        return mirrored

    # -- running ------------------------------------------------------------------------------------------------------

    def step(self, state: np.ndarray, action: np.ndarray) -> Outcome:
        """One step from a state."""
        self.set(state)
        data = self.data
        before = [x.copy() for x in self.coordinates()]
        observed = self.observe()
        contact = data.ncon > 0
        obs, reward, terminated, fault = self._advance(action)
        obs = obs if self.is_task else self.observe()
        if not fault and not (np.isfinite(observed).all() and np.isfinite(obs).all()):
            fault = NOT_FINITE["obs"]
        results = [observed, *(x.copy() for x in self.coordinates()), obs, np.array(reward)]
        if fault:
            results = [np.zeros_like(y) for y in results]
        return Outcome(*before, *results, *map(np.array, (terminated, contact or data.ncon > 0, fault)))

    def _advance(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, str]:
        """The result of `advance`, and the fault of the step or ""."""
        for warning in UNSTABLE_WARNINGS:
            self.data.warning[warning].number = 0
        obs, reward, terminated = self.advance(action)
        fault = next((text for warning, text in UNSTABLE_WARNINGS.items() if self.data.warning[warning].number), "")
        if not fault and not np.isfinite(obs).all():
            fault = NOT_FINITE["obs"]
        if not fault and self.is_task and not np.isfinite(reward):
            fault = NOT_FINITE["reward"]
        return obs, reward, terminated, fault

    def steps(self, states: np.ndarray, actions: np.ndarray) -> Outcome:
        """One step from each state, stacked."""
        outcomes = []
        for state, action in zip(states, actions, strict=True):
            outcomes.append(self.step(state, action))
            self.tick(1)
        return Outcome(*(np.array(column) for column in zip(*outcomes, strict=True)))

    def trajectories(self, starts: np.ndarray, actions: np.ndarray) -> list[np.ndarray]:
        """The coordinates (R, T, .) along actions (R, T, m) from R starts; terminations are ignored.

        From a faulty step on (see `Outcome`) they are NaN.
        """
        paths = []
        for start, sequence in zip(starts, actions, strict=True):
            self.set(start)
            path = []
            faulty = False
            for action in sequence:
                faulty = faulty or bool(self._advance(action)[3])
                path.append(tuple(np.full(x.shape, np.nan) if faulty else x.copy() for x in self.coordinates()))
            self.tick(len(sequence))
            paths.append([np.array(column) for column in zip(*path, strict=True)])
        return [np.array(column) for column in zip(*paths, strict=True)]

    def rollout_states(
        self, n: int, rng: np.random.Generator, *, stride: int, horizon: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """States (n, .) and uniformly random actions (n, m), every `stride` steps of episodes of at most `horizon` steps."""
        low, high = self.action_bounds
        states: list[np.ndarray] = []
        actions: list[np.ndarray] = []
        step, t = 0, horizon
        while len(states) < n:
            if t >= horizon:
                self.reset(rng)
                t = 0
            action = rng.uniform(low, high)
            if step % stride == 0:
                states.append(self.get())
                actions.append(action)
            _, _, terminated, fault = self._advance(action)
            t = horizon if terminated or fault else t + 1
            step += 1
            self.tick(1)
        return np.array(states), np.array(actions)

    def reset_states(self, n: int, rng: np.random.Generator) -> list[np.ndarray]:
        """The coordinates (n, .) after n resets."""
        rows = []
        for _ in range(n):
            self.reset(rng)
            rows.append([x.copy() for x in self.coordinates()])
        return [np.array(column) for column in zip(*rows, strict=True)]


class ObservedSimulator(Simulator):
    """An environment without a MuJoCo model whose observation is its whole state.

    Its `simulator_state()` has an entry "state", the observation, which `restore_simulator_state` sets; other entries stay as
    they are. The spec's action on observations is also the one on states.
    """

    def __init__(self, env):
        base = env.unwrapped
        if not (hasattr(base, "simulator_state") and hasattr(base, "restore_simulator_state")):
            raise ValueError(f"{type(base).__name__} is {NO_SIMULATOR}")
        if "state" not in base.simulator_state():
            raise ValueError(f"{type(base).__name__}: simulator_state() has no entry 'state', the observation")
        self._set_env(env)
        self._base = base

    @property
    def state_keys(self) -> tuple[str, ...]:
        return ("obs",)

    @property
    def sizes(self) -> dict[str, tuple[int, ...] | None]:
        return self._task_sizes

    def observe(self) -> np.ndarray:
        return self.get()

    def get(self) -> np.ndarray:
        return np.array(self._base.simulator_state()["state"], dtype=np.float64)

    def set(self, state: np.ndarray) -> None:
        self._base.restore_simulator_state(self._base.simulator_state() | {"state": state})

    def coordinates(self) -> tuple[np.ndarray, ...]:
        return (self.get(),)

    def read(self, states: np.ndarray, *keys: str) -> list[np.ndarray]:
        return [states.copy() for _ in keys]

    def mirror(self, elements: Elements, states: np.ndarray) -> np.ndarray:
        return elements.transform("obs", states)

    def step(self, state: np.ndarray, action: np.ndarray) -> Outcome:
        self.set(state)
        obs, reward, terminated, fault = self._advance(action)
        if fault:
            obs, reward = np.zeros_like(obs), 0.0
        empty = np.empty(0)
        parts = (empty, empty, empty, np.array(state), empty, empty, empty, obs, reward, terminated, False, fault)
        return Outcome(*map(np.array, parts))

    def _advance(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, str]:
        obs, reward, terminated = self.advance(action)
        fault = "" if np.isfinite(obs).all() else NOT_FINITE["obs"]
        return obs, reward, terminated, fault or ("" if np.isfinite(reward) else NOT_FINITE["reward"])


def control_bounds(model: mujoco.MjModel) -> tuple[np.ndarray, np.ndarray]:
    """Bounds of the controls; -1 and 1 for those without a range."""
    low, high = np.where(model.actuator_ctrllimited, model.actuator_ctrlrange.T, [[-1.0], [1.0]])
    return low, high


class BareSimulator(Simulator):
    """A MuJoCo model without a task: it has no observation, reward, termination or reset distribution.

    The controls are constant in a step, which lasts `CONTROL_INTERVAL`. Episodes start near the first keyframe, or near `qpos0`
    without one: positions and velocities are disturbed by `START_SPREAD`, and positions clipped to the joints' ranges.
    """

    is_task = is_observed = False

    def __init__(self, model: mujoco.MjModel, name: str = "model"):
        self.model, self.data, self.name, self.wrappers = model, mujoco.MjData(model), name, ()
        self.substeps = max(1, round(CONTROL_INTERVAL / model.opt.timestep))

    @property
    def _bounds(self) -> tuple[np.ndarray, np.ndarray]:
        return control_bounds(self.model)

    def reset(self, rng: np.random.Generator) -> None:
        model, data = self.model, self.data
        if model.nkey:
            mujoco.mj_resetDataKeyframe(model, data, 0)
        else:
            mujoco.mj_resetData(model, data)
        mujoco.mj_integratePos(model, data.qpos, START_SPREAD * rng.standard_normal(model.nv), 1.0)
        scalar = np.isin(model.jnt_type, (mujoco.mjtJoint.mjJNT_HINGE, mujoco.mjtJoint.mjJNT_SLIDE))
        limited = scalar & model.jnt_limited.astype(bool)
        addresses = model.jnt_qposadr[limited]
        data.qpos[addresses] = np.clip(data.qpos[addresses], *model.jnt_range[limited].T)
        data.qvel[:] += START_SPREAD * rng.standard_normal(model.nv)
        mujoco.mj_forward(model, data)

    def observe(self) -> np.ndarray:
        return np.empty(0)

    def advance(self, action: np.ndarray) -> tuple[np.ndarray, float, bool]:
        self.data.ctrl[:] = action
        mujoco.mj_step(self.model, self.data, self.substeps)
        return np.empty(0), np.nan, False
