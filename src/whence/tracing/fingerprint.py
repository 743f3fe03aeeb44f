"""Fingerprint: what a recorded forward pass computed, so that another one can be compared."""

from __future__ import annotations

from torch.autograd.graph import Node

from whence._util.torch_internals import read_kind
from whence.tracing.trace import Trace


def make_fingerprint(trace: Trace) -> int:
    """A number that differs where targets depend on other operations, or on other slices.

    A model may choose these by the values of its input, in Python, and by its other arguments.
    """
    found: list[tuple[object, ...]] = []
    nodes: list[Node] = list(dict.fromkeys(trace.tops))
    numbers = {node: number for number, node in enumerate(nodes)}
    for node in nodes:  # grows by those upstream
        operation = getattr(node, "operation", None)
        kind = read_kind(node) if operation is None else (operation.kind, operation.index)
        reads: list[object] = [kind]
        for upstream, output in node.next_functions:
            if upstream is not None:
                number = numbers.setdefault(upstream, len(nodes))
                if number == len(nodes):
                    nodes.append(upstream)
                reads += (number, output)
        found.append(tuple(reads))
    return hash(tuple(found))
