"""Record a forward pass of an unmodified model.

A stand-in is run that shares the model's parameters and nothing else. So the model itself is never
touched: not its mode, not its hooks, not its buffers. Nothing needs to be put back when something
fails, and threads do not meet.
"""

from __future__ import annotations

import functools
import math
import types
from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from whence._util.torch_internals import BACKWARD_HOOKS, COMPILED_CALL, uncompiled_module
from whence.errors import WhenceError
from whence.tracing.calls import find_module_kind
from whence.tracing.ops.attention import find_head_order
from whence.tracing.ops.base import Guard
from whence.tracing.recorder import Recorder, record_module
from whence.tracing.recording import Intervention
from whence.tracing.trace import Trace

_REGISTRIES = (dict, OrderedDict)
_ATOMIC = (bool, int, float, str, type(None))
# Attributes by which a forward pass differs in training, or is compiled.
_SWITCHED_OFF = {
    "training": False,
    "grad_checkpointing": False,
    "gradient_checkpointing": False,
    COMPILED_CALL: None,
}


def replicate(model: nn.Module) -> nn.Module:
    """Copy the tree of modules, in evaluation mode, with the model's own parameters.

    Raises:
        WhenceError: Part of the model is TorchScript, whose calls cannot be seen.
    """
    return _ModuleCopier().copy_module(unwrap_model(model))


class _ModuleCopier:
    """Copies modules and what they hold, each once."""

    def __init__(self) -> None:
        self._copies: dict[int, Any] = {}
        self._originals: list[Any] = []  # kept, so that no id is used twice
        self._by_type: dict[type, Callable[[Any], Any]] = {
            dict: lambda d: {k: self.copy_value(v) for k, v in d.items()},
            OrderedDict: lambda d: OrderedDict((k, self.copy_value(v)) for k, v in d.items()),
            list: lambda items: [self.copy_value(v) for v in items],
            tuple: lambda items: tuple(self.copy_value(v) for v in items),
            set: set.copy,
            Tensor: lambda t: t.detach().clone(),
            types.MethodType: self._copy_method,
            functools.partial: self._copy_partial,
        }

    def copy_value(self, value: Any) -> Any:
        """A copy of what a module can change or run; anything else, parameters too, as it is."""
        copier = self._by_type.get(type(value))
        if copier is not None:
            return self._copy_once(value, copier)
        return self.copy_module(unwrap_model(value)) if isinstance(value, nn.Module) else value

    def _copy_once(self, value: Any, copier: Callable[[Any], Any]) -> Any:
        if id(value) not in self._copies:
            self._originals.append(value)
            self._copies[id(value)] = copier(value)
        return self._copies[id(value)]

    def copy_module(self, module: nn.Module) -> nn.Module:
        """The copy of a module."""
        if id(module) in self._copies:
            known: nn.Module = self._copies[id(module)]
            return known
        if isinstance(module, torch.jit.ScriptModule):
            raise WhenceError(
                f"{type(module).__name__} is a TorchScript module, which hides its calls; give "
                f"whence the Python model it was made from."
            )
        copy = object.__new__(type(module))
        self._copies[id(module)] = copy
        self._originals.append(module)
        attributes = module.__dict__.copy()
        for name, held in module.__dict__.items():
            kind = type(held)
            if kind in _REGISTRIES and not held:  # nearly all are empty: no hooks, no buffers
                attributes[name] = kind()
            elif kind not in _ATOMIC:
                attributes[name] = self.copy_value(held)
        for name in _SWITCHED_OFF.keys() & attributes.keys():
            attributes[name] = _SWITCHED_OFF[name]
        attributes.update((name, OrderedDict()) for name in BACKWARD_HOOKS)
        copy.__dict__.update(attributes)
        return copy

    def _copy_method(self, method: types.MethodType) -> Any:
        owner = self._copies.get(id(method.__self__))
        return method if owner is None else types.MethodType(method.__func__, owner)

    def _copy_partial(self, partial: functools.partial[Any]) -> Any:
        args, kwargs = self.copy_value(partial.args), self.copy_value(partial.keywords)
        return functools.partial(self.copy_value(partial.func), *args, **kwargs)


def unwrap_model(model: nn.Module) -> nn.Module:
    """The model inside ``torch.compile``, ``DataParallel`` and the like."""
    while True:
        inner = uncompiled_module(model)
        if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
            inner = model.module
        if not isinstance(inner, nn.Module):
            return model
        model = inner


# Recording ---------------------------------------------------------------------------------------


