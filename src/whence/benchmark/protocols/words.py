"""Words benchmark: how the decision changes as words are masked or deleted by their scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple, get_args

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from whence._util.random import make_seed
from whence.benchmark.columns import Columns
from whence.benchmark.protocols.base import (
    BenchmarkProtocol,
    Better,
    Curve,
    Metric,
    Row,
    add_columns,
    explain_batch,
)
from whence.benchmark.texts import PreparedText, prepare_text
from whence.errors import WhenceError
from whence.faithfulness.soft_words import SoftRunner, check_takes_embeddings
from whence.faithfulness.texts import Replacement, TextUnits, WordRunner, find_word_indices
from whence.methods import MethodSpecification
from whence.metrics.curves import area_under_curve, compute_curves
from whence.metrics.deletion import FRACTIONS, Order, count_units, delete_in_order
from whence.metrics.soft import compute_soft_figures, scale_to_chances
from whence.metrics.words import rank_words, sum_over_words
from whence.models import LoadedModel, PreparedBatch
from whence.models.forward import choose_chunk_size
from whence.models.text_preprocessing import join_batches

if TYPE_CHECKING:
    from whence.datasets import Sample

_ORDERS: dict[str, Order] = {"MoRF": "highest", "LeRF": "lowest"}
_BETTER: dict[str, Better] = {"MoRF": "lower", "LeRF": "higher"}
_STEPS = (0.0, *FRACTIONS)
_CLASSES = ("predicted", "target")
_Figure = Literal["probability", "logit", "accuracy"]
_FIGURES: tuple[_Figure, ...] = get_args(_Figure)
_Soft = Literal["soft_sufficiency", "soft_comprehensiveness"]
_SOFT: tuple[_Soft, ...] = get_args(_Soft)
_SAYINGS = {
    "mask": "each token of a word becomes {mask}",
    "delete": "words are deleted and the text is tokenised again",
}


class ExplainedTexts(NamedTuple):
    """Scores of words for the predicted classes, and for the true ones where they are others.

    Attributes:
        maps: (maps, units), scores of words.
        texts: (maps,), the text of each map.
        logits: (texts, classes), of the whole texts.
        watched: For the predicted and the target class: the class of each text that has one, and
            the map of that class.
        multi_label: Whether several classes can hold at once.
    """

    maps: Tensor
    texts: Tensor
    logits: Tensor
    watched: dict[str, dict[int, tuple[int, int]]]
    multi_label: bool


@dataclass
class WordsProtocol(BenchmarkProtocol[PreparedText]):
    """Words are masked or deleted, the most relevant first (MoRF) or the least relevant (LeRF).

    After Samek et al. (2017), for words: a word's score is the sum over its tokens; 10, 20, … 90 %
    of the words of each text, rounded down, are replaced; the probability of the explained class is
    measured at each step. The figures are the areas under these curves by trapezoids, times 100,
    and the area of LeRF less that of MoRF. The class that is explained is the predicted one, and
    the true one (the target).

    Attributes:
        replace: What becomes of words: each token becomes the mask token (that of unknown words if
            there is none), or the word is deleted and the text tokenised again.
        soft: How often numbers of the words' embeddings are dropped at random, for soft sufficiency
            and soft comprehensiveness (Zhao and Aletras, ACL 2023); 0 to leave these out.
        mask_token: The mask token, in words, once a model was checked.
    """

    name: ClassVar[str] = "words"
    kinds: ClassVar[tuple[str, ...]] = ("text",)
    main: ClassVar[str] = "LeRF - MoRF"
    main_column: ClassVar[str] = "difference"

    replace: tuple[Replacement, ...] = ("mask", "delete")
    soft: int = 0
    mask_token: str = field(default="the mask token", init=False)
    _seed: int = field(default=0, init=False, repr=False)

    def __post_init__(self) -> None:
        """Refuse a number of draws below 0."""
        if self.soft < 0:
            raise WhenceError(f"'soft' is a number of draws from 0, not {self.soft}.")

    @override
    def start(self, names: Sequence[str], seed: int) -> None:
        self._seed = seed

    @override
    def describe_wrong_kind(self, kind: str) -> str:
        return (
            f"The words benchmark replaces words of texts; for {kind}s there is `whence benchmark "
            f"perturbation`."
        )

    @override
    def check(self, loaded: LoadedModel, kind: str, first: Sample) -> None:
        super().check(loaded, kind, first)
        if loaded.generates:
            raise WhenceError(
                f"The words benchmark is for classifiers of texts, and '{loaded.title}' generates "
                f"text; for such models there is `whence benchmark context`."
            )
        if loaded.class_count < 2:
            raise WhenceError(
                f"The model '{loaded.title}' answers with a single number, not with probabilities "
                f"of classes that could be watched."
            )
        if self.soft:
            check_takes_embeddings(loaded)
        prepared = self.prepare(loaded, first)
        for replacement in self.replace:
            runner = WordRunner(loaded, prepared.batch, [prepared.units], replacement)
            if replacement == "mask":
                self.mask_token = loaded.tokenizer.convert_ids_to_tokens(runner.mask_token)

    @override
    def prepare(self, loaded: LoadedModel, sample: Sample) -> PreparedText:
        return prepare_text(loaded, sample)

    @override
    def compute_rows(
        self, loaded: LoadedModel, samples: Sequence[PreparedText], method: MethodSpecification
    ) -> list[Row]:
        labels = [self.labels.find_index(loaded, one.sample) for one in samples]
        batch = loaded.move(join_batches([one.batch for one in samples], loaded.tokenizer))
        units = [one.units for one in samples]
        found = self._explain(loaded, batch, units, labels, method)
        predicted = [index for index, _ in found.watched["predicted"].values()]
        references = torch.tensor(
            [own if label is None else label for own, label in zip(predicted, labels, strict=True)]
        )
        rows: list[Row] = [
            {
                "sample": one.name,
                "label": labels[n],
                "predicted": predicted[n],
                "words": len(one.units.spans),
                "clean": float(predicted[n] == references[n]),
            }
            for n, one in enumerate(samples)
        ]
        for replacement in self.replace:
            logits = self._replace(loaded, found, WordRunner(loaded, batch, units, replacement))
            for which, pairs in found.watched.items():
                classes = torch.tensor([index for index, _ in pairs.values()], dtype=torch.long)
                self._add_figures(
                    [rows[n] for n in pairs],
                    f"{replacement}_{which}",
                    logits[:, [of_map for _, of_map in pairs.values()]],
                    classes,
                    references[list(pairs)],
                    found.multi_label,
                )
        for row in rows:
            differences = [row[f"difference_{one}_predicted_probability"] for one in self.replace]
            row["difference"] = sum(differences) / len(differences)
        if self.soft:
            self._add_soft_figures(loaded, batch, samples, found, rows)
        return rows

    def _add_soft_figures(
        self,
        loaded: LoadedModel,
        batch: PreparedBatch,
        samples: Sequence[PreparedText],
        found: ExplainedTexts,
        rows: Sequence[Row],
    ) -> None:
        """Add what the predicted class loses as numbers of embeddings are dropped by the scores."""
        words = find_word_indices(batch, [one.units for one in samples])
        seeds = [make_seed(self._seed, one.name) for one in samples]
        runner = SoftRunner(loaded, dict(batch.inputs), words, seeds)
        lengths = torch.tensor([len(one.units.spans) for one in samples])
        chances = scale_to_chances(found.maps[: len(samples)], lengths)
        classes = torch.tensor([index for index, _ in found.watched["predicted"].values()])

        def watch(logits: Tensor) -> Tensor:
            return compute_curves(logits, classes, None, found.multi_label)["probability"]

        figures = compute_soft_figures(
            watch(found.logits[:, None])[:, 0],
            watch(runner.run(chances, self.soft)),
            watch(runner.run(1 - chances, self.soft)),
            watch(runner.run(torch.zeros_like(chances), 1))[:, 0],
        )
        columns: dict[str, Tensor] = {name: figures[name] for name in _SOFT}
        add_columns(rows, columns)

    def _explain(
        self,
        loaded: LoadedModel,
        batch: PreparedBatch,
        units: Sequence[TextUnits],
        labels: Sequence[int | None],
        method: MethodSpecification,
    ) -> ExplainedTexts:
        """Explain the predicted class of each text, and the true one where it is another."""
        inputs: dict[str, Tensor] = dict(batch.inputs)
        words = find_word_indices(batch, units)
        longest = max(len(one.spans) for one in units)
        predicted = explain_batch(loaded, inputs, method)
        classes: list[int] = predicted.target.tolist()
        maps, texts = [sum_over_words(predicted.scores, words, longest)], [*range(len(units))]
        of_target = list(texts)
        wrong = {n: one for n, one in enumerate(labels) if one is not None and one != classes[n]}
        if wrong and predicted.class_specific:
            rows = list(wrong)
            part = {name: tensor[rows] for name, tensor in inputs.items()}
            # Each batch has another number of them, for which compiling does not pay.
            others = explain_batch(loaded.to_eager(), part, method, list(wrong.values()))
            maps.append(sum_over_words(others.scores, words[rows], longest))
            for number, at in enumerate(wrong):
                of_target[at] = len(units) + number
            texts += rows
        watched = {
            "predicted": {n: (index, n) for n, index in enumerate(classes)},
            "target": {n: (i, of_target[n]) for n, i in enumerate(labels) if i is not None},
        }
        return ExplainedTexts(
            torch.cat(maps),
            torch.tensor(texts),
            predicted.logits,
            watched,
            predicted.multi_label,
        )

    def _replace(self, loaded: LoadedModel, found: ExplainedTexts, runner: WordRunner) -> Tensor:
        """Logits of the whole text and of each step, (orders, maps, steps, classes)."""
        lengths = torch.tensor([len(one.spans) for one in runner.units])[found.texts]
        ranks = [rank_words(found.maps, lengths, order) for order in _ORDERS.values()]
        logits = delete_in_order(
            torch.cat(ranks),
            count_units(lengths, FRACTIONS).repeat(len(_ORDERS), 1),
            runner,
            found.texts.repeat(len(_ORDERS)),
            chunk_size=choose_chunk_size(loaded),
        ).reshape(len(_ORDERS), len(found.maps), len(FRACTIONS), -1)
        whole = found.logits.to(logits)[found.texts.to(logits.device)][None, :, None]
        return torch.cat([whole.expand(len(_ORDERS), -1, -1, -1), logits], 2)

    def _add_figures(
        self,
        rows: Sequence[Row],
        kind: str,
        logits: Tensor,
        classes: Tensor,
        references: Tensor,
        multi_label: bool,
    ) -> None:
        """Add curves and areas of a class to the rows of its texts."""
        curves = [compute_curves(of_order, classes, references, multi_label) for of_order in logits]
        for figure in _FIGURES:
            areas = []
            for order, of_order in zip(_ORDERS, curves, strict=True):
                values = of_order[figure]
                areas.append(area_under_curve(values, _STEPS))
                start = f"{order}_{kind}_{figure}"
                add_columns(rows, {start: values, f"{start}_auc": areas[-1]})
            add_columns(rows, {f"difference_{kind}_{figure}": areas[1] - areas[0]})

    @override
    def list_metrics(self) -> list[Metric]:
        metrics = []
        for replacement in self.replace:
            for which in _CLASSES:
                for figure in _FIGURES:
                    kind = f"{replacement}_{which}_{figure}"
                    details: list[str] = [replacement]
                    details += [which] if which != _CLASSES[0] else []
                    details += [figure] if figure != _FIGURES[0] else []
                    end, shown = ", ".join(details), len(details) == 1
                    for order, better in _BETTER.items():
                        column = f"{order}_{kind}_auc"
                        metrics.append(Metric(f"{order}, {end}", (column,), better, shown=shown))
                    difference = Metric(
                        f"{self.main}, {end}",
                        (f"difference_{kind}",),
                        "higher",
                        shown=shown,
                        ranked=shown,
                    )
                    metrics.append(difference)
        metrics += [Metric(name.replace("_", " "), (name,), "higher", factor=100) for name in _SOFT]
        mean = Metric(self.main, (self.main_column,), "higher", shown=False)
        return [*sorted(metrics, key=lambda metric: not metric.shown), mean]

    @override
    def list_curves(self, results: Mapping[str, Columns]) -> list[Curve]:
        return [
            Curve(
                f"{order}, {replacement}: probability of the predicted class",
                f"{order}_{replacement}_predicted_probability",
                _STEPS,
                "share of the words replaced",
            )
            for replacement in self.replace
            for order in _ORDERS
        ]

    @override
    def write_notes(self, results: Mapping[str, Columns]) -> list[str]:
        first = next(iter(results.values()))
        listed = " or ".join(_SAYINGS[one].format(mask=self.mask_token) for one in self.replace)
        notes = [
            f"Areas under the probability of the explained class when 0, 10, … 90 % of the words "
            f"are replaced, times 100, so 90 at most: {listed}. MoRF replaces the most relevant "
            f"first, LeRF the least relevant. Figures are of the predicted class; table.csv has "
            f"the true class, logits and accuracy too."
        ]
        if self.soft:
            notes.append(
                "Soft sufficiency and comprehensiveness, in percent: what the class keeps where "
                "numbers of words' embeddings stay with the scaled score as their chance, and "
                f"loses where they go; {self.soft} draw(s)."
            )
        if "clean" in first and np.isfinite(first.get("label", np.array([np.nan]))).any():
            notes.append(f"The model is right on {100 * float(first['clean'].mean()):.2f} %.")
        return notes
