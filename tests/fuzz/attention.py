"""Attention of the random models, in many spellings; and pooling by attention."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.fuzz import ops
from tests.fuzz.plans import AttentionPlan
from tests.fuzz.torch_layers import attend_by_module


def make_norm(kind: str | None, width: int) -> nn.Module:
    if kind is None:
        return nn.Identity()
    kinds = {"layer": nn.LayerNorm, "rms": nn.RMSNorm, "hand": ops.HandRMSNorm}
    kinds["euclidean"] = ops.EuclideanNorm
    return kinds[kind](width)


def rotate(x: Tensor, style: str) -> Tensor:
    """Rotary positions for (batch, heads, tokens, width)."""
    half = x.shape[-1] // 2
    angles = torch.arange(x.shape[-2], dtype=x.dtype)[:, None] * torch.linspace(
        0.3, 1.1, half, dtype=x.dtype
    )
    if style == "interleaved":
        even, odd, cos, sin = x[..., 0::2], x[..., 1::2], angles.cos(), angles.sin()
        first = ops.add(ops.scale(even, cos), ops.scale(ops.scale(odd, sin), -1.0))
        second = ops.add(ops.scale(even, sin), ops.scale(odd, cos))
        return torch.stack([first, second], -1).flatten(-2)
    cos, sin = (torch.cat([t, t], -1) for t in (angles.cos(), angles.sin()))
    first, second = x[..., :half], x[..., half:]
    turned = torch.cat([ops.scale(second, -1.0), first], -1)
    return ops.add(ops.scale(x, cos), ops.scale(turned, sin))


class Attention(nn.Module):
    """Self-attention, or attention to other tokens, by plan."""

    def __init__(self, plan: AttentionPlan, width: int, tokens: int, tokens_first: bool) -> None:
        super().__init__()
        self.plan, self.tokens_first = plan, tokens_first
        inner, of_keys = plan.heads * plan.head_width, plan.key_heads * plan.head_width
        bias = plan.bias
        if plan.projection == "mha":
            self.mha = nn.MultiheadAttention(width, plan.heads, batch_first=not tokens_first)
            return
        if plan.projection in ("fused", "stacked"):
            self.qkv = nn.Linear(width, inner + 2 * of_keys, bias=bias)
        elif plan.projection == "mla":
            self.q_down, self.q_up = nn.Linear(width, 6, bias=False), nn.Linear(6, inner, bias=bias)
            self.kv_down = nn.Linear(width, 5, bias=bias)
            self.kv_up = nn.Linear(5, 2 * of_keys, bias=False)
            self.q_inner, self.kv_inner = nn.RMSNorm(6), nn.RMSNorm(5)
        else:
            self.q = nn.Linear(width, inner, bias=bias)
            self.k, self.v = nn.Linear(width, of_keys, bias=bias), nn.Linear(width, of_keys)
        self.out = nn.Linear(inner, width, bias=bias)
        self.q_norm, self.k_norm = (make_norm(plan.norm, plan.head_width) for _ in range(2))
        if plan.positions == "relative":
            self.bias = nn.Parameter(torch.randn(plan.heads, tokens, tokens))

    def forward(
        self, x: Tensor, entering: Tensor, allowed: Tensor | None, causal: bool, padded: bool
    ) -> Tensor:
        """Attend. ``allowed``, (batch or 1, 1, tokens, tokens), says which keys may be seen."""
        if self.plan.projection == "mha":
            return self._run_module(x, entering, allowed, causal, padded)
        x = x.transpose(0, 1) if self.tokens_first else x
        if self.plan.projection == "stacked":  # as timm has it
            stacked = ops.linear(self.qkv, x, self.plan.linear)
            stacked = stacked.reshape(*x.shape[:2], 3, self.plan.heads, self.plan.head_width)
            q, k, v = stacked.permute(2, 0, 3, 1, 4).unbind(0)
        else:
            q, k, v = (self._split(t) for t in self._project(x))
        q, k = ops.norm(self.q_norm, q), ops.norm(self.k_norm, k)
        if self.plan.positions in ("rotary", "interleaved"):
            q, k = rotate(q, self.plan.positions), rotate(k, self.plan.positions)
        bias = self.bias if self.plan.positions == "relative" else None
        added = bias
        if allowed is not None:
            hidden = torch.zeros_like(allowed, dtype=x.dtype).masked_fill(~allowed, -math.inf)
            added = hidden if bias is None else bias + hidden
        flag = causal and not padded and bias is None and self.plan.mask == "flag"
        mixed = ops.attend(
            q,
            k,
            v,
            entering,
            lambda q, k, v: self._spell(q, k, v, allowed, bias, flag),
            added=added,
            tokens_first=self.tokens_first,
        )
        mixed = mixed.transpose(1, 2).flatten(2)
        mixed = mixed.transpose(0, 1) if self.tokens_first else mixed
        return ops.linear(self.out, mixed, self.plan.linear)

    def _project(self, x: Tensor) -> tuple[Tensor, ...]:
        plan, how = self.plan, self.plan.linear
        inner, of_keys = plan.heads * plan.head_width, plan.key_heads * plan.head_width
        if plan.projection == "fused":
            return ops.linear(self.qkv, x, how).split([inner, of_keys, of_keys], -1)
        if plan.projection == "mla":
            q = ops.linear(self.q_up, ops.norm(self.q_inner, ops.linear(self.q_down, x)), how)
            latent = ops.norm(self.kv_inner, ops.linear(self.kv_down, x, how))
            return q, *ops.linear(self.kv_up, latent).chunk(2, -1)
        return tuple(ops.linear(layer, x, how) for layer in (self.q, self.k, self.v))

    def _split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self.plan.head_width)).transpose(1, 2)

    # Spellings ------------------------------------------------------------------------------------

    def _spell(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        allowed: Tensor | None,
        bias: Tensor | None,
        flag: bool,
    ) -> Tensor:
        spelling, grouped = self.plan.spelling, q.shape[1] != k.shape[1]
        if spelling == "sdpa":
            mask = self._make_mask(q, allowed, bias)
            if flag:
                return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=grouped)
            if self.plan.key_heads == 1 and grouped:
                return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
            return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=grouped)
        if grouped and spelling in ("eager", "bmm"):
            groups = q.shape[1] // k.shape[1]
            k, v = (self._repeat(t, groups) for t in (k, v))
        elif grouped:
            groups = q.shape[1] // k.shape[1]
            k, v = (t.repeat_interleave(groups, dim=1) for t in (k, v))
        scaling = q.shape[-1] ** -0.5
        if spelling == "loop":
            heads = []
            for head in range(q.shape[1]):
                scores = q[:, head] @ k[:, head].transpose(1, 2) * scaling
                own = None if bias is None else bias[head]
                scores = self._hide(scores, None if allowed is None else allowed[:, 0], own)
                heads.append(torch.softmax(scores, dim=-1) @ v[:, head])
            return torch.stack(heads, 1)
        if spelling == "bmm":
            batch, count = q.shape[:2]
            q, k, v = (t.reshape(-1, *t.shape[-2:]) for t in (q * scaling, k, v))
            scores = torch.bmm(q, k.transpose(1, 2)).view(batch, count, q.shape[1], k.shape[1])
            weights = F.softmax(self._hide(scores, allowed, bias), dim=-1)
            mixed = torch.bmm(weights.view(-1, *weights.shape[-2:]), v)
            return mixed.view(batch, count, *mixed.shape[-2:])
        if spelling == "einsum":
            scores = torch.einsum("bhqd,bhkd->bhqk", q, k) * scaling
            weights = self._hide(scores, allowed, bias).softmax(dim=-1)
            return torch.einsum("bhqk,bhkd->bhqd", weights, v)
        if spelling == "transposed":
            scores = k @ (q * scaling).mT
            if allowed is not None:
                allowed = allowed.mT
            weights = self._hide(scores, allowed, None if bias is None else bias.mT).softmax(-2)
            return (v.mT @ weights).mT
        scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(q.shape[-1])
        weights = F.softmax(self._hide(scores, allowed, bias), dim=-1, dtype=q.dtype)
        return torch.matmul(weights, v)

    @staticmethod
    def _repeat(x: Tensor, groups: int) -> Tensor:
        batch, heads, tokens, width = x.shape
        x = x[:, :, None].expand(batch, heads, groups, tokens, width)
        return x.reshape(batch, heads * groups, tokens, width)

    def _make_mask(self, q: Tensor, allowed: Tensor | None, bias: Tensor | None) -> Tensor | None:
        if bias is not None:
            return bias if allowed is None else bias.masked_fill(~allowed, -math.inf)
        if allowed is None or self.plan.mask == "boolean":
            return allowed
        lowest = torch.finfo(q.dtype).min
        return torch.zeros_like(allowed, dtype=q.dtype).masked_fill(~allowed, lowest)

    def _hide(self, scores: Tensor, allowed: Tensor | None, bias: Tensor | None) -> Tensor:
        scores = scores if bias is None else scores + bias
        if allowed is None:
            return scores
        lowest = torch.finfo(scores.dtype).min
        if self.plan.mask == "additive":
            return scores + torch.zeros_like(allowed, dtype=scores.dtype).masked_fill(
                ~allowed, lowest
            )
        if self.plan.mask == "boolean":
            return scores.masked_fill(~allowed, -math.inf)
        return torch.where(allowed, scores, lowest)

    def _run_module(
        self, x: Tensor, entering: Tensor, allowed: Tensor | None, causal: bool, padded: bool
    ) -> Tensor:
        module, heads = self.mha, self.plan.heads
        if ops.current() is None:
            mask = padding = None
            if allowed is not None:
                mask = ~allowed[0, 0]
                if padded and not causal:
                    mask, padding = None, ~allowed[:, 0, 0]
                elif padded:
                    mask = (~allowed).expand(-1, heads, -1, -1).flatten(0, 1)
            needs = self.plan.mask == "boolean"
            return module(x, x, x, attn_mask=mask, key_padding_mask=padding, need_weights=needs)[0]
        return attend_by_module(module, x, entering, allowed, self.tokens_first)


def attend_plainly(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1) @ v


class Pooling(nn.Module):
    """Learned queries that attend to all tokens."""

    def __init__(self, width: int, queries: int, heads: int, spelling: str) -> None:
        super().__init__()
        self.queries = nn.Parameter(torch.randn(1, queries, width))
        self.heads, self.spelling = heads, spelling
        self.q, self.k, self.v = (nn.Linear(width, 4 * heads) for _ in range(3))
        self.out = nn.Linear(4 * heads, width)

    def forward(self, x: Tensor, real: Tensor | None, stream: Tensor) -> Tensor:
        constant = self.q(self.queries.expand(len(x), -1, -1))
        q, k, v = (
            t.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for t in (constant, ops.linear(self.k, x), ops.linear(self.v, x))
        )
        allowed = None if real is None else real[:, None, None, :]
        added = None
        if allowed is not None:
            added = torch.zeros_like(allowed, dtype=x.dtype).masked_fill(~allowed, -math.inf)

        def plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            if self.spelling == "sdpa":
                return F.scaled_dot_product_attention(q, k, v, attn_mask=allowed)
            scores = q @ k.mT * q.shape[-1] ** -0.5
            return (scores if added is None else scores + added).softmax(-1) @ v

        mixed = ops.attend(q, k, v, stream, plain, added=added, pools=True)
        return ops.linear(self.out, mixed.transpose(1, 2).flatten(2))
