"""What a random model is made of: all choices, drawn from a seed.

New choices are drawn after all others, so that the seeds that failed once keep their models.
"""

from __future__ import annotations

import random
from dataclasses import asdict, dataclass, field
from typing import Any

from tests.fuzz.features import FEATURES
from tests.fuzz.ops import ADDITIONS, LINEARS, Addition

NORMS = ("layer", "rms", "hand")


@dataclass
class AttentionPlan:
    heads: int
    key_heads: int
    head_width: int
    projection: str  # separate, fused, stacked, mla, mha
    spelling: str  # sdpa, eager, bmm, einsum, loop, transposed, mha
    mask: str  # boolean, additive, flag
    linear: str
    bias: bool
    norm: str | None  # of queries and keys
    positions: str  # none, rotary, interleaved, relative


@dataclass
class BlockPlan:
    attention: AttentionPlan
    norm: str  # pre, post, sandwich, branch, none
    norm_kind: str
    parallel: bool
    whole: bool  # torch's own encoder layer
    mlps: tuple[str, ...]  # none, gelu, relu, swiglu, experts, experts_sparse, experts_einsum
    residual: str  # plain, scaled, skip_scale, layer_scale, constant_gate, gate, shrunk
    has_skip: bool
    extra: str | None  # embedding, constant
    additions: tuple[Addition, Addition]
    linear: str
    features: str | None = None  # a further operation in its MLPs, of tests.fuzz.features
    by_hand: bool = False  # whether activations are spelled in several calls


@dataclass
class Plan:
    """All choices of one case."""

    seed: int
    inputs: str  # ids, embeddings, image, signal, waveform
    batch: int
    tokens: int  # of the input
    grid: tuple[int, int] | None
    patch: int
    rest: tuple[int, int]  # pixels or samples beyond the last patch
    channels: int
    embedding: str  # module, function, index; plain, linear; convolution, unfold, reshape
    width: int
    classes: int
    prefix: tuple[str, ...]  # kinds of learned tokens before those of the input
    suffix: int  # learned tokens after them
    positions: str  # none, learned, before (added before learned tokens come)
    joined: str  # how learned tokens join: cat, written
    embedding_norm: bool
    tokens_first: bool
    causal: bool
    padding: str | None  # left, right
    tied: bool
    blocks: list[BlockPlan] = field(default_factory=list)
    unused: int | None = None  # a further block, computed at this depth, that nothing uses
    head: str = ""
    head_queries: int = 1
    read_index: int = 0
    read_depth: int = -1
    other_depth: int | None = None  # further classes are read there
    mixed_depth: int | None = None  # the hidden states of this depth are added to those read
    final_norm: bool = True
    pooler: bool = False
    structure: str = "plain"  # plain, windows, shifted, merged, cross
    asked: str = "one"  # predicted, one, each, several
    as_mapping: bool = True

    def describe(self) -> dict[str, Any]:
        return asdict(self)


