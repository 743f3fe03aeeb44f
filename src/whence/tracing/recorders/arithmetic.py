"""Calls of sums, products and quotients, and those that are made of a few of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from whence._util.torch_internals import without_torch_function
from whence.tracing.calls import TorchCall
from whence.tracing.gates import as_gated
from whence.tracing.ops.attention import is_made_of_patches
from whence.tracing.ops.base import is_traced
from whence.tracing.ops.function import Function
from whence.tracing.ops.scaling import Product, Scaling
from whence.tracing.ops.sums import Add, Shift
from whence.tracing.quotients import as_quotient, divides_by_own_sum
from whence.tracing.recorders.functions import record_function, record_passing, record_routing
from whence.tracing.recording import Recording, start_tracing


def record_add(recording: Recording, call: TorchCall) -> Any:
    """Record a sum or a difference; a constant term only lets pass."""
    a, b = call.argument(0, "input"), call.argument(1, "other")
    scale = call.kwargs.get("alpha", 1)
    if "sub" in call.name:
        scale = -scale
    if call.name in ("__rsub__", "rsub"):
        a, b = b, a
    if is_traced(a) and is_traced(b):
        return recording.apply(Add(scale), a, b)
    traced, constant = (a, b) if is_traced(a) else (b, a)
    if scale == 1 and isinstance(constant, Tensor) and is_made_of_patches(traced):
        return recording.apply(Shift(constant), traced)
    if scale == 1 and any(constant is stream for stream in recording.projected):
        # A residual stream before its first attention has a share of what leaves the block.
        stream = recording.mark_routing(start_tracing(constant), ())
        return recording.apply(Add(scale), traced, stream)
    if is_traced(a) or scale == 1:
        # A constant is added: the ordinary backward hands everything to the other term.
        return record_routing(recording, call)
    return record_passing(recording, call)


def record_multiply(recording: Recording, call: TorchCall) -> Any:
    """Record a product or a quotient, element by element."""
    if call.kwargs.get("rounding_mode") is not None:
        return recording.refuse(call.run(), call.name)
    a, b = call.argument(0, "input"), call.argument(1, "other")
    multiplies = "mul" in call.name
    if not (is_traced(a) and is_traced(b)):
        x, factor = (a, b) if is_traced(a) else (b, a)
        if call.kwargs or not (multiplies or x is a) or not _is_factor(x, factor):
            return record_passing(recording, call)
        mixed_dims = factor.dim() if isinstance(factor, Tensor) else 0
        return recording.apply(Scaling(factor, not multiplies, mixed_dims, call.name), x)
    held = call if not multiplies else as_quotient(call) or as_gated(call)
    kind = "product" if held is None else "quotient"
    if not multiplies or call.kwargs or a.is_complex() or b.is_complex():
        return record_function(recording, held or call, kind)
    a, b = (held or call).args
    operation = Product(kind, call.name, recording.where(kind))
    if held is not None:
        operation.divides_by_own_sum = divides_by_own_sum(a, b)
    return recording.apply(operation, a, b)


def record_negation(recording: Recording, call: TorchCall) -> Any:
    """Record the negative of a tensor."""
    x = call.argument(0, "input")
    if len(call.args) != 1 or call.kwargs or not _is_factor(x, -1):
        return record_passing(recording, call)
    return recording.apply(Scaling(-1, False, 0, call.name), x)


def _is_factor(x: Tensor, factor: object) -> bool:
    """Whether a value is a constant that a tensor of real numbers can be multiplied with."""
    if isinstance(factor, Tensor):
        return x.is_floating_point() and factor.dtype.is_floating_point
    return x.is_floating_point() and type(factor) in (int, float)


# The most frequent cases, quickly -----------------------------------------------------------------

QuickRecorder = Callable[[Recording, str, tuple[Any, ...]], Tensor | None]
"""Records a call without keywords, given its name and arguments; None if it is another case."""


def _add_two(recording: Recording, name: str, args: tuple[Any, ...]) -> Tensor | None:  # noqa: ARG001
    """Record the sum of two tensors that depend on the input."""
    if len(args) == 2 and is_traced(args[0]) and is_traced(args[1]):
        return recording.apply(Add(), *args)
    return None


def _scale(recording: Recording, name: str, args: tuple[Any, ...]) -> Tensor | None:
    """Record the product of a tensor that depends on the input with a constant."""
    if len(args) != 2:
        return None
    x, factor = args
    if not is_traced(x) or not x.is_floating_point():
        return None
    if type(factor) is float:
        return recording.apply(Scaling(factor, False, 0, name), x)
    if type(factor) is not Tensor or factor.requires_grad or not factor.dtype.is_floating_point:
        return None
    return recording.apply(Scaling(factor, False, factor.dim(), name), x)


def _negate(recording: Recording, name: str, args: tuple[Any, ...]) -> Tensor | None:
    """Record the negative of a tensor that depends on the input."""
    if len(args) == 1 and is_traced(args[0]) and args[0].is_floating_point():
        return recording.apply(Scaling(-1, False, 0, name), args[0])
    return None


QUICK_RECORDERS: dict[str, QuickRecorder] = {"add": _add_two, "mul": _scale, "neg": _negate}
"""Quick recorders by the names of calls."""


# Calls that are made of others -------------------------------------------------------------------


def record_glu(recording: Recording, call: TorchCall) -> Any:
    """Record a gated linear unit as a product."""
    with recording.active():
        a, b = call.argument(0, "input").chunk(2, call.argument(1, "dim", -1))
        return a * b.sigmoid()


def record_added_product(recording: Recording, call: TorchCall) -> Any:
    """Record x + value * a * b, or x + value * a / b."""
    x, a, b = (call.argument(i, n) for i, n in enumerate(("input", "tensor1", "tensor2")))
    value = call.argument(3, "value", 1)
    with recording.active():
        product = a * b if call.name == "addcmul" else a / b
        return x + (product if value == 1 else product * value)


def record_interpolation(recording: Recording, call: TorchCall) -> Any:
    """Record a + w (b - a) as (1 - w) a + w b."""
    a, b, w = (call.argument(i, n) for i, n in enumerate(("input", "end", "weight")))
    with recording.active():
        return a * (1 - w) + b * w


def record_prod(recording: Recording, call: TorchCall) -> Any:
    """Record the product along a dimension, factor by factor."""
    x, dim = call.argument(0, "input"), call.argument(1, "dim")
    if not isinstance(dim, int) or call.kwargs.get("dtype") is not None or not x.shape[dim]:
        return recording.refuse(call.run(), call.name)
    with recording.active():
        factors = x.unbind(dim)
        total = factors[0]
        for factor in factors[1:]:
            total = total * factor
        return total.unsqueeze(dim) if call.argument(2, "keepdim", False) else total


def record_diff(recording: Recording, call: TorchCall) -> Any:
    """Record differences of neighbours."""
    x, dim = call.argument(0, "input"), call.argument(2, "dim", -1)
    others = (
        call.argument(1, "n", 1) != 1,
        call.argument(3, "prepend"),
        call.argument(4, "append"),
    )
    if any(other is not None and other is not False for other in others):
        return recording.refuse(call.run(), call.name)
    with recording.active():
        return x.narrow(dim, 1, x.shape[dim] - 1) - x.narrow(dim, 0, x.shape[dim] - 1)


# Norms, variances and distances ------------------------------------------------------------------


def record_norm(recording: Recording, call: TorchCall) -> Any:
    """Record the norm of vectors as the root of a sum of powers; those of matrices are refused."""
    x = call.argument(0, "input", call.kwargs.get("A", call.kwargs.get("x")))
    order = next((call.kwargs[name] for name in ("p", "ord") if name in call.kwargs), None)
    order = call.args[1] if len(call.args) > 1 else order
    dim, keepdim = call.argument(2, "dim"), call.argument(3, "keepdim", False)
    dims = range(x.dim()) if dim is None else (dim,) if isinstance(dim, int) else dim
    of_matrix = call.name == "linalg_norm" and len(dims) == 2 and order not in (None, "fro")
    named = isinstance(order, str) and order != "fro"
    if of_matrix or named or call.kwargs.get("dtype") is not None:
        return recording.refuse(call.run(), call.name)
    power = 2.0 if order is None or order == "fro" else float(order)
    with recording.active():
        return _measure(recording, x, power, list(dims), keepdim)


def _measure(
    recording: Recording, x: Tensor, power: float, dims: list[int], keepdim: bool
) -> Tensor:
    """The norm of vectors along some dimensions, as recorded calls."""
    if power == 2:
        return _take_root(recording, x.square().sum(dims, keepdim), torch.sqrt)
    if math.isinf(power):
        return x.abs().amax(dims, keepdim) if power > 0 else x.abs().amin(dims, keepdim)
    total = (x.abs() if power == 1 else x.abs() ** power).sum(dims, keepdim)
    return total if power == 1 else _take_root(recording, total, lambda t: t ** (1 / power))


def _take_root(recording: Recording, total: Tensor, root: Callable[[Tensor], Tensor]) -> Tensor:
    """A root with a gradient of 0 where it is 0, as torch's own norms have it."""

    def take(x: Tensor) -> Tensor:
        return torch.where(x == 0, x, root(torch.where(x == 0, 1, x)))

    if not is_traced(total):
        return take(total)
    with without_torch_function():
        return recording.apply(Function("pass", take, 0, name="sqrt"), total)


