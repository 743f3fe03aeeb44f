"""Measure how faithful the explanations on the report are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch

from whence._util.text import first_line
from whence.errors import WhenceError
from whence.explanation import Explanation
from whence.faithfulness import STEPS, Faithfulness, measure, measure_photos
from whence.faithfulness.precision import MOST_MOVED, can_use_float16
from whence.faithfulness.sparse import SURE
from whence.models import LoadedModel, PreparedBatch
from whence.models.forward import choose_chunk_size
from whence.pipeline import ExplainedInput


def measure_inputs(inputs: Sequence[ExplainedInput]) -> dict[int, Faithfulness | str]:
    """Measure inputs that were explained by one model, photos together.

    Returns:
        By the inputs' indices, their faithfulness, or why it could not be measured.
    """
    explained = [one for one in inputs if one.prepared is not None]
    if len(explained) > 1 and all(one.loaded.kind == "image" for one in explained):
        photos = [(one.prepared, one.explanations) for one in explained if one.prepared is not None]
        try:
            found = measure_photos(explained[0].loaded, photos)
            return {one.index: result for one, result in zip(explained, found, strict=True)}
        except WhenceError:  # one of them is odd: each is tried alone
            pass
    return {one.index: _try_to_measure(one) for one in explained}


def measure_one(
    loaded: LoadedModel,
    prepared: PreparedBatch,
    explanations: Mapping[str, Explanation],
    against: int | None = None,
) -> Faithfulness:
    """Measure one input, as `whence.faithfulness.measure` takes it."""
    if loaded.kind != "image":
        return measure(loaded, prepared, explanations, against=against, draws=0)
    return measure_photos(loaded, [(prepared, explanations)], against=against)[0]


def count_measured_at_once(loaded: LoadedModel) -> int:
    """How many photos fill a batch of forward passes; one on a CPU."""
    if torch.device(loaded.device).type == "cpu" or loaded.kind != "image":
        return 1
    return max(1, choose_chunk_size(loaded) // (2 * len(STEPS)))


def describe_measuring(models: Iterable[LoadedModel]) -> dict[str, object]:
    """How faithfulness is measured, for the settings at the end of the page."""
    how = {
        "deleted": ", ".join(f"{step:.0%}" for step in STEPS),
        "photos": "pixels of the upsampled map, black before normalisation",
        "left out, of photos": "two steps between 0%, 30%, 60% and 90%, if the probability is "
        f"below {SURE:.1%} at both ends or above {1 - SURE:.1%} at both: a straight line",
        "texts": "words, deleted and the rest tokenised again",
    }
    if any(map(can_use_float16, models)):
        how["precision, of photos"] = (
            f"products in float16, if it moves no log-odds of the whole photo by more than "
            f"{MOST_MOVED:g}; else in that of the weights"
        )
    return {"faithfulness": how}


def _try_to_measure(one: ExplainedInput) -> Faithfulness | str:
    assert one.prepared is not None
    try:
        return measure_one(one.loaded, one.prepared, one.explanations)
    except WhenceError as error:
        return first_line(error)
