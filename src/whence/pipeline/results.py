"""Explain inputs, write each result to files named after its input, and a summary of all.

The summary has an entry for scripts, in summary.json, and a sentence for people.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from whence._util.cpus import count_cpus, leave_cpus_to_others
from whence._util.files import check_writable, exists, stage_files
from whence.errors import WhenceError
from whence.explanation import Explanation, PairExplanation
from whence.explanation.table import list_highest_units
from whence.inputs.sources import Source
from whence.models import find_device
from whence.pipeline.batches import (
    MANY,
    ExplainedBatch,
    ExplainedInput,
    explain_source_batches,
)
from whence.pipeline.entries import (
    ClassSummary,
    InputResult,
    OutputSettings,
    SummaryEntry,
    WriteJob,
)
from whence.pipeline.settings import ExplainSettings
from whence.pipeline.stored_photos import StoredPhoto
from whence.render.compared import list_text_words, list_texts
from whence.render.sentences import describe_decisions
from whence.version import __version__

if TYPE_CHECKING:
    from whence.pipeline.preparing import PhotoPreparer
    from whence.pipeline.workers import Workers

_FORMAT = "whence summary 1"
_FILE = "summary.json"
_TOP = 5
_MAX_NAME_LENGTH = 60
# With two, a process that draws would take one from the model.
_MIN_CPUS = 3
_MAX_PROCESSES = 24
# Drawing takes several times as long as preparing.
_MAX_PREPARERS = 8
# Inputs that one process draws and writes at a time; sending each by itself takes longer.
_PER_JOB = 4


def explain_to_files(
    settings: ExplainSettings, output: OutputSettings, sources: Sequence[Source]
) -> Generator[InputResult]:
    """Explain all inputs by one method, write files, and yield each result when it is written.

    An input that failed has an error in its entry. The summary is written when the iterator ends or
    is closed.
    """
    settings.check()
    names = choose_names(sources)
    files = [
        _name_files(name, source, output.image_format)
        for name, source in zip(names, sources, strict=True)
    ]
    check_writable(output.folder)
    earlier = _read_entries(output.folder, output.force)
    check_inputs_stay([source.path for source in sources], output.folder, files)
    if not output.force:
        check_absent([output.folder / name for one in files for name in one.values()])
    entries: dict[int, SummaryEntry] = {}
    workers, preparer = _start_processes(settings, sources)  # while the models are loaded
    on_gpu = find_device(settings.device).type != "cpu"
    with leave_cpus_to_others(on_gpu and workers is not None):
        try:
            models = settings.load_models(sources)
            jobs = (
                [_make_job(output, names, sources, files, one) for one in part]
                for found in explain_source_batches(settings, sources, models, preparer)
                for part in _cut(found, 1 if workers is None else _PER_JOB)
            )
            written = ((part, _write_results(part)) for part in jobs)
            for part, done in written if workers is None else workers.run(jobs):
                for job, entry in zip(part, done, strict=True):
                    entries[job.index] = entry
                    yield InputResult(job.index, entry, _drop_photos(job, entry))
        finally:  # also when interrupted, since files of some inputs are written
            if workers is not None:
                for part, done in workers.finish():
                    entries |= {job.index: entry for job, entry in zip(part, done, strict=True)}
            if preparer is not None:
                preparer.close()
            if entries:
                _write_summary(
                    output.folder, [entries[index] for index in sorted(entries)], earlier
                )


def _start_processes(
    settings: ExplainSettings, sources: Sequence[Source]
) -> tuple[Workers[list[WriteJob], list[SummaryEntry]] | None, PhotoPreparer | None]:
    """Start processes that draw and write, and those that prepare photos for a GPU.

    There are none where inputs or CPUs are few. Without a GPU, threads prepare photos.
    """
    cpus = count_cpus()
    if sum(source.kind != "text" for source in sources) < MANY or cpus < _MIN_CPUS:
        return None, None
    # Late: few inputs need none of it.
    from whence.pipeline.preparing import PROCESSORS, PhotoPreparer
    from whence.pipeline.workers import Workers

    # A GPU needs this process and its threads; on a CPU, explaining takes most of the time.
    on_gpu = find_device(settings.device).type != "cpu"
    prepares = on_gpu and sum(source.kind == "image" for source in sources) >= MANY
    count = min(_MAX_PROCESSES, cpus - 2 if on_gpu else cpus // 2)
    ahead = (count + 2 * settings.batch) // _PER_JOB
    get_ready = _get_ready if on_gpu else None
    imports = [PROCESSORS] if prepares else []
    workers = Workers(_write_results, count, ahead, get_ready, imports)
    if prepares:
        with suppress(OSError):  # where no temporary file can be written, threads prepare photos
            return workers, PhotoPreparer(min(_MAX_PREPARERS, cpus // 3))
    return workers, None


def _cut(found: ExplainedBatch | ExplainedInput, most: int) -> Iterator[list[ExplainedInput]]:
    """Cut a batch into parts of at most so many inputs, on the CPU."""
    inputs = iter([found] if isinstance(found, ExplainedInput) else found.move_to_cpu().split())
    yield from iter(lambda: list(islice(inputs, most)), [])


def choose_names(sources: Sequence[Source]) -> list[str]:
    """Choose the names of result files without their suffix: one for each input, all distinct."""
    names: list[str] = []
    taken: set[str] = set()
    for source in sources:
        stem = _name_after(source)
        name, number = stem, 1
        # Some file systems do not distinguish upper case from lower.
        while name.casefold() in taken:
            number += 1
            name = f"{stem}-{number}"
        taken.add(name.casefold())
        names.append(name)
    return names


def _name_after(source: Source) -> str:
    if source.path is not None:
        name = source.path.stem
    elif source.row is not None:
        name = source.row.replace(", row ", "-")
    elif source.text is None:
        name = "stdin"
    else:
        name = "-".join(re.findall(r"\w+", source.text.lower())[:6])
    name = re.sub(r"[^\w.()+ -]+", "_", name).strip(". ")
    # File systems limit names to 255 bytes, and a letter may take four.
    return name[:_MAX_NAME_LENGTH].strip(" -_.") or source.kind


def _name_files(name: str, source: Source, image_format: str) -> dict[str, str]:
    is_figure = source.kind != "text" and image_format != "html"
    display = {"figure": f"{name}.{image_format}"} if is_figure else {"page": f"{name}.html"}
    if is_figure and source.kind == "video":
        display["animation"] = f"{name}.gif"
    return {**display, "explanation": f"{name}.safetensors"}


def check_absent(files: Sequence[Path]) -> None:
    """Refuse to write over files.

    Raises:
        WhenceError: One of them is there.
    """
    present = [file for file in files if exists(file)]
    if present:
        more = f" and {len(present) - 1} more exist" if len(present) > 1 else " exists"
        raise WhenceError(
            f"'{present[0]}'{more} already. Give --force to write over, or another folder with "
            f"--out."
        )


def check_inputs_stay(
    inputs: Sequence[Path | None], folder: Path, files: Sequence[dict[str, str]]
) -> None:
    """Refuse to write a result where an input is, also with --force.

    Raises:
        WhenceError: One of the files is an input.
    """
    named = [path for path in inputs if path is not None]
    places = (os.path.dirname(os.path.abspath(path)) for path in named)
    links = zip(places, (path.name for path in named), strict=True)
    kept = {os.path.join(os.path.realpath(place), name) for place, name in links}
    kept |= {os.path.realpath(path) for path in named}
    place = os.path.realpath(folder)
    for name in (name for one in files for name in one.values()):
        if os.path.join(place, name) in kept:
            raise WhenceError(
                f"A result would be written over the input '{folder / name}'. Give another folder "
                f"with --out, or another --format."
            )


def _make_job(
    output: OutputSettings,
    names: Sequence[str],
    sources: Sequence[Source],
    files: Sequence[dict[str, str]],
    one: ExplainedInput,
) -> WriteJob:
    about = (output, one.index, names[one.index], sources[one.index], files[one.index])
    if one.part is None:
        return WriteJob(*about, one.loaded.title, error=one.error)
    (explanation,) = one.explanations.values()
    return WriteJob(*about, explanation.model, explanation, one.part.notes[0])


def _drop_photos(job: WriteJob, entry: SummaryEntry) -> Explanation | None:
    """The explanation of a job that is done, without its photo: all would fill the memory."""
    if job.explanation is None:
        return None
    for photo in job.explanation.photos or ():
        if isinstance(photo, StoredPhoto):
            photo.discard()
    return None if entry["error"] else replace(job.explanation, photos=None)


def _get_ready() -> None:
    """Do nothing in a process that draws: that it has begun is all."""


def _write_results(jobs: list[WriteJob]) -> list[SummaryEntry]:
    return [_write_result(job) for job in jobs]


def _write_result(job: WriteJob) -> SummaryEntry:
    """Write the files of one input, and describe its result or why it failed."""
    error = job.error
    if job.explanation is not None:
        try:
            _write_files(job.output, job.name, job.files, job.explanation)
        except WhenceError as problem:
            error = str(problem)
        else:
            return _describe_result(job, job.explanation)
    if job.output.force:  # an earlier result of that name is not this input's
        for file in job.files.values():
            with suppress(OSError):
                (job.output.folder / file).unlink()
    return _describe_failure(job, str(error))


def _write_files(
    output: OutputSettings, name: str, files: dict[str, str], explanation: Explanation
) -> None:
    with stage_files(output.folder) as stage:
        explanation.save(stage / files["explanation"])
        if "figure" in files:
            figure = explanation.plot(title=name, outlines=output.outlines)
            figure.save(stage / files["figure"])
            if "animation" in files:
                explanation.save(stage / files["animation"])
        else:
            page = explanation.to_html()  # whose title is the text
            (stage / files["page"]).write_text(page, encoding="utf-8")


def _describe_result(job: WriteJob, explanation: Explanation) -> SummaryEntry:
    """Describe the result of one input."""
    classes = _describe_classes(explanation)
    entry: SummaryEntry = {
        "name": job.name,
        "input": job.source.title,
        "kind": job.source.kind,
        "model": job.model,
        "model_knows": explanation.model_knows,
        "method": explanation.method,
        "class_specific": explanation.class_specific,
        "settings": explanation.settings,
        "details": None if explanation.details is None else explanation.details[0],
        "files": job.files,
        "classes": classes,
        "sentence": describe_decisions(explanation),
        "checks": [asdict(check) for check in explanation.checks],
        "notes": [*job.notes, *explanation.notes],
        "error": None,
    }
    if isinstance(explanation, PairExplanation):
        entry["texts"] = list_texts(explanation, 0)
        for summary, words in zip(classes, list_text_words(explanation, 0), strict=True):
            summary["words"] = words
    return entry


def _describe_failure(job: WriteJob, error: str) -> SummaryEntry:
    """Describe an input that could not be explained."""
    return {
        "name": job.name,
        "input": job.source.title,
        "kind": job.source.kind,
        "model": job.model,
        "files": {},
        "classes": [],
        "notes": [],
        "error": error,
    }


def _describe_classes(explanation: Explanation) -> list[ClassSummary]:
    """Describe each explained class of the only sample."""
    described: list[ClassSummary] = []
    for number, one in enumerate(explanation.classes()):
        summary: ClassSummary = {
            "index": one.index,
            "name": one.name if explanation.target_names else str(one.index),
            "probability": None if one.probability is None else round(one.probability, 6),
            "top": _find_highest(explanation, number),
        }
        if one.area is not None:
            summary["area"] = {"kind": one.area.kind, "bounds": list(one.area.bounds)}
        if len(explanation.grid or ()) == 2 or "time" in explanation.axes:
            summary["regions"] = [
                {"center": region.center, "area": region.area, "evidence": region.evidence}
                for region in explanation.regions(0, number)
            ]
        described.append(summary)
    return described


def _find_highest(explanation: Explanation, number: int) -> list[dict[str, Any]]:
    """Find the words or units with the highest scores for a class, counted from 0."""
    if explanation.grid is None:
        words = list(enumerate(explanation.words(0, number)))
        words.sort(key=lambda numbered: -numbered[1][1])
        return [{"word": w, "position": n, "score": score} for n, (w, score) in words[:_TOP]]
    return list_highest_units(explanation, number, _TOP)


def format_summary(folder: Path, entries: Sequence[SummaryEntry]) -> str:
    """Format the summary of several inputs as JSON; files are relative to the folder."""
    title = os.fsencode(folder).decode("utf-8", "replace")
    summary = {"format": _FORMAT, "version": __version__, "folder": title, "inputs": list(entries)}
    return json.dumps(summary, ensure_ascii=False, indent=2)


def _read_entries(folder: Path, force: bool) -> list[SummaryEntry]:
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
        f"'{path}' exists, and whence did not write it. Give --force to replace it, or another "
        f"folder with --out."
    )


def _write_summary(
    folder: Path, entries: Sequence[SummaryEntry], earlier: Sequence[SummaryEntry]
) -> None:
    """Write a folder's summary: these entries, and earlier ones of other names."""
    new = {entry["name"] for entry in entries}
    kept = [entry for entry in earlier if entry.get("name") not in new]
    with stage_files(folder) as stage:
        content = format_summary(folder, [*kept, *entries])
        (stage / _FILE).write_text(content + "\n", encoding="utf-8")
