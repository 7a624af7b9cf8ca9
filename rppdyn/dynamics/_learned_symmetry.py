"""Learned symmetries: of a Hamiltonian together with the system, by evidence, and of a network's axis, by gradients."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from rppdyn.nn._coefficients import ExactBuffers
from rppdyn.reps import Rep

NUM_STARTS = 24  # random directions; the one with the largest evidence is where learning starts
NUM_INVARIANCE_STATES = 200  # approximate number of states for the invariance of the energy: data and states near them
INVARIANCE_SPREAD = 0.3  # distance of those states from the data, in standard deviations of each coordinate
MAX_LOG_STRENGTH = 15.0  # the energy then changes by less than 1e-3 of its spread, and factorisations stay exact


@dataclass(frozen=True)
class SymmetricHamiltonian:
    """A Hamiltonian linear in features, with a generator under which it is approximately invariant.

    Attributes:
        generator: generator of the symmetry, ``(d, d)``, with the Frobenius norm of a plane rotation; None without a family.
        strength: prior precision of the energy's change along the generator; the weights' prior precision is near 1.
        noise: learned standard deviations of the noise in the rates of positions, and in the rates of momenta.
        log_evidence: log evidence of the data.
    """

    generator: Float[Tensor, "d d"] | None
    strength: float
    noise: tuple[float, float]
    log_evidence: float
    features: _EnergyFeatures
    weights: Float[Tensor, " features"]

    def vector_field(self, z: Float[Tensor, "*batch dim"]) -> Float[Tensor, "*batch dim"]:
        """J grad H."""
        return torch.einsum("...fi,f->...i", self.features.fields(z), self.weights)

    def defect(self, z: Float[Tensor, "n dim"], rep: Rep) -> float:
        """Change of the energy along the generator at given states, relative to its largest possible value; 0 if invariant.

        Args:
            rep: representation of the family with which the generator was learned.
        """
        assert self.generator is not None
        size = self.features.size
        slopes = size * torch.einsum("nfi,f->ni", self.features.gradients(z), self.weights)
        moves = z @ rep.drho(self.generator).to(z).mT / size
        along = (slopes * moves).sum(-1).square().sum()
        return float((along / (slopes.square().sum(-1) * moves.square().sum(-1)).sum()).sqrt())


class _EnergyFeatures:
    """Gradients of linear, quadratic and random Fourier functions of a state, in the data's unit of energy.

    Positions and momenta are in units of their spread. Results then do not depend on the choice of metres or millimetres, and
    rotations of space preserve the units.
    """

    def __init__(self, z: Tensor, rates: Tensor, count: int, scale: float, generator: torch.Generator):
        n = z.shape[1]
        positions, momenta = (half.std().expand(n // 2) for half in z.chunk(2, 1))
        self.centre, self.size = z.mean(0), torch.cat([positions, momenta])
        self.energy = rates[:, : n // 2].square().mean().sqrt() * momenta[0]
        self.frequencies = torch.randn(count, n, dtype=z.dtype, generator=generator) / scale
        self.phases = 2 * math.pi * torch.rand(count, dtype=z.dtype, generator=generator)
        self.rows, self.columns = torch.triu_indices(n, n)
        self.kinds = torch.cat([torch.full((k,), i) for i, k in enumerate((n, len(self.rows), count))])

    def gradients(self, z: Tensor) -> Tensor:
        """Gradients by the state, ``(..., features, dim)``."""
        u, eye = (z - self.centre) / self.size, torch.eye(z.shape[-1], dtype=z.dtype)
        quadratic = u[..., self.rows, None] * eye[self.columns] + u[..., self.columns, None] * eye[self.rows]
        sines = (u @ self.frequencies.mT + self.phases).sin()
        waves = -((2 / len(self.phases)) ** 0.5) * sines[..., None] * self.frequencies
        slopes = torch.cat([eye.expand(*u.shape[:-1], *eye.shape), quadratic / 2**0.5, waves], -2)
        return self.energy * slopes / self.size

    def fields(self, z: Tensor) -> Tensor:
        """J times the gradients: rates of positions and momenta, ``(..., features, dim)``."""
        positions, momenta = self.gradients(z).chunk(2, -1)
        return torch.cat([momenta, -positions], -1)


def learn_symmetry(
    z: Float[Tensor, "n dim"],
    rates: Float[Tensor, "..."],
    rep: Rep | None,
    *,
    generator: torch.Generator,
    fixed: Float[Tensor, " D"] | None = None,
    features: int = 300,
    scale: float = 4.0,
    steps: int = 100,
) -> SymmetricHamiltonian:
    r"""Learn H from noisy rates :math:`\dot z = J \nabla H(z)`, and the generator A under which it is invariant.

    :math:`H = w^T \phi(z)` has linear, quadratic and random Fourier features. The prior of the weights has the precision

    .. math:: \Lambda = \mathrm{diag}(\delta_k) + \delta_A K(A), \qquad
              w^T K(A)\, w = E\, |\nabla H(z) \cdot d\rho(A) z|^2,

    one :math:`\delta_k` for each kind of feature; A is a direction in the Lie algebra of the representation's group. A,
    all precisions and the noise maximise the evidence, which is exact, since the model is linear and Gaussian. An
    invariance that the data refute gets a small :math:`\delta_A`, so that the belief in it is learned as well.

    Args:
        z, rates: states ``(positions, momenta)`` and their rates of change, in double precision.
        rep: representation of the family on states, ``4 * V(SO(3))`` for two bodies in space; None for no symmetry.
        generator: random generator of features, states and starts.
        fixed: coefficients of a known A in the family's basis; None to learn A.
        features: number of Fourier features.
        scale: length scale of the Fourier features, in standard deviations of the states.
        steps: largest number of iterations of L-BFGS.
    Raises:
        ValueError: an odd number of coordinates, arrays that do not fit, fewer than two states, or a group without generators.
    """
    if z.ndim != 2 or z.shape != rates.shape or z.shape[1] % 2 or len(z) < 2:
        raise ValueError(
            f"z of shape {tuple(z.shape)} and rates of shape {tuple(rates.shape)}: give two or more states, positions and as "
            "many momenta, and a rate for each coordinate"
        )
    if rep is not None and rep.dim != z.shape[1]:
        raise ValueError(f"the states have {z.shape[1]} coordinates and {rep} acts on {rep.dim}")
    count = 0 if rep is None else len(rep.G.lie_algebra)
    if rep is not None and not count:
        raise ValueError(f"{rep.G} has no continuous generators: give another group, such as SO(3)")
    if fixed is not None and len(fixed) != count:
        raise ValueError(f"fixed has {len(fixed)} coefficients for {count} generators of the family: give one for each")
    z, rates = z.double(), rates.double()
    phi = _EnergyFeatures(z, rates, features, scale, generator)
    designs = [half.reshape(-1, len(phi.kinds)) for half in phi.fields(z).mT.chunk(2, 1)]
    invariance = None if rep is None else _invariance(phi, z, rep, generator)
    model = _SymmetryEvidence(designs, [half.flatten() for half in rates.chunk(2, 1)], phi.kinds, invariance)
    direction = _start(model, fixed, generator)
    parameters = [model.precisions, model.log_noise]
    if direction is not None:
        parameters += [model.log_strength, direction] if fixed is None else [model.log_strength]
    for parameter in parameters:
        parameter.requires_grad_()
    optimiser = torch.optim.LBFGS(parameters, max_iter=steps, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimiser.zero_grad()
        loss = -model(direction)[0]
        loss.backward()
        return loss

    optimiser.step(closure)
    with torch.no_grad():
        log_evidence, weights = model(direction)
        A = None
        if direction is not None and rep is not None:
            A = torch.einsum("i,iab->ab", direction, rep.G.lie_algebra)
            A = 2**0.5 * A / A.norm()
        strength = 0.0 if direction is None else float(model.log_strength.clamp(max=MAX_LOG_STRENGTH).exp())
        noise = tuple((model.log_noise / 2).exp().tolist())
    return SymmetricHamiltonian(A, strength, (noise[0], noise[1]), float(log_evidence), phi, weights)


def _invariance(phi: _EnergyFeatures, z: Tensor, rep: Rep, generator: torch.Generator) -> Tensor:
    """E D_i D_j^T for the changes D_i of the features along the family's directions, ``(D, D, features, features)``."""
    times = max(1, NUM_INVARIANCE_STATES // len(z))
    near = [
        z + INVARIANCE_SPREAD * z.std(0) * torch.randn(z.shape, dtype=z.dtype, generator=generator)
        for _ in range(times)
    ]
    cloud = torch.cat([z, *near])
    slopes = phi.gradients(cloud)
    changes = torch.stack([torch.einsum("nfi,ni->nf", slopes, cloud @ A.mT) for A in rep.lie_generators.to(z)])
    return torch.einsum("anf,bng->abfg", changes, changes) / (len(cloud) * phi.energy.square())


class _SymmetryEvidence:
    """The log evidence of a linear-Gaussian model with a prior that favours invariance along one direction.

    Args:
        designs, targets: designs and targets of each kind of observation; each kind has its own noise variance.
    """

    def __init__(self, designs: list[Tensor], targets: list[Tensor], kinds: Tensor, invariance: Tensor | None):
        self.grams = torch.stack([design.mT @ design for design in designs])
        self.moments = torch.stack([design.mT @ target for design, target in zip(designs, targets, strict=True)])
        self.squares = torch.stack([target @ target for target in targets])
        self.count = len(targets[0])
        self.kinds, self.invariance = kinds, invariance
        self.precisions = self.grams.new_zeros(int(kinds.max()) + 1)
        self.log_strength = self.grams.new_tensor(4.0)
        self.log_noise = torch.stack([(0.01 * target.var()).log() for target in targets])  # of the variances

    def __call__(self, direction: Tensor | None) -> tuple[Tensor, Tensor]:
        """The log evidence, and the posterior mean of the weights."""
        prior = torch.diag(self.precisions.exp()[self.kinds])
        if direction is not None:
            assert self.invariance is not None
            a = direction / direction.norm()
            prior = prior + self.log_strength.clamp(max=MAX_LOG_STRENGTH).exp() * torch.einsum(
                "a,b,abfg->fg", a, a, self.invariance
            )
        precise = (-self.log_noise).exp()
        posterior = prior + torch.einsum("k,kfg->fg", precise, self.grams)
        try:
            lower, upper = torch.linalg.cholesky(prior), torch.linalg.cholesky(posterior)
        except torch.linalg.LinAlgError as error:
            raise ValueError(
                "the evidence can't be computed: the rates seem to have no noise, whose variance has fallen to "
                f"{float(self.log_noise.detach().exp().min()):.1e}; give noisy rates, or look for the symmetry by discover"
            ) from error
        half = torch.linalg.solve_triangular(upper, (precise @ self.moments)[:, None], upper=False)
        determinants = lower.diagonal().log().sum() - upper.diagonal().log().sum()
        noise = self.count * (math.log(2 * math.pi) + self.log_noise).sum()
        misfit = precise @ self.squares - half.square().sum() + noise
        return determinants - misfit / 2, torch.linalg.solve_triangular(upper.mT, half, upper=True)[:, 0]


def _start(model: _SymmetryEvidence, fixed: Tensor | None, generator: torch.Generator) -> Tensor | None:
    """The fixed direction, or else the best of some random ones; None without a family."""
    if model.invariance is None:
        return None
    if fixed is not None:
        return fixed.to(model.grams)
    size = len(model.invariance)
    starts = nn.functional.normalize(torch.randn(NUM_STARTS, size, dtype=torch.float64, generator=generator), dim=1)
    with torch.no_grad():
        return max(starts, key=lambda a: float(model(a)[0])).clone()


class LearnedFrame(ExactBuffers):
    r"""A network whose symmetry is turned by a learned element of a larger group.

    .. math:: f(x) = \rho_{out}(R)\, f_0(\rho_{in}(R)^{-1} x), \qquad R = \exp\Big(\sum_i \theta_i A_i\Big)

    If :math:`f_0` is equivariant under G, f is under :math:`R G R^{-1}`: turns about the vertical become turns about
    :math:`R \hat z`. The equivariant basis is that of :math:`f_0`, whatever R is. Directions of the larger group's algebra
    that lie in that of G change nothing, and have no gradient.

    Args:
        net: :math:`f_0`, ``(..., dim_in)`` to ``(..., dim_out)``, equivariant under a subgroup of the representations' group.
        rep_in, rep_out: representations of the larger group, SO(3) for the axis of a pendulum, on the spaces that the network
            maps.
    Raises:
        ValueError: the representations belong to different groups, or to one without continuous generators.

    >>> from rppdyn.groups import SO, SO2eR3
    >>> from rppdyn.nn import EMLP
    >>> from rppdyn.reps import V
    >>> net = EMLP(2 * V, V, SO2eR3(), hidden=16)
    >>> turned = LearnedFrame(net, 2 * V(SO(3)), V(SO(3)))
    >>> turned(torch.zeros(5, 6)).shape
    torch.Size([5, 3])
    """

    def __init__(self, net: nn.Module, rep_in: Rep, rep_out: Rep):
        super().__init__()
        if rep_in.G != rep_out.G:
            raise ValueError(
                f"rep_in belongs to {rep_in.G} and rep_out to {rep_out.G}: give representations of one group"
            )
        count = len(rep_in.G.lie_algebra)
        if not count:
            raise ValueError(
                f"{rep_in.G} has no continuous generators, so no frame can be learned: give SO(3), for example"
            )
        self.net, self.group = net, rep_in.G
        like = next(iter(net.parameters()), torch.zeros(()))
        self.coefficients = nn.Parameter(like.new_zeros(count))
        self.register_constant("generators_in", rep_in.lie_generators)
        self.register_constant("generators_out", rep_out.lie_generators)
        self.to(like)

    def element(self) -> Float[Tensor, "d d"]:
        """R, as it acts on the group's own space."""
        algebra = self.group.lie_algebra.to(self.coefficients)
        return torch.linalg.matrix_exp(torch.einsum("i,iab->ab", self.coefficients, algebra))

    def forward(self, x: Float[Tensor, "*batch dim_in"]) -> Float[Tensor, "*batch dim_out"]:
        back = torch.linalg.matrix_exp(-torch.einsum("i,iab->ab", self.coefficients, self.generators_in))
        out = torch.linalg.matrix_exp(torch.einsum("i,iab->ab", self.coefficients, self.generators_out))
        return self.net(x @ back.mT) @ out.mT
