"""Read photos and texts from files, arrays, strings or standard input."""

from whence.inputs.images import decode_image, image_from_array, read_image, to_rgb
from whence.inputs.sources import Source, expand, read_input
from whence.inputs.texts import decode_text, read_text, validate_text

__all__ = [
    "Source",
    "decode_image",
    "decode_text",
    "expand",
    "image_from_array",
    "read_image",
    "read_input",
    "read_text",
    "to_rgb",
    "validate_text",
]