def draw_plan(seed: int) -> Plan:
    rng = random.Random(seed)
    chance = lambda p: rng.random() < p  # noqa: E731
    kind = rng.choice(["ids", "ids", "embeddings", "embeddings", "image", "image", "signal"])
    if kind == "signal" and chance(0.4):
        kind = "waveform"
    structure = "plain"
    if chance(0.08):
        structure = rng.choice(["windows", "shifted", "merged", "cross"])
    grid, tokens, patch = None, rng.randint(4, 9), 0
    rest, channels = (0, 0), 1
    embedding = rng.choice(["module", "module", "function", "index"])
    if kind == "embeddings":
        embedding = rng.choice(["plain", "linear"])
    if kind == "image":
        grid = (rng.randint(2, 3), rng.randint(2, 4))
        tokens, patch, channels = grid[0] * grid[1], rng.randint(2, 3), rng.choice([1, 3])
        embedding = rng.choice(["convolution", "convolution", "unfold", "reshape"])
        if chance(0.3):
            rest = rng.randint(0, patch - 1), rng.randint(0, patch - 1)
    elif kind in ("signal", "waveform"):
        patch, channels = rng.randint(2, 4), 1 if kind == "waveform" else rng.randint(1, 3)
        rest = (rng.randint(0, patch - 1), 0) if chance(0.3) else (0, 0)
        embedding = "convolution"
    if structure != "plain":
        tokens = rng.choice([4, 6, 8])
        grid = (2, tokens // 2) if grid else None
    learned = ["class"] if chance(0.6 if kind == "image" else 0.25) else []
    if learned and chance(0.15):
        learned.append("distillation")
    if chance(0.15):
        learned += ["register"] * rng.randint(1, 2)
    suffix = rng.randint(1, 2) if chance(0.1) else 0
    if structure != "plain":
        learned, suffix = [], 0
    padding = None
    if kind in ("ids", "embeddings") and structure == "plain" and chance(0.35):
        padding = rng.choice(["left", "right", "right"])
    causal = kind not in ("image",) and structure == "plain" and chance(0.3)
    depth = rng.choice([1, 2, 2, 3, 3, 4])
    if structure == "merged":
        depth = max(depth, 2)
    head_width = rng.choice([4, 6])
    heads = rng.randint(1, 4)
    uses_mha = chance(0.15)
    width = heads * head_width if uses_mha else rng.choice([8, 12, 16, 20])
    plan = Plan(
        seed=seed,
        inputs=kind,
        batch=rng.randint(1, 3),
        tokens=tokens,
        grid=grid,
        patch=patch,
        rest=rest,
        channels=channels,
        embedding=embedding,
        width=width,
        classes=rng.randint(2, 5),
        prefix=tuple(learned),
        suffix=suffix,
        positions=rng.choice(["none", "learned", "learned", "before"]),
        joined=rng.choice(["cat", "cat", "cat", "written"]),
        embedding_norm=chance(0.2),
        tokens_first=chance(0.15) and structure == "plain",
        causal=causal,
        padding=padding,
        tied=depth > 1 and chance(0.1),
    )
    same = chance(0.7)  # all blocks alike, as in most models
    first = _draw_block(rng, heads, head_width, uses_mha)
    for number in range(depth):
        alike = same or plan.tied or not number
        plan.blocks.append(first if alike else _draw_block(rng, heads, head_width, uses_mha))
    if chance(0.08) and structure == "plain":
        plan.unused = rng.randint(0, depth)
    _draw_head(rng, plan)
    plan.structure = structure
    if structure != "plain":
        for block in plan.blocks:
            block.attention.spelling = rng.choice(["sdpa", "eager"])
            block.attention.projection = "separate"
            block.attention.positions = "none"
            block.extra, block.whole = None, False
        plan.head = "mean"
        plan.read_depth, plan.other_depth, plan.mixed_depth = depth, None, None
        plan.head_queries, plan.tied = 1, False
    plan.asked = rng.choice(["predicted", "one", "each", "several"])
    plan.as_mapping = padding is not None or chance(0.6)
    if "pool" in plan.head:
        _place_last_norm(plan)
    if seed % 11 in (7, 9):  # which none of those that failed once is
        _draw_operations(random.Random(f"operations {seed}"), plan)
    return plan


def _draw_operations(rng: random.Random, plan: Plan) -> None:
    """Further operations, drawn apart from all others."""
    for block in plan.blocks:
        block.features = rng.choice(FEATURES)
        block.by_hand = rng.random() < 0.5
        if rng.random() < 0.3 and not block.whole and block.norm == "pre":
            block.norm_kind = "euclidean"


def _place_last_norm(plan: Plan) -> None:
    """Have the norm before a pooling be told from one that ends the last block.

    A block that normalises its sum, and a head that normalises what it reads, compute the same:
    which of the two it is shows only in other blocks, or in other parts of the block.
    """
    used = plan.blocks[: plan.read_depth]
    ends = [block.norm == "post" or (block.whole and block.norm != "pre") for block in used]
    shows = len(used) > 1 or (not used[0].parallel and used[0].mlps != ("none",))
    if any(ends) and not (all(ends) and (shows or used[0].whole)):
        for block in used:
            block.norm = "pre"


def _draw_block(rng: random.Random, heads: int, head_width: int, uses_mha: bool) -> BlockPlan:
    chance = lambda p: rng.random() < p  # noqa: E731
    divisors = [n for n in range(1, heads + 1) if heads % n == 0]
    spelling = rng.choice("sdpa sdpa eager eager eager bmm einsum transposed loop".split())
    if spelling == "loop" and not chance(0.3):
        spelling = "sdpa"
    attention = AttentionPlan(
        heads=heads,
        key_heads=heads if chance(0.65) else rng.choice(divisors),
        head_width=head_width,
        projection=rng.choice(["separate", "separate", "fused", "stacked", "mla"]),
        spelling=spelling,
        mask=rng.choice(["boolean", "additive", "flag"]),
        linear=rng.choice(["module"] * 6 + list(LINEARS)),
        bias=chance(0.6),
        norm=rng.choice(NORMS) if chance(0.15) else None,
        positions=rng.choice(["none", "none", "none", "rotary", "interleaved", "relative"]),
    )
    if attention.projection == "stacked":
        attention.key_heads = heads
    if uses_mha:
        attention.spelling = attention.projection = "mha"
        attention.key_heads, attention.norm, attention.positions = heads, None, "none"
    mlp = ["gelu", "gelu", "relu", "swiglu", "swiglu", "none"]
    mlp += ["experts", "experts_sparse", "experts_einsum"] if chance(0.25) else []
    parallel = chance(0.2)
    mlps = (rng.choice(mlp),)
    if parallel and mlps[0] != "none" and chance(0.25):
        mlps += (rng.choice(["gelu", "swiglu"]),)
    orders = []
    for _ in range(2):
        order = list(range(6))
        if chance(0.7):
            rng.shuffle(order)
        how = rng.choice(["left"] * 4 + list(ADDITIONS))
        orders.append(Addition(tuple(order), how))
    residual = ["plain"] * 6 + ["scaled", "skip_scale", "layer_scale"]
    residual += ["constant_gate", "gate", "shrunk"]
    return BlockPlan(
        attention=attention,
        norm=rng.choice(["pre", "pre", "pre", "post", "post", "sandwich", "branch", "none"]),
        norm_kind=rng.choice(NORMS),
        parallel=parallel,
        whole=uses_mha and chance(0.4),
        mlps=mlps,
        residual=rng.choice(residual),
        has_skip=not chance(0.01),
        extra=rng.choice(["embedding", *["constant"] * 3]) if chance(0.04) else None,
        additions=(orders[0], orders[1]),
        linear=rng.choice(["module"] * 4 + list(LINEARS)),
    )


def _draw_head(rng: random.Random, plan: Plan) -> None:
    chance = lambda p: rng.random() < p  # noqa: E731
    depth, learned = len(plan.blocks), len(plan.prefix)
    heads = ["mean", "parts_mean", "pool", "pool_mlp", "pool_each", "index", "dense"]
    # Under a causal mask, the first learned tokens see nothing of the input.
    if not (plan.causal if learned else plan.padding == "left"):
        heads += ["first"] * (5 if "class" in plan.prefix else 1)
    if plan.suffix == 0 or plan.padding is None:
        heads += ["last", "last"]
    if "class" in plan.prefix:
        heads += ["first_mean"]
    if learned > 1 and not plan.causal:
        heads += ["two", "two_heads"]
    if plan.padding is None:
        heads += ["flatten"]
    plan.head = rng.choice(heads)
    plan.head_queries = 2 if plan.head == "pool" and chance(0.3) else 1
    if plan.head == "pool_each":
        plan.head_queries = plan.classes
    plan.read_index = learned + rng.randrange(plan.tokens)
    if plan.padding == "left":
        plan.read_index = learned + plan.tokens - 1
    elif plan.padding == "right":
        plan.read_index = learned
    plan.read_depth = depth
    if depth > 1 and chance(0.12):
        plan.read_depth = rng.randint(1, depth)
    if depth > 1 and chance(0.1) and plan.head != "dense" and "pool" not in plan.head:
        plan.other_depth = rng.randint(1, depth)
    elif depth > 1 and chance(0.03):
        plan.mixed_depth = rng.randint(1, depth - 1)
    plan.final_norm, plan.pooler = chance(0.6), chance(0.25)
    plan.final_norm |= plan.pooler  # or its tanh may be so saturated that no gradient is left
