"""Segments: what the operations of a long forward pass keep, within a bound of memory.

Operations are cut into segments, in their order: the calls of the model's blocks, and what lies
between them. What operations of a segment keep is freed where memory is short. When one of them is
read backward, the operations of its segment keep again what they had. A block is called again for
that, with the arguments that it had. So a pass backward takes one more forward pass in all, and the
memory of one block and of what enters all of them.

For operations outside of blocks, the model runs again up to the end of the segment. A pass of n
such segments takes up to n more forward passes, half as long on average.
"""

from __future__ import annotations

import math
import weakref
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeAlias

from torch import Tensor
from torch.autograd.graph import GradientEdge, Node

from whence.tracing.block_calls import BlockCall, measure_rows
from whence.tracing.cheap_values import CheapValues, list_activations
from whence.tracing.ops.base import ActivationSource, Operation, shares_memory
from whence.tracing.refill import Refill, SegmentComplete

# The share of the bound that a segment may take at least, however much stays in memory.
_LEAST_SHARE = 1 / 4
# So many blocks may keep maps as large as those that are in memory together elsewhere.
_BLOCKS_WITH_MAPS = 4


class Bounds(NamedTuple):
    """How many bytes a recorded forward pass may keep.

    Attributes:
        all: All operations; more is an error.
        map: Maps of one attention that are in memory together.
        segment: Operations at a time; what is beyond is freed, and computed again when it is read.
        block: The same for operations of blocks, which are computed again by themselves.
        kept_map: The maps of an attention that keeps them; None if it is the bound of all maps.
        by_gradients: Whether nothing but gradients is read backward: blocks then keep no more than
            what these read.
    """

    all: float = math.inf
    map: float = math.inf
    segment: float = math.inf
    block: float = math.inf
    kept_map: float | None = None
    by_gradients: bool = False

    @property
    def makes_maps(self) -> bool:
        """Whether maps are made where they are small enough; if not, the path is one for all."""
        return self.kept_map != 0

    def share_among(self, blocks: int) -> Bounds:
        """The same bounds, with maps kept only where those of all blocks can be."""
        share = min(1.0, _BLOCKS_WITH_MAPS / max(1, blocks))
        largest = math.inf if self.kept_map is None else self.kept_map
        return self._replace(kept_map=min(self.map * share, largest))


RunAgain: TypeAlias = Callable[[Refill], object]
CallAgain: TypeAlias = Callable[[BlockCall, Refill], bool]


def find_nearest(nodes: Iterable[Node | None]) -> list[Operation]:
    """The operations of some nodes of the graph, or nearest upstream of them through routing."""
    waiting, seen, found = list(nodes), set[Node](), list[Operation]()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        operation: Operation | None = getattr(node, "operation", None)
        if operation is not None:
            found.append(operation)
        else:
            waiting += [upstream for upstream, _ in node.next_functions]
    return found


class _Segment:
    """Neighbouring operations that are freed, and computed again, together.

    Attributes:
        start: The number of the first.
        operations: The operations.
        sizes: How many bytes their outputs have.
        bytes: How many they have in all.
        nodes: Their nodes in the graph, while the block runs.
        call: The call of the block that they are in, if they are in one.
        is_kept: Whether they have what they keep.
        read: How many of them have to be computed again for gradients.
        row_sizes: By number, the sizes of rows of what the others read; empty if there are none.
        cheap: Those of its values that are cheap to compute from the others.
    """

    read = 0
    cheap: CheapValues | None = None

    def __init__(self, start: int, call: BlockCall | None = None) -> None:
        self.start = start
        self.operations: list[Operation] = []
        self.sizes: list[int] = []
        self.nodes: list[Node | None] = []
        self.row_sizes: dict[int, Tensor] = {}
        self.bytes = 0
        self.call = call
        self.is_kept = True
        self.is_whole = True

    def finish_block(self, output: Tensor, measures: bool) -> None:
        """Find what has to be kept to compute a block again.

        Args:
            output: Its output.
            measures: Whether to keep sizes of rows, so that less of it has to be computed again.
        """
        for operation in self.operations:
            operation.keeps_output = shares_memory(operation.output, output)
        if not measures:
            self.nodes.clear()
            return
        count = len(self.operations)
        reading = (n for n in range(count, 0, -1) if not _is_linear(self.operations[n - 1]))
        self.read = next(reading, count)
        after = [node for node in self.nodes[self.read :] if node is not None]
        read = (upstream for node in after for upstream, _ in node.next_functions)
        for operation in find_nearest(node for node in read if node is not None):
            number = operation.index - self.start
            if 0 <= number < self.read and operation.output.is_floating_point():
                self.row_sizes[number] = measure_rows(operation.output)
        self.nodes.clear()

    def add(self, operation: Operation, output_bytes: int, node: Node | None = None) -> None:
        """Add an operation at the end."""
        self.operations.append(operation)
        self.nodes.append(node)
        self.sizes.append(output_bytes)
        self.bytes += output_bytes

    def set_aside_unread(self) -> None:
        """Free what gradients do not read of the operations of a block."""
        for operation in self.operations:
            operation.set_aside(with_sums=True, unread=True)
        self.is_whole = False

    def free_cheap(self, call: BlockCall) -> None:
        """Free what is cheap to compute again, and measure what is kept beside the arguments."""
        self.cheap = CheapValues(self.operations)
        self.cheap.free()
        entering = (value for _, value in call.inputs)
        self.bytes = _measure_bytes(self.operations, entering) + self.cheap.shared_bytes

    def set_aside(self) -> None:
        """Free what the operations keep; outside of blocks, sums stay."""
        self.is_kept, self.cheap = False, None
        for operation in self.operations:
            operation.set_aside(with_sums=self.call is not None)


