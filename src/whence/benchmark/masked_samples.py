"""Read samples in groups that go through a model together without some of their units."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from whence.benchmark.photos import PreparedPhoto, prepare_photo
from whence.benchmark.texts import PreparedText, prepare_text
from whence.explanation import Explanation
from whence.faithfulness.photos import PhotoRunner
from whence.faithfulness.texts import WordRunner
from whence.metrics.pixels import Fill
from whence.models import LoadedModel
from whence.models.forward import stack_on_device
from whence.models.text_preprocessing import join_batches

if TYPE_CHECKING:
    from whence.datasets import Dataset, Sample

_THREADS = 4
# The units of a photo, for a model that has no grid of patches.
_CELLS = (14, 14)

_grids: WeakKeyDictionary[nn.Module, dict[torch.Size, tuple[int, int]]] = WeakKeyDictionary()

ModelInputs: TypeAlias = Tensor | Mapping[str, Tensor]
Prepared = TypeVar("Prepared")


class MaskedSamples(NamedTuple):
    """Samples that can be given to a model without some of their units.

    Attributes:
        samples: The samples.
        units: (samples,), how many units each has.
        delete: The model's input without units (rows, units) of samples (rows,), by their indices.
    """

    samples: list[Sample]
    units: Tensor
    delete: Callable[[Tensor, Tensor], ModelInputs]


class Masker(Protocol):
    """Reads samples whose units can be removed."""

    def read(
        self, loaded: LoadedModel, dataset: Dataset, names: Sequence[str]
    ) -> list[MaskedSamples]:
        """Read samples in groups; those that cannot be read are left out."""


class PhotoMasker(NamedTuple):
    """Replaces patches of photos by a filling; `color` is for the fill "dataset"."""

    fill: Fill
    color: tuple[float, ...] | None = None

    def mask(self, loaded: LoadedModel, photos: Sequence[PreparedPhoto]) -> PhotoRunner:
        """Photos of equal shape, whose patches can be removed; its grid is that of all methods."""
        pixels = stack_on_device([one.pixels for one in photos], loaded.device)
        names = [one.name for one in photos]
        return PhotoRunner(loaded, pixels, find_grid(loaded, pixels), self.fill, self.color, names)

    def read(
        self, loaded: LoadedModel, dataset: Dataset, names: Sequence[str]
    ) -> list[MaskedSamples]:
        """Read photos in groups of equal shape; those that cannot be read are left out."""
        groups: dict[tuple[int, ...], list[PreparedPhoto]] = {}
        for one in _prepare_each(lambda name: prepare_photo(loaded, dataset.read(name)), names):
            groups.setdefault(tuple(one.pixels.shape), []).append(one)
        return [self._group(loaded, group) for group in groups.values()]

    def _group(self, loaded: LoadedModel, photos: Sequence[PreparedPhoto]) -> MaskedSamples:
        runner = self.mask(loaded, photos)
        units = torch.full((len(photos),), count_cells(runner))
        return MaskedSamples([one.sample for one in photos], units, runner.delete)


class TextMasker(NamedTuple):
    """Replaces each token of a word by the mask token, or that of unknown words."""

    def mask(self, loaded: LoadedModel, texts: Sequence[PreparedText]) -> WordRunner:
        """Texts whose words can be removed."""
        batch = loaded.move(join_batches([one.batch for one in texts], loaded.tokenizer))
        return WordRunner(loaded, batch, [one.units for one in texts], "mask")

    def read(
        self, loaded: LoadedModel, dataset: Dataset, names: Sequence[str]
    ) -> list[MaskedSamples]:
        """Read texts as one group, if any can be read; the others are left out."""
        texts = _prepare_each(lambda name: prepare_text(loaded, dataset.read(name)), names)
        if not texts:
            return []
        runner = self.mask(loaded, texts)

        def delete(deleted: Tensor, rows: Tensor) -> ModelInputs:
            return trim_padding(runner.mask(deleted, rows))

        return [MaskedSamples([one.sample for one in texts], count_words(runner), delete)]


def _prepare_each(prepare: Callable[[str], Prepared], names: Sequence[str]) -> list[Prepared]:
    """Read samples in threads, but those that cannot be read."""

    def attempt(name: str) -> Prepared | None:
        try:
            return prepare(name)
        except Exception:  # the run says what is wrong with it, when it is judged
            return None

    with ThreadPoolExecutor(_THREADS, thread_name_prefix="whence-reading") as pool:
        return [one for one in pool.map(attempt, names) if one is not None]


def find_grid(loaded: LoadedModel, pixels: Tensor) -> tuple[int, int]:
    """Find the rows and columns of a model's patches; 14 each if it has no grid of patches."""
    known = _grids.setdefault(loaded.model, {})
    if pixels.shape[1:] not in known:
        found = loaded.to_eager().explainer.explain(pixels[:1], method="random")
        known[pixels.shape[1:]] = found.picture_grid or _CELLS
    return known[pixels.shape[1:]]


def count_cells(runner: PhotoRunner) -> int:
    """How many units the photos of a runner have."""
    return math.prod(runner.size if runner.grid is None else runner.grid)


def count_words(runner: WordRunner) -> Tensor:
    """How many words the texts of a runner have, (texts,)."""
    return torch.tensor([len(one.spans) for one in runner.units])


def score_cells(explanation: Explanation, grid: tuple[int, int]) -> Tensor:
    """Scores of the cells of a grid, (photos, cells): those of patches, or means over pixels."""
    if explanation.picture_grid == grid:
        return explanation.scores.detach()
    maps = explanation.heatmap().detach()[:, None]
    return F.adaptive_avg_pool2d(maps, grid).flatten(1)


def trim_padding(inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Leave out the tokens that are padding in all rows."""
    mask = inputs.get("attention_mask")
    if mask is None:
        return dict(inputs)
    kept = mask.bool().any(0)
    return {
        name: value[:, kept] if value.shape == mask.shape else value
        for name, value in inputs.items()
    }
