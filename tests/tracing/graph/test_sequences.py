import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.zoo import CASES, built
from whence.tracing import Intervention, Trace, record
from whence.tracing.graph.sequences import (
    SiteSequences,
    find_input_sequence,
    find_sequences,
    is_attention_pooling,
)


def traced(model: nn.Module, inputs) -> Trace:
    if isinstance(inputs, Tensor):
        return record(model, (inputs,), {}, 0)
    return record(model, (), inputs, next(iter(inputs)))


@pytest.mark.parametrize("name", CASES)
def test_self_attention_is_one_stream(name):
    case = CASES[name]
    recorded = traced(built(case), case.inputs())
    streams = find_sequences(recorded)
    assert streams == [SiteSequences(0, 0)] * len(recorded.sites)
    assert not is_attention_pooling(recorded, streams)


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
def test_constant_queries_are_seen_when_asked_for(queries):
    model = Decoder(queries)
    recorded = traced(model, torch.randn(2, 7, 8))
    own, across = SiteSequences(0, 0), SiteSequences(1, 0)
    assert find_sequences(recorded) == [
        own,
        across._replace(constant=True),
        SiteSequences(1, 1),
        across,
    ]
    again = recorded.rerecord(Intervention(follow_constants=True))
    decoder = SiteSequences(1, 1)
    streams = find_sequences(again)
    assert streams == [own, decoder, across, decoder, across]
    assert find_input_sequence(again, streams) == 0
    assert torch.equal(again.logits, recorded.logits)


def test_what_is_explained_is_not_a_constant_sequence():
    class First(Decoder):
        def forward(self, x):
            y = self.queries.expand(len(x), -1, -1)
            y = self.attend(0, y, y)
            x = self.attend(1, x, x)
            return self.head(self.attend(2, y, x).mean(1))

    again = traced(First(), torch.randn(2, 7, 8)).rerecord(Intervention(follow_constants=True))
    streams = find_sequences(again)
    assert [of.queries == of.keys for of in streams] == [True, True, False]
    assert find_input_sequence(again, streams) == streams[1].keys != streams[0].keys


def test_pooling_by_attention():
    class Pools(Decoder):
        def forward(self, x):
            x = self.attend(0, x, x)
            return self.head(self.attend(1, self.queries.expand(len(x), -1, -1), x).mean(1))

    recorded = traced(Pools(), torch.randn(2, 7, 8))
    assert is_attention_pooling(recorded, find_sequences(recorded))


def test_tokens_that_are_merged():
    class Merges(Decoder):
        def forward(self, x):
            x = self.attend(0, x, x)
            x = x[:, ::2] + x[:, 1::2]
            return self.head(self.attend(1, x, x).mean(1))

    streams = find_sequences(traced(Merges(), torch.randn(2, 8, 8)))
    assert [of.merged for of in streams] == [False, True]
    assert streams[0].queries != streams[1].queries
