"""The eager run: record a forward pass, read the evidence that a method needs, call the method."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Collection, Sequence

import torch
from torch import Tensor, nn

from whence._util.collecting import hold_off_collection
from whence.engine import checks
from whence.engine.bounds import bound_segments, reads_maps
from whence.engine.image_tokens import find_text_beside, name_image_tokens, stop_at_image_tokens
from whence.engine.layouts import find_request_layout
from whence.engine.request import Request, Result, bound_forwards_bytes
from whence.engine.several_inputs import attend_to_each_other, split_inputs
from whence.engine.targets import leave_out_cache
from whence.errors import NoAttentionError, TooLargeError, WhenceError
from whence.evidence import Evidence, Forwards
from whence.evidence.kept import keep_evidence
from whence.inputs.arguments import find_missing_pair
from whence.layout import FoundLayout, Tokens
from whence.methods import registry
from whence.targets import AskedClasses, ClassScalars, ReadScalars, Scalars
from whence.tracing import Trace, record, unwrap_model
from whence.tracing.flow.binding import bind_flow
from whence.tracing.flow.flow import TokenFlow
from whence.tracing.graph.targets import split_targets
from whence.tracing.ops.guard import Guard
from whence.tracing.views import select_view

# Targets are explained together, in groups that keep samples x targets to about this number.
_MAPS_AT_ONCE = 64
# The share of the memory that seeds of a backward pass may take.
_SHARE_OF_SEEDS = 1 / 8
_DIFFERENT_LAYERS = (
    "These targets depend on different layers of the model, so that their evidence has different "
    "shapes: explain them one by one to keep it."
)
_KEPT = ("attention", "relevance")


def run_eagerly(request: Request, max_bytes: float, max_map_bytes: float) -> Result:
    """Explain some samples, with the shortcuts of rules unless these turn out to be too coarse.

    Args:
        request: What to explain.
        max_bytes: How many bytes the recorded operations may keep.
        max_map_bytes: Attention with larger maps is recorded without them.

    Raises:
        TooLargeError: The operations keep more than they may.
        WhenceError: The request cannot be met.
    """
    subject = request.subject
    # A method of many passes runs for long, and the model may leave garbage in each of them.
    is_long = "forwards" in request.method.needs
    held_off = contextlib.nullcontext() if is_long else hold_off_collection()
    with held_off, subject.stand_ins.borrow(subject.model) as stand_in:
        return _run_stand_in(request, max_bytes, max_map_bytes, stand_in)


def _run_stand_in(
    request: Request, max_bytes: float, max_map_bytes: float, stand_in: nn.Module
) -> Result:
    for exact in (False, True):
        guard = Guard(exact)
        bounds = bound_segments(request) if max_bytes == math.inf else (math.inf, math.inf)
        trace = record_request(
            request, guard, max_bytes, max_map_bytes, *bounds, None if exact else stand_in
        )
        explained = request.arguments.explained_names
        if attend_to_each_other(request, trace):
            apart = [run_eagerly(one, max_bytes, max_map_bytes) for one in split_inputs(request)]
            return apart[0]._replace(others=tuple(apart[1:]))
        results: list[Result] = []
        for name in explained:
            asked = request.focus(name)
            view = stop_at_image_tokens(asked, select_view(trace, name))
            parts = split_by_layers(asked, view, resolve_targets(asked, view))
            if parts is None:
                return _run_one_by_one(request, max_bytes, max_map_bytes)
            result = score(asked, parts, release=name == explained[-1])
            figures = dict(result.figures)
            if request.verify:
                figures |= checks.measure_logits(asked, view.logits.detach())
            tokens = match_tokens(asked, result.layout)
            results.append(result._replace(tokens=tokens, figures=figures))
        failure, sample_bytes = guard.any_failure(), trace.kept_bytes / request.batch
        # Thousands of objects are freed while a GPU still computes, which is waited for next.
        del trace, view, parts
        if failure is None or not bool(failure):
            break
    for result in results:
        if not torch.isfinite(result.scores).all():
            raise WhenceError(
                f"Method '{request.method_name}' computed NaN or infinite scores: numbers grew "
                f"beyond what {result.scores.dtype} holds. Explain a copy of the model in a wider "
                f"type, model.double()."
            )
    return results[0]._replace(sample_bytes=sample_bytes, others=tuple(results[1:]))


def resolve_targets(request: Request, trace: Trace) -> Scalars:
    """What is explained of the main input, given the output of the model."""
    outputs, subject, asked = trace.logits.detach(), request.subject, request.asked
    if isinstance(asked, AskedClasses):
        names = request.name_columns(trace.columns, outputs.shape[1])
        return asked.resolve(outputs, names, subject.multi_label)
    if request.readout is None:
        raise RuntimeError("These targets are read in what the model returns.")
    return asked.resolve(request.readout, outputs)


def _run_one_by_one(request: Request, max_bytes: float, max_map_bytes: float) -> Result:
    """Explain samples whose targets depend on different parts of the model."""
    if request.keep_evidence:
        raise WhenceError(_DIFFERENT_LAYERS)
    cuttable = request.make_cuttable()
    if cuttable is None:
        raise WhenceError(
            "The targets of these samples depend on different layers of the model, and it is not "
            "proven that samples do not depend on each other: explain them one by one."
        )
    every = (cuttable.select_rows(slice(n, n + 1)) for n in range(request.batch))
    return Result.concatenate([run_eagerly(one, max_bytes, max_map_bytes) for one in every])


def split_by_layers(
    request: Request, trace: Trace, targets: Scalars
) -> list[tuple[Trace, Scalars]] | None:
    """Targets with the trace of what they depend on; None if that differs between samples.

    A method that is not class-specific goes by what the predicted class depends on.
    """
    outputs = trace.logits.detach()
    if request.method.class_specific or not isinstance(targets, ClassScalars):
        # A logit less the mean of all depends on what any of them does.
        centered = request.method.centers_logits and trace.columns is None
        parts = split_targets(
            trace, targets.count, lambda: targets.make_seeds(outputs, centered=centered)
        )
        if parts is not None and len(parts) > 1 and request.keep_evidence:
            raise WhenceError(_DIFFERENT_LAYERS)
        return None if parts is None else [(one, targets.select(some)) for one, some in parts]
    parts = split_targets(trace, 1, lambda: targets.make_common_seeds(outputs))
    return None if parts is None else [(parts[0][0], targets)]


def record_request(
    request: Request,
    guard: Guard,
    max_bytes: float,
    max_map_bytes: float,
    max_segment_bytes: float = math.inf,
    max_block_bytes: float = math.inf,
    stand_in: nn.Module | None = None,
) -> Trace:
    """Record the model's forward pass."""
    subject, arguments = request.subject, request.arguments
    try:
        return record(
            subject.model,
            arguments.args,
            {**arguments.kwargs, **leave_out_cache(request)},
            arguments.explained_names,
            request.output,
            guard=guard,
            max_bytes=max_bytes,
            max_map_bytes=max_map_bytes,
            max_segment_bytes=max_segment_bytes,
            max_block_bytes=max_block_bytes,
            keeps_maps=max_map_bytes == math.inf or reads_maps(request),
            by_gradients=request.reads_gradients_alone,
            needs_attention=request.method.scores_tokens or request.keep_evidence,
            text=find_text_beside(request),
            stand_in=stand_in,
        )
    except NoAttentionError as error:
        others = registry.list_at_input("image" if arguments.main.dim() > 3 else "text")
        raise NoAttentionError(
            f"{error} Method '{request.method_name}' reads attention; these methods read only the "
            f"input: {', '.join(others)}."
        ) from None
    except (WhenceError, TooLargeError):
        raise
    except Exception as error:
        missing = find_missing_pair(unwrap_model(subject.model), arguments.kwargs)
        if missing is not None:
            raise WhenceError(missing) from error
        main = arguments.main
        if main.is_floating_point() and main.dim() == 3:
            raise WhenceError(
                f"The model failed on an input of shape {tuple(main.shape)}: {error}. If that is "
                f"one image, add the batch dimension: inputs[None]."
            ) from error
        raise


