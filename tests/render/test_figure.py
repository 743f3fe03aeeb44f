"""The figure of a photo: panels, legend, sizes and themes."""

import numpy as np
import pytest
import torch
from PIL import Image

from tests.render.samples import explain_image, explain_text
from whence import WhenceError
from whence.render import Figure, draw_figure, overlay
from whence.render.colors import THEMES
from whence.render.drawing import Picture, Rectangle, TextLine, measure_text
from whence.render.overlay import resize

SVG = "{http://www.w3.org/2000/svg}"
PHOTO = Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 60, 3), np.uint8))


def draw(photo, explanation, sample=0, **options) -> Figure:
    return draw_figure(explanation, sample, image=photo, **options)


def find_shapes(figure: Figure, kind):
    return [shape for shape in figure.shapes if isinstance(shape, kind)]


def list_texts(figure: Figure) -> list[str]:
    return [words.text for words in find_shapes(figure, TextLine)]


def is_inside(figure: Figure, shape) -> bool:
    right = shape.x if isinstance(shape, TextLine) else shape.x + shape.width
    return shape.x >= 0 and right <= figure.width and 0 <= shape.y <= figure.height


def test_original_beside_each_class_with_its_probability():
    names = ["cat", "dog"]
    logits = torch.tensor([[2.0, 1.0, 0.0, -1.0]])
    figure = draw(PHOTO, explain_image(torch.rand(2, 4, 6), names, logits), title="a photo")
    chances = torch.softmax(logits[0], 0)
    assert list_texts(figure)[:6] == [
        *("a photo", "Photo"),
        *("cat", f"{100 * chances[0]:.1f}%"),
        *("dog", f"{100 * chances[1]:.1f}%"),
    ]
    assert [p.description for p in find_shapes(figure, Picture)] == [
        "Photo",
        "Map for cat",
        "Map for dog",
        "low to high",
    ]
    assert list_texts(figure)[-1] == "method: tiba · model: pets · whence 1.2.3"
    bars = [box for box in find_shapes(figure, Rectangle) if box.height == 3]
    assert bars[1].width / bars[0].width == pytest.approx(float(chances[0]))


def test_panels_hold_the_overlay():
    scores = torch.rand(4, 6)
    figure = draw(PHOTO, explain_image(scores))
    original, panel, _ = find_shapes(figure, Picture)
    assert original.is_photo
    assert (original.width / original.height) == pytest.approx(1.5, abs=0.01)
    size = (90, 60)
    resized = resize(PHOTO, size)
    assert original.draw(size) == resized
    assert panel.draw(size) == overlay(resized, scores)


def test_pixels_lie_where_the_shapes_say():
    figure = draw(Image.new("RGB", (50, 50), (10, 200, 30)), explain_image(np.zeros((2, 2))))
    picture = find_shapes(figure, Picture)[0]
    for scale in (1.0, 2.5):
        image = figure.to_image(scale)
        assert image.size == (round(figure.width * scale), round(figure.height * scale))
        at = (
            round((picture.x + picture.width / 2) * scale),
            round((picture.y + picture.height / 2) * scale),
        )
        assert image.getpixel(at) == (10, 200, 30)
        assert image.getpixel((0, 0)) == (255, 255, 255)


def test_themes_change_page_and_ink():
    explanation = explain_image(np.eye(3))
    for name, theme in THEMES.items():
        figure = draw(PHOTO, explanation, theme=name)
        assert figure.background == theme.background
        assert {words.color for words in find_shapes(figure, TextLine)} == {theme.ink, theme.muted}
    with pytest.raises(WhenceError, match="no theme 'pink'; there are light, dark"):
        draw(PHOTO, explanation, theme="pink")


