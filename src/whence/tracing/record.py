"""Record a forward pass of an unmodified model, by running a stand-in of it."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from whence.errors import TooLargeError, WhenceError
from whence.tracing.calls import find_module_kind
from whence.tracing.intervention import Intervention
from whence.tracing.modules import is_linear_like, record_linear_module, record_module
from whence.tracing.ops.attention import find_head_order
from whence.tracing.ops.base import Guard
from whence.tracing.recorder import Recorder
from whence.tracing.recording import CHECKPOINT
from whence.tracing.stand_in import copy_arguments, replicate, unwrap_model
from whence.tracing.trace import Trace


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
        given, named = copy_arguments(args, kwargs)
        holder: Any = given if isinstance(main, int) else named
        batch, pixels = holder[main].shape[0], holder[main].is_floating_point()
        trace = Trace(batch, guard, intervention or Intervention(), names, *bounds)
        ids = {} if pixels else {main: holder[main]}
        recorder = Recorder(trace, ids, ignore_no_grad)
        whole = [(m, kind) for m in modules if (kind := find_module_kind(m)) is not None]
        linear = [module for module in modules if is_linear_like(module)]
        for module, kind in whole:
            module.__dict__["forward"] = record_module(trace, kind, module, modules[module])
        for module in linear:
            module.__dict__["forward"] = record_linear_module(trace, module, modules[module])
        if pixels:
            holder[main] = trace.follow(holder[main], main)
        try:
            with recorder, _explain_failures(stand_in):
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
            for module in (*(module for module, _ in whole), *linear):
                module.__dict__.pop("forward", None)


_NO_ATTENTION = (
    "No attention was seen in {}. whence explains Transformers: softmax weights multiplied with "
    "values, by scaled_dot_product_attention, nn.MultiheadAttention, matmul, bmm or einsum. If the "
    "model hides attention in a kernel of its own (flash attention), load it with "
    'attn_implementation="sdpa" or "eager".'
)


@contextmanager
def _explain_failures(model: nn.Module) -> Iterator[None]:
    """Say so where a run fails because weights are not there, or because calls are hidden."""
    no_checkpoints = torch.autograd.graph.disable_saved_tensors_hooks(CHECKPOINT)
    try:
        with contextlib.ExitStack() as stack:
            with contextlib.suppress(RuntimeError):  # the user's own hooks surround the call
                stack.enter_context(no_checkpoints)
            yield
    except Exception as error:
        if CHECKPOINT in str(error):
            raise WhenceError(CHECKPOINT) from error
        absent = next((name for name, p in model.named_parameters() if p.is_meta), None)
        if absent is None or isinstance(error, WhenceError | TooLargeError):
            raise
        raise WhenceError(_ABSENT.format(f" ('{absent}' is one)")) from error


_ABSENT = (
    "Weights of the model{} are on the meta device: offloaded, or never loaded. Load the model "
    "with all of its weights in memory."
)


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
    if logits.is_meta:
        raise WhenceError(_ABSENT.format(""))
    if logits.dim() != 2 or logits.shape[0] != batch:
        raise WhenceError(
            f"Logits of shape (batch, classes) are needed, but the model gave "
            f"{tuple(logits.shape)} for {batch} input(s). Pick what to explain: "
            f"Explainer(model, output=lambda returned: ...)."
        )
    if guard.sees_values and not torch.isfinite(logits).all():
        raise WhenceError("The model gives NaN or infinite logits for these inputs.")
