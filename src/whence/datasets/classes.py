"""From the folder of a class to the class."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from whence.datasets.folders import first_file
from whence.datasets.sample import Label
from whence.errors import WhenceError

_WNID = re.compile(r"n\d{8}")
# Folders inside ImageNet, above which the list of classes lies.
_INSIDE = frozenset("val validation train test cls-loc data ilsvrc annotations images".split())


class Classes:
    """What the names of class folders mean.

    A WordNet id (``n01440764``) is a class of ImageNet, whose index is

    1. what ``classes.json`` says: ``{wnid: [index, name]}``;
    2. or the number of its line, from 0, in ``LOC_synset_mapping.txt``;
    3. or, if there are exactly 1000 such folders, its place among them in alphabetical order,
       which is the standard order;
    4. or else not known, and the label is None.

    Any other name is itself the name of the class.

    Args:
        folder: Where the photos are; lists of classes are looked for there and above.
        names: The names of all class folders, if they are known.
    """

    def __init__(self, folder: Path, names: Collection[str] = ()) -> None:
        self._indices: Mapping[str, int] = _listed(folder)
        wnids = sorted(filter(_WNID.fullmatch, names))
        if not self._indices and len(wnids) == 1000:
            self._indices = {wnid: index for index, wnid in enumerate(wnids)}

    def label(self, name: str) -> Label:
        """The class of a folder of that name."""
        if name in self._indices:
            return self._indices[name]
        return None if _WNID.fullmatch(name) else name


def _listed(folder: Path) -> dict[str, int]:
    homes = list(_homes(folder))
    file = first_file(home / "classes.json" for home in homes)
    if file is not None:
        return _from_json(file)
    file = first_file(home / "LOC_synset_mapping.txt" for home in homes)
    return _from_mapping(file) if file is not None else {}


def _homes(folder: Path) -> Iterator[Path]:
    folder = folder.absolute()
    yield folder
    while folder.name.lower() in _INSIDE and folder != folder.parent:
        folder = folder.parent
        yield folder


def _from_json(file: Path) -> dict[str, int]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        found = {wnid: one[0] if isinstance(one, list) else one for wnid, one in content.items()}
    except (OSError, ValueError, AttributeError, IndexError, RecursionError):
        found = {"": None}
    if not all(type(index) is int and index >= 0 for index in found.values()):
        raise WhenceError(f"'{file}' is not a list of classes: {{wnid: [index, name], …}}.")
    return found


def _from_mapping(file: Path) -> dict[str, int]:
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        lines = [""]
    wnids = [line.split(" ", 1)[0] for line in lines if line.strip()]
    if not wnids or not all(map(_WNID.fullmatch, wnids)):
        raise WhenceError(f"'{file}' is not a list of classes: a line 'n01440764 tench' for each.")
    return {wnid: index for index, wnid in enumerate(wnids)}
