"""Read the inputs of a result again, and join them with their stored scores."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from PIL import Image

from whence._util.fingerprint import hash_weights
from whence._util.text import first_line
from whence.distributed.contents import Item
from whence.distributed.folder import ResultFolder
from whence.distributed.rows import Row
from whence.distributed.sources import open_recorded_source
from whence.errors import WhenceError
from whence.explanation import Explanation
from whence.models import LoadedModel, PreparedBatch
from whence.models.forward import compute_logits

# How far a probability may be from the stored one: devices round otherwise, coarse products more.
_CHANGED, _CHANGED_COARSE = 0.001, 0.02


def load_model_again(
    folder: ResultFolder,
    model: str | None = None,
    weights: Path | None = None,
    device: str | None = None,
    *,
    compile: bool = False,
    precision: str | None = None,
) -> LoadedModel:
    """Load the model of a result, and refuse one with other weights.

    Args:
        folder: The result.
        model: Where the model is now, if not where it was.
        weights: The same of its weights' file.
        device: Where to run; the best there is if left out.
        compile: As for `whence.models.load`.
        precision: Likewise; that of the result if left out.

    Raises:
        WhenceError: It cannot be loaded, or its weights are others.
    """
    settings = folder.settings
    how = replace(settings.explain, device=device, compile=compile)
    how = replace(how, precision=precision or how.precision)
    if model is not None or weights is not None:
        how = replace(how, model=model or how.model, weights=weights)
    loaded = replace(settings, explain=how).load_model()
    if hash_weights(loaded.model) != folder.description.depends_on["model weights"]:
        raise WhenceError(
            f"The model '{loaded.title}' has other weights than the one that made "
            f"'{folder.address}'."
        )
    return loaded


@dataclass(frozen=True)
class RestoredInput:
    """An input of a result with its stored explanation.

    Attributes:
        id: Its name in the result.
        explanation: The stored one; with logits, and with the photo or the text, where the model is
            known and the input could be read.
        content: The photo or the text; None if it could not be read.
        prepared: As the model takes it; None without a model or content.
        notes: What a reader should know of it.
    """

    id: str
    explanation: Explanation
    content: Image.Image | str | None = None
    prepared: PreparedBatch | None = None
    notes: list[str] = field(default_factory=list)


def restore_inputs(
    folder: ResultFolder, rows: Sequence[Row], loaded: LoadedModel | None
) -> Iterator[RestoredInput]:
    """Read the inputs of some rows again, in the order of the source; one for each row.

    Args:
        folder: The result.
        rows: Whole rows that tell of no error.
        loaded: The model that made it; without one, inputs are not prepared.
    """
    by_id = {row["id"]: row for row in rows}
    items = open_recorded_source(folder).find_items(list(by_id))
    reason = "it is not in the table any more"
    while True:
        try:
            item = next(items, None)
        except WhenceError:  # the scores are there all the same; no path goes on a page
            item, reason = None, "its table is not there, or is damaged"
        if item is None:
            break
        yield _restore(folder, by_id.pop(item.id), item, loaded)
    for name, row in by_id.items():
        note = f"the input could not be read again: {reason}"
        yield RestoredInput(name, folder.read_explanation(row), notes=[*row["notes"], note])


def _restore(
    folder: ResultFolder, row: Row, item: Item, loaded: LoadedModel | None
) -> RestoredInput:
    explanation, notes = folder.read_explanation(row), list(row["notes"])
    try:
        content = item.read()
    except WhenceError as error:
        reason = str(error).removesuffix(".")
        notes.append(f"the input could not be read again: {reason}")
        return RestoredInput(item.id, explanation, notes=notes)
    if loaded is None:
        return RestoredInput(item.id, explanation, content, notes=notes)
    try:
        prepared = loaded.prepare([content])
        change = _attach(explanation, prepared, loaded)
    except Exception as error:  # a processor or a model of the user's may raise anything
        change = f"the input could not be prepared again: {first_line(error).removesuffix('.')}"
    if change:
        notes.append(change)
        return RestoredInput(item.id, explanation, content, notes=notes)
    return RestoredInput(item.id, explanation, content, prepared, notes)


def _attach(explanation: Explanation, prepared: PreparedBatch, loaded: LoadedModel) -> str:
    """Add photo, text and logits to a stored explanation; or say that the input has changed."""
    encodings = getattr(prepared.inputs, "encodings", None)
    known = None if explanation.tokens is None else explanation.tokens.strings[0]
    if known is not None and encodings and list(encodings[0].tokens) != known:
        return "the text has changed since it was explained"
    if loaded.generates:
        loaded.attach_inputs(explanation, prepared)
        return ""
    logits = compute_logits(loaded, prepared.inputs)
    if logits.dim() == 2:
        explanation.logits = logits
        stored = explanation.probabilities
        bound = _CHANGED if loaded.precision is None else _CHANGED_COARSE
        plain = replace(explanation, probabilities=None)
        now = [one.probability for one in plain.classes()]
        if stored is not None and any(
            one is not None and abs(one - was) > bound
            for one, was in zip(now, stored.reshape(-1).tolist(), strict=True)
        ):
            explanation.logits = torch.empty(1, 0)
            return "the input has changed since it was explained: the model decides otherwise"
    loaded.attach_inputs(explanation, prepared)
    return ""
