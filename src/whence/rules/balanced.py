"""The rule set ``balanced``: gradients that make input times gradient complete (LibraGrad).

LayerNorm's standard deviation is held constant, an activation x g(x) has its gate held constant,
and no gradient enters a softmax (Mehri, Soleymani Baghshah, Pilehvar; CVPR 2025). Anywhere in the
graph, the value times such a gradient is its contribution to the logit; with the biases' share the
contributions sum to it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Literal

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from whence._util.torch_internals import GELU, RELU, SILU
from whence.rules.ruleset import Rule, RuleSet, batched_over_classes, register
from whence.tracing.calls import name_of
from whence.tracing.ops.base import Operation, Values
from whence.tracing.ops.function import Function, is_norm
from whence.tracing.ops.norms import Norm
from whence.tracing.ops.products import MatMul

Gradients = Literal["plain", "balanced", "residual"]
"""How a method reads gradients: as autograd gives them, balanced, or balanced with the gamma rule
at skip connections (`whence.rules.residual`)."""

# Functions of one number through the origin, by the end of the name of the call or module.
_ACTIVATIONS = ("gelu", "silu", "swish", "mish", "relu", "relu6", "relusquared", "elu", "tanh")
# Slopes at 0 of activations that torch computes in one node, by the name of that node.
_SLOPES_AT_ZERO: dict[str, float | Tensor] = {GELU: 0.5, RELU: 0.0}
_SPREADS = frozenset(("sqrt", "rsqrt", "var", "std", "norm", "vector_norm", "var_mean", "std_mean"))


@lru_cache(1024)
def _names_activation(name: str) -> bool:
    name = name.lower().removesuffix("activation")
    return name.endswith((*_ACTIVATIONS, "hardtanh", "hardswish")) or name in ("softsign", "square")


@batched_over_classes
def pass_gradient(op: Operation, gradient: Tensor) -> Values:
    """The gradient as autograd gives it."""
    return op.gradient(gradient)


@batched_over_classes
def halve_gradient(op: Operation, gradient: Tensor) -> Values:
    """Half the gradient to each factor: the two contributions then add up to the product."""
    return op.gradient(gradient / 2)


@batched_over_classes
def _pass_to_values(op: MatMul, gradient: Tensor) -> Values:
    """Of attention, whose softmax lets nothing through, the values contribute all."""
    return op.gradient(gradient) if op.in_attention else halve_gradient(op, gradient)


@batched_over_classes
def pass_to_summed(op: Function, gradient: Tensor) -> Values:
    """The gradient of what is summed; a grid that decides what is read is taken as constant."""
    summed, *held = op.gradient(gradient)
    return summed, *[None] * len(held)


def pass_to_numerator(op: Function, gradient: Tensor) -> tuple[Tensor, ...]:
    """The gradient of the numerator; the denominator is taken as constant, as that of a norm."""
    numerator, denominator = op.vjp(gradient)
    return numerator, torch.zeros_like(denominator)


def _hold_gate(op: Function, gradient: Tensor) -> tuple[Tensor, ...]:
    """The slope f(x) / x of an activation x g(x), whose gate g(x) is taken as constant."""
    x = op.inputs[0].detach()
    name = op.node_name
    if name == SILU:
        return (gradient * x.sigmoid(),)
    slope = op.output / x
    if not op.guard.sees_values or x.is_cuda or not bool(slope.sum().isfinite()):  # 0 / 0
        at_zero = _SLOPES_AT_ZERO.get(name)
        if at_zero is None:
            at_zero = op.vjp(torch.ones_like(op.output))[0]
        slope = torch.where(x == 0, at_zero, slope)
    return (gradient * slope,)


def _hold_spread(op: Function, gradient: Tensor) -> tuple[Tensor, ...]:
    """The gradient of a norm whose denominator is taken as constant; the mean is not."""
    held = op.hold_spread(gradient) if isinstance(op, Norm) else None
    if held is not None:
        return (held,)
    saved = op.saved_norm
    if saved is not None:
        dims, weight, inverse_spread = saved
        scaled = gradient * inverse_spread.to(gradient.dtype)
        scaled = scaled if weight is None else scaled * weight
        return (scaled - scaled.mean(dims, keepdim=True),)
    with torch.enable_grad():
        x = op.inputs[0].detach().requires_grad_()
        with _HoldSpreads():
            y = op.function(x)
    return torch.autograd.grad(y, x, gradient)


class _HoldSpreads(TorchFunctionMode):
    """While on, spreads are constants for autograd."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        name = name_of(func)
        if name in _NORMS:
            return _NORMS[name](*args, **kwargs)
        result = func(*args, **kwargs)
        root = name in ("pow", "__pow__") and len(args) > 1 and args[1] in (0.5, -0.5)
        if (name in _SPREADS or root) and isinstance(result, Tensor):
            return result.detach()
        return result


