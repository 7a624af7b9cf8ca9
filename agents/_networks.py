r"""Features, actor and critics: representations of a symmetry spec wired to relaxed networks.

The actor is a squashed Gaussian whose mean transforms under rho, for actions that a group permutes and flips, or turns.
Squashing by tanh and exponentiating a standard deviation act entry by entry, so they commute with permutations, and
tanh is odd, so it commutes with signs; a standard deviation then transforms under |rho|. They commute with nothing else.
An orthogonal representation may mix entries (a torque that a rotation turns). Entries that it mixes form a *block* with
one standard deviation, which is invariant, and a radial squash: a block u becomes u tanh|u| / |u|, in the unit ball. For
a block of one entry that is tanh(u). Blocks are those of `rppdyn.nn._normaliser`; None stands for an ordinary tanh.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import TypeVar

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.policies import BaseModel, BasePolicy
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.type_aliases import PyTorchObs
from torch import Tensor, nn
from torch.nn.functional import softplus

from rppdyn.envs import SymmetrySpec
from rppdyn.nn import RPPEMLP, InvariantNormaliser
from rppdyn.nn._coefficients import ExactBuffers
from rppdyn.nn._networks import ModuleList
from rppdyn.nn._normaliser import deviation_rep, mixing_blocks
from rppdyn.reps import Rep

FEATURE_CLIP = 10.0
"""Bound on normalised features, in standard deviations, where the observation's representation is orthogonal."""

MOVING_STATISTICS = ("count", "raw_mean", "raw_m2", "mean", "std")
"""Buffers of an `InvariantNormaliser` that observations change."""

LOG_STD_MIN, LOG_STD_MAX = -20.0, 2.0  # as in stable-baselines3

MIN_RADIUS = 1e-6  # radius of a block below which the radial squash is the identity to rounding

_LOG_2 = math.log(2.0)
_HALF_LOG_2_PI = 0.5 * math.log(2.0 * math.pi)

Module = TypeVar("Module", bound=nn.Module)


class SymmetricFeatures(BaseFeaturesExtractor):
    """Raw observations to normalised features on which the group acts linearly.

    The normaliser's statistics lie in the invariant subspace, so `features(g . obs) = obs_rep(g) features(obs)`. One
    instance is shared by actor, critics and targets; `observe` is the only thing that moves its statistics.
    """

    like: Tensor

    def __init__(self, observation_space: spaces.Box, spec: SymmetrySpec) -> None:
        super().__init__(observation_space, features_dim=spec.feature_dim)
        self.spec = spec
        self.normaliser = InvariantNormaliser(spec.obs_rep, clip=FEATURE_CLIP if spec.obs_rep.is_orthogonal else None)
        self.register_buffer("like", torch.empty(0), persistent=False)  # has the networks' dtype, also after double()
        self._cpu_normaliser: list[InvariantNormaliser] = []  # see `observe`; in a list, so that it is no submodule
        self._copied_versions: list[tuple[int, int]] = []

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the features, that of the networks."""
        return self.like.dtype

    def forward(self, observations: Tensor) -> Tensor:
        # in the observation's own precision: subtracting a mean or a fixed point after rounding would break the symmetry
        return self.normaliser(self.spec.encode(observations)).to(self.dtype)

    def observe(self, observations: Tensor) -> None:
        """Update the running statistics by a batch of raw observations (B, n) on the CPU.

        With networks on an accelerator a copy of the normaliser on the CPU is updated and its buffers are copied to the device,
        without waiting for it.
        """
        features = self.spec.encode(observations)
        if self.like.device.type == "cpu":
            self.normaliser.update(features)
            return
        buffers = [getattr(self.normaliser, name) for name in MOVING_STATISTICS]
        if self._copied_versions != [(b.data_ptr(), b._version) for b in buffers]:  # loaded or moved since
            self._cpu_normaliser = [copy.deepcopy(self.normaliser).cpu()]
        self._cpu_normaliser[0].update(features)
        for name, buffer in zip(MOVING_STATISTICS, buffers, strict=True):
            buffer.copy_(getattr(self._cpu_normaliser[0], name), non_blocking=True)
        self._copied_versions = [(b.data_ptr(), b._version) for b in buffers]


def mean_and_log_std(output: Tensor, blocks: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The mean and the clamped logarithm of the standard deviation, each (..., dim), from a network's output.

    Args:
        output: (..., 2 dim), or (..., dim + blocks).
    """
    if blocks is None:
        mean, log_std = output.chunk(2, dim=-1)
        return mean, log_std.clamp(LOG_STD_MIN, LOG_STD_MAX)
    count, dim = blocks.shape
    mean, log_std = output.split([dim, count], dim=-1)
    return mean, log_std.clamp(LOG_STD_MIN, LOG_STD_MAX) @ blocks


