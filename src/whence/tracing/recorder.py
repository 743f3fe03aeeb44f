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
from whence.tracing import calls, registration
from whence.tracing.calls import TorchCall, name_of
from whence.tracing.ids import IdTracker
from whence.tracing.ops.base import is_traced
from whence.tracing.recorders import RECORDERS
from whence.tracing.recorders.functions import record_routing
from whence.tracing.recorders.whole import record_registered
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
            if name == "multinomial":
                result = _order_draws(result, args[0])
            lookup = self._ids.observe(name, func, args, kwargs, result)
            if lookup is not None:
                return recording.follow(result, lookup.argument, lookup.rows)
            if constants and name == "linear" and result.dim() > 2:
                recording.projected.append(args[0])
                return recording.mark_routing(start_tracing(result), ())
            return result
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
    if call.name in registration.registered_kinds:
        return record_registered(recording, call, registration.registered_kinds[call.name])
    recorder = RECORDERS.get(call.name)
    if recorder is not None:
        return recorder(recording, call)
    if call.name.startswith("special_"):  # torch.special.softmax and others
        call.name = call.name.removeprefix("special_")
        return record_call(recording, call)
    return recording.refuse(call.run(), call.name)


def _record_in_place(recording: Recording, call: TorchCall) -> Any:
    """Compute out of place, then write the result: what was kept before must stay as it was."""
    name = call.name.removesuffix("_")
    plain = next((getattr(of, name) for of in (Tensor, F, torch) if hasattr(of, name)), None)
    if call.name == "__setitem__" or name in calls.ROUTING or name == "copy":
        recording.preserve(call.args[0])
        return record_routing(recording, call)
    if plain is None:
        recording.preserve(call.args[0])
        return recording.refuse(call.run(), call.name)
    value = record_call(recording, TorchCall(name, plain, call.args, call.kwargs))
    return recording.overwrite(call.args[0], value)


def _order_draws(drawn: Tensor, weights: Tensor) -> Tensor:
    """Order what was drawn at random, where all was drawn and every order is as likely.

    ViLT draws the order of its patches anew in each pass, for each sample. In one order for all,
    a token stands for the same patch in every pass and sample.
    """
    alike = bool((weights == weights.flatten()[0]).all())
    ordered = drawn.sort(-1).values
    every = torch.arange(weights.shape[-1], device=drawn.device).expand_as(weights)
    return ordered if alike and torch.equal(ordered, every) else drawn
