"""SaCo benchmark: whether parts of a photo with higher scores change the decision more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from whence._util.chunks import run_in_chunks
from whence.benchmark.columns import Columns
from whence.benchmark.photos import PreparedPhoto
from whence.benchmark.protocols.base import Curve, Metric, Row, add_columns, explain_batch
from whence.benchmark.protocols.deletion import FILLINGS, PhotoDeletionProtocol, Unit, score_units
from whence.errors import WhenceError
from whence.faithfulness.photos import PhotoRunner
from whence.methods import MethodSpecification
from whence.metrics.pixels import Fill
from whence.metrics.saco import GROUPS, compute_saco, group_units, sum_groups
from whence.models import LoadedModel
from whence.models.forward import choose_chunk_size, stack_on_device
from whence.targets import to_probabilities


@dataclass
class SacoProtocol(PhotoDeletionProtocol):
    """Groups of pixels are replaced one at a time, and compared in pairs.

    After Wu et al. (CVPR 2024): the pixels of the map of the predicted class are divided by their
    scores into groups of equal size; each group alone is replaced by the photo's mean colour. Of
    every pair, the group with the higher sum of scores should cost the class more probability. The
    pair counts by how much the sums differ, for or against.

    Attributes:
        groups: How many.
        fill: What is put there.
        unit: What is grouped: pixels of the upsampled map, or whole patches.
    """

    name: ClassVar[str] = "saco"
    title: ClassVar[str] = "SaCo"
    main: ClassVar[str] = "SaCo"
    main_column: ClassVar[str] = "saco"

    groups: int = GROUPS
    fill: Fill = "mean"
    unit: Unit = "pixels"

    def __post_init__(self) -> None:
        """Refuse a number of groups that makes no pair."""
        if self.groups < 2:
            raise WhenceError(f"SaCo compares groups in pairs: 2 or more, not {self.groups}.")

    @override
    def list_fills(self) -> Sequence[Fill]:
        return (self.fill,)

    @override
    def judge_photos(
        self, loaded: LoadedModel, photos: Sequence[PreparedPhoto], method: MethodSpecification
    ) -> list[Row]:
        pixels = stack_on_device([one.pixels for one in photos], loaded.device)
        names = [one.name for one in photos]
        explanation = explain_batch(loaded, pixels, method, names=names)
        scores, grid = score_units(explanation, self.unit)
        groups = group_units(scores, self.groups)
        sums = sum_groups(scores, groups, self.groups)
        runner = self.make_runner(loaded, pixels, names, self.fill, grid)
        logits = self._replace_groups(loaded, groups, runner)
        clean = explanation.logits.to(logits)[:, None]
        curves = torch.cat([clean, logits], 1).double()
        probabilities = to_probabilities(curves, explanation.multi_label)
        at = explanation.target.to(logits.device)[:, None, None]
        of_target = probabilities.gather(2, at.expand(-1, self.groups + 1, 1))[..., 0]
        drops = of_target[:, :1] - of_target[:, 1:]
        rows: list[Row] = [
            {"sample": name, "predicted": int(target)}
            for name, target in zip(names, explanation.target.tolist(), strict=True)
        ]
        flat = scores.amax(1) == scores.amin(1)
        add_columns(rows, {"saco": compute_saco(sums, drops), "flat": flat, "drops": drops})
        return rows

    def _replace_groups(self, loaded: LoadedModel, groups: Tensor, run: PhotoRunner) -> Tensor:
        """Logits (photos, groups, classes) without one group each."""

        def work(rows: range) -> Tensor:
            # No two groups are equal, so that masks need not be compared.
            numbers = torch.arange(rows.start, rows.stop, device=groups.device)
            photos = numbers // self.groups
            return run(groups[photos] == (numbers % self.groups)[:, None], photos)

        count = len(groups) * self.groups
        logits = run_in_chunks(count, choose_chunk_size(loaded), work)
        return logits.reshape(len(groups), self.groups, -1)

    @override
    def list_metrics(self) -> list[Metric]:
        return [Metric("SaCo", ("saco",), "higher", digits=3, ranked=True)]

    @override
    def list_curves(self, results: Mapping[str, Columns]) -> list[Curve]:
        numbers = tuple(float(number) for number in range(1, self.groups + 1))
        title = "drop of the probability when one group is replaced"
        return [Curve(title, "drops", numbers, f"group of {self.unit}, highest scores first")]

    @override
    def write_notes(self, results: Mapping[str, Columns]) -> list[str]:
        notes = [
            f"SaCo, from -1 to 1: {self.groups} groups of {self.unit} by the scores of the "
            f"predicted class, each of which alone becomes {FILLINGS[self.fill]}; every pair "
            f"counts by the difference of its scores, for the map if the class loses more "
            f"probability with the first, against it if not.",
            *self.describe_color(),
        ]
        flat = {
            method: int(np.nansum(columns["flat"]))
            for method, columns in results.items()
            if "flat" in columns
        }
        said = ", ".join(f"{count} of {method}" for method, count in flat.items() if count)
        if said:
            notes.append(f"Maps that are the same everywhere order nothing, and have 0: {said}.")
        return notes
