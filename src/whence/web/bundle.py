"""What was looked at, in one file that can be sent, and opened in the page again.

A zip file that holds

- ``settings.json``: model, classes, methods, versions;
- ``input.jpg`` (or another ending), as it was uploaded, or ``input.txt``;
- ``shown.png``: what of a photo the model saw;
- ``METHOD.safetensors``: an explanation that `whence.Explanation.load` reads;
- ``METHOD-CLASS.png`` or ``METHOD.html``: the same to look at.

What is opened may come from anyone: only names that the settings call for are read, none of them
further than its bound, and every number is checked before it is shown.
"""

from __future__ import annotations

import io
import json
import math
import tempfile
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from whence import methods, render
from whence.errors import WhenceError
from whence.explanation import Explanation
from whence.version import __version__
from whence.web.inputs import FORMATS, Input, Photo, photo_from, sentence_from
from whence.web.limits import CLASSES, MEBIBYTE, METHODS, PHOTO_BYTES, UPLOAD_BYTES

_FORMAT = "whence page 1"
_SETTINGS_BYTES = MEBIBYTE // 8
_EXPLANATION_BYTES = 4 * MEBIBYTE
# Two for each method and class, and what stands beside them.
_MEMBERS = 2 * METHODS * CLASSES + METHODS + 3
# What a damaged or a made-up file makes the readers of zip files and JSON raise.
_UNREADABLE = (zipfile.BadZipFile, OSError, EOFError, LookupError, TypeError, ValueError)
_UNREADABLE += (RecursionError, NotImplementedError, RuntimeError, zlib.error)  # type: ignore[assignment]
# Of the others, Python unpacks all that a few bytes stand for, whatever bound it is given.
_BOUNDED = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)


@dataclass(frozen=True)
class Bundle:
    """What was looked at.

    Attributes:
        model: The name of the model, as the page offered it.
        what: The photo or text.
        shown: What of a photo the model saw; None for a text.
        explanations: All of the same classes, by method.
    """

    model: str
    what: Input
    shown: Image.Image | None
    explanations: dict[str, Explanation]

    @property
    def classes(self) -> list[int]:
        """The explained classes, as indices."""
        first: Explanation = next(iter(self.explanations.values()))
        indices: list[int] = first.target[0].tolist()
        return indices


