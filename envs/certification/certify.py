r"""Proof of a symmetry in the simulator: steps from states and from their mirror images.

For states s that random actions reach and random actions a, the defect of a group element g is

.. math:: |f(g s, g a) - g f(s, a)| \,/\, |f(s, a) - s|,

with f one step of the real environment, and differences taken between features, in which a quaternion's sign and a full
turn of an angle do not count. The observation leaves out positions and clips velocities, so the mirrored state is built
from the spec's action on the simulator's positions, velocities and activations; controls and the solver's warm start are
mirrored with them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import gymnasium as gym
import mujoco
import numpy as np
from gymnasium.envs.mujoco import MujocoEnv

from rppdyn.envs.catalogue import symmetry_specs
from rppdyn.envs.certification.certificate import Certificate, GeneratorReport
from rppdyn.envs.certification.elements import Elements
from rppdyn.envs.certification.evidence import Tick
from rppdyn.envs.certification.examination import Examination
from rppdyn.envs.certification.store import environment_digest, model_digest, spec_digest
from rppdyn.envs.derivation import derive
from rppdyn.envs.making import is_model_file, load_model, stock_env
from rppdyn.envs.model_symmetry import ModelSymmetry
from rppdyn.envs.simulator import BareSimulator, ObservedSimulator, Simulator, quiet_mujoco, tight_solver
from rppdyn.envs.spec import SymmetrySpec
from rppdyn.envs.state import capture_state, restore_state
from rppdyn.runs.progress import Progress

__all__ = ["SOLVERS", "certify", "opened"]

SOLVERS = ("stock", "tight")
BAR_AFTER = 3.0  # seconds; shorter work shows no bar


def certify(
    env: str | Path | gym.Env | mujoco.MjModel,
    spec: SymmetrySpec | None = None,
    *,
    n_states: int = 400,
    n_resets: int = 2000,
    seed: int = 0,
    solver: str = "stock",
    progress: bool = False,
) -> Certificate:
    """Step the real simulator from states and from their mirror images, and report what differs.

    Args:
        env: an environment's id; an environment, which is stepped through its wrappers and left in the state it was in; an
            `mujoco.MjModel`; or the path of an MJCF or URDF file. Models have neither observation nor reward, termination or
            reset of their own. An environment without a MuJoCo model needs `simulator_state()`, whose entry "state" is the
            observation, `restore_simulator_state(data)` and `symmetry_spec(symmetry)`.
        spec: the symmetry to test. If left out, the known one of one of Gymnasium's tasks; for another environment or model
            the default one, and in `Certificate.others` every other symmetry that is derived, exact or approximate.
        n_states: states to compare from.
        n_resets: resets by which the reset distribution is judged; 2000 resolve a shift by a sixth of its width.
        seed: of the rollouts, the actions, the resets and the elements of continuous groups.
        solver: "stock" leaves the model's; "tight" solves contact forces to rounding, which tells a solver's tolerance
            from a broken symmetry.
        progress: whether to draw a bar, once the work takes longer than a few seconds.
    Returns:
        defects of dynamics, observation, reward, termination and reset distribution for each generator.
    Raises:
        ValueError: no symmetry is found, the spec is for another observation, action or model, it has no action on qpos and
            qvel, an unreadable file, a wrapper that remembers earlier steps or draws at random, or a simulation so unstable
            that too few steps are left to judge.
    """
    if n_states < 20:
        raise ValueError(f"n_states={n_states} is too few for a 95th percentile; use at least 20")
    if n_resets < 20:
        raise ValueError(f"n_resets={n_resets} is too few to compare distributions; use at least 20")
    if solver not in SOLVERS:
        raise ValueError(f"solver={solver!r} is unknown; use {' or '.join(map(repr, SOLVERS))}")
    specs, refused = ([spec], []) if spec is not None else symmetry_specs(env)
    with opened(env) as simulator:
        for one in specs:
            check(one, simulator)
        if simulator.is_task:
            simulator.require_memoryless()
        observed = isinstance(simulator, ObservedSimulator)
        digest = environment_digest(simulator.env) if observed else model_digest(simulator.model)
        with ExitStack() as stack:
            if solver == "tight" and not observed:
                stack.enter_context(tight_solver(simulator.model))
            total = Examination.steps(n_states, sum(len(one.generator_names) for one in specs))
            label = f"certify {specs[0].env_id}"
            bar = stack.enter_context(Progress(total, description=label, enabled=progress, delay=BAR_AFTER))
            tick = _ticker(bar)
            examination = Examination.of(simulator, n_states, n_resets, seed, tick)
            certificates = []
            for one in specs:
                try:
                    reports = _reports(examination, one, tick)
                except ValueError as error:
                    refused.append(str(error))
                    continue
                certificates.append(
                    Certificate(
                        env_id=one.env_id,
                        model_digest=digest,
                        spec_digest=spec_digest(one),
                        n_states=n_states,
                        seed=seed,
                        solver=solver,
                        mujoco=mujoco.__version__,
                        generators=reports,
                        wrappers=simulator.wrappers,
                    )
                )
    if not certificates:
        raise ValueError(refused[0])
    return replace(certificates[0], others=tuple(certificates[1:]), refused=tuple(refused))


def _reports(examination: Examination, spec: SymmetrySpec, tick: Tick) -> tuple[GeneratorReport, ...]:
    """A report on each generator, with what the model says of it."""
    simulator = examination.evidence.simulator
    deviations: list[tuple[str, ...] | None] = [None] * len(spec.generator_names)
    if not isinstance(simulator, ObservedSimulator):
        deviations = _deviations(simulator.model, spec)
    elements = [Elements.of(spec, k, np.random.default_rng((examination.seed, k))) for k in range(len(deviations))]
    return tuple(
        replace(examination.report(spec, k, elements[k], tick), deviations=found) for k, found in enumerate(deviations)
    )


def _deviations(model: mujoco.MjModel, spec: SymmetrySpec) -> list[tuple[str, ...] | None]:
    """Deviations of each generator, from the derived symmetry that acts alike; None where none does."""
    try:
        derived = derive(model).symmetries
    except ValueError:
        derived = ()
    pairs = []
    for kind in ("discrete_generators", "lie_algebra"):
        pairs += list(zip(getattr(spec.qvel, kind), getattr(spec.action, kind), strict=True))
    n_discrete = len(spec.group.discrete_generators)

    def acts_alike(s: ModelSymmetry, k: int) -> bool:
        return s.is_continuous == (k >= n_discrete) and all(
            np.shape(own) == theirs.shape and np.allclose(own, theirs)
            for own, theirs in zip(pairs[k], (s.dofs, s.controls), strict=True)
        )

    return [next((tuple(map(str, s.deviations)) for s in derived if acts_alike(s, k)), None) for k in range(len(pairs))]


@contextmanager
def opened(env: str | Path | gym.Env | mujoco.MjModel) -> Iterator[Simulator]:
    """A simulator of an environment or model: made and closed for an id, put back as it was for an instance.

    Raises:
        ValueError: an unknown environment, an unreadable file, or neither environment nor model.
    """
    with quiet_mujoco():
        if isinstance(env, Path) or (isinstance(env, str) and is_model_file(env)):
            yield BareSimulator(load_model(env), Path(env).stem)
        elif isinstance(env, mujoco.MjModel):
            yield BareSimulator(env)
        elif isinstance(env, str):
            made = stock_env(env, disable_env_checker=True)
            try:
                yield _simulator(made)
            finally:
                made.close()
        elif hasattr(env, "unwrapped"):
            simulator = _simulator(env)
            kept = capture_state(env.unwrapped)
            try:
                yield simulator
            finally:
                restore_state(env.unwrapped, kept)
        else:
            raise ValueError(
                f"{type(env).__name__} is no environment id, environment, model or model file; pass one of these"
            )


def _simulator(env: gym.Env) -> Simulator:
    own_state = not isinstance(env.unwrapped, MujocoEnv) and hasattr(env.unwrapped, "simulator_state")
    return ObservedSimulator(env) if own_state else Simulator(env)


def check(spec: SymmetrySpec, simulator: Simulator) -> None:
    """Check that a spec has the sizes of a simulator.

    Raises:
        ValueError: it lacks the action on the state, or has another number of entries.
    """
    lacking = [key for key in simulator.state_keys if getattr(spec, key) is None]
    if lacking:
        what = "act, the actuators' activations" if lacking == ["act"] else "qpos and qvel"
        raise ValueError(f"{spec.env_id}: the spec has no action on {what}; certify needs it (see mirror_spec)")
    through = f" through {', '.join(simulator.wrappers)}" if simulator.wrappers else ""
    for key, shape in simulator.sizes.items():
        if shape != (getattr(spec, key).dim,):
            raise ValueError(
                f"the spec of {spec.env_id} has {getattr(spec, key).dim} entries of {key}, the environment {shape}{through}; "
                "certify it with the environment it was written for"
            )


def _ticker(bar: Progress) -> Tick:
    done = 0

    def tick(n: int) -> None:
        nonlocal done
        done += n
        bar.update(done)

    return tick
