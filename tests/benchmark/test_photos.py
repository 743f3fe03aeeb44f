import numpy as np
import pytest
import torch
from PIL import Image

from tests.saved import make_photo
from whence import WhenceError, datasets
from whence.benchmark.photos import PreparedPhoto, compute_by_shape, prepare_photo
from whence.models.image_preprocessing import PixelScale


def test_black_is_black_before_normalisation(cropping_vit):
    scale = PixelScale.from_model(cropping_vit)
    mean, std = cropping_vit.preprocessor.processor.image_mean, (0.26862954, 0.26130258, 0.27577711)
    black = scale.to_model(torch.zeros(1, 3, 2, 2))
    expected = [-m / s for m, s in zip(mean, std, strict=True)]
    assert black[0, :, 0, 0].tolist() == pytest.approx(expected)
    values = torch.rand(2, 3, 4, 4)
    assert torch.allclose(scale.to_unit(scale.to_model(values)), values, atol=1e-6)


@pytest.mark.parametrize("view", ["model", "whole"])
def test_masks_are_preprocessed_as_photos_are(vit, cropping_vit, view):
    """A photo that shows its own mask still does, once both are prepared."""
    for model in (vit, cropping_vit):
        for height, width in ((40, 90), (70, 33), (36, 36)):
            mask = np.zeros((height, width), dtype=np.uint8)
            mask[height // 4 : height // 2, width // 3 : width * 2 // 3] = 1
            image = Image.fromarray(np.stack([mask * 255] * 3, -1))
            seen = prepare_photo(model, datasets.Sample("x", image, mask=mask), view)
            shown = PixelScale.from_model(model).to_unit(seen.pixels).mean(0)
            sure = (shown < 0.05) | (shown > 0.95)
            assert sure.float().mean() > 0.7
            assert torch.equal(seen.mask[sure] == 1, shown[sure] > 0.5)


def test_a_mask_of_another_size_is_refused(vit):
    odd = datasets.Sample("x", make_photo(40, 36), mask=np.zeros((36, 41), dtype=np.uint8))
    with pytest.raises(WhenceError, match="mask of 'x' is 41x36"):
        prepare_photo(vit, odd)


def test_results_of_photos_of_several_shapes_keep_the_order_of_the_photos():
    shapes = [(3, 8, 4), (3, 4, 8), (3, 8, 4), (3, 6, 6), (3, 4, 8)]
    photos = [
        PreparedPhoto(datasets.Sample(f"photo {n}", make_photo(4, 4)), torch.zeros(shape))
        for n, shape in enumerate(shapes)
    ]
    groups = []

    def list_names(some: list[PreparedPhoto]) -> list[str]:
        groups.append({tuple(one.pixels.shape) for one in some})
        return [one.name for one in some]

    assert compute_by_shape(photos, list_names) == [f"photo {n}" for n in range(5)]
    assert groups == [{(3, 8, 4)}, {(3, 4, 8)}, {(3, 6, 6)}]
