"""The layout of a request: found from what tokens depend on, once for inputs of one kind."""

from __future__ import annotations

from collections.abc import Hashable

from torch import Tensor

from whence.engine.request import Request
from whence.errors import WhenceError
from whence.layout import FoundLayout, divide_input, find_layout
from whence.tracing import Trace
from whence.tracing.dependence import find_fields

# So many layouts are kept, and no key is made of more bytes than this.
_MAX_LAYOUTS, _MAX_BYTES = 256, 2**20


def find_request_layout(request: Request, trace: Trace) -> FoundLayout:
    """Find which part of the explained input each token stands for.

    What a token depends on may be decided by shapes and by whole numbers (token ids, masks), not by
    the values of pixels: with the same ones the layout is the same.
    """
    key = _make_key(request, trace)
    known = request.subject.layouts
    layout = None if key is None else known.get(key)
    if layout is None:
        layout = _find_layout(request, trace)
        if key is not None:
            while len(known) >= _MAX_LAYOUTS:
                known.pop(next(iter(known)), None)
            known[key] = layout
    return layout


def _find_layout(request: Request, trace: Trace) -> FoundLayout:
    given, arguments = request.subject.layout, request.arguments
    needs_attention = request.method.scores_tokens
    if not trace.sites and needs_attention:
        raise WhenceError(
            "The explained class does not depend on any attention, which this method needs. "
            "Methods that need only the input, such as 'input_x_gradient', may explain it."
        )
    layout = None
    if trace.sites and not trace.attention_problem:
        fields = find_fields(trace, trace.sites[0], arguments.main_at, arguments.main.shape)
        layout = find_layout(given, arguments.main, fields)
    if layout is None or (layout.doubt and not needs_attention):
        return divide_input(given, arguments.main)
    return layout


def _make_key(request: Request, trace: Trace) -> Hashable | None:
    tensors = request.arguments.tensors
    whole = [x for x in tensors if not x.is_floating_point()]
    if sum(x.nbytes for x in whole) > _MAX_BYTES:
        return None
    shapes = tuple((tuple(x.shape), x.dtype) for x in tensors)
    maps = tuple((site.product.index, *site.weights.shape) for site in trace.sites[:1])
    needs = request.method.scores_tokens
    return request.arguments.main_at, shapes, maps, needs, tuple(map(_read_bytes, whole))


def _read_bytes(tensor: Tensor) -> bytes:
    return tensor.detach().cpu().contiguous().numpy().tobytes()
