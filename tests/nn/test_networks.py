"""Networks: equivariance at both precisions, both limits of the variances, and every way torch may run them."""

from __future__ import annotations

import copy
import io
import pickle

import jaxtyping
import pytest
import torch
from forked import run_code
from refusals import refused
from registry import KINDS, generator
from torch import nn
from torch.func import functional_call, grad, stack_module_state, vmap

from rppdyn.groups import SL, SO, SO13, SU, D, O, S, Sp, Z
from rppdyn.nn import EMLP, MLP, RPPEMLP, RelaxedLinear, merge, named_pathways, tensor_hidden
from rppdyn.nn.hidden import component_major, hidden_representation
from rppdyn.reps import Pseudoscalar, Rep, Scalar, T, V, regular

REAL = [G for G in KINDS if not G.is_complex]


def build(cls, G, seed=0, rep_in=2 * V + Scalar, rep_out=V + Scalar, **options):
    options = dict(hidden=48, num_layers=2) | options
    return cls(rep_in, rep_out, G, generator=generator(seed), **options)


def defect(net, dtype=torch.float64):
    """|f(g x) - g f(x)| / (|f(g x)| + |g f(x)|) over seeded inputs and elements with products; NaN where f vanishes."""
    net = copy.deepcopy(net).to(dtype)
    g = net.group.samples(4, generator(11))
    g = torch.cat([g, g[:-1] @ g[1:]])
    x = torch.randn(6, net.rep_in.dim, generator=generator(12), dtype=torch.float64)
    gx = torch.einsum("gij,bj->gbi", net.rep_in.rho(g), x).to(dtype)
    a, b = net(gx).double(), torch.einsum("gij,bj->gbi", net.rep_out.rho(g), net(x.to(dtype)).double())
    return ((a - b).norm() / (a.norm() + b.norm())).item()


@pytest.mark.parametrize("G", REAL, ids=str)
def test_strict_networks_are_equivariant(G):
    for net in (build(EMLP, G), build(RPPEMLP, G, free_variance=0)):
        assert defect(net, torch.float64) < 1e-12 and defect(net, torch.float32) < 1e-5


@pytest.mark.parametrize("G", [Z(4), O(3), SO13()], ids=str)
@pytest.mark.parametrize("architecture", ["auto", "tensor"])
def test_relaxed_networks_are_nearly_so_and_dense_ones_not(G, architecture):
    assert 1e-6 < defect(build(RPPEMLP, G, architecture=architecture)) < 0.05
    assert defect(build(MLP, G)) > 1e-2
    assert defect(build(RPPEMLP, G, equivariant_variance=0, architecture=architecture)) > 1e-2


def test_training_breaks_the_symmetry_of_a_relaxed_network_only():
    for cls, least, most in ((RPPEMLP, 0.02, 1), (EMLP, 0, 1e-12)):
        net = build(cls, Z(4)).double()
        optimiser = torch.optim.Adam(net.parameters(), lr=1e-2)
        x = torch.randn(64, 9, generator=generator(1), dtype=torch.float64)
        for _ in range(30):
            optimiser.zero_grad()
            (net(x)[:, 0] - x[:, 0] ** 2).square().mean().backward()
            optimiser.step()
        assert least <= defect(net) < most


def test_without_the_equivariant_pathway_pointwise_networks_are_plain_mlps():
    net = build(RPPEMLP, Z(4), equivariant_variance=0)
    plain = nn.Sequential(nn.Linear(9, 48), nn.SiLU(), nn.Linear(48, 48), nn.SiLU(), nn.Linear(48, 5))
    linears = [*(b.linear for b in net.blocks), net.head]
    for mine, theirs in zip(linears, plain[::2], strict=True):
        theirs.load_state_dict({"weight": mine.free.weight, "bias": mine.free.bias})
    x = torch.randn(7, 9)
    assert torch.equal(net(x), plain(x))
    assert net.pathway_variances() == {name: {"free": 1.0} for name in ("blocks.0.linear", "blocks.1.linear", "head")}
    same = build(MLP, Z(4))
    assert [tuple(p.shape) for p in same.parameters()] == [tuple(p.shape) for p in net.parameters()]


