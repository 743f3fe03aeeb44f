"""Decodes photos and texts that visitors send, within limits, or refuses them in a sentence."""

from __future__ import annotations

import hashlib
import io
import threading
import warnings
from dataclasses import dataclass
from functools import cached_property

from PIL import Image, UnidentifiedImageError

from whence.errors import WhenceError
from whence.inputs import to_rgb, validate_text
from whence.inputs.sources import Kind
from whence.web.limits import MAX_PHOTO_BYTES, MAX_PHOTO_PIXELS, MAX_TEXT_CHARACTERS, MEBIBYTE

# All threads share one list of filters of warnings.
_filtering = threading.Lock()

# File extension of each format. Pillow decodes all of them itself, without another program.
FORMATS = {"PNG": "png", "JPEG": "jpg", "WEBP": "webp", "GIF": "gif", "BMP": "bmp"}


@dataclass(frozen=True)
class PageInput:
    """A photo as it was uploaded, or a text."""

    content: bytes  # of the file; of a text, in UTF-8
    extension: str  # of a file with this content
    image: Image.Image | None = None  # the decoded photo, upright, in RGB; None for a text

    @property
    def kind(self) -> Kind:
        """The kind of input."""
        return "text" if self.image is None else "image"

    @property
    def text(self) -> str:
        """The text."""
        return self.content.decode()

    @cached_property
    def digest(self) -> str:
        """A hash that identifies the input."""
        return hashlib.sha256(self.content).hexdigest()


def check_size(name: str, content: bytes, max_bytes: int) -> None:
    """Refuse the content of an uploaded file if it is too large."""
    if len(content) > max_bytes:
        raise WhenceError(f"A {name} may have {max_bytes // MEBIBYTE} MiB; this one is larger.")


def decode_photo(content: bytes) -> PageInput:
    """Decode a photo from the bytes of a file, whatever its name; refuse what is no photo."""
    check_size("photo", content, MAX_PHOTO_BYTES)
    try:
        with _filtering, warnings.catch_warnings():
            # The limit below is stricter than the one that Pillow warns of.
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            with Image.open(io.BytesIO(content), formats=tuple(FORMATS)) as image:
                # The size is known from the header, before anything is decoded.
                if image.width * image.height > MAX_PHOTO_PIXELS:
                    raise Image.DecompressionBombError
                return PageInput(content, FORMATS[str(image.format)], to_rgb(image))
    except WhenceError:
        raise
    except Image.DecompressionBombError:
        raise WhenceError(
            f"A photo may have {MAX_PHOTO_PIXELS // 10**6} million pixels; this one has more."
        ) from None
    except UnidentifiedImageError:
        raise WhenceError(f"This is not a photo. Photos are {', '.join(FORMATS)} files.") from None
    except Exception as error:  # decoders of damaged files raise nearly anything
        raise WhenceError("The photo is damaged.") from error


def check_text(text: object) -> PageInput:
    """Check that a value is a text, neither empty nor too long."""
    if not isinstance(text, str) or not text.strip():
        raise WhenceError("Type a text first, or use a sample.")
    if len(text) > MAX_TEXT_CHARACTERS:
        raise WhenceError(
            f"A text may have {MAX_TEXT_CHARACTERS:,} characters; this one has {len(text):,}."
        )
    return PageInput(validate_text(text).encode(), "txt")
