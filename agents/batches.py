"""Where the batches of an agent's gradient updates come from: its replay buffer, and random images under the group."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from stable_baselines3.common.type_aliases import ReplayBufferSamples
from torch import Tensor

from rppdyn.agents.images import GroupImages
from rppdyn.agents.networks import SymmetricFeatures, draw_noise, new_generator
from rppdyn.agents.replay import DeviceReplayBuffer, Rows, taken

if TYPE_CHECKING:
    from rppdyn.agents.algorithm import RPPSAC

Drawn = tuple[dict[str, Tensor], dict[str, Tensor]]
"""An agent's batch, and noise."""

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
        self._starts: tuple[Any, Tensor] | None = None

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
        drawn = buffer.draw(batch_size)
        if isinstance(buffer, DeviceReplayBuffer):  # the number that priors are shared out over is the greater of two
            return drawn | {"least": self._least(buffer)}
        return drawn | {"transitions": self._shared_over(self.agent.policy.features_extractor.like)}

    def _least(self, buffer: DeviceReplayBuffer) -> Tensor:
        """`learning_starts`, where the buffer is, and always in one place."""
        starts, device = self.agent.learning_starts, buffer.device
        if self._starts is None or self._starts[0] != (starts, device):
            self._starts = (starts, device), torch.tensor(starts, dtype=torch.float64, device=device)
        return self._starts[1]

    def _shared_over(self, like: Tensor) -> Tensor:
        """The number that priors are shared out over."""
        agent = self.agent
        if (buffer := self._on_device) is not None:
            return torch.maximum(buffer.count, self._least(buffer)).to(like)
        return like.new_tensor(max(agent.replay_buffer.size() * agent.n_envs, agent.learning_starts))

    def noises(self, batch_size: int) -> dict[str, Tensor]:
        """Standard normal noise for the `current` and the `next` actions of a batch; on a device it is drawn at once."""
        if self._on_device is None:
            return {name: self.noise(batch_size) for name in NOISES}
        return dict(zip(NOISES, self.noise(2, batch_size), strict=True))

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

    # -- as part of an update that is replayed on a device ------------------------------------------------------------

    @property
    def _on_device(self) -> DeviceReplayBuffer | None:
        buffer = self.agent.replay_buffer
        return buffer if isinstance(buffer, DeviceReplayBuffer) else None

    @property
    def drawn_on_device(self) -> bool:
        """Whether batches are drawn by the replay buffer's generator alone, without looking at a value."""
        return isinstance(self.row_buffer, DeviceReplayBuffer)

    @property
    def drawn_from(self) -> list[Tensor]:
        """What batches are drawn from on the device."""
        buffer = self._on_device
        if buffer is None:
            return []
        return [buffer.rows, buffer.count, self._least(buffer), *self.agent.policy.features_extractor.buffers()]

    @property
    def drawn_by(self) -> list[torch.Generator]:
        """What draws them on the device."""
        return [] if (buffer := self._on_device) is None else [buffer.generator]


def completed(batch: Mapping[str, Tensor], extractor: SymmetricFeatures) -> Mapping[str, Tensor]:
    """A batch as updates take it, which may be rows of a replay buffer."""
    if "features" in batch:
        return batch
    found = with_features(taken(batch), extractor)
    if "transitions" in batch:
        return found | {"transitions": batch["transitions"]}
    return found | {"transitions": torch.maximum(batch["count"], batch["least"]).to(extractor.like)}


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
