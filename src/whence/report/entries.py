"""What the page tells of one input."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from whence.errors import WhenceError
from whence.explanation import ExplainedClass, Explanation
from whence.faithfulness import Curves, Faithfulness, measure
from whence.inputs.sources import Kind
from whence.pipeline import Explained
from whence.render.templates import render_macro
from whence.render.words import list_words
from whence.report.pictures import map_address, photo_address, proportion


@dataclass(frozen=True)
class Judged:
    """How faithful a map is: `whence.faithfulness.Curves` without what would fill the memory.

    Attributes:
        score: The faithfulness.
        most: Probabilities as the most relevant are removed.
        least: Probabilities as the least relevant are removed.
    """

    score: float
    most: tuple[float, ...]
    least: tuple[float, ...]


@dataclass(frozen=True)
class Cell:
    """What one method says of one class.

    Attributes:
        method: The method's label.
        found: The class.
        shown: The map, as an address that holds it, or coloured words, as HTML.
        judged: How faithful it is; None if that was not measured.
    """

    method: str
    found: ExplainedClass
    shown: str
    judged: Judged | None

    @property
    def score(self) -> float | None:
        """The faithfulness."""
        return None if self.judged is None else self.judged.score


@dataclass(frozen=True)
class Entry:
    """One input.

    Attributes:
        name: What to call it.
        kind: A photo or a text.
        predicted: The class that the model predicts, as it is shown; empty if it failed.
        cells: For each class and method.
        photo: The photo, as an address that holds it; empty for a text.
        proportion: The photo's width divided by its height.
        notes: What its owner should know.
        error: Why it could not be explained.
    """

    name: str
    kind: Kind
    predicted: str = ""
    cells: tuple[Cell, ...] = ()
    photo: str = ""
    proportion: float = 1.0
    notes: tuple[str, ...] = ()
    error: str | None = None


def entry_of(name: str, kind: Kind, explained: Explained, judged: bool) -> Entry:
    """The entry of an input.

    Args:
        name: What to call it.
        kind: Of the input.
        explained: What became of it.
        judged: Whether to measure faithfulness.
    """
    if explained.prepared is None:
        return Entry(name, kind, error=explained.error)
    explanations = explained.explanations
    first = next(iter(explanations.values()))
    notes = [
        *explained.prepared.notes[0],
        *filter(None, (one.class_note for one in explanations.values())),
    ]
    found: Faithfulness | None = None
    if judged:
        try:
            found = measure(explained.loaded, explained.prepared, explanations, draws=0)
        except WhenceError as error:  # the explanation is there all the same
            notes.append(f"faithfulness was not measured: {str(error).rstrip('.')}")
    shown = explained.prepared.shown[0]
    return Entry(
        name,
        kind,
        predicted=_predicted(first, explained.loaded.class_names),
        cells=_cells(explanations, found),
        photo=photo_address(shown) if kind == "image" else "",
        proportion=proportion(shown) if kind == "image" else 1.0,
        notes=tuple(notes),
    )


def _cells(explanations: Mapping[str, Explanation], found: Faithfulness | None) -> tuple[Cell, ...]:
    """Methods within classes, so that the maps of a class stand side by side."""
    by_method = {label: one.classes() for label, one in explanations.items()}
    cells = []
    for at in range(len(next(iter(by_method.values())))):
        for label, one in explanations.items():
            target = int(one.target[0].reshape(-1)[at])
            of_class = by_method[label][at]
            judged = None if found is None else _judged(found.of(label, target))
            cells.append(Cell(label, of_class, _shown(one, at, of_class), judged))
    return tuple(cells)


def _judged(curves: Curves) -> Judged:
    return Judged(curves.score, curves.most, curves.least)


def _shown(explanation: Explanation, at: int, of_class: ExplainedClass) -> str:
    if explanation.grid is None:
        return str(
            render_macro("render/templates/words.html.j2", "spans", list_words(explanation, 0, at))
        )
    return map_address(of_class.scores.reshape(explanation.grid))


def _predicted(explanation: Explanation, names: Mapping[int, str]) -> str:
    index = int(torch.argmax(explanation.logits[0]))
    return names.get(index, f"class {index}")


def scores_by_method(entries: Sequence[Entry]) -> dict[str, list[float]]:
    """For each method its faithfulness for the first class of every input that has all scores."""
    found: dict[str, list[float]] = {}
    for entry in entries:
        first = entry.cells[: len({cell.method for cell in entry.cells})]
        scores: list[Any] = [cell.score for cell in first]
        if None not in scores:
            for cell in first:
                found.setdefault(cell.method, []).append(float(cell.score or 0))
    return found
