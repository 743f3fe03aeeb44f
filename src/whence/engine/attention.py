"""The attention maps of a forward pass, with what their tokens stand for."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from whence.engine.request import Subject
from whence.inputs.arguments import ModelArguments
from whence.layout import Tokens, find_layout, find_tokens
from whence.tracing import record
from whence.tracing.dependence import find_fields, place_keys


@dataclass(frozen=True)
class AttentionMaps:
    """The attention of one forward pass.

    Attributes:
        maps: For each attention site, nearest the input first, (batch, heads, queries, keys).
        grid: Rows and columns of patches; None for text.
        prefix: How many tokens stand before the patches.
        tokens: The tokens and the words they belong to, where a tokenizer gives them.
    """

    maps: list[Tensor]
    grid: tuple[int, int] | None
    prefix: int
    tokens: Tokens | None


def read_attention(subject: Subject, arguments: ModelArguments) -> AttentionMaps:
    """Read the attention maps of a forward pass.

    Raises:
        WhenceError: The model has no attention that whence can follow.
    """
    at = arguments.args, arguments.kwargs, arguments.main_at
    trace = record(subject.model, *at, subject.output)
    main = arguments.main
    fields = find_fields(trace, place_keys(trace, trace.sites[0]), arguments.main_at, main.shape)
    layout = find_layout(subject.layout, main, fields)
    tokens = None if layout.grid else find_tokens(arguments.kwargs, main, subject.tokenizer)
    prefix = layout.prefix or 0
    # Shown as a picture if patches are the last tokens, in reading order.
    in_order = layout.units == (tuple(range(prefix, layout.tokens)),)
    sides = layout.grid if layout.grid is not None and len(layout.grid) == 2 else None
    grid = (sides[0], sides[1]) if sides is not None and in_order else None
    return AttentionMaps(trace.attention(), grid, prefix, tokens)
