"""Networks of any group and layers are equivariant, and the same function however torch runs them."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch
from forked import run_code
from registry import FLIPS, SHEAR, generator
from torch import nn
from torch.func import functional_call, grad, stack_module_state, vmap

from rppdyn.groups import SL, SO, SO13, D, DkeR3, Group, O, O2eR3, S, SO2eR3, SO13p, Sp, Trivial, Z
from rppdyn.nn import EMLP, MLP, RPPEMLP, BatchNorm, Chained, Ensemble, RelaxedLinear, freeze, merge, named_pathways
from rppdyn.priors import negative_log_prior
from rppdyn.reps import Pseudoscalar, Rep, Scalar, T, V, regular

MIRROR = Group("mirror", discrete_generators=torch.tensor([[[-1.0, 0.0], [0.0, 1.0]]]))
TURNS = Group("half turns", discrete_generators=torch.tensor([[[-1.0, 0.0], [0.0, -1.0]]]))
SIGN = Rep.from_generators(Z(2), discrete_generators=[[[-1.0]]], name="sign")
CHAINS = [[D(4), TURNS], [S(4), Z(4)], [SL(3), SO(3), SO2eR3()]]


def swarm(space: Group, members: Group) -> Rep:
    """A vector of space for each member."""
    G = space * members
    return V(members).lift(G) * V(space).lift(G)


def rates() -> tuple:
    """Turning rates of members in the plane, a type that vectors lack."""
    G = O(2) * S(4)
    own = V(S(4)).lift(G) * Pseudoscalar(O(2)).lift(G)
    return swarm(O(2), S(4)) + own, own, G, dict(hidden=128)


USUAL = 2 * V + Scalar, V + Scalar
NETS = {
    # input, output, group or chain of groups, options
    "regular": (*USUAL, Z(4), dict(hidden=48)),
    "wide": (*USUAL, Z(2), dict(hidden=128)),
    "tensors of a finite group": (*USUAL, D(4), dict(architecture="tensor")),
    "products": (*USUAL, SO(3), dict(hidden=48)),
    "products, copy by copy": (*USUAL, SO(3), dict(hidden=3 * Scalar + 2 * V + Scalar, bilinear="channelwise")),
    "products, no orthogonal group": (*USUAL, Sp(1), dict(hidden=48)),
    "published": (*USUAL, SO(3), dict(bilinear="published")),
    "published, copy by copy": (4 * V, Scalar, O2eR3(), dict(hidden=3 * V + 4 * Scalar, bilinear="published")),
    "published, no orthogonal group": (V, T(1, 1), SL(2), dict(hidden=12, bilinear="published")),
    "gates": (*USUAL, SO(3), dict(bilinear=False)),
    "tanh": (*USUAL, SO(2), dict(activation="tanh")),
    "points": (swarm(SO(3), S(3)), swarm(SO(3), S(3)), SO(3) * S(3), dict(hidden=96)),
    "points that permute alone": (swarm(D(4), S(4)), swarm(D(4), S(4)), D(4) * S(4), dict(hidden=70)),
    "chain": (V + Scalar, V, [O(3), O2eR3()], dict(hidden=16, bilinear="published")),
    "chain of finite groups": (V + Scalar, V, [D(4), MIRROR], dict(hidden=16, architecture="tensor")),
    "normalised": (2 * V + Scalar, V + Scalar, D(4), dict(hidden=48, normalisation="batch")),
    "products before activations": (V, V, S(3), dict(hidden=2 * Scalar + 2 * V + T(2), bilinear=True)),
    "no hidden layer": (V, V, SO(3), dict(num_layers=0)),
    "constant inputs": (*USUAL, D(4), dict(hidden=48, breaking="V", normalisation="batch")),
    "constant inputs, drawn": (*USUAL, SO(3), dict(hidden=48, breaking=V, breaking_learned=False)),
}
EQUIVARIANT = (
    {name: net for name, net in NETS.items() if "permute alone" not in name and "drawn" not in name}
    | {f"{G}": (*USUAL, G, dict(hidden=48)) for G in (SO13(), DkeR3(5), SHEAR, FLIPS)}
    | {f"swarm of {a} x {b}": (2 * swarm(a, b), swarm(a, b), a * b, dict(hidden=128)) for a, b in ((O(2), Z(5)), (SO(2), D(3)))}
    | {" > ".join(map(str, groups)): (V + Scalar, V, groups, dict(hidden=16)) for groups in CHAINS}
    | {
        "products of SO13p": (*USUAL, SO13p(), dict(hidden=40, bilinear="channelwise")),
        "tensors of O(3)": (*USUAL, O(3), dict(hidden=48, architecture="tensor")),
        "relu": (*USUAL, Z(3), dict(activation="relu")),
        "batch, signs": (3 * Pseudoscalar + V + Scalar, Pseudoscalar + Scalar, Z(2), dict(hidden=48, normalisation="batch")),
        "batch, SO(3)": (2 * V + T(2) + Scalar, V + Scalar, SO(3), dict(hidden=48, normalisation="batch")),
        "renorm, SO(2)": (3 * V + 2 * Scalar, V + Scalar, SO(2), dict(hidden=48, normalisation="renorm")),
        "a type that vectors lack": rates(),
        "factors, mixed": (V(SO(3)) + V(SO(3)) * V(Z(2)), V(SO(3)), SO(3) * Z(2), dict(hidden=48, normalisation="batch")),
        "given by generators": (SIGN + V(Z(2)), SIGN, Z(2), dict(hidden=16)),
        "another order of factors": (V(S(3)) + V(S(3)) * V(SO(3)), V(SO(3)), S(3) * SO(3), dict(hidden=32)),
    }
)  # fmt: skip


def build(entry, cls=RPPEMLP, seed=0, moved=True, **more):
    """A network; if it is moved, with biases, running statistics and scales that are not those of the start."""
    rep_in, rep_out, G, options = entry
    options = dict(hidden=24, num_layers=2, generator=generator(seed)) | options | more
    if cls is MLP:  # which has no symmetry, and no bilinear layers
        for key in ("bilinear", "breaking"):
            options.pop(key, None)
    if isinstance(G, list) and cls is not MLP:
        variances = [1.0] * len(G) + [0.0 if cls is EMLP else 1.0]
        net = RPPEMLP(rep_in, rep_out, groups=G, variances=variances, **{"free_scale": 0.5} | options)
    else:
        net = cls(rep_in, rep_out, G[0] if isinstance(G, list) else G, **options)
    return move(net, seed + 100) if moved else net


@torch.no_grad()
def move(net, seed):
    draw = generator(seed)
    for _, _, pathway in named_pathways(net):
        if getattr(pathway, "bias", None) is not None:
            pathway.bias.normal_(generator=draw)
    for norm in net.norms:
        norm.scale.add_(0.3 * torch.randn(norm.scale.shape, generator=draw))
        norm.shift.add_(0.3 * torch.randn(norm.shift.shape, generator=draw))
        norm.warm_up = min(norm.warm_up, 1)  # so that running statistics take part
    for _ in range(3 if net.norms else 0):
        running = net.on_batch(2 * torch.randn(32, net.rep_in.dim, generator=draw) + 1)[1]
        for norm, part in zip(net.norms, running.split([len(norm.running) for norm in net.norms]), strict=True):
            norm.running.copy_(part)
    return net


def inputs(net, *shape, dtype=torch.float64, seed=1):
    return torch.randn(*shape, net.rep_in.dim, generator=generator(seed), dtype=torch.float64).to(dtype)


@torch.no_grad()
def defect(f, net, G, dtype=torch.float64):
    """The largest |f(g x) - g f(x)| / (|f(g x)| + |g f(x)|) over elements with products, the whole batch moved by one."""
    rep_in, rep_out = (rep if rep.G == G else rep.restrict(G) for rep in (net.rep_in, net.rep_out))
    g = G.samples(4, generator(11))
    worst, x = 0.0, inputs(net, 6, dtype=dtype)
    for rho_in, rho_out in zip(
        *(rep.rho(torch.cat([g, g[:-1] @ g[1:]])).to(dtype) for rep in (rep_in, rep_out)), strict=True
    ):
        a, b = f(x @ rho_in.mT), f(x) @ rho_out.mT
        assert b.norm() > 1e-4 * x.norm()
        worst = max(worst, ((a - b).norm() / (a.norm() + b.norm())).item())
    return worst


@pytest.mark.filterwarnings("ignore:parts")
@pytest.mark.parametrize("name", EQUIVARIANT)
def test_strict_networks_are_equivariant_and_dense_and_freed_ones_are_not(name):
    """In both precisions, cast from the lower one, with statistics of a batch, too; a chain under its smallest group."""
    entry = EQUIVARIANT[name]
    groups = entry[2] if isinstance(entry[2], list) else [entry[2]]
    net, G = build(entry, EMLP), groups[-1]
    assert defect(net, net, G, torch.float32) < 1e-5
    net = net.half().float().double() if not net.norms else net.double()  # statistics are rounded by casts
    assert defect(net, net, G) < 1e-12
    controls = [build(entry, cls, free_scale=0.5).double() for cls in (RPPEMLP, MLP)]
    if len(groups) > 1:
        controls[1] = net  # the subgroup's pathway breaks the larger group
        strict = build((*entry[:2], groups[0], entry[3]), EMLP).double()
        assert all(defect(strict, strict, H) < 1e-12 for H in groups)
    if net.norms:
        assert defect(lambda x: net.on_batch(x)[0], net, G) < 1e-12
        ordinary = build(entry, EMLP)
        ordinary.norms = nn.ModuleList(BatchNorm(n.rep_in.dim * Scalar(n.rep_in.G)) for n in net.norms)
        controls.append(move(ordinary, 3).double())
        assert defect(lambda x: ordinary.on_batch(x)[0], net, G) > 1e-3
        x = inputs(net, 40) + 0.5
        moved = net.on_batch(x @ net.rep_in.rho(G.samples(1, generator(4))[0]).mT)[1]
        torch.testing.assert_close(net.on_batch(x)[1], moved, rtol=1e-10, atol=1e-12)
    for control in controls:
        assert groups[0] == Trivial(2) or defect(control, net, groups[0]) > 1e-3


@pytest.mark.parametrize("name", ["regular", "products"])
def test_relaxed_networks_start_nearly_equivariant_and_end_where_data_are(name):
    for cls, least, most in ((RPPEMLP, 1e-6, 0.05), (EMLP, 0, 1e-12)):
        net = build(NETS[name], cls, moved=False).double()
        assert least <= defect(net, net, net.group) < most
        optimiser, x = torch.optim.Adam(net.parameters(), lr=1e-2), inputs(net, 64)
        for _ in range(20):
            optimiser.zero_grad()
            (net(x)[:, 0] - x[:, 0] ** 2).square().mean().backward()
            optimiser.step()
        assert defect(net, net, net.group) > 0.02 if least else defect(net, net, net.group) < most


# -- however it is run ------------------------------------------------------------------------------------------------

EVERY = pytest.mark.parametrize("name", NETS)


def members(name, count=2):
    """Networks that differ in their parameters and statistics alone."""
    nets = [build(NETS[name], seed=seed, free_scale=1.0).double() for seed in range(count)]
    for net in nets[1:]:  # what is drawn besides is the first one's
        for (key, own), (_, first) in zip(net.named_buffers(), nets[0].named_buffers(), strict=True):
            if not key.endswith("running"):
                own.copy_(first)
    return nets


@EVERY
def test_an_ensemble_has_its_members_values_gradients_and_priors(name):
    nets = members(name)
    stack, x = Ensemble(nets), inputs(nets[0], 2, 3, 2).requires_grad_()
    y, prior = stack.apply(x, stack.assemble()), stack.per_member(negative_log_prior)
    alone = torch.stack([net(xi) for net, xi in zip(nets, x, strict=True)])
    torch.testing.assert_close(y, alone, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(prior, torch.stack([negative_log_prior(net) for net in nets]), rtol=1e-12, atol=0)
    trained = [x, *(p for p in stack.stacked if p.requires_grad)]
    together = torch.autograd.grad((y.square().sum((1, 2, 3)) + prior).sum(), trained, allow_unused=True)
    for index, net in enumerate(nets):
        loss = net(x[index]).square().sum() + negative_log_prior(net)
        apart = torch.autograd.grad(loss, [x, *net.parameters()], allow_unused=True)
        torch.testing.assert_close(together[0][index], apart[0][index], rtol=1e-9, atol=1e-10)
        for stacked, single in zip(together[1:], apart[1:], strict=True):
            assert (stacked is None) == (single is None)
            if stacked is not None:
                torch.testing.assert_close(stacked[index], single, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("name", [name for name in NETS if "points" not in name])
def test_gradients_by_inputs_are_autograds_and_differentiate_in_every_way(name):
    """Those of one network, and of an ensemble, by their parameters, too."""
    rep_in, _, G, options = NETS[name]
    nets = [build((rep_in, Scalar, G, options), seed=seed, free_scale=1.0).double() for seed in (0, 0)]
    net, x = nets[0], inputs(nets[0], 2, 3)
    weights = net.assemble()
    expected = lambda x: grad(lambda x: net.apply(x, weights).sum())(x)  # noqa: E731
    found = lambda x: net.gradient(x, weights)  # noqa: E731
    torch.testing.assert_close(net.gradient(x[0, 0]), expected(x[0, 0]))
    for transform in (
        lambda f: f(x),
        lambda f: torch.func.jvp(f, (x,), (x + 1,)),
        lambda f: vmap(f)(x),
        lambda f: grad(lambda x: f(x).square().sum())(x),
    ):
        torch.testing.assert_close(transform(found), transform(expected))
    stack = Ensemble(nets)
    alone = torch.stack([grad(lambda x, net=net: net(x).sum())(xi) for net, xi in zip(nets, x, strict=True)])
    for together in (grad(lambda x: stack(x).sum())(x), stack.gradient(x)):
        torch.testing.assert_close(together, alone, rtol=1e-9, atol=1e-10)
    by_stack = torch.autograd.grad(together.square().sum(), list(stack.stacked), allow_unused=True)
    for index, net in enumerate(nets):
        apart = torch.autograd.grad(
            alone[index].square().sum(), list(net.parameters()), retain_graph=True, allow_unused=True
        )
        for stacked, single in zip(by_stack, apart, strict=True):
            single = torch.zeros(()) if single is None else single
            stacked = torch.zeros_like(single) if stacked is None else stacked[index]
            torch.testing.assert_close(stacked, single.expand_as(stacked).to(stacked), rtol=1e-8, atol=1e-9)


@EVERY
def test_merged_and_frozen_networks_and_chains_of_layers_are_the_network(name):
    net = build(NETS[name]).double()
    x = inputs(net, 2, 3)
    y, merged, frozen = net(x), merge(net), freeze(net)
    assert y.is_contiguous()
    for other in (merged, frozen, Chained(net), lambda x: merged.apply(x, merged.assemble())):
        torch.testing.assert_close(other(x), y, rtol=1e-10, atol=1e-12)
    assert frozen(x[0, 0]).shape == (net.rep_out.dim,) and frozen(x[:0]).shape == (0, 3, net.rep_out.dim)
    assert not any(p.requires_grad for p in frozen.parameters())
    assert not any(isinstance(m, RelaxedLinear) for m in merged.modules())
    assert any(isinstance(m, RelaxedLinear) for m in net.modules())  # the original is left alone
    inside = merge(nn.ModuleDict({"a": nn.Sequential(net)}))
    torch.testing.assert_close(inside["a"](x), y, rtol=1e-10, atol=1e-12)
    with torch.no_grad():
        net.head.linear_pathways[-1].weight.mul_(2.0)
    assert not any(torch.allclose(other(x), net(x)) for other in (merged, frozen))


@EVERY
def test_construction_is_deterministic_and_a_checkpoint_rebuilds_it(name):
    net, again, other = (build(NETS[name], seed=seed) for seed in (0, 0, 1))
    x, file = inputs(net, 5, dtype=torch.float32), io.BytesIO()
    y = net(x)
    assert torch.equal(again(x), y) and not torch.equal(other(x), y)
    torch.save(net.state_dict(), file)
    file.seek(0)
    other.load_state_dict(torch.load(file, weights_only=True))
    for same in (other, copy.deepcopy(net), pickle.loads(pickle.dumps(net)), net.double().float()):
        assert torch.equal(same(x), y)
    with torch.device("meta"):
        empty = build_on_meta(name)
    assert {t.device.type for t in (*empty.parameters(), *empty.buffers())} == {"meta"}
    empty.to_empty(device="cpu").load_state_dict(net.state_dict())
    torch.testing.assert_close(empty(x), y)


def build_on_meta(name):
    rep_in, rep_out, G, options = NETS[name]
    options = dict(hidden=24, num_layers=2) | options
    if isinstance(G, list):
        return RPPEMLP(rep_in, rep_out, groups=G, variances=[1.0] * (len(G) + 1), **options)
    return RPPEMLP(rep_in, rep_out, G, **options)


@EVERY
def test_assembled_once_sample_by_sample_and_under_vmap_it_is_the_same(name):
    nets = members(name, 3)
    net, x = nets[0], inputs(nets[0], 4)
    weights, y = net.assemble(), inputs(net, 2, 3)
    for z in (x, y, x[:0], y[0, 0]):
        torch.testing.assert_close(net.apply(z, weights), net(z))
        assert net(z).shape == (*z.shape[:-1], net.rep_out.dim)
    (net.apply(x, weights).sum() + net.apply(x + 1, weights).sum()).backward()
    assert all(p.grad is not None for name, p in net.named_parameters())
    one = x.clone().requires_grad_()
    per_sample = vmap(grad(lambda x: net(x).square().sum()))(x)
    (together,) = torch.autograd.grad(net(one).square().sum(), one)
    torch.testing.assert_close(per_sample, together)
    base, (params, buffers) = copy.deepcopy(net), stack_module_state(nets)
    stacked = vmap(lambda p, b: functional_call(base, (p, b), (x,)))(params, buffers)
    torch.testing.assert_close(stacked, torch.stack([net(x) for net in nets]))
    loss = lambda p: functional_call(base, p, (x,)).square().mean()  # noqa: E731
    gradients = vmap(grad(loss))(params)
    for key, g in grad(loss)({k: p[0] for k, p in params.items()}).items():
        torch.testing.assert_close(gradients[key][0], g, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize(("name", "cls"), [
    *((name, RPPEMLP) for name in (*NETS, "products of SO13p", "SO13") if name in EQUIVARIANT and "normalised" not in name),
    *((name, cls) for name in ("regular", "products") for cls in (EMLP, MLP)),
])  # fmt: skip
def test_networks_run_under_autocast(name, cls):
    rep_in, _, G, options = EQUIVARIANT[name]
    net = build((rep_in, rep_in, G, options), cls)
    x = inputs(net, 8, dtype=torch.float32)
    expected = net(x).detach()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        outputs = net(x), Ensemble([net])(x.unsqueeze(0)).squeeze(0), merge(net)(x)
    for y in outputs:
        assert (y.detach().float() - expected).abs().max() < 0.1 * expected.abs().max()
    outputs[0].float().square().mean().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in net.parameters())


def test_products_lose_no_more_than_linear_layers_under_autocast():
    """Products of bf16 features lost 15 % of the output in one draw of sixty."""
    rep, lost = (Scalar + 2 * V)(SO(3)), []
    for seed in range(20):
        net = RPPEMLP(rep, rep, SO(3), hidden=16, generator=generator(seed))
        x = torch.randn(8, rep.dim, generator=generator(seed + 1000))
        expected = net(x).detach()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            lost.append(float((net(x).detach() - expected).abs().max() / expected.abs().max()))
    assert max(lost) < 0.065


ELSEWHERE = """
import warnings
import torch
from rppdyn.groups import D, SO
from rppdyn.nn import RPPEMLP, Ensemble, merge
from rppdyn.nn._compiling import compiled
from rppdyn.reps import Scalar, V

