"""Find the class that a folder's name means: a WordNet id of ImageNet, or a name."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from whence.datasets.folders import find_first_file
from whence.datasets.sample import Label
from whence.errors import WhenceError

_WNID = re.compile(r"n\d{8}")
# Folders inside ImageNet, above which the list of classes lies.
_INSIDE = frozenset("val validation train test cls-loc data ilsvrc annotations images".split())


class ClassIndex:
    """Find the classes of folders by their names.

    A WordNet id (``n01440764``) is a class of ImageNet, whose index is

    1. given by ``classes.json``: ``{wnid: [index, name]}``;
    2. or the number of its line, from 0, in ``LOC_synset_mapping.txt``;
    3. or, if there are exactly 1000 such folders, its place among them in alphabetical order,
       which is the standard order;
    4. or else unknown, and the label is None.

    Any other name is itself the name of the class.

    Args:
        folder: Where the photos are; lists of classes are looked for there and above.
        names: The names of all class folders, if they are known.
    """

    def __init__(self, folder: Path, names: Collection[str] = ()) -> None:
        self._indices: Mapping[str, int] = _read_indices(folder)
        wnids = sorted(filter(_WNID.fullmatch, names))
        if not self._indices and len(wnids) == 1000:
            self._indices = {wnid: index for index, wnid in enumerate(wnids)}

    def find_label(self, name: str) -> Label:
        """Find the class of a folder by its name."""
        if name in self._indices:
            return self._indices[name]
        return None if _WNID.fullmatch(name) else name


def _read_indices(folder: Path) -> dict[str, int]:
    """Read the indices of WordNet ids from the list of classes, if there is one."""
    homes = list(_list_homes(folder))
    file = find_first_file(home / "classes.json" for home in homes)
    if file is not None:
        return _read_json(file)
    file = find_first_file(home / "LOC_synset_mapping.txt" for home in homes)
    return _read_mapping(file) if file is not None else {}


def _list_homes(folder: Path) -> Iterator[Path]:
    """List the folders that may hold the list of classes."""
    folder = folder.absolute()
    yield folder
    while folder.name.lower() in _INSIDE and folder != folder.parent:
        folder = folder.parent
        yield folder


def _read_json(file: Path) -> dict[str, int]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        indices = {wnid: one[0] if isinstance(one, list) else one for wnid, one in content.items()}
    except (OSError, ValueError, AttributeError, IndexError, RecursionError):
        indices = {"": None}
    if not all(type(index) is int and index >= 0 for index in indices.values()):
        raise WhenceError(f"'{file}' is not a list of classes: {{wnid: [index, name], …}}.")
    return indices


def _read_mapping(file: Path) -> dict[str, int]:
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        lines = [""]
    wnids = [line.split(" ", 1)[0] for line in lines if line.strip()]
    if not wnids or not all(map(_WNID.fullmatch, wnids)):
        raise WhenceError(f"'{file}' is not a list of classes: a line 'n01440764 tench' for each.")
    return {wnid: index for index, wnid in enumerate(wnids)}
