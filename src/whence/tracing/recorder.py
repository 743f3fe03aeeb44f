"""Recorder: watches the torch calls of one forward pass, and records each as an operation."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from whence._util.progress import check_watcher
from whence._util.torch_internals import SET_GRAD_ENABLED, AttributeGetter
from whence.errors import LostGradientError
from whence.tracing import calls
from whence.tracing.calls import TorchCall, name_of
from whence.tracing.experts import record_grouped_matmul
from whence.tracing.ids import IdTracker
from whence.tracing.ops.attention import is_made_of_patches
from whence.tracing.ops.base import Add, Function, Shift, is_traced
from whence.tracing.ops.products import ConstantMatMul, Convolution, Linear, MatMul
from whence.tracing.quotients import as_quotient, divides_by_own_sum, name_function
from whence.tracing.recording import Recording, flatten_lists, start_tracing

# Attributes that are no tensors, which models ask for all the time.
_FACTS = frozenset(("shape", "dtype", "device", "ndim", "is_cuda", "requires_grad", "is_leaf"))
# Ways to look at the one value of a tensor.
_LOOKS: dict[str, Callable[[Any], Any]] = {
    "item": lambda value: value,
    "__bool__": bool,
    "__int__": int,
    "__float__": float,
    "__index__": operator.index,
}


class Recorder(TorchFunctionMode):
    """Sees every torch call of a forward pass and records those that depend on the input.

    Args:
        recording: Where operations are recorded.
        ids: Token ids by their argument; they are followed from their embeddings on.
        ignore_no_grad: Whether to follow the input where the model itself switches gradients off.
    """

    def __init__(
        self,
        recording: Recording,
        ids: Mapping[str | int, Tensor] | None = None,
        ignore_no_grad: bool = False,
    ) -> None:
        super().__init__()
        self._recording = recording
        self._ids = IdTracker(ids or {})
        self._ignore_no_grad = ignore_no_grad
        recording.start_recording(self)

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Record one call; while this runs, the mode is off."""
        name, recording = name_of(func), self._recording
        if name in _FACTS:
            return func(*args)
        if name in _LOOKS:
            return _LOOKS[name](recording.guard.look_at(args[0]))
        check_watcher()
        if name == SET_GRAD_ENABLED and self._ignore_no_grad:
            return None
        in_place = name == "__setitem__" or (name[-1] == "_" and name[-2:] != "__")
        if in_place and not args:
            args, kwargs = _move_written_first(kwargs or {})
        if name == "requires_grad_":
            return args[0]  # what is traced is whence's own affair
        if not torch.is_grad_enabled():
            # The model means it as a constant, or this is inside of an autograd function.
            if in_place or (kwargs or {}).get("inplace"):
                recording.preserve(args[0])
            result = func(*args, **(kwargs or {}))
            self._ids.observe(name, func, args, kwargs or {}, result)
            return result
        args, kwargs = _detach_all(args), {k: _detach(v) for k, v in (kwargs or {}).items()}
        constants = recording.intervention.follow_constants
        constant = not any(map(is_traced, flatten_lists((*args, *kwargs.values()))))
        if constant and not (constants and name == "multi_head_attention_forward"):
            if in_place and isinstance(args[0], Tensor):
                recording.preserve(args[0])
            result = func(*args, **kwargs)
            lookup = self._ids.observe(name, func, args, kwargs, result)
            if lookup is not None:
                return recording.follow(result, lookup.argument, lookup.rows)
            begins = constants and name == "linear" and result.dim() > 2
            return recording.mark_routing(start_tracing(result), ()) if begins else result
        if isinstance(func, AttributeGetter) and name not in calls.ROUTING:
            return func(*args, **kwargs)  # an attribute, such as shape
        call = TorchCall(name, func, args, kwargs)
        if in_place:
            return _record_in_place(recording, call)
        if kwargs.get("inplace"):
            kwargs["inplace"] = False
            return recording.overwrite(args[0], record_call(recording, call))
        return record_call(recording, call)


