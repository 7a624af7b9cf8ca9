"""Image pathways: what they compute, which shifts and rotations they commute with, and their curvature."""

from __future__ import annotations

import warnings

import pytest
import torch
from factors import whole
from image_pathways import IN, OUT, PATHWAYS, SHARED, SIZE, STATIONARY, dense, images, pathway, relative
from refusals import refused
from registry import generator
from torch.func import functional_call, vmap

from rppdyn.images import Convolution, FactoredFullyConnected, FullyConnected, RelaxedImageLayer, SparseFullyConnected
from rppdyn.images._pathways import circular_pad
from rppdyn.nn._pathways import named_pathways
from rppdyn.priors import negative_log_prior

EXACT_COEFFICIENTS = ("a", "offset")
"""Of separable group convolutions: those whose gradients are formed for each datum."""

SHIFTS = [(i, j) for i in range(SIZE[0]) for j in range(SIZE[1])][1:]


def shift_error(f, x, shift):
    """Of the output's maps, which move with the input's; maps of one pixel stay."""
    moved = lambda t: torch.roll(t, shift, (-2, -1))  # noqa: E731
    return relative(f(moved(x)), moved(f(x)))


@pytest.mark.parametrize("name", PATHWAYS)
def test_shifts(name):
    """Convolutions commute with every circular shift; what should know positions does not."""
    f, x = pathway(name), images()
    errors = [shift_error(f, x, shift) for shift in SHIFTS]
    if name in STATIONARY:
        assert max(errors) < 1e-12
    else:
        assert min(errors) > 0.05


@pytest.mark.parametrize("name", PATHWAYS)
def test_affine_in_the_image(name):
    """A bias is constant, what is not one is linear; and a sample's output does not depend on its batch."""
    f, x = pathway(name), images(5)
    if name == "gconv, separable":  # linear but for its offsets
        torch.nn.init.zeros_(f.offset)
    zero = f(torch.zeros_like(x[:1]))
    if "bias" in name:
        assert torch.equal(f(x), zero.expand(5, -1, -1, -1))
    else:
        assert not zero.any()
        assert relative(f(x[:1] + 2 * x[1:2]), f(x[:1]) + 2 * f(x[1:2])) < 1e-13
    assert relative(f(x)[3:], f(x[3:])) < 1e-14


def test_factored_is_its_dense_matrix():
    f, x = pathway("f_fc"), images()
    weight = torch.einsum("dcq,dcp->dqcp", f.V, f.U).reshape(OUT * 16, IN * 16)
    assert relative(f(x).flatten(1), x.flatten(1) @ weight.T) < 1e-14
    assert relative(dense(f, x), weight) < 1e-14
    assert torch.linalg.matrix_rank(weight[:16]) == IN  # of one output channel: rank one for each input channel


def test_convolution_is_torchs_on_a_torus():
    f, x = pathway("conv"), images()
    peer = torch.nn.Conv2d(IN, OUT, 3, padding=1, padding_mode="circular", bias=False).double()
    peer.weight = f.weight
    assert relative(f(x), peer(x)) < 1e-14


def test_convolution_of_one_pixel_maps_sees_it_at_every_tap():
    f = Convolution(IN, OUT, generator=generator()).double()
    x = images(size=(1, 1))
    assert relative(f(x)[:, :, 0, 0], x[:, :, 0, 0] @ f.weight.sum((2, 3)).T) < 1e-14


@pytest.mark.parametrize("name", PATHWAYS)
def test_coefficients_are_multiples_of_the_parameters_that_are_named(name):
    f = pathway(name)
    before = [c.detach().clone() for c in f.coefficients()]
    with torch.no_grad():
        for leaf in f.coefficient_names():
            f.get_parameter(leaf).mul_(3)
    for c, old in zip(f.coefficients(), before, strict=True):
        assert torch.equal(c, 3 * old)


ROTATING = {"gconv": 1.0, "gconv_pointwise": 1.0, "conv": 1.0, "fc": 1.0}


