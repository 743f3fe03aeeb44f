"""Occlusion (Zeiler, Fergus; ECCV 2014); for text, leaving one token out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from whence.errors import WhenceError
from whence.evidence import Evidence
from whence.methods.registry import Method, register
from whence.methods.shared.inputs import (
    Output,
    check_one_row_per_token,
    measured,
    real_inputs,
    tokens_to_inputs,
    with_prefix,
)


@register("occlusion", aliases=("leave_one_out",))
@dataclass(frozen=True)
class Occlusion(Method):
    r"""How much of the class logit is lost when a patch or token is covered.

    .. math::
        s_i = \operatorname{mean}_{w \ni i} \bigl( y(x) - y(x_{\setminus w}) \bigr)

    with y the class logit or probability, and :math:`x_{\setminus w}` the input whose pixels in
    window w, or the embedding of one token, are replaced by a constant. Windows are squares of
    patches at every place of the grid. Padding is not covered.

    Attributes:
        window: Patches a side of the square that is covered; texts are covered token by token.
        baseline: What covered pixels, or all numbers of a covered embedding, are replaced by.
        output: ``"logit"`` or ``"probability"``.
    """

    needs: ClassVar[tuple[str, ...]] = ("inputs", "forwards")
    citation: ClassVar[str] = (
        "Zeiler, Fergus: Visualizing and Understanding Convolutional Networks, ECCV 2014"
    )
    cost: ClassVar[str] = "tokens"
    class_specific: ClassVar[bool] = True
    signed: ClassVar[bool] = True

    window: int = 1
    baseline: float = 0.0
    output: Output = "logit"

    def __post_init__(self) -> None:
        if self.window < 1:
            raise WhenceError(f"window={self.window} must be at least 1.")

    def __call__(self, evidence: Evidence) -> Tensor:  # noqa: D102
        inputs, device = evidence.inputs, evidence.inputs.device
        windows = self._windows(evidence).to(device)
        samples, covered = _worth_covering(evidence, windows)
        whole = measured(evidence, inputs, torch.arange(evidence.batch, device=device), self.output)
        drops = whole.new_zeros(*whole.shape, len(windows))
        for part in evidence.forwards.chunks(len(samples), "covering"):
            rows, window = samples[part], covered[part]
            hidden = tokens_to_inputs(evidence, windows[window].to(inputs.dtype)) > 0
            changed = torch.where(hidden, self.baseline, inputs[rows])
            left = measured(evidence, changed, rows, self.output)
            drops[:, rows, window] = whole[:, rows] - left
        weights = windows.to(drops.dtype)
        scores = drops @ (weights / weights.sum(0).clamp(min=1))
        return scores if evidence.layout.grid else with_prefix(evidence, scores)

    def _windows(self, evidence: Evidence) -> Tensor:
        """(windows, tokens), true at the tokens that each covers."""
        grid = evidence.layout.grid
        if grid is None:
            if self.window > 1:
                raise WhenceError(
                    f"window={self.window} is for images; texts are covered token by token."
                )
            check_one_row_per_token(evidence, evidence.inputs.shape[1])
            return torch.eye(evidence.inputs.shape[1], dtype=torch.bool, device="cpu")
        if self.window > min(grid):
            raise WhenceError(
                f"window={self.window} is larger than the grid of {grid[0]}x{grid[1]} patches."
            )
        prefix = evidence.layout.prefix or 0
        side = self.window
        patches = torch.arange(grid[0] * grid[1], device="cpu").reshape(grid)
        squares = patches.unfold(0, side, 1).unfold(1, side, 1).reshape(-1, side * side)
        tokens = prefix + patches.numel()
        windows = torch.zeros(len(squares), tokens, dtype=torch.bool, device="cpu")
        return windows.scatter_(1, prefix + squares, True)


def _worth_covering(evidence: Evidence, windows: Tensor) -> tuple[Tensor, Tensor]:
    """Pairs of sample and window: all of an image, those of a text that are no padding."""
    if evidence.layout.grid is None:
        samples, covered = real_inputs(evidence).nonzero(as_tuple=True)
        return samples, covered
    rows = torch.arange(evidence.batch * len(windows), device=windows.device)
    return rows // len(windows), rows % len(windows)
