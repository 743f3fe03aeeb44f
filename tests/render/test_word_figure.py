"""Figures of texts and of several explanations."""

from xml.etree import ElementTree

import pytest
import torch
from PIL import Image

from tests.generations import make_generation
from tests.render.samples import explain_image, explain_text
from whence import WhenceError
from whence.render import Figure, draw_comparison
from whence.render.drawing import Picture, Rectangle, TextLine

SVG = "{http://www.w3.org/2000/svg}"
WORDS = ["a", "very", "good", "film", "."]


def list_texts(figure: Figure) -> list[str]:
    root = ElementTree.fromstring(figure.to_svg())
    return [element.text for element in root.iter(f"{SVG}text")]


def test_words_are_real_text_once_for_each_class():
    figure = explain_text(WORDS, torch.rand(2, 5), ["yes", "no"]).plot()
    texts = list_texts(figure)
    assert texts[:7] == ["yes", "66.5%", *WORDS]
    assert texts[7:14] == ["no", "24.5%", *WORDS]
    assert texts[-1] == "method: tiba · whence 1.2.3"
    figure.to_image()


def test_long_texts_wrap_into_lines_inside_the_page():
    figure = explain_text(WORDS * 40 + ["x" * 500], torch.rand(201)).plot(title="words " * 90)
    lines = [one for one in figure.shapes if isinstance(one, TextLine)]
    assert len({one.y for one in lines}) > 5
    for shape in figure.shapes:
        right = shape.x + (shape.width if isinstance(shape, Rectangle) else 0)
        assert 0 <= shape.x <= right <= figure.width
        assert 0 <= shape.y <= figure.height
    with pytest.raises(WhenceError, match="2,001 words cannot be read; save a page"):
        explain_text(["a"] * 2001, torch.rand(2001)).plot()


def test_the_table_of_a_generation_names_its_origin():
    generation = make_generation()
    generation.method, generation.model = "whence", "stories"
    origin = list_texts(generation.plot(by="sentence"))[-1]
    assert origin == "method: whence · model: stories · whence 1.2.3"


def test_methods_of_a_photo_are_rows_and_classes_columns():
    explanations = {name: explain_image(torch.rand(2, 3, 3), ["cat", "dog"]) for name in "ab"}
    photo = Image.new("RGB", (30, 30))
    figure = draw_comparison(explanations, image=photo, notes={"a": "faithfulness 3.0"})
    pictures = [one for one in figure.shapes if isinstance(one, Picture)]
    names = [one.description for one in pictures]
    assert names[:3] == ["Photo", "Map of a for cat", "Map of a for dog"]
    assert names[3:] == ["Map of b for cat", "Map of b for dog", "low to high"]
    assert len({one.y for one in pictures[:5]}) == 2
    assert {"cat", "dog", "a", "b", "faithfulness 3.0"} < set(list_texts(figure))


def test_methods_of_one_class_stand_side_by_side():
    signed = explain_image(torch.tensor([[1.0, -1.0]]), "cat")
    figure = draw_comparison({"plus": explain_image(torch.rand(1, 2), "cat"), "both": signed})
    texts = list_texts(figure)
    assert {"cat 86.7%", "plus", "both", "low", "+ for"} < set(texts)
    pictures = [one for one in figure.shapes if isinstance(one, Picture)]
    assert len({one.y for one in pictures[:2]}) == 1


def test_methods_of_a_text_are_lines():
    explanations = {name: explain_text(WORDS, torch.rand(5), "yes") for name in ("a", "gae")}
    explanations["gae"].class_specific = False
    texts = list_texts(draw_comparison(explanations, theme="dark"))
    assert texts[:2] == ["yes", "66.5%"]
    assert texts.count("film") == 2
    assert "the same for every class" in texts


def test_what_cannot_be_compared_says_so():
    cat, text = explain_image(torch.rand(2, 2)), explain_text(["a"], [1.0])
    for others in ({"b": text}, {"b": explain_image(torch.rand(2, 2, 2))}):
        with pytest.raises(WhenceError, match="same input and classes"):
            draw_comparison({"a": cat, **others})
    with pytest.raises(WhenceError, match="generated text cannot be compared"):
        draw_comparison({"a": make_generation()})
    with pytest.raises(WhenceError, match="nothing to compare"):
        draw_comparison({})
