"""Replay buffers with transitions in rows: here, and on the device that trains."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.type_aliases import ReplayBufferSamples
from stable_baselines3.common.vec_env import VecNormalize
from torch import Tensor

TRANSITIONS = ("observations", "next_observations", "actions", "rewards", "dones", "timeouts")


class Rows(ReplayBuffer, ABC):
    """A replay buffer with transitions in rows, so that few gathers bring what a batch needs."""

    observation_space: spaces.Box

    @property
    def widths(self) -> dict[str, int]:
        """Columns of each of the `TRANSITIONS`, in their order."""
        n, m = spaces.flatdim(self.observation_space), self.action_dim
        return dict(zip(TRANSITIONS, (n, n, m, 1, 1, 1), strict=True))

    @abstractmethod
    def draw(self, batch_size: int) -> tuple[Tensor, Tensor]:
        """Random transitions: observations and next observations, (batch_size, 2 n), and the rest, (batch_size, m + 3)."""

    def sample(self, batch_size: int, env: VecNormalize | None = None) -> ReplayBufferSamples:
        return samples(*self.draw(batch_size))

    def _refuse_options(self) -> None:
        if self.optimize_memory_usage or not self.handle_timeout_termination:
            raise ValueError(
                f"{type(self).__name__} keeps next observations and timeouts; leave its options as they are"
            )


def samples(states: Tensor, rest: Tensor) -> ReplayBufferSamples:
    """What stable-baselines3 returns of transitions that were drawn."""
    observations, following = states.chunk(2, dim=1)
    actions, rewards, dones, timeouts = rest.split([rest.shape[1] - 3, 1, 1, 1], dim=1)
    return ReplayBufferSamples(observations, actions, following, dones * (1 - timeouts), rewards)


class RowReplayBuffer(Rows):
    """Stable-baselines3's replay buffer, with its random numbers, whose arrays are columns of two.

    Args:
        *args, **kwargs: stable-baselines3's; observation spaces with one axis, and options as they are.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._refuse_options()
        n, _, *rest = self.widths.values()
        shape = self.buffer_size, self.n_envs
        self.states = np.zeros((*shape, 2 * n), self.observations.dtype)
        self.rest = np.zeros((*shape, sum(rest)), np.float32)
        self._share()

    def _share(self) -> None:
        """Make the arrays columns."""
        n, m = self.widths["observations"], self.widths["actions"]
        self.observations, self.next_observations = self.states[..., :n], self.states[..., n:]
        self.actions = self.rest[..., :m]
        self.rewards, self.dones, self.timeouts = np.moveaxis(self.rest[..., m:], 2, 0)

    def draw(self, batch_size: int) -> tuple[Tensor, Tensor]:
        index = np.random.randint(0, self.size(), size=batch_size)  # noqa: NPY002
        if self.n_envs > 1:  # of one there is nothing to draw
            index = index * self.n_envs + np.random.randint(0, self.n_envs, size=batch_size)  # noqa: NPY002
        drawn = (rows.reshape(-1, rows.shape[2]).take(index, axis=0) for rows in (self.states, self.rest))
        states, rest = (torch.from_numpy(rows).to(self.device) for rows in drawn)
        return states, rest

    def sample(self, batch_size: int, env: VecNormalize | None = None) -> ReplayBufferSamples:
        data = super().sample(batch_size)
        if env is None:
            return data
        rewards = self._normalize_reward(data.rewards.cpu().numpy(), env)
        return data._replace(rewards=torch.from_numpy(rewards).to(self.device))

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in TRANSITIONS}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._share()


