"""Episodes on disk as Minari datasets (the Farama Foundation's standard), written by this package or by anyone.

    dataset = read_episodes("rppdyn/Swimmer-v5/random-seed0-v0")      # an id in Minari's folder, or a dataset's own folder
    dataset.episodes[0].observations                                # (T + 1, n)
    write_episodes("swimmer/mine-v0", dataset.episodes, env=dataset.env())

Minari keeps datasets in ~/.minari/datasets, or in $MINARI_DATASETS_PATH. It is an optional dependency.

Transition models are trained on chunks of episodes, and tested on long trajectories of other episodes (`TransitionData`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from gymnasium.envs.mujoco import MujocoEnv
from jaxtyping import Float
from numpy.typing import NDArray
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from torch import Tensor

from rppdyn.envs._catalogue import symmetry_spec
from rppdyn.envs._making import dataset_env_spec, env_name, make_env, make_env_arguments
from rppdyn.envs._model_symmetry import name_of, scalar_joints
from rppdyn.envs._simulator import Simulator
from rppdyn.envs._spec import SymmetrySpec
from rppdyn.envs.observation._recognition import state_entries
from rppdyn.errors import require_trust
from rppdyn.runs.files import new_folder
from rppdyn.tasks._continuity import Log
from rppdyn.tasks._recordings import Recording, Recordings
from rppdyn.tasks._tables import damaged_dataset, dataset_folder, open_dataset

logger = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Episode:
    """T consecutive steps of an environment; action t leads from observation t to t + 1.

    If an episode neither terminated nor was truncated, its data end before it does.

    Args:
        observations: raw observations, (T + 1, n).
        actions: actions in the environment's units, (T, m).
        rewards: rewards, (T,).
        terminated, truncated: how the last step ended.
    Raises:
        ValueError: there is no step, or the arrays don't fit together.
    """

    observations: NDArray[np.floating]
    actions: NDArray[np.floating]
    rewards: NDArray[np.float64]
    terminated: bool = False
    truncated: bool = False

    def __post_init__(self):
        for key in ("observations", "actions", "rewards"):
            object.__setattr__(self, key, np.asarray(getattr(self, key), dtype=np.float64))
        shapes = self.observations.shape, self.actions.shape, self.rewards.shape
        steps = len(self)
        if [len(shape) for shape in shapes] != [2, 2, 1] or steps < 1 or {shapes[0][0] - 1, shapes[1][0]} != {steps}:
            raise ValueError(
                f"observations, actions and rewards of shapes {', '.join(map(str, shapes))}: an episode has (T + 1, n), "
                "(T, m) and (T,), with at least one step; leave empty ones out"
            )

    def __len__(self) -> int:
        return self.rewards.size


@dataclass(frozen=True, eq=False)
class EpisodeDataset:
    """Episodes of one environment.

    Attributes:
        name: the dataset's Minari id.
        env_id: id of the environment, as `gymnasium.make` takes it.
        env_kwargs: keyword arguments of `gymnasium.make`.
        actuator_scale: factors on the strength of actuators (`rppdyn.envs.make_env`).
        episodes: the episodes, in the dataset's order.
        named_by: the dataset's folder, if only the dataset names the environment; no module is then imported to make it.
    """

    name: str
    env_id: str
    env_kwargs: Mapping[str, Any]
    episodes: tuple[Episode, ...]
    actuator_scale: Mapping[str, float] = field(default_factory=dict)
    named_by: Path | None = None

    @property
    def num_transitions(self) -> int:
        """Steps of all episodes."""
        return sum(map(len, self.episodes))

    def env(self) -> gym.Env:
        """Make the environment of the episodes, weakened actuators included.

        Raises:
            ValueError: it can't be made here.
            UntrustedError: it needs a module that only the dataset names.
        """
        scale, file = self.actuator_scale, self.named_by
        return make_env(self.env_id, actuator_scale=scale, monitor=False, named_by=file, **self.env_kwargs)

    @cached_property
    def entry_names(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Names of the entries of observation and action; ``[i]`` if the environment has no symmetry spec."""
        with closing(self.env()) as env:
            try:
                spec = symmetry_spec(env)
            except ValueError:
                return _number_names(env.observation_space), _number_names(env.action_space)
        return spec.obs.names, spec.action.names


