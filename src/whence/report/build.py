"""Explain inputs and write the report's page, whole or not at all."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from whence import methods
from whence._util.files import check_writable, exists, write_atomically
from whence._util.fingerprint import hash_weights, list_versions
from whence.errors import WhenceError
from whence.faithfulness import STEPS
from whence.inputs.sources import Kind, Source
from whence.methods import MethodSpecification
from whence.models import LoadedModel
from whence.pipeline import ExplainedInput, ExplainSettings, explain_sources
from whence.report.entry import Entry, build_entry
from whence.report.page import render_page


@dataclass(frozen=True)
class ReportRequest:
    """How the inputs are explained, and where the page goes."""

    how: ExplainSettings
    out: Path  # the page's file
    title: str = "Report"
    faithfulness: bool = True  # whether to measure it
    force: bool = False  # whether the page may replace a file


def build_report(
    request: ReportRequest,
    sources: Sequence[Source],
    on_entry: Callable[[Entry], None] = lambda _: None,
) -> list[Entry]:
    """Explain inputs and write the page; calls `on_entry` as soon as an input is explained.

    Returns:
        The results of each, in the order given.

    Raises:
        WhenceError: No input can be explained. The page says what is wrong with single inputs.
    """
    request.how.check()
    check_place(request.out, request.force)
    models = request.how.load_models(sources)
    for loaded in models.values():
        loaded.check_is_photo_or_text("The report")
    names = shorten_names(sources)
    entries: dict[int, Entry] = {}
    for one in explain_sources(request.how, sources, models):
        entry = _build_entry(request, names[one.index], sources[one.index], one)
        entries[one.index] = entry
        on_entry(entry)
    ordered = [entries[place] for place in range(len(sources))]
    if all(one.error is not None for one in ordered):
        why = f"{ordered[0].name}: {ordered[0].error}"
        raise WhenceError(f"No input could be explained, so no page is written. {why}")
    page = render_page(request.title, ordered, list_settings(request, models))
    write_atomically(request.out, page.encode("utf-8", "replace"))
    return ordered


def shorten_names(sources: Sequence[Source]) -> list[str]:
    """Names of inputs without the folder that all files share, so that the page names no folder."""
    paths = [Path(os.path.abspath(one.path)) for one in sources if one.path is not None]
    shared = Path(os.path.commonpath([path.parent for path in paths])) if paths else Path()
    return [_shorten_name(one, shared) for one in sources]


def list_settings(request: ReportRequest, models: Mapping[Kind, LoadedModel]) -> dict[str, object]:
    """Settings and versions, so that the page can be made again."""
    how = request.how
    target = how.target_arguments()
    classes = target.get("classes", target.get("target", "the predicted one"))
    settings: dict[str, object] = {
        "models": [
            {
                "name": Path(loaded.name).name if os.path.isabs(loaded.name) else loaded.name,
                "explains": f"{kind}s",
                **({"knows": loaded.knows} if loaded.knows else {}),
                "classes": loaded.class_count,
                "weights, SHA-256": hash_weights(loaded.model),
            }
            for kind, loaded in models.items()
        ],
        "explained classes": f"the {classes} most probable" if how.top is not None else classes,
        "methods": [
            {"label": one.label, "name": one.name, **_list_options(one)} for one in how.methods
        ],
        "versions": list_versions(),
    }
    if how.precision is not None:
        settings["precision"] = how.precision
    return settings | (describe_measuring() if request.faithfulness else {})


def describe_measuring() -> dict[str, object]:
    """How faithfulness is measured, for the settings at the end of the page."""
    return {
        "faithfulness": {
            "deleted": ", ".join(f"{step:.0%}" for step in STEPS),
            "photos": "pixels of the upsampled map, black before normalisation",
            "texts": "words, deleted and the rest tokenised again",
        }
    }


def _list_options(method: MethodSpecification) -> dict[str, object]:
    """The options that the method runs with, defaults included."""
    built = methods.build(method.name, method.options)
    rules = {"rules": method.rules} if built.propagates else {}
    return {**rules, **dataclasses.asdict(built)}  # type: ignore[call-overload]


def _build_entry(request: ReportRequest, name: str, source: Source, one: ExplainedInput) -> Entry:
    try:
        entry = build_entry(name, source.kind, one, request.faithfulness)
    except WhenceError as error:
        entry = Entry(name, source.kind, error=str(error))
    if entry.error is None or source.path is None:
        return entry
    return dataclasses.replace(entry, error=entry.error.replace(str(source.path), name))


def _shorten_name(source: Source, shared: Path) -> str:
    if source.path is None:
        return source.title
    path = Path(os.path.abspath(source.path)).relative_to(shared)
    return os.fsencode(path).decode("utf-8", "replace")


def check_place(out: Path, force: bool) -> None:
    """Refuse a place where the page cannot be written, before any work."""
    if out.is_dir():
        raise WhenceError(f"'{out}' is a folder; name the page's file with --out, as report.html.")
    if exists(out) and not force:
        raise WhenceError(
            f"'{out}' exists already. Give --force to write over it, or another name with --out."
        )
    check_writable(out.parent)
