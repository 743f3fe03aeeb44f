"""How strongly a class is coloured: one that the model doubts does not shine as a certain one."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from whence.explanation import PairExplanation
from whence.targets import has_contrast, to_probabilities

if TYPE_CHECKING:
    from whence.explanation import Explanation

# Even the least probable class can be seen.
_FAINTEST = 0.4


def list_strengths(explanation: Explanation, sample: int = 0) -> list[float]:
    """The strength of each explained class of a sample, from 0.4 to 1.

    With p the probability of the class, and m that of the most probable class (of all where the
    logits are known), the strength is 0.4 + 0.6 sqrt(p / m). It is 1 for the predicted class, for
    a target without a probability, and for one that is explained rather than another. Where texts
    are compared by their cosine, it takes the place of the probability.
    """
    classes = explanation.classes(sample)
    if isinstance(explanation, PairExplanation) and explanation.measure == "cosine":
        cosines = explanation.fits[sample].tolist()
        return [_pale(cosines[one.index], max(cosines), one.name) for one in classes]
    known = [one.probability for one in classes if one.probability is not None]
    largest = max([*known, _find_largest(explanation, sample)])
    return [
        1.0 if one.probability is None else _pale(one.probability, largest, one.name)
        for one in classes
    ]


def _pale(value: float, largest: float, name: str) -> float:
    """The strength of a class whose probability, or cosine, is this share of the largest."""
    if has_contrast(name) or largest <= 0:
        return 1.0
    return _FAINTEST + (1 - _FAINTEST) * math.sqrt(max(value, 0.0) / largest)


def _find_largest(explanation: Explanation, sample: int) -> float:
    """The probability of the most probable of all classes; 0 if it is not known."""
    logits = explanation.logits[sample] if len(explanation.logits) else None
    if explanation.probabilities is not None or logits is None or logits.numel() < 2:
        return 0.0
    return float(
        to_probabilities(logits.detach().double().reshape(-1), explanation.multi_label).max()
    )
