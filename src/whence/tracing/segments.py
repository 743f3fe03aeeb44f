"""Segments: what the operations of a long forward pass keep, within a bound of memory.

Operations are cut into segments, in their order. What those of a complete segment keep is freed.
When one of them is read backward, the model runs again, up to the end of its segment, and the
operations of that segment keep again what they had. So a pass of n segments takes up to n more
forward passes, half as long on average, and never more memory than one segment and the stream.
"""

from __future__ import annotations

import weakref
from bisect import bisect_right
from collections.abc import Callable
from typing import TypeAlias

from torch import Tensor

from whence.tracing.ops.base import Operation


class SegmentComplete(Exception):  # noqa: N818  # it ends a run, and is no error
    """All operations of a segment have been computed again."""


class Refill:
    """Gives the operations of a segment what they keep, from those of another run.

    Args:
        operations: The operations of the segment, in their order.
    """

    def __init__(self, operations: list[Operation]) -> None:
        self._operations = operations
        self._first = operations[0].index
        self._taken = 0

    def take(self, computed: Operation) -> None:
        """Take what an operation keeps that was computed again.

        Raises:
            SegmentComplete: It was the last of the segment.
        """
        number = computed.index - self._first
        if number < 0:
            return
        self._operations[number].take_over(computed)
        self._taken = number + 1
        if self._taken == len(self._operations):
            raise SegmentComplete

    def preserve(self, overwritten: Tensor) -> None:
        """Copy what was taken of a tensor's memory before the model overwrites it."""
        for operation in self._operations[: self._taken]:
            operation.preserve(overwritten)


# The share of the bound that a segment may take at least, however much stays in memory.
_LEAST_SHARE = 1 / 4

RunAgain: TypeAlias = Callable[[Refill], object]


class Segments:
    """The segments of one recorded forward pass.

    Args:
        max_bytes: How many bytes outputs may take, those of a segment and those that always stay.

    Attributes:
        run_again: Runs the model again, and gives its operations to a `Refill`.
    """

    run_again: RunAgain

    def __init__(self, max_bytes: float) -> None:
        self._max_bytes = max_bytes
        self._starts = [0]
        self._operations: list[Operation] = []
        self._sizes: list[int] = []
        self._bytes = self._staying = 0
        self._filled = 0

    def add(self, operation: Operation, output_bytes: int) -> None:
        """Add an operation that was just recorded; what is before it may be freed."""
        if self._bytes and self._bytes + output_bytes > self._max_bytes:
            self._empty(self._filled)
            self._filled = len(self._starts)
            self._starts.append(len(self._operations))
            self._bytes = 0
        operation.segments = weakref.proxy(self)  # no cycle may hold activations back
        self._operations.append(operation)
        self._sizes.append(output_bytes)
        self._bytes += output_bytes
        self._staying += 0 if "output" in operation.activations else output_bytes

    def finish(self) -> None:
        """Cut the pass anew, now that it is known how much of it stays in memory all the time."""
        *_, last = self._starts
        room = max(self._max_bytes - self._staying, self._max_bytes * _LEAST_SHARE)
        starts, size = [0], 0
        for number, output_bytes in enumerate(self._sizes[:last]):
            if size and size + output_bytes > room:
                starts.append(number)
                size = 0
            size += output_bytes
        self._starts = [*starts, last] if last else [0]
        self._filled = len(self._starts) - 1

    def fetch(self, index: int) -> Operation:
        """An operation by its number, with all that it keeps in memory."""
        number = bisect_right(self._starts, index) - 1
        if number != self._filled:
            self._empty(self._filled)
            self._filled = number
            try:
                self.run_again(Refill(self._list(number)))
            except SegmentComplete:
                pass
            else:
                raise RuntimeError("The model computed something else when it was run again.")
        return self._operations[index]

    def _list(self, number: int) -> list[Operation]:
        return self._operations[slice(*(*self._starts, None)[number : number + 2])]

    def _empty(self, number: int) -> None:
        for operation in self._list(number):
            operation.set_aside()
