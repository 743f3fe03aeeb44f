"""Joined products: values stay, and only products of one factor with constants are joined."""

import pytest
import torch
from torch import fx, nn

from whence.engine.compiled import joining
from whence.engine.compiled.graph import record_graph, write_nothing_in_place
from whence.engine.compiled.joining import join_products

MM, ADDMM = torch.ops.aten.mm.default, torch.ops.aten.addmm.default


class Part(nn.Module):
    """Queries, keys and values of the same tokens, and what comes after them."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList([nn.Linear(6, width) for width in (4, 4, 8)])
        self.plain = nn.ModuleList([nn.Linear(6, width, bias=False) for width in (5, 3)])
        self.out = nn.Linear(8, 6)

    def forward(self, x):
        queries, keys, values = (part(x) for part in self.parts)
        values = (queries @ keys.mT).softmax(-1) @ values
        first, second = (part(x) for part in self.plain)
        positive = self.out.weight.clamp(min=0)
        shares = values @ positive.mT, values @ (self.out.weight - positive).mT
        return [self.out(values), first, second, *shares]


def record(compute, *inputs):
    recorded = record_graph(compute, inputs)
    graph, constants, _ = write_nothing_in_place(recorded, inputs)
    placeholders = graph.find_nodes(op="placeholder")
    return graph, constants, placeholders[len(inputs) :]


def count(graph):
    return [len(graph.find_nodes(op="call_function", target=one)) for one in (MM, ADDMM)]


def test_values_stay():
    torch.manual_seed(0)
    part, x = Part().double(), torch.randn(2, 7, 6, dtype=torch.float64)
    graph, constants, nodes = record(part, x)
    expected = part(x)
    assert count(graph) == [4, 4]
    join_products(graph, nodes)
    graph.lint()
    assert count(graph) == [2, 2]  # one of each pair; queries, keys and values; the last map
    for found, other in zip(fx.GraphModule({}, graph)(x, *constants), expected, strict=True):
        assert found.shape == other.shape
        torch.testing.assert_close(found, other)


def test_factors_that_depend_on_the_input_are_not_joined():
    x = torch.randn(4, 4)
    graph, _, nodes = record(lambda x: [x @ x.relu(), x @ x.tanh()], x)
    join_products(graph, nodes)
    assert count(graph) == [2, 0]


def test_large_products_are_not_joined(monkeypatch):
    monkeypatch.setattr(joining, "_LARGEST", 1)
    graph, _, nodes = record(Part(), torch.randn(2, 7, 6))
    join_products(graph, nodes)
    assert count(graph) == [4, 4]


@pytest.mark.parametrize(("between", "joined"), [(1, True), (4, False)])
def test_products_that_are_far_apart_are_not_joined(monkeypatch, between, joined):
    monkeypatch.setattr(joining, "_LARGEST_DISTANCE", 3)
    weight = torch.randn(4, 4)

    def compute(x):
        first = y = x @ weight
        for _ in range(between):
            y = y.tanh() @ weight
        return [first, y, x @ weight.mT]

    graph, _, nodes = record(compute, torch.randn(3, 4))
    before = sum(count(graph))
    join_products(graph, nodes)
    assert sum(count(graph)) == before - joined


def test_a_scaled_sum_is_not_joined():
    x, vector, weights = torch.randn(3, 4), torch.randn(5), torch.randn(2, 4, 5)
    graph, _, nodes = record(
        lambda x: [torch.addmm(vector, x, one, beta=0.5) for one in weights.unbind()], x
    )
    join_products(graph, nodes)
    assert count(graph) == [0, 2]


def test_what_each_product_reads_is_computed_before_the_joined_one():
    """Also where factors of several groups are made of one constant, and come late."""
    torch.manual_seed(0)
    x, weight = torch.randn(3, 4), torch.randn(4, 4)

    def compute(x):
        y = x.tanh()
        first = x @ weight
        second = y @ weight.exp()
        shared = weight.exp().relu()
        return [first, second, x @ shared, y @ shared.abs()]

    graph, constants, nodes = record(compute, x)
    join_products(graph, nodes)
    graph.lint()
    assert count(graph) == [2, 0]
    for found, other in zip(fx.GraphModule({}, graph)(x, *constants), compute(x), strict=True):
        torch.testing.assert_close(found, other)


def first(weight):
    """A weight that two products read, of which a constant product is made."""
    return weight.exp() @ weight, weight.exp() @ weight.relu()


@pytest.mark.parametrize(
    "compute",
    [
        lambda x, w: [x @ one for one in first(w)],
        lambda x, w: [x @ first(w)[0], x @ w, (w.exp() @ w).relu()],
        lambda x, w: [torch.addmm(w[0, :1], x, one) for one in (w, w.exp())],
        lambda x, w: [torch.as_strided(x @ one, (2, 2), (4, 1), 4) for one in (w, w.exp())],
        lambda x, w: [(x @ one).view(1, 12).exp() for one in (w, w.exp())],
    ],
    ids=["constant products", "returned", "one bias for all", "strides", "views"],
)
def test_values_stay_where_products_cannot_be_joined_or_are_read_in_other_ways(compute):
    torch.manual_seed(0)
    x, weight = torch.randn(3, 4), torch.randn(4, 4)
    graph, constants, nodes = record(lambda x: compute(x, weight), x)
    join_products(graph, nodes)
    graph.lint()
    found = fx.GraphModule({}, graph)(x, *constants)
    for one, other in zip(found, compute(x, weight), strict=True):
        torch.testing.assert_close(one, other)
