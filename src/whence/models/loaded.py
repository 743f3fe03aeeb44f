"""A model that is ready to explain what people have: photos and texts."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from whence.errors import WhenceError
from whence.explainer import Explainer
from whence.explanation import Explanation
from whence.inputs.sources import Kind
from whence.layout import Tokens
from whence.targets import resolve_classes


@dataclass
class Prepared:
    """A batch as the model takes it.

    Attributes:
        inputs: What the model is called with.
        shown: What of each input the model saw: the part of the photo that was not cropped, or the
            text.
        notes: For each input, what was done to it that its owner should know.
    """

    inputs: Tensor | Mapping[str, Any]
    shown: list[Any]
    notes: list[list[str]]


@dataclass
class LoadedModel:
    """A model with all that stands between it and a photo or a text.

    Attributes:
        name: What the user called it.
        model: The model itself.
        kind: What it explains, ``"image"`` or ``"text"``.
        class_names: Names of its classes, where they are known.
        class_count: How many classes it tells apart.
        preparation: Makes a batch of photos or texts into what the model takes.
        tokenizer: For text.
        device: Where the model lies.
        fast: As for `Explainer`.
        precision: As for `Explainer`.
        explainer: The one that explains all batches, so that what it compiled is used again.
    """

    name: str
    model: nn.Module
    kind: Kind
    class_names: dict[int, str]
    class_count: int
    preparation: Callable[[Sequence[Any]], Prepared] = field(repr=False)
    tokenizer: Any = field(default=None, repr=False)
    device: torch.device | str = "cpu"
    fast: bool = False
    precision: str | None = None
    explainer: Explainer = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self.explainer = Explainer(
            self.model,
            class_names=self.class_names,
            tokenizer=self.tokenizer,
            compile=self.fast,
            precision=self.precision,  # type: ignore[arg-type]  # which refuses other words
        )

    def plain(self) -> LoadedModel:
        """The same that compiles nothing, for inputs of which few have the same shape."""
        return dataclasses.replace(self, fast=False)

    def prepare(self, inputs: Sequence[Any]) -> Prepared:
        """Make photos (RGB) or texts into a batch that the model takes, on its device.

        Raises:
            WhenceError: An input holds nothing that the model could read, or sizes differ.
        """
        prepared = self.preparation(inputs)
        prepared.inputs = prepared.inputs.to(self.device)  # type: ignore[union-attr]
        return prepared

    def check(self, target: Any = None, classes: Any = None) -> None:
        """Refuse classes that the model does not have, before any work.

        Raises:
            WhenceError: There is no such class.
        """
        resolve_classes(torch.zeros(1, self.class_count), self.class_names, target, classes)

    def explain(self, prepared: Prepared, **request: Any) -> Explanation:
        """Explain a prepared batch; the request is that of `Explainer.explain`."""
        explanation = self.explainer.explain(prepared.inputs, **request)
        encodings = getattr(prepared.inputs, "encodings", None)
        if explanation.tokens is not None and encodings:
            texts = [_as_written(e, t) for e, t in zip(encodings, prepared.shown, strict=True)]
            explanation.tokens = dataclasses.replace(explanation.tokens, texts=texts)
        return explanation


def _as_written(encoding: Any, text: str) -> list[str]:
    """The words of a text as they stand in it, not as the tokenizer spells them."""
    spans = word_spans(encoding)
    count = max(spans, default=-1) + 1
    return [text[slice(*spans.get(n, (0, 0)))].strip() for n in range(count)]


def word_spans(encoding: Any) -> dict[int, tuple[int, int]]:
    """Where each word of a fast tokenizer's encoding stands in the text: [start, end)."""
    spans: dict[int, tuple[int, int]] = {}
    for word, (start, end) in zip(encoding.word_ids, encoding.offsets, strict=True):
        if word is not None:
            first, last = spans.get(word, (start, end))
            spans[word] = (min(first, start), max(last, end))
    return spans


def stacked(pixels: Sequence[Tensor], shown: list[Any], notes: list[list[str]]) -> Prepared:
    """A batch of prepared photos.

    Raises:
        WhenceError: Their sizes differ.
    """
    if len({tuple(one.shape) for one in pixels}) > 1:
        raise WhenceError(
            "The photos have different sizes even when prepared for the model; explain them one by "
            "one."
        )
    return Prepared(torch.stack(list(pixels)), shown, notes)


def one_sample(explanation: Explanation, sample: int, prepared: Prepared) -> Explanation:
    """The explanation of one input of a batch, without the padding that the batch needed."""
    chosen = slice(sample, sample + 1)
    scores, tokens = explanation.scores[chosen], explanation.tokens
    if tokens is not None:
        strings, words = tokens.strings[sample], tokens.words[sample]
        mask = prepared.inputs.get("attention_mask")  # type: ignore[union-attr]
        if mask is not None:
            real = mask[sample].bool()
            scores = scores[..., real]
            strings = [s for s, keep in zip(strings, real.tolist(), strict=True) if keep]
            words = [w for w, keep in zip(words, real.tolist(), strict=True) if keep]
        tokens = Tokens([strings], [words], tokens.texts[sample : sample + 1])
    names = explanation.target_names
    return dataclasses.replace(
        explanation,
        scores=scores,
        target=explanation.target[chosen],
        logits=explanation.logits[chosen],
        tokens=tokens,
        target_names=None if names is None else names[chosen],
        details=None if explanation.details is None else explanation.details[chosen],
        evidence=None,
    )
