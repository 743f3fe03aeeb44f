"""Find photos and texts in files, folders, globs, tables and arguments, and read them."""

from __future__ import annotations

import glob
import os
import sys
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from whence._util.files import check_is_file, exists, is_file
from whence._util.text import first_line
from whence.errors import WhenceError
from whence.inputs.tables import TEXT_COLUMNS, read_table
from whence.inputs.texts import MAX_BYTES, decode_text, read_text, validate_text

Kind = Literal["image", "text"]

IMAGES = frozenset(
    ".avif .bmp .gif .jfif .jpeg .jpg .jpe .png .pgm .pnm .ppm .tga .tif .tiff .webp".split()
)
TEXTS = frozenset(".md .text .txt".split())
TABLES = frozenset(".csv .tsv".split())
# Models look at a few hundred pixels. A longer side than this costs memory and shows nothing more.
MAX_SIDE = 4096


@dataclass(frozen=True)
class Source:
    """One input that is not read yet.

    Attributes:
        kind: A photo or a text, judged by its name.
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

    def read(self) -> Image.Image | str:
        """Read the photo or the text."""
        if self.problem is not None:
            raise WhenceError(self.problem)
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


def expand(arguments: Iterable[str]) -> list[Source]:
    """List the inputs that arguments name, in order; those of a folder or a glob are sorted.

    An argument that names no file, and does not look like a path, is text. A folder or glob
    without inputs is an input that cannot be read.

    Raises:
        WhenceError: No input was named, or none can be read.
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
        return _list_folder(path) if path.is_dir() else _expand_named(path)
    if glob.has_magic(argument):
        files = [Path(name) for name in sorted(glob.glob(str(path), recursive=True))]
        if any(guess_kind(file) or _is_table(file) for file in files):
            return [source for file in files if is_file(file) for source in _expand_found(file)]
        if files or _is_path_like(argument):
            raise WhenceError(f"No photo or text file matches '{argument}'.")
    if _is_path_like(argument):
        return [Source(guess_kind(path) or "image", path)]
    return [Source("text", text=argument)]


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
    """Guess from its suffix whether a file is a photo or a text; None for other files."""
    suffix = path.suffix.lower()
    return "image" if suffix in IMAGES else "text" if suffix in TEXTS else None


def _is_table(path: Path) -> bool:
    return path.suffix.lower() in TABLES


def _is_path_like(argument: str) -> bool:
    """Whether an argument looks like a path: slashes and no spaces, or a known suffix."""
    if "\n" in argument:
        return False
    separated = os.sep in argument and not any(map(str.isspace, argument))
    path = Path(argument)
    return separated or guess_kind(path) is not None or _is_table(path)


def read_input(what: object) -> Image.Image | str:
    """Read a photo or a text from a path, a PIL image, an array or a string."""
    if isinstance(what, Image.Image):
        try:
            return to_rgb(what)
        except OSError as error:  # Pillow reads the pixels only now
            raise WhenceError(f"The image is damaged: {error}.") from error
    if isinstance(what, np.ndarray):
        return image_from_array(what)
    if isinstance(what, str) and not (_is_path_like(what) or is_file(Path(what))):
        return validate_text(what)
    if isinstance(what, str | Path):
        path = Path(what)
        return Source(guess_kind(path) or "image", path).read()
    raise WhenceError(
        f"whence explains paths, images, arrays and strings, not {type(what).__name__}. For "
        f"tensors that are prepared for a model, use Explainer(model)."
    )


def read_image(path: str | Path) -> Image.Image:
    """Read an image file as RGB: upright, opaque, 8 bits, and no larger than `MAX_SIDE`."""
    path = Path(path)
    check_is_file(path, "an image")
    try:
        with warnings.catch_warnings():
            # Pillow warns of images that are large but that it opens all the same.
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            with Image.open(path) as image:
                if max(image.size) > MAX_SIDE:
                    # A JPEG is then decoded at a half, a quarter or an eighth of its size.
                    image.draft("RGB", (MAX_SIDE, MAX_SIDE))
                return to_rgb(image)
    except Image.DecompressionBombError:
        message = f"'{path}' has more pixels than whence opens; make it smaller first."
        raise WhenceError(message) from None
    except UnidentifiedImageError:
        raise WhenceError(f"'{path}' is not an image that Pillow knows.") from None
    except PermissionError:
        raise WhenceError(f"'{path}' may not be read.") from None
    except Exception as error:  # decoders of damaged files raise nearly anything
        reason = first_line(error) or type(error).__name__
        raise WhenceError(f"'{path}' is damaged: {reason}.") from error


def to_rgb(image: Image.Image) -> Image.Image:
    """Convert an image to RGB: upright, no larger than `MAX_SIDE`, white where transparent."""
    image.load()
    if max(image.size) > MAX_SIDE:
        scale = MAX_SIDE / max(image.size)
        width, height = (max(1, round(side * scale)) for side in image.size)
        image = image.resize((width, height))
    image = ImageOps.exif_transpose(image)
    if image.mode.startswith(("I", "F")):
        return _scale_to_bytes(np.asarray(image), wide=image.mode in ("I", "F"))
    if image.has_transparency_data:
        white = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(white, image.convert("RGBA"))
    return image.convert("RGB")


def image_from_array(array: np.ndarray[Any, Any]) -> Image.Image:
    """Convert an array to an image: (H, W), (H, W, 3) or (H, W, 4), bytes or floats from 0 to 1."""
    if array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] not in (1, 3, 4)):
        hint = " Put the channels last." if array.ndim == 3 and array.shape[0] in (1, 3, 4) else ""
        raise WhenceError(
            f"An image array is (height, width, 3), not {tuple(array.shape)}.{hint} For a tensor "
            f"that is prepared for the model, use Explainer(model)."
        )
    if 0 in array.shape:
        raise WhenceError(f"The image array is empty: its shape is {tuple(array.shape)}.")
    if array.dtype.kind == "f":
        if not np.isfinite(array).all() or array.min() < 0 or array.max() > 1:
            raise WhenceError("A float image array holds values from 0 to 1, and no NaN.")
        array = np.round(array * 255).astype(np.uint8)
    elif array.dtype != np.uint8:
        raise WhenceError(f"An image array is of uint8 or floats from 0 to 1, not {array.dtype}.")
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[..., 0]
    return to_rgb(Image.fromarray(np.ascontiguousarray(array)))


def _scale_to_bytes(values: np.ndarray[Any, Any], wide: bool) -> Image.Image:
    """Convert grey values of more than 8 bits to 8: scaled, where Pillow would clip."""
    values = np.nan_to_num(values.astype(np.float32))
    if np.abs(values).max(initial=0) > 65535 or values.min(initial=0) < 0:
        values = values - values.min()
        values = values / max(float(values.max()), 1e-20)
    elif values.max(initial=0) > 1:
        # Modes of 32 bits are also used for plain 8-bit values.
        values = values / (255 if wide and values.max() <= 255 else 65535)
    return Image.fromarray(np.round(values * 255).astype(np.uint8)).convert("RGB")
