"""Fingerprint: what a recorded forward pass computed, so that another one can be compared."""

from __future__ import annotations

from torch.autograd.graph import Node

from whence._util.torch_internals import read_kind
from whence.tracing.trace import Trace


def make_fingerprint(trace: Trace) -> int:
    """A number that differs where passes compute other things, or read other slices.

    A model may choose these by the values of its input, in Python.
    """
    found: list[tuple[object, ...]] = []
    waiting: list[Node] = list(trace.tops)
    numbers: dict[Node, int] = {}
    while waiting:
        node = waiting.pop()
        if node in numbers:
            continue
        numbers[node] = len(numbers)
        upstream = [one for one, _ in node.next_functions if one is not None]
        found.append((read_kind(node), *[numbers.get(one, -1) for one in upstream]))
        waiting += upstream
    return hash(tuple(found))