def _layer_norm(
    x: Tensor,
    normalized_shape: tuple[int, ...],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *_: Any,
) -> Tensor:
    dims = tuple(range(-len(normalized_shape), 0))
    centred = x - x.mean(dims, keepdim=True)
    spread = _root_mean_square(centred, dims, eps)
    y = centred / spread if weight is None else centred / spread * weight
    return y if bias is None else y + bias


def _root_mean_square(x: Tensor, dims: tuple[int, ...], eps: float) -> Tensor:
    """The root of mean squares, as a constant; in float16 squares of a few hundred are infinite."""
    wide = x.detach().to(torch.promote_types(x.dtype, torch.float32))
    return (wide.square().mean(dims, keepdim=True) + eps).sqrt().to(x.dtype)


def _rms_norm(
    x: Tensor,
    normalized_shape: tuple[int, ...],
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Tensor:
    dims = tuple(range(-len(normalized_shape), 0))
    y = x / _root_mean_square(x, dims, torch.finfo(x.dtype).eps if eps is None else eps)
    return y if weight is None else y * weight


def _group_norm(
    x: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *_: Any,
) -> Tensor:
    grouped = x.reshape(x.shape[0], num_groups, -1)
    y = _layer_norm(grouped, grouped.shape[-1:], eps=eps).view_as(x)
    shape = (-1, *[1] * (x.dim() - 2))
    y = y if weight is None else y * weight.view(shape)
    return y if bias is None else y + bias.view(shape)


def _normalize(x: Tensor, p: float = 2.0, dim: int = 1, eps: float = 1e-12, **_: Any) -> Tensor:
    size: Tensor = torch.linalg.vector_norm(x.detach(), p, dim, keepdim=True)
    return x / size.clamp_min(eps)


_NORMS: dict[str, Callable[..., Tensor]] = {
    "layer_norm": _layer_norm,
    "rms_norm": _rms_norm,
    "group_norm": _group_norm,
    "normalize": _normalize,
}


def pass_nonlinear(softmax: Callable[[Function, Tensor], Values]) -> Rule:
    """The rule for functions: norms hold their spread, activations their gate.

    Args:
        softmax: The rule for the softmax of an attention.
    """

    def rule(op: Function, gradient: Tensor) -> Values:
        if op.in_attention:
            return softmax(op, gradient)
        if is_norm(op):
            return _hold_spread(op, gradient)
        return _hold_gate(op, gradient) if _names_activation(op.name) else op.vjp(gradient)

    return rule


BALANCED = register(
    RuleSet(
        "balanced",
        {
            "linear": pass_gradient,
            "matmul": _pass_to_values,
            "add": pass_gradient,
            "product": halve_gradient,
            "quotient": pass_to_numerator,
            "sum": pass_to_summed,
            "shift": pass_gradient,
            "pass": pass_nonlinear(lambda *_: (None,)),
        },
        supports_partial=True,
        is_gradient=True,
        reads_linear=False,
        attention_factors=(0.0, 0.0, 1.0),
    )
)
