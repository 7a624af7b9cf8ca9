"""Transition models: rotations, equivariance, rollouts and likelihoods, in float64."""

from contextlib import closing

import pytest
import torch

from rppdyn.dynamics import TransitionModel
from rppdyn.dynamics._transition import nearest_rotation
from rppdyn.envs import make_env, symmetry_spec
from rppdyn.groups import O2eR3, Z
from rppdyn.nn import EMLP, MLP, Ensemble
from rppdyn.reps import Scalar, V


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def rotations(n: int, generator: torch.Generator) -> torch.Tensor:
    Q = torch.linalg.qr(torch.randn(n, 3, 3, dtype=torch.float64, generator=generator))[0]
    return Q * torch.linalg.det(Q).view(-1, 1, 1)


def test_nearest_rotation_is_one_and_the_nearest():
    g = seeded()
    M = torch.randn(50, 3, 3, dtype=torch.float64, generator=g)
    R = nearest_rotation(M)
    torch.testing.assert_close(R @ R.mT, torch.eye(3, dtype=torch.float64).expand_as(R), rtol=0, atol=1e-13)
    torch.testing.assert_close(torch.linalg.det(R), torch.ones(50, dtype=torch.float64), rtol=0, atol=1e-13)
    for other in rotations(200, g):
        assert ((M - R).square().sum((-1, -2)) <= (M - other).square().sum((-1, -2)) + 1e-12).all()


def test_nearest_rotation_commutes_with_mirrors_and_has_its_derivative():
    g = seeded()
    M = (rotations(4, g) + 0.1 * torch.randn(4, 3, 3, dtype=torch.float64, generator=g)).requires_grad_()
    mirror = torch.diag(torch.tensor([1.0, -1.0, 1.0], dtype=torch.float64))
    left, right = mirror @ rotations(1, g)[0], mirror
    torch.testing.assert_close(nearest_rotation(left @ M @ right), left @ nearest_rotation(M) @ right)
    assert torch.autograd.gradcheck(nearest_rotation, M)
    exactly = rotations(4, g).requires_grad_()  # where singular values coincide
    assert torch.autograd.gradcheck(nearest_rotation, exactly)


def test_nearest_rotation_goes_through_torch_func_and_has_no_second_derivative():
    M = torch.randn(4, 3, 3, dtype=torch.float64, generator=seeded()).requires_grad_()
    assert torch.autograd.gradcheck(nearest_rotation, M, check_forward_ad=True, check_batched_grad=True)
    one, entry = M[0].detach(), lambda M: nearest_rotation(M)[0, 1]
    forwards, backwards = torch.func.jacfwd(nearest_rotation)(one), torch.func.jacrev(nearest_rotation)(one)
    torch.testing.assert_close(forwards, backwards, rtol=0, atol=1e-14)
    torch.testing.assert_close(torch.func.vmap(nearest_rotation)(M), nearest_rotation(M), rtol=0, atol=1e-14)
    assert torch.func.hessian(entry)(one).isnan().all()
    with pytest.raises(NotImplementedError, match="nearest_rotation has no second derivative"):
        torch.func.jacrev(torch.func.jacrev(entry))(one)


@pytest.mark.parametrize("number", [torch.nan, torch.inf])
def test_a_matrix_that_has_diverged_has_no_nearest_rotation_and_harms_no_other(number):
    M = torch.randn(4, 3, 3, dtype=torch.float64, generator=seeded()).requires_grad_()
    lost = torch.zeros_like(M)
    lost[1, 0, 2] = number
    R, alone = nearest_rotation(M + lost), nearest_rotation(M)
    kept = torch.tensor([True, False, True, True])
    assert R[1].isnan().all() and torch.equal(R[kept], alone[kept])
    found, expected = (torch.autograd.grad((r[kept] * M[kept].detach().exp()).sum(), M)[0] for r in (R, alone))
    assert torch.equal(found[kept], expected[kept])


def ant_model(cls=EMLP, **options) -> tuple[TransitionModel, object]:
    with closing(make_env("Ant-v5", include_cfrc_ext_in_observation=False)) as env:
        spec = symmetry_spec(env, symmetry="D4")
    x, u = spec.obs_rep, spec.action_rep
    reps = TransitionModel.rep_in(x, u), TransitionModel.rep_out(x, options.get("gaussian", False))
    net = cls(*reps, spec.group, hidden=16, num_layers=2, generator=seeded(3))
    return TransitionModel(net, x, u, rotations=spec.obs.encoding.rotations, **options).double(), spec