# -- reading ----------------------------------------------------------------------------------------------------------


def read_episodes(dataset: str | Path, *, env_id: str | None = None, trust: bool = False) -> EpisodeDataset:
    """Read a Minari dataset into memory.

    Args:
        dataset: its id in Minari's folder, or the path of its own folder.
        env_id: id of the environment that it must have; None for any.
        trust: import a module that only the dataset names, to make its environment; the module of `env_id` is named by the
            caller and always imported.
    Raises:
        UntrustedError: there is such a module, and it is not trusted.
        ValueError: Minari is not installed; the dataset is missing or damaged, or has another environment; its spaces are not
            that environment's, or not vectors; or a number is not finite.
    """
    source = open_dataset(str(dataset))
    name, env_spec = source.id, source.env_spec
    if env_spec is None:
        raise ValueError(f"{name} does not say which environment it is of; write it with env= given")
    if env_id is not None and env_spec.id != env_id.rpartition(":")[2]:
        raise ValueError(f"{name} is of {env_spec.id}, not of {env_id}: give a dataset of {env_id}")
    for key in ("observation", "action"):
        _require_vectors(name, key, getattr(source, f"{key}_space"))
    made_id, options, scale = make_env_arguments(env_spec, name)
    folder = Path(source.storage.data_path)
    if made_id == env_id and not trust:  # the caller names the module, but not modules in the options
        require_trust(env_spec.id, folder, options)
        trust = True
    empty = EpisodeDataset(name, made_id, options, (), scale, None if trust else folder)
    with closing(empty.env()) as env:
        for key in ("observation", "action"):
            registered, recorded = getattr(env, f"{key}_space"), getattr(source, f"{key}_space")
            if not _same_box(registered, recorded):
                raise ValueError(
                    f"{name}: its {key} space is {_one_line(recorded)}, that of {made_id} is {_one_line(registered)}; "
                    "collect it again from the environment as it is registered"
                )
    data = replace(empty, episodes=tuple(_stored_episodes(name, source)))
    _require_finite(data)
    return data


def _stored_episodes(name: str, source: Any) -> Iterator[Episode]:
    try:
        for data in source.storage.get_episodes(source.episode_indices):
            if data["terminations"][:-1].any() or data["truncations"][:-1].any():
                raise ValueError("an episode of it ends before its last step; split it there")
            ends = bool(data["terminations"][-1]), bool(data["truncations"][-1])
            yield Episode(data["observations"], data["actions"], data["rewards"], *ends)
    except Exception as error:  # Minari's readers raise several types
        raise damaged_dataset(name, error) from error


def _require_vectors(name: str, key: str, space: gym.Space) -> None:
    if not (isinstance(space, spaces.Box) and len(space.shape) == 1 and np.issubdtype(space.dtype, np.floating)):
        raise ValueError(
            f"{name}: its {key} space is {_one_line(space)}, and a vector of numbers is needed; collect it from an "
            "environment that gives one"
        )


def _same_box(a: gym.Space, b: spaces.Box) -> bool:
    """Check whether two boxes have the same bounds, up to single precision."""
    if not isinstance(a, spaces.Box) or a.shape != b.shape:
        return False
    return all(np.allclose(x, y, rtol=1e-6, atol=0) for x, y in ((a.low, b.low), (a.high, b.high)))


