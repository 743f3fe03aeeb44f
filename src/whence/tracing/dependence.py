"""Dependence: which elements of the input each token stands for, by the graph upstream of it.

Marks of 0 and 1 walk backward from the values that an attention reads to the input.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node

from whence._util.torch_internals import output_metadata
from whence.layout.fields import TokenFields
from whence.tracing.flow.places import GROUPS, TokenIndex, TokenPlace
from whence.tracing.mark_walk import MarkWalk
from whence.tracing.marks import compact, mark_any
from whence.tracing.ops.attention import AttentionSite
from whence.tracing.recording import InputPlace, edge_of
from whence.tracing.trace import Trace

# So many elements may be marked at once, over all tokens, where each token has marks of its own.
_MARKS_AT_ONCE = 2**23


def place_keys(trace: Trace, site: AttentionSite) -> TokenPlace:
    """Where the keys of a site are, of all samples and heads alike."""
    edge = trace.entries[site.product.index].inputs[site.values_number]
    like = output_metadata(edge.node)[edge.output_nr]
    line = torch.arange(site.key_count, device=like.device)
    tokens = line.reshape([1] * (len(like.shape) - 2) + ([1, -1] if site.keys_first else [-1, 1]))
    return TokenPlace(edge, TokenIndex(torch.zeros_like(tokens), tokens, 1, site.key_count))


def find_fields(
    trace: Trace,
    place: TokenPlace,
    name: str | int,
    shape: Sequence[int],
    ends: Sequence[GradientEdge] = (),
    blocked: Collection[Node] = (),
) -> TokenFields:
    """Find the elements of an input that each token of a place stands for.

    Args:
        trace: The recorded forward pass.
        place: Where the tokens are.
        name: The input, one of those that the trace follows.
        shape: The shape of the input.
        ends: Places that marks go no further than.
        blocked: Nodes that marks do not pass.
    """
    reader = _FieldReader(trace, place, name, torch.Size(shape), ends, blocked)
    tokens, device = place.count, trace.logits.device
    for groups in GROUPS:
        fields = _find_disjoint(reader, tokens, groups, device)
        if fields is not None:
            return fields.expand(shape[1:])._replace(by_value=reader.by_value)
    each = torch.eye(tokens, dtype=torch.bool, device=device)
    at_once = max(1, _MARKS_AT_ONCE // max(1, torch.Size(shape).numel()))
    chunks = [
        TokenFields.from_masks(reader.mark(some)).cpu() for some in torch.split(each, at_once)
    ]
    fields = TokenFields.concatenate(chunks).expand(shape[1:])
    return fields._replace(by_value=reader.by_value)


def _find_disjoint(
    reader: _FieldReader, tokens: int, groups: int, device: torch.device
) -> TokenFields | None:
    """Find fields that do not overlap within groups of tokens; None if they do.

    A token is in the group of its number modulo the number of groups, so that neighbours, whose
    fields may overlap, are in different ones. In a group, the marks of an element are the number of
    its token in binary: two choices of tokens for each bit, in place of one for each token.
    """
    bits = max(1, (tokens - 1).bit_length())
    if groups > 1 and 2 * bits * groups >= tokens:
        return None
    powers, numbers = torch.arange(bits, device=device), torch.arange(tokens, device=device)
    has_bit = (numbers >> powers[:, None]) & 1 == 1
    found = []
    for group in range(groups):
        chosen = numbers % groups == group
        marks = reader.mark(torch.cat([has_bit & chosen, ~has_bit & chosen]))
        ones, zeros = marks[:bits], marks[bits:]
        if bool((ones & zeros).any()):
            return None
        weights = (2**powers).reshape(-1, *[1] * (marks.dim() - 1))
        owners = torch.where(ones[0] | zeros[0], (ones * weights).sum(0), -1)
        found.append(TokenFields.from_owners(owners, tokens).cpu())
    return TokenFields.add(found)


class _FieldReader:
    """Marks the elements of an input that tokens stand for."""

    def __init__(
        self,
        trace: Trace,
        place: TokenPlace,
        name: str | int,
        shape: torch.Size,
        ends: Sequence[GradientEdge],
        blocked: Collection[Node],
    ) -> None:
        self._place = place
        self._places = [place for place in trace.inputs if place.name == name]
        self._shape = shape
        self._walk = MarkWalk(trace)
        self._ends, self._blocked = ends, blocked

    @property
    def by_value(self) -> bool:
        """Whether marks went where values decide."""
        return self._walk.by_value

    @torch.no_grad()
    def mark(self, chosen: Tensor) -> Tensor:
        """Mark elements, (choices, batch, ...), given choices of tokens, (choices, tokens).

        A dimension of the input in which all elements have the same marks has a length of 1.
        """
        leaves = [edge_of(place.leaf) for place in self._places]
        with torch.inference_mode(False):
            found = self._walk.run(
                self._place.edge,
                self._place.make_seed(chosen),
                [*leaves, *self._ends],
                ends=True,
                blocked=self._blocked,
            )[: len(leaves)]
        places = zip(self._places, found, strict=True)
        every = [self._place_marks(place, one) for place, one in places if one is not None]
        if not every:
            return chosen.new_zeros(len(chosen), self._shape[0], *[1] * (len(self._shape) - 1))
        return every[0] if len(every) == 1 else torch.stack(every).any(0)

    def _place_marks(self, place: InputPlace, marks: Tensor) -> Tensor:
        """Marks at one place where the model reads the input, in the shape of the input."""
        if place.rows is None:
            batch = marks.shape[1]
            marks = compact(marks) > 0
            return marks.expand(-1, batch, *marks.shape[2:])
        by_row = mark_any(marks, *range(place.rows.dim() + 1, marks.dim())) > 0
        rows, by_row = place.rows.reshape(-1), by_row.reshape(len(marks), -1)
        known = rows >= 0
        whole = by_row.new_zeros(len(marks), self._shape.numel(), dtype=torch.int8)
        rows = rows[known].expand(len(marks), -1)
        whole = whole.scatter_reduce(1, rows, by_row[:, known].to(whole.dtype), "amax")
        return whole.reshape(len(marks), *self._shape) > 0
