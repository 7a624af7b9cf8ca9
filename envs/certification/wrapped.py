"""Whether an environment's wrappers keep a symmetry of the environment inside them, by stepping with and without each."""

from __future__ import annotations

from collections.abc import Iterator

import gymnasium as gym
import numpy as np

from rppdyn.envs.certification.certificate import EXACT_BELOW
from rppdyn.envs.certification.evidence import Comparison, Elements, SimulatedSteps, faults
from rppdyn.envs.simulator import Simulator, quiet_mujoco
from rppdyn.envs.spec import SymmetrySpec
from rppdyn.envs.state import capture_state, restore_state
from rppdyn.envs.wrappers import step_wrappers

__all__ = ["require_symmetric_wrappers"]

STATES = 40
WORSE = 10.0  # factor by which a wrapper must raise a defect to be blamed: a sample of the same defect differs by less
KINDS = ("dynamics", "rewards", "terminations")


def require_symmetric_wrappers(env: gym.Env, spec: SymmetrySpec) -> None:
    """Refuse wrappers that spoil a symmetry; those that only map observations are a part of the spec.

    Gymnasium's wrappers that scale rewards by themselves, and so keep what is the same in the mirror, pass.

    Raises:
        ValueError: naming the wrapper that remembers earlier steps, draws at random, or makes mirror images of dynamics,
            rewards or terminations differ more than they do inside it.
    """
    acting = [layer for layer in step_wrappers(env) if type(layer) not in _rewards_alone()]
    if not acting or spec.qpos is None or spec.qvel is None:
        return
    remedy = "take it off, or pass spec= to train with it all the same"
    before = capture_state(env.unwrapped)
    try:
        with quiet_mujoco():
            inside = _defects(Simulator(env.unwrapped), spec)
            for layer in reversed(acting):
                name = type(layer).__name__
                if layer.action_space.shape != (spec.action.dim,):
                    raise ValueError(f"{spec.env_id}: its wrapper {name} changes the shape of actions; {remedy}")
                simulator = Simulator(layer)
                try:
                    simulator.require_memoryless()
                except ValueError as error:
                    raise ValueError(f"{error}, or pass spec= to train with it all the same") from None
                defects = _defects(simulator, spec)
                for key, value in defects.items():
                    if value > max(EXACT_BELOW, WORSE * inside[key]):
                        raise ValueError(
                            f"{spec.env_id}: its wrapper {name} spoils the symmetry {key[0]}, whose {key[1]} then differ from "
                            f"their mirror images (by {value:.2g}); {remedy}"
                        )
                inside = defects
    finally:
        restore_state(env.unwrapped, before)


def _rewards_alone() -> tuple[type, ...]:
    wrappers = gym.wrappers
    return wrappers.NormalizeReward, wrappers.TransformReward, wrappers.ClipReward


def _defects(simulator: Simulator, spec: SymmetrySpec) -> dict[tuple[str, str], float]:
    """The 95th percentile of each generator's relative defects, of states, rewards and terminations."""
    evidence = SimulatedSteps.visit(simulator, STATES, np.random.default_rng(0))
    return {
        (name, kind): float(np.quantile(values, 0.95)) if len(values) else 0.0
        for k, name in enumerate(spec.generator_names)
        for kind, values in zip(KINDS, _values(evidence, Elements.of(spec, k, np.random.default_rng(0))), strict=True)
    }


def _values(evidence: SimulatedSteps, elements: Elements) -> Iterator[np.ndarray]:
    s, m = evidence.outcome, evidence.images(elements)
    state = Comparison.of(elements, "qpos", s, m)
    for key in evidence.state_keys[1:]:
        state = state.beside(Comparison.of(elements, key, s, m))
    judged = faults(s, m) == ""
    yield state.relative
    yield (np.abs(m.reward - s.reward) / (np.std(s.reward[judged]) or 1.0))[judged]
    yield (m.terminated != s.terminated)[judged].astype(float)