def score(
    request: Request,
    parts: list[tuple[Trace, Scalars]],
    special: Tensor | None = None,
    release: bool = True,
    known: FoundLayout | None = None,
) -> Result:
    """Call the method with the evidence that it needs, some targets at a time.

    Args:
        request: What to explain.
        parts: Targets, and the trace of what they depend on.
        special: (batch, units), tokens of no word; those of the request if left out.
        release: Whether the trace is of no more use afterwards.
        known: Which part of the input each token stands for; found if left out.
    """
    method = request.method
    needs = {*method.needs, *(_KEPT if request.keep_evidence else ())}
    special = request.special if special is None else special
    scores, details, kept, layouts, figures = [], [], [], [], []
    for trace, targets in parts:
        layout = find_request_layout(request, trace) if known is None else known
        if known is not None and isinstance(known.flow, TokenFlow):
            bind_flow(trace, known.flow)
        checks.check_modality(request, layout)
        layouts.append(layout)
        groups = targets.split(_count_targets_at_once(request, needs, targets, trace.logits))
        for group in groups:
            last = release and trace is parts[-1][0] and group is groups[-1]
            found = _make_evidence(request, trace, group, layout, needs, special, release=last)
            measured = checks.measure_trace(request, found) if trace.guard.sees_values else {}
            if last and needs == {"forwards"}:
                _ = found.forwards  # which learns from the trace how many rows fit into memory
                _release(trace)
            of_tokens = method(found)
            measured |= checks.measure_scores(request, found, of_tokens)
            figures.append(measured)
            scores.append(_to_units(of_tokens, found, method.scores_tokens))
            details.append(found.details)
            if request.keep_evidence:
                kept.append(found)
    if len({one.shape[-1] for one in scores}) > 1:
        raise WhenceError(
            "These targets depend on different sequences of tokens; explain them one by one."
        )
    by_sample = zip(*details, strict=True)
    result = Result(
        scores=torch.cat(scores, 1),
        classes=torch.cat([targets.indices for _, targets in parts], 1),
        logits=parts[0][0].logits.detach(),
        layout=layouts[0],
        columns=parts[0][0].columns,
        details=[[one for part in parts for one in part] for parts in by_sample],
        evidence=keep_evidence(kept, one_target=request.asked.is_one) if kept else None,
        figures=checks.merge(figures),
    )
    return _describe_targets(result, [targets for _, targets in parts], request.asked.is_one)


