"""Regression tasks with a known symmetry: inertia tensors, an invariant of O(5), electron-muon scattering."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from rppdyn.groups import Group, O, SO13p, check_acts_on
from rppdyn.reps import Rep, RepType, T


class RegressionTask(ABC):
    """Random inputs and a function of them to be learned, both float64.

    The types of inputs and targets become representations of a group: the task's own, a subgroup, or any other that acts on
    vectors of the same size (a misspecified symmetry).

    Args:
        group: group of the representations ``rep_in`` and ``rep_out``; None for the task's own.
    Raises:
        ValueError: the group acts on vectors of another size, or on complex ones.
    """

    name: str
    dimension: int
    """Dimension of the vectors that the group acts on."""
    type_in: RepType
    type_out: RepType
    parts_in: ClassVar[Mapping[str, int]]
    """The named parts of an input, in order, and how many coordinates each has."""
    parts_out: ClassVar[Mapping[str, int]]
    """The named parts of a target, and how many coordinates each has."""

    def __init__(self, group: Group | None = None):
        group = self.default_group() if group is None else group
        check_acts_on(group, self.dimension, self.name, self.default_group())
        self.rep_in: Rep = self.type_in(group)
        self.rep_out: Rep = self.type_out(group)

    @staticmethod
    @abstractmethod
    def default_group() -> Group:
        """The task's symmetry; for a modified task that of the unmodified one."""

    @property
    def group(self) -> Group:
        return self.rep_in.G

    @abstractmethod
    def inputs(self, n: int, generator: torch.Generator | None = None) -> Float[Tensor, "n dim_in"]:
        """``n`` random inputs."""

    @abstractmethod
    def target(self, x: Float[Tensor, "*batch dim_in"]) -> Float[Tensor, "*batch dim_out"]:
        """The true function."""

    def sample(
        self, n: int, generator: torch.Generator | None = None
    ) -> tuple[Float[Tensor, "n dim_in"], Float[Tensor, "n dim_out"]]:
        """``n`` random inputs and their targets.

        Raises:
            ValueError: a negative number of them.
        """
        if n < 0:
            raise ValueError(f"{self.name}: {n} samples; give 0 or more")
        x = self.inputs(n, generator)
        return x, self.target(x)

    def __repr__(self) -> str:
        return f"{self.name}: {self.rep_in} -> {self.rep_out}, {self.group}"


def _normal(*shape: int, generator: torch.Generator | None) -> Tensor:
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


class Inertia(RegressionTask):
    r"""The moment of inertia of five point masses; O(3).

    .. math:: I = \sum_i m_i (x_i^\top x_i\, 1 - x_i x_i^\top)

    ======  ============  =======================  =====================  =========
    input   name          drawn from               transforms             unit
    ======  ============  =======================  =====================  =========
    0-4     m_1 to m_5    softplus(N(0, 1))        scalar, T(0)           kg
    5-19    x_1 to x_5    N(0, 1) per coordinate   vector, T(1)           m
    ======  ============  =======================  =====================  =========

    ======  ============  ================================================  =========
    target  name          transforms                                        unit
    ======  ============  ================================================  =========
    0-8     I, row-major  matrix, T(2): :math:`I \to g I g^\top`            kg m^2
    ======  ============  ================================================  =========

    Any group of 3 x 3 matrices can be named in O(3)'s place: SO(3), or SL(3), whose maps don't keep
    :math:`x_i^\top x_i` (the misspecified symmetry of the residual-pathway work).

    Source: Finzi 2023, Sections 2.7.1 and A.1.10; text and code agree.
    """

    name = "inertia"
    dimension = 3
    type_in = 5 * T(0) + 5 * T(1)
    type_out = T(2)
    parts_in: ClassVar = {f"m_{i}": 1 for i in range(1, 6)} | {f"x_{i}": 3 for i in range(1, 6)}
    parts_out: ClassVar = {f"I_{row}{column}": 1 for row in "xyz" for column in "xyz"}

    @staticmethod
    def default_group() -> Group:
        return O(3)

    def inputs(self, n, generator=None):
        masses, positions = _normal(n, 20, generator=generator).split([5, 15], dim=-1)
        return torch.cat([F.softplus(masses), positions], dim=-1)

    def target(self, x):
        return self.modify(self.moment(x)).flatten(-2)

    @staticmethod
    def moment(x: Float[Tensor, "*batch 20"]) -> Float[Tensor, "*batch 3 3"]:
        """The moment of inertia, as a matrix."""
        m, r = x[..., :5], x[..., 5:].unflatten(-1, (5, 3))
        second = torch.einsum("...k,...ki,...kj->...ij", m, r, r)  # sum of m x x^T, whose trace is that of m x^T x
        trace = torch.einsum("...ii->...", second)[..., None, None]
        return trace * torch.eye(3, dtype=x.dtype, device=x.device) - second

    def modify(self, moment: Float[Tensor, "*batch 3 3"]) -> Float[Tensor, "*batch 3 3"]:
        """The target as a function of the moment of inertia, here the identity."""
        return moment