def _require_finite(dataset: EpisodeDataset) -> None:
    for i, episode in enumerate(dataset.episodes):
        for k, key in enumerate(("observations", "actions", "rewards")):
            values = getattr(episode, key)
            invalid = np.argwhere(~np.isfinite(values))
            if len(invalid):
                step, *column = invalid[0].tolist()
                entry = f" {dataset.entry_names[k][column[0]]!r}" if column else ""
                raise ValueError(
                    f"{dataset.name}: {key.removesuffix('s')}{entry} is {values[tuple(invalid[0])]} at step {step} of episode "
                    f"{i}; leave that episode out, or collect again"
                )


def check_log(name: str, episodes: Sequence[Episode], env: gym.Env | Simulator, names: Sequence[str] = ()) -> None:
    """Refuse jumps within episodes and velocities that are no rates of positions; warn of angles that wrap.

    Args:
        name: title of the log, for messages.
        env: environment of the episodes, or its simulator; a MuJoCo one tells the entries of joint positions and velocities,
            and is reset and stepped for that.
        names: names of the entries, which are checked one by one if there is no such simulator.
    Raises:
        UserError: with the entry, the episode, the row and the remedy.
    """
    columns, pairs, limit, seconds = np.arange(len(names)), 0, np.inf, 1.0
    simulator = env if isinstance(env, Simulator) else None
    if isinstance(env, gym.Env) and isinstance(env.unwrapped, MujocoEnv) and hasattr(env.unwrapped, "_get_obs"):
        simulator = Simulator(env)
    if simulator is not None:
        model, entries = simulator.model, state_entries(simulator)
        scalar = np.array(scalar_joints(model), int)
        pair_entries = np.array(
            [entries.positions[model.jnt_qposadr[scalar]], entries.velocities[model.jnt_dofadr[scalar]]]
        )
        observed = (pair_entries >= 0).all(0)
        if not observed.all():
            lacking = ", ".join(name_of(model, "joint", int(j)) for j in scalar[~observed])
            logger.info("%s: not checked: %s, whose position or velocity the observation lacks", name, lacking)
        if observed.any():
            joints = [name_of(model, "joint", int(j)) for j in scalar[observed]]
            names = (*joints, *(f"the velocity of {joint}" for joint in joints))
            columns, pairs, limit = pair_entries[:, observed].flatten(), len(joints), entries.limit
            start = simulator.data.time
            simulator.advance(np.mean(simulator.action_bounds, 0))
            seconds = simulator.data.time - start
    trajectories = []
    for index, episode in enumerate(episodes):
        rows, values = np.arange(len(episode) + 1), torch.from_numpy(episode.observations[:, columns])
        times, none = seconds * torch.from_numpy(rows.astype(np.float64)), torch.zeros(len(episode), 0)
        trajectories.append(Recording(f"{name}, episode {index}", times, values, none, rows + 1))
    recordings = Recordings(name, tuple(names), (), tuple(trajectories))
    Log(recordings, pairs=pairs, unwrap=None, limit=limit, has_keys=False).check()


# -- writing ----------------------------------------------------------------------------------------------------------


def write_episodes(
    dataset: str, episodes: Iterable[Episode], *, env: gym.Env, algorithm: str = "", description: str = ""
) -> Path:
    """Write a new Minari dataset. A process that is killed meanwhile leaves no part of it.

    Args:
        dataset: its id, `namespace/name-v0` with any number of namespaces.
        episodes: the episodes; may be a generator that plays them, and is read after all checks.
        env: environment of the episodes, made by `rppdyn.envs.make_env`.
        algorithm: name of the algorithm that chose the actions.
        description: one sentence about the dataset.
    Returns:
        the dataset's folder.
    Raises:
        ValueError: Minari is not installed, the id is malformed or taken, the environment can't be described or its
            spaces are not vectors, or there is no episode.
    """
    folder = dataset_folder(dataset)
    if folder.exists():
        raise ValueError(f"{folder} exists: choose another name or version, or remove it with minari delete {dataset}")
    for key in ("observation", "action"):
        _require_vectors(env_name(env), key, getattr(env, f"{key}_space"))
    metadata = {
        "dataset_id": dataset,
        "minari_version": version("minari"),
        "algorithm_name": algorithm,
        "description": description,
        "requirements": [f"{package}=={version(package)}" for package in ("gymnasium", "mujoco")],
    }
    spec = dataset_env_spec(env)
    with new_folder(folder) as temporary:
        from minari.dataset.minari_storage import MinariStorage

        storage = MinariStorage.new(
            temporary / "data", env.observation_space, env.action_space, env_spec=spec, data_format="hdf5"
        )
        storage.update_metadata(metadata)
        storage.update_episodes(_episode_buffers(episodes, env))
        if not storage.total_episodes:
            raise ValueError(f"{dataset}: there is no episode to write; collect at least one")
    return folder


