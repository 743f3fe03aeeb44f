"""Labels of ImageNet's class folders: from a WordNet id to the index of its class."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from pathlib import Path

from whence.datasets.base import Label
from whence.datasets.folders import find_first_file
from whence.errors import WhenceError

_WNID = re.compile(r"n\d{8}")
# Folders inside ImageNet, above which the list of classes lies.
_INNER_FOLDERS = frozenset(
    "val validation train test cls-loc data ilsvrc annotations images".split()
)


class ClassIndex:
    """The labels of class folders, by the folder's name.

    A WordNet id (``n01440764``) is a class of ImageNet. Its index is

    1. the one in ``classes.json``: ``{wnid: [index, name]}``;
    2. or the number of its line, from 0, in ``LOC_synset_mapping.txt``;
    3. or, if there are exactly 1000 such folders, its position in alphabetical order, which is the
       standard order;
    4. or else unknown, and the label is None.

    Any other name is itself the name of the class.

    Args:
        folder: The folder of the photos; lists of classes are looked for there and above.
        names: The names of all class folders, if they are known.
    """

    def __init__(self, folder: Path, names: Collection[str] = ()) -> None:
        self._indices = _read_indices(folder)
        wnids = sorted(filter(_WNID.fullmatch, names))
        if not self._indices and len(wnids) == 1000:
            self._indices = {wnid: index for index, wnid in enumerate(wnids)}

    def find_label(self, name: str) -> Label:
        """Return the label of the class folder of this name."""
        if name in self._indices:
            return self._indices[name]
        return None if _WNID.fullmatch(name) else name


def _read_indices(folder: Path) -> dict[str, int]:
    folders = [folder.absolute()]  # and those above, up to the root of ImageNet
    while folders[-1].name.lower() in _INNER_FOLDERS and folders[-1] != folders[-1].parent:
        folders.append(folders[-1].parent)
    for name, read in (("classes.json", _read_json), ("LOC_synset_mapping.txt", _read_mapping)):
        file = find_first_file(one / name for one in folders)
        if file is not None:
            return read(file)
    return {}


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
        lines = []
    wnids = [line.split(" ", 1)[0] for line in lines if line.strip()]
    if not wnids or not all(map(_WNID.fullmatch, wnids)):
        raise WhenceError(f"'{file}' is not a list of classes: a line 'n01440764 tench' for each.")
    return {wnid: index for index, wnid in enumerate(wnids)}