class _BrokenInertia(Inertia):
    """A moment of inertia with a term that singles out the z axis, times ``strength``."""

    def __init__(self, group: Group | None = None, strength: float = 0.3):
        super().__init__(group)
        if not math.isfinite(strength):
            raise ValueError(f"{self.name}: strength={strength}; give a number")
        self.strength = strength


class ModifiedInertia(_BrokenInertia):
    r"""The moment of inertia with a term that singles out the z axis, as the text has it; O(3) is approximate.

    .. math:: y = I + \epsilon\, I^2 \hat z \hat z^\top I, \qquad \epsilon = 0.3

    Inputs, targets and how they transform are those of :class:`Inertia`; the added term is equivariant only under
    rotations about z and reflections that keep z up to sign. It is cubic in the moment and outweighs it: a median of 11
    times its norm, between 1.2 and 69 times in nine samples of ten. The symmetry is far from exact.

    Source: Finzi 2023, A.2.3.1. The published code's term is another one, :class:`ModifiedInertiaCode`.
    """

    name = "modified_inertia"

    def modify(self, moment):
        return moment + self.strength * torch.einsum("...ij,...j,...k->...ik", moment, moment[..., 2], moment[..., 2])


class ModifiedInertiaCode(_BrokenInertia):
    r"""The moment of inertia with a term that singles out the z axis, as the published code has it; O(3) is approximate.

    .. math:: y = I + \epsilon\, I \hat z \hat z^\top, \qquad \epsilon = 0.3

    Inputs, targets and how they transform are those of :class:`Inertia`. The added term is linear in the moment and
    enlarges its third column by 0.3: a median of 0.18 of the moment's norm.

    Source: the code published with Finzi, Benton & Wilson 2021; the text has :class:`ModifiedInertia`.
    """

    name = "modified_inertia_code"

    def modify(self, moment):
        return moment * moment.new_tensor([1.0, 1.0, 1.0 + self.strength])


class O5Invariant(RegressionTask):
    r"""An invariant of two vectors of R^5; O(5).

    .. math:: y = \sin|x_1| - \tfrac12 |x_2|^3 + \frac{x_1^\top x_2}{|x_1| |x_2|}

    ======  ==========  =======================  =============  =====
    index   name        drawn from               transforms     unit
    ======  ==========  =======================  =============  =====
    0-4     x_1         N(0, 1) per coordinate   vector, T(1)   1
    5-9     x_2         N(0, 1) per coordinate   vector, T(1)   1
    target  y                                    scalar, T(0)   1
    ======  ==========  =======================  =============  =====

    Source: Finzi 2023, A.1.10; text and code agree.
    """

    name = "o5_invariant"
    dimension = 5
    type_in = 2 * T(1)
    type_out = T(0)
    parts_in: ClassVar = {"x_1": 5, "x_2": 5}
    parts_out: ClassVar = {"y": 1}

    @staticmethod
    def default_group() -> Group:
        return O(5)

    def inputs(self, n, generator=None):
        return _normal(n, 10, generator=generator)

    def target(self, x):
        x1, x2 = x.unflatten(-1, (2, 5)).unbind(-2)
        r1, r2 = torch.linalg.vector_norm(x1, dim=-1), torch.linalg.vector_norm(x2, dim=-1)
        return (r1.sin() - r2**3 / 2 + (x1 * x2).sum(-1) / (r1 * r2))[..., None]


METRIC = (1.0, -1.0, -1.0, -1.0)
"""Diagonal of the Minkowski metric."""


