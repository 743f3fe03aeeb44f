"""What is cheap to compute again is freed with all that shares its memory, and then restored."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.engine.test_blocks_again import make_case
from whence import Explainer, rules
from whence.tracing import record
from whence.tracing.cheap_values import CheapValues, list_activations
from whence.tracing.ops.chunked_attention import ChunkedAttention
from whence.tracing.ops.function import Function

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


class SelfAttention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.into = nn.Linear(width, 3 * width)

    def forward(self, x):
        q, k, v = self.into(x).chunk(3, -1)
        return (q @ k.mT).softmax(-1) @ v


class SlopeGELU(nn.Module):
    """An activation by its name, whose slope is another in each block."""

    slope = 1.0

    def forward(self, x):
        return F.elu(x, self.slope)


SHARED = SlopeGELU()


class CrossGated(nn.Module):
    """A block that is gated by what all blocks read, so that they are read in turns."""

    def __init__(self, width):
        super().__init__()
        self.attention, self.gate = SelfAttention(width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.norm, self.other = nn.LayerNorm(width), nn.Linear(width, 2 * width)
        self.shared = SHARED

    def forward(self, x, embedded):
        x = x + self.attention(self.norm(x))
        hidden = self.down(F.silu(self.up(x)) * self.other(x))
        return torch.sigmoid(self.gate(embedded)) * 0.5 * (x + hidden)


class WrittenTo(CrossGated):
    """A block whose gate multiplies what the model overwrites afterwards."""

    def forward(self, x, embedded):
        return self.attention(x) + torch.sigmoid(self.gate(x)) * x


class WithState(CrossGated):
    def forward(self, x, embedded):
        self.shared.slope = 2 + 10 * float(self.norm.bias[0])
        x = x + self.attention(x)
        return x + self.down(self.shared(self.up(x)) * self.up(x))


class Blocks(nn.Module):
    def __init__(self, kind, in_place=False, width=32):
        super().__init__()
        self.embed, self.head = nn.Embedding(20, width), nn.Linear(width, 3)
        self.blocks = nn.ModuleList(kind(width) for _ in range(4))
        for number, block in enumerate(self.blocks):
            nn.init.constant_(block.norm.bias, number)
        self.in_place = in_place

    def forward(self, input_ids):
        embedded = x = self.embed(input_ids)
        x = x * 1.0 if self.in_place else x
        for block in self.blocks:
            x = x.add_(block(x, embedded)) if self.in_place else block(x, embedded)
        return self.head(x[:, 0])


@pytest.mark.parametrize(
    ("kind", "in_place"), [(CrossGated, False), (WrittenTo, True), (WithState, False)]
)
@pytest.mark.parametrize("method", ["whence", "gae", "attnlrp", "tiba", "input_x_gradient"])
def test_scores_are_the_same_wherever_values_are_freed(kind, in_place, method):
    torch.manual_seed(0)
    explainer = Explainer(Blocks(kind, in_place).eval().double())
    inputs = {"input_ids": torch.arange(20)[None]}
    expected = explainer.explain(inputs, target=1, method=method, memory=8).scores
    for memory in (1.5e-3, 1e-3, 6e-4, 5e-4, 3e-4, 1e-4, 1e-6):
        found = explainer.explain(inputs, target=1, method=method, memory=memory).scores
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("batch", "heads"), [(1, 1), (2, 1), (1, 2)])
def test_shared_heads_are_kept_once(batch, heads):
    attention = ChunkedAttention(1.0, None, 16, causal=True, groups=4 // heads)
    queries = torch.randn(batch, 4, 6, 8)
    keys, values = (
        torch.randn(batch, heads, 6, 8).repeat_interleave(4 // heads, 1) for _ in range(2)
    )
    attention.forward(queries, keys, values)
    attention.free_repeated()
    kept = [one.untyped_storage().nbytes() for one in attention._shared]
    assert attention.shared_bytes == sum(kept) == 2 * batch * heads * 6 * 8 * 4
    attention.restore_repeated()
    assert torch.equal(attention.keys, keys)
    assert torch.equal(attention.values, values)


def test_values_are_freed_once():
    trace = record_llama(max_map_bytes=1)
    operations = [entry.operation for entry in trace.entries]
    cheap = CheapValues(operations)
    for _ in range(2):
        cheap.free()
    cheap.restore()
    assert not any(one.is_set_aside for one in operations)


def test_what_was_released_stays_released():
    trace = record_llama(max_map_bytes=1)
    operations = [entry.operation for entry in trace.entries]
    cheap = CheapValues(operations)
    for one in operations:
        one.release()
    cheap.free()
    cheap.restore()
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
