"""Boxes, places and masks of targets, drawn on the photo and on the map."""

import numpy as np
import pytest
import torch
from PIL import Image

from whence.explanation import Explanation, Photo
from whence.render.maps import list_maps, make_painter
from whence.render.outlines import draw_areas
from whence.targets import TargetArea

GREEN = (184, 244, 0)


def find_lines(image):
    """Top, left, bottom and right of all that is drawn in the colour of areas."""
    places = np.argwhere((np.asarray(image) == GREEN).all(axis=-1))
    return [*places.min(axis=0).tolist(), *places.max(axis=0).tolist()]


def explain(areas, **fields):
    scores, target = torch.rand(1, len(areas), 16), torch.zeros(1, len(areas), dtype=torch.long)
    return Explanation(scores, target, torch.zeros(1, 2), grid=(4, 4), areas=[areas], **fields)


def test_a_box_is_drawn_where_it_lies():
    area = TargetArea.from_bounds(0.25, 0.5, 0.75, 0.75)
    drawn = draw_areas(Image.new("RGB", (400, 200), "#808080"), [area])
    assert find_lines(drawn) == pytest.approx([100, 100, 150, 300], abs=2)
    assert drawn.getpixel((200, 125)) == (128, 128, 128)  # it is not filled


def test_a_place_has_a_ring_around_it():
    mask = torch.zeros(100, 100, dtype=torch.bool)
    mask[50, 20] = True
    area = TargetArea.from_mask(mask)
    assert area.kind == "place"
    assert area.bounds == pytest.approx((0.2, 0.5, 0.21, 0.51))
    drawn = draw_areas(Image.new("RGB", (400, 400), "#808080"), [area])
    top, left, bottom, right = find_lines(drawn)
    assert ((top + bottom) / 2, (left + right) / 2) == pytest.approx((202, 82), abs=2)
    assert bottom - top > 20
    assert drawn.getpixel((82, 202)) == (128, 128, 128)


@pytest.mark.parametrize("size", [(8, 8), (300, 500)])
def test_a_mask_has_an_outline(size):
    mask = torch.zeros(size, dtype=torch.bool)
    mask[size[0] // 2 :, : size[1] // 4] = True
    area = TargetArea.from_mask(mask)
    assert area.bounds == pytest.approx((0, 0.5, 0.25, 1), abs=0.01)
    drawn = draw_areas(Image.new("RGB", (400, 400), "#808080"), [area])
    assert find_lines(drawn) == pytest.approx([200, 0, 399, 100], abs=5)
    assert TargetArea.from_mask(torch.zeros(size, dtype=torch.bool)) is None


@pytest.mark.parametrize("whole", [False, True])
def test_areas_lie_in_what_the_model_saw(whole):
    photo = Photo(Image.new("RGB", (400, 200), "#808080"), (100.0, 0.0, 300.0, 200.0))
    area = TargetArea.from_bounds(0.25, 0.25, 0.5, 0.5)
    result = explain([area], photos=[photo])
    maps = list_maps(result)
    painter = make_painter(result, 0, maps, whole=whole)
    left = 150 if whole else 50
    expected = pytest.approx([50, left, 100, left + 50], abs=2)
    size = (400, 200) if whole else (200, 200)
    assert find_lines(painter.draw_photo(size)) == expected
    assert find_lines(painter.draw(maps[0], size)) == expected
    assert painter.note.endswith("; green: the box explained")


def test_each_map_has_its_own_area_and_the_photo_all():
    areas = [TargetArea.from_bounds(0, 0, 0.25, 0.25), TargetArea.from_bounds(0.5, 0.5, 1, 1), None]
    photo = Photo.from_crop(Image.new("RGB", (200, 200), "#808080"))
    result = explain(areas, photos=[photo])
    maps = list_maps(result)
    painter = make_painter(result, 0, maps)
    assert find_lines(painter.draw(maps[0], (200, 200)))[2] < 60
    assert find_lines(painter.draw(maps[1], (200, 200)))[0] > 90
    assert find_lines(painter.draw_photo((200, 200))) == pytest.approx([2, 2, 197, 197], abs=3)
    plain = painter.draw(maps[2], (200, 200))
    assert not (np.asarray(plain) == GREEN).all(axis=-1).any()
    assert painter.note == "; green: the boxes explained"


def test_maps_alone_have_areas():
    result = explain([TargetArea.from_bounds(0.25, 0.25, 0.5, 0.5)])
    maps = list_maps(result)
    drawn = make_painter(result, 0, maps).draw(maps[0], (200, 200))
    assert find_lines(drawn) == pytest.approx([50, 50, 100, 100], abs=2)