class ElectronMuon(RegressionTask):
    r"""The matrix element of electron-muon scattering as a function of four momenta; the Lorentz group.

    .. math:: y = 4\, E^{\mu\nu} M_{\mu\nu},\qquad
        E^{\mu\nu} = p^{(\mu} \tilde p^{\nu)} - (p \cdot \tilde p - p \cdot p)\,\eta^{\mu\nu}

    and M the same of :math:`q, \tilde q` with both indices lowered by the metric :math:`\eta = \mathrm{diag}(1,-1,-1,-1)`,
    which is also the dot. :math:`a^{(\mu} b^{\nu)} = a^\mu b^\nu + a^\nu b^\mu`: with a half of that, E would not be the
    trace :math:`\tfrac14 \mathrm{tr}[(\gamma p + m)\gamma^\mu(\gamma\tilde p + m)\gamma^\nu]`, and would not conserve the
    current, :math:`(p - \tilde p)_\mu E^{\mu\nu} = 0` where :math:`p \cdot p = \tilde p \cdot \tilde p`. Contracted,

    .. math:: y = 8\,[(p \cdot q)(\tilde p \cdot \tilde q) + (p \cdot \tilde q)(\tilde p \cdot q)]
        - 8\, b\, p \cdot \tilde p - 8\, a\, q \cdot \tilde q + 16\, a b,\qquad
        a = p \cdot \tilde p - p \cdot p,\quad b = q \cdot \tilde q - q \cdot q

    ======  ===============================  =========================  ====================  =====
    index   name                             drawn from                 transforms            unit
    ======  ===============================  =========================  ====================  =====
    0-3     p, the electron before           N(0, 1/16) per coordinate  4-vector, T(1, 0)     GeV
    4-7     p~, the electron after           N(0, 1/16) per coordinate  4-vector, T(1, 0)     GeV
    8-11    q, the muon before               N(0, 1/16) per coordinate  4-vector, T(1, 0)     GeV
    12-15   q~, the muon after               N(0, 1/16) per coordinate  4-vector, T(1, 0)     GeV
    target  y                                                           scalar, T(0)          GeV^4
    ======  ===============================  =========================  ====================  =====

    The coordinates of a momentum are contravariant, (E, p_x, p_y, p_z); random ones are on no mass shell, so y is a
    polynomial to be learned and not a cross section. It is invariant under SO13p, SO13 and O13 alike.

    Source: Finzi 2023, Sections 2.7.1 and A.1.10. The published code leaves out the symmetrisation (it contracts
    :math:`p^\mu \tilde p^\nu`), which is invariant too but is not the matrix element.
    """

    name = "lorentz"
    dimension = 4
    type_in = 4 * T(1)
    type_out = T(0)
    parts_in: ClassVar = {"p": 4, "p~": 4, "q": 4, "q~": 4}
    parts_out: ClassVar = {"y": 1}

    @staticmethod
    def default_group() -> Group:
        return SO13p()

    def inputs(self, n, generator=None):
        return _normal(n, 16, generator=generator) / 4

    def target(self, x):
        momenta = x.unflatten(-1, (4, 4))
        dots = torch.einsum("...ai,...bi,i->...ab", momenta, momenta, x.new_tensor(METRIC))
        dot = lambda a, b: dots[..., a, b]  # noqa: E731
        p, p_out, q, q_out = range(4)
        a, b = dot(p, p_out) - dot(p, p), dot(q, q_out) - dot(q, q)
        exchange = dot(p, q) * dot(p_out, q_out) + dot(p, q_out) * dot(p_out, q)
        return (8 * (exchange - b * dot(p, p_out) - a * dot(q, q_out) + 2 * a * b))[..., None]


REGRESSION_TASKS: Mapping[str, type[RegressionTask]] = {
    task.name: task for task in (Inertia, ModifiedInertia, ModifiedInertiaCode, O5Invariant, ElectronMuon)
}
"""The regression tasks by name."""


def regression_task(name: str, group: Group | None = None, strength: float | None = None) -> RegressionTask:
    """A regression task by its name, with its own symmetry or another group.

    Args:
        strength: strength of the broken symmetry of a modified task; None for the published one.
    Raises:
        ValueError: there is no such task, the group does not act on its vectors, or the task has no strength.

    >>> regression_task("inertia").sample(1000, torch.Generator().manual_seed(0))[1].shape
    torch.Size([1000, 9])
    """
    if name not in REGRESSION_TASKS:
        raise ValueError(f"no regression task {name!r}; choose {', '.join(REGRESSION_TASKS)}")
    task = REGRESSION_TASKS[name]
    if strength is None:
        return task(group)
    if not issubclass(task, _BrokenInertia):
        raise ValueError(
            f"strength={strength:g}: nothing breaks the symmetry of {name}; leave it out, or choose modified_inertia_code"
        )
    return task(group, strength)
