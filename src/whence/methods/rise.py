"""RISE: the mean output over random masks (Petsiuk, Das, Saenko; BMVC 2018)."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F
from typing_extensions import override

from whence._util.random import SeededRandom
from whence.errors import WhenceError
from whence.evidence import Evidence
from whence.methods.registry import Method, register
from whence.methods.shared.inputs import (
    Output,
    compute_outputs,
    mark_unpadded_rows,
    pad_prefix,
    pixels_to_tokens,
    require_one_row_per_token,
    tokens_to_inputs,
)

# From masks and samples of rows to factors of the input and the visibility of each token.
_MaskFunction = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


@register("rise")
@dataclass(frozen=True)
class Rise(Method):
    r"""The mean output of the class over random masks that leave a patch or token visible.

    .. math:: s_i = \frac{1}{\mathbb{E}[M] \, N} \sum_{k=1}^{N} y(x \odot M_k) \, M_k(i)

    with y the probability of the class and :math:`M_k` one of N random masks. For images a mask is
    a small grid of cells, each visible with a given probability, enlarged bilinearly to one cell
    more than the image and cropped at a random place; :math:`M_k(i)` is its mean over patch i. For
    text, every token is visible with that probability. All samples get the same masks.

    Attributes:
        masks: Number of masks, N.
        keep: :math:`\mathbb{E}[M]`, the probability that a cell or token is visible.
        resolution: Number of cells on each side of an image's masks.
        seed: Seed of the masks.
        baseline: The value that masked pixels or embeddings fade to.
        output: ``"probability"``, as the authors', or ``"logit"``.
    """

    needs = ("inputs", "forwards")
    citation = (
        "Petsiuk, Das, Saenko: RISE: Randomized Input Sampling for Explanation of Black-box "
        "Models, BMVC 2018"
    )
    cost = "masks"

    masks: int = 1000
    keep: float = 0.5
    resolution: int = 7
    seed: int = 0
    baseline: float = 0.0
    output: Output = "probability"

    def __post_init__(self) -> None:
        if self.masks < 1:
            raise WhenceError(f"masks={self.masks} must be at least 1.")
        if not 0 < self.keep <= 1:
            raise WhenceError(f"keep={self.keep} must be above 0 and at most 1.")
        if self.resolution < 1:
            raise WhenceError(f"resolution={self.resolution} must be at least 1.")

    @override
    def __call__(self, evidence: Evidence) -> Tensor:
        inputs, batch, grid = evidence.inputs, evidence.batch, evidence.layout.grid
        make_masks = self._mask_pixels(evidence, grid) if grid else self._mask_tokens(evidence)
        total = inputs.new_zeros(())
        for chunk in evidence.forwards.chunks(batch * self.masks, "masking"):
            rows = torch.arange(chunk.start, chunk.stop, device=inputs.device)
            samples, mask = rows % batch, rows // batch
            factors, of_tokens = make_masks(mask, samples)
            changed = inputs[samples] * factors + self.baseline * (1 - factors)
            outputs = compute_outputs(evidence, changed, samples, self.output)
            of_tokens = of_tokens.to(outputs.dtype)
            sums = [outputs[:, samples == i] @ of_tokens[samples == i] for i in range(batch)]
            total = total + torch.stack(sums, 1)
        scores = total / (self.masks * self.keep)
        return scores if grid else pad_prefix(evidence, scores)

    def _mask_pixels(self, evidence: Evidence, grid: tuple[int, int]) -> _MaskFunction:
        """Make masks of an image: smooth, and shifted by a part of a cell."""
        inputs = evidence.inputs
        (height, width), side = inputs.shape[-2:], self.resolution
        cell = (-(-height // side), -(-width // side))
        generator = SeededRandom(self.seed)
        cells = (generator.draw_uniform(self.masks, 1, side, side) < self.keep).to(inputs)
        down = generator.draw_integers(cell[0], self.masks)
        right = generator.draw_integers(cell[1], self.masks)
        size = ((side + 1) * cell[0], (side + 1) * cell[1])
        pixels = height * width / (grid[0] * grid[1])

        def make_masks(mask: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:
            # Samples of one mask are adjacent: it is enlarged once for all of them.
            first, last = int(mask[0]), int(mask[-1]) + 1
            large = F.interpolate(cells[first:last], size, mode="bilinear")
            cropped = [
                one[:, y : y + height, x : x + width]
                for one, y, x in zip(large, down[first:last], right[first:last], strict=True)
            ]
            factors = torch.stack(cropped)
            of_patches = pixels_to_tokens(evidence, factors)[:, 0] / pixels
            return factors[mask - first], of_patches[mask - first]

        return make_masks

    def _mask_tokens(self, evidence: Evidence) -> _MaskFunction:
        """Make masks of a text: each token by itself."""
        inputs = evidence.inputs
        require_one_row_per_token(evidence, inputs.shape[1])
        real = mark_unpadded_rows(inputs, evidence)
        generator = SeededRandom(self.seed)
        # Drawn token by token: masks of a longer text start like those of a shorter one.
        numbers = [generator.draw_uniform(self.masks) for _ in range(inputs.shape[1])]
        shown = (torch.stack(numbers, 1) < self.keep).to(inputs)
        # The first numbers belong to the first token without padding, on either side.
        place = (real.cumsum(1) - 1).clamp(min=0)

        def make_masks(mask: Tensor, samples: Tensor) -> tuple[Tensor, Tensor]:
            of_tokens = shown[mask].gather(1, place[samples])
            factors = torch.where(real[samples], of_tokens, 1)
            return tokens_to_inputs(evidence, factors), of_tokens * real[samples]

        return make_masks
