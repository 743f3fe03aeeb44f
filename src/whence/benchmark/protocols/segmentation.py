"""Segmentation benchmark: whether a map of scores lies on the object of a photo."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from PIL import Image
from typing_extensions import override

from whence.benchmark.columns import Columns
from whence.benchmark.photos import (
    PreparedPhoto,
    View,
    prepare_photo,
    stack_masks,
)
from whence.benchmark.protocols.base import (
    Metric,
    Row,
    add_columns,
    locate_batch,
)
from whence.benchmark.protocols.photos import PhotoProtocol
from whence.errors import WhenceError
from whence.explanation import Explanation
from whence.methods import MethodSpecification
from whence.metrics.segmentation import compare_with_masks, energy_inside, has_object, pointing_game
from whence.models import LoadedModel
from whence.models.forward import stack_on_device

if TYPE_CHECKING:
    from whence.datasets import Sample

_INTERSECTIONS = ("intersection_foreground", "intersection_background")
_UNIONS = ("union_foreground", "union_background")


@dataclass
class SegmentationProtocol(PhotoProtocol):
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
    main: ClassVar[str] = "mIoU"
    main_column: ClassVar[str] = "average_precision"

    threshold: Literal["mean", "otsu"] = "mean"
    view: View = "model"

    @override
    def describe_wrong_kind(self, kind: str) -> str:
        return (
            f"The segmentation benchmark compares maps with masks or boxes in photos; for {kind}s "
            f"there is `whence benchmark rationale`."
        )

    @override
    def check(self, loaded: LoadedModel, kind: str, first: Sample) -> None:
        super().check(loaded, kind, first)
        if first.mask is None and not first.boxes:
            raise WhenceError(
                f"'{first.name}' has neither a mask nor boxes, which the segmentation benchmark "
                f"compares maps with; `whence benchmark perturbation` needs none."
            )

    @override
    def prepare(self, loaded: LoadedModel, sample: Sample) -> PreparedPhoto:
        if sample.mask is None and not sample.boxes:
            raise WhenceError(f"'{sample.name}' has neither a mask nor boxes.")
        return prepare_photo(loaded, sample, self.view)

    @override
    def judge_photos(
        self, loaded: LoadedModel, photos: Sequence[PreparedPhoto], method: MethodSpecification
    ) -> list[Row]:
        pixels = stack_on_device([one.pixels for one in photos], loaded.device)
        explanation = locate_batch(loaded, pixels, method)
        maps = explanation.heatmap((pixels.shape[-2], pixels.shape[-1]))
        rows: list[Row] = [
            {"sample": one.sample.name, "predicted": int(target)}
            for one, target in zip(photos, explanation.target.tolist(), strict=True)
        ]
        with_mask = [at for at, one in enumerate(photos) if one.mask is not None]
        if with_mask:
            masks = stack_masks([photos[at].mask for at in with_mask], maps)
            found = compare_with_masks(maps[with_mask], masks, self.threshold)
            add_columns([rows[at] for at in with_mask], found)
            for at in with_mask:
                if not rows[at]["labelled"]:  # nothing to be right or wrong about
                    rows[at] |= {"average_precision": None, "f1": None}
        truth = [one.mask if one.boxes is None else one.boxes for one in photos]
        inside = stack_masks(truth, maps)
        hits, energies = pointing_game(maps, inside), energy_inside(maps, inside)
        chosen = has_object(inside).nonzero()[:, 0]
        columns = {"pointing_game": hits[chosen], "energy_inside": energies[chosen]}
        add_columns([rows[at] for at in chosen.tolist()], columns)
        return rows

    @override
    def list_metrics(self) -> list[Metric]:
        means = {
            "mAP": "average_precision",
            "F1": "f1",
            "pointing game": "pointing_game",
            "energy inside": "energy_inside",
        }
        return [
            Metric("pixel accuracy", ("correct",), "higher", ("labelled",), factor=100),
            Metric("mIoU", _INTERSECTIONS, "higher", _UNIONS, factor=100, ranked=True),
            *(
                Metric(name, (column,), "higher", factor=100, ranked=name == "mAP")
                for name, column in means.items()
            ),
        ]

    @override
    def write_notes(self, results: Mapping[str, Columns]) -> list[str]:
        view = "as the model saw it" if self.view == "model" else "whole, proportions changed"
        cut = "its mean" if self.threshold == "mean" else "Otsu's threshold"
        return [
            f"All in percent. The predicted class is explained; each photo is {view}, each map cut "
            f"at {cut}. Pixel accuracy and mIoU are pooled over the set, the others are means over "
            f"photos."
        ]

    @override
    def explain_example(
        self, loaded: LoadedModel, sample: Sample, method: MethodSpecification
    ) -> tuple[Image.Image | str, Explanation]:
        if self.view == "model":
            return super().explain_example(loaded, sample, method.to_locating())
        pixels = prepare_photo(loaded, sample, self.view).pixels[None].to(loaded.device)
        return sample.content, locate_batch(loaded, pixels, method)
