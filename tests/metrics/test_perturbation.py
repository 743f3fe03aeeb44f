import numpy as np
import pytest
import torch
from scipy import ndimage

from whence import WhenceError
from whence.explanation import Explanation
from whence.metrics import perturbation as p


def plainly_removed(scores: list[float], fraction: float, order: str) -> list[bool]:
    sign = -1 if order == "highest" else 1
    turns = sorted(range(len(scores)), key=lambda unit: (sign * scores[unit], unit))
    gone = set(turns[: int(fraction * len(scores) + 1e-9)])
    return [unit in gone for unit in range(len(scores))]


@pytest.mark.parametrize("order", ["highest", "lowest"])
@pytest.mark.parametrize("units", [1, 7, 10, 100, 196])
def test_removed_is_a_plain_sort(order, units):
    scores = torch.randint(-3, 4, (4, units)).float()  # with many ties
    scores[3] = 0.5
    for fraction in p.WHOLE:
        found = p.removed(scores, fraction, order)
        assert found.tolist() == [plainly_removed(s, fraction, order) for s in scores.tolist()]
        assert torch.equal(found, p.ranks(scores, order) < p.count(units, fraction))


def test_counts_are_whole_and_those_of_the_published_protocol():
    assert [p.count(10, f) for f in p.WHOLE] == list(range(11))
    assert p.count(100, 0.29) == 29  # 0.29 * 100 is a little less than 29
    assert [p.count(224 * 224, f) for f in p.FRACTIONS] == [int(50176 * f) for f in p.FRACTIONS]


def test_bad_requests_are_refused():
    scores = torch.zeros(2, 5)
    for call in (
        lambda: p.removed(scores, 1.1, "highest"),
        lambda: p.removed(scores, 0.5, "sideways"),
        lambda: p.removed(scores[0], 0.5, "highest"),
        lambda: p.removed(scores.log() - scores.log(), 0.5, "highest"),
        lambda: p.hidden(scores, 0.5, "chess"),
        lambda: p.filled(torch.zeros(2, 3, 4, 4), torch.zeros(2, 4, 5).bool(), "zero"),
        lambda: p.filled(torch.zeros(2, 3, 4, 4), torch.zeros(2, 4, 4).bool(), "pink"),
        lambda: p.area(scores, p.FRACTIONS),
        lambda: p.area(torch.zeros(2), (0.5, 0.5)),
        lambda: p.curves(torch.zeros(2, 3, 4), torch.tensor([0, 4])),
        lambda: p.curves(torch.zeros(2, 3, 4), torch.tensor([0])),
        lambda: p.spread(scores, (2, 2), (4, 4)),
        lambda: p.to_pixels(scores, (4, 4)),
    ):
        with pytest.raises(WhenceError):
            call()


def test_the_games_hide_what_they_say():
    scores = torch.tensor([[0.1, 0.9, 0.5, 0.7]])
    assert p.hidden(scores, 0.5, "positive").tolist() == [[False, True, False, True]]
    assert p.hidden(scores, 0.5, "deletion").tolist() == [[False, True, False, True]]
    assert p.hidden(scores, 0.5, "negative").tolist() == [[True, False, True, False]]
    assert p.hidden(scores, 0.5, "insertion").tolist() == [[True, False, True, False]]
    assert p.hidden(scores, 0.25, "insertion").tolist() == [[True, False, True, True]]
    assert p.hidden(scores, 0, "insertion").all()
    assert not p.hidden(scores, 1, "insertion").any()


def test_maps_become_pixels_as_heatmaps_do():
    scores = torch.randn(3, 12)
    explanation = Explanation(scores, torch.zeros(3), torch.zeros(3, 2), grid=(3, 4))
    found = p.to_pixels(scores.reshape(3, 3, 4), (17, 20))
    assert torch.equal(found, explanation.heatmap((17, 20)))


@pytest.mark.parametrize(
    ("grid", "size"), [((14, 14), (224, 224)), ((3, 4), (10, 13)), ((5, 2), (3, 8))]
)
def test_patches_spread_over_their_pixels(grid, size):
    patches = torch.rand(2, grid[0] * grid[1]) > 0.5
    found = p.spread(patches, grid, size)
    for y in range(size[0]):
        for x in range(size[1]):
            row, column = int((y + 0.5) / size[0] * grid[0]), int((x + 0.5) / size[1] * grid[1])
            assert torch.equal(found[:, y, x], patches[:, row * grid[1] + column])


@pytest.mark.parametrize("size", [(30, 46), (8, 8), (1, 5)])
@pytest.mark.parametrize("fill", ["zero", "mean", "blur"])
def test_filled_is_each_pixel_or_what_is_behind(fill, size):
    pixels = torch.rand(2, 3, *size, dtype=torch.float64)
    kept = pixels.clone()
    hidden = torch.rand(2, *size) > 0.4
    found = p.filled(pixels, hidden, fill).numpy()
    assert torch.equal(pixels, kept)
    sigma = min(size) * 10 / 224
    for n in range(2):
        for channel in range(3):
            image = pixels[n, channel].numpy()
            behind = {
                "zero": np.zeros(size),
                "mean": np.full(size, image.mean()),
                "blur": ndimage.gaussian_filter(image, sigma, mode="mirror", truncate=4),
            }[fill]
            expected = np.where(hidden[n].numpy(), behind, image)
            np.testing.assert_allclose(found[n, channel], expected, rtol=0, atol=1e-14)


def test_blurring_in_float32_stays_close():
    pixels = torch.rand(1, 3, 224, 224)
    far = (p.blurred(pixels).double() - p.blurred(pixels.double())).abs().max()
    assert far < 1e-6


def test_curves_and_areas_are_plain_sums():
    logits = torch.randn(5, 10, 4)
    logits[0, 0] = 1.0  # a tie: the first class wins
    labels = torch.tensor([0, 1, 2, 3, 0])
    found = p.curves(logits, labels)
    fractions = (0.0, *p.FRACTIONS)
    for n, label in enumerate(labels.tolist()):
        total = 0.0
        for step in range(10):
            row = logits[n, step].double().numpy()
            chance = np.exp(row)[label] / np.exp(row).sum()
            assert found["accuracy"][n, step] == float(np.argmax(row) == label)
            assert found["logit"][n, step] == row[label]
            assert found["probability"][n, step] == pytest.approx(chance, abs=1e-14)
            if step:
                left, right = found["probability"][n, step - 1 : step + 1].tolist()
                total += (fractions[step] - fractions[step - 1]) * (left + right) / 2
        assert p.area(found["probability"], fractions)[n] == pytest.approx(100 * total, abs=1e-11)
    assert found["accuracy"][0, 0] == 1
    assert p.area(torch.ones(10), fractions) == pytest.approx(90)
    assert p.area(found["accuracy"], fractions).mean() == pytest.approx(
        float(p.area(found["accuracy"].mean(0), fractions))
    )


def test_the_area_between_is_positive_for_scores_that_find_what_counts():
    weights = torch.rand(20)
    scores = weights[None]
    fractions = (0.0, *p.FRACTIONS)

    def curve(order: str) -> torch.Tensor:
        return torch.stack([(weights * ~p.removed(scores, f, order)).sum(1) for f in fractions], 1)

    best = p.area_between(curve("highest"), curve("lowest"), fractions)
    assert best > 0
    assert p.area_between(curve("lowest"), curve("highest"), fractions) == -best
