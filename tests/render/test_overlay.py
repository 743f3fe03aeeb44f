import numpy as np
import pytest
import torch
from PIL import Image

from whence import WhenceError
from whence.render import overlay
from whence.render.colors import get_colormap
from whence.render.overlay import (
    resize,
    scale_to_largest,
    stretch_contrast,
    to_rgb,
    upsample,
)

GREY = Image.new("RGB", (32, 32), (100, 100, 100))


def to_pixels(image):
    return np.asarray(image).astype(int)


def test_each_pixel_mixes_photo_and_color_by_its_score():
    scores = np.array([[0.0, 0.25], [0.5, 1.0]])
    photo = GREY.resize((2, 2))
    drawn = to_pixels(overlay(photo, scores, opacity=0.6))
    alpha = 0.6 * scores[..., None] ** 0.8
    expected = alpha * get_colormap("heat", signed=False)(scores) + (1 - alpha) * 100
    assert np.abs(drawn - expected).max() <= 2


def test_signed_pixels():
    scores = np.array([[-1.0, 0.0, 0.5]])
    drawn = to_pixels(overlay(GREY.resize((3, 1)), scores, opacity=1.0))
    alpha = (np.abs(scores) ** 0.6)[..., None]
    colors = get_colormap("balance", signed=True)(np.array([[-1.0, 0.0, 0.75]]))
    expected = alpha * colors + (1 - alpha) * 100
    assert np.abs(drawn - expected).max() <= 3


def test_where_there_is_no_score_the_photo_stays_but_pales():
    photo = Image.new("RGB", (8, 8), (200, 50, 50))
    assert (to_pixels(overlay(photo, np.zeros((2, 2)), opacity=0.0)) == [200, 50, 50]).all()
    grey = to_pixels(photo.convert("L"))[0, 0]
    expected = 0.25 * np.array([200, 50, 50]) + 0.75 * grey
    drawn = to_pixels(overlay(photo, np.zeros((2, 2)), opacity=0.5))
    assert np.abs(drawn - expected).max() <= 1


def test_the_largest_score_sets_the_scale():
    scores = np.random.default_rng(0).random((4, 4))
    for factor in (1e-9, 1e6):
        assert (to_pixels(overlay(GREY, scores)) == to_pixels(overlay(GREY, factor * scores))).all()
    assert scale_to_largest(np.array([-4.0, 2.0])).tolist() == [-1, 0.5]


def test_maps_of_one_sign_run_from_the_lowest_to_the_highest():
    scores = np.random.default_rng(0).random((4, 4))
    scores -= scores.min()
    assert (to_pixels(overlay(GREY, scores)) == to_pixels(overlay(GREY, scores + 7))).all()
    assert stretch_contrast(np.array([-4.0, 2.0, 1.0])).tolist() == [-1, 0.5, 0.25]
    nothing = to_pixels(overlay(GREY, np.zeros((3, 3))))
    assert (to_pixels(overlay(GREY, np.full((3, 3), 5.0))) == nothing).all()


def test_colours_of_both_signs_fade_to_nothing_at_zero():
    """Without a seam: beside 0, on either side, the photo is all that is seen."""
    ramp = np.linspace(-1, 1, 201)[None].repeat(3, 0)
    drawn = to_pixels(overlay(GREY.resize((201, 3)), ramp)).astype(int)[1]
    assert np.abs(np.diff(drawn, axis=0)).max() <= 16
    assert np.abs(drawn[100] - 100).max() <= 1


def test_signed_unless_the_caller_says_otherwise():
    scores = np.array([[1.0, -1.0]])
    both = to_pixels(overlay(GREY, scores))
    positive = to_pixels(overlay(GREY, scores, signed=False))
    assert (both[0, -1] != 100).any()
    assert (positive[0, -1] == 100).all()
    rounding = np.array([[1.0, -1e-9]])
    assert (to_pixels(overlay(GREY, rounding)) == to_pixels(overlay(GREY, [[1.0, 0.0]]))).all()
    forced = to_pixels(overlay(GREY, [[1.0, 0.0]], signed=True))
    assert (forced == to_pixels(overlay(GREY, [[1.0, 0.0]], colormap="balance"))).all()