def _move_written_first(kwargs: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments of a call in place by keywords alone, with what is written as the first."""
    written = next((name for name in ("input", "tensor", "self") if name in kwargs), None)
    rest = {name: value for name, value in kwargs.items() if name != written}
    return () if written is None else (kwargs[written],), rest


def _detach_all(values: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(_detach(value) for value in values)


def _detach(value: Any) -> Any:
    """Parameters without their gradients, also in lists and tuples; other values as they are."""
    kind = type(value)
    if kind is int or kind is float or value is None:
        return value
    if isinstance(value, Tensor):
        return value.detach() if value.requires_grad and value.is_leaf else value
    if kind is tuple:
        return _detach_all(value)
    return [_detach(v) for v in value] if kind is list else value


# One call ----------------------------------------------------------------------------------------


def record_call(recording: Recording, call: TorchCall) -> Any:
    """Record a call as the operation that it computes."""
    if call.name in calls.registered_kinds:
        return _record_function(recording, call, calls.registered_kinds[call.name])
    if call.name in calls.ROUTING:
        return _record_routing(recording, call)
    if call.name in calls.PASSING:
        return _record_function(recording, call, "pass")
    if call.name in calls.SUMMING:
        return _record_function(recording, call, "sum")
    if call.name in calls.DROPOUT:
        return call.argument(0, "input")
    if call.name in _RECORDERS:
        return _RECORDERS[call.name](recording, call)
    return recording.refuse(call.run(), call.name)


def _record_in_place(recording: Recording, call: TorchCall) -> Any:
    """Compute out of place, then write the result: what was kept before must stay as it was."""
    name = call.name.removesuffix("_")
    plain = next((getattr(of, name) for of in (Tensor, F, torch) if hasattr(of, name)), None)
    if call.name == "__setitem__" or name in calls.ROUTING or name == "copy":
        recording.preserve(call.args[0])
        return _record_routing(recording, call)
    if plain is None:
        recording.preserve(call.args[0])
        return recording.refuse(call.run(), call.name)
    value = record_call(recording, TorchCall(name, plain, call.args, call.kwargs))
    return recording.overwrite(call.args[0], value)


def _record_routing(recording: Recording, call: TorchCall) -> Any:
    """Make a call whose ordinary backward routes relevance as it routes gradients."""
    arguments = flatten_lists((*call.args, *call.kwargs.values()))
    before = [x.grad_fn for x in arguments if is_traced(x)]
    result = call.run()
    if isinstance(result, Tensor) and result.dtype == torch.int8:
        raise LostGradientError.at_call(call.name, recording.where())
    return recording.mark_routing(result if result is not None else call.args[0], before)


def _record_function(recording: Recording, call: TorchCall, kind: str) -> Any:
    function, inputs = call.as_function()
    if not calls.fits_kind(kind, inputs):
        return recording.refuse(call.run(), call.name)
    at = {"name": name_function(call), "where": recording.where(kind)}
    operation = Function(kind, function, _count_mixed_dims(call), **at)
    if kind == "quotient" and len(inputs) == 2:
        operation.divides_by_own_sum = divides_by_own_sum(*inputs)
    return recording.apply(operation, *inputs)


def _count_mixed_dims(call: TorchCall) -> int | None:
    """How many of the last dimensions of its input a call mixes, if that is known."""
    if call.name in calls.ELEMENT_WISE:
        # A constant of fewer dimensions is the same for all rows that are counted further ahead.
        others = (v for v in (*call.args, *call.kwargs.values()) if isinstance(v, Tensor))
        return max((v.dim() for v in others if not is_traced(v)), default=0)
    if call.name in ("layer_norm", "rms_norm"):
        return len(call.argument(1, "normalized_shape"))
    if call.name == "softmax":
        return 1 if call.argument(1, "dim") in (-1, call.argument(0, "input").dim() - 1) else None
    return None


def _record_linear(recording: Recording, call: TorchCall) -> Any:
    x, weight, bias = (call.argument(i, n) for i, n in enumerate(("input", "weight", "bias")))
    if is_traced(weight) or is_traced(bias):
        with recording.active():
            product = x @ weight.mT
            return product if bias is None else product + bias
    return recording.apply(Linear(weight, bias), x)


def _record_convolution(recording: Recording, call: TorchCall) -> Any:
    x, weight, bias = (call.argument(i, n) for i, n in enumerate(("input", "weight", "bias")))
    dims = int(call.name[4])
    if is_traced(weight) or is_traced(bias) or x.dim() != dims + 2:
        return recording.refuse(call.run(), call.name)
    settings = (("stride", 1), ("padding", 0), ("dilation", 1))
    given = (call.argument(3 + n, name, default) for n, (name, default) in enumerate(settings))
    stride, padding, dilation = ([v] * dims if isinstance(v, int) else v for v in given)
    if padding == "same":
        total = [d * (k - 1) for d, k in zip(dilation, weight.shape[2:], strict=True)]
        with recording.active():
            x = F.pad(x, [p for n in reversed(total) for p in (n // 2, n - n // 2)])
    if isinstance(padding, str):
        padding = [0] * dims
    return recording.apply(
        Convolution(
            weight,
            bias,
            stride=stride,
            padding=padding,
            dilation=dilation,
            groups=call.argument(6, "groups", 1),
        ),
        x,
    )


def _record_matmul(recording: Recording, call: TorchCall) -> Any:
    a, b = call.argument(0, "input"), call.argument(1, "other", call.kwargs.get("mat2"))
    if b.dim() == 1 and a.dim() > 1:
        with recording.active():
            return (a @ b[:, None])[..., 0]
    if min(a.dim(), b.dim()) < 2:
        return recording.refuse(call.run(), call.name)
    if is_traced(a) and is_traced(b):
        product = MatMul()
        output = recording.apply(product, a, b)
        recording.note_attention(product, a, b)
        return output
    if is_traced(a):
        return recording.apply(ConstantMatMul(b, weight_first=False), a)
    return recording.apply(ConstantMatMul(a, weight_first=True), b)


def _record_added_matmul(recording: Recording, call: TorchCall) -> Any:
    term = call.argument(0, "input")
    a = call.argument(1, "mat1", call.kwargs.get("batch1"))
    b = call.argument(2, "mat2", call.kwargs.get("batch2"))
    beta, alpha = call.kwargs.get("beta", 1), call.kwargs.get("alpha", 1)
    constant = not is_traced(b) and not is_traced(term)
    if call.name == "addmm" and constant and term.dim() == 1 and alpha == beta == 1:
        return recording.apply(Linear(b.mT, term), a)
    with recording.active():
        product = a @ b
        product = product if alpha == 1 else product * alpha
        return product if beta == 0 else product + (term if beta == 1 else term * beta)


def _record_einsum(recording: Recording, call: TorchCall) -> Any:
    equation, *operands = call.args
    if len(operands) == 1 and isinstance(operands[0], list | tuple):
        operands = list(operands[0])
    indices = calls.parse_einsum(equation, operands)
    if indices is None:
        return recording.refuse(call.run(), "einsum")
    with recording.active():
        return calls.einsum_as_matmul(*indices, *operands)


def _record_add(recording: Recording, call: TorchCall) -> Any:
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
    if is_traced(a) or scale == 1:
        # A constant is added: the ordinary backward hands everything to the other term.
        return _record_routing(recording, call)
    return _record_function(recording, call, "pass")


def _record_multiply(recording: Recording, call: TorchCall) -> Any:
    if call.kwargs.get("rounding_mode") is not None:
        return recording.refuse(call.run(), call.name)
    if not (is_traced(call.argument(0, "input")) and is_traced(call.argument(1, "other"))):
        return _record_function(recording, call, "pass")
    quotient = as_quotient(call) if "mul" in call.name else call
    if quotient is None:
        return _record_function(recording, call, "product")
    return _record_function(recording, quotient, "quotient")


def _record_index_add(recording: Recording, call: TorchCall) -> Any:
    x, dim, index, source = (
        call.argument(i, n) for i, n in enumerate(("input", "dim", "index", "source"))
    )
    repeated = recording.guard.look_at(torch.tensor(index.unique().numel() != index.numel()))
    if repeated or call.kwargs.get("alpha", 1) != 1 or not is_traced(source):
        return recording.refuse(call.run(), call.name)
    args = torch.zeros_like(x).detach(), dim, index, source
    moved = _record_routing(recording, TorchCall(call.name, torch.index_add, args, {}))
    with recording.active():
        return x + moved


def _record_attention(recording: Recording, call: TorchCall) -> Tensor:
    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
    given = {**dict(zip(names, call.args, strict=False)), **call.kwargs}
    return calls.decompose_attention(recording, **given)


_RECORDERS: dict[str, Callable[[Recording, TorchCall], Any]] = {
    **dict.fromkeys(("linear",), _record_linear),
    **dict.fromkeys(("conv1d", "conv2d", "conv3d"), _record_convolution),
    **dict.fromkeys(("matmul", "mm", "bmm"), _record_matmul),
    **dict.fromkeys(("_grouped_mm", "grouped_mm", "grouped_mm_fallback"), record_grouped_matmul),
    **dict.fromkeys(("addmm", "baddbmm"), _record_added_matmul),
    **dict.fromkeys(("einsum",), _record_einsum),
    **dict.fromkeys(("add", "sub", "subtract", "rsub", "__rsub__"), _record_add),
    **dict.fromkeys(("mul", "multiply", "div", "divide", "true_divide"), _record_multiply),
    **dict.fromkeys(("glu",), calls.run_glu),
    **dict.fromkeys(("norm", "linalg_norm", "linalg_vector_norm"), calls.run_norm),
    **dict.fromkeys(("index_add",), _record_index_add),
    **dict.fromkeys(("scaled_dot_product_attention",), _record_attention),
    **dict.fromkeys(("multi_head_attention_forward",), calls.run_body),
}
