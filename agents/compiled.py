"""Gradient updates, and actions, by torch.compile."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from stable_baselines3.common.type_aliases import TrainFrequencyUnit
from torch import Tensor

from rppdyn.agents.acting import acted
from rppdyn.agents.batches import Drawn, stacked_up
from rppdyn.agents.functional import Networks, Prior
from rppdyn.agents.networks import SymmetricFeatures
from rppdyn.agents.update import Metrics, State, UpdateConfig, bias_corrections, step_
from rppdyn.nn.compiling import can_compile, compiled, materialised

if TYPE_CHECKING:
    from rppdyn.agents.algorithm import RPPSAC

NUMBERS = ("learning_rate", "tau", "gamma", "noise_variance", "target_entropy")
"""What may change from update to update without compiling anew."""

OPTIONS: dict[str, dict[str, Any]] = {
    "cpu": {
        "cpp_wrapper": True,
        "size_asserts": False,
        "alignment_asserts": False,
        "unroll_reductions_threshold": 1,  # sums over actions are unrolled otherwise, with exponentials one by one
    },
    "cuda": {},
}
"""Of torch.compile, by device."""

# What else may change is in `_key`; tensors that come from elsewhere than a buffer of rows may be of any kind.
NO_GUARDS, TENSOR_GUARDS = torch.compiler.skip_all_guards_unsafe, torch.compiler.keep_tensor_guards_unsafe


PAYS = 20_000
"""Updates from which on compiling saves as much time as it takes where nothing is cached."""


def gains_by_compiling(agent: RPPSAC) -> bool:
    """Whether the training that an agent has begun is long enough, and torch can compile it.

    The whole training counts, steps before this call included, so that one that is resumed rounds as before.
    """
    per_rollout = agent.train_freq.frequency * agent.n_envs
    steps = per_rollout if agent.gradient_steps < 0 else agent.gradient_steps
    updates = agent._total_timesteps * steps / per_rollout
    is_long = agent.train_freq.unit == TrainFrequencyUnit.STEP and updates >= PAYS
    return is_long and agent.device.type in OPTIONS and can_compile(agent.device)


class CompiledUpdate:
    """`update_`, in which torch.compile leaves the matrix products and one operation for all that is between two of them.

    The first call compiles, and so does one with batches of another size or with settings that are not among `NUMBERS`.

    Args:
        extractors: of each agent; they take the features of batches that are rows of a replay buffer.
    """

    def __init__(self, extractors: Sequence[SymmetricFeatures]) -> None:
        self.extractors = list(extractors)
        self._steps: dict[Any, Any] = {}  # by what torch would otherwise look through at each call
        self._flat: tuple[State, State] = {}, {}  # the last state, and as it is updated

    def __call__(
        self, state: State, drawn: Drawn | Sequence[Drawn], config: UpdateConfig, numbers: Tensor | None = None
    ) -> Metrics:
        """`update_` of the batch of all agents, or of those of each, which may still be rows of a replay buffer.

        Args:
            numbers: `NUMBERS` where the state is, for an update that looks at no value; None: the configuration's.
        """
        like = state["actor"]
        priors = config.actors.prior(), config.critics.prior()
        key = (
            *_key(like, drawn, config, priors),
            *(networks.prepare(like) for networks in (config.actors, config.critics)),
        )
        if key not in self._steps:
            rows = not isinstance(drawn, tuple) and all("states" in batch for batch, _ in drawn)
            options = OPTIONS[like.device.type] | {"guard_filter_fn": NO_GUARDS if rows else TENSOR_GUARDS}
            self._steps[key] = compiled(_step, fullgraph=True, dynamic=False, options=options)
        if state is not self._flat[0]:
            # of one shape, whose loops become one
            self._flat = state, {name: vectors.flatten(0, -2) for name, vectors in state.items()}
        with torch.no_grad():
            if numbers is None:
                numbers = torch.tensor([getattr(config, name) for name in NUMBERS], dtype=like.dtype)
            return self._steps[key](self._flat[1], drawn, config, priors, numbers, self.extractors)

    def __reduce__(self) -> tuple:
        return CompiledUpdate, (self.extractors,)  # what torch compiled stays here


class CompiledActions:
    """`acted`, of which torch.compile leaves the matrix products and one operation for all that is between two of them.

    In training its small operations take two to three times as long as by themselves: an update's products empty the caches.
    """

    def __init__(self) -> None:
        self._compiled: dict[Any, Any] = {}  # by shapes

    def __call__(self, actors: Networks, observations: Tensor, *others: Any) -> Tensor:
        vectors = actors.vectors()
        own = actors.prepare(vectors)
        key = vectors.dtype, vectors.shape, observations.dtype, observations.shape, torch.get_num_threads(), own
        if key not in self._compiled:
            options = OPTIONS[vectors.device.type] | {"guard_filter_fn": NO_GUARDS}
            self._compiled[key] = compiled(_act, fullgraph=True, dynamic=False, options=options)
        return self._compiled[key](actors, vectors, observations, *others)

    def __reduce__(self) -> tuple:
        return CompiledActions, ()  # what torch compiled stays here


def _act(actors: Networks, vectors: Tensor, *others: Any) -> Tensor:
    return acted(actors, actors.weights(vectors), *others)


def _step(
    state: State, drawn: Drawn | Sequence[Drawn], config: UpdateConfig, priors: tuple[Prior, Prior], numbers: Tensor,
    extractors: Sequence[SymmetricFeatures],
) -> Metrics:  # fmt: skip
    batch, noise = drawn if isinstance(drawn, tuple) else stacked_up(drawn, extractors)
    own: dict[str, Any] = dict(zip(NUMBERS, numbers.unbind(), strict=True))
    config = dataclasses.replace(config, **own)
    corrections = materialised(bias_corrections(state, config).to(numbers.dtype))
    return Metrics.of(step_(state, batch, noise, config, priors, corrections))


def _key(like: Tensor, drawn: Drawn | Sequence[Drawn], config: UpdateConfig, priors: tuple[Prior, Prior]) -> tuple:
    """What compiled code depends on and may change."""
    fixed = config.learn_temperature, config.betas, config.epsilon, config.max_gradient_norm, config.mirror_loss
    each = [drawn] if isinstance(drawn, tuple) else drawn
    of_batches = tuple((*batch, next(iter(batch.values())).shape) for batch, _ in each)
    process = torch.get_num_threads(), torch.get_float32_matmul_precision()
    return like.dtype, of_batches, *(len(prior.precision) for prior in priors), *fixed, *process
