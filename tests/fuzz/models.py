"""Random Transformers, their inputs, and what the builder knows of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.fuzz import ops
from tests.fuzz.attention import Pooling, make_norm
from tests.fuzz.blocks import Block, Decoder, Merge, Mlp
from tests.fuzz.plans import BlockPlan, Plan, draw_plan
from tests.fuzz.torch_layers import TorchBlock

VOCABULARY = 23


class Embed(nn.Module):
    """From the input to its tokens: (batch, tokens, width)."""

    def __init__(self, plan: Plan) -> None:
        super().__init__()
        self.plan = plan
        kind, patch, width = plan.inputs, plan.patch, plan.width
        if kind == "ids":
            self.table = nn.Embedding(VOCABULARY, width)
        elif kind == "embeddings" and plan.embedding == "linear":
            self.project = nn.Linear(width, width)
        elif kind == "image" and plan.embedding == "convolution":
            self.patches = nn.Conv2d(plan.channels, width, patch, patch)
        elif kind == "image":
            self.project = nn.Linear(plan.channels * patch * patch, width)
        elif kind in ("signal", "waveform"):
            self.patches = nn.Conv1d(plan.channels, width, patch, patch)

    def forward(self, x: Tensor) -> Tensor:
        plan = self.plan
        if plan.inputs == "ids":
            if ops.current() is not None or plan.embedding == "module":
                return ops.begin(self.table(x))
            if plan.embedding == "function":
                return F.embedding(x, self.table.weight)
            return self.table.weight[x]
        x = ops.begin(x)
        if plan.inputs == "embeddings":
            return ops.linear(self.project, x) if plan.embedding == "linear" else x
        if plan.inputs == "waveform":
            x = x[:, None]
        if plan.embedding == "convolution":
            return ops.cut_patches(self.patches, x)
        (rows, columns), patch = plan.grid, plan.patch
        x = x[:, :, : rows * patch, : columns * patch]
        if plan.embedding == "unfold":
            x = x.unfold(2, patch, patch).unfold(3, patch, patch)
            x = x.permute(0, 2, 3, 1, 4, 5).flatten(3).flatten(1, 2)
        else:
            x = x.reshape(len(x), plan.channels, rows, patch, columns, patch)
            x = x.permute(0, 2, 4, 1, 3, 5).reshape(len(x), rows * columns, -1)
        return ops.linear(self.project, x)


class Model(nn.Module):
    """A random Transformer: forward(inputs, attention_mask) gives logits."""

    def __init__(self, plan: Plan) -> None:
        super().__init__()
        self.plan = plan
        width, learned = plan.width, len(plan.prefix)
        self.total = learned + plan.tokens + plan.suffix
        self.embed = Embed(plan)
        if learned:
            self.prefix = nn.Parameter(torch.randn(1, learned, width))
        if plan.suffix:
            self.suffix = nn.Parameter(torch.randn(1, plan.suffix, width))
        if plan.positions != "none":
            places = plan.tokens if plan.positions == "before" else self.total
            self.positions = nn.Parameter(torch.randn(1, places, width))
        self.norm = make_norm("layer" if plan.embedding_norm else None, width)
        self.blocks = nn.ModuleList(
            self._make_block(block) for block in plan.blocks[: 1 if plan.tied else None]
        )
        if plan.unused is not None:
            self.unused = self._make_block(plan.blocks[0])
        if plan.structure == "merged":
            self.merge = Merge(width)
        elif plan.structure == "cross":
            self.decoder = Decoder(width)
        elif plan.structure in ("windows", "shifted"):
            for number, block in enumerate(self.blocks):
                block.window = 2, number % 2 if plan.structure == "shifted" else 0
        self.head = Head(plan, plan.head)
        if plan.other_depth is not None:
            self.other_head = Head(plan, "parts_mean" if plan.head != "parts_mean" else "mean")

    def forward(
        self, inputs: Tensor | None = None, attention_mask: Tensor | None = None, **named: Tensor
    ) -> Tensor:
        (inputs,) = [inputs] if inputs is not None else named.values()
        plan = self.plan
        x = self._add_learned(self.embed(inputs))
        x = ops.norm(self.norm, x)
        allowed, real = self._find_allowed(len(x), attention_mask)
        x = x.transpose(0, 1) if plan.tokens_first else x
        x = x.clone() if ops.current() is None else x
        first, states = x, [x]
        for number in range(len(plan.blocks)):
            if plan.unused == number:
                self.unused(x, first, allowed, plan.causal, real is not None)
            block = self.blocks[0 if plan.tied else number]
            x = block(x, first, allowed, plan.causal, real is not None)
            x = self.merge(x) if plan.structure == "merged" and number == 0 else x
            states.append(x)
        if plan.structure == "cross":
            states[-1] = self.decoder(x)
        if plan.unused == len(plan.blocks):
            self.unused(x, first, allowed, plan.causal, real is not None)
        if plan.tokens_first:
            states = [state.transpose(0, 1) for state in states]
        read = states[plan.read_depth]
        if plan.mixed_depth is not None:
            read = ops.add(states[plan.mixed_depth], read)
        logits = self.head(read, real)
        if plan.other_depth is None:
            return logits
        return torch.cat([logits, self.other_head(states[plan.other_depth], real)], 1)

    def _make_block(self, block: BlockPlan) -> nn.Module:
        if block.whole:
            return TorchBlock(block, self.plan.width, self.plan.tokens_first)
        return Block(block, self.plan.width, self.total, self.plan.tokens_first, keep=True)

    def _add_learned(self, x: Tensor) -> Tensor:
        plan = self.plan
        if plan.positions == "before":
            x = x + self.positions
        parts = [self.prefix.expand(len(x), -1, -1)] if plan.prefix else []
        parts.append(x)
        parts += [self.suffix.expand(len(x), -1, -1)] if plan.suffix else []
        if len(parts) > 1 and plan.joined == "written":
            at, whole = 0, x.new_zeros(len(x), self.total, x.shape[-1])
            for part in parts:
                whole[:, at : at + part.shape[1]] = part
                at += part.shape[1]
            x = whole
        elif len(parts) > 1:
            x = torch.cat(parts, 1)
        return x + self.positions if plan.positions == "learned" else x

    def _find_allowed(
        self, batch: int, attention_mask: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None]:
        """Which keys each query may see, and which tokens are no padding."""
        allowed = real = None
        if attention_mask is not None:
            learned = len(self.plan.prefix), self.plan.suffix
            real = F.pad(attention_mask, learned, value=1) > 0
            allowed = real[:, None, None, :].expand(-1, 1, self.total, -1)
        if self.plan.causal:
            causal = torch.ones(self.total, self.total, dtype=torch.bool).tril()[None, None]
            allowed = causal if allowed is None else allowed & causal
            allowed = allowed | torch.eye(self.total, dtype=torch.bool)
        return allowed, real


class Head(nn.Module):
    """What reads the tokens: (batch, tokens, width) to logits."""

    def __init__(self, plan: Plan, kind: str) -> None:
        super().__init__()
        self.plan, self.kind = plan, kind
        total = len(plan.prefix) + plan.tokens + plan.suffix
        counts = {"first_mean": 2, "two": 2, "flatten": total, "pool": plan.head_queries}
        width = plan.width * counts.get(kind, 1)
        self.norm = make_norm("layer" if plan.final_norm else None, plan.width)
        if kind.startswith("pool"):
            spelling = "sdpa" if plan.seed % 2 else "eager"
            self.pool = Pooling(plan.width, plan.head_queries, 1 + plan.seed % 3, spelling)
        if kind == "pool_mlp":
            self.pool_norm, self.pool_mlp = nn.LayerNorm(width), Mlp("gelu", width, "module")
        self.pooler = nn.Linear(width, plan.width) if plan.pooler else None
        self.classify = nn.Linear(plan.width if plan.pooler else width, plan.classes)
        if kind == "two_heads":
            self.classify_other = nn.Linear(plan.width, plan.classes)

    def forward(self, x: Tensor, real: Tensor | None) -> Tensor:
        stream, x = x, ops.norm(self.norm, x)
        if self.kind == "pool_each":  # each class has a query of its own
            weights = self.classify.weight[:, : self.plan.width]
            pooled = ops.scale(self.pool(x, real, stream), weights)
            return ops.total(pooled, -1) + self.classify.bias
        if self.kind == "two_heads":
            one, other = ops.linear(self.classify, self._pool(x[:, 0])), x[:, 1]
            return ops.scale(ops.add(one, ops.linear(self.classify_other, other)), 0.5)
        return ops.linear(self.classify, self._pool(self._read(x, real, stream)))

    def _pool(self, y: Tensor) -> Tensor:
        return y if self.pooler is None else ops.function(ops.linear(self.pooler, y), "tanh")

    def _read(self, x: Tensor, real: Tensor | None, stream: Tensor) -> Tensor:
        plan, kind, learned = self.plan, self.kind, len(self.plan.prefix)
        parts = slice(learned, learned + plan.tokens)
        if kind == "dense":
            return x
        if kind == "first":
            return x[:, 0]
        if kind == "last":
            if real is None or plan.padding == "left":
                return x[:, -1]
            return x[torch.arange(len(x)), real.sum(1) - 1]
        if kind == "index":
            return x[:, plan.read_index]
        if kind == "flatten":
            return x.flatten(1)
        if kind == "two":
            return torch.cat([x[:, 0], x[:, 1]], -1)
        if kind == "pool":
            return self.pool(x, real, stream).flatten(1)
        if kind == "pool_mlp":  # as SigLIP has it
            y = self.pool(x, real, stream)
            return ops.add_branch(y, self.pool_mlp(ops.norm(self.pool_norm, y)))[:, 0]
        if kind == "mean":
            return self._average(x, real)
        mean = self._average(x[:, parts], None if real is None else real[:, parts])
        return mean if kind == "parts_mean" else torch.cat([x[:, 0], mean], -1)

    @staticmethod
    def _average(x: Tensor, real: Tensor | None) -> Tensor:
        if real is None:
            return ops.mean(x, 1)
        weights = real[..., None].to(x.dtype)
        return ops.scale(ops.total(ops.scale(x, weights), 1), 1 / weights.sum(1))


@dataclass
class Case:
    """A model with its inputs, and the facts that its builder knows."""

    plan: Plan
    model: Model
    inputs: Any  # as whence is given them
    main: Tensor
    attention_mask: Tensor | None
    output: Callable[[Tensor], Tensor] | None
    asked: dict[str, Any]  # target or classes, as whence is given them

    @property
    def parts(self) -> Tensor:
        """(tokens,), true where a token stands for a part of the input."""
        plan = self.plan
        mask = torch.zeros(self.model.total, dtype=torch.bool)
        mask[len(plan.prefix) : len(plan.prefix) + plan.tokens] = True
        return mask

    @property
    def real(self) -> Tensor:
        """(batch, tokens), false where a token is padding."""
        real = torch.ones(self.plan.batch, self.model.total, dtype=torch.bool)
        if self.attention_mask is not None:
            real[:, self.parts] = self.attention_mask > 0
        return real

    def run(self) -> Tensor:
        """The logits of a plain forward, or those of the oracle under its tape."""
        returned = self.model(self.main, self.attention_mask)
        return returned if self.output is None else self.output(returned)


_NAMES = {
    "ids": "input_ids",
    "embeddings": "inputs_embeds",
    "image": "pixel_values",
    "signal": "input_values",
    "waveform": "input_values",
}


def draw(seed: int) -> Case:
    """Draw a random model with its inputs."""
    return build(draw_plan(seed))


def build(plan: Plan) -> Case:
    generator_state = torch.get_rng_state()
    torch.manual_seed(plan.seed)
    try:
        return _build(plan)
    finally:
        torch.set_rng_state(generator_state)


def _build(plan: Plan) -> Case:
    model = Model(plan).double().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1 and name.endswith("weight"):
                parameter.mul_(1.7)
            elif parameter.dim() == 1 and "scales" not in name:
                parameter.add_(0.3 * torch.randn_like(parameter))
    main = _draw_inputs(plan)
    mask = None
    if plan.padding is not None:
        mask = torch.ones(plan.batch, plan.tokens, dtype=torch.long)
        for sample in range(plan.batch):
            count = int(torch.randint(0, plan.tokens - 2, ()))
            if count:
                where = slice(0, count) if plan.padding == "left" else slice(-count, None)
                mask[sample, where] = 0
                if plan.inputs == "ids":
                    main[sample, where] = 0
    inputs: Any = main
    if plan.as_mapping:
        inputs = {_NAMES[plan.inputs]: main}
        if mask is not None:
            inputs["attention_mask"] = mask
    index = plan.read_index
    output = (lambda returned: returned[:, index]) if plan.head == "dense" else None
    count = plan.classes * (1 if plan.other_depth is None else 2)
    asked: dict[str, Any] = {}
    if plan.asked == "one":
        asked = {"target": int(torch.randint(0, count, ()))}
    elif plan.asked == "each":
        asked = {"target": torch.randint(0, count, (plan.batch,)).tolist()}
    elif plan.asked == "several":
        asked = {"classes": [0, count - 1]}
    return Case(plan, model, inputs, main, mask, output, asked)


def _draw_inputs(plan: Plan) -> Tensor:
    if plan.inputs == "ids":
        return torch.randint(1, VOCABULARY, (plan.batch, plan.tokens))
    if plan.inputs == "embeddings":
        return torch.randn(plan.batch, plan.tokens, plan.width, dtype=torch.float64)
    if plan.inputs == "image":
        size = [n * plan.patch + rest for n, rest in zip(plan.grid, plan.rest, strict=True)]
        return torch.randn(plan.batch, plan.channels, *size, dtype=torch.float64)
    length = plan.tokens * plan.patch + plan.rest[0]
    shape = (
        (plan.batch, length) if plan.inputs == "waveform" else (plan.batch, plan.channels, length)
    )
    return torch.randn(*shape, dtype=torch.float64)
