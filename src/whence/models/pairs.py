"""Models that compare their inputs with texts: the texts are then their classes."""

from __future__ import annotations

import dataclasses
import textwrap
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor
from typing_extensions import override

from whence import methods
from whence._util.defaults import METHOD
from whence.errors import WhenceError, WhenceWarning
from whence.explainer import Explainer
from whence.explanation import Explanation, PairExplanation
from whence.explanation.pair import Measure, WordScores
from whence.models.loaded import BatchInputs, LoadedModel, PreparedBatch, place_in_texts
from whence.targets import AnyTarget, SeveralTargets

# Arguments of `Explainer.explain` that say what is explained, and not how.
_ASKED = ("target", "against", "classes", "of", "keep_evidence", "verify")
# A note quotes no more letters of a text.
_LONGEST = 50


class Compared(NamedTuple):
    """Inputs that were compared with texts.

    Attributes:
        explanation: Of the inputs; its classes are texts.
        fits: (batch, texts), how well each text fits each input; NaN where that has no measure.
        measure: What fits are.
        targets: For the words of the texts, one target for each input.
    """

    explanation: Explanation
    fits: Tensor
    measure: Measure
    targets: list[Any]


@dataclass
class PairModel(LoadedModel, ABC):
    """A model that compares its inputs with texts.

    Beside the attributes of `LoadedModel`, whose classes are the texts:

    Attributes:
        prepare_texts: Tokenises the texts.
        texts: The texts; `with_texts` names them.
        scores_words: Whether the words of the explained texts get scores, too.
    """

    prepare_texts: Callable[[Sequence[str]], PreparedBatch] = field(kw_only=True, repr=False)
    texts: tuple[str, ...] = ()
    scores_words: bool = True

    def with_texts(self, texts: Sequence[str], scores_words: bool = True) -> PairModel:
        """Return this model with texts that it compares its inputs with.

        Raises:
            WhenceError: There are none, or one is empty, no text or named twice.
        """
        listed = check_texts(texts)
        return dataclasses.replace(
            self,
            texts=listed,
            class_names=dict(enumerate(listed)),
            class_count=len(listed),
            scores_words=scores_words,
        )

    @override
    def check_classes(
        self,
        target: AnyTarget | None = None,
        against: AnyTarget | None = None,
        classes: SeveralTargets | None = None,
    ) -> None:
        """Refuse texts that were not named."""
        self._require_texts()
        super().check_classes(target, against, classes)

    @override
    def explain(self, prepared: PreparedBatch, **request: Any) -> Explanation:
        """Explain how well texts fit a prepared batch, and score the words of these texts."""
        self._require_texts()
        compared = self._compare(prepared, request)
        explanation = compared.explanation
        self.attach_inputs(explanation, prepared)
        if not self.scores_words:
            return explanation
        remarks = [
            f"{textwrap.shorten(text, _LONGEST, placeholder=' …')!r}: {note}"
            for text, notes in zip(self.texts, self._encoded_texts.notes, strict=True)
            for note in notes
        ]
        if bool(compared.fits.isnan().all()):
            remarks.append("one text alone has no probability: name others to compare with")
        indices = explanation.target.reshape(len(explanation), -1).tolist()
        words, more = self._score_words(prepared, compared.targets, indices, request)
        return PairExplanation.from_explanation(
            explanation,
            texts=list(self.texts),
            fits=compared.fits,
            measure=compared.measure,
            word_scores=words,
            remarks=remarks + more,
        )

    def _require_texts(self) -> None:
        if not self.texts:
            raise WhenceError(
                f"The model '{self.title}' compares {self.kind}s with texts, and none are named: "
                f"whence explain INPUT --text TEXT --text TEXT, or explain(input, texts=[...])."
            )

    @abstractmethod
    def _compare(self, prepared: PreparedBatch, request: Mapping[str, Any]) -> Compared:
        """Explain how well the texts fit the inputs of a prepared batch."""

    @abstractmethod
    def _join(self, encoded: BatchInputs, prepared: PreparedBatch) -> Mapping[str, Any]:
        """The model's input, of tokenised texts and of what they are compared with."""

    @cached_property
    def _encoded_texts(self) -> PreparedBatch:
        """The tokenised texts, on the model's device."""
        return self.move(self.prepare_texts(self.texts))

    @cached_property
    def _word_explainer(self) -> Explainer:
        """Explains texts, of which few have the same shape, without compiling."""
        precision: Any = self.precision
        return Explainer(self.model, tokenizer=self.tokenizer, precision=precision)

    def _score_words(
        self,
        prepared: PreparedBatch,
        targets: list[Any],
        indices: list[list[int]],
        request: Mapping[str, Any],
    ) -> tuple[list[list[WordScores]], list[str]]:
        """Score the words of the explained texts, of which `indices` has those of each input.

        Returns:
            For each input and each of its texts the scored words, and what is to be said of them.
        """
        how = {name: value for name, value in request.items() if name not in _ASKED}
        method = how.get("method", METHOD)
        none: list[list[WordScores]] = [[[] for _ in row] for row in indices]
        if "text" not in methods.describe(method).inputs:
            return none, [f"'{method}' explains photos only, so that words have no scores"]
        rows = sorted({index for row in indices for index in row})
        inputs = self._join(select_texts(self._encoded_texts.inputs, rows), prepared)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", WhenceWarning)  # notes of the result say it
                of_texts = self._word_explainer.explain(
                    inputs, classes=targets, of="input_ids", **how
                )
        except WhenceError as error:
            return none, [f"words of the texts have no scores: {str(error).removesuffix('.')}"]
        encodings = getattr(inputs, "encodings", None)
        if of_texts.tokens is not None and encodings:
            written = [self.texts[row] for row in rows]
            of_texts.tokens = place_in_texts(of_texts.tokens, encodings, written)
        doubts = [check.sentence for check in of_texts.checks if check.status == "doubt"]
        scored = [
            [of_texts.words(rows.index(index), sample) for index in row]
            for sample, row in enumerate(indices)
        ]
        return scored, [f"words of the texts: {one.removesuffix('.')}" for one in doubts]


