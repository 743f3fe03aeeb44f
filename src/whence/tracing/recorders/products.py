"""Calls of linear maps, convolutions and matrix products."""

from __future__ import annotations

from typing import Any

from torch.nn import functional as F

from whence.tracing.calls import TorchCall
from whence.tracing.ops.base import is_traced
from whence.tracing.ops.products import ConstantMatMul, Convolution, Linear, MatMul
from whence.tracing.recording import Recording


def record_linear(recording: Recording, call: TorchCall) -> Any:
    """Record a linear map; one whose weight depends on the input is a product."""
    x, weight = call.argument(0, "input"), call.argument(1, "weight")
    bias = call.argument(2, "bias")
    if is_traced(weight) or is_traced(bias):
        with recording.active():
            product = x @ weight.mT
            return product if bias is None else product + bias
    return recording.apply(Linear(weight, bias), x)


def record_bilinear(recording: Recording, call: TorchCall) -> Any:
    """Record y_k = a W_k b + bias_k, a product of two linear maps."""
    names = ("input1", "input2", "weight", "bias")
    a, b, weight, bias = (call.argument(i, n) for i, n in enumerate(names))
    with recording.active():
        mapped = F.linear(a, weight.transpose(1, 2).flatten(0, 1))
        mapped = mapped.reshape(*a.shape[:-1], weight.shape[0], weight.shape[2])
        y = (mapped @ b.unsqueeze(-1))[..., 0]
        return y if bias is None else y + bias


_DIRECT = ("stride", "padding", "dilation", "groups")
_TRANSPOSED = ("stride", "padding", "output_padding", "groups", "dilation")
_EITHER = ("stride", "padding", "dilation", "transposed", "output_padding", "groups")
_DEFAULTS = {"padding": 0, "output_padding": 0, "transposed": False}


def record_convolution(recording: Recording, call: TorchCall) -> Any:
    """Record a convolution, transposed or not, of any number of dimensions."""
    x, weight, bias = (call.argument(i, n) for i, n in enumerate(("input", "weight", "bias")))
    dims = weight.dim() - 2
    if is_traced(weight) or is_traced(bias):
        return recording.refuse(call.run(), call.name)
    if x.dim() == dims + 1:  # one sample, without a batch
        with recording.active():
            args = (x.unsqueeze(0), *call.args[1:])
            return call.function(*args, **{k: v for k, v in call.kwargs.items() if k != "input"})[0]
    names: tuple[str, ...] = _TRANSPOSED if "transpose" in call.name else _DIRECT
    names = _EITHER if call.name == "convolution" else names
    given = {n: call.argument(3 + i, n, _DEFAULTS.get(n, 1)) for i, n in enumerate(names)}
    given = {"output_padding": 0, "transposed": names is _TRANSPOSED, **given}
    if given["padding"] == "same":
        dilation = _repeat(given["dilation"], dims)
        total = [d * (k - 1) for d, k in zip(dilation, weight.shape[2:], strict=True)]
        with recording.active():
            x = F.pad(x, [p for n in reversed(total) for p in (n // 2, n - n // 2)])
    if isinstance(given["padding"], str):
        given["padding"] = 0
    settings = {name: _repeat(given[name], dims) for name in ("stride", "padding", "dilation")}
    operation = Convolution(
        weight,
        bias,
        **settings,
        groups=given["groups"],
        transposed=given["transposed"],
        output_padding=_repeat(given["output_padding"], dims),
    )
    return recording.apply(operation, x)


def _repeat(value: Any, dims: int) -> list[int]:
    """A setting for each dimension, given once or for each."""
    values = [value] if isinstance(value, int) else list(value)
    return values * dims if len(values) == 1 else values


def record_matmul(recording: Recording, call: TorchCall) -> Any:
    """Record a matrix product; a vector is a matrix of one column or row."""
    a, b = call.argument(0, "input"), call.argument(1, "other", call.kwargs.get("mat2"))
    a, b = (b, a) if call.name == "__rmatmul__" else (a, b)
    if min(a.dim(), b.dim()) < 2:
        with recording.active():
            product = (a[None] if a.dim() == 1 else a) @ (b[:, None] if b.dim() == 1 else b)
            product = product[..., 0] if b.dim() == 1 else product
            return product if a.dim() > 1 else product[..., 0, :] if b.dim() > 1 else product[0]
    if is_traced(a) and is_traced(b):
        product = MatMul()
        output = recording.apply(product, a, b)
        recording.note_attention(product, a, b)
        return output
    recording.note_constant_values(a if is_traced(a) else b)
    if is_traced(a):
        return recording.apply(ConstantMatMul(b, weight_first=False), a)
    return recording.apply(ConstantMatMul(a, weight_first=True), b)


def record_added_matmul(recording: Recording, call: TorchCall) -> Any:
    """Record a product that is added to a term."""
    term = call.argument(0, "input")
    a = call.argument(1, "mat1", call.kwargs.get("batch1", call.kwargs.get("mat")))
    b = call.argument(2, "mat2", call.kwargs.get("batch2", call.kwargs.get("vec")))
    beta, alpha = call.kwargs.get("beta", 1), call.kwargs.get("alpha", 1)
    constant = not is_traced(b) and not is_traced(term)
    if call.name == "addmm" and constant and term.dim() == 1 and alpha == beta == 1:
        return recording.apply(Linear(b.mT, term), a)
    with recording.active():
        product = a @ b
        product = product.sum(0) if call.name == "addbmm" else product
        product = product if alpha == 1 else product * alpha
        return product if beta == 0 else product + (term if beta == 1 else term * beta)
