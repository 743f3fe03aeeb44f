"""Photos that other processes prepare are those that this one would prepare."""

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.saved import make_photo
from whence.inputs.sources import Source
from whence.models.image_preprocessing import CenterCropPreprocessor
from whence.models.transform_preprocessing import TransformPreprocessor
from whence.pipeline.preparing import PhotoPreparer
from whence.pipeline.reading import Failure, prepare_input, read_input
from whence.pipeline.stored_photos import StoredPhoto

SQUARE = CenterCropPreprocessor((32, 32), 40, (0.5,) * 3, (0.25,) * 3)


@dataclass(frozen=True)
class EndsOthers(CenterCropPreprocessor):
    """Prepares photos in one process, and ends all others."""

    owner: int = 0

    def __call__(self, images):
        if os.getpid() != self.owner:
            os._exit(1)
        return super().__call__(images)


def cut_left(image):
    """The left half of a photo, as a transform of a user's."""
    half = image.resize((32, 32), box=(0, 0, image.width / 2, image.height))
    return torch.from_numpy(np.array(half)).permute(2, 0, 1) / 255


@pytest.fixture
def preparer():
    started = PhotoPreparer(2)
    yield started
    started.close()
    assert not Path(started._folder.name).exists()


@pytest.fixture
def photos(tmp_path) -> list[Source]:
    """Photos of several sizes and proportions, and files that are none."""
    for number in range(7):
        make_photo(40 + 30 * number, 50, seed=number).save(tmp_path / f"{number}.png")
    (tmp_path / "7.png").write_text("no photo")
    return [Source("image", tmp_path / f"{number}.png") for number in range(9)]


@pytest.mark.parametrize("preprocessor", [SQUARE, TransformPreprocessor(cut_left)])
def test_processes_prepare_the_same_photos(preparer, photos, preprocessor):
    found = preparer.bind(preprocessor)(photos)()
    expected = [prepare_input(read_input(one), preprocessor) for one in photos]
    assert len(found) == len(expected) == 9
    assert found[7:] == expected[7:]
    assert all(isinstance(one, Failure) for one in found[7:])
    for one, plain in zip(found[:7], expected[:7], strict=True):
        assert torch.equal(one.inputs, plain.inputs)
        assert one.notes == plain.notes
        assert isinstance(one.photos[0], StoredPhoto)
        assert one.photos[0].box == plain.photos[0].box
        assert np.array_equal(np.asarray(one.photos[0].image), np.asarray(plain.photos[0].image))


def test_photos_of_processes_that_ended_are_prepared_here(preparer, photos):
    ending = EndsOthers(SQUARE.size, SQUARE.resize, SQUARE.mean, SQUARE.std, owner=os.getpid())
    found = preparer.bind(ending)(photos[:5])()
    for one, source in zip(found, photos, strict=False):
        assert torch.equal(one.inputs, prepare_input(read_input(source), SQUARE).inputs)
        assert not isinstance(one.photos[0], StoredPhoto)


def test_what_cannot_be_sent_is_not_used_by_processes(preparer, vit):
    assert preparer.bind(TransformPreprocessor(lambda image: torch.zeros(3, 8, 8))) is None
    assert preparer.bind(lambda images: vit.preprocessor(images)) is None