@pytest.mark.parametrize(
    ("pathways", "sizes"),
    [
        *(({kind: 1.0}, {kind: 1.5}) for kind in ("conv", "fc", "f_fc", "s_fc")),
        *(({kind: 1.0, "conv": 1.0}, {kind: 0.045, "conv": 1.5}) for kind in ("fc", "f_fc", "s_fc")),
        (ROTATING, dict.fromkeys(("gconv", "gconv_pointwise"), 1.5 * 0.5**0.5) | dict.fromkeys(("conv", "fc"), 0.045)),
    ],
    ids=str,
)
def test_initial_outputs_have_the_gain_and_those_of_less_symmetric_pathways_start_small(pathways, sizes):
    x = torch.randn(64, 16, 8, 8, generator=generator(3))
    options = dict(orientations=(4, 4)) if "gconv" in pathways else {}
    layer = RelaxedImageLayer(16, 32, (8, 8), pathways, gain=1.5, free_scale=0.03, generator=generator(), **options)
    for name, size in sizes.items():
        assert abs(layer.get_submodule(name)(x).std() / size - 1) < 0.1, name


def test_initial_weights_are_never_wider_than_the_prior():
    wide, narrow = (FullyConnected(2, 2, SIZE, v, generator=generator()) for v in (1.0, 1e-6))
    assert abs(narrow.weight.std() - 1e-3) < 1e-4 < wide.weight.std()


def gauss_newton(f, x, g):
    """Rows whose outer products add up to the exact matrix, of each tensor of coefficients by itself: (S N, n)."""
    names = [name for c in f.coefficients() for name, p in f.named_parameters() if p is c]
    parameters = {name: p.detach() for name, p in f.named_parameters()}

    def loss(own, x, g):
        return (functional_call(f, parameters | own, (x[None],)) * g).sum()

    own = {name: parameters[name] for name in names}
    rows = vmap(vmap(torch.func.grad(loss), (None, 0, 0)), (None, None, 0))(own, x, g)
    return {name: rows[name].flatten(2).flatten(0, 1) for name in names}


def coefficients(f):
    return {name: p.detach() for c in f.coefficients() for name, p in f.named_parameters() if p is c}


def curvature(f, x, g):
    """Its blocks with both factors as matrices."""
    return [whole(block) for block in f.curvature(x, g)]


def kronecker(block, n):
    """``A (x) G`` of every block, in the order (input, output), with A divided by the number of data."""
    A, G = block.A.reshape(-1, *block.A.shape[-2:]) / n, block.G.reshape(-1, *block.G.shape[-2:])
    assert len(A) == len(G)
    return [torch.kron(a, b) for a, b in zip(A, G, strict=True)]


def gradients(f, x, factors, seed=5):
    return torch.randn(factors, *f(x).shape, generator=generator(seed), dtype=torch.float64)


@pytest.mark.parametrize("name", PATHWAYS)
def test_curvature_counts_every_coefficient(name):
    f, x = pathway(name), images(3)
    blocks = curvature(f, x, gradients(f, x, 2))
    assert len(blocks) == len(f.coefficients())
    for block, c in zip(blocks, f.coefficients(), strict=True):
        count = block.A[..., 0, 0].numel() * block.A.shape[-1] * block.G.shape[-1]
        assert count == c.numel()
        for factor in (block.A, block.G):
            assert relative(factor, factor.mT) < 1e-12
            assert torch.linalg.eigvalsh(factor).min() > -1e-9 * factor.norm()


@pytest.mark.parametrize("name", sorted(SHARED))
def test_curvature_of_shared_filters_is_that_of_the_places_they_are_used_at(name):
    """A from derivatives of a field's outputs by its own coefficients, G from the mean of gradients over places."""
    f, x = pathway(name), images(2)
    g = gradients(f, x, 3)
    for block, (key, c) in zip(curvature(f, x, g), coefficients(f).items(), strict=True):
        if key in EXACT_COEFFICIENTS:
            continue
        fields = len(c)
        call = lambda p, key=key: functional_call(f, {key: p}, (x,))  # noqa: E731
        derivatives = torch.func.jacrev(call)(c).flatten(2, 3).unflatten(1, (fields, -1))
        of_fields = (
            g.flatten(3).unflatten(2, (fields, -1)).transpose(2, 3).flatten(3)
        )  # (S, N, orientations, fields x places)
        of_fields = of_fields.unflatten(3, (fields, -1)).transpose(3, 4).flatten(0, 3)
        G = of_fields.mT @ of_fields / (derivatives.shape[2] * derivatives.shape[3])
        for d in range(fields):
            rows = derivatives[:, d, :, :, d].flatten(0, 2).flatten(1)
            assert relative(block.A, rows.mT @ rows) < 1e-12
        assert relative(block.G, G) < 1e-12


