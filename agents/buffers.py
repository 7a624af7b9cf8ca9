"""The replay buffer with transitions in rows, batches for updates, images under the group, and episodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any, NamedTuple

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.type_aliases import ReplayBufferSamples
from stable_baselines3.common.vec_env import VecNormalize
from torch import Tensor

from rppdyn.agents.networks import SymmetricFeatures, draw_noise, new_generator
from rppdyn.agents.update import stack_tensors
from rppdyn.envs import Episode, SymmetrySpec
from rppdyn.runs.workers import numpy_draws_from

if TYPE_CHECKING:
    from rppdyn.agents.sac import RPPSAC


TRANSITIONS = ("observations", "next_observations", "actions", "rewards", "dones", "timeouts")


class RowReplayBuffer(ReplayBuffer):
    """Stable-baselines3's replay buffer as two tensors on a device, a row of both for each transition.

    Rows are drawn by a generator of its own, on the device, which also knows how many there are: sampling waits for nothing,
    and may be part of a CUDA graph. The arrays of a `ReplayBuffer` (`observations`, `actions`, ...) are here of as many rows as
    are filled, on the CPU views and elsewhere copies.

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
        self._rows: tuple[Tensor, Tensor] | None = (
            None  # until they are needed: an agent that is loaded to act has none
        )
        self._start(self.device)
        self.generator.manual_seed(int(np.random.randint(2**63 - 1)))  # noqa: NPY002

    def _start(self, device: torch.device) -> None:
        self.count = torch.zeros((), dtype=torch.float64, device=device)
        self.generator = torch.Generator(device)

    @property
    def rows(self) -> tuple[Tensor, Tensor]:
        """Observations and next observations, (buffer_size, n_envs, 2 n), and the rest of all transitions, (..., m + 3).

        Raises:
            ValueError: the device has no memory for them.
        """
        if self._rows is not None:
            return self._rows
        n, m = spaces.flatdim(self.observation_space), self.action_dim
        columns = (2 * n, self.observation_space.dtype), (m + 3, np.float32)
        arrays = [np.zeros((self.buffer_size, self.n_envs, width), dtype) for width, dtype in columns]
        try:  # from NumPy, since zeros take no memory there before something is written in their place
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
        # from ordinary memory: the runtime has its own copy when this returns, and the device is not waited for
        for rows, new in zip(self.rows, (states, rest), strict=True):
            rows[self.pos].copy_(torch.from_numpy(new), non_blocking=True)
        if not self.full:
            self.count.fill_((self.pos + 1) * self.n_envs)
        self.pos += 1
        if self.pos == self.buffer_size:
            self.full, self.pos = True, 0

    def draw(self, batch_size: int) -> tuple[Tensor, Tensor]:
        """Random transitions: observations and next observations, (batch_size, 2 n), and the rest, (batch_size, m + 3)."""
        device = self.generator.device
        uniform = torch.rand(batch_size, generator=self.generator, dtype=torch.float64, device=device)
        index = (uniform * self.count).long()
        states, rest = (rows.flatten(0, 1).index_select(0, index).to(self.device) for rows in self.rows)
        return states, rest

    def sample(self, batch_size: int, env: VecNormalize | None = None) -> ReplayBufferSamples:
        data = samples(*self.draw(batch_size))
        if env is None or not env.norm_reward:
            return data
        rewards = self._normalize_reward(data.rewards.cpu().numpy(), env)
        return data._replace(rewards=torch.from_numpy(rewards).to(self.device))

    def put(self, transitions: Mapping[str, Tensor], pos: int, full: bool) -> None:
        """Take up transitions, by the names of a ReplayBuffer's arrays, from the beginning on."""
        for name, column in self._columns().items():
            column[: len(transitions[name])] = transitions[name].view(len(transitions[name]), *column.shape[1:])
        self.pos, self.full = pos, full
        self.count.fill_(self.size() * self.n_envs)

    def _columns(self) -> dict[str, Tensor]:
        """Views of the rows, by the names of a ReplayBuffer's arrays."""
        states, rest = self.rows
        observations, following = states.chunk(2, dim=2)
        return dict(zip(TRANSITIONS, (observations, following, rest[..., :-3], *rest[..., -3:].unbind(2)), strict=True))

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
        stored = (
            [rows[: self.size()].cpu() for rows in self.rows] if self.size() else []
        )  # an empty one needs no memory
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


