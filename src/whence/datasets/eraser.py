"""Read ERASER: texts with the words that people marked as reasons for the label.

DeYoung et al., "ERASER: a benchmark to evaluate rationalized NLP models", ACL 2020.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Container, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

from whence._util.files import is_file, is_folder
from whence.datasets.base import Dataset, Sample
from whence.datasets.folders import find_first_file, get_size
from whence.errors import WhenceError
from whence.inputs.texts import read_text

_SPLITS = ("test", "val", "train")
Annotation = dict[str, Any]  # one line of JSON, whose values are checked when they are used


def has_layout(path: Path) -> bool:
    """Whether there are documents, and annotations of a split."""
    folder = path.parent if path.suffix == ".jsonl" and is_file(path) else path
    has_documents = is_folder(folder / "docs") or is_file(folder / "docs.jsonl")
    return has_documents and any(is_file(folder / f"{split}.jsonl") for split in _SPLITS)


def open_dataset(path: Path, split: str | None) -> Dataset:
    """Open the annotated texts of a split; without one, of the first of test, val, train."""
    if path.suffix == ".jsonl" and is_file(path):
        path, split = path.parent, split or path.stem
    splits = [name for name in _SPLITS if is_file(path / f"{name}.jsonl")]
    split = split if split is not None else next(iter(splits), "test")
    file = path / f"{split}.jsonl"
    if not is_file(file):
        raise WhenceError(f"'{path}' has no '{file.name}'; it has: {', '.join(splits) or 'none'}.")
    try:
        lines = file.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise WhenceError(f"'{file}' cannot be read as UTF-8.") from error
    documents = DocumentStore(path)
    records: dict[str, AnnotationRecord] = {}
    for number, line in enumerate(lines, 1):
        if line.strip():
            records[_name_annotation(line, number, records)] = AnnotationRecord(line, documents)
    if not records:
        raise WhenceError(f"'{file}' is empty.")
    return Dataset(f"eraser-{path.absolute().name}-{split}", records, "text")


class DocumentStore:
    """The documents of a task: a file each in ``docs``, or lines of ``docs.jsonl``."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "docs"
        self._file = folder / "docs.jsonl"
        self._has_folder = is_folder(self._folder)

    def list_documents(self, annotation: Annotation, in_evidence: list[str]) -> list[str]:
        """List the documents of an annotation, in order.

        They are those that it lists, or if it lists none, the premise and the hypothesis of its
        id; then those of its evidence. Without any of these, it is the one that its id names.
        """
        listed = annotation.get("docids")
        identity = str(annotation["annotation_id"])
        if isinstance(listed, list) and listed:
            documents = [str(document) for document in listed]
        else:
            documents = [f"{identity}_premise", f"{identity}_hypothesis"]
            documents = documents if all(map(self._has, documents)) else []
        documents = list(dict.fromkeys(documents + in_evidence))
        # MultiRC appends the numbers of question and answer to the document: file.txt:0:1.
        return documents or [identity if self._has(identity) else identity.split(":")[0]]

    def read_words(self, document: str) -> list[str]:
        """Read the words that evidence counts, split at spaces and line ends only."""
        if self._has_folder:
            text = read_text(self._find_file(document) or self._folder / document)
        elif document in self._texts:
            text = self._texts[document]
        else:
            raise WhenceError(f"The document '{document}' is not in '{self._file}'.")
        lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
        return [word for line in lines for word in line.strip().split(" ") if word]

    def get_size(self, document: str) -> int | None:
        """Return the length of a document: in bytes, or of `docs.jsonl` in letters."""
        if self._has_folder:
            return get_size(self._find_file(document))
        return len(self._texts.get(document, ""))

    def _has(self, document: str) -> bool:
        if self._has_folder:
            return self._find_file(document) is not None
        return document in self._texts

    def _find_file(self, document: str) -> Path | None:
        parts = PurePosixPath(document)
        if parts.is_absolute() or ".." in parts.parts or not parts.parts or "\\" in document:
            raise WhenceError(f"The document '{document}' would lie outside of the dataset.")
        return find_first_file([self._folder / parts, self._folder / f"{parts}.txt"])

    @cached_property
    def _texts(self) -> dict[str, str]:
        """The documents of ``docs.jsonl`` by their ids."""
        try:
            with self._file.open(encoding="utf-8", newline="\n") as lines:
                documents = map(json.loads, filter(str.strip, lines))
                return {str(one["docid"]): str(one["document"]) for one in documents}
        except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
            message = f"'{self._file}' is not a file of documents as ERASER has them."
            raise WhenceError(message) from error


@dataclass(frozen=True)
class AnnotationRecord:
    """An annotation, as its line of JSON, and the documents of its task."""

    line: str
    documents: DocumentStore

    def read_sample(self, name: str) -> Sample:
        """Read the documents of the annotation as one text, with label and evidence."""
        annotation = _parse_annotation(self.line)
        if annotation is None:
            raise WhenceError(f"'{name}' is not an annotation in JSON with an annotation_id.")
        spans = list(_parse_spans(annotation, name))
        words: list[str] = []
        ranges: dict[str, range] = {}  # the words of each document
        for document in self.documents.list_documents(annotation, [one for one, _, _ in spans]):
            start = len(words)
            words += self.documents.read_words(document)
            ranges[document] = range(start, len(words))
        if not words:
            raise WhenceError(f"The documents of '{name}' are empty.")
        evidence = set()
        for document, start, end in spans:
            count, offset = len(ranges[document]), ranges[document].start
            if not 0 <= start < end <= count:
                counted = f"words {start} to {end} of '{document}', which has {count}"
                raise WhenceError(f"Evidence of '{name}' counts {counted}.")
            evidence.add((offset + start, offset + end))
        label = annotation.get("classification")
        text, label = " ".join(words), None if label is None else str(label)
        return Sample(name, text, label, words=tuple(words), evidence=tuple(sorted(evidence)))

    def list_facts(self) -> list[object]:
        """Return a hash of the line and the sizes of the documents."""
        annotation = _parse_annotation(self.line)
        sizes: list[int | None] = []
        if annotation is not None:
            try:
                in_evidence = [document for document, _, _ in _parse_spans(annotation, "")]
                documents = self.documents.list_documents(annotation, in_evidence)
                sizes = list(map(self.documents.get_size, documents))
            except WhenceError:
                sizes = [None]
        # With the whole line, since evidence that moves by a word changes no size.
        return [hashlib.sha256(self.line.encode("utf-8", "replace")).hexdigest(), *sizes]


def _parse_annotation(line: str) -> Annotation | None:
    try:
        annotation = json.loads(line)
    except (ValueError, RecursionError):
        return None
    is_valid = isinstance(annotation, dict) and annotation.get("annotation_id") not in (None, "")
    return annotation if is_valid else None


def _name_annotation(line: str, number: int, names: Container[str]) -> str:
    """Return the id of an annotation, with a number appended if another has the same."""
    annotation = _parse_annotation(line)
    identity = f"line {number}" if annotation is None else str(annotation["annotation_id"])
    # JSON can spell half of a letter, which no file takes.
    name = identity.encode("utf-8", "backslashreplace").decode()
    candidates = (f"{name}-{copy}" for copy in itertools.count(2))
    return name if name not in names else next(one for one in candidates if one not in names)


def _parse_spans(annotation: Annotation, name: str) -> Iterator[tuple[str, int, int]]:
    """Yield document, start and end of all evidence, without its groups."""
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
