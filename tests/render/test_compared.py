"""Figures, pages and files of inputs that are compared with texts."""

import json

import pytest
import torch

from tests.saved import make_photo
from whence import PairExplanation
from whence.explanation import Photo
from whence.layout import Tokens
from whence.render.compared import format_fits
from whence.render.drawing import TextLine
from whence.render.terminal import format_compared

TEXTS = ["a <b>cat</b>", "a dog", *(f"text {n}" for n in range(6))]
WORDS = [[("a", 0.0), ("<b>cat</b>", 2.0)], [("a", -1.0), ("dog", 0.5)]]


def make_pair(of_photo: bool, **more) -> PairExplanation:
    scores = torch.arange(8.0).reshape(1, 2, 4)
    fits = torch.tensor([[0.6, 0.2, *[0.2 / 6] * 6]])
    kind = {"grid": (2, 2), "image_size": (32, 32), "photos": [Photo.from_crop(make_photo())]}
    if not of_photo:
        strings = [["one", "good", "film", "."]]
        kind = {"tokens": Tokens(strings, [[0, 1, 2, 3]])}
    return PairExplanation(
        scores=scores,
        target=torch.tensor([[0, 1]]),
        logits=fits.log(),
        target_names=[TEXTS[:2]],
        method="gae",
        texts=TEXTS,
        fits=fits,
        word_scores=[WORDS],
        **kind,
        **more,
    )


@pytest.mark.parametrize("of_photo", [True, False])
def test_a_figure_has_the_words_of_the_texts(of_photo):
    figure = make_pair(of_photo).plot()
    lines = [shape.text for shape in figure.shapes if isinstance(shape, TextLine)]
    assert "<b>cat</b>" in lines
    assert {"dog", "and 2 more", "60.0%"} <= set(lines)
    assert max(shape.y for shape in figure.shapes) < figure.height


@pytest.mark.parametrize("of_photo", [True, False])
def test_a_page_has_the_words_of_the_texts(of_photo):
    page = make_pair(of_photo).to_html()
    assert ">&lt;b&gt;cat&lt;/b&gt;</span>" in page
    assert "<b>cat</b>" not in page
    assert "and 2 more" in page
    assert 'class="fits"' in make_pair(of_photo)._repr_html_()


def test_lines_of_a_terminal():
    pair = make_pair(True)
    assert format_compared(pair, target=1).plain == "a dog"
    assert format_fits(pair).startswith("a <b>cat</b> 60.0% · a dog 20.0% · text 0 3.3%")
    assert format_fits(pair).endswith("and 2 more")


@pytest.mark.parametrize("of_photo", [True, False])
def test_json_has_texts_and_words(of_photo, tmp_path):
    make_pair(of_photo).save(tmp_path / "pair.json")
    (sample,) = json.loads((tmp_path / "pair.json").read_text())["samples"]
    assert sample["texts"][1] == {"text": "a dog", "probability": pytest.approx(0.2)}
    assert sample["words"][1] == [{"word": "a", "score": -1.0}, {"word": "dog", "score": 0.5}]


def test_a_cosine_stands_in_the_place_of_a_probability():
    pair = make_pair(False, measure="cosine")
    assert [one.percent for one in pair.classes()] == ["cosine 0.60", "cosine 0.20"]
    assert all(one.probability is None for one in pair.classes())
    assert "cosine 0.60" in pair.to_html()
    assert pair.describe().startswith("a <b>cat</b> (cosine 0.60)")
    lines = [shape.text for shape in pair.plot().shapes if isinstance(shape, TextLine)]
    assert lines.count("cosine 0.60") == 2
