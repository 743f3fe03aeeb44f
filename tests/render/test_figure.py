import base64
import io
import os
import re
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from PIL import Image

from tests.render.samples import of_image, of_text
from whence import WhenceError
from whence.render import Figure, draw_figure, overlay
from whence.render.colors import THEMES
from whence.render.drawing import Picture, Rectangle, TextLine, measure_text, shorten

SVG = "{http://www.w3.org/2000/svg}"
PHOTO = Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 60, 3), np.uint8))


def parts(found: Figure, kind):
    return [part for part in found.shapes if isinstance(part, kind)]


def texts(found: Figure) -> list[str]:
    return [words.text for words in parts(found, TextLine)]


def inside(found: Figure, part) -> bool:
    right = part.x if isinstance(part, TextLine) else part.x + part.width
    return part.x >= 0 and right <= found.width and 0 <= part.y <= found.height


def test_original_beside_each_class_with_its_probability():
    names = ["cat", "dog"]
    logits = torch.tensor([[2.0, 1.0, 0.0, -1.0]])
    found = draw_figure(PHOTO, of_image(torch.rand(2, 4, 6), names, logits), title="a photo")
    chances = torch.softmax(logits[0], 0)
    assert texts(found)[:6] == [
        *("a photo", "Original"),
        *("cat", f"{100 * chances[0]:.1f}%"),
        *("dog", f"{100 * chances[1]:.1f}%"),
    ]
    assert [p.description for p in parts(found, Picture)] == [
        "Original",
        "cat",
        "dog",
        "low to high",
    ]
    assert "tiba · whence 1.2.3" in texts(found)
    bars = [box for box in parts(found, Rectangle) if box.height == 3]
    assert bars[1].width / bars[0].width == pytest.approx(float(chances[0]))


def test_panels_hold_the_overlay():
    scores = torch.rand(4, 6)
    found = draw_figure(PHOTO, of_image(scores))
    original, panel, _ = parts(found, Picture)
    assert (original.width / original.height) == pytest.approx(1.5, abs=0.01)
    size = (90, 60)
    resized = PHOTO.resize(size, Image.Resampling.LANCZOS)
    assert original.draw(size) == resized
    assert panel.draw(size) == overlay(resized, scores)


def test_pixels_lie_where_the_parts_say():
    found = draw_figure(Image.new("RGB", (50, 50), (10, 200, 30)), of_image(np.zeros((2, 2))))
    picture = parts(found, Picture)[0]
    for scale in (1.0, 2.5):
        image = found.to_image(scale)
        assert image.size == (round(found.width * scale), round(found.height * scale))
        at = (
            round((picture.x + picture.width / 2) * scale),
            round((picture.y + picture.height / 2) * scale),
        )
        assert image.getpixel(at) == (10, 200, 30)
        assert image.getpixel((0, 0)) == (255, 255, 255)


def test_themes_change_page_and_ink():
    explanation = of_image(np.eye(3))
    for name, theme in THEMES.items():
        found = draw_figure(PHOTO, explanation, theme=name)
        assert found.background == theme.background
        assert {words.color for words in parts(found, TextLine)} == {theme.ink, theme.muted}
    with pytest.raises(WhenceError, match="no theme 'pink'; there are light, dark"):
        draw_figure(PHOTO, explanation, theme="pink")


def test_ten_classes_wrap_into_rows():
    found = draw_figure(PHOTO, of_image(torch.rand(10, 3, 3), [f"name {i}" for i in range(10)]))
    panels = parts(found, Picture)[:-1]
    assert len(panels) == 11
    assert len({panel.y for panel in panels}) == 4
    assert len({(panel.x, panel.y) for panel in panels}) == 11
    assert all(inside(found, part) for part in found.shapes)


@pytest.mark.parametrize("size", [(1, 1), (3000, 20), (20, 3000), (4000, 1), (5, 7)])
def test_odd_shapes_fit_the_page(size):
    found = draw_figure(PHOTO.resize(size), of_image(torch.rand(2, 3, 3), ["x" * 500, "y"]))
    assert all(inside(found, part) for part in found.shapes)
    assert found.to_image().size == (round(found.width), round(found.height))
    picture = parts(found, Picture)[0]
    assert 1 <= picture.width <= 640
    assert 1 <= picture.height <= 480


def test_a_huge_photo_is_kept_small():
    found = draw_figure(Image.new("L", (12_000, 300)), of_image(np.eye(2)))
    assert max(parts(found, Picture)[0].draw.args[0].size) <= 2560


def test_long_names_end_in_an_ellipsis():
    long = "a class of very many words " * 9
    found = draw_figure(PHOTO, of_image(np.eye(2), long), title=long * 9)
    title, _, name, _ = texts(found)[:4]
    assert title.endswith("…")
    assert name.endswith("…")
    assert long.startswith(name[:-1])
    cell = parts(found, Picture)[1].width
    assert measure_text(name, 15) <= cell - measure_text("84.4%", 15)
    assert shorten("short", 15, 100) == "short"
    assert shorten("never mind", 15, 0) == "…"


