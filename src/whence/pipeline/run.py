"""Explain inputs, write each result to files named after its input, and a summary of all."""

from __future__ import annotations

import re
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from whence import render
from whence._util.files import check_writable, exists, stage_files
from whence.errors import WhenceError
from whence.explanation import Explanation
from whence.inputs.sources import Source
from whence.pipeline import summary
from whence.pipeline.explain import ExplainedInput, ExplainSettings, explain_sources
from whence.pipeline.summary import SummaryEntry

_MAX_NAME_LENGTH = 60


@dataclass(frozen=True)
class OutputSettings:
    """The folder and the form of result files."""

    folder: Path
    image_format: str = "png"  # or "svg"
    force: bool = False  # whether results may replace files


@dataclass(frozen=True)
class InputResult:
    """The result of one input, whose files are written."""

    index: int  # which of the inputs it is, counted from 0
    entry: SummaryEntry
    explanation: Explanation | None = None  # None if it failed


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
    earlier = summary.read_entries(output.folder, output.force)
    if not output.force:
        _check_absent([output.folder / name for one in files for name in one.values()])
    models = settings.load_models(sources)
    entries: dict[int, SummaryEntry] = {}
    try:
        for one in explain_sources(settings, sources, models):
            index = one.index
            result = _write_result(output, names[index], sources[index], files[index], one)
            entries[index] = result.entry
            yield result
    finally:  # also when interrupted, since files of some inputs are written
        if entries:
            summary.write(output.folder, [entries[index] for index in sorted(entries)], earlier)


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
    is_image = source.kind == "image"
    display = {"figure": f"{name}.{image_format}"} if is_image else {"page": f"{name}.html"}
    return {**display, "explanation": f"{name}.safetensors"}


def _check_absent(files: Sequence[Path]) -> None:
    present = [file for file in files if exists(file)]
    if present:
        more = f" and {len(present) - 1} more exist" if len(present) > 1 else " exists"
        raise WhenceError(
            f"'{present[0]}'{more} already. Give --force to write over, or another folder with "
            f"--out."
        )


def _write_result(
    output: OutputSettings, name: str, source: Source, files: dict[str, str], one: ExplainedInput
) -> InputResult:
    error, model = one.error, one.loaded.name
    if one.prepared is not None:
        (explanation,) = one.explanations.values()
        try:
            _write_files(output.folder, name, files, explanation, one.prepared.contents[0])
        except WhenceError as problem:
            error = str(problem)
        else:
            notes = one.prepared.notes[0]
            entry = summary.describe_result(name, source, model, files, explanation, notes)
            return InputResult(one.index, entry, explanation)
    if output.force:  # an earlier result of that name is not this input's
        for file in files.values():
            (output.folder / file).unlink(missing_ok=True)
    return InputResult(one.index, summary.describe_failure(name, source, model, str(error)))


def _write_files(
    folder: Path, name: str, files: dict[str, str], explanation: Explanation, content: object
) -> None:
    with stage_files(folder) as stage:
        explanation.save(stage / files["explanation"])
        if isinstance(content, Image.Image):
            render.draw_figure(content, explanation, title=name).save(stage / files["figure"])
        else:
            page = render.format_text_page(explanation, title=name)
            (stage / files["page"]).write_text(page, encoding="utf-8")
