"""What a picture or a page says about an explanation: classes, probabilities, how it was made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from whence._util.text import format_probability, to_printable
from whence.errors import WhenceError
from whence.render.colors import Floats
from whence.render.overlay import as_scores

if TYPE_CHECKING:
    from whence.explanation import Explanation


SAME_FOR_EVERY_CLASS = "the same for every class"


@dataclass(frozen=True)
class ExplainedClass:
    """One class that a sample's scores were asked for.

    Attributes:
        name: Its name, or "class 281".
        probability: By softmax of the logits; None where a single logit gives none.
        scores: (units,), finite.
    """

    name: str
    probability: float | None
    scores: Floats

    @property
    def percent(self) -> str:
        """The probability as people read it, never rounded to certainty."""
        return format_probability(self.probability)


def explained_classes(explanation: Explanation, sample: int = 0) -> list[ExplainedClass]:
    """The classes explained for a sample, in the order they were asked for.

    Raises:
        WhenceError: There is no such sample, or its scores are not finite.
    """
    batch = explanation.scores.shape[0]
    if not 0 <= sample < batch:
        raise WhenceError(f"There is no sample {sample}; the samples are 0 to {batch - 1}.")
    units = explanation.scores.shape[-1]
    scores = as_scores(explanation.scores[sample]).reshape(-1, units)
    targets = explanation.target[sample].reshape(-1).tolist()
    names = explanation.target_names[sample] if explanation.target_names else None
    if names is None:
        names = [f"class {index}" for index in targets]
    elif not isinstance(names, list):
        names = [names]
    logits = explanation.logits[sample].detach().double().reshape(-1)
    chances: list[float] | None = None  # one logit alone is a quantity, not a probability
    if explanation.multi_label:
        chances = torch.sigmoid(logits).tolist()
    elif len(logits) > 1:
        chances = torch.softmax(logits, 0).tolist()
    return [
        ExplainedClass(to_printable(str(name)), chances[index] if chances else None, row)
        for name, index, row in zip(names, targets, scores, strict=True)
    ]


def explained_class(explanation: Explanation, sample: int, target: int) -> ExplainedClass:
    """One of the classes explained for a sample, counted from 0.

    Raises:
        WhenceError: There is no such sample or class, or its scores are not finite.
    """
    classes = explained_classes(explanation, sample)
    if not 0 <= target < len(classes):
        raise WhenceError(
            f"There is no explained class {target}; they are counted from 0 to {len(classes) - 1}."
        )
    return classes[target]


def unspecific(explanation: Explanation) -> str:
    """A line that says so where every class gets the same explanation; else nothing."""
    if explanation.class_specific or not explanation.method:
        return ""
    return to_printable(f"{explanation.method} is {SAME_FOR_EVERY_CLASS}")


def made_by(explanation: Explanation) -> list[tuple[str, str]]:
    """How the explanation was made, as names and values."""
    label = f" ({SAME_FOR_EVERY_CLASS})" if unspecific(explanation) else ""
    facts = [("method", explanation.method + label), *explanation.settings.items()]
    facts.append(("whence", explanation.version))
    return [(to_printable(str(k)), to_printable(str(v))) for k, v in facts if v not in ("", None)]
