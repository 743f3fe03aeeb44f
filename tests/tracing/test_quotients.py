"""Norms that multiply by one over a spread: quotients, whose numerator gets all relevance."""

import pytest
import torch
from torch import Tensor, nn

from tests.tracing.ops.helpers import double
from whence import rules
from whence.tracing import record


def spread(x: Tensor) -> Tensor:
    return x.pow(2).mean(-1, keepdim=True) + 1e-6


NORMS = {
    "rsqrt": lambda x: x * torch.rsqrt(spread(x)),
    "rsqrt first": lambda x: torch.rsqrt(spread(x)) * x,
    "a negative power": lambda x: x * spread(x) ** -0.5,
    "one over": lambda x: x * (1 / spread(x).sqrt()),
    "torch.div": lambda x: x * torch.div(1.0, spread(x).sqrt()),
    "reciprocal": lambda x: spread(x).sqrt().reciprocal() * x,
    "times a constant": lambda x: x * (3 * spread(x).rsqrt()) / 3,
    "moved about": lambda x: x * spread(x)[..., 0].rsqrt()[..., None],
    "in place": lambda x: (x + 0).mul_(spread(x).rsqrt()),
    "by keyword": lambda x: torch.mul(input=x, other=spread(x).rsqrt()),
    "a quotient": lambda x: x / spread(x).sqrt(),
}


class Normalizing(nn.Module):
    """A head on normalised tokens."""

    def __init__(self, norm) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.norm, self.head = norm, nn.Linear(6, 3, bias=False).double()

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(x))[:, 1]


def read(norm, rule_set: str, x: Tensor) -> Tensor:
    trace = record(Normalizing(norm), (x,), {}, 0, needs_attention=False)
    classes = torch.ones(len(x), 1, dtype=torch.long)
    (value,) = trace.read(classes, trace.leaves, rules.get(rule_set))
    return value[0]


@pytest.mark.parametrize("way", NORMS)
def test_norms_give_nothing_to_their_spread(way):
    x = double(2, 4, 6)
    held = (1 / spread(x).sqrt()).expand_as(x)
    weight = Normalizing(NORMS[way]).head.weight.detach()[1]
    for rule_set in ("balanced", "attnlrp"):
        expected = torch.zeros_like(x)
        expected[:, 1] = weight * held[:, 1]
        assert torch.allclose(read(NORMS[way], rule_set, x), expected, rtol=1e-10)
    for rule_set in ("stable", "reference", "paper"):
        shares = (x[:, 1] * held[:, 1] * weight).clamp(min=0)
        expected = torch.zeros_like(x)
        expected[:, 1] = shares / shares.sum(-1, keepdim=True)
        assert torch.allclose(read(NORMS[way], rule_set, x), expected, atol=1e-7)


def test_a_gate_is_no_quotient():
    x = double(2, 4, 6)
    ours = read(lambda x: x * torch.sigmoid(x), "stable", x)
    halves = read(lambda x: x * spread(x).sqrt(), "stable", x)
    assert torch.allclose(ours.sum((1, 2)), torch.ones(2).double())
    # All features take part in the spread.
    assert (halves[:, 1] > 0).all()
    assert (read(NORMS["rsqrt"], "stable", x)[:, 1] == 0).any()


def test_a_constant_over_a_tensor_is_no_scaling():
    x = double(2, 4, 6)
    trace = record(Normalizing(NORMS["torch.div"]), (x,), {}, 0, needs_attention=False)
    names = [entry.operation.name for entry in trace.entries]
    assert "reciprocal" in names
    assert "div" not in names
