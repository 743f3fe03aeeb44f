"""Kinds of models that whence is known to get wrong. The default tests leave these out."""

from __future__ import annotations

from collections.abc import Callable

from tests.fuzz.plans import BlockPlan, Plan


def _any_block(holds: Callable[[BlockPlan], bool]) -> Callable[[Plan], bool]:
    return lambda plan: any(map(holds, plan.blocks))


KNOWN: dict[str, Callable[[Plan], bool]] = {
    "a read token that is part of the input": lambda plan: (
        plan.head in ("index", "dense", "two")
        or (plan.head == "last" and not plan.suffix)
        or (plan.head == "first" and not plan.prefix)
    ),
    "learned tokens beside those of a text or signal": lambda plan: (
        bool(plan.prefix or plan.suffix) and plan.inputs != "image"
    ),
    "suffix tokens": lambda plan: plan.suffix > 0,
    "grids that do not divide the image": lambda plan: plan.rest != (0, 0),
    "patches without a convolution": lambda plan: (
        plan.inputs == "image" and plan.embedding != "convolution"
    ),
    "signals": lambda plan: plan.inputs in ("signal", "waveform"),
    "attention that the target does not depend on": lambda plan: (
        plan.unused is not None
        or plan.other_depth is not None
        or plan.read_depth != len(plan.blocks)
    ),
    "several queries that pool": lambda plan: plan.head_queries > 1,
    "windows, merged tokens, cross-attention": lambda plan: plan.structure != "plain",
    "skip connections that are scaled": _any_block(lambda block: block.residual == "scaled"),
    "gates on branches": _any_block(lambda block: block.residual == "gate"),
    "branches side by side": _any_block(lambda block: block.parallel),
    "additions of other kinds": _any_block(
        lambda block: (
            any(one.how in ("in_place", "alpha", "stack") for one in block.additions)
            or block.extra is not None
            or not block.has_skip
        )
    ),
    "low-rank keys and values": _any_block(lambda block: block.attention.projection == "mla"),
    "heads in a loop": _any_block(lambda block: block.attention.spelling == "loop"),
    "experts": _any_block(lambda block: any(one.startswith("experts") for one in block.mlps)),
    "padding beside learned tokens": lambda plan: plan.padding is not None and bool(plan.prefix),
}


def find_known(plan: Plan) -> list[str]:
    """The kinds that a plan is of."""
    return [name for name, holds in KNOWN.items() if holds(plan)]
