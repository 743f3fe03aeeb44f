"""Refill: what operations keep, taken from those of another run of the model, or of a block."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from torch import Tensor

from whence.tracing.block_calls import BlockCall, BlockDiffersError, differ, measure_rows
from whence.tracing.ops.base import Operation


class SegmentComplete(Exception):  # noqa: N818  # it ends a run, and is no error
    """All operations of a segment have been computed again."""


class Refill:
    """Gives the operations of a segment what they keep, from those of another run.

    Args:
        operations: The operations of the segment, in their order.
        call: The call of the block that they are in, if only that is made again.
        sizes: By number, the sizes of rows of what others of the block read, which are left out.

    Attributes:
        start: The number of the first operation that is computed again.
        differ: For each of these, whether it has other sizes.
    """

    def __init__(
        self,
        operations: list[Operation],
        call: BlockCall | None = None,
        sizes: Mapping[int, Tensor] = MappingProxyType({}),
    ) -> None:
        self._operations = operations
        self._call = call
        self._sizes = sizes
        self.differ: list[Tensor] = []
        self._taken = 0
        self._first = operations[0].index
        self.start = 0 if call is None else self._first

    def take(self, computed: Operation) -> None:
        """Take what an operation keeps that was computed again.

        Raises:
            SegmentComplete: It was the last, and what runs would go on.
            BlockDiffersError: It is another operation than the block has computed before.
        """
        number = computed.index - self._first
        if number < 0:
            return
        if self._call is not None:
            self._check_same(number, computed)
        self._operations[number].take_over(computed)
        self._taken = number + 1
        if number in self._sizes:
            output, sizes = computed.output, self._sizes[number]
            self.differ.append(differ((measure_rows(output) - sizes).abs(), sizes, output.dtype))
        if self.is_complete and (self._call is None or self._sizes):
            raise SegmentComplete

    def _check_same(self, number: int, computed: Operation) -> None:
        known = self._operations[number] if number < len(self._operations) else None
        if known is None or (type(known), known.name) != (type(computed), computed.name):
            raise BlockDiffersError
        before = getattr(known, "output", None)  # gone where all has been read of it
        output = computed.output
        if before is not None and (before.shape, before.dtype) != (output.shape, output.dtype):
            raise BlockDiffersError

    @property
    def is_of_block(self) -> bool:
        """Whether only the call of a block is made again."""
        return self._call is not None

    @property
    def is_complete(self) -> bool:
        """Whether all operations have what they keep."""
        return self._taken == len(self._operations)

    def preserve(self, overwritten: Tensor) -> None:
        """Copy what was taken of a tensor's memory before the model overwrites it."""
        for operation in self._operations[: self._taken]:
            operation.preserve(overwritten)
        if self._call is not None:
            self._call.preserve(overwritten)
