"""torch.compile as the package uses it; in a process of its own, as tests' shape checks can't be compiled."""

from __future__ import annotations

import pytest
import torch
from forked import run_code

from rppdyn.nn.compiling import check_compiler

MANY = """
import torch
from rppdyn.dynamics import NeuralODEModel
from rppdyn.nn.compiling import compiled

graphs = []
def backend(graph, inputs):
    graphs.append(graph)
    return graph

def times(number):
    def multiply(x, *, plus=0.5):
        return number * x + plus
    return multiply

x = torch.ones(3)
for number in range(12):  # torch gives up after eight compilations of one code
    assert torch.equal(compiled(times(number), backend=backend, fullgraph=True)(x), number * x + 0.5)
assert len(graphs) == 12
for number in range(12):
    model = NeuralODEModel(torch.nn.Linear(3, 3))
    model.compile(backend=backend, fullgraph=True, dynamic=False)
    assert torch.equal(model(0.0, x), model.net(x))
assert len(graphs) == 24
"""


def test_many_functions_and_models_of_one_code_are_all_compiled(tmp_path):
    run_code(MANY, folder=tmp_path)


def test_a_missing_compiler_is_named_where_one_is_needed(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(ValueError, match="no-such-compiler is not found: install it, name another in CXX"):
        check_compiler(torch.device("cpu"))
    check_compiler(torch.device("cuda"))
