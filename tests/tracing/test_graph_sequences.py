"""Sequences of tokens: which ones each attention reads from, and which it writes to."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.tracing.helpers import record_inputs
from tests.zoo import CASES, build_model
from whence.methods.gae import _find_input_sequence
from whence.tracing import Intervention
from whence.tracing.graph import (
    SiteSequences,
    find_sequences,
    is_attention_pooling,
)


@pytest.mark.parametrize("name", CASES)
def test_self_attention_is_one_sequence(name):
    case = CASES[name]
    trace = record_inputs(build_model(case), case.inputs())
    sequences = find_sequences(trace)
    assert sequences == [SiteSequences(0, 0)] * len(trace.sites)
    assert not is_attention_pooling(trace, sequences)


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
    own, across = SiteSequences(0, 0), SiteSequences(1, 0)
    assert find_sequences(trace) == [
        own,
        across._replace(constant=True),
        SiteSequences(1, 1),
        across,
    ]
    again = trace.rerecord(Intervention(follow_constants=True))
    decoder = SiteSequences(1, 1)
    sequences = find_sequences(again)
    assert sequences == [own, decoder, across, decoder, across]
    assert _find_input_sequence(again, sequences) == 0
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
    sequences = find_sequences(again)
    assert [of.queries == of.keys for of in sequences] == [True, True, False]
    assert _find_input_sequence(again, sequences) == sequences[1].keys != sequences[0].keys


def test_pooling_by_attention_is_recognised():
    class Pools(Decoder):
        def forward(self, x):
            x = self.attend(0, x, x)
            return self.head(self.attend(1, self.queries.expand(len(x), -1, -1), x).mean(1))

    trace = record_inputs(Pools(), torch.randn(2, 7, 8))
    assert is_attention_pooling(trace, find_sequences(trace))


def test_merged_tokens_are_another_sequence():
    class Merges(Decoder):
        def forward(self, x):
            x = self.attend(0, x, x)
            x = x[:, ::2] + x[:, 1::2]
            return self.head(self.attend(1, x, x).mean(1))

    sequences = find_sequences(record_inputs(Merges(), torch.randn(2, 8, 8)))
    assert [of.merged for of in sequences] == [False, True]
    assert sequences[0].queries != sequences[1].queries
