"""Upper limits for what a visitor of the page may send and ask for."""

from __future__ import annotations

MEBIBYTE = 2**20

MAX_PHOTO_BYTES = 10 * MEBIBYTE
# A bundle holds the photo as it was uploaded, and again in the scores of each method, with a
# picture of each class: of noise, which packs worst, nearly 60 MiB.
MAX_UPLOAD_BYTES = 6 * MAX_PHOTO_BYTES
# All uploads together; beyond that, the oldest are deleted. None stays longer than an hour.
MAX_FOLDER_BYTES = 512 * MEBIBYTE
# Body of a request that is no upload: the longest text, with room for JSON's escapes.
MAX_BODY_BYTES = MEBIBYTE // 4
MAX_PHOTO_PIXELS = 40_000_000
MAX_TEXT_CHARACTERS = 5_000
MAX_CLASSES = 4
MAX_METHODS = 6
# Patches or tokens of an opened bundle: those of a model of 2048 pixels with patches of 8.
MAX_UNITS = 65_536
MAX_PROMPT_TOKENS = 512
MAX_NEW_TOKENS = 64
# For methods whose time grows with the number of tokens times that of generated ones.
MAX_SLOW_PROMPT_TOKENS = 128
MAX_SLOW_NEW_TOKENS = 16
