"""Shrink a failing case: the simplest plan that fails in the same way names the kind of failure."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

from tests.fuzz.check import Outcome, check_case
from tests.fuzz.models import build
from tests.fuzz.ops import Addition
from tests.fuzz.plans import AttentionPlan, BlockPlan, Plan

_PLAN: dict[str, Any] = {
    "structure": "plain",
    "unused": None,
    "other_depth": None,
    "mixed_depth": None,
    "joined": "cat",
    "padding": None,
    "causal": False,
    "tied": False,
    "tokens_first": False,
    "suffix": 0,
    "prefix": (),
    "rest": (0, 0),
    "embedding_norm": False,
    "positions": "none",
    "final_norm": False,
    "pooler": False,
    "head_queries": 1,
    "asked": "one",
    "batch": 1,
    "as_mapping": True,
}
_BLOCK: dict[str, Any] = {
    "extra": None,
    "has_skip": True,
    "whole": False,
    "parallel": False,
    "mlps": ("none",),
    "residual": "plain",
    "norm": "none",
    "norm_kind": "layer",
    "additions": (Addition((0, 1, 2, 3, 4, 5), "left"),) * 2,
    "linear": "module",
    "features": None,
    "by_hand": False,
}
_ATTENTION: dict[str, Any] = {
    "projection": "separate",
    "spelling": "eager",
    "positions": "none",
    "norm": None,
    "mask": "additive",
    "linear": "module",
    "bias": True,
}


def shrink(plan: Plan, failure: Outcome, path: str = "plain") -> Plan:
    """The simplest plan found that ends in the same way; each change is tried once."""
    tried: set[str] = set()
    while True:
        for label, simpler in _simplify(plan):
            if label not in tried:
                tried.add(label)
                if _ends_in(simpler, failure, path):
                    plan = simpler
                    break
        else:
            return plan


def _ends_in(plan: Plan, failure: Outcome, path: str) -> bool:
    try:
        found = check_case(build(plan), (failure.method,), path=path).outcomes[0]
    except Exception:
        return False  # no model that can be built
    return found.verdict == failure.verdict and found.why[:12] == failure.why[:12]


def _simplify(plan: Plan) -> Iterator[tuple[str, Plan]]:
    depth = len(plan.blocks)
    for blocks in (plan.blocks[:1], plan.blocks[:-1], plan.blocks[:1] * depth):
        if blocks and blocks != plan.blocks:
            other = plan.other_depth and min(plan.other_depth, len(blocks))
            unused = plan.unused and min(plan.unused, len(blocks))
            read = min(plan.read_depth, len(blocks))
            changes = {"read_depth": read, "other_depth": other, "unused": unused, "tied": False}
            changes["mixed_depth"] = plan.mixed_depth and min(plan.mixed_depth, len(blocks) - 1)
            yield f"{depth} to {len(blocks)} blocks", replace(plan, blocks=blocks, **changes)
    for name, simple in _PLAN.items():
        if getattr(plan, name) != simple:
            if name == "prefix" and plan.head.startswith(("first", "two")):
                continue  # or another kind of token would be read
            changes = {name: simple}
            if name == "prefix":
                changes["read_index"] = max(0, plan.read_index - len(plan.prefix))
            yield name, replace(plan, **changes)
    if plan.read_depth != depth:
        yield "read_depth", replace(plan, read_depth=depth)
    if len(plan.prefix) > 1:
        yield f"{plan.prefix}", replace(plan, prefix=plan.prefix[:-1])
    if plan.inputs != "embeddings":
        changes = {"grid": None, "patch": 0, "rest": (0, 0), "embedding": "plain"}
        yield "inputs", replace(plan, inputs="embeddings", **changes)
    if plan.inputs == "image" and plan.embedding != "convolution":
        yield "embedding", replace(plan, embedding="convolution")
    if plan.embedding == "linear":
        yield "embedding", replace(plan, embedding="plain")
    if plan.head != "mean":
        yield "head", replace(plan, head="mean", head_queries=1)
    for number, block in enumerate(plan.blocks):
        for label, changed in _simplify_block(block):
            blocks = copy.copy(plan.blocks)
            alike = [n for n, other in enumerate(blocks) if other == block]
            for n in alike if number == alike[0] else [number]:
                blocks[n] = changed
            yield f"{number} {label}", replace(plan, blocks=blocks)


def _simplify_block(block: BlockPlan) -> Iterator[tuple[str, BlockPlan]]:
    for name, simple in _BLOCK.items():
        if getattr(block, name) != simple:
            yield name, replace(block, **{name: simple})
    first = block.additions[0]
    if first.order != tuple(range(6)):
        ordered = replace(first, order=tuple(range(6)))
        yield "order", replace(block, additions=(ordered, block.additions[1]))
    if first.how != "left":
        left = replace(first, how="left")
        yield "how", replace(block, additions=(left, block.additions[1]))
    attention = block.attention
    for name, simple in {**_ATTENTION, "key_heads": attention.heads}.items():
        if getattr(attention, name) != simple and attention.projection != "mha":
            yield (
                f"attention {name}",
                replace(block, attention=replace(attention, **{name: simple})),
            )
    if attention.projection == "mha":
        separate = replace(attention, projection="separate", spelling="eager")
        yield "mha", replace(block, attention=separate)
    if attention.heads > 1 and attention.projection != "mha":
        yield "heads", replace(block, attention=replace(attention, heads=1, key_heads=1))


def describe(plan: Plan) -> str:
    """What of a plan is not the simplest choice."""
    said = [f"inputs={plan.inputs}", f"head={plan.head}", f"depth={len(plan.blocks)}"]
    said += [f"{n}={getattr(plan, n)!r}" for n, v in _PLAN.items() if getattr(plan, n) != v]
    if plan.read_depth != len(plan.blocks):
        said.append(f"read_depth={plan.read_depth}")
    if plan.inputs == "image":
        said.append(plan.embedding)
    for block in {repr(block): block for block in plan.blocks}.values():
        own = [f"{n}={getattr(block, n)!r}" for n, v in _BLOCK.items() if getattr(block, n) != v]
        attention = block.attention
        own += [
            f"{n}={getattr(attention, n)!r}"
            for n, v in {**_ATTENTION, "key_heads": attention.heads, "heads": 1}.items()
            if getattr(attention, n) != v
        ]
        said.append(f"[{', '.join(own)}]" if own else "[plain block]")
    return " ".join(said)


assert {f.name for f in fields(BlockPlan)} >= _BLOCK.keys()
assert {f.name for f in fields(AttentionPlan)} >= _ATTENTION.keys()