def ant_transitions(spec, n: int = 40) -> tuple[torch.Tensor, ...]:
    g = seeded(1)
    obs = torch.randn(n, spec.obs.dim, dtype=torch.float64, generator=g)
    after = obs + 0.1 * torch.randn(n, spec.obs.dim, dtype=torch.float64, generator=g)
    return spec.encode(obs), torch.rand(n, 8, dtype=torch.float64, generator=g), spec.encode(after)


@pytest.mark.parametrize("cls, equivariant", [(EMLP, True), (MLP, False)])
def test_rollouts_of_ant_commute_with_every_element_of_D4(cls, equivariant):
    model, spec = ant_model(cls)
    x, u, after = ant_transitions(spec)
    model.observe(x, u, after)
    u = u.view(8, 5, 8)
    states = model.rollout(x[:8], u).states
    R = states[..., model.rotations[0] : model.rotations[0] + 9].unflatten(-1, (3, 3))
    torch.testing.assert_close(R @ R.mT, torch.eye(3, dtype=torch.float64).expand_as(R), rtol=0, atol=1e-12)
    for g in spec.group.elements()[1:]:
        rho_x, rho_u = spec.obs_rep.rho(g), spec.action_rep.rho(g)
        moved = model.rollout(x[:8] @ rho_x.T, u @ rho_u.T).states
        error = (moved - states @ rho_x.T).abs().max() / (states - x[:8, None]).abs().max()
        assert (error < 1e-12) == equivariant, error


def test_rollouts_of_a_model_that_has_diverged_are_no_numbers():
    model, spec = ant_model()
    x, u, after = ant_transitions(spec)
    model.observe(x, u, after)
    with torch.no_grad():
        next(model.net.head.parameters()).fill_(torch.nan)
    assert not model.rollout(x[:8], u.view(8, 5, 8)).states[:, 1:].isfinite().any()


def test_a_linear_system_is_rolled_out_exactly():
    """A network without hidden layers is linear: x' = x + A x + B u, statistics included."""
    G, g = Z(3), seeded()
    net = MLP(TransitionModel.rep_in(V(G), V(G)), V(G), G, hidden=[], generator=g)
    model = TransitionModel(net, V(G), V(G)).double()
    x, u = torch.randn(2, 60, 3, dtype=torch.float64, generator=g)
    A, B = 0.1 * torch.randn(2, 3, 3, dtype=torch.float64, generator=g)
    model.observe(x, u, x + x @ A.T + u @ B.T)
    layer = net.head.free
    with torch.no_grad():
        W = torch.cat([A * model.states.std, B * model.actions.std], 1) / model.changes.std[:, None]
        bias = (A @ model.states.mean + B @ model.actions.mean - model.changes.mean) / model.changes.std
        layer.weight.copy_(W), layer.bias.copy_(bias)
    actions = torch.randn(4, 7, 3, dtype=torch.float64, generator=g)
    states, z = model.rollout(x[:4], actions).states, x[:4]
    for t in range(7):
        z = z + z @ A.T + actions[:, t] @ B.T
        torch.testing.assert_close(states[:, t], z, rtol=1e-12, atol=1e-12)


def test_gaussian_deviations_transform_and_the_density_is_normal():
    G, g = O2eR3(), seeded()
    rep_x, rep_u = (V + Scalar)(G), V(G)
    net = EMLP(TransitionModel.rep_in(rep_x, rep_u), TransitionModel.rep_out(rep_x, True), G, hidden=16, generator=g)
    model = TransitionModel(net, rep_x, rep_u, gaussian=True).double()
    x, u = torch.randn(30, 4, dtype=torch.float64, generator=g), torch.randn(30, 3, dtype=torch.float64, generator=g)
    after = x + 0.3 * torch.randn(30, 4, dtype=torch.float64, generator=g)
    model.observe(x, u, after)
    mean, log_std, _ = step = model.step(x, u)
    assert log_std is not None and (log_std[:, 0] == log_std[:, 1]).all() and (log_std[:, 0] != log_std[:, 2]).all()
    for element in G.samples(5, g):
        turned = model.step(x @ rep_x.rho(element).T, u @ rep_u.rho(element).T)
        torch.testing.assert_close(turned.mean, mean @ rep_x.rho(element).T)
        torch.testing.assert_close(turned.log_std, log_std)
    density = torch.distributions.Normal(mean, log_std.exp()).log_prob(after) + model.changes.std.log()
    torch.testing.assert_close(model.log_likelihood(step, after), density)


