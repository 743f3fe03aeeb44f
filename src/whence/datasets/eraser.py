"""The format eraser: texts with the words that people marked as reasons.

DeYoung et al., "ERASER: a benchmark to evaluate rationalized NLP models", ACL 2020.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from typing_extensions import override

from whence._util.files import is_file, is_folder
from whence.datasets.base import JsonValue, ListedDataset
from whence.datasets.folders import find_first_file, get_size
from whence.datasets.sample import Dataset, Sample
from whence.errors import WhenceError
from whence.inputs.sources import Kind
from whence.inputs.texts import read_text

Annotation = dict[str, Any]
_SPLITS = ("test", "val", "train")


def has_layout(path: Path) -> bool:
    """Whether the path has documents, and annotations of a split."""
    folder = path.parent if path.suffix == ".jsonl" and is_file(path) else path
    documents = is_folder(folder / "docs") or is_file(folder / "docs.jsonl")
    return documents and any(is_file(folder / f"{split}.jsonl") for split in _SPLITS)


def open_dataset(path: Path, split: str | None) -> Dataset:
    """Open the annotated texts of a split; without one, of the first of test, val, train.

    Raises:
        WhenceError: There is no such split, or it holds no annotation.
    """
    if path.suffix == ".jsonl" and is_file(path):
        path, split = path.parent, split or path.stem
    there = [name for name in _SPLITS if is_file(path / f"{name}.jsonl")]
    chosen = split if split is not None else (there[0] if there else "test")
    file = path / f"{chosen}.jsonl"
    if not is_file(file):
        raise WhenceError(f"'{path}' has no '{file.name}'; it has: {', '.join(there) or 'none'}.")
    try:
        lines = file.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise WhenceError(f"'{file}' cannot be read as UTF-8.") from error
    records: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        if line.strip():
            records[_make_distinct(_name_annotation(line, number), records)] = line
    if not records:
        raise WhenceError(f"'{file}' is empty.")
    return EraserDataset(f"eraser-{path.absolute().name}-{chosen}", records, path)


class EraserDataset(ListedDataset[str]):
    """Annotated texts by the ids of annotations; a record is a line of JSON."""

    kind: Kind = "text"

    def __init__(self, name: str, records: dict[str, str], folder: Path) -> None:
        super().__init__(name, records)
        self._documents = _Documents(folder)

    @override
    def _read_sample(self, name: str, record: str) -> Sample:
        annotation = _parse_annotation(record)
        if annotation is None:
            raise WhenceError(f"'{name}' is not an annotation in JSON with an annotation_id.")
        spans = list(_find_spans(annotation, name))
        words: list[str] = []
        starts: dict[str, int] = {}
        lengths: dict[str, int] = {}
        for document in self._documents.list_names(annotation, [one for one, _, _ in spans]):
            read = self._documents.read_words(document)
            starts[document], lengths[document] = len(words), len(read)
            words += read
        if not words:
            raise WhenceError(f"The documents of '{name}' are empty.")
        evidence = set()
        for document, start, end in spans:
            if not 0 <= start < end <= lengths[document]:
                raise WhenceError(
                    f"Evidence of '{name}' counts words {start} to {end} of '{document}', which "
                    f"has {lengths[document]}."
                )
            evidence.add((starts[document] + start, starts[document] + end))
        return Sample(
            name,
            " ".join(words),
            _get_label(annotation),
            words=tuple(words),
            evidence=tuple(sorted(evidence)),
        )

    @override
    def _list_facts(self, record: str) -> list[JsonValue]:
        annotation = _parse_annotation(record)
        sizes: list[int | None] = []
        if annotation is not None:
            try:
                spans = [document for document, _, _ in _find_spans(annotation, "")]
                sizes = [
                    self._documents.get_size(one)
                    for one in self._documents.list_names(annotation, spans)
                ]
            except WhenceError:
                sizes = [None]
        # With the whole line, since evidence that moves by a word changes no size.
        return [hashlib.sha256(record.encode("utf-8", "replace")).hexdigest(), *sizes]


class _Documents:
    """The documents of a task: a file each in ``docs``, or lines of ``docs.jsonl``."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "docs"
        self._file = None if is_folder(self._folder) else folder / "docs.jsonl"
        self._lines: dict[str, str] | None = None

    def list_names(self, annotation: Annotation, in_evidence: list[str]) -> list[str]:
        """List the names of an annotation's documents, in order.

        First the listed ones; if none is listed, the premise and the hypothesis of its id; then
        those of its evidence; and if there are none of these, the one that its id names.
        """
        listed = annotation.get("docids")
        identity = str(annotation["annotation_id"])
        if isinstance(listed, list) and listed:
            found = [str(document) for document in listed]
        else:
            found = [f"{identity}_premise", f"{identity}_hypothesis"]
            found = found if all(map(self.has_document, found)) else []
        found = list(dict.fromkeys(found + in_evidence))
        # MultiRC appends the numbers of question and answer to the document: file.txt:0:1.
        return found or [identity if self.has_document(identity) else identity.split(":")[0]]

    def read_words(self, document: str) -> list[str]:
        """Read the words that evidence counts: between spaces and line ends, not other blanks."""
        if self._file is not None:
            if document not in self._load(self._file):
                raise WhenceError(f"The document '{document}' is not in '{self._file}'.")
            text = self._load(self._file)[document]
        else:
            text = read_text(self._find_path(document) or self._folder / document)
        lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
        return [word for line in lines for word in line.strip().split(" ") if word]

    def has_document(self, document: str) -> bool:
        """Whether there is such a document."""
        if self._file is not None:
            return document in self._load(self._file)
        return self._find_path(document) is not None

    def get_size(self, document: str) -> int | None:
        """Return a document's size: in bytes, or of `docs.jsonl` in letters."""
        if self._file is not None:
            return len(self._load(self._file).get(document, ""))
        return get_size(self._find_path(document))

    def _find_path(self, document: str) -> Path | None:
        parts = PurePosixPath(document)
        if parts.is_absolute() or ".." in parts.parts or not parts.parts or "\\" in document:
            raise WhenceError(f"The document '{document}' would lie outside of the dataset.")
        return find_first_file([self._folder / parts, self._folder / f"{parts}.txt"])

    def _load(self, file: Path) -> dict[str, str]:
        if self._lines is None:
            self._lines = dict(_read_documents(file))
        return self._lines


