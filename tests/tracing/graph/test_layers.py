"""Sequences of tokens: which ones each attention reads from, and which it writes to."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.tracing.helpers import record_inputs
from tests.zoo import CASES, build_model
from whence.methods.shared.sequences import find_input_sequence
from whence.tracing import Intervention, Trace
from whence.tracing.graph import find_layers, is_attention_pooling, is_sequential


def list_sequences(trace: Trace) -> list[tuple[int, int]]:
    """The sequences of queries and keys of each layer."""
    return [(layer.queries, layer.keys) for layer in find_layers(trace)]


@pytest.mark.parametrize("name", CASES)
def test_self_attention_is_one_sequence(name):
    case = CASES[name]
    trace = record_inputs(build_model(case), case.inputs())
    assert list_sequences(trace) == [(0, 0)] * len(trace.sites)
    assert not is_attention_pooling(find_layers(trace))
    assert is_sequential(trace)


class Decoder(nn.Module):
    """Learned queries attend to themselves, then to the input; twice over, by plain products."""

    def __init__(self, queries: int = 3) -> None:
        super().__init__()
        self.queries = nn.Parameter(torch.randn(queries, 8))
        self.projections = nn.ModuleList(nn.Linear(8, 24) for _ in range(5))
        self.head = nn.Linear(8, 2)

    def attend(self, number: int, x: Tensor, to: Tensor) -> Tensor:
        q, k, v = self.projections[number].weight.chunk(3)
        scores = F.linear(x, q) @ F.linear(to, k).mT
        return x + scores.softmax(-1) @ F.linear(to, v)

    def forward(self, x: Tensor) -> Tensor:
        x = self.attend(0, x, x)
        y = self.queries.expand(len(x), -1, -1)
        for layer in (1, 3):
            y = self.attend(layer, y, y)
            y = self.attend(layer + 1, y, x)
        return self.head(y.mean(1))


@pytest.mark.parametrize("queries", [3, 7])
def test_constant_queries_are_recorded_on_demand(queries):
    model = Decoder(queries)
    trace = record_inputs(model, torch.randn(2, 7, 8))
    assert list_sequences(trace) == [(0, 0), (1, 0), (1, 1), (1, 0)]
    assert [layer.constant for layer in find_layers(trace)] == [False, True, False, False]
    again = trace.rerecord(Intervention(follow_constants=True))
    assert list_sequences(again) == [(0, 0), (1, 1), (1, 0), (1, 1), (1, 0)]
    assert find_input_sequence(again, find_layers(again)) == 0
    assert torch.equal(again.logits, trace.logits)


def test_the_sequence_of_the_input_is_not_that_of_constant_queries():
    class First(Decoder):
        def forward(self, x):
            y = self.queries.expand(len(x), -1, -1)
            y = self.attend(0, y, y)
            x = self.attend(1, x, x)
            return self.head(self.attend(2, y, x).mean(1))

    again = record_inputs(First(), torch.randn(2, 7, 8)).rerecord(
        Intervention(follow_constants=True)
    )
    layers = find_layers(again)
    assert [layer.is_cross for layer in layers] == [False, False, True]
    assert find_input_sequence(again, layers) == layers[1].keys != layers[0].keys


def test_pooling_by_attention_is_recognised():
    class Pools(Decoder):
        def forward(self, x):
            x = self.attend(0, x, x)
            return self.head(self.attend(1, self.queries.expand(len(x), -1, -1), x).mean(1))

    trace = record_inputs(Pools(), torch.randn(2, 7, 8))
    assert is_attention_pooling(find_layers(trace))


def test_merged_tokens_are_another_sequence():
    class Merges(Decoder):
        def forward(self, x):
            x = self.attend(0, x, x)
            x = x[:, ::2] + x[:, 1::2]
            return self.head(self.attend(1, x, x).mean(1))

    layers = find_layers(record_inputs(Merges(), torch.randn(2, 8, 8)))
    assert [layer.merged for layer in layers] == [False, True]
    assert layers[0].queries != layers[1].queries


class Opaque(torch.autograd.Function):
    """A linear map that hides in a function of its own."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(weight)
        return x @ weight

    @staticmethod
    def backward(ctx, gradient):
        return gradient @ ctx.saved_tensors[0].mT, None


