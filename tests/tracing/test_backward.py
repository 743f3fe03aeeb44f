"""The backward pass gives what autograd's own engine gives, with less work and memory."""

import pytest
import torch
from torch import Tensor, nn

from tests.tracing.helpers import predicted_classes, read_maps, record_case
from whence import rules
from whence.rules.balanced import BALANCED
from whence.tracing import Intervention, Trace, record
from whence.tracing.ops.base import Operation
from whence.tracing.ops.products import Linear, MatMul
from whence.tracing.ops.sums import Add
from whence.tracing.sparse_rows import SparseRows

# A class token, averages, heads folded into the batch, text, attention call by call.
MODELS = [
    "timm-vit-fused",
    "timm-vit-average-fused",
    "timm-deit-distilled-unfused",
    "torchvision-vit",
    "hand-written",
    "BeitForImageClassification-sdpa",
    "Dinov2ForImageClassification-sdpa",
    "Bert-sdpa",
]


def read_by_engine(trace: Trace, classes: Tensor, rule_set, at=None) -> list[Tensor]:
    """The same reading by autograd's engine, which knows neither rows nor which inputs are wanted.

    Args:
        trace: The recorded forward pass, which is recorded again for these rules.
        classes: (batch, 1) class indices.
        rule_set: How values pass operations.
        at: Picks places of the new trace; its attention maps if left out.
    """
    again = trace.rerecord(Intervention(rules=rule_set))
    seed = torch.zeros_like(again.logits).scatter_(1, classes, 1)
    places = [site.weights for site in again.sites] if at is None else at(again)
    values = torch.autograd.grad(again.logits, places, seed)
    if at is not None:
        return list(values)
    sites = zip(trace.sites, values, strict=True)
    return [site.split_heads(value, trace.batch) for site, value in sites]


def assert_equal_to_engine(trace: Trace, rule_set=None) -> None:
    """Compare readings of two classes, together and one at a time."""
    classes = trace.logits.detach().topk(2).indices
    together = read_maps(trace, classes, rule_set)
    for number in range(2):
        one = classes[:, number : number + 1]
        alone, expected = read_maps(trace, one, rule_set), read_by_engine(trace, one, rule_set)
        for a, b, c in zip(alone, together, expected, strict=True):
            assert torch.allclose(a[0], c, rtol=1e-9, atol=1e-14)
            assert torch.allclose(b[number], c, rtol=1e-9, atol=1e-14)


@pytest.mark.parametrize("name", MODELS)
def test_readings_are_those_of_the_engine(name):
    trace = record_case(name)
    for rule_set in (None, BALANCED, *map(rules.get, ("stable", "reference", "paper"))):
        assert_equal_to_engine(trace, rule_set)


class Product(torch.autograd.Function):
    """An autograd function that a model brings along, with an argument that is no tensor."""

    @staticmethod
    def forward(ctx, a, factor, b):
        ctx.save_for_backward(a, b)
        ctx.factor = factor
        return a * b * factor

    @staticmethod
    def backward(ctx, grad):
        a, b = ctx.saved_tensors
        return grad * b * ctx.factor, None, grad * a * ctx.factor


@torch.jit.script
def scripted_sum(a: Tensor, b: Tensor) -> Tensor:
    return a + b


READ = {
    "from far before the first": lambda x: x[:, -100:2].mean(1),
    "from the end": lambda x: x[:, -3:-1].mean(1),
    "with a step": lambda x: x[:, ::2].mean(1),
    "after adding a constant first": lambda x: (torch.ones(8).double() + x)[:, 1],
    "a function of one tensor twice": lambda x: Product.apply(x, 2.0, x)[:, 0],
    "a function of a tensor and of one made of it": lambda x: Product.apply(x, 2.0, x.tanh())[:, 0],
    "a sum that hides its calls": lambda x: scripted_sum(x[:, :2], x[:, 1:3])[:, 0],
}


class Readout(nn.Module):
    """Two layers of attention, and a head that reads their tokens in some way."""

    def __init__(self, read):
        super().__init__()
        self.read = read
        self.values = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        for value in self.values:
            x = x + (x @ x.mT).softmax(-1) @ value(x)
        return self.head(self.read(x))


@pytest.mark.parametrize("read", READ)
def test_gradients_are_those_of_the_engine_however_tokens_are_read(read):
    torch.manual_seed(0)
    model = Readout(READ[read]).double()
    assert_equal_to_engine(record(model, (torch.randn(3, 7, 8).double() / 4,), {}, 0))


class MixedTypes(nn.Module):
    """Scores and part of the residual stream in bfloat16, the softmax and the rest not."""

    def __init__(self):
        super().__init__()
        self.value = nn.Linear(8, 8)
        self.coarse = nn.Linear(8, 8).bfloat16()
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        low = (x * 1).bfloat16()
        maps = (low @ low.mT).softmax(-1, dtype=torch.float32)
        x = x + maps @ self.value(x)
        x = x + self.coarse(x.bfloat16())
        x = (self.coarse(x.bfloat16()) + torch.ones(8)) + x
        return self.head(x[:, 0])


