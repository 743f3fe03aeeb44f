"""Delete pixels or patches of photos, and run the model on what is left."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from PIL import Image
from torch import Tensor

from whence._util.random import SeededRandom
from whence.errors import WhenceError
from whence.explanation import Explanation
from whence.metrics.imputation import draw_noise, impute_pixels
from whence.metrics.pixels import Fill, make_filling, spread_patches, upsample_maps
from whence.models import LoadedModel, PreparedBatch
from whence.models.forward import compute_logits
from whence.models.image_preprocessing import PixelScale


class PhotoRunner:
    """Run a model on normalised photos some of whose pixels, or patches of a grid, are deleted.

    Args:
        loaded: The model.
        pixels: The photos, (photos, 3, height, width).
        grid: Rows and columns of patches; pixels are deleted if left out.
        fill: What replaces them.
        color: Of each channel, between 0 and 1; for the fill "dataset".
        names: Of the photos, which the noise of the fill "road" is drawn by; none if left out.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        pixels: Tensor,
        grid: tuple[int, int] | None = None,
        fill: Fill = "zero",
        color: Sequence[float] | None = None,
        names: Sequence[str] | None = None,
    ) -> None:
        self.loaded, self.pixels, self.grid = loaded, pixels, grid
        self.scale = PixelScale.from_model(loaded)
        self.size = (int(pixels.shape[-2]), int(pixels.shape[-1]))
        self._filling: Tensor | None = None
        self._noise: Tensor | None = None
        if fill != "road":
            made = make_filling(self.scale.to_unit(pixels), fill, color)
            self._filling = self.scale.to_model(made)
        elif names is not None:
            self._noise = draw_noise(names, pixels.shape[1:]).to(pixels.device)

    def __call__(self, deleted: Tensor, photos: Tensor) -> Tensor:
        """Logits (rows, classes) without the deleted units (rows, units) of photos (rows,)."""
        return compute_logits(self.loaded, self.delete(deleted, photos))

    def delete(self, deleted: Tensor, photos: Tensor) -> Tensor:
        """Delete units: the model's input (rows, 3, height, width) without them."""
        if self.grid is None:
            hidden = deleted.reshape(-1, *self.size)
        else:
            hidden = spread_patches(deleted, self.grid, self.size)
        pixels = self.pixels[photos]
        # Visible pixels are not sent through the arithmetic, so that they stay to the last bit.
        return torch.where(hidden[:, None], self._fill(pixels, hidden, photos), pixels)

    def _fill(self, pixels: Tensor, hidden: Tensor, photos: Tensor) -> Tensor:
        if self._filling is not None:
            return self._filling[photos]
        noise = None if self._noise is None else self._noise[photos]
        return self.scale.to_model(impute_pixels(self.scale.to_unit(pixels), hidden, noise))


class PhotoUnits:
    """The pixels of one photo, which become black in the order of the upsampled map."""

    words: tuple[str, ...] | None = None

    def __init__(self, loaded: LoadedModel, prepared: PreparedBatch) -> None:
        if not isinstance(prepared.inputs, Tensor):
            raise WhenceError(f"The input of '{loaded.name}' is no photo.")
        self.run = PhotoRunner(loaded, prepared.inputs)

    def score(self, explanation: Explanation) -> Tensor:
        """Score pixels, (classes, units)."""
        return explanation.heatmap(self.run.size).reshape(-1, math.prod(self.run.size))

    def draw_scores(self, draws: int, seed: int, explanation: Explanation) -> Tensor:
        """Draw random scores, (draws, units)."""
        # Drawn for patches and upsampled as maps are: single black pixels would be another test.
        grid = explanation.picture_grid
        if grid is None:
            raise WhenceError("The explanation has no grid of patches, which random orders need.")
        drawn = SeededRandom(seed).draw_uniform(draws, *grid)
        return upsample_maps(drawn, self.run.size).flatten(1)

    def arrange(self, deleted: Tensor) -> Tensor:
        """Arrange deleted pixels as (height, width)."""
        return deleted.reshape(self.run.size)

    def render(self, deleted: Tensor) -> Image.Image:
        """Render the photo without the deleted pixels (units,), as the model sees it."""
        only = torch.zeros(1, dtype=torch.long, device=self.run.pixels.device)
        pixels = self.run.delete(deleted[None].to(only.device), only)[0]
        values = (self.run.scale.to_unit(pixels) * 255).round().to(torch.uint8)
        return Image.fromarray(values.permute(1, 2, 0).cpu().numpy())
