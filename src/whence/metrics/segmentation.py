"""Compare maps with masks and boxes that people drew.

Pixels marked 255 are never counted. A map is scaled and thresholded as a whole all the same, since
what it predicts cannot depend on where people left pixels out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias, get_args

import torch
from torch import Tensor
from torch.nn import functional as F

from whence.errors import WhenceError

IGNORED = 255
Threshold = Literal["mean", "otsu"]
Box: TypeAlias = tuple[float, float, float, float]
Truth: TypeAlias = Tensor | Sequence[Sequence[Box]]

_PIXELS = 1 << 20  # how many are worked on at once, so that memory stays small
_LEVELS = 256


def compare_with_masks(
    maps: Tensor, masks: Tensor, threshold: Threshold = "mean"
) -> dict[str, Tensor]:
    """Compare maps, as segmentations, with masks (Chefer, Gur, Wolf, CVPR 2021).

    Each map is scaled to 0..1 by its own minimum and maximum; where it is above the threshold, the
    object is predicted. A map that is the same everywhere predicts background only.

    Args:
        maps: (n, height, width), of any range.
        masks: (n, height, width): 1 object, 0 background, 255 ignored.
        threshold: "mean" of the scaled map, or "otsu": the split of 256 equal bins with the
            largest variance between the two classes (Otsu, 1979).

    Returns:
        Each (n,) in float64. Numbers of pixels: correct, labelled, and intersection_foreground,
        union_foreground, intersection_background, union_background. Between 0 and 1:
        average_precision, of both classes' scores taken together (the map for the object, 1 - map
        for the background, and where the map is the same everywhere one score for both); f1 of the
        object, 0 if neither the mask nor the prediction has one. All are 0 for a sample with
        nothing labelled.
    """
    if threshold not in get_args(Threshold):
        raise WhenceError(f"The threshold has to be one of {get_args(Threshold)}: {threshold!r}.")
    _check(maps, masks)
    step = max(1, _PIXELS // max(1, maps[0].numel())) if len(maps) else 1
    parts = [
        _compare_with_masks(one.flatten(1), mask.flatten(1), threshold)
        for one, mask in zip(torch.split(maps, step), torch.split(masks, step), strict=True)
    ]
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def _compare_with_masks(maps: Tensor, masks: Tensor, threshold: Threshold) -> dict[str, Tensor]:
    scaled, flat = _scale(maps)
    predicted = (
        scaled > scaled.mean(1, keepdim=True) if threshold == "mean" else _threshold_otsu(scaled)
    )
    labelled = masks != IGNORED
    object_, ground = masks == 1, masks == 0
    hits, calm = (predicted & object_).sum(1), (~predicted & ground).sum(1)
    found, rest = (predicted & labelled).sum(1), (~predicted & labelled).sum(1)
    objects, grounds = object_.sum(1), ground.sum(1)
    precision = average_precision(
        torch.cat([torch.where(flat, scaled, 1 - scaled), scaled], 1),
        torch.cat([ground, object_], 1),
        torch.cat([labelled, labelled], 1),
    )
    rows = {
        "correct": hits + calm,
        "labelled": objects + grounds,
        "intersection_foreground": hits,
        "union_foreground": found + objects - hits,
        "intersection_background": calm,
        "union_background": rest + grounds - calm,
        "average_precision": precision,
        "f1": 2 * hits.double() / (found + objects).clamp(min=1),
    }
    return {name: row.double() for name, row in rows.items()}


def pool_figures(rows: Mapping[str, Tensor]) -> dict[str, float]:
    """Compute pixel_accuracy, mIoU, mAP and F1 of a whole set from rows of `compare_with_masks`.

    Pixel accuracy and the intersection over union are of all pixels of the set; mIoU is the mean of
    that of the object and that of the background, 0 for a class that occurs in no mask and no
    prediction. mAP and F1 are means over samples with anything labelled. All are between 0 and 1,
    and 0 if nothing is labelled.
    """
    total = {name: float(row.double().sum()) for name, row in rows.items()}
    samples = float((rows["labelled"] > 0).sum())

    def ratio(part: float, whole: float) -> float:
        return part / whole if whole else 0.0

    unions = [
        ratio(total[f"intersection_{which}"], total[f"union_{which}"])
        for which in ("foreground", "background")
    ]
    return {
        "pixel_accuracy": ratio(total["correct"], total["labelled"]),
        "mIoU": sum(unions) / 2,
        "mAP": ratio(total["average_precision"], samples),
        "F1": ratio(total["f1"], samples),
    }


def average_precision(scores: Tensor, truth: Tensor, counted: Tensor | None = None) -> Tensor:
    """Average precision (n,) of each row, as scikit-learn defines it; 0 without positives.

    The sum over distinct scores, from the highest, of the precision among what scores at least as
    high, times the recall gained: AP = sum_k (R_k - R_(k-1)) P_k.

    Args:
        scores: (n, m).
        truth: (n, m), true for positives.
        counted: (n, m), false for what is left out.
    """
    scores, order = scores.sort(dim=1, descending=True)
    taken = torch.ones_like(truth) if counted is None else counted.gather(1, order)
    right = (truth.gather(1, order) & taken).cumsum(1, dtype=torch.float64)
    seen = taken.cumsum(1, dtype=torch.float64)
    last = torch.ones_like(taken)
    last[:, :-1] = scores[:, 1:] != scores[:, :-1]  # the last of those that tie
    reached = torch.where(last, right, 0).cummax(1).values
    gained = torch.where(last, right - F.pad(reached, (1, 0))[:, :-1], 0)
    return (gained * right / seen.clamp(min=1)).sum(1) / right[:, -1].clamp(min=1)


def pointing_game(maps: Tensor, truth: Truth, tolerance: int = 0) -> Tensor:
    """Whether the highest point of a map hits the object (Zhang et al., ECCV 2016): (n,).

    Where several points are as high, the share of them that hit. Points on ignored pixels are left
    out. It is 0 for samples without an object: see `has_object`.

    Args:
        maps: (n, height, width).
        truth: Masks (n, height, width) as for `compare_with_masks`, or for each sample its boxes
            (left, top, right, bottom) in pixels of the map.
        tolerance: How far from the object, in pixels, still counts as a hit. The original has 15.
    """
    masks = _to_masks(maps, truth)
    labelled = masks != IGNORED
    heights = maps.double().masked_fill(~labelled, -math.inf)
    highest = (heights == heights.amax((1, 2), keepdim=True)) & labelled
    hits = highest & _widen(masks == 1, tolerance)
    return hits.sum((1, 2)).double() / highest.sum((1, 2)).clamp(min=1)


def energy_inside(maps: Tensor, truth: Truth) -> Tensor:
    """The share of a map that lies inside the object (Wang et al., Score-CAM, CVPR workshops 2020).

    The sum of the map inside, divided by the sum inside and outside: (n,). Only what is above 0
    counts. It is 0 for maps with nothing above 0, and for samples without an object: see
    `has_object`. Arguments are those of `pointing_game`.
    """
    masks = _to_masks(maps, truth)
    energy = maps.double().clamp(min=0) * (masks != IGNORED)
    whole = energy.sum((1, 2))
    return (energy * (masks == 1)).sum((1, 2)) / torch.where(whole > 0, whole, 1)


def has_object(masks: Tensor) -> Tensor:
    """(n,), true for masks with an object: the samples that hits and energy are averaged over."""
    return (masks == 1).flatten(1).any(1)


def draw_boxes(boxes: Sequence[Sequence[Box]], size: tuple[int, int]) -> Tensor:
    """Draw all boxes (left, top, right, bottom) of each sample as masks, (n, height, width) uint8.

    A pixel is inside if its centre is: left <= x + 0.5 < right, and so for rows.
    """
    masks = torch.zeros(len(boxes), *size, dtype=torch.uint8)
    down, along = (torch.arange(side) + 0.5 for side in size)
    for mask, of_sample in zip(masks, boxes, strict=True):
        for left, top, right, bottom in of_sample:
            rows, columns = (down >= top) & (down < bottom), (along >= left) & (along < right)
            mask[rows[:, None] & columns] = 1
    return masks


def _to_masks(maps: Tensor, truth: Truth) -> Tensor:
    if not isinstance(truth, Tensor):
        truth = draw_boxes(truth, (maps.shape[-2], maps.shape[-1])).to(maps.device)
    _check(maps, truth)
    return truth


def _check(maps: Tensor, masks: Tensor) -> None:
    if maps.dim() != 3 or maps.shape != masks.shape:
        raise WhenceError(
            f"Maps and masks have to be (n, height, width) of the same size, not "
            f"{tuple(maps.shape)} and {tuple(masks.shape)}."
        )
    bad = ~maps.isfinite().flatten(1).all(1)
    if bad.any():
        raise WhenceError(f"The map of sample {int(bad.nonzero()[0])} has NaN or infinity.")
    if not ((masks == 0) | (masks == 1) | (masks == IGNORED)).all():
        raise WhenceError("Masks have to be 1 (object), 0 (background) or 255 (ignored).")


def _scale(maps: Tensor) -> tuple[Tensor, Tensor]:
    """Maps between 0 and 1, and which of them, (n, 1), are the same everywhere."""
    maps = maps.double()
    low, high = maps.amin(1, keepdim=True), maps.amax(1, keepdim=True)
    flat = high == low
    return (maps - low) / torch.where(flat, 1, high - low), flat


def _threshold_otsu(scaled: Tensor) -> Tensor:
    """Pixels above the split of the histogram with the largest variance between classes."""
    bins = (scaled * _LEVELS).long().clamp(max=_LEVELS - 1)
    numbers = scaled.new_zeros(len(scaled), _LEVELS)
    numbers.scatter_add_(1, bins, torch.ones_like(scaled))
    levels = numbers * torch.arange(_LEVELS, device=scaled.device)
    below, sum_below = numbers.cumsum(1), levels.cumsum(1)
    above, sum_above = below[:, -1:] - below, sum_below[:, -1:] - sum_below
    apart = sum_below / below - sum_above / above.clamp(min=1)
    split = (below * above * apart**2).argmax(1, keepdim=True)
    return bins > split


def _widen(masks: Tensor, tolerance: int) -> Tensor:
    """Masks with all pixels that are no farther than `tolerance` from a pixel of them."""
    if tolerance < 0:
        raise WhenceError(f"The tolerance has to be 0 pixels or more, not {tolerance}.")
    if tolerance == 0:
        return masks
    height, width = masks.shape[1:]
    before = F.pad(masks.float().cumsum(2), (1, 0))  # how many are to the left of each edge
    before = F.pad(before, (tolerance, tolerance), mode="replicate")
    wide = torch.zeros_like(masks)
    for down in range(-min(tolerance, height - 1), min(tolerance, height - 1) + 1):
        reach = math.isqrt(tolerance**2 - down**2)
        from_, to = tolerance - reach, tolerance + reach + 1
        rows = slice(max(0, -down), height + min(0, -down))
        near = before[:, rows, to : to + width] > before[:, rows, from_ : from_ + width]
        wide[:, max(0, down) : height + min(0, down)] |= near
    return wide
