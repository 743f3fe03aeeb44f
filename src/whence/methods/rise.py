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
    mark_unpadded_units,
    pixels_to_units,
    units_to_inputs,
)

# From masks and samples of rows to factors of the input and the visibility of each token.
_MaskFunction = Callable[[Tensor, Tensor], tuple[list[Tensor], Tensor]]


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

    needs = ("forwards",)
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
        inputs, batch, layout = evidence.forwards.inputs, evidence.batch, evidence.layout
        in_plane = layout.grid is not None and len(layout.grid) == 2
        make_masks = self._mask_pixels(evidence) if in_plane else self._mask_units(evidence)
        total = evidence.logits.new_zeros(())
        for chunk in evidence.forwards.chunks(batch * self.masks, "masking"):
            rows = torch.arange(chunk.start, chunk.stop, device=evidence.logits.device)
            samples, mask = rows % batch, rows // batch
            factors, of_units = make_masks(mask, samples)
            pairs = zip(inputs, factors, strict=True)
            changed = [x[samples] * shown + self.baseline * (1 - shown) for x, shown in pairs]
            outputs = compute_outputs(evidence, changed, samples, self.output)
            of_units = of_units.to(outputs.dtype)
            sums = [outputs[:, samples == i] @ of_units[samples == i] for i in range(batch)]
            total = total + torch.stack(sums, 1)
        scores = total / (self.masks * self.keep)
        return layout.to_tokens(scores)

    def _mask_pixels(self, evidence: Evidence) -> _MaskFunction:
        """Make masks of an image: smooth, and shifted by a part of a cell."""
        inputs = evidence.forwards.inputs[0]
        (height, width), side = inputs.shape[-2:], self.resolution
        cell = (-(-height // side), -(-width // side))
        generator = SeededRandom(self.seed)
        cells = (generator.draw_uniform(self.masks, 1, side, side) < self.keep).to(inputs)
        down = generator.draw_integers(cell[0], self.masks)
        right = generator.draw_integers(cell[1], self.masks)
        size = ((side + 1) * cell[0], (side + 1) * cell[1])
        pixels = pixels_to_units(evidence, inputs.new_ones(height, width)).clamp(min=1)
        channels = [1] * (inputs.dim() - 3)

        def make_masks(mask: Tensor, _: Tensor) -> tuple[list[Tensor], Tensor]:
            # Samples of one mask are adjacent: it is enlarged once for all of them.
            first, last = int(mask[0]), int(mask[-1]) + 1
            large = F.interpolate(cells[first:last], size, mode="bilinear")
            cropped = [
                one[0, y : y + height, x : x + width]
                for one, y, x in zip(large, down[first:last], right[first:last], strict=True)
            ]
            factors = torch.stack(cropped)
            of_patches = pixels_to_units(evidence, factors) / pixels
            whole = factors.reshape(-1, *channels, height, width)
            return [whole[mask - first]], of_patches[mask - first]

        return make_masks

    def _mask_units(self, evidence: Evidence) -> _MaskFunction:
        """Make masks of a text, a signal or a video: each unit by itself."""
        real = mark_unpadded_units(evidence)
        generator = SeededRandom(self.seed)
        # Drawn unit by unit: masks of a longer text start like those of a shorter one.
        numbers = [generator.draw_uniform(self.masks) for _ in range(real.shape[1])]
        shown = (torch.stack(numbers, 1) < self.keep).to(evidence.logits)
        # The first numbers belong to the first token without padding, on either side.
        place = (real.cumsum(1) - 1).clamp(min=0)

        def make_masks(mask: Tensor, samples: Tensor) -> tuple[list[Tensor], Tensor]:
            of_units = shown[mask].gather(1, place[samples])
            factors = torch.where(real[samples], of_units, 1)
            return units_to_inputs(evidence, factors, samples), of_units * real[samples]

        return make_masks
