"""Vectors that tokens add to each other through the attention of one block."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from whence.errors import WhenceError
from whence.methods.shared.value_vectors import LinearNorm, project_values
from whence.tracing.graph import Block, find_projection
from whence.tracing.ops.attention import AttentionSite
from whence.tracing.ops.products import is_reduced_precision
from whence.tracing.trace import Trace


class BlockVectors(NamedTuple):
    r"""What makes up the output of a block's attention, with its skip connection and norm.

    Token j adds to token i the vector

    .. math:: T_{ij} = \Bigl(\sum_h \alpha^h_{ij} f^h_j + \delta_{ij} x_i\Bigr) / \sigma_i.

    Attributes:
        values: (batch, heads, keys, width), f.
        own: (batch, tokens, width), x.
        spread: (batch, queries, 1), :math:`\sigma`; a dimension of 1 stands for all.
        norm: The normalisation after the skip connection, where it is part of these vectors.
    """

    values: Tensor
    own: Tensor
    spread: Tensor
    norm: LinearNorm | None

    def to(self, dtype: torch.dtype) -> "BlockVectors":
        """Convert the numbers to a type."""
        return BlockVectors(
            self.values.to(dtype), self.own.to(dtype), self.spread.to(dtype), self.norm
        )

    def iterate_queries(
        self, site: AttentionSite, batch: int, numbers_at_once: int
    ) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """Compute T of some queries at a time, (batch, some queries, keys, width).

        Before it come the queries, and which keys reach them at all.

        Args:
            site: Where the attention map is.
            batch: Number of samples.
            numbers_at_once: How many numbers are computed at a time, if one query has no more.
        """
        tokens, width = self.values.shape[-2:]
        at_once = max(1, numbers_at_once // (batch * tokens * width))
        spread = self.spread.expand(batch, tokens, 1)
        for queries, maps in site.iterate_queries(batch):
            for start in range(queries.start, queries.stop, at_once):
                rows = slice(start, min(start + at_once, queries.stop))
                part = maps[..., start - queries.start : rows.stop - queries.start, :]
                added = torch.einsum("bhqk,bhkw->bqkw", part.to(self.values.dtype), self.values)
                added[..., rows, :].diagonal(dim1=1, dim2=2).add_(self.own[:, rows].mT)
                reached = (part != 0).any(1)
                reached[..., rows].diagonal(dim1=-2, dim2=-1).fill_(True)
                yield rows, reached, added / spread[:, rows, None]


def find_vectors(trace: Trace, block: Block, with_norm: bool) -> BlockVectors:
    """Find the vectors of a block's attention and skip connection.

    Args:
        trace: The recorded forward pass.
        block: The block.
        with_norm: Whether they go through the normalisation right after both, where there is one.
    """
    projection = find_projection(trace, block.site, block.skip_addition)
    values, spread = project_values(trace, block.sites, projection)
    require_own_tokens(block.site)
    own = spread * trace.split_tokens(block.input, block.input_edge, block.input.shape)
    if not with_norm or block.post_norm is None:
        return BlockVectors(values, own, spread, None)
    norm = LinearNorm(trace, block.site.where, block.post_norm)
    return BlockVectors(norm.scale(values), norm.scale(own), spread * norm.spread, norm)


def require_own_tokens(site: AttentionSite) -> None:
    """Refuse attention to other tokens than those that attend."""
    if site.query_count != site.key_count:
        raise WhenceError(
            f"The attention in {site.where} has {site.query_count} queries for {site.key_count} "
            f"keys; this method needs attention of tokens to themselves."
        )


def find_resolution(dtype: torch.dtype) -> float:
    """What numbers of a type resolve at most, given the type that products are computed in.

    Many models compute maps and norms in float32, whatever the type of their weights is.
    """
    eps = max(torch.finfo(one).eps for one in (dtype, torch.float32))
    if is_reduced_precision():
        return max(eps, torch.finfo(torch.bfloat16).eps)
    if torch.get_float32_matmul_precision() != "highest":
        return max(eps, 2.0**-10)  # TF32
    return eps
