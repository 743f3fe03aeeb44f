"""Several explained inputs whose tokens attend to each other, as question and photo in LXMERT.

In one pass, what methods find of an input would depend on whether the other is explained as well: a
sequence that is followed has blocks and skip connections, and a constant has none. So each is
explained in a pass of its own, in which the others are constant.
"""

from __future__ import annotations

import dataclasses

from whence.engine.request import Request
from whence.methods.shared.sequences import has_unseen_queries
from whence.tracing import Trace
from whence.tracing.graph import find_layers
from whence.tracing.views import select_view


def attend_to_each_other(request: Request, trace: Trace) -> bool:
    """Whether a method reads attention in which tokens of one input attend to those of another."""
    names = request.arguments.explained_names
    if len(names) < 2 or not (request.method.scores_tokens or request.keep_evidence):
        return False
    views = [select_view(trace, name) for name in names]
    return any(
        has_unseen_queries(view, layer)
        for view in views
        if view.sites and not view.attention_problem
        for layer in find_layers(view)
    )


def split_inputs(request: Request) -> list[Request]:
    """The same request for each explained input alone."""
    return [
        dataclasses.replace(one, arguments=dataclasses.replace(one.arguments, others_at=()))
        for one in map(request.focus, request.arguments.explained_names)
    ]
