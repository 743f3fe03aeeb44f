"""Layers of small models whose structure is known, since it was written by hand."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.tracing.helpers import record_inputs
from whence import WhenceError
from whence.tracing import Trace
from whence.tracing.graph import find_blocks, find_layers, is_attention_pooling, is_sequential


def list_sequences(trace: Trace) -> list[tuple[int, int]]:
    """The sequences of queries and keys of each layer."""
    return [(layer.queries, layer.keys) for layer in find_layers(trace)]


class ByHand(nn.Module):
    """A model whose body is a function of itself and the embedded input."""

    def __init__(self, body) -> None:
        super().__init__()
        self.body = body
        self.maps = nn.ModuleList(nn.Linear(8, 8) for _ in range(8))
        self.norm = nn.LayerNorm(8)
        self.constants = nn.Parameter(torch.randn(8, 8))
        self.head = nn.Linear(8, 2)

    def attend(self, queries: Tensor, keys: Tensor | None = None, values: Tensor | None = None):
        keys = self.maps[1](queries) if keys is None else keys
        values = keys if values is None else values
        return (queries @ keys.mT * 0.5).softmax(-1).clone() @ values

    def forward(self, x: Tensor) -> Tensor:
        self.raw = x
        return self.head(self.body(self, self.maps[0](x)).mean(1))


def record_body(body, tokens: int = 8) -> Trace:
    return record_inputs(ByHand(body), torch.randn(2, tokens, 8))


def mix_streams(m, e, second):
    """Two streams; then queries of the first attend to keys of both, added in some way."""
    f, g = e, second(m.maps[2](m.raw))
    y, z = m.norm(f + m.attend(f)), m.norm(g + m.attend(g))
    return m.attend(m.maps[3](y), m.maps[4](y + z.mean(1, keepdim=True)))


def move_first(m, e, also):
    """A block whose tokens come before samples, and an attention to another place beside it."""
    entering = also(m, e).transpose(0, 1).clone()
    inside = m.attend(m.maps[2](entering.transpose(0, 1)))
    return torch.cat([(entering + inside.transpose(0, 1)).transpose(0, 1), m.attend(e)], 1)


def choose(m, e):
    """Tokens of one kind or another."""
    mask = torch.arange(e.shape[1])[:, None] % 2 == 0
    return torch.where(mask, e, m.maps[4](m.raw))


SELF, NEW = (0, 0), (1, 1)
BODIES = {
    "no skip": (lambda m, e: m.attend(m.maps[2](m.attend(e))), [SELF, SELF], []),
    "heads keep no skip": (lambda m, e: m.attend(e) + m.attend(m.maps[2](e)), [SELF], []),
    "queries of the raw input": (
        lambda m, e: m.attend(m.raw * 1, m.maps[2](m.norm(e + m.attend(e)))),
        [SELF, (1, 0)],
        [],
    ),
    "keys of the raw input": (
        lambda m, e: m.attend(m.norm(e + m.attend(e)), m.maps[2](m.raw)),
        [SELF, (0, 1)],
        [],
    ),
    "constant queries in a stream": (
        lambda m, e: e + m.attend(m.constants, m.maps[2](e)),
        [SELF],
        [],
    ),
    "keys of two streams": (lambda m, e: mix_streams(m, e, lambda g: g), [SELF, NEW, (0, 2)], [2]),
    "keys of a stream and a shorter one": (
        lambda m, e: mix_streams(m, e, lambda g: g[:, :3]),
        [SELF, NEW, (0, 2)],
        [2],
    ),
    "windows": (
        lambda m, e: ((w := e.reshape(-1, 4, 8)) + m.attend(m.norm(w))).view_as(e),
        [SELF],
        [0],
    ),
    "a stream that was moved": (lambda m, e: move_first(m, e, lambda m, e: e), [SELF, SELF], []),
    "a stream with a token more": (
        lambda m, e: move_first(
            m, e, lambda m, e: torch.cat([m.constants[None, :1].expand(2, -1, -1), e], 1)
        ),
        [SELF, NEW],
        [],
    ),
    "a stream of two kinds": (lambda m, e: move_first(m, e, choose), [SELF, NEW], []),
}


@pytest.mark.parametrize("name", BODIES)
def test_sequences_of_models_by_hand(name):
    body, sequences, merged = BODIES[name]
    trace = record_body(body)
    assert list_sequences(trace) == sequences
    assert [n for n, layer in enumerate(find_layers(trace)) if layer.merged] == merged
    assert not any(layer.constant for layer in find_layers(trace))


def test_long_sequences_whose_maps_are_not_kept():
    class Long(ByHand):
        def attend(self, queries, keys=None, values=None):
            keys = self.maps[1](queries) if keys is None else keys
            q, k = (one.unflatten(-1, (2, 4)).transpose(1, 2) for one in (queries, keys))
            attended = F.scaled_dot_product_attention(q, k, k)
            return attended.transpose(1, 2).flatten(2)

    for name in ("no skip", "queries of the raw input", "keys of the raw input"):
        body, sequences, _ = BODIES[name]
        trace = record_inputs(Long(body), torch.randn(2, 5, 8))
        trace = trace.rerecord(None, max_map_bytes=1)
        assert list_sequences(trace) == sequences


class ByColumns(ByHand):
    """The maps are transposed: keys are rows, and queries are columns."""

    def attend(self, queries, keys=None, values=None):
        keys = self.maps[1](queries) if keys is None else keys
        values = keys if values is None else values
        return (values.mT @ (keys @ queries.mT * 0.5).softmax(-2)).mT


@pytest.mark.parametrize("name", BODIES)
def test_sequences_of_transposed_maps(name):
    body, sequences, merged = BODIES[name]
    layers = find_layers(record_inputs(ByColumns(body), torch.randn(2, 8, 8)))
    assert [(layer.queries, layer.keys) for layer in layers] == sequences
    assert [n for n, layer in enumerate(layers) if layer.merged] == merged
    assert not any(layer.constant for layer in layers)


@pytest.mark.parametrize("kind", [ByHand, ByColumns])
@pytest.mark.parametrize("values", [lambda m: None, lambda m: m.maps[5](m.raw)])
def test_queries_that_do_not_depend_on_the_input(kind, values):
    """Keys are of the first sequence, wherever the values come from."""
    model = kind(lambda m, e: m.attend(m.constants, m.maps[4](m.norm(e + m.attend(e))), values(m)))
    layers = find_layers(record_inputs(model, torch.randn(2, 8, 8)))
    assert [layer.constant for layer in layers] == [False, True]
    assert [(layer.queries, layer.keys) for layer in layers] == [(0, 0), (1, 0)]


class BySums(ByHand):
    """Scores are sums of queries and keys, or a function of products that is read many times."""

    def attend(self, queries, keys=None, values=None):
        keys = self.maps[1](queries) if keys is None else keys
        if self.additive:
            scores = (queries[:, :, None] + keys[:, None]).tanh().sum(-1)
        else:
            scores = queries @ keys.mT
            for _ in range(40):  # there are 2^40 ways to the product
                scores = scores.sin() + scores.cos()
        return scores.softmax(-1) @ (keys if values is None else values)


@pytest.mark.parametrize("additive", [False, True])
def test_sequences_of_other_scores(additive):
    model = BySums(lambda m, e: (y := e + m.attend(e)) + m.attend(m.norm(y)))
    model.additive = additive
    assert list_sequences(record_inputs(model, torch.randn(2, 5, 8))) == [(0, 0), (0, 0)]


def block(m, x, number):
    return x + m.maps[number](m.attend(m.norm(x)))


IN_TURN = {
    "blocks": (lambda m, e: block(m, block(m, e, 2), 3), True),
    "one block": (lambda m, e: block(m, e, 2), True),
    "a norm between blocks": (lambda m, e: block(m, m.norm(block(m, e, 2)), 3), True),
    "no skips": (lambda m, e: m.attend(m.maps[2](m.attend(e))), True),
    "values of the input": (
        lambda m, e: m.attend(*[m.maps[2](m.attend(e))] * 2, m.maps[3](e)),
        False,
    ),
    "a term of the input": (lambda m, e: block(m, block(m, e, 2), 3) + m.maps[4](e), False),
    "a term of the first attention": (
        lambda m, e: (
            (y := e + (first := m.maps[2](m.attend(e)))) + m.attend(m.norm(y)) + m.maps[4](first)
        ),
        False,
    ),
    "the input enters the second block": (
        lambda m, e: block(m, m.norm(block(m, e, 2)) + m.maps[4](e), 3),
        False,
    ),
    "the target reads the input too": (
        lambda m, e: m.norm(block(m, block(m, e, 2), 3)) + m.maps[4](m.raw),
        True,
    ),
    "the target reads the first block too": (
        lambda m, e: m.norm(block(m, y := block(m, e, 2), 3)) + m.maps[4](y),
        False,
    ),
    "constant queries read the last block": (
        lambda m, e: m.attend(m.constants, m.maps[4](block(m, block(m, e, 2), 3))),
        True,
    ),
    "constant queries read both blocks": (
        lambda m, e: m.attend(
            m.constants, m.maps[4](block(m, y := m.norm(block(m, e, 2)), 3)), m.maps[5](y)
        ),
        False,
    ),
}


@pytest.mark.parametrize("name", IN_TURN)
def test_tokens_that_pass_all_layers_in_turn(name):
    body, expected = IN_TURN[name]
    assert is_sequential(record_body(body)) is expected


def decode(m, e):
    """Constant queries attend to the input, then to each other, and to the input again."""
    y = m.attend(m.constants, m.maps[2](e))
    y = y + m.attend(m.norm(y))
    return y + m.attend(m.norm(y), m.maps[3](e))


def test_pooling_is_the_only_attention_of_its_queries():
    pool = lambda m, e: m.attend(m.constants, m.maps[4](block(m, block(m, e, 2), 3)))  # noqa: E731
    trace = record_body(pool, 7)
    layers = find_layers(trace)
    assert is_attention_pooling(layers)
    assert [(one.query_count, one.key_count) for one in layers] == [(7, 7), (7, 7), (8, 7)]
    assert len(find_blocks(trace, without_last=True)) == 2
    with pytest.raises(WhenceError, match="no skip connection"):
        find_blocks(trace)
    assert not is_attention_pooling(find_layers(record_body(lambda m, e: block(m, e, 2))))
    assert not is_attention_pooling(find_layers(record_body(decode)))


def attend_side_by_side(m, e):
    first, second = m.attend(e), m.attend(m.maps[2](e))
    return first + m.attend(m.maps[3](second))


HEADS = {
    "the next reads the second head": (attend_side_by_side, [2, 1]),
    "constant queries": (
        lambda m, e: m.attend(m.constants, e) + m.attend(m.constants * 2, m.maps[2](e)),
        [2],
    ),
    "more queries": (
        lambda m, e: torch.cat([m.attend(m.constants, e), m.attend(m.constants[:2], e)], 1),
        [1, 1],
    ),
    "queries of which some are constant": (
        lambda m, e: m.attend(m.constants, e) + m.attend(m.maps[2](e)),
        [1, 1],
    ),
    "keys of other tokens": (
        lambda m, e: m.attend(e, m.maps[2](e[:, :3])) + m.attend(e, m.maps[3](e[:, :4])),
        [1, 1],
    ),
    "a skip for one of them": (
        lambda m, e: m.norm(e + m.attend(e)) + m.attend(m.maps[2](e)),
        [1, 1],
    ),
    "a skip for the other": (lambda m, e: m.attend(m.maps[2](e)) + m.norm(e + m.attend(e)), [1, 1]),
    "sums of their own": (
        lambda m, e: m.norm(e + m.attend(e)) + m.norm(e + m.attend(m.maps[2](e))),
        [1, 1],
    ),
    "inputs of their own": (
        lambda m, e: (e + m.attend(m.maps[2](e))) + ((n := m.norm(e)) + m.attend(m.maps[2](n))),
        [1, 1],
    ),
}


@pytest.mark.parametrize("name", HEADS)
def test_heads_of_one_layer_are_added_as_one(name):
    body, sites = HEADS[name]
    assert [len(layer.sites) for layer in find_layers(record_body(body))] == sites


def test_graphs_of_many_ways_are_walked_once():
    """There are 2^40 ways from the head to the input."""

    def body(m, e):
        for _ in range(40):
            e = e.sin() + e.cos()
        e = block(m, e, 2)
        for _ in range(40):
            e = e.sin() * e.cos()
        return block(m, e, 3)

    trace = record_body(body)
    assert list_sequences(trace) == [(0, 0), (0, 0)]
    assert is_sequential(trace)
    assert len(find_blocks(trace)) == 2


def transform_many_times(m, e):
    attended = m.attend(m.maps[2](e))
    for _ in range(40):
        attended = attended.sin() + attended.cos()
    return e + m.maps[3](attended)


SKIPS = {
    "around both": (lambda m, e: e + m.attend(m.maps[2](m.attend(m.maps[3](e)))), [False, True]),
    "around each": (lambda m, e: block(m, block(m, e, 2), 3), [True, True]),
    "around none": (lambda m, e: m.attend(m.maps[2](e)) + m.maps[3](e), [False]),
    "after a diamond": (transform_many_times, [True]),
    "through an activation": (lambda m, e: e.relu() + m.attend(m.maps[2](e)), [False]),
    "a mean of tokens": (lambda m, e: e.mean(1, keepdim=True) + m.attend(m.maps[2](e)), [False]),
    "stacked inside": (
        lambda m, e: m.attend(m.maps[2](e)) + torch.stack([e, m.maps[3](e)]).sum(0),
        [True],
    ),
    "scaled and shifted": (lambda m, e: m.attend(m.maps[2](e)) + (e * 3 + m.constants), [True]),
    "of a sum over features": (
        lambda m, e: m.maps[4](
            (e * m.attend(m.maps[2](e))).sum(-1, keepdim=True).expand(-1, -1, 8)
        ),
        [False],
    ),
}


@pytest.mark.parametrize("name", SKIPS)
def test_attention_with_a_skip_connection(name):
    body, expected = SKIPS[name]
    layers = find_layers(record_body(body))
    assert [layer.skip is not None for layer in layers] == expected


def branch_many_times(x):
    for _ in range(40):
        x = x.sin() * x.cos()
    return x


def add_gated(m, e):
    """A sum with a gated term in the branch, and the block's input after it."""
    return e + m.maps[4](m.attend(m.maps[2](e)) + e.sigmoid() * e)


