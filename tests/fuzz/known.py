"""Kinds of models that whence is known to get wrong. The default tests leave these out."""

from __future__ import annotations

from collections.abc import Callable

from tests.fuzz.plans import Plan

KNOWN: dict[str, Callable[[Plan], bool]] = {
    "as many queries that pool as there are tokens": lambda plan: (
        plan.head_queries == len(plan.prefix) + plan.tokens + plan.suffix
    ),
}


def find_known(plan: Plan) -> list[str]:
    """The kinds that a plan is of."""
    return [name for name, holds in KNOWN.items() if holds(plan)]
