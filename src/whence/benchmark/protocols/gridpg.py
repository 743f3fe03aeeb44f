"""GridPG benchmark: whether the map of a class lies on its cell of a mosaic of photos."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from typing_extensions import override

from whence.benchmark.columns import Columns
from whence.benchmark.confidences import Confidence, measure_confidences
from whence.benchmark.mosaics import Grid, arrange_mosaics, assemble_mosaic, parse_grid
from whence.benchmark.photos import compute_by_shape, prepare_photo
from whence.benchmark.protocols.base import BenchmarkProtocol, Metric, Row, locate_batch
from whence.datasets import Dataset
from whence.errors import WhenceError
from whence.methods import MethodSpecification
from whence.metrics.localization import draw_cells, localize
from whence.metrics.segmentation import pointing_game
from whence.models import LoadedModel
from whence.models.forward import compute_logits, stack_on_device
from whence.models.image_preprocessing import PixelScale

if TYPE_CHECKING:
    from whence.datasets import Sample
    from whence.explanation import Explanation


_LOWER_CONFIDENCES = (0.95, 0.9, 0.8, 0.7, 0.6, 0.5)


class MosaicCell(NamedTuple):
    """A photo's place: the names of all photos of its mosaic in reading order, and its number."""

    photos: tuple[str, ...]
    number: int


@dataclass(frozen=True)
class PreparedCell:
    """A photo's mosaic as the model sees it, (3, height, width), and the number of its cell."""

    name: str
    pixels: Tensor
    number: int


class UnplacedPhoto(NamedTuple):
    """A photo that is in no mosaic."""

    name: str


