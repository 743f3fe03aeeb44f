"""What protocols share that delete pixels or patches of photos."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
from torch import Tensor
from typing_extensions import override

from whence.benchmark.columns import Columns
from whence.benchmark.mean_color import measure_mean_color
from whence.benchmark.photos import PreparedPhoto, prepare_photo
from whence.benchmark.protocols.photos import PhotoProtocol
from whence.errors import WhenceError
from whence.explanation import Explanation
from whence.faithfulness.photos import PhotoRunner
from whence.metrics.pixels import Fill
from whence.models import LoadedModel
from whence.models.image_preprocessing import PixelScale

if TYPE_CHECKING:
    from whence.datasets import Dataset, Sample

Unit = Literal["pixels", "patches"]

FILLINGS: dict[Fill, str] = {
    "zero": "black",
    "mean": "the photo's mean colour",
    "blur": "a blurred copy",
    "dataset": "the data set's mean colour",
    "road": "interpolated from their neighbours, with noise (ROAD)",
}
"""What becomes of deleted pixels, in words."""


@dataclass
class PhotoDeletionProtocol(PhotoProtocol):
    """Photos are run again without some of their pixels or patches."""

    judges_stored: ClassVar[bool] = True

    _color: tuple[float, ...] | None = field(default=None, init=False, repr=False)

    def list_fills(self) -> Sequence[Fill]:
        """The fillings that the options ask for."""
        raise NotImplementedError

    @override
    def fit(
        self, loaded: LoadedModel, dataset: Dataset, names: Sequence[str], folder: Path | None
    ) -> None:
        if "dataset" in self.list_fills():
            self._color = measure_mean_color(loaded, dataset, names, folder)

    @override
    def prepare(self, loaded: LoadedModel, sample: Sample) -> PreparedPhoto:
        PixelScale.from_model(loaded)
        return prepare_photo(loaded, sample)

    def describe_color(self) -> list[str]:
        """A sentence about the data set's mean colour, if it was used."""
        if self._color is None:
            return []
        color = ", ".join(f"{100 * one:.1f}" for one in self._color)
        return [f"The data set's mean colour, of the photos as the model sees them: {color} %."]

    def make_runner(
        self,
        loaded: LoadedModel,
        pixels: Tensor,
        names: Sequence[str],
        fill: Fill,
        grid: tuple[int, int] | None,
    ) -> PhotoRunner:
        """Make what deletes pixels, or patches of a grid, of photos with these names."""
        if fill == "dataset" and self._color is None:
            raise WhenceError(
                "The data set's mean colour is not known yet: call the protocol's `fit` first, or "
                "choose another fill, such as 'mean'."
            )
        return PhotoRunner(loaded, pixels, grid, fill, self._color, names)


def score_units(explanation: Explanation, unit: Unit) -> tuple[Tensor, tuple[int, int] | None]:
    """Scores of the units that are deleted, (batch, units), and the grid of patches.

    Raises:
        WhenceError: Patches are to be deleted, and the model has no grid of them.
    """
    if unit == "pixels":
        return explanation.heatmap().flatten(1), None
    if explanation.picture_grid is None:
        raise WhenceError(
            "The model has no grid of patches that could be deleted; delete pixels instead "
            "(unit=pixels)."
        )
    return explanation.scores, explanation.picture_grid


def describe_patches(results: Mapping[str, Columns]) -> list[str]:
    """A sentence if methods score different numbers of patches, as rows tell in ``patches``."""
    counts = {
        method: sorted({int(count) for count in columns["patches"] if np.isfinite(count)})
        for method, columns in results.items()
        if "patches" in columns
    }
    if len({tuple(found) for found in counts.values()}) < 2:
        return []
    listed = ", ".join(f"{method} {' or '.join(map(str, c))}" for method, c in counts.items())
    return [
        f"Methods score different numbers of patches of this model ({listed}), so they delete "
        f"different ones: compare them with unit=pixels."
    ]