OUTPUTS = {
    "normed for the head": (lambda m, e: m.norm(keep(m, block(m, e, 2)))),
    "a sum without a linear map": lambda m, e: (y := keep(m, block(m, e, 2))) + y.sin(),
    "many ways": lambda m, e: (y := keep(m, block(m, e, 2))) + branch_many_times(y),
    "scaled": lambda m, e: keep(m, (y := block(m, e, 2)) * 0.5 + m.maps[4](y.relu())),
    "some tokens": lambda m, e: keep(m, block(m, e, 2))[:, :1] + m.maps[4](m.raw[:, :1]),
    "gated inside": lambda m, e: keep(m, add_gated(m, e)),
    "values of many ways": lambda m, e: keep(
        m, e + m.attend(e, m.maps[2](e), branch_many_times(m.maps[3](e)))
    ),
    "the later of two, first": lambda m, e: keep(m, (n := m.norm(e)) + e + m.attend(m.maps[2](n))),
    "the later of two": lambda m, e: keep(m, e + (n := m.norm(e)) + m.attend(m.maps[2](n))),
}


def keep(m, x):
    m.kept = x.detach()
    return x


@pytest.mark.parametrize("name", OUTPUTS)
def test_what_leaves_a_block(name):
    model, x = ByHand(OUTPUTS[name]).double(), torch.randn(2, 8, 8).double()
    model(x)
    (found,) = find_blocks(record_inputs(model, x))
    assert torch.allclose(found.output.output, model.kept)
    assert found.post_norm is None
    e = model.maps[0](x)
    assert torch.allclose(found.input, model.norm(e) if "later" in name else e)