def samples(states: Tensor, rest: Tensor) -> ReplayBufferSamples:
    """UpdateInputs transitions as stable-baselines3 returns them."""
    observations, following = states.chunk(2, dim=1)
    actions, rewards, dones, timeouts = rest.split([rest.shape[1] - 3, 1, 1, 1], dim=1)
    return ReplayBufferSamples(observations, actions, following, dones * (1 - timeouts), rewards)


def transitions_at(buffer: ReplayBuffer, index: Tensor) -> dict[str, Tensor]:
    """Transitions of a buffer by number, over steps and environments, under the names of its arrays."""
    if isinstance(buffer, RowReplayBuffer):
        index = index.to(buffer.generator.device)
        return {name: column.flatten(0, 1)[index] for name, column in buffer._columns().items()}
    step, env = (index // buffer.n_envs).numpy(), (index % buffer.n_envs).numpy()
    return {name: torch.as_tensor(getattr(buffer, name)[step, env], device=buffer.device) for name in TRANSITIONS}


def capture(buffer: ReplayBuffer) -> dict[str, Any]:
    """The filled part of a replay buffer, and the state of its generator.

    Raises:
        ValueError: the buffer keeps transitions in another way than stable-baselines3's usual one.
    """
    if not isinstance(buffer, ReplayBuffer) or buffer.optimize_memory_usage:
        raise ValueError(f"the state of {type(buffer).__name__} with these options can't be captured; use ReplayBuffer")
    rows = {name: torch.from_numpy(getattr(buffer, name)[: buffer.size()].copy()) for name in TRANSITIONS}
    random = {}
    if isinstance(buffer, RowReplayBuffer):
        random = {"device": buffer.generator.device.type, "random": buffer.generator.get_state()}
    return {"pos": buffer.pos, "full": buffer.full, "rows": rows} | random


def restore(buffer: ReplayBuffer, data: Mapping[str, Any]) -> None:
    """Put what `capture` returned into a buffer of the same size, of either kind."""
    if isinstance(buffer, RowReplayBuffer):
        buffer.put(data["rows"], data["pos"], data["full"])
        if data.get("device") == buffer.generator.device.type:  # of another, the stream is another, too
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
            factors = group.samples(WORD * (POOL - 1), torch.Generator().manual_seed(0))
            factors = factors.view(WORD, POOL - 1, group.d, group.d)
            elements = torch.cat([torch.eye(group.d, dtype=group.dtype)[None], reduce(torch.matmul, factors.unbind())])
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
        what: the setting that would do so, for the message.
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


NOISES = ("current", "next")


class UpdateInputs(NamedTuple):
    """A batch, and noise for actions by name; of one agent, or of several with a first axis more."""

    batch: dict[str, Tensor]
    noise: dict[str, Tensor]

    def tensors(self) -> list[Tensor]:
        """All tensors, in a fixed order."""
        return [*self.batch.values(), *self.noise.values()]


class Batches:
    """Transitions of an agent's replay buffer as `rppdyn.agents.update` takes them, and noise.

    Attributes:
        generator: draws images, and noise where the replay buffer has no generator of its own; on the CPU.
        numpy: stands for NumPy's global generator where an action noise, or a replay buffer of another kind, draws from that.
    """

    def __init__(self, agent: RPPSAC) -> None:
        self.agent = agent
        self.generator = new_generator()
        self.numpy = np.random.MT19937(int(np.random.randint(2**63 - 1)))  # noqa: NPY002  as stable-baselines3 seeds it
        self._images: GroupImages | None = None  # made for the first batch that needs them

    @torch.no_grad()
    def sample(self, batch_size: int) -> dict[str, Tensor]:
        """Transitions, with features in place of observations.

        Images under the group are taken of features, which transform linearly: `augment` moves whole transitions,
        `mirror_loss` adds images of the states.
        """
        batch = self._sample(batch_size)
        if self.agent.augment:
            index = self.images.draw(batch_size, self.generator, identity=True)
            for name in ("features", "next_features"):
                batch[name] = self.images.of_features(index, batch[name])
            batch["actions"] = self.images.of_actions(index, batch["actions"])
        batch["transitions"] = self._transitions()
        if self.agent.mirror_loss:
            index = self.images.draw(batch_size, self.generator, identity=False)
            batch["image_features"] = self.images.of_features(index, batch["features"])
            batch["action_maps"] = self.images.action_maps[index.to(batch["actions"].device)]
        return batch

    def _sample(self, batch_size: int) -> dict[str, Tensor]:
        """Transitions as `sample` returns them, before images are taken."""
        agent = self.agent
        with numpy_draws_from(self.numpy):
            data = agent.replay_buffer.sample(batch_size, env=agent._vec_normalize_env)
        return with_features(data, agent.policy.features_extractor)

    def draw(self, batch_size: int) -> UpdateInputs:
        """A batch for an update, and noise; the batch may be rows of the replay buffer, whose features `stack_inputs` takes."""
        buffer = self.row_buffer
        if buffer is None:
            batch = self.sample(batch_size)
        else:
            states, rest = buffer.draw(batch_size)
            batch = {"states": states, "rest": rest, "transitions": self._transitions()}
        return UpdateInputs(batch, {name: self.noise(batch_size) for name in NOISES})

    @torch.no_grad()
    def draw_ahead(self, count: int, batch_size: int) -> UpdateInputs:
        """Batches, with features, and noise of several updates, (count, ...), from rows and without looking at a value."""
        buffer = self.row_buffer
        assert buffer is not None
        batch = with_features(samples(*buffer.draw(count * batch_size)), self.agent.policy.features_extractor)
        batch = {name: column.unflatten(0, (count, batch_size)) for name, column in batch.items()}
        batch["transitions"] = self._transitions().expand(count)
        return UpdateInputs(batch, {name: self.noise(count, batch_size) for name in NOISES})

    def noise(self, *shape: int) -> Tensor:
        """Standard normal noise for actions, (*shape, m)."""
        agent, buffer = self.agent, self.agent.replay_buffer
        generator = buffer.generator if isinstance(buffer, RowReplayBuffer) else self.generator
        return draw_noise((*shape, agent.spec.action_rep.dim), generator, agent.policy.features_extractor.like)

    def _transitions(self) -> Tensor:
        """The number of transitions that priors are shared out over."""
        agent, like = self.agent, self.agent.policy.features_extractor.like
        if isinstance(buffer := agent.replay_buffer, RowReplayBuffer):
            return buffer.count.clamp(min=float(agent.learning_starts)).to(like)
        return like.new_tensor(max(buffer.size() * agent.n_envs, agent.learning_starts))

    @property
    def row_buffer(self) -> RowReplayBuffer | None:
        """The replay buffer, where `sample` is features of its rows and nothing else."""
        kind, env, buffer = type(self), self.agent._vec_normalize_env, self.agent.replay_buffer
        usual = kind.sample is Batches.sample and kind._sample is Batches._sample
        plain = not (self.agent.augment or self.agent.mirror_loss or (env is not None and env.norm_reward))
        return buffer if usual and plain and isinstance(buffer, RowReplayBuffer) else None

    @property
    def is_on_device(self) -> bool:
        """True if `draw_ahead` draws batches on the device that trains."""
        return (buffer := self.row_buffer) is not None and buffer.generator.device.type == buffer.device.type

    @property
    def images(self) -> GroupImages:
        """Random images of features and actions, in the features' device and dtype."""
        like = self.agent.policy.features_extractor.like
        if self._images is None or self._images.obs_maps.dtype != like.dtype:
            self._images = GroupImages(self.agent.spec, like)
        return self._images


def stack_inputs(each: Sequence[UpdateInputs], extractors: Sequence[SymmetricFeatures]) -> UpdateInputs:
    """Batches and noise of one update of several agents; batches may still be rows of a replay buffer."""
    batches = [
        _with_features(batch, extractor) if "states" in batch else batch
        for (batch, _), extractor in zip(each, extractors, strict=True)
    ]
    return UpdateInputs(stack_tensors(batches), stack_tensors([noise for _, noise in each]))


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


def replay_episodes(agent: OffPolicyAlgorithm) -> list[Episode]:
    """Episodes of an agent's replay buffer, in the order in which they began.

    Transitions of one environment follow each other in the buffer; two are of one episode where the first one's next
    observation is the second one's and no episode ended between them. A full buffer has overwritten the beginning of its
    oldest episodes, and the newest ones may not have ended yet. Actions are those that the environment took, rewards are
    kept in single precision.

    Raises:
        ValueError: the buffer has no next observations, or its actions are no vectors.
    """
    buffer = agent.replay_buffer
    if not isinstance(buffer, ReplayBuffer) or buffer.optimize_memory_usage:
        raise ValueError(
            f"the episodes of a {type(buffer).__name__} with these options can't be told apart; use ReplayBuffer, with "
            "optimize_memory_usage=False"
        )
    if not isinstance(agent.action_space, spaces.Box):
        raise ValueError(f"the agent's action space is {agent.action_space}; episodes need vectors of numbers")
    oldest = buffer.pos if buffer.full else 0
    order = (oldest + np.arange(buffer.size())) % buffer.buffer_size
    episodes = [(start, i, episode) for i in range(buffer.n_envs) for start, episode in _episodes_of(agent, order, i)]
    return [episode for _, _, episode in sorted(episodes, key=lambda item: item[:2])]


def _episodes_of(agent: OffPolicyAlgorithm, order: NDArray, i: int) -> Iterator[tuple[int, Episode]]:
    """The episodes of environment i, each with the index in `order` where it begins."""
    buffer = agent.replay_buffer
    assert buffer is not None
    rows = {key: getattr(buffer, key)[order, i] for key in ("observations", "next_observations", "rewards")}
    observations, following = rows["observations"], rows["next_observations"]
    actions = agent.policy.unscale_action(buffer.actions[order, i])  # the buffer's are scaled to [-1, 1]
    done, timeout = (getattr(buffer, key)[order, i].astype(bool) for key in ("dones", "timeouts"))
    ends = np.flatnonzero(done[:-1] | (following[:-1] != observations[1:]).any(-1)) + 1
    for start, stop in zip([0, *ends], [*ends, len(order)], strict=True):
        if start == stop:  # an empty buffer
            continue
        last = stop - 1
        yield (
            int(start),
            Episode(
                np.concatenate([observations[start:stop], following[last:stop]]),
                actions[start:stop],
                rows["rewards"][start:stop],
                terminated=bool(done[last] and not timeout[last]),
                truncated=bool(timeout[last]),
            ),
        )


def played_episodes(env: gym.Env, policy: Callable[[NDArray], NDArray], *, steps: int, seed: int) -> Iterator[Episode]:
    """Episodes of a policy until they have at least `steps` steps together; none is longer than that.

    Only the first reset is seeded, so that no two seeds share an episode.

    Args:
        policy: observations (1, n) to actions (1, m).
    """
    played = 0
    while played < steps:
        observations: list[NDArray] = [env.reset(seed=None if played else seed)[0]]
        actions: list[NDArray] = []
        rewards: list[float] = []
        terminated = truncated = False
        while not (terminated or truncated) and len(actions) < steps:  # an environment may have no time limit
            actions.append(policy(observations[-1][None])[0])
            observation, reward, terminated, truncated, _ = env.step(actions[-1])
            observations.append(observation)
            rewards.append(float(reward))
        played += len(actions)
        yield Episode(np.stack(observations), np.stack(actions), np.array(rewards), bool(terminated), bool(truncated))


def random_policy(space: gym.Space, seed: int) -> Callable[[NDArray], NDArray]:
    """Actions drawn from an action space, uniformly within its bounds, whatever is observed."""
    space.seed(seed)
    return lambda observations: np.stack([space.sample() for _ in observations])


def spread_episodes(episodes: list[Episode], *, steps: int, seed: int) -> list[Episode]:
    """Episodes drawn uniformly, without replacement and kept in order, until they have at least `steps` steps together.

    Raises:
        ValueError: there are fewer steps than that.
    """
    lengths = np.array([len(episode) for episode in episodes], dtype=int)
    if lengths.sum() < steps:
        raise ValueError(f"{steps} steps are asked for, and there are {lengths.sum()}; ask for at most as many")
    order = np.random.default_rng(seed).permutation(len(episodes))
    count = int(np.searchsorted(np.cumsum(lengths[order]), steps)) + 1
    return [episodes[i] for i in sorted(order[:count])]
