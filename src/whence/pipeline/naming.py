"""Names for results: told by the input, distinct from each other, and never in the way."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from whence._util.files import exists
from whence.errors import WhenceError
from whence.inputs.sources import Source

_LONGEST = 60


@dataclass(frozen=True)
class Planned:
    """An input and the names of the files that will tell about it.

    Attributes:
        source: The input.
        name: What the names of its files begin with.
        files: For each part of the result, the name of its file.
    """

    source: Source
    name: str
    files: dict[str, str]


def plan(sources: Sequence[Source], image_format: str) -> list[Planned]:
    """Give every input a name of its own."""
    taken: set[str] = set()
    planned = []
    for source in sources:
        name = _distinct(_name_of(source), taken)
        # Some file systems do not tell upper case from lower.
        taken.add(name.casefold())
        shown = (
            {"figure": f"{name}.{image_format}"}
            if source.kind == "image"
            else {"page": f"{name}.html"}
        )
        planned.append(Planned(source, name, {**shown, "explanation": f"{name}.safetensors"}))
    return planned


def check_free(planned: Sequence[Planned], out: Path) -> None:
    """Refuse to write over files that are there.

    Raises:
        WhenceError: It names the first of them.
    """
    there = [out / file for one in planned for file in one.files.values() if exists(out / file)]
    if there:
        more = f" and {len(there) - 1} more exist" if len(there) > 1 else " exists"
        raise WhenceError(
            f"'{there[0]}'{more} already. Give --force to write over, or another folder with --out."
        )


def _name_of(source: Source) -> str:
    if source.path is not None:
        name = source.path.stem
    elif source.row is not None:
        name = source.row.replace(", row ", "-")
    elif source.text is None:
        name = "stdin"
    else:
        name = "-".join(re.findall(r"\w+", source.text.lower())[:6])
    name = re.sub(r"[^\w.()+ -]+", "_", name).strip(". ")
    # File systems limit names to 255 bytes, and a letter may take four.
    return name[:_LONGEST].strip(" -_.") or source.kind


def _distinct(name: str, taken: set[str]) -> str:
    candidate, number = name, 1
    while candidate.casefold() in taken:
        number += 1
        candidate = f"{name}-{number}"
    return candidate
