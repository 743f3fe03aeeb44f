"""Blocks of the random models: attention and MLPs with norms and skip connections by plan."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.fuzz import ops
from tests.fuzz.attention import Attention, attend_plainly, make_norm
from tests.fuzz.features import activate, apply, find_width
from tests.fuzz.plans import BlockPlan

EXPERTS, CHOSEN = 3, 2


class Mlp(nn.Module):
    def __init__(
        self,
        kind: str,
        width: int,
        linear: str,
        features: str | None = None,
        by_hand: bool = False,
    ) -> None:
        super().__init__()
        self.kind, self.linear = kind, linear
        self.features, self.by_hand = features, by_hand
        inner = find_width(features, width + 3)
        self.up, self.down = nn.Linear(width, width + 3), nn.Linear(inner, width)
        if kind == "swiglu":
            self.gate = nn.Linear(width, width + 3, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = ops.linear(self.up, x, self.linear)
        if self.kind == "swiglu":
            gate = activate(ops.linear(self.gate, x, self.linear), "silu", self.by_hand)
            y = ops.product(gate, y)
        else:
            y = activate(y, self.kind, self.by_hand)
        return ops.linear(self.down, apply(y, self.features), self.linear)


class Experts(nn.Module):
    """Some of several MLPs, chosen for each token by a router."""

    def __init__(self, kind: str, width: int, linear: str) -> None:
        super().__init__()
        self.kind = kind
        self.router = nn.Linear(width, EXPERTS, bias=False)
        self.experts = nn.ModuleList(Mlp("gelu", width, linear) for _ in range(EXPERTS))

    def forward(self, x: Tensor) -> Tensor:
        shares = ops.function(ops.linear(self.router, x), "softmax")
        if ops.current() is None and self.kind == "experts_sparse":
            return self._run_chosen(x, shares)
        lowest = shares.detach().topk(CHOSEN, -1).values[..., -1:]
        shares = ops.scale(shares, (shares.detach() >= lowest).to(x.dtype))
        shares = ops.quotient(shares, ops.total(shares, -1, keepdim=True))
        outputs = [expert(x) for expert in self.experts]
        if self.kind == "experts_einsum":
            stacked = torch.stack(outputs, -2)  # (..., experts, width)
            if ops.current() is None:
                return torch.einsum("abe,abed->abd", shares, stacked)
            return ops.matmul(shares[..., None, :], stacked)[..., 0, :]
        mixed = ops.product(shares[..., :1], outputs[0])
        for number in range(1, EXPERTS):
            mixed = ops.add(mixed, ops.product(shares[..., number, None], outputs[number]))
        return mixed

    def _run_chosen(self, x: Tensor, shares: Tensor) -> Tensor:
        """Run each expert on its tokens alone, as large models do."""
        rows, flat = x.reshape(-1, x.shape[-1]), shares.reshape(-1, EXPERTS)
        weights, chosen = torch.topk(flat, CHOSEN, dim=-1)
        weights = weights / weights.sum(-1, keepdim=True)
        mixed = torch.zeros_like(rows)
        mask = F.one_hot(chosen, EXPERTS).permute(2, 1, 0)
        for number, expert in enumerate(self.experts):
            which, at = torch.where(mask[number])
            if len(at):
                mixed.index_add_(0, at, expert(rows[at]) * weights[at, which, None])
        return mixed.view_as(x)


class Block(nn.Module):
    """Attention and MLPs around a residual stream."""

    def __init__(
        self, plan: BlockPlan, width: int, tokens: int, tokens_first: bool, keep: bool
    ) -> None:
        super().__init__()
        self.plan, self.keep = plan, keep
        self.window: tuple[int, int] | None = None  # its size and shift
        self.attention = Attention(plan.attention, width, tokens, tokens_first)
        kinds = [kind for kind in plan.mlps if kind != "none"]
        self.mlps = nn.ModuleList(
            Experts(kind, width, plan.linear)
            if kind.startswith("experts")
            else Mlp(kind, width, plan.linear, plan.features, plan.by_hand)
            for kind in kinds
        )
        pre, after = plan.norm in ("pre", "sandwich"), plan.norm in ("sandwich", "branch")

        def norms(count: int, wanted: bool) -> nn.ModuleList:
            kind = plan.norm_kind if wanted else None
            return nn.ModuleList(make_norm(kind, width) for _ in range(count))

        branches = 1 + len(kinds)
        self.pre, self.after = norms(branches, pre), norms(branches, after)
        self.post = norms(branches, plan.norm == "post")
        if plan.residual in ("layer_scale", "skip_scale"):
            self.scales = nn.ParameterList(torch.randn(width) for _ in range(max(2, branches)))
        elif plan.residual == "constant_gate":
            self.scales = nn.ParameterList(torch.randn(1) for _ in range(branches))
        elif plan.residual == "gate":
            self.gates = nn.ModuleList(nn.Linear(width, width) for _ in range(branches))
        if plan.extra == "constant":
            self.constant = nn.Parameter(torch.randn(width))

    def forward(
        self, x: Tensor, first: Tensor, allowed: Tensor | None, causal: bool, padded: bool
    ) -> Tensor:
        entering = x

        def attend(y: Tensor) -> Tensor:
            if self.window is None:
                return self.attention(y, entering, allowed, causal, padded)
            size, shift = self.window
            y = y.roll(-shift, 1) if shift else y
            windows = y.reshape(-1, size, y.shape[-1])
            windows = self.attention(windows, entering, None, False, False)
            y = windows.reshape_as(y)
            return y.roll(shift, 1) if shift else y

        branches = [attend, *self.mlps]
        if self.plan.parallel:
            terms = [self._branch(n, run, x) for n, run in enumerate(branches)]
            return ops.norm(self.post[0], self._add(x, terms, first, 0))
        for n, run in enumerate(branches):
            x = self._add(x, [self._branch(n, run, x)], first, min(n, 1))
            x = ops.norm(self.post[n], x)
        return x

    def _branch(self, number: int, run: nn.Module, x: Tensor) -> Tensor:
        y = ops.norm(self.after[number], run(ops.norm(self.pre[number], x)))
        kind = self.plan.residual
        if kind == "layer_scale":
            return ops.scale(y, self.scales[number])
        if kind == "constant_gate":
            return ops.scale(y, self.scales[number].tanh())
        if kind == "gate":
            gate = ops.function(ops.linear(self.gates[number], x), "sigmoid")
            return ops.product(gate, y)
        return ops.scale(y, 0.7) if kind == "shrunk" else y

    def _add(self, x: Tensor, branches: list[Tensor], first: Tensor, number: int) -> Tensor:
        terms, kinds = list(branches), []
        addition = self.plan.additions[number]
        if self.plan.has_skip:
            skip = ops.scale(x, 0.5) if self.plan.residual == "scaled" else x
            if self.plan.residual == "skip_scale":
                skip = ops.scale(x, self.scales[number])
            if addition.how == "in_place" and self.keep:
                skip = skip.clone()
            terms = [skip, *terms]
            # MLPs side by side are one branch, and attention is another.
            kinds = [0, 1, *[2] * (len(branches) - 1), 3]
            if self.plan.extra == "embedding" and number == 0 and first is not x:
                terms.append(first.clone() if addition.how == "in_place" else first)
        if self.plan.extra == "constant":
            terms[0] = terms[0] + self.constant
        return addition(terms, kinds)


class Merge(nn.Module):
    """Two tokens become one."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.project = nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return ops.linear(self.project, x.reshape(len(x), -1, 2 * x.shape[-1]))


class Decoder(nn.Module):
    """Learned queries that attend to the tokens, to each other, and to the tokens again."""

    def __init__(self, width: int, queries: int = 3) -> None:
        super().__init__()
        self.queries = nn.Parameter(torch.randn(1, queries, width))
        self.layers = nn.ModuleList(
            nn.ModuleList(nn.Linear(width, width) for _ in range(4)) for _ in range(3)
        )

    def forward(self, x: Tensor) -> Tensor:
        y = self.queries.expand(len(x), -1, -1)
        y = y + self._attend(0, y, x, "across", constant=True)
        y = ops.add_branch(y, self._attend(1, y, y, "queries"))
        return ops.add_branch(y, self._attend(2, y, x, "across"))

    def _attend(
        self, layer: int, y: Tensor, x: Tensor, stream: str, constant: bool = False
    ) -> Tensor:
        to_q, to_k, to_v, out = self.layers[layer]
        q = to_q(y) if constant else ops.linear(to_q, y)
        q, k, v = (t[:, None] for t in (q, ops.linear(to_k, x), ops.linear(to_v, x)))
        mixed = ops.attend(q, k, v, y, attend_plainly, pools=constant, stream=stream)
        return ops.linear(out, mixed[:, 0])
