"""Sentences about evidence: they hold for made-up maps and words, or nothing is said."""

import re

import numpy as np
import pytest
import torch
from PIL import Image

from whence.explanation import Explanation, Photo
from whence.layout import Tokens
from whence.render.sentences import describe_evidence, name_model


def make_photo_result(scores: np.ndarray, photo: Photo | None = None) -> Explanation:
    flat = torch.from_numpy(scores.reshape(1, -1))
    return Explanation(
        flat,
        torch.tensor([0]),
        torch.tensor([[3.0, 0.0]]),
        grid=scores.shape,
        target_names=["cat"],
        photos=None if photo is None else [photo],
    )


def make_text_result(words: dict[str, float] | list[tuple[str, float]]) -> Explanation:
    pairs = list(words.items()) if isinstance(words, dict) else words
    texts = [text for text, _ in pairs]
    scores = torch.tensor([[score for _, score in pairs]], dtype=torch.float64)
    tokens = Tokens([texts], [list(range(len(texts)))])
    names = {"target_names": ["positive"], "tokens": tokens}
    return Explanation(scores, torch.tensor([0]), torch.tensor([[3.0, 0.0]]), **names)


def test_a_square_is_told_by_its_place_and_shares() -> None:
    scores = np.zeros((10, 10))
    scores[1:3, 7:9] = 1.0
    assert make_photo_result(scores).describe() == (
        "cat (95.3%): 4% of the photo holds all of the evidence, around the upper right (x 0.80, "
        "y 0.20)"
    )


def test_two_regions_are_counted_the_stronger_first() -> None:
    scores = np.zeros((10, 10))
    scores[8:, 4:6], scores[4:6, :2] = 2.0, 1.0
    assert describe_evidence(make_photo_result(scores)) == (
        "4% of the photo holds 67% of the evidence, around the bottom (x 0.50, y 0.90)"
    )
    scores[4:6, 0], scores[4:6, 1] = 2.0, 0.0
    assert describe_evidence(make_photo_result(scores)) == (
        "6% of the photo holds all of the evidence, in 2 regions, around the bottom (x 0.50, "
        "y 0.90) and the left (x 0.05, y 0.50)"
    )


def test_evidence_against_is_told_apart() -> None:
    scores = np.zeros((10, 10))
    scores[0, :2], scores[9, 8:] = 1.0, -1.0
    told = describe_evidence(make_photo_result(scores))
    assert told == (
        "2% of the photo holds all of the evidence for it, around the upper left (x 0.10, y 0.05); "
        "2% of the photo holds all of the evidence against it, around the lower right (x 0.90, "
        "y 0.95)"
    )
    scores[9, 8:] = -0.01
    assert "against" not in describe_evidence(make_photo_result(scores))


def test_shares_are_of_the_whole_photo_where_the_model_saw_a_part() -> None:
    scores = np.zeros((10, 10))
    scores[4:6, 4:6] = 1.0
    photo = Photo(Image.new("RGB", (400, 200)), (200.0, 0.0, 400.0, 200.0))
    told = describe_evidence(make_photo_result(scores, photo))
    assert told == ("2% of the photo holds all of the evidence, around the right (x 0.75, y 0.50)")


@pytest.mark.parametrize(
    "scores", [np.zeros((9, 9)), np.ones((9, 9)), np.random.default_rng(1).random((9, 9))]
)
def test_nothing_is_said_of_flat_maps(scores: np.ndarray) -> None:
    assert make_photo_result(scores).describe() == "cat (95.3%)"


@pytest.mark.parametrize("seed", range(8))
def test_numbers_of_a_sentence_are_those_of_the_map(seed: int) -> None:
    random = np.random.default_rng(seed)
    y, x = np.mgrid[:14, :14]
    row, column = random.uniform(0, 14, 2)
    scores = np.exp(-((y - row) ** 2 + (x - column) ** 2) / random.uniform(2, 12))
    result = make_photo_result(scores)
    (region,) = result.regions()
    told = describe_evidence(result)
    found = re.match(r"(\d+)% of the photo .* \(x ([\d.]+), y ([\d.]+)\)$", told)
    assert found is not None
    assert int(found[1]) == round(100 * region.mask.sum() / 196)
    weights = np.where(region.mask, scores, 0) / scores[region.mask].sum()
    assert float(found[2]) == pytest.approx(((x + 0.5) * weights).sum() / 14, abs=0.006)
    assert float(found[3]) == pytest.approx(((y + 0.5) * weights).sum() / 14, abs=0.006)


def test_equal_words_are_joined_and_ordered_by_what_they_hold() -> None:
    pairs = [("A", 0.0), ("Moving", 2.0), ("and", 0.5), ("funny", 3.0), ("film", 0.5)]
    pairs += [("moving", 2.0), ("to", 0.0), ("see", 0.0)]
    assert make_text_result(pairs).describe() == (
        "positive (95.3%): “Moving” \u00d72 and “funny” hold 88% of the evidence"
    )


def test_words_against_are_told_apart() -> None:
    words = {"thin": -2.0, "but": 0.0, "superb": 3.0, "in": 0.1, "all": 0.1}
    assert describe_evidence(make_text_result(words)) == (
        "“superb” holds 94% of the evidence for it; “thin” holds all of the evidence against it"
    )


@pytest.mark.parametrize(
    "words",
    [
        {"good": 1.0},
        {"a": 1.0, "b": 1.0, "c": 1.0, "d": 1.0, "e": 1.0},
        {"a": 0.0, "b": 0.0},
        {str(n): score for n, score in enumerate(np.random.default_rng(0).random(40).tolist())},
    ],
)
def test_nothing_is_said_of_words_that_are_much_alike(words: dict[str, float]) -> None:
    assert make_text_result(words).describe() == "positive (95.3%)"


def test_three_words_are_named_at_most() -> None:
    words = {"w": 4.0, "x": 3.0, "y": 2.0, "z": 1.9, **{f"n{n}": 0.0 for n in range(20)}}
    told = describe_evidence(make_text_result(words))
    assert told == "“w”, “x” and “y” hold 83% of the evidence"


def test_signals_and_bare_tokens_get_no_sentence() -> None:
    scores = torch.tensor([[9.0, 0.0, 0.0, 0.0]])
    bare = Explanation(scores, torch.tensor([0]), torch.zeros(1, 2))
    signal = Explanation(scores, torch.tensor([0]), torch.zeros(1, 2), grid=(4,))
    assert describe_evidence(bare) == describe_evidence(signal) == ""


def test_a_model_is_named_with_what_it_knows() -> None:
    result = make_text_result({"a": 1.0})
    assert name_model(result) == ""
    result.model = "pets"
    assert name_model(result) == "Model pets."
    result.model_knows = "cat or dog"
    assert name_model(result) == "Model pets: it knows cat or dog."
