"""What a model knows, in a sentence that is kept in its folder."""

from __future__ import annotations

import json
from pathlib import Path

from whence._util.files import is_file
from whence._util.text import to_printable
from whence.errors import WhenceError

FILE = "whence.json"
_LONGEST = 200


def read_knowledge(folder: Path) -> str:
    """Read what a model knows from its folder's whence.json, such as {"knows": "cat or dog"}.

    Any folder of a model may have that file. It is said beside every result of the model.

    Returns:
        A line without a closing period; empty if there is no such file.

    Raises:
        WhenceError: The file is there and says something else.
    """
    file = folder / FILE
    if not is_file(file):
        return ""
    try:
        knows = json.loads(file.read_text(encoding="utf-8"))["knows"]
    except (OSError, ValueError, LookupError, TypeError):
        knows = None
    if not isinstance(knows, str) or not knows.strip() or len(knows) > _LONGEST:
        raise WhenceError(
            f"'{file}' should say what the model knows, in at most {_LONGEST} letters, such as "
            f'{{"knows": "cat or dog"}}; or delete it.'
        )
    return to_printable(knows.strip()).removesuffix(".")
