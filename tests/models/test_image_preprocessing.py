"""Photos are prepared as the models' own processors and transforms do it."""

import numpy as np
import pytest
import torch
from PIL import ImageOps

from tests.saved import make_dot, make_photo, save_image_model
from whence.models import load
from whence.models.image_preprocessing import (
    CenterCropPreprocessor,
)


def test_pixels_are_those_of_the_processor(image_model):
    from transformers import AutoImageProcessor

    images = [make_photo(), make_photo(20, 90, seed=1), make_dot()]
    expected = AutoImageProcessor.from_pretrained(image_model, backend="pil")
    prepared = load(image_model).prepare(images)
    assert torch.equal(prepared.inputs, expected(images, return_tensors="pt")["pixel_values"])
    assert prepared.notes == [[], [], []]
    assert [photo.crop.size for photo in prepared.photos] == [image.size for image in images]


def test_timm_pixels_are_those_of_its_own_transform(tmp_path):
    timm = pytest.importorskip("timm")
    model = timm.create_model("vit_tiny_patch16_224", depth=1)
    config = timm.data.resolve_data_config(model=model)
    transform = timm.data.create_transform(**config)
    for image in (
        make_photo(400, 300),
        make_photo(231, 500),
        make_photo(30, 40),
        make_photo(248, 248),
    ):
        ours = CenterCropPreprocessor.from_timm(config)([image]).inputs[0]
        assert torch.allclose(ours, transform(image), atol=1e-6)


@pytest.mark.parametrize("image", [make_photo(90, 60), make_photo(40, 100, seed=3)])
def test_the_part_that_a_cropping_processor_saw(image, tmp_path):
    """What is shown, made as small as what the model sees, is what the model sees."""
    pytest.importorskip("transformers")
    from transformers import BitImageProcessor

    folder = save_image_model(tmp_path)
    BitImageProcessor(
        size={"shortest_edge": 36}, crop_size={"height": 32, "width": 32}
    ).save_pretrained(folder)
    loaded = load(folder)
    prepared = loaded.prepare([image])
    shown = prepared.photos[0].crop
    assert abs(shown.width - shown.height) <= 1
    assert shown.width > 32
    ((note,),) = prepared.notes
    assert "the model saw only the middle" in note
    processor = loaded.preprocessor.processor
    mean, std = (np.array(v)[:, None, None] for v in (processor.image_mean, processor.image_std))
    seen = (prepared.inputs[0].numpy() * std + mean).transpose(1, 2, 0) * 255
    assert np.abs(np.asarray(shown.resize((32, 32))) - seen).mean() < 4


def test_pixels_are_shown_where_the_crop_is_unknown(image_model):
    """A processor that pads photos: no box of the photo is what the model saw."""
    loaded = load(image_model)
    process = loaded.preprocessor.processor

    def pad(images, **options):
        return process([ImageOps.pad(image, (90, 90)) for image in images], **options)

    for name in ("do_normalize", "image_mean", "image_std"):
        setattr(pad, name, getattr(process, name))
    loaded.preprocessor.processor = pad
    photo = make_photo(90, 45)
    prepared = loaded.prepare([photo])
    (shown,) = prepared.photos
    assert shown.box == (0, 0, 32, 32)
    assert np.array_equal(shown.image, ImageOps.pad(photo, (90, 90)).resize((32, 32), 2))


def test_a_strip_is_not_blown_up(tmp_path):
    """A photo of 4096 x 3 pixels, resized by its shorter side, would be hundreds of megabytes."""
    from transformers import BitImageProcessor

    folder = save_image_model(tmp_path)
    BitImageProcessor(
        size={"shortest_edge": 36}, crop_size={"height": 32, "width": 32}
    ).save_pretrained(folder)
    loaded = load(folder)
    sizes = []
    process = loaded.preprocessor.processor

    def watched(images, **options):
        sizes.extend(image.size for image in images)
        return process(images, **options)

    strip = make_photo(96, 3).resize((4096, 3))
    expected = process([strip], return_tensors="pt")["pixel_values"][0]
    for name in ("do_center_crop", "size", "crop_size", "image_mean", "image_std", "do_normalize"):
        setattr(watched, name, getattr(process, name))
    loaded.preprocessor.processor = watched
    prepared = loaded.prepare([strip])
    assert sizes[0] == (48, 3)
    assert max(map(max, sizes)) < 100  # also of the pictures that its settings are read off
    assert (prepared.inputs[0] - expected).abs().mean() < 0.05
