"""Gradients read otherwise: balanced ones, and those of AttnLRP.

Both are readings of the tape, as relevance is, but what goes down are gradients: at any place, the
value times the reading is that place's contribution to the logit. They differ from the plain
gradient where a Transformer multiplies what depends on the input with what depends on it too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from whence.engine.compiled.program import is_written_down
from whence.rules import RuleSet, of_classes
from whence.tracing.calls import name_of
from whence.tracing.ops.operations import Function, MatMul, Operation

Gradients = Literal["plain", "balanced"]
Reading = Literal["plain", "balanced", "attnlrp"]

# Functions of one number through the origin, by the end of the name of the call or module.
_ACTIVATIONS = ("gelu", "silu", "swish", "mish", "relu", "relu6", "elu", "selu", "celu", "tanh")
_SPREADS = frozenset(("sqrt", "rsqrt", "var", "std", "norm", "vector_norm", "var_mean", "std_mean"))


def is_norm(operation: Operation) -> bool:
    """Whether an operation divides its input by a spread of it."""
    return operation.name in ("layer_norm", "rms_norm", "group_norm", "normalize") or (
        operation.name.lower().endswith("norm") and operation.name != "batch_norm"
    )


def _is_activation(operation: Operation) -> bool:
    name = operation.name.lower().removesuffix("activation")
    return name.endswith((*_ACTIVATIONS, "hardtanh", "hardswish")) or name == "softsign"


@of_classes
def _plain(op: Operation, gradient: Tensor) -> tuple[Tensor | None, ...]:
    return op.gradient(gradient)


@of_classes
def _halves(op: Operation, gradient: Tensor) -> tuple[Tensor | None, ...]:
    """Half the gradient to each factor: the two contributions then add up to the product."""
    return op.gradient(gradient / 2)


@of_classes
def _attended(op: MatMul, gradient: Tensor) -> tuple[Tensor | None, ...]:
    """Of attention, whose softmax lets nothing through, the values contribute all."""
    return op.gradient(gradient) if op.attends else _halves(op, gradient)


def _to_numerator(op: Function, gradient: Tensor) -> tuple[Tensor, ...]:
    numerator, denominator = op.vjp(gradient)
    return numerator, torch.zeros_like(denominator)


def _chord(op: Function, gradient: Tensor) -> tuple[Tensor, ...]:
    """The slope f(x) / x of an activation x g(x), whose gate g(x) is taken as constant."""
    x = op.inputs[0].detach()
    slope = op.output / x
    if is_written_down(x) or x.is_cuda or not bool(slope.sum().isfinite()):  # there may be a 0 / 0
        slope = torch.where(x == 0, op.vjp(torch.ones_like(op.output))[0], slope)
    return (gradient * slope,)


def _spread_held(op: Function, gradient: Tensor) -> tuple[Tensor, ...]:
    """The gradient of a norm whose denominator is taken as constant; the mean is not."""
    with torch.enable_grad():
        x = op.inputs[0].detach().requires_grad_()
        with _HeldSpread():
            y = op.function(x)
    return torch.autograd.grad(y, x, gradient)


class _HeldSpread(TorchFunctionMode):
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
    spread = (centred.detach().square().mean(dims, keepdim=True) + eps).sqrt()
    y = centred / spread if weight is None else centred / spread * weight
    return y if bias is None else y + bias


def _rms_norm(
    x: Tensor,
    normalized_shape: tuple[int, ...],
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Tensor:
    dims = tuple(range(-len(normalized_shape), 0))
    eps = torch.finfo(x.dtype).eps if eps is None else eps
    y = x / (x.detach().square().mean(dims, keepdim=True) + eps).sqrt()
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


def _passing(softmax: Callable[[Function, Tensor], tuple[Tensor, ...]]) -> Callable[..., Any]:
    def rule(op: Function, gradient: Tensor) -> tuple[Tensor, ...]:
        if op.attends:
            return softmax(op, gradient)
        if is_norm(op):
            return _spread_held(op, gradient)
        return _chord(op, gradient) if _is_activation(op) else op.vjp(gradient)

    return rule


BALANCED = RuleSet(
    "balanced",
    {
        "linear": _plain,
        "matmul": _attended,
        "add": _plain,
        "product": _halves,
        "quotient": _to_numerator,
        "sum": _plain,
        "shift": _plain,
        "pass": _passing(lambda op, _: (torch.zeros_like(op.inputs[0]),)),
    },
    in_parts=True,
)
ATTNLRP = RuleSet(
    "attnlrp",
    {
        **BALANCED.rules,
        "matmul": _halves,
        "pass": _passing(lambda op, gradient: op.vjp(gradient)),
    },
    in_parts=True,
)


def reading(gradients: Reading) -> RuleSet | None:
    """How a tape is read for gradients; None for plain ones."""
    return {"plain": None, "balanced": BALANCED, "attnlrp": ATTNLRP}[gradients]
