"""Scores as lines of a table: one for each class and unit of an input."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from whence.explanation.photo import Photo

if TYPE_CHECKING:
    from whence.explanation.explanation import Explanation

_AXES = {1: ("segment",), 2: ("row", "column"), 3: ("frame", "row", "column")}


def list_unit_records(explanation: Explanation, sample: int = 0) -> list[dict[str, object]]:
    """One record for each class and patch of a photo: names, where it lies, and its score.

    Patches of a photo have their middle in pixels of the whole photo, x and y; if the photo is not
    known, of the image as the model saw it. Videos have frames before rows, signals have segments,
    sounds have time, or time and frequency: steps of the grid, counted from 0.
    """
    grid = explanation.grid or ()
    axes = explanation.axes or _AXES[len(grid)]
    records = []
    for number, one in enumerate(explanation.classes(sample)):
        for place, score in zip(np.ndindex(*grid), one.scores.tolist(), strict=True):
            record: dict[str, object] = {
                "class": number,
                "target": one.name,
                "probability": one.probability,
            }
            record |= dict(zip(axes, place, strict=True))
            if axes[-1] == "column":
                x, y = _locate(explanation, sample, place[-2], place[-1])
                record |= {"x": x, "y": y}
            records.append({**record, "score": score})
    return records


def list_highest_units(explanation: Explanation, target: int, count: int) -> list[dict[str, Any]]:
    """The units of the first sample with the highest scores for a class: places and scores."""
    grid = explanation.grid or ()
    scores = explanation.get_class(0, target).scores
    highest = np.argsort(-scores, kind="stable")[:count]
    places = np.stack(np.unravel_index(highest, grid), axis=1).tolist()
    axes = explanation.axes or _AXES[len(grid)]
    return [
        {**dict(zip(axes, place, strict=True)), "score": score}
        for place, score in zip(places, scores[highest].tolist(), strict=True)
    ]


def _locate(explanation: Explanation, sample: int, row: int, column: int) -> tuple[float, float]:
    """The middle of a patch, in pixels."""
    rows, columns = (explanation.grid or (1, 1))[-2:]
    x, y = (column + 0.5) / columns, (row + 0.5) / rows
    photo: Photo | None = explanation.photos[sample] if explanation.photos else None
    if photo is not None:
        return photo.locate(x, y)
    height, width = explanation.image_size or (rows, columns)
    return x * width, y * height
