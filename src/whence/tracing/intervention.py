"""Intervention: how a run of the model differs from the model's own forward pass."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from torch import Tensor

from whence.tracing.addresses import Address
from whence.tracing.ops.base import BackwardRules
from whence.tracing.refill import Refill


class Edit(NamedTuple):
    """A change of one operation's inputs, or of its output, while a model runs."""

    inputs: Callable[..., tuple[Tensor, ...]] | None = None
    output: Callable[[Tensor], Tensor] | None = None


@dataclass(frozen=True)
class Intervention:
    """How a run of the model differs from the model's own forward pass.

    Attributes:
        inputs: Pixels or embeddings to be used in place of the model's own, one for each place
            where it reads an input.
        edits: Changes of single operations, by their address.
        finds_addresses: Whether to find the addresses of all operations.
        rules: How values pass operations when others call autograd on this run.
        forward_only: Whether nothing will be read backward, so that nothing need be kept.
        keeps_after_edit: Whether nothing will be read backward upstream of the first edit, so that
            operations before it keep nothing.
        follow_constants: Whether projections of what does not depend on the input are recorded too,
            so that the self-attention of such a sequence can be read. Relevance then differs.
        of: Which explained input the pixels or embeddings are of, if there are several.
        refill: Gets what operations keep; the run may end before the model's output.
    """

    inputs: Sequence[Tensor] | None = None
    edits: Mapping[Address, Edit] = field(default_factory=dict)
    finds_addresses: bool = False
    rules: BackwardRules | None = None
    forward_only: bool = False
    keeps_after_edit: bool = False
    follow_constants: bool = False
    of: str | int | None = None
    refill: Refill | None = None

    def keeps_operations(self, edited: bool) -> bool:
        """Whether operations keep what can be read backward, given if one was edited so far."""
        return not self.forward_only and (edited or not self.keeps_after_edit)