@dataclass
class ImageTextModel(PairModel):
    """A CLIP or one of its kind: two towers, whose embeddings of photo and text are compared."""

    @override
    def _compare(self, prepared: PreparedBatch, request: Mapping[str, Any]) -> Compared:
        asked = {**request, "of": "pixel_values"}
        if request.get("of") not in (None, "pixel_values"):
            raise WhenceError(
                "The words of the texts get scores beside the photo's map; leave `of` (--of) out."
            )
        inputs = self._join(self._encoded_texts.inputs, prepared)
        explanation: Explanation = self.explainer.explain(inputs, **asked)
        logits = explanation.logits
        if explanation.multi_label:
            fits = logits.sigmoid()
        else:
            fits = logits.softmax(-1) if logits.shape[1] > 1 else torch.full_like(logits, torch.nan)
        return Compared(explanation, fits, "probability", list(range(len(prepared))))

    @override
    def run(self, inputs: BatchInputs) -> Any:
        """Run the model on photos, and return how well each text fits."""
        self._require_texts()
        return self.model(**add_pixels(self._encoded_texts.inputs, inputs)).logits_per_image

    @override
    def _join(self, encoded: BatchInputs, prepared: PreparedBatch) -> Mapping[str, Any]:
        return add_pixels(encoded, prepared.inputs)


def check_texts(texts: Sequence[str]) -> tuple[str, ...]:
    """Check texts to compare with, and strip them.

    Raises:
        WhenceError: There are none, or one is empty, no text or named twice.
    """
    listed: list[str] = []
    for text in texts:
        if not isinstance(text, str):
            raise WhenceError(f"A text to compare with is a string, not {type(text).__name__}.")
        if not text.strip():
            raise WhenceError("A text to compare with is empty.")
        if text.strip() in listed:
            raise WhenceError(f"The text {text.strip()!r} is named twice.")
        listed.append(text.strip())
    if not listed:
        raise WhenceError("Name at least one text to compare with.")
    return tuple(listed)


def select_texts(encoded: Any, rows: Sequence[int]) -> Mapping[str, Any]:
    """Select some of the tokenised texts, with their encodings."""
    chosen = {name: x[list(rows)] if isinstance(x, Tensor) else x for name, x in encoded.items()}
    encodings = getattr(encoded, "encodings", None)
    return type(encoded)(chosen, [encodings[row] for row in rows]) if encodings else chosen


def add_pixels(encoded: Any, pixels: BatchInputs) -> Mapping[str, Any]:
    """Add photos to tokenised texts, which keep their encodings."""
    fields = {**encoded, "pixel_values": pixels}
    encodings = getattr(encoded, "encodings", None)
    return type(encoded)(fields, encodings) if encodings else fields
