import numpy as np
import pytest
import torch
from scipy import ndimage

from whence import WhenceError
from whence.explanation import Explanation
from whence.metrics import pixels as p
from whence.metrics.imputation import draw_noise, impute_pixels


def test_maps_become_pixels_as_heatmaps_do():
    scores = torch.randn(3, 12)
    explanation = Explanation(scores, torch.zeros(3), torch.zeros(3, 2), grid=(3, 4))
    found = p.upsample_maps(scores.reshape(3, 3, 4), (17, 20))
    assert torch.equal(found, explanation.heatmap((17, 20)))


@pytest.mark.parametrize(
    ("grid", "size"), [((14, 14), (224, 224)), ((3, 4), (10, 13)), ((5, 2), (3, 8))]
)
def test_patches_spread_over_their_pixels(grid, size):
    patches = torch.rand(2, grid[0] * grid[1]) > 0.5
    found = p.spread_patches(patches, grid, size)
    for y in range(size[0]):
        for x in range(size[1]):
            row, column = int((y + 0.5) / size[0] * grid[0]), int((x + 0.5) / size[1] * grid[1])
            assert torch.equal(found[:, y, x], patches[:, row * grid[1] + column])


@pytest.mark.parametrize("size", [(30, 46), (8, 8), (1, 5)])
@pytest.mark.parametrize("fill", ["zero", "mean", "blur", "dataset"])
def test_a_filled_image_is_each_pixel_or_its_replacement(fill, size):
    pixels = torch.rand(2, 3, *size, dtype=torch.float64)
    kept = pixels.clone()
    hidden = torch.rand(2, *size) > 0.4
    color = (0.1, 0.5, 0.7)
    found = p.fill_pixels(pixels, hidden, fill, color).numpy()
    assert torch.equal(pixels, kept)
    sigma = min(size) * 10 / 224
    for n in range(2):
        for channel in range(3):
            image = pixels[n, channel].numpy()
            replacement = {
                "zero": np.zeros(size),
                "mean": np.full(size, image.mean()),
                "dataset": np.full(size, color[channel]),
                "blur": ndimage.gaussian_filter(image, sigma, mode="mirror", truncate=4),
            }[fill]
            expected = np.where(hidden[n].numpy(), replacement, image)
            np.testing.assert_allclose(found[n, channel], expected, rtol=0, atol=1e-14)


def test_road_interpolates_with_noise():
    pixels, hidden = torch.rand(2, 3, 8, 8), torch.rand(2, 8, 8) > 0.4
    noise = draw_noise(["a", "b"], (3, 8, 8))
    found = p.fill_pixels(pixels, hidden, "road", noise=noise)
    assert torch.equal(found, impute_pixels(pixels, hidden, noise))


def test_blurring_in_float32_stays_close():
    pixels = torch.rand(1, 3, 224, 224)
    far = (p.blur_images(pixels).double() - p.blur_images(pixels.double())).abs().max()
    assert far < 1e-6


def test_bad_requests_are_refused():
    for call in (
        lambda: p.fill_pixels(torch.zeros(2, 3, 4, 4), torch.zeros(2, 4, 5).bool(), "zero"),
        lambda: p.fill_pixels(torch.zeros(2, 3, 4, 4), torch.zeros(2, 4, 4).bool(), "pink"),
        lambda: p.fill_pixels(torch.zeros(2, 3, 4, 4), torch.zeros(2, 4, 4).bool(), "dataset"),
        lambda: p.make_filling(torch.zeros(2, 3, 4, 4), "dataset", (0.5,)),
        lambda: p.make_filling(torch.zeros(2, 3, 4, 4), "road"),
        lambda: p.spread_patches(torch.zeros(2, 5), (2, 2), (4, 4)),
        lambda: p.upsample_maps(torch.zeros(2, 5), (4, 4)),
    ):
        with pytest.raises(WhenceError):
            call()
