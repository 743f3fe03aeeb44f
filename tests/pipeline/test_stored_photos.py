"""Prepared photos in files are those that were stored."""

import pickle

import numpy as np
import pytest
import torch

from tests.saved import make_photo
from whence.explanation import Photo
from whence.models import PreparedBatch
from whence.pipeline.stored_photos import StoredBatch


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_photo_and_its_pixels_are_the_same_in_another_process(tmp_path, dtype):
    image = make_photo(37, 20)
    pixels = torch.randn(1, 3, 5, 4).to(dtype).transpose(2, 3)
    photo = Photo(image, (3.5, 0.0, 30.25, 20.0))
    prepared = PreparedBatch(pixels, [["a note"]], photos=[photo])
    stored = StoredBatch.write(prepared, tmp_path)
    opened = pickle.loads(pickle.dumps(stored)).open()
    assert torch.equal(opened.inputs, pixels)
    assert (opened.inputs.dtype, opened.notes) == (dtype, [["a note"]])
    (again,) = pickle.loads(pickle.dumps(opened.photos))
    assert "image" not in vars(again)  # until it is asked for
    assert again.box == photo.box
    assert np.array_equal(np.asarray(again.image), np.asarray(image))
    assert np.array_equal(np.asarray(again.crop), np.asarray(photo.crop))
    assert again.shrink(8).image.size == photo.shrink(8).image.size


def test_a_discarded_photo_leaves_no_file(tmp_path):
    prepared = PreparedBatch(torch.zeros(1, 3, 2, 2), [[]], photos=[Photo.from_crop(make_photo())])
    stored = StoredBatch.write(prepared, tmp_path)
    assert len(list(tmp_path.iterdir())) == 1
    stored.photo.discard()
    stored.photo.discard()
    assert list(tmp_path.iterdir()) == []