class Projects(nn.Module):
    """Two blocks whose queries, keys and values are made of the input in some way."""

    def __init__(self, project) -> None:
        super().__init__()
        self.weights = nn.ParameterList(torch.randn(8, 8) for _ in range(6))
        self.head = nn.Linear(8, 2)
        self.project = project

    def forward(self, x):
        for _ in range(2):
            q, k, v = (self.project(self, x, number) for number in range(3))
            x = x + F.scaled_dot_product_attention(q, k, v)
        return self.head(x[:, 0])


PROJECTIONS = {
    "none": lambda model, x, n: x,
    "one": lambda model, x, n: F.linear(x, model.weights[n]),
    "fused": lambda model, x, n: F.linear(x, torch.cat([*model.weights[:3]])).chunk(3, -1)[n],
    "several and a norm": lambda model, x, n: F.linear(
        F.rms_norm(F.linear(x, model.weights[n]), (8,)), model.weights[n + 3]
    ),
    "another for values": lambda model, x, n: F.linear(x, model.weights[n]) if n == 2 else x,
    "hidden in a function": lambda model, x, n: Opaque.apply(x, model.weights[n]),
    "positions": lambda model, x, n: F.linear(x + torch.ones(x.shape[1], 8), model.weights[n]),
}


@pytest.mark.parametrize("project", PROJECTIONS.values(), ids=PROJECTIONS)
def test_attention_within_a_residual_stream_is_self_attention(project):
    trace = record_inputs(Projects(project), torch.randn(2, 5, 8))
    assert list_sequences(trace) == [(0, 0), (0, 0)]
    assert not any(layer.merged or layer.constant for layer in find_layers(trace))


def test_attention_to_a_stream_of_the_same_input_is_cross_attention():
    class TwoStreams(Decoder):
        def forward(self, x):
            y, z = (F.linear(x, self.projections[4].weight.chunk(3)[n]) for n in (0, 1))
            return self.head(self.attend(1, self.attend(0, y, z), z).mean(1))

    trace = record_inputs(TwoStreams(), torch.randn(2, 5, 8))
    assert [layer.is_cross for layer in find_layers(trace)] == [True, True]


class HeadsOneByOne(Decoder):
    """Heads of an attention are computed one by one, and added to the input together."""

    def forward(self, x):
        for _ in range(2):
            heads = [self.attend(n, x, x) - x for n in range(3)]
            x = (
                x + torch.stack(heads).sum(0)
                if self.stacked
                else x + heads[0] + heads[1] + heads[2]
            )
        return self.head(x[:, 0])


@pytest.mark.parametrize("stacked", [False, True])
def test_heads_that_are_computed_one_by_one_are_one_layer(stacked):
    model = HeadsOneByOne()
    model.stacked = stacked
    layers = find_layers(record_inputs(model, torch.randn(2, 5, 8)))
    assert [len(layer.sites) for layer in layers] == [3, 3]


def test_depths_that_the_target_reads():
    class Reads(Decoder):
        def __init__(self, depths) -> None:
            super().__init__()
            self.depths = depths

        def forward(self, x):
            hidden = []
            for number in range(3):
                x = self.attend(number, x, x)
                hidden.append(x[:, 0])
            return self.head(sum(hidden[depth] for depth in self.depths))

    for depths, layers, one in (((2,), 3, True), ((1,), 2, True), ((0, 2), 3, False)):
        trace = record_inputs(Reads(depths), torch.randn(2, 5, 8))
        assert (len(find_layers(trace)), is_sequential(trace)) == (layers, one)


def test_constants_lead_around_nothing():
    """Queries that are learned, and weights of functions that hide what they do."""
    again = record_inputs(Decoder(), torch.randn(2, 7, 8)).rerecord(
        Intervention(follow_constants=True)
    )
    assert is_sequential(again)

    class Hidden(Projects):
        def forward(self, x):
            x = x + F.scaled_dot_product_attention(x, x, x)
            x = x + Opaque.apply(x, self.weights[0])
            return super().forward(x)

    assert is_sequential(record_inputs(Hidden(PROJECTIONS["one"]), torch.randn(2, 5, 8)))
