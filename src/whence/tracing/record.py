"""Record a forward pass of an unmodified model, by running a stand-in of it."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from whence.errors import TooLargeError, WhenceError
from whence.inputs.arguments import ArgumentKey, is_text
from whence.tracing.block_calls import BlockCall, find_repeated_modules
from whence.tracing.graph import find_structure
from whence.tracing.intervention import Intervention
from whence.tracing.logits import ABSENT_WEIGHTS, Logits, check_finite, check_logits, read_logits
from whence.tracing.modules import RecordedModules
from whence.tracing.ops.attention import AttentionSite, find_head_order
from whence.tracing.ops.guard import Guard
from whence.tracing.recorder import Recorder
from whence.tracing.recording import CHECKPOINT, Recording
from whence.tracing.refill import Refill, SegmentComplete
from whence.tracing.segments import Bounds
from whence.tracing.stand_in import copy_arguments, replicate, unwrap_model
from whence.tracing.trace import Trace
from whence.tracing.views import cut_at_text, make_views, select_view


def record(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    main: ArgumentKey | Sequence[ArgumentKey],
    output: Callable[[Any], Tensor] | None = None,
    intervention: Intervention | None = None,
    *,
    guard: Guard | None = None,
    max_bytes: float = math.inf,
    max_map_bytes: float = math.inf,
    max_segment_bytes: float = math.inf,
    max_block_bytes: float = math.inf,
    keeps_maps: bool = True,
    by_gradients: bool = False,
    needs_attention: bool = True,
    text: ArgumentKey | None = None,
    stand_in: nn.Module | None = None,
) -> Trace:
    """Run a model once and record it.

    Where a model switches gradients off for itself, what it computes there is a constant, as for
    autograd; but if that leaves logits that depend on nothing, the input is followed all the same.

    Args:
        model: Any module; it is not touched.
        args: Positional arguments of its forward.
        kwargs: Keyword arguments of its forward.
        main: Which argument is the input to explain, by position or name; or several, of which each
            has a view of the trace. The trace itself is that of the first.
        output: Gets the logits from what the model returns, if it is not obvious.
        intervention: How the run differs from the model's own forward pass.
        guard: Looks at values.
        max_bytes: How many bytes the operations may keep.
        max_map_bytes: Attention whose maps have more bytes than this is recorded without them, and
            can then be read site by site only.
        max_segment_bytes: How many bytes operations keep at a time; what is beyond is freed, and
            computed again when it is read.
        max_block_bytes: How many of them those in the blocks of the model keep, which can be called
            again one by one.
        keeps_maps: Whether attention keeps its maps where they are smaller.
        by_gradients: Whether nothing but gradients will be read backward, so that little has to be
            kept; all else can be read, but is computed again.
        needs_attention: Whether to refuse a model whose attention cannot be read; if not, the trace
            says what the problem is.
        text: Token ids that the model reads beside the explained input; see `Trace.at_text`.
        stand_in: The stand-in of the model to run, which is of no other use while the trace is
            read; one is made if left out.

    Raises:
        WhenceError: The model has no attention, or no logits that whence can follow.
        TooLargeError: The operations keep more than they may.
    """
    names = (main,) if isinstance(main, str | int) else tuple(main)
    for ignore_no_grad in (False, True):
        trace = _record(
            model,
            args,
            kwargs,
            names,
            output,
            intervention,
            Guard() if guard is None else guard,
            Bounds(
                *(max_bytes, max_map_bytes, max_segment_bytes, max_block_bytes),
                kept_map=None if keeps_maps else 0.0,
                by_gradients=by_gradients,
            ),
            ignore_no_grad,
            needs_attention,
            text,
            None if ignore_no_grad else stand_in,
        )
        if trace is not None:
            for name in names if needs_attention else ():
                view = select_view(trace, name)
                (view if view.at_text is None else view.at_text).require_attention()
            return trace
    raise WhenceError(
        "The logits do not depend on the input in a way that whence can follow. If the model looks "
        "its token ids up in a way of its own, pass embeddings (inputs_embeds) instead of ids."
    )


def _record(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    names: tuple[ArgumentKey, ...],
    output: Callable[[Any], Tensor] | None,
    intervention: Intervention | None,
    guard: Guard,
    bounds: Bounds,
    ignore_no_grad: bool,
    needs_attention: bool,
    text: ArgumentKey | None,
    stand_in: nn.Module | None = None,
) -> Trace | None:
    """Record a forward pass; None if the logits do not depend on the input."""
    asked, names = names, names if text is None or text in names else (*names, text)
    with torch.inference_mode(False), torch.enable_grad():
        stand_in = replicate(model) if stand_in is None else stand_in
        modules = RecordedModules.find(stand_in)
        module_names = {id(module): path for module, path in modules.paths.items()}
        given, named = copy_arguments(args, kwargs)
        holders: dict[ArgumentKey, Any] = {n: given if isinstance(n, int) else named for n in names}
        explained: dict[ArgumentKey, Tensor] = {n: holder[n] for n, holder in holders.items()}
        batch = len(explained[names[0]])
        blocks: list[nn.Module] = []
        if bounds.segment < math.inf and not guard.exact:
            blocks = find_repeated_modules(modules.paths)
            bounds = bounds.share_among(len(blocks))
        trace = Trace(batch, guard, intervention or Intervention(), module_names, bounds)
        trace.segments.block_count = len(blocks)
        ids = {name: x for name, x in explained.items() if not x.is_floating_point()}
        recorder = Recorder(trace, ids, ignore_no_grad)
        for name in explained.keys() - ids.keys():
            holders[name][name] = trace.follow(explained[name], name)
        try:
            with modules.record(trace, blocks), recorder, _explain_failures(stand_in):
                returned = stand_in(*given, **named)
                if output is not None:
                    logits = dict.fromkeys(names, Logits(output(returned)))
                else:
                    texts = {name: is_text(name, x) for name, x in explained.items()}
                    logits = {n: read_logits(returned, of_text) for n, of_text in texts.items()}
            for name, found in logits.items():
                check_logits(found.values, len(explained[name]))
            followed = {place.name for place in trace.inputs}
            if not all(logits[name].values.requires_grad and name in followed for name in asked):
                return None
            if not trace.sites:
                problem = _NO_ATTENTION.format(type(unwrap_model(model)).__name__)
                trace.attention_problem = problem
            rerecord = partial(
                record,
                *(model, args, kwargs, asked, output),
                guard=guard,
                needs_attention=needs_attention,
                text=text,
            )
            trace.finish(logits[names[0]], rerecord)
            trace.segments.finish()
            unbound = Bounds(map=bounds.map, kept_map=bounds.kept_map)
            trace.segments.call_again = partial(
                _call_again,
                *(batch, guard, modules, module_names, unbound, ignore_no_grad),
            )
            trace.segments.run_again = lambda refill: _record(
                *(model, args, kwargs, asked, output),
                Intervention(refill=refill, forward_only=True),
                guard,
                unbound,
                ignore_no_grad,
                needs_attention,
                text,
            )
            if len(names) > 1:
                trace.views = make_views(trace, logits)
            if intervention is None or intervention.follow_constants:
                for view in (select_view(trace, name) for name in names):
                    view.check_complete(view.logits)
                for name in asked:
                    view = select_view(trace, name)
                    if text is not None and name != text:
                        view.at_text = cut_at_text(view, select_view(trace, text))
                    for one in (view, view.at_text):
                        if one is not None and not one.attention_problem:
                            read = partial(_read_first_sample, one)
                            find_head_order(one.sites, one.batch, read, guard.look_at)
                if any(site.heads_first and site.output is not None for site in trace.sites):
                    # Their maps can be computed again for some samples only, not for some heads.
                    return rerecord(intervention, max_bytes=bounds.all)
                is_readable = bool(trace.sites) and not trace.attention_problem
                if needs_attention and trace.logits.is_cuda and len(names) == 1 and is_readable:
                    find_structure(trace)  # which will be asked for, while the GPU still computes
            for found in logits.values():
                check_finite(found.values, guard)
            return trace
        finally:
            trace.stop_recording()


def _call_again(
    batch: int,
    guard: Guard,
    modules: RecordedModules,
    module_names: Mapping[int, str],
    bounds: Bounds,
    ignore_no_grad: bool,
    call: BlockCall,
    refill: Refill,
) -> bool:
    """Call a block again for what its operations keep; tell whether it computed the same."""
    intervention = Intervention(refill=refill, forward_only=True)
    recording = Recording(batch, guard, intervention, module_names, bounds)
    own = modules.select(call.module)
    with torch.inference_mode(False), torch.enable_grad(), own.record(recording):
        try:
            differs = call.repeat(Recorder(recording, ignore_no_grad=ignore_no_grad))
        except SegmentComplete:
            differs = torch.stack(refill.differ).any()
        except (WhenceError, TooLargeError):
            raise
        except Exception:  # a module may fail in any way without the state that it had
            return False
        finally:
            recording.stop_recording()
    return not guard.shortcut_fails(differs)


def _read_first_sample(trace: Trace, site: AttentionSite) -> Tensor:
    return trace.read_sample([site.place])[0]


_NO_ATTENTION = (
    "No attention was seen in {} (softmax weights multiplied with values). If it hides attention "
    'in a kernel of its own (flash attention), load it with attn_implementation="sdpa" or "eager"; '
    "if a module of it computes the softmax in other calls, "
    "whence.register_operation(ItsClass, 'softmax') says so."
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
        raise WhenceError(ABSENT_WEIGHTS.format(f" ('{absent}' is one)")) from error