@dataclass
class GridpgProtocol(BenchmarkProtocol["PreparedCell | UnplacedPhoto"]):
    """Mosaics of photos of different classes: the share of a class's positive scores in its cell.

    After Böhle, Fritz, Schiele (CVPR 2021) and Rao, Böhle, Schiele (CVPR 2022): photos that the
    model classifies correctly, with a confidence of 0.99 or more, are arranged in mosaics, and the
    class of every cell is explained. Each photo is in one mosaic at most, and has the figure of its
    cell; photos that are not confident enough, or left over, have none. Where a photo has no label,
    its class is the predicted one.

    Attributes:
        size: Rows and columns of a mosaic: ``"2x2"``, ``"3x3"`` (or ``"3"``), ``"1x2"``.
        confidence: The least probability of a photo's class.
        cells: ``"resized"``: photos are scaled down so that the mosaic has the size of the model's
            input. ``"full"``: they keep their size, for models that take inputs of any size.
    """

    name: ClassVar[str] = "gridpg"
    title: ClassVar[str] = "GridPG"
    kinds: ClassVar[tuple[str, ...]] = ("image",)
    main: ClassVar[str] = "GridPG"
    main_column: ClassVar[str] = "share"

    size: str = "2x2"
    confidence: float = 0.99
    cells: Literal["resized", "full"] = "resized"
    _seed: int = field(default=0, init=False, repr=False)
    _dataset: Dataset | None = field(default=None, init=False, repr=False)
    _confidences: dict[str, Confidence] = field(default_factory=dict, init=False, repr=False)
    _placed: dict[str, MosaicCell] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        """Refuse sizes and confidences that make no mosaic."""
        rows, columns = parse_grid(self.size)
        self.size = f"{rows}x{columns}"
        if not 0 <= self.confidence <= 1:
            raise WhenceError(f"The confidence is from 0 to 1, not {self.confidence}.")

    @property
    def grid(self) -> Grid:
        """Rows and columns of a mosaic."""
        return parse_grid(self.size)

    @property
    def cell_count(self) -> int:
        """The number of photos of a mosaic."""
        return self.grid[0] * self.grid[1]

    @override
    def check(self, loaded: LoadedModel, kind: str, first: Sample) -> None:
        super().check(loaded, kind, first)
        if loaded.class_count < self.cell_count:
            raise WhenceError(
                f"A mosaic of {self.size} needs photos of {self.cell_count} different classes, and "
                f"'{loaded.title}' has {loaded.class_count}; give a smaller one, such as "
                f"gridpg:size=1x2."
            )

    @override
    def start(self, names: Sequence[str], seed: int) -> None:
        self._seed = seed

    @override
    def fit(
        self, loaded: LoadedModel, dataset: Dataset, names: Sequence[str], folder: Path | None
    ) -> None:
        found = measure_confidences(loaded, dataset, names, self.labels, folder)
        classes = _find_classes(found, self.confidence)
        mosaics = arrange_mosaics(classes, self.cell_count, self._seed)
        if not mosaics:
            raise WhenceError(self._describe_lack(found, len(names)))
        self._dataset, self._confidences = dataset, found
        self._placed = {
            name: MosaicCell(photos, number)
            for photos in mosaics
            for number, name in enumerate(photos)
        }
        if self.cells == "full":
            self._check_size(loaded, dataset.read(mosaics[0][0]))

    def _describe_lack(self, found: Mapping[str, Confidence], total: int) -> str:
        """The sentence for photos that fill no mosaic, with a confidence that would do."""
        classes = _find_classes(found, self.confidence)
        lack = (
            f"{len(classes)} of {total} photos are classified correctly with a confidence of "
            f"{self.confidence:g} or more, of {len(set(classes.values()))} class(es); a mosaic of "
            f"{self.size} needs {self.cell_count} different classes."
        )
        for lower in (one for one in _LOWER_CONFIDENCES if one < self.confidence):
            more = _find_classes(found, lower)
            if (count := len(set(more.values()))) >= self.cell_count:
                there = f"there are {len(more)}, of {count} classes, with gridpg:confidence={lower}"
                return f"{lack} Take more photos; {there}."
        return f"{lack} Take more photos, or smaller mosaics by gridpg:size=…"

    def _check_size(self, loaded: LoadedModel, sample: Sample) -> None:
        """Refuse a model that does not take mosaics of whole photos."""
        pixels = self._prepare_mosaic(loaded, sample).pixels
        try:
            compute_logits(loaded, pixels[None].to(loaded.device))
        except WhenceError:
            raise
        except Exception as error:  # a model may raise anything
            height, width = pixels.shape[-2:]
            raise WhenceError(
                f"'{loaded.title}' does not take mosaics of {width}x{height} pixels; leave "
                f"gridpg:cells=full out, so that photos are scaled down."
            ) from error

    @override
    def prepare(self, loaded: LoadedModel, sample: Sample) -> PreparedCell | UnplacedPhoto:
        if self._dataset is None:
            raise WhenceError("Mosaics are arranged by `fit`, which has to be called first.")
        self.labels.find_index(loaded, sample)
        if sample.name not in self._placed:
            return UnplacedPhoto(sample.name)
        return self._prepare_mosaic(loaded, sample)

    def _prepare_mosaic(self, loaded: LoadedModel, sample: Sample) -> PreparedCell:
        cell, dataset = self._placed[sample.name], self._dataset
        assert dataset is not None
        photos = [sample if name == sample.name else dataset.read(name) for name in cell.photos]
        pixels = [prepare_photo(loaded, one).pixels for one in photos]
        mosaic = assemble_mosaic(pixels, self.grid, resize=self.cells == "resized")
        return PreparedCell(sample.name, mosaic, cell.number)

    @override
    def compute_rows(
        self,
        loaded: LoadedModel,
        samples: Sequence[PreparedCell | UnplacedPhoto],
        method: MethodSpecification,
    ) -> list[Row]:
        placed = [one for one in samples if isinstance(one, PreparedCell)]
        figures = compute_by_shape(placed, lambda group: self._compute_rows(loaded, group, method))
        by_name = {one.name: row for one, row in zip(placed, figures, strict=True)}
        rows: list[Row] = []
        for one in samples:
            known = self._confidences.get(one.name)
            facts = {} if known is None else known._asdict()
            rows.append({"sample": one.name, **facts, **by_name.get(one.name, {})})
        return rows

    def _compute_rows(
        self, loaded: LoadedModel, group: Sequence[PreparedCell], method: MethodSpecification
    ) -> list[Row]:
        pixels = stack_on_device([one.pixels for one in group], loaded.device)
        classes = [self._confidences[one.name].predicted for one in group]
        size = (int(pixels.shape[-2]), int(pixels.shape[-1]))
        # Each batch has another number of mosaics, for which compiling does not pay.
        plain = loaded.to_eager() if loaded.compile else loaded
        maps = locate_batch(plain, pixels, method, classes).heatmap(size)
        numbers = torch.tensor([one.number for one in group])
        masks = draw_cells(numbers, self.grid, size, maps.device)
        shares, hits = localize(maps, masks)["share"].tolist(), pointing_game(maps, masks).tolist()
        return [{"share": share, "hit": hit} for share, hit in zip(shares, hits, strict=True)]

    @override
    def list_metrics(self) -> list[Metric]:
        return [
            Metric("GridPG", ("share",), "higher", factor=100, ranked=True),
            Metric("pointing game", ("hit",), "higher", factor=100, shown=False),
        ]

    @override
    def write_notes(self, results: Mapping[str, Columns]) -> list[str]:
        first = next(iter(results.values()))
        total = len(first["sample"])
        probability = first.get("probability", np.full(total, np.nan)).astype(np.float64)
        share = first.get("share", np.full(total, np.nan)).astype(np.float64)
        labels = first.get("label", np.full(total, np.nan)).astype(np.float64)
        predicted = first.get("predicted", np.full(total, np.nan)).astype(np.float64)
        right = (probability >= self.confidence) & (np.isnan(labels) | (labels == predicted))
        judged, cells, known = int(np.isfinite(share).sum()), self.cell_count, ~np.isnan(labels)
        how = "correctly with" if known.any() else "with"
        notes = [
            f"Mosaics of {self.size} photos of different classes: the share of the positive scores "
            f"of a cell's class that lies in that cell, in percent; by chance, or where a map is "
            f"the same for all classes, {100 / cells:.3g}.",
            f"{int(right.sum())} of {total} photos are classified {how} a confidence of "
            f"{self.confidence:g} or more; {judged} of them fill the cells of "
            f"{judged // cells} mosaic(s), each used once, and all cells are judged.",
        ]
        if not known.any():
            notes.append("The dataset has no labels: a photo's class is the predicted one.")
        elif not known.all():
            notes.append(f"Of {int((~known).sum())} photo(s) without a label it is the predicted.")
        return notes

    @override
    def explain_example(
        self, loaded: LoadedModel, sample: Sample, method: MethodSpecification
    ) -> tuple[Image.Image | str, Explanation]:
        pixels = self._prepare_mosaic(loaded, sample).pixels.to(loaded.device)
        values = (PixelScale.from_model(loaded).to_unit(pixels[None]) * 255).round().clamp(0, 255)
        shown = Image.fromarray(values[0].to(torch.uint8).permute(1, 2, 0).cpu().numpy())
        predicted = self._confidences[sample.name].predicted
        return shown, locate_batch(loaded, pixels[None], method, [predicted])


def _find_classes(found: Mapping[str, Confidence], least: float) -> dict[str, int]:
    """The classes of photos that are classified so confidently, and not known to be wrong."""
    return {
        name: one.predicted
        for name, one in found.items()
        if one.probability >= least and not one.is_wrong
    }
