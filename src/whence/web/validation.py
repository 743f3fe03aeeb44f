"""Decodes photos and texts that visitors send, within limits, or refuses them in a sentence."""

from __future__ import annotations

import hashlib
import io
import warnings
from dataclasses import dataclass
from functools import cached_property

from PIL import Image, UnidentifiedImageError

from whence.errors import WhenceError
from whence.inputs import to_rgb, validate_text
from whence.web.limits import (
    MAX_PHOTO_BYTES,
    MAX_PHOTO_PIXELS,
    MAX_TEXT_CHARACTERS,
    MEBIBYTE,
)

# File extension of each format. Pillow decodes all of them itself, without another program.
FORMATS = {"PNG": "png", "JPEG": "jpg", "WEBP": "webp", "GIF": "gif", "BMP": "bmp"}


@dataclass(frozen=True)
class UploadedPhoto:
    """A photo as it was uploaded, and decoded.

    Attributes:
        content: The bytes of the file.
        extension: The file extension of its format.
        image: The decoded photo, upright, in RGB.
    """

    content: bytes
    extension: str
    image: Image.Image

    @cached_property
    def digest(self) -> str:
        """A hash that identifies the photo."""
        return hashlib.sha256(self.content).hexdigest()


@dataclass(frozen=True)
class SubmittedText:
    """A text of an allowed length."""

    text: str

    @cached_property
    def digest(self) -> str:
        """A hash that identifies the text."""
        return hashlib.sha256(self.text.encode()).hexdigest()


PageInput = UploadedPhoto | SubmittedText


def decode_photo(content: bytes) -> UploadedPhoto:
    """Decode a photo from the bytes of a file. The name of the file does not matter.

    Raises:
        WhenceError: It has too many bytes or pixels, is damaged, or is not a photo.
    """
    if len(content) > MAX_PHOTO_BYTES:
        raise WhenceError(
            f"A photo may have {MAX_PHOTO_BYTES // MEBIBYTE} MiB; this one is larger."
        )
    try:
        with warnings.catch_warnings():
            # The limit below is stricter than the one that Pillow warns of.
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            with Image.open(io.BytesIO(content), formats=tuple(FORMATS)) as image:
                # The size is known from the header, before anything is decoded.
                if image.width * image.height > MAX_PHOTO_PIXELS:
                    raise Image.DecompressionBombError
                return UploadedPhoto(content, FORMATS[str(image.format)], to_rgb(image))
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


def check_text(text: object) -> SubmittedText:
    """Check that a value is a text that can be explained.

    Raises:
        WhenceError: It is no text, empty or too long.
    """
    if not isinstance(text, str) or not text.strip():
        raise WhenceError("Type a text first, or use a sample.")
    if len(text) > MAX_TEXT_CHARACTERS:
        raise WhenceError(
            f"A text may have {MAX_TEXT_CHARACTERS:,} characters; this one has {len(text):,}."
        )
    return SubmittedText(validate_text(text))
