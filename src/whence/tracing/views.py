"""A trace as each of several explained inputs sees it."""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping, Sequence

from torch.autograd.graph import Node

from whence.tracing.intervention import Intervention
from whence.tracing.logits import Logits
from whence.tracing.recording import edge_of
from whence.tracing.trace import Trace


def make_views(trace: Trace, logits: Mapping[str | int, Logits]) -> dict[str | int, Trace]:
    """The trace as each of several explained inputs sees it, by the argument's name.

    A view has the rows and logits of its own input, and the attention sites that depend on it.
    """
    return {name: _make_view(trace, name, found) for name, found in logits.items()}


def select_view(trace: Trace, name: str | int) -> Trace:
    """The trace as one of the explained inputs sees it; with one input, the trace itself."""
    view = trace.views.get(name, trace)
    if trace.views:
        for entry in trace.entries:
            entry.operation.batch = view.batch
    return view


def _make_view(trace: Trace, name: str | int, logits: Logits) -> Trace:
    view = copy.copy(trace)
    view.batch = len(logits.values)
    view.inputs = [place for place in trace.inputs if place.name == name]
    leaves = {edge_of(place.leaf).node for place in view.inputs}
    nodes = [edge_of(site.place).node for site in trace.sites]
    depend = find_dependent(nodes, leaves, trace.overwrites)
    view.sites = [site for site, depends in zip(trace.sites, depend, strict=True) if depends]
    if not view.sites:
        problem = f"No attention that whence can follow depends on the input {name!r}."
        view.attention_problem = problem
    rerecord = trace.rerecord  # not the trace itself, which keeps the view
    view.finish(logits, lambda intervention: select_view(rerecord(intervention), name))
    return view


def cut_at_text(view: Trace, text: Trace) -> Trace | None:
    """The view of an input, with only the attention that also reads a text; None if none does.

    A language model that reads images has image tokens between its words. They are made by a
    vision tower, whose attention does not read the text.

    Args:
        view: The trace as the input sees it.
        text: The trace as the text sees it.
    """
    of_text = {id(site) for site in text.sites}
    shared = [site for site in view.sites if id(site) in of_text]
    if not shared or len(shared) == len(view.sites):
        return None
    cut = copy.copy(view)
    cut.sites, cut.structure, cut.attention_problem = shared, None, ""
    rerecord = view.rerecord

    def rerecord_cut(intervention: Intervention) -> Trace:
        again = rerecord(intervention)
        return again if again.at_text is None else again.at_text

    cut.rerecord = rerecord_cut
    return cut


def find_dependent(
    nodes: Sequence[Node],
    leaves: Collection[Node],
    overwrites: Collection[Node],
    cuts: Collection[Node] = (),
) -> list[bool]:
    """Whether each of some nodes of the graph depends on any of the leaves.

    Args:
        nodes: The nodes.
        leaves: Nodes of leaves.
        overwrites: Nodes whose first source was overwritten as a whole.
        cuts: Nodes through which dependence does not count.
    """
    known = dict.fromkeys(cuts, False) | dict.fromkeys(leaves, True)
    waiting = list(nodes)
    while waiting:
        at = waiting[-1]
        # What was overwritten comes first, and has no part in the result.
        sources = [n for n, _ in at.next_functions[at in overwrites :] if n is not None]
        unknown = [] if at in known else [n for n in sources if n not in known]
        waiting += unknown
        if not unknown:
            if at not in known:
                known[at] = any(known[n] for n in sources)
            waiting.pop()
    return [known[node] for node in nodes]


def find_upstream(nodes: Collection[Node]) -> set[Node]:
    """These nodes of the graph and all upstream of them."""
    seen, waiting = set(nodes), list(nodes)
    while waiting:
        more = {node for node, _ in waiting.pop().next_functions if node is not None} - seen
        seen |= more
        waiting += more
    return seen
