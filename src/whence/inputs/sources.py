"""What the words on a command line name: files, folders, globs, or text itself."""

from __future__ import annotations

import glob
import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from whence._util.files import exists, is_file
from whence.errors import WhenceError
from whence.inputs.texts import MAX_BYTES, decode_text, read_text, validate_text

if TYPE_CHECKING:
    from PIL import Image

Kind = Literal["image", "text"]

IMAGES = frozenset(
    ".avif .bmp .gif .jfif .jpeg .jpg .jpe .png .pgm .pnm .ppm .tga .tif .tiff .webp".split()
)
TEXTS = frozenset(".md .text .txt".split())
TABLES = frozenset(".csv .tsv".split())


@dataclass(frozen=True)
class Source:
    """One input, not read yet.

    Attributes:
        kind: Whether it is a photo or a text, as far as its name tells.
        path: The file; None for text given directly or on standard input.
        text: The text given directly.
        row: Which row of a table the text is, such as "reviews.csv, row 3".
        problem: Why it cannot be read, if that is known already.
    """

    kind: Kind
    path: Path | None = None
    text: str | None = None
    row: str | None = None
    problem: str | None = None

    @property
    def title(self) -> str:
        """What to call it in messages."""
        if self.path is not None:
            # A name need not be UTF-8; what is written about it must be.
            return os.fsencode(self.path).decode("utf-8", "replace")
        if self.row is not None:
            return self.row
        if self.text is None:
            return "standard input"
        words = " ".join(self.text.split())
        return words if len(words) <= 60 else words[:59].rstrip() + "…"

    def read(self) -> Image.Image | str:
        """The photo or the text.

        Raises:
            WhenceError: It cannot be read.
        """
        if self.problem is not None:
            raise WhenceError(self.problem)
        if self.kind == "image":
            from whence.inputs.images import read_image

            assert self.path is not None
            try:
                return read_image(self.path)
            except WhenceError as error:
                if is_file(self.path) and guess_kind(self.path) is None:
                    raise WhenceError(f"{error} A text file's name ends in .txt.") from None
                raise
        if self.path is not None:
            return read_text(self.path)
        if self.text is None:
            stdin = getattr(sys.stdin, "buffer", None)  # None if it was closed
            return decode_text(stdin.read(MAX_BYTES) if stdin else b"", "Standard input")
        return validate_text(self.text)


def expand(arguments: Iterable[str]) -> list[Source]:
    """The inputs that arguments name, in order; those of a folder or a glob are sorted.

    An argument that names no file, and does not look as though it should, is text. A folder or glob
    that holds nothing to explain is an input that cannot be read.

    Raises:
        WhenceError: Nothing was named, or nothing that can be explained.
    """
    sources: list[Source] = []
    problems: list[WhenceError] = []
    for argument in arguments:
        try:
            sources += _expand_one(argument)
        except WhenceError as problem:
            problems.append(problem)
            sources.append(Source("image", Path(argument), problem=str(problem)))
    if problems and len(problems) == len(sources):
        raise problems[0]
    if sum(source == Source("text") for source in sources) > 1:
        raise WhenceError("Standard input (-) can be read only once.")
    if not sources:
        raise WhenceError("Nothing to explain: name photos, folders, text files, or give text.")
    return sources


def _expand_one(argument: str) -> Sequence[Source]:
    if argument == "-":
        return [Source("text")]
    if not argument.strip():
        return [Source("text", text=argument)]  # as a path it would mean this folder
    path = Path(argument).expanduser() if argument.startswith("~") else Path(argument)
    if exists(path):
        return _in_folder(path) if path.is_dir() else _named(path)
    if glob.has_magic(argument):
        found = [Path(name) for name in sorted(glob.glob(str(path), recursive=True))]
        if any(guess_kind(file) or _is_table(file) for file in found):
            return [source for file in found if is_file(file) for source in _of_file(file)]
        if found or is_path_like(argument):
            raise WhenceError(f"No photo or text file matches '{argument}'.")
    if is_path_like(argument):
        return [Source(guess_kind(path) or "image", path)]
    return [Source("text", text=argument)]


def _in_folder(folder: Path) -> list[Source]:
    try:
        files = sorted(f for f in folder.iterdir() if f.is_file() and not f.name.startswith("."))
    except OSError as error:
        raise WhenceError(f"The folder '{folder}' cannot be read: {error.strerror}.") from error
    found = [source for file in files for source in _of_file(file)]
    if all(source.problem is not None for source in found):
        raise WhenceError(f"The folder '{folder}' holds no photo and no text file.")
    return found


def _named(file: Path) -> Sequence[Source]:
    """A file that was named: what is no text, and no table, is tried as a photo."""
    if _is_table(file):
        return _rows(file)
    return [Source(guess_kind(file) or "image", file)]


def _of_file(file: Path) -> Sequence[Source]:
    """A file that was found rather than named: what it is, only its suffix can tell."""
    kind = guess_kind(file)
    if kind is not None:
        return [Source(kind, file)]
    why = "It is neither a photo nor a text file that whence reads."
    if _is_table(file):
        try:
            return _rows(file)
        except WhenceError as error:
            why = str(error)
    return [Source("image", file, problem=why)]


def _rows(file: Path) -> list[Source]:
    """The texts of a table, each an input.

    Raises:
        WhenceError: It cannot be read, or no column of it holds texts.
    """
    from whence.datasets.csv_texts import TEXTS as COLUMNS
    from whence.datasets.tables import read_table

    table = read_table(file, COLUMNS)
    at = None if table is None else table.position(COLUMNS)
    if table is None or at is None or not table.rows:
        raise WhenceError(
            f"The table '{file}' has no texts: its header names no column {', '.join(COLUMNS)}, or "
            f"nothing stands below."
        )
    name = os.fsencode(file.name).decode("utf-8", "replace")
    titles = [f"{name}, row {number}" for number in range(1, len(table.rows) + 1)]
    return [
        Source("text", text=row[at], row=title)
        if table.whole(row)
        else Source("text", row=title, problem="It has too few or too many fields.")
        for title, row in zip(titles, table.rows, strict=True)
    ]


def guess_kind(path: Path) -> Kind | None:
    """Whether a file is a photo or a text, as its suffix tells."""
    suffix = path.suffix.lower()
    return "image" if suffix in IMAGES else "text" if suffix in TEXTS else None


def _is_table(path: Path) -> bool:
    return path.suffix.lower() in TABLES


def is_path_like(argument: str) -> bool:
    """Whether someone who wrote this meant a file: no spaces but slashes, or a known suffix."""
    if "\n" in argument:
        return False
    separated = os.sep in argument and not any(map(str.isspace, argument))
    path = Path(argument)
    return separated or guess_kind(path) is not None or _is_table(path)
