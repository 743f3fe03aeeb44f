"""Explaining many inputs, with a file for each part of each result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whence import render
from whence.errors import WhenceError
from whence.explanation import Explanation
from whence.inputs.sources import Source
from whence.pipeline import summary
from whence.pipeline.explain import Explained, How, explained
from whence.pipeline.naming import Planned, check_free, plan
from whence.pipeline.writing import moved_when_whole


@dataclass(frozen=True)
class Request:
    """What to explain with, and where to put it.

    Attributes:
        how: What to explain with: one method.
        out: The folder for results.
        image_format: ``"png"`` or ``"svg"``.
        force: Whether results may replace files.
    """

    how: How
    out: Path
    image_format: str = "png"
    force: bool = False


@dataclass(frozen=True)
class Result:
    """What became of one input.

    Attributes:
        entry: Its entry in the summary.
        explanation: The explanation; None if it failed.
    """

    entry: dict[str, Any]
    explanation: Explanation | None = None


def run(
    request: Request,
    sources: Sequence[Source],
    report: Callable[[Result], None] = lambda _: None,
) -> dict[str, Any]:
    """Explain all inputs, and write a file for each part of each result.

    Args:
        request: How.
        sources: What.
        report: Is told of each input as soon as it is done.

    Returns:
        The summary, inputs in the order they were given in.

    Raises:
        WhenceError: The request cannot be met for any input. What is wrong with single inputs is
            in the summary.
    """
    request.how.check()
    planned = plan(sources, request.image_format)
    with moved_when_whole(request.out):
        pass  # so that a folder that cannot be written to is known before the work
    earlier = summary.earlier_entries(request.out, request.force)
    if not request.force:
        check_free(planned, request.out)
    models = request.how.load(sources)
    entries: dict[str, dict[str, Any]] = {}
    try:
        for one in explained(request.how, sources, models):
            result = _result(request, planned[one.place], one)
            entries[result.entry["name"]] = result.entry
            report(result)
    finally:  # also when interrupted: what is in the folder is told
        ordered = [entries[one.name] for one in planned if one.name in entries]
        if ordered:
            summary.write(request.out, ordered, earlier)
    return summary.document(request.out, ordered)


def _result(request: Request, planned: Planned, one: Explained) -> Result:
    if one.prepared is None:
        return _failed(request, planned, one, str(one.error))
    (explanation,) = one.explanations.values()
    try:
        _write(request.out, planned, explanation, one.prepared.shown[0])
    except WhenceError as error:
        return _failed(request, planned, one, str(error))
    entry = summary.found(planned, one.loaded.name, explanation, one.prepared.notes[0])
    return Result(entry, explanation)


def _write(out: Path, planned: Planned, explanation: Explanation, shown: Any) -> None:
    with moved_when_whole(out) as folder:
        explanation.save(folder / planned.files["explanation"])
        if "figure" in planned.files:
            figure = render.draw_figure(shown, explanation, title=planned.name)
            figure.save(folder / planned.files["figure"])
        else:
            page = render.format_text_page(explanation, title=planned.name)
            (folder / planned.files["page"]).write_text(page, encoding="utf-8")


def _failed(request: Request, planned: Planned, one: Explained, error: str) -> Result:
    if request.force:  # an earlier result of that name is not this input's
        for file in planned.files.values():
            (request.out / file).unlink(missing_ok=True)
    return Result(summary.failed(planned, one.loaded.name, error))
