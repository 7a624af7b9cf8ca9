"""The double spring pendulum, in still air or in wind: energy, equations of motion, true trajectories, and datasets.

A dataset has chunks of trajectories for training and whole trajectories for rollouts; it is made once and cached.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cached_property, partial
from itertools import pairwise
from numbers import Real
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Float
from safetensors import SafetensorError
from torch import Tensor

from rppdyn.errors import UserError
from rppdyn.groups import Group, O2eR3, check_acts_on
from rppdyn.reps import Rep, V
from rppdyn.runs.files import ArrayCache, decode, encode, write_bytes

MAX_STEP = 0.025
"""Longest step of the integrator, s."""

ENERGY_TOLERANCE = 1e-13
"""Largest relative change of the energy in one step; above it the step is taken as two halves."""

MAX_HALVINGS = 12

MIN_SQUARED_LENGTH = 1e-300
"""Added to the squared length of a spring whose length at rest is 0, m^2, to avoid 0 / 0."""

_HALF = (
    0.13020248308889008, 0.56116298177510839, -0.38947496264484729, 0.15884190655515560,
    -0.39590389413323757, 0.18453964097831571, 0.25837438768632205, 0.29501172360931030,
)  # fmt: skip
KICKS = (*_HALF, 1 - 2 * sum(_HALF), *reversed(_HALF))
"""Lengths of the 17 leapfrog steps as shares of the whole."""

DRIFTS = tuple((a + b) / 2 for a, b in pairwise((0.0, *KICKS, 0.0)))
"""The drifts before, between and after the kicks: half of one leapfrog step and half of the next."""


def symplectic_step(
    force: Callable[[Tensor], Tensor],
    masses: Float[Tensor, "..."],
    x: Float[Tensor, "..."],
    p: Float[Tensor, "..."],
    h: float,
) -> tuple[Float[Tensor, "..."], Float[Tensor, "..."]]:
    """Coordinates and momenta after ``h`` seconds, for dx/dt = p / m, dp/dt = force(x); masses are broadcast to coordinates.

    17 leapfrog steps (drift, kick, drift), some of them backwards, composed symmetrically so that the error is of order
    8; 17 evaluations of the force. Time-reversible, and symplectic where the force has a potential.

    Source: Kahan & Li 1997; Hairer, Lubich & Wanner 2006, V.3.2, Eq. 3.11.
    """
    inverse = h / masses
    x = x + DRIFTS[0] * inverse * p
    for kick, drift in zip(KICKS, DRIFTS[1:], strict=True):
        p = p.add(force(x), alpha=kick * h)
        x = x.addcmul(inverse, p, value=drift)
    return x, p


@dataclass(frozen=True, kw_only=True)
class Pendulum:
    r"""Two point masses on two springs that hang, one below the other, from the origin, in a steady wind.

    .. math::
        H = \frac{|p_1|^2}{2 m_1} + \frac{|p_2|^2}{2 m_2}
          + \frac{k_1}{2} (|x_1| - l_1)^2 + \frac{k_2}{2} (|x_1 - x_2| - l_2)^2
          + g\,(m_1 \hat z^\top x_1 + m_2 \hat z^\top x_2) - \epsilon\, w^\top (x_1 + x_2)

    ======  =====================================  ===============================  ======  ==================
    index   name                                   drawn from                       unit    transforms
    ======  =====================================  ===============================  ======  ==================
    0-2     x_1, the upper mass's position         (0, 0, -1.5) + 0.2 N(0, 1)       m       vector of R^3
    3-5     x_2, the lower mass's position         (0, 0, -3) + 0.2 N(0, 1)         m       vector of R^3
    6-8     p_1, its momentum                      0.4 N(0, 1)                      kg m/s  vector of R^3
    9-11    p_2, its momentum                      0.4 N(0, 1)                      kg m/s  vector of R^3
    ======  =====================================  ===============================  ======  ==================

    Without wind the energy is invariant under rotations about the z axis and reflections in planes that hold it (O2eR3),
    and the angular momentum about z is conserved. Gravity singles out z, so SO(3) is no symmetry. In wind the rotations
    about z are broken in proportion to :math:`\epsilon`; the reflection in the plane of w and z remains. With equal masses
    the wind only tilts the axis: the energy is exactly invariant under rotations about the total force, which is
    :math:`\arctan(9.43 \epsilon)` from z. With unequal masses no axis is left. `rppdyn.equivariance.discover` finds both.

    Args:
        k1, k2: the springs' stiffness, N/m. The published code leaves out the second spring's factor 1/2, which is
            ``k2=2``; the text has ``k2=1``.
        l1, l2: the springs' lengths at rest, m.
        m1, m2: the masses, kg.
        g: the acceleration of gravity, m/s^2.
        wind: :math:`\epsilon`, the strength of the wind; 0.01 in the residual-pathway work.
        w: the force of a wind of strength 1 on each mass, N.
    Raises:
        ValueError: a mass that is not positive, a negative stiffness or length, a number that is not finite.
    Source: Finzi 2023, A.1.10 and A.2.3.1.
    """

    parts: ClassVar[Mapping[str, int]] = {"x_1": 3, "x_2": 3, "p_1": 3, "p_2": 3}
    """The named parts of a state, in order, and how many coordinates each has."""

    k1: int | float = 1.0
    k2: int | float = 1.0
    l1: int | float = 1.0
    l2: int | float = 1.0
    m1: int | float = 1.0
    m2: int | float = 1.0
    g: int | float = 1.0
    wind: int | float = 0.0
    w: Sequence[float] = (-8.0, -5.0, 0.0)

    def __post_init__(self):
        for field in fields(self):
            value = getattr(self, field.name)
            values = value if field.name == "w" else [value]
            if not all(isinstance(number, Real) and math.isfinite(number) for number in values):
                raise ValueError(f"{field.name}={value}: give a finite number")
            object.__setattr__(self, field.name, tuple(map(float, values)) if field.name == "w" else float(value))
        if len(self.w) != 3:
            raise ValueError(f"w={self.w}: give the wind's force as three numbers")
        for name in ("m1", "m2"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name}={getattr(self, name)}: give a mass above 0")
        for name in ("k1", "k2", "l1", "l2"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}={getattr(self, name)}: give 0 or more")

    def parameters(self) -> dict[str, float | list[float]]:
        """The parameters by name, as JSON holds them."""
        return asdict(self) | {"w": list(self.w)}

    def rep(self, group: Group | None = None) -> Rep:
        """Representation of a group on states ``(x_1, x_2, p_1, p_2)``: ``4 * V``, of O2eR3 unless another one is given.

        Momenta are covectors: of a group that is not orthogonal it is ``2 * V + 2 * V.T``.
        """
        group = O2eR3() if group is None else group
        check_acts_on(group, 3, "the pendulum", O2eR3())
        return 4 * V(group) if group.is_orthogonal else 2 * V(group) + 2 * V(group).T

    # -- energy and equations of motion -------------------------------------------------------------------------------

    def energy(self, z: Float[Tensor, "*batch 12"]) -> Float[Tensor, "*batch"]:
        """H, in J; differentiable."""
        return self._energy(z.movedim(-1, 0))

    def force(self, x: Float[Tensor, "*batch 6"]) -> Float[Tensor, "*batch 6"]:
        """Force on both masses at ``(x_1, x_2)``, in N: minus the gradient of the potential energy."""
        return self._force(x.movedim(-1, 0)).movedim(0, -1)

    def vector_field(self, z: Float[Tensor, "*batch 12"]) -> Float[Tensor, "*batch 12"]:
        """dz/dt = J grad H."""
        x, p = z.split(6, dim=-1)
        return torch.cat([p / self._constants(z, 1)["masses"], self.force(x)], dim=-1)

    def angular_momentum(self, z: Float[Tensor, "*batch 12"]) -> Float[Tensor, "*batch 3"]:
        """The sum of x_i x p_i, in kg m^2/s; its last component is conserved without wind."""
        x, p = z.unflatten(-1, (4, 3)).split(2, dim=-2)
        return torch.linalg.cross(x, p).sum(-2)

    # Inside, coordinates are the first axis and trajectories the last, so that each operation runs over whole rows.

    def _energy(self, z: Float[Tensor, "rows ..."]) -> Float[Tensor, "..."]:
        x, p = z.split(6)
        c = self._constants(z, z.ndim)
        stretch = _squares(_springs(x)).sqrt() - c["lengths"]
        potential = (c["stiffness"] / 2 * stretch.square()).sum(0) - (c["load"] * x).sum(0)
        return _kinetic(p, c) + potential

    def _force(
        self, x: Float[Tensor, "rows ..."], constants: dict[str, Tensor] | None = None
    ) -> Float[Tensor, "rows ..."]:
        c = self._constants(x, x.ndim) if constants is None else constants
        springs = _springs(x)
        squares = _squares(springs) + c["least"]
        pull = torch.addcmul(-c["stiffness"], c["stiffness_times_length"], squares.rsqrt())
        pulls = (springs.view(2, 3, *x.shape[1:]) * pull.unsqueeze(1)).view_as(springs)
        force = pulls + c["load"]
        force[:3] -= pulls[3:]
        return force

    @cached_property
    def _float64(self) -> dict[str, Tensor]:
        wind = [self.wind * component for component in self.w]
        numbers = {
            "masses": [self.m1] * 3 + [self.m2] * 3,  # one per coordinate
            "stiffness": [self.k1, self.k2],
            "lengths": [self.l1, self.l2],
            "least": [0.0 if length else MIN_SQUARED_LENGTH for length in (self.l1, self.l2)],
            "stiffness_times_length": [self.k1 * self.l1, self.k2 * self.l2],
            # the constant forces: wind and weight
            "load": [force for m in (self.m1, self.m2) for force in (wind[0], wind[1], wind[2] - self.g * m)],
        }
        return {name: torch.tensor(values, dtype=torch.float64) for name, values in numbers.items()}

    def _constants(self, like: Tensor, ndim: int) -> dict[str, Tensor]:
        """Numbers as columns of as many axes."""
        return {name: values.to(like).view(-1, *[1] * (ndim - 1)) for name, values in self._float64.items()}

    # -- trajectories -------------------------------------------------------------------------------------------------

    def initial_state(self, n: int, generator: torch.Generator | None = None) -> Float[Tensor, "n 12"]:
        """``n`` random states, as in the table above.

        Raises:
            ValueError: a negative number of them.
        """
        if n < 0:
            raise ValueError(f"{n} initial states; give 0 or more")
        z = torch.randn(n, 12, generator=generator, dtype=torch.float64)
        centre = z.new_tensor([0, 0, -1.5, 0, 0, -3, 0, 0, 0, 0, 0, 0])
        return centre + z * z.new_tensor([0.2] * 6 + [0.4] * 6)

    @torch.no_grad()
    def trajectories(self, z0: Float[Tensor, "*batch 12"], times: Float[Tensor, " T"]) -> Float[Tensor, "*batch T 12"]:
        """True states at given times, float64, ``z0`` at the first of them.

        A symmetric composition of leapfrog steps of order 8 with steps of at most 1/40 s. A step that changes a
        trajectory's energy by more than 1e-13 of its size is taken as two halves, and so on, for that trajectory alone:
        what stands beside it in a batch does not matter. After 30 s the error is below 1e-9 of the state, and typically
        1e-13 (the tests compare with an adaptive Runge-Kutta method).

        Args:
            times: increasing, s.
        Raises:
            ValueError: times that don't increase or are rounded to float32, a state that is not finite, or a spring that
                shrinks to a point, where its force has no direction.
        """
        if isinstance(times, Tensor) and times.is_floating_point() and times.dtype != torch.float64:
            raise ValueError(
                f"times are {times.dtype}, whose rounding moves the states by far more than their error: give float64"
            )
        times = torch.as_tensor(times, dtype=torch.float64)
        if times.ndim != 1 or not len(times) or not bool((times.diff() > 0).all()):
            raise ValueError(f"times of shape {tuple(times.shape)} must be a list of increasing numbers")
        z0 = z0.to(torch.float64)
        if not torch.isfinite(z0).all():
            raise ValueError("z0 holds a number that is not finite")
        z = z0.reshape(-1, 12).mT.contiguous()
        states, energy = [z], self._energy(z)
        for interval in times.diff().tolist():
            steps = math.ceil(interval / MAX_STEP * (1 - 1e-12))  # 0.2 s is 8 steps of 0.025 s, not 9
            for _ in range(steps):
                z, energy = self._step(z, energy, interval / steps)
            states.append(z)
        return torch.stack(states).permute(2, 0, 1).reshape(*z0.shape[:-1], len(states), 12)

    def _step(
        self, z: Float[Tensor, "12 n"], energy: Float[Tensor, " n"], h: float, halvings: int = 0
    ) -> tuple[Float[Tensor, "12 n"], Float[Tensor, " n"]]:
        """States and energies after ``h`` seconds: in one step, or in two halves if one step changes the energy too much."""
        c = self._constants(z, 2)
        x, p = symplectic_step(partial(self._force, constants=c), c["masses"], z[:6], z[6:], h)
        after = torch.cat([x, p])
        size = energy.abs() + _kinetic(p, c) + (c["load"] * x).abs().sum(0)  # of the terms that cancel in H
        new = self._energy(after)
        poor = ~((new - energy).abs() <= ENERGY_TOLERANCE * size)  # nan is poor, too
        if poor.any():
            if halvings == MAX_HALVINGS:
                raise ValueError(
                    f"{int(poor.sum())} of {len(poor)} trajectories of {self} don't keep their energy, with steps of {h:.1e} "
                    "s: start them where no spring shrinks to a point"
                )
            middle = self._step(z[:, poor], energy[poor], h / 2, halvings + 1)
            after[:, poor], new[poor] = self._step(*middle, h / 2, halvings + 1)
        return after, new


def _springs(x: Float[Tensor, "rows ..."]) -> Float[Tensor, "rows ..."]:
    """Each spring's vector, from its upper end to its lower."""
    return torch.cat([x[:3], x[3:] - x[:3]])


