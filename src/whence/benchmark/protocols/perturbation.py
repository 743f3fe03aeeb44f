"""Perturbation benchmark: how the decision changes as pixels are deleted in the order of scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor
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
from whence.benchmark.protocols.perturbation_figures import (
    CLASSES,
    ORDERS,
    STEPS,
    PerturbationSetting,
    Score,
    compute_figures,
    list_kept_curves,
    list_perturbation_curves,
    list_perturbation_metrics,
    list_settings,
    name_score,
)
from whence.explanation import Explanation
from whence.methods import MethodSpecification
from whence.metrics.deletion import count_units, delete_in_order, rank_units
from whence.metrics.pixels import Fill
from whence.models import LoadedModel
from whence.models.forward import choose_chunk_size, stack_on_device


@dataclass
class PerturbationProtocol(PhotoDeletionProtocol):
    """Pixels are blackened, the most important first (positive) or last (negative).

    After Chefer, Gur, Wolf (CVPR 2021): the map is upsampled to pixels; the top 10, 20, … 90 % of
    them are set to 0 before normalisation; top-1 accuracy against the true label is measured at
    each step, and the figure is the area under that curve, by trapezoids, times 100. The class
    that is explained is the predicted one, and the true one (the target). With several units,
    fillings or scores, names tell which is meant; all share explanations, clean photos and logits.

    Attributes:
        unit: What is deleted: pixels of the upsampled map, or whole patches.
        fill: What is put there: black, the photo's mean colour, a blurred copy, the data set's mean
            colour, or what ROAD interpolates from neighbours.
        score: What is under the curve: accuracy, or probability or logit of the explained class.
            Areas under the logit are not times 100.
        insertion: Whether to measure deletion and insertion too (Petsiuk 2018): areas under the
            probability of the explained class, from nothing to everything deleted, or inserted.
    """

    name: ClassVar[str] = "perturbation"
    main: ClassVar[str] = "positive, predicted"
    main_column: ClassVar[str] = "positive_predicted_probability_auc"

    unit: tuple[Unit, ...] = ("pixels",)
    fill: tuple[Fill, ...] = ("zero",)
    score: tuple[Score, ...] = ("accuracy",)
    insertion: bool = False

    @override
    def list_fills(self) -> Sequence[Fill]:
        return self.fill

    @override
    def describe_wrong_kind(self, kind: str) -> str:
        return (
            f"The perturbation benchmark deletes pixels of photos; deleting words of a {kind} is "
            f"measured by `whence benchmark words`, and where people marked words by `whence "
            f"benchmark rationale` too."
        )

    @override
    def find_main(self) -> tuple[str, str]:
        first, score = self._settings[0], name_score(self.score[0], self.score)
        return first.name_metric(self.main) + score, first.name_column(self.main_column)

    @property
    def _settings(self) -> list[PerturbationSetting]:
        return list_settings(self.unit, self.fill)

    @override
    def judge_photos(
        self, loaded: LoadedModel, photos: Sequence[PreparedPhoto], method: MethodSpecification
    ) -> list[Row]:
        labels = [self.labels.find_index(loaded, one.sample) for one in photos]
        pixels = stack_on_device([one.pixels for one in photos], loaded.device)
        names = [one.name for one in photos]
        predicted = explain_batch(loaded, pixels, method, names=names)
        classes: list[int] = predicted.target.tolist()
        explanations, inputs = [predicted], list(range(len(photos)))
        # The map of the target class: another map only where that is another class.
        of_target = list(inputs)
        targets = {
            n: label for n, label in enumerate(labels) if label is not None and label != classes[n]
        }
        if targets and predicted.class_specific:
            # Each batch has another number of them, for which compiling does not pay.
            eager, others = loaded.to_eager(), list(targets)
            of_others = explain_batch(eager, pixels[others], method, list(targets.values()))
            explanations.append(of_others)
            for number, at in enumerate(others):
                of_target[at] = len(photos) + number
            inputs += others
        logits = self._delete(loaded, pixels, names, explanations, inputs)
        # Accuracy is against the label, or against the prediction where there is none.
        references = [classes[n] if label is None else label for n, label in enumerate(labels)]
        highest: list[int] = predicted.logits.argmax(-1).tolist()
        rows: list[Row] = [
            {
                "sample": one.name,
                "label": labels[n],
                "predicted": classes[n],
                **({"patches": predicted.scores.shape[-1]} if "patches" in self.unit else {}),
                "clean": float(highest[n] == references[n]),
            }
            for n, one in enumerate(photos)
        ]
        kept = list_kept_curves(len(self._settings) > 1, self.score)
        watched: list[tuple[Sequence[int | None], list[int]]]
        watched = [(classes, inputs[: len(photos)]), (labels, of_target)]
        for which, (indices, of_map) in zip(CLASSES, watched, strict=True):
            known = {n: index for n, index in enumerate(indices) if index is not None}
            for setting, of_setting in logits.items():
                figures = compute_figures(
                    which,
                    of_setting[:, [of_map[n] for n in known]],
                    torch.tensor(list(known.values()), dtype=torch.long),
                    torch.tensor([references[n] for n in known], dtype=torch.long),
                    self._steps,
                    kept,
                    predicted.multi_label,
                )
                named = {setting.name_column(name): one for name, one in figures.items()}
                add_columns([rows[n] for n in known], named)
        return rows

    def _delete(
        self,
        loaded: LoadedModel,
        pixels: Tensor,
        names: Sequence[str],
        explanations: Sequence[Explanation],
        inputs: Sequence[int],
    ) -> dict[PerturbationSetting, Tensor]:
        """Logits of the clean photo and of each step, (orders, maps, steps, classes)."""
        of_photo = torch.tensor(inputs, device=pixels.device)
        clean = explanations[0].logits[of_photo][None, :, None].expand(len(ORDERS), -1, -1, -1)
        found: dict[PerturbationSetting, Tensor] = {}
        ranks, grids = {}, {}
        for unit in self.unit:
            scored = [score_units(one, unit) for one in explanations]
            maps = torch.cat([scores for scores, _ in scored])
            ranks[unit] = torch.cat([rank_units(maps, order) for order in ORDERS.values()])
            grids[unit] = scored[0][1]
        for setting in self._settings:
            ordered = ranks[setting.unit]
            logits = delete_in_order(
                ordered,
                count_units(ordered.shape[1], self._steps[1:]),
                self.make_runner(loaded, pixels, names, setting.fill, grids[setting.unit]),
                of_photo.repeat(len(ORDERS)),
                chunk_size=choose_chunk_size(loaded),
            ).reshape(len(ORDERS), len(inputs), len(self._steps) - 1, -1)
            found[setting] = torch.cat([clean.to(logits), logits], 2)
        return found

    @property
    def _steps(self) -> tuple[float, ...]:
        """Fractions of the units that are deleted; insertion starts where all are."""
        return (*STEPS, 1.0) if self.insertion else STEPS

    @override
    def list_metrics(self) -> list[Metric]:
        return list_perturbation_metrics(self._settings, self.score)

    @override
    def list_curves(self, results: Mapping[str, Columns]) -> list[Curve]:
        return list_perturbation_curves(self._settings, self.score)

    @override
    def write_notes(self, results: Mapping[str, Columns]) -> list[str]:
        first = next(iter(results.values()))
        labels = first.get("label", np.array([]))
        clean = float(np.nanmean(first["clean"])) if len(first.get("clean", ())) else float("nan")
        unlabelled = int(np.isnan(labels).sum()) if labels.dtype != object else len(labels)
        notes = [f"Clean accuracy: {100 * clean:.2f} %."]
        if unlabelled == len(labels):
            notes = [
                "The dataset has no labels: accuracy is against the class that the model predicts "
                "for the clean photo, and the target class is left out."
            ]
        elif unlabelled:
            notes.append(f"{unlabelled} photo(s) without a label count against the prediction.")
        if len(self.fill) == 1:
            filled = f"the {' or the '.join(self.unit)} become {FILLINGS[self.fill[0]]}"
        else:
            kinds = "; ".join(f"{fill}: {FILLINGS[fill]}" for fill in self.fill)
            filled = f"the {' or the '.join(self.unit)} are replaced ({kinds})"
        scores = {
            "accuracy": "top-1 accuracy",
            "probability": "probability of the explained class",
            "logit": "logit of the explained class",
        }
        under = " or the ".join(scores[score] for score in self.score)
        times = "; the logit's are not" if "logit" in self.score else ""
        notes.append(
            f"Areas under the {under} when 0, 10, … 90 % of {filled}, times 100{times}; positive "
            f"deletes the highest first, negative the lowest; the difference is negative less "
            f"positive."
        )
        return [*notes, *describe_patches(results), *self.describe_color()]
