"""Recorder: watches the torch calls of one forward pass, and records each as an operation."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

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
from whence.tracing.recorders.arithmetic import QUICK_RECORDERS, QuickRecorder
from whence.tracing.recorders.functions import record_move, record_routing
from whence.tracing.recorders.whole import record_registered
from whence.tracing.recording import LISTS, Recording, start_tracing

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


class _CallFacts(NamedTuple):
    """What is known of a torch function by its name.

    Attributes:
        name: The name.
        is_fact: Whether it reads an attribute that is no tensor.
        in_place: Whether it writes to its first argument.
        is_attribute: Whether it reads any other attribute that needs no recording.
        is_look: Whether it looks at the one value of a tensor.
        routes: Whether it only moves numbers about.
        quick: Records the most frequent cases of it; None if it has none.
    """

    name: str
    is_fact: bool
    in_place: bool
    is_attribute: bool
    is_look: bool
    routes: bool
    quick: QuickRecorder | None


# Facts of functions that were called before: a model calls few, each many times.
_known_calls: dict[Callable[..., Any], _CallFacts] = {}
_MAX_KNOWN = 4096


def _find_facts(func: Callable[..., Any]) -> _CallFacts:
    """What is known of a function, found once."""
    name = name_of(func)
    in_place = name == "__setitem__" or (name[-1] == "_" and name[-2:] != "__")
    is_attribute = isinstance(func, AttributeGetter) and name not in calls.ROUTING
    routes = name in calls.ROUTING and not in_place
    quick = QUICK_RECORDERS.get(name)
    facts = _CallFacts(name, name in _FACTS, in_place, is_attribute, name in _LOOKS, routes, quick)
    if len(_known_calls) < _MAX_KNOWN:
        _known_calls[func] = facts
    return facts


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
        facts = _known_calls.get(func) or _find_facts(func)
        name, is_fact, in_place, is_attribute, is_look, routes, quick = facts
        if is_fact:
            return func(*args)
        recording = self._recording
        if is_look:
            return _LOOKS[name](recording.guard.look_at(args[0]))
        check_watcher()
        if not kwargs and not registration.registered_kinds:
            if routes and _moves_first(args):
                return record_move(recording, func, args)
            if quick is not None and torch.is_grad_enabled():
                result = quick(recording, name, args)
                if result is not None:
                    return result
        if name == SET_GRAD_ENABLED and self._ignore_no_grad:
            return None
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
        args, is_traced = _detach_all(args)
        if kwargs:
            values, is_any = _detach_all(kwargs.values())
            kwargs, is_traced = dict(zip(kwargs, values, strict=True)), is_traced or is_any
        call = TorchCall(name, func, args, {} if kwargs is None else kwargs)
        if not is_traced:
            constants = recording.intervention.follow_constants
            if not (constants and name == "multi_head_attention_forward"):
                return self._run_constant(call, in_place)
        if is_attribute:
            return func(*call.args, **call.kwargs)  # an attribute, such as shape
        if in_place:
            return _record_in_place(recording, call)
        if kwargs and kwargs.get("inplace"):
            call.kwargs["inplace"] = False
            return recording.overwrite(call.args[0], record_call(recording, call))
        return record_call(recording, call)

    def _run_constant(self, call: TorchCall, in_place: bool) -> Any:
        """Make a call that does not depend on the input, unless it looks up its embeddings."""
        recording, name, args = self._recording, call.name, call.args
        if in_place and isinstance(args[0], Tensor):
            recording.preserve(args[0])
        result = call.run()
        if name == "multinomial":
            result = _order_draws(result, args[0])
        lookup = self._ids.observe(name, call.function, args, call.kwargs, result)
        if lookup is not None:
            return recording.follow(result, lookup.argument, lookup.rows)
        constants = recording.intervention.follow_constants
        if constants and name == "linear" and result.dim() > 2:
            recording.projected.append(args[0])
            return recording.mark_routing(start_tracing(result), ())
        return result


# What says how a tensor is moved, and is none itself.
_NUMBERS = frozenset((int, slice, type(None), type(...)))
_SIZES = frozenset((tuple, torch.Size, list))


def _moves_first(args: tuple[Any, ...]) -> bool:
    """Whether the first argument alone depends on the input, and the others are numbers."""
    first = args[0] if args else None
    if not (is_traced(first) and torch.is_grad_enabled()):
        return False
    for value in args[1:]:
        kind = type(value)
        if kind not in _NUMBERS:
            if kind not in _SIZES:
                return False
            for one in value:
                if type(one) not in _NUMBERS:
                    return False
    return True


def _move_written_first(kwargs: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments of a call in place by keywords alone, with what is written as the first."""
    written = next((name for name in ("input", "tensor", "self") if name in kwargs), None)
    rest = {name: value for name, value in kwargs.items() if name != written}
    return () if written is None else (kwargs[written],), rest


def _detach_all(values: Iterable[Any]) -> tuple[tuple[Any, ...], bool]:
    """Parameters without their gradients; and whether any value depends on the model's input.

    Values in lists and tuples are looked at, too.
    """
    found: list[Any] = []
    is_traced = False
    for value in values:
        if isinstance(value, Tensor):
            if value.requires_grad:
                if value.is_leaf:
                    value = value.detach()
                else:
                    is_traced = True
        elif isinstance(value, LISTS):
            inner, is_any = _detach_all(value)
            is_traced = is_traced or is_any
            if type(value) in (list, tuple):  # others, such as sizes, hold no parameters
                value = type(value)(inner)
        found.append(value)
    return tuple(found), is_traced


# One call ----------------------------------------------------------------------------------------


def record_call(recording: Recording, call: TorchCall) -> Any:
    """Record a call as the operation that it computes."""
    if call.kwargs.get("out") is not None:
        return recording.refuse(call.run(), call.name)  # torch itself refuses to follow it
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