def _squares(springs: Float[Tensor, "rows ..."]) -> Float[Tensor, "springs ..."]:
    """Squares of the springs' lengths."""
    return springs.square().view(2, 3, *springs.shape[1:]).sum(1)


def _kinetic(p: Float[Tensor, "rows ..."], constants: dict[str, Tensor]) -> Float[Tensor, "..."]:
    return (p.square() / (2 * constants["masses"])).sum(0)


FORMAT_VERSION = 1
"""Version of the files and of how trajectories are drawn and integrated: another number, and everything is made again."""

SPLITS = ("train", "validation", "test")
ARRAYS = (*SPLITS, "rollouts")

TASK_CACHE = ArrayCache("tasks", entry="dataset")
"""The folder `tasks` in the user's cache folder."""


@dataclass(frozen=True, eq=False)
class TrajectoryData:
    """Trajectories of a pendulum, float64; states are ``(x_1, x_2, p_1, p_2)``, see :class:`Pendulum`.

    Each trajectory gives one chunk of a few time steps at a random time; those of the test set are also stored whole. Training,
    validation and test trajectories have separate seeds, so that the number of one kind does not change the others.

    Attributes:
        pendulum: the system.
        parameters: all that determines the data, by name: the pendulum's parameters, ``n_train``, ``n_validation``, ``n_test``,
            ``dt``, ``horizon``, ``chunk``, ``seed``.
        train, validation, test: chunks, initial state included.
        rollouts: whole trajectories of the test set, from time 0 to the horizon.
    """

    pendulum: Pendulum
    parameters: Mapping[str, Any]
    train: Float[Tensor, "n_train points 12"]
    validation: Float[Tensor, "n_validation points 12"]
    test: Float[Tensor, "n_test points 12"]
    rollouts: Float[Tensor, "n_test T 12"]

    @property
    def times(self) -> Float[Tensor, " T"]:
        """Times of the rollouts' states, s."""
        return _grid(self.parameters["dt"], self.rollouts.shape[1])

    @property
    def chunk_times(self) -> Float[Tensor, " points"]:
        """Times of a chunk's states since the first, s."""
        return _grid(self.parameters["dt"], self.train.shape[1])

    def save(self, path: str | Path) -> None:
        """Write the data to one file, for ``load_trajectories(file=path)``."""
        write_bytes(Path(path), encode(self._arrays(), self._metadata()))

    def _arrays(self) -> dict[str, np.ndarray]:
        return {name: getattr(self, name).numpy() for name in ARRAYS}

    def _metadata(self) -> dict[str, Any]:
        return {"format": FORMAT_VERSION, "parameters": dict(self.parameters)}


