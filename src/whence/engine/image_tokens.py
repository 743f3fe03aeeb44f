"""Image tokens: where a language model reads an image between its words, attention ends at them."""

from __future__ import annotations

from torch import Tensor

from whence.engine.layouts import find_request_layout
from whence.engine.request import Request
from whence.engine.targets import is_generative
from whence.inputs.arguments import ArgumentKey, is_text
from whence.tracing import Trace
from whence.tracing.graph import find_layers

_TEXT = "input_ids"


def find_text_beside(request: Request) -> ArgumentKey | None:
    """The text that a language model reads beside an explained image; None if there is none."""
    arguments = request.arguments
    ids = arguments.kwargs.get(_TEXT)
    if not isinstance(ids, Tensor) or ids.is_floating_point() or not is_generative(request.subject):
        return None
    tensors = arguments.named_tensors
    images = [name for name in arguments.explained_names if not is_text(name, tensors[name])]
    return _TEXT if images else None


def stop_at_image_tokens(request: Request, trace: Trace) -> Trace:
    """The trace whose attention is that of a language model alone, if a method can stop there.

    It can if the image's tokens stand between the words, and each is proven to stand for a part of
    the image. Methods that go to the input take the whole trace.
    """
    cut = trace.at_text
    if cut is None or not (request.method.scores_tokens or request.keep_evidence):
        return trace
    can_stop = not cut.attention_problem and not find_layers(cut)[0].is_cross
    if can_stop and not find_request_layout(request, cut).doubt:
        return cut
    trace.require_attention()
    return trace
