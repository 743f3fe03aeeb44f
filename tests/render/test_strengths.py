"""A class that the model doubts is paler than the one that it decides for."""

import numpy as np
import pytest
import torch

from tests.render.samples import explain_image, explain_text
from whence.render import overlay
from whence.render.drawing import Picture
from whence.render.strengths import list_strengths
from whence.render.words import list_words


def explain_two(logits: list[float], **options) -> list[float]:
    result = explain_image(torch.rand(2, 2, 2), ["a", "b"], torch.tensor([logits]))
    for name, value in options.items():
        setattr(result, name, value)
    return list_strengths(result)


def test_strength_follows_the_probability():
    chances = torch.softmax(torch.tensor([2.0, 0.0, 1.0]), 0)
    expected = 0.4 + 0.6 * float(chances[1] / chances[0]) ** 0.5
    assert explain_two([2.0, 0.0, 1.0]) == pytest.approx([1.0, expected])
    # The decision is another class, which was not explained.
    chances = torch.softmax(torch.tensor([0.0, 0.0, 9.0]), 0)
    faint = 0.4 + 0.6 * float(chances[0] / chances[2]) ** 0.5
    assert explain_two([0.0, 0.0, 9.0]) == pytest.approx([faint, faint])


def test_without_a_probability_or_against_another_class_nothing_is_faint():
    assert explain_two([0.0, 9.0], target_names=[["a rather than b", "b"]])[0] == 1
    alone = explain_image(np.eye(2), "it", torch.tensor([[3.0]]))
    assert list_strengths(alone) == [1.0]
    unknown = torch.tensor([[torch.nan, 0.2]])
    assert explain_two([0.0, 9.0], probabilities=unknown) == [1.0, 1.0]


def test_faint_panels_are_paler_and_the_legend_says_so():
    scores = torch.eye(2)
    logits = torch.tensor([[4.0, 0.0]])
    figure = explain_image(torch.stack([scores, scores]), ["a", "b"], logits).plot()
    strong, faint, _ = [one.draw((8, 8)) for one in figure.shapes if isinstance(one, Picture)]
    spread = [np.ptp(np.asarray(one).astype(int), axis=2).max() for one in (strong, faint)]
    assert spread[1] < 0.6 * spread[0]
    texts = [one.text for one in figure.shapes if hasattr(one, "text")]
    assert any("paler: a less probable class" in text for text in texts)
    alone = explain_image(scores, "a", logits).plot()
    assert not any("paler" in getattr(one, "text", "") for one in alone.shapes)


def test_words_of_a_faint_class_are_paler():
    logits = torch.tensor([[4.0, 0.0]])
    text = explain_text(["good", "bad"], [[1.0, 0.5], [1.0, 0.5]], ["a", "b"], logits)
    strong, faint = (list_words(text, 0, target)[0] for target in (0, 1))
    assert strong.share == faint.share == 1
    assert faint.level < strong.level


def test_the_same_map_over_a_photo_is_an_overlay(tmp_path):
    from PIL import Image

    photo = Image.new("RGB", (6, 6), (40, 90, 10))
    figure = explain_image(np.eye(3)).plot(image=photo)
    panel = [one for one in figure.shapes if isinstance(one, Picture)][1]
    assert panel.draw((6, 6)) == overlay(photo, np.eye(3))
