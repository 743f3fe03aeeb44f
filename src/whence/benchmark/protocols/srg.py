"""Symmetric relevance gain: what a class keeps without the patches of least or most relevance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import torch
from typing_extensions import override

from whence.benchmark.columns import Columns
from whence.benchmark.photos import PreparedPhoto
from whence.benchmark.protocols.base import Curve, Metric, Row, add_columns, explain_batch
from whence.benchmark.protocols.deletion import (
    FILLINGS,
    PhotoDeletionProtocol,
    Unit,
    describe_patches,
    score_units,
)
from whence.errors import WhenceError
from whence.methods import MethodSpecification
from whence.metrics.curves import compute_curves, symmetric_relevance_gain
from whence.metrics.deletion import count_units, delete_in_order, rank_units
from whence.metrics.pixels import Fill
from whence.models import LoadedModel
from whence.models.forward import choose_chunk_size, stack_on_device

if TYPE_CHECKING:
    from whence.datasets import Sample


@dataclass
class SrgProtocol(PhotoDeletionProtocol):
    """Patches are deleted, the least influential first (LIF) and the most influential first (MIF).

    SRG, after Blücher, Vielhaben, Strodthoff (TMLR 2024), is the area between the two curves. As
    those who judge vision Transformers with it do, the units are the model's patches, they become
    the data set's mean colour, and the curve is the explained class's logit.

    Attributes:
        steps: In how many steps patches are deleted, the last of which deletes all.
        fill: What becomes of deleted patches.
        unit: What is deleted.
        target: The class that is explained and watched: the predicted one, or the label.
    """

    name: ClassVar[str] = "srg"
    title: ClassVar[str] = "SRG"
    main: ClassVar[str] = "SRG"
    main_column: ClassVar[str] = "srg"

    steps: int = 20
    fill: Fill = "dataset"
    unit: Unit = "patches"
    target: Literal["predicted", "label"] = "predicted"

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise WhenceError(f"'steps' is a number from 1, not {self.steps}.")

    @override
    def list_fills(self) -> Sequence[Fill]:
        return (self.fill,)

    @override
    def check(self, loaded: LoadedModel, kind: str, first: Sample) -> None:
        super().check(loaded, kind, first)
        self._find_label(loaded, first)

    @override
    def prepare(self, loaded: LoadedModel, sample: Sample) -> PreparedPhoto:
        self._find_label(loaded, sample)
        return super().prepare(loaded, sample)

    def _find_label(self, loaded: LoadedModel, sample: Sample) -> int | None:
        """The class that is to be explained; None for the predicted one."""
        if self.target == "predicted":
            return None
        label = self.labels.find_index(loaded, sample)
        if label is None:
            raise WhenceError(f"'{sample.name}' has no label to explain (target=label).")
        return label

    @override
    def judge_photos(
        self, loaded: LoadedModel, photos: Sequence[PreparedPhoto], method: MethodSpecification
    ) -> list[Row]:
        pixels = stack_on_device([one.pixels for one in photos], loaded.device)
        names = [one.name for one in photos]
        labels = [self._find_label(loaded, one.sample) for one in photos]
        targets = [label for label in labels if label is not None] or None
        explanation = explain_batch(loaded, pixels, method, targets, names if not targets else ())
        scores, grid = score_units(explanation, self.unit)
        orders = [rank_units(scores, "highest"), rank_units(scores, "lowest")]
        counts = count_units(scores.shape[1], self._fractions[1:], "nearest")
        logits = delete_in_order(
            torch.cat(orders),
            counts,
            self.make_runner(loaded, pixels, names, self.fill, grid),
            torch.arange(len(photos), device=pixels.device).repeat(2),
            chunk_size=choose_chunk_size(loaded),
        )
        clean = explanation.logits.to(logits).repeat(2, 1)[:, None]
        curves = compute_curves(torch.cat([clean, logits], 1), explanation.target.repeat(2))
        highest, lowest = curves["logit"].chunk(2)
        # Divided on the CPU: a GPU multiplies by the reciprocal, and then the last is not quite 1.
        shares = torch.cat([counts.new_zeros(1), counts]).cpu().double() / scores.shape[1]
        shares = shares.to(highest.device)
        rows: list[Row] = [
            {"sample": name, "target": target}
            for name, target in zip(names, explanation.target.tolist(), strict=True)
        ]
        columns = {
            "highest_first": highest,
            "lowest_first": lowest,
            "mif": torch.trapezoid(highest, shares),
            "lif": torch.trapezoid(lowest, shares),
            "srg": symmetric_relevance_gain(highest, lowest, shares),
        }
        if grid is not None:
            columns["patches"] = torch.full((len(rows),), scores.shape[1])
        add_columns(rows, columns)
        return rows

    @property
    def _fractions(self) -> tuple[float, ...]:
        return tuple(step / self.steps for step in range(self.steps + 1))

    @override
    def list_metrics(self) -> list[Metric]:
        return [
            Metric("SRG", ("srg",), "higher", digits=3, ranked=True, test="wilcoxon"),
            Metric("LIF", ("lif",), "higher", digits=3, test="wilcoxon"),
            Metric("MIF", ("mif",), "lower", digits=3, test="wilcoxon"),
        ]

    @override
    def list_curves(self, results: Mapping[str, Columns]) -> list[Curve]:
        x_title = f"share of {self.unit} deleted"
        return [
            Curve("the highest first: logit", "highest_first", self._fractions, x_title, False),
            Curve("the lowest first: logit", "lowest_first", self._fractions, x_title, False),
        ]

    @override
    def write_notes(self, results: Mapping[str, Columns]) -> list[str]:
        which = "predicted class" if self.target == "predicted" else "label"
        return [
            f"LIF and MIF: mean of the {which}'s logit while the {self.unit} of least or most "
            f"relevance are deleted first, in {self.steps} steps from none to all (areas by "
            f"trapezoids). SRG = LIF - MIF. Deleted {self.unit} become {FILLINGS[self.fill]}.",
            *describe_patches(results),
            *self.describe_color(),
        ]