def record(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    main: str | int,
    output: Callable[[Any], Tensor] | None = None,
    intervention: Intervention | None = None,
    *,
    guard: Guard | None = None,
    max_bytes: float = math.inf,
    max_map_bytes: float = math.inf,
) -> Trace:
    """Run a model once and record it.

    Where a model switches gradients off for itself, what it computes there is a constant, as for
    autograd; but if that leaves logits that depend on nothing, the input is followed all the same.

    Args:
        model: Any module; it is not touched.
        args: Positional arguments of its forward.
        kwargs: Keyword arguments of its forward.
        main: Which argument is the input to explain, by position or name.
        output: Gets the logits from what the model returns, if it is not obvious.
        intervention: How the run differs from the model's own forward pass.
        guard: Looks at values.
        max_bytes: How many bytes the operations may keep.
        max_map_bytes: Attention whose maps have more bytes than this is recorded without them, and
            can then be read site by site only.

    Raises:
        WhenceError: The model has no attention, or no logits that whence can follow.
        TooLargeError: The operations keep more than they may.
    """
    for ignore_no_grad in (False, True):
        trace = _record(
            model,
            args,
            kwargs,
            main,
            output,
            intervention,
            Guard() if guard is None else guard,
            (max_bytes, max_map_bytes),
            ignore_no_grad,
        )
        if trace is not None:
            return trace
    raise WhenceError(
        "The logits do not depend on the input in a way that whence can follow. If the model looks "
        "its token ids up in a way of its own, pass embeddings (inputs_embeds) instead of ids."
    )


def _record(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    main: str | int,
    output: Callable[[Any], Tensor] | None,
    intervention: Intervention | None,
    guard: Guard,
    bounds: tuple[float, float],
    ignore_no_grad: bool,
) -> Trace | None:
    """Record a forward pass; None if the logits do not depend on the input."""
    with torch.inference_mode(False), torch.enable_grad():
        stand_in = replicate(model)
        modules = {module: name for name, module in stand_in.named_modules()}
        names = {id(module): name for module, name in modules.items()}
        given: list[Any] = [_leave_inference_mode(value) for value in args]
        named = {name: _leave_inference_mode(value) for name, value in kwargs.items()}
        holder: Any = given if isinstance(main, int) else named
        batch, pixels = holder[main].shape[0], holder[main].is_floating_point()
        trace = Trace(batch, guard, intervention or Intervention(), names, *bounds)
        ids = {} if pixels else {main: holder[main]}
        recorder = Recorder(trace, ids, ignore_no_grad)
        whole = [(m, kind) for m in modules if (kind := find_module_kind(m)) is not None]
        for module, kind in whole:
            module.__dict__["forward"] = record_module(trace, kind, module, modules[module])
        if pixels:
            holder[main] = trace.follow(holder[main], main)
        try:
            with recorder:
                returned = stand_in(*given, **named)
                logits = output(returned) if output is not None else find_logits(returned)
            _check_logits(logits, batch, guard)
            if not logits.requires_grad:
                return None
            if not trace.sites:
                raise WhenceError(_NO_ATTENTION.format(type(unwrap_model(model)).__name__))
            rerecord = partial(record, model, args, kwargs, main, output, guard=guard)
            trace.finish(logits, rerecord)
            if intervention is None or intervention.follow_constants:
                trace.check_complete(logits)
                find_head_order(
                    trace.sites,
                    batch,
                    lambda site: trace.read_sample([site.graph_tensor])[0],
                    guard.look_at,
                )
                if any(site.heads_first and site.output is not None for site in trace.sites):
                    # Their maps can be computed again for some samples only, not for some heads.
                    return rerecord(intervention, max_bytes=bounds[0])
            return trace
        finally:
            trace.stop_recording()
            for module, _ in whole:
                del module.__dict__["forward"]


_NO_ATTENTION = (
    "No attention was seen in {}. whence explains Transformers: softmax weights multiplied with "
    "values, by scaled_dot_product_attention, nn.MultiheadAttention, matmul, bmm or einsum. If the "
    "model hides attention in a kernel of its own (flash attention), load it with "
    'attn_implementation="sdpa" or "eager".'
)


def _leave_inference_mode(value: Any) -> Any:
    """An input that autograd can work with."""
    inferred = isinstance(value, Tensor) and value.is_inference()
    return value.clone() if inferred else value


def find_logits(returned: Any) -> Tensor:
    """The logits in what a model returned: a tensor, `.logits`, or the first of a sequence."""
    if isinstance(returned, Tensor):
        return returned
    logits = getattr(returned, "logits", None)
    if isinstance(logits, Tensor):
        return logits
    if isinstance(returned, dict) and isinstance(returned.get("logits"), Tensor):
        return returned["logits"]  # type: ignore[no-any-return]
    if isinstance(returned, tuple | list) and returned and isinstance(returned[0], Tensor):
        return returned[0]
    raise WhenceError(
        f"The model returned {type(returned).__name__}, in which whence finds no logits. Say where "
        f"they are: Explainer(model, output=lambda returned: ...)."
    )


def _check_logits(logits: Any, batch: int, guard: Guard) -> None:
    if not isinstance(logits, Tensor):
        raise WhenceError(f"output(...) must return the logits, not {type(logits).__name__}.")
    if logits.dim() != 2 or logits.shape[0] != batch:
        raise WhenceError(
            f"Logits of shape (batch, classes) are needed, but the model gave "
            f"{tuple(logits.shape)} for {batch} input(s). Pick what to explain: "
            f"Explainer(model, output=lambda returned: ...)."
        )
    if guard.sees_values and not torch.isfinite(logits).all():
        raise WhenceError("The model gives NaN or infinite logits for these inputs.")
