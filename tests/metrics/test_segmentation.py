import math

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score, f1_score

from whence import WhenceError
from whence.metrics import segmentation as s

KINDS = ("random", "ties", "constant", "no object", "all object", "ignored border", "all ignored")


def case(kind: str, n: int = 4, size=(13, 17)) -> tuple[torch.Tensor, torch.Tensor]:
    maps = torch.randn(n, *size)
    masks = (torch.rand(n, *size) > 0.6).to(torch.uint8)
    if kind == "ties":
        maps = torch.randint(0, 4, (n, *size)).float()
    elif kind == "constant":
        maps = torch.full((n, *size), 0.3)
    elif kind == "no object":
        masks[:] = 0
    elif kind == "all object":
        masks[:] = 1
    elif kind == "ignored border":
        masks[torch.rand(n, *size) > 0.7] = 255
    elif kind == "all ignored":
        masks[:] = 255
    return maps, masks


def best_split(scaled: np.ndarray) -> np.ndarray:
    """Otsu's threshold by trying every split."""
    bins = np.minimum(np.floor(scaled * 256), 255)
    best, chosen = 0.0, 255
    for split in range(255):
        low, high = bins[bins <= split], bins[bins > split]
        if len(low) and len(high):
            between = len(low) * len(high) * (low.mean() - high.mean()) ** 2
            if between > best * (1 + 1e-12):
                best, chosen = between, split
    return bins > chosen


def plainly(one: np.ndarray, mask: np.ndarray, threshold: str) -> dict[str, float]:
    one = one.astype(np.float64)
    flat = one.max() == one.min()
    scaled = np.zeros_like(one) if flat else (one - one.min()) / (one.max() - one.min())
    predicted = scaled > scaled.mean() if threshold == "mean" else best_split(scaled)
    known = mask != 255
    scaled, predicted, mask = scaled[known], predicted[known], mask[known]
    row = {"correct": (predicted == (mask == 1)).sum(), "labelled": known.sum()}
    for which, value in (("foreground", 1), ("background", 0)):
        said, true = predicted == value, mask == value
        row[f"intersection_{which}"] = (said & true).sum()
        row[f"union_{which}"] = (said | true).sum()
    row["average_precision"] = row["f1"] = 0.0
    if known.any():
        scores = np.concatenate([scaled if flat else 1 - scaled, scaled])
        truth = np.concatenate([mask == 0, mask == 1])
        row["average_precision"] = average_precision_score(truth, scores)
        row["f1"] = f1_score(mask, predicted.astype(int), zero_division=0)
    return row