def _is_linear(operation: Operation) -> bool:
    """Whether an operation is a linear map or a sum, whose gradient is not decided by values."""
    return operation.kind in ("linear", "add") and operation.read_by_gradient == ()


def _measure_bytes(operations: Iterable[Operation], beside: Iterable[Tensor]) -> int:
    """How many bytes operations keep beside some tensors; what several of them keep counts once."""
    sizes: dict[int, int] = {}
    for operation in operations:
        for _, _, value in list_activations(operation):
            storage = value.untyped_storage()
            sizes[storage.data_ptr()] = storage.nbytes()
    for value in beside:
        sizes.pop(value.untyped_storage().data_ptr(), None)
    return sum(sizes.values())


class Segments:
    """The segments of one recorded forward pass.

    Args:
        max_bytes: How many bytes outputs may take, those of a segment and those that always stay.
        max_block_bytes: How many of them may be of blocks that can be called again.
        by_gradients: Whether nothing but gradients is read backward.

    Attributes:
        run_again: Runs the model again, and gives its operations to a `Refill`.
        call_again: Calls a block again, and gives its operations to a `Refill`; tells whether it
            computed the same.
        in_block: Whether a block is running whose operations are one segment.
        block_count: How many blocks the model has.
    """

    run_again: RunAgain
    call_again: CallAgain

    def __init__(
        self, max_bytes: float, max_block_bytes: float = math.inf, by_gradients: bool = False
    ) -> None:
        self._max_bytes = max_bytes
        self._by_gradients = by_gradients
        self._max_block_bytes = max_block_bytes
        self._segments: list[_Segment] = []
        self._count = self._staying = self._kept_bytes = self._block_bytes = 0
        self._fetched: _Segment | None = None
        self._restored: _Segment | None = None
        self._proxy: ActivationSource = weakref.proxy(self)  # no cycle may hold activations back
        self._largest_block = self._largest_kept = 0
        self.in_block = False
        self.block_count = 0

    @property
    def has_freed(self) -> bool:
        """Whether something was freed."""
        return any(not (one.is_kept and one.is_whole) or one.cheap for one in self._segments)

    # While recording -----------------------------------------------------------------------------

    @property
    def may_free_blocks(self) -> bool:
        """Whether all blocks may be too large together, by the largest one so far."""
        return self._may_free(self._largest_block)

    def _may_free(self, largest: float) -> bool:
        """Whether all blocks may be too large together, if the largest is so large, or unknown."""
        expected = largest * self.block_count
        return not expected or expected > min(self._max_bytes, self._max_block_bytes)

    def note_block(self, size: int) -> None:
        """Note how many bytes the operations of a block have put out."""
        self._largest_block = max(self._largest_block, size)

    @contextmanager
    def record_block(self, call: BlockCall) -> Iterator[Callable[[Any], None]]:
        """While entered, operations are those of a block; gives what takes its output."""
        own = self._begin(call)
        self.in_block = True
        try:
            yield lambda returned: self._finish_block(own, call, returned)
        finally:
            self.in_block = False
            self._begin(None)

    def _finish_block(self, own: _Segment, call: BlockCall, returned: Any) -> None:
        self.note_block(own.bytes)
        output = call.finish(returned)
        if output is None or not call.can_repeat:
            own.call = None
            self._block_bytes -= own.bytes
            return
        own.finish_block(output, self._may_free(self._largest_kept))
        if self.may_free_blocks:
            before = own.bytes
            if self._by_gradients:
                own.set_aside_unread()
            own.free_cheap(call)
            self._kept_bytes += own.bytes - before
            self._block_bytes += own.bytes - before
            self._largest_kept = max(self._largest_kept, own.bytes)
        if self._block_bytes > self._max_block_bytes:
            self._make_room(own)

    def _begin(self, call: BlockCall | None) -> _Segment:
        if self._segments and not self._segments[-1].operations:
            self._segments.pop()
        self._segments.append(_Segment(self._count, call))
        return self._segments[-1]

    def add(self, operation: Operation, output_bytes: int, node: Node | None = None) -> None:
        """Add an operation that was just recorded; what is before it may be freed.

        Args:
            operation: The operation.
            output_bytes: How many bytes its output has.
            node: Its node in the graph.
        """
        own = self._segments[-1] if self._segments else self._begin(None)
        if not self.in_block and own.bytes and own.bytes + output_bytes > self._max_bytes:
            own = self._begin(None)
        operation.segments = self._proxy
        own.add(operation, output_bytes, node if self.in_block else None)
        self._count += 1
        self._kept_bytes += output_bytes
        # The last block is read first, so that nothing after it frees it but want of memory.
        if own.call is not None:
            self._block_bytes += output_bytes  # what of it will stay is known at its end
        elif "output" not in operation.activations:
            self._staying += output_bytes
        if self._kept_bytes > self._max_bytes:
            self._make_room(own)

    def _make_room(self, own: _Segment) -> None:
        """Free the earliest blocks beyond the bounds, and then what lies between them."""
        kept = [one for one in self._segments if one.is_kept and one is not own]
        for one in sorted(kept, key=lambda one: one.call is None):
            too_much = self._kept_bytes > self._max_bytes
            if one.call is not None and (too_much or self._block_bytes > self._max_block_bytes):
                self._block_bytes -= one.bytes
            elif not too_much:
                break
            self._kept_bytes -= one.bytes
            one.set_aside()

    def finish(self) -> None:
        """Cut what lies between blocks anew, now that it is known how much of it stays."""
        room = max(self._max_bytes - self._staying, self._max_bytes * _LEAST_SHARE)
        cut: list[_Segment] = []
        for one in self._segments:
            if one.is_kept or one.call is not None:
                cut.append(one)
                continue
            for operation, size in zip(one.operations, one.sizes, strict=True):
                last = cut[-1] if cut else None
                fits = last is not None and not last.is_kept and last.call is None
                if last is None or not fits or last.bytes + size > room:
                    last = _Segment(operation.index)
                    last.is_kept = False
                    cut.append(last)
                last.add(operation, size)
        self._segments = [one for one in cut if one.operations]

    def preserve(self, overwritten: Tensor) -> None:
        """Copy what is kept of a tensor's memory before the model overwrites it."""
        for one in self._segments:
            if one.call is not None:
                one.call.preserve(overwritten)

    # Afterwards ----------------------------------------------------------------------------------

    def find_input(self, edge: GradientEdge) -> Tensor | None:
        """What enters a block at a place of the graph; None if nothing does there."""
        for one in self._segments:
            for place, value in () if one.call is None else one.call.inputs:
                if place == edge:
                    return value
        return None

    def fetch(self, index: int, whole: bool = True) -> Operation:
        """An operation by its number, with what it keeps in memory.

        Args:
            index: Its number.
            whole: Whether it is wanted also where gradients do not read it, at the end of a block.
        """
        number = bisect_right(self._segments, index, key=lambda one: one.start) - 1
        own = self._segments[number]
        if not own.is_kept or (whole and not own.is_whole):
            if self._fetched is not None:
                self._fetched.set_aside()
            if own.call is None:  # it may be as large as all that is kept
                for one in self._segments:
                    if one.is_kept:
                        one.set_aside()
            own.is_whole = whole or not own.row_sizes
            own.cheap = None
            self._compute_again(own)
            own.is_kept, self._fetched = True, own
        elif own.cheap is not None and own.cheap.is_free:
            before, self._restored = self._restored, own
            if before is not None and before.cheap is not None:
                before.cheap.free()
            own.cheap.restore()
        return own.operations[index - own.start]

    def _compute_again(self, own: _Segment) -> None:
        if own.call is not None:
            refill = Refill(own.operations, own.call)
            if not own.is_whole:
                refill = Refill(own.operations[: own.read], own.call, own.row_sizes)
            if self.call_again(own.call, refill) and refill.is_complete:
                return
            own.call, own.is_whole = None, True  # its arguments alone do not decide it
        try:
            self.run_again(Refill(own.operations))
        except SegmentComplete:
            pass
        else:
            raise RuntimeError("The model computed something else when it was run again.")
