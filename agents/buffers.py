"""Replay buffers with transitions in rows, and the batches of an agent's updates: features, noise, images under the group."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.type_aliases import ReplayBufferSamples
from stable_baselines3.common.vec_env import VecNormalize
from torch import Tensor

from rppdyn.agents.networks import SymmetricFeatures, draw_noise, new_generator
from rppdyn.agents.update import together
from rppdyn.envs import SymmetrySpec

if TYPE_CHECKING:
    from rppdyn.agents.algorithm import RPPSAC


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


POOL = 64
"""Elements that stand for a continuous group."""

WORD = 8
"""Samples whose product is one of them: `Group.samples` favours small angles, a product of eight hardly does."""


class GroupImages:
    """Elements of a spec's group, the identity first, as matrices on features and on actions.

    All elements of a finite group; of an infinite one `POOL`, always the same.

    Args:
        spec: the symmetry.
        like: has the device and dtype of the features.
    """

    def __init__(self, spec: SymmetrySpec, like: Tensor) -> None:
        group = spec.group
        if group.order is not None:
            elements = group.elements()
        else:
            drawn = group.samples(WORD * (POOL - 1), torch.Generator().manual_seed(0))
            factors = drawn.view(WORD, POOL - 1, group.d, group.d).unbind()
            elements = torch.cat([torch.eye(group.d, dtype=group.dtype)[None], reduce(torch.matmul, factors)])
        self.elements = elements
        self.obs_maps = spec.obs_rep.rho(elements).to(like)
        self.action_maps = spec.action_rep.rho(elements).to(like)

    def __len__(self) -> int:
        return len(self.obs_maps)

    def draw(self, count: int, generator: torch.Generator, *, identity: bool) -> Tensor:
        """Indices of `count` elements, uniform, with or without the identity among them; on the CPU."""
        return torch.randint(0 if identity or len(self) == 1 else 1, len(self), (count,), generator=generator)

    def of_features(self, index: Tensor, features: Tensor) -> Tensor:
        """rho(g_i) x_i for rows x_i of the features (B, n) and elements `index` (B,)."""
        return _apply(self.obs_maps, index, features)

    def of_actions(self, index: Tensor, actions: Tensor) -> Tensor:
        """rho(g_i) a_i for rows a_i of the actions (B, m), in [-1, 1] or not, and elements `index` (B,)."""
        return _apply(self.action_maps, index, actions)


def _apply(maps: Tensor, index: Tensor, rows: Tensor) -> Tensor:
    """Rows times the matrices of their elements, one product per element: a gathered (B, n, n) would be the size of
    the replay buffer where observations have hundreds of entries."""
    order = index.argsort()
    counts = index.bincount(minlength=len(maps)).tolist()  # both on the CPU, so nothing waits for the device
    order = order.to(rows.device)
    parts = rows[order].split(counts)
    moved = torch.cat([part @ m.mT for part, m in zip(parts, maps, strict=True)])
    return torch.empty_like(moved).index_copy_(0, order, moved)


def refuse_changed_rewards(spec: SymmetrySpec, what: str = "augment=True") -> None:
    """Refuse to mirror transitions under a symmetry that is not known to keep the reward: images would carry false ones.

    Args:
        what: what would do so, for the message.
    Raises:
        ValueError: it names the symmetry.
    """
    if not spec.symmetries:
        raise ValueError(f"{spec.env_id}: {what} needs a spec that says of its symmetries that they keep the reward")
    for symmetry in spec.symmetries:
        if symmetry.reward_symmetric is None:
            raise ValueError(
                f"{spec.env_id}: {what} needs to know that {symmetry.name!r} keeps the reward; find out with "
                f"`rppdyn certify {spec.env_id}`, or state reward_symmetric=True in a spec of your own"
            )
        if not symmetry.reward_symmetric:
            raise ValueError(
                f"{spec.env_id}: {what} with {symmetry.name!r}, which changes the reward, would store rewards that "
                "are false; choose symmetries that keep it, or state reward_symmetric=True in the spec if this one does"
            )


Drawn = tuple[dict[str, Tensor], dict[str, Tensor]]
"""An agent's batch, and noise; or several agents' with a first axis more."""

COLUMNS = ("features", "next_features", "actions", "rewards", "dones")
NOISES = ("current", "next")


class Batches:
    """Transitions of an agent's replay buffer as `rppdyn.agents.update` takes them, and noise.

    A `DeviceReplayBuffer` draws rows and noise by its own generator, where it is; for any other they are drawn on the CPU.

    Attributes:
        generator: of images, and of noise on the CPU.
    """

    def __init__(self, agent: RPPSAC) -> None:
        self.agent = agent
        self.generator = new_generator()
        self._images: GroupImages | None = None  # made for the first batch that needs them

    @torch.no_grad()
    def sample(self, batch_size: int) -> dict[str, Tensor]:
        """Transitions, with features in place of observations.

        Images under the group are taken of features, which transform linearly: `augment` moves whole transitions,
        `mirror_loss` adds images of the states.
        """
        batch = self._draw(batch_size)
        if self.agent.augment:
            index = self.images.draw(batch_size, self.generator, identity=True)
            for name in ("features", "next_features"):
                batch[name] = self.images.of_features(index, batch[name])
            batch["actions"] = self.images.of_actions(index, batch["actions"])
        batch["transitions"] = self._shared_over(batch["rewards"])
        if self.agent.mirror_loss:
            index = self.images.draw(batch_size, self.generator, identity=False)
            batch["image_features"] = self.images.of_features(index, batch["features"])
            batch["action_maps"] = self.images.action_maps[index.to(batch["actions"].device)]
        return batch

    def _draw(self, batch_size: int) -> dict[str, Tensor]:
        """Transitions as `sample` returns them, before images are taken."""
        agent = self.agent
        data = agent.replay_buffer.sample(batch_size, env=agent._vec_normalize_env)
        return with_features(data, agent.policy.features_extractor)

    @property
    def row_buffer(self) -> Rows | None:
        """The replay buffer, where `sample` is features of its rows and nothing else."""
        own, env, buffer = type(self), self.agent._vec_normalize_env, self.agent.replay_buffer
        usual = own.sample is Batches.sample and own._draw is Batches._draw
        plain = not (self.agent.augment or self.agent.mirror_loss or (env is not None and env.norm_reward))
        return buffer if usual and plain and isinstance(buffer, Rows) else None

    def rows(self, buffer: Rows, batch_size: int) -> dict[str, Tensor]:
        """The transitions of `sample` as the buffer has them, for an update that takes their features itself."""
        states, rest = buffer.draw(batch_size)
        transitions = self._shared_over(self.agent.policy.features_extractor.like)
        return {"states": states, "rest": rest, "transitions": transitions}

    def _shared_over(self, like: Tensor) -> Tensor:
        """The number that priors are shared out over."""
        agent = self.agent
        if (buffer := self._on_device) is not None:
            return buffer.count.clamp(min=agent.learning_starts).to(like)
        return like.new_tensor(max(agent.replay_buffer.size() * agent.n_envs, agent.learning_starts))

    def noise(self, *shape: int) -> Tensor:
        """Standard normal noise for actions, (*shape, m)."""
        agent, buffer = self.agent, self._on_device
        generator = self.generator if buffer is None else buffer.generator
        return draw_noise((*shape, agent.spec.action_rep.dim), generator, agent.policy.features_extractor.like)

    @property
    def images(self) -> GroupImages:
        """Random images of features and actions, in the features' device and dtype."""
        like = self.agent.policy.features_extractor.like
        if self._images is None or self._images.obs_maps.dtype != like.dtype:
            self._images = GroupImages(self.agent.spec, like)
        return self._images

    # -- for updates that are replayed on a device --------------------------------------------------------------------

    @property
    def _on_device(self) -> DeviceReplayBuffer | None:
        buffer = self.agent.replay_buffer
        return buffer if isinstance(buffer, DeviceReplayBuffer) else None

    @property
    def drawn_on_device(self) -> bool:
        """True where batches are drawn `ahead`, by the replay buffer's generator alone and without looking at a value."""
        return isinstance(self.row_buffer, DeviceReplayBuffer)

    @torch.no_grad()
    def ahead(self, count: int, batch_size: int) -> tuple[Tensor, Tensor]:
        """Batches and noise of so many updates, by a `DeviceReplayBuffer` alone: columns (count, batch_size, c) that `split`
        takes apart, and the number of transitions."""
        data = self.agent.replay_buffer.sample(count * batch_size)
        batch = with_features(data, self.agent.policy.features_extractor)
        columns = [batch[name].view(count, batch_size, -1) for name in COLUMNS]
        noise = [self.noise(count, batch_size) for _ in NOISES]
        return torch.cat([*columns, *noise], 2), self._shared_over(batch["rewards"])

    @property
    def widths(self) -> list[int]:
        """The numbers of columns that `ahead` returns: of each of the `COLUMNS`, then of the `NOISES`."""
        n, m = self.agent.policy.features_extractor.features_dim, self.agent.spec.action_rep.dim
        return [n, n, m, 1, 1, m, m]

    @property
    def drawn_from(self) -> list[Tensor]:
        """The tensors on the device from which batches are drawn."""
        buffer = self._on_device
        return [] if buffer is None else [buffer.rows, buffer.count, *self.agent.policy.features_extractor.buffers()]

    @property
    def drawn_by(self) -> list[torch.Generator]:
        """The generators on the device that draw batches."""
        return [] if (buffer := self._on_device) is None else [buffer.generator]