class OtherParametersError(UserError):
    """A file of trajectories was made with other parameters than the requested ones."""

    def __init__(self, path: Path, name: str, stored: Any, expected: Any) -> None:
        super().__init__(
            f"{path} was made with {name}={stored}, not {name}={expected}: make them the same, or leave the file out"
        )
        self.path, self.name, self.found, self.wanted = path, name, stored, expected


def load_trajectories(
    pendulum: Pendulum,
    n_train: int = 500,
    n_validation: int = 500,
    n_test: int = 500,
    dt: int | float = 0.2,
    horizon: int | float = 30.0,
    chunk: int = 5,
    seed: int = 0,
    file: str | Path | None = None,
    cache: bool = True,
) -> TrajectoryData:
    """Load the pendulum's trajectories with these parameters, or make them if they are not cached.

    The cache is the folder `tasks` in the user's cache folder, addressed by the parameters; a damaged entry is made again. 1500
    trajectories of 30 s take some seconds.

    Args:
        n_train, n_validation, n_test: trajectories of each kind.
        dt: time between two states, s.
        horizon: length of a trajectory, s; a multiple of dt.
        chunk: time steps in a chunk.
        file: a file of :meth:`TrajectoryData.save` with the same parameters, to be read instead.
        cache: whether to read and write the user's cache.
    Source: Finzi 2023, A.1.10: 500 each, five intervals of 0.2 s out of 30 s. The published code keeps four intervals,
        draws their start among the multiples of 1 s, integrates with a tolerance of 1e-4, and has no validation set.
    """
    parameters = pendulum.parameters() | dict(
        n_train=n_train, n_validation=n_validation, n_test=n_test, dt=float(dt), horizon=float(horizon), chunk=chunk,
        seed=seed,
    )  # fmt: skip
    _check(parameters)
    if file is not None:
        return _read_file(Path(file), pendulum, parameters)
    accuracy = [MAX_STEP, ENERGY_TOLERANCE, MAX_HALVINGS]
    content = json.dumps({"format": FORMAT_VERSION, "parameters": parameters, "solved": accuracy}, sort_keys=True)
    key = hashlib.sha256(content.encode()).hexdigest()
    if cache:
        cached = TASK_CACHE.read(key, lambda arrays, about: _parse(arrays, about, pendulum, parameters))
        if cached is not None:
            return cached
    data = _generate(pendulum, parameters)
    if cache:
        TASK_CACHE.write(key, data._arrays(), data._metadata(), name="the pendulum's dataset")
    return data


