"""The summary of results: entries for scripts in summary.json, and a sentence for people."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import torch
from torch import Tensor
from torch.nn import functional as F

from whence._util.files import exists, stage_files
from whence.errors import WhenceError
from whence.explanation import Explanation
from whence.inputs.sources import Kind, Source
from whence.version import __version__

_FORMAT = "whence summary 1"
_FILE = "summary.json"
_TOP = 5
_NINTHS = (
    *("the upper left", "the top", "the upper right"),
    *("the left", "the middle", "the right"),
    *("the lower left", "the bottom", "the lower right"),
)


class ClassSummary(TypedDict):
    """One explained class: its probability and the units with the highest scores."""

    index: int
    name: str
    probability: float | None
    top: list[dict[str, Any]]


class SummaryEntry(TypedDict):
    """The summary of one input."""

    name: str
    input: str
    kind: Kind
    model: str
    files: dict[str, str]
    classes: list[ClassSummary]
    notes: list[str]
    error: str | None
    method: NotRequired[str]
    class_specific: NotRequired[bool]
    settings: NotRequired[dict[str, Any]]
    details: NotRequired[Any]
    sentence: NotRequired[str]


class Summary(TypedDict):
    """The summary of several inputs; names of files are relative to the folder."""

    format: str
    version: str
    folder: str
    inputs: list[SummaryEntry]


def describe_result(
    name: str,
    source: Source,
    model: str,
    files: dict[str, str],
    explanation: Explanation,
    notes: list[str],
) -> SummaryEntry:
    """Describe the result of one input."""
    classes = _describe_classes(explanation)
    if explanation.class_note:
        notes = [*notes, explanation.class_note]
    return {
        "name": name,
        "input": source.title,
        "kind": source.kind,
        "model": model,
        "method": explanation.method,
        "class_specific": explanation.class_specific,
        "settings": explanation.settings,
        "details": None if explanation.details is None else explanation.details[0],
        "files": files,
        "classes": classes,
        "sentence": _write_sentence(explanation, classes),
        "notes": notes,
        "error": None,
    }


def describe_failure(name: str, source: Source, model: str, error: str) -> SummaryEntry:
    """Describe an input that could not be explained."""
    return {
        "name": name,
        "input": source.title,
        "kind": source.kind,
        "model": model,
        "files": {},
        "classes": [],
        "notes": [],
        "error": error,
    }


def _describe_classes(explanation: Explanation) -> list[ClassSummary]:
    """Describe each explained class of the only sample."""
    return [
        {
            "index": one.index,
            "name": one.name if explanation.target_names else str(one.index),
            "probability": None if one.probability is None else round(one.probability, 6),
            "top": _find_highest(explanation, number),
        }
        for number, one in enumerate(explanation.classes())
    ]


def _find_highest(explanation: Explanation, number: int) -> list[dict[str, Any]]:
    """Find the words or patches with the highest scores for a class, counted from 0."""
    if explanation.grid is None:
        words = list(enumerate(explanation.words(0, number)))
        words.sort(key=lambda numbered: -numbered[1][1])
        return [{"word": w, "position": n, "score": score} for n, (w, score) in words[:_TOP]]
    rows, columns = explanation.grid
    scores = explanation.scores[0].reshape(-1, rows * columns)[number]
    highest = scores.topk(min(_TOP, len(scores)))
    return [
        {"row": unit // columns, "column": unit % columns, "score": score}
        for score, unit in zip(highest.values.tolist(), highest.indices.tolist(), strict=True)
    ]


def _write_sentence(explanation: Explanation, classes: Sequence[ClassSummary]) -> str:
    """Write a sentence: each class, its probability and the parts with the highest scores."""
    parts = []
    for number, (one, facts) in enumerate(zip(classes, explanation.classes(), strict=True)):
        decision = one["name"] if facts.probability is None else f"{one['name']} ({facts.percent})"
        if explanation.grid is not None:
            reason = _find_ninth(explanation.scores[0].reshape(-1, *explanation.grid)[number])
        else:
            reason = ", ".join(f"“{top['word']}”" for top in one["top"][:3] if top["score"] > 0)
        parts.append(f"{decision}, most of all because of {reason}" if reason else decision)
    return "; ".join(parts)


def _find_ninth(scores: Tensor) -> str:
    """Name the ninth of the photo with the highest scores; empty if no score is positive."""
    ninths = F.adaptive_avg_pool2d(scores[None].float().clamp(min=0), 3).flatten()
    return _NINTHS[int(ninths.argmax())] if torch.any(ninths > 0) else ""


def build(folder: Path, entries: Sequence[SummaryEntry]) -> Summary:
    """Build the summary of several inputs."""
    return {
        "format": _FORMAT,
        "version": __version__,
        "folder": os.fsencode(folder).decode("utf-8", "replace"),
        "inputs": list(entries),
    }


def to_json(summary: Summary) -> str:
    """Convert a summary to JSON, with letters of every script as they are."""
    return json.dumps(summary, ensure_ascii=False, indent=2)


def read_entries(folder: Path, force: bool) -> list[SummaryEntry]:
    """Read the entries of the summary in a folder; without `force`, refuse another file there."""
    path = folder / _FILE
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
    folder: Path, entries: Sequence[SummaryEntry], earlier: Sequence[SummaryEntry] = ()
) -> None:
    """Write a folder's summary: these entries, and earlier ones of other names."""
    new = {entry["name"] for entry in entries}
    kept = [entry for entry in earlier if entry.get("name") not in new]
    with stage_files(folder) as stage:
        content = to_json(build(folder, [*kept, *entries]))
        (stage / _FILE).write_text(content + "\n", encoding="utf-8")