def _episode_buffers(episodes: Iterable[Episode], env: gym.Env) -> Iterator[Any]:
    from minari.data_collector import EpisodeBuffer

    for episode in episodes:
        steps = np.zeros(len(episode), dtype=bool)
        terminations, truncations = steps.copy(), steps
        terminations[-1], truncations[-1] = episode.terminated, episode.truncated
        yield EpisodeBuffer(
            observations=_cast_exactly(episode.observations, env.observation_space.dtype),
            actions=_cast_exactly(episode.actions, env.action_space.dtype),
            rewards=episode.rewards,
            terminations=terminations,
            truncations=truncations,
        )


def _cast_exactly(values: NDArray, dtype: Any) -> NDArray:
    """Cast values to a space's dtype, unless that rounds them."""
    cast = values.astype(dtype)
    return cast if np.array_equal(cast, values) else values


def _number_names(space: gym.Space) -> tuple[str, ...]:
    return tuple(f"[{i}]" for i in range(spaces.flatdim(space)))


def _one_line(space: gym.Space) -> str:
    return " ".join(str(space).split())


# -- segments of episodes, for transition models ---------------------------------------------------------------------------

SPLIT_SEED = 0
"""Seed of the split of episodes; it is the same for all seeds of a fit, which are then tested on the same trajectories."""


@dataclass(frozen=True)
class Segments:
    """Segments of episodes, all of one length, in float64.

    Attributes:
        states: features of the observations, ``(n, T + 1, f)``.
        actions: ``(n, T, m)``; action t leads from state t to t + 1.
        rewards: ``(n, T)``.
    """

    states: Float[Tensor, "n T1 f"]
    actions: Float[Tensor, "n T m"]
    rewards: Float[Tensor, "n T"]

    def __len__(self) -> int:
        return len(self.states)


@dataclass(frozen=True)
class TransitionData:
    """Episodes for training, and segments of other episodes for validation and for the test."""

    train: tuple[Episode, ...]
    validation: Segments
    test: Segments


def transition_data(
    dataset: EpisodeDataset, spec: SymmetrySpec, *, held_out: float, trajectories: int, length: int
) -> TransitionData:
    """Split a dataset by episodes.

    Args:
        spec: spec that encodes observations.
        held_out: share of the episodes of at least ``length`` steps for the test, and the same for validation.
        trajectories: number of trajectories of ``length`` steps that are drawn from each of the two.
    Raises:
        ValueError: the held-out episodes have too few trajectories, or the spec is of another environment.
    """
    _check_spec(dataset, spec)
    train, validation, test = hold_out(dataset, held_out, length)

    def draw(episodes: Sequence[Episode], name: str) -> Segments:
        lack = lambda n: (  # noqa: E731
            f"{dataset.name}: its {len(episodes)} {name} episodes have {n} trajectories of {length} steps, not {trajectories}: "
            f"give task.trajectories={n}, a larger task.held_out, or collect more"
        )
        return _draw_segments(spec, episodes, trajectories, length, SPLIT_SEED, lack)

    return TransitionData(train, draw(validation, "validation"), draw(test, "test"))