def test_without_the_equivariant_pathway_gated_networks_stay_gated_and_dense():
    net = build(RPPEMLP, SO(3), equivariant_variance=0)
    assert all(block.bilinear is None and block.gate.free is not None for block in net.blocks)
    assert {name for _, name, _ in named_pathways(net)} == {"free"}
    with pytest.raises(ValueError, match="bilinear=True needs the equivariant pathway"):
        build(RPPEMLP, SO(3), equivariant_variance=0, bilinear=True)


# -- hidden representations -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "d, width, counts",
    [(2, 256, (48, 24, 12, 6, 2, 1)), (3, 384, (102, 34, 11, 3)), (3, 128, (38, 12, 3, 1)), (4, 256, (64, 16, 4, 1))],
)
def test_widths_are_shared_out_between_tensor_ranks(d, width, counts):
    G = O(d)
    rep = sum(n * T(r) for r, n in enumerate(counts))(G)
    assert tensor_hidden(width, G) == rep and rep.dim == width
    layout = hidden_representation(width, G)
    assert layout.dim == width and [len(i) for _, i in layout.blocks()] == list(counts)
    assert [part for part, _ in layout.blocks()] == [part for part, _ in rep.blocks()]


@pytest.mark.parametrize("G", [SL(2), Sp(1), SO13(), O(1), SO(2)], ids=str)
def test_every_width_is_used_up(G):
    for width in (1, 7, 64, 100):
        assert tensor_hidden(width, G).dim == width


def test_tensors_of_groups_that_are_not_orthogonal_are_split_evenly():
    parts = {(str(rep)): len(index) for rep, index in tensor_hidden(256, SO13()).blocks()}
    assert (
        parts == {"T0": 64, "T1": 8, "T1*": 8, "T2": 1, "T1*T1*": 2, "T2*T1*": 1}
        or sum(parts.values()) == 64 + 16 + 4 + 1
    )
    assert tensor_hidden(256, SO13()) == tensor_hidden(256, SO13())


@pytest.mark.parametrize("G, width", [(Z(2), 256), (S(3), 100), (D(4), 64), (Z(2) * Z(3), 31)], ids=str)
def test_finite_groups_get_copies_of_the_regular_representation(G, width):
    rep = hidden_representation(width, G)
    copies, trivial = divmod(width, G.order)
    assert rep.dim == width and rep.is_permutation
    blocks = {part: len(index) for part, index in rep.blocks()}
    assert blocks == {regular(G): copies} | ({Scalar(G): trivial} if trivial else {})
    net = build(EMLP, G, rep_in=Scalar + regular(G), rep_out=regular(G), hidden=width)
    assert all(block.bilinear is None for block in net.blocks)


def test_hidden_layers_can_be_given():
    G = SO(3)
    hidden = [20, 8 * Scalar + 4 * V, (5 * Scalar + V)(G)]
    assert [rep.dim for rep in RPPEMLP(V, Scalar, G, hidden=hidden, bilinear="published").hidden] == [20, 20, 8]
    assert [rep.dim for rep in RPPEMLP(V, Scalar, G, hidden=hidden).hidden] == [9, 20, 8]  # operands need room, too
    assert RPPEMLP(V, Scalar, G, hidden=4 * Scalar, num_layers=0)(torch.ones(3)).shape == (1,)
    assert component_major((2 * V + Scalar)(G)).dim == 7


@pytest.mark.parametrize(
    "options, words",
    [
        (dict(hidden=0), "at least 1"),
        (dict(hidden=3, architecture="regular"), "less than the order 4"),
        (dict(hidden=[8, 8], num_layers=3), "lists 2 layers"),
        (dict(num_layers=-1), "number of hidden layers"),
        (dict(hidden=V(SO(3))), "cannot lift"),
        (dict(equivariant_variance=0, free_variance=0), "no pathway"),
    ],
)
def test_impossible_networks_are_refused_by_name(options, words):
    with pytest.raises(ValueError, match=words):
        build(RPPEMLP, Z(4), **options)


def test_groups_without_a_regular_representation_and_complex_groups_are_refused():
    with pytest.raises(ValueError, match="no enumerated regular representation"):
        build(EMLP, SO(3), architecture="regular")
    with pytest.raises(ValueError, match="write it as a real group"):
        build(EMLP, SU(2))


