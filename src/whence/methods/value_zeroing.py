"""Value zeroing: outputs without the value of one token (Mohebbi et al.; EACL 2023)."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F
from typing_extensions import override

from whence.errors import WhenceError
from whence.evidence import Evidence
from whence.methods.registry import Method, register
from whence.methods.shared.attention_maps import (
    multiply_layers,
    normalize_rows,
    require_known_layers,
    select_layers,
)
from whence.methods.shared.flow_zeroing import follow_maps, zero_values_in_flow
from whence.tracing import Edit
from whence.tracing.flow.flow import TokenFlow
from whence.tracing.graph import Block
from whence.tracing.ops.products import HALF_TYPES


@register("value_zeroing")
@dataclass(frozen=True)
class ValueZeroing(Method):
    r"""Cosine distance of a layer's outputs when one token's value is set to zero.

    With :math:`\tilde x_i` the output of a block for token i, and :math:`\tilde x_i^{\neg j}` the
    same when the value of token j is zero in all heads, computed from the original input of the
    block,

    .. math:: C_{ij} = 1 - \cos(\tilde x_i^{\neg j}, \tilde x_i).

    Rows of C are divided by their sum, and the layers' matrices are multiplied. The skip connection
    is inside of the block, so no identity is added, as in the authors' code. Distances within
    rounding count as zero, and padding does not count. Where tokens are in windows or merged, the
    same is done within windows, and tokens are followed from layer to layer.

    Attributes:
        layer: One layer alone; negative numbers count from the last; None multiplies all layers.
    """

    needs = ("blocks", "forwards")
    citation = (
        "Mohebbi, Zuidema, Chrupała, Alishahi: Quantifying Context Mixing in Transformers, "
        "EACL 2023"
    )
    cost = "3 + tokens"
    class_specific = False

    layer: int | None = None

    @override
    def __call__(self, evidence: Evidence) -> Tensor:
        if evidence.flow is not None:
            return self._follow_flow(evidence, evidence.flow)
        forwards = evidence.forwards
        layers = select_layers(self.layer, evidence)
        zeroings = [_Zeroing(evidence.blocks[layer], evidence) for layer in layers]
        # A pass of two equal rows shows the order of dimensions.
        first = torch.zeros(2, dtype=torch.long, device=evidence.logits.device)
        forwards.run_edited(first, _merge([zeroing.observe() for zeroing in zeroings]))
        rows = evidence.token_mask.nonzero()
        for chunk in forwards.chunks(len(rows), "zeroing values"):
            samples, tokens = rows[chunk].T
            changes = [zeroing.zero_values(samples, tokens) for zeroing in zeroings]
            forwards.run_edited(samples, _merge(changes))
        return multiply_layers((one.distances for one in reversed(zeroings)), evidence)

    def _follow_flow(self, evidence: Evidence, flow: TokenFlow) -> Tensor:
        """Score tokens in windows or merged."""
        if self.layer is not None:
            raise WhenceError(
                "Where tokens are in windows or merged, this method multiplies all layers: leave "
                "out layer=."
            )
        require_known_layers(evidence)
        found = zero_values_in_flow(evidence, flow, _compute_cosine_distance)
        return follow_maps(evidence, flow, [normalize_rows(one) for one in found])


class _Zeroing:
    """Edits of one block while the model runs: at its values and at its output.

    All blocks are edited in one pass: each passes on its output of the traced pass, so the next one
    starts from its original input. ``distances``, (batch, tokens, tokens), are the cosine distances
    of the first token's output without the second.
    """

    def __init__(self, block: Block, evidence: Evidence) -> None:
        if len(block.sites) > 1:
            raise WhenceError(
                f"The heads of the attention in {block.site.where} are computed one by one, which "
                f"this method cannot zero together."
            )
        self._block, self._batch = block, evidence.batch
        # Which factor of the product holds the values.
        self._value_argument = block.site.values_number
        shape = (evidence.batch, evidence.tokens, evidence.tokens)
        output = block.output.output
        kept = torch.promote_types(output.dtype, torch.float32)
        self.distances = torch.zeros(shape, dtype=kept, device=output.device)
        self._values_by_row = self._output_by_row = True

    def observe(self) -> dict[int, Edit]:
        """Make edits that change nothing, and find whether rows are the first dimension."""

        def observe_values(*factors: Tensor) -> tuple[Tensor, ...]:
            self._values_by_row = _is_row_first(factors[self._value_argument], 2)
            return factors

        def observe_output(output: Tensor) -> Tensor:
            self._output_by_row = _is_row_first(output, 1)
            return output

        return self._make_edits(observe_values, observe_output)

    def zero_values(self, samples: Tensor, tokens: Tensor) -> dict[int, Edit]:
        """Make edits for rows of these samples, each without the value of one token."""

        def zero_one(*factors: Tensor) -> tuple[Tensor, ...]:
            changed = list(factors)
            changed[self._value_argument] = self._zero_token(factors[self._value_argument], tokens)
            return tuple(changed)

        def restore_output(output: Tensor) -> Tensor:
            clean = self._reshape_output(self._block.output.output, self._batch)[samples]
            edited = self._reshape_output(output.detach(), len(samples))
            self.distances[samples, :, tokens] = _compute_cosine_distance(edited, clean)
            return (clean if self._output_by_row else clean.transpose(0, 1)).reshape(output.shape)

        return self._make_edits(zero_one, restore_output)

    def _make_edits(
        self, at_values: Callable[..., tuple[Tensor, ...]], at_output: Callable[[Tensor], Tensor]
    ) -> dict[int, Edit]:
        product, output = self._block.site.product, self._block.output
        return {product.index: Edit(inputs=at_values), output.index: Edit(output=at_output)}

    def _zero_token(self, values: Tensor, tokens: Tensor) -> Tensor:
        """Set one token's values of each row to zero, in any layout."""
        rows, (height, width) = len(tokens), values.shape[-2:]
        keys = width if self._block.site.keys_first else height
        kept = (tokens[:, None] != torch.arange(keys, device=tokens.device)).to(values.dtype)
        kept = kept[:, None, None, :] if self._block.site.keys_first else kept[:, None, :, None]
        shape = (rows, -1, height, width) if self._values_by_row else (-1, rows, height, width)
        kept = kept if self._values_by_row else kept.transpose(0, 1)
        return (values.reshape(shape) * kept).reshape(values.shape)

    def _reshape_output(self, output: Tensor, rows: int) -> Tensor:
        """Reshape the block's output to (rows, tokens, width)."""
        if self._output_by_row:
            return output.reshape(rows, -1, output.shape[-1])
        return output.reshape(-1, rows, output.shape[-1]).transpose(0, 1)


