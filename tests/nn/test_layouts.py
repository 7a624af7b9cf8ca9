"""A state dict belongs to one layout: bases stay out of it, words and numbers for the layout go in, others are refused."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch
from registry import generator
from safetensors.torch import load_file, save_file
from torch import nn

from rppdyn.equivariance import equivariance_error
from rppdyn.groups import SO, Group, O, S, Z
from rppdyn.nn import EMLP, RPPEMLP, Bilinear, ChannelProducts, Ensemble, Gate, InvariantNormaliser, RelaxedLinear
from rppdyn.nn._coefficients import CoefficientMap
from rppdyn.reps import Pseudoscalar, Scalar, T, V

SO3, O3, Z4 = SO(3), O(3), Z(4)
ABOUT_X = Group("G", discrete_generators=[[[1.0, 0, 0], [0, -1, 0], [0, 0, -1]]])
ABOUT_Z = Group("G", discrete_generators=[[[-1.0, 0, 0], [0, -1, 0], [0, 0, 1]]])

PAIRS = {
    "sums in another order": ((T(0) + 2 * T(1))(SO3), (2 * T(1) + T(0))(SO3)),
    "a finite group's": ((T(0) + T(1))(Z4), (T(1) + T(0))(Z4)),
    "groups of one name": ((T(0) + T(1))(ABOUT_X), (T(0) + T(1))(ABOUT_Z)),
    "other parts of the same size": ((3 * Pseudoscalar + T(1))(O3), (T(1) + 3 * Pseudoscalar)(O3)),
}
BUILDERS = {
    "RPPEMLP": lambda rep: RPPEMLP(rep, rep, rep.G, hidden=16, num_layers=1, generator=generator()),
    "in a module": lambda rep: nn.ModuleDict({"net": nn.Sequential(RelaxedLinear(rep, rep, generator=generator()))}),
    "Ensemble": lambda rep: Ensemble([RelaxedLinear(rep, rep, generator=generator(seed)) for seed in range(2)]),
    "normaliser": lambda rep: InvariantNormaliser(rep),
}


@pytest.mark.filterwarnings("ignore:parts")
@pytest.mark.parametrize("build", BUILDERS)
@pytest.mark.parametrize("pair", PAIRS)
def test_weights_of_another_layout_are_refused_by_both_names(pair, build):
    a, b = PAIRS[pair]
    first, second = BUILDERS[build](a), BUILDERS[build](b)
    before = copy.deepcopy(second.state_dict())
    for strict in (True, False):
        with pytest.raises(ValueError) as refused:
            second.load_state_dict(first.state_dict(), strict=strict)
        assert "\n" not in str(refused.value)
        assert all(f"{rep} of {rep.G}" in str(refused.value) or f"{rep} ->" in str(refused.value) for rep in (a, b))
    assert all(torch.equal(x, before[name]) for name, x in second.state_dict().items())


@pytest.mark.parametrize("first, second", [
    (Gate((2 * Scalar + 3 * V)(SO3), free_variance=1.0), Gate((3 * V + 2 * Scalar)(SO3), free_variance=1.0)),
    (Bilinear((Scalar + 2 * V + T(2))(SO3)), Bilinear((2 * V + Scalar + T(2))(SO3))),
    (ChannelProducts((2 * V + Scalar)(SO3), channels=2), ChannelProducts((Scalar + 2 * V)(SO3), channels=2)),
    (RPPEMLP(V, V, SO3, [(4 * V + Scalar)(SO3)]), RPPEMLP(V, V, SO3, [(Scalar + 4 * V)(SO3)])),
], ids=lambda module: type(module).__name__)  # fmt: skip
def test_so_are_those_of_other_layers(first, second):
    with pytest.raises(ValueError, match="and the state dict has weights of"):
        second.load_state_dict(first.state_dict())


def with_bases(module):
    """What an earlier version saved: bases and indices in place of the layout."""
    state = {name: t for name, t in module.state_dict().items() if not name.endswith("layout")}
    for path, child in module.named_modules():
        for name in getattr(child, "_constants", {}):
            if name != "layout":
                state[f"{path}.{name}".lstrip(".")] = child.get_buffer(name)
    return state


@pytest.mark.filterwarnings("ignore:parts")
@pytest.mark.parametrize("build", BUILDERS)
@pytest.mark.parametrize("pair", PAIRS)
def test_earlier_files_are_judged_by_the_bases_that_they_hold(pair, build):
    a, b = PAIRS[pair]
    first, second, own = BUILDERS[build](a), BUILDERS[build](b), BUILDERS[build](a)
    if build == "normaliser" and pair == "groups of one name":
        return  # whose components are the same, and statistics hold no more
    with pytest.raises(ValueError, match="another layout, by the basis that it holds"):
        second.load_state_dict(with_bases(first))
    for p in own.parameters():
        nn.init.zeros_(p)
    own.load_state_dict(with_bases(first))
    assert own.state_dict().keys() == first.state_dict().keys()
    assert all(torch.equal(x, first.state_dict()[name]) for name, x in own.state_dict().items())


def with_other_bases(module):
    """The same functions, as an earlier version saved them whose solver gave other bases of the same spaces."""
    state = with_bases(module)
    for path, child in module.named_modules():
        if isinstance(child, CoefficientMap) and child.rank:
            rows, cols, values = child.entries()
            Q = torch.zeros(child.size, child.rank).double().index_put_((rows, cols), values / child.scale_exact[cols])
            R = torch.linalg.qr(torch.randn(child.rank, child.rank, generator=generator(1)).double())[0]
            for name in ("index", "values_exact", "scale_exact"):
                state.pop(f"{path}.{name}", None)
            rows, cols = (Q @ R).nonzero(as_tuple=True)
            old = dict(rows=rows, cols=cols, values_exact=(Q @ R)[rows, cols], scale_exact=torch.ones(child.rank))
            state |= {f"{path}.{name}": t.double() if t.is_floating_point() else t for name, t in old.items()}
            parameter = path.removesuffix("_map")
            state[parameter] = (state[parameter] * child.scale_exact) @ R
        if isinstance(child, ChannelProducts):
            state[f"{path}.products_exact"] = -state[f"{path}.products_exact"]
            state[f"{path}.equivariant.weight"] = -state[f"{path}.equivariant.weight"]
    return state


@pytest.mark.parametrize("members", [1, 3])
def test_coefficients_of_another_basis_of_the_same_maps_are_converted(members):
    rep = (Scalar + 2 * V + T(2))(SO3)

    def build(seed):
        return RPPEMLP(rep, rep, SO3, hidden=32, num_layers=1, free_variance=1e-9, generator=generator(seed)).double()

    nets = [build(seed) for seed in range(members)]
    if members == 1:
        net, other, saved = nets[0], build(9), with_other_bases(nets[0])
    else:
        net, other = Ensemble(nets), Ensemble([build(seed) for seed in range(9, 9 + members)])
        each = [with_other_bases(one) for one in nets]
        saved = {f"net.{name}": torch.stack([s[name] for s in each]) if name in dict(nets[0].named_parameters())
                 else t for name, t in each[0].items()}  # fmt: skip
    file = io.BytesIO()
    torch.save(saved, file)
    file.seek(0)
    other.load_state_dict(torch.load(file, weights_only=True))
    for name, tensor in net.state_dict().items():
        torch.testing.assert_close(other.state_dict()[name], tensor, rtol=1e-10, atol=1e-10)
    wrong = {name: t.flip(0) if name.endswith("weight_map.rows") else t for name, t in saved.items()}
    with pytest.raises(ValueError, match="another layout, by the basis that it holds"):
        other.load_state_dict(wrong)


@pytest.mark.parametrize("G", [SO(3), SO(2), O(3), SO(3) * Z(2)], ids=str)
def test_canonical_bases_follow_from_the_subspace_alone(G):
    basis = (V * V + V >> V * V + V)(G).solve() if G.d < 4 else (V >> V)(G).solve()
    own = basis.canonical()
    q, dense = own.dense(), basis.dense()
    torch.testing.assert_close(q @ q.T, dense @ dense.T, rtol=1e-12, atol=1e-12)
    for block in basis.blocks:
        if block.rank > 1 and block.basis.kind != "orbits":
            rotated = copy.copy(block.basis.canonical)
            rotated.__dict__.pop("canonical", None)
            rotated.__dict__.pop("_q", None)
            rotation = torch.linalg.qr(
                torch.randn(block.rank // block.multiplicity, block.rank // block.multiplicity).double()
            )[0]
            rotated.q = block.basis.canonical.q @ rotation.numpy()
            torch.testing.assert_close(rotated.canonical.dense(), block.basis.canonical.dense(), rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize(
    "G, rep", [(O(3), 5 * T(0) + 5 * T(1)), (S(4), T(1) + T(2)), (SO(2), T(0) + 3 * T(1))], ids=str
)
def test_files_have_the_size_of_the_weights(G, rep):
    net, file = RPPEMLP(rep, T(1), G, hidden=48), io.BytesIO()
    torch.save(net.state_dict(), file)
    assert file.tell() < 1.5 * 4 * sum(p.numel() for p in net.parameters())


def test_layouts_go_through_files_copies_and_devices(tmp_path):
    rep = (T(0) + 2 * T(1))(SO3)
    net = RPPEMLP(rep, rep, SO3, hidden=16, generator=generator())
    save_file({name: t.clone() for name, t in net.state_dict().items()}, tmp_path / "net.safetensors")
    for copied in (copy.deepcopy(net), pickle.loads(pickle.dumps(net)), copy.deepcopy(net).double().half().float()):
        copied.load_state_dict(load_file(tmp_path / "net.safetensors"))
        torch.testing.assert_close(copied(torch.ones(1, rep.dim)), net(torch.ones(1, rep.dim)))
    exact = pickle.loads(pickle.dumps(net)).half().double()
    strict = EMLP(rep, rep, SO3, hidden=16).half().double()
    assert exact.head.equivariant.weight_map.values.dtype == torch.float64
    assert equivariance_error(strict, rep, rep, torch.randn(9, rep.dim).double()).mean < 1e-12
    empty = copy.deepcopy(net).to("meta").to_empty(device="cpu")
    empty.load_state_dict(net.state_dict())
    torch.testing.assert_close(empty(torch.ones(1, rep.dim)), net(torch.ones(1, rep.dim)))
