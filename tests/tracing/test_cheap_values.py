"""What is cheap to compute again is freed with all that shares its memory, and then restored."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.engine.test_blocks_again import make_case
from whence import rules
from whence.tracing import record
from whence.tracing.cheap_values import CheapValues, list_activations
from whence.tracing.ops.base import Function
from whence.tracing.ops.chunked_attention import ChunkedAttention

CLASSES = torch.tensor([[0, 2]])


def record_llama(max_map_bytes=math.inf):
    model, inputs, _ = make_case("llama")
    return record(
        model,
        (),
        {**inputs, "use_cache": False},
        "input_ids",
        output=lambda returned: returned.logits[:, -1],
        max_map_bytes=max_map_bytes,
    )


def list_values(trace):
    return [
        (entry.operation.index, name, number, value.clone(), value.stride())
        for entry in trace.entries
        for name, number, value in list_activations(entry.operation)
    ]


def count_bytes(operations) -> int:
    """Count the bytes of all memory that operations keep, each once."""
    kept = [value for one in operations for _, _, value in list_activations(one)]
    graphs = [x for one in operations for x in getattr(one, "_graph", None) or ()]
    storages = (x.untyped_storage() for x in (*kept, *graphs))
    return sum({one.data_ptr(): one.nbytes() for one in storages}.values())


@pytest.mark.parametrize("max_map_bytes", [math.inf, 1])
def test_values_are_restored_bit_by_bit(max_map_bytes):
    trace = record_llama(max_map_bytes)
    operations = [entry.operation for entry in trace.entries]
    before, size = list_values(trace), count_bytes(operations)
    cheap = CheapValues(operations)
    for _ in range(2):
        cheap.free()
        assert cheap.is_free
        assert count_bytes(operations) + cheap.shared_bytes < 0.85 * size
        cheap.restore()
    assert count_bytes(operations) == size
    for ours, theirs in zip(list_values(trace), before, strict=True):
        assert ours[:3] == theirs[:3]
        assert torch.equal(ours[3], theirs[3])
        assert ours[4] == theirs[4]


@pytest.mark.parametrize("rule_set", [None, "stable", "attnlrp"])
@pytest.mark.parametrize("max_map_bytes", [math.inf, 1])
def test_what_is_read_after_they_were_restored_is_the_same(max_map_bytes, rule_set):
    how = None if rule_set is None else rules.get(rule_set)
    found = []
    for frees in (False, True):
        trace = record_llama(max_map_bytes)
        if frees:
            cheap = CheapValues([entry.operation for entry in trace.entries])
            cheap.free()
            cheap.restore()
        found.append(trace.read(torch.tensor([[3]]), trace.leaves, how)[0])
    assert torch.equal(*found)


def test_gates_and_repeated_heads_are_freed():
    trace = record_llama(max_map_bytes=1)
    operations = [entry.operation for entry in trace.entries]
    CheapValues(operations).free()
    attentions = [one for one in operations if isinstance(one, ChunkedAttention)]
    gates = [one for one in operations if one.name == "SiLUActivation"]
    products = [one for one in operations if one.kind == "product"]
    assert attentions
    assert gates
    assert products
    assert all(one.keys.is_meta and one.values.is_meta for one in attentions)
    assert all(one.is_set_aside for one in (*attentions, *gates, *products))
    assert not any(one.queries.is_meta for one in attentions)
    assert all(one.output.is_meta and not one.inputs[0].is_meta for one in gates)
    assert all(one.inputs[0].is_meta and not one.inputs[1].is_meta for one in products)


class Chain(nn.Module):
    """Functions of functions, one of which is read by a function that keeps a graph."""

    def __init__(self):
        super().__init__()
        self.into, self.out = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x):
        x = self.into(x)
        x = x + (x @ x.mT).softmax(-1) @ x
        gate = F.silu(x)
        twice = torch.tanh(gate) * x
        norm = F.layer_norm(torch.sigmoid(x), (4,))
        return self.out(twice + norm + F.gelu(gate)).mean(1)


def test_functions_that_others_keep_in_a_graph_stay():
    torch.manual_seed(0)
    model, x = Chain().double(), torch.randn(1, 5, 4, dtype=torch.float64)
    expected = record(model, (x,), {}, 0)
    expected = expected.read(CLASSES, expected.leaves)[0]
    trace = record(model, (x,), {}, 0)
    operations = [entry.operation for entry in trace.entries]
    values = {one.name: one.output.clone() for one in operations if isinstance(one, Function)}
    cheap = CheapValues(operations)
    cheap.free()
    freed = {one.name for one in operations if one.output.is_meta}
    # A layer norm has the sigmoid in its graph. The gate is read by functions that run again.
    assert freed == {"silu", "tanh", "mul", "gelu"}
    cheap.restore()
    found = {one.name: one.output for one in operations if isinstance(one, Function)}
    assert all(torch.equal(found[name], value) for name, value in values.items())
    assert torch.equal(trace.read(CLASSES, trace.leaves)[0], expected)


def test_what_was_released_stays_released():
    trace = record_llama(max_map_bytes=1)
    operations = [entry.operation for entry in trace.entries]
    cheap = CheapValues(operations)
    for one in operations:
        one.release()
    cheap.free()
    assert not any(list(list_activations(one)) for one in operations)


def test_values_are_the_same_under_autocast():
    trace = record_llama()
    operations = [entry.operation for entry in trace.entries]
    types = [value.dtype for one in operations for _, _, value in list_activations(one)]
    cheap = CheapValues(operations)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cheap.free()
        cheap.restore()
    found = [value.dtype for one in operations for _, _, value in list_activations(one)]
    assert found == types