def record_variance(recording: Recording, call: TorchCall) -> Any:
    """Record variances and standard deviations as means of squares of what is centred."""
    x, dim = call.argument(0, "input"), call.argument(1, "dim")
    unbiased = call.argument(2, "unbiased", True)
    if isinstance(dim, bool):  # var(x, unbiased)
        dim, unbiased = None, dim
    correction = call.kwargs.get("correction", 1 if unbiased else 0)
    dims = list(range(x.dim())) if dim is None else [dim] if isinstance(dim, int) else list(dim)
    keepdim = call.argument(3, "keepdim", False)
    count = math.prod(x.shape[d] for d in dims) - (1 if correction is None else correction)
    with recording.active():
        mean = x.mean(dims, keepdim=True)
        result = (x - mean).square().sum(dims, keepdim) / max(0, count)
        if call.name.startswith("std"):
            result = _take_root(recording, result, torch.sqrt)
        if not call.name.endswith("_mean"):
            return result
        return result, mean if keepdim else x.mean(dims)


def record_cosine(recording: Recording, call: TorchCall) -> Any:
    """Record a cosine as a product of vectors, divided by their norms."""
    a, b = call.argument(0, "x1"), call.argument(1, "x2")
    dim, eps = call.argument(2, "dim", 1), call.argument(3, "eps", 1e-8)
    with recording.active():
        norms = [_measure(recording, x, 2, [dim], False).clamp_min(eps) for x in (a, b)]
        return (a * b).sum(dim) / (norms[0] * norms[1])


def record_distance(recording: Recording, call: TorchCall) -> Any:
    """Record the distance of two vectors as the norm of their difference."""
    a, b = call.argument(0, "x1"), call.argument(1, "x2")
    power, eps = call.argument(2, "p", 2.0), call.argument(3, "eps", 1e-6)
    with recording.active():
        return _measure(
            recording, a - b + eps, float(power), [-1], call.argument(4, "keepdim", False)
        )


def record_vecdot(recording: Recording, call: TorchCall) -> Any:
    """Record products of vectors, added up along a dimension."""
    a, b = call.argument(0, "x", call.kwargs.get("input")), call.argument(1, "y")
    with recording.active():
        return (a * b).sum(call.kwargs.get("dim", -1))