torch.manual_seed(0)
net, x = RPPEMLP(V, V, SO(3), 24, 1), torch.randn(5, 3)
y = torch.compile(net, fullgraph=True, backend="aot_eager")(x)
torch.testing.assert_close(y, net(x), rtol=1e-4, atol=1e-5)
gradients = torch.autograd.grad(y.square().sum(), list(net.parameters()))
expected = torch.autograd.grad(net(x).square().sum(), list(net.parameters()))
torch.testing.assert_close(gradients, expected, rtol=1e-3, atol=1e-4)

net = RPPEMLP(2 * V, V + Scalar, D(4), hidden=16, num_layers=1, normalisation="renorm").double()
stack, x = Ensemble([net], own=False), torch.randn(1, 8, net.rep_in.dim, dtype=torch.float64)

def gradient(vectors, running, x):
    def loss(vectors):
        y, after = stack.on_batch(x, vectors, running)
        return y.square().sum(), after

    return torch.func.grad(loss, has_aux=True)(vectors)

expected = gradient(stack.flat, stack.running, x)
found = compiled(gradient, fullgraph=True, dynamic=False, backend="aot_eager")(stack.flat, stack.running, x)
torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-11)

warnings.simplefilter("ignore")
net = RPPEMLP(Scalar + 2 * V, V, SO(3), hidden=16).eval()
x = torch.randn(4, 7)
for f in (net, merge(net)):
    for is_enabled in (True, False):
        with torch.set_grad_enabled(is_enabled):
            traced = torch.jit.trace(f, (x,))
            for given in (x, x[:2] + 1):
                torch.testing.assert_close(traced(given), f(given))
"""


def test_compiled_without_a_graph_break_and_traced_networks_compute_the_same(tmp_path):
    """In a process of its own: the shape checks that tests put around functions can be neither."""
    run_code(ELSEWHERE, folder=tmp_path)


def test_regular_representations_are_permuted():
    assert regular(D(4)).is_permutation  # what "regular" above stands on
