"""The part of a photo that a model saw, found for processors that crop, squash and turn."""

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

from whence.models.crop import ProvenSizes, draw_probe, find_crop_box, read_probe
from whence.models.image_preprocessing import CenterCropPreprocessor, ProcessorPreprocessor

SIZES = [(300, 180), (150, 333), (97, 97), (641, 480)]


def draw_square(size, centre, side=20):
    """A black photo with a white square around a point."""
    image = Image.new("RGB", size)
    x, y = (round(c - side / 2) for c in centre)
    image.paste("white", (x, y, x + side, y + side))
    return image, (x + side / 2, y + side / 2)


def find_centre(pixels):
    """The middle of what is bright in the model's input, as shares of its width and height."""
    bright = pixels.double().sum(0)
    bright = bright - bright.min()
    height, width = bright.shape
    y = (bright.sum(1) * (torch.arange(height) + 0.5)).sum() / bright.sum()
    x = (bright.sum(0) * (torch.arange(width) + 0.5)).sum() / bright.sum()
    return float(x) / width, float(y) / height


def build_processors():
    import transformers

    square = {"height": 64, "width": 64}
    shortest = transformers.BitImageProcessor(size={"shortest_edge": 72}, crop_size=square)
    exact = transformers.CLIPImageProcessor(size={"shortest_edge": 64}, crop_size=square)
    odd = transformers.BitImageProcessor(size={"shortest_edge": 77}, crop_size=square)
    squash = transformers.ViTImageProcessor(size=square)
    percent = transformers.ConvNextImageProcessor(size={"shortest_edge": 64}, crop_pct=0.875)
    # It normalises twice, and does not say so.
    twice = transformers.EfficientNetImageProcessor(size=square, resample=Image.Resampling.BILINEAR)
    levit = transformers.LevitImageProcessor(size={"shortest_edge": 64}, crop_size=square)
    return {
        "shortest_edge": shortest,
        "no margin": exact,
        "odd margin": odd,
        "squash": squash,
        "crop_pct": percent,
        "levit": levit,
        "twice": twice,
    }


def build_preprocessors():
    half = (0.5, 0.5, 0.5)
    crops = {
        "timm": CenterCropPreprocessor((64, 64), 71, half, half),
        "timm squash": CenterCropPreprocessor((64, 64), (64, 64), half, half),
        "timm wide": CenterCropPreprocessor((64, 96), (72, 108), half, half),
    }
    return crops | {n: ProcessorPreprocessor(one) for n, one in build_processors().items()}


@pytest.fixture(scope="module")
def preprocessors():
    pytest.importorskip("transformers")
    return build_preprocessors()


@pytest.mark.parametrize("size", SIZES)
def test_what_the_model_saw_lies_where_the_box_says(preprocessors, size):
    """A square in the photo, found in the model's pixels, is led back to where it was drawn."""
    for name, prepare in preprocessors.items():
        photo, centre = draw_square(size, (0.42 * size[0], 0.6 * size[1]))
        prepared = prepare([photo])
        (kept,) = prepared.photos
        assert np.array_equal(kept.image, photo), name
        seen = find_centre(prepared.inputs[0])
        # A model's pixel is up to this many of the photo's; the square is found to a fraction.
        pixel = max(size) / 64
        assert kept.locate(*seen) == pytest.approx(centre, abs=0.15 * pixel), name
        shown = find_centre(torch.from_numpy(np.array(kept.crop)).permute(2, 0, 1))
        assert shown == pytest.approx(seen, abs=0.004), name


def test_the_seen_part_is_what_the_processor_kept(preprocessors):
    """Boxes by hand: a photo of 300 x 180 for 64 x 64."""
    found = {
        name: prepare([Image.new("RGB", (300, 180))]).photos[0]
        for name, prepare in preprocessors.items()
    }
    # Its shorter side becomes 72 and its longer 120; 28 and 4 pixels are cut off on each side.
    assert found["shortest_edge"].box == pytest.approx((70, 10, 230, 170))
    assert found["no margin"].box == pytest.approx((21 * 300 / 106, 0, 85 * 300 / 106, 180))
    assert found["squash"].box == (0, 0, 300, 180)
    assert not found["squash"].has_crop
    # 64 / 0.875 is 73, and the longer side becomes 121: read off this processor's pixels alone.
    expected = (28 * 300 / 121, 4 * 180 / 73, 92 * 300 / 121, 68 * 180 / 73)
    assert found["crop_pct"].box == pytest.approx(expected, abs=0.3)
    # 71 and 118; half of 7 is rounded to 4.
    expected = (27 * 300 / 118, 4 * 180 / 71, 91 * 300 / 118, 68 * 180 / 71)
    assert found["timm"].box == pytest.approx(expected)
    assert found["timm squash"].box == (0, 0, 300, 180)
    assert found["timm wide"].crop.size == (267, 160)


