"""Where the batches of an agent's gradient updates come from: its replay buffer, and random images under the group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from stable_baselines3.common.type_aliases import ReplayBufferSamples
from torch import Tensor

from rppdyn.agents.images import GroupImages
from rppdyn.agents.networks import SymmetricFeatures, draw_noise, new_generator
from rppdyn.agents.replay import DeviceReplayBuffer, Rows, samples
from rppdyn.agents.update import together

if TYPE_CHECKING:
    from rppdyn.agents.algorithm import RPPSAC

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
        """Whether batches are drawn `ahead`, by the replay buffer's generator alone and without looking at a value."""
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
        """Of what `ahead` returns: columns of each of the `COLUMNS`, then of the `NOISES`."""
        n, m = self.agent.policy.features_extractor.features_dim, self.agent.spec.action_rep.dim
        return [n, n, m, 1, 1, m, m]

    @property
    def drawn_from(self) -> list[Tensor]:
        """What batches are drawn from on the device."""
        buffer = self._on_device
        return [] if buffer is None else [buffer.rows, buffer.count, *self.agent.policy.features_extractor.buffers()]

    @property
    def drawn_by(self) -> list[torch.Generator]:
        """What draws them on the device."""
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