def test_rewards_are_learned_beside_states_and_stay_invariant():
    G, g = Z(4), seeded()
    rep_out = TransitionModel.rep_out(V(G), gaussian=True, reward=True)
    net = EMLP(TransitionModel.rep_in(V(G), V(G)), rep_out, G, hidden=16, num_layers=1, generator=g)
    model = TransitionModel(net, V(G), V(G), gaussian=True, reward=True).double()
    x, u, after = torch.randn(3, 50, 4, dtype=torch.float64, generator=g)
    reward = 3 + torch.randn(50, dtype=torch.float64, generator=g)
    model.observe(x, u, after, reward)
    step = model.step(x, u)
    assert step.reward is not None and step.reward.std() > 0
    h = G.discrete_generators[0]
    moved = model.step(x @ h.T, u @ h.T)
    torch.testing.assert_close(moved.reward, step.reward)
    torch.testing.assert_close(moved.mean, step.mean @ h.T)
    assert model.changes.mean[-1] == pytest.approx(float(reward.mean()))
    density = torch.distributions.Normal(step.reward, step.log_std[:, -1].exp()).log_prob(reward)
    found = model.log_likelihood(step, after, reward)[:, -1]
    torch.testing.assert_close(found, density + model.changes.std[-1].log())
    with pytest.raises(ValueError, match="learns rewards: give them"):
        model.observe(x, u, after)


def fitted(unit: float, gaussian: bool) -> torch.Tensor:
    """Errors, in the unit, of what a short fit predicts of a system whose last state never changes."""
    G, g = Z(3), seeded()
    state = V(G) + Scalar(G)
    sizes = TransitionModel.rep_in(state, V(G)), TransitionModel.rep_out(state, gaussian)
    model = TransitionModel(MLP(*sizes, G, hidden=[16], generator=g), state, V(G), gaussian=gaussian).double()
    x, u = torch.randn(60, 4, dtype=torch.float64, generator=g), torch.randn(60, 3, dtype=torch.float64, generator=g)
    x[:, 3] = 2.0
    after = x + torch.cat([0.1 * x[:, :3].sin() + 0.2 * u, torch.zeros(60, 1)], -1)
    x, after = unit * x, unit * after
    model.observe(x, u, after)
    optimiser = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(30):
        optimiser.zero_grad()
        step = model.step(x, u)
        error = (step.mean - after) / model.changes.std
        (-model.log_likelihood(step, after).mean() if gaussian else error.square().mean()).backward()
        optimiser.step()
    return (model.rollout(x, u[:, None].expand(-1, 10, -1)).states / unit).detach()


@pytest.mark.parametrize("gaussian", [False, True])
def test_units_of_states_do_not_matter(gaussian):
    expected = fitted(1.0, gaussian)
    for unit in (1e3, 1e-6):
        torch.testing.assert_close(fitted(unit, gaussian), expected, rtol=1e-5, atol=1e-6)


def test_members_are_the_networks_they_were_made_of_and_predictions_their_mean():
    G = Z(2)
    x_rep, u_rep = 3 * V(G), V(G)
    reps = TransitionModel.rep_in(x_rep, u_rep), TransitionModel.rep_out(x_rep)
    nets = [EMLP(*reps, G, hidden=8, num_layers=1, generator=seeded(k)) for k in (0, 1)]
    both, *alone = (TransitionModel(net, x_rep, u_rep).double() for net in (Ensemble(nets), *nets))
    x, u = (torch.randn(4, n, dtype=torch.float64, generator=seeded()) for n in (6, 2))
    for model in (both, *alone):
        model.observe(x, u, 1.1 * x)
    singles = torch.stack([model.predict(x, u) for model in alone])
    torch.testing.assert_close(singles[0], alone[0](x, u))
    torch.testing.assert_close(both.predict(x, u, members="all"), singles)
    mean = both.predict(x[0].numpy(), u[0].numpy())
    torch.testing.assert_close(torch.from_numpy(mean), singles.mean(0)[0])
    plan = u[:, None].expand(-1, 5, -1)
    rollouts = torch.stack([model.rollout(x, plan).states for model in alone])
    together = both.rollout(x.expand(2, -1, -1), plan.expand(2, -1, -1, -1)).states
    torch.testing.assert_close(together, rollouts, rtol=1e-12, atol=1e-12)
    with pytest.raises(ValueError, match="must have 6 and 2 entries"):
        both.predict(x[:, :3], u)
    with pytest.raises(ValueError, match="give 'mean' or 'all'"):
        both.predict(x, u, members="every")
    with pytest.raises(ValueError, match=r"u of shape \(4, 0, 2\): give one action at least"):
        alone[0].rollout(x, plan[:, :0])
    with pytest.raises(ValueError, match="gaussian=True"):
        alone[0].log_likelihood(alone[0].step(x, u), x)
