"""The nodes of a recorded graph: who is upstream of whom, who reads whom, and values on the way."""

import pytest
import torch
from torch import nn
from torch.autograd.graph import GradientEdge

from tests.tracing.helpers import record_inputs
from whence import WhenceError
from whence.tracing.graph.nodes import (
    NodeGraph,
    _get_input,
    has_size_of,
    has_tokens,
    is_scaling,
    operation_of,
)
from whence.tracing.ops.base import Operation
from whence.tracing.ops.chunked_attention import ChunkedAttention
from whence.tracing.ops.function import Function
from whence.tracing.ops.products import Linear, MatMul
from whence.tracing.ops.sums import Add, Shift


class Small(nn.Module):
    """Two linear maps, a sum of both, and an attention that the logits do not depend on."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.head = (nn.Linear(4, 4) for _ in range(3))

    def forward(self, x):
        x = x.transpose(1, 2).contiguous().transpose(1, 2)
        a, b = self.a(x), self.b(x * 2)
        unused = nn.functional.scaled_dot_product_attention(a, a, a)
        attended = nn.functional.scaled_dot_product_attention(b, b, b)
        self.kept = unused
        return self.head((a - b + attended)[:, 0])


@pytest.fixture
def trace():
    return record_inputs(Small(), torch.randn(2, 3, 4))


def nodes_of(trace, kind):
    entries = [entry for entry in trace.entries if isinstance(entry.operation, kind)]
    return [entry.output.node for entry in entries]


def test_order_and_readers(trace):
    graph = NodeGraph(trace)
    a, b, head = nodes_of(trace, Linear)
    difference, total = nodes_of(trace, Add)
    assert graph.readers[a] == [difference]  # not what nothing depends on
    assert difference in graph.readers[b]
    assert graph.readers[total] == [head]
    assert graph.is_upstream(a, head)
    assert graph.is_upstream(a, a)
    assert not graph.is_upstream(head, a)
    assert not graph.is_upstream(a, b)
    assert graph.number(a) < graph.number(difference) < graph.number(total) < graph.number(head)


def test_roots_are_found_through_routing(trace):
    graph = NodeGraph(trace)
    a, _, head = nodes_of(trace, Linear)
    (total,) = nodes_of(trace, Add)[1:]
    (into_head,) = graph.sources(head)
    assert into_head.node is not total  # a token is selected
    assert graph.find_roots(into_head.node) == {total}
    (into_a,) = graph.sources(a)
    (leaf,) = graph.find_roots(into_a.node)
    assert leaf.variable is trace.leaves[0]


def test_unused_parts_are_not_in_the_graph(trace):
    graph = NodeGraph(trace)
    products = [e.output.node for e in trace.entries if e.operation.in_attention]
    # The attention to `a` comes first.
    assert [node in graph for node in products] == [False, False, True, True]


def test_values_on_the_way(trace):
    graph, x = NodeGraph(trace), trace.leaves[0].detach()
    a, b, _ = nodes_of(trace, Linear)
    assert torch.equal(graph.find_value(graph.sources(a)[0]), x)
    assert torch.allclose(graph.find_value(graph.sources(b)[0]), 2 * x)
    difference = nodes_of(trace, Add)[0]
    of_a, of_b = graph.sources(difference)
    assert torch.equal(graph.find_value(of_a), operation_of(a).output)
    assert torch.equal(graph.find_value(of_b), operation_of(b).output)
    # Before it was transposed twice, no operation read the input: the moves are undone.
    edge = graph.sources(a)[0]
    while operation_of(edge.node) is None and graph.sources(edge.node):
        before, edge = edge, graph.sources(edge.node)[0]
    assert torch.equal(graph.find_value(before), x)


def test_a_value_that_nothing_keeps(trace):
    graph = NodeGraph(trace)
    head = nodes_of(trace, Linear)[-1]
    (selected,) = graph.sources(head)
    assert torch.equal(graph.find_value(selected), operation_of(head).x)
    leaf = next(iter(graph.find_roots(graph.sources(nodes_of(trace, Linear)[0])[0].node)))
    with pytest.raises(WhenceError, match="no operation keeps them"):
        graph.find_value(GradientEdge(leaf, 1))


def test_scaling_by_a_constant(trace):
    operations = [entry.operation for entry in trace.entries]
    assert [one.name for one in operations if is_scaling(one)] == ["mul"]


def place_of(*shape: int) -> GradientEdge:
    """A place of a graph where there is a tensor of some shape."""
    return GradientEdge(torch.zeros(shape, requires_grad=True).exp().grad_fn, 0)


@pytest.mark.parametrize(
    ("shape", "count", "expected"),
    [
        ((2, 5, 8), 5, True),
        ((5, 2, 8), 5, True),
        ((10, 8), 5, True),
        ((2, 5, 8), 4, False),
        ((8, 4, 8), 4, False),  # four windows of each sample
        ((2, 3, 4, 8), 12, True),
        ((2, 8, 3, 4), 12, True),  # channels before rows and columns
        ((2, 8, 3, 4), 32, False),
        ((3, 8, 3, 4), 12, False),
        ((2, 8, 7, 3, 4), 12, False),
        ((2, 3, 4), 12, False),
    ],
)
def test_tokens_of_each_sample_at_a_place(shape, count, expected):
    assert has_tokens(place_of(*shape), 2, count) is expected


def test_sizes_of_two_places():
    parts = torch.zeros(3, 4, requires_grad=True).exp().split([1, 2])
    node = parts[0].grad_fn
    assert has_size_of(node, place_of(2, 2))  # the first of its outputs
    assert not has_size_of(node, place_of(2, 4))
    assert has_size_of(place_of(2, 4).node, GradientEdge(node, 1))
    assert not has_size_of(place_of(4).node, GradientEdge(node, 1))


def run(operation, *inputs):
    operation.forward(*inputs)
    return operation


def test_inputs_that_operations_keep():
    a, b, c = torch.randn(3, 1, 2, 4, 4).double()
    kept = {
        Add(scale=-2.0): (a, b),
        Shift(torch.ones(4)): (a,),
        Linear(torch.ones(3, 4).double()): (a,),
        MatMul(): (a, b),
        ChunkedAttention(1.0, None, 1): (a, b, c),
        Function("product", torch.mul, name="mul"): (a, b),
    }
    for operation, inputs in kept.items():
        run(operation, *inputs)
        for number, expected in enumerate(inputs):
            found = _get_input(operation, number)
            assert torch.equal(found, expected)
            assert not found.requires_grad
    with pytest.raises(TypeError, match="some keeps no input"):
        _get_input(Operation("some"), 0)


def test_what_scales_its_one_input():
    x = torch.randn(2, 4)
    assert is_scaling(run(Shift(torch.ones(4)), x))
    assert is_scaling(run(Function("pass", lambda x: 2 * x, name="mul"), x))
    assert not is_scaling(run(Function("pass", torch.relu, name="relu"), x))
    assert not is_scaling(run(Function("quotient", lambda x: 2 / x, name="div"), x))
    assert not is_scaling(run(Function("pass", torch.mul, name="mul"), x, x))
    assert not is_scaling(run(Linear(torch.ones(3, 4), name="mul"), x))


def test_what_was_overwritten_is_not_read():
    class InPlace(Small):
        def forward(self, x):
            a, b = self.a(x).clone(), self.b(x)
            a.view(-1, 4).add_(b.view(-1, 4))
            x = x * 2
            return self.head((a + nn.functional.scaled_dot_product_attention(x, x, x))[:, 0])

    trace = record_inputs(InPlace(), torch.randn(2, 3, 4))
    graph = NodeGraph(trace)
    a, b, _ = nodes_of(trace, Linear)
    inside, total = nodes_of(trace, Add)
    assert graph.readers[a] == graph.readers[b] == [inside]
    assert graph.readers[inside] == [total]
