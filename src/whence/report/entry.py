"""The results of one input, in the form in which the report shows them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from markupsafe import Markup
from PIL import Image

from whence.explanation import ExplainedClass, Explanation
from whence.faithfulness import STEPS, Faithfulness
from whence.inputs.sources import Kind
from whence.pipeline import ExplainedInput
from whence.render.sentences import describe_evidence, name_model
from whence.render.strengths import list_strengths
from whence.render.templates import render_macro
from whence.render.words import list_words
from whence.report.images import bound_aspect_ratio, encode_map, encode_photo


@dataclass(frozen=True)
class DeletionCurves:
    """How faithful a map is: `whence.faithfulness.MethodCurves` without the tensors."""

    score: float  # the faithfulness
    most: tuple[float, ...]  # probabilities as the most relevant units are deleted
    least: tuple[float, ...]  # probabilities as the least relevant units are deleted

    def format_points(self, curve: Sequence[float]) -> str:
        """The points of a curve for an SVG that is 90 wide and 100 high."""
        pairs = zip(STEPS, curve, strict=True)
        return " ".join(f"{100 * step:.0f},{100 * (1 - value):.0f}" for step, value in pairs)


@dataclass(frozen=True)
class EntryResult:
    """The scores of one method for one class."""

    method: str  # its label
    explained: ExplainedClass
    shown: str | Markup  # the map as a data URI, or coloured words as HTML
    curves: DeletionCurves | None  # None if not measured
    strength: float = 1.0  # of a map's colours: less for a class that the model doubts
    evidence: str = ""  # where the evidence is, in a sentence; empty if that is not clear

    @property
    def score(self) -> float | None:
        """The faithfulness."""
        return None if self.curves is None else self.curves.score


@dataclass(frozen=True)
class Entry:
    """One input of the report."""

    name: str
    kind: Kind
    predicted: str = ""  # the class that the model predicts; empty if that is not known
    results: tuple[EntryResult, ...] = ()  # for each class and method
    photo: str = ""  # a data URI; empty for a text
    aspect_ratio: float = 1.0  # the photo's width divided by its height
    is_aligned: bool = True  # whether maps belong on the photo: it is what the model saw
    model: str = ""  # its name and what it knows, in a sentence
    notes: tuple[str, ...] = ()
    error: str | None = None  # why it could not be explained

    @property
    def first_results(self) -> tuple[EntryResult, ...]:
        """The results of all methods for the class shown first."""
        return self.results[: len({result.method for result in self.results})]


def build_entry(
    name: str, kind: Kind, explained: ExplainedInput, measured: Faithfulness | str | None
) -> Entry:
    """Collect the results of an input, or the reason why there are none.

    Args:
        name: The name that is shown.
        kind: Of the input.
        explained: Its explanations.
        measured: Their faithfulness, or why it could not be measured; None if it was not asked for.
    """
    if explained.prepared is None:
        return Entry(name, kind, error=explained.error)
    explanations, notes = explained.explanations, [*explained.prepared.notes[0]]
    notes += [note for one in explanations.values() for note in one.notes]
    if isinstance(measured, str):  # the explanation is there all the same
        notes.append(f"faithfulness was not measured: {measured}")
        measured = None
    shown = explained.prepared.photos[0].crop if explained.prepared.photos else None
    first = next(iter(explanations.values()))
    predicted = name_prediction(first, explained.loaded.class_names)
    return collect_entry(name, kind, explanations, measured, predicted, notes, shown)


def collect_entry(
    name: str,
    kind: Kind,
    explanations: Mapping[str, Explanation],
    measured: Faithfulness | None,
    predicted: str,
    notes: Sequence[str],
    shown: Image.Image | None,
    is_aligned: bool = True,
) -> Entry:
    """Collect explanations of an input, by the labels of their methods, in the form to show."""
    return Entry(
        name,
        kind,
        predicted=predicted,
        results=tuple(_list_results(explanations, measured)),
        photo=encode_photo(shown) if shown else "",
        aspect_ratio=bound_aspect_ratio(shown) if shown else 1.0,
        is_aligned=is_aligned,
        model=name_model(next(iter(explanations.values()))),
        notes=tuple(notes),
    )


def group_scores(entries: Sequence[Entry]) -> dict[str, list[float]]:
    """For each method its faithfulness for the first class of every input that has all scores."""
    groups: dict[str, list[float]] = {}
    for entry in entries:
        scores = {one.method: one.score for one in entry.first_results if one.score is not None}
        if len(scores) == len(entry.first_results):
            for method, score in scores.items():
                groups.setdefault(method, []).append(score)
    return groups


def _list_results(
    explanations: Mapping[str, Explanation], measured: Faithfulness | None
) -> list[EntryResult]:
    """Methods within classes, so that the maps of a class stand side by side."""
    classes = {label: one.classes() for label, one in explanations.items()}
    strengths = list_strengths(next(iter(explanations.values())))
    results = []
    for at in range(len(next(iter(classes.values())))):
        for label, explanation in explanations.items():
            one = classes[label][at]
            curves = None
            if measured is not None:
                all_curves = measured.get(label, one.index)
                curves = DeletionCurves(all_curves.score, all_curves.most, all_curves.least)
            shown = _show_scores(explanation, at, one)
            evidence = describe_evidence(explanation, 0, at)
            results.append(EntryResult(label, one, shown, curves, strengths[at], evidence))
    return results


def _show_scores(explanation: Explanation, at: int, explained: ExplainedClass) -> str | Markup:
    if explanation.picture_grid is None:
        words = list_words(explanation, 0, at)
        return render_macro("render/templates/words.html.j2", "spans", words)
    return encode_map(explained.scores.reshape(explanation.picture_grid))


def name_prediction(explanation: Explanation, names: Mapping[int, str]) -> str:
    """Name the class that the model predicts for the first sample."""
    index = int(torch.argmax(explanation.logits[0]))
    return names.get(index, f"class {index}")
