"""Padded factors of products: values stay, rows are aligned, and nothing is copied for it."""

import copy

import pytest
import torch
from torch import fx, nn

from whence.engine.compiled.graph import RecordedGraph, record_graph, write_nothing_in_place
from whence.engine.compiled.padding import pad_attention

BMM, PAD = torch.ops.aten.bmm.default, torch.ops.aten.constant_pad_nd.default
TOKENS = 65  # the next multiple of four is 68


class Attention(nn.Module):
    """Self-attention of three heads, by products of batches of matrices."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(24, 72)

    def forward(self, x):
        heads = self.project(x).view(2, x.shape[1], 3, 3, 8).permute(2, 0, 3, 1, 4)
        queries, keys, values = heads
        maps = (queries @ keys.mT).softmax(-1)
        return (maps @ values).transpose(1, 2).flatten(2), maps


def compute(attention, x):
    """The output, the maps' mean, and gradients that go through both factors of each product."""
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        attended, maps = attention(x)
        gradient, at_maps = torch.autograd.grad(attended.square().sum(), [x, maps])
    return [attended.detach(), maps.detach().mean(1), gradient, at_maps]


def record(tokens):
    torch.manual_seed(0)
    attention, x = Attention(), torch.randn(2, tokens, 24)
    recorded = record_graph(lambda x: compute(attention, x), [x])
    graph, constants, structure = write_nothing_in_place(recorded, [x])
    return RecordedGraph(graph, constants, structure), x, compute(attention, x)


@pytest.mark.parametrize("tokens", [TOKENS, 66, 67])
def test_values_stay(tokens):
    (graph, constants, _), x, expected = record(tokens)
    pad_attention(graph)
    graph.lint()
    found = fx.GraphModule({}, graph)(x, *constants)
    for value, other in zip(found, expected, strict=True):
        torch.testing.assert_close(value, other)


def test_rows_of_all_factors_and_products_are_aligned():
    (graph, constants, _), x, _ = record(TOKENS)
    pad_attention(graph)
    unaligned = []

    class Watch(fx.Interpreter):
        def run_node(self, node):
            value = super().run_node(node)
            if node.target is BMM:
                tensors = [value, *(self.env[one] for one in node.all_input_nodes)]
                steps = [max(one.stride()[-2:]) for one in tensors]
                unaligned.extend(step for step in steps if step % 4)
            return value

    Watch(fx.GraphModule({}, graph)).run(x, *constants)
    assert len(graph.find_nodes(op="call_function", target=BMM)) == 6
    assert not unaligned


def test_a_tensor_is_padded_once_and_only_the_padded_one_is_read():
    (graph, _, _), *_ = record(TOKENS)
    pad_attention(graph)
    pads = graph.find_nodes(op="call_function", target=PAD)
    padded = [node.all_input_nodes[0] for node in pads]
    assert len(set(padded)) == len(padded)
    # No part of a padded tensor is padded again, which would copy it.
    assert not [node for node in padded if node.target is torch.ops.aten.slice.Tensor]
    maps = [node for node in padded if node.target is torch.ops.aten._softmax.default]
    assert [len(node.users) for node in maps] == [1]


@pytest.mark.parametrize("tokens", [64, 17])
def test_what_is_aligned_or_small_stays_as_it_is(tokens):
    (graph, _, _), *_ = record(tokens)
    before = copy.deepcopy(graph)
    pad_attention(graph)
    assert not graph.find_nodes(op="call_function", target=PAD)
    assert len(graph.nodes) == len(before.nodes)
