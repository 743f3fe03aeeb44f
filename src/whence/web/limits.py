"""What a request may cost."""

from __future__ import annotations

MEBIBYTE = 2**20

PHOTO_BYTES = 10 * MEBIBYTE
# A photo in the bundle is as it came; the rest are scores and small pictures.
UPLOAD_BYTES = 2 * PHOTO_BYTES
# All uploads together; beyond that, the oldest are deleted. None stays longer than an hour.
FOLDER_BYTES = 512 * MEBIBYTE
# Of a request that is no upload: the longest text, with room for how JSON spells it.
BODY_BYTES = MEBIBYTE // 4
PHOTO_PIXELS = 40_000_000
TEXT_CHARACTERS = 5_000
CLASSES = 4
METHODS = 6