def test_upsampling_is_smooth_and_stays_in_range():
    scores = np.zeros((8, 8))
    scores[3, 4] = 1
    large = upsample(scores, (320, 320))
    assert large.min() == 0
    assert large.max() <= 1
    # Patches are 40 pixels wide; a blocky map would jump by 1 at their edges.
    assert np.abs(np.diff(large, axis=0)).max() < 0.05
    row, column = np.unravel_index(large.argmax(), large.shape)
    assert (row // 40, column // 40) == (3, 4)


def test_tensors_of_any_kind():
    scores = torch.tensor([[0.0, 1.0]], dtype=torch.bfloat16, requires_grad=True)
    assert (to_pixels(overlay(GREY, scores)) == to_pixels(overlay(GREY, [[0.0, 1.0]]))).all()


@pytest.mark.parametrize("size", [(1, 1), (1, 500), (700, 2)])
def test_odd_sizes(size):
    assert overlay(GREY.resize(size), np.eye(14)).size == size


def test_odd_pictures_become_rgb():
    deep = Image.fromarray(np.full((4, 4), 0x8040, np.uint16))
    assert to_pixels(to_rgb(deep)).tolist() == [[[0x80] * 3] * 4] * 4
    clear = Image.new("RGBA", (2, 2), (0, 0, 0, 0))
    assert (to_pixels(to_rgb(clear)) == 255).all()
    for mode in ("1", "L", "LA", "P", "CMYK", "YCbCr", "I", "F"):
        assert overlay(Image.new(mode, (5, 5)), [[1.0]]).mode == "RGB"


def test_what_cannot_be_drawn_says_so():
    for bad in (float("nan"), float("inf")):
        with pytest.raises(WhenceError, match="NaN or infinite"):
            overlay(GREY, [[1.0, bad]])
    for shape in ((3,), (1, 2, 2), (0, 4)):
        with pytest.raises(WhenceError, match="rows and columns"):
            overlay(GREY, np.zeros(shape))
    with pytest.raises(WhenceError, match="opacity lies between 0 and 1; it is"):
        overlay(GREY, [[1.0]], opacity=1.5)
    with pytest.raises(WhenceError, match="PIL image is needed, not str"):
        overlay("cat.jpg", [[1.0]])
    with pytest.raises(WhenceError, match="image is empty"):
        overlay(Image.new("RGB", (0, 5)), [[1.0]])


@pytest.mark.parametrize("size", [(50, 31), (33, 21), (90, 70), (7, 90), (1, 1), (300, 2)])
def test_photos_are_resized_as_pillow_does(size):
    noise = np.random.default_rng(0).integers(0, 256, (21, 33, 3), dtype=np.uint8)
    for photo in (Image.fromarray(noise), Image.fromarray(noise).crop((3, 2, 20, 20))):
        expected = photo.resize(size, Image.Resampling.BICUBIC)
        difference = to_pixels(resize(photo, size)) - to_pixels(expected)
        assert np.abs(difference).max() <= 3
        assert abs(difference.mean()) < 0.5


@pytest.mark.parametrize("size", [(50, 31), (6, 4), (3, 2), (1, 40)])
@pytest.mark.parametrize("shape", [(4, 6), (1, 30), (40, 1), (70, 90)])
def test_scores_are_resized_as_pillow_does(size, shape):
    scores = np.random.default_rng(0).standard_normal(shape)
    expected = Image.fromarray(scores.astype(np.float32)).resize(size, Image.Resampling.BICUBIC)
    within = np.clip(np.asarray(expected), scores.min(), scores.max())
    assert np.allclose(upsample(scores, size), within, atol=1e-5)