def mode_action(output: Tensor, blocks: Tensor | None = None) -> Tensor:
    """The deterministic action, (..., dim): the squashed mean, from a network's output as in `mean_and_log_std`."""
    return squash(mean_and_log_std(output, blocks)[0], blocks)[0]


def squash(u: Tensor, blocks: Tensor | None = None) -> tuple[Tensor, Tensor]:
    r"""The squashed action (..., dim), and the logarithm of the squash's Jacobian determinant (...).

    tanh(u) has log(1 - tanh(u)^2) = 2 (log 2 - u - softplus(-2 u)) per entry, which stays finite where 1 - a^2 rounds to
    zero. A block of d entries and radius r is stretched by 1 - tanh(r)^2 along its radius and by tanh(r) / r across it.
    """
    if blocks is None:
        return torch.tanh(u), 2.0 * (_LOG_2 - u - softplus(-2.0 * u)).sum(-1)
    r = (u.square() @ blocks.mT).clamp_min(MIN_RADIUS**2).sqrt()
    scale = torch.tanh(r) / r
    radial = 2.0 * (_LOG_2 - r - softplus(-2.0 * r))
    return u * (scale @ blocks), (radial + (blocks.sum(-1) - 1.0) * scale.log()).sum(-1)


def sample_action(output: Tensor, noise: Tensor, blocks: Tensor | None = None) -> Tensor:
    """Squashed actions alone, arguments as of `sample_with_log_prob`."""
    mean, log_std = mean_and_log_std(output, blocks)
    u = mean + log_std.exp() * noise
    return torch.tanh(u) if blocks is None else squash(u, blocks)[0]


def sample_with_log_prob(output: Tensor, noise: Tensor, blocks: Tensor | None = None) -> tuple[Tensor, Tensor]:
    r"""A squashed action and its log-density, from the network's output and standard normal noise.

    u = mean + exp(log_std) * noise, a = squash(u), log p(a) = log N(u; mean, std) - log |da/du|.

    Args:
        output: mean and log standard deviation, as in `mean_and_log_std`.
        noise: (..., dim), standard normal.
    Returns:
        The action, inside the unit interval or ball, shape (..., dim), and log p, shape (...).
    Source: Haarnoja et al. 2018, appendix C, for tanh.
    """
    mean, log_std = mean_and_log_std(output, blocks)
    action, log_determinant = squash(mean + log_std.exp() * noise, blocks)
    density = -0.5 * noise.square() - log_std - _HALF_LOG_2_PI
    return action, density.sum(-1) - log_determinant


def action_distribution_rep(spec: SymmetrySpec) -> Rep:
    """The representation of an actor's output: action_rep (mean) + |action_rep|, or one scalar per block (log deviation)."""
    return spec.action_rep + deviation_rep(spec.action_rep, mixing_blocks(spec.action_rep))


