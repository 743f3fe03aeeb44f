"""Find photos and texts in files, folders, globs, tables and arguments, and read them."""

from __future__ import annotations

import glob
import os
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
from PIL import Image

from whence._util.files import exists, is_file, is_folder
from whence._util.near_names import suggest_paths
from whence.errors import WhenceError
from whence.inputs.images import IMAGES, image_from_array, read_image, to_rgb
from whence.inputs.sounds import (
    OTHER_SOUNDS,
    SOUNDS,
    Recording,
    describe_other_sound,
    read_sound,
    sound_from_array,
)
from whence.inputs.tables import TEXT_COLUMNS, read_table
from whence.inputs.texts import MAX_BYTES, decode_text, read_text, validate_text
from whence.inputs.videos import (
    ANIMATED,
    OTHER_VIDEOS,
    VideoClip,
    describe_other_video,
    is_animated,
    read_video,
    video_from_array,
)

Kind = Literal["image", "text", "video", "audio"]
Content: TypeAlias = Image.Image | str | VideoClip | Recording
"""What an input holds."""
NOUNS: dict[Kind, str] = {
    "image": "images",
    "text": "texts",
    "video": "videos",
    "audio": "sounds",
}

TEXTS = frozenset(".md .text .txt".split())
TABLES = frozenset(".csv .tsv".split())
# What a name of a file may be written with; scripts that put no spaces between words.
_WORD = re.compile(r"[\w.,~@+=%()\[\]{}#&'*?:/\\-]+")
_UNSPACED = re.compile(r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff]")
_ADDRESS = re.compile(r"\w+://")
_STARTS = ("/", "./", "../", "~/")
# File systems allow no longer ones.
_LONGEST_NAME, _LONGEST_PATH = 255, 4096


@dataclass(frozen=True)
class Source:
    """One input that is not read yet.

    Attributes:
        kind: A photo, a text, a video or a sound, judged by its name.
        path: The file; None for text given directly or on standard input.
        text: The text given directly.
        row: Which row of a table the text is, such as "reviews.csv, row 3".
        problem: Why it cannot be read, if that is already known.
    """

    kind: Kind
    path: Path | None = None
    text: str | None = None
    row: str | None = None
    problem: str | None = None

    @property
    def title(self) -> str:
        """Its name in messages."""
        if self.path is not None:
            # A name need not be UTF-8; what is written about it must be.
            return os.fsencode(self.path).decode("utf-8", "replace")
        if self.row is not None:
            return self.row
        if self.text is None:
            return "standard input"
        words = " ".join(self.text.split())
        return words if len(words) <= 60 else words[:59].rstrip() + "…"

    def read(self) -> Content:
        """Read the photo, the text, the video or the sound."""
        if self.problem is not None:
            raise WhenceError(self.problem)
        if self.kind in ("video", "audio"):
            path = self.path or Path()
            return read_video(path) if self.kind == "video" else read_sound(path)
        if self.kind == "image":
            path = self.path or Path()
            try:
                return read_image(path)
            except WhenceError as error:
                if is_file(path) and guess_kind(path) is None:
                    raise WhenceError(f"{error} A text file's name ends in .txt.") from None
                raise
        if self.path is not None:
            return read_text(self.path)
        if self.text is None:
            stdin = getattr(sys.stdin, "buffer", None)  # None if it was closed
            return decode_text(stdin.read(MAX_BYTES) if stdin else b"", "Standard input")
        return validate_text(self.text)


