"""torch.compile as the package uses it; in a process of its own, as tests' shape checks can't be compiled."""

from __future__ import annotations

import pytest
import torch
from forked import run_code

from rppdyn.nn._compiling import check_compiler, why_not_compiled

MANY = """
import torch
from rppdyn.dynamics import NeuralODEModel
from rppdyn.nn._compiling import compiled

graphs = []
def backend(graph, inputs):
    graphs.append(graph)
    return graph

def times(number):
    def multiply(x, *, plus=0.5):
        return number * x + plus
    return multiply

x = torch.ones(3)
for number in range(9):  # torch gives up after eight compilations of one code
    assert torch.equal(compiled(times(number), backend=backend, fullgraph=True)(x), number * x + 0.5)
assert len(graphs) == 9
for number in range(9):
    model = NeuralODEModel(torch.nn.Linear(3, 3))
    model.compile(backend=backend, fullgraph=True, dynamic=False)
    assert torch.equal(model(0.0, x), model.net(x))
assert len(graphs) == 18

from rppdyn.groups import O2eR3
from rppdyn.nn import RPPEMLP
from rppdyn.reps import V

x = torch.randn(5, 12, generator=torch.Generator().manual_seed(1))
for bilinear in ("published", "channelwise", False):
    net = RPPEMLP(4 * V, 4 * V, O2eR3(), hidden=64, num_layers=1, bilinear=bilinear, generator=torch.Generator().manual_seed(0))
    whole = compiled(lambda x: net(x), fullgraph=True, dynamic=False, backend="eager")(x)
    assert torch.allclose(whole, net(x), atol=1e-6), bilinear
"""


def test_functions_and_models_of_one_code_are_all_compiled_and_products_traced_whole(tmp_path):
    """Products before they were ever called."""
    run_code(MANY, folder=tmp_path)


BROKEN = """
import os
import torch
from torch._inductor import config
from rppdyn.nn._compiling import why_not_compiled

config.cpp.cxx = (None, os.environ["CXX"])  # read when it was imported, which may be before this process began
found = why_not_compiled(torch.device("cpu"))
assert "Python.h: No such file" in found and "\\n" not in found, found
"""


def test_a_compiler_without_pythons_headers_is_found_out(tmp_path, monkeypatch):
    compiler = tmp_path / "c++"
    compiler.write_text(
        "#!/bin/sh\ncase $* in *--version*) echo 'g++ 12.2.0'; exit;; esac\n"
        "echo 'x.cpp:1:10: fatal error: Python.h: No such file or directory' >&2\nexit 1\n"
    )
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    run_code(BROKEN, folder=tmp_path)


def test_a_missing_compiler_is_named_where_one_is_needed(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert "no-such-compiler is not found" in why_not_compiled(torch.device("cpu"))
    with pytest.raises(ValueError, match="no-such-compiler is not found: install it, name another in CXX"):
        check_compiler(torch.device("cpu"))
    check_compiler(torch.device("cuda"))
