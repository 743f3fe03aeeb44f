"""Occlusion of patches, or of one token of a text (Zeiler, Fergus; ECCV 2014)."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from typing_extensions import override

from whence.errors import WhenceError
from whence.evidence import Evidence
from whence.methods.registry import Method, register
from whence.methods.shared.inputs import (
    Output,
    compute_outputs,
    mark_unpadded_units,
    units_to_inputs,
)
from whence.tracing.ops.products import HALF_TYPES


@register("occlusion", aliases=("leave_one_out",))
@dataclass(frozen=True)
class Occlusion(Method):
    r"""The drop of the class logit when a patch or token is covered.

    .. math:: s_i = \operatorname{mean}_{w \ni i} \bigl( y(x) - y(x_{\setminus w}) \bigr)

    with y the class logit or probability, and :math:`x_{\setminus w}` the input whose pixels in
    window w, or the embedding of one token, are replaced by a constant. Windows are squares of
    patches at every position of the grid. Padding is not covered.

    Attributes:
        window: Side of the covered square in patches; texts are covered token by token.
        baseline: The value of covered pixels, or of a covered embedding.
        output: ``"logit"`` or ``"probability"``.
    """

    needs = ("forwards",)
    citation = "Zeiler, Fergus: Visualizing and Understanding Convolutional Networks, ECCV 2014"
    cost = "tokens"
    unsteady_types = HALF_TYPES
    signed = True

    window: int = 1
    baseline: float = 0.0
    output: Output = "logit"

    def __post_init__(self) -> None:
        if self.window < 1:
            raise WhenceError(f"window={self.window} must be at least 1.")

    @override
    def __call__(self, evidence: Evidence) -> Tensor:
        inputs, device = evidence.forwards.inputs, evidence.logits.device
        windows = self._make_windows(evidence).to(device)
        # Windows that cover more than padding.
        unpadded = mark_unpadded_units(evidence).to(evidence.logits.dtype)
        pairs = unpadded @ windows.T.to(unpadded.dtype) > 0
        samples, covered = pairs.nonzero(as_tuple=True)
        every = torch.arange(evidence.batch, device=device)
        whole = compute_outputs(evidence, inputs, every, self.output)
        drops = whole.new_zeros(*whole.shape, len(windows))
        for chunk in evidence.forwards.chunks(len(samples), "covering"):
            rows, window = samples[chunk], covered[chunk]
            shown = units_to_inputs(evidence, (~windows[window]).to(drops.dtype), rows)
            pairs_shown = zip(inputs, shown, strict=True)
            changed = [torch.where(kept > 0, x[rows], self.baseline) for x, kept in pairs_shown]
            left = compute_outputs(evidence, changed, rows, self.output)
            drops[:, rows, window] = whole[:, rows] - left
        weights = windows.to(drops.dtype)
        return evidence.layout.to_tokens(drops @ (weights / weights.sum(0).clamp(min=1)))

    def _make_windows(self, evidence: Evidence) -> Tensor:
        """Make the windows, (windows, units), true at covered units."""
        grid, side = evidence.layout.grid, self.window
        if grid is None and side > 1:
            raise WhenceError(f"window={side} is for images; texts are covered token by token.")
        grid = grid or (evidence.layout.unit_count,)
        if side > min(grid):
            shape = "x".join(map(str, grid))
            raise WhenceError(f"window={side} is larger than the grid of {shape} patches.")
        units = torch.arange(math.prod(grid), device="cpu").reshape(grid)
        for axis in range(len(grid)):
            units = units.unfold(axis, side, 1)
        units = units.reshape(-1, side ** len(grid))
        windows = torch.zeros(len(units), math.prod(grid), dtype=torch.bool, device="cpu")
        return windows.scatter_(1, units, True)