def _describe_targets(result: Result, parts: Sequence[Scalars], is_one: bool) -> Result:
    """The result with what its targets are, where they are no classes."""
    outputs = result.logits
    read = [targets for targets in parts if isinstance(targets, ReadScalars)]
    if not read:
        return result
    targets = ReadScalars(read[0].readout, [one for part in read for one in part.contrasts])
    logits = targets.read_logits(outputs)
    samples = torch.arange(len(outputs), device=outputs.device)
    return result._replace(
        logits=logits[:, 0] if is_one and logits.dim() > 2 else logits,
        target_names=targets.names,
        areas=targets.areas,
        probabilities=targets.read_probabilities(outputs),
        values=targets.values(outputs, samples).T,
    )


def match_tokens(request: Request, layout: FoundLayout) -> Tokens | None:
    """The tokens of a text, if the units are these."""
    tokens = request.tokens
    if tokens is None or layout.grid is not None or layout.doubt:
        return None
    if len(tokens.strings[0]) != layout.unit_count:
        return None
    return name_image_tokens(request, layout, tokens)


def _make_evidence(
    request: Request,
    trace: Trace,
    targets: Scalars,
    layout: FoundLayout,
    needs: Collection[str],
    special: Tensor | None,
    release: bool,
) -> Evidence:
    method, subject, arguments = request.method, request.subject, request.arguments
    return Evidence(
        trace,
        targets,
        layout,
        needs,
        request.rules,
        gradient_rules=method.gradient_rules,
        # What is compared with texts has nothing of their padding.
        padding=None if trace.columns == "text" else arguments.padding,
        special=special,
        class_specific=method.class_specific,
        centered=method.centers_logits,
        first_layer=0 if request.keep_evidence else method.first_layer,
        streamed=method.streamed and not request.keep_evidence,
        release=release,
        make_forwards=lambda: Forwards(
            subject.model,
            arguments,
            request.output,
            trace,
            bound_forwards_bytes(arguments.main.device, request.memory),
            subject.rows,
            find_text_beside(request),
        ),
    )


def _release(trace: Trace) -> None:
    """Free what was recorded, when nothing will be read of it any more."""
    for entry in trace.entries:
        entry.operation.release()
    for site in trace.sites:
        site.release()


def _count_targets_at_once(
    request: Request, needs: Collection[str], targets: Scalars, outputs: Tensor
) -> int:
    """All of them, unless readings of each would fill the memory."""
    # Methods of many passes that have an option for gradients read them by themselves.
    has_classes = hasattr(request.method, "gradients") or any(
        "gradient" in kind or "relevance" in kind for kind in needs
    )
    if isinstance(targets, ClassScalars) and not has_classes:
        return targets.count
    # Seeds are as large as all that targets read: many rows of a vocabulary.
    fitting = request.max_bytes * _SHARE_OF_SEEDS / (outputs.nbytes or 1)
    return max(1, min(_MAPS_AT_ONCE // request.batch, int(fitting)))


def _to_units(scores: Tensor, evidence: Evidence, scores_tokens: bool) -> Tensor:
    """Scores of tokens, (classes, batch, tokens), as those of units, (batch, classes, units)."""
    layout = evidence.layout
    if scores.shape[-1] == layout.tokens:
        padding = layout.mark_padding(evidence.padding, evidence.batch, absent=scores_tokens)
        if padding is not None:
            scores = scores.masked_fill(padding.to(scores.device), 0)
        scores = layout.to_units(scores)
    return scores.movedim(0, 1)
