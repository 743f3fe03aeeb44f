"""Write the report's page from the stored scores of a run over many inputs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from whence._util.files import write_atomically
from whence._util.progress import bar
from whence._util.text import first_line
from whence.distributed import ResultFolder
from whence.distributed.restoring import (
    RestoredInput,
    load_model_again,
    restore_inputs,
)
from whence.distributed.sampling import DrawnRows, draw_rows
from whence.errors import WhenceError
from whence.faithfulness import Faithfulness
from whence.inputs.sources import Kind
from whence.models import LoadedModel
from whence.pipeline import ExplainSettings
from whence.report.build import check_place
from whence.report.cores import can_share_cores, map_in_workers, share_cores
from whence.report.entry import Entry, collect_entry, name_prediction
from whence.report.measuring import describe_measuring, measure_one
from whence.report.page import RunOverview, render_page
from whence.targets import find_class_index

DEFAULT_LIMIT = 200
# More classes or errors are not listed.
_LISTED = 20


@dataclass(frozen=True)
class StoredReportRequest:
    """Which result goes on the page, and where the page goes."""

    folder: ResultFolder
    out: Path  # the page's file
    title: str = "Report"
    faithfulness: bool = True  # whether to measure it
    force: bool = False  # whether the page may replace a file
    limit: int = DEFAULT_LIMIT  # how many inputs are shown, at most
    model: str | None = None  # where the model is now, if not where it was
    weights: Path | None = None
    device: str | None = None


@dataclass(frozen=True)
class StoredReport:
    """What is on the page, and what all rows of the result say."""

    entries: list[Entry]
    drawn: DrawnRows
    problem: str = ""  # why the model could not be used, if so


def build_stored_report(request: StoredReportRequest) -> StoredReport:
    """Write the page of a result; nothing is explained again.

    Raises:
        WhenceError: The folder holds no result or nothing that was explained, or the page cannot be
            written.
    """
    folder = request.folder
    kind = folder.description.kind
    check_place(request.out, request.force)
    drawn = draw_rows(folder, request.limit)
    if not drawn.rows:
        failed = f": {drawn.failures[0]['error']}" if drawn.failures else "."
        raise WhenceError(f"'{folder.address}' holds no input that was explained{failed}")
    problem, loaded = "", None
    try:
        loaded = load_model_again(folder, request.model, request.weights, request.device)
    except WhenceError as error:
        if any(one is not None for one in (request.model, request.weights, request.device)):
            raise  # what was asked for is wrong
        problem = first_line(error)
    builder = _EntryBuilder(loaded, folder.settings.explain, request.faithfulness)
    entries: dict[str, Entry] = {}
    is_shared = loaded is not None and can_share_cores([loaded])
    with bar("Reading results", len(drawn.rows)) as advance, share_cores(is_shared) as workers:
        restored = restore_inputs(folder, drawn.rows, loaded)
        for entry in map_in_workers(builder.build, restored, workers):
            entries[entry.name] = entry
            advance(1)
    ordered = [entries[name] for name in sorted(entries)]
    ordered += [Entry(one["id"], kind, error=one["error"]) for one in drawn.failures]
    overview = _summarize(folder, drawn, problem)
    facts = _list_settings(request, drawn, loaded)
    page = render_page(request.title, ordered, facts, overview)
    write_atomically(request.out, page.encode("utf-8", "replace"))
    return StoredReport(ordered, drawn, problem)


@dataclass(frozen=True)
class _EntryBuilder:
    """Builds the entries of restored inputs."""

    loaded: LoadedModel | None
    how: ExplainSettings
    faithfulness: bool

    def build(self, restored: RestoredInput) -> Entry:
        """Build the entry of one input, as far as it can be shown."""
        explanation, notes = restored.explanation, [*restored.notes]
        measured = None
        if self.faithfulness and restored.prepared is not None:
            try:
                measured = self._measure(restored)
            except WhenceError as error:  # the explanation is there all the same
                notes.append(f"faithfulness was not measured: {first_line(error)}")
        predicted = "" if self.how.targets else explanation.classes()[0].name
        if explanation.logits.numel() and self.loaded is not None:
            predicted = name_prediction(explanation, self.loaded.class_names)
        prepared, content = restored.prepared, restored.content
        shown = content if isinstance(content, Image.Image) else None
        if prepared is not None and prepared.photos:
            shown = prepared.photos[0].crop
        kind: Kind = "text" if explanation.picture_grid is None else "image"
        return collect_entry(
            restored.id,
            kind,
            {self.how.methods[0].label: explanation},
            measured,
            predicted,
            notes,
            shown,
            is_aligned=prepared is not None,
        )

    def _measure(self, restored: RestoredInput) -> Faithfulness:
        assert restored.prepared is not None
        assert self.loaded is not None
        if not restored.explanation.logits.numel():
            raise WhenceError("The model has an output for each token, and no classes.")
        against = None
        if self.how.against is not None:
            names, count = self.loaded.class_names, self.loaded.class_count
            against = find_class_index(self.how.against, names, count)
        explanations = {self.how.methods[0].label: restored.explanation}
        return measure_one(self.loaded, restored.prepared, explanations, against)


def _summarize(folder: ResultFolder, drawn: DrawnRows, problem: str) -> RunOverview:
    return RunOverview(
        explained=drawn.explained,
        failed=drawn.failed,
        shown=len(drawn.rows),
        listed=len(drawn.failures),
        is_finished=folder.run.get("state") == "finished",
        has_model=not problem,
        classes=[
            (name, one.inputs, one.probability)
            for name, one in list(drawn.classes.items())[:_LISTED]
        ],
        more_classes=max(0, len(drawn.classes) - _LISTED),
        errors=list(drawn.errors.items())[:_LISTED],
        more_errors=max(0, len(drawn.errors) - _LISTED),
    )


def _list_settings(
    request: StoredReportRequest, drawn: DrawnRows, loaded: LoadedModel | None
) -> dict[str, object]:
    """How the result was made, and what the page shows of it."""
    run: dict[str, Any] = request.folder.run
    described = request.folder.description
    facts: dict[str, object] = {
        "model": described.facts.get("model"),
        "fingerprint, SHA-256": described.fingerprint,
        "made with": described.depends_on,
        "versions": run.get("versions"),
        "shown": {
            "inputs": len(drawn.rows),
            "of": drawn.explained,
            "drawn": "those whose ids have the smallest hashes (BLAKE2b, key 0)",
        },
    }
    if loaded is None or not request.faithfulness:
        return facts
    return facts | describe_measuring([loaded])
