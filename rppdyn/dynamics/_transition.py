r"""Transition models ``x' = x + NN(x, u)`` on features that a group acts on linearly, their rollouts and their likelihoods.

Model-predictive control plans on a model's rollouts, by the cross-entropy method.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from rppdyn.dynamics._fitted import as_type_of, combine_members
from rppdyn.nn import Ensemble, InvariantNormaliser
from rppdyn.nn._networks import Network
from rppdyn.nn._normaliser import deviation_rep, mixing_blocks
from rppdyn.reps import Rep, Scalar

LOG_STD = (-8.0, 2.0)
"""Soft bounds of the logarithm of a Gaussian model's standard deviation, relative to that of one-step changes."""

INITIAL_SCALE = 0.1
"""Initial scale of the last layer's weights (``output_scale``), so that a new model changes the state little."""

HALF_LOG_2_PI = 0.5 * math.log(2 * math.pi)


class Step(NamedTuple):
    """A model's prediction of the next state.

    Attributes:
        mean: features of the next state, with rotations and angles projected.
        log_std: logarithms of the standard deviations of a Gaussian model, in the units of the features and, last, of a learned
            reward; otherwise None.
        reward: learned reward of the step; otherwise None.
    """

    mean: Float[Tensor, "*batch n"]
    log_std: Float[Tensor, "*batch out"] | None
    reward: Float[Tensor, "*batch"] | None


class Rollout(NamedTuple):
    """States after each action, and the rewards of the steps if the model has learned them."""

    states: Float[Tensor, "*batch T n"]
    rewards: Float[Tensor, "*batch T"] | None


