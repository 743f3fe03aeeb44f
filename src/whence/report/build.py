"""Explain inputs and write the report's page, whole or not at all."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from whence import methods
from whence._util.files import check_writable, exists, write_atomically
from whence._util.fingerprint import hash_weights, list_versions
from whence.errors import WhenceError
from whence.faithfulness import Faithfulness
from whence.inputs.sources import Kind, Source
from whence.methods import MethodSpecification
from whence.models import LoadedModel
from whence.pipeline import ExplainedInput, ExplainSettings, explain_sources
from whence.report.cores import PHOTOS_AT_ONCE, can_share_cores, map_in_workers, share_cores
from whence.report.entry import Entry, build_entry
from whence.report.measuring import count_measured_at_once, describe_measuring, measure_inputs
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
    entries: dict[int, Entry] = {}
    for index, entry in _build_entries(request, sources, models):
        entries[index] = entry
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
    return settings | (describe_measuring(models.values()) if request.faithfulness else {})


def _list_options(method: MethodSpecification) -> dict[str, object]:
    """The options that the method runs with, defaults included."""
    built = methods.build(method.name, method.options)
    rules = {"rules": method.rules} if built.propagates else {}
    return {**rules, **dataclasses.asdict(built)}  # type: ignore[call-overload]


def _build_entries(
    request: ReportRequest, sources: Sequence[Source], models: dict[Kind, LoadedModel]
) -> Iterator[tuple[int, Entry]]:
    """Explain inputs, and build the entry of each as soon as it is explained, in any order."""
    names, how = shorten_names(sources), request.how
    is_shared = can_share_cores(models.values())
    if is_shared and not how.compile:  # what is compiled is for batches of one size
        how = dataclasses.replace(how, batch=min(how.batch, PHOTOS_AT_ONCE))

    def build(inputs: list[ExplainedInput]) -> list[tuple[int, Entry]]:
        measured = measure_inputs(inputs) if request.faithfulness else {}
        return [
            (at, _build_entry(names[at], sources[at], one, measured.get(at)))
            for one in inputs
            for at in [one.index]
        ]

    with share_cores(is_shared) as workers:
        groups = _group_inputs(explain_sources(how, sources, models))
        for built in map_in_workers(build, groups, workers):
            yield from built


def _group_inputs(inputs: Iterable[ExplainedInput]) -> Iterator[list[ExplainedInput]]:
    """Group inputs that follow each other, of one model, so that together they fill a batch."""
    group: list[ExplainedInput] = []
    for one in inputs:
        if group and group[0].loaded is not one.loaded:
            yield group
            group = []
        group.append(one)
        if len(group) >= count_measured_at_once(one.loaded):
            yield group
            group = []
    if group:
        yield group


def _build_entry(
    name: str, source: Source, one: ExplainedInput, measured: Faithfulness | str | None
) -> Entry:
    try:
        entry = build_entry(name, source.kind, one, measured)
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
