"""Kronecker factors of every image pathway against exact Gauss-Newton blocks: of several pixels, images and layers."""

from __future__ import annotations

import pytest
import torch
from factors import whole
from image_pathways import IN, PATHWAYS, images, pathway, relative
from registry import generator
from torch.func import functional_call, jacrev

from rppdyn.images import ImageModel, LayerSpec
from rppdyn.images.registry import REGISTRY, FilterSettings, OperatorSettings
from rppdyn.nn._pathways import named_pathways
from rppdyn.priors import Gaussian, curvature, joint_evidence


def spectrum(rows, count):
    """Eigenvalues of R^T R, by whichever of the two products is smaller."""
    found = torch.linalg.eigvalsh(rows @ rows.mT if len(rows) < rows.shape[1] else rows.mT @ rows).clamp_min(0)
    return torch.cat([found.new_zeros(count - len(found)), found]) if len(found) < count else found[-count:]


def jacobians(net, x, coefficients):
    """Of all outputs of all data, by each of these parameters."""
    names = {id(p): name for name, p in net.named_parameters()}
    own = {names[id(c)]: c.detach() for c in coefficients}
    return [J.flatten(1) for J in jacrev(lambda ps: functional_call(net, ps, (x,)).flatten())(own).values()]


@pytest.mark.parametrize(
    "name", [name for name in PATHWAYS if name not in ("fc", "fc to one pixel")]
)  # of thousands of weights
def test_where_pixels_are_outputs_blocks_are_exact_at_all_places_of_all_images(name):
    """Gradients are the same at every place, so that the sum of products is the product of sums.

    But of U of the factored pathways: it stands before V, whose products over pixels differ. Its trace is exact.
    """
    f, x = pathway(name).requires_grad_(False), images(3, IN)
    y = f(x)
    g = torch.eye(y[0].numel(), dtype=torch.float64).view(-1, 1, *y.shape[1:]).expand(-1, 3, *y.shape[1:])
    for number, (block, J) in enumerate(zip(f.curvature(x, g), jacobians(f, x, f.coefficients()), strict=True)):
        block = whole(block)
        found = block._replace(A=block.A / 3).eigenvalues()[0].sort().values  # A is to be a mean over data
        exact = spectrum(J, len(found))
        assert relative(found.sum(), exact.sum()) < 1e-12
        if number or not name.startswith(("f_fc", "s_fc")) or "lengthscales" in name:
            assert relative(found, exact) < 1e-6


SMALL = {"filters": FilterSettings(elements=4), "operators": OperatorSettings(count=3, rank=2)}
MODELS = ("anchored", "p4", "se2", "se2+se2_relaxed", "scaling", "operators", "gconv+conv", "f_fc+conv", "fc+conv")


def small_model(names):
    names = names.split("+")
    settings = {name: SMALL[REGISTRY[name].settings[0]] for name in names if REGISTRY[name].settings}
    layers = [LayerSpec(2), LayerSpec(3)]
    pathways = {name: 0.5**i for i, name in enumerate(names)}
    return ImageModel(layers, 1, (5, 5), 2, pathways, settings=settings, free_scale=0.5, generator=generator()).double()


@pytest.mark.parametrize("names", MODELS)
def test_in_a_model_the_head_is_exact_and_layers_have_the_trace_to_a_factor(names):
    """Several images, maps of 5 x 5 pixels through three layers.

    Places are taken for independent. Where all add up, as before a mean over pixels, the trace is too small by their number at
    most, elements of a group among them. What has weights of its own at every place is exact for one image.
    """
    count = 1 if "fc" in names else 4
    model, x = small_model(names).requires_grad_(False), images(count, 1, size=(5, 5))
    blocks = curvature(model, model, [x], Gaussian(1.0))
    for layer, name, own in named_pathways(model):
        for block, J in zip(blocks[layer, name], jacobians(model, x, own.coefficients()), strict=True):
            found = whole(block).eigenvalues()[0].sort().values
            exact = spectrum(J, len(found))
            if layer == "head" and name != "f_fc":
                assert relative(found, exact) < 1e-6
            else:
                ratio = float(found.sum() / exact.sum())
                low, high = (1 - 1e-9, 1 + 1e-9) if count == 1 and name != "conv" else (1 / (25 * model.rotations), 20)
                assert low < ratio < high, (layer, name)


def test_joint_evidence_of_relaxed_rotations_is_that_of_the_whole_matrix():
    """Strict and relaxed pathways together, at all places and layers, by the exact determinant; neither is in the other."""
    model, x = small_model("se2+se2_relaxed").requires_grad_(False), images(4, 1, size=(5, 5))
    found = joint_evidence(model, x, Gaussian(1.0))
    total, rows = torch.eye(8, dtype=torch.float64), {}
    for layer, name, own in named_pathways(model):
        (J,) = jacobians(model, x, own.coefficients())
        rows[layer, name] = J
        total = total + own.variance.detach() * J @ J.mT
    logs = torch.tensor([float(p.log_variance) for p in found.pathways], dtype=torch.float64)
    assert relative(found.log_determinant(logs), torch.logdet(total)) < 1e-10
    layer = model.blocks[1]
    assert layer.se2.within is None and layer.se2_relaxed.within is None
    filters = []
    for own in (layer.se2, layer.se2_relaxed):
        stack = []
        for row in torch.eye(own.u.shape[-1], dtype=torch.float64):
            own.u.zero_()
            own.u[0, 0] = row
            stack.append(own.filters().flatten())
        filters.append(torch.stack(stack) / torch.stack(stack).norm())
    # over four quarter turns cosines and sines of the angle sum to nothing against what does not know it
    assert float((filters[0] @ filters[1].mT).abs().max()) < 1e-12
