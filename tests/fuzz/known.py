"""Kinds of models that whence is known to get wrong. The default tests leave these out."""

from __future__ import annotations

from collections.abc import Callable

from tests.fuzz.plans import Plan

KNOWN: dict[str, Callable[[Plan], bool]] = {
    "learned tokens beside those of a text or signal": lambda plan: (
        bool(plan.prefix or plan.suffix) and plan.inputs != "image"
    ),
    "suffix tokens": lambda plan: plan.suffix > 0,
    "grids that do not divide the image": lambda plan: plan.rest != (0, 0),
    "patches without a convolution": lambda plan: (
        plan.inputs == "image" and plan.embedding != "convolution"
    ),
    "signals": lambda plan: plan.inputs in ("signal", "waveform"),
    "a norm before pooling by attention": lambda plan: "pool" in plan.head and plan.final_norm,
    "several queries that pool, beside prefix tokens": lambda plan: (
        plan.head_queries > 1 and bool(plan.prefix)
    ),
    "windows of one sample and one head": lambda plan: (
        plan.structure in ("windows", "shifted")
        and plan.batch == plan.blocks[0].attention.heads == 1
    ),
}


def find_known(plan: Plan) -> list[str]:
    """The kinds that a plan is of."""
    return [name for name, holds in KNOWN.items() if holds(plan)]
