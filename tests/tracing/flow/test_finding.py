"""Flows of small models whose windows, merging and groups are written here."""

import pytest
import torch
from torch import Tensor, nn

from whence import Explainer, WhenceError
from whence.tracing import record
from whence.tracing.flow.binding import needs_flow
from whence.tracing.flow.finding import find_flow
from whence.tracing.flow.flow import INPUT, TokenFlow

WIDTH, HEADS, TOKENS = 8, 2, 12


class Attention(nn.Module):
    """Attention within groups, with heads before or after groups, or folded into samples."""

    def __init__(self, layout: str) -> None:
        super().__init__()
        self.layout = layout
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        batch, groups, tokens, _ = x.shape
        parts = self.qkv(x).reshape(batch, groups, tokens, 3, HEADS, -1)
        orders = {"groups first": (3, 0, 1, 4, 2, 5), "heads first": (3, 0, 4, 1, 2, 5)}
        q, k, v = parts.permute(orders.get(self.layout, (3, 0, 1, 4, 2, 5)))
        if self.layout == "folded":
            q, k, v = (one.reshape(-1, tokens, WIDTH // HEADS) for one in (q, k, v))
        mixed = (q @ k.mT).softmax(-1) @ v
        if self.layout == "folded":
            mixed = mixed.reshape(batch, groups, HEADS, tokens, -1)
        mixed = mixed.transpose(1, 2) if self.layout == "heads first" else mixed
        return self.out(mixed.transpose(2, 3).reshape(batch, groups, tokens, WIDTH))


class Windows(nn.Module):
    """Attention in windows of tokens that lie apart, rolled; then pairs of tokens are merged."""

    def __init__(self, layout: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = Attention(layout), Attention(layout)
        self.merge, self.head = nn.Linear(2 * WIDTH, WIDTH), nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        batch = len(x)
        windows = x.roll(-1, 1).reshape(batch, 4, 3, WIDTH).transpose(1, 2)  # 3 of 4 tokens
        windows = self.first(windows)
        x = x + windows.transpose(1, 2).reshape(batch, TOKENS, WIDTH).roll(1, 1)
        x = self.merge(x.reshape(batch, TOKENS // 2, 2 * WIDTH))
        x = x + self.second(x[:, None])[:, 0]
        return self.head(x.mean(1))


def to_dense(flow: TokenFlow, layer: int, maps: Tensor) -> Tensor:
    """The map of a layer from tokens to the tokens upstream: row by row."""
    own = flow.layers[layer]
    rows = torch.eye(own.count, dtype=maps.dtype)[:, None].expand(-1, len(maps), -1)
    keys = own.multiply(rows, maps)
    return sum(one.pull(keys) for one in own.keys.values()).transpose(0, 1)


@pytest.mark.parametrize("layout", ["groups first", "heads first", "folded"])
@pytest.mark.parametrize("batch", [1, 2, 3])
def test_windows_and_merged_tokens(layout, batch):
    model = Windows(layout).double().eval()
    x = torch.randn(batch, TOKENS, WIDTH, dtype=torch.float64)
    trace = record(model, (x,), {}, 0)
    assert needs_flow(trace)
    flow = find_flow(trace, 0, x.shape)
    assert [layer.groups for layer in flow.layers] == [3, 1]
    assert [list(layer.stream) for layer in flow.layers] == [[INPUT], [0]]
    for site, layer in zip(trace.sites, flow.layers, strict=True):
        site.arrangement = layer.arrangements[0]
    first, second = (
        site.split_heads(site.weights.detach(), batch).mean(-3) for site in trace.sites
    )
    # Token t is in window (t - 1) % 3, counted round.
    dense = torch.zeros(batch, TOKENS, TOKENS, dtype=torch.float64)
    for window in range(3):
        members = [(3 * row + window + 1) % TOKENS for row in range(4)]
        for i, query in enumerate(members):
            for j, key in enumerate(members):
                dense[:, query, key] = first[:, window, i, j]
    assert torch.allclose(to_dense(flow, 0, first), dense)
    assert torch.allclose(to_dense(flow, 1, second), second)
    merged = flow.stands_for[1].push(torch.arange(float(TOKENS)).expand(batch, -1))
    assert torch.equal(merged, (torch.arange(TOKENS / 2) * 2 + 0.5).expand(batch, -1))


def test_attention_among_features_is_refused():
    """Cross-covariance attention: maps are of channels by channels, and mix no tokens."""

    class Covariance(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
            self.head = nn.Linear(WIDTH, 3)

        def forward(self, x: Tensor) -> Tensor:
            q, k, v = (
                self.qkv(x).reshape(len(x), -1, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 4, 1)
            )
            mixed = (q @ k.mT).softmax(-1) @ v
            x = x + self.out(mixed.permute(0, 3, 1, 2).flatten(2))
            return self.head(x.mean(1))

    explainer, x = Explainer(Covariance().eval()), torch.randn(2, 5, WIDTH)
    for _ in range(2):  # what was found is not forgotten
        for method in ("whence", "rollout"):
            with pytest.raises(WhenceError, match="among features and not among tokens"):
                explainer.explain(x, 1, method=method)


def test_a_plain_model_needs_none():
    class Plain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.head = Attention("groups first"), nn.Linear(WIDTH, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head((x + self.first(x[:, None])[:, 0]).mean(1))

    x = torch.randn(2, 5, WIDTH)
    flow = find_flow(record(Plain(), (x,), {}, 0), 0, x.shape)
    assert flow.stands_for[0].is_identity
    assert flow.layers[0].keys[0].is_identity
