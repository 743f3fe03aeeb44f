"""How strongly a class is coloured: one that the model doubts does not shine as a certain one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from whence.targets import has_contrast, to_probabilities

if TYPE_CHECKING:
    from whence.explanation import Explanation

# Even the least probable class can be seen.
_FAINTEST = 0.4


def list_strengths(explanation: Explanation, sample: int = 0) -> list[float]:
    """The strength of each explained class of a sample, from 0.4 to 1.

    With p the probability of the class, and m that of the most probable class (of all where the
    logits are known), the strength is 0.4 + 0.6 sqrt(p / m). It is 1 for the predicted class, for
    a target without a probability, and for one that is explained rather than another.
    """
    classes = explanation.classes(sample)
    known = [one.probability for one in classes if one.probability is not None]
    largest = max([*known, _find_largest(explanation, sample)])
    return [
        1.0
        if one.probability is None or has_contrast(one.name) or largest <= 0
        else _FAINTEST + (1 - _FAINTEST) * (max(one.probability, 0.0) / largest) ** 0.5
        for one in classes
    ]


def _find_largest(explanation: Explanation, sample: int) -> float:
    """The probability of the most probable of all classes; 0 if it is not known."""
    logits = explanation.logits[sample] if len(explanation.logits) else None
    if explanation.probabilities is not None or logits is None or logits.numel() < 2:
        return 0.0
    return float(
        to_probabilities(logits.detach().double().reshape(-1), explanation.multi_label).max()
    )
