"""Occlusion of patches, or of one token of a text (Zeiler, Fergus; ECCV 2014)."""

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
    mark_unpadded_rows,
    pad_prefix,
    require_one_row_per_token,
    tokens_to_inputs,
)


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

    needs = ("inputs", "forwards")
    citation = "Zeiler, Fergus: Visualizing and Understanding Convolutional Networks, ECCV 2014"
    cost = "tokens"
    signed = True

    window: int = 1
    baseline: float = 0.0
    output: Output = "logit"

    def __post_init__(self) -> None:
        if self.window < 1:
            raise WhenceError(f"window={self.window} must be at least 1.")

    @override
    def __call__(self, evidence: Evidence) -> Tensor:
        inputs, device = evidence.inputs, evidence.inputs.device
        windows = self._make_windows(evidence).to(device)
        # All windows of an image; of a text, the tokens without padding.
        every_pair = torch.ones(evidence.batch, len(windows), dtype=torch.bool, device=device)
        pairs = every_pair if evidence.layout.grid else mark_unpadded_rows(inputs, evidence)
        samples, covered = pairs.nonzero(as_tuple=True)
        every = torch.arange(evidence.batch, device=device)
        whole = compute_outputs(evidence, inputs, every, self.output)
        drops = whole.new_zeros(*whole.shape, len(windows))
        for chunk in evidence.forwards.chunks(len(samples), "covering"):
            rows, window = samples[chunk], covered[chunk]
            hidden = tokens_to_inputs(evidence, windows[window].to(inputs.dtype)) > 0
            changed = torch.where(hidden, self.baseline, inputs[rows])
            left = compute_outputs(evidence, changed, rows, self.output)
            drops[:, rows, window] = whole[:, rows] - left
        weights = windows.to(drops.dtype)
        scores = drops @ (weights / weights.sum(0).clamp(min=1))
        return scores if evidence.layout.grid else pad_prefix(evidence, scores)

    def _make_windows(self, evidence: Evidence) -> Tensor:
        """Make the windows, (windows, tokens), true at covered tokens."""
        grid = evidence.layout.grid
        if grid is None:
            if self.window > 1:
                raise WhenceError(
                    f"window={self.window} is for images; texts are covered token by token."
                )
            require_one_row_per_token(evidence, evidence.inputs.shape[1])
            return torch.eye(evidence.inputs.shape[1], dtype=torch.bool, device="cpu")
        if self.window > min(grid):
            raise WhenceError(
                f"window={self.window} is larger than the grid of {grid[0]}x{grid[1]} patches."
            )
        prefix, side = evidence.layout.prefix or 0, self.window
        patches = torch.arange(grid[0] * grid[1], device="cpu").reshape(grid)
        squares = patches.unfold(0, side, 1).unfold(1, side, 1).reshape(-1, side * side)
        shape = (len(squares), prefix + patches.numel())
        windows = torch.zeros(shape, dtype=torch.bool, device="cpu")
        return windows.scatter_(1, prefix + squares, True)
