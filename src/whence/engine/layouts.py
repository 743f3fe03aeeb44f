"""The layout of a request: found from what tokens depend on, once for inputs of one kind."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable
from typing import TypeGuard

from torch import Tensor

from whence.engine.request import Request
from whence.errors import WhenceError
from whence.inputs.arguments import is_plain
from whence.layout import FoundLayout, divide_input, find_layout
from whence.tracing import Trace
from whence.tracing.dependence import find_fields, place_keys
from whence.tracing.fingerprint import make_fingerprint
from whence.tracing.flow.binding import bind_flow, needs_flow
from whence.tracing.flow.finding import find_flow
from whence.tracing.flow.flow import TokenFlow
from whence.tracing.graph import find_layers

# So many layouts are kept, and no key is made of more bytes than this.
_MAX_LAYOUTS, _MAX_BYTES = 256, 2**20


def find_request_layout(request: Request, trace: Trace) -> FoundLayout:
    """Find which part of the explained input each token stands for, and bind the flow of tokens.

    What a token depends on may be decided by shapes, by whole numbers (token ids, masks), by other
    arguments and by what the model computes for the target: with the same ones the layout is the
    same. Where an index or a mask decides whose values may differ, it is found each time.
    """
    key = _make_key(request, trace)
    known = request.subject.layouts
    layout = None if key is None else known.get(key)
    if layout is None:
        layout = _find_layout(request, trace)
        if key is not None and not trace.flow_problem and not layout.by_value:
            while len(known) >= _MAX_LAYOUTS:
                known.pop(next(iter(known)), None)
            known[key] = layout
    elif isinstance(layout.flow, TokenFlow):
        bind_flow(trace, layout.flow)
    return layout


def has_image_tokens(cut: Trace | None) -> TypeGuard[Trace]:
    """Whether a language model has image tokens between its words, given its part of a trace.

    It has none if it reads images by attention to another sequence.
    """
    return cut is not None and not cut.attention_problem and not find_layers(cut)[0].is_cross


def _find_layout(request: Request, trace: Trace) -> FoundLayout:
    given, arguments = request.subject.layout, request.arguments
    needs_attention = request.method.scores_tokens
    if not trace.sites and needs_attention:
        raise WhenceError(
            "The explained class does not depend on any attention, which this method needs. "
            "Methods that need only the input, such as 'input_x_gradient', may explain it."
        )
    layout = None
    if has_image_tokens(trace.at_text):
        # Image tokens of a language model stand for the same parts of images for every method.
        at_text = _find_token_layout(request, trace.at_text)
        if at_text is not None and not at_text.doubt:
            layout = dataclasses.replace(at_text, flow=None)
    if layout is None and trace.sites and not trace.attention_problem:
        layout = _find_token_layout(request, trace)
    if layout is None or (layout.doubt and not needs_attention):
        return divide_input(given, arguments.main)
    if layout.doubt:
        _check_sampling(trace)
    return layout


def _check_sampling(trace: Trace) -> None:
    """Refuse tokens that sample the input at computed points, and are known to stand for no part.

    Raises:
        WhenceError: They do, as the queries of deformable attention.
    """
    if any(getattr(entry.operation, "name", "") == "grid_sample" for entry in trace.entries):
        raise WhenceError(
            "The target reads the input by deformable attention, at points that the model "
            "computes. That has no map over tokens, and the attention maps that there are do not "
            "lead to the input. Methods at the input, such as 'input_x_gradient' and 'attnlrp', "
            "work."
        )


def _find_token_layout(request: Request, trace: Trace) -> FoundLayout | None:
    """The layout of the tokens of the input; None if a method at the input can do without."""
    given, arguments = request.subject.layout, request.arguments
    name, main = arguments.main_at, arguments.main
    if needs_flow(trace):
        try:
            flow = find_flow(trace, name, main.shape)
        except WhenceError as error:
            if request.method.scores_tokens and any(site.problem for site in trace.sites):
                raise
            trace.flow_problem = str(error)
        else:
            bind_flow(trace, flow)
            return dataclasses.replace(find_layout(given, main, flow.fields), flow=flow)
    if any(site.problem for site in trace.sites):
        return None
    fields = find_fields(trace, place_keys(trace, trace.sites[0]), name, main.shape)
    return find_layout(given, main, fields)


def _make_key(request: Request, trace: Trace) -> Hashable | None:
    arguments = request.arguments
    tensors = arguments.tensors
    whole = [x for x in tensors if not x.is_floating_point()]
    others = arguments.others
    if sum(x.nbytes for x in whole) > _MAX_BYTES or not is_plain(others):
        return None
    shapes = tuple((tuple(x.shape), x.dtype) for x in tensors)
    maps = tuple((site.product.index, *site.weights.shape) for site in trace.sites)
    needs = request.method.scores_tokens
    values = tuple(map(_read_bytes, whole))
    computed = make_fingerprint(trace)  # which depends on the target, too
    return arguments.main_at, shapes, repr(others), maps, needs, values, computed


def _read_bytes(tensor: Tensor) -> bytes:
    return tensor.detach().cpu().contiguous().numpy().tobytes()