def _merge(edits: list[dict[int, Edit]]) -> dict[int, Edit]:
    return {index: edit for of_block in edits for index, edit in of_block.items()}


def _is_row_first(twice: Tensor, inner: int) -> bool:
    """Whether two equal rows come one after the other, or alternate, before inner dimensions.

    Heads that share their values are equal, too, so that equal halves settle it.
    """
    parts = twice.detach().reshape(-1, *twice.shape[-inner:])
    halves, alternating = parts.chunk(2), (parts[::2], parts[1::2])
    apart = (halves[0] - halves[1]).norm()
    rounding = 8 * torch.finfo(parts.dtype).eps * parts.norm()
    return bool(apart <= rounding) or bool(apart <= (alternating[0] - alternating[1]).norm())


def _compute_cosine_distance(a: Tensor, b: Tensor) -> Tensor:
    """Compute 1 - cos by the difference of unit vectors, which keeps digits of small distances."""
    kept = torch.promote_types(a.dtype, torch.float32)
    distance = (F.normalize(a.to(kept), dim=-1) - F.normalize(b.to(kept), dim=-1)).square()
    # What is stored in 16 bits is rounded when it is stored; else rounding adds up before.
    steps = 1 if a.dtype in HALF_TYPES else 16
    rounding = (steps * torch.finfo(a.dtype).eps) ** 2 / 2
    distance = distance.sum(-1) / 2
    return torch.where(distance > rounding, distance, 0)
