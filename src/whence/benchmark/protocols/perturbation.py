"""Perturbation: what becomes of the decision when what was found important is taken away."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from whence.benchmark.columns import Columns
from whence.benchmark.pixels import Seen, by_shape, see
from whence.benchmark.protocols.base import (
    Curve,
    Metric,
    Protocol,
    Row,
    explained,
    has,
    numbers,
    present,
)
from whence.errors import WhenceError
from whence.methods.specification import Chosen
from whence.metrics.perturbation import FRACTIONS, Fill, Order, area, count, ranks, spread
from whence.models import LoadedModel
from whence.models.forward import in_parts, logits_of, on_device, rows_at_once
from whence.models.scale import Scale

if TYPE_CHECKING:
    from whence.datasets import Sample

_ORDERS: dict[str, Order] = {"positive": "highest", "negative": "lowest"}
_STEPS = (0.0, *FRACTIONS)
_CLASSES = ("predicted", "target")


@dataclass
class Perturbation(Protocol):
    """Pixels are blackened, the most important first (positive) or last (negative).

    After Chefer, Gur, Wolf (CVPR 2021): the map is upsampled to pixels; the top 10, 20, … 90 % of
    them are set to 0 before normalisation; top-1 accuracy against the true label is measured at
    each step, and the figure is the area under that curve, by trapezoids, times 100. The class
    that is explained is the predicted one, and the true one (the target).

    Attributes:
        unit: What is removed: pixels of the upsampled map, or whole patches.
        fill: What is put there: black, the photo's mean colour, or a blurred copy.
        insertion: Whether to measure deletion and insertion too (Petsiuk 2018): areas under the
            probability of the explained class, from nothing to everything removed, or shown.
    """

    name: ClassVar[str] = "perturbation"
    title: ClassVar[str] = "Perturbation"
    kinds: ClassVar[tuple[str, ...]] = ("image",)
    main: ClassVar[str] = "positive, predicted"
    main_column: ClassVar[str] = "positive_predicted_probability_auc"

    unit: Literal["pixels", "patches"] = "pixels"
    fill: Fill = "zero"
    insertion: bool = False

    def wrong_kind(self, kind: str) -> str:  # noqa: D102
        return (
            f"The perturbation benchmark removes pixels of photos; removing words of a {kind} is "
            f"measured by `whence benchmark rationale` (comprehensiveness and sufficiency)."
        )

    def ready(self, loaded: LoadedModel, sample: Sample) -> Any:  # noqa: D102
        Scale.of(loaded)
        return see(loaded, sample)

    def rows(  # noqa: D102
        self, loaded: LoadedModel, samples: Sequence[Any], method: Chosen
    ) -> list[Row]:
        seen = [s if isinstance(s, Seen) else see(loaded, s) for s in samples]
        rows: dict[int, Row] = {}
        for places in by_shape(seen):
            found = self._rows(loaded, [seen[at] for at in places], method)
            rows.update(zip(places, found, strict=True))
        return [rows[at] for at in range(len(seen))]

    def _rows(self, loaded: LoadedModel, seen: Sequence[Seen], method: Chosen) -> list[Row]:
        labels = [self.labels.index(loaded, one.sample) for one in seen]
        pixels = on_device([one.pixels for one in seen], loaded.device)
        predicted = explained(loaded, pixels, method)
        classes = predicted.target.tolist()
        maps = [self._scores(predicted)]
        # Which map shows the target class: a map of its own only where that is another class.
        of_target = list(range(len(seen)))
        others = [at for at, label in enumerate(labels) if label not in (None, classes[at])]
        if others and predicted.class_specific:
            # Each batch has another number of them.
            plain, targets = loaded.plain(), [labels[at] for at in others]
            target = explained(plain, pixels[others], method, target=targets)
            maps.append(self._scores(target))
            for number, at in enumerate(others):
                of_target[at] = len(seen) + number
        samples = [*range(len(seen)), *(others if len(maps) > 1 else ())]
        logits = self._perturbed(loaded, pixels, torch.cat(maps), samples, predicted.grid)
        clean = predicted.logits
        empty = self._empty(loaded, pixels) if self.insertion else None
        return [
            self._row(
                one,
                labels[at],
                classes[at],
                clean[at],
                {"predicted": logits[at], "target": logits[of_target[at]]},
                None if empty is None else empty[at],
            )
            for at, one in enumerate(seen)
        ]

    def _scores(self, explanation: Any) -> Tensor:
        """(batch, units), of pixels or patches."""
        if self.unit == "patches":
            scores: Tensor = explanation.scores
            return scores
        return torch.flatten(explanation.heatmap(), 1)

    def _perturbed(
        self,
        loaded: LoadedModel,
        pixels: Tensor,
        maps: Tensor,
        samples: Sequence[int],
        grid: tuple[int, int] | None,
    ) -> Tensor:
        """Logits when parts are removed, (maps, orders, fractions, classes)."""
        jobs = [(order, fraction) for order in _ORDERS.values() for fraction in FRACTIONS]
        scale, origin = Scale.of(loaded), torch.tensor(samples, device=pixels.device)
        turns = {order: ranks(maps, order) for order in _ORDERS.values()}
        units = maps.shape[1]

        def work(part: range) -> Tensor:
            hidden, images = [], []
            # Rows run over maps within jobs, so that a pass holds steps of many samples.
            for job in range(part.start // len(maps), (part.stop - 1) // len(maps) + 1):
                first, last = job * len(maps), (job + 1) * len(maps)
                chosen = slice(max(part.start, first) - first, min(part.stop, last) - first)
                order, fraction = jobs[job]
                removed = turns[order][chosen] < count(units, fraction)
                hidden.append(self._hidden(removed, pixels, grid))
                images.append(pixels[origin[chosen]])
            masked = scale.hide(torch.cat(images), torch.cat(hidden), self.fill)
            return logits_of(loaded, masked)

        rows = len(jobs) * len(maps)
        logits = in_parts(rows, rows_at_once(loaded), work, loaded.device)
        shaped = logits.reshape(len(_ORDERS), len(FRACTIONS), len(maps), -1)
        return shaped.permute(2, 0, 1, 3)

    def _hidden(self, units: Tensor, pixels: Tensor, grid: tuple[int, int] | None) -> Tensor:
        """Which pixels are hidden, (rows, height, width), if units are removed."""
        size = pixels.shape[-2:]
        if self.unit == "pixels":
            return units.reshape(-1, *size)
        if grid is None:
            raise WhenceError("The model has no grid of patches; use --unit pixels.")
        return spread(units, grid, (int(size[0]), int(size[1])))

    def _empty(self, loaded: LoadedModel, pixels: Tensor) -> Tensor:
        """Logits when everything is removed, (batch, classes)."""
        every = torch.ones(len(pixels), *pixels.shape[-2:], dtype=torch.bool, device=pixels.device)
        return logits_of(loaded, Scale.of(loaded).hide(pixels, every, self.fill))

    def _row(
        self,
        seen: Seen,
        label: int | None,
        predicted: int,
        clean: Tensor,
        perturbed: dict[str, Tensor],
        empty: Tensor | None,
    ) -> Row:
        reference = predicted if label is None else label
        row: Row = {
            "sample": seen.sample.name,
            "label": label,
            "predicted": predicted,
            "clean": float(int(clean.argmax()) == reference),
        }
        for which, index in (("predicted", predicted), ("target", label)):
            if index is None:
                continue
            for at, order in enumerate(_ORDERS):
                logits = torch.cat([clean[None], perturbed[which][at]]).double()
                chances = logits.softmax(-1)[:, index]
                correct = (logits.argmax(-1) == reference).double()
                start = f"{order}_{which}"
                row[f"{start}_accuracy"] = numbers(correct)
                row[f"{start}_probability"] = numbers(chances)
                row[f"{start}_logit"] = numbers(logits[:, index])
                row[f"{start}_auc"] = numbers(area(correct, _STEPS))
                row[f"{start}_probability_auc"] = numbers(area(chances, _STEPS))
                if empty is not None:
                    nothing = empty.double().softmax(-1)[index]
                    whole = torch.cat([chances, nothing[None]])
                    # What is left after removing the lowest 90 % is what inserting the top 10 %
                    # gives, so the negative curve read backwards is that of insertion.
                    kind = "deletion" if order == "positive" else "insertion"
                    curve = whole if order == "positive" else whole.flip(0)
                    row[f"{kind}_{which}"] = numbers(area(curve, (*_STEPS, 1.0)))
            areas = (row[f"{order}_{which}_auc"] for order in ("negative", "positive"))
            row[f"difference_{which}_auc"] = next(areas) - next(areas)
        return row

    def metrics(self, results: Mapping[str, Columns]) -> list[Metric]:  # noqa: D102
        found = [
            Metric(f"{order}, {which}", (f"{order}_{which}_auc",), _better(order))
            for which in _CLASSES
            for order in _ORDERS
        ]
        found += [
            Metric(f"difference, {which}", (f"difference_{which}_auc",), "higher")
            for which in _CLASSES
        ]
        found += [
            Metric(f"{kind}, {which}", (f"{kind}_{which}",), _better(order))
            for which in _CLASSES
            for kind, order in (("deletion", "positive"), ("insertion", "negative"))
        ]
        found += [
            Metric(
                f"{order}, {which}, probability",
                (f"{order}_{which}_probability_auc",),
                _better(order),
                shown=False,
            )
            for which in _CLASSES
            for order in _ORDERS
        ]
        return present(results, found)

    def curves(self, results: Mapping[str, Columns]) -> list[Curve]:  # noqa: D102
        titles = {"accuracy": "accuracy", "probability": "probability", "logit": "logit"}
        return [
            Curve(
                f"{order}, {which} class: {title}",
                f"{order}_{which}_{column}",
                _STEPS,
                f"share of {self.unit} removed",
                column != "logit",
            )
            for column, title in titles.items()
            for which in _CLASSES
            for order in _ORDERS
            if has(results, f"{order}_{which}_{column}")
        ]

    def notes(self, results: Mapping[str, Columns]) -> list[str]:  # noqa: D102
        first = next(iter(results.values()))
        labels = first.get("label", np.array([]))
        clean = float(np.nanmean(first["clean"])) if len(first.get("clean", ())) else float("nan")
        unlabelled = int(np.isnan(labels).sum()) if labels.dtype != object else len(labels)
        notes = []
        if unlabelled == len(labels):
            notes.append(
                "The dataset has no labels: accuracy is against the class that the model predicts "
                "for the clean photo, and the target class is left out."
            )
        else:
            notes.append(f"Clean accuracy: {100 * clean:.2f} %.")
            if unlabelled:
                notes.append(f"{unlabelled} photo(s) without a label count against the prediction.")
        filling = {"zero": "black", "mean": "the photo's mean colour", "blur": "a blurred copy"}
        notes.append(
            f"Areas under the top-1 accuracy when 0, 10, … 90 % of the {self.unit} become "
            f"{filling[self.fill]}, times 100; positive removes the highest first, negative the "
            f"lowest; the difference is negative less positive."
        )
        return notes


def _better(order: str) -> Literal["higher", "lower"]:
    return "lower" if order == "positive" else "higher"