def hold_out(
    dataset: EpisodeDataset, share: float, length: int
) -> tuple[tuple[Episode, ...], tuple[Episode, ...], tuple[Episode, ...]]:
    """(training, validation, test) episodes; the last two are drawn from those of at least ``length`` steps.

    Raises:
        ValueError: there are fewer than three such episodes, or none is left for training.
    """
    episodes = dataset.episodes
    long = [index for index, episode in enumerate(episodes) if len(episode) >= length]
    if len(long) < 3:
        raise ValueError(
            f"{dataset.name}: {len(long)} of {len(episodes)} episodes have {length} steps, and one each is needed for "
            "training, validation and test; collect more, or make task.length smaller"
        )
    count = max(1, round(share * len(long)))
    if 2 * count >= len(episodes):
        raise ValueError(f"{dataset.name}: task.held_out={share:g} twice leaves no episode to train on; reduce it")
    chosen = np.random.default_rng(SPLIT_SEED).permutation(long)[: 2 * count].tolist()
    held_out = set(chosen)
    pick = lambda indices: tuple(episodes[i] for i in sorted(indices))  # noqa: E731
    return pick(set(range(len(episodes))) - held_out), pick(chosen[:count]), pick(chosen[count:])


def draw_chunks(
    dataset: EpisodeDataset, spec: SymmetrySpec, episodes: Sequence[Episode], count: int, length: int, seed: int
) -> Segments:
    """Draw disjoint segments of ``length`` steps uniformly from all into which the episodes can be cut.

    Raises:
        ValueError: there are fewer than `count`.
    """
    lack = lambda n: (  # noqa: E731
        f"{dataset.name}: its training episodes have {n} chunks of {length} steps, not {count}: give task.train={n * length} "
        "at most, shorter chunks, or collect more"
    )
    return _draw_segments(spec, episodes, count, length, seed, lack)


def _check_spec(dataset: EpisodeDataset, spec: SymmetrySpec) -> None:
    sizes = dataset.episodes[0].observations.shape[1], dataset.episodes[0].actions.shape[1]
    if sizes != (spec.obs.dim, spec.action.dim):
        raise ValueError(
            f"{dataset.name} has observations and actions of {sizes[0]} and {sizes[1]} numbers, the symmetry spec of "
            f"{spec.env_id} is for {spec.obs.dim} and {spec.action.dim}"
        )


def _draw_segments(
    spec: SymmetrySpec, episodes: Sequence[Episode], count: int, length: int, seed: int, lack: Callable[[int], str]
) -> Segments:
    """Cut episodes into disjoint segments and draw some; `lack(n)` is the error if there are only n segments."""
    rng = np.random.default_rng(seed)
    starts: list[tuple[Episode, int]] = []
    for episode in episodes:
        pieces, spare = divmod(len(episode), length)
        if pieces:  # the first segment begins at random within the spare steps
            first = int(rng.integers(spare + 1))
            starts += [(episode, first + k * length) for k in range(pieces)]
    if len(starts) < count:
        raise ValueError(lack(len(starts)))
    chosen = [starts[i] for i in rng.permutation(len(starts))[:count]]
    observations = np.stack([episode.observations[t : t + length + 1] for episode, t in chosen])
    actions = np.stack([episode.actions[t : t + length] for episode, t in chosen])
    rewards = np.stack([episode.rewards[t : t + length] for episode, t in chosen])
    return Segments(spec.encode(torch.from_numpy(observations)), *map(torch.from_numpy, (actions, rewards)))


# -- episodes from a replay buffer or a policy -------------------------------------------------------------------------