@pytest.mark.parametrize("change", [ImageOps.mirror, ImageOps.flip, lambda i: i.rotate(90)])
def test_turned_photos_have_no_box(change):
    seen = np.asarray(change(draw_probe((90, 60))).resize((32, 32)), dtype=float)
    assert read_probe(seen, (90, 60)) is None


def test_a_corner_is_found():
    """A crop that no setting names, blue first: read off the pixels."""
    corner = (
        draw_probe((240, 120)).crop((30, 5, 130, 85)).resize((50, 40), Image.Resampling.BICUBIC)
    )
    seen = np.asarray(corner, dtype=float)[..., ::-1]
    assert read_probe(seen, (240, 120)) == pytest.approx((30, 5, 130, 85), abs=0.5)


def test_margins_are_rounded_as_croppers_do():
    # 75 - 64 is odd: 5 pixels are cut off at the left, or 6 by rounding half to even.
    assert find_crop_box((75, 75), 75, (64, 64))[0] == 5
    assert find_crop_box((75, 75), 75, (64, 64), round)[0] == 6


def list_sizes(count):
    """Sizes of photos in which the first three hold the extremes of width and height."""
    rng = np.random.default_rng(0)
    others = rng.integers(90, 200, (count - 3, 2)).tolist()
    return [(90, 90), (200, 90), (90, 200), *map(tuple, others)]


def test_settings_that_many_probes_agree_with_are_believed():
    """For each further size, the box is the one that a probe of that size shows."""
    pytest.importorskip("transformers")
    for name, processor in build_processors().items():
        calls = []

        def count(*arguments, kept=processor, calls=calls, **options):
            calls.append(1)
            return kept(*arguments, **options)

        count.__dict__.update(vars(processor))
        believing = ProcessorPreprocessor(count)
        for number, size in enumerate(list_sizes(40)):
            photo = Image.new("RGB", size)
            assert believing.scale
            calls.clear()
            (found,) = believing([photo]).photos
            (probed,) = ProcessorPreprocessor(processor)([photo]).photos
            assert found.box == probed.box, (name, size)
            if name in ("squash", "shortest_edge"):
                assert len(calls) == (2 if number < 12 else 1), (name, number)
            if name == "crop_pct":  # which its settings do not tell
                assert len(calls) == 2


def test_sizes_outside_of_the_proven_are_probed():
    pytest.importorskip("transformers")
    for size in ((89, 120), (120, 89), (201, 120), (120, 201)):
        proven = ProvenSizes()
        for one in list_sizes(12):
            assert not proven.is_between((120, 120))
            proven.note(one, True)
        assert proven.is_between((120, 120))
        assert not proven.is_between(size)
        proven.note(size, False)  # and from then on, nothing is believed
        assert not proven.is_between((120, 120))


def test_other_proportions_than_the_proven_are_probed():
    """A processor may pad strips alone: what squares show does not hold for them."""
    transformers = pytest.importorskip("transformers")
    processor = transformers.BitImageProcessor(
        size={"shortest_edge": 32, "longest_edge": 64}, crop_size={"height": 32, "width": 32}
    )
    believing = ProcessorPreprocessor(processor)
    for side in range(100, 520, 30):
        believing([Image.new("RGB", (side, side))])
    strip = Image.new("RGB", (450, 110))
    (found,) = believing([strip]).photos
    (probed,) = ProcessorPreprocessor(processor)([strip]).photos
    assert found.box == probed.box


def test_photos_of_few_pixels_prove_nothing():
    proven = ProvenSizes()
    for side in range(20):
        proven.note((3, 100 + side), True)
    assert not proven.is_between((3, 110))
