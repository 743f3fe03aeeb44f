"""Image tokens: where a language model reads an image between its words, attention ends at them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from torch import Tensor

from whence.engine.layouts import find_request_layout, has_image_tokens
from whence.engine.request import Request
from whence.engine.targets import is_generative
from whence.inputs.arguments import ArgumentKey, is_text
from whence.layout import FoundLayout, Tokens
from whence.tracing import Trace

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


def name_image_tokens(request: Request, layout: FoundLayout, tokens: Tokens) -> Tokens:
    """Tokens of a text, of which those that only keep the place of an image are no words.

    Nothing depends on their ids: an image stands there. They are named after it.
    """
    arguments = request.arguments
    images = [name for name, x in arguments.named_tensors.items() if not is_text(name, x)]
    if not images or arguments.main_at != _TEXT or not is_generative(request.subject):
        return tokens
    strings, words, offsets = [], [], []
    for sample, row in enumerate(tokens.strings):
        units = layout.units[sample if len(layout.units) > 1 else 0]
        names = _name_images([unit < 0 for unit in units])
        strings.append([name or token for name, token in zip(names, row, strict=True)])
        of_words = zip(names, tokens.words[sample], strict=True)
        words.append([word if name is None else None for name, word in of_words])
        if tokens.offsets:
            places = zip(names, tokens.offsets[sample], strict=True)
            offsets.append([place if name is None else None for name, place in places])
    return dataclasses.replace(tokens, strings=strings, words=words, offsets=offsets)


def _name_images(is_image: Sequence[bool]) -> list[str | None]:
    """For each token, the name of the image that it is part of: runs of tokens are images."""
    names: list[str | None] = []
    number, before = 0, False
    for is_part in is_image:
        number += is_part and not before
        names.append(f"image {number}" if is_part else None)
        before = is_part
    return names


def stop_at_image_tokens(request: Request, trace: Trace) -> Trace:
    """The trace whose attention is that of a language model alone, if a method can stop there.

    It can if the image's tokens stand between the words, and each is proven to stand for a part of
    the image. Methods that go to the input take the whole trace.
    """
    cut = trace.at_text
    if cut is None or not (request.method.scores_tokens or request.keep_evidence):
        return trace
    if has_image_tokens(cut) and not find_request_layout(request, cut).doubt:
        return cut
    trace.require_attention()
    return trace
