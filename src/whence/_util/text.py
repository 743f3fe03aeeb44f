"""Pieces of text that many packages write: lines of errors, data URIs, percentages, names."""

from __future__ import annotations

import base64
import unicodedata


def first_line(error: BaseException) -> str:
    """The first line of an error's message, without a closing period or colon."""
    return str(error).strip().split("\n")[0].strip().rstrip(".:")


def data_uri(content: bytes, media_type: str) -> str:
    """Content as an address that a page can hold, such as ``data:image/png;base64,...``."""
    return f"data:{media_type};base64,{base64.b64encode(content).decode('ascii')}"


def percent(share: float, digits: int = 1) -> str:
    """A share between 0 and 1 as a percentage: ``98.4%``."""
    return f"{100 * share:.{digits}f}%"


def format_probability(probability: float | None) -> str:
    """A probability as a percentage that is never rounded to certainty; empty if there is none."""
    if probability is None:
        return ""
    if probability < 0.001:
        return "<0.1%"
    return ">99.9%" if probability > 0.999 else percent(probability)


def to_printable(text: str) -> str:
    """Text without control characters, which could command a terminal or break a file."""
    return "".join(
        " " if character.isspace() else "\ufffd" if _is_control(character) else character
        for character in text
    )


def _is_control(character: str) -> bool:
    return unicodedata.category(character) in ("Cc", "Cs") or character in "\ufffe\uffff"