def test_names_keep_their_room_in_any_font():
    room = 100
    long = shorten("a name too long for its room", 15, room)
    for text, bounded in ((long, True), ("short", False)):
        page = Figure(200, 50, "#ffffff", [TextLine(0, 20, text, 15, "#000000", room=room)])
        element = ElementTree.fromstring(page.to_svg()).find(f"{SVG}text")
        assert ("textLength" in element.attrib) == bounded
        assert float(element.get("textLength", 0)) <= room
    assert measure_text("猫🐈", 15) == 30


def test_classes_without_names_and_logits_without_probability():
    found = draw_figure(PHOTO, of_image(torch.rand(2, 2, 2)))
    assert {"class 0", "class 1"} <= set(texts(found))
    alone = draw_figure(PHOTO, of_image(np.eye(2), "it", torch.tensor([[3.0]])))
    assert not any("%" in text for text in texts(alone))


def test_certainty_is_never_claimed():
    found = draw_figure(
        PHOTO, of_image(torch.rand(2, 2, 2), ["a", "b"], torch.tensor([[50.0, -50.0]]))
    )
    assert {">99.9%", "<0.1%"} <= set(texts(found))


def test_legend_names_both_signs():
    one_signed = np.stack([np.eye(2), -np.eye(2)])
    found = draw_figure(PHOTO, of_image(one_signed, ["a", "b"]))
    assert {"- against", "+ for", "0"} <= set(texts(found))
    # One legend serves all panels, so the class without negative scores shares the map.
    panel = parts(found, Picture)[1].draw((8, 8))
    photo = PHOTO.resize((8, 8), Image.Resampling.LANCZOS)
    assert panel == overlay(photo, np.eye(2), signed=True)


@pytest.mark.parametrize("scores", [np.zeros((3, 3)), np.full((3, 3), 0.2), [[7.0]]])
def test_maps_without_contrast(scores):
    draw_figure(PHOTO, of_image(scores)).to_image()


def test_svg_keeps_text_and_embeds_pictures():
    name = "<b>猫 & \x00 עברית 😀"
    found = draw_figure(PHOTO, of_image(np.eye(3), name), title='a "title"')
    root = ElementTree.fromstring(found.to_svg())
    written = [element.text for element in root.iter(f"{SVG}text")]
    assert "<b>猫 & \ufffd עברית 😀" in written
    assert 'a "title"' in written
    images = list(root.iter(f"{SVG}image"))
    assert len(images) == 3
    for image in images:
        head, _, content = image.get("href").partition(",")
        assert head == "data:image/png;base64"
        decoded = Image.open(io.BytesIO(base64.b64decode(content)))
        assert decoded.width == round(2 * float(image.get("width")))
    outside = re.sub(r"base64,[^\"]*", "", found.to_svg()).replace("http://www.w3.org/2000/svg", "")
    assert "http" not in outside
    assert found._repr_svg_() == found.to_svg()


def test_saved_by_suffix_whole_or_not_at_all(tmp_path):
    found = draw_figure(PHOTO, of_image(np.eye(3)))
    found.save(tmp_path / "a.PNG")
    assert Image.open(tmp_path / "a.PNG").size == found.to_image(2.0).size
    found.save(str(tmp_path / "a.svg"))
    assert (tmp_path / "a.svg").read_text(encoding="utf-8") == found.to_svg()
    for name in ("a.jpg", "a", "a.pdf"):
        with pytest.raises(WhenceError, match=rf"{name}' must end in .png or .svg"):
            found.save(tmp_path / name)
    with pytest.raises(WhenceError, match="cannot be written"):
        found.save(tmp_path / "none" / "a.png")
    assert sorted(os.listdir(tmp_path)) == ["a.PNG", "a.svg"]


def test_what_cannot_be_drawn_says_so():
    explanation = of_image(np.eye(2))
    with pytest.raises(WhenceError, match="no sample 1; the samples are 0 to 0"):
        draw_figure(PHOTO, explanation, 1)
    with pytest.raises(WhenceError, match="a figure needs one of an image"):
        draw_figure(PHOTO, of_text(["a"], [1.0]))
    with pytest.raises(WhenceError, match="NaN or infinite"):
        draw_figure(PHOTO, of_image([[1.0, float("nan")]]))
    with pytest.raises(WhenceError, match="opacity lies between"):
        draw_figure(PHOTO, explanation, opacity=-1)
    for scale in (0, -1, float("nan"), 1e6):
        with pytest.raises(WhenceError, match="cannot be drawn at scale"):
            draw_figure(PHOTO, explanation).to_image(scale)
