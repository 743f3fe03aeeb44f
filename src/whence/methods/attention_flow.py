"""Attention flow: maximum flow through attention to each token (Abnar, Zuidema; ACL 2020)."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import override

from whence._util.extras import import_extra
from whence._util.progress import bar
from whence.errors import WhenceError
from whence.evidence import Evidence
from whence.methods.registry import Method, register
from whence.methods.shared.attention_maps import (
    lower_pooled_token,
    require_layers_in_turn,
    require_one_sequence,
)
from whence.tracing.graph import is_attention_pooling
from whence.tracing.ops.products import HALF_TYPES

Floats = NDArray[np.float64]
# Capacities are whole numbers, multiples of 1 / _UNIT: as fine as 32 bits allow.
_UNIT = 2**30


@register("attention_flow")
@dataclass(frozen=True)
class AttentionFlow(Method):
    r"""The maximum flow through attention from the pooled tokens to each input token.

    Tokens of every layer are the nodes of a network, and the attention of a token to those of the
    layer upstream is the capacity of the edges between them:

    .. math::
        c^{(b)} = \mathrm{rows\ of}\ (I + \mathbb{E}_h A^{(b)})\ \mathrm{divided\ by\ their\ sum}.

    The score of an input token is the maximum flow to it, computed for each token alone. The flow
    starts with 1, split among the pooled tokens by their weights (all of it at the class token, as
    in the paper; equal shares for average pooling, which the paper leaves open). Padding is left
    out. A pooled token that is a part of the input has the flow through skip connections in its
    score. In a text, a single pooled token that is no part of the input gets the lowest score of
    the others. The authors divide the scores by their sum; here they are flows, between 0 and 1.

    The minimum cut, which equals the maximum flow, is found with capacities rounded down to
    multiples of :math:`2^{-30}`, and measured with the exact ones.

    Attributes:
        start_layer: The first layer that counts; earlier ones are left out.
    """

    needs = ("attention",)
    citation = "Abnar, Zuidema: Quantifying Attention Flow in Transformers, ACL 2020"
    cost = "1, and a maximum flow for each token"
    needs_one_sequence = True
    unsteady_types = HALF_TYPES
    class_specific = False

    start_layer: int = 0

    @override
    def __call__(self, evidence: Evidence) -> Tensor:
        require_one_sequence(evidence, self.start_layer)
        require_layers_in_turn(evidence)
        used = evidence.attention[self.start_layer :]
        maps = [layer.mean(1).cpu().double().numpy() for layer in reversed(used)]
        real, pools = evidence.token_mask.cpu().numpy(), is_attention_pooling(evidence.layers)
        pooling = evidence.pooling.cpu().double().numpy()
        scores = np.zeros((*pooling.shape[:2], maps[-1].shape[-1]))
        # Classes mostly pool the same tokens, and then have the same flows.
        kinds = [np.unique(pooling[:, i], axis=0, return_inverse=True) for i in range(len(real))]
        total = sum(len(read) for read, _ in kinds) * scores.shape[-1]
        with bar("attention flow", total) as advance:
            for sample, (read, kind) in enumerate(kinds):
                of_sample = [layer[sample] for layer in maps]
                capacities = [
                    _compute_capacity(one, has_skip=number > 0 or not pools)
                    for number, one in enumerate(of_sample)
                ]
                sinks = real[sample] if len(real[sample]) == scores.shape[-1] else None
                flows = [_compute_flows(weights, capacities, sinks, advance) for weights in read]
                scores[:, sample] = np.stack(flows)[kind.reshape(-1)]
        return lower_pooled_token(torch.from_numpy(scores).to(evidence.pooling), evidence)


def _compute_capacity(attention: Floats, has_skip: bool) -> Floats:
    """Compute capacities, (queries, keys), with the skip connection if there is one."""
    capacity = attention + np.eye(len(attention)) if has_skip else attention
    sums = capacity.sum(1, keepdims=True)
    return capacity / np.where(sums == 0, 1, sums)


def _compute_flows(
    pooling: Floats,
    capacities: list[Floats],
    sinks: NDArray[np.bool_] | None,
    advance: Callable[[int], None],
) -> Floats:
    """Compute the maximum flow to every input token; 0 for tokens that are no sinks.

    It starts at the tokens of ``pooling``, and ``capacities`` are those of the last layer first.
    """
    network = _Network([pooling[None], *capacities[:-1]])
    flows = np.zeros(capacities[-1].shape[1])
    for token, into in enumerate(capacities[-1].T):
        if sinks is None or sinks[token]:
            flows[token] = network.compute_flow(into)
        advance(1)
    return flows


class _Network:
    """A layered network; ``capacities`` are (from, to) for each layer, the source's first."""

    def __init__(self, capacities: list[Floats]) -> None:
        for upper, lower in pairwise(capacities):
            if upper.shape[1] != lower.shape[0]:
                raise WhenceError(
                    f"The attention maps do not follow on each other: one has {lower.shape[0]} "
                    f"queries, the next reads {upper.shape[1]} tokens. Models with windows, merged "
                    f"tokens or cross-attention cannot be explained by this method."
                )
        offsets = np.cumsum([0, *(layer.shape[0] for layer in capacities)])
        self._above = np.arange(capacities[-1].shape[1]) + offsets[-1]
        self._sink = int(self._above[-1]) + 1
        edges = [np.nonzero(layer) for layer in capacities]
        starts = [e[0] + o for e, o in zip(edges, offsets, strict=False)]
        ends = [e[1] + o for e, o in zip(edges, offsets[1:], strict=False)]
        self._start = np.concatenate([*starts, self._above])
        self._end = np.concatenate([*ends, np.full(len(self._above), self._sink)])
        inner = [layer[edge] for layer, edge in zip(capacities, edges, strict=True)]
        self._size = np.concatenate([*inner, np.zeros(len(self._above))])
        self._whole = (self._size * _UNIT).astype(np.int32)
        self._graph = import_extra("scipy.sparse.csgraph", "scipy")
        self._matrix = import_extra("scipy.sparse", "scipy").csr_matrix
        # Edges are sorted by their start, so rows are slices of them.
        self._rows = np.searchsorted(self._start, np.arange(self._sink + 2)).astype(np.int32)
        self._columns = self._end.astype(np.int32)

    def compute_flow(self, into: Floats) -> float:
        """Compute the maximum flow to a sink, with the capacities of the edges into it."""
        to_sink = slice(len(self._size) - len(into), None)
        self._size[to_sink] = into
        self._whole[to_sink] = into * _UNIT
        shape = (self._sink + 1, self._sink + 1)
        network = self._matrix((self._whole, self._columns, self._rows), shape=shape)
        result = self._graph.maximum_flow(network, 0, self._sink)
        if result.flow_value == self._whole[to_sink].sum(dtype=np.int64):
            return float(into.sum())
        left = network - result.flow
        left.eliminate_zeros()
        reached = np.zeros(self._sink + 1, dtype=bool)
        reached[self._graph.breadth_first_order(left, 0, return_predecessors=False)] = True
        return float(self._size[reached[self._start] & ~reached[self._end]].sum())
