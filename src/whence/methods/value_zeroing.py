"""Quantifying Context Mixing in Transformers (Mohebbi et al.; EACL 2023)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from whence.evidence import Evidence
from whence.methods.registry import Method, register
from whence.methods.shared.maps import one_sequence
from whence.methods.shared.mixing import layers_of, rolled_out, shares
from whence.tracing import Edit
from whence.tracing.graph.blocks import Block


@register("value_zeroing")
@dataclass(frozen=True)
class ValueZeroing(Method):
    r"""How far the tokens that leave a layer turn when one token's value is zero in it.

    With :math:`\tilde x_i` what leaves a block for token i, and :math:`\tilde x_i^{\neg j}` the
    same when the value of token j is zero in all heads, computed from the original input of the
    block,

    .. math::
        C_{ij} = 1 - \cos(\tilde x_i^{\neg j}, \tilde x_i).

    Rows of C are divided by their sum, and the layers' matrices are multiplied. The skip connection
    is inside of the block, so no identity is added, as in the authors' code. Distances that
    rounding alone can make count as zero, and padding is not counted.

    Attributes:
        layer: One layer alone, counted from 0, or from the last by negative numbers; None joins
            all.
    """

    needs: ClassVar[tuple[str, ...]] = ("blocks", "forwards")
    citation: ClassVar[str] = (
        "Mohebbi, Zuidema, Chrupała, Alishahi: Quantifying Context Mixing in Transformers, "
        "EACL 2023"
    )
    cost: ClassVar[str] = "3 + tokens"
    class_specific: ClassVar[bool] = False

    layer: int | None = None

    def __call__(self, evidence: Evidence) -> Tensor:  # noqa: D102
        forwards = evidence.forwards
        one_sequence(evidence)
        layers = layers_of(self.layer, len(evidence.blocks))
        zeroings = [_Zeroing(evidence.blocks[layer], evidence) for layer in layers]
        # The order of dimensions shows in a pass of two rows that are the same.
        first = torch.zeros(2, dtype=torch.long, device=evidence.logits.device)
        forwards.run_edited(first, _joined([zeroing.watching() for zeroing in zeroings]))
        rows = evidence.token_mask.nonzero()
        for part in forwards.chunks(len(rows), "zeroing values"):
            samples, tokens = rows[part].T
            changes = [zeroing.changing(samples, tokens) for zeroing in zeroings]
            forwards.run_edited(samples, _joined(changes))
        return rolled_out([shares(z.distances) for z in zeroings], evidence.pooling, False)


class _Zeroing:
    """What is done to one block while the model runs: at its values, and where it ends.

    All blocks are changed in one pass: each ends by handing on what it gave in the recorded pass,
    so the next one starts from its original input.

    Attributes:
        distances: (batch, tokens, tokens), how far the first token turns without the second.
    """

    def __init__(self, block: Block, evidence: Evidence) -> None:
        self._block = block
        self._batch = evidence.batch
        tokens = evidence.tokens
        self.distances = block.output.output.new_zeros(evidence.batch, tokens, tokens)
        self._values_by_row = self._leaving_by_row = True

    def watching(self) -> dict[int, Edit]:
        """Edits that change nothing, and find whether rows or something else comes first."""

        def values(*factors: Tensor) -> tuple[Tensor, ...]:
            self._values_by_row = _rows_first(factors[self._which], 2)
            return factors

        def leaving(output: Tensor) -> Tensor:
            self._leaving_by_row = _rows_first(output, 1)
            return output

        return self._edits(values, leaving)

    def changing(self, samples: Tensor, tokens: Tensor) -> dict[int, Edit]:
        """Edits for rows of these samples, each of which lacks the value of one token."""

        def values(*factors: Tensor) -> tuple[Tensor, ...]:
            changed = list(factors)
            changed[self._which] = self._without(factors[self._which], tokens)
            return tuple(changed)

        def leaving(output: Tensor) -> Tensor:
            clean = self._rows(self._block.output.output, self._batch)[samples]
            turned = _cosine_distance(self._rows(output.detach(), len(samples)), clean)
            self.distances[samples, :, tokens] = turned
            return (clean if self._leaving_by_row else clean.transpose(0, 1)).reshape(output.shape)

        return self._edits(values, leaving)

    def _edits(
        self, values: Callable[..., tuple[Tensor, ...]], leaving: Callable[[Tensor], Tensor]
    ) -> dict[int, Edit]:
        at_values, at_end = self._block.site.product.index, self._block.output.index
        return {at_values: Edit(inputs=values), at_end: Edit(output=leaving)}

    @property
    def _which(self) -> int:
        """Which factor of the product is the values."""
        return 0 if self._block.site.keys_first else 1

    def _without(self, values: Tensor, tokens: Tensor) -> Tensor:
        """Values of rows, in any layout, of which one token's are zero."""
        rows, (height, width) = len(tokens), values.shape[-2:]
        keys = width if self._block.site.keys_first else height
        kept = (tokens[:, None] != torch.arange(keys, device=tokens.device)).to(values.dtype)
        kept = kept[:, None, None, :] if self._block.site.keys_first else kept[:, None, :, None]
        shape = (rows, -1, height, width) if self._values_by_row else (-1, rows, height, width)
        kept = kept if self._values_by_row else kept.transpose(0, 1)
        return (values.reshape(shape) * kept).reshape(values.shape)

    def _rows(self, output: Tensor, rows: int) -> Tensor:
        """What leaves the block, as (rows, tokens, width)."""
        if self._leaving_by_row:
            return output.reshape(rows, -1, output.shape[-1])
        return output.reshape(-1, rows, output.shape[-1]).transpose(0, 1)


def _joined(edits: list[dict[int, Edit]]) -> dict[int, Edit]:
    return {index: edit for of_block in edits for index, edit in of_block.items()}


def _rows_first(twice: Tensor, inner: int) -> bool:
    """Whether rows come first in a tensor of two that are the same, or alternate.

    Args:
        twice: The tensor, (..., inner dimensions).
        inner: How many dimensions have nothing to do with rows.
    """
    parts = twice.detach().reshape(-1, *twice.shape[-inner:])
    halves, alternating = parts.chunk(2), (parts[::2], parts[1::2])
    return bool((halves[0] - halves[1]).norm() <= (alternating[0] - alternating[1]).norm())


def _cosine_distance(a: Tensor, b: Tensor) -> Tensor:
    """1 - cos, by the difference of unit vectors, which keeps the digits of small distances."""
    distance = (F.normalize(a, dim=-1) - F.normalize(b, dim=-1)).square().sum(-1) / 2
    rounding = (16 * torch.finfo(a.dtype).eps) ** 2 / 2
    return torch.where(distance > rounding, distance, 0)
