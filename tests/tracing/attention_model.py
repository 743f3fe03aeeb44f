"""One attention layer whose parts can be written differently, and all that is read of it."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.tracing.helpers import read_maps
from whence import rules
from whence.tracing import record

WIDTH, HEADS, TOKENS, BATCH = 8, 2, 5, 2


class AttentionLayer(nn.Module):
    """Attention with a skip connection; the logits are read from token 0.

    Args:
        **parts: Functions in place of the usual ones: `scores`, `mix`, `after`, `join`, `linear`.
    """

    def __init__(self, **parts) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(4)
        weights = torch.randn(5, WIDTH, WIDTH, generator=generator, dtype=torch.float64)
        self.q, self.k, self.v, self.o, self.head = (nn.Parameter(w) for w in weights)
        self.parts = parts

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        return self.parts.get("scores", lambda q, k: q @ k.mT)(q, k)

    def mix(self, a: Tensor, v: Tensor) -> Tensor:
        return self.parts.get("mix", torch.matmul)(a, v)

    def after(self, x: Tensor) -> Tensor:
        return self.parts.get("after", lambda x: x)(x)

    def join(self, x: Tensor, y: Tensor) -> Tensor:
        return self.parts.get("join", torch.add)(x, y)

    def linear(self, x: Tensor, weight: Tensor) -> Tensor:
        return self.parts.get("linear", F.linear)(x, weight)

    def split_heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (HEADS, -1)).transpose(1, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = F.layer_norm(x, (WIDTH,))
        q, k, v = (self.split_heads(self.linear(h, w)) for w in (self.q, self.k, self.v))
        a = (self.scores(q, k) / 2).softmax(-1)
        y = self.mix(a, v).transpose(1, 2).flatten(2)
        x = self.join(x, self.after(self.linear(y, self.o)))
        return self.linear(x[:, 0], self.head)


class LayerWithModule(AttentionLayer):
    """A module is called after the attention."""

    def __init__(self, extra: nn.Module) -> None:
        super().__init__()
        self.extra = extra

    def after(self, x: Tensor) -> Tensor:
        return self.extra(x)


def make_inputs() -> Tensor:
    generator = torch.Generator().manual_seed(5)
    return torch.randn(BATCH, TOKENS, WIDTH, generator=generator, dtype=torch.float64)


def read_everything(model: nn.Module, rule_set: str = "stable") -> list[Tensor]:
    """Logits, then gradient and relevance at the input and at the map, for three classes."""
    x = make_inputs()
    with torch.no_grad():
        plain = model(x.clone())
    trace = record(model, (x,), {}, 0)
    assert torch.allclose(trace.logits, plain)
    classes = torch.arange(3).expand(BATCH, 3)
    values = [trace.logits.detach()]
    for how in (None, rules.get(rule_set)):
        values += [*trace.read(classes, trace.leaves, how), *read_maps(trace, classes, how)]
    return values


def assert_same(ours: list[Tensor], expected: list[Tensor]) -> None:
    for a, b in zip(ours, expected, strict=True):
        assert torch.allclose(a, b, rtol=1e-6, atol=1e-10)