def expand(
    arguments: Iterable[str], as_text: bool = False, kind: Kind | None = None
) -> list[Source]:
    """List the inputs that arguments name, in order; those of a folder or a glob are sorted.

    An argument that names no file is text if it is a sentence. One word, and what looks like a
    path, may be a mistyped name, and is an input that cannot be read; so is a folder or a glob
    without inputs.

    Args:
        arguments: Paths, globs, texts, or "-" for standard input.
        as_text: Whether all of them are texts, also one word and what looks like a path.
        kind: ``"video"`` says that pictures that move, and folders of frames, are videos.

    Raises:
        WhenceError: No input was named, or none can be read.
    """
    if as_text:
        return [Source("text", text=argument) for argument in arguments]
    given = list(arguments)
    sources: list[Source] = []
    problems: list[WhenceError] = []
    for argument in given:
        try:
            sources += _expand_videos(argument) if kind == "video" else _expand_one(argument)
        except WhenceError as problem:
            problems.append(problem)
            sources.append(Source("image", Path(argument), problem=str(problem)))
    if problems and len(problems) == len(sources):
        if len(given) > 1 and all(argument.isalpha() for argument in given[1:]):
            raise WhenceError(
                f"There are no files of these names. If they are one text, put it in quotes: "
                f'"{" ".join(given)}".'
            )
        raise problems[0]
    if sum(source == Source("text") for source in sources) > 1:
        raise WhenceError("Standard input (-) can be read only once.")
    if not sources:
        raise WhenceError("Nothing to explain: name photos, folders, text files, or give text.")
    return sources


def _expand_videos(argument: str) -> Sequence[Source]:
    """List the videos that an argument names: one of its frames, of a folder, or in a folder."""
    path = Path(argument).expanduser() if argument.startswith("~") else Path(argument)
    if path.suffix.lower() in ANIMATED and is_file(path):
        return [Source("video", path)]
    if not is_folder(path):
        return _expand_one(argument)
    inside = sorted(f for f in path.iterdir() if not f.name.startswith("."))
    moving = [f for f in inside if f.suffix.lower() in ANIMATED and is_animated(f)]
    folders = [f for f in inside if f.is_dir()]
    frames = [f for f in inside if guess_kind(f) == "image"]
    if moving or (folders and not frames):
        return [Source("video", one) for one in moving or folders]
    return [Source("video", path)]


def _expand_one(argument: str) -> Sequence[Source]:
    if argument == "-":
        return [Source("text")]
    if not argument.strip():
        return [Source("text", text=argument)]  # as a path it would mean this folder
    path = Path(argument).expanduser() if argument.startswith("~") else Path(argument)
    if exists(path):
        return _list_folder(path) if path.is_dir() else _expand_named(path)
    if glob.has_magic(argument):
        files = [Path(name) for name in sorted(glob.glob(str(path), recursive=True))]
        if any(guess_kind(file) or _is_table(file) for file in files):
            return [source for file in files if is_file(file) for source in _expand_found(file)]
        if files or _is_path_like(argument):
            raise WhenceError(f"No photo or text file matches '{argument}'.")
    check_is_sentence(argument, "--text")
    return [Source("text", text=argument)]


def check_is_sentence(text: str, option: str, words: bool = False) -> None:
    """Refuse a text that may be a mistyped name of a file: one word, or what looks like a path.

    Args:
        text: It names no file.
        option: What says that it is text all the same.
        words: Whether one word is a text, unless it looks like a path.
    """
    given = text.strip()
    is_path = _is_path_like(given)
    if not is_path and (words or not _is_word(given)):
        return
    if _ADDRESS.match(given):
        raise WhenceError(f"'{given}' is an address; save what is there as a file, and name that.")
    if is_folder(Path(given).expanduser()):
        raise WhenceError(
            f"'{text}' is a folder; give a list of the files in it. If they are the frames of a "
            f"video, say so with kind='video'."
        )
    state = "not there, or may not be read" if is_path else "no file or folder here"
    near = suggest_paths(Path(given).expanduser())
    raise WhenceError(f"'{text}' is {state}.{near} If it is a text, say so with {option}.")


def _list_folder(folder: Path) -> list[Source]:
    try:
        files = sorted(f for f in folder.iterdir() if f.is_file() and not f.name.startswith("."))
    except OSError as error:
        raise WhenceError(f"The folder '{folder}' cannot be read: {error.strerror}.") from error
    sources = [source for file in files for source in _expand_found(file)]
    if all(source.problem is not None for source in sources):
        raise WhenceError(f"The folder '{folder}' holds no photo and no text file.")
    return sources


def _expand_named(file: Path) -> Sequence[Source]:
    """List the inputs of a file that was named; a file of unknown suffix is tried as a photo."""
    if file.suffix.lower() in OTHER_SOUNDS | OTHER_VIDEOS:
        is_sound = file.suffix.lower() in OTHER_SOUNDS
        raise WhenceError(describe_other_sound(file) if is_sound else describe_other_video(file))
    if _is_table(file):
        return _read_rows(file)
    return [Source(guess_kind(file) or "image", file)]


