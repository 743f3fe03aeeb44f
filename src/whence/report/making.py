"""From inputs to the page, written whole or not at all."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whence import methods
from whence._util.files import exists, write_whole
from whence.benchmark.hashes import versions, weights_hash
from whence.errors import WhenceError
from whence.faithfulness import STEPS
from whence.inputs.sources import Source
from whence.methods.specification import Chosen
from whence.models import LoadedModel
from whence.pipeline import Explained, How, explained
from whence.pipeline.writing import moved_when_whole
from whence.report.entries import Entry, entry_of
from whence.report.page import page


@dataclass(frozen=True)
class Request:
    """What the page is made with, and where it goes.

    Attributes:
        how: What to explain with.
        out: The page's file.
        title: Its heading.
        faithfulness: Whether to measure that.
        force: Whether the page may replace a file.
    """

    how: How
    out: Path
    title: str = "Report"
    faithfulness: bool = True
    force: bool = False


def make(
    request: Request,
    sources: Sequence[Source],
    done: Callable[[Entry], None] = lambda _: None,
) -> list[Entry]:
    """Explain inputs and write the page.

    Args:
        request: How.
        sources: The inputs.
        done: Is told of each input as soon as it is explained.

    Returns:
        What the page tells of each, in the order given.

    Raises:
        WhenceError: No input can be explained. What is wrong with single inputs is told on the
            page.
    """
    request.how.check()
    _check_place(request.out, request.force)
    models = request.how.load(sources)
    names = short_names(sources)
    entries: dict[int, Entry] = {}
    for one in explained(request.how, sources, models):
        entries[one.place] = _entry(request, names[one.place], sources[one.place], one)
        done(entries[one.place])
    ordered = [entries[place] for place in range(len(sources))]
    if all(one.error is not None for one in ordered):
        raise WhenceError(
            f"No input could be explained, so no page is written. {ordered[0].name}: "
            f"{ordered[0].error}"
        )
    content = page(request.title, ordered, facts(request, models))
    write_whole(request.out, content.encode("utf-8", "replace"))
    return ordered


def short_names(sources: Sequence[Source]) -> list[str]:
    """Names without the folder that all files share: a page that is sent tells no one's folders."""
    paths = [Path(os.path.abspath(one.path)) for one in sources if one.path is not None]
    shared = Path(os.path.commonpath([path.parent for path in paths])) if paths else Path()
    return [_short_name(one, shared) for one in sources]


def _short_name(source: Source, shared: Path) -> str:
    if source.path is None:
        return source.title
    path = Path(os.path.abspath(source.path)).relative_to(shared)
    return os.fsencode(path).decode("utf-8", "replace")


def facts(request: Request, models: dict[str, LoadedModel]) -> dict[str, Any]:
    """Settings and versions, so that the page can be made again."""
    how = request.how
    classes: Any = how.classes().get("classes", how.classes().get("target", "the predicted one"))
    told: dict[str, Any] = {
        "models": [
            {
                "name": Path(loaded.name).name if os.path.isabs(loaded.name) else loaded.name,
                "explains": f"{kind}s",
                "classes": loaded.class_count,
                "weights, SHA-256": weights_hash(loaded.model),
            }
            for kind, loaded in models.items()
        ],
        "explained classes": f"the {classes} most probable" if how.top is not None else classes,
        "methods": [
            {"label": one.label, "name": one.name, **_settings(one)} for one in how.methods
        ],
        "versions": versions(),
    }
    if how.precision is not None:
        told["precision"] = how.precision
    if request.faithfulness:
        told["faithfulness"] = {
            "removed": ", ".join(f"{step:.0%}" for step in STEPS),
            "photos": "pixels of the upsampled map, black before normalisation",
            "texts": "words, taken out and tokenised again",
        }
    return told


def _settings(method: Chosen) -> dict[str, Any]:
    """What the method was run with, defaults included."""
    built = methods.build(method.name, method.options)
    rules = {"rules": method.rules} if built.propagates else {}
    return {**rules, **dataclasses.asdict(built)}  # type: ignore[call-overload]


def _entry(request: Request, name: str, source: Source, one: Explained) -> Entry:
    try:
        entry = entry_of(name, source.kind, one, request.faithfulness)
    except WhenceError as error:
        entry = Entry(name, source.kind, error=str(error))
    if entry.error is None or source.path is None:
        return entry
    return dataclasses.replace(entry, error=entry.error.replace(str(source.path), name))


def _check_place(out: Path, force: bool) -> None:
    if out.is_dir():
        raise WhenceError(f"'{out}' is a folder; name the page's file with --out, as report.html.")
    if exists(out) and not force:
        raise WhenceError(
            f"'{out}' exists already. Give --force to write over it, or another name with --out."
        )
    with moved_when_whole(out.parent):
        pass  # so that a folder that cannot be written to is known before the work