# -- prior, merging, reports ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cls", [RPPEMLP, EMLP, MLP])
@pytest.mark.parametrize("G", [Z(4), SO(3)], ids=str)
def test_merging_keeps_the_function(cls, G):
    net = build(cls, G, hidden=130 if G.order else 40).double()
    merged = merge(net)
    x = torch.randn(5, net.rep_in.dim, dtype=torch.float64)
    torch.testing.assert_close(merged(x), net(x), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(merged.apply(x, merged.assemble()), net(x), rtol=1e-12, atol=1e-12)
    assert not any(isinstance(m, RelaxedLinear) for m in merged.modules())
    assert sum(isinstance(m, nn.Linear) for m in merged.modules()) == 3
    assert any(isinstance(m, RelaxedLinear) for m in net.modules())  # the original is left alone
    assert [b.bilinear is None for b in merged.blocks] == [b.bilinear is None for b in net.blocks]


def test_networks_inside_other_modules_are_merged():
    agent = nn.ModuleDict({"actor": build(EMLP, Z(4), hidden=128), "critic": build(RPPEMLP, SO(3))})
    merged = merge(agent)
    for name, net in agent.items():
        x = torch.randn(5, net.rep_in.dim)
        torch.testing.assert_close(merged[name](x), net(x), rtol=1e-4, atol=1e-5)
    assert not any(isinstance(m, RelaxedLinear) for m in merged.modules())


def test_variances_and_norms_are_reported_by_layer_and_pathway():
    net = build(RPPEMLP, SO(3), equivariant_variance=100.0, free_variance=0.25)
    variances, norms = net.pathway_variances(), net.pathway_norms()
    assert set(variances) == {f"blocks.{i}.{part}" for i in (0, 1) for part in ("linear", "bilinear", "gate")} | {
        "head"
    }
    assert variances["head"] == {"equivariant": 100.0, "free": 0.25}
    assert variances["blocks.0.gate"] == {"free": 0.25}
    assert norms.keys() == variances.keys()
    assert norms["head"]["free"] == pytest.approx(net.head.free.weight.norm().item())
    assert norms["head"]["equivariant"] == pytest.approx(
        (net.head.assemble()[0] - net.head.free.weight).norm().item(), rel=1e-4
    )


def test_print_shows_representations_and_counts():
    text = repr(build(RPPEMLP, SO(3), hidden=20))
    assert "2*T1 + T0 -> T1 + T0, SO(3)" in text
    assert "free): FreePathway(36 weights, 4 biases, variance=1" in text and "EquivariantPathway(" in text


def test_output_scale_shrinks_both_pathways_of_the_last_layer_only():
    for cls in (RPPEMLP, MLP, EMLP):
        whole, small = build(cls, Z(4)), build(cls, Z(4), output_scale=0.01)
        x = torch.randn(5, 9)
        torch.testing.assert_close(small(x), 0.01 * whole(x))
        for pathway in small.head.linear_pathways:
            torch.testing.assert_close(
                100 * pathway.weight, whole.head.get_submodule(_name(small.head, pathway)).weight
            )


def _name(parent, child):
    return next(name for name, module in parent.named_children() if module is child)


# -- state, copies, transforms ----------------------------------------------------------------------------------------

CASES = [(RPPEMLP, Z(4), {}), (EMLP, Z(2), dict(hidden=128)), (RPPEMLP, SO(3), {}), (EMLP, Sp(1), {}), (MLP, D(4), {})]
IDS = [f"{cls.__name__}-{G}" for cls, G, _ in CASES]


@pytest.mark.parametrize("cls, G, options", CASES, ids=IDS)
def test_construction_is_deterministic_and_a_checkpoint_rebuilds_it(cls, G, options):
    net, again, other = (build(cls, G, seed, **options) for seed in (0, 0, 1))
    x = torch.randn(5, net.rep_in.dim)
    y = net(x)
    assert torch.equal(again(x), y) and not torch.equal(other(x), y)
    file = io.BytesIO()
    torch.save(net.state_dict(), file)
    file.seek(0)
    other.load_state_dict(torch.load(file, weights_only=True))
    for same in (other, copy.deepcopy(net), pickle.loads(pickle.dumps(net)), net.double().float()):
        assert torch.equal(same(x), y)


@pytest.mark.parametrize("cls, G, options", CASES, ids=IDS)
def test_assembling_once_is_the_same(cls, G, options):
    net = build(cls, G, **options)
    x, y = torch.randn(5, net.rep_in.dim), torch.randn(2, 3, net.rep_in.dim)
    weights = net.assemble()
    assert torch.equal(net.apply(x, weights), net(x)) and torch.equal(net.apply(y, weights), net(y))
    assert net(x[:0]).shape == (0, net.rep_out.dim)
    assert net(y).shape == (2, 3, net.rep_out.dim) and net(y[0, 0]).shape == (net.rep_out.dim,)
    (net.apply(x, weights).sum() + net.apply(x + 1, weights).sum()).backward()
    assert all(p.grad is not None for p in net.parameters())


@pytest.mark.parametrize("cls, G, options", CASES, ids=IDS)
def test_one_sample_differentiates_and_so_do_many_under_vmap(cls, G, options):
    net = build(cls, G, **options).double()
    x = torch.randn(4, net.rep_in.dim, dtype=torch.float64, requires_grad=True)
    per_sample = vmap(grad(lambda x: net(x).square().sum()))(x.detach())
    (together,) = torch.autograd.grad(net(x).square().sum(), x)
    (alone,) = torch.autograd.grad(net(x[0]).square().sum(), x)
    torch.testing.assert_close(per_sample, together)
    torch.testing.assert_close(alone[0], together[0])
    own = grad(lambda p: functional_call(net, p, (x[0],)).square().sum())(dict(net.named_parameters()))
    (net(x[:1]).square().sum()).backward()
    for name, p in net.named_parameters():
        torch.testing.assert_close(own[name], p.grad)


def test_shapes_are_checked_while_tests_run():
    with pytest.raises(jaxtyping.TypeCheckError, match="forward"):
        build(MLP, Z(2))(torch.ones(5, dtype=torch.int64))


def test_module_apply_still_maps_a_function():
    seen = []
    build(RPPEMLP, Z(2)).apply(lambda module: seen.append(type(module).__name__))
    assert "RPPEMLP" in seen and "FreePathway" in seen


@pytest.mark.parametrize("cls, G, options", CASES, ids=IDS)
def test_vmap_over_stacked_parameters(cls, G, options):
    nets = [build(cls, G, seed, **options) for seed in range(3)]
    x = torch.randn(5, nets[0].rep_in.dim)
    base = copy.deepcopy(nets[0])
    params, buffers = stack_module_state(nets)

    def loss(params, buffers, x):
        return functional_call(base, (params, buffers), (x,)).square().mean()

    stacked = vmap(lambda p, b: functional_call(base, (p, b), (x,)))(params, buffers)
    for net, y in zip(nets, stacked, strict=True):
        torch.testing.assert_close(y, net(x), rtol=1e-4, atol=1e-5)
    # members that share their buffers, as seeds of one construction do
    shared = {name: b[0] for name, b in buffers.items()}
    gradients = vmap(grad(loss), in_dims=(0, None, None))(params, shared, x)
    own = grad(loss)({k: p[1] for k, p in params.items()}, shared, x)
    for key, g in own.items():
        torch.testing.assert_close(gradients[key][1], g, rtol=1e-3, atol=1e-5)


COMPILE = """
import sys, torch
from rppdyn import nn
from rppdyn.groups import SO, Z
from rppdyn.reps import V, Scalar

backend, *cases = sys.argv[1:]
for case in cases:
    torch.manual_seed(0)
    net = eval("nn." + case)
    x = torch.randn(5, net.rep_in.dim)
    y = torch.compile(net, fullgraph=True, backend=backend)(x)
    torch.testing.assert_close(y, net(x), rtol=1e-4, atol=1e-5)
    y.square().sum().backward()
    gradients = [p.grad.clone() for p in net.parameters()]
    net.zero_grad()
    net(x).square().sum().backward()
    for g, p in zip(gradients, net.parameters(), strict=True):
        torch.testing.assert_close(g, p.grad, rtol=1e-3, atol=1e-4)
"""
COMPILED = ["EMLP(V, V, Z(2), 128, 1)", "RPPEMLP(V, V, SO(3), 24, 1)", "MLP(V, V, Z(2), 8, 1)"]


def test_compile_without_a_graph_break(tmp_path):
    """In a process of its own: the shape checks that tests put around functions can't be compiled."""
    run_code(COMPILE, "aot_eager", *COMPILED, folder=tmp_path)


def test_representations_of_factors_and_of_generators_work_end_to_end():
    G = SO(3) * Z(4)
    net = EMLP(V(SO(3)) + V(Z(4)).lift(G), V(SO(3)), G, hidden=40, num_layers=2, generator=generator())
    assert defect(net) < 1e-12
    H = Z(2)
    sign = Rep.from_generators(H, discrete_generators=[[[-1.0]]], name="sign")
    assert defect(EMLP(sign + V, sign, H, hidden=16, num_layers=1, generator=generator())) < 1e-12
    assert defect(EMLP(Pseudoscalar + V, Pseudoscalar, S(3), hidden=24, num_layers=2, generator=generator())) < 1e-12


def test_bilinear_layers_before_point_wise_activations():
    net = EMLP(V, V, S(3), 2 * Scalar + 2 * V + T(2), 1, bilinear=True, generator=generator())
    assert defect(net) < 1e-12
    x = torch.randn(4, 3)
    y = net(x)
    torch.nn.init.zeros_(net.blocks[0].bilinear.equivariant.weight)
    assert not torch.allclose(net(x), y)


@pytest.mark.parametrize("bilinear", [False, True])
def test_a_network_is_its_layers_one_after_the_other(bilinear):
    """Features are kept with the samples last between layers; what the layers compute one by one is the same."""
    net = build(RPPEMLP, SO(3), bilinear=bilinear).double()
    x = torch.randn(2, 5, net.rep_in.dim, dtype=torch.float64)
    y = x
    for block in net.blocks:
        y = block.linear(y).contiguous()
        y = block.gate(y if block.bilinear is None else block.bilinear(y).contiguous())
    y = net.head(y)
    torch.testing.assert_close(net(x), y)
    assert net(x).is_contiguous()


GRADIENTS = [*CASES, (MLP, Z(2), {}), (EMLP, Z(4), {"hidden": 128}), (RPPEMLP, SO(3), {"hidden": 2 * V + 5 * Scalar})]


@pytest.mark.parametrize("cls, G, options", GRADIENTS, ids=str)
def test_the_gradient_is_that_of_autograd_and_differentiates_in_every_way(cls, G, options):
    net = build(cls, G, rep_out=Scalar, **options).double()
    weights = net.assemble()
    x = torch.randn(2, 3, net.rep_in.dim, dtype=torch.float64, generator=generator(1))

    def expected(x, weights=weights):
        return grad(lambda x: net.apply(x, weights).sum())(x)

    def found(x, weights=weights):
        return net.gradient(x, weights)

    torch.testing.assert_close(found(x), expected(x))
    torch.testing.assert_close(net.gradient(x[0, 0]), expected(x[0, 0]))
    for transform in (
        lambda f: torch.func.jvp(f, (x,), (x + 1,)),
        lambda f: torch.vmap(f)(x),
        lambda f: grad(lambda x: f(x).square().sum())(x),
        lambda f: torch.autograd.grad(f(x, net.assemble()).square().sum(), list(net.parameters()), allow_unused=True),
    ):
        torch.testing.assert_close(transform(found), transform(expected))


def test_inputs_of_another_size_are_refused_by_name():
    net = EMLP(2 * V + Scalar, V, SO(3), hidden=40)
    for call in (net, net.apply):
        with pytest.raises(
            ValueError, match=r"shape \(7, 3\): the last axis must have 7 entries, .* 2\*T1 \+ T0 of SO\(3\)"
        ):
            call(torch.randn(7, 3))
    with pytest.raises(ValueError, match="the last axis must have 6 entries"):
        MLP(2 * V, Scalar, SO(3), hidden=8).gradient(torch.randn(7, 3))


def test_a_gradient_of_several_outputs_is_refused():
    with pytest.raises(ValueError, match="a gradient is of one number"):
        build(MLP, Z(2)).gradient(torch.randn(3, 5))


@pytest.mark.parametrize(
    ("rep_in", "rep_out", "G", "hidden", "layer"),
    [
        (V, V, SO(3), 8 * Scalar, "blocks.0.linear"),
        (V + Scalar, V, SO(3), 8 * Scalar, "head"),
        (V, Scalar, SO(3), 8 * Scalar, "blocks.0.linear"),
        (V, V, O(3), Scalar + T(2), "blocks.0.linear"),
        (V, Pseudoscalar, O(3), 16, "head"),  # that many channels end at vectors
        (V, V, SO(3), [16, 8 * Scalar, 32], "head"),  # what is left are traces, which no vector is made of
        (V + Scalar, V, SO(3), [8 * Scalar, 32], "head"),
        (Scalar, V, SO(3), 16, "head"),
        (V, Pseudoscalar, S(3), 8 * Scalar, "head"),
    ],
)
def test_a_strict_network_that_lets_nothing_through_is_refused_by_name(rep_in, rep_out, G, hidden, layer):
    for make in (EMLP, lambda *args, **kwargs: RPPEMLP(*args, free_variance=0, **kwargs)):
        with refused(f"{layer} lets nothing through", str(G), "RPPEMLP"):
            make(rep_in, rep_out, G, hidden=hidden, bilinear="published")
    x = torch.randn(8, rep_in(G).dim, generator=generator())
    assert RPPEMLP(rep_in, rep_out, G, hidden=hidden, generator=generator())(x).std(0).max() > 0
    MLP(rep_in, rep_out, G, hidden=hidden)


def test_a_part_of_the_output_that_ignores_the_input_is_warned_of():
    with pytest.warns(UserWarning, match="parts T1 of the output T0 . T1 of SO.3. don't depend on the input"):
        net = EMLP(V + Scalar, Scalar + V, SO(3), hidden=8 * Scalar)
    y = net(torch.randn(8, 4, generator=generator()))
    assert (y[:, 1:] == 0).all() and y[:, 0].std() > 0


@pytest.mark.parametrize("hidden", [16, V + 8 * Scalar, [16, 4 * T(2) + Scalar]])
def test_strict_networks_that_let_something_through_are_not_refused(hidden):
    net = EMLP(V, Scalar + T(2), SO(3), hidden=hidden, generator=generator())
    assert (net(torch.randn(8, 3, generator=generator())).std(0) > 0).all()


def test_products_of_operands_let_an_input_through_that_no_linear_map_does():
    net = EMLP(V, Scalar, SO(3), hidden=8 * Scalar, bilinear="channelwise", generator=generator())
    assert net(torch.randn(8, 3, generator=generator())).std() > 0
    with refused("head lets nothing through"):
        EMLP(V, V, SO(3), hidden=8 * Scalar, bilinear="channelwise")


@pytest.mark.parametrize("hidden", [V**9, V**17, 20000 * Scalar])
def test_networks_beyond_memory_are_refused_before_anything_is_solved(hidden):
    with refused("to keep account of its", "use a lower tensor power"):
        EMLP(V, V, SO(3), hidden=hidden)


def test_a_product_of_groups_may_be_given_in_another_order():
    rotations, atoms = SO(3), S(3)
    rep = V(atoms) + V(atoms) * V(rotations)
    for G in (atoms * rotations, rotations * atoms):
        net = EMLP(rep, V(rotations), G, hidden=32, generator=generator()).double()
        x, g = torch.randn(6, 12, generator=generator()).double(), G.samples(6, generator(1))
        y, image = net(x), net(torch.einsum("nij,nj->ni", net.rep_in.rho(g), x))
        torch.testing.assert_close(image, torch.einsum("nij,nj->ni", net.rep_out.rho(g), y))


TRACE = """
import torch, warnings
from rppdyn.groups import SO
from rppdyn.nn import RPPEMLP, merge
from rppdyn.reps import Scalar, V
warnings.simplefilter("ignore")
net = RPPEMLP(Scalar + 2 * V, V, SO(3), hidden=16).eval()
x = torch.randn(4, 7)
for f in (net, merge(net)):
    for grad in (True, False):
        with torch.set_grad_enabled(grad):
            traced = torch.jit.trace(f, (x,))
            for inputs in (x, x[:2] + 1):
                torch.testing.assert_close(traced(inputs), f(inputs))
"""


def test_traced_networks_compute_the_same(tmp_path):
    """In a process of its own: checks of shapes, which tests run with, are no part of a traced network."""
    run_code(TRACE, folder=tmp_path)


def test_a_network_without_data_can_be_printed():
    net = RPPEMLP(V, V, SO(3), hidden=16)
    assert "unknown" not in repr(net) and "variance=unknown" in repr(net.to("meta"))
