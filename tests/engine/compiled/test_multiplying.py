"""Products of graphs by oneDNN: values stay, and torch's compiler takes them."""

import pytest
import torch
from torch import fx, nn
from torch.nn import functional as F

from whence._util import torch_products
from whence._util.torch_products import ONEDNN_PRODUCT, QUICK_PRODUCT
from whence.engine.compiled import multiplying
from whence.engine.compiled.graph import record_graph, write_nothing_in_place
from whence.engine.compiled.multiplying import multiply_graph_quickly
from whence.engine.compiled.program import Program


class Part(nn.Module):
    """Linear maps, products with both of their factors, and a product by oneDNN."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 8), nn.Linear(8, 6, bias=False)

    def forward(self, x):
        y = self.first(x)
        relevance = y.relu() @ self.first.weight
        again = torch_products.multiply_quickly(relevance, self.first.weight, self.first.bias)
        added = torch.addmm(x, y, self.second.weight.mT)  # a sum with a matrix stays as it is
        return [self.second(y), relevance, again, added, torch.addmm(x[0], y, y.mT @ x, beta=0.5)]


def record(compute, *inputs):
    recorded = record_graph(compute, inputs)
    graph, constants, _ = write_nothing_in_place(recorded, inputs)
    return graph, constants


def count(graph):
    return len(graph.find_nodes(op="call_function", target=QUICK_PRODUCT))


def test_values_stay(quick_products):
    torch.manual_seed(0)
    part, x = Part(), torch.randn(7, 6)
    with torch.no_grad():
        expected = part(x)
        graph, constants = record(part, x)
        multiply_graph_quickly(graph)
        graph.lint()
        # The two maps, the product backward, the one by oneDNN, and a factor of the last sum.
        assert count(graph) == 5
        assert not graph.find_nodes(op="call_function", target=ONEDNN_PRODUCT)
        found = fx.GraphModule({}, graph)(x, *constants)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("bias", [torch.ones(10)[::2], torch.ones(1).expand(5)])
def test_biases_that_onednn_would_misread_stay_with_torch(quick_products, bias):
    x, weight = torch.randn(7, 6), torch.randn(6, 5)
    graph, constants = record(lambda x: [torch.addmm(bias, x, weight), x @ weight], x)
    multiply_graph_quickly(graph)
    assert count(graph) == 1
    found, _ = fx.GraphModule({}, graph)(x, *constants)
    torch.testing.assert_close(found, torch.addmm(bias, x, weight))


def test_other_types_stay_with_torch(quick_products):
    weight = torch.randn(5, 6, dtype=torch.float64)
    graph, _ = record(lambda x: [F.linear(x, weight)], torch.randn(7, 6, dtype=torch.float64))
    multiply_graph_quickly(graph)
    assert count(graph) == 0


def test_only_what_was_recorded_so_is_computed_so_elsewhere(quick_products, monkeypatch):
    monkeypatch.setattr(multiplying, "is_quicker_by_onednn", lambda: False)
    with torch.no_grad():
        graph, _ = record(Part(), torch.randn(7, 6))
    multiply_graph_quickly(graph)
    assert count(graph) == 1


def test_where_onednn_is_switched_off_products_stay_with_torch(quick_products):
    weight = torch.randn(5, 6)
    graph, _ = record(lambda x: [F.linear(x, weight)], torch.randn(7, 6))
    with torch.backends.mkldnn.flags(enabled=False):
        multiply_graph_quickly(graph)
    assert count(graph) == 0


def test_torchs_compiler_takes_them(quick_products):
    torch.manual_seed(0)
    part, x = Part(), torch.randn(7, 6)
    with torch.no_grad():
        program = Program(part, [x])
        program.compile(x)
        found, expected = program(-x), part(-x)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)