@pytest.mark.parametrize("threshold", ["mean", "otsu"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_figure_is_the_plain_one(kind, threshold):
    maps, masks = case(kind)
    found = s.compare_with_masks(maps, masks, threshold)
    rows = [plainly(m.numpy(), t.numpy(), threshold) for m, t in zip(maps, masks, strict=True)]
    for name in rows[0]:
        expected = [float(row[name]) for row in rows]
        assert found[name].dtype == torch.float64
        np.testing.assert_allclose(found[name].numpy(), expected, rtol=0, atol=1e-13, err_msg=name)


def test_pooled_figures_are_sums_over_the_set():
    parts = [case(kind) for kind in KINDS]
    maps, masks = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
    found = s.pool_figures(s.compare_with_masks(maps, masks))
    rows = [plainly(m.numpy(), t.numpy(), "mean") for m, t in zip(maps, masks, strict=True)]

    def total(name: str) -> float:
        return float(sum(row[name] for row in rows))

    unions = [
        total(f"intersection_{which}") / total(f"union_{which}")
        for which in ("foreground", "background")
    ]
    counted = [row for row in rows if row["labelled"]]  # samples with nothing labelled are left out
    assert len(counted) == len(rows) - 4
    assert found == pytest.approx(
        {
            "pixel_accuracy": total("correct") / total("labelled"),
            "mIoU": sum(unions) / 2,
            "mAP": np.mean([row["average_precision"] for row in counted]),
            "F1": np.mean([row["f1"] for row in counted]),
        },
        abs=1e-13,
    )


def test_nothing_labelled_gives_zeros_not_nan():
    found = s.pool_figures(s.compare_with_masks(*case("all ignored")))
    assert found == {"pixel_accuracy": 0.0, "mIoU": 0.0, "mAP": 0.0, "F1": 0.0}
    empty = s.compare_with_masks(torch.zeros(0, 4, 4), torch.zeros(0, 4, 4, dtype=torch.uint8))
    assert all(row.shape == (0,) for row in empty.values())


def test_a_class_that_is_nowhere_has_no_overlap():
    maps, _ = case("constant")
    found = s.pool_figures(s.compare_with_masks(maps, torch.zeros(4, 13, 17, dtype=torch.uint8)))
    assert found == {"pixel_accuracy": 1.0, "mIoU": 0.5, "mAP": 0.5, "F1": 0.0}


def test_a_constant_map_says_nothing():
    found = s.compare_with_masks(*case("constant"))
    assert found["average_precision"].tolist() == [0.5] * 4
    assert not found["intersection_foreground"].any()


def test_a_map_that_is_the_mask_is_perfect_whatever_its_range():
    _, masks = case("random")
    for maps in (masks.double(), masks * 1e-6 - 5.0, masks.half() * 100):
        for threshold in ("mean", "otsu"):
            found = s.pool_figures(s.compare_with_masks(maps, masks, threshold))
            assert found == {"pixel_accuracy": 1.0, "mIoU": 1.0, "mAP": 1.0, "F1": 1.0}


def test_a_sample_does_not_depend_on_the_others(monkeypatch):
    maps, masks = case("ignored border", n=7)
    together = s.compare_with_masks(maps, masks)
    monkeypatch.setattr(s, "_PIXELS", 1)
    for name, row in s.compare_with_masks(maps, masks).items():
        assert torch.equal(row, together[name])


@pytest.mark.parametrize("levels", [2, 5, 1000])
def test_average_precision_is_scikit_learns(levels):
    scores = torch.randint(0, levels, (20, 300)).float()
    truth = torch.rand(20, 300) > 0.7
    counted = torch.rand(20, 300) > 0.2
    truth[0] = True
    found = s.average_precision(scores, truth, counted)
    for n in range(20):
        at = counted[n]
        expected = average_precision_score(truth[n][at].numpy(), scores[n][at].numpy())
        assert found[n] == pytest.approx(expected, abs=1e-13)
    assert s.average_precision(scores, torch.zeros_like(truth)).tolist() == [0.0] * 20


def plain_pointing(one: np.ndarray, mask: np.ndarray, tolerance: int) -> float:
    points = [(y, x) for y, x in np.ndindex(*mask.shape) if mask[y, x] != 255]
    if not points:
        return 0.0
    highest = max(one[point] for point in points)
    tops = [point for point in points if one[point] == highest]
    inside = list(zip(*np.nonzero(mask == 1), strict=True))
    hits = [any(math.dist(top, point) <= tolerance for point in inside) for top in tops]
    return sum(hits) / len(tops)


@pytest.mark.parametrize("tolerance", [0, 1, 3, 40])
@pytest.mark.parametrize("kind", KINDS)
def test_pointing_game_is_the_plain_one(kind, tolerance):
    maps, masks = case(kind, n=6, size=(9, 12))
    masks[:4] *= torch.rand(4, 9, 12) > 0.9  # small objects, so that not everything is near
    masks[(masks != 0) & (masks != 1)] = 255
    found = s.pointing_game(maps, masks, tolerance)
    expected = [
        plain_pointing(m.numpy(), t.numpy(), tolerance) for m, t in zip(maps, masks, strict=True)
    ]
    assert found.tolist() == pytest.approx(expected, abs=1e-15)


@pytest.mark.parametrize("kind", KINDS)
def test_energy_is_the_plain_share(kind):
    maps, masks = case(kind)
    found = s.energy_inside(maps, masks)
    for one, mask, value in zip(maps.double().numpy(), masks.numpy(), found.tolist(), strict=True):
        energy = np.maximum(one, 0)
        inside, outside = energy[mask == 1].sum(), energy[mask == 0].sum()
        expected = inside / (inside + outside) if inside + outside else 0.0
        assert value == pytest.approx(expected, abs=1e-14)


def test_energy_of_a_map_without_any_is_zero():
    assert s.energy_inside(-torch.rand(2, 4, 4), torch.ones(2, 4, 4)).tolist() == [0.0, 0.0]


def test_boxes_are_masks():
    boxes = [[(1.0, 0.0, 3.0, 2.0)], [(0.4, 0.6, 1.6, 9.0), (3.0, 1.0, 4.0, 2.0)], []]
    masks = s.draw_boxes(boxes, (3, 4))
    assert masks.tolist() == [
        [[0, 1, 1, 0], [0, 1, 1, 0], [0, 0, 0, 0]],
        [[0, 0, 0, 0], [1, 1, 0, 1], [1, 1, 0, 0]],
        [[0] * 4] * 3,
    ]
    maps = torch.rand(3, 3, 4)
    assert torch.equal(s.pointing_game(maps, boxes), s.pointing_game(maps, masks))
    assert torch.equal(s.energy_inside(maps, boxes), s.energy_inside(maps, masks))
    assert s.has_object(masks).tolist() == [True, True, False]


def test_bad_requests_are_refused():
    maps, masks = case("random")
    broken = maps.clone()
    broken[2, 0, 0] = math.nan
    with pytest.raises(WhenceError, match="sample 2"):
        s.compare_with_masks(broken, masks)
    for call in (
        lambda: s.compare_with_masks(maps, masks, "median"),
        lambda: s.compare_with_masks(maps[:, 1:], masks),
        lambda: s.compare_with_masks(maps, masks * 3),
        lambda: s.pointing_game(maps, masks, -1),
    ):
        with pytest.raises(WhenceError):
            call()
