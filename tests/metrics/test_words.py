import math

import pytest
import torch

from whence.errors import WhenceError
from whence.metrics.words import rank_words, sum_over_words


def test_scores_are_summed_over_the_tokens_of_each_word():
    scores = torch.tensor([[9.0, 1, 2, -4, 9], [9.0, 1, 1, 9, 9]])
    words = torch.tensor([[-1, 0, 0, 2, -1], [-1, 1, 0, -1, -1]])
    sums = sum_over_words(scores, words, 3)
    expected = []
    for row, places in zip(scores.tolist(), words.tolist(), strict=True):
        found = [0.0] * 3
        for score, word in zip(row, places, strict=True):
            if word >= 0:
                found[word] += score
        expected.append(found)
    assert sums.tolist() == expected
    with pytest.raises(WhenceError, match="words below 2"):
        sum_over_words(scores, words, 2)


@pytest.mark.parametrize("order", ["highest", "lowest"])
def test_words_of_shorter_texts_are_ranked_among_themselves(order):
    scores = torch.tensor([[1.0, 3, 3, 0, 2], [5.0, 5, 5, 9, 9], [-1.0, -2, 7, 0, 0]])
    allowed = torch.tensor([[1, 1, 1, 1, 0], [1, 1, 1, 1, 1], [0, 1, 1, 1, 1]]).bool()
    ranks = rank_words(scores, torch.tensor([5, 3, 2]), order, allowed)
    sign = -1 if order == "highest" else 1
    for row, length, may, found in zip(
        scores.tolist(), (5, 3, 2), allowed.tolist(), ranks.tolist(), strict=True
    ):
        sequence = sorted((n for n in range(length) if may[n]), key=lambda n: (sign * row[n], n))
        for n in range(5):
            rank = -1 if n >= length else sequence.index(n) if may[n] else 5
            assert found[n] == rank, (row, n)


def test_scores_that_are_no_numbers_are_refused():
    with pytest.raises(WhenceError, match="not numbers"):
        rank_words(torch.tensor([[1.0, math.nan]]), torch.tensor([2]), "highest")
