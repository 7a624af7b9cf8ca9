"""The replay buffer with transitions in rows, images of transitions under the group, and batches for updates."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.buffers import DictReplayBuffer, ReplayBuffer
from stable_baselines3.common.type_aliases import ReplayBufferSamples
from stable_baselines3.common.vec_env import VecNormalize
from torch import Tensor

from rppdyn.agents._goals import HindsightBuffer
from rppdyn.agents._networks import draw_noise, new_generator
from rppdyn.agents._update import with_features
from rppdyn.envs import SymmetrySpec
from rppdyn.runs.workers import use_numpy_generator

if TYPE_CHECKING:
    from rppdyn.agents._sac import RPPSAC

TRANSITIONS = ("observations", "next_observations", "actions", "rewards", "dones", "timeouts")


class RowReplayBuffer(ReplayBuffer):
    """Stable-baselines3's replay buffer as two tensors on a device, with one row of each per transition.

    The generator that draws rows and the number of transitions are on the device, too: sampling waits for nothing, and may be
    part of a CUDA graph. The arrays of a `ReplayBuffer` (`observations`, `actions`, ...) have the filled rows only; they are
    views on the CPU and copies elsewhere.

    Args:
        buffer_size, observation_space, action_space, device, n_envs: as in stable-baselines3; spaces with one axis.
        optimize_memory_usage, handle_timeout_termination: accepted because stable-baselines3 passes them.

    Attributes:
        generator: seeded from NumPy's global one, which stable-baselines3 seeds.
        count: the number of transitions, on the device.
    """

    observation_space: spaces.Box

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
        if optimize_memory_usage or not handle_timeout_termination:
            raise ValueError(
                f"{type(self).__name__} keeps next observations and timeouts; leave its options as they are"
            )
        self.buffer_size = max(buffer_size // n_envs, 1)
        self.optimize_memory_usage, self.handle_timeout_termination = False, True
        self._rows: tuple[Tensor, Tensor] | None = None  # made when first needed; an agent loaded to act has none
        self._start(self.device)
        self.generator.manual_seed(int(np.random.randint(2**63 - 1)))  # noqa: NPY002

    def _start(self, device: torch.device) -> None:
        self.count = torch.zeros((), dtype=torch.float64, device=device)
        self.generator = torch.Generator(device)

    @property
    def rows(self) -> tuple[Tensor, Tensor]:
        """Observations and next observations (buffer_size, n_envs, 2 n); actions, rewards, dones and timeouts (..., m + 3).

        Raises:
            ValueError: the device has no memory for them.
        """
        if self._rows is not None:
            return self._rows
        n, m = spaces.flatdim(self.observation_space), self.action_dim
        columns = (2 * n, self.observation_space.dtype), (m + 3, np.float32)
        arrays = [np.zeros((self.buffer_size, self.n_envs, width), dtype) for width, dtype in columns]
        try:  # from NumPy, whose zeros take no memory until they are overwritten
            states, rest = (torch.from_numpy(array).to(self.generator.device) for array in arrays)
        except torch.cuda.OutOfMemoryError:
            size = sum(array.nbytes for array in arrays) / 2**30
            raise ValueError(
                f"buffer_size={self.buffer_size * self.n_envs}: {size:.1f} GiB do not fit into the memory of {self.device}; "
                "give a smaller one"
            ) from None
        self._rows = states, rest
        return self._rows

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
        rest = np.empty((self.n_envs, self.action_dim + 3), np.float32)
        rest[:, :-3] = np.reshape(action, (self.n_envs, -1))
        rest[:, -3], rest[:, -2], rest[:, -1] = reward, done, timeout
        states = np.concatenate([obs, next_obs], axis=1, dtype=self.observation_space.dtype)
        # from pageable memory: the runtime has copied it when this returns, without waiting for the device
        for rows, new in zip(self.rows, (states, rest), strict=True):
            rows[self.pos].copy_(torch.from_numpy(new), non_blocking=True)
        if not self.full:
            self.count.fill_((self.pos + 1) * self.n_envs)
        self.pos += 1
        if self.pos == self.buffer_size:
            self.full, self.pos = True, 0

    def sample(self, batch_size: int, env: VecNormalize | None = None) -> ReplayBufferSamples:
        device = self.generator.device
        uniform = torch.rand(batch_size, generator=self.generator, dtype=torch.float64, device=device)
        index = (uniform * self.count).long()
        states, rest = (rows.flatten(0, 1).index_select(0, index).to(self.device) for rows in self.rows)
        observations, next_observations = states.chunk(2, dim=1)
        actions, rewards, dones, timeouts = rest.split([rest.shape[1] - 3, 1, 1, 1], dim=1)
        if env is not None and env.norm_reward:
            rewards = torch.from_numpy(self._normalize_reward(rewards.cpu().numpy(), env)).to(self.device)
        return ReplayBufferSamples(observations, actions, next_observations, dones * (1 - timeouts), rewards)

    def put(self, transitions: Mapping[str, Tensor], pos: int, full: bool) -> None:
        """Fill the first rows with transitions, given by the names of a ReplayBuffer's arrays."""
        for name, column in self._columns().items():
            column[: len(transitions[name])] = transitions[name].view(len(transitions[name]), *column.shape[1:])
        self.pos, self.full = pos, full
        self.count.fill_(self.size() * self.n_envs)

    def _columns(self) -> dict[str, Tensor]:
        """Views of the rows, by the names of a ReplayBuffer's arrays."""
        states, rest = self.rows
        columns = (*states.chunk(2, dim=2), rest[..., :-3], *rest[..., -3:].unbind(2))
        return dict(zip(TRANSITIONS, columns, strict=True))

    def _array(self, name: str) -> NDArray:
        return self._columns()[name][: self.size()].numpy(force=True)

    observations = property(lambda self: self._array("observations"))
    next_observations = property(lambda self: self._array("next_observations"))
    actions = property(lambda self: self._array("actions"))
    rewards = property(lambda self: self._array("rewards"))
    dones = property(lambda self: self._array("dones"))
    timeouts = property(lambda self: self._array("timeouts"))

    def __getstate__(self) -> dict[str, Any]:
        tensors = ("_rows", "count", "generator")
        state = {name: value for name, value in self.__dict__.items() if name not in tensors}
        stored = [rows[: self.size()].cpu() for rows in self.rows] if self.size() else []  # allocates none if empty
        return state | {"_stored": stored, "_random": self.generator.get_state()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        stored, random = state.pop("_stored"), state.pop("_random")
        self.__dict__.update(state)
        moved = self.device.type == "cuda" and not torch.cuda.is_available()
        self.device = torch.device("cpu") if moved else self.device
        self._rows = None
        self._start(self.device)
        if stored:
            for rows, filled in zip(self.rows, stored, strict=True):
                rows[: len(filled)] = filled
        self.count.fill_(self.size() * self.n_envs)
        if not moved:
            self.generator.set_state(random)


def capture(buffer: ReplayBuffer) -> dict[str, Any]:
    """The filled part of a replay buffer, and the state of its generator.

    Raises:
        ValueError: the buffer stores transitions in another form than a plain or hindsight one.
    """
    has_arrays = isinstance(buffer, HindsightBuffer) or not isinstance(buffer, DictReplayBuffer)
    if not has_arrays or buffer.optimize_memory_usage or getattr(buffer, "copy_info_dict", False):
        raise ValueError(f"the state of {type(buffer).__name__} with these options can't be captured; use ReplayBuffer")
    rows = {name: torch.from_numpy(array[: buffer.size()].copy()) for name, array in _arrays(buffer).items()}
    random: dict[str, Any] = {}
    if isinstance(buffer, RowReplayBuffer):
        random = {"device": buffer.generator.device.type, "random": buffer.generator.get_state()}
    if isinstance(buffer, HindsightBuffer):
        random = {"episodes": torch.from_numpy(buffer._current_ep_start.copy())}
    return {"pos": buffer.pos, "full": buffer.full, "rows": rows} | random


def restore(buffer: ReplayBuffer, data: Mapping[str, Any]) -> None:
    """Restore a buffer of the same size from a result of `capture`; rows and arrays are interchangeable."""
    if isinstance(buffer, RowReplayBuffer):
        buffer.put(data["rows"], data["pos"], data["full"])
        if data.get("device") == buffer.generator.device.type:  # other devices draw other numbers
            buffer.generator.set_state(data["random"])
    else:
        arrays = _arrays(buffer)
        for name, rows in data["rows"].items():
            arrays[name][: len(rows)] = rows.numpy()
        buffer.pos, buffer.full = data["pos"], data["full"]
        if isinstance(buffer, HindsightBuffer):
            buffer._current_ep_start[:] = data["episodes"].numpy()


def _arrays(buffer: ReplayBuffer) -> dict[str, NDArray]:
    if isinstance(buffer, HindsightBuffer):
        return buffer.arrays()
    return {name: getattr(buffer, name) for name in TRANSITIONS}


POOL_SIZE = 64
"""Number of sampled elements that stand for a continuous group."""

FACTORS_PER_ELEMENT = 8
"""Number of samples multiplied for each element: `Group.samples` favours small angles, a product of eight hardly does."""


class GroupMatrices:
    """Elements of a spec's group, the identity first, as matrices on features and on actions.

    All elements of a finite group; for an infinite one `POOL_SIZE` samples, always the same.

    Args:
        spec: the symmetry.
        like: has the device and dtype of the features.
    """

    def __init__(self, spec: SymmetrySpec, like: Tensor) -> None:
        group = spec.group
        if group.order is not None:
            elements = group.elements()
        else:
            factors = group.samples(FACTORS_PER_ELEMENT * (POOL_SIZE - 1), torch.Generator().manual_seed(0))
            factors = factors.view(FACTORS_PER_ELEMENT, POOL_SIZE - 1, group.d, group.d)
            elements = torch.cat([torch.eye(group.d, dtype=group.dtype)[None], reduce(torch.matmul, factors.unbind())])
        self.elements = elements
        self.obs_maps = spec.obs_rep.rho(elements).to(like)
        self.action_maps = spec.action_rep.rho(elements).to(like)

    def __len__(self) -> int:
        return len(self.obs_maps)

    def draw(self, count: int, generator: torch.Generator, *, identity: bool) -> Tensor:
        """Draw indices of `count` elements uniformly, on the CPU; `identity=False` leaves out the identity."""
        return torch.randint(0 if identity or len(self) == 1 else 1, len(self), (count,), generator=generator)

    def map_features(self, index: Tensor, features: Tensor) -> Tensor:
        """rho(g_i) x_i for rows x_i of the features (B, n) and elements `index` (B,)."""
        return _apply(self.obs_maps, index, features)

    def map_actions(self, index: Tensor, actions: Tensor) -> Tensor:
        """rho(g_i) a_i for rows a_i of the actions (B, m), in [-1, 1] or not, and elements `index` (B,)."""
        return _apply(self.action_maps, index, actions)


def _apply(maps: Tensor, index: Tensor, rows: Tensor) -> Tensor:
    """Rows times the matrices of their elements, one product per element.

    Gathered matrices (B, n, n) would be as large as the replay buffer where observations have hundreds of entries.
    """
    order = index.argsort()
    counts = index.bincount(minlength=len(maps)).tolist()  # both on the CPU, so nothing waits for the device
    order = order.to(rows.device)
    parts = rows[order].split(counts)
    images = torch.cat([part @ m.mT for part, m in zip(parts, maps, strict=True)])
    return torch.empty_like(images).index_copy_(0, order, images)


def refuse_changed_rewards(spec: SymmetrySpec, setting: str = "augment=True") -> None:
    """Refuse to mirror transitions under a symmetry that is not known to keep the reward: images would have false rewards.

    Args:
        setting: the setting that mirrors transitions, for the message.
    Raises:
        ValueError: it names the symmetry.
    """
    if not spec.symmetries:
        raise ValueError(f"{spec.env_id}: {setting} needs a spec that says of its symmetries that they keep the reward")
    for symmetry in spec.symmetries:
        if symmetry.reward_symmetric is None:
            raise ValueError(
                f"{spec.env_id}: {setting} needs to know that {symmetry.name!r} keeps the reward; find out with "
                f"`rppdyn certify {spec.env_id}`, or state reward_symmetric=True in a spec of your own"
            )
        if not symmetry.reward_symmetric:
            raise ValueError(
                f"{spec.env_id}: {setting} with {symmetry.name!r}, which changes the reward, would store rewards that "
                "are false; choose symmetries that keep it, or state reward_symmetric=True in the spec if this one does"
            )


class BatchSampler:
    """Draws batches for `rppdyn.agents._update` from an agent's replay buffer.

    Attributes:
        generator: draws images, and noise if the replay buffer has no generator; on the CPU.
        numpy: replaces NumPy's global generator while an action noise, or a replay buffer of another class, draws from it.
    """

    def __init__(self, agent: RPPSAC) -> None:
        self.agent = agent
        self.generator = new_generator()
        self.numpy = np.random.MT19937(int(np.random.randint(2**63 - 1)))  # noqa: NPY002  as stable-baselines3 seeds it
        self._images: GroupMatrices | None = None  # made when first needed

    def sample(self, batch_size: int) -> dict[str, Tensor]:
        """Draw transitions, and noise (B, m) for the policy's actions in their states and in their next states."""
        return self.transitions(batch_size) | {name: self._noise(batch_size) for name in ("noise", "next_noise")}

    @torch.no_grad()
    def transitions(self, batch_size: int) -> dict[str, Tensor]:
        """Draw transitions, `(B, ...)`, and their number in the buffer.

        With `augment` transitions are replaced by images under the group; `mirror_loss` adds images of the states. Both are
        images of features, which transform linearly and replace the observations.
        """
        agent = self.agent
        with use_numpy_generator(self.numpy):
            data = agent.replay_buffer.sample(batch_size, env=agent._vec_normalize_env)
        dtype = agent.policy.features_extractor.dtype
        batch = {
            "observations": data.observations,
            "next_observations": data.next_observations,
            "actions": data.actions.to(dtype),
            "rewards": agent.scale_rewards(data.rewards.squeeze(-1).to(dtype)),
            "dones": data.dones.squeeze(-1),  # as stored: discounts are rounded as stable-baselines3's are
            "transitions": self._count(),
        }
        if data.discounts is not None:
            batch["discounts"] = data.discounts.squeeze(-1)
        if agent.augment or agent.mirror_loss:
            batch = with_features(batch, agent.policy.features_extractor)
        if agent.augment:
            index = self.images.draw(batch_size, self.generator, identity=True)
            for name in ("features", "next_features"):
                batch[name] = self.images.map_features(index, batch[name])
            batch["actions"] = self.images.map_actions(index, batch["actions"])
        if agent.mirror_loss:
            index = self.images.draw(batch_size, self.generator, identity=False)
            batch["image_features"] = self.images.map_features(index, batch["features"])
            batch["action_maps"] = self.images.action_maps[index.to(batch["actions"].device)]
        return batch

    def _noise(self, batch_size: int) -> Tensor:
        agent, buffer = self.agent, self.rows
        generator = self.generator if buffer is None else buffer.generator
        return draw_noise((batch_size, agent.spec.action_rep.dim), generator, agent.policy.features_extractor.like)

    def _count(self) -> Tensor:
        """The number of transitions N by which priors are divided."""
        agent, like = self.agent, self.agent.policy.features_extractor.like
        if self.rows is not None:
            return self.rows.count.clamp(min=float(agent.learning_starts)).to(like)
        return like.new_tensor(max(agent.replay_buffer.size() * agent.n_envs, agent.learning_starts))

    @property
    def rows(self) -> RowReplayBuffer | None:
        """The replay buffer if it is a `RowReplayBuffer`, else None."""
        return buffer if isinstance(buffer := self.agent.replay_buffer, RowReplayBuffer) else None

    @property
    def is_on_device(self) -> bool:
        """True if a CUDA graph may draw batches: on the agent's device, and without looking at values."""
        agent, buffer = self.agent, self.rows
        scales_rewards = agent._vec_normalize_env is not None and agent._vec_normalize_env.norm_reward
        if buffer is None or agent.augment or agent.mirror_loss or scales_rewards:
            return False
        return buffer.generator.device.type == agent.device.type

    @property
    def images(self) -> GroupMatrices:
        """The group's matrices on features and actions, with the features' device and dtype."""
        like = self.agent.policy.features_extractor.like
        if self._images is None or self._images.obs_maps is not self._images.obs_maps.to(like):
            self._images = GroupMatrices(self.agent.spec, like)
        return self._images
