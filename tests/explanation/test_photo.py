import dataclasses

import numpy as np
import pytest
import torch
from PIL import Image

from tests.saved import make_photo
from whence import Explanation, WhenceError
from whence.explanation import Explanations, Photo


@pytest.fixture
def explanation() -> Explanation:
    photos = [
        Photo.from_crop(make_photo(300, 200), (50, 0, 250, 200)),
        Photo.from_crop(make_photo(40, 60, seed=1)),
    ]
    scores, nothing = torch.arange(8.0).reshape(2, 4), torch.zeros(2, 2)
    return Explanation(
        scores, torch.tensor([1, 0]), nothing, grid=(2, 2), photos=photos, model="pets"
    )


def test_a_photo_without_a_crop_is_seen_whole():
    image = make_photo(60, 40)
    photo = Photo.from_crop(image)
    assert photo.box == (0, 0, 60, 40)
    assert not photo.has_crop
    assert np.array_equal(photo.crop, image)
    image.paste("red", (0, 0, 60, 40))
    assert not np.array_equal(photo.crop, image)  # it is a copy


def test_the_seen_part_is_the_box():
    image = make_photo(300, 200)
    photo = Photo.from_crop(image.convert("RGBA"), (50, 20, 250, 180))
    assert photo.has_crop
    assert photo.image.mode == "RGB"
    assert np.array_equal(photo.crop, image.crop((50, 20, 250, 180)))
    assert photo.locate(0, 0) == (50, 20)
    assert photo.locate(0.25, 1) == (100, 180)


@pytest.mark.parametrize("size", [(3000, 2000), (500, 4096), (4096, 3)])
def test_large_photos_are_made_small(size):
    middle = size[0] / 4, size[1] / 4, size[0] * 3 / 4, size[1] * 3 / 4
    photo = Photo.from_crop(Image.new("RGB", size), middle)
    assert max(photo.image.size) == 1024
    width, height = photo.image.size
    assert photo.box == pytest.approx((width / 4, height / 4, width * 3 / 4, height * 3 / 4))
    assert max(photo.crop.size) == 512
    small = photo.shrink(100)
    assert max(small.crop.size) == 100
    assert small.locate(0.5, 0.5) == pytest.approx([side / 2 for side in small.image.size])
    assert small.shrink(200) is small


def test_samples_keep_their_photos(explanation):
    assert explanation[1].photos == [explanation.photos[1]]
    assert explanation[:1].photos == [explanation.photos[0]]
    assert explanation[1].model == "pets"


def test_photos_and_model_are_saved(explanation, tmp_path):
    path = tmp_path / "a.safetensors"
    explanation.save(path)
    loaded = Explanation.load(path)
    assert loaded.model == "pets"
    for one, other in zip(loaded.photos, explanation.photos, strict=True):
        assert one.box == other.box
        assert one.image.size == other.image.size
        assert np.abs(np.asarray(one.image, int) - np.asarray(other.image, int)).mean() < 1.5
    Explanations(pixel_values=explanation).save(path)
    assert len(Explanations.load(path)["pixel_values"].photos) == 2


def test_files_without_photos_are_read(explanation, tmp_path):
    facts, tensors = dataclasses.replace(explanation, photos=None)._to_parts()
    del facts["photos"], facts["model"]
    earlier = Explanation._from_parts(facts, tensors)
    assert earlier.photos is None
    assert earlier.model == ""
    assert torch.equal(earlier.scores, explanation.scores)


@pytest.mark.parametrize(
    "harm",
    [
        lambda facts, _: facts.update(photos=[[0, 0, 10, 10]] * 3),
        lambda facts, _: facts.update(photos=[[0, 0, 10, 10]]),
        lambda facts, _: facts.update(photos=[[10, 0, 0, 10]] * 2),
        lambda facts, _: facts.update(photos=[[0, 0, 9000, 10]] * 2),
        lambda facts, _: facts.update(photos=7),
        lambda _, tensors: tensors.update({"photo.1": torch.zeros(40, dtype=torch.uint8)}),
    ],
)
def test_damaged_photos(explanation, tmp_path, monkeypatch, harm):
    facts, tensors = explanation._to_parts()
    harm(facts, tensors)
    monkeypatch.setattr(Explanation, "_to_parts", lambda self: (facts, tensors))
    explanation.save(tmp_path / "a.safetensors")
    with pytest.raises(WhenceError, match="is damaged or not an explanation"):
        Explanation.load(tmp_path / "a.safetensors")


def test_a_file_that_unpacks_to_a_huge_photo(explanation, tmp_path):
    huge = dataclasses.replace(
        explanation, photos=[Photo(Image.new("RGB", (5000, 10)), (0, 0, 5000, 10))] * 2
    )
    huge.save(tmp_path / "a.safetensors")
    with pytest.raises(WhenceError, match="its photo is 5000x10 pixels"):
        Explanation.load(tmp_path / "a.safetensors")
