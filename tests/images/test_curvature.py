"""Kronecker factors of every image pathway against exact Gauss-Newton blocks: at several pixels, of several images, in a model."""

from __future__ import annotations

import pytest
import torch
from factors import whole
from image_pathways import IN, PATHWAYS, images, pathway, relative
from registry import generator
from torch.func import functional_call, jacrev

from rppdyn.images import ImageModel, LayerSpec
from rppdyn.images.filter_settings import FilterSettings
from rppdyn.images.operator_settings import OperatorSettings
from rppdyn.nn.pathways import named_pathways
from rppdyn.priors import Categorical, Gaussian, curvature, joint_evidence

SIZE = (3, 3)


def test_x():
    for name in PATHWAYS:
        f = pathway(name)
        x = images(3, IN)
        y = f(x)
        g = torch.eye(y[0].numel(), dtype=torch.float64).view(-1, 1, *y.shape[1:]).expand(-1, 3, *y.shape[1:])
        if sum(c.numel() for c in f.coefficients()) > 3000:
            print(name, "large", sum(c.numel() for c in f.coefficients())); continue
        names = {id(p): n for n, p in f.named_parameters()}
        try:
            own = {names[id(c)]: c.detach() for c in f.coefficients()}
        except KeyError:
            print(name, "keys"); continue
        J = jacrev(lambda ps: functional_call(f, ps, (x,)).flatten())(own)
        for block, j in zip(f.curvature(x, g), J.values(), strict=True):
            j = j.flatten(1)
            small = j @ j.mT if len(j) < j.shape[1] else j.mT @ j
            e = torch.linalg.eigvalsh(small).clamp_min(0)
            k = whole(block); k = k._replace(A=k.A / 3).eigenvalues()[0].sort().values
            n = max(len(e), len(k)); e, k = (torch.cat([v.new_zeros(n - len(v)), v]) for v in (e, k))
            print(name, f"{relative(e, k):.1e}", f"{float(k.sum() / e.sum()):.3f}", len(e), flush=True)