def test_depthwise_filters_and_offsets_of_separable_group_convolutions_have_exact_curvature():
    """Of several images too: gradients of each are formed."""
    f, x = pathway("gconv, separable"), images(3)
    g = gradients(f, x, 2)
    exact = gauss_newton(f, x, g)
    for key, block in zip(exact, curvature(f, x, g), strict=True):
        if key in EXACT_COEFFICIENTS:
            assert relative(kronecker(block, 3)[0], exact[key].mT @ exact[key]) < 1e-12


def test_blocks_of_the_factored_pathway_are_those_of_the_exact_matrix():
    """Of U for each input channel, ordered (pixel, output channel); of V for each output channel, (input channel, pixel)."""
    f, x = pathway("f_fc"), images(1)
    g = gradients(f, x, 3)
    exact = gauss_newton(f, x, g)
    exact = {name: rows.mT @ rows for name, rows in exact.items()}
    of_u = exact["U"].view(OUT, IN, 16, OUT, IN, 16)
    of_v = exact["V"].view(OUT, IN, 16, OUT, IN, 16)
    U, V = (kronecker(block, 1) for block in curvature(f, x, g))
    for c in range(IN):
        assert relative(U[c], of_u[:, c, :, :, c].permute(1, 0, 3, 2).reshape(16 * OUT, -1)) < 1e-12
    for d in range(OUT):
        assert relative(V[d], of_v[d, :, :, d].reshape(IN * 16, -1)) < 1e-12


