"""Figures as pixels, SVG and files."""

import base64
import io
import os
import re
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageFont

from tests.render.samples import explain_image
from whence import WhenceError
from whence.render import Figure, draw_figure
from whence.render.drawing import Picture, TextLine, measure_text, shorten, wrap_text

SVG = "{http://www.w3.org/2000/svg}"
PHOTO = Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 60, 3), np.uint8))


def test_names_keep_their_room_in_any_font():
    room = 100
    long = shorten("a name too long for its room", 15, room)
    for text, bounded in ((long, True), ("short", False)):
        page = Figure(200, 50, "#ffffff", [TextLine(0, 20, text, 15, "#000000", room=room)])
        element = ElementTree.fromstring(page.to_svg()).find(f"{SVG}text")
        assert ("textLength" in element.attrib) == bounded
        assert float(element.get("textLength", 0)) <= room
    assert measure_text("猫🐈", 15) == 30


def test_svg_keeps_text_and_embeds_pictures():
    name = "<b>猫 & \x00 עברית 😀"
    figure = draw_figure(explain_image(np.eye(3), name), image=PHOTO, title='a "title"')
    root = ElementTree.fromstring(figure.to_svg())
    written = [element.text for element in root.iter(f"{SVG}text")]
    assert "<b>猫 & \ufffd עברית 😀" in written
    assert 'a "title"' in written
    images = list(root.iter(f"{SVG}image"))
    assert len(images) == 3
    for image, form in zip(images, ("jpeg", "jpeg", "png"), strict=True):
        head, _, content = image.get("href").partition(",")
        assert head == f"data:image/{form};base64"
        decoded = Image.open(io.BytesIO(base64.b64decode(content)))
        assert decoded.width == round(2 * float(image.get("width")))
    outside = re.sub(r"base64,[^\"]*", "", figure.to_svg()).replace(
        "http://www.w3.org/2000/svg", ""
    )
    assert "http" not in outside
    assert figure._repr_svg_() == figure.to_svg()
    # In a notebook it becomes as narrow as that is.
    shown = ElementTree.fromstring(figure._repr_html_())
    assert "max-width: 100%" in shown.get("style")
    assert len(list(shown.iter())) == len(list(root.iter()))


def test_saved_by_suffix_whole_or_not_at_all(tmp_path):
    figure = draw_figure(explain_image(np.eye(3)), image=PHOTO)
    figure.save(tmp_path / "a.PNG")
    assert Image.open(tmp_path / "a.PNG").size == figure.to_image(2.0).size
    figure.save(str(tmp_path / "a.svg"))
    assert (tmp_path / "a.svg").read_text(encoding="utf-8") == figure.to_svg()
    for name in ("a.tif", "a", "a.pdf"):
        with pytest.raises(WhenceError, match=rf"{name}' must end in .png, .jpg, .jpeg or .svg"):
            figure.save(tmp_path / name)
    with pytest.raises(WhenceError, match="cannot be written"):
        figure.save(tmp_path / "none" / "a.png")
    assert sorted(os.listdir(tmp_path)) == ["a.PNG", "a.svg"]


@pytest.mark.parametrize("ending", [".jpg", ".JPEG"])
def test_a_jpeg_shows_what_a_png_does(ending, tmp_path):
    figure = draw_figure(explain_image(np.eye(3)), image=PHOTO, title="A title")
    figure.save(tmp_path / f"a{ending}")
    with Image.open(tmp_path / f"a{ending}") as file:
        assert (file.format, file.info["dpi"]) == ("JPEG", (192, 192))
        # Every pixel has a colour of its own, as coloured letters need it.
        assert [layer[1:3] for layer in file.layer] == [(1, 1)] * 3
        pixels = np.asarray(file.convert("RGB")).astype(int)
    expected = np.asarray(figure.to_image(2.0)).astype(int)
    assert pixels.shape == expected.shape
    assert np.abs(pixels - expected).mean() < 2


def test_a_figure_too_large_for_a_jpeg_is_refused(tmp_path):
    Figure(33_000, 2, "#ffffff").save(tmp_path / "a.png")
    with pytest.raises(WhenceError, match="66000 x 4 pixels, and a JPEG file at most"):
        Figure(33_000, 2, "#ffffff").save(tmp_path / "a.jpg")
    assert os.listdir(tmp_path) == ["a.png"]


def test_text_is_wrapped_into_lines():
    text = "a legend of several words that does not fit"
    lines = wrap_text(text, 12, 90)
    assert len(lines) > 1
    assert " ".join(lines) == text
    assert all(measure_text(line, 12) <= 90 for line in lines)
    assert wrap_text("x" * 99, 12, 90)[0].endswith("…")
    assert wrap_text("", 12, 90) == []


def test_long_text_is_shortened_to_its_room():
    assert shorten("short", 15, 100) == "short"
    assert shorten("never mind", 15, 0) == "…"


@pytest.mark.parametrize("is_photo", [False, True])
def test_a_png_holds_the_pixels_of_the_figure(tmp_path, is_photo):
    pixels = np.random.default_rng(0).integers(0, 256, (40, 50, 3), dtype=np.uint8)
    picture = Picture(5, 5, 25, 20, Image.fromarray(pixels).resize, "noise", is_photo)
    figure = Figure(40, 30, "#ffffff", [picture, TextLine(2, 28, "words", 8, "#000000")])
    figure.save(tmp_path / "a.png")
    with Image.open(tmp_path / "a.png") as saved:
        assert np.array_equal(np.asarray(saved), np.asarray(figure.to_image(2.0)))
        assert [round(one) for one in saved.info["dpi"]] == [192, 192]


@pytest.mark.parametrize("right", [False, True])
@pytest.mark.parametrize("text", ["Photo", "ÅÇg|y_ (98.4%)", "", "漢字 …"])
def test_lines_of_text_are_drawn_as_pillow_draws_them(text, right):
    for x, y in ((30, 40), (20.3, 31.7), (-4.5, 12.2), (90, 2), (55.125, 60)):
        line = TextLine(x, y, text, 13.5, "#46505a", right)
        drawn, plain = (Image.new("RGB", (200, 120), "#fff8e0") for _ in range(2))
        font = ImageFont.load_default(size=27.0)
        place, anchor = (2 * x, 2 * y), "rs" if right else "ls"
        ImageDraw.Draw(plain).text(place, text, "#46505a", font, anchor)
        for _ in range(2):  # the second time, it is known
            line.paint(drawn, 2.0)
            assert drawn.tobytes() == plain.tobytes()
            drawn = Image.new("RGB", (200, 120), "#fff8e0")
