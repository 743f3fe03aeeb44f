"""Faithfulness of scores of an image: what becomes of a class as parts of it are hidden.

Units are pixels or patches, whichever the scores are of. The caller runs the model: these functions
say which units are hidden, what the image then looks like, and what the answers add up to.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import torch
from torch import Tensor
from torch.nn import functional as F

from whence.errors import WhenceError

Order = Literal["highest", "lowest"]
Fill = Literal["zero", "mean", "blur"]
Game = Literal["positive", "negative", "deletion", "insertion"]

FRACTIONS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
"""Parts hidden in the perturbation tests; the clean image, at 0, comes before them."""

WHOLE = (0.0, *FRACTIONS, 1.0)
"""Parts for insertion and deletion, which go from one end to the other."""

BLUR = 10 / 224
"""Standard deviation of the blur, in shorter sides of the image."""


def to_pixels(maps: Tensor, size: tuple[int, int]) -> Tensor:
    """Upsample maps bilinearly, as `Explanation.heatmap` does.

    Args:
        maps: (n, rows, columns).
        size: Height and width.

    Returns:
        (n, height, width).
    """
    if maps.dim() != 3:
        raise WhenceError(f"Maps have to be (n, rows, columns), not {tuple(maps.shape)}.")
    up = F.interpolate(maps[:, None], size=tuple(size), mode="bilinear", align_corners=False)
    return up[:, 0]


def spread(patches: Tensor, grid: tuple[int, int], size: tuple[int, int]) -> Tensor:
    """Give each pixel the value of its patch: that in which the pixel's centre lies.

    Args:
        patches: (n, rows * columns) in reading order, of any kind.
        grid: Rows and columns, which need not divide the size.
        size: Height and width.

    Returns:
        (n, height, width).
    """
    if patches.dim() != 2 or patches.shape[1] != grid[0] * grid[1]:
        raise WhenceError(f"{tuple(patches.shape)} is not (n, units) of a grid of {grid}.")
    rows, columns = (
        torch.div((2 * torch.arange(pixels) + 1) * cells, 2 * pixels, rounding_mode="floor")
        for cells, pixels in zip(grid, size, strict=True)
    )
    return patches.reshape(-1, *grid)[:, rows.to(patches.device)][:, :, columns.to(patches.device)]


def count(units: int, fraction: float) -> int:
    """How many units a fraction is: rounded down, but for what is lost in writing 0.1."""
    if not 0 <= fraction <= 1:
        raise WhenceError(f"A fraction has to be between 0 and 1, not {fraction}.")
    return int(fraction * units + 1e-9)


def ranks(scores: Tensor, order: Order) -> Tensor:
    """(n, units): when each unit's turn comes, counted from 0; units that tie go by position.

    `ranks(...) < count(units, fraction)` is `removed(...)`, with one sort for all fractions.
    """
    if order not in get_args(Order):
        raise WhenceError(f"The order has to be one of {get_args(Order)}, not {order!r}.")
    if scores.dim() != 2:
        raise WhenceError(f"Scores have to be (n, units), not {tuple(scores.shape)}.")
    if scores.isnan().any():
        raise WhenceError("Some scores are not numbers, so they cannot be ordered.")
    turns = scores.argsort(dim=1, descending=order == "highest", stable=True)
    places = torch.arange(scores.shape[1], device=scores.device).expand_as(turns)
    return torch.empty_like(turns).scatter_(1, turns, places)


def removed(scores: Tensor, fraction: float, order: Order) -> Tensor:
    """The units with the highest, or the lowest, scores.

    Args:
        scores: (n, units).
        fraction: Which part of the units, from 0 to 1.
        order: Whether the highest or the lowest go first.

    Returns:
        (n, units), true for exactly `count(units, fraction)` units of each sample.
    """
    return ranks(scores, order) < count(scores.shape[1], fraction)


def hidden(scores: Tensor, fraction: float, game: Game) -> Tensor:
    """The units that are hidden when a test has come as far as a fraction.

    Positive perturbation hides the highest scores first and negative perturbation the lowest
    (Chefer, Gur, Wolf, CVPR 2021); deletion hides the highest first, and insertion starts from
    an image that is hidden altogether and reveals the highest first (Petsiuk, Das, Saenko,
    BMVC 2018).

    Args:
        scores: (n, units).
        fraction: Which part is hidden or, of insertion, revealed.
        game: Which test.

    Returns:
        (n, units), true where hidden.
    """
    if game not in get_args(Game):
        raise WhenceError(f"The test has to be one of {get_args(Game)}, not {game!r}.")
    found = removed(scores, fraction, "lowest" if game == "negative" else "highest")
    return ~found if game == "insertion" else found


def filled(pixels: Tensor, hidden: Tensor, fill: Fill) -> Tensor:
    """The images with some pixels hidden, before they are normalised.

    Args:
        pixels: (n, 3, height, width) between 0 and 1.
        hidden: (n, height, width), true where hidden.
        fill: What is put there: "zero" is black, "mean" each image's mean colour, "blur" the image
            as `blurred` makes it.

    Returns:
        As `pixels`, which stay as they are.
    """
    if pixels.dim() != 4 or hidden.shape != (len(pixels), *pixels.shape[2:]):
        raise WhenceError(
            f"Pixels (n, 3, height, width) and hidden (n, height, width) have to fit together, not "
            f"{tuple(pixels.shape)} and {tuple(hidden.shape)}."
        )
    if fill == "zero":
        behind = torch.zeros_like(pixels)
    elif fill == "mean":
        behind = pixels.double().mean((2, 3), keepdim=True).to(pixels).expand_as(pixels)
    elif fill == "blur":
        behind = blurred(pixels)
    else:
        raise WhenceError(f"The fill has to be one of {get_args(Fill)}, not {fill!r}.")
    return torch.where(hidden[:, None], behind, pixels)


def blurred(pixels: Tensor) -> Tensor:
    """Blur images with a Gaussian.

    Its standard deviation is 10/224 of the shorter side, which is 10 pixels of the usual 224 (Fong,
    Vedaldi, ICCV 2017); it is cut at 4 standard deviations, and the image is mirrored at its
    edges.

    Args:
        pixels: (n, channels, height, width).
    """
    channels = pixels.shape[1]
    sigma = BLUR * min(pixels.shape[2:])
    radius = int(4 * sigma + 0.5)
    offsets = torch.arange(-radius, radius + 1, dtype=torch.float64)
    window = torch.exp(-0.5 * (offsets / sigma) ** 2)
    window = (window / window.sum()).to(pixels)
    down = window.reshape(1, 1, -1, 1).expand(channels, 1, -1, 1)
    padded = F.pad(pixels, (radius,) * 4, mode="reflect")
    rows = F.conv2d(padded, down, groups=channels)
    return F.conv2d(rows, down.transpose(2, 3), groups=channels)


def curves(logits: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """What the model says of a class at each step.

    Args:
        logits: (n, steps, classes).
        labels: (n,), the class of each sample: the true class for accuracy as it is published.

    Returns:
        Each (n, steps) in float64: "accuracy" is 1 where the class has the highest logit (the first
        of several that are as high) and 0 elsewhere, "probability" its softmax, "logit".
    """
    if logits.dim() != 3 or labels.shape != logits.shape[:1]:
        raise WhenceError(
            f"Logits (n, steps, classes) and labels (n,) have to fit together, not "
            f"{tuple(logits.shape)} and {tuple(labels.shape)}."
        )
    if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < logits.shape[2]:
        raise WhenceError(f"Labels have to be between 0 and {logits.shape[2] - 1}.")
    logits = logits.double()
    labels = labels.to(logits.device).long()[:, None]
    at = labels.expand(logits.shape[:2])[..., None]
    return {
        "accuracy": (logits.argmax(-1) == labels).double(),
        "probability": logits.softmax(-1).gather(-1, at)[..., 0],
        "logit": logits.gather(-1, at)[..., 0],
    }


def area(values: Tensor, fractions: Sequence[float]) -> Tensor:
    """Area under curves by the trapezoid rule over the fraction, times 100.

    It is not divided by the range of fractions: as published, a curve that stays at 1 from 0 to 0.9
    has 90.

    Args:
        values: (..., steps), the clean value first.
        fractions: One for each step, in rising order, 0 first for the clean value.

    Returns:
        (...) in float64.
    """
    steps = torch.tensor(fractions, dtype=torch.float64, device=values.device)
    if values.shape[-1] != len(steps) or len(steps) < 2 or (steps.diff() <= 0).any():
        raise WhenceError(
            f"{values.shape[-1]} values need as many fractions, two or more in rising order; the "
            f"clean value at 0 is one of them. These are {tuple(fractions)}."
        )
    return 100 * torch.trapezoid(values.double(), steps, dim=-1)


def area_between(highest: Tensor, lowest: Tensor, fractions: Sequence[float]) -> Tensor:
    """Area between the curves of the two orders, times 100: the larger, the better.

    It is the area when the lowest scores are hidden first (negative), less the area when the
    highest are (positive).

    Args:
        highest: (..., steps), hiding the highest first.
        lowest: (..., steps), hiding the lowest first.
        fractions: As for `area`.
    """
    return area(lowest, fractions) - area(highest, fractions)