@pytest.mark.parametrize("kind", ["conv", "fc"])
def test_curvature_is_that_of_curvlinops(kind):
    """Peer: KFAC-expand of a layer of torch's, of the same regression loss; of images that are padded already."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # torch.jit.script, in one of its requirements
        curvlinops = pytest.importorskip("curvlinops")
    f, x = pathway(kind), images(3)
    layer = (
        torch.nn.Conv2d(IN, OUT, 3, bias=False) if kind == "conv" else torch.nn.Linear(IN * 16, OUT * 16, bias=False)
    )
    layer, head = layer.double(), torch.nn.Linear(OUT * 16, 2).double()
    layer.weight = f.weight
    peer = torch.nn.Sequential(layer, torch.nn.Tanh(), torch.nn.Flatten(), head)
    data = [(circular_pad(x, 3) if kind == "conv" else x.flatten(1), torch.zeros(3, 2, dtype=torch.float64))]
    kfac = curvlinops.KFACLinearOperator(
        peer, torch.nn.MSELoss(reduction="sum"), [layer.weight], data, fisher_type="type-2", kfac_approx="expand"
    )
    vectors = torch.randn(layer.weight.numel(), 3, generator=generator(4), dtype=torch.float64)
    theirs = kfac @ vectors

    y = f(x).detach().requires_grad_()
    outputs = head(torch.tanh(y).flatten(1))
    g = torch.stack([2**0.5 * torch.autograd.grad(outputs[:, k].sum(), y, retain_graph=True)[0] for k in range(2)])
    (block,) = curvature(f, x, g)
    assert relative(torch.kron(block.G, block.A / 3) @ vectors, theirs) < 1e-12


def test_a_layer_is_the_sum_of_its_pathways():
    layer = RelaxedImageLayer(IN, OUT, SIZE, {"conv": 2.0, "f_fc": 0.5, "fc": 1e-2, "pixel_bias": 1.0}).double()
    found = {name: p for _, name, p in named_pathways(layer)}
    assert list(found) == ["conv", "f_fc", "fc", "pixel_bias", "bias"]
    x = images()
    assert relative(layer(x), sum(p(x) for p in layer.children())) < 1e-14
    expected = 0.0
    for p in found.values():
        normal = torch.distributions.Normal(0.0, p.variance.sqrt())
        expected = expected - sum(normal.log_prob(c).sum() for c in p.parameters())
    assert relative(negative_log_prior(layer), expected) < 1e-12


@pytest.mark.parametrize("out_size", [SIZE, (1, 1)])
def test_a_variance_of_zero_leaves_a_pathway_out(out_size):
    strict, relaxed = (
        RelaxedImageLayer(IN, OUT, SIZE, {"f_fc": v, "conv": 1}, out_size=out_size, free_scale=1, generator=generator())
        for v in (0, 1.0)
    )
    assert [name for name, _ in strict.named_children()] == ["conv", "bias"]
    assert [name for name, _ in relaxed.named_children()] == ["conv", "f_fc", "bias"]
    strict, relaxed, x = strict.double(), relaxed.double(), images()
    assert strict(x).shape == relaxed(x).shape == (2, OUT, *out_size)
    assert max(shift_error(strict, x, shift) for shift in SHIFTS) < 1e-12
    assert min(shift_error(relaxed, x, shift) for shift in SHIFTS) > 0.05
    without = RelaxedImageLayer(IN, OUT, SIZE, {"conv": 1.0}, bias_variance=0)
    assert [name for name, _ in without.named_children()] == ["conv"]


CONV = {"conv": 1.0}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (dict(pathways={"convolution": 1.0}), "no image pathway 'convolution'"),
        (dict(pathways={"conv": 0, "pixel_bias": 1.0}), "leave no map"),
        (dict(pathways={"conv": -1.0}), "variance must be positive"),
        (dict(settings={"filters": None}), "no image pathway 'filters'"),
        (dict(kernel_size=4), "kernel_size=4: give an odd number"),
        (dict(kernel_size=9), "kernel_size=9 reaches around"),
        (dict(out_size=(2, 2)), r"out_size=\(2, 2\)"),
        (dict(out_channels=0), "out_channels=0"),
        (dict(gain=-1.0), "gain=-1"),
        (dict(gain=float("inf")), "gain=inf: give a positive finite number"),
        (dict(free_scale=-1, pathways=CONV | {"f_fc": 1.0}), "free_scale=-1: give a positive finite number"),
        (dict(free_scale=float("nan"), pathways=CONV | {"fc": 1.0}), "free_scale=nan: give a positive"),
        (dict(size=(0, 6)), r"size=\(0, 6\) of maps: give a height and a width of one pixel or more"),
        (dict(orientations=(7, 7)), r"orientations=\(7, 7\) of input and output: give a pair of 1 or 4"),
    ],
)
def test_refusals(changes, words):
    with pytest.raises(ValueError, match=words):
        RelaxedImageLayer(**(dict(in_channels=IN, out_channels=OUT, size=SIZE, pathways=CONV) | changes))


@pytest.mark.parametrize("cls", [FullyConnected, FactoredFullyConnected, SparseFullyConnected])
@pytest.mark.parametrize("sizes", [((4, 4), (0, 6)), ((4, -4), (1, 1))], ids=str)
def test_maps_have_pixels(cls, sizes):
    size, out_size = sizes
    bad = out_size if size == (4, 4) else size
    with refused(f"size={bad} of maps", "one pixel or more"):
        cls(IN, OUT, size, out_size=out_size)


@pytest.mark.parametrize(("side", "largest"), [(1, 3), (2, 3), (3, 5), (4, 7)])
def test_kernels_do_not_come_back_to_their_own_pixel(side, largest):
    """Around the torus, but on maps of one pixel, which is its own neighbour; what does not convolve has no kernel."""
    x = images(size=(side, side))
    RelaxedImageLayer(1, 2, (side, side), {"fc": 1.0}, kernel_size=largest + 2)
    assert Convolution(IN, OUT, kernel_size=largest).double()(x).shape == (2, OUT, side, side)
    with refused(f"kernel_size={largest + 2} reaches around an image of {(side, side)} pixels"):
        Convolution(IN, OUT, kernel_size=largest + 2).double()(x)


@pytest.mark.parametrize("name", PATHWAYS)
def test_vmap_over_seeds(name):
    """Outputs and gradients of stacked parameters are those of each by itself."""
    members = [pathway(name, seed) for seed in range(3)]
    stacked, _ = torch.func.stack_module_state(members)
    x = images(2)
    call = lambda p: functional_call(members[0], p, (x,))  # noqa: E731
    loss = lambda p: call(p).square().sum()  # noqa: E731
    y, g = vmap(call)(stacked), vmap(torch.func.grad(loss))(stacked)
    for i, member in enumerate(members):
        assert relative(y[i], member(x)) < 1e-13
        apart = torch.autograd.grad(member(x).square().sum(), list(member.parameters()))
        for together, alone in zip(g.values(), apart, strict=True):
            assert relative(together[i], alone) < 1e-12


@pytest.mark.parametrize("name", PATHWAYS)
def test_a_state_dict_rebuilds(name):
    a, b = pathway(name, 0), pathway(name, 1)
    b.load_state_dict(a.state_dict())
    assert torch.equal(a(images()), b(images()))
