"""Sentences of a text: where each begins and ends."""

from __future__ import annotations

import re

from whence.layout.spelling import Offset

# A line break; or signs that end a sentence with the quotes and brackets that they close, before
# a space or the end. East Asian signs need no space after them.
_END = re.compile(
    r"\s*\n\s*"
    "|[.!?…]+[\"'\u201d\u2019»)\\]]*(?=\\s|$)"
    "|[\u3002\uff01\uff1f]+[\u300d\u300f\u201d\u2019\uff09]*"
)
# What stands before a period that ends no sentence: initials and titles.
_SHORT = re.compile(
    r"(?:^|[\s(\"'“])(?:[A-Z]|Mr|Mrs|Ms|Dr|Prof|St|Jr|Sr|vs|etc|e\.g|i\.e|cf|al|No|Fig)\.$"
)


def find_sentences(text: str) -> list[Offset]:
    """Find the first character of each sentence, and the one after its last."""
    spans: list[Offset] = []
    start = 0
    for end in _END.finditer(text):
        if _is_within_sentence(text, end):
            continue
        stop = end.start() if end[0].isspace() else end.end()
        spans += _strip_spaces(text, start, stop)
        start = end.end()
    return [*spans, *_strip_spaces(text, start, len(text))]


def _is_within_sentence(text: str, end: re.Match[str]) -> bool:
    """Whether a sentence goes on: after a title, an initial, or before a small letter."""
    if end[0].isspace():
        return False
    if end[0] == "." and _SHORT.search(text, max(0, end.start() - 8), end.end()):
        return True
    return text[end.end() :].lstrip(" \t")[:1].islower()


def _strip_spaces(text: str, start: int, stop: int) -> list[Offset]:
    """The span without spaces around it; none if nothing is left."""
    piece = text[start:stop]
    start += len(piece) - len(piece.lstrip())
    return [(start, start + len(piece.strip()))] if piece.strip() else []