def _read_documents(file: Path) -> Iterator[tuple[str, str]]:
    try:
        with file.open(encoding="utf-8", newline="\n") as lines:
            for line in filter(str.strip, lines):
                one = json.loads(line)
                yield str(one["docid"]), str(one["document"])
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise WhenceError(f"'{file}' is not a file of documents as ERASER has them.") from error


def _parse_annotation(line: str) -> Annotation | None:
    try:
        annotation = json.loads(line)
    except (ValueError, RecursionError):
        return None
    valid = isinstance(annotation, dict) and annotation.get("annotation_id") not in (None, "")
    return annotation if valid else None


def _name_annotation(line: str, number: int) -> str:
    annotation = _parse_annotation(line)
    if annotation is None:
        return f"line {number}"
    # JSON can spell a lone surrogate, which no file takes.
    return str(annotation["annotation_id"]).encode("utf-8", "backslashreplace").decode()


def _make_distinct(name: str, taken: dict[str, str]) -> str:
    candidate, number = name, 1
    while candidate in taken:
        number += 1
        candidate = f"{name}-{number}"
    return candidate


def _get_label(annotation: Annotation) -> str | None:
    label = annotation.get("classification")
    return None if label is None else str(label)


def _find_spans(annotation: Annotation, name: str) -> Iterator[tuple[str, int, int]]:
    """Find the document, start and end of all evidence; its groups do not matter here."""
    try:
        for group in annotation.get("evidences") or ():
            for one in [group] if isinstance(group, dict) else group:
                document = str(one.get("docid") or annotation["annotation_id"])
                start, end = int(one["start_token"]), int(one["end_token"])
                # The published files hold a few spans of no words.
                if start != end:
                    yield document, start, end
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise WhenceError(f"The evidence of '{name}' is not as ERASER has it.") from error
