"""Sentences that say where the evidence for a class is, or nothing where that is not clear."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from whence._util.text import percent
from whence.explanation.media import Video
from whence.render.words import Word, list_words

if TYPE_CHECKING:
    from whence.explanation import ExplainedClass, Explanation, PeakRegion

_PLACES = (
    *("the upper left", "the top", "the upper right"),
    *("the left", "the middle", "the right"),
    *("the lower left", "the bottom", "the lower right"),
)
_HEIGHTS = ("high", "middle", "low")
# Evidence against a class is told if it is at least this share of all.
_LEAST_AGAINST = 0.1
# A word is named if it holds at least so many times what it would if all words were alike.
_ABOVE_EVEN = 2.0
# More words or regions than these are not named.
_NAMED = 3
_LONGEST_WORD = 40


def describe_decisions(explanation: Explanation, sample: int = 0) -> str:
    """Say which classes of a sample were explained, and where the evidence for each is.

    Such as "cat (98.4%): 12% of the photo holds half of the evidence, around the middle (x 0.48,
    y 0.55)"; without a closing period.
    """
    parts = []
    for number, one in enumerate(explanation.classes(sample)):
        evidence = describe_evidence(explanation, sample, number)
        parts.append(f"{name_class(one)}: {evidence}" if evidence else name_class(one))
    return ". ".join(parts)


def describe_evidence(explanation: Explanation, sample: int = 0, target: int = 0) -> str:
    """Say where the evidence for one class is; empty where that is not clear.

    Of photos, the peak regions: how much of the photo they are and how much of the evidence they
    hold, the place of each in a word, and its centre as shares of the photo's width and height. Of
    texts, the words that hold at least twice what they would if all words were alike, three at
    most, equal words joined. Where a tenth of all evidence or more is against the class, it is told
    in the same way. Of sounds, regions have times, and heights of a spectrogram. Videos, other
    signals and bare tokens get no sentence.

    Args:
        explanation: Of anything.
        sample: Which sample of the batch.
        target: Which of the explained classes, counted from 0.

    Returns:
        A clause without a closing period.
    """
    scores = explanation.get_class(sample, target).scores
    opposed = _share_against(scores) >= _LEAST_AGAINST
    told = [_describe_side(explanation, sample, target, " for it" if opposed else "", False)]
    if opposed:
        told.append(_describe_side(explanation, sample, target, " against it", True))
    return "; ".join(one for one in told if one)


def name_model(explanation: Explanation) -> str:
    """Name the model, and say what it knows where its folder says so; empty if it has no name."""
    name, knows = explanation.model, explanation.model_knows
    if not name:
        return ""
    return f"Model {name}: it knows {knows}." if knows else f"Model {name}."


def name_class(one: ExplainedClass) -> str:
    """A class with its probability, where it has one: "cat (98.4%)"."""
    name = one.name.strip() or repr(one.name)  # a token may be nothing but spaces
    return f"{name} ({one.percent})" if one.percent else name


def _share_against(scores: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> float:
    """The share that scores below 0 have in all scores, by their absolute values."""
    total = float(np.abs(scores).sum())
    return float(-scores[scores < 0].sum()) / total if total > 0 else 0.0


def _describe_side(
    explanation: Explanation, sample: int, target: int, side: str, against: bool
) -> str:
    """Say where the evidence for a class is, or that against it."""
    if explanation.grid is None and explanation.tokens is not None:
        return _describe_words(list_words(explanation, sample, target), side, against)
    if len(explanation.grid or ()) == 2 or "time" in explanation.axes:
        regions = explanation.regions(sample, target, against=against)
        return _describe_regions(explanation, sample, regions, side)
    return ""


def _describe_regions(
    explanation: Explanation, sample: int, regions: Sequence[PeakRegion], side: str
) -> str:
    if not regions:
        return ""
    if "time" in explanation.axes:
        return _describe_times(explanation, sample, regions, side)
    photo = explanation.photos[sample] if explanation.photos else None
    scale, centers = 1.0, [region.center for region in regions]
    if photo is not None and photo.has_crop:  # from shares of what the model saw to the photo's
        (left, top, right, bottom), (width, height) = photo.box, photo.image.size
        scale = (right - left) * (bottom - top) / (width * height)
        places = [photo.locate(*center) for center in centers]
        centers = [(x / width, y / height) for x, y in places]
    area = scale * sum(region.area for region in regions)
    held = sum(region.evidence for region in regions)
    where = _join([_name_place(*center) for center in centers])
    count = f"in {len(regions)} regions, " if len(regions) > 1 else ""
    return (
        f"{_percent(area)} of the photo holds {_percent(held)} of the evidence{side}, "
        f"{count}around {where}"
    )


def _describe_times(
    explanation: Explanation, sample: int, regions: Sequence[PeakRegion], side: str
) -> str:
    """Name the times of a sound that hold much of the evidence, and how high they sound."""
    media = explanation.media[sample] if explanation.media else None
    seconds = None if media is None or isinstance(media, Video) else media.seconds
    where = []
    for region in regions:
        x, y = region.center
        time = f"{x:.0%} of its length" if seconds is None else f"{x * seconds:.2f} s"
        height = f" at {_HEIGHTS[min(int(3 * y), 2)]} frequencies"
        where.append(time + height * ("frequency" in explanation.axes))
    area, held = (sum(v) for v in zip(*((one.area, one.evidence) for one in regions), strict=True))
    what = "spectrogram" if "frequency" in explanation.axes else "sound"
    count = f"in {len(regions)} places, " if len(regions) > 1 else ""
    return (
        f"{_percent(area)} of the {what} holds {_percent(held)} of the evidence{side}, "
        f"{count}around {_join(where)}"
    )


def _describe_words(words: Sequence[Word], side: str, against: bool) -> str:
    """Name the words that hold much of the evidence; equal ones are joined, in any case."""
    held: dict[str, list[Word]] = {}
    for word in words:
        if word.text.strip():
            held.setdefault(word.text.strip().casefold(), []).append(word)
    sums, counts = {}, {}
    for key, equal in held.items():
        scores = [max(-word.score if against else word.score, 0.0) for word in equal]
        sums[key], counts[key] = sum(scores), sum(score > 0 for score in scores)
    total, even = sum(sums.values()), 1 / max(len(held), 1)
    ordered = sorted(sums, key=lambda key: -sums[key])
    named = [k for k in ordered[:_NAMED] if total > 0 and sums[k] / total >= _ABOVE_EVEN * even]
    if not named:
        return ""
    quoted = [f"“{_shorten(held[key][0].text.strip())}”" for key in named]
    repeats = [f" \u00d7{counts[key]}" if counts[key] > 1 else "" for key in named]
    words_told = _join([word + repeat for word, repeat in zip(quoted, repeats, strict=True)])
    share = _percent(sum(sums[key] for key in named) / total)
    return f"{words_told} {'hold' if len(named) > 1 else 'holds'} {share} of the evidence{side}"


def _name_place(x: float, y: float) -> str:
    """A point of the photo in a word and in numbers: "the upper left (x 0.21, y 0.30)"."""
    row, column = (min(int(3 * share), 2) for share in (y, x))
    return f"{_PLACES[3 * row + column]} (x {x:.2f}, y {y:.2f})"


def _join(names: Sequence[str]) -> str:
    """Join names as a list in a sentence; those beyond the first few are counted."""
    shown = list(names[:_NAMED])
    if len(names) > _NAMED:
        shown.append(f"{len(names) - _NAMED} more")
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"


def _percent(share: float) -> str:
    if share > 0.9999:
        return "all"
    text = percent(share, 0)
    return {"0%": "less than 1%", "49%": "half", "50%": "half", "51%": "half"}.get(text, text)


def _shorten(text: str) -> str:
    return text if len(text) <= _LONGEST_WORD else text[: _LONGEST_WORD - 1] + "…"
