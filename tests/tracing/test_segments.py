"""What operations keep is freed segment by segment, and computed again when it is read."""

import math

import pytest
import torch
from torch import nn

from tests.tracing.helpers import to_double
from tests.zoo import CASES, build_model
from whence import rules
from whence.tracing import record
from whence.tracing.graph import find_blocks
from whence.tracing.ops.base import Operation
from whence.tracing.ops.sums import Add
from whence.tracing.segments import Segments

NAMES = ("timm-vit-fused", "Bert-sdpa", "ViTForImageClassification-eager")


@pytest.fixture(params=["blocks", "whole runs"])
def scheme(request, monkeypatch):
    """Blocks are called again, or there are none, so that the whole model runs again."""
    if request.param == "whole runs":
        without_blocks(monkeypatch)


def without_blocks(monkeypatch) -> None:
    monkeypatch.setattr("whence.tracing.block_calls._CONTAINERS", ())


def record_in_segments(name: str, max_segment_bytes: float):
    case = CASES[name]
    model, inputs = build_model(case).double(), to_double(case.inputs())
    given = inputs if isinstance(inputs, dict) else {}
    args = () if given else (inputs,)
    main = next(iter(given)) if given else 0
    return record(model, args, given, main, max_segment_bytes=max_segment_bytes)


def count_kept(trace) -> int:
    """Count the operations whose activations are in memory."""
    names = [(entry.operation, entry.operation.activations[0]) for entry in trace.entries]
    tensors = [getattr(operation, name) for operation, name in names]
    first = [one[0] if isinstance(one, tuple) else one for one in tensors]
    return sum(not tensor.is_meta for tensor in first)


@pytest.mark.usefixtures("scheme")
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("rule_set", [None, "stable", "attnlrp", "reference"])
def test_values_are_those_of_a_pass_that_keeps_all(name, rule_set):
    how = None if rule_set is None else rules.get(rule_set)
    whole, cut = (record_in_segments(name, bound) for bound in (math.inf, 30_000))
    assert count_kept(whole) == len(whole.entries)
    assert 0 < count_kept(cut) < len(cut.entries) * 0.6
    classes = torch.tensor([[0, 1]] * whole.batch)
    for trace in (whole, cut):
        edges = [block.input_edge for block in find_blocks(trace)]
        trace.found = trace.read(classes, [*trace.leaves, *edges], how)
    for ours, theirs in zip(cut.found, whole.found, strict=True):
        assert torch.equal(ours, theirs)
    assert 0 < count_kept(cut) < len(cut.entries) * 0.6


@pytest.mark.usefixtures("scheme")
@pytest.mark.parametrize("name", NAMES)
def test_hidden_states_are_found(name):
    whole, cut = (record_in_segments(name, bound) for bound in (math.inf, 30_000))
    for ours, theirs in zip(find_blocks(cut), find_blocks(whole), strict=True):
        assert torch.equal(ours.input, theirs.input)
        assert torch.equal(ours.value_input, theirs.value_input)


def test_sums_stay(monkeypatch):
    without_blocks(monkeypatch)
    cut = record_in_segments("timm-vit-fused", 1)
    sums = [entry.operation for entry in cut.entries if isinstance(entry.operation, Add)]
    assert sums
    assert not any(operation.output.is_meta for operation in sums)
    assert all(operation.a.is_meta for operation in sums)


def test_segments_leave_room_for_what_stays():
    def add(activations, size):
        operation = Operation()
        operation.activations, operation.output = activations, torch.zeros(size)
        operation.index = segments._count
        segments.add(operation, size)

    segments = Segments(100)
    for size in (40, 40, 40, 40):
        add(("output",), size)
        add(("a",), 10)
    assert [one.start for one in segments._segments] == [0, 4]  # 40 + 10 + 40 + 10 each
    segments.finish()
    # 40 stay, so that 60 are left for a segment.
    assert [one.start for one in segments._segments] == [0, 2, 4]
    operations = [operation for one in segments._segments for operation in one.operations]
    assert [one.output.is_meta for one in operations] == [True, False] * 2 + [False] * 4


def test_the_model_runs_again_no_further_than_the_segment(monkeypatch):
    without_blocks(monkeypatch)
    cut = record_in_segments("timm-vit-fused", 1)  # a segment for each operation
    seen = []
    run_again = cut.segments.run_again

    def watch(refill):
        take = refill.take

        def count(operation):
            seen.append(operation.index)
            take(operation)

        refill.take = count
        run_again(refill)

    monkeypatch.setattr(cut.segments, "run_again", watch)
    cut.entries[3].operation.fetch()
    assert seen == [0, 1, 2, 3]
    cut.entries[3].operation.fetch()
    assert seen == [0, 1, 2, 3]
    assert cut.entries[4].operation.output.is_meta


class Overwriting(nn.Module):
    """Attention, and calls in place that change what operations before them have read."""

    def __init__(self, in_place=True):
        super().__init__()
        self.into, self.head, self.in_place = nn.Linear(6, 18), nn.Linear(6, 3), in_place

    def forward(self, x):
        y = self.into(x)
        z = (y[..., :6] @ y[..., 6:12].mT).softmax(-1) @ y[..., 12:] + x
        gate = torch.sigmoid(z)
        if self.in_place:
            y.mul_(2)
            z.add_(gate * y[..., :6]).relu_()
        else:
            z = (z + gate * (y * 2)[..., :6]).relu()
        return self.head(z).mean(1)


def test_what_is_overwritten_in_place_is_preserved_again():
    torch.manual_seed(0)
    model, plain = Overwriting().double(), Overwriting(in_place=False).double()
    plain.load_state_dict(model.state_dict())
    x, classes = torch.randn(2, 5, 6, dtype=torch.float64), torch.tensor([[0], [2]])
    leaf = x.clone().requires_grad_()
    (expected,) = torch.autograd.grad(plain(leaf)[[0, 1], [0, 2]].sum(), leaf)
    for bound in (math.inf, 3000, 1):
        trace = record(model, (x,), {}, 0, max_segment_bytes=bound)
        (found,) = trace.read(classes, trace.leaves)
        assert torch.allclose(found[0], expected)


def test_a_model_that_computes_something_else_is_an_error(monkeypatch):
    without_blocks(monkeypatch)
    trace = record_in_segments("timm-vit-fused", 1)
    trace.segments.run_again = lambda refill: None
    with pytest.raises(RuntimeError, match="something else"):
        trace.segments.fetch(0)