class DeviceReplayBuffer(Rows):
    """Stable-baselines3's replay buffer as one tensor on a device, a row for each transition.

    Sampling waits for nothing: rows are drawn by a generator on the device, and how many there are is known to the device. It
    may so be part of a CUDA graph. The arrays of a `ReplayBuffer` (`observations`, `actions`, ...) are copies here, of as
    many rows as are filled.

    Rows are in double precision where observations are, and then hold the rest of a transition exactly, too.

    Args:
        buffer_size, observation_space, action_space, device, n_envs: as in stable-baselines3; spaces with one axis.
        optimize_memory_usage, handle_timeout_termination: accepted because stable-baselines3 passes them.
    """

    def __init__(
        self,
        buffer_size: int,
        observation_space: spaces.Space,
        action_space: spaces.Space,
        device: torch.device | str = "auto",
        n_envs: int = 1,
        optimize_memory_usage: bool = False,
        handle_timeout_termination: bool = True,
    ) -> None:
        super(ReplayBuffer, self).__init__(buffer_size, observation_space, action_space, device, n_envs)
        self.buffer_size = max(buffer_size // n_envs, 1)
        self.optimize_memory_usage, self.handle_timeout_termination = optimize_memory_usage, handle_timeout_termination
        self._refuse_options()
        self._rows: Tensor | None = None  # until they are needed: an agent that is loaded to act has none
        self._start_count()
        # seeded from NumPy's global generator, which a ReplayBuffer draws from and stable-baselines3 seeds
        self.generator.manual_seed(int(np.random.randint(2**63 - 1)))  # noqa: NPY002

    def allocate(self) -> Tensor:
        """Take the memory that all transitions need, which otherwise the first one does, unless it has been taken.

        Raises:
            ValueError: the device has not so much.
        """
        if self._rows is not None:
            return self._rows
        dtype = torch.float64 if self.observation_space.dtype == np.float64 else torch.float32
        shape = self.buffer_size, self.n_envs, sum(self.widths.values())
        try:
            self._rows = torch.zeros(shape, dtype=dtype, device=self.device)
        except torch.cuda.OutOfMemoryError:
            size = self.buffer_size * self.n_envs * shape[2] * dtype.itemsize / 2**30
            raise ValueError(
                f"buffer_size={self.buffer_size * self.n_envs}: {size:.1f} GiB do not fit into the memory of {self.device}; "
                "give a smaller one"
            ) from None
        return self._rows

    @property
    def rows(self) -> Tensor:
        """All transitions, (buffer_size, n_envs, numbers)."""
        return self.allocate()

    def _start_count(self) -> None:
        self.count = torch.zeros((), dtype=torch.float64, device=self.device)  # of transitions
        self.generator = torch.Generator(self.device)

    def add(
        self,
        obs: NDArray,
        next_obs: NDArray,
        action: NDArray,
        reward: NDArray,
        done: NDArray,
        infos: list[dict[str, Any]],
    ) -> None:
        timeout = [info.get("TimeLimit.truncated", False) for info in infos]
        columns = (np.asarray(reward, np.float32), done, timeout)
        parts = (obs, next_obs, np.asarray(action, np.float32).reshape(self.n_envs, -1))
        row = np.concatenate([*parts, *(np.asarray(column).reshape(self.n_envs, 1) for column in columns)], axis=1)
        # from ordinary memory: the runtime has its own copy when this returns, and the device is not waited for
        self.rows[self.pos].copy_(torch.from_numpy(row), non_blocking=True)
        if not self.full:
            self.count.fill_((self.pos + 1) * self.n_envs)
        self.pos += 1
        if self.pos == self.buffer_size:
            self.full, self.pos = True, 0

    def draw(self, batch_size: int) -> tuple[Tensor, Tensor]:
        uniform = torch.rand(batch_size, generator=self.generator, dtype=torch.float64, device=self.device)
        drawn = self.rows.flatten(0, 1).index_select(0, (uniform * self.count).long())
        after = 2 * self.widths["observations"]
        return drawn[:, :after], drawn[:, after:].float()

    def sample(self, batch_size: int, env: VecNormalize | None = None) -> ReplayBufferSamples:
        if env is not None and env.norm_reward:
            raise ValueError("VecNormalize scales rewards, which a DeviceReplayBuffer does not know; use ReplayBuffer")
        return super().sample(batch_size)

    def put(self, transitions: Mapping[str, Tensor], pos: int, full: bool) -> None:
        """Take up transitions, by the names of a ReplayBuffer's arrays, from the beginning on."""
        parts = [rows.view(*rows.shape[:2], -1).to(self.rows) for rows in (transitions[name] for name in TRANSITIONS)]
        self.rows[: len(parts[0])] = torch.cat(parts, dim=2)
        self.pos, self.full = pos, full
        self.count.fill_(self.size() * self.n_envs)

    def array(self, name: str) -> NDArray:
        """One of a ReplayBuffer's arrays, as far as it is filled."""
        columns = dict(zip(TRANSITIONS, self.rows[: self.size()].split(list(self.widths.values()), dim=2), strict=True))
        values = columns[name].cpu().numpy()
        if name in ("observations", "next_observations"):
            return values
        return values.astype(np.float32) if name == "actions" else values[..., 0].astype(np.float32)

    observations = property(lambda self: self.array("observations"))
    next_observations = property(lambda self: self.array("next_observations"))
    actions = property(lambda self: self.array("actions"))
    rewards = property(lambda self: self.array("rewards"))
    dones = property(lambda self: self.array("dones"))
    timeouts = property(lambda self: self.array("timeouts"))

    def __getstate__(self) -> dict[str, Any]:
        tensors = ("_rows", "count", "generator")
        state = {name: value for name, value in self.__dict__.items() if name not in tensors} | {"_rows": None}
        stored = self.rows[: self.size()].cpu() if self.size() else None  # an empty one has no need of memory
        return state | {"_stored": stored, "_random": self.generator.get_state()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        stored, random = state.pop("_stored"), state.pop("_random")
        self.__dict__.update(state)
        moved = self.device.type == "cuda" and not torch.cuda.is_available()
        self.device = torch.device("cpu") if moved else self.device
        self._start_count()
        if stored is not None:
            self.rows[: len(stored)] = stored
        self.count.fill_(self.size() * self.n_envs)
        if not moved:
            self.generator.set_state(random)


def capture(buffer: ReplayBuffer) -> dict[str, Any]:
    """The filled part of a replay buffer, and how it draws on a device.

    Raises:
        ValueError: the buffer keeps transitions in another way than stable-baselines3's usual one.
    """
    if not isinstance(buffer, ReplayBuffer) or buffer.optimize_memory_usage:
        raise ValueError(f"the state of {type(buffer).__name__} with these options can't be captured; use ReplayBuffer")
    rows = {name: torch.from_numpy(getattr(buffer, name)[: buffer.size()].copy()) for name in TRANSITIONS}
    random = {}
    if isinstance(buffer, DeviceReplayBuffer):
        random = {"device": buffer.device.type, "random": buffer.generator.get_state()}
    return {"pos": buffer.pos, "full": buffer.full, "rows": rows} | random


def restore(buffer: ReplayBuffer, data: Mapping[str, Any]) -> None:
    """Put what `capture` returned into a buffer of the same size, of either kind."""
    if isinstance(buffer, DeviceReplayBuffer):
        buffer.put(data["rows"], data["pos"], data["full"])
        if data.get("device") == buffer.device.type:  # of another, the stream is another, too
            buffer.generator.set_state(data["random"])
    else:
        for name, rows in data["rows"].items():
            getattr(buffer, name)[: len(rows)] = rows.numpy()
        buffer.pos, buffer.full = data["pos"], data["full"]