def replay_episodes(agent: OffPolicyAlgorithm) -> list[Episode]:
    """Episodes of an agent's replay buffer, in the order in which they began.

    Two successive transitions of an environment belong to one episode if the first does not end it, and its next observation is
    the second one's observation. A full buffer has overwritten the beginning of its oldest episodes, and the newest ones may
    not have ended. Actions are in the environment's units, rewards in single precision. Episodes of a hindsight buffer have the
    original goals.

    Raises:
        ValueError: the buffer has no next observations, or its observations or actions are no vectors.
    """
    buffer, space = agent.replay_buffer, agent.observation_space
    if not (isinstance(space, spaces.Box) and len(space.shape) == 1):
        raise ValueError(
            f"the agent's observation space is {_one_line(space)}; episodes need vectors of numbers: train it on an "
            "environment that gives them (gymnasium.wrappers.FlattenObservation makes vectors of dictionaries)"
        )
    if not isinstance(buffer, ReplayBuffer) or buffer.optimize_memory_usage:
        raise ValueError(
            f"the episodes of a {type(buffer).__name__} with these options can't be told apart; use ReplayBuffer, with "
            "optimize_memory_usage=False"
        )
    if not isinstance(agent.action_space, spaces.Box):
        raise ValueError(f"the agent's action space is {agent.action_space}; episodes need vectors of numbers")
    oldest = buffer.pos if buffer.full else 0
    order = (oldest + np.arange(buffer.size())) % buffer.buffer_size
    episodes = [
        (start, i, episode) for i in range(buffer.n_envs) for start, episode in _environment_episodes(agent, order, i)
    ]
    return [episode for _, _, episode in sorted(episodes, key=lambda item: item[:2])]


def _environment_episodes(agent: OffPolicyAlgorithm, order: NDArray, i: int) -> Iterator[tuple[int, Episode]]:
    """(index in `order` of its first step, episode) of the episodes of environment i."""
    buffer = agent.replay_buffer
    assert buffer is not None
    if not len(order):
        return
    stored: list[Any] = [buffer.observations, buffer.next_observations]  # arrays, or dictionaries of them
    parts = [list(x.values()) if isinstance(x, dict) else [x] for x in stored]
    observations, following = (np.concatenate([x.reshape(*x.shape[:2], -1)[order, i] for x in xs], 1) for xs in parts)
    actions = agent.policy.unscale_action(buffer.actions[order, i])  # the buffer's are scaled to [-1, 1]
    done, timeout = (getattr(buffer, key)[order, i].astype(bool) for key in ("dones", "timeouts"))
    ends = np.flatnonzero(done[:-1] | (following[:-1] != observations[1:]).any(-1)) + 1
    for start, stop in zip([0, *ends], [*ends, len(order)], strict=True):
        last = stop - 1
        seen = np.concatenate([observations[start:stop], following[last:stop]])
        terminated, truncated = bool(done[last] and not timeout[last]), bool(timeout[last])
        rewards = buffer.rewards[order[start:stop], i]
        yield int(start), Episode(seen, actions[start:stop], rewards, terminated, truncated)


def played_episodes(env: gym.Env, policy: Callable[[NDArray], NDArray], *, steps: int, seed: int) -> Iterator[Episode]:
    """Play episodes of a policy until they have at least `steps` steps in total; none is longer than `steps`.

    Only the first reset is seeded, so that two seeds share no episode.

    Args:
        policy: function from observations (1, n) to actions (1, m).
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
    """A policy of random actions, uniform within the bounds of the action space, which it seeds and samples."""
    space.seed(seed)
    return lambda observations: np.stack([space.sample() for _ in observations])


def spread_episodes(episodes: list[Episode], *, steps: int, seed: int) -> list[Episode]:
    """Draw episodes uniformly, without replacement, until they have at least `steps` steps in total; their order is kept.

    Raises:
        ValueError: the episodes have fewer steps.
    """
    lengths = np.array([len(episode) for episode in episodes], dtype=int)
    if lengths.sum() < steps:
        raise ValueError(f"{steps} steps are asked for, and there are {lengths.sum()}; ask for at most as many")
    order = np.random.default_rng(seed).permutation(len(episodes))
    count = int(np.searchsorted(np.cumsum(lengths[order]), steps)) + 1
    return [episodes[i] for i in sorted(order[:count])]
