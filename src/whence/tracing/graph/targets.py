"""Parts of the graph that a class logit depends on, where classes are computed apart."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from itertools import compress, groupby

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node

from whence._util.torch_internals import node_metadata
from whence.tracing.backward import REFUSED
from whence.tracing.trace import Trace


def split_targets(
    trace: Trace, count: int, make_targets: Callable[[], Tensor]
) -> list[tuple[Trace, list[int]]] | None:
    """Targets with the trace of what they depend on, neighbours together where it is the same.

    Nearly always one operation computes all logits, and there is nothing to split. But a model may
    put the logits of several heads together that read different layers.

    Args:
        trace: The recorded forward pass.
        count: Number of targets.
        make_targets: Gives targets, as for `Trace.make_seeds`.

    Returns:
        Traces whose sites are those that some targets depend on, and the numbers of these. None if
        that differs from sample to sample.
    """
    tops = _find_tops(trace)
    if len(tops) < 2:
        return [(trace, list(range(count)))]
    batch = trace.batch
    only = torch.eye(batch, dtype=trace.logits.dtype, device=trace.logits.device)[..., None]
    seeds = trace.make_seeds(make_targets())[:, None] * only
    reached = trace.read(seeds.flatten(0, 1), tops)
    # For each target of each sample, whether it depends on each top.
    depends = torch.stack([value.flatten(1).any(1) for value in reached], 1)
    depends = depends.reshape(count, batch, len(tops))
    if trace.guard.look_at((depends != depends[:, :1]).any()):
        return None
    keys = depends[:, 0].tolist()
    parts = []
    for key, columns in groupby(range(count), lambda n: keys[n]):
        chosen = [edge.node for edge in compress(tops, key)]
        parts.append((_select_sites(trace, chosen), list(columns)))
    return parts


def _find_tops(trace: Trace) -> list[GradientEdge]:
    """The nearest places upstream of the logits that are no routing."""
    found: dict[GradientEdge, None] = {}
    logits = trace.logits
    waiting: list[tuple[Node | None, int]] = [(logits.grad_fn, logits.output_nr)]
    seen: set[tuple[Node, int]] = set()
    while waiting:
        node, nr = waiting.pop(0)
        if node is None or (node, nr) in seen:
            continue
        seen.add((node, nr))
        hides = not node.next_functions or REFUSED in node_metadata(node)
        if hasattr(node, "operation") or hides:
            found[GradientEdge(node, nr)] = None
        else:
            waiting += node.next_functions[node in trace.overwrites :]
    return list(found)


def _select_sites(trace: Trace, tops: Iterable[Node]) -> Trace:
    """A trace with only those sites that some nodes depend on."""
    selected = copy.copy(trace)
    selected.tops = list(tops)
    selected.structure = None
    waiting: list[Node | None] = [*selected.tops]
    seen: set[Node] = set()
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen.add(node)
            waiting += [source for source, _ in node.next_functions]
    products = trace.entries
    selected.sites = [s for s in trace.sites if products[s.product.index].output.node in seen]
    return selected
