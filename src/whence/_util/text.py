"""Small pieces of text that several packages write: first lines of errors, data URIs, percentages."""

from __future__ import annotations

import base64


def first_line(error: BaseException) -> str:
    """The first line of an error's message, without a closing period or colon."""
    return str(error).strip().split("\n")[0].strip().rstrip(".:")


def data_uri(content: bytes, media_type: str) -> str:
    """Content as an address that a page can hold, such as ``data:image/png;base64,...``."""
    return f"data:{media_type};base64,{base64.b64encode(content).decode('ascii')}"


def percent(share: float, digits: int = 1) -> str:
    """A share between 0 and 1 as a percentage: ``98.4%``."""
    return f"{100 * share:.{digits}f}%"
