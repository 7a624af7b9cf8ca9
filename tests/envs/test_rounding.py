"""What is hashed: the same on every machine, and different for every two models that a certificate tells apart."""

from __future__ import annotations

from dataclasses import replace

import gymnasium as gym
import numpy as np
import pytest

from rppdyn.envs import symmetry_spec
from rppdyn.envs._spec import round_for_digest
from rppdyn.envs.certification._certificate import EXACT_BELOW, model_digest, spec_digest


def other_machine(values, sign: int) -> np.ndarray:
    """The values with rounding errors, ten times as large as they are, all up or all down."""
    values = np.asarray(values)
    return values + sign * 2e-15 * (np.abs(values) + np.abs(values).max(initial=0.0))


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("env_id", ["InvertedPendulum-v5", "Humanoid-v5", "Pusher-v5"])
def test_rounding_errors_leave_no_trace_in_a_digest(env_id, sign):
    model = gym.make(env_id).unwrapped.model
    before = model_digest(model)
    for owner in (model, model.opt):
        for name in dir(owner):
            value = getattr(owner, name, None)
            if isinstance(value, np.ndarray) and value.dtype == np.float64 and not name.startswith("_"):
                value[:] = other_machine(value, sign)
            elif isinstance(value, float):
                setattr(owner, name, float(other_machine(value, sign)))
    assert model_digest(model) == before

    def elsewhere(space):
        keys = ("discrete_generators", "lie_algebra")
        matrices = {key: tuple(other_machine(m, sign) for m in getattr(space, key)) for key in keys}
        return replace(space, origin=tuple(other_machine(space.origin, sign)), **matrices)

    spec = symmetry_spec(env_id)
    there = replace(spec, **{key: elsewhere(getattr(spec, key)) for key in ("obs", "action", "qpos", "qvel")})
    assert there != spec and there.digest == spec.digest and spec_digest(there) == spec_digest(spec)


def test_what_a_certificate_tells_apart_differs():
    spec, model = symmetry_spec("InvertedPendulum-v5"), gym.make("Humanoid-v5").unwrapped.model
    moved = replace(spec, obs=replace(spec.obs, origin=tuple(np.array(spec.obs.origin) * (1 + EXACT_BELOW))))
    assert moved.digest != spec.digest  # of a pole off the vertical
    before = model_digest(model)
    for name in ("body_mass", "body_inertia", "geom_friction", "jnt_stiffness", "actuator_gear", "dof_damping"):
        value = getattr(model, name)
        for i in map(tuple, np.argwhere(np.abs(value) > 1e-3 * np.abs(value).max())[[0, -1]]):
            kept, value[i] = value[i], value[i] * (1 + EXACT_BELOW)
            assert model_digest(model) != before, name
            value[i] = kept
    assert model_digest(model) == before


def test_zero_one_and_numbers_between():
    assert np.array_equal(round_for_digest([1 - 1e-16, 1 + 2e-16, -1 + 1e-16]), [1, 1, -1])
    assert np.array_equal(np.signbit(round_for_digest([1.0, 1e-17, -1e-17, -0.0])), [False] * 4)
    assert np.array_equal(round_for_digest([1.0, 6e-17, -3e-13]), [1, 0, 0])
    small = [1e-17, -3e-13]  # throughout: nothing cancelled
    assert np.allclose(round_for_digest(small), small, rtol=1e-9, atol=1e-24)
    assert round_for_digest([]).shape == (0,) and round_for_digest(0.002).shape == ()
    assert np.isinf(round_for_digest([np.inf, 1.0])[0])
    rng = np.random.default_rng(0)
    values = rng.normal(size=1000) * 10.0 ** rng.integers(-6, 3, 1000)
    error = np.abs(round_for_digest(values) - values)
    assert np.array_equal(round_for_digest(round_for_digest(values)), round_for_digest(values))
    assert (error <= 2.0**-31 * np.abs(values) + 2.0**-39 * np.abs(values).max()).all()
    assert (error > 1e-10 * np.abs(values)).any()
