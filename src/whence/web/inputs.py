"""Photos and texts from people who may be anyone: read within bounds, or refused in a sentence."""

from __future__ import annotations

import hashlib
import io
import warnings
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from PIL import Image, UnidentifiedImageError

from whence.errors import WhenceError
from whence.inputs import checked_text, to_rgb
from whence.web.limits import MEBIBYTE, PHOTO_BYTES, PHOTO_PIXELS, TEXT_CHARACTERS

# Each is decoded by Pillow itself: no other program is started for it.
FORMATS = {"PNG": "png", "JPEG": "jpg", "WEBP": "webp", "GIF": "gif", "BMP": "bmp"}


@dataclass(frozen=True)
class Photo:
    """A photo as it came, and as an image.

    Attributes:
        content: The bytes of the file.
        ending: What its format is called at the end of a file's name.
        image: Upright, in RGB.
    """

    content: bytes
    ending: str
    image: Image.Image

    @cached_property
    def digest(self) -> str:
        """Tells it from all others."""
        return hashlib.sha256(self.content).hexdigest()


@dataclass(frozen=True)
class Sentence:
    """A text of a length that is allowed."""

    text: str

    @cached_property
    def digest(self) -> str:
        """Tells it from all others."""
        return hashlib.sha256(self.text.encode()).hexdigest()


Input = Photo | Sentence


def photo_from(content: bytes) -> Photo:
    """A photo from the bytes of a file, whatever it was called.

    Raises:
        WhenceError: It is too large, in bytes or in pixels, or damaged, or not a photo.
    """
    if len(content) > PHOTO_BYTES:
        raise WhenceError(f"A photo may have {PHOTO_BYTES // MEBIBYTE} MiB; this one is larger.")
    try:
        with warnings.catch_warnings():
            # The bound below is stricter than the one that Pillow warns of.
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            with Image.open(io.BytesIO(content), formats=tuple(FORMATS)) as image:
                _check_pixels(image)
                return Photo(content, FORMATS[str(image.format)], to_rgb(image))
    except WhenceError:
        raise
    except Image.DecompressionBombError:
        raise WhenceError(_too_many_pixels()) from None
    except UnidentifiedImageError:
        raise WhenceError(f"This is not a photo. Photos are {', '.join(FORMATS)} files.") from None
    except Exception as error:  # decoders of damaged files raise nearly anything
        raise WhenceError("The photo is damaged.") from error


def sentence_from(text: Any) -> Sentence:
    """A text, if it is one.

    Raises:
        WhenceError: It is none, or too long.
    """
    if not isinstance(text, str) or not text.strip():
        raise WhenceError("Type a text first, or use a sample.")
    if len(text) > TEXT_CHARACTERS:
        raise WhenceError(
            f"A text may have {TEXT_CHARACTERS:,} characters; this one has {len(text):,}."
        )
    return Sentence(checked_text(text))


def _check_pixels(image: Image.Image) -> None:
    # Known from the header, before anything is decoded.
    if image.width * image.height > PHOTO_PIXELS:
        raise WhenceError(_too_many_pixels())


def _too_many_pixels() -> str:
    return f"A photo may have {PHOTO_PIXELS // 10**6} million pixels; this one has more."
