"""Segmentation: whether a map lies on the object."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from torch import Tensor

from whence.benchmark.columns import Columns
from whence.benchmark.pixels import Seen, View, by_shape, see
from whence.benchmark.protocols.base import (
    Metric,
    Protocol,
    Row,
    explained,
    present,
)
from whence.errors import WhenceError
from whence.methods.specification import Chosen
from whence.metrics.segmentation import energy_inside, has_object, pointing_game, segmentation
from whence.models import LoadedModel
from whence.models.forward import on_device

if TYPE_CHECKING:
    from whence.datasets import Sample

_IGNORED = 255
_INTERSECTIONS = ("intersection_foreground", "intersection_background")
_UNIONS = ("union_foreground", "union_background")
_OF_PHOTOS = ("average_precision", "f1")


@dataclass
class Segmentation(Protocol):
    """The map of the predicted class, scaled to 0 … 1 and cut at its mean, against a mask.

    After Chefer, Gur, Wolf (CVPR 2021): pixel accuracy and mIoU (of background and foreground) are
    pooled over the set, average precision is of each photo (both classes' scores: the map and 1
    less the map) and then averaged. The photo and its mask go through the model's own geometry.

    Attributes:
        threshold: Where the map is cut: at its ``"mean"``, or by ``"otsu"``'s method.
        view: ``"model"``: the part of a photo that the model is made for. ``"whole"``: all of it,
            its proportions changed.
    """

    name: ClassVar[str] = "segmentation"
    title: ClassVar[str] = "Segmentation"
    kinds: ClassVar[tuple[str, ...]] = ("image",)
    main: ClassVar[str] = "mIoU"
    main_column: ClassVar[str] = "average_precision"

    threshold: Literal["mean", "otsu"] = "mean"
    view: View = "model"

    def check(self, loaded: LoadedModel, kind: str, first: Sample) -> None:  # noqa: D102
        super().check(loaded, kind, first)
        if first.mask is None and not first.boxes:
            raise WhenceError(
                f"'{first.name}' has neither a mask nor boxes, which the segmentation benchmark "
                f"compares maps with."
            )

    def ready(self, loaded: LoadedModel, sample: Sample) -> Any:  # noqa: D102
        if sample.mask is None and not sample.boxes:
            raise WhenceError(f"'{sample.name}' has neither a mask nor boxes.")
        return see(loaded, sample, self.view)

    def rows(  # noqa: D102
        self, loaded: LoadedModel, samples: Sequence[Any], method: Chosen
    ) -> list[Row]:
        seen = [s if isinstance(s, Seen) else see(loaded, s, self.view) for s in samples]
        rows: dict[int, Row] = {}
        for places in by_shape(seen):
            found = self._rows(loaded, [seen[at] for at in places], method)
            rows.update(zip(places, found, strict=True))
        return [rows[at] for at in range(len(seen))]

    def _rows(self, loaded: LoadedModel, seen: Sequence[Seen], method: Chosen) -> list[Row]:
        pixels = on_device([one.pixels for one in seen], loaded.device)
        explanation = explained(loaded, pixels, method)
        maps = explanation.heatmap(tuple(pixels.shape[-2:]))  # type: ignore[arg-type]
        rows: list[Row] = [
            {"sample": one.sample.name, "predicted": int(target)}
            for one, target in zip(seen, explanation.target.tolist(), strict=True)
        ]
        masked = [at for at, one in enumerate(seen) if one.mask is not None]
        if masked:
            masks = _stacked([seen[at].mask for at in masked], maps)
            found = segmentation(maps[masked], masks, self.threshold)
            for number, at in enumerate(masked):
                row = {column: float(values[number]) for column, values in found.items()}
                # Nothing labelled is nothing to be right or wrong about.
                left_out = _OF_PHOTOS if row["labelled"] == 0 else ()
                rows[at] |= {c: None if c in left_out else v for c, v in row.items()}
        places = [one.mask if one.boxes is None else one.boxes for one in seen]
        inside = _stacked(places, maps)
        hits, energies = pointing_game(maps, inside), energy_inside(maps, inside)
        for at in has_object(inside).nonzero()[:, 0].tolist():
            rows[at]["pointing_game"] = float(hits[at])
            rows[at]["energy_inside"] = float(energies[at])
        return rows

    def metrics(self, results: Mapping[str, Columns]) -> list[Metric]:  # noqa: D102
        pooled = [
            Metric("pixel accuracy", ("correct",), "higher", ("labelled",), factor=100),
            Metric("mIoU", _INTERSECTIONS, "higher", _UNIONS, factor=100),
        ]
        means = {
            "mAP": "average_precision",
            "F1": "f1",
            "pointing game": "pointing_game",
            "energy inside": "energy_inside",
        }
        found = [Metric(name, (column,), "higher", factor=100) for name, column in means.items()]
        return present(results, [*pooled, *found])

    def notes(self, results: Mapping[str, Columns]) -> list[str]:  # noqa: ARG002, D102
        seen = "as the model saw it" if self.view == "model" else "whole, proportions changed"
        cut = "its mean" if self.threshold == "mean" else "Otsu's threshold"
        return [
            f"All in percent. The predicted class is explained; each photo is {seen}, each map cut "
            f"at {cut}. Pixel accuracy and mIoU are pooled over the set, the others are means over "
            f"photos."
        ]

    def example(  # noqa: D102
        self, loaded: LoadedModel, sample: Sample, method: Chosen
    ) -> tuple[Any, Any]:
        if self.view == "model":
            return super().example(loaded, sample, method)
        pixels = see(loaded, sample, self.view).pixels[None].to(loaded.device)
        return sample.content, explained(loaded, pixels, method)


def _stacked(masks: Sequence[Tensor | None], like: Tensor) -> Tensor:
    """Masks of a batch; what has none is ignored everywhere."""
    nothing = torch.full(tuple(like.shape[-2:]), _IGNORED, dtype=torch.uint8)
    return torch.stack([nothing if mask is None else mask for mask in masks]).to(like.device)
