"""What was found, as data for scripts and as a sentence for people."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from whence._util.files import exists
from whence.errors import WhenceError
from whence.explanation import Explanation
from whence.pipeline.naming import Planned
from whence.pipeline.writing import moved_when_whole
from whence.version import __version__

_FORMAT = "whence summary 1"
_FILE = "summary.json"
_TOP = 5
_PLACES = (
    *("the upper left", "the top", "the upper right"),
    *("the left", "the middle", "the right"),
    *("the lower left", "the bottom", "the lower right"),
)


def found(
    planned: Planned, model: str, explanation: Explanation, notes: list[str]
) -> dict[str, Any]:
    """The entry for an input that was explained."""
    classes = _classes(explanation)
    if explanation.class_note:
        notes = [*notes, explanation.class_note]
    return {
        **_asked(planned, model),
        "method": explanation.method,
        "class_specific": explanation.class_specific,
        "settings": explanation.settings,
        "details": None if explanation.details is None else explanation.details[0],
        "files": planned.files,
        "classes": classes,
        "sentence": _sentence(explanation, classes),
        "notes": notes,
        "error": None,
    }


def failed(planned: Planned, model: str | None, error: str) -> dict[str, Any]:
    """The entry for an input that could not be explained."""
    return {**_asked(planned, model), "files": {}, "classes": [], "notes": [], "error": error}


def _asked(planned: Planned, model: str | None) -> dict[str, Any]:
    source = planned.source
    return {"name": planned.name, "input": source.title, "kind": source.kind, "model": model}


def _classes(explanation: Explanation) -> list[dict[str, Any]]:
    """Each explained class of the only sample: its name, probability and strongest parts."""
    indices = explanation.target[0].reshape(-1).tolist()
    return [
        {
            "index": index,
            "name": one.name if explanation.target_names else str(index),
            "probability": None if one.probability is None else round(one.probability, 6),
            "top": _strongest(explanation, at),
        }
        for at, (index, one) in enumerate(zip(indices, explanation.classes(), strict=True))
    ]


def _strongest(explanation: Explanation, at: int) -> list[dict[str, Any]]:
    """The words or patches with the highest scores."""
    if explanation.grid is None:
        words = list(enumerate(explanation.words(0, at)))
        words.sort(key=lambda numbered: -numbered[1][1])
        return [{"word": w, "position": n, "score": score} for n, (w, score) in words[:_TOP]]
    scores = _scores(explanation, at)
    highest = scores.topk(min(_TOP, len(scores)))
    columns = explanation.grid[1]
    return [
        {"row": unit // columns, "column": unit % columns, "score": score}
        for score, unit in zip(highest.values.tolist(), highest.indices.tolist(), strict=True)
    ]


def _scores(explanation: Explanation, at: int) -> Tensor:
    scores = explanation.scores[0]
    return scores if scores.dim() == 1 else scores[at]


def _sentence(explanation: Explanation, classes: Sequence[dict[str, Any]]) -> str:
    """The decision and its main ground, for each class."""
    parts = []
    for at, (one, told) in enumerate(zip(classes, explanation.classes(), strict=True)):
        said = one["name"] if told.probability is None else f"{one['name']} ({told.percent})"
        if explanation.grid is not None:
            ground = _place(_scores(explanation, at).reshape(1, *explanation.grid))
        else:
            ground = ", ".join(f"“{top['word']}”" for top in one["top"][:3] if top["score"] > 0)
        parts.append(f"{said}, most of all because of {ground}" if ground else said)
    return "; ".join(parts)


def _place(scores: Tensor) -> str:
    """Which ninth of the photo holds the most; nothing if none does."""
    ninths = F.adaptive_avg_pool2d(scores.float().clamp(min=0), 3).flatten()
    return _PLACES[int(ninths.argmax())] if torch.any(ninths > 0) else ""


def document(out: Path, entries: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The summary of several inputs. File names in it are relative to the folder."""
    return {
        "format": _FORMAT,
        "version": __version__,
        "folder": os.fsencode(out).decode("utf-8", "replace"),
        "inputs": list(entries),
    }


def as_json(content: dict[str, Any]) -> str:
    """JSON that keeps every script readable."""
    return json.dumps(content, ensure_ascii=False, indent=2)


def earlier_entries(out: Path, force: bool) -> list[dict[str, Any]]:
    """The entries of a summary that is in the folder already.

    Raises:
        WhenceError: There is a file of that name that whence did not write.
    """
    path = out / _FILE
    if not exists(path):
        return []
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["format"] == _FORMAT:
            return list(content["inputs"])
    except (OSError, ValueError, LookupError, TypeError):
        pass
    if force:
        return []
    raise WhenceError(
        f"'{path}' is there and is no summary of whence. Give --force to write over it, or another "
        f"folder with --out."
    )


def write(
    out: Path, entries: Sequence[dict[str, Any]], earlier: Sequence[dict[str, Any]] = ()
) -> None:
    """Write the folder's summary: what it told before, and these entries."""
    new = {entry["name"] for entry in entries}
    kept = [entry for entry in earlier if entry.get("name") not in new]
    with moved_when_whole(out) as folder:
        content = as_json(document(out, [*kept, *entries]))
        (folder / _FILE).write_text(content + "\n", encoding="utf-8")