def pack(found: Bundle) -> bytes:
    """Everything as one zip file."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("settings.json", json.dumps(_settings(found), indent=1))
        file.writestr(_input_name(found.what), _input_content(found.what))
        if found.shown is not None:
            file.writestr("shown.png", _png(found.shown))
        for method, explanation in found.explanations.items():
            file.writestr(f"{method}.safetensors", _saved(explanation))
            for name, content in _pictures(method, explanation, found.shown):
                file.writestr(name, content)
    return out.getvalue()


def unpack(content: bytes) -> Bundle:
    """What `pack` made.

    Raises:
        WhenceError: It is no such file, is damaged, or holds more than the page would have saved.
    """
    if len(content) > UPLOAD_BYTES:
        raise WhenceError(f"A bundle may have {UPLOAD_BYTES // MEBIBYTE} MiB; this one is larger.")
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as file:
            if len(file.infolist()) > _MEMBERS:
                raise WhenceError("The bundle holds more files than this page saves.")
            return _read(file)
    except WhenceError:
        raise
    except _UNREADABLE as error:
        raise WhenceError("This is not a bundle of this page, or it is damaged.") from error


def _read(file: zipfile.ZipFile) -> Bundle:
    settings = json.loads(_member(file, "settings.json", _SETTINGS_BYTES))
    if settings["format"] != _FORMAT:
        raise WhenceError("This is not a bundle of this page.")
    names = settings["methods"]
    if not isinstance(names, list) or not 1 <= len(names) <= METHODS:
        raise WhenceError(f"A bundle holds one to {METHODS} methods.")
    for name in names:
        methods.get(name)
    what = _input(file, str(settings["input"]))
    explanations = {
        name: _explanation(_member(file, f"{name}.safetensors", _EXPLANATION_BYTES))
        for name in names
    }
    _check(what, explanations)
    shown = photo_from(_member(file, "shown.png", PHOTO_BYTES)).image if _is_photo(what) else None
    return Bundle(str(settings["model"])[:200], what, shown, explanations)


def _member(file: zipfile.ZipFile, name: str, most: int) -> bytes:
    """A file of the bundle, of which no more is unpacked than it may have."""
    if file.getinfo(name).compress_type not in _BOUNDED:
        raise WhenceError(f"'{name}' in the bundle is packed in a way that this page does not use.")
    with file.open(name) as member:
        content = member.read(most + 1)
    if len(content) > most:
        raise WhenceError(f"'{name}' in the bundle is too large.")
    return content


def _input(file: zipfile.ZipFile, name: str) -> Input:
    if name == "input.txt":
        return sentence_from(_member(file, name, PHOTO_BYTES).decode())
    if name not in {f"input.{ending}" for ending in FORMATS.values()}:
        raise WhenceError("The bundle holds neither a photo nor a text.")
    return photo_from(_member(file, name, PHOTO_BYTES))


def _explanation(content: bytes) -> Explanation:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "explanation.safetensors"
        path.write_bytes(content)
        try:
            return Explanation.load(path)
        except WhenceError:  # which names a file that its owner never saw
            raise WhenceError("An explanation in the bundle is damaged.") from None


def _check(what: Input, explanations: dict[str, Explanation]) -> None:
    """See that scores belong to the input, and all explanations together."""
    first = next(iter(explanations.values()))
    for name, one in explanations.items():
        units = one.scores.shape[-1]
        right = (
            one.scores.dim() == 3
            and one.scores.shape[0] == 1
            and 1 <= one.scores.shape[1] <= CLASSES
            and one.target.shape == one.scores.shape[:2]
            and one.target.dtype == torch.int64
            and torch.equal(one.target, first.target)
            and one.logits.dim() == 2
            and one.logits.shape[0] == 1
            and 0 <= int(one.target.min()) <= int(one.target.max()) < one.logits.shape[1]
            and bool(torch.isfinite(one.scores).all() and torch.isfinite(one.logits).all())
            and one.method == name
            and _fits(one, units, _is_photo(what))
            and _named(one)
        )
        if not right:
            raise WhenceError(f"The explanation '{name}' in the bundle does not fit its input.")


def _fits(one: Explanation, units: int, is_photo: bool) -> bool:
    if is_photo:
        sides: Any = one.grid or ()
        return (
            [type(n) for n in sides] == [int, int] and min(sides) > 0 and math.prod(sides) == units
        )
    if one.grid is not None or one.tokens is None or len(one.tokens.strings) != 1:
        return False
    strings, words = one.tokens.strings[0], one.tokens.words[0]
    texts = one.tokens.texts[0] if one.tokens.texts else []
    numbers = [word for word in words if word is not None]
    return (
        len(strings) == len(words) == units
        and all(isinstance(s, str) for s in (*strings, *texts))
        and all(isinstance(n, int) and n >= 0 for n in numbers)
        and (not one.tokens.texts or max(numbers, default=-1) < len(texts))
    )


def _named(one: Explanation) -> bool:
    if one.target_names is None:
        return True
    names: Any = one.target_names[0] if len(one.target_names) == 1 else None
    count = one.scores.shape[1]
    return isinstance(names, list) and len(names) == count and all(type(n) is str for n in names)


def _settings(found: Bundle) -> dict[str, Any]:
    first: Explanation = next(iter(found.explanations.values()))
    classes = zip(found.classes, first.classes(), strict=True)
    return {
        "format": _FORMAT,
        "whence": __version__,
        "model": found.model,
        "input": _input_name(found.what),
        "classes": [
            {"index": index, "name": one.name, "probability": one.probability}
            for index, one in classes
        ],
        "methods": list(found.explanations),
        "options": {name: one.settings for name, one in found.explanations.items()},
    }


def _input_name(what: Input) -> str:
    return f"input.{what.ending}" if isinstance(what, Photo) else "input.txt"


def _input_content(what: Input) -> bytes:
    return what.content if isinstance(what, Photo) else what.text.encode()


def _saved(explanation: Explanation) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "explanation.safetensors"
        explanation.save(path)
        return path.read_bytes()


def _pictures(
    method: str, explanation: Explanation, shown: Image.Image | None
) -> Sequence[tuple[str, bytes]]:
    if shown is None:
        return [(f"{method}.html", render.format_text_page(explanation, title=method).encode())]
    heatmaps = explanation.scores[0].reshape(-1, *(explanation.grid or (1, 1)))
    pictures = []
    for index, scores in zip(explanation.target[0].tolist(), heatmaps, strict=True):
        pictures.append((f"{method}-{index}.png", _png(render.overlay(shown, scores))))
    return pictures


def _png(image: Image.Image) -> bytes:
    out = io.BytesIO()
    image.save(out, "PNG")
    return out.getvalue()


def _is_photo(what: Input) -> bool:
    return isinstance(what, Photo)