class TransitionModel(nn.Module):
    r"""``x_{t+1} = Pi(x_t + s NN((x_t - m) / s_x, (u_t - m_u) / s_u))`` (Finzi 2023, A.2.3.4).

    States ``x`` are features on which a group acts linearly (``SymmetrySpec.encode`` of observations). The statistics ``m, s``
    of states, actions and one-step changes are invariant (:class:`~rppdyn.nn.InvariantNormaliser`), and :math:`\Pi` takes
    rotation matrices back to SO(3) and (cos, sin) to the circle, which commutes with the group. So the model is as equivariant
    as its network: :math:`f(\rho_x(g) x, \rho_u(g) u) = \rho_x(g) f(x, u)`.

    Args:
        net: a network from :meth:`rep_in` to :meth:`rep_out`, or a :class:`~rppdyn.nn.Ensemble` of such networks. With an
            ensemble, states and actions have a leading axis of members.
        state_rep, action_rep: the representations.
        gaussian: whether the network also gives a standard deviation for each entry (PETS, Chua et al. 2018).
        reward: whether the network also gives the reward of a step, as an invariant (which the free part of an RPP may break).
        rotations: for each rotation matrix in the features, the index of its first entry; it has nine, row-major.
        circles: for each pair (cos, sin) in the features, the index of its first entry.
    """

    blocks: Tensor | None

    def __init__(
        self,
        net: Network,
        state_rep: Rep,
        action_rep: Rep,
        *,
        gaussian: bool = False,
        reward: bool = False,
        rotations: Sequence[int] = (),
        circles: Sequence[int] = (),
    ):
        super().__init__()
        self.net, self.gaussian, self.reward = net, gaussian, reward
        self.rotations, self.circles = tuple(rotations), tuple(circles)
        self.states, self.actions = InvariantNormaliser(state_rep), InvariantNormaliser(action_rep)
        predicted = _predicted_rep(state_rep, reward)
        self.changes = InvariantNormaliser(predicted)
        self.register_buffer("blocks", mixing_blocks(predicted) if gaussian else None, persistent=False)

    @staticmethod
    def rep_in(state_rep: Rep, action_rep: Rep) -> Rep:
        """Representation of the network's input."""
        return state_rep + action_rep

    @staticmethod
    def rep_out(state_rep: Rep, gaussian: bool = False, reward: bool = False) -> Rep:
        """Representation of the network's output: a change, the reward, and logarithms of standard deviations."""
        rep = _predicted_rep(state_rep, reward)
        return rep + deviation_rep(rep, mixing_blocks(rep)) if gaussian else rep

    def observe(
        self,
        x: Float[Tensor, "*batch n"],
        u: Float[Tensor, "*batch m"],
        after: Float[Tensor, "*batch n"],
        reward: Float[Tensor, "*batch"] | None = None,
    ) -> None:
        """Update the statistics by transitions between features, with rewards if the model learns them."""
        self.states.update(x)
        self.actions.update(u)
        self.changes.update(self._append_reward(after - x, reward))

    def assemble(self) -> Any:
        """The network's dense weights, for several calls."""
        return self.net.assemble()

    def step(self, x: Float[Tensor, "*batch n"], u: Float[Tensor, "*batch m"], weights: Any = None) -> Step:
        """Predict the next state's features; weights are assembled here unless they are given."""
        output, log_std, n = self._network_output(x, u, weights), None, x.shape[-1]
        if self.gaussian:
            output, log_std = output.split([n + self.reward, output.shape[-1] - n - self.reward], -1)
            low, high = LOG_STD
            log_std = high - F.softplus(high - log_std)
            log_std = low + F.softplus(log_std - low)
            if self.blocks is not None:
                log_std = log_std @ self.blocks.to(log_std)
            log_std = log_std + self.changes.std.to(log_std).log()
        output = self.changes.inverse(output)
        return Step(self.project(x + output[..., :n]), log_std, output[..., n] if self.reward else None)

    def change(
        self, x: Float[Tensor, "*batch n"], u: Float[Tensor, "*batch m"], weights: Any = None
    ) -> Float[Tensor, "*batch n"]:
        """The change of the features by the network, before projection: the learned part of the model."""
        n = x.shape[-1]
        return self.changes.inverse(self._network_output(x, u, weights)[..., : n + self.reward])[..., :n]

    def forward(self, x: Float[Tensor, "*batch n"], u: Float[Tensor, "*batch m"]) -> Float[Tensor, "*batch n"]:
        """The next state's features, the mean of :meth:`step`."""
        return self.step(x, u).mean

    @torch.no_grad()
    def predict(self, x: Any, u: Any, *, members: str = "mean") -> Any:
        """The next state's features, ``(*batch, n)``, of arrays or tensors without an axis of members.

        Between raw observations it is ``rppdyn.load(RUN).predict(observation, action)``.

        Args:
            members: members of an ensemble to return, "mean", or "all" along a new first axis.
        Raises:
            ValueError: another word, or sizes that are not the model's.
        """
        dtype = next(self.parameters()).dtype
        state, action = (torch.as_tensor(values).to(dtype) for values in (x, u))
        sizes = self.states.rep.dim, self.actions.rep.dim
        if (state.shape[-1], action.shape[-1]) != sizes:
            raise ValueError(
                f"states of shape {tuple(state.shape)} and actions of {tuple(action.shape)}: the last axes must have "
                f"{sizes[0]} and {sizes[1]} entries"
            )
        if not isinstance(self.net, Ensemble):
            prediction = self(state, action).unsqueeze(0)
        else:
            rows = (v.reshape(1, -1, v.shape[-1]).expand(self.net.members, -1, -1) for v in (state, action))
            prediction = self(*rows).reshape(self.net.members, *state.shape)
        return as_type_of(x, combine_members(prediction, members))

    def rollout(self, x: Float[Tensor, "*batch n"], u: Float[Tensor, "*batch T m"], weights: Any = None) -> Rollout:
        """States 1 to ``T`` that follow from state 0 under given actions, each step from the mean of the one before.

        Raises:
            ValueError: no action.
        """
        if not u.shape[-2]:
            raise ValueError(f"u of shape {tuple(u.shape)}: give one action at least")
        weights = self.assemble() if weights is None else weights
        states, rewards = [], []
        for action in u.unbind(-2):
            x, _, reward = self.step(x, action, weights)
            states.append(x)
            if reward is not None:
                rewards.append(reward)
        return Rollout(torch.stack(states, -2), torch.stack(rewards, -1) if rewards else None)

    def log_likelihood(
        self, step: Step, after: Float[Tensor, "*batch n"], reward: Float[Tensor, "*batch"] | None = None
    ) -> Float[Tensor, "*batch out"]:
        """The logarithm of each entry's normal density, the reward's last, in units of one-step changes.

        Raises:
            ValueError: the step has no standard deviation.
        """
        if step.log_std is None:
            raise ValueError("this model gives no standard deviation: build it with gaussian=True")
        std = self.changes.std.to(after)
        log_std = step.log_std - std.log()
        mean = self._append_reward(step.mean, step.reward)
        error = (self._append_reward(after, reward) - mean) / std
        return -0.5 * (error * (-log_std).exp()).square() - log_std - HALF_LOG_2_PI

    def _append_reward(self, x: Tensor, reward: Tensor | None) -> Tensor:
        if self.reward != (reward is not None):
            remedy = "rewards: give them" if self.reward else "no rewards: build it with reward=True, or leave them out"
            raise ValueError(f"this model learns {remedy}")
        return x if reward is None else torch.cat([x, reward.unsqueeze(-1)], -1)

    def _network_output(self, x: Tensor, u: Tensor, weights: Any) -> Tensor:
        inputs = torch.cat([self.states(x), self.actions(u)], -1)
        return self.net.apply(inputs, self.assemble() if weights is None else weights)

    def project(self, x: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch n"]:
        """Project rotation matrices among the features to SO(3), and pairs (cos, sin) to length one."""
        parts, done = [], 0
        for start, width in sorted([(r, 9) for r in self.rotations] + [(c, 2) for c in self.circles]):
            part = x[..., start : start + width]
            moved = (
                nearest_rotation(part.unflatten(-1, (3, 3))).flatten(-2) if width == 9 else F.normalize(part, dim=-1)
            )
            parts += [x[..., done:start], moved]
            done = start + width
        return torch.cat([*parts, x[..., done:]], -1) if parts else x

    def extra_repr(self) -> str:
        return f"gaussian={self.gaussian}, reward={self.reward}, rotations={self.rotations}, circles={self.circles}"


def _predicted_rep(state_rep: Rep, reward: bool) -> Rep:
    return state_rep + Scalar(state_rep.G) if reward else state_rep


MIN_SINGULAR_SUM = 1e-6
"""Least sum of singular values in the derivative: a matrix near a reflection has no nearest rotation."""


def nearest_rotation(M: Float[Tensor, "*batch d d"]) -> Float[Tensor, "*batch d d"]:
    r"""The rotation that is nearest to ``M`` in Frobenius norm, :math:`U\,\mathrm{diag}(1, \ldots, 1, \det UV^T)\,V^T`.

    With the singular value decomposition :math:`M = U S V^T`. It commutes with rotations and reflections on either side,
    :math:`\Pi(gMh) = g\,\Pi(M)\,h` for orthogonal ``g, h`` with :math:`\det g \det h = 1`, so an equivariant step that
    is projected stays equivariant (Gram-Schmidt would not).

    The derivative is that of the polar factor, :math:`U\,\frac{U^T dM\,V - (\ldots)^T}{s_i + s_j}\,V^T`, which exists where
    that of ``U`` and ``V`` does not: at rotations all singular values are equal.

    There is no second derivative: in backward mode it is refused, in forward mode it is nan. The rotation and the derivative of
    a matrix with an entry that is not finite are nan; the other matrices of a batch keep theirs.

    Source: Kabsch 1976; the derivative by differentiating :math:`M = QP`, ``P`` symmetric.
    """
    return _NearestRotation.apply(M)[0]


class _NearestRotation(torch.autograd.Function):
    """The rotation, and the signed decomposition ``U S V^T`` for the derivatives."""

    generate_vmap_rule = True

    @staticmethod
    def forward(M):
        finite = M.isfinite().all(-1, keepdim=True).all(-2, keepdim=True)
        U, S, Vh = torch.linalg.svd(torch.where(finite, M, torch.eye(M.shape[-1], dtype=M.dtype, device=M.device)))
        sign = torch.cat([torch.ones_like(S[..., 1:]), torch.linalg.det(U @ Vh).sign().unsqueeze(-1)], -1)
        U = torch.where(finite, U * sign.unsqueeze(-2), torch.nan)
        return U @ Vh, U, S * sign, Vh

    @staticmethod
    def setup_context(ctx, inputs, output):
        _, *decomposition = output
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*decomposition)
        ctx.save_for_forward(*decomposition)

    @staticmethod
    def backward(ctx, gradient, *of_decomposition):
        if any(g is not None for g in of_decomposition):
            raise NotImplementedError("nearest_rotation has no second derivative: differentiate it once")
        return None if gradient is None else _polar_derivative(*ctx.saved_tensors, gradient)

    @staticmethod
    def jvp(ctx, tangent):
        unknown = (torch.full_like(part, torch.nan) for part in ctx.saved_tensors)  # makes second derivatives nan
        return _polar_derivative(*ctx.saved_tensors, tangent), *unknown


