"""The explained classes of a sample: names, probabilities and scores."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from whence._util.text import to_printable
from whence.errors import WhenceError
from whence.explanation.parts import ExplainedClass
from whence.targets import to_probabilities

if TYPE_CHECKING:
    from whence.explanation.explanation import Explanation


def check_sample(explanation: Explanation, sample: int) -> None:
    """Refuse a sample that the batch does not have."""
    count = len(explanation.scores)
    if not 0 <= sample < count:
        samples = f"the samples are 0 to {count - 1}" if count else "the batch is empty"
        raise WhenceError(f"There is no sample {sample}; {samples}.")


def select_class(classes: Sequence[ExplainedClass], target: int) -> ExplainedClass:
    """Select one of the explained classes, counted from 0; one that is not there is refused."""
    if not 0 <= target < len(classes):
        raise WhenceError(
            f"There is no explained class {target}; they are counted from 0 to {len(classes) - 1}."
        )
    return classes[target]


def list_classes(explanation: Explanation, sample: int) -> list[ExplainedClass]:
    """The explained classes of a sample, in the order they were asked for.

    Raises:
        WhenceError: There is no such sample, or its scores are not finite.
    """
    check_sample(explanation, sample)
    units = explanation.scores.shape[-1]
    scores = explanation.scores[sample].detach().double().cpu().reshape(-1, units).numpy()
    if not np.isfinite(scores).all():
        raise WhenceError("The scores hold NaN or infinite values, which cannot be shown.")
    indices = explanation.target[sample].reshape(-1).tolist()
    names = explanation.target_names[sample] if explanation.target_names else None
    if names is None:
        names = [f"class {index}" for index in indices]
    elif not isinstance(names, list):
        names = [names]
    chances = _list_probabilities(explanation, sample)
    areas = explanation.areas[sample] if explanation.areas else None
    areas = areas if isinstance(areas, list) else [areas] * len(indices)
    return [
        ExplainedClass(index, to_printable(str(name)), chance, row, area)
        for index, name, chance, row, area in zip(
            indices, names, chances, scores, areas, strict=True
        )
    ]


def _list_probabilities(explanation: Explanation, sample: int) -> list[float | None]:
    """The probability of each explained target of a sample; None where it has none."""
    if explanation.probabilities is not None:
        known = explanation.probabilities[sample].reshape(-1).tolist()
        return [None if math.isnan(one) else one for one in known]
    indices = explanation.target[sample].reshape(-1).tolist()
    logits = explanation.logits[sample].detach().double().reshape(-1)
    if len(logits) < 2 and not explanation.multi_label:
        return [None] * len(indices)  # a lone logit is a quantity
    chances = to_probabilities(logits, explanation.multi_label)
    return [float(chances[index]) for index in indices]  # there may be a thousand others
