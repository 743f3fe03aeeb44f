"""The answer about inputs that a model compares with texts: a photo's map, and the texts' words."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple, Self

from torch import Tensor
from typing_extensions import override

from whence._util.text import format_probability
from whence.errors import WhenceError
from whence.explanation.explanation import Explanation
from whence.explanation.parts import ExplainedClass

Measure = Literal["probability", "cosine"]
WordScores = list[tuple[str, float]]


class Fit(NamedTuple):
    """How well a text fits an input."""

    text: str
    value: float
    measure: Measure

    @property
    def label(self) -> str:
        """The value as it is shown: a percentage, or a cosine."""
        if self.measure == "probability":
            return format_probability(self.value)
        return f"cosine {self.value:.2f}"


@dataclass(kw_only=True, repr=False)
class PairExplanation(Explanation):
    """Scores of inputs that a model compares with texts, and of the words of these texts.

    Beside the attributes of `Explanation`, whose classes are the texts:

    Attributes:
        texts: All texts that each input is compared with.
        fits: (batch, texts), how well each text fits each input.
        measure: What fits are: ``"probability"``, or ``"cosine"`` of embeddings.
        word_scores: For each sample and each explained text, the words of the text with their
            scores; empty where they have none.
        remarks: What a reader should know of the texts.
    """

    texts: list[str]
    fits: Tensor
    measure: Measure = "probability"
    word_scores: list[list[WordScores]]
    remarks: list[str] = field(default_factory=list)
    _form: ClassVar[str] = "whence pair 1"

    @classmethod
    def from_explanation(cls, explanation: Explanation, **more: Any) -> PairExplanation:
        """Make one of an explanation whose classes are texts."""
        fields = {f.name: getattr(explanation, f.name) for f in dataclasses.fields(Explanation)}
        return cls(**fields, **more)

    def compared_words(self, sample: int = 0, target: int = 0) -> WordScores:
        """The words of the text that an input is compared with, and their scores.

        Args:
            sample: Which input of the batch.
            target: Which of the explained texts, counted from 0, if there are several.

        Raises:
            WhenceError: There is no such sample or text, or its words have no scores.
        """
        self.get_class(sample, target)
        words = self.word_scores[sample][target]
        if not words:
            why = " ".join(f"{remark}." for remark in self.remarks)
            raise WhenceError(f"The words of this text have no scores. {why}".strip())
        return words

    def list_fits(self, sample: int = 0) -> list[Fit]:
        """How well each text fits an input, the best first; none where one text has no measure."""
        values = self.fits[sample].tolist()
        fits = [Fit(*pair, self.measure) for pair in zip(self.texts, values, strict=True)]
        known = [one for one in fits if not math.isnan(one.value)]
        return sorted(known, key=lambda one: -one.value)

    @override
    def classes(self, sample: int = 0) -> list[ExplainedClass]:
        """The explained texts of an input, in the order they were asked for."""
        listed = super().classes(sample)
        if self.measure == "probability":
            return listed
        values = self.fits[sample].tolist()
        labels = [Fit(one.name, values[one.index], self.measure).label for one in listed]
        pairs = zip(listed, labels, strict=True)
        return [dataclasses.replace(one, probability=None, figure=label) for one, label in pairs]

    @property
    @override
    def notes(self) -> list[str]:
        """What a reader should know, also of the texts."""
        return [*super().notes, *self.remarks]

    @override
    def _to_parts(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        facts, tensors = super()._to_parts()
        facts |= {"texts": self.texts, "measure": self.measure, "remarks": self.remarks}
        return facts | {"word_scores": self.word_scores}, {**tensors, "fits": self.fits.clone()}

    @classmethod
    @override
    def _from_parts(cls, saved: dict[str, Any], tensors: Mapping[str, Tensor]) -> Self:
        whole = Explanation._from_parts(saved, tensors)
        scored = [
            [[(str(word), float(score)) for word, score in words] for words in row]
            for row in saved["word_scores"]
        ]
        return cls.from_explanation(  # type: ignore[return-value]
            whole,
            texts=list(saved["texts"]),
            fits=tensors["fits"],
            measure=saved["measure"],
            word_scores=scored,
            remarks=list(saved["remarks"]),
        )
