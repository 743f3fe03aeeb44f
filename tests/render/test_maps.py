"""Maps lie where the model looked: on what it saw, and on the whole photo."""

import numpy as np
import pytest
import torch
from PIL import Image

from tests.render.samples import explain_image
from whence import Explanation, WhenceError
from whence.explanation import Photo
from whence.render import Figure
from whence.render.drawing import Picture, TextLine
from whence.render.maps import list_maps, make_painter

# A white square on a grey photo, at (130, 30) to (150, 50); the model saw the middle 100 x 100.
SQUARE, BOX = (130, 30, 150, 50), (60.0, 0.0, 160.0, 100.0)


@pytest.fixture(scope="module")
def explanation() -> Explanation:
    """The score of the one patch of 10 x 10 in which the square lies."""
    image = Image.new("RGB", (220, 100), (90, 90, 90))
    image.paste((255, 255, 255), SQUARE)
    scores = np.zeros((10, 10))
    scores[3:5, 7:9] = 1  # the crop begins at 60: pixels 130 to 150 are columns 7 and 8
    result = explain_image(scores, "square")
    result.photos = [Photo(image, BOX)]
    return result


def find_peak(figure: Figure, panel: int, scale: float) -> tuple[float, float]:
    """The middle of a panel's coloured pixels, in shares of its width and height."""
    picture = [one for one in figure.shapes if isinstance(one, Picture)][panel]
    place = [round(side * scale) for side in (picture.x, picture.y)]
    size = [round(side * scale) for side in (picture.width, picture.height)]
    drawn = figure.to_image(scale).crop((*place, place[0] + size[0], place[1] + size[1]))
    pixels = np.asarray(drawn).astype(int)
    strength = pixels.max(2) - pixels.min(2)  # grey has none
    rows, columns = np.nonzero(strength > 0.8 * strength.max())
    return (columns.mean() + 0.5) / size[0], (rows.mean() + 0.5) / size[1]


@pytest.mark.parametrize("scale", [1.0, 2.0])
def test_the_peak_lies_on_the_square(explanation, scale):
    on_seen = find_peak(explanation.plot(), 1, scale)
    assert on_seen == pytest.approx((0.8, 0.4), abs=0.02)
    on_whole = find_peak(explanation.plot(whole=True), 1, scale)
    assert on_whole == pytest.approx((140 / 220, 40 / 100), abs=0.02)


def test_the_photo_beside_the_map_shows_the_square_at_the_same_place(explanation):
    for whole, expected in ((False, (0.8, 0.4)), (True, (140 / 220, 0.4))):
        photo = next(
            one for one in explanation.plot(whole=whole).shapes if isinstance(one, Picture)
        )
        pixels = np.asarray(photo.draw((220, 100) if whole else (100, 100)).convert("L"))
        rows, columns = np.nonzero(pixels > 200)
        middle = (columns.mean() + 0.5) / pixels.shape[1], (rows.mean() + 0.5) / pixels.shape[0]
        assert middle == pytest.approx(expected, abs=0.01)


def test_what_the_model_did_not_see_is_grey(explanation):
    explanation.photos[0].image.putpixel((10, 50), (255, 0, 0))
    maps = list_maps(explanation)
    drawn = make_painter(explanation, 0, maps, whole=True).draw(maps[0], (220, 100))
    outside = np.asarray(drawn.crop((0, 0, 60, 100))).astype(int)
    assert (outside.max(2) == outside.min(2)).all()


def test_names_say_what_is_seen(explanation):
    assert make_painter(explanation, 0, list_maps(explanation)).photo_name == "What the model saw"
    whole = make_painter(explanation, 0, list_maps(explanation), whole=True)
    assert (whole.photo_name, whole.ratio) == ("Photo", 2.2)
    assert "faded border: what the model did not see" in explanation.plot(whole=True).to_svg()
    assert "faded" not in explanation.plot().to_svg()


def test_a_map_without_a_photo_has_the_colours_of_the_legend():
    maps = list_maps(explain_image(np.linspace(0, 1, 8)[None]))
    painter = make_painter(explain_image(np.ones((1, 8))), 0, maps)
    drawn = np.asarray(painter.draw(maps[0], (800, 10)))
    assert drawn[5, 0].tolist() == [200, 200, 200]
    assert drawn[5, -1].tolist() == painter.colors(1.0).tolist()


def test_frames_of_a_video_stand_side_by_side():
    scores = torch.zeros(1, 2, 3, 3)
    scores[0, 1, 0, 0] = 1  # the second frame's upper left
    video = Explanation(scores.flatten(1), torch.tensor([0]), torch.zeros(1, 2), grid=(2, 3, 3))
    maps = list_maps(video)
    drawn = np.asarray(make_painter(video, 0, maps).draw(maps[0], (124, 60))).astype(int)
    colored = drawn.max(2) - drawn.min(2) > 20
    assert not colored[:, :60].any()
    assert colored[:20, 64:84].any()


def test_what_is_not_known_cannot_be_drawn(explanation):
    alone = explain_image(np.eye(2))
    with pytest.raises(WhenceError, match="photo is not known"):
        alone.plot(whole=True)
    video = Explanation(torch.rand(1, 8), torch.tensor([0]), torch.zeros(1, 2), grid=(2, 2, 2))
    with pytest.raises(WhenceError, match="of no photo"):
        video.plot(image=Image.new("RGB", (4, 4)))


def test_the_legend_says_what_outlines_mean(explanation):
    for drawn, words in (
        (explanation, "outlined: what holds much of the evidence"),
        (explain_image(np.ones((6, 6))), "no outlines: the evidence is spread out"),
    ):
        shapes = drawn.plot(outlines=True).shapes
        lines = [one.text for one in shapes if isinstance(one, TextLine)]
        assert words in " ".join(lines)