def _expand_found(file: Path) -> Sequence[Source]:
    """List the inputs of a file in a folder or glob; one of unknown suffix is a problem."""
    kind = guess_kind(file)
    if kind is not None:
        return [Source(kind, file)]
    why = "It is neither a photo nor a text file that whence reads."
    if _is_table(file):
        try:
            return _read_rows(file)
        except WhenceError as error:
            why = str(error)
    return [Source("image", file, problem=why)]


def _read_rows(file: Path) -> list[Source]:
    """Read the texts of a table, each an input."""
    table = read_table(file, TEXT_COLUMNS)
    if table is None or not table.rows:
        raise WhenceError(
            f"The table '{file}' has no texts: its header names no column "
            f"{', '.join(TEXT_COLUMNS)}, or nothing stands below."
        )
    name = os.fsencode(file.name).decode("utf-8", "replace")
    titles = [f"{name}, row {number}" for number in range(1, len(table.rows) + 1)]
    return [
        Source("text", text=row[table.key], row=title)
        if table.is_whole(row)
        else Source("text", row=title, problem="It has too few or too many fields.")
        for title, row in zip(titles, table.rows, strict=True)
    ]


def guess_kind(path: Path) -> Kind | None:
    """Guess from its suffix whether a file is a photo, a text or a sound; None for others."""
    suffix = path.suffix.lower()
    if suffix in SOUNDS:
        return "audio"
    return "image" if suffix in IMAGES else "text" if suffix in TEXTS else None


def _is_table(path: Path) -> bool:
    return path.suffix.lower() in TABLES


def _is_path_like(argument: str) -> bool:
    """Whether an argument looks like a path: a known suffix, or slashes where a folder may be."""
    if "\n" in argument or len(argument) > _LONGEST_PATH:
        return False
    path = Path(argument)
    if guess_kind(path) is not None or _is_table(path):
        return True
    if os.sep not in argument:
        return False
    has_space = any(map(str.isspace, argument))
    return not has_space or argument.startswith(_STARTS) or is_folder(path.parent)


def _is_word(text: str) -> bool:
    """Whether a text is one word, which may as well be the name of a file."""
    is_short = len(text) <= _LONGEST_NAME and not text.endswith(".")
    return is_short and _WORD.fullmatch(text) is not None and _UNSPACED.search(text) is None


def read_input(what: object, kind: Kind | None = None, words: bool = True) -> Content:
    """Read a photo, a text, a video or a sound from a path, a PIL image, an array or a string.

    Args:
        what: A string that names a file is its path, and otherwise text. One that names no file
            but looks like a path is an error.
        kind: ``"text"`` says that a string is text in any case; the others, that it is a path, of a
            photo, a video or a sound.
        words: Whether one word that names no file is text.
    """
    if isinstance(what, Image.Image):
        try:
            return to_rgb(what)
        except OSError as error:  # Pillow reads the pixels only now
            raise WhenceError(f"The image is damaged: {error}.") from error
    if isinstance(what, VideoClip | Recording):
        return what
    if isinstance(what, np.ndarray):
        return _read_array(what)
    is_path = kind not in (None, "text")
    if isinstance(what, str) and not is_path and (kind == "text" or not is_file(Path(what))):
        if kind is None and what.strip():
            check_is_sentence(what, "kind='text'", words)
        return validate_text(what)
    if isinstance(what, str | Path):
        path = Path(what)
        chosen = kind if kind in ("video", "audio") else guess_kind(path) or "image"
        return Source(chosen, path).read()
    raise WhenceError(
        f"whence explains paths, images, arrays and strings, not {type(what).__name__}. For "
        f"tensors that are prepared for a model, use Explainer(model)."
    )


def _read_array(array: np.ndarray[Any, Any]) -> Content:
    """Read an array as a sound, a photo or a video, by its number of dimensions."""
    if array.ndim == 1:
        return sound_from_array(array)
    return video_from_array(array) if array.ndim == 4 else image_from_array(array)
