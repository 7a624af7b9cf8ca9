"""The double spring pendulum: its energy and symmetries, its true trajectories, and how they are kept."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from registry import generator
from scipy.integrate import solve_ivp

from rppdyn.equivariance import equivariance_error, lie_derivative
from rppdyn.groups import O13, SL, SO, DkeR3, O2eR3
from rppdyn.reps import Scalar, V
from rppdyn.runs import files
from rppdyn.tasks import TASK_CACHE, Pendulum, _pendulum, load_trajectories
from rppdyn.tasks._pendulum import symplectic_step

TIMES = torch.arange(151, dtype=torch.float64) * 0.2
UNEVEN = Pendulum(k1=1.5, k2=2.0, l1=0.8, l2=1.2, m1=1.3, m2=0.7, g=0.9, wind=0.1)


def norm(v):
    return torch.linalg.vector_norm(v, dim=-1)


# -- energy and equations of motion -----------------------------------------------------------------------------------


def test_energy_is_the_formula():
    """Written out once more, and at rest: two springs of stiffness 1 stretched by the weights below them."""
    P, z = UNEVEN, UNEVEN.initial_state(20, generator())
    x1, x2, p1, p2 = z.unflatten(-1, (4, 3)).unbind(-2)
    w = torch.tensor([-8.0, -5.0, 0.0]).double()
    expected = (
        norm(p1) ** 2 / (2 * 1.3) + norm(p2) ** 2 / (2 * 0.7)
        + 0.75 * (norm(x1) - 0.8) ** 2 + 1.0 * (norm(x1 - x2) - 1.2) ** 2
        + 1.3 * 0.9 * x1[:, 2] + 0.7 * 0.9 * x2[:, 2] - 0.1 * (x1 + x2) @ w
    )  # fmt: skip
    assert torch.allclose(P.energy(z), expected, rtol=1e-14)

    rest = torch.zeros(12, dtype=torch.float64)
    rest[2], rest[5] = -3.0, -5.0
    assert torch.equal(Pendulum().vector_field(rest), torch.zeros_like(rest))
    assert float(Pendulum().energy(rest)) == 2 + 0.5 - 3 - 5


def test_vector_field_is_hamiltons():
    z = UNEVEN.initial_state(50, generator()).requires_grad_()
    (gradient,) = torch.autograd.grad(UNEVEN.energy(z).sum(), z)
    q, p = gradient.split(6, dim=-1)
    assert torch.allclose(UNEVEN.vector_field(z), torch.cat([p, -q], dim=-1), rtol=1e-13, atol=1e-14)
    assert torch.autograd.gradcheck(UNEVEN.energy, (z[:3].detach().requires_grad_(),))
    assert UNEVEN.energy(z.float()).dtype == torch.float32


def test_symmetry_of_the_vector_field():
    P = Pendulum(k2=2.0)
    for group in (O2eR3(), DkeR3(6)):
        rep, z = P.rep(group), P.initial_state(100, generator())
        assert rep.dim == 12 and rep.G == group
        assert float(equivariance_error(P.vector_field, rep, rep, z).per_input.max()) < 1e-14
        assert equivariance_error(lambda z: P.energy(z)[:, None], rep, Scalar(group), z).mean < 1e-14


def test_what_breaks_the_symmetry():
    """Negative controls: gravity against SO(3), and wind against the rotations, in proportion to its strength."""
    P = Pendulum()
    z = P.initial_state(100, generator())
    assert equivariance_error(P.vector_field, P.rep(SO(3)), P.rep(SO(3)), z).mean > 0.1
    rep, errors = P.rep(), []
    assert rep.G == O2eR3()
    for wind in (0.01, 0.02, 0.04):
        derivative = lie_derivative(Pendulum(wind=wind).vector_field, rep, rep, z)
        errors.append(float(norm(derivative).mean()))
    assert errors[0] > 1e-2 and np.allclose(np.array(errors) / errors[0], [1, 2, 4], rtol=1e-6)
    # what the wind's derivative along a rotation is: its force, turned by a right angle, on both masses
    assert errors[0] == pytest.approx(0.01 * 2**0.5 * (64 + 25) ** 0.5, rel=1e-10)


def test_reflection_in_the_plane_of_the_wind_remains():
    P = Pendulum(wind=0.3)
    w = torch.tensor([-8.0, -5.0, 0.0]).double()
    normal = torch.tensor([5.0, -8.0, 0.0]).double() / norm(w)
    mirror = torch.eye(3).double() - 2 * torch.outer(normal, normal)
    act = lambda z: (z.unflatten(-1, (4, 3)) @ mirror).flatten(-2)  # noqa: E731
    z = P.initial_state(100, generator())
    assert torch.allclose(P.vector_field(act(z)), act(P.vector_field(z)), rtol=1e-13, atol=1e-14)


# -- trajectories -----------------------------------------------------------------------------------------------------


def test_momenta_are_covectors():
    """Under SL(3), which is not orthogonal, a field is equivariant whose Hamiltonian is invariant: x_1 . p_1 and x_2 . p_2."""
    rep = Pendulum().rep(SL(3))
    assert rep == 2 * V(SL(3)) + 2 * V(SL(3)).T and Pendulum().rep(SO(3)) == 4 * V(SO(3))
    z = torch.randn(50, 12, generator=generator(), dtype=torch.float64)
    signs = torch.tensor([1.0] * 6 + [-1.0] * 6, dtype=torch.float64)
    assert equivariance_error(lambda z: signs * z, rep, rep, z).mean < 1e-12
    moment = lambda z: torch.cat([z[:, 6:], -z[:, :6]], -1)  # noqa: E731  of |z|^2 / 2, which SL(3) changes
    assert equivariance_error(moment, rep, rep, z).mean > 0.1


def test_initial_states_are_those_of_the_table():
    z = Pendulum().initial_state(20_000, generator())
    centre = torch.tensor([0, 0, -1.5, 0, 0, -3, 0, 0, 0, 0, 0, 0]).double()
    assert (z.mean(0) - centre).abs().max() < 0.01
    assert torch.allclose(z.std(0), torch.tensor([0.2] * 6 + [0.4] * 6).double(), rtol=0.03)
    assert torch.equal(z, Pendulum().initial_state(20_000, generator()))


GALE = Pendulum(k2=2.0, wind=3.0)
"""Springs of 30 m: terms of H cancel that are a hundred times as large as it is."""


@pytest.mark.parametrize("pendulum", [UNEVEN, GALE], ids=["uneven", "gale"])
@pytest.mark.unchecked
def test_trajectories_are_true(pendulum):
    """Against an adaptive Runge-Kutta method at its tightest, for states drawn at random and those that come nearest to
    shrinking a spring to a point, where the force turns most quickly."""
    z0, times = pendulum.initial_state(60, generator(1)), TIMES[:101]
    z = pendulum.trajectories(z0, times)
    assert torch.equal(z[:, 0], z0) and z.shape == (60, 101, 12)
    chosen = [0, 1, *norm(z[..., :3] - z[..., 3:6]).amin(1).argsort()[:2].tolist()]
    field = lambda t, y: pendulum.vector_field(torch.from_numpy(y).reshape(4, 12)).flatten().numpy()  # noqa: E731
    solution = solve_ivp(
        field, (0, float(times[-1])), z0[chosen].flatten().numpy(), method="DOP853", rtol=1e-13, atol=1e-14
    )
    truth = torch.from_numpy(solution.y[:, -1]).reshape(4, 12)
    assert (norm(z[chosen, -1] - truth) / norm(truth)).max() < 1e-9
    energy = pendulum.energy(z)
    size = energy.abs().amax(1) + z[..., 6:].square().sum(-1).amax(1)
    assert ((energy - energy[:, :1]).abs().amax(1) / size).max() < 1e-10


@pytest.mark.unchecked
def test_a_trajectory_does_not_depend_on_its_neighbours_nor_on_other_times():
    P = Pendulum(k2=2.0)
    z0 = P.initial_state(12, generator(2))
    z = P.trajectories(z0, TIMES[:51])
    assert torch.allclose(P.trajectories(z0[7:8], TIMES[:51])[0], z[7], rtol=1e-11, atol=1e-11)
    assert torch.allclose(
        P.trajectories(z0, torch.tensor([0.0, 3.3, 10.0]).double())[:, 2], z[:, 50], rtol=1e-9, atol=1e-9
    )


@pytest.mark.unchecked
def test_angular_momentum_about_z_is_conserved_without_wind_only():
    z0 = Pendulum().initial_state(20, generator(3))
    momentum = Pendulum().angular_momentum(z0)
    x, p = z0.unflatten(-1, (4, 3)).split(2, dim=-2)
    expected = x[..., 0] * p[..., 1] - x[..., 1] * p[..., 0]
    assert torch.allclose(momentum[:, 2], expected.sum(-1), rtol=1e-13)
    drift = lambda P: (P.angular_momentum(P.trajectories(z0, TIMES[:26])) - momentum[:, None])[..., 2].abs().max()  # noqa: E731
    assert drift(Pendulum()) < 1e-12 and drift(Pendulum(wind=0.01)) > 0.1


def test_the_integrator_has_order_8_and_runs_backwards():
    """On a Kepler orbit of eccentricity 0.3 the error falls by 2^8 when the step is halved."""
    force = lambda x: -x / norm(x)[..., None] ** 3  # noqa: E731
    x0, p0 = torch.tensor([0.7, 0.0]).double(), torch.tensor([0.0, (1.3 / 0.7) ** 0.5]).double()
    mass = torch.ones(2, dtype=torch.float64)

    def end(steps):
        x, p = x0, p0
        for _ in range(steps):
            x, p = symplectic_step(force, mass, x, p, 5 / steps)
        return x

    errors = [float(norm(end(steps) - end(400)).max()) for steps in (20, 40, 80)]
    assert np.allclose(np.log2(np.array(errors[:-1]) / errors[1:]), 8, atol=0.7) and errors[-1] < 1e-8
    x, p = symplectic_step(force, mass, *symplectic_step(force, mass, x0, p0, 0.3), -0.3)
    assert torch.allclose(x, x0, atol=1e-14) and torch.allclose(p, p0, atol=1e-14)


def test_a_spring_that_shrinks_to_a_point_is_refused():
    z0 = torch.zeros(1, 12, dtype=torch.float64)
    z0[0, 2], z0[0, 5], z0[0, 11] = -1.5, -3.0, 30.0  # straight up, through the upper mass
    with pytest.raises(ValueError, match=r"1 of 1 trajectories .* start them where no spring shrinks to a point"):
        Pendulum().trajectories(z0, TIMES)


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: Pendulum(m1=0.0), "m1=0.0: give a mass above 0"),
        (lambda: Pendulum(k2=-1.0), "k2=-1.0: give 0 or more"),
        (lambda: Pendulum(wind=float("nan")), "wind=nan: give a finite number"),
        (lambda: Pendulum(w=(1.0, 2.0)), "w=.* three numbers"),
        (lambda: Pendulum().rep(SO(2)), r"group=SO\(2\): acts on R\^2, and the pendulum's vectors are in R\^3"),
        (lambda: Pendulum().rep(O13()), r"group=O13: acts on R\^4"),
        (lambda: Pendulum().trajectories(torch.ones(1, 12), TIMES.float()), "times are torch.float32.*give float64"),
        (lambda: Pendulum().initial_state(-2), "-2 initial states; give 0 or more"),
        (lambda: Pendulum().trajectories(torch.ones(1, 12), torch.zeros(2).double()), "increasing numbers"),
        (lambda: Pendulum().trajectories(torch.full((1, 12), torch.nan), TIMES), "not finite"),
    ],
)
def test_bad_arguments(make, message):
    with pytest.raises(ValueError, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)


# -- datasets ---------------------------------------------------------------------------------------------------------

SMALL = dict(n_train=6, n_validation=4, n_test=5, horizon=2.0)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("RPPDYN_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache" / "tasks"


@pytest.fixture
def generated(monkeypatch):
    """How often data were made rather than read."""
    calls, original = [], _pendulum._generate
    monkeypatch.setattr(_pendulum, "_generate", lambda *args: calls.append(args) or original(*args))
    return calls


def same(a, b) -> bool:
    return all(torch.equal(getattr(a, name), getattr(b, name)) for name in _pendulum.ARRAYS)


def test_chunks_lie_on_true_trajectories():
    P = Pendulum(k2=2.0, wind=0.01)
    data = load_trajectories(P, **SMALL)
    assert data.train.shape == (6, 6, 12) and data.validation.shape == (4, 6, 12) and data.test.shape == (5, 6, 12)
    assert data.rollouts.shape == (5, 11, 12) and data.train.dtype == torch.float64 and data.pendulum == P
    assert torch.allclose(data.times, TIMES[:11]) and torch.equal(data.chunk_times, data.times[:6])
    for chunks in (data.train, data.validation, data.test):
        assert torch.allclose(P.trajectories(chunks[:, 0], data.chunk_times), chunks, rtol=1e-10, atol=1e-10)
    # each test chunk is a piece of its own rollout, and not all start at the same time
    starts = [
        next(i for i in range(6) if torch.equal(rollout[i : i + 6], chunk))
        for rollout, chunk in zip(data.rollouts, data.test, strict=True)
    ]
    assert len(set(starts)) > 1


def test_data_are_made_once_and_again_where_an_entry_has_others(folder, generated, caplog):
    first = load_trajectories(Pendulum(), **SMALL)
    (path,) = folder.iterdir()
    assert same(first, load_trajectories(Pendulum(), **SMALL)) and len(generated) == 1
    assert not same(first, load_trajectories(Pendulum(), **SMALL, seed=1))
    path.write_bytes(next(p for p in folder.iterdir() if p != path).read_bytes())
    assert same(first, load_trajectories(Pendulum(), **SMALL)) and len(generated) == 3 and "damaged" in caplog.text
    assert same(first, load_trajectories(Pendulum(), **SMALL)) and len(generated) == 3  # whole again
    assert same(first, load_trajectories(Pendulum(), **SMALL, cache=False)) and len(generated) == 4
    assert TASK_CACHE.clear() == 2 and TASK_CACHE.summary().count == 0


def test_kinds_are_independent():
    """More training trajectories leave the test set as it is, and no trajectory is in two sets."""
    few, many = load_trajectories(Pendulum(), **SMALL), load_trajectories(Pendulum(), **(SMALL | {"n_train": 9}))
    assert torch.equal(few.test, many.test) and torch.equal(few.validation, many.validation)
    whole = load_trajectories(Pendulum(), n_train=2, n_validation=0, n_test=0, horizon=1.0, chunk=5)
    assert whole.validation.shape == whole.rollouts.shape == (0, 6, 12) and whole.train.shape == (2, 6, 12)
    equal = load_trajectories(Pendulum(), 5, 5, 5, horizon=1.0)
    energies = Pendulum().energy(torch.stack([equal.train, equal.validation, equal.test])[:, :, 0]).flatten()
    assert len(set(energies.tolist())) == 15


def test_files(tmp_path, generated):
    file = tmp_path / "pendulum.safetensors"
    data = load_trajectories(Pendulum(k2=2.0), **SMALL, cache=False)
    data.save(file)
    assert same(load_trajectories(Pendulum(k2=2.0), **SMALL, file=file), data) and len(generated) == 1
    load_trajectories(Pendulum(k2=2), **SMALL, file=str(file))  # 2 is 2.0
    (tmp_path / "text").write_text("no trajectories at all")
    (tmp_path / "basis").write_bytes(files.encode({"q": np.eye(3)}, {"key": "of a basis"}))
    data.validation[0, 0, 0] = torch.nan
    data.save(tmp_path / "nan")
    for pendulum, changed, words in [
        (Pendulum(), {}, "pendulum.safetensors was made with k2=2.0, not k2=1.0"),
        (data.pendulum, dict(n_train=7), "made with n_train=6, not n_train=7"),
        (data.pendulum, dict(file=tmp_path / "absent"), r"absent cannot be read \(No such file"),
        (data.pendulum, dict(file=tmp_path / "text"), "text holds no trajectories"),
        (data.pendulum, dict(file=tmp_path / "basis"), "basis holds no trajectories"),
        (data.pendulum, dict(file=tmp_path / "nan"), "nan .*its validation hold values that are not finite"),
    ]:
        with pytest.raises(ValueError, match=words) as caught:
            load_trajectories(pendulum, **(SMALL | dict(file=file) | changed))
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "bad, message",
    [
        (dict(horizon=0), "horizon=0 s: give a time above 0"),
        (dict(dt=-0.2), "dt=-0.2 s: give a time above 0"),
        (dict(n_train=-1), "n_train=-1: give 0 or more"),
        (dict(seed=-1), "seed=-1: give 0 or more"),
        (dict(dt=3.0), "dt=3 s is longer than the horizon of 2 s"),
        (dict(dt=0.3), "horizon=2 s is no multiple of dt=0.3 s"),
        (dict(chunk=0), "chunk=0 steps: give 1 to 10"),
        (dict(chunk=11), "chunk=11 steps: give 1 to 10"),
    ],
)
def test_impossible_parameters(bad, message, generated):
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        load_trajectories(Pendulum(), **(SMALL | bad))
    assert "\n" not in str(caught.value) and not generated


def test_trajectories_keep_their_axes():
    P, times = Pendulum(), TIMES[:4]
    z0 = P.initial_state(4, generator()).view(2, 2, 12)
    found = P.trajectories(z0, times)
    assert found.shape == (2, 2, 4, 12) and torch.equal(found[..., 0, :], z0)
    assert torch.equal(found.flatten(0, 1), P.trajectories(z0.flatten(0, 1), times))
    torch.testing.assert_close(P.trajectories(z0[1, 0], times), found[1, 0], rtol=1e-13, atol=1e-13)


def test_springs_without_length_pull_to_a_point_and_nowhere_at_it():
    P = Pendulum(l1=0.0, l2=0.0)
    assert torch.equal(P.force(torch.zeros(1, 6).double()), P.force(torch.full((1, 6), 1e-300).double()))
    assert P.force(torch.zeros(1, 6).double()).isfinite().all()
    assert not Pendulum(l1=1.0).force(torch.zeros(1, 6).double()).isfinite().all()
