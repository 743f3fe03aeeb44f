"""Outlines of regions: along the borders of patches, where the map is."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from whence._util.outlines import trace_outlines
from whence.errors import WhenceError
from whence.explanation import Explanation, Photo
from whence.explanation.regions import PeakRegion
from whence.render.maps import list_maps, make_painter
from whence.render.outlines import draw_outlines


def fill_outlines(mask: NDArray[np.bool_], cell: int = 8) -> NDArray[np.bool_]:
    """Fill the outlines on a large canvas, holes by parity, and read the middle of each cell."""
    rows, columns = mask.shape
    filled = np.zeros((rows * cell, columns * cell), dtype=bool)
    for outline in trace_outlines(mask):
        layer = Image.new("1", (columns * cell, rows * cell))
        points = [(x * columns * cell, y * rows * cell) for x, y in outline]
        ImageDraw.Draw(layer).polygon(points, fill=1)
        filled ^= np.asarray(layer)
    return filled[cell // 2 :: cell, cell // 2 :: cell]


def test_one_patch_has_a_square() -> None:
    mask = np.zeros((4, 5), dtype=bool)
    mask[1, 2] = True
    (outline,) = trace_outlines(mask)
    assert sorted(outline) == [(0.4, 0.25), (0.4, 0.5), (0.6, 0.25), (0.6, 0.5)]


def test_straight_sides_have_no_corners_between() -> None:
    mask = np.zeros((6, 6), dtype=bool)
    mask[1:5, 1:3] = mask[1:3, 1:5] = True  # an L
    (outline,) = trace_outlines(mask)
    assert len(outline) == 6


@pytest.mark.parametrize("seed", range(20))
def test_filled_outlines_are_the_mask(seed: int) -> None:
    random = np.random.default_rng(seed)
    mask = random.random((7, 9)) < random.uniform(0.2, 0.8)
    assert (fill_outlines(mask) == mask).all()


def test_lines_are_drawn_on_the_border_of_the_patches() -> None:
    mask = np.zeros((10, 10), dtype=bool)
    mask[2:5, 6:9] = True
    region = PeakRegion((0.75, 0.35), 0.09, 1.0, mask)
    drawn = np.asarray(draw_outlines(Image.new("RGB", (300, 200), "#808080"), [region]))
    lines = np.argwhere((drawn == 255).all(axis=-1))
    assert lines.min(axis=0).tolist() == pytest.approx([40, 180], abs=2)
    assert lines.max(axis=0).tolist() == pytest.approx([100, 270], abs=2)
    assert (drawn[60:80, 200:250] == 128).all()


def test_outlines_of_a_figure_lie_on_the_part_that_the_model_saw() -> None:
    scores = torch.zeros(1, 10, 10)
    scores[0, 2:5, 6:9] = 1.0
    photo = Photo(Image.new("RGB", (400, 200), "#808080"), (200.0, 0.0, 400.0, 200.0))
    logits, target = torch.tensor([[4.0, 0.0]]), torch.tensor([0])
    result = Explanation(scores.flatten(1), target, logits, grid=(10, 10), photos=[photo])
    maps = list_maps(result, 0, outlines=True)
    painter = make_painter(result, 0, maps, whole=True)
    drawn = np.asarray(painter.draw(maps[0], (400, 200)))
    lines = np.argwhere((drawn == 255).all(axis=-1))
    assert lines.min(axis=0).tolist() == pytest.approx([40, 320], abs=2)
    assert lines.max(axis=0).tolist() == pytest.approx([100, 380], abs=2)
    plain, outlined = result.plot().to_image(), result.plot(outlines=True).to_image()
    assert plain.tobytes() != outlined.tobytes()


def test_a_text_has_no_outlines() -> None:
    text = Explanation(torch.ones(1, 3), torch.tensor([0]), torch.zeros(1, 2))
    with pytest.raises(WhenceError, match="Outlines are for photos"):
        text.plot(outlines=True)
