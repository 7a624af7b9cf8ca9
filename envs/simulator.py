"""Stepping a Gymnasium MuJoCo environment, or a bare MuJoCo model, from any state of its simulator."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

import mujoco
import numpy as np
from gymnasium.envs.mujoco import MujocoEnv

__all__ = [
    "BareSimulator",
    "Outcome",
    "Simulator",
    "get_derived",
    "get_integration_state",
    "set_derived",
    "set_integration_state",
    "tight_solver",
]

INTEGRATION = mujoco.mjtState.mjSTATE_INTEGRATION
CONTROL_INTERVAL = 0.02  # seconds; a bare model's random control is held so long, to make it move rather than tremble
START_SPREAD = 0.1  # width of a bare model's random starts, in radians or metres and their rates


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
    """What the simulator last computed of its state: poses and velocities of bodies, forces, sensor readings.

    After a step most of these belong to the beginning of the step, and observations and rewards read them so (Ant's and
    Humanoid's do). Arrays whose size varies with the contacts are left out; the next step makes them anew.
    """
    found = {}
    for name in dir(data):
        if not name.startswith(("_", "efc_", "iefc_", "contact", "solver", "timer", "bvh_")):
            value = getattr(data, name)
            if isinstance(value, np.ndarray) and value.dtype == np.float64 and value.flags.writeable and value.size:
                found[name] = value.copy()
    return found


def set_derived(data: mujoco.MjData, derived: Mapping[str, np.ndarray]) -> None:
    """Put back what `get_derived` returned."""
    for name, value in derived.items():
        getattr(data, name)[...] = value


@contextmanager
def tight_solver(model: mujoco.MjModel) -> Iterator[None]:
    """Solve the contact forces to rounding while the block runs: Newton's method, without the stock tolerances.

    The friction cone, the integrator and every physical parameter stay; all options are put back afterwards.
    """
    tight = {"solver": mujoco.mjtSolver.mjSOL_NEWTON, "tolerance": 1e-15, "iterations": 200,
             "ls_tolerance": 1e-6, "ls_iterations": 200}  # fmt: skip
    kept = {key: getattr(model.opt, key) for key in tight}
    try:
        for key, value in tight.items():
            setattr(model.opt, key, value)
        yield
    finally:
        for key, value in kept.items():
            setattr(model.opt, key, value)


class Outcome(NamedTuple):
    """One step: simulator state and observation before and after it, reward, termination, and whether bodies touched.

    Stacked over states, each array has the states first. A bare model has an empty observation and no reward (nan).
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


class Simulator:
    """A Gymnasium MuJoCo environment that can be put into any state.

    A state is MuJoCo's full integration state (`mjSTATE_INTEGRATION`): positions and velocities are not enough, since
    the constraint solver starts from the last accelerations (`qacc_warmstart`).

    Raises:
        ValueError: the environment is no Gymnasium MuJoCo environment.
    """

    is_task = True  # whether there are an observation, a reward, a termination and a reset of its own

    def __init__(self, env):
        env = env.unwrapped
        if not isinstance(env, MujocoEnv) or not hasattr(env, "_get_obs"):
            raise ValueError(f"{type(env).__name__} is no Gymnasium MuJoCo environment; the simulator can't be stepped")
        self.env, self.model, self.data = env, env.model, env.data

    @property
    def name(self) -> str:
        """The environment's id, for messages."""
        return self.env.spec.id if self.env.spec else type(self.env).__name__

    @property
    def action_bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """Lowest and highest action, float64."""
        space = self.env.action_space
        return space.low.astype(np.float64), space.high.astype(np.float64)

    def reset(self, rng: np.random.Generator) -> None:
        """Start an episode."""
        self.env.reset(seed=int(rng.integers(2**31)))

    def observe(self) -> np.ndarray:
        """The raw observation of the present state, float64."""
        return np.array(self.env._get_obs(), dtype=np.float64)

    def advance(self, action: np.ndarray) -> tuple[np.ndarray, float, bool]:
        """Step from the present state: observation, reward and termination."""
        obs, reward, terminated, _, _ = self.env.step(action)
        return np.asarray(obs, dtype=np.float64), float(reward), bool(terminated)

    # -- states -------------------------------------------------------------------------------------------------------

    def get(self) -> np.ndarray:
        """The integration state, one float64 vector."""
        return get_integration_state(self.model, self.data)

    def set(self, state: np.ndarray) -> None:
        """Put the simulator into an integration state, contact forces included."""
        set_integration_state(self.model, self.data, state)
        mujoco.mj_rnePostConstraint(self.model, self.data)  # cfrc_ext, which mj_forward leaves as the last step had it

    def read(self, states: np.ndarray, *keys: str) -> list[np.ndarray]:
        """Fields of `mjData` that are part of the state ("qpos", "qacc_warmstart", ...), stacked over the states."""
        rows = []
        for state in states:
            mujoco.mj_setState(self.model, self.data, state, INTEGRATION)
            rows.append([getattr(self.data, key).copy() for key in keys])
        return [np.array(column) for column in zip(*rows, strict=True)]

    def written(self, states: np.ndarray, **fields: np.ndarray) -> np.ndarray:
        """Copies of the states in which fields of `mjData`, stacked over the states, are replaced."""
        changed = np.empty_like(states)
        for i, state in enumerate(states):
            mujoco.mj_setState(self.model, self.data, state, INTEGRATION)
            for key, values in fields.items():
                getattr(self.data, key)[:] = values[i]
            changed[i] = self.get()
        return changed

    # -- running ------------------------------------------------------------------------------------------------------

    def step(self, state: np.ndarray, action: np.ndarray) -> Outcome:
        """One step from a state."""
        self.set(state)
        data = self.data
        before = data.qpos.copy(), data.qvel.copy(), data.act.copy(), self.observe()
        contact = data.ncon > 0
        obs, reward, terminated = self.advance(action)
        after = data.qpos.copy(), data.qvel.copy(), data.act.copy(), obs
        return Outcome(*before, *after, *map(np.array, (reward, terminated, contact or data.ncon > 0)))

    def steps(self, states: np.ndarray, actions: np.ndarray, tick: Callable[[int], None] = lambda n: None) -> Outcome:
        """One step from each state, stacked; `tick` is told how many steps were taken."""
        outcomes = []
        for state, action in zip(states, actions, strict=True):
            outcomes.append(self.step(state, action))
            tick(1)
        return Outcome(*(np.array(column) for column in zip(*outcomes, strict=True)))

    def trajectories(
        self, starts: np.ndarray, actions: np.ndarray, tick: Callable[[int], None] = lambda n: None
    ) -> list[np.ndarray]:
        """Positions, velocities and activations (R, T, .) along actions (R, T, m) from starts, through termination."""
        found = []
        for start, sequence in zip(starts, actions, strict=True):
            self.set(start)
            path = []
            for action in sequence:
                self.advance(action)
                path.append((self.data.qpos.copy(), self.data.qvel.copy(), self.data.act.copy()))
            tick(len(sequence))
            found.append([np.array(column) for column in zip(*path, strict=True)])
        return [np.array(column) for column in zip(*found, strict=True)]

    def rollout_states(
        self,
        n: int,
        rng: np.random.Generator,
        *,
        stride: int,
        horizon: int,
        tick: Callable[[int], None] = lambda n: None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """States (n, .) and uniformly random actions (n, m), every `stride` steps of episodes of at most `horizon`."""
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
            terminated = self.advance(action)[2]
            t = horizon if terminated else t + 1
            step += 1
            tick(1)
        return np.array(states), np.array(actions)

    def reset_states(self, n: int, rng: np.random.Generator) -> list[np.ndarray]:
        """Positions (n, nq), velocities (n, nv) and activations (n, na) after n resets."""
        rows = []
        for _ in range(n):
            self.reset(rng)
            rows.append((self.data.qpos.copy(), self.data.qvel.copy(), self.data.act.copy()))
        return [np.array(column) for column in zip(*rows, strict=True)]


class BareSimulator(Simulator):
    """A MuJoCo model without a task: no observation, reward, termination or reset of its own.

    One step holds the controls for `CONTROL_INTERVAL`. Episodes start near the first keyframe, or near `qpos0` where
    there is none: joints at random within `START_SPREAD` and their range, random velocities of the same size.
    """

    is_task = False

    def __init__(self, model: mujoco.MjModel, name: str = "model"):
        self.model, self.data, self._name = model, mujoco.MjData(model), name
        self.substeps = max(1, round(CONTROL_INTERVAL / model.opt.timestep))

    @property
    def name(self) -> str:
        return self._name

    @property
    def action_bounds(self) -> tuple[np.ndarray, np.ndarray]:
        low, high = np.full(self.model.nu, -1.0), np.ones(self.model.nu)
        limited = self.model.actuator_ctrllimited.astype(bool)
        low[limited], high[limited] = self.model.actuator_ctrlrange[limited].T
        return low, high

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