def _polar_derivative(U, S, Vh, X):
    """The derivative along X, which is symmetric, and so the same in forward and backward mode."""
    B = U.mT @ X @ Vh.mT
    return U @ ((B - B.mT) / (S.unsqueeze(-1) + S.unsqueeze(-2)).clamp_min(MIN_SINGULAR_SUM)) @ Vh


Reward = Callable[
    [Float[Tensor, "*batch n"], Float[Tensor, "*batch m"], Float[Tensor, "*batch n"]], Float[Tensor, "*batch"]
]
ELITES_PER_SURVIVOR = 3
"""One in so many elites, the best ones, stays among the sequences of the next iteration."""

Ends = Callable[[Float[Tensor, "*batch n"]], Bool[Tensor, "*batch"]]


class CrossEntropyPlanner:
    r"""Plans a sequence of actions with a large sum of rewards along the model's rollouts.

    In each iteration, sequences are drawn from a Gaussian that is independent over time, and the Gaussian is fitted to the best
    of them. The first action of the final mean is taken, and the next plan begins with the rest of it (Chua et al. 2018;
    de Boer et al. 2005 for the method). The mean itself and the best sequences so far take part in each comparison (Pinneri et
    al. 2020), which improves long plans. The reward of an ensemble is the mean over its members, each with its own rollout. The
    planner has a random generator of its own, so that episodes are repeatable.

    Args:
        model: a model with ``reward=True``, unless ``reward`` is given.
        low, high: bounds of the actions, ``(m,)`` each.
        horizon: number of planned steps.
        samples, elites: numbers of sequences drawn, and of the best ones to which the Gaussian is fitted.
        iterations: number of iterations.
        discount: discount of rewards per step.
        reward: reward of a step by state, action and next state, as features, in place of the learned one.
        ends: whether an episode ends at a state; later rewards do not count.
        seed: seed of the random generator.
    Raises:
        ValueError: a number is out of range, or neither the model nor ``reward`` gives rewards.
    """

    def __init__(self, model: TransitionModel, low: Float[Tensor, " m"], high: Float[Tensor, " m"], *, horizon: int = 25,
                 samples: int = 300, elites: int = 30, iterations: int = 4, discount: float = 1.0,
                 reward: Reward | None = None, ends: Ends | None = None, seed: int = 0):  # fmt: skip
        if not 1 < elites <= samples:
            raise ValueError(f"elites={elites} of samples={samples}: two at least, and no more than there are")
        if horizon < 1 or iterations < 1:
            raise ValueError(f"horizon={horizon}, iterations={iterations}: each must be at least 1")
        if not 0 <= discount <= 1:
            raise ValueError(f"discount={discount} of rewards per step: give a number from 0 to 1")
        if not bool(low.isfinite().all() and high.isfinite().all()):
            raise ValueError(f"low={low.tolist()} and high={high.tolist()}: give bounds that are finite")
        if not bool((low <= high).all()):
            raise ValueError(f"low={low.tolist()} and high={high.tolist()}: no bound may be above the other")
        if reward is None and not model.reward:
            raise ValueError("the model has learned no rewards: fit it with model.reward=true, or give reward=")
        self.model, self.reward, self.ends = model, reward, ends
        self.low, self.high = low, high
        self.horizon, self.samples, self.elites, self.iterations = horizon, samples, elites, iterations
        self.discount = discount
        self.generator = torch.Generator().manual_seed(seed)
        self.reset()

    def reset(self) -> None:
        """Forget the last plan, as at the beginning of an episode."""
        self.mean = ((self.low + self.high) / 2).expand(self.horizon, -1).clone()

    @torch.no_grad()
    def plan(self, x: Float[Tensor, " n"]) -> Float[Tensor, "horizon m"]:
        """The mean of the best sequences from a state; :meth:`act` starts its plan from the last one."""
        mean, std = self.mean, ((self.high - self.low) / 2).expand(self.horizon, -1)
        elite: list[Tensor] = []
        weights = self.model.assemble()
        for _ in range(self.iterations):
            noise = torch.randn(self.samples, *mean.shape, generator=self.generator).to(mean)
            actions = torch.minimum(torch.maximum(mean + std * noise, self.low), self.high)
            actions = torch.cat([actions, mean[None], *elite])
            best = actions[self._returns(x, actions, weights).topk(self.elites).indices]
            mean, std, elite = best.mean(0), best.std(0), [best[: self.elites // ELITES_PER_SURVIVOR]]
        return mean

    def act(self, x: Float[Tensor, " n"]) -> Float[Tensor, " m"]:
        """The first action of a plan; the rest of it is where the next one begins."""
        plan = self.plan(x)
        self.mean = torch.cat([plan[1:], plan[-1:]])
        return plan[0]

    @torch.no_grad()
    def returns(self, x: Float[Tensor, " n"], actions: Float[Tensor, "samples T m"]) -> Float[Tensor, " samples"]:
        """Discounted sums of rewards of action sequences from a state, by the model."""
        return self._returns(x, actions, self.model.assemble())

    def _returns(self, x: Tensor, actions: Tensor, weights: Any) -> Tensor:
        members = (self.model.net.members,) if hasattr(self.model.net, "members") else ()
        states = x.expand(*members, len(actions), -1)
        actions = actions.expand(*members, *actions.shape)
        total = states.new_zeros(states.shape[:-1])
        alive = torch.ones_like(total, dtype=torch.bool)
        for t, u in enumerate(actions.unbind(-2)):
            after, _, reward = self.model.step(states, u, weights)
            if self.reward is not None:
                reward = self.reward(states, u, after)
            assert reward is not None, "the constructor refuses a model without rewards where none is given"
            total += self.discount**t * torch.where(alive, reward, 0)  # rewards after the end are meaningless
            if self.ends is not None:
                alive = alive & ~self.ends(after)
            states = after
        total = total.nan_to_num(nan=-torch.inf)
        return total.mean(0) if members else total
