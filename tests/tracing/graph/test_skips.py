"""Which sums are skip connections: proven by the graph, whatever else a model adds up."""

import pytest
import torch
from torch import Tensor, nn

from tests.tracing.helpers import record_case, record_inputs
from tests.zoo import CASES, DEPTH
from whence.tracing import Trace
from whence.tracing.graph.skips import mark_skips

WIDTH = 4


def list_sums(trace: Trace) -> list[int]:
    """How many terms each skip connection has."""
    mark_skips(trace)
    skips = [entry.operation.skip for entry in trace.entries]
    return [skip.shared.count for skip in skips if skip is not None and skip.is_last]


USUAL = (
    "ViTForImageClassification-sdpa",
    "Bert-eager",
    "timm-deit-distilled-fused",
    "hand-written",
)


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in USUAL else pytest.mark.slow) for n in CASES]
)
def test_every_block_has_two(name):
    # The mean of two heads' logits, in distilled models, is a sum and no skip connection.
    assert list_sums(record_case(name)) == [2] * (2 * DEPTH)


class Sum(nn.Module):
    """A sum after a linear map, and before an attention without any."""

    def __init__(self, add) -> None:
        super().__init__()
        self.first, self.a, self.b, self.q = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.norm, self.head, self.add = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3), add

    def forward(self, x: Tensor) -> Tensor:
        x = self.add(self, self.first(x))
        return self.head(((self.q(x) @ x.mT).softmax(-1) @ x)[:, 0])


def rotate(model: Sum, x: Tensor) -> Tensor:
    left, right = x.chunk(2, -1)
    return x * 0.8 + torch.cat([-right, left], -1) * 0.6


def attend(x: Tensor) -> Tensor:
    return (x @ x.mT).softmax(-1) @ x


def reverse(model: Sum, x: Tensor) -> Tensor:
    """A reversible block: one half is added to a function of the other."""
    left, right = x.chunk(2, -1)
    return torch.cat([left + torch.tanh(right @ model.a.weight[:2, :2]), right], -1)


NONE = {
    "a linear map and its low-rank update": lambda m, x: m.a(x) + 0.5 * m.b(m.q(x)),
    "two branches": lambda m, x: torch.tanh(m.a(x)) + torch.tanh(m.b(x)),
    "a GELU by hand": lambda m, x: 0.5 * x * (1 + torch.tanh(0.8 * (x + 0.045 * x**3))),
    "a norm by hand": lambda m, x: x - x.mean(-1, keepdim=True),
    "a rotary embedding": rotate,
    "a constant": lambda m, x: x + m.a.bias,
    "twice the same": lambda m, x: x + x,
}
SKIPS = {
    "a branch": (lambda m, x: x + torch.tanh(m.a(x)), [2]),
    "a norm": (lambda m, x: x + m.norm(x), [2]),
    "attention": (lambda m, x: x + attend(x), [2]),
    "a moved branch": (lambda m, x: (x.mT + m.a(x).mT).mT, [2]),
    "a scaled tensor": (lambda m, x: 0.5 * x + m.a(x), [2]),
    "a branch with a low-rank update": (lambda m, x: x + (m.a(x) + m.b(m.q(x))), [2]),
    "an update that is added last": (lambda m, x: x + m.a(x) + m.b(m.q(x)), [2]),
    "two experts": (lambda m, x: x + (torch.tanh(m.a(x)) + torch.relu(m.b(x))), [2]),
    "two heads": (lambda m, x: x + m.a(attend(x)) + m.b(attend(-x)), [2]),
    "attention beside an MLP": (lambda m, x: x + (m.a(attend(x)) + torch.tanh(m.b(x))), [3]),
    "the same in a stack": (
        lambda m, x: torch.stack([m.a(attend(x)), x, torch.tanh(m.b(x))], 1).sum(1),
        [3],
    ),
    "one after the other": (lambda m, x: (y := x + torch.tanh(m.a(x))) + m.b(y), [2, 2]),
    "a reversible block": (reverse, [2]),
    "an earlier state": (lambda m, x: (y := x + m.a(x)) + torch.tanh(m.b(y)) + x, [2, 3]),
}


@pytest.mark.parametrize("name", NONE)
def test_other_sums_are_none(name):
    assert list_sums(record_inputs(Sum(NONE[name]), torch.randn(2, 3, WIDTH))) == []


@pytest.mark.parametrize("name", SKIPS)
def test_terms_of_a_skip_connection(name):
    add, counts = SKIPS[name]
    assert list_sums(record_inputs(Sum(add), torch.randn(2, 3, WIDTH))) == counts
