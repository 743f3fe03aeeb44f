"""Rules of the oracle: how a gradient, or relevance, passes each operation backward.

Each set computes an operation forward as usual. What autograd then carries backward through the
result is what the rules say: literal formulas of whence's documentation, written with explicit
products, for tensors of a few hundred numbers. Nothing here is shared with whence.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

_OFFSET = 1e-20
# Activations x g(x): of these, balanced gradients hold the gate g(x).
GATED = {"gelu": F.gelu, "relu": F.relu, "silu": F.silu, "tanh": torch.tanh}
OTHERS = {"sigmoid": torch.sigmoid, "softmax": lambda x: x.softmax(-1)}


class _Ruled(torch.autograd.Function):
    """A function whose backward is a rule(output's value, inputs, output)."""

    @staticmethod
    def forward(ctx: Any, compute: Callable, rule: Callable, *inputs: Tensor) -> Tensor:
        output = compute(*inputs)
        ctx.rule, ctx.kept = rule, (inputs, output.detach())
        return output

    @staticmethod
    def backward(ctx: Any, value: Tensor) -> tuple[Tensor | None, ...]:
        inputs, output = ctx.kept
        found = ctx.rule(value, *(x.detach() for x in inputs), output)
        return (None, None, *(found if isinstance(found, tuple) else (found,)))


def ruled(compute: Callable, rule: Callable, *inputs: Tensor) -> Tensor:
    return _Ruled.apply(compute, rule, *inputs)


def halve(x: Tensor) -> Tensor:
    """The same number, whose gradient is halved."""
    return ruled(lambda x: x.clone(), lambda g, _, __: g / 2, x)


def block(x: Tensor) -> Tensor:
    """The same number, through which nothing comes."""
    return ruled(lambda x: x.clone(), lambda g, _, __: torch.zeros_like(g), x)


def normalize(
    x: Tensor, centred: bool, eps: float, weight: Tensor | None, bias: Tensor | None, hold: bool
) -> Tensor:
    """LayerNorm or RMSNorm; its spread may be held constant."""
    x = x - x.mean(-1, keepdim=True) if centred else x
    spread = (x.square().mean(-1, keepdim=True) + eps).sqrt()
    y = x / (spread.detach() if hold else spread)
    y = y if weight is None else y * weight
    return y if bias is None else y + bias


class Gradient:
    """Plain gradients: torch's own operations."""

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return F.linear(x, weight, bias)

    def matmul(self, a: Tensor, b: Tensor, attention: bool = False) -> Tensor:
        return a @ b

    def multiply_constant(self, constant: Tensor, x: Tensor) -> Tensor:
        """A matrix product with a constant: a linear map."""
        return constant @ x

    def add(self, a: Tensor, b: Tensor) -> Tensor:
        return a + b

    def product(self, a: Tensor, b: Tensor) -> Tensor:
        return a * b

    def quotient(self, a: Tensor, b: Tensor) -> Tensor:
        return a / b

    def sum(self, x: Tensor, dim: int, keepdim: bool = False) -> Tensor:
        return x.sum(dim, keepdim=keepdim)

    def weigh(self, x: Tensor, weights: Tensor) -> Tensor:
        """A sum with constant weights, as means of neighbours are: (width, new width)."""
        return x @ weights

    def scale(self, x: Tensor, factor: Tensor | float) -> Tensor:
        return x * factor

    def norm(
        self, x: Tensor, centred: bool, eps: float, weight: Tensor | None, bias: Tensor | None
    ) -> Tensor:
        return normalize(x, centred, eps, weight, bias, hold=False)

    def function(self, x: Tensor, name: str) -> Tensor:
        return {**GATED, **OTHERS}[name](x)

    def softmax(self, scores: Tensor) -> Tensor:
        """The softmax of an attention."""
        return scores.softmax(-1)


class Balanced(Gradient):
    """Gradients with spreads and gates held, and nothing through an attention's softmax."""

    def matmul(self, a: Tensor, b: Tensor, attention: bool = False) -> Tensor:
        return a @ b if attention else halve(a @ b)

    def product(self, a: Tensor, b: Tensor) -> Tensor:
        return halve(a * b)

    def quotient(self, a: Tensor, b: Tensor) -> Tensor:
        return a / b.detach()

    def norm(
        self, x: Tensor, centred: bool, eps: float, weight: Tensor | None, bias: Tensor | None
    ) -> Tensor:
        return normalize(x, centred, eps, weight, bias, hold=True)

    def function(self, x: Tensor, name: str) -> Tensor:
        if name in OTHERS:
            return OTHERS[name](x)
        return x * (GATED[name](x) / x).detach()

    def softmax(self, scores: Tensor) -> Tensor:
        return block(scores.softmax(-1))


class AttnLrp(Balanced):
    """Balanced gradients that enter the softmax, and products halved in attention too."""

    def matmul(self, a: Tensor, b: Tensor, attention: bool = False) -> Tensor:
        return halve(a @ b)

    def quotient(self, a: Tensor, b: Tensor) -> Tensor:
        """Shares of experts, divided by their sum: a softmax, as the models here have no other."""
        return a / b

    def softmax(self, scores: Tensor) -> Tensor:
        return scores.softmax(-1)


class ResLrp(AttnLrp):
    """AttnLRP, with the gamma rule at skip connections."""

    def add_skip(self, parts: list[Tensor], terms: list[int]) -> Tensor:
        """A sum of the parts of terms: of those of one number together."""

        def rule(g: Tensor, *kept: Tensor) -> tuple[Tensor, ...]:
            *values, total = kept
            whole = {n: sum(v for v, t in zip(values, terms, strict=True) if t == n) for n in terms}
            weights = {n: torch.where(z * total >= 0, 2.0, 1.0) for n, z in whole.items()}
            denominator = sum(weights[n] * whole[n] for n in whole)
            return tuple(weights[n] * total / denominator * g for n in terms)

        return ruled(lambda *values: sum(values), rule, *parts)


def _share_matmul(r: Tensor, a: Tensor, b: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:
    """Half of each product's share to each factor, by absolute values."""
    products = a.abs()[..., :, None, :] * b.abs().mT[..., None, :, :]  # (..., rows, columns, inner)
    shares = products / (2 * products.sum(-1, keepdim=True) + _OFFSET) * r[..., None]
    return shares.sum(-2), shares.sum(-3).mT


class Stable(Gradient):
    """Relevance shared by absolute values; positive products in linear maps."""

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        def rule(r: Tensor, x: Tensor, _: Tensor) -> Tensor:
            # R_j = sum_i [x_j w_ij]+ / sum_j' [x_j' w_ij']+ R_i, product by product.
            products = (x[..., None, :] * weight).clamp(min=0)  # (..., outputs, inputs)
            shares = products / (products.sum(-1, keepdim=True) + _OFFSET)
            return (shares * r[..., None]).sum(-2)

        return ruled(lambda x: F.linear(x, weight, bias), rule, x)

    def matmul(self, a: Tensor, b: Tensor, attention: bool = False) -> Tensor:
        return ruled(lambda a, b: a @ b, _share_matmul, a, b)

    def multiply_constant(self, constant: Tensor, x: Tensor) -> Tensor:
        def rule(r: Tensor, x: Tensor, _: Tensor) -> Tensor:
            products = (constant[..., :, None, :] * x.mT[..., None, :, :]).clamp(min=0)
            shares = products / (products.sum(-1, keepdim=True) + _OFFSET) * r[..., None]
            return shares.sum(-3).mT

        return ruled(lambda x: constant @ x, rule, x)

    def add(self, a: Tensor, b: Tensor) -> Tensor:
        def rule(r: Tensor, a: Tensor, b: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:
            whole = a.abs() + b.abs() + _OFFSET
            return (a.abs() / whole * r).sum_to_size(a.shape), (
                (1 - a.abs() / whole) * r
            ).sum_to_size(b.shape)

        return ruled(lambda a, b: a + b, rule, a, b)

    def product(self, a: Tensor, b: Tensor) -> Tensor:
        def rule(r: Tensor, a: Tensor, b: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:
            return (r / 2).sum_to_size(a.shape), (r / 2).sum_to_size(b.shape)

        return ruled(lambda a, b: a * b, rule, a, b)

    def quotient(self, a: Tensor, b: Tensor) -> Tensor:
        def rule(r: Tensor, a: Tensor, b: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:
            return r.sum_to_size(a.shape), torch.zeros_like(b)

        return ruled(lambda a, b: a / b, rule, a, b)

    def sum(self, x: Tensor, dim: int, keepdim: bool = False) -> Tensor:
        def rule(r: Tensor, x: Tensor, _: Tensor) -> Tensor:
            r = r if keepdim else r.unsqueeze(dim)
            return x.abs() / (x.abs().sum(dim, keepdim=True) + _OFFSET) * r

        return ruled(lambda x: x.sum(dim, keepdim=keepdim), rule, x)

    def weigh(self, x: Tensor, weights: Tensor) -> Tensor:
        def rule(r: Tensor, x: Tensor, _: Tensor) -> Tensor:
            products = (x[..., :, None] * weights).abs()  # (..., inputs, outputs)
            shares = products / (products.sum(-2, keepdim=True) + _OFFSET)
            return (shares * r[..., None, :]).sum(-1)

        return ruled(lambda x: x @ weights, rule, x)

    def scale(self, x: Tensor, factor: Tensor | float) -> Tensor:
        return self._pass(lambda x: x * factor, x)

    def norm(
        self, x: Tensor, centred: bool, eps: float, weight: Tensor | None, bias: Tensor | None
    ) -> Tensor:
        return self._pass(lambda x: normalize(x, centred, eps, weight, bias, hold=False), x)

    def function(self, x: Tensor, name: str) -> Tensor:
        return self._pass({**GATED, **OTHERS}[name], x)

    def softmax(self, scores: Tensor) -> Tensor:
        return self._pass(lambda x: x.softmax(-1), scores)

    def _pass(self, compute: Callable, x: Tensor) -> Tensor:
        return ruled(compute, lambda r, x, _: r.sum_to_size(x.shape), x)


RULES = {
    "gradient": Gradient(),
    "balanced": Balanced(),
    "attnlrp": AttnLrp(),
    "reslrp": ResLrp(),
    "stable": Stable(),
}
