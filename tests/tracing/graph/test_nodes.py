"""The nodes of a recorded graph: who is upstream of whom, who reads whom, and values on the way."""

import pytest
import torch
from torch import nn

from tests.tracing.helpers import record_inputs
from whence import WhenceError
from whence.tracing.graph.nodes import NodeGraph, is_scaling, operation_of
from whence.tracing.ops.base import Add
from whence.tracing.ops.products import Linear


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
    assert sorted(node in graph for node in products) == [False, False, True, True]


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
        graph.find_value(torch.autograd.graph.GradientEdge(leaf, 1))


def test_scaling_by_a_constant(trace):
    operations = [entry.operation for entry in trace.entries]
    assert [one.name for one in operations if is_scaling(one)] == ["mul"]
