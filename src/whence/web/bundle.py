"""Saves an input with its explanations as one zip file, and opens such a file again.

The zip file holds

- ``settings.json``: model, classes, methods, versions;
- ``input.jpg`` (or another extension), as it was uploaded, or ``input.txt``;
- ``shown.png``: the part of a photo that the model saw;
- ``METHOD.safetensors``: an explanation that `whence.Explanation.load` reads;
- ``METHOD-CLASS.png`` or ``METHOD.html``: the same as a picture.

A file that is opened may come from anyone. Only members that the settings name are read, none of
them beyond its limit, and every number is checked before it is shown.
"""

from __future__ import annotations

import io
import json
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from whence import methods, render
from whence.errors import WhenceError
from whence.explanation import Explanation
from whence.render.drawing import encode_png
from whence.version import __version__
from whence.web.bundle_checks import check_explanations
from whence.web.limits import MAX_CLASSES, MAX_METHODS, MAX_PHOTO_BYTES, MAX_UPLOAD_BYTES, MEBIBYTE
from whence.web.validation import FORMATS, PageInput, check_size, check_text, decode_photo

_FORMAT = "whence page 1"
_MAX_SETTINGS_BYTES = MEBIBYTE // 8
_MAX_EXPLANATION_BYTES = 4 * MEBIBYTE
# Two for each method and class, and the members that exist once.
_MAX_MEMBERS = 2 * MAX_METHODS * MAX_CLASSES + MAX_METHODS + 3
# Errors that the readers of zip files and JSON raise on a damaged or forged file.
_READ_ERRORS: tuple[type[Exception], ...] = (
    *(zipfile.BadZipFile, zlib.error, OSError, EOFError, LookupError, TypeError, ValueError),
    *(RecursionError, NotImplementedError, RuntimeError),
)
# Python decompresses other types completely, whatever limit it is given.
_ALLOWED_COMPRESSION = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)


@dataclass(frozen=True)
class Bundle:
    """An input with its explanations."""

    model: str  # the name on the page
    page_input: PageInput
    photo: Image.Image | None  # the part of a photo that the model saw; None for a text
    explanations: dict[str, Explanation]  # by method, all of the same classes
    against: int | None = None  # the class that they are explained against

    @property
    def classes(self) -> list[int]:
        """The indices of the explained classes."""
        indices: list[int] = self._first.target[0].tolist()
        return indices

    @property
    def settings(self) -> dict[str, object]:
        """The content of ``settings.json``."""
        classes = zip(self.classes, self._first.classes(), strict=True)
        return {
            "format": _FORMAT,
            "whence": __version__,
            "model": self.model,
            "input": f"input.{self.page_input.extension}",
            "classes": [
                {"index": index, "name": one.name, "probability": one.probability}
                for index, one in classes
            ],
            "against": self.against,
            "methods": list(self.explanations),
            "options": {name: one.settings for name, one in self.explanations.items()},
        }

    @property
    def _first(self) -> Explanation:
        return next(iter(self.explanations.values()))


def pack_bundle(bundle: Bundle) -> bytes:
    """Write a bundle as a zip file."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("settings.json", json.dumps(bundle.settings, indent=1))
        file.writestr(f"input.{bundle.page_input.extension}", bundle.page_input.content)
        if bundle.photo is not None:
            file.writestr("shown.png", encode_png(bundle.photo))
        for method, explanation in bundle.explanations.items():
            file.writestr(f"{method}.safetensors", _to_safetensors(explanation))
            for name, picture in _draw(method, explanation, bundle.photo).items():
                file.writestr(name, picture)
    return out.getvalue()


def unpack_bundle(content: bytes) -> Bundle:
    """Read a zip file that `pack_bundle` wrote, or refuse one that it could not have written."""
    with _open_bundle(content) as file:
        return _read_bundle(file)


def read_settings(content: bytes) -> dict[str, object]:
    """Read the settings of a zip file that this page wrote; nothing else of it."""
    with _open_bundle(content) as file:
        return _read_settings(file)


@contextmanager
def _open_bundle(content: bytes) -> Iterator[zipfile.ZipFile]:
    """Open a zip file, and refuse what is damaged while it is read."""
    check_size("bundle", content, MAX_UPLOAD_BYTES)
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as file:
            if len(file.infolist()) > _MAX_MEMBERS:
                raise WhenceError("The bundle holds more files than this page saves.")
            yield file
    except WhenceError:
        raise
    except _READ_ERRORS as error:
        raise WhenceError("This is not a bundle of this page, or it is damaged.") from error


def _read_settings(file: zipfile.ZipFile) -> dict[str, Any]:
    settings = json.loads(_read_member(file, "settings.json", _MAX_SETTINGS_BYTES))
    if not isinstance(settings, dict):
        raise WhenceError("This is not a bundle of this page.")
    return settings


def _read_bundle(file: zipfile.ZipFile) -> Bundle:
    settings = _read_settings(file)
    if settings["format"] != _FORMAT:
        raise WhenceError("This is not a bundle of this page.")
    names = settings["methods"]
    if not isinstance(names, list) or not 1 <= len(names) <= MAX_METHODS:
        raise WhenceError(f"A bundle holds one to {MAX_METHODS} methods.")
    for name in names:
        methods.get(name)
    page_input = _read_input(file, str(settings["input"]))
    explanations = {name: _read_explanation(file, name) for name in names}
    against = settings.get("against")  # bundles of earlier versions have none
    check_explanations(explanations, page_input.kind, against)
    photo = None
    if page_input.kind == "image":
        photo = decode_photo(_read_member(file, "shown.png", MAX_PHOTO_BYTES)).image
    return Bundle(str(settings["model"])[:200], page_input, photo, explanations, against)


def _read_member(file: zipfile.ZipFile, name: str, max_bytes: int) -> bytes:
    """Decompress a member of the zip file, at most up to its limit."""
    if file.getinfo(name).compress_type not in _ALLOWED_COMPRESSION:
        raise WhenceError(f"'{name}' in the bundle is packed in a way that this page does not use.")
    with file.open(name) as member:
        content = member.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise WhenceError(f"'{name}' in the bundle is too large.")
    return content


def _read_input(file: zipfile.ZipFile, name: str) -> PageInput:
    if name == "input.txt":
        return check_text(_read_member(file, name, MAX_PHOTO_BYTES).decode())
    if name not in {f"input.{extension}" for extension in FORMATS.values()}:
        raise WhenceError("The bundle holds neither a photo nor a text.")
    return decode_photo(_read_member(file, name, MAX_PHOTO_BYTES))


def _read_explanation(file: zipfile.ZipFile, method: str) -> Explanation:
    content = _read_member(file, f"{method}.safetensors", _MAX_EXPLANATION_BYTES)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "explanation.safetensors"
        path.write_bytes(content)
        try:
            return Explanation.load(path)
        except WhenceError:  # its message names a file that the visitor never saw
            raise WhenceError("An explanation in the bundle is damaged.") from None


def _to_safetensors(explanation: Explanation) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "explanation.safetensors"
        explanation.save(path)
        return path.read_bytes()


def _draw(method: str, explanation: Explanation, photo: Image.Image | None) -> dict[str, bytes]:
    """Pictures of an explanation, by file name."""
    if photo is None:
        return {f"{method}.html": explanation.to_html().encode()}
    heatmaps = explanation.scores[0].reshape(-1, *(explanation.picture_grid or (1, 1)))
    return {
        f"{method}-{index}.png": encode_png(render.overlay(photo, scores))
        for index, scores in zip(explanation.target[0].tolist(), heatmaps, strict=True)
    }
