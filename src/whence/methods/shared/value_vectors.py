"""The vectors that attention moves: values of each head, taken through the output projection."""

from collections.abc import Sequence

import torch
from torch import Tensor

from whence.errors import WhenceError
from whence.tracing.graph.nodes import is_scaling
from whence.tracing.ops.attention import AttentionSite
from whence.tracing.ops.base import Operation
from whence.tracing.ops.function import Function, is_norm
from whence.tracing.ops.products import Linear
from whence.tracing.trace import Trace


class LinearNorm:
    """A normalisation as a linear map, with its denominators, ``spread``, held constant.

    Its ``bias``, (width,), is added afterwards.
    """

    def __init__(self, trace: Trace, where: str, norm: Function) -> None:
        entry, x = trace.entries[norm.index], norm.inputs[0].detach()
        sums = trace.split_tokens(x, entry.inputs[0], x.shape)
        normalised = trace.split_tokens(norm.output, entry.output, norm.output.shape)
        self.bias, self._weight, self._centres = probe_norm(norm)
        scaled, target = self.scale(sums), normalised - self.bias
        sizes = scaled.norm(dim=-1, keepdim=True)
        spread = sizes / target.norm(dim=-1, keepdim=True)
        # (batch, queries, 1); any denominator will do for zeros.
        self.spread: Tensor = torch.where(spread.isfinite() & (sizes > 0), spread, 1)
        # Many models compute their norms in float32, whatever the type of their weights is.
        eps = max(torch.finfo(dtype).eps for dtype in (sums.dtype, torch.float32))
        close = 1e3 * eps * normalised.abs().amax()
        if (scaled / self.spread - target).abs().amax() > close:
            raise WhenceError(
                f"'{norm.name}' after the attention in {where} does not normalise "
                f"each token by itself. Use include='residual' of 'attention_norm', which leaves "
                f"it out."
            )

    def scale(self, vectors: Tensor) -> Tensor:
        """Subtract the mean of vectors, (..., width), and multiply by the weight."""
        centred = vectors - vectors.mean(-1, keepdim=True) if self._centres else vectors
        return centred * self._weight


def probe_norm(norm: Function) -> tuple[Tensor, Tensor, bool]:
    """Find bias and weight of a normalisation, and whether it subtracts the mean.

    They are found by calling it, so any implementation works. A vector whose mean is 0, and so long
    that the small constant in the denominator does not count, is only divided by its root mean
    square and multiplied by the weight.
    """
    ones = torch.ones_like(norm.inputs[0], requires_grad=False)
    probe = ones.clone()
    probe[..., -1] = 1 - ones.shape[-1]

    def first_row(x: Tensor) -> Tensor:
        with torch.no_grad():
            return norm.function(x).flatten(0, -2)[0]

    bias = first_row(torch.zeros_like(ones))
    longest = torch.finfo(ones.dtype).max / 4 / ones.shape[-1]  # 16 bits do not hold much more
    at_probe = first_row(probe * min(1e6, longest)) - bias
    probe = probe.flatten(0, -2)[0]
    weight = at_probe * probe.square().mean().sqrt() / probe
    centres = (first_row(ones) - bias).abs().amax() < 1e-3 * weight.abs().amax()
    return bias, weight, bool(centres)


def project_values(
    trace: Trace, sites: Sequence[AttentionSite], projection: Sequence[Operation]
) -> tuple[Tensor, Tensor]:
    """Compute what each head adds for each token it attends to fully: (batch, heads, keys, width).

    The values of one head are put in their place among zeros, and taken through the projection that
    joins the heads, without its bias. Where a norm follows, the second tensor is its denominator
    for each query, (batch, queries, 1), by which sums over keys are yet to be divided.
    """
    values, where = sites[0].split_values(trace.batch), sites[0].where
    linear = [operation for operation in projection if isinstance(operation, Linear)]
    if len(sites) > 1 or len(linear) != 1 or linear[0].weight.dim() != 2:
        raise WhenceError(
            f"The attention in {where} is not followed by a single projection that joins its "
            f"heads, which this method needs."
        )
    if getattr(linear[0], "weight_first", False):
        raise WhenceError(f"The projection in {where} cannot be split into heads.")
    weight = linear[0].weight if type(linear[0]) is Linear else linear[0].weight.mT
    if weight.shape[1] != values.shape[-3] * values.shape[-1]:
        raise WhenceError(
            f"The projection after the attention in {where} reads more than what its heads put "
            f"out, so that it cannot be split into heads, as this method needs it."
        )
    by_head = weight.reshape(weight.shape[0], values.shape[-3], values.shape[-1])
    projected = torch.einsum("...hkd,whd->...hkw", values, by_head)
    spread = projected.new_ones(1, 1, 1)
    for operation in (one for one in projection if one is not linear[0]):
        after = operation.index > linear[0].index
        if after and isinstance(operation, Function) and is_norm(operation):
            norm = LinearNorm(trace, where, operation)
            projected, spread = norm.scale(projected), spread * norm.spread
        else:
            projected = projected * _find_scale(where, operation)
    return projected, spread


def _find_scale(where: str, operation: Operation) -> Tensor:
    """The constant, (width,), by which an operation after the projection multiplies each token."""
    if not isinstance(operation, Function) or not is_scaling(operation):
        raise WhenceError(
            f"What follows the attention in {where} is more than a projection, a norm "
            f"and a scaling, as this method needs it to be."
        )
    scale = operation.vjp(torch.ones_like(operation.output))[0]
    row = scale.reshape(-1, scale.shape[-1])[0]
    if not torch.allclose(scale, row.expand_as(scale)):
        raise WhenceError(
            f"What follows the attention in {where} is not linear, as this method needs it to be."
        )
    return row
