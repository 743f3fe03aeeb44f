"""What is to be explained: photos and texts, from files, arrays, strings or standard input."""

from whence.inputs.images import image_from_array, read_image, to_rgb
from whence.inputs.sources import Source, expand
from whence.inputs.texts import checked_text, decoded_text, read_text

__all__ = [
    "Source",
    "checked_text",
    "decoded_text",
    "expand",
    "image_from_array",
    "read_image",
    "read_text",
    "to_rgb",
]