@pytest.mark.parametrize("rule_set", [None, "stable", "reference", "paper"])
def test_readings_have_the_types_of_what_they_belong_to(rule_set):
    torch.manual_seed(0)
    trace = record(MixedTypes(), (torch.randn(2, 5, 8) / 2,), {}, 0)
    classes = predicted_classes(trace)
    how = None if rule_set is None else rules.get(rule_set)

    def places(trace: Trace) -> list[Tensor]:
        return [trace.sites[0].weights, trace.leaves[0]]

    found = trace.read(classes, places(trace), how)
    for ours, expected in zip(found, read_by_engine(trace, classes, how, places), strict=True):
        assert ours.dtype == expected.dtype
        tolerance = 1e-3 * float(expected.abs().max())
        assert torch.allclose(ours[0], expected, rtol=1e-3, atol=tolerance)


def test_several_rule_sets_go_backward_together():
    trace = record_case("timm-vit-fused")
    classes, stable = predicted_classes(trace), rules.get("stable")
    places = [site.weights for site in trace.sites]
    found = dict(trace.iterate_backward([classes] * 2, places, [None, stable]))
    assert sorted(found) == list(range(len(places)))
    for number, (gradient, relevance) in found.items():
        assert torch.equal(gradient, trace.read(classes, places, None)[number])
        assert torch.equal(relevance, trace.read(classes, places, stable)[number])


def test_a_place_that_nothing_arrives_at_has_zeros():
    trace = record_case("hand-written")
    last = trace.entries[-1].output
    with torch.no_grad():
        other = trace.rerecord(Intervention())
    classes = torch.tensor([[0, 1]] * trace.batch)
    at_logits, elsewhere = trace.read(classes, [last, other.sites[0].weights])
    assert at_logits.sum() == 2 * trace.batch
    assert elsewhere.shape == (2, *other.sites[0].weights.shape)
    assert not elsewhere.any()


def test_upstream_of_a_class_token_only_its_row_is_worked_on(monkeypatch):
    trace = record_case("timm-vit-fused")
    tokens, row_counts = trace.sites[0].key_count, []
    gradient = Linear.gradient

    def count_rows(self, output):
        row_counts.append(output.shape[1] if output.dim() == 3 else 1)
        return gradient(self, output)

    monkeypatch.setattr(Linear, "gradient", count_rows)
    read_maps(trace, predicted_classes(trace), sites=trace.sites[-1:])
    assert row_counts
    assert set(row_counts) == {1}
    row_counts.clear()
    read_maps(trace, predicted_classes(trace))
    assert tokens in row_counts


def test_operations_are_released_once_they_have_been_passed():
    trace = record_case("timm-vit-fused")
    places = [site.weights for site in trace.sites[::-1]]
    values = trace.iterate_backward([predicted_classes(trace)], places, [None], release=True)
    next(values)
    next(values)
    operations = [entry.operation for entry in trace.entries]
    downstream = [op for op in operations if op.index > trace.sites[-1].product.index]
    upstream = [op for op in operations if op.index < trace.sites[0].product.index]
    assert not any(hasattr(operation, "output") for operation in downstream)
    assert all(hasattr(operation, "output") for operation in upstream)


# Rows --------------------------------------------------------------------------------------------


def run_operation(operation: Operation, *shapes: tuple[int, ...]) -> Operation:
    operation.batch = 2
    operation.forward(*(torch.randn(shape, dtype=torch.float64) for shape in shapes))
    return operation


def test_sparse_rows_as_a_dense_tensor():
    rows = torch.rand(3, 2, 2, 5)
    sparse = SparseRows(rows, -2, 3, torch.Size((2, 6, 5)))
    assert sparse.range == (-2, 3, 2)
    dense = sparse.to_dense()
    assert dense.shape == (3, 2, 6, 5)
    assert torch.equal(dense[:, :, 3:5], rows)
    assert dense.sum() == pytest.approx(rows.sum())


@pytest.mark.parametrize("rule_set", ["stable", "reference", "paper"])
@pytest.mark.parametrize(
    "operation",
    [
        run_operation(Linear(torch.randn(5, 4).double()), (2, 6, 4)),
        run_operation(MatMul(), (2, 6, 4), (2, 4, 5)),
        run_operation(Add(), (2, 6, 5), (2, 6, 5)),
    ],
    ids=lambda operation: type(operation).__name__,
)
def test_rows_get_what_the_whole_would_give_them(operation, rule_set):
    sparse = SparseRows(torch.rand(2, 2, 5).double(), -2, 3, operation.output.shape)
    small, shapes = operation.narrow_rows(*sparse.range)
    narrowed = rules.get(rule_set).propagate(small, sparse.rows)
    whole = rules.get(rule_set).propagate(operation, sparse.to_dense())
    for rows, shape, expected in zip(narrowed, shapes, whole, strict=True):
        found = rows if shape is None else SparseRows(rows, -2, 3, shape).to_dense()
        assert torch.allclose(found, expected)