def _grid(dt: float, states: int) -> Tensor:
    return torch.arange(states, dtype=torch.float64) * dt


def _check(parameters: Mapping[str, Any]) -> None:
    dt, horizon, chunk = (parameters[name] for name in ("dt", "horizon", "chunk"))
    for name in ("n_train", "n_validation", "n_test", "seed"):
        if parameters[name] < 0:
            raise ValueError(f"{name}={parameters[name]}: give 0 or more")
    for name in ("dt", "horizon"):
        if not 0 < parameters[name] < float("inf"):
            raise ValueError(f"{name}={parameters[name]:g} s: give a time above 0")
    if dt > horizon:
        raise ValueError(f"dt={dt:g} s is longer than the horizon of {horizon:g} s; give a shorter one")
    if abs(_steps(parameters) * dt / horizon - 1) > 1e-9:
        raise ValueError(f"horizon={horizon:g} s is no multiple of dt={dt:g} s; make it one")
    if not 1 <= chunk <= _steps(parameters):
        raise ValueError(f"chunk={chunk} steps: give 1 to {_steps(parameters)}, the horizon's number of steps")


def _steps(parameters: Mapping[str, Any]) -> int:
    return round(parameters["horizon"] / parameters["dt"])


def _generate(pendulum: Pendulum, parameters: Mapping[str, Any]) -> TrajectoryData:
    """Integrate all trajectories in one batch; none depends on the others."""
    initial, starts = [], []
    for i, split in enumerate(SPLITS):
        seed = int(np.random.SeedSequence([parameters["seed"], i]).generate_state(1, np.uint64)[0])
        generator = torch.Generator().manual_seed(seed)
        n = parameters[f"n_{split}"]
        initial.append(pendulum.initial_state(n, generator))
        starts.append(torch.randint(_steps(parameters) - parameters["chunk"] + 1, (n,), generator=generator))
    z = pendulum.trajectories(torch.cat(initial), _grid(parameters["dt"], _steps(parameters) + 1))
    index = torch.cat(starts)[:, None] + torch.arange(parameters["chunk"] + 1)
    chunks = torch.take_along_dim(z, index[..., None], dim=1).split([len(part) for part in initial])
    train, validation, test = (part.clone() for part in chunks)
    rollouts = z[len(z) - parameters["n_test"] :].clone()
    return TrajectoryData(pendulum, parameters, train, validation, test, rollouts)


