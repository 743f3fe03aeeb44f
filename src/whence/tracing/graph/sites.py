"""Attention: fused calls written out, and the sites where a map meets the values it weighs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from whence.engine.compiled.program import answer
from whence.errors import WhenceError
from whence.tracing.ops.attention import Attention, Softmax
from whence.tracing.ops.operations import Convolution, MatMul, Operation

if TYPE_CHECKING:
    from whence.tracing.recorder import Recorder

SOFTMAX = "softmax"
_FURTHEST = 64


@dataclass
class AttentionSite:
    """One attention map of the forward pass, where it is multiplied with values.

    Attributes:
        weights: The factor of that product; part of the graph, so that readings can end here.
        product: The operation that multiplies it with the values.
        where: The module it was computed in.
        keys_first: Whether the factor is the map transposed, as in V^T A^T.
        heads_first: Whether heads come before samples in its leading dimensions.
        output: Of attention that is one operation, and keeps no map, the output; part of the graph.
            The weights are then a shape without numbers.
    """

    weights: Tensor
    product: MatMul | Attention
    where: str
    keys_first: bool = False
    heads_first: bool = False
    output: Tensor | None = None

    @property
    def place(self) -> Tensor:
        """Where in the graph it is read: at the map, or behind it if there is none."""
        return self.weights if self.output is None else self.output

    @property
    def values_number(self) -> int:
        """Which input of the product the values are."""
        if isinstance(self.product, Attention):
            return 2
        return 0 if self.keys_first else 1

    @property
    def tokens(self) -> int:
        """The number of keys."""
        return self.weights.shape[-2 if self.keys_first else -1]

    def release(self) -> None:
        """Let go of the map; its shape stays known."""
        self.weights = torch.empty(self.weights.shape, device="meta")

    def values(self, batch: int) -> Tensor:
        """The values that the map weighs, as (batch, heads, keys, width of a head)."""
        assert isinstance(self.product, MatMul)
        values = self.product.a.mT if self.keys_first else self.product.b
        values = values.expand(*self.weights.shape[:-2], *values.shape[-2:])
        leading = (-1, batch) if self.heads_first else (batch, -1)
        values = values.reshape(*leading, *values.shape[-2:])
        return values.transpose(0, 1) if self.heads_first else values

    def by_head(self, reading: Tensor, batch: int) -> Tensor:
        """The map, or a reading of it with leading dimensions, as (..., batch, heads, q, k)."""
        extra = reading.shape[: reading.dim() - self.weights.dim()]
        leading = (-1, batch) if self.heads_first else (batch, -1)
        reading = reading.reshape(*extra, *leading, *self.weights.shape[-2:])
        reading = reading.transpose(-4, -3) if self.heads_first else reading
        return reading.mT if self.keys_first else reading


def arrange(
    sites: list[AttentionSite], batch: int, dependence: Callable[[AttentionSite], Tensor]
) -> None:
    """Find out which leading dimension of the maps is samples, and which is heads.

    Args:
        sites: The sites; `heads_first` is set.
        batch: Number of samples.
        dependence: Gradient, at a site, of what the model says of the first sample alone.

    Raises:
        WhenceError: A map is not laid out as samples and heads, as in attention over windows.
    """
    for site in sites:
        leading = site.weights.shape[:-2]
        folded = len(leading) == 1 and leading[0] % batch == 0
        samples_first = folded or (len(leading) == 2 and leading[0] == batch)
        heads_first = folded or (len(leading) == 2 and leading[1] == batch)
        if heads_first and batch > 1 and leading != (batch,):
            touched = dependence(site).flatten(-2).any(-1)
            # The first sample says nothing about the maps of others.
            samples_first &= not answer(touched.reshape(batch, -1)[1:].any())
            heads_first &= not answer(touched.reshape(-1, batch)[:, 1:].any())
        if not samples_first and not heads_first:
            raise WhenceError(
                f"The attention in {site.where} has maps of shape {tuple(site.weights.shape)} for "
                f"{batch} sample(s), not (batch, heads, queries, keys): attention over windows or "
                f"groups cannot be explained yet."
            )
        site.heads_first = not samples_first


def spelled_out_attention(
    record: Recorder,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,  # noqa: ARG001  explained as in evaluation mode
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """What ``scaled_dot_product_attention`` computes, call by call."""
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    if is_causal:
        size = query.shape[-2], key.shape[-2]
        attn_mask = torch.ones(size, dtype=torch.bool, device=query.device).tril()
    with record:
        if enable_gqa:
            key = key.repeat_interleave(query.shape[-3] // key.shape[-3], -3)
            value = value.repeat_interleave(query.shape[-3] // value.shape[-3], -3)
        long = _without_maps(record, query, key, value, attn_mask, scale)
        if long is not None:
            return long
        scores = query @ key.mT
        if attn_mask is not None and attn_mask.requires_grad and not attn_mask.is_leaf:
            return (scores * scale + attn_mask).softmax(-1) @ value
    mask = None if attn_mask is None else attn_mask.detach()
    if scores.requires_grad:
        softmax = Softmax(scale, lambda s: masked_softmax(s, scale, mask), name=SOFTMAX)
        weights = record.apply(softmax, scores)
    else:
        weights = masked_softmax(scores, scale, mask)
    with record:
        return weights @ value


def _without_maps(
    record: Recorder,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    scale: float,
) -> Tensor | None:
    """The same as one operation that keeps no maps, if they are too large and all is usual."""
    of_one_head = query.shape[0] * query.shape[-2] * key.shape[-2] * query.element_size()
    all_traced = all(x.requires_grad and not x.is_leaf for x in (query, key, value))
    constant = mask is None or not mask.requires_grad or mask.is_leaf
    if query.dim() != 4 or not (all_traced and constant):
        return None
    if of_one_head * query.shape[1] <= record.map_bytes:
        return None
    at_once = max(1, int(record.map_bytes // of_one_head))
    if not query.shape[:2] == key.shape[:2] == value.shape[:2]:
        shared = torch.broadcast_shapes(query.shape[:2], key.shape[:2], value.shape[:2])  # type: ignore[no-untyped-call]
        query, key, value = (x.expand(*shared, -1, -1) for x in (query, key, value))
    mask = None if mask is None else mask.detach()
    attention = Attention(scale, mask, masked_softmax, at_once, name="attention")
    with torch._C.DisableTorchFunction():
        output = record.apply(attention, query, key, value)
    record.notice_long_attention(attention, output)
    return output


def masked_softmax(scores: Tensor, scale: float, mask: Tensor | None) -> Tensor:
    """Softmax of scaled scores under a boolean or additive mask; a row with no key left is zero."""
    if mask is None:
        return torch.softmax(scores * scale, -1)
    blocked = ~mask if mask.dtype == torch.bool else mask == -math.inf
    empty = blocked.all(-1, keepdim=True)
    if mask.dtype == torch.bool:
        scores = (scores * scale).masked_fill(blocked & ~empty, -math.inf)
    else:
        scores = scores * scale + mask.masked_fill(empty, 0)
    return torch.softmax(scores, -1).masked_fill(empty, 0)


def softmax_behind(tensor: Tensor) -> Operation | None:
    """The softmax that a tensor came out of, through what only moves, scales or gates it."""
    for operation in _operations_behind(tensor.grad_fn, ("pass", "product", "quotient")):
        if operation.name == SOFTMAX:
            return operation
    return None


def made_of_patches(tensor: Tensor) -> bool:
    """Whether a tensor came out of a convolution, and was only moved about since."""
    behind = list(_operations_behind(tensor.grad_fn, ()))
    return bool(behind) and all(isinstance(operation, Convolution) for operation in behind)


def weighs_products(softmax: Any) -> bool:
    """Whether the input of a softmax, given by its node, is made of a product such as Q K^T."""
    return any(
        operation.kind == "matmul"
        for node, _ in softmax.next_functions
        for operation in _operations_behind(node, ("pass", "add"))
    )


def _operations_behind(node: Any, through: tuple[str, ...]) -> Iterator[Operation]:
    """Operations that led to a node, nearest first, looking through some kinds and all routing."""
    waiting, seen = [node], set[Any]()
    while waiting and len(seen) < _FURTHEST:
        node = waiting.pop(0)
        if node is None or node in seen:
            continue
        seen.add(node)
        operation = getattr(node, "operation", None)
        if operation is not None:
            yield operation
            if operation.kind not in through:
                continue
        waiting.extend(behind for behind, _ in node.next_functions)