def split(columns: Tensor, widths: Sequence[int]) -> Drawn:
    """Batch and noise of one update of several agents, of columns (S, B, c) that `Batches.ahead` made; views of them."""
    found = dict(zip((*COLUMNS, *NOISES), columns.split(list(widths), dim=2), strict=True))
    batch = {name: found[name] for name in COLUMNS} | {name: found[name].squeeze(2) for name in ("rewards", "dones")}
    return batch, {name: found[name] for name in NOISES}


def stacked_up(each: Sequence[Drawn], extractors: Sequence[SymmetricFeatures]) -> Drawn:
    """Batches and noise of one update of several agents; batches may still be rows of a replay buffer."""
    batches = [
        _with_features(batch, extractor) if "states" in batch else batch
        for (batch, _), extractor in zip(each, extractors, strict=True)
    ]
    return together(batches), together([noise for _, noise in each])


def _with_features(batch: Mapping[str, Tensor], extractor: SymmetricFeatures) -> dict[str, Tensor]:
    return with_features(samples(batch["states"], batch["rest"]), extractor) | {"transitions": batch["transitions"]}


def with_features(data: ReplayBufferSamples, extractor: SymmetricFeatures) -> dict[str, Tensor]:
    """Transitions as an update takes them from those of a replay buffer: features in place of observations."""
    features = extractor(torch.cat([data.observations, data.next_observations]))
    here, after = features.split(len(data.observations))
    batch = {
        "features": here,
        "next_features": after,
        "actions": data.actions.to(features.dtype),
        "rewards": data.rewards.squeeze(-1).to(features.dtype),
        "dones": data.dones.squeeze(-1),  # as stored: discounts are rounded as stable-baselines3's are
    }
    return batch if data.discounts is None else batch | {"discounts": data.discounts.squeeze(-1)}