def test_ten_classes_wrap_into_rows():
    names = [f"name {i}" for i in range(10)]
    figure = draw(PHOTO, explain_image(torch.rand(10, 3, 3), names))
    panels = find_shapes(figure, Picture)[:-1]
    assert len(panels) == 11
    assert len({panel.y for panel in panels}) == 4
    assert len({(panel.x, panel.y) for panel in panels}) == 11
    assert all(is_inside(figure, shape) for shape in figure.shapes)


@pytest.mark.parametrize("size", [(1, 1), (3000, 20), (20, 3000), (4000, 1), (5, 7)])
def test_odd_shapes_fit_the_page(size):
    figure = draw(PHOTO.resize(size), explain_image(torch.rand(2, 3, 3), ["x" * 500, "y"]))
    assert all(is_inside(figure, shape) for shape in figure.shapes)
    assert figure.to_image().size == (round(figure.width), round(figure.height))
    picture = find_shapes(figure, Picture)[0]
    assert 1 <= picture.width <= 640
    assert 1 <= picture.height <= 480


def test_a_huge_photo_is_kept_small():
    figure = draw(Image.new("L", (12_000, 300)), explain_image(np.eye(2)))
    panel = find_shapes(figure, Picture)[1]
    assert max(panel.draw.func.__self__.photo.image.size) <= 1024


def test_long_names_end_in_an_ellipsis():
    long = "a class of very many words " * 9
    figure = draw(PHOTO, explain_image(np.eye(2), long), title=long * 9)
    title, _, name, _ = list_texts(figure)[:4]
    assert title.endswith("…")
    assert name.endswith("…")
    assert long.startswith(name[:-1])
    cell = find_shapes(figure, Picture)[1].width
    assert measure_text(name, 15) <= cell - measure_text("84.4%", 15)


def test_classes_without_names_and_logits_without_probability():
    figure = draw(PHOTO, explain_image(torch.rand(2, 2, 2)))
    assert {"class 0", "class 1"} <= set(list_texts(figure))
    alone = draw(PHOTO, explain_image(np.eye(2), "it", torch.tensor([[3.0]])))
    assert not any("%" in text for text in list_texts(alone))


def test_certainty_is_never_claimed():
    figure = draw(
        PHOTO, explain_image(torch.rand(2, 2, 2), ["a", "b"], torch.tensor([[50.0, -50.0]]))
    )
    assert {">99.9%", "<0.1%"} <= set(list_texts(figure))


def test_legend_names_both_signs():
    one_signed = np.stack([np.eye(2), -np.eye(2)])
    figure = draw(PHOTO, explain_image(one_signed, ["a", "b"]))
    assert {"- against", "+ for", "0"} <= set(list_texts(figure))
    # One legend serves all panels, so the class without negative scores shares the map.
    panel = find_shapes(figure, Picture)[1].draw((8, 8))
    photo = resize(PHOTO, (8, 8))
    assert panel == overlay(photo, np.eye(2), signed=True)


@pytest.mark.parametrize("scores", [np.zeros((3, 3)), np.full((3, 3), 0.2), [[7.0]]])
def test_maps_without_contrast(scores):
    image = np.asarray(draw(PHOTO, explain_image(scores)).to_image())
    assert image.std() > 0  # the photo is there, whatever lies over it


def test_what_cannot_be_drawn_says_so():
    explanation = explain_image(np.eye(2))
    with pytest.raises(WhenceError, match="no sample 1; the samples are 0 to 0"):
        draw(PHOTO, explanation, 1)
    with pytest.raises(WhenceError, match="of tokens; it cannot be laid over an image"):
        draw(PHOTO, explain_text(["a"], [1.0]))
    with pytest.raises(WhenceError, match="NaN or infinite"):
        draw(PHOTO, explain_image([[1.0, float("nan")]]))
    with pytest.raises(WhenceError, match="opacity lies between"):
        draw(PHOTO, explanation, opacity=-1)
    for scale in (0, -1, float("nan"), 1e6):
        with pytest.raises(WhenceError, match="cannot be drawn at scale"):
            draw(PHOTO, explanation).to_image(scale)