class RPPActor(BasePolicy):
    """Observation to squashed Gaussian: one network from obs_rep to action_rep (mean) + |action_rep| (log std).

    If the action's representation mixes entries, there is one invariant log std for each block of them, see
    `rppdyn.agents._networks`; `blocks` holds the blocks, or None.

    Exploration noise is drawn from `generator` (on the CPU, seeded from torch's global one at construction).
    """

    action_space: spaces.Box
    features_extractor: SymmetricFeatures
    blocks: Tensor | None

    def __init__(
        self,
        observation_space: spaces.Box,
        action_space: spaces.Box,
        features_extractor: SymmetricFeatures,
        net: RPPEMLP,
    ) -> None:
        super().__init__(observation_space, action_space, features_extractor=features_extractor, squash_output=True)
        self.register_buffer("blocks", mixing_blocks(features_extractor.spec.action_rep), persistent=False)
        self.net = net
        self.generator = new_generator()

    def output(self, observations: Tensor) -> Tensor:
        """Mean and log standard deviation before squashing, (B, 2 dim) or (B, dim + blocks)."""
        return self.net(self.features_extractor(observations))

    def get_action_dist_params(self, obs: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Mean and log standard deviation before squashing, each (B, dim), as stable-baselines3's actor gives them."""
        return *mean_and_log_std(self.output(obs), self.blocks), {}

    def save(self, path: str) -> None:
        """Refuse to save, since an actor can't be rebuilt without its policy."""
        raise ValueError(f"{type(self).__name__} is saved with its policy: agent.policy.save({path!r})")

    def forward(self, observations: Tensor, deterministic: bool = False) -> Tensor:
        """Actions in [-1, 1]."""
        output = self.output(observations)
        if deterministic:
            return mode_action(output, self.blocks)
        return sample_action(output, self.draw_noise(output), self.blocks)

    def action_log_prob(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        """Sampled actions in [-1, 1], and their log-densities (B,), as stable-baselines3's own updates ask for them."""
        output = self.output(observations)
        return sample_with_log_prob(output, self.draw_noise(output), self.blocks)

    def draw_noise(self, output: Tensor) -> Tensor:
        """Noise for outputs (B, .) of the network, (B, dim)."""
        return draw_noise((len(output), self.action_space.shape[0]), self.generator, output)

    def _predict(self, observation: PyTorchObs, deterministic: bool = False) -> Tensor:
        return self(observation, deterministic)


class RPPCritic(BaseModel):
    """Observation and action in [-1, 1] to a value, once for each network: networks from obs_rep + action_rep to a scalar.

    With `atoms` (least, largest, number) networks give logits of that many values, and the value is the mean.
    """

    features_extractor: SymmetricFeatures
    q_networks: ModuleList[RPPEMLP]
    atoms: Tensor | None

    def __init__(
        self,
        observation_space: spaces.Box,
        action_space: spaces.Box,
        features_extractor: SymmetricFeatures,
        nets: Sequence[RPPEMLP],
        atoms: Sequence[float] | None = None,
    ) -> None:
        super().__init__(observation_space, action_space, features_extractor=features_extractor)
        self.q_networks = ModuleList(nets)
        support = None if atoms is None else torch.linspace(atoms[0], atoms[1], int(atoms[2]))
        self.register_buffer("atoms", support, persistent=False)

    def forward(self, observations: Tensor, actions: Tensor) -> tuple[Tensor, ...]:
        """One (B, 1) value per critic."""
        x = torch.cat([self.features_extractor(observations), actions], dim=-1)
        return tuple(self._value(net(x)) for net in self.q_networks)

    def q1_forward(self, observations: Tensor, actions: Tensor) -> Tensor:
        """The first critic's value, (B, 1), as stable-baselines3's critics have it."""
        x = torch.cat([self.features_extractor(observations), actions], dim=-1)
        return self._value(self.q_networks[0](x))

    def _value(self, output: Tensor) -> Tensor:
        return output if self.atoms is None else output.softmax(-1) @ self.atoms.unsqueeze(-1)


class RewardScale(ExactBuffers):
    """The number by which rewards are divided, so that returns have a standard deviation of at most 1 and stay within a bound.

    G = gamma G + r runs along each environment's episodes, and on past time limits, as values do; the scale is
    max(std of G, largest |G| / bound) (SimbaV2, Lee et al. 2025, where G ends there). The agent keeps the running returns G,
    and calls `observe` when it stores transitions.
    """

    moments: Tensor
    scale: Tensor
    scale_exact: Tensor

    def __init__(self, bound: float) -> None:
        super().__init__()
        self.bound = bound
        self.register_exact("moments", torch.zeros(4), working_copy=False)  # count, mean, squares about it, largest
        self.register_exact("scale", torch.ones(()))

    @torch.no_grad()
    def observe(self, returns: Tensor) -> None:
        """Update the statistics by discounted returns (n,)."""
        moments = self.moments.cpu()
        count, mean, square, largest = moments.tolist()
        for value in returns.tolist():
            count += 1
            delta = value - mean
            mean += delta / count
            square += delta * (value - mean)
            largest = max(largest, abs(value))
        scale = max(math.sqrt(square / count), largest / self.bound) or 1.0
        self.moments.copy_(torch.tensor([count, mean, square, largest], dtype=torch.float64))
        self.scale_exact.fill_(scale)
        self.scale.fill_(scale)


def new_generator() -> torch.Generator:
    """A generator on the CPU, seeded from torch's global one."""
    return torch.Generator().manual_seed(int(torch.randint(2**63 - 1, ()).item()))


def draw_noise(shape: tuple[int, ...], generator: torch.Generator, like: Tensor) -> Tensor:
    """Standard normal noise, drawn on the generator's device, then moved to where `like` is."""
    noise = torch.randn(shape, generator=generator, device=generator.device)
    return noise.to(device=like.device, dtype=like.dtype, non_blocking=True)


def cast_module(module: Module, dtype: torch.dtype | None) -> Module:
    """A copy of a module with another dtype; the module itself for None."""
    return module if dtype is None else copy.deepcopy(module).to(dtype)


def require_vectors(what: str, space: spaces.Space) -> spaces.Box:
    """Return a space of vectors; refuse others, such as the dictionaries of goal environments."""
    if not isinstance(space, spaces.Box) or len(space.shape) != 1:
        remedy = (
            "gymnasium.wrappers.FlattenObservation makes one of it, for whose entries the spec is then given"
            if what == "observation"
            else "wrap the environment so that its actions are vectors"
        )
        raise ValueError(f"the {what} space is {space}, and a symmetry acts on a Box with one axis here: {remedy}")
    return space


def check_spaces(spec: SymmetrySpec, observation_space: spaces.Space, action_space: spaces.Space) -> None:
    """Refuse, by name, spaces on which a squashed Gaussian policy can't be equivariant under the spec.

    Raises:
        ValueError: not Box spaces; sizes that differ from the spec's; an action representation that is not orthogonal,
            or has a fixed point other than zero; action bounds that the symmetry doesn't preserve.
    """
    name = spec.env_id

    def vectors(what: str, space: spaces.Space, dim: int) -> spaces.Box:
        space = require_vectors(what, space)
        if space.shape[0] != dim:
            raise ValueError(
                f"{name}: the {what} space has {space.shape[0]} entries and the symmetry spec {dim}; "
                "give the environment's own spec as spec="
            )
        return space

    vectors("observation", observation_space, len(spec.obs_names))
    actions = vectors("action", action_space, len(spec.action_names))
    if not spec.action_rep.is_orthogonal:
        raise ValueError(
            f"{name}: the action representation {spec.action_rep} is not orthogonal, and a Gaussian with one standard "
            "deviation for what the symmetry mixes is equivariant for orthogonal ones only; rescale the actions"
        )
    if not spec.action.encoding.is_identity:
        raise ValueError(
            f"{name}: the symmetry acts on encoded actions; RPPPolicy needs one that acts on them linearly"
        )
    if not spec.action.is_centred:
        raise ValueError(f"{name}: the symmetry fixes the action {spec.action.origin}, not zero; shift the actions")
    low, high = actions.low.astype(np.float64), actions.high.astype(np.float64)
    if wrong := np.flatnonzero(low != -high).tolist():
        i = wrong[0]
        raise ValueError(
            f"{name}: action {spec.action_names[i]!r} is bounded by [{low[i]:g}, {high[i]:g}], not symmetric about 0; "
            "wrap the environment in gymnasium.wrappers.RescaleAction(env, -1, 1)"
        )
    blocks = mixing_blocks(spec.action_rep)
    if blocks is not None:
        for i, j in ((b.argmax().item(), j) for b in blocks for j in b.nonzero().flatten().tolist()):
            if high[i] != high[j]:
                raise ValueError(
                    f"{name}: the symmetry mixes action {spec.action_names[i]!r}, bounded by {high[i]:g}, with "
                    f"{spec.action_names[j]!r}, bounded by {high[j]:g}; wrap the environment in "
                    "gymnasium.wrappers.RescaleAction(env, -1, 1)"
                )
        return
    for g in spec.action_rep.discrete_generators:
        image = np.abs(g.numpy()) @ high
        if wrong := np.flatnonzero(image != high).tolist():
            i = wrong[0]
            raise ValueError(
                f"{name}: the symmetry exchanges action {spec.action_names[i]!r}, bounded by {high[i]:g}, with one "
                f"bounded by {image[i]:g}; wrap the environment in gymnasium.wrappers.RescaleAction(env, -1, 1)"
            )
