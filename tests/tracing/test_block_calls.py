"""Blocks are called again with the arguments that they had; where that is not enough, all runs."""

import contextlib
from collections import Counter

import pytest
import torch
from torch import nn

from whence import Explainer, targets
from whence.tracing import record
from whence.tracing.block_calls import BlockCall, CannotKeepError, find_repeated_modules

WIDTH, BLOCKS = 8, 4
BY_BLOCK = {"max_segment_bytes": 10**6, "max_block_bytes": 1}  # one block at a time


class Notes:
    """An object that blocks write to, as they write to a cache."""

    def __init__(self):
        self.seen, self.factors = [], {}


class Block(nn.Module):
    """Attention with its skip connection, and a feed-forward part with its own."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.into, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x, notes=None, scale=1.0):
        q, k, v = self.into(self.norm(x)).chunk(3, -1)
        x = x + (q @ k.mT).softmax(-1) @ v * scale
        return self.finish(x, notes) + self.out(x).relu()

    def finish(self, x, notes):
        return x


class Overwriting(Block):
    def forward(self, x, notes=None, scale=1.0):
        before = x * 1.0
        x.mul_(2)
        return super().forward(x, notes, scale) + before


class Writing(Block):
    """Reads an object that all blocks write to."""

    def finish(self, x, notes):
        notes.seen.append(x)
        notes.factors[len(notes.seen)] = len(notes.seen)
        return x * notes.factors[len(notes.seen)] + notes.seen[0]


class Counting(Block):
    """Counts its calls, and computes something else in each."""

    calls = 0

    def finish(self, x, notes):
        self.calls += 1
        return x * self.calls


class Changing(Block):
    """Computes other operations when it is called again."""

    calls = 0

    def finish(self, x, notes):
        self.calls += 1
        return x.tanh() if self.calls == 1 else x.sigmoid()


class Failing(Block):
    calls = 0

    def finish(self, x, notes):
        self.calls += 1
        if self.calls > 1:
            raise ValueError("called twice")
        return x


class Random(Block):
    def finish(self, x, notes):
        return x * torch.rand(())


class Model(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.blocks = nn.ModuleList(kind() for _ in range(BLOCKS))
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, x):
        notes = Notes()
        for block in self.blocks:
            x = block(x, notes, scale=0.5)
        return self.head(x.mean(1))


@pytest.fixture
def x():
    torch.manual_seed(0)
    return torch.randn(1, 5, WIDTH, dtype=torch.float64)


def count_calls(monkeypatch) -> Counter:
    """Count calls of blocks while on."""
    forward, counts = Block.forward, Counter()

    def count(self, *args, **kwargs):
        counts[id(self)] += 1
        return forward(self, *args, **kwargs)

    monkeypatch.setattr(Block, "forward", count)
    return counts


def read(model, x, **bounds):
    trace = record(model, (x,), {}, 0, **bounds)
    return trace.read(torch.tensor([[0, 1]]), trace.leaves)[0]


@pytest.mark.parametrize("kind", [Block, Overwriting, Writing])
def test_each_block_is_called_twice(kind, x, monkeypatch):
    model = Model(kind).double()
    counts = count_calls(monkeypatch)
    whole = read(model, x)
    assert sorted(counts.values()) == [1] * BLOCKS
    counts.clear()
    cut = read(model, x, **BY_BLOCK)
    assert sorted(counts.values()) == [1] + [2] * (BLOCKS - 1)  # the last one stays in memory
    assert torch.equal(cut, whole)


@pytest.mark.parametrize("kind", [Counting, Changing, Failing])
def test_a_block_that_computes_something_else_is_run_with_the_whole_model(kind, x, monkeypatch):
    model = Model(kind).double()
    whole = read(model, x)
    counts = count_calls(monkeypatch)
    cut = read(model, x, **BY_BLOCK)
    assert max(counts.values()) > 2 or len(counts) > BLOCKS
    assert torch.equal(cut, whole)


def test_blocks_that_draw_random_numbers_are_not_freed_by_themselves(x, monkeypatch):
    model = Model(Random).double()
    counts = count_calls(monkeypatch)
    trace = record(model, (x,), {}, 0, **BY_BLOCK)
    assert not trace.segments.has_freed
    assert sorted(counts.values()) == [1] * BLOCKS


def test_repeated_modules_are_those_of_one_class_in_a_list():
    blocks, one = nn.Sequential(Block(), Block()), nn.ModuleList([Block()])
    leaves = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])
    model = nn.ModuleDict({"blocks": blocks, "one": one, "leaves": leaves})
    assert find_repeated_modules(model.modules()) == list(blocks)


def test_arguments_that_cannot_be_copied_are_not_kept():
    block = Block()
    with pytest.raises(CannotKeepError):
        BlockCall(block, block.forward, (torch.zeros(1), torch.Generator()), {})


def test_one_tensor_that_is_given_twice_stays_one():
    seen = []

    def forward(a, b, both):
        seen.append((a is b, both[0] is both[1], a is both[0]))
        return a * 2

    x = torch.randn(2, 3).requires_grad_() * 1
    call = BlockCall(nn.Identity(), forward, (x, x, [x, x]), {})
    call.finish(forward(x, x, [x, x]))
    call.repeat(contextlib.nullcontext())
    assert seen == [(True, True, True)] * 2


def test_a_cache_of_the_user_is_not_written_to():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2, "vocab_size": 50}
    config = transformers.LlamaConfig(intermediate_size=24, initializer_range=0.3, **sizes)
    model = transformers.LlamaForCausalLM(config).eval().double()
    ids, cache = torch.arange(12)[None], transformers.DynamicCache()
    model(ids[:, :6], past_key_values=cache)
    inputs = {"input_ids": ids[:, 6:], "past_key_values": cache}
    asked = {"target": targets.token(-1, 3), "method": "input_x_gradient"}
    explainer = Explainer(model)
    expected = explainer.explain(inputs, **asked)
    found = explainer.explain(inputs, **asked, memory=1e-5)
    assert torch.allclose(found.scores, expected.scores, rtol=1e-12)
    assert cache.get_seq_length() == 6
