"""The words of an explained text with their scores."""

from __future__ import annotations

from typing import TYPE_CHECKING

from whence.errors import WhenceError
from whence.layout import sum_over_words

if TYPE_CHECKING:
    from whence.explanation.explanation import Explanation


def list_word_scores(
    explanation: Explanation, sample: int = 0, target: int = 0
) -> list[tuple[str, float]]:
    """The words of a text, each with the sum over the scores of its tokens.

    Raises:
        WhenceError: The explanation does not know its words, or there is no such text or class.
    """
    tokens = explanation.tokens
    if explanation.grid is not None:
        raise WhenceError("This explanation is not of a text; see .scores and .heatmap().")
    if tokens is None and (explanation.photos or explanation.areas):
        raise WhenceError(
            f"There is no map: which part of the photo each of the model's "
            f"{explanation.scores.shape[-1]} tokens stands for could not be proven. A method at "
            f"the input, such as 'attnlrp' or 'input_x_gradient', gives one; or state it, "
            f"Explainer(model, layout=Layout(grid=(rows, columns)))."
        )
    if tokens is None:
        raise WhenceError(
            "This explanation has no words. Pass what a fast tokenizer returned as inputs, or "
            "the tokenizer: Explainer(model, tokenizer=tokenizer)."
        )
    of_tokens = explanation.get_class(sample, target).scores
    sums = sum_over_words(tokens.strings[sample], tokens.words[sample], of_tokens.tolist())
    if not tokens.texts:
        return sums
    numbers = dict.fromkeys(n for n in tokens.words[sample] if n is not None)
    texts = tokens.texts[sample]
    return [(texts[n], score) for n, (_, score) in zip(numbers, sums, strict=True)]
