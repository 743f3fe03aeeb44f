"""Sites of attention: where a map, the output of a softmax, meets the values that it weighs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node

from whence._util.torch_internals import PERMUTE, TRANSPOSE, T, output_metadata
from whence.tracing.ops.base import Operation
from whence.tracing.ops.chunked_attention import ChunkedAttention
from whence.tracing.ops.function import Function
from whence.tracing.ops.products import ConstantMatMul, Convolution, Linear, MatMul
from whence.tracing.ops.softmax import SOFTMAX

# How many nodes are looked through on the way from a product back to its softmax.
_SEARCH_LIMIT = 64


@dataclass(frozen=True)
class Arrangement:
    """How the leading dimensions of an attention map are laid out: samples, groups and heads.

    Attributes:
        dims: Number of leading dimensions.
        factors: The sizes that they are split into.
        heads: The numbers of the factors that are heads; the others are samples and groups.
        batch: Number of samples.
        samples_first: Whether samples come before groups.
    """

    dims: int
    factors: tuple[int, ...]
    heads: tuple[int, ...]
    batch: int
    samples_first: bool = True

    @property
    def rest(self) -> list[int]:
        """The numbers of the factors that are no heads."""
        return [number for number in range(len(self.factors)) if number not in self.heads]

    @property
    def groups(self) -> int:
        """Number of groups of a sample, such as windows."""
        return math.prod(self.factors[number] for number in self.rest) // self.batch

    def split(self, value: Tensor) -> Tensor:
        """A value, (..., leading dimensions, rows, columns), by samples, groups and heads.

        It is (..., batch, groups, heads, rows, columns), without groups if there is one alone.
        """
        count = len(self.factors)
        flat = value.reshape(-1, *self.factors, *value.shape[-2:])
        order = (0, *(n + 1 for n in self.rest), *(n + 1 for n in self.heads), count + 1, count + 2)
        flat = flat.permute(order)
        rest = (self.batch, self.groups) if self.samples_first else (self.groups, self.batch)
        flat = flat.reshape(len(flat), *rest, -1, *value.shape[-2:])
        flat = flat if self.samples_first else flat.transpose(1, 2)
        extra = value.shape[: value.dim() - 2 - self.dims]
        split = flat.reshape(*extra, *flat.shape[1:])
        return split.squeeze(-4) if self.groups == 1 else split


@dataclass
class AttentionSite:
    """One attention map of the forward pass, where it is multiplied with values.

    Attributes:
        weights: The factor of that product; part of the graph, so that it can be read here.
        product: The operation that multiplies it with the values.
        where: The module it was computed in.
        keys_first: Whether the factor is the map transposed, as in V^T A^T.
        heads_first: Whether heads come before samples in its leading dimensions.
        output: Where in the graph the output is of attention that is one operation and keeps no
            map. The weights are then a shape without numbers.
        arrangement: Its leading dimensions, where attention is over groups of tokens.
        problem: A sentence on why its leading dimensions are not known; empty if they are.
    """

    weights: Tensor
    product: MatMul | ChunkedAttention
    where: str
    keys_first: bool = False
    heads_first: bool = False
    output: GradientEdge | None = None
    arrangement: Arrangement | None = None
    problem: str = ""

    @property
    def place(self) -> Tensor | GradientEdge:
        """Where in the graph the site is read: at the map, or at the output if there is none."""
        return self.weights if self.output is None else self.output

    @property
    def values_number(self) -> int:
        """Which input of the product the values are."""
        if isinstance(self.product, ChunkedAttention):
            return 2
        return 0 if self.keys_first else 1

    @property
    def query_count(self) -> int:
        """The number of queries."""
        return self.weights.shape[-1 if self.keys_first else -2]

    @property
    def key_count(self) -> int:
        """The number of keys."""
        return self.weights.shape[-2 if self.keys_first else -1]

    def release(self) -> None:
        """Free the map; its shape stays known."""
        self.weights = torch.empty(self.weights.shape, device="meta")

    def split_values(self, batch: int) -> Tensor:
        """The values that the map weighs, as (batch, heads, keys, width of a head)."""
        if isinstance(self.product, ChunkedAttention):
            return self.product.fetch().values
        values = self.product.a.mT if self.keys_first else self.product.b
        values = values.expand(*self.weights.shape[:-2], *values.shape[-2:])
        if self.arrangement is not None:
            return self.arrangement.split(values)
        leading = (-1, batch) if self.heads_first else (batch, -1)
        values = values.reshape(*leading, *values.shape[-2:])
        return values.transpose(0, 1) if self.heads_first else values

    def iterate_queries(self, batch: int) -> Iterator[tuple[slice, Tensor]]:
        """The map of some queries at a time, (batch, heads, some queries, keys); which they are."""
        if isinstance(self.product, ChunkedAttention):
            for rows, part in self.product.fetch().split_queries():
                yield rows, part.split_operations()[-2].output
        else:
            yield slice(0, self.query_count), self.split_heads(self.weights.detach(), batch)

    def split_heads(self, value: Tensor, batch: int) -> Tensor:
        """The map, or a value read there, as (..., batch, heads, queries, keys).

        Where attention is over groups, as (..., batch, groups, heads, queries, keys).
        """
        if self.arrangement is not None:
            split = self.arrangement.split(value)
            return split.mT if self.keys_first else split
        extra = value.shape[: value.dim() - self.weights.dim()]
        leading = (-1, batch) if self.heads_first else (batch, -1)
        value = value.reshape(*extra, *leading, *self.weights.shape[-2:])
        value = value.transpose(-4, -3) if self.heads_first else value
        return value.mT if self.keys_first else value


def find_head_order(
    sites: list[AttentionSite],
    batch: int,
    dependence: Callable[[AttentionSite], Tensor],
    look_at: Callable[[Tensor], bool | int | float],
) -> None:
    """Find which leading dimension of the maps is samples, and which is heads.

    Where a map is not laid out as samples and heads, as in attention over windows, the site keeps
    a sentence on it.

    Args:
        sites: The sites; `heads_first` is set.
        batch: Number of samples.
        dependence: Gradient, at a site, of all logits of the first sample.
        look_at: Gives the value of a tensor that decides what is done.
    """
    for site in sites:
        leading = site.weights.shape[:-2]
        folded = len(leading) == 1 and leading[0] % batch == 0
        samples_first = folded or (len(leading) == 2 and leading[0] == batch)
        heads_first = folded or (len(leading) == 2 and leading[1] == batch)
        if heads_first and batch > 1 and leading != (batch,):
            touched = dependence(site).flatten(-2).any(-1)
            # The logits of the first sample do not depend on the maps of others.
            samples_first &= not look_at(touched.reshape(batch, -1)[1:].any())
            heads_first &= not look_at(touched.reshape(-1, batch)[:, 1:].any())
        if not samples_first and not heads_first:
            site.problem = (
                f"The attention in {site.where} has maps of shape {tuple(site.weights.shape)} for "
                f"{batch} sample(s), not (batch, heads, queries, keys), and it could not be proven "
                f"which tokens its groups are made of. Methods that need only the input, such as "
                f"'input_x_gradient', work."
            )
            continue
        site.heads_first = not samples_first


def find_upstream_softmax(tensor: Tensor) -> Operation | None:
    """The softmax of scores upstream of a tensor, through what only moves, scales or gates it.

    The weights of experts are none: their softmax is over what a linear map puts out.
    """
    kinds = ("pass", "product", "quotient")
    for node, operation in _iterate_nodes(tensor.grad_fn, kinds, mixes_heads=True):
        if operation.name == SOFTMAX:
            return None if _chooses_features(node, operation) else operation
    return None


def _chooses_features(softmax: Node, operation: Operation) -> bool:
    """Whether a softmax is over the features of one token, which a linear map puts out."""
    node: Node | None = softmax
    while node is not None and len(node.next_functions) == 1:
        node = node.next_functions[0][0]
        upstream: Operation | None = getattr(node, "operation", None)
        if upstream is not None and upstream.kind != "pass":
            features = isinstance(upstream, Linear) and not isinstance(upstream, Convolution)
            constant_first = isinstance(upstream, ConstantMatMul) and upstream.weight_first
            over_last = isinstance(operation, Function) and operation.mixed_dims == 1
            return features and not constant_first and over_last
        if upstream is None and node is not None and node.name() in (TRANSPOSE, PERMUTE, T):
            return False
    return False


def is_made_of_patches(tensor: Tensor) -> bool:
    """Whether a tensor is the output of a convolution that was only moved about since."""
    upstream = list(_iterate_upstream(tensor.grad_fn, ()))
    return bool(upstream) and all(isinstance(operation, Convolution) for operation in upstream)


def reads_matrix_product(softmax: Node) -> bool:
    """Whether the input of a softmax, given by its node, is made of a product such as Q K^T."""
    return any(
        operation.kind == "matmul"
        for node, _ in softmax.next_functions
        for operation in _iterate_upstream(node, ("pass", "add"), mixes_heads=True)
    )


def _iterate_upstream(
    node: Node | None, through: tuple[str, ...], mixes_heads: bool = False
) -> Iterator[Operation]:
    """Operations upstream of a node, nearest first, through some kinds and all routing.

    Args:
        node: The node.
        through: The kinds.
        mixes_heads: Whether also through linear maps that mix heads, as talking heads do.
    """
    return (operation for _, operation in _iterate_nodes(node, through, mixes_heads))


def _iterate_nodes(
    node: Node | None, through: tuple[str, ...], mixes_heads: bool = False
) -> Iterator[tuple[Node, Operation]]:
    """The same with their nodes."""
    waiting, seen = [node], set[Node]()
    while waiting and len(seen) < _SEARCH_LIMIT:
        node = waiting.pop(0)
        if node is None or node in seen:
            continue
        seen.add(node)
        operation: Operation | None = getattr(node, "operation", None)
        if operation is not None:
            yield node, operation
            if operation.kind not in through and not (mixes_heads and _mixes_heads(node)):
                continue
        waiting.extend(upstream for upstream, _ in node.next_functions)


def _mixes_heads(node: Node) -> bool:
    """Whether a node is a linear map of as many heads to as many, of maps (batch, heads, ...).

    It is a convolution of single elements, or a map of heads that were moved to the end.
    """
    operation: Operation | None = getattr(node, "operation", None)
    upstream, nr = node.next_functions[0] if node.next_functions else (None, 0)
    if not isinstance(operation, Linear) or upstream is None:
        return False
    entering, leaving = output_metadata(upstream)[nr].shape, output_metadata(node)[0].shape
    if isinstance(operation, Convolution):
        weight = getattr(operation, "weight", None)  # gone where nothing is kept
        return len(entering) == 4 and weight is not None and set(weight.shape[2:]) == {1}
    moved = upstream.name() in (TRANSPOSE, PERMUTE)
    return moved and len(entering) == 4 and tuple(entering) == tuple(leaving)