def _parse(
    arrays: Mapping[str, np.ndarray], about: Mapping[str, Any], pendulum: Pendulum, parameters: Mapping[str, Any]
) -> TrajectoryData:
    """Check that arrays agree with the parameters, and return them as data.

    Raises:
        ValueError, KeyError: they do not agree, or something is missing.
    """
    if about["format"] != FORMAT_VERSION:
        raise ValueError(f"it has format {about['format']}, and this version reads {FORMAT_VERSION}")
    if about["parameters"] != dict(parameters):
        raise ValueError("it was made with other parameters")
    states = dict.fromkeys(SPLITS, parameters["chunk"] + 1) | {"rollouts": _steps(parameters) + 1}
    for name in ARRAYS:
        n = parameters["n_test" if name == "rollouts" else f"n_{name}"]
        if arrays[name].shape != (n, states[name], 12) or arrays[name].dtype != np.float64:
            raise ValueError(f"its {name} are {arrays[name].dtype} of shape {arrays[name].shape}")
        if not np.isfinite(arrays[name]).all():
            raise ValueError(f"its {name} hold values that are not finite")
    return TrajectoryData(pendulum, parameters, *(torch.from_numpy(arrays[name]) for name in ARRAYS))


def _read_file(path: Path, pendulum: Pendulum, parameters: Mapping[str, Any]) -> TrajectoryData:
    remedy = "give a file that TrajectoryData.save wrote"
    try:
        arrays, about = decode(path.read_bytes())
        stored = dict(about["parameters"])
    except OSError as e:
        raise ValueError(f"{path} cannot be read ({e.strerror}); {remedy}") from e
    except (ValueError, KeyError, TypeError, SafetensorError) as e:
        raise ValueError(f"{path} holds no trajectories ({e}); {remedy}") from e
    for name, expected in parameters.items():
        if (value := stored.get(name)) != expected:
            raise OtherParametersError(path, name, value, expected)
    try:
        return _parse(arrays, about, pendulum, parameters)
    except (ValueError, KeyError) as e:
        raise ValueError(f"{path} holds no such trajectories ({e}); {remedy}") from e
